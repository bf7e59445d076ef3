//! `crcr allowlist diff`: what a change of the file does, whatever it does to the text.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::{Change, ChangeKind, changes, review};
use crcr_domain::{Allowlist, Entry};
use serde_json::{Value, json};

use super::input::Input;
use crate::cli::allowlist::{DiffArgs, ReviewFormat};
#[cfg(feature = "relay")]
use crate::commands::levels::evidence::Reviewer;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::{Format, Report, code_and_text};

/// Prints the changes and the review to stdout. Exit code 1 when the review has an error.
pub async fn run(args: &DiffArgs, printer: &Printer) -> Outcome {
    let base = Input::read_revision(&args.base)?.parse(&args.upstream).policy;
    let input = Input::read_revision(&args.head)?;
    let mut head = input.parse_valid(&args.upstream, printer)?;
    head.findings = Default::default();
    let found = review(&base, &head, args.reason.as_deref().unwrap_or_default());
    head.findings.extend(found);
    let evidence = evidence(args, &base, &mut head).await?;
    if args.strict {
        head.findings.make_strict();
    }
    head.findings.sort();
    let report = Report {
        file: &input.name,
        source: &head.source,
        findings: &head.findings,
        repositories: head.policy.len(),
        not_checked: &[],
    };
    let data = match args.format {
        ReviewFormat::Text => {
            let review = report.render(Format::Text, printer.color_out());
            let quiet = head.findings.kept().is_empty();
            let tables = evidence.iter().map(|shown| format!("{}\n", shown.text));
            text(&base, &head.policy)
                + &tables.collect::<String>()
                + if quiet { "" } else { &review }
        }
        ReviewFormat::Json => json(&base, &head.policy, &report, evidence),
        ReviewFormat::Markdown => {
            let tables = evidence.iter().map(|shown| &*shown.markdown);
            let changes = markdown(&base, &head.policy);
            report.render(Format::Markdown, false) + &changes + &tables.collect::<String>()
        }
    };
    printer.data(&data);
    Ok(ExitCode::from(u8::from(head.findings.errors() > 0)))
}

/// The evidence for one change of level, in every format.
struct Shown {
    text: String,
    markdown: String,
    json: Value,
}

/// Reviews changes of level by recorded results, when there are any; adds what is wrong.
#[cfg(feature = "relay")]
async fn evidence(
    args: &DiffArgs,
    base: &Allowlist,
    head: &mut ParseOutcome,
) -> Result<Vec<Shown>, Failure> {
    let Some(results) = &args.results else { return Ok(vec![]) };
    let reviewer = Reviewer::open(results, &args.bar).await?;
    let until = args.until.unwrap_or_else(jiff::Timestamp::now);
    let (reviews, found) = super::evidence::review(base, head, &reviewer, until).await?;
    head.findings.extend(found);
    let shown = reviews.iter().map(|review| Shown {
        text: reviewer.text(review),
        markdown: reviewer.markdown(review),
        json: reviewer.json(review),
    });
    Ok(shown.collect())
}

/// Without the relay there are no results.
#[cfg(not(feature = "relay"))]
async fn evidence(
    _: &DiffArgs,
    _: &Allowlist,
    _: &mut ParseOutcome,
) -> Result<Vec<Shown>, Failure> {
    Ok(vec![])
}

fn text(base: &Allowlist, head: &Allowlist) -> String {
    let changes = changes(base, head);
    if changes.is_empty() {
        return "no effect\n".to_owned();
    }
    let mut out = String::new();
    for change in &changes {
        let _ = writeln!(out, "{:9} {}: {}", word(change.kind()), change.repo(), what(change));
    }
    out + "\n"
}

/// The changes as a section of a comment.
pub fn markdown(base: &Allowlist, head: &Allowlist) -> String {
    let changes = changes(base, head);
    if changes.is_empty() {
        return "\n**No effect**: the same repositories at the same levels.\n".to_owned();
    }
    let mut out = "\n| change | repository | what |\n|---|---|---|\n".to_owned();
    for change in &changes {
        let name = code_and_text(&format!("`{}`", change.repo()));
        let what = code_and_text(&what(change));
        let _ = writeln!(out, "| {} | {name} | {what} |", word(change.kind()));
    }
    out
}

fn json(base: &Allowlist, head: &Allowlist, report: &Report<'_>, evidence: Vec<Shown>) -> String {
    let list: Vec<_> = changes(base, head)
        .iter()
        .map(|change| {
            json!({
                "repository": change.repo(),
                "kind": change.kind(),
                "before": change.before,
                "after": change.after,
            })
        })
        .collect();
    let found: Value =
        serde_json::from_str(&report.render(Format::Json, false)).unwrap_or_default();
    let document = json!({
        "version": 1,
        "file": report.file,
        "changes": list,
        "evidence": evidence.into_iter().map(|shown| shown.json).collect::<Vec<_>>(),
        "diagnostics": found["diagnostics"],
        "summary": found["summary"],
    });
    format!("{document:#}\n")
}

fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Promoted => "promoted",
        ChangeKind::Demoted => "demoted",
        ChangeKind::Removed => "removed",
        ChangeKind::Changed => "changed",
    }
}

/// `L1 → L2`, `oncalls: a → b`; several parts with semicolons.
fn what(change: &Change<'_>) -> String {
    let (before, after) = match (change.before, change.after) {
        (None, Some(after)) => return place(after),
        (Some(before), None) => return format!("was {}", place(before)),
        (Some(before), Some(after)) => (before, after),
        (None, None) => return String::new(),
    };
    let names = |entry: &Entry| {
        let names: Vec<_> = entry.oncalls.iter().map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
    };
    let events = |entry: &Entry| {
        entry.events.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ")
    };
    let mut parts = Vec::new();
    if place(before) != place(after) {
        parts.push(format!("{} → {}", place(before), place(after)));
    }
    if before.oncalls != after.oncalls {
        parts.push(format!("oncalls: {} → {}", names(before), names(after)));
    }
    if before.events != after.events {
        parts.push(format!("events: {} → {}", events(before), events(after)));
    }
    if before.repo.as_str() != after.repo.as_str() {
        parts.push(format!("spelled `{}` → `{}`", before.repo, after.repo));
    }
    parts.join("; ")
}

fn place(entry: &Entry) -> String {
    match &entry.device {
        Some(device) => format!("{} on `{device}`", entry.level),
        None => entry.level.to_string(),
    }
}
