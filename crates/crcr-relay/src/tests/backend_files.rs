//! `.github/crcr.yml` of a backend: when it is read, and what is dispatched because of it.

use std::time::Duration;

use axum::http::StatusCode;
use crcr_domain::RepoName;
use crcr_domain::probes::LeftOut;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_standin::traffic::Fault;
use crcr_store::{WriteBatch, read_record};
use serde_json::{Value, json};

use super::support::{ALL, HEAD, NEWER, UPSTREAM, World};
use crate::probes::backend_file::{self, BackendFile};
use crate::queue::task_kind::TaskKind;
use crate::{limits, state_records};

const FILE: &str = ".github/crcr.yml";
const DAY_SECONDS: i64 = 24 * 3600;
const COMPARE: &str = "GET /repos/acme/upstream/compare/*";

impl World {
    pub(crate) async fn with_file(repo: &str, text: &str) -> Self {
        let world = Self::new().await;
        world.push_file(repo, text).await;
        world
    }

    /// Pushes the file to the default branch of a backend, and does what follows.
    pub(crate) async fn push_file(&self, repo: &str, text: &str) {
        self.github.state().world.put_file(repo, FILE, text);
        self.tell_of_push(repo, json!([{ "added": [], "modified": [FILE], "removed": [] }])).await;
        self.settle().await;
    }

    async fn tell_of_push(&self, repo: &str, commits: Value) {
        let state = self.github.state();
        let mut payload = state.push_payload(repo, "refs/heads/main", HEAD);
        payload["commits"] = commits;
        payload["forced"] = json!(false);
        let (status, body) = self.send(&state.world.delivery("push", &payload)).await;
        assert_eq!((status.as_u16(), body), (200, json!({ "ignored": true })));
    }

    async fn file_of(&self, repo: &str) -> BackendFile {
        let key = backend_file::key(&self.relay, &RepoName::new(repo).unwrap());
        self.relay.read_record(key).await.unwrap().value.unwrap()
    }

    async fn status_of(&self, delivery: &str, repo: &str) -> DispatchStatus {
        let key = state_records::dispatch_key(delivery, &RepoName::new(repo).unwrap());
        let read = self.relay.read_record::<Dispatch>(key).await.unwrap();
        read.value.unwrap().status
    }

    fn verdict_of(&self, repo: &str) -> (String, Option<String>, String) {
        let name = format!("crcr/{repo}/relay/dispatch");
        let runs = self.github.state().world.check_runs(UPSTREAM);
        let found = runs.into_iter().find(|run| run.name == name).expect("it has a check run");
        (found.status, found.conclusion, found.title)
    }
}

fn all_but(repos: &[&str]) -> Vec<String> {
    ALL.iter().filter(|repo| !repos.contains(repo)).map(|repo| (*repo).to_owned()).collect()
}

#[tokio::test]
async fn push_of_the_file_counts_at_once_and_a_broken_one_keeps_the_last_good_version() {
    let world = World::with_file("acme/two", "dispatch: {events: [push]}\n").await;
    let left_out = world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/two"]));
    let status = world.status_of(&left_out, "acme/two").await;
    assert_eq!(status, DispatchStatus::LeftOut { why: LeftOut::Event });
    world.push_file("acme/two", "dispatch: {event: [pull_request]}\n").await;
    let file = world.file_of("acme/two").await;
    let problem = file.problem.unwrap();
    assert!(problem.contains("1 error in line 1: `event` isn't a key"), "{problem}");
    world.event("reopened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/two"]), "the last good one holds");
    world.push_file("acme/two", "dispatch: {events: [push, pull_request]}\n").await;
    assert_eq!(world.file_of("acme/two").await.problem, None);
    world.event("reopened").await;
    assert_eq!(world.dispatched(), ALL);
    world.github.state().world.remove_file("acme/two", FILE);
    world.tell_of_push("acme/two", json!([{ "removed": [FILE] }])).await;
    world.work().await;
    assert_eq!(world.file_of("acme/two").await.config, Default::default());
}

