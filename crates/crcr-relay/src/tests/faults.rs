//! The faults of the deployed relay, as regression tests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::protocol::dispatch::DispatchStatus;
use crcr_standin::traffic::Fault;
use crcr_store::{LeaseRequest, NewTask, StoreKey, TaskOutcome, WriteBatch};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::support::{ALL, ALLOWLIST, UPSTREAM, World};
use crate::admin::deliveries;
use crate::http::metrics::MetricsInput;
use crate::limits;
use crate::queue::workers;
use crate::warnings::{self, LastWarnings};

async fn ready(world: &World) -> (StatusCode, Value) {
    world.call(Request::get("/readyz").body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn broken_backend_is_unreachable_and_leaves_no_dead_letter() {
    for (status, message) in [
        (403, "Repository was archived so is read-only."),
        (403, "Resource not accessible by integration"),
        (404, "Not Found"),
        (422, "refused"),
        (451, "Repository access blocked"),
    ] {
        let world = World::new().await;
        let status = StatusCode::from_u16(status).unwrap();
        let body = json!({ "message": message }).to_string();
        let fault = Fault::Answer { status, retry_after: None, body };
        let events = 12;
        world.github.state().world.fail("POST /repos/acme/two/dispatches", events, fault);
        let mut deliveries = vec![];
        for _ in 0..events {
            deliveries.push(world.pull_request("reopened"));
            world.send(deliveries.last().unwrap()).await;
            world.settle().await;
            assert_eq!(world.dispatched(), ["acme/four", "acme/one", "acme/three"]);
            world.change(|_| {});
        }
        let store = world.relay.store.as_ref();
        assert_eq!(deliveries::dead_letters(store, 100).await.unwrap(), []);
        let text = world.relay.metrics.text(&MetricsInput::read(&world.relay).await);
        assert!(!text.contains("crcr_dead_tasks{"), "no alert:\n{text}");
        let newest = deliveries.last().unwrap();
        let overview = deliveries::delivery(store, &newest.id).await.unwrap().unwrap();
        let two = overview.dispatches.iter().find(|one| one.repo.as_str() == "acme/two").unwrap();
        assert_eq!(two.status, DispatchStatus::Unreachable);
        assert!(two.last_error.as_ref().unwrap().contains(message), "{two:?}");
        // After the repair only the failed dispatch is redelivered.
        let again = deliveries::redeliver(
            store,
            &newest.id,
            None,
            world.relay.now(),
            limits::RECORD_RETENTION,
        )
        .await
        .unwrap();
        assert_eq!(again, 1);
        world.work().await;
        assert_eq!(world.dispatched(), ["acme/two"]);
    }
}

#[tokio::test]
async fn dispatch_that_was_given_up_after_a_day_is_tried_for_another_day_when_it_is_redelivered() {
    let world = World::new().await;
    let outage = || Fault::status(502);
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 10_000, outage());
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.work().await;
    world.dispatched();
    let store = world.relay.store.as_ref();
    while deliveries::dead_letters(store, 100).await.unwrap().is_empty() {
        world.work_after(Duration::from_secs(3600)).await;
    }
    world.github.state().world.clear_faults();
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, outage());
    let now = world.relay.now();
    let again =
        deliveries::redeliver(store, &delivery.id, None, now, limits::RECORD_RETENTION).await;
    assert_eq!(again.unwrap(), 1);
    assert_eq!(world.work().await.len(), 1);
    assert_eq!(deliveries::dead_letters(store, 100).await.unwrap(), []);
    world.work_after(Duration::from_secs(600)).await;
    assert_eq!(world.dispatched(), ["acme/two"]);
}

#[tokio::test]
async fn repeated_delivery_dispatches_nothing() {
    let world = World::new().await;
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    world.work().await;
    assert_eq!(world.dispatched(), ALL);
    for _ in 0..2 {
        let answer = world.send(&delivery).await;
        assert_eq!(answer, (StatusCode::OK, json!({ "ok": true, "duplicate": true })));
    }
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
}

#[tokio::test]
async fn webhook_is_acknowledged_before_any_request_to_github() {
    let world = World::new().await;
    let list: Vec<String> = (0..20).map(|n| format!("acme/backend-{n}")).collect();
    for repo in &list {
        world.github.state().world.install(repo);
    }
    world.enforce(&format!("L2: [{}]", list.join(", "))).await;
    let (status, body) = world.send(&world.pull_request("opened")).await;
    assert_eq!((status, &body["tasks"]), (StatusCode::ACCEPTED, &json!(20)));
    assert_eq!(world.github.state().world.calls(), []);
    world.work().await;
    assert_eq!(world.dispatched().len(), 20);
}

