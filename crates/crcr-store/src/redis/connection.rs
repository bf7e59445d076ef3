//! A connection that comes back by itself, and what the server promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex as SyncMutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult, cmd};
use tokio::sync::Mutex;

use super::scripts::{LoadedScripts, ScriptCall, ScriptName};
use super::{RedisUrl, permissions};
use crate::{StoreError, StoreHealth};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Less than the ten seconds that GitHub waits for an answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses between two tries to connect.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// The longest such pause while somebody may be waiting.
const PATIENT_BACKOFF: Duration = Duration::from_millis(250);
/// For how long after the first failed try everybody waits for a server that restarts or fails over. GitHub waits
/// ten seconds for an answer.
const OUTAGE_WAIT: Duration = Duration::from_secs(3);
/// How often those who wait look whether the server is back.
const RECONNECT_POLL: Duration = Duration::from_millis(20);
/// A connection that was idle for longer is tried before a change is sent on it.
pub(crate) const IDLE: Duration = Duration::from_millis(100);
/// How long that may take. A server that is only slow still gets the change.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// The schema of the data. When a change of it makes data that older relays can't read or would damage,
/// `oldest_reader` becomes the new schema; then they stop working on the store when the first new one
/// starts. All other changes leave it, so that relays of both schemas work side by side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchemaVersion {
    pub(crate) schema: u32,
    pub(crate) oldest_reader: u32,
}

pub(crate) const CURRENT_SCHEMA: SchemaVersion = SchemaVersion { schema: 1, oldest_reader: 1 };

/// What every connection to one server has in common.
pub(crate) struct Server {
    url: RedisUrl,
    client: Client,
    schema: SchemaVersion,
    pub(crate) prefix: String,
    known: SyncMutex<KnownState>,
    /// How often any connection was made.
    connected: AtomicU64,
}

#[derive(Default)]
struct KnownState {
    /// The name of the set of data that this process has worked with.
    epoch: Option<String>,
    /// The start of the server that it was last connected to.
    server_start: String,
    /// The number of the last change that this process knows to be stored.
    sequence: i64,
    health: StoreHealth,
}

struct StoredState {
    epoch: String,
    sequence: i64,
    /// The sequence when the server was first used after its start.
    at_start: i64,
}

/// A connection of [`Server`], made anew after it was lost.
pub(crate) struct Connection {
    server: Arc<Server>,
    state: Mutex<ConnectionState>,
}

#[derive(Clone)]
pub(crate) struct OpenConnection {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) scripts: Arc<LoadedScripts>,
}

#[derive(Default)]
struct ConnectionState {
    open: Option<OpenConnection>,
    /// Counts the connections, so that a late error doesn't close a newer one.
    generation: u64,
    failed: u32,
    /// When the first of these tries began.
    out_since: Option<Instant>,
    retry_at: Option<Instant>,
    /// [`Server::connected`] at the last failure. If it has changed, the outage is over.
    connected: u64,
    problem: Option<String>,
}

impl Server {
    /// Every key begins with the prefix of `url` and `part`.
    pub(crate) fn new(
        url: &RedisUrl,
        part: &str,
        schema: SchemaVersion,
    ) -> Result<Self, StoreError> {
        let info = url.connection_info().map_err(|error| unavailable(&error))?;
        let client = Client::open(info).map_err(|error| unavailable(&error))?;
        let prefix = format!("{}{part}", url.key_prefix());
        Ok(Self {
            url: url.clone(),
            client,
            schema,
            prefix,
            known: SyncMutex::default(),
            connected: AtomicU64::new(0),
        })
    }

    pub(crate) fn health(&self) -> StoreHealth {
        self.known.lock().health.clone()
    }

    /// Notes the number of a stored change. Fails if the server has forgotten earlier ones.
    pub(crate) fn stored(&self, sequence: i64) -> Result<(), ()> {
        let mut known = self.known.lock();
        if sequence <= known.sequence {
            // The next connection finds out what is missing.
            return Err(());
        }
        known.sequence = sequence;
        Ok(())
    }

