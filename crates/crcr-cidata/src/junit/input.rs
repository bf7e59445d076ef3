//! A report as UTF-8 text in buffers of a fixed size, with line numbers and limits.

use std::io::{self, BufRead, Read};

use encoding_rs::{CoderResult, Decoder, Encoding, UTF_8, UTF_16BE, UTF_16LE};

use super::text::{MAX_ENTITY, TextSink, unescape};

const MAX_FILE_BYTES: u64 = 1 << 30;
/// Quick-xml holds a tag in memory, with its attributes.
const MAX_TAG_BYTES: usize = 16 << 20;
const RAW_BUFFER_BYTES: usize = 64 << 10;
/// UTF-8 of [`RAW_BUFFER_BYTES`] bytes that had to be decoded can be longer.
const TEXT_BUFFER: usize = 2 * RAW_BUFFER_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExceededLimit {
    FileSize,
    TagSize,
}

/// What follows a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterText {
    Markup,
    End,
    /// The input ends in a comment or CDATA section.
    CutSection,
}

pub(crate) struct ReportText<R> {
    input: R,
    decoder: Option<Decoder>,
    raw: Box<[u8]>,
    raw_start: usize,
    raw_end: usize,
    raw_ended: bool,
    bytes_left: u64,
    text: Box<[u8]>,
    start: usize,
    end: usize,
    ended: bool,
    tag_bytes_left: usize,
    exceeded: Option<ExceededLimit>,
    /// The line of the next byte, counted from 1.
    line: u64,
    /// The first line with bytes that aren't text in the encoding.
    invalid_line: Option<u64>,
    unknown_encoding: Option<String>,
}

