//! The queue's guarantees when handlers, servers or clocks fail.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::protocol::event::EventName;
use crcr_standin::traffic::Fault;
use crcr_store::{LeaseRequest, TaskOutcome, TaskState, WriteBatch};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::support::{ALL, HEAD, NEWER, World};
use crate::admin::deliveries;
use crate::http::serve;
use crate::limits;
use crate::queue::task_kind::{ParsedTask, TaskError, TaskKind};
use crate::queue::workers;

/// Leases one due task, as another worker would.
async fn lease(world: &World) -> ParsedTask {
    let now = world.relay.now();
    let want = LeaseRequest {
        now,
        until: now + limits::TASK_LEASE,
        max_tasks: 1,
        max_per_lane: 8,
        ..LeaseRequest::default()
    };
    world
        .relay
        .store
        .lease_tasks(want)
        .await
        .unwrap()
        .pop()
        .map(ParsedTask::new)
        .expect("a task is due")
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect(what);
}

#[tokio::test]
async fn work_that_hangs_at_the_time_limit_is_released_and_done_by_the_next_process() {
    let world = World::new().await;
    let route = "POST /repos/acme/two/dispatches";
    world.github.state().world.fail(route, 1, Fault::Stall);
    world.send(&world.pull_request("opened")).await;
    let bounds = workers::WorkerTimeouts {
        handler: Duration::from_secs(60),
        shutdown: Duration::from_millis(100),
    };
    let limit = Duration::from_millis(500);
    let mut paused = workers::Pauses::default();
    let worked = workers::work_due(&world.relay, limit, bounds, &mut paused).await;
    assert!(worked >= ALL.len(), "{worked}");
    assert_eq!(world.dispatched().len(), ALL.len() - 1);
    // GitHub may have got it, so it isn't sent again at once.
    world.later(limits::OUTAGE_RETRY.cap);
    let limit = Duration::from_secs(20);
    let again = workers::work_due(&world.relay, limit, bounds, &mut paused).await;
    assert_eq!((again, world.dispatched()), (1, vec!["acme/two".to_owned()]));
}

#[tokio::test]
async fn hanging_handler_is_a_failed_try_without_a_second_worker() {
    let world = World::new().await;
    let route = "POST /repos/acme/two/dispatches";
    world.github.state().world.fail(route, 1, Fault::Stall);
    world.send(&world.pull_request("opened")).await;
    let stop = CancellationToken::new();
    let bounds = workers::WorkerTimeouts {
        handler: Duration::from_millis(300),
        shutdown: Duration::from_secs(5),
    };
    let working = tokio::spawn(workers::run(Arc::clone(&world.relay), stop.clone(), bounds));
    let failed = async || {
        let ready = world.relay.store.tasks(Some(TaskState::Ready), 99).await.unwrap();
        ready.into_iter().find(|task| task.failed == 1)
    };
    until("the try has failed", async || failed().await.is_some()).await;
    let error = failed().await.unwrap().last_error.unwrap();
    assert!(error.contains("the handler took longer than 0.3 s"), "{error}");
    // Only its next try continues.
    let mut sent = vec![];
    world.later(Duration::from_secs(2));
    until("it is sent after all", async || {
        sent.extend(world.dispatched());
        sent.len() == ALL.len()
    })
    .await;
    stop.cancel();
    working.await.unwrap();
    assert_eq!(world.github.state().world.count(route), 2);
}

/// A backend cancels the run of what came before. If the older head came last, it would be tested and the newer one cancelled.
#[tokio::test]
async fn newer_head_is_sent_after_the_older_one_that_is_on_its_way() {
    let world = World::new().await;
    let state = world.github.state();
    let route = "POST /repos/acme/two/dispatches";
    state.world.fail(route, 1, Fault::Delay(Duration::from_secs(1)));
    world.send(&world.pull_request("opened")).await;
    let stop = CancellationToken::new();
    let bounds = workers::WorkerTimeouts::default();
    let working = tokio::spawn(workers::run(Arc::clone(&world.relay), stop.clone(), bounds));
    until("the older head is on its way", async || state.world.count(route) == 1).await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.send(&world.pull_request("synchronize")).await;
    let mut heads = vec![];
    until("both have come", async || {
        let came = state.world.take_dispatches().into_iter();
        let came = came.filter(|dispatch| dispatch.repository == "acme/two");
        heads.extend(came.map(|dispatch| {
            let pull = &dispatch.client_payload["payload"]["pull_request"];
            pull["head"]["sha"].as_str().unwrap().to_owned()
        }));
        heads.len() == 2
    })
    .await;
    stop.cancel();
    working.await.unwrap();
    assert_eq!(heads, [HEAD, NEWER]);
}

