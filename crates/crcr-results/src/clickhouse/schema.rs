//! The tables of ClickHouse, created and upgraded in steps.

use super::ClickHouseResults;
use crate::ResultsError;

/// A list of statements that can be repeated safely. A version of crcr that changes the tables appends one.
pub(crate) type SchemaStep = &'static [&'static [&'static str]];

/// The oldest version that crcr is tried with.
const OLDEST_VERSION: u32 = 23;

/// A fact is what identifies, selects and orders it, and the whole of it as JSON. Times are milliseconds since
/// 1970. An attempt without a `job` or `check_run_id` has an empty text there, because the columns of a key can't
/// be null. `status` and `conclusion` are for people's own queries.
pub(crate) const FACTS: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS crcr_dispatch (
        repo_key String, upstream_key String, version UInt64, delivery String, enqueued_at Int64,
        level String, pull_request Nullable(Int64), document String,
        head_sha String MATERIALIZED JSONExtractString(document, 'head_sha')
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(enqueued_at, 1000), 'UTC'))
     ORDER BY (repo_key, enqueued_at, delivery)",
    "CREATE TABLE IF NOT EXISTS crcr_attempt (
        repo_key String, upstream_key String, version UInt64, delivery String, workflow String,
        job String, run_id String, run_attempt UInt32, check_run_id String, dispatched_at Int64,
        level String, event String, status String, conclusion Nullable(String),
        pull_request Nullable(Int64), head_sha String, document String
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(dispatched_at, 1000), 'UTC'))
     ORDER BY (repo_key, dispatched_at, delivery, workflow, job, run_id, run_attempt,
        check_run_id)",
    "CREATE TABLE IF NOT EXISTS crcr_callback (
        repo_key String, id UInt64, at Int64, outcome String, answer UInt16, latency_ms Float64,
        document String
     ) ENGINE = ReplacingMergeTree()
     PARTITION BY toYYYYMM(toDateTime(intDiv(at, 1000), 'UTC'))
     ORDER BY (at, id)",
    "CREATE TABLE IF NOT EXISTS crcr_merge_base (
        upstream_key String, version UInt64, at Int64, pull_request Int64, head_sha String,
        document String
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(at, 1000), 'UTC'))
     ORDER BY (upstream_key, pull_request, head_sha)",
    "CREATE TABLE IF NOT EXISTS crcr_day (
        repo String, day Int64, nightly UInt8, tally String, version UInt64
     ) ENGINE = ReplacingMergeTree(version) ORDER BY (repo, day, nightly)",
    // Pages read these two first: which days have changed, and which days have facts about a pull
    // request. Without them a page would read all facts.
    "CREATE TABLE IF NOT EXISTS crcr_change (
        repo String, day Int64, changes UInt64, batch UInt64
     ) ENGINE = SummingMergeTree(changes) ORDER BY (repo, day)",
    "CREATE TABLE IF NOT EXISTS crcr_pull (upstream String, number Int64, day Int64)
     ENGINE = ReplacingMergeTree() ORDER BY (upstream, number, day)",
    "CREATE TABLE IF NOT EXISTS crcr_check (
        upstream_key String, version UInt64, at Int64, head_sha String, repo_key String,
        document String
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(at, 1000), 'UTC'))
     ORDER BY (upstream_key, head_sha, repo_key)",
];

/// Creates or upgrades the tables. Refuses tables of a newer crcr.
pub(crate) async fn create(server: &ClickHouseResults) -> Result<(), ResultsError> {
    let database = &server.server.database;
    refuse_old_server(server).await?;
    server.run_outside_database(&format!("CREATE DATABASE IF NOT EXISTS {database}")).await?;
    let log = "CREATE TABLE IF NOT EXISTS crcr_schema (step UInt32) ENGINE = MergeTree()
        ORDER BY step";
    server.query(log, &[]).await?;
    let answer = server.query("SELECT max(step) FROM crcr_schema", &[]).await?;
    let done: usize = String::from_utf8_lossy(&answer).trim().parse().unwrap_or(0);
    if done > server.steps.len() {
        return Err(ResultsError::Unavailable(format!(
            "the tables in `{database}` are of a newer crcr: step {done}, this one knows {}",
            server.steps.len()
        )));
    }
    for (at, statements) in server.steps.iter().enumerate().skip(done) {
        for tables in *statements {
            for statement in *tables {
                server.query(statement, &[]).await?;
            }
        }
        server.query(&format!("INSERT INTO crcr_schema VALUES ({})", at + 1), &[]).await?;
    }
    Ok(())
}

async fn refuse_old_server(server: &ClickHouseResults) -> Result<(), ResultsError> {
    let answer = server.run_outside_database("SELECT version()").await?;
    let version = String::from_utf8_lossy(&answer).trim().to_owned();
    match version.split('.').next().map(str::parse::<u32>) {
        Some(Ok(major)) if major >= OLDEST_VERSION => Ok(()),
        Some(Ok(_)) => Err(ResultsError::Unavailable(format!(
            "{} runs ClickHouse {version}; {OLDEST_VERSION}.1 or newer is needed",
            server.server.endpoint
        ))),
        _ => Err(ResultsError::Unavailable(format!(
            "{} isn't a ClickHouse server",
            server.server.endpoint
        ))),
    }
}

#[cfg(test)]
mod tests {
    use crcr_testkit::clickhouse::ClickHouse as TestServer;

    use super::super::{ClickHouseResults, ClickHouseServer};
    use crate::{CLICKHOUSE_STEPS, Results as _, Window};

    #[tokio::test]
    #[ignore = "needs chdb"]
    async fn interrupted_upgrade_is_repeated_and_tables_of_a_newer_crcr_are_refused() {
        let server = TestServer::start().unwrap();
        let open = || {
            ClickHouseResults::new(
                ClickHouseServer::parse(&server.url()).unwrap(),
                CLICKHOUSE_STEPS,
            )
            .unwrap()
        };
        let now = "2026-09-15T12:00:00Z".parse().unwrap();
        let (results, facts) =
            (open(), crcr_standin::generate::facts(3, now, 12, 6, "acme/upstream"));
        results.append(facts).await.unwrap();
        let window = Window::all(jiff::Timestamp::MIN, jiff::Timestamp::MAX);
        let attempts = results.attempts(&window).await.unwrap();
        assert!(!attempts.is_empty());

        // The process ended after the statements of a step and before the note that it is done.
        results.query("TRUNCATE TABLE crcr_schema", &[]).await.unwrap();
        let again = open();
        again.prepare().await.unwrap();
        assert_eq!(again.attempts(&window).await.unwrap(), attempts);

        let (found, known) = (CLICKHOUSE_STEPS.len() + 1, CLICKHOUSE_STEPS.len());
        let newer = format!("INSERT INTO crcr_schema VALUES ({found})");
        again.query(&newer, &[]).await.unwrap();
        let refused = open().prepare().await.unwrap_err().to_string();
        let expected = format!("are of a newer crcr: step {found}, this one knows {known}");
        assert!(refused.contains(&expected), "{refused}");
    }
}
