//! An upstream event on its way to one downstream repository.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::downstream_run::DownstreamRun;
use crate::event::{EventName, PullRequestAction};
use crate::level::{CheckRunPolicy, Device, Level};
use crate::repo::RepoName;

/// What the relay knows of one event for one downstream repository. Everything that a result is
/// trusted for (commit, pull request, labels, level) is read from here, never from the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The delivery that caused it.
    pub delivery: String,
    pub upstream: String,
    /// The event's name, which is also the `event_type` that the downstream workflow listens for.
    pub event: EventName,
    /// What happened to the pull request.
    pub action: Option<PullRequestAction>,
    /// The pull request, for a `pull_request` event.
    pub pull_request: Option<u64>,
    pub head_sha: String,
    /// The commit that a pull request was compared with when the event came.
    pub base_sha: Option<String>,
    /// The downstream repository, in the allowlist's spelling.
    pub repo: RepoName,
    /// Its level when the event came.
    pub level: Level,
    /// Its device, at L3.
    pub device: Option<Device>,
    /// The pull request's labels when the event came.
    pub labels: Vec<String>,
    /// When the event was accepted.
    pub enqueued_at: Timestamp,
    pub status: DispatchStatus,
    /// Calls made to GitHub for it.
    pub tries: u32,
    /// Why the last of them failed.
    pub last_error: Option<String>,
    /// The downstream repository's number when the dispatch was sent: a name that somebody else
    /// registers later doesn't inherit it.
    pub repository_id: Option<u64>,
    /// The downstream repository's default branch when the dispatch was sent.
    pub default_branch: Option<String>,
    /// Whether the time for a first report passed without one.
    #[serde(default)]
    pub never_started: bool,
    /// The downstream runs that it started, as GitHub told when it was asked last.
    #[serde(default)]
    pub runs: Vec<DownstreamRun>,
}

/// Whether check runs stand for a dispatch upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckRunVisibility {
    Shown,
    /// Nothing is merged by this event: a push, a closed pull request.
    NoneForEvent,
    /// The repository's level has none, or it isn't listed any more.
    NoneAtLevel(Option<Level>),
    /// At L3 without the device's label.
    NoneWithoutLabel,
}

/// How far a dispatch got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum DispatchStatus {
    /// Waits for its turn or its next try.
    Queued,
    Sent {
        at: Timestamp,
    },
    /// A newer head of the same pull request came before it was sent.
    Superseded {
        /// The delivery that replaced it.
        by: String,
    },
    /// Given up after the last try; can be redelivered.
    Dead,
    /// The App can't reach the repository: not installed, suspended, or lacking a permission.
    Unreachable,
    /// The name belongs to another repository than the one that was dispatched to before; an
    /// operator has to confirm that.
    RepositoryChanged,
}

impl DispatchStatus {
    /// Whether an operator can have it sent again.
    pub fn can_be_redelivered(&self) -> bool {
        matches!(self, Self::Dead | Self::Unreachable | Self::RepositoryChanged)
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
        }
    }
}

impl Dispatch {
    /// Whether the label that shows this repository's results is among `labels`; labels compare
    /// without case.
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

    /// Whether check runs stand for it upstream. `level_now` is the repository's level in the
    /// allowlist that is in force (`None`: not listed any more), `labels` are the pull request's now.
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
            // At L3 a merge group is dispatched only to repositories that ask for it.
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

    /// Whether a report has to answer it. Nothing is built for a pull request that was closed or has
    /// landed.
    pub fn expects_report(&self) -> bool {
        self.level.shows_results()
            && self.action != Some(PullRequestAction::Closed)
            && self.event != EventName::Landed
    }

    /// Whether check runs stand for it as the allowlist and the labels were when the event came.
    pub fn has_check_run_when_dispatched(&self, prefix: &str) -> bool {
        self.check_runs(Some(self.level), &self.labels, prefix) == CheckRunVisibility::Shown
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
            runs: vec![],
        }
    }

    #[test]
    fn check_runs_stand_by_event_action_level_then_and_now_and_label() {
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
    fn a_label_belongs_to_its_device_only() {
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
