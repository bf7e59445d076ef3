//! The parser of the allowlist. It reads YAML events, builds the policy and reports all findings with their
//! positions.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use granit_parser::ErrorKind;

use super::Allowlist;
use crate::allowlist::level::{Device, Level};
use crate::diagnostic::{Diagnostic, Findings, Rule, SourceSpan, SourceText};
use crate::repo::RepoName;
use crate::yaml::display::show;
use crate::yaml::{SyntaxError, TokenKind, YamlReader, YamlToken, scalar, syntax};

/// GitHub's contents API serves no larger files as text.
pub const MAX_BYTES: usize = 1024 * 1024;

/// The help for a name that can't have a character of it.
pub(crate) const LOOK_ALIKE: &str =
    "type the name again; a character in it is invisible or looks like another";

#[derive(Debug, Clone)]
pub struct ParseOutcome {
    /// The text that all spans refer to.
    pub source: SourceText,
    /// Only valid if there are no errors, see [`ParseOutcome::accepted`].
    pub policy: Allowlist,
    /// The spans of each entry of the policy, in the same order.
    pub places: Vec<EntrySpans>,
    pub findings: Findings,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntrySpans {
    pub repo: SourceSpan,
    pub device: Option<SourceSpan>,
    pub oncalls: Vec<SourceSpan>,
}

impl ParseOutcome {
    /// Fails if the file has an error.
    pub fn accepted(self) -> Result<Allowlist, Findings> {
        if self.findings.errors() == 0 { Ok(self.policy) } else { Err(self.findings) }
    }
}

impl Allowlist {
    /// Parses a file and reports all findings. `upstream` must not be listed itself.
    ///
    /// Limits size ([`MAX_BYTES`]), nesting and the number of findings; doesn't expand aliases.
    /// <https://yaml.org/spec/1.2.2/>
    pub fn parse(bytes: &[u8], upstream: &RepoName) -> ParseOutcome {
        if bytes.len() > MAX_BYTES {
            let source = SourceText::new(b"");
            let findings = std::iter::once(syntax::too_large(
                &source,
                MAX_BYTES,
                "GitHub's contents API serves no larger file as text; list fewer repositories",
            ));
            return ParseOutcome::failed(source.clone(), findings);
        }
        let source = SourceText::new(bytes);
        if let Some(finding) = syntax::unreadable(bytes, &source) {
            return ParseOutcome::failed(source, std::iter::once(finding));
        }
        let (mut read, mut stopped) =
            AllowlistReader::read_all(&source, source.text(), None, upstream);
        if stopped.as_ref().is_some_and(|error| stopped_at_at_sign(&source, error))
            && let Some(mask) = unused_char(source.text())
        {
            let masked = source.text().replace('@', &mask.to_string());
            (read, stopped) = AllowlistReader::read_all(&source, &masked, Some(mask), upstream);
        }
        if let Some(error) = stopped {
            read.findings.push(syntax::stopped(&source, &error, read.read_to));
        }
        read.findings.sort();
        let ReadResult { policy, places, findings, .. } = read;
        ParseOutcome { source, policy, places, findings }
    }
}

impl ParseOutcome {
    fn failed(source: SourceText, found: impl Iterator<Item = Diagnostic>) -> Self {
        let mut findings = Findings::default();
        findings.extend(found);
        Self { source, policy: Allowlist::new(), places: Vec::new(), findings }
    }
}

/// Whether the YAML parser stopped at an `@` that begins a plain scalar.
fn stopped_at_at_sign(source: &SourceText, error: &SyntaxError) -> bool {
    matches!(error.kind, ErrorKind::UnexpectedCharacter { character: '@' })
        && source.text().as_bytes().get(error.at) == Some(&b'@')
}

/// A character that is allowed anywhere in a plain scalar and doesn't occur in the text. It replaces every
/// `@`, so that the parser can continue after one. Never `~`, which means an empty node.
fn unused_char(text: &str) -> Option<char> {
    "^$;+=()/<".chars().chain('A'..='Z').chain('a'..='z').find(|c| !text.contains(*c))
}

struct ReadResult {
    policy: Allowlist,
    places: Vec<EntrySpans>,
    findings: Findings,
    read_to: usize,
}

pub(crate) struct AllowlistReader<'a> {
    yaml: YamlReader<'a>,
    pub(crate) source: &'a SourceText,
    pub(crate) upstream: &'a RepoName,
    /// Replaces `@` in the text that the YAML parser reads.
    mask: Option<char>,
    /// End of the previous token.
    read_to: usize,
    pub(crate) policy: Allowlist,
    pub(crate) places: Vec<EntrySpans>,
    findings: Findings,
}

