//! The App's calls against the stand-in for GitHub.
#![expect(clippy::unwrap_used, reason = "tests say what went wrong by stopping")]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crcr_github::checks::{CheckRun, CheckRunOutput, ListedCheckRun};
use crcr_github::contents::{FileContents, MergeBase};
use crcr_github::{GithubApp, GithubError, SecureUrl, http};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_standin::world::{AppIdentity, CLIENT_ID, PullRequest, World};
use jiff::Timestamp;
use serde_json::json;

const REPO: &str = "acme/backend";

/// A GitHub with the App installed on `acme/backend`, and the App on its clock.
fn set_up() -> (StandIn, GithubApp) {
    let github = StandIn::start().unwrap();
    github.state().world.install(REPO);
    let app = app_at(&github, github.url().clone());
    (github, app)
}

fn app_at(github: &StandIn, base: url::Url) -> GithubApp {
    let identity = github.state().world.app().clone();
    let state = Arc::clone(github.state());
    let clock = Arc::new(move || state.clock.now());
    GithubApp::new(
        http::client().unwrap(),
        &base.try_into().unwrap(),
        identity.id,
        &identity.private_key.into(),
        clock,
    )
    .unwrap()
}

fn secure(url: &url::Url) -> SecureUrl {
    url.clone().try_into().unwrap()
}

fn world(github: &StandIn) -> &World {
    &github.state().world
}

fn completed(conclusion: &str) -> CheckRun {
    CheckRun {
        name: "crcr/acme/backend/test/unit".to_owned(),
        external_id: Some("4242:7".to_owned()),
        details_url: Some("https://github.com/acme/backend/actions/runs/4242".to_owned()),
        status: "completed",
        conclusion: Some(conclusion.to_owned()),
        started_at: None,
        completed_at: None,
        output: CheckRunOutput { title: "Success".to_owned(), summary: "Fine".to_owned() },
    }
}

#[tokio::test]
async fn after_the_first_a_dispatch_is_one_call() {
    let (github, app) = set_up();
    let number = world(&github).add_repo(REPO);
    for _ in 0..3 {
        let target =
            app.dispatch(REPO, None, "push", &json!({ "delivery_id": "d" })).await.unwrap();
        let now = github.state().clock.now();
        let age = now.duration_since(target.accepted_at.expect("GitHub says when")).as_secs();
        assert!((0..5).contains(&age), "GitHub's clock: {age} s ago");
        let target = target.repository;
        assert_eq!((target.repository_id, target.default_branch.as_str()), (number, "main"));
    }
    let routes: Vec<_> = world(&github).calls().iter().map(|call| call.route()).collect();
    let id = app.installation(REPO).await.unwrap().id;
    assert_eq!(
        routes,
        [
            "GET /repos/acme/backend/installation".to_owned(),
            format!("POST /app/installations/{id}/access_tokens"),
            "POST /repos/acme/backend/dispatches".to_owned(),
            "POST /repos/acme/backend/dispatches".to_owned(),
            "POST /repos/acme/backend/dispatches".to_owned(),
        ]
    );
    let token = &world(&github).calls()[1];
    let asked = json!({ "repositories": ["backend"], "permissions": { "contents": "write" } });
    assert_eq!(token.body, asked);
    let dispatches = world(&github).take_dispatches();
    assert_eq!(dispatches[0].client_payload, json!({ "delivery_id": "d" }));
    assert_eq!((dispatches.len(), world(&github).leftovers()), (3, vec![]));
}

#[tokio::test]
async fn many_dispatches_at_once_ask_for_one_token() {
    let (github, app) = set_up();
    let payload = json!({});
    let all = (0..20).map(|_| app.dispatch(REPO, None, "push", &payload));
    for result in futures_util::future::join_all(all).await {
        result.unwrap();
    }
    assert_eq!(world(&github).count("POST /app/*"), 1);
    assert_eq!(world(&github).take_dispatches().len(), 20);
}

#[tokio::test]
async fn a_token_is_replaced_five_minutes_before_it_expires() {
    let (github, app) = set_up();
    let payload = json!({});
    app.dispatch(REPO, None, "push", &payload).await.unwrap();
    github.state().clock.advance(Duration::from_secs(54 * 60));
    app.dispatch(REPO, None, "push", &payload).await.unwrap();
    assert_eq!(world(&github).count("POST /app/*"), 1);
    github.state().clock.advance(Duration::from_secs(2 * 60));
    app.dispatch(REPO, None, "push", &payload).await.unwrap();
    assert_eq!(world(&github).count("POST /app/*"), 2);
}

