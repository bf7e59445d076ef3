//! Copies of a database that a server may be using.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::{connect, of_file, schema, unavailable};
use crate::StoreError;

/// Room for what the file system needs itself.
const SPARE_BYTES: u64 = 16 << 20;

/// Writes a consistent copy of the database at `from` to `to`, which must not exist, and checks the copy.
/// A server may use the database meanwhile, and isn't delayed: the copy has all that was committed before this call.
/// Blocks until the copy is on disk.
pub fn copy_database(from: &Path, to: &Path) -> Result<(), StoreError> {
    let source = connect(from, None, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(of_file(from))?;
    source.busy_timeout(Duration::from_secs(30)).map_err(unavailable)?;
    let number = |pragma: &str| -> Result<u64, StoreError> {
        let value: rusqlite::Result<i64> =
            source.pragma_query_value(None, pragma, |row| row.get(0));
        Ok(value.map_err(unavailable)?.cast_unsigned())
    };
    let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
    let needed = pages * number("page_size")? + SPARE_BYTES;
    let folder = to.parent().filter(|folder| *folder != Path::new(""));
    if let Some(free) = free_bytes(folder.unwrap_or(Path::new(".")))
        && free < needed
    {
        let (needed, free) = (needed >> 20, free >> 20);
        let what = format!("the copy needs {needed} MiB, and its disk has {free} MiB left");
        return Err(StoreError::Unavailable(what));
    }
    let target = to.to_string_lossy();
    source.execute("VACUUM INTO ?1", [target.as_ref()]).map_err(unavailable)?;
    drop(source);
    // SQLite doesn't sync such a copy.
    let synced = File::open(to).and_then(|file| file.sync_all());
    synced
        .map_err(|error| StoreError::Unavailable(format!("the copy can't be synced: {error}")))?;
    check_database(to).map(drop)
}

/// Reads a whole database that nobody uses, and returns its version.
///
/// Fails when a page of it is damaged, or when a newer crcr wrote it.
pub fn check_database(path: &Path) -> Result<i64, StoreError> {
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let file = file.map_err(unavailable)?;
    let version = schema::version(&file, path)?;
    let found: String =
        file.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(unavailable)?;
    if found != "ok" {
        let what = format!("`{}` is damaged: {found}", path.display());
        return Err(StoreError::Unavailable(what));
    }
    file.prepare("SELECT 1 FROM record, task").map_err(unavailable)?;
    Ok(version)
}

/// Bytes that this process may still write to the file system of a folder; `None` if it doesn't tell.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let stats = rustix::fs::statvfs(folder).ok().filter(|stats| stats.f_blocks > 0)?;
    Some(stats.f_bavail.saturating_mul(stats.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, SeekFrom, Write as _};

    use jiff::Timestamp;

    use super::*;
    use crate::{SqliteStore, StateStore as _, StoreKey, StoreRole, WriteBatch, read_record};

    #[tokio::test]
    async fn copy_of_a_store_in_use_has_everything_that_was_committed_and_nothing_of_the_log_is_needed()
     {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("crcr.db"), folder.path().join("copy.db"));
        let store = SqliteStore::open(&path, StoreRole::Server).unwrap();
        let now = Timestamp::now();
        for number in 0..50 {
            let mut batch = WriteBatch::default();
            batch.set(StoreKey::new(&["n", &number.to_string()]), &number, Timestamp::MAX);
            store.commit(batch, now).await.unwrap();
        }
        copy_database(&path, &copy).unwrap();
        let mut batch = WriteBatch::default();
        batch.set(StoreKey::new(&["later"]), &1, Timestamp::MAX);
        store.commit(batch, now).await.unwrap();
        let copied = SqliteStore::open(&copy, StoreRole::Server).unwrap();
        for number in 0..50 {
            let key = StoreKey::new(&["n", &number.to_string()]);
            assert_eq!(read_record::<i32>(&copied, key).await.unwrap().value, Some(number));
        }
        let later = read_record::<i32>(&copied, StoreKey::new(&["later"])).await.unwrap();
        assert_eq!(later.value, None);
        assert!(copy_database(&path, &copy).is_err(), "it never overwrites");
    }

    #[test]
    fn damaged_database_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crcr.db");
        drop(SqliteStore::open(&path, StoreRole::Server).unwrap());
        check_database(&path).unwrap();
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        let mut page = [0; 4096];
        file.seek(SeekFrom::Start(2 * 4096)).unwrap();
        file.read_exact(&mut page).unwrap();
        file.seek(SeekFrom::Start(2 * 4096)).unwrap();
        file.write_all(&[0xff; 4096]).unwrap();
        assert!(check_database(&path).is_err());
        std::fs::write(&path, "not a database at all").unwrap();
        assert!(check_database(&path).is_err());
    }
}
