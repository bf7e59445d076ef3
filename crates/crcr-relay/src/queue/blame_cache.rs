//! Whose fault the failed jobs of a commit are, read for all of them at once.
//!
//! The verdict on one job depends on the others, so each read takes all results of the pull request. If every
//! failing job read them, hundreds of failing jobs would cost hundreds of times as much as one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crcr_domain::dispatch::Dispatch;
use crcr_domain::lifecycle::JobState;
use crcr_domain::results::jobs_of_record;
use crcr_domain::triage::{TriageCategory, TriageConfidence};
use crcr_results::blame::blame_jobs;
use crcr_results::{ResultsError, Window};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::relay::Relay;
use crate::state_records::JobRecord;

/// How many commits are remembered.
const COMMITS: usize = 64;
/// The part of one processor's time that reads for one commit may take.
const SHARE: f64 = 0.1;
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

#[derive(Default)]
struct BlameOfCommit {
    /// What the last read said about each job.
    verdicts: HashMap<JobName, BlameOfJob>,
    /// The time that reads took beyond their share.
    debt: Duration,
    /// When it was counted.
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
            if commits.len() > COMMITS {
                // Those that somebody waits for stay.
                commits.retain(|_, one| Arc::strong_count(one) > 1);
            }
            Arc::clone(commits.entry((number, dispatch.head_sha.clone())).or_default())
        };
        // Whoever comes while it is read waits, and finds what was read.
        let mut commit = commit.lock().await;
        let name = (dispatch.repo.key(), job.id.workflow.clone(), job.id.job.clone());
        let attempt = (job.id.run_id.clone(), job.id.run_attempt);
        if let Some((of_attempt, state, verdict)) = commit.verdicts.get(&name)
            && (of_attempt, state) == (&attempt, &job.state)
        {
            return Blame::Known(verdict.clone());
        }
        if let Some(wait) = commit.wait() {
            return Blame::ReadAfter(wait);
        }
        #[cfg(test)]
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let began = Instant::now();
        match read(relay, number, &dispatch.head_sha).await {
            Ok(verdicts) => commit.verdicts = verdicts,
            Err(error) => {
                tracing::warn!(number, %error, "the check run doesn't say whose fault the failure is");
            }
        }
        commit.debt += began.elapsed();
        Blame::Known(commit.verdicts.get(&name).and_then(|(_, _, verdict)| verdict.clone()))
    }
}

impl BlameOfCommit {
    /// How long the next read has to wait.
    fn wait(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let passed = self.counted_at.map_or(Duration::ZERO, |at| now.duration_since(at));
        self.counted_at = Some(now);
        self.debt = self.debt.saturating_sub(passed.mul_f64(SHARE));
        let over = self.debt.checked_sub(BURST).filter(|over| !over.is_zero())?;
        Some(over.div_f64(SHARE).max(Duration::from_millis(10)))
    }
}

/// The verdicts on all jobs of a commit.
async fn read(
    relay: &Relay,
    number: u64,
    head_sha: &str,
) -> Result<HashMap<JobName, ((String, u32), JobState, Option<String>)>, ResultsError> {
    let results = relay.results.as_ref();
    let upstream = relay.config.upstream.as_str();
    let (attempts, dispatches) = results.pull_request_facts(upstream, &[number]).await?;
    let own = attempts.iter().filter(|row| row.head_sha == head_sha);
    let jobs = jobs_of_record(own, &dispatches);
    let read_pushes = async |window: Window| results.push_attempts(&window).await;
    let blamed = blame_jobs(results, &jobs, read_pushes).await?;
    let verdict = |job: &crcr_domain::results::JobOfRecord<'_>| {
        let verdict = blamed.verdict(job.record)?;
        // "Unknown, since nothing is known" helps nobody.
        let is_guess = verdict.category == TriageCategory::Unknown
            && verdict.confidence == TriageConfidence::Low;
        (!is_guess).then(|| verdict.summary.clone())
    };
    let named = jobs.iter().map(|job| {
        let record = job.record;
        let name = (record.repo.to_ascii_lowercase(), record.workflow.clone(), record.job.clone());
        let attempt = (record.run_id.clone(), record.run_attempt);
        (name, (attempt, record.state, verdict(job)))
    });
    Ok(named.collect())
}
