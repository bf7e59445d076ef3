//! The state on a Redis server, for several relays at once.
//!
//! Scripts change it, each of them atomically. With `appendonly yes` and `appendfsync always` the server
//! answers a change when it is on its disk; one fsync serves all changes that have arrived together.
//!
//! No key of the state has a time to live: a server that may evict such keys would lose acknowledged
//! work when its memory is full. What has expired is in one sorted set and is deleted from there.

mod address;
mod connection;
mod permissions;
mod scripts;
mod snapshot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use crcr_domain::results::facts::{Fact, MergeBaseFact};
use jiff::Timestamp;
use redis::{RedisResult, pipe};
use tokio::sync::{mpsc, oneshot};

pub use self::address::RedisUrl;
use self::connection::{
    CURRENT_SCHEMA, Connection, IDLE, OpenConnection, Server, is_unknown_script, unavailable,
};
use self::scripts::{ScriptCall, ScriptName};
pub use self::snapshot::{RedisPosition, RedisSnapshot};
use crate::batch::KEEP_BUCKET;
use crate::sqlite::{millis, timestamp};
use crate::task::Turns;
use crate::{
    BudgetCharge, CommitOutcome, LeaseRequest, LeasedTask, LimitedBy, NewTask, OUTBOX_BYTES,
    OutboxEntry, PendingCommit, QueueDepth, SetInsert, StateStore, StoreError, StoreHealth,
    StoreKey, StoredRecord, TaskOutcome, TaskState, TaskView, WriteBatch, pool_of, start_of_keys,
};

/// Batches that may wait for the writer. When there are more, callers wait.
const WAITING_BATCHES: usize = 4096;
/// The most batches that are sent at once. They share one fsync.
const GROUP_BATCHES: usize = 512;
/// No further batch is sent with others that have this many bytes.
const GROUP_BYTES: usize = 16 * 1024 * 1024;
/// After this long without a batch of facts, another relay copies them. A relay that hasn't looked for any for this
/// long has stopped.
const OUTBOX_HOLD: Duration = Duration::from_secs(10);
/// The most rows of each kind that one call deletes.
const DELETED_ROWS: u32 = 500;
/// After this long, a bucket is full again and can be deleted; the same as in the script.
const BUCKET_FULL: Duration = KEEP_BUCKET;
/// How many lanes are read at a time.
const LANES_AT_ONCE: usize = 256;
/// How many tasks are read at a time.
const TASKS_AT_ONCE: usize = 1000;
/// The digits of a record's version, which are in front of its value.
const VERSION_DIGITS: usize = 16;

pub struct RedisStore {
    server: Arc<Server>,
    /// For everything but batches.
    connection: Connection,
    writer: mpsc::Sender<SubmittedBatch>,
    /// Names this process among those that copy facts.
    id: String,
}

struct SubmittedBatch {
    call: ScriptCall,
    reply: oneshot::Sender<Result<CommitOutcome, StoreError>>,
}

impl RedisStore {
    /// Fails when the server can't be reached, or its user lacks a permission.
    pub async fn open(url: &RedisUrl) -> Result<Self, StoreError> {
        Self::open_server(Server::new(url, "", CURRENT_SCHEMA)?).await
    }

    async fn open_server(server: Server) -> Result<Self, StoreError> {
        let server = Arc::new(server);
        let connection = Connection::new(Arc::clone(&server));
        connection.get().await?;
        let (writer, batches) = mpsc::channel(WAITING_BATCHES);
        tokio::spawn(write_batches(Arc::clone(&server), batches));
        let id = format!("{:032x}", rand::random::<u128>());
        Ok(Self { server, connection, writer, id })
    }

    /// Opens the store and makes every kind of change once, on keys of its own, which are deleted afterwards. So a server
    /// that takes no writes is found, too.
    pub async fn rehearse(url: &RedisUrl) -> Result<(), StoreError> {
        drop(Self::open(url).await?);
        let part = format!(":check-{:032x}", rand::random::<u128>());
        let store = Self::open_server(Server::new(url, &part, CURRENT_SCHEMA)?).await?;
        let tried = store.rehearse_commands().await;
        let names = "epoch needed_schema sequence starts last_task outbox outbox_reader relay_seen lanes \
                     served lane:check expiry record:[\"check\"] set:[\"check\"] bucket:[\"check\"] kind:check task_ids \
                     task:0000000000000001 tasks:ready tasks:leased tasks:dead";
        let names: Vec<_> = names.split(' ').map(|name| store.key(name)).collect();
        let mut delete = pipe();
        delete.cmd("DEL").arg(names);
        tried.and(store.connection.query::<(u64,)>(&delete).await.map(drop))
    }

