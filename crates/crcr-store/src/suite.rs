//! What every store does: one suite, run for each implementation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::{Add, Batch, Charge, Commit, Depth, How, Key, NewTask, Put, StateStore, Task, Want};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn put(key: &Key, value: &[u8]) -> Put {
    Put { key: key.clone(), value: value.to_vec(), expires_at: at(1000) }
}

fn task(name: &str, lane: &str, due: i64) -> NewTask {
    NewTask {
        key: Key::new(&[name]),
        lane: lane.to_owned(),
        payload: format!("payload of {name}"),
        due_at: at(due),
    }
}

async fn enqueue(store: &dyn StateStore, tasks: Vec<NewTask>, now: i64) {
    store.commit(Batch { tasks, ..Batch::default() }, at(now)).await.unwrap();
}

async fn lease(store: &dyn StateStore, now: i64) -> Vec<Task> {
    let want = Want { now: at(now), until: at(now + 60), max: 10, per_lane: 10, ..Want::default() };
    store.lease(want).await.unwrap()
}

async fn settle(store: &dyn StateStore, task: &Task, how: How, now: i64) {
    let batch = Batch { settle: Some(task.settle(how)), ..Batch::default() };
    assert_eq!(store.commit(batch, at(now)).await.unwrap(), Commit::Done);
}

/// Runs everything; `fresh` makes an empty store.
pub(super) async fn all<S: StateStore + 'static>(fresh: impl Fn() -> S) {
    records_change_only_from_the_version_that_was_read(&fresh()).await;
    a_refused_batch_leaves_no_trace(&fresh()).await;
    members_come_newest_first(&fresh()).await;
    a_bucket_refills_and_refused_calls_cost_nothing(&fresh()).await;
    a_task_is_one_workers_until_its_lease_ends(&fresh()).await;
    tasks_are_counted_by_the_first_part_of_their_key(&fresh()).await;
    a_task_that_is_asked_for_again_comes_again(&fresh()).await;
    failures_are_counted_and_the_dead_wait(&fresh()).await;
    a_request_during_the_last_failing_try_is_not_lost(&fresh()).await;
    dead_tasks_are_discarded_by_name_and_expire(&fresh()).await;
    a_full_lane_lets_others_pass(&fresh()).await;
    the_earliest_due_tasks_of_all_lanes_come_first(&fresh()).await;
    batches_are_decided_in_the_order_in_which_they_were_submitted(&fresh()).await;
    what_expired_is_forgotten(&fresh()).await;
    of_many_at_once_one_wins(Arc::new(fresh())).await;
}

async fn records_change_only_from_the_version_that_was_read(store: &dyn StateStore) {
    let key = Key::new(&["a"]);
    assert_eq!(store.get(std::slice::from_ref(&key)).await.unwrap(), [None]);
    for (expected, commit) in [
        (1, Commit::Conflict),
        (0, Commit::Done),
        (0, Commit::Conflict),
        (1, Commit::Done),
        (1, Commit::Conflict),
    ] {
        let batch = Batch {
            expect: vec![(key.clone(), expected)],
            put: vec![put(&key, &[expected as u8])],
            ..Batch::default()
        };
        assert_eq!(store.commit(batch, at(0)).await.unwrap(), commit, "version {expected}");
    }
    let record = store.get(&[key]).await.unwrap().remove(0).unwrap();
    assert_eq!((record.version, record.value), (2, vec![1]));
}

async fn a_refused_batch_leaves_no_trace(store: &dyn StateStore) {
    let key = Key::new(&["a"]);
    let batch = Batch {
        expect: vec![(key.clone(), 7)],
        put: vec![put(&key, b"x")],
        add: vec![Add { set: key.clone(), member: "m".to_owned(), score: 1, expires_at: at(1000) }],
        tasks: vec![task("t", "l", 0)],
        ..Batch::default()
    };
    assert_eq!(store.commit(batch, at(0)).await.unwrap(), Commit::Conflict);
    assert_eq!(store.get(std::slice::from_ref(&key)).await.unwrap(), [None]);
    assert_eq!(store.members(&key, 10).await.unwrap(), Vec::<String>::new());
    assert_eq!(store.depth().await.unwrap(), Depth::default());
}

async fn members_come_newest_first(store: &dyn StateStore) {
    let set = Key::new(&["s"]);
    let add = |member: &str, score| Add {
        set: set.clone(),
        member: member.to_owned(),
        score,
        expires_at: at(1000),
    };
    let batch = Batch { add: vec![add("a", 1), add("b", 3), add("c", 2)], ..Batch::default() };
    store.commit(batch, at(0)).await.unwrap();
    let batch = Batch { add: vec![add("a", 4)], ..Batch::default() };
    store.commit(batch, at(0)).await.unwrap();
    assert_eq!(store.members(&set, 10).await.unwrap(), ["a", "b", "c"]);
    assert_eq!(store.members(&set, 1).await.unwrap(), ["a"]);
}

