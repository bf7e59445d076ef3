//! A comment on a pull request, or the step summary.

use std::fmt::Write as _;

use crcr_domain::diagnostic::Severity;

use super::{Report, plural};
use crate::runner::markdown_text;

/// The first line of a comment: by it the next run finds the comment that it replaces.
const MARKER: &str = "<!-- crcr: allowlist -->";

/// The most findings in a comment, which holds 65,536 characters.
const MAX_ROWS: usize = 100;

/// A heading, the counts and a table.
pub(super) fn render(report: &Report<'_>) -> String {
    let mut out = format!("{MARKER}\n### Allowlist: {}\n\n", report.counts());
    let rows = report.findings.kept();
    if !rows.is_empty() {
        out.push_str("| | where | what | what to do |\n|---|---|---|---|\n");
    }
    for found in rows.iter().take(MAX_ROWS) {
        let sign = match found.severity {
            Severity::Error => "❌ error",
            Severity::Warning => "⚠️ warning",
        };
        let help = found.help.as_deref().map(code_and_text).unwrap_or_default();
        let start = found.span.start;
        let _ = writeln!(
            out,
            "| {sign} | {}:{}:{} | {}<br>`{}` | {help} |",
            markdown_text(report.file),
            start.line,
            start.column,
            code_and_text(&found.message),
            found.rule.code(),
        );
    }
    let total = report.findings.errors() + report.findings.warnings();
    if total > MAX_ROWS {
        let more = plural(total - MAX_ROWS, "more finding", "more findings");
        let _ = writeln!(out, "\nand {more}: run `crcr allowlist validate`");
    }
    for told in report.not_checked {
        let _ = writeln!(out, "\n{}", code_and_text(told));
    }
    out
}

/// A message as markdown: what stands between backquotes as code, all else as text.
pub fn code_and_text(message: &str) -> String {
    let mut out = String::new();
    for (n, part) in message.split('`').enumerate() {
        if n % 2 == 0 {
            out.push_str(&markdown_text(part));
        } else {
            let _ = write!(out, "<code>{}</code>", markdown_text(part));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_stranger_does_nothing_in_a_comment() {
        assert_eq!(
            code_and_text("`<img src=x>|@team` isn't `owner/repo`"),
            "<code>&lt;img src=x&gt;\\|@\u{200b}team</code> isn't <code>owner/repo</code>"
        );
    }
}
