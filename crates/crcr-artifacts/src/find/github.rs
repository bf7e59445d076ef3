//! Finds artifacts in GitHub's list of a run: from the artifact service for the job's own run, from
//! the REST API for others.

use std::io::Write as _;

use jiff::Timestamp;

use super::{
    ArtifactLocation, ArtifactSources, FindError, FoundArtifact, SourceRun, artifacts_text,
};
use crate::blob::RemoteBlob;
use crate::digest::Digest;
use crate::fetch::{self, RangeReader};
use crate::locator::{self, ARTIFACT_PREFIX, Locator, StoredPlace, is_locator_artifact};
use crate::store::github::download::{UrlBlob, UrlSigner, rest_error};
use crate::zip::read::{EntryKind, ReadBuffers, ZipReadError, ZipReader};

/// A locator and the zip around it.
const MAX_LOCATOR_BLOB: u64 = locator::MAX_BYTES as u64 + 64 * 1024;

/// An artifact in GitHub's list.
#[derive(Debug, Clone)]
pub(crate) struct ListedArtifact {
    pub(crate) name: String,
    at: ArtifactLocation,
    digest: Option<Digest>,
    size: u64,
    pub(crate) created: Option<Timestamp>,
    /// Past its retention: GitHub has deleted the blob.
    pub(crate) expired: bool,
}

impl ArtifactSources {
    /// The run's artifacts; `None` without a token.
    pub(crate) async fn listed(
        &self,
        run: &SourceRun,
    ) -> Result<Option<Vec<ListedArtifact>>, FindError> {
        if let Some(store) = self.service.as_ref().filter(|_| run.own) {
            let list = match store.service().list(None).await {
                Err(error) if store.service().is_missing(&error) => return Ok(None),
                list => list,
            };
            let list = list.map_err(|error| store.error(error, "list of the run"))?;
            let listed = list.into_iter().map(|artifact| ListedArtifact {
                name: artifact.name.clone(),
                digest: artifact.digest.as_deref().and_then(|text| text.parse().ok()),
                size: artifact.size,
                created: artifact.created_at,
                expired: false,
                at: ArtifactLocation::Service(Box::new(artifact)),
            });
            return Ok(Some(listed.collect()));
        }
        let Some(rest) = &self.rest else { return Ok(None) };
        let list = rest.run_artifacts(&run.repository, run.id).await;
        let what = format!("run {} of `{}`", run.id, run.repository);
        let listed = list.map_err(|error| rest_error(error, &what))?.into_iter();
        let listed = listed.map(|artifact| ListedArtifact {
            name: artifact.name,
            at: ArtifactLocation::Rest(artifact.id),
            digest: artifact.digest.as_deref().and_then(|text| text.parse().ok()),
            size: artifact.size_in_bytes,
            created: artifact.created_at,
            expired: artifact.expired,
        });
        Ok(Some(listed.collect()))
    }

    /// The newer of the listed artifact of this name and the artifact that a listed locator of this
    /// name points to.
    pub(crate) async fn newest(
        &self,
        run: &SourceRun,
        listed: &[ListedArtifact],
        name: &str,
    ) -> Result<Option<FoundArtifact>, FindError> {
        let last = |wanted: &str| {
            let named = listed.iter().filter(|one| one.name == wanted && !one.expired);
            named.max_by_key(|one| (one.created, one.at.artifact_id()))
        };
        let artifact = last(name).map(|one| one.found());
        let Some(hint) = last(&format!("{ARTIFACT_PREFIX}{name}")) else { return Ok(artifact) };
        let locator = self.read_locator(run, hint).await?;
        if let Some(artifact) = &artifact
            && artifact.created.is_some_and(|created| created > locator.created)
        {
            return Ok(Some(artifact.clone()));
        }
        // A later attempt may have stored to S3 but not been allowed to replace this locator.
        if let (StoredPlace::S3 { .. }, Some(bucket)) = (&locator.place, &self.bucket)
            && let Ok(Ok(there)) = bucket.by_name(run, name).await
            && there.run_attempt > Some(locator.run_attempt)
        {
            return Ok(Some(there));
        }
        let listed = Some(listed);
        Box::pin(self.follow_locator(run, &locator, name, true, listed)).await.map(Some)
    }

    /// The artifacts with these ids. A warning names the ids that the run doesn't have.
    pub(crate) async fn by_ids(
        &self,
        run: &SourceRun,
        ids: &[u64],
    ) -> Result<Vec<FoundArtifact>, FindError> {
        let listed = self.listed(run).await?;
        let listed = listed.ok_or_else(|| FindError::NoNumbers(numbers_text(ids.iter())))?;
        let (found, unknown) = pick(run, &listed, ids)?;
        if !unknown.is_empty() {
            (self.warning)(&format!("run {} has no artifact with {unknown}", run.id));
        }
        Ok(found)
    }

