//! Reads the file. Aliases aren't expanded, so a small file stays small.

use std::ops::Range;

use super::paths::{self, MAX_PATTERNS, PathFilter};
use super::{DispatchFilter, DownstreamConfig, Drafts, MAX_BYTES, ProbeBudget, TakenEvent};
use crate::diagnostic::{Findings, Rule, SourceText};
use crate::yaml::display::{find_similar, show};
use crate::yaml::plain::PlainYaml;
use crate::yaml::{SyntaxError, TokenKind, YamlToken, scalar, syntax};

pub(crate) const MAX_QUIET_MINUTES: u64 = 24 * 60;
pub(crate) const MAX_DISPATCHES: u64 = 100_000;
pub(crate) const MAX_PROBES: u64 = 1_000;
const SECTIONS: [&str; 2] = ["dispatch", "probes"];
const DISPATCH_KEYS: [&str; 5] = ["events", "paths", "drafts", "quiet-minutes", "max-per-day"];
const PROBE_KEYS: [&str; 2] = ["reruns-per-day", "commits-per-day"];

/// A file, with everything that is wrong with it.
#[derive(Debug, Clone)]
pub struct ParsedDownstreamFile {
    /// The text that all spans refer to.
    pub source: SourceText,
    config: DownstreamConfig,
    /// How many keys it sets.
    pub settings: usize,
    pub findings: Findings,
}

impl ParsedDownstreamFile {
    /// Reads a file, and reports all findings.
    pub fn parse(bytes: &[u8]) -> Self {
        let bounded = if bytes.len() > MAX_BYTES { b"" } else { bytes };
        let source = SourceText::new(bounded);
        let mut reader = FileReader { file: PlainYaml::new(&source), settings: 0 };
        let mut config = DownstreamConfig::default();
        if bytes.len() > MAX_BYTES {
            let help = "take broader patterns of paths";
            reader.file.findings.push(syntax::too_large(&source, MAX_BYTES, help));
        } else if let Some(found) = syntax::unreadable(bytes, &source) {
            reader.file.findings.push(found);
        } else {
            match reader.read_document() {
                Ok(root) => config = reader.config(root),
                Err(error) => {
                    let found = syntax::stopped(&source, &error, reader.file.read_to);
                    reader.file.findings.push(found);
                }
            }
        }
        let FileReader { settings, file: PlainYaml { mut findings, .. } } = reader;
        findings.sort();
        Self { config, settings, findings, source }
    }

    /// What holds. A file with an error has no effect at all: what its author meant isn't known.
    pub fn accepted(self) -> Result<DownstreamConfig, Findings> {
        if self.findings.errors() == 0 { Ok(self.config) } else { Err(self.findings) }
    }
}

/// A part of the document. The file is small, so all of it is in memory.
struct Node {
    kind: NodeKind,
    bytes: Range<usize>,
}

enum NodeKind {
    /// The flag: plain, which is neither quoted nor a block scalar.
    Scalar(String, bool),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// Was reported, or is nothing that a file has.
    Other,
}

struct FileReader<'a> {
    file: PlainYaml<'a>,
    settings: usize,
}

impl<'a> FileReader<'a> {
    /// The root; `None` if the file is empty.
    fn read_document(&mut self) -> Result<Option<Node>, SyntaxError> {
        if matches!(self.file.next()?.kind, TokenKind::End) {
            return Ok(None);
        }
        let token = self.file.next()?;
        let root = self.node(token)?;
        self.file.end()?;
        Ok(Some(root))
    }

    /// The node that begins with this token. The reader bounds how deep they are.
    fn node(&mut self, token: YamlToken<'a>) -> Result<Node, SyntaxError> {
        let mut bytes = token.bytes;
        let kind = match token.kind {
            TokenKind::Scalar(text, plain) => NodeKind::Scalar(text.into_owned(), plain),
            TokenKind::ListStart => {
                let mut items = vec![];
                loop {
                    let item = self.file.next()?;
                    if matches!(item.kind, TokenKind::ListEnd) {
                        break;
                    }
                    items.push(self.node(item)?);
                }
                NodeKind::List(items)
            }
            TokenKind::MapStart => {
                let mut pairs: Vec<(Node, Node)> = vec![];
                loop {
                    let key = self.file.next()?;
                    if matches!(key.kind, TokenKind::MapEnd) {
                        break;
                    }
                    let key = self.node(key)?;
                    let value = self.file.next()?;
                    pairs.push((key, self.node(value)?));
                }
                if let Some((key, _)) = pairs.first().filter(|_| bytes.is_empty()) {
                    bytes = key.bytes.clone();
                }
                NodeKind::Map(pairs)
            }
            TokenKind::Alias => {
                self.file.report_alias(bytes.clone());
                NodeKind::Other
            }
            _ => NodeKind::Other,
        };
        Ok(Node { kind, bytes })
    }

