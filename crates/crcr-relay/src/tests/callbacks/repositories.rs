//! A repository name on the allowlist that somebody else registers again.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, header};
use crcr_domain::RepoName;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_store::{Versioned, read_record};

use super::*;
use crate::repository_pins;
use crate::state_records;

const ADMIN: (&str, &str) = ("CRCR_ADMIN_TOKEN", "the-token-of-operators");
const FOUR: &str = "acme/four";

async fn as_operator(world: &World, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::AUTHORIZATION, "Bearer the-token-of-operators")
        .body(Body::from(body.to_owned()));
    world.call(request.unwrap()).await
}

async fn dispatch_of_four(world: &World, delivery: &str) -> Dispatch {
    let key = state_records::dispatch_key(delivery, &RepoName::new(FOUR).unwrap());
    let read: Versioned<Dispatch> = read_record(world.relay.store.as_ref(), key).await.unwrap();
    read.value.unwrap()
}

/// Somebody else registers `acme/four` and installs the App; returns the new number.
fn register_anew(world: &World) -> u64 {
    let github = &world.github.state().world;
    github.delete_repo(FOUR);
    github.install(FOUR);
    // The old repository's token has expired by now.
    world.later(Duration::from_secs(3600));
    github.add_repo(FOUR)
}

async fn push_new_head(world: &World, head: char) -> String {
    world.change(|pull| pull.head_sha = head.to_string().repeat(40));
    let delivery = world.pull_request("synchronize");
    world.send(&delivery).await;
    world.settle().await;
    delivery.id
}

#[tokio::test]
async fn re_registered_name_gets_nothing_after_upstream_got_another_name() {
    let world = World::new().await;
    world.github.state().world.add_repo(FOUR);
    open(&world).await(FOUR);
    register_anew(&world);
    let (to, state) = ("acme/main", Arc::clone(world.github.state()));
    state.world.rename_repo(UPSTREAM, to);
    let world = world.restart(&[("UPSTREAM_REPO", to)]).await;
    state.world.change_pull(to, 7, |pull| pull.head_sha = "b".repeat(40));
    let payload = state.pull_request_payload(to, 7, "synchronize");
    world.send(&state.world.delivery("pull_request", &payload)).await;
    world.settle().await;
    let dispatched = world.dispatched();
    assert!(!dispatched.is_empty() && !dispatched.contains(&FOUR.to_owned()), "{dispatched:?}");
}

