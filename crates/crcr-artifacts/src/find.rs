//! Finds artifacts: by a locator that the caller passes, or by name, first in GitHub's list of the run
//! and then under the conventional key in the bucket.
//!
//! Locators are untrusted. One that points anywhere but into the configured bucket, below the prefix
//! of this repository and run, is refused, and no other place is tried then.

mod attempt;
mod bucket;
mod github;
pub mod pattern;

use std::sync::Arc;

use crcr_github::artifact::Artifact;
use crcr_github::runs_artifacts::ActionsApi;
use jiff::Timestamp;
use serde_json::json;

use self::github::ListedArtifact;
use crate::digest::Digest;
use crate::find::pattern::NamePattern;
use crate::layout::{KeyLayout, PlaceholderValues};
use crate::locator::{
    self, ArchiveFormat, ArtifactTrust, LocatedFile, Locator, StoredPlace, is_locator_artifact,
};
use crate::store::ArtifactStoreError;
use crate::store::github::{GitHubStore, SecretMask};
use crate::store::s3::{S3Access, S3Config, S3Store, STORE as S3};

#[derive(Debug, Clone)]
pub enum ArtifactSelection {
    Name(String),
    Pattern(NamePattern),
    Ids(Vec<u64>),
    /// From a job's output.
    Locator(Box<Locator>),
    All,
}

/// The run that made the artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRun {
    /// `owner/repo`.
    pub repository: String,
    pub id: u64,
    /// Whether this process is a job of this run.
    pub own: bool,
    /// Whether this is certainly the first attempt; then no name can be in both stores.
    pub first_attempt: bool,
}

pub struct ArtifactSources {
    /// `None` without the job's runtime token.
    pub service: Option<GitHubStore>,
    /// `None` without a token for the REST API.
    pub rest: Option<ActionsApi>,
    pub bucket: Option<ArtifactBucket>,
    pub mask: SecretMask,
    pub notice: NoticePrinter,
    pub warning: NoticePrinter,
}

pub type NoticePrinter = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Debug, Clone)]
pub struct ArtifactBucket {
    pub config: S3Config,
    pub layout: KeyLayout,
}

/// An artifact that has been found. Unknown values are `None`.
#[derive(Debug, Clone)]
pub struct FoundArtifact {
    pub name: String,
    pub at: ArtifactLocation,
    /// `None` at GitHub until it is opened.
    pub archive: Option<ArchiveFormat>,
    pub digest: Option<Digest>,
    /// Whether the digest comes from a place that a writer of the bucket can't change.
    pub independent_digest: bool,
    /// Bytes as they are stored, which may be compressed.
    pub size: Option<u64>,
    /// Empty without a locator that lists them.
    pub files: Vec<LocatedFile>,
    pub created: Option<Timestamp>,
    pub run_attempt: Option<u64>,
    pub locator: Option<Box<Locator>>,
}

#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a run has a handful of artifacts")]
pub enum ArtifactLocation {
    /// The key of an object, or the prefix of several with its final slash.
    S3 { store: S3Store, key: String },
    /// An artifact of the job's own run.
    Service(Box<Artifact>),
    /// An artifact id, for the REST API.
    Rest(u64),
}

impl ArtifactLocation {
    /// GitHub's number of the artifact.
    fn artifact_id(&self) -> Option<u64> {
        match self {
            Self::S3 { .. } => None,
            Self::Service(artifact) => Some(artifact.database_id),
            Self::Rest(id) => Some(*id),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("artifacts of another run (`{repository}`, run {id}) need a token to be read")]
    TokenNeeded { repository: String, id: u64 },
    #[error("there is nowhere to look: no runtime token, no `github-token` and no `s3-bucket`")]
    Nowhere,
    /// GitHub's list can't be had, and a bucket has no numbers.
    #[error(
        "the artifact with {0} can't be looked up: only GitHub numbers artifacts, and this step can't list them there"
    )]
    NoNumbers(String),
    /// GitHub lists it, and has deleted its content.
    #[error(
        "the artifact `{name}` has expired: the run kept it for its retention, and it is deleted"
    )]
    Expired { name: String },
    #[error("there is no {what}; looked at {}", .searched.join(", then at "))]
    Missing {
        what: String,
        /// The places, and what was found there.
        searched: Vec<String>,
    },
    /// The artifact is nowhere else, and the bucket refuses access.
    #[error("the bucket `{bucket}` is forbidden, and {what} is nowhere else; looked at {}", .searched.join(", then at "))]
    Forbidden {
        what: String,
        bucket: String,
        /// Whether there were credentials.
        signed: bool,
        searched: Vec<String>,
    },
    #[error("the locator is refused: {0}")]
    Locator(String),
    #[error(transparent)]
    Store(#[from] ArtifactStoreError),
}

