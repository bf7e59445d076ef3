//! Times of jobs and runs in SQLite. The tables are in `crcr-store`'s `ci_times.sql`.

use async_trait::async_trait;
use crcr_domain::ci_data::ended_ci::{EndedCi, EndedJobTimes, EndedRun};
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::results::DurationHistogram;
use crcr_store::sqlite::millis;
use jiff::Timestamp;
use rusqlite::{OptionalExtension as _, Transaction, params};

use crate::ResultsError;
use crate::ci_times::{
    BranchCommitRuns, CiGrouping, CiTimes, CiTimesQuery, CiTimesResults, CiUnit, EndedJob,
    EndedJobsQuery, MAX_NAMES, OTHER_NAMES,
};
use crate::sqlite::{ColumnReader, SqliteResults, json};

#[async_trait]
impl CiTimesResults for SqliteResults {
    async fn ci_times(&self, query: &CiTimesQuery) -> Result<Vec<CiTimes>, ResultsError> {
        let query = query.clone();
        self.query(move |connection| {
            let sql = format!(
                "SELECT start, name, ended, failed, queue, run FROM {}
                 WHERE repo = ?1 AND grouped_by = ?2 AND start >= ?3 AND start < ?4
                   AND (?5 IS NULL OR name = ?5) ORDER BY start, name",
                table(query.unit)
            );
            connection
                .prepare_cached(&sql)?
                .query_map(
                    params![
                        query.repository,
                        query.grouping.as_str(),
                        millis(query.from),
                        millis(query.to),
                        query.name
                    ],
                    |row| {
                        let mut row = ColumnReader::of(row);
                        Ok(CiTimes {
                            start: row.time()?,
                            name: row.get()?,
                            ended: row.get::<i64>()?.cast_unsigned(),
                            failed: row.get::<i64>()?.cast_unsigned(),
                            queue: row.json()?,
                            run: row.json()?,
                        })
                    },
                )?
                .collect()
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
        let (repository, branch) = (repository.to_owned(), branch.to_owned());
        self.query(move |connection| {
            connection
                .prepare_cached(
                    "SELECT sha, min(created_at) AS first, count(*), sum(failed) FROM branch_run
                     WHERE repo = ?1 AND branch = ?2 AND created_at >= ?3 AND created_at < ?4
                     GROUP BY sha ORDER BY first DESC, sha LIMIT ?5",
                )?
                .query_map(
                    params![repository, branch, millis(from), millis(to), limit as i64],
                    |row| {
                        let mut row = ColumnReader::of(row);
                        Ok(BranchCommitRuns {
                            sha: row.get()?,
                            first_run_at: row.time()?,
                            runs: row.get::<i64>()?.cast_unsigned(),
                            failed: row.get::<i64>()?.cast_unsigned(),
                        })
                    },
                )?
                .collect()
        })
        .await
    }

    async fn ended_jobs(&self, query: &EndedJobsQuery) -> Result<Vec<EndedJob>, ResultsError> {
        let query = query.clone();
        let index = match (&query.job, &query.runner) {
            (Some(_), _) => "ci_counted_name",
            (None, Some(_)) => "ci_counted_runner",
            (None, None) => "ci_counted_repo",
        };
        let job = if query.job.is_some() { "name = ?5" } else { "?5 IS NULL" };
        let runner = if query.runner.is_some() { "runner = ?6" } else { "?6 IS NULL" };
        let failed = if query.only_failed { "AND failed" } else { "" };
        let sql = format!(
            "SELECT id, ended_at, failed FROM ci_counted INDEXED BY {index}
             WHERE repo = ?1 AND kind = 'job' AND name <> '' AND {job} AND {runner} {failed}
               AND ended_at >= ?2 AND ended_at <= ?3 AND (ended_at, id) < (?3, ?4)
             ORDER BY ended_at DESC, id DESC LIMIT {}",
            query.limit
        );
        self.query(move |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(
                    params![
                        query.repository,
                        millis(query.from),
                        millis(query.to),
                        query.to_id.unwrap_or_default().cast_signed(),
                        query.job,
                        query.runner
                    ],
                    |row| {
                        let mut row = ColumnReader::of(row);
                        Ok(EndedJob {
                            id: row.get::<i64>()?.cast_unsigned(),
                            ended_at: row.time()?,
                            failed: row.get()?,
                        })
                    },
                )?
                .collect()
        })
        .await
    }
}

fn table(unit: CiUnit) -> &'static str {
    match unit {
        CiUnit::Hour => "ci_hour",
        CiUnit::Day => "ci_day",
    }
}

