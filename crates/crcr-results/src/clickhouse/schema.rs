//! The tables of ClickHouse, created and upgraded in steps.

use super::ClickHouseResults;
use crate::ResultsError;

/// Each step is a list of statements that can be repeated safely. A version of crcr that changes the
/// tables appends a step.
///
/// Times are milliseconds since 1970. An attempt without a `job` or `check_run_id` has an empty text
/// there, because the columns of a key can't be null.
const STEPS: &[&[&str]] = &[
    &[
        "CREATE TABLE IF NOT EXISTS crcr_dispatch (
        repo_key String, upstream_key String, version UInt64, at Int64, delivery String,
        upstream String, pull_request Nullable(Int64), head_sha String, event String, repo String,
        level String, labels String, enqueued_at Int64, sent_at Nullable(Int64), status String,
        superseded_by Nullable(String), tries UInt32, last_error Nullable(String),
        base_sha Nullable(String)
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(enqueued_at, 1000), 'UTC'))
     ORDER BY (repo_key, enqueued_at, delivery)",
        "CREATE TABLE IF NOT EXISTS crcr_attempt (
        repo_key String, upstream_key String, version UInt64, status String,
        conclusion Nullable(String), received_at Int64, dispatched_at Int64, repo String,
        delivery String, workflow String, job String, run_id String, run_attempt UInt32,
        check_run_id String, state String, start_unknown UInt8, phase Nullable(String),
        queue_ms Nullable(Int64), execution_ms Nullable(Int64), started_at Nullable(Int64),
        completed_at Nullable(Int64), tests Nullable(String), failed_tests String,
        url Nullable(String), artifact_url Nullable(String), environment Nullable(String),
        level String, event String, upstream String, pull_request Nullable(Int64), head_sha String
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(dispatched_at, 1000), 'UTC'))
     ORDER BY (repo_key, dispatched_at, delivery, workflow, job, run_id, run_attempt,
        check_run_id)",
        "CREATE TABLE IF NOT EXISTS crcr_callback (
        repo_key String, id UInt64, at Int64, repo Nullable(String), delivery Nullable(String),
        run_id Nullable(String), job Nullable(String), status Nullable(String),
        conclusion Nullable(String), outcome String, answer UInt16, detail Nullable(String),
        latency_us Int64
     ) ENGINE = ReplacingMergeTree()
     PARTITION BY toYYYYMM(toDateTime(intDiv(at, 1000), 'UTC'))
     ORDER BY (at, id)",
    ],
    &["CREATE TABLE IF NOT EXISTS crcr_day (
        repo String, day Int64, nightly UInt8, tally String, version UInt64
     ) ENGINE = ReplacingMergeTree(version) ORDER BY (repo, day, nightly)"],
    // Pages read these two first: which days have changed, and which days have facts about a pull
    // request. Without them a page would read all facts.
    &[
        "CREATE TABLE IF NOT EXISTS crcr_change (
        repo String, day Int64, changes UInt64, batch UInt64
     ) ENGINE = SummingMergeTree(changes) ORDER BY (repo, day)",
        "INSERT INTO crcr_change (repo, day, changes)
     SELECT repo_key, intDiv(enqueued_at, 86400000) AS day, count() FROM crcr_dispatch GROUP BY repo_key, day",
        "INSERT INTO crcr_change (repo, day, changes)
     SELECT repo_key, intDiv(dispatched_at, 86400000) AS day, count() FROM crcr_attempt GROUP BY repo_key, day",
        "INSERT INTO crcr_change (repo, day, changes)
     SELECT '', intDiv(at, 86400000) AS day, count() FROM crcr_callback GROUP BY day",
        "CREATE TABLE IF NOT EXISTS crcr_pull (upstream String, number Int64, day Int64)
     ENGINE = ReplacingMergeTree() ORDER BY (upstream, number, day)",
        "INSERT INTO crcr_pull SELECT DISTINCT upstream_key, assumeNotNull(pull_request),
     intDiv(enqueued_at, 86400000) FROM crcr_dispatch WHERE isNotNull(pull_request)",
        "INSERT INTO crcr_pull SELECT DISTINCT upstream_key, assumeNotNull(pull_request),
     intDiv(dispatched_at, 86400000) FROM crcr_attempt WHERE isNotNull(pull_request)",
    ],
    // `base_sha` of a dispatch isn't written any more. It was the tip of the base branch, not the
    // commit where the pull request branched off.
    &["CREATE TABLE IF NOT EXISTS crcr_merge_base (
        upstream_key String, version UInt64, at Int64, upstream String, pull_request Int64,
        head_sha String, merge_base String, committed_at Int64
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(at, 1000), 'UTC'))
     ORDER BY (upstream_key, pull_request, head_sha)"],
    &["ALTER TABLE crcr_attempt ADD COLUMN missing_proof Nullable(String)"],
    &["ALTER TABLE crcr_attempt ADD COLUMN triage Nullable(String)"],
    super::test_runs::TABLES,
    super::webhook_tables::TABLES,
    super::job_logs::TABLES,
    &["ALTER TABLE crcr_attempt ADD COLUMN warnings String DEFAULT '[]'"],
];

