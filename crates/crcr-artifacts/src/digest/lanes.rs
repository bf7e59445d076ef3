//! SHA-256 by the instructions of x86-64, two at a time.
//!
//! Each step of a SHA-256 waits for the one before it, and the bytes come from memory: one digest
//! alone leaves the unit that computes it idle for much of the time. Two of the same bytes, step by
//! step in turn, take little longer than one. FIPS 180-4 has the algorithm.

use core::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_extract_epi32, _mm_set_epi8, _mm_set_epi32,
    _mm_set_epi64x, _mm_setzero_si128, _mm_sha256msg1_epu32, _mm_sha256msg2_epu32,
    _mm_sha256rnds2_epu32, _mm_shuffle_epi8, _mm_shuffle_epi32,
};

const BLOCK: usize = 64;
const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
#[rustfmt::skip]
const K: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

/// One SHA-256 on its way.
pub(super) struct Lane {
    state: [u32; 8],
    /// The start of a block that isn't whole yet: its first `len % 64` bytes.
    rest: [u8; BLOCK],
    len: u64,
}

/// Whether this processor has the instructions.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("sha")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1")
}

impl Lane {
    pub(super) fn new() -> Self {
        Self { state: START, rest: [0; BLOCK], len: 0 }
    }

    /// Adds `bytes`.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        let bytes = self.fill(bytes);
        let (blocks, rest) = bytes.split_at(bytes.len() / BLOCK * BLOCK);
        compress([&mut self.state], [blocks]);
        self.keep(blocks.len(), rest);
    }

    /// Adds `bytes` to both, whatever came before to each of them.
    pub(super) fn update_both(one: &mut Self, other: &mut Self, bytes: &[u8]) {
        let (first, second) = (one.fill(bytes), other.fill(bytes));
        let both = first.len().min(second.len()) / BLOCK * BLOCK;
        compress([&mut one.state, &mut other.state], [&first[..both], &second[..both]]);
        one.len += both as u64;
        other.len += both as u64;
        one.update(&first[both..]);
        other.update(&second[both..]);
    }

    /// Completes the block that has begun, and gives the bytes that are left.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let begun = (self.len % BLOCK as u64) as usize;
        if begun == 0 {
            return bytes;
        }
        let (these, left) = bytes.split_at(bytes.len().min(BLOCK - begun));
        self.rest[begun..begun + these.len()].copy_from_slice(these);
        self.len += these.len() as u64;
        if begun + these.len() == BLOCK {
            compress([&mut self.state], [&self.rest]);
        }
        left
    }

    /// Counts blocks that were added, and keeps what follows them.
    fn keep(&mut self, blocks: usize, rest: &[u8]) {
        self.len += (blocks + rest.len()) as u64;
        if !rest.is_empty() {
            self.rest[..rest.len()].copy_from_slice(rest);
        }
    }

    pub(super) fn finish(mut self) -> [u8; 32] {
        let bits = self.len * 8;
        let zeros = (2 * BLOCK - 9 - (self.len % BLOCK as u64) as usize) % BLOCK;
        self.update(&[0x80]);
        self.update(&[0; BLOCK][..zeros]);
        self.update(&bits.to_be_bytes());
        let mut digest = [0; 32];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }
}

/// Adds whole blocks, equally many to each state.
fn compress<const N: usize>(states: [&mut [u32; 8]; N], blocks: [&[u8]; N]) {
    #[expect(unsafe_code, reason = "a `Lane` is made only where the instructions are")]
    unsafe {
        compress_by_instructions(states, blocks);
    }
}

/// Four of the 64 rounds for each state; `words` are the last sixteen words of the schedule.
macro_rules! rounds {
    ($($step:literal)*; $states:ident, $words:ident) => {$({
        let k = _mm_set_epi32(
            K[4 * $step + 3].cast_signed(),
            K[4 * $step + 2].cast_signed(),
            K[4 * $step + 1].cast_signed(),
            K[4 * $step].cast_signed(),
        );
        for n in 0..N {
            let w = &mut $words[n];
            if $step >= 4 {
                let before = _mm_alignr_epi8::<4>(w[($step + 3) % 4], w[($step + 2) % 4]);
                let sum = _mm_sha256msg1_epu32(w[$step % 4], w[($step + 1) % 4]);
                let sum = _mm_add_epi32(sum, before);
                w[$step % 4] = _mm_sha256msg2_epu32(sum, w[($step + 3) % 4]);
            }
            let (abef, cdgh) = $states[n];
            let two = _mm_add_epi32(w[$step % 4], k);
            let cdgh = _mm_sha256rnds2_epu32(cdgh, abef, two);
            let abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32::<0x0e>(two));
            $states[n] = (abef, cdgh);
        }
    })*};
}

// No iterators with closures in here: what has no such features isn't inlined with one that has.
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn compress_by_instructions<const N: usize>(to: [&mut [u32; 8]; N], blocks: [&[u8]; N]) {
    let big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    let zero = _mm_setzero_si128();
    // The instructions want the words `a b e f` in one register and `c d g h` in the other.
    let mut states = [(zero, zero); N];
    for n in 0..N {
        let &mut [a, b, c, d, e, f, g, h] = &mut *to[n];
        states[n] = (register(a, b, e, f), register(c, d, g, h));
    }
    for at in 0..blocks[0].len() / BLOCK {
        let before = states;
        let mut words = [[zero; 4]; N];
        for n in 0..N {
            let block = &blocks[n][at * BLOCK..(at + 1) * BLOCK];
            for m in 0..4 {
                words[n][m] = _mm_shuffle_epi8(sixteen(&block[16 * m..16 * m + 16]), big_endian);
            }
        }
        rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; states, words);
        for n in 0..N {
            states[n].0 = _mm_add_epi32(states[n].0, before[n].0);
            states[n].1 = _mm_add_epi32(states[n].1, before[n].1);
        }
    }
    for n in 0..N {
        let [f, e, b, a] = words_of(states[n].0);
        let [h, g, d, c] = words_of(states[n].1);
        *to[n] = [a, b, c, d, e, f, g, h];
    }
}

/// A register of four words, the highest first.
#[target_feature(enable = "sse2")]
fn register(a: u32, b: u32, c: u32, d: u32) -> __m128i {
    _mm_set_epi32(a.cast_signed(), b.cast_signed(), c.cast_signed(), d.cast_signed())
}

#[target_feature(enable = "sse2")]
fn sixteen(bytes: &[u8]) -> __m128i {
    let (Some(low), Some(high)) = (bytes.first_chunk(), bytes.last_chunk()) else {
        return _mm_setzero_si128();
    };
    _mm_set_epi64x(i64::from_le_bytes(*high), i64::from_le_bytes(*low))
}

/// The words of a register, the lowest first.
#[target_feature(enable = "sse4.1")]
fn words_of(register: __m128i) -> [u32; 4] {
    [
        _mm_extract_epi32::<0>(register).cast_unsigned(),
        _mm_extract_epi32::<1>(register).cast_unsigned(),
        _mm_extract_epi32::<2>(register).cast_unsigned(),
        _mm_extract_epi32::<3>(register).cast_unsigned(),
    ]
}
