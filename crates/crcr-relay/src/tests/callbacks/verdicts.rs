//! What one backend says of one commit, whoever asked for it, whenever its runs appear and whatever changes meanwhile.

use crcr_standin::world::PullRequest;

use super::strangers::stranger;
use super::*;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
const THREE: &str = "crcr/acme/three/relay/dispatch";
const EVEN_NEWER: &str = "cccccccccccccccccccccccccccccccccccccccc";

/// The status and the conclusion of the check run of this name.
pub(crate) fn of(world: &World, name: &str) -> Option<(String, Option<String>)> {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let mut named = runs.into_iter().filter(|run| run.name == name && run.head_sha == HEAD);
    let found = named.next().map(|run| (run.status, run.conclusion));
    assert_eq!(named.count(), 0, "one check run of each name");
    found
}

pub(crate) fn ended(world: &World) -> Option<String> {
    of(world, DISPATCH).unwrap().1
}

pub(crate) async fn ended_after(world: &World, time: Duration) -> Option<String> {
    world.wait(time).await;
    ended(world)
}

/// With auto-merge, GitHub merges as soon as each required check has passed or was skipped.
#[tokio::test]
pub(crate) async fn commit_that_was_never_tested_is_no_success_when_it_is_pushed_again() {
    let world = World::listening(&[]).await;
    world.send(&world.pull_request("opened")).await;
    world.push(NEWER).await;
    assert!(received_heads(&world).iter().all(|head| head == NEWER));
    let untested = Some(("completed".to_owned(), Some("action_required".to_owned())));
    assert_eq!(of(&world, DISPATCH), untested);
    // A person can have it tested.
    press_rerun(&world).await;
    assert_eq!(received_heads(&world), [HEAD]);
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    world.push(HEAD).await;
    assert!(received_heads(&world).iter().all(|head| head == HEAD));
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
}

/// The heads of the dispatches since the last call.
fn received_heads(world: &World) -> Vec<String> {
    let dispatches = world.github.state().world.take_dispatches();
    let head = |payload: &Value| payload["payload"]["pull_request"]["head"]["sha"].clone();
    let heads = dispatches.iter().map(|dispatch| head(&dispatch.client_payload));
    heads.filter_map(|head| head.as_str().map(str::to_owned)).collect()
}

#[tokio::test]
pub(crate) async fn push_back_within_a_second_is_tested_in_whatever_order_its_webhooks_arrive() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let world = World::listening(&[]).await;
        let state = world.github.state();
        state.world.add_commit(UPSTREAM, NEWER);
        let event = |action: &str, head: &str, before: Option<&str>| {
            let mut payload = state.pull_request_payload(UPSTREAM, 7, action);
            payload["pull_request"]["head"]["sha"] = json!(head);
            payload["before"] = json!(before);
            state.world.delivery("pull_request", &payload)
        };
        let events = [
            event("opened", HEAD, None),
            event("synchronize", NEWER, Some(HEAD)),
            event("synchronize", HEAD, Some(NEWER)),
        ];
        for index in order {
            world.send(&events[index]).await;
        }
        world.settle().await;
        let dispatches = state.world.take_dispatches();
        let mut four = dispatches.iter().filter(|dispatch| dispatch.repository == "acme/four");
        let newest = four.next_back().expect("it is dispatched").client_payload.clone();
        assert_eq!(newest["payload"]["pull_request"]["head"]["sha"], HEAD, "{order:?}");
        assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)), "{order:?}");
        let (repo, job, run, attempt) = ("acme/four", "test", RUN, 1);
        let four = Downstream { repo, client_payload: newest, job, run, attempt };
        four.complete(&world, "success").await;
        assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("success"), "{order:?}");
    }
}

#[tokio::test]
pub(crate) async fn reports_from_a_renamed_default_branch_count_within_minutes() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    world.github.state().world.rename_default_branch("acme/four", "trunk");
    four.on_github(&world, "completed", Some("failure"));
    let mut claims = four.claims(&world);
    claims["ref"] = json!("refs/heads/trunk");
    let body = four.body("completed", Some("failure"));
    assert_eq!(four.report_as(&world, &claims, &body).await, said("completed"));
    assert_eq!(ended_after(&world, 3 * MINUTE).await.as_deref(), Some("failure"));
    assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("failure"));
}

