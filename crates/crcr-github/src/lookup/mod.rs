//! Whether the names in an allowlist exist: repositories, people, teams, labels, workflows.
//!
//! Reads only, with the token of a person or a job. Answers are cached on disk with their `ETag`
//! ([`cache`]), because asking again for something unchanged doesn't count against the rate limit:
//! <https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api>

pub mod cache;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::cache::LookupCache;
use crate::app::Clock;
use crate::error::GithubError;
use crate::http::{HttpError, RetryPolicy};
use crate::rest::{
    JSON, MAX_JSON_BYTES, RAW, RestClient, RestRequest, RestResponse, contents_path, encoded,
    path_by_number, repo_path,
};
use crate::runs::WorkflowRun;
use crate::{ClientSetupError, SecureUrl};

/// GitHub's own limit for a workflow is lower.
const MAX_WORKFLOW_BYTES: usize = 1024 * 1024;

/// Each page has 100 reviews.
const MAX_REVIEW_PAGES: u32 = 10;
/// GitHub's maximum for variables.
const VARIABLES_PER_PAGE: usize = 30;
/// An organisation has at most 1,000 variables.
const MAX_VARIABLE_PAGES: usize = 1000_usize.div_ceil(VARIABLES_PER_PAGE);

/// Asks GitHub whether names exist, with a cache of the answers.
pub struct GithubLookup {
    client: RestClient,
    token: SecretString,
    base: String,
    retry: RetryPolicy,
    cache: Mutex<LookupCache>,
    /// The rate limit is used up until then.
    limited_until: Mutex<Option<Timestamp>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RepositoryInfo {
    /// `owner/repo` in GitHub's spelling; the new name, when the repository was renamed.
    pub full_name: String,
    pub archived: bool,
    pub default_branch: String,
    pub id: u64,
    pub owner_id: u64,
    pub private: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PullInfo {
    pub head_sha: String,
    pub labels: Vec<String>,
}

/// A variable for workflows, as far as the token can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    Value(String),
    Missing,
    /// The token can't read variables.
    Hidden,
}

/// How `sub` starts in a repository's OIDC tokens, as far as the token can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectPrefix {
    /// Such as `repo:acme/app`, or `repo:acme@1/app@2`.
    Default(String),
    /// The repository has chosen these claims for `sub`.
    Custom(Vec<String>),
    Hidden,
}

/// Whether an organisation has a team, as far as the token can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TeamStatus {
    Exists,
    /// The organisation may be missing, too.
    Missing,
    /// The token can't read the organisation's teams.
    Hidden,
}

impl fmt::Debug for GithubLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GithubLookup").field("base", &self.base).finish_non_exhaustive()
    }
}

