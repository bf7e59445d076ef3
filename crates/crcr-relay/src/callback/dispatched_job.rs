//! The report of a job that answers a dispatch.

use std::collections::BTreeMap;

use crcr_domain::checks::lifecycle::{self, Conclusion, JobState, JobTransition};
use crcr_domain::checks::proof::{MissingProof, ProofStatus, ReportOrigin, ReportProvenance};
use crcr_domain::protocol::callback::JobId;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::identity::{CallerIdentity, ProviderClaims};
use crcr_domain::results::facts::{AttemptFact, CallbackOutcome, Fact};
use crcr_domain::{Level, RepoName};
use crcr_store::{
    NewTask, SetInsert, StoreError, StoreKey, Versioned, WriteBatch, decode_record, hash64,
};
use jiff::Timestamp;

use super::response::{CallbackAnswer, CallbackResponse};
use super::verified_report::{RecordAttempt, VerifiedReport};
use crate::facts::attempt_fact;
use crate::limits;
use crate::probes::{bisect, confirm};
use crate::queue::handlers::head::{self, DeliveryWeight, add_proven_job, missing_proof};
use crate::queue::handlers::sweep::probe_ended;
use crate::queue::handlers::{alert, merge_base};
use crate::queue::task_kind::TaskKind;
use crate::relay::Relay;
use crate::repository_pins::Pin;
use crate::state_records::{self, JobRecord, OTHER_STEPS, UsedToken};

/// What the store has of a job that answers a dispatch.
struct KnownJob {
    token: Versioned<UsedToken>,
    dispatch: Versioned<Dispatch>,
    pin: Versioned<Pin>,
    job: Versioned<JobRecord>,
    /// The first job of the run that reported.
    first_job: Versioned<JobId>,
    /// The delivery that proven reports of the run answer, by each of its names.
    claims: [Versioned<String>; 2],
}

impl KnownJob {
    /// The job's state before this report.
    fn state(&self) -> JobState {
        self.job.value.as_ref().map_or(JobState::Dispatched, |job| job.state)
    }
}

/// What a report makes of its job's state.
struct NextState {
    state: JobState,
    start_unknown: bool,
    steps: StepOutcomes,
}

