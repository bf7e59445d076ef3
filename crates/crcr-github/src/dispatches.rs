//! `repository_dispatch` events.
//!
//! <https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event>

use http::Method;
use jiff::Timestamp;
use serde::Serialize;

use crate::app::{AppRepository, GithubApp, Permissions};
use crate::error::GithubError;
use crate::rest::{RestRequest, repo_path, response_date};

const WRITE: Permissions = &[("contents", "write")];

#[derive(Serialize)]
struct DispatchBody<'a, P> {
    event_type: &'a str,
    client_payload: &'a P,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedDispatch {
    /// The repository that got the event.
    pub repository: AppRepository,
    /// When, by GitHub's clock, in whole seconds. `None`: something on the way has removed the `Date`.
    pub accepted_at: Option<Timestamp>,
}

impl GithubApp {
    /// Starts the workflows of `repo` that listen for `event_type`. With a `repository_id`, another repository of that
    /// name gets nothing ([`GithubError::OtherRepository`]).
    ///
    /// GitHub takes at most 10 keys and 65,535 characters: more is [`GithubError::Unprocessable`].
    pub async fn dispatch(
        &self,
        repo: &str,
        repository_id: Option<u64>,
        event_type: &str,
        client_payload: &(impl Serialize + Sync),
    ) -> Result<AcceptedDispatch, GithubError> {
        let body = serde_json::to_vec(&DispatchBody { event_type, client_payload })
            .map_err(|error| GithubError::Unprocessable(error.to_string()))?;
        let path = format!("{}/dispatches", repo_path(repo));
        let request = RestRequest::new(Method::POST, path).with_body(body.into());
        let sent = self.call_repository(repo, repository_id, WRITE, &request).await;
        if let Err(GithubError::NotFound(_)) = &sent {
            // Deleted, renamed or taken out of the installation: start from scratch next time.
            self.forget(repo);
        }
        let (response, repository) = sent?;
        let accepted_at = response_date(response.headers());
        self.client().confirm(&request, response).await?;
        Ok(AcceptedDispatch { repository, accepted_at })
    }

    /// The repository that a dispatch to `repo` would reach. Sends nothing when a token of it is
    /// remembered.
    pub async fn dispatch_target(&self, repo: &str) -> Result<AppRepository, GithubError> {
        self.repository(repo, WRITE).await
    }
}