/// Creates or upgrades the tables. Refuses tables of a newer crcr.
pub(super) async fn create(server: &ClickHouseResults) -> Result<(), ResultsError> {
    let database = &server.server.database;
    server.run_outside_database(&format!("CREATE DATABASE IF NOT EXISTS {database}")).await?;
    let log = "CREATE TABLE IF NOT EXISTS crcr_schema (step UInt32) ENGINE = MergeTree()
        ORDER BY step";
    server.query(log, &[]).await?;
    let answer = server.query("SELECT max(step) FROM crcr_schema", &[]).await?;
    let done: usize = String::from_utf8_lossy(&answer).trim().parse().unwrap_or(0);
    if done > STEPS.len() {
        return Err(ResultsError::Unavailable(format!(
            "the tables in `{database}` are of a newer crcr: step {done}, this one knows {}",
            STEPS.len()
        )));
    }
    for (at, statements) in STEPS.iter().enumerate().skip(done) {
        for statement in *statements {
            match server.query(statement, &[]).await {
                // A killed upgrade has added it already. Version 18.16 has no `ADD COLUMN IF NOT EXISTS`.
                Err(error)
                    if statement.contains("ADD COLUMN")
                        && error.to_string().contains("already exists") => {}
                answer => drop(answer?),
            }
        }
        server.query(&format!("INSERT INTO crcr_schema VALUES ({})", at + 1), &[]).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crcr_testkit::clickhouse::ClickHouse as TestServer;
    use jiff::Timestamp;

    use super::super::{ClickHouseResults, ClickHouseServer};
    use super::STEPS;
    use crate::{Results as _, Window, generate};

    /// The rows of the tables that later steps added. The number of writes of each day is left out:
    /// it isn't known for rows that a merge has replaced.
    async fn rows_of_newer_tables(
        results: &ClickHouseResults,
    ) -> (Vec<(String, i64)>, usize, usize) {
        let ever = Window::all(Timestamp::MIN, Timestamp::MAX);
        let days = results.day_revisions(&ever).await.unwrap().into_iter();
        let mut days: Vec<_> = days.map(|day| (day.repo, day.day)).collect();
        days.sort();
        let (attempts, dispatches) =
            results.pull_request_facts("Acme/Upstream", &[101_010]).await.unwrap();
        (days, attempts.len(), dispatches.len())
    }

    async fn old_tables_are_upgraded_and_keep_their_rows(server: &TestServer) {
        let open =
            || ClickHouseResults::new(ClickHouseServer::parse(&server.url()).unwrap()).unwrap();
        let now = "2026-09-15T12:00:00Z".parse().unwrap();
        let (results, facts) = (open(), generate::facts(3, now, 12, 6, "acme/upstream"));
        results.append(facts).await.unwrap();
        let expected = rows_of_newer_tables(&results).await;
        assert!(expected.0.len() > 50 && expected.1 > 5 && expected.2 >= 5, "{expected:?}");
        // Back to the tables of the second step, with the rows of that time.
        for table in ["crcr_change", "crcr_pull", "crcr_merge_base", "crcr_schema"] {
            results.query(&format!("DROP TABLE {table}"), &[]).await.unwrap();
        }
        for statement in [
            "CREATE TABLE crcr_schema (step UInt32) ENGINE = MergeTree() ORDER BY step",
            "INSERT INTO crcr_schema VALUES (1), (2)",
        ] {
            results.query(statement, &[]).await.unwrap();
        }
        assert!(
            results.day_revisions(&Window::all(now, now)).await.is_err(),
            "the tables are gone"
        );
        let upgraded = open();
        upgraded.prepare().await.unwrap();
        assert_eq!(rows_of_newer_tables(&upgraded).await, expected);
        assert_eq!(upgraded.merge_bases("acme/upstream", &[101_010]).await.unwrap(), []);
        let newer = format!("INSERT INTO crcr_schema VALUES ({})", STEPS.len() + 1);
        upgraded.query(&newer, &[]).await.unwrap();
        let refused = open().prepare().await.unwrap_err().to_string();
        let (found, known) = (STEPS.len() + 1, STEPS.len());
        let expected = format!("are of a newer crcr: step {found}, this one knows {known}");
        assert!(refused.contains(&expected), "{refused}");
    }

    #[tokio::test]
    #[ignore = "needs clickhouse-server"]
    async fn old_tables_are_upgraded_on_clickhouse_18() {
        old_tables_are_upgraded_and_keep_their_rows(&TestServer::debian().unwrap()).await;
    }

    #[tokio::test]
    #[ignore = "needs chdb"]
    async fn old_tables_are_upgraded_on_current_clickhouse() {
        old_tables_are_upgraded_and_keep_their_rows(&TestServer::chdb().unwrap()).await;
    }
}
