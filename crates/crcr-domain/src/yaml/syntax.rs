//! Findings about invalid YAML, worded so that the author can fix it.

use std::ops::Range;

use granit_parser::ErrorKind;

use super::{MAX_DEPTH, SyntaxError};
use crate::diagnostic::{Diagnostic, Rule, SourceText};

/// The file is over the limit and wasn't parsed.
pub(crate) fn too_large(source: &SourceText, max_bytes: usize, help: &str) -> Diagnostic {
    let message = format!("the file is larger than {} KiB", max_bytes / 1024);
    Diagnostic::new(Rule::YamlSyntax, source.span(0..0), message).help(help)
}

/// The first byte or character that YAML doesn't allow.
pub(crate) fn unreadable(bytes: &[u8], source: &SourceText) -> Option<Diagnostic> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let start = source.span(0..first_char(source.text(), 0));
        let message = "the file is UTF-16, and must be UTF-8";
        return Some(
            Diagnostic::new(Rule::YamlSyntax, start, message).help("save the file as UTF-8"),
        );
    }
    let text = source.text();
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let broken = std::str::from_utf8(bytes).err().map(|error| error.valid_up_to());
    let has_line_feeds = text.contains('\n');
    let is_hidden_break = |at: usize| {
        has_line_feeds && text[at..].starts_with('\r') && !text[at..].starts_with("\r\n")
    };
    let control = text.char_indices().find(|(at, c)| is_forbidden(*c) || is_hidden_break(*at));
    match (broken, control) {
        (Some(at), control) if control.is_none_or(|(before, _)| at < before) => {
            let span = source.span(at..at + first_char(text, at));
            let message = format!("the byte 0x{:02X} isn't UTF-8", bytes[at]);
            Some(
                Diagnostic::new(Rule::YamlSyntax, span, message)
                    .label("not UTF-8")
                    .help("save the file as UTF-8"),
            )
        }
        (_, Some((at, c))) => {
            let span = source.span(at..at + c.len_utf8());
            let message = forbidden_message(c);
            Some(
                Diagnostic::new(Rule::YamlSyntax, span, message)
                    .label("here")
                    .help("remove it; an editor may not show it"),
            )
        }
        _ => None,
    }
}

