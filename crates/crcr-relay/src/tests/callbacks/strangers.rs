//! What somebody else's pull request at a commit changes in the verdict on it: nothing that is known already.

use crcr_standin::runs::Job;
use crcr_standin::traffic::Fault;
use crcr_standin::world::PullRequest;

use super::branches::send_to_another_branch;
use super::verdicts::{MINUTE, ended, ended_after, of};
use super::*;
use crate::limits;

/// A stranger's pull request, with `head`.
pub(crate) async fn stranger(world: &World, action: &str, head: &str) {
    strangers_pull(world, action, head, false).await;
}

async fn strangers_pull(world: &World, action: &str, head: &str, draft: bool) {
    let state = world.github.state();
    let pull = PullRequest {
        author: "stranger".to_owned(),
        draft,
        ..PullRequest::from_fork(8, UPSTREAM, head, state.clock.now())
    };
    state.world.put_pull(UPSTREAM, pull);
    let payload = state.pull_request_payload(UPSTREAM, 8, action);
    let answer = world.send(&state.world.delivery("pull_request", &payload)).await;
    assert_eq!(answer.0, StatusCode::ACCEPTED);
}

/// The run of a stranger's pull request at the head of another one, whose own run ended like this.
pub(crate) async fn strangers_run_after(world: &World, end: &str) -> Downstream {
    let four = open(world).await("acme/four");
    four.complete(world, end).await;
    world.wait(5 * MINUTE).await;
    stranger(world, "opened", HEAD).await;
    world.settle().await;
    received(world)("acme/four").in_run(RUN + 1)
}

#[tokio::test]
pub(crate) async fn strangers_pull_request_at_a_failed_commit_leaves_its_check_failed() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
    // Without a backlog.
    stranger(&world, "opened", HEAD).await;
    world.settle().await;
    assert_eq!(ended(&world).as_deref(), Some("failure"), "it isn't reset to queued");
    // With one: the stranger pushes on before the dispatch is sent.
    world.wait(MINUTE).await;
    stranger(&world, "reopened", HEAD).await;
    world.later(Duration::from_secs(1));
    stranger(&world, "synchronize", NEWER).await;
    assert_eq!(ended_after(&world, MINUTE).await.as_deref(), Some("failure"), "it isn't skipped");
    assert_eq!(ended_after(&world, 3 * 60 * MINUTE).await.as_deref(), Some("failure"));
}

/// A workflow may skip its tests for a draft, or for a pull request to another branch.
#[tokio::test]
pub(crate) async fn strangers_run_that_leaves_out_the_failed_job_leaves_the_check_failed() {
    let world = World::new().await;
    let strangers = strangers_run_after(&world, "failure").await;
    strangers.of_job("lint").complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
    strangers.end(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("success"), "the failed job ran again");
}

