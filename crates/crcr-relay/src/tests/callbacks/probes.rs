//! Failures that stored results don't explain: what the relay runs once more, and what the check run says then.

use axum::http::Request;
use crcr_domain::RepoName;
use crcr_domain::probes::{ProbeBudget, ProbeReason, ProbeTag};
use crcr_standin::world::Started;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::probes::probe::{self, ProbeRequest, ProbeWaiter, Requested};

const BUDGET: &str = "probes: {reruns-per-day: 20, commits-per-day: 20}\n";
/// The commit that pull request 7 branched off.
const BASE: &str = "b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5b5";

impl Downstream {
    async fn end_with(&self, world: &World, failed: &[&str]) {
        if failed.is_empty() {
            self.end(world, "success").await;
        } else {
            self.fail(world, failed).await;
        }
    }

    /// Ends with these failing tests, and so does the run on GitHub.
    async fn fail(&self, world: &World, tests: &[&str]) {
        let mut body = self.body("completed", Some("failure"));
        let tests: Vec<Value> = tests.iter().map(|name| json!({ "name": name })).collect();
        body["workflow"]["failed_tests_detail"] = Value::Array(tests);
        self.on_github(world, "completed", Some("failure"));
        let (status, answer) = self.report(world, &body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        world.settle().await;
    }
}

/// A relay that gets webhooks and reports over HTTP.
async fn world() -> World {
    let world = World::listening(&[]).await;
    world.push_file("acme/four", BUDGET).await;
    world
}

/// A minute later.
async fn soon(world: &World) {
    world.wait(Duration::from_secs(61)).await;
}

fn shown(world: &World) -> (Option<String>, String) {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let run = runs.into_iter().find(|run| run.name == JOB).unwrap();
    (run.conclusion, run.summary)
}

#[tokio::test]
async fn failed_jobs_run_once_more_and_if_they_pass_it_was_a_flake_and_nothing_is_probed() {
    let (world, four) = world().await.opened("acme/four").await;
    four.start(&world).await;
    four.fail(&world, &["test_add"]).await;
    assert_eq!(world.github.state().world.take_reruns(), [], "other jobs may still report");
    soon(&world).await;
    let reruns = world.github.state().world.take_reruns();
    let wanted = Started::Rerun {
        repository: "acme/four".to_owned(),
        run_id: RUN,
        attempt: 2,
        failed_only: true,
    };
    assert_eq!(reruns, [wanted]);
    let (conclusion, text) = shown(&world);
    assert_eq!(conclusion.as_deref(), Some("failure"), "it says what is known, and no more");
    assert!(text.contains("Being looked into: the failed jobs run once more"), "{text}");
    let again = four.run_again();
    again.start_and_end(&world, "success").await;
    again.on_github(&world, "completed", Some("success"));
    for _ in 0..3 {
        soon(&world).await;
    }
    assert_eq!(shown(&world).0.as_deref(), Some("success"), "a re-run counts as ever");
    assert_eq!(world.dispatched(), Vec::<String>::new());
    assert_eq!(world.github.state().world.take_reruns(), []);
}

/// Fails twice; returns the probe of the merge base.
async fn failed_twice(world: &World) -> Downstream {
    let four = open(world).await("acme/four");
    fail_twice(world, four).await;
    let probe = received(world)("acme/four");
    Downstream { run: RUN + 1, ..probe }
}

async fn fail_twice(world: &World, four: Downstream) {
    four.start(world).await;
    four.fail(world, &["test_add"]).await;
    soon(world).await;
    assert_eq!(world.github.state().world.take_reruns().len(), 1);
    let again = four.run_again();
    again.start(world).await;
    again.fail(world, &["test_add"]).await;
    soon(world).await;
    assert_eq!(world.github.state().world.take_reruns(), [], "once");
}

/// A new head of the same pull request, on the same merge base.
async fn next_head(world: &World, number: u64) -> Downstream {
    world.change(|pull| pull.head_sha = format!("{number:040x}"));
    world.event("synchronize").await;
    Downstream { run: RUN + 10 * number, ..received(world)("acme/four") }
}

#[tokio::test]
async fn merge_base_whose_infrastructure_failed_is_run_again_for_the_next_head() {
    let world = world().await;
    let broken = failed_twice(&world).await;
    broken.start(&world).await;
    let mut body = broken.body("completed", Some("failure"));
    body["workflow"]["phase"] = json!("setup");
    assert_eq!(broken.report(&world, &body).await, said("completed"));
    world.work().await;
    fail_twice(&world, next_head(&world, 1).await).await;
    let probe = Downstream { run: RUN + 2, ..received(&world)("acme/four") };
    assert_eq!(probe.client_payload["payload"]["after"], BASE);
    assert_eq!(probe.client_payload["crcr"]["probe"]["attempt"], 2);
    probe.start_and_end(&world, "success").await;
    world.work().await;
    let shown = || {
        let runs = world.github.state().world.check_runs(UPSTREAM);
        runs.into_iter().rfind(|run| run.name == JOB).unwrap().summary
    };
    assert!(shown().contains("it passed on the merge base and failed twice here"), "{}", shown());
    fail_twice(&world, next_head(&world, 2).await).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "the base has a result");
    assert!(!shown().contains("Being looked into"), "{}", shown());
}

