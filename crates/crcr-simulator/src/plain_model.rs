//! What has to be so after hours of traffic, computed only from what happened upstream and at the backends. It shares no
//! code with the relay's decisions.

use std::collections::BTreeMap;

use crcr_domain::check_run;
use crcr_domain::dispatch::DispatchStatus;
use crcr_standin::State;
use crcr_standin::world::CheckRun;
use crcr_store::memory::MemoryStore;

use crate::gates::dispatch;
use crate::invariants::{Broken, KnownWebhook, PromiseLedger};
use crate::lab::BackendLab;
use crate::upstream::{L4, LABEL, UPSTREAM, short};

/// The backend at L3.
const L3: &str = "lab/three";
/// The worst conclusion of runs and jobs counts.
const BEST_TO_WORST: [&str; 4] = ["success", "cancelled", "timed_out", "failure"];

/// Compares what the relay did with what it should have done; returns how many things were compared.
pub(crate) fn compare(
    ledger: &PromiseLedger,
    lab: &BackendLab,
    github: &State,
    memory: &MemoryStore,
) -> Result<usize, Broken> {
    let runs = github.world.check_runs(UPSTREAM);
    let mut compared = 0;
    for (delivery, webhook) in &ledger.webhooks {
        for repo in &webhook.targets {
            let found = dispatch(memory, delivery, repo);
            let status = found.as_ref().map(|dispatch| &dispatch.status);
            let is_right = match (status, may_be_superseded(ledger, webhook)) {
                (Some(DispatchStatus::Sent { .. }), _) => true,
                (Some(DispatchStatus::Superseded { .. }), may) => may,
                _ => false,
            };
            if !is_right {
                return Err(("model-differs", format!("{delivery} to {repo}: {status:?}")));
            }
            compared += 1;
            let is_sent = matches!(status, Some(DispatchStatus::Sent { .. }));
            if !is_sent || !webhook.has_check_runs || !is_only_one(ledger, delivery, webhook, repo)
            {
                continue;
            }
            let shown = conclusion(&runs, &webhook.head, repo);
            if L4.contains(repo)
                && let Some(expected) = verdict(lab, delivery, webhook, repo)
            {
                compared += 1;
                if shown != Some(expected) {
                    let detail =
                        format!("{repo} at {}: {shown:?}, not {expected}", short(&webhook.head));
                    return Err(("model-differs", detail));
                }
            }
            let pull = webhook.pull.and_then(|number| github.world.pull(UPSTREAM, number));
            if *repo == L3
                && let Some(pull) = pull
                && pull.open
                && pull.head_sha == webhook.head
                && pull.labels.contains(LABEL)
            {
                compared += 1;
                if shown.is_none() {
                    let detail = format!("{repo} at {}: labelled, not shown", short(&webhook.head));
                    return Err(("model-differs", detail));
                }
            }
        }
    }
    if let Some((repo, _)) = ledger.nightlies.iter().find(|(_, is_taken)| !**is_taken) {
        return Err(("model-differs", format!("the nightly run of {repo} was never taken")));
    }
    Ok(compared + ledger.nightlies.len())
}

/// Whether the backends got something newer of the pull request, or of the same second.
fn may_be_superseded(ledger: &PromiseLedger, webhook: &KnownWebhook) -> bool {
    webhook.pull.is_some()
        && ledger.webhooks.values().any(|other| {
            other.pull == webhook.pull
                && !other.targets.is_empty()
                && other.second >= webhook.second
                && !std::ptr::eq(other, webhook)
        })
}

/// Whether GitHub got one dispatch for the head, once. Of several, the order of their reports counts.
fn is_only_one(ledger: &PromiseLedger, delivery: &str, webhook: &KnownWebhook, repo: &str) -> bool {
    let of_head = ledger.webhooks.values().filter(|other| other.head == webhook.head);
    let accepted = ledger.accepted.get(&(delivery.to_owned(), repo.to_owned()));
    of_head.filter(|other| !other.targets.is_empty()).count() == 1 && accepted == Some(&1)
}

fn conclusion<'r>(runs: &'r [CheckRun], head: &str, repo: &str) -> Option<&'r str> {
    let name = check_run::dispatch_name(repo);
    runs.iter().find(|run| run.head_sha == head && run.name == name)?.conclusion.as_deref()
}

/// The verdict of a backend that got one dispatch. `None` where it depends on the order of events: a run
/// without a report may be another dispatch's, and a forged end may stand for a missing one.
fn verdict(
    lab: &BackendLab,
    delivery: &str,
    webhook: &KnownWebhook,
    repo: &str,
) -> Option<&'static str> {
    let own = || lab.runs.iter().filter(|(_, run)| run.repo == repo && run.delivery == delivery);
    let mut newest_of_jobs = BTreeMap::new();
    let mut reported = vec![];
    for ((head, name), reports) in &lab.jobs {
        for ((run, attempt), end) in &reports.acknowledged {
            if *head == webhook.head && own().any(|(id, _)| id == run) {
                if end.is_none() && reports.was_forged_end {
                    return None;
                }
                reported.push(*run);
                newest_of_jobs.insert(name, (*attempt, end.unwrap_or("timed_out")));
            }
        }
    }
    if reported.is_empty() {
        return Some("failure");
    }
    if own().any(|(id, _)| !reported.contains(id)) {
        return None;
    }
    let of_runs = own().filter_map(|(_, run)| run.ended);
    let of_jobs = newest_of_jobs.values().map(|(_, end)| *end);
    let rank = |end: &&str| BEST_TO_WORST.iter().position(|one| one == end);
    of_runs.chain(of_jobs).max_by_key(rank)
}
