//! What one transaction of the writer does with its records, tasks and facts.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::{Facts, LEASED, count, facts as fact_tables, millis, rows, timestamp};
use crate::{Batch, Charge, Commit, How, NewTask, Settle, Task, Want};

/// Checks first and writes then, so that a refused batch leaves no trace in the transaction.
pub(super) fn apply(
    tx: &Transaction<'_>,
    batch: &Batch,
    now: i64,
    facts: Facts,
) -> rusqlite::Result<Commit> {
    let mut version = tx.prepare_cached("SELECT version FROM record WHERE key = ?1")?;
    for (key, expected) in &batch.expect {
        let found = version.query_row([key.as_str()], |row| count(row, 0)).optional()?;
        if found.unwrap_or(0) != *expected {
            return Ok(Commit::Conflict);
        }
    }
    if let Some(settled) = &batch.settle {
        let ours = tx
            .prepare_cached("SELECT 1 FROM task WHERE id = ?1 AND lease = ?2 AND state = ?3")?
            .exists(params![settled.id, settled.lease, LEASED])?;
        if !ours {
            return Ok(Commit::LeaseLost);
        }
    }
    if let Some(charge) = &batch.charge
        && let Some(wait) = take(tx, charge, now)?
    {
        return Ok(Commit::Limited(wait));
    }
    let mut put = tx.prepare_cached(
        "INSERT INTO record (key, version, value, expires_at) VALUES (?1, 1, ?2, ?3)
         ON CONFLICT (key) DO UPDATE
         SET version = version + 1, value = excluded.value, expires_at = excluded.expires_at",
    )?;
    for record in &batch.put {
        put.execute(params![record.key.as_str(), record.value, millis(record.expires_at)])?;
    }
    let mut add = tx.prepare_cached(
        "INSERT INTO member (set_key, member, score, expires_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (set_key, member) DO UPDATE
         SET score = excluded.score, expires_at = excluded.expires_at",
    )?;
    for member in &batch.add {
        let expires = millis(member.expires_at);
        add.execute(params![member.set.as_str(), member.member, member.score, expires])?;
    }
    // The settled task goes first: the batch may put its own successor into the queue.
    if let Some(settled) = &batch.settle {
        settle(tx, settled, now)?;
    }
    for task in &batch.tasks {
        enqueue(tx, task, now)?;
    }
    for fact in &batch.facts {
        match facts {
            Facts::Tables => fact_tables::append(tx, fact)?,
            Facts::Outbox => {
                let fact = serde_json::to_string(fact).expect("facts are always JSON");
                tx.prepare_cached("INSERT INTO outbox (fact) VALUES (?1)")?.execute([fact])?;
            }
        }
    }
    Ok(Commit::Done)
}

/// Takes what waited for results elsewhere into the tables, now that results are read here.
pub(super) fn empty_outbox(connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT fact FROM outbox ORDER BY id")?;
    let mut waiting = statement.query([])?;
    while let Some(row) = waiting.next()? {
        match serde_json::from_str(&row.get::<_, String>(0)?) {
            Ok(fact) => fact_tables::append(connection, &fact)?,
            Err(error) => tracing::error!(%error, "a fact of the outbox can't be read"),
        }
    }
    drop(waiting);
    drop(statement);
    connection.execute("DELETE FROM outbox", [])?;
    Ok(())
}

