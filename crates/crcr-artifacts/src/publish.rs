//! Publishes staged files: renames them into the destination, all or none.

use std::fs::{self, DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

const FOLDER_PREFIX: &str = ".crcr-download-";
/// In each temporary folder; its process holds a lock on it.
const LOCK_FILE: &str = "lock";
/// A folder without a lock file is removed when it is this old.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// After any of these, the destination is as it was.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Writing through the link could reach any folder.
    #[error("`{0}` is a symbolic link, and the artifact has a folder there")]
    LinkInTheWay(PathBuf),
    #[error("`{0}` is a folder on one side and a file on the other")]
    KindDiffers(PathBuf),
    #[error("`{0}` isn't a folder")]
    NotAFolder(PathBuf),
    #[error("`{path}` can't be written: {source}")]
    Io { path: PathBuf, source: io::Error },
}

impl PublishError {
    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// A temporary folder on the destination's file system. It is deleted when it is dropped.
pub struct StagingFolder {
    /// Fields are dropped in order: the lock is released before the folder is deleted.
    _lock: Option<File>,
    folder: TempDir,
    destination: PathBuf,
}

impl StagingFolder {
    /// A folder next to `destination`, or in it if its parent can't be written or is on another mount.
    pub fn new(destination: &Path) -> Result<Self, PublishError> {
        let destination =
            std::path::absolute(destination).map_err(|e| PublishError::io(destination, e))?;
        let make =
            |parent: &Path| tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(parent);
        let folder = match fs::metadata(&destination) {
            Ok(there) if !there.is_dir() => return Err(PublishError::NotAFolder(destination)),
            Ok(_) => {
                // `destination` may be a link to another file system.
                let canonical = destination.canonicalize();
                let real = canonical.map_err(|e| PublishError::io(&destination, e))?;
                let beside = real.parent().and_then(|parent| make(parent).ok());
                match beside.filter(|folder| can_rename(folder.path(), &real)) {
                    Some(folder) => folder,
                    None => make(&real).map_err(|e| PublishError::io(&real, e))?,
                }
            }
            Err(_) => {
                let there = destination.ancestors().find(|folder| folder.is_dir());
                let there = there.ok_or_else(|| PublishError::NotAFolder(destination.clone()))?;
                make(there).map_err(|e| PublishError::io(there, e))?
            }
        };
        if let Some(parent) = folder.path().parent() {
            remove_abandoned(parent);
        }
        // On a file system without locks the folder's age decides when it is abandoned.
        Ok(Self { _lock: lock(folder.path()).ok(), folder, destination })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Whether the file system of the staging folder or the destination ignores case.
    pub fn folds_case(&self) -> bool {
        let folders = [self.folder.path(), &self.destination];
        folders.into_iter().filter(|folder| folder.is_dir()).any(|folder| {
            let Ok(probe) = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempfile_in(folder)
            else {
                return true;
            };
            let name = probe.path().file_name().unwrap_or_default();
            let other = name.to_string_lossy().replace("crcr-download", "CRCR-DOWNLOAD");
            folder.join(other).exists()
        })
    }

    pub(crate) fn subfolder(&self, name: &str) -> Result<PathBuf, PublishError> {
        let path = self.folder.path().join(name);
        fs::create_dir(&path).map_err(|e| PublishError::io(&path, e))?;
        Ok(path)
    }

    /// Renames the content of `from`, a folder below the staging folder, into the destination.
    /// Existing files are replaced. If anything fails, every rename is undone.
    pub fn publish(&self, from: &Path) -> Result<(), PublishError> {
        let mut moves = PendingMoves { backup: self.subfolder("replaced")?, done: vec![] };
        let moved =
            moves.make_root(&self.destination).and_then(|()| moves.merge(from, &self.destination));
        if moved.is_err() {
            moves.undo();
        }
        moved
    }
}

/// Creates the lock file. It gets its final name only after it is locked, so that no other process
/// sees it unlocked.
fn lock(folder: &Path) -> io::Result<File> {
    let fresh = folder.join("lock.new");
    let file = File::create_new(&fresh)?;
    file.lock()?;
    fs::rename(&fresh, folder.join(LOCK_FILE))?;
    Ok(file)
}

/// Deletes the folders of downloads that were killed: those with a lock that nobody holds, and old
/// ones without a lock file. Errors are ignored.
fn remove_abandoned(parent: &Path) {
    let named = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(FOLDER_PREFIX);
    for entry in fs::read_dir(parent).into_iter().flatten().flatten().filter(named) {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_abandoned(&path) {
            tracing::info!(path = %path.display(), "deleting the folder of a killed download");
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn is_abandoned(folder: &Path) -> bool {
    let lock = folder.join(LOCK_FILE);
    match fs::symlink_metadata(&lock) {
        Ok(there) => there.is_file() && File::open(lock).is_ok_and(|lock| lock.try_lock().is_ok()),
        Err(_) => fs::metadata(folder)
            .and_then(|folder| folder.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED_AFTER)),
    }
}

/// The renames so far, so that they can be undone.
struct PendingMoves {
    backup: PathBuf,
    done: Vec<FinishedMove>,
}

enum FinishedMove {
    Created(PathBuf),
    Moved { from: PathBuf, to: PathBuf },
}

impl PendingMoves {
    /// Creates the destination and its missing parents.
    fn make_root(&mut self, destination: &Path) -> Result<(), PublishError> {
        let missing: Vec<_> = destination.ancestors().take_while(|path| !path.exists()).collect();
        for path in missing.into_iter().rev() {
            fs::create_dir(path).map_err(|e| PublishError::io(path, e))?;
            self.done.push(FinishedMove::Created(path.to_owned()));
        }
        Ok(())
    }

    fn merge(&mut self, from: &Path, to: &Path) -> Result<(), PublishError> {
        let children = fs::read_dir(from).and_then(Iterator::collect);
        let children: Vec<DirEntry> = children.map_err(|e| PublishError::io(from, e))?;
        for name in children.iter().map(DirEntry::file_name) {
            let (source, target) = (from.join(&name), to.join(&name));
            let ours = fs::symlink_metadata(&source).map_err(|e| PublishError::io(&source, e))?;
            let theirs = match fs::symlink_metadata(&target) {
                Ok(theirs) => theirs,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.rename(source, target)?;
                    continue;
                }
                Err(error) => return Err(PublishError::io(&target, error)),
            };
            match (ours.is_dir(), theirs.is_dir()) {
                (true, true) => self.merge(&source, &target)?,
                (true, false) if theirs.is_symlink() => {
                    return Err(PublishError::LinkInTheWay(target));
                }
                (true, false) | (false, true) => return Err(PublishError::KindDiffers(target)),
                (false, false) => {
                    let kept = self.backup.join(self.done.len().to_string());
                    self.rename(target.clone(), kept)?;
                    self.rename(source, target)?;
                }
            }
        }
        Ok(())
    }

    fn rename(&mut self, from: PathBuf, to: PathBuf) -> Result<(), PublishError> {
        fs::rename(&from, &to).map_err(|e| PublishError::io(&to, e))?;
        self.done.push(FinishedMove::Moved { from, to });
        Ok(())
    }

    /// Undoes everything, the last first. A failure here is only logged: the caller reports the
    /// failure that led here.
    fn undo(&mut self) {
        for done in self.done.drain(..).rev() {
            let undone = match &done {
                FinishedMove::Created(path) => fs::remove_dir(path),
                FinishedMove::Moved { from, to } => fs::rename(to, from),
            };
            if let Err(error) = undone {
                tracing::warn!(%error, "a change of the destination couldn't be undone");
            }
        }
    }
}

/// Whether a file of one folder can be renamed into the other. Between two mounts it can't, even if both are of one
/// device, as the workspace and `RUNNER_TEMP` of a container job are.
fn can_rename(from: &Path, to: &Path) -> bool {
    let probe = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempfile_in(from);
    let Ok(probe) = probe else { return false };
    let there = to.join(probe.path().file_name().unwrap_or_default());
    probe.persist(&there).is_ok() && fs::remove_file(there).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A destination `out` with `files`, and a finished stage with `new`.
    fn world(files: &[&str], new: &[&str]) -> (TempDir, StagingFolder, PathBuf) {
        let world = tempfile::tempdir().unwrap();
        let out = world.path().join("out");
        for file in files {
            write(&out.join(file), "old");
        }
        let staging = StagingFolder::new(&out).unwrap();
        let stage = staging.subfolder("stage").unwrap();
        for file in new {
            write(&stage.join(file), "new");
        }
        (world, staging, stage)
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn tree(root: &Path) -> Vec<String> {
        let mut all = vec![];
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for child in fs::read_dir(&folder).into_iter().flatten() {
                let path = child.unwrap().path();
                let name = path.strip_prefix(root).unwrap().display().to_string();
                if fs::symlink_metadata(&path).unwrap().is_dir() {
                    folders.push(path);
                } else {
                    all.push(format!("{name}={}", fs::read_to_string(&path).unwrap_or_default()));
                }
            }
        }
        all.sort();
        all
    }

    #[test]
    fn files_are_merged_into_an_existing_folder() {
        let (world, staging, stage) = world(&["a", "d/b"], &["d/b", "d/c", "e/f"]);
        staging.publish(&stage).unwrap();
        drop(staging);
        assert_eq!(tree(world.path()), ["out/a=old", "out/d/b=new", "out/d/c=new", "out/e/f=new"]);
    }

    #[test]
    fn missing_parents_of_the_destination_are_created() {
        let world = tempfile::tempdir().unwrap();
        let staging = StagingFolder::new(&world.path().join("x/y/z")).unwrap();
        let stage = staging.subfolder("stage").unwrap();
        write(&stage.join("a"), "new");
        staging.publish(&stage).unwrap();
        drop(staging);
        assert_eq!(tree(world.path()), ["x/y/z/a=new"]);
    }

    #[test]
    fn conflict_leaves_the_destination_unchanged() {
        for blocked in ["z/file/x", "a"] {
            let (world, staging, stage) = world(&["a/b", "m", "z/file"], &["m", blocked]);
            let error = staging.publish(&stage).unwrap_err();
            assert!(matches!(error, PublishError::KindDiffers(_)), "{error}");
            drop(staging);
            assert_eq!(tree(world.path()), ["out/a/b=old", "out/m=old", "out/z/file=old"]);
        }
    }

    #[cfg(unix)]
    #[test]
    fn existing_link_in_the_destination_is_never_written_through() {
        let (world, staging, stage) = world(&["m"], &["link/passwd", "m"]);
        let elsewhere = world.path().join("elsewhere");
        write(&elsewhere.join("passwd"), "safe");
        std::os::unix::fs::symlink(&elsewhere, world.path().join("out/link")).unwrap();
        let error = staging.publish(&stage).unwrap_err();
        assert!(matches!(error, PublishError::LinkInTheWay(_)), "{error}");
        assert_eq!(fs::read_to_string(elsewhere.join("passwd")).unwrap(), "safe");
        assert_eq!(fs::read_to_string(world.path().join("out/m")).unwrap(), "old");
    }

    #[test]
    fn folder_of_a_killed_download_is_deleted_and_that_of_a_running_one_is_kept() {
        let world = tempfile::tempdir().unwrap();
        let out = world.path().join("out");
        let running = StagingFolder::new(&out).unwrap();
        let begun = world.path().join(".crcr-download-begun");
        let killed = world.path().join(".crcr-download-killed");
        for folder in [&begun, &killed] {
            fs::create_dir(folder).unwrap();
        }
        write(&killed.join("stage/a"), "half");
        drop(lock(&killed).unwrap());
        let second = StagingFolder::new(&out).unwrap();
        assert!(running.path().exists() && second.path().exists() && begun.exists());
        assert!(!killed.exists());
        let long_ago = std::time::SystemTime::now() - 2 * ABANDONED_AFTER;
        File::open(&begun).unwrap().set_modified(long_ago).unwrap();
        drop(StagingFolder::new(&out).unwrap());
        assert!(!begun.exists());
    }

    #[test]
    fn destination_that_is_a_file_is_refused() {
        let world = tempfile::tempdir().unwrap();
        write(&world.path().join("out"), "file");
        let error = StagingFolder::new(&world.path().join("out")).err().unwrap();
        assert!(matches!(error, PublishError::NotAFolder(_)), "{error}");
    }
}
