//! The behaviour that every implementation of [`StateStore`] has: each one runs this suite in a test.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crcr_domain::results::facts::{Fact, MergeBaseFact};
use jiff::Timestamp;

use crate::{
    BudgetCharge, CommitOutcome, LeaseRequest, LeasedTask, LimitedBy, NewTask, OUTBOX_BYTES,
    PoolRoom, QueueDepth, RecordWrite, SetInsert, StateStore, StoreKey, TaskOutcome, TaskState,
    WriteBatch,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn put(key: &StoreKey, value: &[u8]) -> RecordWrite {
    RecordWrite { key: key.clone(), value: value.to_vec(), expires_at: at(1000) }
}

fn task(name: &str, lane: &str, due: i64) -> NewTask {
    NewTask {
        key: StoreKey::new(&[name]),
        lane: lane.to_owned(),
        payload: format!("payload of {name}"),
        due_at: at(due),
    }
}

async fn enqueue(store: &dyn StateStore, tasks: Vec<NewTask>, now: i64) {
    store.commit(WriteBatch { tasks, ..WriteBatch::default() }, at(now)).await.unwrap();
}

async fn lease(store: &dyn StateStore, now: i64) -> Vec<LeasedTask> {
    let request = LeaseRequest {
        now: at(now),
        until: at(now + 60),
        max_tasks: 10,
        max_per_lane: 10,
        ..LeaseRequest::default()
    };
    store.lease_tasks(request).await.unwrap()
}

async fn settle(store: &dyn StateStore, task: &LeasedTask, outcome: TaskOutcome, now: i64) {
    let batch = WriteBatch { settlement: Some(task.settle(outcome)), ..WriteBatch::default() };
    assert_eq!(store.commit(batch, at(now)).await.unwrap(), CommitOutcome::Done);
}

/// Runs every check, each on an empty store from `fresh`.
pub(crate) async fn check_all<S: StateStore + 'static>(fresh: impl AsyncFn() -> S) {
    record_with_another_version_is_a_conflict(&fresh().await).await;
    rejected_batch_changes_nothing(&fresh().await).await;
    members_are_listed_by_score(&fresh().await).await;
    bucket_refills_and_rejected_charges_are_free(&fresh().await).await;
    charges_are_taken_together_or_not_at_all(&fresh().await).await;
    first_of_many_is_charged_once(&fresh().await).await;
    bucket_of_a_day_is_never_filled(&fresh().await).await;
    clock_that_goes_back_empties_no_bucket(&fresh().await).await;
    leased_task_is_hidden_until_its_lease_ends(&fresh().await).await;
    batch_of_a_task_that_goes_on_is_applied_only_while_its_lease_lasts(&fresh().await).await;
    tasks_are_counted_by_kind(&fresh().await).await;
    keys_of_a_kind_are_listed_by_state(&fresh().await).await;
    task_enqueued_while_leased_comes_back(&fresh().await).await;
    postponed_task_has_not_failed(&fresh().await).await;
    failures_are_counted_and_dead_tasks_wait(&fresh().await).await;
    task_enqueued_during_its_last_try_is_not_dead(&fresh().await).await;
    dead_tasks_can_be_discarded_and_expire(&fresh().await).await;
    full_lane_does_not_block_others(&fresh().await).await;
    earliest_due_tasks_of_all_lanes_are_leased_first(&fresh().await).await;
    lanes_take_turns(&fresh().await).await;
    pool_takes_no_more_than_its_room(&fresh().await).await;
    tasks_of_a_clock_that_was_ahead_are_due_in_time(&fresh().await).await;
    batches_are_checked_in_the_order_of_submission(&fresh().await).await;
    expired_records_are_deleted(&fresh().await).await;
    one_of_many_concurrent_writers_wins(Arc::new(fresh().await)).await;
}

async fn record_with_another_version_is_a_conflict(store: &dyn StateStore) {
    let key = StoreKey::new(&["a"]);
    assert_eq!(store.records(std::slice::from_ref(&key)).await.unwrap(), [None]);
    for (expected, commit) in [
        (1, CommitOutcome::Conflict),
        (0, CommitOutcome::Done),
        (0, CommitOutcome::Conflict),
        (1, CommitOutcome::Done),
        (1, CommitOutcome::Conflict),
    ] {
        let batch = WriteBatch {
            expected_versions: vec![(key.clone(), expected)],
            records: vec![put(&key, &[expected as u8])],
            ..WriteBatch::default()
        };
        assert_eq!(store.commit(batch, at(0)).await.unwrap(), commit, "version {expected}");
    }
    let record = store.records(&[key]).await.unwrap().remove(0).unwrap();
    assert_eq!((record.version, record.value), (2, vec![1]));
}

