//! Finds the commit that broke a job on a branch: its tests passed on one commit and some fail on a later one, and the
//! commits between them are run, the one that tells most first. The answer is shown; nothing is reverted.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crcr_domain::RepoName;
use crcr_domain::probes::bisect::{
    BisectAnswer, BisectOutcome, BisectRun, BisectStep, FlakeRate, Suspect, answer, next_step,
};
use crcr_domain::probes::{Culprit, ProbeBudget, ProbeReason, ProbeTag, SuspectCommit};
use crcr_domain::protocol::callback::JobId;
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::AttemptFact;
use crcr_domain::results::{JobOfRecord, JobOutcome, jobs_of_record, outcome};
use crcr_github::contents::BranchCommit;
use crcr_results::Window;
use crcr_results::blame::BRANCH_LOOKBACK;
use crcr_store::{CommitOutcome, NewTask, SetInsert, Versioned, WriteBatch};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::backend_file;
use super::probe::{self, ProbeRequest, ProbeWaiter, Requested};
use crate::facts::attempt_fact;
use crate::limits;
use crate::queue::handlers::head;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;

/// The record of a search for the commit that broke a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Bisection {
    started_at: Timestamp,
    good_sha: String,
    bad_sha: String,
    /// When that one was dispatched. What ran before it doesn't tell whether the backend has changed.
    bad_at: Timestamp,
    /// The tests that failed and hadn't before, as far as they are known.
    tests: BTreeSet<String>,
    #[serde(flatten)]
    flakes: FlakeRate,
    /// The commits after the good one up to the bad one, oldest first.
    candidates: Vec<SuspectCommit>,
    runs: Vec<(BisectRun, String)>,
    answer: Option<BisectAnswer>,
}

/// The task for a job that failed in its tests on a commit of upstream's own.
pub(crate) fn task(fact: &AttemptFact, now: Timestamp) -> Option<NewTask> {
    let is_of_branch = matches!(fact.event, EventName::Push | EventName::Nightly);
    let failed = outcome(fact, false, false) == Some(JobOutcome::TestFailed);
    let counts = fact.is_evidence()
        && fact.missing_proof.is_none()
        && fact.expected.is_none()
        && fact.level.shows_results();
    let repo = RepoName::new(&fact.repo).ok().filter(|_| is_of_branch && failed && counts)?;
    let work = TaskKind::Bisect {
        repo,
        workflow: fact.workflow.clone(),
        job: fact.job.clone(),
        bad_sha: fact.head_sha.clone(),
    };
    Some(work.task(now + limits::CONFIRM_DELAY))
}

/// Begins a search, or goes on with it.
pub(crate) async fn run(
    relay: &Relay,
    repo: &RepoName,
    job: (&str, Option<&str>),
    bad_sha: &str,
) -> Result<TaskDone, TaskError> {
    let budget = backend_file::config(relay, repo).await?.probes;
    if budget.commits_per_day == 0 {
        return Ok(TaskDone::Finished);
    }
    let key = state_records::bisection_key(repo, job, bad_sha);
    let known: Versioned<Bisection> = relay.read_record(key).await?;
    let search = CulpritSearch { relay, repo, job, budget };
    let mut bisection = match known.value.clone() {
        Some(known) if known.answer.is_some() => return Ok(TaskDone::Finished),
        Some(known) => known,
        None => match search.begin(bad_sha).await? {
            Some(begun) => begun,
            None => return Ok(TaskDone::Finished),
        },
    };
    search.read_results(&mut bisection).await?;
    let done = search.go_on(&mut bisection).await?;
    let mut batch = WriteBatch::default();
    batch.update(&known, &bisection, relay.expiry());
    if let Some(answer) = &bisection.answer {
        search.add_answer(&mut batch, &bisection, answer);
    }
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(done),
        _ => Err(TaskError::retry("the search changed in the meantime")),
    }
}

/// The commits between two, from GitHub, or `None` if they aren't a straight line. The failed jobs of one commit share it,
/// as each is compared with the same earlier commits.
type Comparison = OnceCell<Option<Vec<BranchCommit>>>;

/// Comparisons of an earlier commit with a later one, by both SHAs. When it is full, it begins anew.
#[derive(Default)]
pub(crate) struct CommitComparisons(Mutex<HashMap<(String, String), Arc<Comparison>>>);

