//! Snapshots of a Redis server: has it write one, and says which data set it is of.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use redis::pipe;
use serde::{Deserialize, Serialize};

use super::RedisStore;
use super::connection::info_field;
use crate::StoreError;

const POLL: Duration = Duration::from_millis(200);

/// Which data a Redis server has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedisPosition {
    /// The name of this set of data. It is lost with it.
    pub epoch: String,
    /// The number of the last change.
    pub sequence: i64,
}

impl RedisPosition {
    /// Whether a server at `self` has everything that it had at `before`.
    pub fn contains(&self, before: &Self) -> bool {
        self.epoch == before.epoch && self.sequence >= before.sequence
    }
}

/// A snapshot that a server has just written.
#[derive(Debug, Clone)]
pub struct RedisSnapshot {
    /// The snapshot has at least this.
    pub position: RedisPosition,
    /// Its path on the server's machine, if the server tells it.
    pub path: Option<PathBuf>,
}

impl RedisStore {
    /// Which data the server has now.
    pub async fn position(&self) -> Result<RedisPosition, StoreError> {
        let mut keys = pipe();
        keys.cmd("GET").arg(self.key("epoch")).cmd("GET").arg(self.key("sequence"));
        let (epoch, sequence): (Option<String>, Option<i64>) = self.connection.query(&keys).await?;
        Ok(RedisPosition {
            epoch: epoch.unwrap_or_default(),
            sequence: sequence.unwrap_or_default(),
        })
    }

    /// Has the server write a snapshot of all its data, and waits for its end. The user needs the commands
    /// `BGSAVE` and `INFO`.
    pub async fn snapshot(&self, limit: Duration) -> Result<RedisSnapshot, StoreError> {
        let until = Instant::now() + limit;
        let position = self.position().await?;
        // One that has begun before may lack the newest changes. While its file of changes is rewritten, Redis begins none.
        for writes in ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"] {
            while self.persistence(writes).await? == "1" {
                wait(until).await?;
            }
        }
        let saves = self.persistence("rdb_saves").await?;
        let begin = pipe().cmd("BGSAVE").clone();
        self.connection.query::<(String,)>(&begin).await?;
        while self.persistence("rdb_bgsave_in_progress").await? == "1" {
            wait(until).await?;
        }
        if self.persistence("rdb_last_bgsave_status").await? != "ok" {
            let what = "Redis couldn't write its snapshot; its log says why".to_owned();
            return Err(StoreError::Unavailable(what));
        }
        // Redis counts them since version 7.
        if !saves.is_empty() && self.persistence("rdb_saves").await? == saves {
            let what = "Redis wrote no snapshot; its log says why".to_owned();
            return Err(StoreError::Unavailable(what));
        }
        let setting = async |name: &str| -> Option<String> {
            let get = pipe().cmd("CONFIG").arg("GET").arg(name).clone();
            let (answer,): (Vec<String>,) = self.connection.query(&get).await.ok()?;
            answer.into_iter().nth(1)
        };
        let folder = setting("dir").await;
        let path = folder.zip(setting("dbfilename").await);
        Ok(RedisSnapshot {
            position,
            path: path.map(|(folder, name)| PathBuf::from(folder).join(name)),
        })
    }

    async fn persistence(&self, field: &str) -> Result<String, StoreError> {
        let ask = pipe().cmd("INFO").arg("persistence").clone();
        let (info,): (String,) = self.connection.query(&ask).await?;
        Ok(info_field(&info, field).unwrap_or_default().to_owned())
    }
}

async fn wait(until: Instant) -> Result<(), StoreError> {
    if Instant::now() > until {
        let what = "Redis is still writing its snapshot".to_owned();
        return Err(StoreError::Unavailable(what));
    }
    tokio::time::sleep(POLL).await;
    Ok(())
}
