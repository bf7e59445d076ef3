//! Reads the file. Aliases aren't expanded, so a small file stays small.

use std::collections::HashMap;
use std::ops::Range;

use jiff::ToSpan as _;
use jiff::civil::Date;

use super::{
    MAX_BYTES, MAX_DAYS, MAX_ENTRIES, ParsedQuarantine, Quarantine, QuarantineEntry, QuarantineMode,
};
use crate::diagnostic::{Diagnostic, Findings, Rule, SourceSpan, SourceText};
use crate::repo::Oncall;
use crate::yaml::display::{find_similar, show};
use crate::yaml::plain::PlainYaml;
use crate::yaml::{SyntaxError, TokenKind, YamlToken, scalar, syntax};

const MAX_PATTERN_CHARS: usize = 1000;
const MAX_REASON_CHARS: usize = 1000;
/// Letters and digits that a pattern with `*` needs. `test*` would hide most failures of a repository.
const MIN_LITERAL: usize = 8;
const FIELDS: [&str; 5] = ["pattern", "owner", "reason", "expiry", "mode"];
/// What to do if one is missing.
const REQUIRED_FIELDS: [(&str, &str); 4] = [
    ("pattern", "name the test as `crcr stats flaky` prints it"),
    ("owner", "name a login or `org/team` who fixes the test"),
    ("reason", "say why it fails, with a link to the issue"),
    ("expiry", "name the last day, at most 30 days from now, such as `expiry: 2026-11-30`"),
];
const SHAPE: &str = "each item is a mapping with `pattern`, `owner`, `reason`, `expiry` and `mode`";

impl ParsedQuarantine {
    /// Reads a file as of `today`, in UTC, and reports all findings.
    pub fn parse(bytes: &[u8], today: Date) -> Self {
        let failed = |source: SourceText, found: Diagnostic| {
            let mut findings = Findings::default();
            findings.push(found);
            Self { source, entries: vec![], findings }
        };
        if bytes.len() > MAX_BYTES {
            let source = SourceText::new(b"");
            let found = syntax::too_large(&source, MAX_BYTES, "quarantine fewer tests");
            return failed(source, found);
        }
        let source = SourceText::new(bytes);
        if let Some(found) = syntax::unreadable(bytes, &source) {
            return failed(source, found);
        }
        let mut reader = QuarantineReader {
            file: PlainYaml::new(&source),
            today,
            patterns: HashMap::new(),
            entries: vec![],
        };
        if let Err(error) = reader.read_document() {
            let found = syntax::stopped(&source, &error, reader.file.read_to);
            reader.file.findings.push(found);
        }
        let QuarantineReader { entries, file: PlainYaml { mut findings, .. }, .. } = reader;
        findings.sort();
        Self { source, entries, findings }
    }

    /// What counts on this day. A file with an error has no effect at all: which failures its author
    /// meant to hide isn't known.
    pub fn accepted(self, today: Date) -> Result<Quarantine, Findings> {
        match self.findings.errors() {
            0 => Ok(Quarantine::new(self.entries, today)),
            _ => Err(self.findings),
        }
    }
}

struct QuarantineReader<'a> {
    file: PlainYaml<'a>,
    today: Date,
    /// Each with its first place.
    patterns: HashMap<String, SourceSpan>,
    entries: Vec<QuarantineEntry>,
}

/// The fields that have been read; a field with an error is absent.
#[derive(Default)]
struct EntryFields {
    pattern: Option<String>,
    owner: Option<Oncall>,
    reason: Option<String>,
    expiry: Option<Date>,
    mode: Option<QuarantineMode>,
}

impl<'a> QuarantineReader<'a> {
    fn read_document(&mut self) -> Result<(), SyntaxError> {
        if matches!(self.file.next()?.kind, TokenKind::End) {
            return Ok(());
        }
        let root = self.file.next()?;
        match &root.kind {
            TokenKind::ListStart => {
                if !self.read_list()? {
                    return Ok(());
                }
            }
            TokenKind::Scalar(text, true) if scalar::is_null(text) => {}
            _ => self.wrong_shape(root, "the file isn't a list of tests", SHAPE)?,
        }
        self.file.end()
    }

    /// Returns whether the whole list was read.
    fn read_list(&mut self) -> Result<bool, SyntaxError> {
        for count in 0.. {
            let item = self.file.next()?;
            match item.kind {
                TokenKind::ListEnd => break,
                _ if count == MAX_ENTRIES => {
                    let text = format!("the file has more than {MAX_ENTRIES} entries");
                    let help = "fix the tests, or leave them out of the run";
                    self.file.report(Rule::TooManyEntries, item.bytes, text, help);
                    return Ok(false);
                }
                TokenKind::MapStart => self.read_entry(&item)?,
                _ => self.wrong_shape(item, "an item isn't a mapping", SHAPE)?,
            }
        }
        Ok(true)
    }

