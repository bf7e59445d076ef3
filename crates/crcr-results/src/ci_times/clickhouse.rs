//! Times of jobs and runs in ClickHouse, which adds them up for each question.

use async_trait::async_trait;
use crcr_domain::ci_data::ended_ci::EndedCi;
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::results::DurationHistogram;
use crcr_domain::results::histogram::bucket;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::Results as _;
use crate::ResultsError;
use crate::ci_times::{
    BranchCommitRuns, CiGrouping, CiTimes, CiTimesQuery, CiTimesResults, EndedJob, EndedJobsQuery,
    MAX_NAMES, OTHER_NAMES,
};
use crate::clickhouse::rows::RowReader;
use crate::clickhouse::{ClickHouseResults, QueryValue};

/// A time that isn't known is -1. Equal rows, as a replay writes them, are merged into one.
pub(crate) const TABLES: &[&str] = &["CREATE TABLE IF NOT EXISTS crcr_ended_ci (
        repo_key String, kind String, id Int64, attempt Int64, ended_at Int64, failed UInt8,
        queue_bucket Int16, run_bucket Int16, runner String, name String, branch String, sha String,
        created_at Int64
     ) ENGINE = ReplacingMergeTree()
     PARTITION BY toYYYYMM(toDateTime(intDiv(ended_at, 1000), 'UTC'))
     ORDER BY (repo_key, kind, ended_at, id, attempt)"];

/// The row of what a webhook says has ended.
pub(crate) fn row(row: &WebhookRow) -> Option<Value> {
    let buckets = |seconds: Option<f64>| seconds.map_or(-1, |seconds| i16::from(bucket(seconds)));
    let repo_key = row.repository.to_ascii_lowercase();
    Some(match EndedCi::from_row(row)? {
        EndedCi::Job(job) => json!({
            "repo_key": repo_key, "kind": "job", "id": job.id.cast_signed(), "attempt": 1,
            "ended_at": job.ended_at.as_millisecond(), "failed": u8::from(job.failed),
            "queue_bucket": buckets(job.queue_seconds), "run_bucket": buckets(job.run_seconds),
            "runner": job.runner, "name": job.name, "branch": "", "sha": "", "created_at": 0,
        }),
        EndedCi::Run(run) => json!({
            "repo_key": repo_key, "kind": "run", "id": run.id.cast_signed(),
            "attempt": run.attempt.cast_signed(), "ended_at": run.ended_at.as_millisecond(),
            "failed": u8::from(run.failed), "queue_bucket": -1,
            "run_bucket": buckets(run.signal_seconds()), "runner": "", "name": run.workflow,
            "branch": run.branch.unwrap_or_default(), "sha": run.sha,
            "created_at": run.created_at.as_millisecond(),
        }),
    })
}

#[async_trait]
impl CiTimesResults for ClickHouseResults {
    async fn ci_times(&self, query: &CiTimesQuery) -> Result<Vec<CiTimes>, ResultsError> {
        self.prepare().await?;
        let repo = query.repository.to_ascii_lowercase();
        let (kind, name, more) = match query.grouping {
            CiGrouping::Runner => ("job", "runner", "AND runner != ''"),
            CiGrouping::Job => ("job", "name", "AND name != ''"),
            CiGrouping::Branch => ("run", "name", "AND branch != ''"),
            CiGrouping::Pull => ("run", "name", "AND branch = ''"),
        };
        let mut values = vec![
            ("repo".to_owned(), QueryValue::Text(&repo)),
            ("kind".to_owned(), QueryValue::Text(kind)),
            ("from".to_owned(), QueryValue::Number(query.from.as_millisecond())),
            ("to".to_owned(), QueryValue::Number(query.to.as_millisecond())),
        ];
        let mut named = "";
        if let Some(name) = &query.name {
            values.push(("name".to_owned(), QueryValue::Text(name)));
            named = "HAVING group_name = {name:String}";
        }
        let of = format!(
            "repo_key = {{repo:String}} AND kind = {{kind:String}} AND ended_at >= {{from:Int64}}
               AND ended_at < {{to:Int64}} {more}"
        );
        let unit = query.unit.millis();
        let sql = format!(
            "SELECT toInt64(intDiv(ended_at, {unit}) * {unit}) AS start,
               if({name} IN (SELECT {name} FROM crcr_ended_ci WHERE {of} GROUP BY {name}
                    ORDER BY count() DESC LIMIT {MAX_NAMES}), {name}, '{OTHER_NAMES}') AS group_name,
               count(), sum(failed), toString({queue}), toString({run})
             FROM (SELECT * FROM crcr_ended_ci WHERE {of} LIMIT 1 BY id, attempt)
             GROUP BY start, group_name {named} ORDER BY start, group_name",
            queue = histogram("queue_bucket"),
            run = histogram("run_bucket"),
        );
        self.rows(&sql, &values, |row| {
            Ok(CiTimes {
                start: row.time()?,
                name: row.text()?,
                ended: row.u64()?,
                failed: row.u64()?,
                queue: read_histogram(row)?,
                run: read_histogram(row)?,
            })
        })
        .await
    }