impl VerifiedReport<'_> {
    pub(crate) async fn record_dispatched_job(&self) -> Result<RecordAttempt, StoreError> {
        let mut known = self.read_known_job().await?;
        if let Some(replayed) = self.check_replay(known.token.value.as_ref()) {
            return Ok(RecordAttempt::Answered(replayed));
        }
        if let Some(refused) = self.check_pin(&known.pin).await? {
            return Ok(RecordAttempt::Answered(refused));
        }
        if let Some(repository) = self.name_when_dispatched(&known).await? {
            let identity = CallerIdentity { repository, ..self.identity.clone() };
            let report = VerifiedReport { identity: &identity, ..*self };
            return Box::pin(report.record_dispatched_job()).await;
        }
        let Some(dispatch) = &known.dispatch.value else {
            let detail = "callback rejected: no matching dispatch record";
            let outcome = CallbackOutcome::RejectedState;
            return Ok(RecordAttempt::Answered(CallbackResponse::bad_request(outcome, detail)));
        };
        if !self.shown_level(dispatch).shows_results() {
            let outcome = CallbackOutcome::BelowLevel;
            return Ok(RecordAttempt::Answered(CallbackResponse::accepted(
                outcome,
                CallbackAnswer::Ignored,
            )));
        }
        if let Some(refused) = self.check_repository(dispatch) {
            return Ok(RecordAttempt::Answered(refused));
        }
        for claim in &known.claims {
            if let Some(refused) = self.check_claim(dispatch, claim.value.as_deref()).await? {
                return Ok(RecordAttempt::Answered(refused));
            }
        }
        let provenance = self.provenance(Some(dispatch));
        let proof = head::proof_of(dispatch, &provenance);
        if let Some(recorded) = &known.job.value {
            let recorded_proof = head::proof(dispatch, recorded);
            if recorded_proof > proof && head::has_check_runs(self.relay, dispatch) {
                return self.record_without_proof(dispatch, &known.job, proof, &known.token).await;
            }
            if recorded_proof < proof {
                // A report with proof replaces everything that was reported without, at L2, too: the backend may be promoted.
                known.job.value = None;
            }
        }
        let before = known.job.value.as_ref();
        match self.next_state(known.state(), before) {
            Ok(next) => self.record_state(&known, dispatch, next, provenance).await,
            Err((refused, steps)) => {
                let mut batch = WriteBatch::default();
                if let Some((job, steps)) = before.zip(steps) {
                    let changed = JobRecord { steps, ..job.clone() };
                    batch.update(&known.job, &changed, self.relay.expiry());
                    self.add_follow_up_tasks(&known, dispatch, proof, &mut batch);
                }
                self.reject_step(refused, batch, &known.token).await
            }
        }
    }

    /// The level whose results are stored: the one at the time of the dispatch, or now if that is higher.
    fn shown_level(&self, dispatch: &Dispatch) -> Level {
        dispatch.level.max(self.level())
    }

    /// Commits the job's new state, its facts, and the tasks that follow from them.
    async fn record_state(
        &self,
        known: &KnownJob,
        dispatch: &Dispatch,
        next: NextState,
        provenance: ReportProvenance,
    ) -> Result<RecordAttempt, StoreError> {
        let relay = self.relay;
        let now = relay.now();
        let mut next = self.next_record(next, known, provenance, now);
        let proof = head::proof(dispatch, &next);
        let mut fact = attempt_fact(relay, &dispatch.into(), &next, now);
        fact.missing_proof = missing_proof(dispatch, proof);
        // The fact has all texts; a check run shows a few names, and a search compares all of a probe's.
        if dispatch.probe.is_some() {
            next.details.keep_names_of_tests();
        } else {
            next.details.keep_shown_tests();
        }
        let mut batch = WriteBatch::default();
        self.add_job(known, &next, now, &mut batch);
        let is_unsettled = next.state.is_open() || !dispatch.is_answered;
        if is_failure(next.state) {
            head::add_evidence(relay, &mut batch, dispatch, DeliveryWeight::Failed);
        } else if is_unsettled && !matches!(proof, ProofStatus::Missing(_)) {
            // The next sweep knows whether all of it is good.
            head::add_evidence(relay, &mut batch, dispatch, DeliveryWeight::Unsettled);
        }
        let times = (fact.queue_seconds, fact.execution_seconds);
        add_attempt(relay, dispatch, fact, known.state(), &mut batch);
        self.add_follow_up_tasks(known, dispatch, proof, &mut batch);
        let is_answered = dispatch.is_answered || proof == ProofStatus::Proven;
        if is_answered != dispatch.is_answered || dispatch.sent_at().is_none() {
            // Who sends it again has to see that it is answered, and who records that it was sent has to see
            // this job, whose check run is shown only then.
            let answered = Dispatch { is_answered, ..dispatch.clone() };
            batch.update(&known.dispatch, &answered, relay.expiry());
        }
        if dispatch.probe.is_none() {
            self.add_forward(&known.job.key, self.shown_level(dispatch), times, &mut batch);
        }
        let answer = CallbackAnswer::Recorded(self.callback.state);
        let attempt = self.commit(batch, &known.token, answer, outcome_of(dispatch, proof)).await;
        if let Ok(RecordAttempt::Answered(response)) = &attempt
            && response.result.is_ok()
        {
            let received_at = now - self.started.elapsed();
            relay.traces.report_recorded(dispatch, &next, received_at, relay.now());
        }
        attempt
    }

    /// The name that the repository had when it got the dispatch, if it was renamed since and the allowlist already has the
    /// new name. It may have got the same event again under the new name: that dispatch has another callback token.
    async fn name_when_dispatched(&self, known: &KnownJob) -> Result<Option<RepoName>, StoreError> {
        let answers = |dispatch: &Dispatch| {
            self.callback.callback_token.is_none() || self.has_callback_token(dispatch)
        };
        if known.dispatch.value.as_ref().is_some_and(answers) {
            return Ok(None);
        }
        let Some(number) = self.identity.github().and_then(|claims| claims.repository_id) else {
            return Ok(None);
        };
        let mut names = self.relay.pinned_names.of(self.relay, number).await?;
        names.retain(|name| name.key() != self.identity.repository.key());
        let delivery = &self.callback.delivery;
        let keys = names.iter().map(|name| state_records::dispatch_key(delivery, name)).collect();
        let found = self.relay.read_records::<Dispatch>(keys).await?;
        let is_of_it = |dispatch: &Dispatch| {
            known.dispatch.value.is_none() || self.has_callback_token(dispatch)
        };
        let mut names = names.into_iter().zip(found);
        let name = names.find(|(_, read)| read.value.as_ref().is_some_and(is_of_it));
        Ok(name.map(|(name, _)| name))
    }

    async fn read_known_job(&self) -> Result<KnownJob, StoreError> {
        let (upstream, callback) = (&self.relay.config.upstream, self.callback);
        let repo = &self.identity.repository;
        let keys = [
            self.token_key(),
            state_records::dispatch_key(&callback.delivery, repo),
            state_records::pin_key(upstream, repo),
            state_records::job_key(&callback.delivery, repo, &callback.job),
            state_records::first_job_key(&callback.delivery, repo, &callback.job),
            self.claim_key(&callback.job.run_id),
            self.claim_key(self.build_number().unwrap_or(&callback.job.run_id)),
        ];
        let found = self.relay.store.records(&keys).await?;
        let [token, dispatch, pin, job, first_job, claim, number_claim] =
            <[_; 7]>::try_from(found).expect("seven keys");
        let [token_key, dispatch_key, pin_key, job_key, first_job_key, claim_key, number_claim_key] =
            keys;
        Ok(KnownJob {
            token: decode_record(token_key, token)?,
            dispatch: decode_record(dispatch_key, dispatch)?,
            pin: decode_record(pin_key, pin)?,
            job: decode_record(job_key, job)?,
            first_job: decode_record(first_job_key, first_job)?,
            claims: [
                decode_record(claim_key, claim)?,
                decode_record(number_claim_key, number_claim)?,
            ],
        })
    }

    /// The state after this report. Otherwise the reason why the state stays, and the job's steps if the report says
    /// more of them.
    fn next_state(
        &self,
        current: JobState,
        before: Option<&JobRecord>,
    ) -> Result<NextState, (JobTransition, Option<StepOutcomes>)> {
        let known_steps = before.map(|job| job.steps.clone()).unwrap_or_default();
        let further_steps = self.further_steps(&known_steps);
        let has_news = further_steps.is_some();
        let steps = further_steps.unwrap_or(known_steps);
        // A step that failed ends the name. A cancelled one says nothing of those that still run.
        let has_failed = is_failure(current) || is_failure(self.callback.state);
        let waits = !has_failed && steps.values().any(Option::is_none);
        let start_unknown = match lifecycle::transition(current, self.callback.state) {
            JobTransition::Apply { start_unknown } => start_unknown,
            _ if waits && has_news => false,
            refused => return Err((refused, has_news.then_some(steps))),
        };
        let is_partly_bad = steps.values().any(|not_good| *not_good == Some(true));
        let state = match self.callback.state {
            _ if waits => JobState::InProgress,
            JobState::Completed(end) if end.is_good() && is_partly_bad => {
                JobState::Completed(Conclusion::Cancelled)
            }
            state => state,
        };
        Ok(NextState { state, start_unknown, steps })
    }

    fn next_record(
        &self,
        next: NextState,
        known: &KnownJob,
        provenance: ReportProvenance,
        now: Timestamp,
    ) -> JobRecord {
        let (callback, before) = (self.callback, known.job.value.as_ref());
        let started_at = before.and_then(|job| job.started_at);
        let start = (callback.state == JobState::InProgress).then_some(now);
        let earlier = before.map(|job| job.details.clone()).unwrap_or_default();
        let first_job = known.first_job.value.as_ref();
        JobRecord {
            id: callback.job.clone(),
            state: next.state,
            start_unknown: next.start_unknown || before.is_some_and(|job| job.start_unknown),
            heard_at: before.map_or(now, |job| job.heard_at),
            started_at: started_at.or(start),
            last_started_at: start.or_else(|| before.and_then(|job| job.last_started_at)),
            ended_at: (!next.state.is_open()).then_some(now),
            is_first_of_run: first_job.is_none_or(|first| *first == callback.job),
            details: callback.details.clone().after(earlier),
            provenance,
            ended_without_proof: false,
            pipeline: before.and_then(|job| job.pipeline.clone()).or_else(|| self.pipeline()),
            build_number: before
                .and_then(|job| job.build_number)
                .or_else(|| self.build_number()?.parse().ok()),
            ends_run: callback.run_ended || before.is_some_and(|job| job.ends_run),
            steps: next.steps,
        }
    }

    fn pipeline(&self) -> Option<String> {
        let claims = self.identity.buildkite()?;
        Some(format!("{}/{}", claims.organization_id, claims.pipeline_id).to_ascii_lowercase())
    }

    /// Every token of a build has it, while its agents may leave out the id that reports name.
    fn build_number(&self) -> Option<&str> {
        self.identity.buildkite()?.build_number.as_deref()
    }

    fn claim_key(&self, run_id: &str) -> StoreKey {
        let pipeline = self.pipeline();
        state_records::run_claim_key(&self.identity.repository, pipeline.as_deref(), run_id)
    }

    /// Writes the job's record, and adds it to the jobs of its dispatch.
    fn add_job(&self, known: &KnownJob, next: &JobRecord, now: Timestamp, batch: &mut WriteBatch) {
        let (callback, expires_at) = (self.callback, self.relay.expiry());
        batch.update(&known.job, next, expires_at);
        if known.first_job.value.is_none() {
            batch.update(&known.first_job, &callback.job, expires_at);
        }
        let failed = next.state.conclusion().is_some_and(|end| !end.is_good());
        if known.job.version == 0 || failed {
            // A failed job is read first, however many others report after it.
            let first = if failed { 1 << 50 } else { 0 };
            batch.set_inserts.push(SetInsert {
                set: state_records::job_set_key(&callback.delivery, &self.identity.repository),
                member: serde_json::to_string(&callback.job).expect("a job is always JSON"),
                score: first + now.as_millisecond(),
                expires_at,
            });
        }
    }

    /// The steps of a build elsewhere, if this report says more of them than `known`.
    fn further_steps(&self, known: &StepOutcomes) -> Option<StepOutcomes> {
        let ProviderClaims::Buildkite(claims) = &self.identity.claims else { return None };
        // A token may report for several steps, which then have check runs of their own.
        let name = |check_run_id: &Option<String>| {
            format!("{:016x}", hash64(format!("{:?}", (&claims.job_id, check_run_id)).as_bytes()))
        };
        let mut step = name(&self.callback.details.check_run_id);
        let mut not_good = self.callback.state.conclusion().map(|end| !end.is_good());
        if !known.contains_key(&step) && known.len() >= limits::STEPS_OF_A_NAME {
            // What isn't told apart is never a success together; a failure counts.
            step = OTHER_STEPS.to_owned();
            not_good = not_good.filter(|_| is_failure(self.callback.state));
        }
        // In the order of `Option`: before its end, a good one, another one.
        let is_news = known.get(&step).is_none_or(|known| not_good > *known);
        is_news.then(|| {
            let mut steps = known.clone();
            // Its start may have been reported before it had a check run.
            if let Some(None) = steps.get(&name(&None)) {
                steps.remove(&name(&None));
            }
            steps.insert(step, not_good);
            steps
        })
    }

    /// A report without proof for a job that was reported with proof. It changes nothing, except that
    /// the job's end is believed: otherwise its check run would stay open forever.
    async fn record_without_proof(
        &self,
        dispatch: &Dispatch,
        job: &Versioned<JobRecord>,
        proof: ProofStatus,
        token: &Versioned<UsedToken>,
    ) -> Result<RecordAttempt, StoreError> {
        let relay = self.relay;
        let mut batch = WriteBatch::default();
        if let Some(recorded) = job.value.as_ref().filter(|recorded| recorded.state.is_open())
            && !self.callback.state.is_open()
            && !recorded.ended_without_proof
        {
            let ended = JobRecord { ended_without_proof: true, ..recorded.clone() };
            batch.update(job, &ended, relay.expiry());
            let update = TaskKind::check_run(dispatch, Some(&ended.id));
            batch.tasks.push(update.task(relay.now()));
            batch.tasks.push(self.sweep_after_end(dispatch));
        }
        let answer = CallbackAnswer::Recorded(self.callback.state);
        self.commit(batch, token, answer, outcome_of(dispatch, proof)).await
    }

    /// Refuses a token of another repository than the one that the dispatch was sent to.
    fn check_repository(&self, dispatch: &Dispatch) -> Option<CallbackResponse> {
        let claims = self.identity.github()?;
        let sent_to = dispatch.repository_id?;
        if claims.repository_id == Some(sent_to) {
            return None;
        }
        let detail = format!(
            "the token is of repository number {}, the dispatch went to number {sent_to}",
            claims.repository_id.unwrap_or_default(),
        );
        Some(CallbackResponse::bad_token(detail))
    }

    /// Refuses a run that answers another dispatch. One run answers one: otherwise code of one pull request that runs
    /// downstream could report in the name of another.
    async fn check_claim(
        &self,
        dispatch: &Dispatch,
        claim: Option<&str>,
    ) -> Result<Option<CallbackResponse>, StoreError> {
        let Some(other) = claim.filter(|delivery| *delivery != self.callback.delivery) else {
            return Ok(None);
        };
        let key = state_records::dispatch_key(other, &self.identity.repository);
        let claimed: Versioned<Dispatch> = self.relay.read_record(key).await?;
        let repository_id = claimed.value.and_then(|claimed| claimed.repository_id);
        // Another repository that has the name now has runs of its own.
        if repository_id.zip(dispatch.repository_id).is_some_and(|(one, other)| one != other) {
            return Ok(None);
        }
        let run = &self.callback.job.run_id;
        let detail = format!("callback rejected: run {run} answers the delivery {other}");
        Ok(Some(CallbackResponse::bad_request(CallbackOutcome::RejectedState, detail)))
    }

    pub(crate) fn provenance(&self, dispatch: Option<&Dispatch>) -> ReportProvenance {
        let origin = match self.identity.github() {
            Some(claims) => ReportOrigin::GitHub {
                event_name: claims.event_name.clone(),
                git_ref: claims.ref_name.clone(),
            },
            None => ReportOrigin::MappedPipeline,
        };
        let has_callback_token = dispatch.is_some_and(|one| self.has_callback_token(one));
        ReportProvenance { origin, has_callback_token }
    }

    fn has_callback_token(&self, dispatch: &Dispatch) -> bool {
        let token = self.callback.callback_token.as_deref().unwrap_or_default();
        self.relay.keys.verify(token, dispatch, self.relay.now())
    }

    /// Adds the updates of the check runs, if the report is proven, and the next sweep.
    fn add_follow_up_tasks(
        &self,
        known: &KnownJob,
        dispatch: &Dispatch,
        proof: ProofStatus,
        batch: &mut WriteBatch,
    ) {
        let (relay, now) = (self.relay, self.relay.now());
        let has_check_runs = head::has_check_runs(relay, dispatch);
        if proof == ProofStatus::Proven {
            if has_check_runs {
                batch.tasks.push(TaskKind::check_run(dispatch, None).task(now));
            }
            add_proven_job(
                relay,
                dispatch,
                (&self.callback.job, self.pipeline().as_deref()),
                batch,
            );
        }
        if matches!(proof, ProofStatus::Proven | ProofStatus::Undecided) {
            let [claim, number_claim] = &known.claims;
            if number_claim.key != claim.key {
                batch.set(number_claim.key.clone(), &dispatch.delivery, relay.expiry());
            }
            // Not if another report has claimed the run meanwhile.
            let unclaimed = known.claims.iter().filter(|claim| claim.value.is_none());
            batch
                .expected_versions
                .extend(unclaimed.map(|claim| (claim.key.clone(), claim.version)));
        }
        if self.callback.state.is_open() {
            let lost_after = relay.config.lost_after;
            let pause = if has_check_runs { lost_after.min(limits::RUN_POLL) } else { lost_after };
            batch.tasks.push(TaskKind::sweep(dispatch).task(now + pause));
        } else if has_check_runs {
            batch.tasks.push(self.sweep_after_end(dispatch));
        }
    }

    /// GitHub takes a moment to close a run after its last step has reported.
    fn sweep_after_end(&self, dispatch: &Dispatch) -> NewTask {
        let at = self.relay.now() + limits::RUN_END_LOOK;
        TaskKind::sweep(dispatch).task(at)
    }
}

