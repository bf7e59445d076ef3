//! Parses the entry of one repository: name, oncalls and events.

use std::collections::HashMap;
use std::ops::Range;

use super::reader::{AllowlistReader, EntrySection, EntrySpans, LOOK_ALIKE, ScalarNode, kind_name};
use super::{AllowlistEntry, InsertError};
use crate::allowlist::level::{EventKind, EventSet, Level};
use crate::diagnostic::{Diagnostic, Rule, Severity, SourceSpan};
use crate::repo::{Oncall, RepoName, RepoNameError};
use crate::yaml::display::{find_similar, show};
use crate::yaml::{SyntaxError, TokenKind, YamlToken};

#[derive(Default)]
struct EntryDetails {
    /// Set if oncalls are given.
    oncalls_span: Option<SourceSpan>,
    oncalls: Vec<(Oncall, SourceSpan)>,
    seen: HashMap<Oncall, usize>,
    events: Option<EventSet>,
}

impl<'a> AllowlistReader<'a> {
    /// `name` and the first token of `value` have been read. `duplicate`: the mapping has the same key
    /// earlier, which has been reported.
    pub(crate) fn read_entry(
        &mut self,
        section: &EntrySection,
        name: &ScalarNode<'a>,
        duplicate: bool,
        value: Option<YamlToken<'a>>,
    ) -> Result<(), SyntaxError> {
        let repo = self.parse_repo(name);
        let details = match value {
            Some(value) => self.read_details(value)?,
            None => EntryDetails::default(),
        };
        let span = self.span(name);
        self.check_oncalls(section.level, name, &span, &details);
        let Some(repo) = repo.filter(|_| !duplicate) else { return Ok(()) };
        if repo == *self.upstream {
            let message = format!("`{repo}` is the upstream repository itself");
            let found = Diagnostic::new(Rule::UpstreamListed, span, message);
            self.report(
                found.label("upstream").help("remove it; events are dispatched from there"),
            );
            return Ok(());
        }
        let (oncalls, places): (Vec<_>, _) = details.oncalls.into_iter().unzip();
        let (device, place) = section.device.clone().unzip();
        let entry = AllowlistEntry {
            repo,
            level: section.level,
            device,
            oncalls,
            events: details.events.unwrap_or(EventSet::DEFAULT),
        };
        match self.policy.insert(entry) {
            Ok(()) => self.places.push(EntrySpans { repo: span, device: place, oncalls: places }),
            Err(InsertError::Listed(repo)) => self.report_duplicate(section, &repo, span),
            // The device has been reported already.
            Err(InsertError::Device(_)) => {}
        }
        Ok(())
    }

    fn parse_repo(&mut self, name: &ScalarNode<'_>) -> Option<RepoName> {
        if self.report_non_string(name, "repository") {
            return None;
        }
        let why = match RepoName::new(&name.text) {
            Ok(repo) => return Some(repo),
            Err(why) => why,
        };
        let message = format!("{} isn't `owner/repo`: {why}", show(&name.text));
        let found = Diagnostic::new(Rule::InvalidRepository, self.span(name), message);
        let found = found.label("not a repository").help(repo_help(&name.text, &why));
        let replacement = repo_replacement(&name.text, &why);
        self.report(self.with_replacement(found, name, replacement.as_deref()));
        None
    }

    fn report_duplicate(&mut self, section: &EntrySection, repo: &RepoName, span: SourceSpan) {
        let Some(at) = self.policy.position(repo) else { return };
        let first = &self.policy.entries[at];
        let (message, before, here) = if first.level != section.level {
            (
                "at two levels",
                format!("first listed at {}", first.level),
                format!("again here, at {}", section.level),
            )
        } else if first.device != section.device.as_ref().map(|(device, _)| device.clone()) {
            ("for two devices", "first listed here".to_owned(), "again here".to_owned())
        } else {
            ("twice", "first listed here".to_owned(), "again here".to_owned())
        };
        let help = match message {
            "at two levels" => "keep the entry at the level the repository holds now",
            _ => "keep one of the entries",
        };
        let place = self.places[at].repo.clone();
        let found = Diagnostic::new(
            Rule::DuplicateRepository,
            span,
            format!("`{repo}` is listed {message}"),
        );
        self.report(found.label(here).related(place, "first listed here", before).help(help));
    }

