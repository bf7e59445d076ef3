//! The dispatches of one upstream commit to one backend, and the jobs that answered them. Every decision
//! about the backend's check runs is computed from these.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::checks::downstream_run::RunState;
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::checks::proof::{MissingProof, ProofStatus, ReportOrigin, ReportProvenance};
use crcr_domain::checks::verdict::{
    self, HeadDispatch, HeadJob, HeadState, HeadVerdict, StepCounts, VerdictPolicy,
};
use crcr_domain::probes::LeftOut;
use crcr_domain::protocol::callback::JobId;
use crcr_domain::protocol::dispatch::{CheckRunVisibility, CurrentEntry, Dispatch, DispatchStatus};
use crcr_domain::protocol::event::PullRequestAction;
use crcr_domain::results::facts::AttemptFact;
use crcr_domain::results::{JobOutcome, jobs_of_record};
use crcr_domain::{AllowlistEntry, CheckRunPolicy, Level, RepoName};
use crcr_store::{SetInsert, StateStore, StoreError, WriteBatch, read_records};
use jiff::Timestamp;

use crate::facts::attempt_fact;
use crate::limits;
use crate::queue::task_kind::{CheckedJob, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, JobRecord, OTHER_STEPS, PullRecord};

pub(crate) struct Head {
    /// The repository as the allowlist spells it now, or as it did for the newest dispatch.
    pub(crate) repo: RepoName,
    /// In the order in which GitHub's events were accepted, with the jobs that answered each of them.
    dispatches: Vec<(Dispatch, Vec<JobRecord>)>,
    /// Whether the commit has check runs of this backend.
    pub(crate) check_runs: CheckRunVisibility,
    /// The pull request that asks for them.
    pub(crate) pull_request: Option<u64>,
    /// The backend's level now, or that of the newest dispatch if it was removed.
    pub(crate) level: Level,
    /// The pull requests that it was dispatched for, as they are now.
    pulls: BTreeMap<u64, PullRecord>,
}

/// A job that is shown, with its dispatch.
pub(crate) struct HeadJobRecord<'a> {
    pub(crate) dispatch: &'a Dispatch,
    pub(crate) job: &'a JobRecord,
    /// Whether an earlier attempt in the same run failed.
    pub(crate) failed_before: bool,
}

impl Head {
    /// Reads everything about a commit; `None` if it was never dispatched to the backend. `known`: a delivery that is
    /// evidence although it may not be in the index any more.
    pub(crate) async fn read(
        relay: &Relay,
        repo: &RepoName,
        head_sha: &str,
        known: Option<&str>,
    ) -> Result<Option<Self>, TaskError> {
        let store = relay.store.as_ref();
        let mut deliveries = deliveries_of(store, head_sha, repo).await?;
        deliveries.extend(known.filter(|id| !id.is_empty()).map(str::to_owned));
        let keys = deliveries.iter().map(|id| state_records::dispatch_key(id, repo)).collect();
        let all = read_records::<Dispatch>(store, keys).await?;
        let mut dispatches = vec![];
        for dispatch in all.into_iter().filter_map(|read| read.value) {
            // Nothing is expected of the others.
            let is_evidence = dispatch.expects_report() && dispatch.probe.is_none();
            if is_evidence && dispatch.head_sha == head_sha {
                let jobs = jobs(relay, &dispatch.delivery, &dispatch.repo).await?;
                dispatches.push((dispatch, jobs));
            }
        }
        dispatches.sort_by(|(a, _), (b, _)| (a.order, &a.delivery).cmp(&(b.order, &b.delivery)));
        let Some((newest, _)) = dispatches.last() else { return Ok(None) };
        let allowlist = super::allowlist(relay)?;
        let entry = allowlist.get(repo);
        let pulls = pulls(relay, dispatches.iter().map(|(dispatch, _)| dispatch)).await?;
        let prefix = &relay.config.event_filter.label_prefix;
        let shown = dispatches.iter().rev().map(|(dispatch, _)| {
            let pull = dispatch.pull_request.and_then(|number| pulls.get(&number));
            let labels = pull.map_or(&dispatch.labels, |pull| &pull.labels);
            (dispatch.check_runs(current_entry(entry, dispatch), labels, prefix), dispatch)
        });
        // Links and oncalls go to one that still has the commit, and not to what anybody may have opened there.
        let (check_runs, pull_request) = shown
            .min_by_key(|(visibility, dispatch)| {
                let is_left = has_left(&pulls, dispatch);
                (visibility_rank(*visibility), is_left, !is_trusted(dispatch))
            })
            .map_or((CheckRunVisibility::NoneForEvent, None), |(visibility, dispatch)| {
                (visibility, dispatch.pull_request)
            });
        Ok(Some(Self {
            repo: entry.map_or(&newest.repo, |entry| &entry.repo).clone(),
            level: entry.map_or(newest.level, |entry| entry.level),
            dispatches,
            check_runs,
            pull_request,
            pulls,
        }))
    }

