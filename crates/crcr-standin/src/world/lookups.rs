//! Look-ups: repositories and their new names, people, teams, labels, folders.

use std::sync::Arc;

use aws_lc_rs::digest;
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::api::{ApiResult, page, refusal};
use super::auth::secret_of;
use super::model::{WorldRepo, label, user};
use super::repo_call::{PathBelowRepo, RepoCall};
use super::{World, WorldState};
use crate::State;

impl World {
    /// A user's token that can read everything public, and teams when `teams` is set (`read:org`).
    pub fn reader_token(&self, teams: bool) -> String {
        let secret = format!("ghp_{}", uuid::Uuid::new_v4().simple());
        self.lock().readers.insert(secret.clone(), teams);
        secret
    }

    /// Renames a repository; calls under its old name are redirected.
    pub fn rename_repo(&self, name: &str, to: &str) {
        let mut inner = self.lock();
        let mut repo = inner.repos.remove(&name.to_lowercase()).expect("it was added before");
        repo.full_name = to.to_owned();
        inner.moved.insert(name.to_lowercase(), repo.id);
        inner.repos.insert(to.to_lowercase(), repo);
    }

    pub fn archive_repo(&self, name: &str) {
        self.lock().expect(name).archived = true;
    }

    /// Adds a label to a repository.
    pub fn add_label(&self, name: &str, label: &str) {
        self.lock().expect(name).labels.insert(label.to_owned());
    }

    /// Tags a commit, which needn't exist.
    pub fn add_tag(&self, name: &str, tag: &str, sha: &str) {
        self.lock().expect(name).tags.insert(tag.to_owned(), sha.to_owned());
    }

    /// Adds a person or an organisation.
    pub fn add_user(&self, login: &str) {
        self.lock().people.insert(login.to_lowercase());
    }

    /// Adds a team, and its organisation when that is new.
    pub fn add_team(&self, org: &str, slug: &str) {
        self.add_user(org);
        self.lock().teams.insert((org.to_lowercase(), slug.to_lowercase()));
    }
}

impl World {
    /// Adds an active member to a team, and the team if it is new.
    pub fn add_member(&self, org: &str, slug: &str, login: &str) {
        self.add_team(org, slug);
        self.add_user(login);
        let member = [org, slug, login].map(str::to_lowercase);
        self.lock().members.insert(member.into());
    }

    /// A review of the head of a pull request; `state` is GitHub's, such as `APPROVED`.
    pub fn review_pull(&self, name: &str, number: u64, login: &str, state: &str) {
        let mut inner = self.lock();
        let pull = inner.expect(name).pulls.get(&number).expect("it was opened before");
        let review = json!({
            "user": { "login": login }, "state": state, "commit_id": pull.head_sha, "body": "",
        });
        inner.reviews.entry((name.to_lowercase(), number)).or_default().push(review);
    }
}

impl WorldState {
    /// The redirect for a call under a renamed repository's old name.
    pub(crate) fn moved_to(
        &self,
        name: &str,
        below: &str,
        status: StatusCode,
        origin: &str,
    ) -> Option<Response> {
        let id = self.moved.get(&name.to_lowercase()).filter(|_| self.repo(name).is_none())?;
        let to = format!("{origin}/repositories/{id}{below}");
        let body = Json(json!({ "message": "Moved Permanently", "url": to }));
        Some((status, [(header::LOCATION, to)], body).into_response())
    }
}

/// Routes whose calls aren't recorded, in front of which nothing else redirects.
const UNOBSERVED: [&str; 3] = ["actions/runs", "actions/artifacts", "actions/workflows"];

/// The redirect of a call by a renamed repository's old name.
fn redirect_of(state: &State, request: &Request) -> Option<Response> {
    let uri = request.uri();
    let (owner, rest) = uri.path().strip_prefix("/repos/")?.split_once('/')?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (name, below) = (format!("{owner}/{}", &rest[..end]), &rest[end..]);
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    // GitHub answers 307 to others, which keeps their method.
    let status = match *request.method() {
        Method::GET => StatusCode::MOVED_PERMANENTLY,
        _ => StatusCode::TEMPORARY_REDIRECT,
    };
    state.world.lock().moved_to(&name, &format!("{below}{query}"), status, state.origin())
}

