//! What is wrong with the relay itself, in sentences for the HUD's first page. Everybody reads them, and errors can contain
//! addresses, so these are left to operators.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::RepoName;
use crcr_hud::RelayWarning;
use crcr_store::{StoreError, TaskState, TaskView};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;

use crate::admin::HOME;
use crate::allowlist::AllowlistStatus;
use crate::callback::auth::IssuerStatus;
use crate::queue::lanes::server_of;
use crate::relay::Relay;
use crate::{breaker, limits};

/// A task that isn't done so long after it was due is told.
const OVERDUE_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// What depends on a fork that may be deleted, and what people ask for and see refused.
const EXPECTED_FAILURES: [&str; 5] =
    ["job_log", "merge_base", "rerun", "rerun_suite", "redispatch"];
/// The page counts dispatches itself, by what became of them.
const DISPATCH: &str = "dispatch";

/// What was found last, and when.
pub(crate) type LastWarnings = Mutex<Option<(Timestamp, Vec<RelayWarning>)>>;

pub(crate) async fn read(relay: &Relay, last: &LastWarnings) -> Vec<RelayWarning> {
    let mut last = last.lock().await;
    if let Some((at, found)) = &*last
        && relay.is_recent(*at, limits::WARNINGS_PERIOD)
    {
        return found.clone();
    }
    let found = read_now(relay).await;
    *last = Some((relay.now(), found.clone()));
    found
}

async fn read_now(relay: &Relay) -> Vec<RelayWarning> {
    let mut found = vec![];
    if relay.upstream_identity.moved_to().is_some() {
        found.push(warning(
            "The upstream repository was renamed or transferred, and its webhooks are ignored: \
             UPSTREAM_REPO has to be set to its new name.",
        ));
    }
    found.extend(of_allowlist(&relay.allowlist.status()));
    let without_keys = relay.issuers().into_iter().filter(IssuerStatus::is_missing);
    found.extend(without_keys.map(|issuer| {
        let issuer = issuer.issuer;
        warning(format!("The keys of {issuer} can't be read: reports with its tokens get 503."))
    }));
    if relay.results_problem.lock().is_some() {
        found.push(warning(
            "Results can't be copied to the results database: nothing is lost, and these pages are behind.",
        ));
    }
    match tokio::time::timeout(limits::READINESS_PERIOD, of_store(relay)).await {
        Ok(Ok(of_store)) => found.extend(of_store),
        Ok(Err(error)) => {
            tracing::warn!(%error, "what is wrong with the relay can't be read");
            found.push(warning("The store can't be read: what waits in it isn't known."));
        }
        Err(_) => found.push(warning("The store doesn't answer: what waits in it isn't known.")),
    }
    found
}

fn warning(text: impl Into<String>) -> RelayWarning {
    RelayWarning { text: text.into(), page: None }
}

fn of_allowlist(status: &AllowlistStatus) -> Option<RelayWarning> {
    // Without any in force, the page says so itself.
    let at = status.loaded_at.filter(|_| status.loaded)?;
    let what = match status.problem_code? {
        "broken" => "has errors, which `crcr allowlist validate` shows",
        "unreadable" => "can't be read",
        _ => return None,
    };
    Some(warning(format!("The newest allowlist {what}; that of {at:.0} stays in force.")))
}

