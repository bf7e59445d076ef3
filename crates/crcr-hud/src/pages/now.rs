//! `/`: what needs somebody now. Each row is a sentence with its link.

use std::collections::{BTreeMap, HashMap};

use crcr_domain::results::facts::{CallbackOutcome, DispatchFact, DispatchFactStatus};
use crcr_domain::results::{DurationStats, ResultTotals};
use crcr_domain::{AllowlistEntry, Level};
use crcr_results::Window;
use crcr_results::retention::{day_of, midnight};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::Serialize;

use super::overview::{BackendStanding, backend_standing};
use super::pull_fault;
use crate::address::{self, address, branch_path};
use crate::context::{Hud, PageError, RelayWarning};
use crate::layout::{ago, commit_link, commit_of, counted, duration, short_repo, time, zone};
use crate::model::open_pulls::{self, OpenPull, PullStanding};
use crate::model::red_branches::{self, BranchHealth, RedJob};
use crate::model::{RateSummary, days, total};
use crate::query::{NoQuery, SpanQuery};
use crate::view::View;

/// Blocked pull requests on the page; `/prs` has the others.
const MAX_BLOCKED: usize = 20;
/// Dispatches that came to nothing and are listed; of more than a few, the list is folded.
const MAX_LOST: usize = 100;
const MAX_LOST_OPEN: usize = 10;
/// A dispatch that waits longer isn't only in a queue.
const OVERDUE_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// One that was queued before is given up by now, or one of many.
const LONGEST_QUEUE: SignedDuration = SignedDuration::from_hours(3);
/// Without a report for this long, something is wrong with the relay or with everybody.
const SILENT_HOURS: i64 = 24;

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct NowModel {
    pub(crate) upstream: String,
    /// The longest blocked first.
    pub(crate) blocked: Vec<OpenPull>,
    /// Only the open pull requests that changed since then are looked at; `None` if those are all.
    pub(crate) looked_at_since: Option<Timestamp>,
    /// Whether webhooks say which pull requests are open; else those that were dispatched lately are looked at.
    pub(crate) are_known: bool,
    /// How many more of those that are looked at are blocked, and how many have each standing.
    pub(crate) more_blocked: usize,
    pub(crate) running: usize,
    pub(crate) green: usize,
    pub(crate) branches: Vec<BranchHealth>,
    pub(crate) failing: Vec<FailingBackend>,
    /// How many backends have criteria at their level, and meet all of them.
    pub(crate) meeting: usize,
    /// How many backends have criteria at their level, and too few results to tell. Those that have only nightly runs
    /// aren't counted.
    pub(crate) unknown: usize,
    /// How many backends were to be told of commits in the last seven days, and reported nothing.
    pub(crate) silent: usize,
    pub(crate) relay: RelayState,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct FailingBackend {
    pub(crate) repo: String,
    pub(crate) level: Level,
    pub(crate) oncalls: Vec<String>,
    /// Names the criteria that aren't met.
    pub(crate) sentence: String,
}

/// The last 24 hours of the relay.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct RelayState {
    /// Whether an allowlist is in force.
    pub(crate) allowlist: bool,
    pub(crate) newest_report: Option<Timestamp>,
    pub(crate) dispatches: u64,
    /// Seconds from accepting an event until GitHub accepted its dispatch.
    pub(crate) dispatch_latency: Option<DurationStats>,
    /// Dispatches that weren't sent, or never started a run, by what became of them.
    pub(crate) lost: BTreeMap<DispatchFactStatus, u64>,
    /// Dispatches that have waited to be sent for more than ten minutes.
    pub(crate) waiting: u64,
    /// The newest of those that were lost.
    pub(crate) lost_dispatches: Vec<LostDispatch>,
    /// Reports that were refused.
    pub(crate) refused: u64,
    /// Sentences on what is wrong with dispatches and reports.
    pub(crate) problems: Vec<String>,
    /// What else is wrong. All is well if both are empty.
    pub(crate) warnings: Vec<RelayWarning>,
}

/// A dispatch that came to nothing.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct LostDispatch {
    pub(crate) repo: String,
    pub(crate) upstream: String,
    pub(crate) pull_request: Option<u64>,
    pub(crate) head_sha: String,
    pub(crate) at: Timestamp,
    pub(crate) status: DispatchFactStatus,
    /// Why the last call failed.
    pub(crate) last_error: Option<String>,
}