/// Calls by a renamed repository's old name are redirected to its number.
pub(crate) async fn redirect_renamed(
    Shared(state): Shared<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    match redirect_of(&state, &request) {
        Some(moved) => moved,
        None => next.run(request).await,
    }
}

/// Calls by number mean the repository, whatever its name is.
pub(crate) async fn by_number(
    Shared(state): Shared<Arc<State>>,
    mut request: Request,
    next: Next,
) -> Response {
    let uri = request.uri().clone();
    let parts: Vec<&str> = uri.path().splitn(5, '/').collect();
    match parts[..] {
        ["", "repos", _, _, below] if UNOBSERVED.iter().any(|path| below.starts_with(path)) => {
            if let Some(moved) = redirect_of(&state, &request) {
                return moved;
            }
        }
        ["", "repositories", id, first, ref rest @ ..] => {
            let inner = state.world.lock();
            let mut all = inner.repos.values();
            let found = all.find(|repo| repo.id.to_string() == id).map(|repo| &repo.full_name);
            let below = [&[first], rest].concat().join("/");
            let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            let to = found.map(|name| format!("/repos/{name}/{below}{query}"));
            drop(inner);
            if let Some(Ok(to)) = to.map(|to| to.parse()) {
                *request.uri_mut() = to;
            }
        }
        _ => {}
    }
    next.run(request).await
}

pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/rate_limit", get(rate_limit))
        .route("/repos/{owner}/{repo}", get(repository))
        .route("/repositories/{id}", get(repository_by_id))
        .route("/repos/{owner}/{repo}/labels/{name}", get(repository_label))
        .route("/repos/{owner}/{repo}/commits/{sha}", get(named_commit))
        .route("/users/{login}", get(person))
        .route("/orgs/{org}/teams", get(teams))
        .route("/orgs/{org}/teams/{slug}", get(team))
        .route("/orgs/{org}/teams/{slug}/memberships/{login}", get(membership))
        .route("/repos/{owner}/{repo}/pulls/{number}/reviews", get(reviews))
}

/// Also shows the scopes of a person's token, and the time by the stand-in's clock.
async fn rate_limit(Shared(state): Shared<Arc<State>>, headers: HeaderMap) -> ApiResult {
    let inner = state.world.lock();
    let date = state.clock.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let mut answer = match secret_of(&headers) {
        Some(secret) if inner.readers.contains_key(secret) || inner.tokens.contains_key(secret) => {
            let core = json!({ "limit": 5000, "remaining": 4999 });
            Json(json!({ "resources": { "core": core } })).into_response()
        }
        Some(_) => return Err(refusal(401, "Bad credentials")),
        None => {
            let core = json!({ "limit": 60, "remaining": 59 });
            Json(json!({ "resources": { "core": core } })).into_response()
        }
    };
    let header = |text: &str| text.parse().expect("it is ASCII");
    answer.headers_mut().insert(header::DATE, header(&date));
    if let Some(teams) = secret_of(&headers).and_then(|secret| inner.readers.get(secret)) {
        let scopes = if *teams { "read:org" } else { "" };
        answer.headers_mut().insert("x-oauth-scopes", header(scopes));
    }
    Ok(answer)
}

async fn repository(call: RepoCall) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "metadata", "read")?;
    Ok(conditional(&call.headers, &repo.json(call.state.origin())))
}

async fn repository_by_id(
    Shared(state): Shared<Arc<State>>,
    Path(id): Path<u64>,
    headers: HeaderMap,
) -> ApiResult {
    let mut inner = state.world.lock();
    let name = inner.repos.values().find(|repo| repo.id == id).map(|repo| repo.full_name.clone());
    let name = name.ok_or_else(|| refusal(404, "Not Found"))?;
    let repo = inner.permitted(&headers, &name, ("metadata", "read"), state.clock.now())?;
    Ok(conditional(&headers, &repo.json(state.origin())))
}

async fn repository_label(call: RepoCall, Path((.., name)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "metadata", "read")?;
    let found = repo.labels.iter().find(|known| known.eq_ignore_ascii_case(&name));
    let found = found.ok_or_else(|| refusal(404, "Not Found"))?;
    Ok(conditional(&call.headers, &label(found, call.state.origin())))
}