    fn check_oncalls(
        &mut self,
        level: Level,
        name: &ScalarNode<'_>,
        repo: &SourceSpan,
        details: &EntryDetails,
    ) {
        match (&details.oncalls_span, level) {
            (Some(given), Level::L1 | Level::L2) => {
                let message = format!("oncalls have no effect at {level}");
                let found = Diagnostic::new(Rule::UnusedOncall, given.clone(), message);
                self.report(found.label("no effect here").help("add them at L3 and L4 only"));
            }
            (None, Level::L3 | Level::L4) => {
                let severity = if level == Level::L4 { Severity::Error } else { Severity::Warning };
                let message = format!("{} has no oncall at {level}", show(&name.text));
                let found = Diagnostic::new(Rule::MissingOncall, repo.clone(), message);
                self.report(
                    found
                        .severity(severity)
                        .label("no oncall")
                        .help("add at least one login or team: `[login, org/team]`"),
                );
            }
            _ => {}
        }
    }

    /// Reads oncalls, or a mapping with fields.
    fn read_details(&mut self, value: YamlToken<'a>) -> Result<EntryDetails, SyntaxError> {
        let mut details = EntryDetails::default();
        if !matches!(value.kind, TokenKind::MapStart) {
            self.read_oncalls(value, &mut details)?;
            return Ok(details);
        }
        self.read_mapping(|reader, key| {
            let value = reader.next()?;
            match &*key.scalar.text {
                "oncalls" => reader.read_oncalls(value, &mut details),
                "events" => {
                    details.events = reader.read_events(&key.scalar, value)?;
                    Ok(())
                }
                other => {
                    let near = find_similar(other, &["oncalls", "events"]);
                    let help = match near {
                        Some(near) => format!("did you mean `{near}`?"),
                        None => "the fields are `oncalls` and `events`".to_owned(),
                    };
                    let message = format!("{} isn't a field of an entry", show(other));
                    let span = reader.span(&key.scalar);
                    let found = Diagnostic::new(Rule::UnknownField, span, message);
                    let found = found.label("no such field").help(help);
                    reader.report(reader.with_replacement(found, &key.scalar, near));
                    reader.skip(value).map(drop)
                }
            }
        })?;
        Ok(details)
    }

    /// Reads a list of names, or one comma-separated string.
    fn read_oncalls(
        &mut self,
        value: YamlToken<'a>,
        details: &mut EntryDetails,
    ) -> Result<(), SyntaxError> {
        let start = value.bytes.start;
        match value.kind {
            TokenKind::Scalar(..) => {
                let scalar = self.scalar(&value);
                if scalar.is_null() {
                    return Ok(());
                }
                details.oncalls_span = Some(self.span(&scalar));
                if self.report_non_string(&scalar, "person to call") {
                    return Ok(());
                }
                let names = self.split_names(&scalar);
                if names.is_empty() {
                    details.oncalls_span = None;
                }
                for (name, bytes) in names {
                    self.parse_oncall(&name, bytes, details);
                }
                Ok(())
            }
            TokenKind::ListStart => {
                let mut end = value.bytes.end;
                let mut items = 0;
                loop {
                    let item = self.next()?;
                    if matches!(item.kind, TokenKind::ListEnd) {
                        break;
                    }
                    items += 1;
                    end = end.max(item.bytes.end);
                    self.read_oncall_item(item, details)?;
                }
                if items > 0 {
                    let span = ScalarNode { text: "".into(), plain: false, bytes: start..end };
                    details.oncalls_span = Some(self.span(&span));
                }
                Ok(())
            }
            _ => {
                let message = format!("the oncalls are {}, not names", kind_name(&value));
                details.oncalls_span = Some(self.source.span(value.bytes.clone()));
                self.wrong_shape(value, message, "write `[login, org/team]` or `login, org/team`")
            }
        }
    }