#[tokio::test]
async fn failure_reported_before_the_default_branch_was_renamed_still_counts() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    let [lint, slow] = [RUN + 1, RUN + 2].map(|run| four.in_run(run));
    let (lint, slow) = (lint.of_job("lint"), slow.of_job("slow"));
    four.on_github(&world, "completed", Some("success"));
    four.start_and_end(&world, "failure").await;
    lint.workflow_on_github(&world, "lint.yml", "in_progress", None);
    lint.start(&world).await;
    world.wait(2 * MINUTE).await;
    world.github.state().world.rename_default_branch("acme/four", "trunk");
    // A run that begins now has the new name, and those of before keep the old one.
    slow.workflow_on_github(&world, "slow.yml", "completed", Some("success"));
    let mut claims = slow.claims(&world);
    claims["ref"] = json!("refs/heads/trunk");
    let body = slow.body("completed", Some("success"));
    assert_eq!(slow.report_as(&world, &claims, &body).await, said("completed"));
    world.wait(3 * MINUTE).await;
    lint.workflow_on_github(&world, "lint.yml", "completed", Some("success"));
    assert_eq!(lint.end(&world, "success").await, said("completed"));
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
    let job = |name: &str| of(&world, &format!("crcr/acme/four/CI/{name}")).unwrap().1;
    for (name, end) in [("test", "failure"), ("lint", "success"), ("slow", "success")] {
        assert_eq!(job(name).as_deref(), Some(end), "{name}");
    }
}

/// Somebody presses "Re-run" on the verdict on [`HEAD`].
pub(crate) async fn press_rerun(world: &World) {
    let state = world.github.state();
    let shown = state.world.check_runs(UPSTREAM);
    let shown = shown.iter().find(|run| run.name == DISPATCH && run.head_sha == HEAD).unwrap();
    let payload = state.check_run_payload(UPSTREAM, shown.id, "rerequested");
    let answer = world.send(&state.world.delivery("check_run", &payload)).await;
    assert_eq!(answer.0, StatusCode::ACCEPTED);
    world.settle().await;
}

#[tokio::test]
pub(crate) async fn another_pull_request_without_the_label_does_not_skip_the_check_of_a_labelled_one()
 {
    let world = World::listening(&[]).await;
    world.change(|pull| pull.labels.extend(["ciflow/crcr/npu".to_owned()]));
    let three = open(&world).await("acme/three");
    three.begin(&world).await;
    world.work().await;
    stranger(&world, "opened", HEAD).await;
    world.wait(MINUTE).await;
    assert_eq!(of(&world, THREE), Some(("in_progress".to_owned(), None)));
    three.finish(&world, "success").await;
    world.wait(2 * MINUTE).await;
    assert_eq!(of(&world, THREE).unwrap().1.as_deref(), Some("success"));
}

#[tokio::test]
pub(crate) async fn label_that_goes_counts_at_the_commit_that_its_pull_request_has_left() {
    let world = World::new().await;
    world.change(|pull| pull.labels.extend(["ciflow/crcr/npu".to_owned()]));
    let three = open(&world).await("acme/three");
    three.complete(&world, "failure").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, THREE).unwrap().1.as_deref(), Some("failure"));
    // Another pull request has the commit, and this one moves on and loses its label.
    stranger(&world, "opened", HEAD).await;
    world.settle().await;
    world.push(NEWER).await;
    world.change(|pull| pull.labels.clear());
    let state = world.github.state();
    let payload = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", false);
    world.deliver("pull_request", &payload).await;
    assert_eq!(of(&world, THREE).unwrap().1.as_deref(), Some("skipped"));
}

