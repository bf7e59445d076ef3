//! `crcr allowlist … --online` against a stand-in for GitHub on loopback.

use std::fs;
use std::path::Path;

use axum::http::StatusCode;
use crcr_standin::StandIn;
use crcr_standin::traffic::Fault;
use crcr_standin::world::{PullRequest, World};
use serde_json::{Value, json};

use crate::support::{Crcr, Ran};

const DISPATCHED: &str = "on: {repository_dispatch: {types: [pull_request]}}\n\
    jobs: {a: {steps: [{run: make}]}}\n";
const REPORTING: &str = "on: repository_dispatch\n\
    jobs: {a: {steps: [{uses: pytorch/crcr/actions/report-ci-result@v1}]}}\n";

/// A GitHub on which `LIST` is right.
fn github() -> StandIn {
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    world.add_repo("up/stream");
    world.add_label("up/stream", "ciflow/crcr/npu");
    for (name, workflow) in
        [("acme/one", DISPATCHED), ("acme/two", REPORTING), ("acme/three", REPORTING)]
    {
        world.add_repo(name);
        world.put_file(name, ".github/workflows/ci.yml", workflow);
    }
    world.add_user("alice");
    world.add_team("acme", "ci");
    github
}

const LIST: &str =
    "L1: [acme/one]\nL2: [acme/two]\nL3:\n  npu:\n    acme/three: [alice, acme/ci]\n";

fn crcr(github: &StandIn, home: &Path, args: &[&str], list: &str) -> Crcr {
    let args = [&["allowlist"], args, &["--online", "--upstream", "up/stream", "a.yml"]].concat();
    let run = Crcr::new(&args);
    fs::write(run.folder().join("a.yml"), list).unwrap();
    run.env("GITHUB_API_URL", github.state().origin())
        .env("GITHUB_TOKEN", &github.state().world.reader_token(true))
        .env("XDG_CACHE_HOME", home.to_str().unwrap())
}

fn validate(github: &StandIn, list: &str) -> Ran {
    let home = tempfile::tempdir().unwrap();
    crcr(github, home.path(), &["validate", "--format", "json"], list).run()
}

/// `rule line:column` of each finding.
fn rules(ran: &Ran) -> Vec<String> {
    let document: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()));
    let found = document["diagnostics"].as_array().unwrap();
    let rule = |found: &Value| {
        format!("{} {}:{}", found["rule"].as_str().unwrap(), found["line"], found["column"])
    };
    found.iter().map(rule).collect()
}

fn refused(ran: &Ran, code: &str) {
    assert_eq!(ran.code, 2, "{}", ran.report());
    assert!(ran.stdout.is_empty() && ran.stderr.contains(code), "{}", ran.report());
}

#[test]
fn correct_file_has_no_findings_and_lists_unchecked_rules() {
    let ran = validate(&github(), LIST).expect_code(0);
    assert_eq!(rules(&ran), [""; 0]);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let told = document["not_checked"].as_array().unwrap();
    assert_eq!(told.len(), 2, "{}", ran.report());
    assert!(told[0].as_str().unwrap().starts_with("`app-not-installed` wasn't checked: it needs"));
    assert!(ran.stderr.contains("`app-permission-missing` wasn't checked"), "{}", ran.report());
}