pub(crate) async fn build(hud: &Hud, (): (), _: NoQuery) -> Result<NowModel, PageError> {
    let (pulls, branches, failing, relay) = tokio::try_join!(
        open_pulls::read(hud, Timestamp::MAX),
        red_branches::read(hud, &hud.upstream),
        backends(hud),
        relay_state(hud),
    )?;
    let count = |standing| pulls.pulls.iter().filter(|pull| pull.standing == standing).count();
    let (running, green) = (count(PullStanding::Running), count(PullStanding::Green));
    let mut blocked = pulls.pulls;
    blocked.retain(|pull| pull.standing == PullStanding::Blocked);
    blocked.sort_by_key(|pull| (pull.since, pull.number));
    let more_blocked = blocked.len().saturating_sub(MAX_BLOCKED);
    blocked.truncate(MAX_BLOCKED);
    let BackendCounts { failing, meeting, unknown, silent } = failing;
    let upstream = hud.upstream.as_str().to_owned();
    Ok(NowModel {
        upstream,
        blocked,
        looked_at_since: pulls.older,
        are_known: pulls.are_known,
        more_blocked,
        running,
        green,
        branches,
        failing,
        meeting,
        unknown,
        silent,
        relay,
    })
}

/// The backends that fail their level, and how many have each other standing.
#[derive(Default)]
struct BackendCounts {
    failing: Vec<FailingBackend>,
    meeting: usize,
    unknown: usize,
    silent: usize,
}

/// Each count is that of the overview, to which it leads.
async fn backends(hud: &Hud) -> Result<BackendCounts, PageError> {
    let policy = (hud.policy)();
    let entries: Vec<AllowlistEntry> =
        policy.iter().flat_map(|policy| policy.iter()).cloned().collect();
    let span = hud.span(&SpanQuery::default())?;
    let reviews = days::reviews(hud, &entries, hud.now(), true).await?;
    let mut totals: HashMap<String, ResultTotals> = HashMap::new();
    for (day, tally) in days::day_tallies(hud, &span, None).await? {
        totals.entry(day.repo).or_default().add(&tally);
    }
    let mut found = BackendCounts::default();
    for (entry, review) in entries.iter().zip(reviews) {
        let standing = review.standing();
        let tally = totals.remove(&entry.repo.key()).unwrap_or_default();
        let is_listed = entry.level.shows_results() && !entry.is_nightly_only();
        match backend_standing(Some(&standing), &RateSummary::new(&tally), &tally) {
            BackendStanding::Below => found.failing.push(FailingBackend {
                repo: entry.repo.as_str().to_owned(),
                level: entry.level,
                oncalls: entry.oncalls.iter().map(|name| name.as_str().to_owned()).collect(),
                sentence: standing.sentence(),
            }),
            BackendStanding::Met => found.meeting += 1,
            BackendStanding::Unknown => found.unknown += usize::from(is_listed),
            BackendStanding::Silent => found.silent += usize::from(is_listed),
            BackendStanding::NoCriteria => {}
        }
    }
    found.failing.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.repo.cmp(&b.repo)));
    Ok(found)
}

async fn relay_state(hud: &Hud) -> Result<RelayState, PageError> {
    let span = hud.span(&SpanQuery::day())?;
    let (days, reports) = days::day_tallies_and_reports(hud, &span).await?;
    let newest_report = newest_report(hud, span.from).await?;
    let all: ResultTotals = total(&days);
    let refused = reports.outcomes.iter().filter(|(outcome, _)| is_refusal(outcome));
    let refused = refused.map(|(_, count)| count).sum();
    let lost = all.statuses.iter().filter(|(status, _)| status.came_to_nothing());
    let lost: BTreeMap<_, _> = lost.map(|(status, count)| (*status, *count)).collect();
    let is_queued = all.statuses.contains_key(&DispatchFactStatus::Queued);
    let from = if lost.is_empty() { span.from.max(hud.now() - LONGEST_QUEUE) } else { span.from };
    let sent = match lost.is_empty() && !is_queued {
        true => vec![],
        false => hud.results.dispatches(&Window::all(from, span.to)).await?,
    };
    let waits = |sent: &&DispatchFact| {
        sent.status == DispatchFactStatus::Queued
            && hud.now().duration_since(sent.enqueued_at) > OVERDUE_AFTER
    };
    let mut relay = RelayState {
        allowlist: (hud.policy)().is_some(),
        newest_report,
        dispatches: all.statuses.values().sum(),
        dispatch_latency: all.dispatch(),
        waiting: sent.iter().filter(waits).count() as u64,
        lost_dispatches: lost_dispatches(sent),
        lost,
        refused,
        problems: vec![],
        warnings: (hud.warnings)().await,
    };
    relay.problems = problems(&relay, hud.now());
    Ok(relay)
}

