//! `crcr allowlist fix`: applies the fixes that need no decision, and changes nothing else.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::diagnostic::{Diagnostic, TextEdit};

use super::online::{self, OnlineScope};
use super::validate::replace_file;
use crate::cli::allowlist::FixArgs;
use crate::commands::allowlist_file::AllowlistFile;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

/// Rewrites the file. For standard input it prints the new text, with `--diff` the difference. Exit
/// code 1 if errors remain.
pub async fn run(args: &FixArgs, env: &Env, printer: &Printer) -> Outcome {
    let upstream = &args.file.upstream;
    let input = AllowlistFile::read(args.file.name())?;
    let mut outcome = input.parse(upstream);
    if args.online.online {
        let check =
            online::check(&args.online, &outcome, upstream, OnlineScope::Names, env, printer);
        let checked = check.await?;
        outcome.findings.extend(checked.findings);
        for sentence in &checked.not_checked {
            printer.notice(sentence);
        }
    }
    let edits = edits(outcome.findings.kept());
    let fixed = apply(&outcome, &edits);
    let after = crcr_domain::Allowlist::parse(fixed.as_bytes(), upstream);

    if args.diff {
        let diff = unified_diff(&input.name, outcome.source.text(), after.source.text());
        printer.data_text(&diff);
    } else if args.file.name() == "-" {
        printer.data(&fixed);
    } else if !edits.is_empty() {
        replace_file(Path::new(&input.name), &fixed)?;
    }
    let count = plural(edits.len(), "change", "changes");
    printer.line(&format!("{}: {count}", input.name));
    if after.findings.errors() > 0 {
        let remaining = plural(after.findings.errors(), "error remains", "errors remain");
        return Err(Failure::user("errors-remain", format!("{remaining} in `{}`", input.name))
            .hint("`crcr allowlist validate` prints them; they can't be fixed automatically"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The edits of all fixes in text order. If two overlap, the first one wins.
fn edits(found: &[Diagnostic]) -> Vec<&TextEdit> {
    let mut edits: Vec<_> =
        found.iter().filter_map(|found| found.fix.as_ref()).flat_map(|fix| &fix.edits).collect();
    edits.sort_by_key(|edit| edit.span.bytes.start);
    let mut end = 0;
    edits.retain(|edit| {
        let is_disjoint = edit.span.bytes.start >= end;
        end = end.max(edit.span.bytes.end);
        is_disjoint
    });
    edits
}

/// The whole file with the edits applied. Byte-order mark and line endings stay as they are.
fn apply(outcome: &ParseOutcome, edits: &[&TextEdit]) -> String {
    let source = &outcome.source;
    let mut out = String::with_capacity(source.text().len() + 3);
    if source.has_byte_order_mark() {
        out.push('\u{feff}');
    }
    let mut at = 0;
    for edit in edits {
        out.push_str(&source.text()[at..edit.span.bytes.start]);
        out.push_str(&edit.text);
        at = edit.span.bytes.end;
    }
    out.push_str(&source.text()[at..]);
    out
}

/// A unified diff without context. Edits never add or remove lines, so lines can be compared in pairs.
fn unified_diff(name: &str, before: &str, after: &str) -> String {
    let mut out = String::new();
    let pairs = before.split_inclusive('\n').zip(after.split_inclusive('\n'));
    for (number, (old, new)) in pairs.enumerate().filter(|(_, (old, new))| old != new) {
        if out.is_empty() {
            let _ = write!(out, "--- {name}\n+++ {name}\n");
        }
        let line = number + 1;
        let _ = writeln!(out, "@@ -{line} +{line} @@");
        for (sign, text) in [('-', old), ('+', new)] {
            let end = if text.ends_with('\n') { "" } else { "\n\\ No newline at end of file\n" };
            let _ = write!(out, "{sign}{text}{end}");
        }
    }
    out
}