    pub(crate) fn is_shown(&self) -> bool {
        self.check_runs == CheckRunVisibility::Shown
    }

    /// The dispatches of the head that a job has reported for.
    pub(crate) fn answered(&self) -> impl Iterator<Item = &Dispatch> {
        let answered = self.dispatches.iter().filter(|(_, jobs)| !jobs.is_empty());
        answered.map(|(dispatch, _)| dispatch).filter(|dispatch| dispatch.sent_at().is_some())
    }

    pub(crate) fn dispatches(&self) -> impl DoubleEndedIterator<Item = &Dispatch> {
        self.dispatches.iter().map(|(dispatch, _)| dispatch)
    }

    /// Whether the pull request of a dispatch is closed or has another head now.
    pub(crate) fn is_left_by_pull_of(&self, dispatch: &Dispatch) -> bool {
        has_left(&self.pulls, dispatch)
    }

    /// The newest dispatch of each pull request that has become ready for review since, or goes to another branch.
    pub(crate) fn outdated(&self) -> impl Iterator<Item = (&Dispatch, &PullRecord)> {
        self.pulls.iter().filter_map(move |(number, pull)| {
            let newest = self.dispatches().rfind(|one| one.pull_request == Some(*number))?;
            let was_draft = newest.is_draft && pull.is_ready;
            let is_outdated = was_draft || pull.goes_to_another_branch_than(newest);
            (is_outdated && !self.is_left_by_pull_of(newest)).then_some((newest, pull))
        })
    }

    /// The dispatch whose answer counts: the newest one with a proven report, or else the newest one, of a pull request
    /// that still has the commit if there is one.
    pub(crate) fn deciding(&self) -> Option<&Dispatch> {
        let is_proven = |(dispatch, jobs): &&(Dispatch, Vec<JobRecord>)| {
            jobs.iter().any(|job| proof(dispatch, job) == ProofStatus::Proven)
        };
        let same_head = DispatchStatus::LeftOut { why: LeftOut::SameHead };
        let is_there = |one: &Dispatch| one.pull_request.is_some() && !self.is_left_by_pull_of(one);
        let newest = || {
            let mut all = self.dispatches.iter().filter(|(one, _)| one.status != same_head);
            let last = all.clone().next_back();
            all.rfind(|(one, _)| is_there(one)).or(last)
        };
        let proven = self.dispatches.iter().rfind(is_proven);
        proven.or_else(newest).or(self.dispatches.last()).map(|(dispatch, _)| dispatch)
    }

    /// How many jobs could have check runs of their own.
    pub(crate) fn job_count(&self) -> usize {
        let proven = self.dispatches.iter().flat_map(|(dispatch, jobs)| {
            jobs.iter().filter(|job| proof(dispatch, job) == ProofStatus::Proven)
        });
        let names: BTreeSet<_> = proven.map(|job| (&job.id.workflow, &job.id.job)).collect();
        names.len()
    }

    pub(crate) fn verdict(&self, relay: &Relay) -> Option<HeadVerdict> {
        let silent =
            if self.level == Level::L4 { relay.config.silent_l4 } else { Conclusion::TimedOut };
        verdict::verdict(&self.evidence(relay), VerdictPolicy { level: self.level, silent })
    }

