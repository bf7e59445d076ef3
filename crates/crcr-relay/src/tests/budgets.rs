//! Workers, calls, connections and bytes have owners with shares: nobody can use up what others need.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_store::{LeaseRequest, NewTask, StoreKey, TaskOutcome, TaskState, WriteBatch};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::support::{NEWER, World};
use crate::admin::{dead_letters, deliveries};
use crate::http::connections::{self, ConnectionLimits};
use crate::http::{router, serve};
use crate::limits;
use crate::queue::lanes::{BusyLanes, Lane};
use crate::queue::workers::{self, WorkerTimeouts};

const HOUR: Duration = Duration::from_secs(3600);

fn lane_task(lane: &Lane, n: usize, world: &World) -> NewTask {
    NewTask {
        key: StoreKey::new(&["test", &lane.name(), &n.to_string()]),
        lane: lane.name(),
        payload: String::new(),
        due_at: world.relay.now(),
    }
}

/// The lanes of the tasks that free workers would get now.
async fn next_lanes(world: &World) -> Vec<String> {
    let config = &world.relay.config;
    let (pools, busy_lanes) =
        BusyLanes::default().room(config.workers, &config.upstream, std::iter::empty());
    let max_tasks = pools.values().map(|room| room.free).sum();
    let now = world.relay.now();
    let request =
        LeaseRequest { now, until: now + HOUR, max_tasks, max_per_lane: 0, busy_lanes, pools };
    let leased = world.relay.store.lease_tasks(request).await.unwrap();
    leased.into_iter().map(|task| task.lane).collect()
}

#[tokio::test]
async fn first_check_run_of_another_pull_request_waits_for_no_backlog_of_16_backends() {
    let world = World::new().await;
    let mut tasks = vec![];
    for backend in 0..16 {
        let repo = format!("acme/backend-{backend}");
        let lane = Lane::CheckRuns { repo, head_sha: "a".repeat(40) };
        tasks.extend((0..256).map(|n| lane_task(&lane, n, &world)));
    }
    world.relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.unwrap();
    world.later(Duration::from_millis(10));
    let other = Lane::CheckRuns { repo: "acme/other".to_owned(), head_sha: "b".repeat(40) };
    let tasks = vec![lane_task(&other, 0, &world)];
    world.relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.unwrap();
    let mut before = 0;
    loop {
        world.later(Duration::from_millis(10));
        let lanes = next_lanes(&world).await;
        if lanes.contains(&other.name()) {
            break;
        }
        before += lanes.len();
    }
    assert!(before <= 16, "{before} of 4,096: one of each backend at most");
}

#[tokio::test]
async fn dispatch_is_sent_within_a_second_while_the_hud_of_six_accounts_hangs() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/api", silent.local_addr().unwrap());
    let accept = tokio::spawn(async move {
        let mut held = vec![];
        while let Ok((stream, _)) = silent.accept().await {
            held.push(stream);
        }
    });
    let world = World::with(&[("HUD_API_URL", &url), ("HUD_BOT_KEY", "key")]).await;
    let mut tasks = vec![];
    for account in 0..6 {
        for n in 0..20 {
            let kind = crate::queue::task_kind::TaskKind::Forward {
                key: vec![format!("{account} {n}")],
                lane: format!("account-{account}"),
                body: "{}".to_owned(),
            };
            tasks.push(kind.task(world.relay.now()));
        }
    }
    world.relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.unwrap();
    let stop = CancellationToken::new();
    let timeouts = WorkerTimeouts { shutdown: Duration::ZERO, ..WorkerTimeouts::default() };
    let working = tokio::spawn(workers::run(Arc::clone(&world.relay), stop.clone(), timeouts));
    let leased = async || world.relay.store.queue_depth().await.unwrap().leased;
    while leased().await < 8 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(leased().await, 8, "the HUD has no more workers than that");
    world.send(&world.pull_request("opened")).await;
    let sent_at = Instant::now();
    let mut dispatched = vec![];
    while dispatched.len() < 4 {
        dispatched.extend(world.dispatched());
        assert!(sent_at.elapsed() < Duration::from_secs(9), "the HUD's time-out is ten seconds");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("dispatched after {:?}", sent_at.elapsed());
    stop.cancel();
    working.await.unwrap();
    accept.abort();
}