#[tokio::test]
async fn a_file_that_could_not_be_read_for_a_while_is_in_force_again() {
    let world = World::with_file("acme/two", "dispatch: {events: [push]}\n").await;
    let forbidden = Fault::Answer {
        status: StatusCode::FORBIDDEN,
        retry_after: None,
        body: json!({"message": "Resource not accessible by integration"}).to_string(),
    };
    world.github.state().world.fail("GET /repos/acme/two/contents/.github/crcr.yml", 1, forbidden);
    world.tell_of_push("acme/two", json!([{ "modified": [FILE] }])).await;
    world.work().await;
    let problem = world.file_of("acme/two").await.problem.unwrap();
    assert!(problem.contains("it can't be read"), "{problem}");
    world.later(limits::BACKEND_FILE_INTERVAL + Duration::from_secs(1));
    world.event("opened").await;
    let file = world.file_of("acme/two").await;
    assert_eq!(file.problem, None, "the same version can be read again");
    assert_eq!(world.dispatched(), all_but(&["acme/two"]));
}

#[tokio::test]
async fn a_file_that_is_too_large_shows_on_the_page_and_is_no_outage() {
    let world = World::with_file("acme/two", "dispatch: {events: [push]}\n").await;
    world.push_file("acme/two", &"#".repeat(70 * 1024)).await;
    let file = world.file_of("acme/two").await;
    assert_eq!(file.problem.as_deref(), Some("it is larger than 64 KiB"));
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/two"]), "the last good one holds");
    world.push_file("acme/two", "dispatch: {events: [push, pull_request]}\n").await;
    assert_eq!(world.file_of("acme/two").await.problem, None);
}

#[tokio::test]
async fn a_file_that_was_never_good_leaves_everything_dispatched() {
    let world = World::with_file("acme/two", "dispatch: [").await;
    assert!(world.file_of("acme/two").await.problem.is_some());
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
}

#[tokio::test]
async fn file_is_read_once_an_interval_and_however_often_it_is_pushed_a_bounded_number_of_times() {
    let world = World::new().await;
    world.event("opened").await;
    let is_file = |route: String| route.ends_with("/contents/.github/crcr.yml");
    let calls = || {
        let all = world.github.state().world.calls();
        all.iter().filter(|call| is_file(call.route())).count()
    };
    let first = calls();
    assert_eq!(
        first,
        ALL.len(),
        "each backend's file, when it is dispatched to for the first time"
    );
    for _ in 0..3 {
        world.event("reopened").await;
    }
    assert_eq!(calls(), first, "a dispatch doesn't ask again");
    world.tell_of_push("acme/two", json!([{ "modified": ["README.md"] }])).await;
    world.work().await;
    assert_eq!(calls(), first, "a push of other files doesn't either");
    world.later(limits::BACKEND_FILE_INTERVAL + Duration::from_secs(1));
    world.event("reopened").await;
    assert_eq!(calls(), 2 * first);
    for _ in 0..200 {
        world.tell_of_push("acme/two", json!([])).await;
        world.work().await;
    }
    let most = usize::try_from(limits::BACKEND_FILE_CALLS).unwrap();
    assert!(calls() <= 2 * first + most, "{} calls", calls());
    world.dispatched();
}

#[tokio::test]
async fn push_of_more_files_than_github_names_may_have_changed_the_file() {
    let world = World::with_file("acme/two", "dispatch: {events: [push]}\n").await;
    let text = "dispatch: {events: [push, pull_request]}\n";
    world.github.state().world.put_file("acme/two", FILE, text);
    let others: Vec<_> = (0..3000).map(|n| format!("{n}.txt")).collect();
    world.tell_of_push("acme/two", json!([{ "added": others }])).await;
    world.settle().await;
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
}

