//! The generated CI of upstream, as the pages read it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crcr_domain::ci_data::ended_ci::EndedCi;
use crcr_domain::ci_data::workflow::WorkflowJob;
use crcr_store::{SqliteStore, StoreRole};

use super::*;
use crate::generate::facts;
use crcr_results::WebhookResults as _;
use crcr_results::ci_times::{CiGrouping, CiTimesResults as _, CiUnit};
use crcr_results::job_logs::{FailureQuery, JobLogResults as _};
use crcr_results::retention::day_of;
use crcr_results::sqlite::SqliteResults;
use crcr_results::test_runs::{TestQuery, TestRanking, TestRunResults as _};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};

const UPSTREAM: &str = "example/torch";

#[test]
fn failed_job_names_each_of_its_failing_tests_once() {
    let until: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
    let mut failed = 0;
    for fact in facts(1, until, 30, 12, UPSTREAM) {
        let Fact::Attempt(row) = fact else { continue };
        let details = row.details;
        let names: BTreeSet<_> = details.failed_tests.iter().map(|test| &test.name).collect();
        assert_eq!(names.len(), details.failed_tests.len(), "{:?}", details.failed_tests);
        let counted = details.tests.map_or(0, |tests| tests.failed);
        assert_eq!(names.len() as u64, counted, "{details:?}");
        failed += usize::from(names.len() > 1);
    }
    assert!(failed > 9, "{failed}");
}

#[test]
fn run_whose_failed_jobs_ran_again_has_ended_as_its_newest_jobs_did() {
    let until: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
    let ci = UpstreamCi::new(&facts(1, until, 30, 12, UPSTREAM), until).unwrap();
    let (mut runs, mut newest) = (BTreeMap::new(), BTreeMap::new());
    let mut jobs: BTreeMap<(u64, String), bool> = BTreeMap::new();
    for row in &ci.webhooks {
        if let Some(EndedCi::Run(run)) = EndedCi::from_row(row) {
            runs.insert(run.id, run);
        }
        let Some(job) = WorkflowJob::from_row(row) else { continue };
        if let Some(started) = job.started_at {
            let waited = started.duration_since(job.created_at.unwrap());
            assert!(waited.as_mins() < 100, "a re-run waits since it was asked for: {job:?}");
        }
        newest.insert(job.run_id, job.run_attempt);
        jobs.insert((job.run_id, job.name), job.state.is_failure());
    }
    runs.retain(|id, run| newest[id] == run.attempt);
    for (id, run) in &runs {
        let mut of_run = jobs.range((*id, String::new())..(id + 1, String::new()));
        assert_eq!(run.failed, of_run.any(|(_, failed)| *failed), "{run:?}");
    }
    let again = || runs.values().filter(|run| run.attempt == 2);
    assert!(again().any(|run| run.failed) && again().any(|run| !run.failed));
}

#[tokio::test]
async fn generated_ci_has_commits_jobs_in_every_state_and_each_ranking_of_tests() {
    let until: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
    let facts = facts(1, until, 30, 12, UPSTREAM);
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("crcr.db"), StoreRole::Tool).unwrap();
    let results = SqliteResults::new(Arc::new(store));
    for _ in 0..2 {
        let mut ci = UpstreamCi::new(&facts, until).unwrap();
        let logs = ci.keep_logs(|_, job| format!("log of {job}"));
        assert!(logs.iter().all(|(_, text)| text.lines().count() > 200));
        ci.store(&results).await.unwrap();
    }
    let query = crcr_results::ci_times::CiTimesQuery {
        repository: UPSTREAM.to_owned(),
        grouping: CiGrouping::Runner,
        unit: CiUnit::Day,
        from: until - 48.hours(),
        to: until,
        name: Some(SCARCE.to_owned()),
    };
    let waited = results.ci_times(&query).await.unwrap();
    assert!(waited.iter().any(|day| day.queue.percentile(0.95) > Some(3600.0)), "a long queue");
    let span = (red_since(&facts, until), until);
    let commits = results.branch_commit_runs(UPSTREAM, "main", span, 99).await.unwrap();
    let is_red = commits.len() > 1 && commits.iter().all(|commit| commit.failed > 0);
    assert!(is_red, "a red branch: {commits:?}");
    let selection = ThingSelection::Branch { name: "main", before: Timestamp::MAX, limit: 50 };
    let query = ThingQuery { event: "push", repository: UPSTREAM, selection };
    let pushes = results.current_things(&query).await.unwrap();
    assert_eq!(pushes.len(), 50, "as many as a page shows");
    let selection = ThingSelection::Branch { name: "main", before: Timestamp::MAX, limit: 9_999 };
    let query = ThingQuery { event: "workflow_job", selection, ..query };
    let jobs = results.current_things(&query).await.unwrap();
    assert!(jobs.iter().all(|job| job.received_at <= until));
    for conclusion in ["\"success\"", "\"failure\""] {
        let text = format!("\"conclusion\":{conclusion}");
        assert!(jobs.iter().any(|job| job.document.contains(&text)), "{conclusion}");
    }
    let query = FailureQuery {
        repository: None,
        category: None,
        from: Timestamp::UNIX_EPOCH,
        to: Timestamp::MAX,
        limit: 99,
    };
    let groups = results.failure_groups(&query).await.unwrap().groups;
    assert!(groups.len() > 5 && groups.iter().any(|group| group.reason.is_some()));
    let last = day_of(until);
    for ranking in [TestRanking::Flaky, TestRanking::Slow, TestRanking::Failing, TestRanking::New] {
        let query = TestQuery {
            repository: UPSTREAM.to_owned(),
            ranking,
            days: (last - 6, last),
            job: None,
            all_branches: false,
            search: None,
            offset: 0,
            limit: 5,
        };
        let stats = results.test_stats(&query).await.unwrap();
        assert!(!stats.is_empty(), "{ranking:?}");
        if ranking == TestRanking::New {
            assert_eq!(stats.iter().map(|test| &*test.name).collect::<Vec<_>>(), [NEW]);
        }
    }
}
