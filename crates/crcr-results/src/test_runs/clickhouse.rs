//! Results of tests in ClickHouse.
//!
//! A load inserts rows into `crcr_test_run`, where equal rows are merged into one. Everything else is
//! computed by the server from those rows when the load ends. A roll-up replaces the one before it if
//! it counts more rows, so loads that run at the same time, or again, end with the same numbers.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use async_trait::async_trait;
use crcr_domain::ci_data::test_row::{
    JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun, job_and_config,
};
use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestRowKind};
use crcr_domain::results::criteria::NamedTestDay;
use jiff::Timestamp;

use crate::Results as _;
use crate::ResultsError;
use crate::clickhouse::rows::RowReader;
use crate::clickhouse::{ClickHouseResults, QueryParameters, QueryValue};
use crate::retention::day_of;
use crate::test_runs::{
    COMMIT_DAYS, FileTime, FileTimesQuery, StoredRun, TestQuery, TestRanking, TestRunResults,
    TestStats, newest_days,
};

/// In bytes of text: the size of one insert. Each makes a part that the server has to merge.
const INSERT_BYTES: usize = 32 * 1024 * 1024;
/// Microseconds of a second. Durations are stored as integers, so that sums are exact.
pub(crate) const MICROS: f64 = 1_000_000.0;
/// Ids in one query.
const IDS_PER_QUERY: usize = 10_000;

/// The order starts with the repository and the day because a roll-up reads those; then equal tests
/// lie together, which packs well. Months are partitions, so old rows go without rewriting new ones.
pub(crate) const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS crcr_test_run (
        repo_key String, repository String, day Int64, started_at Int64, workflow_id Int64,
        workflow String, run_id Int64, run_attempt UInt32, head_branch String, head_sha String,
        on_default UInt8, report_id UInt64, job_id Int64, job_id_check String, job String,
        job_base String, config String, artifact String, path String, setup String,
        invoking_file String, test_id UInt64, kind String, suite String, classname String,
        name String, file String, variant String, sharded_file String, result String, time_us Int64, attempts UInt32,
        flaky UInt8, details String
     ) ENGINE = ReplacingMergeTree()
     PARTITION BY toYYYYMM(toDateTime(day * 86400, 'UTC'))
     ORDER BY (repo_key, day, test_id, run_id, run_attempt, report_id)",
    "CREATE TABLE IF NOT EXISTS crcr_failed_test_run (
        repo_key String, day Int64, test_id UInt64, run_id Int64, run_attempt UInt32,
        report_id UInt64, head_sha String, job_id Int64, job String, kind String, suite String,
        classname String, name String, file String, result String, time_us Int64, details String
     ) ENGINE = ReplacingMergeTree()
     PARTITION BY toYYYYMM(toDateTime(day * 86400, 'UTC'))
     ORDER BY (repo_key, test_id, day, run_id, run_attempt, report_id)",
    "CREATE TABLE IF NOT EXISTS crcr_test_run_summary (
        repo_key String, day Int64, on_default UInt8, run_id Int64, run_attempt UInt32,
        report_id UInt64, job String, job_base String, config String, file String,
        classname String, tests UInt64, successes UInt64, failures UInt64, errors UInt64,
        skipped UInt64, unfinished UInt64, flaky UInt64, timed UInt64, time_us Int64
     ) ENGINE = ReplacingMergeTree(tests)
     PARTITION BY toYYYYMM(toDateTime(day * 86400, 'UTC'))
     ORDER BY (repo_key, day, run_id, run_attempt, report_id, file, classname)",
    // The first day wins: its version is the highest.
    "CREATE TABLE IF NOT EXISTS crcr_test (
        repo_key String, on_default UInt8, test_id UInt64, suite String, classname String,
        name String, file String, variant String, first_day Int64, version UInt32
     ) ENGINE = ReplacingMergeTree(version) ORDER BY (repo_key, on_default, test_id)",
    "CREATE TABLE IF NOT EXISTS crcr_test_day (
        repo_key String, repository String, on_default UInt8, job String, day Int64,
        test_id UInt64, runs UInt64, failures UInt64, skipped UInt64, flaky UInt64,
        timed UInt64, time_us Int64
     ) ENGINE = ReplacingMergeTree(runs)
     PARTITION BY toYYYYMM(toDateTime(day * 86400, 'UTC'))
     ORDER BY (repo_key, on_default, job, day, test_id)",
];