/// The commit of a tag, a branch or a hash.
async fn named_commit(call: RepoCall, Path((.., name)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "read")?;
    let named = repo.tags.get(&name).or_else(|| repo.branches.get(&name));
    let known = repo.commits.contains_key(&name).then_some(&name);
    let refused = || refusal(422, &format!("No commit found for SHA: {name}"));
    let sha = named.or(known).ok_or_else(refused)?;
    Ok(conditional(&call.headers, &json!({ "sha": sha })))
}

async fn person(
    Shared(state): Shared<Arc<State>>,
    Path(login): Path<String>,
    headers: HeaderMap,
) -> ApiResult {
    let inner = state.world.lock();
    if !inner.people.contains(&login.to_lowercase()) {
        return Err(refusal(404, "Not Found"));
    }
    Ok(conditional(&headers, &user(&login, state.origin())))
}

/// As on GitHub, 404 when the token may not read teams.
async fn teams(
    Shared(state): Shared<Arc<State>>,
    Path(org): Path<String>,
    headers: HeaderMap,
) -> ApiResult {
    let inner = state.world.lock();
    if !inner.reads_teams(&headers) || !inner.people.contains(&org.to_lowercase()) {
        return Err(refusal(404, "Not Found"));
    }
    let of_org = inner.teams.iter().filter(|(of, _)| *of == org.to_lowercase());
    let list = of_org.map(|(_, slug)| json!({ "slug": slug, "name": slug })).collect();
    Ok(conditional(&headers, &Value::Array(list)))
}

async fn team(
    Shared(state): Shared<Arc<State>>,
    Path((org, slug)): Path<(String, String)>,
    headers: HeaderMap,
) -> ApiResult {
    let inner = state.world.lock();
    let known = inner.teams.contains(&(org.to_lowercase(), slug.to_lowercase()));
    if !known || !inner.reads_teams(&headers) {
        return Err(refusal(404, "Not Found"));
    }
    Ok(conditional(&headers, &json!({ "slug": slug, "name": slug })))
}

async fn membership(
    Shared(state): Shared<Arc<State>>,
    Path((org, slug, login)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> ApiResult {
    let inner = state.world.lock();
    let member = [&org, &slug, &login].map(|name| name.to_lowercase()).into();
    if !inner.members.contains(&member) || !inner.reads_teams(&headers) {
        return Err(refusal(404, "Not Found"));
    }
    Ok(conditional(&headers, &json!({ "role": "member", "state": "active" })))
}

async fn reviews(call: RepoCall, Path((.., number)): PathBelowRepo<u64>) -> ApiResult {
    let mut inner = call.state.world.lock();
    call.permitted(&mut inner, "pull_requests", "read")?;
    let all = inner.reviews.get(&(call.name.to_lowercase(), number)).cloned().unwrap_or_default();
    Ok(conditional(&call.headers, &Value::Array(page(call.uri.query(), all))))
}

impl WorldState {
    fn reads_teams(&self, headers: &HeaderMap) -> bool {
        secret_of(headers).and_then(|secret| self.readers.get(secret)).copied().unwrap_or(false)
    }
}

/// The files directly in the folder `path`, as the contents API lists them.
pub(crate) fn folder(repo: &WorldRepo, path: &str) -> Option<Value> {
    let below = format!("{}/", path.trim_matches('/'));
    let files = repo.files.iter().filter_map(|(name, bytes)| {
        let rest = name.strip_prefix(&below).filter(|rest| !rest.contains('/'))?;
        Some(json!({
            "type": "file", "name": rest, "path": name, "size": bytes.len(),
            "sha": hex::encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref()),
        }))
    });
    let list: Vec<Value> = files.collect();
    (!list.is_empty()).then_some(Value::Array(list))
}

/// The answer with its `ETag`, or 304 when the caller has that version.
pub(crate) fn conditional(headers: &HeaderMap, body: &Value) -> Response {
    let text = body.to_string();
    let sha = digest::digest(&digest::SHA256, text.as_bytes());
    let etag = format!("W/\"{}\"", hex::encode(sha.as_ref()));
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| *known == *etag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response();
    }
    ([(header::ETAG, etag)], Json(body)).into_response()
}