    fn read_entry(&mut self, item: &YamlToken<'a>) -> Result<(), SyntaxError> {
        let mut fields = EntryFields::default();
        let mut seen: HashMap<String, SourceSpan> = HashMap::new();
        let mut first = None;
        let mut end = item.bytes.end;
        let errors = self.file.findings.errors();
        loop {
            let key = self.file.next()?;
            let name = match &key.kind {
                TokenKind::MapEnd => break,
                TokenKind::Scalar(text, _) => text.to_string(),
                _ => {
                    self.wrong_shape(key, "a key isn't a name", SHAPE)?;
                    let value = self.file.next()?;
                    self.skip(&value)?;
                    continue;
                }
            };
            let at = self.file.source.span(key.bytes.clone());
            first.get_or_insert(key.bytes.start);
            let value = self.file.next()?;
            end = end.max(value.bytes.end);
            if !self.check_key(&name, at, &mut seen) {
                self.skip(&value)?;
                continue;
            }
            let TokenKind::Scalar(text, is_plain) = &value.kind else {
                let message = format!("`{name}` isn't a text");
                self.wrong_shape(value, message, "write it on one line")?;
                continue;
            };
            let text = match *is_plain && scalar::is_null(text) {
                true => String::new(),
                // Blanks in quotes are meant. Only a sentence may end with the line end of a block.
                false if name != "reason" && !is_plain => text.to_string(),
                false => text.trim().to_owned(),
            };
            let place = if value.bytes.is_empty() { key.bytes } else { value.bytes };
            self.read_field(&mut fields, &name, text, self.file.source.span(place));
        }
        let start = first.unwrap_or(item.bytes.start);
        self.add_entry(fields, &seen, start..end, errors);
        Ok(())
    }

