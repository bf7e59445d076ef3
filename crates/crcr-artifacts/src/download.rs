//! The download: find, check trust, fetch, verify, unpack, publish, in this order. Nothing is visible
//! at the destination before the last step.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::task::spawn_blocking;

use crate::blob_file::BlobFile;
use crate::digest::Digest;
use crate::fetch::{self, ByteProgress, FetchedBlob};
use crate::find::{
    self, ArtifactLocation, ArtifactSelection, ArtifactSources, FoundArtifact, SourceRun,
};
use crate::locator::{ArchiveFormat, ArtifactTrust};
use crate::objects;
use crate::paths;
use crate::publish::{self, StagingFolder};
use crate::store::github::download::rest_error;
use crate::store::github::upload::is_archive_type;
use crate::trust;
use crate::unpack::{self, OnCollision, StagedFiles, UnpackCounts, UnpackPolicy};

/// Artifacts are fetched in parallel and unpacked one after the other.
const PARALLEL_FETCHES: usize = 4;

pub struct DownloadRequest {
    pub run: SourceRun,
    pub select: ArtifactSelection,
    pub destination: PathBuf,
    /// Whether several artifacts go into one folder, instead of a folder each.
    pub merge: bool,
    pub on_collision: OnCollision,
    /// Whether the event has rights that the artifact's author may not have; trust is checked then.
    pub privileged: bool,
    /// Whether a fork's artifact is accepted in a privileged event.
    pub allow_fork: bool,
    /// Whether a digest other than the recorded one is a failure.
    pub digest_must_match: bool,
    /// Whether archives are kept packed.
    pub keep_archives: bool,
    /// Called once with the bytes of all artifacts, as far as they are known.
    pub total: Box<dyn Fn(u64) + Send + Sync>,
    pub arrived: ByteProgress,
}

#[derive(Debug)]
pub struct DownloadResult {
    pub artifacts: Vec<DownloadedArtifact>,
}

#[derive(Debug)]
pub struct DownloadedArtifact {
    pub found: FoundArtifact,
    pub digest: Digest,
    pub size: u64,
    pub unpacked: UnpackCounts,
    /// GitHub's record of the code that made it; `None` where trust isn't checked.
    pub trust: Option<ArtifactTrust>,
    /// How its digest differs, if that is allowed.
    pub mismatch: Option<String>,
}

/// After any of these, nothing is visible at the destination.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(transparent)]
    Find(#[from] find::FindError),
    #[error("whether a fork made the artifact can't be checked without a token")]
    TrustUnknown,
    #[error("`{name}` is refused: {why}")]
    Trust { name: String, why: trust::TrustRefusal },
    #[error("`{name}` can't be fetched: {source}")]
    Fetch { name: String, source: fetch::FetchError },
    #[error("`{name}` can't be fetched: {source}")]
    Objects { name: String, source: objects::ObjectsError },
    #[error("`{name}` isn't what was uploaded: {why}")]
    Digest { name: String, why: String },
    #[error("`{name}` can't be unpacked: {source}")]
    Unpack { name: String, source: unpack::UnpackError },
    #[error("`{path}` is in two artifacts, `{first}` and `{second}`")]
    Collision { path: String, first: String, second: String },
    #[error(transparent)]
    Publish(#[from] publish::PublishError),
}

impl DownloadError {
    /// Whether the disk is full, or the file is too large for it.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Fetch { source: fetch::FetchError::Disk { source, .. }, .. }
            | Self::Objects {
                source:
                    objects::ObjectsError::Fetch {
                        source: fetch::FetchError::Disk { source, .. }, ..
                    },
                ..
            }
            | Self::Publish(publish::PublishError::Io { source, .. }) => {
                unpack::is_disk_full(source)
            }
            Self::Unpack { source, .. }
            | Self::Objects { source: objects::ObjectsError::Unpack(source), .. } => {
                source.is_disk_full()
            }
            _ => false,
        }
    }
}