    /// Whether a relay uses this store, or has within the last ten seconds.
    pub async fn is_used_by_a_relay(&self) -> Result<bool, StoreError> {
        let mut ask = pipe();
        ask.cmd("EXISTS").arg(self.key("relay_seen"));
        let (is_seen,): (bool,) = self.connection.query(&ask).await?;
        Ok(is_seen)
    }

    async fn rehearse_commands(&self) -> Result<(), StoreError> {
        let (now, key) = (Timestamp::now(), StoreKey::new(&["check"]));
        let task = NewTask {
            key: key.clone(),
            lane: "check".to_owned(),
            payload: String::new(),
            due_at: now,
        };
        let mut batch = WriteBatch {
            set_inserts: vec![SetInsert {
                set: key.clone(),
                member: "check".to_owned(),
                score: 0,
                expires_at: now,
            }],
            charges: vec![BudgetCharge::per_minute(key.clone(), 1)],
            tasks: vec![task],
            facts: vec![Fact::MergeBase(MergeBaseFact {
                upstream: String::new(),
                pull_request: 0,
                head_sha: String::new(),
                at: now,
                merge_base: String::new(),
                committed_at: now,
                changed_files: vec![],
            })],
            ..WriteBatch::default()
        };
        batch.set(key.clone(), &now, now);
        self.commit(batch, now).await?;
        self.records(std::slice::from_ref(&key)).await?;
        self.members(&key, 1).await?;
        self.tasks(None, 1).await?;
        self.count_tasks("check").await?;
        self.queue_depth().await?;
        self.find_task(key.as_str(), TaskState::Ready).await?;
        let request = LeaseRequest {
            now,
            until: now,
            max_tasks: 1,
            max_per_lane: 1,
            ..LeaseRequest::default()
        };
        for task in self.lease_tasks(request).await? {
            let outcome = TaskOutcome::Dead { error: "check".to_owned(), expires_at: now };
            let settlement = Some(task.settle(outcome));
            self.commit(WriteBatch { settlement, ..WriteBatch::default() }, now).await?;
        }
        self.discard_dead_task(key.as_str()).await?;
        self.repair_times(now).await?;
        for entry in self.outbox(1).await? {
            self.remove_from_outbox(&entry.id).await?;
        }
        while self.delete_expired(now + 2 * OUTBOX_HOLD + BUCKET_FULL).await? > 0 {}
        Ok(())
    }

    /// The lanes that can get tasks now, in the order of their turns.
    async fn turns<'a>(&self, request: &'a LeaseRequest) -> Result<Turns<'a>, StoreError> {
        let mut turns = Turns::new(request);
        let mut offset = 0;
        loop {
            let mut read = pipe();
            read.cmd("ZRANGEBYSCORE").arg(self.key("lanes")).arg("-inf").arg(millis(request.now));
            read.arg("LIMIT").arg(offset).arg(LANES_AT_ONCE);
            let (lanes,): (Vec<String>,) = self.connection.query(&read).await?;
            let is_last = lanes.len() < LANES_AT_ONCE;
            lanes.into_iter().for_each(|lane| turns.add(lane));
            if is_last || turns.is_full() {
                return Ok(turns);
            }
            offset += LANES_AT_ONCE;
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.server.prefix)
    }
}

