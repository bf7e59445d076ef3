//! Logs of failed jobs: what each one says about the failure, and which failures have the same cause.
//!
//! They have a table of their own, so no webhook that arrives late can undo a classification.

pub(crate) mod clickhouse;
pub(crate) mod sqlite;

use async_trait::async_trait;
use crcr_domain::ci_data::job_log::{
    EndedJob, FailureCause, JobLogOutcome, JobLogRow, NoLogReason,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::ResultsError;

/// Failures that are grouped, the newest ones. A page takes about as long for a quiet week as for a year in
/// which everything failed.
pub const MAX_GROUPED: usize = 10_000;

#[derive(Debug, Clone)]
pub struct FailureQuery<'a> {
    pub repository: Option<&'a str>,
    pub category: Option<&'a str>,
    /// Jobs that ended from here (inclusive) ...
    pub from: Timestamp,
    /// ... to here (exclusive).
    pub to: Timestamp,
    pub limit: usize,
}

#[derive(Debug, Clone)]
pub struct FailedJobsQuery<'a> {
    pub repository: Option<&'a str>,
    pub cause: Option<CauseFilter<'a>>,
    pub category: Option<&'a str>,
    /// `WORKFLOW / NAME`, without what is in parentheses at the end of the job's name.
    pub job: Option<&'a str>,
    /// Jobs that ended from here (inclusive) ...
    pub from: Timestamp,
    /// ... to here (exclusive).
    pub to: Timestamp,
    /// Also those that ended exactly at `to` and have a smaller id than this.
    pub to_job: Option<u64>,
    pub limit: usize,
}

/// Which cause failures have. Rule and capture are empty where nothing explains the failure.
#[derive(Debug, Clone, Copy)]
pub struct CauseFilter<'a> {
    pub rule: &'a str,
    pub capture: &'a str,
    /// Only jobs without a log, for this reason; `None` selects those whose log was read.
    pub reason: Option<NoLogReason>,
}

impl CauseFilter<'_> {
    /// The reason as it is stored.
    fn reason_column(&self) -> &'static str {
        self.reason.map_or("", NoLogReason::as_str)
    }
}

/// The causes of failures, the most frequent first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureGroups {
    pub groups: Vec<FailureGroup>,
    /// How many failures were grouped, also into groups that are left out.
    pub grouped: u64,
    /// Whether there are more groups than were asked for.
    pub are_cut: bool,
}

impl FailureGroups {
    /// `found`: one group more than `limit`, if there are so many. Each comes with the number of all failures.
    fn new(found: Vec<(u64, FailureGroup)>, limit: usize) -> Self {
        let grouped = found.first().map_or(0, |(grouped, _)| *grouped);
        let are_cut = found.len() > limit;
        let groups = found.into_iter().take(limit).map(|(_, group)| group).collect();
        Self { groups, grouped, are_cut }
    }
}

/// Failures with the same cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct FailureGroup {
    #[serde(flatten)]
    pub cause: FailureCause,
    /// Why there is no log, if there is none.
    pub reason: Option<NoLogReason>,
    pub failures: u64,
    pub oldest: Timestamp,
    /// What the log of the newest one says.
    pub line: String,
    pub newest: EndedJob,
}

#[async_trait]
pub trait JobLogResults: Send + Sync {
    /// Stores rows durably before it returns. There is one row for each job: the one with the greatest
    /// [`JobLogRow::version`].
    async fn put_job_logs(&self, rows: Vec<JobLogRow>) -> Result<(), ResultsError>;

    /// The rows of these jobs, ordered by job id.
    async fn job_logs(
        &self,
        repository: &str,
        job_ids: &[u64],
    ) -> Result<Vec<JobLogRow>, ResultsError>;

