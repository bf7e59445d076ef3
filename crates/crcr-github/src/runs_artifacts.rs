//! Artifacts of any run over the REST API. For the job's own run, see [`crate::artifact`].
//!
//! <https://docs.github.com/en/rest/actions/artifacts>

use std::sync::Arc;

use jiff::Timestamp;
use reqwest::Client;
use secrecy::SecretString;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::GithubError;
use crate::http::RetryPolicy;
use crate::job_logs::{JobLogBody, follow, location_of, log_request};
use crate::null_as_default;
use crate::rest::{
    PAGE_SIZE, RestClient, RestRequest, RestResponse, all_pages, path_by_number, repo_path,
};
use crate::runs::{JobPage, WorkflowJob, WorkflowRun};
use crate::{ClientSetupError, SecureUrl};

/// The most pages that are read, of 100 entries; a run has at most 500 artifacts per job.
const MAX_PAGES: usize = 100;

/// GitHub's REST API for artifacts, with a token that has `actions: read`.
#[derive(Debug, Clone)]
pub struct ActionsApi {
    http: Client,
    base: SecureUrl,
    client: Arc<RestClient>,
    token: SecretString,
    retry: RetryPolicy,
}

#[derive(Debug, Clone, Deserialize)]
pub struct RunArtifact {
    pub id: u64,
    pub name: String,
    /// The size of the stored blob, in bytes.
    #[serde(default, deserialize_with = "null_as_default")]
    pub size_in_bytes: u64,
    /// Past its retention; there is nothing to download.
    #[serde(default, deserialize_with = "null_as_default")]
    pub expired: bool,
    pub created_at: Option<Timestamp>,
    /// `sha256:` and the digest of the stored blob; old artifacts have none.
    pub digest: Option<String>,
    pub workflow_run: Option<ArtifactRun>,
}

/// The workflow run that uploaded an artifact.
#[derive(Debug, Clone, Deserialize)]
pub struct ArtifactRun {
    pub id: u64,
}

#[derive(Deserialize)]
struct ArtifactPage {
    artifacts: Vec<RunArtifact>,
}

impl From<ArtifactPage> for Vec<RunArtifact> {
    fn from(page: ArtifactPage) -> Self {
        page.artifacts
    }
}

impl ActionsApi {
    /// The API at `base`, such as `https://api.github.com`. Needs a tokio runtime.
    pub fn new(
        http: Client,
        base: SecureUrl,
        token: SecretString,
    ) -> Result<Self, ClientSetupError> {
        let client = RestClient::new(http.clone(), &base, Arc::new(Timestamp::now))?;
        Ok(Self { http, base, client: Arc::new(client), token, retry: RetryPolicy::default() })
    }

    #[must_use]
    pub fn with_retry(self, retry: RetryPolicy) -> Self {
        Self { retry, ..self }
    }

    pub fn retry(&self) -> RetryPolicy {
        self.retry
    }

    /// The HTTP client, for the addresses that [`ActionsApi::archive_url`] returns.
    pub fn http(&self) -> &Client {
        &self.http
    }

    pub fn base(&self) -> &SecureUrl {
        &self.base
    }

    /// The latest attempt of run number `run_id` of `repo`.
    pub async fn workflow_run(&self, repo: &str, run_id: u64) -> Result<WorkflowRun, GithubError> {
        self.get_json(RestRequest::get(format!("{}/actions/runs/{run_id}", repo_path(repo)))).await
    }

    /// Attempt `attempt` of run number `run_id` of `repo`.
    pub async fn run_attempt(
        &self,
        repo: &str,
        run_id: u64,
        attempt: u32,
    ) -> Result<WorkflowRun, GithubError> {
        let path = format!("{}/actions/runs/{run_id}/attempts/{attempt}", repo_path(repo));
        self.get_json(RestRequest::get(path)).await
    }

    /// The jobs of an attempt, those that weren't run again included.
    pub async fn attempt_jobs(
        &self,
        repo: &str,
        run_id: u64,
        attempt: u32,
    ) -> Result<Vec<WorkflowJob>, GithubError> {
        let path = format!("{}/actions/runs/{run_id}/attempts/{attempt}/jobs", repo_path(repo));
        all_pages(&path, (PAGE_SIZE, MAX_PAGES), |request| self.get_json::<JobPage>(request)).await
    }

    pub async fn default_branch(&self, repo: &str) -> Result<String, GithubError> {
        #[derive(Deserialize)]
        struct Repository {
            default_branch: String,
        }
        let found: Repository = self.get_json(RestRequest::get(repo_path(repo))).await?;
        Ok(found.default_branch)
    }

    /// The artifacts of a run, with those that have expired.
    pub async fn run_artifacts(
        &self,
        repo: &str,
        run_id: u64,
    ) -> Result<Vec<RunArtifact>, GithubError> {
        let path = format!("{}/actions/runs/{run_id}/artifacts", repo_path(repo));
        all_pages(&path, (PAGE_SIZE, MAX_PAGES), |request| self.get_json::<ArtifactPage>(request))
            .await
    }

