//! Sends alerts to a webhook: a backend, a job of a branch or a test turned red or green again, or a name belongs to
//! another repository.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::checks::lifecycle::JobState;
use crcr_domain::probes::Culprit;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::AttemptFact;
use crcr_domain::results::{BackendRecovery, Regression, find_regressions, jobs_of_record};
use crcr_hud::message::{recovery_text, regression_text};
use crcr_hud::{Hud, WatchedThing};
use crcr_results::{ResultsError, Window};
use crcr_store::{NewTask, RecordWrite, StoreKey, Versioned, WriteBatch};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::{limits, state_records};

/// How far back an earlier success counts.
const LOOK_BACK: SignedDuration = SignedDuration::from_hours(30 * 24);
/// How long an alert waits for the other jobs of its commit, so that one message names all of them.
const DELAY: Duration = Duration::from_secs(60);

/// The task that checks whether the end of a job turned its backend red or green; `None` if the job runs still or
/// belongs to a pull request, or no webhook is configured.
pub fn task(relay: &Relay, fact: &AttemptFact, now: Timestamp) -> Option<NewTask> {
    let passed = match fact.state {
        JobState::Completed(conclusion) => conclusion.is_good(),
        JobState::Lost => false,
        _ => return None,
    };
    let is_of_branch = fact.pull_request.is_none() && fact.event.is_of_branch();
    if relay.config.alert_url.is_none() || !is_of_branch {
        return None;
    }
    let repo = RepoName::new(&fact.repo).ok()?;
    let (event, head_sha) = (fact.event.clone(), fact.head_sha.clone());
    Some(TaskKind::Alert { repo, event, head_sha, passed }.task(now + DELAY))
}

pub async fn turned_red(
    relay: &Relay,
    repo: &RepoName,
    event: &EventName,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    let Some(url) = &relay.config.alert_url else { return Ok(TaskDone::Finished) };
    let sent: Versioned<bool> =
        relay.read_record(state_records::alert_key(repo, event.as_str(), head_sha)).await?;
    if sent.value.is_some() {
        return Ok(TaskDone::Finished);
    }
    let regressions = regressions(relay, repo).await?;
    let this_commit =
        regressions.iter().find(|found| found.event == *event && found.head_sha == head_sha);
    // A late end may be of a commit after which all has passed.
    let Some(regression) = this_commit.filter(|found| found.recovery.is_none()) else {
        return Ok(TaskDone::Finished);
    };
    let (text, page) = with_page(relay, &format!("/crcr/{repo}"), regression_text(regression));
    let body = json!({ "event": "backend_turned_red", "turn": regression, "url": page });
    post(relay, url, body, &text).await?;
    let mut batch = WriteBatch::default();
    batch.set(sent.key, &true, relay.expiry());
    let red = state_records::red_since_key(repo, event.as_str());
    batch.set(red, regression, relay.expiry());
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}

/// Says that a backend is green again, if an alert said that it was red.
pub async fn turned_green(
    relay: &Relay,
    repo: &RepoName,
    event: &EventName,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    let Some(url) = &relay.config.alert_url else { return Ok(TaskDone::Finished) };
    let key = state_records::red_since_key(repo, event.as_str());
    let red: Versioned<Regression> = relay.read_record(key).await?;
    let Some(told) = red.value else { return Ok(TaskDone::Finished) };
    let regressions = regressions(relay, repo).await?;
    let mut of_event = regressions.iter().filter(|found| found.event == *event);
    if of_event.clone().any(|found| found.recovery.is_none()) {
        return Ok(TaskDone::Finished);
    }
    // It is none any more if its commit has passed when it was run again.
    let regression = of_event.find(|found| found.head_sha == told.head_sha).cloned();
    let regression = &regression.unwrap_or_else(|| Regression {
        recovery: Some(BackendRecovery { head_sha: head_sha.to_owned(), at: relay.now() }),
        ..told
    });
    let (text, page) = with_page(relay, &format!("/crcr/{repo}"), recovery_text(regression));
    let body = json!({ "event": "backend_green_again", "turn": regression, "url": page });
    post(relay, url, body, &text).await?;
    let mut batch = WriteBatch::default();
    batch.records.push(RecordWrite {
        key: red.key,
        value: vec![],
        expires_at: Timestamp::UNIX_EPOCH,
    });
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}

async fn regressions(relay: &Relay, repo: &RepoName) -> Result<Vec<Regression>, TaskError> {
    let to = relay.now();
    let window = Window::all(to - LOOK_BACK, to).of_repos(vec![repo.as_str().to_owned()]);
    let results = &relay.results;
    let unavailable = |error: ResultsError| TaskError::retry(error.to_string());
    let attempts = results.push_attempts(&window).await.map_err(unavailable)?;
    let dispatches = results.dispatches(&window).await.map_err(unavailable)?;
    Ok(find_regressions(&jobs_of_record(&attempts, &dispatches), &dispatches))
}

