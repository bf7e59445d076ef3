//! `crcr reproduce` against a relay's HUD and a stand-in for GitHub.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crcr_cidata::webhook_archive::{ArchivedWebhook, WebhookHead};
use crcr_domain::Level;
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::protocol::callback::{FailedTest, ReportDetails};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{
    AttemptFact, DispatchFact, DispatchFactStatus, Fact, MergeBaseFact,
};
use crcr_standin::runs::Run;
use crcr_store::sqlite::{SqliteStore, StoreRole};
use crcr_store::{StateStore as _, WriteBatch};
use jiff::Timestamp;
use serde_json::Value;

use crate::relay_process::{Place, Running, UPSTREAM};
use crate::support::{Crcr, Ran};

const BACKEND: &str = "acme/four";
const WORKFLOW: &str = ".github/workflows/upstream.yml";
const HOSTILE: &str = "x'; touch owned; echo `id` $(id) '\n::add-mask::secret";

/// A relay whose HUD has one failed and one passed job of pull request 7.
struct Failed {
    place: Place,
    relay: Running,
    head: String,
}

impl Failed {
    async fn new() -> Self {
        let place = Place::new(&[BACKEND], "L4:\n  - acme/four: [dave]\n");
        let world = &place.github.state().world;
        let workflow = "on: {repository_dispatch: {types: [pull_request]}}\njobs:\n  test:\n    \
                        runs-on: [self-hosted, npu]\n    container: {image: acme/npu:25}\n    \
                        steps: [{uses: actions/checkout@v6}, {run: make test}]\n";
        world.put_file(BACKEND, WORKFLOW, workflow);
        let commit = "c".repeat(40);
        world.add_commit(BACKEND, &commit);
        world.add_repo("actions/checkout");
        world.add_tag("actions/checkout", "v6", &"ac".repeat(20));
        place.github.state().runs.add(Run {
            id: 99,
            repository: BACKEND.to_owned(),
            event: "repository_dispatch".to_owned(),
            workflow_path: WORKFLOW.to_owned(),
            sha: commit,
            ..Run::push()
        });
        let head = "f2".repeat(20);
        // Not as the server: a process that another test starts keeps the server's lock for a moment.
        let store = SqliteStore::open(&place.database(), StoreRole::Tool).unwrap();
        let now = Timestamp::now();
        let facts = facts(&head, now);
        store.commit(WriteBatch { facts, ..WriteBatch::default() }, now).await.unwrap();
        drop(store);
        let relay = place.serving().await;
        Self { place, relay, head }
    }

    fn reproduce(&self, args: &[&str]) -> Crcr {
        let hud = self.relay.url.as_str();
        let to = ["reproduce", "7", "--backend", "Acme/Four", "--upstream", UPSTREAM, "--hud", hud];
        Crcr::new(&[&to, args].concat())
    }

    fn with_token(&self, run: Crcr) -> Crcr {
        let state = self.place.github.state();
        run.env("GITHUB_API_URL", state.origin())
            .env("GITHUB_TOKEN", &state.world.reader_token(false))
    }
}