const COLUMNS: &str = "report_id, job_id, job_id_check, job, artifact, path, invoking_file, \
    test_id, kind, suite, classname, name, file, variant, result, time_us, attempts, flaky, details";

/// A column with `None` as -1.
const NONE: i64 = -1;

#[async_trait]
impl TestRunResults for ClickHouseResults {
    async fn stored_run(
        &self,
        repository: &str,
        run_id: u64,
        run_attempt: u32,
    ) -> Result<Option<StoredRun>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = run_values(&key, run_id, run_attempt);
        let sql = format!(
            "SELECT started_at, on_default, head_sha FROM crcr_test_run WHERE {OF_RUN} LIMIT 1"
        );
        let read = |row: &mut RowReader<'_>| {
            let started_at = row.integer()?;
            Ok(StoredRun {
                started_at: Timestamp::from_millisecond(started_at)
                    .map_err(|error| error.to_string())?,
                on_default_branch: row.u8()? == 1,
                head_sha: row.non_empty_text()?,
            })
        };
        Ok(self.rows(&sql, &values, read).await?.pop())
    }

    async fn append_test_runs(
        &self,
        run: &TestedRun,
        reports: Vec<ReportRows>,
    ) -> Result<(), ResultsError> {
        self.prepare().await?;
        let run_columns = run_columns(run);
        let mut lines = String::new();
        for ReportRows { source, rows } in &reports {
            let source_columns = source_columns(source);
            for row in rows {
                lines.push_str(&run_columns);
                lines.push_str(&source_columns);
                push_row(&mut lines, source, row);
                if lines.len() >= INSERT_BYTES {
                    self.insert_tabs("crcr_test_run", lines.as_bytes()).await?;
                    lines.clear();
                }
            }
        }
        if !lines.is_empty() {
            self.insert_tabs("crcr_test_run", lines.as_bytes()).await?;
        }
        Ok(())
    }

    async fn finish_test_runs(&self, run: &TestedRun) -> Result<(), ResultsError> {
        self.prepare().await?;
        let key = run.repository.to_ascii_lowercase();
        let mut values = run_values(&key, run.run_id, run.run_attempt);
        values.push(("day".to_owned(), QueryValue::Number(day_of(run.started_at))));
        let of_run = format!("{OF_RUN} AND day = {{day:Int64}}");
        let statements = [
            insert_failed_tests(&of_run),
            insert_summaries(&of_run),
            insert_tests(&of_run),
            insert_sums_of_days(&of_run, "''", "on_default, test_id"),
            insert_sums_of_days(&of_run, "job", "on_default, any_job, test_id"),
        ];
        let queries = statements.iter().map(|sql| self.query(sql, &values));
        futures_util::future::try_join_all(queries).await?;
        Ok(())
    }

    async fn test_runs(
        &self,
        repository: &str,
        run_id: u64,
        run_attempt: u32,
    ) -> Result<Vec<ReportRows>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = run_values(&key, run_id, run_attempt);
        let sql = format!(
            "SELECT {COLUMNS} FROM crcr_test_run WHERE {OF_RUN} ORDER BY report_id, test_id
             LIMIT 1 BY report_id, test_id"
        );
        let mut found: Vec<ReportRows> = vec![];
        for (source, row) in self.rows(&sql, &values, read_row).await? {
            match found.last_mut().filter(|last| last.source.report_id == source.report_id) {
                Some(last) => last.rows.push(row),
                None => found.push(ReportRows { source, rows: vec![row] }),
            }
        }
        Ok(found)
    }

    async fn known_tests(
        &self,
        repository: &str,
        tests: &[u64],
    ) -> Result<BTreeSet<u64>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = [("repo".to_owned(), QueryValue::Text(&key))];
        let mut known = BTreeSet::new();
        for ids in tests.chunks(IDS_PER_QUERY) {
            let ids: Vec<_> = ids.iter().map(u64::to_string).collect();
            let sql = format!(
                "SELECT DISTINCT test_id FROM crcr_test WHERE repo_key = {{repo:String}}
                 AND on_default = 1 AND test_id IN ({})",
                ids.join(",")
            );
            known.extend(self.rows(&sql, &values, |row| row.u64()).await?);
        }
        Ok(known)
    }

    async fn newest_test_days(
        &self,
        repository: &str,
        names: &[String],
        days: (i64, i64),
    ) -> Result<Vec<NamedTestDay>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let mut values = vec![
            ("repo".to_owned(), QueryValue::Text(&key)),
            ("from".to_owned(), QueryValue::Number(days.0)),
            ("to".to_owned(), QueryValue::Number(days.1)),
        ];
        let keys: Vec<String> = (0..names.len()).map(|n| format!("name{n}")).collect();
        values.extend(keys.iter().cloned().zip(names.iter().map(|name| QueryValue::Text(name))));
        let list: Vec<_> = keys.iter().map(|key| format!("{{{key}:String}}")).collect();
        let list = list.join(",");
        if names.is_empty() {
            return Ok(vec![]);
        }
        let of_repo = "repo_key = {repo:String} AND on_default = 1";
        let sql = format!(
            "SELECT test_id, argMax(classname, version), argMax(name, version) FROM crcr_test
             WHERE {of_repo} AND (name IN ({list}) OR concat(classname, '.', name) IN ({list}))
             GROUP BY test_id"
        );
        let read = |row: &mut RowReader<'_>| Ok((row.u64()?, (row.text()?, row.text()?)));
        let tests: HashMap<u64, (String, String)> =
            self.rows(&sql, &values, read).await?.into_iter().collect();
        if tests.is_empty() {
            return Ok(vec![]);
        }
        let ids: Vec<_> = tests.keys().map(u64::to_string).collect();
        let sql = format!(
            "SELECT test_id, toInt64(day), max(runs) - argMax(skipped, runs), argMax(failures, runs)
             FROM crcr_test_day WHERE {of_repo} AND job = '' AND day >= {{from:Int64}}
                AND day <= {{to:Int64}} AND test_id IN ({}) GROUP BY test_id, day",
            ids.join(",")
        );
        let read = |row: &mut RowReader<'_>| {
            let (test, day) = (row.u64()?, row.integer()?);
            // The difference of two numbers without a sign has one.
            let runs = u64::try_from(row.integer()?).unwrap_or(0);
            Ok((test, NamedTestDay { name: String::new(), day, runs, failures: row.u64()? }))
        };
        let found = self.rows(&sql, &values[..3], read).await?;
        let rows: Vec<_> = found
            .into_iter()
            .filter_map(|(test, of)| {
                let (class, name) = tests.get(&test)?;
                Some((class.clone(), name.clone(), of))
            })
            .collect();
        Ok(newest_days(names, &rows))
    }

    async fn test_stats(&self, query: &TestQuery) -> Result<Vec<TestStats>, ResultsError> {
        self.prepare().await?;
        let key = query.repository.to_ascii_lowercase();
        // `lower` changes ASCII letters only.
        let search = query.search.as_deref().map(str::to_ascii_lowercase);
        let mut values = vec![
            ("repo".to_owned(), QueryValue::Text(&key)),
            ("job".to_owned(), QueryValue::Text(query.job.as_deref().unwrap_or_default())),
            ("from".to_owned(), QueryValue::Number(query.days.0)),
            ("to".to_owned(), QueryValue::Number(query.days.1)),
        ];
        let branches = if query.all_branches { "on_default IN (0, 1)" } else { "on_default = 1" };
        let in_days = "day >= {from:Int64} AND day <= {to:Int64}";
        let window = format!(
            "repo_key = {{repo:String}} AND {branches} AND job = {{job:String}} AND {in_days}"
        );
        let of_tests = |condition: &str| {
            format!(
                "AND test_id IN (SELECT test_id FROM crcr_test_day WHERE {window} AND {condition})"
            )
        };
        let mut named = format!("repo_key = {{repo:String}} AND {branches}");
        if let Some(search) = &search {
            values.push(("search".to_owned(), QueryValue::Text(search)));
            named.push_str(
                " AND position(lower(concat(classname, '.', name, ' ', file)), {search:String}) > 0",
            );
        }
        let (mut of_tests, order, having) = match query.ranking {
            TestRanking::Flaky => (of_tests("flaky > 0"), "total_flaky DESC, total_runs", ""),
            TestRanking::Failing => {
                (of_tests("failures > 0"), "total_failures DESC, total_runs", "")
            }
            TestRanking::Slow => (String::new(), "mean_us DESC", "HAVING total_timed > 0"),
            TestRanking::New => {
                let sql = format!(
                    "SELECT test_id FROM (SELECT test_id, min(first_day) AS first,
                        any(classname) AS class, any(name) AS test_name
                     FROM crcr_test WHERE {named}
                        AND test_id IN (SELECT test_id FROM crcr_test_day WHERE {window})
                     GROUP BY test_id HAVING first >= {{from:Int64}})
                     ORDER BY first DESC, class, test_name LIMIT {}",
                    query.offset.saturating_add(query.limit)
                );
                let new = self.rows(&sql, &values, |row| row.u64()).await?;
                let new: Vec<_> = new.iter().map(u64::to_string).collect();
                if new.is_empty() {
                    return Ok(vec![]);
                }
                (format!("AND test_id IN ({})", new.join(",")), "test_id", "")
            }
        };
        if search.is_some() {
            let _ =
                write!(of_tests, " AND test_id IN (SELECT test_id FROM crcr_test WHERE {named})");
        }
        // Names matter for the order of ties, so ties at the end of the list are decided below.
        let sql = format!(
            "SELECT test_id, total_runs, total_failures, total_skipped, total_flaky, total_timed,
                mean_us, last_day
             FROM (SELECT test_id, sum(day_runs) AS total_runs, sum(day_failures) AS total_failures,
                sum(day_skipped) AS total_skipped, sum(day_flaky) AS total_flaky,
                sum(day_timed) AS total_timed, toInt64(max(day)) AS last_day,
                sum(day_time) / greatest(sum(day_timed), 1) AS mean_us
             FROM (SELECT test_id, day, max(runs) AS day_runs, argMax(failures, runs) AS day_failures,
                    argMax(skipped, runs) AS day_skipped, argMax(flaky, runs) AS day_flaky,
                    argMax(timed, runs) AS day_timed, argMax(time_us, runs) AS day_time
                FROM crcr_test_day WHERE {window} {of_tests} GROUP BY on_default, test_id, day)
             GROUP BY test_id {having})
             ORDER BY {order} LIMIT {}",
            query.offset.saturating_add(query.limit).saturating_mul(2).saturating_add(100)
        );
        let found = self.rows(&sql, &values, read_sums).await?;
        let mut stats = self.named_stats(found, &values[..1], branches).await?;
        sort_stats(&mut stats, query.ranking);
        Ok(stats.into_iter().skip(query.offset).take(query.limit).collect())
    }

    async fn file_times(&self, query: &FileTimesQuery) -> Result<Vec<FileTime>, ResultsError> {
        self.prepare().await?;
        let key = query.repository.to_ascii_lowercase();
        let mut values = vec![
            ("repo".to_owned(), QueryValue::Text(&key)),
            ("from".to_owned(), QueryValue::Number(query.days.0)),
            ("to".to_owned(), QueryValue::Number(query.days.1)),
        ];
        let mut condition = "repo_key = {repo:String} AND day >= {from:Int64} \
            AND day <= {to:Int64} AND timed > 0"
            .to_owned();
        if let Some(job) = &query.job {
            values.push(("job".to_owned(), QueryValue::Text(job)));
            condition.push_str(" AND job_base = {job:String}");
        }
        if !query.all_branches {
            condition.push_str(" AND on_default = 1");
        }
        let sql = format!(
            "SELECT job_base, config, file, classname,
                toInt64(sum(time_us) / uniqExact(run_id, run_attempt))
             FROM (SELECT * FROM crcr_test_run_summary WHERE {condition} ORDER BY tests DESC
                LIMIT 1 BY run_id, run_attempt, report_id, file, classname)
             GROUP BY job_base, config, file, classname
             ORDER BY job_base, config, file, classname"
        );
        let read = |row: &mut RowReader<'_>| {
            Ok(FileTime {
                job: row.text()?,
                config: row.text()?,
                file: row.text()?,
                classname: row.text()?,
                seconds: row.integer()? as f64 / MICROS,
            })
        };
        self.rows(&sql, &values, read).await
    }

    async fn tested_jobs(
        &self,
        repository: &str,
        (first, last): (i64, i64),
        all_branches: bool,
        limit: usize,
    ) -> Result<Vec<String>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = [
            ("repo".to_owned(), QueryValue::Text(&key)),
            ("from".to_owned(), QueryValue::Number(first)),
            ("to".to_owned(), QueryValue::Number(last)),
        ];
        let branches = if all_branches { "on_default IN (0, 1)" } else { "on_default = 1" };
        let sql = format!(
            "SELECT job FROM
               (SELECT job FROM crcr_test_day WHERE repo_key = {{repo:String}} AND {branches}
                  AND day >= {{from:Int64}} AND day <= {{to:Int64}} AND job != ''
                GROUP BY job ORDER BY max(on_default) DESC, job LIMIT {limit})
             ORDER BY job"
        );
        self.rows(&sql, &values, |row| row.text()).await
    }

    async fn tested_repositories(&self) -> Result<Vec<String>, ResultsError> {
        self.prepare().await?;
        let sql = "SELECT min(repository) AS name FROM crcr_test_day WHERE job = ''
            GROUP BY repo_key ORDER BY name";
        self.rows(sql, &[], |row| row.text()).await
    }

    async fn delete_test_runs_before(&self, time: Timestamp) -> Result<(), ResultsError> {
        for table in ["crcr_test_run", "crcr_failed_test_run", "crcr_test_run_summary"] {
            self.delete_older(table, "day", day_of(time)).await?;
        }
        Ok(())
    }
}

