//! `crcr doctor downstream` against a stand-in for GitHub: each finding, and its absence.

use std::collections::BTreeMap;

use axum::routing::get;
use axum::{Json, Router};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::server::Bound;
use crcr_standin::traffic::Fault;
use crcr_standin::world::Started;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::doctor::checks;
use crate::support::{Crcr, Ran};

const FILE: &str = ".github/workflows/ci.yml";
const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

/// A workflow in which nothing is wrong.
fn workflow() -> String {
    format!(
        "on:
  repository_dispatch: {{types: [pull_request, push]}}
  schedule: [{{cron: '7 3 * * *'}}]
permissions: {{}}
jobs:
  test:
    steps:
      - uses: pytorch/crcr/actions/checkout-pr@{SHA}
      - run: make test
  end:
    permissions: {{id-token: write}}
    steps:
      - uses: pytorch/crcr/actions/report-ci-result@{SHA}
"
    )
}

/// A GitHub with a downstream repository that lacks nothing.
fn github() -> StandIn {
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    world.add_repo("acme/backend");
    world.put_file("acme/backend", FILE, workflow());
    world.install("acme/backend");
    github.state().runs.add(nightly(20, "success"));
    github
}

fn nightly(hours_ago: i64, conclusion: &str) -> Run {
    Run {
        id: 77,
        repository: "acme/backend".to_owned(),
        event: "schedule".to_owned(),
        workflow_path: FILE.to_owned(),
        status: "completed".to_owned(),
        conclusion: Some(conclusion.to_owned()),
        created_at: Timestamp::now() - SignedDuration::from_hours(hours_ago),
        ..Run::push()
    }
}

fn doctor(github: &StandIn, args: &[&str]) -> Crcr {
    doctor_as("json", github, args)
}

fn doctor_as(format: &str, github: &StandIn, args: &[&str]) -> Crcr {
    let all = [&["doctor", "downstream", "acme/backend", "--format", format], args].concat();
    Crcr::new(&all)
        .env("GITHUB_API_URL", github.state().origin())
        .env("GITHUB_TOKEN", &github.state().world.reader_token(false))
}

fn with_app(github: &StandIn, run: Crcr) -> Crcr {
    let app = github.state().world.app();
    run.env("GITHUB_APP_ID", &app.id).env("GITHUB_APP_PRIVATE_KEY", &app.private_key)
}

/// The status of each check.
fn statuses(ran: &Ran) -> BTreeMap<String, String> {
    checks(ran).into_iter().map(|(check, (status, _))| (check, status)).collect()
}

#[track_caller]
fn assert_check(ran: &Ran, check: &str, status: &str, message: &str) {
    let found = &checks(ran)[check];
    assert_eq!(found.0, status, "{check}: {}", ran.report());
    assert!(found.1.contains(message), "{check}: no `{message}` in `{}`", found.1);
    let errors = statuses(ran).values().any(|status| status == "error");
    assert_eq!(ran.code, i32::from(errors), "{}", ran.report());
}

#[test]
fn correct_repository_has_no_findings_and_what_needs_the_app_is_not_checked() {
    let github = github();
    let ran = doctor(&github, &[]).run().expect_code(0);
    let expected = [
        ("app-installed", "not-checked"),
        ("app-permissions", "not-checked"),
        ("dispatch", "not-checked"),
        ("event-types", "ok"),
        ("id-token", "ok"),
        ("nightly", "ok"),
        ("pinned", "ok"),
        ("relay-report", "not-checked"),
        ("repository", "ok"),
        ("token-exposed", "ok"),
        ("untrusted-expression", "ok"),
        ("workflow", "ok"),
    ];
    let expected = expected.map(|(check, status)| (check.to_owned(), status.to_owned()));
    assert_eq!(statuses(&ran), BTreeMap::from(expected));
    assert_check(&ran, "app-installed", "not-checked", "needs the App's own credentials");

    let ran = with_app(&github, doctor(&github, &[])).run().expect_code(0);
    assert_check(&ran, "app-installed", "ok", "is installed");
    assert_check(&ran, "app-permissions", "ok", "`contents: write` and `actions: write`");
    assert!(!ran.report().contains("PRIVATE KEY"), "{}", ran.report());
}

#[test]
fn report_for_a_pull_request_is_markdown_with_every_check() {
    let github = github();
    let app = with_app(&github, doctor_as("markdown", &github, &[]));
    let ran = app.run().expect_code(0);
    let date = regex::Regex::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ").unwrap();
    insta::assert_snapshot!(date.replace_all(&ran.stdout, "[TIME]"));
}

