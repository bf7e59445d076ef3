//! A blob that is being fetched, on disk, so that a later process goes on where this one broke off.
//!
//! A folder per blob, readable by its owner only, with the bytes and a note of which are there. The
//! note names the place and the version of the blob; no URL, no token.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::disk::MAX_HEAD;

/// The shortest range that is fetched at once, in bytes.
const MIN_PART: u64 = 8 << 20;
/// The most ranges of a blob.
const MAX_PARTS: u64 = 1024;
/// The largest note that is read, in bytes.
const MAX_NOTE: u64 = 256 * 1024;
/// What nobody has touched for this long is removed.
const STALE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Which bytes of a blob are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Where the blob is; no secret.
    pub(crate) place: String,
    /// The version of the blob.
    pub(crate) etag: Option<String>,
    /// The type that the server gives.
    #[serde(default)]
    pub(crate) content_type: Option<String>,
    /// The name of the file, where it is stored as it is.
    #[serde(default)]
    pub(crate) file_name: Option<String>,
    /// The blob's length in bytes.
    pub(crate) total: u64,
    /// The length of each range but the last, in bytes.
    pub(crate) part: u64,
    /// For each range, how many of its bytes are there, from its start.
    pub(crate) done: Vec<u64>,
    /// The start of the blob, where the file begins behind it (see [`crate::disk`]).
    #[serde(default)]
    pub(crate) head: Vec<u8>,
}

impl Progress {
    /// Nothing yet of a blob; in one range where the server knows no ranges.
    pub(crate) fn new(place: &str, etag: Option<String>, total: u64, whole: bool) -> Self {
        let part = if whole { total } else { MIN_PART.max(total.div_ceil(MAX_PARTS)) }.max(1);
        let parts = usize::try_from(total.div_ceil(part)).unwrap_or(usize::MAX);
        let (content_type, file_name) = (None, None);
        let (done, head) = (vec![0; parts], vec![]);
        Self { place: place.to_owned(), etag, content_type, file_name, total, part, done, head }
    }

    /// Start and end of range number `n`.
    pub(crate) fn range(&self, n: usize) -> (u64, u64) {
        let start = n as u64 * self.part;
        (start, (start + self.part).min(self.total))
    }

    /// How many bytes are there.
    pub(crate) fn bytes(&self) -> u64 {
        self.done.iter().sum()
    }

    /// How many bytes are there from the start without a gap, when all up to `known` are.
    pub(crate) fn contiguous(&self, known: u64) -> u64 {
        let mut at = known;
        while at < self.total {
            let n = (at / self.part) as usize;
            let (start, end) = self.range(n);
            at = at.max(start + self.done[n]);
            if at < end {
                break;
            }
        }
        at
    }

    /// Whether a note that was read makes sense.
    fn is_sound(&self) -> bool {
        let fresh = Self::new("", None, self.total, self.part == self.total);
        self.etag.is_some()
            && self.head.len() as u64 <= self.total.min(MAX_HEAD as u64)
            && self.part == fresh.part
            && self.done.len() == fresh.done.len()
            && self.done.iter().enumerate().all(|(n, done)| {
                let (start, end) = self.range(n);
                *done <= end - start
            })
    }
}

/// The folder of a blob that is being fetched.
pub(crate) struct Partial {
    folder: PathBuf,
    file: File,
    kept: Option<Progress>,
}

impl Partial {
    /// The folder for the blob at `place` below `cache`, with what an earlier process has fetched.
    /// While another process has it, a new one.
    pub(crate) fn open(cache: &Path, place: &str) -> io::Result<Self> {
        private_folder(cache)?;
        remove_stale(cache);
        let name = &Digest::of(place.as_bytes()).hex()[..32];
        let folder = cache.join(name);
        private_folder(&folder)?;
        let file = private_file(&folder.join("blob"))?;
        if file.try_lock().is_ok() {
            let kept = read_note(&folder).filter(|note| note.place == place && note.is_sound());
            // The note may be ahead of a file that somebody has cut.
            let length = file.metadata()?.len();
            let kept = kept.filter(|note| reach(note) <= length + note.head.len() as u64);
            return Ok(Self { folder, file, kept });
        }
        let folder = cache.join(format!("{name}-{:08x}", rand::random::<u32>()));
        private_folder(&folder)?;
        let file = private_file(&folder.join("blob"))?;
        Ok(Self { folder, file, kept: None })
    }

    /// What an earlier process has fetched.
    pub(crate) fn kept(&self) -> Option<&Progress> {
        self.kept.as_ref()
    }

