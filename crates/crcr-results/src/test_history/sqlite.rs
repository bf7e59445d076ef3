//! Single tests in SQLite. The tables are in `crcr-store`'s `test_runs.sql`.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use crcr_domain::ci_data::test_run::{TestResult, TestRowKind, full_name};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::ResultsError;
use crate::sqlite::{ColumnReader, SqliteResults, json};
use crate::test_history::{
    FailedTestOfJob, MAX_JOBS, MAX_RESULTS_OF_JOB, TestHistoryResults, TestIdentity, TestJobDay,
    TestResultRow, is_named, message, newest_first, possible_names,
};

/// Jobs of a repository that are looked at, those with the newest results.
const MAX_SCOPES: usize = 600;
/// Kinds of reports of one job, such as one for each test file.
const MAX_SETUPS: usize = 1500;
/// The newest reports of a kind in which a test is looked for.
const SAMPLES: usize = 3;
/// Results of a kind of reports that are read only because the job failed: more than the commits that the page of a test
/// shows, for its re-runs.
const RESULTS_OF_FAILED_JOB: usize = 60;
/// Failures of one test that are sorted by time.
const MAX_SORTED_FAILURES: usize = 50_000;

const TEST: &str = "id, suite, classname, name, file, variant, min(first_day)";
/// The columns of [`read_result`].
const RESULT: &str =
    "started_at, run_id, run_attempt, ifnull(head_sha, ''), ifnull(head_branch, ''),
    on_default, job, setup, job_id, result, time, attempts, flaky, ifnull(details, '[]')";

#[async_trait]
impl TestHistoryResults for SqliteResults {
    async fn tests_named(
        &self,
        repository: &str,
        name: &str,
        limit: usize,
    ) -> Result<Vec<TestIdentity>, ResultsError> {
        let (repository, asked) = (repository.to_owned(), name.to_owned());
        self.query(move |connection| {
            let names = json(&possible_names(&asked));
            let rows = connection
                .prepare_cached(&format!(
                    "SELECT {TEST} FROM test_case
                     WHERE name IN (SELECT value FROM json_each(?2)) AND repo = ?1
                     GROUP BY id ORDER BY classname, name, id"
                ))?
                .query_map(params![repository, names], read_test)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(rows.into_iter().filter(|test| is_named(test, &asked)).take(limit).collect())
        })
        .await
    }