    /// Failures with the same rule and capture in jobs that ended since then, newest first. A cause
    /// without a capture has none.
    async fn similar_failures(
        &self,
        cause: &FailureCause,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<JobLogRow>, ResultsError>;

    /// The newest [`MAX_GROUPED`] failures by their cause.
    async fn failure_groups(&self, query: &FailureQuery<'_>)
    -> Result<FailureGroups, ResultsError>;

    /// The newest first, and of those that ended at the same time, the greatest id first.
    async fn failed_jobs(
        &self,
        query: &FailedJobsQuery<'_>,
    ) -> Result<Vec<JobLogRow>, ResultsError>;

    /// Notes a job that succeeded. Of the same job in the same place, the one that ended last is kept.
    async fn put_green_job(
        &self,
        job: &EndedJob,
        on_default_branch: bool,
    ) -> Result<(), ResultsError>;

    /// The newest green runs of a job: on the default branch, and then elsewhere.
    async fn green_jobs(
        &self,
        repository: &str,
        workflow: &str,
        job_name: &str,
    ) -> Result<Vec<EndedJob>, ResultsError>;
}

/// The stored form of an outcome: the reason's name or nothing, and JSON or nothing.
pub(crate) fn outcome_columns(outcome: &JobLogOutcome) -> (&'static str, String) {
    match outcome {
        JobLogOutcome::Classified(found) => {
            ("", serde_json::to_string(found).expect("a classification is always JSON"))
        }
        JobLogOutcome::NoLog(reason) => (reason.as_str(), String::new()),
    }
}

/// The reverse of [`outcome_columns`].
pub(crate) fn outcome(reason: &str, document: &str) -> Option<JobLogOutcome> {
    if reason.is_empty() {
        serde_json::from_str(document).ok().map(JobLogOutcome::Classified)
    } else {
        NoLogReason::from_name(reason).map(JobLogOutcome::NoLog)
    }
}

#[cfg(test)]
pub(crate) mod suite {
    use crcr_domain::ci_data::job_log::{LogClassification, LogMatch, LogMatchSource, NovelLine};
    use crcr_domain::ci_data::webhook::WebhookRow;
    use serde_json::json;

    use super::*;
    use crate::Results;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).unwrap()
    }

    fn job(job_id: u64, second: i64) -> EndedJob {
        EndedJob {
            repository: "Acme/Upstream".to_owned(),
            run_id: 9_000_000_000 + job_id,
            run_attempt: 2,
            job_id,
            job_name: "test (a, 1, 2)' OR 1=1 --\\\t\n\u{202e}".to_owned(),
            workflow: "Trunk".to_owned(),
            branch: "main".to_owned(),
            head_sha: "abc".to_owned(),
            completed_at: at(second),
        }
    }

    fn classified(job_id: u64, second: i64, rule: &str, capture: &str) -> JobLogRow {
        let found = LogMatch {
            rule: Some(rule.to_owned()),
            category: Some(format!("category of {rule}")),
            line_number: 7,
            line: "<script>'\\\u{0} ✗".to_owned(),
            captures: vec![capture.to_owned(), "second".to_owned()],
            context: vec!["before".to_owned(), "<script>'\\\u{0} ✗".to_owned()],
            by: LogMatchSource::Rule,
            certainty_percent: 90,
            reasons: vec![],
        };
        let novel = vec![NovelLine { line_number: 8, line: "new".to_owned() }];
        JobLogRow {
            job: job(job_id, second),
            looked_at: at(second + 60),
            log_key: Some(format!("logs/acme/upstream/{job_id}.txt.zst")),
            outcome: JobLogOutcome::Classified(Box::new(LogClassification {
                candidates: vec![found.clone()],
                found: Some(found),
                novel,
            })),
        }
    }

    fn without_log(job_id: u64, second: i64, reason: NoLogReason) -> JobLogRow {
        JobLogRow {
            log_key: None,
            outcome: JobLogOutcome::NoLog(reason),
            ..classified(job_id, second, "", "")
        }
    }

