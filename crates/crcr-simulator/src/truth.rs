//! What is true of an upstream commit and a backend, in the obvious way, from what only the simulated world knows. It
//! shares no code with the relay's decisions. `docs/decisions/verdict.md` says the same in words.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::checks::check_run;
use crcr_domain::probes::LeftOut;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::{Level, RepoName};
use crcr_relay::state_records::{self, PullRecord};
use crcr_standin::State;
use crcr_standin::world::PullRequest;
use crcr_store::memory::MemoryStore;
use jiff::{SignedDuration, Timestamp};

use crate::backend_files::BackendFiles;
use crate::lab::{BackendLab, JobReports, LabDispatch, LabJob, LabRun};
use crate::ledger::{KnownWebhook, PromiseLedger, dispatch};
use crate::levels::AllowlistModel;
use crate::names::{UPSTREAM, backend};

/// A request to GitHub may rest on what was known this long before it: a handler takes at most 90 s.
pub(crate) const HANDLER: SignedDuration = SignedDuration::from_secs(120);
/// What the relay has decided on for so long is known to every handler, whatever its clock says.
const LONG_KNOWN: SignedDuration = SignedDuration::from_mins(20);
/// In this time GitHub may create further runs of a dispatch.
const RUN_WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// So many authors must have met failing infrastructure before a breaker may open.
const BREAKER_AUTHORS: usize = 3;

/// What is true in the simulated world, whether or not the relay knows it.
#[derive(Clone, Copy)]
pub(crate) struct Truth<'a> {
    pub(crate) lab: &'a BackendLab,
    pub(crate) allowlist: &'a AllowlistModel,
    pub(crate) files: &'a BackendFiles,
    /// Pull requests whose label was last set and removed within a second: no webhook says which came last.
    pub(crate) flipped: &'a BTreeMap<u64, Timestamp>,
    pub(crate) webhooks: &'a BTreeMap<String, KnownWebhook>,
    /// Heads for which somebody pressed "Re-run".
    pub(crate) asked_heads: &'a BTreeSet<String>,
    pub(crate) accepted: &'a BTreeMap<(String, String), u32>,
    /// When the relay first acknowledged each webhook.
    pub(crate) acknowledged: &'a BTreeMap<String, Timestamp>,
    pub(crate) answered_at: &'a BTreeMap<(String, &'static str), Timestamp>,
    /// Dispatches that GitHub once refused for good.
    pub(crate) refused: &'a BTreeSet<(String, String)>,
    pub(crate) memory: &'a MemoryStore,
    /// When the replica that knows least last read which demotions are open.
    pub(crate) demotions_read_at: Timestamp,
    /// When the relay sent the request that is judged, by GitHub's clock.
    pub(crate) at: Timestamp,
    /// What was acknowledged before this counts.
    pub(crate) known_until: Timestamp,
}

/// What the check run of a commit and a backend may show.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommitTruth {
    NoEvidence,
    /// Something failed, is open or isn't known.
    Bad(String),
    /// All runs are known and ended well.
    Good,
    /// Nothing bad is known, and the relay needn't know that all is well.
    MayBeGood,
}