impl ArtifactSources {
    /// Finds the selected artifacts of `run`, sorted by name, or in the order of the ids.
    ///
    /// Fails with [`FindError::Missing`] if a name or locator, or none of the ids, is found. A pattern
    /// may match nothing.
    pub async fn find(
        &self,
        run: &SourceRun,
        select: &ArtifactSelection,
    ) -> Result<Vec<FoundArtifact>, FindError> {
        if !run.own && self.rest.is_none() {
            return Err(FindError::TokenNeeded { repository: run.repository.clone(), id: run.id });
        }
        if self.service.is_none() && self.rest.is_none() && self.bucket.is_none() {
            return Err(FindError::Nowhere);
        }
        let found = match select {
            ArtifactSelection::Locator(locator) => self
                .follow_locator(run, locator, &locator.name, true, None)
                .await
                .map(|found| vec![found]),
            ArtifactSelection::Name(name) => self.by_name(run, name).await.map(|found| vec![found]),
            ArtifactSelection::Ids(ids) => self.by_ids(run, ids).await,
            ArtifactSelection::Pattern(pattern) => {
                self.all(run, |name| pattern.matches(name)).await
            }
            ArtifactSelection::All => self.all(run, |_| true).await,
        };
        match (found, &self.bucket) {
            // Without credentials, advice about their permissions wouldn't help.
            (
                Err(FindError::Store(refusal @ ArtifactStoreError::Denied { store: S3, .. })),
                Some(bucket),
            ) if matches!(bucket.config.access, S3Access::Anonymous) => Err(FindError::Forbidden {
                what: "what is wanted".to_owned(),
                bucket: bucket.config.bucket.clone(),
                signed: false,
                searched: vec![refusal.to_string()],
            }),
            (found, _) => found,
        }
    }

    async fn by_name(&self, run: &SourceRun, name: &str) -> Result<FoundArtifact, FindError> {
        let mut searched = Vec::new();
        let (mut is_listed, mut expired) = (false, false);
        let listed = self.listed(run).await;
        if let (Err(FindError::Store(error)), Some(bucket), true) =
            (&listed, &self.bucket, run.first_attempt)
        {
            // On the first attempt GitHub can't have anything newer than the bucket.
            if let Ok(Ok(found)) = bucket.by_name(run, name).await {
                (self.warning)(&format!("GitHub's list was left out: {error}"));
                return Ok(found);
            }
        }
        if let Some(listed) = listed? {
            if let Some(found) = self.newest(run, &listed, name).await? {
                return Ok(self.newer_in_bucket(run, found).await);
            }
            is_listed = true;
            expired = listed.iter().any(|one| one.name == name);
            let there = listed.iter().filter(|one| !is_locator_artifact(&one.name)).count();
            searched.push(format!(
                "GitHub's list of run {} of `{}` ({} of other names)",
                run.id,
                run.repository,
                artifacts_text(there)
            ));
        }
        let what = format!("artifact `{name}`");
        if let Some(bucket) = &self.bucket {
            match bucket.by_name(run, name).await? {
                Ok(found) => return Ok(found),
                Err(not_there) => {
                    searched.extend(not_there.searched);
                    let signed = !matches!(bucket.config.access, S3Access::Anonymous);
                    if not_there.forbidden && (signed || !is_listed) {
                        let bucket = bucket.config.bucket.clone();
                        return Err(FindError::Forbidden { what, bucket, signed, searched });
                    }
                }
            }
        }
        if expired {
            return Err(FindError::Expired { name: name.to_owned() });
        }
        Err(FindError::Missing { what, searched })
    }

