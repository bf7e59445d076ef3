//! How many check runs of jobs a backend may have, and how many calls of GitHub's API they may take. The
//! check run of the backend itself has no such limit.

use crcr_domain::{CheckRunPolicy, RepoName};
use crcr_store::{BudgetCharge, CommitOutcome, StoreError, Versioned, WriteBatch};

use crate::limits;
use crate::queue::task_kind::TaskError;
use crate::relay::Relay;
use crate::state_records;
use crate::usage::Resource;

/// Takes one of the places for check runs of jobs that a backend has on a commit. Returns whether the check
/// run with this name has one.
pub(crate) async fn has_place(
    relay: &Relay,
    repo: &RepoName,
    head_sha: &str,
    name: &str,
) -> Result<bool, StoreError> {
    let key = state_records::job_checks_key(repo, head_sha);
    let has_place = relay.update(key, |known: &Versioned<Vec<String>>| {
        let mut names = known.value.clone().unwrap_or_default();
        if names.iter().any(|known| known == name) {
            return (true, None);
        }
        if names.len() >= limits::JOB_CHECK_RUNS {
            return (false, None);
        }
        names.push(name.to_owned());
        let mut batch = WriteBatch::default();
        batch.update(known, &names, relay.expiry());
        (true, Some(batch))
    });
    has_place.await
}

/// Whether all places are taken by other jobs.
pub(crate) async fn is_folded(
    relay: &Relay,
    repo: &RepoName,
    head_sha: &str,
    name: &str,
) -> Result<bool, StoreError> {
    let key = state_records::job_checks_key(repo, head_sha);
    let names = relay.read_record::<Vec<String>>(key).await?.value;
    Ok(names.is_some_and(|names| {
        names.len() >= limits::JOB_CHECK_RUNS && !names.iter().any(|known| known == name)
    }))
}

/// What the check run of the backend says about jobs that have none of their own; empty if all have one. How many there are
/// is told once it is over: each new name would cost a call of GitHub's API, which nobody is charged for.
pub(crate) fn folded(jobs: usize, is_over: bool, page: Option<&str>) -> String {
    let shown = limits::JOB_CHECK_RUNS;
    let folded = jobs.saturating_sub(shown);
    if folded == 0 {
        return String::new();
    }
    let all =
        page.map_or_else(|| "the relay's page of this pull request".to_owned(), str::to_owned);
    let (jobs, others) = match is_over {
        true => (format!("{shown} of its {jobs} jobs"), format!("the other {folded}")),
        false => (format!("{shown} of its jobs"), "the others".to_owned()),
    };
    format!("\n{jobs} have check runs of their own, {others} have none; all are on {all}\n")
}

/// Charges calls of GitHub's API to a backend. All backends together leave a part of the installation's calls to
/// everything else.
pub(crate) async fn charge_calls(
    relay: &Relay,
    repo: &RepoName,
    calls: u64,
) -> Result<(), TaskError> {
    let backends = super::allowlist(relay)?
        .iter()
        .filter(|entry| entry.level.check_run() != CheckRunPolicy::Never)
        .count();
    let an_hour = (limits::JOB_CHECK_CALLS / backends.max(1) as u64).max(limits::LEAST_CALLS);
    let of_hour = BudgetCharge {
        bucket: state_records::job_calls_key(repo),
        capacity: an_hour,
        per_minute: an_hour as f64 / 60.0,
        cost: calls,
        first_of: None,
    };
    let of_minute = BudgetCharge {
        bucket: state_records::job_calls_of_all_key(&relay.config.upstream),
        capacity: limits::JOB_CHECK_CALLS_A_MINUTE,
        per_minute: limits::JOB_CHECK_CALLS_A_MINUTE as f64,
        ..of_hour.clone()
    };
    let batch = WriteBatch { charges: vec![of_hour, of_minute], ..WriteBatch::default() };
    match relay.commit(batch).await? {
        CommitOutcome::Limited(limited) => {
            let made = match limited.charge {
                0 => format!("`{repo}` has made its {an_hour} calls of this hour"),
                _ => format!("{} calls of this minute were made", limits::JOB_CHECK_CALLS_A_MINUTE),
            };
            let text =
                format!("{made} for check runs of jobs; the backend's own check run goes on");
            Err(TaskError {
                not_before: Some(relay.now() + limited.wait),
                ..TaskError::retry(text)
            })
        }
        _ => {
            relay.usage.add(relay.now(), Resource::CheckRunCalls, repo.as_str(), calls);
            Ok(())
        }
    }
}