/// Sends batches in the order of their submission, until every sender is gone.
async fn write_batches(server: Arc<Server>, mut batches: mpsc::Receiver<SubmittedBatch>) {
    let connection = Connection::new(Arc::clone(&server));
    let mut used_at = Instant::now();
    while let Some(first) = batches.recv().await {
        let mut bytes = first.call.bytes();
        let mut group = vec![first];
        while group.len() < GROUP_BATCHES && bytes < GROUP_BYTES {
            let Ok(next) = batches.try_recv() else { break };
            bytes += next.call.bytes();
            group.push(next);
        }
        let open = connection.get_for_changes(used_at.elapsed() > IDLE).await;
        let (calls, replies): (Vec<_>, Vec<_>) =
            group.into_iter().map(|batch| (batch.call, batch.reply)).unzip();
        let (mut open, generation) = match open {
            Ok(open) => open,
            Err(error) => {
                let problem = match error {
                    StoreError::Unavailable(problem) => problem,
                    other => other.to_string(),
                };
                for reply in replies {
                    drop(reply.send(Err(StoreError::Unavailable(problem.clone()))));
                }
                continue;
            }
        };
        let mut results = send_batches(&server, &mut open, &calls).await;
        // The server's scripts were flushed. What it didn't know wasn't applied, so it can be repeated.
        let unknown: Vec<usize> = (0..results.len())
            .filter(|n| results[*n].as_ref().is_err_and(is_unknown_script))
            .collect();
        if !unknown.is_empty() && open.scripts.load_again(&mut open.connection).await.is_ok() {
            let again: Vec<_> = unknown.iter().map(|n| calls[*n].clone()).collect();
            for (n, result) in
                unknown.into_iter().zip(send_batches(&server, &mut open, &again).await)
            {
                results[n] = result;
            }
        }
        used_at = Instant::now();
        // Whoever asked may have gone away; the change stands all the same.
        for (reply, result) in replies.into_iter().zip(results) {
            let outcome = match result {
                Ok((outcome, number, charge)) => {
                    if outcome == "done" && server.stored(number).is_err() {
                        connection.close(generation).await;
                    }
                    commit_outcome(&outcome, number, charge)
                }
                Err(error) => {
                    connection.failed(generation, &error).await;
                    Err(unavailable(&error))
                }
            };
            drop(reply.send(outcome));
        }
    }
}

/// What the script of a batch answers: the outcome, a number that belongs to it, and the place of a charge.
type BatchAnswer = RedisResult<(String, i64, usize)>;

async fn send_batches(
    server: &Server,
    open: &mut OpenConnection,
    calls: &[ScriptCall],
) -> Vec<BatchAnswer> {
    let mut pipeline = pipe();
    for call in calls {
        pipeline.add_command(open.scripts.command(&server.prefix, call));
    }
    pipeline.ignore_errors();
    let answers: RedisResult<Vec<BatchAnswer>> = pipeline.query_async(&mut open.connection).await;
    match answers {
        Ok(answers) => answers,
        Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
    }
}

fn commit_outcome(outcome: &str, number: i64, charge: usize) -> Result<CommitOutcome, StoreError> {
    Ok(match outcome {
        "done" => CommitOutcome::Done,
        "conflict" => CommitOutcome::Conflict,
        "limited" => {
            let wait = Duration::from_millis(number.unsigned_abs());
            CommitOutcome::Limited(LimitedBy { charge, wait })
        }
        "lease_lost" => CommitOutcome::LeaseLost,
        _ => return Err(StoreError::Unavailable(format!("Redis answered `{outcome}`"))),
    })
}

#[async_trait]
impl StateStore for RedisStore {
    async fn records(&self, keys: &[StoreKey]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        if keys.is_empty() {
            return Ok(vec![]);
        }
        let names: Vec<_> =
            keys.iter().map(|key| self.key(&format!("record:{}", key.as_str()))).collect();
        let mut read = pipe();
        read.cmd("MGET").arg(names);
        let (values,): (Vec<Option<Vec<u8>>>,) = self.connection.query(&read).await?;
        let record = |(key, value): (&StoreKey, Option<Vec<u8>>)| {
            let Some(mut bytes) = value else { return Ok(None) };
            let version = bytes
                .get(..VERSION_DIGITS)
                .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
            let Some(version) = version else {
                return Err(StoreError::Malformed {
                    key: key.as_str().to_owned(),
                    reason: "it doesn't begin with a version".to_owned(),
                });
            };
            bytes.drain(..VERSION_DIGITS);
            Ok(Some(StoredRecord { version, value: bytes }))
        };
        keys.iter().zip(values).map(record).collect()
    }

