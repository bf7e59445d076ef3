//! `POST /github/callback`: a proven caller, a valid report, one step of a job's life.

pub mod auth;
pub(crate) mod token;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use crcr_domain::callback::{self, Callback, CallbackKind, JobId, ReportDetails};
use crcr_domain::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::event::EventName;
use crcr_domain::facts::{CallbackFact, CallbackOutcome, Fact};
use crcr_domain::identity::{CallerIdentity, ProviderClaims};
use crcr_domain::lifecycle::{self, JobState, JobTransition};
use crcr_domain::proof::{MissingProof, ProofStatus, ReportOrigin, ReportProvenance};
use crcr_domain::{AllowlistEntry, CheckRunPolicy, EventKind, RepoName};
use crcr_store::{
    CommitOutcome, NewTask, RateLimitCharge, SetInsert, StoreError, Versioned, WriteBatch,
    decode_record, read_record,
};
use serde_json::json;
use serde_json::value::RawValue;

use crate::compat::forward;
use crate::facts::{Occasion, attempt_fact};
use crate::http::http_response::{self, Refusal};
use crate::limits;
use crate::queue::handlers::{alert, head, merge_base};
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::repository_pins::{self, Pin};
use crate::state_records::{self, CommitLookup, JobRecord, UsedToken};
use crate::webhook::signature::digest;

/// What became of a report.
struct Verdict {
    outcome: CallbackOutcome,
    result: Result<&'static str, Refusal>,
}

/// What is known of a report when it is answered, for its fact.
#[derive(Default)]
struct Seen {
    repo: Option<RepoName>,
    callback: Option<Callback>,
}

pub async fn handle(State(relay): State<Arc<Relay>>, request: Request) -> Response {
    let started = Instant::now();
    let (head, body) = request.into_parts();
    let mut seen = Seen::default();
    let verdict = match http_response::body(body, limits::CALLBACK_BYTES).await {
        Ok(body) => receive(&relay, &head.headers, &body, &mut seen, started).await,
        Err(refusal) => Verdict::refused(CallbackOutcome::BadBody, refusal),
    };
    let seconds = started.elapsed().as_secs_f64();
    relay.metrics.callback(verdict.outcome.as_str(), seconds);
    if !verdict.outcome.is_stored() {
        record(&relay, &seen, &verdict, started.elapsed());
    }
    match verdict.result {
        Ok("duplicate") => http_response::ok(json!({ "ok": true, "duplicate": true })),
        Ok("stale") => http_response::ok(json!({ "ok": true, "stale": true })),
        Ok(status) => http_response::ok(json!({ "ok": true, "status": status })),
        Err(refusal) => {
            let repo = seen.repo.as_ref().map(RepoName::as_str);
            let delivery = seen.callback.as_ref().map(|callback| callback.delivery.as_str());
            let (status, detail) = (refusal.status.as_u16(), &refusal.detail);
            tracing::warn!(delivery, repo, status, detail, "callback refused");
            refusal.into_response()
        }
    }
}

impl Verdict {
    fn refused(outcome: CallbackOutcome, refusal: Refusal) -> Self {
        Self { outcome, result: Err(refusal) }
    }

    fn bad(outcome: CallbackOutcome, detail: impl Into<String>) -> Self {
        Self::refused(outcome, Refusal::new(StatusCode::BAD_REQUEST, detail))
    }

    fn bad_token(detail: impl Into<String>) -> Self {
        let refusal = Refusal::new(StatusCode::UNAUTHORIZED, detail);
        Self::refused(CallbackOutcome::BadToken, refusal)
    }

    /// Nothing was recorded, and the same report may come again.
    fn unavailable(error: &StoreError) -> Self {
        let detail = format!("temporary outage: failed to persist callback state ({error})");
        Self::refused(CallbackOutcome::RejectedState, Refusal::unavailable(detail))
    }
}

