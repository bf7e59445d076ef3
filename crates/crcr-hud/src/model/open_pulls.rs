//! Open pull requests, each with what the backends say of its head: for `/` and `/prs`.

use std::collections::{BTreeMap, HashMap, HashSet};

use crcr_domain::Level;
use crcr_domain::ci_data::pull_request::PullRequestState;
use crcr_domain::results::facts::{AttemptFact, CheckFact, DispatchFact, DispatchFactStatus};
use crcr_domain::results::triage::{TriageCategory, TriageVerdict};
use crcr_domain::results::{BlamedJobs, JobOfRecord, JobOutcome, jobs_of_record};
use crcr_results::blame::blame_jobs;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use crcr_results::{AttemptFilter, Window};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::days::push_attempts;
use super::head::{self, Checks, check_key, checks_of_heads};
use super::head_state::BackendOnHead;
use crate::context::{Hud, PageError};
use crate::layout::outcome_parts;

/// Open pull requests that changed last and are looked at.
pub(crate) const MAX_PULLS: usize = 300;
/// Without webhooks of pull requests, those that were dispatched in this time are shown.
const RECENT_DISPATCHES: SignedDuration = SignedDuration::from_hours(72);

/// A backend's answer to the head of a pull request.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct BackendAnswer {
    pub(crate) repo: String,
    pub(crate) level: Level,
    pub(crate) state: BackendOnHead,
    /// If it broke: what a job of it came to, or its dispatch.
    pub(crate) outcome: Option<JobOutcome>,
    /// When the first of its failures was reported, or the event was accepted.
    pub(crate) since: Timestamp,
}

impl BackendAnswer {
    /// In the words of the page of the pull request.
    pub(crate) fn word(&self) -> &'static str {
        self.outcome.map_or(self.state.word(), |outcome| outcome_parts(Some(outcome)).2)
    }
}

/// What holds a pull request up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PullStanding {
    Blocked,
    Running,
    Green,
    /// No backend that may block it was told of its head and runs on it.
    Untold,
}

crcr_domain::names! {
    PullStanding {
        Blocked "blocked", Running "running", Green "green", Untold "untold",
    }
}

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct OpenPull {
    pub(crate) number: u64,
    /// `None` if no webhook of the pull request is stored.
    pub(crate) title: Option<String>,
    pub(crate) author: Option<String>,
    pub(crate) is_draft: bool,
    pub(crate) labels: Vec<String>,
    pub(crate) head_sha: String,
    /// When its head was first heard of.
    pub(crate) head_at: Timestamp,
    /// Backends at L4, then at L3.
    pub(crate) backends: Vec<BackendAnswer>,
    pub(crate) standing: PullStanding,
    /// The backends at L4 that failed.
    pub(crate) blocked_by: Vec<String>,
    /// Whose fault the most telling failure is.
    pub(crate) fault: Option<TriageCategory>,
    /// If it is upstream's: whether that was broken without this pull request.
    pub(crate) was_broken_before: bool,
    /// Why it is that; without a fault, what blocks it.
    pub(crate) why: Option<String>,
    /// Since when it is blocked; when nothing blocks it, `None`.
    pub(crate) since: Option<Timestamp>,
}

#[derive(Debug)]
pub(crate) struct OpenPulls {
    /// The most recently changed first.
    pub(crate) pulls: Vec<OpenPull>,
    /// Those that changed before this time may exist, too.
    pub(crate) older: Option<Timestamp>,
    /// Whether webhooks say which pull requests are open.
    pub(crate) are_known: bool,
}

/// The open pull requests of the upstream repository whose newest webhook is from before a time.
pub(crate) async fn read(hud: &Hud, before: Timestamp) -> Result<OpenPulls, PageError> {
    let upstream = hud.upstream.as_str();
    let selection = ThingSelection::OpenPulls { before, limit: MAX_PULLS };
    let query = ThingQuery { event: "pull_request", repository: upstream, selection };
    let rows = hud.results.current_things(&query).await?;
    let older = rows.last().filter(|_| rows.len() >= MAX_PULLS).map(|row| row.received_at);
    let are_known = !rows.is_empty() || {
        let known = hud.results.repositories("pull_request").await?;
        known.iter().any(|known| known.name.eq_ignore_ascii_case(upstream))
    };
    let open: Vec<PullRequestState> =
        rows.iter().filter_map(PullRequestState::from_row).filter(|pull| pull.is_open).collect();
    let numbers = if are_known {
        open.iter().map(|pull| pull.number).collect()
    } else {
        recently_dispatched(hud).await?
    };
    let mut heads: Vec<String> = open.iter().map(|pull| pull.head_sha.clone()).collect();
    if heads.iter().any(String::is_empty) {
        heads = vec![];
    }
    let facts = PullFacts::read(hud, &numbers, &heads).await?;
    let mut known: HashMap<u64, PullRequestState> =
        open.into_iter().map(|pull| (pull.number, pull)).collect();
    let (mut sent, mut rows) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
    for dispatch in &facts.dispatches {
        sent.entry(dispatch.pull_request).or_default().push(dispatch);
    }
    for row in &facts.attempts {
        rows.entry(&*row.head_sha).or_default().push(row);
    }
    let pulls = numbers.iter().filter_map(|number| {
        let own = sent.get(&Some(*number)).map(Vec::as_slice).unwrap_or_default();
        facts.pull(*number, known.remove(number), own, &rows)
    });
    Ok(OpenPulls { pulls: pulls.collect(), older, are_known })
}

