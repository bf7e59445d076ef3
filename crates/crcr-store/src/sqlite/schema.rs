//! The tables of the state file, by version (`PRAGMA user_version`).
//!
//! To change a table, add an entry to [`UPGRADES`]. Don't change released entries.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::unavailable;
use crate::StoreError;

/// The steps from each version to the next one, starting at version 0, which is an empty file.
const UPGRADES: &[&str] = &[concat!(
    include_str!("state.sql"),
    include_str!("facts.sql"),
    include_str!("test_runs.sql"),
    include_str!("webhooks.sql"),
    include_str!("job_logs.sql"),
    include_str!("ci_times.sql"),
)];

pub(crate) const VERSION: i64 = UPGRADES.len() as i64;

/// The file's version; 0 for a new file.
///
/// [`StoreError::Newer`] when this program doesn't support it, and [`StoreError::Unavailable`] when another one made it.
pub(crate) fn version(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let read = || -> Result<i64, StoreError> {
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(unavailable)
    };
    let mut found = read()?;
    let (is_empty, has_own) = tables(connection).map_err(unavailable)?;
    if found <= 0 && !is_empty {
        // Another process may have created them in the meantime.
        found = read()?;
    }
    // Other programs number their tables, too.
    if !is_empty && (found <= 0 || !has_own) {
        let what = "it is the database of another program: it has tables, and not crcr's";
        return Err(StoreError::Unavailable(what.to_owned()));
    }
    if found > VERSION {
        let path = path.display().to_string();
        return Err(StoreError::Newer { path, found, supported: VERSION });
    }
    Ok(found)
}

/// Creates the tables, or upgrades them, in one transaction.
pub(crate) fn upgrade(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    upgrade_by(UPGRADES, connection, path)
}

fn upgrade_by(steps: &[&str], connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(unavailable)?;
    // Read it again: another process may have upgraded the file in the meantime.
    let found = version(&tx, path)?;
    let first_step: usize = found.try_into().unwrap_or_default();
    let apply = || -> rusqlite::Result<()> {
        for step in steps.get(first_step..).unwrap_or_default() {
            tx.execute_batch(step)?;
        }
        tx.pragma_update(None, "user_version", steps.len() as i64)
    };
    apply().map_err(unavailable)?;
    tx.commit().map_err(unavailable)?;
    if first_step > 0 && first_step < steps.len() {
        tracing::info!(path = %path.display(), from = found, to = steps.len(), "the store is upgraded");
    }
    Ok(())
}

/// Whether the file is still empty, and whether it has a table that is in every version of the store.
fn tables(connection: &Connection) -> rusqlite::Result<(bool, bool)> {
    let sql = "SELECT count(*) = 0, coalesce(max(name = 'fact_dispatch'), 0) FROM sqlite_schema";
    connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SqliteStore, StoreRole};

    const NEXT: &str = "ALTER TABLE task ADD COLUMN mood TEXT; CREATE TABLE novelty (a)";

    fn user_version(path: &Path) -> i64 {
        let file = Connection::open(path).unwrap();
        file.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    }

    fn created(folder: &tempfile::TempDir) -> std::path::PathBuf {
        let path = folder.path().join("crcr.db");
        drop(SqliteStore::open(&path, StoreRole::Server).unwrap());
        path
    }

    /// The store after the step to the next version, with an outbox entry from before it.
    fn upgraded(path: &Path) -> Result<(), StoreError> {
        let mut file = Connection::open(path).unwrap();
        file.execute("INSERT INTO outbox (fact) VALUES ('kept')", []).unwrap();
        upgrade_by(&[UPGRADES, &[NEXT]].concat(), &mut file, path)
    }

    #[test]
    fn store_is_upgraded_by_the_steps_that_it_lacks_and_keeps_its_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = created(&folder);
        upgraded(&path).unwrap();
        assert_eq!(user_version(&path), VERSION + 1);
        let file = Connection::open(&path).unwrap();
        let kept = "SELECT fact FROM outbox, (SELECT count(mood) FROM task)";
        assert_eq!(file.query_row(kept, [], |row| row.get::<_, String>(0)).unwrap(), "kept");
    }

    #[test]
    fn failed_upgrade_leaves_the_store_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = created(&folder);
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE novelty (a)").unwrap();
        assert!(upgraded(&path).is_err());
        assert_eq!(user_version(&path), VERSION);
        assert!(Connection::open(&path).unwrap().prepare("SELECT mood FROM task").is_err());
    }

    /// A path that is mistyped by a word, such as that of Grafana's database.
    #[test]
    fn database_of_another_program_is_refused_in_one_line_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        // Some have a table of a name that crcr uses, too, or number their tables.
        for (name, table, version) in [
            ("grafana.db", "dashboard", 0),
            ("music.db", "record", 0),
            ("photos.db", "record", VERSION),
            ("notes.db", "task", 99),
        ] {
            let path = folder.path().join(name);
            let other = Connection::open(&path).unwrap();
            let made = format!("CREATE TABLE {table} (a); PRAGMA user_version = {version}");
            other.execute_batch(&made).unwrap();
            drop(other);
            let before = std::fs::read(&path).unwrap();
            let Err(error) = SqliteStore::open(&path, StoreRole::Server) else {
                panic!("it was opened");
            };
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("another program"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn store_of_a_newer_crcr_is_rejected_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = created(&folder);
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
        // Version 0 is an empty file.
        let path = folder.path().join("crcr.db");
        let server = super::super::DatabaseLock::take(&path).unwrap();
        assert!(matches!(SqliteStore::open(&path, StoreRole::Tool), Err(StoreError::Older(_))));
        assert_eq!(user_version(&path), 0);
        drop(server);
    }
}
