//! `crcr quarantine …`

mod committed;
mod list;
mod propose;
mod validate;

use std::process::ExitCode;

use crcr_domain::ci_data::quarantine::{MAX_BYTES, ParsedQuarantine};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

pub use self::committed::read_committed;
use crate::cli::allowlist::FindingsFormat;
use crate::cli::quarantine::QuarantineCommand;
use crate::commands;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::{FindingsReport, ListedEntries};

pub async fn run(command: QuarantineCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        QuarantineCommand::Validate(args) => validate::run(&args, env, printer),
        QuarantineCommand::List(args) => list::run(&args, printer),
        QuarantineCommand::Schema => {
            printer.data(include_str!("../../../../schemas/quarantine.json"));
            Ok(ExitCode::SUCCESS)
        }
        QuarantineCommand::Propose(args) => propose::run(&args, env, printer).await,
    }
}

/// In UTC, as in the file.
pub fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

fn read_file(name: &str) -> Result<Vec<u8>, Failure> {
    commands::read_file(name, MAX_BYTES).map_err(|error| {
        Failure::unexpected("quarantine-unreadable", format!("`{name}` can't be read"))
            .because(error)
            .hint("name the file, or `-` for standard input")
    })
}

fn report<'a>(name: &'a str, parsed: &'a ParsedQuarantine) -> FindingsReport<'a> {
    FindingsReport {
        file: if name == "-" { "<stdin>" } else { name },
        source: &parsed.source,
        findings: &parsed.findings,
        listed: ListedEntries::Tests(parsed.entries.len()),
        not_checked: &[],
    }
}

/// Prints all findings to stderr if one is an error.
fn check(name: &str, parsed: &ParsedQuarantine, printer: &Printer) -> Result<(), Failure> {
    if parsed.findings.errors() == 0 {
        return Ok(());
    }
    let text = report(name, parsed).render(FindingsFormat::Text, false);
    printer.line(text.trim_end());
    Err(Failure::user("invalid-quarantine", format!("`{name}` has errors"))
        .hint("fix them first; `crcr quarantine validate` prints them, too"))
}
