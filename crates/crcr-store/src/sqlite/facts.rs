//! The tables of facts. The store writes a fact in the same transaction as the change that it
//! records; `crcr-results` reads the tables.

use crcr_domain::facts::{AttemptFact, CallbackFact, DispatchFact, Fact, MergeBaseFact};
use crcr_domain::proof::MissingProof;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::millis;
use crate::callback_id;

const DAY_MILLIS: i64 = 86_400_000;

/// Times are milliseconds since 1970. Repositories compare without case. For one dispatch or attempt,
/// only the row with the highest version is kept.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS fact_dispatch (
    at INTEGER NOT NULL, delivery TEXT NOT NULL, upstream TEXT NOT NULL, pull_request INTEGER,
    head_sha TEXT NOT NULL, event TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE,
    level TEXT NOT NULL, labels TEXT NOT NULL, enqueued_at INTEGER NOT NULL, sent_at INTEGER,
    status TEXT NOT NULL, superseded_by TEXT, tries INTEGER NOT NULL, last_error TEXT,
    rank INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_dispatch_key ON fact_dispatch (delivery, repo);
CREATE INDEX IF NOT EXISTS fact_dispatch_repo ON fact_dispatch (repo, enqueued_at, level);
CREATE INDEX IF NOT EXISTS fact_dispatch_time ON fact_dispatch (enqueued_at);
CREATE INDEX IF NOT EXISTS fact_dispatch_pull ON fact_dispatch (pull_request);
CREATE TABLE IF NOT EXISTS fact_attempt (
    received_at INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, delivery TEXT NOT NULL,
    workflow TEXT NOT NULL, job TEXT, run_id TEXT NOT NULL, run_attempt INTEGER NOT NULL,
    check_run_id TEXT, state TEXT NOT NULL, rank INTEGER NOT NULL, start_unknown INTEGER NOT NULL,
    phase TEXT, queue_seconds REAL, execution_seconds REAL, started_at INTEGER,
    completed_at INTEGER, tests TEXT, failed_tests TEXT NOT NULL, url TEXT, artifact_url TEXT,
    environment TEXT, level TEXT NOT NULL, event TEXT NOT NULL, upstream TEXT NOT NULL,
    pull_request INTEGER, head_sha TEXT NOT NULL, dispatched_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_attempt_key ON fact_attempt (delivery, repo, run_id,
    run_attempt, workflow, ifnull(job, ''), ifnull(check_run_id, ''));
CREATE INDEX IF NOT EXISTS fact_attempt_repo ON fact_attempt (repo, dispatched_at);
CREATE INDEX IF NOT EXISTS fact_attempt_time ON fact_attempt (dispatched_at);
DROP INDEX IF EXISTS fact_attempt_pull;
CREATE INDEX IF NOT EXISTS fact_attempt_of_pull ON fact_attempt (pull_request, dispatched_at);
CREATE TABLE IF NOT EXISTS fact_callback (
    at INTEGER NOT NULL, repo TEXT COLLATE NOCASE, delivery TEXT, run_id TEXT, job TEXT,
    status TEXT, conclusion TEXT, outcome TEXT NOT NULL, answer INTEGER NOT NULL, detail TEXT,
    latency_ms REAL NOT NULL, id INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_callback_time ON fact_callback (at, id);
CREATE INDEX IF NOT EXISTS fact_callback_repo ON fact_callback (repo, at);
DROP INDEX IF EXISTS fact_callback_refused;
CREATE INDEX IF NOT EXISTS fact_callback_troubled ON fact_callback (repo, at)
    WHERE answer >= 400 OR outcome = 'unproven';
CREATE TABLE IF NOT EXISTS fact_merge_base (
    upstream TEXT NOT NULL COLLATE NOCASE, pull_request INTEGER NOT NULL, head_sha TEXT NOT NULL,
    at INTEGER NOT NULL, merge_base TEXT NOT NULL, committed_at INTEGER NOT NULL,
    PRIMARY KEY (upstream, pull_request, head_sha)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fact_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, changes INTEGER NOT NULL,
    PRIMARY KEY (day, repo)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rolled_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL, nightly INTEGER NOT NULL, tally TEXT NOT NULL,
    PRIMARY KEY (day, repo, nightly)
) WITHOUT ROWID;
";

/// Writes a row, unless one with a higher version is there.
pub(super) fn append(connection: &Connection, fact: &Fact) -> rusqlite::Result<()> {
    match fact {
        Fact::Dispatch(fact) => append_dispatch(connection, fact),
        Fact::Attempt(fact) => append_attempt(connection, fact),
        Fact::Callback(fact) => append_callback(connection, fact),
        Fact::MergeBase(fact) => append_merge_base(connection, fact),
    }
}

/// Counts a write to a repository's day, by which a cache can tell that the day has changed.
fn count_day_change(connection: &Connection, repo: &str, at: Timestamp) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_day VALUES (?1, lower(?2), 1)
             ON CONFLICT (day, repo) DO UPDATE SET changes = changes + 1",
        )?
        .execute(params![at.as_millisecond().div_euclid(DAY_MILLIS), repo])?;
    Ok(())
}

