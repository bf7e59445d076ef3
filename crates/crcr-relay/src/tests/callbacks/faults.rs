//! The faults of the deployed relay with reports, as regression tests.

use axum::body::Body;
use axum::http::Request;
use crcr_standin::traffic::Fault;
use crcr_standin::world::Call;

use super::*;
use crate::admin::deliveries;
use crate::callback::kept_trust;
use crate::limits;
use crate::warnings::{self, LastWarnings};

#[tokio::test]
async fn report_before_the_dispatch_is_recorded_is_accepted() {
    let world = World::new().await;
    let delivery = world.pull_request("opened");
    world.send(&delivery).await;
    // The run reports before the dispatch is recorded as sent.
    let early = Downstream {
        repo: "acme/two",
        client_payload: json!({
            "event_type": "pull_request", "delivery_id": delivery.id, "payload": {}
        }),
        job: "test",
        run: RUN,
        attempt: 1,
    };
    assert_eq!(early.start(&world).await, said("in_progress"));
}

/// GitHub lets only the App that made a check run change it.
#[tokio::test]
async fn check_run_of_an_app_that_was_replaced_is_made_anew() {
    for answer in [403, 404] {
        let (world, four) = World::new().await.opened("acme/four").await;
        let github = &world.github.state().world;
        github.replace_app(UPSTREAM);
        if answer == 404 {
            let route = format!("PATCH /repos/{UPSTREAM}/check-runs/*");
            github.fail(&route, 2, Fault::status(404));
        }
        four.complete(&world, "success").await;
        for _ in 0..6 {
            world.work_after(Duration::from_secs(60)).await;
        }
        let own = || {
            let mut own = github.all_check_runs(UPSTREAM);
            own.retain(|run| run.app.to_string() == github.app().id);
            own.into_iter().map(|run| (run.name, run.conclusion)).collect::<Vec<_>>()
        };
        let mut shown = own();
        shown.sort();
        let passed = Some("success".to_owned());
        assert_eq!(shown, [(JOB.to_owned(), passed.clone()), (DISPATCH.to_owned(), passed)]);
        world.wait(Duration::from_secs(3600)).await;
        assert_eq!(own().len(), 2, "and not again: {answer}");
    }
}

/// Such as at a commit that GitHub doesn't have any more.
#[tokio::test]
async fn check_run_that_github_refuses_for_days_is_tried_ever_more_rarely_and_at_once_after_a_report()
 {
    let world = World::new().await;
    let github = &world.github.state().world;
    let create = format!("POST /repos/{UPSTREAM}/check-runs");
    github.fail(&create, 10_000, Fault::status(422));
    world.send_and_work("opened").await;
    let four = received(&world)("acme/four");
    let tries = || {
        let of_verdict = |call: &&Call| call.route() == create && call.body["name"] == DISPATCH;
        github.calls().iter().filter(of_verdict).count()
    };
    let tries_in = async |hours: u64| {
        let before = tries();
        for _ in 0..6 * hours {
            world.work_after(Duration::from_secs(600)).await;
        }
        tries() - before
    };
    assert_eq!(tries_in(1).await, 6, "GitHub may only be late");
    let of_two_days = tries_in(48).await;
    assert!((20..60).contains(&of_two_days), "{of_two_days}");
    let of_a_day = tries_in(24).await;
    assert!((3..7).contains(&of_a_day), "{of_a_day}");
    let before = tries();
    four.start(&world).await;
    world.work().await;
    assert_eq!(tries(), before + 1);
    github.clear_faults();
    tries_in(7).await;
    assert!(checks(&world).iter().any(|(name, ..)| name == DISPATCH));
}

#[tokio::test]
async fn an_l4_repository_cannot_put_success_on_another_commit() {
    let (world, four) = World::new().await.opened("acme/four").await;
    let mut body = four.body("completed", Some("success"));
    body["payload"]["pull_request"]["head"]["sha"] = json!("c".repeat(40));
    body["payload"]["pull_request"]["number"] = json!(8);
    assert_eq!(four.report(&world, &body).await, said("completed"));
    world.work().await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let job = runs.iter().find(|run| run.name == JOB).expect("the result is shown");
    assert_eq!(job.conclusion.as_deref(), Some("success"));
    assert_eq!((job.head_sha.as_str(), job.external_id.as_deref()), (HEAD, Some("9000:7")));
    assert!(runs.iter().all(|run| run.head_sha == HEAD));
    let facts = world.results.attempts(&world.always()).unwrap();
    assert!(facts.iter().all(|fact| fact.head_sha == HEAD && fact.pull_request == Some(7)));
}

