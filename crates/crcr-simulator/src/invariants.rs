//! The promises, checked from outside: what GitHub and the backends have seen is compared with what the
//! store holds.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::RepoName;
use crcr_domain::check_run;
use crcr_domain::dispatch::DispatchStatus;
use crcr_relay::state_records;
use crcr_standin::world::CheckRun;
use crcr_store::memory::MemoryStore;
use crcr_store::{StoreKey, TaskState};

use crate::gates::dispatch;
use crate::lab::{BackendLab, JobReports};
use crate::upstream::{L4, short};

/// A broken promise, and how it was broken.
pub(crate) type Broken = (&'static str, String);

/// A webhook that GitHub has.
pub(crate) struct KnownWebhook {
    /// The backends that have to get it.
    pub(crate) targets: Vec<&'static str>,
    pub(crate) head: String,
    /// Whether backends at L4 show check runs for it.
    pub(crate) has_check_runs: bool,
    pub(crate) pull: Option<u64>,
    /// GitHub's times have a resolution of a second.
    pub(crate) second: i64,
}

/// What the outside world knows.
#[derive(Default)]
pub(crate) struct PromiseLedger {
    pub(crate) webhooks: BTreeMap<String, KnownWebhook>,
    pub(crate) acknowledged: BTreeSet<String>,
    /// Acknowledged webhooks that aren't settled, with the backends that still have to get them.
    pub(crate) open: BTreeMap<String, BTreeSet<&'static str>>,
    /// Dispatches that GitHub has accepted, by delivery and repository in lower case.
    pub(crate) accepted: BTreeMap<(String, String), u32>,
    /// The backends that have reported a nightly run, and whether the relay has taken it.
    pub(crate) nightlies: BTreeMap<&'static str, bool>,
    /// Status, conclusion and number of updates of the check runs when they were last seen.
    seen: BTreeMap<u64, (String, Option<String>, u32)>,
}

impl PromiseLedger {
    pub(crate) fn acknowledge(&mut self, delivery: &str) {
        if self.acknowledged.insert(delivery.to_owned())
            && let Some(webhook) = self.webhooks.get(delivery).filter(|one| !one.targets.is_empty())
        {
            let targets = webhook.targets.iter().copied().collect();
            self.open.insert(delivery.to_owned(), targets);
        }
    }

    /// Webhooks that are stored, and whose answers got lost.
    pub(crate) fn note_stored(&mut self, memory: &MemoryStore) {
        let is_stored = |id: &str| memory.record(&state_records::delivery_key(id)).is_some();
        let stored: Vec<String> = self
            .webhooks
            .keys()
            .filter(|id| !self.acknowledged.contains(*id) && is_stored(id))
            .cloned()
            .collect();
        stored.iter().for_each(|id| self.acknowledge(id));
    }

    /// An acknowledged delivery is dispatched to every target, superseded or withheld by the breaker, and until
    /// then a task for it is in the queue.
    pub(crate) fn check_deliveries(&mut self, memory: &MemoryStore) -> Result<(), Broken> {
        let mut settled = vec![];
        for (delivery, targets) in &self.open {
            for repo in targets {
                match self.is_settled(memory, delivery, repo) {
                    Ok(true) => settled.push((delivery.clone(), *repo)),
                    Ok(false) => {}
                    Err(why) => {
                        let detail = format!("{delivery} to {repo}: {why}");
                        return Err(("acknowledged-delivery-lost", detail));
                    }
                }
            }
        }
        for (delivery, repo) in settled {
            if let Some(targets) = self.open.get_mut(&delivery) {
                targets.remove(repo);
                if targets.is_empty() {
                    self.open.remove(&delivery);
                }
            }
        }
        Ok(())
    }

    fn is_settled(&self, memory: &MemoryStore, delivery: &str, repo: &str) -> Result<bool, String> {
        let task = StoreKey::new(&["dispatch", delivery, repo]);
        let state = memory.task_state(&task);
        let Some(dispatch) = dispatch(memory, delivery, repo) else {
            return Err("it has no record".to_owned());
        };
        match dispatch.status {
            DispatchStatus::Queued => match state {
                Some(TaskState::Ready | TaskState::Leased) => Ok(false),
                other => Err(format!("it is queued, and its task is {other:?}")),
            },
            DispatchStatus::Sent { .. } => {
                let key = (delivery.to_owned(), repo.to_owned());
                if self.accepted.contains_key(&key) {
                    Ok(true)
                } else {
                    Err("it is recorded as sent, and GitHub never accepted it".to_owned())
                }
            }
            DispatchStatus::Superseded { by } => {
                if memory.record(&state_records::delivery_key(&by)).is_some() {
                    Ok(true)
                } else {
                    Err(format!("it is superseded by {by}, which isn't stored"))
                }
            }
            DispatchStatus::Dead if state == Some(TaskState::Dead) => Ok(false),
            DispatchStatus::Dead => Err("it was given up without a dead letter".to_owned()),
            DispatchStatus::Unreachable | DispatchStatus::RepositoryChanged => Ok(false),
            // Its check run says so and blocks nobody; an operator may redeliver it.
            DispatchStatus::Withheld | DispatchStatus::LeftOut { .. } => Ok(true),
        }
    }

    /// Looks at the check runs that have changed since the last call; returns what changed.
    pub(crate) fn check_shown(
        &mut self,
        runs: &[CheckRun],
        lab: &BackendLab,
        memory: &MemoryStore,
    ) -> Result<Vec<String>, Broken> {
        let mut lines = vec![];
        for run in runs {
            let now = (run.status.clone(), run.conclusion.clone(), run.updates);
            if self.seen.get(&run.id) == Some(&now) {
                continue;
            }
            if !self.seen.contains_key(&run.id)
                && let Some(other) = runs.iter().find(|other| {
                    other.id < run.id
                        && (&other.head_sha, &other.name) == (&run.head_sha, &run.name)
                })
            {
                let detail = format!("{} at {}", other.name, short(&other.head_sha));
                return Err(("check-run-created-twice", detail));
            }
            let end = run.conclusion.as_deref().unwrap_or_default();
            lines.push(format!(
                "shows {} at {}: {} {end}",
                run.name,
                short(&run.head_sha),
                run.status
            ));
            self.seen.insert(run.id, now);
            check_content(run, lab, &self.accepted, memory)?;
        }
        Ok(lines)
    }

    /// Something in the queue will end every open check run.
    pub(crate) fn check_open_check_runs(
        &self,
        runs: &[CheckRun],
        memory: &MemoryStore,
    ) -> Result<(), Broken> {
        let open: Vec<&CheckRun> = runs.iter().filter(|run| run.status != "completed").collect();
        if open.is_empty() {
            return Ok(());
        }
        let mut tasks = vec![];
        memory.for_each_task(|key, state, _| {
            if state != TaskState::Dead {
                tasks.push(key.to_owned());
            }
        });
        for run in open {
            let repo = check_run::repo_of(&run.name).unwrap_or_default();
            let deliveries: Vec<String> = self
                .webhooks
                .iter()
                .filter(|(_, webhook)| webhook.head == run.head_sha)
                .map(|(id, _)| format!("\"{id}\""))
                .collect();
            let is_about = |task: &&String| {
                task.contains(repo)
                    && (task.contains(&run.head_sha)
                        || deliveries.iter().any(|delivery| task.contains(delivery.as_str())))
            };
            let given_up = self.has_dead_letter(memory, repo, &deliveries, &run.head_sha);
            if !given_up && !tasks.iter().any(|task| is_about(&task)) {
                let detail = format!(
                    "{} at {} is {}, and no task in the queue is about it",
                    run.name,
                    short(&run.head_sha),
                    run.status
                );
                return Err(("check-run-abandoned", detail));
            }
        }
        Ok(())
    }

    /// Whether an operator has to redeliver something first.
    fn has_dead_letter(
        &self,
        memory: &MemoryStore,
        repo: &str,
        deliveries: &[String],
        head: &str,
    ) -> bool {
        let mut found = false;
        memory.for_each_task(|key, state, _| {
            found |= state == TaskState::Dead
                && key.contains(repo)
                && (key.contains(head) || deliveries.iter().any(|one| key.contains(one.as_str())));
        });
        found
    }

    /// What holds when everything works again and nothing is left to do.
    pub(crate) fn check_end(
        &self,
        runs: &[CheckRun],
        lab: &BackendLab,
        memory: &MemoryStore,
    ) -> Result<(), Broken> {
        if let Some(lost) = self.webhooks.keys().find(|id| !self.acknowledged.contains(*id)) {
            return Err(("webhook-lost", format!("{lost} was never acknowledged")));
        }
        if let Some((delivery, targets)) = self.open.first_key_value() {
            let detail = format!("{delivery} was acknowledged and never got to {targets:?}");
            return Err(("acknowledged-delivery-lost", detail));
        }
        if let Some(open) = runs.iter().find(|run| run.status != "completed") {
            let detail = format!("{} at {} is {}", open.name, short(&open.head_sha), open.status);
            return Err(("check-run-never-ends", detail));
        }
        for (delivery, webhook) in &self.webhooks {
            for repo in webhook.targets.iter().filter(|repo| L4.contains(repo)) {
                let is_superseded = dispatch(memory, delivery, repo).is_some_and(|dispatch| {
                    matches!(dispatch.status, DispatchStatus::Superseded { .. })
                });
                let name = check_run::dispatch_name(repo);
                let is_shown =
                    runs.iter().any(|run| run.head_sha == webhook.head && run.name == name);
                if webhook.has_check_runs && !is_superseded && !is_shown {
                    let detail = format!("{delivery} has no {name}");
                    return Err(("check-run-missing", detail));
                }
            }
        }
        for ((head, name), reports) in &lab.jobs {
            let is_l4 = check_run::repo_of(name).is_some_and(|repo| L4.contains(&repo));
            let of_head = self.webhooks.values().any(|one| one.head == *head && one.has_check_runs);
            if is_l4 && of_head {
                check_job_end(runs, (head, name), reports, lab, memory)?;
            }
        }
        Ok(())
    }
}

/// A check run shows only what genuine reports said, and a verdict waits for every run.
fn check_content(
    run: &CheckRun,
    lab: &BackendLab,
    accepted: &BTreeMap<(String, String), u32>,
    memory: &MemoryStore,
) -> Result<(), Broken> {
    let conclusion = run.conclusion.as_deref();
    let detail = |why: &str| format!("{} at {}: {why}", run.name, short(&run.head_sha));
    let repo = check_run::repo_of(&run.name).unwrap_or_default();
    if run.name == check_run::dispatch_name(repo) {
        if conclusion != Some("success") {
            return Ok(());
        }
        // If GitHub got a dispatch twice, one of two equal runs is enough until the other one reports.
        // If it was superseded while GitHub accepted it, its runs don't count.
        let is_sent = |delivery: &str| {
            dispatch(memory, delivery, repo).is_some_and(|one| one.sent_at().is_some())
        };
        let was_accepted_once =
            |delivery: &str| accepted.get(&(delivery.to_owned(), repo.to_owned())) == Some(&1);
        let of_head = lab.runs.iter().filter(|(_, one)| {
            one.head == run.head_sha && one.repo == repo && is_sent(&one.delivery)
        });
        let mut newest = BTreeMap::new();
        for (id, one) in of_head {
            newest.insert(one.workflow, (id, one));
        }
        let mut newest = newest.values().filter(|(_, one)| was_accepted_once(&one.delivery));
        if let Some((id, _)) = newest.find(|(_, one)| one.ended.is_none()) {
            let why = format!("success, and run {id} hasn't ended");
            return Err(("verdict-without-run", detail(&why)));
        }
        let prefix = format!("crcr/{repo}/");
        let is_proven = lab
            .jobs
            .iter()
            .any(|((head, name), _)| *head == run.head_sha && name.starts_with(&prefix));
        if !is_proven {
            return Err(("unproven-report-shown", detail("success without a genuine report")));
        }
        return Ok(());
    }
    let key = (run.head_sha.clone(), run.name.clone());
    let Some(reports) = lab.jobs.get(&key) else {
        return Err(("unproven-report-shown", detail("no genuine report names this job")));
    };
    let is_known = match conclusion {
        None => true,
        // Neutral: its infrastructure keeps failing.
        Some("timed_out" | "neutral") => reports.started,
        // The label was removed.
        Some("skipped") => true,
        Some("cancelled") if reports.was_forged_end => true,
        Some(end) => reports.conclusions.contains(end),
    };
    if !is_known {
        let why = format!("{conclusion:?}, and genuine reports said {:?}", reports.conclusions);
        return Err(("unproven-report-shown", detail(&why)));
    }
    Ok(())
}

/// The newest attempt that the relay has acknowledged is shown.
fn check_job_end(
    runs: &[CheckRun],
    (head, name): (&str, &str),
    reports: &JobReports,
    lab: &BackendLab,
    memory: &MemoryStore,
) -> Result<(), Broken> {
    // A dispatch that was superseded while GitHub accepted it has no proven reports.
    let is_sent = |run: u64| {
        let run = &lab.runs[&run];
        dispatch(memory, &run.delivery, run.repo)
            .is_some_and(|dispatch| dispatch.sent_at().is_some())
    };
    let mut newest_first = reports.acknowledged.iter().rev();
    let newest = newest_first.find(|((run, _), _)| is_sent(*run));
    let Some((attempt, end)) = newest else { return Ok(()) };
    let shown = runs.iter().find(|run| run.head_sha == head && run.name == name);
    let shown = shown.and_then(|run| run.conclusion.as_deref());
    let is_right = match end {
        Some("success") => shown == Some("success"),
        Some(end) => matches!(shown, Some(shown) if shown == *end || shown == "neutral"),
        None => {
            matches!(shown, Some("timed_out" | "neutral"))
                || (reports.was_forged_end && shown == Some("cancelled"))
        }
    };
    if is_right {
        return Ok(());
    }
    let detail = format!(
        "{name} at {}: shows {shown:?}, and {attempt:?} was acknowledged with {end:?}",
        short(head)
    );
    Err(("acknowledged-report-lost", detail))
}

/// The name of a backend of the allowlist, from the one that GitHub uses.
pub(crate) fn key_of(repo: &str) -> String {
    RepoName::new(repo).map_or_else(|_| repo.to_owned(), |repo| repo.key())
}
