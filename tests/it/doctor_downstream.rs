//! `crcr doctor downstream` against a stand-in for GitHub: each finding, and its absence.

use std::collections::BTreeMap;

use axum::routing::get;
use axum::{Json, Router};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::server::Bound;
use crcr_standin::traffic::Fault;
use crcr_standin::world::{Dispatch, Started};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::doctor::checks;
use crate::relay_process::Place;
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
    cache-mode: none
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

/// The same, with a title that says which dispatch started a run.
fn named_workflow() -> String {
    let name = "run-name: 'x (${{ github.event.client_payload.delivery_id }})'";
    format!("{name}\n{}", workflow())
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
fn file_of_what_a_backend_takes_has_no_effect_with_another_ending() {
    let github = github();
    let world = &github.state().world;
    world.put_file("acme/backend", ".github/crcr.yaml", "dispatch: {drafts: skip}\n");
    let told = "`.github/crcr.yaml` has no effect, as the relay reads `.github/crcr.yml`";
    assert_check(&doctor(&github, &[]).run(), "crcr-yml", "warning", told);
    world.put_file("acme/backend", ".github/crcr.yml", "dispatch: {drafts: skip}\n");
    assert_check(&doctor(&github, &[]).run(), "crcr-yml", "ok", "can be read");
    world.put_file("acme/backend", ".github/crcr.yml", "dispatch: {draft: skip}\n");
    assert_check(&doctor(&github, &[]).run(), "crcr-yml", "error", "1 error");
}

#[test]
fn correct_repository_has_no_findings_and_what_needs_the_app_is_not_checked() {
    let github = github();
    let ran = doctor(&github, &[]).run().expect_code(0);
    let expected = [
        ("app-installed", "not-checked"),
        ("app-permissions", "not-checked"),
        ("artifact-in-script", "ok"),
        ("artifact-name", "ok"),
        ("artifact-path", "ok"),
        ("artifact-to-environment", "ok"),
        ("cache-mode", "ok"),
        ("callback-variable", "info"),
        ("crcr-yml", "info"),
        ("dispatch", "not-checked"),
        ("event-as-code", "ok"),
        ("event-to-environment", "ok"),
        ("event-types", "ok"),
        ("fork-runner", "ok"),
        ("git-credentials", "ok"),
        ("id-token", "ok"),
        ("nightly", "ok"),
        ("output-in-script", "ok"),
        ("pinned", "ok"),
        ("relay-report", "not-checked"),
        ("reported-conclusion", "ok"),
        ("repository", "ok"),
        ("role-environment", "ok"),
        ("secret-exposed", "ok"),
        ("shared-runner", "ok"),
        ("token-exposed", "ok"),
        ("untrusted-expression", "ok"),
        ("workflow", "ok"),
        ("write-permission", "ok"),
    ];
    let expected = expected.map(|(check, status)| (check.to_owned(), status.to_owned()));
    assert_eq!(statuses(&ran), BTreeMap::from(expected));
    for (check, flag) in
        [("app-installed", ""), ("app-permissions", ""), ("dispatch", " --dispatch")]
    {
        assert_check(&ran, check, "not-checked", "needs the App's own credentials");
        let who = format!(
            "the upstream maintainer, who has them, runs `crcr doctor downstream acme/backend{flag}`"
        );
        assert_check(&ran, check, "not-checked", &who);
    }
    assert_check(&ran, "relay-report", "not-checked", "its operator knows the address");

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
        ("permissions: {}", "permissions: write-all", "write-permission", "error", "`test` in"),
        ("    cache-mode: none\n", "", "cache-mode", "error", "can write the cache"),
        ("make test", "make test ${{ secrets.KEY }}", "secret-exposed", "error", "gets a secret"),
        (&pinned, "checkout-pr@v1", "pinned", "error", "`pytorch/crcr/actions/checkout-pr@v1` in"),
        ("run: make test", expression, "untrusted-expression", "error", "`test` in `.github"),
        ("  schedule: [{cron: '7 3 * * *'}]\n", "", "nightly", "warning", "no scheduled workflow"),
    ] {
        assert!(workflow().contains(from), "{from}");
        world.put_file("acme/backend", FILE, workflow().replace(from, to));
        assert_check(&doctor(&github, &[]).run(), check, status, message);
    }
    // An action of the repository is read; one that isn't there leaves the question open.
    let local = workflow().replace("run: make test", "uses: ./.github/actions/test");
    world.put_file("acme/backend", FILE, local);
    assert_check(&doctor(&github, &[]).run(), "secret-exposed", "ok", "");
    let other = ".github/workflows/comment.yml";
    let comment = "on: issue_comment\njobs: {a: {runs-on: ubuntu-latest, steps: [{uses: ./say}]}}";
    world.put_file("acme/backend", other, comment);
    let ran = doctor(&github, &[]).run();
    assert_check(&ran, "untrusted-expression", "not-checked", "uses `./say`, which can't be read");
    let say = "runs: {using: composite, steps: [{run: 'echo ${{ github.event.comment.body }}'}]}";
    world.put_file("acme/backend", "say/action.yml", say);
    let ran = doctor(&github, &[]).run();
    assert_check(&ran, "untrusted-expression", "error", "`a` in `.github/workflows/comment.yml`");
    world.put_file("acme/backend", other, "on: [");
    assert_check(&doctor(&github, &[]).run(), "token-exposed", "not-checked", "isn't YAML");
    world.put_file("acme/backend", other, "on: push\njobs: {}");

    world.put_file("acme/backend", FILE, "on: push");
    let ran = doctor(&github, &[]).run();
    assert_check(&ran, "pinned", "not-checked", "there is no such workflow");
    let called = "on: repository_dispatch\njobs: {a: {uses: x/y/.github/workflows/z.yml@v1}}";
    world.put_file("acme/backend", FILE, called);
    assert_check(&doctor(&github, &[]).run(), "id-token", "not-checked", "may report");
}

