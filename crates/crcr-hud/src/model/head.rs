//! What the backends and the upstream repository's own CI say of one commit: for `/pr` and `/commit`.

use std::collections::{BTreeMap, HashMap};

use crcr_domain::checks::proof::MissingProof;
use crcr_domain::ci_data::job_log::JobLogRow;
use crcr_domain::ci_data::workflow::WorkflowJob;
use crcr_domain::protocol::callback::{FailedTest, TestCounts};
use crcr_domain::results::facts::{
    AttemptFact, CheckFact, DispatchFact, DispatchFactStatus, MergeBaseFact,
};
use crcr_domain::results::triage::{TriageCategory, TriageVerdict};
use crcr_domain::results::{BlameContext, BranchResults, JobOfRecord, JobOutcome, jobs_of_record};
use crcr_domain::{Level, RepoName};
use crcr_results::Window;
use jiff::Timestamp;
use serde::Serialize;

use super::commit_jobs::jobs_of_commit;
use super::days::push_facts;
use super::head_state::BackendOnHead;
use super::job_details::JobDetails;
use crate::context::{Hud, PageError};
use crate::layout::{duration, outcome_parts};

/// How many days back to look for the last result on an upstream push.
const PUSH_LOOKBACK_DAYS: i64 = 14;
/// A commit may be pushed some days after its date, because a rebase keeps the date.
const PUSH_DELAY_DAYS: i64 = 7;
/// Logs of failed jobs on a page.
const MAX_LOGS: usize = 50;

/// The upstream repository's own jobs on a commit.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct InTreeJobs {
    /// Failures first.
    pub(crate) in_tree: Vec<WorkflowJob>,
    /// What the logs of those that failed say.
    pub(crate) in_tree_logs: Vec<JobLogRow>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct PullBackend {
    pub(crate) repo: String,
    pub(crate) level: Level,
    /// Whether a failure blocks the merge.
    pub(crate) blocks: bool,
    pub(crate) oncalls: Vec<String>,
    pub(crate) dispatch: DispatchFactStatus,
    pub(crate) last_error: Option<String>,
    /// The worst of its jobs; `None` at levels whose results aren't shown.
    pub(crate) state: Option<BackendOnHead>,
    /// What it says of the head, in one sentence.
    pub(crate) sentence: String,
    /// Whether the check run that the pull request waits for has ended; only at levels that block the merge.
    pub(crate) is_decided: bool,
    /// Whether the sentence quotes the check run, because the jobs alone would give another answer.
    pub(crate) quotes_check_run: bool,
    /// The verdict on its most telling failure.
    pub(crate) verdict: Option<TriageVerdict>,
    pub(crate) jobs: Vec<PullJob>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct PullJob {
    pub(crate) name: String,
    /// `None` while it runs.
    pub(crate) outcome: Option<JobOutcome>,
    pub(crate) attempts: usize,
    /// How long it waited and how long it ran, in seconds.
    pub(crate) queue_seconds: Option<f64>,
    pub(crate) execution_seconds: Option<f64>,
    /// When its newest report was received.
    pub(crate) received_at: Timestamp,
    #[serde(flatten)]
    pub(crate) details: JobDetails,
    pub(crate) tests: Option<TestCounts>,
    pub(crate) failed_tests: Vec<FailedTest>,
    /// Whether each failing test is new; `None` if there is nothing to compare with.
    pub(crate) new_tests: Option<Vec<bool>>,
    /// Whose fault it is, computed from stored results; `None` if nothing failed.
    pub(crate) verdict: Option<TriageVerdict>,
    /// The verdict of the backend itself.
    pub(crate) reported_verdict: Option<TriageVerdict>,
    /// What its reports lack as proof. An unproven result changes no check run.
    pub(crate) missing_proof: Option<MissingProof>,
}

/// What a backend reported on a commit of runs that no dispatch started, such as nightly ones.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct OwnRuns {
    pub(crate) repo: String,
    pub(crate) level: Level,
    /// Without verdicts.
    pub(crate) jobs: Vec<PullJob>,
}