    async fn connect(&self) -> RedisResult<OpenConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        permissions::check(&mut connection, &self.prefix).await?;
        let scripts = Arc::new(LoadedScripts::load(&mut connection, self.schema.schema).await?);
        let info: String = cmd("INFO").query_async(&mut connection).await.unwrap_or_default();
        let weaker = weaker_promise(&mut connection, &info).await;
        let new_epoch = format!("{:032x}", rand::random::<u128>());
        let server_start = info_field(&info, "run_id").unwrap_or_default();
        let greeting = ScriptCall::new(ScriptName::Greet)
            .text(&new_epoch)
            .text(server_start)
            .number(self.schema.oldest_reader);
        let command = scripts.command(&self.prefix, &greeting);
        let (epoch, sequence, at_start) = command.query_async(&mut connection).await?;
        self.compare(StoredState { epoch, sequence, at_start }, server_start, weaker);
        self.connected.fetch_add(1, Ordering::Release);
        Ok(OpenConnection { connection, scripts })
    }

    /// Compares what the server has with what it had, and says so when something is missing.
    fn compare(&self, found: StoredState, server_start: &str, weaker: Option<String>) {
        let mut known = self.known.lock();
        let StoredState { epoch, sequence, at_start } = found;
        let is_same_start = !server_start.is_empty() && known.server_start == server_start;
        let kept = if is_same_start { sequence } else { sequence.min(at_start) };
        let loss = match &known.epoch {
            Some(before) if *before != epoch => Some(
                "the Redis server lost all data of this relay: it restarted without it, or \
                 somebody deleted it"
                    .to_owned(),
            ),
            Some(_) if kept < known.sequence => Some(format!(
                "the Redis server lost data: it came back with change {kept}, and change {} was \
                 acknowledged before",
                known.sequence
            )),
            _ => None,
        };
        if let Some(loss) = loss {
            tracing::error!(
                server = %self.url,
                "{loss}. Deliveries and reports that were answered with success are gone; see \
                 \"When Redis lost data\" in docs/operating/set-up.md"
            );
            known.health.losses += 1;
            known.health.loss = Some(loss);
            known.sequence = 0;
        }
        if known.health.weaker_promise != weaker {
            match &weaker {
                Some(weaker) => tracing::warn!(
                    server = %self.url,
                    "the store promises less than the relay does: {weaker}"
                ),
                None => tracing::info!(server = %self.url, "the store keeps what it acknowledges"),
            }
        }
        known.health.weaker_promise = weaker;
        known.epoch = Some(epoch);
        server_start.clone_into(&mut known.server_start);
        known.sequence = known.sequence.max(sequence);
    }
}

