//! A store as it is shipped: SQLite on a simulated disk, or Redis. A thread of its own uses it, whose time is real.

use std::future;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crcr_standin::redis::{self, DURABLE};
use crcr_store::sqlite::CheckpointTrigger;
use crcr_store::{
    CommitOutcome, RedisStore, RedisUrl, SqliteStore, StateStore, StoreError, WriteBatch,
};
use jiff::Timestamp;
use tokio::runtime::Runtime;

use super::disk::SimulatedDisk;
use super::{REPLICAS, StoreKind};

const FILE: &str = "/state.db";
/// How long it is tried to reach a server that starts.
const START_TRIES: u32 = 1000;

type Question = Box<dyn FnOnce(&Runtime, &mut StoreProcess) + Send>;

pub(crate) struct RealStore {
    questions: Option<mpsc::Sender<Question>>,
    thread: Option<JoinHandle<()>>,
}

enum StoreProcess {
    /// One process has the file open.
    Sqlite { disk: SimulatedDisk, open: Option<Box<(SqliteStore, CheckpointTrigger)>> },
    /// Each replica has its own connections, and so has the operator.
    Redis { server: RedisProcess, clients: Box<[Option<RedisStore>; REPLICAS + 1]> },
}

/// How the power of the disk is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PowerCut {
    /// After this many further changes of files.
    pub(crate) after: u32,
    /// Whether the log is being moved into the file meanwhile.
    pub(crate) during_checkpoint: bool,
    /// Decides what is on the disk then.
    pub(crate) seed: u64,
}

type Outcomes = Vec<Result<CommitOutcome, StoreError>>;

impl RealStore {
    pub(crate) fn start(kind: StoreKind, seed: u64) -> Result<Option<Self>, StoreError> {
        let mut process = match kind {
            StoreKind::Memory => return Ok(None),
            StoreKind::Sqlite => {
                StoreProcess::Sqlite { disk: SimulatedDisk::of_this_thread(seed), open: None }
            }
            StoreKind::Redis => {
                let server = RedisProcess::start().map_err(|error| {
                    StoreError::Unavailable(format!("`redis-server` can't be started: {error}"))
                })?;
                StoreProcess::Redis { server, clients: Box::default() }
            }
        };
        let (questions, asked) = mpsc::channel::<Question>();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be made");
            while let Ok(question) = asked.recv() {
                question(&runtime, &mut process);
            }
            let _context = runtime.enter();
            drop(process);
        };
        let thread = Some(std::thread::spawn(run));
        let store = Self { questions: Some(questions), thread };
        store.ask(|runtime, process| process.open(runtime, REPLICAS))?;
        Ok(Some(store))
    }

    /// Asks, and waits for the answer. Nothing else of the simulation goes on meanwhile.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Runtime, &mut StoreProcess) -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = mpsc::sync_channel(1);
        let question: Question = Box::new(move |runtime, process| {
            let _ = reply.send(question(runtime, process));
        });
        let questions = self.questions.as_ref().expect("it is open until it is dropped");
        questions.send(question).expect("the store's thread runs");
        answer.recv().expect("the store's thread answers")
    }

    /// Asks the store as the client of this number sees it.
    pub(crate) fn with<T: Send + 'static>(
        &self,
        client: usize,
        ask: impl AsyncFnOnce(&dyn StateStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(move |runtime, process| match process.client(client) {
            Some(store) => runtime.block_on(ask(store)),
            None => Err(StoreError::Unavailable("the server is down".to_owned())),
        })
    }

    /// Opens the store for a process that starts.
    pub(crate) fn open(&self, client: usize) -> Result<(), StoreError> {
        self.ask(move |runtime, process| process.open(runtime, client))
    }

    /// A process that uses a server ends.
    pub(crate) fn close(&self, client: usize) {
        self.ask(move |runtime, process| {
            let _context = runtime.enter();
            if let StoreProcess::Redis { clients, .. } = process {
                clients[client] = None;
            }
        });
    }

    /// Moves SQLite's log into its file.
    pub(crate) fn make_checkpoint(&self) {
        self.ask(|_, process| {
            if let StoreProcess::Sqlite { open: Some(open), .. } = process {
                let (_, checkpoints) = open.as_ref();
                checkpoints.make();
            }
        });
    }

    /// Writes batches together, during which the power is cut, and opens what is left of the file. Returns what the store
    /// had answered by then.
    pub(crate) fn cut_power(
        &self,
        batches: Vec<(WriteBatch, Timestamp)>,
        cut: PowerCut,
    ) -> (Outcomes, Result<(), StoreError>) {
        self.ask(move |runtime, process| {
            let StoreProcess::Sqlite { disk, open } = process else { return (vec![], Ok(())) };
            let Some(opened) = open.take() else { return (vec![], Ok(())) };
            let (store, checkpoints) = *opened;
            let outcomes = runtime.block_on(async {
                let outcomes = write_together(&store, batches, || disk.cut_after(cut.after)).await;
                if cut.during_checkpoint {
                    checkpoints.make();
                }
                outcomes
            });
            disk.cut();
            drop((store, checkpoints));
            disk.power_on(cut.seed);
            (outcomes, process.open(runtime, 0))
        })
    }

    pub(crate) fn kill_server(&self) {
        self.ask(|runtime, process| {
            let _context = runtime.enter();
            if let StoreProcess::Redis { server, .. } = process {
                server.kill();
            }
        });
    }

    /// Starts the server again, and waits until each client has noticed.
    pub(crate) fn start_server(&self) -> Result<(), StoreError> {
        self.ask(|runtime, process| {
            let StoreProcess::Redis { server, clients } = process else { return Ok(()) };
            server.again().map_err(|error| StoreError::Unavailable(error.to_string()))?;
            runtime.block_on(async {
                for client in clients.iter().flatten() {
                    let at = Timestamp::UNIX_EPOCH;
                    // Reads and batches have connections of their own.
                    until_done(async || client.queue_depth().await.map(drop)).await?;
                    until_done(async || client.commit(WriteBatch::default(), at).await.map(drop))
                        .await?;
                }
                Ok(())
            })
        })
    }
}

