//! What a token of Buildkite says, and the map from its immutable ids to repositories.

use std::collections::BTreeMap;

use crcr_domain::RepoName;
use crcr_domain::protocol::identity::{BuildkiteClaims, CallerIdentity, ProviderClaims};
use serde::Deserialize;
use serde_yaml::{Mapping, Value};

use super::token::VerifiedToken;
use super::{AuthError, printable};

const MAX_BYTES: usize = 256 * 1024;
const MAX_PIPELINES: usize = 10_000;

/// Which pipelines may report for which repositories, and the claims that they need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderMap {
    /// The pipelines by `organization id/pipeline id`, in lower case.
    buildkite: BTreeMap<String, Pipeline>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pipeline {
    repository: RepoName,
    /// Each claim must have one of its values.
    required_claims: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProviderMapError {
    #[error("the provider map has {0} bytes, and at most {MAX_BYTES} are read")]
    TooLarge(usize),
    #[error("the provider map has {0} pipelines, and at most {MAX_PIPELINES} are taken")]
    TooMany(usize),
    #[error("the provider map can't be read: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error(
        "the provider map's entry `{key}` is not `owner/repo` or `{{repo, required_claims}}`: {why}"
    )]
    Entry { key: String, why: String },
}

/// The file. Other keys in it are ignored.
#[derive(Deserialize, Default)]
#[serde(default)]
struct RawFile {
    providers: Option<RawProviders>,
    buildkite: Option<Mapping>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawProviders {
    buildkite: Option<RawProvider>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawProvider {
    repo_map: Option<Mapping>,
}

/// An entry with required claims. An unknown key is refused, because a misspelled `required_claims`
/// must not let everybody in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGuarded {
    repo: String,
    #[serde(default, deserialize_with = "not_null")]
    required_claims: Mapping,
}

/// Refuses `required_claims:` with nothing below it, which is null in YAML. Most likely its claims were
/// commented out by mistake.
fn not_null<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Mapping, D::Error> {
    match Value::deserialize(value)? {
        Value::Mapping(claims) => Ok(claims),
        _ => Err(serde::de::Error::custom("`required_claims` must map claims to values")),
    }
}

impl ProviderMap {
    /// Reads `providers.buildkite.repo_map`, or else the older top-level `buildkite`, as the deployed relay does also if
    /// the new one is there and empty.
    ///
    /// A key without `/` is skipped. An entry without a repository makes the whole map invalid, and the
    /// last valid one stays in force.
    pub fn parse(text: &str) -> Result<Self, ProviderMapError> {
        if text.len() > MAX_BYTES {
            return Err(ProviderMapError::TooLarge(text.len()));
        }
        let file: Option<RawFile> = serde_yaml::from_str(text)?;
        let file = file.unwrap_or_default();
        let modern = file.providers.and_then(|p| p.buildkite).and_then(|b| b.repo_map);
        let modern = modern.filter(|entries| !entries.is_empty());
        let entries = modern.or(file.buildkite).unwrap_or_default();
        if entries.len() > MAX_PIPELINES {
            return Err(ProviderMapError::TooMany(entries.len()));
        }
        let mut buildkite = BTreeMap::new();
        for (key, value) in entries {
            let Some(key) = key.as_str().map(str::trim) else { continue };
            if !key.contains('/') {
                continue;
            }
            let pipeline = Pipeline::from_raw(value)
                .map_err(|why| ProviderMapError::Entry { key: printable(key), why })?;
            if buildkite.insert(key.to_ascii_lowercase(), pipeline).is_some() {
                let why = "the same pipeline is listed twice".to_owned();
                return Err(ProviderMapError::Entry { key: printable(key), why });
            }
        }
        Ok(Self { buildkite })
    }

    /// The repositories that a pipeline may report for.
    pub fn repositories(&self) -> impl Iterator<Item = &RepoName> {
        self.buildkite.values().map(|pipeline| &pipeline.repository)
    }

