//! An upload from top to bottom: the store by plan, the other one when it can't, the locators.

use std::time::Duration;

use jiff::Timestamp;
use secrecy::SecretString;

use crate::choose::{StorePlan, StoreReason};
use crate::layout;
use crate::locator::{ArchiveFormat, ArtifactTrust, Locator, StoredPlace, VERSION};
use crate::source::{StoredArtifact, UploadSource};
use crate::store::StoreError;
use crate::store::github::GitHubStore;
use crate::store::s3::{self, S3Config, S3Store};

#[derive(Debug, Clone)]
pub struct UploadRun {
    /// `owner/repo`.
    pub repository: String,
    pub run_id: u64,
    /// Whose code made the artifact.
    pub trust: ArtifactTrust,
}

/// The stores, as far as they are there.
pub struct UploadStores {
    pub s3: Option<S3Config>,
    pub folder: String,
    /// GitHub, or why it can't be used.
    pub github: Result<GitHubStore, String>,
    /// Whether the locator becomes a GitHub artifact of its own.
    pub publish_locator: bool,
    /// How long the archive on S3 can be downloaded from an address without credentials.
    pub presign: Option<Duration>,
}

/// An artifact that is stored.
#[derive(Debug)]
pub struct UploadResult {
    /// Why it is where it is.
    pub reason: StoreReason,
    pub stored: StoredArtifact,
    pub locator: Locator,
    /// Why S3 didn't take it, where it was asked and GitHub has the artifact.
    pub refusal: Option<StoreError>,
    /// Where anybody who has this address can download the archive from S3, for a time.
    pub download_url: Option<SecretString>,
    /// What went wrong on the way without stopping anything.
    pub warnings: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The only store there is, or the files themselves.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// S3 can't, and nothing else is allowed.
    #[error("{}, and `fallback` is `never`", without(.0))]
    Impossible(StoreReason),
    /// GitHub is where it would go, and it can't be used.
    #[error("GitHub's store can't be used: {why}")]
    NoGitHub {
        why: String,
        /// What S3 said before.
        #[source]
        s3: Option<StoreError>,
    },
    #[error("neither store took the artifact; S3: {s3}; GitHub: {github}")]
    Neither {
        /// What S3 said.
        s3: StoreError,
        github: StoreError,
    },
}

/// Why S3 isn't even asked.
fn without(reason: &StoreReason) -> &'static str {
    match reason {
        StoreReason::NoBucket => "no `s3-bucket` is given",
        _ => "there are no credentials for S3",
    }
}

impl UploadError {
    /// The output `reason`, where one of its words fits.
    pub fn reason(&self) -> Option<StoreReason> {
        match self {
            Self::Impossible(reason) => Some(*reason),
            Self::Store(StoreError::Quota { .. }) => Some(StoreReason::Quota),
            Self::Store(error) | Self::Neither { s3: error, .. } => fallback_reason(error),
            Self::NoGitHub { s3, .. } => s3.as_ref().and_then(fallback_reason),
        }
    }
}

/// Stores the artifact where `plan` says; on S3 with its locator beside it.
pub async fn upload(
    source: &UploadSource,
    plan: StorePlan,
    stores: &UploadStores,
    run: &UploadRun,
    now: impl Fn() -> Timestamp,
) -> Result<UploadResult, UploadError> {
    let mut uploaded = Box::pin(store(source, plan, stores, run, now)).await?;
    for path in source.grown.paths() {
        let path = path.strip_prefix(&source.root).unwrap_or(&path).display().to_string();
        let why = "it grew while it was uploaded: what it held before is stored";
        uploaded.warnings.push(format!("`{}`: {why}", path.escape_debug()));
    }
    Ok(uploaded)
}

async fn store(
    source: &UploadSource,
    plan: StorePlan,
    stores: &UploadStores,
    run: &UploadRun,
    now: impl Fn() -> Timestamp,
) -> Result<UploadResult, UploadError> {
    let mut warnings = Vec::new();
    let (fallback, reason) = match plan {
        StorePlan::S3ThenGitHub => (true, StoreReason::Ok),
        StorePlan::S3Only => (false, StoreReason::Ok),
        StorePlan::GitHub(reason) => (true, reason),
        StorePlan::Impossible(reason) => return Err(UploadError::Impossible(reason)),
    };
    let mut refusal = None;
    let mut reason = reason;
    if let (StoreReason::Ok, Some(config)) = (reason, &stores.s3) {
        match to_s3(source, config, stores, run, &now, &mut warnings).await {
            Ok((stored, locator, download_url)) => {
                publish(stores, source, &stored, &locator, &mut warnings).await;
                return Ok(UploadResult {
                    reason,
                    stored,
                    locator,
                    refusal,
                    download_url,
                    warnings,
                });
            }
            Err(error) => match fallback_reason(&error) {
                Some(why) if fallback => (reason, refusal) = (why, Some(error)),
                _ => return Err(error.into()),
            },
        }
    }
    let github = match &stores.github {
        Ok(github) => github,
        Err(why) => return Err(UploadError::NoGitHub { why: why.clone(), s3: refusal }),
    };
    let (stored, refusal) = match (github.put(source).await, refusal) {
        (Ok(stored), refusal) => (stored, refusal),
        (Err(github), Some(s3)) if !would_fail_anywhere(&github) => {
            return Err(UploadError::Neither { s3, github });
        }
        (Err(error), _) => return Err(error.into()),
    };
    let place = StoredPlace::GitHub { artifact_id: stored.artifact_id.unwrap_or_default() };
    let locator = locator(source, &stored, place, run, now());
    publish(stores, source, &stored, &locator, &mut warnings).await;
    Ok(UploadResult { reason, stored, locator, refusal, download_url: None, warnings })
}