impl Drop for RealStore {
    fn drop(&mut self) {
        drop(self.questions.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed why.
            let _ = thread.join();
        }
    }
}

impl StoreProcess {
    fn client(&self, number: usize) -> Option<&dyn StateStore> {
        match self {
            Self::Sqlite { open, .. } => open.as_ref().map(|open| &open.0 as &dyn StateStore),
            Self::Redis { clients, .. } => {
                clients[number].as_ref().map(|store| store as &dyn StateStore)
            }
        }
    }

    fn open(&mut self, runtime: &Runtime, client: usize) -> Result<(), StoreError> {
        match self {
            Self::Sqlite { disk, open } => {
                if open.is_none() {
                    *open =
                        Some(Box::new(SqliteStore::open_simulated(Path::new(FILE), &disk.name)?));
                }
                Ok(())
            }
            Self::Redis { clients, .. } if clients[client].is_some() => Ok(()),
            Self::Redis { server, clients } => {
                let url = RedisUrl::parse(&server.url()).map_err(StoreError::Unavailable)?;
                let opened = runtime.block_on(async {
                    let mut opened = None;
                    until_done(async || {
                        opened = Some(RedisStore::open(&url).await?);
                        Ok(())
                    })
                    .await
                    .map(|()| opened)
                });
                clients[client] = opened?;
                Ok(())
            }
        }
    }
}

async fn until_done(
    mut attempt: impl AsyncFnMut() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for _ in 0..START_TRIES {
        if attempt().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    attempt().await
}

/// Submits batches so that the writer takes all of them as one group. `start` is called before it begins.
async fn write_together(
    store: &SqliteStore,
    batches: Vec<(WriteBatch, Timestamp)>,
    start: impl FnOnce(),
) -> Outcomes {
    let (entered, is_entered) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let mut held = std::pin::pin!(store.write(move |_| {
        // The other ends are here until both have happened.
        let _ = entered.send(());
        let _ = may_leave.recv();
        Ok(0)
    }));
    // It is submitted when it is asked for the first time.
    tokio::select! {
        biased;
        _ = &mut held => {}
        () = future::ready(()) => {}
    }
    let _ = is_entered.recv();
    let mut submitted = vec![];
    for (batch, at) in batches {
        submitted.push(store.submit(batch, at).await);
    }
    start();
    let _ = leave.send(());
    let _ = held.await;
    let mut outcomes = vec![];
    for pending in submitted {
        outcomes.push(match pending {
            Ok(pending) => pending.durable().await,
            Err(error) => Err(error),
        });
    }
    outcomes
}

/// A `redis-server` on loopback that syncs every change, with a folder of its own.
struct RedisProcess {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl RedisProcess {
    fn start() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let start = || -> io::Result<_> {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            Ok((redis::start(port, folder.path(), &DURABLE)?, port))
        };
        // Another program may take the port before the server does.
        let (process, port) = start().or_else(|_| start())?;
        Ok(Self { process, port, folder })
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn again(&mut self) -> io::Result<()> {
        self.process = redis::start(self.port, self.folder.path(), &DURABLE)?;
        Ok(())
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs redis-server"]
    fn server_without_a_port_of_its_own_does_not_start() {
        let first = RedisProcess::start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        assert!(redis::start(first.port, folder.path(), &DURABLE).is_err());
        assert_ne!(RedisProcess::start().unwrap().port, first.port);
    }
}
