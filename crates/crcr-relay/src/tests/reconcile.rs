//! Webhooks that GitHub couldn't deliver.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use crcr_github::app::Clock;
use crcr_standin::traffic::Fault;
use crcr_standin::world::{Delivery, PullRequest};
use crcr_store::{Versioned, WriteBatch, read_record};
use jiff::SignedDuration;
use serde_json::json;

use super::support::{ALL, HEAD, NEWER, UPSTREAM, World};
use crate::http::metrics::MetricsInput;
use crate::limits;
use crate::queue::task_kind::TaskKind;
use crate::reconcile::{Reconciliation, reconcile};
use crate::state_records::{self, LogScan, PullRecord, ReconcileRecord};

impl World {
    async fn reconcile(&self) -> Reconciliation {
        let keeps = |event: &str| self.relay.config.keeps_webhooks(event);
        let relay = &self.relay;
        reconcile(&relay.app, relay.store.as_ref(), &relay.clock, &keeps).await.unwrap()
    }

    async fn reconcile_in_a_task(&self) {
        let tasks = vec![TaskKind::Reconcile.task(self.relay.now())];
        self.relay.commit(WriteBatch { tasks, ..Default::default() }).await.unwrap();
        self.settle().await;
    }

    /// Logs a delivery that nobody answered.
    fn lose(&self, delivery: &Delivery) {
        let github = self.github.state();
        github.world.log_delivery(delivery, github.clock.now(), false, 0);
    }

    /// Delivers what was asked for, and returns the statuses.
    async fn redeliver(&self) -> Vec<StatusCode> {
        let github = self.github.state();
        let mut statuses = vec![];
        for delivery in github.world.take_redeliveries() {
            let (status, _) = self.send(&delivery).await;
            github.world.log_delivery(&delivery, github.clock.now(), true, status.as_u16());
            statuses.push(status);
        }
        statuses
    }
}

#[tokio::test]
async fn webhook_lost_in_an_outage_is_dispatched_exactly_once_after_reconcile() {
    let world = World::listening(&[]).await;
    let github = world.github.state();
    github.world.set_webhook_url(world.webhook_url());
    // The first one is answered with 503, the second one while no relay runs.
    world.rename("record", "away");
    let refused = world.pull_request("opened");
    assert_eq!(github.deliver(&refused, false).await.unwrap().status, 503);
    world.rename("away", "record");
    let push = github.push_payload(UPSTREAM, "refs/heads/main", NEWER);
    let unheard = github.world.delivery("push", &push);
    world.lose(&unheard);
    world.later(limits::RECONCILE_MARGIN);
    let found = world.reconcile().await;
    let mut asked: Vec<_> = found.asked.iter().map(|one| (&*one.id, one.status_code)).collect();
    asked.sort_by_key(|(_, status)| *status);
    assert_eq!(asked, [(&*unheard.id, 0), (&*refused.id, 503)]);
    while github.world.delivery_log().iter().filter(|one| one.status == 202).count() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.settle().await;
    let mut twice = [ALL, ALL].concat();
    twice.sort_unstable();
    assert_eq!(world.dispatched(), twice, "both events, each once to every backend");
    for _ in 0..3 {
        world.later(limits::RECONCILE_INTERVAL);
        let again = world.reconcile().await;
        assert!(again.asked.is_empty() && again.waiting == 0, "{again:?}");
    }
    world.work().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
}

/// What GitHub failed to deliver after the log was read would seem to be settled by then.
#[tokio::test]
async fn webhook_that_is_lost_after_a_clock_was_ahead_is_asked_for() {
    let world = World::new().await;
    let now = world.relay.now();
    let back_to = now - Duration::from_secs(3600);
    let started_at = now + Duration::from_secs(170);
    let unfinished = Some(LogScan { started_at, back_to, oldest_open: None, cursor: None });
    let record = ReconcileRecord { settled_until: back_to, unfinished };
    let mut batch = WriteBatch::default();
    batch.set(state_records::reconcile_key(), &record, world.relay.expiry());
    world.relay.commit(batch).await.unwrap();
    world.reconcile().await;
    world.later(Duration::from_secs(10));
    let lost = world.pull_request("opened");
    world.lose(&lost);
    world.later(limits::RECONCILE_INTERVAL);
    let asked = world.reconcile().await.asked;
    let asked: Vec<_> = asked.into_iter().map(|one| one.id).collect();
    assert_eq!(asked, [lost.id]);
}