    fn evidence(&self, relay: &Relay) -> Vec<HeadDispatch<'_>> {
        self.dispatches
            .iter()
            .map(|(dispatch, jobs)| HeadDispatch {
                status: &dispatch.status,
                last_error: dispatch.last_error.as_deref(),
                pull_request: dispatch.pull_request,
                is_draft: dispatch.is_draft,
                base_branch: dispatch.base_branch.as_deref(),
                asks_anew: matches!(
                    dispatch.action,
                    Some(PullRequestAction::ReadyForReview | PullRequestAction::BaseChanged)
                ),
                is_abandoned: self.is_left_by_pull_of(dispatch),
                is_strangers: !is_trusted(dispatch),
                is_trial: dispatch.is_trial,
                held_until: dispatch.held_until,
                is_overdue: dispatch.is_overdue,
                silence: dispatch.silence.as_deref(),
                is_given_up: is_given_up(relay, dispatch, jobs),
                are_runs_known: dispatch.are_runs_known && jobs.len() < limits::MAX_JOBS_READ,
                runs_problem: match jobs.len() < limits::MAX_JOBS_READ {
                    true => dispatch.runs_problem.as_deref(),
                    false => Some("more jobs have reported than are read"),
                },
                runs: &dispatch.runs,
                shared_runs: &dispatch.shared_runs,
                jobs: jobs.iter().map(|job| head_job(dispatch, job)).collect(),
            })
            .collect()
    }

    /// The runs on GitHub that the verdict has failed for.
    pub(crate) fn failed_runs(&self, relay: &Relay) -> Vec<u64> {
        let evidence = self.evidence(relay);
        let failed = verdict::failed_runs(&evidence);
        failed.into_iter().filter_map(|run| run.parse().ok()).collect()
    }

    /// The lost jobs of the commit.
    pub(crate) fn lost_jobs(&self) -> impl Iterator<Item = &JobRecord> {
        let jobs = self.dispatches.iter().flat_map(|(_, jobs)| jobs);
        jobs.filter(|job| job.state == JobState::Lost)
    }

    /// When the last re-run of a dispatch was first heard of. Without one: when it was sent, or else put into the queue.
    pub(crate) fn begun_at(&self, dispatch: &Dispatch) -> Timestamp {
        let sent_at = dispatch.sent_at().unwrap_or(dispatch.enqueued_at);
        let own = self.dispatches.iter().filter(|(one, _)| one.delivery == dispatch.delivery);
        let reruns = own
            .flat_map(|(_, jobs)| jobs)
            .filter(|job| job.id.run_attempt > 1 && proof(dispatch, job) == ProofStatus::Proven);
        reruns.map(|job| job.heard_at).fold(sent_at, Timestamp::max)
    }

    /// Whether the infrastructure of the backend failed, and not what the job tests, with the dispatch that says so.
    /// `None` while that is open, and if it isn't known: a run may have hung until its author's next push cancelled it.
    pub(crate) fn infrastructure_failed(&self, relay: &Relay) -> Option<(&Dispatch, bool)> {
        let HeadState::Ended(conclusion) = self.verdict(relay)?.state else { return None };
        let deciding = self.deciding()?;
        let says_nothing = matches!(
            deciding.status,
            DispatchStatus::Superseded { .. }
                | DispatchStatus::Withheld
                | DispatchStatus::LeftOut { .. }
        );
        let was_cut = matches!(conclusion, Conclusion::Cancelled | Conclusion::Skipped);
        // Below L3 GitHub isn't asked whether a dispatch without reports has run, and reports need no proof.
        let may_have_run =
            !deciding.is_answered && deciding.level.check_run() == CheckRunPolicy::Never;
        if says_nothing || was_cut || may_have_run || deciding.silence.is_some() {
            return None;
        }
        if conclusion.is_good() {
            return Some((deciding, false));
        }
        let now = relay.now();
        let evidence = self.evidence(relay);
        let counted = verdict::counted_jobs(&evidence);
        // Each run alone: jobs of two runs may have one name.
        let facts_of_run = |run: &Vec<&JobId>| -> Vec<AttemptFact> {
            let all = self.dispatches.iter();
            let jobs = all.flat_map(|(dispatch, jobs)| jobs.iter().map(move |job| (dispatch, job)));
            let counted = jobs.filter(|(_, job)| run.contains(&&job.id));
            counted.map(|(dispatch, job)| attempt_fact(relay, &dispatch.into(), job, now)).collect()
        };
        let facts: Vec<Vec<AttemptFact>> = counted.iter().map(facts_of_run).collect();
        let jobs = facts.iter().flat_map(|facts| jobs_of_record(facts, []));
        let ended: Vec<_> = jobs.filter_map(|job| Some((job.record, job.outcome?))).collect();
        let outcomes: Vec<_> = ended.iter().map(|(_, outcome)| *outcome).collect();
        let is_infrastructure = |outcome: &JobOutcome| {
            use JobOutcome::{InfraFailed, Lost, NeverStarted, TimedOut};
            matches!(outcome, InfraFailed | Lost | NeverStarted | TimedOut)
        };
        // Without a report nothing got as far as a test. Jobs that fail on purpose got there.
        let is_expected = facts.iter().flatten().any(|fact| fact.expected.is_some());
        let failed = (outcomes.is_empty() && !is_expected)
            || (outcomes.iter().any(is_infrastructure)
                && !outcomes.contains(&JobOutcome::TestFailed));
        // Several pull requests may share the commit: it is noted for the one whose run failed.
        let last = ended.iter().rev().find(|(_, outcome)| failed && is_infrastructure(outcome));
        let owner = last.and_then(|(record, _)| {
            let mut all = self.dispatches.iter().map(|(dispatch, _)| dispatch);
            all.find(|dispatch| dispatch.delivery == record.delivery)
        });
        Some((owner.unwrap_or(deciding), failed))
    }

    /// The proven job that the check run of `checked` shows.
    pub(crate) fn job(&self, checked: &CheckedJob) -> Option<HeadJobRecord<'_>> {
        let proven: Vec<(&Dispatch, &JobRecord)> = self
            .dispatches
            .iter()
            .flat_map(|(dispatch, jobs)| jobs.iter().map(move |job| (dispatch, job)))
            .filter(|(dispatch, job)| proof(dispatch, job) == ProofStatus::Proven)
            .collect();
        // Builds elsewhere are ordered by their first report, whichever job it was of.
        let begun_at = |job: &HeadJob<'_>| {
            let all = proven.iter().map(|(dispatch, other)| head_job(dispatch, other));
            all.filter(|other| other.is_of_run_of(job)).filter_map(|other| other.heard_at).min()
        };
        let named = proven.iter().copied();
        let named: Vec<_> = named
            .filter(|(_, job)| job.id.workflow == checked.workflow && job.id.job == checked.job)
            .collect();
        let files = self.dispatches().flat_map(|dispatch| &dispatch.runs);
        let files: BTreeMap<&str, &str> =
            files.map(|run| (run.id.as_str(), run.workflow.as_str())).collect();
        let jobs: Vec<_> = named
            .iter()
            .map(|(dispatch, job)| {
                let own = head_job(dispatch, job);
                let shown = HeadJob { heard_at: begun_at(&own), ..own };
                (shown, files.get(job.id.run_id.as_str()).copied().or(shown.pipeline))
            })
            .collect();
        let (dispatch, job) = named[verdict::job_to_show(&jobs)?];
        let failed_before = named.iter().any(|(_, other)| {
            other.id.run_id == job.id.run_id
                && other.id.run_attempt < job.id.run_attempt
                && other.state.conclusion().is_some_and(|end| !end.is_good())
        });
        Some(HeadJobRecord { dispatch, job, failed_before })
    }

    /// Writes down what the answers to a dispatch say now, and that those to others of its pull request say nothing any
    /// more which has run again since. Otherwise an author could push out another pull request's failure by many that
    /// don't count.
    pub(crate) fn add_weights(
        mut self,
        relay: &Relay,
        batch: &mut WriteBatch,
        (dispatch, jobs): (&Dispatch, Vec<JobRecord>),
    ) {
        let is_it = |(one, _): &(Dispatch, Vec<JobRecord>)| one.delivery == dispatch.delivery;
        let Some(own) = self.dispatches.iter().position(is_it) else { return };
        self.dispatches[own] = (dispatch.clone(), jobs);
        let replaced = verdict::replaced_dispatches(&self.evidence(relay));
        for (index, (one, jobs)) in self.dispatches.iter().enumerate() {
            let is_of_pull = one.pull_request == dispatch.pull_request;
            if is_of_pull && replaced.contains(&index) {
                add_evidence(relay, batch, one, DeliveryWeight::Usual);
            } else if index == own {
                add_evidence(relay, batch, one, weight(one, jobs));
            }
        }
    }

    /// Adds the evaluation of every check run that the commit has or may have.
    pub(crate) fn add_all_checks(&self, relay: &Relay, batch: &mut WriteBatch) {
        let now = relay.now();
        let Some(newest) = self.dispatches().next_back() else { return };
        batch.tasks.push(TaskKind::check_run(newest, None).task(now));
        self.add_job_checks(relay, batch);
    }

    /// Adds the evaluation of the check run of every job that has reported.
    pub(crate) fn add_job_checks(&self, relay: &Relay, batch: &mut WriteBatch) {
        let now = relay.now();
        let mut seen = BTreeSet::new();
        for (dispatch, jobs) in &self.dispatches {
            for job in jobs {
                if seen.insert((&job.id.workflow, &job.id.job)) {
                    let work = TaskKind::check_run(dispatch, Some(&job.id));
                    batch.tasks.push(work.task(now));
                }
            }
        }
    }
}