    /// Artifact number `id` of `repo`, of any run.
    pub async fn artifact(&self, repo: &str, id: u64) -> Result<RunArtifact, GithubError> {
        self.get_json(RestRequest::get(format!("{}/actions/artifacts/{id}", repo_path(repo)))).await
    }

    /// The address of the blob of artifact number `id`. It is signed: anybody can read the blob
    /// there for about ten minutes, without a token.
    pub async fn archive_url(&self, repo: &str, id: u64) -> Result<SecretString, GithubError> {
        let path = format!("{}/actions/artifacts/{id}/zip", repo_path(repo));
        let request = RestRequest::get(path);
        let location =
            || async { location_of(&request, self.send(&request).await, "the artifact") };
        self.client.with_retries(self.retry, location).await
    }

    /// Starts to read the log of job number `job_id` of `repo`.
    pub async fn job_log(&self, repo: &str, job_id: u64) -> Result<JobLogBody, GithubError> {
        let request = log_request(repo, job_id);
        let open = || async {
            let answer = self.send(&request).await;
            follow(&self.http, &request, &location_of(&request, answer, "the log")?).await
        };
        self.client.with_retries(self.retry, open).await
    }

    async fn get_json<T: DeserializeOwned>(&self, request: RestRequest) -> Result<T, GithubError> {
        let read = || async { self.client.read_json(&request, self.send(&request).await?).await };
        self.client.with_retries(self.retry, read).await
    }

    /// Sends a call, also of a repository that has another name now: GitHub redirects to its number.
    async fn send(&self, request: &RestRequest) -> Result<RestResponse, GithubError> {
        match self.client.send(request, &self.token).await {
            Err(GithubError::Moved { call, to }) => {
                let Some(path) = path_by_number(&to) else {
                    return Err(GithubError::Moved { call, to });
                };
                self.client.send(&request.at(path), &self.token).await
            }
            sent => sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;
    use serde_json::json;
    use wiremock::matchers::{header, method, path, query_param};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    async fn actions() -> (MockServer, ActionsApi) {
        let server = MockServer::start().await;
        let http = crate::http::client().unwrap();
        let base = server.uri().parse().unwrap();
        let actions = ActionsApi::new(http, base, "t0ken".to_owned().into()).unwrap();
        (server, actions.with_retry(RetryPolicy::ONCE))
    }

    #[tokio::test]
    async fn run_artifacts_reads_all_pages_and_knows_expired_ones() {
        let (server, actions) = actions().await;
        let artifact = |id: usize| json!({"id": id, "name": "n", "expired": id == 3});
        for (page, ids) in [("1", 0..100), ("2", 100..105)] {
            let artifacts: Vec<_> = ids.map(artifact).collect();
            Mock::given(method("GET"))
                .and(path("/repos/acme/upstream/actions/runs/42/artifacts"))
                .and(query_param("page", page))
                .and(header("authorization", "Bearer t0ken"))
                .respond_with(
                    ResponseTemplate::new(200)
                        .set_body_json(json!({"total_count": 105, "artifacts": artifacts})),
                )
                .expect(1)
                .mount(&server)
                .await;
        }
        let all = actions.run_artifacts("acme/upstream", 42).await.unwrap();
        assert_eq!(all.len(), 105);
        assert_eq!(all.iter().filter(|artifact| artifact.expired).count(), 1);
    }

    #[tokio::test]
    async fn renamed_repository_is_read_by_its_number() {
        let (server, actions) = actions().await;
        let (old, new) =
            ("/repos/acme/old/actions/artifacts/9", "/repositories/7/actions/artifacts/9");
        let moved = format!("{}{new}", server.uri());
        Mock::given(path(old))
            .respond_with(ResponseTemplate::new(301).insert_header("location", moved))
            .mount(&server)
            .await;
        Mock::given(path(new))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!({"id": 9, "name": "n"})))
            .mount(&server)
            .await;
        assert_eq!(actions.artifact("acme/old", 9).await.unwrap().id, 9);
    }

    #[tokio::test]
    async fn archive_url_returns_the_redirect_without_following_it() {
        let (server, actions) = actions().await;
        let url = "https://blob.invalid/x?sig=s";
        Mock::given(path("/repos/acme/upstream/actions/artifacts/7/zip"))
            .respond_with(ResponseTemplate::new(302).insert_header("location", url))
            .mount(&server)
            .await;
        let given = actions.archive_url("acme/upstream", 7).await.unwrap();
        assert_eq!(given.expose_secret(), url);
        assert!(matches!(
            actions.archive_url("acme/other", 7).await,
            Err(GithubError::NotFound(_))
        ));
    }
}