#[tokio::test]
async fn invalid_allowlist_keeps_the_last_good_one_and_is_reported() {
    let world = World::new().await;
    world.enforce("L1: [a, b\nL9:").await;
    let standing = world.relay.allowlist.status();
    assert!(standing.loaded && standing.problem.is_some() && standing.repositories == 4);
    let (status, body) = world.send(&world.pull_request("opened")).await;
    assert_eq!((status, &body["tasks"]), (StatusCode::ACCEPTED, &json!(5)));
    let (status, body) = ready(&world).await;
    assert_eq!(status, StatusCode::OK);
    assert!(body["allowlist"]["problem"].is_string(), "{body}");
    let input = MetricsInput::read(&world.relay).await;
    let text = world.relay.metrics.text(&input);
    assert!(text.contains("crcr_allowlist_good 0"), "{text}");
}

#[cfg(unix)]
#[tokio::test]
async fn allowlist_that_is_a_pipe_is_not_waited_for() {
    let world = World::new().await;
    world.remove_allowlist();
    let path = world.folder.path().join("allowlist.yml");
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
    world.relay.allowlist.refresh(&world.relay.app, world.relay.now()).await;
    let problem = world.relay.allowlist.status().problem.unwrap();
    assert!(problem.contains("isn't a file"), "{problem}");
}

/// Whoever writes the file empties it first.
#[tokio::test]
async fn allowlist_file_that_is_emptied_takes_no_required_check_away() {
    let world = World::new().await;
    for empty in ["", "\n"] {
        world.enforce(empty).await;
        let standing = world.relay.allowlist.status();
        assert!(standing.problem.unwrap().contains("is empty"));
        assert_eq!(standing.repositories, 4, "the last good one stays in force");
    }
    world.enforce("L1: []\n").await;
    let standing = world.relay.allowlist.status();
    assert_eq!((standing.problem, standing.repositories), (None, 0));
}

/// Puts tasks of these kinds into the queue, each kind's in its lane.
async fn queue_tasks(world: &World, kinds: &[(&str, &str, usize)]) {
    for (kind, lane, count) in kinds {
        let tasks = (0..*count).map(|n| NewTask {
            key: StoreKey::new(&[kind, &n.to_string()]),
            lane: (*lane).to_owned(),
            payload: String::new(),
            due_at: world.relay.now(),
        });
        let batch = WriteBatch { tasks: tasks.collect(), ..WriteBatch::default() };
        world.relay.commit(batch).await.unwrap();
        world.later(Duration::from_secs(1));
    }
}

async fn give_up_all_tasks(world: &World) {
    loop {
        let now = world.relay.now();
        let (until, max) = (now + limits::TASK_LEASE, 500);
        let want =
            LeaseRequest { now, until, max_tasks: max, max_per_lane: max, ..Default::default() };
        let leased = world.relay.store.lease_tasks(want).await.unwrap();
        if leased.is_empty() {
            return;
        }
        for lease in leased {
            let expires_at = world.relay.expiry();
            let outcome = TaskOutcome::Dead { error: "it is gone".to_owned(), expires_at };
            let settlement = Some(lease.settle(outcome));
            let batch = WriteBatch { settlement, ..WriteBatch::default() };
            world.relay.commit(batch).await.unwrap();
        }
    }
}

async fn metrics(world: &World) -> String {
    world.relay.metrics.text(&MetricsInput::read(&world.relay).await)
}

