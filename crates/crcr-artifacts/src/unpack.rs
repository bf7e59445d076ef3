//! Unpacks archives into a staging folder, which is published only after everything has succeeded.
//!
//! Archives are untrusted: paths are checked as text before anything is created, links are created
//! last so that nothing is written through one, and no entry gets more bytes than the central
//! directory announces, which [`UnpackLimits`] bound.

#[cfg(test)]
mod hostile;
mod write;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::blob_file::BlobFile;
use crate::paths::{self, PathRefusal};
use crate::zip::read::{EntryKind, ReadBuffers, ZipEntry, ZipReadError, ZipReader};

const MAX_TARGET_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy)]
pub struct UnpackLimits {
    /// Files, links and folders, including the parents of files.
    pub entries: u64,
    /// Bytes of all files.
    pub total: u64,
    /// Bytes of all files for each byte of the archive; checked only above [`UnpackLimits::small`].
    pub ratio: u64,
    /// A total in bytes that is harmless at any ratio.
    pub small: u64,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self { entries: 2_000_000, total: 256 << 30, ratio: 200, small: 512 << 20 }
    }
}

/// What to do when two artifacts hold the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCollision {
    Error,
    /// The later artifact's file replaces the earlier one's.
    Last,
}

#[derive(Debug, Clone, Copy)]
pub struct UnpackPolicy {
    /// Whether the workflow has rights that the artifact's author may not have: setuid bits, `.git`
    /// and `.github` are refused then.
    pub privileged: bool,
    pub limits: UnpackLimits,
    pub on_collision: OnCollision,
    /// Whether the destination ignores case.
    pub folds_case: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Zip(#[from] ZipReadError),
    #[error("`{path}` is refused: {why}")]
    Path { path: String, why: PathRefusal },
    #[error("`{0}` and `{1}` can't both be unpacked: the destination takes them for one path")]
    Case(String, String),
    /// Twice in one artifact, or both a file and a folder.
    #[error("`{0}` is there twice")]
    Collision(String),
    /// In two artifacts. `earlier` is the index of the first one, in the order of unpacking.
    #[error("`{path}` is in an earlier artifact, too")]
    Taken { path: String, earlier: usize },
    #[error("`{0}` has a setuid, setgid or sticky bit, which isn't allowed in a privileged event")]
    Setuid(String),
    #[error("the archive has more than {0} entries")]
    TooMany(u64),
    #[error("the archive announces more than {0} bytes of files")]
    TooBig(u64),
    /// Above [`UnpackLimits::ratio`], or entries that share bytes.
    #[error("the archive unpacks to {unpacked} bytes from {packed}: that is a zip bomb")]
    Bomb { unpacked: u64, packed: u64 },
    #[error("the files need {need} bytes, and the disk has {have}")]
    NoSpace { need: u64, have: u64 },
    #[error("cancelled")]
    Cancelled,
    #[error("`{path}` can't be written: {source}")]
    Write { path: String, source: io::Error },
}

impl UnpackError {
    /// Whether the disk is full, or the file is too large for it.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Write { source, .. } | Self::Zip(ZipReadError::Io(source)) => {
                is_disk_full(source)
            }
            Self::NoSpace { .. } => true,
            _ => false,
        }
    }
}

pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnpackCounts {
    pub files: u64,
    pub bytes: u64,
}

/// A folder with the files of one or several artifacts, until they are published together.
pub struct StagedFiles {
    root: PathBuf,
    policy: UnpackPolicy,
    hasher: RandomState,
    /// How many artifacts have been unpacked into it.
    artifacts: u32,
    /// Sorted hashes of the paths of earlier artifacts' files and links, each with its artifact's index. Hashes,
    /// because there may be millions; of the lower-case path where case is ignored.
    files: Vec<(u64, u32)>,
    /// Hashes of the paths of earlier artifacts' folders.
    folders: HashSet<u64>,
    /// Links to create at the end: path and target.
    links: Vec<(String, String)>,
}