fn facts(head: &str, now: Timestamp) -> Vec<Fact> {
    let job = |name: &str, conclusion, failed_tests| {
        Fact::Attempt(Box::new(AttemptFact {
            received_at: now,
            dispatched_at: now,
            repo: BACKEND.to_owned(),
            delivery: "d".to_owned(),
            workflow: "upstream".to_owned(),
            job: Some(name.to_owned()),
            run_id: "99".to_owned(),
            run_attempt: 1,
            state: JobState::Completed(conclusion),
            start_unknown: false,
            queue_seconds: Some(1.0),
            execution_seconds: Some(1.0),
            details: ReportDetails {
                phase: Some("test".to_owned()),
                failed_tests,
                url: Some("https://github.com/acme/four/actions/runs/99/job/5".to_owned()),
                artifact_url: Some("https://artifacts.example.org/7".to_owned()),
                environment: Some("npu-910b, driver 25".to_owned()),
                ..ReportDetails::default()
            },
            missing_proof: None,
            expected: None,
            level: Level::L4,
            event: EventName::PullRequest,
            upstream: UPSTREAM.to_owned(),
            pull_request: Some(7),
            head_sha: head.to_owned(),
        }))
    };
    let test = |name: &str, message: &str| FailedTest {
        name: name.to_owned(),
        classname: Some("test.test_ops.TestOps".to_owned()),
        file: Some("test/test_ops.py".to_owned()),
        message: Some(message.to_owned()),
        ..FailedTest::default()
    };
    vec![
        Fact::Dispatch(DispatchFact {
            at: now,
            delivery: "d".to_owned(),
            upstream: UPSTREAM.to_owned(),
            pull_request: Some(7),
            head_sha: head.to_owned(),
            event: EventName::PullRequest,
            repo: BACKEND.to_owned(),
            level: Level::L4,
            labels: vec![],
            enqueued_at: now,
            sent_at: Some(now),
            status: DispatchFactStatus::Sent,
            superseded_by: None,
            tries: 1,
            last_error: None,
        }),
        job("test (3.11)", Conclusion::Failure, vec![test("test_add", "no"), test(HOSTILE, "<b>")]),
        job("test (3.13)", Conclusion::Success, vec![]),
        Fact::MergeBase(MergeBaseFact {
            at: now,
            upstream: UPSTREAM.to_owned(),
            pull_request: 7,
            head_sha: head.to_owned(),
            merge_base: "f0".repeat(20),
            committed_at: now,
            changed_files: vec![],
        }),
    ]
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()))
}

#[tokio::test]
async fn recipe_has_commits_workflow_environment_and_failing_tests() {
    let failed = Failed::new().await;
    let ran = failed.with_token(failed.reproduce(&[])).run().expect_code(0);
    insta::assert_snapshot!("recipe_text", ran.stdout);
    let ran = failed.with_token(failed.reproduce(&["--format", "markdown"])).run().expect_code(0);
    insta::assert_snapshot!("recipe_markdown", ran.stdout);
    let ran = failed.reproduce(&["--format", "json"]).run().expect_code(0);
    let recipe = json(&ran);
    assert_eq!(recipe["head_sha"], failed.head);
    assert_eq!(recipe["merge_base"], "f0".repeat(20));
    assert_eq!(recipe["jobs"].as_array().unwrap().len(), 1, "the other job passed");
    assert_eq!(recipe["jobs"][0]["environment"], "npu-910b, driver 25");
    assert_eq!(recipe["workflows_unknown"], "`GITHUB_TOKEN` isn't set");
    let passed = failed.reproduce(&["--format", "json", "--job"]).arg("upstream / test (3.13)");
    let passed = json(&passed.run().expect_code(0));
    assert_eq!(passed["jobs"][0]["outcome"], "passed", "{passed:#}");
}

#[tokio::test]
async fn unknown_pull_request_backend_job_and_hud_have_errors_of_their_own() {
    let failed = Failed::new().await;
    let refused = |run: Crcr, code: i32, error: &str, hint: &str| {
        let ran = run.run().expect_code(code);
        assert!(ran.stdout.is_empty(), "{}", ran.report());
        assert!(ran.stderr.contains(error) && ran.stderr.contains(hint), "{}", ran.report());
    };
    let hud = failed.relay.url.as_str();
    let other = |args: &[&str]| Crcr::new(&[&["reproduce", "--hud", hud], args].concat());
    let upstream = ["--upstream", UPSTREAM];
    let number = [&["8", "--backend", BACKEND][..], &upstream].concat();
    refused(other(&number), 1, "error[no-results]: the HUD has no results of acme/upstream#8", "");
    let backend = [&["7", "--backend", "acme/gone"][..], &upstream].concat();
    refused(
        other(&backend),
        1,
        "error[no-results]: `acme/gone` has no results",
        "lists the backends",
    );
    let job = failed.reproduce(&["--job", "gone"]);
    refused(
        job,
        1,
        "error[no-failure]",
        "there are: `upstream / test (3.11)`, `upstream / test (3.13)`",
    );
    let nowhere = ["reproduce", "7", "--backend", BACKEND, "--hud", "http://127.0.0.1:1"];
    refused(Crcr::new(&nowhere), 2, "error[hud-unavailable]", "");
    let insecure = ["reproduce", "7", "--backend", BACKEND, "--hud", "http://hud.example.org"];
    refused(Crcr::new(&insecure), 2, "error[hud-url]", "");
}

