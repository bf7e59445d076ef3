//! Writes the files of an archive with one thread per processor.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use parking_lot::Mutex;

use super::UnpackError;
use crate::zip::read::{EntryKind, ReadBuffers, ZipEntry, ZipReadError, ZipReader};

const BATCH_FILES: usize = 64;
/// A file of this size is a batch of its own, so that no other file waits for it.
const LARGE_FILE_BYTES: u64 = 1 << 20;

/// Checked paths and their entries.
type EntryBatch = Vec<(String, ZipEntry)>;

/// Writes every file of `zip` below `root`, at the path that `place` returns. The folders must exist.
///
/// Stops at the first failure, which it returns, and when `cancel` is set.
pub(crate) fn files(
    zip: &ZipReader,
    root: &Path,
    cancel: &AtomicBool,
    place: impl Fn(&ZipEntry) -> Result<Option<String>, UnpackError>,
) -> Result<(), UnpackError> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(1, 16);
    let mut last = None;
    let (sender, receiver) = sync_channel::<EntryBatch>(threads * 2);
    let work = WriteWork {
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
        let mut batch = Vec::with_capacity(BATCH_FILES);
        let listed = zip.entries(|entry| {
            if entry.kind != EntryKind::File {
                return Ok(());
            }
            let Some(path) = place(&entry)? else { return Ok(()) };
            if entry.size >= LARGE_FILE_BYTES && last.is_none() && zip.is_stored_at_start(&entry) {
                last = Some((path, entry));
                return Ok(());
            }
            let big = entry.size >= LARGE_FILE_BYTES;
            batch.push((path, entry));
            if big || batch.len() == BATCH_FILES {
                let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_FILES));
                return sender.send(full).map_err(|_| UnpackError::Cancelled);
            }
            if work.stopped() { Err(UnpackError::Cancelled) } else { Ok(()) }
        });
        // Sending fails only if all workers have ended.
        let _ = sender.send(batch);
        drop(sender);
        listed
    });
    let failed = work.failed.lock().take();
    match failed {
        Some(error) => Err(error),
        None if cancel.load(Ordering::Relaxed) => Err(UnpackError::Cancelled),
        None => listed
            .and_then(|()| last.map_or(Ok(()), |(path, entry)| work.become_file(&path, &entry))),
    }
}

struct WriteWork<'a> {
    zip: &'a ZipReader,
    root: &'a Path,
    cancel: &'a AtomicBool,
    queue: Mutex<Receiver<EntryBatch>>,
    stop: AtomicBool,
    failed: Mutex<Option<UnpackError>>,
}

