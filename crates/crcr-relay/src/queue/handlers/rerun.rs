//! Runs downstream runs again, as somebody upstream asked.

use std::collections::BTreeMap;

use crcr_domain::check_run as names;
use crcr_domain::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::{Level, RepoName};
use crcr_github::Error;
use crcr_store::{Batch, Commit, Read, read};

use crate::limits;
use crate::queue::task::{Fail, Outcome, Work};
use crate::relay::Relay;
use crate::state_records::{self, Shown};

/// Runs one downstream run again. Below L3 nothing happens: it has no check runs to ask on.
pub async fn run(
    relay: &Relay,
    repo: &RepoName,
    run_id: u64,
    failed_only: bool,
) -> Result<Outcome, Fail> {
    if !may_rerun(relay, repo)? {
        tracing::info!(%repo, run_id, "not run again: the repository is not at L3 or L4");
        return Ok(Outcome::Done);
    }
    let asked = if failed_only {
        relay.app.rerun_failed_jobs(repo.as_str(), run_id).await
    } else {
        relay.app.rerun(repo.as_str(), run_id).await
    };
    match asked {
        Ok(()) | Err(Error::AlreadyRunning(_)) => {}
        Err(error) => return Err(error.into()),
    }
    // The check run is open again as soon as GitHub says so, also before the first report.
    let claim = state_records::run_claim(repo, &run_id.to_string());
    if let Some(delivery) = read::<String>(relay.store.as_ref(), claim).await?.value {
        let work = Work::Sweep { delivery, repo: repo.clone() };
        let tasks = vec![work.task(relay, relay.now() + limits::RERUN_LOOK)];
        relay.commit(Batch { tasks, ..Batch::default() }).await?;
    }
    Ok(Outcome::Done)
}

/// Sends a dispatch again that no run answered: it was never started, given up or unreachable.
pub async fn redispatch(relay: &Relay, repo: &RepoName, head_sha: &str) -> Result<Outcome, Fail> {
    if !may_rerun(relay, repo)? {
        return Ok(Outcome::Done);
    }
    let store = relay.store.as_ref();
    let shown = state_records::shown(head_sha, &names::dispatch_name(repo.as_str()));
    let Some(shown) = read::<Shown>(store, shown).await?.value else { return Ok(Outcome::Done) };
    let key = state_records::dispatch(&shown.delivery, repo);
    let known: Read<Dispatch> = read(store, key).await?;
    let Some(mut dispatch) = known.value.clone() else { return Ok(Outcome::Done) };
    if matches!(dispatch.status, DispatchStatus::Queued | DispatchStatus::Superseded { .. }) {
        return Ok(Outcome::Done);
    }
    let now = relay.now();
    dispatch.status = DispatchStatus::Queued;
    dispatch.never_started = false;
    let mut batch = Batch::default();
    batch.update(&known, &dispatch, relay.expiry());
    batch.tasks.push(Work::dispatch(&dispatch).task(relay, now));
    batch.tasks.push(Work::check_run(&dispatch, None).task(relay, now));
    match relay.commit(batch).await? {
        Commit::Done => Ok(Outcome::Done),
        _ => Err(Fail::retry("the dispatch changed meanwhile")),
    }
}

/// Runs every downstream run of a check suite again, each once.
pub async fn suite(relay: &Relay, suite: u64) -> Result<Outcome, Fail> {
    let listed = relay.app.check_runs_of_suite(relay.config.upstream.as_str(), suite).await?;
    let mut tasks = BTreeMap::new();
    for run in listed {
        let external_id = run.external_id.unwrap_or_default();
        let Some(work) = Work::rerun_of(&run.name, &external_id, &run.head_sha, false) else {
            continue;
        };
        let task = work.task(relay, relay.now());
        tasks.insert(task.key.as_str().to_owned(), task);
    }
    let tasks = tasks.into_values().collect();
    relay.commit(Batch { tasks, ..Batch::default() }).await?;
    Ok(Outcome::Done)
}

fn may_rerun(relay: &Relay, repo: &RepoName) -> Result<bool, Fail> {
    let allowlist = relay.allowlist.get().ok_or_else(|| Fail::retry("no allowlist yet"))?;
    Ok(allowlist.get(repo).is_some_and(|entry| entry.level >= Level::L3))
}
