//! Reads a record, changes it and commits the change, again while somebody else changes it in between.

use crcr_store::{CommitOutcome, StoreError, StoreKey, Versioned, WriteBatch, read_record};
use serde::de::DeserializeOwned;

use crate::limits;
use crate::relay::Relay;

impl Relay {
    /// `change` returns what the caller gets, and what to commit first, if anything.
    ///
    /// [`StoreError::Unavailable`] when the record changed in every try.
    pub(crate) async fn update<R: DeserializeOwned, T>(
        &self,
        key: StoreKey,
        change: impl Fn(&Versioned<R>) -> (T, Option<WriteBatch>),
    ) -> Result<T, StoreError> {
        for _ in 0..limits::CONFLICT_TRIES {
            let known = read_record(self.store.as_ref(), key.clone()).await?;
            let (done, batch) = change(&known);
            let Some(batch) = batch else { return Ok(done) };
            if self.commit(batch).await? == CommitOutcome::Done {
                return Ok(done);
            }
        }
        Err(StoreError::Unavailable(format!("{} changed in every try to change it", key.as_str())))
    }
}