#[test]
fn downstream_that_exposes_a_token_to_upstream_code_gets_a_warning() {
    let github = github();
    let exposed = "on: repository_dispatch\npermissions: {id-token: write}\njobs: {a: {steps: [\
                   {uses: pytorch/crcr/actions/checkout-pr@v1}, \
                   {uses: pytorch/crcr/actions/report-ci-result@v1}]}}\n";
    github.state().world.put_file("acme/two", ".github/workflows/ci.yml", exposed);
    let ran = validate(&github, LIST).expect_code(0);
    assert_eq!(rules(&ran), ["token-exposed 2:6"]);
    assert!(
        ran.stdout.contains("any pull request can get tokens of this repository's default branch")
    );
    // Other workflows count, too, also those that are read after one that reports.
    let world = &github.state().world;
    world.put_file("acme/two", ".github/workflows/ci.yml", REPORTING);
    let target = "on: pull_request_target\npermissions: {contents: write}\njobs: {a: {runs-on: \
                  ubuntu-latest, steps: [{run: 'gh pr checkout 7'}]}}\n";
    world.put_file("acme/two", ".github/workflows/z.yml", target);
    let ran = validate(&github, LIST).expect_code(0);
    assert_eq!(rules(&ran), ["token-exposed 2:6"]);
    assert!(ran.stdout.contains("a token that may write"), "{}", ran.report());
    world.put_file("acme/two", ".github/workflows/z.yml", "on: [");
    let ran = validate(&github, LIST).expect_code(0);
    assert_eq!(rules(&ran), [""; 0]);
    let told = "`token-exposed` wasn't checked: `acme/two`, not understood: \
                `.github/workflows/z.yml` isn't YAML";
    assert!(ran.stderr.contains(told), "{}", ran.report());
}

/// GitHub's larger runners have names of their own.
#[test]
fn downstream_whose_jobs_share_runners_that_take_one_job_each_exposes_no_token() {
    let (github, home) = (github(), tempfile::tempdir().unwrap());
    let shared = "on: repository_dispatch\npermissions: {}\njobs: {a: {runs-on: acme-16-core, steps: [\
                  {uses: pytorch/crcr/actions/checkout-pr@v1}]}, b: {needs: a, runs-on: acme-16-core, \
                  permissions: {id-token: write}, steps: [\
                  {uses: pytorch/crcr/actions/report-ci-result@v1}]}}\n";
    github.state().world.put_file("acme/two", ".github/workflows/ci.yml", shared);
    let ran = validate(&github, LIST).expect_code(0);
    assert_eq!(rules(&ran), ["token-exposed 2:6"]);
    let args = ["validate", "--format", "json", "--ephemeral", "Acme-16-core"];
    let ran = crcr(&github, home.path(), &args, LIST).run().expect_code(0);
    assert_eq!(rules(&ran), [""; 0], "{}", ran.report());
    let of_action = crcr(&github, home.path(), &["validate", "--format", "json"], LIST);
    let ran = of_action.env("INPUT_EPHEMERAL", "other\nacme-16-core").run().expect_code(0);
    assert_eq!(rules(&ran), [""; 0], "{}", ran.report());
}

#[test]
fn all_names_are_checked_on_github() {
    let github = github();
    let world = &github.state().world;
    world.archive_repo("acme/two");
    world.rename_repo("acme/three", "acme/third");
    let list = "L1:\n  - acme/gone\n  - Acme/One\nL2:\n  - acme/two\nL3:\n  npu:\n    \
                acme/three: [alice, bob, acme/no]\n  gpu:\n    acme/four: [nobody/team]\n";
    world.add_repo("acme/four");
    world.put_file("acme/four", ".github/workflows/ci.yml", DISPATCHED);
    let ran = validate(&github, list).expect_code(1);
    assert_eq!(
        rules(&ran),
        [
            "repository-not-found 2:5",
            "repository-case 3:5",
            "repository-archived 5:5",
            "repository-renamed 8:5",
            "oncall-not-found 8:25",
            "oncall-not-found 8:30",
            "label-missing 9:3",
            "workflow-missing 10:5",
            "oncall-not-found 10:17",
        ],
        "{}",
        ran.report()
    );
}

#[test]
fn fix_online_writes_the_names_of_github() {
    let github = github();
    let world = &github.state().world;
    world.rename_repo("acme/three", "acme/third");
    world.rename_repo("acme/two", "acme/one-more");
    world.add_repo("acme/one-more");
    let list = "L1: # c\n  - \"Acme/one\"\n  - acme/gone\n  - acme/three # old\n";
    let home = tempfile::tempdir().unwrap();
    let ran = crcr(&github, home.path(), &["fix"], list).run().expect_code(0);
    let fixed = fs::read_to_string(ran.path("a.yml")).unwrap();
    assert_eq!(fixed, "L1: # c\n  - \"acme/one\"\n  - acme/gone\n  - acme/third # old\n");
    let both = "L1: [acme/three, acme/third]\n";
    let ran = crcr(&github, home.path(), &["fix"], both).run().expect_code(0);
    assert_eq!(fs::read_to_string(ran.path("a.yml")).unwrap(), both, "listed twice otherwise");
}