impl WriteWork<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.cancel.load(Ordering::Relaxed)
    }

    /// Writes batches until there are no more. After a failure it receives and drops them, because
    /// the sender waits for room in the queue.
    fn run(&self) {
        let mut buffers = ReadBuffers::default();
        loop {
            let next = self.queue.lock().recv();
            let Ok(batch) = next else { return };
            for (path, entry) in batch {
                if self.stopped() {
                    break;
                }
                if let Err(error) = self.write(&path, &entry, &mut buffers) {
                    let mut failed = self.failed.lock();
                    failed.get_or_insert(error);
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Renames the archive's file to `path`, whose content it starts with. This comes last, because
    /// the archive can't be read afterwards.
    fn become_file(&self, path: &str, entry: &ZipEntry) -> Result<(), UnpackError> {
        let failed = |source| UnpackError::Write { path: path.to_owned(), source };
        self.zip.check_stored_crc(entry)?;
        let full = self.root.join(path);
        let file = create(&full, entry.mode).map_err(failed)?;
        let permissions = file.metadata().map_err(failed)?.permissions();
        drop(file);
        if self.zip.disk().move_to(&full, entry.size, permissions) {
            return Ok(());
        }
        std::fs::remove_file(&full).map_err(failed)?;
        self.write(path, entry, &mut ReadBuffers::default())
    }

    fn write(
        &self,
        path: &str,
        entry: &ZipEntry,
        buffers: &mut ReadBuffers,
    ) -> Result<(), UnpackError> {
        let failed = |source| UnpackError::Write { path: path.to_owned(), source };
        let mut file = create(&self.root.join(path), entry.mode).map_err(failed)?;
        // `read_content` returns read and write errors alike, and only the latter name our path.
        let mut write_error = None;
        let content = self.zip.read_content(entry, buffers, |bytes| {
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
            (Err(ZipReadError::Io(_)), None) if self.stopped() => Err(UnpackError::Cancelled),
            (content, None) => Ok(content?),
        }
    }
}

/// Creates a new file with the permission bits of `mode`.
fn create(path: &Path, mode: Option<u32>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if let Some(mode) = mode.map(|mode| mode & 0o777) {
        use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
        let file = options.mode(mode).open(path)?;
        // The process's umask has removed bits.
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        return Ok(file);
    }
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::blob_file::{BlobFile, stored_head};

    /// A zip of uncompressed entries, laid out on disk as a download leaves it.
    fn fetched(
        folder: &Path,
        entries: &[(&str, &[u8])],
        spoil: bool,
    ) -> (BlobFile, std::path::PathBuf) {
        let mut writer = ::zip::ZipWriter::new(io::Cursor::new(vec![]));
        let options = ::zip::write::SimpleFileOptions::default()
            .compression_method(::zip::CompressionMethod::Stored)
            .unix_permissions(0o755);
        for (name, content) in entries {
            writer.start_file(*name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        let mut bytes = writer.finish().unwrap().into_inner();
        let head = stored_head(&bytes).unwrap();
        if spoil {
            bytes[head + 7] ^= 1;
        }
        let path = folder.join("blob");
        fs::write(&path, &bytes[head..]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        (BlobFile::new(bytes[..head].to_vec(), file, path.clone()), path)
    }

    fn unpack(disk: BlobFile, root: &Path) -> Result<(), UnpackError> {
        fs::create_dir(root).unwrap();
        files(&ZipReader::open(disk)?, root, &AtomicBool::new(false), |entry| {
            Ok(Some(entry.path.clone()))
        })
    }

    #[test]
    fn archive_file_is_renamed_to_its_first_large_entry() {
        let large = vec![7; LARGE_FILE_BYTES as usize + 5];
        for others in [&[][..], &[("b", b"small".as_slice()), ("c", &large)]] {
            let world = tempfile::tempdir().unwrap();
            let entries = [&[("a", large.as_slice())], others].concat();
            let (disk, blob) = fetched(world.path(), &entries, false);
            let root = world.path().join("stage");
            unpack(disk, &root).unwrap();
            assert!(!blob.exists(), "it was moved, not copied");
            for (name, content) in entries {
                assert!(fs::read(root.join(name)).unwrap() == content, "{name}");
                let mode = fs::metadata(root.join(name)).unwrap().permissions();
                assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o755);
            }
        }
    }

    #[test]
    fn first_entry_is_copied_if_the_archive_file_cannot_be_renamed() {
        let large = vec![7; LARGE_FILE_BYTES as usize + 5];
        let world = tempfile::tempdir().unwrap();
        let (disk, blob) = fetched(world.path(), &[("a", &large), ("b", b"small")], false);
        fs::rename(&blob, world.path().join("elsewhere")).unwrap();
        let root = world.path().join("stage");
        unpack(disk, &root).unwrap();
        assert!(fs::read(root.join("a")).unwrap() == large);
        assert_eq!(fs::read(root.join("b")).unwrap(), b"small");
    }

    #[test]
    fn small_first_entry_is_copied() {
        let world = tempfile::tempdir().unwrap();
        let (disk, blob) = fetched(world.path(), &[("a", b"one"), ("b", b"two")], false);
        let root = world.path().join("stage");
        unpack(disk, &root).unwrap();
        assert!(blob.exists());
        assert_eq!(fs::read(root.join("b")).unwrap(), b"two");
    }

    #[test]
    fn archive_file_with_a_wrong_crc_does_not_become_an_entry() {
        let world = tempfile::tempdir().unwrap();
        let large = vec![7; LARGE_FILE_BYTES as usize + 5];
        let (disk, _) = fetched(world.path(), &[("a", &large)], true);
        let root = world.path().join("stage");
        let error = unpack(disk, &root).unwrap_err();
        assert!(matches!(error, UnpackError::Zip(ZipReadError::Mismatch(_))), "{error}");
        assert!(!root.join("a").exists());
    }
}