#[tokio::test]
async fn webhook_is_asked_for_again_only_after_its_redelivery_failed_or_got_lost() {
    let world = World::new().await;
    let delivery = world.pull_request("opened");
    world.lose(&delivery);
    assert_eq!(world.reconcile().await.waiting, 1, "the attempt may still be in progress");
    world.later(limits::RECONCILE_MARGIN);
    assert_eq!(world.reconcile().await.asked.len(), 1);
    assert_eq!(world.reconcile().await.waiting, 1);
    // GitHub accepted the request and did nothing.
    assert_eq!(world.github.state().world.take_redeliveries().len(), 1);
    world.later(limits::RECONCILE_INTERVAL);
    assert_eq!(world.reconcile().await.waiting, 1);
    world.later(limits::REDELIVERY_LOST);
    assert_eq!(world.reconcile().await.asked.len(), 1);
    // Each further failure doubles the pause.
    let mut asked = 2;
    world.rename("member", "away");
    for _ in 0..3 * 24 * 6 {
        assert!(world.redeliver().await.iter().all(StatusCode::is_server_error));
        world.later(limits::RECONCILE_INTERVAL);
        asked += world.reconcile().await.asked.len();
    }
    assert!((6..=11).contains(&asked), "{asked} times in three days");
}

/// GitHub's lists sometimes lack what is there.
#[tokio::test]
async fn webhook_is_asked_for_although_an_answer_of_the_log_was_empty() {
    let world = World::new().await;
    let lost = world.pull_request("opened");
    world.lose(&lost);
    world.later(limits::RECONCILE_INTERVAL);
    let empty = Fault::Answer { status: StatusCode::OK, retry_after: None, body: "[]".to_owned() };
    world.github.state().world.fail("GET /app/hook/deliveries", 1, empty);
    let nothing = world.reconcile().await;
    assert_eq!((nothing.read, nothing.asked), (0, vec![]));
    assert!(nothing.settled_until.is_some(), "heads are compared all the same");
    world.later(limits::RECONCILE_INTERVAL);
    let asked: Vec<_> = world.reconcile().await.asked.into_iter().map(|one| one.id).collect();
    assert_eq!(asked, [lost.id]);
}

/// Each look at the clock takes a second.
#[tokio::test]
async fn log_that_github_shows_slowly_is_read_in_parts_that_end_in_time() {
    let world = World::new().await;
    let github = world.github.state();
    let lost = world.pull_request("opened");
    world.lose(&lost);
    let mut accepted = world.pull_request("opened");
    for number in 0..2000 {
        accepted.id = format!("accepted-{number}");
        github.world.log_delivery(&accepted, github.clock.now(), false, 202);
    }
    world.later(limits::RECONCILE_MARGIN);
    let (start, looks) = (world.relay.now(), Arc::new(AtomicI64::new(0)));
    let clock: Clock = {
        let looks = Arc::clone(&looks);
        Arc::new(move || start + SignedDuration::from_secs(looks.fetch_add(1, Ordering::Relaxed)))
    };
    let (relay, mut parts) = (&world.relay, 0);
    let found = loop {
        let begun = looks.load(Ordering::Relaxed);
        let found = reconcile(&relay.app, relay.store.as_ref(), &clock, &|_| true).await.unwrap();
        let limit = limits::RECONCILE_READING + limits::RECONCILE_ASKING;
        assert!(looks.load(Ordering::Relaxed) - begun < limit.as_secs().cast_signed() + 5);
        parts += 1;
        if found.settled_until.is_some() {
            break found;
        }
    };
    assert!(parts > 1 && found.asked.len() == 1, "{parts} parts, {:?}", found.asked);
}