#[tokio::test]
async fn merge_base_that_is_between_two_of_its_jobs_is_not_run_again_for_the_next_head() {
    let world = world().await;
    let probe = failed_twice(&world).await;
    let build = Downstream { job: "build", client_payload: probe.client_payload.clone(), ..probe };
    build.on_github(&world, "in_progress", None);
    build.start_and_end(&world, "success").await;
    world.work().await;
    fail_twice(&world, next_head(&world, 1).await).await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "its tests are still to come");
    probe.start(&world).await;
    probe.finish(&world, "success").await;
    world.work().await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let shown = runs.into_iter().rfind(|run| run.name == JOB).unwrap().summary;
    assert!(shown.contains("it passed on the merge base and failed twice here"), "{shown}");
}

#[tokio::test]
async fn merge_base_is_run_only_a_few_times_if_its_infrastructure_fails_again_and_again() {
    let world = world().await;
    let mut probe = failed_twice(&world).await;
    for number in 1..=3 {
        assert_eq!(probe.client_payload["crcr"]["probe"]["attempt"], number);
        probe.start(&world).await;
        let mut body = probe.body("completed", Some("failure"));
        body["workflow"]["phase"] = json!("setup");
        probe.report(&world, &body).await;
        world.work().await;
        fail_twice(&world, next_head(&world, number).await).await;
        if number < 3 {
            probe = Downstream { run: RUN + 10 * number + 5, ..received(&world)("acme/four") };
        }
    }
    assert_eq!(world.dispatched(), Vec::<String>::new(), "three times");
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let text = runs.into_iter().rfind(|run| run.name == JOB).unwrap().summary;
    assert!(!text.contains("Being looked into"), "{text}");
}

#[tokio::test]
async fn merge_base_is_run_as_a_push_and_if_it_fails_too_the_check_run_says_so_and_no_rate_moves() {
    let world = world().await;
    let probe = failed_twice(&world).await;
    let payload = &probe.client_payload;
    assert_eq!(payload["event_type"], "push");
    assert_eq!(payload["payload"]["after"], BASE);
    assert_eq!(payload["payload"]["ref"], "refs/heads/main");
    assert_eq!(payload["payload"]["repository"]["full_name"], UPSTREAM);
    let told = json!({ "reason": "merge_base", "of": HEAD, "attempt": 1 });
    assert_eq!(payload["crcr"]["probe"], told);
    let (_, text) = shown(&world);
    assert!(text.contains("the merge base is run to see whether it fails, too"), "{text}");
    let before = world.relay.results.attempts(&world.always()).await.unwrap();
    probe.start(&world).await;
    probe.fail(&world, &["test_add"]).await;
    let (conclusion, text) = shown(&world);
    assert_eq!(conclusion.as_deref(), Some("failure"), "a probe changes no conclusion");
    assert!(text.contains("Not this pull request: it failed on the merge base, too"), "{text}");
    let results = &world.relay.results;
    assert_eq!(results.attempts(&world.always()).await.unwrap(), before);
    let sent = results.dispatches(&world.always()).await.unwrap();
    assert!(sent.iter().all(|fact| fact.event != EventName::Probe), "{sent:?}");
    let pushes = results.push_attempts(&world.always()).await.unwrap();
    assert!(pushes.iter().all(|row| row.event == EventName::Probe && row.head_sha == BASE));
    assert_eq!(checks(&world).len(), 2, "the merge base has no check run");
}

