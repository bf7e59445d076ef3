//! Whether a report is proven. Only proven reports change check runs on upstream pull requests.
//!
//! A report from GitHub Actions is proven if its OIDC token belongs to a `repository_dispatch` run on the
//! default branch, and it contains the callback token of its dispatch. Any other report is stored and
//! shown on the HUD as "reported without proof", and changes no check run.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::protocol::dispatch::DispatchStatus;

/// What a report shows about its origin. It is stored with the job, because the default branch may become
/// known only after the report: GitHub's response to the dispatch can be slower than the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportProvenance {
    pub origin: ReportOrigin,
    /// Whether the report contains the callback token of its dispatch, signed by this relay.
    pub has_callback_token: bool,
}

/// Where a job ran, according to its verified OIDC token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportOrigin {
    GitHub {
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
    /// Not proven, and never will be, unless a dispatch that was given up is redelivered.
    Missing(MissingProof),
    /// The dispatch isn't recorded as sent yet, and so the default branch may not be known: the response of
    /// GitHub can be slower than the run. Decided again when it is recorded.
    Undecided,
    Proven,
}

/// In the order in which [`ReportProvenance::proof`] asks, so that a report that lacks less has more authority.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MissingProof {
    /// A self-report without a commit that exists upstream.
    Commit,
    /// A self-report whose commit GitHub couldn't be asked for. Decided again when it answers.
    CommitUnknown,
    /// A self-report of a run that the repository's schedule or a maintainer didn't start.
    Schedule,
    /// The run wasn't started by `repository_dispatch`.
    Event,
    /// The callback token of the dispatch wasn't echoed.
    CallbackToken,
    /// The run isn't on the default branch.
    Branch,
    /// The dispatch was superseded or given up, although GitHub seems to have accepted it. When it is
    /// redelivered, the report is proven after all.
    Dispatch,
}

names! {
    MissingProof {
        Commit "commit", CommitUnknown "commit_unknown", Schedule "schedule", Event "event", CallbackToken "callback_token",
        Branch "branch", Dispatch "dispatch",
    }
}

impl fmt::Display for MissingProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commit => "it names no commit that exists upstream",
            Self::CommitUnknown => "GitHub couldn't be asked for its commit yet",
            Self::Schedule => "its run wasn't started by `schedule` or `workflow_dispatch`",
            Self::Event => "its run wasn't started by `repository_dispatch`",
            Self::Branch => "its run isn't on the default branch",
            Self::CallbackToken => "it doesn't carry the dispatch's `callback_token`",
            Self::Dispatch => "its dispatch was superseded or given up",
        })
    }
}

impl ReportProvenance {
    /// `default_branch` is the downstream repository's, without `refs/heads/`, and `status` that of the dispatch.
    pub fn proof(&self, default_branch: Option<&str>, status: &DispatchStatus) -> ProofStatus {
        if let ReportOrigin::GitHub { event_name, .. } = &self.origin
            && event_name.as_deref() != Some("repository_dispatch")
        {
            return ProofStatus::Missing(MissingProof::Event);
        }
        if !self.has_callback_token {
            return ProofStatus::Missing(MissingProof::CallbackToken);
        }
        let is_sent = matches!(status, DispatchStatus::Sent { .. });
        if let ReportOrigin::GitHub { git_ref, .. } = &self.origin {
            let branch = git_ref.as_deref().and_then(|name| name.strip_prefix("refs/heads/"));
            let may_be_default = default_branch.is_none() && !is_sent;
            if branch.is_none() || (branch != default_branch && !may_be_default) {
                return ProofStatus::Missing(MissingProof::Branch);
            }
        }
        match status {
            DispatchStatus::Sent { .. } => ProofStatus::Proven,
            DispatchStatus::Queued => ProofStatus::Undecided,
            _ => ProofStatus::Missing(MissingProof::Dispatch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_of_every_combination_of_origin_event_branch_and_token() {
        use MissingProof::{Branch, CallbackToken, Event};
        let github = |event: Option<&str>, git_ref: Option<&str>| ReportOrigin::GitHub {
            event_name: event.map(str::to_owned),
            git_ref: git_ref.map(str::to_owned),
        };
        let dispatch = Some("repository_dispatch");
        let main = Some("refs/heads/main");
        let sent = DispatchStatus::Sent { at: jiff::Timestamp::UNIX_EPOCH };
        for token in [true, false] {
            for default in [Some("main"), None] {
                for status in [&sent, &DispatchStatus::Queued, &DispatchStatus::Dead] {
                    let of_status = match status {
                        DispatchStatus::Sent { .. } => ProofStatus::Proven,
                        DispatchStatus::Queued => ProofStatus::Undecided,
                        _ => ProofStatus::Missing(MissingProof::Dispatch),
                    };
                    let is_known = default.is_some() || *status == sent;
                    let missing_branch = ProofStatus::Missing(Branch);
                    let cases = [
                        (github(None, main), ProofStatus::Missing(Event), false),
                        (github(Some("push"), main), ProofStatus::Missing(Event), false),
                        (
                            github(Some("workflow_dispatch"), main),
                            ProofStatus::Missing(Event),
                            false,
                        ),
                        (
                            github(dispatch, main),
                            if is_known && default.is_none() { missing_branch } else { of_status },
                            true,
                        ),
                        (
                            github(dispatch, Some("refs/heads/topic")),
                            if is_known { missing_branch } else { of_status },
                            true,
                        ),
                        (github(dispatch, Some("refs/tags/main")), missing_branch, true),
                        (github(dispatch, None), missing_branch, true),
                        (ReportOrigin::MappedPipeline, of_status, true),
                    ];
                    for (origin, expected, needs_token) in cases {
                        let evidence = ReportProvenance { origin, has_callback_token: token };
                        let expected = if needs_token && !token {
                            ProofStatus::Missing(CallbackToken)
                        } else {
                            expected
                        };
                        let proof = evidence.proof(default, status);
                        assert_eq!(proof, expected, "{evidence:?} {default:?} {status:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn missing_proof_has_one_name_and_says_what_the_report_lacks() {
        for missing in MissingProof::ALL {
            assert_eq!(serde_json::to_value(missing).unwrap(), missing.as_str());
            assert_eq!(MissingProof::from_name(missing.as_str()), Some(missing));
        }
        assert_eq!(MissingProof::from_name("Event"), None);
        let told = MissingProof::ALL.map(|missing| missing.to_string()).join("\n");
        insta::assert_snapshot!(told, @"
        it names no commit that exists upstream
        GitHub couldn't be asked for its commit yet
        its run wasn't started by `schedule` or `workflow_dispatch`
        its run wasn't started by `repository_dispatch`
        it doesn't carry the dispatch's `callback_token`
        its run isn't on the default branch
        its dispatch was superseded or given up
        ");
    }

    #[test]
    fn proof_statuses_are_ordered_by_authority() {
        let missing = MissingProof::ALL.map(ProofStatus::Missing);
        assert!(missing.is_sorted());
        assert!(missing.iter().all(|missing| *missing < ProofStatus::Undecided));
        assert!(ProofStatus::Undecided < ProofStatus::Proven);
    }
}