/// Whether the pull request of a dispatch is closed or has another head now.
fn has_left(pulls: &BTreeMap<u64, PullRecord>, dispatch: &Dispatch) -> bool {
    let pull = dispatch.pull_request.and_then(|number| pulls.get(&number));
    pull.is_some_and(|pull| pull.is_closed || pull.head_sha != dispatch.head_sha)
}

/// One pull request that asks for check runs is enough; otherwise the reason that a label could change. The lowest counts.
fn visibility_rank(visibility: CheckRunVisibility) -> u8 {
    match visibility {
        CheckRunVisibility::Shown => 0,
        CheckRunVisibility::NoneWithoutLabel => 1,
        CheckRunVisibility::NoneOfEvents => 2,
        CheckRunVisibility::NoneAtLevel(_) => 3,
        CheckRunVisibility::NoneForEvent => 4,
    }
}

/// The entry of a backend, as far as the check runs of a dispatch depend on it.
fn current_entry<'a>(
    entry: Option<&'a AllowlistEntry>,
    dispatch: &Dispatch,
) -> Option<CurrentEntry<'a>> {
    let entry = entry?;
    let (level, device) = (entry.level, entry.device.as_ref());
    Some(CurrentEntry { level, device, takes_event: entry.takes(&dispatch.event) })
}

