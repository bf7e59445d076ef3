//! What is going to happen upstream and at the backends, and when.

use std::time::Duration;

use axum::body::Body;
use crcr_relay::webhook::signature;
use http::Request;
use jiff::Timestamp;
use rand::Rng as _;

use super::{CALLBACK_KEYS, RequestKind, ScheduledEvent, SecretStep, Simulation};
use crate::backend_files::FILE_PATH;
use crate::lab::{LabEvent, MANY_WORKFLOWS, NightlyReport};
use crate::ledger::Broken;
use crate::names::BACKENDS;
use crate::stores::REPLICAS;
use crate::upstream::{ATTACKER_PULL, UpstreamWebhook, delivery_delay};

const NEW_SECRET: &str = "the-new-webhook-secret";

/// The settings of the webhook secret during a rotation. The key of callback tokens is derived from the first value.
pub(crate) fn webhook_secrets(old: &str, step: usize) -> String {
    match step {
        0 => old.to_owned(),
        1 => format!("{old}\n{NEW_SECRET}"),
        _ => format!("{NEW_SECRET}\n{old}"),
    }
}

impl Simulation {
    pub(crate) fn plan(&mut self, at: Timestamp, event: ScheduledEvent) {
        self.counter += 1;
        self.agenda.insert((at, self.counter), event);
    }

    pub(crate) fn plan_lab(&mut self, events: Vec<(Timestamp, LabEvent)>) {
        for (at, event) in events {
            self.plan(at, ScheduledEvent::BackendLab(event));
        }
    }

    pub(crate) fn create_run(&mut self, run: u64) {
        self.trace(format!("GitHub creates run {run}"));
        let events = self.lab.create(&self.github, run, &mut self.random);
        self.plan_lab(events);
    }

    pub(crate) fn happen_upstream(&mut self) {
        for webhook in self.upstream.next(&self.github, self.seed, &mut self.random) {
            self.plan_webhook(webhook);
        }
    }

    pub(crate) fn plan_webhook(&mut self, webhook: UpstreamWebhook) {
        let UpstreamWebhook { delivery, known, asked_head, what } = webhook;
        self.trace(what);
        self.summary.webhooks += 1;
        self.ledger.asked_heads.extend(asked_head);
        self.ledger.webhooks.insert(delivery.id.clone(), known);
        for is_redelivery in [false, true] {
            if is_redelivery && !self.chance(10) {
                break;
            }
            let at = self.now() + delivery_delay(&mut self.random);
            self.plan(at, ScheduledEvent::Deliver { delivery: delivery.clone(), is_redelivery });
        }
    }