#[tokio::test]
async fn files_that_dont_concern_a_backend_are_left_out_and_a_required_check_says_why() {
    let world = World::new().await;
    let state = &world.github.state().world;
    world.push_file("acme/two", "dispatch: {paths: ['aten/**', '!**/*.md']}\n").await;
    world.push_file("acme/four", "dispatch: {paths: ['aten/**']}\n").await;
    state.set_changed_files(UPSTREAM, HEAD, &["docs/a.rst", "aten/README.md"]);
    let id = world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/two"]));
    assert_eq!(
        world.status_of(&id, "acme/two").await,
        DispatchStatus::LeftOut { why: LeftOut::Paths }
    );
    assert_eq!(state.count(COMPARE), 1, "both backends share the list");
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    state.set_changed_files(UPSTREAM, NEWER, &["docs/a.rst"]);
    world.event("synchronize").await;
    assert_eq!(world.dispatched(), all_but(&["acme/two", "acme/four"]));
    let (status, conclusion, title) = world.verdict_of_newest("acme/four");
    assert_eq!((status.as_str(), conclusion.as_deref()), ("completed", Some("skipped")));
    assert!(title.contains("No changed file concerns this backend"), "{title}");
}

#[tokio::test]
async fn another_base_of_a_pull_request_has_its_changed_files_judged_again() {
    let world = World::new().await;
    let state = &world.github.state().world;
    world.push_file("acme/four", "dispatch: {paths: ['aten/**']}\n").await;
    // A stack: the branch that it is based on contains the change of `aten` already.
    let [stacked, main] = ["5a", "6b"].map(|byte| byte.repeat(20));
    for base in [&stacked, &main] {
        state.add_commit_on(UPSTREAM, base, &"b5".repeat(20), world.relay.now());
    }
    world.change(|pull| pull.base_sha.clone_from(&stacked));
    state.set_changed_files(UPSTREAM, HEAD, &["docs/a.rst"]);
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
    assert_eq!(world.verdict_of("acme/four").1.as_deref(), Some("skipped"));
    let edit = async |changes: Value| {
        let mut payload = world.github.state().pull_request_payload(UPSTREAM, 7, "edited");
        payload["changes"] = changes;
        world.deliver("pull_request", &payload).await;
    };
    world.change(|pull| pull.base_sha.clone_from(&main));
    state.set_changed_files(UPSTREAM, HEAD, &["docs/a.rst", "aten/a.cpp"]);
    edit(json!({ "title": { "from": "Another one" } })).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    edit(json!({ "base": { "ref": { "from": "stacked" }, "sha": { "from": stacked } } })).await;
    assert_eq!(world.dispatched(), ["acme/four"], "the others have run already");
    assert_eq!(world.verdict_of("acme/four").0, "queued", "it is required again");
    for base in [&stacked, &main, &stacked, &main] {
        world.change(|pull| pull.base_sha.clone_from(base));
        edit(json!({ "base": { "ref": { "from": "another" } } })).await;
    }
    assert_eq!(world.dispatched(), ["acme/four"; 2], "it blocks the merge into `main` again");
}

#[tokio::test]
async fn another_base_counts_although_the_webhook_of_the_opening_comes_later() {
    let world = World::new().await;
    let state = &world.github.state().world;
    world.push_file("acme/four", "dispatch: {paths: ['aten/**']}\n").await;
    let [stacked, main] = ["5a", "6b"].map(|byte| byte.repeat(20));
    for base in [&stacked, &main] {
        state.add_commit_on(UPSTREAM, base, &"b5".repeat(20), world.relay.now());
    }
    world.change(|pull| pull.base_sha.clone_from(&stacked));
    let opened = world.pull_request("opened");
    world.later(Duration::from_secs(5));
    world.change(|pull| pull.base_sha = main);
    state.set_changed_files(UPSTREAM, HEAD, &["aten/a.cpp"]);
    let mut payload = world.github.state().pull_request_payload(UPSTREAM, 7, "edited");
    payload["changes"] = json!({ "base": { "ref": { "from": "stacked" } } });
    world.send(&state.delivery("pull_request", &payload)).await;
    world.work().await;
    state.set_changed_files(UPSTREAM, HEAD, &["docs/a.rst"]);
    world.send(&opened).await;
    world.work().await;
    assert_eq!(world.dispatched(), ALL, "each backend once");
    assert_eq!(world.verdict_of("acme/four").0, "queued");
}

