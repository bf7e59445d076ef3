//! Deletes objects of replaced artifacts, and unfinished uploads.

use std::collections::HashSet;

use futures_util::StreamExt as _;

use super::PARALLEL_OBJECTS;
use crate::layout::{self, META_ATTEMPT, META_JOB};
use crate::locator::{ArchiveFormat, Locator, is_locator_key};
use crate::source::UploadSource;
use crate::store::ArtifactStoreError;
use crate::store::s3::S3Store;

fn artifact_keys(source: &UploadSource, folder: &str) -> HashSet<String> {
    match source.archive {
        ArchiveFormat::Zip => HashSet::from([layout::archive_key(folder)]),
        ArchiveFormat::None => {
            source.entries.iter().map(|entry| format!("{folder}/{}", entry.path)).collect()
        }
    }
}

impl S3Store {
    /// Aborts every unfinished upload of this artifact's keys: those of killed processes, and of
    /// simultaneous uploads that will get a conflict. Without the right to list uploads, the bucket's
    /// lifecycle rules have to delete them.
    pub(crate) async fn abort_unfinished(&self, source: &UploadSource, folder: &str) {
        let prefix = format!("{folder}/");
        let list = || {
            let list = self.client().list_multipart_uploads().bucket(self.bucket());
            list.prefix(&prefix).send()
        };
        let Ok(list) = self.send(list).await else { return };
        let uploads = list.uploads();
        let keys = if uploads.is_empty() { HashSet::new() } else { artifact_keys(source, folder) };
        for upload in uploads {
            if let Some((key, id)) = upload.key().zip(upload.upload_id())
                && keys.contains(key)
            {
                self.abort(key, id, self.config.retry).await;
            }
        }
    }

    /// Deletes the objects of the replaced artifact `before` that the new one doesn't have. Returns a
    /// warning if some couldn't be deleted.
    pub(crate) async fn delete_stale(
        &self,
        source: &UploadSource,
        folder: &str,
        before: &Locator,
    ) -> Option<String> {
        let now = artifact_keys(source, folder);
        let was = match (before.archive, before.files.as_slice()) {
            (ArchiveFormat::Zip, _) => vec![layout::archive_key(folder)],
            // There were too many files for the locator to list.
            (ArchiveFormat::None, []) => match self.stale_keys_of_job(source, folder, &now).await {
                Ok(keys) => keys,
                Err(error) => {
                    return Some(format!(
                        "files of the artifact that was replaced may be left below `{folder}/`, \
                         which can't be listed: the credentials need `s3:ListBucket` ({error})"
                    ));
                }
            },
            (ArchiveFormat::None, files) => {
                files.iter().map(|file| format!("{folder}/{}", file.path)).collect()
            }
        };
        let left = self.delete(was.into_iter().filter(|key| !now.contains(key)).collect()).await;
        (left > 0).then(|| {
            format!(
                "{left} objects of the artifact that was replaced can't be deleted: the \
                 credentials need `s3:DeleteObject`"
            )
        })
    }

    /// The keys below `folder` of objects that this job has stored and that aren't in `now`.
    async fn stale_keys_of_job(
        &self,
        source: &UploadSource,
        folder: &str,
        now: &HashSet<String>,
    ) -> Result<Vec<String>, ArtifactStoreError> {
        let (objects, _) = self.list(&format!("{folder}/"), false).await?;
        let keys = objects.into_iter().map(|object| object.key);
        let others = keys.filter(|key| !now.contains(key) && !is_locator_key(key));
        let of_job = |key: String| async move {
            let head = self.head(&key).await.ok()?;
            let meta = |name: &str| head.metadata().and_then(|all| all.get(name));
            let attempt: u64 = meta(META_ATTEMPT)?.parse().ok()?;
            (meta(META_JOB) == Some(&source.job.label()) && attempt <= source.job.run_attempt)
                .then_some(key)
        };
        let found =
            futures_util::stream::iter(others).map(of_job).buffer_unordered(PARALLEL_OBJECTS);
        Ok(found.filter_map(std::future::ready).collect().await)
    }

    /// Deletes an artifact and its locator. `key` is its archive, or its folder with a final slash,
    /// whose files the locator lists. Returns how many objects couldn't be deleted.
    pub async fn delete_artifact(&self, key: &str, locator: Option<&Locator>) -> usize {
        let folder = key.rsplit_once('/').map_or(key, |(folder, _)| folder);
        let files = locator.map_or(&[][..], |locator| &locator.files);
        let mut keys = match key.ends_with('/') {
            true => files.iter().map(|file| format!("{key}{}", file.path)).collect(),
            false => vec![key.to_owned()],
        };
        if key.ends_with('/') && files.is_empty() {
            // There were too many files for the locator to list, so nothing can be deleted.
            return locator.map_or(1, |locator| locator.file_count as usize);
        }
        keys.push(layout::locator_key(folder));
        self.delete(keys).await
    }

    /// Returns how many objects couldn't be deleted.
    pub(crate) async fn delete(&self, keys: Vec<String>) -> usize {
        let delete = |key: String| async move {
            let delete = || self.client().delete_object().bucket(self.bucket()).key(&key).send();
            let gone = self.send(delete).await;
            gone.inspect_err(|error| tracing::debug!(key, %error, "can't be deleted")).is_err()
        };
        futures_util::stream::iter(keys)
            .map(delete)
            .buffer_unordered(PARALLEL_OBJECTS)
            .filter(|failed| std::future::ready(*failed))
            .count()
            .await
    }
}
