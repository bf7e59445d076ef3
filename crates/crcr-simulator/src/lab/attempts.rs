//! What one attempt of a run does: when its jobs start and end, how, and what of that is reported.

use std::time::Duration;

use jiff::Timestamp;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::{Agenda, BREAKING_JOB, Forgery, LabEvent, LabJob, LabReport, LabRun};
use crate::inputs::SeedInputs;

/// How long a step of a build elsewhere may wait for a machine, in seconds.
const FOREIGN_WAIT_SECONDS: u64 = 3600;

/// The jobs of a new run.
pub(crate) fn jobs(has_legs: bool, random: &mut StdRng) -> Vec<LabJob> {
    let job = |name, leg| LabJob { name, leg };
    match random.random_range(0..4) {
        0 => vec![job("test", 0)],
        1 if has_legs => vec![job("test", 0), job("test", 1)],
        _ => vec![job("lint", 0), job("test", 0)],
    }
}

/// A part of an attempt that has a start and an end.
struct JobTimes {
    started_at: Timestamp,
    ended_at: Timestamp,
}

impl LabRun {
    /// Everything that the newest attempt will do.
    pub(crate) fn begin_attempt(
        &mut self,
        id: u64,
        inputs: SeedInputs,
        now: Timestamp,
        random: &mut StdRng,
    ) -> Agenda {
        let attempt = self.attempt;
        let mut agenda = vec![];
        let mut over_at = now + Duration::from_secs(20);
        let mut worst = if self.jobs.is_empty() { "skipped" } else { "success" };
        let is_odd = inputs.odd_conclusions && random.random_ratio(1, 3);
        let are_skipped = is_odd && random.random_ratio(1, 2);
        let mut from = now;
        for job in self.jobs.clone() {
            let mut times = times(from, random);
            if self.is_foreign && job.leg == 0 && random.random_ratio(1, 3) {
                // The next step waits for this one, and then for a machine.
                let wait = random.random_range(0..FOREIGN_WAIT_SECONDS);
                from = times.ended_at + Duration::from_secs(wait);
            }
            let mut conclusion = match random.random_range(0..10) {
                _ if are_skipped => "skipped",
                _ if self.setup_fails => "failure",
                roll if let Some(is_broken) = self.is_broken => branch_conclusion(
                    roll,
                    is_broken && job.name == BREAKING_JOB,
                    inputs.flaky_tests,
                ),
                0..7 => "success",
                7..9 => "failure",
                _ => "cancelled",
            };
            let phase = self.setup_fails.then_some("setup");
            let report = LabReport { phase, ..start_of(id, attempt, job) };
            self.plan_reports(&mut agenda, &report, &times, conclusion, inputs, random);
            if self.is_foreign && conclusion == "failure" && random.random_ratio(1, 2) {
                // The step is retried in the same build.
                times = self::times(times.ended_at, random);
                conclusion = if random.random_ratio(2, 3) { "success" } else { "failure" };
                let again = LabReport { attempt: attempt + 1, ..report };
                self.plan_reports(&mut agenda, &again, &times, conclusion, inputs, random);
            }
            self.planned.insert(job, (attempt, conclusion));
            if !matches!(conclusion, "success" | "skipped") {
                worst = if worst == "failure" { worst } else { conclusion };
                self.failed_jobs.insert(job);
            }
            over_at = over_at.max(times.ended_at);
        }
        over_at += Duration::from_secs(random.random_range(1..60));
        if is_odd && !are_skipped && !self.is_foreign && !self.jobs.is_empty() {
            // One that no version knows, or of a job that may fail.
            worst = if random.random_ratio(1, 2) { "mystery" } else { "success" };
        }
        agenda.push((over_at, LabEvent::RunOver { run: id, attempt, conclusion: worst }));
        if self.is_foreign {
            agenda.push((over_at, LabEvent::Report(end_of_build(id, attempt))));
        }
        agenda
    }

    fn plan_reports(
        &self,
        agenda: &mut Agenda,
        report: &LabReport,
        times: &JobTimes,
        conclusion: &'static str,
        inputs: SeedInputs,
        random: &mut StdRng,
    ) {
        if self.is_silent {
            return;
        }
        for (at, conclusion) in [(times.started_at, None), (times.ended_at, Some(conclusion))] {
            if !inputs.has_sound_backends() && random.random_ratio(1, 12) {
                // The backend's report step failed.
                continue;
            }
            let late = if random.random_ratio(1, 10) { random.random_range(0..3000) } else { 0 };
            let report = LabReport { conclusion, ..*report };
            agenda.push((at + Duration::from_secs(late), LabEvent::Report(report)));
            if random.random_ratio(1, 8) {
                let at = at + Duration::from_secs(random.random_range(0..600));
                agenda.push((at, LabEvent::Report(LabReport { copy: 1, ..report })));
            }
        }
        // Below L3 nothing has to be proven, and a search believes what is reported.
        if self.is_broken.is_none() && random.random_ratio(1, 5) {
            let forgery = match random.random_range(0..4) {
                _ if self.is_foreign => Forgery::NoCallbackToken,
                0 => Forgery::NoCallbackToken,
                1 => Forgery::OtherBranch,
                2 => Forgery::OtherEvent,
                _ => Forgery::OtherDispatch,
            };
            let at = times.started_at + Duration::from_secs(random.random_range(0..3000));
            let (conclusion, forgery) = (Some("success"), Some(forgery));
            let report = LabReport { conclusion, forgery, copy: 2, ..*report };
            agenda.push((at, LabEvent::Report(report)));
        }
    }
}

/// How a job on upstream's branch ends; `roll` is from 0 to 9. The machine of one in ten dies.
fn branch_conclusion(roll: u32, is_broken: bool, is_flaky: bool) -> &'static str {
    match roll {
        0 => "cancelled",
        _ if is_broken => "failure",
        1 if is_flaky => "failure",
        _ => "success",
    }
}

fn times(from: Timestamp, random: &mut StdRng) -> JobTimes {
    let started_at = from + Duration::from_secs(random.random_range(2..90));
    let ended_at = started_at + Duration::from_secs(random.random_range(1..2400));
    JobTimes { started_at, ended_at }
}

/// The report that a job starts.
fn start_of(run: u64, attempt: u32, job: LabJob) -> LabReport {
    LabReport {
        run,
        attempt,
        job,
        conclusion: None,
        forgery: None,
        tries: 0,
        copy: 0,
        phase: None,
        ends_run: false,
    }
}

/// The last step of a build elsewhere, which waits for all others and says that the build is over.
fn end_of_build(run: u64, attempt: u32) -> LabReport {
    let start = start_of(run, attempt, LabJob { name: "end", leg: 0 });
    LabReport { conclusion: Some("success"), ends_run: true, ..start }
}