    fn read_oncall_item(
        &mut self,
        item: YamlToken<'a>,
        details: &mut EntryDetails,
    ) -> Result<(), SyntaxError> {
        if !matches!(item.kind, TokenKind::Scalar(..)) {
            let message = format!("an oncall is {}, not a name", kind_name(&item));
            return self.wrong_shape(item, message, "write `[login, org/team]`");
        }
        let scalar = self.scalar(&item);
        if !self.report_non_string(&scalar, "person to call") {
            let inside = self.unquoted_range(&scalar).filter(|bytes| !bytes.is_empty());
            let bytes = inside.unwrap_or_else(|| scalar.bytes.clone());
            self.parse_oncall(&scalar.text, bytes, details);
        }
        Ok(())
    }

    /// The range of a scalar without its quotes, unless it contains escapes.
    fn unquoted_range(&self, scalar: &ScalarNode<'_>) -> Option<Range<usize>> {
        let Range { start, end } = scalar.bytes;
        let text = self.source.text();
        [start..end, start + 1..end.saturating_sub(1)]
            .into_iter()
            .find(|range| text.get(range.clone()) == Some(&*scalar.text))
    }

    /// Adds the fix that the help text names, if the scalar stands in the file as it reads.
    pub(crate) fn with_replacement(
        &self,
        found: Diagnostic,
        scalar: &ScalarNode<'_>,
        replacement: Option<&str>,
    ) -> Diagnostic {
        match (replacement, self.unquoted_range(scalar)) {
            (Some(text), Some(bytes)) => {
                found.fix(self.source.span(bytes), text, format!("write `{text}`"))
            }
            _ => found,
        }
    }

    /// Splits a comma-separated string into names with their ranges.
    fn split_names(&self, scalar: &ScalarNode<'_>) -> Vec<(String, Range<usize>)> {
        let inside = self.unquoted_range(scalar);
        let mut at = 0;
        let mut names = Vec::new();
        for part in scalar.text.split(',') {
            let name = part.trim();
            let lead = part.len() - part.trim_start().len();
            let bytes = match &inside {
                Some(inside) => {
                    let start = inside.start + at + lead;
                    start..start + name.len()
                }
                None => scalar.bytes.clone(),
            };
            if !name.is_empty() {
                names.push((name.to_owned(), bytes));
            }
            at += part.len() + 1;
        }
        names
    }

    fn parse_oncall(&mut self, name: &str, bytes: Range<usize>, details: &mut EntryDetails) {
        let place = ScalarNode { text: name.into(), plain: false, bytes: bytes.clone() };
        let span = self.span(&place);
        let bare = name.strip_prefix('@').unwrap_or(name);
        let oncall = match Oncall::new(bare) {
            Ok(oncall) => oncall,
            Err(why) => {
                let message = format!("{} isn't a login or `org/team`: {why}", show(name));
                let help = if name.contains(',') {
                    "make each name a separate item"
                } else {
                    "write a GitHub login, or `org/team`"
                };
                let found = Diagnostic::new(Rule::InvalidOncall, span, message);
                self.report(found.label("not an oncall").help(help));
                return;
            }
        };
        if bare != name {
            let message = format!("{} would be mentioned as `@{name}`", show(name));
            let mut found = Diagnostic::new(Rule::OncallAtSign, span.clone(), message)
                .label(format!("read as `{bare}`"))
                .help("drop the `@`");
            if self.source.text().get(bytes.start..=bytes.start) == Some("@") {
                let sign = self.source.span(bytes.start..bytes.start + 1);
                found = found.fix(sign, "", "drop the `@`");
            }
            self.report(found);
        }
        if let Some(first) = details.seen.get(&oncall) {
            let first = &details.oncalls[*first].1;
            let message = format!("`{bare}` is named twice");
            let found = Diagnostic::new(Rule::DuplicateOncall, span, message).label("again here");
            self.report(
                found.related(first.clone(), "first here", "first here").help("remove one of them"),
            );
            return;
        }
        details.seen.insert(oncall.clone(), details.oncalls.len());
        details.oncalls.push((oncall, span));
    }

