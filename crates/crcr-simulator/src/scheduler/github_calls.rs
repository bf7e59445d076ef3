//! What becomes of the requests that the replicas send to GitHub.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use crcr_standin::server::Connection;
use crcr_standin::world::{Dispatch, Started};
use http::{Method, Request, Response, StatusCode, header};
use jiff::Timestamp;
use rand::Rng as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::{ScheduledEvent, Simulation};
use crate::gates::GithubCall;
use crate::lab::RunTarget;
use crate::ledger::{Broken, KnownWebhook, PromiseLedger};
use crate::names::{UPSTREAM, backend, key_of};
use crate::upstream::{ATTACKER, delivery_delay};

impl Simulation {
    /// GitHub answers a call, or fails in one of its ways.
    pub(crate) async fn answer_call(&mut self, call: GithubCall) -> Result<(), Broken> {
        let name = format!("{} {}", call.request.method(), call.request.uri().path());
        let replica = call.replica;
        let (what, response) = match self.random.random_range(0..1000) {
            0..12 => {
                self.gates.lock().calls.push(call);
                return self.crash(replica).await;
            }
            12..42 => ("502", refusal(StatusCode::BAD_GATEWAY)),
            42..72 => {
                self.serve(call.request, call.sent_at).await?;
                ("done, and the answer lost", refusal(StatusCode::GATEWAY_TIMEOUT))
            }
            72..86 => {
                let reset = self.now() + Duration::from_secs(self.random.random_range(30..900));
                let mut response = refusal(StatusCode::FORBIDDEN);
                let headers = response.headers_mut();
                headers.insert("x-ratelimit-remaining", 0.into());
                headers.insert("x-ratelimit-reset", reset.as_second().into());
                ("rate limit", response)
            }
            86..100 => {
                let mut response = refusal(StatusCode::TOO_MANY_REQUESTS);
                let pause = self.random.random_range(1..120);
                response.headers_mut().insert(header::RETRY_AFTER, pause.into());
                ("secondary rate limit", response)
            }
            100..106 => ("401", refusal(StatusCode::UNAUTHORIZED)),
            106..112 if name.ends_with("/dispatches") && !self.inputs.has_sound_backends() => {
                self.note_refused(&call.request);
                ("404", refusal(StatusCode::NOT_FOUND))
            }
            _ => ("", self.serve(call.request, call.sent_at).await?),
        };
        let status = if what.is_empty() { response.status().to_string() } else { what.to_owned() };
        self.trace(format!("r{replica} {name}: {status}"));
        let _ = call.reply.send(response);
        Ok(())
    }

    /// GitHub does what a call asks for.
    pub(crate) async fn serve(
        &mut self,
        request: Request<Bytes>,
        sent_at: Timestamp,
    ) -> Result<Response<Bytes>, Broken> {
        if let Some(outage) = &self.outage
            && request.uri().path().contains("/check-runs")
        {
            return Ok(outage.refusal());
        }
        let is_write = request.method() != Method::GET;
        let response = answer(&self.api, request).await;
        if !is_write {
            return Ok(response);
        }
        for dispatch in self.github.world.take_dispatches() {
            self.accept(&dispatch)?;
        }
        for started in self.github.world.take_reruns() {
            let Started::Rerun { run_id, attempt, failed_only, .. } = started else { continue };
            let now = self.now();
            if let Some(run) = self.lab.runs.get(&run_id).filter(|_| failed_only) {
                let (repo, head) = (run.repo, run.head.clone());
                self.ledger.add_rerun(run_id, repo, &head, now);
                self.ledger.check_budgets(&self.upstream.files)?;
            }
            let events = self.lab.rerun(run_id, attempt, failed_only, now, &mut self.random);
            self.plan_lab(events);
        }
        for delivery in self.github.world.take_redeliveries() {
            let at = self.now() + delivery_delay(&mut self.random);
            self.plan(at, ScheduledEvent::Deliver { delivery, is_redelivery: true });
        }
        let runs = self.github.world.all_check_runs(UPSTREAM);
        let mut seen = std::mem::take(&mut self.seen);
        let changed = PromiseLedger::check_shown(&runs, &mut seen, &self.truth(sent_at));
        self.seen = seen;
        for line in changed? {
            self.trace(line);
        }
        Ok(response)
    }

    /// GitHub has accepted a dispatch, and the backend gets it.
    fn accept(&mut self, dispatch: &Dispatch) -> Result<(), Broken> {
        let payload = &dispatch.client_payload;
        let delivery = payload["delivery_id"].as_str().unwrap_or_default().to_owned();
        let key = (delivery.clone(), key_of(&dispatch.repository));
        let leased = self.gates.lock().leases.get(&key).copied().unwrap_or_default();
        let accepted = self.ledger.accepted.entry(key).or_default();
        *accepted += 1;
        let accepted = *accepted;
        self.summary.dispatches += 1;
        let first = self.lab.next_run();
        if accepted > leased {
            let detail = format!(
                "{delivery} to {}: {accepted} times, and its task was leased unsent {leased} times",
                dispatch.repository
            );
            return Err(("recorded-dispatch-repeated", detail));
        }
        self.note_made_up(&delivery, dispatch);
        let repo = backend(&dispatch.repository);
        self.check_accepted(&delivery, repo, dispatch)?;
        if let Some((repo, webhook)) = repo.zip(self.ledger.webhooks.get_mut(&delivery))
            && !webhook.targets.contains(&repo)
        {
            // A draft that is ready for review, for a backend whose file wasn't known yet.
            webhook.targets.push(repo);
        }
        let webhook = self.ledger.webhooks.get(&delivery);
        let head = webhook.map(|webhook| webhook.head.clone()).or_else(|| probed_head(dispatch));
        let setup_fails = webhook.is_some_and(|webhook| webhook.author == ATTACKER);
        if let Some((repo, head)) = repo.zip(head) {
            let commit = payload["payload"]["after"].as_str().unwrap_or_default();
            let target = RunTarget {
                repo,
                head: &head,
                setup_fails,
                is_broken: self.upstream.branch.is_broken(commit),
            };
            let events = self.lab.receive(&self.github, dispatch, target, &mut self.random);
            self.plan_lab(events);
        }
        let runs: Vec<_> = (first..self.lab.next_run()).collect();
        self.trace(format!("GitHub accepts {delivery} for {}: runs {runs:?}", dispatch.repository));
        Ok(())
    }

