//! Reads a record, changes it and commits the change, again while somebody else changes it in between.

use crcr_store::{CommitOutcome, StoreError, StoreKey, Versioned, WriteBatch, read_record};
use serde::de::DeserializeOwned;

use crate::limits;
use crate::relay::Relay;

/// What becomes of a record that was read, and what the caller gets.
pub(crate) enum RecordChange<T> {
    Nothing(T),
    Commit(WriteBatch, T),
}

impl Relay {
    /// [`StoreError::Unavailable`] when the record changed in every try.
    pub(crate) async fn update<R: DeserializeOwned, T>(
        &self,
        key: StoreKey,
        change: impl Fn(&Versioned<R>) -> RecordChange<T>,
    ) -> Result<T, StoreError> {
        for _ in 0..limits::CONFLICTS {
            let known = read_record(self.store.as_ref(), key.clone()).await?;
            match change(&known) {
                RecordChange::Nothing(done) => return Ok(done),
                RecordChange::Commit(batch, done) => {
                    if self.commit(batch).await? == CommitOutcome::Done {
                        return Ok(done);
                    }
                }
            }
        }
        Err(StoreError::Unavailable(format!("{} changed in every try to change it", key.as_str())))
    }
}
