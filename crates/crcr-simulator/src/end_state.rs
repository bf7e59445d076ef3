//! What has to be so when everything works again and nothing is left to do.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::checks::check_run;
use crcr_domain::probes::LeftOut;
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_standin::State;
use crcr_standin::world::{CheckRun, PullRequest};

use crate::lab::JobReports;
use crate::ledger::{Broken, KnownWebhook, PromiseLedger, dispatch};
use crate::names::{UPSTREAM, short};
use crate::truth::{CommitTruth, Truth, open_pulls, spelled_as_usual};
use crate::upstream::LABEL;

/// Checks everything; returns how many things were compared with what is true.
pub(crate) fn check(
    ledger: &PromiseLedger,
    truth: &Truth<'_>,
    github: &State,
) -> Result<usize, Broken> {
    if let Some(lost) = ledger.webhooks.keys().find(|id| !ledger.acknowledged.contains_key(*id)) {
        return Err(("webhook-lost", format!("{lost} was never acknowledged")));
    }
    if let Some((delivery, targets)) = ledger.open.first_key_value() {
        let detail = format!("{delivery} was acknowledged and never got to {targets:?}");
        return Err(("acknowledged-delivery-lost", detail));
    }
    let runs = github.world.all_check_runs(UPSTREAM);
    if let Some(open) = runs.iter().find(|run| run.status != "completed") {
        let detail = format!("{} at {} is {}", open.name, short(&open.head_sha), open.status);
        return Err(("check-run-never-ends", detail));
    }
    let mut compared = check_statuses(ledger, truth)?;
    let pulls = open_pulls(github, ledger);
    for pull in &pulls {
        for repo in truth.allowlist.targets(1) {
            compared += check_head(truth, github, &runs, &pulls, &pull.head_sha, repo)?;
        }
    }
    let groups = ledger.webhooks.values().filter(|one| one.has_check_runs && one.pull.is_none());
    for group in groups {
        for repo in &group.targets {
            if truth.allowlist.entry(repo).is_some_and(|entry| entry.since.is_none()) {
                compared += check_head(truth, github, &runs, &pulls, &group.head, repo)?;
            }
        }
    }
    for ((head, name), reports) in &truth.lab.jobs {
        let (_, repo) = spelled_as_usual(name);
        let is_at_l4 = truth.allowlist.entry(repo).is_some_and(|one| one.lowest == 4);
        let of_head = ledger.webhooks.values().any(|one| one.head == *head && one.has_check_runs);
        if is_at_l4 && of_head {
            check_job(&runs, (head, name), reports, truth)?;
        }
    }
    if let Some((repo, _)) = ledger.nightlies.iter().find(|(_, is_taken)| !**is_taken) {
        return Err(("model-differs", format!("the nightly run of {repo} was never taken")));
    }
    Ok(compared + ledger.nightlies.len())
}

