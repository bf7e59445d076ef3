//! Reads a log in chunks and strips what isn't text: timestamps, escape sequences, byte order marks
//! and control characters.

use std::io::{self, Read};
use std::sync::LazyLock;

use memchr::{memchr, memchr_iter, memrchr};
use regex_automata::meta::Regex;

use super::features::line_regex;

/// The most of a log that is read at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// A longer line is several segments.
pub(crate) const MAX_SEGMENT_BYTES: usize = 64 * 1024;
/// An escape sequence that hasn't ended by then isn't one, so that it can't hide text.
const MAX_ESCAPE_BYTES: usize = 4096;

pub(crate) struct LogReader<R> {
    input: R,
    /// What was read after the last whole line.
    rest: Vec<u8>,
    line_number: u64,
    is_at_line_start: bool,
    is_at_end: bool,
}

/// Bytes of a log that end with a line, unless that is longer than a chunk.
#[derive(Default)]
pub(crate) struct RawChunk {
    bytes: Vec<u8>,
    /// Number of the first line, counted from 1.
    line_number: u64,
    is_at_line_start: bool,
}

/// Clean text of a part of a log. Buffers are used again for the next part.
#[derive(Default)]
pub(crate) struct CleanChunk {
    /// Starts with a line feed, and every segment ends with one.
    pub(crate) text: Vec<u8>,
    pub(crate) segments: Vec<Segment>,
}

/// A line, or a part of one: a carriage return in a line starts a new segment, because progress
/// bars overwrite themselves with it. Empty segments are left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    start: u32,
    pub(crate) line_number: u64,
    /// Whether the program printed some of it in red.
    pub(crate) is_red: bool,
    pub(crate) output: TestOutput,
}

/// Whose output a line is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TestOutput {
    #[default]
    None,
    /// A runner's that reports failed tests afterwards. A rule that counts anywhere doesn't decide about it.
    BeforeReport,
    /// A test's, which its runner repeats or has captured beside the failure. No rule decides about it.
    Captured,
    /// Of a test that passed or was skipped.
    Passed,
}

impl TestOutput {
    /// Whether a rule decides about such a line, if it is one that counts anywhere, or another.
    pub(crate) fn may_decide(self, counts_anywhere: bool) -> bool {
        match self {
            Self::None => true,
            Self::BeforeReport => !counts_anywhere,
            Self::Captured | Self::Passed => false,
        }
    }
}

impl Segment {
    /// Where it starts in the chunk's text.
    pub(crate) fn start(self) -> usize {
        self.start as usize
    }
}

impl CleanChunk {
    /// Without the line feed.
    pub(crate) fn segment(&self, index: usize) -> &[u8] {
        &self.text[self.segments[index].start()..self.segment_end(index)]
    }

    /// The place of the segment's line feed.
    pub(crate) fn segment_end(&self, index: usize) -> usize {
        let next = self.segments.get(index + 1).map_or(self.text.len(), |next| next.start());
        next - 1
    }

    /// Replaces the content by the clean text of `raw`.
    pub(crate) fn clean(&mut self, raw: &RawChunk) {
        self.text.clear();
        self.text.push(b'\n');
        self.segments.clear();
        let (mut rest, mut line_number) = (&raw.bytes[..], raw.line_number);
        let mut is_at_line_start = raw.is_at_line_start;
        while !rest.is_empty() {
            let feed = memchr(b'\n', rest);
            let line = &rest[..feed.unwrap_or(rest.len())];
            rest = &rest[feed.map_or(rest.len(), |feed| feed + 1)..];
            let text = if is_at_line_start { without_timestamp(line) } else { line };
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if has_control(text) {
                for piece in text.split(|&byte| byte == b'\r') {
                    self.push(piece, line_number, append_clean);
                }
            } else {
                self.push(text, line_number, |out, piece| {
                    out.extend_from_slice(piece);
                    false
                });
            }
            is_at_line_start = true;
            line_number += 1;
        }
    }

    /// `append` returns whether the piece is red.
    fn push(
        &mut self,
        piece: &[u8],
        line_number: u64,
        append: impl Fn(&mut Vec<u8>, &[u8]) -> bool,
    ) {
        for piece in piece.chunks(MAX_SEGMENT_BYTES) {
            let start = self.text.len();
            let is_red = append(&mut self.text, piece);
            if self.text.len() == start {
                continue;
            }
            self.text.push(b'\n');
            #[expect(clippy::cast_possible_truncation, reason = "a chunk is far below 4 GiB")]
            let start = start as u32;
            let output = TestOutput::None;
            self.segments.push(Segment { start, line_number, is_red, output });
        }
    }
}