#[tokio::test]
async fn stored_or_ignored_webhook_is_not_asked_for() {
    let world = World::new().await;
    let stored = world.pull_request("opened");
    assert_eq!(world.send(&stored).await.0, StatusCode::ACCEPTED);
    world.lose(&stored);
    let github = world.github.state();
    let star = github.world.delivery("star", &serde_json::json!({ "action": "created" }));
    github.world.log_delivery(&star, github.clock.now(), false, 200);
    // A redelivery by hand was accepted.
    world.lose(&star);
    github.world.log_delivery(&star, github.clock.now(), true, 200);
    world.later(limits::RECONCILE_MARGIN);
    let found = world.reconcile().await;
    assert_eq!((found.read, found.stored, found.waiting), (4, 1, 0));
    assert_eq!((found.asked, found.refused), (vec![], vec![]));
    assert_eq!(github.world.take_redeliveries(), []);
}

#[tokio::test]
async fn long_log_is_read_in_bounded_parts_and_its_failures_asked_for_once() {
    let world = World::new().await;
    let github = world.github.state();
    let failed = limits::REDELIVERIES_PER_TASK + 20;
    for n in 0..failed {
        let mut delivery = world.pull_request("opened");
        delivery.id = format!("failed-{n}");
        world.lose(&delivery);
    }
    let mut accepted = world.pull_request("opened");
    for n in 0..100 * limits::RECONCILE_PAGES + 50 {
        accepted.id = format!("accepted-{n}");
        github.world.log_delivery(&accepted, github.clock.now(), false, 202);
    }
    world.later(limits::RECONCILE_MARGIN);
    let pages = || github.world.count("GET /app/hook/deliveries");
    let first = world.reconcile().await;
    assert_eq!((pages(), first.settled_until), (limits::RECONCILE_PAGES, None));
    assert!(first.asked.is_empty());
    let second = world.reconcile().await;
    assert_eq!((second.asked.len(), second.settled_until), (limits::REDELIVERIES_PER_TASK, None));
    let third = world.reconcile().await;
    assert!(third.asked.len() == 20 && third.settled_until.is_some(), "{third:?}");
    let mut asked: Vec<_> = github.world.take_redeliveries().into_iter().map(|d| d.id).collect();
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), failed);
    // From now on the log is read back to the oldest one that is still open, and later not at all.
    let before = pages();
    world.later(limits::RECONCILE_INTERVAL);
    while world.reconcile().await.settled_until.is_none() {}
    assert!(pages() - before <= limits::RECONCILE_PAGES + 3);
}

#[tokio::test]
async fn log_is_read_anew_if_github_does_not_know_any_more_how_far_it_was_read() {
    let world = World::new().await;
    world.lose(&world.pull_request("opened"));
    world.later(limits::RECONCILE_MARGIN);
    let back_to = world.relay.now() - limits::RECONCILE_BACK;
    let unfinished = LogScan {
        started_at: back_to,
        back_to,
        oldest_open: None,
        cursor: Some("v1_forgotten".to_owned()),
    };
    let record = ReconcileRecord { settled_until: back_to, unfinished: Some(unfinished) };
    let mut batch = WriteBatch::default();
    batch.set(state_records::reconcile_key(), &record, world.relay.expiry());
    world.relay.commit(batch).await.unwrap();
    let found = world.reconcile().await;
    assert!(found.asked.len() == 1 && found.settled_until.is_some(), "{found:?}");
    assert_eq!(world.redeliver().await, [StatusCode::ACCEPTED]);
    world.settle().await;
    assert_eq!(world.dispatched(), ALL);
}