/// The order of these checks is part of the contract.
async fn receive(
    relay: &Relay,
    headers: &HeaderMap,
    body: &Bytes,
    seen: &mut Seen,
    started: Instant,
) -> Verdict {
    // Only whether it is JSON at all comes before the token; what it says comes after.
    let parsed = callback::read(body);
    if let Err(error @ (callback::BodyError::NotJson | callback::BodyError::TooDeep)) = &parsed {
        return Verdict::bad(CallbackOutcome::BadBody, error.to_string());
    }
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let now = relay.now();
    let identity = match relay.verifier.verify(authorization, now).await {
        Ok(identity) => identity,
        Err(error) => {
            let mut refusal = Refusal::new(error.status, error.detail);
            refusal.retry_after = error.retry_after.map(|pause| pause.as_secs().max(1));
            return Verdict::refused(CallbackOutcome::BadToken, refusal);
        }
    };
    seen.repo = Some(identity.repository.clone());
    let Some(allowlist) = relay.allowlist.get() else {
        let refusal = Refusal::unavailable("the allowlist is not loaded yet");
        return Verdict::refused(CallbackOutcome::RejectedState, refusal);
    };
    let entry = allowlist.get(&identity.repository);
    let Some(entry) = entry.filter(|entry| entry.level.shows_results()) else {
        return Verdict { outcome: CallbackOutcome::BelowLevel, result: Ok("ignored") };
    };
    let callback = match parsed {
        Ok(callback) => callback,
        Err(error) => return Verdict::bad(CallbackOutcome::BadBody, error.to_string()),
    };
    seen.callback = Some(callback.clone());
    if let Some(refused) = run_differs(&identity, &callback.job) {
        return refused;
    }
    let report = Report { relay, identity: &identity, entry, callback: &callback, body, started };
    for _ in 0..limits::CONFLICTS {
        let decided = if callback.kind.is_self_report() {
            report.self_report().await
        } else {
            report.step().await
        };
        match decided {
            Ok(Some(verdict)) => return verdict,
            Ok(None) => {}
            Err(error) => return Verdict::unavailable(&error),
        }
    }
    let refusal = Refusal::unavailable("too many reports of one job at once");
    Verdict::refused(CallbackOutcome::RejectedState, refusal)
}

/// The body's run must be the token's, wherever the token names one.
fn run_differs(identity: &CallerIdentity, job: &JobId) -> Option<Verdict> {
    let differs = |field: &str, body: &str, token: &str| {
        let detail = format!(
            "callback body field `workflow.{field}`: received {body}, the token is of {token}"
        );
        Some(Verdict::bad_token(detail))
    };
    match &identity.claims {
        ProviderClaims::GitHub(claims) => {
            let (Some(run), Some(attempt)) = (claims.run_id, claims.run_attempt) else {
                return Some(Verdict::bad_token("the token names no run"));
            };
            if job.run_id != run.to_string() {
                return differs("run_id", &job.run_id, &run.to_string());
            }
            if u64::from(job.run_attempt) != attempt {
                return differs("run_attempt", &job.run_attempt.to_string(), &attempt.to_string());
            }
            None
        }
        ProviderClaims::Buildkite(claims) => match &claims.build_id {
            Some(build) if *build != job.run_id => differs("run_id", &job.run_id, build),
            _ => None,
        },
    }
}

/// A report of a proven caller with a valid body.
struct Report<'a> {
    relay: &'a Relay,
    identity: &'a CallerIdentity,
    entry: &'a AllowlistEntry,
    callback: &'a Callback,
    body: &'a Bytes,
    started: Instant,
}

type Decided = Result<Option<Verdict>, StoreError>;