/// Calls its argument with every checked path of an artifact and whether it is a folder.
type EachPath<'a> =
    &'a dyn Fn(&mut dyn FnMut(&str, bool) -> Result<(), UnpackError>) -> Result<(), UnpackError>;

impl StagedFiles {
    /// `root` is an empty folder that only this process writes to.
    pub fn new(root: PathBuf, policy: UnpackPolicy) -> Self {
        Self {
            root,
            policy,
            hasher: RandomState::new(),
            artifacts: 0,
            files: vec![],
            folders: HashSet::new(),
            links: vec![],
        }
    }

    /// Unpacks an archive below `folder` (empty for the root), with one thread per processor. Stops
    /// soon after `cancel` is set. The archive's own file may be renamed to become an entry.
    pub fn unpack(
        &mut self,
        disk: impl Into<BlobFile>,
        folder: &str,
        cancel: &AtomicBool,
    ) -> Result<UnpackCounts, UnpackError> {
        let zip = ZipReader::open(disk)?;
        let packed = zip.disk().len().map_err(ZipReadError::Io)?;
        let policy = self.policy;
        let (unpacked, links) = measure(&zip, folder, packed, policy)?;
        check_space(&zip, &self.root, unpacked.bytes)?;
        self.reserve_paths(&|each| {
            zip.entries(|entry| match stage_path(&entry, folder, policy)? {
                Some(path) => each(&path, entry.kind == EntryKind::Folder),
                None => Ok(()),
            })
        })?;
        self.links.extend(links);
        write::files(&zip, &self.root, cancel, |entry| stage_path(entry, folder, policy))?;
        Ok(unpacked)
    }

    /// Checks the paths of files that aren't in an archive, and returns where the caller is to create
    /// each of them.
    pub fn reserve(&mut self, names: &[String], folder: &str) -> Result<Vec<PathBuf>, UnpackError> {
        let limit = self.policy.limits.entries;
        if names.len() as u64 > limit {
            return Err(UnpackError::TooMany(limit));
        }
        let paths = names.iter().map(|name| checked_path(name, folder, self.policy));
        let paths: Vec<String> = paths.collect::<Result<_, _>>()?;
        self.reserve_paths(&|each| paths.iter().try_for_each(|path| each(path, false)))?;
        Ok(paths.iter().map(|path| self.root.join(path)).collect())
    }