/// Whether nothing more is expected of runs whose state isn't known. While the commit had no check runs, nobody asked
/// for its runs, and that is done first.
pub(crate) fn is_given_up(relay: &Relay, dispatch: &Dispatch, jobs: &[JobRecord]) -> bool {
    let was_asked = dispatch.are_runs_known || dispatch.runs_problem.is_some();
    was_asked && given_up_at(relay, dispatch, jobs).is_some_and(|at| at <= relay.now())
}

/// After this, nothing more is expected of runs that can't be asked for.
pub(crate) fn given_up_at(
    relay: &Relay,
    dispatch: &Dispatch,
    jobs: &[JobRecord],
) -> Option<Timestamp> {
    // That a job is found to be lost says nothing new of its run.
    let heard = jobs.iter().filter_map(|job| match job.state {
        JobState::Lost => job.last_started_at,
        _ => job.ended_at.or(job.last_started_at),
    });
    let heard = heard.max();
    let last = dispatch.sent_at().max(heard)?;
    Some(last + relay.config.lost_after)
}

/// The deliveries about a commit: of each asker, which is upstream's pushes, its merge groups, or an author of pull
/// requests, the newest ones, and those whose answers from the backend weigh most.
async fn deliveries_of(
    store: &dyn StateStore,
    head_sha: &str,
    repo: &RepoName,
) -> Result<BTreeSet<String>, StoreError> {
    let set = state_records::commit_origins_key(head_sha);
    let origins = store.members(&set, limits::ORIGINS_PER_COMMIT).await?;
    let origins: BTreeSet<&str> =
        origins.iter().map(|origin| origin.trim_start_matches([UNSETTLED, FAILED])).collect();
    let mut all = BTreeSet::new();
    for origin in origins {
        for set in [
            state_records::commit_deliveries_key(head_sha, origin),
            state_records::commit_evidence_key(head_sha, origin, repo),
        ] {
            all.extend(store.members(&set, limits::DELIVERIES_PER_ORIGIN).await?);
        }
    }
    Ok(all)
}

