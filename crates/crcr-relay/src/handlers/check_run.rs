//! Makes a check run on the upstream pull request show what the store knows now.
//!
//! Whatever asked for it, the newest state is what is sent, so that nothing is overtaken; the task's
//! key lets one check run be worked on once at a time.

use crcr_domain::callback::JobId;
use crcr_domain::check_run::{self as texts, Context, Verdict};
use crcr_domain::dispatch::{Dispatch, Status};
use crcr_domain::event::PullRequestAction;
use crcr_domain::lifecycle::Conclusion;
use crcr_domain::{Level, RepoName};
use crcr_github::checks::{CheckRun, Output};

use super::{Fail, Outcome, Work};
use crate::limits;
use crate::records::{self, Job, Pull, Shown};
use crate::relay::Relay;
use crate::store::{Batch, Commit, Key, Read, StoreError, read, read_all};

/// Brings one check run up to date.
pub async fn run(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
    head_sha: &str,
    job: Option<&JobId>,
) -> Result<Outcome, Fail> {
    let store = relay.store.as_ref();
    let Some(dispatch) = read::<Dispatch>(store, records::dispatch(delivery, repo)).await?.value
    else {
        return Ok(Outcome::Done);
    };
    let Some(number) = dispatch.pull_request else { return Ok(Outcome::Done) };
    let pull = read::<Pull>(store, records::pull(&relay.config.upstream, number)).await?.value;
    let labels = pull.as_ref().map_or(&dispatch.labels, |pull| &pull.labels);
    let wanted = dispatch.is_shown(labels, &relay.config.interest.label_prefix);
    let allowlist = relay.allowlist.get();
    let entry = allowlist.as_ref().and_then(|allowlist| allowlist.get(repo));
    let oncalls: Vec<String> = entry
        .map(|entry| entry.oncalls.iter().map(|oncall| oncall.as_str().to_owned()).collect())
        .unwrap_or_default();
    let context = Context {
        repo: repo.as_str(),
        level: dispatch.level,
        oncalls: &oncalls,
        server_url: &relay.config.server_url,
        pull_request: Some(number),
        nonblocking: relay.config.nonblocking,
    };
    let siblings = siblings(relay, &dispatch, pull.as_ref()).await?;
    let (name, run, shown) = match job {
        Some(id) => {
            let Some(job) = newest(&siblings, id) else { return Ok(Outcome::Done) };
            let shown = texts::show_job(&context, &job.id, job.state, &job.details);
            (texts::job_name(repo.as_str(), id), order(&job.id), shown)
        }
        None => {
            let (run, shown) = show_dispatch(relay, &context, &dispatch, &siblings);
            (texts::dispatch_name(repo.as_str()), run, shown)
        }
    };
    let key = records::shown(head_sha, &name);
    let known: Read<Shown> = read(store, key.clone()).await?;
    let shown = match (&known.value, wanted) {
        (None, false) => return Ok(Outcome::Done),
        // The label is gone: what is open ends, and what has ended stays.
        (Some(before), false) => {
            if matches!(before.verdict, Verdict::Completed(_)) {
                return Ok(Outcome::Done);
            }
            let reason = "The label was removed; results go to the HUD only";
            let run = (before.run.0 > 0).then(|| before.run.0.to_string());
            texts::show_dispatch(&context, run.as_deref(), Some(Conclusion::Skipped), reason)
        }
        (Some(before), true) if before.run > run => return Ok(Outcome::Done),
        (_, true) => shown,
    };
    send(relay, &dispatch, head_sha, &name, key, &known, run, &shown).await?;
    let worry = matches!(shown.verdict, Verdict::Completed(end) if end.calls_for_help());
    if worry && relay.config.oncall_comments && !oncalls.is_empty() {
        let work = Work::Comment { pull: number, repo: repo.clone(), check_run: name };
        let tasks = vec![work.task(relay, relay.now())];
        relay.commit(Batch { tasks, ..Batch::default() }).await?;
    }
    Ok(Outcome::Done)
}