/// The stranger fails the tests again, and then goes to a branch where the workflow leaves them out.
#[tokio::test]
pub(crate) async fn failure_that_a_stranger_repeats_and_then_leaves_out_stays() {
    let world = World::new().await;
    let strangers = strangers_run_after(&world, "failure").await;
    strangers.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
    stranger(&world, "reopened", HEAD).await;
    world.settle().await;
    let last = received(&world)("acme/four").in_run(RUN + 2);
    last.of_job("lint").complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

/// Only so many deliveries of one author at a commit are read.
#[tokio::test]
pub(crate) async fn author_cannot_hide_a_failure_behind_many_drafts() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
    for number in 0..limits::DELIVERIES_PER_ORIGIN as u64 {
        let draft = draft_of_the_author(&world, 100 + number).await.in_run(RUN + 1 + number);
        draft.of_job("lint").complete(&world, "success").await;
    }
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
pub(crate) async fn author_cannot_hide_an_open_run_behind_many_drafts() {
    // Those that are closed again have their runs cancelled.
    for end in ["success", "cancelled"] {
        let (world, four) = World::new().await.opened("acme/four").await;
        four.begin(&world).await;
        world.wait(MINUTE).await;
        for number in 0..limits::DELIVERIES_PER_ORIGIN as u64 {
            let draft = draft_of_the_author(&world, 100 + number).await.in_run(RUN + 1 + number);
            draft.of_job("lint").complete(&world, end).await;
        }
        for _ in 0..3 {
            world.wait(2 * MINUTE).await;
        }
        assert_eq!(of(&world, DISPATCH), Some(("in_progress".to_owned(), None)), "{end}");
    }
}

/// Its runs follow each other, so that only the last one counts.
#[tokio::test]
async fn author_cannot_hide_a_failure_behind_many_failures_of_one_draft() {
    let world = World::new().await;
    open(&world).await("acme/four").complete(&world, "failure").await;
    world.wait(5 * MINUTE).await;
    let failures = limits::DELIVERIES_PER_ORIGIN as u64;
    for number in 0..=failures {
        let action = if number == 0 { "opened" } else { "reopened" };
        let draft = draft_at(&world, 100, action).await.in_run(RUN + 1 + number);
        let end = if number < failures { "failure" } else { "success" };
        draft.of_job("lint").complete(&world, end).await;
        world.wait(2 * MINUTE).await;
    }
    assert_eq!(ended(&world).as_deref(), Some("failure"));
}

/// A workflow may leave out the tests of drafts.
#[tokio::test]
async fn author_cannot_hide_behind_many_drafts_that_a_pull_request_has_no_answer_yet() {
    let world = World::new().await;
    open(&world).await("acme/four");
    for number in 0..=limits::DELIVERIES_PER_ORIGIN as u64 {
        let draft = draft_of_the_author(&world, 100 + number).await.in_run(RUN + 1 + number);
        draft.of_job("lint").complete(&world, "success").await;
    }
    for _ in 0..3 {
        world.wait(2 * MINUTE).await;
    }
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
}

/// Another pull request of the author at the same commit, whose dispatch is received.
pub(crate) async fn draft_of_the_author(world: &World, number: u64) -> Downstream {
    draft_at(world, number, "opened").await
}

async fn draft_at(world: &World, number: u64, action: &str) -> Downstream {
    let state = world.github.state();
    let author = state.world.pull(UPSTREAM, 7).unwrap().author;
    let pull = PullRequest {
        author,
        draft: true,
        ..PullRequest::from_fork(number, UPSTREAM, HEAD, state.clock.now())
    };
    state.world.put_pull(UPSTREAM, pull);
    let payload = state.pull_request_payload(UPSTREAM, number, action);
    world.deliver("pull_request", &payload).await;
    received(world)("acme/four")
}

/// A job of a run on GitHub that ends like this.
fn job_on_github(world: &World, run: u64, check_run_id: u64, conclusion: &str) {
    let runs = &world.github.state().runs;
    let job = runs.add_job(run, &check_run_id.to_string());
    let conclusion = Some(conclusion.to_owned());
    runs.update_job(&Job { check_run_id, conclusion, ..job });
}

/// A stranger's pull request at the head, whose run is a success.
async fn stranger_passes(world: &World) {
    stranger(world, "opened", HEAD).await;
    world.settle().await;
    received(world)("acme/four").in_run(RUN + 1).complete(world, "success").await;
}

/// Not every job reports, and only GitHub knows how the others ended: of a large matrix on several pages.
#[tokio::test]
pub(crate) async fn strangers_run_that_passes_all_that_reports_does_not_stand_for_a_failure_that_never_did()
 {
    for (unreported, passed, expected) in [
        ("failure", 0, "failure"),
        ("success", 0, "success"),
        ("failure", 150, "failure"),
        ("success", 150, "success"),
    ] {
        let (world, four) = World::listening(&[]).await.opened("acme/four").await;
        four.on_github(&world, "completed", Some("failure"));
        job_on_github(&world, RUN, 77, "failure");
        for number in 0..passed {
            job_on_github(&world, RUN, 100 + number, "success");
        }
        job_on_github(&world, RUN, 999, unreported);
        four.start_and_end(&world, "failure").await;
        world.wait(5 * MINUTE).await;
        stranger_passes(&world).await;
        world.wait(5 * MINUTE).await;
        assert_eq!(ended(&world).as_deref(), Some(expected), "{unreported} after {passed} others");
    }
}

/// A list that can't be read says nothing of them.
#[tokio::test]
async fn failure_whose_jobs_github_does_not_show_is_not_replaced_by_another_pull_request() {
    let world = World::listening(&[]).await;
    world.github.state().traffic.fail("run-jobs", 100, Fault::status(404));
    let strangers = strangers_run_after(&world, "failure").await;
    strangers.complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

/// GitHub's lists sometimes lack what is there.
#[tokio::test]
async fn list_that_lacks_the_jobs_of_a_failed_run_lets_no_other_pull_request_replace_it() {
    for count in [0, 2] {
        let (world, four) = World::listening(&[]).await.opened("acme/four").await;
        four.on_github(&world, "completed", Some("failure"));
        for number in [77, 999] {
            job_on_github(&world, RUN, number, "failure");
        }
        let body = json!({ "total_count": count, "jobs": [] }).to_string();
        let empty = Fault::Answer { status: StatusCode::OK, retry_after: None, body };
        world.github.state().traffic.fail("run-jobs", 1, empty);
        four.start_and_end(&world, "failure").await;
        world.wait(5 * MINUTE).await;
        stranger_passes(&world).await;
        let end = ended_after(&world, 5 * MINUTE).await;
        assert_eq!(end.as_deref(), Some("failure"), "of {count}");
    }
}

/// A push's jobs have no check runs.
#[tokio::test]
pub(crate) async fn jobs_of_a_push_get_check_runs_when_a_pull_request_is_opened_at_its_commit() {
    let world = World::listening(&[]).await;
    let state = world.github.state();
    let payload = state.push_payload(UPSTREAM, "refs/heads/main", HEAD);
    world.deliver("push", &payload).await;
    let pushed = received(&world)("acme/four");
    pushed.on_github(&world, "completed", Some("failure"));
    for (job, end) in [("lint", "failure"), ("test", "success")] {
        pushed.of_job(job).start(&world).await;
        pushed.of_job(job).end(&world, end).await;
    }
    assert_eq!(checks_after(&world, 5 * MINUTE).await, []);
    let four = open(&world).await("acme/four").in_run(RUN + 1);
    let lint = of(&world, "crcr/acme/four/CI/lint").unwrap();
    assert_eq!(lint, ("completed".to_owned(), Some("failure".to_owned())));
    four.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("success"));
}

/// The tests begin after the linter. Until then only GitHub knows that the run isn't over.
#[tokio::test]
pub(crate) async fn strangers_run_that_has_passed_does_not_end_the_wait_for_an_open_one() {
    let (world, four) = World::listening(&[]).await.opened("acme/four").await;
    four.on_github(&world, "in_progress", None);
    let lint = four.of_job("lint");
    lint.start_and_end(&world, "success").await;
    world.wait(2 * MINUTE).await;
    stranger(&world, "opened", HEAD).await;
    world.settle().await;
    let strangers = received(&world)("acme/four").in_run(RUN + 1);
    strangers.of_job("lint").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH), Some(("in_progress".to_owned(), None)));
    four.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 2 * MINUTE).await.as_deref(), Some("failure"));
}

