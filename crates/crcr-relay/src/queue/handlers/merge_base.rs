//! Looks up where a pull request branched off and what it changes. It is needed to tell whether a failure is new,
//! so this happens once for each head on which a job failed.

use std::collections::BTreeMap;
use std::fmt::Display;

use crcr_cidata::webhook_archive::{ArchivedWebhook, WebhookHead};
use crcr_domain::checks::lifecycle::JobState;
use crcr_domain::ci_data::job_log::EndedJob;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::results::facts::{AttemptFact, Fact, MergeBaseFact};
use crcr_results::ResultsError;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use crcr_store::{NewTask, Versioned, WriteBatch};
use jiff::Timestamp;
use serde_json::Value;

use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records;

/// `None` if the attempt didn't fail, the dispatch isn't of a pull request, or its event didn't name the
/// base.
pub fn task(dispatch: &Dispatch, fact: &AttemptFact, now: Timestamp) -> Option<NewTask> {
    let failed = matches!(fact.state, JobState::Completed(conclusion) if !conclusion.is_good());
    let (pull, base_sha) = (dispatch.pull_request?, dispatch.base_sha.clone()?);
    let head_sha = dispatch.head_sha.clone();
    failed.then(|| TaskKind::MergeBase { pull, head_sha, base_sha }.task(now))
}

/// The same for a failed job of upstream's own CI; `None` if its commit isn't the head of a known pull request.
pub(crate) async fn task_of_job(
    relay: &Relay,
    job: &EndedJob,
) -> Result<Option<NewTask>, ResultsError> {
    if !job.repository.eq_ignore_ascii_case(relay.config.upstream.as_str()) {
        return Ok(None);
    }
    let heads = [job.head_sha.clone()];
    let selection = ThingSelection::Commits(&heads);
    let query = ThingQuery { event: "pull_request", repository: &job.repository, selection };
    let pulls = relay.results.current_things(&query).await?;
    let task = pulls.into_iter().find_map(|row| {
        let document: Value = serde_json::from_str(&row.document).ok()?;
        let base_sha = document["pull_request"]["base"]["sha"].as_str()?.to_owned();
        Some(TaskKind::MergeBase { pull: row.number?, head_sha: row.sha, base_sha })
    });
    Ok(task.map(|task| task.task(relay.now())))
}

/// Archives what GitHub answered, so that `crcr relay replay` needs no App for it.
async fn keep(relay: &Relay, fact: &MergeBaseFact) -> Result<(), TaskError> {
    let retry = |error: &dyn Display| TaskError::retry(error.to_string());
    let Some(archive) = relay.archive().await.map_err(|error| retry(&error))? else {
        return Ok(());
    };
    let head = WebhookHead {
        event: MergeBaseFact::EVENT.to_owned(),
        delivery: format!("{}-{}", fact.pull_request, fact.head_sha),
        received_at: fact.at,
        headers: BTreeMap::new(),
    };
    let body = serde_json::to_vec(fact).expect("a fact is always JSON").into();
    let kept = ArchivedWebhook { head, body };
    archive.add(&kept.head, kept.pack().into()).await.map_err(|error| retry(&error))
}

/// If the commits have no merge base, only the fact that GitHub was asked is recorded.
pub async fn run(
    relay: &Relay,
    pull: u64,
    head_sha: &str,
    base_sha: &str,
) -> Result<TaskDone, TaskError> {
    let upstream = &relay.config.upstream;
    let key = state_records::merge_base_key(upstream, pull, head_sha, base_sha);
    let asked: Versioned<bool> = relay.read_record(key).await?;
    if asked.value.is_some() {
        return Ok(TaskDone::Finished);
    }
    let mut batch = WriteBatch::default();
    batch.set(asked.key, &true, relay.expiry());
    match relay.app.merge_base(upstream.as_str(), base_sha, head_sha).await? {
        Some(found) => {
            let fact = MergeBaseFact {
                at: relay.now(),
                upstream: upstream.as_str().to_owned(),
                pull_request: pull,
                head_sha: head_sha.to_owned(),
                merge_base: found.sha,
                committed_at: found.committed_at,
                changed_files: MergeBaseFact::some_files(found.changed_files),
            };
            keep(relay, &fact).await?;
            batch.facts.push(Fact::MergeBase(fact));
        }
        None => tracing::info!(pull, head_sha, base_sha, "the commits have no merge base"),
    }
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}