impl<R: Read> LogReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, rest: vec![], line_number: 1, is_at_line_start: true, is_at_end: false }
    }

    /// Replaces the content of `chunk` by the next part of the log. `false` after the end.
    pub(crate) fn read(&mut self, chunk: &mut RawChunk) -> io::Result<bool> {
        let bytes = &mut chunk.bytes;
        let mut filled = self.rest.len();
        // What was in the buffer before is overwritten, so that it isn't filled with zeros each time.
        bytes.resize(CHUNK_BYTES, 0);
        bytes[..filled].copy_from_slice(&self.rest);
        self.rest.clear();
        while !self.is_at_end && filled < CHUNK_BYTES {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) => self.is_at_end = true,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        // Whole lines, if there are any; the rest waits for its end.
        if let Some(feed) = memrchr(b'\n', bytes).filter(|_| !self.is_at_end) {
            self.rest.extend_from_slice(&bytes[feed + 1..]);
            bytes.truncate(feed + 1);
        }
        (chunk.line_number, chunk.is_at_line_start) = (self.line_number, self.is_at_line_start);
        self.line_number += memchr_iter(b'\n', bytes).count() as u64;
        self.is_at_line_start = bytes.last() == Some(&b'\n');
        Ok(!bytes.is_empty())
    }
}

/// A line as it is shown: without its timestamp, escape sequences and control characters.
pub(crate) fn clean_line(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut clean = Vec::with_capacity(line.len());
    append_clean(&mut clean, without_timestamp(line));
    String::from_utf8_lossy(&clean).into_owned()
}

/// GitHub joins the logs of steps, each of which starts with a byte order mark, and starts every line
/// with a time. `gh run view --log` puts the names of the job and the step before it.
fn without_timestamp(line: &[u8]) -> &[u8] {
    let line = without_mark(line);
    if let Some(length) = timestamp_length(line) {
        return without_mark(without_stream(&line[length..]));
    }
    let after_names = || {
        let start = &line[..line.len().min(512)];
        let step = memchr(b'\t', start)? + 1;
        let text = step + memchr(b'\t', &start[step..])? + 1;
        let text = without_mark(&line[text..]);
        Some(&text[timestamp_length(text)?..])
    };
    after_names().unwrap_or(line)
}

/// Drops what GitLab writes after a time, such as `00O `: the number of a stream, output or error, and whether the line
/// goes on.
fn without_stream(line: &[u8]) -> &[u8] {
    match line {
        [b'0'..=b'9', b'0'..=b'9', b'O' | b'E', b' ' | b'+', text @ ..] => text,
        _ => line,
    }
}

fn without_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