/// The stranger's pull request has been answered once, so it is waited for when it asks again.
#[tokio::test]
pub(crate) async fn stranger_who_opens_a_pull_request_again_and_closes_it_changes_no_result() {
    for (end, meanwhile) in [("failure", Some("failure")), ("success", None)] {
        let world = World::listening(&[]).await;
        let strangers = strangers_run_after(&world, end).await;
        strangers.of_job("lint").complete(&world, "success").await;
        assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some(end));
        for action in ["closed", "reopened"] {
            stranger(&world, action, HEAD).await;
            world.wait(MINUTE).await;
        }
        assert_eq!(ended(&world).as_deref(), meanwhile, "a failure isn't reset to queued");
        stranger(&world, "closed", HEAD).await;
        assert_eq!(ended_after(&world, MINUTE).await.as_deref(), Some(end), "nobody waits for it");
        for (action, head) in [("reopened", HEAD), ("synchronize", NEWER)] {
            stranger(&world, action, head).await;
            world.wait(MINUTE).await;
        }
        assert_eq!(ended(&world).as_deref(), Some(end), "it has another head");
        world.github.state().world.take_dispatches();
    }
}

/// Against the branch of before, the workflow leaves out what counts. The tests wait for a machine.
#[tokio::test]
pub(crate) async fn pull_request_to_another_branch_is_waited_for_although_another_one_passes_meanwhile()
 {
    let world = World::listening(&[]).await;
    let strangers = strangers_run_after(&world, "success").await;
    strangers.of_job("lint").complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("success"));
    send_to_another_branch(&world).await;
    let own = received(&world)("acme/four").in_run(RUN + 2);
    world.wait(MINUTE).await;
    stranger(&world, "reopened", HEAD).await;
    world.settle().await;
    let strangers = received(&world)("acme/four").in_run(RUN + 3);
    strangers.of_job("lint").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    own.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

#[tokio::test]
async fn new_account_that_sends_a_pull_request_to_a_branch_that_nobody_tests_changes_no_result() {
    let world = World::listening(&[]).await;
    open(&world).await("acme/four").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    let state = world.github.state();
    let send = async |action: &str, base: &str| {
        let pull = PullRequest {
            is_stranger: true,
            base_ref: base.to_owned(),
            ..PullRequest::from_fork(8, UPSTREAM, HEAD, state.clock.now())
        };
        state.world.put_pull(UPSTREAM, pull);
        let mut payload = state.pull_request_payload(UPSTREAM, 8, action);
        if action == "edited" {
            payload["changes"] = json!({ "base": { "ref": { "from": "main" } } });
        }
        world.deliver("pull_request", &payload).await;
        received(&world)("acme/four").in_run(RUN + 1)
    };
    send("opened", "main").await.complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    send("edited", "release").await;
    assert_eq!(ended(&world).as_deref(), Some("success"));
    assert_eq!(ended_after(&world, 3 * 60 * MINUTE).await.as_deref(), Some("success"));
}

