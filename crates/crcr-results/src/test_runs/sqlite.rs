//! Results of tests in SQLite. The tables are in `crcr-store`'s `test_runs.sql`.

mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun};
use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestRowKind};
use crcr_domain::results::criteria::NamedTestDay;
use crcr_store::StoreError;
use crcr_store::sqlite::timestamp;
use jiff::Timestamp;
use rusqlite::{OptionalExtension as _, Transaction, params};

use self::load::{LoadPart, load_part};
use crate::ResultsError;
use crate::retention::day_of;
use crate::sqlite::{ColumnReader, DELETE_BATCH, DELETE_PAUSE, SqliteResults, json};
use crate::test_runs::{
    FileTime, FileTimesQuery, StoredRun, TestQuery, TestRanking, TestRunResults, TestStats,
    newest_days,
};

/// Rows of one transaction, which takes about 20 ms: a relay that has the file open writes in between.
const LOAD_BATCH: usize = 2_000;

/// So many tests are sought one by one, which takes as long as reading all tests of the days.
const MAX_SOUGHT: usize = 2_000;

/// Whether a test's name or file has the text of a parameter, whose ASCII letters are small. `lower` changes no others.
fn has_text(parameter: &str) -> String {
    format!("instr(lower(classname || '.' || name || ' ' || ifnull(file, '')), {parameter})")
}

/// A number for a repository's job on its default branch or elsewhere; for all jobs if `job` is empty.
fn scope_id(repository: &str, on_default: bool, job: &str) -> i64 {
    let text = format!("{}\0{on_default}\0{job}", repository.to_ascii_lowercase());
    crcr_store::hash64(text.as_bytes()).cast_signed()
}

#[async_trait]
impl TestRunResults for SqliteResults {
    async fn stored_run(
        &self,
        repository: &str,
        run_id: u64,
        run_attempt: u32,
    ) -> Result<Option<StoredRun>, ResultsError> {
        let repository = repository.to_owned();
        self.query(move |connection| {
            connection
                .prepare_cached(
                    "SELECT started_at, on_default, head_sha FROM test_report
                     WHERE repo = ?1 AND run_id = ?2 AND run_attempt = ?3 LIMIT 1",
                )?
                .query_row(params![repository, run_id.cast_signed(), run_attempt], |row| {
                    Ok(StoredRun {
                        started_at: timestamp(row.get(0)?),
                        on_default_branch: row.get(1)?,
                        head_sha: row.get(2)?,
                    })
                })
                .optional()
        })
        .await
    }

    async fn append_test_runs(
        &self,
        run: &TestedRun,
        reports: Vec<ReportRows>,
    ) -> Result<(), ResultsError> {
        let run = Arc::new(run.clone());
        let mut parts = vec![];
        let mut count = 0;
        for ReportRows { source, mut rows } in reports {
            let source = Arc::new(source);
            // In the order of the key, in which a B-tree is written fastest.
            rows.sort_unstable_by_key(|row| row.test_id.cast_signed());
            let mut rest = rows.into_iter();
            // A report without rows has one part, too.
            loop {
                let rows: Vec<_> = rest.by_ref().take(LOAD_BATCH - count).collect();
                count += rows.len();
                let (run, source) = (Arc::clone(&run), Arc::clone(&source));
                parts.push(LoadPart { run, source, rows });
                if count == LOAD_BATCH {
                    self.load(std::mem::take(&mut parts)).await?;
                    count = 0;
                }
                if rest.as_slice().is_empty() {
                    break;
                }
            }
        }
        if !parts.is_empty() {
            self.load(parts).await?;
        }
        Ok(())
    }

    /// Rows and roll-ups are written in one transaction: there is nothing left to do.
    async fn finish_test_runs(&self, _: &TestedRun) -> Result<(), ResultsError> {
        Ok(())
    }

