//! Explains failures of a pull request that stored results don't explain: the failed jobs run once more, and if they
//! fail again, the merge base is run.

use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::probes::confirm::{
    BaseProbe, Confirmation, RerunState, is_explained, needs_merge_base,
};
use crcr_domain::probes::{ProbeBudget, ProbeReason, ProbeTag};
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::results::facts::{AttemptFact, MergeBaseFact};
use crcr_domain::results::{JobOutcome, outcome};
use crcr_github::GithubError;
use crcr_store::{CommitOutcome, NewTask, Versioned, WriteBatch};
use jiff::Timestamp;

use super::backend_file;
use super::probe::{self, ProbeRequest, ProbeWaiter, Requested};
use crate::limits;
use crate::queue::blame_cache::{self, BlamedJob};
use crate::queue::handlers::sweep;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, PullRecord};

/// The task for a job that failed in its tests on a pull request; `None` for every other attempt.
pub(crate) fn task(dispatch: &Dispatch, fact: &AttemptFact, now: Timestamp) -> Option<NewTask> {
    let failed = outcome(fact, false, false) == Some(JobOutcome::TestFailed);
    let counts = dispatch.pull_request.is_some()
        && dispatch.level.shows_results()
        && fact.missing_proof.is_none()
        && fact.expected.is_none();
    let work =
        TaskKind::Confirm { delivery: dispatch.delivery.clone(), repo: dispatch.repo.clone() };
    (failed && counts).then(|| work.task(now + limits::CONFIRM_DELAY))
}

pub(crate) async fn run(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
) -> Result<TaskDone, TaskError> {
    let budget = backend_file::config(relay, repo).await?.probes;
    if budget == ProbeBudget::default() {
        return Ok(TaskDone::Finished);
    }
    let key = state_records::dispatch_key(delivery, repo);
    let read: Versioned<Dispatch> = relay.read_record(key).await?;
    let Some(dispatch) = read.value.filter(|dispatch| dispatch.sent_at().is_some()) else {
        return Ok(TaskDone::Finished);
    };
    let Some(number) = dispatch.pull_request else { return Ok(TaskDone::Finished) };
    if !is_current(relay, &dispatch, number).await? {
        return Ok(TaskDone::Finished);
    }
    let unavailable = |error: crcr_results::ResultsError| TaskError::retry(error.to_string());
    let blamed = blame_cache::read(relay, number, &dispatch.head_sha).await.map_err(unavailable)?;
    let unexplained: Vec<BlamedJob> = blamed
        .into_iter()
        .filter(|job| job.repo == repo.key() && job.outcome == Some(JobOutcome::TestFailed))
        .filter(|job| job.verdict.as_ref().is_some_and(|verdict| !is_explained(verdict)))
        .collect();
    let confirm = Confirm { relay, dispatch: &dispatch, number, budget };
    confirm.next(&unexplained).await
}

/// Whether somebody still waits for the answer: the pull request is open, and this is its newest event. A workflow that was
/// started for a later one may be cancelled by a re-run of this one's.
async fn is_current(relay: &Relay, dispatch: &Dispatch, number: u64) -> Result<bool, TaskError> {
    let key = state_records::pull_request_key(&relay.config.upstream, number);
    let pull: Versioned<PullRecord> = relay.read_record(key).await?;
    Ok(pull.value.is_some_and(|pull| {
        !pull.is_closed
            && pull.head_sha == dispatch.head_sha
            && pull.deliveries.last() == Some(&dispatch.delivery)
    }))
}

struct Confirm<'a> {
    relay: &'a Relay,
    dispatch: &'a Dispatch,
    number: u64,
    budget: ProbeBudget,
}

/// How far the re-run of a run is.
enum Rerun {
    /// The run isn't over, so GitHub can't run its failed jobs once more.
    TooEarly,
    /// Its failed jobs run, or will.
    Runs,
    Impossible,
}