impl<R: Read> ReportText<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            decoder: None,
            raw: vec![0; RAW_BUFFER_BYTES].into(),
            raw_start: 0,
            raw_end: 0,
            raw_ended: false,
            bytes_left: MAX_FILE_BYTES,
            text: vec![0; TEXT_BUFFER].into(),
            start: 0,
            end: 0,
            ended: false,
            tag_bytes_left: MAX_TAG_BYTES,
            exceeded: None,
            line: 1,
            invalid_line: None,
            unknown_encoding: None,
        }
    }

    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    pub(crate) fn exceeded(&self) -> Option<ExceededLimit> {
        self.exceeded
    }

    pub(crate) fn invalid_line(&self) -> Option<u64> {
        self.invalid_line
    }

    /// The declared encoding, if it isn't one of those that are decoded.
    pub(crate) fn unknown_encoding(&self) -> Option<&str> {
        self.unknown_encoding.as_deref()
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.ended && self.start == self.end
    }

    /// Reads up to the end of a line, and returns whether there was one.
    pub(crate) fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        self.tag_bytes_left = MAX_TAG_BYTES;
        line.clear();
        Ok(self.read_until(b'\n', line)? > 0)
    }

    /// Reads text, CDATA sections and comments up to the next tag. They can be longer than memory.
    pub(crate) fn read_text(&mut self, sink: &mut impl TextSink) -> io::Result<AfterText> {
        self.tag_bytes_left = usize::MAX;
        let after = self.read_text_unlimited(sink);
        self.tag_bytes_left = MAX_TAG_BYTES;
        after
    }

    fn read_text_unlimited(&mut self, sink: &mut impl TextSink) -> io::Result<AfterText> {
        loop {
            self.read_characters(sink)?;
            let next = self.peek(b"<![CDATA[".len())?;
            if next.is_empty() {
                return Ok(AfterText::End);
            }
            let is_complete = if next.starts_with(b"<![CDATA[") {
                self.consume(b"<![CDATA[".len());
                self.read_section(b"]]>", |text| sink.push(text))?
            } else if next.starts_with(b"<!--") {
                self.consume(b"<!--".len());
                let is_complete = self.read_section(b"-->", |text| sink.push_comment(text))?;
                sink.end_comment();
                is_complete
            } else {
                return Ok(AfterText::Markup);
            };
            if !is_complete {
                return Ok(AfterText::CutSection);
            }
        }
    }

    /// Reads up to the next `<`.
    fn read_characters(&mut self, sink: &mut impl TextSink) -> io::Result<()> {
        loop {
            let available = self.fill_buf()?;
            if available.is_empty() {
                return Ok(());
            }
            let markup = memchr::memchr(b'<', available);
            let mut length = markup.unwrap_or(available.len());
            if markup.is_none() && sink.is_wanted() {
                // An entity may continue in the next buffer.
                let tail = length.saturating_sub(MAX_ENTITY);
                if let Some(at) = memchr::memrchr(b'&', &available[tail..]) {
                    length = tail + at;
                    if length == 0 {
                        self.peek(MAX_ENTITY)?;
                        self.read_entity(sink);
                        continue;
                    }
                }
            }
            if sink.is_wanted() && length > 0 {
                let text = &self.text[self.start..self.start + length];
                unescape(&String::from_utf8_lossy(text), sink);
            }
            self.consume(length);
            if markup.is_some() {
                return Ok(());
            }
        }
    }

    /// Reads the entity, or the `&`, that the text begins with.
    fn read_entity(&mut self, sink: &mut impl TextSink) {
        let available = &self.text[self.start..self.end];
        let available = &available[..available.len().min(MAX_ENTITY)];
        let length = match memchr::memchr2(b';', b'<', available) {
            Some(at) if available[at] == b';' => at + 1,
            _ => 1,
        };
        unescape(&String::from_utf8_lossy(&available[..length]), sink);
        self.consume(length);
    }

    /// Reads up to `end` and skips it. `false` if the input ends before.
    fn read_section(&mut self, end: &[u8], mut push: impl FnMut(&str)) -> io::Result<bool> {
        loop {
            // Enough to make progress without cutting `end` or a character in two.
            let wanted = end.len() + 4;
            let available = self.peek(wanted)?;
            let is_last = available.len() < wanted;
            let found = memchr::memmem::find(available, end);
            let length = match found {
                Some(at) => at,
                None if is_last => available.len(),
                None => {
                    let is_start = |at: &usize| !matches!(available[*at], 0x80..=0xBF);
                    let length = available.len() - end.len();
                    (0..=length).rev().find(is_start).unwrap_or(length)
                }
            };
            push(&String::from_utf8_lossy(&available[..length]));
            self.consume(length + if found.is_some() { end.len() } else { 0 });
            if found.is_some() {
                return Ok(true);
            }
            if is_last {
                return Ok(false);
            }
        }
    }

    /// At least `length` bytes, unless the input ends before.
    fn peek(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.end - self.start < length && !self.ended {
            self.fill()?;
        }
        Ok(&self.text[self.start..self.end])
    }

    fn fill(&mut self) -> io::Result<()> {
        self.text.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.decoder.is_none() {
            self.detect_encoding()?;
        }
        loop {
            if self.raw_start == self.raw_end && !self.raw_ended {
                self.raw_start = 0;
                self.raw_end = 0;
                self.read_raw()?;
            }
            let Some(decoder) = &mut self.decoder else { return Ok(()) };
            let (result, read, written, has_errors) = decoder.decode_to_utf8(
                &self.raw[self.raw_start..self.raw_end],
                &mut self.text[self.end..],
                self.raw_ended,
            );
            self.raw_start += read;
            if has_errors && self.invalid_line.is_none() {
                let new = &self.text[self.end..self.end + written];
                let at = memchr::memmem::find(new, "\u{FFFD}".as_bytes()).unwrap_or_default();
                let before = &self.text[..self.end + at];
                self.invalid_line = Some(self.line + count_lines(before));
            }
            self.end += written;
            if self.raw_ended && result == CoderResult::InputEmpty {
                self.ended = true;
                return Ok(());
            }
            if written > 0 {
                return Ok(());
            }
        }
    }

    fn read_raw(&mut self) -> io::Result<()> {
        loop {
            match self.input.read(&mut self.raw[self.raw_end..]) {
                Ok(0) => self.raw_ended = true,
                Ok(length) if length as u64 > self.bytes_left => {
                    self.exceeded = Some(ExceededLimit::FileSize);
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                Ok(length) => {
                    self.raw_end += length;
                    self.bytes_left -= length as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            return Ok(());
        }
    }

    /// By the byte order mark, else by the first characters, which can only be `<?` or `<`, and the
    /// XML declaration.
    fn detect_encoding(&mut self) -> io::Result<()> {
        while self.raw_end < 256 && !self.raw_ended {
            self.read_raw()?;
        }
        let raw = &self.raw[..self.raw_end];
        let encoding = if let Some((encoding, mark)) = Encoding::for_bom(raw) {
            self.raw_start = mark;
            encoding
        } else if raw.starts_with(b"<\0") {
            UTF_16LE
        } else if raw.starts_with(b"\0<") {
            UTF_16BE
        } else {
            let label = declared_encoding(raw).unwrap_or("utf-8");
            match Encoding::for_label_no_replacement(label.as_bytes()) {
                // The declaration was read byte by byte, so it isn't that: .NET says so of text that it writes as UTF-8.
                Some(encoding) if encoding == UTF_16LE || encoding == UTF_16BE => UTF_8,
                // To `encoding_rs` it is a name of Windows-1252, but where such a report has more than ASCII, it's UTF-8.
                Some(_) if is_ascii(label) => UTF_8,
                Some(encoding) => encoding,
                None => {
                    self.unknown_encoding = Some(label.to_ascii_lowercase());
                    UTF_8
                }
            }
        };
        self.decoder = Some(encoding.new_decoder_without_bom_handling());
        Ok(())
    }
}

fn is_ascii(label: &str) -> bool {
    ["us-ascii", "ascii"].iter().any(|name| label.trim().eq_ignore_ascii_case(name))
}

fn declared_encoding(raw: &[u8]) -> Option<&str> {
    let raw = raw.strip_prefix(b"<?xml")?;
    let declaration = std::str::from_utf8(&raw[..memchr::memmem::find(raw, b"?>")?]).ok()?;
    let (_, value) = declaration.split_once("encoding")?;
    let value = value.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    value[1..].split(quote).next()
}

pub(crate) fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

impl<R: Read> Read for ReportText<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(buffer)?;
        self.consume(length);
        Ok(length)
    }
}

impl<R: Read> BufRead for ReportText<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.tag_bytes_left == 0 {
            self.exceeded = Some(ExceededLimit::TagSize);
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.peek(1)
    }

    fn consume(&mut self, length: usize) {
        let consumed = &self.text[self.start..self.start + length];
        self.line += count_lines(consumed);
        self.start += length;
        self.tag_bytes_left = self.tag_bytes_left.saturating_sub(length);
    }
}
