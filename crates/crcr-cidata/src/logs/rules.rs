//! Rules that find the line of a log that explains a failure.
//!
//! ```toml
//! extends = "starter"        # the rules of `crcr` come after those of this file
//!
//! [[rule]]                   # of the rules that match a line, the first one decides
//! name = "out of disk space"
//! category = "infrastructure"
//! pattern = 'No space left on device'
//! pick = "first"             # or "last": which line, if several match; without it the likeliest
//! kind = "match"             # or "ignore": a line that no rule above matches isn't the cause
//! scope = "log"              # or "failing-section", or "hint"
//! examples = ["cp: write error: No space left on device"]
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Span, meta};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::Hir;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::cleaner::{cut_text, output_of_tool};
use super::line_marks::{LINE_MARKS, LineMarks};
use super::literal_search::{LiteralHits, LiteralSearch};
use super::literals::{required_literals, within_line};

/// The rules that `crcr` comes with.
pub const STARTER_RULES: &str = include_str!("starter.toml");
/// The category of rules that say only that something failed, such as the exit code: a line that
/// a green run doesn't have is preferred to theirs.
pub const LAST_RESORT: &str = "last-resort";

const MAX_FILE_BYTES: usize = 1024 * 1024;
const MAX_RULES: usize = 1000;
const MAX_PATTERN_BYTES: usize = 2000;
const MAX_NAME_CHARS: usize = 100;
/// What one pattern's automaton takes at most.
const MAX_COMPILED_BYTES: usize = 512 * 1024;
/// Where the lazy automaton of one rule keeps its states.
const RULE_CACHE_BYTES: usize = 128 * 1024;
const MAX_CAPTURE_BYTES: usize = 500;
const MAX_CAPTURES: usize = 16;
/// The same for the automaton of all rules without a literal.
const SHARED_CACHE_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    First,
    Last,
    /// The one that most speaks for; the last one where nothing but the rule is known.
    Best,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleKind {
    Match,
    /// A line that it matches is never the cause.
    Ignore,
}

/// How far a match is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleScope {
    /// Anywhere in the log; outside failing sections only if nothing specific is in one, or if the runner reports it.
    Log,
    /// In a section that failed, where nothing but another rule above it can win over it.
    FailingSection,
    /// It names the line, and is one reason among others to choose it.
    Hint,
}

#[derive(Debug, Clone)]
pub struct LogRule {
    pub name: String,
    pub category: String,
    pub pattern: String,
    pub pick: Pick,
    pub kind: RuleKind,
    pub scope: RuleScope,
    /// Lines that the rule is there for.
    pub examples: Vec<String>,
    /// The rule's line in its file, counted from 1.
    pub source_line: usize,
    /// Few rules are ever tried on a log, and compiling all takes a third of the time of a log of 100 MB.
    compiled: OnceLock<meta::Regex>,
    hir: Arc<Hir>,
    literals: Option<Vec<Vec<u8>>>,
}

impl LogRule {
    pub fn is_match(&self, line: &str) -> bool {
        self.regex().is_match(line)
    }

    pub(crate) fn regex(&self) -> &meta::Regex {
        self.compiled.get_or_init(|| compile(&self.hir).expect("it was tried, or is tested"))
    }

    /// Whether the whole log has to be searched for the rule, because no text is in all its matches.
    pub fn is_without_literal(&self) -> bool {
        self.literals.is_none() && self.is_searched_everywhere()
    }

    /// What its capture groups took of a line, or the whole match if it has none; and where that starts.
    pub(crate) fn captures(&self, line: &[u8]) -> (Vec<String>, usize) {
        let mut groups = self.regex().create_captures();
        self.regex().captures(line, &mut groups);
        let (mut line, mut start) = (line, 0);
        if !groups.is_match()
            && let Some(unprefixed) = output_of_tool(line)
        {
            start = line.len() - unprefixed.len();
            line = unprefixed;
            self.regex().captures(line, &mut groups);
        }
        let text = |span: Span| cut_text(&line[span.range()], MAX_CAPTURE_BYTES);
        let mut captures: Vec<String> =
            groups.iter().skip(1).flatten().take(MAX_CAPTURES).map(text).collect();
        let whole = groups.get_group(0);
        if captures.is_empty() {
            captures.extend(whole.map(text));
        }
        (captures, start + whole.map_or(0, |span| span.start))
    }