async fn to_s3(
    source: &UploadSource,
    config: &S3Config,
    stores: &UploadStores,
    run: &UploadRun,
    now: &impl Fn() -> Timestamp,
    warnings: &mut Vec<String>,
) -> Result<(StoredArtifact, Locator, Option<SecretString>), StoreError> {
    let folder = stores.folder.as_str();
    let mut bucket = S3Store::connect(config.clone()).await?;
    let (stored, before) = match bucket.put(source, folder).await {
        Err(StoreError::WrongRegion { asked, there, .. }) => {
            bucket = bucket.in_region(there).await?;
            warnings.push(format!(
                "the bucket `{}` is in `{}`, not in `{asked}`: correct `aws-region`",
                config.bucket,
                bucket.region(),
            ));
            bucket.put(source, folder).await?
        }
        other => other?,
    };
    if stored.tag_refused {
        let why = "the bucket refused the tag `retention-days`, so no lifecycle rule will delete \
                   the artifact: the credentials need `s3:PutObjectTagging`";
        warnings.push(why.to_owned());
    }
    warnings.extend(stored.leftover_warning.clone());
    let place = StoredPlace::S3 {
        bucket: config.bucket.clone(),
        key: match stored.archive {
            ArchiveFormat::Zip => layout::archive_key(folder),
            ArchiveFormat::None => format!("{folder}/"),
        },
        endpoint: config.endpoint.as_ref().map(ToString::to_string),
        region: Some(bucket.region().to_owned()),
    };
    let locator = locator(source, &stored, place, run, now());
    let (told, ()) = tokio::join!(
        bucket.put_locator(&locator, folder, &before),
        bucket.abort_unfinished(source, folder)
    );
    told?;
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
    Ok((stored, locator, download_url))
}

/// Whether GitHub may take what S3 didn't, and the reason that is given then.
fn fallback_reason(error: &StoreError) -> Option<StoreReason> {
    match error {
        StoreError::Denied { store: s3::STORE, .. } | StoreError::WrongRegion { .. } => {
            Some(StoreReason::S3Denied)
        }
        StoreError::MissingBucket(_) => Some(StoreReason::S3MissingBucket),
        StoreError::Unreachable { store: s3::STORE, .. } => Some(StoreReason::S3Unreachable),
        StoreError::Refused { store: s3::STORE, .. }
        | StoreError::NotFound { store: s3::STORE, .. } => Some(StoreReason::S3Refused),
        _ => None,
    }
}

/// Whether the other store would have failed in the same way.
fn would_fail_anywhere(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Conflict { .. }
            | StoreError::Source(_)
            | StoreError::Stopped
            | StoreError::Quota { .. }
    )
}

fn locator(
    source: &UploadSource,
    stored: &StoredArtifact,
    place: StoredPlace,
    run: &UploadRun,
    created: Timestamp,
) -> Locator {
    Locator {
        version: VERSION,
        name: source.name.clone(),
        repository: run.repository.clone(),
        run_id: run.run_id,
        run_attempt: source.attempt,
        job: source.job.clone(),
        leg: source.leg.clone(),
        check_run_id: source.check_run_id,
        place,
        archive: stored.archive,
        digest: stored.digest,
        size: stored.size,
        file_count: source.entries.len() as u64,
        files: stored.files.clone(),
        created,
        trust: run.trust,
    }
}

/// Makes the locator an artifact of GitHub's, where that is asked for. The artifact itself is stored
/// by then, so a failure is a warning.
async fn publish(
    stores: &UploadStores,
    source: &UploadSource,
    stored: &StoredArtifact,
    locator: &Locator,
    warnings: &mut Vec<String>,
) {
    if !stores.publish_locator {
        return;
    }
    let why = match &stores.github {
        Ok(github) => match github.publish_locator(locator, source).await {
            Ok(()) => return,
            // It was published with the artifact, which was there already.
            Err(StoreError::Conflict { .. }) if stored.already_stored => return,
            Err(error) => error.to_string(),
        },
        Err(why) => why.clone(),
    };
    warnings.push(format!("the locator isn't published: {why}"));
}
