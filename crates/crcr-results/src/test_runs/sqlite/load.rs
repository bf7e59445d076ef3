//! Writes the tests of a report, and adds them to the sums of days and classes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crcr_domain::ci_data::test_row::{ReportSource, TestRunRow, TestedRun, job_and_config};
use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestTally};
use crcr_store::sqlite::millis;
use rusqlite::{OptionalExtension as _, Statement, Transaction, params};

use super::scope_id;
use crate::retention::day_of;
use crate::sqlite::json;
use crate::test_runs::COMMIT_DAYS;

const NEW_ROW: &str = "INSERT OR IGNORE INTO test_run VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
/// Parameter 10 says whether no later run is stored: a test can move to another file.
const NEW_TEST: &str = "INSERT INTO test_case VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT DO UPDATE SET first_day = min(first_day, excluded.first_day),
        file = iif(?10, ifnull(excluded.file, file), file)
        WHERE excluded.first_day < first_day
            OR (?10 AND ifnull(excluded.file, file) IS NOT file)";
const ADD_TO_DAY: &str = "INSERT INTO test_day VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7, ?8)
     ON CONFLICT DO UPDATE SET runs = runs + 1, failures = failures + excluded.failures,
        skipped = skipped + excluded.skipped, flaky = flaky + excluded.flaky,
        timed = timed + excluded.timed, time = time + excluded.time";
const ADD_FLAKY_COMMIT: &str = "INSERT INTO test_day VALUES (?1, ?2, ?3, 0, 0, 0, 1, 0, 0)
     ON CONFLICT DO UPDATE SET flaky = flaky + 1";

/// Other reports of a commit, with the same job and path. The server never counts the rows of its tables, and
/// without that SQLite takes the index of all reports of the job.
const OF_COMMIT: &str = "SELECT id, day FROM test_report INDEXED BY test_report_commit
     WHERE head_sha = ?1 AND repo = ?2 AND on_default = ?3 AND job = ?4 AND id <> ?5
        AND day BETWEEN ?6 AND ?7 AND setup = ?8";
const FAILED_OF_REPORT: &str = "SELECT test FROM test_run
     WHERE report = ?1 AND test BETWEEN ?2 AND ?3 AND result IN ('failure', 'error')";

/// One transaction's part of a report.
pub(crate) struct LoadPart {
    pub(crate) run: Arc<TestedRun>,
    pub(crate) source: Arc<ReportSource>,
    /// In the order of their numbers as SQLite has them.
    pub(crate) rows: Vec<TestRunRow>,
}

/// What the tests of one file and class add up to.
#[derive(Default)]
struct ClassSums {
    tally: TestTally,
    /// Tests with a duration.
    timed: u64,
    /// In seconds.
    time: f64,
}

impl ClassSums {
    fn count(&mut self, case: &TestCase) {
        self.tally.count(case);
        self.timed += u64::from(case.time.is_some());
        self.time += case.time.unwrap_or_default();
    }
}

/// Writes the rows that aren't there yet, and adds those to the sums; returns how many it wrote.
pub(crate) fn load_part(
    tx: &Transaction<'_>,
    LoadPart { run, source, rows }: &LoadPart,
) -> rusqlite::Result<u64> {
    let (report, day) = (source.report_id.cast_signed(), day_of(run.started_at));
    write_report(tx, run, source)?;
    let scopes = write_scopes(tx, run, &source.job, day)?;
    let is_newest = is_newest_day(tx, scopes[0], day)?;
    let mut new_row = tx.prepare_cached(NEW_ROW)?;
    let mut new_test = tx.prepare_cached(NEW_TEST)?;
    let mut add_to_day = tx.prepare_cached(ADD_TO_DAY)?;
    let earlier = SameCommit::of(tx, run, source, rows, day)?;
    let mut sums: HashMap<(&str, &str), ClassSums> = HashMap::new();
    let mut written = 0;
    for row in rows {
        if !write_row(&mut new_row, report, row)? {
            continue;
        }
        written += 1;
        write_test(&mut new_test, run, row, (day, is_newest))?;
        for scope in scopes {
            add_row_to_day(&mut add_to_day, (scope, day), row)?;
        }
        let (test, case) = (row.test_id.cast_signed(), &row.case);
        if let Some(day) = earlier.flaky_day(tx, test, case, day)? {
            for scope in scopes {
                tx.prepare_cached(ADD_FLAKY_COMMIT)?.execute([scope, day, test])?;
            }
        }
        let key = (source.sharded_file(case), &*case.classname);
        sums.entry(key).or_default().count(case);
    }
    add_to_summaries(tx, report, sums)?;
    Ok(written)
}

