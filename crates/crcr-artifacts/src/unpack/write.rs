//! Writes the files of an archive with one thread per processor.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

use super::Error;
use crate::zip::read::{Buffers, Entry, Error as ZipError, Kind, Zip};

/// How many small files go to a worker at once.
const BATCH: usize = 64;
/// A file of this many bytes is a batch of its own, so that no other waits behind it.
const BIG: u64 = 1 << 20;

/// Checked paths and their entries.
type Batch = Vec<(String, Entry)>;

/// Writes every file of `zip` below `root`, at the path that `place` gives it. Their folders
/// exist; the files don't.
///
/// Returns the first failure; once there is one, or `cancel` is set, nothing new is begun.
pub(super) fn files(
    zip: &Zip,
    root: &Path,
    cancel: &AtomicBool,
    place: impl Fn(&Entry) -> Result<Option<String>, Error>,
) -> Result<(), Error> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(1, 16);
    let (sender, receiver) = sync_channel::<Batch>(threads * 2);
    let work = Work {
        zip,
        root,
        cancel,
        queue: Mutex::new(receiver),
        stop: AtomicBool::new(false),
        failed: Mutex::new(None),
    };
    let listed = std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work.run());
        }
        let mut batch = Vec::with_capacity(BATCH);
        let listed = zip.entries(|entry| {
            if entry.kind != Kind::File {
                return Ok(());
            }
            let Some(path) = place(&entry)? else { return Ok(()) };
            let big = entry.size >= BIG;
            batch.push((path, entry));
            if big || batch.len() == BATCH {
                let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
                return sender.send(full).map_err(|_| Error::Cancelled);
            }
            if work.stopped() { Err(Error::Cancelled) } else { Ok(()) }
        });
        // Nobody is left to take it only if all workers have failed.
        let _ = sender.send(batch);
        drop(sender);
        listed
    });
    let failed = work.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failed {
        Some(error) => Err(error),
        None if cancel.load(Ordering::Relaxed) => Err(Error::Cancelled),
        None => listed,
    }
}

struct Work<'a> {
    zip: &'a Zip,
    root: &'a Path,
    cancel: &'a AtomicBool,
    queue: Mutex<Receiver<Batch>>,
    stop: AtomicBool,
    failed: Mutex<Option<Error>>,
}

impl Work<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.cancel.load(Ordering::Relaxed)
    }

    /// Takes batches until there are no more. After a failure they are taken and dropped, since
    /// the other side waits for room in the queue.
    fn run(&self) {
        let mut buffers = Buffers::default();
        loop {
            let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(batch) = next else { return };
            for (path, entry) in batch {
                if self.stopped() {
                    break;
                }
                if let Err(error) = self.write(&path, &entry, &mut buffers) {
                    let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(error);
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn write(&self, path: &str, entry: &Entry, buffers: &mut Buffers) -> Result<(), Error> {
        let failed = |source| Error::Write { path: path.to_owned(), source };
        let mut file = create(&self.root.join(path), entry.mode).map_err(failed)?;
        // The archive's own read errors and ours to write come through one result: keep them apart.
        let mut write_error = None;
        let content = self.zip.content(entry, buffers, |bytes| {
            if self.stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            file.write_all(bytes).map_err(|error| {
                let kind = error.kind();
                write_error = Some(error);
                kind.into()
            })
        });
        match (content, write_error) {
            (_, Some(source)) => Err(failed(source)),
            (Err(ZipError::Io(_)), None) if self.stopped() => Err(Error::Cancelled),
            (content, None) => Ok(content?),
        }
    }
}

/// Creates a file that must not exist, with the permission bits of `mode`.
fn create(path: &Path, mode: Option<u32>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if let Some(mode) = mode.map(|mode| mode & 0o777) {
        use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
        let file = options.mode(mode).open(path)?;
        // The process's umask takes bits away that the archive gives.
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        return Ok(file);
    }
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}
