//! `crcr quarantine list`: the patterns that count today.

use std::process::ExitCode;

use crcr_domain::ci_data::quarantine::{ParsedQuarantine, QuarantineEntry, QuarantineMode};
use serde_json::{Value, json};

use super::{check, read_file, today};
use crate::cli::DataFormat;
use crate::cli::quarantine::{ListArgs, ListedMode};
use crate::failure::Outcome;
use crate::printer::Printer;

pub fn run(args: &ListArgs, printer: &Printer) -> Outcome {
    let today = today();
    let parsed = ParsedQuarantine::parse(&read_file(&args.file)?, today);
    check(&args.file, &parsed, printer)?;
    let mode = args.mode.map(|mode| match mode {
        ListedMode::Run => QuarantineMode::Run,
        ListedMode::Skip => QuarantineMode::Skip,
    });
    let entries = parsed.entries.iter().filter(|entry| !entry.is_expired(today));
    let entries = entries.filter(|entry| mode.is_none_or(|mode| entry.mode == mode));
    match args.format {
        DataFormat::Text => {
            let lines: String = entries.map(|entry| format!("{}\n", entry.pattern)).collect();
            printer.data_text(&lines);
        }
        DataFormat::Json => {
            printer.data_json(&format!("{}\n", entries.map(json).collect::<Value>()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn json(entry: &QuarantineEntry) -> Value {
    json!({
        "pattern": entry.pattern, "owner": entry.owner.as_str(), "reason": entry.reason,
        "expiry": entry.expiry.to_string(), "mode": entry.mode,
    })
}
