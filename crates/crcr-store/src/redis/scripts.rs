//! The scripts that change the state. Each runs atomically in the server.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, cmd};

use crate::sqlite::millis;
use crate::{StoreKey, TaskOutcome, WriteBatch};
use jiff::Timestamp;

#[derive(Debug, Clone, Copy)]
pub(crate) enum ScriptName {
    Commit,
    Lease,
    DeleteExpired,
    RepairTimes,
    DiscardDeadTask,
    FindTask,
    Outbox,
    Greet,
}

pub(crate) const COMMON: &str = include_str!("scripts/common.lua");
/// In the order of [`ScriptName`].
pub(crate) const SCRIPTS: [&str; 8] = [
    include_str!("scripts/commit.lua"),
    include_str!("scripts/lease.lua"),
    include_str!("scripts/delete_expired.lua"),
    include_str!("scripts/repair_times.lua"),
    include_str!("scripts/discard_dead_task.lua"),
    include_str!("scripts/find_task.lua"),
    include_str!("scripts/outbox.lua"),
    include_str!("scripts/greet.lua"),
];

/// The names under which the server knows the scripts. It forgets them when it restarts, so they are
/// loaded on every new connection.
pub(crate) struct LoadedScripts {
    names: [String; SCRIPTS.len()],
    schema: u32,
}

impl LoadedScripts {
    /// `schema` is what the caller can read; the scripts refuse to touch data that needs a newer one.
    pub(crate) async fn load(
        connection: &mut MultiplexedConnection,
        schema: u32,
    ) -> RedisResult<Self> {
        let mut names = [const { String::new() }; SCRIPTS.len()];
        for (name, script) in names.iter_mut().zip(SCRIPTS) {
            let text = format!("{COMMON}{script}");
            *name = cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await?;
        }
        Ok(Self { names, schema })
    }

    /// Loads them into a server that has forgotten them.
    pub(crate) async fn load_again(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<()> {
        Self::load(connection, self.schema).await.map(drop)
    }

    pub(crate) fn command(&self, prefix: &str, call: &ScriptCall) -> Cmd {
        let mut command = cmd("EVALSHA");
        command.arg(&self.names[call.script as usize]).arg(1).arg(prefix);
        command.arg(self.schema).arg(&call.arguments);
        command
    }
}

#[derive(Clone)]
pub(crate) struct ScriptCall {
    script: ScriptName,
    arguments: Vec<Vec<u8>>,
}

impl ScriptCall {
    pub(crate) fn new(script: ScriptName) -> Self {
        Self { script, arguments: vec![] }
    }

    pub(crate) fn text(mut self, text: &str) -> Self {
        self.push(text);
        self
    }

    pub(crate) fn number(self, number: impl itoa::Integer) -> Self {
        let mut digits = itoa::Buffer::new();
        self.text(digits.format(number))
    }

    pub(crate) fn time(self, time: Timestamp) -> Self {
        self.number(millis(time))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.arguments.iter().map(Vec::len).sum()
    }

    fn push(&mut self, bytes: impl AsRef<[u8]>) {
        self.arguments.push(bytes.as_ref().to_vec());
    }

    /// Adds a list as its length and its items.
    pub(crate) fn list<T>(
        mut self,
        items: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
        mut add: impl FnMut(Self, T) -> Self,
    ) -> Self {
        let items = items.into_iter();
        self = self.number(items.len());
        for item in items {
            self = add(self, item);
        }
        self
    }

    /// The call that applies a batch.
    pub(crate) fn commit(batch: &WriteBatch, now: Timestamp) -> Self {
        Self::new(ScriptName::Commit)
            .time(now)
            .list(&batch.expected_versions, |call, (key, version)| {
                call.text(key.as_str()).text(&format!("{version:016}"))
            })
            .list(batch.settlement.as_slice(), |call, settled| {
                let call = call.text(&task_id(settled.id)).number(settled.lease);
                match &settled.outcome {
                    TaskOutcome::Done => call.text("done").text("").text(""),
                    TaskOutcome::Later(at) => call.text("later").time(*at).text(""),
                    TaskOutcome::Retry { at, error } => call.text("retry").time(*at).text(error),
                    TaskOutcome::Postpone { at, error } => {
                        call.text("postpone").time(*at).text(error)
                    }
                    TaskOutcome::Release => call.text("release").text("").text(""),
                    TaskOutcome::Keep => call.text("keep").text("").text(""),
                    TaskOutcome::Dead { error, expires_at } => {
                        call.text("dead").time(*expires_at).text(error)
                    }
                }
            })
            .list(&batch.charges, |call, charge| {
                let call = call.text(charge.bucket.as_str()).number(charge.capacity);
                let first_of = charge.first_of.as_ref().map_or("", StoreKey::as_str);
                call.text(&charge.per_minute.to_string()).number(charge.cost).text(first_of)
            })
            .list(&batch.records, |mut call, record| {
                call.push(record.key.as_str());
                call.push(&record.value);
                call.time(record.expires_at)
            })
            .list(&batch.set_inserts, |call, insert| {
                // In ascending order, so that members with the same score are listed by name.
                let call = call.text(insert.set.as_str()).text(&insert.member);
                call.number(-insert.score).time(insert.expires_at)
            })
            .list(&batch.tasks, |call, task| {
                let call = call.text(task.key.as_str()).text(&task.lane);
                call.text(&task.payload).time(task.due_at)
            })
            .list(&batch.facts, |call, fact| {
                call.text(&serde_json::to_string(fact).expect("facts are always JSON"))
            })
    }
}

/// The name of a task in its keys: of a fixed width, so that tasks sort by age.
fn task_id(id: i64) -> String {
    format!("{id:016}")
}