impl Connection {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server, state: Mutex::default() }
    }

    /// The open connection and its number. During an outage it fails at once between two tries.
    pub(crate) async fn get(&self) -> Result<(OpenConnection, u64), StoreError> {
        let mut state = self.state.lock().await;
        if let Some(open) = &state.open {
            return Ok((open.clone(), state.generation));
        }
        let connected = self.server.connected.load(Ordering::Acquire);
        if state.retry_at.is_some_and(|at| Instant::now() < at) && state.connected == connected {
            let problem = state.problem.clone().unwrap_or_default();
            return Err(StoreError::Unavailable(problem));
        }
        let began = Instant::now();
        match self.server.connect().await {
            Ok(open) => {
                if state.failed > 0 {
                    tracing::info!(server = %self.server.url, "connected to Redis again");
                }
                let generation = state.generation + 1;
                *state =
                    ConnectionState { open: Some(open.clone()), generation, ..Default::default() };
                Ok((open, generation))
            }
            Err(error) => {
                let problem = describe(&error);
                if state.problem.as_ref() != Some(&problem) {
                    tracing::error!(server = %self.server.url, problem, "Redis can't be used");
                }
                state.connected = connected;
                state.failed = state.failed.saturating_add(1);
                let doubled = FIRST_BACKOFF * 2_u32.pow(state.failed.min(10) - 1);
                let out_since = *state.out_since.get_or_insert(began);
                let is_patient = out_since.elapsed() < OUTAGE_WAIT;
                let longest = if is_patient { PATIENT_BACKOFF } else { LONGEST_BACKOFF };
                let pause = doubled.min(longest).mul_f64(rand::random_range(0.5..1.0));
                state.retry_at = Some(Instant::now() + pause);
                state.problem = Some(problem.clone());
                Err(StoreError::Unavailable(problem))
            }
        }
    }

    /// The same as [`Self::get`], and waits when an outage has only begun. In a longer one it fails at once.
    async fn get_patiently(&self) -> Result<(OpenConnection, u64), StoreError> {
        loop {
            match self.get().await {
                Err(error) if !self.is_patient().await => return Err(error),
                Err(_) => tokio::time::sleep(RECONNECT_POLL).await,
                open => return open,
            }
        }
    }

    async fn is_patient(&self) -> bool {
        let out_since = self.state.lock().await.out_since;
        out_since.is_none_or(|since| since.elapsed() < OUTAGE_WAIT)
    }

    /// A connection for changes, which can't be sent again when their answer is lost. So one that was idle is tried
    /// first: it may have been lost while nobody used it.
    pub(crate) async fn get_for_changes(
        &self,
        was_idle: bool,
    ) -> Result<(OpenConnection, u64), StoreError> {
        let (mut open, generation) = self.get_patiently().await?;
        if was_idle {
            let ping = cmd("PING");
            let answer = ping.query_async::<String>(&mut open.connection);
            if let Ok(Err(error)) = tokio::time::timeout(PING_TIMEOUT, answer).await
                && error.is_connection_dropped()
            {
                self.close(generation).await;
                return self.get_patiently().await;
            }
        }
        Ok((open, generation))
    }

    /// Closes a connection after an error, unless the error says that it still works.
    pub(crate) async fn failed(&self, generation: u64, error: &RedisError) {
        if matches!(error.code(), Some("OOM" | "MISCONF" | "BUSY")) {
            return;
        }
        self.close(generation).await;
    }

    pub(crate) async fn close(&self, generation: u64) {
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.open = None;
        }
    }

    pub(crate) async fn run<T: redis::FromRedisValue>(
        &self,
        call: ScriptCall,
    ) -> Result<T, StoreError> {
        let (mut open, generation) = self.get_patiently().await?;
        let command = open.scripts.command(&self.server.prefix, &call);
        let mut result = command.query_async(&mut open.connection).await;
        if result.as_ref().is_err_and(is_unknown_script)
            && open.scripts.load_again(&mut open.connection).await.is_ok()
        {
            result = command.query_async(&mut open.connection).await;
        }
        self.checked(generation, result).await
    }

    /// Sends commands that can be repeated, and returns their answers. The first try may find that the
    /// connection was lost while nobody used it.
    pub(crate) async fn query<T: redis::FromRedisValue>(
        &self,
        pipeline: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let (mut open, generation) = self.get_patiently().await?;
        match pipeline.query_async(&mut open.connection).await.map_err(server_error) {
            Err(error) if error.is_connection_dropped() => self.close(generation).await,
            result => return self.checked(generation, result).await,
        }
        let (mut open, generation) = self.get_patiently().await?;
        let result = pipeline.query_async(&mut open.connection).await.map_err(server_error);
        self.checked(generation, result).await
    }

    async fn checked<T>(&self, generation: u64, result: RedisResult<T>) -> Result<T, StoreError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                self.failed(generation, &error).await;
                Err(unavailable(&error))
            }
        }
    }
}

