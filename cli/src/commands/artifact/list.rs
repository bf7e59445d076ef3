//! `crcr artifact list`: lists the artifacts of a run in both stores.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_artifacts::find::{ArtifactSelection, ArtifactSources, FoundArtifact};

use crate::cli::DataFormat;
use crate::cli::artifact::ListArgs;
use crate::commands::artifact::download::name_pattern;
use crate::commands::artifact::sources::{not_found, run_of, service, sources};
use crate::env_vars::Env;
use crate::escape::neutralize;
use crate::failure::Outcome;
use crate::printer::{Printer, human_bytes};

/// Prints name, store, size, created and digest; or an array of locators.
pub async fn run(args: &ListArgs, env: &Env, printer: &Printer) -> Outcome {
    let run = run_of(&args.run, env)?;
    let service = service(env, printer)?;
    let sources = ArtifactSources { service, ..sources(&args.run, &args.s3, env, printer)? };
    let select = match &args.pattern {
        Some(pattern) => ArtifactSelection::Pattern(name_pattern(pattern)?),
        None => ArtifactSelection::All,
    };
    let found = sources.find(&run, &select).await.map_err(|error| not_found(error, env))?;
    let text = match args.format {
        DataFormat::Json => {
            let all: Vec<_> = found.iter().map(|found| found.to_json(&run)).collect();
            format!("{:#}\n", serde_json::json!(all))
        }
        DataFormat::Text => table(&found),
    };
    printer.data_as(args.format, &text);
    if found.is_empty() {
        printer.line(&format!("run {} of `{}` has no artifacts", run.id, run.repository));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(found: &[FoundArtifact]) -> String {
    let dash = || "-".to_owned();
    let rows: Vec<[String; 5]> = found
        .iter()
        .map(|found| {
            [
                neutralize(&found.name).into_owned(),
                found.store().to_owned(),
                found.size.map_or_else(dash, human_bytes),
                found.created.map_or_else(dash, |at| format!("{at:.0}")),
                found.digest.map_or_else(dash, |digest| digest.to_string()),
            ]
        })
        .collect();
    let mut widths = [0; 4];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(text, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", row[4]);
    }
    text
}
