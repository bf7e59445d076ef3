//! `crcr logs …`

mod classify;
mod fetch;
mod import_rules;
mod test;

use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;

use crcr_cidata::logs::{RuleSet, STARTER_RULES, unpacked};

use crate::cli::logs::LogsCommand;
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

pub async fn run(command: LogsCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        LogsCommand::Classify(args) => classify::run(&args, printer),
        LogsCommand::Test(args) => test::run(&args, printer),
        LogsCommand::ImportRules(args) => import_rules::run(&args, printer),
        LogsCommand::Rules => {
            printer.data(STARTER_RULES);
            Ok(ExitCode::SUCCESS)
        }
        LogsCommand::Fetch(args) => Box::pin(fetch::run(&args, env, printer)).await,
    }
}

/// The rules of a file, or those of `crcr`.
fn rules(file: Option<&str>) -> Result<RuleSet, Failure> {
    let Some(file) = file else { return Ok(RuleSet::starter()) };
    let text = read_text(file)?;
    RuleSet::parse(&text).map_err(|findings| {
        let count = match findings.len() {
            1 => "a mistake".to_owned(),
            count => format!("{count} mistakes"),
        };
        let list: String = findings.iter().map(|finding| format!("\n  {finding}")).collect();
        Failure::user("log-rules", format!("`{file}` has {count}:{list}"))
            .hint("`crcr logs rules` prints rules to start from")
    })
}

fn read_text(file: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if file == "-" {
        io::stdin().lock().read_to_string(&mut text)
    } else {
        File::open(file).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map(|_| text).map_err(|error| unreadable(file, error))
}

/// A log, whether it is compressed or not.
fn open_log(file: &str) -> Result<Box<dyn Read>, Failure> {
    let opened =
        if file == "-" { unpacked(io::stdin()) } else { File::open(file).and_then(unpacked) };
    opened.map_err(|error| unreadable(file, error))
}

fn unreadable(file: &str, error: io::Error) -> Failure {
    Failure::unexpected("log-unreadable", format!("`{file}` can't be read"))
        .because(error)
        .hint("name the file, or `-` for standard input")
}