    /// Whether a match decides wherever the rule counts.
    pub(crate) fn is_specific(&self) -> bool {
        self.kind == RuleKind::Match
            && self.scope != RuleScope::Hint
            && self.category != LAST_RESORT
    }

    /// Whether every line of the log is tried, and not only those that may explain a failure anyway.
    pub(crate) fn is_searched_everywhere(&self) -> bool {
        self.kind == RuleKind::Match && self.scope == RuleScope::Log
    }
}

/// One mistake in a file of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFinding {
    pub line: usize,
    pub message: String,
}

impl fmt::Display for RuleFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// Rules by priority, and the automata that find the lines to try them on.
#[derive(Debug, Clone)]
pub struct RuleSet {
    pub(crate) rules: Vec<LogRule>,
    /// Literals of all rules, in lower case, and the words of [`LINE_MARKS`].
    pub(crate) literals: LiteralSearch,
    /// For each literal, the rules that need it.
    rules_of_literal: Vec<Vec<u16>>,
    /// The same, without the rules that are tried for the most promising lines alone.
    pub(crate) searched_rules_of_literal: Vec<Vec<u16>>,
    /// For each literal, what it says about its line.
    pub(crate) marks_of_literal: Vec<LineMarks>,
    /// Rules that the whole log has to be searched for.
    pub(crate) without_literal: Vec<u16>,
    /// Rules without a literal that are tried on every line that another rule may match.
    pub(crate) tried_with_others: Vec<u16>,
    /// Matches where one of `without_literal` does; `None` if there are none.
    pub(crate) any_without_literal: Option<meta::Regex>,
}

impl RuleSet {
    /// The rules that `crcr` comes with.
    pub fn starter() -> Self {
        Self::read(RuleReader::starter()).unwrap_or_else(|findings| {
            unreachable!("the starter rules are tested: {}", findings[0])
        })
    }

    /// Reads a file of rules. All mistakes are reported at once.
    pub fn parse(text: &str) -> Result<Self, Vec<RuleFinding>> {
        if text.len() > MAX_FILE_BYTES {
            let message = format!("the file is larger than {MAX_FILE_BYTES} bytes");
            return Err(vec![RuleFinding { line: 1, message }]);
        }
        Self::read(RuleReader { text, is_tested: false, findings: vec![] })
    }

    fn read(mut reader: RuleReader<'_>) -> Result<Self, Vec<RuleFinding>> {
        let mut rules = reader.read();
        if reader.findings.is_empty() && rules.is_empty() {
            reader.find(0, "there is no `[[rule]]`".to_owned());
        }
        if rules.len() > MAX_RULES {
            reader.find(0, format!("there are {} rules, {MAX_RULES} are allowed", rules.len()));
            rules.clear();
        }
        let mut findings = reader.findings;
        if findings.is_empty() {
            match Self::with_automata(rules) {
                Ok(set) => return Ok(set),
                Err(message) => findings.push(RuleFinding { line: 1, message }),
            }
        }
        findings.sort_by_key(|finding| finding.line);
        Err(findings)
    }

    pub fn rules(&self) -> &[LogRule] {
        &self.rules
    }

    /// The first rule that matches a line: the one that decides about it.
    pub(crate) fn deciding_rule(&self, line: &[u8]) -> Option<&LogRule> {
        let unprefixed = output_of_tool(line);
        let mut text = Vec::with_capacity(2 * line.len() + 3);
        for line in std::iter::once(line).chain(unprefixed) {
            text.push(b'\n');
            text.extend_from_slice(line);
        }
        text.push(b'\n');
        let mut candidates: Vec<u16> = self.tried_with_others.clone();
        candidates.extend(&self.without_literal);
        let mut hits = LiteralHits::default();
        self.literals.search(&text, &mut hits);
        for literal in hits.iter().flat_map(|hit| self.literals.literals_of(hit)) {
            candidates.extend(&self.rules_of_literal[literal]);
        }
        candidates.sort_unstable();
        candidates.dedup();
        let mut rules = candidates.iter().map(|&index| &self.rules[usize::from(index)]);
        rules.find(|rule| {
            rule.regex().is_match(line)
                || unprefixed.is_some_and(|line| rule.regex().is_match(line))
        })
    }