    pub fn len(&self) -> usize {
        self.buildkite.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buildkite.is_empty()
    }
}

impl Pipeline {
    fn from_raw(value: Value) -> Result<Self, String> {
        let (repo, claims) = match value {
            Value::String(repo) => (repo, Mapping::new()),
            value => {
                let raw: RawGuarded = serde_yaml::from_value(value).map_err(|e| e.to_string())?;
                (raw.repo, raw.required_claims)
            }
        };
        let repository = RepoName::new(repo.trim()).map_err(|e| e.to_string())?;
        let required_claims = claims
            .into_iter()
            .map(|(claim, value)| {
                let claim = scalar(&claim).ok_or("a claim must be named by a text")?;
                let allowed = match &value {
                    Value::Sequence(many) => many.iter().map(scalar).collect(),
                    one => scalar(one).map(|one| vec![one]),
                };
                let odd = || format!("the values of the claim `{claim}` must be text or numbers");
                let allowed = allowed.ok_or_else(odd)?;
                Ok((claim, allowed))
            })
            .collect::<Result<_, String>>()?;
        Ok(Self { repository, required_claims })
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// The caller's identity. 401 without the ids; 403 for an unknown pipeline or a wrong claim.
pub(crate) fn identity(
    issuer: &str,
    token: &VerifiedToken,
    providers: &ProviderMap,
) -> Result<CallerIdentity, AuthError> {
    let ids = token.text("organization_id").zip(token.text("pipeline_id"));
    let (organization, pipeline) = ids.ok_or_else(|| {
        AuthError::unauthorized("Buildkite OIDC token missing 'organization_id' or 'pipeline_id'")
    })?;
    let key = format!("{organization}/{pipeline}");
    let found = providers.buildkite.get(&key.to_ascii_lowercase()).ok_or_else(|| {
        let key = printable(&key);
        AuthError::forbidden(format!("Buildkite pipeline {key} is not registered with CRCR"))
    })?;
    for (claim, allowed) in &found.required_claims {
        let value = token.text(claim).unwrap_or_default();
        if !allowed.contains(&value) {
            let value = printable(&value);
            return Err(AuthError::forbidden(format!(
                "Buildkite claim '{claim}' value '{value}' not in allowed set for this pipeline"
            )));
        }
    }
    Ok(CallerIdentity {
        repository: found.repository.clone(),
        issuer: issuer.to_owned(),
        expires_at: token.expires_at,
        token_id: token.id(),
        claims: ProviderClaims::Buildkite(BuildkiteClaims {
            organization_id: organization,
            pipeline_id: pipeline,
            build_id: token.text("build_id"),
            build_number: token.text("build_number"),
            job_id: token.text("job_id"),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_of_the_file_are_read() {
        let modern = ProviderMap::parse(
            "providers:\n  buildkite:\n    issuer: https://evil.example\n    repo_map:\n      \
             ORG/pipe: acme/backend\n      no-slash: acme/other\n      org/two:\n        repo: \
             acme/two\n        required_claims: {build_branch: [main, 7], tag: true}\n\
             buildkite: {old/old: acme/old}\n",
        )
        .unwrap();
        assert_eq!(modern.len(), 2);
        assert_eq!(modern.buildkite["org/pipe"].repository.as_str(), "acme/backend");
        let guarded = &modern.buildkite["org/two"].required_claims;
        assert_eq!(guarded["build_branch"], ["main", "7"]);
        assert_eq!(guarded["tag"], ["true"]);
        let legacy = ProviderMap::parse("buildkite: {old/old: acme/old}").unwrap();
        assert_eq!(legacy.len(), 1);
        let begun = "providers: {buildkite: {repo_map: {}}}\nbuildkite: {old/old: acme/old}";
        assert_eq!(ProviderMap::parse(begun).unwrap(), legacy);
        assert!(ProviderMap::parse("").unwrap().is_empty());
        assert!(ProviderMap::parse("other: {}").unwrap().is_empty());
    }

    #[test]
    fn a_broken_file_is_refused_and_names_the_entry() {
        for (text, names) in [
            ("buildkite: [1]", "can't be read"),
            ("buildkite: {a/b: not-a-repo}", "`a/b`"),
            ("buildkite: {a/b: {required_claims: {}}}", "`a/b`"),
            ("buildkite: {a/b: {repo: o/r, required_claims: {x: {y: 1}}}}", "`x`"),
            (
                "buildkite: {a/b: {repo: o/r, require_claims: {x: y}}}",
                "unknown field `require_claims`",
            ),
            ("buildkite: {a/b: {repo: o/r, build_branch: main}}", "unknown field `build_branch`"),
            ("buildkite: {a/b: {repo: o/r, required_claims: null}}", "must map claims"),
            ("buildkite: {a/b: o/r, A/B: {repo: o/r, required_claims: {x: y}}}", "listed twice"),
            ("buildkite: {a/b: o/r, a/b: {repo: o/r, required_claims: {x: y}}}", "can't be read"),
            ("buildkite: {a/b: o/r", "can't be read"),
        ] {
            let error = ProviderMap::parse(text).unwrap_err().to_string();
            assert!(error.contains(names), "{text}: {error}");
        }
        let large = "#".repeat(MAX_BYTES + 1);
        assert!(matches!(ProviderMap::parse(&large), Err(ProviderMapError::TooLarge(_))));
    }
}
