//! `crcr allowlist show`: the repositories by level.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::{AllowlistEntry, EventKind, EventSet, Level};
use serde_json::json;

use crate::cli::DataFormat;
use crate::cli::allowlist::ShowArgs;
use crate::commands::allowlist_file::AllowlistFile;
use crate::failure::Outcome;
use crate::printer::Printer;
use crate::render::plural;

pub fn run(args: &ShowArgs, printer: &Printer) -> Outcome {
    let input = AllowlistFile::read(args.file.name())?;
    let outcome = input.parse_valid(&args.file.upstream, printer)?;
    match args.format {
        DataFormat::Text => printer.data_text(&text(&outcome)),
        DataFormat::Json => printer.data_json(&json(&input.name, &outcome)),
    }
    Ok(ExitCode::SUCCESS)
}

fn text(outcome: &ParseOutcome) -> String {
    let mut out = String::new();
    let width = outcome.policy.iter().map(|entry| entry.repo.as_str().len()).max().unwrap_or(0);
    for level in Level::ALL {
        let entries: Vec<_> = outcome.policy.at_level(level).collect();
        if entries.is_empty() {
            continue;
        }
        let count = plural(entries.len(), "repository", "repositories");
        let _ = writeln!(out, "{level} {}: {count}", level.title());
        for entry in entries {
            let line = format!("  {:width$}  {}", entry.repo, details(entry));
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    if out.is_empty() {
        out.push_str("the file lists no repository\n");
    }
    out
}

/// Such as `xpu  oncall: a, b  nightly only`.
fn details(entry: &AllowlistEntry) -> String {
    let mut parts = Vec::new();
    parts.extend(entry.device.as_ref().map(ToString::to_string));
    if !entry.oncalls.is_empty() {
        let names: Vec<_> = entry.oncalls.iter().map(ToString::to_string).collect();
        parts.push(format!("oncall: {}", names.join(", ")));
    }
    if entry.events != EventSet::DEFAULT {
        let kinds: Vec<_> = entry.events.iter().map(EventKind::as_str).collect();
        parts.push(match kinds.as_slice() {
            [kind] => format!("{kind} only"),
            kinds => kinds.join(", "),
        });
    }
    parts.join("  ")
}

fn json(file: &str, outcome: &ParseOutcome) -> String {
    let repositories: Vec<_> = outcome
        .policy
        .iter()
        .zip(&outcome.places)
        .map(|(entry, places)| {
            json!({
                "repository": entry.repo,
                "level": entry.level,
                "device": entry.device,
                "oncalls": entry.oncalls,
                "events": entry.events,
                "line": places.repo.start.line,
                "column": places.repo.start.column,
            })
        })
        .collect();
    format!("{:#}\n", json!({"version": 1, "file": file, "repositories": repositories}))
}