    fn config(&mut self, root: Option<Node>) -> DownstreamConfig {
        let mut config = DownstreamConfig::default();
        let help = "the file is a mapping with `dispatch` and `probes`";
        for (name, value) in self.mapping(root, &SECTIONS, help) {
            let help = "it is a mapping, see the example in the documentation";
            if name == "dispatch" {
                config.dispatch = self.dispatch(value, help);
            } else {
                config.probes = self.probes(value, help);
            }
        }
        config
    }

    fn dispatch(&mut self, node: Node, help: &str) -> DispatchFilter {
        let mut filter = DispatchFilter::default();
        for (name, value) in self.mapping(Some(node), &DISPATCH_KEYS, help) {
            self.settings += 1;
            match name {
                "events" => filter.events = self.events(value),
                "paths" => filter.paths = self.paths(value),
                "drafts" => filter.drafts = self.drafts(&value),
                "quiet-minutes" => {
                    let minutes = self.number(name, &value, 0..=MAX_QUIET_MINUTES);
                    filter.quiet_minutes = u32::try_from(minutes).unwrap_or_default();
                }
                _ => filter.max_per_day = Some(self.number(name, &value, 1..=MAX_DISPATCHES)),
            }
        }
        filter
    }

    fn probes(&mut self, node: Node, help: &str) -> ProbeBudget {
        let mut budget = ProbeBudget::default();
        for (name, value) in self.mapping(Some(node), &PROBE_KEYS, help) {
            self.settings += 1;
            let number = self.number(name, &value, 0..=MAX_PROBES);
            if name == "reruns-per-day" {
                budget.reruns_per_day = number;
            } else {
                budget.commits_per_day = number;
            }
        }
        budget
    }

    /// The pairs of a mapping whose keys are known, each once. What has no value is left out.
    fn mapping<'k>(
        &mut self,
        node: Option<Node>,
        keys: &[&'k str],
        help: &str,
    ) -> Vec<(&'k str, Node)> {
        let Some(node) = node else { return vec![] };
        let pairs = match node.kind {
            NodeKind::Map(pairs) => pairs,
            NodeKind::Scalar(text, true) if scalar::is_null(&text) => return vec![],
            NodeKind::Other => return vec![],
            _ => {
                self.file.report(Rule::WrongShape, node.bytes, "this isn't a mapping", help);
                return vec![];
            }
        };
        let mut found: Vec<(&str, Node)> = vec![];
        for (key, value) in pairs {
            let NodeKind::Scalar(text, _) = &key.kind else {
                self.file.report(Rule::WrongShape, key.bytes, "a key isn't a text", help);
                continue;
            };
            let Some(name) = keys.iter().find(|name| *name == text) else {
                let help = match (section_of(text), find_similar(text, keys)) {
                    (Some(section), _) => format!("indent it under `{section}`"),
                    (None, Some(similar)) => format!("did you mean `{similar}`?"),
                    (None, None) => format!("the keys here are `{}`", keys.join("`, `")),
                };
                let message = format!("{} isn't a key of the file here", show(text));
                self.file.report(Rule::UnknownField, key.bytes, message, &help);
                continue;
            };
            if found.iter().any(|(known, _)| known == name) {
                let message = format!("`{name}` stands here twice");
                self.file.report(Rule::DuplicateKey, key.bytes, message, "keep one of them");
                continue;
            }
            if matches!(&value.kind, NodeKind::Scalar(text, true) if scalar::is_null(text)) {
                continue;
            }
            found.push((name, value));
        }
        found
    }

    /// The texts of a list. An empty one would leave out everything, which nobody writes on purpose.
    fn texts(&mut self, name: &str, node: Node) -> Vec<(String, Range<usize>)> {
        let NodeKind::List(items) = node.kind else {
            let message = format!("`{name}` isn't a list");
            self.file.report(Rule::WrongShape, node.bytes, message, "write it as `[one, two]`");
            return vec![];
        };
        if items.is_empty() {
            let message = format!("an empty `{name}` would leave out everything");
            let help = "remove the key to take everything";
            self.file.report(Rule::WrongShape, node.bytes, message, help);
        }
        let mut texts = vec![];
        for item in items {
            match item.kind {
                NodeKind::Scalar(text, plain) => {
                    if let Some(kind) = scalar::not_a_string(&text).filter(|_| plain) {
                        let message =
                            format!("YAML reads {} as {kind}, not as a text", show(&text));
                        let help = "put it into quotes";
                        self.file.report(Rule::NotAString, item.bytes.clone(), message, help);
                    }
                    texts.push((text, item.bytes));
                }
                NodeKind::Other => {}
                _ => {
                    let message = format!("an item of `{name}` isn't a text");
                    self.file.report(Rule::WrongShape, item.bytes, message, "write it on one line");
                }
            }
        }
        texts
    }

