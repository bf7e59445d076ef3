//! Findings as markdown, for a pull request comment or the step summary.

use std::fmt::Write as _;

use crcr_domain::diagnostic::Severity;

use super::{FindingsReport, plural};
use crate::escape::escape_markdown;

/// The first line of the comment. The next run finds the comment to replace by it.
const MARKER: &str = "<!-- crcr: allowlist -->";

/// Keeps the comment below GitHub's 65,536 characters.
const MAX_ROWS: usize = 100;

pub(crate) fn render(report: &FindingsReport<'_>) -> String {
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
            escape_markdown(report.file),
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
    for sentence in report.not_checked {
        let _ = writeln!(out, "\n{}", code_and_text(sentence));
    }
    out
}

/// Converts a message into markdown: text between backquotes becomes code, everything is escaped.
pub fn code_and_text(message: &str) -> String {
    let mut out = String::new();
    for (n, part) in message.split('`').enumerate() {
        if n % 2 == 0 {
            out.push_str(&escape_markdown(part));
        } else {
            let _ = write!(out, "<code>{}</code>", escape_markdown(part));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_names_are_escaped_in_comments() {
        assert_eq!(
            code_and_text("`<img src=x>|@team` isn't `owner/repo`"),
            "<code>&lt;img src=x&gt;\\|@\u{200b}team</code> isn't <code>owner/repo</code>"
        );
    }
}