#[test]
fn written_templates_have_no_findings() {
    let github = github();
    let world = &github.state().world;
    let pinned = |text: &str| text.replace("@v1\n", &format!("@{SHA} # v1\n"));
    let template = include_str!("../../workflows-templates/downstream-ci.yml");
    world.put_file("acme/backend", FILE, pinned(template));
    let ran = doctor(&github, &[]).run().expect_code(0);
    assert_check(&ran, "nightly", "warning", "no scheduled workflow");
    assert!(ran.stdout.contains("`crcr init downstream --nightly` writes one"), "{}", ran.report());
    let nightly_path = ".github/workflows/downstream-nightly.yml";
    let template = include_str!("../../workflows-templates/downstream-nightly.yml");
    world.put_file("acme/backend", nightly_path, pinned(template));
    let run = Run { workflow_path: nightly_path.to_owned(), ..nightly(20, "success") };
    github.state().runs.add(run);
    let ran = doctor(&github, &[]).run().expect_code(0);
    let found = statuses(&ran);
    let bad = |status: &&String| *status == "warning" || *status == "error";
    assert_eq!(found.values().find(bad), None, "{}", ran.report());
    assert_check(&ran, "callback-variable", "not-checked", "can't be seen with this token");
    assert_check(&ran, "nightly", "ok", "the newest scheduled run is of");
}

