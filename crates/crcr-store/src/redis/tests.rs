use std::sync::atomic::{AtomicU32, Ordering};

use crcr_testkit::redis::{RedisServer, RedisSettings};

use super::connection::{IDLE, SchemaVersion};
use super::*;
use crate::conformance;

fn now() -> Timestamp {
    timestamp(1_800_000_000_000)
}

fn fact(number: u64) -> Fact {
    Fact::MergeBase(MergeBaseFact {
        upstream: "acme/upstream".to_owned(),
        pull_request: number,
        head_sha: "a".repeat(40),
        at: now(),
        merge_base: "b".repeat(40),
        committed_at: now(),
        changed_files: vec![],
    })
}

async fn open(server: &RedisServer) -> RedisStore {
    RedisStore::open(&RedisUrl::parse(&server.url()).unwrap()).await.unwrap()
}

fn batch(name: &str) -> WriteBatch {
    let mut batch = WriteBatch::default();
    batch.set(StoreKey::new(&[name]), &name, now());
    batch
}

async fn write(store: &RedisStore, name: &str) {
    assert_eq!(store.commit(batch(name), now()).await.unwrap(), CommitOutcome::Done);
}

/// A relay of another version.
async fn open_as(server: &RedisServer, schema: u32, oldest_reader: u32) -> RedisStore {
    let url = RedisUrl::parse(&server.url()).unwrap();
    let schema = SchemaVersion { schema, oldest_reader };
    RedisStore::open_server(Server::new(&url, "", schema).unwrap()).await.unwrap()
}

/// A batch right after a restart may fail: if its answer is lost, nobody knows whether it was applied.
async fn write_again(store: &RedisStore, name: &str) {
    eventually(|| store.commit(batch(name), now())).await;
}

async fn holds(store: &RedisStore, name: &str) -> bool {
    store.records(&[StoreKey::new(&[name])]).await.unwrap()[0].is_some()
}

