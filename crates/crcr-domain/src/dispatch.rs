//! An upstream event on its way to one downstream repository.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::downstream_run::DownstreamRun;
use crate::event::{EventName, PullRequestAction};
use crate::level::{CheckRunPolicy, Device, Level};
use crate::repo::RepoName;

/// One upstream event for one downstream repository. The commit, pull request, labels and level of a
/// result are always taken from here, never from the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The delivery that caused it.
    pub delivery: String,
    pub upstream: String,
    /// Also the `event_type` that downstream workflows listen for.
    pub event: EventName,
    pub action: Option<PullRequestAction>,
    pub pull_request: Option<u64>,
    pub head_sha: String,
    /// The base commit of the pull request when the event arrived.
    pub base_sha: Option<String>,
    /// The downstream repository, as the allowlist spells it.
    pub repo: RepoName,
    /// The level when the event arrived.
    pub level: Level,
    /// Only at L3.
    pub device: Option<Device>,
    /// The pull request's labels when the event arrived.
    pub labels: Vec<String>,
    /// When the event was accepted.
    pub enqueued_at: Timestamp,
    pub status: DispatchStatus,
    /// Number of calls to GitHub.
    pub tries: u32,
    /// Why the last call failed.
    pub last_error: Option<String>,
    /// GitHub's id of the downstream repository when the dispatch was sent. Somebody who registers the
    /// name later has another id.
    pub repository_id: Option<u64>,
    /// The downstream repository's default branch when the dispatch was sent.
    pub default_branch: Option<String>,
    /// Whether no report came in time.
    #[serde(default)]
    pub never_started: bool,
    /// Whether a report was proven. From then on it isn't sent again: its runs are re-run instead.
    #[serde(default)]
    pub is_answered: bool,
    /// The downstream runs that it started, as of the last request to GitHub.
    #[serde(default)]
    pub runs: Vec<DownstreamRun>,
}

/// Whether a dispatch has check runs on the upstream pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckRunVisibility {
    Shown,
    /// The event has nothing to merge: a push, a closed pull request.
    NoneForEvent,
    /// The level has no check runs. `None`: the repository was removed from the allowlist.
    NoneAtLevel(Option<Level>),
    /// At L3, and the pull request doesn't have the device's label.
    NoneWithoutLabel,
}

/// How far a dispatch got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum DispatchStatus {
    /// Waits for its first or next try.
    Queued,
    Sent {
        at: Timestamp,
    },
    /// A newer head of the pull request arrived before it was sent.
    Superseded {
        /// The delivery that replaced it.
        by: String,
    },
    /// Failed after the last try; can be redelivered.
    Dead,
    /// The App can't reach the repository: not installed, suspended, or lacking a permission.
    Unreachable,
    /// The name now belongs to another repository, which an operator has to confirm.
    RepositoryChanged,
    /// The backend's infrastructure keeps failing, so only a probe now and then is sent.
    Withheld,
}

impl DispatchStatus {
    /// Whether an operator can send it again.
    pub fn can_be_redelivered(&self) -> bool {
        matches!(self, Self::Dead | Self::Unreachable | Self::RepositoryChanged | Self::Withheld)
    }

    /// The name in lists and facts.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sent { .. } => "sent",
            Self::Superseded { .. } => "superseded",
            Self::Dead => "dead",
            Self::Unreachable => "unreachable",
            Self::RepositoryChanged => "repository_changed",
            Self::Withheld => "withheld",
        }
    }
}

impl Dispatch {
    /// Whether `labels` contain the label of this repository's device. Labels compare ignoring case.
    pub fn is_labelled(&self, labels: &[String], prefix: &str) -> bool {
        self.device.as_ref().is_some_and(|device| {
            labels.iter().any(|label| {
                label.get(..prefix.len()).zip(label.get(prefix.len()..)).is_some_and(
                    |(start, rest)| {
                        start.eq_ignore_ascii_case(prefix)
                            && rest.eq_ignore_ascii_case(device.as_str())
                    },
                )
            })
        })
    }

    /// Whether the dispatch has check runs now. `level_now`: the current level (`None`: removed from the
    /// allowlist). `labels`: the current labels of the pull request.
    pub fn check_runs(
        &self,
        level_now: Option<Level>,
        labels: &[String],
        prefix: &str,
    ) -> CheckRunVisibility {
        let in_merge_queue = self.event == EventName::MergeGroup;
        let has_head_to_merge = self.pull_request.is_some() || in_merge_queue;
        let ends =
            self.action == Some(PullRequestAction::Closed) || self.event == EventName::Landed;
        if !has_head_to_merge || ends {
            return CheckRunVisibility::NoneForEvent;
        }
        match level_now.map(|now| self.level.min(now).check_run()) {
            None | Some(CheckRunPolicy::Never) => CheckRunVisibility::NoneAtLevel(level_now),
            // At L3 only repositories that subscribe to merge groups get them.
            Some(CheckRunPolicy::WhenLabelled)
                if !in_merge_queue && !self.is_labelled(labels, prefix) =>
            {
                CheckRunVisibility::NoneWithoutLabel
            }
            Some(CheckRunPolicy::WhenLabelled | CheckRunPolicy::Always) => {
                CheckRunVisibility::Shown
            }
        }
    }

