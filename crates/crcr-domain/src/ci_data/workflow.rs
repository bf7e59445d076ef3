//! Workflow jobs and pushed commits, read from the documents of webhook rows.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::part;
use super::webhook::{WebhookRow, cut};
use crate::text::pull_request_of_title;

/// A job of a repository's own CI in its current state.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct WorkflowJob {
    pub id: u64,
    pub run_id: u64,
    pub run_attempt: u64,
    pub workflow: String,
    pub name: String,
    pub head_sha: String,
    pub branch: String,
    pub state: CiState,
    pub url: Option<String>,
    pub created_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub runner: Option<String>,
    /// The labels that a runner had to have.
    pub labels: Vec<String>,
    /// The group of its runner.
    pub runner_group: Option<String>,
    /// The step that failed.
    pub failed_step: Option<String>,
}

/// A step of a job.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct WorkflowStep {
    pub number: u64,
    pub name: String,
    pub state: CiState,
    /// How long it took.
    pub seconds: Option<f64>,
}

/// The name of what [`WorkflowJob::of_run`] tells.
pub const WHOLE_RUN: &str = "whole run";
const MAX_LABELS: usize = 20;
/// Steps of a job that are read, the first ones of a longer list.
const MAX_STEPS: usize = 200;

/// The steps of the job that a webhook is about.
pub fn steps_of(row: &WebhookRow) -> Vec<WorkflowStep> {
    let document: Value = serde_json::from_str(&row.document).unwrap_or_default();
    let steps = document["workflow_job"]["steps"].as_array();
    let step = |(at, step): (usize, &Value)| {
        let text = |field: &str| step[field].as_str().unwrap_or_default();
        let time = |field: &str| text(field).parse::<Timestamp>().ok();
        let took = time("completed_at").zip(time("started_at"));
        WorkflowStep {
            number: step["number"].as_u64().unwrap_or(at as u64 + 1),
            name: cut(text("name")),
            // A step of a job that ended has a conclusion, whatever its status says.
            state: match text("conclusion") {
                "" => CiState::new(text("status"), ""),
                conclusion => CiState::new("completed", conclusion),
            },
            seconds: took.map(|(to, from)| to.duration_since(from).as_secs_f64().max(0.0)),
        }
    };
    steps.into_iter().flatten().take(MAX_STEPS).enumerate().map(step).collect()
}

/// What a job, or a group of jobs, shows. Ordered from the worst to the best.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CiState {
    Failed,
    TimedOut,
    Cancelled,
    Running,
    Queued,
    Passed,
    /// Skipped, neutral or stale.
    Neutral,
}

impl CiState {
    pub const ALL: [Self; 7] = [
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Running,
        Self::Queued,
        Self::Passed,
        Self::Neutral,
    ];

    /// From GitHub's status and conclusion.
    pub fn new(status: &str, conclusion: &str) -> Self {
        match (status, conclusion) {
            ("completed", "success") => Self::Passed,
            ("completed", "timed_out") => Self::TimedOut,
            ("completed", "cancelled") => Self::Cancelled,
            ("completed", "skipped" | "neutral" | "stale") => Self::Neutral,
            ("completed", _) => Self::Failed,
            ("in_progress", _) => Self::Running,
            _ => Self::Queued,
        }
    }

    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut)
    }
}

impl WorkflowJob {
    /// `None` if the row isn't about a job, or has no id and name.
    pub fn from_row(row: &WebhookRow) -> Option<Self> {
        let JobDocument { workflow_job: job } = serde_json::from_str(&row.document).ok()?;
        let text = |field| part::<String>(field).filter(|text| !text.is_empty()).map(|t| cut(&t));
        let time = |field| part::<String>(field).and_then(|time| time.parse().ok());
        let status: String = part(job.status).unwrap_or_default();
        let state = CiState::new(&status, &part::<String>(job.conclusion).unwrap_or_default());
        // Steps are most of a document, and only matter when one of them failed.
        let steps: Vec<&RawValue> =
            state.is_failure().then(|| part(job.steps)).flatten().unwrap_or_default();
        let failed = steps.into_iter().find_map(|step| {
            let step: JobStep<'_> = part(Some(step))?;
            (part::<String>(step.conclusion)? == "failure").then_some(step.name)
        });
        Some(Self {
            id: part(job.id)?,
            run_id: part(job.run_id).unwrap_or_default(),
            run_attempt: part(job.run_attempt).unwrap_or(1),
            workflow: text(job.workflow_name).unwrap_or_default(),
            name: text(job.name)?,
            head_sha: row.sha.clone(),
            branch: row.branch.clone(),
            state,
            url: text(job.html_url).filter(|url| url.starts_with("https://")),
            created_at: time(job.created_at),
            started_at: time(job.started_at),
            completed_at: time(job.completed_at),
            runner: text(job.runner_name),
            labels: part::<Vec<String>>(job.labels)
                .unwrap_or_default()
                .iter()
                .take(MAX_LABELS)
                .map(|label| cut(label))
                .collect(),
            runner_group: text(job.runner_group_name),
            failed_step: failed.and_then(text),
        })
    }

