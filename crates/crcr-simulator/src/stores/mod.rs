//! The store that the replicas share. In memory, it is what everything is compared with. In some simulations a real
//! store is used beside it, which has to answer the same.

mod disk;
mod real;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use crcr_store::memory::MemoryStore;
use crcr_store::{
    CommitOutcome, LeaseRequest, LeasedTask, NewTask, PendingCommit, QueueDepth, StateStore,
    StoreError, StoreKey, StoredRecord, TaskOutcome, TaskState, TaskView, WriteBatch, pool_of,
};
use jiff::Timestamp;
use parking_lot::Mutex;

pub(crate) use self::real::PowerCut;
use self::real::RealStore;
use crate::ledger::Broken;

/// How many replicas of the relay share the store.
pub(crate) const REPLICAS: usize = 2;

/// Where the state of a simulated relay is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreKind {
    #[default]
    Memory,
    /// SQLite on a simulated disk, and one replica.
    Sqlite,
    /// A `redis-server` on this machine.
    Redis,
}

pub(crate) fn unavailable() -> StoreError {
    StoreError::Unavailable("simulated".to_owned())
}

crcr_domain::names! { StoreKind { Memory "memory", Sqlite "sqlite", Redis "redis" } }

impl StoreKind {
    /// Fails if there is no `redis-server` on this machine and one is needed.
    pub fn check(self) -> Result<(), StoreError> {
        RealStore::start(self, 0).map(drop)
    }
}

pub(crate) struct SharedStore {
    pub(crate) memory: Arc<MemoryStore>,
    real: Option<RealStore>,
    /// Whether the server was killed.
    is_down: AtomicBool,
    known: Mutex<KnownKeys>,
    /// When a task of each lane was leased last, by the clock of the replica that did.
    served: Mutex<BTreeMap<String, Timestamp>>,
    /// What the real store did otherwise.
    difference: Mutex<Option<String>>,
}

/// The keys of every record and set that was ever submitted.
#[derive(Default)]
struct KnownKeys {
    records: BTreeSet<StoreKey>,
    sets: BTreeSet<StoreKey>,
}

impl SharedStore {
    pub(crate) fn start(kind: StoreKind, seed: u64) -> Result<Self, StoreError> {
        Ok(Self {
            memory: Arc::default(),
            real: RealStore::start(kind, seed)?,
            is_down: AtomicBool::new(false),
            known: Mutex::default(),
            served: Mutex::default(),
            difference: Mutex::default(),
        })
    }

    fn differs(&self, how: String) {
        self.difference.lock().get_or_insert(how);
    }

    /// The real store, if there is one.
    fn real(&self) -> Result<Option<&RealStore>, StoreError> {
        if self.is_down.load(Ordering::Relaxed) {
            Err(unavailable())
        } else {
            Ok(self.real.as_ref())
        }
    }

