//! The downstream template, run by a real workflow runner between the relay, GitHub's stand-in and a
//! real git server: from the upstream pull request to its check runs.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use crcr_standin::runs::Run;
use crcr_standin::world::PullRequest;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::act::{GITHUB_SCRIPT, copy, git, read, root};
use crate::checkout::Upstream;
use crate::relay_process::{Place, UPSTREAM, eventually};

const DOWNSTREAM: &str = "acme/four";

/// Stands for the build of a hostile pull request: it wants a token of the default branch.
const BUILD: &str = r#"
cat upstream/change.txt
echo "build: token variables: $(env | grep -c ACTIONS_ID_TOKEN_REQUEST_)"
"#;

/// Stands for the tests: one leg passes, and of the other one three tests fail. Both forge what they
/// can reach.
const TEST: &str = r#"
mkdir -p test-reports
if [[ $PYTHON == 3.13 ]]; then
  echo '<testsuite><testcase name="one"/></testsuite>' > test-reports/pytest.xml
  exit 0
fi
cat > test-reports/pytest.xml <<'XML'
<testsuite tests="3" failures="1"><testcase classname="a" name="one"/>
<testcase classname="a" name="two"/><testcase classname="a" name="three"><failure message="no"/>
</testcase></testsuite>
XML
exit 1
"#;

/// The template as a repository would have it, with one line to build. Each job's environment has what
/// GitHub gives to a job with its permissions.
fn workflow(server: &str, token: &BTreeMap<&str, String>) -> String {
    let mut workflow: serde_yaml::Value =
        serde_yaml::from_str(&read("workflows-templates/downstream-ci.yml")).unwrap();
    for (_, job) in workflow["jobs"].as_mapping_mut().unwrap() {
        if job["permissions"].get("id-token").and_then(serde_yaml::Value::as_str) == Some("write") {
            job["env"] = serde_yaml::to_value(token).unwrap();
        }
        for step in job["steps"].as_sequence_mut().unwrap() {
            let uses = step.get("uses").and_then(serde_yaml::Value::as_str).map(str::to_owned);
            if let Some(uses) = uses {
                let with = step["with"].as_mapping_mut().unwrap();
                with.insert("binary".into(), crate::act::binary().into());
                if uses.contains("/checkout-pr@") {
                    with.insert("server-url".into(), server.into());
                    with.insert("submodules".into(), "false".into());
                }
                continue;
            }
            match step["name"].as_str() {
                Some("Build") => step["run"] = BUILD.into(),
                Some("Test") => {
                    step["run"] = TEST.into();
                    step["env"] = serde_yaml::from_str("PYTHON: ${{ matrix.python }}").unwrap();
                }
                _ => {}
            }
        }
    }
    serde_yaml::to_string(&workflow).unwrap()
}

#[tokio::test]
#[ignore = "needs act and node"]
async fn upstream_code_runs_without_a_token_and_its_result_is_reported_to_the_pull_request() {
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
    fs::write(folder.join("event.json"), event.to_string()).unwrap();
    let run = Run {
        repository: DOWNSTREAM.to_owned(),
        head_repository: Some(DOWNSTREAM.to_owned()),
        repository_id: state.world.add_repo(DOWNSTREAM),
        event: "repository_dispatch".to_owned(),
        workflow: "upstream".to_owned(),
        ..Run::push()
    };
    let job = state.runs.add_job(state.runs.add(run.clone()), "test");
    let given = state.job_environment(&job);
    let some = |names: [&'static str; 2]| names.map(|name| (name, given[name].clone())).into();
    let token = some(["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"]);
    let artifacts: BTreeMap<_, _> = some(["ACTIONS_RUNTIME_TOKEN", "ACTIONS_RESULTS_URL"]);
    let variables = folder.join("runner-variables.json");
    fs::write(&variables, serde_json::to_string(&artifacts).unwrap()).unwrap();
    let text = workflow(&upstream.server.url, &token);
    fs::write(checkout.join(".github/workflows/upstream.yml"), text).unwrap();
    git(&checkout, &["init", "--quiet", "--initial-branch", "main"]);
    git(&checkout, &["remote", "add", "origin", "https://github.com/acme/four.git"]);
    git(&checkout, &["add", "--all"]);
    git(&checkout, &["commit", "--quiet", "--message", "downstream"]);
    copy(&root().join("actions"), &crcr.join("actions"));
    let env = [
        ("GITHUB_RUN_ID", run.id.to_string()),
        ("GITHUB_API_URL", state.origin().to_owned()),
        ("STANDIN_RUNNER_VARIABLES", variables.to_str().unwrap().to_owned()),
    ];
    let mut act = Command::new("act");
    act.args(["repository_dispatch", "--platform", "ubuntu-latest=-self-hosted", "--eventpath"]);
    act.arg(folder.join("event.json")).args(["--no-cache-server", "--pull=false"]);
    act.arg("--local-repository").arg(format!("pytorch/crcr@v1={}", crcr.display()));
    let script = root().join("tests/peers/github-script");
    act.arg("--local-repository").arg(format!("{GITHUB_SCRIPT}={}", script.display()));
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
    assert_eq!(log.matches("build: token variables: 0").count(), 2, "{log}");
    for (python, conclusion) in [("3.11", "failure"), ("3.13", "success")] {
        for state in ["in_progress".to_owned(), format!("completed ({conclusion})")] {
            let line = format!("reported to 127.0.0.1: `test ({python})` is {state}");
            assert!(log.contains(&line), "{line}\n{log}");
        }
    }
    assert!(!log.contains("eyJ"), "a token is in the log\n{log}");

    for (python, conclusion, title) in
        [("3.11", "failure", "Failure: 1 of 3 tests failed"), ("3.13", "success", "Success")]
    {
        let name = format!("crcr/acme/four/upstream/test ({python})");
        let shown = async || {
            let runs = state.world.check_runs(UPSTREAM);
            runs.into_iter().find(|run| run.name == name && run.conclusion.is_some())
        };
        eventually(&name, async || shown().await.is_some()).await;
        let shown = shown().await.unwrap();
        assert_eq!(shown.conclusion.as_deref(), Some(conclusion));
        assert_eq!(shown.head_sha, upstream.head);
        assert_eq!(shown.title, title, "{shown:?}");
        assert_eq!(shown.external_id, Some(format!("{}:7", run.id)));
    }
    let shown = state.world.check_runs(UPSTREAM);
    let jobs = shown.iter().filter(|run| run.name.starts_with("crcr/acme/four/upstream/"));
    assert_eq!(jobs.count(), 2, "none for `start` and `end`");
    let (_, deliveries, _) =
        place.run(&["relay", "deliveries", "show", &opened.id, "--format", "json"]);
    let deliveries: Value = serde_json::from_str(&deliveries).unwrap();
    assert_eq!(deliveries["dispatches"][0]["repo"], DOWNSTREAM);
}
