//! Logs of failed jobs in ClickHouse.

use async_trait::async_trait;
use crcr_domain::ci_data::job_log::{EndedJob, FailureCause, JobLogRow, NoLogReason};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::Results as _;
use crate::ResultsError;
use crate::clickhouse::rows::{self, RowReader};
use crate::clickhouse::{ClickHouseResults, QueryParameters, QueryValue};
use crate::job_logs::{
    FailedJobsQuery, FailureGroup, FailureGroups, FailureQuery, JobLogResults, MAX_GROUPED,
    outcome, outcome_columns,
};

/// Ordered by job, because a page asks for the logs of its jobs. A page of the failures of some days reads
/// the small columns of the months that they are in; documents are read only of rows that match. Granules are
/// small, because a document has kilobytes and granules are read whole.
pub(crate) const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS crcr_job_log (
        repo_key String, repo String, job_id Int64, version UInt64, completed_at Int64,
        reason String, category String, rule String, capture String, line String,
        run_id Int64, run_attempt Int64, job_name String, workflow String, branch String, head_sha String,
        looked_at Int64, log_key String, document String
     ) ENGINE = ReplacingMergeTree(version)
     PARTITION BY toYYYYMM(toDateTime(intDiv(completed_at, 1000), 'UTC'))
     ORDER BY (repo_key, job_id) SETTINGS index_granularity = 256",
    "CREATE TABLE IF NOT EXISTS crcr_green_job (
        repo_key String, repo String, workflow String, job_name String, on_default_branch UInt8,
        run_id Int64, run_attempt Int64, job_id Int64, branch String, head_sha String,
        completed_at Int64
     ) ENGINE = ReplacingMergeTree(completed_at)
     ORDER BY (repo_key, workflow, job_name, on_default_branch)",
];

/// Rows that are read for each job: a missing log may have been recorded before its classification, and both
/// rows are there until they are merged.
const ROWS_OF_A_JOB: usize = 2;

/// The columns of [`read_job`].
const JOB: &str =
    "repo, run_id, run_attempt, job_id, job_name, workflow, branch, head_sha, completed_at";

#[async_trait]
impl JobLogResults for ClickHouseResults {
    async fn put_job_logs(&self, rows: Vec<JobLogRow>) -> Result<(), ResultsError> {
        self.prepare().await?;
        let mut lines = vec![];
        for row in &rows {
            let cause = row.cause();
            let (reason, document) = outcome_columns(&row.outcome);
            let mut line = job_columns(&row.job);
            let more = json!({
                "version": row.version(), "reason": reason, "category": cause.category,
                "rule": cause.rule, "capture": cause.capture, "line": row.short_line(),
                "looked_at": row.looked_at.as_millisecond(),
                "log_key": row.log_key.as_deref().unwrap_or_default(), "document": document,
            });
            add(&mut line, more);
            rows::line(&mut lines, &line);
        }
        if lines.is_empty() { Ok(()) } else { self.insert("crcr_job_log", &lines).await }
    }

    async fn job_logs(
        &self,
        repository: &str,
        job_ids: &[u64],
    ) -> Result<Vec<JobLogRow>, ResultsError> {
        if job_ids.is_empty() {
            return Ok(vec![]);
        }
        let repo = repository.to_ascii_lowercase();
        let values = [("repo".to_owned(), QueryValue::Text(&repo))];
        let ids: Vec<String> = job_ids.iter().map(|id| id.cast_signed().to_string()).collect();
        let condition = format!("repo_key = {{repo:String}} AND job_id IN ({})", ids.join(", "));
        let mut found = self.log_rows(&condition, &values).await?;
        found.sort_by_key(|row| row.job.job_id);
        Ok(found)
    }