impl Report<'_> {
    /// One step of a dispatched job; `None` when somebody else's came first.
    async fn step(&self) -> Decided {
        let (relay, callback) = (self.relay, self.callback);
        let store = relay.store.as_ref();
        let repo = &self.identity.repository;
        let key = state_records::job_key(&callback.delivery, repo, &callback.job);
        let keys = [
            self.token_key(),
            state_records::dispatch_key(&callback.delivery, repo),
            state_records::pin_key(&relay.config.upstream, repo),
            key.clone(),
        ];
        let found = store.records(&keys).await?;
        let [used, known, pin, job] = <[_; 4]>::try_from(found).expect("four keys");
        let [token_key, dispatch_key, pin_key, job_key] = keys;
        let used: Versioned<UsedToken> = decode_record(token_key, used)?;
        if let Some(verdict) = self.replayed(used.value.as_ref()) {
            return Ok(Some(verdict));
        }
        let known: Versioned<Dispatch> = decode_record(dispatch_key, known)?;
        if let Some(refused) = self.repository_changed(&decode_record(pin_key, pin)?).await? {
            return Ok(Some(refused));
        }
        let Some(dispatch) = known.value.as_ref() else {
            let detail = "callback rejected: no matching dispatch record";
            return Ok(Some(Verdict::bad(CallbackOutcome::RejectedState, detail)));
        };
        if let Some(refused) = self.stranger(dispatch) {
            return Ok(Some(refused));
        }
        let now = relay.now();
        let mut job: Versioned<JobRecord> = decode_record(job_key, job)?;
        let evidence = self.evidence(dispatch);
        let on_its_way = dispatch.status == DispatchStatus::Queued;
        let proof = evidence.proof(dispatch.default_branch.as_deref(), on_its_way);
        if dispatch.level.check_run() != CheckRunPolicy::Never
            && let Some(known) = &job.value
        {
            let known_proof = head::proof(dispatch, known);
            if known_proof > proof {
                return self.report_without_proof(dispatch, &job, proof, &used).await;
            }
            if known_proof < proof {
                // What was reported without proof is as if it had never been.
                job.value = None;
            }
        }
        let current = job.value.as_ref().map_or(JobState::Dispatched, |job| job.state);
        let start_unknown = match lifecycle::step(current, callback.state) {
            JobTransition::Apply { start_unknown } => start_unknown,
            step => return self.no_step(step, &used).await,
        };
        let started_at = job.value.as_ref().and_then(|job| job.started_at);
        let next = JobRecord {
            id: callback.job.clone(),
            state: callback.state,
            start_unknown,
            started_at: if callback.state == JobState::InProgress { Some(now) } else { started_at },
            ended_at: (!callback.state.is_open()).then_some(now),
            details: merge(job.value.map(|job| job.details), &callback.details),
            evidence,
            ended_without_proof: false,
        };
        let job = Versioned { key: key.clone(), version: job.version, value: None };
        let mut batch = WriteBatch { rate_limit: Some(self.charge()), ..WriteBatch::default() };
        batch.update(&job, &next, relay.expiry());
        if job.version == 0 {
            batch.set_inserts.push(SetInsert {
                set: state_records::job_set_key(&callback.delivery, repo),
                member: serde_json::to_string(&callback.job).expect("a job is always JSON"),
                score: now.as_millisecond(),
                expires_at: relay.expiry(),
            });
        }
        let mut fact = attempt_fact(&dispatch.into(), &next, now);
        fact.missing_proof = missing_proof(dispatch, proof);
        let times = (fact.queue_seconds, fact.execution_seconds);
        batch.tasks.extend(alert::task(relay, &fact, now));
        batch.tasks.extend(merge_base::task(relay, dispatch, &fact, now));
        batch.facts.push(Fact::Attempt(Box::new(fact)));
        self.follow(dispatch, &next.id, proof, &mut batch);
        self.forward(&key, times, &mut batch);
        self.finish(batch, &used, self.status(), self.outcome(dispatch, proof)).await
    }

    /// A report without proof about a job of which proven reports are known: it moves nothing. That
    /// the job has ended is believed all the same, so that its check run doesn't stay open for ever.
    async fn report_without_proof(
        &self,
        dispatch: &Dispatch,
        job: &Versioned<JobRecord>,
        proof: ProofStatus,
        used: &Versioned<UsedToken>,
    ) -> Decided {
        let relay = self.relay;
        let mut batch = WriteBatch { rate_limit: Some(self.charge()), ..WriteBatch::default() };
        if let Some(known) = job.value.as_ref().filter(|known| known.state.is_open())
            && !self.callback.state.is_open()
            && !known.ended_without_proof
        {
            let ended = JobRecord { ended_without_proof: true, ..known.clone() };
            batch.update(job, &ended, relay.expiry());
            let work = TaskKind::check_run(dispatch, Some(&ended.id));
            batch.tasks.push(work.task(&relay.config.upstream, relay.now()));
            batch.tasks.push(self.sweep_after_end(dispatch));
        }
        self.finish(batch, used, self.status(), self.outcome(dispatch, proof)).await
    }

    /// What is recorded of a report that was taken: below L3 nothing hangs on its proof.
    fn outcome(
        &self,
        dispatch: &Dispatch,
        proof: ProofStatus,
    ) -> (CallbackOutcome, Option<MissingProof>) {
        let Some(missing) = missing_proof(dispatch, proof) else {
            return (CallbackOutcome::Accepted, None);
        };
        let (delivery, repo) = (&dispatch.delivery, &dispatch.repo);
        tracing::warn!(delivery, %repo, %missing, "reported without proof");
        (CallbackOutcome::Unproven, Some(missing))
    }

    /// A nightly or periodic run of the repository's own.
    async fn self_report(&self) -> Decided {
        let (relay, callback) = (self.relay, self.callback);
        let repo = &self.identity.repository;
        if !self.entry.events.contains(EventKind::Nightly) {
            let detail = format!("`{repo}` takes no part in nightly runs");
            return Ok(Some(Verdict::bad(CallbackOutcome::RejectedState, detail)));
        }
        if let Some(claims) = self.identity.github()
            && !matches!(claims.event_name.as_deref(), Some("schedule" | "workflow_dispatch"))
        {
            let detail =
                "nightly/periodic callbacks come from `schedule` or `workflow_dispatch` runs";
            return Ok(Some(Verdict::bad_token(detail)));
        }
        let pin = state_records::pin_key(&relay.config.upstream, repo);
        let pin: Versioned<Pin> = read_record(relay.store.as_ref(), pin).await?;
        if let Some(refused) = self.repository_changed(&pin).await? {
            return Ok(Some(refused));
        }
        let used: Versioned<UsedToken> =
            read_record(relay.store.as_ref(), self.token_key()).await?;
        if let Some(verdict) = self.replayed(used.value.as_ref()) {
            return Ok(Some(verdict));
        }
        let key = state_records::job_key(&callback.delivery, repo, &callback.job);
        let job: Versioned<JobRecord> = read_record(relay.store.as_ref(), key.clone()).await?;
        let current = job.value.as_ref().map_or(JobState::Dispatched, |job| job.state);
        let JobTransition::Apply { .. } = lifecycle::step(current, callback.state) else {
            return self.no_step(lifecycle::step(current, callback.state), &used).await;
        };
        let upstream = &relay.config.upstream;
        // Paid for before GitHub is asked, so that nobody spends upstream's API quota for nothing.
        let paid = WriteBatch { rate_limit: Some(self.charge()), ..WriteBatch::default() };
        if let CommitOutcome::Limited(wait) = relay.commit(paid).await? {
            return Ok(Some(self.limited(wait)));
        }
        match self.commit_exists().await? {
            Ok(true) => {}
            Ok(false) => {
                let detail = format!(
                    "callback body field `delivery_id`: received {}, expected a commit of {upstream}",
                    callback.delivery
                );
                return Ok(Some(Verdict::bad(CallbackOutcome::BadBody, detail)));
            }
            Err(error) => {
                let detail = format!("the commit can't be looked up: {error}");
                let refusal = Refusal::unavailable(detail);
                return Ok(Some(Verdict::refused(CallbackOutcome::RejectedState, refusal)));
            }
        }
        let now = relay.now();
        let next = JobRecord {
            id: callback.job.clone(),
            state: callback.state,
            start_unknown: false,
            started_at: None,
            ended_at: Some(now),
            details: callback.details.clone(),
            evidence: ReportProvenance::default(),
            ended_without_proof: false,
        };
        let mut batch = WriteBatch::default();
        batch.update(&job, &next, relay.expiry());
        let occasion = Occasion {
            repo: &self.entry.repo,
            delivery: &callback.delivery,
            level: self.entry.level,
            dispatched_at: now,
            event: if callback.kind == CallbackKind::Nightly {
                &EventName::Nightly
            } else {
                &EventName::Periodic
            },
            upstream: upstream.as_str(),
            pull_request: None,
            head_sha: &callback.delivery,
            since: None,
        };
        let fact = attempt_fact(&occasion, &next, now);
        batch.tasks.extend(alert::task(relay, &fact, now));
        batch.facts.push(Fact::Attempt(Box::new(fact)));
        self.forward(&key, (None, None), &mut batch);
        self.finish(batch, &used, self.status(), (CallbackOutcome::Accepted, None)).await
    }

    /// Whether upstream has the commit that a self-report names. The answer is remembered, so that
    /// one commit costs one call, however many jobs report on it.
    async fn commit_exists(&self) -> Result<Result<bool, crcr_github::Error>, StoreError> {
        let (relay, sha) = (self.relay, &self.callback.delivery);
        let upstream = &relay.config.upstream;
        let now = relay.now();
        let key = state_records::commit_key(upstream, sha);
        let known: Versioned<CommitLookup> = read_record(relay.store.as_ref(), key).await?;
        if let Some(seen) = known.value.filter(|seen| seen.until > now) {
            return Ok(Ok(seen.exists));
        }
        let exists = match relay.app.commit_exists(upstream.as_str(), sha).await {
            Ok(exists) => exists,
            Err(error) => return Ok(Err(error)),
        };
        let life = if exists { limits::COMMIT_EXISTS } else { limits::COMMIT_ABSENT };
        let mut batch = WriteBatch::default();
        batch.set(known.key, &CommitLookup { exists, until: now + life }, now + life);
        relay.commit(batch).await?;
        Ok(Ok(exists))
    }

    fn limited(&self, wait: Duration) -> Verdict {
        let detail = format!("rate limit exceeded for {}", self.identity.repository);
        let mut refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, detail);
        refusal.retry_after = Some(wait.as_secs() + 1);
        Verdict::refused(CallbackOutcome::RateLimited, refusal)
    }

    /// A report that changes nothing: known, overtaken, or against what is known.
    async fn no_step(&self, step: JobTransition, used: &Versioned<UsedToken>) -> Decided {
        let (status, outcome) = match step {
            JobTransition::Duplicate => ("duplicate", CallbackOutcome::Duplicate),
            JobTransition::Stale => ("stale", CallbackOutcome::Stale),
            JobTransition::Apply { .. } | JobTransition::Conflict => {
                let callback = self.callback;
                let detail = format!(
                    "callback rejected: invalid state transition delivery_id={} repo={} status={}: \
                     {} has ended with another conclusion",
                    callback.delivery,
                    self.identity.repository,
                    self.status(),
                    callback.job
                );
                return Ok(Some(Verdict::bad(CallbackOutcome::RejectedState, detail)));
            }
        };
        let batch = WriteBatch { rate_limit: Some(self.charge()), ..WriteBatch::default() };
        self.finish(batch, used, status, (outcome, None)).await
    }

    /// Commits, together with the token's use.
    async fn finish(
        &self,
        mut batch: WriteBatch,
        used: &Versioned<UsedToken>,
        status: &'static str,
        (outcome, missing): (CallbackOutcome, Option<MissingProof>),
    ) -> Decided {
        let relay = self.relay;
        let until = self.identity.expires_at + Duration::from_secs(60);
        let value = UsedToken { body: digest(self.body), status: status.to_owned() };
        batch.update(used, &value, until);
        if outcome.is_stored() {
            let verdict = Verdict { outcome, result: Ok(status) };
            let seen = Seen {
                repo: Some(self.identity.repository.clone()),
                callback: Some(self.callback.clone()),
            };
            let elapsed = self.started.elapsed();
            let mut fact = fact(relay, &seen, &verdict, elapsed);
            fact.detail = missing.map(|missing| format!("reported without proof: {missing}"));
            batch.facts.push(Fact::Callback(fact));
        }
        Ok(match relay.commit(batch).await? {
            CommitOutcome::Done => Some(Verdict { outcome, result: Ok(status) }),
            CommitOutcome::Conflict | CommitOutcome::LeaseLost => None,
            CommitOutcome::Limited(wait) => Some(self.limited(wait)),
        })
    }

    /// The same token again: with the same body the same answer, with another one none. What stands
    /// in for a token's id says nothing of the body: then the job's life decides.
    fn replayed(&self, used: Option<&UsedToken>) -> Option<Verdict> {
        let used = used?;
        if used.body == digest(self.body) {
            return Some(Verdict { outcome: CallbackOutcome::Duplicate, result: Ok("duplicate") });
        }
        self.identity.jti.as_ref()?;
        Some(Verdict::bad_token("the token was used for another report; mint one per report"))
    }

    /// Names the use of the token: its own id, or what stands in for one.
    fn token_key(&self) -> crcr_store::StoreKey {
        let job = &self.callback.job;
        match &self.identity.jti {
            Some(jti) => state_records::used_token_key(&self.identity.issuer, jti),
            None => {
                let pipeline = self.identity.buildkite().map(|claims| &claims.pipeline_id);
                let parts = json!([pipeline, job, self.callback.state]);
                state_records::used_token_key(&self.identity.issuer, &parts.to_string())
            }
        }
    }

    /// Whoever registered a freed name anew doesn't speak for the allowlist's repository.
    async fn repository_changed(&self, pin: &Versioned<Pin>) -> Decided {
        let Some(claims) = self.identity.github() else { return Ok(None) };
        let Some(pinned) = &pin.value else { return Ok(None) };
        let found = claims.repository_id;
        if found == Some(pinned.repository_id) {
            return Ok(None);
        }
        if let Some(found) = found {
            repository_pins::refuse(self.relay, pin, found, "report").await?;
        }
        let refusal = Refusal::new(StatusCode::FORBIDDEN, repository_pins::refusal(pinned, found));
        Ok(Some(Verdict::refused(CallbackOutcome::RepositoryChanged, refusal)))
    }

    /// Who speaks for the repository must be who the dispatch was sent to.
    fn stranger(&self, dispatch: &Dispatch) -> Option<Verdict> {
        let claims = self.identity.github()?;
        let known = dispatch.repository_id;
        if known.is_some() && claims.repository_id != known {
            let detail = format!(
                "the token is of repository number {}, the dispatch went to number {}",
                claims.repository_id.unwrap_or_default(),
                known.unwrap_or_default()
            );
            return Some(Verdict::bad_token(detail));
        }
        None
    }

    /// What came with the report that can prove it.
    fn evidence(&self, dispatch: &Dispatch) -> ReportProvenance {
        let origin = match self.identity.github() {
            Some(claims) => ReportOrigin::GitHub {
                event_name: claims.event_name.clone(),
                git_ref: claims.ref_name.clone(),
            },
            None => ReportOrigin::MappedPipeline,
        };
        let token = self.callback.callback_token.as_deref().unwrap_or_default();
        let has_callback_token = self.relay.keys.verify(token, dispatch, self.relay.now());
        ReportProvenance { origin: Some(origin), has_callback_token }
    }

    /// The check runs of the job and of the dispatch follow, if the report may be proven.
    fn follow(&self, dispatch: &Dispatch, job: &JobId, proof: ProofStatus, batch: &mut WriteBatch) {
        let (relay, now) = (self.relay, self.relay.now());
        let has_check_runs = dispatch.level.check_run() != CheckRunPolicy::Never;
        if has_check_runs && !matches!(proof, ProofStatus::Missing(_)) {
            batch
                .tasks
                .push(TaskKind::check_run(dispatch, Some(job)).task(&relay.config.upstream, now));
            batch.tasks.push(TaskKind::check_run(dispatch, None).task(&relay.config.upstream, now));
            let claim = state_records::run_claim_key(&dispatch.repo, &job.run_id);
            batch.set(claim, &dispatch.delivery, relay.expiry());
        }
        if self.callback.state.is_open() {
            let lost_after = relay.config.lost_after;
            let pause = if has_check_runs { lost_after.min(limits::RUN_POLL) } else { lost_after };
            batch.tasks.push(TaskKind::sweep(dispatch).task(&relay.config.upstream, now + pause));
        } else if has_check_runs {
            batch.tasks.push(self.sweep_after_end(dispatch));
        }
    }

    /// GitHub needs a moment to see that a run is over whose last step has just reported.
    fn sweep_after_end(&self, dispatch: &Dispatch) -> NewTask {
        TaskKind::sweep(dispatch)
            .task(&self.relay.config.upstream, self.relay.now() + limits::RUN_END_LOOK)
    }

    fn forward(
        &self,
        key: &crcr_store::StoreKey,
        times: (Option<f64>, Option<f64>),
        batch: &mut WriteBatch,
    ) {
        if self.relay.config.hud.is_none() {
            return;
        }
        let Ok(body) = serde_json::from_slice::<Box<RawValue>>(self.body) else { return };
        let repo = &self.identity.repository;
        let work = forward::work(repo, self.entry.level, key, times, &body);
        batch.tasks.push(work.task(&self.relay.config.upstream, self.relay.now()));
    }

    fn charge(&self) -> RateLimitCharge {
        RateLimitCharge {
            bucket: state_records::report_limit_key(&self.identity.repository),
            per_minute: self.relay.config.rate_per_minute,
        }
    }

    fn status(&self) -> &'static str {
        self.callback.state.status()
    }
}

