//! The dispatches of one upstream head to one backend, and the jobs that answered them. Every decision
//! about the backend's check runs is computed from these.

use crcr_domain::callback::JobId;
use crcr_domain::dispatch::{CheckRunVisibility, Dispatch, DispatchStatus};
use crcr_domain::head_verdict::{self, HeadDispatch, HeadJob, HeadState, HeadVerdict};
use crcr_domain::lifecycle::Conclusion;
use crcr_domain::proof::{MissingProof, ProofStatus};
use crcr_domain::results::{JobOutcome, jobs_of_record};
use crcr_domain::{CheckRunPolicy, Level, RepoName};
use crcr_store::{StoreError, WriteBatch, read_record, read_records};

use crate::facts::attempt_fact;
use crate::limits;
use crate::queue::task_kind::{TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, JobRecord, PullRecord};

pub(super) struct Head {
    /// The dispatches of the head that can have check runs, each with the jobs that answered it. The newest is the
    /// last one, by the order in which GitHub's events were accepted: the clocks of two replicas may differ.
    dispatches: Vec<(Dispatch, Vec<JobRecord>)>,
    /// Whether the dispatch that was asked about has check runs.
    pub(super) check_runs: CheckRunVisibility,
    /// The repository's level when the dispatch was made, or now if that is lower.
    pub(super) level: Level,
}

impl Head {
    /// Reads everything about the head of `dispatch`. A head is dispatched more than once when a pull
    /// request is reopened.
    pub(super) async fn read(relay: &Relay, dispatch: &Dispatch) -> Result<Self, TaskError> {
        let store = relay.store.as_ref();
        let pull = match dispatch.pull_request {
            Some(number) => {
                read_record::<PullRecord>(
                    store,
                    state_records::pull_request_key(&relay.config.upstream, number),
                )
                .await?
                .value
            }
            None => None,
        };
        let labels = pull.as_ref().map_or(&dispatch.labels, |pull| &pull.labels);
        let level_now = super::allowlist(relay)?.get(&dispatch.repo).map(|entry| entry.level);
        let prefix = &relay.config.interest.label_prefix;
        let check_runs = dispatch.check_runs(level_now, labels, prefix);
        let deliveries =
            pull.as_ref().map(|pull| pull.deliveries_of(&dispatch.head_sha)).unwrap_or_default();
        // One that came late, or whose place is taken by newer ones, isn't among them.
        let late = (!deliveries.contains(&dispatch.delivery)).then_some(&dispatch.delivery);
        let keys = late
            .into_iter()
            .chain(deliveries)
            .map(|delivery| state_records::dispatch_key(delivery, &dispatch.repo))
            .collect();
        let all = read_records::<Dispatch>(store, keys).await?;
        let mut dispatches = Vec::with_capacity(all.len());
        for dispatch in all.into_iter().filter_map(|read| read.value) {
            if dispatch.check_runs(Some(dispatch.level), &[], prefix)
                == CheckRunVisibility::NoneForEvent
            {
                continue;
            }
            let jobs = jobs(relay, &dispatch.delivery, &dispatch.repo).await?;
            dispatches.push((dispatch, jobs));
        }
        let level = level_now.map_or(dispatch.level, |now| now.min(dispatch.level));
        Ok(Self { dispatches, check_runs, level })
    }

    /// The dispatches of the head that a job has reported for.
    pub(super) fn answered(&self) -> impl Iterator<Item = &Dispatch> {
        let answered = self.dispatches.iter().filter(|(_, jobs)| !jobs.is_empty());
        answered.map(|(dispatch, _)| dispatch).filter(|dispatch| dispatch.sent_at().is_some())
    }

    /// How many jobs could have check runs of their own.
    pub(super) fn job_count(&self) -> usize {
        let proven = self.dispatches.iter().flat_map(|(dispatch, jobs)| {
            jobs.iter().filter(|job| proof(dispatch, job) == ProofStatus::Proven)
        });
        let names: std::collections::BTreeSet<_> =
            proven.map(|job| (&job.id.workflow, &job.id.job)).collect();
        names.len()
    }

