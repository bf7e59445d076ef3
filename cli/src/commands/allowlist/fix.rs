//! `crcr allowlist fix`: puts right what needs no decision, and changes nothing else.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::diagnostic::{Diagnostic, Edit};

use super::input::Input;
use super::online::{self, Ask};
use super::validate::write_whole;
use crate::cli::allowlist::FixArgs;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

/// Rewrites the file, or prints the text (standard input) or the difference (`--diff`). Exit code 1
/// when errors remain.
pub async fn run(args: &FixArgs, env: &Env, printer: &Printer) -> Outcome {
    let upstream = &args.file.upstream;
    let input = Input::read(args.file.name())?;
    let mut outcome = input.parse(upstream);
    if args.online.online {
        let ask = online::check(&args.online, &outcome, upstream, Ask::Names, env, printer);
        let answers = ask.await?;
        outcome.findings.extend(answers.findings);
        for told in &answers.not_checked {
            printer.notice(told);
        }
    }
    let edits = edits(outcome.findings.kept());
    let fixed = apply(&outcome, &edits);
    let after = crcr_domain::Allowlist::parse(fixed.as_bytes(), upstream);

    if args.diff {
        printer.data(&difference(&input.name, outcome.source.text(), after.source.text()));
    } else if args.file.name() == "-" {
        printer.data(&fixed);
    } else if !edits.is_empty() {
        write_whole(Path::new(&input.name), &fixed)?;
    }
    let count = plural(edits.len(), "change", "changes");
    printer.line(&format!("{}: {count}", input.name));
    if after.findings.errors() > 0 {
        let left = plural(after.findings.errors(), "error remains", "errors remain");
        return Err(Failure::user("errors-remain", format!("{left} in `{}`", input.name))
            .hint("`crcr allowlist validate` prints them; they need a decision"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The edits of the findings, in the order of the text; of two that overlap the first.
fn edits(found: &[Diagnostic]) -> Vec<&Edit> {
    let mut edits: Vec<_> =
        found.iter().filter_map(|found| found.fix.as_ref()).flat_map(|fix| &fix.edits).collect();
    edits.sort_by_key(|edit| edit.span.bytes.start);
    let mut end = 0;
    edits.retain(|edit| {
        let apart = edit.span.bytes.start >= end;
        end = end.max(edit.span.bytes.end);
        apart
    });
    edits
}

/// The whole file with the edits made; a byte-order mark and line endings stay.
fn apply(outcome: &ParseOutcome, edits: &[&Edit]) -> String {
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

/// A unified difference without context. An edit stays within its line, so lines pair up.
fn difference(name: &str, before: &str, after: &str) -> String {
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
