//! What one backend was told of one upstream head, and what it answered: the facts that every decision
//! about its check runs is computed from.

use crcr_domain::callback::JobId;
use crcr_domain::dispatch::{CheckRunVisibility, Dispatch, DispatchStatus};
use crcr_domain::head_verdict::{self, HeadDispatch, HeadJob, HeadVerdict};
use crcr_domain::lifecycle::Conclusion;
use crcr_domain::proof::ProofStatus;
use crcr_domain::{Level, RepoName};
use crcr_store::{StoreError, read_record, read_records};

use crate::limits;
use crate::relay::Relay;
use crate::state_records::{self, JobRecord, PullRecord};

/// A head at a backend.
pub(super) struct Head {
    /// The dispatches of the head for which check runs can stand, and the jobs that answered each.
    dispatches: Vec<(Dispatch, Vec<JobRecord>)>,
    /// Whether check runs stand for the dispatch that was asked about.
    pub(super) check_runs: CheckRunVisibility,
    /// The repository's level when the dispatch was made, or now if that is lower.
    pub(super) level: Level,
}

impl Head {
    /// Reads what belongs to the head of `dispatch`. One head is dispatched several times when a pull
    /// request is reopened; of an older head only the dispatch itself is looked at.
    pub(super) async fn read(relay: &Relay, dispatch: &Dispatch) -> Result<Self, StoreError> {
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
        let allowlist = relay.allowlist.get();
        let level_now = allowlist
            .as_ref()
            .and_then(|allowlist| allowlist.get(&dispatch.repo))
            .map(|entry| entry.level);
        let prefix = &relay.config.interest.label_prefix;
        let check_runs = dispatch.check_runs(level_now, labels, prefix);
        let of_head = pull.as_ref().filter(|pull| pull.head_sha == dispatch.head_sha);
        let others = of_head.map(|pull| pull.deliveries.as_slice()).unwrap_or_default();
        let keys = others
            .iter()
            .filter(|delivery| **delivery != dispatch.delivery)
            .map(|delivery| state_records::dispatch_key(delivery, &dispatch.repo))
            .collect();
        let mut all = vec![dispatch.clone()];
        all.extend(read_records(store, keys).await?.into_iter().filter_map(|read| read.value));
        let mut dispatches = Vec::with_capacity(all.len());
        for dispatch in all {
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

    /// What the check run of the dispatch shows.
    pub(super) fn verdict(&self, relay: &Relay) -> Option<HeadVerdict> {
        let now = relay.now();
        let facts: Vec<HeadDispatch<'_>> = self
            .dispatches
            .iter()
            .map(|(dispatch, jobs)| HeadDispatch {
                status: &dispatch.status,
                last_error: dispatch.last_error.as_deref(),
                enqueued_at: dispatch.enqueued_at,
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

    /// The newest proven run and attempt of a job.
    pub(super) fn newest_proven<'a>(&'a self, id: &'a JobId) -> Option<&'a JobRecord> {
        self.jobs_like(id)
            .filter(|(dispatch, job)| proof(dispatch, job) == ProofStatus::Proven)
            .map(|(_, job)| job)
            .max_by_key(|job| (order(&job.id), job.started_at.or(job.ended_at)))
    }

    /// Whether it will be known later if a report of the job is proven.
    pub(super) fn is_undecided(&self, id: &JobId) -> bool {
        self.jobs_like(id).any(|(dispatch, job)| proof(dispatch, job) == ProofStatus::Undecided)
    }

    fn jobs_like<'a>(
        &'a self,
        id: &'a JobId,
    ) -> impl Iterator<Item = (&'a Dispatch, &'a JobRecord)> {
        self.dispatches
            .iter()
            .flat_map(|(dispatch, jobs)| jobs.iter().map(move |job| (dispatch, job)))
            .filter(|(_, job)| job.id.workflow == id.workflow && job.id.job == id.job)
    }
}

/// Whether the reports of a job are proven, by what is known of its dispatch now.
pub(crate) fn proof(dispatch: &Dispatch, job: &JobRecord) -> ProofStatus {
    let on_its_way = dispatch.status == DispatchStatus::Queued;
    job.evidence.proof(dispatch.default_branch.as_deref(), on_its_way)
}

/// The jobs that a dispatch's repository reported for it.
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

/// Orders runs: GitHub's numbers grow; others are ordered by time alone.
pub(super) fn order(id: &JobId) -> (u64, u32) {
    (id.run_id.parse().unwrap_or(0), id.run_attempt)
}
