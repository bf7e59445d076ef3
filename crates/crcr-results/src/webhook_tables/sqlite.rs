//! Rows of webhooks in SQLite. The table is in `crcr-store`'s `webhooks.sql`.

use async_trait::async_trait;
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_store::sqlite::{millis, timestamp};
use rusqlite::{ToSql, params};

use crate::ResultsError;
use crate::sqlite::{ColumnReader, SqliteResults, json};
use crate::webhook_tables::{
    KnownRepository, MAX_OF_COMMITS, MAX_OF_PREFIX, ThingQuery, ThingSelection, WebhookResults,
    select_current,
};

/// Things of a branch that are read for each one that is asked for: of some, an older state was
/// received on the branch, or they were deleted.
const BRANCH_MARGIN: usize = 2;

const COLUMNS: &str = "event, delivery, received_at, repo, thing, action, sha, branch, number, \
                       is_deleted, document";

#[async_trait]
impl WebhookResults for SqliteResults {
    async fn append_webhooks(&self, rows: Vec<WebhookRow>) -> Result<(), ResultsError> {
        let append = self.store.write(move |tx| {
            let mut insert = tx.prepare_cached(
                "INSERT OR IGNORE INTO webhook
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            )?;
            let mut note_branch = tx.prepare_cached(
                "INSERT INTO known_branch VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET newest = max(newest, excluded.newest)",
            )?;
            for row in &rows {
                let received_at = millis(row.received_at);
                note_branch.execute(params![row.event, row.repository, row.branch, received_at])?;
                if is_new_event(tx, &row.event)? {
                    tx.execute_batch(&views(&row.event))?;
                }
                let added = insert.execute(params![
                    row.event,
                    row.delivery,
                    received_at,
                    row.repository,
                    row.thing,
                    row.action,
                    row.sha,
                    row.branch,
                    row.number.map(u64::cast_signed),
                    row.version,
                    row.is_deleted,
                    row.document,
                ])?;
                if added == 1 {
                    note_open_pull(tx, row)?;
                    crate::ci_times::sqlite::count(tx, row)?;
                }
            }
            Ok(rows.len() as u64)
        });
        append.await?;
        Ok(())
    }

    async fn current_things(
        &self,
        query: &ThingQuery<'_>,
    ) -> Result<Vec<WebhookRow>, ResultsError> {
        let (event, repo) = (query.event.to_owned(), query.repository.to_owned());
        let (sql, argument) = things_sql(&query.selection);
        let rows = self
            .query(move |connection| {
                connection
                    .prepare_cached(&sql)?
                    .query_map(params![event, repo, argument], |row| {
                        let mut row = ColumnReader::of(row);
                        Ok(WebhookRow {
                            event: row.get()?,
                            delivery: row.get()?,
                            received_at: row.time()?,
                            repository: row.get()?,
                            thing: row.get()?,
                            action: row.get()?,
                            sha: row.get()?,
                            branch: row.get()?,
                            number: row.number()?,
                            is_deleted: row.get()?,
                            document: row.get()?,
                            version: row.get()?,
                        })
                    })?
                    .collect()
            })
            .await?;
        Ok(select_current(rows, &query.selection))
    }

    async fn repositories(&self, event: &str) -> Result<Vec<KnownRepository>, ResultsError> {
        let event = event.to_owned();
        self.query(move |connection| {
            connection
                .prepare_cached(
                    // From one repository to the next: each may have thousands of branches.
                    "WITH RECURSIVE known (name) AS (
                       SELECT min(repo) FROM known_branch WHERE event = ?1 AND repo > ''
                       UNION ALL
                       SELECT (SELECT min(repo) FROM known_branch
                         WHERE event = ?1 AND repo > known.name)
                       FROM known WHERE known.name IS NOT NULL)
                     SELECT name, (SELECT max(newest) FROM known_branch
                       WHERE event = ?1 AND repo = known.name)
                     FROM known WHERE name IS NOT NULL",
                )?
                .query_map([event], |row| {
                    Ok(KnownRepository { name: row.get(0)?, newest: timestamp(row.get(1)?) })
                })?
                .collect()
        })
        .await
    }

    async fn branches(
        &self,
        event: &str,
        repository: &str,
        limit: usize,
    ) -> Result<Vec<String>, ResultsError> {
        let (event, repository) = (event.to_owned(), repository.to_owned());
        self.query(move |connection| {
            connection
                .prepare_cached(
                    "SELECT branch FROM known_branch
                     WHERE event = ?1 AND repo = ?2 AND branch <> ''
                     ORDER BY newest DESC LIMIT ?3",
                )?
                .query_map(params![event, repository, limit as i64], |row| row.get(0))?
                .collect()
        })
        .await
    }
}