    async fn test_runs(
        &self,
        repository: &str,
        run_id: u64,
        run_attempt: u32,
    ) -> Result<Vec<ReportRows>, ResultsError> {
        let repository = repository.to_owned();
        self.query(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT test_report.id, job_id, job_id_check, job, artifact, path,
                    invoking_file, test, kind, suite, classname, name, file, variant, result, time,
                    attempts, flaky, ifnull(details, '[]')
                 FROM test_report JOIN test_run ON report = test_report.id
                    JOIN test_case ON test_case.id = test
                        AND test_case.on_default = test_report.on_default
                 WHERE test_report.repo = ?1 AND run_id = ?2 AND run_attempt = ?3",
            )?;
            let mut found: BTreeMap<u64, ReportRows> = BTreeMap::new();
            let mut rows = select.query(params![repository, run_id.cast_signed(), run_attempt])?;
            while let Some(row) = rows.next()? {
                let mut row = ColumnReader::of(row);
                let source = read_source(&mut row)?;
                let row = read_row(&mut row)?;
                found
                    .entry(source.report_id)
                    .or_insert_with(|| ReportRows { source, rows: vec![] })
                    .rows
                    .push(row);
            }
            let mut found: Vec<_> = found.into_values().collect();
            for report in &mut found {
                report.rows.sort_unstable_by_key(|row| row.test_id);
            }
            Ok(found)
        })
        .await
    }

    async fn known_tests(&self, _: &str, tests: &[u64]) -> Result<BTreeSet<u64>, ResultsError> {
        let tests = tests.to_vec();
        self.query(move |connection| {
            let mut select = connection
                .prepare_cached("SELECT 1 FROM test_case WHERE id = ?1 AND on_default = 1")?;
            let mut known = BTreeSet::new();
            for test in tests {
                if select.exists([test.cast_signed()])? {
                    known.insert(test);
                }
            }
            Ok(known)
        })
        .await
    }

    async fn newest_test_days(
        &self,
        repository: &str,
        names: &[String],
        days: (i64, i64),
    ) -> Result<Vec<NamedTestDay>, ResultsError> {
        let (repository, names) = (repository.to_owned(), names.to_vec());
        self.query(move |connection| {
            let wanted = serde_json::json!(names).to_string();
            let each_day = serde_json::json!((days.0..=days.1).collect::<Vec<_>>()).to_string();
            let rows: Vec<_> = connection
                .prepare_cached(
                    "SELECT classname, name, day, runs - skipped, failures
                     FROM test_case JOIN json_each(?4) AS each_day
                        JOIN test_day ON scope = ?3 AND day = each_day.value AND test = test_case.id
                     WHERE repo = ?1 AND on_default = 1
                        AND (name IN (SELECT value FROM json_each(?2))
                            OR classname || '.' || name IN (SELECT value FROM json_each(?2)))",
                )?
                .query_map(
                    params![repository, wanted, scope_id(&repository, true, ""), each_day],
                    |row| {
                        let name: String = row.get(1)?;
                        let (runs, failures): (u32, u32) = (row.get(3)?, row.get(4)?);
                        let (day, runs, failures) = (row.get(2)?, runs.into(), failures.into());
                        let of = NamedTestDay { name: name.clone(), day, runs, failures };
                        Ok((row.get(0)?, name, of))
                    },
                )?
                .collect::<rusqlite::Result<_>>()?;
            Ok(newest_days(&names, &rows))
        })
        .await
    }

    async fn test_stats(&self, query: &TestQuery) -> Result<Vec<TestStats>, ResultsError> {
        let query = query.clone();
        self.blocking(move |this| this.test_stats(&query)).await
    }

    async fn file_times(&self, query: &FileTimesQuery) -> Result<Vec<FileTime>, ResultsError> {
        let query = query.clone();
        self.query(move |connection| {
            connection
                .prepare_cached(
                    "SELECT job_base, config, file, classname,
                        sum(time) / count(DISTINCT run_id || '/' || run_attempt)
                     FROM test_report JOIN test_run_summary ON report = id
                     WHERE repo = ?1 AND day >= ?2 AND day <= ?3
                        AND (?4 IS NULL OR job_base = ?4) AND (?5 OR on_default) AND timed > 0
                     GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
                )?
                .query_map(
                    params![
                        query.repository,
                        query.days.0,
                        query.days.1,
                        query.job,
                        query.all_branches
                    ],
                    |row| {
                        Ok(FileTime {
                            job: row.get(0)?,
                            config: row.get(1)?,
                            file: row.get(2)?,
                            classname: row.get(3)?,
                            seconds: row.get(4)?,
                        })
                    },
                )?
                .collect()
        })
        .await
    }

    async fn tested_jobs(
        &self,
        repository: &str,
        (first, last): (i64, i64),
        all_branches: bool,
        limit: usize,
    ) -> Result<Vec<String>, ResultsError> {
        let repository = repository.to_owned();
        self.query(move |connection| {
            connection
                .prepare_cached(
                    "SELECT job FROM
                       (SELECT job FROM test_scope
                        WHERE repo = ?1 AND job <> '' AND last_day >= ?2 AND (on_default OR ?4)
                          AND EXISTS (SELECT 1 FROM test_day WHERE scope = id
                            AND day >= ?2 AND day <= ?3)
                        GROUP BY job ORDER BY max(on_default) DESC, job LIMIT ?5)
                     ORDER BY job",
                )?
                .query_map(params![repository, first, last, all_branches, limit as i64], |row| {
                    row.get(0)
                })?
                .collect()
        })
        .await
    }

    async fn tested_repositories(&self) -> Result<Vec<String>, ResultsError> {
        self.query(|connection| {
            connection
                .prepare_cached(
                    "SELECT min(repo) FROM test_scope WHERE job = '' GROUP BY repo ORDER BY 1",
                )?
                .query_map([], |row| row.get(0))?
                .collect()
        })
        .await
    }

    async fn delete_test_runs_before(&self, time: Timestamp) -> Result<(), ResultsError> {
        let end = day_of(time);
        let old = "SELECT id FROM test_report WHERE day < ?1 ORDER BY day LIMIT 20";
        loop {
            let delete = move |tx: &Transaction<'_>| {
                let mut deleted = 0;
                for (table, key) in [
                    ("test_run", "(report, test)"),
                    ("test_run_summary", "(report, file, classname)"),
                ] {
                    let columns = key.trim_matches(['(', ')']);
                    deleted += tx
                        .prepare_cached(&format!(
                            "DELETE FROM {table} WHERE {key} IN (SELECT {columns} FROM {table}
                                WHERE report IN ({old}) LIMIT {DELETE_BATCH})"
                        ))?
                        .execute([end])?;
                }
                if deleted == 0 {
                    deleted = tx
                        .prepare_cached(&format!("DELETE FROM test_report WHERE id IN ({old})"))?
                        .execute([end])?;
                }
                Ok(deleted as u64)
            };
            if self.store.write(delete).await? == 0 {
                return Ok(());
            }
            tokio::time::sleep(DELETE_PAUSE).await;
        }
    }
}

