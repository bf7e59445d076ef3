//! The store is put back to a backup: nothing is decided from what it doesn't know, and what it lacks is fetched or
//! named.

use crcr_standin::traffic::Fault;
use crcr_standin::world::Delivery;

use super::*;
use crate::reconcile::{Reconciliation, reconcile};
use crate::restore::{RestoreRecord, mark_restored};
use crate::{limits, uptime};

const HOUR: Duration = Duration::from_secs(3600);

/// Sends a webhook, and logs the attempt as GitHub does.
async fn deliver(world: &World, delivery: &Delivery) -> StatusCode {
    let (status, _) = world.send(delivery).await;
    let github = world.github.state();
    github.world.log_delivery(delivery, github.clock.now(), false, status.as_u16());
    status
}

async fn find_missing(world: &World) -> Reconciliation {
    let relay = &world.relay;
    let keeps = |event: &str| relay.config.keeps_webhooks(event);
    reconcile(&relay.app, relay.store.as_ref(), &relay.clock, &keeps).await.unwrap()
}

/// Delivers what GitHub was asked for; returns how many that were.
async fn redeliver(world: &World) -> usize {
    let github = world.github.state();
    let asked = github.world.take_redeliveries();
    for delivery in &asked {
        let (status, _) = world.send(delivery).await;
        github.world.log_delivery(delivery, github.clock.now(), true, status.as_u16());
    }
    asked.len()
}

fn conclusion(world: &World) -> (String, Option<String>) {
    let (_, status, conclusion) =
        checks(world).into_iter().find(|(name, ..)| name == DISPATCH).unwrap();
    (status, conclusion)
}

/// Somebody pressed "Redeliver", and the relay had it already.
#[tokio::test]
async fn webhook_that_was_delivered_twice_since_the_backup_is_fetched_once() {
    let world = World::new().await;
    let backup = world.backup();
    world.later(HOUR);
    let delivery = world.pull_request("opened");
    assert_eq!(deliver(&world, &delivery).await, StatusCode::ACCEPTED);
    world.work().await;
    world.dispatched();
    world.later(Duration::from_secs(60));
    assert_eq!(deliver(&world, &delivery).await, StatusCode::OK, "a duplicate");
    world.later(HOUR);
    let (world, _) = world.restore(backup, &[]).await;
    let asked = find_missing(&world).await.asked;
    assert_eq!(asked.iter().map(|one| &one.id).collect::<Vec<_>>(), [&delivery.id]);
    assert_eq!(redeliver(&world).await, 1);
    world.work().await;
    assert!(!world.dispatched().is_empty());
    for _ in 0..3 {
        world.later(HOUR);
        find_missing(&world).await;
        assert_eq!(redeliver(&world).await, 0);
    }
}

/// The job's end was acknowledged after the backup, so the restored store thinks that it still runs. Long after the
/// time at which a silent job counts as lost, the pull request must not turn red.
#[tokio::test]
async fn check_run_whose_result_the_backup_lacks_is_evaluated_again_and_never_fails() {
    let world = World::new().await;
    uptime::beat(&world.relay).await.unwrap();
    let four = open(&world).await("acme/four");
    four.begin(&world).await;
    world.work().await;
    let backup = world.backup();
    let backup_at = backup.1;
    four.finish(&world, "success").await;
    world.work_after(5 * Duration::from_secs(60)).await;
    assert_eq!(conclusion(&world), ("completed".to_owned(), Some("success".to_owned())));

    world.later(9 * HOUR);
    let (world, resumed) = world.restore(backup, &[]).await;
    assert_eq!(resumed.sent_again, 3, "those that owe a report: L2, L3 and L4");
    let store = world.relay.store.as_ref();
    let twice = mark_restored(store, backup_at, world.relay.now()).await.unwrap();
    assert_eq!((twice.sent_again, twice.waiting), (0, 3), "the command can be repeated");
    uptime::beat(&world.relay).await.unwrap();
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "newer events may replace them first");
    assert_eq!(conclusion(&world), ("queued".to_owned(), None), "as it isn't known any more");
    world.wait(limits::RESTORE_PAUSE).await;
    let again = received(&world)("acme/four");
    assert_eq!(again.client_payload, four.client_payload, "the same dispatch");
    let again = Downstream { run: RUN + 1, ..again };
    again.begin(&world).await;
    for _ in 0..5 {
        world.work_after(Duration::from_secs(60)).await;
        assert_eq!(conclusion(&world).1, None);
    }
    again.finish(&world, "success").await;
    world.work_after(2 * Duration::from_secs(60)).await;
    assert_eq!(conclusion(&world), ("completed".to_owned(), Some("success".to_owned())));
    let job = checks(&world).into_iter().find(|(name, ..)| name == JOB).unwrap();
    assert_eq!(job.2.as_deref(), Some("success"));
}

#[tokio::test]
async fn restore_by_a_clock_that_was_ahead_holds_no_new_dispatch() {
    let world = World::new().await;
    let now = world.relay.now();
    mark_restored(world.relay.store.as_ref(), now, now + 6 * HOUR).await.unwrap();
    deliver(&world, &world.pull_request("opened")).await;
    world.work().await;
    assert!(!world.dispatched().is_empty());
}

/// The backup's task was due at once.
#[tokio::test]
async fn dispatch_that_waited_at_the_backup_waits_for_what_github_delivers_again() {
    let world = World::new().await;
    world.github.state().world.fail("POST /repos/acme/two/dispatches", 1, Fault::status(502));
    deliver(&world, &world.pull_request("opened")).await;
    world.work().await;
    world.dispatched();
    let backup = world.backup();
    world.later(HOUR);
    let (world, _) = world.restore(backup, &[]).await;
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    world.wait(limits::RESTORE_PAUSE).await;
    assert!(world.dispatched().contains(&"acme/two".to_owned()));
}