#[tokio::test]
async fn head_whose_base_changes_again_and_again_while_it_is_held_back_is_dispatched_once() {
    let world = World::new().await;
    let state = &world.github.state().world;
    world.push_file("acme/four", "dispatch: {quiet-minutes: 10, paths: ['aten/**']}\n").await;
    state.set_changed_files(UPSTREAM, HEAD, &["aten/a.cpp"]);
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
    for number in 0..5 {
        let base = format!("{number}c").repeat(20);
        state.add_commit_on(UPSTREAM, &base, &"b5".repeat(20), world.relay.now());
        world.change(|pull| pull.base_sha = base);
        let mut payload = world.github.state().pull_request_payload(UPSTREAM, 7, "edited");
        payload["changes"] = json!({ "base": { "ref": { "from": "another" } } });
        world.deliver("pull_request", &payload).await;
    }
    for _ in 0..6 {
        world.wait(Duration::from_secs(300)).await;
    }
    assert_eq!(world.dispatched(), ["acme/four"]);
}

impl World {
    fn verdict_of_newest(&self, repo: &str) -> (String, Option<String>, String) {
        let name = format!("crcr/{repo}/relay/dispatch");
        let runs = self.github.state().world.check_runs(UPSTREAM);
        let found = runs.into_iter().rfind(|run| run.name == name).expect("it has a check run");
        (found.status, found.conclusion, found.title)
    }
}

