//! Whose fault failed jobs are: reads the results that they are compared with.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crcr_domain::results::facts::AttemptFact;
use crcr_domain::results::{
    AttemptId, BlameContext, BlamedJobs, BranchResults, JobOfRecord, JobOutcome, SAME_COMMIT,
    jobs_of_record,
};
use jiff::{SignedDuration, Timestamp};

use super::{AttemptFilter, Results, ResultsError, Window};

/// How long before a failure its job must have run on upstream's own commits.
pub const BRANCH_LOOKBACK: SignedDuration = SignedDuration::from_hours(24 * 14);
/// How long after a failure a probe that explains it can run.
const PROBE_LOOKAHEAD: SignedDuration = SignedDuration::from_hours(24);
/// Pull requests that are read at once.
const PULLS_AT_ONCE: usize = 200;

/// Which attempts on upstream's own commits failures are compared with.
pub struct PushQuery {
    pub window: Window,
    /// Those on these commits; `None` for all.
    commits: Option<HashSet<String>>,
}

impl PushQuery {
    pub fn includes(&self, attempt: &AttemptFact) -> bool {
        self.commits.as_ref().is_none_or(|commits| commits.contains(&attempt.head_sha))
    }
}

/// Reads attempts for [`blame_jobs`].
pub async fn read_pushes(
    results: &dyn Results,
    query: PushQuery,
) -> Result<Vec<AttemptFact>, ResultsError> {
    let mut attempts = results.push_attempts(&query.window).await?;
    attempts.retain(|attempt| query.includes(attempt));
    Ok(attempts)
}

/// Verdicts on these jobs, each the same whatever else is asked for with it. `read_pushes` reads attempts on upstream's own
/// commits.
///
/// Unlike the page of a pull request, this compares with a merge base only if that is at most
/// [`BRANCH_LOOKBACK`] older than the first failure; else with the newest commit before the failure.
pub async fn blame_jobs<E: From<ResultsError>>(
    results: &dyn Results,
    jobs: &[JobOfRecord<'_>],
    read_pushes: impl AsyncFnOnce(PushQuery) -> Result<Vec<AttemptFact>, E> + Copy,
) -> Result<BlamedJobs, E> {
    let is_failed = |job: &&JobOfRecord<'_>| job.outcome == Some(JobOutcome::TestFailed);
    let failed: Vec<_> = jobs.iter().filter(is_failed).collect();
    let mut pulls: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for job in &failed {
        let numbers = pulls.entry(job.record.upstream.to_ascii_lowercase()).or_default();
        numbers.extend(job.record.pull_request);
    }
    let heads: HashSet<&String> = failed.iter().map(|job| &job.record.head_sha).collect();
    let heads: Vec<String> = heads.into_iter().cloned().collect();
    let only = AttemptFilter { heads: &heads, repos: None };
    let (mut attempts, mut dispatches) = (vec![], vec![]);
    let mut merge_bases: HashMap<String, String> = HashMap::new();
    for (upstream, numbers) in &pulls {
        let numbers: Vec<u64> = numbers.iter().copied().collect();
        for numbers in numbers.chunks(PULLS_AT_ONCE) {
            let (facts, bases) = tokio::try_join!(
                results.pull_request_facts(upstream, numbers, only),
                results.merge_bases(upstream, numbers),
            )?;
            attempts.extend(facts.0);
            dispatches.extend(facts.1);
            merge_bases.extend(bases.into_iter().map(|found| (found.head_sha, found.merge_base)));
        }
    }
    let on_heads = jobs_of_record(&attempts, &dispatches);
    let pushed = || failed.iter().filter(|job| job.record.pull_request.is_none());
    let pushed_attempts = match span(pushed()) {
        Some((first, last)) => {
            let window = Window::all(first - SAME_COMMIT, last + PROBE_LOOKAHEAD);
            let commits = pushed().map(|job| job.record.head_sha.clone()).collect();
            read_pushes(PushQuery { window, commits: Some(commits) }).await?
        }
        None => vec![],
    };
    let on_pushes = jobs_of_record(&pushed_attempts, []);
    let failing = on_heads.iter().chain(&on_pushes).filter(is_failed).chain(failed.iter().copied());
    let repos: BTreeSet<_> = failing.map(|job| job.record.repo.to_ascii_lowercase()).collect();
    let pushes = match span(failed.iter()) {
        Some((first, last)) => {
            let window = Window::all(first - BRANCH_LOOKBACK, last + PROBE_LOOKAHEAD);
            let window = window.of_repos(repos.into_iter().collect());
            read_pushes(PushQuery { window, commits: None }).await?
        }
        None => vec![],
    };
    let on_branch = jobs_of_record(&pushes, []);
    let branches: HashMap<String, BranchResults<'_>> = (pulls.keys())
        .map(|upstream| {
            let own = |job: &&JobOfRecord<'_>| job.record.upstream.eq_ignore_ascii_case(upstream);
            (upstream.clone(), BranchResults::new(on_branch.iter().filter(own)))
        })
        .collect();
    let (on_heads, on_pushes) = (by_head(&on_heads), by_head(&on_pushes));
    let none = BranchResults::default();
    let verdicts = jobs.iter().filter_map(|job| {
        let record = job.record;
        let by_head = if record.pull_request.is_some() { &on_heads } else { &on_pushes };
        let context = BlameContext {
            head: by_head.get(&*record.head_sha).copied().unwrap_or_default(),
            branch: branches.get(&record.upstream.to_ascii_lowercase()).unwrap_or(&none),
            merge_base: merge_bases.get(&record.head_sha).map(String::as_str),
            pull_request: record.pull_request,
            first: record.dispatched_at - BRANCH_LOOKBACK,
            last: record.received_at + PROBE_LOOKAHEAD,
        };
        Some((AttemptId::of(record), context.verdict(job)?))
    });
    Ok(verdicts.collect())
}

/// When the first of some jobs was dispatched, and when the last one reported.
fn span<'a>(
    jobs: impl Iterator<Item = &'a &'a JobOfRecord<'a>> + Clone,
) -> Option<(Timestamp, Timestamp)> {
    let first = jobs.clone().map(|job| job.record.dispatched_at).min()?;
    Some((first, jobs.map(|job| job.record.received_at).max()?))
}