    fn read_events(
        &mut self,
        key: &ScalarNode<'_>,
        value: YamlToken<'a>,
    ) -> Result<Option<EventSet>, SyntaxError> {
        const HELP: &str = "write `[pull_request]`, `[nightly]` or both";
        if !matches!(value.kind, TokenKind::ListStart) {
            let message = format!("`events` is {}, not a list", kind_name(&value));
            if value.bytes.is_empty() && matches!(value.kind, TokenKind::Scalar(..)) {
                let found = Diagnostic::new(Rule::WrongShape, self.span(key), message);
                self.report(found.help(HELP));
            } else {
                self.wrong_shape(value, message, HELP)?;
            }
            return Ok(None);
        }
        let start = value.bytes;
        let mut kinds = Vec::new();
        let mut items = 0;
        loop {
            let item = self.next()?;
            match item.kind {
                TokenKind::ListEnd if items == 0 => {
                    let span = self.source.span(start.start..item.bytes.end);
                    let found = Diagnostic::new(Rule::InvalidEvent, span, "`events` lists nothing");
                    self.report(found.help(HELP));
                    return Ok(None);
                }
                TokenKind::ListEnd => return Ok(EventSet::new(kinds).ok()),
                TokenKind::Scalar(..) => {
                    let scalar = self.scalar(&item);
                    kinds.extend(self.parse_event(&scalar));
                }
                _ => {
                    let message = format!("an event is {}, not a name", kind_name(&item));
                    self.wrong_shape(item, message, HELP)?;
                }
            }
            items += 1;
        }
    }

    fn parse_event(&mut self, name: &ScalarNode<'_>) -> Option<EventKind> {
        if self.report_non_string(name, "event") {
            return None;
        }
        let text = &*name.text;
        let kind = EventKind::from_name(text);
        if kind.is_none() {
            let names = EventKind::ALL.map(EventKind::as_str);
            let near = find_similar(text, &names);
            let help = match (EventKind::from_event_name(&text.into()), near) {
                (Some(kind), _) => format!("write `{kind}`, which includes `{text}`"),
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => {
                    "the events are `pull_request`, `nightly` and `merge_group`".to_owned()
                }
            };
            let message = format!("{} isn't an event", show(text));
            let found = Diagnostic::new(Rule::InvalidEvent, self.span(name), message);
            let found = found.label("no such event").help(help);
            self.report(self.with_replacement(found, name, near));
        }
        kind
    }
}

/// The name that [`repo_help`] asks for, if it is one.
fn repo_replacement(text: &str, why: &RepoNameError) -> Option<String> {
    let name = match why {
        RepoNameError::Address(Some(name)) => name.to_string(),
        RepoNameError::ManySlashes => text.strip_suffix('/')?.to_owned(),
        RepoNameError::Suffix(suffix) => text.strip_suffix(&suffix.to_string())?.to_owned(),
        _ => return None,
    };
    RepoName::new(&name).is_ok().then_some(name)
}

/// The help text for an invalid repository name.
fn repo_help(text: &str, why: &RepoNameError) -> String {
    if text.contains([' ', '\n']) {
        let help =
            "write one name per line, without spaces, and check the indentation of the next line";
        return help.to_owned();
    }
    match why {
        RepoNameError::Address(Some(name)) => format!("write `{name}`"),
        RepoNameError::ManySlashes if text.ends_with('/') => "drop the `/` at the end".to_owned(),
        RepoNameError::OwnerChar(c) | RepoNameError::NameChar(c) if !c.is_ascii() => {
            "type the name again; this character is invisible or looks like another".to_owned()
        }
        // Such as a slash of another script, because of which a `/` seems to be missing.
        _ if !text.is_ascii() => LOOK_ALIKE.to_owned(),
        RepoNameError::OwnerChar('*') | RepoNameError::NameChar('*') => {
            "list each repository by its name: patterns such as `*` aren't supported".to_owned()
        }
        RepoNameError::OwnerChar('#') | RepoNameError::NameChar('#') => {
            "a comment needs a space before its `#`".to_owned()
        }
        RepoNameError::Suffix(suffix) => format!("drop the `{suffix}`"),
        _ => "write the name as in the address of the GitHub page: `owner/repo`".to_owned(),
    }
}
