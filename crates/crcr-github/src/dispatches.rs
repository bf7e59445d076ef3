//! `repository_dispatch` events.
//!
//! <https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event>

use bytes::Bytes;
use http::Method;
use serde::Serialize;

use crate::app::{App, Call, Scope, Target, repo_path};
use crate::error::Error;

const WRITE: Scope = &[("contents", "write")];

#[derive(Serialize)]
struct Body<'a, P> {
    event_type: &'a str,
    client_payload: &'a P,
}

impl App {
    /// Starts the workflows of `repo` that listen for `event_type`, with `client_payload`; returns
    /// which repository it was, by number. With a `repository_id`, only that repository gets it:
    /// another one of the same name is [`Error::OtherRepository`].
    ///
    /// GitHub takes at most 10 keys and 65,535 characters: more is [`Error::Unprocessable`].
    pub async fn dispatch(
        &self,
        repo: &str,
        repository_id: Option<u64>,
        event_type: &str,
        client_payload: &(impl Serialize + Sync),
    ) -> Result<Target, Error> {
        let body = serde_json::to_vec(&Body { event_type, client_payload })
            .map_err(|error| Error::Unprocessable(error.to_string()))?;
        let call = Call {
            raw_body: Some(Bytes::from(body)),
            forget_on_404: true,
            repository_id,
            ..Call::new(Method::POST, format!("{}/dispatches", repo_path(repo)))
        };
        Ok(self.call(repo, WRITE, &call).await?.1)
    }

    /// What a dispatch to `repo` would reach, without dispatching: its installation, number and
    /// default branch. Costs nothing when it is known already.
    pub async fn target(&self, repo: &str) -> Result<Target, Error> {
        self.known(repo, WRITE).await
    }
}