    async fn similar_failures(
        &self,
        cause: &FailureCause,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<JobLogRow>, ResultsError> {
        if cause.capture.is_empty() {
            return Ok(vec![]);
        }
        self.prepare().await?;
        let values = [
            ("rule".to_owned(), QueryValue::Text(&cause.rule)),
            ("capture".to_owned(), QueryValue::Text(&cause.capture)),
            ("since".to_owned(), QueryValue::Number(since.as_millisecond())),
        ];
        let since = "completed_at >= {since:Int64}";
        let asked = ["rule = {rule:String}", "capture = {capture:String}"];
        let newest = newest_jobs(since, &asked, limit);
        let condition = format!("{since} AND (repo_key, job_id) IN ({newest})");
        let mut found = self.log_rows(&condition, &values).await?;
        found.sort_by_key(|row| std::cmp::Reverse(row.job.completed_at));
        Ok(found)
    }

    async fn failure_groups(
        &self,
        query: &FailureQuery<'_>,
    ) -> Result<FailureGroups, ResultsError> {
        self.prepare().await?;
        let repo = query.repository.map(str::to_ascii_lowercase);
        let mut values = vec![
            ("from".to_owned(), QueryValue::Number(query.from.as_millisecond())),
            ("to".to_owned(), QueryValue::Number(query.to.as_millisecond())),
        ];
        let mut of = "completed_at >= {from:Int64} AND completed_at < {to:Int64}".to_owned();
        if let Some(repo) = &repo {
            values.push(("repo".to_owned(), QueryValue::Text(repo)));
            of.push_str(" AND repo_key = {repo:String}");
        }
        if let Some(category) = query.category {
            values.push(("category".to_owned(), QueryValue::Text(category)));
            let newest = newest_jobs(&of, &["category = {category:String}"], MAX_GROUPED);
            of.push_str(&format!(" AND (repo_key, job_id) IN ({newest})"));
        }
        let columns = format!("category, rule, capture, reason, line, {JOB}");
        let newest: Vec<String> = format!("line, {JOB}")
            .split(", ")
            .map(|c| format!("argMax({c}, completed_at)"))
            .collect();
        let sql = format!(
            "SELECT sum(failures) OVER () AS grouped, *
             FROM (SELECT category, rule, capture, reason, count() AS failures, min(completed_at), {},
                     max(completed_at) AS newest
                FROM (SELECT {columns} FROM
                   (SELECT {columns} FROM
                      (SELECT {columns}, repo_key, version FROM crcr_job_log PREWHERE {of}
                       ORDER BY completed_at DESC LIMIT {})
                    ORDER BY version DESC LIMIT 1 BY repo_key, job_id)
                   ORDER BY completed_at DESC LIMIT {MAX_GROUPED})
                GROUP BY category, rule, capture, reason)
             ORDER BY failures DESC, newest DESC LIMIT {}",
            newest.join(", "),
            MAX_GROUPED * ROWS_OF_A_JOB,
            query.limit + 1
        );
        let found = self.rows(&sql, &values, |row| {
            let grouped = row.u64()?;
            let group = FailureGroup {
                cause: FailureCause {
                    category: row.text()?,
                    rule: row.text()?,
                    capture: row.text()?,
                },
                reason: NoLogReason::from_name(&row.text()?),
                failures: row.u64()?,
                oldest: row.time()?,
                line: row.text()?,
                newest: read_job(row)?,
            };
            // The groups are sorted by this.
            row.time()?;
            Ok((grouped, group))
        });
        Ok(FailureGroups::new(found.await?, query.limit))
    }

    async fn failed_jobs(
        &self,
        query: &FailedJobsQuery<'_>,
    ) -> Result<Vec<JobLogRow>, ResultsError> {
        self.prepare().await?;
        let repo = query.repository.map(str::to_ascii_lowercase);
        let mut values = vec![
            ("from".to_owned(), QueryValue::Number(query.from.as_millisecond())),
            ("to".to_owned(), QueryValue::Number(query.to.as_millisecond())),
        ];
        let mut of = "completed_at >= {from:Int64} AND completed_at < {to:Int64}".to_owned();
        if let Some(job) = query.to_job {
            values.push(("job".to_owned(), QueryValue::Number(job.cast_signed())));
            of = "completed_at >= {from:Int64} \
                  AND (completed_at, job_id) < ({to:Int64}, {job:Int64})"
                .to_owned();
        }
        if let Some(repo) = &repo {
            values.push(("repo".to_owned(), QueryValue::Text(repo)));
            of.push_str(" AND repo_key = {repo:String}");
        }
        let mut asked = vec![];
        if let Some(category) = query.category {
            values.push(("category".to_owned(), QueryValue::Text(category)));
            asked.push("category = {category:String}");
        }
        if let Some(cause) = &query.cause {
            values.push(("rule".to_owned(), QueryValue::Text(cause.rule)));
            values.push(("capture".to_owned(), QueryValue::Text(cause.capture)));
            values.push(("reason".to_owned(), QueryValue::Text(cause.reason_column())));
            asked.extend(["rule = {rule:String}", "capture = {capture:String}"]);
            asked.push("reason = {reason:String}");
        }
        let job = query.job.map(|job| format!("{job} ("));
        if let Some(job) = &job {
            values.push(("name".to_owned(), QueryValue::Text(job)));
            of.push_str(" AND startsWith(concat(workflow, ' / ', job_name, ' ('), {name:String})");
        }
        let newest = newest_jobs(&of, &asked, query.limit);
        let condition = format!("{of} AND (repo_key, job_id) IN ({newest})");
        let mut found = self.log_rows(&condition, &values).await?;
        found.sort_by_key(|row| std::cmp::Reverse((row.job.completed_at, row.job.job_id)));
        found.truncate(query.limit);
        Ok(found)
    }

    async fn put_green_job(
        &self,
        job: &EndedJob,
        on_default_branch: bool,
    ) -> Result<(), ResultsError> {
        self.prepare().await?;
        let mut line = job_columns(job);
        add(&mut line, json!({ "on_default_branch": u8::from(on_default_branch) }));
        let mut lines = vec![];
        rows::line(&mut lines, &line);
        self.insert("crcr_green_job", &lines).await
    }

    async fn green_jobs(
        &self,
        repository: &str,
        workflow: &str,
        job_name: &str,
    ) -> Result<Vec<EndedJob>, ResultsError> {
        self.prepare().await?;
        let repo = repository.to_ascii_lowercase();
        let values = [
            ("repo".to_owned(), QueryValue::Text(&repo)),
            ("workflow".to_owned(), QueryValue::Text(workflow)),
            ("job".to_owned(), QueryValue::Text(job_name)),
        ];
        let sql = format!(
            "SELECT {JOB} FROM crcr_green_job WHERE repo_key = {{repo:String}}
               AND workflow = {{workflow:String}} AND job_name = {{job:String}}
             ORDER BY on_default_branch DESC, completed_at DESC LIMIT 1 BY on_default_branch"
        );
        self.rows(&sql, &values, read_job).await
    }
}

impl ClickHouseResults {
    /// The current rows of those that meet the condition.
    async fn log_rows(
        &self,
        condition: &str,
        values: &QueryParameters<'_>,
    ) -> Result<Vec<JobLogRow>, ResultsError> {
        self.prepare().await?;
        let sql = format!(
            "SELECT {JOB}, looked_at, log_key, reason, document FROM crcr_job_log \
             PREWHERE {condition} ORDER BY version DESC LIMIT 1 BY repo_key, job_id"
        );
        self.rows(&sql, values, |row| {
            let job = read_job(row)?;
            let (looked_at, log_key) = (row.time()?, row.non_empty_text()?);
            let (reason, document) = (row.text()?, row.text()?);
            let outcome = outcome(&reason, &document).ok_or("a log's classification")?;
            Ok(JobLogRow { job, looked_at, log_key, outcome })
        })
        .await
    }
}

/// SQL for the newest jobs for which `of` holds and whose current row is as `asked`. `of` may only use columns that are
/// equal in all rows of a job: with the newest row left out, an older one would be taken for the current one.
fn newest_jobs(of: &str, asked: &[&str], limit: usize) -> String {
    let having = match asked {
        [] => String::new(),
        _ => format!("HAVING argMax({}, version)", asked.join(" AND ")),
    };
    format!(
        "SELECT repo_key, job_id FROM crcr_job_log PREWHERE {of} GROUP BY repo_key, job_id {having}
         ORDER BY max(completed_at) DESC, job_id DESC LIMIT {limit}"
    )
}

fn job_columns(job: &EndedJob) -> Value {
    json!({
        "repo_key": job.repository.to_ascii_lowercase(), "repo": job.repository,
        "run_id": job.run_id, "run_attempt": job.run_attempt, "job_id": job.job_id,
        "job_name": job.job_name, "workflow": job.workflow, "branch": job.branch,
        "head_sha": job.head_sha, "completed_at": job.completed_at.as_millisecond(),
    })
}

fn add(line: &mut Value, more: Value) {
    if let (Value::Object(line), Value::Object(more)) = (line, more) {
        line.extend(more);
    }
}

fn read_job(row: &mut RowReader<'_>) -> Result<EndedJob, String> {
    Ok(EndedJob {
        repository: row.text()?,
        run_id: row.integer()?.cast_unsigned(),
        run_attempt: row.integer()?.cast_unsigned(),
        job_id: row.integer()?.cast_unsigned(),
        job_name: row.text()?,
        workflow: row.text()?,
        branch: row.text()?,
        head_sha: row.text()?,
        completed_at: row.time()?,
    })
}

#[cfg(test)]
mod tests {
    use crcr_testkit::clickhouse::ClickHouse as TestServer;

    use super::*;
    use crate::clickhouse::ClickHouseServer;

    #[tokio::test]
    #[ignore = "needs chdb"]
    async fn clickhouse_keeps_logs_of_failed_jobs() {
        let server = TestServer::start().unwrap();
        let address = ClickHouseServer::parse(&server.url()).unwrap();
        crate::job_logs::suite::all(
            &ClickHouseResults::new(address, crate::CLICKHOUSE_STEPS).unwrap(),
        )
        .await;
    }
}
