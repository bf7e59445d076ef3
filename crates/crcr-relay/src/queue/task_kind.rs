//! The kinds of tasks in the queue, and how a task can end.

use crcr_cidata::webhook_archive::WebhookHead;
use crcr_domain::RepoName;
use crcr_domain::checks::check_run as names;
use crcr_domain::ci_data::job_log::EndedJob;
use crcr_domain::probes::Culprit;
use crcr_domain::protocol::callback::JobId;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::event::EventName;
use crcr_store::{LeasedTask, NewTask, StoreError, StoreKey, pool_of};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::lanes::{self, Lane};
use crate::config::Config;
use crate::limits;

/// A task's payload: stored as JSON, so a change of names here needs an alias for stored tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum TaskKind {
    Dispatch {
        delivery: String,
        repo: RepoName,
        /// Whether the relay itself asks for it, so that everybody else's go first.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_probe: bool,
    },
    /// Make a check run on GitHub show what is known now.
    CheckRun {
        repo: RepoName,
        head_sha: String,
        /// `None` for the check run of the dispatch itself.
        job: Option<CheckedJob>,
    },
    /// Do so for every check run that a commit has or may have of one backend.
    CommitChecks { repo: RepoName, head_sha: String },
    /// Do so for the open heads of upstream, after the backend's entry in the allowlist has changed.
    BackendChecks {
        repo: RepoName,
        /// How many heads were done before.
        done: usize,
    },
    /// Update the check runs of a pull request after its labels changed.
    Labels { pull: u64 },
    /// Re-run a downstream workflow run.
    Rerun { repo: RepoName, run_id: u64, failed_only: bool },
    /// Send a dispatch again that no run answered.
    Redispatch {
        repo: RepoName,
        /// The upstream commit that has the check run of the dispatch.
        head_sha: String,
    },
    /// Re-run every downstream run of a check suite.
    RerunSuite { suite: u64 },
    /// Check whether a dispatch started, and whether its jobs and its run have ended.
    Sweep { delivery: String, repo: RepoName },
    /// Send a result to the external HUD.
    Forward { key: Vec<String>, lane: String, body: String },
    /// Check whether a failure turned a backend red, or a success green again, and send an alert if so.
    Alert {
        repo: RepoName,
        event: EventName,
        head_sha: String,
        /// Whether the job passed.
        #[serde(default)]
        passed: bool,
    },
    /// Send an alert that a name of the allowlist belongs to another repository.
    RepositoryChanged {
        repo: RepoName,
        /// The pinned repository id.
        pinned: u64,
        /// The rejected repository id.
        found: u64,
    },
    /// Look up where a pull request branched off.
    MergeBase {
        pull: u64,
        head_sha: String,
        /// The tip of the base branch when the event was sent.
        base_sha: String,
    },
    /// Mention the oncalls of a repository on a pull request.
    Comment {
        pull: u64,
        repo: RepoName,
        /// The check run that failed.
        check_run: String,
    },
    /// Put a webhook into the archive and the results.
    KeepWebhook { webhook: WebhookHead },
    /// Find out from its log why a job failed.
    JobLog { job: EndedJob },
    /// Cancel the dispatches of a delivery, because a newer one replaces it.
    Supersede { older: String, newer: String },
    /// Ask GitHub for webhooks that it couldn't deliver.
    Reconcile,
    /// Evaluate everything again, because the store was put back to a backup.
    AfterRestore,
    /// Explain the failures of a pull request at a backend.
    Confirm { delivery: String, repo: RepoName },
    /// Tell those who wait for a probe that a job of it has ended.
    ProbeEnded { delivery: String, repo: RepoName },
    /// Find the commit that broke a job on a branch.
    Bisect {
        repo: RepoName,
        workflow: String,
        job: Option<String>,
        /// The first commit that is known to fail.
        bad_sha: String,
    },
    /// Send an alert with the answer to that.
    CulpritFound { culprit: Box<Culprit> },
    /// Read a backend's `.github/crcr.yml`.
    BackendFile { repo: RepoName },
}

/// A job that has a check run, whichever run and attempt of it that shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckedJob {
    pub(crate) workflow: String,
    pub(crate) job: Option<String>,
}