    async fn all(
        &self,
        run: &SourceRun,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<FoundArtifact>, FindError> {
        let listed = self.listed(run).await?;
        let is_listed = listed.is_some();
        let listed = listed.unwrap_or_default();
        let mut names: Vec<&str> = listed
            .iter()
            .filter(|one| !one.expired)
            .map(|one| one.name.strip_prefix(locator::ARTIFACT_PREFIX).unwrap_or(&one.name))
            .filter(|name| wanted(name))
            .collect();
        names.sort_unstable();
        names.dedup();
        for one in listed.iter().filter(|one| one.expired && wanted(&one.name)) {
            if !names.contains(&one.name.as_str()) {
                (self.notice)(&format!(
                    "`{}` has expired and is left out",
                    one.name.escape_debug()
                ));
            }
        }
        let mut found = Vec::new();
        for name in names {
            found.extend(self.newest(run, &listed, name).await?);
        }
        if let Some(bucket) = &self.bucket {
            let known: Vec<_> = found.iter().map(|one| one.name.clone()).collect();
            let is_known = |name: &str| run.first_attempt && known.iter().any(|one| one == name);
            match bucket.all(run, |name| wanted(name) && !is_known(name)).await {
                Ok(there) => there.into_iter().for_each(|there| keep_newer(&mut found, there)),
                // A private bucket refuses anonymous requests whatever it holds. A run without
                // credentials has stored its artifacts at GitHub.
                Err(FindError::Store(refusal @ ArtifactStoreError::Denied { .. }))
                    if is_listed && matches!(bucket.config.access, S3Access::Anonymous) =>
                {
                    (self.notice)(&format!(
                        "the bucket `{}` was left out, as there are no credentials for it: {refusal}",
                        bucket.config.bucket
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// A newer artifact in the bucket, which a later attempt may have stored there; else `found`.
    async fn newer_in_bucket(&self, run: &SourceRun, found: FoundArtifact) -> FoundArtifact {
        let Some(bucket) = self.bucket.as_ref().filter(|_| !run.first_attempt) else {
            return found;
        };
        let mut newest = vec![found];
        if let Ok(Ok(there)) = bucket.by_name(run, &newest[0].name).await {
            keep_newer(&mut newest, there);
        }
        newest.remove(0)
    }

    /// Follows a locator after checking where it points.
    ///
    /// `independent` means that the locator doesn't come from the bucket that it points into. `listed`
    /// is GitHub's list of the run, if it is known already.
    async fn follow_locator(
        &self,
        run: &SourceRun,
        locator: &Locator,
        name: &str,
        independent: bool,
        listed: Option<&[ListedArtifact]>,
    ) -> Result<FoundArtifact, FindError> {
        check_run_and_name(run, locator, name)?;
        match &locator.place {
            StoredPlace::S3 { bucket: named, .. } => match &self.bucket {
                Some(bucket) => bucket.follow_locator(run, locator, independent).await,
                None => Err(FindError::Locator(format!(
                    "it points into the bucket `{named}`, and no `s3-bucket` is configured"
                ))),
            },
            StoredPlace::GitHub { artifact_id } => {
                let ids = [*artifact_id];
                let found = match listed {
                    Some(listed) => github::pick(run, listed, &ids)?.0,
                    None => self.by_ids(run, &ids).await?,
                };
                let found = found.into_iter().next().ok_or(FindError::Nowhere)?;
                if found.name != locator.name {
                    return Err(FindError::Locator(format!(
                        "artifact {artifact_id} is called `{}`",
                        found.name
                    )));
                }
                Ok(FoundArtifact {
                    independent_digest: independent || found.independent_digest,
                    digest: Some(locator.digest),
                    size: Some(locator.size),
                    run_attempt: Some(locator.run_attempt),
                    locator: Some(Box::new(locator.clone())),
                    ..found
                })
            }
        }
    }
}

/// `1 artifact`, `2 artifacts`.
fn artifacts_text(count: usize) -> String {
    if count == 1 { "1 artifact".to_owned() } else { format!("{count} artifacts") }
}

/// Adds an artifact of the bucket to those of GitHub. Of two with the same name, the newer one stays.
fn keep_newer(found: &mut Vec<FoundArtifact>, there: FoundArtifact) {
    match found.iter_mut().find(|one| one.name == there.name) {
        Some(one) if one.store() == "github" && there.created > one.created => *one = there,
        Some(_) => {}
        None => found.push(there),
    }
}

/// Refuses a locator of another run, repository or name.
fn check_run_and_name(run: &SourceRun, locator: &Locator, name: &str) -> Result<(), FindError> {
    let refused = |what: &str, theirs: &str, ours: &str| {
        Err(FindError::Locator(format!("it is for {what} `{theirs}`, and `{ours}` is wanted")))
    };
    if !locator.repository.eq_ignore_ascii_case(&run.repository) {
        return refused("the repository", &locator.repository, &run.repository);
    }
    if locator.run_id != run.id {
        return refused("run", &locator.run_id.to_string(), &run.id.to_string());
    }
    if locator.name != name {
        return refused("the artifact", &locator.name, name);
    }
    Ok(())
}

impl FoundArtifact {
    /// An artifact of which only the name and the location are known.
    fn new(name: &str, at: ArtifactLocation) -> Self {
        Self {
            name: name.to_owned(),
            at,
            archive: None,
            digest: None,
            independent_digest: false,
            size: None,
            files: vec![],
            created: None,
            run_attempt: None,
            locator: None,
        }
    }

    /// The artifact that a locator describes; `at` has been checked.
    fn from_locator(locator: &Locator, at: ArtifactLocation, independent_digest: bool) -> Self {
        Self {
            archive: Some(locator.archive),
            digest: Some(locator.digest),
            independent_digest,
            size: Some(locator.size),
            files: locator.files.clone(),
            created: Some(locator.created),
            run_attempt: Some(locator.run_attempt),
            locator: Some(Box::new(locator.clone())),
            ..Self::new(&locator.name, at)
        }
    }

    pub fn store(&self) -> &'static str {
        match self.at {
            ArtifactLocation::S3 { .. } => "s3",
            ArtifactLocation::Service(_) | ArtifactLocation::Rest(_) => "github",
        }
    }

    pub fn artifact_id(&self) -> Option<u64> {
        self.at.artifact_id()
    }

    /// The trust that the uploader claims.
    pub(crate) fn claimed_trust(&self) -> Option<ArtifactTrust> {
        self.locator.as_ref().map(|locator| locator.trust)
    }

    /// The locator, or, if there is none, as much of one as is known.
    pub fn to_json(&self, run: &SourceRun) -> serde_json::Value {
        if let Some(locator) = &self.locator {
            return json!(locator);
        }
        let mut value = json!({
            "version": locator::VERSION, "name": self.name, "repository": run.repository,
            "run_id": run.id, "store": self.store(),
        });
        let mut add = |key: &str, known: Option<serde_json::Value>| {
            if let Some(known) = known {
                value[key] = known;
            }
        };
        if let ArtifactLocation::S3 { store, key } = &self.at {
            add("bucket", Some(json!(store.bucket())));
            add("key", Some(json!(key)));
            add("region", Some(json!(store.region())));
            add("endpoint", store.endpoint().map(|url| json!(url)));
        }
        add("artifact_id", self.artifact_id().map(|id| json!(id)));
        add("run_attempt", self.run_attempt.map(|attempt| json!(attempt)));
        add("archive", self.archive.map(|archive| json!(archive)));
        add("digest", self.digest.map(|digest| json!(digest)));
        add("size", self.size.map(|size| json!(size)));
        add("created", self.created.map(|created| json!(created)));
        value
    }
}

fn placeholder_values<'a>(run: &'a SourceRun, name: Option<&'a str>) -> PlaceholderValues<'a> {
    PlaceholderValues {
        repository: Some(&run.repository),
        run_id: Some(run.id),
        run_attempt: None,
        job: None,
        name,
    }
}