/// Whether the row is new.
fn write_row(
    new_row: &mut Statement<'_>,
    report: i64,
    TestRunRow { test_id, case }: &TestRunRow,
) -> rusqlite::Result<bool> {
    let details = (!case.details.is_empty()).then(|| json(&case.details));
    let written = new_row.execute(params![
        report,
        test_id.cast_signed(),
        case.kind.as_str(),
        case.result.as_str(),
        case.time,
        case.attempts,
        case.flaky,
        details
    ])?;
    Ok(written > 0)
}

fn write_test(
    new_test: &mut Statement<'_>,
    run: &TestedRun,
    TestRunRow { test_id, case }: &TestRunRow,
    (day, is_newest): (i64, bool),
) -> rusqlite::Result<()> {
    new_test.execute(params![
        test_id.cast_signed(),
        run.on_default_branch,
        run.repository,
        &*case.suite,
        &*case.classname,
        case.name,
        case.file.as_deref(),
        case.variant.as_deref(),
        day,
        is_newest
    ])?;
    Ok(())
}

fn add_row_to_day(
    add_to_day: &mut Statement<'_>,
    (scope, day): (i64, i64),
    TestRunRow { test_id, case }: &TestRunRow,
) -> rusqlite::Result<()> {
    add_to_day.execute(params![
        scope,
        day,
        test_id.cast_signed(),
        case.result.is_failed(),
        case.result == TestResult::Skipped,
        case.flaky,
        case.time.is_some(),
        case.time.unwrap_or_default()
    ])?;
    Ok(())
}

/// Writes down that all jobs, and this one, have tests on a day. Returns the ids under which their tests are summed up.
fn write_scopes(
    tx: &Transaction<'_>,
    run: &TestedRun,
    job: &str,
    day: i64,
) -> rusqlite::Result<[i64; 2]> {
    let mut scopes = [0; 2];
    for (scope, job) in scopes.iter_mut().zip(["", job]) {
        *scope = scope_id(&run.repository, run.on_default_branch, job);
        tx.prepare_cached(
            "INSERT INTO test_scope VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET last_day = max(last_day, excluded.last_day)",
        )?
        .execute(params![*scope, run.repository, run.on_default_branch, job, day])?;
    }
    Ok(scopes)
}

/// Whether nothing is stored of a day after this one.
fn is_newest_day(tx: &Transaction<'_>, scope: i64, day: i64) -> rusqlite::Result<bool> {
    tx.prepare_cached("SELECT last_day <= ?2 FROM test_scope WHERE id = ?1")?
        .query_row([scope, day], |row| row.get(0))
}

fn write_report(
    tx: &Transaction<'_>,
    run: &TestedRun,
    source: &ReportSource,
) -> rusqlite::Result<()> {
    let (job_base, config) = job_and_config(&source.job);
    tx.prepare_cached(
        "INSERT OR IGNORE INTO test_report VALUES
            (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
             ?20)",
    )?
    .execute(params![
        source.report_id.cast_signed(),
        run.repository,
        run.workflow_id.map(u64::cast_signed),
        run.workflow,
        run.run_id.cast_signed(),
        run.run_attempt,
        run.head_branch,
        run.head_sha,
        run.on_default_branch,
        millis(run.started_at),
        day_of(run.started_at),
        source.job_id.map(u64::cast_signed),
        source.job_id_check.as_str(),
        &*source.job,
        job_base,
        config,
        &*source.artifact,
        source.path,
        source.invoking_file.as_deref(),
        source.setup(),
    ])?;
    Ok(())
}

/// Adds the sums of a report's classes, each by its file and name.
fn add_to_summaries(
    tx: &Transaction<'_>,
    report: i64,
    sums: HashMap<(&str, &str), ClassSums>,
) -> rusqlite::Result<()> {
    let mut add = tx.prepare_cached(
        "INSERT INTO test_run_summary VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT DO UPDATE SET tests = tests + excluded.tests,
            successes = successes + excluded.successes, failures = failures + excluded.failures,
            errors = errors + excluded.errors, skipped = skipped + excluded.skipped,
            unfinished = unfinished + excluded.unfinished, flaky = flaky + excluded.flaky,
            timed = timed + excluded.timed, time = time + excluded.time",
    )?;
    for ((file, classname), ClassSums { tally, timed, time }) in sums {
        add.execute(params![
            report,
            file,
            classname,
            tally.tests.cast_signed(),
            tally.successes.cast_signed(),
            tally.failures.cast_signed(),
            tally.errors.cast_signed(),
            tally.skipped.cast_signed(),
            tally.unfinished.cast_signed(),
            tally.flaky.cast_signed(),
            timed.cast_signed(),
            time
        ])?;
    }
    Ok(())
}

