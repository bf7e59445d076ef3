//! Workflow runs and their jobs.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::State;
use crate::server::Peer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// `GITHUB_RUN_ID`; unique over all repositories.
    pub id: u64,
    pub attempt: u32,
    /// `owner/name` of the repository whose workflow runs.
    pub repository: String,
    pub repository_id: u64,
    pub owner_id: u64,
    /// Whether the `sub` of its tokens names owner and repository with their ids. GitHub does so for
    /// repositories created, renamed or transferred since 2026-07-15, and for those that chose it:
    /// <https://docs.github.com/en/actions/reference/security/oidc#immutable-subject-claims>
    pub immutable_subject: bool,
    /// `owner/name` of the repository with the head commit; `None` when it was deleted.
    pub head_repository: Option<String>,
    pub event: String,
    pub git_ref: String,
    /// `GITHUB_HEAD_REF`; empty without a pull request.
    pub head_ref: String,
    /// `GITHUB_BASE_REF`; empty without a pull request.
    pub base_ref: String,
    pub sha: String,
    pub workflow: String,
    pub workflow_path: String,
    /// The workflow's `run-name`; GitHub's default for a dispatch is its event type.
    pub title: Option<String>,
    pub actor: String,
    pub actor_id: u64,
    pub pull_request: Option<u64>,
    /// `queued`, `in_progress` or `completed`.
    pub status: String,
    pub conclusion: Option<String>,
    /// When its first attempt was created.
    pub created_at: Timestamp,
}

