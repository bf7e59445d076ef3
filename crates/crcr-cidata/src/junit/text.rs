//! Entities, control characters, and texts of a limited length.

use crcr_domain::ci_data::test_run::{CUT_MARK, MAX_TEXT_BYTES};
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::BytesRef;

/// No entity that is resolved is longer, in bytes.
pub(crate) const MAX_ENTITY: usize = 12;

/// Where text goes, piece by piece.
pub(crate) trait TextSink {
    /// Whether more text has any effect.
    fn is_wanted(&self) -> bool;
    /// Takes text without entities.
    fn push(&mut self, text: &str);
    /// Takes a character that an entity stands for.
    fn push_resolved(&mut self, text: &str) {
        self.push(text);
    }
    /// Called for an entity other than XML's five, and for a `&` alone. It stays in the text.
    fn note_unknown_entity(&mut self) {}
    /// Takes a part of a comment.
    fn push_comment(&mut self, _: &str) {}
    fn end_comment(&mut self) {}
}

impl TextSink for () {
    fn is_wanted(&self) -> bool {
        false
    }
    fn push(&mut self, _: &str) {}
}

/// What a text contained that XML doesn't allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TextFlaws {
    /// The text had some, which became U+FFFD.
    pub control_character: bool,
    pub unknown_entity: bool,
}

/// A text of at most [`MAX_TEXT_BYTES`] bytes.
#[derive(Debug, Default)]
pub(crate) struct LimitedText {
    text: String,
    is_attribute: bool,
    pub flaws: TextFlaws,
}

impl LimitedText {
    /// The value of an attribute. `raw` still has its entities.
    pub(crate) fn of_attribute(raw: &str, flaws: &mut TextFlaws) -> String {
        let is_plain = |byte: u8| byte >= 0x20 && byte != b'&';
        // No early exit, so that the compiler can vectorize it.
        if raw.len() <= MAX_TEXT_BYTES
            && raw.bytes().fold(true, |plain, byte| plain & is_plain(byte))
        {
            return raw.to_owned();
        }
        let mut value = Self { is_attribute: true, flaws: *flaws, ..Self::default() };
        unescape(raw, &mut value);
        *flaws = value.flaws;
        value.limited()
    }

    /// Without blanks at both ends. `None` if nothing is left.
    pub(crate) fn trimmed(self) -> Option<String> {
        let text = self.limited();
        let trimmed = text.trim();
        if trimmed.len() == text.len() {
            return Some(text).filter(|text| !text.is_empty());
        }
        Some(trimmed.to_owned()).filter(|text| !text.is_empty())
    }

    fn limited(mut self) -> String {
        cut(&mut self.text, MAX_TEXT_BYTES);
        self.text.shrink_to_fit();
        self.text
    }

    fn push_clean(&mut self, text: &str) {
        let is_control = |byte: u8| byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r');
        if text.bytes().fold(false, |found, byte| found | is_control(byte)) {
            self.flaws.control_character = true;
            self.text.extend(text.chars().map(|c| match u8::try_from(c) {
                Ok(byte) if is_control(byte) => char::REPLACEMENT_CHARACTER,
                _ => c,
            }));
        } else {
            self.text.push_str(text);
        }
    }
}

impl TextSink for LimitedText {
    fn is_wanted(&self) -> bool {
        self.text.len() <= MAX_TEXT_BYTES
    }

    fn push(&mut self, text: &str) {
        let is_start = self.text.is_empty() && !self.is_attribute;
        let text = if is_start { text.trim_start() } else { text };
        // More than fits, so that it can be told from a text that fits exactly.
        let room = (MAX_TEXT_BYTES + 4).saturating_sub(self.text.len());
        let text = &text[..text.floor_char_boundary(room)];
        // As XML normalizes line ends, and whitespace in attributes.
        match (text.contains('\r'), self.is_attribute) {
            (_, true) => {
                self.push_clean(&text.replace("\r\n", " ").replace(['\n', '\r', '\t'], " "));
            }
            (true, false) => self.push_clean(&text.replace("\r\n", "\n")),
            (false, false) => self.push_clean(text),
        }
    }

    fn push_resolved(&mut self, text: &str) {
        self.push_clean(text);
    }

    fn note_unknown_entity(&mut self) {
        self.flaws.unknown_entity = true;
    }
}

/// Cuts a text to `limit` bytes, which include [`CUT_MARK`].
pub(crate) fn cut(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - CUT_MARK.len()));
        text.push_str(CUT_MARK);
    }
}