    /// An answer of the real store, which never fails while it runs.
    fn checked<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        answer.inspect_err(|error| self.differs(format!("it failed: {error}")))
    }

    /// Reads from the real store, and compares the answer with the other one's.
    fn read<T: PartialEq + Debug + Send + 'static>(
        &self,
        client: usize,
        ask: impl AsyncFn(&dyn StateStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let real = self.real()?;
        let expected = at_once(ask(self.memory.as_ref()))?;
        let Some(real) = real else { return Ok(expected) };
        let found = self.checked(real.with(client, ask))?;
        if found != expected {
            self.differs(format!("it answered {found:?} instead of {expected:?}"));
        }
        Ok(found)
    }

    pub(crate) fn apply(
        &self,
        client: usize,
        batch: WriteBatch,
        at: Timestamp,
    ) -> Result<CommitOutcome, StoreError> {
        let Some(real) = self.real()? else { return Ok(self.memory.apply(batch, at)) };
        let (batch, at) = (self.noted(batch), in_millis(at));
        let same = batch.clone();
        let found = real.with(client, async move |store| store.commit(same, at).await);
        let found = self.checked(found)?;
        self.apply_like(batch, at, found);
        Ok(found)
    }

    /// Applies a batch whose outcome is known.
    fn apply_like(&self, batch: WriteBatch, at: Timestamp, found: CommitOutcome) {
        let expected = self.memory.apply(batch, at);
        let is_same = match (found, expected) {
            // Waits may differ by how floating point numbers are rounded.
            (CommitOutcome::Limited(one), CommitOutcome::Limited(other)) => {
                one.charge == other.charge
            }
            _ => found == expected,
        };
        if !is_same {
            self.differs(format!("the outcome of a batch was {found:?} instead of {expected:?}"));
        }
    }

    /// Real stores keep milliseconds.
    fn noted(&self, mut batch: WriteBatch) -> WriteBatch {
        let mut known = self.known.lock();
        known.records.extend(batch.records.iter().map(|record| record.key.clone()));
        known.sets.extend(batch.set_inserts.iter().map(|insert| insert.set.clone()));
        batch.records.iter_mut().for_each(|one| one.expires_at = in_millis(one.expires_at));
        batch.set_inserts.iter_mut().for_each(|one| one.expires_at = in_millis(one.expires_at));
        batch.tasks.iter_mut().for_each(|task| task.due_at = in_millis(task.due_at));
        match batch.settlement.as_mut().map(|settled| &mut settled.outcome) {
            Some(TaskOutcome::Later(at) | TaskOutcome::Retry { at, .. }) => *at = in_millis(*at),
            Some(TaskOutcome::Postpone { at, .. }) => *at = in_millis(*at),
            Some(TaskOutcome::Dead { expires_at, .. }) => *expires_at = in_millis(*expires_at),
            Some(TaskOutcome::Done | TaskOutcome::Release | TaskOutcome::Keep) | None => {}
        }
        batch
    }

    pub(crate) fn lease(
        &self,
        client: usize,
        mut request: LeaseRequest,
    ) -> Result<Vec<LeasedTask>, StoreError> {
        let Some(real) = self.real()? else { return Ok(self.memory.lease(&request)) };
        (request.now, request.until) = (in_millis(request.now), in_millis(request.until));
        let same = request.clone();
        let leased = real.with(client, async move |store| store.lease_tasks(same).await);
        let leased = self.checked(leased)?;
        if let Err(how) = self.memory.adopt_leases(&leased, &request) {
            self.differs(how);
        }
        // Which lane comes first may differ, but not that something is leased. It is a lane's turn by when it was last
        // served: if that was by a replica whose clock is ahead, it waits until this one's clock has come so far.
        let mut served = self.served.lock();
        let ready = at_once(self.memory.tasks(Some(TaskState::Ready), usize::MAX))?;
        let is_due = |task: &TaskView| {
            task.due_at <= request.now
                && served.get(&task.lane).is_none_or(|served| *served <= request.now)
                && request.pools.contains_key(pool_of(&task.lane))
        };
        if leased.is_empty()
            && has_room(&request)
            && let Some(TaskView { key, due_at, .. }) = ready.iter().find(|task| is_due(task))
        {
            self.differs(format!("it leased nothing, and {key} is due since {due_at}"));
        }
        served.extend(leased.iter().map(|task| (task.lane.clone(), request.now)));
        Ok(leased)
    }

    /// Connects a replica that starts to the real store, if there is one.
    pub(crate) fn open(&self, client: usize) {
        if let Some(real) = &self.real {
            // While the server is down, its clients come back by themselves.
            let opened =
                if self.is_down.load(Ordering::Relaxed) { Ok(()) } else { real.open(client) };
            let _ = self.checked(opened);
        }
    }

    /// A replica stops, without a power cut.
    pub(crate) fn close(&self, client: usize) {
        if let Some(real) = &self.real {
            real.close(client);
        }
    }

    /// SQLite's log is moved into its file.
    pub(crate) fn make_checkpoint(&self) {
        if let Some(real) = &self.real {
            real.make_checkpoint();
        }
    }

    /// The power is cut while batches are written together. Returns how many of them are found afterwards, and how many
    /// had been answered.
    pub(crate) fn cut_power(
        &self,
        batches: Vec<(WriteBatch, Timestamp)>,
        cut: PowerCut,
    ) -> (usize, usize) {
        let Some(real) = &self.real else { return (0, 0) };
        let batches: Vec<_> =
            batches.into_iter().map(|(batch, at)| (self.noted(batch), in_millis(at))).collect();
        let (outcomes, opened) = real.cut_power(batches.clone(), cut);
        if let Err(error) = opened {
            self.differs(format!("after a power cut it can't be opened: {error}"));
            return (0, 0);
        }
        let answered = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
        let mut rest = batches.into_iter();
        for ((batch, at), outcome) in rest.by_ref().take(answered).zip(&outcomes) {
            if let Ok(outcome) = outcome {
                self.apply_like(batch, at, *outcome);
            }
        }
        // The others were written or not, in their order.
        let mut found = answered;
        let first = self.difference_after_start();
        let mut how = first.clone();
        while how.is_some() {
            let Some((batch, at)) = rest.next() else {
                let how = first.unwrap_or_default();
                self.differs(format!(
                    "after a power cut, before which {answered} batches were answered: {how}"
                ));
                break;
            };
            self.memory.apply(batch, at);
            found += 1;
            how = self.difference_after_start();
        }
        self.memory.release_leases();
        (found, answered)
    }

    /// How the real store differs now that it was opened again.
    fn difference_after_start(&self) -> Option<String> {
        let started = self.memory.copy();
        started.release_leases();
        self.difference_from(&started)
    }

    pub(crate) fn kill_server(&self) {
        self.is_down.store(true, Ordering::Relaxed);
        if let Some(real) = &self.real {
            real.kill_server();
        }
    }

    pub(crate) fn start_server(&self, running: impl Iterator<Item = usize>) {
        if let Some(real) = &self.real {
            self.is_down.store(false, Ordering::Relaxed);
            let _ = self.checked(real.start_server());
            for client in running {
                let _ = self.checked(real.open(client));
            }
        }
    }

    pub(crate) fn has_server(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
    }

    /// Compares everything, or only says what was found meanwhile.
    pub(crate) fn check(&self, everything: bool) -> Result<(), Broken> {
        if everything
            && self.has_server()
            && let Some(how) = self.difference_from(&self.memory)
        {
            self.differs(how);
        }
        match self.difference.lock().take() {
            Some(how) => Err(("store-differs", how)),
            None => Ok(()),
        }
    }

    fn difference_from(&self, memory: &MemoryStore) -> Option<String> {
        let real = self.real.as_ref()?;
        let operator = REPLICAS;
        let (records, sets): (Vec<_>, Vec<_>) = {
            let known = self.known.lock();
            (known.records.iter().cloned().collect(), known.sets.iter().cloned().collect())
        };
        let of = async move |store: &dyn StateStore| {
            let tasks = store.tasks(None, usize::MAX).await?;
            let tasks: BTreeMap<String, String> =
                tasks.into_iter().map(|task| (task.key.clone(), task_text(&task))).collect();
            let mut found: BTreeMap<String, String> =
                tasks.into_iter().map(|(key, text)| (format!("task {key}"), text)).collect();
            let values = store.records(&records).await?;
            for (key, value) in records.iter().zip(values) {
                let text = value.map(|value| {
                    format!("{} {}", value.version, String::from_utf8_lossy(&value.value))
                });
                found.insert(format!("record {}", key.as_str()), text.unwrap_or_default());
            }
            for set in &sets {
                let members = store.members(set, usize::MAX).await?;
                found.insert(format!("set {}", set.as_str()), members.join("\n"));
            }
            Ok(found)
        };
        let expected: Result<_, StoreError> = at_once(of(memory));
        let (expected, found) = match (expected, real.with(operator, of)) {
            (Ok(expected), Ok(found)) => (expected, found),
            (Err(error), _) | (_, Err(error)) => return Some(format!("it failed: {error}")),
        };
        let keys: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
        let differs = keys.into_iter().find(|key| expected.get(*key) != found.get(*key))?;
        let (expected, found) = (expected.get(differs), found.get(differs));
        Some(format!("{differs} is {found:?} instead of {expected:?}"))
    }
}

