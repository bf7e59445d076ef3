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
    verdict.confidence == TriageConfidence::Low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_run_says_what_is_being_looked_into() {
        let asked = || BaseProbe::Asked { sha: "b5".to_owned(), delivery: "d".to_owned() };
        let (rerun, base) = ("the failed jobs run once more", "the merge base is run");
        for (reruns, probe, says) in [
            (vec![], BaseProbe::NotAsked, ""),
            (vec![RerunState::Asked], BaseProbe::NotAsked, rerun),
            (vec![RerunState::Accepted], BaseProbe::NotAsked, rerun),
            (vec![RerunState::Impossible], BaseProbe::NotAsked, ""),
            (vec![RerunState::Impossible, RerunState::Accepted], BaseProbe::NotAsked, rerun),
            (vec![RerunState::Accepted], asked(), base),
            (vec![], asked(), base),
            (vec![RerunState::Accepted], BaseProbe::Ended, ""),
            (vec![RerunState::Accepted], BaseProbe::OverBudget, ""),
        ] {
            let reruns = (1..).zip(reruns).collect();
            let confirmation = Confirmation { reruns, base: probe, revision: 1 };
            let progress = confirmation.progress();
            assert_eq!(progress.is_empty(), says.is_empty(), "{confirmation:?}");
            assert!(progress.contains(says), "{confirmation:?}: {progress}");
        }
    }

    #[test]
    fn failure_is_explained_by_a_category_that_is_not_just_a_guess() {
        use {TriageCategory as Category, TriageConfidence as Confidence};
        for (category, confidence, explained, needs_base) in [
            (Category::Upstream, Confidence::High, true, false),
            (Category::Backend, Confidence::Medium, true, false),
            (Category::Infra, Confidence::Low, false, true),
            (Category::Unknown, Confidence::Low, false, true),
            (Category::Unknown, Confidence::Medium, false, false),
        ] {
            let verdict = TriageVerdict {
                schema_version: 1,
                category,
                confidence,
                summary: String::new(),
                suspected_upstream: None,
                evidence: vec![],
                reproduced_on_retry: None,
                analyzer: None,
                analyzed_at: None,
                truncated: false,
            };
            let found = (is_explained(&verdict), needs_merge_base(&verdict));
            assert_eq!(found, (explained, needs_base), "{category:?} {confidence:?}");
        }
    }
}