/// What a report lacks, where something hangs on it: below L3 nothing does.
fn missing_proof(dispatch: &Dispatch, proof: ProofStatus) -> Option<MissingProof> {
    match proof {
        ProofStatus::Missing(missing) if dispatch.level.check_run() != CheckRunPolicy::Never => {
            Some(missing)
        }
        _ => None,
    }
}

/// What the second report doesn't say stays as the first one said it.
fn merge(before: Option<ReportDetails>, report: &ReportDetails) -> ReportDetails {
    let before = before.unwrap_or_default();
    let report = report.clone();
    ReportDetails {
        url: report.url.or(before.url),
        check_run_id: report.check_run_id.or(before.check_run_id),
        started_at: report.started_at.or(before.started_at),
        completed_at: report.completed_at.or(before.completed_at),
        tests: report.tests.or(before.tests),
        failed_tests: report.failed_tests,
        artifact_url: report.artifact_url.or(before.artifact_url),
        phase: report.phase.or(before.phase),
        environment: report.environment.or(before.environment),
    }
}

fn fact(relay: &Relay, seen: &Seen, verdict: &Verdict, latency: Duration) -> CallbackFact {
    let callback = seen.callback.as_ref();
    let refusal = verdict.result.as_ref().err();
    CallbackFact {
        at: relay.now(),
        repo: seen.repo.as_ref().map(|repo| repo.as_str().to_owned()),
        delivery: callback.map(|callback| callback.delivery.clone()),
        run_id: callback.map(|callback| callback.job.run_id.clone()),
        job: callback.and_then(|callback| callback.job.job.clone()),
        status: callback.map(|callback| callback.state.status().to_owned()),
        conclusion: callback
            .and_then(|callback| callback.state.conclusion())
            .map(|conclusion| conclusion.as_str().to_owned()),
        outcome: verdict.outcome,
        answer: refusal.map_or(200, |refusal| refusal.status.as_u16()),
        detail: refusal.map(|refusal| refusal.detail.clone()),
        latency_ms: latency.as_micros() as f64 / 1000.0,
    }
}

/// Records a report that changed nothing. It changes no answer, so nobody waits for it; what isn't
/// of a listed repository, or is more than it may report, is only counted, so that nobody can fill
/// the disk.
fn record(relay: &Arc<Relay>, seen: &Seen, verdict: &Verdict, latency: Duration) {
    let outage = verdict.result.as_ref().is_err_and(|refusal| refusal.status.as_u16() >= 500);
    let Some(repo) = seen.repo.as_ref().filter(|repo| {
        relay.allowlist.get().is_some_and(|allowlist| allowlist.get(repo).is_some())
    }) else {
        return;
    };
    if outage {
        return;
    }
    // A bucket of their own: what is refused costs nothing of what may be reported.
    let charge = RateLimitCharge {
        bucket: state_records::refused_report_limit_key(repo),
        per_minute: relay.config.rate_per_minute,
    };
    let facts = vec![Fact::Callback(fact(relay, seen, verdict, latency))];
    let batch = WriteBatch { rate_limit: Some(charge), facts, ..WriteBatch::default() };
    let relay = Arc::clone(relay);
    tokio::spawn(async move {
        if let Err(error) = relay.commit(batch).await {
            tracing::warn!(%error, "a report's fact is lost");
        }
    });
}