fn has_room(request: &LeaseRequest) -> bool {
    request.max_tasks > 0
        && request.busy_lanes.is_empty()
        && request.pools.values().all(|room| room.free > 0 && room.max_per_lane > 0)
}

fn task_text(task: &TaskView) -> String {
    let TaskView { lane, state, failed, due_at, created_at, last_error, .. } = task;
    let (due_at, created_at) = (in_millis(*due_at), in_millis(*created_at));
    format!("{lane} {state:?} {failed} {due_at} {created_at} {last_error:?}")
}

fn in_millis(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time)
}

/// The answer of a store in memory, which never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a store in memory waits"),
    }
}

/// The shared store as one replica or the operator uses it, without any fault.
#[derive(Clone)]
pub(crate) struct StoreClient {
    pub(crate) shared: Arc<SharedStore>,
    pub(crate) number: usize,
}

#[async_trait]
impl StateStore for StoreClient {
    async fn records(&self, keys: &[StoreKey]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        let keys = keys.to_vec();
        self.shared
            .read(self.number, async move |store: &dyn StateStore| store.records(&keys).await)
    }

    async fn members(&self, set: &StoreKey, limit: usize) -> Result<Vec<String>, StoreError> {
        let set = set.clone();
        let ask = async move |store: &dyn StateStore| store.members(&set, limit).await;
        self.shared.read(self.number, ask)
    }

