//! How a failure gets an answer that stored results don't give: its failed jobs run once more, and the merge base is
//! run if that fails, too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::results::triage::{TriageCategory, TriageConfidence, TriageVerdict};

/// What was done to explain the failures of one backend on one head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmation {
    /// The runs whose failed jobs were to run once more.
    pub reruns: BTreeMap<u64, RerunState>,
    pub base: BaseProbe,
    /// Grows with everything that may change the answer.
    pub revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerunState {
    /// GitHub may have been asked.
    Asked,
    Accepted,
    /// The budget is spent, or GitHub refused the run.
    Impossible,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum BaseProbe {
    #[default]
    NotAsked,
    Asked {
        sha: String,
        delivery: String,
    },
    Ended,
    OverBudget,
}

impl Confirmation {
    /// What is going on, for the text of a check run; empty if nothing is.
    pub fn progress(&self) -> &'static str {
        if matches!(self.base, BaseProbe::Asked { .. }) {
            "Being looked into: the merge base is run to see whether it fails, too"
        } else if self.base == BaseProbe::NotAsked
            && self.reruns.values().any(|state| *state != RerunState::Impossible)
        {
            "Being looked into: the failed jobs run once more"
        } else {
            ""
        }
    }
}

/// Whether the stored results explain a failure.
pub fn is_explained(verdict: &TriageVerdict) -> bool {
    verdict.category != TriageCategory::Unknown && verdict.confidence != TriageConfidence::Low
}

/// Whether a result on the merge base could still tell something.
pub fn needs_merge_base(verdict: &TriageVerdict) -> bool {
    !is_explained(verdict) && verdict.confidence == TriageConfidence::Low
}
