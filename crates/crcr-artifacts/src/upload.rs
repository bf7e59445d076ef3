//! An upload: the planned store first, the other one if that fails, then the locators.

use std::time::Duration;

use jiff::Timestamp;
use secrecy::SecretString;

use crate::choose::{StorePlan, StoreReason};
use crate::layout;
use crate::locator::{ArchiveFormat, ArtifactTrust, Locator, StoredPlace, VERSION};
use crate::source::{StoredArtifact, UploadSource};
use crate::store::github::GitHubStore;
use crate::store::s3::{self, S3Config, S3Store};
use crate::store::{ArtifactStoreError, MAX_REPLACED};

pub struct UploadStores {
    /// The bucket, also if the artifact goes to GitHub: another job may have stored the name there.
    pub s3: Option<S3Config>,
    /// The folder of the artifact in the bucket.
    pub folder: String,
    /// GitHub, or why it can't be used.
    pub github: Result<GitHubStore, String>,
    /// Whether to store the locator as a GitHub artifact of its own, too.
    pub publish_locator: bool,
    /// The most bytes of files that go to GitHub when S3 fails.
    pub fallback_max_bytes: Option<u64>,
    /// How long the presigned URL of the archive on S3 is to be valid.
    pub presign: Option<Duration>,
}

#[derive(Debug)]
pub struct UploadResult {
    pub reason: StoreReason,
    pub stored: StoredArtifact,
    pub locator: Locator,
    /// Why S3 refused the artifact, if GitHub has it instead.
    pub refusal: Option<ArtifactStoreError>,
    /// A presigned URL of the archive on S3.
    pub download_url: Option<SecretString>,
    pub warnings: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error(transparent)]
    Store(#[from] ArtifactStoreError),
    #[error("{}, and `fallback` is `never`", why_not_s3(.0))]
    Impossible(StoreReason),
    #[error(
        "S3: {s3}; the files have {size} bytes, and `fallback-max-size` lets {limit} go to GitHub"
    )]
    TooLargeToFallBack { s3: ArtifactStoreError, size: u64, limit: u64 },
    #[error("GitHub's store can't be used: {why}")]
    NoGitHub {
        why: String,
        #[source]
        s3: Option<ArtifactStoreError>,
    },
    #[error("neither store took the artifact; S3: {s3}; GitHub: {github}")]
    Neither { s3: ArtifactStoreError, github: ArtifactStoreError },
}

fn why_not_s3(reason: &StoreReason) -> &'static str {
    match reason {
        StoreReason::NoBucket => "no `s3-bucket` is given",
        _ => "there are no credentials for S3",
    }
}

impl UploadError {
    /// The output `reason`, if one of its values fits.
    pub fn reason(&self) -> Option<StoreReason> {
        match self {
            Self::Impossible(reason) => Some(*reason),
            Self::Store(ArtifactStoreError::Quota { .. }) => Some(StoreReason::Quota),
            Self::Store(error)
            | Self::Neither { s3: error, .. }
            | Self::TooLargeToFallBack { s3: error, .. } => fallback_reason(error),
            Self::NoGitHub { s3, .. } => s3.as_ref().and_then(fallback_reason),
        }
    }
}

/// Stores the artifact according to `plan`; on S3 together with its locator.
pub async fn upload(
    source: &UploadSource,
    plan: StorePlan,
    stores: &UploadStores,
    now: impl Fn() -> Timestamp,
) -> Result<UploadResult, UploadError> {
    let mut uploaded = Box::pin(store(source, plan, stores, now)).await?;
    // Of two jobs that store a name at the same time, the later one sees the other's artifact only now.
    match uploaded.locator.place {
        StoredPlace::S3 { .. } => refuse_copy_at_github(source, stores).await?,
        StoredPlace::GitHub { .. } => refuse_copy_on_s3(source, stores, &uploaded.stored).await?,
    }
    uploaded.warnings.extend(delete_replaced(source, stores, &uploaded).await);
    uploaded.warnings.extend(publish_locator(source, stores, &uploaded).await);
    for path in source.grown.paths() {
        let path = path.strip_prefix(&source.root).unwrap_or(&path).display().to_string();
        let why = "it grew during the upload; its content before that is stored";
        uploaded.warnings.push(format!("`{}`: {why}", path.escape_debug()));
    }
    Ok(uploaded)
}

