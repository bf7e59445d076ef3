//! What the relay runs to explain failures, and what that costs: never more than a backend's file allows.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::RepoName;
use crcr_domain::probes::{Culprit, ProbeReason, ProbeTag};
use crcr_relay::state_records;
use crcr_store::StateStore as _;
use crcr_store::memory::MemoryStore;
use jiff::{SignedDuration, Timestamp};

use crate::backend_files::BackendFiles;
use crate::lab::BREAKING_JOB;
use crate::ledger::{Broken, PaidProbe, PromiseLedger};
use crate::main_branch::MainBranch;
use crate::names::{UPSTREAM, short};

/// Near midnight it isn't known by which day's budget a probe was paid: clocks differ, and GitHub may answer late.
const MIDNIGHT_MARGIN: SignedDuration = SignedDuration::from_mins(20);
/// The authors of one share have at most this part of a budget.
const SHARES: u64 = 4;
const DAY_SECONDS: i64 = 24 * 3600;

/// The runs of one search at most.
const MAX_RUNS: usize = 16;

/// How the searches of a seed have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CulpritScore {
    /// Named, and true. So is the answer that there is none.
    pub right: usize,
    pub wrong: usize,
    /// Too few runs to name a culprit.
    pub unnamed: usize,
    pub runs: usize,
}

impl CulpritScore {
    pub fn add(&mut self, other: Self) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.unnamed += other.unnamed;
        self.runs += other.runs;
    }
}

impl PromiseLedger {
    /// GitHub has accepted a probe.
    pub(crate) fn add_probe(
        &mut self,
        delivery: &str,
        repo: &'static str,
        tag: &ProbeTag,
        at: Timestamp,
    ) {
        let owner = match tag.reason {
            ProbeReason::MergeBase => self.owner_of(&tag.of),
            ProbeReason::Bisect => None,
        };
        let paid = self.probes.commits.entry(repo).or_default();
        if paid.iter().all(|one| one.what != delivery) {
            paid.push(PaidProbe { what: delivery.to_owned(), at, owner });
        }
    }

    /// GitHub runs failed jobs once more, and nobody has asked for it.
    pub(crate) fn add_rerun(&mut self, run: u64, repo: &'static str, head: &str, at: Timestamp) {
        if self.asked_heads.contains(head) {
            return;
        }
        let (what, owner) = (run.to_string(), self.owner_of(head));
        let paid = self.probes.reruns.entry(repo).or_default();
        if paid.iter().all(|one| one.what != what) {
            paid.push(PaidProbe { what, at, owner });
        }
    }

    /// Whose share a head's failures are explained from; `None` if pull requests of several authors have it.
    fn owner_of(&self, head: &str) -> Option<String> {
        let of_head = self.webhooks.values().filter(|one| one.head == head && one.pull.is_some());
        let owners: BTreeSet<&str> =
            of_head.map(|one| if one.is_stranger { "*" } else { one.author.as_str() }).collect();
        owners.first().filter(|_| owners.len() == 1).map(|owner| (*owner).to_owned())
    }

    pub(crate) fn check_budgets(&self, files: &BackendFiles) -> Result<(), Broken> {
        for (repo, paid) in &self.probes.reruns {
            check_budget(repo, "re-runs", paid, files.budget(repo).0)?;
        }
        for (repo, paid) in &self.probes.commits {
            check_budget(repo, "commits", paid, files.budget(repo).1)?;
        }
        Ok(())
    }
}

fn check_budget(repo: &str, what: &str, paid: &[PaidProbe], per_day: u64) -> Result<(), Broken> {
    let mut days: BTreeMap<(i64, Option<&str>), u64> = BTreeMap::new();
    for one in paid {
        let day = one.at.as_second().div_euclid(DAY_SECONDS);
        let is_clear = [one.at - MIDNIGHT_MARGIN, one.at + MIDNIGHT_MARGIN]
            .iter()
            .all(|at| at.as_second().div_euclid(DAY_SECONDS) == day);
        if is_clear || per_day == 0 {
            *days.entry((day, None)).or_default() += 1;
            if let Some(owner) = &one.owner {
                *days.entry((day, Some(owner))).or_default() += 1;
            }
        }
    }
    for ((_, owner), count) in days {
        let limit = if owner.is_some() { (per_day / SHARES).max(1).min(per_day) } else { per_day };
        if count > limit {
            let of = owner.map(|owner| format!(" for {owner}")).unwrap_or_default();
            let detail = format!("{repo} has {count} {what}{of} on a day, and pays for {limit}");
            return Err(("probe-budget-exceeded", detail));
        }
    }
    Ok(())
}

/// Compares the answers of all searches with what is true, and returns the wrong ones, too. `has_flaked` tells whether
/// a run on the branch ever failed for no reason: without that, no answer may be wrong.
pub(crate) async fn judge(
    memory: &MemoryStore,
    branch: &MainBranch,
    has_flaked: bool,
) -> Result<(CulpritScore, Vec<String>), Broken> {
    let upstream = RepoName::new(UPSTREAM).expect("it is a name");
    let answers = memory.members(&state_records::culprits_key(&upstream), usize::MAX).await;
    let (mut score, mut wrong) = (CulpritScore::default(), vec![]);
    for text in answers.unwrap_or_default() {
        let Ok(answer) = serde_json::from_str::<Culprit>(&text) else {
            return Err(("wrong-culprit", format!("an answer can't be read: {text}")));
        };
        score.runs += answer.runs;
        let may_break = answer.job.as_deref() == Some(BREAKING_JOB);
        let is_right = match &answer.suspect {
            Some(suspect) => may_break && branch.has_broken(&suspect.sha),
            // No backend of the simulation changes.
            None if answer.backend_changed => false,
            None => !may_break || branch.is_broken(&answer.bad_sha) == Some(false),
        };
        match (answer.is_certain, is_right) {
            (false, _) => score.unnamed += 1,
            (true, true) => score.right += 1,
            (true, false) => score.wrong += 1,
        }
        let is_wrong = answer.is_certain && !is_right;
        let (good, bad) = (short(&answer.good_sha), short(&answer.bad_sha));
        let named = answer.suspect.as_ref().map_or("none", |suspect| short(&suspect.sha));
        let sentence = answer.sentence();
        let detail = format!("{} from {good} to {bad} named {named}: {sentence}", answer.repo);
        if (is_wrong && !has_flaked) || answer.runs > MAX_RUNS {
            return Err(("wrong-culprit", detail));
        }
        wrong.extend(is_wrong.then_some(detail));
    }
    Ok((score, wrong))
}