/// A scalar: a key, an item or a value.
pub(crate) struct ScalarNode<'a> {
    pub(crate) text: Cow<'a, str>,
    /// Neither quoted nor tagged, so YAML infers a type.
    pub(crate) plain: bool,
    pub(crate) bytes: Range<usize>,
}

impl ScalarNode<'_> {
    pub(crate) fn is_null(&self) -> bool {
        self.plain && scalar::is_null(&self.text)
    }
}

pub(crate) struct MappingKey<'a> {
    pub(crate) scalar: ScalarNode<'a>,
    /// Whether the mapping has the same key earlier.
    pub(crate) duplicate: bool,
    pub(crate) index: usize,
}

/// The level and device that an entry is listed under.
#[derive(Clone)]
pub(crate) struct EntrySection {
    pub(crate) level: Level,
    pub(crate) device: Option<(Device, SourceSpan)>,
}

impl<'a> AllowlistReader<'a> {
    /// Reads `text`, which is the source, possibly with `mask` in place of every `@`.
    fn read_all(
        source: &'a SourceText,
        text: &'a str,
        mask: Option<char>,
        upstream: &'a RepoName,
    ) -> (ReadResult, Option<SyntaxError>) {
        let mut reader = Self {
            yaml: YamlReader::new(text),
            source,
            upstream,
            mask,
            read_to: 0,
            policy: Allowlist::new(),
            places: Vec::new(),
            findings: Findings::default(),
        };
        let stopped = reader.read_document().err();
        let Self { policy, places, findings, read_to, .. } = reader;
        (ReadResult { policy, places, findings, read_to }, stopped)
    }

    /// Reads the whole file, which must be one document.
    fn read_document(&mut self) -> Result<(), SyntaxError> {
        let first = self.next()?;
        if matches!(first.kind, TokenKind::End) {
            self.report_empty_file();
            return Ok(());
        }
        let root = self.next()?;
        match root.kind {
            TokenKind::MapStart => {
                if self.read_levels()? == 0 {
                    self.report_empty_file();
                }
            }
            TokenKind::Scalar(..) if self.scalar(&root).is_null() => self.report_empty_file(),
            _ => {
                let message = format!("the file is {}, not a mapping of levels", kind_name(&root));
                self.wrong_shape(root, message, "the top-level keys are `L1` to `L4`")?;
            }
        }
        while !matches!(self.next()?.kind, TokenKind::DocumentEnd) {}
        let second = self.next()?;
        if matches!(second.kind, TokenKind::DocumentStart) {
            let message = "the file has a second document";
            let span = self.source.span(second.bytes);
            self.report(
                Diagnostic::new(Rule::WrongShape, span, message)
                    .label("it begins here")
                    .help("put everything into one document"),
            );
            while !matches!(self.next()?.kind, TokenKind::End) {}
        }
        Ok(())
    }

    fn report_empty_file(&mut self) {
        let span = self.source.span(0..0);
        self.report(
            Diagnostic::new(Rule::EmptyFile, span, "the file lists no repository")
                .help("list repositories under `L1` to `L4`"),
        );
    }

    /// Reads the top-level mapping and returns its number of keys.
    fn read_levels(&mut self) -> Result<usize, SyntaxError> {
        self.read_mapping(|reader, key| {
            let level = match key.scalar.text.parse() {
                Ok(level) => Some(level),
                Err(_) => reader.report_unknown_level(&key.scalar),
            };
            let value = reader.next()?;
            match (level, &value.kind) {
                (Some(Level::L3), TokenKind::MapStart) => reader.read_devices(&key),
                (Some(level), TokenKind::ListStart) if level != Level::L3 => {
                    reader.read_list(level, &key)
                }
                (Some(level), _) => reader.read_invalid_level(level, &key, value),
                (None, _) => reader.skip(value).map(drop),
            }
        })
    }

