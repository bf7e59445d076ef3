//! `crcr doctor` on a machine and in a job, with a stand-in for GitHub on loopback.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use crcr_standin::StandIn;
use crcr_standin::server::Bound;
use crcr_standin::traffic::Fault;
use serde_json::{Value, json};

use crate::support::{Crcr, Ran};

const SECRET: &str = "wJalrXUtnFEMI-do-not-print";

/// A machine that lacks nothing, outside of a workflow.
fn doctor(github: &StandIn, args: &[&str]) -> Crcr {
    doctor_as("json", github, args)
}

fn doctor_as(format: &str, github: &StandIn, args: &[&str]) -> Crcr {
    Crcr::new(&[&["doctor", "--format", format], args].concat())
        .env("GITHUB_API_URL", github.state().origin())
        .env("GITHUB_TOKEN", &github.state().world.reader_token(true))
        .env("AWS_EC2_METADATA_DISABLED", "true")
}

/// The same machine as a step of a workflow that may request OIDC tokens.
fn job(github: &StandIn, event: &str, payload: &Value) -> Crcr {
    Crcr::step(&["doctor", "--format", "json"], event, payload)
        .env("GITHUB_API_URL", github.state().origin())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("ACTIONS_ID_TOKEN_REQUEST_URL", "https://example.org/?a=b")
        .env("ACTIONS_ID_TOKEN_REQUEST_TOKEN", SECRET)
        .env("ACTIONS_RUNTIME_TOKEN", SECRET)
        .env("ACTIONS_RESULTS_URL", "https://example.org/")
}

/// Status and message of each check.
pub(crate) fn checks(ran: &Ran) -> BTreeMap<String, (String, String)> {
    let document: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = document["checks"].as_array().unwrap().iter();
    all.map(|found| (text(&found["check"]), (text(&found["status"]), text(&found["message"]))))
        .collect()
}

fn assert_check(ran: &Ran, check: &str, status: &str, message: &str) {
    let found = &checks(ran)[check];
    assert_eq!(found.0, status, "{check}: {}", ran.report());
    assert!(found.1.contains(message), "{check}: no `{message}` in `{}`", found.1);
    assert_eq!(ran.code, i32::from(ran.stdout.contains("\"status\": \"error\"")));
}

/// How many warnings there are when nothing is wrong but, at most, the space on the disk of the machine that runs this.
fn warnings_of_the_disk(ran: &Ran) -> String {
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let all = document["checks"].as_array().unwrap().iter();
    let warned = |found: &&Value| found["check"] == "disk" && found["status"] == "warning";
    match all.filter(warned).count() {
        1 => "1 warning".to_owned(),
        count => format!("{count} warnings"),
    }
}

#[test]
fn machine_without_faults_exits_with_0_and_says_what_it_did_not_check() {
    let github = StandIn::start().unwrap();
    let ran = doctor(&github, &[]).run().expect_code(0);
    for (check, status, message) in [
        ("version", "info", "crcr "),
        ("git", "ok", "."),
        ("github-api", "ok", "answers"),
        ("github-token", "ok", "a person's classic token with the scopes read:org; 4999 of 5000"),
        ("clock", "ok", "within five seconds"),
        ("oidc", "info", "not a job of GitHub Actions"),
        ("artifact-service", "info", "no `ACTIONS_RUNTIME_TOKEN`"),
        ("aws-credentials", "info", "the default chain gives none"),
        ("proxy", "info", "no proxy"),
        ("tool-cache", "info", "outside of a runner"),
        ("relay", "not-checked", "no relay is named"),
        ("workflows", "not-checked", "no `.github/workflows` in `"),
    ] {
        assert_check(&ran, check, status, message);
    }
    let text = doctor_as("text", &github, &[]).run().expect_code(0).stdout;
    assert!(text.contains("\nok           clock: within five seconds of GitHub's\n"), "{text}");
    let sum = format!("\nthis machine: 0 errors, {}, 2 not checked\n", warnings_of_the_disk(&ran));
    assert!(text.ends_with(&sum), "{text}");
}