/// When the newest report of a job arrived, whatever its event and however long ago it was dispatched. Attempts don't tell:
/// the relay writes one itself when a job is lost.
async fn newest_report(hud: &Hud, from: Timestamp) -> Result<Option<Timestamp>, PageError> {
    // There is nothing after now, so the end of today is as good as now.
    let window = Window::all(from, midnight(day_of(hud.now()) + 1));
    let of_a_job = |outcome: &CallbackOutcome| outcome.is_valid() || outcome.is_stored();
    let outcomes: Vec<_> = CallbackOutcome::ALL.into_iter().filter(of_a_job).collect();
    let newest = hud.results.newest_callbacks(&window, &outcomes, 1).await?;
    Ok(newest.first().map(|report| report.at))
}

fn lost_dispatches(sent: Vec<DispatchFact>) -> Vec<LostDispatch> {
    let lost = sent.into_iter().rev().filter(|sent| sent.status.came_to_nothing()).take(MAX_LOST);
    lost.map(|sent| LostDispatch {
        repo: sent.repo,
        upstream: sent.upstream,
        pull_request: sent.pull_request,
        head_sha: sent.head_sha,
        at: sent.enqueued_at,
        status: sent.status,
        last_error: sent.last_error,
    })
    .collect()
}

fn is_refusal(outcome: &str) -> bool {
    CallbackOutcome::ALL.into_iter().any(|known| known.as_str() == outcome && !known.is_valid())
}

fn problems(relay: &RelayState, now: Timestamp) -> Vec<String> {
    let mut problems = vec![];
    if !relay.allowlist {
        problems.push("No allowlist is in force: nothing is dispatched.".to_owned());
    }
    let is_silent = |newest: Timestamp| now.duration_since(newest).as_hours() >= SILENT_HOURS;
    if relay.newest_report.is_none_or(is_silent) {
        problems.push(format!("No report arrived in the last {SILENT_HOURS} hours."));
    }
    problems.extend(waiting(relay));
    problems.extend(relay.lost.iter().map(|(status, count)| loss(*status, *count)));
    problems
}

/// A sentence about dispatches that aren't sent; `None` if there are none.
fn waiting(relay: &RelayState) -> Option<String> {
    let wait = counted(relay.waiting, "dispatch has", "dispatches have");
    (relay.waiting > 0).then(|| {
        format!("{wait} waited to be sent for more than {} minutes.", OVERDUE_AFTER.as_mins())
    })
}

/// What is wrong with dispatches that came to nothing.
fn loss(status: DispatchFactStatus, count: u64) -> String {
    let were = counted(count, "dispatch was", "dispatches were");
    match status {
        DispatchFactStatus::NeverStarted => {
            format!("{} never started a run.", counted(count, "dispatch", "dispatches"))
        }
        DispatchFactStatus::Dead => format!("{were} given up."),
        DispatchFactStatus::RepositoryChanged => {
            format!("{were} withheld: the name belongs to another repository.")
        }
        _ => format!("{were} withheld: the backend can't be reached."),
    }
}

pub(crate) fn page(model: &NowModel, view: &View<'_>) -> Markup {
    view.shell(
        "Now",
        true,
        &html! {
            div.title { h1 { "What needs somebody now in " bdi { (model.upstream) } } }
            (blocked(model))
            (branches(model))
            (failing(model))
            (relay(&model.relay, &model.upstream))
        },
    )
}

fn blocked(model: &NowModel) -> Markup {
    let is_whole = model.looked_at_since.is_none();
    html! {
        section aria-labelledby="blocked" {
            div.title {
                h2 #blocked { "Blocked pull requests" }
                a href="/prs" { "All open pull requests" }
                span.detail {
                    a href="/prs?show=running" { @if is_whole { (model.running) " " } "running" } ", "
                    a href="/prs?show=green" { @if is_whole { (model.green) " " } "green" }
                }
            }
            @if model.blocked.is_empty() && is_whole {
                @if model.are_known { (well("No backend blocks a pull request.")) }
                @else { p.muted { "No backend blocks a pull request that was dispatched in the last three days. Which others are open isn't known." } }
            }
            ul.rows { @for pull in &model.blocked { li.bad { (blocked_sentence(pull)) } } }
            @if model.more_blocked > 0 { p { a href="/prs?show=blocked" rel="nofollow" { @if is_whole { (counted(model.more_blocked, "more is", "more are")) } @else { "More are" } " blocked" } } }
            @if let Some(since) = model.looked_at_since {
                p.detail {
                    "Only the open pull requests that changed since " (time(since)) " " (zone()) " are looked at here. "
                    a href=(address("/prs", [("show", Some("blocked")), ("before", Some(&*since.to_string()))])) rel="nofollow" { "Those that changed earlier" }
                }
            }
        }
    }
}