/// The name of a check run, with `repo` spelled as it is to be shown.
pub(crate) fn check_name(repo: &str, job: Option<&CheckedJob>) -> String {
    match job {
        Some(job) => names::name_of_job(repo, &job.workflow, job.job.as_deref()),
        None => names::dispatch_name(repo),
    }
}

pub(crate) enum TaskDone {
    Finished,
    /// The task has to run again at this time.
    RunAgain(Timestamp),
    /// The handler has settled the task in a batch of its own.
    AlreadySettled,
}

#[derive(Debug)]
pub(crate) struct TaskError {
    pub(crate) message: String,
    /// When the server asked for the next try.
    pub(crate) retry_at: Option<Timestamp>,
    /// Another try would get the same answer.
    pub(crate) permanent: bool,
    /// If set, the task is tried until this time, however often, and then given up.
    pub(crate) retry_until: Option<Timestamp>,
    /// GitHub didn't take it now, and would from anybody: an outage or a rate limit. It says nothing about
    /// the task and isn't counted as a try.
    pub(crate) is_outage: bool,
    /// A budget is used up until this time. Only this task waits for it, and it isn't counted as a try.
    pub(crate) not_before: Option<Timestamp>,
}

impl TaskError {
    pub(crate) fn retry(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retry_at: None,
            permanent: false,
            retry_until: None,
            is_outage: false,
            not_before: None,
        }
    }

    pub(crate) fn permanent(message: impl Into<String>) -> Self {
        Self { permanent: true, ..Self::retry(message) }
    }
}

impl From<StoreError> for TaskError {
    fn from(error: StoreError) -> Self {
        Self::retry(error.to_string())
    }
}

impl From<crcr_github::GithubError> for TaskError {
    fn from(error: crcr_github::GithubError) -> Self {
        // A rejected App key is the operator's to repair; the work has to go on after that.
        let retry =
            error.is_transient() || matches!(error, crcr_github::GithubError::Unauthorized(_));
        let mut message = error.to_string();
        if let Some(source) = std::error::Error::source(&error) {
            message = format!("{message}: {source}");
        }
        Self {
            retry_at: error.retry_at(),
            permanent: !retry,
            is_outage: retry,
            ..Self::retry(message)
        }
    }
}

/// A leased task whose payload was parsed.
pub(crate) struct ParsedTask {
    pub(crate) lease: LeasedTask,
    /// An error when another version of crcr wrote the payload.
    pub(crate) kind: Result<TaskKind, String>,
}

impl ParsedTask {
    pub(crate) fn new(lease: LeasedTask) -> Self {
        let kind = serde_json::from_str(&lease.payload).map_err(|error| error.to_string());
        Self { lease, kind }
    }
}

impl TaskKind {
    /// The first part of a dispatch's key.
    pub(crate) const DISPATCH: &'static str = "dispatch";
    /// The first part of a sweep's key.
    pub(crate) const SWEEP: &'static str = "sweep";

    pub(crate) fn dispatch(dispatch: &Dispatch) -> Self {
        Self::Dispatch {
            delivery: dispatch.delivery.clone(),
            repo: dispatch.repo.clone(),
            is_probe: dispatch.probe.is_some(),
        }
    }

    /// Updates the check run of one job, or without `job` that of the dispatch itself.
    pub(crate) fn check_run(dispatch: &Dispatch, job: Option<&JobId>) -> Self {
        Self::CheckRun {
            repo: dispatch.repo.clone(),
            head_sha: dispatch.head_sha.clone(),
            job: job.map(|id| CheckedJob { workflow: id.workflow.clone(), job: id.job.clone() }),
        }
    }

    pub(crate) fn commit_checks(dispatch: &Dispatch) -> Self {
        Self::CommitChecks { repo: dispatch.repo.clone(), head_sha: dispatch.head_sha.clone() }
    }

    pub(crate) fn sweep(dispatch: &Dispatch) -> Self {
        Self::Sweep { delivery: dispatch.delivery.clone(), repo: dispatch.repo.clone() }
    }