#[tokio::test]
async fn a_pull_request_is_dispatched_if_its_files_cannot_be_had() {
    let world = World::new().await;
    let state = &world.github.state().world;
    world.push_file("acme/two", "dispatch: {paths: ['aten/**']}\n").await;
    state.fail(COMPARE, 1, Fault::status(500));
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL, "GitHub doesn't tell");
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let many: Vec<String> = (0..400).map(|n| format!("docs/{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    state.set_changed_files(UPSTREAM, NEWER, &many);
    world.event("synchronize").await;
    assert_eq!(world.dispatched(), ALL, "GitHub lists only the first 300");
    let without_files = "7".repeat(40);
    world.change(|pull| pull.head_sha.clone_from(&without_files));
    world.event("synchronize").await;
    assert_eq!(world.dispatched(), ALL, "a head with a commit has no list of files");
}

#[tokio::test]
async fn only_the_newest_head_is_dispatched_after_the_quiet_time_and_the_check_run_says_until_when()
{
    let world = World::new().await;
    for repo in ["acme/two", "acme/four"] {
        world.push_file(repo, "dispatch: {quiet-minutes: 10}\n").await;
    }
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/four", "acme/two"]));
    let (status, _, title) = world.verdict_of("acme/four");
    assert_eq!(status, "queued");
    assert!(title.starts_with("Held back until 20"), "{title}");
    world.later(Duration::from_secs(9 * 60));
    world.push(NEWER).await;
    world.dispatched();
    world.work_after(Duration::from_secs(9 * 60)).await;
    assert_eq!(
        world.dispatched(),
        Vec::<String>::new(),
        "the first head's time is over, and it is gone"
    );
    world.work_after(Duration::from_secs(61)).await;
    let sent = world.github.state().world.take_dispatches();
    let heads: Vec<_> = sent
        .iter()
        .map(|one| one.client_payload["payload"]["pull_request"]["head"]["sha"].as_str().unwrap())
        .collect();
    assert_eq!(heads, [NEWER, NEWER]);
    // What the backend chose to wait isn't the relay's latency.
    let facts = world.results.dispatches(&world.always()).unwrap();
    let two = facts.iter().find(|fact| fact.repo == "acme/two" && fact.head_sha == NEWER).unwrap();
    assert!(two.sent_at.unwrap().duration_since(two.enqueued_at).as_secs() < 120, "{two:?}");
}

#[tokio::test]
async fn a_head_is_held_back_for_its_whole_quiet_time_even_if_the_relay_stops_meanwhile() {
    let world = World::with_file("acme/two", "dispatch: {quiet-minutes: 10}\n").await;
    let id = world.event("opened").await;
    world.dispatched();
    let key = state_records::dispatch_key(&id, &RepoName::new("acme/two").unwrap());
    let held = read_record::<Dispatch>(world.relay.store.as_ref(), key).await.unwrap();
    // As after a restart: the dispatch says until when it is held back, and its task doesn't.
    let tasks = vec![TaskKind::dispatch(&held.value.unwrap()).task(world.relay.now())];
    world.relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await.unwrap();
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    world.work_after(Duration::from_secs(601)).await;
    assert_eq!(world.dispatched(), ["acme/two"]);
}

#[tokio::test]
async fn a_pull_request_that_is_closed_in_its_quiet_time_starts_nothing() {
    let world = World::new().await;
    world.push_file("acme/two", "dispatch: {quiet-minutes: 10, events: [pull_request]}\n").await;
    let id = world.event("opened").await;
    world.close().await;
    world.dispatched();
    world.work_after(Duration::from_secs(601)).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    let status = world.status_of(&id, "acme/two").await;
    assert_eq!(status, DispatchStatus::LeftOut { why: LeftOut::Closed });
}

#[tokio::test]
async fn closing_reaches_whoever_was_sent_a_head_although_the_newest_one_was_left_out() {
    let world = World::new().await;
    let state = &world.github.state().world;
    world.push_file("acme/two", "dispatch: {paths: ['aten/**']}\n").await;
    world.push_file("acme/four", "dispatch: {drafts: skip}\n").await;
    state.set_changed_files(UPSTREAM, HEAD, &["aten/a.cpp"]);
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
    world.change(|pull| pull.draft = true);
    world.event("converted_to_draft").await;
    state.set_changed_files(UPSTREAM, NEWER, &["docs/a.rst"]);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.event("synchronize").await;
    assert_eq!(world.dispatched(), all_but(&["acme/two", "acme/four"]));
    world.close().await;
    assert_eq!(world.dispatched(), ALL, "it may cancel a run");
}

#[tokio::test]
async fn closing_starts_nothing_at_a_backend_that_was_sent_no_head() {
    let world = World::with_file("acme/four", "dispatch: {drafts: skip}\n").await;
    world.change(|pull| pull.draft = true);
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
    world.close().await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
}

#[tokio::test]
async fn pull_request_that_is_closed_and_opened_again_within_a_second_is_tested() {
    let world = World::with_file("acme/four", "dispatch: {quiet-minutes: 10}\n").await;
    world.event("opened").await;
    world.change(|pull| pull.open = false);
    let closed = world.pull_request("closed");
    world.github.state().world.change_pull(UPSTREAM, 7, |pull| pull.open = true);
    world.event("reopened").await;
    world.send(&closed).await;
    world.work().await;
    world.dispatched();
    for _ in 0..3 {
        world.wait(Duration::from_secs(601)).await;
    }
    assert_eq!(world.dispatched(), ["acme/four"], "the last one was that it was opened");
    assert_eq!(world.verdict_of("acme/four").0, "queued");
}

#[tokio::test]
async fn a_head_is_dispatched_again_only_if_its_run_may_have_been_cancelled() {
    let world = World::new().await;
    for repo in ["acme/two", "acme/four"] {
        world.push_file(repo, "dispatch: {quiet-minutes: 10}\n").await;
    }
    let minutes = async |count: u64| {
        world.wait(Duration::from_secs(60 * count)).await;
        world.dispatched()
    };
    let close_and_open = async || {
        world.close().await;
        world.change(|pull| pull.open = true);
        let id = world.event("reopened").await;
        world.dispatched();
        id
    };
    let first = world.event("opened").await;
    world.dispatched();
    assert_eq!(minutes(4).await, Vec::<String>::new());
    let second = close_and_open().await;
    assert_eq!(minutes(7).await, Vec::<String>::new(), "the second event begins the wait again");
    let same = DispatchStatus::LeftOut { why: LeftOut::SameHead };
    assert_eq!(world.status_of(&first, "acme/four").await, same);
    assert_eq!(world.verdict_of("acme/four").0, "queued");
    assert_eq!(minutes(4).await, ["acme/four", "acme/two"]);
    assert!(matches!(world.status_of(&second, "acme/four").await, DispatchStatus::Sent { .. }));
    close_and_open().await;
    assert_eq!(minutes(11).await, ["acme/four", "acme/two"], "`closed` cancelled its run");
    let other = "c3".repeat(20);
    for (head, sent) in [(other.as_str(), true), (HEAD, true)] {
        world.push(head).await;
        assert_eq!(minutes(11).await.is_empty(), !sent, "{head}: the other head cancelled its run");
    }
}

#[tokio::test]
async fn a_head_that_was_dispatched_before_it_became_a_draft_isnt_dispatched_when_it_is_ready() {
    let world = World::with_file("acme/four", "dispatch: {drafts: skip}\n").await;
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
    world.change(|pull| pull.draft = true);
    world.event("converted_to_draft").await;
    world.change(|pull| pull.draft = false);
    world.event("ready_for_review").await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    assert_eq!(world.verdict_of("acme/four").0, "queued");
}

#[tokio::test]
async fn a_draft_waits_until_it_is_ready_for_review_and_only_for_backends_that_take_none() {
    let world = World::with_file("acme/four", "dispatch: {drafts: skip}\n").await;
    world.change(|pull| pull.draft = true);
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
    // With auto-merge, GitHub would merge it as soon as it is ready.
    let (_, conclusion, title) = world.verdict_of("acme/four");
    assert_eq!(conclusion.as_deref(), Some("action_required"));
    assert!(title.contains("ready for review"), "{title}");
    world.change(|pull| pull.draft = false);
    world.event("ready_for_review").await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    let (status, ..) = world.verdict_of("acme/four");
    assert_eq!(status, "queued", "it is required again");
}

#[tokio::test]
async fn draft_that_becomes_ready_while_its_dispatch_waits_is_not_lost() {
    let world = World::new().await;
    let limited = Fault::Answer {
        status: StatusCode::TOO_MANY_REQUESTS,
        retry_after: Some(600),
        body: json!({"message": "You have exceeded a secondary rate limit"}).to_string(),
    };
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, limited);
    world.change(|pull| pull.draft = true);
    world.send(&world.pull_request("opened")).await;
    assert_eq!(world.work().await.len(), 1);
    world.change(|pull| pull.draft = false);
    // Its file takes drafts, and it will get this one.
    let ready = world.pull_request("ready_for_review");
    world.send(&ready).await;
    world.work().await;
    world.push_file("acme/two", "dispatch: {drafts: skip}\n").await;
    // What blocks the merge has got the draft, and runs again.
    let mut sent = [all_but(&["acme/two"]), vec!["acme/four".to_owned()]].concat();
    sent.sort();
    assert_eq!(world.dispatched(), sent);
    world.work_after(Duration::from_secs(601)).await;
    assert_eq!(world.dispatched(), ["acme/two"]);
}