/// Counts what a webhook says has ended, unless it is counted already.
pub(crate) fn count(tx: &Transaction<'_>, row: &WebhookRow) -> rusqlite::Result<()> {
    match EndedCi::from_row(row) {
        Some(EndedCi::Job(job)) => count_job(tx, &row.repository, &job),
        Some(EndedCi::Run(run)) => count_run(tx, &row.repository, &run),
        None => Ok(()),
    }
}

fn count_job(tx: &Transaction<'_>, repo: &str, job: &EndedJobTimes) -> rusqlite::Result<()> {
    if !is_new(tx, repo, "job", job.id, 1, job.ended_at)? {
        return Ok(());
    }
    tx.prepare_cached(
        "UPDATE ci_counted SET name = ?3, runner = ?4, failed = ?5
         WHERE repo = ?1 AND kind = 'job' AND id = ?2 AND attempt = 1",
    )?
    .execute(params![repo, job.id.cast_signed(), job.name, job.runner, job.failed])?;
    let sample = Sample {
        ended_at: job.ended_at,
        failed: job.failed,
        queue_seconds: job.queue_seconds,
        run_seconds: job.run_seconds,
    };
    for (grouping, name) in [(CiGrouping::Runner, &job.runner), (CiGrouping::Job, &job.name)] {
        if !name.is_empty() {
            add(tx, repo, grouping, name, &sample)?;
        }
    }
    Ok(())
}

fn count_run(tx: &Transaction<'_>, repo: &str, run: &EndedRun) -> rusqlite::Result<()> {
    if let Some(branch) = &run.branch {
        tx.prepare_cached(
            "INSERT INTO branch_run VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT DO UPDATE SET created_at = min(created_at, excluded.created_at),
               failed = iif(excluded.attempt >= attempt, excluded.failed, failed),
               attempt = max(attempt, excluded.attempt)",
        )?
        .execute(params![
            repo,
            run.id.cast_signed(),
            run.attempt.cast_signed(),
            branch,
            run.sha,
            millis(run.created_at),
            run.failed
        ])?;
    }
    if !is_new(tx, repo, "run", run.id, run.attempt, run.ended_at)? {
        return Ok(());
    }
    let grouping = if run.branch.is_some() { CiGrouping::Branch } else { CiGrouping::Pull };
    let sample = Sample {
        ended_at: run.ended_at,
        failed: run.failed,
        queue_seconds: None,
        run_seconds: run.signal_seconds(),
    };
    add(tx, repo, grouping, &run.workflow, &sample)
}

fn is_new(
    tx: &Transaction<'_>,
    repo: &str,
    kind: &str,
    id: u64,
    attempt: u64,
    ended_at: Timestamp,
) -> rusqlite::Result<bool> {
    let note = "INSERT OR IGNORE INTO ci_counted (repo, kind, id, attempt, ended_at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let noted = tx.prepare_cached(note)?.execute(params![
        repo,
        kind,
        id.cast_signed(),
        attempt.cast_signed(),
        millis(ended_at)
    ])?;
    Ok(noted == 1)
}

struct Sample {
    ended_at: Timestamp,
    failed: bool,
    queue_seconds: Option<f64>,
    run_seconds: Option<f64>,
}

fn add(
    tx: &Transaction<'_>,
    repo: &str,
    grouping: CiGrouping,
    name: &str,
    sample: &Sample,
) -> rusqlite::Result<()> {
    for unit in [CiUnit::Hour, CiUnit::Day] {
        let (table, start) = (table(unit), millis(unit.start(sample.ended_at)));
        let key = "repo = ?1 AND grouped_by = ?2 AND start = ?3";
        let find =
            |name: &str| -> rusqlite::Result<Option<(DurationHistogram, DurationHistogram)>> {
                tx.prepare_cached(&format!(
                    "SELECT queue, run FROM {table} WHERE {key} AND name = ?4"
                ))?
                .query_row(params![repo, grouping.as_str(), start, name], |row| {
                    let mut row = ColumnReader::of(row);
                    Ok((row.json()?, row.json()?))
                })
                .optional()
            };
        let (mut name, mut known) = (name, find(name)?);
        if known.is_none() {
            let names: i64 = tx
                .prepare_cached(&format!("SELECT count(*) FROM {table} WHERE {key}"))?
                .query_row(params![repo, grouping.as_str(), start], |row| row.get(0))?;
            let is_full = names >= MAX_NAMES as i64;
            // Whoever names many at midnight doesn't take the place of those that there were before.
            let has_room = names < 2 * MAX_NAMES as i64;
            if is_full && !(has_room && was_known(tx, repo, grouping, name, sample.ended_at)?) {
                name = OTHER_NAMES;
                known = find(name)?;
            }
        }
        let (mut queue, mut run) = known.unwrap_or_default();
        sample.queue_seconds.into_iter().for_each(|seconds| queue.add(seconds));
        sample.run_seconds.into_iter().for_each(|seconds| run.add(seconds));
        tx.prepare_cached(&format!(
            "INSERT INTO {table} VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7)
             ON CONFLICT DO UPDATE SET ended = ended + 1, failed = failed + excluded.failed,
               queue = excluded.queue, run = excluded.run"
        ))?
        .execute(params![
            repo,
            grouping.as_str(),
            start,
            name,
            sample.failed,
            json(&queue),
            json(&run)
        ])?;
    }
    Ok(())
}