async fn of_store(relay: &Relay) -> Result<Vec<RelayWarning>, StoreError> {
    let store = relay.store.as_ref();
    let ready = store.tasks(Some(TaskState::Ready), limits::METRIC_DEAD_TASKS).await?;
    let dead = store.tasks(Some(TaskState::Dead), limits::METRIC_DEAD_TASKS).await?;
    let paused = relay.metrics.paused_servers();
    let mut found = of_waiting(&ready, &paused, &relay.config.upstream, relay.now());
    found.extend(of_dead(&dead));
    if relay.config.admin_token.is_none() {
        // Nobody can log in to the operators' pages.
        found.iter_mut().for_each(|warning| warning.page = None);
    }
    found.extend(breaker::open(relay).await?.into_iter().map(|repo| RelayWarning {
        text: format!(
            "The breaker of {repo} is open: its infrastructure keeps failing, so its failures are neutral, and \
             only a trial now and then is dispatched."
        ),
        page: Some(format!("/crcr/{repo}")),
    }));
    Ok(found)
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum WaitReason {
    /// GitHub asked for a pause, for this account.
    Limited(String),
    Fails(String),
    /// No worker begins a task of this kind.
    Stuck(String),
}

/// How many tasks wait for a reason, and since when.
fn of_waiting(
    ready: &[TaskView],
    paused: &BTreeSet<String>,
    upstream: &RepoName,
    now: Timestamp,
) -> Vec<RelayWarning> {
    let mut waits: BTreeMap<WaitReason, (usize, Timestamp)> = BTreeMap::new();
    for task in ready {
        let (kind, server) = (task.kind(), server_of(&task.lane, upstream));
        // Lanes of other servers than GitHub are named by more than an account.
        let is_limited = paused.contains(&server) && !server.contains(':');
        let (wait, since) = if is_limited {
            (WaitReason::Limited(server), task.created_at)
        } else if kind == DISPATCH || EXPECTED_FAILURES.contains(&kind.as_str()) {
            continue;
        } else if task.last_error.is_some() {
            (WaitReason::Fails(kind), task.created_at)
        } else {
            (WaitReason::Stuck(kind), task.due_at)
        };
        if now.duration_since(since) > OVERDUE_AFTER {
            let (count, oldest) = waits.entry(wait).or_insert((0, since));
            *count += 1;
            *oldest = since.min(*oldest);
        }
    }
    let tell = |(wait, (count, oldest)): (WaitReason, (usize, Timestamp))| {
        let time = in_words(now.duration_since(oldest));
        let text = match wait {
            WaitReason::Limited(account) => format!(
                "GitHub limits the calls for {account}: {} waited for up to {time}. They go on by \
                 themselves once it takes calls again.",
                counted(count, ("task has", "tasks have"))
            ),
            WaitReason::Fails(kind) => {
                format!("{} not been taken for up to {time}.", have(&kind, count))
            }
            WaitReason::Stuck(kind) => {
                format!("{} waited for a worker for up to {time}.", have(&kind, count))
            }
        };
        RelayWarning { text, page: Some(HOME.to_owned()) }
    };
    waits.into_iter().map(tell).collect()
}

fn of_dead(dead: &[TaskView]) -> Vec<RelayWarning> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for kind in dead.iter().map(TaskView::kind) {
        if kind != DISPATCH && !EXPECTED_FAILURES.contains(&kind.as_str()) {
            *counts.entry(kind).or_default() += 1;
        }
    }
    let tell = |(kind, count): (String, usize)| RelayWarning {
        text: format!("{} been given up.", have(&kind, count)),
        page: Some(HOME.to_owned()),
    };
    counts.into_iter().map(tell).collect()
}

/// `40 minutes`, `30 hours` or `5 days`.
fn in_words(time: SignedDuration) -> String {
    match time.as_hours() {
        ..2 => format!("{} minutes", time.as_mins()),
        hours @ 2..48 => format!("{hours} hours"),
        hours => format!("{} days", hours / 24),
    }
}

/// `2 updates of check runs have`.
fn have(kind: &str, count: usize) -> String {
    let names = match kind {
        "forward" => ("result for the external HUD has", "results for the external HUD have"),
        "check_run" | "commit_checks" | "backend_checks" | "labels" => {
            ("update of check runs has", "updates of check runs have")
        }
        "keep_webhook" => ("webhook for these pages has", "webhooks for these pages have"),
        other => {
            let kind = other.replace('_', " ");
            return counted(count, (&*format!("{kind} task has"), &*format!("{kind} tasks have")));
        }
    };
    counted(count, names)
}

