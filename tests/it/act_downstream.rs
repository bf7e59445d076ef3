//! The downstream template, run by a real workflow runner between the relay, GitHub's stand-in and a
//! real git server: from the upstream pull request to its check runs.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use crcr_standin::runs::Run;
use crcr_standin::world::PullRequest;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::act::{copy, git, read, root};
use crate::checkout::Upstream;
use crate::relay_process::{Place, UPSTREAM, eventually};

const DOWNSTREAM: &str = "acme/four";

/// Stands for the tests: two that passed, and one that didn't.
const TEST: &str = r#"
mkdir -p test-reports
cat > test-reports/pytest.xml <<'XML'
<testsuite tests="3" failures="1"><testcase classname="a" name="one"/>
<testcase classname="a" name="two"/><testcase classname="a" name="three"><failure message="no"/>
</testcase></testsuite>
XML
exit 1
"#;

/// The template as a repository would have it, with one line to build.
fn workflow(server: &str) -> String {
    let mut workflow: serde_yaml::Value =
        serde_yaml::from_str(&read("workflows-templates/downstream-ci.yml")).unwrap();
    for step in workflow["jobs"]["test"]["steps"].as_sequence_mut().unwrap() {
        let uses = step.get("uses").and_then(serde_yaml::Value::as_str).map(str::to_owned);
        if let Some(uses) = uses {
            let with = step["with"].as_mapping_mut().unwrap();
            with.insert("binary".into(), env!("CARGO_BIN_EXE_crcr").into());
            if uses.contains("/checkout-pr@") {
                with.insert("server-url".into(), server.into());
                with.insert("submodules".into(), "false".into());
            }
            continue;
        }
        step["run"] = match step["name"].as_str() {
            Some("Build") => "cat upstream/change.txt",
            _ => TEST,
        }
        .into();
    }
    serde_yaml::to_string(&workflow).unwrap()
}

#[tokio::test]
#[ignore = "needs act"]
async fn a_dispatched_job_checks_out_its_commit_and_reports_to_the_pull_request() {
    let upstream = Upstream::new();
    let place = Place::new(&[DOWNSTREAM], "L4:\n  - acme/four: [dave]\n");
    let state = place.github.state();
    let pull = PullRequest::from_fork(7, UPSTREAM, &upstream.head, Timestamp::now());
    state.world.put_pull(UPSTREAM, pull);
    let relay = place.serve();
    relay.ready().await;
    let opened =
        state.world.delivery("pull_request", &state.pull_request_payload(UPSTREAM, 7, "opened"));
    let target = relay.url.join("github/webhook").unwrap();
    assert_eq!(opened.send(&reqwest::Client::new(), &target).await.unwrap().status, 202);
    let mut dispatched = vec![];
    eventually("the dispatch", async || {
        dispatched.extend(state.world.take_dispatches());
        !dispatched.is_empty()
    })
    .await;
    let event = json!({
        "action": "pull_request", "client_payload": dispatched[0].client_payload,
        "repository": { "full_name": DOWNSTREAM },
    });

    let folder = place.folder().join("act");
    let (checkout, crcr) = (folder.join("checkout"), folder.join("crcr"));
    fs::create_dir_all(checkout.join(".github/workflows")).unwrap();
    fs::create_dir_all(folder.join("home")).unwrap();
    fs::write(checkout.join(".github/workflows/upstream.yml"), workflow(&upstream.server.url))
        .unwrap();
    fs::write(folder.join("event.json"), event.to_string()).unwrap();
    git(&checkout, &["init", "--quiet", "--initial-branch", "main"]);
    git(&checkout, &["remote", "add", "origin", "https://github.com/acme/four.git"]);
    git(&checkout, &["add", "--all"]);
    git(&checkout, &["commit", "--quiet", "--message", "downstream"]);
    copy(&root().join("actions"), &crcr.join("actions"));

    let run = Run {
        repository: DOWNSTREAM.to_owned(),
        head_repository: Some(DOWNSTREAM.to_owned()),
        repository_id: state.world.add_repo(DOWNSTREAM),
        event: "repository_dispatch".to_owned(),
        workflow: "upstream".to_owned(),
        ..Run::push()
    };
    let job = state.runs.add_job(state.runs.add(run.clone()), "test");
    let mut env: BTreeMap<_, _> = state.job_environment(&job);
    env.retain(|name, _| name.starts_with("ACTIONS_ID_TOKEN_REQUEST_"));
    env.insert("GITHUB_RUN_ID", run.id.to_string());
    let mut act = Command::new("act");
    act.args(["repository_dispatch", "--platform", "ubuntu-latest=-self-hosted", "--eventpath"]);
    act.arg(folder.join("event.json")).args(["--no-cache-server", "--pull=false"]);
    act.arg("--local-repository").arg(format!("pytorch/crcr@v1={}", crcr.display()));
    act.arg("--var")
        .arg(format!("CRCR_CALLBACK_URL={}", relay.url.join("github/callback").unwrap()));
    for (name, value) in env {
        act.arg("--env").arg(format!("{name}={value}"));
    }
    act.current_dir(&checkout).env_clear().stdin(Stdio::null());
    act.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", folder.join("home"));
    act.env("XDG_CACHE_HOME", folder.join("home/.cache")).env("TMPDIR", &folder);
    let output = tokio::task::spawn_blocking(move || act.output()).await.unwrap();
    let output = output.expect("`act` is installed by tests/setup");
    let log = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "the tests failed\n{log}");
    assert!(log.contains(&format!("checked out acme/upstream at {}", upstream.head)), "{log}");
    for python in ["3.11", "3.13"] {
        for state in ["in_progress", "completed (failure)"] {
            let line = format!("reported to 127.0.0.1: `test ({python})` is {state}");
            assert!(log.contains(&line), "{line}\n{log}");
        }
    }
    assert!(!log.contains("eyJ"), "a token is in the log\n{log}");

    for python in ["3.11", "3.13"] {
        let name = format!("crcr/acme/four/upstream/test ({python})");
        let shown = async || {
            let runs = state.world.check_runs(UPSTREAM);
            runs.into_iter().find(|run| run.name == name && run.conclusion.is_some())
        };
        eventually(&name, async || shown().await.is_some()).await;
        let shown = shown().await.unwrap();
        assert_eq!(shown.conclusion.as_deref(), Some("failure"));
        assert_eq!(shown.head_sha, upstream.head);
        assert_eq!(shown.title, "Failure: 1 of 3 tests failed", "{shown:?}");
        assert_eq!(shown.external_id, Some(format!("{}:7", run.id)));
    }
    let (_, deliveries, _) =
        place.run(&["relay", "deliveries", "show", &opened.id, "--format", "json"]);
    let deliveries: Value = serde_json::from_str(&deliveries).unwrap();
    assert_eq!(deliveries["dispatches"][0]["repo"], DOWNSTREAM);
}