    /// Reports an unknown top-level key. Returns the level that was probably meant.
    fn report_unknown_level(&mut self, key: &ScalarNode<'_>) -> Option<Level> {
        let letters: String = key.text.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        let letters = letters.to_ascii_lowercase();
        let number = letters.strip_prefix("level").or_else(|| letters.strip_prefix('l'));
        let digits = number.unwrap_or(&letters).trim_start_matches('0');
        let level = Level::ALL.into_iter().find(|level| level.as_str()[1..] == *digits);
        let message = format!("{} isn't a level", show(&key.text));
        let help = match level {
            Some(level) => format!("did you mean `{level}`?"),
            None if !key.text.is_ascii() => LOOK_ALIKE.to_owned(),
            None => "the levels are `L1`, `L2`, `L3` and `L4`".to_owned(),
        };
        let found = Diagnostic::new(Rule::UnknownLevel, self.span(key), message);
        let found = found.label("no such level").help(help);
        self.report(self.with_replacement(found, key, level.map(Level::as_str)));
        level
    }

    /// Reads a level whose value has the wrong shape.
    fn read_invalid_level(
        &mut self,
        level: Level,
        key: &MappingKey<'a>,
        value: YamlToken<'a>,
    ) -> Result<(), SyntaxError> {
        if matches!(value.kind, TokenKind::Scalar(..)) && self.scalar(&value).is_null() {
            self.report_empty(Rule::EmptyLevel, key, &format!("`{level}` lists no repository"));
            return Ok(());
        }
        let empty_list = level == Level::L3 && matches!(value.kind, TokenKind::ListStart);
        let (wants, help) = if level == Level::L3 {
            ("a mapping of devices", "list devices under `L3`, and repositories under each device")
        } else {
            ("a list of repositories", "begin each line with `- `")
        };
        let message = format!("`{level}` is {}, not {wants}", kind_name(&value));
        if empty_list {
            // `L3: []` is how an empty level is often written.
            let open = value.bytes.clone();
            let first = self.next()?;
            if matches!(first.kind, TokenKind::ListEnd) {
                self.report_empty(Rule::EmptyLevel, key, "`L3` lists no repository");
                return Ok(());
            }
            let span = self.skip_rest(open, first)?;
            self.report_shape(span, message, help);
            return Ok(());
        }
        self.wrong_shape(value, message, help)
    }

    fn report_empty(&mut self, rule: Rule, key: &MappingKey<'_>, message: &str) {
        let span = self.span(&key.scalar);
        self.report(Diagnostic::new(rule, span, message).label("empty").help("remove it"));
    }

    /// Reads the list of L1, L2 or L4.
    fn read_list(&mut self, level: Level, key: &MappingKey<'a>) -> Result<(), SyntaxError> {
        let section = EntrySection { level, device: None };
        let mut items = 0;
        loop {
            let item = self.next()?;
            match item.kind {
                TokenKind::ListEnd => break,
                TokenKind::Scalar(..) => {
                    let name = self.scalar(&item);
                    self.read_entry(&section, &name, false, None)?;
                }
                TokenKind::MapStart => self.read_item_mapping(&section, &item)?,
                _ => {
                    let message = format!("an item of `{level}` is {}", kind_name(&item));
                    self.wrong_shape(item, message, "write `owner/repo`, one per line")?;
                }
            }
            items += 1;
        }
        if items == 0 {
            self.report_empty(Rule::EmptyLevel, key, &format!("`{level}` lists no repository"));
        }
        Ok(())
    }

    /// Reads an item that is a mapping. Its only key is the repository.
    fn read_item_mapping(
        &mut self,
        section: &EntrySection,
        item: &YamlToken<'a>,
    ) -> Result<(), SyntaxError> {
        let mut keys: Vec<(String, Range<usize>)> = Vec::new();
        self.read_mapping(|reader, key| {
            let field = key.index > 0 && matches!(&*key.scalar.text, "oncalls" | "events");
            if !key.duplicate {
                keys.push((key.scalar.text.to_string(), key.scalar.bytes.clone()));
            }
            let value = reader.next()?;
            if field {
                return reader.skip(value).map(drop);
            }
            reader.read_entry(section, &key.scalar, key.duplicate, Some(value))
        })?;
        let (span, second) = match keys.as_slice() {
            [] => (item.bytes.start..item.bytes.end + 1, None),
            [_] => return Ok(()),
            [(_, first), second, ..] => (item.bytes.start..first.end, Some(second)),
        };
        let message = if second.is_some() { "an item has two keys" } else { "an item is empty" };
        let mut found = Diagnostic::new(Rule::WrongShape, self.source.span(span), message)
            .help("each item is one repository; begin it with `- `");
        if let Some((name, bytes)) = second {
            let message = "second key here";
            found = found.related(self.source.span(bytes.clone()), message, message);
            if matches!(name.as_str(), "oncalls" | "events") {
                found = found.help(format!("indent `{name}` deeper than the repository"));
            }
        }
        self.report(found);
        Ok(())
    }

