//! What reporters in the field send, and what becomes of it.

use axum::body::Body;
use axum::http::Request;
use crcr_domain::checks::proof::MissingProof;

use super::*;
use crate::callback::kept_trust;

/// What vLLM's reporter posts for one job of a Buildkite build. The facts are from its script
/// `.buildkite/scripts/crcr_report.py` (commit 66ab5b0b of vllm-project/vllm).
const BUILD: u64 = 89_891;

fn buildkite_report(job: &str, conclusion: &str) -> Value {
    json!({
        "delivery_id": format!("buildkite-{BUILD}-{job}"), "event_type": "nightly",
        // A commit of the backend itself.
        "pytorch_head_sha": "c".repeat(40),
        "workflow": {
            "status": "completed", "conclusion": conclusion, "run_id": BUILD, "run_attempt": 1,
            "name": "ci", "job_name": format!(":docker: {job}"),
            "url": "https://buildkite.com/vllm/ci/builds/89891#0192",
            "started_at": "2026-08-01T01:00:00.000Z", "completed_at": "2026-08-01T01:10:00.000Z",
        },
    })
}

struct Pipeline {
    world: World,
    claims: Value,
    _folder: tempfile::TempDir,
}

/// A relay at which a Buildkite pipeline may report for `acme/two`.
async fn pipeline(settings: &[(&str, &str)]) -> Pipeline {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("providers.yml");
    std::fs::write(&map, "buildkite: {org-1/pipe-1: acme/two}").unwrap();
    let map = format!("file:{}", map.display());
    let mut all = vec![("CI_PROVIDERS_URL", &*map)];
    all.extend(settings);
    let world = World::with_issuer("https://agent.buildkite.com", &all).await;
    kept_trust::refresh_providers(&world.relay).await;
    let now = world.relay.now().as_second();
    let claims = json!({
        "iss": "https://agent.buildkite.com", "aud": "pytorch-cross-repo-ci-relay", "iat": now,
        "nbf": now, "exp": now + 300, "jti": "one for the whole build",
        "organization_id": "org-1", "pipeline_id": "pipe-1",
        "build_id": "0190046e-e199-453b-a302-a21a4d649d31", "build_number": BUILD,
        "job_id": "the reporting step", "build_branch": "main",
    });
    Pipeline { world, claims, _folder: folder }
}

impl Pipeline {
    async fn report(&self, body: &Value) -> (StatusCode, Value) {
        let token = self.world.github.state().oidc.sign(&self.claims);
        self.world.report(Some(&token), body.to_string().into_bytes()).await
    }
}

async fn page(world: &World, path: &str) -> (StatusCode, String) {
    let response = world.answer(Request::get(path).body(Body::empty()).unwrap()).await;
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 22).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn all_jobs_of_a_buildkite_build_are_stored_with_one_token_and_shown_as_one_run() {
    let pipeline = pipeline(&[]).await;
    let world = &pipeline.world;
    for (job, conclusion) in [("build", "success"), ("test 1", "failure"), ("test 2", "success")] {
        let report = buildkite_report(job, conclusion);
        assert_eq!(pipeline.report(&report).await, said("completed"), "{job}");
    }
    let facts = world.results.attempts(&world.always()).unwrap();
    assert_eq!(facts.len(), 3);
    for fact in &facts {
        assert_eq!((&*fact.repo, &*fact.run_id, &*fact.head_sha), ("acme/two", "89891", ""));
        assert_eq!(
            (fact.missing_proof, &fact.details.check_run_id),
            (Some(MissingProof::Commit), &None)
        );
    }
    // Its only rows are nightly ones, so the page begins with those.
    let (status, html) = page(world, "/crcr/acme/two").await;
    assert_eq!(status, StatusCode::OK);
    assert!(html.contains("run <bdi>89891</bdi>"), "{html}");
    assert!(html.contains(":docker: test 1") && html.contains("names no commit that exists"));
    assert_eq!(html.matches("<strong class=\"muted\">nightly</strong>").count(), 1, "one row");
}

