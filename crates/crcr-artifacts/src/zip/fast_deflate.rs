//! Deflate with libdeflate at level 1, in parts that can be concatenated to one stream.
//!
//! For the same size libdeflate takes half of zlib's time, but it has no flush: it only makes whole
//! streams. A stream can't simply be continued, because its last block is marked as final, and because
//! its length in bytes doesn't say how many bits of the last byte are used. For a stream of one block
//! both are easy to find:
//!
//! - The mark is the first bit of a block, so it is the first bit of the stream.
//! - A block ends with the code for "end of block", followed by zero bits up to the next byte. So the
//!   last 1 bit of the stream belongs to that code, and the block ends as many bits later as the code
//!   has trailing zeros. The code follows from the code lengths in the block's header (RFC 1951, 3.2.2
//!   and 3.2.7). If it has no 1 bit, as in a block with the fixed code, the caller uses zlib.
//!
//! A piece of at most [`FastDeflate::MAX_PIECE_BYTES`] is always one block: level 1 is
//! `deflate_compress_fastest` in libdeflate's `deflate_compress.c`, which starts another block only
//! after 65,535 bytes or 8,192 matches of at least 4 bytes. Another version may differ, so `Cargo.toml`
//! pins the exact one, debug builds decode every piece, and a test uses the input with the most matches.

use flate2::{Decompress, FlushDecompress, Status};
use libdeflater::{CompressionLvl, Compressor};

/// Level 0, which the library calls its fastest, only stores.
const FASTEST_LEVEL: CompressionLvl = match CompressionLvl::new(1) {
    Ok(level) => level,
    Err(_) => panic!("libdeflate has a level 1"),
};
/// A symbol of deflate's alphabet.
const END_OF_BLOCK: usize = 256;
/// The order of the lengths of the code-length code (RFC 1951, 3.2.7).
const CODE_LENGTH_ORDER: [usize; 19] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

pub(crate) struct FastDeflate(Compressor);

impl FastDeflate {
    /// For every piece but the last one.
    pub(crate) const MAX_PIECE_BYTES: usize = 32 * 1024;

    pub(crate) fn new() -> Self {
        Self(Compressor::new(FASTEST_LEVEL))
    }

    /// Appends a complete stream of `input`, which may have any length.
    pub(crate) fn finish(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.0.deflate_compress_bound(input.len()), 0);
        // The buffer is large enough for the worst case, so this can't fail.
        let len = self.0.deflate_compress(input, &mut out[start..]).unwrap_or(0);
        out.truncate(start + len);
    }

    /// Appends `piece` as blocks that end at a byte boundary, where another block can follow. Appends
    /// nothing and returns false if that isn't possible.
    pub(crate) fn flush(&mut self, piece: &[u8], out: &mut Vec<u8>) -> bool {
        assert!(
            piece.len() <= Self::MAX_PIECE_BYTES,
            "a longer piece can have more than one block"
        );
        let start = out.len();
        self.finish(piece, out);
        let Some(free) = free_bits(&out[start..]) else {
            out.truncate(start);
            return false;
        };
        out[start] &= !1;
        // An empty stored block: a header of three zero bits, zeros up to the next byte, its length.
        if free < 3 {
            out.push(0);
        }
        out.extend_from_slice(&[0x00, 0x00, 0xFF, 0xFF]);
        debug_assert!(is_flushed(&out[start..], piece), "the blocks hold other bytes");
        true
    }
}

/// Whether `blocks` decode to `piece` and end at a byte boundary.
fn is_flushed(blocks: &[u8], piece: &[u8]) -> bool {
    let mut decoder = Decompress::new(false);
    let mut found = vec![0; piece.len() + 1];
    let status = decoder.decompress(blocks, &mut found, FlushDecompress::Sync);
    let end = decoder.decompress(&[0x03, 0x00], &mut [0], FlushDecompress::Finish);
    matches!((status, end), (Ok(Status::Ok), Ok(Status::StreamEnd)))
        && decoder.total_in() == blocks.len() as u64 + 2
        && decoder.total_out() == piece.len() as u64
        && found.starts_with(piece)
}

/// The number of unused bits in the last byte of `stream`, which has one block.
fn free_bits(stream: &[u8]) -> Option<usize> {
    let mut bits = BitReader { bytes: stream, at: 0 };
    let (_final, kind) = (bits.take(1)?, bits.take(2)?);
    match kind {
        0 => {
            let len = u16::from_le_bytes([*stream.get(1)?, *stream.get(2)?]);
            (usize::from(len) + 5 == stream.len()).then_some(0)
        }
        2 => {
            let lengths = literal_lengths(&mut bits)?;
            let code = canonical_code(&lengths, END_OF_BLOCK).filter(|code| *code != 0)?;
            let last = stream.iter().rposition(|byte| *byte != 0)?;
            let one = last * 8 + 8 - stream[last].leading_zeros() as usize;
            let end = one + code.trailing_zeros() as usize;
            (stream.len() * 8).checked_sub(end).filter(|free| *free < 8)
        }
        _ => None,
    }
}