#[test]
fn fix_online_lists_names_it_could_not_check() {
    let github = github();
    let body = json!({ "message": "Resource not accessible by integration" }).to_string();
    let refused = Fault::Answer { status: StatusCode::FORBIDDEN, retry_after: None, body };
    github.state().world.fail("GET /repos/acme/two", 9, refused);
    let home = tempfile::tempdir().unwrap();
    let ran = crcr(&github, home.path(), &["fix"], LIST).run().expect_code(0);
    for rule in ["repository-not-found", "repository-renamed", "repository-case"] {
        let told = format!("`{rule}` wasn't checked: `acme/two` isn't accessible");
        assert!(ran.stderr.contains(&told), "{told}\n{}", ran.report());
    }
    assert!(!ran.stderr.contains("workflow-missing"), "{}", ran.report());
}

#[test]
fn github_outage_reports_nothing_as_missing() {
    for fault in [Fault::status(500), Fault::Reset] {
        let github = github();
        github.state().world.fail("GET /repos/acme/two", 9, fault);
        refused(&validate(&github, LIST), "github-unavailable");
    }
    let github = github();
    github.state().world.fail("GET /users/alice", 1, Fault::status(502));
    validate(&github, LIST).expect_code(0);
    let ran = crcr(&github, Path::new("/dev/null"), &["validate"], LIST)
        .env("GITHUB_TOKEN", "ghp_wrong")
        .run();
    refused(&ran, "github-token");
    let ran = crcr(&github, Path::new("/dev/null"), &["validate"], LIST).without("GITHUB_TOKEN");
    refused(&ran.run(), "no-github-token");
}

#[test]
fn rate_limit_error_names_the_reset_time_and_the_next_run_uses_the_cache() {
    let github = github();
    let world = &github.state().world;
    let home = tempfile::tempdir().unwrap();
    let run = || crcr(&github, home.path(), &["validate"], LIST).run();
    let now = jiff::Timestamp::now().as_second();
    let reset = jiff::Timestamp::from_second(now + 1800).unwrap();
    world.limit(5, reset);
    let ran = run();
    refused(&ran, "rate-limited");
    assert!(ran.stderr.contains(&reset.to_string()), "{}", ran.report());
    let asked = world.calls().len();
    assert!(asked <= 14, "{asked} calls with five left");
    world.limit(5000, reset);
    run().expect_code(0);
    let (before, whole) = (world.calls().len(), home.path().join("crcr/github.json"));
    run().expect_code(0);
    let again = world.calls().split_off(before);
    assert!(again.iter().all(|call| call.status == 304), "{again:?}");
    let kept = fs::read_to_string(whole).unwrap();
    assert!(!kept.contains("ghp_"), "a token is on disk");
}

#[test]
fn invisible_teams_are_not_reported_as_missing() {
    let github = github();
    let home = tempfile::tempdir().unwrap();
    let ran = crcr(&github, home.path(), &["validate"], LIST)
        .env("GITHUB_TOKEN", &github.state().world.reader_token(false))
        .run()
        .expect_code(0);
    assert!(
        ran.stderr.contains("`oncall-not-found` wasn't checked: the teams of `acme`"),
        "{}",
        ran.report()
    );
}

#[test]
fn app_installations_are_checked_with_the_apps_credentials() {
    let github = github();
    let world: &World = &github.state().world;
    world.install("acme/one");
    world.install_with("acme/three", &[("contents", "write")]);
    let home = tempfile::tempdir().unwrap();
    let ran = crcr(&github, home.path(), &["validate", "--format", "json"], LIST)
        .env("GITHUB_APP_ID", &world.app().id)
        .env("GITHUB_APP_PRIVATE_KEY", &world.app().private_key)
        .run()
        .expect_code(1);
    assert_eq!(rules(&ran), ["app-not-installed 2:6", "app-permission-missing 5:5"]);
    assert!(!ran.stderr.contains("wasn't checked"), "{}", ran.report());
}