#[tokio::test]
async fn relay_that_starts_in_an_outage_takes_reports_by_the_keys_and_the_map_of_before() {
    let Pipeline { world, claims, _folder: folder } = pipeline(&[]).await;
    let map = folder.path().join("providers.yml");
    std::fs::remove_file(&map).unwrap();
    let map = format!("file:{}", map.display());
    let keys = format!("{}/.well-known/jwks", world.github.state().origin());
    let issuers = format!("https://agent.buildkite.com={keys}");
    world.github.state().traffic.fail("jwks", 100, Fault::status(404));
    let settings = [("CI_PROVIDERS_URL", map.as_str()), ("CRCR_OIDC_ISSUERS", issuers.as_str())];
    let world = world.restart(&settings).await;
    assert!(!kept_trust::refresh_providers(&world.relay).await, "it can't be read");
    let pipeline = Pipeline { world, claims, _folder: folder };
    assert_eq!(pipeline.report(&buildkite_report("test", "success")).await, said("completed"));
    // They serve for a day after they were fetched, also if they were restored since.
    pipeline.world.later(Duration::from_secs(24 * 3600));
    let mut later = pipeline.claims.clone();
    let now = pipeline.world.relay.now().as_second();
    (later["iat"], later["nbf"], later["exp"]) = (json!(now), json!(now), json!(now + 300));
    let pipeline = Pipeline { claims: later, ..pipeline };
    let (status, answer) = pipeline.report(&buildkite_report("late", "success")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
}

#[tokio::test]
async fn token_for_many_jobs_proves_each_status_of_a_job_once() {
    let pipeline = pipeline(&[]).await;
    let report = buildkite_report("test", "failure");
    assert_eq!(pipeline.report(&report).await, said("completed"));
    assert_eq!(pipeline.report(&report).await, noted("duplicate"));
    let mut later = report.clone();
    later["workflow"]["completed_at"] = json!("2026-08-01T02:00:00Z");
    assert_eq!(pipeline.report(&later).await, noted("duplicate"), "it says the same");
    let (status, answer) = pipeline.report(&buildkite_report("test", "success")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("another conclusion"), "{answer}");
    // Neither the number of the build nor its id.
    let mut foreign = buildkite_report("other", "success");
    foreign["workflow"]["run_id"] = json!(BUILD + 1);
    assert_eq!(pipeline.report(&foreign).await.0, StatusCode::UNAUTHORIZED);
    foreign["workflow"]["run_id"] = pipeline.claims["build_id"].clone();
    assert_eq!(pipeline.report(&foreign).await, said("completed"));
}

#[tokio::test]
async fn self_report_without_a_commit_decides_nothing() {
    let alerts = wiremock::MockServer::start().await;
    let world = World::with(&[("CRCR_ALERT_URL", &alerts.uri())]).await;
    let four = open(&world).await("acme/four");
    let shown = checks(&world);
    let mut claims = four.claims(&world);
    claims["event_name"] = json!("schedule");
    let mut body = four.body("completed", Some("success"));
    body["event_type"] = json!("nightly");
    body["delivery_id"] = json!("nightly-1");
    body["payload"] = Value::Null;
    assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"));
    // A later run without a commit fails in the same job.
    let later = four.in_run(RUN + 1);
    let mut claims = later.claims(&world);
    claims["event_name"] = json!("schedule");
    let mut failed = later.body("completed", Some("failure"));
    failed["event_type"] = json!("nightly");
    failed["delivery_id"] = json!("nightly-2");
    failed["payload"] = Value::Null;
    assert_eq!(later.report_as(&world, &claims, &failed).await, said("completed"));
    assert_eq!(checks_after(&world, Duration::from_secs(120)).await, shown, "no check run");
    assert_eq!(alerts.received_requests().await.unwrap().len(), 0, "nobody is alerted");
    // It isn't what a failure on the pull request is compared with.
    world.later(Duration::from_secs(60));
    four.start_and_end(&world, "failure").await;
    world.work().await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let summary = &runs.iter().find(|run| run.name == JOB).unwrap().summary;
    assert!(!summary.contains("nightly"), "{summary}");
}

#[tokio::test]
async fn nightly_report_counts_with_an_upstream_commit_of_a_scheduled_run() {
    let (world, two) = World::new().await.opened("acme/two").await;
    world.github.state().world.add_commit(UPSTREAM, HEAD);
    let mut body = two.body("completed", Some("success"));
    body["event_type"] = json!("nightly");
    let missing = async |event: &str, delivery: &str, job: &str| {
        let mut claims = two.claims(&world);
        claims["event_name"] = json!(event);
        let mut body = body.clone();
        body["delivery_id"] = json!(delivery);
        body["payload"] = json!({ "head_sha": delivery });
        body["workflow"]["job_name"] = json!(job);
        assert_eq!(two.report_as(&world, &claims, &body).await, said("completed"));
        let facts = world.results.attempts(&world.always()).unwrap();
        let fact = facts.into_iter().find(|fact| fact.job.as_deref() == Some(job)).unwrap();
        assert_eq!((fact.event, fact.pull_request), (EventName::Nightly, None));
        (fact.head_sha, fact.missing_proof)
    };
    assert_eq!(missing("schedule", HEAD, "a").await, (HEAD.to_owned(), None));
    assert_eq!(missing("workflow_dispatch", HEAD, "b").await, (HEAD.to_owned(), None));
    let stranger = Some(MissingProof::Schedule);
    assert_eq!(missing("workflow_run", HEAD, "c").await, (HEAD.to_owned(), stranger));
    let unknown = "9".repeat(40);
    let no_commit = (String::new(), Some(MissingProof::Commit));
    assert_eq!(missing("schedule", &unknown, "d").await, no_commit);
    assert_eq!(missing("schedule", "any text at all", "e").await, no_commit);
}

#[tokio::test]
async fn nightly_report_is_kept_while_github_is_down_and_counts_when_its_commit_is_found() {
    let alerts = wiremock::MockServer::start().await;
    wiremock::Mock::given(wiremock::matchers::any())
        .respond_with(wiremock::ResponseTemplate::new(200))
        .mount(&alerts)
        .await;
    let (world, two) =
        World::with(&[("CRCR_ALERT_URL", &alerts.uri())]).await.opened("acme/two").await;
    let report = async |commit: &str, job: &str, conclusion: &str| {
        world.github.state().world.add_commit(UPSTREAM, commit);
        let mut claims = two.claims(&world);
        claims["event_name"] = json!("schedule");
        let mut body = two.body("completed", Some(conclusion));
        body["event_type"] = json!("nightly");
        body["delivery_id"] = json!(commit);
        body["payload"] = json!({ "head_sha": commit });
        body["workflow"]["job_name"] = json!(job);
        two.report_as(&world, &claims, &body).await
    };
    let shown = |job: &str| {
        let facts = world.results.attempts(&world.always()).unwrap();
        let fact = facts
            .into_iter()
            .find(|fact| fact.job.as_deref() == Some(job) && fact.delivery == HEAD);
        fact.map(|fact| (fact.head_sha, fact.missing_proof)).unwrap()
    };
    assert_eq!(report(&"1".repeat(40), "a", "success").await, said("completed"));
    world.work_after(Duration::from_secs(120)).await;
    let outage = &world.github.state().world;
    outage.fail(&format!("GET /repos/{UPSTREAM}/git/commits/*"), 5_000, Fault::status(502));
    assert_eq!(report(HEAD, "a", "failure").await, said("completed"));
    assert_eq!(shown("a"), (String::new(), Some(MissingProof::CommitUnknown)));
    outage.clear_faults();
    // The deployed action gives up after 10 s.
    outage.fail(&format!("GET /repos/{UPSTREAM}/git/commits/*"), 1, Fault::Stall);
    let begun = std::time::Instant::now();
    assert_eq!(report(HEAD, "c", "success").await, said("completed"));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(shown("c"), (String::new(), Some(MissingProof::CommitUnknown)));
    outage.fail(&format!("GET /repos/{UPSTREAM}/git/commits/*"), 5_000, Fault::status(502));
    assert_eq!(report(HEAD, "b", "success").await, said("completed"));
    // A worse end of the same job is what counts then.
    assert_eq!(report(HEAD, "b", "failure").await, said("completed"));
    assert!(!world.work_after(Duration::from_secs(300)).await.is_empty(), "still down");
    assert_eq!(shown("a"), (String::new(), Some(MissingProof::CommitUnknown)));
    world.github.state().world.clear_faults();
    for _ in 0..8 {
        world.wait(Duration::from_secs(300)).await;
    }
    for job in ["a", "b", "c"] {
        assert_eq!(shown(job), (HEAD.to_owned(), None), "{job}");
    }
    let facts = world.results.attempts(&world.always()).unwrap();
    let ends = facts.iter().filter(|fact| fact.delivery == HEAD).map(|fact| fact.state);
    let failed = JobState::Completed(Conclusion::Failure);
    let is_failed: Vec<_> = ends.map(|end| end == failed).collect();
    assert_eq!((is_failed.len(), is_failed.iter().filter(|it| **it).count()), (3, 2));
    let alerts = alerts.received_requests().await.unwrap();
    assert_eq!(alerts.len(), 1, "the backend turned red once");
}

#[tokio::test]
async fn nightly_report_can_not_replace_the_result_of_a_dispatched_job() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.start_and_end(&world, "failure").await;
    let mut body = four.body("completed", Some("success"));
    body["event_type"] = json!("nightly");
    let (status, answer) = four.report(&world, &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    world.work().await;
    assert_eq!(checks(&world)[1], check(JOB, "completed", Some("failure")));
}

#[tokio::test]
async fn queue_time_is_that_of_a_runs_first_job() {
    let hud = wiremock::MockServer::start().await;
    let ok = wiremock::ResponseTemplate::new(200);
    wiremock::Mock::given(wiremock::matchers::any()).respond_with(ok).mount(&hud).await;
    let settings = [("HUD_API_URL", &*format!("{}/api", hud.uri())), ("HUD_BOT_KEY", "k")];
    let world = World::with(&settings).await;
    let build = Downstream { job: "build", ..open(&world).await("acme/two") };
    let test = build.of_job("test");
    world.later(Duration::from_secs(10));
    build.start(&world).await;
    world.later(Duration::from_secs(3600));
    build.end(&world, "success").await;
    test.start_and_end(&world, "success").await;
    world.settle().await;
    let facts = world.results.attempts(&world.always()).unwrap();
    let queue = |job: &str| {
        let fact = facts.iter().find(|fact| fact.job.as_deref() == Some(job)).unwrap();
        fact.queue_seconds
    };
    assert!((queue("build").unwrap() - 10.0).abs() < 5.0);
    assert_eq!(queue("test"), None, "it waited for the build, and not in the queue");
    for request in hud.received_requests().await.unwrap() {
        let sent: Value = serde_json::from_slice(&request.body).unwrap();
        let workflow = &sent["untrusted"]["callback_payload"]["workflow"];
        let time = &sent["trusted"]["ci_metrics"]["queue_time"];
        assert!(workflow["job_name"] == "build" || time.is_null(), "{sent}");
    }
}

#[tokio::test]
async fn odd_details_leave_warnings_in_the_answer_and_on_the_page() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let mut body = two.body("completed", Some("Failure"));
    body["workflow"]["job_name"] = json!("test\twith a tab");
    body["workflow"]["artifact_url"] = json!("http://ci.acme.test/1");
    body["workflow"]["test_results"] = json!([1, 2]);
    body["workflow"]["triage_verdict"] = json!({ "schema_version": 1, "category": "gremlins" });
    let (status, answer) = two.report(&world, &body).await;
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")));
    assert_eq!(answer["warnings"].as_array().unwrap().len(), 4, "{answer}");
    let facts = world.results.attempts(&world.always()).unwrap();
    assert_eq!(facts[0].state, JobState::Completed(Conclusion::Failure));
    assert_eq!(facts[0].job.as_deref(), Some("test with a tab"));
    let (_, html) = page(&world, "/pr/7").await;
    assert!(html.contains("the triage verdict was dropped: `category`"), "{html}");
}

