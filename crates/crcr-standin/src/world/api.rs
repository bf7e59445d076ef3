//! The routes of the REST API, except those for checks and look-ups.

use std::collections::HashSet;
use std::sync::Arc;

use aws_lc_rs::digest;
use axum::body::Bytes;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use axum::{Json, Router, middleware};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::{APP_ID, CLIENT_ID, TokenRequest};
use super::model::{Comment, Dispatch, Started, label, user};
use super::repo_call::{PathBelowRepo, RepoCall};
use super::{actions_settings, calls, checks, git, hook_log, job_logs, lookups};
use crate::State;
use crate::runs::Run;

pub(crate) type ApiResult = Result<Response, Response>;

/// The most keys and characters of a `client_payload`.
const PAYLOAD_KEYS: usize = 10;
const PAYLOAD_CHARS: usize = 65_535;

/// The most characters of a pull request's title, and of its description or a comment.
pub(crate) const TITLE_CHARS: usize = 256;
pub(crate) const TEXT_CHARS: usize = 65_536;

/// All routes, at the root and below `/api/v3`, where GitHub Enterprise Server has them.
pub(crate) fn routes(state: &Arc<State>) -> Router<Arc<State>> {
    let below = "/repos/{owner}/{repo}";
    let at = |path: &str| format!("{below}{path}");
    let routes = Router::new()
        .route("/app", get(app))
        .route("/app/installations/{id}/access_tokens", post(access_token))
        .route(&at("/installation"), get(installation))
        .route(&at("/dispatches"), post(dispatch))
        .route(&at("/contents/{*path}"), get(contents))
        .route(&at("/git/commits/{sha}"), get(commit))
        .merge(git::routes())
        .route(&at("/compare/{basehead}"), get(compare))
        .route(&at("/pulls/{number}"), get(pull).patch(git::edit_pull))
        .route(&at("/issues/{number}/labels"), get(labels).post(git::add_labels))
        .route(&at("/issues/{number}/comments"), get(comments).post(create_comment))
        .route(&at("/issues/comments/{id}"), patch(edit_comment))
        .route(&at("/actions/runs/{run}/rerun"), post(rerun))
        .route(&at("/actions/runs/{run}/rerun-failed-jobs"), post(rerun_failed))
        .route(&at("/actions/jobs/{job}/logs"), get(job_logs::redirect))
        .merge(checks::routes())
        .merge(hook_log::routes())
        .merge(lookups::routes())
        .merge(actions_settings::routes())
        .layer(middleware::from_fn_with_state(Arc::clone(state), lookups::redirect_renamed))
        .layer(middleware::from_fn_with_state(Arc::clone(state), calls::observe));
    Router::new().nest("/api/v3", routes.clone()).merge(routes).merge(job_logs::storage())
}

/// An error response as GitHub writes it.
pub(crate) fn refusal(status: u16, message: &str) -> Response {
    let body = json!({
        "message": message, "status": status.to_string(),
        "documentation_url": "https://docs.github.com/rest",
    });
    (StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT), Json(body)).into_response()
}

/// The body as JSON; fails with GitHub's 400 for other text and 422 for other fields.
pub(crate) fn parse<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Response> {
    let value: Value =
        serde_json::from_slice(body).map_err(|_| refusal(400, "Problems parsing JSON"))?;
    serde_json::from_value(value)
        .map_err(|error| refusal(422, &format!("Invalid request.\n\n{error}")))
}

/// Fails with GitHub's 422 for a text that is too long.
pub(crate) fn check_length(field: &str, text: &str, most: usize) -> Result<(), Response> {
    if text.chars().count() <= most {
        return Ok(());
    }
    let why = format!("{field} is too long (maximum is {most} characters)");
    Err(refusal(422, &format!("Validation Failed: {why}")))
}

/// The page of a list that the query asks for.
pub(crate) fn page(query: Option<&str>, all: Vec<Value>) -> Vec<Value> {
    page_of(query, all, (30, 100))
}

/// [`page`] of a list with its own page sizes: the usual one and the largest.
pub(crate) fn page_of(
    query: Option<&str>,
    all: Vec<Value>,
    (usual, most): (usize, usize),
) -> Vec<Value> {
    let number = |name: &str, default: usize| {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let found = pairs.into_iter().find(|(key, _)| key == name);
        found.and_then(|(_, value)| value.parse::<usize>().ok()).unwrap_or(default)
    };
    let per_page = number("per_page", usual).clamp(1, most);
    all.into_iter().skip(number("page", 1).saturating_sub(1) * per_page).take(per_page).collect()
}