#[tokio::test]
pub(crate) async fn run_that_github_creates_late_is_waited_for() {
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    ci.complete(&world, "success").await;
    world.wait(Duration::from_secs(40)).await;
    assert_eq!(ended(&world), None, "GitHub may still start others");
    let late = ci.in_run(RUN + 1);
    late.workflow_on_github(&world, "late.yml", "in_progress", None);
    world.wait(MINUTE).await;
    assert_eq!(of(&world, DISPATCH).unwrap().0, "in_progress");
    late.workflow_on_github(&world, "late.yml", "completed", Some("failure"));
    assert_eq!(ended_after(&world, 75 * Duration::from_secs(1)).await.as_deref(), Some("failure"));
}

/// GitHub's list of an attempt also has the jobs that didn't run again, and may give them other numbers.
#[tokio::test]
pub(crate) async fn failure_that_did_not_run_again_stays_whatever_number_its_job_has_in_githubs_list()
 {
    for (listed, expected) in [("test", "failure"), ("test, attempt 2", "success")] {
        let (world, four) = World::listening(&[]).await.opened("acme/four").await;
        four.complete(&world, "failure").await;
        let again = Downstream { attempt: 2, client_payload: four.client_payload.clone(), ..four };
        again.on_github(&world, "completed", Some("success"));
        world.github.state().runs.add_job(RUN, listed);
        again.of_job("lint").start_and_end(&world, "success").await;
        assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some(expected), "{listed}");
    }
}

/// The job that failed at first has another name in the newest attempt, and reports no more.
#[tokio::test]
pub(crate) async fn rerun_in_which_every_job_was_skipped_passes_no_blocking_check() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    let again = Downstream { attempt: 2, client_payload: four.client_payload.clone(), ..four };
    again.on_github(&world, "completed", Some("success"));
    world.github.state().runs.add_job(RUN, "test, attempt 2");
    again.of_job("lint").start_and_end(&world, "skipped").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
    assert!(title(&world).contains("nothing was tested"), "{}", title(&world));
}

/// A scheduler that starts workflows of the backend by a dispatch of its own.
#[tokio::test]
pub(crate) async fn run_of_somebody_elses_dispatch_is_neither_waited_for_nor_counted() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "success").await;
    let nightly = four.in_run(RUN + 1);
    nightly.workflow_on_github(&world, "nightly.yml", "completed", Some("failure"));
    let runs = &world.github.state().runs;
    let run = runs.get(RUN + 1).unwrap();
    runs.add(Run {
        actor: "scheduler[bot]".to_owned(),
        title: Some("nightly".to_owned()),
        ..Run::clone(&run)
    });
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("success"));
}