impl GithubLookup {
    /// For the GitHub whose REST API is at `base`. Needs a tokio runtime.
    pub fn new(
        http: Client,
        base: &SecureUrl,
        token: &SecretString,
        cache: LookupCache,
        clock: Clock,
    ) -> Result<Self, ClientSetupError> {
        if token.expose_secret().is_empty()
            || !token.expose_secret().bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(ClientSetupError::Token);
        }
        Ok(Self {
            client: RestClient::new(http, base, clock)?,
            token: token.clone(),
            base: base.as_str().trim_end_matches('/').to_owned(),
            retry: RetryPolicy { tries: 3, ..RetryPolicy::default() },
            cache: Mutex::new(cache),
            limited_until: Mutex::default(),
        })
    }

    /// The repository under its present name; `None` when the token can't see it.
    pub async fn repository(&self, repo: &str) -> Result<Option<RepositoryInfo>, GithubError> {
        self.json(&repo_path(repo), |answer| {
            json!({
                "full_name": answer["full_name"], "archived": answer["archived"],
                "default_branch": answer["default_branch"], "id": answer["id"],
                "owner_id": answer["owner"]["id"], "private": answer["private"],
            })
        })
        .await
    }

    /// Whether there is a person or organisation of that name.
    pub async fn user_exists(&self, login: &str) -> Result<bool, GithubError> {
        self.exists(&format!("/users/{}", encoded(login))).await
    }

    /// Whether `org` has the team `slug`. GitHub also answers 404 when the token may not see teams,
    /// so a second call asks for the list of teams.
    pub async fn team(&self, org: &str, slug: &str) -> Result<TeamStatus, GithubError> {
        let org = format!("/orgs/{}/teams", encoded(org));
        match self.exists(&format!("{org}/{}", encoded(slug))).await {
            Ok(true) => return Ok(TeamStatus::Exists),
            Ok(false) => {}
            Err(GithubError::Forbidden(_)) => return Ok(TeamStatus::Hidden),
            Err(error) => return Err(error),
        }
        match self.exists(&format!("{org}?per_page=1")).await {
            Ok(true) => Ok(TeamStatus::Missing),
            Ok(false) | Err(GithubError::Forbidden(_)) => Ok(TeamStatus::Hidden),
            Err(error) => Err(error),
        }
    }

    /// What is known of a pull request; `None` when the token can't see it.
    pub async fn pull(&self, repo: &str, number: u64) -> Result<Option<PullInfo>, GithubError> {
        let keep = |answer: &Value| {
            let labels = answer["labels"].as_array().into_iter().flatten();
            let labels: Vec<_> = labels.map(|label| &label["name"]).collect();
            json!({ "head_sha": answer["head"]["sha"], "labels": labels })
        };
        self.json(&format!("{}/pulls/{number}", repo_path(repo)), keep).await
    }

    /// Those whose last review of the pull request approves this commit.
    pub async fn approvers(
        &self,
        repo: &str,
        number: u64,
        head_sha: &str,
    ) -> Result<BTreeSet<String>, GithubError> {
        let mut approvers = BTreeSet::new();
        for page in 1..=MAX_REVIEW_PAGES {
            let path =
                format!("{}/pulls/{number}/reviews?per_page=100&page={page}", repo_path(repo));
            let keep = |answer: &Value| {
                let reviews = answer.as_array().into_iter().flatten();
                let kept = reviews.map(|review| {
                    json!([review["user"]["login"], review["state"], review["commit_id"]])
                });
                Value::Array(kept.collect())
            };
            let reviews: Vec<(Option<String>, String, Option<String>)> =
                self.json(&path, keep).await?.unwrap_or_default();
            let is_last = reviews.len() < 100;
            // Oldest first. A comment changes nothing about an approval.
            for (login, state, commit) in reviews {
                let Some(login) = login.filter(|_| state != "COMMENTED") else { continue };
                if state == "APPROVED" && commit.as_deref() == Some(head_sha) {
                    approvers.insert(login);
                } else {
                    approvers.remove(&login);
                }
            }
            if is_last {
                break;
            }
        }
        Ok(approvers)
    }

    /// Whether the person is an active member of the team; `None` when the token can't see it.
    pub async fn is_member(
        &self,
        org: &str,
        slug: &str,
        login: &str,
    ) -> Result<Option<bool>, GithubError> {
        let path = format!(
            "/orgs/{}/teams/{}/memberships/{}",
            encoded(org),
            encoded(slug),
            encoded(login)
        );
        let state = self.json::<Option<String>>(&path, |answer| answer["state"].clone()).await;
        match state {
            Ok(Some(state)) => Ok(Some(state.as_deref() == Some("active"))),
            Ok(None) => Ok((self.team(org, slug).await? == TeamStatus::Exists).then_some(false)),
            Err(GithubError::Forbidden(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the repository has the label.
    pub async fn label_exists(&self, repo: &str, label: &str) -> Result<bool, GithubError> {
        self.exists(&format!("{}/labels/{}", repo_path(repo), encoded(label))).await
    }

    /// The paths of the workflows on the default branch.
    pub async fn workflows(&self, repo: &str) -> Result<Vec<String>, GithubError> {
        let path = contents_path(repo, ".github/workflows");
        let keep = |answer: &Value| {
            let files = answer.as_array().map(Vec::as_slice).unwrap_or_default();
            let paths = files.iter().filter(|file| file["type"] == "file");
            let paths = paths.filter_map(|file| file["path"].as_str());
            json!(paths.filter(|p| p.ends_with(".yml") || p.ends_with(".yaml")).collect::<Vec<_>>())
        };
        Ok(self.json(&path, keep).await?.unwrap_or_default())
    }

    /// A file on the default branch, as text; `None` when it isn't there.
    pub async fn file(&self, repo: &str, path: &str) -> Result<Option<String>, GithubError> {
        self.text(contents_path(repo, path)).await
    }

    /// A file at a commit, a branch or a tag.
    pub async fn file_at(
        &self,
        repo: &str,
        path: &str,
        reference: &str,
    ) -> Result<Option<String>, GithubError> {
        self.text(format!("{}?ref={}", contents_path(repo, path), encoded(reference))).await
    }

    async fn text(&self, path: String) -> Result<Option<String>, GithubError> {
        let raw = |body: &[u8]| Ok(json!(String::from_utf8_lossy(body)));
        let found = self.get(&path, RAW, MAX_WORKFLOW_BYTES, raw).await?;
        Ok(found.and_then(|text| text.as_str().map(str::to_owned)))
    }

    /// The latest attempt of a run; `None` when GitHub doesn't have it any more.
    pub async fn run(&self, repo: &str, run: u64) -> Result<Option<WorkflowRun>, GithubError> {
        self.json(&format!("{}/actions/runs/{run}", repo_path(repo)), Value::clone).await
    }

    /// The commit that a tag, branch or abbreviated hash names now; `None` if there is none.
    ///
    /// <https://docs.github.com/en/rest/commits/commits#get-a-commit>
    pub async fn commit_of(
        &self,
        repo: &str,
        reference: &str,
    ) -> Result<Option<String>, GithubError> {
        let path = format!("{}/commits/{}", repo_path(repo), encoded(reference));
        match self.json(&path, |answer| answer["sha"].clone()).await {
            // GitHub's answer for a name that is nothing's.
            Err(GithubError::Unprocessable(_)) => Ok(None),
            other => other,
        }
    }

    /// The newest run of the workflow with this path that `event` started and that has ended. Only this workflow's runs
    /// are listed: others may have hundreds since.
    pub async fn newest_completed_run(
        &self,
        repo: &str,
        path: &str,
        event: &str,
    ) -> Result<Option<WorkflowRun>, GithubError> {
        let query = format!("runs?event={}&status=completed&per_page=1", encoded(event));
        let list = format!("{}/{query}", workflow_path(repo, path));
        let keep = |answer: &Value| answer["workflow_runs"][0].clone();
        Ok(self.json::<Option<WorkflowRun>>(&list, keep).await?.flatten())
    }

    /// When the workflow with this path came to the repository; `None` where GitHub doesn't have it.
    pub async fn workflow_since(
        &self,
        repo: &str,
        path: &str,
    ) -> Result<Option<Timestamp>, GithubError> {
        let keep = |answer: &Value| answer["created_at"].clone();
        let found = self.json::<Option<Timestamp>>(&workflow_path(repo, path), keep).await?;
        Ok(found.flatten())
    }

    /// A variable for workflows of the repository, its own or one that its organisation shares with it.
    pub async fn variable(&self, repo: &str, name: &str) -> Result<Variable, GithubError> {
        let actions = format!("{}/actions", repo_path(repo));
        let own = format!("{actions}/variables/{}", encoded(name));
        match self.json::<String>(&own, |answer| answer["value"].clone()).await {
            Ok(Some(value)) => return Ok(Variable::Value(value)),
            // GitHub also answers 404 where the token may not look; then the list can't be read either.
            Ok(None) => {}
            Err(GithubError::Forbidden(_)) => return Ok(Variable::Hidden),
            Err(error) => return Err(error),
        }
        match self.exists(&format!("{actions}/variables?per_page=1")).await {
            Ok(true) => {}
            Ok(false) | Err(GithubError::Forbidden(_)) => return Ok(Variable::Hidden),
            Err(error) => return Err(error),
        }
        let keep = |answer: &Value| {
            let all = answer["variables"].as_array().map(Vec::as_slice).unwrap_or_default();
            let found = all.iter().find(|variable| variable["name"] == name);
            json!([all.len(), found.map(|variable| &variable["value"])])
        };
        for page in 1..=MAX_VARIABLE_PAGES {
            let query = format!("per_page={VARIABLES_PER_PAGE}&page={page}");
            let shared = format!("{actions}/organization-variables?{query}");
            match self.json::<(usize, Option<String>)>(&shared, keep).await {
                Ok(Some((_, Some(value)))) => return Ok(Variable::Value(value)),
                Ok(Some((VARIABLES_PER_PAGE, None))) => {}
                Ok(_) | Err(GithubError::Forbidden(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Variable::Missing)
    }

    /// How `sub` starts in the OIDC tokens of the repository's jobs.
    ///
    /// <https://docs.github.com/en/rest/actions/oidc>
    pub async fn subject_prefix(&self, repo: &str) -> Result<SubjectPrefix, GithubError> {
        let path = format!("{}/actions/oidc/customization/sub", repo_path(repo));
        let answer = match self.json::<Value>(&path, Value::clone).await {
            Ok(Some(answer)) => answer,
            Ok(None) | Err(GithubError::Forbidden(_)) => return Ok(SubjectPrefix::Hidden),
            Err(error) => return Err(error),
        };
        if answer["use_default"] == false {
            let claims = answer["include_claim_keys"].as_array().map(Vec::as_slice);
            let claims = claims.unwrap_or_default().iter().filter_map(Value::as_str);
            return Ok(SubjectPrefix::Custom(claims.take(50).map(str::to_owned).collect()));
        }
        let prefix = answer["sub_claim_prefix"].as_str();
        Ok(prefix.map_or(SubjectPrefix::Hidden, |prefix| SubjectPrefix::Default(prefix.to_owned())))
    }

    /// The cached answers, to write to disk.
    pub fn into_cache(self) -> LookupCache {
        self.cache.into_inner()
    }

    async fn exists(&self, path: &str) -> Result<bool, GithubError> {
        Ok(self.json::<bool>(path, |_| json!(true)).await?.is_some())
    }

    /// The part of a JSON answer that `keep` selects; `None` for 404.
    async fn json<T: DeserializeOwned>(
        &self,
        path: &str,
        keep: impl Fn(&Value) -> Value,
    ) -> Result<Option<T>, GithubError> {
        let read = |body: &[u8]| serde_json::from_slice(body).map(|answer| keep(&answer));
        let found = self.get(path, JSON, MAX_JSON_BYTES, read).await?;
        let parsed = found.map(serde_json::from_value).transpose();
        parsed.map_err(|error| malformed(path, &error))
    }

    async fn get(
        &self,
        path: &str,
        accept: &'static str,
        limit: usize,
        read: impl Fn(&[u8]) -> serde_json::Result<Value>,
    ) -> Result<Option<Value>, GithubError> {
        let key = format!("{}{path}", self.base);
        let known = self.cache.lock().get(&key);
        let etag = known.as_ref().map(|(etag, _)| etag.as_str());
        let request = RestRequest::get(path.to_owned()).accepting(accept).unless_etag(etag);
        let response = match self.send(&request).await {
            Err(GithubError::NotFound(_)) => return Ok(None),
            other => other?,
        };
        if let (StatusCode::NOT_MODIFIED, Some((_, value))) = (response.status(), known) {
            return Ok(Some(value));
        }
        let etag = response.headers().get(header::ETAG).and_then(|v| v.to_str().ok());
        let etag = etag.map(str::to_owned);
        let body = self.client.read(&request, response, limit).await?;
        let value = read(&body).map_err(|error| malformed(path, &error))?;
        if let Some(etag) = etag {
            self.cache.lock().put(key, etag, value.clone());
        }
        Ok(Some(value))
    }

    /// Sends a request, again while the failure is transient. Follows one redirect, which is where
    /// GitHub keeps a renamed repository.
    async fn send(&self, request: &RestRequest) -> Result<RestResponse, GithubError> {
        let mut request = Cow::Borrowed(request);
        let mut tries = self.retry.start();
        loop {
            self.check_rate_limit(&request)?;
            let error = match self.client.send(&request, &self.token).await {
                Ok(response) => {
                    self.note_rate_limit(response.headers());
                    return Ok(response);
                }
                Err(error) => error,
            };
            match &error {
                GithubError::RateLimited { until, .. } => {
                    *self.limited_until.lock() = Some(*until);
                    return Err(error);
                }
                GithubError::Moved { to, .. } if matches!(request, Cow::Borrowed(_)) => {
                    let Some(path) = path_by_number(to) else { return Err(error) };
                    request = Cow::Owned(request.at(path));
                }
                GithubError::Transient { .. } if tries.wait_to_retry(&error, None).await => {}
                _ => return Err(error),
            }
        }
    }

    /// GitHub would refuse the call, and counts refused calls against the token.
    fn check_rate_limit(&self, request: &RestRequest) -> Result<(), GithubError> {
        match *self.limited_until.lock() {
            Some(until) if until > self.client.now() => {
                Err(GithubError::RateLimited { until, call: request.name() })
            }
            _ => Ok(()),
        }
    }

    fn note_rate_limit(&self, headers: &HeaderMap) {
        let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
        if number("x-ratelimit-remaining") == Some(0) {
            let reset = number("x-ratelimit-reset").and_then(|at| Timestamp::from_second(at).ok());
            *self.limited_until.lock() = reset;
        }
    }
}

/// A workflow by the name of its file.
///
/// <https://docs.github.com/en/rest/actions/workflows#get-a-workflow>
fn workflow_path(repo: &str, path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    format!("{}/actions/workflows/{}", repo_path(repo), encoded(file))
}

fn malformed(path: &str, error: &serde_json::Error) -> GithubError {
    let source = HttpError::Malformed(error.to_string());
    GithubError::Malformed { call: format!("GET {path}"), source }
}