/// Downloads all of `request`, or nothing.
pub async fn download(
    sources: &ArtifactSources,
    request: &DownloadRequest,
) -> Result<DownloadResult, DownloadError> {
    let found = sources.find(&request.run, &request.select).await?;
    let trust = check_trust(sources, request, &found).await?;
    (request.total)(found.iter().filter_map(|one| one.size).sum());

    // A single artifact goes to the destination itself, as merged ones do.
    let in_folders = found.len() > 1 && !request.merge;
    let staging = Arc::new(StagingFolder::new(&request.destination)?);
    let policy = unpack_policy(request, trust, staging.folds_case());
    let mut stage = StagedFiles::new(staging.subfolder("stage")?, policy);

    let mut artifacts = Vec::with_capacity(found.len());
    let mut fetches = stream::iter(found.into_iter().enumerate())
        .map(|(n, found)| {
            fetch_blob(sources, request, found, staging.path().join(format!("blob-{n}")))
        })
        .buffered(PARALLEL_FETCHES);
    while let Some((found, fetched)) = fetches.try_next().await? {
        let folder = if in_folders { artifact_folder(&found)? } else { String::new() };
        let artifact = match fetched {
            Some(fetched) => {
                let zip_name = request.keep_archives.then(|| format!("{}.zip", found.name));
                let raw = raw_name(&found, &fetched).or(zip_name);
                let unpacked =
                    unpack_blob(stage, staging.clone(), found, fetched, folder, raw).await;
                let (back, artifact) =
                    unpacked.map_err(|error| name_both_artifacts(error, &artifacts))?;
                stage = back;
                artifact
            }
            None => fetch_objects(&mut stage, found, &folder, request)
                .await
                .map_err(|error| name_both_artifacts(error, &artifacts))?,
        };
        artifacts.push(DownloadedArtifact { trust, ..artifact });
    }
    drop(fetches);

    let name = || artifacts.last().map(|artifact| artifact.found.name.clone()).unwrap_or_default();
    let root = stage.finish().map_err(|source| DownloadError::Unpack { name: name(), source })?;
    staging.publish(&root)?;
    Ok(DownloadResult { artifacts })
}

fn unpack_policy(
    request: &DownloadRequest,
    trust: Option<ArtifactTrust>,
    folds_case: bool,
) -> UnpackPolicy {
    // A run of our own code may have made a sparse file or a disk image, which compresses at any ratio.
    let is_ours = request.run.own || trust == Some(ArtifactTrust::SameRepo);
    let limits = unpack::UnpackLimits::default();
    let ratio = if is_ours && !request.privileged { u64::MAX } else { limits.ratio };
    UnpackPolicy {
        // Whoever allows a fork's artifact in another event has rights of its own, too.
        privileged: request.privileged || trust == Some(ArtifactTrust::Fork),
        limits: unpack::UnpackLimits { ratio, ..limits },
        on_collision: request.on_collision,
        folds_case,
    }
}

/// The error of a path that one of `unpacked` holds already, with the names of both artifacts.
fn name_both_artifacts(error: DownloadError, unpacked: &[DownloadedArtifact]) -> DownloadError {
    use objects::ObjectsError;
    use unpack::UnpackError::Taken;
    match error {
        DownloadError::Unpack { name, source: Taken { path, earlier } }
        | DownloadError::Objects { name, source: ObjectsError::Unpack(Taken { path, earlier }) } => {
            let first = unpacked[earlier].found.name.clone();
            DownloadError::Collision { path, first, second: name }
        }
        other => other,
    }
}

/// For another run, and in a privileged event, asks GitHub whose code the run worked on.
async fn check_trust(
    sources: &ArtifactSources,
    request: &DownloadRequest,
    found: &[FoundArtifact],
) -> Result<Option<ArtifactTrust>, DownloadError> {
    if (!request.privileged && request.run.own) || found.is_empty() {
        return Ok(None);
    }
    let rest = sources.rest.as_ref().ok_or(DownloadError::TrustUnknown)?;
    let SourceRun { repository, id, own, .. } = &request.run;
    let run = rest.workflow_run(repository, *id).await.map_err(|error| {
        find::FindError::Store(rest_error(error, &format!("run {id} of `{repository}`")))
    })?;
    let mut trust = None;
    for one in found {
        // Outside privileged events a digest that a writer of the bucket could change is enough.
        let digest = one.independent_digest || !request.privileged;
        let verdict =
            trust::check(&run, repository, *own, one.claimed_trust(), digest, request.allow_fork);
        trust = Some(verdict.map_err(|why| DownloadError::Trust { name: one.name.clone(), why })?);
    }
    Ok(trust)
}

/// The folder of one artifact of several. Its name is untrusted.
#[expect(clippy::result_large_err, reason = "it ends the command")]
fn artifact_folder(found: &FoundArtifact) -> Result<String, DownloadError> {
    let checked = paths::check(&found.name).and_then(|path| {
        if path.contains('/') { Err(paths::PathRefusal::Parent) } else { Ok(path) }
    });
    let name = || found.name.clone();
    checked.map_err(|why| DownloadError::Unpack {
        name: name(),
        source: unpack::UnpackError::Path { path: name(), why },
    })
}