    /// A whole run, told like a job with the id of the run. A run can fail though none of its jobs did: one whose
    /// workflow file is broken has no jobs.
    pub fn of_run(row: &WebhookRow) -> Option<Self> {
        let document: Value = serde_json::from_str(&row.document).ok()?;
        let run = &document["workflow_run"];
        let text = |field: &str| run[field].as_str().unwrap_or_default();
        let time = |field: &str| text(field).parse().ok();
        let state = match (text("status"), text("conclusion")) {
            // It waits for somebody's approval.
            ("completed", "action_required") => CiState::Neutral,
            (status, conclusion) => CiState::new(status, conclusion),
        };
        let is_ended = !matches!(state, CiState::Running | CiState::Queued);
        let id = run["id"].as_u64()?;
        Some(Self {
            id,
            run_id: id,
            run_attempt: run["run_attempt"].as_u64().unwrap_or(1),
            workflow: cut(text("name")),
            name: WHOLE_RUN.to_owned(),
            head_sha: row.sha.clone(),
            branch: row.branch.clone(),
            state,
            url: Some(cut(text("html_url"))).filter(|url| url.starts_with("https://")),
            created_at: time("created_at"),
            started_at: time("run_started_at"),
            completed_at: time("updated_at").filter(|_| is_ended),
            runner: None,
            labels: vec![],
            runner_group: None,
            failed_step: None,
        })
    }

    /// What it asked for as its runner. A job that names only a group has no labels, and GitHub tells the group once it has
    /// a runner.
    pub fn asked_for(&self) -> String {
        match &self.runner_group {
            Some(group) if self.labels.is_empty() => format!("group: {group}"),
            _ => self.labels.join(", "),
        }
    }

    /// Orders the attempts of one job on one commit; a re-run has a new id.
    pub fn order(&self) -> (u64, u64, u64) {
        (self.run_id, self.run_attempt, self.id)
    }
}

#[derive(Deserialize)]
struct JobDocument<'a> {
    #[serde(borrow)]
    workflow_job: JobFields<'a>,
}

/// Kept as text, so that a field of another type than expected counts as absent, and what isn't needed is only
/// skipped: a page reads thousands of jobs.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct JobFields<'a> {
    id: Option<&'a RawValue>,
    run_id: Option<&'a RawValue>,
    run_attempt: Option<&'a RawValue>,
    workflow_name: Option<&'a RawValue>,
    name: Option<&'a RawValue>,
    status: Option<&'a RawValue>,
    conclusion: Option<&'a RawValue>,
    html_url: Option<&'a RawValue>,
    created_at: Option<&'a RawValue>,
    started_at: Option<&'a RawValue>,
    completed_at: Option<&'a RawValue>,
    runner_name: Option<&'a RawValue>,
    runner_group_name: Option<&'a RawValue>,
    labels: Option<&'a RawValue>,
    steps: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct JobStep<'a> {
    name: Option<&'a RawValue>,
    conclusion: Option<&'a RawValue>,
}

/// A commit of a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct BranchCommit {
    pub sha: String,
    /// The first line of its message.
    pub title: String,
    pub author: String,
    /// When it was pushed, or when a run on it was created.
    pub at: Timestamp,
    /// The pull request that the title names.
    pub pull_request: Option<u64>,
}

impl BranchCommit {
    /// The head of a push, or the commit of a workflow run that a push or a schedule caused.
    pub fn from_row(row: &WebhookRow) -> Option<Self> {
        let document: Value = serde_json::from_str(&row.document).ok()?;
        let mut at = row.received_at;
        let commit = match row.event.as_str() {
            "push" => &document["head_commit"],
            "workflow_run" => {
                let run = &document["workflow_run"];
                // Runs of pull requests from forks can have the name of any branch.
                if !matches!(run["event"].as_str(), Some("push" | "schedule" | "workflow_dispatch"))
                {
                    return None;
                }
                // A re-run of an old commit is heard of now, and was created with its first attempt.
                let created = run["created_at"].as_str().and_then(|time| time.parse().ok());
                at = created.map_or(at, |created: Timestamp| created.min(at));
                &run["head_commit"]
            }
            _ => return None,
        };
        let title =
            commit["message"].as_str().and_then(|text| text.lines().next()).unwrap_or_default();
        let is_commit = row.sha.len() >= 7 && row.sha.bytes().any(|byte| byte != b'0');
        is_commit.then(|| Self {
            sha: row.sha.clone(),
            author: commit["author"]["name"].as_str().map(cut).unwrap_or_default(),
            at,
            title: cut(title),
            pull_request: pull_request_of_title(title),
        })
    }
}

