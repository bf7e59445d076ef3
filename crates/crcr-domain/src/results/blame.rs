//! Whose fault is a failed job? Answered by comparing it with other results: the same job on the merge
//! base and on the newest nightly run, and the other backends on the same commit.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::protocol::event::EventName;
use crate::results::facts::AttemptFact;
use crate::results::triage::{
    SuspectedUpstream, TriageAnalyzer, TriageCategory, TriageConfidence, TriageEvidence,
    TriageVerdict,
};

use super::jobs::{JobOfRecord, may_have_failed_alike};
use super::outcome::JobOutcome;

/// How far apart runs of one of upstream's own commits may begin and still be compared, such as a push and a nightly run.
pub const SAME_COMMIT: SignedDuration = SignedDuration::from_hours(24);
/// A test that failed in one of this many earlier runs of its job on upstream's own commits isn't new.
const KNOWN_FAILURE_RUNS: usize = 10;
/// The name in [`TriageVerdict::analyzer`] of the verdicts that are computed here.
const ANALYZER: &str = "crcr";

/// Names one attempt among all facts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttemptId {
    repo: String,
    delivery: String,
    run_id: String,
    run_attempt: u32,
    check_run_id: Option<String>,
    job: Option<String>,
}

impl AttemptId {
    pub fn of(record: &AttemptFact) -> Self {
        Self {
            repo: record.repo.to_ascii_lowercase(),
            delivery: record.delivery.clone(),
            run_id: record.run_id.clone(),
            run_attempt: record.run_attempt,
            check_run_id: record.details.check_run_id.clone(),
            job: record.job.clone(),
        }
    }
}

/// Verdicts on the failed jobs of a window.
#[derive(Debug, Default, Clone)]
pub struct BlamedJobs(HashMap<AttemptId, TriageVerdict>);

impl BlamedJobs {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, other: &Self) {
        self.0.extend(other.0.iter().map(|(id, verdict)| (id.clone(), verdict.clone())));
    }

    pub fn verdict(&self, record: &AttemptFact) -> Option<&TriageVerdict> {
        self.0.get(&AttemptId::of(record))
    }

    /// How many of these jobs failed because of upstream: their tests ran, and a change upstream broke
    /// them.
    pub fn upstream_failures<'a>(
        &self,
        jobs: impl IntoIterator<Item = &'a JobOfRecord<'a>>,
    ) -> u64 {
        let failed = jobs.into_iter().filter(|job| job.outcome == Some(JobOutcome::TestFailed));
        let verdicts = failed.filter_map(|job| self.verdict(job.record));
        verdicts.filter(|verdict| verdict.category == TriageCategory::Upstream).count() as u64
    }
}

impl FromIterator<(AttemptId, TriageVerdict)> for BlamedJobs {
    fn from_iter<T: IntoIterator<Item = (AttemptId, TriageVerdict)>>(verdicts: T) -> Self {
        Self(verdicts.into_iter().collect())
    }
}

/// The results that a failed job is compared with.
#[derive(Debug, Clone, Copy)]
pub struct BlameContext<'a> {
    /// The jobs of every backend on the same commit.
    pub head: &'a [JobOfRecord<'a>],
    pub branch: &'a BranchResults<'a>,
    /// The commit that the head and its base branch have in common, if it is known.
    pub merge_base: Option<&'a str>,
    pub pull_request: Option<u64>,
    /// Results of the branch count if they were dispatched within this time, so that an answer doesn't depend on what
    /// else was read with them.
    pub first: Timestamp,
    pub last: Timestamp,
}

/// Jobs on upstream's own commits, of the backends that fail on the commit that is judged at least: pushes, nightly and
/// periodic runs, and probes. Only jobs whose tests ended count.
#[derive(Debug, Default)]
pub struct BranchResults<'a> {
    by_job: HashMap<JobName, Vec<&'a JobOfRecord<'a>>>,
    /// The jobs that failed on each commit.
    failing: HashMap<&'a str, Vec<&'a JobOfRecord<'a>>>,
}

impl<'a> BranchResults<'a> {
    pub fn new(jobs: impl IntoIterator<Item = &'a JobOfRecord<'a>>) -> Self {
        let mut results = Self::default();
        let on_branch = |job: &&JobOfRecord<'_>| job.record.event.is_of_branch();
        for job in jobs.into_iter().filter(on_branch).filter(|job| has_test_result(job)) {
            results.by_job.entry(job_name(job.record)).or_default().push(job);
            if job.outcome == Some(JobOutcome::TestFailed) {
                results.failing.entry(&job.record.head_sha).or_default().push(job);
            }
        }
        results
    }
}