#[tokio::test]
async fn half_heads_and_slow_bodies_of_strangers_delay_no_webhook() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let router = router::public(&world.relay, &world.hud);
    // Half of the usual number, so that both ends fit into one process.
    let few =
        ConnectionLimits { max_open: limits::MAX_CONNECTIONS / 2, ..ConnectionLimits::default() };
    let serving = tokio::spawn(connections::serve(listener, router, few, stop.clone()));
    let connect = async |text: String| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    };
    let mut strangers = vec![];
    for path in ["webhook", "callback"] {
        for _ in 0..32 {
            let head = format!(
                "POST /github/{path} HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\n\r\n"
            );
            strangers.push(connect(head + &"x".repeat(300_000)).await);
        }
    }
    for _ in 0..few.max_open {
        let head = "POST /github/webhook HTTP/1.1\r\nhost: a\r\nx-slow: ".to_owned();
        strangers.push(connect(head).await);
    }
    let has_closed_some = async || {
        let input = crate::http::metrics::MetricsInput::read(&world.relay).await;
        let text = world.relay.metrics.text(&input);
        let mut counts =
            text.lines().filter(|line| line.starts_with("crcr_connections_closed_early{"));
        counts.any(|line| !line.ends_with(" 0"))
    };
    let connected_at = Instant::now();
    while !has_closed_some().await {
        assert!(connected_at.elapsed() < Duration::from_secs(5), "the listener isn't full");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut waited = vec![];
    for action in ["opened", "labeled", "synchronize"] {
        let delivery = world.pull_request(action);
        // A connection for each of them.
        let mut request = reqwest::Client::new().post(format!("http://{address}/github/webhook"));
        for (name, value) in delivery.headers() {
            request = request.header(name, value);
        }
        let sent_at = Instant::now();
        let answer = request.body(delivery.body.clone()).send().await.unwrap();
        waited.push(sent_at.elapsed());
        assert!(answer.status().is_success(), "{action}: {}", answer.status());
    }
    println!("answered after {waited:?}");
    // All three would wait for a time-out; a machine that is busy for a second delays one of them.
    let fastest = waited.iter().min().unwrap();
    assert!(*fastest < Duration::from_secs(1), "{waited:?}");
    let health = reqwest::get(format!("http://{address}/healthz")).await.unwrap();
    assert_eq!(health.status(), StatusCode::OK);
    drop(strangers);
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn push_to_a_pull_request_with_hundreds_of_targets_supersedes_all_of_them() {
    let world = World::new().await;
    let repos: Vec<String> = (0..450).map(|n| format!("acme/r{n}")).collect();
    for repo in &repos {
        world.github.state().world.install(repo);
    }
    world.enforce(&format!("L1: [{}]", repos.join(", "))).await;
    let opened = world.pull_request("opened");
    world.send(&opened).await;
    world.change(|pull| NEWER.clone_into(&mut pull.head_sha));
    let pushed = world.pull_request("synchronize");
    let (status, _) = world.send(&pushed).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    world.settle().await;
    let dispatched = world.github.state().world.take_dispatches();
    assert_eq!(dispatched.len(), repos.len(), "the newer head only");
    let overview =
        deliveries::delivery(world.relay.store.as_ref(), &opened.id).await.unwrap().unwrap();
    let by = DispatchStatus::Superseded { by: pushed.id.clone() };
    assert!(overview.dispatches.iter().all(|dispatch| dispatch.status == by));
    assert_eq!(overview.dispatches.len(), repos.len());
    assert_eq!(world.relay.store.queue_depth().await.unwrap().dead, 0);
}

#[tokio::test]
async fn clock_that_is_weeks_ahead_for_hours_deletes_no_state_and_delays_nothing_when_it_is_set_right()
 {
    let world = World::new().await;
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.work().await;
    world.dispatched();
    serve::delete_all_expired(&world.relay).await.unwrap();
    let before = world.rows("record");
    let weeks = 36 * 24 * HOUR;
    world.later(weeks);
    // Two hours of the timer that runs every minute.
    for _ in 0..120 {
        serve::delete_all_expired(&world.relay).await.unwrap();
    }
    let tasks = vec![NewTask {
        due_at: world.relay.now() + HOUR,
        ..lane_task(&Lane::Sweeps("acme".to_owned()), 0, &world)
    }];
    world.relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.unwrap();
    world.github.state().clock.set_back(weeks);
    serve::delete_all_expired(&world.relay).await.unwrap();
    let after = world.rows("record");
    assert!(after >= before, "{before}, then {after}");
    let again = world.send(&delivery).await;
    assert_eq!(again.1, json!({ "ok": true, "duplicate": true }), "it is still known");
    world.later(HOUR);
    assert_eq!(next_lanes(&world).await, ["sweep:acme"], "an hour later, and not weeks later");
}

/// As a Redis server does whose memory is full: what deletes still works.
#[tokio::test]
async fn store_that_takes_no_writes_is_emptied_of_what_has_expired() {
    let world = World::new().await;
    world.send_and_work("opened").await;
    world.dispatched();
    serve::delete_all_expired(&world.relay).await.unwrap();
    world.sql(
        "CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'full'); END;
         UPDATE record SET expires_at = 0 WHERE key LIKE '%\"body\"]'",
    );
    assert!(serve::delete_all_expired(&world.relay).await.unwrap() > 0);
    assert_eq!(world.value("SELECT count(*) FROM record WHERE key LIKE '%\"body\"]'"), 0);
    // However often that is tried, it comes no further.
    let before = world.rows("record");
    world.later(36 * 24 * HOUR);
    for _ in 0..200 {
        serve::delete_all_expired(&world.relay).await.unwrap();
    }
    assert_eq!(world.rows("record"), before);
}

#[tokio::test]
async fn repository_that_is_not_on_the_allowlist_fills_no_disk_and_fetches_few_logs() {
    let world = World::new().await;
    let filler: String = (0..60_000).map(|_| char::from(rand::random_range(b'a'..=b'z'))).collect();
    let job = |n: u32| {
        let text = format!("{filler}{n}");
        json!({
            "action": "completed", "repository": { "full_name": "acme-fork/unlisted" },
            "workflow_job": {
                "id": n, "run_id": n, "run_attempt": 1, "status": "completed",
                "conclusion": "failure", "head_sha": "abc", "head_branch": "main", "name": text,
                "created_at": "2026-08-01T10:00:00Z", "completed_at": "2026-08-01T10:00:00Z",
            },
        })
    };
    for n in 0..400 {
        let delivery = world.github.state().world.delivery("workflow_job", &job(n));
        assert_eq!(world.send(&delivery).await, (StatusCode::OK, json!({ "ignored": true })));
    }
    let kept = world.value("SELECT sum(length(value)) FROM record WHERE key LIKE '%\"pending\"%'");
    let most = limits::UNLISTED_WEBHOOK_BYTES_PER_DAY.cast_signed();
    assert!(kept <= most && kept > most / 2, "{kept} bytes");
    for _ in 0..3 {
        world.work().await;
        world.later(Duration::from_secs(10));
    }
    let count = "SELECT count(*) FROM task WHERE key LIKE '[\"job_log\"%'";
    let calls = world.github.state().world.calls();
    let fetched = calls.iter().filter(|call| call.route().contains("/logs")).count() as i64;
    let wanted = world.value(count).max(fetched);
    assert!(wanted <= limits::UNLISTED_LOGS_PER_DAY.cast_signed(), "{wanted} logs");
}

#[tokio::test]
async fn dead_letters_of_one_cause_are_one_entry_and_are_discarded_by_repository() {
    let world = World::with(&[("CRCR_ADMIN_TOKEN", "a-token-of-some-length")]).await;
    let store = world.relay.store.as_ref();
    let now = world.relay.now();
    let tasks = (0..84).map(|n| NewTask {
        key: StoreKey::new(&["comment", &format!("{n}"), "acme/two"]),
        lane: "upstream:".to_owned(),
        payload: String::new(),
        due_at: now,
    });
    let tasks = tasks.chain([NewTask {
        key: StoreKey::new(&["comment", "1", "acme/one"]),
        lane: "upstream:".to_owned(),
        payload: String::new(),
        due_at: now,
    }]);
    world
        .relay
        .commit(WriteBatch { tasks: tasks.collect(), ..WriteBatch::default() })
        .await
        .unwrap();
    let request = LeaseRequest {
        now,
        until: now,
        max_tasks: 99,
        max_per_lane: 99,
        ..LeaseRequest::default()
    };
    for task in store.lease_tasks(request).await.unwrap() {
        let error = format!("pull request {} can't be commented", task.id);
        let outcome = TaskOutcome::Dead { error, expires_at: now + HOUR };
        let settlement = Some(task.settle(outcome));
        world.relay.commit(WriteBatch { settlement, ..WriteBatch::default() }).await.unwrap();
    }
    let groups = dead_letters::groups(store).await.unwrap();
    let counts: Vec<_> =
        groups.iter().map(|group| (group.repository.as_deref().unwrap(), group.count)).collect();
    assert_eq!(counts, [("acme/two", 84), ("acme/one", 1)]);
    let request = http::Request::post("/api/v1/deliveries")
        .header("authorization", "Bearer a-token-of-some-length")
        .body(axum::body::Body::from(json!({ "discard_repository": "acme/two" }).to_string()));
    let answer = world.call(request.unwrap()).await;
    assert_eq!(answer, (StatusCode::OK, json!({ "ok": true, "discarded": 84 })));
    assert_eq!(store.tasks(Some(TaskState::Dead), 99).await.unwrap().len(), 1);
}

#[tokio::test]
async fn trying_all_again_sends_no_events_of_days_ago() {
    use crate::queue::task_kind::TaskKind;
    let world = World::new().await;
    let store = world.relay.store.as_ref();
    let old = TaskKind::Dispatch {
        delivery: "old".to_owned(),
        repo: "acme/two".parse().unwrap(),
        is_probe: false,
    };
    let kinds = [old, TaskKind::Labels { pull: 7 }, TaskKind::Labels { pull: 8 }];
    let now = world.relay.now();
    let tasks = kinds.map(|kind| kind.task(now)).to_vec();
    world.relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.unwrap();
    let request = LeaseRequest {
        now,
        until: now,
        max_tasks: 99,
        max_per_lane: 99,
        ..LeaseRequest::default()
    };
    for task in store.lease_tasks(request).await.unwrap() {
        let outcome = TaskOutcome::Dead { error: "no".to_owned(), expires_at: now + 99 * HOUR };
        let settlement = Some(task.settle(outcome));
        world.relay.commit(WriteBatch { settlement, ..WriteBatch::default() }).await.unwrap();
    }
    world.later(30 * HOUR);
    let all = deliveries::redeliver_all(store, world.relay.now(), limits::RECORD_RETENTION)
        .await
        .unwrap();
    assert_eq!((all.requeued, all.too_old), (2, 1));
    let left = store.tasks(Some(TaskState::Dead), 99).await.unwrap();
    assert_eq!(left.len(), 1, "an operator can still look at it");
}
