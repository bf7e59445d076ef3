//! The tables of facts. The store writes a fact in the same transaction as the change that it
//! records; `crcr-results` reads the tables.

use crcr_domain::results::facts::{
    AttemptFact, CallbackFact, CheckFact, DispatchFact, Fact, MergeBaseFact,
};
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::millis;
use crate::callback_id;

const DAY_MILLIS: i64 = 86_400_000;

/// Writes a row, unless one with a higher version is there.
pub(crate) fn append(connection: &Connection, fact: &Fact) -> rusqlite::Result<()> {
    match fact {
        Fact::Dispatch(fact) => append_dispatch(connection, fact),
        Fact::Attempt(fact) => append_attempt(connection, fact),
        Fact::Callback(fact) => append_callback(connection, fact),
        Fact::MergeBase(fact) => append_merge_base(connection, fact),
        Fact::Check(fact) => append_check(connection, fact),
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
            "INSERT INTO fact_dispatch VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9)
             ON CONFLICT (delivery, repo) DO UPDATE SET repo = excluded.repo, at = excluded.at,
               rank = excluded.rank, enqueued_at = excluded.enqueued_at, level = excluded.level,
               upstream = excluded.upstream, pull_request = excluded.pull_request,
               document = excluded.document
             WHERE (excluded.at, excluded.rank) > (at, rank)",
        )?
        .execute(params![
            fact.delivery,
            fact.repo,
            millis(fact.at),
            fact.version().1,
            millis(fact.enqueued_at),
            fact.level.as_str(),
            fact.upstream,
            fact.pull_request.map(u64::cast_signed),
            json(fact),
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
    let mut document = fact.clone();
    let failed_tests = json(&std::mem::take(&mut document.details.failed_tests));
    let failed_tests = text_once(connection, failed_tests, fact.dispatched_at)?;
    connection
        .prepare_cached(
            "INSERT INTO fact_attempt VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14)
             ON CONFLICT (delivery, repo, run_id, run_attempt, workflow, job, check_run_id)
             DO UPDATE SET repo = excluded.repo, rank = excluded.rank,
               received_at = excluded.received_at, dispatched_at = excluded.dispatched_at,
               upstream = excluded.upstream, pull_request = excluded.pull_request,
               failed_tests = excluded.failed_tests, document = excluded.document
             WHERE (excluded.rank, excluded.received_at) > (rank, received_at)",
        )?
        .execute(params![
            fact.delivery,
            fact.repo,
            fact.run_id,
            fact.run_attempt,
            fact.workflow,
            fact.job.as_deref().unwrap_or_default(),
            fact.details.check_run_id.as_deref().unwrap_or_default(),
            fact.state.rank(),
            millis(fact.received_at),
            millis(fact.dispatched_at),
            fact.upstream,
            fact.pull_request.map(u64::cast_signed),
            failed_tests,
            json(&document),
        ])?;
    count_day_change(connection, &fact.repo, fact.dispatched_at)
}

fn append_callback(connection: &Connection, fact: &CallbackFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR IGNORE INTO fact_callback VALUES (?1,?2,?3,?4,?5,?6,?7)")?
        .execute(params![
            millis(fact.at),
            callback_id(fact).cast_signed(),
            fact.repo,
            fact.outcome.as_str(),
            fact.answer,
            fact.latency_ms,
            json(fact),
        ])?;
    count_day_change(connection, "", fact.at)
}

/// No rate depends on a merge base, so it doesn't count as a change of a day.
fn append_merge_base(connection: &Connection, fact: &MergeBaseFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_merge_base VALUES (?1,?2,?3,?4,?5)
             ON CONFLICT (upstream, pull_request, head_sha) DO UPDATE SET at = excluded.at,
               document = excluded.document
             WHERE excluded.at > at",
        )?
        .execute(params![
            fact.upstream,
            fact.pull_request.cast_signed(),
            fact.head_sha,
            millis(fact.at),
            json(fact),
        ])?;
    Ok(())
}

/// No rate depends on a check run, either.
fn append_check(connection: &Connection, fact: &CheckFact) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO fact_check VALUES (?1,?2,?3,?4,?5)
             ON CONFLICT (upstream, head_sha, repo) DO UPDATE SET at = excluded.at,
               document = excluded.document
             WHERE excluded.at >= at",
        )?
        .execute(params![fact.upstream, fact.head_sha, fact.repo, millis(fact.at), json(fact)])?;
    Ok(())
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("facts are always JSON")
}