/// What the first page says is wrong with the relay.
async fn warnings_of(world: &World) -> String {
    let found = warnings::read(&world.relay, &LastWarnings::default()).await;
    found.into_iter().map(|warning| warning.text).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn tasks_whose_server_asks_to_wait_hide_no_other_one_that_is_stuck() {
    let world = World::new().await;
    let slow = ("dispatch", "dispatch:slow", limits::METRIC_TASKS + 100);
    queue_tasks(&world, &[slow, ("sweep", "sweep:acme", 1)]).await;
    world.later(Duration::from_secs(700));
    assert!(metrics(&world).await.contains("crcr_overdue_seconds{kind=\"dispatch\"} 70"));
    world.relay.metrics.servers_paused(["slow".to_owned()].iter());
    let text = metrics(&world).await;
    assert!(text.contains("crcr_overdue_seconds{kind=\"sweep\"} 70"), "{text}");
    assert!(!text.contains("crcr_overdue_seconds{kind=\"dispatch\"}"), "{text}");
    assert!(text.contains("crcr_paused_lanes 1"), "{text}");
    let warned = warnings_of(&world).await;
    assert!(warned.contains("1 sweep task has waited for a worker"), "{warned}");
    assert!(warned.contains("GitHub limits the calls for slow: 1100 tasks"), "{warned}");
}

#[tokio::test]
async fn dead_letters_about_deleted_forks_do_not_hide_a_newer_one() {
    let world = World::new().await;
    let of_forks = ("job_log", "log:acme", limits::METRIC_TASKS + 100);
    queue_tasks(&world, &[of_forks]).await;
    give_up_all_tasks(&world).await;
    world.later(Duration::from_secs(60));
    queue_tasks(&world, &[("dispatch", "dispatch:acme", 1), ("forward", "hud:acme", 1)]).await;
    give_up_all_tasks(&world).await;
    let text = metrics(&world).await;
    assert!(text.contains("crcr_dead_tasks{kind=\"dispatch\"} 1"), "{text}");
    let warned = warnings_of(&world).await;
    assert!(warned.contains("1 result for the external HUD has been given up"), "{warned}");
}

#[tokio::test]
async fn last_good_allowlist_is_in_force_after_a_restart() {
    for (broken, code) in [(Some("L1: [a, b\nL9:"), "broken"), (None, "unreadable")] {
        let world = World::new().await;
        match broken {
            Some(text) => world.allow(text),
            None => world.remove_allowlist(),
        }
        let world = world.restart(&[]).await;
        let standing = world.relay.allowlist.status();
        let problem = standing.problem.clone().unwrap();
        assert!(problem.contains("before the restart"), "{problem}");
        let (status, body) = world.send(&world.pull_request("opened")).await;
        assert_eq!((status, &body["tasks"]), (StatusCode::ACCEPTED, &json!(5)));
        let (status, body) = ready(&world).await;
        assert_eq!((status, &body["allowlist"]["problem"]), (StatusCode::OK, &json!(code)));
        let input = MetricsInput::read(&world.relay).await;
        let text = world.relay.metrics.text(&input);
        assert!(text.contains("crcr_allowlist_good 0"), "{text}");
        // After the repair, the next process starts with the new allowlist.
        world.enforce("L2: [acme/two]").await;
        assert_eq!(world.relay.allowlist.status().problem, None);
        world.remove_allowlist();
        let world = world.restart(&[]).await;
        assert_eq!(world.relay.allowlist.status().repositories, 1);
        // A file at another URL is another allowlist.
        let world = world.restart(&[("ALLOWLIST_URL", "file:/nowhere/allowlist.yml")]).await;
        assert!(!world.relay.allowlist.status().loaded);
    }
}

/// From a file, and from GitHub, which answers 304.
#[tokio::test]
async fn allowlist_that_has_not_changed_counts_as_loaded_after_the_restart() {
    let url = format!("https://github.com/{UPSTREAM}/blob/main/{PATH}");
    for settings in [&[][..], &[("ALLOWLIST_URL", &*url)]] {
        let world = World::with(settings).await;
        world.github.state().world.put_file(UPSTREAM, PATH, ALLOWLIST);
        world.relay.allowlist.refresh(&world.relay.app, world.relay.now()).await;
        let before = world.relay.allowlist.status().loaded_at.unwrap();
        world.later(Duration::from_secs(3600));
        let world = world.restart(settings).await;
        let standing = world.relay.allowlist.status();
        assert_eq!((standing.loaded, standing.problem), (true, None));
        assert!(standing.loaded_at.unwrap() > before, "{settings:?}");
    }
}

#[tokio::test]
async fn read_only_store_is_not_ready() {
    let world = World::new().await;
    assert_eq!(ready(&world).await.0, StatusCode::OK);
    world.sql(
        "CREATE TRIGGER full BEFORE INSERT ON record
         BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
    );
    world.later(limits::READINESS_PERIOD);
    let (status, body) = ready(&world).await;
    assert_eq!((status, &body["store"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unwritable")));
    world.sql("DROP TRIGGER full");
    // Whoever asks at the same moment doesn't wait for a try of its own.
    assert_eq!(ready(&world).await.1, body);
    world.later(limits::FAILED_READINESS_PERIOD);
    assert_eq!(ready(&world).await.0, StatusCode::OK);
    // Frequent readiness checks cause only an occasional write.
    let written = || world.value(r#"SELECT version FROM record WHERE key = '["probe"]'"#);
    let before = written();
    for _ in 0..20 {
        assert_eq!(ready(&world).await.0, StatusCode::OK);
    }
    assert_eq!(written(), before);
}

#[tokio::test]
async fn store_outage_is_503_and_the_same_delivery_is_accepted_afterwards() {
    // First a table that is read is missing, then one that is only written.
    for table in ["record", "member"] {
        let world = World::new().await;
        let before = world.rows("record");
        world.rename(table, "away");
        let delivery = world.pull_request("opened");
        let mut request = Request::post("/github/webhook");
        for (name, value) in delivery.headers() {
            request = request.header(name, value);
        }
        let response = world.answer(request.body(Body::from(delivery.body.clone())).unwrap()).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{table}");
        assert_eq!(response.headers()["retry-after"], "5");
        world.rename("away", table);
        assert_eq!((world.rows("record"), world.rows("task")), (before, 0), "nothing half kept");
        assert_eq!(world.send(&delivery).await.0, StatusCode::ACCEPTED);
        world.work().await;
        assert_eq!(world.dispatched(), ALL);
    }
    let world = World::new().await;
    world.rename("record", "away");
    let (status, body) = ready(&world).await;
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && body["store"].is_string(), "{body}");
    world.rename("away", "record");
    world.later(limits::FAILED_READINESS_PERIOD);
    assert_eq!(ready(&world).await.0, StatusCode::OK);
}

const PATH: &str = ".github/allowlist.yml";

#[tokio::test]
async fn shutdown_releases_slow_tasks() {
    let world = World::new().await;
    let route = "POST /repos/acme/two/dispatches";
    world.github.state().world.fail(route, 1, Fault::Stall);
    world.send(&world.pull_request("opened")).await;
    let stop = CancellationToken::new();
    let bounds = workers::WorkerTimeouts {
        shutdown: Duration::from_millis(50),
        ..workers::WorkerTimeouts::default()
    };
    let working = tokio::spawn(workers::run(Arc::clone(&world.relay), stop.clone(), bounds));
    let mut sent = vec![];
    while sent.len() < 3 || world.github.state().world.count(route) == 0 {
        sent.extend(world.dispatched());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    working.await.unwrap();
    assert_eq!(
        world.relay.store.queue_depth().await.unwrap().leased,
        0,
        "no lease has to end first"
    );
    world.settle().await;
    assert!(world.dispatched().is_empty(), "GitHub may have got it: it isn't sent again at once");
    world.wait(limits::OUTAGE_RETRY.cap).await;
    sent.extend(world.dispatched());
    sent.sort();
    assert_eq!(sent, ALL, "each one once");
}

#[tokio::test]
async fn allowlist_is_read_through_the_app_with_etags() {
    let url = format!("https://github.com/{UPSTREAM}/blob/main/{PATH}");
    let world = World::with(&[("ALLOWLIST_URL", &url)]).await;
    let github = &world.github.state().world;
    let route = format!("GET /repos/{UPSTREAM}/contents/{PATH}");
    let refresh = async || {
        world.relay.allowlist.refresh(&world.relay.app, world.relay.now()).await;
        world.relay.allowlist.status()
    };
    let standing = refresh().await;
    assert!(!standing.loaded && standing.problem.is_some(), "there is no file yet");
    assert_eq!(ready(&world).await.0, StatusCode::SERVICE_UNAVAILABLE);
    let early = world.send(&world.pull_request("opened")).await;
    assert_eq!(early.0, StatusCode::SERVICE_UNAVAILABLE, "GitHub will bring it again");
    github.put_file(UPSTREAM, PATH, ALLOWLIST);
    let standing = refresh().await;
    assert!(standing.repositories == 4 && standing.problem.is_none(), "{standing:?}");
    assert_eq!(refresh().await.loaded_at, standing.loaded_at);
    let statuses = || -> Vec<u16> {
        let calls = github.calls();
        calls.into_iter().filter(|call| call.route() == route).map(|call| call.status).collect()
    };
    assert_eq!(statuses(), [404, 404, 200, 304]);
    // During an outage of GitHub the last good allowlist stays in force.
    github.fail(&route, 10, Fault::status(502));
    let away = refresh().await;
    let why = away.problem.unwrap();
    assert!(
        away.repositories == 4 && why.contains("answered 502"),
        "operators read the cause: {why}"
    );
    while github.leftovers().iter().any(|left| left.contains("faults at")) {
        refresh().await;
    }
    assert_eq!(refresh().await.problem, None);
    // A broken version is fetched once, and the good one stays in force.
    github.put_file(UPSTREAM, PATH, "L1: [a, b\nL9:");
    for _ in 0..2 {
        let broken = refresh().await;
        assert!(broken.repositories == 4 && broken.problem.is_some(), "{broken:?}");
    }
    assert_eq!(statuses()[statuses().len() - 2..], [200, 304]);
    assert_eq!(ready(&world).await.0, StatusCode::OK);
    github.put_file(UPSTREAM, PATH, "L2: [acme/two]");
    let repaired = refresh().await;
    assert!(repaired.repositories == 1 && repaired.problem.is_none(), "{repaired:?}");
}