    /// Creates the links and returns the folder, ready to be published.
    pub fn finish(self) -> Result<PathBuf, UnpackError> {
        for (path, target) in &self.links {
            symlink(target, &self.root.join(path)).map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => UnpackError::Collision(path.clone()),
                _ => UnpackError::Write { path: path.clone(), source },
            })?;
        }
        Ok(self.root)
    }

    /// Refuses paths that collide at the destination, deletes files that these paths replace, and
    /// creates the folders.
    fn reserve_paths(&mut self, paths: EachPath<'_>) -> Result<(), UnpackError> {
        let mut files = vec![];
        paths(&mut |path, is_folder| {
            self.add_folders(path, is_folder)?;
            if !is_folder {
                files.push(self.hash(path));
            }
            Ok(())
        })?;
        files.sort_unstable();
        let twice = files.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let earlier = self.files.iter().map(|(hash, _)| hash);
        let both = || files.iter().chain(earlier).find(|h| self.folders.contains(h)).copied();
        if let Some(hash) = twice.or_else(both) {
            return Err(self.name_collision(paths, hash)?);
        }
        let again: HashMap<u64, usize> =
            files.iter().filter_map(|hash| Some((*hash, self.artifact_with(*hash)?))).collect();
        let mut last = PathBuf::new();
        paths(&mut |path, is_folder| {
            if !is_folder && let Some(earlier) = again.get(&self.hash(path)) {
                self.replace(path, *earlier)?;
            }
            let full = self.root.join(path);
            let wanted = if is_folder { &*full } else { full.parent().unwrap_or(&self.root) };
            if wanted != last {
                fs::create_dir_all(wanted)
                    .map_err(|source| UnpackError::Write { path: path.to_owned(), source })?;
                wanted.clone_into(&mut last);
            }
            Ok(())
        })?;
        let artifact = self.artifacts;
        files.retain(|hash| !again.contains_key(hash));
        self.files.extend(files.into_iter().map(|hash| (hash, artifact)));
        self.files.sort_unstable();
        self.artifacts += 1;
        Ok(())
    }

    /// Records the parents of `path`, and itself if it is a folder.
    fn add_folders(&mut self, path: &str, is_folder: bool) -> Result<(), UnpackError> {
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends.chain(is_folder.then_some(path.len())) {
            self.folders.insert(self.hash(&path[..end]));
        }
        let limit = self.policy.limits.entries;
        if self.folders.len() as u64 > limit { Err(UnpackError::TooMany(limit)) } else { Ok(()) }
    }

    /// The index of the earlier artifact with a file or link of this hash.
    fn artifact_with(&self, hash: u64) -> Option<usize> {
        let at = self.files.binary_search_by_key(&hash, |(known, _)| *known).ok()?;
        Some(self.files[at].1 as usize)
    }

    /// Deletes an earlier artifact's file of the same path, if the policy allows it.
    fn replace(&mut self, path: &str, earlier: usize) -> Result<(), UnpackError> {
        if self.policy.on_collision == OnCollision::Error {
            return Err(UnpackError::Taken { path: path.to_owned(), earlier });
        }
        let links = self.links.len();
        self.links.retain(|(link, _)| link != path);
        if self.links.len() < links {
            return Ok(());
        }
        // If it isn't there, its name differs in case, and the destination can't hold both.
        fs::remove_file(self.root.join(path)).map_err(|_| UnpackError::Collision(path.to_owned()))
    }

    /// Builds the error for a hash that occurred twice. It reads all paths again, to name them.
    fn name_collision(&self, paths: EachPath<'_>, hash: u64) -> Result<UnpackError, UnpackError> {
        let mut names: Vec<String> = vec![];
        paths(&mut |path, _| {
            let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
            for end in ends.filter(|end| self.hash(&path[..*end]) == hash) {
                if names.iter().all(|name| *name != path[..end]) {
                    names.push(path[..end].to_owned());
                }
            }
            Ok(())
        })?;
        let mut names = names.into_iter();
        let first = names.next().unwrap_or_default();
        Ok(match names.next() {
            Some(second) => UnpackError::Case(first, second),
            None => UnpackError::Collision(first),
        })
    }

    /// The hash has a random key, so that nobody can prepare paths that collide.
    fn hash(&self, path: &str) -> u64 {
        if !self.policy.folds_case {
            return self.hasher.hash_one(path);
        }
        if path.is_ascii() {
            return self.hasher.hash_one(path.to_ascii_lowercase());
        }
        self.hasher.hash_one(path.to_lowercase())
    }
}

/// Checks what the central directory announces against the limits. Returns the counts, and the links
/// with their targets.
fn measure(
    zip: &ZipReader,
    folder: &str,
    packed: u64,
    policy: UnpackPolicy,
) -> Result<(UnpackCounts, Vec<(String, String)>), UnpackError> {
    let limits = policy.limits;
    let mut unpacked = UnpackCounts::default();
    let mut links = vec![];
    let (mut entries, mut compressed) = (0_u64, 0_u64);
    zip.entries(|entry| {
        entries += 1;
        if entries > limits.entries {
            return Err(UnpackError::TooMany(limits.entries));
        }
        compressed = compressed.saturating_add(entry.compressed);
        unpacked.bytes = unpacked.bytes.saturating_add(entry.size);
        if unpacked.bytes > limits.total {
            return Err(UnpackError::TooBig(limits.total));
        }
        unpacked.files += u64::from(entry.kind != EntryKind::Folder);
        let Some(path) = stage_path(&entry, folder, policy)? else { return Ok(()) };
        if entry.kind == EntryKind::Symlink {
            let target = link_target(zip, &entry)?;
            check_link_target(&path, folder, &target, policy)?;
            links.push((path, target));
        }
        Ok(())
    })?;
    let bytes = unpacked.bytes;
    // If entries share bytes of the archive, their sizes add up to more than it has.
    if (bytes > limits.small && bytes / packed.max(1) > limits.ratio) || compressed > packed {
        return Err(UnpackError::Bomb { unpacked: bytes, packed });
    }
    Ok((unpacked, links))
}

