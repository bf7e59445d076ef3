//! The kinds of tasks in the queue, and how a task can end.

use std::time::Duration;

use crcr_cidata::webhook_archive::WebhookHead;
use crcr_domain::RepoName;
use crcr_domain::checks::check_run as names;
use crcr_domain::checks::proof::MissingProof;
use crcr_domain::ci_data::job_log::EndedJob;
use crcr_domain::probes::Culprit;
use crcr_domain::protocol::callback::JobId;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::AttemptFact;
use crcr_store::{LeasedTask, NewTask, StoreError, StoreKey, pool_of};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::lanes::{self, Lane};
use crate::config::Config;
use crate::limits;
use crate::webhook::signature::digest;

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
        /// Whether the allowlist had the backend before, so that it also gets what it lacks for its required check.
        #[serde(default)]
        was_listed: bool,
        /// `None` for all of them.
        #[serde(default)]
        part: Option<OpenHeads>,
    },
    /// Dispatch the newest event of an open head to a backend whose check is required, and that reports nothing for it.
    RequiredDispatch { delivery: String, repo: RepoName },
    /// Update the check runs of a pull request after its labels changed.
    Labels { pull: u64 },
    /// Re-run a downstream workflow run.
    Rerun {
        repo: RepoName,
        run_id: u64,
        failed_only: bool,
        /// The upstream commit that has the check run.
        head_sha: String,
        /// Whether the check run is the verdict's, so that all runs which it has failed for are re-run.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_of_verdict: bool,
    },
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
        passed: bool,
    },
    /// Look at a feed, and send an alert of what turned red or green on it. It runs again after that.
    AlertFeed { address: String },
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
    /// Put a fact into the results that a relay of another version couldn't read.
    UnreadFact { text: String },
    /// Find out from its log why a job failed.
    JobLog { job: EndedJob },
    /// Decide on a self-report whose commit GitHub couldn't be asked for.
    SelfReportCommit {
        attempt: Box<AttemptFact>,
        commit: String,
        /// What it lacks even if upstream has the commit.
        missing: Option<MissingProof>,
    },
    /// Cancel the dispatches of a delivery, because a newer one replaces it.
    Supersede { older: String, newer: String },
    /// Ask GitHub for webhooks that it couldn't deliver.
    Reconcile,
    /// Evaluate everything again, because the store was put back to a backup.
    AfterRestore,
    /// Evaluate the open heads of every backend.
    AllChecks,
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