    /// `results` must be empty.
    pub(crate) async fn all(results: &dyn Results) {
        results.prepare().await.unwrap();
        classification_survives_what_arrives_late(results).await;
        failures_are_found_by_cause(results).await;
        green_jobs_are_the_newest(results).await;
        failure_has_the_cause_of_its_current_row(results).await;
        results.delete_before(at(250)).await.unwrap();
        let left = results.job_logs("acme/upstream", &[1, 2, 3, 4, 5, 6]).await.unwrap();
        assert!(left.iter().any(|row| row.job.job_id == 5), "a job after that time is kept");
    }

    async fn classification_survives_what_arrives_late(results: &dyn Results) {
        let row = classified(1, 100, "oom", "linker");
        // The same row twice, and a reason that a later try gave.
        for _ in 0..2 {
            results.put_job_logs(vec![row.clone()]).await.unwrap();
        }
        let mut gone = without_log(1, 100, NoLogReason::Gone);
        gone.looked_at = at(9000);
        results.put_job_logs(vec![gone]).await.unwrap();
        // A webhook that says that the job is still running.
        let late = json!({
            "action": "in_progress", "repository": { "full_name": "Acme/Upstream" },
            "workflow_job": { "id": 1, "run_attempt": 2, "status": "in_progress", "head_sha": "abc",
                "head_branch": "main" },
        });
        let late = late.to_string();
        let late = WebhookRow::new("workflow_job", "late", at(9001), late.as_bytes()).unwrap();
        results.append_webhooks(vec![late]).await.unwrap();
        let found = results.job_logs("acme/UPSTREAM", &[1]).await.unwrap();
        assert_eq!(found, [row], "it comes back unchanged, and nothing has replaced it");

        // A reason gives way to a classification, and an old classification to a newer one.
        results.put_job_logs(vec![without_log(2, 200, NoLogReason::Refused)]).await.unwrap();
        let found = results.job_logs("acme/upstream", &[2]).await.unwrap();
        assert_eq!(found[0].no_log_reason(), Some(NoLogReason::Refused));
        let mut newer = classified(2, 200, "oom", "linker");
        results.put_job_logs(vec![newer.clone()]).await.unwrap();
        newer.looked_at = at(9002);
        newer.log_key = None;
        results.put_job_logs(vec![newer.clone()]).await.unwrap();
        assert_eq!(results.job_logs("acme/upstream", &[2]).await.unwrap(), [newer]);
        assert_eq!(results.job_logs("acme/other", &[1, 2]).await.unwrap(), []);
        assert_eq!(results.job_logs("acme/upstream", &[]).await.unwrap(), []);
    }

