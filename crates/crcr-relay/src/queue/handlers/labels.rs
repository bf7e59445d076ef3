//! A label came or went: every check run that hangs on it follows.

use crcr_domain::dispatch::Dispatch;
use crcr_store::{Batch, read, read_all};

use super::head;
use crate::queue::task::{Fail, Outcome, Work};
use crate::relay::Relay;
use crate::state_records::{self, Delivery, Pull};

/// Asks for every check run that the pull request's current head has or may have.
pub async fn run(relay: &Relay, number: u64) -> Result<Outcome, Fail> {
    let store = relay.store.as_ref();
    let pull =
        read::<Pull>(store, state_records::pull(&relay.config.upstream, number)).await?.value;
    let Some(pull) = pull else { return Ok(Outcome::Done) };
    let mut batch = Batch::default();
    for id in &pull.deliveries {
        let delivery = read::<Delivery>(store, state_records::delivery(id)).await?.value;
        let targets = delivery.map(|delivery| delivery.targets).unwrap_or_default();
        let keys = targets.iter().map(|repo| state_records::dispatch(id, repo)).collect();
        for known in read_all::<Dispatch>(store, keys).await? {
            let Some(dispatch) = known.value.filter(|dispatch| dispatch.device.is_some()) else {
                continue;
            };
            batch.tasks.push(Work::check_run(&dispatch, None).task(relay, relay.now()));
            for job in head::jobs(relay, id, &dispatch.repo).await? {
                let work = Work::check_run(&dispatch, Some(&job.id));
                batch.tasks.push(work.task(relay, relay.now()));
            }
        }
    }
    relay.commit(batch).await?;
    Ok(Outcome::Done)
}
