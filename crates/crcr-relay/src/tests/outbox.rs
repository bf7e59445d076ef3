//! Results in another database than the relay's store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_store::{SqliteStore, StateStore as _, StoreRole, WriteBatch};
use crcr_testkit::clickhouse::ClickHouse;
use tokio_util::sync::CancellationToken;
use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

use super::support::World;
use crate::limits;
use crate::queue::fact_feed;
use crate::queue::task_kind::TaskKind;

const TOKEN: &str = "bot";

async fn world(results: &str) -> World {
    World::with(&[("INTERNAL_API_TOKEN", TOKEN), ("CRCR_RESULTS", results)]).await
}

fn feed(world: &World) -> CancellationToken {
    let stop = CancellationToken::new();
    tokio::spawn(fact_feed::run(Arc::clone(&world.relay), stop.clone()));
    stop
}

/// The deliveries whose attempts are in the results; fails if one is there twice.
async fn kept(world: &World) -> BTreeSet<String> {
    let rows = world.relay.results.attempts(&world.always()).await.unwrap_or_default();
    let deliveries: BTreeSet<_> = rows.iter().map(|row| row.delivery.clone()).collect();
    assert_eq!(deliveries.len(), rows.len());
    deliveries
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !done().await {
        assert!(started.elapsed() < Duration::from_secs(120), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn text(world: &World, path: &str) -> String {
    let router = crate::http::router::admin(&world.relay, &world.hud, false);
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = tower::ServiceExt::oneshot(router, request).await.unwrap();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn facts_stay_in_the_outbox_until_the_results_have_them() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = format!("sqlite:{}", folder.path().join("results.db").display());
    let world = world(&elsewhere).await;
    for id in ["a", "b"] {
        assert_eq!(world.forwarded(TOKEN, id).await, StatusCode::OK);
    }
    assert!(kept(&world).await.is_empty(), "nobody has copied them yet");
    assert_eq!(world.relay.store.queue_depth().await.unwrap().facts, 4);
    let stop = feed(&world);
    until("both are copied", async || kept(&world).await.len() == 2).await;
    assert_eq!(world.forwarded(TOKEN, "c").await, StatusCode::OK);
    until("a later one is copied", async || kept(&world).await.len() == 3).await;
    until("none waits", async || world.relay.store.queue_depth().await.unwrap().facts == 0).await;
    let counted = "crcr_results_facts_total 6";
    until("they are counted", async || text(&world, "/metrics").await.contains(counted)).await;
    stop.cancel();
    assert!(world.results.attempts(&world.always()).unwrap().is_empty(), "kept in one place");
}

#[tokio::test]
async fn unreachable_results_are_reported_and_stop_nothing() {
    let world = world("clickhouse+http://me:hush@127.0.0.1:9/crcr").await;
    let stop = feed(&world);
    assert_eq!(world.forwarded(TOKEN, "a").await, StatusCode::OK);
    until("it is told of", async || text(&world, "/readyz").await.contains("ClickHouse at")).await;
    let ready = text(&world, "/readyz").await;
    assert!(!ready.contains("hush"), "{ready}");
    // Only operators may see the address of the results.
    let public = world.call(Request::get("/readyz").body(Body::empty()).unwrap()).await.1;
    assert_eq!(public["results"], "waiting");
    assert!(!public.to_string().contains("127.0.0.1:9"), "{public}");
    stop.cancel();
    let metrics = text(&world, "/metrics").await;
    assert!(metrics.contains("crcr_results_waiting 2"), "{metrics}");
    assert!(!metrics.contains("crcr_results_failures_total 0"), "{metrics}");
}

/// After a roll-back, the outbox has what the newer version wrote.
#[tokio::test]
async fn fact_that_this_version_can_not_read_holds_up_no_other_and_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = format!("sqlite:{}", folder.path().join("results.db").display());
    let world = world(&elsewhere).await;
    assert_eq!(world.forwarded(TOKEN, "a").await, StatusCode::OK);
    let readable = world.database();
    let readable: String =
        readable.query_row("SELECT fact FROM outbox LIMIT 1", [], |row| row.get(0)).unwrap();
    world.sql("UPDATE outbox SET fact = json_object('weather', fact) WHERE id = 1");
    assert_eq!(world.forwarded(TOKEN, "b").await, StatusCode::OK);
    fact_feed::copy_waiting(&world.relay).await.unwrap();
    assert_eq!(world.relay.store.queue_depth().await.unwrap().facts, 0);
    let before = kept(&world).await.len();
    assert!(before >= 1, "the others are copied");
    let errors = world.work().await;
    assert!(errors[0].contains("of another version"), "{errors:?}");
    // A relay that can read it has the same task.
    let task = TaskKind::UnreadFact { text: readable }.task(world.relay.now());
    world.relay.commit(WriteBatch { tasks: vec![task], ..WriteBatch::default() }).await.unwrap();
    world.work().await;
    assert_eq!(world.relay.store.queue_depth().await.unwrap().facts, 1);
    fact_feed::copy_waiting(&world.relay).await.unwrap();
}

/// Whoever is on call would look at ClickHouse, of which nothing is wrong.
#[tokio::test]
async fn outage_of_the_store_is_not_one_of_the_results() {
    let world = world("clickhouse+http://me:hush@127.0.0.1:9/crcr").await;
    world.rename("outbox", "away");
    let error = fact_feed::copy_waiting(&world.relay).await.unwrap_err();
    world.rename("away", "outbox");
    assert!(error.to_string().contains("the store can't be used"), "{error}");
    assert!(text(&world, "/metrics").await.contains("crcr_results_failures_total 0"));
    fact_feed::copy_waiting(&world.relay).await.unwrap_err();
    assert!(text(&world, "/metrics").await.contains("crcr_results_failures_total 1"));
}

#[tokio::test]
async fn results_that_never_answer_delay_the_shutdown_for_ten_seconds_at_most() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let world = world(&format!("clickhouse+http://me:hush@{address}/crcr")).await;
    assert_eq!(world.forwarded(TOKEN, "a").await, StatusCode::OK);
    let stop = CancellationToken::new();
    let feeding = tokio::spawn(fact_feed::run(Arc::clone(&world.relay), stop.clone()));
    let _connection = silent.accept().await.unwrap();
    // From here on the clock jumps to whatever is waited for.
    tokio::time::pause();
    let stopped_at = tokio::time::Instant::now();
    stop.cancel();
    feeding.await.unwrap();
    let took = stopped_at.elapsed();
    assert!(took < limits::SHUTDOWN_GRACE + Duration::from_secs(1), "{took:?}");
    tokio::time::resume();
    assert_eq!(world.relay.store.queue_depth().await.unwrap().facts, 2, "none is lost");
}

#[tokio::test]
async fn outbox_is_emptied_when_results_move_back_to_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crcr.db");
    let facts = crcr_standin::generate::facts(3, jiff::Timestamp::UNIX_EPOCH, 1, 3, "a/b");
    let batch = WriteBatch { facts, ..Default::default() };
    let store = SqliteStore::open_with_outbox(&path).unwrap();
    store.commit(batch, jiff::Timestamp::UNIX_EPOCH).await.unwrap();
    let waiting = store.queue_depth().await.unwrap().facts;
    drop(store);
    let store = Arc::new(SqliteStore::open(&path, StoreRole::Server).unwrap());
    assert!(waiting > 10 && store.queue_depth().await.unwrap().facts == 0);
    let always = crcr_results::Window::all(jiff::Timestamp::MIN, jiff::Timestamp::MAX);
    let results = crcr_results::sqlite::SqliteResults::new(store);
    assert!(!results.attempts(&always).unwrap().is_empty());
}

