//! The promises, checked from outside: what GitHub and the backends have seen is compared with what the
//! store holds.

use std::collections::BTreeMap;

use crcr_domain::checks::check_run;
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_relay::state_records;
use crcr_standin::world::CheckRun;
use crcr_store::memory::MemoryStore;
use crcr_store::{StoreKey, TaskState};

use crate::ledger::{Broken, PromiseLedger, dispatch};
use crate::levels::AllowlistModel;
use crate::names::short;
use crate::truth::{CommitTruth, Truth, spelled_as_usual};

/// By number: status, conclusion and number of updates of the check runs when they were last seen.
pub(crate) type SeenCheckRuns = BTreeMap<u64, (String, Option<String>, u32)>;

impl PromiseLedger {
    /// An acknowledged delivery is dispatched to every target, superseded or withheld by the breaker, and until
    /// then a task for it is in the queue.
    pub(crate) fn check_deliveries(
        &mut self,
        memory: &MemoryStore,
        allowlist: &AllowlistModel,
    ) -> Result<(), Broken> {
        let mut settled = vec![];
        for (delivery, targets) in &self.open {
            for repo in targets {
                match self.is_settled(memory, delivery, repo, allowlist) {
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

    fn is_settled(
        &self,
        memory: &MemoryStore,
        delivery: &str,
        repo: &str,
        allowlist: &AllowlistModel,
    ) -> Result<bool, String> {
        let task = StoreKey::new(&["dispatch", delivery, repo]);
        let state = memory.task_state(&task);
        let Some(dispatch) = dispatch(memory, delivery, repo) else {
            // The relay may have planned it by another version of the allowlist.
            if allowlist.entry(repo).is_some_and(|entry| entry.since.is_some()) {
                return Ok(true);
            }
            if self.is_ready_otherwise(memory, delivery, repo) {
                return Ok(true);
            }
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
        runs: &[CheckRun],
        seen: &mut SeenCheckRuns,
        truth: &Truth<'_>,
    ) -> Result<Vec<String>, Broken> {
        let mut lines = vec![];
        for run in runs {
            let now = (run.status.clone(), run.conclusion.clone(), run.updates);
            if seen.get(&run.id) == Some(&now) {
                continue;
            }
            if !seen.contains_key(&run.id)
                && let Some(other) = runs.iter().find(|other| {
                    // One that has ended can't be opened again.
                    let may_stand_for = other.status == "completed" && run.status != "completed";
                    other.id < run.id
                        && other.head_sha == run.head_sha
                        && other.name.eq_ignore_ascii_case(&run.name)
                        && !may_stand_for
                })
            {
                let detail = format!("{} at {}", other.name, short(&other.head_sha));
                return Err(("check-run-created-twice", detail));
            }
            let (_, repo) = spelled_as_usual(&run.name);
            if !seen.contains_key(&run.id)
                && truth.allowlist.is_settled_demotion(repo, truth.at, truth.demotions_read_at)
            {
                let detail = format!("{} at {}", run.name, short(&run.head_sha));
                return Err(("demoted-check-run-created", detail));
            }
            let end = run.conclusion.as_deref().unwrap_or_default();
            lines.push(format!(
                "shows {} at {}: {} {end}",
                run.name,
                short(&run.head_sha),
                run.status
            ));
            seen.insert(run.id, now);
            check_content(run, truth)?;
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
            let (_, repo) = spelled_as_usual(&run.name);
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

    /// Nothing that is shown upstream, or that finds out what to show, is ever given up.
    pub(crate) fn check_dead_letters(memory: &MemoryStore) -> Result<(), Broken> {
        let mut found = None;
        memory.for_each_task(|key, state, _| {
            let kind = key.trim_start_matches("[\"").split('"').next().unwrap_or_default();
            if state == TaskState::Dead && !MAY_BE_GIVEN_UP.contains(&kind) {
                found = Some(key.to_owned());
            }
        });
        match found {
            Some(key) => Err(("check-run-given-up", format!("{key} is a dead letter"))),
            None => Ok(()),
        }
    }
}

/// Tasks that an operator may find as dead letters.
const MAY_BE_GIVEN_UP: [&str; 9] = [
    "dispatch",
    "forward",
    "alert",
    "comment",
    "rerun",
    "redispatch",
    "rerun_suite",
    "merge_base",
    "repository_changed",
];

/// A check run shows only what genuine reports said, and is good only if everything is known to be.
fn check_content(run: &CheckRun, truth: &Truth<'_>) -> Result<(), Broken> {
    let conclusion = run.conclusion.as_deref();
    let detail = |why: &str| format!("{} at {}: {why}", run.name, short(&run.head_sha));
    let (name, repo) = spelled_as_usual(&run.name);
    if name == check_run::dispatch_name(repo) {
        return check_verdict(run, repo, truth).map_err(|(code, why)| (code, detail(&why)));
    }
    let key = (run.head_sha.clone(), name);
    let Some(reports) = truth.lab.jobs.get(&key) else {
        return Err(("unproven-report-shown", detail("no genuine report names this job")));
    };
    let is_known = match conclusion {
        None => true,
        // Neutral: its infrastructure keeps failing, or its level has no check runs any more.
        Some("timed_out" | "neutral") => reports.started || !reports.conclusions.is_empty(),
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

/// The verdict of a backend isn't better than what is true.
fn check_verdict(run: &CheckRun, repo: &'static str, truth: &Truth<'_>) -> Result<(), Broken> {
    let Some(end @ ("success" | "neutral" | "skipped")) = run.conclusion.as_deref() else {
        return Ok(());
    };
    let known = truth.of_commit(&run.head_sha, repo);
    if end == "success" {
        let prefix = format!("crcr/{repo}/");
        let is_proven = truth
            .lab
            .jobs
            .keys()
            .any(|(head, name)| *head == run.head_sha && name.starts_with(&prefix));
        if !is_proven {
            let why = "success without a genuine report".to_owned();
            return Err(("unproven-report-shown", why));
        }
        return match known {
            CommitTruth::Bad(why) => Err(("wrong-green", format!("success, and {why}"))),
            _ => Ok(()),
        };
    }
    if !truth.is_settled_at_l4(repo) {
        return Ok(());
    }
    if !truth.has_evidence(&run.head_sha, repo) {
        let is_asked_for = truth.asked_heads.contains(&run.head_sha);
        if truth.is_held(&run.head_sha, repo) && !is_asked_for && !truth.may_be_withheld(repo) {
            return Err(("held-dispatch-shown-as-done", format!("{end} ({})", run.title)));
        }
        return Ok(());
    }
    if end == "neutral" && truth.may_be_withheld(repo) {
        return Ok(());
    }
    match known {
        CommitTruth::Bad(why) => Err(("wrong-green", format!("{end}, and {why}"))),
        _ => Err(("result-replaced", format!("{end} ({}), and its runs reported", run.title))),
    }
}