#[tokio::test]
async fn failing_github_leaves_nothing_behind_that_keeps_a_webhook_from_being_asked_for() {
    let world = World::new().await;
    let delivery = world.pull_request("opened");
    world.lose(&delivery);
    world.later(limits::RECONCILE_MARGIN);
    let github = world.github.state();
    github.world.fail("POST /app/hook/deliveries/*", 1, Fault::status(502));
    let tasks = vec![TaskKind::Reconcile.task(world.relay.now())];
    world.relay.commit(WriteBatch { tasks, ..Default::default() }).await.unwrap();
    assert_eq!(world.work().await.len(), 1, "the task is tried again");
    assert_eq!(github.world.take_redeliveries(), []);
    world.wait(limits::TASK_RETRY.cap).await;
    assert_eq!(world.redeliver().await, [StatusCode::ACCEPTED]);
    let text = world.relay.metrics.text(&MetricsInput::read(&world.relay).await);
    assert!(text.contains(r#"crcr_redeliveries_total{answer="accepted"} 1"#), "{text}");
    // The same task runs again ten minutes later.
    let before = github.world.count("GET /app/hook/deliveries");
    world.work_after(limits::RECONCILE_INTERVAL).await;
    assert_eq!(github.world.count("GET /app/hook/deliveries"), before + 1);
    assert_eq!(world.dispatched(), ALL);
    // A relay that hasn't read the log itself knows how far another one has.
    let world = world.restart(&[]).await;
    let text = world.metrics().await;
    let until = text.lines().find_map(|line| line.strip_prefix("crcr_reconciled_until_seconds "));
    assert_ne!(until.unwrap(), "0");
}

#[tokio::test]
async fn redelivery_that_github_refuses_is_reported() {
    let world = World::new().await;
    world.lose(&world.pull_request("opened"));
    world.later(limits::RECONCILE_MARGIN);
    let fault = Fault::status(422);
    world.github.state().world.fail("POST /app/hook/deliveries/*", 1, fault);
    let found = world.reconcile().await;
    assert!(found.asked.is_empty() && found.refused.len() == 1, "{found:?}");
}

#[tokio::test]
async fn pull_requests_are_asked_for_first_when_github_stops_answering() {
    let world = World::new().await;
    let github = world.github.state();
    // The pull requests are the oldest entries of a log of 930.
    for n in 0..930 {
        let event = if n < 30 { "pull_request" } else { "workflow_job" };
        let mut delivery = github.world.delivery(event, &serde_json::json!({ "number": n }));
        delivery.id = format!("{event}-{n}");
        world.lose(&delivery);
    }
    world.later(limits::RECONCILE_MARGIN);
    let found = world.reconcile().await;
    assert_eq!(found.asked.len(), limits::REDELIVERIES_PER_TASK);
    assert!(found.asked[..30].iter().all(|asked| asked.event == "pull_request"), "{found:?}");
    // Nothing is forgotten, and nothing is asked for twice.
    while world.reconcile().await.settled_until.is_none() {}
    let mut asked: Vec<_> = github.world.take_redeliveries().into_iter().map(|d| d.id).collect();
    assert_eq!(asked.len(), 930);
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), 930);
}

