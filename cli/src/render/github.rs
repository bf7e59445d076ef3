//! Findings as annotations of GitHub Actions.

use super::{FindingsReport, repository_path};
use crate::escape::workflow_command;

/// One workflow command per finding, and one with the counts.
pub(crate) fn render(report: &FindingsReport<'_>) -> String {
    let mut out = String::new();
    let file = repository_path(report.file);
    for found in report.findings.kept() {
        let (start, end) = (found.span.start, found.span.end);
        let title = found.rule.code();
        let [line, end_line] = [start.line, end.line].map(|line| line.to_string());
        let [column, end_column] = [start.column, end.column].map(|column| column.to_string());
        let mut properties = vec![("title", title), ("file", &*file), ("line", &line)];
        // The runner accepts columns only if the annotation is within one line.
        if start.line == end.line {
            properties.extend([("col", &*column), ("endColumn", &*end_column)]);
        } else {
            properties.push(("endLine", &end_line));
        }
        let message = match &found.help {
            Some(help) => format!("{}\nhelp: {help}", found.message),
            None => found.message.clone(),
        };
        out.push_str(&workflow_command(found.severity.as_str(), &properties, &message));
        out.push('\n');
    }
    let counts = workflow_command("debug", &[], &format!("{}: {}", report.file, report.counts()));
    out.push_str(&counts);
    out.push('\n');
    out
}
