//! Compares the log of a failed job with logs of other runs of the same job: what never occurs in the last green
//! one, or in few of the earlier ones, is a hint at the cause, without any rule.

use std::cmp::Reverse;
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher};
use std::io::{self, Read};

use crcr_domain::ci_data::job_log::NovelLine;

use super::cleaner::{CleanChunk, LogReader, RawChunk, cut_text};

/// About 36 MB. What a baseline has beyond is shown as new rather than hidden.
const MAX_BASELINE_LINES: usize = 2_000_000;
/// How many new lines are kept while reading, and how many are reported.
const MAX_NOVEL: usize = 4096;
const MAX_REPORTED: usize = 50;
const MAX_LINE_BYTES: usize = 1000;
/// What follows in a line doesn't tell it apart.
const MAX_SHAPED_BYTES: usize = 4096;

/// What the runner says whenever a step fails.
const EXIT_CODE: &[u8] = b"##[error]Process completed with exit code ";

/// What the lines of other runs of the same job look like.
#[derive(Default)]
pub struct Baseline {
    /// Shapes of the lines of a green run.
    green: Option<HashSet<u64, BuildHasherDefault<IsHash>>>,
    earlier: HashMap<u64, EarlierShape, BuildHasherDefault<IsHash>>,
    earlier_logs: u32,
    hasher: ShapeHasher,
}

struct EarlierShape {
    /// How many earlier logs have it.
    logs: u32,
    /// The last one that does.
    last_log: u32,
}

/// Hashes what a line has in common with lines that differ in numbers, hashes, paths and times. Its keys are random, so
/// that nobody can print lines that hide others.
#[derive(Clone)]
pub(crate) struct ShapeHasher {
    start: u64,
    factor: u64,
}

impl Default for ShapeHasher {
    fn default() -> Self {
        let random = RandomState::new();
        Self { start: random.hash_one(0), factor: random.hash_one(1) | 1 }
    }
}

impl ShapeHasher {
    pub(crate) fn shape_of(&self, line: &[u8]) -> u64 {
        self.shape_in(line, &mut vec![])
    }

    /// With a buffer that is used again.
    pub(crate) fn shape_in(&self, line: &[u8], buffer: &mut Vec<u8>) -> u64 {
        write_shape(&line[..line.len().min(MAX_SHAPED_BYTES)], buffer);
        self.hash(buffer)
    }

    /// Takes a third of the time of the standard library's hash, and every line with a word of failure is hashed.
    fn hash(&self, bytes: &[u8]) -> u64 {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        let start = self.start ^ bytes.len() as u64;
        self.mix(words.fold(start, |hash, word| self.mix(hash ^ word)))
    }

    fn mix(&self, value: u64) -> u64 {
        let product = u128::from(value) * u128::from(self.factor);
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let (low, high) = (product as u64, (product >> 64) as u64);
        low ^ high
    }
}

impl Baseline {
    /// Adds the log of a green run.
    pub fn add_green(&mut self, input: impl Read) -> io::Result<()> {
        let mut green = self.green.take().unwrap_or_default();
        let read = self.each_shape(input, |shape| {
            if green.len() < MAX_BASELINE_LINES {
                green.insert(shape);
            }
        });
        self.green = Some(green);
        read
    }

    /// Adds the log of an earlier run, whether it failed or not.
    pub fn add_earlier(&mut self, input: impl Read) -> io::Result<()> {
        let mut earlier = std::mem::take(&mut self.earlier);
        self.earlier_logs += 1;
        let number = self.earlier_logs;
        let read = self.each_shape(input, |shape| {
            if let Some(known) = earlier.get_mut(&shape) {
                known.logs += u32::from(known.last_log != number);
                known.last_log = number;
            } else if earlier.len() < MAX_BASELINE_LINES {
                earlier.insert(shape, EarlierShape { logs: 1, last_log: number });
            }
        });
        self.earlier = earlier;
        read
    }

    fn each_shape(&self, input: impl Read, mut use_shape: impl FnMut(u64)) -> io::Result<()> {
        let mut reader = LogReader::new(input);
        let (mut raw, mut chunk) = (RawChunk::default(), CleanChunk::default());
        let mut shape = vec![];
        while reader.read(&mut raw)? {
            chunk.clean(&raw);
            for segment in 0..chunk.segments.len() {
                use_shape(self.hasher.shape_in(chunk.segment(segment), &mut shape));
            }
        }
        Ok(())
    }

    pub(crate) fn hasher(&self) -> &ShapeHasher {
        &self.hasher
    }

    pub(crate) fn has_green(&self) -> bool {
        self.green.is_some()
    }

    /// Whether the green run has such a line, if there is one.
    pub(crate) fn is_in_green(&self, shape: u64) -> Option<bool> {
        self.green.as_ref().map(|green| green.contains(&shape))
    }

    /// In which share of the earlier logs such a line is, if there are any.
    pub(crate) fn share_of_earlier(&self, shape: u64) -> Option<f32> {
        let logs = self.earlier.get(&shape).map_or(0, |known| known.logs);
        #[expect(clippy::cast_precision_loss, reason = "there are few logs")]
        let share = logs as f32 / self.earlier_logs as f32;
        (self.earlier_logs > 0).then_some(share)
    }
}