impl ClickHouseResults {
    /// Adds the names of tests to their sums.
    async fn named_stats(
        &self,
        sums: Vec<TestStats>,
        values: &QueryParameters<'_>,
        branches: &str,
    ) -> Result<Vec<TestStats>, ResultsError> {
        let mut stats = vec![];
        for sums in sums.chunks(IDS_PER_QUERY) {
            let ids: Vec<_> = sums.iter().map(|sums| sums.test_id.to_string()).collect();
            let sql = format!(
                "SELECT test_id, argMax(suite, version), argMax(classname, version),
                    argMax(name, version), argMax(file, version),
                    argMax(variant, version), min(first_day)
                 FROM crcr_test WHERE repo_key = {{repo:String}} AND {branches}
                    AND test_id IN ({}) GROUP BY test_id",
                ids.join(",")
            );
            let names = self.rows(&sql, values, read_names).await?;
            let names: HashMap<_, _> = names.into_iter().collect();
            for sums in sums {
                // A load that is still running has roll-ups before it has names.
                let Some((suite, classname, name, file, variant, first_day)) =
                    names.get(&sums.test_id)
                else {
                    continue;
                };
                stats.push(TestStats {
                    suite: suite.clone(),
                    classname: classname.clone(),
                    name: name.clone(),
                    file: Some(file.clone()).filter(|file| !file.is_empty()),
                    variant: Some(variant.clone()).filter(|variant| !variant.is_empty()),
                    first_day: *first_day,
                    ..sums.clone()
                });
            }
        }
        Ok(stats)
    }
}

