//! `crcr man --out DIR`: the manual pages of every command.

use std::path::Path;
use std::process::ExitCode;

use crate::cli;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

pub fn run(folder: &Path, printer: &Printer) -> Outcome {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(with_all_help(cli::definition()), folder))
        .map_err(|error| {
            let what = format!("the manual pages can't be written to `{}`", folder.display());
            Failure::unexpected("file-unwritable", what).because(error)
        })?;
    printer.line(&format!("view one with `man -l {}`", folder.join("crcr.1").display()));
    Ok(ExitCode::SUCCESS)
}

/// clap_mangen leaves out the text of each flag that `-h` doesn't show.
fn with_all_help(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| arg.hide_short_help(false)).mut_subcommands(with_all_help)
}