#[tokio::test]
async fn if_the_merge_base_passes_and_it_failed_twice_it_is_this_pull_request() {
    let world = world().await;
    let probe = failed_twice(&world).await;
    probe.start_and_end(&world, "success").await;
    world.work().await;
    let (conclusion, text) = shown(&world);
    assert_eq!(conclusion.as_deref(), Some("failure"));
    let sentence = "This pull request: it passed on the merge base and failed twice here";
    assert!(text.contains(sentence), "{text}");
}

#[tokio::test]
async fn merge_base_of_long_ago_is_not_run() {
    let world = world().await;
    drop(open(&world).await);
    let then = world.relay.now() - crate::limits::MAX_BASE_AGE - Duration::from_secs(3600);
    world.github.state().world.add_commit_on(UPSTREAM, &commit(1), &commit(0), then);
    world.change(|pull| pull.base_sha = commit(1));
    let four = next_head(&world, 5).await;
    fail_twice(&world, four).await;
    for _ in 0..3 {
        soon(&world).await;
    }
    assert_eq!(world.dispatched(), Vec::<String>::new());
    let (_, text) = shown(&world);
    assert!(!text.contains("Being looked into"), "{text}");
}

/// The branch has no commit in common with upstream's.
#[tokio::test]
async fn failure_without_a_merge_base_is_not_said_to_be_looked_into_for_ever() {
    let world = world().await;
    let compare = format!("GET /repos/{UPSTREAM}/compare/*");
    world.github.state().world.fail(&compare, 100, Fault::status(404));
    fail_twice(&world, open(&world).await("acme/four")).await;
    let (_, text) = shown(&world);
    assert!(text.contains("Being looked into"), "{text}");
    world.wait(world.relay.config.lost_after).await;
    let (_, text) = shown(&world);
    assert!(!text.contains("Being looked into"), "{text}");
}

#[tokio::test]
async fn without_a_budget_or_for_an_older_head_nothing_is_run() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.fail(&world, &["test_add"]).await;
    soon(&world).await;
    assert_eq!(world.github.state().world.take_reruns(), [], "no file, no probes");
    world.push_file("acme/four", BUDGET).await;
    let again = four.run_again();
    again.fail(&world, &["test_add"]).await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.send_and_work("synchronize").await;
    world.dispatched();
    soon(&world).await;
    assert_eq!(world.github.state().world.take_reruns(), [], "nobody waits for it");
    assert_eq!(world.dispatched(), Vec::<String>::new());
}

#[tokio::test]
async fn a_run_that_is_still_open_is_waited_for() {
    let (world, four) = world().await.opened("acme/four").await;
    four.fail(&world, &["test_add"]).await;
    four.on_github(&world, "in_progress", None);
    soon(&world).await;
    assert_eq!(world.github.state().world.take_reruns(), []);
    four.on_github(&world, "completed", Some("failure"));
    soon(&world).await;
    assert_eq!(world.github.state().world.take_reruns().len(), 1);
}

/// It is a build of Buildkite with a number, or was deleted.
#[tokio::test]
async fn if_github_does_not_have_the_run_nothing_is_given_up_and_the_merge_base_is_run() {
    let (world, four) = world().await.opened("acme/four").await;
    let mut body = four.body("completed", Some("failure"));
    body["workflow"]["failed_tests_detail"] = json!([{ "name": "test_add" }]);
    assert_eq!(four.report(&world, &body).await, said("completed"));
    world.work().await;
    soon(&world).await;
    assert_eq!(world.github.state().world.take_reruns(), []);
    assert_eq!(received(&world)("acme/four").client_payload["payload"]["after"], BASE);
}

#[tokio::test]
async fn a_long_run_is_asked_about_less_and_less_often() {
    let (world, four) = world().await.opened("acme/four").await;
    four.fail(&world, &["test_add"]).await;
    four.on_github(&world, "in_progress", None);
    world.later(Duration::from_secs(5 * 3600));
    let mut longest = jiff::SignedDuration::ZERO;
    for _ in 0..5 {
        soon(&world).await;
        let tasks = world.relay.store.tasks(Some(crcr_store::TaskState::Ready), 1000).await;
        let tasks = tasks.unwrap();
        let look = tasks.iter().find(|task| task.kind() == "confirm").unwrap();
        longest = longest.max(look.due_at.duration_since(world.relay.now()));
    }
    assert!(longest > jiff::SignedDuration::from_mins(2), "{longest}");
}