impl PullJob {
    /// Without a verdict.
    fn new(job: &JobOfRecord<'_>) -> Self {
        Self {
            new_tests: None,
            verdict: None,
            reported_verdict: job.record.details.triage.clone(),
            name: job.name(),
            outcome: job.outcome,
            attempts: job.attempts,
            queue_seconds: job.first.queue_seconds,
            execution_seconds: job.record.execution_seconds,
            received_at: job.record.received_at,
            details: (&job.record.details).into(),
            tests: job.record.details.tests,
            failed_tests: job.record.details.failed_tests.clone(),
            missing_proof: job.record.missing_proof,
        }
    }
}

/// The runs that these attempts on one commit belong to, from L4 down to L2.
pub(crate) fn own_runs(hud: &Hud, attempts: &[AttemptFact]) -> Vec<OwnRuns> {
    let mut by_repo: BTreeMap<String, OwnRuns> = BTreeMap::new();
    for job in jobs_of_record(attempts, &[]) {
        let (repo, key) = (job.record.repo.clone(), job.record.repo.to_ascii_lowercase());
        let level = hud.level_now(&repo, job.record.level);
        let runs = by_repo.entry(key).or_insert_with(|| OwnRuns { repo, level, jobs: vec![] });
        runs.jobs.push(PullJob::new(&job));
    }
    let mut found: Vec<OwnRuns> =
        by_repo.into_values().filter(|runs| runs.level.shows_results()).collect();
    found.sort_by_key(|runs| std::cmp::Reverse(runs.level));
    found
}

impl InTreeJobs {
    pub(crate) async fn read(hud: &Hud, upstream: &RepoName, sha: &str) -> Result<Self, PageError> {
        let in_tree = jobs_of_commit(hud, upstream, sha).await?;
        let failed = in_tree.iter().filter(|job| job.state.is_failure());
        let failed: Vec<u64> = failed.take(MAX_LOGS).map(|job| job.id).collect();
        let in_tree_logs = hud.results.job_logs(upstream.as_str(), &failed).await?;
        Ok(Self { in_tree, in_tree_logs })
    }
}

/// What is stored of a commit's dispatches and jobs.
pub(crate) struct HeadFacts<'a> {
    pub(crate) upstream: &'a RepoName,
    pub(crate) head_sha: &'a str,
    pub(crate) pull_request: Option<u64>,
    pub(crate) attempts: &'a [AttemptFact],
    pub(crate) dispatches: &'a [DispatchFact],
    pub(crate) merge_base: Option<MergeBaseFact>,
}

impl HeadFacts<'_> {
    /// What each backend says, from L4 down to L1.
    pub(crate) async fn backends(self, hud: &Hud) -> Result<Vec<PullBackend>, PageError> {
        let jobs: Vec<JobOfRecord<'_>> = jobs_of_record(self.attempts, self.dispatches)
            .into_iter()
            .filter(|job| job.record.head_sha == self.head_sha)
            .collect();
        let failed = jobs.iter().filter(|job| job.outcome == Some(JobOutcome::TestFailed));
        let mut failing: Vec<String> =
            failed.map(|job| job.record.repo.to_ascii_lowercase()).collect();
        failing.sort_unstable();
        failing.dedup();
        let pushed =
            attempts_on_pushes(hud, self.upstream, failing, self.merge_base.as_ref()).await?;
        let pushed = jobs_of_record(&pushed, &[]);
        let context = BlameContext {
            head: &jobs,
            branch: &BranchResults::new(&pushed),
            merge_base: self.merge_base.as_ref().map(|found| found.merge_base.as_str()),
            pull_request: self.pull_request,
            first: Timestamp::MIN,
            last: Timestamp::MAX,
        };
        let checks = checks_of_heads(hud, self.upstream, &[self.head_sha.to_owned()]).await?;
        let mut backends: Vec<PullBackend> = newest_of_head(self.dispatches, self.head_sha)
            .into_iter()
            .map(|dispatch| {
                let check = checks.get(&check_key(self.head_sha, &dispatch.repo));
                backend(hud, dispatch, &context, check)
            })
            .collect();
        backends.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.repo.cmp(&b.repo)));
        Ok(backends)
    }
}

/// The check runs with the verdicts on commits, by [`check_key`].
pub(crate) type Checks = HashMap<(String, String), CheckFact>;

pub(crate) fn check_key(head_sha: &str, repo: &str) -> (String, String) {
    (head_sha.to_owned(), repo.to_ascii_lowercase())
}

