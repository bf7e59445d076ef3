//! `crcr downstream …`: checks a backend's `.github/crcr.yml`.

use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;

use crcr_domain::probes::{self, MAX_BYTES, ParsedDownstreamFile};

use crate::cli::allowlist::FindingsFormat;
use crate::cli::downstream::{DownstreamCommand, ValidateDownstreamArgs};
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::{FindingsReport, ListedEntries};
use crate::runner::Runner;

pub fn run(command: &DownstreamCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        DownstreamCommand::Validate(args) => validate(args, env, printer),
        DownstreamCommand::Schema => {
            printer.data(&format!("{:#}\n", probes::schema()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn validate(args: &ValidateDownstreamArgs, env: &Env, printer: &Printer) -> Outcome {
    let parsed = ParsedDownstreamFile::parse(&read_file(&args.file)?);
    let report = FindingsReport {
        file: if args.file == "-" { "<stdin>" } else { &args.file },
        source: &parsed.source,
        findings: &parsed.findings,
        listed: ListedEntries::Settings(parsed.settings),
        not_checked: &[],
    };
    let text = report.render(args.format, printer.color_stdout());
    // A quoted line of the file may contain `##[`, which the runner acts on anywhere in a line.
    let guard = args.format == FindingsFormat::Text && printer.is_under_actions();
    printer.data(&if guard { text.replace("##[", "## [") } else { text });
    Runner::new(env, printer).append_summary(&report.render(FindingsFormat::Markdown, false))?;
    Ok(ExitCode::from(u8::from(parsed.findings.errors() > 0)))
}

/// Reads a file; `-` is standard input. Cut one byte above the size that the parser accepts.
fn read_file(name: &str) -> Result<Vec<u8>, Failure> {
    let bounded = |from: Box<dyn Read>| {
        let mut bytes = Vec::new();
        from.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    let read = match name {
        "-" => bounded(Box::new(io::stdin().lock())),
        _ => File::open(name).and_then(|file| bounded(Box::new(file))),
    };
    read.map_err(|error| {
        Failure::unexpected("downstream-file-unreadable", format!("`{name}` can't be read"))
            .because(error)
            .hint("name the file, or `-` for standard input; `crcr init downstream` writes one")
    })
}
