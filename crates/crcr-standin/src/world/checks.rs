//! Check runs. All check runs of a commit are in one check suite.

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::api::{ApiResult, page, parse, refusal};
use super::auth::{APP_ID, CLIENT_ID};
use super::model::{CheckRun, WorldRepo, node_id};
use super::repo_call::{PathBelowRepo, RepoCall};
use crate::State;

pub(crate) fn routes() -> Router<Arc<State>> {
    let at = |path: &str| format!("/repos/{{owner}}/{{repo}}{path}");
    Router::new()
        .route(&at("/check-runs"), post(create))
        .route(&at("/check-runs/{id}"), get(show).patch(update))
        .route(&at("/check-suites/{id}/check-runs"), get(of_suite))
        .route(&at("/commits/{sha}/check-runs"), get(of_commit))
}

/// The body of a creation or update.
#[derive(Debug, Deserialize)]
struct CheckRunFields {
    name: Option<String>,
    head_sha: Option<String>,
    external_id: Option<String>,
    details_url: Option<String>,
    status: Option<String>,
    conclusion: Option<String>,
    completed_at: Option<Timestamp>,
    output: Option<OutputFields>,
}

#[derive(Debug, Deserialize)]
struct OutputFields {
    title: Option<String>,
    summary: String,
}

const STATUSES: [&str; 3] = ["queued", "in_progress", "completed"];
const CONCLUSIONS: [&str; 7] =
    ["action_required", "cancelled", "failure", "neutral", "success", "skipped", "timed_out"];

impl CheckRunFields {
    /// GitHub's rules: known values, a conclusion with `completed`, no text that is too long.
    fn check(&self) -> Result<(), String> {
        let known = |value: &Option<String>, words: &[&str]| {
            value.as_deref().is_none_or(|value| words.contains(&value))
        };
        if !known(&self.status, &STATUSES) || !known(&self.conclusion, &CONCLUSIONS) {
            return Err(format!("{:?} or {:?} is unknown", self.status, self.conclusion));
        }
        if self.status.as_deref() == Some("completed") && self.conclusion.is_none() {
            return Err("completed needs a conclusion".to_owned());
        }
        if self.completed_at.is_some() && self.conclusion.is_none() {
            return Err("completed_at needs a conclusion".to_owned());
        }
        if self.name.as_deref() == Some("") {
            return Err("name is empty".to_owned());
        }
        if self.output.as_ref().is_some_and(|output| output.summary.len() > 65_535) {
            return Err("summary exceeds a maximum bytesize of 65535".to_owned());
        }
        let Some(url) = &self.details_url else { return Ok(()) };
        if !url.starts_with("https://") && !url.starts_with("http://") {
            return Err("details_url must use the http or https scheme".to_owned());
        }
        if !url.is_ascii() || Url::parse(url).is_err() {
            return Err("details_url is not a valid URL".to_owned());
        }
        Ok(())
    }

    fn apply(self, run: &mut CheckRun) {
        // GitHub takes such a request, and leaves a check run that has ended as it is.
        let status = self.status.filter(|_| run.status != "completed");
        let status = self.conclusion.as_ref().map(|_| "completed".to_owned()).or(status);
        run.status = status.unwrap_or(std::mem::take(&mut run.status));
        run.conclusion = self.conclusion.or(run.conclusion.take());
        run.name = self.name.unwrap_or(std::mem::take(&mut run.name));
        run.external_id = self.external_id.or(run.external_id.take());
        run.details_url = self.details_url.or(run.details_url.take());
        if let Some(output) = self.output {
            run.title = output.title.unwrap_or_default();
            run.summary = output.summary;
        }
        run.seen = false;
    }
}

pub(crate) fn show_run(repo: &WorldRepo, run: &CheckRun, origin: &str) -> Value {
    let name = &repo.full_name;
    json!({
        "id": run.id, "node_id": node_id("CR", run.id), "name": run.name,
        "head_sha": run.head_sha, "external_id": run.external_id.as_deref().unwrap_or(""),
        "details_url": run.details_url, "status": run.status, "conclusion": run.conclusion,
        "url": format!("{origin}/repos/{name}/check-runs/{}", run.id),
        "html_url": format!("{origin}/{name}/runs/{}", run.id),
        "started_at": null, "completed_at": null,
        "output": { "title": run.title, "summary": run.summary, "text": null,
            "annotations_count": 0,
            "annotations_url": format!("{origin}/repos/{name}/check-runs/{}/annotations", run.id) },
        "check_suite": { "id": run.suite }, "app": { "id": run.app, "slug": "app",
            "client_id": (run.app == APP_ID).then_some(CLIENT_ID) },
        "pull_requests": [],
    })
}

