//! Findings about a file, independent of output formats.

use std::ops::Range;

use serde::Serialize;

/// More findings about a file are only counted.
const MAX_FINDINGS: usize = 10_000;

/// The text of a file with an index of its lines. Doesn't include the byte-order mark.
#[derive(Debug, Clone)]
pub struct SourceText {
    text: String,
    lines: Vec<usize>,
    /// Number of characters before each block of [`BLOCK`] bytes. Makes positions in very long lines fast.
    blocks: Vec<usize>,
    byte_order_mark: bool,
}

const BLOCK: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TextPosition {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

/// A range of the text with an exclusive end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpan {
    pub bytes: Range<usize>,
    pub start: TextPosition,
    pub end: TextPosition,
}

impl SourceText {
    /// Bytes that aren't UTF-8 become U+FFFD.
    pub fn new(bytes: &[u8]) -> Self {
        let stripped = bytes.strip_prefix("\u{feff}".as_bytes());
        let text = String::from_utf8_lossy(stripped.unwrap_or(bytes)).into_owned();
        let breaks = line_starts(text.as_bytes());
        let lines = std::iter::once(0).chain(breaks).collect();
        let mut before = 0;
        let count = |block: &[u8]| {
            let first = before;
            before += count_chars(block);
            first
        };
        let blocks = text.as_bytes().chunks(BLOCK).map(count).collect();
        Self { text, lines, blocks, byte_order_mark: stripped.is_some() }
    }

    /// The text without its byte-order mark.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the file begins with a byte-order mark.
    pub fn has_byte_order_mark(&self) -> bool {
        self.byte_order_mark
    }

    /// `byte`: where a character begins, or the end.
    pub fn position(&self, byte: usize) -> TextPosition {
        let byte = byte.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= byte);
        TextPosition { line, column: self.chars_between(self.lines[line - 1], byte) + 1 }
    }

    fn chars_between(&self, start: usize, end: usize) -> usize {
        if end - start <= BLOCK {
            return count_chars(&self.text.as_bytes()[start..end]);
        }
        self.chars_before(end) - self.chars_before(start)
    }

    fn chars_before(&self, byte: usize) -> usize {
        let block = (byte / BLOCK).min(self.blocks.len().saturating_sub(1));
        let before = self.blocks.get(block).copied().unwrap_or(0);
        before + count_chars(&self.text.as_bytes()[block * BLOCK..byte])
    }

    pub fn span(&self, bytes: Range<usize>) -> SourceSpan {
        let start = self.position(bytes.start);
        let next_line = self.lines.get(start.line).copied().unwrap_or(self.text.len());
        let end = if (bytes.start..next_line).contains(&bytes.end) {
            let column = start.column + self.chars_between(bytes.start, bytes.end);
            TextPosition { line: start.line, column }
        } else {
            self.position(bytes.end)
        };
        SourceSpan { bytes, start, end }
    }

    /// The text after the last line break counts if it isn't empty.
    pub fn line_count(&self) -> usize {
        self.lines.len() - usize::from(self.lines.last() == Some(&self.text.len()))
    }

    /// Byte range of the lines `first` to `last`, from 1 and inclusive.
    pub fn lines(&self, first: usize, last: usize) -> Range<usize> {
        let start = |line: usize| self.lines.get(line - 1).copied().unwrap_or(self.text.len());
        start(first.max(1))..start(last.max(1) + 1)
    }
}

/// Counts UTF-8 start bytes.
fn count_chars(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0b1100_0000 != 0b1000_0000).count()
}

/// Starts of all lines except the first. LF, CRLF and CR end a line, as in YAML.
fn line_starts(text: &[u8]) -> impl Iterator<Item = usize> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
        at += if text[at..].starts_with(b"\r\n") { 2 } else { 1 };
        Some(at)
    })
}

/// Whether a finding fails the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
}

names! { Severity { Error "error", Warning "warning" } }

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $name:ident $code:literal $severity:ident,)+) => {
        /// A rule with a stable code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Rule {
            /// Every rule, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            pub fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)+ }
            }

            pub fn summary(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+).trim_ascii(),)+ }
            }

            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)+ }
            }
        }
    };
}