    /// Reads the mapping of L3 from devices to repositories.
    fn read_devices(&mut self, level: &MappingKey<'a>) -> Result<(), SyntaxError> {
        let mut seen: HashMap<Device, SourceSpan> = HashMap::new();
        let count = self.read_mapping(|reader, key| {
            let span = reader.span(&key.scalar);
            let device = reader.parse_device(&key.scalar);
            if let Some(device) = device.as_ref().filter(|_| !key.duplicate) {
                if let Some(first) = seen.get(device) {
                    let message = format!(
                        "the devices `{device}` and {} are the same",
                        reader.span_text(first)
                    );
                    reader.report(
                        Diagnostic::new(Rule::DuplicateDevice, span.clone(), message)
                            .label("only differs in case")
                            .related(first.clone(), "first listed here", "first listed here")
                            .help("labels ignore case; list the repositories under one of them"),
                    );
                } else {
                    seen.insert(device.clone(), span.clone());
                }
            }
            let section =
                EntrySection { level: Level::L3, device: device.map(|device| (device, span)) };
            let value = reader.next()?;
            reader.read_device_repositories(&section, &key, value)
        })?;
        if count == 0 {
            self.report_empty(Rule::EmptyLevel, level, "`L3` lists no repository");
        }
        Ok(())
    }

    fn parse_device(&mut self, key: &ScalarNode<'_>) -> Option<Device> {
        if self.report_non_string(key, "device") {
            return None;
        }
        match Device::new(&key.text) {
            Ok(device) => Some(device),
            Err(why) => {
                let message = format!("{} can't be a device: {why}", show(&key.text));
                let found = Diagnostic::new(Rule::InvalidDevice, self.span(key), message);
                self.report(found.label("not a device").help(
                    "a device is part of the label `ciflow/crcr/<device>`, such as `xpu` or `npu`",
                ));
                None
            }
        }
    }

    fn read_device_repositories(
        &mut self,
        section: &EntrySection,
        device: &MappingKey<'a>,
        value: YamlToken<'a>,
    ) -> Result<(), SyntaxError> {
        let name = show(&device.scalar.text);
        let empty = format!("the device {name} lists no repository");
        match value.kind {
            TokenKind::MapStart => {
                let count = self.read_mapping(|reader, key| {
                    let value = reader.next()?;
                    reader.read_entry(section, &key.scalar, key.duplicate, Some(value))
                })?;
                if count == 0 {
                    self.report_empty(Rule::EmptyDevice, device, &empty);
                }
                Ok(())
            }
            TokenKind::Scalar(..) if self.scalar(&value).is_null() => {
                self.report_empty(Rule::EmptyDevice, device, &empty);
                Ok(())
            }
            _ => {
                let what = kind_name(&value);
                let message = format!("the device {name} is {what}, not a mapping of repositories");
                self.wrong_shape(value, message, "write `owner/repo: [oncall]`, one per line")
            }
        }
    }