/// Repository, workflow and job.
type JobName = (String, String, Option<String>);

fn job_name(record: &AttemptFact) -> JobName {
    (record.repo.to_ascii_lowercase(), record.workflow.clone(), record.job.clone())
}

/// The result of the same job on one of upstream's own commits.
#[derive(Debug, Clone, Copy)]
pub struct BaseResult<'a> {
    pub record: &'a AttemptFact,
    /// Whether it ran on the merge base, and not on some other commit before.
    pub is_merge_base: bool,
    pub passed: bool,
}

impl<'a> BlameContext<'a> {
    /// A verdict on a job that failed or needed a re-run. `None` for other jobs.
    pub fn verdict(&self, job: &JobOfRecord<'_>) -> Option<TriageVerdict> {
        use {TriageCategory as Category, TriageConfidence as Confidence};
        let (category, confidence, summary) = match job.outcome? {
            JobOutcome::PassedAfterRerun => (
                Category::Flake,
                Confidence::High,
                "Flaky: it failed and then passed on the same commit".to_owned(),
            ),
            JobOutcome::InfraFailed => {
                let phase = job.record.details.phase.as_deref();
                let phase = phase.map_or(String::new(), |phase| format!(" in {phase},"));
                let summary = format!("Infrastructure: it failed{phase} before its tests");
                (Category::Infra, Confidence::High, summary)
            }
            JobOutcome::TimedOut | JobOutcome::Lost | JobOutcome::NeverStarted => (
                Category::Infra,
                Confidence::Low,
                "Probably infrastructure: it didn't end in time".to_owned(),
            ),
            JobOutcome::TestFailed => return Some(self.test_failure(job)),
            JobOutcome::Passed
            | JobOutcome::Neutral
            | JobOutcome::Cancelled
            | JobOutcome::Superseded => return None,
        };
        let evidence = vec![evidence(job.record, "")];
        let verdict = verdict(category, confidence, summary, evidence);
        let flaky = category == Category::Flake;
        Some(TriageVerdict { reproduced_on_retry: flaky.then_some(false), ..verdict })
    }

