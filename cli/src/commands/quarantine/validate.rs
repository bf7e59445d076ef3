//! `crcr quarantine validate`: prints all findings about a file.

use std::process::ExitCode;

use crcr_domain::ci_data::quarantine::ParsedQuarantine;

use super::{read_file, report, today};
use crate::cli::allowlist::FindingsFormat;
use crate::cli::quarantine::ValidateQuarantineArgs;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;
use crate::runner::Runner;

pub fn run(args: &ValidateQuarantineArgs, env: &Env, printer: &Printer) -> Outcome {
    let parsed = ParsedQuarantine::parse(&read_file(&args.file)?, today());
    let report = report(&args.file, &parsed);
    report.print(args.format, printer);
    Runner::new(env, printer).append_summary(&report.render(FindingsFormat::Markdown, false))?;
    Ok(ExitCode::from(u8::from(parsed.findings.errors() > 0)))
}
