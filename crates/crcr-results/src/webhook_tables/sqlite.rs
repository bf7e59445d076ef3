//! Rows of webhooks in SQLite. The table is in `crcr-store`'s `webhooks.sql`.

use async_trait::async_trait;
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_store::sqlite::{millis, timestamp};
use rusqlite::{ToSql, params};

use crate::ResultsError;
use crate::sqlite::{ColumnReader, SqliteResults, json};
use crate::webhook_tables::{
    KnownRepository, MAX_OF_PREFIX, ThingQuery, ThingSelection, WebhookResults, select_current,
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
        let ThingCondition { index, condition, argument } = thing_condition(&query.selection);
        // Left alone, SQLite reads every thing of the repository to find those of a commit.
        // DISTINCT lets SQLite read a branch from its newest row on, and stop at the limit.
        // With `max`, it takes the other columns from the same row.
        // <https://www.sqlite.org/lang_select.html#bareagg>
        let sql = format!(
            "SELECT {COLUMNS}, max(version) FROM webhook WHERE event = ?1 AND repo = ?2 AND thing IN
               (SELECT DISTINCT thing FROM webhook INDEXED BY {index}
                WHERE event = ?1 AND repo = ?2 AND {condition})
             GROUP BY thing"
        );
        let rows = self
            .blocking(move |this| {
                this.store.slow_readers().with(|connection| {
                    connection
                        .prepare_cached(&sql)?
                        .query_map(params![event, repo, argument], read_row)?
                        .collect()
                })
            })
            .await?;
        Ok(select_current(rows, &query.selection))
    }

    async fn repositories(&self, event: &str) -> Result<Vec<KnownRepository>, ResultsError> {
        let event = event.to_owned();
        self.blocking(move |this| {
            this.store.slow_readers().with(|connection| {
                connection
                    .prepare_cached(
                        "SELECT repo, max(newest) FROM known_branch
                         WHERE event = ?1 AND repo <> '' GROUP BY repo ORDER BY repo",
                    )?
                    .query_map([event], |row| {
                        Ok(KnownRepository { name: row.get(0)?, newest: timestamp(row.get(1)?) })
                    })?
                    .collect()
            })
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
        self.blocking(move |this| {
            this.store.slow_readers().with(|connection| {
                connection
                    .prepare_cached(
                        "SELECT branch FROM known_branch
                         WHERE event = ?1 AND repo = ?2 AND branch <> ''
                         ORDER BY newest DESC LIMIT ?3",
                    )?
                    .query_map(params![event, repository, limit as i64], |row| row.get(0))?
                    .collect()
            })
        })
        .await
    }
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

/// What selects things: an index, a condition with the parameter `?3`, and its value.
struct ThingCondition {
    index: &'static str,
    condition: String,
    argument: Box<dyn ToSql + Send>,
}

fn thing_condition(selection: &ThingSelection<'_>) -> ThingCondition {
    let (index, condition, argument): (_, String, Box<dyn ToSql + Send>) = match *selection {
        ThingSelection::Commits(shas) => (
            "webhook_sha",
            "sha <> '' AND sha IN (SELECT value FROM json_each(?3))".to_owned(),
            Box::new(json(&shas)),
        ),
        ThingSelection::Branch { name, before, limit } => (
            "webhook_branch",
            format!(
                "branch <> '' AND branch = ?3 AND received_at < {}
                 ORDER BY received_at DESC LIMIT {}",
                millis(before),
                limit.saturating_mul(BRANCH_MARGIN)
            ),
            Box::new(name.to_owned()),
        ),
        ThingSelection::CommitPrefix(prefix) => (
            "webhook_sha",
            // No hexadecimal digit is after `f`.
            format!("sha <> '' AND sha >= ?3 AND sha < ?3 || 'g' LIMIT {MAX_OF_PREFIX}"),
            Box::new(prefix.to_owned()),
        ),
        ThingSelection::Newest { before, limit } => (
            "webhook_newest",
            format!(
                "received_at < ?3 ORDER BY received_at DESC LIMIT {}",
                limit.saturating_mul(BRANCH_MARGIN)
            ),
            Box::new(millis(before)),
        ),
        ThingSelection::OpenPulls { before, limit } => (
            "webhook_newest",
            // CASE looks at what is cheap first: most rows are of closed ones, or not the current state.
            format!(
                "received_at < ?3 AND CASE
                       WHEN action = 'closed' THEN 0
                       WHEN EXISTS (SELECT 1 FROM webhook AS later
                         WHERE later.event = webhook.event AND later.repo = webhook.repo
                           AND later.thing = webhook.thing AND later.version > webhook.version)
                         THEN 0
                       ELSE document ->> '$.pull_request.state' = 'open' END
                     ORDER BY received_at DESC LIMIT {limit}"
            ),
            Box::new(millis(before)),
        ),
        ThingSelection::Number(number) => {
            ("webhook_number", "number = ?3".to_owned(), Box::new(number.cast_signed()))
        }
        ThingSelection::Id(thing) => {
            ("webhook_thing", "thing = ?3".to_owned(), Box::new(thing.to_owned()))
        }
    };
    ThingCondition { index, condition, argument }
}

fn read_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<WebhookRow> {
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
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crcr_store::{SqliteStore, StoreRole};

    use super::*;

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
}