    async fn submit(&self, batch: WriteBatch, now: Timestamp) -> Result<PendingCommit, StoreError> {
        self.shared.apply(self.number, batch, now).map(PendingCommit::ended)
    }

    async fn lease_tasks(&self, request: LeaseRequest) -> Result<Vec<LeasedTask>, StoreError> {
        self.shared.lease(self.number, request)
    }

    async fn tasks(
        &self,
        state: Option<TaskState>,
        limit: usize,
    ) -> Result<Vec<TaskView>, StoreError> {
        match self.shared.real()? {
            Some(real) => self.shared.checked(
                real.with(self.number, async move |store| store.tasks(state, limit).await),
            ),
            None => self.shared.memory.tasks(state, limit).await,
        }
    }

    async fn find_task(&self, key: &str, state: TaskState) -> Result<Option<NewTask>, StoreError> {
        match self.shared.real()? {
            Some(real) => {
                let key = key.to_owned();
                let ask = async move |store: &dyn StateStore| store.find_task(&key, state).await;
                self.shared.checked(real.with(self.number, ask))
            }
            None => self.shared.memory.find_task(key, state).await,
        }
    }

    async fn discard_dead_task(&self, key: &str) -> Result<bool, StoreError> {
        let key = key.to_owned();
        let ask = async move |store: &dyn StateStore| store.discard_dead_task(&key).await;
        self.shared.read(self.number, ask)
    }

    async fn queue_depth(&self) -> Result<QueueDepth, StoreError> {
        let ask = async move |store: &dyn StateStore| {
            store.queue_depth().await.map(|depth| QueueDepth { facts: 0, ..depth })
        };
        self.shared.read(self.number, ask)
    }

    async fn count_tasks(&self, kind: &str) -> Result<u64, StoreError> {
        let kind = kind.to_owned();
        let ask = async move |store: &dyn StateStore| store.count_tasks(&kind).await;
        self.shared.read(self.number, ask)
    }

    async fn task_keys(&self, kind: &str, state: TaskState) -> Result<Vec<String>, StoreError> {
        let kind = kind.to_owned();
        let ask = async move |store: &dyn StateStore| store.task_keys(&kind, state).await;
        self.shared.read(self.number, ask)
    }

    async fn repair_times(&self, now: Timestamp) -> Result<u64, StoreError> {
        let now = in_millis(now);
        self.shared
            .read(self.number, async move |store: &dyn StateStore| store.repair_times(now).await)
    }

