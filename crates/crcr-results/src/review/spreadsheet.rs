//! Every number of a review, worked out a second time from the raw rows with plain SQL, as anybody
//! with an export and a spreadsheet would. Nothing here uses the definitions under test.

use std::collections::BTreeSet;
use std::sync::Arc;

use crcr_domain::results::facts::Fact;
use crcr_domain::results::{Criterion, LevelCriteria, Rate, RepoReview};
use crcr_domain::{Level, RepoName};
use crcr_store::sqlite::{SqliteStore, StoreRole};
use crcr_store::{StateStore as _, WriteBatch};
use jiff::{Timestamp, ToSpan as _};
use rusqlite::{Connection, params};

use super::review;
use crate::sqlite::SqliteResults;
use crcr_standin::generate::{BACKENDS, facts};

const EXPORT: &str = "
CREATE TABLE dispatch (repo, delivery, pull, sha, event, level, status, enqueued REAL);
CREATE TABLE attempt (repo, delivery, pull, sha, event, job, number, state, phase, queue REAL,
                      execution REAL, received REAL);
CREATE TABLE report (repo, outcome, at REAL);
CREATE TABLE ask (repo, start REAL, stop REAL);
";

/// The rows of one repository in a window; `job` has one row per job, its last attempt.
const SHEET: &str = "
DROP TABLE IF EXISTS sent; DROP TABLE IF EXISTS line; DROP TABLE IF EXISTS ended;
DROP TABLE IF EXISTS job; DROP TABLE IF EXISTS first; DROP TABLE IF EXISTS whole;
CREATE TABLE sent AS SELECT * FROM dispatch
  WHERE repo = (SELECT repo FROM ask) AND event IN ('pull_request', 'push')
    AND enqueued >= (SELECT start FROM ask) AND enqueued < (SELECT stop FROM ask);
CREATE INDEX sent_pull ON sent (pull, enqueued);
CREATE TABLE line AS SELECT * FROM attempt
  WHERE repo = (SELECT repo FROM ask) AND event IN ('pull_request', 'push')
    AND received >= (SELECT start FROM ask) AND received < (SELECT stop FROM ask);
CREATE INDEX line_job ON line (sha, job, number);
-- Of the rows of one attempt the end hides the start.
CREATE TABLE ended AS SELECT * FROM line AS l WHERE state <> 'in_progress'
  OR NOT EXISTS (SELECT 1 FROM line AS e WHERE e.sha = l.sha AND e.job = l.job
                 AND e.number = l.number AND e.state <> 'in_progress');
CREATE INDEX ended_job ON ended (sha, job, number);
CREATE TABLE job AS SELECT e.*,
  CASE
    WHEN state = 'in_progress' THEN 'running'
    WHEN state = 'cancelled' AND sha <> coalesce((SELECT d.sha FROM sent AS d
      WHERE d.pull = e.pull AND d.enqueued <= e.received ORDER BY d.enqueued DESC LIMIT 1), sha)
      THEN 'superseded'
    WHEN state = 'failure' AND phase = 'setup' THEN 'infra'
    WHEN state = 'success' THEN 'pass'
    WHEN state = 'failure' THEN 'fail'
    ELSE state
  END AS outcome
  FROM ended AS e
  WHERE number = (SELECT max(number) FROM ended AS o WHERE o.sha = e.sha AND o.job = e.job);
CREATE INDEX job_job ON job (sha, job);
CREATE INDEX job_delivery ON job (delivery);
CREATE TABLE first AS SELECT * FROM ended WHERE number = 1;
CREATE TABLE whole AS SELECT max(f.received) - d.enqueued AS seconds FROM first AS f
  JOIN sent AS d USING (delivery) GROUP BY delivery HAVING sum(f.state = 'in_progress') = 0;
";