/// A server that lost its data twice was put back to the same snapshot.
#[tokio::test]
async fn second_restore_to_the_same_time_sends_again_what_was_sent_in_between() {
    let (world, _) = World::new().await.opened("acme/four").await;
    let backup = world.backup();
    let backup_at = backup.1;
    world.later(Duration::from_secs(60));
    let (world, first) = world.restore(backup, &[]).await;
    assert_eq!(first.sent_again, 3, "those that owe a report");
    world.work_after(limits::RESTORE_PAUSE).await;
    assert_eq!(world.dispatched().len(), 3);
    world.later(Duration::from_secs(60));
    let (store, now) = (world.relay.store.as_ref(), world.relay.now());
    let second = mark_restored(store, backup_at, now).await.unwrap();
    assert_eq!((second.sent_again, second.waiting), (3, 0));
    let record = RestoreRecord::read(store).await.unwrap();
    assert_eq!(record, Some(RestoreRecord { backup_at, restored_at: now }));
    world.work_after(limits::RESTORE_PAUSE).await;
    assert_eq!(world.dispatched().len(), 3);
}

/// While the results were away, webhooks waited to be kept. Sweeps are due later than all of them.
#[tokio::test]
async fn open_dispatches_are_sent_again_however_many_other_tasks_wait_before_them() {
    const MANY: &str = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n <= 100000)
         INSERT INTO task (key, lane, payload, state, due_at, created_at)
         SELECT '[\"keep_webhook\",\"' || n || '\"]', 'keep', '', 0, 0, 0 FROM numbers";
    let (world, _) = World::new().await.opened("acme/four").await;
    world.sql(MANY);
    let backup = world.backup();
    world.later(HOUR);
    let (_world, resumed) = world.restore(backup, &[]).await;
    assert_eq!(resumed.sent_again, 3, "those that owe a report");
}

/// GitHub counts them as delivered.
#[tokio::test]
async fn webhooks_that_were_accepted_after_the_backup_are_delivered_again_and_dispatched_once() {
    let settings = [("CRCR_WEBHOOK_EVENTS", "workflow_job")];
    let world = World::with(&settings).await;
    let before = world.pull_request("opened");
    assert_eq!(deliver(&world, &before).await, StatusCode::ACCEPTED);
    world.work().await;
    world.dispatched();
    world.later(HOUR);
    let backup = world.backup();
    world.later(HOUR);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    let after = world.pull_request("synchronize");
    assert_eq!(deliver(&world, &after).await, StatusCode::ACCEPTED);
    let state = world.github.state();
    let ping = state.world.delivery("ping", &json!({ "zen": "Keep it logically awesome." }));
    let star = state.world.delivery("star", &json!({ "action": "created" }));
    let kept = json!({ "action": "queued", "repository": { "full_name": UPSTREAM } });
    let kept = state.world.delivery("workflow_job", &kept);
    for ignored in [&ping, &star, &kept] {
        assert_eq!(deliver(&world, ignored).await, StatusCode::OK);
    }
    world.work().await;
    world.dispatched();
    world.later(HOUR);

    let (world, _) = world.restore(backup, &settings).await;
    let found = find_missing(&world).await;
    let mut asked: Vec<_> = found.asked.iter().map(|one| one.event.as_str()).collect();
    asked.sort_unstable();
    assert_eq!(asked, ["pull_request", "workflow_job"], "what changed something or was kept");
    assert_eq!(found.out_of_reach, None);
    assert_eq!(redeliver(&world).await, 2);
    world.work().await;
    let newest: Vec<_> = world.github.state().world.take_dispatches();
    assert!(newest.iter().all(|one| one.client_payload["delivery_id"] == after.id), "{newest:?}");
    assert_eq!(newest.len(), 4, "the older head's dispatches were replaced before they were sent");
    world.work_after(limits::RESTORE_PAUSE).await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    for _ in 0..5 {
        world.later(2 * limits::REDELIVERY_LOST);
        let again = find_missing(&world).await;
        assert!(again.asked.is_empty(), "{again:?}");
    }
}

#[tokio::test]
async fn time_that_githubs_log_does_not_cover_is_named() {
    let world = World::new().await;
    let backup = world.backup();
    let backup_at = backup.1;
    let old = world.pull_request("opened");
    assert_eq!(deliver(&world, &old).await, StatusCode::ACCEPTED);
    world.work().await;
    world.dispatched();
    world.later(4 * 24 * HOUR);
    let (world, _) = world.restore(backup, &[]).await;
    let found = find_missing(&world).await;
    let (from, to) = found.out_of_reach.unwrap();
    assert_eq!(from, backup_at);
    let oldest = world.relay.now() - limits::RECONCILE_BACK;
    assert!(to <= oldest && oldest < to + Duration::from_secs(60), "{to}");
    assert!(found.asked.is_empty(), "GitHub wouldn't deliver it");
    let restored_at = world.relay.now();
    let within = RestoreRecord { backup_at: restored_at - HOUR, restored_at };
    assert_eq!(within.out_of_reach(restored_at), None);
}

/// The check run says "failure" on GitHub. The restored store believes that it sent what it wants to send now.
#[tokio::test]
async fn check_run_is_sent_again_although_the_store_thinks_that_github_has_it() {
    let (world, four) = World::new().await.opened("acme/four").await;
    let backup = world.backup();
    four.complete(&world, "failure").await;
    world.work_after(2 * Duration::from_secs(60)).await;
    assert_eq!(conclusion(&world).1.as_deref(), Some("failure"));
    let (world, _) = world.restore(backup, &[]).await;
    world.work().await;
    assert_eq!(conclusion(&world), ("queued".to_owned(), None));
}
