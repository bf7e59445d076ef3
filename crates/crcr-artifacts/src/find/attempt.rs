//! The zips of one attempt of a run, for a reader that never unpacks them.

use std::path::Path;
use std::sync::Arc;

use super::bucket::retry_in_bucket_region;
use super::{
    ArtifactBucket, ArtifactLocation, ArtifactSources, FindError, FoundArtifact, SourceRun,
    placeholder_values,
};
use crate::blob_file::BlobFile;
use crate::fetch::{self, FetchError};
use crate::layout::PlaceholderValues;
use crate::locator::ArchiveFormat;
use crate::store::ArtifactStoreError;
use crate::store::s3::S3Access;

impl ArtifactSources {
    /// The artifacts of attempt `attempt` whose names start with one of `kinds`: those called
    /// `{kind}-runattempt{N}-…` at GitHub, and in the bucket the zips in the layout's folder. First
    /// those in the bucket, each ordered by name. And the names of those at GitHub that have expired, of which
    /// nobody can know any more what is in them.
    pub async fn of_attempt(
        &self,
        run: &SourceRun,
        attempt: u32,
        kinds: &[&str],
    ) -> Result<(Vec<FoundArtifact>, Vec<String>), FindError> {
        if self.rest.is_none() && self.bucket.is_none() {
            return Err(FindError::Nowhere);
        }
        let (mut found, mut expired) = (vec![], vec![]);
        if let Some(bucket) = &self.bucket {
            found = bucket.of_attempt(run, attempt, kinds).await?;
        }
        let prefixes: Vec<_> =
            kinds.iter().map(|kind| format!("{kind}-runattempt{attempt}-")).collect();
        let listed = self.listed(run).await?.unwrap_or_default();
        let mut names: Vec<_> = listed
            .iter()
            .map(|one| one.name.as_str())
            .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
            .collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            // Never by a locator: this has only to read what is where it belongs.
            let named = listed.iter().filter(|one| one.name == name && !one.expired);
            match named.max_by_key(|one| one.created) {
                Some(newest) => found.push(newest.found()),
                None => {
                    (self.notice)(&format!(
                        "`{}` has expired and is left out",
                        name.escape_debug()
                    ));
                    expired.push(name.to_owned());
                }
            }
        }
        Ok((found, expired))
    }

    /// Fetches an artifact as it is stored into the new file `path`, whose name no artifact decides.
    pub async fn fetch_to(
        &self,
        run: &SourceRun,
        found: &FoundArtifact,
        path: &Path,
    ) -> Result<BlobFile, FetchError> {
        let blob = Arc::new(self.blob(run, &found.at));
        let fetched = fetch::fetch(&blob, path, found.size, &(Arc::new(|_| {}) as _)).await?;
        match found.digest {
            Some(expected) if expected != fetched.digest => Err(FetchError::Digest),
            _ => Ok(fetched.disk),
        }
    }
}

impl ArtifactBucket {
    async fn of_attempt(
        &self,
        run: &SourceRun,
        attempt: u32,
        kinds: &[&str],
    ) -> Result<Vec<FoundArtifact>, FindError> {
        let known = placeholder_values(run, None);
        let known = PlaceholderValues { run_attempt: Some(attempt.into()), ..known };
        let folder = format!("{}/", self.layout.render(&known));
        let list = async |store: &crate::store::s3::S3Store| -> Result<_, ArtifactStoreError> {
            let (objects, _) = store.list(&folder, true).await?;
            let found = objects.into_iter().filter_map(|object| {
                let name = object.key.strip_prefix(&folder)?;
                let is_wanted = name.ends_with(".zip")
                    && kinds.iter().any(|kind| {
                        name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-'))
                    });
                let at = ArtifactLocation::S3 { store: store.clone(), key: object.key.clone() };
                is_wanted.then(|| FoundArtifact {
                    archive: Some(ArchiveFormat::Zip),
                    size: Some(object.size),
                    created: object.modified,
                    run_attempt: Some(attempt.into()),
                    ..FoundArtifact::new(name, at)
                })
            });
            Ok(found.collect::<Vec<_>>())
        };
        match retry_in_bucket_region(self.config.clone(), list).await {
            // A job without credentials can't write to a bucket that it can't list.
            Err(FindError::Store(ArtifactStoreError::Denied { .. }))
                if matches!(self.config.access, S3Access::Anonymous) =>
            {
                Ok(vec![])
            }
            found => found,
        }
    }
}