impl Run {
    /// Run 4242 of `acme/upstream`, attempt 1, for a push to `main`.
    pub fn push() -> Self {
        Self {
            id: 4242,
            attempt: 1,
            repository: "acme/upstream".to_owned(),
            repository_id: 1001,
            owner_id: 501,
            immutable_subject: false,
            head_repository: Some("acme/upstream".to_owned()),
            event: "push".to_owned(),
            git_ref: "refs/heads/main".to_owned(),
            head_ref: String::new(),
            base_ref: String::new(),
            sha: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            workflow: "build".to_owned(),
            workflow_path: ".github/workflows/build.yml".to_owned(),
            title: None,
            actor: "octocat".to_owned(),
            actor_id: 583_231,
            pull_request: None,
            status: "in_progress".to_owned(),
            conclusion: None,
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// The same run for a pull request from a branch of the same repository.
    pub fn same_repository() -> Self {
        Self {
            event: "pull_request".to_owned(),
            git_ref: "refs/pull/7/merge".to_owned(),
            head_ref: "topic".to_owned(),
            base_ref: "main".to_owned(),
            pull_request: Some(7),
            ..Self::push()
        }
    }

    /// The same run for a pull request from `contributor/upstream`, a fork.
    pub fn fork() -> Self {
        Self {
            head_repository: Some("contributor/upstream".to_owned()),
            actor: "contributor".to_owned(),
            actor_id: 777,
            ..Self::same_repository()
        }
    }

    /// The same run for Dependabot's pull request, whose branch is in the same repository.
    pub fn dependabot() -> Self {
        Self {
            head_ref: "dependabot/cargo/serde-1.0.300".to_owned(),
            actor: "dependabot[bot]".to_owned(),
            actor_id: 49_699_333,
            ..Self::same_repository()
        }
    }

    /// Whether it is a run of a repository. GitHub compares names ignoring case.
    pub fn is_of(&self, repository: &str) -> bool {
        self.repository.eq_ignore_ascii_case(repository)
    }

    /// Whether the head commit is in another repository, or in a deleted one.
    pub fn is_fork(&self) -> bool {
        self.head_repository.as_ref() != Some(&self.repository)
    }

    pub fn owner(&self) -> &str {
        self.repository.split('/').next().unwrap_or_default()
    }

    /// The artifact service's id of the run, the same for all attempts and jobs.
    pub fn backend_id(&self) -> String {
        uuid::Uuid::from_u64_pair(0x5eed, self.id).to_string()
    }

    /// The event payload (`GITHUB_EVENT_PATH`), with the fields that the actions read.
    pub fn payload(&self) -> Value {
        let repository = |name: &str, id: u64| {
            json!({ "id": id, "full_name": name, "fork": name != self.repository,
                "owner": { "login": name.split('/').next() } })
        };
        let base = repository(&self.repository, self.repository_id);
        let mut repository_of_event = base.clone();
        repository_of_event["default_branch"] = json!("main");
        let mut payload = json!({
            "repository": repository_of_event, "sender": { "login": self.actor, "id": self.actor_id },
        });
        if let Some(number) = self.pull_request {
            let head = self.head_repository.as_deref().map(|name| repository(name, 2002));
            payload["action"] = json!("synchronize");
            payload["number"] = json!(number);
            payload["pull_request"] = json!({
                "number": number,
                "user": { "login": self.actor, "id": self.actor_id },
                "head": { "ref": self.head_ref, "sha": self.sha, "repo": head },
                "base": { "ref": self.base_ref, "repo": base },
            });
        }
        payload
    }

    /// The OIDC claims of every job of the run.
    pub(crate) fn claims(&self) -> Map<String, Value> {
        let workflow_ref = format!("{}/{}@{}", self.repository, self.workflow_path, self.git_ref);
        let kind = if self.git_ref.starts_with("refs/tags/") { "tag" } else { "branch" };
        let claims = json!({
            "ref": self.git_ref, "ref_type": kind, "ref_protected": "false", "sha": self.sha,
            "repository": self.repository, "repository_id": self.repository_id.to_string(),
            "repository_owner": self.owner(), "repository_owner_id": self.owner_id.to_string(),
            "repository_visibility": "public",
            "run_id": self.id.to_string(), "run_number": "1",
            "run_attempt": self.attempt.to_string(),
            "actor": self.actor, "actor_id": self.actor_id.to_string(),
            "workflow": self.workflow, "workflow_ref": workflow_ref, "workflow_sha": self.sha,
            "job_workflow_ref": workflow_ref, "job_workflow_sha": self.sha,
            "head_ref": self.head_ref, "base_ref": self.base_ref, "event_name": self.event,
        });
        match claims {
            Value::Object(claims) => claims,
            _ => unreachable!("`json!` made an object"),
        }
    }

    /// The answer of `GET /repos/{owner}/{repo}/actions/runs/{id}`.
    pub fn api(&self, origin: &str) -> Value {
        let repository = |name: &str, id: u64| {
            json!({ "id": id, "full_name": name, "name": name.rsplit('/').next(),
                "owner": { "login": name.split('/').next() } })
        };
        let head = self
            .head_repository
            .as_deref()
            .map(|name| repository(name, if self.is_fork() { 2002 } else { self.repository_id }));
        json!({
            "id": self.id, "name": self.workflow, "path": self.workflow_path, "run_number": 1,
            "display_title": self.title.as_ref().unwrap_or(&self.event), "created_at": self.created_at,
            "run_started_at": self.created_at, "workflow_id": 11,
            "run_attempt": self.attempt, "event": self.event, "status": self.status,
            "conclusion": self.conclusion, "head_sha": self.sha,
            "head_branch": if self.head_ref.is_empty() {
                self.git_ref.trim_start_matches("refs/heads/")
            } else {
                &self.head_ref
            },
            "actor": { "login": self.actor, "id": self.actor_id },
            "repository": repository(&self.repository, self.repository_id),
            "head_repository": head,
            "html_url": format!("{origin}/{}/actions/runs/{}", self.repository, self.id),
            "url": format!("{origin}/repos/{}/actions/runs/{}", self.repository, self.id),
        })
    }
}

/// One job of a run, with its tokens.
#[derive(Debug, Clone)]
pub struct Job {
    /// The run as it was when the job was added.
    pub run: Arc<Run>,
    pub name: String,
    /// The artifact service's id of the job.
    pub backend_id: String,
    /// The check run of the job.
    pub check_run_id: u64,
    /// Whether it has `id-token: write`; jobs of forks and of Dependabot never have.
    pub may_mint: bool,
    /// Whether it reads and writes the cache: not with `cache-mode: none`.
    pub may_cache: bool,
    pub request_token: String,
    pub environment: Option<String>,
    /// `None` while it runs.
    pub conclusion: Option<String>,
    pub started_at: Timestamp,
    /// Claims to replace in its OIDC tokens; `null` removes one.
    pub changed_claims: BTreeMap<String, Value>,
}

impl Job {
    /// The `sub` claim, by the default template.
    pub fn subject(&self) -> String {
        let run = &self.run;
        let repository = match run.repository.split_once('/') {
            Some((owner, name)) if run.immutable_subject => {
                format!("{owner}@{}/{name}@{}", run.owner_id, run.repository_id)
            }
            _ => run.repository.clone(),
        };
        match &self.environment {
            Some(environment) => format!("repo:{repository}:environment:{environment}"),
            None if run.pull_request.is_some() => format!("repo:{repository}:pull_request"),
            None => format!("repo:{repository}:ref:{}", run.git_ref),
        }
    }

    fn api(&self) -> Value {
        let status = if self.conclusion.is_some() { "completed" } else { "in_progress" };
        json!({
            "id": self.check_run_id, "run_id": self.run.id, "run_attempt": self.run.attempt,
            "name": self.name, "status": status, "conclusion": self.conclusion,
            "started_at": self.started_at,
        })
    }

    /// The `GITHUB_*` variables that don't depend on the server.
    pub(crate) fn environment(&self) -> BTreeMap<&'static str, String> {
        let run = &self.run;
        BTreeMap::from([
            ("GITHUB_ACTIONS", "true".to_owned()),
            ("CI", "true".to_owned()),
            ("GITHUB_ACTOR", run.actor.clone()),
            ("GITHUB_ACTOR_ID", run.actor_id.to_string()),
            ("GITHUB_BASE_REF", run.base_ref.clone()),
            ("GITHUB_EVENT_NAME", run.event.clone()),
            ("GITHUB_HEAD_REF", run.head_ref.clone()),
            ("GITHUB_JOB", self.name.clone()),
            ("GITHUB_REF", run.git_ref.clone()),
            ("GITHUB_REPOSITORY", run.repository.clone()),
            ("GITHUB_REPOSITORY_ID", run.repository_id.to_string()),
            ("GITHUB_REPOSITORY_OWNER", run.owner().to_owned()),
            ("GITHUB_REPOSITORY_OWNER_ID", run.owner_id.to_string()),
            ("GITHUB_RETENTION_DAYS", "90".to_owned()),
            ("GITHUB_RUN_ATTEMPT", run.attempt.to_string()),
            ("GITHUB_RUN_ID", run.id.to_string()),
            ("GITHUB_SHA", run.sha.clone()),
            ("GITHUB_WORKFLOW", run.workflow.clone()),
        ])
    }
}

#[derive(Debug, Default)]
pub struct Runs(Mutex<RunRecords>);

#[derive(Debug, Default)]
struct RunRecords {
    runs: BTreeMap<u64, Arc<Run>>,
    jobs: BTreeMap<String, Job>,
}

impl Runs {
    /// Adds a run, or replaces the one with its id by a later attempt; returns its id.
    pub fn add(&self, run: Run) -> u64 {
        let id = run.id;
        self.lock().runs.insert(id, Arc::new(run));
        id
    }