/// The code lengths of literals, "end of block" and match lengths, which follow the first three bits of
/// a block with dynamic codes.
fn literal_lengths(bits: &mut BitReader<'_>) -> Option<Vec<u8>> {
    let count = bits.take(5)? + 257;
    let _distances = bits.take(5)?;
    let of_lengths = bits.take(4)? + 4;
    let mut lengths = [0; CODE_LENGTH_ORDER.len()];
    for symbol in &CODE_LENGTH_ORDER[..of_lengths] {
        lengths[*symbol] = bits.take(3)? as u8;
    }
    // The index is the code with a 1 bit before it, which keeps leading zeros.
    let mut symbols = [None; 256];
    for symbol in 0..lengths.len() {
        if let Some(code) = canonical_code(&lengths, symbol) {
            *symbols.get_mut(1 << lengths[symbol] | code)? = Some(symbol);
        }
    }
    let mut found = Vec::with_capacity(count + 138);
    while found.len() < count {
        let mut code = 1;
        let symbol = loop {
            code = code << 1 | bits.take(1)?;
            if let Some(symbol) = symbols.get(code)? {
                break *symbol;
            }
        };
        let (length, times) = match symbol {
            16 => (*found.last()?, bits.take(2)? + 3),
            17 => (0, bits.take(3)? + 3),
            18 => (0, bits.take(7)? + 11),
            length => (length as u8, 1),
        };
        found.resize(found.len() + times, length);
    }
    // The last run may continue into the distance code lengths.
    found.truncate(count);
    Some(found)
}

/// The code of a symbol. Codes are assigned by length, then by symbol.
fn canonical_code(lengths: &[u8], symbol: usize) -> Option<usize> {
    let own = *lengths.get(symbol).filter(|length| **length > 0)?;
    let before = lengths.iter().enumerate().filter(|&(other, &length)| {
        length > 0 && (length < own || (length == own && other < symbol))
    });
    Some(before.map(|(_, length)| 1 << (own - length)).sum())
}

/// Reads numbers with the lowest bit first.
struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    fn take(&mut self, count: usize) -> Option<usize> {
        let mut number = 0;
        for n in 0..count {
            number |= usize::from(self.bytes.get(self.at / 8)? >> (self.at % 8) & 1) << n;
            self.at += 1;
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Random bytes of `kinds` values; if `word` isn't 0, in words of that length that recur.
    fn bytes(seed: u64, len: usize, kinds: u64, word: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 20
        };
        let words: Vec<u8> = (0..200 * word).map(|_| (next() % kinds) as u8).collect();
        let mut bytes = Vec::with_capacity(len + word);
        while bytes.len() < len {
            let at = (next() % 200) as usize * word;
            match word {
                0 => bytes.push((next() % kinds) as u8),
                _ => bytes.extend_from_slice(&words[at..at + word]),
            }
        }
        bytes.truncate(len);
        bytes
    }

    /// Compresses and concatenates the pieces; the second result says which of them need zlib.
    fn joined(pieces: &[Vec<u8>]) -> (Vec<u8>, Vec<bool>) {
        let (mut fast, mut out) = (FastDeflate::new(), Vec::new());
        let refused = pieces.iter().map(|piece| !fast.flush(piece, &mut out)).collect();
        fast.finish(b"the end", &mut out);
        (out, refused)
    }

    fn inflated(stream: &[u8]) -> Vec<u8> {
        let mut decoder = Decompress::new(false);
        let mut found = Vec::with_capacity(4 * FastDeflate::MAX_PIECE_BYTES);
        let status = decoder.decompress_vec(stream, &mut found, FlushDecompress::Finish);
        assert!(matches!(status, Ok(Status::StreamEnd)), "{status:?}");
        assert_eq!(decoder.total_in(), stream.len() as u64);
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn joined_pieces_are_one_stream_with_every_byte(
            seeds in prop::collection::vec(any::<u64>(), 1..4),
            len in prop_oneof![0..70_usize, 0..2000_usize, 0..=FastDeflate::MAX_PIECE_BYTES],
            kinds in prop_oneof![1..4_u64, 1..=256_u64],
            word in prop_oneof![Just(0_usize), 1..9_usize, 1..400_usize],
        ) {
            let pieces: Vec<_> = seeds.iter().map(|seed| bytes(*seed, len, kinds, word)).collect();
            let (stream, refused) = joined(&pieces);
            let kept = pieces.iter().zip(refused).filter(|(_, refused)| !refused);
            let mut expected: Vec<u8> = kept.flat_map(|(piece, _)| piece.clone()).collect();
            expected.extend_from_slice(b"the end");
            prop_assert!(inflated(&stream) == expected);
        }
    }

    /// Words of four bytes that recur in a different order: every match is as short as possible.
    #[test]
    fn piece_with_the_most_matches_is_one_block() {
        for seed in 1..200 {
            let piece = bytes(seed, FastDeflate::MAX_PIECE_BYTES, 256, 4);
            let (stream, refused) = joined(std::slice::from_ref(&piece));
            assert_eq!(refused, [false]);
            assert!(inflated(&stream).starts_with(&piece));
        }
    }

    #[test]
    fn only_pieces_with_the_fixed_code_need_zlib() {
        let len = FastDeflate::MAX_PIECE_BYTES;
        let pieces = [
            bytes(1, len, 16, 0),
            bytes(1, len, 256, 0),
            bytes(1, len, 16, 300),
            vec![b'a'; len],
            (0..70).collect(),
            b"a".to_vec(),
            vec![],
        ];
        for (piece, needs_zlib) in
            pieces.iter().zip([false, false, false, false, true, false, false])
        {
            assert_eq!(joined(std::slice::from_ref(piece)).1, [needs_zlib], "{:?}", piece.get(..9));
        }
    }
}
