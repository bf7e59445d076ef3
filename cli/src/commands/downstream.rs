//! `crcr downstream …`: checks a backend's `.github/crcr.yml`.

use std::process::ExitCode;

use crcr_domain::probes::{MAX_BYTES, ParsedDownstreamFile};

use crate::cli::allowlist::FindingsFormat;
use crate::cli::downstream::{DownstreamCommand, ValidateDownstreamArgs};
use crate::commands::read_file;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::{FindingsReport, ListedEntries};
use crate::runner::Runner;

pub fn run(command: &DownstreamCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        DownstreamCommand::Validate(args) => validate(args, env, printer),
        DownstreamCommand::Schema => {
            printer.data(include_str!("../../../schemas/downstream.json"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn validate(args: &ValidateDownstreamArgs, env: &Env, printer: &Printer) -> Outcome {
    let bytes = read_file(&args.file, MAX_BYTES).map_err(|error| {
        let what = format!("`{}` can't be read", args.file);
        Failure::unexpected("downstream-file-unreadable", what)
            .because(error)
            .hint("name the file, or `-` for standard input; `crcr init downstream` writes one")
    })?;
    let parsed = ParsedDownstreamFile::parse(&bytes);
    let report = FindingsReport {
        file: if args.file == "-" { "<stdin>" } else { &args.file },
        source: &parsed.source,
        findings: &parsed.findings,
        listed: ListedEntries::Settings(parsed.settings),
        not_checked: &[],
    };
    report.print(args.format, printer);
    Runner::new(env, printer).append_summary(&report.render(FindingsFormat::Markdown, false))?;
    Ok(ExitCode::from(u8::from(parsed.findings.errors() > 0)))
}