/// Its worker may have stopped, and nobody knows what it has sent.
#[tokio::test]
async fn newer_head_does_not_wait_for_an_older_one_whose_lease_has_ended() {
    let world = World::new().await;
    world.send(&world.pull_request("opened")).await;
    let two = r#"acme/two"]"#;
    loop {
        let task = lease(&world).await;
        if task.lease.key.starts_with(r#"["dispatch""#) && task.lease.key.ends_with(two) {
            break;
        }
    }
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.send(&world.pull_request("synchronize")).await;
    world.settle().await;
    assert!(!world.dispatched().contains(&"acme/two".to_owned()));
    world.wait(limits::TASK_LEASE).await;
    // Another worker has found the older one superseded.
    world.wait(limits::EARLIER_DISPATCH_WAIT).await;
    assert!(world.dispatched().contains(&"acme/two".to_owned()));
}

#[tokio::test]
async fn worker_without_its_lease_records_nothing() {
    let world = World::with(&[("UPSTREAM_REPO", super::support::UPSTREAM)]).await;
    let delivery = world.pull_request("closed");
    world.send(&delivery).await;
    let first = lease(&world).await;
    world.work_after(limits::TASK_LEASE + Duration::from_secs(1)).await;
    assert_eq!(world.dispatched(), ALL, "the next worker sent them");
    let store = world.relay.store.as_ref();
    let before = deliveries::delivery(store, &delivery.id).await.unwrap();
    workers::settle(&world.relay, &first, Err(TaskError::permanent("too late"))).await.unwrap();
    assert_eq!(deliveries::delivery(store, &delivery.id).await.unwrap(), before);
    assert_eq!(deliveries::dead_letters(store, 9).await.unwrap(), []);
}

#[tokio::test]
async fn failing_sweep_is_never_given_up() {
    let world = World::new().await;
    world.send_and_work("opened").await;
    world.later(world.relay.config.never_started_after + Duration::from_secs(1));
    for tries in 0..2 * limits::TASK_TRIES {
        let sweep = loop {
            let task = lease(&world).await;
            if task.lease.key.starts_with(r#"["sweep""#) && task.lease.failed == tries {
                break task;
            }
            let batch = WriteBatch {
                settlement: Some(task.lease.settle(TaskOutcome::Later(jiff::Timestamp::MAX))),
                ..WriteBatch::default()
            };
            world.relay.commit(batch).await.unwrap();
        };
        workers::settle(&world.relay, &sweep, Err(TaskError::permanent("no"))).await.unwrap();
        world.later(limits::TASK_RETRY.cap);
    }
    let store = world.relay.store.as_ref();
    assert_eq!(deliveries::dead_letters(store, 9).await.unwrap(), []);
    let sweeps = store.tasks(Some(TaskState::Ready), 99).await.unwrap();
    let soon = world.relay.now() + limits::TASK_RETRY.cap;
    assert!(sweeps.iter().any(|task| task.failed == 2 * limits::TASK_TRIES && task.due_at <= soon));
}