impl SqliteResults {
    async fn load(&self, parts: Vec<LoadPart>) -> Result<(), ResultsError> {
        let write = move |tx: &Transaction<'_>| {
            let mut written = 0;
            for part in &parts {
                written += load_part(tx, part)?;
            }
            Ok(written)
        };
        self.store.write(write).await?;
        Ok(())
    }

    fn test_stats(&self, query: &TestQuery) -> Result<Vec<TestStats>, StoreError> {
        let named = match &query.search {
            Some(text) => Some(self.named_tests(query, text)?),
            None => None,
        };
        if named.as_ref().is_some_and(Vec::is_empty) {
            return Ok(vec![]);
        }
        let named = named.filter(|tests| tests.len() <= MAX_SOUGHT);
        let found = self.ranked_tests(query, named.as_deref(), true)?;
        // Tests that never took a second are only ranked if slower ones don't fill the list.
        if query.ranking == TestRanking::Slow && found.len() < query.limit {
            return self.ranked_tests(query, named.as_deref(), false);
        }
        Ok(found)
    }

    /// The tests with a text in their name, or one more than are sought.
    fn named_tests(&self, query: &TestQuery, text: &str) -> Result<Vec<i64>, StoreError> {
        self.store.slow_readers().with(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT DISTINCT id FROM test_case
                     WHERE repo = ?1 AND on_default IN (1, ?2) AND {} LIMIT {}",
                    has_text("?3"),
                    MAX_SOUGHT + 1
                ))?
                .query_map(
                    params![
                        query.repository,
                        i64::from(!query.all_branches),
                        text.to_ascii_lowercase()
                    ],
                    |row| row.get(0),
                )?
                .collect()
        })
    }

    /// `named`: the tests with the searched text in their name, if they are few.
    fn ranked_tests(
        &self,
        query: &TestQuery,
        named: Option<&[i64]>,
        only_over_a_second: bool,
    ) -> Result<Vec<TestStats>, StoreError> {
        let job = query.job.as_deref().unwrap_or_default();
        let own = scope_id(&query.repository, true, job);
        let other = if query.all_branches { scope_id(&query.repository, false, job) } else { own };
        let (of_tests, order, having) = ranking_sql(query.ranking, only_over_a_second);
        let few = named.is_some() || (query.ranking != TestRanking::New && !of_tests.is_empty());
        // The rows of a few tests are sought by their whole key. Of many tests, all rows of the days are read.
        let days = if few {
            "scope IN (?1, ?2) AND day IN (SELECT value FROM json_each(?10))"
        } else {
            IN_WINDOW
        };
        let each_day = few.then(|| json(&(query.days.0..=query.days.1).collect::<Vec<_>>()));
        let (of_names, names) = match (named, &query.search) {
            (Some(tests), _) => {
                ("AND test IN (SELECT value FROM json_each(?5))".to_owned(), Some(json(&tests)))
            }
            (None, Some(text)) => (
                format!(
                    "AND test IN (SELECT id FROM test_case WHERE repo = ?7 AND on_default IN (1, ?8) AND {})",
                    has_text("?5")
                ),
                Some(text.to_ascii_lowercase()),
            ),
            (None, None) => (String::new(), None),
        };
        let sql = format!(
            "SELECT s.test, suite, classname, name, file, variant, s.runs, s.failures, s.skipped, s.flaky,
                iif(s.timed > 0, s.time / s.timed, NULL), min(first_day) AS first_day, s.last_day
             FROM (SELECT test, sum(runs) AS runs, sum(failures) AS failures,
                    sum(skipped) AS skipped, sum(flaky) AS flaky, sum(timed) AS timed,
                    sum(time) AS time, max(day) AS last_day
                FROM test_day WHERE {days} {of_tests} {of_names} GROUP BY test) AS s
             JOIN test_case ON id = s.test AND on_default IN (1, ?8)
             WHERE ?3 = ?3 AND ?4 = ?4 AND ?5 IS ?5 AND ?7 = ?7 AND ?10 IS ?10
             GROUP BY s.test HAVING {having}
             ORDER BY {order}, classname, name, s.test LIMIT ?6 OFFSET ?9"
        );
        self.store.slow_readers().with(|connection| {
            let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
            connection
                .prepare_cached(&sql)?
                .query_map(
                    params![
                        own,
                        other,
                        query.days.0,
                        query.days.1,
                        names,
                        limit,
                        query.repository,
                        i64::from(!query.all_branches),
                        i64::try_from(query.offset).unwrap_or(i64::MAX),
                        each_day,
                    ],
                    read_stats,
                )?
                .collect()
        })
    }
}