/// Before the name of a new account of which something is unsettled, or has failed. It has a place of its own among the
/// askers, which its further pull requests don't take away.
const UNSETTLED: char = '~';
const FAILED: char = '!';

/// What the answers to a dispatch say. Of each asker those that say more are read first, however many come after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeliveryWeight {
    /// All of it is known, over and good.
    Usual,
    /// Something of it was cancelled, which says little beside others.
    Cancelled,
    /// Something of it is open, or isn't known yet.
    Unsettled,
    Failed,
}

/// What is known of a dispatch that has been answered.
fn weight(dispatch: &Dispatch, jobs: &[JobRecord]) -> DeliveryWeight {
    use DeliveryWeight::{Cancelled, Failed, Unsettled, Usual};
    let proven = jobs.iter().filter(|job| proof(dispatch, job) == ProofStatus::Proven);
    let proven: Vec<&JobRecord> = proven.collect();
    let was_cancelled = |job: &JobRecord| {
        let cancelled = RunState::Over(Conclusion::Cancelled);
        dispatch.runs.iter().any(|run| run.id == job.id.run_id && run.state == cancelled)
    };
    let ended = proven.iter().filter(|job| job.ends_run);
    let ended: BTreeSet<&str> = ended.map(|job| job.id.run_id.as_str()).collect();
    let of_jobs = proven.iter().map(|job| match job.state.conclusion() {
        None => Unsettled,
        Some(end) if end.is_good() => match is_foreign(job) {
            // Only its own word ends a build elsewhere.
            true if !ended.contains(job.id.run_id.as_str()) => Unsettled,
            _ => Usual,
        },
        Some(Conclusion::Cancelled) => Cancelled,
        // It was killed before it could report its end.
        Some(_) if job.state == JobState::Lost && was_cancelled(job) => Cancelled,
        Some(_) => Failed,
    });
    let of_runs = dispatch.runs.iter().map(|run| match run.state {
        RunState::Open => Unsettled,
        RunState::Over(end) if end.is_good() => Usual,
        RunState::Over(Conclusion::Cancelled) => Cancelled,
        RunState::Over(_) | RunState::OverUnknown => Failed,
    });
    let of_shared = dispatch.shared_runs.iter().map(|runs| match runs {
        runs if runs.include_own && !runs.are_good => Failed,
        runs if runs.is_open => Unsettled,
        _ => Usual,
    });
    let is_all = dispatch.are_runs_known && jobs.len() < limits::MAX_JOBS_READ;
    let rest = if is_all { Usual } else { Unsettled };
    of_jobs.chain(of_runs).chain(of_shared).fold(rest, DeliveryWeight::max)
}

/// Who asked for a dispatch.
fn origin(dispatch: &Dispatch) -> String {
    match (&dispatch.event, dispatch.pull_request, &dispatch.author) {
        (_, Some(_), Some(author)) => format!("author {}", author.to_ascii_lowercase()),
        (_, Some(number), None) => format!("pull {number}"),
        (event, None, _) => event.to_string(),
    }
}

/// Above every [`Dispatch::order`], which is a time in milliseconds, and small enough for the scores of Redis, which are
/// exact up to 2⁵³.
const ABOVE_TIMES: i64 = 1 << 48;

