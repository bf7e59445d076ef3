//! Reads records, and changes one: reads it, changes it and commits the change, again while somebody else changes it
//! in between.

use crcr_store::{
    CommitOutcome, StoreError, StoreKey, Versioned, WriteBatch, read_record, read_records,
};
use serde::de::DeserializeOwned;

use crate::limits;
use crate::relay::Relay;

impl Relay {
    pub(crate) async fn read_record<R: DeserializeOwned>(
        &self,
        key: StoreKey,
    ) -> Result<Versioned<R>, StoreError> {
        read_record(self.store.as_ref(), key).await
    }

    pub(crate) async fn read_records<R: DeserializeOwned>(
        &self,
        keys: Vec<StoreKey>,
    ) -> Result<Vec<Versioned<R>>, StoreError> {
        read_records(self.store.as_ref(), keys).await
    }

    /// `change` returns what the caller gets, and what to commit first, if anything.
    ///
    /// [`StoreError::Unavailable`] when the record changed in every try.
    pub(crate) async fn update<R: DeserializeOwned, T>(
        &self,
        key: StoreKey,
        change: impl Fn(&Versioned<R>) -> (T, Option<WriteBatch>),
    ) -> Result<T, StoreError> {
        for _ in 0..limits::CONFLICT_TRIES {
            let known = self.read_record(key.clone()).await?;
            let (done, batch) = change(&known);
            let Some(batch) = batch else { return Ok(done) };
            if self.commit(batch).await? == CommitOutcome::Done {
                return Ok(done);
            }
        }
        Err(StoreError::Unavailable(format!("{} changed in every try to change it", key.as_str())))
    }
}