#[tokio::test]
async fn an_l3_repository_cannot_grant_itself_the_label() {
    let (world, three) = World::new().await.opened("acme/three").await;
    let mut body = three.body("completed", Some("success"));
    body["payload"]["pull_request"]["labels"] = json!([{ "name": "ciflow/crcr/npu" }]);
    assert_eq!(three.report(&world, &body).await, said("completed"));
    world.work().await;
    assert!(checks(&world).iter().all(|check| !check.0.contains("/three/")));
    assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 1, "the HUD has it");
    // Upstream's label brings the very same result to the pull request.
    world.change(|pull| {
        pull.labels.insert("ciflow/crcr/npu".to_owned());
    });
    let state = world.github.state();
    let label = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", true);
    world.send(&state.world.delivery("pull_request", &label)).await;
    world.work().await;
    let shown = check("crcr/acme/three/CI/test", "completed", Some("success"));
    assert!(checks(&world).contains(&shown), "{:?}", checks(&world));
}

#[tokio::test]
async fn result_without_token_or_default_branch_is_not_shown() {
    for change in ["token", "another's token", "older token", "event_name", "ref", "nothing"] {
        let world = World::new().await;
        let run = open(&world).await;
        let older = run("acme/four").client_payload["callback_token"].clone();
        world.change(|pull| pull.head_sha = NEWER.to_owned());
        world.send_and_work("synchronize").await;
        let run = received(&world);
        let four = run("acme/four");
        let (mut claims, mut body) = (four.claims(&world), four.body("completed", Some("success")));
        match change {
            "token" => body["callback_token"] = Value::Null,
            "another's token" => {
                body["callback_token"] = run("acme/three").client_payload["callback_token"].clone();
            }
            "older token" => body["callback_token"] = older,
            "nothing" => {}
            "event_name" => claims["event_name"] = json!("workflow_dispatch"),
            _ => claims["ref"] = json!("refs/heads/topic"),
        }
        assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"));
        world.work().await;
        let shown = checks(&world).contains(&check(JOB, "completed", Some("success")));
        assert_eq!(shown, change == "nothing", "{change}");
        assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 1);
    }
}

#[tokio::test]
async fn token_of_another_run_is_401() {
    let (world, four) = World::new().await.opened("acme/four").await;
    let body = four.body("completed", Some("success"));
    for (claim, value) in [("run_id", "1"), ("run_attempt", "2")] {
        let mut claims = four.claims(&world);
        claims[claim] = json!(value);
        let (status, answer) = four.report_as(&world, &claims, &body).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{claim}: {answer}");
    }
    world.work().await;
    assert_eq!(checks(&world), [check(DISPATCH, "queued", None)]);
    assert_eq!(four.report(&world, &body).await, said("completed"), "its own run is heard");
}

#[tokio::test]
async fn jobs_with_similar_names_are_separate() {
    let (world, two) = World::new().await.opened("acme/two").await;
    for job in ["a:b", "a", "b", "1", "0:0", "None", "a\",\"b"] {
        let one = two.of_job(job);
        assert_eq!(one.start(&world).await, said("in_progress"), "{job}");
        assert_eq!(one.end(&world, "success").await, said("completed"), "{job}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_equal_concurrent_reports_is_accepted() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let body = two.body("in_progress", None);
    let all = (0..8).map(|_| two.report(&world, &body));
    let answers = futures_util::future::join_all(all).await;
    let taken = answers.iter().filter(|answer| **answer == said("in_progress")).count();
    let known = answers.iter().filter(|answer| **answer == noted("duplicate")).count();
    assert_eq!((taken, known), (1, 7));
    assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 1);
}

#[tokio::test]
async fn end_is_never_overwritten_by_a_later_start() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.start_and_end(&world, "success").await;
    // Both tasks run after the end is known.
    world.work().await;
    let job = checks(&world).into_iter().find(|check| check.0 == JOB).unwrap();
    assert_eq!(job, check(JOB, "completed", Some("success")));
}