/// Adds the delivery of `dispatch` to those about its commit.
pub(crate) fn add_to_commit(relay: &Relay, batch: &mut WriteBatch, dispatch: &Dispatch) {
    let (head, origin) = (&dispatch.head_sha, origin(dispatch));
    batch.set_inserts.push(SetInsert {
        set: state_records::commit_deliveries_key(head, &origin),
        member: dispatch.delivery.clone(),
        // What a draft's runs leave out is waited for, so its author's drafts don't push out who asks for that.
        score: if dispatch.is_draft { dispatch.order } else { ABOVE_TIMES + dispatch.order },
        expires_at: relay.expiry(),
    });
    add_origin(relay, batch, dispatch, origin, 0);
}

/// Writes down what the backend's answers to `dispatch` say, if they count for its commit. That may be less than what
/// was written down before.
pub(crate) fn add_evidence(
    relay: &Relay,
    batch: &mut WriteBatch,
    dispatch: &Dispatch,
    weight: DeliveryWeight,
) {
    if !dispatch.is_about_commit() || dispatch.probe.is_some() {
        return;
    }
    let (head, origin) = (&dispatch.head_sha, origin(dispatch));
    batch.set_inserts.push(SetInsert {
        set: state_records::commit_evidence_key(head, &origin, &dispatch.repo),
        member: dispatch.delivery.clone(),
        score: match weight {
            DeliveryWeight::Usual => dispatch.order,
            // The oldest first: a cancelled run says nothing beside an older one.
            DeliveryWeight::Cancelled => ABOVE_TIMES - dispatch.order,
            DeliveryWeight::Unsettled => 2 * ABOVE_TIMES + dispatch.order,
            DeliveryWeight::Failed => 4 * ABOVE_TIMES + dispatch.order,
        },
        expires_at: relay.expiry(),
    });
    match weight {
        DeliveryWeight::Usual | DeliveryWeight::Cancelled => {}
        _ if is_trusted(dispatch) => add_origin(relay, batch, dispatch, origin, 0),
        DeliveryWeight::Unsettled => {
            add_origin(relay, batch, dispatch, format!("{UNSETTLED}{origin}"), ABOVE_TIMES / 2);
        }
        DeliveryWeight::Failed => {
            add_origin(relay, batch, dispatch, format!("{FAILED}{origin}"), ABOVE_TIMES);
        }
    }
}

/// Whether a dispatch is upstream's own, or of somebody who has contributed before.
fn is_trusted(dispatch: &Dispatch) -> bool {
    dispatch.pull_request.is_none() || dispatch.is_known_author
}

/// Adds one who asked for the commit of `dispatch`.
fn add_origin(
    relay: &Relay,
    batch: &mut WriteBatch,
    dispatch: &Dispatch,
    member: String,
    strangers_score: i64,
) {
    // Nobody else's pull requests can take the place of upstream's own events, and new accounts not that of somebody
    // who has contributed before.
    let first = match dispatch.pull_request {
        None => 4 * ABOVE_TIMES,
        Some(_) if is_trusted(dispatch) => 2 * ABOVE_TIMES,
        Some(_) => strangers_score,
    };
    batch.set_inserts.push(SetInsert {
        set: state_records::commit_origins_key(&dispatch.head_sha),
        member,
        score: first + dispatch.order,
        expires_at: relay.expiry(),
    });
}

/// The pull requests of these dispatches as they are now.
async fn pulls(
    relay: &Relay,
    dispatches: impl Iterator<Item = &Dispatch>,
) -> Result<BTreeMap<u64, PullRecord>, StoreError> {
    let numbers: BTreeSet<u64> = dispatches.filter_map(|dispatch| dispatch.pull_request).collect();
    let key = |number: &u64| state_records::pull_request_key(&relay.config.upstream, *number);
    let keys = numbers.iter().map(key).collect();
    let pulls = relay.read_records::<PullRecord>(keys).await?;
    let pulls = numbers.into_iter().zip(pulls);
    Ok(pulls.filter_map(|(number, read)| Some((number, read.value?))).collect())
}