/// While relays are replaced one after the other, an older one leases what a newer one has asked for.
#[tokio::test]
async fn task_of_another_version_waits_for_a_relay_that_knows_it_and_is_a_dead_letter_after_a_day()
{
    let world = World::new().await;
    let store = world.relay.store.as_ref();
    let key = crcr_store::StoreKey::new(&["paint_check_run", "7"]);
    let task = crcr_store::NewTask {
        key: key.clone(),
        lane: "upstream:".to_owned(),
        payload: r#"{"kind":"paint_check_run","colour":7}"#.to_owned(),
        due_at: world.relay.now(),
    };
    world.relay.commit(WriteBatch { tasks: vec![task], ..WriteBatch::default() }).await.unwrap();
    for _ in 0..2 * limits::TASK_TRIES {
        let errors = world.work_after(limits::OUTAGE_RETRY.cap).await;
        assert!(errors.iter().any(|error| error.contains("of another version")), "{errors:?}");
    }
    assert_eq!(deliveries::dead_letters(store, 9).await.unwrap(), []);
    let waiting = store.find_task(key.as_str(), TaskState::Ready).await.unwrap().unwrap();
    assert!(waiting.payload.contains("colour"), "{}", waiting.payload);
    world.work_after(limits::LONGEST_OUTAGE).await;
    assert_eq!(deliveries::dead_letters(store, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn try_that_github_can_not_have_taken_leaves_no_trace_among_the_dispatches_that_it_may_have()
{
    for (fault, sends) in
        [(Fault::status(429), 1), (Fault::status(401), 1), (Fault::status(502), 2)]
    {
        let world = World::new().await;
        let text = format!("{fault:?}");
        world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, fault);
        world.send(&world.pull_request("opened")).await;
        for _ in 0..3 {
            world.work_after(Duration::from_secs(120)).await;
        }
        assert!(world.dispatched().contains(&"acme/two".to_owned()), "{text}");
        let of_two = r#"SELECT count(*) FROM member WHERE set_key LIKE '["sent_to","acme/two"%'"#;
        assert_eq!(world.value(of_two), sends, "{text}");
    }
}

/// A world with one dead task, the dispatch to `acme/two`, and its key.
async fn with_a_dead_task(settings: &[(&str, &str)]) -> (World, String) {
    let world = World::with(settings).await;
    world.send(&world.pull_request("opened")).await;
    world.work_giving_up("acme/two").await;
    let dead = deliveries::dead_letters(world.relay.store.as_ref(), 9).await.unwrap();
    assert_eq!(dead.len(), 1);
    (world, dead[0].key.clone())
}

#[tokio::test]
async fn dead_task_is_deleted_after_the_retention() {
    let (world, _) = with_a_dead_task(&[("CRCR_STATUS_TTL", "2d")]).await;
    let dead =
        async || deliveries::dead_letters(world.relay.store.as_ref(), 9).await.unwrap().len();
    world.later(Duration::from_secs(2 * 86_400 - 60));
    serve::delete_all_expired(&world.relay).await.unwrap();
    assert_eq!(dead().await, 1);
    world.later(Duration::from_secs(120));
    serve::delete_all_expired(&world.relay).await.unwrap();
    assert_eq!(dead().await, 0);
}

#[tokio::test]
async fn dead_task_is_discarded_by_key_and_listed_without_payload() {
    let token = "a-token-of-some-length";
    let (world, key) = with_a_dead_task(&[("CRCR_ADMIN_TOKEN", token)]).await;
    let path = "/api/v1/deliveries";
    let ask = async |request: http::request::Builder, body: String| {
        let request = request.header("authorization", format!("Bearer {token}"));
        world.call(request.body(Body::from(body)).unwrap()).await
    };
    let (status, board) = ask(Request::get(path), String::new()).await;
    assert_eq!((status, &board["dead"][0]["key"]), (StatusCode::OK, &json!(key)));
    assert!(board["dead"][0].get("payload").is_none(), "{board}");
    let order = json!({ "discard": key }).to_string();
    let foreign = Request::post(path).header("origin", "https://evil.test");
    let foreign = foreign.header("host", "relay.test");
    assert_eq!(ask(foreign, order.clone()).await.0, StatusCode::FORBIDDEN);
    for discarded in [1, 0] {
        let answer = ask(Request::post(path), order.clone()).await;
        assert_eq!(answer, (StatusCode::OK, json!({ "ok": true, "discarded": discarded })));
    }
    assert_eq!(deliveries::dead_letters(world.relay.store.as_ref(), 9).await.unwrap(), []);
}

#[tokio::test]
async fn expired_records_are_deleted_in_small_transactions() {
    let world = World::new().await;
    serve::delete_all_expired(&world.relay).await.unwrap();
    let expires_at = world.relay.now() + Duration::from_secs(60);
    let mut batch = WriteBatch::default();
    for n in 0..3000 {
        batch.set(crcr_store::StoreKey::new(&["old", &n.to_string()]), &n, expires_at);
    }
    world.relay.commit(batch).await.unwrap();
    let before = world.rows("record");
    world.later(Duration::from_secs(61));
    let one = world.relay.store.delete_expired(world.relay.now()).await.unwrap();
    assert!((1..1000).contains(&one), "{one}");
    serve::delete_all_expired(&world.relay).await.unwrap();
    assert_eq!(world.rows("record"), before - 3000, "nothing is left for the next minute");
}

#[tokio::test]
async fn slow_alert_webhook_does_not_pause_check_runs() {
    let alert = TaskKind::Alert {
        repo: "acme/two".parse().unwrap(),
        event: EventName::Push,
        head_sha: HEAD.to_owned(),
        passed: false,
    };
    let world = World::new().await;
    let now = world.relay.now();
    let labels = TaskKind::Labels { pull: 7 }.task(now);
    let alert = alert.task(now);
    assert_ne!(crcr_store::pool_of(&alert.lane), crcr_store::pool_of(&labels.lane));
}