#[tokio::test]
async fn null_or_unknown_conclusion_is_taken_with_a_warning() {
    for conclusion in [Value::Null, json!("great"), json!(1)] {
        let (world, two) = World::new().await.opened("acme/two").await;
        let mut body = two.body("completed", Some("success"));
        body["workflow"]["conclusion"] = conclusion;
        let (status, answer) = two.report(&world, &body).await;
        assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")));
        let warning = answer["warnings"][0].as_str().unwrap();
        assert!(warning.contains("workflow.conclusion"), "{answer}");
    }
}

#[tokio::test]
async fn large_report_is_413_before_it_is_buffered() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let before = ["record", "task", "fact_callback"].map(|table| world.rows(table));
    let mut body = two.body("completed", Some("success"));
    body["payload"]["pull_request"]["body"] = json!("x".repeat(5 * 1024 * 1024));
    let (status, answer) = two.report(&world, &body).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{answer}");
    let (status, _) = world.report(None, vec![b' '; limits::CALLBACK_BYTES + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(["record", "task", "fact_callback"].map(|table| world.rows(table)), before);
    // What is taken is kept as a job and its facts, without the payload that came along.
    let rest = body.to_string().len() - 5 * 1024 * 1024;
    body["payload"]["pull_request"]["body"] = json!("x".repeat(limits::CALLBACK_BYTES - rest));
    assert_eq!(two.report(&world, &body).await, said("completed"));
    let kept = world.largest_record_but_bodies();
    assert!(kept < 16 * 1024, "{kept}");
}

#[tokio::test]
async fn nightly_report_with_a_pull_request_is_400() {
    let (world, four) = World::new().await.opened("acme/four").await;
    world.github.state().world.add_commit(UPSTREAM, HEAD);
    let mut body = four.body("completed", Some("success"));
    body["event_type"] = json!("nightly");
    body["delivery_id"] = json!(HEAD);
    let mut claims = four.claims(&world);
    claims["event_name"] = json!("workflow_dispatch");
    assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"));
    world.work().await;
    assert_eq!(checks(&world), [check(DISPATCH, "queued", None)]);
    assert_eq!(world.results.attempts(&world.always()).unwrap()[0].pull_request, None);
}

#[tokio::test]
async fn flood_of_unknown_key_ids_does_not_reject_valid_tokens() {
    let (world, two) = World::new().await.opened("acme/two").await;
    assert_eq!(two.start(&world).await, said("in_progress"));
    for _ in 0..20 {
        let junk = crcr_standin::oidc::Issuer::sign_with_foreign_key(&two.claims(&world));
        let (status, _) =
            world.report(Some(&junk), two.body("in_progress", None).to_string().into_bytes()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    assert!(world.github.state().traffic.calls("jwks") <= 2);
    assert_eq!(two.end(&world, "success").await, said("completed"));
}

#[tokio::test]
async fn keys_are_valid_for_a_day_after_the_last_fetch_and_then_the_response_is_503() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let ready = async || world.call(Request::get("/readyz").body(Body::empty()).unwrap()).await;
    world.github.state().traffic.fail("jwks", 100, Fault::status(500));
    world.later(Duration::from_secs(23 * 3600));
    assert_eq!(ready().await.0, StatusCode::OK);
    assert_eq!(two.start(&world).await, said("in_progress"));
    world.later(Duration::from_secs(3601));
    let (status, body) = ready().await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body["keys_missing_of"], json!([world.github.state().origin()]));
    let warnings = warnings::read(&world.relay, &LastWarnings::default()).await;
    assert!(warnings[0].text.contains("The keys of http://"), "{warnings:?}");
    let (status, answer) = two.end(&world, "success").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
}

/// Behind a firewall that only lets GitHub through.
#[tokio::test]
async fn keys_of_buildkite_are_missed_while_a_backend_reports_from_there_and_hold_up_nothing_else()
{
    let github = crcr_standin::StandIn::start().unwrap();
    let origin = github.state().origin().to_owned();
    let issuers = format!(
        "{origin}={origin}/.well-known/jwks,https://agent.buildkite.com=http://127.0.0.1:1/keys"
    );
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("providers.yml");
    std::fs::write(&map, "buildkite: {org-1/pipe-1: elsewhere/unlisted}").unwrap();
    let url = format!("file:{}", map.display());
    let settings = [("CRCR_OIDC_ISSUERS", issuers.as_str()), ("CI_PROVIDERS_URL", url.as_str())];
    let world = World::on(github, &settings).await;
    let ready = async || world.call(Request::get("/readyz").body(Body::empty()).unwrap()).await;
    world.relay.verifier.refresh(world.relay.now()).await;

    // The map isn't read yet, then it names no backend of the allowlist.
    assert_eq!(ready().await.0, StatusCode::OK);
    assert!(kept_trust::refresh_providers(&world.relay).await);
    let (status, body) = ready().await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let buildkite = json!({
        "issuer": "https://agent.buildkite.com", "needed": false, "has_keys": false,
        "problem": "unreachable",
    });
    assert!(body["issuers"].as_array().unwrap().contains(&buildkite), "{body}");
    let metrics = world.metrics().await;
    assert!(metrics.contains("crcr_issuers_without_keys 0"), "{metrics}");
    assert!(metrics.contains("crcr_issuers_unreachable 0"), "{metrics}");

    std::fs::write(&map, "buildkite: {org-1/pipe-1: Acme/Two}").unwrap();
    assert!(kept_trust::refresh_providers(&world.relay).await);
    // Webhooks, and reports from GitHub, are taken without them.
    let (status, body) = ready().await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["keys_missing_of"], json!(["https://agent.buildkite.com"]));
    let metrics = world.metrics().await;
    assert!(metrics.contains("crcr_issuers_without_keys 1"), "{metrics}");
}