    /// An id that no run has yet.
    pub fn free_id(&self) -> u64 {
        self.lock().runs.last_key_value().map_or(4242, |(id, _)| id + 1)
    }

    /// The latest attempt of the run.
    pub fn get(&self, id: u64) -> Option<Arc<Run>> {
        self.lock().runs.get(&id).cloned()
    }

    /// Adds a job to a run. It gets `id-token: write` unless the run is a fork's or Dependabot's.
    ///
    /// # Panics
    /// When there is no such run.
    pub fn add_job(&self, run: u64, name: &str) -> Job {
        let mut known = self.lock();
        let run = known.runs.get(&run).cloned().expect("the run was added before its jobs");
        let job = Job {
            may_mint: !run.is_fork() && run.actor != "dependabot[bot]",
            may_cache: true,
            name: name.to_owned(),
            backend_id: uuid::Uuid::new_v4().to_string(),
            check_run_id: 90_000 + known.jobs.len() as u64,
            request_token: format!("request-{}", uuid::Uuid::new_v4().simple()),
            environment: None,
            conclusion: None,
            started_at: run.created_at,
            changed_claims: BTreeMap::new(),
            run,
        };
        known.jobs.insert(job.backend_id.clone(), job.clone());
        job
    }

    /// Stores `job` after a test has changed its fields.
    pub fn update_job(&self, job: &Job) {
        self.lock().jobs.insert(job.backend_id.clone(), job.clone());
    }