#[test]
fn missing_archived_and_renamed_repositories_are_found() {
    let github = github();
    let world = &github.state().world;
    world.archive_repo("acme/backend");
    assert_check(&doctor(&github, &[]).run(), "repository", "error", "is archived");
    world.rename_repo("acme/backend", "acme/renamed");
    let ran = doctor(&github, &[]).run();
    assert_check(&ran, "repository", "error", "`acme/renamed` is archived");
    world.delete_repo("acme/renamed");
    let ran = doctor(&github, &[]).run().expect_code(1);
    assert_eq!(statuses(&ran).len(), 1, "{}", ran.report());
    assert_check(&ran, "repository", "error", "GitHub has no repository `acme/backend`");
}

#[test]
fn installation_that_is_missing_suspended_or_lacks_permissions_is_found() {
    let github = github();
    let world = &github.state().world;
    let run = || with_app(&github, doctor(&github, &[])).run();
    world.install_with("acme/backend", &[("contents", "write"), ("metadata", "read")]);
    assert_check(&run(), "app-permissions", "warning", "lacks `actions: write`");
    world.install_with("acme/backend", &[("contents", "read"), ("actions", "write")]);
    assert_check(&run(), "app-permissions", "error", "lacks `contents: write`");
    world.suspend("acme/backend", Some(Timestamp::now()));
    assert_check(&run(), "app-installed", "error", "is suspended since");
    world.uninstall("acme/backend");
    let ran = run();
    assert_check(&ran, "app-installed", "error", "isn't installed on `acme/backend`");
    assert_check(&ran, "app-permissions", "not-checked", "isn't installed");
}

#[test]
fn each_fault_of_the_workflow_is_found() {
    let github = github();
    let world = &github.state().world;
    let expression = "run: 'echo ${{ github.event.client_payload.payload.pull_request.title }}'";
    let pinned = format!("checkout-pr@{SHA}");
    for (from, to, check, status, message) in [
        ("repository_dispatch", "push", "workflow", "error", "no workflow on the default branch"),
        ("[pull_request, push]", "[push]", "event-types", "error", "`pull_request` isn't"),
        ("[pull_request, push]", "pull_request", "event-types", "warning", "`push` isn't"),
        ("{types: [pull_request, push]}", "", "event-types", "ok", "are listened for"),
        ("id-token: write", "contents: read", "id-token", "error", "`end` in `.github/workflows"),
        ("report-ci-result", "x", "id-token", "warning", "no job reports"),
        ("permissions: {}", "permissions: write-all", "token-exposed", "error", "any pull request"),
        (&pinned, "checkout-pr@v1", "pinned", "error", "`pytorch/crcr/actions/checkout-pr@v1` in"),
        ("run: make test", expression, "untrusted-expression", "error", "`test` in `.github"),
        ("  schedule: [{cron: '7 3 * * *'}]\n", "", "nightly", "warning", "runs on a schedule"),
    ] {
        assert!(workflow().contains(from), "{from}");
        world.put_file("acme/backend", FILE, workflow().replace(from, to));
        assert_check(&doctor(&github, &[]).run(), check, status, message);
    }
    world.put_file("acme/backend", FILE, "on: push");
    let ran = doctor(&github, &[]).run();
    assert_check(&ran, "pinned", "not-checked", "there is no such workflow");
    let called = "on: repository_dispatch\njobs: {a: {uses: x/y/.github/workflows/z.yml@v1}}";
    world.put_file("acme/backend", FILE, called);
    assert_check(&doctor(&github, &[]).run(), "id-token", "not-checked", "may report");
}

#[test]
fn written_template_has_no_findings_but_the_missing_nightly_run() {
    let github = github();
    let text = include_str!("../../workflows-templates/downstream-ci.yml");
    let pinned = text.replace("@v1\n", &format!("@{SHA} # v1\n"));
    github.state().world.put_file("acme/backend", FILE, pinned);
    let ran = doctor(&github, &[]).run().expect_code(0);
    let found = statuses(&ran);
    let warned: Vec<_> = found.iter().filter(|(_, status)| *status == "warning").collect();
    assert_eq!(warned, [(&"nightly".to_owned(), &"warning".to_owned())], "{}", ran.report());
}

