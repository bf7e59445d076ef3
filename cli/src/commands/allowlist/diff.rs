//! `crcr allowlist diff`: the effect of a change to the file, regardless of how the text changed.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::{
    ChangeKind, EntryChange, RepositoryRename, calls_the_same, review, visible_changes,
};
use crcr_domain::allowlist::level::EventSet;
use crcr_domain::{Allowlist, AllowlistEntry};
use serde_json::{Value, json};

use super::approval;
use crate::cli::allowlist::{DEFAULT_FILE, DiffArgs, EvidenceArgs, FindingsFormat, ReviewFormat};
use crate::commands::allowlist_file::AllowlistFile;
use crate::commands::levels::reviewer::LevelReviewer;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::{FindingsReport, ListedEntries, code_and_text};

pub(crate) const UNREADABLE_BASE: &str = "the base has errors, so it isn't known which \
                                          repositories are new, or whether those skip levels";

/// Prints the changes and the review to stdout. Exit code 1 if the review has an error.
pub async fn run(args: &DiffArgs, env: &Env, printer: &Printer) -> Outcome {
    let base = AllowlistFile::read_revision(&args.base, DEFAULT_FILE, env)?.parse(&args.upstream);
    let input = AllowlistFile::read_revision(&args.head, DEFAULT_FILE, env)?;
    let mut head = input.parse_valid(&args.upstream, printer)?;
    head.findings = Default::default();
    // Before the review's findings: an error of these doesn't make the file unreadable.
    let valid = head.clone();
    let changes = visible_changes(&base, &valid, &[]);
    let found = review(&base, &head, None, args.reason.as_deref().unwrap_or_default());
    head.findings.extend(found);
    let is_base_whole = base.findings.errors() == 0;
    if !is_base_whole {
        printer.notice(UNREADABLE_BASE);
    }
    let policy: (&Allowlist, &[RepositoryRename]) = (&base.policy, &[]);
    let evidence = review_level_changes(&args.evidence, args.until, policy, &mut head).await?;
    let token = args.github_token.as_ref();
    let tools = (env, printer);
    approval::review(&args.approval, token, &args.upstream, policy, &mut head, tools).await?;
    if args.strict {
        head.findings.make_strict();
    }
    head.findings.sort();
    let unreadable = [UNREADABLE_BASE.to_owned()];
    let report = FindingsReport {
        file: &input.name,
        source: &head.source,
        findings: &head.findings,
        listed: ListedEntries::Repositories(head.policy.len()),
        not_checked: if is_base_whole { &[] } else { &unreadable },
    };
    let changes = (&*changes, is_base_whole);
    let text = render(args.format, printer.color_stdout(), changes, &report, evidence);
    printer.data_as(args.format, &text);
    Ok(ExitCode::from(u8::from(head.findings.errors() > 0)))
}