/// Characters outside YAML's printable set, <https://yaml.org/spec/1.2.2/#51-character-set>, and those with which a comment
/// can hide an entry from whoever reviews the file.
fn is_forbidden(c: char) -> bool {
    (c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
        || matches!(c, '\u{fffe}' | '\u{ffff}')
        || is_line_break_of_1_1(c)
        || is_directional(c)
}

/// A line ends here for YAML 1.1, and goes on for YAML 1.2. <https://yaml.org/spec/1.2.2/#54-line-break-characters>
fn is_line_break_of_1_1(c: char) -> bool {
    matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Changes the order in which the text after it is shown.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn forbidden_message(c: char) -> String {
    let code = u32::from(c);
    if is_line_break_of_1_1(c) {
        return format!("U+{code:04X} ends a line for some YAML parsers, and not for others");
    }
    if is_directional(c) {
        return format!("U+{code:04X} has text shown in another order than programs read it");
    }
    if c == '\r' {
        return "U+000D without a line feed ends a line for YAML, and many editors don't show that"
            .to_owned();
    }
    let name = if c == '\0' { "NUL" } else { "a control character" };
    format!("{name} (U+{code:04X}) isn't allowed in YAML")
}

fn first_char(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(0, char::len_utf8)
}

/// The finding of an `@` at the start of a plain scalar: the mistake of the format's own example.
pub(crate) fn at_sign(source: &SourceText, at: usize) -> Diagnostic {
    let span = source.span(at..at + 1);
    Diagnostic::new(Rule::YamlSyntax, span.clone(), "a plain scalar can't begin with `@`")
        .label("YAML reserves this character")
        .help("drop the `@`, or put the name in quotes")
        .fix(span, "", "drop the `@`")
}

/// The finding of what the parser stopped at, behind a text that it has read up to `read_to`.
pub(crate) fn stopped(source: &SourceText, error: &SyntaxError, read_to: usize) -> Diagnostic {
    let text = source.text();
    if error.kind == ErrorKind::InvalidQuotedScalarIndent
        && let Some(quote) = first_quote(text, read_to..error.at)
    {
        let span = source.span(quote..quote + 1);
        return Diagnostic::new(Rule::YamlSyntax, span, "this quote isn't closed on its line")
            .label("it goes on below, without indentation")
            .help("close it, or remove it");
    }
    if is_tab(&error.kind) {
        return tab_finding(source, culprit(text, error.at.min(text.len())));
    }
    let (span, message, help) = describe(text, error);
    let label = if span.is_empty() { "the file ends here" } else { "here" };
    let mut found =
        Diagnostic::new(Rule::YamlSyntax, source.span(span), message).label(label).help(help);
    if let Some(open) = error.open.filter(|_| may_be_unclosed(&error.kind)) {
        let bracket = &text[open..=open];
        let message = format!("this `{bracket}` is still open");
        found = found.related(source.span(open..open + 1), message.clone(), message);
    }
    found
}

/// The quote that begins the next scalar in a stretch of text, behind indicators and comments.
fn first_quote(text: &str, stretch: Range<usize>) -> Option<usize> {
    let mut comment = false;
    for (at, c) in text.get(stretch.clone())?.char_indices() {
        match c {
            '\n' | '\r' => comment = false,
            '#' => comment = true,
            '"' | '\'' if !comment => return Some(stretch.start + at),
            _ => {}
        }
    }
    None
}

fn is_tab(kind: &ErrorKind) -> bool {
    use ErrorKind as E;
    matches!(
        kind,
        E::TabInBlockIndentation
            | E::TabInIndentation
            | E::TabNotAllowed
            | E::TabInPlainScalar
            | E::TabAtBlockScalarStart
    )
}

/// Whether the cause may be a bracket that is open.
fn may_be_unclosed(kind: &ErrorKind) -> bool {
    use ErrorKind as E;
    matches!(
        kind,
        E::InvalidColonPlacement
            | E::ExpectedFlowSequenceSeparator
            | E::ExpectedFlowMappingSeparator
            | E::UnexpectedEofFlowSequence
            | E::UnexpectedEofFlowMapping
            | E::BlockEntryInFlowCollection
            | E::MismatchedFlowCollectionEnd { .. }
    )
}

/// Tabs that indent or separate what comes before a token: the first of each line.
///
/// `gap` is the text between two tokens: white space, indicators and comments. YAML 1.2 allows
/// some of these tabs and readers of 1.1 don't.
pub(crate) fn tabs(source: &SourceText, gap: Range<usize>) -> Vec<Diagnostic> {
    let mut at = gap.start;
    let mut found = Vec::new();
    let mut lines = source.text()[gap].split_inclusive(['\n', '\r']).peekable();
    while let Some(line) = lines.next() {
        let content = match line.find('#') {
            Some(comment) => &line[..comment],
            None => line,
        };
        // In the last line the token itself comes after the tab, unless the file ends there.
        let more = at + line.len() < source.text().len();
        let last = lines.peek().is_none() && content.len() == line.len() && more;
        let tab = content.find('\t').filter(|tab| last || !content[*tab..].trim().is_empty());
        if let Some(tab) = tab {
            found.push(tab_finding(source, at + tab));
        }
        at += line.len();
    }
    found
}

fn tab_finding(source: &SourceText, at: usize) -> Diagnostic {
    let span = source.span(at..at + 1);
    Diagnostic::new(Rule::YamlSyntax, span, "a tab can't indent or separate")
        .label("tab")
        .help("use spaces")
}

fn describe(text: &str, error: &SyntaxError) -> (Range<usize>, String, &'static str) {
    let at = error.at.min(text.len());
    let here = at..at + first_char(text, at);
    match &error.kind {
        ErrorKind::RecursionLimitExceeded => (
            here,
            format!("the file is nested deeper than {MAX_DEPTH}"),
            "no entry needs so many levels of nesting",
        ),
        ErrorKind::UnclosedFlowCollection { open } => {
            (here, format!("this `{open}` is never closed"), "close it, or remove it")
        }
        ErrorKind::UnclosedQuotedScalar => {
            (here, "this quote is never closed".to_owned(), "close it, or remove it")
        }
        ErrorKind::UnexpectedCharacter { character } => (
            here,
            match character {
                '`' => "a plain scalar can't begin with a backquote".to_owned(),
                c => format!("a plain scalar can't begin with `{}`", c.escape_debug()),
            },
            "put the text in quotes",
        ),
        ErrorKind::MappingValueNotAllowed => (
            here,
            "a `:` isn't allowed here".to_owned(),
            "put each entry on a line of its own, or the text in quotes",
        ),
        ErrorKind::SimpleKeyExpected => no_key(text, here),
        kind => (here, format!("this isn't YAML: {kind}"), "check the lines before it, too"),
    }
}

/// A line of a mapping that isn't `key: value`, and begins with `here`.
fn no_key(text: &str, here: Range<usize>) -> (Range<usize>, String, &'static str) {
    let line = text[here.start..].split(['\n', '\r']).next().unwrap_or_default();
    if ["<<<<<<<", "=======", ">>>>>>>"].iter().any(|mark| line.starts_with(mark)) {
        let message = "a merge conflict isn't resolved".to_owned();
        return (here, message, "keep one side, and remove the lines of git");
    }
    let is_invisible = |c: char| {
        !c.is_ascii() && (c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}'))
    };
    if let Some((before, c)) = line.char_indices().find(|(_, c)| is_invisible(*c)) {
        let at = here.start + before;
        let message = format!("U+{:04X} looks like a space, and isn't one in YAML", u32::from(c));
        return (at..at + c.len_utf8(), message, "type a space in its place");
    }
    let help = "begin it with `- ` if it is an item of a list, else put a `:` behind its key";
    (here, "this line has no `:`".to_owned(), help)
}

/// The tab that stopped the parser: in the indentation of the line, else of a line after it, else
/// the last one before.
fn culprit(text: &str, at: usize) -> usize {
    let line = text[..at].rfind(['\n', '\r']).map_or(0, |end| end + 1);
    let mut start = line;
    for line in text[line..].split_inclusive(['\n', '\r']) {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        if let Some(tab) = line[..indent].find('\t') {
            return start + tab;
        }
        start += line.len();
    }
    text[..at].rfind('\t').unwrap_or(at)
}
