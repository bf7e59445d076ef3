//! Logs as they are kept in the object store: compressed, under the name of their job.
//!
//! A log is packed in frames that unpack on their own. At its end it has an index, so that any page of a log of a
//! gigabyte is read by unpacking one or two frames. A program that knows zstd alone reads the log as a whole: the index
//! is in a frame that it skips.

use std::io::{self, Cursor, Read, Write as _};

use bytes::Bytes;
use crcr_domain::RepoName;
use serde::{Deserialize, Serialize};

use super::cleaner::clean_line;
use super::unpacked;

/// The first part of the keys of logs.
pub(crate) const PREFIX: &str = "logs";
/// In bytes. The longest logs of large projects have a tenth of this.
const MAX_LOG: u64 = 1024 * 1024 * 1024;
/// In bytes, compressed. Logs shrink to a tenth, so this is far more than one needs.
pub const MAX_PACKED_LOG: usize = 32 * 1024 * 1024;
/// In bytes, at the end of a packed log.
pub(crate) const MAX_INDEX: usize = 256 * 1024;
const ZSTD_LEVEL: i32 = 3;
/// In bytes of text. A frame ends with a line, unless that makes it twice as long.
pub(crate) const FRAME_BYTES: usize = 2 * 1024 * 1024;
/// Later steps belong to the last one.
const MAX_STEPS: usize = 500;
const MAX_STEP_CHARS: usize = 120;
/// The start of a line that is looked at.
const LINE_START_BYTES: usize = 400;
/// What lines of runners have that begin a step or tell an error.
const RUNNER_LINES: [&[u8]; 3] = [b"##[", b"Post job cleanup", b"Cleaning up orphan"];
/// How a frame begins that decoders of Zstandard pass over:
/// <https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md#skippable-frames>
const SKIPPABLE: [u8; 4] = 0x184D_2A50_u32.to_le_bytes();
const MARK: [u8; 8] = *b"crcrlog1";

/// Where the log of a job is kept. Every part is a name, whatever a repository is called: names that begin
/// with a dot, as `.github` does, begin with `=2e` here.
pub fn log_key(repository: &RepoName, job_id: u64) -> String {
    let repository = repository.key().replace("/.", "/=2e");
    format!("{PREFIX}/{repository}/{job_id}.txt.zst")
}

/// What is where in a packed log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogIndex {
    pub lines: u64,
    /// Size of the text.
    pub bytes: u64,
    pub steps: Vec<LogStep>,
    frames: Vec<LogFrame>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LogFrame {
    /// In the packed log.
    start: u64,
    /// The line that it begins with, or in, counted from 1.
    line: u64,
    starts_line: bool,
}

/// The log of a step. GitHub's log of a job has the logs of its steps one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LogStep {
    /// The number of its first line; the log's first line is 1.
    pub first_line: u64,
    pub title: String,
    /// Lines that the runner or an action marks as errors.
    pub errors: u64,
}

impl LogIndex {
    /// From the end of a packed log; `None` if it has no index.
    pub fn read(tail: &[u8]) -> Option<Self> {
        let rest = tail.strip_suffix(&MARK)?;
        let (rest, length) = rest.split_at_checked(rest.len().checked_sub(4)?)?;
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let index = rest.get(rest.len().checked_sub(length)?..)?;
        serde_json::from_slice(index).ok()
    }

    /// The frame that has the start of this line. `None` for a line after the end.
    pub(crate) fn frame_of(&self, line: u64) -> Option<FramePlace> {
        if line == 0 || line > self.lines {
            return None;
        }
        let has_start =
            |frame: &LogFrame| frame.line < line || (frame.line == line && frame.starts_line);
        self.frame(self.frames.partition_point(has_start).checked_sub(1)?)
    }

    pub(crate) fn frame(&self, at: usize) -> Option<FramePlace> {
        let frame = self.frames.get(at)?;
        let end = self.frames.get(at + 1).map(|next| next.start);
        Some(FramePlace { start: frame.start, end, line: frame.line })
    }
}

/// Where a frame is in the packed log; the last one goes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePlace {
    pub(crate) start: u64,
    pub(crate) end: Option<u64>,
    /// The line that it begins with, or in.
    pub(crate) line: u64,
}

