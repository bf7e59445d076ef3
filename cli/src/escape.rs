//! Escaping of untrusted text for the places where it is printed: workflow commands, log lines and
//! markdown.

use std::borrow::Cow;

/// A workflow command as the runner parses it: `::name key=value,key=value::message`.
///
/// <https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands>
pub fn workflow_command(name: &str, properties: &[(&str, &str)], message: &str) -> String {
    let mut out = format!("::{name}");
    for (n, (key, value)) in properties.iter().enumerate() {
        out.push(if n == 0 { ' ' } else { ',' });
        out.push_str(key);
        out.push('=');
        out.push_str(&escape_data(value).replace(':', "%3A").replace(',', "%2C"));
    }
    out.push_str("::");
    out.push_str(&escape_data(message));
    out
}

fn escape_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Changes text so that the runner prints it and never acts on it.
///
/// The runner acts on a line that starts with `::` (after white space) and on `##[` anywhere in a
/// line. Control characters other than a line feed or tab are escaped, and so are those that change
/// the direction of writing, which can make a file's name look like another one.
pub fn neutralize(text: &str) -> Cow<'_, str> {
    let is_direction = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_printable = |c: char| !(c.is_control() || is_direction(c)) || c == '\n' || c == '\t';
    let is_command = |line: &str| line.trim_start().starts_with("::") || line.contains("##[");
    if text.chars().all(is_printable) && !text.lines().any(is_command) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for (n, line) in text.split('\n').enumerate() {
        if n > 0 {
            out.push('\n');
        }
        if line.trim_start().starts_with("::") {
            out.push_str("| ");
        }
        for c in line.replace("##[", "## [").chars() {
            if is_printable(c) {
                out.push(c);
            } else {
                out.extend(c.escape_default());
            }
        }
    }
    Cow::Owned(out)
}

/// Escapes untrusted text so that markdown shows it literally: no HTML, links, mentions or table cells.
pub fn escape_markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' => out.push_str("@\u{200b}"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '(' | ')' | '#' | '!' | '|' | '~' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workflow_commands_escape_the_characters_of_their_syntax() {
        assert_eq!(
            workflow_command(
                "error",
                &[("file", "a,b:c%.yml"), ("line", "3")],
                "50 %\r\n::warning::x"
            ),
            "::error file=a%2Cb%3Ac%25.yml,line=3::50 %25%0D%0A::warning::x"
        );
        assert_eq!(workflow_command("endgroup", &[], ""), "::endgroup::");
    }

    #[test]
    fn text_that_looks_like_a_workflow_command_is_defused() {
        assert_eq!(neutralize("plain"), "plain");
        assert_eq!(neutralize("::add-path::/tmp"), "| ::add-path::/tmp");
        assert_eq!(neutralize("a\n  ::set-env name=A::b"), "a\n|   ::set-env name=A::b");
        assert_eq!(neutralize("x ##[add-path]/tmp"), "x ## [add-path]/tmp");
        assert_eq!(neutralize("exe\u{202e}gnp"), "exe\\u{202e}gnp");
        assert_eq!(neutralize("bell\u{7} and\rreturn"), "bell\\u{7} and\\rreturn");
    }

    #[test]
    fn untrusted_markdown_is_shown_literally() {
        assert_eq!(
            escape_markdown("<b>@team|[x](y)`\n"),
            "&lt;b&gt;@\u{200b}team\\|\\[x\\]\\(y\\)\\` "
        );
    }
}