/// Value and number of samples of a criterion.
fn worked_out(sheet: &Connection, criterion: Criterion) -> (Option<f64>, u64) {
    let query = match criterion {
        Criterion::TimeAtL2 => {
            "SELECT d, CAST(d AS INTEGER) FROM (SELECT ((SELECT stop FROM ask) - min(enqueued))
               / 86400 AS d FROM dispatch WHERE repo = (SELECT repo FROM ask) AND level = 'L2')"
        }
        Criterion::Coverage => {
            "SELECT CAST(n AS REAL), n FROM
               (SELECT count(DISTINCT date(received, 'unixepoch')) AS n FROM line)"
        }
        Criterion::Queue => "SELECT avg(queue), count(queue) FROM first",
        Criterion::Overrun => {
            "SELECT avg(f.execution > 10800), count(f.execution) FROM first AS f
               JOIN job AS j ON j.sha = f.sha AND j.job = f.job
              WHERE j.outcome NOT IN ('timed_out', 'lost') AND f.execution IS NOT NULL"
        }
        Criterion::EndToEnd => {
            "SELECT (SELECT seconds FROM whole ORDER BY seconds
                LIMIT 1 OFFSET ((SELECT count(*) FROM whole) + 1) / 2 - 1), count(*) FROM whole"
        }
        Criterion::Timeouts => {
            "SELECT avg(outcome IN ('timed_out', 'lost')), count(*) FROM job
              WHERE outcome NOT IN ('running', 'superseded')"
        }
        Criterion::JobPass => {
            "SELECT avg(outcome = 'pass'), count(*) FROM job
              WHERE outcome NOT IN ('running', 'superseded')"
        }
        Criterion::ValidReports
        | Criterion::Flakes
        | Criterion::CoreJobs
        | Criterion::CoreTests => {
            panic!("no ratified criterion: {criterion:?}")
        }
    };
    sheet.query_row(query, [], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64))).unwrap()
}

fn share(sheet: &Connection, query: &str) -> Rate {
    let both = |row: &rusqlite::Row<'_>| {
        let (numerator, denominator): (Option<i64>, i64) = (row.get(0)?, row.get(1)?);
        Ok(Rate { numerator: numerator.unwrap_or(0) as u64, denominator: denominator as u64 })
    };
    sheet.query_row(query, [], both).unwrap()
}

/// Exports the facts; of a dispatch that has several rows the last one holds.
fn sheet(facts: &[Fact]) -> Connection {
    let seconds = |time: Timestamp| time.as_millisecond() as f64 / 1000.0;
    let sheet = Connection::open_in_memory().unwrap();
    sheet.execute_batch(EXPORT).unwrap();
    for fact in facts {
        match fact {
            Fact::Dispatch(d) => sheet.execute(
                "INSERT INTO dispatch VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    d.repo,
                    d.delivery,
                    d.pull_request.map(u64::cast_signed),
                    d.head_sha,
                    d.event.as_str(),
                    d.level.as_str(),
                    d.status.as_str(),
                    seconds(d.enqueued_at)
                ],
            ),
            Fact::Attempt(a) => sheet.execute(
                "INSERT INTO attempt VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                params![
                    a.repo,
                    a.delivery,
                    a.pull_request.map(u64::cast_signed),
                    a.head_sha,
                    a.event.as_str(),
                    a.job,
                    a.run_attempt,
                    a.state.conclusion().map_or(a.state.status(), |end| end.as_str()),
                    a.details.phase,
                    a.queue_seconds,
                    a.execution_seconds,
                    seconds(a.received_at)
                ],
            ),
            Fact::Callback(c) => sheet.execute(
                "INSERT INTO report VALUES (?1, ?2, ?3)",
                params![c.repo, c.outcome.as_str(), seconds(c.at)],
            ),
            Fact::MergeBase(_) | Fact::Check(_) => continue,
        }
        .unwrap();
    }
    sheet
}