/// A row that was sent twice may not have been merged yet.
const ONCE: &str = "LIMIT 1 BY test_id, run_id, run_attempt, report_id";

fn insert_failed_tests(of_run: &str) -> String {
    format!(
        "INSERT INTO crcr_failed_test_run SELECT repo_key, day, test_id, run_id,
            run_attempt, report_id, head_sha, job_id, job, kind, suite, classname, name,
            file, result, time_us, details
         FROM crcr_test_run WHERE {of_run} AND result IN ('failure', 'error')"
    )
}

/// Groups by numbers take a third of the time of groups by text. Two texts of one report would have to share a hash of
/// 64 bits.
fn insert_summaries(of_run: &str) -> String {
    format!(
        "INSERT INTO crcr_test_run_summary SELECT {{repo:String}}, {{day:Int64}},
            any(on_default), any(run_id), any(run_attempt), report_id, any(job),
            any(job_base), any(config), any(sharded_file), any(classname),
            count(), sum(result = 'success'), sum(result = 'failure'),
            sum(result = 'error'), sum(result = 'skipped'), sum(result = 'unfinished'),
            sum(flaky), sum(time_us >= 0), sum(if(time_us >= 0, time_us, 0))
         FROM (SELECT on_default, run_id, run_attempt, report_id, test_id, job, job_base,
                config, sharded_file, classname, result, flaky, time_us
            FROM crcr_test_run WHERE {of_run} {ONCE})
         GROUP BY report_id, cityHash64(sharded_file, classname)"
    )
}