/// Its workflow leaves out the tests of drafts.
#[tokio::test]
pub(crate) async fn draft_that_passed_does_not_pass_another_pull_request_at_its_commit() {
    let world = World::listening(&[]).await;
    strangers_pull(&world, "opened", HEAD, true).await;
    world.settle().await;
    let draft = received(&world)("acme/four");
    draft.of_job("lint").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(ended(&world).as_deref(), Some("success"), "a draft can't be merged");
    world.event("opened").await;
    assert_eq!(of(&world, DISPATCH), Some(("queued".to_owned(), None)));
    let own = received(&world)("acme/four").in_run(RUN + 1);
    own.complete(&world, "failure").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}

/// GitHub cancels a job that takes longer than its workflow allows.
#[tokio::test]
pub(crate) async fn cancelled_job_that_a_strangers_run_left_out_is_no_success() {
    let world = World::listening(&[]).await;
    stranger(&world, "opened", HEAD).await;
    world.settle().await;
    received(&world)("acme/four").of_job("lint").complete(&world, "success").await;
    world.wait(5 * MINUTE).await;
    world.event("opened").await;
    let own = received(&world)("acme/four").in_run(RUN + 1);
    own.on_github(&world, "completed", Some("cancelled"));
    let lint = own.of_job("lint");
    lint.start_and_end(&world, "success").await;
    own.start_and_end(&world, "cancelled").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("cancelled"));
}

/// Downstream workflows cancel their run when a pull request is closed.
#[tokio::test]
pub(crate) async fn stranger_who_opens_a_pull_request_at_a_commit_and_closes_it_changes_no_result()
{
    for end in ["failure", "success"] {
        let world = World::new().await;
        let strangers = strangers_run_after(&world, end).await;
        strangers.begin(&world).await;
        world.wait(2 * MINUTE).await;
        stranger(&world, "closed", HEAD).await;
        strangers.finish(&world, "cancelled").await;
        assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some(end));
        assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some(end));
    }
}

/// A job that is killed can't report its end.
#[tokio::test]
pub(crate) async fn job_of_a_strangers_cancelled_run_that_is_never_heard_of_again_changes_no_result()
 {
    let world = World::new().await;
    let strangers = strangers_run_after(&world, "success").await;
    strangers.begin(&world).await;
    world.wait(2 * MINUTE).await;
    stranger(&world, "closed", HEAD).await;
    strangers.on_github(&world, "completed", Some("cancelled"));
    for _ in 0..3 {
        world.wait(world.relay.config.lost_after).await;
    }
    assert_eq!(ended(&world).as_deref(), Some("success"));
    assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("success"));
}

#[tokio::test]
pub(crate) async fn job_that_a_strangers_run_skips_stays_failed() {
    let world = World::new().await;
    let strangers = strangers_run_after(&world, "failure").await;
    strangers.of_job("lint").complete(&world, "success").await;
    strangers.end(&world, "skipped").await;
    world.wait(5 * MINUTE).await;
    assert_eq!(of(&world, JOB).unwrap().1.as_deref(), Some("failure"));
    assert_eq!(ended(&world).as_deref(), Some("failure"));
}

/// New accounts cost nothing, and each may open a pull request at somebody else's commit.
#[tokio::test]
pub(crate) async fn crowd_of_new_accounts_at_a_commit_does_not_hide_its_failure() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.complete(&world, "failure").await;
    world.wait(5 * MINUTE).await;
    let state = world.github.state();
    for number in 100..134 {
        world.later(Duration::from_secs(1));
        let pull = PullRequest {
            author: format!("new-{number}"),
            is_stranger: true,
            ..PullRequest::from_fork(number, UPSTREAM, HEAD, state.clock.now())
        };
        state.world.put_pull(UPSTREAM, pull);
        let payload = state.pull_request_payload(UPSTREAM, number, "opened");
        world.send(&state.world.delivery("pull_request", &payload)).await;
        if number == 132 {
            world.settle().await;
            let theirs = received(&world)("acme/four").in_run(RUN + 1);
            theirs.of_job("lint").complete(&world, "success").await;
            world.settle().await;
        }
    }
    world.wait(5 * MINUTE).await;
    received(&world)("acme/four").in_run(RUN + 2).of_job("lint").complete(&world, "success").await;
    assert_eq!(ended_after(&world, 5 * MINUTE).await.as_deref(), Some("failure"));
}
