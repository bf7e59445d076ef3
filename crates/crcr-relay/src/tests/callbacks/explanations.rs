//! What a report says about a failure: failing tests in detail and a triage verdict.

use super::*;

#[tokio::test]
async fn failure_is_stored_with_its_tests_and_the_backends_verdict() {
    let (world, four) = World::new().await.opened("acme/four").await;
    let mut body = four.body("completed", Some("failure"));
    body["workflow"]["failed_tests_detail"] = json!([
        {"name": "test_add", "classname": "TestOps", "message": "1 != 2", "stacktrace": "ops.py:7",
         "duration": 0.25}
    ]);
    body["workflow"]["triage_verdict"] = json!({
        "schema_version": 1, "category": "upstream", "confidence": "high",
        "summary": "the schema of `add` changed", "suspected_upstream": {"pr": 99}
    });
    assert_eq!(four.report(&world, &body).await, said("completed"));
    let facts = world.results.attempts(&world.always()).unwrap();
    let test = &facts[0].details.failed_tests[0];
    assert_eq!((test.stacktrace.as_deref(), test.duration), (Some("ops.py:7"), Some(0.25)));
    let triage = facts[0].details.triage.as_ref().unwrap();
    assert_eq!(triage.suspected_upstream.as_ref().unwrap().pr, Some(99));
    world.work().await;
    let check_run = world.github.state().world.check_runs(UPSTREAM)[1].clone();
    assert_eq!(check_run.conclusion.as_deref(), Some("failure"), "a verdict changes no conclusion");
}

#[tokio::test]
async fn invalid_triage_verdict_is_dropped_with_a_warning_and_the_result_counts() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let mut body = two.body("completed", Some("failure"));
    body["workflow"]["triage_verdict"] = json!({"schema_version": 1, "category": "gremlins"});
    let (status, answer) = two.report(&world, &body).await;
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")));
    let warning = answer["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("the triage verdict was dropped: `category`"), "{warning}");
    let facts = world.results.attempts(&world.always()).unwrap();
    assert_eq!((facts.len(), &facts[0].details.triage), (1, &None));
}