fn insert_tests(of_run: &str) -> String {
    format!(
        "INSERT INTO crcr_test SELECT {{repo:String}}, on_default, test_id, any(suite),
            any(classname), any(name), any(file), any(variant), {{day:Int64}},
            toUInt32(4294967295 - {{day:Int64}})
         FROM crcr_test_run WHERE {of_run} GROUP BY on_default, test_id"
    )
}

/// `job` is the column, or `''` for the sums of all jobs together. `order` is that of the table: to sort here is faster
/// than to sort when it is written.
fn insert_sums_of_days(of_run: &str, job: &str, order: &str) -> String {
    let flaky_commits = flaky_commits(of_run);
    format!(
        "INSERT INTO crcr_test_day SELECT {{repo:String}}, any(repository), on_default,
            any({job}) AS any_job, {{day:Int64}}, test_id, sum(is_run),
            sum(result IN ('failure', 'error')), sum(result = 'skipped'), sum(flaky),
            sum(time_us >= 0), sum(if(time_us >= 0, time_us, 0))
         FROM (SELECT repository, on_default, job, test_id, result, flaky, time_us,
                toUInt8(1) AS is_run
            FROM (SELECT repository, on_default, job, test_id, run_id, run_attempt,
                    report_id, result, flaky, time_us
                FROM crcr_test_run
                WHERE repo_key = {{repo:String}} AND day = {{day:Int64}} AND test_id IN
                    (SELECT test_id FROM crcr_test_run WHERE {of_run}) {ONCE})
            UNION ALL {flaky_commits})
         GROUP BY on_default, cityHash64({job}), test_id ORDER BY {order}"
    )
}