/// GitHub starts runs minutes late during an incident, which a report of one of them shows.
#[tokio::test]
pub(crate) async fn run_that_github_creates_minutes_late_has_others_waited_for() {
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    world.wait(10 * MINUTE).await;
    ci.complete(&world, "success").await;
    let silent = ci.in_run(RUN + 1);
    world.later(Duration::from_secs(5));
    silent.workflow_on_github(&world, "silent.yml", "in_progress", None);
    assert_eq!(ended_after(&world, 3 * MINUTE).await, None);
    silent.workflow_on_github(&world, "silent.yml", "completed", Some("failure"));
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

/// By the relay's clock the run began before it was asked for.
#[tokio::test]
pub(crate) async fn failed_run_counts_although_the_relays_clock_is_ahead_of_githubs() {
    let world = World::with_clock_ahead(Duration::from_secs(30)).await;
    let ci = open(&world).await("acme/four");
    let silent = ci.in_run(RUN + 1);
    silent.workflow_on_github(&world, "silent.yml", "completed", Some("failure"));
    ci.complete(&world, "success").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn failed_late_run_counts_although_the_run_of_the_next_dispatch_is_not_there_yet()
{
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    ci.complete(&world, "success").await;
    world.wait(Duration::from_secs(45)).await;
    stranger(&world, "opened", NEWER).await;
    world.settle().await;
    let late = |run, end| {
        let run = ci.in_run(run);
        run.workflow_on_github(&world, "late.yml", "completed", Some(end));
    };
    late(RUN + 1, "failure");
    world.wait(Duration::from_secs(30)).await;
    assert_eq!(ended(&world), None, "it may be the run of either dispatch");
    late(RUN + 2, "success");
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

/// The run of the earlier dispatch began before GitHub could create one of the later dispatch, so the other run is the
/// later one's.
#[tokio::test]
pub(crate) async fn failed_run_counts_although_an_earlier_dispatch_could_have_started_it_too() {
    let world = World::listening(&[]).await;
    stranger(&world, "opened", NEWER).await;
    world.settle().await;
    let earlier = received(&world)("acme/four");
    earlier.workflow_on_github(&world, "late.yml", "completed", Some("success"));
    world.wait(Duration::from_secs(50)).await;
    let ci = Downstream { run: RUN + 1, ..open(&world).await("acme/four") };
    let late = ci.in_run(RUN + 2);
    late.workflow_on_github(&world, "late.yml", "completed", Some("failure"));
    ci.complete(&world, "success").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

/// None of the runs reports. The two earlier ones are those of the two earlier dispatches, in whichever order.
#[tokio::test]
pub(crate) async fn failed_run_counts_if_the_earlier_dispatches_have_runs_of_their_own() {
    let world = World::listening(&[]).await;
    for (action, head) in [("opened", NEWER), ("synchronize", EVEN_NEWER)] {
        stranger(&world, action, head).await;
        world.settle().await;
        world.later(Duration::from_secs(1));
    }
    let earlier = received(&world)("acme/four");
    let on_github = |run, end| {
        let run = earlier.in_run(run);
        run.workflow_on_github(&world, "gpu.yml", "completed", Some(end));
    };
    on_github(RUN + 1, "success");
    on_github(RUN + 2, "success");
    world.wait(Duration::from_secs(30)).await;
    let ci = open(&world).await("acme/four");
    on_github(RUN + 3, "failure");
    ci.complete(&world, "success").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

/// GitHub says that the run passed, as the workflow continues after errors.
#[tokio::test]
async fn first_failure_of_1001_jobs_is_not_lost() {
    let (world, ci) = World::new().await.opened("acme/four").await;
    ci.on_github(&world, "completed", Some("success"));
    for leg in 0..1001 {
        let client_payload = ci.client_payload.clone();
        let job = Downstream { job: format!("leg {leg}").leak(), client_payload, ..ci };
        let end = if leg == 0 { "failure" } else { "success" };
        assert_eq!(job.end(&world, end).await, said("completed"), "leg {leg}");
    }
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
async fn first_of_1002_jobs_is_waited_for() {
    let (world, ci) = World::new().await.opened("acme/four").await;
    ci.on_github(&world, "completed", Some("success"));
    for leg in 0..1002 {
        let client_payload = ci.client_payload.clone();
        let job = Downstream { job: format!("leg {leg}").leak(), client_payload, ..ci };
        match leg {
            0 => assert_eq!(job.start(&world).await, said("in_progress")),
            _ => assert_eq!(job.end(&world, "success").await, said("completed"), "leg {leg}"),
        }
    }
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH), Some(("in_progress".to_owned(), None)));
}

/// What the older head still waits for is dropped in one step, however much it is.
#[tokio::test]
async fn push_that_supersedes_4000_dispatches_is_accepted() {
    let world = World::new().await;
    let state = world.github.state();
    let repos: Vec<String> = (0..4000).map(|number| format!("acme/l{number}")).collect();
    for repo in &repos {
        state.world.install(repo);
    }
    world.enforce(&format!("L1: [{}]\n", repos.join(", "))).await;
    // The backends' files aren't read, as the limit of GitHub that follows is for dispatches.
    world.sql("DELETE FROM task");
    assert_eq!(world.send(&world.pull_request("opened")).await.0, StatusCode::ACCEPTED);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    assert_eq!(world.send(&world.pull_request("synchronize")).await.0, StatusCode::ACCEPTED);
    // GitHub's limit ends it after the first ones.
    state.world.limit(200, state.clock.now() + Duration::from_secs(3600));
    world.work().await;
    let dispatches = state.world.take_dispatches();
    let is_newer = |payload: &Value| payload.to_string().contains(NEWER);
    assert!(dispatches.len() > 50);
    assert!(dispatches.iter().all(|sent| is_newer(&sent.client_payload)));
}

#[tokio::test]
pub(crate) async fn failed_run_on_the_second_page_of_githubs_list_is_not_lost() {
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    for n in 0..120 {
        let other = ci.in_run(RUN + n);
        let end = if n == 0 { "failure" } else { "success" };
        other.workflow_on_github(&world, &format!("w{n}.yml"), "completed", Some(end));
    }
    let last = ci.in_run(RUN + 119);
    last.start_and_end(&world, "success").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn list_of_runs_that_github_does_not_show_as_a_whole_is_not_read_for_weeks() {
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    ci.on_github(&world, "completed", Some("success"));
    // With them there is one more than GitHub pages through.
    for n in 1..=1000 {
        let other = ci.in_run(RUN + n);
        other.workflow_on_github(&world, "bot.yml", "completed", Some("success"));
    }
    ci.end(&world, "success").await;
    world.wait(10 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH).unwrap().0, "in_progress");
    world.wait(6 * 60 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("failure"), "it isn't known, and never success");
    let calls = || world.github.state().traffic.calls("runs");
    let before = calls();
    for _ in 0..24 {
        world.wait(60 * MINUTE).await;
    }
    assert_eq!(calls(), before);
    let again = Downstream { attempt: 2, client_payload: ci.client_payload.clone(), ..ci };
    again.end(&world, "success").await;
    world.wait(2 * MINUTE).await;
    assert!(calls() > before, "after a new report it is read again");
}

/// What GitHub answers to the next requests for lists of runs.
fn answer_lists(world: &World, times: usize, runs: &[Value]) {
    let body = json!({ "total_count": runs.len(), "workflow_runs": runs }).to_string();
    let answer = Fault::Answer { status: StatusCode::OK, retry_after: None, body };
    world.github.state().traffic.fail("runs", times, answer);
}

/// GitHub's filtered lists are sometimes empty or old, so that a run which has reported isn't in them yet.
#[tokio::test]
pub(crate) async fn list_without_a_run_that_has_reported_is_not_the_whole_list() {
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    ci.on_github(&world, "completed", Some("success"));
    let silent = ci.in_run(RUN + 1);
    silent.workflow_on_github(&world, "silent.yml", "completed", Some("failure"));
    world.later(Duration::from_secs(70));
    answer_lists(&world, 2, &[]);
    ci.end(&world, "success").await;
    world.wait(Duration::from_secs(11)).await;
    assert_eq!(of(&world, DISPATCH), Some(("in_progress".to_owned(), None)));
    world.wait(5 * MINUTE).await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn failed_run_that_is_missing_in_a_later_list_still_counts() {
    for is_deleted in [false, true] {
        let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
        ci.on_github(&world, "completed", Some("success"));
        let silent = ci.in_run(RUN + 1);
        silent.workflow_on_github(&world, "silent.yml", "completed", Some("failure"));
        ci.end(&world, "success").await;
        assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
        let runs = &world.github.state().runs;
        if is_deleted {
            let elsewhere = Run { repository: "acme/gone".to_owned(), ..Run::push() };
            runs.add(Run { id: RUN + 1, ..elsewhere });
        } else {
            answer_lists(&world, 1, &[runs.get(RUN).unwrap().api("http://github.test")]);
        }
        // A further report has the runs listed again.
        let other = ci.of_job("other");
        other.end(&world, "success").await;
        for _ in 0..20 {
            world.wait(MINUTE).await;
        }
        assert_eq!(ended(&world).as_deref(), Some("failure"), "deleted: {is_deleted}");
    }
}

#[tokio::test]
pub(crate) async fn run_that_was_deleted_after_it_passed_has_passed() {
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    ci.finish(&world, "success").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("success"));
    world.github.state().runs.add(Run {
        id: RUN,
        repository: "acme/gone".to_owned(),
        ..Run::push()
    });
    let other = ci.of_job("other");
    other.end(&world, "success").await;
    for _ in 0..20 {
        world.wait(MINUTE).await;
    }
    assert_eq!(ended(&world).as_deref(), Some("success"));
}

#[tokio::test]
pub(crate) async fn run_of_which_github_does_not_say_when_it_was_created_is_no_success() {
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    ci.on_github(&world, "completed", Some("success"));
    let mut undated = world.github.state().runs.get(RUN).unwrap().api("http://github.test");
    undated["id"] = json!(RUN + 1);
    undated["path"] = json!(".github/workflows/undated.yml");
    undated["created_at"] = Value::Null;
    let dated = world.github.state().runs.get(RUN).unwrap().api("http://github.test");
    answer_lists(&world, 1000, &[undated, dated]);
    ci.end(&world, "success").await;
    world.wait(10 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH).unwrap().0, "in_progress");
    assert!(title(&world).contains("doesn't say of one when it was created"), "{}", title(&world));
    world.wait(6 * 60 * MINUTE).await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

fn title(world: &World) -> String {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    runs.into_iter().find(|run| run.name == DISPATCH && run.head_sha == HEAD).unwrap().title
}

/// The repository is taken out of the App's installation, or made private, while the run goes on.
#[tokio::test]
pub(crate) async fn run_that_was_open_and_cannot_be_read_any_more_ends_the_verdict_with_the_reason()
{
    let (world, ci) = World::listening(&[]).await.opened("acme/four").await;
    ci.on_github(&world, "in_progress", None);
    ci.start_and_end(&world, "success").await;
    world.wait(2 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH).unwrap().0, "in_progress");
    world.github.state().world.uninstall("acme/four");
    for _ in 0..70 {
        world.wait(5 * MINUTE).await;
    }
    assert_eq!(of(&world, DISPATCH).unwrap().0, "in_progress", "it may be installed again");
    // The token is valid for an hour.
    for _ in 0..20 {
        world.wait(5 * MINUTE).await;
    }
    assert_eq!(ended(&world).as_deref(), Some("failure"));
    assert!(title(&world).contains("isn't known how run 9000 ended"), "{}", title(&world));
    let calls = || world.github.state().world.calls().len();
    let before = calls();
    for _ in 0..24 {
        world.wait(60 * MINUTE).await;
    }
    assert_eq!(calls(), before, "nobody asks any more");
    // A further report has it asked for again.
    world.github.state().world.install("acme/four");
    ci.on_github(&world, "completed", Some("success"));
    let again = ci.run_again();
    again.finish(&world, "success").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("success"));
}

/// A run that may be the dispatch's is open, and can't be read any more.
#[tokio::test]
pub(crate) async fn open_run_that_may_be_the_dispatchs_and_cannot_be_read_any_more_ends_the_verdict()
 {
    let world = World::listening(&[]).await;
    stranger(&world, "opened", NEWER).await;
    world.settle().await;
    drop(received(&world));
    let ci = open(&world).await("acme/four");
    let silent = |run| {
        let silent = ci.in_run(run);
        silent.workflow_on_github(&world, "silent.yml", "in_progress", None);
    };
    silent(RUN + 1);
    silent(RUN + 2);
    ci.finish(&world, "success").await;
    world.wait(2 * MINUTE).await;
    assert!(title(&world).contains("may be this commit's is open"), "{}", title(&world));
    world.github.state().world.uninstall("acme/four");
    for _ in 0..90 {
        world.wait(5 * MINUTE).await;
    }
    assert_eq!(ended(&world).as_deref(), Some("failure"));
    assert!(title(&world).contains("isn't known which runs it had"), "{}", title(&world));
}

#[tokio::test]
pub(crate) async fn two_legs_of_one_name_cannot_hide_a_failure() {
    for [first, second] in [["success", "failure"], ["failure", "success"]] {
        let (world, four) = World::listening(&[]).await.opened("acme/four").await;
        four.on_github(&world, "completed", Some("success"));
        assert_eq!(four.end(&world, first).await, said("completed"));
        assert_eq!(four.end(&world, second).await, said("completed"));
        assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
        assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("failure"));
    }
}

/// Which file a run is of is known once GitHub was asked. Until then the newer run is taken for a later one of the
/// file.
#[tokio::test]
pub(crate) async fn job_of_two_workflow_files_of_one_name_shows_the_failure_of_the_older_run() {
    let world = World::listening(&[]).await;
    let newer = Downstream { run: RUN + 1, ..open(&world).await("acme/four") };
    newer.workflow_on_github(&world, "gpu.yml", "completed", Some("success"));
    newer.end(&world, "success").await;
    world.wait(2 * MINUTE).await;
    assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("success"));
    let older = newer.in_run(RUN);
    older.workflow_on_github(&world, "ci.yml", "completed", Some("failure"));
    older.end(&world, "failure").await;
    world.settle().await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
    assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn job_that_never_ended_keeps_a_run_open_that_github_says_passed() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.start(&world).await;
    four.on_github(&world, "completed", Some("success"));
    world.wait(10 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH).unwrap().0, "in_progress");
    assert_eq!(ended_after(&world, 6 * 60 * MINUTE).await.as_deref(), Some("timed_out"));
}

