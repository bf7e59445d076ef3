//! An upstream event on its way to one downstream repository.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::event::PullRequestAction;
use crate::level::{Device, Level};
use crate::lifecycle::Conclusion;
use crate::repo::RepoName;

/// What the relay knows of one event for one downstream repository. Everything that a result is
/// trusted for (commit, pull request, labels, level) is read from here, never from the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The delivery that caused it.
    pub delivery: String,
    /// The upstream repository.
    pub upstream: String,
    /// The event's name, which is also the `event_type` that the downstream workflow listens for.
    pub event: String,
    /// What happened to the pull request.
    pub action: Option<PullRequestAction>,
    /// The pull request, for a `pull_request` event.
    pub pull_request: Option<u64>,
    /// The upstream commit.
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
    /// How far it got.
    pub status: Status,
    /// Calls made to GitHub for it.
    pub tries: u32,
    /// Why the last of them failed.
    pub last_error: Option<String>,
    /// The downstream repository's number when the dispatch was sent: a name that somebody else
    /// registers later doesn't inherit it.
    pub repository_id: Option<u64>,
    /// The downstream repository's default branch when the dispatch was sent.
    pub default_branch: Option<String>,
    /// How the whole of it ended downstream, once that is known.
    pub end: Option<End>,
}

/// How a dispatch ended downstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The verdict on all of its jobs.
    pub conclusion: Conclusion,
    /// Why, in a line.
    pub reason: String,
    /// Nothing was ever heard of it.
    pub never_started: bool,
}

/// How far a dispatch got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum Status {
    /// Waits for its turn or its next try.
    Queued,
    /// GitHub took it.
    Sent {
        /// When.
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
}

impl Status {
    /// Whether an operator can have it sent again.
    #[must_use]
    pub fn may_come_again(&self) -> bool {
        matches!(self, Self::Dead | Self::Unreachable)
    }

    /// The name in lists and facts.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sent { .. } => "sent",
            Self::Superseded { .. } => "superseded",
            Self::Dead => "dead",
            Self::Unreachable => "unreachable",
        }
    }
}

impl Dispatch {
    /// Whether the label that shows this repository's results is among `labels`; labels compare
    /// without case.
    #[must_use]
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

    /// Whether its results become check runs on a pull request that carries `labels` now.
    #[must_use]
    pub fn is_shown(&self, labels: &[String], prefix: &str) -> bool {
        self.pull_request.is_some()
            && self.level.check_run().applies(self.is_labelled(labels, prefix))
    }

    /// When GitHub took it.
    #[must_use]
    pub fn sent_at(&self) -> Option<Timestamp> {
        match self.status {
            Status::Sent { at } => Some(at),
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
            event: "pull_request".to_owned(),
            action: None,
            pull_request: Some(7),
            head_sha: "0".repeat(40),
            base_sha: None,
            repo: RepoName::new("acme/backend").unwrap(),
            level: Level::L3,
            device: Some(Device::new("npu").unwrap()),
            labels: vec![],
            enqueued_at: Timestamp::UNIX_EPOCH,
            status: Status::Queued,
            tries: 0,
            last_error: None,
            repository_id: None,
            default_branch: None,
            end: None,
        }
    }

    #[test]
    fn every_level_with_and_without_its_label() {
        let on = ["ciflow/crcr/npu".to_owned()];
        for (level, without, with) in [
            (Level::L1, false, false),
            (Level::L2, false, false),
            (Level::L3, false, true),
            (Level::L4, true, true),
        ] {
            let mut dispatch = Dispatch { level, ..dispatch() };
            assert_eq!(dispatch.is_shown(&[], "ciflow/crcr/"), without, "{level}");
            assert_eq!(dispatch.is_shown(&on, "ciflow/crcr/"), with, "{level}");
            dispatch.pull_request = None;
            assert!(!dispatch.is_shown(&on, "ciflow/crcr/"), "a push has no pull request");
        }
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