#[tokio::test]
async fn compressed_body_is_refused_with_the_reason() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let token = world.github.state().oidc.sign(&two.claims(&world));
    let request = Request::post("/github/callback")
        .header("authorization", format!("Bearer {token}"))
        .header("content-encoding", "gzip")
        .body(Body::from(&b"\x1f\x8b\x08\x00"[..]));
    let (status, body) = world.call(request.unwrap()).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert!(body["detail"].as_str().unwrap().contains("without `Content-Encoding`"), "{body}");
}

/// The field is optional.
#[tokio::test]
async fn report_of_a_rerun_that_does_not_name_its_attempt_is_of_the_tokens() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.start_and_end(&world, "failure").await;
    let again = Downstream { attempt: 2, ..four };
    let mut body = again.body("completed", Some("success"));
    body["workflow"]["run_attempt"] = Value::Null;
    assert_eq!(again.report(&world, &body).await, said("completed"));
    let facts = world.results.attempts(&world.always()).unwrap();
    let attempts: Vec<u32> = facts.iter().map(|fact| fact.run_attempt).collect();
    assert_eq!(attempts, [1, 2]);
}

#[tokio::test]
async fn refused_reports_can_not_fill_the_disk() {
    let world = World::with(&[("RATE_LIMIT_PER_MIN", "3")]).await;
    let run = open(&world).await;
    let two = run("acme/two");
    for _ in 0..20 {
        assert_eq!(run("acme/one").start(&world).await, said("ignored"));
        let (status, _) = two.report(&world, &json!({ "delivery_id": "x" })).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
    }
    // Good reports are not what pays for it.
    assert_eq!(two.start(&world).await, said("in_progress"));
    let facts = || world.rows("fact_callback");
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        if facts() == 7 {
            break;
        }
    }
    assert_eq!(facts(), 7, "three of each and the good one");
}