pub(crate) async fn checks_of_heads(
    hud: &Hud,
    upstream: &RepoName,
    heads: &[String],
) -> Result<Checks, PageError> {
    let found = hud.results.checks(upstream.as_str(), heads).await?;
    Ok(found.into_iter().map(|check| (check_key(&check.head_sha, &check.repo), check)).collect())
}

/// The newest dispatch of this head to each repository. Labels and reopening cause further ones.
fn newest_of_head<'a>(dispatches: &'a [DispatchFact], head: &str) -> Vec<&'a DispatchFact> {
    let mut newest: HashMap<String, &DispatchFact> = HashMap::new();
    for dispatch in dispatches.iter().filter(|dispatch| dispatch.head_sha == head) {
        let slot = newest.entry(dispatch.repo.to_ascii_lowercase()).or_insert(dispatch);
        if dispatch.enqueued_at > slot.enqueued_at {
            *slot = dispatch;
        }
    }
    newest.into_values().collect()
}

/// The worst of what the backends that block the merge say of a head; `None` if none of them was told of it.
pub(crate) fn blocking_state(
    hud: &Hud,
    head: &str,
    dispatches: &[DispatchFact],
    jobs: &[JobOfRecord<'_>],
    checks: &Checks,
) -> Option<BackendOnHead> {
    let blocks = |sent: &&DispatchFact| hud.level_now(&sent.repo, sent.level).blocks_merge();
    let sent = newest_of_head(dispatches, head).into_iter().filter(blocks);
    let state = |sent: &DispatchFact| {
        let own = jobs.iter().filter(|job| {
            job.record.head_sha == head && job.record.repo.eq_ignore_ascii_case(&sent.repo)
        });
        BackendOnHead::of_head(own, sent.status, checks.get(&check_key(head, &sent.repo)))
    };
    sent.map(state).min()
}

fn backend(
    hud: &Hud,
    dispatch: &DispatchFact,
    context: &BlameContext<'_>,
    check: Option<&CheckFact>,
) -> PullBackend {
    let entry = RepoName::new(&dispatch.repo).ok().and_then(|repo| hud.entry_of(&repo));
    let own =
        context.head.iter().filter(|job| job.record.repo.eq_ignore_ascii_case(&dispatch.repo));
    let level = hud.level_now(&dispatch.repo, dispatch.level);
    let check = check.filter(|_| level.blocks_merge());
    let state = BackendOnHead::of_head(own.clone(), dispatch.status, check);
    let by_jobs = BackendOnHead::of_head(own.clone(), dispatch.status, None);
    let jobs: Vec<PullJob> = own
        .map(|job| PullJob {
            new_tests: context.new_tests(job),
            verdict: context.verdict(job),
            ..PullJob::new(job)
        })
        .collect();
    let judged = jobs.iter().filter_map(|job| Some((job.outcome, job.verdict.as_ref()?)));
    // A failed test says most about a pull request, and a passed re-run least.
    let verdict = judged.max_by_key(|(outcome, verdict)| {
        (*outcome == Some(JobOutcome::TestFailed), verdict.category != TriageCategory::Flake)
    });
    let verdict = verdict.map(|(_, verdict)| verdict.clone());
    let shows_results = level.shows_results();
    // A failure that is explained says more.
    let is_explained = state <= BackendOnHead::Broken && verdict.is_some();
    let quoted = check.filter(|_| state != by_jobs && !is_explained);
    PullBackend {
        repo: dispatch.repo.clone(),
        level,
        blocks: level.blocks_merge(),
        oncalls: entry
            .iter()
            .flat_map(|entry| &entry.oncalls)
            .map(|name| name.as_str().to_owned())
            .collect(),
        dispatch: dispatch.status,
        last_error: dispatch.last_error.clone(),
        state: shows_results.then_some(state),
        sentence: match quoted {
            _ if !shows_results => {
                "Received the event; results are not shown at this level.".to_owned()
            }
            Some(check) => format!("Its check run says: {}.", check.title),
            None => sentence(state, verdict.as_ref(), &jobs, dispatch),
        },
        is_decided: check.is_some_and(|check| !check.status.is_open()),
        quotes_check_run: quoted.is_some(),
        verdict,
        jobs,
    }
}

/// What a backend says of a head: whose fault a failure is, or how far it got.
fn sentence(
    state: BackendOnHead,
    verdict: Option<&TriageVerdict>,
    jobs: &[PullJob],
    dispatch: &DispatchFact,
) -> String {
    let count = |n: usize| if n == 1 { "1 job".to_owned() } else { format!("{n} jobs") };
    match (state, verdict) {
        (BackendOnHead::Failed | BackendOnHead::Broken, Some(verdict)) => verdict.summary.clone(),
        _ if jobs.is_empty() => dispatch_status_text(dispatch.status).to_owned(),
        (BackendOnHead::Running, _) => {
            let ended = jobs.iter().filter(|job| job.outcome.is_some()).count();
            format!("Running: {ended} of {} ended.", count(jobs.len()))
        }
        (BackendOnHead::Passed, _) => {
            let longest = jobs.iter().filter_map(|job| job.execution_seconds).reduce(f64::max);
            let took = longest.map(|seconds| format!(", the longest took {}", duration(seconds)));
            format!("Passed: {}{}.", count(jobs.len()), took.unwrap_or_default())
        }
        (BackendOnHead::Skipped, _) => format!("Skipped: {}.", count(jobs.len())),
        (BackendOnHead::Failed | BackendOnHead::Broken, None) => {
            let bad = jobs.iter().find(|job| {
                BackendOnHead::of_job(job.outcome, job.missing_proof.is_some()) == state
            });
            let bad = bad.map(|job| (job.name.as_str(), job.outcome, job.missing_proof.is_some()));
            unexplained(bad, dispatch.status)
        }
    }
}

/// Why a backend isn't green, where no verdict says it: a job's name, its outcome, and whether it lacks proof.
pub(crate) fn unexplained(
    job: Option<(&str, Option<JobOutcome>, bool)>,
    status: DispatchFactStatus,
) -> String {
    match job {
        Some((name, _, true)) => format!("{name} was reported without proof."),
        Some((name, outcome, false)) => format!("{name}: {}.", outcome_parts(outcome).2),
        None => dispatch_status_text(status).to_owned(),
    }
}

fn dispatch_status_text(status: DispatchFactStatus) -> &'static str {
    match status {
        DispatchFactStatus::Queued => "Waiting to be sent.",
        DispatchFactStatus::Sent => "Sent; no report yet.",
        DispatchFactStatus::NeverStarted => "Sent, but no report arrived in time.",
        DispatchFactStatus::Superseded => "A newer event of this pull request replaced it.",
        DispatchFactStatus::Dead => "It could not be sent.",
        DispatchFactStatus::LeftOut => {
            "The backend's .github/crcr.yml says that it doesn't take it."
        }
        DispatchFactStatus::RepositoryChanged => {
            "Not sent: this name now belongs to another repository. An operator has to confirm it."
        }
        DispatchFactStatus::Unreachable => "The backend can't be reached now.",
    }
}

