//! The pages in real browsers: `browser.mjs` looks in Chromium, `firefox.mjs` in Firefox, this serves and judges.
//!
//! Screenshots go to `target/hud/`, unless `CI` is set; what a screen reader is told is compared
//! with `snapshots/`, which `INSTA_UPDATE=always` writes anew.
#![expect(clippy::unwrap_used, reason = "tests stop at what is wrong")]

mod sites;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use self::sites::Sites;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Runs one function of the script on the sites; returns what it saw, fails with all it complained
/// about.
async fn look(task: &str, sites: &Sites) -> Value {
    run("browser.mjs", task, sites).await
}

async fn run(script: &str, task: &str, sites: &Sites) -> Value {
    let out = root().join("target/hud").join(task);
    fs::create_dir_all(&out).unwrap();
    let asked = json!({ "task": task, "sites": sites.urls(), "out": out, "token": sites::TOKEN });
    let peers = root().join("tests/peers");
    let mut command = Command::new(peers.join("node_modules/.bin/node"));
    command.arg(root().join("tests/hud").join(script)).arg(asked.to_string());
    // The sites are served by this runtime meanwhile.
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.expect("tests/peers is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer = said.lines().find_map(|line| line.strip_prefix("answer: "));
    let answer: Value = match answer {
        Some(answer) if output.status.success() => serde_json::from_str(answer).unwrap(),
        _ => panic!("{said}{}", String::from_utf8_lossy(&output.stderr)),
    };
    let problems = answer["problems"].as_array().unwrap();
    assert!(problems.is_empty(), "{}", serde_json::to_string_pretty(problems).unwrap());
    answer
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium and playwright-core and axe-core"]
async fn every_page_in_every_state_scheme_and_width() {
    let sites = Sites::shared().await;
    let seen = look("pages", &sites).await;
    let pages = seen["aria"].as_object().unwrap();
    assert!(pages.len() >= 15, "{pages:?}");
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for (name, tree) in pages {
            insta::assert_snapshot!(name.as_str(), tree.as_str().unwrap());
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs firefox-esr and puppeteer-core"]
async fn every_page_and_every_question_in_firefox() {
    run("firefox.mjs", "firefox", &*Sites::shared().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium and playwright-core and axe-core"]
async fn the_matrix_by_keyboard_and_a_refresh_that_keeps_its_place() {
    look("keyboard", &*Sites::shared().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium and playwright-core and axe-core"]
async fn every_page_leads_to_a_branch_its_shards_and_the_failed_step_of_a_job() {
    look("branch", &*Sites::shared().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium and playwright-core and axe-core"]
async fn each_question_is_answered_after_two_clicks_by_mouse_by_keyboard_and_without_script() {
    look("questions", &*Sites::shared().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium and playwright-core and axe-core"]
async fn an_operator_logs_in_redelivers_and_logs_out() {
    // It changes what its sites store.
    look("operator", &Sites::serve().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium and playwright-core and axe-core"]
async fn a_large_matrix_is_there_as_a_whole() {
    let seen = look("large", &*Sites::shared().await).await;
    // The aim is a second on an idle machine, which this one may not be.
    eprintln!("50 × 40 matrix, milliseconds: {}", seen["milliseconds"]);
}

/// Addresses of each JSON twin, by its path in the OpenAPI document.
fn twins() -> Value {
    json!({
        "/api/v1/now": ["/api/v1/now"],
        "/api/v1/pulls": ["/api/v1/pulls", "/api/v1/pulls?show=blocked&sort=-since"],
        "/api/v1/overview": ["/api/v1/overview", "/api/v1/overview?window=24h"],
        "/api/v1/tests": ["/api/v1/tests?days=30", "/api/v1/tests?days=30&sort=new"],
        "/api/v1/test/{owner}/{repo}": ["/api/v1/test/example/torch?name=TestProcessGroup.test_all_reduce"],
        "/api/v1/quarantine": ["/api/v1/quarantine"],
        "/api/v1/failures": ["/api/v1/failures?days=30", "/api/v1/failures?list=jobs&days=30"],
        "/api/v1/failure/{owner}/{repo}/{job}": ["/api/v1/failure/example/torch/702209"],
        "/api/v1/job/{owner}/{repo}/{job}": ["/api/v1/job/example/torch/702209"],
        "/api/v1/relay": ["/api/v1/relay", "/api/v1/relay?list=reports&window=30d"],
        "/api/v1/trends": ["/api/v1/trends?window=24h", "/api/v1/trends?window=30d"],
        "/api/v1/jobs": ["/api/v1/jobs?window=30d", "/api/v1/jobs?runner=linux.8xlarge.gpu&state=failed"],
        "/api/v1/reported": ["/api/v1/reported?kind=test_failed&window=7d", "/api/v1/reported?window=30d"],
        "/api/v1/repositories/{owner}/{repo}": [
            "/api/v1/repositories/aurora-example/torch-aurora", "/api/v1/repositories/ember-example/torch-ember",
        ],
        "/api/v1/repositories/{owner}/{repo}/level": ["/api/v1/repositories/aurora-example/torch-aurora/level"],
        "/api/v1/hud": ["/api/v1/hud"],
        "/api/v1/hud/{owner}/{repo}": ["/api/v1/hud/example/torch"],
        "/api/v1/hud/{owner}/{repo}/{branch}": ["/api/v1/hud/example/torch/main"],
        "/api/v1/commits/{sha}": ["/api/v1/commits/f8deb94e54"],
        "/api/v1/pulls/{number}": ["/api/v1/pulls/101057", "/api/v1/pulls/101050"],
        "/api/v1/search": ["/api/v1/search?q=torch", "/api/v1/search?q=101057", "/api/v1/search?q=nothing"],
        "/api/crcr/level-status": ["/api/crcr/level-status"],
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs openapi_spec_validator"]
async fn openapi_document_is_valid_and_every_twin_answers_as_it_says() {
    let sites = Sites::shared().await;
    let chosen = ["full", "empty", "hostile"].map(|name| (name, &sites.urls()[name]));
    let asked = json!({ "sites": BTreeMap::from(chosen), "asked": twins() });
    let mut command = Command::new("python3");
    command.arg(root().join("tests/peers/openapi_twins.py")).arg(asked.to_string());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
