//! `repository_dispatch` events.
//!
//! <https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event>

use http::Method;
use serde::Serialize;

use crate::app::{AppRepository, GithubApp, Permissions};
use crate::error::GithubError;
use crate::rest::{RestRequest, repo_path};

const WRITE: Permissions = &[("contents", "write")];

#[derive(Serialize)]
struct DispatchBody<'a, P> {
    event_type: &'a str,
    client_payload: &'a P,
}

impl GithubApp {
    /// Starts the workflows of `repo` that listen for `event_type`; returns the repository that got
    /// the event. With a `repository_id`, another repository of that name gets nothing
    /// ([`GithubError::OtherRepository`]).
    ///
    /// GitHub takes at most 10 keys and 65,535 characters: more is [`GithubError::Unprocessable`].
    pub async fn dispatch(
        &self,
        repo: &str,
        repository_id: Option<u64>,
        event_type: &str,
        client_payload: &(impl Serialize + Sync),
    ) -> Result<AppRepository, GithubError> {
        let body = serde_json::to_vec(&DispatchBody { event_type, client_payload })
            .map_err(|error| GithubError::Unprocessable(error.to_string()))?;
        let path = format!("{}/dispatches", repo_path(repo));
        let request = RestRequest::new(Method::POST, path).with_body(body.into());
        let sent = self.call_repository(repo, repository_id, WRITE, &request).await;
        if let Err(GithubError::NotFound(_)) = &sent {
            // Deleted, renamed or taken out of the installation: start from scratch next time.
            self.forget(repo);
        }
        Ok(sent?.1)
    }

    /// The repository that a dispatch to `repo` would reach. Sends nothing when a token of it is
    /// remembered.
    pub async fn dispatch_target(&self, repo: &str) -> Result<AppRepository, GithubError> {
        self.repository(repo, WRITE).await
    }
}
