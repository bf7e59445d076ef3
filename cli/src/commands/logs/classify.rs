//! `crcr logs classify`: the line that explains why a job failed.

use std::fmt::Write as _;
use std::process::ExitCode;

use crcr_cidata::logs::{Baseline, LAST_RESORT, classify};
use crcr_domain::ci_data::job_log::{LogClassification, LogMatchSource};
use serde_json::json;

use super::{json_text, open_log, rules, unreadable};
use crate::cli::DataFormat;
use crate::cli::logs::ClassifyArgs;
use crate::escape::neutralize;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// More new lines are in the JSON only.
const MAX_NOVEL: usize = 10;

pub fn run(args: &ClassifyArgs, printer: &Printer) -> Outcome {
    let stdin = args.files.iter().chain(&args.baseline).chain(&args.rules).filter(|f| *f == "-");
    if stdin.count() > 1 {
        return Err(Failure::unexpected("usage", "only one file can be standard input"));
    }
    let rules = rules(args.rules.as_deref())?;
    let baseline = match &args.baseline {
        Some(file) => {
            let read = Baseline::read(open_log(file)?);
            Some(read.map_err(|error| unreadable(file, error))?)
        }
        None => None,
    };
    let mut results = vec![];
    for file in &args.files {
        let result = classify(open_log(file)?, &rules, baseline.as_ref());
        results.push((file, result.map_err(|error| unreadable(file, error))?));
    }
    let text = match args.format {
        DataFormat::Text => results.iter().map(|(file, result)| text(file, result)).collect(),
        DataFormat::Json => {
            let entry = |(file, result): &(&String, LogClassification)| json!({ "file": file, "match": result.found, "novel": result.novel });
            json_text(&results.iter().map(entry).collect())
        }
    };
    printer.data(&text);
    Ok(ExitCode::SUCCESS)
}

fn text(file: &str, result: &LogClassification) -> String {
    let mut text = String::new();
    match &result.found {
        None => {
            let _ = writeln!(text, "{file}: no line explains the failure");
        }
        Some(found) => {
            let what = match (found.by, &found.rule, &found.category) {
                (LogMatchSource::Rule, Some(rule), Some(category)) if category == LAST_RESORT => {
                    format!("{rule}; the log says no more")
                }
                (LogMatchSource::Rule, Some(rule), Some(category)) => {
                    format!("{rule} ({category})")
                }
                _ => "not in the green run".to_owned(),
            };
            let _ = writeln!(text, "{file}:{}: {what}", found.line_number);
            for line in &found.context {
                let mark = if *line == found.line { '>' } else { ' ' };
                let _ = writeln!(text, "{mark} {line}");
            }
        }
    }
    if !result.novel.is_empty() {
        let _ = writeln!(text, "{} lines aren't in the green run:", result.novel.len());
        for novel in result.novel.iter().take(MAX_NOVEL) {
            let _ = writeln!(text, "{:>8}  {}", novel.line_number, novel.line);
        }
    }
    neutralize(&text).into_owned()
}