async fn a_bucket_refills_and_refused_calls_cost_nothing(store: &dyn StateStore) {
    let key = Key::new(&["r"]);
    let charge = async |second| {
        let charge = Some(Charge { bucket: key.clone(), per_minute: 6 });
        store.commit(Batch { charge, ..Batch::default() }, at(second)).await.unwrap()
    };
    for _ in 0..6 {
        assert_eq!(charge(0).await, Commit::Done);
    }
    for _ in 0..20 {
        assert_eq!(charge(0).await, Commit::Limited(Duration::from_secs(10)));
    }
    assert_eq!(charge(10).await, Commit::Done);
    assert!(matches!(charge(10).await, Commit::Limited(_)));
    assert_eq!(charge(1000).await, Commit::Done, "it holds no more than a minute's");
}

async fn a_task_is_one_workers_until_its_lease_ends(store: &dyn StateStore) {
    enqueue(store, vec![task("now", "l", 0), task("later", "l", 30)], 0).await;
    let first = lease(store, 0).await;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].payload, "payload of now");
    assert_eq!(lease(store, 0).await.len(), 0);
    assert_eq!(lease(store, 30).await.len(), 1, "the later one is due");
    let again = lease(store, 61).await;
    assert_eq!(again.len(), 1, "the lease has ended");
    let key = Key::new(&["result"]);
    let late = Batch {
        settle: Some(first[0].settle(How::Done)),
        put: vec![put(&key, b"late")],
        ..Batch::default()
    };
    assert_eq!(store.commit(late, at(61)).await.unwrap(), Commit::LeaseLost);
    assert_eq!(store.get(&[key]).await.unwrap(), [None], "the old lease writes nothing");
    assert_eq!(store.depth().await.unwrap().leased, 2, "the old lease settles nothing");
    settle(store, &again[0], How::Done, 61).await;
    assert_eq!(store.depth().await.unwrap(), Depth { leased: 1, ..Depth::default() });
}

async fn tasks_are_counted_by_the_first_part_of_their_key(store: &dyn StateStore) {
    let keyed = |parts: &[&str]| NewTask { key: Key::new(parts), ..task("", "l", 0) };
    let tasks = [&["a", "x"][..], &["a", "y"], &["a\",\"z", "x"], &["ab", "x"], &["b", "a"]];
    enqueue(store, tasks.map(keyed).to_vec(), 0).await;
    lease(store, 0).await;
    for (kind, count) in [("a", 2), ("ab", 1), ("x", 0)] {
        assert_eq!(store.count_of(kind).await.unwrap(), count, "{kind}");
    }
}

async fn a_task_that_is_asked_for_again_comes_again(store: &dyn StateStore) {
    enqueue(store, vec![task("t", "l", 50)], 0).await;
    enqueue(store, vec![task("t", "l", 10)], 0).await;
    let leased = lease(store, 10).await;
    assert_eq!(leased.len(), 1, "the earlier time counts, and it is one task");
    enqueue(store, vec![task("t", "l", 12)], 11).await;
    assert_eq!(lease(store, 12).await.len(), 0, "it is being worked on");
    settle(store, &leased[0], How::Done, 13).await;
    let again = lease(store, 13).await;
    assert_eq!(again.len(), 1);
    settle(store, &again[0], How::Later(at(20)), 14).await;
    assert_eq!(lease(store, 19).await.len(), 0);
    let last = lease(store, 20).await;
    settle(store, &last[0], How::Done, 20).await;
    assert_eq!(store.depth().await.unwrap(), Depth::default());
}

async fn failures_are_counted_and_the_dead_wait(store: &dyn StateStore) {
    enqueue(store, vec![task("t", "l", 0)], 0).await;
    let leased = lease(store, 0).await;
    let error = "no".to_owned();
    settle(store, &leased[0], How::Retry { at: at(5), error: error.clone() }, 1).await;
    assert_eq!(lease(store, 4).await.len(), 0);
    let leased = lease(store, 5).await;
    assert_eq!(leased[0].failed, 1);
    settle(store, &leased[0], How::Release, 5).await;
    let leased = lease(store, 5).await;
    assert_eq!(leased[0].failed, 1, "a release is no failure");
    settle(store, &leased[0], How::Dead { error, expires_at: at(800) }, 6).await;
    assert_eq!(lease(store, 900).await.len(), 0);
    let dead = store.tasks(Some("dead"), 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].failed, dead[0].last_error.as_deref()), (1, 2, Some("no")));
    assert_eq!(store.tasks(Some("ready"), 10).await.unwrap(), []);
    enqueue(store, vec![task("t", "l", 700)], 700).await;
    let leased = lease(store, 700).await;
    assert_eq!(leased[0].failed, 0, "asked for again, it starts anew");
}

async fn a_request_during_the_last_failing_try_is_not_lost(store: &dyn StateStore) {
    enqueue(store, vec![task("t", "l", 0)], 0).await;
    let leased = lease(store, 0).await;
    enqueue(store, vec![task("t", "l", 3)], 2).await;
    let how = How::Dead { error: "no".to_owned(), expires_at: at(800) };
    settle(store, &leased[0], how, 4).await;
    let again = lease(store, 4).await;
    assert_eq!((again.len(), again[0].failed), (1, 0));
}