fn head_job<'a>(dispatch: &'a Dispatch, job: &'a JobRecord) -> HeadJob<'a> {
    HeadJob {
        id: &job.id,
        state: job.state,
        pull_request: dispatch.pull_request,
        event_order: (dispatch.order, &dispatch.delivery),
        proof: proof(dispatch, job),
        heard_at: Some(job.heard_at),
        ended_without_proof: job.ended_without_proof,
        is_foreign: is_foreign(job),
        pipeline: job.pipeline.as_deref(),
        build_number: job.build_number,
        check_run_id: job.details.check_run_id.as_ref().and_then(|id| id.parse().ok()),
        ends_run: job.ends_run,
        steps: StepCounts {
            reported: job.steps.len(),
            without_success: match job.steps.contains_key(OTHER_STEPS) {
                // It isn't known how many those are.
                true => usize::MAX,
                false => job.steps.values().filter(|failed| **failed != Some(false)).count(),
            },
        },
    }
}

/// Whether a job ran elsewhere than on GitHub.
pub(crate) fn is_foreign(job: &JobRecord) -> bool {
    job.provenance.origin == ReportOrigin::MappedPipeline
}

/// Whether the reports of a job are proven, by what is known about its dispatch now.
pub(crate) fn proof(dispatch: &Dispatch, job: &JobRecord) -> ProofStatus {
    proof_of(dispatch, &job.provenance)
}

/// Whether a report from there is proven. While the default branch gets another name, runs report from both.
pub(crate) fn proof_of(dispatch: &Dispatch, provenance: &ReportProvenance) -> ProofStatus {
    let proof = |branch: Option<&str>| provenance.proof(branch, &dispatch.status);
    let former = dispatch.former_branches.iter().map(|branch| proof(Some(branch.as_str())));
    former.fold(proof(dispatch.default_branch.as_deref()), ProofStatus::max)
}

/// The proof that a report lacks, if its level asks for one.
pub(crate) fn missing_proof(dispatch: &Dispatch, proof: ProofStatus) -> Option<MissingProof> {
    match proof {
        ProofStatus::Missing(missing) if dispatch.level.check_run() != CheckRunPolicy::Never => {
            Some(missing)
        }
        _ => None,
    }
}

/// Adds the update of a proven job's check run, if there may be one, and writes down which dispatch started its run:
/// also below L3, as runs have to be told apart when the backend is promoted.
pub(crate) fn add_proven_job(
    relay: &Relay,
    dispatch: &Dispatch,
    (job, pipeline): (&JobId, Option<&str>),
    batch: &mut WriteBatch,
) {
    if has_check_runs(relay, dispatch) {
        let update = TaskKind::check_run(dispatch, Some(job));
        batch.tasks.push(update.task(relay.now()));
    }
    let claim = state_records::run_claim_key(&dispatch.repo, pipeline, &job.run_id);
    batch.set(claim, &dispatch.delivery, relay.expiry());
}

/// Whether check runs of the dispatch are possible: its level, now or when it was made, has them.
pub(crate) fn has_check_runs(relay: &Relay, dispatch: &Dispatch) -> bool {
    let has = |level: Level| level.check_run() != CheckRunPolicy::Never;
    let allowlist = relay.allowlist.get();
    let now = allowlist.as_ref().and_then(|list| list.get(&dispatch.repo)).map(|entry| entry.level);
    has(dispatch.level) || (dispatch.level.shows_results() && now.is_some_and(has))
}

/// The jobs that were reported for a dispatch.
pub(crate) async fn jobs(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
) -> Result<Vec<JobRecord>, StoreError> {
    let store = relay.store.as_ref();
    let ids =
        store.members(&state_records::job_set_key(delivery, repo), limits::MAX_JOBS_READ).await?;
    let keys = ids
        .iter()
        .filter_map(|id| serde_json::from_str::<JobId>(id).ok())
        .map(|id| state_records::job_key(delivery, repo, &id))
        .collect();
    let jobs = read_records::<JobRecord>(store, keys).await?;
    Ok(jobs.into_iter().filter_map(|read| read.value).collect())
}
