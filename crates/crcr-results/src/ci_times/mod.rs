//! How long a repository's own jobs and runs waited and took, and which commits of a branch were red. Written with the
//! webhooks that say so, and added up by hour and day, because a month of a large project has a million jobs.

pub(crate) mod clickhouse;
pub(crate) mod sqlite;

use async_trait::async_trait;
use crcr_domain::names;
use crcr_domain::results::DurationHistogram;
use jiff::Timestamp;
use serde::Serialize;

use crate::ResultsError;

/// Names that are told apart in one hour or day; the jobs of others count as [`OTHER_NAMES`]. A pull request of a fork
/// can name as many as it likes.
pub const MAX_NAMES: usize = 300;
pub const OTHER_NAMES: &str = "(others)";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CiGrouping {
    /// By the labels of the runner, or by its group.
    Runner,
    /// By workflow and job.
    Job,
    /// Runs of the branches' own commits, by workflow; `run` is the time until their end.
    Branch,
    /// Runs of pull requests, by workflow; `run` is the time until their end.
    Pull,
}

names! { CiGrouping { Runner "runner", Job "job", Branch "branch", Pull "pull" } }

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CiUnit {
    Hour,
    Day,
}

impl CiUnit {
    pub fn millis(self) -> i64 {
        match self {
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
        }
    }

    /// When the hour or day of this time began.
    pub fn start(self, time: Timestamp) -> Timestamp {
        let start = time.as_millisecond().div_euclid(self.millis()) * self.millis();
        Timestamp::from_millisecond(start).unwrap_or(Timestamp::MIN)
    }
}

#[derive(Debug, Clone)]
pub struct CiTimesQuery {
    pub repository: String,
    pub grouping: CiGrouping,
    pub unit: CiUnit,
    /// Hours or days that begin from here (inclusive) ...
    pub from: Timestamp,
    /// ... to here (exclusive).
    pub to: Timestamp,
    /// The only job, workflow or runner that is asked for; `None` for all.
    pub name: Option<String>,
}

/// What ended in one hour or day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CiTimes {
    pub start: Timestamp,
    /// Name of the runner, job or workflow.
    pub name: String,
    pub ended: u64,
    pub failed: u64,
    pub queue: DurationHistogram,
    pub run: DurationHistogram,
}

/// A commit of a branch whose runs have ended, at least in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BranchCommitRuns {
    pub sha: String,
    pub first_run_at: Timestamp,
    pub runs: u64,
    /// Runs whose newest attempt failed.
    pub failed: u64,
}

/// Which jobs of a repository that passed or failed.
#[derive(Debug, Clone)]
pub struct EndedJobsQuery {
    pub repository: String,
    /// Only those of this runner and of this job, by the names that [`CiTimes`] has.
    pub runner: Option<String>,
    pub job: Option<String>,
    pub only_failed: bool,
    /// Those that ended from here (inclusive) ...
    pub from: Timestamp,
    /// ... to here (exclusive), and at this time those with a smaller id than `to_id`.
    pub to: Timestamp,
    pub to_id: Option<u64>,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedJob {
    pub id: u64,
    pub ended_at: Timestamp,
    pub failed: bool,
}

#[async_trait]
pub trait CiTimesResults: Send + Sync {
    /// Ordered by time and name.
    async fn ci_times(&self, query: &CiTimesQuery) -> Result<Vec<CiTimes>, ResultsError>;

    /// The commits whose first run was in this time span, newest first.
    async fn branch_commit_runs(
        &self,
        repository: &str,
        branch: &str,
        span: (Timestamp, Timestamp),
        limit: usize,
    ) -> Result<Vec<BranchCommitRuns>, ResultsError>;

    /// The jobs that [`CiTimesResults::ci_times`] counts, the newest first.
    async fn ended_jobs(&self, query: &EndedJobsQuery) -> Result<Vec<EndedJob>, ResultsError>;
}

#[cfg(test)]
pub(crate) mod suite {
    use crcr_domain::ci_data::webhook::WebhookRow;
    use rand::SeedableRng as _;
    use rand::seq::SliceRandom as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::Results;

    fn at(second: i64) -> Timestamp {
        // The beginning of a day.
        Timestamp::from_second(1_789_948_800 + second).unwrap()
    }

    fn row(event: &str, delivery: &str, second: i64, mut payload: Value) -> WebhookRow {
        payload["action"] = json!("completed");
        payload["repository"] = json!({ "full_name": "Acme/Upstream" });
        WebhookRow::new(event, delivery, at(second), payload.to_string().as_bytes()).unwrap()
    }

    fn job(id: u64, second: i64, queue: i64, conclusion: &str, label: &str) -> WebhookRow {
        let job = json!({
            "id": id, "run_attempt": 1, "name": format!("test ({id}, 9)' --\t\u{0}"), "workflow_name": "Trunk",
            "status": "completed", "conclusion": conclusion, "head_sha": "abc", "labels": [label],
            "created_at": at(second - queue - 60).to_string(),
            "started_at": at(second - 60).to_string(), "completed_at": at(second).to_string(),
        });
        row("workflow_job", &format!("job {id}"), second, json!({ "workflow_job": job }))
    }