/// Creates or updates, unless the same was sent before.
#[expect(clippy::too_many_arguments, reason = "all of them name one check run")]
async fn send(
    relay: &Relay,
    dispatch: &Dispatch,
    head_sha: &str,
    name: &str,
    key: Key,
    known: &Read<Shown>,
    run: (u64, u32),
    shown: &texts::Shown,
) -> Result<(), Fail> {
    let completed = matches!(shown.verdict, Verdict::Completed(_));
    let mut body = CheckRun {
        name: name.to_owned(),
        external_id: shown.external_id.clone(),
        details_url: shown.details_url.clone(),
        status: shown.verdict.status(),
        conclusion: shown.verdict.conclusion().map(str::to_owned),
        started_at: None,
        completed_at: None,
        output: Output { title: shown.title.clone(), summary: shown.summary.clone() },
    };
    let text = serde_json::to_vec(&body).map_err(|error| Fail::permanent(error.to_string()))?;
    let digest = crate::signature::digest(&text);
    if known.value.as_ref().is_some_and(|before| before.digest == digest) {
        return Ok(());
    }
    body.completed_at = completed.then(|| relay.now());
    let upstream = relay.config.upstream.as_str();
    let id = match &known.value {
        Some(before) => {
            relay.app.update_check_run(upstream, before.id, &body).await?;
            before.id
        }
        None => match created_before(relay, head_sha, name).await? {
            Some(id) => {
                relay.app.update_check_run(upstream, id, &body).await?;
                id
            }
            None => relay.app.create_check_run(upstream, head_sha, &body).await?,
        },
    };
    tracing::info!(
        delivery = dispatch.delivery,
        repo = %dispatch.repo,
        name,
        status = body.status,
        conclusion = body.conclusion,
        "check run sent"
    );
    let sent = Shown { id, run, verdict: shown.verdict, digest };
    for _ in 0..limits::CONFLICTS {
        let mut batch = Batch::default();
        let now: Read<Shown> = read(relay.store.as_ref(), key.clone()).await?;
        batch.update(&now, &sent, relay.expiry());
        if relay.commit(batch).await? == Commit::Done {
            return Ok(());
        }
    }
    Err(Fail::retry("a check run's record changes all the time"))
}

/// A check run that was created just before a crash, so that there is one and not two.
async fn created_before(relay: &Relay, head_sha: &str, name: &str) -> Result<Option<u64>, Fail> {
    let upstream = relay.config.upstream.as_str();
    let listed = relay.app.check_runs_of_commit(upstream, head_sha).await?;
    Ok(listed.into_iter().find(|run| run.name == name).map(|run| run.id))
}

/// The jobs that this repository reported for the dispatch's head, whatever delivery they answer.
async fn siblings(
    relay: &Relay,
    dispatch: &Dispatch,
    pull: Option<&Pull>,
) -> Result<Vec<Job>, StoreError> {
    let same_head = pull.filter(|pull| pull.head_sha == dispatch.head_sha);
    let mut deliveries = same_head.map(|pull| pull.deliveries.clone()).unwrap_or_default();
    if !deliveries.contains(&dispatch.delivery) {
        deliveries.push(dispatch.delivery.clone());
    }
    let mut all = Vec::new();
    for delivery in &deliveries {
        all.extend(jobs(relay, delivery, &dispatch.repo).await?);
    }
    Ok(all)
}

/// The jobs that a dispatch's repository reported for it.
pub(super) async fn jobs(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
) -> Result<Vec<Job>, StoreError> {
    let store = relay.store.as_ref();
    let ids = store.members(&records::jobs(delivery, repo), limits::JOBS).await?;
    let keys = ids
        .iter()
        .filter_map(|id| serde_json::from_str::<JobId>(id).ok())
        .map(|id| records::job(delivery, repo, &id))
        .collect();
    let jobs = read_all::<Job>(store, keys).await?;
    Ok(jobs.into_iter().filter_map(|read| read.value).collect())
}

/// The newest run and attempt of a job.
fn newest<'a>(jobs: &'a [Job], id: &JobId) -> Option<&'a Job> {
    jobs.iter()
        .filter(|job| job.id.workflow == id.workflow && job.id.job == id.job)
        .max_by_key(|job| (order(&job.id), job.started_at.or(job.ended_at)))
}

/// Orders runs: GitHub's numbers grow; others are ordered by time alone.
pub(super) fn order(id: &JobId) -> (u64, u32) {
    (id.run_id.parse().unwrap_or(0), id.run_attempt)
}

fn show_dispatch(
    relay: &Relay,
    context: &Context<'_>,
    dispatch: &Dispatch,
    jobs: &[Job],
) -> ((u64, u32), texts::Shown) {
    let last = jobs.iter().max_by_key(|job| (order(&job.id), job.started_at.or(job.ended_at)));
    let run = last.map(|job| job.id.run_id.as_str());
    let failed =
        if dispatch.level == Level::L4 { relay.config.silent_l4 } else { Conclusion::TimedOut };
    let (conclusion, reason) = match (&dispatch.status, &dispatch.end) {
        (_, Some(end)) if !(end.never_started && run.is_some()) => {
            (Some(end.conclusion), end.reason.clone())
        }
        (Status::Superseded { .. }, _) => {
            (Some(Conclusion::Skipped), "Superseded by a newer head".to_owned())
        }
        (Status::Dead | Status::Unreachable, _) => {
            let why = dispatch.last_error.as_deref().unwrap_or("unknown");
            (Some(failed), format!("It could not be dispatched: {why}"))
        }
        (Status::Queued, _) => (None, "Waits to be dispatched".to_owned()),
        (Status::Sent { .. }, _) if run.is_none() => (None, "Dispatched".to_owned()),
        (Status::Sent { .. }, _) => (None, "Running".to_owned()),
    };
    let order = last.map_or((0, 0), |job| order(&job.id));
    (order, texts::show_dispatch(context, run, conclusion, &reason))
}

/// Whether a check run stands for a dispatch at all.
pub(super) fn is_followed(dispatch: &Dispatch) -> bool {
    dispatch.action.is_some_and(|action| action != PullRequestAction::Closed)
}