/// If the base has errors, an empty list of changes doesn't mean that nothing has changed.
fn render(
    format: ReviewFormat,
    color: bool,
    (changes, is_base_whole): (&[EntryChange<'_>], bool),
    report: &FindingsReport<'_>,
    evidence: Vec<RenderedReview>,
) -> String {
    let is_silent = changes.is_empty() && !is_base_whole;
    match format {
        ReviewFormat::Text => {
            let effect = if is_silent { String::new() } else { text(changes) };
            let tables = evidence.iter().map(|shown| format!("{}\n", shown.text));
            let review = report.render(FindingsFormat::Text, color);
            let quiet = report.findings.kept().is_empty();
            effect + &tables.collect::<String>() + if quiet { "" } else { &review }
        }
        ReviewFormat::Json => json(changes, report, evidence),
        ReviewFormat::Markdown => {
            let effect = if is_silent { String::new() } else { markdown(changes) };
            let tables = evidence.iter().map(|shown| &*shown.markdown);
            report.render(FindingsFormat::Markdown, false) + &effect + &tables.collect::<String>()
        }
    }
}

/// The review of one change of level, rendered in every format.
pub(crate) struct RenderedReview {
    text: String,
    pub(crate) markdown: String,
    json: Value,
}

/// Reviews changes of level if results are given, and adds the findings to `head`. `until`: now, if it isn't set.
pub(crate) async fn review_level_changes(
    args: &EvidenceArgs,
    until: Option<jiff::Timestamp>,
    base: (&Allowlist, &[RepositoryRename]),
    head: &mut ParseOutcome,
) -> Result<Vec<RenderedReview>, Failure> {
    let Some(results) = &args.results else { return Ok(vec![]) };
    let reviewer = LevelReviewer::open(results, &args.options).await?;
    let until = until.unwrap_or_else(jiff::Timestamp::now);
    let (reviews, found) = super::level_changes::review(base, head, &reviewer, until).await?;
    head.findings.extend(found);
    let shown = reviews.iter().map(|review| RenderedReview {
        text: reviewer.text(review),
        markdown: reviewer.markdown(review),
        json: reviewer.json(review),
    });
    Ok(shown.collect())
}

fn text(changes: &[EntryChange<'_>]) -> String {
    if changes.is_empty() {
        return "no effect\n".to_owned();
    }
    let mut out = String::new();
    for change in changes {
        let _ =
            writeln!(out, "{:9} {}: {}", kind_name(change.kind()), change.repo(), describe(change));
    }
    out + "\n"
}

/// A section of the pull request comment.
pub fn markdown(changes: &[EntryChange<'_>]) -> String {
    if changes.is_empty() {
        return "\n**No effect**: the same repositories at the same levels.\n".to_owned();
    }
    let mut out = "\n| change | repository | what |\n|---|---|---|\n".to_owned();
    for change in changes {
        let name = code_and_text(&format!("`{}`", change.repo()));
        let what = code_and_text(&describe(change));
        let _ = writeln!(out, "| {} | {name} | {what} |", kind_name(change.kind()));
    }
    out
}

fn json(
    changes: &[EntryChange<'_>],
    report: &FindingsReport<'_>,
    evidence: Vec<RenderedReview>,
) -> String {
    let list: Vec<_> = changes
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
        serde_json::from_str(&report.render(FindingsFormat::Json, false)).unwrap_or_default();
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

fn kind_name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Promoted => "promoted",
        ChangeKind::Demoted => "demoted",
        ChangeKind::Removed => "removed",
        ChangeKind::Renamed => "renamed",
        ChangeKind::Changed => "changed",
    }
}

/// Such as `L1 → L2; oncalls: a → b`.
fn describe(change: &EntryChange<'_>) -> String {
    let names = |entry: &AllowlistEntry| {
        let names: Vec<_> = entry.oncalls.iter().map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
    };
    let events = |entry: &AllowlistEntry| {
        entry.events.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ")
    };
    let (before, after) = match (change.before, change.after) {
        (None, Some(after)) => {
            let mut parts = vec![level_and_device(after)];
            if !after.oncalls.is_empty() {
                parts.push(format!("oncalls: {}", names(after)));
            }
            if after.events != EventSet::DEFAULT {
                parts.push(format!("events: {}", events(after)));
            }
            return parts.join("; ");
        }
        (Some(before), None) => return format!("was {}", level_and_device(before)),
        (Some(before), Some(after)) => (before, after),
        (None, None) => return String::new(),
    };
    let mut parts = Vec::new();
    if let Some(RepositoryRename { from, id, .. }) = change.rename {
        parts.push(format!("was `{from}`, as GitHub proves: both names are repository {id}"));
    }
    if level_and_device(before) != level_and_device(after) {
        parts.push(format!("{} → {}", level_and_device(before), level_and_device(after)));
    }
    if !calls_the_same(before, after) {
        parts.push(format!("oncalls: {} → {}", names(before), names(after)));
    }
    if before.events != after.events {
        parts.push(format!("events: {} → {}", events(before), events(after)));
    }
    if change.rename.is_none() && before.repo.as_str() != after.repo.as_str() {
        parts.push(format!("spelled `{}` → `{}`", before.repo, after.repo));
    }
    parts.join("; ")
}

fn level_and_device(entry: &AllowlistEntry) -> String {
    match &entry.device {
        Some(device) => format!("{} on `{device}`", entry.level),
        None => entry.level.to_string(),
    }
}
