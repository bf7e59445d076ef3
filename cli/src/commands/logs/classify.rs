//! `crcr logs classify`: the line that explains why a job failed.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use crcr_cidata::logs::{Baseline, LAST_RESORT, RuleSet, classify, log_sources};
use crcr_domain::ci_data::job_log::{LogClassification, LogMatch, LogMatchSource};
use serde_json::{Value, json};

use super::{open_log, rules, unreadable};
use crate::cli::DataFormat;
use crate::cli::logs::ClassifyArgs;
use crate::escape::neutralize;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// More new lines are in the JSON only.
const MAX_NOVEL: usize = 10;
/// A less certain line isn't worth a look.
const WORTH_A_LOOK_PERCENT: u8 = 25;

pub fn run(args: &ClassifyArgs, printer: &Printer) -> Outcome {
    let logs = args.files.iter().chain(&args.baseline).chain(&args.earlier);
    let stdin = logs.chain(&args.rules).filter(|file| *file == "-");
    if stdin.count() > 1 {
        return Err(Failure::unexpected("usage", "only one file can be standard input"));
    }
    let rules = rules(args.rules.as_deref())?;
    let mut baseline = Baseline::default();
    if let Some(file) = &args.baseline {
        baseline.add_green(open_log(file)?).map_err(|error| unreadable(file, error))?;
    }
    for file in &args.earlier {
        baseline.add_earlier(open_log(file)?).map_err(|error| unreadable(file, error))?;
    }
    let mut results = vec![];
    for file in &args.files {
        let found =
            classify_all(file, &rules, &baseline).map_err(|error| unreadable(file, error))?;
        if found.is_empty() {
            printer.notice(&format!("no logs in `{file}`"));
        }
        results.extend(found);
    }
    let text = match args.format {
        DataFormat::Text => {
            results.iter().map(|(file, result)| text(file, result, args.explain)).collect()
        }
        DataFormat::Json => {
            let entry = |(file, result): &(String, LogClassification)| {
                let LogClassification { found, candidates, novel } = result;
                json!({ "file": file, "match": found, "candidates": candidates, "novel": novel })
            };
            format!("{:#}\n", results.iter().map(entry).collect::<Value>())
        }
    };
    printer.data_as(args.format, &text);
    Ok(ExitCode::SUCCESS)
}

/// A file has one log, a folder or an archive several.
fn classify_all(
    file: &str,
    rules: &RuleSet,
    baseline: &Baseline,
) -> io::Result<Vec<(String, LogClassification)>> {
    let one = |log: Box<dyn Read>| classify(log, rules, Some(baseline));
    if file == "-" {
        let log = crcr_cidata::logs::unpacked(io::stdin())?;
        return Ok(vec![(file.to_owned(), one(log)?)]);
    }
    let path = Path::new(file);
    let sources = log_sources(path)?;
    let mut results = vec![];
    for source in &sources {
        let name = if source.name == file {
            source.name.clone()
        } else {
            format!("{file}/{}", source.name)
        };
        results.push((name, one(source.open()?)?));
    }
    Ok(results)
}

fn text(file: &str, result: &LogClassification, explain: bool) -> String {
    let mut text = String::new();
    match &result.found {
        None if result.candidates.is_empty() => {
            let _ = writeln!(text, "{file}: no line explains the failure");
        }
        None => {
            let _ = writeln!(text, "{file}: not sure which line explains the failure");
        }
        Some(found) => {
            let _ = writeln!(text, "{file}:{}: {}", found.line_number, what(found, result));
            for line in &found.context {
                let mark = if *line == found.line { '>' } else { ' ' };
                let _ = writeln!(text, "{mark} {line}");
            }
        }
    }
    let is_shown = |line: &&LogMatch| {
        explain || result.found.as_ref().is_none_or(|found| found.line_number != line.line_number)
    };
    for line in result.candidates.iter().filter(is_shown).filter(|line| line.certainty_percent > 0)
    {
        let LogMatch { certainty_percent, line_number, line, reasons, .. } = line;
        let _ = writeln!(text, "{certainty_percent:>3} % line {line_number}: {line}");
        for reason in reasons.iter().filter(|_| explain) {
            let _ = writeln!(text, "      {:+.1} {}", reason.points, reason.name);
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

/// What is known of the line.
fn what(found: &LogMatch, result: &LogClassification) -> String {
    let certainty = found.certainty_percent;
    match (&found.rule, &found.category) {
        (Some(rule), Some(category)) if category == LAST_RESORT => {
            let is_worth_a_look = |line: &LogMatch| {
                line.line_number != found.line_number
                    && line.certainty_percent >= WORTH_A_LOOK_PERCENT
            };
            match result.candidates.iter().any(is_worth_a_look) {
                true => format!("{rule}; not sure which line explains the failure"),
                false => format!("{rule}; the log says no more"),
            }
        }
        (Some(rule), Some(category)) => format!("{rule} ({category}), {certainty} % certain"),
        _ if found.by == LogMatchSource::Diff => {
            format!("not in the green run, {certainty} % certain")
        }
        _ => format!("the likeliest line, {certainty} % certain"),
    }
}