#[tokio::test]
async fn what_reporters_write_beyond_json_costs_no_result() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let mut latin_1 = two.body("in_progress", None).to_string().into_bytes();
    latin_1.splice(1..1, *b"\"log\": \"caf\xe9\", ");
    let token = world.github.state().oidc.sign(&two.claims(&world));
    let (status, answer) = world.report(Some(&token), latin_1).await;
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("in_progress")), "{answer}");
    assert!(answer["warnings"].to_string().contains("aren't UTF-8"), "{answer}");
    let mut body = two.body("completed", Some("failure"));
    body["workflow"]["failed_tests_detail"] = json!([{ "name": "t", "message": "cut HALF" }]);
    body["workflow"]["environment"] = json!({ "seconds": "NUMBER" });
    let text = body.to_string().replace("HALF", "\\ud83d").replace("\"NUMBER\"", "NaN");
    let text = text.replacen('{', r#"{"event_type": "twice", "#, 1);
    let token = world.github.state().oidc.sign(&two.claims(&world));
    let (status, answer) = world.report(Some(&token), text.into_bytes()).await;
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")), "{answer}");
    let warnings = answer["warnings"].to_string();
    assert!(warnings.contains("half a character"), "{answer}");
    let facts = world.results.attempts(&world.always()).unwrap();
    assert_eq!(facts[0].state, JobState::Completed(Conclusion::Failure));
}

