//! A fact that another version of crcr wrote: it waits for a relay that can read it.

use crcr_domain::results::facts::Fact;
use crcr_store::WriteBatch;

use crate::queue::task_kind::{TaskDone, TaskError};
use crate::relay::Relay;

pub(crate) async fn run(relay: &Relay, text: &str) -> Result<TaskDone, TaskError> {
    let fact: Fact = serde_json::from_str(text).map_err(|error| TaskError {
        is_outage: true,
        ..TaskError::retry(format!("the fact is of another version of crcr: {error}"))
    })?;
    relay.commit(WriteBatch { facts: vec![fact], ..WriteBatch::default() }).await?;
    Ok(TaskDone::Finished)
}