fn same(review: &RepoReview, sheet: &Connection) {
    let repo = &review.repo;
    for evidence in &review.evidence {
        let (value, n) = worked_out(sheet, evidence.criterion);
        let title = evidence.criterion.title();
        assert_eq!(evidence.n, n, "{repo} {title}: n");
        let (told, value) = (evidence.value.unwrap(), value.unwrap());
        // Facts are kept to the millisecond.
        assert!(
            (told - value).abs() <= 0.002 + value.abs() * 1e-9,
            "{repo} {title}: {told} {value}"
        );
    }
    let available = "SELECT sum(good), count(*) FROM (
        SELECT d.delivery, sum(j.outcome IN ('pass', 'fail')) = count(j.outcome)
          AND count(j.outcome) > 0 AS good
          FROM sent AS d LEFT JOIN job AS j USING (delivery) GROUP BY d.delivery
         HAVING total(j.outcome IN ('running', 'superseded')) = 0
            AND (count(j.outcome) > 0 OR max(d.status) = 'never_started'))";
    assert_eq!(review.availability, share(sheet, available), "{repo}: availability");
    let passed =
        "SELECT sum(outcome = 'pass'), count(*) FROM job WHERE outcome IN ('pass', 'fail')";
    assert_eq!(review.test_pass, share(sheet, passed), "{repo}: test pass");
    let signal = "SELECT sum(outcome = 'accepted'), count(*) FROM report
        WHERE repo = (SELECT repo FROM ask) AND at >= (SELECT start FROM ask)
          AND at < (SELECT stop FROM ask)";
    assert_eq!(review.signal, share(sheet, signal), "{repo}: signal");
}

#[tokio::test]
async fn a_spreadsheet_comes_to_the_same_numbers() {
    let to: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (seed, days) in [(7, 14), (8, 7)] {
        let from = to - (24 * i64::from(days)).hours();
        let mut month = facts(seed, to, 20, 8, "acme/upstream");
        // A run that lies across the start of the window would need words, not numbers.
        let across: BTreeSet<String> = month
            .iter()
            .filter_map(|fact| match fact {
                Fact::Dispatch(d) if d.enqueued_at < from && d.enqueued_at >= from - 12.hours() => {
                    Some(d.delivery.clone())
                }
                _ => None,
            })
            .collect();
        month.retain(|fact| match fact {
            Fact::Dispatch(d) => !across.contains(&d.delivery),
            Fact::Attempt(a) => !across.contains(&a.delivery),
            Fact::Callback(c) => c.delivery.as_ref().is_none_or(|id| !across.contains(id)),
            Fact::MergeBase(_) | Fact::Check(_) => true,
        });
        let sheet = sheet(&month);
        let store =
            SqliteStore::open(&folder.path().join(seed.to_string()), StoreRole::Server).unwrap();
        store.commit(WriteBatch { facts: month, ..WriteBatch::default() }, to).await.unwrap();
        let results = SqliteResults::new(Arc::new(store));
        for backend in BACKENDS.iter().filter(|backend| backend.level > Level::L1) {
            let repo = RepoName::new(backend.repo).unwrap();
            let ask = params![backend.repo, from.as_second() as f64, to.as_second() as f64];
            sheet.execute("DELETE FROM ask", []).unwrap();
            sheet.execute("INSERT INTO ask VALUES (?1, ?2, ?3)", ask).unwrap();
            sheet.execute_batch(SHEET).unwrap();
            // Every criterion of either question; a level is only what is asked.
            for level in [Level::L2, Level::L3] {
                let window = (Some(from), to);
                let criteria = LevelCriteria::default();
                let asked = review(&results, &repo, Some(level), window, &criteria).await;
                let mut review = asked.unwrap();
                assert!(review.evidence.iter().any(|one| one.n >= 20));
                if backend.level != Level::L2 {
                    review.evidence.retain(|one| one.criterion != Criterion::TimeAtL2);
                }
                same(&review, &sheet);
            }
        }
    }
}
