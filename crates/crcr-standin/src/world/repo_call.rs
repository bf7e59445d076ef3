//! What a handler of a repository's route gets.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use super::WorldState;
use super::api::{ApiResult, refusal};
use super::model::WorldRepo;
use crate::State;

/// What stands behind the repository in a route's path.
pub(crate) type PathBelowRepo<T> = Path<(String, String, T)>;

pub(crate) struct RepoCall {
    pub(crate) state: Arc<State>,
    pub(crate) owner: String,
    /// With the owner, in the caller's spelling.
    pub(crate) name: String,
    pub(crate) headers: HeaderMap,
    pub(crate) uri: Uri,
}

impl FromRequestParts<Arc<State>> for RepoCall {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<State>,
    ) -> Result<Self, Self::Rejection> {
        #[derive(Deserialize)]
        struct RepoPath {
            owner: String,
            repo: String,
        }
        let path = Path::<RepoPath>::from_request_parts(parts, state).await;
        let Path(RepoPath { owner, repo }) = path.map_err(|error| error.into_response())?;
        let (name, headers) = (format!("{owner}/{repo}"), parts.headers.clone());
        Ok(Self { state: Arc::clone(state), owner, name, headers, uri: parts.uri.clone() })
    }
}

impl RepoCall {
    /// The repository, if the caller has `permission` at `level` there.
    pub(crate) fn permitted<'a>(
        &self,
        inner: &'a mut WorldState,
        permission: &str,
        level: &str,
    ) -> Result<&'a mut WorldRepo, Response> {
        let now = self.state.clock.now();
        inner.permitted(&self.headers, &self.name, (permission, level), now)
    }

    /// Runs `act` on a pull request, if the caller has `pull_requests` at `level`.
    pub(crate) fn at_pull(
        &self,
        number: u64,
        level: &str,
        act: impl FnOnce(&mut WorldRepo) -> ApiResult,
    ) -> ApiResult {
        let mut inner = self.state.world.lock();
        let repo = self.permitted(&mut inner, "pull_requests", level)?;
        if !repo.pulls.contains_key(&number) {
            return Err(refusal(404, "Not Found"));
        }
        act(repo)
    }
}