#[tokio::test]
async fn external_hud_gets_the_configured_number_of_retries() {
    let hud = wiremock::MockServer::start().await;
    let url = format!("{}/api", hud.uri());
    let settings = [("HUD_API_URL", url.as_str()), ("HUD_BOT_KEY", "k"), ("HUD_MAX_RETRIES", "1")];
    let down = wiremock::ResponseTemplate::new(502);
    wiremock::Mock::given(wiremock::matchers::any()).respond_with(down).mount(&hud).await;
    let (world, two) = World::with(&settings).await.opened("acme/two").await;
    two.start(&world).await;
    for _ in 0..4 {
        world.work().await;
        world.later(Duration::from_secs(700));
    }
    assert_eq!(hud.received_requests().await.unwrap().len(), 2);
    assert_eq!(deliveries::dead_letters(world.relay.store.as_ref(), 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn result_waits_for_a_day_while_the_external_hud_has_an_outage() {
    for (hours, dead) in [(22, 0), (25, 1)] {
        let hud = wiremock::MockServer::start().await;
        let down = wiremock::ResponseTemplate::new(502);
        wiremock::Mock::given(wiremock::matchers::any()).respond_with(down).mount(&hud).await;
        let url = format!("{}/api", hud.uri());
        let world = World::with(&[("HUD_API_URL", &url), ("HUD_BOT_KEY", "k")]).await;
        let two = open(&world).await("acme/two");
        two.end(&world, "success").await;
        for _ in 0..hours {
            world.work().await;
            world.later(Duration::from_secs(3600));
        }
        hud.reset().await;
        let up = wiremock::ResponseTemplate::new(200);
        wiremock::Mock::given(wiremock::matchers::any()).respond_with(up).mount(&hud).await;
        world.work_after(Duration::from_secs(3600)).await;
        let found = deliveries::dead_letters(world.relay.store.as_ref(), 10).await.unwrap();
        assert_eq!(found.len(), dead, "{hours} h: {found:?}");
        assert_eq!(hud.received_requests().await.unwrap().len(), 1 - dead, "{hours} h");
    }
}

#[tokio::test]
async fn external_hud_gets_results_after_an_outage() {
    let login = wiremock::ResponseTemplate::new(200).set_body_raw("<p>Sign in", "text/html");
    external_hud_gets_results_after(login).await;
    // The last ones are of no result: the HUD moves, is being deployed, or changes its key.
    for status in [502, 302, 308, 403, 404, 405] {
        external_hud_gets_results_after(wiremock::ResponseTemplate::new(status)).await;
    }
}

async fn external_hud_gets_results_after(down: wiremock::ResponseTemplate) {
    let hud = wiremock::MockServer::start().await;
    let path = wiremock::matchers::path("/api/crcr/results");
    wiremock::Mock::given(path).respond_with(down).up_to_n_times(1).mount(&hud).await;
    let path = wiremock::matchers::path("/api/crcr/results");
    let up = wiremock::ResponseTemplate::new(200).set_body_json(json!({ "ok": true }));
    wiremock::Mock::given(path).respond_with(up).mount(&hud).await;
    let url = format!("{}/api", hud.uri());
    let world = World::with(&[("HUD_API_URL", &url), ("HUD_BOT_KEY", "key")]).await;
    let two = open(&world).await("acme/two");
    let body = two.body("in_progress", None);
    assert_eq!(two.report(&world, &body).await, said("in_progress"));
    assert_eq!(world.work().await.len(), 1, "the HUD is down");
    world.wait(Duration::from_secs(5)).await;
    let requests = hud.received_requests().await.unwrap();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].headers["x-hud-internal-bot"], "key");
    let sent: Value = serde_json::from_slice(&requests[1].body).unwrap();
    assert_eq!(sent["untrusted"]["callback_payload"], body);
    assert_eq!(sent["trusted"]["verified_repo"], "acme/two");
    assert_eq!(sent["trusted"]["downstream_repo_level"], "L2");
    assert!(sent["trusted"]["ci_metrics"]["queue_time"].is_number());
}

#[tokio::test]
async fn report_during_a_store_outage_is_503_and_can_be_repeated() {
    // What is read is gone, and what is only written.
    for table in ["record", "bucket"] {
        let (world, two) = World::new().await.opened("acme/two").await;
        let (claims, body) = (two.claims(&world), two.body("completed", Some("success")));
        world.rename(table, "away");
        let (status, answer) = two.report_as(&world, &claims, &body).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{table}: {answer}");
        assert!(answer["detail"].as_str().unwrap().contains("temporary outage"), "{answer}");
        world.rename("away", table);
        // With the very same token: nothing of it was recorded.
        assert_eq!(two.report_as(&world, &claims, &body).await, said("completed"), "{table}");
        assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 1);
    }
}