    fn events(&mut self, node: Node) -> Vec<TakenEvent> {
        let names = TakenEvent::ALL.map(TakenEvent::as_str);
        let mut events = vec![];
        for (text, bytes) in self.texts("events", node) {
            match TakenEvent::from_name(&text) {
                Some(event) => events.push(event),
                None => {
                    let help = match find_similar(&text, &names) {
                        Some(similar) => format!("did you mean `{similar}`?"),
                        None => format!("the events are `{}`", names.join("`, `")),
                    };
                    let message = format!("{} isn't an event", show(&text));
                    self.file.report(Rule::InvalidEvent, bytes, message, &help);
                }
            }
        }
        events
    }

    fn paths(&mut self, node: Node) -> Option<PathFilter> {
        let whole = node.bytes.clone();
        let texts = self.texts("paths", node);
        if texts.len() > MAX_PATTERNS {
            let message = format!("the file has more than {MAX_PATTERNS} patterns");
            self.file.report(Rule::TooManyEntries, whole, message, "take broader patterns");
            return None;
        }
        if let Some((text, bytes)) = texts.first()
            && text.starts_with('!')
        {
            let message =
                "a `!` pattern leaves out what an earlier one took in, and this is the first";
            self.file.report(Rule::InvalidPattern, bytes.clone(), message, "put `**` before it");
        }
        let mut patterns = vec![];
        for (text, bytes) in texts {
            if let Some((message, help)) = paths::check(&text) {
                self.file.report(Rule::InvalidPattern, bytes, message, help);
            }
            patterns.push(text);
        }
        Some(PathFilter::new(patterns))
    }

    fn drafts(&mut self, node: &Node) -> Drafts {
        match &node.kind {
            NodeKind::Scalar(text, _) if text == "skip" => return Drafts::Skip,
            NodeKind::Scalar(text, _) if text == "dispatch" => return Drafts::Dispatch,
            NodeKind::Scalar(text, _) => {
                let message = format!("{} isn't a value of `drafts`", show(text));
                let help = "the values are `skip` and `dispatch`";
                self.file.report(Rule::InvalidDrafts, node.bytes.clone(), message, help);
            }
            _ => {
                let help = "write `skip` or `dispatch`";
                self.file.report(
                    Rule::WrongShape,
                    node.bytes.clone(),
                    "`drafts` isn't a text",
                    help,
                );
            }
        }
        Drafts::default()
    }

    fn number(&mut self, name: &str, node: &Node, bounds: std::ops::RangeInclusive<u64>) -> u64 {
        let NodeKind::Scalar(text, plain) = &node.kind else {
            let message = format!("`{name}` isn't a number");
            self.file.report(Rule::WrongShape, node.bytes.clone(), message, "write a whole number");
            return 0;
        };
        let has_digits_only = *plain && text.bytes().all(|byte| byte.is_ascii_digit());
        // YAML 1.1 reads `010` as 8, and YAML 1.2 as 10.
        let is_octal = has_digits_only && text.len() > 1 && text.starts_with('0');
        let number = text.parse().ok();
        let number =
            number.filter(|number| has_digits_only && !is_octal && bounds.contains(number));
        if number.is_none() {
            let (least, most) = (bounds.start(), bounds.end());
            let message = format!("{} isn't a whole number from {least} to {most}", show(text));
            let help = if is_octal {
                "write it without the `0` in front, which some programs read as octal".to_owned()
            } else if has_digits_only {
                "take a number within these bounds".to_owned()
            } else {
                format!("write digits only, such as `{name}: 20`")
            };
            self.file.report(Rule::InvalidNumber, node.bytes.clone(), message, &help);
        }
        number.unwrap_or_default()
    }
}

/// The section that a key belongs to.
fn section_of(key: &str) -> Option<&'static str> {
    if DISPATCH_KEYS.contains(&key) {
        Some("dispatch")
    } else {
        PROBE_KEYS.contains(&key).then_some("probes")
    }
}