/// Reviews the change of `LIST` to the list that has `to` in the place of `acme/three`.
fn replace_three(github: &StandIn, to: &str, args: &[&str]) -> Crcr {
    let all = ["allowlist", "validate", "--base", "old.yml", "--upstream", "up/stream", "new.yml"];
    let run = Crcr::step(&[&all[..], args].concat(), "pull_request", &json!({}));
    fs::write(run.folder().join("old.yml"), LIST).unwrap();
    fs::write(run.folder().join("new.yml"), LIST.replace("acme/three", to)).unwrap();
    run.env("GITHUB_API_URL", github.state().origin())
        .env("GITHUB_TOKEN", &github.state().world.reader_token(true))
}

#[test]
fn renamed_repository_keeps_its_level_once_github_proves_the_rename() {
    let github = github();
    let world = &github.state().world;
    let id = world.add_repo("acme/three");
    world.rename_repo("acme/three", "acme-labs/third");
    let json = ["--format", "json", "--online"];
    let ran = replace_three(&github, "acme-labs/third", &json).run().expect_code(0);
    assert_eq!(rules(&ran), [""; 0]);
    let told = format!(
        "`acme-labs/third` is `acme/three` under a new name, neither added nor removed: GitHub \
         answers with repository {id} to both"
    );
    assert!(ran.stderr.contains(&told), "{}", ran.report());
    let comment = &ran.outputs["comment"];
    assert!(comment.contains("| renamed | "), "{comment}");
    assert!(comment.contains(&format!("both names are repository {id} |")), "{comment}");
    assert!(!comment.contains("| added |") && !comment.contains("| removed |"), "{comment}");

    let before = world.calls().len();
    let offline = replace_three(&github, "acme-labs/third", &["--format", "json"]);
    let ran = offline.run().expect_code(1);
    assert_eq!(rules(&ran), ["removal-without-reason 1:1", "level-skipped 5:5"]);
    let hint =
        "if it is `acme/three` under a new name, `crcr allowlist validate --base … --online`";
    assert!(ran.stdout.contains(hint), "{}", ran.report());
    assert_eq!(world.calls().len(), before, "GitHub isn't asked without `--online`");
}

#[test]
fn new_name_of_another_repository_enters_at_l1() {
    let json = ["--format", "json", "--online"];
    let review = |github: &StandIn| {
        let ran = replace_three(github, "acme/third", &json).run().expect_code(1);
        assert_eq!(rules(&ran), ["removal-without-reason 1:1", "level-skipped 5:5"]);
        assert!(!ran.report().contains("under a new name"), "{}", ran.report());
        ran
    };
    let other = github();
    other.state().world.add_repo("acme/third");
    other.state().world.put_file("acme/third", ".github/workflows/ci.yml", REPORTING);
    review(&other);
    // Somebody has registered the old name since, so it doesn't lead to the new one.
    let again = github();
    again.state().world.rename_repo("acme/three", "acme/third");
    again.state().world.add_repo("acme/three");
    review(&again);
    let hidden = github();
    hidden.state().world.rename_repo("acme/three", "acme/third");
    let body = json!({ "message": "Resource not accessible by integration" }).to_string();
    let refused = Fault::Answer { status: StatusCode::FORBIDDEN, retry_after: None, body };
    hidden.state().world.fail("GET /repos/acme/three", 1, refused);
    let ran = review(&hidden);
    let told = "whether `acme/three` was renamed wasn't checked";
    assert!(ran.stderr.contains(told), "{}", ran.report());
}

/// Promotes `acme/two` to L3 in pull request 7, and reviews that by these rules.
fn promote(github: &StandIn, rules: &[&str]) -> Ran {
    let args = ["allowlist", "diff", "old.yml", "new.yml", "--upstream", "up/stream"];
    let run = Crcr::new(&[&args[..], &["--format", "json", "--pull-request", "7"], rules].concat());
    fs::write(run.folder().join("old.yml"), LIST).unwrap();
    let promoted = LIST.replace("L2: [acme/two]\n", "") + "    acme/two: [alice]\n";
    fs::write(run.folder().join("new.yml"), promoted).unwrap();
    run.env("GITHUB_API_URL", github.state().origin())
        .env("GITHUB_TOKEN", &github.state().world.reader_token(true))
        .run()
}