#[tokio::test]
async fn head_that_github_never_sent_is_dispatched() {
    let world = World::new().await;
    // Pull request 7 is older than the relay.
    world.later(limits::RECONCILE_MARGIN);
    world.reconcile_in_a_task().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    world.send_and_work("opened").await;
    assert_eq!(world.dispatched(), ALL);
    // A push whose webhook was never made. It may still come, at first.
    world.later(limits::RECONCILE_INTERVAL);
    let now = world.relay.now();
    world.github.state().world.change_pull(UPSTREAM, 7, |pull| {
        pull.head_sha = NEWER.to_owned();
        pull.updated_at = now;
    });
    world.reconcile_in_a_task().await;
    assert_eq!(world.dispatched(), Vec::<String>::new());
    world.later(limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    let dispatches = world.github.state().world.take_dispatches();
    assert_eq!(dispatches.len(), ALL.len());
    let payload = &dispatches[0].client_payload["payload"];
    assert_eq!(payload["pull_request"]["head"]["sha"], NEWER);
    assert_eq!(
        (&payload["action"], &payload["repository"]["full_name"]),
        (&"synchronize".into(), &UPSTREAM.into())
    );
    world.later(limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "once");
    // The webhook was only late.
    world.event("synchronize").await;
    assert_eq!(world.dispatched(), Vec::<String>::new(), "every backend has got it");
    // Another push comes in, and the push back to the head that was lost before is lost, too.
    world.change(|pull| {
        pull.head_sha = HEAD.to_owned();
        pull.updated_at += limits::RECONCILE_INTERVAL;
    });
    world.send_and_work("synchronize").await;
    assert_eq!(world.dispatched(), ALL);
    world.change(|pull| pull.head_sha = NEWER.to_owned());
    world.later(3 * limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    assert_eq!(world.dispatched(), ALL, "the second loss is found, too");
}

#[tokio::test]
async fn head_whose_webhook_github_does_not_deliver_again_is_dispatched() {
    let world = World::new().await;
    world.later(limits::RECONCILE_MARGIN);
    world.reconcile_in_a_task().await;
    world.send_and_work("opened").await;
    world.dispatched();
    for (head, is_refused) in [(NEWER, true), (HEAD, false)] {
        world.later(limits::RECONCILE_INTERVAL);
        let now = world.relay.now();
        world.github.state().world.change_pull(UPSTREAM, 7, |pull| {
            pull.head_sha = head.to_owned();
            pull.updated_at = now;
        });
        world.lose(&world.pull_request("synchronize"));
        world.later(limits::RECONCILE_MARGIN);
        if is_refused {
            let fault = Fault::status(422);
            world.github.state().world.fail("POST /app/hook/deliveries/*", 1, fault);
        }
        world.reconcile_in_a_task().await;
        // Otherwise GitHub takes the request each time, and does nothing.
        for _ in 0..4 * 6 {
            world.later(limits::RECONCILE_INTERVAL);
            world.reconcile_in_a_task().await;
        }
        assert_eq!(world.dispatched(), ALL, "{head}");
        world.github.state().world.take_redeliveries();
    }
}

#[tokio::test]
async fn head_that_github_never_sent_is_found_behind_many_that_changed_later() {
    let world = World::new().await;
    let github = &world.github.state().world;
    // More than one task compares.
    let numbers = 1000..2130;
    for number in numbers.clone() {
        let pull = PullRequest::from_fork(number, UPSTREAM, HEAD, world.relay.now());
        github.put_pull(UPSTREAM, pull);
    }
    world.later(limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    let pages = || github.count(&format!("GET /repos/{UPSTREAM}/pulls"));
    assert_eq!(pages(), 1, "what hasn't changed since the relay began is none of its business");
    world.send_and_work("opened").await;
    world.dispatched();
    // A push whose webhook is lost, and then a label on everything that is open.
    world.later(limits::RECONCILE_INTERVAL);
    world.change(|pull| {
        pull.head_sha = NEWER.to_owned();
        pull.updated_at += limits::RECONCILE_INTERVAL;
    });
    world.later(limits::RECONCILE_MARGIN);
    for number in numbers {
        github.change_pull(UPSTREAM, number, |pull| pull.updated_at = world.relay.now());
    }
    world.reconcile_in_a_task().await;
    let mut found = world.dispatched();
    assert_eq!(found, Vec::<String>::new());
    // On a slow machine a part has fewer pages.
    for _ in 0..10 {
        world.wait(limits::RECONCILE_PAUSE).await;
        found.extend(world.dispatched());
        if !found.is_empty() {
            break;
        }
    }
    assert_eq!(found, ALL);
    world.later(3 * limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    for _ in 0..3 {
        world.wait(limits::RECONCILE_PAUSE).await;
    }
    let before = pages();
    world.later(limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    assert_eq!(pages(), before + 1, "nothing has changed since");
}

/// A label that somebody sets isn't the head.
#[tokio::test]
async fn head_that_github_never_sent_is_dispatched_although_its_label_was_heard_of() {
    let world = World::new().await;
    let state = world.github.state();
    world.later(limits::RECONCILE_MARGIN);
    world.reconcile_in_a_task().await;
    state.world.put_pull(UPSTREAM, PullRequest::from_fork(8, UPSTREAM, NEWER, state.clock.now()));
    for number in [7, 8] {
        let label = state.label_payload(UPSTREAM, number, "ciflow/crcr/npu", true);
        world.send(&state.world.delivery("pull_request", &label)).await;
    }
    world.later(limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    assert_eq!(world.dispatched(), ALL, "8, as 7 is older than the relay");
}

/// What the next comparison with GitHub dispatches.
async fn dispatched_by_reconcile(world: &World) -> Vec<String> {
    world.later(2 * limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    world.dispatched()
}

/// Such as that of a bot, which calls stale what nobody has touched for two months.
#[tokio::test]
async fn comment_on_a_pull_request_of_months_ago_has_nothing_dispatched_again() {
    let world = World::new().await;
    let look = async || dispatched_by_reconcile(&world).await;
    assert_eq!(look().await, Vec::<String>::new());
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
    world.wait(60 * Duration::from_secs(24 * 3600)).await;
    while world.relay.store.delete_expired(world.relay.now()).await.unwrap() > 0 {}
    let change = |head: &str| {
        let now = world.relay.now();
        world.github.state().world.change_pull(UPSTREAM, 7, |pull| {
            pull.head_sha = head.to_owned();
            pull.updated_at = now;
        });
    };
    change(HEAD);
    assert_eq!(look().await, Vec::<String>::new());
    change(NEWER);
    assert_eq!(look().await, ALL, "a push that GitHub never sent is found as before");
}

/// What blocks a merge is about the branch that the head goes to, and about a pull request that is ready.
#[tokio::test]
async fn event_that_github_never_sent_is_found_by_what_the_pull_request_is_now() {
    let world = World::new().await;
    let look = async || dispatched_by_reconcile(&world).await;
    world.change(|pull| pull.draft = true);
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
    assert_eq!(look().await, Vec::<String>::new());
    let change = |change: fn(&mut PullRequest)| {
        world.later(limits::RECONCILE_INTERVAL);
        let now = world.relay.now();
        world.change(|pull| {
            change(pull);
            pull.updated_at = now;
        });
    };
    change(|pull| pull.title = "Another one".to_owned());
    assert_eq!(look().await, Vec::<String>::new());
    change(|pull| pull.draft = false);
    assert_eq!(look().await, ["acme/four"]);
    change(|pull| pull.base_ref = "release".to_owned());
    assert_eq!(look().await, ["acme/four"]);
    world.close().await;
    assert_eq!(world.dispatched(), ALL);
    change(|pull| pull.open = true);
    assert_eq!(look().await, ALL);
    assert_eq!(look().await, Vec::<String>::new(), "once");
}

/// No event of the pull request follows that would tell of it.
#[tokio::test]
async fn label_that_github_never_sent_asks_for_its_check_run_until_it_is_removed() {
    let world = World::new().await;
    let label = "ciflow/crcr/npu";
    assert_eq!(dispatched_by_reconcile(&world).await, Vec::<String>::new());
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
    for (is_set, status, conclusion) in
        [(true, "queued", None), (false, "completed", Some("skipped"))]
    {
        world.later(limits::RECONCILE_INTERVAL);
        let now = world.relay.now();
        world.change(|pull| {
            pull.updated_at = now;
            match is_set {
                true => pull.labels.insert(label.to_owned()),
                false => pull.labels.remove(label),
            };
        });
        assert_eq!(dispatched_by_reconcile(&world).await, Vec::<String>::new());
        let runs = world.github.state().world.check_runs(UPSTREAM);
        let run = runs.iter().find(|run| run.name == "crcr/acme/three/relay/dispatch");
        let run = run.expect("the label asks for it");
        assert_eq!((run.status.as_str(), run.conclusion.as_deref()), (status, conclusion));
    }
}

/// By their times and heads it isn't known which of them was the last one until all have come.
#[tokio::test]
async fn last_of_three_pushes_of_a_second_is_found_whatever_came_last() {
    let world = World::new().await;
    world.event("opened").await;
    assert_eq!(world.dispatched(), ALL);
    world.later(Duration::from_secs(60));
    let state = world.github.state();
    let last = "c5".repeat(20);
    let now = world.relay.now();
    for head in [NEWER, &last] {
        state.world.add_commit(UPSTREAM, head);
    }
    world.change(|pull| (pull.head_sha, pull.updated_at) = (last.clone(), now));
    for (before, head) in [(HEAD, &*last), (NEWER, HEAD), (HEAD, NEWER)] {
        let mut payload = state.pull_request_payload(UPSTREAM, 7, "synchronize");
        payload["pull_request"]["head"]["sha"] = json!(head);
        payload["after"] = json!(head);
        payload["before"] = json!(before);
        world.deliver("pull_request", &payload).await;
    }
    world.dispatched();
    world.later(2 * limits::RECONCILE_INTERVAL);
    world.reconcile_in_a_task().await;
    let key = state_records::pull_request_key(&world.relay.config.upstream, 7);
    let known: Versioned<PullRecord> = read_record(world.relay.store.as_ref(), key).await.unwrap();
    assert_eq!(known.value.unwrap().head_sha, last);
}
