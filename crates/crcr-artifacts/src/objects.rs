//! Downloads an artifact that has an S3 object for each file, with many requests in parallel.

use std::io;
use std::path::{Path, PathBuf};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::io::AsyncWriteExt as _;

use crate::blob::RemoteBlob;
use crate::digest::{Digest, DigestAlgorithm, DigestHasher};
use crate::fetch::{self, ByteProgress, FetchError, RangeReader};
use crate::locator::{LocatedFile, files_digest, is_locator_key};
use crate::store::s3::S3Store;
use crate::store::s3::download::S3Blob;
use crate::unpack::{self, StagedFiles};

const PARALLEL_OBJECTS: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    #[error("`{path}`: {source}")]
    Fetch { path: String, source: FetchError },
    #[error("`{path}` has the digest {found}, not {expected}")]
    Digest { path: String, found: Digest, expected: Digest },
    #[error(transparent)]
    Unpack(#[from] unpack::UnpackError),
}

pub(crate) struct ObjectFetch {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// The digest of the list of files.
    pub(crate) digest: Digest,
    /// A file whose digest isn't the one in the locator or in the object's metadata.
    pub(crate) mismatch: Option<ObjectsError>,
}

/// A file to download, and what is known about it.
struct ObjectJob {
    path: String,
    to: PathBuf,
    size: u64,
    digest: Option<Digest>,
    mode: Option<u32>,
}

/// Downloads every object below `key` into `stage`, below `folder`. `listed` are the files in the
/// locator; if there are none, the bucket is listed.
pub(crate) async fn fetch(
    store: &S3Store,
    key: &str,
    listed: &[LocatedFile],
    stage: &mut StagedFiles,
    folder: &str,
    arrived: &ByteProgress,
) -> Result<ObjectFetch, ObjectsError> {
    let mut jobs: Vec<ObjectJob> = Vec::with_capacity(listed.len());
    let blank =
        |path: String, size| ObjectJob { path, to: PathBuf::new(), size, digest: None, mode: None };
    for file in listed {
        let job = blank(file.path.clone(), file.size);
        jobs.push(ObjectJob { digest: Some(file.digest), mode: file.mode, ..job });
    }
    if listed.is_empty() {
        let list = store.list(key, false).await;
        let (objects, _) =
            list.map_err(|e| ObjectsError::Fetch { path: key.to_owned(), source: e.into() })?;
        let files = objects.into_iter().filter(|object| !is_locator_key(&object.key));
        let files = files.filter(|object| !object.key.ends_with('/'));
        jobs.extend(files.map(|object| blank(object.key[key.len()..].to_owned(), object.size)));
    }
    let names: Vec<String> = jobs.iter().map(|job| job.path.clone()).collect();
    for (job, to) in jobs.iter_mut().zip(stage.reserve(&names, folder)?) {
        job.to = to;
    }
    let fetched: Vec<(LocatedFile, Option<ObjectsError>)> = stream::iter(jobs)
        .map(|job| fetch_object(store, key, job, arrived.clone()))
        .buffer_unordered(PARALLEL_OBJECTS)
        .try_collect()
        .await?;
    let (files, mismatches): (Vec<LocatedFile>, Vec<_>) = fetched.into_iter().unzip();
    Ok(ObjectFetch {
        files: files.len() as u64,
        bytes: files.iter().map(|file| file.size).sum(),
        digest: files_digest(&files),
        mismatch: mismatches.into_iter().flatten().next(),
    })
}

async fn fetch_object(
    store: &S3Store,
    key: &str,
    job: ObjectJob,
    arrived: ByteProgress,
) -> Result<(LocatedFile, Option<ObjectsError>), ObjectsError> {
    let blob = RemoteBlob::S3(S3Blob { store: store.clone(), key: format!("{key}{}", job.path) });
    let failed = |source| ObjectsError::Fetch { path: job.path.clone(), source };
    let (mut digest, mut recorded, mut mode) =
        write_object(&blob, &job, &arrived).await.map_err(failed)?;
    let other = |digest: Digest, recorded: Option<Digest>| {
        job.digest.or(recorded).filter(|expected| *expected != digest)
    };
    if other(digest, recorded).is_some() {
        // It may have changed on its way.
        let disk = |source| failed(FetchError::Disk { path: job.to.clone(), source });
        tokio::fs::remove_file(&job.to).await.map_err(disk)?;
        (digest, recorded, mode) = write_object(&blob, &job, &arrived).await.map_err(failed)?;
    }
    let mismatch = other(digest, recorded).map(|expected| ObjectsError::Digest {
        path: job.path.clone(),
        found: digest,
        expected,
    });
    Ok((LocatedFile { path: job.path, size: job.size, digest, mode, link: None }, mismatch))
}

/// Downloads one object to its file. Returns its digest, the digest in its metadata, and its mode.
async fn write_object(
    blob: &RemoteBlob,
    job: &ObjectJob,
    arrived: &ByteProgress,
) -> Result<(Digest, Option<Digest>, Option<u32>), FetchError> {
    let disk = |source| FetchError::Disk { path: job.to.clone(), source };
    let mut file = tokio::fs::File::create_new(&job.to).await.map_err(disk)?;
    let part = fetch::open(blob, 0, job.size.max(1), None).await?;
    if part.total != job.size {
        return Err(FetchError::Length { announced: part.total, expected: job.size });
    }
    let (recorded, mode, etag) = (part.digest, job.mode.or(part.mode), part.etag.clone());
    // Other clients record a SHA-256.
    let algorithm = job.digest.or(recorded).map(|digest| digest.algorithm());
    let mut hasher = DigestHasher::new(algorithm.unwrap_or(DigestAlgorithm::Blake3));
    let mut reader = RangeReader::new(blob, Some(part), 0..job.size, job.size, etag);
    while let Some(bytes) = reader.next().await? {
        hasher.update(&bytes);
        file.write_all(&bytes).await.map_err(disk)?;
        arrived(bytes.len() as u64);
    }
    file.flush().await.map_err(disk)?;
    set_mode(&job.to, mode).map_err(disk)?;
    Ok((hasher.finish(), recorded, mode))
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: Option<u32>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(mode) = mode else { return Ok(()) };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & 0o777))
}

#[cfg(not(unix))]
fn set_mode(_path: &Path, _mode: Option<u32>) -> io::Result<()> {
    Ok(())
}