#[test]
fn scheduled_workflow_that_has_nothing_to_do_with_upstream_is_no_nightly() {
    let github = github();
    let world = &github.state().world;
    world.put_file(
        "acme/backend",
        FILE,
        workflow().replace("  schedule: [{cron: '7 3 * * *'}]\n", ""),
    );
    let stale = ".github/workflows/stale.yml";
    let scheduled =
        |job: &str| format!("on: {{schedule: [{{cron: '7 3 * * *'}}]}}\njobs: {{a: {job}}}");
    world.put_file("acme/backend", stale, scheduled("{steps: [{uses: actions/stale@v10}]}"));
    let run = Run { workflow_path: stale.to_owned(), ..nightly(1, "success") };
    github.state().runs.add(run);
    let ran = doctor(&github, &[]).run();
    assert_check(&ran, "nightly", "warning", "reports or checks out `pytorch/pytorch`");
    let other = "{uses: acme/shared/.github/workflows/nightly.yml@v1}";
    world.put_file("acme/backend", stale, scheduled(other));
    assert_check(&doctor(&github, &[]).run(), "nightly", "not-checked", "call others, which may");
    let upstream = "{steps: [{uses: actions/checkout@v6, with: {repository: pytorch/pytorch}}]}";
    world.put_file("acme/backend", stale, scheduled(upstream));
    assert_check(&doctor(&github, &[]).run(), "nightly", "ok", ": success");
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
fn nightly_run_is_found_behind_hundreds_of_runs_of_other_schedules() {
    let github = github();
    for id in 1000..1101 {
        let workflow_path = ".github/workflows/every-five-minutes.yml".to_owned();
        github.state().runs.add(Run { id, workflow_path, ..nightly(1, "failure") });
    }
    assert_check(&doctor(&github, &[]).run(), "nightly", "ok", ": success");
}

#[test]
fn nightly_that_was_just_written_counts_as_not_checked_until_its_first_night() {
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    world.add_repo("acme/backend");
    world.put_file("acme/backend", FILE, workflow());
    let since = |hours| Timestamp::now() - SignedDuration::from_hours(hours);
    for n in 0..100 {
        // GitHub lists 100 workflows on a page.
        world.put_workflow_since("acme/backend", &format!(".github/workflows/a{n}.yml"), since(72));
    }
    world.put_workflow_since("acme/backend", FILE, since(3));
    let ran = doctor(&github, &[]).run().expect_code(0);
    assert_check(&ran, "nightly", "not-checked", "wait for its first night");
    world.put_workflow_since("acme/backend", FILE, since(72));
    assert_check(&doctor(&github, &[]).run(), "nightly", "error", "no scheduled run has ended");
}

#[test]
fn callback_variable_is_looked_up_in_the_repository_and_its_organisation() {
    let github = github();
    let world = &github.state().world;
    let run = || doctor(&github, &[]).run();
    let reads = |text: String| {
        let step = format!("report-ci-result@{SHA}\n");
        let with = "        with: {callback-url: '${{ vars.CRCR_CALLBACK_URL }}'}\n";
        assert!(text.contains(&step));
        text.replace(&step, &format!("{step}{with}"))
    };
    world.put_file("acme/backend", FILE, reads(workflow()));
    assert_check(&run(), "callback-variable", "not-checked", "\"Variables: read\"");
    world.put_variables("acme/backend", &[("OTHER", "x")]);
    assert_check(&run(), "callback-variable", "error", "`.github/workflows/ci.yml` reports to");
    let dispatched = workflow().replace("  schedule: [{cron: '7 3 * * *'}]\n", "");
    world.put_file("acme/backend", FILE, reads(dispatched));
    assert_check(&run(), "callback-variable", "warning", "names its address in each dispatch");
    let url = "https://relay.example.org/github/callback";
    for n in 0..30 {
        // GitHub lists 30 variables on a page.
        world.put_organisation_variable("acme/backend", &format!("A_{n}"), "x");
    }
    world.put_organisation_variable("acme/backend", "CRCR_CALLBACK_URL", url);
    assert_check(&run(), "callback-variable", "ok", url);
    world.put_variables("acme/backend", &[("CRCR_CALLBACK_URL", "http://relay.example.org")]);
    assert_check(&run(), "callback-variable", "error", "the variable `CRCR_CALLBACK_URL`");
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
    assert!(!ran.stderr.contains("--github-token"), "it has no such flag: {}", ran.report());
}

/// Runs `doctor --dispatch`; `answer` makes the run that begins, from the delivery.
fn dispatch(
    workflow: &str,
    seconds: &str,
    answer: impl FnOnce(&str) -> Option<Run> + Send + 'static,
) -> Ran {
    let github = github();
    github.state().world.put_file("acme/backend", FILE, workflow);
    let mut started = github.state().world.listen();
    let state = std::sync::Arc::clone(github.state());
    let listener = std::thread::spawn(move || {
        let Some(Started::Dispatch(sent)) = started.blocking_recv() else { return None };
        answer(sent.client_payload["delivery_id"].as_str().unwrap()).map(|run| state.runs.add(run));
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
}

/// A run of a dispatch, with this title.
fn dispatched(title: &str, conclusion: &str) -> Run {
    let title = Some(title.to_owned());
    Run { event: "repository_dispatch".to_owned(), id: 4321, title, ..nightly(0, conclusion) }
}

#[test]
fn dispatch_is_answered_by_the_run_that_names_it() {
    let named = named_workflow();
    for (conclusion, status) in [("skipped", "ok"), ("failure", "warning")] {
        let ran = dispatch(&named, "60", move |delivery| {
            Some(dispatched(&format!("7 ({delivery})"), conclusion))
        });
        let message = format!("/runs/4321 answered: {conclusion}");
        assert_check(&ran, "dispatch", status, &message);
    }
    // A quarter of the seconds is for GitHub's last answer, which a busy machine may need.
    let ran = dispatch(&named, "4", |_| None);
    assert_check(&ran, "dispatch", "error", "no run began within 4 seconds");
    let ran = dispatch(&named, "4", |_| Some(dispatched("7 (72d3162e-cc78)", "skipped")));
    assert_check(&ran, "dispatch", "error", "of 1 runs that began within 4 seconds none names it");
}

#[test]
fn run_that_does_not_name_its_dispatch_may_have_another_cause() {
    let ran = dispatch(&workflow(), "60", |_| Some(dispatched("pull_request", "skipped")));
    assert_check(&ran, "dispatch", "warning", "/runs/4321 began, which may have had another cause");
    assert!(ran.stdout.contains("give the workflow a `run-name`"), "{}", ran.report());
    // GitHub shows the title of the workflow as it was when the run began.
    let ran = dispatch(&workflow(), "60", |delivery| {
        Some(dispatched(&format!("({delivery})"), "skipped"))
    });
    assert_check(&ran, "dispatch", "ok", "answered: skipped");
}

/// Runs `crcr report` as the job `dry dispatch` of the run that the dispatch started, and records how it
/// ended.
fn report_as_the_template_does(github: &StandIn, sent: &Dispatch) -> Ran {
    let state = github.state();
    let delivery = sent.client_payload["delivery_id"].as_str().unwrap();
    let run = Run {
        repository_id: state.world.add_repo("acme/backend"),
        head_repository: Some("acme/backend".to_owned()),
        status: "in_progress".to_owned(),
        ..dispatched(&format!("7 ({delivery})"), "")
    };
    let mut job = state.runs.add_job(state.runs.add(run.clone()), "dry dispatch");
    let event = json!({ "action": "pull_request", "client_payload": sent.client_payload });
    let args = ["report", "--status", "completed", "--conclusion", "success", "--max-time", "1"];
    let mut step = Crcr::step(&args, "repository_dispatch", &event);
    for (name, value) in state.job_environment(&job) {
        step = step.env(name, &value);
    }
    let ran = step.run();
    let conclusion = if ran.code == 0 { "success" } else { "failure" };
    job.conclusion = Some(conclusion.to_owned());
    state.runs.update_job(&job);
    let status = "completed".to_owned();
    state.runs.add(Run { status, conclusion: job.conclusion.clone(), ..run });
    ran
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_dispatch_is_answered_end_to_end_before_the_repository_is_on_the_allowlist() {
    const KEY: &str = "a key of callback tokens";
    for (allowlist, doctors_key, status) in [
        ("L1: []\n", KEY, "ok"),
        ("L4:\n  - acme/backend: [dave]\n", KEY, "ok"),
        ("L1: []\n", "another key of callback tokens", "error"),
        ("L4:\n  - acme/backend: [dave]\n", "another key of callback tokens", "error"),
    ] {
        let place = Place::new(&["acme/backend"], allowlist).set("CRCR_CALLBACK_KEY", KEY);
        let relay = place.serving().await;
        let github = &place.github;
        github.state().world.put_file("acme/backend", FILE, named_workflow());
        let mut started = github.state().world.listen();
        let run = with_app(github, doctor(github, &["--dispatch", "--timeout", "60"]))
            .env("CRCR_CALLBACK_KEY", doctors_key)
            .env("CRCR_PUBLIC_URL", relay.url.as_str());
        let doctor = tokio::task::spawn_blocking(move || run.run());
        let Some(Started::Dispatch(sent)) = started.recv().await else { panic!("no dispatch") };
        let reported = tokio::task::block_in_place(|| report_as_the_template_does(github, &sent));
        let ran = doctor.await.unwrap();
        github.state().world.take_dispatches();
        if status == "ok" {
            let message = "/runs/4321 answered: success, and the relay accepted its token and the";
            assert_check(&ran, "dispatch", "ok", message);
            assert_eq!(reported.outputs["outcome"], "verified", "{}", reported.report());
        } else {
            assert_check(&ran, "dispatch", "error", "which reports to the relay: failure");
            let said = "doesn't know the signature of this dry dispatch";
            assert!(reported.stderr.contains(said), "{}", reported.report());
        }
        let hud = relay.url.join("api/v1/repositories/acme/backend?window=7d").unwrap();
        let shown = reqwest::get(hud).await.unwrap().text().await.unwrap();
        assert!(!shown.contains("crcr-doctor-"), "nothing is recorded: {shown}");
    }
}

#[test]
fn signed_dispatch_without_a_job_that_reports_is_a_warning() {
    let github = github();
    github.state().world.put_file("acme/backend", FILE, named_workflow());
    let mut started = github.state().world.listen();
    let state = std::sync::Arc::clone(github.state());
    let listener = std::thread::spawn(move || {
        let Some(Started::Dispatch(sent)) = started.blocking_recv() else { panic!() };
        let delivery = sent.client_payload["delivery_id"].as_str().unwrap().to_owned();
        state.runs.add(dispatched(&delivery, "skipped"));
        sent
    });
    let ran = with_app(&github, doctor(&github, &["--dispatch"]))
        .env("GITHUB_APP_SECRET", "secret")
        .run();
    let sent = listener.join().unwrap();
    assert!(sent.client_payload["callback_token"].as_str().unwrap().starts_with("v1."));
    assert_check(&ran, "dispatch", "warning", "no job `dry dispatch` reported to the relay");
    github.state().world.take_dispatches();
}

#[test]
fn github_that_stops_answering_after_the_dispatch_is_given_up_when_the_timeout_ends() {
    let github = github();
    github.state().world.put_file("acme/backend", FILE, named_workflow());
    let mut started = github.state().world.listen();
    let state = std::sync::Arc::clone(github.state());
    let listener = std::thread::spawn(move || {
        let sent = started.blocking_recv();
        state.traffic.fail("runs", 1, Fault::Stall);
        sent
    });
    let began = std::time::Instant::now();
    let ran = with_app(&github, doctor(&github, &["--dispatch", "--timeout", "2"])).run();
    // Without the limit, a request that hangs takes a minute.
    assert!(began.elapsed().as_secs() < 30, "{}", ran.report());
    assert!(matches!(listener.join().unwrap(), Some(Started::Dispatch(_))));
    let message = "GitHub didn't answer for the rest of the 2 seconds: look at the runs of \
                `acme/backend`, or wait longer by `--timeout`";
    assert_check(&ran, "dispatch", "not-checked", message);
    github.state().world.take_dispatches();
}

#[test]
fn dispatch_without_credentials_or_permission_is_not_sent() {
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