async fn app(Shared(state): Shared<Arc<State>>, headers: HeaderMap) -> ApiResult {
    state.world.check_app(&headers, state.clock.now())?;
    let events = state.world.hook_settings().events;
    let body = json!({
        "id": APP_ID, "client_id": CLIENT_ID, "node_id": "A_1",
        "slug": "crcr-stand-in", "name": "crcr stand-in",
        "owner": user("acme", state.origin()), "description": null, "html_url": state.origin(),
        "external_url": state.origin(), "created_at": state.clock.now(),
        "updated_at": state.clock.now(), "permissions": {}, "events": events,
    });
    Ok(Json(body).into_response())
}

async fn installation(call: RepoCall) -> ApiResult {
    call.state.world.check_app(&call.headers, call.state.clock.now())?;
    let inner = call.state.world.lock();
    let found = inner.repo(&call.name).and_then(|repo| repo.installation);
    let known = found.and_then(|id| Some((id, inner.installations.get(&id)?)));
    let (id, installation) = known.ok_or_else(|| refusal(404, "Not Found"))?;
    let origin = call.state.origin();
    let body = json!({
        "id": id, "account": user(&call.owner, origin), "repository_selection": "selected",
        "access_tokens_url": format!("{origin}/app/installations/{id}/access_tokens"),
        "repositories_url": format!("{origin}/installation/repositories"),
        "html_url": format!("{origin}/settings/installations/{id}"),
        "app_id": APP_ID,
        "app_slug": "crcr-stand-in", "target_id": 1, "target_type": "Organization",
        "permissions": installation.permissions,
        "events": ["check_run", "check_suite", "pull_request", "push"],
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
        "single_file_name": null, "suspended_by": null,
        "suspended_at": installation.suspended_at,
    });
    Ok(Json(body).into_response())
}

async fn access_token(
    Shared(state): Shared<Arc<State>>,
    Path(id): Path<u64>,
    headers: HeaderMap,
    body: Bytes,
) -> ApiResult {
    let now = state.clock.now();
    state.world.check_app(&headers, now)?;
    let wanted = if body.is_empty() { TokenRequest::default() } else { parse(&body)? };
    let answer = state.world.lock().issue(id, wanted, now, state.origin())?;
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

async fn dispatch(call: RepoCall, body: Bytes) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        event_type: String,
        #[serde(default)]
        client_payload: serde_json::Map<String, Value>,
    }
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "write")?;
    let repository = repo.full_name.clone();
    let body: Body = parse(&body)?;
    if body.event_type.is_empty() || body.event_type.chars().count() > 100 {
        return Err(refusal(422, "Invalid request.\n\n\"event_type\" is 1 to 100 characters."));
    }
    if body.client_payload.len() > PAYLOAD_KEYS {
        return Err(refusal(
            422,
            "Invalid request.\n\nNo more than 10 properties are allowed in client_payload.",
        ));
    }
    let client_payload = Value::Object(body.client_payload);
    if escaped_chars(&client_payload) > PAYLOAD_CHARS {
        return Err(refusal(422, "client_payload is too large."));
    }
    let dispatch = Dispatch { repository, event_type: body.event_type, client_payload };
    inner.dispatches.push(dispatch.clone());
    inner.tell(Started::Dispatch(dispatch));
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The length of the JSON as GitHub stores it, with `<`, `>` and `&` as six characters each.
fn escaped_chars(payload: &Value) -> usize {
    payload.to_string().chars().map(|c| if matches!(c, '<' | '>' | '&') { 6 } else { 1 }).sum()
}