fn append_dispatch(connection: &Connection, fact: &DispatchFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_dispatch (at, delivery, upstream, pull_request, head_sha, event, repo,
               level, labels, enqueued_at, sent_at, status, superseded_by, tries, last_error, rank)
             VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)
             ON CONFLICT (delivery, repo) DO UPDATE SET at = excluded.at,
               upstream = excluded.upstream, pull_request = excluded.pull_request,
               head_sha = excluded.head_sha, event = excluded.event, repo = excluded.repo,
               level = excluded.level, labels = excluded.labels,
               enqueued_at = excluded.enqueued_at, sent_at = excluded.sent_at,
               status = excluded.status, superseded_by = excluded.superseded_by,
               tries = excluded.tries, last_error = excluded.last_error, rank = excluded.rank
             WHERE (excluded.at, excluded.rank) > (at, rank)",
        )?
        .execute(params![
            millis(fact.at),
            fact.delivery,
            fact.upstream,
            fact.pull_request.map(u64::cast_signed),
            fact.head_sha,
            fact.event.as_str(),
            fact.repo,
            fact.level.as_str(),
            json(&fact.labels),
            millis(fact.enqueued_at),
            fact.sent_at.map(millis),
            fact.status.as_str(),
            fact.superseded_by,
            fact.tries,
            fact.last_error,
            fact.version().1,
        ])?;
    count_day_change(connection, &fact.repo, fact.enqueued_at)
}

/// Texts that are shorter are kept in their row.
const SHORT_TEXT: usize = 200;

/// Stores a text that many rows may have once, and returns what stands for it in a row. The same tests
/// fail in the same way on many pull requests.
fn text_once(connection: &Connection, text: String, at: Timestamp) -> rusqlite::Result<String> {
    if text.len() < SHORT_TEXT {
        return Ok(text);
    }
    let digest = crate::hex_digest(text.as_bytes());
    // One write a day is enough to know that it is still used.
    connection
        .prepare_cached(
            "INSERT INTO fact_text VALUES (?1, ?2, ?3) ON CONFLICT (digest) DO UPDATE
             SET used_at = excluded.used_at WHERE excluded.used_at > used_at + 86400000",
        )?
        .execute(params![digest, text, millis(at)])?;
    Ok(digest)
}

fn append_attempt(connection: &Connection, fact: &AttemptFact) -> rusqlite::Result<()> {
    let failed_tests = text_once(connection, json(&fact.failed_tests), fact.dispatched_at)?;
    connection
        .prepare_cached(
            "INSERT INTO fact_attempt VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,
             ?16,?17,?18,?19,?20,?21,?22,?23,?24,?25,?26,?27,?28,?29,?30)
             ON CONFLICT (delivery, repo, run_id, run_attempt, workflow, ifnull(job, ''),
               ifnull(check_run_id, '')) DO UPDATE SET received_at = excluded.received_at,
               repo = excluded.repo, state = excluded.state, rank = excluded.rank,
               start_unknown = excluded.start_unknown, phase = excluded.phase,
               queue_seconds = excluded.queue_seconds,
               execution_seconds = excluded.execution_seconds,
               started_at = excluded.started_at, completed_at = excluded.completed_at,
               tests = excluded.tests, failed_tests = excluded.failed_tests, url = excluded.url,
               artifact_url = excluded.artifact_url, environment = excluded.environment,
               level = excluded.level, event = excluded.event, upstream = excluded.upstream,
               pull_request = excluded.pull_request, head_sha = excluded.head_sha,
               dispatched_at = excluded.dispatched_at, missing_proof = excluded.missing_proof,
               triage = excluded.triage, warnings = excluded.warnings
             WHERE (excluded.rank, excluded.received_at) > (rank, received_at)",
        )?
        .execute(params![
            millis(fact.received_at),
            fact.repo,
            fact.delivery,
            fact.workflow,
            fact.job,
            fact.run_id,
            fact.run_attempt,
            fact.check_run_id,
            json(&fact.state),
            fact.state.rank(),
            fact.start_unknown,
            fact.phase,
            fact.queue_seconds,
            fact.execution_seconds,
            fact.started_at.map(millis),
            fact.completed_at.map(millis),
            fact.tests.as_ref().map(json),
            failed_tests,
            fact.url,
            fact.artifact_url,
            fact.environment,
            fact.level.as_str(),
            fact.event.as_str(),
            fact.upstream,
            fact.pull_request.map(u64::cast_signed),
            fact.head_sha,
            millis(fact.dispatched_at),
            fact.missing_proof.map(MissingProof::as_str),
            fact.triage.as_ref().map(json),
            json(&fact.warnings),
        ])?;
    count_day_change(connection, &fact.repo, fact.dispatched_at)
}

fn append_callback(connection: &Connection, fact: &CallbackFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO fact_callback VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12)",
        )?
        .execute(params![
            millis(fact.at),
            fact.repo,
            fact.delivery,
            fact.run_id,
            fact.job,
            fact.status,
            fact.conclusion,
            fact.outcome.as_str(),
            fact.answer,
            fact.detail,
            fact.latency_ms,
            callback_id(fact).cast_signed(),
        ])?;
    count_day_change(connection, "", fact.at)
}

/// No rate depends on a merge base, so it doesn't count as a change of a day.
fn append_merge_base(connection: &Connection, fact: &MergeBaseFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_merge_base VALUES (?1,?2,?3,?4,?5,?6)
             ON CONFLICT (upstream, pull_request, head_sha) DO UPDATE SET at = excluded.at,
               merge_base = excluded.merge_base, committed_at = excluded.committed_at
             WHERE excluded.at > at",
        )?
        .execute(params![
            fact.upstream,
            fact.pull_request.cast_signed(),
            fact.head_sha,
            millis(fact.at),
            fact.merge_base,
            millis(fact.committed_at),
        ])?;
    Ok(())
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("facts are always JSON")
}