#[tokio::test]
pub(crate) async fn conclusion_that_the_relay_does_not_know_is_no_success() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.on_github(&world, "completed", Some("mostly_harmless"));
    four.end(&world, "success").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn run_of_skipped_jobs_alone_does_not_pass_a_blocking_check() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.on_github(&world, "completed", Some("success"));
    four.end(&world, "skipped").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn backend_that_leaves_and_returns_to_l4_during_a_run_shows_its_result() {
    for meanwhile in ["L2: [acme/four]\n", "L1: [acme/one]\n"] {
        let (world, four) = World::listening(&[]).await.opened("acme/four").await;
        four.begin(&world).await;
        world.work().await;
        world.settle_with(meanwhile).await;
        assert_eq!(ended(&world).as_deref(), Some("neutral"), "re-evaluated at once");
        four.on_github(&world, "completed", Some("failure"));
        assert_eq!(four.end(&world, "failure").await, said("completed"), "{meanwhile}");
        world.wait(2 * MINUTE).await;
        world.settle_with("L4:\n  - acme/four: [dave]\n").await;
        world.wait(2 * MINUTE).await;
        assert_eq!(ended(&world).as_deref(), Some("failure"), "{meanwhile}");
        assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("failure"), "{meanwhile}");
    }
}

#[tokio::test]
pub(crate) async fn backend_that_is_promoted_to_l4_gets_its_required_check_on_open_pull_requests() {
    let (world, three) = World::listening(&[]).await.opened("acme/three").await;
    three.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, THREE), None);
    world.settle_with("L4:\n  - acme/three: [carol]\n").await;
    world.wait(MINUTE).await;
    assert_eq!(of(&world, THREE).unwrap().1.as_deref(), Some("success"));
}