/// A row for each test that failed and passed on one commit in different reports of one job and path, on the day on
/// which it had done both.
fn flaky_commits(of_run: &str) -> String {
    format!(
        "SELECT any_repository AS repository, on_default, job, test_id, '' AS result,
            toUInt8(1) AS flaky, toInt64(-1) AS time_us, toUInt8(0) AS is_run
         FROM (SELECT any(repository) AS any_repository, on_default, job, setup, head_sha,
                test_id, sum(failed) AS times_failed, sum(passed) AS times_passed,
                sum(flaky) AS times_flaky, minIf(day, failed) AS failed_on,
                minIf(day, passed) AS passed_on
            FROM (SELECT repository, on_default, job, setup, head_sha, test_id, flaky, day,
                    result IN ('failure', 'error') AS failed, result = 'success' AS passed
                FROM crcr_test_run
                WHERE repo_key = {{repo:String}} AND day <= {{day:Int64}}
                    AND day >= {{day:Int64}} - {COMMIT_DAYS} AND head_sha != ''
                    AND head_sha IN (SELECT head_sha FROM crcr_test_run
                        WHERE repo_key = {{repo:String}} AND day = {{day:Int64}})
                    AND test_id IN (SELECT test_id FROM crcr_test_run WHERE {of_run}) {ONCE})
            GROUP BY on_default, job, setup, head_sha, test_id)
         WHERE times_failed > 0 AND times_passed > 0 AND times_flaky = 0
            AND greatest(failed_on, passed_on) = {{day:Int64}}"
    )
}

