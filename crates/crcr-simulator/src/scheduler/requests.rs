//! Webhooks and reports on their way to a replica and back.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use crcr_domain::Level;
use crcr_domain::checks::check_run::dispatch_name;
use crcr_standin::State;
use crcr_standin::world::CheckRun;
use http::{Request, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::{LONGEST_PAUSE, OpenRequest, RequestKind, ScheduledEvent, Simulation};
use crate::lab::{LabEvent, LabReport, NightlyReport};
use crate::ledger::{Broken, PromiseLedger, dispatch};
use crate::names::{UPSTREAM, short};
use crate::stores::REPLICAS;
use crate::truth::{HANDLER, Truth, spelled_as_usual};

/// Signing takes longer than everything else, and equal claims have equal signatures.
static TOKENS: LazyLock<Mutex<BTreeMap<String, String>>> = LazyLock::new(Mutex::default);
const MAX_TOKENS: usize = 200_000;
/// A check run has ended this long after the last input: `--lost-after` is six hours.
const CHECK_RUN_END: SignedDuration = SignedDuration::from_hours(7);
/// A verdict is final this long after the last run's end. The relay asks for a run every five minutes at least.
const VERDICT_END: SignedDuration = SignedDuration::from_secs(300 + 75);

impl Simulation {
    pub(crate) fn report_nightly(&mut self, nightly: NightlyReport) {
        self.trace(format!("{} reports its nightly run", nightly.repo));
        self.summary.reports += 1;
        self.ledger.nightlies.entry(nightly.repo).or_default();
        let (claims, body) = nightly.request(&self.github, self.now());
        let token = signed(&self.github, &claims, self.inputs.issuer_rotation);
        let request = Request::post("/github/callback")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Body::from(body.to_string()));
        self.send(request, RequestKind::Nightly(nightly));
    }

    pub(crate) fn report(&mut self, report: LabReport) {
        self.summary.reports += 1;
        let LabReport { run, attempt, job, conclusion, forgery, .. } = &report;
        let forged = forgery.map(|forgery| format!(", forged: {forgery:?}")).unwrap_or_default();
        let status = conclusion.unwrap_or("started");
        let job = format!("{}/{}", job.name, job.leg);
        self.trace(format!("run {run} attempt {attempt} reports {job} {status}{forged}"));
        let (claims, body) = self.lab.request(&self.github, &report, self.now());
        let key = (*run, *attempt, report.job.leg);
        let reports = self.lab.jobs.entry(self.lab.check_run_of(&report)).or_default();
        match (forgery, conclusion) {
            (Some(forgery), _) => reports.was_forged_end |= !forgery.is_of_another_run(),
            (None, None) => reports.started = true,
            (None, Some(end)) => {
                reports.conclusions.insert(end);
                reports.sent.insert(key);
            }
        }
        let token = signed(&self.github, &claims, self.inputs.issuer_rotation);
        let request = Request::post("/github/callback")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Body::from(body.to_string()));
        self.send(request, RequestKind::Report(report));
    }

    /// Sends a request to some replica that runs.
    pub(crate) fn send(&mut self, request: http::Result<Request<Body>>, what: RequestKind) {
        let running: Vec<usize> =
            (0..REPLICAS).filter(|replica| self.takes_requests(*replica)).collect();
        let sent_at = self.now();
        let replica = match running.len() {
            0 => None,
            count => Some(running[self.random.random_range(0..count)]),
        };
        let open = OpenRequest { replica: replica.unwrap_or(REPLICAS), sent_at, what };
        let target = replica.and_then(|replica| self.replicas[replica].as_mut());
        let Some((target, request)) = target.zip(request.ok()) else {
            return self.answered(open, None, false);
        };
        self.counter += 1;
        let (id, answers, router) =
            (self.counter, Arc::clone(&self.answers), target.router.clone());
        target.tasks.spawn(async move {
            let Ok(response) = router.oneshot(request).await;
            let status = response.status();
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
            let body = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
            answers.lock().push((id, status, body));
        });
        self.requests.insert(id, open);
    }

    /// A request was answered, or its connection broke.
    ///
    /// `is_ignored`: the report was of a backend that has no results.
    pub(crate) fn answered(
        &mut self,
        request: OpenRequest,
        answer: Option<StatusCode>,
        is_ignored: bool,
    ) {
        let status = answer.map_or(0, |status| status.as_u16());
        match request.what {
            RequestKind::Webhook { delivery, is_redelivery } => {
                self.trace(format!("{} is answered with {status}", delivery.id));
                let now = self.now();
                self.github.world.log_delivery(&delivery, now, is_redelivery, status);
                if (200..300).contains(&status) {
                    self.ledger.acknowledge(&delivery.id, now);
                }
            }
            RequestKind::Nightly(nightly) if (200..300).contains(&status) => {
                self.ledger.nightlies.insert(nightly.repo, true);
            }
            RequestKind::Nightly(nightly) => {
                self.trace(format!(
                    "the nightly run of {} is answered with {status}",
                    nightly.repo
                ));
                let again = NightlyReport { tries: nightly.tries + 1, ..nightly };
                let at = self.now() + Duration::from_secs(20 << nightly.tries.min(5));
                self.plan(at, ScheduledEvent::Nightly(again));
            }
            RequestKind::Report(report) => {
                let LabReport { run, attempt, job, conclusion, .. } = report;
                let ignored = if is_ignored { ", ignored" } else { "" };
                self.trace(format!("the report of run {run} is answered with {status}{ignored}"));
                let is_taken = (200..300).contains(&status) && !is_ignored;
                if is_taken && report.forgery.is_none() {
                    let now = self.now();
                    let of_run = &self.lab.runs[&run];
                    let answered = (of_run.delivery.clone(), of_run.repo);
                    self.ledger.answered_at.entry(answered).or_insert(now);
                    self.lab.heard_at.entry(run).or_insert(now);
                    let reports = self.lab.jobs.entry(self.lab.check_run_of(&report)).or_default();
                    let key = (run, attempt, job.leg);
                    let known = reports.acknowledged.entry(key).or_insert((None, now));
                    if known.0.is_none() && conclusion.is_some() {
                        *known = (conclusion, now);
                    }
                }
                // In a downtime of hours every client gives up.
                let has_patience = !self.inputs.relay_downtime || report.tries < 6;
                if (matches!(status, 0 | 408 | 429) || status >= 500) && has_patience {
                    let pause = Duration::from_secs(20 << report.tries.min(5));
                    let again = LabReport { tries: report.tries + 1, ..report };
                    self.plan(
                        self.now() + pause,
                        ScheduledEvent::BackendLab(LabEvent::Report(again)),
                    );
                }
            }
        }
    }

    /// Takes the relay's answers, and checks what always has to hold.
    pub(crate) async fn check(&mut self) -> Result<(), Broken> {
        self.settle().await;
        self.drop_abandoned_calls().await?;
        let answers = std::mem::take(&mut *self.answers.lock());
        for (id, status, body) in answers {
            let Some(request) = self.requests.remove(&id) else { continue };
            let is_final = status.is_client_error()
                // Its clock says that the token isn't valid yet.
                && !(self.inputs.wrong_clocks && status == StatusCode::UNAUTHORIZED)
                && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
            let genuine = match &request.what {
                RequestKind::Report(report)
                    if report.forgery.is_none() && self.needs_proof(report.run) =>
                {
                    Some(format!("run {}", report.run))
                }
                RequestKind::Nightly(nightly) => Some(format!("nightly run of {}", nightly.repo)),
                _ => None,
            };
            let is_ignored = body["status"] == "ignored";
            if let Some(what) = genuine {
                let detail = format!("{what}: {status} {}", body["detail"]);
                if is_final {
                    return Err(("genuine-report-refused", detail));
                }
                if is_ignored {
                    return Err(("genuine-report-ignored", detail));
                }
            }
            self.answered(request, Some(status), is_ignored);
        }
        // A look at everything takes longer.
        self.shared.check(self.summary.steps.is_multiple_of(16))?;
        let now = self.now();
        self.upstream.files.note_read(&self.memory, now);
        self.ledger.check_deliveries(&self.memory, &self.upstream.allowlist)?;
        PromiseLedger::check_dead_letters(&self.memory)?;
        // Looking at every check run takes longer the more there are.
        let period = if self.traffic.has_hours() { 2048 } else { 16 };
        if self.summary.steps.is_multiple_of(period) {
            let runs = self.github.world.all_check_runs(UPSTREAM);
            self.ledger.check_open_check_runs(&runs, &self.memory)?;
            self.check_late_check_runs(&runs)?;
        }
        Ok(())
    }

    /// When nothing fails any more, check runs end in time.
    fn check_late_check_runs(&self, runs: &[CheckRun]) -> Result<(), Broken> {
        let Some(repaired_at) = self.repaired_at.filter(|_| self.outage.is_none()) else {
            return Ok(());
        };
        let (now, sound_since) = (self.now(), repaired_at + LONGEST_PAUSE);
        let truth = self.truth(now);
        for run in runs.iter().filter(|run| run.status != "completed") {
            let (name, repo) = spelled_as_usual(&run.name);
            let about = format!("{} at {} is {}", run.name, short(&run.head_sha), run.status);
            let last_input = self.last_input.max(sound_since);
            let hold = self.upstream.files.longest_hold(repo, truth.level(repo));
            if now.duration_since(last_input + hold) > CHECK_RUN_END {
                let why = truth.why_open(&run.head_sha, repo);
                let detail = format!("{about} ({}) since {last_input}: {why}", run.title);
                return Err(("check-run-ends-late", detail));
            }
            let is_verdict = name == dispatch_name(repo) && truth.is_settled_at_l4(repo);
            if is_verdict
                && let Some(since) = truth.over_since(&run.head_sha, repo)
                && now.duration_since(since.max(sound_since)) > VERDICT_END
            {
                let why = truth.why_open(&run.head_sha, repo);
                let detail =
                    format!("{about} ({}), and all is over since {since}: {why}", run.title);
                return Err(("verdict-late", detail));
            }
        }
        Ok(())
    }

    /// Whether reports of a run are compared by their proof. A dispatch that was superseded while GitHub
    /// accepted it has no proven ones, and below L3 there is nothing to prove.
    pub(crate) fn needs_proof(&self, run: u64) -> bool {
        let run = &self.lab.runs[&run];
        let dispatch = dispatch(&self.memory, &run.delivery, run.repo);
        dispatch.is_some_and(|one| one.level >= Level::L3 && one.sent_at().is_some())
    }

    /// The simulated world, at the time of a request that the relay sent.
    pub(crate) fn truth(&self, at: Timestamp) -> Truth<'_> {
        let gates = self.gates.lock();
        let running = (0..REPLICAS).filter(|replica| self.replicas[*replica].is_some());
        let read_at = running.map(|replica| gates.demotions_read_at[replica]).min();
        let demotions_read_at = read_at.unwrap_or(Timestamp::MIN);
        Truth {
            lab: &self.lab,
            allowlist: &self.upstream.allowlist,
            files: &self.upstream.files,
            flipped: &self.upstream.flipped,
            asked_heads: &self.ledger.asked_heads,
            webhooks: &self.ledger.webhooks,
            accepted: &self.ledger.accepted,
            acknowledged: &self.ledger.acknowledged,
            answered_at: &self.ledger.answered_at,
            refused: &self.ledger.refused,
            memory: &self.memory,
            demotions_read_at,
            at,
            known_until: at - HANDLER,
        }
    }
}

fn signed(github: &State, claims: &Value, is_rotated: bool) -> String {
    if is_rotated {
        return github.oidc.sign(claims);
    }
    let text = claims.to_string();
    if let Some(token) = TOKENS.lock().get(&text) {
        return token.clone();
    }
    let token = github.oidc.sign(claims);
    let mut tokens = TOKENS.lock();
    if tokens.len() < MAX_TOKENS {
        tokens.insert(text, token.clone());
    }
    token
}