#[tokio::test]
async fn strangers_have_one_share_of_the_probes_together_and_upstreams_own_go_on() {
    let world = world().await;
    drop(open(&world).await);
    let repo = RepoName::new("acme/four").unwrap();
    let budget = ProbeBudget { reruns_per_day: 0, commits_per_day: 8 };
    let delivery = world.pull_request("reopened");
    world.send(&delivery).await;
    let key = crate::state_records::dispatch_key(&delivery.id, &repo);
    let read = crcr_store::read_record(world.relay.store.as_ref(), key).await.unwrap();
    let dispatch: crcr_domain::protocol::dispatch::Dispatch = read.value.unwrap();
    let ask = async |n: u32, asker: Option<(&str, bool)>| {
        let asker =
            asker.map(|(author, is_known_author)| crcr_domain::protocol::dispatch::Dispatch {
                author: Some(author.to_owned()),
                is_known_author,
                ..dispatch.clone()
            });
        let request = ProbeRequest {
            repo: &repo,
            commit: &format!("{n:040x}"),
            tag: ProbeTag { reason: ProbeReason::MergeBase, of: HEAD.to_owned(), attempt: 1 },
            waiter: ProbeWaiter::Head { head_sha: HEAD.to_owned() },
            budget,
            asker: asker.as_ref(),
        };
        matches!(probe::request(&world.relay, request).await.unwrap(), Requested::Asked(_))
    };
    let strangers = [("eve", false), ("mallory", false), ("trudy", false)];
    let mut asked = vec![];
    for (n, who) in (1..).zip(strangers) {
        asked.push(ask(n, Some(who)).await);
    }
    assert_eq!(asked, [true, true, false], "a quarter of eight");
    assert!(ask(11, Some(("alice", true))).await, "somebody whom upstream knows");
    assert!(ask(12, Some(("alice", true))).await);
    assert!(!ask(13, Some(("alice", true))).await, "has a share, too");
    assert!(ask(1, Some(("trudy", false))).await, "waiting for a probe that runs costs nothing");
    for n in 21..=24 {
        assert!(ask(n, None).await, "{n}");
    }
    assert!(!ask(25, None).await, "eight a day");
}

/// Dispatches a push of `sha`, and reports which tests of `acme/two` failed.
async fn push(world: &World, run: u64, sha: &str, failed: &[&str]) {
    push_to(world, "main", run, sha, failed).await;
}

async fn push_to(world: &World, branch: &str, run: u64, sha: &str, failed: &[&str]) {
    let state = world.github.state();
    let payload = state.push_payload(UPSTREAM, &format!("refs/heads/{branch}"), sha);
    world.deliver("push", &payload).await;
    let two = Downstream { run, ..received(world)("acme/two") };
    two.end_with(world, failed).await;
    world.work().await;
}

fn commit(n: usize) -> String {
    format!("{n:02x}").repeat(20)
}

/// Each commit is the parent of the next one.
fn add_commits(world: &World, last: usize) {
    let state = &world.github.state().world;
    state.add_commit(UPSTREAM, &commit(0));
    for n in 1..=last {
        state.add_commit_on(UPSTREAM, &commit(n), &commit(n - 1), world.relay.now());
    }
}

/// Has `acme/two` run what it is sent until nothing comes any more; returns what that was. `fails` has the failing
/// tests of a commit.
async fn run_probes(world: &World, fails: impl Fn(&str) -> &'static [&'static str]) -> Vec<String> {
    let mut runs = vec![];
    for _ in 0..40 {
        soon(world).await;
        for sent in world.github.state().world.take_dispatches() {
            let payload = sent.client_payload;
            assert_eq!(payload["crcr"]["probe"]["reason"], "bisect", "{payload}");
            let sha = payload["payload"]["after"].as_str().unwrap().to_owned();
            let first = world.relay.now().as_second().unsigned_abs();
            let probe = Downstream {
                repo: "acme/two",
                client_payload: payload,
                job: "test",
                run: first + runs.len() as u64,
                attempt: 1,
            };
            probe.end_with(world, fails(&sha)).await;
            runs.push(sha);
        }
    }
    runs
}

