//! A generated month of upstream: how many failures stay unexplained, and how many dispatches it takes, before and
//! after. The pull requests and their failures are drawn at random; what decides about them is the code of the relay.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::confirm::{is_explained, needs_merge_base};
use super::{DispatchFilter, FilteredEvent, ParsedDownstreamFile};
use crate::allowlist::level::Level;
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::protocol::callback::{FailedTest, ReportDetails};
use crate::protocol::event::EventName;
use crate::results::facts::AttemptFact;
use crate::results::triage::TriageCategory;
use crate::results::{BlameContext, BranchResults, JobOutcome, jobs_of_record};

const BACKENDS: usize = 20;
const DAYS: u64 = 30;
const PULLS_A_DAY: u64 = 30;
const BROKEN_HEADS: f64 = 0.03;
const FLAKES: f64 = 0.02;
/// Share of the broken heads that break one backend only.
const ONE_BACKEND: f64 = 0.5;
/// A push that mends the one before comes soon after it.
const QUICK_PUSHES: f64 = 0.45;
/// Pull requests that change none of the paths that backends take.
const OTHER_PATHS: f64 = 0.4;
/// The budgets of docs/probes.md.
const FILE: &[u8] = b"\
dispatch: {paths: ['aten/**', 'torch/csrc/**', '!**/*.md'], quiet-minutes: 10}
probes: {reruns-per-day: 20, commits-per-day: 30}
";

/// Numbers that look random and are the same in every run: SplitMix64.
pub(crate) struct SeededRandom(pub(crate) u64);

impl SeededRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64 / (1_u64 << 53) as f64) < probability
    }
}

#[derive(Clone)]
struct Head {
    pull: u64,
    number: usize,
    /// In minutes since the month began.
    at: i64,
    is_last: bool,
    /// The newest commit of the branch that it has.
    base: i64,
    files: Vec<&'static str>,
    /// The backends in which it breaks a test.
    breaks: BTreeSet<usize>,
}

/// The pull requests of the month, each with its heads in order.
fn heads(random: &mut SeededRandom) -> Vec<Vec<Head>> {
    let mut pulls = vec![];
    for pull in 1..=DAYS * PULLS_A_DAY {
        let mut at = random.below(DAYS * 1440).cast_signed();
        let count = 1 + usize::from(random.chance(0.8)) + random.below(4) as usize;
        let files = if random.chance(OTHER_PATHS) {
            vec!["torch/nn/functional.py", "aten/README.md"]
        } else {
            vec!["aten/src/ATen/native/Add.cpp"]
        };
        let base = at / 30;
        let mut heads = vec![];
        for number in 0..count {
            let mut breaks = BTreeSet::new();
            if random.chance(BROKEN_HEADS) {
                if random.chance(ONE_BACKEND) {
                    breaks.insert(random.below(BACKENDS as u64) as usize);
                } else {
                    breaks.extend(0..BACKENDS);
                }
            }
            let is_last = number + 1 == count;
            heads.push(Head { pull, number, at, is_last, base, files: files.clone(), breaks });
            at += if random.chance(QUICK_PUSHES) {
                1 + random.below(8)
            } else {
                30 + random.below(600)
            }
            .cast_signed();
        }
        pulls.push(heads);
    }
    pulls
}

/// What becomes of a head at a backend.
enum Fate {
    SentAt(i64),
    /// A newer head came in its quiet time.
    Replaced,
    /// No changed path concerns it: the backend's check run says so.
    LeftOut,
}

fn fate(filter: &DispatchFilter, head: &Head, next: Option<&Head>) -> Fate {
    let event = FilteredEvent { event: &EventName::PullRequest, has_head: true, is_draft: false };
    assert_eq!(filter.leaves_out(event), None);
    let at = head.at + filter.quiet_seconds(event) / 60;
    if next.is_some_and(|next| next.at < at) {
        return Fate::Replaced;
    }
    let concerns =
        filter.paths_of(event).is_none_or(|paths| paths.takes_any(head.files.iter().copied()));
    if concerns { Fate::SentAt(at) } else { Fate::LeftOut }
}

fn time(minute: i64) -> Timestamp {
    "2026-10-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minute)
}