/// Compresses a log piece by piece.
pub struct LogPacker {
    packed: Vec<u8>,
    frame: zstd::Encoder<'static, Vec<u8>>,
    frame_bytes: usize,
    index: LogIndex,
    /// The start of the line that isn't over.
    line: Vec<u8>,
    is_in_line: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the log is larger than {MAX_LOG} bytes, or than {MAX_PACKED_LOG} bytes compressed")]
pub struct LogTooLarge;

impl LogPacker {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            packed: vec![],
            frame: zstd::Encoder::new(vec![], ZSTD_LEVEL)?,
            frame_bytes: 0,
            index: LogIndex {
                frames: vec![LogFrame { start: 0, line: 1, starts_line: true }],
                ..LogIndex::default()
            },
            line: vec![],
            is_in_line: false,
        })
    }

    /// Packs a whole log at once.
    pub fn packed(text: &[u8]) -> Result<Bytes, LogTooLarge> {
        let mut packer = Self::new().map_err(|_| LogTooLarge)?;
        packer.add(text)?;
        packer.finish()
    }

    pub fn add(&mut self, mut piece: &[u8]) -> Result<(), LogTooLarge> {
        while !piece.is_empty() {
            let room = FRAME_BYTES.saturating_sub(self.frame_bytes).max(1).min(piece.len());
            // As much as fits, and then on to the end of the line, which may come in a later piece.
            let end = if self.frame_bytes + room >= FRAME_BYTES {
                let feed = memchr::memchr(b'\n', &piece[room - 1..]);
                feed.map_or(piece.len(), |feed| room + feed)
            } else {
                room
            };
            let (now, later) = piece.split_at(end);
            self.note_lines(now);
            self.frame.write_all(now).map_err(|_| LogTooLarge)?;
            self.frame_bytes += now.len();
            self.index.bytes += now.len() as u64;
            let is_whole = !self.is_in_line || self.frame_bytes >= 2 * FRAME_BYTES;
            if self.frame_bytes >= FRAME_BYTES && is_whole {
                self.end_frame()?;
            }
            let packed = self.packed.len() + self.frame.get_ref().len();
            if self.index.bytes > MAX_LOG || packed > MAX_PACKED_LOG {
                return Err(LogTooLarge);
            }
            piece = later;
        }
        Ok(())
    }

    fn end_frame(&mut self) -> Result<(), LogTooLarge> {
        let next = zstd::Encoder::new(vec![], ZSTD_LEVEL).map_err(|_| LogTooLarge)?;
        let frame = std::mem::replace(&mut self.frame, next);
        self.packed.extend(frame.finish().map_err(|_| LogTooLarge)?);
        self.frame_bytes = 0;
        let (start, line) = (self.packed.len() as u64, self.index.lines + 1);
        self.index.frames.push(LogFrame { start, line, starts_line: !self.is_in_line });
        Ok(())
    }

    fn note_lines(&mut self, text: &[u8]) {
        let mut rest = text;
        while let Some(feed) = memchr::memchr(b'\n', rest) {
            if self.line.is_empty() {
                self.note_line(&rest[..feed.min(LINE_START_BYTES)]);
            } else {
                self.add_to_line(&rest[..feed]);
                let line = std::mem::take(&mut self.line);
                self.note_line(&line);
            }
            rest = &rest[feed + 1..];
        }
        self.add_to_line(rest);
        self.is_in_line |= !rest.is_empty();
    }

    fn add_to_line(&mut self, text: &[u8]) {
        let room = LINE_START_BYTES.saturating_sub(self.line.len());
        self.line.extend_from_slice(&text[..text.len().min(room)]);
    }

    /// `line` is its start.
    fn note_line(&mut self, line: &[u8]) {
        self.index.lines += 1;
        self.is_in_line = false;
        let is_of_runner =
            RUNNER_LINES.iter().any(|text| memchr::memmem::find(line, text).is_some());
        if !is_of_runner && self.index.lines > 1 {
            return;
        }
        let line = clean_line(line);
        let title = match &*line {
            line if line.starts_with("##[group]Run ") => &line["##[group]".len()..],
            "Post job cleanup." | "Cleaning up orphan processes" => &*line,
            _ => "",
        };
        let steps = &mut self.index.steps;
        if steps.is_empty() || (!title.is_empty() && steps.len() < MAX_STEPS) {
            let title = if title.is_empty() { "Set up job" } else { title };
            let title = title.chars().take(MAX_STEP_CHARS).collect();
            steps.push(LogStep { first_line: self.index.lines, title, errors: 0 });
        }
        if line.starts_with("##[error]")
            && let Some(step) = steps.last_mut()
        {
            step.errors += 1;
        }
    }

    pub fn finish(mut self) -> Result<Bytes, LogTooLarge> {
        if self.is_in_line {
            let line = std::mem::take(&mut self.line);
            self.note_line(&line);
        }
        let mut packed = self.packed;
        packed.extend(self.frame.finish().map_err(|_| LogTooLarge)?);
        let mut index = serde_json::to_vec(&self.index).expect("an index is always JSON");
        if index.len() + 64 > MAX_INDEX {
            // Titles of many characters that JSON has to escape.
            self.index.steps.truncate(1);
            index = serde_json::to_vec(&self.index).expect("an index is always JSON");
        }
        let length = u32::try_from(index.len()).map_err(|_| LogTooLarge)?;
        packed.extend(SKIPPABLE);
        packed.extend((length + 4 + MARK.len() as u32).to_le_bytes());
        packed.extend(index);
        packed.extend(length.to_le_bytes());
        packed.extend(MARK);
        if packed.len() > MAX_PACKED_LOG { Err(LogTooLarge) } else { Ok(packed.into()) }
    }
}

