//! Findings as SARIF 2.1.0, for code scanning.
//! <https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crcr_domain::diagnostic::{Diagnostic, Rule, SourceSpan};
use serde_json::{Value, json};

use super::{FindingsReport, repository_path};

pub(crate) fn render(report: &FindingsReport<'_>) -> String {
    let used: BTreeSet<Rule> = report.findings.kept().iter().map(|found| found.rule).collect();
    let used: Vec<Rule> = used.into_iter().collect();
    let uri = uri(&repository_path(report.file));
    let results: Vec<_> =
        report.findings.kept().iter().map(|found| result(found, &used, &uri)).collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "crcr",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": used.iter().map(|rule| descriptor(*rule)).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    format!("{log:#}\n")
}

fn descriptor(rule: Rule) -> Value {
    json!({
        "id": rule.code(),
        "shortDescription": {"text": rule.summary()},
        "defaultConfiguration": {"level": rule.severity().as_str()},
    })
}

fn result(found: &Diagnostic, rules: &[Rule], uri: &str) -> Value {
    let text = match &found.help {
        Some(help) => format!("{}\nhelp: {help}", found.message),
        None => found.message.clone(),
    };
    let mut result = json!({
        "ruleId": found.rule.code(),
        "ruleIndex": rules.iter().position(|rule| *rule == found.rule),
        "level": found.severity.as_str(),
        "message": {"text": text},
        "locations": [{"physicalLocation": location(uri, &found.span)}],
    });
    if !found.related.is_empty() {
        let related = found.related.iter().enumerate().map(|(id, related)| {
            json!({
                "id": id,
                "message": {"text": related.message},
                "physicalLocation": location(uri, &related.span),
            })
        });
        result["relatedLocations"] = related.collect();
    }
    if let Some(fix) = &found.fix {
        let replacements = fix.edits.iter().map(|edit| {
            json!({"deletedRegion": region(&edit.span), "insertedContent": {"text": edit.text}})
        });
        result["fixes"] = json!([{
            "description": {"text": fix.description},
            "artifactChanges": [{
                "artifactLocation": {"uri": uri},
                "replacements": replacements.collect::<Vec<_>>(),
            }],
        }]);
    }
    result
}

fn location(uri: &str, span: &SourceSpan) -> Value {
    json!({"artifactLocation": {"uri": uri}, "region": region(span)})
}

/// SARIF counts lines and columns from 1 with an exclusive end, as [`SourceSpan`] does.
fn region(span: &SourceSpan) -> Value {
    json!({
        "startLine": span.start.line,
        "startColumn": span.start.column,
        "endLine": span.end.line,
        "endColumn": span.end.column,
    })
}

/// A relative reference for relative paths, a `file:` URI for absolute ones.
fn uri(path: &str) -> String {
    let mut out = String::from(if path.starts_with('/') { "file://" } else { "" });
    for byte in path.trim_start_matches("./").bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_percent_encoded_uris() {
        assert_eq!(uri("./.github/allowlist.yml"), ".github/allowlist.yml");
        assert_eq!(uri("/a b/ü:c.yml"), "file:///a%20b/%C3%BC%3Ac.yml");
        assert_eq!(uri("<stdin>"), "%3Cstdin%3E");
    }
}
