//! Logs of failed jobs, with the real relay and GitHub's stand-in.

use std::fs;

use crcr_standin::traffic::Fault;
use serde_json::{Value, json};

use crate::relay_process::{Place, Running, UPSTREAM, eventually};

const JOB: u64 = 5_000_000_001;
const RULES: &str = "[[rule]]\nname = \"boom\"\ncategory = \"test\"\npattern = 'boom in (\\w+)'\n";

/// Every job of the world has this log.
fn place() -> Place {
    let place = Place::new(&["acme/one"], "L1: [acme/one]\n");
    for job in JOB..JOB + 9 {
        place.github.state().world.put_job_log(UPSTREAM, job, "one\nboom in engine\nbye\n");
    }
    let archive = format!("file:{}", place.folder().join("kept").display());
    let rules = place.folder().join("rules.toml");
    fs::write(&rules, RULES).unwrap();
    place.set("CRCR_ARCHIVE", &archive).set("CRCR_LOG_RULES", rules.to_str().unwrap())
}

async fn job_failed(place: &Place, relay: &Running, job: u64) {
    let payload = json!({
        "action": "completed",
        "repository": { "full_name": UPSTREAM, "default_branch": "main", "private": false },
        "workflow_job": {
            "id": job, "run_id": 7, "run_attempt": 1, "status": "completed", "name": "test",
            "workflow_name": "Trunk", "conclusion": "failure", "head_sha": "abc",
            "head_branch": "main", "completed_at": "2026-08-01T10:30:00Z",
        },
    });
    let delivery = place.github.state().world.delivery("workflow_job", &payload);
    let target = relay.url.join("github/webhook").unwrap();
    let answer = delivery.send(&reqwest::Client::new(), &target).await.unwrap();
    assert_eq!(answer.status, 200);
}

/// The explanation of a job, once there is one.
async fn explanation(relay: &Relay<'_>, job: u64) -> Value {
    let url = relay.running.url.join(&format!("api/v1/failure/{UPSTREAM}/{job}")).unwrap();
    let mut found = Value::Null;
    eventually(&format!("job {job} is explained: {}", relay.place.log()), async || {
        let Ok(answer) = reqwest::get(url.clone()).await else { return false };
        if !answer.status().is_success() {
            return false;
        }
        // The page is there from the job's webhook on, and its log somewhat later.
        found = answer.json().await.unwrap();
        !found["log"].is_null()
    })
    .await;
    found["log"]["classified"]["match"].clone()
}

struct Relay<'a> {
    place: &'a Place,
    running: Running,
}

async fn start(place: &Place) -> Relay<'_> {
    let running = place.serve();
    running.ready().await;
    Relay { place, running }
}

#[tokio::test]
async fn relay_killed_after_the_webhook_explains_the_job_after_its_restart() {
    let place = place();
    let mut relay = start(&place).await;
    job_failed(&place, &relay.running, JOB).await;
    relay.running.kill();
    let relay = start(&place).await;
    let found = explanation(&relay, JOB).await;
    assert_eq!(
        (&found["line"], &found["captures"]),
        (&json!("boom in engine"), &json!(["engine"]))
    );
    let kept = place.folder().join(format!("kept/logs/{UPSTREAM}/{JOB}.txt.zst"));
    assert!(kept.is_file());
    let page = relay.running.url.join("failures?days=366").unwrap();
    let page = reqwest::get(page).await.unwrap().text().await.unwrap();
    assert!(page.contains("boom in engine"), "{page}");
}

#[tokio::test]
async fn rules_change_while_the_relay_runs_and_a_refused_fetch_is_tried_again() {
    let place = place();
    let relay = start(&place).await;
    let route = format!("GET /repos/{UPSTREAM}/actions/jobs/*");
    let refused = |retry_after| Fault::Answer {
        status: reqwest::StatusCode::FORBIDDEN,
        retry_after: Some(retry_after),
        body: "{}".to_owned(),
    };
    place.github.state().world.fail(&route, 2, refused(1));
    job_failed(&place, &relay.running, JOB).await;
    assert_eq!(explanation(&relay, JOB).await["rule"], "boom");
    fs::write(place.folder().join("rules.toml"), "[[rule]\n").unwrap();
    eventually("the broken file is reported", async || {
        place.log().contains("the new log rules can't be used; the old ones stay")
    })
    .await;
    fs::write(
        place.folder().join("rules.toml"),
        RULES.replace("boom", "bye").replace(" in (\\w+)", ""),
    )
    .unwrap();
    eventually("the new file is read", async || place.log().contains("rules were read again"))
        .await;
    job_failed(&place, &relay.running, JOB + 1).await;
    assert_eq!(explanation(&relay, JOB + 1).await["line"], "bye");
    assert_eq!(place.log().matches("the new log rules can't be used").count(), 1);
    assert_eq!(place.github.state().world.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn relay_does_not_start_with_broken_rules_and_says_where() {
    let place = place();
    fs::write(place.folder().join("rules.toml"), "[[rule]]\nname = 'x'\n").unwrap();
    let (code, _, stderr) = place.run(&["relay", "serve", "--check"]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("CRCR_LOG_RULES") && stderr.contains("rules.toml`: line 1"),
        "{stderr}"
    );
}