/// The runs that count, with their ids.
type NewestRuns<'a> = Vec<(u64, &'a LabRun)>;
/// The newest attempt of each job and leg of a run, by what was acknowledged.
type NewestJobs = BTreeMap<(String, u8), (u32, Option<&'static str>)>;

/// Whether a newer attempt, which has ended, may stand for what a job came to.
fn is_replaceable(run: &LabRun, attempt: u32, end: Option<&str>) -> bool {
    let is_good = matches!(end, Some("success" | "skipped"));
    attempt < run.ended_attempt && !run.is_foreign && !is_good
}

/// The jobs that GitHub lists of a run and that didn't end well.
fn failed_jobs(run: &LabRun) -> impl Iterator<Item = (&LabJob, &(u32, &'static str))> {
    run.listed.iter().filter(|(_, (_, end))| !matches!(*end, "success" | "skipped"))
}

/// Whether several jobs of one name failed, of which the relay knows only that one did.
fn have_legs_failed(run: &LabRun) -> bool {
    let mut names: Vec<_> = failed_jobs(run).map(|(job, _)| job.name).collect();
    let all = names.len();
    names.dedup();
    names.len() < all
}

impl<'a> Truth<'a> {
    pub(crate) fn level(&self, repo: &str) -> u8 {
        self.allowlist.level(repo)
    }

    /// Whether the relay knows by now that the backend is at L4.
    pub(crate) fn is_settled_at_l4(&self, repo: &str) -> bool {
        self.allowlist.settled_level(repo, self.at) == Some(4)
    }

    pub(crate) fn is_flipped(&self, pull: u64) -> bool {
        self.flipped.contains_key(&pull)
    }

    /// The deliveries of a commit that the backend's own file leaves out.
    pub(crate) fn left_out(&self, head: &str, repo: &str) -> Vec<&'a String> {
        let of_head = self.webhooks.iter().filter(|(_, webhook)| webhook.head == head);
        let is_left_out = |id: &str| {
            dispatch(self.memory, id, repo)
                .is_some_and(|one| matches!(one.status, DispatchStatus::LeftOut { .. }))
        };
        of_head.map(|(id, _)| id).filter(|id| is_left_out(id)).collect()
    }

    /// Whether the backend doesn't get a commit only because of the files that it changes.
    pub(crate) fn is_left_out_for_paths(&self, head: &str, repo: &str) -> bool {
        let why = LeftOut::Paths;
        let is_for_paths = |id: &&String| {
            dispatch(self.memory, id, repo)
                .is_some_and(|one| one.status == DispatchStatus::LeftOut { why })
        };
        let left_out = self.left_out(head, repo);
        !left_out.is_empty() && left_out.iter().all(is_for_paths)
    }

    /// What the relay has stored of a commit's dispatches, for people.
    pub(crate) fn why_open(&self, head: &str, repo: &str) -> String {
        let of_head = self.webhooks.iter().filter(|(_, webhook)| webhook.head == head);
        let stored = of_head.filter_map(|(id, _)| Some((id, dispatch(self.memory, id, repo)?)));
        let texts = stored.map(|(id, one)| {
            let reason = one.last_error.as_deref().unwrap_or_default();
            format!("{id} is {:?}, held until {:?}, {reason}", one.status, one.held_until)
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// Whether a dispatch of the commit waits, and has done so for long enough that whoever wrote a check run knew it.
    pub(crate) fn is_held(&self, head: &str, repo: &str) -> bool {
        let known = HANDLER + HANDLER;
        let mut held = self.held(head, repo, self.at - known);
        // Others don't wait for a pull request that was closed, or has another head.
        held.any(|(webhook, one)| self.is_there_for(known, webhook, &one))
    }

    /// The dispatches of webhooks that came before this time and are held back.
    fn held(
        &self,
        head: &str,
        repo: &str,
        before: Timestamp,
    ) -> impl Iterator<Item = (&'a KnownWebhook, Dispatch)> {
        let of_head = self.webhooks.iter().filter(move |(_, webhook)| {
            webhook.head == head && webhook.at < before && !webhook.is_closing
        });
        let memory = self.memory;
        let stored =
            of_head.filter_map(move |(id, webhook)| Some((webhook, dispatch(memory, id, repo)?)));
        stored.filter(|(_, one)| one.status == DispatchStatus::Queued && one.held_until.is_some())
    }

    fn is_sent(&self, delivery: &str, repo: &str) -> bool {
        dispatch(self.memory, delivery, repo).is_some_and(|one| one.sent_at().is_some())
    }

    /// The dispatches of a commit that the relay knows of and that are answered, as of the request.
    fn evidence(&self, head: &str, repo: &str) -> BTreeSet<&'a str> {
        let known = self.known_until;
        let of_head = self.lab.dispatches.iter().filter(|one| one.head == head && one.repo == repo);
        let answered = of_head.filter(|one| {
            let answered = self.answered_at.get(&(one.delivery.clone(), one.repo));
            answered.is_some_and(|at| *at < known) && self.is_sent(&one.delivery, repo)
        });
        answered.map(|one| one.delivery.as_str()).collect()
    }

    pub(crate) fn has_evidence(&self, head: &str, repo: &str) -> bool {
        !self.evidence(head, repo).is_empty()
    }

    /// The runs of each workflow file that no later one stands for. `are_replaced`: whether runs without a report count less
    /// than others of their dispatch. `are_equal`: whether all runs of a dispatch that GitHub got twice count until a later
    /// one has told as much.
    fn newest_runs(
        &self,
        head: &str,
        repo: &str,
        (are_replaced, are_equal): (bool, bool),
    ) -> NewestRuns<'a> {
        let evidence = self.evidence(head, repo);
        let mut runs: NewestRuns<'a> = vec![];
        for (id, run) in &self.lab.runs {
            let is_of_commit = run.head == head && run.repo == repo;
            let is_evidence = is_of_commit && evidence.contains(run.delivery.as_str());
            if is_evidence && !(are_replaced && self.is_replaced(*id, run)) {
                runs.push((*id, run));
            }
        }
        // For one pull request, the run of its newest event counts, whenever that was sent.
        let is_next = |next: (u64, &LabRun), older: (u64, &LabRun)| {
            next.1.file == older.1.file
                && self.pull_of(next.1) == self.pull_of(older.1)
                && !(are_equal
                    && next.1.delivery == older.1.delivery
                    && !self.tells_all_of(next, older))
                && (self.event_order(next.1), next.0) > (self.event_order(older.1), older.0)
        };
        let all = runs.clone();
        runs.retain(|(id, run)| {
            let mut older = all.iter().filter(|(other, _)| other < id);
            !older.any(|older| {
                let later = all.iter().filter(|next| is_next(**next, *older));
                later.into_iter().all(|next| self.says_nothing(*next))
                    && self.is_needless_after((*id, *run), *older)
            })
        });
        let all = runs.clone();
        runs.retain(|(id, run)| !all.iter().any(|next| is_next(*next, (*id, *run))));
        let all = runs.clone();
        runs.retain(|(id, run)| {
            let later = all.iter().filter(|(other, _)| other > id);
            let mut later = later.filter(|(_, other)| other.file == run.file);
            later.all(|other| {
                self.pull_of(other.1) == self.pull_of(run) || !self.stands_for(*other, (*id, *run))
            })
        });
        runs
    }

    /// Whether an older run doesn't count beside a later one of its workflow, which is for another pull request: it is over
    /// and everything that isn't good in it ran again.
    fn stands_for(&self, later: (u64, &LabRun), older: (u64, &LabRun)) -> bool {
        if older.1.ended.is_none() {
            return false;
        }
        let was_cut = older.1.ended.is_some_and(|(end, _)| end == "cancelled");
        let is_cut_short = was_cut && !older.1.is_foreign;
        let is_good = self.not_good(older).next().is_none();
        if (is_cut_short || !is_good) && !self.may_stand_for(later.1, older.1) {
            return false;
        }
        !self.hides_failure(older) && self.has_run_all(later, self.not_good(older))
    }

    /// Whether a run has reported every job that an earlier one of its dispatch did, and has run again what isn't good
    /// there.
    fn tells_all_of(&self, later: (u64, &LabRun), older: (u64, &LabRun)) -> bool {
        let own = self.newest_jobs(later.0, later.1);
        let known = self.newest_jobs(older.0, older.1);
        known.is_empty()
            || (known.keys().all(|(name, _)| own.keys().any(|(other, _)| other == name))
                && self.has_run_all(later, self.not_good(older))
                && !self.hides_failure(older))
    }

    /// Whether a run failed in a job that doesn't report, or whose report got lost.
    fn hides_failure(&self, (id, run): (u64, &LabRun)) -> bool {
        let has_failed = run.ended.is_some_and(|(end, _)| !["success", "cancelled"].contains(&end));
        // An end whose answer was lost may be known, and be that of the failure.
        if !has_failed || run.is_foreign || self.lacks_acknowledged_end(id, run) {
            return false;
        }
        let known = self.newest_jobs(id, run);
        let is_known = |(job, (attempt, _)): (&LabJob, &(u32, &str))| {
            known.iter().any(|((name, leg), (of, end))| {
                let is_it = name.rsplit('/').next() == Some(job.name) && *leg == job.leg;
                is_it && of == attempt && !matches!(end, Some("success" | "skipped"))
            })
        };
        let is_failure = run.ended.is_some_and(|(end, _)| end == "failure");
        self.not_good((id, run)).next().is_none() || (is_failure && !failed_jobs(run).all(is_known))
    }

    /// The jobs of a run that aren't known to be good.
    fn not_good(&self, (id, run): (u64, &LabRun)) -> impl Iterator<Item = String> {
        let is_good = |end: &Option<&str>| matches!(end, Some("success" | "skipped"));
        let jobs = self.newest_jobs(id, run).into_iter();
        jobs.filter(move |(_, (_, end))| !is_good(end)).map(|((name, _), _)| name)
    }

    /// Whether these jobs have run to their ends in a run, and weren't skipped or cancelled there.
    fn has_run_all(
        &self,
        (id, run): (u64, &LabRun),
        mut jobs: impl Iterator<Item = String>,
    ) -> bool {
        let nothing = [None, Some("skipped"), Some("cancelled")];
        let known = self.newest_jobs(id, run);
        jobs.all(|job| {
            known.iter().any(|((name, _), (_, end))| *name == job && !nothing.contains(end))
        })
    }

    /// Orders the events of a pull request that its runs were dispatched for. Two may have come in one millisecond.
    pub(crate) fn event_order<'r>(&self, run: &'r LabRun) -> (i64, &'r str) {
        let dispatch = dispatch(self.memory, &run.delivery, run.repo);
        (dispatch.map_or(0, |dispatch| dispatch.order), &run.delivery)
    }

    pub(crate) fn pull_of(&self, run: &LabRun) -> Option<u64> {
        self.webhooks.get(&run.delivery).and_then(|webhook| webhook.pull)
    }

    /// Whether a run says nothing beside an older one: it was cancelled in its first attempt, is for another pull request,
    /// and what wasn't good in it has run there.
    fn is_needless_after(&self, run: (u64, &LabRun), older: (u64, &LabRun)) -> bool {
        run.1.file == older.1.file
            && self.pull_of(run.1) != self.pull_of(older.1)
            && self.says_nothing(run)
            && self.may_stand_for(older.1, run.1)
            && !self.was_cancelled(older)
            && self.has_run_all(older, self.not_good(run))
    }

    /// Whether a run is for what another one was for: another branch's, or a draft's, may have fewer jobs, or test less.
    /// Nobody waits for a pull request that may have left the commit.
    fn may_stand_for(&self, run: &LabRun, other: &LabRun) -> bool {
        let webhook = |run: &LabRun| self.webhooks.get(&run.delivery);
        let Some((own, of_other)) = webhook(run).zip(webhook(other)) else { return true };
        let is_alike =
            own.base_branch == of_other.base_branch && (of_other.is_draft || !own.is_draft);
        is_alike || self.may_have_left(other)
    }

    /// Whether the pull request of a run may be closed, or have another head.
    fn may_have_left(&self, run: &LabRun) -> bool {
        let webhook = self.webhooks.get(&run.delivery);
        let sent = dispatch(self.memory, &run.delivery, run.repo);
        webhook.zip(sent).is_none_or(|(webhook, sent)| !self.is_still_there(webhook, &sent))
    }

    /// Whether a run was cancelled in its first attempt. Of a build elsewhere each step is retried alone.
    fn says_nothing(&self, run: (u64, &LabRun)) -> bool {
        let ran_once =
            || self.newest_jobs(run.0, run.1).into_values().all(|(attempt, _)| attempt == 1);
        self.was_cancelled(run) && run.1.ended_attempt == 1 && ran_once()
    }

    /// Whether a run is over, and the worst of it is that it was cancelled. Killed jobs may not get to report their ends,
    /// and of a build elsewhere nobody else tells it.
    fn was_cancelled(&self, (id, run): (u64, &LabRun)) -> bool {
        let mut ends: Vec<_> =
            self.newest_jobs(id, run).into_values().map(|(_, end)| end).collect();
        ends.extend(run.ended.filter(|_| !run.is_foreign).map(|(end, _)| Some(end)));
        let was_left = || !self.said_its_end(id, run) && self.may_have_left(run);
        let was_killed = match run.is_foreign {
            true => was_left(),
            false => run.ended.is_some_and(|(end, _)| end == "cancelled"),
        };
        let known = [Some("success"), Some("skipped"), Some("cancelled")];
        run.ended.is_some()
            && (ends.contains(&Some("cancelled")) || (was_killed && ends.contains(&None)))
            && ends.iter().all(|end| known.contains(end) || (was_killed && end.is_none()))
    }

    /// What a run's jobs have reported, as of the request.
    fn newest_jobs(&self, id: u64, run: &LabRun) -> NewestJobs {
        let known = self.known_until;
        let mut jobs = NewestJobs::new();
        for (name, reports) in self.reports_of(&run.head, run.repo) {
            for ((of_run, attempt, leg), (end, at)) in &reports.acknowledged {
                // A forged end stands for a missing one, and one whose answer was lost may be known.
                let is_sent = reports.sent.contains(&(*of_run, *attempt, *leg));
                let is_forged = end.is_none() && (reports.was_forged_end || is_sent);
                // A newer attempt runs again what has failed, and the rest keeps its result.
                let is_old = is_replaceable(run, *attempt, *end);
                if *of_run == id && *at < known && !is_forged && !is_old {
                    jobs.insert((name.to_owned(), *leg), (*attempt, *end));
                }
            }
        }
        // If two legs on GitHub have one name, nothing tells which has ended. Elsewhere each has a job of its own.
        let mut ended = BTreeSet::new();
        for (name, reports) in self.reports_of(&run.head, run.repo) {
            let of_run = reports.acknowledged.iter().filter(|((of_run, ..), _)| *of_run == id);
            for ((_, attempt, _), (end, _)) in of_run {
                if end.is_some() {
                    ended.insert((name.to_owned(), *attempt));
                }
            }
        }
        // Of two parallel steps of one name, the retry of one whose first attempt was never heard of is taken for the
        // other's.
        let mut unheard = BTreeSet::new();
        for (name, reports) in self.reports_of(&run.head, run.repo).filter(|_| run.is_foreign) {
            let is_known = |attempt, leg| reports.acknowledged.contains_key(&(id, attempt, leg));
            for (of_run, attempt, leg) in reports.acknowledged.keys() {
                if *of_run == id && *attempt > 1 && !is_known(attempt - 1, *leg) {
                    unheard.insert((name.to_owned(), *leg));
                }
            }
        }
        jobs.retain(|(name, leg), (attempt, end)| {
            let is_taken_for_retried =
                || unheard.iter().any(|(other, retried)| other == name && retried != leg);
            end.is_some()
                || match run.is_foreign {
                    true => !is_taken_for_retried(),
                    false => !ended.contains(&(name.clone(), *attempt)),
                }
        });
        jobs
    }

    /// Whether an acknowledged report says that a build elsewhere is over.
    fn said_its_end(&self, id: u64, run: &LabRun) -> bool {
        self.reports_of(&run.head, run.repo).any(|(name, reports)| {
            name.ends_with("/end") && reports.acknowledged.keys().any(|(of, ..)| *of == id)
        })
    }

    /// Whether a job that isn't good in an older attempt has reported nothing in the newest one.
    fn lacks_report_of_rerun(&self, id: u64, run: &LabRun) -> bool {
        self.reports_of(&run.head, run.repo).any(|(_, reports)| {
            let attempts = || reports.acknowledged.iter().filter(|((of, ..), _)| *of == id);
            attempts().any(|((_, attempt, _), (end, _))| is_replaceable(run, *attempt, *end))
                && attempts().all(|((_, attempt, _), _)| *attempt < run.ended_attempt)
        })
    }

    /// Whether a job of the run has started, and no acknowledged report says that it ended, but another one may.
    fn lacks_acknowledged_end(&self, id: u64, run: &LabRun) -> bool {
        self.reports_of(&run.head, run.repo).any(|(_, reports)| {
            let of_run = reports.acknowledged.iter().filter(|((of_run, ..), _)| *of_run == id);
            of_run.into_iter().any(|(key, (end, _))| {
                end.is_none() && (reports.was_forged_end || reports.sent.contains(key))
            })
        })
    }

    fn reports_of(
        &self,
        head: &str,
        repo: &str,
    ) -> impl Iterator<Item = (&'a str, &'a JobReports)> {
        let (head, prefix) = (head.to_owned(), format!("crcr/{repo}/"));
        let all = self.lab.jobs.iter();
        all.filter(move |((of, name), _)| *of == head && name.starts_with(&prefix))
            .map(|((_, name), reports)| (name.as_str(), reports))
    }

    /// What the verdict of a commit may be. Whoever wrote it may have known nothing of the last moments, or all of
    /// it, so it's bad only if it was all the time.
    pub(crate) fn of_commit(&self, head: &str, repo: &str) -> CommitTruth {
        let known = self.at - HANDLER;
        let since = |at: Timestamp| (known <= at && at <= self.at).then_some(at);
        let of_repo = self.reports_of(head, repo);
        let mut times: BTreeSet<Timestamp> = of_repo
            .flat_map(|(_, reports)| reports.acknowledged.values())
            .filter_map(|(_, at)| since(*at))
            .collect();
        times.insert(known);
        let mut found = CommitTruth::NoEvidence;
        for at in times {
            // What was acknowledged at this time is known.
            let known_until = if at == known { at } else { at + SignedDuration::from_nanos(1) };
            found = Self { known_until, ..*self }.of_commit_as_known(head, repo);
            if !matches!(found, CommitTruth::Bad(_)) {
                break;
            }
        }
        found
    }

    /// Where only some runs have reported, whatever any of them says may be true.
    fn of_commit_as_known(&self, head: &str, repo: &str) -> CommitTruth {
        let ways = [(true, false), (false, false), (false, true)];
        let runs = ways.map(|way| self.newest_runs(head, repo, way));
        let mut found = runs.iter().map(|runs| self.with_newest(head, repo, runs));
        let first = found.next().unwrap_or(CommitTruth::MayBeGood);
        let is_same =
            |other: CommitTruth| std::mem::discriminant(&other) == std::mem::discriminant(&first);
        if found.all(is_same) { first } else { CommitTruth::MayBeGood }
    }

    fn with_newest(&self, head: &str, repo: &str, runs: &NewestRuns<'_>) -> CommitTruth {
        if runs.is_empty() {
            return CommitTruth::NoEvidence;
        }
        if let Some(why) = self.untested(head, repo, runs) {
            return CommitTruth::Bad(why);
        }
        let (mut ends, mut is_success_known) = (vec![], false);
        let mut is_certain =
            self.is_complete(head, repo) && !self.may_count_others(head, repo, runs);
        for (id, run) in runs {
            if let Some(why) = self.bad_run(*id, run) {
                return CommitTruth::Bad(why);
            }
            let jobs = self.newest_jobs(*id, run);
            is_certain &= !jobs.is_empty() && run.ended_attempt == run.attempt;
            is_certain &= !self.lacks_acknowledged_end(*id, run);
            is_certain &= !self.lacks_report_of_rerun(*id, run);
            is_certain &= !run.is_foreign || self.said_its_end(*id, run);
            // Only some legs of one name may run again on GitHub: then nothing tells that another one had passed.
            is_success_known |= jobs.iter().any(|((name, _), (attempt, end))| {
                let mut of_name = jobs.iter().filter(|((other, _), _)| other == name);
                *end == Some("success")
                    && (run.is_foreign || of_name.all(|(_, (other, _))| other <= attempt))
            });
            for ((name, _), (attempt, end)) in jobs {
                match end {
                    Some("success" | "skipped") => ends.push(end),
                    Some(end) => {
                        let why = format!("run {id} attempt {attempt} reported {end} of {name}");
                        return CommitTruth::Bad(why);
                    }
                    None => {
                        let why = format!("{name} of run {id} has started and not ended");
                        return CommitTruth::Bad(why);
                    }
                }
            }
        }
        if self.level(repo) == 4
            && !ends.is_empty()
            && ends.iter().all(|end| *end == Some("skipped"))
        {
            return CommitTruth::Bad("every job was skipped".to_owned());
        }
        if is_certain && is_success_known { CommitTruth::Good } else { CommitTruth::MayBeGood }
    }

    /// Whether a run that another pull request's stands for may count all the same, because less is known of it: it has
    /// no report and may be taken for another one, or the report of an end didn't come in, such as that of a build.
    fn may_count_others(&self, head: &str, repo: &str, newest: &NewestRuns<'_>) -> bool {
        let evidence = self.evidence(head, repo);
        let of_commit = self.lab.runs.iter().filter(|(_, run)| {
            run.head == head && run.repo == repo && evidence.contains(run.delivery.as_str())
        });
        let mut left = of_commit.filter(|(id, run)| {
            let is_same = |(other, newer): &(u64, &LabRun)| {
                other == *id || newer.file == run.file && self.pull_of(newer) == self.pull_of(run)
            };
            !newest.iter().any(is_same)
        });
        left.any(|(id, run)| {
            let is_silent = self.lab.heard_at.get(id).is_none_or(|at| *at >= self.known_until);
            let may_run = run.is_foreign && !self.said_its_end(*id, run);
            let are_ends_known = !self.lacks_acknowledged_end(*id, run)
                && !self.lacks_report_of_rerun(*id, run)
                && !have_legs_failed(run);
            is_silent || may_run || !are_ends_known
        })
    }

    /// Why what is known of a commit doesn't stand for somebody who had it dispatched and got no answer.
    fn untested(&self, head: &str, repo: &str, runs: &NewestRuns<'_>) -> Option<String> {
        // A person may have sent what was left out until then.
        if self.asked_heads.contains(head) {
            return None;
        }
        let of_head = self.webhooks.iter().filter(|(_, one)| one.head == head && !one.is_closing);
        let stored = of_head.filter_map(|(id, one)| Some((one, dispatch(self.memory, id, repo)?)));
        let mut stored: Vec<(&KnownWebhook, Dispatch)> =
            stored.filter(|(_, one)| one.level != Level::L1).collect();
        stored.sort_by(|(_, a), (_, b)| (a.order, &a.delivery).cmp(&(b.order, &b.delivery)));
        let answered = || stored.iter().filter(|(_, one)| one.is_answered);
        let is_of_draft = |run: &LabRun| self.webhooks[&run.delivery].is_draft;
        let only_drafts = runs.iter().all(|(_, run)| is_of_draft(run));
        stored.iter().find_map(|(webhook, asked)| {
            use DispatchStatus::{Dead, Queued, RepositoryChanged, Sent, Unreachable};
            let is_sent = matches!(asked.status, Sent { .. });
            let is_asked =
                is_sent || matches!(asked.status, Queued | Dead | Unreachable | RepositoryChanged);
            let of_pull = || answered().filter(|(other, _)| other.pull == webhook.pull);
            let is_answered = of_pull().any(|(_, one)| one.order >= asked.order);
            if !is_asked
                || is_answered
                || asked.is_asked_for
                || !self.is_still_there(webhook, asked)
            {
                return None;
            }
            // Anybody can open a pull request at another's commit.
            let takes_back =
                !webhook.is_stranger || answered().all(|(other, _)| other.pull == webhook.pull);
            let waits = asked.status == Queued || (is_sent && !asked.is_overdue);
            let is_first = of_pull().next().is_none();
            let is_elsewhere =
                !is_first && of_pull().all(|(one, _)| one.base_branch != webhook.base_branch);
            let why = if only_drafts && !webhook.is_draft {
                "only drafts have passed"
            } else if takes_back && (webhook.repeats_head() || is_elsewhere) {
                "it is ready for review, or goes to another branch, and nobody has said more"
            } else if takes_back && waits && !is_first {
                "its pull request was dispatched again"
            } else {
                return None;
            };
            Some(format!("{} is unanswered: {why}", asked.delivery))
        })
    }

    /// Whether a pull request that is ready for review was dispatched as a draft only, like everything else that has an
    /// answer at its commit.
    pub(crate) fn was_asked_as_draft_only(&self, pull: &PullRequest, repo: &str) -> bool {
        let is_own = |one: &KnownWebhook| {
            one.pull == Some(pull.number) && one.head == pull.head_sha && !one.is_closing
        };
        let own = self.webhooks.iter().filter(|(_, one)| is_own(one));
        let shows_results =
            |id: &str| dispatch(self.memory, id, repo).is_some_and(|one| one.level != Level::L1);
        let mut asked = own.filter(|(id, _)| shows_results(id)).peekable();
        let evidence = self.evidence(&pull.head_sha, repo);
        !pull.draft
            && asked.peek().is_some()
            && asked.all(|(_, one)| one.is_draft)
            && evidence.iter().all(|id| self.webhooks.get(*id).is_some_and(|one| one.is_draft))
    }

    /// Whether a pull request has been open at the head of a dispatch for long.
    fn is_still_there(&self, webhook: &KnownWebhook, asked: &Dispatch) -> bool {
        self.is_there_for(LONG_KNOWN, webhook, asked)
    }

    fn is_there_for(&self, time: SignedDuration, webhook: &KnownWebhook, asked: &Dispatch) -> bool {
        let mut order = asked.order;
        if let Some(number) = webhook.pull {
            let upstream = RepoName::new(UPSTREAM).expect("it is a name");
            let key = state_records::pull_request_key(&upstream, number);
            let record = self.memory.record(&key);
            let pull = record.and_then(|one| serde_json::from_slice::<PullRecord>(&one.value).ok());
            match pull.filter(|pull| !pull.is_closed && pull.head_sha == webhook.head) {
                Some(pull) => order = pull.order,
                None => return false,
            }
        }
        let known_since = Timestamp::from_millisecond(order).unwrap_or(self.at);
        known_since + time < self.at
    }

    /// Whether another run may stand for this one: GitHub accepted their dispatch more often than the relay knows. If it
    /// sees both of them, it takes one that has reported for the workflow's only run, until this one reports.
    fn is_replaced(&self, id: u64, run: &LabRun) -> bool {
        let has_reported =
            |of: u64| self.lab.heard_at.get(&of).is_some_and(|at| *at < self.known_until);
        let is_equal = |other: &LabRun| {
            (other.repo, &other.delivery, other.file) == (run.repo, &run.delivery, run.file)
        };
        let mut others = self.lab.runs.iter().filter(|(of, other)| **of != id && is_equal(other));
        !has_reported(id) && others.any(|(of, _)| has_reported(*of))
    }

    /// Why a run isn't a good one.
    fn bad_run(&self, id: u64, run: &LabRun) -> Option<String> {
        let known = self.at - HANDLER;
        match run.ended {
            // How a build elsewhere ended shows only in what its jobs have reported.
            Some(_) if run.is_foreign => None,
            None if run.created_at.is_none() => Some(format!("run {id} isn't created yet")),
            None => Some(format!("run {id} hasn't ended")),
            Some(("success", _)) => None,
            // A newer attempt that GitHub has only just closed may not be known.
            Some((_, at)) if run.ended_attempt > 1 && at >= known => None,
            Some((end, _)) => Some(format!("run {id} ended as {end}")),
        }
    }

    /// Whether every dispatch of the commit was accepted once, is known and answered, and made while the backend showed
    /// results, no other run can be taken for one of theirs, and GitHub lists all of their runs.
    fn is_complete(&self, head: &str, repo: &str) -> bool {
        let evidence = self.evidence(head, repo);
        let of_head: Vec<&LabDispatch> =
            self.lab.dispatches.iter().filter(|one| one.head == head && one.repo == repo).collect();
        let is_answered = |one: &&LabDispatch| {
            let count = self.accepted.get(&(one.delivery.clone(), repo.to_owned()));
            evidence.contains(one.delivery.as_str()) && count == Some(&1)
        };
        let is_closed = |one: &&&LabDispatch| {
            self.webhooks.get(&one.delivery).is_some_and(|webhook| webhook.is_closing)
        };
        let lowest = self.allowlist.entry(repo).map_or(0, |entry| entry.lowest);
        let mut runs = self.lab.runs.values().filter(|run| run.head == head && run.repo == repo);
        self.held(head, repo, Timestamp::MAX).next().is_none()
            && lowest >= 2
            && !self.has_run_too_many(repo)
            && !runs.any(|run| run.created_at.is_some_and(|at| self.lab.may_list_be_cut(repo, at)))
            && of_head.iter().filter(|one| !is_closed(one)).all(is_answered)
    }

    /// Whether GitHub accepted a dispatch to the backend more often than the relay knows, and nobody has said whose one of
    /// its runs is: it may be any dispatch's of its time.
    fn has_run_too_many(&self, repo: &str) -> bool {
        let is_silent =
            |id: &u64| self.lab.heard_at.get(id).is_none_or(|at| *at >= self.known_until);
        let mut runs = self.lab.runs.iter();
        runs.any(|(id, run)| {
            let accepted = self.accepted.get(&(run.delivery.clone(), repo.to_owned()));
            run.repo == repo && is_silent(id) && accepted.is_some_and(|count| *count > 1)
        })
    }

    /// Since when nothing of a commit is open, neither a dispatch nor a run nor a job; `None` if something is, or if the
    /// relay needn't know that nothing is.
    pub(crate) fn over_since(&self, head: &str, repo: &str) -> Option<Timestamp> {
        if !self.is_complete(head, repo) {
            return None;
        }
        let evidence = self.evidence(head, repo);
        let runs = self.lab.runs.iter().filter(|(_, run)| {
            run.head == head && run.repo == repo && evidence.contains(run.delivery.as_str())
        });
        let mut since = None;
        for (id, run) in runs {
            let (_, ended_at) = run.ended.filter(|_| run.ended_attempt == run.attempt)?;
            since = since.max(Some(ended_at.max(run.created_at? + RUN_WINDOW)));
            let said_its_end = !run.is_foreign || self.said_its_end(*id, run);
            let mut has_reported = false;
            for (_, reports) in self.reports_of(head, repo) {
                let of_run = reports.acknowledged.iter().filter(|((of_run, ..), _)| of_run == id);
                for (_, (end, at)) in of_run {
                    has_reported = true;
                    (*end)?;
                    since = since.max(Some(*at));
                }
            }
            // A run without a report may be another dispatch's, so open ones of those are waited for.
            if !said_its_end || !has_reported {
                return None;
            }
        }
        // A webhook that comes when all is over has it looked at once more.
        let of_head = self.webhooks.iter().filter(|(_, webhook)| webhook.head == head);
        let asked_at = of_head.filter_map(|(id, _)| self.acknowledged.get(id).copied()).max();
        since.map(|at: Timestamp| asked_at.map_or(at, |asked| asked.max(at)))
    }

    /// The authors whose dispatches the infrastructure of a backend has failed.
    pub(crate) fn failed_authors(&self, repo: &str) -> BTreeSet<&'a str> {
        let of_repo = self.webhooks.iter().filter(|(_, webhook)| webhook.targets.contains(&repo));
        let failed = of_repo.filter(|(delivery, _)| self.infrastructure_failed(delivery, repo));
        let author = |webhook: &'a KnownWebhook| match webhook.is_stranger {
            // Those who haven't contributed to upstream before count as one.
            true => "*",
            false => webhook.author.as_str(),
        };
        failed.map(|(_, webhook)| author(webhook)).collect()
    }

    pub(crate) fn may_be_withheld(&self, repo: &str) -> bool {
        self.failed_authors(repo).len() >= BREAKER_AUTHORS
    }

    fn infrastructure_failed(&self, delivery: &str, repo: &str) -> bool {
        let of_delivery = |one: &&LabDispatch| one.delivery == *delivery && one.repo == repo;
        if self.refused.contains(&(delivery.to_owned(), repo.to_owned())) {
            return true;
        }
        let Some(accepted) = self.lab.dispatches.iter().find(of_delivery) else { return false };
        let runs =
            self.lab.runs.iter().filter(|(_, one)| one.delivery == *delivery && one.repo == repo);
        let mut runs = runs.peekable();
        let has_failed = |(id, run): (&u64, &LabRun)| {
            let mut jobs = self.newest_jobs(*id, run).into_values();
            run.setup_fails || run.is_foreign || jobs.any(|(_, end)| end.is_none())
        };
        accepted.is_ignored || (runs.peek().is_some() && runs.any(has_failed))
    }
}

/// The open pull requests, each with its number.
pub(crate) fn open_pulls(github: &State, ledger: &PromiseLedger) -> Vec<PullRequest> {
    let numbers: BTreeSet<u64> =
        ledger.webhooks.values().filter_map(|webhook| webhook.pull).collect();
    let known = numbers.into_iter().filter_map(|number| github.world.pull(UPSTREAM, number));
    known.filter(|pull| pull.open).collect()
}

/// The name of a check run with its repository in lower case, and that repository.
pub(crate) fn spelled_as_usual(name: &str) -> (String, &'static str) {
    let repo = check_run::repo_of(name).unwrap_or_default();
    let usual = backend(repo).unwrap_or_default();
    (name.replacen(repo, usual, 1), usual)
}