/// Whether something with this name ended in the week before.
fn was_known(
    tx: &Transaction<'_>,
    repo: &str,
    grouping: CiGrouping,
    name: &str,
    ended_at: Timestamp,
) -> rusqlite::Result<bool> {
    let today = millis(CiUnit::Day.start(ended_at));
    tx.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM ci_day WHERE repo = ?1 AND grouped_by = ?2
           AND start >= ?3 AND start < ?4 AND name = ?5)",
    )?
    .query_row(
        params![repo, grouping.as_str(), today - 7 * CiUnit::Day.millis(), today, name],
        |row| row.get(0),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crcr_domain::ci_data::webhook::WebhookRow;
    use crcr_store::{SqliteStore, StoreRole};
    use serde_json::json;

    use super::*;
    use crate::WebhookResults as _;

    #[tokio::test]
    async fn sqlite_adds_up_times_of_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("results.db"), StoreRole::Tool).unwrap();
        crate::ci_times::suite::all(&SqliteResults::new(Arc::new(store))).await;
    }

    #[tokio::test]
    async fn fork_that_invents_jobs_without_end_costs_a_chart_a_bounded_number_of_rows() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("results.db"), StoreRole::Tool).unwrap();
        let results = SqliteResults::new(Arc::new(store));
        let at: Timestamp = "2026-09-01T10:30:00Z".parse().unwrap();
        let job_at = |at: Timestamp, id: usize, name: String| {
            let payload = json!({
                "action": "completed", "repository": { "full_name": "acme/upstream" },
                "workflow_job": {
                    "id": id, "name": name, "status": "completed",
                    "conclusion": "success", "completed_at": at.to_string(),
                },
            });
            let body = payload.to_string();
            WebhookRow::new("workflow_job", &id.to_string(), at, body.as_bytes()).unwrap()
        };
        let job = |id: usize| job_at(at, id, format!("job {id}"));
        results.append_webhooks((1..=2 * MAX_NAMES).map(job).collect()).await.unwrap();
        let query = CiTimesQuery {
            repository: "acme/upstream".to_owned(),
            grouping: CiGrouping::Job,
            unit: CiUnit::Hour,
            from: Timestamp::UNIX_EPOCH,
            to: Timestamp::MAX,
            name: None,
        };
        let found = results.ci_times(&query).await.unwrap();
        assert_eq!(found.len(), MAX_NAMES + 1);
        assert_eq!(found.iter().map(|row| row.ended).sum::<u64>(), 2 * MAX_NAMES as u64);
        assert_eq!(found[0].name, OTHER_NAMES);

        // A job of each day keeps its name on a day on which a fork was first.
        let day = jiff::SignedDuration::from_hours(24);
        let usual = |at, id| job_at(at, id, "usual".to_owned());
        let invented = |id: usize| job_at(at + day * 3, 9000 + id, format!("invented {id}"));
        let mut rows = vec![usual(at + day * 2, 8000)];
        rows.extend((1..=MAX_NAMES).map(invented));
        rows.extend([usual(at + day * 3, 8001), invented(MAX_NAMES + 1)]);
        results.append_webhooks(rows).await.unwrap();
        let query = CiTimesQuery { from: at + day * 2 + day / 2, ..query };
        for unit in [CiUnit::Hour, CiUnit::Day] {
            let found = results.ci_times(&CiTimesQuery { unit, ..query.clone() }).await.unwrap();
            let named = |name: &str| found.iter().filter(|row| row.name == name).count();
            assert_eq!((named("usual"), named(OTHER_NAMES)), (1, 1), "{unit:?}");
        }
    }
}