    async fn members(&self, set: &StoreKey, limit: usize) -> Result<Vec<String>, StoreError> {
        let Some(last) = last_index(limit) else { return Ok(vec![]) };
        let mut read = pipe();
        read.cmd("ZRANGE").arg(self.key(&format!("set:{}", set.as_str()))).arg(0).arg(last);
        let (members,) = self.connection.query(&read).await?;
        Ok(members)
    }

    async fn submit(&self, batch: WriteBatch, now: Timestamp) -> Result<PendingCommit, StoreError> {
        let (reply, outcome) = oneshot::channel();
        let batch = SubmittedBatch { call: ScriptCall::commit(&batch, now), reply };
        let stopped = |_| StoreError::Unavailable("its writer has stopped".to_owned());
        self.writer.send(batch).await.map_err(stopped)?;
        Ok(PendingCommit(outcome))
    }

    async fn lease_tasks(&self, request: LeaseRequest) -> Result<Vec<LeasedTask>, StoreError> {
        let turns = self.turns(&request).await?;
        if turns.lanes().is_empty() || request.max_tasks == 0 {
            return Ok(vec![]);
        }
        // A random number, because one that counts could come again after the server lost data.
        let lease = i64::from(rand::random::<u32>()) + 1;
        let call = ScriptCall::new(ScriptName::Lease)
            .time(request.now)
            .time(request.until)
            .number(lease)
            .number(request.max_tasks)
            .list(turns.pools(), |call, (pool, free)| call.text(pool).number(free))
            .list(turns.lanes(), |call, lane| {
                call.text(&lane.lane).text(pool_of(&lane.lane)).number(lane.room)
            });
        let tasks: Vec<(i64, String, String, String, u32, i64)> = self.connection.run(call).await?;
        let task = |(id, key, lane, payload, failed, created_at)| LeasedTask {
            id,
            lease,
            key,
            lane,
            payload,
            failed,
            created_at: timestamp(created_at),
        };
        Ok(tasks.into_iter().map(task).collect())
    }

    async fn tasks(
        &self,
        state: Option<TaskState>,
        limit: usize,
    ) -> Result<Vec<TaskView>, StoreError> {
        let Some(last) = last_index(limit) else { return Ok(vec![]) };
        let states = match &state {
            Some(state) => std::slice::from_ref(state),
            None => &[TaskState::Ready, TaskState::Leased, TaskState::Dead],
        };
        let mut views = vec![];
        for state in states {
            let mut read = pipe();
            read.cmd("ZRANGE")
                .arg(self.key(&format!("tasks:{}", state_name(*state))))
                .arg(0)
                .arg(last);
            let (ids,): (Vec<String>,) = self.connection.query(&read).await?;
            for ids in ids.chunks(TASKS_AT_ONCE) {
                let mut read = pipe();
                for id in ids {
                    let fields =
                        ["key", "lane", "state", "failed", "due_at", "created_at", "last_error"];
                    read.cmd("HMGET").arg(self.key(&format!("task:{id}"))).arg(&fields);
                }
                type Fields = Option<String>;
                type Row = (Fields, Fields, Fields, Option<u32>, Option<i64>, Option<i64>, Fields);
                let rows: Vec<Row> = self.connection.query(&read).await?;
                // A task that has ended or changed meanwhile isn't listed.
                views.extend(rows.into_iter().filter_map(|row| {
                    let (key, lane, found, failed, due_at, created_at, last_error) = row;
                    (found? == state_name(*state)).then_some(())?;
                    Some(TaskView {
                        key: key?,
                        lane: lane?,
                        state: *state,
                        failed: failed?,
                        due_at: timestamp(due_at?),
                        created_at: timestamp(created_at?),
                        last_error,
                    })
                }));
            }
        }
        views.sort_by_key(|view| view.due_at);
        views.truncate(limit);
        Ok(views)
    }