    /// The place of a rule in the order of priority.
    pub(crate) fn priority(&self, rule: &LogRule) -> usize {
        self.rules.iter().position(|other| other.name == rule.name).unwrap_or(usize::MAX)
    }

    fn with_automata(rules: Vec<LogRule>) -> Result<Self, String> {
        let mut literals: Vec<&[u8]> = vec![];
        let mut rules_of_literal: Vec<Vec<u16>> = vec![];
        let mut marks_of_literal: Vec<LineMarks> = vec![];
        let mut known: HashMap<&[u8], usize> = HashMap::new();
        let mut place_of = |literal| {
            *known.entry(literal).or_insert_with(|| {
                literals.push(literal);
                rules_of_literal.push(vec![]);
                marks_of_literal.push(LineMarks::default());
                literals.len() - 1
            })
        };
        let places: Vec<usize> =
            LINE_MARKS.iter().map(|(word, _)| place_of(word.as_bytes())).collect();
        let of_rules: Vec<Option<Vec<usize>>> = rules
            .iter()
            .map(|rule| {
                let own = rule.literals.as_ref()?;
                Some(own.iter().map(|literal| place_of(literal)).collect())
            })
            .collect();
        for (place, (_, marks)) in places.into_iter().zip(LINE_MARKS) {
            marks_of_literal[place] |= *marks;
        }
        let (mut without_literal, mut tried_with_others) = (vec![], vec![]);
        for (index, (rule, places)) in (0_u16..).zip(rules.iter().zip(of_rules)) {
            let Some(places) = places else {
                let list = match rule.is_searched_everywhere() {
                    true => &mut without_literal,
                    false => &mut tried_with_others,
                };
                list.push(index);
                continue;
            };
            for place in places {
                rules_of_literal[place].push(index);
                if rule.kind == RuleKind::Match {
                    marks_of_literal[place] |= LineMarks::OF_A_RULE;
                }
                if rule.is_specific() {
                    marks_of_literal[place] |= LineMarks::OF_A_SPECIFIC_RULE;
                }
            }
        }
        let hirs: Vec<&Hir> =
            without_literal.iter().map(|&r| &*rules[usize::from(r)].hir).collect();
        // Both at once: whoever reads a log waits for them.
        let (literals, any_without_literal) = std::thread::scope(|scope| {
            let literals = scope.spawn(|| LiteralSearch::new(&literals));
            let config = config(SHARED_CACHE_BYTES).which_captures(WhichCaptures::Implicit);
            let build = || {
                let regex = meta::Builder::new().configure(config).build_many_from_hir(&hirs);
                let count = hirs.len();
                regex.map_err(|_| {
                    format!("the {count} rules without a literal are too large together")
                })
            };
            let any_without_literal = (!hirs.is_empty()).then(build).transpose();
            (literals.join().expect("building it doesn't panic"), any_without_literal)
        });
        let literals = literals
            .map_err(|error| format!("the literals of all rules are too large: {error}"))?;
        let any_without_literal = any_without_literal?;
        let is_searched = |rule: &&u16| {
            let rule = &rules[usize::from(**rule)];
            rule.kind == RuleKind::Ignore || rule.is_searched_everywhere()
        };
        let searched = |of: &Vec<u16>| of.iter().filter(is_searched).copied().collect();
        let searched_rules_of_literal = rules_of_literal.iter().map(searched).collect();
        Ok(Self {
            rules,
            literals,
            rules_of_literal,
            searched_rules_of_literal,
            marks_of_literal,
            without_literal,
            tried_with_others,
            any_without_literal,
        })
    }
}

#[expect(clippy::result_large_err, reason = "it is told in other words at once")]
fn compile(hir: &Hir) -> Result<meta::Regex, meta::BuildError> {
    meta::Builder::new().configure(config(RULE_CACHE_BYTES)).build_from_hir(hir)
}

fn config(cache: usize) -> meta::Config {
    // Rules are tried on lines that have one of their literals, and groups are asked for once a log, so neither a
    // search for literals nor whole automata pay.
    meta::Config::new()
        .utf8_empty(false)
        .auto_prefilter(false)
        .dfa(false)
        .hybrid_cache_capacity(cache)
        .onepass(false)
        .nfa_size_limit(Some(if cache == RULE_CACHE_BYTES {
            MAX_COMPILED_BYTES
        } else {
            16 * MAX_COMPILED_BYTES
        }))
        .pool_capacity(4)
}

