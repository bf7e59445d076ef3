//! Looks after a dispatch: never started, jobs that are lost, and whether its run is over.

use crcr_domain::dispatch::{Dispatch, End};
use crcr_domain::facts::Fact;
use crcr_domain::lifecycle::{self, Conclusion, State, Step};
use crcr_domain::{Level, RepoName};
use crcr_github::Error;
use jiff::Timestamp;

use super::{Fail, Outcome, Work, alert, check_run, forward};
use crate::facts::attempt_fact;
use crate::limits;
use crate::records::{self, Job};
use crate::relay::Relay;
use crate::store::{Batch, Commit, Read, StoreError, read};

/// One look; says when the next one is due.
pub async fn run(relay: &Relay, delivery: &str, repo: &RepoName) -> Result<Outcome, Fail> {
    let key = records::dispatch(delivery, repo);
    let known: Read<Dispatch> = read(relay.store.as_ref(), key).await?;
    let Some(dispatch) = known.value.clone() else { return Ok(Outcome::Done) };
    let Some(sent_at) = dispatch.sent_at() else { return Ok(Outcome::Done) };
    let now = relay.now();
    let mut jobs = check_run::jobs(relay, delivery, repo).await?;
    if jobs.is_empty() {
        let due = sent_at + relay.config.never_started_after;
        if now < due {
            return Ok(Outcome::Later(due));
        }
        return never_started(relay, &known, &dispatch).await;
    }
    for job in jobs.iter_mut().filter(|job| job.state.is_open()) {
        let due = job.started_at.unwrap_or(sent_at) + relay.config.lost_after;
        if now >= due {
            lose(relay, &dispatch, job).await?;
        }
    }
    let next = jobs
        .iter()
        .filter(|job| job.state.is_open())
        .map(|job| job.started_at.unwrap_or(sent_at) + relay.config.lost_after)
        .min();
    let ended = dispatch.end.as_ref().is_some_and(|end| !end.never_started);
    if ended || !check_run::is_followed(&dispatch) || dispatch.level < Level::L3 {
        return Ok(next.map_or(Outcome::Done, Outcome::Later));
    }
    match conclude(relay, &dispatch, &jobs).await? {
        Some(end) => {
            finish(relay, &known, &dispatch, end).await?;
            Ok(next.map_or(Outcome::Done, Outcome::Later))
        }
        None => {
            let poll = now + limits::RUN_POLL;
            Ok(Outcome::Later(next.map_or(poll, |next| next.min(poll))))
        }
    }
}

async fn never_started(
    relay: &Relay,
    known: &Read<Dispatch>,
    dispatch: &Dispatch,
) -> Result<Outcome, Fail> {
    if dispatch.end.is_some() {
        return Ok(Outcome::Done);
    }
    let conclusion =
        if dispatch.level == Level::L4 { relay.config.silent_l4 } else { Conclusion::TimedOut };
    let end = End {
        conclusion,
        reason: "It never started: no report came in time".to_owned(),
        never_started: true,
    };
    finish(relay, known, dispatch, end).await?;
    Ok(Outcome::Done)
}

async fn finish(
    relay: &Relay,
    known: &Read<Dispatch>,
    dispatch: &Dispatch,
    end: End,
) -> Result<(), Fail> {
    let mut batch = Batch::default();
    let never_started = end.never_started;
    let dispatch = Dispatch { end: Some(end), ..dispatch.clone() };
    batch.update(known, &dispatch, relay.expiry());
    if never_started {
        batch.facts.push(Fact::Dispatch(relay.dispatch_fact(&dispatch)));
    }
    if check_run::is_followed(&dispatch) {
        batch.tasks.push(Work::check_run(&dispatch, None).task(relay, relay.now()));
    }
    match relay.commit(batch).await? {
        Commit::Done => Ok(()),
        _ => Err(Fail::retry("the dispatch changed meanwhile")),
    }
}

