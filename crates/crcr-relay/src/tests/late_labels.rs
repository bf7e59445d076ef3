//! Labels that ask for check runs after an L3 backend got its dispatch.

use axum::http::StatusCode;
use crcr_standin::traffic::Fault;
use serde_json::json;

use super::callbacks::open;
use super::support::{NEWER, UPSTREAM, World};

const LABEL: &str = "ciflow/crcr/npu";
const DISPATCH: &str = "crcr/acme/three/relay/dispatch";

impl World {
    async fn label(&self, on: bool) {
        self.change(|pull| {
            if on {
                pull.labels.insert(LABEL.to_owned());
            } else {
                pull.labels.remove(LABEL);
            }
        });
        let payload = self.github.state().label_payload(UPSTREAM, 7, LABEL, on);
        let delivery = self.github.state().world.delivery("pull_request", &payload);
        assert_eq!(self.send(&delivery).await.0, StatusCode::ACCEPTED);
    }

    /// Status and conclusion of the dispatch's check run.
    fn shown(&self) -> Option<(String, Option<String>)> {
        let runs = self.github.state().world.check_runs(UPSTREAM);
        let run = runs.into_iter().find(|run| run.name == DISPATCH)?;
        Some((run.status, run.conclusion))
    }
}

fn completed(conclusion: &str) -> Option<(String, Option<String>)> {
    Some(("completed".to_owned(), Some(conclusion.to_owned())))
}

/// A dispatch that can't be sent yet, and whose check run a label has asked for since.
async fn labelled_before_it_was_sent() -> World {
    let world = World::new().await;
    let limit = Fault::Answer {
        status: StatusCode::TOO_MANY_REQUESTS,
        retry_after: Some(60),
        body: String::new(),
    };
    world.github.state().world.fail("POST /repos/acme/three/dispatches", 1, limit);
    world.send_and_work("opened").await;
    world.label(true).await;
    world.work().await;
    assert_eq!(world.shown(), Some(("queued".to_owned(), None)));
    world
}

#[tokio::test]
async fn check_run_of_a_late_label_ends_when_its_dispatch_is_superseded() {
    let world = labelled_before_it_was_sent().await;
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.send_and_work("synchronize").await;
    assert_eq!(world.shown(), completed("skipped"));
}

#[tokio::test]
async fn check_run_of_a_late_label_ends_when_its_dispatch_is_given_up() {
    let world = labelled_before_it_was_sent().await;
    let refused = Fault::Answer {
        status: StatusCode::UNPROCESSABLE_ENTITY,
        retry_after: None,
        body: json!({ "message": "no" }).to_string(),
    };
    world.github.state().world.fail("POST /repos/acme/three/dispatches", 1, refused);
    world.work_after(std::time::Duration::from_secs(3600)).await;
    assert_eq!(world.shown(), completed("timed_out"));
}

#[tokio::test]
async fn check_run_of_a_label_that_came_after_the_last_report_ends_with_its_run() {
    let (world, three) = World::new().await.opened("acme/three").await;
    three.on_github(&world, "in_progress", None);
    three.start_and_end(&world, "success").await;
    // Without the label nothing is shown, so nobody asks GitHub whether the run is over.
    for _ in 0..4 {
        world.work_after(world.relay.config.never_started_after).await;
    }
    assert_eq!(world.shown(), None);
    world.label(true).await;
    world.work().await;
    three.on_github(&world, "completed", Some("success"));
    world.work_after(std::time::Duration::from_secs(3600)).await;
    assert_eq!(world.shown(), completed("success"));
}

#[tokio::test]
async fn check_run_whose_label_was_away_during_an_outage_ends_with_its_run() {
    let world = World::new().await;
    world.label(true).await;
    let three = open(&world).await("acme/three");
    three.on_github(&world, "in_progress", None);
    three.start_and_end(&world, "success").await;
    world.work().await;
    assert_eq!(world.shown(), Some(("in_progress".to_owned(), None)));
    let update = format!("PATCH /repos/{UPSTREAM}/check-runs/*");
    world.github.state().world.fail(&update, 999, Fault::status(503));
    world.label(false).await;
    for _ in 0..4 {
        world.work_after(world.relay.config.never_started_after).await;
    }
    assert_eq!(world.shown(), Some(("in_progress".to_owned(), None)), "GitHub is still out");
    world.label(true).await;
    world.work().await;
    world.github.state().world.clear_faults();
    for conclusion in [None, Some("success")] {
        if conclusion.is_some() {
            three.on_github(&world, "completed", conclusion);
        }
        world.work_after(std::time::Duration::from_secs(3600)).await;
    }
    assert_eq!(world.shown(), completed("success"));
}

#[tokio::test]
async fn label_after_the_pull_request_was_closed_still_updates_its_check_runs() {
    let world = World::new().await;
    world.label(true).await;
    world.send_and_work("opened").await;
    assert_eq!(world.shown(), Some(("queued".to_owned(), None)));
    world.change(|pull| pull.open = false);
    world.send_and_work("closed").await;
    world.label(false).await;
    world.work().await;
    assert_eq!(world.shown(), completed("skipped"));
}

#[tokio::test]
async fn check_run_whose_creation_was_not_confirmed_ends_when_the_label_is_removed() {
    let world = World::new().await;
    world.send_and_work("opened").await;
    let create = format!("POST /repos/{UPSTREAM}/check-runs");
    world.github.state().world.fail(&create, 1, Fault::ResetAfterwards);
    world.label(true).await;
    world.work().await;
    assert_eq!(world.shown(), Some(("queued".to_owned(), None)));
    world.label(false).await;
    world.work_after(std::time::Duration::from_secs(3600)).await;
    assert_eq!(world.shown(), completed("skipped"));
}

#[tokio::test]
async fn content_that_an_unconfirmed_update_replaced_is_sent_again() {
    let world = World::new().await;
    world.label(true).await;
    world.send_and_work("opened").await;
    assert_eq!(world.shown(), Some(("queued".to_owned(), None)));
    let update = format!("PATCH /repos/{UPSTREAM}/check-runs/*");
    world.github.state().world.fail(&update, 1, Fault::ResetAfterwards);
    world.label(false).await;
    world.work().await;
    assert_eq!(world.shown(), completed("skipped"));
    world.label(true).await;
    world.work_after(std::time::Duration::from_secs(3600)).await;
    assert_eq!(world.shown(), Some(("queued".to_owned(), None)));
}

#[tokio::test]
async fn check_run_whose_reopening_was_not_confirmed_ends_when_the_label_is_removed() {
    let world = World::new().await;
    world.label(true).await;
    let three = open(&world).await("acme/three");
    three.complete(&world, "success").await;
    world.work_after(std::time::Duration::from_secs(3600)).await;
    assert_eq!(world.shown(), completed("success"));
    let create = format!("POST /repos/{UPSTREAM}/check-runs");
    world.github.state().world.fail(&create, 1, Fault::ResetAfterwards);
    let again = three.run_again();
    again.begin(&world).await;
    world.work().await;
    assert_eq!(world.shown(), Some(("in_progress".to_owned(), None)));
    world.label(false).await;
    world.work_after(std::time::Duration::from_secs(3600)).await;
    assert_eq!(world.shown(), completed("skipped"));
}