#[tokio::test]
async fn facts_stay_in_the_outbox_when_a_login_page_answers_in_place_of_clickhouse() {
    let server = MockServer::start().await;
    let page = ResponseTemplate::new(200).set_body_raw("<html>log in</html>", "text/html");
    let answer = ResponseTemplate::new(200).set_body_string("24.8\n");
    let is_insert = matchers::header_exists("content-encoding");
    Mock::given(is_insert).respond_with(page).with_priority(1).mount(&server).await;
    Mock::given(matchers::any()).respond_with(answer).mount(&server).await;
    let world = world(&format!("clickhouse+http://{}", server.address())).await;
    let stop = feed(&world);
    assert_eq!(world.forwarded(TOKEN, "a").await, StatusCode::OK);
    until("it is told", async || world.relay.results_problem.lock().is_some()).await;
    let problem = world.relay.results_problem.lock().clone().unwrap();
    assert!(problem.contains("a web page"), "{problem}");
    assert_eq!(world.relay.store.queue_depth().await.unwrap().facts, 2);
    stop.cancel();
}

#[tokio::test]
#[ignore = "needs chdb"]
async fn killed_clickhouse_loses_and_duplicates_no_fact() {
    let mut server = ClickHouse::start().unwrap();
    let world = world(&server.url()).await;
    let stop = feed(&world);
    let mut sent = BTreeSet::new();
    for round in 0..3 {
        for n in 0..40 {
            let id = format!("{round}-{n}");
            assert_eq!(world.forwarded(TOKEN, &id).await, StatusCode::OK);
            sent.insert(id);
            if n == 20 {
                server.kill().unwrap();
            }
        }
        until("its absence is told of", async || {
            world.relay.results_problem.lock().clone().is_some()
        })
        .await;
        server.again().unwrap();
    }
    until("everything is there", async || kept(&world).await == sent).await;
    until("nothing waits", async || world.relay.store.queue_depth().await.unwrap().facts == 0)
        .await;
    assert!(kept(&world).await == sent);
    stop.cancel();
}
