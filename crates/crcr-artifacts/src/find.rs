//! Finds artifacts: by the locator that the caller hands over, then in GitHub's list of the run,
//! then under the conventional key in the bucket.
//!
//! Locators are hints of whoever uploaded. One that points anywhere but into the configured bucket,
//! below the prefix of this repository and run, is refused, and no other place is tried then.

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
use crate::layout::{KeyLayout, LayoutFacts};
use crate::locator::{
    self, ArchiveFormat, ArtifactTrust, LocatedFile, Locator, StoredPlace, is_locator_artifact,
};
use crate::store;
use crate::store::github::{GitHubStore, SecretMask};
use crate::store::s3::{S3Access, S3Config, S3Store, STORE as S3};

#[derive(Debug, Clone)]
pub enum ArtifactSelection {
    /// The one of this name.
    Name(String),
    Pattern(NamePattern),
    /// Those with these numbers at GitHub.
    Ids(Vec<u64>),
    /// The one that this locator, from a job's output, describes.
    Locator(Box<Locator>),
    All,
}

/// The run that made the artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRun {
    /// `owner/repo`.
    pub repository: String,
    pub id: u64,
    /// Whether this process is a job of it.
    pub own: bool,
    /// Whether this is known to be its first attempt, so that no name can be in both stores.
    pub first_attempt: bool,
}

pub struct ArtifactSources {
    /// The artifact service, where the job's runtime token is there.
    pub service: Option<GitHubStore>,
    /// The REST API, where there is a token for it.
    pub rest: Option<ActionsApi>,
    /// The bucket, where one is configured.
    pub bucket: Option<ArtifactBucket>,
    /// Tells the runner to hide a secret.
    pub mask: SecretMask,
    /// Tells the user what was left out without being an error.
    pub notice: NoticePrinter,
    /// Tells the user what needs attention without being an error.
    pub warning: NoticePrinter,
}

pub type NoticePrinter = Arc<dyn Fn(&str) + Send + Sync>;

/// A bucket and where artifacts lie in it.
#[derive(Debug, Clone)]
pub struct ArtifactBucket {
    /// The bucket and who asks.
    pub config: S3Config,
    pub layout: KeyLayout,
}

/// An artifact that has been found. What isn't known is `None`.
#[derive(Debug, Clone)]
pub struct FoundArtifact {
    pub name: String,
    pub at: ArtifactLocation,
    /// How it is stored; at GitHub that shows only when it is opened.
    pub archive: Option<ArchiveFormat>,
    /// The digest of what is stored.
    pub digest: Option<Digest>,
    /// Whether the digest comes from somewhere that a writer of the bucket can't change.
    pub independent_digest: bool,
    /// What is stored, in bytes.
    pub size: Option<u64>,
    /// The files, where the locator lists them.
    pub files: Vec<LocatedFile>,
    pub created: Option<Timestamp>,
    /// The attempt of the run that stored it.
    pub run_attempt: Option<u64>,
    /// The locator, where there is one.
    pub locator: Option<Box<Locator>>,
}

/// Where an artifact is, with the means to read it.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a run has a handful of artifacts")]
pub enum ArtifactLocation {
    /// An object, or the start of the objects' keys.
    S3 {
        store: S3Store,
        /// The key, or the start of the keys with its final slash.
        key: String,
    },
    /// An artifact of the job's own run.
    Service(Box<Artifact>),
    /// An artifact that the REST API knows.
    Rest(u64),
}

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Another run's artifacts need a token.
    #[error("artifacts of another run (`{repository}`, run {id}) need a token to be read")]
    TokenNeeded { repository: String, id: u64 },
    /// Neither a token nor a bucket.
    #[error("there is nowhere to look: no runtime token, no `github-token` and no `s3-bucket`")]
    Nowhere,
    /// It is in none of the places.
    #[error("there is no {what}; looked at {}", .looked.join(", then at "))]
    Missing {
        what: String,
        /// Where it was looked for, and what was there.
        looked: Vec<String>,
    },
    /// It is nowhere else, and the bucket doesn't say.
    #[error("the bucket `{bucket}` is forbidden, and {what} is nowhere else; looked at {}", .looked.join(", then at "))]
    Forbidden {
        what: String,
        bucket: String,
        /// Whether somebody with credentials asked.
        signed: bool,
        /// Where it was looked for, and what was there.
        looked: Vec<String>,
    },
    /// A locator that may not be followed.
    #[error("the locator is refused: {0}")]
    Locator(String),
    /// A store doesn't answer, or says no.
    #[error(transparent)]
    Store(#[from] store::StoreError),
}