const OF_RUN: &str =
    "repo_key = {repo:String} AND run_id = {run:Int64} AND run_attempt = {attempt:Int64}";

fn run_values(key: &str, run_id: u64, run_attempt: u32) -> Vec<(String, QueryValue<'_>)> {
    vec![
        ("repo".to_owned(), QueryValue::Text(key)),
        ("run".to_owned(), QueryValue::Number(run_id.cast_signed())),
        ("attempt".to_owned(), QueryValue::Number(i64::from(run_attempt))),
    ]
}

/// Adds a value of a tab-separated line, with its tab.
/// <https://clickhouse.com/docs/interfaces/formats/TabSeparated>
fn push_text(line: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '\t', '\n']) {
        let (plain, special) = rest.split_at(at);
        line.push_str(plain);
        line.push_str(match special.as_bytes()[0] {
            b'\t' => "\\t",
            b'\n' => "\\n",
            _ => "\\\\",
        });
        rest = &special[1..];
    }
    line.push_str(rest);
    line.push('\t');
}

fn push_number(line: &mut String, number: impl std::fmt::Display) {
    let _ = write!(line, "{number}\t");
}

fn optional(number: Option<u64>) -> i64 {
    number.map_or(NONE, u64::cast_signed)
}

fn run_columns(run: &TestedRun) -> String {
    let mut line = String::new();
    push_text(&mut line, &run.repository.to_ascii_lowercase());
    push_text(&mut line, &run.repository);
    push_number(&mut line, day_of(run.started_at));
    push_number(&mut line, run.started_at.as_millisecond());
    push_number(&mut line, optional(run.workflow_id));
    push_text(&mut line, run.workflow.as_deref().unwrap_or_default());
    push_number(&mut line, run.run_id);
    push_number(&mut line, run.run_attempt);
    push_text(&mut line, run.head_branch.as_deref().unwrap_or_default());
    push_text(&mut line, run.head_sha.as_deref().unwrap_or_default());
    push_number(&mut line, u8::from(run.on_default_branch));
    line
}

fn source_columns(source: &ReportSource) -> String {
    let (job_base, config) = job_and_config(&source.job);
    let mut line = String::new();
    push_number(&mut line, source.report_id);
    push_number(&mut line, optional(source.job_id));
    push_text(&mut line, source.job_id_check.as_str());
    push_text(&mut line, &source.job);
    push_text(&mut line, job_base);
    push_text(&mut line, config);
    push_text(&mut line, &source.artifact);
    push_text(&mut line, &source.path);
    push_text(&mut line, &source.setup());
    push_text(&mut line, source.invoking_file.as_deref().unwrap_or_default());
    line
}