#[tokio::test]
async fn draft_that_becomes_ready_after_its_backend_began_to_take_drafts_is_not_lost() {
    let world = World::with_file("acme/four", "dispatch: {drafts: skip}\n").await;
    world.change(|pull| pull.draft = true);
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
    world.push_file("acme/four", "dispatch: {drafts: dispatch}\n").await;
    world.change(|pull| pull.draft = false);
    world.event("ready_for_review").await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    assert_eq!(world.verdict_of("acme/four").0, "queued");
}

#[tokio::test]
async fn head_of_a_draft_whose_opening_comes_late_reaches_the_backends_that_take_drafts() {
    let world = World::new().await;
    for repo in ALL {
        let drafts = if repo == "acme/four" { "skip" } else { "dispatch" };
        world.push_file(repo, &format!("dispatch: {{drafts: {drafts}}}\n")).await;
    }
    world.change(|pull| pull.draft = true);
    let opened = world.pull_request("opened");
    world.change(|pull| pull.draft = false);
    let ready = world.event("ready_for_review").await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    world.send(&opened).await;
    world.settle().await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
    let by_ready = DispatchStatus::Superseded { by: ready };
    assert_eq!(world.status_of(&opened.id, "acme/four").await, by_ready);
}

#[tokio::test]
async fn late_opening_of_a_draft_that_was_not_sent_is_superseded_by_the_next_head() {
    let world = World::new().await;
    for repo in ALL {
        world.push_file(repo, "dispatch: {drafts: dispatch}\n").await;
    }
    world.change(|pull| pull.draft = true);
    let opened = world.pull_request("opened");
    world.change(|pull| pull.draft = false);
    world.event("ready_for_review").await;
    assert_eq!(world.dispatched(), ["acme/four"], "it blocks the merge");
    world.send(&opened).await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let moved = world.pull_request("synchronize");
    world.send(&moved).await;
    world.work().await;
    assert_eq!(world.dispatched(), ALL, "once, the newest head");
    let by_moved = DispatchStatus::Superseded { by: moved.id };
    assert_eq!(world.status_of(&opened.id, "acme/two").await, by_moved);
}