#[tokio::test]
async fn report_too_large_for_the_external_hud_reaches_it_without_long_values() {
    let hud = wiremock::MockServer::start().await;
    let taken = wiremock::ResponseTemplate::new(200);
    wiremock::Mock::given(wiremock::matchers::any()).respond_with(taken).mount(&hud).await;
    let settings = [("HUD_API_URL", &*format!("{}/api", hud.uri())), ("HUD_BOT_KEY", "k")];
    let (world, two) = World::with(&settings).await.opened("acme/two").await;
    let mut body = two.body("completed", Some("failure"));
    body["more"] = json!("");
    let rest = body.to_string().len();
    body["more"] = json!("x".repeat(limits::CALLBACK_BYTES - rest));
    assert_eq!(two.report(&world, &body).await, said("completed"));
    world.settle().await;
    let requests = hud.received_requests().await.unwrap();
    let [request] = &requests[..] else { panic!("{}", requests.len()) };
    assert!(request.body.len() < limits::FORWARD_BYTES);
    let sent: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(sent["untrusted"]["callback_payload"]["workflow"]["conclusion"], "failure");
}

#[tokio::test]
async fn dead_task_is_requeued_by_an_operator() {
    let hud = wiremock::MockServer::start().await;
    let answers = [(400, 1), (200, 1)];
    for (status, times) in answers {
        let path = wiremock::matchers::path("/api/crcr/results");
        let answer = wiremock::ResponseTemplate::new(status);
        wiremock::Mock::given(path).respond_with(answer).up_to_n_times(times).mount(&hud).await;
    }
    let url = format!("{}/api", hud.uri());
    let world = World::with(&[("HUD_API_URL", &url), ("HUD_BOT_KEY", "key")]).await;
    world.event("opened").await;
    let two = received(&world)("acme/two");
    assert_eq!(two.start(&world).await, said("in_progress"));
    assert_eq!(world.work().await.len(), 1, "the HUD refuses");
    let store = world.relay.store.as_ref();
    assert_eq!(deliveries::dead_letters(store, 10).await.unwrap().len(), 1);
    let all = deliveries::redeliver_all(store, world.relay.now(), limits::RECORD_RETENTION)
        .await
        .unwrap();
    assert_eq!((all.requeued, all.too_old), (1, 0));
    world.settle().await;
    let requests = hud.received_requests().await.unwrap();
    assert!(requests.len() == 2 && requests[0].body == requests[1].body);
    assert_eq!(deliveries::dead_letters(store, 10).await.unwrap(), []);
}

#[tokio::test]
async fn retried_start_never_reaches_the_external_hud_after_the_end() {
    let hud = wiremock::MockServer::start().await;
    let path = wiremock::matchers::path("/api/crcr/results");
    let down = wiremock::ResponseTemplate::new(502);
    wiremock::Mock::given(path).respond_with(down).up_to_n_times(2).mount(&hud).await;
    let path = wiremock::matchers::path("/api/crcr/results");
    let up = wiremock::ResponseTemplate::new(200);
    wiremock::Mock::given(path).respond_with(up).mount(&hud).await;
    let url = format!("{}/api", hud.uri());
    let settings =
        [("HUD_API_URL", url.as_str()), ("HUD_BOT_KEY", "key"), ("HUD_MAX_RETRIES", "1")];
    let (world, two) = World::with(&settings).await.opened("acme/two").await;
    world.later(Duration::from_secs(30));
    two.start(&world).await;
    assert_eq!(world.work().await.len(), 1, "the HUD is down");
    world.later(Duration::from_secs(1));
    two.end(&world, "success").await;
    assert_eq!(world.work().await.len(), 1, "its first failure, and not the second of a start");
    for _ in 0..3 {
        world.wait(Duration::from_secs(700)).await;
    }
    let requests = hud.received_requests().await.unwrap();
    let sent = requests.iter().map(|request| serde_json::from_slice::<Value>(&request.body));
    let sent: Vec<_> = sent.map(Result::unwrap).collect();
    let status = |sent: &Value| sent["untrusted"]["callback_payload"]["workflow"]["status"].clone();
    let statuses: Vec<_> = sent.iter().map(status).collect();
    assert_eq!(statuses, ["in_progress", "completed", "completed"]);
    // The end has the data of the start.
    assert!(sent[2]["trusted"]["ci_metrics"]["queue_time"].is_number(), "{}", sent[2]);
}

