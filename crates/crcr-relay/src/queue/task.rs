//! The kinds of tasks, and how a task can end.

use crcr_domain::RepoName;
use crcr_domain::callback::JobId;
use crcr_domain::check_run as names;
use crcr_domain::dispatch::Dispatch;
use crcr_domain::event::EventName;
use crcr_store::{Key, NewTask, StoreError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::limits;
use crate::relay::Relay;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Work {
    Dispatch {
        delivery: String,
        repo: RepoName,
    },
    /// Make a check run on GitHub show what is known now.
    CheckRun {
        /// The delivery that it belongs to.
        delivery: String,
        repo: RepoName,
        head_sha: String,
        /// The job; without one, the dispatch itself.
        job: Option<JobId>,
    },
    /// Make the check runs of a pull request follow its labels.
    Labels {
        pull: u64,
    },
    /// Run a downstream run's failed jobs, or all of its jobs, again.
    Rerun {
        repo: RepoName,
        run_id: u64,
        /// The failed ones only.
        failed_only: bool,
    },
    /// Send again what no run answered.
    Redispatch {
        repo: RepoName,
        /// The upstream commit, on which the check run of the dispatch stands.
        head_sha: String,
    },
    /// Run everything of a check suite again.
    RerunSuite {
        suite: u64,
    },
    /// Look whether a dispatch started, and whether its jobs and its run have ended.
    Sweep {
        delivery: String,
        repo: RepoName,
    },
    /// Send a result to the external HUD.
    Forward {
        key: Vec<String>,
        lane: String,
        body: String,
    },
    /// Look whether a failure turned a backend red, and tell the webhook for that.
    Alert {
        repo: RepoName,
        event: EventName,
        head_sha: String,
    },
    /// Tell the alert webhook that a name of the allowlist belongs to another repository.
    RepositoryChanged {
        repo: RepoName,
        /// The number that is pinned.
        pinned: u64,
        /// The number that was refused.
        found: u64,
    },
    /// Learn where a pull request branched off.
    MergeBase {
        pull: u64,
        head_sha: String,
        /// Where its base branch was.
        base_sha: String,
    },
    /// Call the oncalls of a repository to a pull request.
    Comment {
        pull: u64,
        repo: RepoName,
        /// The check run that failed.
        check_run: String,
    },
}

pub enum Outcome {
    Done,
    /// The task has to come again.
    Later(Timestamp),
    /// The handler has settled the task in a batch of its own.
    Settled,
}

#[derive(Debug)]
pub struct Fail {
    pub error: String,
    /// When GitHub wants the next try.
    pub retry_at: Option<Timestamp>,
    /// Another try gets the same answer.
    pub permanent: bool,
    /// It is tried until then, however often, and then given up.
    pub until: Option<Timestamp>,
}

impl Fail {
    pub fn retry(error: impl Into<String>) -> Self {
        Self { error: error.into(), retry_at: None, permanent: false, until: None }
    }

    /// Another try gets the same answer.
    pub fn permanent(error: impl Into<String>) -> Self {
        Self { error: error.into(), retry_at: None, permanent: true, until: None }
    }
}

impl From<StoreError> for Fail {
    fn from(error: StoreError) -> Self {
        Self::retry(error.to_string())
    }
}

impl From<crcr_github::Error> for Fail {
    fn from(error: crcr_github::Error) -> Self {
        // A refused identity is the operator's to repair, and then the work has to go on.
        let passing = error.is_transient() || matches!(error, crcr_github::Error::Unauthorized(_));
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(&error) {
            text = format!("{text}: {source}");
        }
        Self { error: text, retry_at: error.retry_at(), permanent: !passing, until: None }
    }
}

impl Work {
    /// The first part of a sweep's key.
    pub const SWEEP: &'static str = "sweep";

    /// The task that sends a dispatch.
    pub fn dispatch(dispatch: &Dispatch) -> Self {
        Self::Dispatch { delivery: dispatch.delivery.clone(), repo: dispatch.repo.clone() }
    }

    /// The task that keeps a check run of a dispatch: of one job, or of the dispatch itself.
    pub fn check_run(dispatch: &Dispatch, job: Option<&JobId>) -> Self {
        Self::CheckRun {
            delivery: dispatch.delivery.clone(),
            repo: dispatch.repo.clone(),
            head_sha: dispatch.head_sha.clone(),
            job: job.cloned(),
        }
    }

    /// The task that looks after a dispatch.
    pub fn sweep(dispatch: &Dispatch) -> Self {
        Self::Sweep { delivery: dispatch.delivery.clone(), repo: dispatch.repo.clone() }
    }

    /// The re-run that a check run on `head_sha` asks for; `None` when it isn't ours.
    pub fn rerun_of(
        name: &str,
        external_id: &str,
        head_sha: &str,
        failed_only: bool,
    ) -> Option<Self> {
        let repo = RepoName::new(names::repo_of(name)?).ok()?;
        Some(match names::run_of(external_id)? {
            names::NO_RUN => Self::Redispatch { repo, head_sha: head_sha.to_owned() },
            run_id => Self::Rerun { repo, run_id, failed_only },
        })
    }

    /// The task, due at `at`.
    pub fn task_at(&self, at: Timestamp) -> NewTask {
        NewTask {
            key: self.key(),
            lane: self.lane(),
            payload: serde_json::to_string(self).expect("tasks are always JSON"),
            due_at: at,
        }
    }

    /// The task, due at `at`; upstream's tasks are in the lane of upstream's account.
    pub fn task(&self, relay: &Relay, at: Timestamp) -> NewTask {
        let mut task = self.task_at(at);
        if task.lane.is_empty() {
            task.lane = relay.config.upstream.owner().to_ascii_lowercase();
        }
        task
    }

    /// The name of a payload's kind, for metrics.
    pub fn kind(payload: &str) -> &'static str {
        match serde_json::from_str(payload) {
            Ok(Self::Dispatch { .. }) => "dispatch",
            Ok(Self::CheckRun { .. }) => "check_run",
            Ok(Self::Labels { .. }) => "labels",
            Ok(Self::Rerun { .. }) => "rerun",
            Ok(Self::Redispatch { .. }) => "redispatch",
            Ok(Self::RerunSuite { .. }) => "rerun_suite",
            Ok(Self::Sweep { .. }) => "sweep",
            Ok(Self::Forward { .. }) => "forward",
            Ok(Self::Alert { .. }) => "alert",
            Ok(Self::RepositoryChanged { .. }) => "repository_changed",
            Ok(Self::MergeBase { .. }) => "merge_base",
            Ok(Self::Comment { .. }) => "comment",
            Err(_) => "unknown",
        }
    }

    /// Whether a payload's task is a timer, which is never given up: nothing else would look at what
    /// it looks after.
    pub fn is_timer(payload: &str) -> bool {
        matches!(serde_json::from_str(payload), Ok(Self::Sweep { .. }))
    }

    /// How often a payload's task is tried before it is given up.
    pub fn tries(payload: &str, config: &Config) -> u32 {
        match (serde_json::from_str(payload), &config.hud) {
            (Ok(Self::Forward { .. }), Some(hud)) => hud.retries.saturating_add(1),
            _ => limits::TRIES,
        }
    }

    fn key(&self) -> Key {
        match self {
            Self::Dispatch { delivery, repo } => Key::new(&["dispatch", delivery, &repo.key()]),
            Self::CheckRun { repo, head_sha, job, .. } => {
                let name = match job {
                    Some(job) => names::job_name(&repo.key(), job),
                    None => names::dispatch_name(&repo.key()),
                };
                Key::new(&["check_run", head_sha, &name])
            }
            Self::Labels { pull } => Key::new(&["labels", &pull.to_string()]),
            Self::Rerun { repo, run_id, .. } => {
                Key::new(&["rerun", &repo.key(), &run_id.to_string()])
            }
            Self::Redispatch { repo, head_sha } => Key::new(&["redispatch", &repo.key(), head_sha]),
            Self::RerunSuite { suite } => Key::new(&["rerun_suite", &suite.to_string()]),
            Self::Sweep { delivery, repo } => Key::new(&[Self::SWEEP, delivery, &repo.key()]),
            Self::Forward { key, .. } => {
                let mut parts = vec!["forward"];
                parts.extend(key.iter().map(String::as_str));
                Key::new(&parts)
            }
            Self::Alert { repo, event, head_sha } => {
                Key::new(&["alert", &repo.key(), event.as_str(), head_sha])
            }
            Self::RepositoryChanged { repo, found, .. } => {
                Key::new(&["repository_changed", &repo.key(), &found.to_string()])
            }
            Self::MergeBase { pull, head_sha, base_sha } => {
                Key::new(&["merge_base", &pull.to_string(), head_sha, base_sha])
            }
            Self::Comment { pull, repo, .. } => {
                Key::new(&["comment", &pull.to_string(), &repo.key()])
            }
        }
    }

    /// Who is asked: an account's installation, which is empty for upstream's, or a server of its own.
    fn lane(&self) -> String {
        match self {
            Self::Dispatch { repo, .. }
            | Self::Rerun { repo, .. }
            | Self::Redispatch { repo, .. }
            | Self::Sweep { repo, .. } => repo.owner().to_ascii_lowercase(),
            Self::Forward { lane, .. } => format!("hud of {lane}"),
            // No account has a space in its name: what this webhook says pauses nobody else.
            Self::Alert { .. } | Self::RepositoryChanged { .. } => "alert webhook".to_owned(),
            Self::CheckRun { .. }
            | Self::Labels { .. }
            | Self::RerunSuite { .. }
            | Self::MergeBase { .. }
            | Self::Comment { .. } => String::new(),
        }
    }
}
