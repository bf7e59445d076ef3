//! Jobs and runs of a repository's own CI that have ended, as charts count them.

use jiff::Timestamp;
use serde_json::Value;

use super::webhook::WebhookRow;
use super::workflow::{CiState, WorkflowJob};

/// A longer list of labels is cut.
const MAX_LABELS: usize = 8;
const MAX_KEY_CHARS: usize = 200;
/// Events of runs that only people who may write to the repository cause.
const TRUSTED_EVENTS: [&str; 4] = ["push", "schedule", "workflow_dispatch", "merge_group"];

#[derive(Debug, Clone, PartialEq)]
pub enum EndedCi {
    Job(EndedJobTimes),
    Run(EndedRun),
}

/// What a job that passed or failed took. A re-run has an id of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedJobTimes {
    pub id: u64,
    pub ended_at: Timestamp,
    pub failed: bool,
    /// From the job's creation to its start.
    pub queue_seconds: Option<f64>,
    pub run_seconds: Option<f64>,
    /// The labels that it asked for, such as `linux.2xlarge`, or the group.
    pub runner: String,
    /// Its workflow, and its name without what is in parentheses at the end.
    pub name: String,
}

/// An attempt of a run that passed or failed.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedRun {
    pub id: u64,
    pub attempt: u64,
    pub workflow: String,
    pub created_at: Timestamp,
    pub ended_at: Timestamp,
    pub failed: bool,
    pub sha: String,
    /// The branch, if the run is of the repository's own commit there. Runs of pull requests from forks can
    /// have the name of any branch.
    pub branch: Option<String>,
}

impl EndedRun {
    /// How long its author waited; a person decides when a re-run begins.
    pub fn signal_seconds(&self) -> Option<f64> {
        let took = self.ended_at.duration_since(self.created_at).as_secs_f64();
        (self.attempt <= 1 && took >= 0.0).then_some(took)
    }
}

impl EndedCi {
    /// `None` for everything else, and for what was cancelled or skipped: that took no time of its own.
    pub fn from_row(row: &WebhookRow) -> Option<Self> {
        match row.event.as_str() {
            "workflow_job" if row.action == "completed" => ended_job(row).map(Self::Job),
            "workflow_run" if row.action == "completed" => ended_run(row).map(Self::Run),
            _ => None,
        }
    }
}

fn ended_job(row: &WebhookRow) -> Option<EndedJobTimes> {
    let mut job = WorkflowJob::from_row(row)?;
    job.labels.truncate(MAX_LABELS);
    let failed = counted(job.state)?;
    let between = |from: Option<Timestamp>, to: Option<Timestamp>| {
        let seconds = to?.duration_since(from?).as_secs_f64();
        (seconds >= 0.0).then_some(seconds)
    };
    let base = job.name.split_once(" (").map_or(&*job.name, |(base, _)| base);
    let name = if job.workflow.is_empty() {
        base.to_owned()
    } else {
        format!("{} / {base}", job.workflow)
    };
    Some(EndedJobTimes {
        id: job.id,
        ended_at: job.completed_at.unwrap_or(row.received_at),
        failed,
        queue_seconds: between(job.created_at, job.started_at),
        run_seconds: between(job.started_at, job.completed_at),
        runner: cut(&job.asked_for()),
        name: cut(&name),
    })
}

fn ended_run(row: &WebhookRow) -> Option<EndedRun> {
    let document: Value = serde_json::from_str(&row.document).ok()?;
    let run = &document["workflow_run"];
    let state = CiState::new("completed", run["conclusion"].as_str().unwrap_or_default());
    let time = |field: &str| run[field].as_str().and_then(|text| text.parse().ok());
    let is_own = run["event"].as_str().is_some_and(|event| TRUSTED_EVENTS.contains(&event));
    Some(EndedRun {
        id: run["id"].as_u64()?,
        attempt: run["run_attempt"].as_u64().unwrap_or(1),
        workflow: cut(run["name"].as_str().unwrap_or_default()),
        created_at: time("created_at").unwrap_or(row.received_at),
        ended_at: time("updated_at").unwrap_or(row.received_at),
        failed: counted(state)?,
        sha: row.sha.clone(),
        branch: Some(row.branch.clone()).filter(|branch| is_own && !branch.is_empty()),
    })
}