/// Fetches and verifies a blob; `None` for an artifact with an object for each file.
async fn fetch_blob(
    sources: &ArtifactSources,
    request: &DownloadRequest,
    found: FoundArtifact,
    path: PathBuf,
) -> Result<(FoundArtifact, Option<FetchedBlob>), DownloadError> {
    if found.archive == Some(ArchiveFormat::None) && matches!(found.at, ArtifactLocation::S3 { .. })
    {
        return Ok((found, None));
    }
    // Gitea, Forgejo and act list neither a digest nor the size of the blob.
    let size = found.size.filter(|_| found.digest.is_some() && request.digest_must_match);
    let mut may_fetch_again = true;
    loop {
        let blob = Arc::new(sources.blob(&request.run, &found.at));
        let fetched = fetch::fetch(&blob, &path, size, &request.arrived).await;
        let fetched =
            fetched.map_err(|source| DownloadError::Fetch { name: found.name.clone(), source })?;
        match digest_mismatch(&found, fetched.digest).filter(|_| request.digest_must_match) {
            // They may have changed on their way.
            Some(why) if may_fetch_again => {
                may_fetch_again = false;
                (sources.notice)(&format!("`{}` is fetched once more: {why}", found.name));
            }
            Some(why) => return Err(DownloadError::Digest { name: found.name, why }),
            None => return Ok((found, Some(fetched))),
        }
    }
}

/// Tells the unpacking thread to stop when the future that waits for it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Unpacks a blob, or stores it packed under the name `raw`, on a blocking thread.
async fn unpack_blob(
    mut stage: StagedFiles,
    staging: Arc<StagingFolder>,
    found: FoundArtifact,
    fetched: FetchedBlob,
    folder: String,
    raw: Option<String>,
) -> Result<(StagedFiles, DownloadedArtifact), DownloadError> {
    let cancel = CancelOnDrop(Arc::new(AtomicBool::new(false)));
    let flag = cancel.0.clone();
    let name = found.name.clone();
    let FetchedBlob { path, disk, digest, size, .. } = fetched;
    let work = spawn_blocking(move || {
        let unpacked = match raw {
            Some(raw) => take_raw(&mut stage, disk, &raw, &folder, size),
            None => stage.unpack(disk, &folder, &flag),
        };
        // Free the space for the next artifact. If the file became an entry, it is gone already.
        let _ = fs::remove_file(path);
        // The thread keeps the folder alive until it has finished with it.
        drop(staging);
        unpacked.map(|unpacked| (stage, unpacked))
    });
    let done = work.await.unwrap_or(Err(unpack::UnpackError::Cancelled));
    let (stage, unpacked) = done.map_err(|source| DownloadError::Unpack { name, source })?;
    let mismatch = digest_mismatch(&found, digest);
    Ok((stage, DownloadedArtifact { found, digest, size, unpacked, trust: None, mismatch }))
}

async fn fetch_objects(
    stage: &mut StagedFiles,
    found: FoundArtifact,
    folder: &str,
    request: &DownloadRequest,
) -> Result<DownloadedArtifact, DownloadError> {
    let ArtifactLocation::S3 { store, key } = &found.at else {
        unreachable!("only S3 has artifacts of several objects")
    };
    let fetched = objects::fetch(store, key, &found.files, stage, folder, &request.arrived).await;
    let fetched =
        fetched.map_err(|source| DownloadError::Objects { name: found.name.clone(), source })?;
    let mismatch = fetched
        .mismatch
        .map(|one| one.to_string())
        .or_else(|| digest_mismatch(&found, fetched.digest));
    if let Some(why) = mismatch.clone().filter(|_| request.digest_must_match) {
        return Err(DownloadError::Digest { name: found.name, why });
    }
    let unpacked = UnpackCounts { files: fetched.files, bytes: fetched.bytes };
    let (digest, size) = (fetched.digest, fetched.bytes);
    Ok(DownloadedArtifact { found, digest, size, unpacked, trust: None, mismatch })
}

fn digest_mismatch(found: &FoundArtifact, digest: Digest) -> Option<String> {
    let expected = found.digest.filter(|expected| *expected != digest)?;
    Some(format!("its digest is {digest}, not {expected}"))
}

/// The file name of a blob that isn't a zip but a single file. At GitHub the content type tells them
/// apart, as the official client sets it.
fn raw_name(found: &FoundArtifact, fetched: &FetchedBlob) -> Option<String> {
    if found.archive == Some(ArchiveFormat::Zip) {
        return None;
    }
    // Nothing can be no zip. Storages refuse a range of it, and tell no content type then.
    let is_archive = fetched.content_type.as_deref().is_none_or(is_archive_type);
    if found.archive.is_none() && fetched.size > 0 && is_archive {
        return None;
    }
    Some(fetched.file_name.clone().unwrap_or_else(|| found.name.clone()))
}

fn take_raw(
    stage: &mut StagedFiles,
    blob: BlobFile,
    name: &str,
    folder: &str,
    size: u64,
) -> Result<UnpackCounts, unpack::UnpackError> {
    let reserved = stage.reserve(&[name.to_owned()], folder)?;
    for path in reserved {
        blob.copy_to(&path).map_err(|source| unpack::UnpackError::Write {
            path: path.display().to_string(),
            source,
        })?;
    }
    Ok(UnpackCounts { files: 1, bytes: size })
}

/// A new folder below `parent`, for a privileged event without a destination.
pub fn fresh_folder(parent: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(parent)?;
    Ok(tempfile::Builder::new().prefix("crcr-artifact-").tempdir_in(parent)?.keep())
}