    async fn delete_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let now = in_millis(now);
        let ask = async move |store: &dyn StateStore| {
            while store.delete_expired(now).await? > 0 {}
            Ok(0)
        };
        self.shared.read(self.number, ask)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use crcr_store::PoolRoom;

    use super::*;

    fn batch(number: usize) -> (WriteBatch, Timestamp) {
        let at = Timestamp::from_second(1_900_000_000).unwrap();
        let key = StoreKey::new(&["n", &number.to_string()]);
        let task =
            NewTask { key: key.clone(), lane: "a".to_owned(), payload: String::new(), due_at: at };
        let mut batch = WriteBatch { tasks: vec![task], ..WriteBatch::default() };
        batch.set(key, &"x".repeat(3000), Timestamp::MAX);
        (batch, at)
    }

    #[test]
    fn power_cut_in_a_commit_keeps_what_was_answered_and_no_half_of_a_batch() {
        let mut outcomes = BTreeSet::new();
        for after in 0..40 {
            let shared = SharedStore::start(StoreKind::Sqlite, after.into()).unwrap();
            for number in 0..5 {
                let (batch, at) = batch(number);
                assert_eq!(shared.apply(0, batch, at).unwrap(), CommitOutcome::Done);
            }
            let cut = PowerCut { after, during_checkpoint: after % 2 == 0, seed: u64::from(after) };
            outcomes.insert(shared.cut_power((5..9).map(batch).collect(), cut));
            shared.check(true).unwrap();
            let (batch, at) = batch(9);
            assert_eq!(shared.apply(0, batch, at).unwrap(), CommitOutcome::Done);
        }
        // How many were written, and how many of them were answered: all or none, as they are one group.
        let possible = BTreeSet::from([(0, 0), (4, 0), (4, 4)]);
        assert!(outcomes.is_subset(&possible) && outcomes.len() > 1, "{outcomes:?}");
    }

    #[test]
    fn power_cut_while_a_task_is_worked_on_that_was_replaced_by_a_later_one_is_no_difference() {
        let shared = SharedStore::start(StoreKind::Sqlite, 0).unwrap();
        let (mut batch, now) = batch(0);
        shared.apply(0, batch.clone(), now).unwrap();
        let minute = jiff::SignedDuration::from_mins(1);
        let request = LeaseRequest {
            now,
            until: now + minute,
            max_tasks: 1,
            max_per_lane: 1,
            busy_lanes: HashMap::new(),
            pools: HashMap::from([(String::new(), PoolRoom { free: 1, max_per_lane: 1 })]),
        };
        assert_eq!(shared.lease(0, request).unwrap().len(), 1);
        batch.tasks[0].payload = "another".to_owned();
        batch.tasks[0].due_at = now + minute * 60;
        shared.apply(0, batch, now).unwrap();
        shared.cut_power(vec![], PowerCut { after: 0, during_checkpoint: false, seed: 0 });
        shared.check(true).unwrap();
    }

    #[test]
    #[ignore = "needs redis-server"]
    fn redis_that_is_killed_has_everything_when_it_starts_again() {
        let shared = SharedStore::start(StoreKind::Redis, 0).unwrap();
        shared.open(0);
        for number in 0..5 {
            let (batch, at) = batch(number);
            assert_eq!(shared.apply(0, batch, at).unwrap(), CommitOutcome::Done);
        }
        shared.kill_server();
        let (lost, at) = batch(5);
        assert!(shared.apply(0, lost, at).is_err());
        shared.start_server([0, 1].into_iter());
        shared.check(true).unwrap();
        let (batch, at) = batch(6);
        assert_eq!(shared.apply(1, batch, at).unwrap(), CommitOutcome::Done);
    }

    #[test]
    fn store_that_lacks_a_change_is_found() {
        let shared = SharedStore::start(StoreKind::Sqlite, 0).unwrap();
        let (only_here, at) = batch(0);
        let only_here = shared.noted(only_here);
        shared.memory.apply(only_here, at);
        let (invariant, how) = shared.check(true).unwrap_err();
        assert_eq!(invariant, "store-differs");
        assert!(how.contains("[\"n\",\"0\"]"), "{how}");
    }
}
