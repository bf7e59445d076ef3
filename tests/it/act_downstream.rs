//! The downstream template, run by a real workflow runner between the relay, GitHub's stand-in and a
//! real git server: from the upstream pull request to its check runs.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use crcr_standin::runs::Run;
use crcr_standin::world::{Delivery, PullRequest, Started};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::act::{GITHUB_SCRIPT, copy, for_act, git, read, root};
use crate::checkout::Upstream;
use crate::relay_process::{Place, Running, UPSTREAM, eventually};

pub(crate) const DOWNSTREAM: &str = "acme/four";

/// Stands for the build of a hostile pull request: it wants a token of the default branch.
const BUILD: &str = r#"
cat upstream/*.txt
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
pub(crate) fn workflow(template: &str, server: &str, token: &BTreeMap<&str, String>) -> String {
    let mut workflow: serde_yaml::Value =
        serde_yaml::from_str(&read(&format!("workflows-templates/{template}"))).unwrap();
    // Of the nightly, which asks the server for the newest commit.
    if workflow.get("env").is_some() {
        workflow["env"]["UPSTREAM"] = UPSTREAM.into();
        let step = &mut workflow["jobs"]["commit"]["steps"][0];
        step["env"]["SERVER"] = server.into();
    }
    for_act(&mut workflow);
    for (_, job) in workflow["jobs"].as_mapping_mut().unwrap() {
        if job["permissions"].get("id-token").and_then(serde_yaml::Value::as_str) == Some("write") {
            job["env"] = serde_yaml::to_value(token).unwrap();
        }
        for step in job["steps"].as_sequence_mut().unwrap() {
            let uses = step.get("uses").and_then(serde_yaml::Value::as_str).map(str::to_owned);
            if uses.as_deref().is_some_and(|uses| uses.starts_with("actions/setup-python@")) {
                let asked = step["with"]["python-version"].as_str().unwrap();
                *step =
                    serde_yaml::from_str(&format!("run: 'echo Python {asked} is set up'")).unwrap();
                continue;
            }
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

pub(crate) fn downstream_run(place: &Place) -> Run {
    Run {
        repository: DOWNSTREAM.to_owned(),
        head_repository: Some(DOWNSTREAM.to_owned()),
        repository_id: place.github.state().world.add_repo(DOWNSTREAM),
        ..Run::push()
    }
}

/// What GitHub gives a job of `run`: what JavaScript actions get, and what asks for an OIDC token.
pub(crate) fn job_variables(place: &Place, run: &Run) -> [BTreeMap<&'static str, String>; 2] {
    let state = place.github.state();
    let given = state.job_environment(&state.runs.add_job(state.runs.add(run.clone()), "test"));
    [
        ["ACTIONS_RUNTIME_TOKEN", "ACTIONS_RESULTS_URL"],
        ["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"],
    ]
    .map(|names| names.map(|name| (name, given[name].clone())).into())
}

/// Opens a fork's pull request upstream; returns its delivery, and the event that it dispatches.
pub(crate) async fn dispatched_pull(
    place: &Place,
    relay: &Running,
    upstream: &Upstream,
) -> (Delivery, Value) {
    let state = place.github.state();
    let pull = PullRequest::from_fork(7, UPSTREAM, &upstream.head, Timestamp::now());
    state.world.put_pull(UPSTREAM, pull);
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
    (opened, event)
}

/// Runs a template as the workflow of `run`; returns the log and whether it succeeded.
fn run_template(
    place: &Place,
    relay: &Running,
    template: &str,
    server: &str,
    run: &Run,
    event: &Value,
) -> (String, bool) {
    let [artifacts, token] = job_variables(place, run);
    let text = workflow(template, server, &token);
    Machine { place, relay, run, event, variables: &artifacts }.run("act", &text)
}

/// Where workflows of the downstream repository run.
pub(crate) struct Machine<'a> {
    pub(crate) place: &'a Place,
    pub(crate) relay: &'a Running,
    pub(crate) run: &'a Run,
    pub(crate) event: &'a Value,
    /// For JavaScript actions.
    pub(crate) variables: &'a BTreeMap<&'static str, String>,
}

impl Machine<'_> {
    /// Runs the workflow `text` on an empty machine, in the folder `name`; returns the log and whether it succeeded.
    pub(crate) fn run(&self, name: &str, text: &str) -> (String, bool) {
        let folder = self.place.folder().join(name);
        let (checkout, crcr) = (folder.join("checkout"), folder.join("crcr"));
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::create_dir_all(checkout.join(".github/workflows")).unwrap();
        fs::create_dir_all(folder.join("home")).unwrap();
        fs::write(folder.join("event.json"), self.event.to_string()).unwrap();
        let variables = folder.join("runner-variables.json");
        fs::write(&variables, serde_json::to_string(self.variables).unwrap()).unwrap();
        fs::write(checkout.join(".github/workflows/upstream.yml"), text).unwrap();
        git(&checkout, &["init", "--quiet", "--initial-branch", "main"]);
        git(&checkout, &["remote", "add", "origin", "https://github.com/acme/four.git"]);
        git(&checkout, &["add", "--all"]);
        git(&checkout, &["commit", "--quiet", "--message", "downstream"]);
        copy(&root().join("actions"), &crcr.join("actions"));
        let mut act = Command::new("act");
        act.args([&*self.run.event, "--platform", "ubuntu-latest=-self-hosted", "--eventpath"]);
        act.arg(folder.join("event.json")).args(["--no-cache-server", "--pull=false"]);
        act.arg("--local-repository").arg(format!("pytorch/crcr@v1={}", crcr.display()));
        let script = root().join("tests/peers/github-script");
        act.arg("--local-repository").arg(format!("{GITHUB_SCRIPT}={}", script.display()));
        let callback = self.relay.url.join("github/callback").unwrap();
        act.arg("--var").arg(format!("CRCR_CALLBACK_URL={callback}"));
        for (name, value) in [
            ("GITHUB_RUN_ID", self.run.id.to_string()),
            ("GITHUB_API_URL", self.place.github.state().origin().to_owned()),
            ("STANDIN_RUNNER_VARIABLES", variables.to_str().unwrap().to_owned()),
        ] {
            act.arg("--env").arg(format!("{name}={value}"));
        }
        act.current_dir(&checkout).env_clear().stdin(Stdio::null());
        act.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", folder.join("home"));
        act.env("XDG_CACHE_HOME", folder.join("home/.cache")).env("TMPDIR", &folder);
        let output = act.output().expect("`act` is installed by tests/setup");
        let log = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (log, output.status.success())
    }
}

#[tokio::test]
#[ignore = "needs act and node"]
async fn dry_dispatch_of_doctor_runs_no_upstream_code_and_is_reported() {
    let place = Place::new(&[DOWNSTREAM], "L1: []\n");
    let relay = place.serving().await;
    let state = place.github.state();
    let mut started = state.world.listen();
    let doctor = ["doctor", "downstream", DOWNSTREAM, "--dispatch", "--timeout", "1"];
    let mut doctor = place.crcr(&doctor);
    doctor.env("GITHUB_TOKEN", state.world.reader_token(false));
    doctor.output().unwrap();
    let Some(Started::Dispatch(sent)) = started.recv().await else { panic!("no dispatch") };
    state.world.take_dispatches();
    let event = json!({
        "action": "pull_request", "client_payload": sent.client_payload,
        "repository": { "full_name": DOWNSTREAM },
    });
    let run = Run { event: "repository_dispatch".to_owned(), ..downstream_run(&place) };
    let server = "http://127.0.0.1:1";
    let (log, succeeded) = run_template(&place, &relay, "downstream-ci.yml", server, &run, &event);
    assert!(succeeded, "{log}");
    let accepted = "the relay at 127.0.0.1 accepts this run's token and the signature";
    assert_eq!(log.matches(accepted).count(), 1, "{log}");
    assert!(!log.contains("Check out the upstream commit"), "{log}");

    // Without a signature there is nothing to report.
    let mut unsigned = event;
    unsigned["client_payload"].as_object_mut().unwrap().remove("callback_token");
    let (log, succeeded) =
        run_template(&place, &relay, "downstream-ci.yml", server, &run, &unsigned);
    assert!(succeeded && !log.contains("Report to the relay"), "{log}");
}

#[tokio::test]
#[ignore = "needs act and node"]
async fn nightly_template_tests_the_newest_upstream_commit_and_reports_it() {
    let upstream = Upstream::new();
    let place = Place::new(&[DOWNSTREAM], "L2:\n  - acme/four\n");
    let url = format!("{}/{UPSTREAM}", upstream.server.url);
    let line = crate::checkout::git(place.folder(), &["ls-remote", &url, "HEAD"]);
    let newest = line.split_whitespace().next().unwrap();
    place.github.state().world.add_commit(UPSTREAM, newest);
    let relay = place.serving().await;
    let run = Run {
        event: "schedule".to_owned(),
        workflow: "upstream nightly".to_owned(),
        ..downstream_run(&place)
    };
    let template = "downstream-nightly.yml";
    let (log, succeeded) =
        run_template(&place, &relay, template, &upstream.server.url, &run, &json!({}));
    assert!(!succeeded, "the tests failed\n{log}");
    assert!(log.contains(&format!("checked out acme/upstream at {newest}")), "{log}");
    assert_eq!(log.matches("build: token variables: 0").count(), 2, "{log}");
    for (python, conclusion) in [("3.11", "failure"), ("3.13", "success")] {
        let line = format!("reported to 127.0.0.1: `test ({python})` is completed ({conclusion})");
        assert!(log.contains(&line), "{line}\n{log}");
    }
}

#[tokio::test]
#[ignore = "needs act and node"]
async fn upstream_code_runs_without_a_token_and_its_result_is_reported_to_the_pull_request() {
    let upstream = Upstream::new();
    let place = Place::new(&[DOWNSTREAM], "L4:\n  - acme/four: [dave]\n");
    let relay = place.serve();
    let (opened, event) = dispatched_pull(&place, &relay, &upstream).await;
    let state = place.github.state();

    let run = Run {
        event: "repository_dispatch".to_owned(),
        workflow: "upstream".to_owned(),
        ..downstream_run(&place)
    };
    let (log, succeeded) =
        run_template(&place, &relay, "downstream-ci.yml", &upstream.server.url, &run, &event);
    assert!(!succeeded, "the tests failed\n{log}");
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

/// What the relay sends of a commit to explain a failure: less than GitHub's own push has.
#[tokio::test]
#[ignore = "needs act and node"]
async fn probe_runs_in_the_template_like_a_push_of_that_commit_and_is_reported() {
    let upstream = Upstream::new();
    let place = Place::new(&[DOWNSTREAM], "L2:\n  - acme/four\n");
    let state = place.github.state();
    state.world.add_commit(UPSTREAM, &upstream.head);
    let relay = place.serving().await;
    let push = state.push_payload(UPSTREAM, "refs/heads/main", &upstream.head);
    let push = state.world.delivery("push", &push);
    let target = relay.url.join("github/webhook").unwrap();
    assert_eq!(push.send(&reqwest::Client::new(), &target).await.unwrap().status, 202);
    let mut dispatched = vec![];
    eventually("the dispatch", async || {
        dispatched.extend(state.world.take_dispatches());
        !dispatched.is_empty()
    })
    .await;
    let mut payload = dispatched[0].client_payload.clone();
    let head = upstream.head.as_str();
    payload["crcr"] = json!({ "probe": { "reason": "bisect", "of": head, "attempt": 1 } });
    let owner = json!({ "login": "acme" });
    payload["payload"] = json!({
        "ref": "refs/heads/main", "before": head, "after": head, "created": false,
        "deleted": false, "forced": false, "commits": [], "head_commit": { "id": head },
        "repository": { "id": 1, "name": "upstream", "full_name": UPSTREAM, "owner": owner,
            "html_url": format!("https://github.com/{UPSTREAM}"),
            "clone_url": format!("https://github.com/{UPSTREAM}.git"), "default_branch": "main" },
        "sender": owner,
    });
    let event = json!({
        "action": "push", "client_payload": payload, "repository": { "full_name": DOWNSTREAM },
    });
    let run = Run {
        event: "repository_dispatch".to_owned(),
        workflow: "upstream".to_owned(),
        ..downstream_run(&place)
    };
    let (log, _) =
        run_template(&place, &relay, "downstream-ci.yml", &upstream.server.url, &run, &event);
    assert!(log.contains(&format!("checked out acme/upstream at {head}")), "{log}");
    for (python, conclusion) in [("3.11", "failure"), ("3.13", "success")] {
        let line = format!("reported to 127.0.0.1: `test ({python})` is completed ({conclusion})");
        assert!(log.contains(&line), "{line}\n{log}");
    }
}
