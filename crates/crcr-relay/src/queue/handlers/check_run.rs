//! Updates a check run on the upstream pull request from the store.
//!
//! The newest state is sent, whatever change asked for the update. The task's key makes sure that a
//! check run has only one update at a time.

use crcr_domain::checks::check_run::{self, CheckRunContext, CheckRunStatus};
use crcr_domain::checks::lifecycle::Conclusion;
use crcr_domain::results::facts::{CheckFact, Fact};
use crcr_domain::{Level, RepoName};
use crcr_github::GithubError;
use crcr_github::checks::{CheckRun, CheckRunOutput};
use crcr_store::{
    CommitOutcome, LeasedTask, NewTask, StoreError, StoreKey, TaskOutcome, Versioned, WriteBatch,
    read_record,
};
use jiff::Timestamp;
use url::Url;

use super::head::{self, Head, HeadJobRecord};
use super::job_checks;
use crate::breaker::{self, BreakerChange};
use crate::limits;
use crate::queue::blame_cache::Blame;
use crate::queue::task_kind::{CheckedJob, TaskDone, TaskError, TaskKind, check_name};
use crate::relay::Relay;
use crate::restore::RestoreRecord;
use crate::state_records::{self, CheckRunRecord};
use crate::uptime;

/// Evaluates one check run, the only way in which it changes.
pub async fn run(
    relay: &Relay,
    task: &LeasedTask,
    (repo, head_sha): (&RepoName, &str),
    checked: Option<&CheckedJob>,
) -> Result<TaskDone, TaskError> {
    let store = relay.store.as_ref();
    let key_name = check_name(&repo.key(), checked);
    // Nothing has to be read for a job without a check run.
    if checked.is_some() && job_checks::is_folded(relay, repo, head_sha, &key_name).await? {
        return Ok(TaskDone::Finished);
    }
    let key = state_records::check_run_key(head_sha, &key_name);
    let known: Versioned<CheckRunRecord> = read_record(store, key).await?;
    let answered = known.value.as_ref().map(|before| before.delivery.as_str());
    let Some(head) = Head::read(relay, repo, head_sha, answered).await? else {
        return Ok(TaskDone::Finished);
    };
    let job = checked.and_then(|checked| head.job(checked));
    let allowlist = super::allowlist(relay)?;
    let oncalls: Vec<String> = allowlist
        .get(repo)
        .map(|entry| entry.oncalls.iter().map(|oncall| oncall.as_str().to_owned()).collect())
        .unwrap_or_default();
    let page = head.pull_request.and_then(|number| relay.config.pull_request_page(number));
    let blame = match &job {
        Some(found) => match relay.blame.of_job(relay, found.dispatch, found.job).await {
            Blame::Known(blame) => blame,
            Blame::ReadAfter(wait) => return Ok(TaskDone::RunAgain(relay.now() + wait)),
        },
        None => None,
    };
    let (change, keeps_failing) = breaker_state(relay, &head, checked.is_none()).await?;
    let context = CheckRunContext {
        repo: head.repo.as_str(),
        level: head.level,
        oncalls: &oncalls,
        server_url: &relay.config.server_url,
        pull_request: head.pull_request,
        page: page.as_deref(),
        blame: blame.as_deref(),
        keeps_failing,
        nonblocking: relay.config.nonblocking,
    };
    let name = check_name(head.repo.as_str(), checked);
    let check = ShownCheck { task, head: &head, head_sha, name: &name, checked, known: &known };
    let content = if head.is_shown() {
        match (checked, &job) {
            (None, _) => verdict_content(relay, &context, &head),
            (Some(_), Some(found)) => Some(content_of_job(&context, found)),
            (Some(_), None) => None,
        }
    } else {
        check.withdrawn(relay, &context).await?
    };
    let Some((run, shown)) = content else { return Ok(TaskDone::Finished) };
    if checked.is_some()
        && known.value.is_none()
        && !job_checks::has_place(relay, repo, head_sha, &key_name).await?
    {
        return Ok(TaskDone::Finished);
    }
    if checked.is_none() && known.value.is_none() && head.job_count() > 0 {
        // Jobs may have reported before the commit had check runs, such as those of a push.
        let mut batch = WriteBatch::default();
        head.add_job_checks(relay, &mut batch);
        relay.commit(batch).await?;
    }
    if !check.send(relay, run, &shown).await? {
        return Ok(TaskDone::Finished);
    }
    // While the breaker is open, the oncalls hear of it once, and not of every pull request.
    let needs_oncall = change == BreakerChange::Opened || needs_oncall(&head, shown.status);
    if let Some(pull) = head.pull_request
        && needs_oncall
        && relay.config.oncall_comments
        && !oncalls.is_empty()
    {
        let work = TaskKind::Comment { pull, repo: head.repo.clone(), check_run: name };
        let tasks = vec![work.task(relay.now())];
        relay.commit(WriteBatch { tasks, ..WriteBatch::default() }).await?;
    }
    Ok(TaskDone::Finished)
}

