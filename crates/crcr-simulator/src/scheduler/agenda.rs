//! What is going to happen upstream and at the backends, and when.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use jiff::Timestamp;
use rand::Rng as _;

use super::{CALLBACK_KEYS, RequestKind, ScheduledEvent, Simulation};
use crate::gates::REPLICAS;
use crate::invariants::{Broken, KnownWebhook};
use crate::lab::{LabEvent, MANY_WORKFLOWS, NightlyReport};
use crate::levels::BACKENDS;
use crate::upstream::{UpstreamWebhook, delivery_delay};

impl Simulation {
    pub(super) fn plan(&mut self, at: Timestamp, event: ScheduledEvent) {
        self.counter += 1;
        self.agenda.insert((at, self.counter), event);
    }

    pub(super) fn plan_lab(&mut self, events: Vec<(Timestamp, LabEvent)>) {
        for (at, event) in events {
            self.plan(at, ScheduledEvent::BackendLab(event));
        }
    }

    pub(super) fn create_run(&mut self, run: u64) {
        self.trace(format!("GitHub creates run {run}"));
        let events = self.lab.create(&self.github, run, &mut self.random);
        self.plan_lab(events);
    }

    pub(super) fn happen_upstream(&mut self) {
        for webhook in self.upstream.next(&self.github, self.seed, &mut self.random) {
            self.plan_webhook(webhook);
        }
    }

    fn plan_webhook(&mut self, webhook: UpstreamWebhook) {
        let UpstreamWebhook {
            delivery,
            targets,
            head,
            has_check_runs,
            pull,
            author,
            is_closing,
            what,
        } = webhook;
        self.trace(what);
        self.summary.webhooks += 1;
        let at = self.now();
        let known = KnownWebhook { targets, head, has_check_runs, pull, author, is_closing, at };
        self.ledger.webhooks.insert(delivery.id.clone(), known);
        for is_redelivery in [false, true] {
            if is_redelivery && !self.chance(10) {
                break;
            }
            let at = self.now() + delivery_delay(&mut self.random);
            self.plan(at, ScheduledEvent::Deliver { delivery: delivery.clone(), is_redelivery });
        }
    }

    pub(super) async fn next_event(&mut self) -> Result<(), Broken> {
        let Some((_, event)) = self.agenda.pop_first() else { return Ok(()) };
        self.last_input = self.now();
        match event {
            ScheduledEvent::Restart(replica) if self.replicas[replica].is_none() => {
                self.start(replica);
            }
            ScheduledEvent::Restart(_) => {}
            ScheduledEvent::Upstream => self.happen_upstream(),
            ScheduledEvent::Nightly(nightly) => self.report_nightly(nightly),
            ScheduledEvent::Deliver { delivery, is_redelivery } => {
                self.trace(format!("GitHub delivers {}", delivery.id));
                let mut request = Request::post("/github/webhook");
                for (name, value) in delivery.headers() {
                    request = request.header(name, value);
                }
                let body = Body::from(delivery.body.clone());
                self.send(request.body(body), RequestKind::Webhook { delivery, is_redelivery });
            }
            ScheduledEvent::BackendLab(LabEvent::RunOver { run, attempt, conclusion }) => {
                self.trace(format!("run {run} attempt {attempt} is over: {conclusion}"));
                self.lab.close(&self.github, run, attempt, conclusion);
            }
            ScheduledEvent::BackendLab(LabEvent::Report(report)) => self.report(report),
            ScheduledEvent::BackendLab(LabEvent::RunCreated(run)) => {
                self.create_run(run);
            }
            ScheduledEvent::BackendLab(LabEvent::OthersRuns { repo, count }) => {
                self.trace(format!("{count} runs of another sender in {repo}"));
                self.lab.create_others_runs(&self.github, repo, count);
            }
            ScheduledEvent::BranchRename => {
                self.trace(format!("the default branch of {MANY_WORKFLOWS} is renamed"));
                self.github.world.rename_default_branch(MANY_WORKFLOWS, "trunk");
                self.lab.branches.insert(MANY_WORKFLOWS, "trunk".to_owned());
            }
            ScheduledEvent::KeyRotation => {
                self.keys += 1;
                self.trace(format!(
                    "the keys for callback tokens are {}",
                    CALLBACK_KEYS[self.keys]
                ));
                for replica in 0..REPLICAS {
                    self.crash(replica).await?;
                }
                // What waits for a replica that starts isn't late.
                self.repaired_at = self.repaired_at.map(|_| self.now());
            }
        }
        Ok(())
    }

    /// There are quiet and busy hours, a burst every four hours, and a nightly run of each backend.
    pub(super) fn plan_hours(&mut self, hours: u32) {
        let (start, hours) = (self.now(), u64::from(hours));
        for hour in 0..hours {
            // Events in this hour, from UTC midnight on.
            let events = [6, 12, 24, 18][(hour / 6 % 4) as usize];
            for _ in 0..events {
                let at = Duration::from_secs(hour * 3600 + self.random.random_range(0..3600));
                self.plan(start + at, ScheduledEvent::Upstream);
            }
        }
        for _ in 0..hours.div_ceil(4) {
            let burst = self.random.random_range(0..hours * 3600 - 60);
            for _ in 0..20 {
                let at = Duration::from_secs(burst + self.random.random_range(0..60));
                self.plan(start + at, ScheduledEvent::Upstream);
            }
        }
        for repo in &BACKENDS[1..] {
            let at = Duration::from_secs(self.random.random_range(0..hours * 600));
            self.plan(start + at, ScheduledEvent::Nightly(NightlyReport { repo, tries: 0 }));
        }
    }
}
