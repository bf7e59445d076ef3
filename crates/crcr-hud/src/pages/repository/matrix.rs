//! The table of a backend's jobs: a row for each commit, a column for each job.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crcr_domain::checks::proof::MissingProof;
use crcr_domain::ci_data::pull_request::PullRequestState;
use crcr_domain::ci_data::workflow::BranchCommit;
use crcr_domain::results::triage::TriageCategory;
use crcr_domain::results::{BlamedJobs, JobOfRecord, JobOutcome};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use serde::Serialize;

use crate::context::{Hud, PageError};
use crate::model::job_details::JobDetails;
use crate::query::TimeSpan;

const MAX_ROWS: usize = 50;
const MAX_COLUMNS: usize = 40;

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct JobMatrix {
    /// If there are too many jobs, those that failed first.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<MatrixRow>,
    /// How many older commits are on later pages.
    pub(crate) more_rows: usize,
    /// How many jobs are left out, and how many of those failed.
    pub(crate) more_columns: usize,
    pub(crate) more_failed_columns: usize,
    /// How many older heads of pull requests are left out.
    pub(crate) older_heads: usize,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct MatrixRow {
    pub(crate) pull_request: Option<u64>,
    pub(crate) upstream: String,
    /// Empty if no commit of upstream is known.
    pub(crate) head_sha: String,
    /// The title of the pull request or the commit, if a webhook of it is stored.
    pub(crate) title: Option<String>,
    /// Whether one of its jobs failed, also one without a column.
    pub(crate) has_failed: bool,
    /// A run on it.
    pub(crate) run_id: String,
    /// When the newest event of it was accepted.
    pub(crate) at: Timestamp,
    /// Whether the pull request has a newer head.
    pub(crate) older: bool,
    /// One for each column; `None` if the job didn't run.
    pub(crate) cells: Vec<Option<MatrixCell>>,
}

/// One job on one commit.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct MatrixCell {
    /// `None` while it runs.
    pub(crate) outcome: Option<JobOutcome>,
    pub(crate) attempts: usize,
    #[serde(flatten)]
    pub(crate) details: JobDetails,
    /// Why nothing is concluded from it.
    pub(crate) missing_proof: Option<MissingProof>,
    /// Whose fault a failure is, and why; `None` if it didn't fail.
    pub(crate) blame: Option<CellBlame>,
}

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct CellBlame {
    pub(crate) category: TriageCategory,
    /// If it is upstream's: whether that was broken without this change.
    pub(crate) was_broken_before: bool,
    pub(crate) summary: String,
}