async fn rejected_batch_changes_nothing(store: &dyn StateStore) {
    let key = StoreKey::new(&["a"]);
    let batch = WriteBatch {
        expected_versions: vec![(key.clone(), 7)],
        records: vec![put(&key, b"x")],
        set_inserts: vec![SetInsert {
            set: key.clone(),
            member: "m".to_owned(),
            score: 1,
            expires_at: at(1000),
        }],
        tasks: vec![task("t", "l", 0)],
        ..WriteBatch::default()
    };
    assert_eq!(store.commit(batch, at(0)).await.unwrap(), CommitOutcome::Conflict);
    assert_eq!(store.records(std::slice::from_ref(&key)).await.unwrap(), [None]);
    assert_eq!(store.members(&key, 10).await.unwrap(), Vec::<String>::new());
    assert_eq!(store.queue_depth().await.unwrap(), QueueDepth::default());
}

async fn members_are_listed_by_score(store: &dyn StateStore) {
    let set = StoreKey::new(&["s"]);
    let add = |member: &str, score| SetInsert {
        set: set.clone(),
        member: member.to_owned(),
        score,
        expires_at: at(1000),
    };
    let batch = WriteBatch {
        set_inserts: vec![add("a", 1), add("b", 3), add("c", 2)],
        ..WriteBatch::default()
    };
    store.commit(batch, at(0)).await.unwrap();
    let batch = WriteBatch { set_inserts: vec![add("a", 4)], ..WriteBatch::default() };
    store.commit(batch, at(0)).await.unwrap();
    assert_eq!(store.members(&set, 10).await.unwrap(), ["a", "b", "c"]);
    assert_eq!(store.members(&set, 1).await.unwrap(), ["a"]);
}

async fn bucket_refills_and_rejected_charges_are_free(store: &dyn StateStore) {
    let key = StoreKey::new(&["r"]);
    let charge =
        async |second| charge(store, &[BudgetCharge::per_minute(key.clone(), 6)], second).await;
    for _ in 0..6 {
        assert_eq!(charge(0).await, CommitOutcome::Done);
    }
    for _ in 0..20 {
        let limited = LimitedBy { charge: 0, wait: Duration::from_secs(10) };
        assert_eq!(charge(0).await, CommitOutcome::Limited(limited));
    }
    assert_eq!(charge(10).await, CommitOutcome::Done);
    assert!(matches!(charge(10).await, CommitOutcome::Limited(_)));
    assert_eq!(charge(1000).await, CommitOutcome::Done, "it holds no more than a minute's");
}

async fn charge(store: &dyn StateStore, charges: &[BudgetCharge], second: i64) -> CommitOutcome {
    let batch = WriteBatch { charges: charges.to_vec(), ..WriteBatch::default() };
    store.commit(batch, at(second)).await.unwrap()
}

/// A bucket of bytes, without a refill.
fn bytes(name: &str, capacity: u64, cost: u64) -> BudgetCharge {
    let bucket = StoreKey::new(&[name]);
    BudgetCharge { bucket, capacity, per_minute: 0.0, cost, first_of: None }
}

async fn charges_are_taken_together_or_not_at_all(store: &dyn StateStore) {
    let refused = charge(store, &[bytes("a", 10, 4), bytes("b", 10, 11)], 0).await;
    assert!(matches!(refused, CommitOutcome::Limited(LimitedBy { charge: 1, .. })), "{refused:?}");
    let both = [bytes("a", 10, 10), bytes("b", 10, 3)];
    assert_eq!(charge(store, &both, 0).await, CommitOutcome::Done, "nothing was taken from a");
    assert_eq!(charge(store, &[bytes("b", 10, 7)], 0).await, CommitOutcome::Done);
    assert!(matches!(charge(store, &[bytes("b", 10, 1)], 0).await, CommitOutcome::Limited(_)));
}