/// Tries until the connection is there again.
async fn eventually<T, F: Future<Output = Result<T, StoreError>>>(attempt: impl Fn() -> F) -> T {
    for _ in 0..200 {
        if let Ok(value) = attempt().await {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("Redis doesn't come back")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server"]
async fn redis_store_conforms_and_no_key_can_be_evicted_by_its_time_to_live() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let count = AtomicU32::new(0);
    conformance::check_all(async || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let url = RedisUrl::parse(&format!("{}?prefix=n{number}", server.url())).unwrap();
        RedisStore::open(&url).await.unwrap()
    })
    .await;
    let keyspace = server.command(&["INFO", "keyspace"]).unwrap();
    assert!(keyspace.contains("expires=0"), "{keyspace}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn durable_server_loses_nothing_at_kill_9() {
    let mut server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    assert_eq!(store.health(), StoreHealth::default());
    for n in 0..20 {
        write(&store, &n.to_string()).await;
    }
    server.kill().unwrap();
    server.again().unwrap();
    write_again(&store, "after").await;
    for n in 0..20 {
        assert!(holds(&store, &n.to_string()).await, "{n}");
    }
    assert_eq!(store.health(), StoreHealth::default());
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn read_and_write_wait_for_a_server_that_restarts() {
    let mut server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    write(&store, "before").await;
    for name in ["read", "write"] {
        tokio::time::sleep(2 * IDLE).await;
        server.kill().unwrap();
        let restart = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            server.again().unwrap();
        };
        let used = async {
            match name {
                "read" => assert!(holds(&store, "before").await),
                _ => write(&store, "after").await,
            }
        };
        tokio::join!(used, restart);
    }
    assert!(holds(&store, "after").await);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn first_write_after_an_idle_connection_was_closed_succeeds() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    for name in ["a", "b", "c"] {
        write(&store, name).await;
        tokio::time::sleep(2 * IDLE).await;
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    }
    assert!(holds(&store, "c").await);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn server_that_comes_back_empty_is_reported() {
    let settings = RedisSettings { is_durable: false, ..RedisSettings::default() };
    let mut server = RedisServer::start(settings).unwrap();
    let store = open(&server).await;
    let weaker = store.health().weaker_promise.unwrap();
    assert!(weaker.contains("`appendonly` is `no`"), "{weaker}");
    write(&store, "acknowledged").await;
    assert_eq!(store.health().losses, 0);
    server.kill().unwrap();
    server.again().unwrap();
    write_again(&store, "after").await;
    let health = store.health();
    assert_eq!(health.losses, 1);
    assert!(health.loss.unwrap().contains("lost all data"));
    write(&store, "later").await;
    assert_eq!(store.health().losses, 1, "told once");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn power_cut_loses_what_was_not_synced_yet_and_that_is_reported() {
    for setting in ["everysec", "no"] {
        let arguments = ["--appendfsync", setting].map(str::to_owned).to_vec();
        let settings = RedisSettings { arguments, ..RedisSettings::default() };
        let mut server = RedisServer::start(settings).unwrap();
        let store = open(&server).await;
        let weaker = store.health().weaker_promise.unwrap();
        assert!(weaker.contains(&format!("`appendfsync` is `{setting}`")), "{weaker}");
        write(&store, "synced").await;
        let synced = server.log_bytes().unwrap();
        write(&store, "acknowledged").await;
        assert!(server.log_bytes().unwrap() > synced);
        server.cut_power(synced).unwrap();
        server.again().unwrap();
        write_again(&store, "after").await;
        let health = store.health();
        assert_eq!(health.losses, 1, "{setting}: {health:?}");
        assert!(health.loss.unwrap().contains("change 2 was acknowledged before"));
        assert!(holds(&store, "synced").await && !holds(&store, "acknowledged").await);
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn server_that_evicts_any_key_forgets_records_and_is_named_before_it_does() {
    let arguments = ["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-random"];
    let arguments = arguments.map(str::to_owned).to_vec();
    let settings = RedisSettings { arguments, is_durable: false };
    let server = RedisServer::start(settings).unwrap();
    let store = open(&server).await;
    let weaker = store.health().weaker_promise.unwrap();
    assert!(weaker.contains("deletes records when memory is full"), "{weaker}");
    let (mut written, mut kept) = (0, 0);
    for n in 0..2000 {
        let mut batch = WriteBatch::default();
        batch.set(StoreKey::new(&[&n.to_string()]), &"x".repeat(4000), now());
        // Its counters may be among the keys that are gone.
        written += usize::from(store.commit(batch, now()).await.is_ok());
    }
    for n in 0..2000 {
        kept += usize::from(holds(&store, &n.to_string()).await);
    }
    assert!(kept < written, "{kept} of {written}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn older_snapshot_is_reported_even_after_another_relay_has_written_more() {
    let settings = RedisSettings { is_durable: false, ..RedisSettings::default() };
    let mut server = RedisServer::start(settings).unwrap();
    let store = open(&server).await;
    write(&store, "kept").await;
    server.command(&["SAVE"]).unwrap();
    write(&store, "lost").await;
    server.kill().unwrap();
    server.again().unwrap();
    let other = open(&server).await;
    for n in 0..9 {
        write(&other, &n.to_string()).await;
    }
    assert_eq!(other.health().losses, 0, "it knew nothing before");
    write_again(&store, "after").await;
    let health = store.health();
    assert_eq!(health.losses, 1, "{health:?}");
    assert!(health.loss.unwrap().contains("came back with change 1, and change 2"));
    assert!(holds(&other, "kept").await && !holds(&other, "lost").await);
}

/// It is rewritten now and then, and Redis refuses to begin a snapshot meanwhile.
#[tokio::test]
#[ignore = "needs redis-server"]
async fn snapshot_waits_until_the_file_of_changes_is_rewritten() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    for n in 0..20 {
        write(&store, &n.to_string()).await;
    }
    // Microseconds.
    server.command(&["CONFIG", "SET", "rdb-key-save-delay", "20000"]).unwrap();
    server.command(&["BGREWRITEAOF"]).unwrap();
    let refused = server.command(&["BGSAVE"]).unwrap();
    assert!(refused.contains("can't BGSAVE right now"), "{refused}");
    let snapshot = store.snapshot(Duration::from_secs(60)).await.unwrap();
    assert_eq!(snapshot.position, store.position().await.unwrap());
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn deleted_data_of_a_running_server_is_reported() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    write(&store, "acknowledged").await;
    server.command(&["FLUSHALL"]).unwrap();
    write(&store, "after").await;
    write_again(&store, "later").await;
    assert_eq!(store.health().losses, 1);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn full_server_takes_nothing_changes_nothing_and_can_be_emptied() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    write(&store, "old").await;
    let facts = vec![fact(1)];
    store.commit(WriteBatch { facts, ..WriteBatch::default() }, now()).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let mut refused = batch("new");
    refused.charges = vec![BudgetCharge::per_minute(StoreKey::new(&["b"]), 1)];
    let refused = store.commit(refused, now()).await.unwrap_err().to_string();
    assert!(refused.contains("out of memory"), "{refused}");
    assert!(!holds(&store, "new").await);
    assert_eq!(store.delete_expired(now()).await.unwrap(), 1);
    let facts = store.outbox(9).await.unwrap();
    store.remove_from_outbox(&facts[0].id).await.unwrap();
    assert_eq!(store.queue_depth().await.unwrap(), QueueDepth::default());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    write(&store, "new").await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn change_while_the_server_is_away_says_once_that_it_is() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    drop(server);
    // The first one finds the connection closed, and the second one none.
    for _ in 0..2 {
        let error = store.commit(batch("a"), now()).await.unwrap_err().to_string();
        assert_eq!(error.matches("the store can't be used").count(), 1, "{error}");
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn read_only_replica_is_named_and_used_again_when_it_is_the_primary() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let refused = store.commit(batch("a"), now()).await.unwrap_err().to_string();
    assert!(refused.contains("read-only replica"), "{refused}");
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    eventually(|| store.commit(batch("a"), now())).await;
    assert_eq!(store.health().losses, 0);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn large_facts_are_read_from_the_outbox_in_parts() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    conformance::large_facts_are_read_in_parts(&open(&server).await).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn facts_are_copied_by_one_relay_and_a_late_removal_takes_no_newer_fact() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let (one, other) = (open(&server).await, open(&server).await);
    let facts = (1..=3).map(fact).collect();
    one.commit(WriteBatch { facts, ..WriteBatch::default() }, now()).await.unwrap();
    let first = one.outbox(2).await.unwrap();
    let facts = first.iter().map(|entry| entry.fact.as_ref().unwrap()).collect::<Vec<_>>();
    assert_eq!(facts, [&fact(1), &fact(2)]);
    assert!(other.outbox(9).await.unwrap().is_empty(), "they are being copied");
    one.remove_from_outbox(&first[1].id).await.unwrap();
    one.remove_from_outbox(&first[1].id).await.unwrap();
    assert_eq!(one.queue_depth().await.unwrap().facts, 1);
    // The relay that copied facts is gone.
    server.command(&["DEL", "{crcr}:outbox_reader"]).unwrap();
    assert_eq!(other.outbox(9).await.unwrap().len(), 1);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn relay_that_looks_for_facts_is_seen_for_ten_seconds_and_a_tool_is_not() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let (relay, tool) = (open(&server).await, open(&server).await);
    write(&tool, "a").await;
    assert!(!tool.is_used_by_a_relay().await.unwrap());
    assert!(relay.outbox(1).await.unwrap().is_empty());
    assert!(tool.is_used_by_a_relay().await.unwrap());
    server.command(&["PEXPIRE", "{crcr}:relay_seen", "4000"]).unwrap();
    relay.outbox(1).await.unwrap();
    let left = server.command(&["PTTL", "{crcr}:relay_seen"]).unwrap();
    let left: u64 = left.trim().parse().unwrap();
    assert!((5_000..=10_000).contains(&left), "it is renewed: {left}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn check_finds_a_missing_permission_and_leaves_no_key() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let rights = ["ACL", "SETUSER", "relay", "on", ">s3cret", "~{crcr}*", "+@all", "-@admin"];
    server.command(&rights).unwrap();
    let url = server.url().replace("redis://", "redis://relay:s3cret@");
    let url = RedisUrl::parse(&url).unwrap();
    RedisStore::rehearse(&url).await.unwrap();
    let keys = server.command(&["KEYS", "*check*"]).unwrap();
    assert!(keys.trim().is_empty(), "{keys}");
    let store = RedisStore::open(&url).await.unwrap();
    let weaker = store.health().weaker_promise.unwrap();
    assert!(
        weaker.contains("doesn't tell its `appendfsync`"),
        "it can't read the settings: {weaker}"
    );
    server.command(&["ACL", "SETUSER", "relay", "-xadd"]).unwrap();
    let refused = RedisStore::rehearse(&url).await.unwrap_err().to_string();
    assert!(refused.contains("lacks a permission"), "{refused}");
    let keys = server.command(&["KEYS", "*check*"]).unwrap();
    assert!(keys.trim().is_empty(), "{keys}");
    server.command(&["ACL", "SETUSER", "relay", ">other", "<s3cret"]).unwrap();
    let refused = RedisStore::rehearse(&url).await.unwrap_err().to_string();
    assert!(refused.contains("refuses the login") && !refused.contains("s3cret"), "{refused}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn relay_whose_user_lacks_a_permission_does_not_start_and_names_the_commands() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let rights = [
        "ACL", "SETUSER", "relay", "on", ">s3cret", "~{crcr}*", "+@all", "-@admin", "-xadd",
        "-xtrim",
    ];
    server.command(&rights).unwrap();
    let url = server.url().replace("redis://", "redis://relay:s3cret@");
    let url = RedisUrl::parse(&url).unwrap();
    let refused = RedisStore::open(&url).await.map(drop).unwrap_err().to_string();
    let missing = "the Redis user lacks a permission (for `XADD`, `XTRIM` on `{crcr}*`)";
    assert!(refused.contains(missing), "{refused}");
    let keys = server.command(&["KEYS", "*"]).unwrap();
    assert!(keys.trim().is_empty(), "{keys}");
    server.command(&["ACL", "SETUSER", "relay", "+xadd", "+xtrim"]).unwrap();
    let store = RedisStore::open(&url).await.unwrap();
    write(&store, "a").await;
    // Taken away while the relay runs, it damages one change at most.
    server.command(&["ACL", "SETUSER", "relay", "-xadd"]).unwrap();
    let with_fact = |name| WriteBatch { facts: vec![fact(1)], ..batch(name) };
    store.commit(with_fact("b"), now()).await.unwrap_err();
    let refused = store.commit(with_fact("c"), now()).await.unwrap_err().to_string();
    assert!(refused.contains("for `XADD` on"), "{refused}");
    assert!(!holds(&store, "c").await);
    server.command(&["ACL", "SETUSER", "relay", "+xadd"]).unwrap();
    eventually(|| store.commit(with_fact("c"), now())).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn permission_that_a_read_lacks_is_named() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open(&server).await;
    server.command(&["ACL", "SETUSER", "default", "-mget"]).unwrap();
    let refused = store.records(&[StoreKey::new(&["a"])]).await.unwrap_err().to_string();
    assert!(refused.contains("lacks a permission") && refused.contains("'mget'"), "{refused}");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn relays_of_two_schemas_share_a_store_until_a_newer_one_makes_data_that_older_ones_cannot_read()
 {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let old = open_as(&server, 1, 1).await;
    let new = open_as(&server, 2, 1).await;
    write(&old, "old").await;
    write(&new, "new").await;
    assert!(holds(&old, "new").await && holds(&new, "old").await);
    let newest = open_as(&server, 3, 3).await;
    for older in [&old, &new] {
        let refused = older.commit(batch("late"), now()).await.unwrap_err().to_string();
        assert!(refused.contains("a newer crcr has written data"), "{refused}");
        let refused = older.repair_times(now()).await.unwrap_err().to_string();
        assert!(refused.contains("a newer crcr has written data"), "{refused}");
    }
    assert!(!holds(&newest, "late").await);
    write(&newest, "newest").await;
    let url = RedisUrl::parse(&server.url()).unwrap();
    assert!(RedisStore::open(&url).await.is_err(), "a relay of today");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn flushed_scripts_are_loaded_again_and_no_change_is_refused() {
    let server = RedisServer::start(RedisSettings::default()).unwrap();
    let store = open_as(&server, 1, 1).await;
    for round in 0..3 {
        let name = format!("after flush {round}");
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let many = (0..20).map(|n| store.commit(batch(&format!("{name} {n}")), now()));
        for outcome in futures_util::future::join_all(many).await {
            assert_eq!(outcome.unwrap(), CommitOutcome::Done);
        }
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert_eq!(store.repair_times(now()).await.unwrap(), 0);
        assert!(holds(&store, &format!("{name} 19")).await);
    }
}