/// The text of a packed log, at most [`MAX_LOG`] bytes of it.
pub fn unpack_log(packed: Bytes) -> io::Result<impl Read> {
    Ok(unpacked(Cursor::new(packed))?.take(MAX_LOG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_log_is_read_back_byte_by_byte() {
        let mut packer = LogPacker::new().unwrap();
        let mut text = String::new();
        for line in 0..300_000 {
            let line = format!("line {line}\r\n");
            packer.add(line.as_bytes()).unwrap();
            text.push_str(&line);
        }
        let packed = packer.finish().unwrap();
        assert!(packed.len() < text.len() / 5, "{} of {}", packed.len(), text.len());
        let index = LogIndex::read(&packed[packed.len().saturating_sub(MAX_INDEX)..]).unwrap();
        assert!(index.frames.len() > 1 && index.lines == 300_000, "{index:?}");
        let mut read = String::new();
        unpack_log(packed).unwrap().read_to_string(&mut read).unwrap();
        assert!(read == text);
    }

    #[test]
    fn frame_of_a_line_has_its_start_also_where_a_line_is_longer_than_a_frame() {
        let mut packer = LogPacker::new().unwrap();
        let mut text = vec![b'x'; 5 * FRAME_BYTES];
        text.splice(0..0, b"first\n".iter().copied());
        text.extend_from_slice(b"\nthird\nno end");
        for piece in text.chunks(7_777) {
            packer.add(piece).unwrap();
        }
        let packed = packer.finish().unwrap();
        let index = LogIndex::read(&packed).unwrap();
        assert_eq!(index.lines, 4);
        assert!(index.frames.len() >= 2);
        for (line, start) in [(1, "first"), (2, "xxx"), (3, "third"), (4, "no end")] {
            let frame = index.frame_of(line).unwrap();
            let end = frame.end.map_or(packed.len(), |end| end as usize);
            let mut text = String::new();
            let mut unpacked = unpack_log(packed.slice(frame.start as usize..end)).unwrap();
            unpacked.read_to_string(&mut text).unwrap();
            let found = text.split('\n').nth((line - frame.line) as usize).unwrap_or_default();
            assert!(found.starts_with(start), "{line}: {frame:?}");
        }
        assert_eq!((index.frame_of(0), index.frame_of(5)), (None, None));
    }

    #[test]
    fn index_knows_the_steps_and_which_one_has_the_error() {
        let mut packer = LogPacker::new().unwrap();
        let time = "2026-11-23T06:17:44.1234567Z ";
        for line in [
            "Current runner version: '2.329.0'",
            "##[group]Run actions/checkout@v4",
            "##[endgroup]",
            "##[group]Run pytest <b>",
            "FAILED test_a",
            "##[error]Process completed with exit code 1.",
            "Post job cleanup.",
        ] {
            packer.add(format!("{time}{line}\n").as_bytes()).unwrap();
        }
        let index = LogIndex::read(&packer.finish().unwrap()).unwrap();
        let steps: Vec<_> =
            index.steps.iter().map(|step| (step.first_line, &*step.title, step.errors)).collect();
        let expected = [
            (1, "Set up job", 0),
            (2, "Run actions/checkout@v4", 0),
            (4, "Run pytest <b>", 1),
            (7, "Post job cleanup.", 0),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn hostile_steps_leave_an_index_that_can_be_read() {
        let mut packer = LogPacker::new().unwrap();
        for n in 0..5_000 {
            packer
                .add(format!("##[group]Run {n} {}\n", "\u{1f980}\\\"".repeat(99)).as_bytes())
                .unwrap();
        }
        let packed = packer.finish().unwrap();
        let index = LogIndex::read(&packed[packed.len().saturating_sub(MAX_INDEX)..]).unwrap();
        assert_eq!((index.lines, index.steps.len()), (5_000, MAX_STEPS));
        for odd in [&b""[..], b"crcrlog1", b"\xff\xff\xff\xffcrcrlog1", b"x\x01\0\0\0crcrlog1"] {
            assert_eq!(LogIndex::read(odd), None);
        }
    }

    #[test]
    fn log_that_hardly_shrinks_is_refused_before_it_fills_the_memory() {
        let mut packer = LogPacker::new().unwrap();
        let mut state = 1_u64;
        let mut added = 0;
        let refused = std::iter::repeat_with(|| {
            let noise: Vec<u8> = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            })
            .take(64 * 1024)
            .flatten()
            .collect();
            added += noise.len();
            packer.add(&noise)
        })
        .find(Result::is_err);
        assert!(refused.is_some() && added < MAX_PACKED_LOG + 2 * 1024 * 1024, "{added}");
    }

    #[test]
    fn key_of_a_log_is_never_a_path_elsewhere() {
        let key = |name: &str| log_key(&RepoName::new(name).unwrap(), 7);
        assert_eq!(key("Acme/Upstream"), "logs/acme/upstream/7.txt.zst");
        assert_eq!(key("acme/.github"), "logs/acme/=2egithub/7.txt.zst");
        assert_eq!(key("acme/..x"), "logs/acme/=2e.x/7.txt.zst");
    }
}