#[test]
fn promotion_to_l3_needs_the_label_or_a_review_of_the_newest_commit_by_the_team() {
    let github = github();
    let world = &github.state().world;
    let now = jiff::Timestamp::now();
    let pull = PullRequest::from_fork(7, "up/stream", &"a".repeat(40), now);
    world.put_pull("up/stream", pull.clone());
    world.add_member("up", "core", "carol");
    let label = ["--approval-label", "crcr-approved"];
    let team = ["--approval-team", "up/core"];
    let either = [label, team].concat();

    promote(&github, &[]).expect_code(0);
    let ran = promote(&github, &either).expect_code(1);
    assert!(ran.stdout.contains("promotion-not-approved"), "{}", ran.report());
    assert!(ran.stdout.contains("`acme/two` goes up to L3 without approval"), "{}", ran.report());
    assert!(ran.stdout.contains("up/stream#7 needs the label `crcr-approved`, or a member of"));

    world.review_pull("up/stream", 7, "mallory", "APPROVED");
    world.review_pull("up/stream", 7, "carol", "COMMENTED");
    promote(&github, &team).expect_code(1);
    world.review_pull("up/stream", 7, "carol", "APPROVED");
    promote(&github, &team).expect_code(0);
    promote(&github, &either).expect_code(0);
    promote(&github, &label).expect_code(1);
    // A commit after the approval could promote somebody else.
    world.put_pull("up/stream", PullRequest { head_sha: "b".repeat(40), ..pull.clone() });
    promote(&github, &team).expect_code(1);
    world.review_pull("up/stream", 7, "carol", "APPROVED");
    world.review_pull("up/stream", 7, "carol", "CHANGES_REQUESTED");
    promote(&github, &team).expect_code(1);

    let labels = ["crcr-approved".to_owned()].into();
    world.put_pull("up/stream", PullRequest { labels, ..pull });
    promote(&github, &label).expect_code(0);
    promote(&github, &either).expect_code(0);
}

#[test]
fn check_runs_that_events_begin_at_the_same_level_need_approval_too() {
    let github = github();
    let world = &github.state().world;
    let pull = PullRequest::from_fork(7, "up/stream", &"a".repeat(40), jiff::Timestamp::now());
    world.put_pull("up/stream", pull);
    let nightly = LIST.replace("[alice, acme/ci]", "{oncalls: [alice], events: [nightly]}");
    for (before, after, code) in [(&*nightly, LIST, 1), (LIST, &*nightly, 0)] {
        let args = ["allowlist", "diff", "old.yml", "new.yml", "--upstream", "up/stream"];
        let rule = ["--pull-request", "7", "--approval-label", "crcr-approved"];
        let run = Crcr::new(&[&args[..], &rule].concat());
        fs::write(run.folder().join("old.yml"), before).unwrap();
        fs::write(run.folder().join("new.yml"), after).unwrap();
        let run = run
            .env("GITHUB_API_URL", github.state().origin())
            .env("GITHUB_TOKEN", &world.reader_token(true));
        let ran = run.run().expect_code(code);
        let told = "`acme/three` gets check runs at L3 without approval";
        assert_eq!(ran.stdout.contains(told), code == 1, "{}", ran.report());
    }
}

#[test]
fn approval_that_cant_be_checked_is_no_approval() {
    let github = github();
    let world = &github.state().world;
    let ran = promote(&github, &["--approval-label", "crcr-approved"]).expect_code(2);
    assert!(ran.stderr.contains("[pull-request-not-found]"), "{}", ran.report());
    let pull = PullRequest::from_fork(7, "up/stream", &"a".repeat(40), jiff::Timestamp::now());
    world.put_pull("up/stream", pull);
    world.review_pull("up/stream", 7, "carol", "APPROVED");
    let ran = promote(&github, &["--approval-team", "up/hidden"]).expect_code(2);
    assert!(ran.stderr.contains("[team-hidden]"), "{}", ran.report());
}