/// A key that is a hash already.
#[derive(Default)]
pub(crate) struct IsHash(u64);

impl Hasher for IsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

pub(crate) struct NovelLines<'b> {
    baseline: &'b Baseline,
    lines: HashMap<u64, NovelShape, BuildHasherDefault<IsHash>>,
    shape: Vec<u8>,
}

struct NovelShape {
    count: u64,
    /// The last line of this shape.
    line: NovelLine,
}

impl NovelShape {
    /// Smaller is more telling.
    fn rank(&self) -> (u64, Reverse<u64>) {
        (self.count, Reverse(self.line.line_number))
    }
}

impl<'b> NovelLines<'b> {
    pub(crate) fn new(baseline: &'b Baseline) -> Self {
        Self { baseline, lines: HashMap::default(), shape: vec![] }
    }

    pub(crate) fn scan(&mut self, chunk: &CleanChunk, is_wanted: impl Fn(&[u8]) -> bool) {
        for segment in 0..chunk.segments.len() {
            let text = chunk.segment(segment);
            let hash = self.baseline.hasher.shape_in(text, &mut self.shape);
            if self.baseline.is_in_green(hash) == Some(true)
                || !self.shape.iter().any(u8::is_ascii_alphabetic)
                || text.starts_with(EXIT_CODE)
                || !is_wanted(text)
            {
                continue;
            }
            let line_number = chunk.segments[segment].line_number;
            match self.lines.entry(hash) {
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.count += 1;
                    known.line.line_number = line_number;
                    known.line.line = cut_text(text, MAX_LINE_BYTES);
                }
                Entry::Vacant(place) => {
                    let line = NovelLine { line_number, line: cut_text(text, MAX_LINE_BYTES) };
                    place.insert(NovelShape { count: 1, line });
                    if self.lines.len() >= MAX_NOVEL {
                        self.drop_half();
                    }
                }
            }
        }
    }

    fn drop_half(&mut self) {
        let mut ranks: Vec<_> = self.lines.values().map(NovelShape::rank).collect();
        ranks.sort_unstable();
        let worst = ranks[ranks.len() / 2];
        self.lines.retain(|_, shape| shape.rank() < worst);
    }

    /// The most telling lines.
    pub(crate) fn finish(self) -> Vec<NovelLine> {
        let mut shapes: Vec<NovelShape> = self.lines.into_values().collect();
        shapes.sort_unstable_by_key(NovelShape::rank);
        shapes.into_iter().map(|shape| shape.line).take(MAX_REPORTED).collect()
    }
}

const WORD: u8 = 1;
const DIGIT: u8 = 1 << 1;
const PATH_SEPARATOR: u8 = 1 << 2;
/// Characters of a commit or a UUID.
const HEX_OR_DASH: u8 = 1 << 3;

/// What each byte is, looked up because every line with a word of failure is shaped.
const BYTE_CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let (own, mut class) = (byte as u8, 0);
        if own.is_ascii_alphanumeric()
            || matches!(own, b'_' | b'.' | b'-' | b'/' | b'\\')
            || own >= 0x80
        {
            class |= WORD;
        }
        if own.is_ascii_digit() {
            class |= DIGIT;
        }
        if matches!(own, b'/' | b'\\') {
            class |= PATH_SEPARATOR;
        }
        if own.is_ascii_hexdigit() || own == b'-' {
            class |= HEX_OR_DASH;
        }
        classes[byte] = class;
        byte += 1;
    }
    classes
};

fn class_of(byte: u8) -> u8 {
    BYTE_CLASSES[usize::from(byte)]
}

/// Writes what a line has in common with lines that differ in numbers, hashes, paths and times.
fn write_shape(line: &[u8], shape: &mut Vec<u8>) {
    shape.clear();
    let (mut start, mut plain_from) = (0, 0);
    while let Some(&first) = line.get(start) {
        let kind = class_of(first) & WORD;
        let (mut some, mut all, mut end) = (0, u8::MAX, start);
        for &byte in &line[start..] {
            let class = class_of(byte);
            if class & WORD != kind {
                break;
            }
            (some, all, end) = (some | class, all & class, end + 1);
        }
        let length = end - start;
        if some & (PATH_SEPARATOR | DIGIT) != 0 && (length > 1 || some & DIGIT != 0) {
            // What stays as it is is copied in one go.
            shape.extend_from_slice(&line[plain_from..start]);
            plain_from = end;
            if some & PATH_SEPARATOR != 0 && length > 1 {
                shape.push(b'/');
            } else if length >= 7 && all & HEX_OR_DASH != 0 {
                shape.push(b'#');
            } else {
                write_without_digits(&line[start..end], shape);
            }
        }
        start = end;
    }
    shape.extend_from_slice(&line[plain_from..]);
}

fn write_without_digits(word: &[u8], shape: &mut Vec<u8>) {
    let mut was_digit = false;
    for &byte in word {
        let is_digit = byte.is_ascii_digit();
        if !is_digit {
            shape.push(byte);
        } else if !was_digit {
            shape.push(b'0');
        }
        was_digit = is_digit;
    }
}