#[tokio::test]
pub(crate) async fn required_check_appears_although_a_replica_that_reads_the_allowlist_later_evaluates_it_first()
 {
    let mut world = World::new().await;
    let _ = open(&world).await;
    let mut other = world.other_replica().await;
    world.allow("L4:\n  - acme/three: [carol]\n");
    world.relay.allowlist.refresh(&world.relay.app, world.relay.now()).await;
    std::mem::swap(&mut world.relay, &mut other);
    assert_eq!(world.work().await, Vec::<String>::new());
    assert_eq!(of(&world, THREE), None, "it still has the allowlist of before");
    world.relay.allowlist.refresh(&world.relay.app, world.relay.now()).await;
    assert_eq!(world.work().await, Vec::<String>::new());
    assert_eq!(of(&world, THREE), Some(("queued".to_owned(), None)));
}

#[tokio::test]
pub(crate) async fn backend_that_returns_to_l3_keeps_the_check_of_a_labelled_pull_request() {
    let world = World::listening(&[]).await;
    world.change(|pull| pull.labels.extend(["ciflow/crcr/npu".to_owned()]));
    let four = open(&world).await("acme/four");
    four.finish(&world, "failure").await;
    world.wait(2 * MINUTE).await;
    world.settle_with("L3:\n  npu:\n    acme/four: [dave]\n").await;
    assert_eq!(ended(&world).as_deref(), Some("failure"));
}

