//! Finds artifacts in the bucket under their conventional keys, first with credentials, then
//! anonymously.

use regex::Regex;

use super::{
    ArtifactBucket, ArtifactLocation, FindError, FoundArtifact, SourceRun, placeholder_values,
};
use crate::layout::{self, META_ATTEMPT, archive_key, locator_key};
use crate::locator::{ArchiveFormat, KEY_SUFFIX, Locator, StoredPlace, is_locator_key};
use crate::store::ArtifactStoreError;
use crate::store::s3::{S3Access, S3Config, S3Store};

/// A folder that may hold an artifact, and the placeholders that its name was matched against.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BucketCandidate {
    folder: String,
    name: Option<String>,
    attempt: Option<u64>,
}

pub(crate) struct NotInBucket {
    /// The places, and what was found there.
    pub(crate) searched: Vec<String>,
    /// Whether all requests were refused, so that the artifact may exist.
    pub(crate) forbidden: bool,
}

impl ArtifactBucket {
    /// The artifact of this name with the highest attempt, then the newest.
    pub(crate) async fn by_name(
        &self,
        run: &SourceRun,
        name: &str,
    ) -> Result<Result<FoundArtifact, NotInBucket>, FindError> {
        let place = format!(
            "s3://{}/{}",
            self.config.bucket,
            self.layout.render(&placeholder_values(run, Some(name)))
        );
        let mut searched = vec![];
        for (who, config) in self.access_modes() {
            let asked = retry_in_bucket_region(config, async |store| {
                self.read_candidates(store, run, Some(name), |_| true).await
            });
            match asked.await {
                // Who may list the bucket knows what isn't there.
                Ok(found) => {
                    return Ok(found.into_iter().next().ok_or_else(|| {
                        searched.push(format!("`{place}` ({who}: nothing there)"));
                        NotInBucket { searched, forbidden: false }
                    }));
                }
                Err(FindError::Store(error @ ArtifactStoreError::Denied { .. })) => {
                    searched.push(format!("`{place}` ({who}: {error})"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Err(NotInBucket { searched, forbidden: true }))
    }

    /// Every artifact of the run whose name is `wanted`.
    pub(crate) async fn all(
        &self,
        run: &SourceRun,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<FoundArtifact>, FindError> {
        let mut refused = None;
        for (_, config) in self.access_modes() {
            let asked = retry_in_bucket_region(config, async |store| {
                self.read_candidates(store, run, None, &wanted).await
            });
            match asked.await {
                Ok(found) => return Ok(found),
                Err(FindError::Store(error @ ArtifactStoreError::Denied { .. })) => {
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(vec![]), |error| Err(error.into()))
    }

    /// Follows a locator after checking that it points below the run's own prefix.
    pub(crate) async fn follow_locator(
        &self,
        run: &SourceRun,
        locator: &Locator,
        independent: bool,
    ) -> Result<FoundArtifact, FindError> {
        let key = self.checked_key(run, locator)?;
        let mut refused = None;
        for (_, config) in self.access_modes() {
            let asked = retry_in_bucket_region(config, async |store| {
                self.is_readable(store, locator, &key).await.map(|()| store.clone())
            });
            match asked.await {
                Ok(store) => {
                    return Ok(FoundArtifact::from_locator(
                        locator,
                        ArtifactLocation::S3 { store, key },
                        independent,
                    ));
                }
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        let error = refused.unwrap_or(FindError::Nowhere);
        let is_missing = matches!(error, FindError::Store(ArtifactStoreError::NotFound { .. }));
        Err(match self.other_server(locator).filter(|_| is_missing) {
            Some(server) => FindError::Locator(format!(
                "`{key}` was stored at `{server}`, and the configured server doesn't have it"
            )),
            None => error,
        })
    }

    /// The server that a locator names, if that isn't the configured address.
    fn other_server<'a>(&self, locator: &'a Locator) -> Option<&'a str> {
        let StoredPlace::S3 { endpoint, .. } = &locator.place else { return None };
        let trimmed = |text: &str| text.trim_end_matches('/').to_ascii_lowercase();
        let own = self.config.endpoint.as_ref().map(|url| trimmed(url.as_str()));
        let is_other = endpoint.as_deref().map(trimmed) != own;
        is_other.then(|| endpoint.as_deref().unwrap_or("AWS"))
    }

    /// The key in a locator, if it is in this bucket and below the run's prefix. The server in it may have an address for
    /// each network, and only the configured one is asked.
    fn checked_key(&self, run: &SourceRun, locator: &Locator) -> Result<String, FindError> {
        let StoredPlace::S3 { bucket, key, .. } = &locator.place else {
            return Err(FindError::Locator("it doesn't point into a bucket".to_owned()));
        };
        let ours = &self.config;
        if *bucket != ours.bucket {
            let why = format!("it points into the bucket `{bucket}`, not `{}`", ours.bucket);
            return Err(FindError::Locator(why));
        }
        let rendered = self.layout.render(&placeholder_values(run, Some(&locator.name)));
        let (parts, mut given) = (rendered.split('/'), key.split('/'));
        let mut fits = |part: &str| {
            given.next().is_some_and(|given| {
                given == part || (part.contains('{') && part_pattern(part).is_match(given))
            })
        };
        let below = parts.into_iter().all(&mut fits) && given.next().is_some();
        let strange = key.split('/').any(|part| matches!(part, "." | ".."));
        if strange || !below || key.contains("//") {
            let why = format!("its key `{key}` isn't below `{rendered}/`, the prefix of this run");
            return Err(FindError::Locator(why));
        }
        let is_folder = key.ends_with('/');
        if is_folder != (locator.archive == ArchiveFormat::None) {
            return Err(FindError::Locator(format!("its key `{key}` doesn't fit its archive")));
        }
        Ok(key.clone())
    }

    /// With credentials, then anonymously: the bucket may be public.
    fn access_modes(&self) -> Vec<(&'static str, S3Config)> {
        let anonymous = S3Config { access: S3Access::Anonymous, ..self.config.clone() };
        match self.config.access {
            S3Access::Anonymous => vec![("anonymous", anonymous)],
            S3Access::Ambient | S3Access::Given(_) => {
                vec![("signed", self.config.clone()), ("anonymous", anonymous)]
            }
        }
    }

    async fn is_readable(
        &self,
        store: &S3Store,
        locator: &Locator,
        key: &str,
    ) -> Result<(), ArtifactStoreError> {
        if locator.archive == ArchiveFormat::None && locator.files.is_empty() {
            return store.list(key, true).await.map(drop);
        }
        let key = match locator.files.first() {
            Some(file) if locator.archive == ArchiveFormat::None => format!("{key}{}", file.path),
            _ => key.to_owned(),
        };
        store.head(&key).await.map(drop)
    }

    /// Reads every candidate. For each name, the highest attempt and then the newest wins.
    async fn read_candidates(
        &self,
        store: &S3Store,
        run: &SourceRun,
        name: Option<&str>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<FoundArtifact>, FindError> {
        let rendered = self.layout.render(&placeholder_values(run, name));
        let mut found: Vec<FoundArtifact> = vec![];
        for candidate in candidates(store, &rendered).await? {
            let known = name.or(candidate.name.as_deref());
            if known.is_some_and(|name| !wanted(name)) {
                continue;
            }
            let Some(one) = self.read_candidate(store, run, &candidate, known).await? else {
                continue;
            };
            if !wanted(&one.name) {
                continue;
            }
            match found.iter_mut().find(|other| other.name == one.name) {
                Some(other) => {
                    let rank = |found: &FoundArtifact| (found.run_attempt, found.created);
                    if rank(&one) > rank(other) {
                        *other = one;
                    }
                }
                None => found.push(one),
            }
        }
        Ok(found)
    }

    /// The artifact in a folder: by its locator, else its zip, else its files.
    async fn read_candidate(
        &self,
        store: &S3Store,
        run: &SourceRun,
        candidate: &BucketCandidate,
        name: Option<&str>,
    ) -> Result<Option<FoundArtifact>, FindError> {
        let folder = &candidate.folder;
        if let Some(locator) = read_locator(store, &locator_key(folder)).await? {
            super::check_run_and_name(run, &locator, name.unwrap_or(&locator.name))?;
            let key = self.checked_key(run, &locator)?;
            if !key.starts_with(&format!("{folder}/")) {
                let why = format!("its key `{key}` isn't in the locator's own folder");
                return Err(FindError::Locator(why));
            }
            let at = ArtifactLocation::S3 { store: store.clone(), key };
            return Ok(Some(FoundArtifact::from_locator(&locator, at, false)));
        }
        let name = name.unwrap_or_else(|| folder.rsplit('/').next().unwrap_or_default());
        match read_zip(store, candidate, name).await? {
            None => Ok(read_files(store, candidate, name).await?),
            zip => Ok(zip),
        }
    }
}

async fn read_zip(
    store: &S3Store,
    candidate: &BucketCandidate,
    name: &str,
) -> Result<Option<FoundArtifact>, ArtifactStoreError> {
    let key = archive_key(&candidate.folder);
    let head = match store.head(&key).await {
        Ok(head) => head,
        Err(ArtifactStoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = |name: &str| head.metadata().and_then(|all| all.get(name));
    let attempt = meta(META_ATTEMPT).and_then(|text| text.parse().ok());
    let created = head.last_modified().and_then(|at| jiff::Timestamp::from_second(at.secs()).ok());
    Ok(Some(FoundArtifact {
        archive: Some(ArchiveFormat::Zip),
        digest: layout::digest_in_metadata(meta),
        size: head.content_length().and_then(|size| u64::try_from(size).ok()),
        created,
        run_attempt: attempt.or(candidate.attempt),
        ..FoundArtifact::new(name, ArtifactLocation::S3 { store: store.clone(), key })
    }))
}

/// An artifact whose files are an object each.
async fn read_files(
    store: &S3Store,
    candidate: &BucketCandidate,
    name: &str,
) -> Result<Option<FoundArtifact>, ArtifactStoreError> {
    let key = format!("{}/", candidate.folder);
    let (objects, _) = store.list(&key, false).await?;
    if objects.is_empty() {
        return Ok(None);
    }
    Ok(Some(FoundArtifact {
        archive: Some(ArchiveFormat::None),
        size: Some(objects.iter().map(|object| object.size).sum()),
        created: objects.iter().filter_map(|object| object.modified).max(),
        run_attempt: candidate.attempt,
        ..FoundArtifact::new(name, ArtifactLocation::S3 { store: store.clone(), key })
    }))
}

/// Runs `work` with the bucket, and again in the right region if the configured one is wrong.
pub(crate) async fn retry_in_bucket_region<T, E>(
    config: S3Config,
    work: impl AsyncFn(&S3Store) -> Result<T, E>,
) -> Result<T, FindError>
where
    FindError: From<E>,
{
    let store = S3Store::connect(config).await?;
    match work(&store).await.map_err(FindError::from) {
        Err(FindError::Store(ArtifactStoreError::WrongRegion { actual, .. })) => {
            Ok(work(&store.in_region(actual).await?).await?)
        }
        done => done,
    }
}

/// The locator at a key, if there is one.
async fn read_locator(store: &S3Store, key: &str) -> Result<Option<Locator>, FindError> {
    match store.read_locator(key).await {
        Ok((Ok(locator), _)) => Ok(Some(locator)),
        Ok((Err(error), _)) => Err(FindError::Locator(format!("`{key}`: {error}"))),
        // Without `s3:ListBucket`, S3 answers 403 for a missing object. Go on with the archive.
        Err(ArtifactStoreError::NotFound { .. } | ArtifactStoreError::Denied { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The folders that match a rendered template. Placeholders without a value are matched against a list
/// of the bucket.
async fn candidates(store: &S3Store, rendered: &str) -> Result<Vec<BucketCandidate>, FindError> {
    let mut all = vec![BucketCandidate { folder: String::new(), name: None, attempt: None }];
    let parts: Vec<_> = rendered.split('/').collect();
    for (n, part) in parts.iter().enumerate() {
        let join = |folder: &str, part: &str| {
            if folder.is_empty() { part.to_owned() } else { format!("{folder}/{part}") }
        };
        if !part.contains('{') {
            for candidate in &mut all {
                candidate.folder = join(&candidate.folder, part);
            }
            continue;
        }
        let pattern = part_pattern(part);
        let head = part.split('{').next().unwrap_or_default();
        let last = n + 1 == parts.len();
        let mut next: Vec<BucketCandidate> = vec![];
        for candidate in all {
            let (objects, folders) = store.list(&join(&candidate.folder, head), true).await?;
            let folders = folders.iter().map(|folder| folder.trim_end_matches('/'));
            let locators = objects.iter().filter(|object| last && is_locator_key(&object.key));
            let locators = locators.filter_map(|object| object.key.strip_suffix(KEY_SUFFIX));
            for folder in folders.chain(locators) {
                let own = folder.rsplit('/').next().unwrap_or_default();
                let Some(captures) = pattern.captures(own) else { continue };
                let text = |group: &str| captures.name(group).map(|m| m.as_str().to_owned());
                let found = BucketCandidate {
                    folder: folder.to_owned(),
                    name: text("name").or_else(|| candidate.name.clone()),
                    attempt: text("attempt")
                        .and_then(|attempt| attempt.parse().ok())
                        .or(candidate.attempt),
                };
                if !next.contains(&found) {
                    next.push(found);
                }
            }
        }
        all = next;
    }
    Ok(all)
}

/// The pattern for one part of a template with placeholders.
fn part_pattern(part: &str) -> Regex {
    let mut pattern = regex::escape(part);
    for (placeholder, group) in [
        ("{name}", "(?P<name>.+)"),
        ("{run_attempt}", "(?P<attempt>[0-9]+)"),
        ("{job}", ".+"),
        ("{run_id}", "[0-9]+"),
        ("{owner}", ".+"),
        ("{repo}", ".+"),
    ] {
        // Only the first occurrence is captured; others match anything.
        pattern = pattern.replacen(&regex::escape(placeholder), group, 1);
        pattern = pattern.replace(&regex::escape(placeholder), ".+");
    }
    Regex::new(&format!("^{pattern}$")).expect("escaped text and fixed groups are a pattern")
}