    async fn test_identity(
        &self,
        repository: &str,
        test_id: u64,
    ) -> Result<Option<TestIdentity>, ResultsError> {
        let repository = repository.to_owned();
        self.query(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {TEST} FROM test_case WHERE id = ?1 AND repo = ?2 GROUP BY id"
                ))?
                .query_row(params![test_id.cast_signed(), repository], read_test)
                .optional()
        })
        .await
    }

    async fn test_job_days(
        &self,
        repository: &str,
        test_id: u64,
        days: (i64, i64),
    ) -> Result<Vec<TestJobDay>, ResultsError> {
        let repository = repository.to_owned();
        self.query(move |connection| job_days(connection, &repository, test_id, days)).await
    }

    async fn test_results(
        &self,
        repository: &str,
        test_id: u64,
        days: (i64, i64),
        limit: usize,
    ) -> Result<Vec<TestResultRow>, ResultsError> {
        let repository = repository.to_owned();
        self.query(move |connection| {
            let test = (&*repository, test_id, days);
            let of_days = job_days(connection, &repository, test_id, days)?;
            let mut found = vec![];
            for on_default in [true, false] {
                let failed = failures(connection, test, on_default, limit)?;
                let failed_setups: BTreeSet<(String, String)> =
                    failed.iter().map(|(_, row)| (row.job.clone(), row.setup.clone())).collect();
                found.extend(failed);
                let of_days = of_days.iter().filter(|row| row.on_default_branch == on_default);
                let mut jobs: Vec<_> = of_days.map(|row| (row.day, &*row.job)).collect();
                jobs.sort_by(|a, b| b.cmp(a));
                let mut seen = HashSet::new();
                jobs.retain(|(_, job)| seen.insert(*job));
                jobs.truncate(MAX_JOBS);
                for (_, job) in &jobs {
                    let kind = (on_default, *job);
                    found.extend(results_of_job(connection, test, kind, &failed_setups)?);
                }
                let is_read = |job: &str| jobs.iter().any(|(_, read)| *read == job);
                for (job, setup) in failed_setups.iter().filter(|(job, _)| !is_read(job)) {
                    let kind = (on_default, job.as_str(), setup.as_str());
                    found.extend(results_of_setup(connection, test, kind, RESULTS_OF_FAILED_JOB)?);
                }
            }
            let mut known = HashSet::new();
            found.retain(|(report, _)| known.insert(*report));
            let mut rows = found.into_iter().map(|(_, row)| row).collect();
            newest_first(&mut rows);
            Ok(rows)
        })
        .await
    }

    async fn failed_tests_of_job(
        &self,
        repository: &str,
        (run_id, run_attempt): (u64, u32),
        job_id: u64,
        limit: usize,
    ) -> Result<Vec<FailedTestOfJob>, ResultsError> {
        let repository = repository.to_owned();
        self.query(move |connection| {
            connection
                .prepare_cached(
                    "SELECT test, kind, suite, classname, name, ifnull(details, '[]')
                     FROM test_report JOIN test_run ON report = test_report.id
                        JOIN test_case ON test_case.id = test
                            AND test_case.on_default = test_report.on_default
                     WHERE test_report.repo = ?1 AND run_id = ?2 AND run_attempt = ?3
                        AND job_id = ?4 AND result IN ('failure', 'error')
                     ORDER BY classname, name, test LIMIT ?5",
                )?
                .query_map(
                    params![
                        repository,
                        run_id.cast_signed(),
                        run_attempt,
                        job_id.cast_signed(),
                        limit as i64
                    ],
                    |row| {
                        let mut row = ColumnReader::of(row);
                        let test_id = row.get::<i64>()?.cast_unsigned();
                        let kind = row.parsed(TestRowKind::from_name)?;
                        let (suite, class, name): (String, String, String) =
                            (row.get()?, row.get()?, row.get()?);
                        let name = full_name(&suite, &class, &name);
                        let message = message(&row.get::<String>()?);
                        Ok(FailedTestOfJob { test_id, kind, name, message })
                    },
                )?
                .collect()
        })
        .await
    }
}

/// One look into the roll-ups for each job and day.
fn job_days(
    connection: &Connection,
    repository: &str,
    test_id: u64,
    days: (i64, i64),
) -> rusqlite::Result<Vec<TestJobDay>> {
    let each_day = json(&(days.0..=days.1).collect::<Vec<_>>());
    let mut rows = connection
        .prepare_cached(
            "SELECT on_default, job, test_day.day, runs, failures, skipped, flaky, timed, time
             FROM (SELECT id, on_default, job FROM test_scope
                   WHERE repo = ?1 AND job <> '' AND last_day >= ?4
                   ORDER BY on_default DESC, last_day DESC, id LIMIT ?5) AS scopes
             JOIN json_each(?3) AS each_day
             JOIN test_day ON scope = scopes.id AND test_day.day = each_day.value AND test = ?2",
        )?
        .query_map(
            params![repository, test_id.cast_signed(), each_day, days.0, MAX_SCOPES as i64],
            |row| {
                let mut row = ColumnReader::of(row);
                let number = |row: &mut ColumnReader<'_>| {
                    row.get::<i64>().map(|number| number.max(0).cast_unsigned())
                };
                Ok(TestJobDay {
                    on_default_branch: row.get()?,
                    job: row.get()?,
                    day: row.get()?,
                    runs: number(&mut row)?,
                    failures: number(&mut row)?,
                    skipped: number(&mut row)?,
                    flaky: number(&mut row)?,
                    timed: number(&mut row)?,
                    seconds: row.get()?,
                })
            },
        )?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    rows.sort_by(|a, b| {
        (a.day, &a.job, a.on_default_branch).cmp(&(b.day, &b.job, b.on_default_branch))
    });
    Ok(rows)
}

/// A test of a repository, and the first and the last day.
type TestOnDays<'a> = (&'a str, u64, (i64, i64));

