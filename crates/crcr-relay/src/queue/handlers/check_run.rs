//! Updates a check run on the upstream pull request from the store.
//!
//! The newest state is sent, whatever change asked for the update. The task's key makes sure that a
//! check run has only one update at a time.

use crcr_domain::callback::JobId;
use crcr_domain::check_run::{self as texts, CheckRunContext, CheckRunStatus};
use crcr_domain::dispatch::{CheckRunVisibility, Dispatch};
use crcr_domain::{Level, RepoName};
use crcr_github::GithubError;
use crcr_github::checks::{CheckRun, CheckRunOutput};
use crcr_store::{CommitOutcome, StoreError, StoreKey, Versioned, WriteBatch, read_record};
use jiff::Timestamp;

use super::head::{Head, run_order};
use super::job_checks;
use crate::breaker::{self, BreakerChange};
use crate::limits;
use crate::queue::blame_cache::Blame;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, CheckRunRecord};

pub async fn run(
    relay: &Relay,
    delivery: &str,
    repo: &RepoName,
    head_sha: &str,
    job: Option<&JobId>,
) -> Result<TaskDone, TaskError> {
    let store = relay.store.as_ref();
    let Some(dispatch) =
        read_record::<Dispatch>(store, state_records::dispatch_key(delivery, repo)).await?.value
    else {
        return Ok(TaskDone::Finished);
    };
    if let Some(id) = job {
        // Nothing has to be read for a job without a check run.
        let name = texts::job_name(repo.as_str(), id);
        if job_checks::is_folded(relay, repo, head_sha, &name).await? {
            return Ok(TaskDone::Finished);
        }
    }
    let head = Head::read(relay, &dispatch).await?;
    let allowlist = super::allowlist(relay)?;
    let oncalls: Vec<String> = allowlist
        .get(repo)
        .map(|entry| entry.oncalls.iter().map(|oncall| oncall.as_str().to_owned()).collect())
        .unwrap_or_default();
    let page = dispatch.pull_request.and_then(|number| relay.config.pull_request_page(number));
    let context = CheckRunContext {
        repo: repo.as_str(),
        level: head.level,
        oncalls: &oncalls,
        server_url: &relay.config.server_url,
        pull_request: dispatch.pull_request,
        page: page.as_deref(),
        blame: None,
        keeps_failing: false,
        nonblocking: relay.config.nonblocking,
    };
    let blame = match job.and_then(|id| head.newest_proven(id)) {
        Some(job) => match relay.blame.of_job(relay, &dispatch, job).await {
            Blame::Known(blame) => blame,
            Blame::ReadAfter(wait) => return Ok(TaskDone::RunAgain(relay.now() + wait)),
        },
        None => None,
    };
    let infrastructure_failed = head.infrastructure_failed(relay);
    let mut change = BreakerChange::None;
    if job.is_none()
        && let Some(failed) = infrastructure_failed
    {
        change = breaker::note_outcome(relay, &dispatch, failed).await?;
    }
    let keeps_failing =
        infrastructure_failed == Some(true) && breaker::is_open(relay, repo).await?;
    let context = CheckRunContext { blame: blame.as_deref(), keeps_failing, ..context };
    let name = match job {
        Some(id) => texts::job_name(repo.as_str(), id),
        None => texts::dispatch_name(repo.as_str()),
    };
    let key = state_records::check_run_key(head_sha, &name);
    let known: Versioned<CheckRunRecord> = read_record(store, key.clone()).await?;
    let is_shown = head.check_runs == CheckRunVisibility::Shown;
    let (run, shown) = if is_shown {
        let Some(found) = content(relay, &context, &head, job) else {
            return Ok(TaskDone::Finished);
        };
        found
    } else {
        let run = match &known.value {
            Some(before) if before.may_be_open() => before.run,
            None if is_begun(relay, head_sha, &name).await? => (0, 0),
            _ => return Ok(TaskDone::Finished),
        };
        let id = (run.0 > 0).then(|| run.0.to_string());
        let Some(shown) = texts::withdrawn_content(&context, id.as_deref(), head.check_runs) else {
            return Ok(TaskDone::Finished);
        };
        (run, shown)
    };
    if job.is_some() && known.value.as_ref().is_some_and(|before| before.run > run) {
        return Ok(TaskDone::Finished);
    }
    if job.is_some()
        && known.value.is_none()
        && !job_checks::has_place(relay, repo, head_sha, &name).await?
    {
        return Ok(TaskDone::Finished);
    }
    let was_open = known.value.as_ref().is_some_and(|before| before.status.is_open());
    if job.is_none() && shown.status.is_open() && !was_open {
        // While nothing was shown, their sweeps may have ended, and nobody would ask GitHub for the end of the
        // runs.
        let sweep = |dispatch| TaskKind::sweep(dispatch).task(&relay.config.upstream, relay.now());
        let tasks: Vec<_> = head.answered().map(sweep).collect();
        if !tasks.is_empty() {
            relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
        }
    }
    let may_create = is_shown && (head.level != Level::L3 || !relay.demotions.is_open(repo));
    if job.is_some() {
        job_checks::charge_calls(relay, repo, if known.value.is_some() { 1 } else { 2 }).await?;
    }
    if !send(relay, &dispatch, head_sha, &name, key, &known, run, &shown, may_create).await? {
        return Ok(TaskDone::Finished);
    }
    // While the breaker is open, the oncalls hear of it once, and not of every pull request.
    let needs_oncall = change == BreakerChange::Opened
        || matches!(shown.status, CheckRunStatus::Completed(end) if end.alerts_oncall());
    if let Some(pull) = dispatch.pull_request
        && needs_oncall
        && relay.config.oncall_comments
        && !oncalls.is_empty()
    {
        let work = TaskKind::Comment { pull, repo: repo.clone(), check_run: name };
        let tasks = vec![work.task(&relay.config.upstream, relay.now())];
        relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    }
    Ok(TaskDone::Finished)
}