/// The condition for the days of a query, whose parameters are the first four.
const IN_WINDOW: &str = "scope IN (?1, ?2) AND day >= ?3 AND day <= ?4";

/// Which tests a ranking has, how it sorts them, and what their sums have to be.
fn ranking_sql(
    ranking: TestRanking,
    only_over_a_second: bool,
) -> (String, &'static str, &'static str) {
    // Few tests fail or are flaky, and each has an entry in an index of its own. Without being told, SQLite takes
    // the key of the table, which has all tests.
    let of = |index: &str, condition: &str| {
        format!(
            "AND test IN (SELECT test FROM test_day INDEXED BY {index} WHERE {IN_WINDOW} AND {condition})"
        )
    };
    match ranking {
        TestRanking::Flaky => (of("test_day_flaky", "flaky > 0"), "s.flaky DESC, s.runs", "1"),
        TestRanking::Failing => {
            (of("test_day_failed", "failures > 0"), "s.failures DESC, s.runs", "1")
        }
        TestRanking::Slow => (
            if only_over_a_second { of("test_day_slow", "time > timed") } else { String::new() },
            "s.time / s.timed DESC",
            "s.timed > 0",
        ),
        TestRanking::New => (
            "AND test IN (SELECT id FROM test_case WHERE repo = ?7 AND on_default IN (1, ?8)
                AND first_day >= ?3 AND first_day <= ?4)"
                .to_owned(),
            "first_day DESC",
            "first_day >= ?3",
        ),
    }
}

fn read_source(row: &mut ColumnReader<'_>) -> rusqlite::Result<ReportSource> {
    Ok(ReportSource {
        report_id: row.get::<i64>()?.cast_unsigned(),
        job_id: row.number()?,
        job_id_check: row.parsed(JobIdCheck::from_name)?,
        job: row.get::<String>()?.into(),
        artifact: row.get::<String>()?.into(),
        path: row.get()?,
        invoking_file: row.get::<Option<String>>()?.map(Into::into),
    })
}

fn read_row(row: &mut ColumnReader<'_>) -> rusqlite::Result<TestRunRow> {
    Ok(TestRunRow {
        test_id: row.get::<i64>()?.cast_unsigned(),
        case: TestCase {
            kind: row.parsed(TestRowKind::from_name)?,
            suite: row.get::<String>()?.into(),
            classname: row.get::<String>()?.into(),
            name: row.get()?,
            file: row.get::<Option<String>>()?.map(Into::into),
            variant: row.get::<Option<String>>()?.map(Into::into),
            result: row.parsed(TestResult::from_name)?,
            time: row.get()?,
            attempts: row.get()?,
            flaky: row.get()?,
            details: row.json()?,
        },
    })
}

fn read_stats(row: &rusqlite::Row<'_>) -> rusqlite::Result<TestStats> {
    let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    Ok(TestStats {
        test_id: number(0)?,
        suite: row.get(1)?,
        classname: row.get(2)?,
        name: row.get(3)?,
        file: row.get(4)?,
        variant: row.get(5)?,
        runs: number(6)?,
        failures: number(7)?,
        skipped: number(8)?,
        flaky: number(9)?,
        mean_time: row.get(10)?,
        first_day: row.get(11)?,
        last_day: row.get(12)?,
    })
}