/// The steps of a build elsewhere that share a name, each with whether it ended badly; `None` before its end.
type StepOutcomes = BTreeMap<String, Option<bool>>;

fn is_failure(state: JobState) -> bool {
    matches!(state, JobState::Completed(end) if !end.is_good() && end != Conclusion::Cancelled)
}

/// Adds the facts of an attempt, and the tasks that follow from them.
fn add_attempt(
    relay: &Relay,
    dispatch: &Dispatch,
    fact: AttemptFact,
    before: JobState,
    batch: &mut WriteBatch,
) {
    let now = fact.received_at;
    batch.tasks.extend(alert::task(relay, &fact, now));
    batch.tasks.extend(merge_base::task(dispatch, &fact, now));
    batch.tasks.extend(confirm::task(dispatch, &fact, now));
    batch.tasks.extend(bisect::task(&fact, now));
    let is_open = fact.state.is_open();
    if !is_open {
        batch.tasks.extend(probe_ended(dispatch, now));
    }
    // The facts of an attempt that ended aren't taken back by a step that starts after it.
    if before.is_open() || !is_open {
        batch.facts.push(Fact::Attempt(Box::new(fact)));
    }
}

/// The record of an accepted report.
fn outcome_of(dispatch: &Dispatch, proof: ProofStatus) -> (CallbackOutcome, Option<MissingProof>) {
    let Some(missing) = missing_proof(dispatch, proof) else {
        return (CallbackOutcome::Accepted, None);
    };
    let (delivery, repo) = (&dispatch.delivery, &dispatch.repo);
    tracing::warn!(delivery, %repo, %missing, "reported without proof");
    (CallbackOutcome::Unproven, Some(missing))
}