#[tokio::test]
async fn a_revoked_token_is_replaced_at_once() {
    let (github, app) = set_up();
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    world(&github).revoke_tokens();
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    assert_eq!(world(&github).take_dispatches().len(), 2);
}

#[tokio::test]
async fn an_app_that_was_installed_again_is_found_under_its_new_number() {
    let (github, app) = set_up();
    let before = app.dispatch(REPO, None, "push", &json!({})).await.unwrap().repository;
    world(&github).uninstall(REPO);
    world(&github).install(REPO);
    let after = app.dispatch(REPO, None, "push", &json!({})).await.unwrap().repository;
    assert_eq!(before.repository_id, after.repository_id);
    assert_ne!(before.installation_id, after.installation_id);
}

#[tokio::test]
async fn what_an_installation_lacks_is_an_error_of_its_own() {
    let (github, app) = set_up();
    let payload = json!({});
    let world = world(&github);

    world.add_repo("acme/absent");
    let error = app.dispatch("acme/absent", None, "push", &payload).await.unwrap_err();
    assert!(
        matches!(error, GithubError::NotInstalled(ref repo) if repo == "acme/absent"),
        "{error:?}"
    );

    world.install("acme/asleep");
    world.suspend("acme/asleep", Some(github.state().clock.now()));
    let error = app.dispatch("acme/asleep", None, "push", &payload).await.unwrap_err();
    assert!(matches!(error, GithubError::Suspended(_)), "{error:?}");

    world.install_with("acme/narrow", &[("contents", "read")]);
    let error = app.dispatch("acme/narrow", None, "push", &payload).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the App's installation on `acme/narrow` hasn't granted `contents: write`"
    );

    app.dispatch(REPO, None, "push", &payload).await.unwrap();
    world.suspend(REPO, Some(github.state().clock.now()));
    let error = app.dispatch(REPO, None, "push", &payload).await.unwrap_err();
    assert!(matches!(error, GithubError::Forbidden(_) | GithubError::Suspended(_)), "{error:?}");
}

#[tokio::test]
async fn a_payload_over_githubs_limits_is_refused_for_good() {
    let (_github, app) = set_up();
    let keys: serde_json::Map<_, _> = (0..11).map(|n| (format!("k{n}"), json!(n))).collect();
    let error = app.dispatch(REPO, None, "push", &keys).await.unwrap_err();
    assert!(matches!(error, GithubError::Unprocessable(_)) && !error.is_transient(), "{error:?}");
    let long = json!({ "text": "<".repeat(11_000) });
    let error = app.dispatch(REPO, None, "push", &long).await.unwrap_err();
    assert!(matches!(error, GithubError::Unprocessable(_)), "{error:?}");
}

#[tokio::test]
async fn rate_limits_of_both_kinds_say_when_they_end() {
    let (github, app) = set_up();
    let now = github.state().clock.now();
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    world(&github).fail(
        "POST /repos/acme/backend/dispatches",
        1,
        Fault::Answer {
            status: axum_status(403),
            retry_after: Some(30),
            body: r#"{"message":"You have exceeded a secondary rate limit"}"#.to_owned(),
        },
    );
    let until = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err().retry_at().unwrap();
    assert!((29..=31).contains(&(until.as_second() - now.as_second())), "{until}");

    world(&github).limit(0, now + Duration::from_secs(900));
    let until = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err().retry_at().unwrap();
    assert_eq!(until.as_second(), now.as_second() + 900);
    github.state().clock.advance(Duration::from_secs(901));
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
}

#[tokio::test]
async fn an_empty_200_of_a_proxy_confirms_neither_a_dispatch_nor_a_check_run() {
    let (github, app) = set_up();
    let sha = "a1".repeat(20);
    world(&github).add_commit(REPO, &sha);
    let id = app.create_check_run(REPO, &sha, &completed("failure")).await.unwrap();
    let by_proxy =
        Fault::Answer { status: axum_status(200), retry_after: None, body: String::new() };
    world(&github).fail("POST /repos/acme/backend/dispatches", 1, by_proxy.clone());
    world(&github).fail("PATCH /repos/acme/backend/check-runs/*", 1, by_proxy);
    let error = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err();
    assert!(error.is_unanswered(), "{error:?}");
    let error = app.update_check_run(REPO, id, &completed("success")).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    assert_eq!(world(&github).take_dispatches().len(), 1);
}