async fn create(call: RepoCall, body: Bytes) -> ApiResult {
    let mut inner = call.state.world.lock();
    let (id, new_suite) = (inner.next_id(), inner.next_id());
    let repo = call.permitted(&mut inner, "checks", "write")?;
    let fields: CheckRunFields = parse(&body)?;
    fields.check().map_err(|error| refusal(422, &format!("Invalid request.\n\n{error}")))?;
    let (Some(name), Some(head_sha)) = (fields.name.clone(), fields.head_sha.clone()) else {
        return Err(refusal(
            422,
            "Invalid request.\n\n\"name\" and \"head_sha\" weren't supplied.",
        ));
    };
    if fields.output.as_ref().is_some_and(|output| output.title.is_none()) {
        return Err(refusal(422, "Invalid request.\n\n\"title\" wasn't supplied."));
    }
    if !repo.commits.contains_key(&head_sha) {
        return Err(refusal(422, &format!("No commit found for SHA: {head_sha}")));
    }
    let sibling = repo.check_runs.values().find(|run| run.head_sha == head_sha);
    let mut run = CheckRun {
        id,
        suite: sibling.map_or(new_suite, |run| run.suite),
        head_sha,
        app: APP_ID,
        name,
        external_id: None,
        details_url: None,
        status: "queued".to_owned(),
        conclusion: None,
        title: String::new(),
        summary: String::new(),
        updates: 0,
        seen: false,
    };
    fields.apply(&mut run);
    let answer = show_run(repo, &run, call.state.origin());
    repo.check_runs.insert(id, run);
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

async fn update(call: RepoCall, Path((.., id)): PathBelowRepo<u64>, body: Bytes) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "checks", "write")?;
    let fields: CheckRunFields = parse(&body)?;
    fields.check().map_err(|error| refusal(422, &format!("Invalid request.\n\n{error}")))?;
    let run = repo.check_runs.get_mut(&id).ok_or_else(|| refusal(404, "Not Found"))?;
    if run.app != APP_ID {
        return Err(refusal(
            403,
            "Invalid app_id `app` - check run can only be modified by the GitHub App that created it.",
        ));
    }
    fields.apply(run);
    run.updates += 1;
    let run = run.clone();
    Ok(Json(show_run(repo, &run, call.state.origin())).into_response())
}

async fn show(call: RepoCall, Path((.., id)): PathBelowRepo<u64>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "checks", "read")?;
    let run = repo.check_runs.get(&id).ok_or_else(|| refusal(404, "Not Found"))?;
    Ok(Json(show_run(repo, run, call.state.origin())).into_response())
}

async fn of_suite(call: RepoCall, Path((.., id)): PathBelowRepo<u64>) -> ApiResult {
    list(&call, |run| run.suite == id)
}

async fn of_commit(call: RepoCall, Path((.., sha)): PathBelowRepo<String>) -> ApiResult {
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(call.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let asked =
        |name: &str| query.iter().find(|(given, _)| given == name).map(|(_, value)| value.clone());
    let (name, app) = (asked("check_name"), asked("app_id"));
    list(&call, |run| {
        run.head_sha == sha
            && name.as_ref().is_none_or(|name| *name == run.name)
            && app.as_ref().is_none_or(|app| *app == run.app.to_string())
    })
}

/// Newest first, and of each name only the newest, unless the query has `filter=all`.
fn list(call: &RepoCall, wanted: impl Fn(&CheckRun) -> bool) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "checks", "read")?;
    let shows_all =
        call.uri.query().unwrap_or_default().split('&').any(|part| part == "filter=all");
    let mut names = HashSet::new();
    let runs = repo.check_runs.values().rev().filter(|run| wanted(run));
    let runs = runs.filter(|run| names.insert((run.suite, &run.name)) || shows_all);
    let all: Vec<Value> = runs.map(|run| show_run(repo, run, call.state.origin())).collect();
    let body = json!({ "total_count": all.len(), "check_runs": page(call.uri.query(), all) });
    Ok(Json(body).into_response())
}