    /// The file of the bytes.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The path of the file of the bytes.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("blob")
    }

    /// Forgets what has been fetched.
    pub(crate) fn reset(&mut self) -> io::Result<()> {
        self.kept = None;
        self.file.set_len(0)
    }

    /// Notes what is there, for a later process.
    pub(crate) fn note(&self, progress: &Progress) -> io::Result<()> {
        let next = self.folder.join("note.new");
        let file = private_file(&next)?;
        file.set_len(0)?;
        serde_json::to_writer(&file, progress)?;
        fs::rename(next, self.folder.join("note"))
    }

    /// Removes the folder with all that is in it.
    pub(crate) fn discard(self) {
        // What can't be removed now is stale in a week.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The end of the last byte that a note says is there.
fn reach(note: &Progress) -> u64 {
    let ends = note.done.iter().enumerate().filter(|(_, done)| **done > 0);
    ends.map(|(n, done)| note.range(n).0 + done).max().unwrap_or(0)
}

fn read_note(folder: &Path) -> Option<Progress> {
    let path = folder.join("note");
    if fs::metadata(&path).ok()?.len() > MAX_NOTE {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Removes what broken-off downloads left behind long ago; failures leave it for the next time.
fn remove_stale(cache: &Path) {
    let now = SystemTime::now();
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let touched = fs::metadata(entry.path().join("blob")).and_then(|blob| blob.modified());
        let age = touched.ok().and_then(|at| now.duration_since(at).ok());
        if age.is_some_and(|age| age > STALE) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_a_blob_and_contiguous_stops_at_the_first_gap() {
        let mut progress = Progress::new("p", None, 20 << 20, false);
        assert_eq!(progress.done.len(), 3);
        assert_eq!(progress.range(2), (16 << 20, 20 << 20));
        progress.done = vec![8 << 20, 5, 4 << 20];
        assert_eq!(progress.contiguous(0), (8 << 20) + 5);
        progress.done[1] = 8 << 20;
        assert_eq!(progress.contiguous(3), 20 << 20);
        assert_eq!(Progress::new("p", None, 0, false).contiguous(0), 0);
        assert!(Progress::new("p", None, 1 << 40, false).done.len() <= 1024);
    }

    #[test]
    fn a_note_is_taken_up_by_the_next_and_only_for_the_same_blob() {
        let cache = tempfile::tempdir().unwrap();
        let partial = Partial::open(cache.path(), "a").unwrap();
        let mut progress = Progress::new("a", Some("e".to_owned()), 10, false);
        progress.done[0] = 4;
        partial.file().unwrap().set_len(4).unwrap();
        partial.note(&progress).unwrap();
        let second = Partial::open(cache.path(), "a").unwrap();
        assert!(second.kept().is_none(), "the first one still has it");
        second.discard();
        drop(partial);
        let again = Partial::open(cache.path(), "a").unwrap();
        assert_eq!(again.kept(), Some(&progress));
        again.file().unwrap().set_len(3).unwrap();
        drop(again);
        assert!(Partial::open(cache.path(), "a").unwrap().kept().is_none(), "the file was cut");
        let other = Partial::open(cache.path(), "b").unwrap();
        assert!(other.kept().is_none());
    }

    #[test]
    fn a_note_that_makes_no_sense_is_ignored() {
        let cache = tempfile::tempdir().unwrap();
        let good = Progress::new("a", Some("e".to_owned()), 20 << 20, false);
        let bad = [
            Progress { etag: None, ..good.clone() },
            Progress { part: 0, ..good.clone() },
            Progress { done: vec![0; 2], ..good.clone() },
            Progress { done: vec![0, 0, u64::MAX], ..good.clone() },
            Progress { head: vec![0; MAX_HEAD + 1], ..good.clone() },
        ];
        for note in bad {
            let partial = Partial::open(cache.path(), "a").unwrap();
            partial.note(&note).unwrap();
            drop(partial);
            assert!(Partial::open(cache.path(), "a").unwrap().kept().is_none(), "{note:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_what_is_being_fetched() {
        use std::os::unix::fs::PermissionsExt as _;
        let world = tempfile::tempdir().unwrap();
        let partial = Partial::open(&world.path().join("cache"), "a").unwrap();
        partial.note(&Progress::new("a", None, 1, false)).unwrap();
        for (path, mode) in [("", 0o700), ("blob", 0o600), ("note", 0o600)] {
            let found = fs::metadata(partial.folder.join(path)).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{path}");
        }
    }
}