    pub(crate) async fn next_event(&mut self) -> Result<(), Broken> {
        let Some((_, event)) = self.agenda.pop_first() else { return Ok(()) };
        self.last_input = self.now();
        match event {
            ScheduledEvent::Restart(replica) if self.replicas[replica].is_none() => {
                self.start(replica);
            }
            ScheduledEvent::Restart(_) => {}
            ScheduledEvent::ServerStart => self.start_server(),
            ScheduledEvent::Upstream => self.happen_upstream(),
            ScheduledEvent::Nightly(nightly) => self.report_nightly(nightly),
            ScheduledEvent::Deliver { mut delivery, is_redelivery } => {
                if self.has_new_secret {
                    delivery.signature = signature::sign(&NEW_SECRET.into(), &delivery.body);
                }
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
            ScheduledEvent::LateCall(call) => {
                self.trace(format!("r{}'s late {}", call.replica, call.request.method()));
                let response = self.serve(call.request, call.sent_at).await?;
                // Its worker may have stopped.
                let _ = call.reply.send(response);
            }
            ScheduledEvent::LeaseEnd(task) => {
                self.trace(format!("the lease of {} ends", task.key));
                self.release(&task);
            }
            ScheduledEvent::LabelChange => {
                let pull = self.pull_whose_label_matters();
                self.change_label(pull);
            }
            ScheduledEvent::BrokenFile => self.break_file(),
            ScheduledEvent::HeadMoves(pull) => self.move_head(pull),
            ScheduledEvent::AllowlistChange => {
                let webhook =
                    self.upstream.change_allowlist(&self.github, self.seed, &mut self.random);
                self.plan_webhook(webhook);
            }
            ScheduledEvent::StrangerComes => {
                let comes = self.upstream.stranger_comes(&self.github, self.seed, &mut self.random);
                comes.into_iter().for_each(|webhook| self.plan_webhook(webhook));
            }
            ScheduledEvent::KeyRotation => {
                self.keys += 1;
                self.trace(format!(
                    "the keys for callback tokens are {}",
                    CALLBACK_KEYS[self.keys]
                ));
                self.restart_all().await?;
            }
            ScheduledEvent::IssuerRotation { is_over } => self.rotate_issuer(is_over),
            ScheduledEvent::SecretRotation(step) => self.rotate_secret(step).await?,
        }
        Ok(())
    }

    pub(crate) fn plan_rotations(&mut self) {
        let mut at = self.now();
        if self.inputs.issuer_rotation {
            for is_over in [false, true] {
                at += Duration::from_secs(self.random.random_range(600..10_000));
                self.plan(at, ScheduledEvent::IssuerRotation { is_over });
            }
        }
        if self.inputs.secret_rotation {
            for step in [SecretStep::Restart, SecretStep::Change, SecretStep::Restart] {
                at += Duration::from_secs(self.random.random_range(300..10_000));
                self.plan(at, ScheduledEvent::SecretRotation(step));
            }
        }
    }

    /// GitHub publishes a key before it signs with it, and for as long as tokens of it are valid.
    fn rotate_issuer(&mut self, is_over: bool) {
        if is_over {
            self.github.oidc.retire();
        } else {
            self.github.oidc.rotate();
        }
        self.trace(format!(
            "the issuer {} keys",
            if is_over { "retires its old" } else { "rotates its" }
        ));
        for replica in self.replicas.iter().flatten() {
            (replica.accept_keys)();
        }
    }

    async fn rotate_secret(&mut self, step: SecretStep) -> Result<(), Broken> {
        if step == SecretStep::Change {
            self.trace("GitHub uses the new webhook secret".to_owned());
            self.has_new_secret = true;
            return Ok(());
        }
        self.secrets += 1;
        self.trace("the webhook secrets of the relay change".to_owned());
        self.restart_all().await
    }

    /// Both replicas are restarted with other settings.
    async fn restart_all(&mut self) -> Result<(), Broken> {
        for replica in 0..REPLICAS {
            self.crash(replica).await?;
        }
        // What waits for a replica that starts isn't late.
        self.repaired_at = self.repaired_at.map(|_| self.now());
        Ok(())
    }

    pub(crate) fn move_head(&mut self, pull: u64) {
        if let Some(webhook) = self.upstream.push_to(&self.github, self.seed, pull) {
            self.plan_webhook(webhook);
        }
    }

    /// Every setup of one author's jobs fails, again and again, while nobody else pushes. Then the others push.
    pub(crate) fn plan_attack(&mut self) {
        let start = self.now() + Duration::from_secs(self.random.random_range(6..20) * 3600);
        for hour in 0..8 {
            let pull = if hour < 6 { ATTACKER_PULL } else { ATTACKER_PULL + 1 };
            let at = start + Duration::from_secs(hour * 3600);
            self.plan(at, ScheduledEvent::HeadMoves(pull));
        }
    }

    /// Everybody pushes, so that many runs are open when the relay falls silent, and some do afterwards.
    pub(crate) async fn push_to_all(&mut self) -> Result<(), Broken> {
        self.gates.lock().faults = false;
        for replica in self.replica_numbers() {
            if self.replicas[replica].is_none() {
                self.start(replica);
            }
        }
        for pull in 1..=self.upstream.pulls {
            self.move_head(pull);
        }
        // Most of them haven't reported anything by then.
        let end = self.now() + Duration::from_secs(15);
        while self.now() < end {
            self.next_step();
            if !self.good_step().await? {
                break;
            }
            self.check().await?;
        }
        for hours in [12, 13, 14] {
            let at = self.now() + Duration::from_secs(hours * 3600);
            self.plan(at, ScheduledEvent::HeadMoves(hours % self.upstream.pulls + 1));
        }
        Ok(())
    }

    /// A backend pushes a version of its file that nobody can read: the last good one stays in force.
    fn break_file(&mut self) {
        let Some(repo) = self.upstream.files.break_one(&mut self.random) else { return };
        self.trace(format!("{repo} breaks its file"));
        self.github.world.put_file(repo, FILE_PATH, "dispatch: [quiet-minutes");
        let payload = self.github.push_payload(repo, "refs/heads/main", &"f".repeat(40));
        let mut delivery = self.github.world.delivery("push", &payload);
        delivery.id = format!("{:x}-file", self.seed);
        let at = self.now() + delivery_delay(&mut self.random);
        self.plan(at, ScheduledEvent::Deliver { delivery, is_redelivery: false });
    }

    /// There are quiet and busy hours, a burst every four hours, and a nightly run of each backend.
    pub(crate) fn plan_hours(&mut self, hours: u32) {
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
