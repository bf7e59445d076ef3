//! Logs of jobs. GitHub answers with a signed address that needs no token.
//!
//! <https://docs.github.com/en/rest/actions/workflow-jobs#download-job-logs-for-a-workflow-run>

use bytes::Bytes;
use http::{StatusCode, header};
use reqwest::{Client, Response};
use secrecy::{ExposeSecret as _, SecretString};

use crate::SecureUrl;
use crate::app::{GithubApp, Permissions};
use crate::error::GithubError;
use crate::http::{self as web, HttpError};
use crate::rest::{RestRequest, RestResponse, repo_path};

const READ: Permissions = &[("actions", "read")];

/// The text of a log, as it arrives.
#[derive(Debug)]
pub struct JobLogBody {
    response: Response,
    call: String,
}

impl JobLogBody {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, GithubError> {
        let piece = self.response.chunk().await;
        piece.map_err(|error| GithubError::Transient {
            call: self.call.clone(),
            source: HttpError::Transport(error.without_url()),
        })
    }
}

impl GithubApp {
    /// Starts to read the log of job number `job_id` of `repo`, with the token of its installation.
    /// `http` follows the address in GitHub's answer, without the token.
    pub async fn job_log(
        &self,
        http: &Client,
        repo: &str,
        job_id: u64,
    ) -> Result<JobLogBody, GithubError> {
        let request = log_request(repo, job_id);
        let url = location_of(&request, self.call_renamed(repo, READ, &request).await, "the log")?;
        follow(http, &request, &url).await
    }
}

pub(crate) fn log_request(repo: &str, job_id: u64) -> RestRequest {
    RestRequest::get(format!("{}/actions/jobs/{job_id}/logs", repo_path(repo)))
}

/// The signed address that GitHub redirects to.
pub(crate) fn location_of(
    request: &RestRequest,
    answer: Result<RestResponse, GithubError>,
    what: &str,
) -> Result<SecretString, GithubError> {
    let location = match answer {
        Err(GithubError::Malformed {
            source: HttpError::Status { status: StatusCode::FOUND, headers, .. },
            ..
        }) => headers.get(header::LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned),
        Err(error) => return Err(error),
        // GitHub itself always redirects.
        Ok(response) => {
            let (status, body) = (response.status(), Bytes::new());
            let source = HttpError::Intermediary { status, body };
            return Err(GithubError::Transient { call: request.name(), source });
        }
    };
    location.map(SecretString::from).ok_or_else(|| GithubError::Malformed {
        call: request.name(),
        source: HttpError::Malformed(format!("it has no address of {what}")),
    })
}

/// Reads from a signed address. No token is sent.
pub(crate) async fn follow(
    http: &Client,
    request: &RestRequest,
    url: &SecretString,
) -> Result<JobLogBody, GithubError> {
    let call = request.name();
    let url: SecureUrl = url.expose_secret().parse().map_err(|error| GithubError::Malformed {
        call: call.clone(),
        source: HttpError::Malformed(format!("the address of the log {error}")),
    })?;
    match web::send_once(http.get((*url).clone())).await.map_err(HttpError::unless_page) {
        Ok(response) => Ok(JobLogBody { response, call }),
        // The store of logs answers this once a log is deleted.
        Err(HttpError::Status { status: StatusCode::NOT_FOUND | StatusCode::GONE, .. }) => {
            Err(GithubError::NotFound(call))
        }
        Err(source) => Err(GithubError::Transient { call, source }),
    }
}