fn counted(state: CiState) -> Option<bool> {
    match state {
        CiState::Passed => Some(false),
        CiState::Failed | CiState::TimedOut => Some(true),
        CiState::Cancelled | CiState::Running | CiState::Queued | CiState::Neutral => None,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_KEY_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::row;
    use super::*;

    #[test]
    fn ended_job_says_how_long_it_waited_on_which_runner_and_how_long_it_ran() {
        let job = |conclusion: &str| {
            json!({"action": "completed", "workflow_job": {
                "id": 5, "name": "linux / test (default, 1, 3)", "workflow_name": "Trunk",
                "status": "completed", "conclusion": conclusion, "labels": ["self-hosted", "gpu"],
                "runner_group_name": "Default",
                "created_at": "2026-09-01T10:00:00Z", "started_at": "2026-09-01T10:05:00Z",
                "completed_at": "2026-09-01T10:45:00Z",
            }})
        };
        let Some(EndedCi::Job(found)) = EndedCi::from_row(&row("workflow_job", &job("failure")))
        else {
            panic!("it is a job")
        };
        assert_eq!((found.queue_seconds, found.run_seconds), (Some(300.0), Some(2400.0)));
        assert_eq!((&*found.runner, &*found.name), ("self-hosted, gpu", "Trunk / linux / test"));
        assert!(found.failed);
        // As GitHub tells of `runs-on: { group: large }`.
        let mut grouped = job("success");
        grouped["workflow_job"]["labels"] = json!([]);
        grouped["workflow_job"]["runner_group_name"] = json!("large");
        let Some(EndedCi::Job(found)) = EndedCi::from_row(&row("workflow_job", &grouped)) else {
            panic!("it is a job")
        };
        assert_eq!(found.runner, "group: large");
        for odd in ["cancelled", "skipped"] {
            assert_eq!(EndedCi::from_row(&row("workflow_job", &job(odd))), None, "{odd}");
        }
        let mut at_once = job("success");
        at_once["workflow_job"]["workflow_name"] = Value::Null;
        at_once["workflow_job"]["created_at"] = at_once["workflow_job"]["started_at"].clone();
        let Some(EndedCi::Job(found)) = EndedCi::from_row(&row("workflow_job", &at_once)) else {
            panic!("it is a job")
        };
        assert_eq!((&*found.name, found.queue_seconds), ("linux / test", Some(0.0)));
        let mut started = job("failure");
        started["action"] = json!("in_progress");
        assert_eq!(EndedCi::from_row(&row("workflow_job", &started)), None, "it hasn't ended");
    }

    #[test]
    fn run_of_a_forks_branch_main_is_no_run_of_the_branch() {
        let payload = |event: &str| {
            json!({"action": "completed", "workflow_run": {
                "id": 9, "name": "Trunk", "run_attempt": 1, "status": "completed", "event": event,
                "conclusion": "success", "head_sha": "abcdef0", "head_branch": "main",
                "created_at": "2026-09-01T10:00:00Z", "updated_at": "2026-09-01T11:00:00Z",
            }})
        };
        let read = |payload: &Value| match EndedCi::from_row(&row("workflow_run", payload)) {
            Some(EndedCi::Run(run)) => Some(run),
            _ => None,
        };
        let run = |event: &str| read(&payload(event)).unwrap();
        assert_eq!(run("push").branch.as_deref(), Some("main"));
        assert_eq!(run("pull_request").branch, None);
        assert_eq!(run("pull_request").signal_seconds(), Some(3600.0));
        let mut odd = payload("push");
        odd["workflow_run"]["run_attempt"] = json!(2);
        assert_eq!(read(&odd).unwrap().signal_seconds(), None, "a person waited with the re-run");
        odd["workflow_run"]["run_attempt"] = json!(1);
        odd["workflow_run"]["created_at"] = json!("2026-09-01T11:00:00Z");
        assert_eq!(read(&odd).unwrap().signal_seconds(), Some(0.0));
        odd["workflow_run"]["created_at"] = json!("2026-09-01T11:00:01Z");
        assert_eq!(read(&odd).unwrap().signal_seconds(), None, "it ended before it was created");
        odd["action"] = json!("in_progress");
        assert_eq!(read(&odd), None);
    }
}