    fn test_failure(&self, job: &JobOfRecord<'_>) -> TriageVerdict {
        use {TriageCategory as Category, TriageConfidence as Confidence};
        let change = if self.pull_request.is_some() { "pull request" } else { "commit" };
        let mut found = vec![];
        let base = self.base_result(job);
        // What has passed on the merge base since then isn't broken there any more.
        let has_passed_since = |nightly: &BaseResult<'_>| {
            base.as_ref().is_some_and(|base| {
                base.is_merge_base
                    && base.passed
                    && base.record.received_at > nightly.record.received_at
            })
        };
        let nightly = self.newest_nightly(job).filter(|nightly| !has_passed_since(nightly));
        for base in base.into_iter().chain(nightly) {
            found.push(evidence(base.record, if base.passed { "passed" } else { "failed" }));
            if !is_same_failure(job.record, &base) {
                continue;
            }
            let others = self.failing_at(job, &base.record.head_sha);
            let place = place(&base);
            let mut verdict = if others >= 2 {
                let summary = format!(
                    "Not this {change}: upstream is broken {place}, where {others} backends failed{}",
                    self.failing_since(job, &base)
                );
                verdict(Category::Upstream, Confidence::High, summary, found)
            } else {
                let since = self.failing_since(job, &base);
                let summary = format!("Not this {change}: it failed {place}, too{since}");
                verdict(Category::Backend, Confidence::Medium, summary, found)
            };
            verdict.suspected_upstream = (others >= 2).then(|| SuspectedUpstream {
                commit: Some(base.record.head_sha.clone()),
                ..SuspectedUpstream::default()
            });
            return reproduced(verdict, job);
        }
        let Some(base) = self.base_result(job) else {
            let summary =
                "Unknown: this backend has no result on the merge base or a recent commit \
                           upstream"
                    .to_owned();
            return reproduced(verdict(Category::Unknown, Confidence::Low, summary, found), job);
        };
        let NewFailures { broken, judged, has_unrelated } = self.newly_broken(job);
        let is_new = is_new_failure(job.record, &base);
        let place = place(&base);
        let result = match (base.passed, were_builds(job.record, base.record), is_new) {
            (true, ..) => format!("passed {place}"),
            (false, Some((false, true)), _) => format!("couldn't be built {place}"),
            (false, Some((true, false)), _) => format!("failed only in tests {place}"),
            (false, _, true) => format!("failed in other tests {place}"),
            (false, _, false) => format!("failed {place}, too, perhaps in the same tests"),
        };
        let certain = base.is_merge_base;
        let verdict = if is_new && broken.len() >= 2 {
            let summary = format!(
                "This {change}: {} of {judged} backends have failures that they didn't have {place}",
                broken.len()
            );
            found.extend(broken.values().map(|other| evidence(other.record, "fails here")));
            let confidence = if certain && broken.len() == judged {
                Confidence::High
            } else {
                Confidence::Medium
            };
            let suspected = SuspectedUpstream { pr: self.pull_request, ..Default::default() };
            TriageVerdict {
                suspected_upstream: Some(suspected),
                ..verdict(Category::Upstream, confidence, summary, found)
            }
        } else {
            let alone = match judged {
                _ if !is_new => String::new(),
                0 | 1 => String::new(),
                _ if has_unrelated => ", and others fail newly in other tests only".to_owned(),
                judged => format!(", and no other of {judged} backends has a new failure"),
            };
            let confidence = if certain { Confidence::Medium } else { Confidence::Low };
            // Without the change it passes, with it it fails twice: who else fails tells them apart.
            let is_confirmed = certain && is_new && job.failed_attempts > 1;
            if is_confirmed && judged > 1 {
                let summary = format!(
                    "The backend, with this {change}: it {result} and failed twice here{alone}"
                );
                verdict(Category::Backend, confidence, summary, found)
            } else if is_confirmed {
                let summary = format!("This {change}: it {result} and failed twice here");
                verdict(Category::Upstream, confidence, summary, found)
            } else {
                let summary = format!("This {change} or the backend: it {result}{alone}");
                verdict(Category::Unknown, confidence, summary, found)
            }
        };
        reproduced(verdict, job)
    }

    /// The result of the same job on the merge base, or else on the newest push before it.
    fn base_result(&self, job: &JobOfRecord<'_>) -> Option<BaseResult<'a>> {
        let is_base = |other: &JobOfRecord<'_>| self.merge_base == Some(&*other.record.head_sha);
        let pushes = self.same_job(job).filter(|other| {
            // A probe of another commit isn't the newest one because it ran last.
            let is_before = other.record.event != EventName::Probe
                && other.record.received_at < job.record.received_at;
            !other.record.event.is_self_reported() && (is_base(other) || is_before)
        });
        let other = pushes.max_by_key(|other| (is_base(other), other.record.received_at))?;
        Some(base_result(other, is_base(other)))
    }

    /// Since when the job fails on upstream's own commits as it does on the base, for a sentence. Probes are left out:
    /// they run in another order than the commits.
    fn failing_since(&self, job: &JobOfRecord<'_>, base: &BaseResult<'_>) -> String {
        let mut before: Vec<_> = self.same_job(job).collect();
        before.retain(|other| {
            other.record.event == base.record.event
                && other.record.event != EventName::Probe
                && other.record.dispatched_at < base.record.dispatched_at
        });
        before.sort_by_key(|other| std::cmp::Reverse(other.record.dispatched_at));
        let fails = |other: &&&JobOfRecord<'_>| {
            let one = base_result(other, false);
            is_same_failure(job.record, &one)
        };
        let failing = before.iter().take_while(fails).count();
        let Some(first) = failing.checked_sub(1).map(|last| before[last]) else {
            return String::new();
        };
        let record = first.record;
        let short = record.head_sha.get(..12).unwrap_or(&record.head_sha);
        let at = record.dispatched_at.strftime("%F");
        // Older results aren't read, or don't exist.
        let least = if failing == before.len() { "at least " } else { "" };
        format!(", and it does so since {least}{short} ({at})")
    }

    fn newest_nightly(&self, job: &JobOfRecord<'_>) -> Option<BaseResult<'a>> {
        let nightly = self.same_job(job).filter(|other| {
            other.record.event == EventName::Nightly
                && other.record.is_evidence()
                && other.record.received_at < job.record.dispatched_at
        });
        let other = nightly.max_by_key(|other| other.record.received_at)?;
        Some(base_result(other, self.merge_base == Some(&*other.record.head_sha)))
    }

    /// Whether each failing test of the job is new: it failed in none of the job's last runs on
    /// upstream's own commits. `None` if there are no such runs.
    pub fn new_tests(&self, job: &JobOfRecord<'_>) -> Option<Vec<bool>> {
        let mut runs: Vec<_> = self.same_job(job).map(|other| other.record).collect();
        runs.retain(|record| record.received_at < job.record.received_at);
        runs.sort_by_key(|record| std::cmp::Reverse(record.received_at));
        runs.truncate(KNOWN_FAILURE_RUNS);
        if runs.is_empty() {
            return None;
        }
        let known: HashSet<&str> = runs.iter().flat_map(|record| test_names(record)).collect();
        Some(test_names(job.record).map(|name| !known.contains(name)).collect())
    }

    /// The job's results on upstream's own commits.
    fn same_job(
        &self,
        job: &JobOfRecord<'_>,
    ) -> impl Iterator<Item = &'a JobOfRecord<'a>> + use<'a> {
        let Self { branch, first, last, .. } = *self;
        let found = branch.by_job.get(&job_name(job.record)).into_iter().flatten().copied();
        found.filter(move |job| (first..=last).contains(&job.record.dispatched_at))
    }

    /// How many of the backends that fail here failed on this commit of upstream as the job does.
    fn failing_at(&self, job: &JobOfRecord<'_>, sha: &str) -> usize {
        let here =
            self.on_commit(job).filter(|other| other.outcome == Some(JobOutcome::TestFailed));
        let here: HashSet<_> = here.map(|other| other.record.repo.to_ascii_lowercase()).collect();
        let own = job.record.repo.to_ascii_lowercase();
        let failing = self.branch.failing.get(sha).into_iter().flatten();
        let failing = failing.filter(|other| {
            (self.first..=self.last).contains(&other.record.dispatched_at)
                && may_share_cause(job.record, other.record)
        });
        let repos = failing.map(|other| other.record.repo.to_ascii_lowercase());
        repos.filter(|repo| *repo == own || here.contains(repo)).collect::<HashSet<_>>().len()
    }

    /// The jobs of every backend on the job's commit; on one of upstream's own, those of about the same time.
    fn on_commit(
        &self,
        job: &JobOfRecord<'_>,
    ) -> impl Iterator<Item = &'a JobOfRecord<'a>> + use<'a> {
        let (is_pull, last) = (self.pull_request.is_some(), self.last);
        let first = job.record.dispatched_at - SAME_COMMIT;
        self.head
            .iter()
            .filter(move |other| is_pull || (first..=last).contains(&other.record.dispatched_at))
    }

    /// What the other backends have on this commit.
    fn newly_broken(&self, job: &JobOfRecord<'_>) -> NewFailures<'a> {
        let own = job.record.repo.to_ascii_lowercase();
        let mut judged = HashSet::from([own]);
        let (mut related, mut all) = (BTreeMap::new(), BTreeMap::new());
        for other in self.on_commit(job).filter(|other| has_test_result(other)) {
            let repo = other.record.repo.to_ascii_lowercase();
            judged.insert(repo.clone());
            let is_new =
                || self.base_result(other).is_some_and(|base| is_new_failure(other.record, &base));
            if other.outcome == Some(JobOutcome::TestFailed) && is_new() {
                if may_share_cause(job.record, other.record) {
                    related.entry(repo.clone()).or_insert(other);
                }
                all.entry(repo).or_insert(other);
            }
        }
        let (judged, has_unrelated) = (judged.len(), all.len() > related.len());
        // If all of them break at once, that isn't a coincidence, whatever their tests are called.
        let broken = if all.len() == judged { all } else { related };
        NewFailures { broken, judged, has_unrelated }
    }
}