async fn page(world: &World, path: &str) -> String {
    let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
    let body = world.answer(request).await.into_body();
    String::from_utf8(axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn commit_that_broke_a_branch_is_found_named_on_the_pages_and_told_once() {
    let alerts = MockServer::start().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(200)).mount(&alerts).await;
    let url = format!("{}/culprits", alerts.uri());
    let world =
        World::listening(&[("CRCR_ALERT_URL", &url), ("CRCR_PUBLIC_URL", "https://relay.test")])
            .await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    add_commits(&world, 32);
    push(&world, 1, &commit(0), &[]).await;
    world.later(Duration::from_secs(3600));
    push(&world, 2, &commit(32), &["test_add"]).await;
    let culprit = 21;
    let fails = |sha: &str| (culprit..=32).any(|n| commit(n) == sha);
    let runs = run_probes(&world, |sha| if fails(sha) { &["test_add"] } else { &[] }).await;
    assert!((3..=16).contains(&runs.len()), "{runs:?}");
    let overview = crate::probes::overview(&world.relay).await.unwrap();
    let found = &overview.culprits[0];
    assert_eq!(overview.culprits.len(), 1);
    assert!(found.is_certain, "{found:?}");
    assert_eq!(found.suspect.as_ref().unwrap().sha, commit(culprit));
    assert_eq!(
        (found.good_sha.as_str(), found.tests[0].as_str()),
        (commit(0).as_str(), "test_add")
    );
    let sentence = "test broke with 151515151515, by octocat";
    for path in ["/crcr/acme/two", "/hud/Acme/Upstream/main"] {
        let page = page(&world, path).await;
        assert!(page.contains(sentence), "{path}: {page}");
    }
    let told: Vec<Value> = alerts
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|request| serde_json::from_slice(&request.body).unwrap())
        .filter(|body: &Value| body["event"] == "culprit_found")
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["culprit"]["suspect"]["sha"], commit(culprit));
    assert_eq!(told[0]["url"], "https://relay.test/crcr/acme/two");
    let text = told[0]["text"].as_str().unwrap();
    assert!(text.starts_with(&format!("acme/two: {sentence}: 99")), "{text}");
    assert_eq!(world.github.state().world.take_reruns(), [], "nothing is reverted or re-run");
}

#[tokio::test]
async fn if_the_backend_itself_broke_no_commit_is_named_and_nobody_is_told() {
    let alerts = MockServer::start().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(200)).mount(&alerts).await;
    let world = World::listening(&[("CRCR_ALERT_URL", &alerts.uri())]).await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    add_commits(&world, 1);
    let request = ProbeRequest {
        repo: &RepoName::new("acme/two").unwrap(),
        commit: &commit(0),
        tag: ProbeTag { reason: ProbeReason::MergeBase, of: HEAD.to_owned(), attempt: 1 },
        waiter: ProbeWaiter::Head { head_sha: HEAD.to_owned() },
        budget: ProbeBudget { reruns_per_day: 0, commits_per_day: 40 },
        asker: None,
    };
    probe::request(&world.relay, request).await.unwrap();
    world.settle().await;
    let before = Downstream { run: 50, ..received(&world)("acme/two") };
    before.end(&world, "success").await;
    push(&world, 1, &commit(0), &[]).await;
    world.later(Duration::from_secs(3600));
    push(&world, 2, &commit(1), &["test_add"]).await;
    let runs = run_probes(&world, |_| &["test_add"]).await;
    assert!((2..=16).contains(&runs.len()), "{runs:?}");
    let overview = crate::probes::overview(&world.relay).await.unwrap();
    let found = &overview.culprits[0];
    assert!(found.backend_changed && found.is_certain && found.suspect.is_none(), "{found:?}");
    let sentence = "No commit broke test: the backend changed after 000000000000";
    let text = page(&world, "/crcr/acme/two").await;
    assert!(text.contains(sentence), "{text}");
    let told = alerts.received_requests().await.unwrap();
    let told = told.iter().map(|request| String::from_utf8_lossy(&request.body).into_owned());
    let told: Vec<_> = told.filter(|body| body.contains("culprit_found")).collect();
    assert_eq!(told, Vec::<String>::new());
}

/// Only the answer about this commit.
async fn answer(world: &World, bad_sha: &str) -> crcr_domain::probes::Culprit {
    let culprits = crate::probes::overview(&world.relay).await.unwrap().culprits;
    culprits.into_iter().find(|found| found.bad_sha == bad_sha).expect("there is an answer")
}

