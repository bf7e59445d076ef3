//! The statements of the writer's transactions.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::{LEASED, facts, millis, row_limit, timestamp, unsigned};
use crate::batch::KEEP_BUCKET;
use crate::task::Turns;
use crate::{
    BudgetCharge, CommitOutcome, LeaseRequest, LeasedTask, LimitedBy, NewTask, TaskOutcome,
    TaskSettlement, WriteBatch,
};

/// Where the facts of a batch go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FactTarget {
    /// The tables that results are read from.
    Tables,
    /// The outbox, from which they are copied elsewhere.
    Outbox,
}

/// Checks everything before the first write, so that a rejected batch leaves no trace in the
/// transaction, which it shares with other batches.
pub(crate) fn apply(
    tx: &Transaction<'_>,
    batch: &WriteBatch,
    now: i64,
    fact_target: FactTarget,
) -> rusqlite::Result<CommitOutcome> {
    let mut version = tx.prepare_cached("SELECT version FROM record WHERE key = ?1")?;
    for (key, expected) in &batch.expected_versions {
        let found = version.query_row([key.as_str()], |row| unsigned(row, 0)).optional()?;
        if found.unwrap_or(0) != *expected {
            return Ok(CommitOutcome::Conflict);
        }
    }
    if let Some(settled) = &batch.settlement {
        let ours = tx
            .prepare_cached("SELECT 1 FROM task WHERE id = ?1 AND lease = ?2 AND state = ?3")?
            .exists(params![settled.id, settled.lease, LEASED])?;
        if !ours {
            return Ok(CommitOutcome::LeaseLost);
        }
    }
    if let Err(limited) = take_tokens(tx, &batch.charges, now)? {
        return Ok(CommitOutcome::Limited(limited));
    }
    let mut write = tx.prepare_cached(
        "INSERT INTO record (key, version, value, expires_at) VALUES (?1, 1, ?2, ?3)
         ON CONFLICT (key) DO UPDATE
         SET version = version + 1, value = excluded.value, expires_at = excluded.expires_at",
    )?;
    for record in &batch.records {
        write.execute(params![record.key.as_str(), record.value, millis(record.expires_at)])?;
    }
    let mut insert = tx.prepare_cached(
        "INSERT INTO member (set_key, member, score, expires_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (set_key, member) DO UPDATE
         SET score = excluded.score, expires_at = excluded.expires_at",
    )?;
    for member in &batch.set_inserts {
        let expires = millis(member.expires_at);
        insert.execute(params![member.set.as_str(), member.member, member.score, expires])?;
    }
    // The settled task goes first: the batch may put its own successor into the queue.
    if let Some(settled) = &batch.settlement {
        settle(tx, settled, now)?;
    }
    for task in &batch.tasks {
        enqueue(tx, task, now)?;
    }
    for fact in &batch.facts {
        match fact_target {
            FactTarget::Tables => facts::append(tx, fact)?,
            FactTarget::Outbox => {
                let fact = serde_json::to_string(fact).expect("facts are always JSON");
                tx.prepare_cached("INSERT INTO outbox (fact) VALUES (?1)")?.execute([fact])?;
            }
        }
    }
    Ok(CommitOutcome::Done)
}

/// Moves the facts in the outbox into the tables: the operator has moved the results from ClickHouse into this file.
pub(crate) fn take_facts_from_outbox(connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT fact FROM outbox ORDER BY id")?;
    let mut waiting = statement.query([])?;
    while let Some(row) = waiting.next()? {
        match serde_json::from_str(&row.get::<_, String>(0)?) {
            Ok(fact) => facts::append(connection, &fact)?,
            Err(error) => tracing::error!(%error, "a fact of the outbox can't be read"),
        }
    }
    drop(waiting);
    drop(statement);
    connection.execute("DELETE FROM outbox", [])?;
    Ok(())
}

