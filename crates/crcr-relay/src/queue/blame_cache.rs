//! Whose fault the failed jobs of a commit are, read for all of them at once.
//!
//! The verdict on one job depends on the others, so each read takes all results of the pull request. If every
//! failing job read them, hundreds of failing jobs would cost hundreds of times as much as one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crcr_domain::checks::lifecycle::JobState;
use crcr_domain::probes::confirm::Confirmation;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::results::triage::{TriageCategory, TriageConfidence, TriageVerdict};
use crcr_domain::results::{JobOutcome, jobs_of_record};
use crcr_results::blame::{blame_jobs, read_pushes};
use crcr_results::{AttemptFilter, ResultsError};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::relay::Relay;
use crate::state_records::{JobRecord, confirmation_key};

const MAX_COMMITS: usize = 64;
/// The part of one processor's time that reads for one commit may take.
const CPU_SHARE: f64 = 0.1;
/// Reads up to this time don't wait.
const BURST: Duration = Duration::from_millis(500);

/// Pull request and commit.
type CommitKey = (u64, String);

#[derive(Default)]
pub(crate) struct BlameCache {
    commits: Mutex<HashMap<CommitKey, Arc<tokio::sync::Mutex<BlameOfCommit>>>>,
    #[cfg(test)]
    pub(crate) reads: std::sync::atomic::AtomicUsize,
}

/// Repository, workflow and job.
type JobName = (String, String, Option<String>);

/// Run and attempt, the job's state then, and what was said about it.
type BlameOfJob = ((String, u32), JobState, Option<String>);

/// A job of record, and whose fault it is.
pub(crate) struct BlamedJob {
    /// In lower case.
    pub(crate) repo: String,
    pub(crate) workflow: String,
    pub(crate) job: Option<String>,
    pub(crate) run_id: String,
    pub(crate) run_attempt: u32,
    state: JobState,
    pub(crate) outcome: Option<JobOutcome>,
    /// In how many attempts on this commit its tests failed.
    pub(crate) failed_attempts: usize,
    pub(crate) verdict: Option<TriageVerdict>,
}

#[derive(Default)]
struct BlameOfCommit {
    /// The revision of the confirmation that was read with them, by repository.
    revisions: HashMap<String, u64>,
    /// What the last read said about each job.
    verdicts: HashMap<JobName, BlameOfJob>,
    /// The time that reads took beyond their share.
    debt: Duration,
    counted_at: Option<Instant>,
}

/// Whose fault a job is, or when that can be read.
pub(crate) enum Blame {
    Known(Option<String>),
    ReadAfter(Duration),
}

impl BlameCache {
    /// Whose fault a failed job is, as far as the results tell by now.
    pub(crate) async fn of_job(
        &self,
        relay: &Relay,
        dispatch: &Dispatch,
        job: &JobRecord,
    ) -> Blame {
        let failed = matches!(job.state, JobState::Completed(end) if !end.is_good());
        let Some(number) = dispatch.pull_request.filter(|_| failed) else {
            return Blame::Known(None);
        };
        let commit = {
            let mut commits = self.commits.lock();
            if commits.len() > MAX_COMMITS {
                // Those that somebody waits for stay.
                commits.retain(|_, one| Arc::strong_count(one) > 1);
            }
            Arc::clone(commits.entry((number, dispatch.head_sha.clone())).or_default())
        };
        let key = confirmation_key(&dispatch.repo, &dispatch.head_sha);
        let confirmation = relay.read_record::<Confirmation>(key).await;
        let confirmation = confirmation.ok().and_then(|read| read.value).unwrap_or_default();
        let revision = confirmation.revision;
        // Whoever comes while it is read waits, and finds what was read.
        let mut commit = commit.lock().await;
        let name = (dispatch.repo.key(), job.id.workflow.clone(), job.id.job.clone());
        let attempt = (job.id.run_id.clone(), job.id.run_attempt);
        if let Some((of_attempt, state, verdict)) = commit.verdicts.get(&name)
            && (of_attempt, state) == (&attempt, &job.state)
            && commit.revisions.get(&name.0).copied().unwrap_or_default() == revision
        {
            return Blame::Known(with_progress(verdict.clone(), &confirmation));
        }
        if let Some(wait) = commit.wait() {
            return Blame::ReadAfter(wait);
        }
        #[cfg(test)]
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let began = Instant::now();
        match read(relay, number, &dispatch.head_sha).await {
            Ok(jobs) => {
                commit.verdicts = jobs.iter().map(BlamedJob::shown).collect();
                commit.revisions.insert(name.0.clone(), revision);
            }
            Err(error) => {
                tracing::warn!(number, %error, "the check run doesn't say whose fault the failure is");
            }
        }
        commit.debt += began.elapsed();
        let verdict = commit.verdicts.get(&name).and_then(|(_, _, verdict)| verdict.clone());
        Blame::Known(with_progress(verdict, &confirmation))
    }
}

impl BlameOfCommit {
    /// How long the next read has to wait.
    fn wait(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let passed = self.counted_at.map_or(Duration::ZERO, |at| now.duration_since(at));
        self.counted_at = Some(now);
        self.debt = self.debt.saturating_sub(passed.mul_f64(CPU_SHARE));
        let over = self.debt.checked_sub(BURST).filter(|over| !over.is_zero())?;
        Some(over.div_f64(CPU_SHARE).max(Duration::from_millis(10)))
    }
}

/// A verdict that isn't certain, with what is done about it.
fn with_progress(verdict: Option<String>, confirmation: &Confirmation) -> Option<String> {
    let progress = confirmation.progress();
    match verdict {
        _ if progress.is_empty() => verdict,
        None => Some(progress.to_owned()),
        Some(verdict) if verdict.contains(" or the backend") => {
            Some(format!("{verdict}. {progress}"))
        }
        Some(verdict) => Some(verdict),
    }
}

impl BlamedJob {
    fn shown(&self) -> (JobName, BlameOfJob) {
        let verdict = self.verdict.as_ref().and_then(|verdict| {
            // "Unknown, since nothing is known" helps nobody.
            let is_guess = verdict.category == TriageCategory::Unknown
                && verdict.confidence == TriageConfidence::Low;
            (!is_guess).then(|| verdict.summary.clone())
        });
        let name = (self.repo.clone(), self.workflow.clone(), self.job.clone());
        (name, ((self.run_id.clone(), self.run_attempt), self.state, verdict))
    }
}

/// The verdicts on all jobs of a commit.
pub(crate) async fn read(
    relay: &Relay,
    number: u64,
    head_sha: &str,
) -> Result<Vec<BlamedJob>, ResultsError> {
    let results = relay.results.as_ref();
    let upstream = relay.config.upstream.as_str();
    let (attempts, dispatches) =
        results.pull_request_facts(upstream, &[number], AttemptFilter::default()).await?;
    let own = attempts.iter().filter(|row| row.head_sha == head_sha);
    let jobs = jobs_of_record(own, &dispatches);
    let read_pushes = async |query| read_pushes(results, query).await;
    let blamed = blame_jobs(results, &jobs, read_pushes).await?;
    let with_verdict = jobs.iter().map(|job| {
        let record = job.record;
        BlamedJob {
            repo: record.repo.to_ascii_lowercase(),
            workflow: record.workflow.clone(),
            job: record.job.clone(),
            run_id: record.run_id.clone(),
            run_attempt: record.run_attempt,
            state: record.state,
            outcome: job.outcome,
            failed_attempts: job.failed_attempts,
            verdict: blamed.verdict(record).cloned(),
        }
    });
    Ok(with_verdict.collect())
}