#[tokio::test]
async fn blank_conclusion_is_stored_and_is_no_success() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let (status, answer) = two.end(&world, " ").await;
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")), "{answer}");
    let facts = world.results.attempts(&world.always()).unwrap();
    let JobState::Completed(conclusion) = facts[0].state else { panic!("{:?}", facts[0].state) };
    assert!(!conclusion.is_good());
}

#[tokio::test]
async fn forwarded_result_of_a_buildkite_job_is_stored_and_its_backend_has_a_page() {
    let world = World::with(&[("INTERNAL_API_TOKEN", "t")]).await;
    // As the deployed relay forwards it to its HUD.
    let body = json!({
        "trusted": { "ci_metrics": { "queue_time": null, "execution_time": null },
                     "verified_repo": "vllm-project/vllm", "downstream_repo_level": "L2" },
        "untrusted": { "callback_payload": buildkite_report("Build", "success") },
    });
    let request = Request::post("/api/crcr/results").header("x-hud-internal-bot", "t");
    let answer = world.call(request.body(Body::from(body.to_string())).unwrap()).await;
    assert_eq!(
        (answer.0, &answer.1["status"]),
        (StatusCode::OK, &json!("completed")),
        "{answer:?}"
    );
    let facts = world.results.attempts(&world.always()).unwrap();
    assert_eq!((facts.len(), facts[0].missing_proof), (1, Some(MissingProof::Commit)));
    let (status, html) = page(&world, "/crcr/vllm-project/vllm").await;
    assert_eq!(status, StatusCode::OK, "it isn't on the allowlist, and has results");
    assert!(html.contains("run <bdi>89891</bdi>"), "{html}");
}