/// Backends whose failures on a commit are new.
struct NewFailures<'a> {
    /// A job of each backend that may have failed for the same cause, the own one included.
    broken: BTreeMap<String, &'a JobOfRecord<'a>>,
    /// How many backends have a result of their tests on the commit.
    judged: usize,
    /// Whether other backends have new failures in other tests.
    has_unrelated: bool,
}

/// Whether both may have failed for one cause. Two backends often fail on the same commit by coincidence.
fn may_share_cause(one: &AttemptFact, other: &AttemptFact) -> bool {
    were_builds(one, other).is_none_or(|(one, other)| one == other)
        && may_have_failed_alike(one, other)
}

fn base_result<'a>(job: &'a JobOfRecord<'a>, is_merge_base: bool) -> BaseResult<'a> {
    BaseResult {
        record: job.record,
        is_merge_base,
        passed: job.outcome.is_some_and(JobOutcome::is_pass),
    }
}

fn has_test_result(job: &JobOfRecord<'_>) -> bool {
    job.outcome.is_some_and(|outcome| outcome.is_pass() || outcome == JobOutcome::TestFailed)
}

/// Whether each failed while it was built, if the phase of both is known. What isn't built runs no tests.
fn were_builds(one: &AttemptFact, other: &AttemptFact) -> Option<(bool, bool)> {
    let is_build = |record: &AttemptFact| {
        record.details.phase.as_deref().map(|phase| phase.eq_ignore_ascii_case("build"))
    };
    is_build(one).zip(is_build(other))
}