struct RuleReader<'t> {
    text: &'t str,
    /// Whether all patterns are known to compile, as those of the starter rules.
    is_tested: bool,
    findings: Vec<RuleFinding>,
}

impl RuleReader<'_> {
    fn starter() -> RuleReader<'static> {
        RuleReader { text: STARTER_RULES, is_tested: true, findings: vec![] }
    }

    fn find(&mut self, offset: usize, message: String) {
        let line = self.line_at(offset);
        self.findings.push(RuleFinding { line, message });
    }

    fn line_at(&self, offset: usize) -> usize {
        memchr::memchr_iter(b'\n', &self.text.as_bytes()[..offset.min(self.text.len())]).count() + 1
    }

    fn read(&mut self) -> Vec<LogRule> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            self.find(offset, error.message().to_owned());
        }
        let mut rules: Vec<LogRule> = vec![];
        let mut extends_starter = false;
        for (key, value) in document.get_ref() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("rule", DeValue::Array(entries)) => {
                    let entries: Vec<&Spanned<DeValue<'_>>> = entries.iter().collect();
                    rules.extend(self.rules(&entries));
                }
                ("extends", DeValue::String(name)) if name == "starter" => extends_starter = true,
                ("rule", _) => {
                    self.find(value.span().start, "write rules as `[[rule]]`".to_owned());
                }
                ("extends", _) => {
                    let message = "`extends` can only be \"starter\"".to_owned();
                    self.find(value.span().start, message);
                }
                (other, _) => {
                    self.find(key.span().start, format!("`{other}` isn't known here"));
                }
            }
        }
        let mut lines = HashMap::new();
        for rule in &rules {
            if let Some(first) = lines.insert(&rule.name, rule.source_line) {
                let message =
                    format!("`{}` is the name of the rule in line {first}, too", rule.name);
                self.findings.push(RuleFinding { line: rule.source_line, message });
            }
        }
        if extends_starter {
            let own: Vec<String> = rules.iter().map(|rule| rule.name.clone()).collect();
            let mut starter = RuleReader::starter();
            // A rule of the file replaces the one of the same name.
            rules.extend(starter.read().into_iter().filter(|rule| !own.contains(&rule.name)));
        }
        rules
    }

    /// Half of them are read by another thread: those that `crcr` comes with take 30 ms, as long as 10 MB of a log.
    fn rules(&mut self, entries: &[&Spanned<DeValue<'_>>]) -> Vec<LogRule> {
        let (text, is_tested) = (self.text, self.is_tested);
        let read = |entries: &[&Spanned<DeValue<'_>>]| {
            let mut reader = RuleReader { text, is_tested, findings: vec![] };
            let rules: Vec<LogRule> =
                entries.iter().filter_map(|entry| reader.rule(entry)).collect();
            (rules, reader.findings)
        };
        let (first, second) = entries.split_at(entries.len() / 2);
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| read(first));
            let second = read(second);
            (first.join().expect("reading rules doesn't panic"), second)
        });
        self.findings.extend(first.1.into_iter().chain(second.1));
        first.0.into_iter().chain(second.0).collect()
    }

    /// `None` if something is wrong with the rule, which is a finding then.
    fn rule(&mut self, entry: &Spanned<DeValue<'_>>) -> Option<LogRule> {
        let start = entry.span().start;
        let known_before = self.findings.len();
        let DeValue::Table(table) = entry.get_ref() else {
            self.find(start, "write rules as `[[rule]]`".to_owned());
            return None;
        };
        let (mut name, mut category, mut pattern) = (None, None, None);
        let (mut pick, mut kind, mut examples) = (Pick::Best, RuleKind::Match, vec![]);
        let mut scope = RuleScope::Log;
        for (key, value) in table {
            let at = value.span().start;
            let text = value.get_ref().as_str();
            match (key.get_ref().as_ref(), text) {
                ("name", Some(text)) => name = self.label("name", at, text),
                ("category", Some(text)) => category = self.label("category", at, text),
                ("pattern", Some(text)) => pattern = Some((at, text.to_owned())),
                ("pick", Some("first")) => pick = Pick::First,
                ("pick", Some("last")) => pick = Pick::Last,
                ("pick", _) => self.find(at, "`pick` is \"first\" or \"last\"".to_owned()),
                ("kind", Some("match")) => kind = RuleKind::Match,
                ("kind", Some("ignore")) => kind = RuleKind::Ignore,
                ("kind", _) => self.find(at, "`kind` is \"match\" or \"ignore\"".to_owned()),
                ("scope", Some("log")) => scope = RuleScope::Log,
                ("scope", Some("failing-section")) => scope = RuleScope::FailingSection,
                ("scope", Some("hint")) => scope = RuleScope::Hint,
                ("scope", _) => {
                    let message = "`scope` is \"log\", \"failing-section\" or \"hint\"";
                    self.find(at, message.to_owned());
                }
                ("examples", None) if value.get_ref().is_array() => {
                    for example in value.get_ref().as_array().into_iter().flat_map(|a| a.iter()) {
                        match example.get_ref().as_str() {
                            Some(line) => examples.push(line.to_owned()),
                            None => {
                                let at = example.span().start;
                                self.find(at, "an example is a line in quotes".to_owned());
                            }
                        }
                    }
                }
                ("examples", _) => self.find(at, "`examples` is a list of lines".to_owned()),
                (known @ ("name" | "category" | "pattern"), None) => {
                    self.find(at, format!("`{known}` isn't text"));
                }
                (other, _) => {
                    self.find(key.span().start, format!("`{other}` isn't a key of a rule"));
                }
            }
        }
        for (key, is_absent) in [
            ("name", !table.contains_key("name")),
            ("pattern", !table.contains_key("pattern")),
            ("category", !table.contains_key("category") && kind == RuleKind::Match),
        ] {
            if is_absent {
                self.find(start, format!("the rule has no `{key}`"));
            }
        }
        let (at, pattern) = pattern?;
        let hir = self.parse_pattern(at, &pattern);
        if self.findings.len() > known_before {
            return None;
        }
        let hir = hir?;
        Some(LogRule {
            name: name?,
            category: category.unwrap_or_default(),
            pick,
            kind,
            scope,
            examples,
            source_line: self.line_at(start),
            literals: required_literals(&hir),
            pattern,
            compiled: OnceLock::new(),
            hir: Arc::new(hir),
        })
    }

    fn label(&mut self, key: &str, at: usize, text: &str) -> Option<String> {
        let is_fine = !text.trim().is_empty()
            && text.chars().count() <= MAX_NAME_CHARS
            && !text.chars().any(char::is_control);
        if !is_fine {
            self.find(at, format!("`{key}` is 1 to {MAX_NAME_CHARS} printable characters"));
        }
        is_fine.then(|| text.to_owned())
    }

    fn parse_pattern(&mut self, at: usize, pattern: &str) -> Option<Hir> {
        if pattern.len() > MAX_PATTERN_BYTES {
            self.find(at, format!("the pattern is longer than {MAX_PATTERN_BYTES} bytes"));
            return None;
        }
        // `\w`, `\d` and `.` for ASCII and bytes make small, fast automata. A class with other
        // characters, such as `[✓✗]`, needs Unicode.
        let mut parser = ParserBuilder::new().utf8(false).unicode(false).build();
        let mut parser_for_unicode = ParserBuilder::new().utf8(false).build();
        let parsed = match parser.parse(pattern) {
            Ok(hir) => Ok(hir),
            Err(_) => parser_for_unicode.parse(pattern),
        };
        let hir = match parsed {
            Ok(hir) => hir,
            Err(error) => {
                self.find(at, syntax_message(&error));
                return None;
            }
        };
        let Some(hir) = within_line(hir) else {
            let message = "the pattern needs a line feed; a rule sees one line at a time";
            self.find(at, message.to_owned());
            return None;
        };
        if hir.properties().minimum_len() == Some(0) {
            self.find(at, "the pattern matches every line, because it can be empty".to_owned());
            return None;
        }
        if !self.is_tested && compile(&hir).is_err() {
            let message = format!(
                "the pattern takes more than {MAX_COMPILED_BYTES} bytes when compiled; make its repetitions smaller"
            );
            self.find(at, message);
            return None;
        }
        Some(hir)
    }
}

fn syntax_message(error: &regex_syntax::Error) -> String {
    let reason = match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        other => other.to_string(),
    };
    format!("the pattern isn't a regular expression: {reason}")
}