/// Whether the oncalls have to look at it. A push, or closing the pull request, cancels a run, and a job that is killed
/// then reports no end.
fn needs_oncall(head: &Head, shown: CheckRunStatus) -> bool {
    let CheckRunStatus::Completed(end) = shown else { return false };
    let may_be_cut = matches!(end, Conclusion::Cancelled | Conclusion::TimedOut);
    let is_left = || head.deciding().is_some_and(|one| head.is_left_by_pull_of(one));
    end.alerts_oncall() && !(may_be_cut && is_left())
}

/// Tells the breaker of the outcome. Returns what became of it, and whether failures are neutral because of it.
async fn breaker_state(
    relay: &Relay,
    head: &Head,
    is_verdict: bool,
) -> Result<(BreakerChange, bool), TaskError> {
    let Some((dispatch, failed)) = head.infrastructure_failed(relay) else {
        return Ok((BreakerChange::None, false));
    };
    for job in head.lost_jobs().filter(|_| failed) {
        // Its end may have been reported while nobody listened.
        if uptime::was_down(relay, job.started_at, job.ended_at).await? {
            return Ok((BreakerChange::None, false));
        }
    }
    let mut change = BreakerChange::None;
    if is_verdict {
        change = breaker::note_outcome(relay, (dispatch, head.begun_at(dispatch)), failed).await?;
    }
    Ok((change, failed && breaker::is_open(relay, &head.repo).await?))
}

/// The content of the dispatch's check run, with the run that it links.
fn verdict_content(
    relay: &Relay,
    context: &CheckRunContext<'_>,
    head: &Head,
) -> Option<(u64, check_run::CheckRunContent)> {
    let verdict = head.verdict(relay)?;
    let run = verdict.run.as_deref().filter(|_| !verdict.is_foreign);
    let run = run.and_then(|run| run.parse().ok()).unwrap_or(0);
    let mut shown = check_run::dispatch_content(context, &verdict);
    let is_over = matches!(shown.status, CheckRunStatus::Completed(_));
    shown.summary.push_str(&job_checks::folded(head.job_count(), is_over, context.page));
    let refused = head.dispatches().filter_map(|dispatch| dispatch.refused_rerun.as_ref());
    if let Some(refused) = refused.max_by_key(|refused| refused.at) {
        check_run::add_refused_rerun(&mut shown, refused);
    }
    Some((run, shown))
}

fn content_of_job(
    context: &CheckRunContext<'_>,
    found: &HeadJobRecord<'_>,
) -> (u64, check_run::CheckRunContent) {
    let job = found.job;
    let shown = check_run::ShownJob {
        id: &job.id,
        state: job.state,
        details: &job.details,
        ended_without_proof: job.ended_without_proof,
        is_foreign: head::is_foreign(job),
        failed_before: found.failed_before,
    };
    let run = if shown.is_foreign { 0 } else { job.id.run_id.parse().unwrap_or(0) };
    let mut content = check_run::job_content(context, &shown);
    if let Some(refused) = &found.dispatch.refused_rerun
        && refused.run_id == run
    {
        check_run::add_refused_rerun(&mut content, refused);
    }
    (run, content)
}