/// The length of `2026-11-23T06:17:44.1234567Z `, with the space.
fn timestamp_length(line: &[u8]) -> Option<usize> {
    const LEAST: &[u8; 19] = b"0000-00-00T00:00:00";
    const GREATEST: &[u8; 19] = b"9999-99-99T99:99:99";
    let start = line.first_chunk::<19>()?;
    // Written without an early end, so that the compiler uses vector instructions.
    let fits = (0..19)
        .fold(true, |fits, at| fits & (start[at] >= LEAST[at]) & (start[at] <= GREATEST[at]));
    if !fits {
        return None;
    }
    let mut at = LEAST.len();
    if line.get(at) == Some(&b'.') {
        at += 1;
        at += line[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    }
    if line.get(at) != Some(&b'Z') {
        return None;
    }
    match line.get(at + 1) {
        Some(b' ') => Some(at + 2),
        None => Some(at + 1),
        // An empty line that ends with a carriage return.
        Some(b'\r') => Some(at + 1),
        Some(_) => None,
    }
}

/// Before each line of one of several processes: torchrun (`[rank0]: `), MPI (`[1,0]<stderr>:`), Ray and vLLM
/// (`(EngineCore_0 pid=12) ERROR 11-20 09:00:05 [core.py:700] `), act (`[CI/build]   | `), Docker Compose (`web-1  | `),
/// Earthly (`+test | `), Turborepo (`@acme/web:lint: `), Lerna (`@acme/web: `), pnpm (`packages/web lint: `), ssh-action
/// (`err: `) and concurrently (`[1] `).
pub(crate) const PROCESS_LABEL: &str = r"\[rank\d+\]: |\[\d+,\d+\]<std(?:err|out)>:|\((?:[\w.]+ )+pid=\d+[^)]*\) (?:ERROR [\d-]+ [\d:]+ \[\S+\] )?|\[[^\]/]{1,80}/[^\]]{1,80}\] +\| |[A-Za-z][\w.-]*[-_]\d+ +\| | *\+[\w-]+ (?:\*failed\* )?\| |(?:@[\w.-]+/)?[a-z][\w.-]*:[a-z][\w.:-]*: |@[\w.-]+/[\w.-]+: |(?:[\w@.-]+/)+[\w@.-]+ (?:build|check|compile|lint|test|typecheck)[\w:-]*: |(?:err|out): |\[\d{1,2}\] ";

/// What Nix (`    > error`), Stack (`app> error`), pytest (`INTERNALERROR> error`) and BuildKit (`#12 0.63 error`)
/// write before the output of another tool, and labels of processes.
static TOOL_PREFIX: LazyLock<Regex> = LazyLock::new(|| {
    line_regex(&format!(
        r"^(?: {{4,}}> |[A-Za-z][\w.+-]*> +|[a-z][\w.+-]* +> |#\d+ \d+\.\d+ |{PROCESS_LABEL})"
    ))
});

/// `None` if the line has no such prefix.
pub(crate) fn without_tool_prefix(line: &[u8]) -> Option<&[u8]> {
    TOOL_PREFIX.find(line).map(|prefix| &line[prefix.end()..])
}

/// A line of another tool's output; `None` if nothing says that it is one. pip and uv indent by six blanks what the build
/// of a package prints.
pub(crate) fn output_of_tool(line: &[u8]) -> Option<&[u8]> {
    let of_build = || line.strip_prefix(b"      ").filter(|output| !output.starts_with(b" "));
    without_tool_prefix(line).or_else(of_build)
}

fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

fn has_control(text: &[u8]) -> bool {
    // Written without an early end, so that the compiler uses vector instructions.
    text.iter().fold(false, |found, &byte| found | is_control(byte))
}

/// Drops escape sequences and control characters, and tells whether one of them turned the text red.
/// Without its NULs, ASCII in UTF-16 is readable, if a step writes that into the log of a job.
fn append_clean(out: &mut Vec<u8>, piece: &[u8]) -> bool {
    let (mut rest, mut is_red) = (piece, false);
    while let Some(at) = rest.iter().position(|&byte| is_control(byte)) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let skipped = if rest[0] == 0x1b { escape_length(rest) } else { 1 };
        is_red |= turns_red(&rest[..skipped]);
        rest = &rest[skipped..];
    }
    out.extend_from_slice(rest);
    is_red
}

/// Whether an escape sequence selects red, normal (31) or bright (91), for the text.
fn turns_red(sequence: &[u8]) -> bool {
    let parameters = sequence.strip_prefix(b"\x1b[").and_then(|rest| rest.strip_suffix(b"m"));
    parameters
        .is_some_and(|list| list.split(|&b| b == b';').any(|code| matches!(code, b"31" | b"91")))
}

/// The length of the escape sequence (ECMA-48) that `text` starts with; 1 if it isn't complete.
fn escape_length(text: &[u8]) -> usize {
    let text = &text[..text.len().min(MAX_ESCAPE_BYTES)];
    let skip = |from: usize, wanted: fn(&u8) -> bool| {
        from + text[from..].iter().take_while(|byte| wanted(byte)).count()
    };
    match text.get(1) {
        Some(b'[') => {
            let intermediate = skip(2, |byte| matches!(byte, 0x30..=0x3f));
            let last = skip(intermediate, |byte| matches!(byte, 0x20..=0x2f));
            if matches!(text.get(last), Some(0x40..=0x7e)) { last + 1 } else { 1 }
        }
        // Strings, such as the target of a link: they end with BEL or with ESC and a backslash.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let end = skip(2, |byte| !matches!(byte, 0x07 | 0x1b));
            match (text.get(end), text.get(end + 1)) {
                (Some(0x07), _) => end + 1,
                (Some(0x1b), Some(b'\\')) => end + 2,
                _ => 1,
            }
        }
        Some(0x20..=0x2f) => {
            let last = skip(1, |byte| matches!(byte, 0x20..=0x2f));
            if matches!(text.get(last), Some(0x30..=0x7e)) { last + 1 } else { 1 }
        }
        Some(0x30..=0x7e) => 2,
        _ => 1,
    }
}

/// At most `max` bytes of a line, with an ellipsis where it is cut.
pub(crate) fn cut_text(line: &[u8], max: usize) -> String {
    if line.len() <= max {
        return String::from_utf8_lossy(line).into_owned();
    }
    // A character may be cut in two at the end.
    let text = String::from_utf8_lossy(&line[..max]);
    format!("{}…", text.trim_end_matches(char::REPLACEMENT_CHARACTER))
}