/// A part of the open heads of upstream, as they were when an entry had changed: their order changes meanwhile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenHeads {
    /// Which part it is.
    pub(crate) index: usize,
    /// The numbers of pull requests, and the commits of merge groups.
    pub(crate) members: Vec<String>,
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
    /// GitHub, or the external HUD, didn't take it now, and would from anybody: an outage or a rate limit. Or only a relay
    /// of another version can do it. It says nothing about the task and isn't counted as a try.
    pub(crate) is_outage: bool,
    /// GitHub refuses what the request says. Only a task that is never given up is tried again then.
    pub(crate) is_refused: bool,
    /// What was asked of GitHub may have been done all the same.
    pub(crate) may_be_applied: bool,
    /// How long GitHub asked to wait in an outage. Only this task does, and no longer than between its other tries.
    pub(crate) outage_wait: Option<Duration>,
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
            is_refused: false,
            may_be_applied: false,
            outage_wait: None,
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
        Self {
            retry_at: error.retry_at(),
            permanent: !retry,
            is_outage: retry,
            is_refused: !retry,
            may_be_applied: error.may_be_applied(),
            outage_wait: error.retry_after(),
            ..Self::retry(error.with_cause())
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

    /// `was_listed`: whether the allowlist had the backend before.
    pub(crate) fn backend_checks(repo: &RepoName, was_listed: bool) -> Self {
        Self::BackendChecks { repo: repo.clone(), was_listed, part: None }
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
            run_id => Self::Rerun {
                is_of_verdict: check_run_name == names::dispatch_name(repo.as_str()),
                repo,
                run_id,
                failed_only,
                head_sha: head_sha.to_owned(),
            },
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
            Self::RequiredDispatch { .. } => "required_dispatch",
            Self::Labels { .. } => "labels",
            Self::Rerun { .. } => "rerun",
            Self::Redispatch { .. } => "redispatch",
            Self::RerunSuite { .. } => "rerun_suite",
            Self::Sweep { .. } => Self::SWEEP,
            Self::Forward { .. } => "forward",
            Self::Alert { .. } => "alert",
            Self::AlertFeed { .. } => "alert_feed",
            Self::RepositoryChanged { .. } => "repository_changed",
            Self::MergeBase { .. } => "merge_base",
            Self::Comment { .. } => "comment",
            Self::KeepWebhook { .. } => "keep_webhook",
            Self::UnreadFact { .. } => "unread_fact",
            Self::JobLog { .. } => "job_log",
            Self::SelfReportCommit { .. } => "self_report_commit",
            Self::Supersede { .. } => "supersede",
            Self::Reconcile => "reconcile",
            Self::AfterRestore => "after_restore",
            Self::AllChecks => "all_checks",
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
                | Self::RequiredDispatch { .. }
                | Self::Labels { .. }
                | Self::Sweep { .. }
                | Self::Supersede { .. }
                | Self::KeepWebhook { .. }
                | Self::Reconcile
                | Self::AfterRestore
                | Self::AllChecks
        )
    }

    /// How many tries the task gets.
    pub(crate) fn max_tries(&self, config: &Config) -> u32 {
        match (self, &config.hud) {
            (Self::Forward { .. }, Some(hud)) => {
                hud.retries.map_or(limits::TASK_TRIES, |retries| retries.saturating_add(1))
            }
            (Self::JobLog { .. }, _) => limits::JOB_LOG_TRIES,
            _ => limits::TASK_TRIES,
        }
    }

    pub(crate) fn key(&self) -> StoreKey {
        let rest: Vec<String> = match self {
            Self::Dispatch { delivery, repo, .. }
            | Self::RequiredDispatch { delivery, repo }
            | Self::Sweep { delivery, repo }
            | Self::Confirm { delivery, repo }
            | Self::ProbeEnded { delivery, repo } => vec![delivery.clone(), repo.key()],
            Self::CheckRun { repo, head_sha, job } => {
                vec![head_sha.clone(), check_name(&repo.key(), job.as_ref())]
            }
            Self::CommitChecks { repo, head_sha } => vec![head_sha.clone(), repo.key()],
            Self::BackendChecks { repo, was_listed, part } => {
                let part = part.as_ref().map(|part| part.index.to_string());
                [repo.key(), was_listed.to_string()].into_iter().chain(part).collect()
            }
            Self::Labels { pull } => vec![pull.to_string()],
            Self::Rerun { repo, head_sha, is_of_verdict: true, .. } => {
                vec![repo.key(), head_sha.clone()]
            }
            Self::Rerun { repo, run_id, .. } => vec![repo.key(), run_id.to_string()],
            Self::Redispatch { repo, head_sha } => vec![repo.key(), head_sha.clone()],
            Self::RerunSuite { suite } => vec![suite.to_string()],
            Self::Forward { key, .. } => key.clone(),
            Self::Alert { repo, event, head_sha, passed } => {
                let turn = if *passed { "green" } else { "red" };
                vec![repo.key(), event.to_string(), head_sha.clone(), turn.to_owned()]
            }
            Self::AlertFeed { address } => vec![address.clone()],
            Self::RepositoryChanged { repo, found, .. } => vec![repo.key(), found.to_string()],
            Self::MergeBase { pull, head_sha, base_sha } => {
                vec![pull.to_string(), head_sha.clone(), base_sha.clone()]
            }
            Self::Comment { pull, repo, .. } => vec![pull.to_string(), repo.key()],
            Self::Bisect { repo, workflow, job, bad_sha } => {
                let parts = [repo.key(), bad_sha.clone(), workflow.clone()];
                parts.into_iter().chain(job.clone()).collect()
            }
            Self::CulpritFound { culprit } => {
                let Culprit { repo, bad_sha, workflow, job, .. } = &**culprit;
                let parts = [repo.clone(), bad_sha.clone(), workflow.clone()];
                parts.into_iter().chain(job.clone()).collect()
            }
            Self::BackendFile { repo } => vec![repo.key()],
            Self::SelfReportCommit { attempt, .. } => {
                let AttemptFact { repo, delivery, workflow, run_id, run_attempt, job, .. } =
                    &**attempt;
                let (repo, attempt) = (repo.to_ascii_lowercase(), run_attempt.to_string());
                let parts = [repo, delivery.clone(), run_id.clone(), attempt, workflow.clone()];
                parts.into_iter().chain(job.clone()).collect()
            }
            Self::Supersede { older, .. } => vec![older.clone()],
            Self::Reconcile | Self::AfterRestore | Self::AllChecks => vec![],
            Self::KeepWebhook { webhook } => vec![webhook.event.clone(), webhook.delivery.clone()],
            Self::UnreadFact { text } => vec![digest(text.as_bytes())],
            Self::JobLog { job } => {
                vec![job.repository.to_ascii_lowercase(), job.job_id.to_string()]
            }
        };
        let parts = rest.iter().map(String::as_str);
        StoreKey::new(&[self.name()].into_iter().chain(parts).collect::<Vec<_>>())
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Dispatch { repo, is_probe: true, .. }
            | Self::Confirm { repo, .. }
            | Self::ProbeEnded { repo, .. }
            | Self::Bisect { repo, .. } => Lane::Probes(repo.owner().to_owned()),
            Self::SelfReportCommit { attempt, .. } => {
                let owner = attempt.repo.split('/').next().unwrap_or_default();
                Lane::Probes(owner.to_owned())
            }
            Self::Dispatch { repo, .. }
            | Self::Rerun { repo, .. }
            | Self::Redispatch { repo, .. } => Lane::Dispatches(repo.owner().to_owned()),
            Self::Sweep { repo, .. } | Self::BackendFile { repo } => {
                Lane::Sweeps(repo.owner().to_owned())
            }
            Self::Forward { lane, .. } => Lane::ExternalHud(lane.clone()),
            Self::Alert { .. }
            | Self::AlertFeed { .. }
            | Self::RepositoryChanged { .. }
            | Self::CulpritFound { .. } => Lane::AlertWebhook,
            Self::KeepWebhook { .. } | Self::UnreadFact { .. } => Lane::KeptWebhooks,
            Self::Supersede { .. } => Lane::Superseding,
            Self::Reconcile => Lane::DeliveryLog,
            Self::JobLog { job } => {
                let owner = job.repository.split('/').next().unwrap_or_default();
                Lane::JobLogs(owner.to_owned())
            }
            Self::CheckRun { repo, head_sha, .. } => {
                Lane::CheckRuns { repo: repo.key(), head_sha: head_sha.clone() }
            }
            Self::CommitChecks { repo, .. }
            | Self::BackendChecks { repo, .. }
            | Self::RequiredDispatch { repo, .. } => Lane::Evaluations(repo.key()),
            Self::Labels { .. }
            | Self::RerunSuite { .. }
            | Self::MergeBase { .. }
            | Self::Comment { .. }
            | Self::AfterRestore
            | Self::AllChecks => Lane::Upstream,
        }
    }
}
