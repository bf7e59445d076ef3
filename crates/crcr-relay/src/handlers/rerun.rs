//! Runs downstream runs again, as somebody upstream asked.

use std::collections::BTreeSet;

use crcr_domain::check_run as names;
use crcr_domain::{Level, RepoName};
use crcr_github::Error;

use super::{Fail, Outcome, Work};
use crate::relay::Relay;
use crate::store::Batch;

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
        Ok(()) | Err(Error::AlreadyRunning(_)) => Ok(Outcome::Done),
        Err(error) => Err(error.into()),
    }
}

/// Runs every downstream run of a check suite again, each once.
pub async fn suite(relay: &Relay, suite: u64) -> Result<Outcome, Fail> {
    let listed = relay.app.check_runs_of_suite(relay.config.upstream.as_str(), suite).await?;
    let mut runs = BTreeSet::new();
    for run in listed {
        let repo = names::repo_of(&run.name).and_then(|repo| RepoName::new(repo).ok());
        let id = run.external_id.as_deref().and_then(names::run_of);
        runs.extend(repo.zip(id));
    }
    let mut batch = Batch::default();
    for (repo, run_id) in runs {
        if may_rerun(relay, &repo)? {
            let work = Work::Rerun { repo, run_id, failed_only: false };
            batch.tasks.push(work.task(relay, relay.now()));
        }
    }
    relay.commit(batch).await?;
    Ok(Outcome::Done)
}

fn may_rerun(relay: &Relay, repo: &RepoName) -> Result<bool, Fail> {
    let allowlist = relay.allowlist.get().ok_or_else(|| Fail::retry("no allowlist yet"))?;
    Ok(allowlist.get(repo).is_some_and(|entry| entry.level >= Level::L3))
}