    fn run(id: u64, attempt: u64, sha: &str, second: i64, conclusion: &str) -> WebhookRow {
        let run = json!({
            "id": id, "run_attempt": attempt, "name": "Trunk", "status": "completed", "event": "push",
            "conclusion": conclusion, "head_sha": sha, "head_branch": "main",
            "created_at": at(second - 600).to_string(), "updated_at": at(second).to_string(),
        });
        let delivery = format!("run {id} {attempt}");
        row("workflow_run", &delivery, second, json!({ "workflow_run": run }))
    }

    fn rows() -> Vec<WebhookRow> {
        let (hour, day) = (3600, 86_400);
        vec![
            job(1, 100, 30, "success", "linux"),
            job(2, 200, 300, "failure", "linux"),
            job(3, hour + 100, 30, "success", "gpu' OR 1=1 --"),
            job(4, day + 100, 30, "success", "linux"),
            job(5, 300, 30, "cancelled", "linux"),
            run(9, 1, "aaa", 700, "failure"),
            run(9, 2, "aaa", 900, "success"),
            run(10, 1, "bbb", 1700, "failure"),
            run(11, 1, "bbb", 1800, "success"),
        ]
    }

    /// `results` must be empty.
    pub(crate) async fn all(results: &dyn Results) {
        results.prepare().await.unwrap();
        let mut random = rand::rngs::StdRng::seed_from_u64(1);
        // In any order, and twice, as a replay does.
        for _ in 0..2 {
            let mut rows = rows();
            rows.shuffle(&mut random);
            results.append_webhooks(rows).await.unwrap();
        }
        let query = |grouping, unit| CiTimesQuery {
            repository: "acme/UPSTREAM".to_owned(),
            grouping,
            unit,
            from: at(0),
            to: at(999_999),
            name: None,
        };
        let found = results.ci_times(&query(CiGrouping::Runner, CiUnit::Hour)).await.unwrap();
        let brief: Vec<_> =
            found.iter().map(|row| (row.start, &*row.name, row.ended, row.failed)).collect();
        let expected = [
            (at(0), "linux", 2, 1),
            (at(3600), "gpu' OR 1=1 --", 1, 0),
            (at(86_400), "linux", 1, 0),
        ];
        assert_eq!(brief, expected);
        let queue = found[0].queue.percentile(0.95).unwrap();
        assert!((280.0..320.0).contains(&queue), "{queue}");
        let named = CiTimesQuery {
            name: Some("linux".to_owned()),
            ..query(CiGrouping::Runner, CiUnit::Day)
        };
        let found = results.ci_times(&named).await.unwrap();
        let ended: Vec<_> = found.iter().map(|row| (row.start, row.ended)).collect();
        assert_eq!(ended, [(at(0), 2), (at(86_400), 1)]);
        let found = results.ci_times(&query(CiGrouping::Job, CiUnit::Day)).await.unwrap();
        assert_eq!((&*found[0].name, found[0].ended), ("Trunk / test", 3));
        let found = results.ci_times(&query(CiGrouping::Branch, CiUnit::Day)).await.unwrap();
        assert_eq!((found[0].ended, found[0].failed, found[0].run.count()), (4, 2, 3));

        let span = (at(0), at(999_999));
        let commits = results.branch_commit_runs("acme/upstream", "main", span, 9).await.unwrap();
        let brief: Vec<_> =
            commits.iter().map(|row| (&*row.sha, row.first_run_at, row.runs, row.failed)).collect();
        let expected = [("bbb", at(1100), 2, 1), ("aaa", at(100), 1, 0)];
        assert_eq!(brief, expected, "the newest attempt counts");
        let one = results.branch_commit_runs("acme/upstream", "main", span, 1).await.unwrap();
        assert_eq!(one.len(), 1);
        listed(results).await;

        results.delete_before(at(86_400)).await.unwrap();
        let commits = results.branch_commit_runs("acme/upstream", "main", span, 9).await.unwrap();
        assert_eq!(commits, []);
    }

    async fn listed(results: &dyn Results) {
        let all = EndedJobsQuery {
            repository: "acme/UPSTREAM".to_owned(),
            runner: None,
            job: None,
            only_failed: false,
            from: at(0),
            to: at(999_999),
            to_id: None,
            limit: 99,
        };
        let ids = async |query: EndedJobsQuery| -> Vec<u64> {
            let found = results.ended_jobs(&query).await.unwrap();
            found.into_iter().map(|job| job.id).collect()
        };
        assert_eq!(ids(all.clone()).await, [4, 3, 2, 1], "neither the cancelled one nor runs");
        let runner = |name: &str| EndedJobsQuery { runner: Some(name.to_owned()), ..all.clone() };
        assert_eq!(ids(runner("linux")).await, [4, 2, 1]);
        assert_eq!(ids(runner("gpu' OR 1=1 --")).await, [3]);
        assert_eq!(ids(runner("")).await, [0; 0]);
        let job = EndedJobsQuery { job: Some("Trunk / test".to_owned()), ..all.clone() };
        assert_eq!(ids(EndedJobsQuery { limit: 3, ..job.clone() }).await, [4, 3, 2]);
        assert_eq!(ids(EndedJobsQuery { only_failed: true, ..job.clone() }).await, [2]);
        assert_eq!(ids(EndedJobsQuery { to: at(200), ..job.clone() }).await, [1]);
        let tied = EndedJobsQuery { to: at(200), to_id: Some(3), from: at(150), ..job };
        assert_eq!(ids(tied).await, [2], "of those that ended then, the ones with a smaller id");
    }
}