/// The repository that a run's pull request comes from, in lower case; `None` for the run's own repository. Whoever asks to
/// merge a commit of a branch elsewhere has runs on that commit, and the fork's branch can have the name of any branch.
pub fn fork_of_run(row: &WebhookRow) -> Option<String> {
    let document: Value = serde_json::from_str(&row.document).ok()?;
    let run = &document["workflow_run"];
    let is_of_pull = run["event"].as_str().is_some_and(|event| event.starts_with("pull_request"));
    // A fork that was deleted has no name.
    let head = run["head_repository"]["full_name"].as_str().unwrap_or_default();
    (is_of_pull && !head.eq_ignore_ascii_case(&row.repository)).then(|| head.to_ascii_lowercase())
}

/// Files of a push that are read, the first ones of a longer list.
const MAX_CHANGED_FILES: usize = 300;

/// The files that a push added, changed or removed.
pub fn changed_files(row: &WebhookRow) -> Vec<String> {
    let document: Value = serde_json::from_str(&row.document).unwrap_or_default();
    let commits = document["commits"].as_array().into_iter().flatten();
    let lists = commits.flat_map(|commit| {
        ["added", "modified", "removed"].into_iter().filter_map(|kind| commit[kind].as_array())
    });
    let mut files: Vec<String> = vec![];
    for file in lists.flatten().filter_map(Value::as_str) {
        let file = cut(file);
        if files.len() < MAX_CHANGED_FILES && !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::row;
    use super::*;

    #[test]
    fn conclusion_of_github_becomes_a_state() {
        for (status, conclusion, expected) in [
            ("completed", "success", CiState::Passed),
            ("completed", "failure", CiState::Failed),
            ("completed", "startup_failure", CiState::Failed),
            ("completed", "from the future", CiState::Failed),
            ("completed", "timed_out", CiState::TimedOut),
            ("completed", "cancelled", CiState::Cancelled),
            ("completed", "skipped", CiState::Neutral),
            ("in_progress", "", CiState::Running),
            ("waiting", "", CiState::Queued),
            ("", "", CiState::Queued),
        ] {
            assert_eq!(CiState::new(status, conclusion), expected, "{status} {conclusion}");
            let is_failure = [CiState::Failed, CiState::TimedOut].contains(&expected);
            assert_eq!(expected.is_failure(), is_failure, "{expected:?}");
        }
    }

    #[test]
    fn job_names_its_failed_step_and_only_https_addresses() {
        let job = json!({"workflow_job": {
            "id": 5, "run_id": 6, "name": "build", "workflow_name": "CI", "status": "completed",
            "conclusion": "failure", "html_url": "javascript:alert(1)", "head_sha": "abc",
            "labels": ["linux", "gpu"],
            "steps": [{"name": "checkout", "conclusion": "success"}, {"name": "make", "conclusion": "failure",
                "started_at": "2026-09-01T00:00:00Z", "completed_at": "2026-09-01T00:01:00Z"}],
        }});
        let steps = steps_of(&row("workflow_job", &job));
        assert_eq!(
            (steps[1].number, steps[1].state, steps[1].seconds),
            (2, CiState::Failed, Some(60.0))
        );
        let job = WorkflowJob::from_row(&row("workflow_job", &job)).unwrap();
        assert_eq!(job.labels, ["linux", "gpu"]);
        assert_eq!(job.order(), (6, 1, 5));
        assert_eq!((job.url, job.failed_step.as_deref()), (None, Some("make")));
        assert_eq!((job.state, job.run_attempt), (CiState::Failed, 1));
        assert_eq!(WorkflowJob::from_row(&row("workflow_job", &json!({"workflow_job": {}}))), None);
        assert_eq!(WorkflowJob::from_row(&row("push", &json!({"after": "abcdefg"}))), None);
    }

    #[test]
    fn run_is_told_like_a_job_and_one_that_waits_for_approval_is_no_failure() {
        let told = |status: &str, conclusion: &str| {
            let run = json!({"workflow_run": {
                "id": 9, "name": "CI", "status": status, "conclusion": conclusion,
                "html_url": "https://github.com/acme/one/actions/runs/9", "head_sha": "abcdef0",
                "run_started_at": "2026-09-01T00:00:00Z", "updated_at": "2026-09-01T00:01:00Z",
            }});
            WorkflowJob::of_run(&row("workflow_run", &run)).unwrap()
        };
        let ended = told("completed", "failure");
        assert_eq!((ended.id, ended.run_id, ended.run_attempt), (9, 9, 1));
        assert_eq!((&*ended.workflow, &*ended.name), ("CI", WHOLE_RUN));
        assert_eq!(ended.url.as_deref(), Some("https://github.com/acme/one/actions/runs/9"));
        for (status, conclusion, state, has_ended) in [
            ("completed", "failure", CiState::Failed, true),
            ("completed", "startup_failure", CiState::Failed, true),
            ("completed", "action_required", CiState::Neutral, true),
            ("in_progress", "", CiState::Running, false),
            ("queued", "", CiState::Queued, false),
        ] {
            let found = told(status, conclusion);
            assert_eq!(found.state, state, "{status} {conclusion}");
            assert_eq!(found.completed_at.is_some(), has_ended, "{status} {conclusion}");
        }
        let odd = json!({"workflow_run": {"name": "CI"}});
        assert_eq!(WorkflowJob::of_run(&row("workflow_run", &odd)), None, "it has no id");
    }

    #[test]
    fn commits_come_from_pushes_and_from_runs_of_the_branch_itself() {
        let commit = json!({"message": "Fix it (#12)\n\nlong", "author": {"name": "A"}});
        let push = json!({"ref": "refs/heads/main", "after": "abcdef0", "head_commit": commit});
        let mut with_files = push.clone();
        with_files["commits"] = json!([
            {"added": ["a.py"], "modified": ["b.py"], "removed": []}, {"modified": ["b.py", 7]},
        ]);
        assert_eq!(changed_files(&row("push", &with_files)), ["a.py", "b.py"]);
        let many: Vec<_> = (0..=MAX_CHANGED_FILES).map(|n| n.to_string()).collect();
        with_files["commits"] = json!([{ "added": many }]);
        assert_eq!(changed_files(&row("push", &with_files)).len(), MAX_CHANGED_FILES);
        let found = BranchCommit::from_row(&row("push", &push)).unwrap();
        assert_eq!((&*found.title, found.pull_request), ("Fix it (#12)", Some(12)));
        let mut merge = push.clone();
        // A title is cut, and the number is at its end.
        for title in ["Merge pull request #12 from a/b-(#5)", &format!("{} (#12)", "x".repeat(255))]
        {
            merge["head_commit"]["message"] = json!(title);
            let found = BranchCommit::from_row(&row("push", &merge)).unwrap();
            assert_eq!(found.pull_request, Some(12), "{title}");
            assert!(found.title.len() <= 255);
        }
        let run = |event: &str| {
            json!({"workflow_run": {
                "id": 1, "event": event, "head_sha": "abcdef0", "head_branch": "main", "head_commit": commit,
            }})
        };
        let known = row("workflow_run", &run("schedule"));
        assert_eq!(BranchCommit::from_row(&known).unwrap().at, known.received_at);
        let mut again = run("push");
        again["workflow_run"]["created_at"] = json!("2026-08-01T00:00:00Z");
        let again = BranchCommit::from_row(&row("workflow_run", &again)).unwrap();
        assert_eq!(again.at.to_string(), "2026-08-01T00:00:00Z", "a re-run makes no commit new");
        assert_eq!(BranchCommit::from_row(&row("workflow_run", &run("pull_request"))), None);
        let deleted = json!({"ref": "refs/heads/main", "after": "0".repeat(40)});
        assert_eq!(BranchCommit::from_row(&row("push", &deleted)), None);
    }

    #[test]
    fn run_of_another_repositorys_pull_request_is_told_from_the_branchs_own() {
        let run = |event: &str, head: &Value| {
            let run = json!({
                "id": 1, "event": event, "head_sha": "abcdef0", "head_branch": "main",
                "head_repository": head,
            });
            let payload =
                json!({ "workflow_run": run, "repository": { "full_name": "Acme/Upstream" } });
            fork_of_run(&row("workflow_run", &payload))
        };
        let fork = json!({ "full_name": "Stranger/Upstream" });
        let own = json!({ "full_name": "acme/upstream" });
        assert_eq!(run("pull_request", &fork).as_deref(), Some("stranger/upstream"));
        assert_eq!(run("pull_request_target", &fork).as_deref(), Some("stranger/upstream"));
        assert_eq!(run("pull_request", &Value::Null).as_deref(), Some(""), "it was deleted");
        assert_eq!(run("pull_request", &own), None);
        assert_eq!(run("push", &Value::Null), None);
    }
}