/// Other reports of the same commit, job and path, from re-runs and other runs.
struct SameCommit {
    /// Each with its day.
    reports: Vec<(i64, i64)>,
    /// Tests that failed in one of them, of those that are written now.
    failed: HashSet<i64>,
}

impl SameCommit {
    fn of(
        tx: &Transaction<'_>,
        run: &TestedRun,
        source: &ReportSource,
        rows: &[TestRunRow],
        day: i64,
    ) -> rusqlite::Result<Self> {
        let mut found = Self { reports: vec![], failed: HashSet::new() };
        let Some(sha) = &run.head_sha else { return Ok(found) };
        let Some((first, last)) = rows.first().zip(rows.last()) else { return Ok(found) };
        let (setup, report) = (source.setup(), source.report_id.cast_signed());
        let mut select = tx.prepare_cached(OF_COMMIT)?;
        let (repo, is_default, job) = (&run.repository, run.on_default_branch, &*source.job);
        let days = (day - COMMIT_DAYS, day + COMMIT_DAYS);
        let asked = params![sha, repo, is_default, job, report, days.0, days.1, setup];
        let mut reports = select.query(asked)?;
        while let Some(row) = reports.next()? {
            found.reports.push((row.get(0)?, row.get(1)?));
        }
        // A large report has many parts, each of which would read all of the others again.
        let (first, last) = (first.test_id.cast_signed(), last.test_id.cast_signed());
        let mut failed = tx.prepare_cached(FAILED_OF_REPORT)?;
        for (report, _) in &found.reports {
            for test in failed.query_map([*report, first, last], |row| row.get(0))? {
                found.failed.insert(test?);
            }
        }
        Ok(found)
    }

    /// The day on which the commit has both a success and a failure of the test, if it is this result
    /// that completes them.
    fn flaky_day(
        &self,
        tx: &Transaction<'_>,
        test: i64,
        case: &TestCase,
        day: i64,
    ) -> rusqlite::Result<Option<i64>> {
        let is_failed = case.result.is_failed();
        let is_success = case.result == TestResult::Success && self.failed.contains(&test);
        // A report that says so itself is counted by its row.
        if self.reports.is_empty() || case.flaky || !(is_failed || is_success) {
            return Ok(None);
        }
        let mut select = tx.prepare_cached(
            "SELECT result IN ('failure', 'error'), flaky FROM test_run
             WHERE report = ?1 AND test = ?2 AND result IN ('failure', 'error', 'success')",
        )?;
        let (mut failed_on, mut passed_on): (Option<i64>, Option<i64>) = (None, None);
        for (report, on) in &self.reports {
            let row = select.query_row([*report, test], |row| Ok((row.get(0)?, row.get(1)?)));
            match row.optional()? {
                Some((_, true)) => return Ok(None),
                Some((true, false)) => failed_on = Some(failed_on.map_or(*on, |day| day.min(*on))),
                Some((false, false)) => passed_on = Some(passed_on.map_or(*on, |day| day.min(*on))),
                None => {}
            }
        }
        Ok(match (failed_on, passed_on) {
            (Some(failed), None) if is_success => Some(failed.max(day)),
            (None, Some(passed)) if is_failed => Some(passed.max(day)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use crcr_store::StoreRole;
    use crcr_store::sqlite::SqliteStore;

    use super::*;

    #[test]
    fn reports_of_a_commit_and_their_failures_are_found_by_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("results.db"), StoreRole::Tool).unwrap();
        for (query, index) in [
            (OF_COMMIT, "USING INDEX test_report_commit (head_sha=? AND repo=?)"),
            (FAILED_OF_REPORT, "USING PRIMARY KEY (report=? AND test>? AND test<?)"),
        ] {
            let plan = store.slow_readers().with(|connection| {
                let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}"))?;
                let mut lines = explain.raw_query();
                let mut plan = String::new();
                while let Some(line) = lines.next()? {
                    plan.push_str(&line.get::<_, String>(3)?);
                }
                Ok(plan)
            });
            let plan = plan.unwrap();
            assert!(plan.contains(index), "{plan}");
        }
    }
}