    /// Returns whether the key is a field that the entry doesn't have yet.
    fn check_key(
        &mut self,
        name: &str,
        at: SourceSpan,
        seen: &mut HashMap<String, SourceSpan>,
    ) -> bool {
        if let Some(earlier) = seen.get(name) {
            let text = format!("the key {} occurs twice", show(name));
            let found = Diagnostic::new(Rule::DuplicateKey, at, text)
                .related(earlier.clone(), "first here", "first here")
                .help("keep one of them");
            self.file.findings.push(found);
            return false;
        }
        seen.insert(name.to_owned(), at.clone());
        if FIELDS.contains(&name) {
            return true;
        }
        let help = match find_similar(name, &FIELDS) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "the fields are `pattern`, `owner`, `reason`, `expiry` and `mode`".to_owned(),
        };
        let text = format!("{} isn't a field of an entry", show(name));
        self.file.findings.push(Diagnostic::new(Rule::UnknownField, at, text).help(help));
        false
    }

    /// Adds the entry with these fields, unless it has had errors since there were `errors`. `bytes`: from its first key
    /// to its last value.
    fn add_entry(
        &mut self,
        fields: EntryFields,
        seen: &HashMap<String, SourceSpan>,
        bytes: Range<usize>,
        errors: usize,
    ) {
        let text = self.file.source.text();
        let before = text[..bytes.start].trim_end();
        let start = if before.ends_with('-') { before.len() - 1 } else { bytes.start };
        let first_char = text[start..].chars().next().map_or(0, char::len_utf8);
        let place = self.file.source.span(start..start + first_char);
        for (field, help) in REQUIRED_FIELDS {
            if !seen.contains_key(field) {
                let text = format!("the entry has no `{field}`");
                let found = Diagnostic::new(Rule::MissingField, place.clone(), text);
                self.file.findings.push(found.help(help));
            }
        }
        let EntryFields { pattern, owner, reason, expiry, mode } = fields;
        if let (Some(pattern), Some(owner), Some(reason), Some(expiry)) =
            (pattern, owner, reason, expiry)
            && self.file.findings.errors() == errors
        {
            let bytes = start..start + text[start..bytes.end.max(start)].trim_end().len();
            let mode = mode.unwrap_or(QuarantineMode::Run);
            self.entries.push(QuarantineEntry { pattern, owner, reason, expiry, mode, bytes });
        }
    }

    fn read_field(
        &mut self,
        fields: &mut EntryFields,
        name: &str,
        text: String,
        place: SourceSpan,
    ) {
        let found = match name {
            "pattern" => {
                let found = check_pattern(&text).or_else(|| self.check_repeated(&text, &place));
                fields.pattern = Some(text);
                found
            }
            "owner" => match Oncall::new(text.strip_prefix('@').unwrap_or(&text)) {
                Ok(owner) => {
                    fields.owner = Some(owner);
                    None
                }
                Err(why) => {
                    let text = format!("{} isn't an owner: {why}", show(&text));
                    Some((Rule::InvalidOwner, text, "write a login or `org/team`".to_owned()))
                }
            },
            "reason" => {
                let length = text.chars().count();
                fields.reason = Some(text);
                (!(1..=MAX_REASON_CHARS).contains(&length)).then(|| {
                    let text = format!(
                        "a reason has 1 to {MAX_REASON_CHARS} characters, and this one {length}"
                    );
                    (Rule::InvalidReason, text, "say why the test fails".to_owned())
                })
            }
            "expiry" => {
                let expiry = parse_day(&text);
                fields.expiry = expiry;
                self.check_expiry(&text, expiry)
            }
            _ => {
                fields.mode = [QuarantineMode::Run, QuarantineMode::Skip]
                    .into_iter()
                    .find(|mode| mode.as_str() == text);
                fields.mode.is_none().then(|| {
                    let text = format!("{} isn't a mode", show(&text));
                    (Rule::InvalidMode, text, "the modes are `run` and `skip`".to_owned())
                })
            }
        };
        if let Some((rule, message, help)) = found {
            self.file.findings.push(Diagnostic::new(rule, place, message).help(help));
        }
    }

    fn check_repeated(
        &mut self,
        pattern: &str,
        place: &SourceSpan,
    ) -> Option<(Rule, String, String)> {
        if let Some(first) = self.patterns.get(pattern) {
            let text = format!(
                "{} is quarantined twice, first in line {}",
                show(pattern),
                first.start.line
            );
            return Some((Rule::DuplicatePattern, text, "keep one of the entries".to_owned()));
        }
        self.patterns.insert(pattern.to_owned(), place.clone());
        None
    }

    fn check_expiry(&self, text: &str, expiry: Option<Date>) -> Option<(Rule, String, String)> {
        let Some(expiry) = expiry else {
            let text = format!("{} isn't a day", show(text));
            return Some((Rule::InvalidExpiry, text, "write it as 2026-11-30".to_owned()));
        };
        let last = self.today.saturating_add(MAX_DAYS.days());
        if expiry > last {
            let text = format!("the entry would last longer than {MAX_DAYS} days");
            return Some((Rule::ExpiryTooFar, text, format!("the last day is {last} at most")));
        }
        (expiry < self.today).then(|| {
            let days = self.today.since(expiry).map_or(0, |span| span.get_days());
            let ago = if days == 1 { "yesterday".to_owned() } else { format!("{days} days ago") };
            let text = format!("the entry expired {ago}, so the test's failures count again");
            (Rule::QuarantineExpired, text, "remove it, or agree on a new day".to_owned())
        })
    }

    /// Skips the rest of a node after its first token.
    fn skip(&mut self, first: &YamlToken<'a>) -> Result<(), SyntaxError> {
        if matches!(first.kind, TokenKind::Alias) {
            self.file.report_alias(first.bytes.clone());
        }
        let mut depth = first.nesting();
        while depth > 0 {
            let token = self.file.next()?;
            if matches!(token.kind, TokenKind::Alias) {
                self.file.report_alias(token.bytes.clone());
            }
            depth += token.nesting();
        }
        Ok(())
    }

    fn wrong_shape(
        &mut self,
        value: YamlToken<'a>,
        message: impl Into<String>,
        help: &str,
    ) -> Result<(), SyntaxError> {
        if !matches!(value.kind, TokenKind::Alias) {
            self.file.report(Rule::WrongShape, value.bytes.clone(), message, help);
        }
        self.skip(&value)
    }
}

fn check_pattern(pattern: &str) -> Option<(Rule, String, String)> {
    let length = pattern.chars().count();
    let (text, help) = if !(1..=MAX_PATTERN_CHARS).contains(&length) {
        let text =
            format!("a pattern has 1 to {MAX_PATTERN_CHARS} characters, and this one {length}");
        (text, "name the test as `crcr stats flaky` prints it".to_owned())
    } else if pattern.chars().any(char::is_control) {
        ("the pattern has a control character".to_owned(), "use `*` in its place".to_owned())
    } else if pattern.contains('*')
        && pattern.chars().filter(|c| c.is_alphanumeric()).count() < MIN_LITERAL
    {
        let text = format!("{} would cover more than a test", show(pattern));
        (text, format!("beside `*` a pattern needs at least {MIN_LITERAL} letters or digits"))
    } else {
        return None;
    };
    Some((Rule::InvalidPattern, text, help))
}

fn parse_day(text: &str) -> Option<Date> {
    let bytes = text.as_bytes();
    let is_day = bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-';
    is_day.then(|| text.parse().ok()).flatten()
}