fn test_names(record: &AttemptFact) -> impl Iterator<Item = &str> {
    record.details.failed_tests.iter().map(|test| test.name.as_str())
}

/// Whether the base failed in the same way: all tests that fail now failed there, as far as both are
/// known.
fn is_same_failure(record: &AttemptFact, base: &BaseResult<'_>) -> bool {
    let differs = were_builds(record, base.record).is_some_and(|(here, there)| here != there);
    if base.passed || differs || has_more_failures(record, base.record) {
        return false;
    }
    let known: HashSet<&str> = test_names(base.record).collect();
    known.is_empty() || test_names(record).all(|name| known.contains(name))
}

/// Whether a test fails now that didn't on the base. A base that names only some of its failed tests may have failed in
/// this one, too.
fn is_new_failure(record: &AttemptFact, base: &BaseResult<'_>) -> bool {
    let names_all = base.record.details.names_all_failed_tests();
    match were_builds(record, base.record) {
        // What doesn't build has no tests, so nothing is known of those that fail now.
        Some((false, true)) => return false,
        Some((true, false)) => return true,
        _ => {}
    }
    base.passed
        || has_more_failures(record, base.record)
        || (names_all && !is_same_failure(record, base))
}

/// Whether more tests failed than on the base: then one of them is new, even if it isn't named.
fn has_more_failures(record: &AttemptFact, base: &AttemptFact) -> bool {
    let failed = |fact: &AttemptFact| fact.details.tests.map(|counts| counts.failed);
    failed(record).zip(failed(base)).is_some_and(|(now, before)| before > 0 && now > before)
}

fn place(base: &BaseResult<'_>) -> String {
    if base.is_merge_base {
        "on the merge base".to_owned()
    } else if base.record.event == EventName::Nightly {
        "in the newest nightly run before it".to_owned()
    } else {
        "on the newest commit upstream with a result".to_owned()
    }
}

fn evidence(record: &AttemptFact, result: &str) -> TriageEvidence {
    let short = record.head_sha.get(..12).unwrap_or(&record.head_sha);
    let job = record.job.as_deref().unwrap_or(&record.workflow);
    TriageEvidence {
        job: Some(format!("{} · {job} on {short}", record.repo)),
        test: None,
        excerpt: Some(result).filter(|text| !text.is_empty()).map(str::to_owned),
        log_url: record.details.url.clone(),
    }
}

fn verdict(
    category: TriageCategory,
    confidence: TriageConfidence,
    summary: String,
    mut evidence: Vec<TriageEvidence>,
) -> TriageVerdict {
    evidence.truncate(crate::results::triage::MAX_EVIDENCE);
    TriageVerdict {
        schema_version: 1,
        category,
        confidence,
        summary,
        suspected_upstream: None,
        evidence,
        reproduced_on_retry: None,
        analyzer: Some(TriageAnalyzer {
            name: Some(ANALYZER.to_owned()),
            ..TriageAnalyzer::default()
        }),
        analyzed_at: None,
        truncated: false,
    }
}

fn reproduced(verdict: TriageVerdict, job: &JobOfRecord<'_>) -> TriageVerdict {
    TriageVerdict { reproduced_on_retry: (job.failed_attempts > 1).then_some(true), ..verdict }
}

#[cfg(test)]
mod tests;