fn blocked_sentence(pull: &OpenPull) -> Markup {
    html! {
        span.outcome.bad { span.glyph aria-hidden="true" { "✗" } } " "
        a href=(format!("/pr/{}", pull.number)) { "#" (pull.number) @if let Some(title) = &pull.title { " " bdi { (title) } } }
        @if let Some(author) = &pull.author { " by " bdi { (author) } }
        " is blocked by "
        @for (n, repo) in pull.blocked_by.iter().enumerate() {
            @if n > 0 { ", " }
            a href=(format!("/crcr/{repo}")) { bdi { (short_repo(repo)) } }
        }
        @if let Some(since) = pull.since { ", since " (ago(since)) }
        "."
        @if let Some(why) = &pull.why {
            div.detail { span.tag { (pull_fault(pull)) } " " bdi { (why) } }
        }
    }
}

fn branches(model: &NowModel) -> Markup {
    html! {
        section aria-labelledby="branches" {
            div.title { h2 #branches { "Red branches" } a href="/hud" { "All branches" } }
            @if model.branches.is_empty() { p.muted { "No pushes are known: the App has to be subscribed to " code { "push" } " and " code { "workflow_job" } "." } }
            ul.rows { @for branch in &model.branches {
                @if branch.red.is_empty() {
                    @match &branch.green {
                        Some(green) => li.good {
                            span.outcome.good { span.glyph aria-hidden="true" { "✓" } } " "
                            (branch_link(branch)) " is green at " (commit_link(&green.sha)) " " bdi { (green.title) } "."
                        },
                        None => li.muted {
                            "Whether " (branch_link(branch)) " is green isn't known: on none of its newest commits all jobs ended and passed."
                        },
                    }
                } @else { @for red in &branch.red { li.bad { (red_sentence(branch, red)) } } }
                @if branch.more > 0 { li { a href=(branch_path(&branch.repository, &branch.branch)) { (counted(branch.more, "more job is", "more jobs are")) " red on " bdi { (branch.branch) } } } }
            } }
        }
    }
}

fn branch_link(branch: &BranchHealth) -> Markup {
    html! { a href=(branch_path(&branch.repository, &branch.branch)) { bdi { (branch.branch) } } }
}

fn red_sentence(branch: &BranchHealth, red: &RedJob) -> Markup {
    let path = branch_path(&branch.repository, &branch.branch);
    html! {
        span.outcome.bad { span.glyph aria-hidden="true" { "✗" } } " "
        @match (&red.backend, red.job) {
            (Some(repo), _) => a href=(format!("/crcr/{repo}")) { bdi { (red.title) } },
            (None, Some(job)) => a href=(format!("{path}?job={job}#job")) rel="nofollow" { bdi { (red.title) } },
            (None, None) => bdi { (red.title) },
        }
        " is red on " (branch_link(branch))
        @if red.may_be_older { " since before " } @else { " since " }
        (commit_link(&red.since.sha)) " " bdi { (red.since.title) }
        @if !red.since.author.is_empty() { " by " bdi { (red.since.author) } }
        ", " (ago(red.since.at)) ", for " (counted(red.commits, "commit", "commits")) "."
    }
}

fn failing(model: &NowModel) -> Markup {
    html! {
        section aria-labelledby="levels" {
            div.title { h2 #levels { "Backends that fail their level" } a href="/crcr" { "All backends" } }
            @if model.failing.is_empty() {
                @match model.meeting {
                    0 => p.muted { "No backend has a level with criteria and enough results." },
                    n if model.unknown + model.silent > 0 => p.muted {
                        (counted(n, "backend meets its level", "backends meet their level")) "."
                        @if model.unknown > 0 {
                            " Of " a href="/crcr?show=unknown" rel="nofollow" { (counted(model.unknown, "other", "others")) }
                            " that isn't known: there are too few results."
                        }
                    },
                    1 => (well("The one backend with criteria meets its level.")),
                    n => (well(&format!("All {n} backends with criteria meet their level."))),
                }
            }
            ul.rows { @for backend in &model.failing { li.bad {
                span.outcome.bad { span.glyph aria-hidden="true" { "✗" } } " "
                a href=(format!("/crcr/{}/level", backend.repo)) { bdi { (backend.repo) } }
                " (" (backend.level) ") " (backend.sentence) "."
                @if !backend.oncalls.is_empty() { span.detail { " On call: " bdi { (backend.oncalls.join(", ")) } } }
            } } }
            @if model.silent > 0 { p {
                span.outcome.infra { span.glyph aria-hidden="true" { "∅" } } " "
                a href="/crcr?show=silent" rel="nofollow" { (counted(model.silent, "backend is silent", "backends are silent")) }
                ": dispatches came to nothing, and nothing was reported in the last seven days."
            } }
        }
    }
}

fn relay(relay: &RelayState, upstream: &str) -> Markup {
    let listed = |list: &str, kind: Option<&str>| {
        let asked = [("list", Some(list)), ("kind", kind), ("window", Some("24h"))];
        address("/relay", asked)
    };
    let lost = relay.lost.iter().map(|(status, count)| (loss(*status, *count), status.as_str()));
    let queued = waiting(relay).map(|text| (text, DispatchFactStatus::Queued.as_str()));
    let lost: BTreeMap<String, &str> = lost.chain(queued).collect();
    html! {
        section aria-labelledby="relay" {
            div.title { h2 #relay { "The relay" } a href="/crcr?window=24h#relay" rel="nofollow" { "Its figures" } }
            @if relay.problems.is_empty() && relay.warnings.is_empty() { (well("No dispatch was lost or waits too long, and reports arrive.")) }
            ul.rows {
                @for problem in &relay.problems { li.infra {
                    span.outcome.infra { span.glyph aria-hidden="true" { "⚠" } } " "
                    @match lost.get(problem) {
                        Some(kind) => a rel="nofollow" href=(listed("dispatches", Some(kind))) { (problem) },
                        None => (problem),
                    }
                } }
                @for warning in &relay.warnings { li.infra {
                    span.outcome.infra { span.glyph aria-hidden="true" { "⚠" } } " "
                    @match &warning.page {
                        Some(page) => a rel="nofollow" href=(page) { bdi { (warning.text) } },
                        None => bdi { (warning.text) },
                    }
                } }
            }
            @if !relay.lost_dispatches.is_empty() { details open[relay.lost_dispatches.len() <= MAX_LOST_OPEN] {
                summary { "The newest dispatches that were lost or withheld" }
                ul.plain { @for lost in &relay.lost_dispatches { li {
                    @let (what, why) = lost_words(lost.status);
                    a href=(format!("/crcr/{}", lost.repo)) { bdi { (lost.repo) } } " " (what) " "
                    @if let Some(number) = lost.pull_request { a href=(pull_address(lost, number, upstream)) { "#" (number) } " at " }
                    (commit_of(&lost.upstream, upstream, &lost.head_sha)) ", " (ago(lost.at)) (why)
                    @if let Some(error) = &lost.last_error { ", " bdi { (error) } }
                } } }
            } }
            p.detail {
                "In the last 24 hours: " a rel="nofollow" href=(listed("dispatches", None)) { (counted(relay.dispatches, "dispatch", "dispatches")) }
                @if let Some(latency) = &relay.dispatch_latency { ", half of them sent within " (duration(latency.p50)) ", 95 % within " (duration(latency.p95)) }
                "; " a rel="nofollow" href=(listed("reports", Some("refused"))) { (counted(relay.refused, "refused report", "refused reports")) }
                @if let Some(newest) = relay.newest_report { "; newest report " (ago(newest)) }
                "."
            }
        }
    }
}

/// A relay may have more than one upstream repository.
fn pull_address(lost: &LostDispatch, number: u64, upstream: &str) -> String {
    if lost.upstream.eq_ignore_ascii_case(upstream) {
        format!("/pr/{number}")
    } else {
        address::pull(&lost.upstream, number)
    }
}

/// What became of a dispatch, before the commit that it is about and after it.
fn lost_words(status: DispatchFactStatus) -> (&'static str, &'static str) {
    match status {
        DispatchFactStatus::NeverStarted => ("never started a run for", ""),
        DispatchFactStatus::Dead => ("was not told of", ": given up"),
        DispatchFactStatus::RepositoryChanged => {
            ("was not told of", ": the name belongs to another repository")
        }
        _ => ("was not told of", ": it can't be reached"),
    }
}

fn well(text: &str) -> Markup {
    html! { p { span.outcome.good { span.glyph aria-hidden="true" { "✓" } } " " (text) } }
}