rules! {
    /// The file isn't YAML, or is too large or too deep to be read
    YamlSyntax "yaml-syntax" Error,
    /// The value has the wrong shape for its place
    WrongShape "wrong-shape" Error,
    /// Anchors, aliases, merge keys and tags aren't read
    Alias "alias" Error,
    /// A name that YAML reads as a number, a boolean, null or a date
    NotAString "not-a-string" Error,
    /// The same key twice in one mapping
    DuplicateKey "duplicate-key" Error,
    /// A top-level key that isn't a level
    UnknownLevel "unknown-level" Error,
    /// Not `owner/repo` by GitHub's rules
    InvalidRepository "invalid-repository" Error,
    /// The same repository twice, compared without case
    DuplicateRepository "duplicate-repository" Error,
    /// The upstream repository itself is listed
    UpstreamListed "upstream-listed" Error,
    /// A device that can't be part of a label
    InvalidDevice "invalid-device" Error,
    /// Two devices that are equal without case
    DuplicateDevice "duplicate-device" Error,
    /// An oncall that is neither a login nor `org/team`
    InvalidOncall "invalid-oncall" Error,
    /// Nobody to call: an error at L4, a warning at L3
    MissingOncall "missing-oncall" Error,
    /// An oncall with an `@` in front
    OncallAtSign "oncall-at-sign" Warning,
    /// The same oncall twice, compared without case
    DuplicateOncall "duplicate-oncall" Warning,
    /// An event that doesn't exist
    InvalidEvent "invalid-event" Error,
    /// A field of an entry that doesn't exist
    UnknownField "unknown-field" Error,
    /// Oncalls at L1 and L2 have no effect
    UnusedOncall "unused-oncall" Warning,
    /// A level with nothing in it
    EmptyLevel "empty-level" Warning,
    /// A device with nothing in it
    EmptyDevice "empty-device" Warning,
    /// A file with nothing in it
    EmptyFile "empty-file" Warning,
    /// GitHub has no such repository, or the token can't see it
    RepositoryNotFound "repository-not-found" Error,
    /// The repository has another name now
    RepositoryRenamed "repository-renamed" Error,
    /// GitHub spells the repository in another case
    RepositoryCase "repository-case" Warning,
    /// The repository is archived: no workflow runs there
    RepositoryArchived "repository-archived" Error,
    /// The App isn't installed on the repository
    AppNotInstalled "app-not-installed" Error,
    /// The App lacks a permission on the repository
    AppPermissionMissing "app-permission-missing" Error,
    /// GitHub has no such login or team
    OncallNotFound "oncall-not-found" Error,
    /// The upstream repository has no label for the device
    LabelMissing "label-missing" Warning,
    /// No workflow on the default branch receives the events, or none reports
    WorkflowMissing "workflow-missing" Warning,
    /// A workflow lets the code or the text of strangers reach a token or a secret
    TokenExposed "token-exposed" Warning,
    /// A repository that enters above L1 or climbs two levels at once
    LevelSkipped "level-skipped" Error,
    /// A repository climbs to L3 or L4, or its `events` begin its check runs, without the approval of those who have to give it
    PromotionNotApproved "promotion-not-approved" Error,
    /// A repository goes down, or its `events` end its check runs, and nobody says why
    DemotionWithoutReason "demotion-without-reason" Warning,
    /// A repository is removed and nobody says why
    RemovalWithoutReason "removal-without-reason" Warning,
    /// A repository moves to another device
    DeviceRenamed "device-renamed" Warning,
    /// The recorded results don't meet the criteria of the level
    CriteriaNotMet "criteria-not-met" Error,
    /// The recorded results don't speak for the change
    NoEvidence "no-evidence" Warning,
    /// A field that an entry of the quarantine needs
    MissingField "missing-field" Error,
    /// A pattern that is empty, too long or too broad
    InvalidPattern "invalid-pattern" Error,
    /// The same pattern twice
    DuplicatePattern "duplicate-pattern" Error,
    /// An owner that is neither a login nor `org/team`
    InvalidOwner "invalid-owner" Error,
    /// A reason that is empty or too long
    InvalidReason "invalid-reason" Error,
    /// Not a day such as 2026-11-30
    InvalidExpiry "invalid-expiry" Error,
    /// A quarantine that would last longer than 30 days
    ExpiryTooFar "expiry-too-far" Error,
    /// A quarantine that has ended
    QuarantineExpired "quarantine-expired" Warning,
    /// A mode other than `run` and `skip`
    InvalidMode "invalid-mode" Error,
    /// More entries than are read
    TooManyEntries "too-many-entries" Error,
    /// Not a whole number, or one out of its bounds
    InvalidNumber "invalid-number" Error,
    /// A value of `drafts` other than `skip` and `dispatch`
    InvalidDrafts "invalid-drafts" Error,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub rule: Rule,
    /// Whether it fails the file.
    pub severity: Severity,
    /// Understandable on its own.
    pub message: String,
    pub span: SourceSpan,
    /// Shown below the annotated source, if not empty.
    pub label: String,
    pub related: Vec<RelatedSpan>,
    pub help: Option<String>,
    /// Set if it can be fixed automatically.
    pub fix: Option<SuggestedFix>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelatedSpan {
    pub message: String,
    /// For the annotated source.
    pub label: String,
    pub span: SourceSpan,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuggestedFix {
    pub description: String,
    /// No two of them overlap.
    pub edits: Vec<TextEdit>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextEdit {
    /// The replaced text; may be empty.
    pub span: SourceSpan,
    pub text: String,
}

impl Diagnostic {
    /// Has the default severity of its rule.
    pub fn new(rule: Rule, span: SourceSpan, message: impl Into<String>) -> Self {
        Self {
            rule,
            severity: rule.severity(),
            message: message.into(),
            span,
            label: String::new(),
            related: Vec::new(),
            help: None,
            fix: None,
        }
    }

    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// `message` is for machine-readable formats, `label` for the annotated source.
    pub fn related(
        mut self,
        span: SourceSpan,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Self {
        self.related.push(RelatedSpan { message: message.into(), label: label.into(), span });
        self
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Sets a fix with a single edit.
    pub fn fix(
        mut self,
        span: SourceSpan,
        text: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        let edits = vec![TextEdit { span, text: text.into() }];
        self.fix = Some(SuggestedFix { description: description.into(), edits });
        self
    }
}

/// The findings of one file. Keeps at most [`MAX_FINDINGS`] and counts all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    kept: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
}

impl Findings {
    pub fn push(&mut self, diagnostic: Diagnostic) {
        match diagnostic.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        if self.kept.len() < MAX_FINDINGS {
            self.kept.push(diagnostic);
        }
    }

    /// Sorts by line, column and rule.
    pub fn sort(&mut self) {
        self.kept.sort_by(|a, b| (a.span.start, a.rule.code()).cmp(&(b.span.start, b.rule.code())));
    }

    pub fn make_strict(&mut self) {
        for diagnostic in &mut self.kept {
            diagnostic.severity = Severity::Error;
        }
        self.errors += std::mem::take(&mut self.warnings);
    }

    pub fn kept(&self) -> &[Diagnostic] {
        &self.kept
    }

    /// Number of findings that were only counted.
    pub fn left_out(&self) -> usize {
        self.errors + self.warnings - self.kept.len()
    }

    pub fn errors(&self) -> usize {
        self.errors
    }

    pub fn warnings(&self) -> usize {
        self.warnings
    }

    /// How many errors there are, and what the first one says.
    pub fn error_summary(&self) -> String {
        let count = match self.errors {
            1 => "1 error".to_owned(),
            count => format!("{count} errors, the first"),
        };
        let Some(first) = self.kept.iter().find(|found| found.severity == Severity::Error) else {
            return format!("{} errors", self.errors);
        };
        format!("{count} in line {}: {}", first.span.start.line, first.message)
    }
}

impl Extend<Diagnostic> for Findings {
    fn extend<T: IntoIterator<Item = Diagnostic>>(&mut self, diagnostics: T) {
        for diagnostic in diagnostics {
            self.push(diagnostic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_in_characters_and_lines_end_as_in_yaml() {
        let source = SourceText::new("\u{feff}é: x\r\n漢字 y\rz\n".as_bytes());
        assert!(source.has_byte_order_mark());
        assert_eq!(source.text(), "é: x\r\n漢字 y\rz\n");
        let at = |needle: &str| {
            let position = source.position(source.text().find(needle).unwrap());
            (position.line, position.column)
        };
        assert_eq!(at("é"), (1, 1));
        assert_eq!(at("x"), (1, 4));
        assert_eq!(at("y"), (2, 4));
        assert_eq!(at("z"), (3, 1));
        assert_eq!(source.line_count(), 3);
        assert_eq!(&source.text()[source.lines(2, 2)], "漢字 y\r");
        assert_eq!(source.position(1000), TextPosition { line: 4, column: 1 });
        assert_eq!(SourceText::new(b"").line_count(), 0);
        // A long line, also below others, is counted by blocks.
        for (above, line) in [("", 1), ("é\n", 2)] {
            let long = SourceText::new((above.to_owned() + &"a: é, ".repeat(1000)).as_bytes());
            let characters = long.text()[above.len()..].char_indices();
            for (at, (byte, _)) in characters.enumerate() {
                let position = long.position(above.len() + byte);
                assert_eq!(position, TextPosition { line, column: at + 1 });
            }
        }
    }

    #[test]
    fn spans_end_on_their_own_line_or_on_a_later_one() {
        let source = SourceText::new("aé\nb\n".as_bytes());
        let end = |bytes: Range<usize>| {
            let end = source.span(bytes).end;
            (end.line, end.column)
        };
        assert_eq!(end(0..3), (1, 3));
        assert_eq!(end(1..3), (1, 3));
        assert_eq!(end(0..4), (2, 1), "the break belongs to its line");
        assert_eq!(end(3..5), (2, 2));
        assert_eq!(end(4..6), (3, 1));
        assert_eq!(&source.text()[source.lines(0, 0)], "aé\n");
        assert_eq!(&source.text()[source.lines(2, 9)], "b\n");
        assert!(!source.has_byte_order_mark());
        // As long as two blocks.
        let blocks = SourceText::new("é".repeat(BLOCK).as_bytes());
        assert_eq!(blocks.position(2 * BLOCK), TextPosition { line: 1, column: BLOCK + 1 });
    }

    #[test]
    fn findings_are_in_the_order_of_the_file_and_then_of_their_codes() {
        let source = SourceText::new(b"x\ny");
        let mut findings = Findings::default();
        for (rule, bytes) in
            [(Rule::EmptyLevel, 2..3), (Rule::EmptyLevel, 0..1), (Rule::Alias, 0..1)]
        {
            findings.push(Diagnostic::new(rule, source.span(bytes), "m"));
        }
        assert_eq!((findings.errors(), findings.warnings(), findings.left_out()), (1, 2, 0));
        assert_eq!(findings.error_summary(), "1 error in line 1: m");
        findings.sort();
        let order: Vec<_> = findings
            .kept()
            .iter()
            .map(|found| (found.span.start.line, found.rule.code()))
            .collect();
        assert_eq!(order, [(1, "alias"), (1, "empty-level"), (2, "empty-level")]);
        findings.make_strict();
        assert!(findings.kept().iter().all(|found| found.severity == Severity::Error));
        assert_eq!(findings.error_summary(), "3 errors, the first in line 1: m");
    }

    #[test]
    fn every_rule_has_its_own_code_in_kebab_case() {
        let codes: std::collections::BTreeSet<_> = Rule::ALL.iter().map(|r| r.code()).collect();
        assert_eq!(codes.len(), Rule::ALL.len());
        assert!(codes.iter().all(|c| c.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
        assert!(Rule::ALL.iter().all(|rule| !rule.summary().is_empty()));
    }

    #[test]
    fn findings_past_the_cap_are_counted() {
        let source = SourceText::new(b"x");
        let mut findings = Findings::default();
        let finding = Diagnostic::new(Rule::EmptyLevel, source.span(0..1), "m");
        findings.extend(std::iter::repeat_n(finding, MAX_FINDINGS + 2));
        assert_eq!((findings.kept().len(), findings.left_out()), (MAX_FINDINGS, 2));
        findings.make_strict();
        assert_eq!((findings.errors(), findings.warnings()), (MAX_FINDINGS + 2, 0));
    }
}