async fn contents(call: RepoCall, Path((.., path)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "read")?;
    let pairs = url::form_urlencoded::parse(call.uri.query().unwrap_or_default().as_bytes());
    let reference = pairs.into_iter().find(|(key, _)| key == "ref").map(|(_, value)| value);
    let files = repo.files_at(reference.as_deref()).ok_or_else(|| refusal(404, "Not Found"))?;
    let Some(file) = files.get(&path) else {
        let list = lookups::folder(repo, &path).ok_or_else(|| refusal(404, "Not Found"))?;
        return Ok(lookups::conditional(&call.headers, &list));
    };
    let sha = hex::encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, file).as_ref());
    let etag = format!("\"{sha}\"");
    if call.headers.get(header::IF_NONE_MATCH).is_some_and(|known| *known == *etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    let accept = call.headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if accept.contains("raw") {
        let kind = "application/vnd.github.raw+json; charset=utf-8";
        return Ok(([(header::ETAG, etag.as_str()), (header::CONTENT_TYPE, kind)], file.clone())
            .into_response());
    }
    let body = json!({
        "type": "file", "encoding": "base64", "size": file.len(), "path": path, "sha": sha,
        "name": path.rsplit('/').next(), "content": STANDARD.encode(file),
    });
    Ok(([(header::ETAG, etag)], Json(body)).into_response())
}

async fn commit(call: RepoCall, Path((.., sha)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "read")?;
    let found = repo.commits.get(&sha).ok_or_else(|| refusal(404, "Not Found"))?;
    let tree = found.tree.clone().unwrap_or_else(|| "0".repeat(40));
    let url = format!("{}/repos/{}/git/commits/{sha}", call.state.origin(), repo.full_name);
    let person = json!({ "date": "2026-01-01T00:00:00Z", "email": "a@example.org", "name": "A" });
    let body = json!({
        "sha": sha, "node_id": "C_1", "url": url, "html_url": url, "author": person,
        "committer": person, "message": "Change",
        "parents": found.parents.iter().map(|sha| json!({ "sha": sha })).collect::<Vec<_>>(),
        "tree": { "sha": tree, "url": url },
        "verification": { "verified": false, "reason": "unsigned", "signature": null,
            "payload": null, "verified_at": null },
    });
    Ok(Json(body).into_response())
}

async fn compare(call: RepoCall, Path((.., both)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "read")?;
    let (base, head) = both.split_once("...").ok_or_else(|| refusal(404, "Not Found"))?;
    let (ours, theirs) = (repo.history(head), repo.history(base));
    if ours.is_empty() || theirs.is_empty() {
        return Err(refusal(404, "Not Found"));
    }
    let all_of = |history: &[&str]| history.iter().map(|sha| (*sha).to_owned()).collect();
    let (of_ours, of_theirs): (HashSet<String>, HashSet<String>) = (all_of(&ours), all_of(&theirs));
    let Some(common) = ours.iter().find(|sha| of_theirs.contains(**sha)) else {
        return Err(refusal(404, &format!("No common ancestor between {base} and {head}.")));
    };
    let added: Vec<_> = ours.iter().filter(|sha| !of_theirs.contains(**sha)).collect();
    let ahead = added.len();
    let behind = theirs.iter().filter(|sha| !of_ours.contains(**sha)).count();
    let show = |sha: &str| repo.commit_json(sha, call.state.origin());
    let status = match (ahead, behind) {
        (0, 0) => "identical",
        (_, 0) => "ahead",
        (0, _) => "behind",
        _ => "diverged",
    };
    let commits = added.into_iter().rev().map(|sha| show(sha)).collect();
    let url = format!("{}/{}/compare/{both}", call.state.origin(), repo.full_name);
    let body = json!({
        "url": format!("{}/repos/{}/compare/{both}", call.state.origin(), repo.full_name),
        "html_url": url, "permalink_url": url, "diff_url": format!("{url}.diff"),
        "patch_url": format!("{url}.patch"), "base_commit": show(base),
        "merge_base_commit": show(common), "status": status, "ahead_by": ahead,
        "behind_by": behind, "total_commits": ahead,
        "commits": if call.uri.query().is_some() { page(call.uri.query(), commits) } else { last(commits, 250) },
        "files": repo.changed_files(head).iter().take(300)
            .map(|name| json!({ "filename": name, "status": "modified" })).collect::<Vec<_>>(),
    });
    Ok(Json(body).into_response())
}

/// Without a page, the comparison has only the newest commits.
fn last(mut commits: Vec<Value>, count: usize) -> Vec<Value> {
    commits.drain(..commits.len().saturating_sub(count));
    commits
}

async fn pull(call: RepoCall, Path((.., number)): PathBelowRepo<u64>) -> ApiResult {
    call.at_pull(number, "read", |repo| {
        Ok(Json(repo.pull_json(&repo.pulls[&number], call.state.origin())).into_response())
    })
}