impl JobMatrix {
    pub(crate) fn new<'a>(jobs: &[JobOfRecord<'a>], span: &TimeSpan, blamed: &BlamedJobs) -> Self {
        // Names are built once for each (workflow, job), which many jobs share.
        let id = |job: &JobOfRecord<'a>| (&*job.record.workflow, job.record.job.as_deref());
        let mut ids: HashMap<_, (String, bool)> = HashMap::new();
        for job in jobs {
            ids.entry(id(job)).or_insert_with(|| (job.name(), false)).1 |= has_failed(job.outcome);
        }
        let searched = span.q.as_deref().unwrap_or_default().to_lowercase();
        ids.retain(|_, (name, _)| name.to_lowercase().contains(&searched));
        let (columns, [more_columns, more_failed_columns]) = matrix_columns(ids.values());
        let is_shown = |job: &&JobOfRecord<'a>| ids.contains_key(&id(job));
        let place: HashMap<_, usize> = (ids.iter())
            .filter_map(|(id, (name, _))| Some((*id, columns.binary_search(name).ok()?)))
            .collect();
        let mut rows: BTreeMap<(Option<u64>, &str, &str), MatrixRow> = BTreeMap::new();
        for job in jobs.iter().filter(is_shown) {
            let record = job.record;
            // Self-reports may have no commit; the jobs of one run belong together then.
            let key = (record.pull_request, record.upstream.as_str(), record.commit_or_run());
            let row = rows.entry(key).or_insert_with(|| MatrixRow {
                pull_request: record.pull_request,
                upstream: record.upstream.clone(),
                head_sha: record.head_sha.clone(),
                run_id: record.run_id.clone(),
                title: None,
                has_failed: false,
                at: record.dispatched_at,
                older: false,
                cells: vec![None; columns.len()],
            });
            row.has_failed |= has_failed(job.outcome);
            row.at = row.at.max(record.dispatched_at);
            if let Some(at) = place.get(&id(job)) {
                row.cells[*at] = Some(MatrixCell {
                    outcome: job.outcome,
                    attempts: job.attempts,
                    details: (&record.details).into(),
                    missing_proof: record.missing_proof,
                    blame: blamed.verdict(record).map(|verdict| CellBlame {
                        category: verdict.category,
                        was_broken_before: verdict.was_broken_before(),
                        summary: verdict.summary.clone(),
                    }),
                });
            }
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.at));
        let mut pulls = BTreeSet::new();
        for row in &mut rows {
            let pull = row.pull_request.map(|number| (row.upstream.to_ascii_lowercase(), number));
            row.older = pull.is_some_and(|pull| !pulls.insert(pull));
        }
        let older_heads = rows.iter().filter(|row| row.older).count();
        rows.retain(|row| (span.all_heads || !row.older) && (!span.only_failing || row.has_failed));
        let mut rows = rows.split_off(rows.len().min((span.page - 1) * MAX_ROWS));
        let more_rows = rows.len().saturating_sub(MAX_ROWS);
        rows.truncate(MAX_ROWS);
        Self { columns, rows, more_rows, more_columns, more_failed_columns, older_heads }
    }

    /// The titles of the pull requests and of the commits, from webhooks.
    pub(crate) async fn add_titles(&mut self, hud: &Hud) -> Result<(), PageError> {
        let of_upstream = |row: &&mut MatrixRow| {
            row.upstream.eq_ignore_ascii_case(hud.upstream.as_str()) && !row.head_sha.is_empty()
        };
        let mut rows: Vec<&mut MatrixRow> = self.rows.iter_mut().filter(of_upstream).collect();
        let shas: Vec<String> = rows.iter().map(|row| row.head_sha.clone()).collect();
        let (mut pulls, mut commits) = (HashMap::new(), HashMap::new());
        for event in ["pull_request", "push"] {
            let selection = ThingSelection::Commits(&shas);
            let query = ThingQuery { event, repository: hud.upstream.as_str(), selection };
            for row in hud.results.current_things(&query).await? {
                if let Some(pull) = PullRequestState::from_row(&row) {
                    pulls.insert(pull.number, pull.title);
                } else if let Some(commit) = BranchCommit::from_row(&row) {
                    commits.insert(commit.sha, commit.title);
                }
            }
        }
        for row in &mut rows {
            let title = match row.pull_request {
                Some(number) => pulls.get(&number),
                None => commits.get(&row.head_sha),
            };
            row.title = title.filter(|title| !title.is_empty()).cloned();
        }
        Ok(())
    }
}

/// The names of the jobs that are shown, sorted, and how many others there are, in all and of those that failed.
fn matrix_columns<'a>(jobs: impl Iterator<Item = &'a (String, bool)>) -> (Vec<String>, [usize; 2]) {
    let mut names: BTreeMap<&String, bool> = BTreeMap::new();
    for (name, failed) in jobs {
        *names.entry(name).or_default() |= failed;
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, failed)| !failed);
    let others = names.split_off(names.len().min(MAX_COLUMNS));
    let failed = others.iter().filter(|(_, failed)| *failed).count();
    let mut columns: Vec<String> = names.into_iter().map(|(name, _)| name.clone()).collect();
    columns.sort();
    (columns, [others.len(), failed])
}

fn has_failed(outcome: Option<JobOutcome>) -> bool {
    outcome
        .is_some_and(|o| !o.is_pass() && !matches!(o, JobOutcome::Neutral | JobOutcome::Superseded))
}