/// Jobs of record are ordered by commit.
fn by_head<'a>(jobs: &'a [JobOfRecord<'a>]) -> HashMap<&'a str, &'a [JobOfRecord<'a>]> {
    let chunks = jobs.chunk_by(|a, b| a.record.head_sha == b.record.head_sha);
    chunks.map(|chunk| (&*chunk[0].record.head_sha, chunk)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crcr_domain::EventKind;
    use crcr_domain::checks::lifecycle::{Conclusion, JobState};
    use crcr_domain::results::facts::Fact;
    use crcr_domain::results::triage::TriageCategory;
    use crcr_store::sqlite::{SqliteStore, StoreRole};
    use crcr_store::{StateStore as _, WriteBatch};

    use super::*;
    use crate::sqlite::SqliteResults;
    use crcr_standin::generate::{BACKENDS, break_upstream, facts};

    const UPSTREAM: &str = "acme/upstream";

    /// How many failed jobs were blamed on upstream rightly, blamed on it wrongly, and missed.
    #[derive(Debug, Default, Clone, Copy)]
    struct BlameScore {
        right: u32,
        wrong: u32,
        missed: u32,
    }

    impl BlameScore {
        fn precision(self) -> f64 {
            f64::from(self.right) / f64::from(self.right + self.wrong)
        }

        fn recall(self) -> f64 {
            f64::from(self.right) / f64::from(self.right + self.missed)
        }
    }

    async fn score(seed: u64, folder: &std::path::Path) -> BlameScore {
        let until: Timestamp = "2026-10-01T00:00:00Z".parse().unwrap();
        let month = break_upstream(seed, facts(seed, until, 30, 24, UPSTREAM));
        let path = folder.join(format!("{seed}.db"));
        let store = Arc::new(SqliteStore::open(&path, StoreRole::Server).unwrap());
        let batch = WriteBatch { facts: month.facts, ..WriteBatch::default() };
        store.commit(batch, until).await.unwrap();
        let results: &dyn Results = &SqliteResults::new(store);
        let mut score = BlameScore::default();
        for backend in BACKENDS.iter().filter(|backend| backend.level.shows_results()) {
            let from = until - SignedDuration::from_hours(24 * 30);
            let window = Window::all(from, until).of_repos(vec![backend.repo.to_owned()]);
            let mut attempts = results.attempts(&window).await.unwrap();
            attempts.retain(|row| EventKind::PullRequest.includes(&row.event));
            let dispatches = results.dispatches(&window).await.unwrap();
            let jobs = jobs_of_record(&attempts, &dispatches);
            let read = async |query| read_pushes(results, query).await;
            let blamed = blame_jobs(results, &jobs, read).await.unwrap();
            for job in jobs.iter().filter(|job| job.outcome == Some(JobOutcome::TestFailed)) {
                let category = blamed.verdict(job.record).unwrap().category;
                let is_upstream = month.broken.contains(&AttemptId::of(job.record));
                match (category == TriageCategory::Upstream, is_upstream) {
                    (true, true) => score.right += 1,
                    (true, false) => score.wrong += 1,
                    (false, true) => score.missed += 1,
                    (false, false) => {}
                }
            }
        }
        score
    }

    #[tokio::test]
    async fn answer_is_the_same_whatever_else_is_asked_for_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let until: Timestamp = "2026-10-01T00:00:00Z".parse().unwrap();
        // Every job fails, so each answer names the first failure that it knows.
        let mut facts = facts(7, until, 30, 6, UPSTREAM);
        for fact in &mut facts {
            let Fact::Attempt(row) = fact else { continue };
            row.state = JobState::Completed(Conclusion::Failure);
        }
        let store = SqliteStore::open(&folder.path().join("month.db"), StoreRole::Server).unwrap();
        let store = Arc::new(store);
        store.commit(WriteBatch { facts, ..WriteBatch::default() }, until).await.unwrap();
        let results: &dyn Results = &SqliteResults::new(store);
        let read = async |query| read_pushes(results, query).await;
        let days = |days: i64| Window::all(until - SignedDuration::from_hours(24 * days), until);
        let month = results.attempts(&days(30)).await.unwrap();
        let week = results.attempts(&days(7)).await.unwrap();
        let (month, week) = (jobs_of_record(&month, []), jobs_of_record(&week, []));
        let of_month = blame_jobs(results, &month, read).await.unwrap();
        let of_week = blame_jobs(results, &week, read).await.unwrap();
        assert!(of_week.len() > 50, "{}", of_week.len());
        for job in &week {
            assert_eq!(of_week.verdict(job.record), of_month.verdict(job.record));
        }
    }

    #[tokio::test]
    async fn answer_about_one_backend_is_the_same_as_beside_all_others() {
        let folder = tempfile::tempdir().unwrap();
        let until: Timestamp = "2026-10-01T00:00:00Z".parse().unwrap();
        let facts = break_upstream(7, facts(7, until, 30, 10, UPSTREAM)).facts;
        let store = SqliteStore::open(&folder.path().join("month.db"), StoreRole::Server).unwrap();
        let store = Arc::new(store);
        store.commit(WriteBatch { facts, ..WriteBatch::default() }, until).await.unwrap();
        let results: &dyn Results = &SqliteResults::new(store);
        let read = async |query| read_pushes(results, query).await;
        let window = Window::all(until - SignedDuration::from_hours(24 * 30), until);
        let attempts = results.attempts(&window).await.unwrap();
        let all = blame_jobs(results, &jobs_of_record(&attempts, []), read).await.unwrap();
        let mut failures = 0;
        for backend in &BACKENDS {
            let own: Vec<_> = attempts.iter().filter(|row| row.repo == backend.repo).collect();
            let jobs = jobs_of_record(own, []);
            let alone = blame_jobs(results, &jobs, read).await.unwrap();
            let failed = jobs.iter().filter(|job| job.outcome == Some(JobOutcome::TestFailed));
            for job in failed {
                assert_eq!(alone.verdict(job.record), all.verdict(job.record));
                failures += 1;
            }
        }
        assert!(failures > 50, "{failures}");
    }

    #[tokio::test]
    async fn failures_that_upstream_caused_are_found_and_few_others_are_blamed_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut sum = BlameScore::default();
        for seed in [1, 2, 3] {
            let score = score(seed, folder.path()).await;
            println!(
                "seed {seed}: {score:?}, precision {:.3}, recall {:.3}",
                score.precision(),
                score.recall()
            );
            sum.right += score.right;
            sum.wrong += score.wrong;
            sum.missed += score.missed;
        }
        let (precision, recall) = (sum.precision(), sum.recall());
        println!("together: {sum:?}, precision {precision:.3}, recall {recall:.3}");
        assert!(sum.right > 300, "{sum:?}");
        assert!(precision >= 0.88, "{precision}");
        assert!(recall >= 0.9, "{recall}");
    }
}