#[tokio::test]
async fn commits_that_a_merge_brings_in_are_part_of_the_merge_and_no_candidates() {
    let world = World::listening(&[]).await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    let [q1, m1, s1, m2] = [0, 1, 2, 3].map(commit);
    let (state, now) = (&world.github.state().world, world.relay.now());
    state.add_commit(UPSTREAM, &q1);
    state.add_commit_on(UPSTREAM, &m1, &q1, now);
    state.add_commit_on(UPSTREAM, &s1, &q1, now);
    state.add_merge(UPSTREAM, &m2, &[&m1, &s1], now);
    push(&world, 1, &q1, &[]).await;
    world.later(Duration::from_secs(3600));
    push(&world, 2, &m2, &["test_add"]).await;
    let has_fault = |sha: &str| sha == m1 || sha == m2;
    let runs = run_probes(&world, |sha| if has_fault(sha) { &["test_add"] } else { &[] }).await;
    assert!(!runs.contains(&s1), "the branch never was at this commit: {runs:?}");
    let found = answer(&world, &m2).await;
    assert_eq!((found.is_certain, found.candidates), (true, 2));
    assert_eq!(found.suspect.unwrap().sha, m1);
}

#[tokio::test]
async fn a_result_on_another_branch_neither_begins_nor_hides_a_search() {
    let world = World::listening(&[("CRCR_PUSH_REF", "main,release/*")]).await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    add_commits(&world, 4);
    let [released, fixed] = [8, 9].map(commit);
    let (state, now) = (&world.github.state().world, world.relay.now());
    state.add_commit_on(UPSTREAM, &released, &commit(0), now);
    state.add_commit_on(UPSTREAM, &fixed, &released, now);
    let mut run = 0;
    for (branch, sha, failed) in [
        ("main", &commit(2), &[] as &[&str]),
        ("release/1", &released, &["test_add"]),
        ("release/1", &fixed, &[]),
        ("release/1", &released, &["test_add"]),
        ("main", &commit(4), &["test_add"]),
    ] {
        run += 1;
        world.later(Duration::from_secs(3600));
        push_to(&world, branch, run, sha, failed).await;
    }
    let has_fault = |sha: &str| sha == commit(3) || sha == commit(4);
    run_probes(&world, |sha| if has_fault(sha) { &["test_add"] } else { &[] }).await;
    let found = answer(&world, &commit(4)).await;
    assert_eq!((found.good_sha, found.is_certain), (commit(2), true));
    assert_eq!(found.suspect.unwrap().sha, commit(3));
}

#[tokio::test]
async fn failed_jobs_of_one_commit_cost_one_comparison_with_each_earlier_commit() {
    const COMPARISONS: &str = "GET /repos/acme/upstream/compare/*";
    let world = World::listening(&[("CRCR_PUSH_REF", "main,release/*")]).await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    add_commits(&world, 2);
    let released = commit(8);
    let state = world.github.state();
    state.world.add_commit_on(UPSTREAM, &released, &commit(0), world.relay.now());
    let commits = [("main", commit(1)), ("release/1", released), ("main", commit(2))];
    for (run, (branch, sha)) in (1..).zip(commits) {
        world.later(Duration::from_secs(3600));
        let payload = state.push_payload(UPSTREAM, &format!("refs/heads/{branch}"), &sha);
        world.send(&state.world.delivery("push", &payload)).await;
        world.work().await;
        let two = received(&world)("acme/two");
        let failed: &[&str] = if sha == commit(2) { &["test_add"] } else { &[] };
        for job in ["test", "slow test", "lint"] {
            let client_payload = two.client_payload.clone();
            let job = Downstream { job, run, client_payload, ..two };
            job.end_with(&world, failed).await;
        }
        world.work().await;
    }
    let before = state.world.count(COMPARISONS);
    soon(&world).await;
    assert_eq!(state.world.count(COMPARISONS) - before, 2);
    state.world.take_dispatches();
}

#[tokio::test]
async fn a_test_that_breaks_in_a_job_that_is_red_already_has_its_culprit_found() {
    let world = World::listening(&[]).await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    add_commits(&world, 9);
    let fails = |sha: &str| match (0..=9).find(|n| commit(*n) == sha) {
        Some(0) => &[] as &[&str],
        Some(1..=4) => &["test_one"],
        _ => &["test_one", "test_two"],
    };
    for (run, n) in [(1, 0), (2, 1), (3, 9)] {
        world.later(Duration::from_secs(3600));
        push(&world, run, &commit(n), fails(&commit(n))).await;
        run_probes(&world, fails).await;
    }
    let found = answer(&world, &commit(9)).await;
    assert_eq!((found.good_sha, found.is_certain), (commit(1), true));
    assert_eq!((found.tests, found.suspect.unwrap().sha), (vec!["test_two".to_owned()], commit(5)));
}

