//! Single tests in ClickHouse.

use async_trait::async_trait;
use crcr_domain::ci_data::test_run::{TestResult, TestRowKind, full_name};

use crate::Results as _;
use crate::ResultsError;
use crate::clickhouse::rows::RowReader;
use crate::clickhouse::{ClickHouseResults, QueryValue};
use crate::test_history::{
    FailedTestOfJob, MAX_JOBS, MAX_RESULTS_OF_JOB, TestHistoryResults, TestIdentity, TestJobDay,
    TestResultRow, is_named, message, newest_first, possible_names,
};
use crate::test_runs::clickhouse::MICROS;

const TEST: &str = "test_id, argMax(suite, version), argMax(classname, version) AS class, \
    argMax(name, version) AS test_name, argMax(file, version), argMax(variant, version), min(first_day)";

#[async_trait]
impl TestHistoryResults for ClickHouseResults {
    async fn tests_named(
        &self,
        repository: &str,
        name: &str,
        limit: usize,
    ) -> Result<Vec<TestIdentity>, ResultsError> {
        self.prepare().await?;
        let (key, names) = (repository.to_ascii_lowercase(), possible_names(name));
        let mut values = vec![("repo".to_owned(), QueryValue::Text(&key))];
        let parameters: Vec<String> = (0..names.len()).map(|n| format!("name{n}")).collect();
        let texts = names.iter().map(|name| QueryValue::Text(name));
        values.extend(parameters.iter().cloned().zip(texts));
        let list: Vec<_> = parameters.iter().map(|name| format!("{{{name}:String}}")).collect();
        let sql = format!(
            "SELECT {TEST} FROM crcr_test WHERE repo_key = {{repo:String}} AND name IN ({})
             GROUP BY test_id ORDER BY class, test_name, test_id",
            list.join(",")
        );
        let found = self.rows(&sql, &values, read_test).await?;
        Ok(found.into_iter().filter(|test| is_named(test, name)).take(limit).collect())
    }