/// Takes tokens from buckets. If one of them holds too little, nothing changes.
fn take_tokens(
    tx: &Transaction<'_>,
    charges: &[BudgetCharge],
    now: i64,
) -> rusqlite::Result<Result<(), LimitedBy>> {
    let mut left = Vec::with_capacity(charges.len());
    for (charge, one) in charges.iter().enumerate() {
        if let Some(bucket) = &one.first_of
            && tx
                .prepare_cached("SELECT 1 FROM bucket WHERE key = ?1")?
                .exists([bucket.as_str()])?
        {
            continue;
        }
        let held: Option<(f64, i64)> = tx
            .prepare_cached("SELECT tokens, at FROM bucket WHERE key = ?1")?
            .query_row([one.bucket.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        match one.take(held, now) {
            Ok(tokens) => left.push((one.bucket.as_str(), tokens)),
            Err(wait) => return Ok(Err(LimitedBy { charge, wait })),
        }
    }
    for (bucket, tokens) in left {
        tx.prepare_cached(
            "INSERT INTO bucket (key, tokens, at) VALUES (?1, ?2, ?3)
             ON CONFLICT (key) DO UPDATE SET tokens = excluded.tokens, at = excluded.at",
        )?
        .execute(params![bucket, tokens, now])?;
    }
    Ok(Ok(()))
}

fn enqueue(tx: &Transaction<'_>, task: &NewTask, now: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO task (key, lane, payload, state, due_at, created_at, changed_at)
         VALUES (?1, ?2, ?3, 0, ?4, max(?4, ?5), ?5)
         ON CONFLICT (key) DO UPDATE SET
           payload = excluded.payload, changed_at = excluded.changed_at,
           again_at = CASE WHEN state = 1
             THEN min(coalesce(again_at, excluded.due_at), excluded.due_at) END,
           due_at = CASE state WHEN 0 THEN min(due_at, excluded.due_at)
             WHEN 1 THEN due_at ELSE excluded.due_at END,
           failed = CASE WHEN state = 2 OR payload <> excluded.payload THEN 0 ELSE failed END,
           created_at = min(
             CASE WHEN state = 2 OR payload <> excluded.payload
               THEN excluded.created_at ELSE created_at END,
             CASE state WHEN 0 THEN max(min(due_at, excluded.due_at), ?5)
               ELSE max(created_at, excluded.created_at) END),
           state = CASE state WHEN 2 THEN 0 ELSE state END",
    )?
    .execute(params![task.key.as_str(), task.lane, task.payload, millis(task.due_at), now])?;
    Ok(())
}

fn settle(tx: &Transaction<'_>, settlement: &TaskSettlement, now: i64) -> rusqlite::Result<()> {
    let again = |fallback: Option<i64>,
                 failed: &str,
                 error: Option<&str>|
     -> rusqlite::Result<()> {
        let due_at = "min(coalesce(again_at, ?3), coalesce(?3, again_at))";
        let created_at = if failed == "0" { due_at } else { "created_at" };
        tx.prepare_cached(&format!(
            "UPDATE task SET state = 0, lease = NULL, failed = {failed},
               created_at = {created_at}, due_at = {due_at}, again_at = NULL,
               last_error = coalesce(?4, last_error), changed_at = ?5
             WHERE id = ?1 AND lease = ?2"
        ))?
        .execute(params![settlement.id, settlement.lease, fallback, error, now])?;
        Ok(())
    };
    match &settlement.outcome {
        TaskOutcome::Done => {
            tx.prepare_cached(
                "DELETE FROM task WHERE id = ?1 AND lease = ?2 AND again_at IS NULL",
            )?
            .execute([settlement.id, settlement.lease])?;
            again(None, "0", None)
        }
        TaskOutcome::Later(at) => again(Some(millis(*at)), "0", None),
        TaskOutcome::Retry { at, error } => again(Some(millis(*at)), "failed + 1", Some(error)),
        TaskOutcome::Postpone { at, error } => again(Some(millis(*at)), "failed", Some(error)),
        TaskOutcome::Release => again(Some(now), "failed", None),
        TaskOutcome::Keep => Ok(()),
        TaskOutcome::Dead { error, expires_at } => {
            tx.prepare_cached(
                "UPDATE task SET lease = NULL, last_error = ?3, again_at = NULL,
                   state = CASE WHEN again_at IS NULL THEN 2 ELSE 0 END,
                   failed = CASE WHEN again_at IS NULL THEN failed + 1 ELSE 0 END,
                   created_at = coalesce(again_at, created_at),
                   due_at = coalesce(again_at, ?4), changed_at = ?5
                 WHERE id = ?1 AND lease = ?2",
            )?
            .execute(params![
                settlement.id,
                settlement.lease,
                error,
                millis(*expires_at),
                now
            ])?;
            Ok(())
        }
    }
}

/// The lanes that have tasks due, each with the time of its earliest task, the earliest lane first.
///
/// Steps from lane to lane through the index (lane, due_at), so that the cost doesn't depend on how
/// many tasks wait in a lane. With `GROUP BY`, SQLite would read every task.
pub(crate) fn due_lanes(connection: &Connection, now: i64) -> rusqlite::Result<Vec<(String, i64)>> {
    connection
        .prepare_cached(
            "WITH RECURSIVE lanes(lane) AS (
               SELECT min(lane) FROM task WHERE state < 2
               UNION ALL
               SELECT (SELECT min(task.lane) FROM task WHERE state < 2 AND task.lane > lanes.lane)
               FROM lanes WHERE lanes.lane IS NOT NULL
             )
             SELECT lane, (SELECT min(due_at) FROM task WHERE state < 2 AND task.lane = lanes.lane)
               AS earliest
             FROM lanes WHERE lane IS NOT NULL AND earliest <= ?1 ORDER BY earliest",
        )?
        .query_map([now], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Leases due tasks of the lanes whose turn it is.
pub(crate) fn lease(
    tx: &Transaction<'_>,
    request: &LeaseRequest,
    turns: &Turns<'_>,
) -> rusqlite::Result<Vec<LeasedTask>> {
    let now = millis(request.now);
    let mut due = tx.prepare_cached(
        "SELECT id FROM task WHERE state < 2 AND lane = ?1 AND due_at <= ?2
         ORDER BY due_at LIMIT ?3",
    )?;
    let mut tasks_of_lanes: Vec<Vec<i64>> = Vec::with_capacity(turns.lanes().len());
    for lane in turns.lanes() {
        let found =
            due.query_map(params![lane.lane, now, row_limit(lane.room)], |row| row.get(0))?;
        tasks_of_lanes.push(found.collect::<rusqlite::Result<_>>()?);
    }
    let mut take = tx.prepare_cached(
        "UPDATE task SET state = 1, lease = ?2, due_at = ?3, changed_at = ?4 WHERE id = ?1
         RETURNING key, lane, payload, failed, created_at",
    )?;
    let take = |id: i64| {
        let lease = i64::from(rand::random::<u32>()) + 1;
        take.query_row(params![id, lease, millis(request.until), now], |row| {
            Ok(LeasedTask {
                id,
                lease,
                key: row.get(0)?,
                lane: row.get(1)?,
                payload: row.get(2)?,
                failed: row.get(3)?,
                created_at: timestamp(row.get(4)?),
            })
        })
    };
    turns.choose(tasks_of_lanes).into_iter().map(take).collect()
}

/// Moves tasks that were changed in the future back by as much as the clock was ahead then.
pub(crate) fn repair_times(tx: &Transaction<'_>, now: i64) -> rusqlite::Result<u64> {
    let moved = tx.execute(
        "UPDATE task SET due_at = due_at - (changed_at - ?1),
           again_at = again_at - (changed_at - ?1), created_at = min(created_at, ?1),
           changed_at = ?1
         WHERE state < 2 AND changed_at > ?1",
        [now],
    )?;
    Ok(moved as u64)
}

/// The most rows of each table that one call deletes: a few milliseconds of the writer's time.
const DELETED_ROWS: i64 = 500;

pub(crate) fn delete_expired(tx: &Transaction<'_>, now: i64) -> rusqlite::Result<u64> {
    let mut count = 0;
    for (statement, until) in [
        (
            "DELETE FROM record WHERE rowid IN
            (SELECT rowid FROM record WHERE expires_at <= ?1 LIMIT ?2)",
            now,
        ),
        (
            "DELETE FROM member WHERE (set_key, member) IN
            (SELECT set_key, member FROM member WHERE expires_at <= ?1 LIMIT ?2)",
            now,
        ),
        (
            "DELETE FROM task WHERE id IN
            (SELECT id FROM task WHERE state = 2 AND due_at <= ?1 LIMIT ?2)",
            now,
        ),
        (
            "DELETE FROM bucket WHERE key IN
            (SELECT key FROM bucket WHERE at <= ?1 LIMIT ?2)",
            now - KEEP_BUCKET.as_millis() as i64,
        ),
    ] {
        count += tx.prepare_cached(statement)?.execute([until, DELETED_ROWS])? as u64;
    }
    Ok(count)
}