    async fn find_task(&self, key: &str, state: TaskState) -> Result<Option<NewTask>, StoreError> {
        let call = ScriptCall::new(ScriptName::FindTask).text(key);
        let found: Vec<String> = self.connection.run(call).await?;
        let [found_state, lane, payload, due_at] = found.as_slice() else { return Ok(None) };
        if found_state != state_name(state) {
            return Ok(None);
        }
        Ok(Some(NewTask {
            key: StoreKey(key.to_owned()),
            lane: lane.clone(),
            payload: payload.clone(),
            due_at: timestamp(due_at.parse().unwrap_or_default()),
        }))
    }

    async fn discard_dead_task(&self, key: &str) -> Result<bool, StoreError> {
        let call = ScriptCall::new(ScriptName::DiscardDeadTask).text(key);
        Ok(self.connection.run::<u64>(call).await? > 0)
    }

    async fn queue_depth(&self) -> Result<QueueDepth, StoreError> {
        let mut read = pipe();
        for state in [TaskState::Ready, TaskState::Leased, TaskState::Dead] {
            read.cmd("ZCARD").arg(self.key(&format!("tasks:{}", state_name(state))));
        }
        read.cmd("XLEN").arg(self.key("outbox"));
        let (ready, leased, dead, facts) = self.connection.query(&read).await?;
        Ok(QueueDepth { ready, leased, dead, facts })
    }

    async fn count_tasks(&self, kind: &str) -> Result<u64, StoreError> {
        let mut read = pipe();
        read.cmd("SCARD").arg(self.key(&format!("kind:{kind}")));
        let (count,) = self.connection.query(&read).await?;
        Ok(count)
    }

    /// Without the set that has the tasks of a kind, whose members the relay's user may not be allowed to read.
    async fn task_keys(&self, kind: &str, state: TaskState) -> Result<Vec<String>, StoreError> {
        let start = start_of_keys(kind);
        let mut read = pipe();
        read.cmd("ZRANGE").arg(self.key(&format!("tasks:{}", state_name(state)))).arg(0).arg(-1);
        let (ids,): (Vec<String>,) = self.connection.query(&read).await?;
        let mut found = vec![];
        for ids in ids.chunks(TASKS_AT_ONCE) {
            let mut read = pipe();
            for id in ids {
                read.cmd("HGET").arg(self.key(&format!("task:{id}"))).arg("key");
            }
            let keys: Vec<Option<String>> = self.connection.query(&read).await?;
            found.extend(keys.into_iter().flatten().filter(|key| key.starts_with(&start)));
        }
        found.sort();
        Ok(found)
    }

    fn stores_facts(&self) -> bool {
        false
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn health(&self) -> StoreHealth {
        self.server.health()
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, StoreError> {
        let call = ScriptCall::new(ScriptName::Outbox)
            .text(&self.id)
            .number(OUTBOX_HOLD.as_millis())
            .number(limit)
            .number(OUTBOX_BYTES);
        let entries: Vec<(String, String)> = self.connection.run(call).await?;
        Ok(entries.into_iter().map(|(id, text)| OutboxEntry::new(id, text)).collect())
    }

    async fn remove_from_outbox(&self, last: &str) -> Result<(), StoreError> {
        let next = last.split_once('-').and_then(|(millis, number)| {
            Some(format!("{millis}-{}", number.parse::<u64>().ok()?.checked_add(1)?))
        });
        let Some(next) = next else {
            return Err(StoreError::Malformed {
                key: format!("outbox {last}"),
                reason: "the id isn't one of a stream".to_owned(),
            });
        };
        let mut trim = pipe();
        trim.cmd("XTRIM").arg(self.key("outbox")).arg("MINID").arg(next);
        self.connection.query::<(u64,)>(&trim).await.map(drop)
    }

    async fn repair_times(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.connection.run(ScriptCall::new(ScriptName::RepairTimes).time(now)).await
    }

    async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let call = ScriptCall::new(ScriptName::DeleteExpired).time(now).number(DELETED_ROWS);
        self.connection.run(call).await
    }
}

/// The index of the last of `limit` items, as Redis takes it; `None` if there is none.
fn last_index(limit: usize) -> Option<i64> {
    i64::try_from(limit).unwrap_or(i64::MAX).checked_sub(1).filter(|last| *last >= 0)
}

fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Ready => "ready",
        TaskState::Leased => "leased",
        TaskState::Dead => "dead",
    }
}