fn row(backend: usize, sha: &str, minute: i64, attempt: u32, failed: &[String]) -> AttemptFact {
    let end = if failed.is_empty() { Conclusion::Success } else { Conclusion::Failure };
    let failed_tests =
        failed.iter().map(|name| FailedTest { name: name.clone(), ..FailedTest::default() });
    AttemptFact {
        received_at: time(minute + 60),
        dispatched_at: time(minute),
        repo: format!("acme/backend-{backend}"),
        delivery: format!("{sha}-{backend}"),
        workflow: "ci".to_owned(),
        job: Some("test".to_owned()),
        run_id: format!("{sha}-{backend}"),
        run_attempt: attempt,
        state: JobState::Completed(end),
        start_unknown: false,
        queue_seconds: None,
        execution_seconds: None,
        details: ReportDetails { failed_tests: failed_tests.collect(), ..ReportDetails::default() },
        missing_proof: None,
        expected: None,
        level: Level::L2,
        event: EventName::PullRequest,
        upstream: "acme/upstream".to_owned(),
        pull_request: Some(1),
        head_sha: sha.to_owned(),
    }
}

/// The tests that fail in a run: those that the head breaks, and perhaps one for no reason.
fn failing(random: &mut SeededRandom, is_broken: bool) -> Vec<String> {
    let mut failed = vec![];
    if is_broken {
        failed.push("test_broken".to_owned());
    }
    if random.chance(FLAKES) {
        failed.push(format!("test_flaky_{}", random.below(50)));
    }
    failed
}

fn branch_row(backend: usize, base: i64, event: EventName, failed: &[String]) -> AttemptFact {
    let sha = format!("base-{base}");
    let row = row(backend, &sha, base * 30, 1, failed);
    AttemptFact { event, pull_request: None, ..row }
}

#[derive(Default, Debug)]
struct Month {
    dispatches: u64,
    failures: u64,
    unknown: u64,
    reruns: u64,
    probes: u64,
    left_out: u64,
    /// Last heads that a backend neither runs nor leaves out with a reason.
    silent_last_heads: u64,
    /// Explained failures whose explanation isn't what happened.
    wrong: u64,
}

/// Budgets that are used up, by backend and day.
#[derive(Default)]
struct SpentRuns(HashMap<(usize, i64), u64>);

impl SpentRuns {
    fn take(&mut self, backend: usize, minute: i64, per_day: u64) -> bool {
        let spent = self.0.entry((backend, minute / 1440)).or_default();
        *spent += 1;
        *spent <= per_day
    }
}

fn simulate(seed: u64, with_files: bool) -> Month {
    let mut random = SeededRandom(seed);
    let file = ParsedDownstreamFile::parse(if with_files { FILE } else { b"" }).accepted().unwrap();
    let (mut reruns, mut commits) = (SpentRuns::default(), SpentRuns::default());
    let mut month = Month::default();
    for heads in heads(&mut random) {
        for (at, head) in heads.iter().enumerate() {
            let mut rows: BTreeMap<usize, Vec<AttemptFact>> = BTreeMap::new();
            let sha = format!("head-{}-{}", head.pull, head.number);
            for backend in 0..BACKENDS {
                match fate(&file.dispatch, head, heads.get(at + 1)) {
                    Fate::SentAt(minute) => {
                        month.dispatches += 1;
                        let failed = failing(&mut random, head.breaks.contains(&backend));
                        rows.insert(backend, vec![row(backend, &sha, minute, 1, &failed)]);
                    }
                    Fate::Replaced => month.silent_last_heads += u64::from(head.is_last),
                    Fate::LeftOut => month.left_out += 1,
                }
            }
            // Every fifth commit of the branch is pushed by itself, and has results.
            let pushed = head.base - head.base % 5;
            let mut branch: Vec<_> = (0..BACKENDS)
                .map(|backend| {
                    let failed = failing(&mut random, false);
                    branch_row(backend, pushed, EventName::Push, &failed)
                })
                .collect();
            for _ in 0..if with_files { 2 } else { 0 } {
                for (backend, job) in unexplained(&rows, &branch, head) {
                    let minute = head.at + 60;
                    let is_broken = head.breaks.contains(&backend);
                    if job.attempts == 1 && reruns.take(backend, minute, file.probes.reruns_per_day)
                    {
                        month.reruns += 1;
                        let failed = failing(&mut random, is_broken);
                        let again = row(backend, &sha, minute, 2, &failed);
                        rows.get_mut(&backend).unwrap().push(again);
                    } else if job.needs_base
                        && commits.take(backend, minute, file.probes.commits_per_day)
                    {
                        month.probes += 1;
                        let failed = failing(&mut random, false);
                        branch.push(branch_row(backend, head.base, EventName::Probe, &failed));
                    }
                }
            }
            count(&mut month, &rows, &branch, head);
        }
    }
    month
}

