//! The tables of the state file, by version (`PRAGMA user_version`).
//!
//! To change a table, add an entry to [`UPGRADES`]. Don't change released entries.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::{facts, unavailable};
use crate::StoreError;

/// Version 0: the tables from before versions were counted, without those of facts.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS record (
    key TEXT PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS record_expires ON record (expires_at);
CREATE TABLE IF NOT EXISTS member (
    set_key TEXT NOT NULL, member TEXT NOT NULL, score INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, PRIMARY KEY (set_key, member)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS member_score ON member (set_key, score);
CREATE INDEX IF NOT EXISTS member_expires ON member (expires_at);
CREATE TABLE IF NOT EXISTS bucket (
    key TEXT PRIMARY KEY, tokens REAL NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS task (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, lane TEXT NOT NULL, payload TEXT NOT NULL,
    state INTEGER NOT NULL, due_at INTEGER NOT NULL, again_at INTEGER, lease INTEGER,
    failed INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL, last_error TEXT
);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, fact TEXT NOT NULL);
";

/// The steps from each version to the next one, starting at version 0.
///
/// Version 1: due tasks are found by lane. The `due_at` of a dead task (state 2) is now the time at
/// which it is deleted; tasks that are dead already are deleted 35 days after they were given up.
/// Sweeps are never given up any more, so dead ones come back.
///
/// Version 2: an attempt records which proof its reports lack.
///
/// Version 3: an attempt has the downstream repository's triage verdict.
///
/// Version 4: results of tests.
///
/// Version 5: rows of webhooks.
///
/// Version 6: logs of failed jobs.
///
/// Version 8: when a task was changed last; texts of failing tests, each of them once.
const UPGRADES: &[&str] = &[
    "
DROP INDEX IF EXISTS task_due;
CREATE INDEX task_lane ON task (lane, due_at) WHERE state < 2;
CREATE INDEX task_dead ON task (due_at) WHERE state = 2;
UPDATE task SET state = 0, failed = 0 WHERE state = 2 AND key LIKE '[\"sweep\",%';
UPDATE task SET due_at = due_at + 3024000000 WHERE state = 2;
",
    "ALTER TABLE fact_attempt ADD COLUMN missing_proof TEXT",
    "ALTER TABLE fact_attempt ADD COLUMN triage TEXT",
    include_str!("test_runs.sql"),
    include_str!("webhooks.sql"),
    include_str!("job_logs.sql"),
    // Days on which a test took more than a second on average. Few tests do.
    "CREATE INDEX test_day_slow ON test_day (scope, day) WHERE time > timed",
    "
ALTER TABLE task ADD COLUMN changed_at INTEGER NOT NULL DEFAULT 0;
-- `fact_attempt.failed_tests` is a text's SHA-256, or the text itself if it is short.
CREATE TABLE fact_text (
    digest TEXT PRIMARY KEY, text TEXT NOT NULL, used_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX fact_text_used ON fact_text (used_at);
",
    // What was dropped from an attempt's reports.
    "ALTER TABLE fact_attempt ADD COLUMN warnings TEXT",
];

pub(super) const VERSION: i64 = UPGRADES.len() as i64;

/// The file's version; 0 for a new file.
///
/// [`StoreError::Newer`] when this program doesn't support it.
pub(super) fn version(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let read = connection.query_row("PRAGMA user_version", [], |row| row.get(0));
    match read.map_err(unavailable)? {
        found if found > VERSION => {
            Err(StoreError::Newer { path: path.display().to_string(), found, supported: VERSION })
        }
        found => Ok(found),
    }
}

/// Creates the tables, or upgrades them, in one transaction.
pub(super) fn upgrade(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(unavailable)?;
    // Read it again: another process may have upgraded the file in the meantime.
    let found = version(&tx, path)?;
    let first_step: usize = found.try_into().unwrap_or_default();
    let apply = || -> rusqlite::Result<()> {
        if first_step == 0 {
            tx.execute_batch(TABLES)?;
            tx.execute_batch(facts::SCHEMA)?;
        }
        for upgrade in &UPGRADES[first_step..] {
            tx.execute_batch(upgrade)?;
        }
        tx.pragma_update(None, "user_version", VERSION)
    };
    apply().map_err(unavailable)?;
    let existed = tx
        .query_row("SELECT EXISTS (SELECT 1 FROM record)", [], |row| row.get(0))
        .map_err(unavailable)?;
    tx.commit().map_err(unavailable)?;
    if existed && found < VERSION {
        tracing::info!(path = %path.display(), from = found, to = VERSION, "the store is upgraded");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::timestamp;
    use crate::{LeaseRequest, SqliteStore, StateStore as _, StoreKey, StoreRole, TaskState};

    /// A store that was written by the last build without versions.
    const VERSION_0: &str = include_str!("version_0.sql");

    fn create_version_0(path: &Path) {
        Connection::open(path).unwrap().execute_batch(VERSION_0).unwrap();
    }

    fn user_version(path: &Path) -> i64 {
        let file = Connection::open(path).unwrap();
        file.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    }

    #[tokio::test]
    async fn version_0_store_is_upgraded_without_losing_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crcr.db");
        create_version_0(&path);
        let store = SqliteStore::open(&path, StoreRole::Server).unwrap();
        assert_eq!(user_version(&path), VERSION);
        let record =
            store.records(&[StoreKey::new(&["pull", "acme/upstream", "7"])]).await.unwrap();
        assert_eq!(record[0].as_ref().unwrap().version, 3);
        assert_eq!(store.members(&StoreKey::new(&["deliveries"]), 9).await.unwrap(), ["d2", "d1"]);
        // The dead task is kept for 35 days after it was given up; the dead sweep is ready again.
        let died = 1_800_000_000_000;
        let dead = store.tasks(Some(TaskState::Dead), 9).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].due_at, timestamp(died + 35 * 86_400_000));
        let now = timestamp(died + 1000);
        let request = LeaseRequest {
            now,
            until: now,
            max_tasks: 9,
            max_per_lane: 9,
            ..LeaseRequest::default()
        };
        let due = store.lease_tasks(request).await.unwrap();
        let keys: Vec<_> = due.iter().map(|task| task.key.as_str()).collect();
        // The second one was leased when the old process ended.
        let expected = [
            r#"["dispatch","d1","acme/one"]"#,
            r#"["dispatch","d2","acme/one"]"#,
            r#"["sweep","d1","acme/two"]"#,
        ];
        assert_eq!(keys, expected);
        drop(store);
        let again = SqliteStore::open(&path, StoreRole::Server).unwrap();
        assert_eq!(
            again.queue_depth().await.unwrap().ready,
            3,
            "the second start upgrades nothing"
        );
    }

    #[test]
    fn new_store_has_the_same_tables_as_an_upgraded_one() {
        let folder = tempfile::tempdir().unwrap();
        let tables = |name: &str| {
            let path = folder.path().join(name);
            drop(SqliteStore::open(&path, StoreRole::Server).unwrap());
            let file = Connection::open(&path).unwrap();
            let mut statement = file
                .prepare("SELECT type, name, tbl_name FROM sqlite_schema ORDER BY 1, 2")
                .unwrap();
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            let rows = statement.query_map([], row).unwrap();
            rows.collect::<rusqlite::Result<Vec<(String, String, String)>>>().unwrap()
        };
        create_version_0(&folder.path().join("old.db"));
        assert_eq!(tables("new.db"), tables("old.db"));
    }

    #[test]
    fn store_of_a_newer_crcr_is_rejected_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crcr.db");
        drop(SqliteStore::open(&path, StoreRole::Server).unwrap());
        let newer = Connection::open(&path).unwrap();
        newer.execute_batch("CREATE TABLE novelty (a); PRAGMA user_version = 99").unwrap();
        drop(newer);
        let before = std::fs::read(&path).unwrap();
        for opened in [
            SqliteStore::open(&path, StoreRole::Server),
            SqliteStore::open(&path, StoreRole::Tool),
            SqliteStore::read_only(&path),
        ] {
            let Err(error) = opened else { panic!("it was opened") };
            let text = error.to_string();
            assert!(text.contains("version 99") && text.contains("newer"), "{text}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn tool_does_not_upgrade_a_store_that_an_older_relay_uses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crcr.db");
        create_version_0(&path);
        let server = super::super::DatabaseLock::take(&path).unwrap();
        assert!(matches!(SqliteStore::open(&path, StoreRole::Tool), Err(StoreError::Older(_))));
        assert_eq!(user_version(&path), 0);
        drop(server);
        drop(SqliteStore::open(&path, StoreRole::Tool).unwrap());
        assert_eq!(user_version(&path), VERSION);
    }

    #[test]
    fn failed_upgrade_leaves_the_store_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crcr.db");
        create_version_0(&path);
        let in_the_way = "CREATE TABLE task_dead (a)";
        Connection::open(&path).unwrap().execute_batch(in_the_way).unwrap();
        assert!(SqliteStore::open(&path, StoreRole::Server).is_err());
        let file = Connection::open(&path).unwrap();
        let due = "SELECT count(*) FROM sqlite_schema WHERE name IN ('task_due', 'task_lane')";
        assert_eq!(file.query_row(due, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
        assert_eq!(user_version(&path), 0);
    }
}