#[tokio::test]
async fn jobs_of_a_nightly_run_on_a_commit_that_is_not_upstreams_cost_one_look_up() {
    let (world, two) = World::with(&[("RATE_LIMIT_PER_MIN", "2")]).await.opened("acme/two").await;
    world.github.state().world.add_commit(UPSTREAM, NEWER);
    let report = async |sha: &str, job: &str| {
        let mut body = two.body("completed", Some("success"));
        body["event_type"] = json!("nightly");
        body["delivery_id"] = json!(sha);
        body["workflow"]["job_name"] = json!(job);
        let mut claims = two.claims(&world);
        claims["event_name"] = json!("schedule");
        two.report_as(&world, &claims, &body).await
    };
    let unknown = "c".repeat(40);
    let looked_up = |sha: &str| {
        world.github.state().world.count(&format!("GET /repos/{UPSTREAM}/git/commits/{sha}"))
    };
    for job in ["a", "b", "c"] {
        assert_eq!(report(&unknown, job).await, said("completed"));
    }
    assert_eq!(looked_up(&unknown), 1);
    // The run and the look-up have used up the limit, so another commit isn't looked up.
    let other = "d".repeat(40);
    assert_eq!(report(&other, "a").await.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(looked_up(&other), 0);
    // A commit that is pushed later is found, and known for all jobs of a nightly run.
    world.later(Duration::from_secs(301));
    world.github.state().world.add_commit(UPSTREAM, &unknown);
    assert_eq!(report(&unknown, "d").await, said("completed"));
    assert_eq!(report(&unknown, "e").await, said("completed"));
    assert_eq!(looked_up(&unknown), 2);
    let facts = world.results.attempts(&world.always()).unwrap();
    let mut commits: Vec<_> = facts.iter().map(|fact| (&fact.job, &*fact.head_sha)).collect();
    commits.sort();
    let commits: Vec<_> = commits.into_iter().map(|(_, commit)| commit).collect();
    assert_eq!(commits, ["", "", "", &*unknown, &*unknown]);
}

#[tokio::test]
async fn external_hud_gets_dispatches_if_configured() {
    let hud = wiremock::MockServer::start().await;
    let up = wiremock::ResponseTemplate::new(200);
    wiremock::Mock::given(wiremock::matchers::any()).respond_with(up).mount(&hud).await;
    let url = format!("{}/api", hud.uri());
    for asked in ["off", "on"] {
        let settings =
            [("HUD_API_URL", url.as_str()), ("HUD_BOT_KEY", "key"), ("CRCR_HUD_DISPATCHES", asked)];
        let world = World::with(&settings).await;
        world.send(&world.pull_request("opened")).await;
        world.change(|pull| pull.head_sha = NEWER.to_owned());
        world.send_and_work("synchronize").await;
        world.work_after(Duration::from_secs(2 * 3600)).await;
        if asked == "off" {
            assert!(hud.received_requests().await.unwrap().is_empty(), "nothing unless asked");
        }
    }
    // Another relay of this kind is a HUD that takes them.
    let other = World::with(&[("INTERNAL_API_TOKEN", "token")]).await;
    let mut told = vec![];
    for request in hud.received_requests().await.unwrap() {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let workflow = &body["untrusted"]["callback_payload"]["workflow"];
        let repo = body["trusted"]["verified_repo"].as_str().unwrap();
        told.push(format!("{repo} {}", workflow["status"].as_str().unwrap()));
        // Required by the deployed HUD.
        assert_eq!(
            (&workflow["job_name"], &workflow["check_run_id"]),
            (&json!("dispatch"), &json!("dispatch"))
        );
        let request = Request::post("/api/crcr/results").header("x-hud-internal-bot", "token");
        let (status, answer) =
            other.call(request.body(Body::from(body.to_string())).unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    told.sort();
    let all = ["dispatched", "never_started", "superseded"];
    let expected: Vec<_> = ["acme/four", "acme/three", "acme/two"]
        .iter()
        .flat_map(|repo| all.map(|status| format!("{repo} {status}")))
        .collect();
    assert_eq!(told, expected, "L1 has no results");
    let facts = other.results.dispatches(&other.always()).unwrap();
    let mut kept: Vec<_> =
        facts.iter().map(|fact| format!("{} {}", fact.repo, fact.status.as_str())).collect();
    kept.sort();
    let expected: Vec<_> = ["acme/four", "acme/three", "acme/two"]
        .iter()
        .flat_map(|repo| ["never_started", "superseded"].map(|status| format!("{repo} {status}")))
        .collect();
    assert_eq!(kept, expected);
    assert!(facts.iter().all(|fact| fact.pull_request == Some(7) && fact.upstream == UPSTREAM));
}