/// A job that started and whose end was never heard.
async fn lose(relay: &Relay, dispatch: &Dispatch, job: &mut Job) -> Result<(), Fail> {
    let key = records::job(&dispatch.delivery, &dispatch.repo, &job.id);
    for _ in 0..limits::CONFLICTS {
        let known: Read<Job> = read(relay.store.as_ref(), key.clone()).await?;
        let Some(mut lost) = known.value.clone() else { return Ok(()) };
        let Step::Apply { .. } = lifecycle::step(lost.state, State::Lost) else {
            *job = lost;
            return Ok(());
        };
        let now = relay.now();
        lost.state = State::Lost;
        lost.ended_at = Some(now);
        let mut batch = Batch::default();
        batch.update(&known, &lost, relay.expiry());
        let fact = attempt_fact(&dispatch.into(), &lost, now);
        batch.tasks.extend(alert::task(relay, &fact, now));
        batch.facts.push(Fact::Attempt(Box::new(fact)));
        batch.tasks.push(Work::check_run(dispatch, Some(&lost.id)).task(relay, now));
        if relay.config.hud.is_some() {
            let age = lost.started_at.map(|at| now.duration_since(at).as_secs_f64());
            let report = forward::lost_report(dispatch, &lost, now);
            let name = vec![key.as_str().to_owned(), "lost".to_owned()];
            let work = forward::work(&dispatch.repo, dispatch.level, name, (None, age), &report);
            batch.tasks.push(work.task(relay, now));
        }
        if relay.commit(batch).await? == Commit::Done {
            tracing::warn!(delivery = dispatch.delivery, repo = %dispatch.repo, job = %lost.id, "lost");
            *job = lost;
            return Ok(());
        }
    }
    Err(StoreError::Unavailable("a job changes all the time".to_owned()).into())
}

/// Whether the newest run is over, and how: GitHub is asked for its own, silence speaks elsewhere.
async fn conclude(relay: &Relay, dispatch: &Dispatch, jobs: &[Job]) -> Result<Option<End>, Fail> {
    let Some(last) = jobs.iter().max_by_key(|job| check_run::order(&job.id)) else {
        return Ok(None);
    };
    let of_run: Vec<&Job> = jobs.iter().filter(|job| job.id.run_id == last.id.run_id).collect();
    let reported = of_run.iter().filter_map(|job| job.state.conclusion());
    let open = of_run.iter().any(|job| job.state.is_open());
    let Ok(run_id) = last.id.run_id.parse::<u64>() else {
        return Ok(quiet(&of_run, open, relay.now()).then(|| end_of(Conclusion::worst(reported))));
    };
    let run = match relay.app.run(dispatch.repo.as_str(), run_id).await {
        Ok(run) => run,
        // Deleted: nothing more will come.
        Err(Error::NotFound(_)) if !open => return Ok(Some(end_of(Conclusion::worst(reported)))),
        Err(error) if error.is_transient() || matches!(error, Error::Unauthorized(_)) => {
            return Err(error.into());
        }
        // It can't be asked any more: what is left are the reports, and the time that they have.
        Err(error) => {
            let (delivery, repo) = (&dispatch.delivery, &dispatch.repo);
            tracing::warn!(delivery, %repo, run_id, %error, "the run can't be looked at");
            return Ok(
                quiet(&of_run, open, relay.now()).then(|| end_of(Conclusion::worst(reported)))
            );
        }
    };
    if !run.is_completed() {
        return Ok(None);
    }
    let own = run.conclusion.as_deref().and_then(|text| text.parse().ok());
    let all = reported.chain(own.filter(|_| open));
    Ok(Some(end_of(Conclusion::worst(all))))
}

fn quiet(jobs: &[&Job], open: bool, now: Timestamp) -> bool {
    let last = jobs.iter().filter_map(|job| job.ended_at).max();
    !open && last.is_some_and(|last| now >= last + limits::FOREIGN_RUN_QUIET)
}

/// Success when every job that reported ended well, else the worst conclusion.
fn end_of(worst: Option<Conclusion>) -> End {
    let conclusion = match worst {
        Some(worst) if worst.is_good() => Conclusion::Success,
        Some(worst) => worst,
        None => Conclusion::Neutral,
    };
    let reason = match conclusion {
        Conclusion::Success => "Every job that reported ended well".to_owned(),
        other => format!("The worst of its jobs: {}", other.as_str().replace('_', " ")),
    };
    End { conclusion, reason, never_started: false }
}