/// docs/benchmarks.md has the figures of more.
const FLAKY_BRANCHES: u64 = 20;

/// Searches the commit that broke a branch of 64, where good commits fail one time in ten. Returns whether it is the most
/// probable one, whether it was named, and the number of runs.
async fn search_flaky_branch(seed: u64) -> (bool, bool, usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let culprit = random.random_range(1..=64);
    let world = World::listening(&[]).await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    add_commits(&world, 64);
    push(&world, 1, &commit(0), &[]).await;
    world.later(Duration::from_secs(3600));
    push(&world, 2, &commit(64), &["test_add"]).await;
    let mut run = 10;
    for _ in 0..60 {
        soon(&world).await;
        for sent in world.github.state().world.take_dispatches() {
            let payload = sent.client_payload;
            let sha = payload["payload"]["after"].as_str().unwrap();
            let has_fault = (culprit..=64).any(|n| commit(n) == sha);
            let fails = has_fault || random.random_bool(0.1);
            run += 1;
            let client_payload = payload.clone();
            let probe =
                Downstream { repo: "acme/two", client_payload, job: "test", run, attempt: 1 };
            probe.end_with(&world, if fails { &["test_add"] } else { &[] }).await;
        }
        let culprits = crate::probes::overview(&world.relay).await.unwrap().culprits;
        if let [found] = &culprits[..] {
            let is_right =
                found.suspect.as_ref().is_some_and(|suspect| suspect.sha == commit(culprit));
            let names_commit = found.is_certain && found.suspect.is_some();
            assert!(is_right || !names_commit, "{seed}: {found:?}");
            return (is_right, names_commit, found.runs);
        }
    }
    panic!("{seed}: the search doesn't end");
}

#[tokio::test]
async fn culprits_of_flaky_branches_are_named_over_http_with_few_runs() {
    let (mut right, mut named, mut runs, mut most) = (0, 0, 0, 0);
    for seed in 0..FLAKY_BRANCHES {
        let (is_right, is_named, of_search) = search_flaky_branch(seed).await;
        right += u64::from(is_right);
        named += u64::from(is_named);
        runs += of_search;
        most = most.max(of_search);
    }
    println!("{FLAKY_BRANCHES}: {right} right, {named} named, {runs} runs, at most {most}");
    assert!(10 * right >= 9 * FLAKY_BRANCHES, "{right} of {FLAKY_BRANCHES}");
    assert!(10 * named >= 8 * FLAKY_BRANCHES, "{named} of {FLAKY_BRANCHES}");
    assert!(most <= 16, "{most}");
}

#[tokio::test]
async fn other_tests_that_fail_in_between_are_not_taken_for_the_one_that_is_searched() {
    let world = World::listening(&[]).await;
    world.push_file("acme/two", "probes: {commits-per-day: 40}\n").await;
    add_commits(&world, 32);
    push(&world, 1, &commit(0), &[]).await;
    world.later(Duration::from_secs(3600));
    push(&world, 2, &commit(32), &["test_add"]).await;
    let at = |sha: &str| (0..=32).find(|n| commit(*n) == sha).unwrap();
    // More than a check run shows.
    let others: Vec<&'static str> = (0..40).map(|n| &*format!("test_{n}").leak()).collect();
    let others: &'static [&'static str] = others.leak();
    let runs = run_probes(&world, |sha| match at(sha) {
        0..10 => &[],
        10..21 => others,
        _ => &["test_add"],
    });
    assert!((3..=16).contains(&runs.await.len()));
    let found = answer(&world, &commit(32)).await;
    assert_eq!(found.suspect.as_ref().unwrap().sha, commit(21), "{found:?}");
    assert!(found.is_certain);
}

#[tokio::test]
async fn a_broken_file_shows_on_the_backends_page() {
    let world = World::with_file("acme/two", "probes: {rerun: 1}\n").await;
    let text = page(&world, "/crcr/acme/two").await;
    assert!(
        text.contains("`rerun` isn&#39;t a key") || text.contains("`rerun` isn't a key"),
        "{text}"
    );
    assert!(!page(&world, "/crcr/acme/four").await.contains("isn't in force"));
}
