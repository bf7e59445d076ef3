//! Slow pages must not block webhooks or the allowlist.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::results::facts::{CallbackFact, CallbackOutcome, Fact};
use crcr_results::Results as _;
use crcr_store::{CommitOutcome, StoreKey, WriteBatch};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use super::support::World;
use crate::http::router;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_pages_do_not_block_webhooks_or_the_allowlist() {
    // Accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("clickhouse+http://{}/crcr", silent.local_addr().unwrap());
    let (asked, mut is_asked) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut open = vec![];
        while let Ok((stream, _)) = silent.accept().await {
            open.push(stream);
            let _ = asked.try_send(());
        }
    });
    let world = World::with(&[("CRCR_RESULTS", &url)]).await;
    let router = router::public(&world.relay, &world.hud);
    let page = || router.clone().oneshot(Request::get("/crcr").body(Body::empty()).unwrap());
    let pages = futures_util::future::join_all((0..600).map(|_| page()));
    let others = async {
        is_asked.recv().await.expect("a page asks");
        let accepted = world.send(&world.pull_request("opened")).await;
        assert_eq!(accepted.0, StatusCode::ACCEPTED);
        // Reading a file needs a thread of the same pool as the pages.
        world.enforce("L2: [acme/two]").await;
        assert_eq!(world.relay.allowlist.status().repositories, 1);
    };
    let in_time = async {
        tokio::select! {
            _ = pages => panic!("the pages have nothing to show"),
            () = others => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(5), in_time).await.expect("nothing else waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_written_while_old_results_are_deleted() {
    let world = World::new().await;
    let now = world.relay.now();
    let fact = |n: u64| {
        Fact::Callback(CallbackFact {
            at: now + Duration::from_millis(n),
            repo: Some("acme/two".to_owned()),
            delivery: None,
            run_id: Some(n.to_string()),
            job: None,
            status: None,
            conclusion: None,
            outcome: CallbackOutcome::Duplicate,
            answer: 200,
            detail: None,
            latency_ms: 1.0,
        })
    };
    world.results.append((0..5000).map(fact).collect()).await.unwrap();
    let results = std::sync::Arc::clone(&world.relay.results);
    let until = now + Duration::from_secs(3600);
    let deleting = tokio::spawn(async move { results.delete_before(until).await });
    let mut between = 0;
    while !deleting.is_finished() {
        let mut batch = WriteBatch::default();
        batch.set(StoreKey::new(&["a"]), &between, until);
        let commit = tokio::time::timeout(Duration::from_secs(1), world.relay.commit(batch));
        assert_eq!(commit.await.expect("nobody waits long").unwrap(), CommitOutcome::Done);
        between += 1;
    }
    deleting.await.unwrap().unwrap();
    assert!(between >= 10, "{between} writes while 5,000 rows were deleted");
    assert_eq!(world.rows("fact_callback"), 0);
}