    /// Whether a task sends a result to the external HUD.
    pub(crate) fn is_forward(task: &NewTask) -> bool {
        pool_of(&task.lane) == lanes::EXTERNAL_HUD
    }

    /// What "Re-run" on a check run asks for; `None` when the check run isn't the relay's.
    pub(crate) fn rerun_of(
        check_run_name: &str,
        external_id: &str,
        head_sha: &str,
        failed_only: bool,
    ) -> Option<Self> {
        let repo = RepoName::new(names::repo_of(check_run_name)?).ok()?;
        Some(match names::run_of(external_id)? {
            names::NO_RUN => Self::Redispatch { repo, head_sha: head_sha.to_owned() },
            run_id => Self::Rerun { repo, run_id, failed_only },
        })
    }

    pub(crate) fn task(&self, due_at: Timestamp) -> NewTask {
        NewTask {
            key: self.key(),
            lane: self.lane().name(),
            payload: serde_json::to_string(self).expect("tasks are always JSON"),
            due_at,
        }
    }

    /// The label in metrics, which is also the `kind` in the payload.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Dispatch { .. } => Self::DISPATCH,
            Self::CheckRun { .. } => "check_run",
            Self::CommitChecks { .. } => "commit_checks",
            Self::BackendChecks { .. } => "backend_checks",
            Self::Labels { .. } => "labels",
            Self::Rerun { .. } => "rerun",
            Self::Redispatch { .. } => "redispatch",
            Self::RerunSuite { .. } => "rerun_suite",
            Self::Sweep { .. } => Self::SWEEP,
            Self::Forward { .. } => "forward",
            Self::Alert { .. } => "alert",
            Self::RepositoryChanged { .. } => "repository_changed",
            Self::MergeBase { .. } => "merge_base",
            Self::Comment { .. } => "comment",
            Self::KeepWebhook { .. } => "keep_webhook",
            Self::JobLog { .. } => "job_log",
            Self::Supersede { .. } => "supersede",
            Self::Reconcile => "reconcile",
            Self::AfterRestore => "after_restore",
            Self::BackendFile { .. } => "backend_file",
            Self::Confirm { .. } => "confirm",
            Self::ProbeEnded { .. } => "probe_ended",
            Self::Bisect { .. } => "bisect",
            Self::CulpritFound { .. } => "culprit_found",
        }
    }

    /// Whether the task is never given up. Nothing else would follow the dispatch of a sweep, find lost
    /// webhooks, or correct what a pull request shows, and an archive must have no gaps after a long outage.
    pub(crate) fn is_never_given_up(&self) -> bool {
        matches!(
            self,
            Self::CheckRun { .. }
                | Self::CommitChecks { .. }
                | Self::BackendChecks { .. }
                | Self::Labels { .. }
                | Self::Sweep { .. }
                | Self::Supersede { .. }
                | Self::KeepWebhook { .. }
                | Self::Reconcile
                | Self::AfterRestore
        )
    }

    /// How many tries the task gets.
    pub(crate) fn max_tries(&self, config: &Config) -> u32 {
        match (self, &config.hud) {
            (Self::Forward { .. }, Some(hud)) => hud.retries.saturating_add(1),
            (Self::JobLog { .. }, _) => limits::JOB_LOG_TRIES,
            _ => limits::TRIES,
        }
    }

    fn key(&self) -> StoreKey {
        let (repo, number);
        let parts: &[&str] = match self {
            Self::Dispatch { delivery, repo: name, .. }
            | Self::Sweep { delivery, repo: name }
            | Self::Confirm { delivery, repo: name }
            | Self::ProbeEnded { delivery, repo: name } => {
                repo = name.key();
                &[self.name(), delivery, &repo]
            }
            Self::CheckRun { repo: name, head_sha, job } => {
                repo = check_name(&name.key(), job.as_ref());
                &[self.name(), head_sha, &repo]
            }
            Self::CommitChecks { repo: name, head_sha } => {
                repo = name.key();
                &[self.name(), head_sha, &repo]
            }
            Self::BackendChecks { repo: name, done } => {
                (repo, number) = (name.key(), done.to_string());
                &[self.name(), &repo, &number]
            }
            Self::Labels { pull } => {
                number = pull.to_string();
                &[self.name(), &number]
            }
            Self::Rerun { repo: name, run_id, .. } => {
                (repo, number) = (name.key(), run_id.to_string());
                &[self.name(), &repo, &number]
            }
            Self::Redispatch { repo: name, head_sha } => {
                repo = name.key();
                &[self.name(), &repo, head_sha]
            }
            Self::RerunSuite { suite } => {
                number = suite.to_string();
                &[self.name(), &number]
            }
            Self::Forward { key, .. } => {
                let parts = [self.name()].into_iter().chain(key.iter().map(String::as_str));
                return StoreKey::new(&parts.collect::<Vec<_>>());
            }
            Self::Alert { repo: name, event, head_sha, passed } => {
                repo = name.key();
                let turn = if *passed { "green" } else { "red" };
                &[self.name(), &repo, event.as_str(), head_sha, turn]
            }
            Self::RepositoryChanged { repo: name, found, .. } => {
                (repo, number) = (name.key(), found.to_string());
                &[self.name(), &repo, &number]
            }
            Self::MergeBase { pull, head_sha, base_sha } => {
                number = pull.to_string();
                &[self.name(), &number, head_sha, base_sha]
            }
            Self::Comment { pull, repo: name, .. } => {
                (repo, number) = (name.key(), pull.to_string());
                &[self.name(), &number, &repo]
            }
            Self::Bisect { repo: name, workflow, job, bad_sha } => {
                let repo = name.key();
                let mut parts = vec![self.name(), &*repo, bad_sha, workflow];
                parts.extend(job.as_deref());
                return StoreKey::new(&parts);
            }
            Self::CulpritFound { culprit } => {
                let mut parts =
                    vec![self.name(), &culprit.repo, &culprit.bad_sha, &culprit.workflow];
                parts.extend(culprit.job.as_deref());
                return StoreKey::new(&parts);
            }
            Self::BackendFile { repo: name } => {
                repo = name.key();
                &[self.name(), &repo]
            }
            Self::Supersede { older, .. } => &[self.name(), older],
            Self::Reconcile | Self::AfterRestore => &[self.name()],
            Self::KeepWebhook { webhook } => &[self.name(), &webhook.event, &webhook.delivery],
            Self::JobLog { job } => {
                (repo, number) = (job.repository.to_ascii_lowercase(), job.job_id.to_string());
                &[self.name(), &repo, &number]
            }
        };
        StoreKey::new(parts)
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Dispatch { repo, is_probe: true, .. }
            | Self::Confirm { repo, .. }
            | Self::ProbeEnded { repo, .. }
            | Self::Bisect { repo, .. } => Lane::Probes(repo.owner().to_owned()),
            Self::Dispatch { repo, .. }
            | Self::Rerun { repo, .. }
            | Self::Redispatch { repo, .. } => Lane::Dispatches(repo.owner().to_owned()),
            Self::Sweep { repo, .. } | Self::BackendFile { repo } => {
                Lane::Sweeps(repo.owner().to_owned())
            }
            Self::Forward { lane, .. } => Lane::ExternalHud(lane.clone()),
            Self::Alert { .. } | Self::RepositoryChanged { .. } | Self::CulpritFound { .. } => {
                Lane::AlertWebhook
            }
            Self::KeepWebhook { .. } => Lane::KeptWebhooks,
            Self::Supersede { .. } => Lane::Superseding,
            Self::Reconcile => Lane::DeliveryLog,
            Self::JobLog { job } => {
                let owner = job.repository.split('/').next().unwrap_or_default();
                Lane::JobLogs(owner.to_owned())
            }
            Self::CheckRun { repo, head_sha, .. } => {
                Lane::CheckRuns { repo: repo.key(), head_sha: head_sha.clone() }
            }
            Self::CommitChecks { .. }
            | Self::BackendChecks { .. }
            | Self::Labels { .. }
            | Self::RerunSuite { .. }
            | Self::MergeBase { .. }
            | Self::Comment { .. }
            | Self::AfterRestore => Lane::Upstream,
        }
    }
}