/// Replaces act by a program that shows what it was given.
fn with_fake_act(run: Crcr) -> Crcr {
    let bin = run.folder().join("bin");
    fs::create_dir(&bin).unwrap();
    let script = "#!/bin/sh\nfor a; do echo \"arg $a\"; done\ncat \"$3\"; echo\nenv | cut -d= -f1 \
                  | sort | sed 's/^/variable /'\nexit 3\n";
    fs::write(bin.join("act"), script).unwrap();
    fs::set_permissions(bin.join("act"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    run.env("PATH", &path)
}

fn write_workflow(run: &Crcr, name: &str) {
    let folder = run.folder().join(".github/workflows");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), "on: repository_dispatch\njobs: {}\n").unwrap();
}

#[tokio::test]
async fn act_runs_only_when_asked_with_the_recorded_event_and_without_secrets() {
    let failed = Failed::new().await;
    let run = with_fake_act(failed.reproduce(&[])).run().expect_code(0);
    assert!(!run.stdout.contains("arg "), "{}", run.report());

    let run = with_fake_act(failed.with_token(failed.reproduce(&["--act", "--", "-P", "npu=img"])))
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    let run = Crcr::run(run);
    assert_eq!(run.code, 1, "{}", run.report());
    assert!(
        run.stderr.contains("error[no-workflow]: there is no `.github/workflows/upstream.yml`")
    );

    // `--` ends the arguments of `crcr`, so they come first here.
    let upstream = ["--upstream", UPSTREAM, "--hud", failed.relay.url.as_str(), "--act"];
    let upstream = [&upstream[..], &["--any-commit"]].concat();
    let args = [&["reproduce", "7", "--backend", BACKEND], &upstream[..], &["--", "-P", "npu=img"]];
    let run = with_fake_act(failed.with_token(Crcr::new(&args.concat())));
    write_workflow(&run, "upstream.yml");
    let run = run.run().expect_code(1);
    let shown = "act 'repository_dispatch' '--eventpath' '";
    assert!(run.stderr.contains(shown), "the command is shown first: {}", run.report());
    for line in ["arg repository_dispatch", "arg --workflows", "arg -P", "arg npu=img"] {
        assert!(run.stdout.contains(&format!("{line}\n")), "{line}: {}", run.report());
    }
    let event = run.stdout.lines().find(|line| line.starts_with('{')).unwrap();
    let event: Value = serde_json::from_str(event).unwrap();
    let payload = &event["client_payload"]["payload"];
    assert_eq!(payload["pull_request"]["head"]["sha"], failed.head);
    assert_eq!(payload["repository"]["full_name"], UPSTREAM);
    for secret in ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY"] {
        assert!(!run.stdout.contains(&format!("variable {secret}")), "{}", run.report());
    }
}

#[tokio::test]
async fn act_runs_only_in_a_clone_at_the_commit_of_the_run() {
    let failed = Failed::new().await;
    let act = |args: &[&str]| {
        let run = with_fake_act(failed.with_token(failed.reproduce(&[&["--act"], args].concat())));
        write_workflow(&run, "upstream.yml");
        run
    };
    let ran = act(&[]).run().expect_code(1);
    assert!(ran.stderr.contains("error[no-clone]"), "{}", ran.report());
    let run = act(&[]);
    crate::act::git(run.folder(), &["init", "--quiet"]);
    crate::act::git(run.folder(), &["add", ".github"]);
    crate::act::git(run.folder(), &["commit", "--quiet", "--message", "downstream"]);
    let head = crate::checkout::git(run.folder(), &["rev-parse", "HEAD"]);
    let ran = run.run().expect_code(1);
    let commit = "c".repeat(40);
    let said = format!("error[other-commit]: this clone is at {head}, and the run was at {commit}");
    assert!(ran.stderr.contains(&said), "{}", ran.report());
    assert!(ran.stderr.contains(&format!("hint: `git checkout {commit}`")), "{}", ran.report());
    assert!(!ran.stdout.contains("arg repository_dispatch"), "{}", ran.report());
    let ran = act(&["--any-commit"]).run().expect_code(1);
    assert!(ran.stdout.contains("arg repository_dispatch"), "{}", ran.report());
    // Without a token nobody knows the commit.
    let run = with_fake_act(failed.reproduce(&["--act"]));
    write_workflow(&run, "upstream.yml");
    let ran = run.run().expect_code(1);
    assert!(ran.stderr.contains("it isn't known at which commit"), "{}", ran.report());
    assert!(ran.stdout.contains("arg repository_dispatch"), "{}", ran.report());
}

