//! What a failure is told by where its tool puts something else first: the name of the test, the class of the
//! exception, its place, captured output, a reference to the text, or markup.

use serde::Deserialize;

use super::text::{LimitedText, unescape};

/// What testtools puts before the text of each failure, behind the name of its own module.
const TESTTOOLS: &str = "_StringException: ";
const TRACEBACK: &str = "Traceback (most recent call last):\n";
/// What Robot Framework begins a message with that is markup.
const ROBOT_MARKUP: &str = "*HTML*";
/// `rebot --merge` has the results of a test that ran again in its message, the last one first.
const MERGED_MESSAGE: &str = "New message:</span>";
const MERGED_END: &str = "<hr><span class=\"old-status\">";
/// How the message ends that the `junitreport` of Dart writes for each failure.
const REFERENCE_OF_DART: &str = ", see stacktrace for details";
/// What the error of a hook begins with in Jest, which jest-junit writes as JSON.
const ERROR_OF_JEST: &str = "{\"message\":";

/// What tells a failure of the test `name` better than its own message, or than its whole text if it has none.
pub(crate) fn better_message(
    name: &str,
    type_name: Option<&str>,
    message: Option<&str>,
    text: Option<&str>,
) -> Option<String> {
    let better = match (message, text) {
        (Some(message), _) if message.starts_with(ROBOT_MARKUP) => {
            Some(plain_text(robot_message(&message[ROBOT_MARKUP.len()..])))
        }
        (Some(message), Some(text)) if message.ends_with(REFERENCE_OF_DART) => {
            let heads = ["Failure:\n", "Error:\n"];
            let cause = heads.iter().find_map(|head| text.strip_prefix(*head)).unwrap_or(text);
            Some(first_paragraph(cause).to_owned())
        }
        // SoapUI says of each failure which setting ended the test.
        (Some(message), Some(text)) if Some(message) == type_name && is_markup(text) => {
            Some(plain_text(text))
        }
        (Some(message), Some(text)) if is_only_place(message) || message == "pending" => {
            Some(first_paragraph(text).to_owned())
        }
        (Some(message), _) => below_type(message, type_name).map(str::to_owned),
        (None, Some(text)) if text.starts_with(ERROR_OF_JEST) => error_of_jest(text),
        (None, Some(text)) => {
            let cause = below_name(text, name).map(first_paragraph);
            let cause = cause.or_else(|| below_type(text, type_name));
            let cause = cause.or_else(|| exception_of_testtools(text));
            cause.or_else(|| exception_of_eunit(text)).map(str::to_owned)
        }
        (None, None) => None,
    };
    better.filter(|better| !better.is_empty())
}

/// PHPUnit and Pest begin a text with the class and the name of the test, and the data that it ran with.
fn below_name<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (first, rest) = text.split_once('\n')?;
    let first = first.trim();
    let is_name = |line: &str| {
        line.strip_prefix(name).is_some_and(|data| {
            data.is_empty()
                || (data.starts_with(" (") || data.starts_with(" with data ("))
                    && data.ends_with(')')
        })
    };
    let is_found = is_name(first) || first.split_once("::").is_some_and(|(_, test)| is_name(test));
    Some(rest).filter(|_| is_found && !name.is_empty())
}

/// The messages of AssertJ and Hamcrest begin with a line break, so that the first line has only the exception's class.
fn below_type<'a>(text: &'a str, type_name: Option<&str>) -> Option<&'a str> {
    let (first, rest) = text.strip_prefix(type_name?)?.strip_prefix(':')?.split_once('\n')?;
    let message = rest.split("\n\tat ").next().unwrap_or(rest).trim();
    let is_trace = message.starts_with("at ");
    Some(message).filter(|_| first.trim().is_empty() && !is_trace)
}

/// GdUnit4 writes `FAILED: res://a.gd:12`.
fn is_only_place(message: &str) -> bool {
    let place = message.strip_prefix("FAILED: ").unwrap_or(message);
    let Some((file, line)) = place.rsplit_once(':') else { return false };
    let is_file = file.contains('.') && !file.contains(char::is_whitespace);
    is_file && line.parse::<u32>().is_ok()
}

fn first_paragraph(text: &str) -> &str {
    let text = text.trim_start();
    text.split_once("\n\n").map_or(text, |(first, _)| first).trim_end()
}

/// testtools writes captured output and the tracebacks of subtests, each in braces, and in the end the traceback of the
/// test. A text that begins with a traceback is told by its end anyway.
fn exception_of_testtools(text: &str) -> Option<&str> {
    let (module, details) = text.split_once(TESTTOOLS)?;
    if module.contains(char::is_whitespace) || details.starts_with(TRACEBACK) {
        return None;
    }
    let frames = &details[details.rfind(TRACEBACK)? + TRACEBACK.len()..];
    let is_frame = |line: &&str| line.starts_with([' ', '\t']) || line.trim().is_empty();
    let length: usize = frames.split_inclusive('\n').take_while(is_frame).map(str::len).sum();
    let exception = &frames[length..];
    Some(exception.split("\n}}}").next().unwrap_or(exception).trim())
}

/// EUnit writes the exception below its trace.
fn exception_of_eunit(text: &str) -> Option<&str> {
    let at = text.find("\n**").filter(|_| text.starts_with("::in function "))?;
    Some(text[at + "\n**".len()..].trim())
}

#[derive(Deserialize)]
struct JestError {
    message: String,
    #[serde(default)]
    stack: String,
}

fn error_of_jest(text: &str) -> Option<String> {
    let JestError { message, stack } = serde_json::from_str(text).ok()?;
    if !message.trim().is_empty() {
        return Some(message);
    }
    stack.split("\n    at ").next().map(|error| error.trim().to_owned())
}

fn robot_message(markup: &str) -> &str {
    let Some((_, last)) = markup.split_once(MERGED_MESSAGE) else { return markup };
    last.split_once(MERGED_END).map_or(last, |(last, _)| last)
}

fn is_markup(text: &str) -> bool {
    text.starts_with('<') && text.ends_with('>') && text.contains("</")
}

/// Without tags, of which those between lines and blocks become line ends.
fn plain_text(markup: &str) -> String {
    const BREAKS: [&str; 10] = ["br", "hr", "p", "div", "pre", "li", "tr", "h1", "h2", "h3"];
    let (mut text, mut rest) = (String::new(), markup);
    while let Some(at) = rest.find('<') {
        let (before, from_tag) = rest.split_at(at);
        text.push_str(before);
        let inner = &from_tag[1..];
        if !inner.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/') {
            text.push('<');
            rest = inner;
            continue;
        }
        let Some(end) = inner.find('>') else {
            rest = from_tag;
            break;
        };
        let tag = inner[..end].trim_matches('/');
        let tag = tag.split(char::is_whitespace).next().unwrap_or_default();
        if BREAKS.iter().any(|line| line.eq_ignore_ascii_case(tag)) && !text.ends_with('\n') {
            text.push('\n');
        }
        rest = &inner[end + 1..];
    }
    text.push_str(rest);
    let mut plain = LimitedText::default();
    unescape(&text, &mut plain);
    plain.trimmed().unwrap_or_default()
}