    async fn failures_are_found_by_cause(results: &dyn Results) {
        let mut elsewhere = classified(4, 400, "oom", "linker");
        elsewhere.job.repository = "other/repo".to_owned();
        let mut by_line = classified(6, 600, "", "");
        by_line.outcome = JobLogOutcome::Classified(Box::default());
        results
            .put_job_logs(vec![
                classified(3, 300, "oom", "compiler"),
                elsewhere,
                without_log(5, 500, NoLogReason::Gone),
                by_line,
            ])
            .await
            .unwrap();
        let ids = |rows: Vec<JobLogRow>| rows.iter().map(|row| row.job.job_id).collect::<Vec<_>>();
        let cause = classified(1, 100, "oom", "linker").cause();
        let similar = async |second, limit| {
            ids(results.similar_failures(&cause, at(second), limit).await.unwrap())
        };
        assert_eq!(similar(0, 9).await, [4, 2, 1], "newest first, in every repository");
        assert_eq!(similar(150, 9).await, [4, 2]);
        assert_eq!(similar(0, 1).await, [4]);
        let nothing = FailureCause::default();
        assert_eq!(results.similar_failures(&nothing, at(0), 9).await.unwrap(), []);

        let query =
            FailureQuery { repository: None, category: None, from: at(0), to: at(9999), limit: 9 };
        let groups = async |query: FailureQuery<'_>| {
            let found = results.failure_groups(&query).await.unwrap().groups;
            found
                .into_iter()
                .map(|group| (group.cause.capture, group.failures, group.newest.job_id))
                .collect::<Vec<_>>()
        };
        let group = |capture: &str, failures, newest| (capture.to_owned(), failures, newest);
        let all =
            [group("linker", 3, 4), group("", 1, 6), group("", 1, 5), group("compiler", 1, 3)];
        assert_eq!(groups(query.clone()).await, all);
        let whole = results.failure_groups(&query).await.unwrap();
        assert_eq!((whole.grouped, whole.are_cut), (6, false));
        let full = &whole.groups[0];
        assert_eq!((full.oldest, full.cause.clone(), full.reason), (at(100), cause, None));
        assert_eq!(full.line, classified(4, 400, "oom", "linker").short_line());
        let mut newest = job(4, 400);
        newest.repository = "other/repo".to_owned();
        assert_eq!(full.newest, newest);
        let only = FailureQuery { repository: Some("acme/UPSTREAM"), ..query.clone() };
        assert_eq!(groups(only.clone()).await[0], group("linker", 2, 2));
        let category = Some("category of oom");
        assert_eq!(groups(FailureQuery { category, ..only }).await.len(), 2);
        let span = FailureQuery { from: at(300), to: at(500), ..query.clone() };
        assert_eq!(groups(span).await, [group("linker", 1, 4), group("compiler", 1, 3)]);
        let injected = FailureQuery { category: Some("' OR 1=1 --"), ..query.clone() };
        assert_eq!(groups(injected).await, []);
        for (limit, are_cut) in [(1, true), (3, true), (4, false)] {
            let cut = FailureQuery { limit, ..query.clone() };
            let found = results.failure_groups(&cut).await.unwrap();
            assert_eq!((found.groups.len(), found.are_cut), (limit, are_cut));
            assert_eq!(found.grouped, 6, "also those of the groups that are left out");
        }
        let one_by_one =
            async |query: FailedJobsQuery<'_>| ids(results.failed_jobs(&query).await.unwrap());
        let (from, to) = (at(0), at(9999));
        let all = FailedJobsQuery {
            repository: None,
            cause: None,
            category: None,
            job: None,
            from,
            to,
            to_job: None,
            limit: 9,
        };
        assert_eq!(one_by_one(all.clone()).await, [6, 5, 4, 3, 2, 1]);
        let linker = CauseFilter { rule: "oom", capture: "linker", reason: None };
        let linker = FailedJobsQuery { cause: Some(linker), ..all.clone() };
        assert_eq!(one_by_one(linker.clone()).await, [4, 2, 1]);
        let older = FailedJobsQuery { to: at(400), limit: 1, ..linker.clone() };
        assert_eq!(one_by_one(older).await, [2]);
        let here = FailedJobsQuery { repository: Some("acme/UPSTREAM"), ..linker };
        assert_eq!(one_by_one(here).await, [2, 1]);
        let at_400 = FailedJobsQuery { to: at(400), to_job: Some(5), ..all.clone() };
        assert_eq!(one_by_one(at_400.clone()).await[0], 4, "at the same time, the smaller id");
        let below = FailedJobsQuery { to_job: Some(4), ..at_400 };
        assert_eq!(one_by_one(below).await, [3, 2, 1]);
        let oom = FailedJobsQuery { category: Some("category of oom"), ..all.clone() };
        assert_eq!(one_by_one(oom).await, [4, 3, 2, 1]);
        let injected = FailedJobsQuery { category: Some("' OR 1=1 --"), ..all.clone() };
        assert_eq!(one_by_one(injected).await, [0; 0]);
        let named = async |job| one_by_one(FailedJobsQuery { job: Some(job), ..all.clone() }).await;
        assert_eq!(named("Trunk / test").await, [6, 5, 4, 3, 2, 1], "each leg of the matrix");
        for other in ["Trunk / te", "Trunk / test (a", "test", "Trunk / %", "' OR 1=1 --"] {
            assert_eq!(named(other).await, [0; 0], "{other}");
        }
        for (reason, found) in
            [(None, &[6][..]), (Some(NoLogReason::Gone), &[5]), (Some(NoLogReason::TooLarge), &[])]
        {
            let unexplained = Some(CauseFilter { rule: "", capture: "", reason });
            let query = FailedJobsQuery { cause: unexplained, ..all.clone() };
            assert_eq!(one_by_one(query).await, found, "{reason:?}");
        }
    }

    /// ClickHouse has each row of a job until it merges them.
    async fn failure_has_the_cause_of_its_current_row(results: &dyn Results) {
        let repository = Some("acme/again");
        let put = async |mut row: JobLogRow| {
            row.job.repository = "acme/again".to_owned();
            results.put_job_logs(vec![row]).await.unwrap();
        };
        put(without_log(21, 10, NoLogReason::Gone)).await;
        put(classified(21, 10, "oom", "linker")).await;
        put(classified(22, 20, "oom", "linker")).await;
        let mut newer = classified(22, 20, "timeout", "download");
        newer.looked_at = at(9000);
        put(newer).await;
        put(without_log(23, 30, NoLogReason::Refused)).await;
        put(without_log(24, 40, NoLogReason::Gone)).await;
        let ids = |rows: Vec<JobLogRow>| rows.iter().map(|row| row.job.job_id).collect::<Vec<_>>();
        let all = FailedJobsQuery {
            repository,
            cause: None,
            category: None,
            job: None,
            from: at(0),
            to: at(9999),
            to_job: None,
            limit: 9,
        };
        for (rule, capture, reason, found) in [
            ("oom", "linker", None, &[21][..]),
            ("timeout", "download", None, &[22]),
            ("", "", None, &[]),
            ("", "", Some(NoLogReason::Refused), &[23]),
            ("", "", Some(NoLogReason::Gone), &[24]),
        ] {
            let cause = Some(CauseFilter { rule, capture, reason });
            let query = FailedJobsQuery { cause, ..all.clone() };
            let jobs = ids(results.failed_jobs(&query).await.unwrap());
            assert_eq!(jobs, found, "{rule} {reason:?}");
        }
        for (category, jobs, groups) in [
            ("", &[24, 23][..], &[(1, 24), (1, 23)][..]),
            ("category of oom", &[21], &[(1, 21)]),
            ("category of timeout", &[22], &[(1, 22)]),
        ] {
            let category = Some(category);
            let query = FailedJobsQuery { category, ..all.clone() };
            assert_eq!(ids(results.failed_jobs(&query).await.unwrap()), jobs, "{category:?}");
            let query = FailureQuery { repository, category, from: at(0), to: at(9999), limit: 9 };
            let found = results.failure_groups(&query).await.unwrap();
            let found = found.groups.iter().map(|group| (group.failures, group.newest.job_id));
            assert_eq!(found.collect::<Vec<_>>(), groups, "{category:?}");
        }
        let cause = classified(1, 100, "oom", "linker").cause();
        let similar = ids(results.similar_failures(&cause, at(0), 9).await.unwrap());
        assert_eq!(similar, [4, 2, 1, 21], "22 has another cause by now");
    }

    async fn green_jobs_are_the_newest(results: &dyn Results) {
        let name = job(1, 0).job_name;
        let green = async || results.green_jobs("acme/upstream", "Trunk", &name).await.unwrap();
        assert_eq!(green().await, []);
        let mut topic = job(12, 30);
        topic.branch = "topic".to_owned();
        for (job, on_default_branch) in
            [(job(11, 20), true), (job(10, 10), true), (topic.clone(), false)]
        {
            results.put_green_job(&job, on_default_branch).await.unwrap();
        }
        assert_eq!(green().await, [job(11, 20), topic], "the default branch first");
        assert_eq!(results.green_jobs("acme/upstream", "Lint", &name).await.unwrap(), []);
    }
}