impl Confirm<'_> {
    async fn next(&self, unexplained: &[BlamedJob]) -> Result<TaskDone, TaskError> {
        let mut of_base = vec![];
        for job in unexplained {
            let failed_again = job.failed_attempts > 1;
            let rerun = match job.run_id.parse() {
                Ok(run_id) if !failed_again => self.rerun_once(run_id, job.run_attempt).await?,
                _ => Rerun::Impossible,
            };
            match rerun {
                Rerun::TooEarly => {
                    let give_up = self.dispatch.enqueued_at + self.relay.config.lost_after;
                    let sent_at = self.dispatch.sent_at().unwrap_or(self.dispatch.enqueued_at);
                    let next = sweep::poll_at(self.relay.now(), sent_at);
                    let again =
                        if next < give_up { TaskDone::RunAgain(next) } else { TaskDone::Finished };
                    return Ok(again);
                }
                Rerun::Runs => {}
                Rerun::Impossible => {
                    of_base.extend(
                        Some(job).filter(|job| job.verdict.as_ref().is_some_and(needs_merge_base)),
                    );
                }
            }
        }
        if of_base.is_empty() { Ok(TaskDone::Finished) } else { self.probe_base(&of_base).await }
    }

    async fn confirmation(&self) -> Result<Versioned<Confirmation>, TaskError> {
        let key = state_records::confirmation_key(&self.dispatch.repo, &self.dispatch.head_sha);
        Ok(self.relay.read_record(key).await?)
    }

    /// Has the failed jobs of a run run once more, if that wasn't done since the attempt in which the job failed.
    async fn rerun_once(&self, run_id: u64, failed_in: u32) -> Result<Rerun, TaskError> {
        let (relay, repo) = (self.relay, self.dispatch.repo.as_str());
        let known = self.confirmation().await?;
        match known.value.as_ref().and_then(|known| known.reruns.get(&run_id)) {
            Some(RerunState::Accepted) => return Ok(Rerun::Runs),
            Some(RerunState::Impossible) => return Ok(Rerun::Impossible),
            Some(RerunState::Asked) => {}
            None => {
                let run = match relay.app.run(repo, run_id).await {
                    Ok(run) => run,
                    // Such as for the number of a build elsewhere, or for a run that was deleted.
                    Err(error) => return self.not_run_again(run_id, error).await,
                };
                if run.run_attempt > u64::from(failed_in) {
                    // Somebody has done it.
                    self.note_rerun(run_id, RerunState::Accepted).await?;
                    return Ok(Rerun::Runs);
                }
                if !run.is_completed() {
                    return Ok(Rerun::TooEarly);
                }
                if !self.charge_rerun(run_id, &known).await? {
                    self.note_rerun(run_id, RerunState::Impossible).await?;
                    return Ok(Rerun::Impossible);
                }
            }
        }
        let asked = relay.app.rerun_failed_jobs(repo, run_id).await;
        match asked {
            Ok(()) | Err(GithubError::AlreadyRunning(_)) => {
                self.note_rerun(run_id, RerunState::Accepted).await?;
                Ok(Rerun::Runs)
            }
            Err(error) => self.not_run_again(run_id, error).await,
        }
    }

    /// After an error of GitHub's, unless another try may help.
    async fn not_run_again(&self, run_id: u64, error: GithubError) -> Result<Rerun, TaskError> {
        let (repo, error) = (&self.dispatch.repo, TaskError::from(error));
        if !error.permanent {
            return Err(error);
        }
        tracing::info!(%repo, run_id, error = error.message, "the failed jobs can't be re-run");
        self.note_rerun(run_id, RerunState::Impossible).await?;
        Ok(Rerun::Impossible)
    }

    /// Writes down that GitHub will be asked, in one batch with what that costs.
    async fn charge_rerun(
        &self,
        run_id: u64,
        known: &Versioned<Confirmation>,
    ) -> Result<bool, TaskError> {
        let (relay, dispatch) = (self.relay, self.dispatch);
        let mut next = known.value.clone().unwrap_or_default();
        next.reruns.insert(run_id, RerunState::Asked);
        let mut batch = WriteBatch::default();
        batch.update(known, &next, relay.expiry());
        let (what, per_day) = ("probe_reruns", self.budget.reruns_per_day);
        batch.charges = probe::charges(relay, &dispatch.repo, what, per_day, Some(dispatch));
        match relay.commit(batch).await? {
            CommitOutcome::Done => Ok(true),
            CommitOutcome::Limited(_) => Ok(false),
            _ => Err(TaskError::retry("the confirmation changed in the meantime")),
        }
    }

    async fn note_rerun(&self, run_id: u64, state: RerunState) -> Result<(), TaskError> {
        let (relay, dispatch) = (self.relay, self.dispatch);
        let (repo, head_sha) = (&dispatch.repo, dispatch.head_sha.as_str());
        let key = state_records::confirmation_key(repo, head_sha);
        let noted = relay.update(key, |known: &Versioned<Confirmation>| {
            let mut next = known.value.clone().unwrap_or_default();
            next.reruns.insert(run_id, state);
            let mut batch = probe::changed(relay, repo, head_sha, known, next);
            if state == RerunState::Accepted {
                // The sweep notices the new attempt before its first job reports.
                let at = relay.now() + limits::RERUN_LOOK;
                batch.tasks.push(TaskKind::sweep(dispatch).task(at));
            }
            ((), Some(batch))
        });
        Ok(noted.await?)
    }

    async fn probe_base(&self, jobs: &[&BlamedJob]) -> Result<TaskDone, TaskError> {
        let (relay, dispatch) = (self.relay, self.dispatch);
        let known = self.confirmation().await?;
        if known.value.as_ref().is_some_and(|known| known.base != BaseProbe::NotAsked) {
            return Ok(TaskDone::Finished);
        }
        let upstream = relay.config.upstream.as_str();
        let bases = relay.results.merge_bases(upstream, &[self.number]).await;
        let bases = bases.map_err(|error| TaskError::retry(error.to_string()))?;
        let base = bases.into_iter().find(|base| base.head_sha == dispatch.head_sha);
        if base.is_none() && relay.now() < dispatch.enqueued_at + relay.config.lost_after {
            // The task that looks it up may still be on its way.
            return Ok(TaskDone::RunAgain(relay.now() + Duration::from_secs(60)));
        }
        let head_sha = dispatch.head_sha.clone();
        // GitHub gives a date of every commit that it has.
        let is_old = |base: &MergeBaseFact| {
            base.committed_at > Timestamp::UNIX_EPOCH
                && base.committed_at < relay.now() - limits::MAX_BASE_AGE
        };
        let base = match base.filter(|base| !is_old(base)) {
            Some(base) => self.ask_for_base(&base.merge_base, jobs).await?,
            None => BaseProbe::Ended,
        };
        let key = known.key.clone();
        let noted = relay.update(key, |known: &Versioned<Confirmation>| {
            let mut next = known.value.clone().unwrap_or_default();
            if next.base != BaseProbe::NotAsked {
                return ((), None);
            }
            next.base = base.clone();
            ((), Some(probe::changed(relay, &dispatch.repo, &head_sha, known, next)))
        });
        noted.await?;
        Ok(TaskDone::Finished)
    }

    /// Asks for a run of the merge base. One that another head has asked for may be over; if its infrastructure failed,
    /// the base runs again.
    async fn ask_for_base(
        &self,
        merge_base: &str,
        jobs: &[&BlamedJob],
    ) -> Result<BaseProbe, TaskError> {
        let (relay, dispatch) = (self.relay, self.dispatch);
        let head_sha = &dispatch.head_sha;
        for attempt in 1..=limits::BASE_ATTEMPTS {
            let request = ProbeRequest {
                repo: &dispatch.repo,
                commit: merge_base,
                tag: ProbeTag { reason: ProbeReason::MergeBase, of: head_sha.clone(), attempt },
                waiter: ProbeWaiter::Head { head_sha: head_sha.clone() },
                budget: self.budget,
                asker: Some(dispatch),
            };
            let delivery = match probe::request(relay, request).await? {
                Requested::Asked(delivery) => delivery,
                Requested::OverBudget => return Ok(BaseProbe::OverBudget),
            };
            match probe::ended_with_result(relay, &delivery, &dispatch.repo, jobs).await? {
                None => return Ok(BaseProbe::Asked { sha: merge_base.to_owned(), delivery }),
                Some(true) => break,
                Some(false) => {}
            }
        }
        Ok(BaseProbe::Ended)
    }
}