impl CommitComparisons {
    fn of(&self, commits: (String, String)) -> Arc<Comparison> {
        let mut known = self.0.lock();
        if known.len() >= limits::CACHED_COMPARISONS && !known.contains_key(&commits) {
            known.clear();
        }
        Arc::clone(known.entry(commits).or_default())
    }
}

struct CulpritSearch<'a> {
    relay: &'a Relay,
    repo: &'a RepoName,
    /// The workflow and the job that fails.
    job: (&'a str, Option<&'a str>),
    budget: ProbeBudget,
}

impl CulpritSearch<'_> {
    /// `None` if the job failed before that commit in the same tests, or never ran there, or the commits aren't a straight
    /// line.
    async fn begin(&self, bad_sha: &str) -> Result<Option<Bisection>, TaskError> {
        let relay = self.relay;
        let now = relay.now();
        let window = Window::all(now - BRANCH_LOOKBACK, now).of_repos(vec![self.repo.to_string()]);
        let rows = relay.results.push_attempts(&window).await;
        let rows = rows.map_err(|error| TaskError::retry(error.to_string()))?;
        let jobs = jobs_of_record(&rows, []);
        let is_own = |job: &&JobOfRecord<'_>| {
            let record = job.record;
            (record.workflow.as_str(), record.job.as_deref()) == self.job && record.is_evidence()
        };
        let all: Vec<_> = jobs.iter().filter(is_own).collect();
        let own: Vec<_> =
            all.iter().filter(|job| job.record.event != EventName::Probe).copied().collect();
        let Some(bad) = own.iter().find(|job| {
            job.record.head_sha == bad_sha && job.outcome == Some(JobOutcome::TestFailed)
        }) else {
            return Ok(None);
        };
        let mut before: Vec<_> = own
            .iter()
            .filter(|job| {
                job.record.event == bad.record.event
                    && job.record.dispatched_at < bad.record.dispatched_at
                    && job.outcome.is_some_and(|one| one.is_pass() || one == JobOutcome::TestFailed)
            })
            .copied()
            .collect();
        before.sort_by_key(|job| std::cmp::Reverse(job.record.dispatched_at));
        let Some((last, commits)) = self.newest_on_line(&before, bad_sha).await? else {
            tracing::info!(repo = %self.repo, bad_sha, "no straight line of at most 500 commits");
            return Ok(None);
        };
        let Some(tests) = newly_failed(bad.record, last).filter(|_| !commits.is_empty()) else {
            return Ok(None);
        };
        let candidates = commits
            .into_iter()
            .map(|commit| SuspectCommit::new(commit.sha, commit.title, commit.author))
            .collect();
        Ok(Some(Bisection {
            started_at: now,
            good_sha: last.record.head_sha.clone(),
            bad_sha: bad_sha.to_owned(),
            bad_at: bad.record.dispatched_at,
            tests,
            flakes: flake_rate(&all),
            candidates,
            runs: vec![],
            answer: None,
        }))
    }

    /// The newest of these results on a commit from which a straight line leads to the bad one, and the commits of the
    /// line. Results on other branches aren't on it.
    async fn newest_on_line<'j>(
        &self,
        results: &[&'j JobOfRecord<'j>],
        bad_sha: &str,
    ) -> Result<Option<(&'j JobOfRecord<'j>, Vec<BranchCommit>)>, TaskError> {
        let upstream = self.relay.config.upstream.as_str();
        let mut seen = BTreeSet::new();
        let of_commits = results.iter().filter(|job| seen.insert(job.record.head_sha.as_str()));
        for job in of_commits.take(limits::BISECT_COMPARISONS) {
            let good_sha = &job.record.head_sha;
            let key = (good_sha.clone(), bad_sha.to_owned());
            let compared = self.relay.comparisons.of(key);
            let ask = || self.relay.app.commits_between(upstream, good_sha, bad_sha);
            if let Some(commits) = compared.get_or_try_init(ask).await? {
                return Ok(Some((job, commits.clone())));
            }
        }
        Ok(None)
    }

    /// Takes over how the open runs ended.
    async fn read_results(&self, bisection: &mut Bisection) -> Result<(), TaskError> {
        let relay = self.relay;
        let tests = bisection.tests.clone();
        for (run, delivery) in bisection.runs.iter_mut().filter(|(run, _)| run.outcome.is_none()) {
            let Some(dispatch) = probe::dispatch(relay, delivery, self.repo).await? else {
                run.outcome = Some(BisectOutcome::NoResult);
                continue;
            };
            let jobs = head::jobs(relay, delivery, self.repo).await?;
            let is_own = |id: &JobId| (id.workflow.as_str(), id.job.as_deref()) == self.job;
            let own =
                jobs.iter().filter(|job| is_own(&job.id)).max_by_key(|job| job.id.run_attempt);
            run.outcome = match own {
                Some(job) if job.state.is_open() => None,
                Some(job) => {
                    let fact = attempt_fact(relay, &(&dispatch).into(), job, relay.now());
                    Some(outcome_of(&fact, &tests))
                }
                None => {
                    let is_over = match dispatch.status {
                        DispatchStatus::Queued => false,
                        DispatchStatus::Sent { at } => {
                            dispatch.never_started || relay.now() > at + relay.config.lost_after
                        }
                        _ => true,
                    };
                    is_over.then_some(BisectOutcome::NoResult)
                }
            };
        }
        Ok(())
    }

    /// Asks for the next runs, or notes the answer.
    async fn go_on(&self, bisection: &mut Bisection) -> Result<TaskDone, TaskError> {
        let relay = self.relay;
        let runs: Vec<BisectRun> = bisection.runs.iter().map(|(run, _)| *run).collect();
        // Several at once take more runs, so that is for large budgets.
        let is_large = self.budget.commits_per_day as usize >= 3 * limits::PARALLEL_PROBES * 16;
        let parallel = if is_large { limits::PARALLEL_PROBES } else { 1 };
        let count = bisection.candidates.len();
        let step = next_step(count, bisection.flakes, &runs, (parallel, usize::MAX));
        let is_old = relay.now() > bisection.started_at + limits::LONGEST_BISECTION;
        let again = TaskDone::RunAgain(relay.now() + limits::RUN_POLL_CAP);
        match step {
            BisectStep::Answer(answer) => bisection.answer = Some(answer),
            // Its runs never ended, or the budget was spent.
            _ if is_old => bisection.answer = Some(answer(count, bisection.flakes, &runs)),
            BisectStep::Wait => return Ok(again),
            BisectStep::Run { candidates, checks } => {
                for candidate in candidates {
                    let Some(delivery) = self.ask(bisection, candidate, checks).await? else {
                        return Ok(again);
                    };
                    let run = BisectRun { candidate, outcome: None, checks };
                    bisection.runs.push((run, delivery));
                }
                return Ok(again);
            }
        }
        Ok(TaskDone::Finished)
    }

    /// Asks for a run of a candidate, or of the good commit; returns its delivery, or `None` if the budget of the day is
    /// used up.
    async fn ask(
        &self,
        bisection: &Bisection,
        candidate: Option<usize>,
        checks: Option<usize>,
    ) -> Result<Option<String>, TaskError> {
        let commit =
            candidate.map_or(&bisection.good_sha, |candidate| &bisection.candidates[candidate].sha);
        let since = match checks {
            Some(culprit) => self.first_failed_at(bisection, culprit).await?,
            None => bisection.bad_at,
        };
        let mut attempt = 1;
        while self.was_run(bisection, commit, attempt, since).await? {
            attempt += 1;
        }
        let (workflow, job) = self.job;
        let bad_sha = bisection.bad_sha.clone();
        let request = ProbeRequest {
            repo: self.repo,
            commit,
            tag: ProbeTag { reason: ProbeReason::Bisect, of: bad_sha.clone(), attempt },
            waiter: ProbeWaiter::Bisection {
                workflow: workflow.to_owned(),
                job: job.map(str::to_owned),
                bad_sha,
            },
            budget: self.budget,
            asker: None,
        };
        Ok(match probe::request(self.relay, request).await? {
            Requested::Asked(delivery) => Some(delivery),
            Requested::OverBudget => None,
        })
    }

    /// When the run was asked for in which this search saw its culprit fail first.
    async fn first_failed_at(
        &self,
        bisection: &Bisection,
        culprit: usize,
    ) -> Result<Timestamp, TaskError> {
        let failed = bisection.runs.iter().find(|(run, _)| {
            run.candidate == Some(culprit) && run.outcome == Some(BisectOutcome::Failed)
        });
        let Some((_, delivery)) = failed else { return Ok(bisection.bad_at) };
        let probe = probe::dispatch(self.relay, delivery, self.repo).await?;
        Ok(probe.map_or(bisection.bad_at, |probe| probe.enqueued_at))
    }

    /// Whether this probe is a run of the search already, or one of another search from before `since`.
    async fn was_run(
        &self,
        bisection: &Bisection,
        commit: &str,
        attempt: u32,
        since: Timestamp,
    ) -> Result<bool, TaskError> {
        let delivery = probe::delivery_id(self.repo, commit, attempt);
        if bisection.runs.iter().any(|(_, known)| *known == delivery) {
            return Ok(true);
        }
        let known = probe::dispatch(self.relay, &delivery, self.repo).await?;
        Ok(known.is_some_and(|probe| probe.enqueued_at < since))
    }

    /// Keeps the answer for the pages, and sends an alert if one is configured.
    fn add_answer(&self, batch: &mut WriteBatch, bisection: &Bisection, answer: &BisectAnswer) {
        let (relay, now) = (self.relay, self.relay.now());
        let suspect = match answer.suspect {
            Suspect::Candidate(at) => bisection.candidates.get(at).cloned(),
            Suspect::Flake | Suspect::BackendChanged => None,
        };
        let culprit = Culprit {
            repo: self.repo.as_str().to_owned(),
            upstream: relay.config.upstream.as_str().to_owned(),
            workflow: self.job.0.to_owned(),
            job: self.job.1.map(str::to_owned),
            tests: bisection.tests.iter().take(20).cloned().collect(),
            good_sha: bisection.good_sha.clone(),
            bad_sha: bisection.bad_sha.clone(),
            candidates: bisection.candidates.len(),
            suspect,
            backend_changed: answer.is_certain && answer.suspect == Suspect::BackendChanged,
            certainty: answer.certainty,
            is_certain: answer.is_certain,
            runs: answer.runs,
            at: now,
        };
        tracing::info!(repo = %self.repo, answer = culprit.sentence(), "a search has ended");
        batch.set_inserts.push(SetInsert {
            set: state_records::culprits_key(&relay.config.upstream),
            member: serde_json::to_string(&culprit).expect("an answer is always JSON"),
            score: now.as_millisecond(),
            expires_at: relay.expiry(),
        });
        if relay.config.alert_url.is_some() && !culprit.backend_changed {
            let work = TaskKind::CulpritFound { culprit: Box::new(culprit) };
            batch.tasks.push(work.task(now));
        }
    }
}