#[tokio::test]
async fn re_registered_name_gets_nothing_until_confirmed() {
    let listener = wiremock::MockServer::start().await;
    let answer = wiremock::ResponseTemplate::new(200);
    wiremock::Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&listener).await;
    let world = World::with(&[ADMIN, ("CRCR_ALERT_URL", &listener.uri())]).await;
    let before = world.github.state().world.add_repo(FOUR);
    let old = open(&world).await(FOUR);
    assert_eq!(old.start(&world).await, said("in_progress"));

    let number = register_anew(&world);
    // The id stays pinned when the name is removed from the allowlist and added again.
    world.enforce("L4: []\n").await;
    world.enforce(super::super::support::ALLOWLIST).await;
    let delivery = push_new_head(&world, 'b').await;
    assert!(!world.dispatched().contains(&FOUR.to_owned()), "nothing is sent to the stranger");
    let dispatch = dispatch_of_four(&world, &delivery).await;
    assert_eq!(dispatch.status, DispatchStatus::RepositoryChanged);
    let why = dispatch.last_error.unwrap();
    for part in [number.to_string(), before.to_string(), "repository confirm acme/four".into()] {
        assert!(why.contains(&part), "{why}");
    }

    // The new owner has the old dispatch's payload, which is public.
    let (status, answer) = old.end(&world, "success").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.starts_with("repository_changed: ") && detail.contains("confirm"), "{detail}");
    world.work().await;
    let told = listener.received_requests().await.unwrap();
    assert_eq!(told.len(), 1, "operators are told once");
    let told: Value = serde_json::from_slice(&told[0].body).unwrap();
    assert_eq!((&told["event"], &told["repo"]), (&json!("repository_changed"), &json!(FOUR)));
    assert_eq!((&told["pinned"], &told["found"]), (&json!(before), &json!(number)));
    let metrics =
        Request::get("/metrics").header(header::AUTHORIZATION, "Bearer the-token-of-operators");
    let metrics = world.answer(metrics.body(Body::empty()).unwrap()).await;
    let metrics = axum::body::to_bytes(metrics.into_body(), 1 << 20).await.unwrap();
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    for refused in ["dispatch", "report"] {
        let line = format!("crcr_repository_changes_total{{refused=\"{refused}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }
    let (_, board) = as_operator(&world, "GET", "/api/v1/deliveries", "").await;
    let listed = &board["changed_repositories"][0];
    assert_eq!((&listed["repo"], &listed["repository_id"]), (&json!(FOUR), &json!(before)));
    assert_eq!(listed["changed"]["repository_id"], json!(number));

    let confirmation = json!({ "repo": FOUR, "repository_id": number }).to_string();
    let (status, answer) = as_operator(&world, "POST", "/api/v1/repositories", &confirmation).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    push_new_head(&world, 'c').await;
    let run = received(&world);
    assert_eq!(run(FOUR).start(&world).await, said("in_progress"));
    let (_, board) = as_operator(&world, "GET", "/api/v1/deliveries", "").await;
    assert_eq!(board["changed_repositories"], json!([]));
}

#[tokio::test]
async fn report_of_a_repository_that_was_renamed_since_its_dispatch_counts() {
    let (world, four) = World::new().await.opened(FOUR).await;
    assert_eq!(four.start(&world).await, said("in_progress"));
    let mut claims = four.claims(&world);
    claims["repository"] = json!("acme/renamed");
    let body = four.body("completed", Some("failure"));
    assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"));
    world.work().await;
    assert!(checks(&world).contains(&check(JOB, "completed", Some("failure"))));
    // Who only has such a name, or a number that is nobody's, is a stranger as before.
    let mut stranger = four.claims(&world);
    stranger["repository"] = json!("acme/renamed");
    for number in [json!("987654"), Value::Null] {
        stranger["repository_id"] = number;
        stranger["jti"] = json!(format!("jti-{}", rand::random::<u64>()));
        let body = four.body("completed", Some("success"));
        assert_eq!(four.report_as(&world, &stranger, &body).await, said("ignored"));
    }
    // Nobody gets the authority of a backend by a name of the allowlist with another's number.
    let mut other = four.claims(&world);
    other["repository"] = json!("acme/two");
    let (status, answer) =
        four.report_as(&world, &other, &four.body("completed", Some("success"))).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
}

#[tokio::test]
async fn report_for_the_old_name_counts_after_the_allowlist_has_the_new_one() {
    let (world, four) = World::new().await.opened(FOUR).await;
    assert_eq!(four.start(&world).await, said("in_progress"));
    let mut claims = four.claims(&world);
    claims["repository"] = json!("acme/renamed");
    world.github.state().world.rename_repo(FOUR, "acme/renamed");
    world.settle_with(&super::super::support::ALLOWLIST.replace(FOUR, "acme/renamed")).await;
    push_new_head(&world, 'c').await;
    assert!(world.dispatched().contains(&"acme/renamed".to_owned()), "both names are pinned");
    world.later(Duration::from_secs(90));
    let body = four.body("completed", Some("failure"));
    assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"));
    let facts = world.results.attempts(&world.always()).unwrap();
    let ended = facts.iter().find(|fact| !fact.state.is_open()).expect("it is stored");
    assert_eq!(ended.repo.as_str(), FOUR);
    // Who has the new name with another number is a stranger.
    (claims["repository_id"], claims["jti"]) = (json!("987654"), json!("another"));
    let (status, answer) = four.report_as(&world, &claims, &body).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
}

/// Where its check under the old name was required, the one under the new name is now.
#[tokio::test]
async fn required_check_of_a_renamed_backend_appears_under_the_new_name_on_open_heads() {
    let world = World::new().await;
    open(&world).await(FOUR).complete(&world, "success").await;
    world.wait(Duration::from_secs(300)).await;
    let github = &world.github.state().world;
    github.rename_repo(FOUR, "acme/renamed");
    github.install("acme/five");
    let list = super::super::support::ALLOWLIST.replace(FOUR, "acme/renamed");
    world.settle_with(&format!("{list}  - acme/five: [erin]\n")).await;
    let renamed = received(&world)("acme/renamed").in_run(RUN + 1);
    let name = "crcr/acme/renamed/relay/dispatch";
    assert!(checks(&world).contains(&check(name, "queued", None)));
    let is_of_five = |(name, ..): &(String, String, Option<String>)| name.contains("five");
    assert!(!checks(&world).iter().any(is_of_five), "it gets what comes from now on");
    renamed.complete(&world, "failure").await;
    world.wait(Duration::from_secs(300)).await;
    assert!(checks(&world).contains(&check(name, "completed", Some("failure"))));
    world.enforce(super::super::support::ALLOWLIST).await;
    world.settle_with(&list).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "once");
}