#[tokio::test]
async fn act_takes_the_webhook_as_github_sent_it_or_as_the_relay_archived_it() {
    let failed = Failed::new().await;
    let act = |file: &[u8]| {
        let run = with_fake_act(failed.reproduce(&["--act", "--event", "event"]));
        write_workflow(&run, "a.yml");
        fs::write(run.folder().join("event"), file).unwrap();
        run.run()
    };
    let webhook = r#"{"action":"opened","pull_request":{"number":7}}"#;
    let payload = |delivery: &str| {
        format!(
            r#"{{"action":"pull_request","client_payload":{{"event_type":"pull_request","delivery_id":"{delivery}","payload":{webhook}}}}}"#
        )
    };
    let ran = act(webhook.as_bytes()).expect_code(1);
    assert!(ran.stdout.contains(&payload("crcr-reproduce")), "{}", ran.report());
    let head = WebhookHead {
        event: "pull_request".to_owned(),
        delivery: "72d3162e".to_owned(),
        received_at: Timestamp::now(),
        headers: BTreeMap::new(),
    };
    let archived = ArchivedWebhook { head, body: webhook.as_bytes().to_vec().into() }.pack();
    let ran = act(&archived).expect_code(1);
    assert!(ran.stdout.contains(&payload("72d3162e")), "{}", ran.report());
    let ran = act(&archived[..20]).expect_code(1);
    assert!(ran.stderr.contains("error[event]: `event` can't be used"), "{}", ran.report());
}

#[tokio::test]
async fn act_takes_a_kept_event_and_asks_which_of_several_workflows() {
    let failed = Failed::new().await;
    let run = with_fake_act(failed.reproduce(&["--act", "--event", "event.json"]));
    write_workflow(&run, "a.yml");
    fs::write(run.folder().join("event.json"), r#"{"event_type": "push", "kept": 1}"#).unwrap();
    let ran = run.run().expect_code(1);
    let event = r#"{"action":"push","client_payload":{"event_type":"push","kept":1}}"#;
    assert!(ran.stdout.contains(event), "{}", ran.report());

    let run = with_fake_act(failed.reproduce(&["--act"]));
    write_workflow(&run, "a.yml");
    write_workflow(&run, "b.yml");
    let ran = run.run().expect_code(1);
    assert!(ran.stderr.contains("error[many-workflows]"), "{}", ran.report());
    let run = failed.reproduce(&["--act"]).env("PATH", "/nowhere");
    write_workflow(&run, "a.yml");
    assert!(run.run().expect_code(2).stderr.contains("error[no-act]"));
}

#[tokio::test]
#[ignore = "needs act"]
async fn real_act_runs_the_workflow_with_the_head_of_the_pull_request() {
    let failed = Failed::new().await;
    let run = failed.reproduce(&["--act", "--", "--platform", "ubuntu-latest=-self-hosted"]);
    let workflow = "on: repository_dispatch\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      \
        - env: {SHA: '${{ github.event.client_payload.payload.pull_request.head.sha }}'}\n        \
          run: echo \"head is $SHA\"\n";
    write_workflow(&run, "a.yml");
    fs::write(run.folder().join(".github/workflows/a.yml"), workflow).unwrap();
    crate::act::git(run.folder(), &["init", "--quiet"]);
    crate::act::git(run.folder(), &["add", ".github"]);
    crate::act::git(run.folder(), &["commit", "--quiet", "--message", "downstream"]);
    let ran = run.run().expect_code(0);
    assert!(ran.stdout.contains(&format!("head is {}", failed.head)), "{}", ran.report());
}