/// Passes on `raw` with its entities resolved: XML's five, and characters by number.
pub(crate) fn unescape(raw: &str, sink: &mut impl TextSink) {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'&', rest.as_bytes()) {
        if !sink.is_wanted() {
            return;
        }
        sink.push(&rest[..at]);
        rest = &rest[at..];
        let name = match memchr::memchr(b';', &rest.as_bytes()[..rest.len().min(MAX_ENTITY)]) {
            Some(end) => &rest[1..end],
            None => "",
        };
        if let Some(text) = resolve_predefined_entity(name) {
            sink.push_resolved(text);
            rest = &rest[name.len() + 2..];
        } else if let Ok(Some(c)) = BytesRef::new(name).resolve_char_ref() {
            sink.push_resolved(c.encode_utf8(&mut [0; 4]));
            rest = &rest[name.len() + 2..];
        } else {
            sink.push_resolved("&");
            sink.note_unknown_entity();
            rest = &rest[1..];
        }
    }
    sink.push(rest);
}

/// Finds an entity that isn't one of XML's five.
#[derive(Debug, Default)]
pub(crate) struct EntitySearch {
    pub has_entity: bool,
}

impl TextSink for EntitySearch {
    fn is_wanted(&self) -> bool {
        !self.has_entity
    }

    fn push(&mut self, _: &str) {}

    fn note_unknown_entity(&mut self) {
        self.has_entity = true;
    }
}

/// A crash that the output of a suite tells of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SuiteCrash {
    pub message: String,
    /// Whether the test in which it happened has failed, too.
    pub fails_test: bool,
}

/// Finds the report of a Go program that crashed: a line `panic: …` or `fatal error: …`, and below it
/// a line `goroutine …`. And what .NET's `JunitXml.TestLogger` only writes there: that the run failed outside its tests.
#[derive(Debug, Default)]
pub(crate) struct CrashSearch {
    /// The beginning of the current line.
    line: String,
    message: Option<String>,
    has_goroutine: bool,
    dotnet: Option<String>,
}

impl CrashSearch {
    pub(crate) fn crash(mut self) -> Option<SuiteCrash> {
        self.end_line();
        match self.dotnet {
            Some(message) => Some(SuiteCrash { message, fails_test: false }),
            None => {
                let message = self.message.filter(|_| self.has_goroutine)?;
                Some(SuiteCrash { message, fails_test: true })
            }
        }
    }
}

/// Whether a message of vstest or xUnit.net tells of more than a failed test.
fn is_error_of_run(error: &str) -> bool {
    let is_xunit = || error.starts_with("[xUnit.net ");
    let outside_tests = ["Catastrophic failure", "Cleanup Failure ("];
    error.starts_with("The active test run was aborted")
        || error.starts_with("An exception occurred while invoking executor")
        || (is_xunit() && outside_tests.iter().any(|what| error.contains(what)))
}

impl LineSearch for CrashSearch {
    const MAX_LINE_BYTES: usize = 1000;

    fn line(&mut self) -> &mut String {
        &mut self.line
    }

    fn end_line(&mut self) {
        let line = self.line.trim_end();
        if let Some(error) = line.strip_prefix("Error - ").filter(|error| is_error_of_run(error)) {
            self.dotnet = Some(error.to_owned());
        } else if self.message.is_none() {
            if line.starts_with("panic: ") || line.starts_with("fatal error: ") {
                self.message = Some(line.to_owned());
            }
        } else if line.starts_with("goroutine ") {
            self.has_goroutine = true;
        }
        self.line.clear();
    }
}

impl TextSink for CrashSearch {
    fn is_wanted(&self) -> bool {
        !self.has_goroutine && self.dotnet.is_none()
    }

    fn push(&mut self, text: &str) {
        self.push_lines(text);
    }
}

/// Counts how often Ginkgo says that a test failed and runs again: `Attempt #1 Failed.  Retrying ↺ @ …`.
#[derive(Default)]
pub(crate) struct RetrySearch {
    line: String,
    retries: u32,
}

impl RetrySearch {
    pub(crate) fn retries(mut self) -> u32 {
        self.end_line();
        self.retries
    }
}

impl LineSearch for RetrySearch {
    const MAX_LINE_BYTES: usize = 100;

    fn line(&mut self) -> &mut String {
        &mut self.line
    }

    fn end_line(&mut self) {
        let attempt = self.line.trim_start().strip_prefix("Attempt #");
        let is_retry = attempt.is_some_and(|attempt| attempt.contains(" Failed.  Retrying"));
        self.retries = self.retries.saturating_add(u32::from(is_retry));
        self.line.clear();
    }
}

impl TextSink for RetrySearch {
    fn is_wanted(&self) -> bool {
        true
    }

    fn push(&mut self, text: &str) {
        self.push_lines(text);
    }
}

/// Looks at a text line by line, of a long one at the beginning.
trait LineSearch {
    const MAX_LINE_BYTES: usize;

    /// The beginning of the current line.
    fn line(&mut self) -> &mut String;

    fn end_line(&mut self);

    fn push_lines(&mut self, text: &str) {
        let mut lines = text.split('\n');
        let mut next = lines.next();
        while let Some(part) = next {
            let line = self.line();
            let room = Self::MAX_LINE_BYTES.saturating_sub(line.len());
            line.push_str(&part[..part.floor_char_boundary(room)]);
            next = lines.next();
            if next.is_some() {
                self.end_line();
            }
        }
    }
}