    /// Reads the locator in a GitHub artifact, with or without a zip around it.
    async fn read_locator(
        &self,
        run: &SourceRun,
        hint: &ListedArtifact,
    ) -> Result<Locator, FindError> {
        let refused = |why: String| FindError::Locator(format!("`{}`: {why}", hint.name));
        let blob = self.blob(run, &hint.at);
        let broken = |error: fetch::FetchError| match error {
            fetch::FetchError::Store(error) => FindError::Store(error),
            error => refused(error.to_string()),
        };
        let part = fetch::open(&blob, 0, MAX_LOCATOR_BLOB, None).await.map_err(broken)?;
        let (total, etag) = (part.total, part.etag.clone());
        if total > MAX_LOCATOR_BLOB {
            return Err(refused(format!("it has more than {MAX_LOCATOR_BLOB} bytes")));
        }
        let mut reader = RangeReader::new(&blob, Some(part), 0..total, total, etag);
        let mut bytes = Vec::new();
        while let Some(chunk) = reader.next().await.map_err(broken)? {
            bytes.extend_from_slice(&chunk);
        }
        if let Some(digest) = hint.digest.filter(|digest| *digest != Digest::of(&bytes)) {
            return Err(refused(format!("its digest isn't {digest}")));
        }
        if bytes.starts_with(b"PK") {
            bytes = only_file(&bytes).map_err(|error| refused(error.to_string()))?;
        }
        Locator::parse(&bytes).map_err(|error| refused(error.to_string()))
    }

    pub(crate) fn blob(&self, run: &SourceRun, at: &ArtifactLocation) -> RemoteBlob {
        let signer = match (at, &self.service, &self.rest) {
            (ArtifactLocation::S3 { store, key }, ..) => {
                let (store, key) = (store.clone(), key.clone());
                return RemoteBlob::S3(crate::store::s3::download::S3Blob { store, key });
            }
            (ArtifactLocation::Service(artifact), Some(store), _) => {
                UrlSigner::Run { store: store.clone(), artifact: artifact.clone() }
            }
            (ArtifactLocation::Rest(id), _, Some(actions)) => UrlSigner::Rest {
                actions: actions.clone(),
                repository: run.repository.clone(),
                id: *id,
            },
            _ => unreachable!("what a source has found, it can read"),
        };
        RemoteBlob::Url(UrlBlob::new(signer, self.mask.clone()))
    }
}

impl ListedArtifact {
    pub(crate) fn found(&self) -> FoundArtifact {
        FoundArtifact {
            digest: self.digest,
            independent_digest: self.digest.is_some(),
            size: Some(self.size).filter(|size| *size > 0),
            created: self.created,
            ..FoundArtifact::new(&self.name, self.at.clone())
        }
    }
}

/// The artifacts with these ids, and a text that names the missing ids. Fails if all are missing.
pub(crate) fn pick(
    run: &SourceRun,
    listed: &[ListedArtifact],
    ids: &[u64],
) -> Result<(Vec<FoundArtifact>, String), FindError> {
    let find = |id: &u64| {
        let mut artifacts =
            listed.iter().filter(|one| !is_locator_artifact(&one.name) && !one.expired);
        artifacts.find_map(|one| Some(one.found()).filter(|one| one.artifact_id() == Some(*id)))
    };
    let found: Vec<_> = ids.iter().filter_map(find).collect();
    let unknown = numbers_text(ids.iter().filter(|id| find(id).is_none()));
    let expired = |one: &&ListedArtifact| {
        one.expired && ids.iter().any(|id| one.at.artifact_id() == Some(*id))
    };
    if let Some(expired) = listed.iter().find(expired).filter(|_| found.is_empty()) {
        return Err(FindError::Expired { name: expired.name.clone() });
    }
    if found.is_empty() && !unknown.is_empty() {
        let (id, there) = (run.id, artifacts_text(listed.len()));
        let searched = vec![format!("GitHub's list of run {id} of `{}` ({there})", run.repository)];
        return Err(FindError::Missing { what: format!("artifact with {unknown}"), searched });
    }
    Ok((found, unknown))
}

/// `the number 1`, `the numbers 1, 2`; empty for none.
fn numbers_text<'a>(ids: impl Iterator<Item = &'a u64>) -> String {
    let ids: Vec<_> = ids.map(u64::to_string).collect();
    match ids.as_slice() {
        [] => String::new(),
        [one] => format!("the number {one}"),
        several => format!("the numbers {}", several.join(", ")),
    }
}

/// The content of the first file of a locator's zip.
fn only_file(bytes: &[u8]) -> Result<Vec<u8>, ZipReadError> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    let zip = ZipReader::open(file)?;
    let mut content = Vec::new();
    let mut seen = false;
    zip.entries(|entry| {
        if std::mem::replace(&mut seen, true) || entry.kind != EntryKind::File {
            return Ok(());
        }
        if entry.size > locator::MAX_BYTES as u64 {
            return Err(ZipReadError::Mismatch(entry.path));
        }
        zip.read_content(&entry, &mut ReadBuffers::default(), |bytes| content.write_all(bytes))
    })?;
    Ok(content)
}