/// Numbers of pull requests, the one with the newest dispatch first.
async fn recently_dispatched(hud: &Hud) -> Result<Vec<u64>, PageError> {
    let now = hud.now();
    let window = Window::all(now - RECENT_DISPATCHES, now + SignedDuration::from_secs(60));
    let mut sent = hud.results.dispatches(&window).await?;
    sent.retain(|sent| sent.upstream.eq_ignore_ascii_case(hud.upstream.as_str()));
    let mut seen = HashSet::new();
    let newest = sent.iter().rev().filter_map(|sent| sent.pull_request);
    Ok(newest.filter(|number| seen.insert(*number)).take(MAX_PULLS).collect())
}

/// What is stored about some pull requests.
struct PullFacts {
    attempts: Vec<AttemptFact>,
    dispatches: Vec<DispatchFact>,
    blamed: BlamedJobs,
    checks: Checks,
}

impl PullFacts {
    /// `heads`: those whose results are read; empty for all.
    async fn read(hud: &Hud, numbers: &[u64], heads: &[String]) -> Result<Self, PageError> {
        let upstream = hud.upstream.as_str();
        // Only those that are shown upstream hold a pull request up.
        let repos = (hud.policy)().map(|policy| {
            let shown = policy.iter().filter(|entry| entry.level >= Level::L3);
            shown.map(|entry| entry.repo.as_str().to_owned()).collect::<Vec<_>>()
        });
        let only = AttemptFilter { heads, repos: repos.as_deref() };
        let (mut attempts, mut dispatches) =
            hud.results.pull_request_facts(upstream, numbers, only).await?;
        for row in &mut attempts {
            row.level = hud.level_now(&row.repo, row.level);
        }
        for sent in &mut dispatches {
            sent.level = hud.level_now(&sent.repo, sent.level);
        }
        // A push may have gone back to a commit that was dispatched before others.
        let mut shas = heads.to_vec();
        let mut heads: HashMap<Option<u64>, &DispatchFact> = HashMap::new();
        for sent in &dispatches {
            let newest = heads.entry(sent.pull_request).or_insert(sent);
            if newest.enqueued_at < sent.enqueued_at {
                *newest = sent;
            }
        }
        shas.extend(heads.values().map(|sent| sent.head_sha.clone()));
        shas.sort_unstable();
        shas.dedup();
        let checks = checks_of_heads(hud, &hud.upstream, &shas).await?;
        let on_head = |job: &JobOfRecord<'_>| {
            let head = heads.get(&job.record.pull_request);
            head.is_some_and(|head| head.head_sha == job.record.head_sha)
                && job.record.level >= Level::L3
        };
        let mut jobs = jobs_of_record(&attempts, &dispatches);
        jobs.retain(on_head);
        let read = async |query| push_attempts(hud, query).await;
        let blamed = blame_jobs(&*hud.results, &jobs, read).await?;
        Ok(Self { attempts, dispatches, blamed, checks })
    }

    /// The verdict that tells most: of a backend that blocks, on failed tests.
    fn verdict(&self, jobs: &[JobOfRecord<'_>]) -> Option<&TriageVerdict> {
        let judged = jobs.iter().filter(|job| job.record.level >= Level::L3);
        let judged = judged.filter_map(|job| Some((job, self.blamed.verdict(job.record)?)));
        let most = judged.max_by_key(|(job, verdict)| {
            (
                job.record.level.blocks_merge(),
                job.outcome == Some(JobOutcome::TestFailed),
                verdict.category != TriageCategory::Flake,
            )
        });
        most.map(|(_, verdict)| verdict)
    }

    /// The check run that a pull request waits for, if this dispatch's backend has one.
    fn check(&self, sent: &DispatchFact) -> Option<&CheckFact> {
        let check = self.checks.get(&check_key(&sent.head_sha, &sent.repo));
        check.filter(|_| sent.level.blocks_merge())
    }

    /// What blocks a head, where no verdict says whose fault it is.
    fn unexplained(
        &self,
        own: &[&DispatchFact],
        head_sha: &str,
        jobs: &[JobOfRecord<'_>],
    ) -> Option<String> {
        let sent = own.iter().filter(|sent| sent.head_sha == head_sha && sent.level.blocks_merge());
        let answers = sent.map(|sent| (sent, answer(sent, jobs, self.check(sent))));
        let (sent, worst) = answers.min_by_key(|(_, answer)| answer.state)?;
        let bad = jobs.iter().find(|job| {
            job.record.repo.eq_ignore_ascii_case(&sent.repo) && state_of(job) == worst.state
        });
        let name = bad.map(JobOfRecord::name);
        let bad = bad.zip(name.as_deref());
        let bad = bad.map(|(job, name)| (name, job.outcome, job.record.missing_proof.is_some()));
        match self.check(sent) {
            Some(check) if bad.is_none() => Some(format!("{}.", check.title)),
            _ => Some(head::unexplained(bad, sent.status)),
        }
    }

    /// `own`: the dispatches of the pull request. `by_head`: the attempts on each commit.
    fn pull(
        &self,
        number: u64,
        known: Option<PullRequestState>,
        own: &[&DispatchFact],
        by_head: &HashMap<&str, Vec<&AttemptFact>>,
    ) -> Option<OpenPull> {
        let newest = own.iter().max_by_key(|sent| sent.enqueued_at);
        let head_sha = match &known {
            Some(pull) if !pull.head_sha.is_empty() => pull.head_sha.clone(),
            _ => newest?.head_sha.clone(),
        };
        let on_head = own.iter().filter(|sent| sent.head_sha == head_sha);
        let first = on_head.clone().map(|sent| sent.enqueued_at).min();
        let head_at = first.or(known.as_ref().map(|pull| pull.received_at))?;
        let rows = by_head.get(&*head_sha).into_iter().flatten().copied();
        let jobs = jobs_of_record(rows, own.iter().copied());
        // Labels and reopening cause further dispatches of one head.
        let mut newest_of: BTreeMap<String, &DispatchFact> = BTreeMap::new();
        for sent in on_head {
            newest_of.insert(sent.repo.to_ascii_lowercase(), sent);
        }
        let mut backends: Vec<BackendAnswer> = newest_of
            .into_values()
            .filter(|sent| sent.level >= Level::L3)
            .map(|sent| answer(sent, &jobs, self.check(sent)))
            .collect();
        backends.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.repo.cmp(&b.repo)));
        let blocking = || backends.iter().filter(|backend| backend.level.blocks_merge());
        let fails = |backend: &&BackendAnswer| backend.state <= BackendOnHead::Broken;
        let standing = match blocking().map(|backend| backend.state).min() {
            None | Some(BackendOnHead::Skipped) => PullStanding::Untold,
            Some(BackendOnHead::Failed | BackendOnHead::Broken) => PullStanding::Blocked,
            Some(BackendOnHead::Running) => PullStanding::Running,
            Some(BackendOnHead::Passed) => PullStanding::Green,
        };
        let blocked_by = blocking().filter(fails).map(|backend| backend.repo.clone()).collect();
        let since = blocking().filter(fails).map(|backend| backend.since).min();
        let verdict = self.verdict(&jobs);
        let why = match verdict {
            Some(verdict) => Some(verdict.summary.clone()),
            None if standing == PullStanding::Blocked => self.unexplained(own, &head_sha, &jobs),
            None => None,
        };
        let known_text = |text: fn(&PullRequestState) -> &String| {
            known.as_ref().map(text).filter(|text| !text.is_empty()).cloned()
        };
        Some(OpenPull {
            number,
            title: known_text(|pull| &pull.title),
            author: known_text(|pull| &pull.author),
            is_draft: known.as_ref().is_some_and(|pull| pull.is_draft),
            labels: known.as_ref().map(|pull| pull.labels.clone()).unwrap_or_default(),
            head_sha,
            head_at,
            backends,
            standing,
            blocked_by,
            fault: verdict.map(|verdict| verdict.category),
            was_broken_before: verdict.is_some_and(TriageVerdict::was_broken_before),
            why,
            since,
        })
    }
}