/// The new name has got the head already, at a level without results.
#[tokio::test]
async fn required_check_of_a_renamed_backend_appears_although_the_allowlist_had_both_names() {
    let world = World::new().await;
    let _ = open(&world).await;
    world.github.state().world.rename_repo(FOUR, "acme/renamed");
    let list = super::super::support::ALLOWLIST;
    world.settle_with(&list.replace("acme/one", "acme/one, acme/renamed")).await;
    push_new_head(&world, 'b').await;
    assert!(world.dispatched().contains(&"acme/renamed".to_owned()));
    world.settle_with(&list.replace(FOUR, "acme/renamed")).await;
    let name = "crcr/acme/renamed/relay/dispatch";
    assert!(checks(&world).contains(&check(name, "queued", None)), "{:?}", checks(&world));
    assert_eq!(world.dispatched(), ["acme/renamed"]);
}

#[tokio::test]
async fn open_run_of_a_backend_that_is_renamed_is_followed_and_can_be_run_again() {
    let (world, four) = World::new().await.opened(FOUR).await;
    four.start(&world).await;
    let mut claims = four.claims(&world);
    let github = world.github.state();
    let created_at = github.clock.now();
    // The relay has a token by the old name.
    world.wait(Duration::from_secs(90)).await;
    github.world.rename_repo(FOUR, "acme/renamed");
    github.runs.add(Run {
        id: RUN,
        repository: "acme/renamed".to_owned(),
        event: "repository_dispatch".to_owned(),
        workflow_path: ".github/workflows/ci.yml@main".to_owned(),
        status: "completed".to_owned(),
        conclusion: Some("failure".to_owned()),
        created_at,
        ..Run::push()
    });
    world.wait(Duration::from_secs(120)).await;
    let dispatch = dispatch_of_four(&world, four.client_payload["delivery_id"].as_str().unwrap());
    let runs = dispatch.await.runs;
    assert_eq!((runs.len(), &*runs[0].workflow), (1, ".github/workflows/ci.yml"));
    // It needs a new token.
    world.wait(Duration::from_secs(3600)).await;
    let now = world.relay.now().as_second();
    (claims["iat"], claims["nbf"], claims["exp"]) = (json!(now), json!(now), json!(now + 300));
    claims["repository"] = json!("acme/renamed");
    let end = four.body("completed", Some("success"));
    assert_eq!(four.report_as(&world, &claims, &end).await, said("completed"));
    world.wait(Duration::from_secs(120)).await;
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("failure")));
    let shown = github.world.check_runs(UPSTREAM).into_iter().find(|run| run.name == DISPATCH);
    let payload = github.check_run_payload(UPSTREAM, shown.unwrap().id, "rerequested");
    world.deliver("check_run", &payload).await;
    assert_eq!(github.world.take_reruns().len(), 1);
}