/// Every delivery got to every backend, or was replaced by a newer one of its pull request that is for the same
/// backend. The current head of each open pull request got to all.
fn check_statuses(ledger: &PromiseLedger, truth: &Truth<'_>) -> Result<usize, Broken> {
    let mut compared = 0;
    for (delivery, webhook) in &ledger.webhooks {
        for repo in &webhook.targets {
            if truth.allowlist.entry(repo).is_some_and(|entry| entry.since.is_some()) {
                continue;
            }
            let found = dispatch(truth.memory, delivery, repo);
            let status = found.map(|dispatch| dispatch.status);
            let is_right = match &status {
                Some(DispatchStatus::Superseded { .. }) => {
                    webhook.pull.is_some()
                        && ledger.webhooks.iter().any(|(id, other)| {
                            other.pull == webhook.pull
                                && dispatch(truth.memory, id, repo).is_some()
                                && other.at.as_second() >= webhook.at.as_second()
                                && !std::ptr::eq(other, webhook)
                        })
                }
                Some(DispatchStatus::Withheld) => truth.may_be_withheld(repo),
                Some(DispatchStatus::Sent { .. }) => true,
                Some(DispatchStatus::LeftOut { why }) => {
                    let same = DispatchStatus::LeftOut { why: LeftOut::SameHead };
                    let is_other = |id: &String, other: &KnownWebhook| {
                        let found = dispatch(truth.memory, id, repo);
                        id != delivery
                            && other.head == webhook.head
                            && found.is_some_and(|found| found.status != same)
                    };
                    truth.files.may_leave_out(repo, *why, webhook, truth.level(repo))
                        && (*why != LeftOut::SameHead
                            || ledger.webhooks.iter().any(|(id, other)| is_other(id, other)))
                }
                None => ledger.is_ready_otherwise(truth.memory, delivery, repo),
                _ => false,
            };
            if matches!(status, Some(DispatchStatus::Withheld)) && !is_right {
                let authors = truth.failed_authors(repo);
                let detail = format!("{delivery} to {repo}: infrastructure failed {authors:?}");
                return Err(("breaker-opened-without-cause", detail));
            }
            if !is_right {
                return Err(("model-differs", format!("{delivery} to {repo}: {status:?}")));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

/// The check runs of a head that may be merged are what a fresh evaluation would give.
fn check_head(
    truth: &Truth<'_>,
    github: &State,
    runs: &[CheckRun],
    pulls: &[PullRequest],
    head: &str,
    repo: &'static str,
) -> Result<usize, Broken> {
    let verdict = check_run::dispatch_name(repo);
    let run = newest(runs, head, &verdict);
    let shown = run.and_then(|run| run.conclusion.as_deref());
    let level = truth.level(repo);
    let broken = |code, why: &str| {
        let title = run.map_or("", |run| &run.title);
        let shown = shown.unwrap_or("nothing");
        Err((code, format!("{repo} (L{level}) at {}: shows {shown} ({title}), {why}", short(head))))
    };
    let is_labelled = pulls.iter().any(|pull| pull.head_sha == head && pull.labels.contains(LABEL));
    let accepted: Vec<_> = truth
        .lab
        .dispatches
        .iter()
        .filter(|one| one.head == head && one.repo == repo)
        .filter(|one| truth.webhooks.get(&one.delivery).is_some_and(|webhook| !webhook.is_closing))
        .collect();
    let is_unchanged = truth.allowlist.entry(repo).is_some_and(|entry| entry.since.is_none());
    let left_out = truth.left_out(head, repo);
    let is_dispatched = !accepted.is_empty() || !left_out.is_empty();
    if !is_dispatched && is_unchanged && !truth.may_be_withheld(repo) {
        return broken("head-never-dispatched", "and it never got to the backend");
    }
    let is_rebased = pulls.iter().any(|pull| pull.head_sha == head && pull.base_ref != "main");
    if is_rebased && accepted.is_empty() && is_unchanged && truth.is_left_out_for_paths(head, repo)
    {
        return broken("head-never-dispatched", "although it changes code against its base");
    }
    if level == 3 && pulls.iter().any(|pull| pull.head_sha == head && truth.is_flipped(pull.number))
    {
        return Ok(0);
    }
    if level == 3 && !is_labelled && had_labelled_pull(truth, github, head) {
        return Ok(0);
    }
    let is_wanted = level == 4 || (level == 3 && is_labelled);
    if !is_wanted {
        return match shown {
            // What was good stays: it blocks nobody.
            None | Some("skipped" | "neutral" | "success") => Ok(1),
            _ if level == 3 => broken("stale-check-run", "without the label"),
            _ => broken("stale-check-run", "and the level has no check runs"),
        };
    }
    let has_check_runs = accepted
        .iter()
        .map(|one| &one.delivery)
        .chain(left_out)
        .any(|id| truth.webhooks.get(id).is_some_and(|webhook| webhook.has_check_runs));
    let had_results = truth.allowlist.entry(repo).is_some_and(|entry| entry.lowest >= 2);
    if level == 3 && shown.is_none() && truth.allowlist.was_demoted(repo) {
        return Ok(0);
    }
    if has_check_runs && had_results && shown.is_none() {
        return broken("check-run-missing", "although it is wanted");
    }
    let mut of_head = pulls.iter().filter(|pull| pull.head_sha == head);
    let mut is_untested = || of_head.any(|pull| truth.was_asked_as_draft_only(pull, repo));
    if level == 4 && shown == Some("success") && is_untested() {
        return broken("wrong-green", "and a pull request that is ready ran as a draft only");
    }
    let is_good = matches!(shown, Some("success" | "neutral" | "skipped"));
    match truth.of_commit(head, repo) {
        CommitTruth::Bad(why) if is_good && !truth.may_be_withheld(repo) => {
            broken("wrong-green", &format!("and {why}"))
        }
        CommitTruth::Good if has_check_runs && shown != Some("success") => {
            broken("good-not-shown", "and every run is known to be good")
        }
        CommitTruth::NoEvidence if shown == Some("success") => {
            broken("wrong-green", "and nobody has reported anything")
        }
        _ => Ok(1),
    }
}

/// The check run that GitHub shows of a name: it counts no older one.
fn newest<'a>(runs: &'a [CheckRun], head: &str, name: &str) -> Option<&'a CheckRun> {
    let of_name =
        runs.iter().filter(|run| run.head_sha == head && spelled_as_usual(&run.name).0 == name);
    of_name.max_by_key(|run| run.id)
}

/// Whether a pull request with the label has or had the commit, or a merge group, which needs no label: they count, too.
fn had_labelled_pull(truth: &Truth<'_>, github: &State, head: &str) -> bool {
    let is_labelled = |number| {
        let pull = github.world.pull(UPSTREAM, number);
        pull.is_some_and(|pull| pull.labels.contains(LABEL))
    };
    let mut of_head = truth.webhooks.values().filter(|webhook| webhook.head == head);
    of_head.any(|webhook| webhook.event == "merge_group" || webhook.pull.is_some_and(is_labelled))
}

/// Whether the relay knows that GitHub accepted the dispatch of a run. It doesn't if the dispatch was superseded meanwhile,
/// or if the branch got another name before the dispatch was sent again: such a run's reports stay without proof.
fn is_known_as_sent(truth: &Truth<'_>, run: u64) -> bool {
    let run = &truth.lab.runs[&run];
    dispatch(truth.memory, &run.delivery, run.repo).is_some_and(|dispatch| {
        let is_of_branch = dispatch.default_branch.as_ref().is_none_or(|it| *it == run.branch)
            || dispatch.former_branches.contains(&run.branch);
        dispatch.sent_at().is_some() && (run.is_foreign || is_of_branch)
    })
}

/// Whether an attempt left the job out, or cancelled it without a failure. Of legs of one name on GitHub the worst is known.
fn says_nothing(reports: &JobReports, run: u64, attempt: u32) -> bool {
    let of_name = reports.acknowledged.iter();
    let of_name = of_name.filter(|((of, at, _), _)| (*of, *at) == (run, attempt));
    let ends: BTreeSet<_> = of_name.map(|(_, (end, _))| *end).collect();
    ends == BTreeSet::from([Some("skipped")])
        || (ends.contains(&Some("cancelled"))
            && ends.iter().all(|end| matches!(end, Some("success" | "skipped" | "cancelled"))))
}

/// The acknowledged ends of the attempts that count, `None` for one that only started, and whether they ran elsewhere
/// than on GitHub.
fn counted_ends(reports: &JobReports, truth: &Truth<'_>) -> (Vec<Option<&'static str>>, bool) {
    // What another pull request's run leaves out or cancels says nothing of what ran before.
    let is_needless = |run: u64, attempt: u32| {
        let this = &truth.lab.runs[&run];
        says_nothing(reports, run, attempt)
            && reports.acknowledged.keys().any(|(older, before, _)| {
                let other = &truth.lab.runs[older];
                is_known_as_sent(truth, *older)
                    && other.file == this.file
                    && truth.pull_of(other) != truth.pull_of(this)
                    && *older < run
                    && !says_nothing(reports, *older, *before)
            })
    };
    let sent = || {
        let sent = reports.acknowledged.iter();
        let sent = sent.filter(|((run, ..), _)| is_known_as_sent(truth, *run));
        sent.filter(|((run, attempt, _), _)| !is_needless(*run, *attempt))
    };
    // The newest run of each workflow file counts (for a pull request, the run of its newest event), in its newest
    // attempt. Elsewhere each step has attempts of its own.
    let mut of_pulls = BTreeMap::new();
    for ((run, ..), _) in sent() {
        let this = &truth.lab.runs[run];
        let order = (truth.event_order(this), *run);
        let known = of_pulls.entry((this.file, truth.pull_of(this))).or_insert(order);
        *known = (*known).max(order);
    }
    let mut newest_runs = BTreeMap::new();
    for ((file, _), (_, run)) in of_pulls {
        let known = newest_runs.entry(file).or_insert(run);
        *known = run.max(*known);
    }
    let step = |run: &u64, leg: u8| (*run, if truth.lab.runs[run].is_foreign { leg } else { 0 });
    let mut newest_attempts = BTreeMap::new();
    for ((run, attempt, leg), _) in sent() {
        let known = newest_attempts.entry(step(run, *leg)).or_insert(*attempt);
        *known = (*known).max(*attempt);
    }
    let counts = |run: &u64, attempt: u32, leg: u8| {
        newest_runs.values().any(|newest| newest == run)
            && newest_attempts[&step(run, leg)] == attempt
    };
    let ends = sent()
        .filter(|((run, attempt, leg), _)| counts(run, *attempt, *leg))
        .map(|(_, (end, _))| *end)
        .collect();
    (ends, newest_runs.values().any(|run| truth.lab.runs[run].is_foreign))
}

/// A job's check run shows the newest attempts that the relay has acknowledged.
fn check_job(
    runs: &[CheckRun],
    (head, name): (&str, &str),
    reports: &JobReports,
    truth: &Truth<'_>,
) -> Result<(), Broken> {
    let pulls: BTreeSet<_> =
        reports.acknowledged.keys().map(|(run, ..)| truth.pull_of(&truth.lab.runs[run])).collect();
    if pulls.len() > 1 && reports.acknowledged.values().any(|(end, _)| end.is_none()) {
        // It may be lost, or have ended with an answer that was.
        return Ok(());
    }
    let (ends, is_foreign) = counted_ends(reports, truth);
    // If two legs have one name, nothing tells which of them has ended.
    let has_open_leg = ends.len() > 1 && ends.contains(&None) && ends.iter().any(Option::is_some);
    if ends.is_empty() || has_open_leg {
        return Ok(());
    }
    let shown = newest(runs, head, name).and_then(|run| run.conclusion.as_deref());
    let is_good = ends.contains(&Some("success"))
        && ends.iter().all(|end| matches!(end, Some("success" | "skipped")));
    let may_have_ended = ends.contains(&None) && !reports.sent.is_empty();
    let is_right = match shown {
        Some(shown) if may_have_ended && reports.conclusions.contains(shown) => true,
        Some("success") => is_good,
        Some("neutral") => !is_good && truth.may_be_withheld(spelled_as_usual(name).1),
        Some("cancelled") if reports.was_forged_end => true,
        Some("skipped") => ends.contains(&Some("skipped")),
        // Which of the steps of a name that are without success was retried isn't known: the worst is shown, which may be one
        // that never ended.
        Some("timed_out") => {
            let was_lost = reports.acknowledged.values().any(|(end, _)| end.is_none());
            ends.contains(&None) || (is_foreign && !is_good && was_lost)
        }
        Some(shown) if is_foreign && !is_good && ends.iter().all(Option::is_some) => {
            reports.conclusions.contains(shown)
        }
        Some(shown) => ends.contains(&Some(shown)),
        None => false,
    };
    if is_right {
        return Ok(());
    }
    let detail = format!("{name} at {}: shows {shown:?}, and acknowledged {ends:?}", short(head));
    Err(("acknowledged-report-lost", detail))
}
