//! Sends alerts to a webhook: a backend turned red, or a name belongs to another repository.

use std::time::Duration;

use crcr_domain::RepoName;
use crcr_domain::event::EventName;
use crcr_domain::facts::AttemptFact;
use crcr_domain::lifecycle::JobState;
use crcr_domain::probes::Culprit;
use crcr_domain::results::{find_regressions, jobs_of_record};
use crcr_hud::message::regression_text;
use crcr_results::{ResultsError, Window};
use crcr_store::{NewTask, Versioned, WriteBatch, read_record};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;

/// How far back an earlier success counts.
const LOOK_BACK: SignedDuration = SignedDuration::from_hours(30 * 24);
/// How long an alert waits for the other jobs of its commit, so that one message names all of them.
const DELAY: Duration = Duration::from_secs(60);

/// The task that checks whether a failure turned its backend red; `None` if the attempt didn't fail or
/// belongs to a pull request, or no webhook is configured.
pub fn task(relay: &Relay, fact: &AttemptFact, now: Timestamp) -> Option<NewTask> {
    let failed = match fact.state {
        JobState::Completed(conclusion) => !conclusion.is_good(),
        state => state == JobState::Lost,
    };
    let is_of_branch = fact.pull_request.is_none() && fact.event != EventName::Probe;
    if relay.config.alert_url.is_none() || !is_of_branch || !failed {
        return None;
    }
    let repo = RepoName::new(&fact.repo).ok()?;
    let work = TaskKind::Alert { repo, event: fact.event.clone(), head_sha: fact.head_sha.clone() };
    Some(work.task(now + DELAY))
}

pub async fn run(
    relay: &Relay,
    repo: &RepoName,
    event: &EventName,
    head_sha: &str,
) -> Result<TaskDone, TaskError> {
    let Some(url) = &relay.config.alert_url else { return Ok(TaskDone::Finished) };
    let sent: Versioned<bool> =
        read_record(relay.store.as_ref(), state_records::alert_key(repo, event.as_str(), head_sha))
            .await?;
    if sent.value.is_some() {
        return Ok(TaskDone::Finished);
    }
    let to = relay.now();
    let window = Window::all(to - LOOK_BACK, to).of_repos(vec![repo.as_str().to_owned()]);
    let results = &relay.results;
    let unavailable = |error: ResultsError| TaskError::retry(error.to_string());
    let attempts = results.push_attempts(&window).await.map_err(unavailable)?;
    let dispatches = results.dispatches(&window).await.map_err(unavailable)?;
    let regressions = find_regressions(&jobs_of_record(&attempts, &dispatches), &dispatches);
    let this_commit =
        regressions.iter().find(|found| found.event == *event && found.head_sha == head_sha);
    let Some(regression) = this_commit else { return Ok(TaskDone::Finished) };
    let mut text = regression_text(regression);
    let page = relay.config.public_url.as_ref().map(|base| format!("{base}/crcr/{repo}"));
    if let Some(page) = &page {
        text = format!("{text}\n{page}");
    }
    let body =
        json!({ "event": "backend_turned_red", "turn": regression, "text": text, "url": page });
    post(relay, url, &body).await?;
    let mut batch = WriteBatch::default();
    batch.set(sent.key, &true, relay.expiry());
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
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
        "event": "repository_changed", "repo": repo, "pinned": pinned, "found": found,
        "text": text, "url": page,
    });
    post(relay, url, &body).await?;
    Ok(TaskDone::Finished)
}

/// Sends the answer to which commit broke a job.
pub async fn culprit_found(relay: &Relay, culprit: &Culprit) -> Result<TaskDone, TaskError> {
    let Some(url) = &relay.config.alert_url else { return Ok(TaskDone::Finished) };
    let page = relay.config.public_url.as_ref().map(|base| format!("{base}/crcr/{}", culprit.repo));
    let mut text = format!("{}: {}", culprit.repo, culprit.sentence());
    if let Some(page) = &page {
        text = format!("{text}\n{page}");
    }
    let body = json!({ "event": "culprit_found", "culprit": culprit, "text": text, "url": page });
    post(relay, url, &body).await?;
    Ok(TaskDone::Finished)
}

async fn post(relay: &Relay, url: &SecretString, body: &Value) -> Result<(), TaskError> {
    let request = relay.http.post(url.expose_secret()).timeout(Duration::from_secs(10)).json(body);
    crcr_github::http::send_once(request).await.map(drop).map_err(|error| {
        let mut fail = TaskError::retry(format!("CRCR_ALERT_URL: {error}"));
        fail.permanent = !error.is_transient();
        fail.retry_at = error.retry_after().map(|pause| relay.now() + pause);
        fail
    })
}