struct UnexplainedFailure {
    attempts: usize,
    needs_base: bool,
}

/// The verdict on each backend's job, as the check run shows it.
fn verdicts(
    rows: &BTreeMap<usize, Vec<AttemptFact>>,
    branch: &[AttemptFact],
    head: &Head,
    mut each: impl FnMut(
        usize,
        Option<JobOutcome>,
        usize,
        Option<crate::results::triage::TriageVerdict>,
    ),
) {
    let (on_head, on_branch) =
        (jobs_of_record(rows.values().flatten(), []), jobs_of_record(branch, []));
    let base = format!("base-{}", head.base);
    let results = BranchResults::new(&on_branch);
    let context = BlameContext {
        head: &on_head,
        branch: &results,
        merge_base: Some(&base),
        pull_request: Some(head.pull),
        first: Timestamp::MIN,
        last: Timestamp::MAX,
    };
    for job in &on_head {
        let number = job.record.repo.rsplit('-').next().unwrap().parse().unwrap();
        each(number, job.outcome, job.attempts, context.verdict(job));
    }
}

fn unexplained(
    rows: &BTreeMap<usize, Vec<AttemptFact>>,
    branch: &[AttemptFact],
    head: &Head,
) -> Vec<(usize, UnexplainedFailure)> {
    let mut found = vec![];
    verdicts(rows, branch, head, |backend, outcome, attempts, verdict| {
        let verdict = verdict.filter(|verdict| !is_explained(verdict));
        if let Some(verdict) = verdict.filter(|_| outcome == Some(JobOutcome::TestFailed)) {
            found.push((
                backend,
                UnexplainedFailure { attempts, needs_base: needs_merge_base(&verdict) },
            ));
        }
    });
    found
}

fn count(
    month: &mut Month,
    rows: &BTreeMap<usize, Vec<AttemptFact>>,
    branch: &[AttemptFact],
    head: &Head,
) {
    verdicts(rows, branch, head, |backend, outcome, _, verdict| {
        let failed = matches!(outcome, Some(JobOutcome::TestFailed | JobOutcome::PassedAfterRerun));
        if !failed {
            return;
        }
        month.failures += 1;
        let category = verdict.map_or(TriageCategory::Unknown, |verdict| verdict.category);
        month.unknown += u64::from(category == TriageCategory::Unknown);
        let is_broken = head.breaks.contains(&backend);
        let is_right = match category {
            TriageCategory::Flake => !is_broken,
            TriageCategory::Upstream => is_broken,
            TriageCategory::Backend => is_broken && head.breaks.len() == 1,
            _ => true,
        };
        month.wrong += u64::from(!is_right);
    });
}

#[test]
fn generated_month_leaves_few_failures_unknown_at_half_the_dispatches() {
    let (before, after) = (simulate(1, false), simulate(1, true));
    let per_cent = |part: u64, all: u64| 100.0 * part as f64 / all as f64;
    println!(
        "before: {} dispatches, {} failures, {} unknown ({:.1} %), {} explained wrongly",
        before.dispatches,
        before.failures,
        before.unknown,
        per_cent(before.unknown, before.failures),
        before.wrong,
    );
    println!(
        "after: {} dispatches and {} probes ({:.1} % of before), {} re-runs, {} failures, {} unknown ({:.1} %), {} explained wrongly",
        after.dispatches,
        after.probes,
        per_cent(after.dispatches + after.probes, before.dispatches),
        after.reruns,
        after.failures,
        after.unknown,
        per_cent(after.unknown, after.failures),
        after.wrong,
    );
    assert!(per_cent(after.unknown, after.failures) <= 5.0, "{after:?}");
    assert!(2 * (after.dispatches + after.probes) <= before.dispatches, "{after:?}");
    assert_eq!((before.silent_last_heads, after.silent_last_heads), (0, 0));
    assert!(per_cent(after.wrong, after.failures) <= 5.0, "{after:?}");
}