    /// Whether a report is expected. Nothing is built for a pull request that was closed or has landed.
    pub fn expects_report(&self) -> bool {
        self.level.shows_results()
            && self.action != Some(PullRequestAction::Closed)
            && self.event != EventName::Landed
    }

    /// Whether the dispatch has check runs by the level and labels when the event arrived.
    pub fn has_check_run_when_dispatched(&self, prefix: &str) -> bool {
        self.check_runs(Some(self.level), &self.labels, prefix) == CheckRunVisibility::Shown
    }

    /// Whether the dispatch has check runs, or would have them with a label.
    pub fn may_have_check_runs(&self, prefix: &str) -> bool {
        let visibility = self.check_runs(Some(self.level), &self.labels, prefix);
        matches!(visibility, CheckRunVisibility::Shown | CheckRunVisibility::NoneWithoutLabel)
    }

    pub fn sent_at(&self) -> Option<Timestamp> {
        match self.status {
            DispatchStatus::Sent { at } => Some(at),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch() -> Dispatch {
        Dispatch {
            delivery: "d".to_owned(),
            upstream: "acme/upstream".to_owned(),
            event: EventName::PullRequest,
            action: None,
            pull_request: Some(7),
            head_sha: "0".repeat(40),
            base_sha: None,
            repo: RepoName::new("acme/backend").unwrap(),
            level: Level::L3,
            device: Some(Device::new("npu").unwrap()),
            labels: vec![],
            enqueued_at: Timestamp::UNIX_EPOCH,
            status: DispatchStatus::Queued,
            tries: 0,
            last_error: None,
            repository_id: None,
            default_branch: None,
            never_started: false,
            is_answered: false,
            runs: vec![],
        }
    }

    #[test]
    fn check_run_visibility_of_every_event_action_level_and_label() {
        use PullRequestAction::{Closed, Labeled, Opened, Reopened, Synchronize, Unlabeled};
        let on = ["ciflow/crcr/npu".to_owned()];
        let events = [
            (EventName::Push, None, None),
            (EventName::Landed, Some(7), None),
            (EventName::MergeGroup, None, None),
            (EventName::PullRequest, Some(7), Some(Opened)),
            (EventName::PullRequest, Some(7), Some(Reopened)),
            (EventName::PullRequest, Some(7), Some(Synchronize)),
            (EventName::PullRequest, Some(7), Some(Labeled)),
            (EventName::PullRequest, Some(7), Some(Unlabeled)),
            (EventName::PullRequest, Some(7), Some(Closed)),
        ];
        let levels_now = [None, Some(Level::L1), Some(Level::L2), Some(Level::L3), Some(Level::L4)];
        let mut shown = 0;
        for (event, pull_request, action) in events {
            for level in Level::ALL {
                for level_now in levels_now {
                    for labels in [&[][..], &on] {
                        let dispatch = Dispatch {
                            event: event.clone(),
                            pull_request,
                            action,
                            level,
                            ..dispatch()
                        };
                        let ends = [EventName::Push, EventName::Landed].contains(&event)
                            || action == Some(Closed);
                        let lower = level_now.map(|now| level.min(now));
                        let expected = match lower {
                            _ if ends => CheckRunVisibility::NoneForEvent,
                            None | Some(Level::L1 | Level::L2) => {
                                CheckRunVisibility::NoneAtLevel(level_now)
                            }
                            Some(Level::L3)
                                if labels.is_empty() && event == EventName::PullRequest =>
                            {
                                CheckRunVisibility::NoneWithoutLabel
                            }
                            Some(Level::L3 | Level::L4) => CheckRunVisibility::Shown,
                        };
                        let found = dispatch.check_runs(level_now, labels, "ciflow/crcr/");
                        assert_eq!(
                            found, expected,
                            "{event} {action:?} {level} {level_now:?} {labels:?}"
                        );
                        shown += usize::from(found == CheckRunVisibility::Shown);
                    }
                }
            }
        }
        // Five actions: L4 twice, and three pairs that come to L3 with the label; the merge group: all.
        assert_eq!(shown, 5 * (2 + 3) + (2 + 3 * 2));
    }

    #[test]
    fn label_matches_its_device_ignoring_case() {
        let mut dispatch = dispatch();
        let has = |dispatch: &Dispatch, label: &str| {
            dispatch.is_labelled(&[label.to_owned()], "ciflow/crcr/")
        };
        assert!(has(&dispatch, "ciflow/crcr/npu"));
        assert!(has(&dispatch, "Ciflow/CRCR/NPU"));
        assert!(!has(&dispatch, "ciflow/crcr/npu2"));
        assert!(!has(&dispatch, "ciflow/crcr/"));
        assert!(!has(&dispatch, "npu"));
        assert!(!has(&dispatch, "ciflow/crcré"));
        dispatch.device = None;
        assert!(!has(&dispatch, "ciflow/crcr/"));
    }
}