/// Refuses an archive whose files are larger than the disk's free space.
fn check_space(zip: &ZipReader, root: &Path, bytes: u64) -> Result<(), UnpackError> {
    let Some(have) = free_space(root).filter(|have| *have < bytes) else { return Ok(()) };
    // An entry that the archive's own file becomes needs no further space.
    let mut reused = 0;
    zip.entries(|entry| -> Result<(), UnpackError> {
        if zip.is_stored_at_start(&entry) {
            reused = entry.size;
        }
        Ok(())
    })?;
    let need = bytes.saturating_sub(reused);
    if need > have { Err(UnpackError::NoSpace { need, have }) } else { Ok(()) }
}

/// The bytes that this user may still write; `None` if the file system doesn't report it.
#[cfg(unix)]
pub fn free_space(folder: &Path) -> Option<u64> {
    let stats = rustix::fs::statvfs(folder).ok().filter(|stats| stats.f_blocks > 0)?;
    stats.f_bavail.checked_mul(stats.f_frsize)
}

#[cfg(not(unix))]
pub fn free_space(_: &Path) -> Option<u64> {
    None
}

/// The checked path of an entry in the staging folder; `None` for the root itself.
fn stage_path(
    entry: &ZipEntry,
    folder: &str,
    policy: UnpackPolicy,
) -> Result<Option<String>, UnpackError> {
    if policy.privileged && entry.mode.is_some_and(|mode| mode & 0o7000 != 0) {
        return Err(UnpackError::Setuid(entry.path.clone()));
    }
    match checked_path(&entry.path, folder, policy) {
        Err(UnpackError::Path { why: PathRefusal::Empty, .. })
            if entry.kind == EntryKind::Folder =>
        {
            Ok(None)
        }
        path => path.map(Some),
    }
}

fn checked_path(path: &str, folder: &str, policy: UnpackPolicy) -> Result<String, UnpackError> {
    let refused = |why| UnpackError::Path { path: path.to_owned(), why };
    let checked = paths::check(path).map_err(refused)?;
    if policy.privileged {
        paths::check_privileged(&checked).map_err(refused)?;
    }
    Ok(if folder.is_empty() { checked } else { format!("{folder}/{checked}") })
}

/// Refuses a link that leads out of its own artifact's folder.
fn check_link_target(
    path: &str,
    folder: &str,
    target: &str,
    policy: UnpackPolicy,
) -> Result<(), UnpackError> {
    let refused = |why| UnpackError::Path { path: format!("{path} -> {target}"), why };
    let inner = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
    paths::check_link_target(inner, target).map_err(refused)?;
    if policy.privileged {
        paths::check_privileged(target).map_err(refused)?;
    }
    Ok(())
}

/// The target of a link, which is its content.
fn link_target(zip: &ZipReader, entry: &ZipEntry) -> Result<String, UnpackError> {
    let refused = |why| UnpackError::Path { path: entry.path.clone(), why };
    if entry.size > MAX_TARGET_BYTES {
        return Err(refused(PathRefusal::TooLong));
    }
    let mut target = vec![];
    zip.read_content(entry, &mut ReadBuffers::default(), |bytes| {
        target.extend_from_slice(bytes);
        Ok(())
    })?;
    String::from_utf8(target).map_err(|_| refused(PathRefusal::NotUtf8))
}

#[cfg(unix)]
fn symlink(target: &str, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &str, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}