#[tokio::test]
async fn dispatches_above_the_days_number_wait_for_the_next_day_and_required_checks_dont() {
    let world = World::new().await;
    for repo in ["acme/two", "acme/four"] {
        world.push_file(repo, "dispatch: {max-per-day: 1}\n").await;
    }
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let waiting = world.event("synchronize").await;
    assert_eq!(world.dispatched(), all_but(&["acme/two"]));
    assert_eq!(world.status_of(&waiting, "acme/two").await, DispatchStatus::Queued);
    world.work_after(Duration::from_secs(24 * 3600 - 300)).await;
    assert_eq!(world.dispatched(), ["acme/two"], "its place of the next day");
}

#[tokio::test]
async fn one_strangers_heads_leave_room_for_the_next_authors_on_the_same_day() {
    let world = World::with_file("acme/two", "dispatch: {max-per-day: 8}\n").await;
    let head = async |n: usize, author: &str, is_stranger: bool| {
        world.change(|pull| {
            pull.head_sha = format!("{n:040x}");
            pull.author = author.to_owned();
            pull.is_stranger = is_stranger;
        });
        world.event("synchronize").await;
        world.dispatched().contains(&"acme/two".to_owned())
    };
    let mut sent = 0;
    for n in 0..20 {
        let author = ["eve", "mallory"][n % 2];
        sent += usize::from(head(n, author, true).await);
    }
    assert_eq!(sent, 2, "a quarter of eight for all strangers");
    assert!(head(100, "alice", false).await, "she has a quarter of her own");
    let state = world.github.state();
    let push = state.push_payload(UPSTREAM, "refs/heads/main", HEAD);
    for _ in 0..5 {
        world.send(&state.world.delivery("push", &push)).await;
        world.work().await;
        assert!(
            world.dispatched().contains(&"acme/two".to_owned()),
            "upstream's own have no share"
        );
    }
    assert!(!head(101, "bob", false).await, "eight a day");
}