#[test]
fn job_writes_problems_as_annotations_and_all_checks_to_the_summary() {
    let github = StandIn::start().unwrap();
    let ran = job(&github, "push", &json!({})).env("AWS_ACCESS_KEY_ID", "").run().expect_code(1);
    assert_check(&ran, "oidc", "ok", "may request OIDC tokens");
    assert_check(&ran, "artifact-service", "ok", "artifact service");
    let annotation =
        "::error title=crcr[aws-credentials]::`AWS_ACCESS_KEY_ID` is defined but empty";
    assert!(ran.stderr.contains(annotation), "{}", ran.report());
    let title = format!("### this job: 1 error, {}, ", warnings_of_the_disk(&ran));
    assert!(ran.summary.starts_with(&title), "{}", ran.summary);
    assert!(ran.summary.contains("| ✅ ok | `oidc` |"), "{}", ran.summary);
    assert!(!ran.report().contains(SECRET), "{}", ran.report());
}

#[test]
fn missing_id_token_is_expected_on_a_fork_and_a_warning_elsewhere() {
    let github = StandIn::start().unwrap();
    let without = |payload: &Value, event: &str| {
        let job = job(&github, event, payload).without("ACTIONS_ID_TOKEN_REQUEST_URL");
        job.without("ACTIONS_ID_TOKEN_REQUEST_TOKEN").run()
    };
    let ran = without(&json!({}), "push").expect_code(0);
    assert_check(&ran, "oidc", "warning", "may not mint an OIDC token");
    assert!(ran.stdout.contains("add `permissions: id-token: write`"), "{}", ran.report());
    let fork = json!({ "pull_request": { "number": 7,
        "head": { "sha": "a", "repo": { "full_name": "contributor/upstream" } },
        "base": { "sha": "b", "repo": { "full_name": "acme/upstream" } } } });
    assert_check(&without(&fork, "pull_request"), "oidc", "info", "which is expected (fork)");
    let half = job(&github, "push", &json!({})).without("ACTIONS_ID_TOKEN_REQUEST_URL").run();
    assert_check(&half, "oidc", "error", "only one half");
    let half = job(&github, "push", &json!({})).without("ACTIONS_RESULTS_URL").run();
    assert_check(&half, "artifact-service", "error", "`ACTIONS_RUNTIME_TOKEN` is set and");
}