    pub(super) fn verdict(&self, relay: &Relay) -> Option<HeadVerdict> {
        let now = relay.now();
        let facts: Vec<HeadDispatch<'_>> = self
            .dispatches
            .iter()
            .map(|(dispatch, jobs)| HeadDispatch {
                status: &dispatch.status,
                last_error: dispatch.last_error.as_deref(),
                is_overdue: dispatch
                    .sent_at()
                    .is_some_and(|sent| sent + relay.config.never_started_after <= now),
                runs: &dispatch.runs,
                jobs: jobs
                    .iter()
                    .map(|job| HeadJob {
                        id: &job.id,
                        state: job.state,
                        proof: proof(dispatch, job),
                        heard_at: job.started_at.or(job.ended_at),
                    })
                    .collect(),
            })
            .collect();
        let silent =
            if self.level == Level::L4 { relay.config.silent_l4 } else { Conclusion::TimedOut };
        head_verdict::head_verdict(&facts, silent)
    }

    /// Whether the infrastructure of the backend failed, and not what the job tests. `None` while that is open, and
    /// if nothing was to run.
    pub(super) fn infrastructure_failed(&self, relay: &Relay) -> Option<bool> {
        let HeadState::Ended(conclusion) = self.verdict(relay)?.standing else { return None };
        let (newest, _) = self.dispatches.last()?;
        if matches!(newest.status, DispatchStatus::Superseded { .. } | DispatchStatus::Withheld) {
            return None;
        }
        if conclusion.is_good() {
            return Some(false);
        }
        let now = relay.now();
        let proven = self.dispatches.iter().flat_map(|(dispatch, jobs)| {
            let proven = jobs.iter().filter(|job| proof(dispatch, job) == ProofStatus::Proven);
            proven.map(|job| attempt_fact(&dispatch.into(), job, now))
        });
        let facts: Vec<_> = proven.collect();
        let outcomes: Vec<_> =
            jobs_of_record(&facts, []).into_iter().filter_map(|job| job.outcome).collect();
        let is_infrastructure = |outcome: &JobOutcome| {
            use JobOutcome::{InfraFailed, Lost, NeverStarted, TimedOut};
            matches!(outcome, InfraFailed | Lost | NeverStarted | TimedOut)
        };
        // Without a report nothing got as far as a test.
        Some(
            outcomes.is_empty()
                || (outcomes.iter().any(is_infrastructure)
                    && !outcomes.contains(&JobOutcome::TestFailed)),
        )
    }

    /// The newest run and attempt of a job that is proven.
    pub(super) fn newest_proven<'a>(&'a self, id: &'a JobId) -> Option<&'a JobRecord> {
        self.dispatches
            .iter()
            .flat_map(|(dispatch, jobs)| {
                jobs.iter().filter(|job| proof(dispatch, job) == ProofStatus::Proven)
            })
            .filter(|job| job.id.workflow == id.workflow && job.id.job == id.job)
            .max_by_key(|job| (run_order(&job.id), job.started_at.or(job.ended_at)))
    }
}

/// Whether the reports of a job are proven, by what is known about its dispatch now.
pub(crate) fn proof(dispatch: &Dispatch, job: &JobRecord) -> ProofStatus {
    job.evidence.proof(dispatch.default_branch.as_deref(), &dispatch.status)
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

/// Adds the update of a proven job's check run, and writes down which dispatch started its run.
pub(crate) fn add_proven_job(
    relay: &Relay,
    dispatch: &Dispatch,
    job: &JobId,
    batch: &mut WriteBatch,
) {
    let update = TaskKind::check_run(dispatch, Some(job));
    batch.tasks.push(update.task(&relay.config.upstream, relay.now()));
    let claim = state_records::run_claim_key(&dispatch.repo, &job.run_id);
    batch.set(claim, &dispatch.delivery, relay.expiry());
}

/// The jobs that were reported for a dispatch.
pub(super) async fn jobs(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
) -> Result<Vec<JobRecord>, StoreError> {
    let store = relay.store.as_ref();
    let ids = store.members(&state_records::job_set_key(delivery, repo), limits::JOBS).await?;
    let keys = ids
        .iter()
        .filter_map(|id| serde_json::from_str::<JobId>(id).ok())
        .map(|id| state_records::job_key(delivery, repo, &id))
        .collect();
    let jobs = read_records::<JobRecord>(store, keys).await?;
    Ok(jobs.into_iter().filter_map(|read| read.value).collect())
}

/// Sorts runs by GitHub's run number, which grows. Runs elsewhere are equal by this key.
pub(super) fn run_order(id: &JobId) -> (u64, u32) {
    (id.run_id.parse().unwrap_or(0), id.run_attempt)
}
