//! Whether a report is proven. Only proven reports change check runs on upstream pull requests.
//!
//! A report from GitHub Actions is proven if its OIDC token belongs to a `repository_dispatch` run on the
//! default branch, and it contains the callback token of its dispatch. Any other report is stored and
//! shown on the HUD as "reported without proof", and changes no check run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a report shows about its origin. It is stored with the job, because the default branch may become
/// known only after the report: GitHub's response to the dispatch can be slower than the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportProvenance {
    /// `None`: stored by a version that didn't record it.
    pub origin: Option<ReportOrigin>,
    /// Whether the report contains the callback token of its dispatch, signed by this relay.
    pub has_callback_token: bool,
}

/// Where a job ran, according to its verified OIDC token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportOrigin {
    GitHub {
        /// The claim `event_name`.
        event_name: Option<String>,
        /// The claim `ref`, such as `refs/heads/main`.
        git_ref: Option<String>,
    },
    /// A pipeline of another CI system that operators mapped to the repository.
    MappedPipeline,
}

/// Ordered by authority: a report never changes a job that a report with a higher status has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofStatus {
    /// Not proven, and never will be.
    Missing(MissingProof),
    /// The default branch isn't known yet. Decided again when the dispatch is recorded as sent.
    Undecided,
    Proven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingProof {
    /// Stored by a version that didn't record the origin.
    Evidence,
    /// The run wasn't started by `repository_dispatch`.
    Event,
    /// The run isn't on the default branch.
    Branch,
    /// The callback token of the dispatch wasn't echoed.
    CallbackToken,
}

impl MissingProof {
    const ALL: [Self; 4] = [Self::Evidence, Self::Event, Self::Branch, Self::CallbackToken];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Evidence => "evidence",
            Self::Event => "event",
            Self::Branch => "branch",
            Self::CallbackToken => "callback_token",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|missing| missing.as_str() == name)
    }
}

impl fmt::Display for MissingProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evidence => "it was stored by an earlier version of the relay",
            Self::Event => "its run wasn't started by `repository_dispatch`",
            Self::Branch => "its run isn't on the default branch",
            Self::CallbackToken => "it doesn't carry the dispatch's `callback_token`",
        })
    }
}

impl ReportProvenance {
    /// `default_branch` is the downstream repository's, without `refs/heads/`. `may_become_known`: it isn't
    /// known yet, because the dispatch hasn't been recorded as sent.
    pub fn proof(&self, default_branch: Option<&str>, may_become_known: bool) -> ProofStatus {
        let Some(origin) = &self.origin else {
            return ProofStatus::Missing(MissingProof::Evidence);
        };
        if let ReportOrigin::GitHub { event_name, .. } = origin
            && event_name.as_deref() != Some("repository_dispatch")
        {
            return ProofStatus::Missing(MissingProof::Event);
        }
        if !self.has_callback_token {
            return ProofStatus::Missing(MissingProof::CallbackToken);
        }
        let ReportOrigin::GitHub { git_ref, .. } = origin else { return ProofStatus::Proven };
        let branch = git_ref.as_deref().and_then(|name| name.strip_prefix("refs/heads/"));
        match (branch, default_branch) {
            (Some(branch), Some(default)) if branch == default => ProofStatus::Proven,
            (Some(_), None) if may_become_known => ProofStatus::Undecided,
            _ => ProofStatus::Missing(MissingProof::Branch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_of_every_combination_of_origin_event_branch_and_token() {
        use MissingProof::{Branch, CallbackToken, Event};
        let github = |event: Option<&str>, git_ref: Option<&str>| {
            Some(ReportOrigin::GitHub {
                event_name: event.map(str::to_owned),
                git_ref: git_ref.map(str::to_owned),
            })
        };
        let dispatch = Some("repository_dispatch");
        let main = Some("refs/heads/main");
        for token in [true, false] {
            for (default, learnable) in
                [(Some("main"), false), (Some("main"), true), (None, true), (None, false)]
            {
                let cases = [
                    (None, ProofStatus::Missing(MissingProof::Evidence)),
                    (github(None, main), ProofStatus::Missing(Event)),
                    (github(Some("push"), main), ProofStatus::Missing(Event)),
                    (github(Some("workflow_dispatch"), main), ProofStatus::Missing(Event)),
                    (github(Some("pull_request_target"), main), ProofStatus::Missing(Event)),
                    (
                        github(dispatch, main),
                        match (token, default, learnable) {
                            (false, ..) => ProofStatus::Missing(CallbackToken),
                            (true, Some(_), _) => ProofStatus::Proven,
                            (true, None, true) => ProofStatus::Undecided,
                            (true, None, false) => ProofStatus::Missing(Branch),
                        },
                    ),
                    (
                        github(dispatch, Some("refs/heads/topic")),
                        match (token, default, learnable) {
                            (false, ..) => ProofStatus::Missing(CallbackToken),
                            (true, None, true) => ProofStatus::Undecided,
                            (true, ..) => ProofStatus::Missing(Branch),
                        },
                    ),
                    (
                        github(dispatch, Some("refs/tags/main")),
                        ProofStatus::Missing(if token { Branch } else { CallbackToken }),
                    ),
                    (
                        github(dispatch, None),
                        ProofStatus::Missing(if token { Branch } else { CallbackToken }),
                    ),
                    (
                        Some(ReportOrigin::MappedPipeline),
                        if token {
                            ProofStatus::Proven
                        } else {
                            ProofStatus::Missing(CallbackToken)
                        },
                    ),
                ];
                for (origin, expected) in cases {
                    let evidence = ReportProvenance { origin, has_callback_token: token };
                    let proof = evidence.proof(default, learnable);
                    assert_eq!(proof, expected, "{evidence:?} {default:?} {learnable}");
                }
            }
        }
    }

    #[test]
    fn proof_statuses_are_ordered_by_authority() {
        assert!(ProofStatus::Missing(MissingProof::CallbackToken) < ProofStatus::Undecided);
        assert!(ProofStatus::Undecided < ProofStatus::Proven);
    }
}
