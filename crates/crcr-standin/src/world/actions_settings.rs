//! What a repository has set for its workflows: variables, the form of `sub` in OIDC tokens, and since when each
//! workflow is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::Path;
use axum::response::IntoResponse as _;
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::World;
use super::api::{ApiResult, page, page_of, refusal};
use super::model::{WorldRepo, user};
use super::repo_call::{PathBelowRepo, RepoCall};
use crate::State;

/// How many variables a page has if the caller names no number, and at most.
const VARIABLES_PER_PAGE: (usize, usize) = (10, 30);

#[derive(Debug, Default)]
pub(crate) struct ActionsSettings {
    /// `None` hides them from whoever asks: reading them needs access to the repository.
    variables: Option<BTreeMap<String, String>>,
    /// Those that the organisation shares with it.
    organisation_variables: BTreeMap<String, String>,
    workflows_since: BTreeMap<String, Timestamp>,
    /// Tokens have the numbers of the owner and the repository in `sub`.
    immutable_subject: bool,
    /// The claims of a `sub` that isn't the default.
    custom_subject: Vec<String>,
}

impl World {
    /// Lets every caller read the variables of the repository, and sets some.
    pub fn put_variables(&self, name: &str, variables: &[(&str, &str)]) {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        self.lock().expect(name).settings.variables = Some(variables.collect());
    }

    /// A variable that the organisation shares with the repository.
    pub fn put_organisation_variable(&self, name: &str, variable: &str, value: &str) {
        let mut inner = self.lock();
        let settings = &mut inner.expect(name).settings;
        settings.organisation_variables.insert(variable.to_owned(), value.to_owned());
    }

    pub fn put_workflow_since(&self, name: &str, path: &str, since: Timestamp) {
        self.lock().expect(name).settings.workflows_since.insert(path.to_owned(), since);
    }

    /// Makes the repository one that was created after 15 July 2026.
    pub fn use_immutable_subject(&self, name: &str) {
        self.lock().expect(name).settings.immutable_subject = true;
    }

    pub fn use_custom_subject(&self, name: &str, claims: &[&str]) {
        let claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
        self.lock().expect(name).settings.custom_subject = claims;
    }
}

pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/repos/{owner}/{repo}/actions/variables", get(variables))
        .route("/repos/{owner}/{repo}/actions/variables/{variable}", get(variable))
        .route("/repos/{owner}/{repo}/actions/organization-variables", get(organisation_variables))
        .route("/repos/{owner}/{repo}/actions/workflows", get(workflows))
        .route("/repos/{owner}/{repo}/actions/workflows/{file}", get(workflow))
        .route("/repos/{owner}/{repo}/actions/oidc/customization/sub", get(subject))
}

/// Answers from the repository, if the caller may read that part of it.
fn read(
    call: &RepoCall,
    permission: &str,
    answer: impl FnOnce(&WorldRepo) -> Option<Value>,
) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, permission, "read")?;
    answer(repo).map(|body| Json(body).into_response()).ok_or_else(|| refusal(404, "Not Found"))
}

fn visible(repo: &WorldRepo) -> Result<&BTreeMap<String, String>, axum::response::Response> {
    let hidden = || refusal(403, "Resource not accessible by personal access token");
    repo.settings.variables.as_ref().ok_or_else(hidden)
}

fn listed(query: Option<&str>, variables: &BTreeMap<String, String>) -> Value {
    let all: Vec<_> = variables.iter().map(|(name, value)| one(name, value)).collect();
    json!({ "total_count": all.len(), "variables": page_of(query, all, VARIABLES_PER_PAGE) })
}

fn one(name: &str, value: &str) -> Value {
    json!({
        "name": name, "value": value,
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
    })
}

async fn variables(call: RepoCall) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "actions_variables", "read")?;
    Ok(Json(listed(call.uri.query(), visible(repo)?)).into_response())
}

async fn variable(call: RepoCall, Path((.., variable)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "actions_variables", "read")?;
    let found = visible(repo)?.get(&variable).map(|value| one(&variable, value));
    found.map(|body| Json(body).into_response()).ok_or_else(|| refusal(404, "Not Found"))
}

async fn organisation_variables(call: RepoCall) -> ApiResult {
    let query = call.uri.query();
    let answer = |repo: &WorldRepo| Some(listed(query, &repo.settings.organisation_variables));
    read(&call, "actions_variables", answer)
}

fn all_workflows(repo: &WorldRepo) -> Vec<Value> {
    let since = repo.settings.workflows_since.iter().enumerate();
    let all = since.map(|(n, (path, since))| {
        json!({
            "id": n + 1, "name": path, "path": path, "state": "active",
            "created_at": since, "updated_at": since,
        })
    });
    all.collect()
}

async fn workflows(call: RepoCall) -> ApiResult {
    read(&call, "actions", |repo| {
        let all = all_workflows(repo);
        Some(json!({ "total_count": all.len(), "workflows": page(call.uri.query(), all) }))
    })
}

/// A workflow by the name of its file.
async fn workflow(call: RepoCall, Path((.., file)): PathBelowRepo<String>) -> ApiResult {
    let path = format!(".github/workflows/{file}");
    read(&call, "actions", |repo| all_workflows(repo).into_iter().find(|it| it["path"] == path))
}

async fn subject(call: RepoCall) -> ApiResult {
    read(&call, "actions", |repo| {
        let settings = &repo.settings;
        let owner_id = user(repo.owner(), call.state.origin())["id"].clone();
        let prefix = match settings.immutable_subject {
            true => format!("repo:{}@{owner_id}/{}@{}", repo.owner(), repo.name(), repo.id),
            false => format!("repo:{}", repo.full_name),
        };
        Some(match &*settings.custom_subject {
            [] => json!({
                "use_default": true, "use_immutable_subject": settings.immutable_subject,
                "sub_claim_prefix": prefix,
            }),
            claims => json!({ "use_default": false, "include_claim_keys": claims }),
        })
    })
}