/// Rows of the current states, by event and repository (`?1`, `?2`), and what `?3` is.
fn things_sql(selection: &ThingSelection<'_>) -> (String, Box<dyn ToSql + Send>) {
    let (table, condition, argument): (&str, String, Box<dyn ToSql + Send>) = match *selection {
        ThingSelection::Commits(shas) => (
            "webhook INDEXED BY webhook_sha",
            format!(
                "sha <> '' AND sha IN (SELECT value FROM json_each(?3)) LIMIT {MAX_OF_COMMITS}"
            ),
            Box::new(json(&shas)),
        ),
        ThingSelection::Branch { name, before, limit } => (
            "webhook INDEXED BY webhook_branch",
            format!(
                "branch <> '' AND branch = ?3 AND received_at < {}
                 ORDER BY received_at DESC LIMIT {}",
                millis(before),
                limit.saturating_mul(BRANCH_MARGIN)
            ),
            Box::new(name.to_owned()),
        ),
        ThingSelection::CommitPrefix(prefix) => (
            "webhook INDEXED BY webhook_sha",
            // No hexadecimal digit is after `f`.
            format!("sha <> '' AND sha >= ?3 AND sha < ?3 || 'g' LIMIT {MAX_OF_PREFIX}"),
            Box::new(prefix.to_owned()),
        ),
        ThingSelection::Newest { before, limit } => (
            "webhook INDEXED BY webhook_newest",
            format!(
                "received_at < ?3 ORDER BY received_at DESC LIMIT {}",
                limit.saturating_mul(BRANCH_MARGIN)
            ),
            Box::new(millis(before)),
        ),
        ThingSelection::OpenPulls { before, limit } => (
            "open_pull INDEXED BY open_pull_newest",
            format!("received_at < ?3 ORDER BY received_at DESC LIMIT {limit}"),
            Box::new(millis(before)),
        ),
        ThingSelection::Number(number) => (
            "webhook INDEXED BY webhook_number",
            "number = ?3".to_owned(),
            Box::new(number.cast_signed()),
        ),
        ThingSelection::Id(thing) => (
            "webhook INDEXED BY webhook_thing",
            "thing = ?3".to_owned(),
            Box::new(thing.to_owned()),
        ),
        ThingSelection::Ids(things) => (
            "webhook INDEXED BY webhook_thing",
            "thing IN (SELECT value FROM json_each(?3))".to_owned(),
            Box::new(json(&things)),
        ),
    };
    let of = match selection {
        ThingSelection::OpenPulls { .. } => "repo = ?2",
        _ => "event = ?1 AND repo = ?2",
    };
    // Left alone, SQLite reads every thing of the repository to find those of a commit: CROSS JOIN keeps the order.
    // DISTINCT lets SQLite read a branch from its newest row on, and stop at the limit.
    // Of each thing, only the current row is read: a stranger can have thousands of rows of one thing.
    let sql = format!(
        "WITH wanted (id) AS (SELECT DISTINCT thing FROM {table} WHERE {of} AND {condition})
         SELECT {COLUMNS}, version FROM wanted CROSS JOIN webhook
         ON event = ?1 AND repo = ?2 AND thing = wanted.id AND version =
           (SELECT max(version) FROM webhook AS newest
            WHERE newest.event = ?1 AND newest.repo = ?2 AND newest.thing = wanted.id)"
    );
    (sql, argument)
}