/// Whether GitHub may still get a request that was begun at this time, or got it unknown to anybody.
fn is_under_way(relay: &Relay, begun_at: Timestamp) -> bool {
    // A clock may have been set back meanwhile.
    relay.now().duration_since(begun_at).unsigned_abs() < limits::UNDER_WAY
}

/// Whether the store was put back since the check run was sent: GitHub may have got other content meanwhile.
async fn is_of_before_restore(relay: &Relay, sent: &CheckRunRecord) -> Result<bool, StoreError> {
    let restore = RestoreRecord::read(relay.store.as_ref()).await?;
    Ok(restore.is_some_and(|restore| sent.sent_at < restore.restored_at))
}

/// A check run, and what is known of it.
struct ShownCheck<'a> {
    task: &'a LeasedTask,
    head: &'a Head,
    head_sha: &'a str,
    name: &'a str,
    /// The job that it shows; `None` for the verdict.
    checked: Option<&'a CheckedJob>,
    known: &'a Versioned<CheckRunRecord>,
}

impl ShownCheck<'_> {
    /// The end of a check run that must no longer be shown; `None` if GitHub has none that is open or has failed. What
    /// was good blocks nobody, and stays.
    async fn withdrawn(
        &self,
        relay: &Relay,
        context: &CheckRunContext<'_>,
    ) -> Result<Option<(u64, check_run::CheckRunContent)>, TaskError> {
        let run = match &self.known.value {
            Some(before) if before.may_be_open() || before.has_failed() => before.run,
            None if self.begun_as(relay).await?.is_some() => 0,
            _ => return Ok(None),
        };
        let id = (run > 0).then(|| run.to_string());
        let content = check_run::withdrawn_content(context, id.as_deref(), self.head.check_runs);
        Ok(content.map(|content| (run, content)))
    }

    fn begun_key(&self) -> StoreKey {
        let name = check_name(&self.head.repo.key(), self.checked);
        state_records::begun_check_run_key(self.head_sha, &name)
    }

    /// The name under which GitHub may have created it. The allowlist may spell the repository in another way since.
    async fn begun_as(&self, relay: &Relay) -> Result<Option<String>, StoreError> {
        Ok(relay.read_record(self.begun_key()).await?.value)
    }

    /// Creates or updates the check run, unless it has this content already. Returns false if there is none and
    /// none may be created.
    async fn send(
        &self,
        relay: &Relay,
        run: u64,
        shown: &check_run::CheckRunContent,
    ) -> Result<bool, TaskError> {
        let may_create = self.head.is_shown()
            && (self.head.level != Level::L3 || !relay.demotions.is_open(&self.head.repo));
        let mut body = CheckRun {
            name: self.name.to_owned(),
            external_id: shown.external_id.clone(),
            details_url: self.accepted_url(relay, shown.details_url.as_deref()),
            status: shown.status.status(),
            conclusion: shown.status.conclusion().map(str::to_owned),
            started_at: None,
            completed_at: None,
            output: CheckRunOutput { title: shown.title.clone(), summary: shown.summary.clone() },
        };
        let text =
            serde_json::to_vec(&body).map_err(|error| TaskError::permanent(error.to_string()))?;
        let digest = crate::webhook::signature::digest(&text);
        // What GitHub has, if that is known.
        let mut current = self.known.value.as_ref().filter(|before| !before.digest.is_empty());
        if let Some(before) = current
            && is_of_before_restore(relay, before).await?
        {
            current = None;
        }
        if current.is_some_and(|before| before.digest == digest) {
            return Ok(true);
        }
        self.charge_calls(relay).await?;
        let completed = matches!(shown.status, CheckRunStatus::Completed(_));
        body.completed_at = completed.then(|| relay.now());
        let name = check_name(&self.head.repo.key(), self.checked);
        let key = state_records::unanswered_creation_key(self.head_sha, &name);
        let mut begun: Versioned<Option<Timestamp>> = match &self.known.value {
            None => relay.read_record(key).await?,
            Some(_) => Versioned { key, version: 0, value: None },
        };
        let other_change = self.other_change(relay, &begun);
        let called = self.call(relay, &body, current, may_create, &mut begun).await?;
        let Some(id) = called else { return Ok(false) };
        let deciding = self.head.deciding();
        tracing::info!(
            delivery = deciding.map(|dispatch| dispatch.delivery.as_str()),
            repo = %self.head.repo,
            name = self.name,
            status = body.status,
            conclusion = body.conclusion,
            "check run sent"
        );
        let delivery = deciding.map(|dispatch| dispatch.delivery.clone()).unwrap_or_default();
        let sent_at = relay.now();
        let sent = CheckRunRecord {
            id,
            run,
            status: shown.status,
            delivery,
            digest,
            sent_at,
            unanswered_since: None,
            is_of_other_app: false,
        };
        self.record_sent(relay, sent, shown, other_change).await?;
        Ok(true)
    }

    /// Charges the calls that the check run of a job takes. One that GitHub shows as it is takes none, however often it is
    /// evaluated while its run goes on.
    async fn charge_calls(&self, relay: &Relay) -> Result<(), TaskError> {
        if self.checked.is_none() {
            return Ok(());
        }
        let calls = if self.known.value.is_some() { 1 } else { 2 };
        job_checks::charge_calls(relay, &self.head.repo, calls).await
    }

    /// Records what GitHub has now, unless another worker's change may have come between. `other_change`: since when
    /// one may have been on its way.
    async fn record_sent(
        &self,
        relay: &Relay,
        sent: CheckRunRecord,
        shown: &check_run::CheckRunContent,
        other_change: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let version = self.version_before_call();
        let written = relay.update(self.known.key.clone(), |now: &Versioned<CheckRunRecord>| {
            let (record, again_at) = match other_change {
                _ if now.version != version => {
                    // The lease of this task ended early, because the process was frozen or a clock is ahead, and
                    // another worker changed the check run at the same time. Nobody knows which change GitHub got last.
                    let since = now.value.as_ref().and_then(|other| other.unanswered_since);
                    (sent.with_unknown_content(since), Some(relay.now()))
                }
                Some(since) => {
                    (sent.with_unknown_content(Some(since)), Some(since + limits::UNDER_WAY))
                }
                None => (sent.clone(), None),
            };
            let mut batch = WriteBatch::default();
            batch.update(now, &record, relay.expiry());
            batch.tasks.extend(self.sweeps_if_opened(relay, shown));
            batch.tasks.extend(again_at.map(|at| self.evaluation(at)));
            batch.facts.extend(self.fact(relay, shown));
            ((), Some(batch))
        });
        written.await
    }

    /// The address that a reporter has named, as GitHub accepts it, or else the relay's page: for one that isn't valid
    /// GitHub refuses the whole check run.
    fn accepted_url(&self, relay: &Relay, named: Option<&str>) -> Option<String> {
        let url = named.and_then(|url| Url::parse(url).ok()).map(String::from);
        let page = || self.head.pull_request.and_then(|it| relay.config.pull_request_page(it));
        url.filter(|url| url.len() <= limits::DETAILS_URL_BYTES).or_else(page)
    }

    /// Since when a change of another worker may be on its way, which would replace this one. That worker may have
    /// stopped, so nobody else looks whether it does. `begun`: the change before the check run had a record.
    fn other_change(
        &self,
        relay: &Relay,
        begun: &Versioned<Option<Timestamp>>,
    ) -> Option<Timestamp> {
        let since = match &self.known.value {
            Some(known) => known.unanswered_since,
            None => begun.value.flatten(),
        };
        since.filter(|at| is_under_way(relay, *at))
    }

    /// Writes down that GitHub may get a change from now on, while the task is this worker's: of a later one nobody
    /// would know. If the answer gets lost, GitHub has other content than the record, and a check run that isn't
    /// wanted any more has to be ended all the same. It comes right before the request: one that only waits for another
    /// worker's would have the next one wait for it, and so on for ever.
    ///
    /// `begun`: the last change before the check run had a record, as it was before the check run was looked for.
    async fn begin(
        &self,
        relay: &Relay,
        begun: &mut Versioned<Option<Timestamp>>,
    ) -> Result<(), TaskError> {
        let settlement = Some(self.task.settle(TaskOutcome::Keep));
        let mut batch = WriteBatch { settlement, ..WriteBatch::default() };
        if let Some(before) = &self.known.value {
            let unknown = before.with_unknown_content(Some(relay.now()));
            batch.update(self.known, &unknown, relay.expiry());
        } else {
            batch.set(self.begun_key(), &self.name, relay.expiry());
            batch.update(begun, &Some(relay.now()), relay.expiry());
        }
        if relay.commit(batch).await? != CommitOutcome::Done {
            return Err(TaskError::retry("another worker changes the check run"));
        }
        begun.version += 1;
        Ok(())
    }

    /// Creates the check run. If GitHub refuses that, nothing of it is on its way any more.
    async fn create(
        &self,
        relay: &Relay,
        begun: &mut Versioned<Option<Timestamp>>,
        body: &CheckRun,
    ) -> Result<u64, TaskError> {
        self.begin(relay, begun).await?;
        let upstream = relay.config.upstream.as_str();
        let created = relay.app.create_check_run(upstream, self.head_sha, body).await;
        if created.as_ref().is_err_and(|error| !error.is_unanswered()) {
            let mut batch = WriteBatch::default();
            match &self.known.value {
                Some(before) => self.add_refused(relay, before, &mut batch),
                None => batch.update(begun, &None, relay.expiry()),
            }
            // After a conflict, another worker has begun a change.
            relay.commit(batch).await?;
        }
        Ok(created?)
    }

    /// Writes down that GitHub has refused a change.
    fn add_refused(&self, relay: &Relay, before: &CheckRunRecord, batch: &mut WriteBatch) {
        let (key, version) = (self.known.key.clone(), self.version_before_call());
        let other = before.unanswered_since.filter(|at| is_under_way(relay, *at));
        let unknown = before.with_unknown_content(other);
        batch.update(&Versioned { key, version, value: None }, &unknown, relay.expiry());
    }

    /// While nothing was shown as open, sweeps may have ended, and nobody would ask GitHub for the end of the
    /// runs. They are written with the record, so that a check run which may not be created asks for none.
    fn sweeps_if_opened(&self, relay: &Relay, shown: &check_run::CheckRunContent) -> Vec<NewTask> {
        let was_open = self.known.value.as_ref().is_some_and(|before| before.status.is_open());
        if self.checked.is_some() || !shown.status.is_open() || was_open {
            return Vec::new();
        }
        let sweep = |dispatch| TaskKind::sweep(dispatch).task(relay.now());
        self.head.answered().map(sweep).collect()
    }

    /// The version of the record after [`Self::begin`].
    fn version_before_call(&self) -> u64 {
        self.known.version + u64::from(self.known.value.is_some())
    }

    /// What the pages are told of a verdict; of a job they know more.
    fn fact(&self, relay: &Relay, shown: &check_run::CheckRunContent) -> Option<Fact> {
        self.checked.is_none().then(|| {
            Fact::Check(CheckFact {
                at: relay.now(),
                upstream: relay.config.upstream.as_str().to_owned(),
                head_sha: self.head_sha.to_owned(),
                repo: self.head.repo.as_str().to_owned(),
                status: shown.status,
                title: shown.title.clone(),
            })
        })
    }

    /// The task that evaluates this check run again.
    fn evaluation(&self, at: Timestamp) -> NewTask {
        let (repo, head_sha) = (self.head.repo.clone(), self.head_sha.to_owned());
        TaskKind::CheckRun { repo, head_sha, job: self.checked.cloned() }.task(at)
    }

    /// Updates the check run. If GitHub refuses that, nothing of it is on its way any more. `may_be_own`: whether this App
    /// may have made it.
    async fn update(
        &self,
        relay: &Relay,
        id: u64,
        body: &CheckRun,
        may_be_own: bool,
    ) -> Result<Result<(), GithubError>, StoreError> {
        let upstream = relay.config.upstream.as_str();
        let updated = relay.app.update_check_run(upstream, id, body).await;
        if let Some(before) = &self.known.value
            && let Err(error) = &updated
            && !error.is_unanswered()
        {
            let is_refused = matches!(error, GithubError::NotFound(_) | GithubError::Forbidden(_));
            let is_of_other_app = is_refused && !may_be_own;
            let before = CheckRunRecord { is_of_other_app, ..before.clone() };
            let mut batch = WriteBatch::default();
            self.add_refused(relay, &before, &mut batch);
            // After a conflict, another worker has begun an update.
            relay.commit(batch).await?;
        }
        Ok(updated)
    }

    /// Sends the content; returns the check run's number, or `None` if there is none and none may be created.
    ///
    /// GitHub leaves a check run that has ended as it is, whatever its status shall be then
    /// (<https://github.com/orgs/community/discussions/24761>). So a new one of its name takes its place, the only one that
    /// counts.
    async fn call(
        &self,
        relay: &Relay,
        body: &CheckRun,
        current: Option<&CheckRunRecord>,
        may_create: bool,
        begun: &mut Versioned<Option<Timestamp>>,
    ) -> Result<Option<u64>, TaskError> {
        let upstream = relay.config.upstream.as_str();
        let known = self.known.value.as_ref().filter(|before| !before.is_of_other_app);
        let is_stuck = |has_ended: bool| has_ended && body.status != "completed";
        let has_ended = known.is_some_and(|before| !before.status.is_open());
        if current.is_some() && is_stuck(has_ended) && !may_create {
            return Ok(None);
        }
        if let Some(before) = current.filter(|_| !is_stuck(has_ended)) {
            self.begin(relay, begun).await?;
            self.update(relay, before.id, body, true).await??;
            return Ok(Some(before.id));
        }
        // It may have been created just before a crash, or by two workers at the same time.
        let mut found = relay.app.own_check_runs(upstream, self.head_sha, self.name).await?;
        if found.is_empty()
            && let Some(name) = self.begun_as(relay).await?.filter(|name| name != self.name)
        {
            found = relay.app.own_check_runs(upstream, self.head_sha, &name).await?;
        }
        let has_ended = found.first().map_or(has_ended, |run| run.status == "completed");
        let newest = found.first().map(|run| run.id).or(known.map(|before| before.id));
        let newest = newest.filter(|_| !is_stuck(has_ended));
        for older in found.iter().skip(1).filter(|run| run.status != "completed") {
            relay.app.update_check_run(upstream, older.id, &replaced(relay, body)).await?;
        }
        if let Some(id) = newest {
            self.begin(relay, begun).await?;
            // What GitHub doesn't list as this App's and refuses to change is made anew by the next try.
            match self.update(relay, id, body, !found.is_empty()).await? {
                Ok(()) => return Ok(Some(id)),
                Err(GithubError::Forbidden(_)) if may_create && self.known.value.is_none() => {}
                Err(error) => return Err(error.into()),
            }
        } else if let Some(since) = self.other_change(relay, begun) {
            // The lease of another worker may have ended before it was done, and GitHub doesn't refuse a second one.
            // If it isn't wanted any more, it has to be ended when GitHub has it.
            let text = "another worker may be creating the check run";
            let not_before = Some(since + limits::UNDER_WAY);
            return Err(TaskError { not_before, ..TaskError::retry(text) });
        }
        if !may_create {
            return Ok(None);
        }
        Ok(Some(self.create(relay, begun, body).await?))
    }
}

/// The end of a check run that has a newer one of its name. It never counts as a success: the newer one has the result.
fn replaced(relay: &Relay, newer: &CheckRun) -> CheckRun {
    CheckRun {
        status: "completed",
        conclusion: Some("cancelled".to_owned()),
        completed_at: Some(relay.now()),
        output: CheckRunOutput {
            title: "Replaced by a newer check run".to_owned(),
            summary: "The result is on the newer check run of this name.".to_owned(),
        },
        ..newer.clone()
    }
}