/// The tests that fail on the bad commit and didn't on the one before; empty if the job passed there and its tests
/// aren't known. `None` if it isn't known of any test that it passed before.
fn newly_failed(bad: &AttemptFact, before: &JobOfRecord<'_>) -> Option<BTreeSet<String>> {
    let mut tests = failed_tests(bad);
    if before.outcome.is_some_and(JobOutcome::is_pass) {
        return Some(tests);
    }
    let known = failed_tests(before.record);
    tests.retain(|test| !known.contains(test));
    let had_passed = outcome_of(before.record, &tests) == BisectOutcome::Passed;
    had_passed.then_some(tests)
}

fn failed_tests(record: &AttemptFact) -> BTreeSet<String> {
    record.details.failed_tests.iter().map(|test| test.name.clone()).collect()
}

/// How often the job fails for no reason, rather too high than too low: a failure counts as such if the same commit
/// passed, too, or if the commits before and after it did. Nobody re-runs most commits of a branch, so as long as few
/// results are known it is taken for one in ten.
fn flake_rate(jobs: &[&JobOfRecord<'_>]) -> FlakeRate {
    const UNKNOWN: (f64, f64) = (1.0, 10.0);
    // A merge group that fails alone was taken out of the queue.
    let jobs: Vec<_> = jobs.iter().filter(|job| job.record.event.is_of_branch()).collect();
    let mut by_time: Vec<_> = jobs
        .iter()
        .filter_map(|job| match job.outcome? {
            JobOutcome::TestFailed => Some((job.record, false)),
            passed if passed.is_pass() => Some((job.record, true)),
            _ => None,
        })
        .collect();
    by_time.sort_by_key(|(record, _)| (record.event == EventName::Probe, record.dispatched_at));
    let commit = |record: &AttemptFact| record.head_sha.clone();
    let passed: BTreeSet<String> =
        by_time.iter().filter(|(_, passed)| *passed).map(|(record, _)| commit(record)).collect();
    let failed = by_time.iter().filter(|(_, passed)| !passed).map(|(record, _)| commit(record));
    let both = failed.filter(|sha| passed.contains(sha));
    let again = jobs.iter().filter(|job| job.outcome == Some(JobOutcome::PassedAfterRerun));
    let again = again.map(|job| commit(job.record));
    let alone = by_time.windows(3).filter(|three| {
        three.iter().all(|(record, _)| record.event != EventName::Probe)
            && three.iter().map(|(_, passed)| *passed).eq([true, false, true])
    });
    let alone = alone.map(|three| commit(three[1].0));
    let flaky: BTreeSet<String> = both.chain(again).chain(alone).collect();
    let all: BTreeSet<String> = by_time.iter().map(|(record, _)| commit(record)).collect();
    let usual = (flaky.len() as f64 + UNKNOWN.0) / (all.len() as f64 + UNKNOWN.1);
    let pairs = || by_time.windows(2).filter(|pair| pair[1].0.event != EventName::Probe);
    let changes = pairs().filter(|pair| pair[0].1 != pair[1].1).count();
    FlakeRate::after(usual, changes, pairs().count())
}

/// What a run says of these tests. A job that failed in others only has passed them; which those are isn't known if it
/// doesn't name them all.
fn outcome_of(fact: &AttemptFact, tests: &BTreeSet<String>) -> BisectOutcome {
    match outcome(fact, false, false) {
        Some(found) if found.is_pass() => BisectOutcome::Passed,
        Some(JobOutcome::TestFailed) => {
            if tests.is_empty() || !failed_tests(fact).is_disjoint(tests) {
                BisectOutcome::Failed
            } else if fact.details.names_all_failed_tests() {
                BisectOutcome::Passed
            } else {
                BisectOutcome::NoResult
            }
        }
        _ => BisectOutcome::NoResult,
    }
}

#[cfg(test)]
mod tests {
    use crcr_domain::Level;
    use crcr_domain::checks::lifecycle::{Conclusion, JobState};
    use crcr_domain::protocol::callback::ReportDetails;

    use super::*;

    fn fact(event: EventName, second: i64, conclusion: Conclusion) -> AttemptFact {
        let at = Timestamp::from_second(second).unwrap();
        AttemptFact {
            received_at: at,
            dispatched_at: at,
            repo: "acme/two".to_owned(),
            delivery: second.to_string(),
            workflow: "CI".to_owned(),
            job: Some("test".to_owned()),
            run_id: second.to_string(),
            run_attempt: 1,
            state: JobState::Completed(conclusion),
            start_unknown: false,
            queue_seconds: None,
            execution_seconds: None,
            details: ReportDetails::default(),
            missing_proof: None,
            expected: None,
            level: Level::L2,
            event,
            upstream: "acme/upstream".to_owned(),
            pull_request: None,
            head_sha: format!("{second:040x}"),
        }
    }

    #[test]
    fn failure_between_two_passes_is_a_flake_on_the_branch_and_not_in_the_merge_queue() {
        let rate = |event: EventName| {
            let facts = [
                fact(EventName::Push, 1, Conclusion::Success),
                fact(event, 2, Conclusion::Failure),
                fact(EventName::Push, 3, Conclusion::Success),
            ];
            let jobs = jobs_of_record(&facts, []);
            flake_rate(&jobs.iter().collect::<Vec<_>>()).usual
        };
        let close = |rate: f64, expected: f64| (rate - expected).abs() < 1e-9;
        assert!(close(rate(EventName::Push), 2.0 / 13.0));
        assert!(close(rate(EventName::MergeGroup), 1.0 / 12.0));
    }
}