impl ArtifactSources {
    /// Finds what `select` wants of `run`, in order of the names; for [`ArtifactSelection::Ids`] in theirs.
    ///
    /// A wanted name or locator that isn't there is [`FindError::Missing`], as are numbers of which none
    /// is there; a pattern may match nothing.
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
            ArtifactSelection::Locator(locator) => {
                self.follow(run, locator, &locator.name, true, None).await.map(|found| vec![found])
            }
            ArtifactSelection::Name(name) => self.by_name(run, name).await.map(|found| vec![found]),
            ArtifactSelection::Ids(ids) => self.by_ids(run, ids).await,
            ArtifactSelection::Pattern(pattern) => {
                self.all(run, |name| pattern.matches(name)).await
            }
            ArtifactSelection::All => self.all(run, |_| true).await,
        };
        match (found, &self.bucket) {
            // No credentials: advice about their permissions would lead nowhere.
            (
                Err(FindError::Store(refusal @ store::StoreError::Denied { store: S3, .. })),
                Some(bucket),
            ) if matches!(bucket.config.access, S3Access::Anonymous) => Err(FindError::Forbidden {
                what: "what is wanted".to_owned(),
                bucket: bucket.config.bucket.clone(),
                signed: false,
                looked: vec![refusal.to_string()],
            }),
            (found, _) => found,
        }
    }

    async fn by_name(&self, run: &SourceRun, name: &str) -> Result<FoundArtifact, FindError> {
        let mut looked = Vec::new();
        let mut is_listed = false;
        let listed = self.listed(run).await;
        if let (Err(FindError::Store(error)), Some(bucket), true) =
            (&listed, &self.bucket, run.first_attempt)
        {
            // On the first attempt nothing newer can be on GitHub than what the bucket holds.
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
            let there = listed.iter().filter(|one| !is_locator_artifact(&one.name)).count();
            looked.push(format!(
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
                    looked.extend(not_there.looked);
                    let signed = !matches!(bucket.config.access, S3Access::Anonymous);
                    if not_there.forbidden && (signed || !is_listed) {
                        let bucket = bucket.config.bucket.clone();
                        return Err(FindError::Forbidden { what, bucket, signed, looked });
                    }
                }
            }
        }
        Err(FindError::Missing { what, looked })
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
            .map(|one| one.name.strip_prefix(locator::ARTIFACT_PREFIX).unwrap_or(&one.name))
            .filter(|name| wanted(name))
            .collect();
        names.sort_unstable();
        names.dedup();
        let mut found = Vec::new();
        for name in names {
            found.extend(self.newest(run, &listed, name).await?);
        }
        if let Some(bucket) = &self.bucket {
            let known: Vec<_> = found.iter().map(|one| one.name.clone()).collect();
            let is_known = |name: &str| run.first_attempt && known.iter().any(|one| one == name);
            match bucket.all(run, |name| wanted(name) && !is_known(name)).await {
                Ok(there) => there.into_iter().for_each(|there| keep_newer(&mut found, there)),
                // Without credentials a private bucket says no whether something is there or not,
                // and what such a job's run has stored is on GitHub.
                Err(FindError::Store(refusal @ store::StoreError::Denied { .. }))
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

    /// What a later attempt has stored in the bucket after `found` went to GitHub, else `found`.
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

    /// Follows a locator after checking that it leads where it may.
    ///
    /// `independent` says that it doesn't come from the bucket that it points into; `listed` is
    /// GitHub's list of the run, where it is known already.
    async fn follow(
        &self,
        run: &SourceRun,
        locator: &Locator,
        name: &str,
        independent: bool,
        listed: Option<&[ListedArtifact]>,
    ) -> Result<FoundArtifact, FindError> {
        check_run(run, locator, name)?;
        match &locator.place {
            StoredPlace::S3 { bucket: named, .. } => match &self.bucket {
                Some(bucket) => bucket.follow(run, locator, independent).await,
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

/// Adds an artifact of the bucket to those of GitHub; of one name the newer is kept.
fn keep_newer(found: &mut Vec<FoundArtifact>, there: FoundArtifact) {
    match found.iter_mut().find(|one| one.name == there.name) {
        Some(one) if one.store() == "github" && there.created > one.created => *one = there,
        Some(_) => {}
        None => found.push(there),
    }
}

/// Refuses a locator of another run, repository or name.
fn check_run(run: &SourceRun, locator: &Locator, name: &str) -> Result<(), FindError> {
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
    /// What a locator says, at a place that has been checked.
    fn of_locator(locator: &Locator, at: ArtifactLocation, independent_digest: bool) -> Self {
        Self {
            name: locator.name.clone(),
            at,
            archive: Some(locator.archive),
            digest: Some(locator.digest),
            independent_digest,
            size: Some(locator.size),
            files: locator.files.clone(),
            created: Some(locator.created),
            run_attempt: Some(locator.run_attempt),
            locator: Some(Box::new(locator.clone())),
        }
    }

    /// `s3` or `github`.
    pub fn store(&self) -> &'static str {
        match self.at {
            ArtifactLocation::S3 { .. } => "s3",
            ArtifactLocation::Service(_) | ArtifactLocation::Rest(_) => "github",
        }
    }

    /// The artifact's number at GitHub.
    pub fn artifact_id(&self) -> Option<u64> {
        match &self.at {
            ArtifactLocation::S3 { .. } => None,
            ArtifactLocation::Service(artifact) => Some(artifact.database_id),
            ArtifactLocation::Rest(id) => Some(*id),
        }
    }

    /// What the uploader says about its own trust.
    pub fn label(&self) -> Option<ArtifactTrust> {
        self.locator.as_ref().map(|locator| locator.trust)
    }

    /// The locator; where nobody wrote one, as much of it as is known.
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

/// What is known about the place of an artifact before it is found.
fn facts<'a>(run: &'a SourceRun, name: Option<&'a str>) -> LayoutFacts<'a> {
    LayoutFacts {
        repository: Some(&run.repository),
        run_id: Some(run.id),
        run_attempt: None,
        job: None,
        name,
    }
}