/// What the server promises less than that every change is on disk before it is acknowledged.
async fn weaker_promise(connection: &mut MultiplexedConnection, info: &str) -> Option<String> {
    let mut settings = std::collections::HashMap::new();
    for name in ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy"] {
        let answer: RedisResult<Vec<String>> =
            cmd("CONFIG").arg("GET").arg(name).query_async(connection).await;
        // Managed servers don't have the command, and a user may not have the right to it.
        if let Ok([_, value]) = answer.as_deref() {
            settings.insert(name, value.clone());
        }
    }
    let setting = |name: &str| settings.get(name).map(String::as_str);
    let appendonly = setting("appendonly").or(match info_field(info, "aof_enabled") {
        Some("0") => Some("no"),
        Some(_) => Some("yes"),
        None => None,
    });
    let policy = setting("maxmemory-policy").or(info_field(info, "maxmemory_policy"));
    let mut problems = vec![];
    match (appendonly, setting("appendfsync")) {
        (Some("no"), _) => problems.push(
            "`appendonly` is `no`: a crash of the server loses everything since its last snapshot",
        ),
        (_, Some("everysec")) => problems
            .push("`appendfsync` is `everysec`: a crash of its machine loses up to two seconds"),
        (_, Some("no")) => {
            problems
                .push("`appendfsync` is `no`: a crash of its machine loses about half a minute");
        }
        (Some("yes"), Some("always")) => {}
        _ => problems.push("the server doesn't tell its `appendfsync`"),
    }
    if setting("no-appendfsync-on-rewrite") == Some("yes") {
        problems.push("`no-appendfsync-on-rewrite` is `yes`: nothing is synced during a rewrite");
    }
    if policy.is_some_and(|policy| policy.starts_with("allkeys")) {
        problems.push("`maxmemory-policy` deletes records when memory is full: use `noeviction`");
    }
    (!problems.is_empty()).then(|| problems.join("; "))
}

pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether the server doesn't know a script any more, and so has done nothing: somebody flushed its scripts.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// What the server said of the first command of a pipeline that failed. The pipeline's own error has no text, and no code
/// that its library doesn't know.
fn server_error(error: RedisError) -> RedisError {
    match error.clone().into_server_errors().as_deref() {
        Some([(_, first), ..]) => first.clone().into(),
        _ => error,
    }
}

pub(crate) fn unavailable(error: &RedisError) -> StoreError {
    StoreError::Unavailable(describe(error))
}

/// The cause in words, without the server's address: some errors are read by strangers.
pub(crate) fn describe(error: &RedisError) -> String {
    // Inside a script, Redis 7.0 gives this error the code `ERR`.
    if error.to_string().contains("The user executing the script can't") {
        let detail = error.detail().unwrap_or_default();
        return format!("the Redis user lacks a permission ({detail})");
    }
    let what = match error.code() {
        Some("OOM") => "Redis is out of memory (`maxmemory`) and takes no writes",
        Some("READONLY") => {
            "Redis is a read-only replica: it is failing over, or the address is that of a replica"
        }
        Some("MISCONF") => "Redis can't write to its disk and takes no writes",
        Some("LOADING") => "Redis is starting and still loads its data",
        Some("MASTERDOWN") => "Redis is a replica that has lost its primary",
        Some("NOREPLICAS") => "Redis has fewer replicas than `min-replicas-to-write`",
        Some("CLUSTERDOWN") => "the Redis cluster is down",
        Some("MOVED" | "ASK") => {
            "this node of a Redis cluster doesn't hold the relay's keys: use the address of the \
             shard that does"
        }
        Some("NEWERDATA") => {
            "a newer crcr has written data that this one can't read: upgrade this relay"
        }
        Some("BUSY") => "Redis is busy with somebody's script",
        Some("NOPERM") => "the Redis user lacks a permission",
        Some("NOAUTH" | "WRONGPASS") => "Redis refuses the login",
        _ if error.kind() == ErrorKind::AuthenticationFailed => "Redis refuses the login",
        _ if error.is_connection_refusal() => "Redis can't be reached: connection refused",
        _ if error.is_timeout() => "Redis doesn't answer in time",
        _ if error.is_connection_dropped() => "Redis closed the connection",
        _ => return format!("Redis can't be used: {error}"),
    };
    match error.code() {
        Some("NOPERM" | "MISCONF" | "MOVED" | "NEWERDATA") => {
            format!("{what} ({})", error.detail().unwrap_or_default())
        }
        _ => what.to_owned(),
    }
}