async fn store(
    source: &UploadSource,
    plan: StorePlan,
    stores: &UploadStores,
    now: impl Fn() -> Timestamp,
) -> Result<UploadResult, UploadError> {
    let (fallback, mut reason) = match plan {
        StorePlan::S3ThenGitHub => (true, StoreReason::Ok),
        StorePlan::S3Only => (false, StoreReason::Ok),
        StorePlan::GitHub(reason) => (true, reason),
        StorePlan::Impossible(reason) => return Err(UploadError::Impossible(reason)),
    };
    let mut refusal = None;
    if let (StoreReason::Ok, Some(config)) = (reason, &stores.s3) {
        refuse_copy_at_github(source, stores).await?;
        match Box::pin(store_to_s3(source, config, stores, &now)).await {
            Ok(uploaded) => return Ok(uploaded),
            Err(error) => match fallback_reason(&error) {
                Some(why) if fallback => (reason, refusal) = (why, Some(error)),
                _ => return Err(error.into()),
            },
        }
    }
    let size = source.raw_size();
    if let Some(limit) = stores.fallback_max_bytes.filter(|limit| size > *limit)
        && let Some(s3) = refusal.take()
    {
        return Err(UploadError::TooLargeToFallBack { s3, size, limit });
    }
    let github = match &stores.github {
        Ok(github) => github,
        Err(why) => return Err(UploadError::NoGitHub { why: why.clone(), s3: refusal }),
    };
    let stored = match (github.put(source).await, refusal.take()) {
        (Ok(stored), s3) => {
            refusal = s3;
            stored
        }
        (Err(github), Some(s3)) if !would_fail_anywhere(&github) => {
            return Err(UploadError::Neither { s3, github });
        }
        (Err(error), _) => return Err(error.into()),
    };
    let place = StoredPlace::GitHub { artifact_id: stored.artifact_id.unwrap_or_default() };
    let locator = locator(source, &stored, place, now());
    let warnings = retention_warning(source).into_iter().collect();
    Ok(UploadResult { reason, stored, locator, refusal, download_url: None, warnings })
}

/// A download asks GitHub first. What another job of the attempt stored there while it had no S3 would be found in place
/// of this artifact. Of several attempts a download takes the newest.
async fn refuse_copy_at_github(
    source: &UploadSource,
    stores: &UploadStores,
) -> Result<(), ArtifactStoreError> {
    match &stores.github {
        Ok(github) if !source.overwrite && source.job.run_attempt == 1 => {
            github.refuse_another_copy(source).await
        }
        _ => Ok(()),
    }
}

/// What another job of the run has stored on S3 would no longer be found.
async fn refuse_copy_on_s3(
    source: &UploadSource,
    stores: &UploadStores,
    stored: &StoredArtifact,
) -> Result<(), ArtifactStoreError> {
    // No job of a fork's run has credentials for S3.
    let may_be_there = !source.overwrite && source.job.trust == ArtifactTrust::SameRepo;
    let Some(config) = stores.s3.as_ref().filter(|_| may_be_there) else { return Ok(()) };
    let looked = S3Store::refuse_another_copy(config, source, &stores.folder, stored).await;
    if looked.is_err()
        && !stored.already_stored
        && let Ok(github) = &stores.github
    {
        github.delete_own(&source.name).await?;
    }
    looked
}

/// A download asks GitHub first. An earlier upload may have fallen back to it, and what that one stored
/// mustn't be found any more once `overwrite` has replaced it on S3.
async fn delete_replaced(
    source: &UploadSource,
    stores: &UploadStores,
    uploaded: &UploadResult,
) -> Option<String> {
    let is_on_s3 = matches!(uploaded.locator.place, StoredPlace::S3 { .. });
    let github = stores.github.as_ref().ok().filter(|_| source.overwrite && is_on_s3)?;
    let error = github.delete_replaced(&source.name).await.err()?;
    let name = &source.name;
    Some(format!(
        "`{name}` can't be deleted from GitHub's store; if an earlier upload fell back to it, a download gets that one: \
         {error}"
    ))
}

fn retention_warning(source: &UploadSource) -> Option<String> {
    let (days, kept) = source.retention_days.zip(source.retention_at_github())?;
    let why = format!("is more than the {kept} days that the repository allows");
    (days > kept).then(|| format!("`retention-days` {days} {why}"))
}