/// Takes a token; `Some` is how long there is none. A refused call costs nothing.
fn take(tx: &Transaction<'_>, charge: &Charge, now: i64) -> rusqlite::Result<Option<Duration>> {
    let full = f64::from(charge.per_minute);
    let per_milli = full / 60_000.0;
    let held: Option<(f64, i64)> = tx
        .prepare_cached("SELECT tokens, at FROM bucket WHERE key = ?1")?
        .query_row([charge.bucket.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let tokens =
        held.map_or(full, |(tokens, at)| (tokens + per_milli * (now - at).max(0) as f64).min(full));
    if tokens < 1.0 {
        let wait = ((1.0 - tokens) / per_milli).ceil();
        return Ok(Some(Duration::from_millis(wait as u64)));
    }
    tx.prepare_cached(
        "INSERT INTO bucket (key, tokens, at) VALUES (?1, ?2, ?3)
         ON CONFLICT (key) DO UPDATE SET tokens = excluded.tokens, at = excluded.at",
    )?
    .execute(params![charge.bucket.as_str(), tokens - 1.0, now])?;
    Ok(None)
}

fn enqueue(tx: &Transaction<'_>, task: &NewTask, now: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO task (key, lane, payload, state, due_at, created_at)
         VALUES (?1, ?2, ?3, 0, ?4, ?5)
         ON CONFLICT (key) DO UPDATE SET
           payload = excluded.payload,
           again_at = CASE WHEN state = 1
             THEN min(coalesce(again_at, excluded.due_at), excluded.due_at) END,
           due_at = CASE state WHEN 0 THEN min(due_at, excluded.due_at)
             WHEN 1 THEN due_at ELSE excluded.due_at END,
           failed = CASE WHEN state = 2 OR payload <> excluded.payload THEN 0 ELSE failed END,
           created_at = CASE WHEN payload <> excluded.payload THEN excluded.created_at
             ELSE created_at END,
           state = CASE state WHEN 2 THEN 0 ELSE state END",
    )?
    .execute(params![task.key.as_str(), task.lane, task.payload, millis(task.due_at), now])?;
    Ok(())
}

fn settle(tx: &Transaction<'_>, settle: &Settle, now: i64) -> rusqlite::Result<()> {
    let again =
        |fallback: Option<i64>, failed: &str, error: Option<&str>| -> rusqlite::Result<()> {
            tx.prepare_cached(&format!(
                "UPDATE task SET state = 0, lease = NULL, failed = {failed},
               due_at = min(coalesce(again_at, ?3), coalesce(?3, again_at)), again_at = NULL,
               last_error = coalesce(?4, last_error)
             WHERE id = ?1 AND lease = ?2"
            ))?
            .execute(params![settle.id, settle.lease, fallback, error])?;
            Ok(())
        };
    match &settle.how {
        How::Done => {
            tx.prepare_cached(
                "DELETE FROM task WHERE id = ?1 AND lease = ?2 AND again_at IS NULL",
            )?
            .execute([settle.id, settle.lease])?;
            again(None, "0", None)
        }
        How::Later(at) => again(Some(millis(*at)), "0", None),
        How::Retry { at, error } => again(Some(millis(*at)), "failed + 1", Some(error)),
        How::Release => again(Some(now), "failed", None),
        How::Dead { error, expires_at } => {
            tx.prepare_cached(
                "UPDATE task SET lease = NULL, last_error = ?3, again_at = NULL,
                   state = CASE WHEN again_at IS NULL THEN 2 ELSE 0 END,
                   failed = CASE WHEN again_at IS NULL THEN failed + 1 ELSE 0 END,
                   due_at = coalesce(again_at, ?4)
                 WHERE id = ?1 AND lease = ?2",
            )?
            .execute(params![settle.id, settle.lease, error, millis(*expires_at)])?;
            Ok(())
        }
    }
}

/// Lanes with due tasks and the time of the earliest, the earliest lane first.
///
/// Steps from lane to lane through the index (lane, due_at), so that it costs the same however many
/// tasks wait in each, which
/// SQLite doesn't do for `GROUP BY` by itself.
pub(super) fn due_lanes(connection: &Connection, now: i64) -> rusqlite::Result<Vec<(String, i64)>> {
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

/// Leases the earliest due tasks of `lanes`, which come in the order of [`due_lanes`].
pub(super) fn lease(
    tx: &Transaction<'_>,
    want: &Want,
    lanes: &[(String, i64)],
) -> rusqlite::Result<Vec<Task>> {
    let now = millis(want.now);
    let mut due = tx.prepare_cached(
        "SELECT due_at, id FROM task WHERE state < 2 AND lane = ?1 AND due_at <= ?2
         ORDER BY due_at LIMIT ?3",
    )?;
    let mut earliest: Vec<(i64, i64)> = Vec::new();
    for (lane, first) in lanes {
        // No task of this lane, or of one behind it, is earlier than those that were found.
        if earliest.get(want.max - 1).is_some_and(|(at, _)| at <= first) {
            break;
        }
        let busy = want.busy.get(lane).copied().unwrap_or_default();
        let room = want.per_lane.saturating_sub(busy).min(want.max);
        let found =
            due.query_map(params![lane, now, rows(room)], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for task in found {
            earliest.push(task?);
        }
        earliest.sort_unstable();
    }
    earliest.truncate(want.max);
    let mut take = tx.prepare_cached(
        "UPDATE task SET state = 1, lease = ?2, due_at = ?3 WHERE id = ?1
         RETURNING key, lane, payload, failed, created_at",
    )?;
    let take = |(_, id): (i64, i64)| {
        let lease = i64::from(rand::random::<u32>()) + 1;
        take.query_row(params![id, lease, millis(want.until)], |row| {
            Ok(Task {
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
    earliest.into_iter().map(take).collect()
}

/// Rows of each table that one portion deletes: a few milliseconds of the writer's time.
const PRUNED: i64 = 500;

pub(super) fn prune(tx: &Transaction<'_>, now: i64) -> rusqlite::Result<u64> {
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
        // A bucket that nobody took from for an hour is full again.
        (
            "DELETE FROM bucket WHERE key IN
            (SELECT key FROM bucket WHERE at <= ?1 LIMIT ?2)",
            now - 3_600_000,
        ),
    ] {
        count += tx.prepare_cached(statement)?.execute([until, PRUNED])? as u64;
    }
    Ok(count)
}
