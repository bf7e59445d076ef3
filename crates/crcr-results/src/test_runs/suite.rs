//! One suite for results of tests on every store. What it expects is computed from the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crcr_domain::ci_data::test_row::{
    JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun, job_and_config,
};
use crcr_domain::ci_data::test_run::{TestCase, TestDetail, TestDetailKind, TestResult};
use crcr_domain::results::criteria::NamedTestDay;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::Results;
use crate::retention::day_of;
use crate::test_runs::{FileTimesQuery, StoredRun, TestQuery, TestRanking, TestStats};

const REPO: &str = "Acme/Widgets";
const DAY: i64 = 86_400;

type Load = (TestedRun, Vec<ReportRows>);

pub(crate) async fn all(results: &dyn Results) {
    results.prepare().await.unwrap();
    assert_eq!(results.test_stats(&query(TestRanking::Flaky)).await.unwrap(), []);
    let loads = loads();
    a_load_that_was_killed_and_repeated_stores_each_row_once(results, &loads).await;
    rows_come_back_unchanged(results, &loads).await;
    every_ranking_adds_up_the_rows_of_its_window(results, &loads).await;
    filters_select_by_job_name_and_branch(results, &loads).await;
    file_times_are_means_over_runs_with_shards_added_up(results).await;
    test_that_failed_and_passed_on_one_commit_is_flaky_once(results).await;
    a_test_is_known_once_it_ran_on_the_default_branch(results, &loads).await;
    newest_day_of_named_tests(results, &loads).await;
    a_test_is_found_by_its_name_with_its_days_and_results(results, &loads).await;
    passes_of_a_job_that_failed_are_read_however_many_jobs_there_are(results).await;
    a_ranking_goes_on(results).await;
    rollups_outlive_their_rows(results, &loads).await;
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn run(repository: &str, run_id: u64, on_default_branch: bool, second: i64) -> TestedRun {
    TestedRun {
        repository: repository.to_owned(),
        workflow_id: Some(11),
        workflow: Some("CI".to_owned()),
        run_id,
        run_attempt: 1,
        head_branch: Some("main".to_owned()),
        head_sha: Some(format!("{run_id:040x}")),
        on_default_branch,
        started_at: at(second),
    }
}

fn report(id: u64, job: &str, rows: Vec<TestRunRow>) -> ReportRows {
    let is_known = !id.is_multiple_of(3);
    let source = ReportSource {
        report_id: id,
        job_id: is_known.then_some(id),
        job_id_check: if is_known { JobIdCheck::Verified } else { JobIdCheck::OtherRun },
        job: job.into(),
        artifact: "test-reports-linux_7.zip".into(),
        path: "test-reports/python-pytest/test_a/a.xml".to_owned(),
        invoking_file: Some("test_a".into()),
    };
    ReportRows { source, rows }
}

fn row(test_id: u64, name: &str, result: TestResult) -> TestRunRow {
    let case = TestCase {
        suite: "suite".into(),
        classname: "tests.Class".into(),
        ..TestCase::new(name.to_owned(), result)
    };
    TestRunRow { test_id, case }
}

/// Ten days of two branches, three jobs, and names that a query or a line could trip over.
fn loads() -> Vec<Load> {
    let mut random = StdRng::seed_from_u64(5);
    let names: Vec<String> = (0..40)
        .map(|n| match n {
            0 => "tab\tline\nback\\slash 'quote' \"double\"".to_owned(),
            1 => "test_ü_{repo:String}".to_owned(),
            2 => "Übung".to_owned(),
            n => format!("test_{n}[1e5]"),
        })
        .collect();
    let mut loads = vec![];
    for n in 0..30_u64 {
        let run = run(REPO, 100 + n, !n.is_multiple_of(3), (n as i64 / 3) * DAY);
        let mut reports = vec![];
        for (at, job) in ["linux / test (default, 1, 2)", "mac", "linux / build"].iter().enumerate()
        {
            let mut rows = vec![];
            // The last tests are added on later days.
            for (test, name) in names.iter().enumerate().take(20 + n as usize) {
                let result = match random.random_range(0..20) {
                    0 => TestResult::Failure,
                    1 => TestResult::Error,
                    2 => TestResult::Skipped,
                    3 => TestResult::Unfinished,
                    _ => TestResult::Success,
                };
                let mut row = row(u64::MAX - test as u64 * 3, name, result);
                row.case.flaky = result == TestResult::Success && random.random_ratio(1, 8);
                row.case.attempts = 1 + u32::from(row.case.flaky);
                row.case.time =
                    (test % 4 > 0).then(|| f64::from(random.random_range(0..9_000)) / 256.0);
                row.case.file = (test % 2 == 0).then(|| Arc::from("tests/a.py"));
                row.case.variant = (test % 5 == 0).then(|| Arc::from("firefox\t1"));
                if result.is_failed() {
                    row.case.details = vec![TestDetail {
                        kind: TestDetailKind::Failure,
                        type_name: None,
                        message: Some("1 != 2\n\t\\N".to_owned()),
                        text: None,
                    }];
                }
                rows.push(row);
            }
            reports.push(report(n * 10 + at as u64, job, rows));
        }
        loads.push((run, reports));
    }
    // Another repository with the same tests.
    loads.push((
        run("acme/other", 100, true, 0),
        vec![report(9_000, "mac", vec![row(1, "a", TestResult::Failure)])],
    ));
    loads
}

fn query(ranking: TestRanking) -> TestQuery {
    TestQuery {
        repository: "acme/widgets".to_owned(),
        ranking,
        days: (day_of(at(2 * DAY)), day_of(at(8 * DAY))),
        job: None,
        all_branches: false,
        search: None,
        offset: 0,
        limit: 500,
    }
}

async fn a_load_that_was_killed_and_repeated_stores_each_row_once(
    results: &dyn Results,
    loads: &[Load],
) {
    for (n, (run, reports)) in loads.iter().enumerate() {
        match n % 3 {
            // Killed after a part of a report, and before the roll-up.
            0 => {
                let mut part = reports[0].clone();
                part.rows.truncate(7);
                results.append_test_runs(run, vec![part]).await.unwrap();
            }
            // Killed before the roll-up.
            1 => results.append_test_runs(run, reports.clone()).await.unwrap(),
            _ => {}
        }
        for _ in 0..2 {
            results.append_test_runs(run, reports[1..].to_vec()).await.unwrap();
            results.append_test_runs(run, reports[..1].to_vec()).await.unwrap();
            results.finish_test_runs(run).await.unwrap();
        }
    }
}

async fn a_ranking_goes_on(results: &dyn Results) {
    for ranking in [TestRanking::Flaky, TestRanking::Slow, TestRanking::Failing, TestRanking::New] {
        let whole = results.test_stats(&query(ranking)).await.unwrap();
        let mut parts = vec![];
        for offset in (0..whole.len() + 3).step_by(3) {
            let part = TestQuery { offset, limit: 3, ..query(ranking) };
            parts.extend(results.test_stats(&part).await.unwrap());
        }
        assert_eq!(parts, whole, "{ranking:?}");
    }
}

async fn a_test_is_found_by_its_name_with_its_days_and_results(
    results: &dyn Results,
    loads: &[Load],
) {
    let days = (day_of(at(2 * DAY)), day_of(at(8 * DAY)));
    let odd = "test_ü_{repo:String}";
    for name in [odd.to_owned(), format!("tests.Class.{odd}")] {
        let found = results.tests_named("acme/WIDGETS", &name, 9).await.unwrap();
        assert_eq!(found.iter().map(|test| &*test.name).collect::<Vec<_>>(), [odd], "{name}");
        let same = results.test_identity("acme/widgets", found[0].test_id).await.unwrap();
        assert_eq!(same.as_ref(), found.first());
    }
    assert_eq!(results.tests_named(REPO, "no.such' OR 1=1 --", 9).await.unwrap(), []);
    assert_eq!(results.test_identity("acme/other", u64::MAX - 3).await.unwrap(), None);

    let test = u64::MAX - 6;
    let mut expected = vec![];
    for (run, reports) in loads.iter().filter(|(run, _)| run.repository == REPO) {
        let day = day_of(run.started_at);
        for report in reports.iter().filter(|_| days.0 <= day && day <= days.1) {
            let rows = report.rows.iter().filter(|row| row.test_id == test);
            expected.extend(rows.map(|row| {
                (run.run_id, report.source.job.to_string(), row.case.result, row.case.flaky)
            }));
        }
    }
    let found = results.test_results(REPO, test, days, 500).await.unwrap();
    assert!(found.is_sorted_by(|a, b| a.at >= b.at), "the newest first");
    let is_told = |row: &&crate::test_history::TestResultRow| row.result.is_failed();
    assert!(
        found.iter().filter(is_told).all(|row| row.message.as_deref() == Some("1 != 2\n\t\\N"))
    );
    let mut brief: Vec<_> =
        found.iter().map(|row| (row.run_id, row.job.clone(), row.result, row.flaky)).collect();
    brief.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    expected.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    assert_eq!(brief, expected);
    // Failures elsewhere take no place of those of the default branch.
    let newest = results.test_results(REPO, test, days, 1).await.unwrap();
    let fails = |rows: &[crate::test_history::TestResultRow], on_default| {
        rows.iter().any(|row| row.result.is_failed() && row.on_default_branch == on_default)
    };
    assert!(fails(&found, true) && fails(&found, false));
    assert!(fails(&newest, true) && fails(&newest, false), "{newest:?}");
    let of_days = results.test_job_days(REPO, test, days).await.unwrap();
    let sum = |count: fn(&crate::test_history::TestJobDay) -> u64| -> usize {
        of_days.iter().map(count).sum::<u64>() as usize
    };
    assert_eq!(sum(|day| day.runs), expected.len());
    assert_eq!(sum(|day| day.failures), found.iter().filter(is_told).count());

    let (run, reports) = loads.iter().find(|(run, _)| run.run_id == 102).unwrap();
    let source = reports.iter().map(|report| &report.source).find(|s| s.job_id.is_some()).unwrap();
    let job_id = source.job_id.unwrap();
    let failed = reports
        .iter()
        .filter(|report| report.source.job_id == Some(job_id))
        .flat_map(|report| &report.rows)
        .filter(|row| row.case.result.is_failed())
        .count();
    let of_job = async |attempt, limit| {
        let run = (run.run_id, attempt);
        results.failed_tests_of_job("acme/WIDGETS", run, job_id, limit).await.unwrap()
    };
    let found = of_job(1, 99).await;
    assert!(found.is_sorted_by(|a, b| a.name <= b.name), "{found:?}");
    assert_eq!(found.len(), failed);
    assert_eq!((of_job(2, 99).await.len(), of_job(1, 1).await.len()), (0, failed.min(1)));
}

async fn passes_of_a_job_that_failed_are_read_however_many_jobs_there_are(results: &dyn Results) {
    use crate::test_history::MAX_JOBS;

    const TEST: u64 = 95_000;
    let repository = "acme/many-jobs";
    for commit in 0..3_u64 {
        let reports = (0..MAX_JOBS as u64 + 6).map(|job| {
            let has_failed = job == 0 && commit == 0;
            let result = if has_failed { TestResult::Failure } else { TestResult::Success };
            report(
                70_000 + commit * 100 + job,
                &format!("job {job:02}"),
                vec![row(TEST, "t", result)],
            )
        });
        let run = run(repository, commit + 1, true, commit as i64 * 3600);
        results.append_test_runs(&run, reports.collect()).await.unwrap();
        results.finish_test_runs(&run).await.unwrap();
    }
    let days = (day_of(at(0)), day_of(at(DAY)));
    let found = results.test_results(repository, TEST, days, 500).await.unwrap();
    let of_job = found.iter().filter(|row| row.job == "job 00");
    let of_job: Vec<_> = of_job.map(|row| (row.run_id, row.result.is_failed())).collect();
    assert_eq!(of_job, [(3, false), (2, false), (1, true)], "those of other jobs are newer");
    assert!(found.iter().all(|row| row.setup.ends_with("a.xml")), "{:?}", found[0]);
    let jobs: BTreeSet<_> = found.iter().map(|row| &row.job).collect();
    assert_eq!(jobs.len(), MAX_JOBS + 1);
}

async fn rows_come_back_unchanged(results: &dyn Results, loads: &[Load]) {
    for (run, reports) in loads {
        let mut expected = reports.clone();
        for report in &mut expected {
            report.rows.sort_by_key(|row| row.test_id);
            // Times are kept in microseconds.
            for row in &mut report.rows {
                row.case.time = row.case.time.map(micros);
            }
        }
        let repository = run.repository.to_uppercase();
        let mut found = results.test_runs(&repository, run.run_id, 1).await.unwrap();
        for row in found.iter_mut().flat_map(|report| &mut report.rows) {
            row.case.time = row.case.time.map(micros);
        }
        assert_eq!(found, expected, "{}", run.run_id);
        let stored = StoredRun {
            started_at: run.started_at,
            on_default_branch: run.on_default_branch,
            head_sha: run.head_sha.clone(),
        };
        let found = results.stored_run(&repository, run.run_id, 1).await.unwrap();
        assert_eq!(found, Some(stored));
    }
    assert_eq!(results.test_runs(REPO, 100, 2).await.unwrap(), []);
    assert_eq!(results.stored_run(REPO, 100, 2).await.unwrap(), None);
    assert_eq!(results.tested_repositories().await.unwrap(), [REPO, "acme/other"]);
}

fn micros(time: f64) -> f64 {
    (time * 1e6).round() / 1e6
}

/// The statistics that the rows give, in no particular order.
fn expected(loads: &[Load], query: &TestQuery) -> Vec<TestStats> {
    let mut first_days: BTreeMap<u64, i64> = BTreeMap::new();
    let mut found: BTreeMap<u64, (TestStats, f64, u64)> = BTreeMap::new();
    for (run, reports) in loads {
        if !run.repository.eq_ignore_ascii_case(&query.repository)
            || !(run.on_default_branch || query.all_branches)
        {
            continue;
        }
        let day = day_of(run.started_at);
        for report in reports {
            for TestRunRow { test_id, case } in &report.rows {
                let first = first_days.entry(*test_id).or_insert(day);
                *first = day.min(*first);
                if day < query.days.0
                    || day > query.days.1
                    || query.job.as_ref().is_some_and(|job| **job != *report.source.job)
                {
                    continue;
                }
                let (stats, time, timed) = found.entry(*test_id).or_insert_with(|| {
                    let stats = TestStats {
                        test_id: *test_id,
                        suite: case.suite.to_string(),
                        classname: case.classname.to_string(),
                        name: case.name.clone(),
                        file: case.file.as_deref().map(str::to_owned),
                        variant: case.variant.as_deref().map(str::to_owned),
                        runs: 0,
                        failures: 0,
                        skipped: 0,
                        flaky: 0,
                        mean_time: None,
                        first_day: 0,
                        last_day: 0,
                    };
                    (stats, 0.0, 0)
                });
                stats.runs += 1;
                stats.failures += u64::from(case.result.is_failed());
                stats.skipped += u64::from(case.result == TestResult::Skipped);
                stats.flaky += u64::from(case.flaky);
                stats.last_day = day.max(stats.last_day);
                *timed += u64::from(case.time.is_some());
                *time += case.time.unwrap_or_default();
            }
        }
    }
    let sums = found.into_values().map(|(stats, time, timed)| TestStats {
        mean_time: (timed > 0).then(|| time / timed as f64),
        first_day: first_days[&stats.test_id],
        ..stats
    });
    sums.filter(|stats| match query.ranking {
        TestRanking::Flaky => stats.flaky > 0,
        TestRanking::Slow => stats.mean_time.is_some(),
        TestRanking::Failing => stats.failures > 0,
        TestRanking::New => stats.first_day >= query.days.0,
    })
    .filter(|stats| {
        let search = query.search.as_deref().unwrap_or_default().to_lowercase();
        let file = stats.file.as_deref().unwrap_or_default();
        let text = format!("{}.{} {file}", stats.classname, stats.name);
        text.to_lowercase().contains(&search)
    })
    .collect()
}

fn assert_same(found: Vec<TestStats>, expected: Vec<TestStats>, what: &TestQuery) {
    let comparable = |stats: Vec<TestStats>| {
        let mut stats: Vec<_> = stats
            .into_iter()
            .map(|stats| TestStats {
                mean_time: stats.mean_time.map(|time| (time * 1e3).round()),
                ..stats
            })
            .collect();
        stats.sort_by_key(|stats| stats.test_id);
        stats
    };
    assert_eq!(comparable(found), comparable(expected), "{what:?}");
}

async fn every_ranking_adds_up_the_rows_of_its_window(results: &dyn Results, loads: &[Load]) {
    for ranking in [TestRanking::Flaky, TestRanking::Slow, TestRanking::Failing, TestRanking::New] {
        let query = query(ranking);
        let found = results.test_stats(&query).await.unwrap();
        assert!(found.len() > 3, "{ranking:?}");
        let order: Vec<f64> = found
            .iter()
            .map(|stats| match ranking {
                TestRanking::Flaky => stats.flaky as f64,
                TestRanking::Slow => stats.mean_time.unwrap(),
                TestRanking::Failing => stats.failures as f64,
                TestRanking::New => stats.first_day as f64,
            })
            .collect();
        assert!(order.is_sorted_by(|a, b| a >= b), "{ranking:?}: {order:?}");
        let top = TestQuery { limit: 3, ..query.clone() };
        assert_eq!(results.test_stats(&top).await.unwrap(), found[..3], "{ranking:?}");
        assert_same(found, expected(loads, &query), &query);
    }
}

async fn filters_select_by_job_name_and_branch(results: &dyn Results, loads: &[Load]) {
    for ranking in [TestRanking::Flaky, TestRanking::Slow, TestRanking::Failing, TestRanking::New] {
        for query in [
            TestQuery { all_branches: true, ..query(ranking) },
            TestQuery { job: Some("mac".to_owned()), ..query(ranking) },
            TestQuery { search: Some("CLASS.TEST_2".to_owned()), ..query(ranking) },
            TestQuery { search: Some("CLASS.Übung".to_owned()), ..query(ranking) },
            TestQuery { search: Some("' OR 1=1 --".to_owned()), ..query(ranking) },
            TestQuery { search: Some("TESTS/A.PY".to_owned()), ..query(ranking) },
            TestQuery { repository: "acme/other".to_owned(), days: (0, 99_999), ..query(ranking) },
        ] {
            let found = results.test_stats(&query).await.unwrap();
            assert_same(found, expected(loads, &query), &query);
        }
    }
    let days = query(TestRanking::New).days;
    let jobs = async |all_branches, limit| {
        results.tested_jobs("acme/widgets", days, all_branches, limit).await.unwrap()
    };
    assert_eq!(jobs(true, 9).await, ["linux / build", "linux / test (default, 1, 2)", "mac"]);
    assert_eq!(results.tested_jobs("acme/other", days, true, 9).await.unwrap(), [""; 0]);
}

async fn file_times_are_means_over_runs_with_shards_added_up(results: &dyn Results) {
    let times = |runs: &[(u64, u64, &str, f64)]| -> Vec<Load> {
        let load = |(run_id, id, job, time): &(u64, u64, &str, f64)| {
            let mut row = row(77, "slow", TestResult::Success);
            row.case.time = Some(*time);
            (run("acme/timed", *run_id, true, 0), vec![report(*id, job, vec![row])])
        };
        runs.iter().map(load).collect()
    };
    // Two runs; in the first one the file is split between two shards.
    for (run, reports) in times(&[
        (1, 501, "linux / test (default, 1, 2, big)", 3.0),
        (1, 502, "linux / test (default, 2, 2, big)", 5.0),
        (2, 503, "linux / test (default, 2, 2, big)", 10.0),
        (2, 504, "linux / test (slow, 1, 1, big)", 64.0),
        (2, 505, "mac", 2.5),
        (2, 506, "fast", 0.0),
        // Legs of a matrix, each of which runs the whole file.
        (2, 507, "test (ubuntu, 3.11)", 10.0),
        (2, 508, "test (ubuntu, 3.12)", 10.0),
        (2, 509, "test (ubuntu, 3.13)", 10.0),
    ]) {
        results.append_test_runs(&run, reports).await.unwrap();
        results.finish_test_runs(&run).await.unwrap();
    }
    let query = FileTimesQuery {
        repository: "ACME/timed".to_owned(),
        days: (day_of(at(0)), day_of(at(0))),
        job: None,
        all_branches: false,
    };
    let seconds = |found: Vec<crate::test_runs::FileTime>| -> Vec<(String, String, String, f64)> {
        found.into_iter().map(|time| (time.job, time.config, time.file, time.seconds)).collect()
    };
    let of = |job: &str, config: &str, time| {
        (job.to_owned(), config.to_owned(), "test_a".to_owned(), time)
    };
    assert_eq!(job_and_config("linux / test (default, 1, 2, big)"), ("linux", "default"));
    assert_eq!(
        seconds(results.file_times(&query).await.unwrap()),
        [
            of("fast", "default", 0.0),
            of("linux", "default", 9.0),
            of("linux", "slow", 64.0),
            of("mac", "default", 2.5),
            of("test", "ubuntu, 3.11", 10.0),
            of("test", "ubuntu, 3.12", 10.0),
            of("test", "ubuntu, 3.13", 10.0),
        ]
    );
    let mac = FileTimesQuery { job: Some("mac".to_owned()), ..query };
    assert_eq!(seconds(results.file_times(&mac).await.unwrap()), [of("mac", "default", 2.5)]);
}

async fn test_that_failed_and_passed_on_one_commit_is_flaky_once(results: &dyn Results) {
    use TestResult::{Failure, Skipped, Success};
    // Each result with the hour, the commit, the job, and the report's path.
    type Run<'a> = (i64, &'a str, &'a str, &'a str, TestResult);
    let same = |hour, result| (hour, "c1", "linux", "test-reports/a-1b2c3d4.xml", result);
    let cases: [(&str, Vec<Run<'_>>, u64); 8] = [
        ("rerun", vec![same(0, Failure), same(1, Success)], 1),
        ("late", vec![same(0, Success), same(30, Failure), same(31, Success)], 1),
        ("steady", vec![same(0, Failure), same(1, Failure), same(2, Skipped)], 0),
        (
            "path",
            vec![same(0, Failure), (1, "c1", "linux", "test-reports/a-77aab8c.xml", Success)],
            1,
        ),
        (
            "other-commit",
            vec![same(0, Failure), (1, "c2", "linux", "test-reports/a.xml", Success)],
            0,
        ),
        ("other-job", vec![same(0, Failure), (1, "c1", "mac", "test-reports/a.xml", Success)], 0),
        (
            "other-report",
            vec![same(0, Failure), (1, "c1", "linux", "test-reports/gpu.xml", Success)],
            0,
        ),
        (
            "no-commit",
            vec![(0, "", "linux", "a.xml", Failure), (1, "", "linux", "a.xml", Success)],
            0,
        ),
    ];
    for (number, (name, runs, flaky)) in cases.into_iter().enumerate() {
        let repository = format!("acme/{name}");
        let count = runs.len();
        for (attempt, (hour, commit, job, path, result)) in runs.into_iter().enumerate() {
            let mut run = run(&repository, 7, true, hour * 3600);
            run.run_attempt = attempt as u32 + 1;
            run.head_sha = Some(commit.to_owned()).filter(|commit| !commit.is_empty());
            let mut report = report(
                60_000 + number as u64 * 100 + attempt as u64,
                job,
                vec![
                    row(80_000 + number as u64, name, result),
                    row(90_000 + number as u64, "passes", Success),
                ],
            );
            report.source.path = path.to_owned();
            for _ in 0..2 {
                results.append_test_runs(&run, vec![report.clone()]).await.unwrap();
                results.finish_test_runs(&run).await.unwrap();
            }
        }
        for job in [None, Some("linux".to_owned())] {
            let query = TestQuery {
                repository: repository.clone(),
                days: (day_of(at(0)), day_of(at(2 * DAY))),
                job: job.clone(),
                ..query(TestRanking::Slow)
            };
            let flaky_tests = results
                .test_stats(&TestQuery { ranking: TestRanking::Flaky, ..query })
                .await
                .unwrap();
            let found: Vec<_> = flaky_tests.iter().map(|test| (&*test.name, test.flaky)).collect();
            let expected: Vec<_> = (flaky > 0).then_some((name, flaky)).into_iter().collect();
            assert_eq!(found, expected, "{name} {job:?}");
            if job.is_none() && flaky > 0 {
                assert_eq!(flaky_tests[0].runs, count as u64, "{name}");
            }
        }
    }
}

async fn a_test_is_known_once_it_ran_on_the_default_branch(results: &dyn Results, loads: &[Load]) {
    let ids = |on_default: bool| -> BTreeSet<u64> {
        let runs = loads
            .iter()
            .filter(|(run, _)| run.on_default_branch == on_default && run.repository == REPO);
        runs.flat_map(|(_, reports)| reports)
            .flat_map(|report| &report.rows)
            .map(|row| row.test_id)
            .collect()
    };
    let mut asked: Vec<u64> = ids(true).union(&ids(false)).copied().collect();
    asked.push(4);
    assert_eq!(results.known_tests("acme/widgets", &asked).await.unwrap(), ids(true));
}

async fn newest_day_of_named_tests(results: &dyn Results, loads: &[Load]) {
    // Of `test_35[1e5]`, which was added late and so ran on few days, and of `test_3[1e5]`.
    let names = ["tests.Class.test_35[1e5]", "test_3[1e5]", "Class.test_3[1e5]", "test_3"]
        .map(str::to_owned);
    let (first, last) = (day_of(at(0)), day_of(at(9 * DAY)));
    let expected = |asked: &str, name: &str, last: i64| {
        let mut days: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
        for (run, reports) in loads.iter().filter(|(run, _)| run.on_default_branch) {
            let rows = reports.iter().flat_map(|report| &report.rows);
            for row in
                rows.filter(|row| row.case.name == name && row.case.result != TestResult::Skipped)
            {
                let day = days.entry(day_of(run.started_at)).or_default();
                day.0 += 1;
                day.1 += u64::from(row.case.result.is_failed());
            }
        }
        let (day, (runs, failures)) = days.into_iter().rfind(|(day, _)| *day <= last)?;
        Some(NamedTestDay { name: asked.to_owned(), day, runs, failures })
    };
    for last in [last, last - 1, last - 5] {
        let found = results.newest_test_days("acme/widgets", &names, (first, last)).await.unwrap();
        let expected = [
            expected("tests.Class.test_35[1e5]", "test_35[1e5]", last),
            expected("test_3[1e5]", "test_3[1e5]", last),
        ];
        assert_eq!(found, expected.into_iter().flatten().collect::<Vec<_>>(), "{last}");
    }
    assert_eq!(results.newest_test_days(REPO, &[], (first, last)).await.unwrap(), []);
    assert_eq!(results.newest_test_days("no/such", &names, (first, last)).await.unwrap(), []);
}

async fn rollups_outlive_their_rows(results: &dyn Results, loads: &[Load]) {
    let query = query(TestRanking::Failing);
    let before = results.test_stats(&query).await.unwrap();
    results.delete_test_runs_before(at(5 * DAY)).await.unwrap();
    // A server may take its time to delete.
    while !results.test_runs(REPO, 100, 1).await.unwrap().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(results.test_stats(&query).await.unwrap(), before);
    let last = &loads[29].0;
    assert!(!results.test_runs(REPO, last.run_id, 1).await.unwrap().is_empty(), "newer rows stay");
}

#[tokio::test]
async fn sqlite_keeps_results_of_tests() {
    let folder = tempfile::tempdir().unwrap();
    let url = crate::ResultsUrl::Sqlite(folder.path().join("results.db"));
    all(&*crate::open(&url, crcr_store::StoreRole::Server).await.unwrap()).await;
}

#[tokio::test]
async fn sqlite_gives_a_test_that_moved_the_file_of_its_newest_run() {
    let folder = tempfile::tempdir().unwrap();
    let url = crate::ResultsUrl::Sqlite(folder.path().join("results.db"));
    let results = crate::open(&url, crcr_store::StoreRole::Server).await.unwrap();
    // The last run is the oldest one, collected late, and the one before it names no file.
    for (run_id, day, file) in
        [(1, 3, Some("old.py")), (2, 4, Some("new.py")), (3, 5, None), (4, 2, Some("older.py"))]
    {
        let mut row = row(1, "moves", TestResult::Failure);
        row.case.file = file.map(Into::into);
        let run = run(REPO, run_id, true, day * DAY);
        results.append_test_runs(&run, vec![report(run_id, "mac", vec![row])]).await.unwrap();
    }
    let found = results.test_stats(&query(TestRanking::Failing)).await.unwrap();
    assert_eq!(found[0].file.as_deref(), Some("new.py"));
    assert_eq!((found[0].runs, found[0].first_day), (4, day_of(at(2 * DAY))));
}

/// A report of several transactions, of tests that failed before on the same commit.
#[tokio::test]
async fn sqlite_compares_all_parts_of_a_large_report_with_the_commits_earlier_one() {
    const TESTS: u64 = 4_500;
    let folder = tempfile::tempdir().unwrap();
    let url = crate::ResultsUrl::Sqlite(folder.path().join("results.db"));
    let results = crate::open(&url, crcr_store::StoreRole::Server).await.unwrap();
    for (attempt, result) in [(1, TestResult::Failure), (2, TestResult::Success)] {
        let run = TestedRun { run_attempt: attempt, ..run(REPO, 1, true, 3 * DAY) };
        // Half of the numbers are negative in the store.
        let rows = (0..TESTS).map(|n| row(n.wrapping_mul(u64::MAX / TESTS), "t", result)).collect();
        let reports = vec![report(u64::from(attempt), "mac", rows)];
        results.append_test_runs(&run, reports).await.unwrap();
    }
    let all = TestQuery { limit: 10_000, ..query(TestRanking::Flaky) };
    let flaky = results.test_stats(&all).await.unwrap();
    assert_eq!(flaky.len() as u64, TESTS);
    assert!(flaky.iter().all(|test| (test.runs, test.flaky) == (2, 1)));
    let rows = results.test_runs(REPO, 1, 2).await.unwrap();
    assert_eq!(rows[0].rows.len() as u64, TESTS);
}

/// The results of a month are millions of rows.
#[tokio::test]
async fn sqlite_reads_no_result_for_a_text_that_no_test_has_in_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.db");
    let url = crate::ResultsUrl::Sqlite(path.clone());
    let results = crate::open(&url, crcr_store::StoreRole::Server).await.unwrap();
    results.append_test_runs(&loads()[0].0, loads()[0].1.clone()).await.unwrap();
    let search = |text: &str| TestQuery {
        search: Some(text.to_owned()),
        days: (0, day_of(at(8 * DAY))),
        all_branches: true,
        ..query(TestRanking::Slow)
    };
    assert!(!results.test_stats(&search("test")).await.unwrap().is_empty());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("ALTER TABLE test_day RENAME TO elsewhere").unwrap();
    assert_eq!(results.test_stats(&search("no such thing")).await.unwrap(), []);
    assert!(results.test_stats(&search("test")).await.is_err(), "that one needs results");
}

#[tokio::test]
#[ignore = "needs chdb"]
async fn clickhouse_keeps_results_of_tests() {
    let server = crcr_testkit::clickhouse::ClickHouse::start().unwrap();
    let url = crate::ResultsUrl::parse(&server.url()).unwrap();
    all(&*crate::open(&url, crcr_store::StoreRole::Server).await.unwrap()).await;
}
