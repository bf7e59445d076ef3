//! Artifacts of any run, over the REST API: for runs other than the job's own.
//!
//! <https://docs.github.com/en/rest/actions/artifacts>

use jiff::Timestamp;
use reqwest::{Client, StatusCode, header};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::SecureUrl;
use crate::app::{MAX_ANSWER, repo_path};
use crate::error::Error;
use crate::http::{self as web, Retry};
use crate::runs::WorkflowRun;

/// Artifacts a page; GitHub's maximum.
const PAGE: usize = 100;
/// The most pages that are read; a run has at most 500 artifacts a job.
const MAX_PAGES: usize = 100;

/// GitHub's REST API with a token that has `actions: read`.
#[derive(Debug, Clone)]
pub struct Actions {
    http: Client,
    base: SecureUrl,
    token: SecretString,
    retry: Retry,
}

/// An artifact as the REST API shows it.
#[derive(Debug, Clone, Deserialize)]
pub struct RunArtifact {
    pub id: u64,
    pub name: String,
    /// The size of the stored blob, in bytes.
    #[serde(default)]
    pub size_in_bytes: u64,
    /// Whether its days are over; there is nothing to download then.
    #[serde(default)]
    pub expired: bool,
    #[serde(default)]
    pub created_at: Option<Timestamp>,
    /// `sha256:` and the digest of the stored blob; old artifacts have none.
    #[serde(default)]
    pub digest: Option<String>,
    /// The run that made it.
    #[serde(default)]
    pub workflow_run: Option<RunOfArtifact>,
}

/// The run that made an artifact.
#[derive(Debug, Clone, Deserialize)]
pub struct RunOfArtifact {
    pub id: u64,
}

impl Actions {
    /// The API at `base` (`https://api.github.com`), asked with `token`.
    pub fn new(http: Client, base: SecureUrl, token: SecretString) -> Self {
        Self { http, base, token, retry: Retry::default() }
    }

    /// The same API, tried as `retry` says.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// The client, for the URLs that the API redirects to.
    pub fn http(&self) -> &Client {
        &self.http
    }

    pub fn base(&self) -> &SecureUrl {
        &self.base
    }

    /// Run number `run_id` of `repo`, its latest attempt.
    pub async fn workflow_run(&self, repo: &str, run_id: u64) -> Result<WorkflowRun, Error> {
        self.get(&format!("{}/actions/runs/{run_id}", repo_path(repo)), &[]).await
    }

    /// The artifacts of a run that can still be downloaded, all of them or those of one name.
    pub async fn run_artifacts(
        &self,
        repo: &str,
        run_id: u64,
        name: Option<&str>,
    ) -> Result<Vec<RunArtifact>, Error> {
        #[derive(Deserialize)]
        struct Page {
            artifacts: Vec<RunArtifact>,
        }
        let path = format!("{}/actions/runs/{run_id}/artifacts", repo_path(repo));
        let mut all = Vec::new();
        for page in 1..=MAX_PAGES {
            let (size, number) = (PAGE.to_string(), page.to_string());
            let mut query = vec![("per_page", size.as_str()), ("page", number.as_str())];
            query.extend(name.map(|name| ("name", name)));
            let Page { artifacts } = self.get(&path, &query).await?;
            let last = artifacts.len() < PAGE;
            all.extend(artifacts);
            if last {
                break;
            }
        }
        all.retain(|a| !a.expired && name.is_none_or(|name| a.name == name));
        Ok(all)
    }

    /// Artifact number `id` of `repo`, of whatever run.
    pub async fn artifact(&self, repo: &str, id: u64) -> Result<RunArtifact, Error> {
        self.get(&format!("{}/actions/artifacts/{id}", repo_path(repo)), &[]).await
    }

    /// A URL that the blob of artifact number `id` is read from, without any token, for about ten
    /// minutes.
    pub async fn archive_url(&self, repo: &str, id: u64) -> Result<SecretString, Error> {
        let path = format!("{}/actions/artifacts/{id}/zip", repo_path(repo));
        let answer = match self.send(&path, &[]).await {
            Err(web::Error::Status { status, headers, .. }) if status == StatusCode::FOUND => {
                headers.get(header::LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned)
            }
            Err(error) => return Err(told(&path, error)),
            Ok(_) => None,
        };
        let url = answer.ok_or_else(|| web::Error::Malformed("it gave no address".to_owned()));
        Ok(url.map_err(|error| told(&path, error))?.into())
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, Error> {
        let answer = self.send(path, query).await.map_err(|e| told(path, e))?;
        web::read_json(answer, MAX_ANSWER).await.map_err(|e| told(path, e))
    }

    async fn send(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<reqwest::Response, web::Error> {
        let base = self.base.as_str().trim_end_matches('/');
        web::send(self.retry, || {
            self.http
                .get(format!("{base}{path}"))
                .query(query)
                .bearer_auth(self.token.expose_secret())
                .header(header::ACCEPT, "application/vnd.github+json")
                .header("x-github-api-version", "2022-11-28")
        })
        .await
    }
}

fn told(path: &str, error: web::Error) -> Error {
    Error::from_http(&format!("GET {path}"), error, Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wiremock::matchers::{header, method, path, query_param};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    async fn actions() -> (MockServer, Actions) {
        let server = MockServer::start().await;
        let http = web::client().unwrap();
        let actions = Actions::new(http, server.uri().parse().unwrap(), "t0ken".to_owned().into());
        (server, actions.with_retry(Retry::ONCE))
    }

    #[tokio::test]
    async fn a_list_of_several_pages_is_read_to_its_end_without_the_expired() {
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
        let all = actions.run_artifacts("acme/upstream", 42, None).await.unwrap();
        assert_eq!(all.len(), 104);
    }

    #[tokio::test]
    async fn the_address_of_a_blob_is_given_and_not_followed() {
        let (server, actions) = actions().await;
        let url = "https://blob.invalid/x?sig=s";
        Mock::given(path("/repos/acme/upstream/actions/artifacts/7/zip"))
            .respond_with(ResponseTemplate::new(302).insert_header("location", url))
            .mount(&server)
            .await;
        let given = actions.archive_url("acme/upstream", 7).await.unwrap();
        assert_eq!(given.expose_secret(), url);
        assert!(matches!(actions.archive_url("acme/other", 7).await, Err(Error::NotFound(_))));
    }
}