async fn first_of_many_is_charged_once(store: &dyn StateStore) {
    let run = |name: &str| {
        let first_of = Some(StoreKey::new(&[name]));
        [BudgetCharge { first_of, ..bytes("runs", 2, 1) }, bytes(name, 10, 1)]
    };
    for name in ["run 1", "run 1", "run 2", "run 1", "run 2"] {
        assert_eq!(charge(store, &run(name), 0).await, CommitOutcome::Done, "{name}");
    }
    let third = charge(store, &run("run 3"), 0).await;
    assert!(matches!(third, CommitOutcome::Limited(LimitedBy { charge: 0, .. })), "{third:?}");
    assert_eq!(charge(store, &run("run 1"), 0).await, CommitOutcome::Done);
}

async fn bucket_of_a_day_is_never_filled(store: &dyn StateStore) {
    assert_eq!(charge(store, &[bytes("day", 10, 10)], 0).await, CommitOutcome::Done);
    let day = Duration::from_secs(86_400);
    let limited = CommitOutcome::Limited(LimitedBy { charge: 0, wait: day });
    for hour in [0, 1, 23] {
        store.delete_expired(at(hour * 3600)).await.unwrap();
        assert_eq!(charge(store, &[bytes("day", 10, 1)], hour * 3600).await, limited, "{hour}");
    }
    assert_eq!(store.delete_expired(at(27 * 3600)).await.unwrap(), 1);
}

async fn clock_that_goes_back_empties_no_bucket(store: &dyn StateStore) {
    let one = [BudgetCharge::per_minute(StoreKey::new(&["r"]), 1)];
    assert_eq!(charge(store, &one, 86_400).await, CommitOutcome::Done, "a day ahead");
    assert_eq!(charge(store, &one, 0).await, CommitOutcome::Done, "set right");
    assert!(matches!(charge(store, &one, 0).await, CommitOutcome::Limited(_)));
    assert_eq!(charge(store, &one, 60).await, CommitOutcome::Done);
}

async fn leased_task_is_hidden_until_its_lease_ends(store: &dyn StateStore) {
    enqueue(store, vec![task("now", "l", 0), task("later", "l", 30)], 0).await;
    let first = lease(store, 0).await;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].payload, "payload of now");
    assert_eq!(lease(store, 0).await.len(), 0);
    assert_eq!(lease(store, 30).await.len(), 1, "the later one is due");
    let again = lease(store, 61).await;
    assert_eq!(again.len(), 1, "the lease has ended");
    let key = StoreKey::new(&["result"]);
    let late = WriteBatch {
        settlement: Some(first[0].settle(TaskOutcome::Done)),
        records: vec![put(&key, b"late")],
        ..WriteBatch::default()
    };
    assert_eq!(store.commit(late, at(61)).await.unwrap(), CommitOutcome::LeaseLost);
    assert_eq!(store.records(&[key]).await.unwrap(), [None], "the old lease writes nothing");
    assert_eq!(store.queue_depth().await.unwrap().leased, 2, "the old lease settles nothing");
    settle(store, &again[0], TaskOutcome::Done, 61).await;
    assert_eq!(
        store.queue_depth().await.unwrap(),
        QueueDepth { leased: 1, ..QueueDepth::default() }
    );
}

async fn batch_of_a_task_that_goes_on_is_applied_only_while_its_lease_lasts(
    store: &dyn StateStore,
) {
    enqueue(store, vec![task("t", "l", 0)], 0).await;
    let first = lease(store, 0).await.remove(0);
    enqueue(store, vec![task("t", "l", 9)], 1).await;
    let key = StoreKey::new(&["step"]);
    let step = |task: &LeasedTask, value: &[u8]| WriteBatch {
        settlement: Some(task.settle(TaskOutcome::Keep)),
        records: vec![put(&key, value)],
        ..WriteBatch::default()
    };
    assert_eq!(store.commit(step(&first, b"one"), at(1)).await.unwrap(), CommitOutcome::Done);
    assert_eq!(lease(store, 10).await.len(), 0, "it is still worked on");
    let second = lease(store, 61).await.remove(0);
    assert_eq!(store.commit(step(&first, b"two"), at(61)).await.unwrap(), CommitOutcome::LeaseLost);
    let found = store.records(std::slice::from_ref(&key)).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().value, b"one");
    settle(store, &second, TaskOutcome::Done, 62).await;
    assert_eq!(lease(store, 62).await.len(), 1, "it was asked for while it was worked on");
}