/// Whether a pull request is open is what its row with the greatest version says, whatever came last.
fn note_open_pull(tx: &rusqlite::Transaction<'_>, row: &WebhookRow) -> rusqlite::Result<()> {
    if row.event != "pull_request" {
        return Ok(());
    }
    tx.prepare_cached("DELETE FROM open_pull WHERE repo = ?1 AND thing = ?2")?
        .execute(params![row.repository, row.thing])?;
    tx.prepare_cached(
        "INSERT INTO open_pull SELECT repo, thing, received_at FROM
           (SELECT * FROM webhook WHERE event = 'pull_request' AND repo = ?1 AND thing = ?2
            ORDER BY version DESC LIMIT 1)
         WHERE NOT is_deleted AND document ->> '$.pull_request.state' = 'open'",
    )?
    .execute(params![row.repository, row.thing])?;
    Ok(())
}

fn is_new_event(connection: &rusqlite::Connection, event: &str) -> rusqlite::Result<bool> {
    let known: bool = connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'current_' || ?1)",
        )?
        .query_row([event], |row| row.get(0))?;
    Ok(!known && crcr_domain::ci_data::webhook::is_event_name(event))
}

/// A table's name can't be bound, but an event's name is letters, digits and `_`.
fn views(event: &str) -> String {
    format!(
        "CREATE VIEW webhook_{event} AS SELECT * FROM webhook WHERE event = '{event}';
         CREATE VIEW current_{event} AS SELECT *, max(version) AS newest FROM webhook
           WHERE event = '{event}' GROUP BY repo, thing HAVING NOT is_deleted;"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crcr_store::{SqliteStore, StoreRole};
    use jiff::Timestamp;

    use super::*;
    use crate::Results as _;

    #[tokio::test]
    async fn sqlite_keeps_webhooks_and_a_view_for_each_event() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.db");
        let store = Arc::new(SqliteStore::open(&path, StoreRole::Tool).unwrap());
        crate::webhook_tables::suite::all(&SqliteResults::new(store)).await;
        let connection = rusqlite::Connection::open(&path).unwrap();
        let count = |view: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {view}");
            connection.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        assert_eq!((count("webhook_issue_comment"), count("current_issue_comment")), (3, 1));
        assert_eq!((count("webhook_workflow_job"), count("current_workflow_job")), (1, 1));
    }

    #[tokio::test]
    async fn closed_pull_requests_and_old_states_cost_the_list_of_open_ones_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.db");
        let store = SqliteStore::open(&path, StoreRole::Tool).unwrap();
        let results = SqliteResults::new(Arc::new(store));
        let row = |number: usize, second: usize, state: &str| {
            let at = Timestamp::from_second(1_790_000_000 + second as i64).unwrap();
            let payload = serde_json::json!({
                "action": "synchronize", "repository": { "full_name": "acme/upstream" },
                "pull_request": {
                    "id": number, "number": number, "state": state, "updated_at": at.to_string(),
                },
            });
            let delivery = format!("{number}-{second}");
            let body = payload.to_string();
            WebhookRow::new("pull_request", &delivery, at, body.as_bytes()).unwrap()
        };
        let selection = ThingSelection::OpenPulls { before: Timestamp::MAX, limit: 9 };
        let steps = || {
            let (sql, argument) = things_sql(&selection);
            let connection = rusqlite::Connection::open(&path).unwrap();
            let mut query = connection.prepare(&sql).unwrap();
            let params = params!["pull_request", "acme/upstream", argument];
            let found = query.query_map(params, |row| row.get::<_, String>("thing")).unwrap();
            assert_eq!(found.map(Result::unwrap).collect::<Vec<_>>(), ["1"]);
            query.get_status(rusqlite::StatementStatus::VmStep)
        };
        results.append_webhooks(vec![row(1, 0, "open"), row(2, 1, "closed")]).await.unwrap();
        let few = steps();
        let closed = (3..500).map(|number| row(number, number, "closed"));
        results.append_webhooks(closed.collect()).await.unwrap();
        assert!(steps() <= few + 10, "{few} and {} steps", steps());
        let states = (500..1000).map(|second| row(1, second, "open"));
        results.append_webhooks(states.collect()).await.unwrap();
        assert!(steps() <= few + 10, "{few} and {} steps", steps());
        results.delete_before(Timestamp::MAX).await.unwrap();
        let connection = rusqlite::Connection::open(&path).unwrap();
        for table in ["open_pull", "known_branch"] {
            let count = format!("SELECT count(*) FROM {table}");
            let count: i64 = connection.query_row(&count, [], |row| row.get(0)).unwrap();
            assert_eq!(count, 0, "{table}");
        }
    }
}