    async fn test_identity(
        &self,
        repository: &str,
        test_id: u64,
    ) -> Result<Option<TestIdentity>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = [("repo".to_owned(), QueryValue::Text(&key))];
        let sql = format!(
            "SELECT {TEST} FROM crcr_test WHERE repo_key = {{repo:String}} AND test_id = {test_id}
             GROUP BY test_id"
        );
        Ok(self.rows(&sql, &values, read_test).await?.pop())
    }

    async fn test_job_days(
        &self,
        repository: &str,
        test_id: u64,
        days: (i64, i64),
    ) -> Result<Vec<TestJobDay>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = values(&key, days);
        let sql = format!(
            "SELECT on_default, job, toInt64(day), max(runs), argMax(failures, runs),
               argMax(skipped, runs), argMax(flaky, runs), argMax(timed, runs), argMax(time_us, runs)
             FROM crcr_test_day WHERE repo_key = {{repo:String}} AND on_default IN (0, 1) AND job != ''
               AND day >= {{from:Int64}} AND day <= {{to:Int64}} AND test_id = {test_id}
             GROUP BY on_default, job, day ORDER BY day, job, on_default"
        );
        self.rows(&sql, &values, |row| {
            Ok(TestJobDay {
                on_default_branch: row.u8()? == 1,
                job: row.text()?,
                day: row.integer()?,
                runs: row.u64()?,
                failures: row.u64()?,
                skipped: row.u64()?,
                flaky: row.u64()?,
                timed: row.u64()?,
                seconds: row.integer()? as f64 / MICROS,
            })
        })
        .await
    }

    async fn test_results(
        &self,
        repository: &str,
        test_id: u64,
        days: (i64, i64),
        limit: usize,
    ) -> Result<Vec<TestResultRow>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = values(&key, days);
        let columns = "started_at, run_id, run_attempt, head_sha, head_branch, on_default, job, setup, job_id, \
                       result, time_us, attempts, flaky, details";
        let of_test = format!(
            "repo_key = {{repo:String}} AND day >= {{from:Int64}} AND day <= {{to:Int64}}
               AND test_id = {test_id}"
        );
        // A row that was sent twice may not have been merged yet.
        let once = format!(
            "SELECT {columns} FROM crcr_test_run PREWHERE {of_test}
             LIMIT 1 BY run_id, run_attempt, report_id"
        );
        let sql = format!(
            "SELECT {columns} FROM ({once}) WHERE result IN ('failure', 'error')
             ORDER BY started_at DESC LIMIT {limit} BY on_default
             UNION ALL
             SELECT {columns} FROM ({once}) WHERE result NOT IN ('failure', 'error')
               AND ((on_default, job) IN
               (SELECT on_default, job FROM crcr_test_run PREWHERE {of_test}
                GROUP BY on_default, job
                ORDER BY max(day) DESC, job DESC LIMIT {MAX_JOBS} BY on_default)
               OR (on_default, job) IN
               (SELECT on_default, job FROM crcr_test_run PREWHERE {of_test}
                WHERE result IN ('failure', 'error') GROUP BY on_default, job
                ORDER BY max(started_at) DESC LIMIT {limit} BY on_default))
             ORDER BY started_at DESC LIMIT {MAX_RESULTS_OF_JOB} BY on_default, job"
        );
        let mut rows = self.rows(&sql, &values, read_result).await?;
        newest_first(&mut rows);
        Ok(rows)
    }

    async fn failed_tests_of_job(
        &self,
        repository: &str,
        (run_id, run_attempt): (u64, u32),
        job_id: u64,
        limit: usize,
    ) -> Result<Vec<FailedTestOfJob>, ResultsError> {
        self.prepare().await?;
        let key = repository.to_ascii_lowercase();
        let values = [
            ("repo".to_owned(), QueryValue::Text(&key)),
            ("run".to_owned(), QueryValue::Number(run_id.cast_signed())),
            ("attempt".to_owned(), QueryValue::Number(i64::from(run_attempt))),
            ("job".to_owned(), QueryValue::Number(job_id.cast_signed())),
        ];
        let sql = format!(
            "SELECT test_id, kind, suite, classname, name, details FROM crcr_failed_test_run
             WHERE repo_key = {{repo:String}} AND run_id = {{run:Int64}}
               AND run_attempt = {{attempt:Int64}} AND job_id = {{job:Int64}}
             ORDER BY classname, name, reinterpretAsInt64(test_id)
             LIMIT 1 BY test_id, report_id LIMIT {limit}"
        );
        self.rows(&sql, &values, |row| {
            let (test_id, kind) =
                (row.u64()?, row.parsed("a kind of row", TestRowKind::from_name)?);
            let name = full_name(&row.text()?, &row.text()?, &row.text()?);
            Ok(FailedTestOfJob { test_id, kind, name, message: message(&row.text()?) })
        })
        .await
    }
}

fn values(key: &str, days: (i64, i64)) -> Vec<(String, QueryValue<'_>)> {
    vec![
        ("repo".to_owned(), QueryValue::Text(key)),
        ("from".to_owned(), QueryValue::Number(days.0)),
        ("to".to_owned(), QueryValue::Number(days.1)),
    ]
}

fn read_test(row: &mut RowReader<'_>) -> Result<TestIdentity, String> {
    Ok(TestIdentity {
        test_id: row.u64()?,
        suite: row.text()?,
        classname: row.text()?,
        name: row.text()?,
        file: row.non_empty_text()?,
        variant: row.non_empty_text()?,
        first_day: row.integer()?,
    })
}

fn read_result(row: &mut RowReader<'_>) -> Result<TestResultRow, String> {
    let known = |number: i64| (number >= 0).then_some(number);
    Ok(TestResultRow {
        at: row.time()?,
        run_id: row.integer()?.cast_unsigned(),
        run_attempt: row.u32()?,
        head_sha: row.text()?,
        head_branch: row.text()?,
        on_default_branch: row.u8()? == 1,
        job: row.text()?,
        setup: row.text()?,
        job_id: known(row.integer()?).map(i64::cast_unsigned),
        result: row.parsed("a test's result", TestResult::from_name)?,
        seconds: known(row.integer()?).map(|us| us as f64 / MICROS),
        attempts: row.u32()?,
        flaky: row.u8()? == 1,
        message: message(&row.text()?),
    })
}