    /// What a backend's own file says is kept.
    fn check_accepted(
        &mut self,
        delivery: &str,
        repo: Option<&'static str>,
        dispatch: &Dispatch,
    ) -> Result<(), Broken> {
        let Some(repo) = repo else { return Ok(()) };
        let (now, files) = (self.now(), &self.upstream.files);
        if let Ok(tag) = serde_json::from_value(dispatch.client_payload["crcr"]["probe"].clone()) {
            self.ledger.add_probe(delivery, repo, &tag, now);
            return self.ledger.check_budgets(files);
        }
        let early = self.ledger.webhooks.get(delivery).filter(|webhook| {
            // The time is that of two replicas.
            !self.inputs.wrong_clocks
                && !self.ledger.asked_heads.contains(&webhook.head)
                && files.is_too_early(repo, webhook, now)
        });
        match early {
            Some(webhook) => {
                let detail = format!("{delivery} of {} to {repo} at {now}", webhook.at);
                Err(("quiet-time-ignored", detail))
            }
            None => Ok(()),
        }
    }

    /// The relay makes up the webhook of a head that it misses.
    fn note_made_up(&mut self, delivery: &str, dispatch: &Dispatch) {
        let made_up = delivery.strip_prefix("reconciled-").and_then(|rest| rest.split_once('-'));
        let Some((number, head)) = made_up else { return };
        let (head, updated_at) = head.split_once('-').unwrap_or((head, ""));
        let pull = number.parse().ok();
        let known = pull.and_then(|number| self.github.world.pull(UPSTREAM, number));
        // The relay made it up at some time between this and now.
        let updated_at = updated_at.parse().map(Timestamp::from_second);
        let now = self.now();
        let at = updated_at.ok().and_then(Result::ok).unwrap_or(now);
        let webhook =
            self.ledger.webhooks.entry(delivery.to_owned()).or_insert_with(|| KnownWebhook {
                targets: vec![],
                event: "pull_request",
                action: "synchronize".to_owned(),
                head: head.to_owned(),
                base_branch: known.as_ref().map(|pull| pull.base_ref.clone()).unwrap_or_default(),
                is_draft: known.as_ref().is_some_and(|pull| pull.draft),
                has_code: self.upstream.has_code(head),
                has_check_runs: true,
                pull,
                is_stranger: known.as_ref().is_some_and(|pull| pull.is_stranger),
                author: known.map(|pull| pull.author).unwrap_or_default(),
                is_closing: false,
                at,
            });
        webhook.targets.extend(backend(&dispatch.repository));
        self.ledger.acknowledged.entry(delivery.to_owned()).or_insert(now);
    }

    /// GitHub refuses a dispatch for good.
    fn note_refused(&mut self, request: &Request<Bytes>) {
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let delivery = body["client_payload"]["delivery_id"].as_str().unwrap_or_default();
        let path = request.uri().path().trim_start_matches("/repos/");
        let repo = path.trim_end_matches("/dispatches");
        self.ledger.refused.insert((delivery.to_owned(), key_of(repo)));
    }

    /// A handler that took too long has closed its connections. GitHub may have got the request.
    pub(crate) async fn drop_abandoned_calls(&mut self) -> Result<(), Broken> {
        let abandoned = {
            let mut gates = self.gates.lock();
            if !gates.calls.iter().any(|call| call.reply.is_closed()) {
                return Ok(());
            }
            let calls = std::mem::take(&mut gates.calls);
            let (abandoned, open) = calls.into_iter().partition(|call| call.reply.is_closed());
            gates.calls = open;
            abandoned
        };
        let abandoned: Vec<GithubCall> = abandoned;
        for call in abandoned {
            if self.chance(50) {
                self.serve(call.request, call.sent_at).await?;
            }
        }
        Ok(())
    }
}

/// A commit that only explains another one's failure: its runs aren't evidence for it.
fn probed_head(dispatch: &Dispatch) -> Option<String> {
    let payload = &dispatch.client_payload;
    payload["crcr"]["probe"].as_object()?;
    Some(format!("probe of {}", payload["payload"]["after"].as_str()?))
}

pub(crate) struct CheckOutage {
    pub(crate) until: Timestamp,
    /// Whether it answers with 403 and `Retry-After`, or with 502.
    pub(crate) is_rate_limit: bool,
}

impl CheckOutage {
    fn refusal(&self) -> Response<Bytes> {
        if !self.is_rate_limit {
            return refusal(StatusCode::BAD_GATEWAY);
        }
        let mut response = refusal(StatusCode::FORBIDDEN);
        response.headers_mut().insert(header::RETRY_AFTER, 60.into());
        response
    }
}

pub(crate) fn refusal(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(b"{\"message\": \"simulated\"}"));
    *response.status_mut() = status;
    response
}

pub(crate) async fn answer(api: &Router, request: Request<Bytes>) -> Response<Bytes> {
    let mut request = request.map(Body::from);
    request.extensions_mut().insert(ConnectInfo(Connection::default()));
    let Ok(response) = api.clone().oneshot(request).await;
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    Response::from_parts(parts, body)
}