fn push_row(line: &mut String, source: &ReportSource, TestRunRow { test_id, case }: &TestRunRow) {
    push_number(line, *test_id);
    push_text(line, case.kind.as_str());
    push_text(line, &case.suite);
    push_text(line, &case.classname);
    push_text(line, &case.name);
    push_text(line, case.file.as_deref().unwrap_or_default());
    push_text(line, case.variant.as_deref().unwrap_or_default());
    push_text(line, source.sharded_file(case));
    push_text(line, case.result.as_str());
    push_number(line, case.time.map_or(NONE, |time| (time * MICROS).round() as i64));
    push_number(line, case.attempts);
    push_number(line, u8::from(case.flaky));
    if case.details.is_empty() {
        line.push_str("[]\n");
    } else {
        push_text(line, &serde_json::to_string(&case.details).expect("details are always JSON"));
        line.pop();
        line.push('\n');
    }
}

fn read_row(row: &mut RowReader<'_>) -> Result<(ReportSource, TestRunRow), String> {
    let source = ReportSource {
        report_id: row.u64()?,
        job_id: read_optional(row)?,
        job_id_check: row.parsed("a job id's check", JobIdCheck::from_name)?,
        job: row.text()?.into(),
        artifact: row.text()?.into(),
        path: row.text()?,
        invoking_file: row.non_empty_text()?.map(Into::into),
    };
    let row = TestRunRow {
        test_id: row.u64()?,
        case: TestCase {
            kind: row.parsed("a kind of row", TestRowKind::from_name)?,
            suite: row.text()?.into(),
            classname: row.text()?.into(),
            name: row.text()?,
            file: row.non_empty_text()?.map(Into::into),
            variant: row.non_empty_text()?.map(Into::into),
            result: row.parsed("a test's result", TestResult::from_name)?,
            time: Some(row.integer()?).filter(|us| *us >= 0).map(|us| us as f64 / MICROS),
            attempts: row.u32()?,
            flaky: row.u8()? == 1,
            details: row.json()?,
        },
    };
    Ok((source, row))
}

fn read_optional(row: &mut RowReader<'_>) -> Result<Option<u64>, String> {
    Ok(Some(row.integer()?).filter(|number| *number != NONE).map(i64::cast_unsigned))
}

/// Without the test's names.
fn read_sums(row: &mut RowReader<'_>) -> Result<TestStats, String> {
    let (test_id, runs, failures) = (row.u64()?, row.u64()?, row.u64()?);
    let (skipped, flaky, timed, mean_us) = (row.u64()?, row.u64()?, row.u64()?, row.f64()?);
    Ok(TestStats {
        test_id,
        suite: String::new(),
        classname: String::new(),
        name: String::new(),
        file: None,
        variant: None,
        runs,
        failures,
        skipped,
        flaky,
        mean_time: (timed > 0).then_some(mean_us / MICROS),
        first_day: 0,
        last_day: row.integer()?,
    })
}

type Names = (String, String, String, String, String, i64);

fn read_names(row: &mut RowReader<'_>) -> Result<(u64, Names), String> {
    let id = row.u64()?;
    let names = (row.text()?, row.text()?, row.text()?, row.text()?, row.text()?, row.integer()?);
    Ok((id, names))
}

/// The order in which SQLite lists them.
fn sort_stats(stats: &mut [TestStats], ranking: TestRanking) {
    let names = |a: &TestStats, b: &TestStats| {
        (&a.classname, &a.name, a.test_id.cast_signed()).cmp(&(
            &b.classname,
            &b.name,
            b.test_id.cast_signed(),
        ))
    };
    stats.sort_by(|a, b| {
        let by_rank = match ranking {
            TestRanking::Flaky => b.flaky.cmp(&a.flaky).then(a.runs.cmp(&b.runs)),
            TestRanking::Failing => b.failures.cmp(&a.failures).then(a.runs.cmp(&b.runs)),
            TestRanking::Slow => b.mean_time.unwrap_or(0.0).total_cmp(&a.mean_time.unwrap_or(0.0)),
            TestRanking::New => b.first_day.cmp(&a.first_day),
        };
        by_rank.then_with(|| names(a, b))
    });
}
