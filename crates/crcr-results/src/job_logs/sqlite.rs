//! Logs of failed jobs in SQLite. The tables are in `crcr-store`'s `job_logs.sql`.

use async_trait::async_trait;
use crcr_domain::ci_data::job_log::{EndedJob, FailureCause, JobLogRow, NoLogReason};
use crcr_store::sqlite::{millis, timestamp};
use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{ToSql, params};

use crate::ResultsError;
use crate::job_logs::{
    FailedJobsQuery, FailureGroup, FailureGroups, FailureQuery, JobLogResults, MAX_GROUPED,
    outcome, outcome_columns,
};
use crate::sqlite::{ColumnReader, SqliteResults, json};

/// The columns of [`read_job`].
const JOB: &str =
    "repo, run_id, run_attempt, job_id, job_name, workflow, branch, head_sha, completed_at";

#[async_trait]
impl JobLogResults for SqliteResults {
    async fn put_job_logs(&self, rows: Vec<JobLogRow>) -> Result<(), ResultsError> {
        let put = self.store.write(move |tx| {
            let mut put = tx.prepare_cached(
                "INSERT INTO job_log (repo, run_id, run_attempt, job_id, job_name, workflow, branch,
                   head_sha, completed_at, version, reason, category, rule, capture, looked_at,
                   log_key, document, line)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
                   ?18)
                 ON CONFLICT (repo, job_id) DO UPDATE SET
                   version = excluded.version, reason = excluded.reason,
                   category = excluded.category, rule = excluded.rule, capture = excluded.capture,
                   looked_at = excluded.looked_at, log_key = excluded.log_key,
                   document = excluded.document, line = excluded.line
                 WHERE excluded.version >= job_log.version",
            )?;
            for row in &rows {
                let (job, cause) = (&row.job, row.cause());
                let (reason, document) = outcome_columns(&row.outcome);
                put.execute(params![
                    job.repository,
                    job.run_id.cast_signed(),
                    job.run_attempt.cast_signed(),
                    job.job_id.cast_signed(),
                    job.job_name,
                    job.workflow,
                    job.branch,
                    job.head_sha,
                    millis(job.completed_at),
                    row.version().cast_signed(),
                    reason,
                    cause.category,
                    cause.rule,
                    cause.capture,
                    millis(row.looked_at),
                    row.log_key,
                    document,
                    row.short_line(),
                ])?;
            }
            Ok(rows.len() as u64)
        });
        put.await?;
        Ok(())
    }

    async fn job_logs(
        &self,
        repository: &str,
        job_ids: &[u64],
    ) -> Result<Vec<JobLogRow>, ResultsError> {
        let ids: Vec<i64> = job_ids.iter().map(|id| id.cast_signed()).collect();
        let condition = "repo = ?1 AND job_id IN (SELECT value FROM json_each(?2)) ORDER BY job_id";
        self.log_rows(condition, vec![Box::new(repository.to_owned()), Box::new(json(&ids))]).await
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
        let condition = "rule = ?1 AND capture = ?2 AND completed_at >= ?3
                         ORDER BY completed_at DESC LIMIT ?4";
        self.log_rows(
            condition,
            vec![
                Box::new(cause.rule.clone()),
                Box::new(cause.capture.clone()),
                Box::new(millis(since)),
                Box::new(limit as i64),
            ],
        )
        .await
    }

    async fn failure_groups(
        &self,
        query: &FailureQuery<'_>,
    ) -> Result<FailureGroups, ResultsError> {
        let mut conditions = String::new();
        let mut arguments: Vec<Box<dyn ToSql + Send>> =
            vec![Box::new(millis(query.from)), Box::new(millis(query.to))];
        for (column, value) in [("repo", query.repository), ("category", query.category)] {
            if let Some(value) = value {
                arguments.push(Box::new(value.to_owned()));
                conditions.push_str(&format!("AND {column} = ?{} ", arguments.len()));
            }
        }
        // With `max`, SQLite takes the job's columns from the same row.
        // <https://www.sqlite.org/lang_select.html#bareagg>
        let sql = format!(
            "SELECT sum(failures) OVER () AS grouped, *
             FROM (SELECT category, rule, capture, reason, count(*) AS failures,
                     min(completed_at) AS oldest, line, {JOB}, max(completed_at) AS newest
                   FROM (SELECT category, rule, capture, reason, line, {JOB} FROM job_log
                         WHERE completed_at >= ?1 AND completed_at < ?2 {conditions}
                         ORDER BY completed_at DESC LIMIT {MAX_GROUPED})
                   GROUP BY category, rule, capture, reason)
             ORDER BY failures DESC, newest DESC LIMIT {}",
            query.limit + 1
        );
        let found = self.query(move |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(rusqlite::params_from_iter(arguments), |row| {
                    let mut row = ColumnReader::of(row);
                    let grouped = row.get::<i64>()?.cast_unsigned();
                    let group = FailureGroup {
                        cause: FailureCause {
                            category: row.get()?,
                            rule: row.get()?,
                            capture: row.get()?,
                        },
                        reason: NoLogReason::from_name(&row.get::<String>()?),
                        failures: row.get::<i64>()?.cast_unsigned(),
                        oldest: row.time()?,
                        line: row.get()?,
                        newest: read_job(&mut row)?,
                    };
                    Ok((grouped, group))
                })?
                .collect()
        });
        Ok(FailureGroups::new(found.await?, query.limit))
    }

    async fn failed_jobs(
        &self,
        query: &FailedJobsQuery<'_>,
    ) -> Result<Vec<JobLogRow>, ResultsError> {
        let mut arguments: Vec<Box<dyn ToSql + Send>> =
            vec![Box::new(millis(query.from)), Box::new(millis(query.to))];
        let mut conditions = match query.to_job {
            None => "completed_at >= ?1 AND completed_at < ?2".to_owned(),
            Some(job) => {
                arguments.push(Box::new(job.cast_signed()));
                "completed_at >= ?1 AND (completed_at, job_id) < (?2, ?3)".to_owned()
            }
        };
        for (column, value) in [
            ("repo", query.repository),
            ("rule", query.cause.map(|cause| cause.rule)),
            ("capture", query.cause.map(|cause| cause.capture)),
            ("reason", query.cause.map(|cause| cause.reason_column())),
            ("category", query.category),
        ] {
            if let Some(value) = value {
                arguments.push(Box::new(value.to_owned()));
                conditions.push_str(&format!(" AND {column} = ?{}", arguments.len()));
            }
        }
        if let Some(job) = query.job {
            arguments.push(Box::new(format!("{job} (")));
            let (name, at) = ("workflow || ' / ' || job_name || ' ('", arguments.len());
            conditions.push_str(&format!(" AND substr({name}, 1, length(?{at})) = ?{at}"));
        }
        let order =
            format!("{conditions} ORDER BY completed_at DESC, job_id DESC LIMIT {}", query.limit);
        self.log_rows(&order, arguments).await
    }

    async fn put_green_job(
        &self,
        job: &EndedJob,
        on_default_branch: bool,
    ) -> Result<(), ResultsError> {
        let job = job.clone();
        let put = self.store.write(move |tx| {
            let mut put = tx.prepare_cached(
                "INSERT INTO green_job (repo, run_id, run_attempt, job_id, job_name, workflow,
                   branch, head_sha, completed_at, on_default_branch)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
                 ON CONFLICT DO UPDATE SET
                   run_id = excluded.run_id, run_attempt = excluded.run_attempt,
                   job_id = excluded.job_id, branch = excluded.branch,
                   head_sha = excluded.head_sha, completed_at = excluded.completed_at
                 WHERE excluded.completed_at >= green_job.completed_at",
            )?;
            Ok(put.execute(params![
                job.repository,
                job.run_id.cast_signed(),
                job.run_attempt.cast_signed(),
                job.job_id.cast_signed(),
                job.job_name,
                job.workflow,
                job.branch,
                job.head_sha,
                millis(job.completed_at),
                on_default_branch,
            ])? as u64)
        });
        put.await?;
        Ok(())
    }

    async fn green_jobs(
        &self,
        repository: &str,
        workflow: &str,
        job_name: &str,
    ) -> Result<Vec<EndedJob>, ResultsError> {
        let asked = [repository.to_owned(), workflow.to_owned(), job_name.to_owned()];
        let sql = format!(
            "SELECT {JOB} FROM green_job WHERE repo = ?1 AND workflow = ?2 AND job_name = ?3
             ORDER BY on_default_branch DESC"
        );
        self.query(move |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(asked, |row| read_job(&mut ColumnReader::of(row)))?
                .collect()
        })
        .await
    }
}