#[tokio::test]
async fn self_report_of_a_re_registered_name_is_403() {
    let (world, two) = World::new().await.opened("acme/two").await;
    world.github.state().world.add_commit(UPSTREAM, HEAD);
    let body = json!({
        "event_type": "nightly", "delivery_id": HEAD,
        "workflow": { "status": "completed", "conclusion": "success", "name": "CI",
            "run_id": two.run.to_string(), "run_attempt": "1", "job_name": "test" },
    });
    let mut claims = two.claims(&world);
    claims["event_name"] = json!("schedule");
    claims["repository_id"] = json!("999999999");
    let (status, answer) = two.report_as(&world, &claims, &body).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
    let mut claims = two.claims(&world);
    claims["event_name"] = json!("schedule");
    assert_eq!(two.report_as(&world, &claims, &body).await, said("completed"));
}

#[tokio::test]
async fn reports_and_refused_dispatches_pin_nothing() {
    let world = World::new().await;
    let refused = Fault::status(422);
    world.github.state().world.fail("POST /repos/acme/four/dispatches", 1, refused);
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    let early = Downstream {
        repo: FOUR,
        client_payload: json!({
            "event_type": "pull_request", "delivery_id": delivery.id, "payload": {}
        }),
        job: "test",
        run: RUN,
        attempt: 1,
    };
    let mut claims = early.claims(&world);
    claims["repository_id"] = json!("999999999");
    early.report_as(&world, &claims, &early.body("in_progress", None)).await;
    world.work().await;
    let upstream = &world.relay.config.upstream;
    let pinned = async || {
        let pins = repository_pins::list(world.relay.store.as_ref(), upstream, 10).await.unwrap();
        pins.into_iter().find(|pin| pin.repo.as_str() == FOUR).map(|pin| pin.repository_id)
    };
    assert_eq!(pinned().await, None);
    push_new_head(&world, 'b').await;
    assert_eq!(pinned().await, Some(world.github.state().world.add_repo(FOUR)));
}

#[tokio::test]
async fn operator_pins_a_name_without_dispatches() {
    let world = World::with(&[ADMIN]).await;
    let number = world.github.state().world.add_repo("acme/nightly");
    world.enforce("L2:\n  - acme/nightly: {events: [nightly]}\n").await;
    world.github.state().world.add_commit(UPSTREAM, HEAD);
    let confirmation = json!({ "repo": "acme/nightly", "repository_id": number }).to_string();
    let stranger = Request::post("/api/v1/repositories");
    let stranger = stranger.body(Body::from(confirmation.clone())).unwrap();
    assert_eq!(world.call(stranger).await.0, StatusCode::NOT_FOUND);
    let (status, _) = as_operator(&world, "POST", "/api/v1/repositories", &confirmation).await;
    assert_eq!(status, StatusCode::OK);
    let payload = json!({ "event_type": "nightly", "delivery_id": HEAD });
    let nightly = Downstream {
        repo: "acme/nightly",
        client_payload: payload,
        job: "test",
        run: RUN,
        attempt: 1,
    };
    let body = nightly.body("completed", Some("success"));
    let mut claims = nightly.claims(&world);
    claims["event_name"] = json!("schedule");
    let mut others = claims.clone();
    others["repository_id"] = json!("999999999");
    others["jti"] = json!("another");
    assert_eq!(nightly.report_as(&world, &others, &body).await.0, StatusCode::FORBIDDEN);
    assert_eq!(nightly.report_as(&world, &claims, &body).await, said("completed"));
}