    async fn branch_commit_runs(
        &self,
        repository: &str,
        branch: &str,
        (from, to): (Timestamp, Timestamp),
        limit: usize,
    ) -> Result<Vec<BranchCommitRuns>, ResultsError> {
        self.prepare().await?;
        let repo = repository.to_ascii_lowercase();
        let values = [
            ("repo".to_owned(), QueryValue::Text(&repo)),
            ("branch".to_owned(), QueryValue::Text(branch)),
            ("from".to_owned(), QueryValue::Number(from.as_millisecond())),
            ("to".to_owned(), QueryValue::Number(to.as_millisecond())),
        ];
        let sql = format!(
            "SELECT sha, toInt64(min(first)) AS at, count(), sum(last_failed)
             FROM (SELECT sha, id, min(created_at) AS first, argMax(failed, attempt) AS last_failed
                FROM crcr_ended_ci WHERE repo_key = {{repo:String}} AND kind = 'run'
                  AND branch = {{branch:String}} AND ended_at >= {{from:Int64}}
                  AND created_at >= {{from:Int64}} AND created_at < {{to:Int64}}
                GROUP BY sha, id)
             GROUP BY sha ORDER BY at DESC, sha LIMIT {limit}"
        );
        self.rows(&sql, &values, |row| {
            Ok(BranchCommitRuns {
                sha: row.text()?,
                first_run_at: row.time()?,
                runs: row.u64()?,
                failed: row.u64()?,
            })
        })
        .await
    }

    async fn ended_jobs(&self, query: &EndedJobsQuery) -> Result<Vec<EndedJob>, ResultsError> {
        self.prepare().await?;
        let repo = query.repository.to_ascii_lowercase();
        let mut values = vec![
            ("repo".to_owned(), QueryValue::Text(&repo)),
            ("from".to_owned(), QueryValue::Number(query.from.as_millisecond())),
            ("to".to_owned(), QueryValue::Number(query.to.as_millisecond())),
            ("id".to_owned(), QueryValue::Number(query.to_id.unwrap_or_default().cast_signed())),
        ];
        let mut more = String::new();
        for (column, wanted) in [("runner", &query.runner), ("name", &query.job)] {
            if let Some(wanted) = wanted {
                values.push((column.to_owned(), QueryValue::Text(wanted)));
                more.push_str(&format!(" AND {column} = {{{column}:String}}"));
            }
        }
        if query.only_failed {
            more.push_str(" AND failed = 1");
        }
        let sql = format!(
            "SELECT id, ended_at, failed FROM crcr_ended_ci
             WHERE repo_key = {{repo:String}} AND kind = 'job' AND ended_at >= {{from:Int64}}
               AND (ended_at < {{to:Int64}} OR (ended_at = {{to:Int64}} AND id < {{id:Int64}})){more}
             ORDER BY ended_at DESC, id DESC LIMIT 1 BY id LIMIT {}",
            query.limit
        );
        self.rows(&sql, &values, |row| {
            Ok(EndedJob {
                id: row.integer()?.cast_unsigned(),
                ended_at: row.time()?,
                failed: row.u8()? == 1,
            })
        })
        .await
    }
}

/// SQL for a histogram as `{12:3,40:1}`; -1 is left out when it is read.
fn histogram(column: &str) -> String {
    format!("sumMap(map({column}, toUInt64(1)))")
}

fn read_histogram(row: &mut RowReader<'_>) -> Result<DurationHistogram, String> {
    let text = row.text()?;
    let mut histogram = DurationHistogram::default();
    for pair in text.trim_matches(['{', '}']).split(',').filter(|pair| !pair.is_empty()) {
        let odd = || format!("`{text}` isn't a histogram");
        let (bucket, count) = pair.split_once(':').ok_or_else(odd)?;
        // -1 is a time that isn't known.
        let Ok(bucket) = bucket.trim().parse() else { continue };
        histogram.add_bucket(bucket, count.trim().parse().map_err(|_| odd())?);
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use crcr_testkit::clickhouse::ClickHouse as TestServer;

    use super::*;
    use crate::clickhouse::ClickHouseServer;

    #[tokio::test]
    #[ignore = "needs chdb"]
    async fn clickhouse_adds_up_times_of_jobs() {
        let server = TestServer::start().unwrap();
        let address = ClickHouseServer::parse(&server.url()).unwrap();
        let results = ClickHouseResults::new(address, crate::CLICKHOUSE_STEPS).unwrap();
        crate::ci_times::suite::all(&results).await;
    }
}