    /// Reads a mapping after its start token. `each` must read the value of its key. Reports duplicate keys,
    /// merge keys and keys that aren't scalars. Returns the number of keys.
    pub(crate) fn read_mapping(
        &mut self,
        mut each: impl FnMut(&mut Self, MappingKey<'a>) -> Result<(), SyntaxError>,
    ) -> Result<usize, SyntaxError> {
        let mut seen: HashMap<String, Range<usize>> = HashMap::new();
        let mut count = 0;
        loop {
            let token = self.next()?;
            match token.kind {
                TokenKind::MapEnd => return Ok(count),
                TokenKind::Scalar(..) => {}
                TokenKind::Alias => {
                    self.skip(token)?;
                    let value = self.next()?;
                    self.skip(value)?;
                    count += 1;
                    continue;
                }
                _ => {
                    let message = format!("a key is {}", kind_name(&token));
                    self.wrong_shape(token, message, "a key is a name")?;
                    let value = self.next()?;
                    self.skip(value)?;
                    count += 1;
                    continue;
                }
            }
            let scalar = self.scalar(&token);
            if scalar.plain && scalar.text == "<<" {
                self.report_merge_key(&scalar)?;
                count += 1;
                continue;
            }
            let first = seen.get(&*scalar.text).cloned();
            let duplicate = first.is_some();
            if let Some(first) = first {
                let message = format!("the key {} occurs twice", show(&scalar.text));
                let found = Diagnostic::new(Rule::DuplicateKey, self.span(&scalar), message)
                    .label("again here")
                    .related(self.source.span(first), "first here", "first here")
                    .help("some YAML parsers silently keep only the last one; merge them");
                self.report(found);
            } else {
                seen.insert(scalar.text.to_string(), scalar.bytes.clone());
            }
            each(self, MappingKey { scalar, duplicate, index: count })?;
            count += 1;
        }
    }

    fn report_merge_key(&mut self, key: &ScalarNode<'_>) -> Result<(), SyntaxError> {
        let found = Diagnostic::new(Rule::Alias, self.span(key), "merge keys aren't supported");
        self.report(found.label("merge key").help("write all entries"));
        let value = self.next()?;
        if !matches!(value.kind, TokenKind::Alias) {
            self.skip(value)?;
        }
        Ok(())
    }

    /// The next token. Reports and skips tags and anchors.
    pub(crate) fn next(&mut self) -> Result<YamlToken<'a>, SyntaxError> {
        loop {
            let token = self.yaml.next()?;
            if let Some(tag) = &token.tag {
                self.report_unsupported(
                    tag.clone(),
                    "tags aren't supported",
                    "tag",
                    "remove it, or quote the name",
                );
            }
            if !matches!(token.kind, TokenKind::Anchor) {
                self.check_tabs(&token);
                if self.begins_with_at_sign(&token) {
                    self.report(syntax::at_sign(self.source, token.bytes.start));
                }
                return Ok(token);
            }
            self.report_unsupported(token.bytes, "anchors aren't supported", "anchor", "remove it");
        }
    }

    fn check_tabs(&mut self, token: &YamlToken<'_>) {
        if self.read_to < token.bytes.start {
            let tabs = syntax::tabs(self.source, self.read_to..token.bytes.start);
            self.findings.extend(tabs);
        }
        self.read_to = self.read_to.max(token.bytes.end);
    }

    fn report_unsupported(&mut self, bytes: Range<usize>, message: &str, label: &str, help: &str) {
        let span = self.source.span(bytes);
        self.report(Diagnostic::new(Rule::Alias, span, message).label(label).help(help));
    }

    /// Skips a node after its first token. Returns its range.
    pub(crate) fn skip(&mut self, first: YamlToken<'a>) -> Result<Range<usize>, SyntaxError> {
        if first.nesting() == 0 {
            if matches!(first.kind, TokenKind::Alias) {
                let help = "write the name itself";
                self.report_unsupported(
                    first.bytes.clone(),
                    "aliases aren't supported",
                    "alias",
                    help,
                );
            }
            return Ok(first.bytes);
        }
        let next = self.next()?;
        self.skip_rest(first.bytes, next)
    }

    /// Skips the rest of a collection that begins at `start`, beginning with its token `next`. Returns the
    /// range of its first line.
    fn skip_rest(
        &mut self,
        start: Range<usize>,
        mut next: YamlToken<'a>,
    ) -> Result<Range<usize>, SyntaxError> {
        let line = self.source.position(start.start).line;
        let mut end = start.end;
        let mut depth = 1;
        loop {
            depth += next.nesting();
            if self.source.position(next.bytes.start).line == line {
                end = end.max(next.bytes.end.min(self.line_end(line)));
            }
            if depth == 0 {
                return Ok(start.start..end.max(start.start));
            }
            if matches!(next.kind, TokenKind::Alias) {
                self.skip(next)?;
            }
            next = self.next()?;
        }
    }

    fn line_end(&self, line: usize) -> usize {
        let bytes = self.source.lines(line, line);
        let text = &self.source.text()[bytes.clone()];
        bytes.start + text.trim_end().len()
    }

