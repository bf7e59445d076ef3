//! Logs whose telling line is known, to measure rules with.

use std::fs::File;
use std::io;
use std::path::Path;

use crcr_domain::ci_data::job_log::{LogClassification, LogMatchSource};
use serde::Deserialize;

use super::{Baseline, RuleSet, classify, unpacked};

/// An entry of `labels.toml`, which is in the folder of the logs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelledLog {
    /// The log's name in the folder.
    pub file: String,
    /// Texts of which the right line has one. Empty if no line is right, as in a log that says
    /// nothing about the failure.
    #[serde(default)]
    pub lines: Vec<String>,
    /// The rule that should find it.
    #[serde(default)]
    pub rule: Option<String>,
    /// The log of a green run of the same job.
    #[serde(default)]
    pub baseline: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FixtureOutcome {
    Right,
    Wrong,
    /// No line was found.
    Nothing,
}

/// Reads `labels.toml` of a folder.
pub fn read_labels(folder: &Path) -> io::Result<Vec<LabelledLog>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Labels {
        log: Vec<LabelledLog>,
    }
    let text = std::fs::read_to_string(folder.join("labels.toml"))?;
    let labels: Labels = toml::from_str(&text).map_err(io::Error::other)?;
    Ok(labels.log)
}

/// Classifies a labelled log and compares. A line that a rule of another name found is wrong if the
/// label names a rule.
pub fn try_fixture(
    folder: &Path,
    log: &LabelledLog,
    rules: &RuleSet,
    with_baseline: bool,
) -> io::Result<(FixtureOutcome, LogClassification)> {
    let open = |name: &str| unpacked(File::open(folder.join(name))?);
    let baseline = log.baseline.as_deref().filter(|_| with_baseline);
    let baseline = baseline.map(|name| Baseline::read(open(name)?)).transpose()?;
    let result = classify(open(&log.file)?, rules, baseline.as_ref())?;
    let outcome = match &result.found {
        None if log.lines.is_empty() => FixtureOutcome::Right,
        None => FixtureOutcome::Nothing,
        Some(found) => {
            let is_line = log.lines.iter().any(|text| found.line.contains(text));
            let is_rule =
                log.rule.is_none() || found.by == LogMatchSource::Diff || log.rule == found.rule;
            if is_line && is_rule { FixtureOutcome::Right } else { FixtureOutcome::Wrong }
        }
    };
    Ok((outcome, result))
}
