//! A canary has jobs that fail on purpose. They show whether the relay works, and say nothing about the backend.

use axum::body::Body;
use axum::http::Request;

use super::*;

const EXPECTED: (&str, &str) =
    ("CRCR_EXPECTED_CONCLUSIONS", "acme/four:*xfail*=failure, acme/four:*xcancel*=cancelled");

async fn page(world: &World, path: &str) -> Value {
    let answer = world.answer(Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn failures_on_purpose_are_the_relays_health_and_not_the_backends() {
    let (world, four) = World::with(&[EXPECTED]).await.opened("acme/four").await;
    for (job, run, conclusion) in [
        ("smoke", RUN, "success"),
        ("l3-xfail", RUN + 1, "failure"),
        ("l3-xfail-2", RUN + 2, "success"),
        ("xcancel", RUN + 3, "cancelled"),
    ] {
        let client_payload = four.client_payload.clone();
        let job = Downstream { job, run, client_payload, ..four };
        job.start_and_end(&world, conclusion).await;
    }
    world.work().await;
    let overview = page(&world, "/api/v1/overview").await;
    assert_eq!(overview["relay"]["expected"], json!({"seen": 2, "not_seen": 1, "missing": 0}));
    let backend = page(&world, "/api/v1/repositories/acme/four").await;
    assert_eq!(backend["job_pass"]["denominator"], 1, "{}", backend["job_pass"]);
    assert_eq!(backend["matrix"]["columns"], json!(["CI / smoke"]));
    let html = world.answer(Request::get("/crcr").body(Body::empty()).unwrap()).await;
    let html = axum::body::to_bytes(html.into_body(), 1 << 20).await.unwrap();
    let html = String::from_utf8_lossy(&html);
    assert!(html.contains("Expected failures"), "the card is missing");
}

#[tokio::test]
async fn canary_that_times_out_on_purpose_never_opens_the_breaker() {
    let on_purpose = ("CRCR_EXPECTED_CONCLUSIONS", "acme/four:xtimeout=timed_out");
    for (settings, is_sent) in [(vec![on_purpose], true), (vec![], false)] {
        let mut settings = settings;
        settings.push(("CRCR_BREAKER_FAILURES", "1"));
        let (world, four) = World::with(&settings).await.opened("acme/four").await;
        let four = Downstream { job: "xtimeout", ..four };
        four.complete(&world, "timed_out").await;
        world.work_after(Duration::from_secs(5 * 60)).await;
        world.github.state().world.take_dispatches();
        world.github.state().world.add_commit(UPSTREAM, NEWER);
        world.change(|pull| pull.head_sha = NEWER.to_owned());
        world.send_and_work("synchronize").await;
        assert_eq!(world.dispatched().contains(&"acme/four".to_owned()), is_sent);
    }
}
