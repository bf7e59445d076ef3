//! The lock by which only one server uses a database.
//!
//! On Linux it is on the database file itself, so that a symbolic link, a hard link or another mount of
//! the file meets the same lock, and there is no lock file to remove. `flock` and the `fcntl` locks of
//! SQLite don't know of each other there. On BSD and macOS they conflict, and on Windows a lock keeps
//! even its owner from reading: there, the lock is on a file beside the database's real path.

use std::fs::{File, TryLockError};
use std::path::Path;
#[cfg(target_os = "linux")]
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;

use crate::StoreError;

#[derive(Debug)]
pub(crate) struct DatabaseLock {
    _file: File,
    #[cfg(target_os = "linux")]
    inode: this_process::Inode,
    #[cfg(target_os = "linux")]
    path: PathBuf,
    /// The log beside the database, where SQLite has it.
    #[cfg(target_os = "linux")]
    log: PathBuf,
    /// Which file the log was when it was first seen. Some file systems allow none.
    #[cfg(target_os = "linux")]
    log_inode: OnceLock<this_process::Inode>,
}

fn locked(file: &File, path: &Path) -> Result<(), StoreError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => in_use(path),
        TryLockError::Error(error) => StoreError::Unavailable(error.to_string()),
    })
}

fn in_use(path: &Path) -> StoreError {
    StoreError::InUse(path.display().to_string())
}

fn open(path: &Path) -> Result<File, StoreError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(|error| StoreError::Unavailable(error.to_string()))
}

impl DatabaseLock {
    /// Why nothing is written, if it would be lost.
    pub(crate) fn loss(&self) -> Option<String> {
        self.lost_path().map(|path| {
            format!(
                "`{}` was moved, deleted or replaced: nothing is written, as it would be gone when the relay stops",
                path.display()
            )
        })
    }
}

#[cfg(target_os = "linux")]
impl DatabaseLock {
    /// Creates the file at `path` if there is none.
    pub(crate) fn take(path: &Path) -> Result<Self, StoreError> {
        // Closing any handle of a file ends the `fcntl` locks that this process has on it. So a file that
        // this process has locked isn't even opened.
        if this_process::inode(path).is_some_and(this_process::holds) {
            return Err(in_use(path));
        }
        let file = open(path)?;
        locked(&file, path)?;
        let inode = this_process::inode(path)
            .ok_or_else(|| StoreError::Unavailable("the database was removed".to_owned()))?;
        let real =
            path.canonicalize().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let mut log = real.into_os_string();
        log.push("-wal");
        this_process::hold(inode);
        Ok(Self {
            _file: file,
            inode,
            path: path.to_owned(),
            log: log.into(),
            log_inode: OnceLock::new(),
        })
    }

    /// The path of the database or of its log, if another file or none is there now: what is written to the one that is
    /// open is gone once it is closed.
    fn lost_path(&self) -> Option<&Path> {
        if this_process::inode(&self.path) != Some(self.inode) {
            return Some(&self.path);
        }
        let log = this_process::inode(&self.log);
        let first = match log {
            Some(log) => Some(*self.log_inode.get_or_init(|| log)),
            None => self.log_inode.get().copied(),
        };
        (log != first).then_some(self.log.as_path())
    }
}

#[cfg(target_os = "linux")]
impl Drop for DatabaseLock {
    fn drop(&mut self) {
        this_process::release(self.inode);
    }
}

#[cfg(target_os = "linux")]
mod this_process {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use parking_lot::Mutex;

    pub(crate) type Inode = (u64, u64);

    static LOCKED: Mutex<BTreeSet<Inode>> = Mutex::new(BTreeSet::new());

    pub(crate) fn inode(path: &Path) -> Option<Inode> {
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    }

    pub(crate) fn holds(inode: Inode) -> bool {
        LOCKED.lock().contains(&inode)
    }

    pub(crate) fn hold(inode: Inode) {
        LOCKED.lock().insert(inode);
    }

    pub(crate) fn release(inode: Inode) {
        LOCKED.lock().remove(&inode);
    }
}

#[cfg(not(target_os = "linux"))]
impl DatabaseLock {
    /// Creates the file at `path` if there is none.
    pub(crate) fn take(path: &Path) -> Result<Self, StoreError> {
        drop(open(path)?);
        let real =
            path.canonicalize().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let mut name = real.into_os_string();
        name.push(".lock");
        let file = open(Path::new(&name))?;
        locked(&file, path)?;
        Ok(Self { _file: file })
    }

    /// There, an open file can't be moved, or nobody looks.
    #[expect(clippy::unused_self, reason = "it is a look at the file on Linux")]
    fn lost_path(&self) -> Option<&Path> {
        None
    }
}