fn axum_status(code: u16) -> ::http::StatusCode {
    ::http::StatusCode::from_u16(code).unwrap()
}

#[tokio::test]
async fn a_server_that_stumbles_is_worth_another_try() {
    let (github, app) = set_up();
    for fault in [Fault::status(502), Fault::Reset] {
        world(&github).fail("GET /repos/acme/backend/installation", 1, fault);
        let error = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err();
        assert!(matches!(error, GithubError::Transient { .. }), "{error:?}");
    }
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    world(&github).fail("POST /repos/acme/backend/*", 1, Fault::ResetAfterwards);
    let error = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert_eq!(world(&github).take_dispatches().len(), 2, "the lost answer's dispatch arrived");
    assert_eq!(world(&github).leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_check_run_is_created_updated_and_listed() {
    let (github, app) = set_up();
    let sha = "a1".repeat(20);
    world(&github).add_commit(REPO, &sha);
    let queued = CheckRun { status: "queued", conclusion: None, ..completed("success") };
    let id = app.create_check_run(REPO, &sha, &queued).await.unwrap();
    app.update_check_run(REPO, id, &completed("failure")).await.unwrap();
    let runs = world(&github).check_runs(REPO);
    assert_eq!((runs.len(), runs[0].id, runs[0].updates), (1, id, 1));
    assert_eq!(runs[0].conclusion.as_deref(), Some("failure"));
    let listed = app.check_runs_of_suite(REPO, runs[0].suite).await.unwrap();
    assert_eq!(listed[0].external_id.as_deref(), Some("4242:7"));
    let name = &runs[0].name;
    let newer = app.create_check_run(REPO, &sha, &queued).await.unwrap();
    let listed = app.check_runs_of_suite(REPO, runs[0].suite).await.unwrap();
    let ids = |runs: &[ListedCheckRun]| runs.iter().map(|run| run.id).collect::<Vec<_>>();
    assert_eq!(ids(&listed), [newer], "GitHub shows the newest of a name only");
    let own = app.own_check_runs(REPO, &sha, name).await.unwrap();
    assert_eq!(ids(&own), [newer, id]);
    assert_eq!(app.own_check_runs(REPO, &sha, "another").await.unwrap(), []);
    let error = app.create_check_run(REPO, &"ff".repeat(20), &queued).await.unwrap_err();
    assert!(matches!(error, GithubError::Unprocessable(_)), "{error:?}");
    let error = app.update_check_run(REPO, 1, &queued).await.unwrap_err();
    assert!(matches!(error, GithubError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn long_lists_are_read_to_their_end() {
    let (github, app) = set_up();
    let sha = "a1".repeat(20);
    world(&github).add_commit(REPO, &sha);
    for n in 0..101 {
        let run = CheckRun { name: format!("crcr/{n}"), ..completed("success") };
        app.create_check_run(REPO, &sha, &run).await.unwrap();
    }
    let suite = world(&github).check_runs(REPO)[0].suite;
    assert_eq!(app.check_runs_of_suite(REPO, suite).await.unwrap().len(), 101);
}

#[tokio::test]
async fn a_check_run_of_another_app_is_never_taken_for_our_own_and_cant_be_changed() {
    let (github, app) = set_up();
    let (sha, name) = ("a1".repeat(20), "crcr/acme/backend/relay/dispatch");
    world(&github).add_commit(REPO, &sha);
    world(&github).add_foreign_check_run(REPO, &sha, name, "success");
    assert_eq!(app.own_check_runs(REPO, &sha, name).await.unwrap(), []);
    let foreign = world(&github).check_runs(REPO)[0].id;
    let error = app.update_check_run(REPO, foreign, &completed("failure")).await.unwrap_err();
    assert!(matches!(error, GithubError::Forbidden(_)), "{error:?}");
}

#[tokio::test]
async fn runs_are_listed_by_event_and_time() {
    let (github, app) = set_up();
    let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
    for (id, event, second) in
        [(1, "repository_dispatch", 0), (2, "push", 5), (3, "repository_dispatch", 900)]
    {
        let (repository, event) = (REPO.to_owned(), event.to_owned());
        let created_at = at(second);
        github.state().runs.add(Run { id, repository, event, created_at, ..Run::push() });
    }
    let window = (at(-5), at(60));
    let list = app.runs_of_event(REPO, "repository_dispatch", window).await.unwrap();
    assert!(list.is_complete);
    let ahead = list.read_at.duration_since(github.state().clock.now()).as_secs();
    assert!((-2..=0).contains(&ahead), "GitHub's clock: {ahead} s");
    let runs = list.runs;
    assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [1]);
    assert_eq!(runs[0].path, ".github/workflows/build.yml");
    assert_eq!(runs[0].created_at, Some(at(0)));
}

#[tokio::test]
async fn all_pages_of_runs_are_read_and_a_list_that_is_too_long_is_not_complete() {
    let (github, app) = set_up();
    let at = Timestamp::from_second(1_700_000_000).unwrap();
    // GitHub never lists more than 1,000.
    for (known, complete) in [(120, true), (999, true), (1000, false), (1001, false)] {
        for id in 1..=known {
            let (repository, event) = (REPO.to_owned(), "repository_dispatch".to_owned());
            github.state().runs.add(Run { id, repository, event, created_at: at, ..Run::push() });
        }
        let list = app.runs_of_event(REPO, "repository_dispatch", (at, at)).await.unwrap();
        assert_eq!(list.runs.len(), usize::try_from(known.min(1000)).unwrap());
        assert_eq!(list.is_complete, complete);
    }
}

#[tokio::test]
async fn a_run_is_run_again_unless_it_is_running() {
    let (github, app) = set_up();
    let mut run = Run { repository: REPO.to_owned(), ..Run::push() };
    github.state().runs.add(run.clone());
    assert!(!app.run(REPO, run.id).await.unwrap().is_completed());
    let error = app.rerun_failed_jobs(REPO, run.id).await.unwrap_err();
    assert!(matches!(error, GithubError::AlreadyRunning(_)), "{error:?}");
    run.status = "completed".to_owned();
    run.conclusion = Some("failure".to_owned());
    let id = github.state().runs.add(run);
    assert!(app.run(REPO, id).await.unwrap().is_completed());
    app.rerun(REPO, id).await.unwrap();
    assert_eq!(app.run(REPO, id).await.unwrap().run_attempt, 2);
    assert_eq!(world(&github).take_reruns().len(), 1);
    assert!(matches!(app.rerun(REPO, 999).await.unwrap_err(), GithubError::NotFound(_)));
}

#[tokio::test]
async fn a_file_is_read_again_only_when_it_changed() {
    let (github, app) = set_up();
    let world = world(&github);
    world.put_file(REPO, ".github/allowlist.yml", "L1: []\n");
    let read = async |etag: Option<&str>| {
        app.contents(REPO, ".github/allowlist.yml", Some("main"), etag, 100).await
    };
    let FileContents::File { bytes, etag } = read(None).await.unwrap() else { panic!("a file") };
    assert_eq!(bytes, "L1: []\n");
    assert_eq!(read(etag.as_deref()).await.unwrap(), FileContents::NotModified);
    world.put_file(REPO, ".github/allowlist.yml", "L2: []\n");
    assert!(matches!(read(etag.as_deref()).await.unwrap(), FileContents::File { .. }));
    world.put_file(REPO, ".github/allowlist.yml", "x".repeat(101));
    assert!(matches!(read(None).await.unwrap_err(), GithubError::Malformed { .. }));
    let error = app.contents(REPO, "absent", None, None, 100).await.unwrap_err();
    assert!(matches!(error, GithubError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn a_commit_exists_by_its_full_hash_only() {
    let (github, app) = set_up();
    let sha = "c3".repeat(20);
    world(&github).add_commit(REPO, &sha);
    assert!(app.commit_exists(REPO, &sha).await.unwrap());
    assert!(!app.commit_exists(REPO, &"d4".repeat(20)).await.unwrap());
    let before = world(&github).calls().len();
    for odd in ["main", "c3c3c3c", "../../x", ""] {
        assert!(!app.commit_exists(REPO, odd).await.unwrap(), "{odd}");
    }
    assert_eq!(world(&github).calls().len(), before, "nothing odd is asked");
}

#[tokio::test]
async fn commits_of_a_branch_are_the_first_parents_without_what_merges_brought_in() {
    let (github, app) = set_up();
    let world = world(&github);
    let [root, first, side, merge, last] = ["c1", "c2", "c3", "c4", "c5"].map(|one| one.repeat(20));
    let at = Timestamp::from_second(1_790_000_000).unwrap();
    world.add_commit(REPO, &root);
    world.add_commit_on(REPO, &first, &root, at);
    world.add_commit_on(REPO, &side, &root, at);
    world.add_merge(REPO, &merge, &[&first, &side], at);
    world.add_commit_on(REPO, &last, &merge, at);
    let between = async |base: &str, head: &str| {
        let found = app.commits_between(REPO, base, head).await.unwrap();
        found.map(|found| found.into_iter().map(|commit| commit.sha).collect::<Vec<_>>())
    };
    let authors = app.commits_between(REPO, &root, &last).await.unwrap().unwrap();
    let authors: Vec<_> = authors.iter().map(|commit| commit.author.as_deref()).collect();
    assert_eq!(authors, [Some("octocat"), None, Some("octocat")], "who merged isn't the author");
    assert_eq!(between(&root, &last).await, Some(vec![first, merge, last.clone()]));
    assert_eq!(between(&side, &last).await, None, "an ancestor, and not on the branch");
    assert_eq!(between(&last, &root).await, None);
    assert_eq!(between(&last, &last).await, Some(vec![]));
}

#[tokio::test]
async fn commits_of_a_branch_that_github_lists_on_several_pages_are_all_read_up_to_500() {
    let (github, app) = set_up();
    let world = world(&github);
    let sha = |n: usize| format!("{n:040x}");
    let at = Timestamp::from_second(1_790_000_000).unwrap();
    world.add_commit(REPO, &sha(0));
    for n in 1..=501 {
        world.add_commit_on(REPO, &sha(n), &sha(n - 1), at);
    }
    for count in [250, 251, 500] {
        let found = app.commits_between(REPO, &sha(0), &sha(count)).await.unwrap().unwrap();
        let found: Vec<_> = found.into_iter().map(|commit| commit.sha).collect();
        assert_eq!(found, (1..=count).map(sha).collect::<Vec<_>>());
    }
    assert_eq!(app.commits_between(REPO, &sha(0), &sha(501)).await.unwrap(), None);
}

#[tokio::test]
async fn the_merge_base_is_where_a_branch_left_the_other() {
    let (github, app) = set_up();
    let world = world(&github);
    let [root, tip, head, alone] = ["c1", "c2", "c3", "c4"].map(|byte| byte.repeat(20));
    let at = |second: i64| Timestamp::from_second(1_790_000_000 + second).unwrap();
    world.add_commit(REPO, &alone);
    world.add_commit_on(REPO, &root, &"c0".repeat(20), at(0));
    world.add_commit_on(REPO, &tip, &root, at(1));
    world.add_commit_on(REPO, &head, &root, at(2));
    let found = app.merge_base(REPO, &tip, &head).await.unwrap();
    assert_eq!(
        found,
        Some(MergeBase { sha: root.clone(), committed_at: at(0), changed_files: vec![] })
    );
    let found = app.merge_base(REPO, &root, &head).await.unwrap();
    assert_eq!(found.unwrap().sha, root, "a base that didn't move");
    assert_eq!(app.merge_base(REPO, &tip, &alone).await.unwrap(), None);
    assert_eq!(app.merge_base(REPO, &tip, &"dd".repeat(20)).await.unwrap(), None);
    let before = world.calls().len();
    for odd in ["main", "../../x", ""] {
        assert_eq!(app.merge_base(REPO, &tip, odd).await.unwrap(), None, "{odd}");
    }
    assert_eq!(world.calls().len(), before, "nothing odd is asked");
    world.fail("GET /repos/acme/backend/compare/*", 9, Fault::status(502));
    let error = app.merge_base(REPO, &tip, &head).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn comments_and_labels_of_a_pull_request() {
    let (github, app) = set_up();
    let now = github.state().clock.now();
    let mut pull = PullRequest::from_fork(7, REPO, &"e5".repeat(20), now);
    pull.labels.insert("ciflow/crcr/npu".to_owned());
    world(&github).put_pull(REPO, pull);
    assert_eq!(app.labels(REPO, 7).await.unwrap(), ["ciflow/crcr/npu"]);
    let id = app.create_comment(REPO, 7, "@alice look").await.unwrap();
    let comments = app.comments(REPO, 7).await.unwrap();
    assert_eq!((comments[0].id, comments[0].body.as_str()), (id, "@alice look"));
    assert_eq!(world(&github).comments(REPO, 7).len(), 1);
}

#[tokio::test]
async fn an_enterprise_server_keeps_the_path_of_its_api() {
    let github = StandIn::start().unwrap();
    github.state().world.install(REPO);
    let app = app_at(&github, github.url().join("api/v3").unwrap());
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    assert_eq!(github.state().world.take_dispatches().len(), 1);
}

#[tokio::test]
async fn app_with_another_key_or_none_is_refused_and_its_key_is_never_printed() {
    let (github, app) = set_up();
    assert_eq!(app.slug().await.unwrap(), "crcr-stand-in");
    let clock = Arc::new(Timestamp::now);
    let other = AppIdentity::generate().private_key;
    let http = http::client().unwrap();
    let stranger =
        GithubApp::new(http, &secure(github.url()), "424242", &other.into(), clock.clone())
            .unwrap();
    assert!(matches!(stranger.slug().await.unwrap_err(), GithubError::Unauthorized(_)));
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let made =
        GithubApp::new(http::client().unwrap(), &secure(github.url()), "1", &key.into(), clock);
    let error = made.unwrap_err().to_string();
    assert!(error.starts_with("the App's private key isn't an RSA key in PEM"), "{error}");
    assert!(!format!("{app:?}").contains("PRIVATE"));
}

#[tokio::test]
async fn key_that_can_not_sign_is_refused_before_github_is_asked() {
    let (github, app) = set_up();
    // A public key, with the label of a private one.
    let mislabelled = "-----BEGIN RSA PRIVATE KEY-----
MIGJAoGBAKJmb1XMuB9gJxoQ7AezNZrPro0uUeR34s97mHAd4DjE3/U7ii8+TXLn
2p7TmA1Z/wdZcSOoohLD5YWQ1mTzVFjLN/kgsfJ3cffqoK5rL+dCnQRwEID79W2W
YicdIMqjkVIGXUZ59LJGT71s5871qVYeZIjnukwmRYpCOPBDzMxrAgMBAAE=
-----END RSA PRIVATE KEY-----
";
    let public = world(&github).app().private_key.replace("PRIVATE", "PUBLIC");
    for (key, told) in [
        (&*public, "is a public key; GitHub's download is the private one"),
        (mislabelled, "the App's private key can't sign"),
    ] {
        let error = app.set_private_key(&key.into()).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    assert!(app.slug().await.is_ok(), "the key from before stays");
}

#[tokio::test]
async fn of_two_private_keys_the_one_that_github_knows_is_used() {
    let (github, _) = set_up();
    let known = world(&github).app().clone();
    let other = AppIdentity::generate();
    let state = Arc::clone(github.state());
    let clock = Arc::new(move || state.clock.now());
    let client = http::client().unwrap();
    let both = |first: &str, second: &str| format!("{first}\n{second}").into();
    let keys = both(&other.private_key, &known.private_key);
    let app = GithubApp::new(client, &secure(github.url()), known.id, &keys, clock).unwrap();
    assert!(app.slug().await.is_ok(), "the new key isn't known yet");
    let calls = world(&github).calls().len();
    app.installation(REPO).await.unwrap();
    assert_eq!(world(&github).calls().len(), calls + 1, "what works is remembered");

    // A file that isn't a key changes nothing, and one with the known key in front works at once.
    let three = format!("{}{}{}", other.private_key, other.private_key, other.private_key);
    for broken in ["", "rubbish", "-----BEGIN RSA PRIVATE KEY-----\nAAAA", &three] {
        assert!(app.set_private_key(&broken.into()).is_err(), "{broken}");
    }
    assert!(app.slug().await.is_ok());
    app.set_private_key(&both(&known.private_key, &other.private_key)).unwrap();
    assert!(app.slug().await.is_ok());
    app.set_private_key(&other.private_key.into()).unwrap();
    assert!(
        matches!(app.slug().await, Err(GithubError::Unauthorized(_))),
        "refused by both is refused"
    );
}

#[tokio::test]
async fn clock_that_was_ahead_keeps_nobody_from_logging_in_once_it_is_right() {
    let (github, _) = set_up();
    let identity = world(&github).app().clone();
    let state = Arc::clone(github.state());
    let ahead = Arc::new(std::sync::atomic::AtomicU64::new(24 * 60 * 60));
    let clock = {
        let ahead = Arc::clone(&ahead);
        Arc::new(move || state.clock.now() + Duration::from_secs(ahead.load(Relaxed)))
    };
    let client = http::client().unwrap();
    let key = identity.private_key.into();
    let app = GithubApp::new(client, &secure(github.url()), identity.id, &key, clock).unwrap();
    assert!(matches!(app.slug().await, Err(GithubError::Unauthorized(_))));
    ahead.store(0, Relaxed);
    assert!(app.slug().await.is_ok());
}

#[tokio::test]
async fn a_renamed_repository_is_told_by_its_new_name_and_not_tried_again() {
    let (github, app) = set_up();
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    world(&github).rename_repo(REPO, "acme/renamed");
    let error = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");
    let text = error.to_string();
    assert!(text.contains("`acme/renamed`") && text.contains("allowlist"), "{text}");
    // A new token comes by the repository's number, to which GitHub redirects.
    github.state().clock.advance(Duration::from_secs(3600));
    let error = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("`acme/renamed`"), "{error}");
    assert_eq!(world(&github).take_dispatches().len(), 1);
}

#[tokio::test]
async fn every_call_by_a_renamed_repositorys_old_name_is_redirected_and_logs_of_its_jobs_are_read()
{
    let (github, app) = set_up();
    world(&github).put_job_log(REPO, 7, "a line");
    world(&github).put_file(REPO, "a", "b");
    world(&github).rename_repo(REPO, "acme/renamed");
    let error = app.contents(REPO, "a", None, None, 10).await.unwrap_err();
    assert!(matches!(error, GithubError::Moved { .. }), "{error:?}");
    let sha = "a1".repeat(20);
    let error = app.create_check_run(REPO, &sha, &completed("success")).await.unwrap_err();
    assert!(matches!(error, GithubError::Moved { .. }), "{error:?}");
    let mut log = app.job_log(&http::client().unwrap(), REPO, 7).await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "a line");
}

#[tokio::test]
async fn archived_repository_is_read_and_takes_no_change() {
    let (github, app) = set_up();
    world(&github).put_file(REPO, "a", "b");
    world(&github).archive_repo(REPO);
    assert!(app.contents(REPO, "a", None, None, 10).await.is_ok());
    let error = app.dispatch(REPO, None, "push", &json!({})).await.unwrap_err();
    assert!(matches!(&error, GithubError::Forbidden(why) if why.contains("archived")), "{error}");
}

#[tokio::test]
async fn lists_of_the_longest_texts_are_read_to_their_end() {
    let (github, app) = set_up();
    let sha = "a1".repeat(20);
    let pull = PullRequest::from_fork(7, REPO, &sha, github.state().clock.now());
    world(&github).put_pull(REPO, pull);
    let longest = "\u{1f389}".repeat(65_536);
    for _ in 0..33 {
        world(&github).comment(REPO, 7, "octocat", &longest);
    }
    assert_eq!(app.comments(REPO, 7).await.unwrap().len(), 33);
    // Each line end is two bytes of JSON.
    let output = CheckRunOutput { title: "Failed".to_owned(), summary: "\n".repeat(65_535) };
    for n in 0..65 {
        let (name, output) = (format!("crcr/{n}"), output.clone());
        let run = CheckRun { name, output, ..completed("failure") };
        app.create_check_run(REPO, &sha, &run).await.unwrap();
    }
    let suite = world(&github).check_runs(REPO)[0].suite;
    assert_eq!(app.check_runs_of_suite(REPO, suite).await.unwrap().len(), 65);
}

#[tokio::test]
async fn comment_that_github_does_not_take_is_refused_for_good() {
    let (github, app) = set_up();
    let pull = PullRequest::from_fork(7, REPO, &"e5".repeat(20), github.state().clock.now());
    world(&github).put_pull(REPO, pull);
    for text in [String::new(), "x".repeat(65_537)] {
        let error = app.create_comment(REPO, 7, &text).await.unwrap_err();
        assert!(matches!(error, GithubError::Unprocessable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn check_run_with_an_end_and_no_conclusion_is_refused() {
    let (github, app) = set_up();
    let sha = "a1".repeat(20);
    world(&github).add_commit(REPO, &sha);
    let ended = CheckRun {
        status: "in_progress",
        conclusion: None,
        completed_at: Some(github.state().clock.now()),
        ..completed("success")
    };
    let nameless = CheckRun { name: String::new(), ..completed("success") };
    for run in [ended, nameless] {
        let error = app.create_check_run(REPO, &sha, &run).await.unwrap_err();
        assert!(matches!(error, GithubError::Unprocessable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn address_of_a_log_ends_after_a_minute_and_each_call_gets_a_new_one() {
    let (github, app) = set_up();
    world(&github).put_job_log(REPO, 7, "a line");
    let client = http::client().unwrap();
    let get = async |url: String| client.get(url).send().await.unwrap();
    let redirect = get(format!("{}repos/{REPO}/actions/jobs/7/logs", github.url())).await;
    let address = redirect.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(get(address.clone()).await.status(), 200);
    github.state().clock.advance(Duration::from_secs(61));
    assert_eq!(get(address).await.status(), 403);
    let mut log = app.job_log(&client, REPO, 7).await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap(), "a line");
}

#[tokio::test]
async fn log_of_deliveries_goes_back_three_days() {
    let (github, app) = set_up();
    let delivery = world(&github).delivery("ping", &json!({}));
    let id = world(&github).log_delivery(&delivery, github.state().clock.now(), false, 502);
    app.redeliver(id).await.unwrap();
    github.state().clock.advance(Duration::from_secs(3 * 24 * 3600 + 1));
    assert_eq!(app.hook_deliveries(None).await.unwrap().deliveries, []);
    let error = app.redeliver(id).await.unwrap_err();
    assert!(matches!(error, GithubError::NotFound(_)), "{error:?}");
}

#[tokio::test]
async fn clock_may_be_ahead_by_less_than_a_minute() {
    let (github, _) = set_up();
    for (ahead, is_accepted) in [(59, true), (90, false)] {
        let identity = world(&github).app().clone();
        let state = Arc::clone(github.state());
        let clock = Arc::new(move || state.clock.now() + Duration::from_secs(ahead));
        let key = identity.private_key.into();
        let client = http::client().unwrap();
        let app = GithubApp::new(client, &secure(github.url()), identity.id, &key, clock).unwrap();
        assert_eq!(app.slug().await.is_ok(), is_accepted, "{ahead} s");
    }
}

#[tokio::test]
async fn token_in_the_long_form_of_2026_is_sent_as_it_is() {
    let (github, app) = set_up();
    let token = world(&github).job_token("acme/another", &[("contents", "read")]);
    assert!(token.len() > 400 && token.matches('.').count() == 2, "{token}");
    app.dispatch(REPO, None, "push", &json!({})).await.unwrap();
    assert_eq!(world(&github).take_dispatches().len(), 1);
}

#[tokio::test]
async fn app_that_is_configured_by_its_client_id_finds_its_own_check_runs() {
    let (github, _) = set_up();
    let state = Arc::clone(github.state());
    let clock = Arc::new(move || state.clock.now());
    let key = world(&github).app().private_key.clone().into();
    let client = http::client().unwrap();
    let app = GithubApp::new(client, &secure(github.url()), CLIENT_ID, &key, clock).unwrap();
    let (sha, run) = ("a1".repeat(20), completed("failure"));
    world(&github).add_commit(REPO, &sha);
    world(&github).add_foreign_check_run(REPO, &sha, &run.name, "success");
    let id = app.create_check_run(REPO, &sha, &run).await.unwrap();
    let own = app.own_check_runs(REPO, &sha, &run.name).await.unwrap();
    assert_eq!(own.iter().map(|run| run.id).collect::<Vec<_>>(), [id]);
}