async fn dead_tasks_are_discarded_by_name_and_expire(store: &dyn StateStore) {
    enqueue(store, ["a", "b", "c"].map(|name| task(name, "l", 0)).to_vec(), 0).await;
    for task in lease(store, 0).await.iter().take(2) {
        let how = How::Dead { error: "no".to_owned(), expires_at: at(100) };
        settle(store, task, how, 1).await;
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| Key::new(&[name]).as_str().to_owned());
    assert!(!store.discard(&c).await.unwrap(), "it is being worked on");
    assert_eq!(store.payload(&a, "dead").await.unwrap().as_deref(), Some("payload of a"));
    assert_eq!(store.payload(&a, "ready").await.unwrap(), None);
    assert!(store.discard(&a).await.unwrap());
    assert!(!store.discard(&a).await.unwrap());
    assert_eq!(store.prune(at(99)).await.unwrap(), 0);
    assert_eq!(store.tasks(Some("dead"), 9).await.unwrap()[0].key, b);
    assert_eq!(store.prune(at(100)).await.unwrap(), 1);
    assert_eq!(store.depth().await.unwrap(), Depth { leased: 1, ..Depth::default() });
}

async fn a_full_lane_lets_others_pass(store: &dyn StateStore) {
    let mut tasks: Vec<_> = (0..20).map(|n| task(&format!("a{n}"), "a", 0)).collect();
    tasks.push(task("b", "b", 1));
    enqueue(store, tasks, 0).await;
    let want = |busy: &[(&str, usize)]| Want {
        now: at(2),
        until: at(60),
        max: 5,
        per_lane: 2,
        busy: busy.iter().map(|(lane, count)| ((*lane).to_owned(), *count)).collect(),
    };
    let lanes = async |busy: &[(&str, usize)]| {
        let tasks = store.lease(want(busy)).await.unwrap();
        tasks.into_iter().map(|task| task.lane).collect::<Vec<_>>()
    };
    assert_eq!(lanes(&[("a", 1)]).await, ["a", "b"], "a long lane hides no other one");
    enqueue(store, vec![task("b2", "b", 1)], 0).await;
    assert_eq!(lanes(&[("a", 2)]).await, ["b"]);
    assert_eq!(store.lease(Want { busy: HashMap::new(), ..want(&[]) }).await.unwrap().len(), 2);
}

async fn the_earliest_due_tasks_of_all_lanes_come_first(store: &dyn StateStore) {
    let due = [("a1", "a", 5), ("a2", "a", 1), ("b1", "b", 3), ("b2", "b", 9), ("c1", "c", 2)];
    let tasks = due.map(|(name, lane, due)| task(name, lane, due)).to_vec();
    enqueue(store, tasks, 0).await;
    let want = |max| Want { now: at(8), until: at(60), max, per_lane: 8, ..Want::default() };
    let mut order = vec![];
    for max in [1, 2, 5] {
        for task in store.lease(want(max)).await.unwrap() {
            order.push(task.payload.replace("payload of ", ""));
        }
    }
    assert_eq!(order, ["a2", "c1", "b1", "a1"], "b2 isn't due yet");
}

async fn batches_are_decided_in_the_order_in_which_they_were_submitted(store: &dyn StateStore) {
    let key = Key::new(&["chain"]);
    let mut pending = vec![];
    // Each expects what the one before leaves, although none is known to be on disk.
    for version in [0, 1, 2, 2, 3] {
        let batch = Batch {
            expect: vec![(key.clone(), version)],
            put: vec![put(&key, &[version as u8])],
            ..Batch::default()
        };
        pending.push(store.submit(batch, at(0)).await.unwrap());
    }
    let mut became = vec![];
    for batch in pending {
        became.push(batch.durable().await.unwrap());
    }
    use Commit::{Conflict, Done};
    assert_eq!(became, [Done, Done, Done, Conflict, Done]);
}

async fn what_expired_is_forgotten(store: &dyn StateStore) {
    let (old, young) = (Key::new(&["old"]), Key::new(&["young"]));
    let batch = Batch {
        put: vec![Put { expires_at: at(10), ..put(&old, b"x") }, put(&young, b"y")],
        ..Batch::default()
    };
    store.commit(batch, at(0)).await.unwrap();
    assert_eq!(store.prune(at(11)).await.unwrap(), 1);
    let found = store.get(&[old, young]).await.unwrap();
    assert!(found[0].is_none() && found[1].is_some());
}

async fn of_many_at_once_one_wins(store: Arc<dyn StateStore>) {
    let key = Key::new(&["contended"]);
    let tries = (0..32).map(|n| {
        let (store, key) = (Arc::clone(&store), key.clone());
        tokio::spawn(async move {
            let batch = Batch {
                expect: vec![(key.clone(), 0)],
                put: vec![put(&key, &[n])],
                ..Batch::default()
            };
            store.commit(batch, at(0)).await.unwrap()
        })
    });
    let commits = futures_util::future::join_all(tries.collect::<Vec<_>>()).await;
    let won = commits.into_iter().filter(|commit| *commit.as_ref().unwrap() == Commit::Done);
    assert_eq!(won.count(), 1);
}
