//! Logs whose telling line is known, to measure rules with.

use std::fs::File;
use std::io;
use std::path::Path;

use crcr_domain::ci_data::job_log::{LogClassification, LogMatchSource};
use serde::Deserialize;

use super::{Baseline, LineFeatures, RuleSet, classify, unpacked, weighed_lines};

/// An entry of `labels.toml`, which is in the folder of the logs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelledLog {
    /// The log's name in the folder.
    pub file: String,
    /// The right line contains one of these texts. Empty if no line is right, as in a log that says nothing about the
    /// failure.
    #[serde(default)]
    pub lines: Vec<String>,
    /// The rule that should find it.
    pub rule: Option<String>,
    /// The log of a green run of the same job.
    pub baseline: Option<String>,
    /// The logs of earlier runs of the same job, whether they failed or not.
    #[serde(default)]
    pub earlier: Vec<String>,
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

impl LabelledLog {
    fn is_right(&self, line: &str) -> bool {
        self.lines.iter().any(|text| line.contains(text))
    }

    fn open(&self, folder: &Path) -> io::Result<impl io::Read + use<>> {
        unpacked(File::open(folder.join(&self.file))?)
    }

    fn baseline(&self, folder: &Path) -> io::Result<Baseline> {
        let mut baseline = Baseline::default();
        let open = |name: &String| unpacked(File::open(folder.join(name))?);
        if let Some(name) = &self.baseline {
            baseline.add_green(open(name)?)?;
        }
        for name in &self.earlier {
            baseline.add_earlier(open(name)?)?;
        }
        Ok(baseline)
    }
}

/// What became of a labelled log.
pub struct FixtureResult {
    pub outcome: FixtureOutcome,
    /// Whether one of the candidates is right.
    pub is_offered: bool,
    pub classification: LogClassification,
}

/// Classifies a labelled log and compares. A line that a rule of another name found is wrong if the
/// label names a rule.
pub fn try_fixture(
    folder: &Path,
    log: &LabelledLog,
    rules: &RuleSet,
    with_baseline: bool,
) -> io::Result<FixtureResult> {
    let baseline = if with_baseline { Some(log.baseline(folder)?) } else { None };
    let classification = classify(log.open(folder)?, rules, baseline.as_ref())?;
    let outcome = match &classification.found {
        None if log.lines.is_empty() => FixtureOutcome::Right,
        None => FixtureOutcome::Nothing,
        Some(found) => {
            let is_rule =
                log.rule.is_none() || found.by != LogMatchSource::Rule || log.rule == found.rule;
            let is_right = log.is_right(&found.line) && is_rule;
            if is_right { FixtureOutcome::Right } else { FixtureOutcome::Wrong }
        }
    };
    let is_offered = classification.candidates.iter().any(|line| log.is_right(&line.line));
    Ok(FixtureResult { outcome, is_offered, classification })
}

/// What is weighed in a labelled log.
pub struct LabelledLines {
    /// Each with whether it is right.
    pub lines: Vec<(LineFeatures, bool)>,
    /// The line that a specific rule decides for, if there is one, and whether it is right.
    pub by_rule: Option<(u64, bool)>,
}

pub fn labelled_lines(
    folder: &Path,
    log: &LabelledLog,
    rules: &RuleSet,
    with_baseline: bool,
) -> io::Result<LabelledLines> {
    let baseline = if with_baseline { Some(log.baseline(folder)?) } else { None };
    let (lines, by_rule) = weighed_lines(log.open(folder)?, rules, baseline.as_ref())?;
    let with_label = |line: LineFeatures| {
        let is_right = log.is_right(&line.line);
        (line, is_right)
    };
    Ok(LabelledLines {
        lines: lines.into_iter().map(with_label).collect(),
        by_rule: by_rule.map(|found| (found.line_number, log.is_right(&found.line))),
    })
}