fn state_of(job: &JobOfRecord<'_>) -> BackendOnHead {
    BackendOnHead::of_job(job.outcome, job.record.missing_proof.is_some())
}

fn answer(
    sent: &DispatchFact,
    jobs: &[JobOfRecord<'_>],
    check: Option<&CheckFact>,
) -> BackendAnswer {
    let own = || jobs.iter().filter(|job| job.record.repo.eq_ignore_ascii_case(&sent.repo));
    let state = BackendOnHead::of_head(own(), sent.status, check);
    let fails = own().filter(|job| state_of(job) <= BackendOnHead::Broken);
    let since = fails.map(|job| job.record.received_at).min();
    let since = since.or(check.filter(|_| state <= BackendOnHead::Broken).map(|check| check.at));
    let broke = |job: &&JobOfRecord<'_>| {
        job.record.missing_proof.is_none() && state_of(job) == BackendOnHead::Broken
    };
    let silent = sent.status == DispatchFactStatus::NeverStarted;
    let outcome = own().find(broke).and_then(|job| job.outcome);
    let outcome = outcome.or(silent.then_some(JobOutcome::NeverStarted));
    BackendAnswer {
        repo: sent.repo.clone(),
        level: sent.level,
        state,
        outcome: outcome.filter(|_| state == BackendOnHead::Broken),
        since: since.unwrap_or(sent.enqueued_at),
    }
}