/// The content of a check run; `None` while no report of the job is proven.
fn content(
    relay: &Relay,
    context: &CheckRunContext<'_>,
    head: &Head,
    job: Option<&JobId>,
) -> Option<((u64, u32), texts::CheckRunContent)> {
    let Some(id) = job else {
        let verdict = head.verdict(relay)?;
        let run = verdict.run.as_deref().and_then(|run| run.parse().ok()).unwrap_or(0);
        let mut shown = texts::dispatch_content(context, &verdict);
        shown.summary.push_str(&job_checks::folded(head.job_count(), context.page));
        return Some(((run, 0), shown));
    };
    let job = head.newest_proven(id)?;
    let shown =
        texts::job_content(context, &job.id, job.state, &job.details, job.ended_without_proof);
    Some((run_order(&job.id), shown))
}

/// Creates a check run, after writing down that GitHub may have it from now on: if the answer gets lost and
/// the check run isn't wanted any more, somebody still has to end it.
async fn create(relay: &Relay, head_sha: &str, body: &CheckRun) -> Result<u64, TaskError> {
    let mut batch = WriteBatch::default();
    let key = state_records::begun_check_run_key(head_sha, &body.name);
    batch.set(key, &relay.now(), relay.expiry());
    relay.commit(batch).await?;
    let upstream = relay.config.upstream.as_str();
    Ok(relay.app.create_check_run(upstream, head_sha, body).await?)
}

/// Writes down that it isn't known what the check run shows: if the answer to an update gets lost, GitHub has
/// other content than the record, and a later update to the recorded content must still be sent.
async fn forget_content(
    relay: &Relay,
    known: &Versioned<CheckRunRecord>,
    before: &CheckRunRecord,
) -> Result<(), TaskError> {
    if before.digest.is_empty() {
        return Ok(());
    }
    let mut batch = WriteBatch::default();
    let unknown = CheckRunRecord { digest: String::new(), ..before.clone() };
    batch.update(known, &unknown, relay.expiry());
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(()),
        _ => Err(TaskError::retry("the check run's record was changed in the meantime")),
    }
}

async fn is_begun(relay: &Relay, head_sha: &str, name: &str) -> Result<bool, StoreError> {
    let key = state_records::begun_check_run_key(head_sha, name);
    let begun: Versioned<Timestamp> = read_record(relay.store.as_ref(), key).await?;
    Ok(begun.value.is_some())
}

/// Creates or updates the check run, unless it has this content already. Returns false if there is none and
/// none may be created.
#[expect(clippy::too_many_arguments, reason = "all of them name one check run")]
async fn send(
    relay: &Relay,
    dispatch: &Dispatch,
    head_sha: &str,
    name: &str,
    key: StoreKey,
    known: &Versioned<CheckRunRecord>,
    run: (u64, u32),
    shown: &texts::CheckRunContent,
    may_create: bool,
) -> Result<bool, TaskError> {
    let completed = matches!(shown.status, CheckRunStatus::Completed(_));
    let mut body = CheckRun {
        name: name.to_owned(),
        external_id: shown.external_id.clone(),
        details_url: shown.details_url.clone(),
        status: shown.status.status(),
        conclusion: shown.status.conclusion().map(str::to_owned),
        started_at: None,
        completed_at: None,
        output: CheckRunOutput { title: shown.title.clone(), summary: shown.summary.clone() },
    };
    let text =
        serde_json::to_vec(&body).map_err(|error| TaskError::permanent(error.to_string()))?;
    let digest = crate::webhook::signature::digest(&text);
    if known.value.as_ref().is_some_and(|before| before.digest == digest) {
        return Ok(true);
    }
    body.completed_at = completed.then(|| relay.now());
    let upstream = relay.config.upstream.as_str();
    let id = match &known.value {
        Some(before) => {
            forget_content(relay, known, before).await?;
            relay.app.update_check_run(upstream, before.id, &body).await?;
            before.id
        }
        // It may have been created just before a crash.
        None => match relay.app.own_check_run(upstream, head_sha, name).await? {
            Some(id) => match relay.app.update_check_run(upstream, id, &body).await {
                Ok(()) => id,
                Err(GithubError::Forbidden(_)) if may_create => {
                    create(relay, head_sha, &body).await?
                }
                Err(error) => return Err(error.into()),
            },
            None if !may_create => return Ok(false),
            None => create(relay, head_sha, &body).await?,
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
    let delivery = dispatch.delivery.clone();
    let sent = CheckRunRecord { id, run, status: shown.status, delivery, digest };
    for _ in 0..limits::CONFLICTS {
        let mut batch = WriteBatch::default();
        let now: Versioned<CheckRunRecord> = read_record(relay.store.as_ref(), key.clone()).await?;
        batch.update(&now, &sent, relay.expiry());
        if relay.commit(batch).await? == CommitOutcome::Done {
            return Ok(true);
        }
    }
    Err(TaskError::retry("a check run's record changed in every try to change it"))
}