impl SqliteResults {
    async fn log_rows(
        &self,
        condition: &str,
        arguments: Vec<Box<dyn ToSql + Send>>,
    ) -> Result<Vec<JobLogRow>, ResultsError> {
        let sql = format!(
            "SELECT {JOB}, looked_at, log_key, reason, document FROM job_log WHERE {condition}"
        );
        self.query(move |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(rusqlite::params_from_iter(arguments), |row| {
                    let mut row = ColumnReader::of(row);
                    let job = read_job(&mut row)?;
                    let (looked_at, log_key) = (timestamp(row.get()?), row.get()?);
                    let (reason, document): (String, String) = (row.get()?, row.get()?);
                    let outcome = outcome(&reason, &document).ok_or_else(|| {
                        rusqlite::Error::InvalidColumnType(0, "document".into(), Type::Text)
                    })?;
                    Ok(JobLogRow { job, looked_at, log_key, outcome })
                })?
                .collect()
        })
        .await
    }
}

fn read_job(row: &mut ColumnReader<'_>) -> rusqlite::Result<EndedJob> {
    Ok(EndedJob {
        repository: row.get()?,
        run_id: row.get::<i64>()?.cast_unsigned(),
        run_attempt: row.get::<i64>()?.cast_unsigned(),
        job_id: row.get::<i64>()?.cast_unsigned(),
        job_name: row.get()?,
        workflow: row.get()?,
        branch: row.get()?,
        head_sha: row.get()?,
        completed_at: row.time()?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crcr_store::{SqliteStore, StoreRole};

    use super::*;

    #[tokio::test]
    async fn sqlite_keeps_logs_of_failed_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.db");
        let store = Arc::new(SqliteStore::open(&path, StoreRole::Tool).unwrap());
        crate::job_logs::suite::all(&SqliteResults::new(store)).await;
        let connection = rusqlite::Connection::open(&path).unwrap();
        let count = "SELECT (SELECT count(*) FROM job_log), (SELECT count(*) FROM green_job)";
        let left: (i64, i64) =
            connection.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(left, (4, 0), "older rows are deleted");
    }

    /// Without its index, a page would read or sort every row.
    #[test]
    fn every_question_of_a_page_is_answered_from_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.db");
        drop(SqliteStore::open(&path, StoreRole::Tool).unwrap());
        let connection = rusqlite::Connection::open(&path).unwrap();
        for (condition, index) in [
            ("repo = 'a' AND job_id IN (1, 2)", "job_log_key"),
            ("completed_at >= 1 AND completed_at < 2", "job_log_time"),
            ("repo = 'a' AND completed_at >= 1 AND completed_at < 2", "job_log_repo"),
            ("category = 'a' AND completed_at >= 1 AND completed_at < 2", "job_log_category"),
            ("rule = 'a' AND capture = 'b' AND completed_at >= 1", "job_log_cause"),
        ] {
            let order = if condition.contains("job_id") { "job_id" } else { "completed_at DESC" };
            let sql = format!(
                "EXPLAIN QUERY PLAN SELECT * FROM job_log WHERE {condition} ORDER BY {order} LIMIT 9"
            );
            let mut statement = connection.prepare(&sql).unwrap();
            let plan = statement.query_map([], |row| row.get::<_, String>(3)).unwrap();
            let plan = plan.collect::<rusqlite::Result<Vec<_>>>().unwrap().join("; ");
            assert!(plan.contains(&format!("USING INDEX {index} ")), "{condition}: {plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{condition}: {plan}");
        }
    }
}