/// The attempts of these backends on upstream's latest commits, and on the merge base if that is
/// older.
async fn attempts_on_pushes(
    hud: &Hud,
    upstream: &RepoName,
    repos: Vec<String>,
    merge_base: Option<&MergeBaseFact>,
) -> Result<Vec<AttemptFact>, PageError> {
    if repos.is_empty() {
        return Ok(vec![]);
    }
    let days = |days| jiff::SignedDuration::from_hours(24 * days);
    let to = (hud.clock)();
    let from = to - days(PUSH_LOOKBACK_DAYS);
    let recent = Window::all(from, to).of_repos(repos);
    let known = push_facts(hud, &recent).await?;
    let mut rows: Vec<_> = known.attempts(&recent).cloned().collect();
    if let Some(MergeBaseFact { committed_at, merge_base, .. }) = merge_base
        && *committed_at < from
    {
        let pushed = committed_at.checked_add(days(PUSH_DELAY_DAYS)).unwrap_or(from);
        let then = Window { from: *committed_at, to: from.min(pushed), ..recent };
        let old = hud.results.push_attempts(&then).await?;
        rows.extend(old.into_iter().filter(|row| row.head_sha == *merge_base));
    }
    rows.retain(|row| row.upstream.eq_ignore_ascii_case(upstream.as_str()));
    Ok(rows)
}