    /// Reports and skips a value of the wrong shape. Aliases are reported as such.
    pub(crate) fn wrong_shape(
        &mut self,
        value: YamlToken<'a>,
        message: impl Into<String>,
        help: &str,
    ) -> Result<(), SyntaxError> {
        let is_alias = matches!(value.kind, TokenKind::Alias);
        let bytes = self.skip(value)?;
        if !is_alias {
            self.report_shape(bytes, message, help);
        }
        Ok(())
    }

    fn report_shape(&mut self, bytes: Range<usize>, message: impl Into<String>, help: &str) {
        let end = bytes.end.min(self.line_end(self.source.position(bytes.start).line));
        let span = self.source.span(bytes.start..end.max(bytes.start));
        self.report(Diagnostic::new(Rule::WrongShape, span, message).help(help));
    }

    /// Reports a name that YAML doesn't read as a string. Returns whether that is so.
    pub(crate) fn report_non_string(&mut self, name: &ScalarNode<'_>, what: &str) -> bool {
        let Some(kind) = scalar::not_a_string(&name.text).filter(|_| name.plain) else {
            return false;
        };
        let found = if name.bytes.is_empty() {
            let span = self.source.span(self.marker_before(name.bytes.start));
            let message = format!("the {what} is missing: YAML reads null");
            Diagnostic::new(Rule::NotAString, span, message)
                .label("no name after this")
                .help("add a name, or remove this")
        } else {
            let text = show(&name.text);
            let message = format!("YAML reads {text} as {kind}, not as the name of a {what}");
            Diagnostic::new(Rule::NotAString, self.span(name), message).label(kind).help(match what
            {
                "repository" => "write `owner/repo`".to_owned(),
                _ => format!("put a name like this in quotes: \"{}\"", text.trim_matches('`')),
            })
        };
        self.report(found);
        true
    }

    /// The `-` or `?` before an empty node, or the position itself.
    fn marker_before(&self, at: usize) -> Range<usize> {
        let text = self.source.text();
        match text[..at].trim_end_matches([' ', '\t']).char_indices().next_back() {
            Some((before, '-' | '?' | ':' | ',')) => before..before + 1,
            _ => at..at,
        }
    }

    /// The scalar of a token. Removes a leading `@`, which has been reported.
    pub(crate) fn scalar(&self, token: &YamlToken<'a>) -> ScalarNode<'a> {
        let TokenKind::Scalar(text, plain) = &token.kind else {
            return ScalarNode { text: "".into(), plain: false, bytes: token.bytes.clone() };
        };
        let plain = *plain && token.tag.is_none();
        let Some(mask) = self.mask.filter(|mask| text.contains(*mask)) else {
            return ScalarNode { text: text.clone(), plain, bytes: token.bytes.clone() };
        };
        let text = text.replace(mask, "@");
        if self.begins_with_at_sign(token) {
            let bytes = token.bytes.start + 1..token.bytes.end;
            return ScalarNode { text: text[1..].to_owned().into(), plain: false, bytes };
        }
        ScalarNode { text: text.into(), plain, bytes: token.bytes.clone() }
    }

    fn begins_with_at_sign(&self, token: &YamlToken<'_>) -> bool {
        matches!(token.kind, TokenKind::Scalar(_, true))
            && self.source.text()[token.bytes.clone()].starts_with('@')
    }

    /// For a scalar of several lines, the span ends with the first line.
    pub(crate) fn span(&self, scalar: &ScalarNode<'_>) -> SourceSpan {
        let Range { start, end } = scalar.bytes;
        if !self.source.text()[start..end].contains(['\n', '\r']) {
            return self.source.span(start..end);
        }
        let end = end.min(self.line_end(self.source.position(start).line)).max(start);
        self.source.span(start..end)
    }

    /// The text of a span, for messages.
    fn span_text(&self, span: &SourceSpan) -> String {
        show(&self.source.text()[span.bytes.clone()])
    }

    pub(crate) fn report(&mut self, diagnostic: Diagnostic) {
        self.findings.push(diagnostic);
    }
}

/// Describes the kind of a value in messages.
pub(crate) fn kind_name(token: &YamlToken<'_>) -> String {
    match &token.kind {
        TokenKind::ListStart => "a list".to_owned(),
        TokenKind::MapStart => "a mapping".to_owned(),
        TokenKind::Scalar(text, true) => match scalar::not_a_string(text) {
            Some(kind) => kind.to_owned(),
            None => "a text".to_owned(),
        },
        _ => "a text".to_owned(),
    }
}
