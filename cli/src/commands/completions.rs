//! `crcr completions SHELL`: the completion script of a shell.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::cli;
use crate::failure::Outcome;
use crate::printer::Printer;

pub fn run(shell: Shell, printer: &Printer) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::definition(), "crcr", &mut script);
    printer.data(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}