async fn tasks_are_counted_by_kind(store: &dyn StateStore) {
    let keyed = |parts: &[&str]| NewTask { key: StoreKey::new(parts), ..task("", "l", 0) };
    let tasks = [&["a", "x"][..], &["a", "y"], &["a\",\"z", "x"], &["ab", "x"], &["b", "a"]];
    enqueue(store, tasks.map(keyed).to_vec(), 0).await;
    lease(store, 0).await;
    for (kind, count) in [("a", 2), ("ab", 1), ("x", 0)] {
        assert_eq!(store.count_tasks(kind).await.unwrap(), count, "{kind}");
    }
}

async fn keys_of_a_kind_are_listed_by_state(store: &dyn StateStore) {
    let keyed = |parts: &[&str], due| NewTask { key: StoreKey::new(parts), ..task("", "l", due) };
    let tasks = [(&["a", "y"][..], 0), (&["a", "x"], 5), (&["a", "z"], 0), (&["ab", "x"], 0)];
    enqueue(store, tasks.map(|(parts, due)| keyed(parts, due)).to_vec(), 0).await;
    assert_eq!(store.task_keys("a", TaskState::Leased).await.unwrap(), [""; 0]);
    lease(store, 0).await;
    for (state, keys) in [
        (TaskState::Ready, &[r#"["a","x"]"#][..]),
        (TaskState::Leased, &[r#"["a","y"]"#, r#"["a","z"]"#]),
        (TaskState::Dead, &[]),
    ] {
        assert_eq!(store.task_keys("a", state).await.unwrap(), keys, "{state:?}");
    }
}

async fn task_enqueued_while_leased_comes_back(store: &dyn StateStore) {
    enqueue(store, vec![task("t", "l", 50)], 0).await;
    enqueue(store, vec![task("t", "l", 10)], 0).await;
    let leased = lease(store, 10).await;
    assert_eq!(leased.len(), 1, "the earlier time counts, and it is one task");
    assert_eq!(leased[0].created_at, at(10), "it has been due since then");
    enqueue(store, vec![task("t", "l", 12)], 11).await;
    assert_eq!(lease(store, 12).await.len(), 0, "it is being worked on");
    settle(store, &leased[0], TaskOutcome::Done, 13).await;
    let again = lease(store, 13).await;
    assert_eq!(again.len(), 1);
    settle(store, &again[0], TaskOutcome::Later(at(20)), 14).await;
    assert_eq!(lease(store, 19).await.len(), 0);
    let last = lease(store, 20).await;
    assert_eq!(last[0].created_at, at(20), "time that it waited doesn't count");
    settle(store, &last[0], TaskOutcome::Postpone { at: at(25), error: "no".to_owned() }, 21).await;
    let last = lease(store, 25).await;
    assert_eq!(last[0].created_at, at(20));
    settle(store, &last[0], TaskOutcome::Done, 25).await;
    assert_eq!(store.queue_depth().await.unwrap(), QueueDepth::default());
}

async fn postponed_task_has_not_failed(store: &dyn StateStore) {
    enqueue(store, vec![task("t", "l", 0)], 0).await;
    let mut now = 0;
    for error in ["no", "still no"] {
        let leased = lease(store, now).await;
        assert_eq!(leased[0].failed, 0);
        now += 5;
        let outcome = TaskOutcome::Postpone { at: at(now), error: error.to_owned() };
        settle(store, &leased[0], outcome, now - 4).await;
        assert_eq!(lease(store, now - 1).await.len(), 0);
        let ready = store.tasks(Some(TaskState::Ready), 9).await.unwrap();
        assert_eq!((ready[0].failed, ready[0].last_error.as_deref()), (0, Some(error)));
    }
}

async fn failures_are_counted_and_dead_tasks_wait(store: &dyn StateStore) {
    enqueue(store, vec![task("t", "l", 0)], 0).await;
    let leased = lease(store, 0).await;
    let error = "no".to_owned();
    settle(store, &leased[0], TaskOutcome::Retry { at: at(5), error: error.clone() }, 1).await;
    assert_eq!(lease(store, 4).await.len(), 0);
    let leased = lease(store, 5).await;
    assert_eq!(leased[0].failed, 1);
    settle(store, &leased[0], TaskOutcome::Release, 5).await;
    let leased = lease(store, 5).await;
    assert_eq!(leased[0].failed, 1, "a release is no failure");
    settle(store, &leased[0], TaskOutcome::Dead { error, expires_at: at(800) }, 6).await;
    assert_eq!(lease(store, 900).await.len(), 0);
    let dead = store.tasks(Some(TaskState::Dead), 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].failed, dead[0].last_error.as_deref()), (1, 2, Some("no")));
    assert_eq!(store.tasks(Some(TaskState::Ready), 10).await.unwrap(), []);
    enqueue(store, vec![task("t", "l", 700)], 700).await;
    let leased = lease(store, 700).await;
    assert_eq!(leased[0].failed, 0, "asked for again, it starts anew");
    assert_eq!(leased[0].created_at, at(700), "also the time that an outage may take");
}

async fn task_enqueued_during_its_last_try_is_not_dead(store: &dyn StateStore) {
    enqueue(store, vec![task("t", "l", 0)], 0).await;
    let leased = lease(store, 0).await;
    enqueue(store, vec![task("t", "l", 3)], 2).await;
    let outcome = TaskOutcome::Dead { error: "no".to_owned(), expires_at: at(800) };
    settle(store, &leased[0], outcome, 4).await;
    let again = lease(store, 4).await;
    assert_eq!((again.len(), again[0].failed), (1, 0));
}

async fn dead_tasks_can_be_discarded_and_expire(store: &dyn StateStore) {
    enqueue(store, ["a", "b", "c"].map(|name| task(name, "l", 0)).to_vec(), 0).await;
    for task in lease(store, 0).await.iter().take(2) {
        let outcome = TaskOutcome::Dead { error: "no".to_owned(), expires_at: at(100) };
        settle(store, task, outcome, 1).await;
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| StoreKey::new(&[name]).as_str().to_owned());
    assert!(!store.discard_dead_task(&c).await.unwrap(), "it is being worked on");
    let leased = store.find_task(&c, TaskState::Leased).await.unwrap().unwrap();
    assert_eq!(leased.due_at, at(60), "its lease ends");
    let found = store.find_task(&a, TaskState::Dead).await.unwrap().unwrap();
    assert_eq!((found.payload, found.lane), ("payload of a".to_owned(), "l".to_owned()));
    assert!(store.find_task(&a, TaskState::Ready).await.unwrap().is_none());
    assert!(store.discard_dead_task(&a).await.unwrap());
    assert!(!store.discard_dead_task(&a).await.unwrap());
    assert_eq!(store.delete_expired(at(99)).await.unwrap(), 0);
    assert_eq!(store.tasks(Some(TaskState::Dead), 9).await.unwrap()[0].key, b);
    assert_eq!(store.delete_expired(at(100)).await.unwrap(), 1);
    assert_eq!(
        store.queue_depth().await.unwrap(),
        QueueDepth { leased: 1, ..QueueDepth::default() }
    );
}

async fn full_lane_does_not_block_others(store: &dyn StateStore) {
    let mut tasks: Vec<_> = (0..20).map(|n| task(&format!("a{n}"), "a", 0)).collect();
    tasks.push(task("b", "b", 1));
    enqueue(store, tasks, 0).await;
    let request = |busy: &[(&str, usize)]| LeaseRequest {
        now: at(2),
        until: at(60),
        max_tasks: 5,
        max_per_lane: 2,
        busy_lanes: busy.iter().map(|(lane, count)| ((*lane).to_owned(), *count)).collect(),
        ..LeaseRequest::default()
    };
    let lanes = async |busy: &[(&str, usize)]| {
        let tasks = store.lease_tasks(request(busy)).await.unwrap();
        tasks.into_iter().map(|task| task.lane).collect::<Vec<_>>()
    };
    assert_eq!(lanes(&[("a", 1)]).await, ["a", "b"], "a long lane hides no other one");
    enqueue(store, vec![task("b2", "b", 1)], 0).await;
    assert_eq!(lanes(&[("a", 2)]).await, ["b"]);
    assert_eq!(
        store
            .lease_tasks(LeaseRequest { busy_lanes: HashMap::new(), ..request(&[]) })
            .await
            .unwrap()
            .len(),
        2
    );
}

async fn earliest_due_tasks_of_all_lanes_are_leased_first(store: &dyn StateStore) {
    let due = [("a1", "a", 5), ("a2", "a", 1), ("b1", "b", 3), ("b2", "b", 9), ("c1", "c", 2)];
    let tasks = due.map(|(name, lane, due)| task(name, lane, due)).to_vec();
    enqueue(store, tasks, 0).await;
    let request = |max| LeaseRequest {
        now: at(8),
        until: at(60),
        max_tasks: max,
        max_per_lane: 8,
        ..LeaseRequest::default()
    };
    let mut order = vec![];
    for max in [1, 2, 5] {
        for task in store.lease_tasks(request(max)).await.unwrap() {
            order.push(task.payload.replace("payload of ", ""));
        }
    }
    assert_eq!(order, ["a2", "c1", "b1", "a1"], "b2 isn't due yet");
}

/// Asks for one task at a time, `count` times, and returns their lanes.
async fn lanes_of(store: &dyn StateStore, second: i64, count: usize) -> Vec<String> {
    let mut lanes = vec![];
    for n in 0..count {
        let request = LeaseRequest {
            // A lease takes a moment.
            now: at(second) + Duration::from_millis(n as u64),
            until: at(second + 600),
            max_tasks: 1,
            max_per_lane: 100,
            ..LeaseRequest::default()
        };
        let leased = store.lease_tasks(request).await.unwrap();
        lanes.extend(leased.into_iter().map(|task| task.lane));
    }
    lanes
}

async fn lanes_take_turns(store: &dyn StateStore) {
    let mut tasks = vec![];
    for lane in ["loud", "louder"] {
        tasks.extend((0..40).map(|n| task(&format!("{lane}{n}"), lane, 0)));
    }
    enqueue(store, tasks, 0).await;
    assert_eq!(lanes_of(store, 5, 4).await, ["loud", "louder", "loud", "louder"]);
    // It comes last, and waits for one task of each of the others at most.
    enqueue(store, vec![task("q1", "quiet", 6), task("q2", "quiet", 6)], 6).await;
    let lanes = lanes_of(store, 7, 6).await;
    assert!(lanes[..3].contains(&"quiet".to_owned()), "{lanes:?}");
    assert!(lanes[3..].contains(&"quiet".to_owned()), "{lanes:?}");
    let request = LeaseRequest {
        now: at(8),
        until: at(600),
        max_tasks: 5,
        max_per_lane: 5,
        ..LeaseRequest::default()
    };
    enqueue(store, vec![task("q3", "quiet", 7)], 7).await;
    let leased = store.lease_tasks(request).await.unwrap();
    let mut lanes: Vec<_> = leased.iter().map(|task| task.lane.as_str()).collect();
    lanes.sort_unstable();
    assert_eq!(lanes, ["loud", "loud", "louder", "louder", "quiet"]);
}

async fn pool_takes_no_more_than_its_room(store: &dyn StateStore) {
    let mut tasks = vec![];
    for n in 0..12 {
        tasks.push(task(&format!("h{n}"), &format!("hud:account {n}"), 0));
        tasks.push(task(&format!("i{n}"), &format!("hud:account {n}"), 0));
    }
    tasks.push(task("d1", "dispatch:acme", 1));
    tasks.push(task("d2", "dispatch:acme", 1));
    enqueue(store, tasks, 0).await;
    let room = |free, max_per_lane| PoolRoom { free, max_per_lane };
    let request = |hud, dispatch| LeaseRequest {
        now: at(2),
        until: at(60),
        max_tasks: 100,
        max_per_lane: 100,
        pools: [("hud".to_owned(), hud), ("dispatch".to_owned(), dispatch)].into(),
        ..LeaseRequest::default()
    };
    let count = async |hud, dispatch| {
        let leased = store.lease_tasks(request(hud, dispatch)).await.unwrap();
        let of_hud = leased.iter().filter(|task| task.lane.starts_with("hud:")).count();
        (of_hud, leased.len() - of_hud)
    };
    assert_eq!(count(room(3, 2), room(5, 1)).await, (3, 1), "a lane of dispatches takes one");
    assert_eq!(count(room(0, 2), room(5, 1)).await, (0, 1), "a full pool stops no other one");
    assert_eq!(count(room(50, 1), room(0, 1)).await, (12, 0));
}

async fn tasks_of_a_clock_that_was_ahead_are_due_in_time(store: &dyn StateStore) {
    let day = 86_400;
    enqueue(store, vec![task("old", "l", 100)], 0).await;
    // The clock is a day ahead, for three different changes.
    enqueue(store, vec![task("new", "l", day + 30)], day).await;
    let leased = lease(store, day + 30).await;
    assert_eq!(leased.len(), 2);
    for task in &leased {
        let outcome = TaskOutcome::Postpone { at: at(day + 90), error: "no".to_owned() };
        settle(store, task, outcome, day + 30).await;
    }
    enqueue(store, vec![task("sweep", "l", day + 7200)], day + 30).await;
    // It is set right.
    assert_eq!(lease(store, 40).await.len(), 0);
    assert_eq!(store.repair_times(at(40)).await.unwrap(), 3);
    assert_eq!(lease(store, 99).await.len(), 0);
    assert_eq!(lease(store, 100).await.len(), 2, "a minute after");
    assert_eq!(lease(store, 40 + 7169).await.len(), 2, "their leases have ended");
    assert_eq!(lease(store, 40 + 7170).await.len(), 1);
    assert_eq!(store.repair_times(at(40 + 7170)).await.unwrap(), 0);
}

async fn batches_are_checked_in_the_order_of_submission(store: &dyn StateStore) {
    let key = StoreKey::new(&["chain"]);
    let mut pending = vec![];
    // Each expects what the one before leaves, although none is known to be on disk.
    for version in [0, 1, 2, 2, 3] {
        let batch = WriteBatch {
            expected_versions: vec![(key.clone(), version)],
            records: vec![put(&key, &[version as u8])],
            ..WriteBatch::default()
        };
        pending.push(store.submit(batch, at(0)).await.unwrap());
    }
    let mut became = vec![];
    for batch in pending {
        became.push(batch.durable().await.unwrap());
    }
    use CommitOutcome::{Conflict, Done};
    assert_eq!(became, [Done, Done, Done, Conflict, Done]);
}

async fn expired_records_are_deleted(store: &dyn StateStore) {
    let (old, young) = (StoreKey::new(&["old"]), StoreKey::new(&["young"]));
    let batch = WriteBatch {
        records: vec![RecordWrite { expires_at: at(10), ..put(&old, b"x") }, put(&young, b"y")],
        ..WriteBatch::default()
    };
    store.commit(batch, at(0)).await.unwrap();
    assert_eq!(store.delete_expired(at(11)).await.unwrap(), 1);
    let found = store.records(&[old, young]).await.unwrap();
    assert!(found[0].is_none() && found[1].is_some());
}

async fn one_of_many_concurrent_writers_wins(store: Arc<dyn StateStore>) {
    let key = StoreKey::new(&["contended"]);
    let tries = (0..32).map(|n| {
        let (store, key) = (Arc::clone(&store), key.clone());
        tokio::spawn(async move {
            let batch = WriteBatch {
                expected_versions: vec![(key.clone(), 0)],
                records: vec![put(&key, &[n])],
                ..WriteBatch::default()
            };
            store.commit(batch, at(0)).await.unwrap()
        })
    });
    let commits = futures_util::future::join_all(tries.collect::<Vec<_>>()).await;
    let won = commits.into_iter().filter(|commit| *commit.as_ref().unwrap() == CommitOutcome::Done);
    assert_eq!(won.count(), 1);
}

/// The outbox after a long outage of the results.
pub(crate) async fn large_facts_are_read_in_parts(store: &dyn StateStore) {
    let now = Timestamp::now();
    let fact = |pull_request: u64, bytes: usize| {
        Fact::MergeBase(MergeBaseFact {
            at: now,
            upstream: "acme/upstream".to_owned(),
            pull_request,
            head_sha: String::new(),
            merge_base: String::new(),
            committed_at: now,
            changed_files: vec!["x".repeat(bytes)],
        })
    };
    for number in 0..4 {
        let facts = vec![fact(number, OUTBOX_BYTES / 2), fact(number + 100, 1)];
        store.commit(WriteBatch { facts, ..WriteBatch::default() }, now).await.unwrap();
    }
    let mut parts = vec![];
    loop {
        let entries = store.outbox(100).await.unwrap();
        let Some(last) = entries.last() else { break };
        store.remove_from_outbox(&last.id).await.unwrap();
        parts.push(entries.len());
    }
    assert_eq!(parts, [3, 4, 1]);
}