/// Found by the index of failures.
fn failures(
    connection: &Connection,
    (repository, test_id, days): TestOnDays<'_>,
    on_default: bool,
    limit: usize,
) -> rusqlite::Result<Vec<(i64, TestResultRow)>> {
    connection
        .prepare_cached(&format!(
            "SELECT report, {RESULT} FROM
               (SELECT id AS newest FROM
                  (SELECT report FROM test_run WHERE test = ?2 AND result IN ('failure', 'error')
                   LIMIT {MAX_SORTED_FAILURES})
                JOIN test_report ON id = report
                WHERE repo = ?1 AND day >= ?3 AND day <= ?4 AND on_default = ?6
                ORDER BY started_at DESC LIMIT ?5)
             JOIN test_report ON test_report.id = newest JOIN test_run ON report = newest AND test = ?2"
        ))?
        .query_map(
            params![repository, test_id.cast_signed(), days.0, days.1, limit as i64, on_default],
            |row| Ok((row.get(0)?, read_result(row)?)),
        )?
        .collect()
}

/// Looks for the kinds of reports of a job that have the test, and reads their newest results. `failed_setups`: the jobs
/// and kinds that are known to have it.
fn results_of_job(
    connection: &Connection,
    test: TestOnDays<'_>,
    (on_default, job): (bool, &str),
    failed_setups: &BTreeSet<(String, String)>,
) -> rusqlite::Result<Vec<(i64, TestResultRow)>> {
    let setups: Vec<String> = connection
        .prepare_cached(
            "SELECT DISTINCT setup FROM test_report
             WHERE repo = ?1 AND job = ?2 AND on_default = ?4 LIMIT ?3",
        )?
        .query_map(params![test.0, job, MAX_SETUPS as i64, on_default], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut found = vec![];
    for setup in setups {
        let kind = (on_default, job, setup.as_str());
        let has_failed = failed_setups.contains(&(job.to_owned(), setup.clone()));
        if has_failed || !results_of_setup(connection, test, kind, SAMPLES)?.is_empty() {
            found.extend(results_of_setup(connection, test, kind, MAX_RESULTS_OF_JOB)?);
        }
    }
    Ok(found)
}

/// The results in the newest reports of a kind: of the default branch or elsewhere, of a job, and of a setup.
fn results_of_setup(
    connection: &Connection,
    (repository, test_id, days): TestOnDays<'_>,
    (on_default, job, setup): (bool, &str, &str),
    count: usize,
) -> rusqlite::Result<Vec<(i64, TestResultRow)>> {
    let newest = format!(
        "SELECT report, {RESULT} FROM
           (SELECT id AS newest FROM test_report
            WHERE repo = ?1 AND job = ?2 AND on_default = ?8 AND setup = ?3
              AND started_at >= ?5 AND started_at < ?6
            ORDER BY started_at DESC LIMIT ?7)
         JOIN test_report ON test_report.id = newest JOIN test_run ON report = newest AND test = ?4"
    );
    let millis = |day: i64| day * crate::retention::DAY_MILLIS;
    let asked = params![
        repository,
        job,
        setup,
        test_id.cast_signed(),
        millis(days.0),
        millis(days.1 + 1),
        count as i64,
        on_default
    ];
    connection
        .prepare_cached(&newest)?
        .query_map(asked, |row| Ok((row.get(0)?, read_result(row)?)))?
        .collect()
}

fn read_test(row: &Row<'_>) -> rusqlite::Result<TestIdentity> {
    let mut row = ColumnReader::of(row);
    Ok(TestIdentity {
        test_id: row.get::<i64>()?.cast_unsigned(),
        suite: row.get()?,
        classname: row.get()?,
        name: row.get()?,
        file: row.get()?,
        variant: row.get()?,
        first_day: row.get()?,
    })
}

/// From the second column on.
fn read_result(row: &Row<'_>) -> rusqlite::Result<TestResultRow> {
    let mut row = ColumnReader::from_column(row, 1);
    Ok(TestResultRow {
        at: row.time()?,
        run_id: row.get::<i64>()?.cast_unsigned(),
        run_attempt: row.get()?,
        head_sha: row.get()?,
        head_branch: row.get()?,
        on_default_branch: row.get()?,
        job: row.get()?,
        setup: row.get()?,
        job_id: row.number()?,
        result: row.parsed(TestResult::from_name)?,
        seconds: row.get()?,
        attempts: row.get()?,
        flaky: row.get()?,
        message: message(&row.get::<String>()?),
    })
}
