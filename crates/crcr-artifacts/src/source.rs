//! What an upload stores: the files, how they are packed, and which job stores them.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::blocks::{self, BlobBlocks, GrownFiles};
use crate::collect::FileEntry;
use crate::digest::{Digest, DigestAlgorithm};
use crate::locator::{ArchiveFormat, ArtifactTrust, LocatedFile};
use crate::zip::write::{self, DeflateLevel};

/// With more files than this the locator would exceed its limit, so their digests aren't needed.
const MAX_LISTED_FILES: usize = 8192;
/// The most bytes that a zip needs for an entry besides its name and data.
const ENTRY_OVERHEAD_BYTES: u64 = 200;

/// Called with the number of bytes that were just read.
pub type ReadProgress = Arc<dyn Fn(u64) + Send + Sync>;

/// The job that uploads.
#[derive(Debug, Clone)]
pub struct JobIdentity {
    /// `owner/repo`.
    pub repository: String,
    pub run_id: u64,
    pub run_attempt: u64,
    /// The key of the job in the workflow file.
    pub key: String,
    /// The leg of the job's matrix; `None` without a matrix.
    pub leg: Option<String>,
    /// The job's own check run. It differs between two calls of one reusable workflow.
    pub check_run_id: Option<u64>,
    /// Whose code the job runs.
    pub trust: ArtifactTrust,
}

impl JobIdentity {
    /// The job with the leg of its matrix, for the metadata of an object.
    pub fn label(&self) -> String {
        match &self.leg {
            Some(leg) => format!("{}/{leg}", self.key),
            None => self.key.clone(),
        }
    }
}

/// An artifact to store. The files can be read several times, for a second store or a comparison.
#[derive(Clone)]
pub struct UploadSource {
    pub name: String,
    pub job: JobIdentity,
    /// The folder of the files.
    pub root: PathBuf,
    pub entries: Arc<Vec<FileEntry>>,
    pub level: DeflateLevel,
    pub archive: ArchiveFormat,
    /// Whether to replace an artifact of the same attempt.
    pub overwrite: bool,
    /// Holds a marker file for each upload that has begun; it survives a killed process.
    pub marker_folder: PathBuf,
    /// `None` is the store's own default.
    pub retention_days: Option<u32>,
    /// The most days that GitHub keeps an artifact of the repository. A bucket has rules of its own.
    pub max_retention_days: Option<u32>,
    /// Cancels the upload, with nothing left behind.
    pub stop: CancellationToken,
    pub progress: ReadProgress,
    pub grown: GrownFiles,
}

#[derive(Debug, Clone)]
pub struct StoredArtifact {
    /// Digest of the blob, or of the list of files.
    pub digest: Digest,
    /// Bytes as they are stored, which may be compressed.
    pub size: u64,
    /// Empty when there are too many to list.
    pub files: Vec<LocatedFile>,
    /// Whether the store had the same content already.
    pub already_stored: bool,
    /// Whether the bucket refused the tag `retention-days`.
    pub tag_refused: bool,
    /// Set when objects of a replaced artifact couldn't be deleted.
    pub leftover_warning: Option<String>,
    pub artifact_id: Option<u64>,
    /// May differ from the requested format.
    pub archive: ArchiveFormat,
}

impl UploadSource {
    /// How many days GitHub is to keep the artifact.
    pub(crate) fn retention_at_github(&self) -> Option<u32> {
        let most = self.max_retention_days.unwrap_or(u32::MAX);
        self.retention_days.map(|days| days.min(most))
    }

    /// The bytes of all files, unpacked.
    pub fn raw_size(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size).sum()
    }

    /// An upper bound for the bytes of one blob with all files.
    pub(crate) fn size_limit(&self) -> u64 {
        let entry = |entry: &FileEntry| {
            entry.size + entry.size / 1000 + 2 * entry.path.len() as u64 + ENTRY_OVERHEAD_BYTES
        };
        self.entries.iter().map(entry).sum()
    }

    pub(crate) fn zip_blocks(&self, block_size: usize) -> BlobBlocks {
        let Self { root, entries, level, progress, grown, .. } = self.clone();
        BlobBlocks::start(block_size, DigestAlgorithm::Sha256, move |sink| {
            let listed = entries.len() <= MAX_LISTED_FILES;
            let files = write::FileSet { root: &root, entries: &entries, grown: &grown };
            write::write(sink, files, level, listed, &|bytes| progress(bytes))
        })
    }

    pub(crate) fn file_blocks(
        &self,
        entry: &FileEntry,
        block_size: usize,
        algorithm: DigestAlgorithm,
    ) -> BlobBlocks {
        let (path, progress) = (self.root.join(&entry.path), self.progress.clone());
        let grown = self.grown.clone();
        blocks::file_blocks(path, entry.size, block_size, algorithm, grown, move |n| progress(n))
    }

    /// The digest of each file; reports no progress.
    pub async fn digests(&self) -> Result<Vec<Digest>, blocks::BlobSourceError> {
        let Self { root, entries, grown, .. } = self.clone();
        let digest = move |entry: &FileEntry| {
            blocks::digest_of_file(root.join(&entry.path), entry.size, &grown)
        };
        let all = move || entries.iter().map(digest).collect();
        tokio::task::spawn_blocking(all).await.map_err(|_| blocks::BlobSourceError::Stopped)?
    }

    /// The files with their digests, for a locator.
    pub(crate) fn located_files(&self, digests: &[Digest]) -> Vec<LocatedFile> {
        let file = |(entry, digest): (&FileEntry, &Digest)| LocatedFile {
            path: entry.path.clone(),
            size: entry.size,
            digest: *digest,
            mode: entry.mode,
            link: entry.link.clone(),
        };
        self.entries.iter().zip(digests).map(file).collect()
    }
}

/// The content type by the file's extension. Text gets `charset=utf-8`, or browsers would guess the
/// encoding.
pub fn content_type(path: &str) -> String {
    let guessed = mime_guess::from_path(path).first_or_octet_stream();
    let is_text = guessed.type_() == mime_guess::mime::TEXT;
    format!("{guessed}{}", if is_text { "; charset=utf-8" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_follows_the_extension_and_text_is_utf_8() {
        for (path, expected) in [
            ("a/b.ZIP", "application/zip"),
            ("p-1.0-cp312-any.whl", "application/octet-stream"),
            ("build.log", "text/plain; charset=utf-8"),
            ("report.html", "text/html; charset=utf-8"),
            ("data.json", "application/json"),
            ("logo.svg", "image/svg+xml"),
            ("no-extension", "application/octet-stream"),
        ] {
            assert_eq!(content_type(path), expected, "{path}");
        }
    }
}