fn counted(count: usize, (one, many): (&str, &str)) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(60 * minute).unwrap()
    }

    /// `since`: the minute since which it has been due; `due`: when it is tried next.
    fn task(kind: &str, lane: &str, (since, due): (i64, i64), error: Option<&str>) -> TaskView {
        TaskView {
            key: format!("[\"{kind}\",\"x\"]"),
            lane: lane.to_owned(),
            state: TaskState::Ready,
            failed: 0,
            due_at: at(due),
            created_at: at(since),
            last_error: error.map(str::to_owned),
        }
    }

    fn texts(found: &[RelayWarning]) -> Vec<&str> {
        found.iter().map(|one| one.text.as_str()).collect()
    }

    #[test]
    fn on_call_reads_why_tasks_wait_and_no_error_with_an_address() {
        let secret = Some("https://hud.corp.internal answered 500");
        let ready = [
            task("dispatch", "dispatch:acme", (70, 70), None),
            task("sweep", "sweep:acme", (60, 101), Some("GitHub answered 429")),
            task("dispatch", "dispatch:other", (60, 60), None),
            task("forward", "hud:acme", (75, 101), secret),
            task("forward", "hud:other", (80, 102), secret),
            task("forward", "hud:other", (99, 102), secret),
            task("check_run", "upstream:acme/four@ab", (80, 80), None),
            task("check_run", "upstream:acme/four@cd", (95, 95), None),
            task("merge_base", "upstream:", (10, 101), Some("404")),
            task("reconcile", "deliveries:", (130, 130), None),
        ];
        let paused = BTreeSet::from(["acme".to_owned(), "hud:acme".to_owned()]);
        let upstream = RepoName::new("up/stream").unwrap();
        let found = of_waiting(&ready, &paused, &upstream, at(100));
        assert_eq!(
            texts(&found),
            [
                "GitHub limits the calls for acme: 2 tasks have waited for up to 40 minutes. They go on by \
                 themselves once it takes calls again.",
                "2 results for the external HUD have not been taken for up to 25 minutes.",
                "1 update of check runs has waited for a worker for up to 20 minutes.",
            ]
        );
        assert!(found.iter().all(|one| one.page.as_deref() == Some(HOME)), "{found:?}");
    }

    #[test]
    fn long_wait_is_told_in_hours_or_days() {
        for (minutes, told) in [
            (11, "11 minutes"),
            (119, "119 minutes"),
            (120, "2 hours"),
            (47 * 60 + 59, "47 hours"),
            (35 * 24 * 60, "35 days"),
        ] {
            assert_eq!(in_words(SignedDuration::from_mins(minutes)), told);
        }
    }

    #[test]
    fn dead_letters_are_told_by_kind_except_those_that_a_stranger_can_cause() {
        let dead = ["forward", "forward", "alert_feed", "dispatch", "job_log", "merge_base"]
            .map(|kind| task(kind, "", (0, 0), Some("403")));
        assert_eq!(
            texts(&of_dead(&dead)),
            [
                "1 alert feed task has been given up.",
                "2 results for the external HUD have been given up."
            ]
        );
    }

    #[test]
    fn broken_allowlist_is_told_and_a_restart_is_not() {
        let status = |loaded: bool, code| AllowlistStatus {
            loaded,
            loaded_at: loaded.then(|| at(0)),
            problem_code: code,
            ..AllowlistStatus::default()
        };
        for (status, told) in [
            (status(true, None), None),
            (status(true, Some("not-read-yet")), None),
            (status(false, Some("broken")), None),
            (
                status(true, Some("broken")),
                Some(
                    "The newest allowlist has errors, which `crcr allowlist validate` shows; that of \
                     1970-01-01T00:00:00Z stays in force.",
                ),
            ),
            (
                status(true, Some("unreadable")),
                Some(
                    "The newest allowlist can't be read; that of 1970-01-01T00:00:00Z stays in force.",
                ),
            ),
        ] {
            assert_eq!(of_allowlist(&status).as_ref().map(|one| one.text.as_str()), told);
        }
    }
}
