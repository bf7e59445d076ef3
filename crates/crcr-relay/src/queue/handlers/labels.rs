//! Updates the check runs that depend on a pull request's labels.

use crcr_domain::dispatch::Dispatch;
use crcr_store::{WriteBatch, read_record, read_records};

use super::head;
use crate::queue::task_kind::{TaskDone, TaskError, TaskKind};
use crate::relay::Relay;
use crate::state_records::{self, DeliveryRecord, PullRecord};

/// Queues an update of every check run that the current head has or may have.
pub async fn run(relay: &Relay, number: u64) -> Result<TaskDone, TaskError> {
    let store = relay.store.as_ref();
    let pull = read_record::<PullRecord>(
        store,
        state_records::pull_request_key(&relay.config.upstream, number),
    )
    .await?
    .value;
    let Some(pull) = pull else { return Ok(TaskDone::Finished) };
    let prefix = &relay.config.interest.label_prefix;
    let mut batch = WriteBatch::default();
    for id in &pull.deliveries {
        let delivery =
            read_record::<DeliveryRecord>(store, state_records::delivery_key(id)).await?.value;
        let targets = delivery.map(|delivery| delivery.targets).unwrap_or_default();
        let keys = targets.iter().map(|repo| state_records::dispatch_key(id, repo)).collect();
        for known in read_records::<Dispatch>(store, keys).await? {
            // The closing of a pull request has none, and its task would have the same key.
            let Some(dispatch) = known.value.filter(|dispatch| {
                dispatch.device.is_some() && dispatch.may_have_check_runs(prefix)
            }) else {
                continue;
            };
            batch.tasks.push(
                TaskKind::check_run(&dispatch, None).task(&relay.config.upstream, relay.now()),
            );
            for job in head::jobs(relay, id, &dispatch.repo).await? {
                let work = TaskKind::check_run(&dispatch, Some(&job.id));
                batch.tasks.push(work.task(&relay.config.upstream, relay.now()));
            }
        }
    }
    relay.commit(batch).await?;
    Ok(TaskDone::Finished)
}
