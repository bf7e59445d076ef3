//! Findings as one JSON document, format version 1.

use crcr_domain::diagnostic::{Diagnostic, SourceSpan};
use serde_json::{Map, Value, json};

use super::{FindingsReport, ListedEntries};

pub(crate) fn render(report: &FindingsReport<'_>) -> String {
    let mut summary = json!({
        "errors": report.findings.errors(),
        "warnings": report.findings.warnings(),
    });
    let listed = match report.listed {
        ListedEntries::Repositories(_) => "repositories",
        ListedEntries::Tests(_) => "tests",
        ListedEntries::Settings(_) => "settings",
    };
    summary[listed] = report.listed.count().into();
    if report.findings.left_out() > 0 {
        summary["left_out"] = report.findings.left_out().into();
    }
    let mut document = json!({
        "version": 1,
        "file": report.file,
        "diagnostics": report.findings.kept().iter().map(diagnostic).collect::<Vec<_>>(),
        "summary": summary,
    });
    if !report.not_checked.is_empty() {
        document["not_checked"] = report.not_checked.into();
    }
    format!("{document:#}\n")
}

fn diagnostic(found: &Diagnostic) -> Value {
    let mut object = Map::new();
    object.insert("rule".into(), found.rule.code().into());
    object.insert("severity".into(), found.severity.as_str().into());
    object.insert("message".into(), found.message.as_str().into());
    object.extend(position_fields(&found.span));
    let related = found.related.iter().map(|related| {
        let start = related.span.start;
        json!({"message": related.message, "line": start.line, "column": start.column})
    });
    object.insert("related".into(), related.collect());
    if let Some(help) = &found.help {
        object.insert("help".into(), help.as_str().into());
    }
    if let Some(fix) = &found.fix {
        let edits = fix.edits.iter().map(|edit| {
            let mut object: Map<_, _> = position_fields(&edit.span).collect();
            object.insert("text".into(), edit.text.as_str().into());
            Value::Object(object)
        });
        let edits: Vec<_> = edits.collect();
        object.insert("fix".into(), json!({"description": fix.description, "edits": edits}));
    }
    Value::Object(object)
}

fn position_fields(span: &SourceSpan) -> impl Iterator<Item = (String, Value)> {
    [
        ("line", span.start.line),
        ("column", span.start.column),
        ("end_line", span.end.line),
        ("end_column", span.end.column),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.into()))
}