/// Sends what turned red or green on a branch or of a test since the last look. The first look sends nothing.
pub async fn feed(relay: &Relay, address: &str) -> Result<TaskDone, TaskError> {
    let watched = relay.config.alert_feeds.iter().find(|feed| feed.address() == address);
    let (Some(url), Some(feed)) = (&relay.config.alert_url, watched) else {
        return Ok(TaskDone::Finished);
    };
    let policy = super::allowlist(relay)?;
    let clock = Arc::clone(&relay.clock);
    let hud = Hud::new(
        Arc::clone(&relay.results),
        Box::new(move || Some(Arc::clone(&policy))),
        Box::new(move || clock()),
        relay.config.upstream.clone(),
    );
    let again = TaskDone::RunAgain(relay.now() + limits::ALERT_FEED_INTERVAL);
    let Some(look) = feed.look(Arc::new(hud)).await.map_err(TaskError::retry)? else {
        return Ok(again);
    };
    let key = state_records::red_on_feed_key(address);
    let known: Versioned<BTreeSet<String>> = relay.read_record(key).await?;
    let names = |is_red: bool| {
        let things = look.things.iter().filter(move |thing| thing.is_red == is_red);
        things.map(|thing| thing.name.clone()).collect::<BTreeSet<_>>()
    };
    let mut told = known.value.clone().unwrap_or_else(|| names(true));
    for is_red in [true, false] {
        let turned: Vec<&WatchedThing> = (look.things.iter())
            .filter(|thing| thing.is_red == is_red && thing.was_green)
            .filter(|thing| told.contains(&thing.name) != is_red)
            .collect();
        if turned.is_empty() {
            continue;
        }
        let (text, page) = with_page(relay, &look.page, lines(&turned));
        let things: Vec<Value> = (turned.iter().take(MAX_LINES))
            .map(|thing| json!({ "name": thing.name, "head_sha": thing.sha }))
            .collect();
        let body =
            json!({ "event": feed.event(is_red), "feed": address, "things": things, "url": page });
        post(relay, url, body, &text).await?;
        for thing in turned {
            if is_red {
                told.insert(thing.name.clone())
            } else {
                told.remove(&thing.name)
            };
        }
        remember(relay, &known.key, &told).await?;
    }
    // With what is red from its first known commit on. What has no result among the newest commits isn't green for that.
    let mut red = names(true);
    let green = names(false);
    let silent = told.into_iter().filter(|name| !red.contains(name) && !green.contains(name));
    let silent: Vec<String> = silent.take(MAX_SILENT).collect();
    red.extend(silent);
    remember(relay, &known.key, &red).await?;
    Ok(again)
}

/// Red things without a result that are remembered: jobs that were renamed while they were red have none any more.
const MAX_SILENT: usize = 1000;

async fn remember(relay: &Relay, key: &StoreKey, red: &BTreeSet<String>) -> Result<(), TaskError> {
    let mut batch = WriteBatch::default();
    batch.set(key.clone(), red, relay.expiry());
    relay.commit(batch).await?;
    Ok(())
}

/// Turned things that one message names.
const MAX_LINES: usize = 10;

fn lines(turned: &[&WatchedThing]) -> String {
    let mut lines: Vec<String> =
        turned.iter().take(MAX_LINES).map(|thing| format!("{}.", thing.text)).collect();
    if turned.len() > MAX_LINES {
        lines.push(format!("And {} more.", turned.len() - MAX_LINES));
    }
    lines.join("\n")
}

/// The text with the address of a page below it, and that address.
fn with_page(relay: &Relay, path: &str, text: String) -> (String, Option<String>) {
    let page = relay.config.public_url.as_ref().map(|base| format!("{base}{path}"));
    match page {
        Some(page) => (format!("{text}\n{page}"), Some(page)),
        None => (text, None),
    }
}

pub async fn repository_changed(
    relay: &Relay,
    repo: &RepoName,
    pinned: u64,
    found: u64,
) -> Result<TaskDone, TaskError> {
    let Some(url) = &relay.config.alert_url else { return Ok(TaskDone::Finished) };
    let mut text = format!(
        "{repo} is repository number {found} now and was number {pinned}: its dispatches and \
         reports are refused until an operator confirms it with `crcr relay repository confirm \
         {repo}`"
    );
    let home = crate::admin::HOME;
    let page = relay.config.public_url.as_ref().map(|base| format!("{base}{home}"));
    if let Some(page) = &page {
        text = format!("{text}\n{page}");
    }
    let body = json!({
        "event": "repository_changed", "repo": repo, "pinned": pinned, "found": found, "url": page,
    });
    post(relay, url, body, &text).await?;
    Ok(TaskDone::Finished)
}

/// Sends the answer to which commit broke a job.
pub async fn culprit_found(relay: &Relay, culprit: &Culprit) -> Result<TaskDone, TaskError> {
    let Some(url) = &relay.config.alert_url else { return Ok(TaskDone::Finished) };
    let sentence = format!("{}: {}", culprit.repo, culprit.sentence());
    let (text, page) = with_page(relay, &format!("/crcr/{}", culprit.repo), sentence);
    let body = json!({ "event": "culprit_found", "culprit": culprit, "url": page });
    post(relay, url, body, &text).await?;
    Ok(TaskDone::Finished)
}

/// Discord's limit of a message, in characters.
const MAX_CONTENT_CHARS: usize = 2000;

/// Slack, Mattermost and others show `text`, Discord shows `content`.
async fn post(
    relay: &Relay,
    url: &SecretString,
    mut body: Value,
    text: &str,
) -> Result<(), TaskError> {
    // Names of jobs come from outside: they may not notify a whole channel.
    // <https://docs.slack.dev/messaging/formatting-message-text#escaping>
    body["text"] = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").into();
    body["content"] = text.chars().take(MAX_CONTENT_CHARS).collect::<String>().into();
    // <https://discord.com/developers/docs/resources/message#allowed-mentions-object>
    body["allowed_mentions"] = json!({ "parse": [] });
    let request = relay.http.post(url.expose_secret()).timeout(Duration::from_secs(10)).json(&body);
    crcr_github::http::send_once(request).await.map(drop).map_err(|error| {
        let mut fail = TaskError::retry(format!("CRCR_ALERT_URL: {error}"));
        fail.permanent = !error.is_transient();
        fail.retry_at = error.retry_after().map(|pause| relay.now() + pause);
        fail
    })
}