#[test]
fn missing_and_old_git_are_errors() {
    let github = StandIn::start().unwrap();
    let run = doctor(&github, &[]);
    let folder = run.folder().to_str().unwrap().to_owned();
    assert_check(&run.env("PATH", &folder).run(), "git", "error", "can't be run");
    let run = doctor(&github, &[]);
    let git = run.folder().join("git");
    fs::write(&git, "#!/bin/sh\necho git version 2.24.4\n").unwrap();
    fs::set_permissions(&git, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = run.folder().to_str().unwrap().to_owned();
    assert_check(&run.env("PATH", &folder).run(), "git", "error", "git 2.24.4 is older than 2.25");
}

#[test]
fn refused_token_broken_server_and_wrong_clock_are_told_apart() {
    let github = StandIn::start().unwrap();
    let ran = doctor(&github, &[]).env("GITHUB_TOKEN", "ghp_wrong").run();
    assert_check(&ran, "github-token", "error", "GitHub refuses the token");
    assert_check(&ran, "github-api", "ok", "answers");
    let ran = doctor(&github, &[]).without("GITHUB_TOKEN").run();
    assert_check(&ran, "github-token", "info", "isn't set");
    let scopeless = github.state().world.reader_token(false);
    let ran = doctor(&github, &[]).env("GITHUB_TOKEN", &scopeless).run();
    assert_check(&ran, "github-token", "ok", "without scopes");

    github.state().world.fail("GET /rate_limit", 1, Fault::status(503));
    let ran = doctor(&github, &[]).run();
    assert_check(&ran, "github-api", "error", "answers with 503");
    assert_check(&ran, "github-token", "not-checked", "503");
    let ran = doctor(&github, &[]).env("GITHUB_API_URL", "http://127.0.0.1:1").run();
    assert_check(&ran, "github-api", "error", "can't be reached");
    assert_check(&ran, "clock", "not-checked", "");

    for (seconds, status) in [(30, "warning"), (270, "error"), (900, "error")] {
        github.state().clock.advance(Duration::from_secs(seconds));
        let ran = doctor(&github, &[]).run();
        assert_check(&ran, "clock", status, "seconds behind GitHub's");
        assert!(ran.stdout.contains("by NTP"), "{}", ran.report());
    }
}

#[test]
fn aws_credentials_are_found_and_never_printed() {
    let github = StandIn::start().unwrap();
    let keys = |run: Crcr| {
        run.env("AWS_ACCESS_KEY_ID", "AKIADONOTPRINT").env("AWS_SECRET_ACCESS_KEY", SECRET)
    };
    let ran = keys(doctor(&github, &[])).run().expect_code(0);
    assert_check(&ran, "aws-credentials", "ok", "environment variables (`AWS_ACCESS_KEY_ID`)");
    let shown = ran.report();
    assert!(!shown.contains(SECRET) && !shown.contains("AKIADONOTPRINT"), "{shown}");
    let ran = doctor(&github, &[]).env("AWS_PROFILE", "ci").run();
    assert_check(&ran, "aws-credentials", "error", "configured: profile (`AWS_PROFILE`)");
    let run = doctor(&github, &[]);
    let file = run.folder().join("credentials");
    let text = format!("[default]\naws_access_key_id = A\naws_secret_access_key = {SECRET}\n");
    fs::write(&file, text).unwrap();
    let ran = run.env("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap()).run();
    assert_check(&ran, "aws-credentials", "ok", "configured: the shared files");
    assert!(!ran.report().contains(SECRET));
    let ran = doctor(&github, &[]).env("AWS_SECRET_ACCESS_KEY", "").run();
    assert_check(&ran, "aws-credentials", "error", "sccache refuses to start");
}

#[test]
fn proxies_are_named_without_their_passwords() {
    let github = StandIn::start().unwrap();
    let ran = doctor(&github, &[])
        .env("HTTPS_PROXY", "http://user:hunter2@proxy.example.org:3128")
        .env("NO_PROXY", "127.0.0.1")
        .run()
        .expect_code(0);
    assert_check(&ran, "proxy", "info", "`HTTPS_PROXY` is proxy.example.org:3128");
    assert!(!ran.report().contains("hunter2"), "{}", ran.report());
    let ran = doctor(&github, &[]).env("HTTPS_PROXY", "http://:bad").run();
    assert_check(&ran, "proxy", "error", "`HTTPS_PROXY` isn't an address");
    let ran = doctor(&github, &[]).env("HTTPS_PROXY", "http://a").env("https_proxy", "http://b");
    assert_check(&ran.run(), "proxy", "warning", "`HTTPS_PROXY` and `https_proxy` differ");
}

#[test]
fn tool_cache_must_be_writable() {
    let github = StandIn::start().unwrap();
    let run = doctor(&github, &[]);
    let folder = run.folder().to_str().unwrap().to_owned();
    let ran = run.env("RUNNER_TOOL_CACHE", &folder).run().expect_code(0);
    assert_check(&ran, "tool-cache", "ok", "can be written");
    let ran = doctor(&github, &[]).env("RUNNER_TOOL_CACHE", "/dev/null/cache").run();
    assert_check(&ran, "tool-cache", "warning", "can't be written");
}

#[test]
fn relay_is_asked_for_its_health() {
    let github = StandIn::start().unwrap();
    let status = |code: u16| {
        let code = StatusCode::from_u16(code).unwrap();
        let router = Router::new().route("/healthz", get(move || std::future::ready(code)));
        Bound::loopback().unwrap().serve(router).unwrap()
    };
    let relay = status(200);
    // Callbacks have a path of their own on the same host.
    let callback = format!("{}github/callback", relay.url());
    let ran = doctor(&github, &[]).env("CRCR_CALLBACK_URL", &callback).run().expect_code(0);
    assert_check(&ran, "relay", "ok", "is healthy");
    for (code, found, message) in [(404, "ok", "tells nothing"), (503, "error", "answers with 503")]
    {
        let relay = status(code);
        let ran = doctor(&github, &["--relay", relay.url().as_str()]).run();
        assert_check(&ran, "relay", found, message);
    }
    let ran = doctor(&github, &["--relay", "http://127.0.0.1:1"]).run();
    assert_check(&ran, "relay", "error", "can't be reached");
    let ran = doctor(&github, &["--relay", "http://relay.example.org"]).run();
    assert_check(&ran, "relay", "error", "the relay's address");
}

/// The checkout of a downstream repository, with its workflow.
#[test]
fn workflows_of_the_checkout_are_looked_at_and_each_escape_is_named() {
    let github = StandIn::start().unwrap();
    let template = include_str!("../../workflows-templates/downstream-ci.yml");
    let checkout = tempfile::tempdir().unwrap();
    crate::checkout::git(checkout.path(), &["init", "-q"]);
    let folder = checkout.path().join(".github/workflows");
    fs::create_dir_all(&folder).unwrap();
    let run = |text: &str| {
        fs::write(folder.join("ci.yml"), text).unwrap();
        doctor(&github, &[]).dir(checkout.path()).run()
    };
    assert_check(&run(template), "workflows", "ok", "1 workflow of this checkout");
    let read = "contents: read # and nothing else, ever: this job runs a stranger's code";
    let conclusion = "${{ needs.test.result }}";
    let report = "      - name: Report the end\n";
    let step = |line: &str| format!("      - {line}\n{report}");
    for (check, status, from, to) in [
        ("cache-mode", "error", "    cache-mode: none\n", String::new()),
        ("token-exposed", "error", read, "id-token: write".to_owned()),
        ("write-permission", "error", read, "contents: write".to_owned()),
        (
            "secret-exposed",
            "error",
            "        id: build\n",
            "        env: {K: \"${{ secrets.K }}\"}\n".to_owned(),
        ),
        (
            "git-credentials",
            "error",
            "      - name: Build\n",
            "      - uses: actions/checkout@v7\n      - name: Build\n".to_owned(),
        ),
        (
            "role-environment",
            "error",
            report,
            step("uses: aws-actions/configure-aws-credentials@v6"),
        ),
        (
            "shared-runner",
            "error",
            "runs-on: ubuntu-latest",
            "runs-on: [self-hosted, npu]".to_owned(),
        ),
        (
            "artifact-name",
            "warning",
            "          name: test-reports-${{ matrix.python }}\n          path: test-reports\n",
            "          path: test-reports\n".to_owned(),
        ),
        (
            "artifact-path",
            "warning",
            "          path: test-reports\n",
            "          path: ${{ runner.temp }}\n".to_owned(),
        ),
        ("artifact-to-environment", "error", report, step("run: cat x >> \"$GITHUB_ENV\"")),
        ("artifact-in-script", "error", report, step("run: cat test-reports/log.txt")),
        ("output-in-script", "error", report, step("run: echo ${{ needs.test.outputs.title }}")),
        (
            "untrusted-expression",
            "error",
            report,
            step("run: echo ${{ github.event.client_payload.payload.pull_request.title }}"),
        ),
        (
            "reported-conclusion",
            "warning",
            conclusion,
            "${{ needs.test.outputs.conclusion }}".to_owned(),
        ),
    ] {
        assert!(template.contains(from), "{check}: {from}");
        let ran = run(&template.replace(from, &to));
        assert_check(&ran, check, status, "`.github/workflows/ci.yml`");
    }
    let broken = "on: pull_request_target\njobs: {a: {steps: [\n";
    assert_check(&run(broken), "workflows", "not-checked", "`.github/workflows/ci.yml` isn't YAML");
    fs::write(folder.join("ci.yml"), [0xff, 0xfe]).unwrap();
    let ran = doctor(&github, &[]).dir(checkout.path()).run();
    assert_check(&ran, "workflows", "not-checked", "`.github/workflows/ci.yml`:");
    let local = "on: issues\njobs: {a: {runs-on: ubuntu-latest, steps: [{uses: ./say}]}}";
    assert_check(&run(local), "workflows", "not-checked", "uses `./say`, which can't be read");
    fs::create_dir(checkout.path().join("say")).unwrap();
    let say = "runs: {using: composite, steps: [{run: 'echo ${{ github.event.issue.title }}'}]}";
    fs::write(checkout.path().join("say/action.yaml"), say).unwrap();
    assert_check(&run(local), "untrusted-expression", "error", "`a` in `.github/workflows/ci.yml`");
    // As some editors of Windows save it, and as an archive of the repository has it.
    let with_mark = format!("\u{feff}{template}");
    assert_check(&run(&with_mark), "workflows", "ok", "1 workflow of this checkout");
    fs::remove_dir_all(checkout.path().join(".git")).unwrap();
    assert_check(&run(local), "untrusted-expression", "error", "`a` in `.github/workflows/ci.yml`");
}