#[tokio::test]
async fn check_of_a_backend_that_goes_from_l4_to_l3_tells_of_no_label_that_was_removed() {
    let world = World::listening(&[]).await;
    open(&world).await("acme/four");
    world.settle_with("L3:\n  npu:\n    acme/four: [dave]\n").await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let shown = runs.iter().find(|run| run.name == DISPATCH).unwrap();
    let told = "No label asks for this backend; results go to the HUD only";
    assert_eq!((shown.conclusion.as_deref(), shown.title.as_str()), (Some("skipped"), told));
}

#[tokio::test]
pub(crate) async fn change_of_case_in_the_allowlist_leaves_one_check_run() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.finish(&world, "failure").await;
    world.wait(2 * MINUTE).await;
    world.settle_with("L4:\n  - Acme/Four: [dave]\n").await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let verdicts: Vec<_> =
        runs.iter().filter(|run| run.name.ends_with("/relay/dispatch")).collect();
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    assert_eq!(verdicts[0].conclusion.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn check_run_is_not_created_twice_if_the_case_changes_before_its_creation_is_confirmed()
 {
    let world = World::listening(&[]).await;
    let create = format!("POST /repos/{UPSTREAM}/check-runs");
    world.github.state().world.fail(&create, 2, Fault::ResetAfterwards);
    world.send_and_work("opened").await;
    world.settle_with("L4:\n  - Acme/Four: [dave]\n").await;
    world.wait(60 * MINUTE).await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let verdicts: Vec<_> = runs
        .iter()
        .filter(|run| run.name.eq_ignore_ascii_case(DISPATCH))
        .map(|run| run.name.as_str())
        .collect();
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
}

#[tokio::test]
pub(crate) async fn label_of_the_second_in_which_the_pull_request_was_opened_is_not_lost() {
    let world = World::listening(&[]).await;
    let state = world.github.state();
    let opened = world.pull_request("opened");
    state.world.change_pull(UPSTREAM, 7, |pull| {
        pull.labels.insert("ciflow/crcr/npu".to_owned());
    });
    let payload = state.label_payload(UPSTREAM, 7, "ciflow/crcr/npu", true);
    world.deliver("pull_request", &payload).await;
    world.send(&opened).await;
    world.settle().await;
    assert_eq!(of(&world, THREE), Some(("queued".to_owned(), None)));
}

/// The push to a branch upstream was tested without check runs.
#[tokio::test]
pub(crate) async fn pull_request_that_had_moved_on_when_its_webhook_came_shows_the_result_of_its_commit()
 {
    let world = World::listening(&[]).await;
    let state = world.github.state();
    state.world.add_commit(UPSTREAM, HEAD);
    let push = state.push_payload(UPSTREAM, "refs/heads/main", HEAD);
    world.deliver("push", &push).await;
    let four = received(&world)("acme/four");
    four.finish(&world, "failure").await;
    world.wait(2 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH), None);
    let pull = PullRequest::from_fork(8, UPSTREAM, HEAD, state.clock.now());
    state.world.put_pull(UPSTREAM, pull);
    let late = state.pull_request_payload(UPSTREAM, 8, "opened");
    world.later(Duration::from_secs(1));
    stranger(&world, "synchronize", NEWER).await;
    world.send(&state.world.delivery("pull_request", &late)).await;
    assert_eq!(ended_after(&world, MINUTE).await.as_deref(), Some("failure"));
    assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("failure"));
}