#[tokio::test]
async fn callback_address_may_end_in_a_slash() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let token = world.github.state().oidc.sign(&two.claims(&world));
    let request = Request::post("/github/callback/").header("authorization", token);
    let body = two.body("in_progress", None).to_string();
    assert_eq!(world.call(request.body(Body::from(body)).unwrap()).await, said("in_progress"));
}

#[tokio::test]
async fn result_that_the_external_hud_has_already_is_no_dead_letter() {
    let hud = wiremock::MockServer::start().await;
    let conflict = wiremock::ResponseTemplate::new(409);
    wiremock::Mock::given(wiremock::matchers::any()).respond_with(conflict).mount(&hud).await;
    let settings = [("HUD_API_URL", &*format!("{}/api", hud.uri())), ("HUD_BOT_KEY", "k")];
    let (world, two) = World::with(&settings).await.opened("acme/two").await;
    two.end(&world, "success").await;
    world.settle().await;
    assert_eq!(world.relay.store.queue_depth().await.unwrap().dead, 0);
    assert_eq!(hud.received_requests().await.unwrap().len(), 1, "it isn't sent again");
}

#[tokio::test]
async fn what_strangers_send_is_counted_apart() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let foreign = crcr_standin::oidc::Issuer::sign_with_foreign_key(&two.claims(&world));
    for _ in 0..3 {
        let (status, _) = world.report(Some(&foreign), b"{}".to_vec()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    let mut delivery = world.pull_request("opened");
    delivery.signature = "sha256=00".to_owned();
    assert_eq!(world.send(&delivery).await.0, StatusCode::UNAUTHORIZED);
    let text = world.metrics().await;
    assert!(text.contains(r#"crcr_callbacks_total{outcome="bad_token"} 3"#), "{text}");
    assert!(text.contains(r#"crcr_webhooks_total{answer="unsigned"} 1"#), "{text}");
    assert!(!text.contains(r#"outcome="unavailable""#) && !text.contains(r#"answer="refused""#));
    // The issuer is away: a token with an unknown key could be good, and anybody can send one.
    world.later(Duration::from_secs(120));
    world.github.state().traffic.fail("jwks", 9, Fault::status(503));
    let (status, _) = world.report(Some(&foreign), b"{}".to_vec()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let text = world.metrics().await;
    assert!(text.contains(r#"crcr_callbacks_total{outcome="unverified"} 1"#), "{text}");
    assert!(text.contains("crcr_issuers_unreachable 1"), "{text}");
}

#[tokio::test]
async fn report_is_recorded_although_the_relays_clock_is_minutes_behind() {
    let (world, four) = World::new().await.opened("acme/four").await;
    let mut claims = four.claims(&world);
    let issued = claims["iat"].as_i64().unwrap() + 300;
    // As GitHub's: valid ten minutes before.
    (claims["iat"], claims["nbf"]) = (json!(issued), json!(issued - 600));
    claims["exp"] = json!(issued + 300);
    let body = four.body("in_progress", None);
    assert_eq!(four.report_as(&world, &claims, &body).await, said("in_progress"));
    // Other issuers' are valid from now on.
    (claims["nbf"], claims["jti"]) = (json!(issued), json!("another one"));
    let (status, answer) = four.report_as(&world, &claims, &body).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let detail = answer["detail"].as_str().unwrap();
    let start = "the authorization token is good, but by this relay's clock it is not valid yet: the clock may be \
                behind, try again in ";
    let wait = detail.strip_prefix(start).and_then(|rest| rest.strip_suffix(" s"));
    // Seconds pass while it is asked.
    let wait: i64 = wait.expect(detail).parse().unwrap();
    assert!((210..=240).contains(&wait), "{detail}");
}