async fn labels(call: RepoCall, Path((.., number)): PathBelowRepo<u64>) -> ApiResult {
    call.at_pull(number, "read", |repo| {
        let names = repo.pulls[&number].labels.iter();
        let all = names.map(|name| label(name, call.state.origin())).collect();
        Ok(Json(page(call.uri.query(), all)).into_response())
    })
}

fn comment_json(comment: &Comment, name: &str, origin: &str) -> Value {
    let Comment { id, number, body, author, .. } = comment;
    let at = "2026-01-01T00:00:00Z";
    json!({
        "id": id, "node_id": format!("IC_{id}"), "body": body, "created_at": at,
        "updated_at": at, "url": format!("{origin}/repos/{name}/issues/comments/{id}"),
        "html_url": format!("{origin}/{name}/pull/{number}#issuecomment-{id}"),
        "issue_url": format!("{origin}/repos/{name}/issues/{number}"),
        "user": user(author, origin), "author_association": "NONE",
    })
}

async fn comments(call: RepoCall, Path((.., number)): PathBelowRepo<u64>) -> ApiResult {
    call.at_pull(number, "read", |repo| {
        let of_this = repo.comments.iter().filter(|comment| comment.number == number);
        let show = |comment| comment_json(comment, &repo.full_name, call.state.origin());
        Ok(Json(page(call.uri.query(), of_this.map(show).collect())).into_response())
    })
}

/// The text of a comment to write.
fn comment_text(body: &[u8]) -> Result<String, Response> {
    #[derive(Deserialize)]
    struct CommentText {
        body: String,
    }
    let CommentText { body } = parse(body)?;
    if body.trim().is_empty() {
        return Err(refusal(422, "Validation Failed: Body cannot be blank"));
    }
    check_length("Body", &body, TEXT_CHARS)?;
    Ok(body)
}

async fn create_comment(
    call: RepoCall,
    Path((.., number)): PathBelowRepo<u64>,
    body: Bytes,
) -> ApiResult {
    let id = call.state.world.lock().next_id();
    call.at_pull(number, "write", |repo| {
        let body = comment_text(&body)?;
        let author = "crcr-stand-in[bot]".to_owned();
        let comment = Comment { id, number, body, author, seen: false };
        let answer = comment_json(&comment, &repo.full_name, call.state.origin());
        repo.comments.push(comment);
        Ok((StatusCode::CREATED, Json(answer)).into_response())
    })
}

async fn edit_comment(
    call: RepoCall,
    Path((.., id)): PathBelowRepo<u64>,
    body: Bytes,
) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "pull_requests", "write")?;
    let body = comment_text(&body)?;
    let Some(comment) = repo.comments.iter_mut().find(|comment| comment.id == id) else {
        return Err(refusal(404, "Not Found"));
    };
    (comment.body, comment.seen) = (body, false);
    Ok(Json(comment_json(comment, &call.name, call.state.origin())).into_response())
}

async fn rerun(call: RepoCall, Path((.., run)): PathBelowRepo<u64>) -> ApiResult {
    rerun_with(&call, run, false)
}

async fn rerun_failed(call: RepoCall, Path((.., run)): PathBelowRepo<u64>) -> ApiResult {
    rerun_with(&call, run, true)
}

fn rerun_with(call: &RepoCall, run_id: u64, failed_only: bool) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "actions", "write")?;
    let repository = repo.full_name.clone();
    let run = call.state.runs.get(run_id).filter(|run| run.is_of(&repository));
    let run = run.ok_or_else(|| refusal(404, "Not Found"))?;
    if run.status != "completed" {
        return Err(refusal(403, "The workflow run containing this job is already running"));
    }
    // GitHub's answer for a run without a failed job.
    if failed_only && matches!(run.conclusion.as_deref(), Some("success" | "skipped")) {
        return Err(refusal(403, "This workflow run cannot be retried"));
    }
    let attempt = run.attempt + 1;
    let again = Run { attempt, status: "queued".to_owned(), conclusion: None, ..(*run).clone() };
    call.state.runs.add(again);
    let started = Started::Rerun { repository, run_id, attempt, failed_only };
    inner.reruns.push(started.clone());
    inner.tell(started);
    Ok((StatusCode::CREATED, Json(json!({}))).into_response())
}