    /// The job with the artifact service's id.
    pub fn job(&self, backend_id: &str) -> Option<Job> {
        self.lock().jobs.get(backend_id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, RunRecords> {
        self.0.lock()
    }
}

/// The runs API, with the operations `runs`, `run`, `run-attempt` and `run-jobs`.
pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/repos/{owner}/{repo}/actions/runs", get(list))
        .route("/repos/{owner}/{repo}/actions/workflows/{file}/runs", get(list_of_workflow))
        .route("/repos/{owner}/{repo}/actions/runs/{run}", get(show))
        .route("/repos/{owner}/{repo}/actions/runs/{run}/attempts/{attempt}", get(show_attempt))
        .route("/repos/{owner}/{repo}/actions/runs/{run}/attempts/{attempt}/jobs", get(jobs))
}

/// Counts a call, and checks its token if an installation has it.
async fn admit(
    state: &State,
    operation: &'static str,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<(), Response> {
    state.traffic.pass(operation, peer).await?;
    state.world.check_actions_token(headers, state.clock.now())
}

#[derive(Debug, Deserialize)]
struct ListFilters {
    event: Option<String>,
    created: Option<String>,
    /// A run's status or its conclusion.
    status: Option<String>,
    #[serde(flatten)]
    page: Page,
}

/// How many runs GitHub pages through when they are filtered.
const LISTED_RUNS: usize = 1000;

async fn list(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    headers: HeaderMap,
    Path((owner, repo)): Path<(String, String)>,
    Query(filters): Query<ListFilters>,
) -> Result<Response, Response> {
    admit(&state, "runs", &peer, &headers).await?;
    let repository = format!("{owner}/{repo}");
    Ok(listed(&state, &filters, |run| run.is_of(&repository)))
}

/// The runs of a workflow, by the name of its file.
async fn list_of_workflow(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    headers: HeaderMap,
    Path((owner, repo, file)): Path<(String, String, String)>,
    Query(filters): Query<ListFilters>,
) -> Result<Response, Response> {
    admit(&state, "runs", &peer, &headers).await?;
    let repository = format!("{owner}/{repo}");
    let is_of_file = |run: &Run| {
        let path = run.workflow_path.split('@').next().unwrap_or_default();
        path.rsplit('/').next() == Some(file.as_str())
    };
    Ok(listed(&state, &filters, |run| run.is_of(&repository) && is_of_file(run)))
}

/// The newest runs first, a page of at most 100 of the first 1,000.
fn listed(state: &State, filters: &ListFilters, is_listed: impl Fn(&Run) -> bool) -> Response {
    let created = filters.created.as_deref().and_then(|range| range.split_once(".."));
    let created: Option<(Timestamp, Timestamp)> =
        created.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let wanted = |run: &&Arc<Run>| {
        let is_in = |status: &String| {
            *status == run.status || Some(status.as_str()) == run.conclusion.as_deref()
        };
        is_listed(run)
            && filters.event.as_ref().is_none_or(|event| *event == run.event)
            && filters.status.as_ref().is_none_or(is_in)
            && created.is_none_or(|(from, to)| from <= run.created_at && run.created_at <= to)
    };
    let known = state.runs.lock();
    let found: Vec<_> = known.runs.values().rev().filter(wanted).collect();
    let (skipped, size) = filters.page.range();
    let page = found.iter().take(LISTED_RUNS).skip(skipped).take(size);
    let runs: Vec<_> = page.map(|run| run.api(state.origin())).collect();
    Json(json!({ "total_count": found.len(), "workflow_runs": runs })).into_response()
}

async fn show(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    headers: HeaderMap,
    Path((owner, repo, run)): Path<(String, String, u64)>,
) -> Result<Response, Response> {
    admit(&state, "run", &peer, &headers).await?;
    let run = state.runs.get(run).filter(|run| run.is_of(&format!("{owner}/{repo}")));
    let run = run.ok_or_else(not_found)?;
    Ok(Json(run.api(state.origin())).into_response())
}

/// Only the latest attempt is known.
async fn show_attempt(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    headers: HeaderMap,
    Path((owner, repo, run, attempt)): Path<(String, String, u64, u32)>,
) -> Result<Response, Response> {
    admit(&state, "run-attempt", &peer, &headers).await?;
    let run = state.runs.get(run).filter(|run| run.is_of(&format!("{owner}/{repo}")));
    let run = run.filter(|run| run.attempt == attempt).ok_or_else(not_found)?;
    Ok(Json(run.api(state.origin())).into_response())
}

/// Texts, because numbers can't be told from them in a flattened query.
#[derive(Debug, Default, Deserialize)]
struct Page {
    per_page: Option<String>,
    page: Option<String>,
}

impl Page {
    /// How many entries are skipped and shown.
    fn range(&self) -> (usize, usize) {
        let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        let size: usize = number(&self.per_page).unwrap_or(30).clamp(1, 100);
        let page: usize = number(&self.page).unwrap_or(1);
        (page.saturating_sub(1).saturating_mul(size), size)
    }
}

async fn jobs(
    Shared(state): Shared<Arc<State>>,
    peer: Peer,
    headers: HeaderMap,
    Path((owner, repo, run, attempt)): Path<(String, String, u64, u32)>,
    Query(page): Query<Page>,
) -> Result<Response, Response> {
    admit(&state, "run-jobs", &peer, &headers).await?;
    let repository = format!("{owner}/{repo}");
    let known = state.runs.lock();
    if known.runs.get(&run).is_none_or(|run| !run.is_of(&repository)) {
        return Err(not_found());
    }
    let mut found: Vec<&Job> =
        known.jobs.values().filter(|job| job.run.id == run && job.run.attempt == attempt).collect();
    found.sort_by_key(|job| job.check_run_id);
    let (skipped, size) = page.range();
    let jobs: Vec<_> = found.iter().skip(skipped).take(size).map(|job| job.api()).collect();
    Ok(Json(json!({ "total_count": found.len(), "jobs": jobs })).into_response())
}

/// GitHub's 404, also for what the caller may not see.
pub(crate) fn not_found() -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "message": "Not Found", "status": "404" })))
        .into_response()
}
