//! What an upload stores: the files, how they are packed, and whose they are.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::blocks::{self, BlobBlocks, GrownFiles};
use crate::collect::FileEntry;
use crate::digest::Digest;
use crate::locator::{ArchiveFormat, LocatedFile};
use crate::zip::write::{self, DeflateLevel};

/// With more files than this a locator is too large to list them.
const MAX_LISTED_FILES: usize = 8192;
/// What a zip needs for an entry besides name and data, at most.
const ENTRY_OVERHEAD: u64 = 200;

/// Hears how many more bytes were read.
pub type ReadProgress = Arc<dyn Fn(u64) + Send + Sync>;

/// An artifact to store. It can be read any number of times, for a second store or a second look.
#[derive(Clone)]
pub struct UploadSource {
    pub name: String,
    /// The attempt of the run, from 1.
    pub attempt: u64,
    /// The key of the job in the workflow file.
    pub job: String,
    /// Which leg of the job's matrix; `None` without a matrix.
    pub leg: Option<String>,
    /// The job's own check run, which tells calls of one reusable workflow apart.
    pub check_run_id: Option<u64>,
    /// The folder of the files.
    pub root: PathBuf,
    pub entries: Arc<Vec<FileEntry>>,
    pub level: DeflateLevel,
    /// How the files are stored.
    pub archive: ArchiveFormat,
    /// Whether an artifact of this attempt is replaced.
    pub overwrite: bool,
    /// A folder of the job for notes about uploads that have begun.
    pub marker_folder: PathBuf,
    /// How long to keep it, in days; `None` is the store's own default.
    pub retention_days: Option<u32>,
    /// Ends the upload early, with nothing left behind.
    pub stop: CancellationToken,
    /// Hears of the bytes read.
    pub progress: ReadProgress,
    pub grown: GrownFiles,
}

#[derive(Debug, Clone)]
pub struct StoredArtifact {
    /// The digest of the blob, or of the list of files.
    pub digest: Digest,
    /// The size of what is stored, in bytes.
    pub size: u64,
    /// The files, where there aren't too many to list.
    pub files: Vec<LocatedFile>,
    /// Whether it was there already.
    pub already_stored: bool,
    /// Whether the bucket refused the tag for the retention.
    pub tag_refused: bool,
    /// What is left of the artifact that was replaced and why, where something is.
    pub leftover_warning: Option<String>,
    /// GitHub's number of the artifact.
    pub artifact_id: Option<u64>,
    /// How the files are stored, which may differ from what was asked for.
    pub archive: ArchiveFormat,
}

impl UploadSource {
    /// The job with the leg of its matrix, as the metadata of an object names it.
    pub fn job_label(&self) -> String {
        match &self.leg {
            Some(leg) => format!("{}/{leg}", self.job),
            None => self.job.clone(),
        }
    }

    /// The bytes of all files.
    pub fn raw_size(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size).sum()
    }

    /// The most bytes that one blob of all files can have.
    pub fn size_limit(&self) -> u64 {
        let entry = |entry: &FileEntry| {
            entry.size + entry.size / 1000 + 2 * entry.path.len() as u64 + ENTRY_OVERHEAD
        };
        self.entries.iter().map(entry).sum()
    }

    /// The files as one zip.
    pub fn zip_blocks(&self, block_size: usize) -> BlobBlocks {
        let Self { root, entries, level, progress, grown, .. } = self.clone();
        BlobBlocks::start(block_size, move |sink| {
            let listed = entries.len() <= MAX_LISTED_FILES;
            let files = write::FileSet { root: &root, entries: &entries, grown: &grown };
            write::write(sink, files, level, listed, &|bytes| progress(bytes))
        })
    }

    /// One file as it is.
    pub fn file_blocks(&self, entry: &FileEntry, block_size: usize) -> BlobBlocks {
        let (path, progress) = (self.root.join(&entry.path), self.progress.clone());
        blocks::file_blocks(path, entry.size, block_size, self.grown.clone(), move |n| progress(n))
    }

    /// The digest of each file, without a word about progress.
    pub async fn digests(&self) -> Result<Vec<Digest>, blocks::BlobSourceError> {
        let Self { root, entries, grown, .. } = self.clone();
        let digest = move |entry: &FileEntry| {
            blocks::digest_of_file(root.join(&entry.path), entry.size, &grown)
        };
        let all = move || entries.iter().map(digest).collect();
        tokio::task::spawn_blocking(all).await.map_err(|_| blocks::BlobSourceError::Stopped)?
    }

    /// The list of files for a locator.
    pub fn located_files(&self, digests: &[Digest]) -> Vec<LocatedFile> {
        let file = |(entry, digest): (&FileEntry, &Digest)| LocatedFile {
            path: entry.path.clone(),
            size: entry.size,
            digest: *digest,
            mode: entry.mode,
        };
        self.entries.iter().zip(digests).map(file).collect()
    }
}

/// The content type of a file, by the end of its name. Text is taken for UTF-8, so that a browser
/// shows it right.
pub fn content_type(path: &str) -> String {
    let guessed = mime_guess::from_path(path).first_or_octet_stream();
    let is_text = guessed.type_() == mime_guess::mime::TEXT;
    format!("{guessed}{}", if is_text { "; charset=utf-8" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_zip_is_called_one_and_text_has_its_charset() {
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
