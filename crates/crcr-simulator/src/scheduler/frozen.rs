//! Processes that are frozen, or stop, in the middle of a change of a check run, and what happens meanwhile.

use std::time::Duration;

use crcr_domain::checks::check_run;
use crcr_standin::world::PullRequest;
use crcr_store::{TaskOutcome, TaskState};
use rand::Rng as _;

use super::{ScheduledEvent, Simulation};
use crate::ledger::Broken;
use crate::names::{UPSTREAM, short};
use crate::stores::StoreKind;
use crate::truth::{HANDLER, spelled_as_usual};

/// How often that happens in a part of a seed.
pub(crate) const MOST_FREEZES: u32 = 12;
/// How often a label changes when nothing else happens upstream any more. Each change may have a few freezes, also the
/// last one, after which nobody looks again.
pub(crate) const LABEL_CHANGES: u64 = 6;
/// How often a process is frozen before it changes a verdict that depends on the label.
const FREEZE_PERCENT: u32 = 50;
/// How often it stops while such a change is on its way.
const STOP_PERCENT: u32 = 75;
/// How long a request is on its way: long enough for the lease of its sender's task to end, and less than the relay
/// waits before it looks again.
const ON_ITS_WAY_SECONDS: std::ops::Range<u64> = 125..150;
/// A task's lease ends this long before the process that had it goes on, so that another one has the task by then.
const LEASE_ENDS_BEFORE: Duration = Duration::from_secs(8);
/// A handler that takes longer is given up.
const FROZEN_SECONDS: std::ops::Range<u64> = 20..75;

impl Simulation {
    /// Whether requests can be sent to a replica.
    pub(crate) fn takes_requests(&self, replica: usize) -> bool {
        self.replicas[replica].is_some() && !self.gates.lock().is_frozen(replica)
    }

    /// The next change of a check run that GitHub hasn't got yet.
    pub(crate) fn change_on_its_way(&self) -> Option<usize> {
        let (calls, _) = self.gates.lock().open_places();
        calls.into_iter().find(|index| self.is_check_run_change(*index))
    }

    fn is_check_run_change(&self, index: usize) -> bool {
        let gates = self.gates.lock();
        let request = &gates.calls[index].request;
        request.method() == http::Method::PATCH && request.uri().path().contains("/check-runs/")
    }

    /// The process stops that has sent a change of a check run, which GitHub gets minutes later. The label changes
    /// meanwhile. Returns `false` if that doesn't happen.
    pub(crate) async fn stop_during(&mut self, index: usize) -> Result<bool, Broken> {
        if !self.may_freeze() || !self.is_check_run_change(index) || self.was_held_up(index) {
            return Ok(false);
        }
        let path = self.gates.lock().calls[index].request.uri().path().to_owned();
        let id = path.rsplit('/').next().and_then(|id| id.parse().ok());
        let check_runs = self.github.world.all_check_runs(UPSTREAM);
        let changed = check_runs.into_iter().find(|run| Some(run.id) == id);
        let Some(changed) = changed.filter(|run| self.is_chosen(&run.name, STOP_PERCENT)) else {
            return Ok(false);
        };
        self.freezes -= 1;
        let call = self.gates.lock().calls.remove(index);
        let replica = call.replica;
        let at = call.sent_at + Duration::from_secs(self.random.random_range(ON_ITS_WAY_SECONDS));
        self.trace(format!("r{replica} stops, and a change that it has sent is on its way"));
        self.plan(at.max(self.now()), ScheduledEvent::LateCall(call));
        self.crash(replica).await?;
        self.change_label_of(&changed.head_sha);
        // What waits for a replica that starts isn't late.
        self.repaired_at = self.repaired_at.map(|_| self.now());
        Ok(true)
    }

    /// Whether the sender was frozen: it may have written down long before that it sends the change, and the relay counts
    /// from then.
    pub(crate) fn was_held_up(&self, index: usize) -> bool {
        let gates = self.gates.lock();
        let thawed_at = gates.thawed_at[gates.calls[index].replica];
        thawed_at.is_some_and(|at| gates.now.duration_since(at) < HANDLER)
    }