#[test]
fn nightly_run_must_be_fresh_and_pass() {
    for (run, status, message) in [
        (Some(nightly(72, "success")), "error", ": success"),
        (Some(nightly(20, "failure")), "warning", ": failure"),
        (
            Some(Run { workflow_path: "other.yml".to_owned(), ..nightly(1, "success") }),
            "error",
            "no scheduled run",
        ),
        (
            Some(Run { status: "in_progress".to_owned(), ..nightly(1, "success") }),
            "error",
            "no scheduled run",
        ),
        (None, "error", "no scheduled run has ended"),
    ] {
        let github = StandIn::start().unwrap();
        github.state().world.add_repo("acme/backend");
        github.state().world.put_file("acme/backend", FILE, workflow());
        run.map(|run| github.state().runs.add(run));
        assert_check(&doctor(&github, &[]).run(), "nightly", status, message);
    }
}

#[test]
fn github_outage_is_exit_2_without_a_report() {
    for route in ["GET /repos/acme/backend", "GET /repos/acme/backend/contents*"] {
        let github = github();
        github.state().world.fail(route, 9, Fault::status(500));
        let ran = doctor(&github, &[]).run().expect_code(2);
        assert!(ran.stdout.is_empty(), "{}", ran.report());
        assert!(ran.stderr.contains("error[github-unavailable]"), "{}", ran.report());
    }
    let ran = doctor(&github(), &[]).without("GITHUB_TOKEN").run().expect_code(2);
    assert!(ran.stderr.contains("error[no-github-token]"), "{}", ran.report());
}

#[test]
fn dispatch_is_answered_by_a_run_or_reported_as_unanswered() {
    let dispatch = |answer: Option<&'static str>, seconds: &str| {
        let github = github();
        let mut started = github.state().world.listen();
        let state = std::sync::Arc::clone(github.state());
        let listener = std::thread::spawn(move || {
            let Some(Started::Dispatch(sent)) = started.blocking_recv() else { return None };
            let run = Run {
                event: "repository_dispatch".to_owned(),
                id: 4321,
                ..nightly(0, answer.unwrap_or_default())
            };
            answer.map(|_| state.runs.add(run));
            Some(sent)
        });
        let args = ["--dispatch", "--timeout", seconds];
        let ran = with_app(&github, doctor(&github, &args)).run();
        // What the relay would send, so that no job runs: the pull request is closed.
        let sent = listener.join().unwrap().unwrap();
        assert_eq!((&*sent.repository, &*sent.event_type), ("acme/backend", "pull_request"));
        assert_eq!(sent.client_payload["payload"]["action"], "closed");
        github.state().world.take_dispatches();
        ran
    };
    assert_check(
        &dispatch(Some("skipped"), "60"),
        "dispatch",
        "ok",
        "/runs/4321 answered: skipped",
    );
    assert_check(&dispatch(Some("failure"), "60"), "dispatch", "warning", "answered: failure");
    assert_check(&dispatch(None, "1"), "dispatch", "error", "no run began within 1 seconds");

    let github = github();
    let ran = doctor(&github, &["--dispatch"]).run();
    assert_check(&ran, "dispatch", "not-checked", "needs the App's own credentials");
    github.state().world.install_with("acme/backend", &[("contents", "read"), ("actions", "read")]);
    let ran = with_app(&github, doctor(&github, &["--dispatch"])).run();
    assert_check(&ran, "dispatch", "error", "GitHub refused the dispatch");
    assert!(github.state().world.take_dispatches().is_empty());
}

#[test]
fn relay_that_accepted_a_report_is_evidence_and_an_unreachable_one_is_not() {
    let github = github();
    let ask = |newest: Option<i64>| {
        let newest = newest.map(|hours| Timestamp::now() - SignedDuration::from_hours(hours));
        let answer = Json(json!({ "repo": "acme/backend", "newest": newest }));
        let path = "/api/v1/repositories/acme/backend";
        let router = Router::new().route(path, get(move || std::future::ready(answer.clone())));
        let hud = Bound::loopback().unwrap().serve(router).unwrap();
        doctor(&github, &["--hud", hud.url().as_str()]).run()
    };
    assert_check(&ask(Some(30)), "relay-report", "ok", "the relay accepted a report at");
    assert_check(&ask(Some(300)), "relay-report", "error", "the newest report");
    assert_check(&ask(None), "relay-report", "error", "no report in seven days");
    let ran = doctor(&github, &["--hud", "https://127.0.0.1:1"]).run();
    assert_check(&ran, "relay-report", "not-checked", "can't be asked");
}