#[tokio::test]
async fn required_check_of_a_backend_that_comes_to_l4_doesnt_wait_for_the_next_day() {
    let world = World::with_file("acme/two", "dispatch: {max-per-day: 1}\n").await;
    world.event("opened").await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let waiting = world.event("synchronize").await;
    world.dispatched();
    assert_eq!(world.status_of(&waiting, "acme/two").await, DispatchStatus::Queued);
    world.promote("acme/two").await;
    assert_eq!(world.dispatched(), ["acme/two"]);
    assert_eq!(world.verdict_of_newest("acme/two").0, "queued");
}

#[tokio::test]
async fn head_waits_for_its_place_if_a_backend_that_comes_to_l4_takes_no_pull_requests_there() {
    let world = World::with_file("acme/two", "dispatch: {max-per-day: 1}\n").await;
    world.event("opened").await;
    world.push(NEWER).await;
    world.dispatched();
    world.settle_with("L4:\n  - acme/two: {oncalls: [carol], events: [nightly]}\n").await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "its check isn't required");
}

#[tokio::test]
async fn head_that_found_no_place_is_tested_when_its_backend_comes_to_l4() {
    let world = World::with_file("acme/two", "dispatch: {max-per-day: 1}\n").await;
    world.event("opened").await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let left_out = world.event("synchronize").await;
    for _ in 0..2 {
        // A push takes the only place of each day right after midnight.
        let into_day = world.relay.now().as_second().rem_euclid(DAY_SECONDS);
        world.later(Duration::from_secs((DAY_SECONDS - into_day).unsigned_abs()));
        let state = world.github.state();
        let push = state.push_payload(UPSTREAM, "refs/heads/main", HEAD);
        world.send(&state.world.delivery("push", &push)).await;
        world.work().await;
        world.work_after(Duration::from_secs(301)).await;
    }
    let status = world.status_of(&left_out, "acme/two").await;
    assert_eq!(status, DispatchStatus::LeftOut { why: LeftOut::MaxPerDay });
    world.dispatched();
    world.promote("acme/two").await;
    assert_eq!(world.dispatched(), ["acme/two"]);
    assert_eq!(world.verdict_of_newest("acme/two").0, "queued", "nothing was tested: not green");
}

impl World {
    /// Moves a backend to L4, alone in the allowlist.
    async fn promote(&self, repo: &str) {
        self.settle_with(&format!("L4:\n  - {repo}: [carol]\n")).await;
    }
}

#[tokio::test]
async fn a_try_that_fails_doesnt_take_another_place_of_the_day() {
    let world = World::with_file("acme/two", "dispatch: {max-per-day: 1}\n").await;
    let route = "POST /repos/acme/two/dispatches";
    world.github.state().world.fail(route, 1, Fault::status(502));
    world.send(&world.pull_request("opened")).await;
    assert_eq!(world.work().await.len(), 1);
    world.wait(Duration::from_secs(120)).await;
    assert_eq!(world.dispatched(), ALL);
}

#[tokio::test]
async fn rerun_sends_what_was_left_out_whatever_the_file_says() {
    let world = World::with_file("acme/four", "dispatch: {events: [push]}\n").await;
    world.event("opened").await;
    assert_eq!(world.dispatched(), all_but(&["acme/four"]));
    let state = world.github.state();
    let run = state.world.check_runs(UPSTREAM).into_iter().find(|run| run.name.contains("four"));
    let payload = state.check_run_payload(UPSTREAM, run.unwrap().id, "rerequested");
    world.deliver("check_run", &payload).await;
    assert_eq!(world.dispatched(), ["acme/four"]);
    assert_eq!(world.verdict_of("acme/four").0, "queued");
}