    /// Freezes a process that has decided what a check run shows, and is about to write down that it changes it. The
    /// label changes meanwhile, and then its lease ends. Returns `true` if the process is frozen.
    pub(crate) fn freeze_before_change(&mut self, replica: usize) -> bool {
        if self.gates.lock().is_frozen(replica) {
            return true;
        }
        if !self.may_freeze() || self.gates.lock().was_frozen[replica] {
            return false;
        }
        let Some((head, name)) = self.change_to_write(replica) else { return false };
        if !self.is_chosen(&name, FREEZE_PERCENT) {
            return false;
        }
        self.freezes -= 1;
        let until = self.now() + Duration::from_secs(self.random.random_range(FROZEN_SECONDS));
        self.gates.lock().frozen_until[replica] = Some(until);
        self.trace(format!("r{replica} is frozen before it changes {name} at {}", short(&head)));
        let key = crcr_store::StoreKey::new(&["check_run", &head, &name]);
        if self.memory.task_state(&key) == Some(TaskState::Leased) {
            let task = self.gates.lock().leased.get(key.as_str()).cloned();
            let task = task.map(ScheduledEvent::LeaseEnd);
            task.into_iter().for_each(|event| self.plan(until - LEASE_ENDS_BEFORE, event));
        }
        self.change_label_of(&head);
        true
    }

    /// Whether it happens to this check run, and `percent` of the times if that is a verdict at L3: it depends on the
    /// label.
    fn is_chosen(&mut self, name: &str, percent: u32) -> bool {
        let (name, repo) = spelled_as_usual(name);
        let is_verdict = name == check_run::dispatch_name(repo);
        let depends_on_label = is_verdict && self.upstream.allowlist.level(repo) == 3;
        self.chance(if depends_on_label { percent } else { 3 })
    }

    /// A pull request with a failed check run at L3, which is withdrawn with the label, or any one.
    pub(crate) fn pull_whose_label_matters(&mut self) -> u64 {
        let check_runs = self.github.world.check_runs(UPSTREAM);
        let has_failed = |pull: &PullRequest| {
            check_runs.iter().any(|run| {
                let (_, repo) = spelled_as_usual(&run.name);
                run.head_sha == pull.head_sha
                    && self.upstream.allowlist.level(repo) == 3
                    && run.conclusion.as_deref() != Some("success")
            })
        };
        let pulls = (1..=self.upstream.pulls)
            .filter_map(|number| self.github.world.pull(UPSTREAM, number))
            .filter(|pull| pull.open && has_failed(pull));
        let numbers: Vec<u64> = pulls.map(|pull| pull.number).collect();
        match numbers.len() {
            0 => self.random.random_range(1..=self.upstream.pulls),
            count => numbers[self.random.random_range(0..count)],
        }
    }

    fn change_label_of(&mut self, head: &str) {
        let of_head = |number: &u64| {
            self.github.world.pull(UPSTREAM, *number).is_some_and(|pull| pull.head_sha == head)
        };
        if let Some(pull) = (1..=self.upstream.pulls).find(of_head) {
            self.change_label(pull);
        }
    }

    pub(crate) fn change_label(&mut self, pull: u64) {
        if let Some(webhook) = self.upstream.change_label(&self.github, self.seed, pull) {
            self.plan_webhook(webhook);
        }
    }

    pub(crate) fn thaw(&mut self) {
        let now = self.now();
        let mut gates = self.gates.lock();
        for replica in 0..gates.frozen_until.len() {
            if gates.frozen_until[replica].is_some_and(|until| until <= now) {
                gates.frozen_until[replica] = None;
                gates.was_frozen[replica] = true;
                gates.thawed_at[replica] = Some(now);
                gates.trace.add(format!("r{replica} goes on"));
            }
        }
    }

    /// Two processes are needed, and one of them goes on.
    fn may_freeze(&self) -> bool {
        let gates = self.gates.lock();
        self.freezes > 0
            && self.store_kind != StoreKind::Sqlite
            && self.replicas.iter().all(Option::is_some)
            && gates.frozen_until.iter().all(Option::is_none)
    }

    /// The commit and the name of the check run that a replica is about to create or change, by the next of its batches.
    fn change_to_write(&self, replica: usize) -> Option<(String, String)> {
        let gates = self.gates.lock();
        let batch = &gates.commits[replica].front()?.batch;
        // What was sent is written down with its fact, or the task that follows from it.
        let is_before =
            batch.tasks.is_empty() && batch.facts.is_empty() && batch.records.len() <= 2;
        let goes_on =
            batch.settlement.as_ref().is_none_or(|it| matches!(it.outcome, TaskOutcome::Keep));
        let key = batch.records.last().filter(|_| is_before && goes_on)?;
        let parts: Vec<String> = serde_json::from_str(key.key.as_str()).ok()?;
        match <[String; 3]>::try_from(parts) {
            Ok([kind, head, name]) if ["shown", "unanswered_creation"].contains(&kind.as_str()) => {
                Some((head, name))
            }
            _ => None,
        }
    }
}