async fn store_to_s3(
    source: &UploadSource,
    config: &S3Config,
    stores: &UploadStores,
    now: &impl Fn() -> Timestamp,
) -> Result<UploadResult, ArtifactStoreError> {
    let (folder, mut warnings) = (stores.folder.as_str(), Vec::new());
    let mut bucket = S3Store::connect(config.clone()).await?;
    let mut left = if source.overwrite { MAX_REPLACED } else { 0 };
    let (stored, locator) = loop {
        let (stored, before) = match bucket.put(source, folder).await {
            Err(ArtifactStoreError::WrongRegion { requested, actual, .. }) => {
                bucket = bucket.in_region(actual).await?;
                warnings.push(format!(
                    "the bucket `{}` is in `{}`, not in `{requested}`: correct `aws-region`",
                    config.bucket,
                    bucket.region(),
                ));
                bucket.put(source, folder).await?
            }
            other => other?,
        };
        let place = StoredPlace::S3 {
            bucket: config.bucket.clone(),
            key: match stored.archive {
                ArchiveFormat::Zip => layout::archive_key(folder),
                ArchiveFormat::None => format!("{folder}/"),
            },
            endpoint: config.endpoint.as_ref().map(ToString::to_string),
            region: Some(bucket.region().to_owned()),
        };
        let locator = locator(source, &stored, place, now());
        let (located, ()) = tokio::join!(
            bucket.put_locator(source, &locator, folder, &before),
            bucket.abort_unfinished(source, folder)
        );
        match located {
            // The object may be the other upload's, too, so both are written again.
            Err(ArtifactStoreError::Conflict { .. }) if left > 0 => left -= 1,
            located => {
                located?;
                break (stored, locator);
            }
        }
    };
    if stored.tag_refused {
        let why = "the bucket refused the tag `retention-days`, so no lifecycle rule will delete \
                   the artifact: the credentials need `s3:PutObjectTagging`";
        warnings.push(why.to_owned());
    }
    warnings.extend(stored.leftover_warning.clone());
    let download_url = match (&locator.place, stores.presign) {
        (StoredPlace::S3 { key, .. }, Some(validity)) if stored.archive == ArchiveFormat::Zip => {
            Some(bucket.presigned(key, validity).await?)
        }
        (_, Some(_)) => {
            warnings.push("`s3-presign` needs one archive, and `archive` is `none`".to_owned());
            None
        }
        _ => None,
    };
    let reason = StoreReason::Ok;
    Ok(UploadResult { reason, stored, locator, refusal: None, download_url, warnings })
}

/// The reason for using GitHub after this error of S3; `None` if the error is final.
fn fallback_reason(error: &ArtifactStoreError) -> Option<StoreReason> {
    match error {
        ArtifactStoreError::Denied { store: s3::STORE, .. }
        | ArtifactStoreError::WrongRegion { .. } => Some(StoreReason::S3Denied),
        ArtifactStoreError::MissingBucket(_) => Some(StoreReason::S3MissingBucket),
        ArtifactStoreError::Unreachable { store: s3::STORE, .. } => {
            Some(StoreReason::S3Unreachable)
        }
        ArtifactStoreError::Refused { store: s3::STORE, .. }
        | ArtifactStoreError::NotFound { store: s3::STORE, .. } => Some(StoreReason::S3Refused),
        _ => None,
    }
}

/// Whether the other store would have failed in the same way.
fn would_fail_anywhere(error: &ArtifactStoreError) -> bool {
    matches!(
        error,
        ArtifactStoreError::Conflict { .. }
            | ArtifactStoreError::Source(_)
            | ArtifactStoreError::Stopped
            | ArtifactStoreError::Quota { .. }
    )
}

fn locator(
    source: &UploadSource,
    stored: &StoredArtifact,
    place: StoredPlace,
    created: Timestamp,
) -> Locator {
    let job = &source.job;
    Locator {
        version: VERSION,
        name: source.name.clone(),
        repository: job.repository.clone(),
        run_id: job.run_id,
        run_attempt: job.run_attempt,
        job: job.key.clone(),
        leg: job.leg.clone(),
        check_run_id: job.check_run_id,
        place,
        archive: stored.archive,
        digest: stored.digest,
        size: stored.size,
        file_count: source.entries.len() as u64,
        files: stored.files.clone(),
        created,
        trust: job.trust,
    }
}

/// Stores the locator as a GitHub artifact, if requested. The artifact itself is stored by then, so a
/// failure is only a warning, which is returned.
async fn publish_locator(
    source: &UploadSource,
    stores: &UploadStores,
    uploaded: &UploadResult,
) -> Option<String> {
    if !stores.publish_locator {
        return None;
    }
    let why = match &stores.github {
        Ok(github) => match github.publish_locator(&uploaded.locator, source).await {
            Ok(()) => return None,
            // It was published together with the artifact, by an earlier try.
            Err(ArtifactStoreError::Conflict { .. }) if uploaded.stored.already_stored => {
                return None;
            }
            Err(error) => error.to_string(),
        },
        Err(why) => why.clone(),
    };
    Some(format!("the locator isn't published: {why}"))
}
