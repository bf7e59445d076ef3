//! The backends: runs that dispatches start, their jobs, and what these report, honestly or not.

mod attempts;
mod reports;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crcr_standin::State;
use crcr_standin::runs::{Job, Run};
use crcr_standin::world::Dispatch;
use jiff::{SignedDuration, Timestamp};
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::Value;

pub(crate) use self::reports::{
    BUILDKITE, Forgery, LabReport, NIGHTLY_COMMIT, NightlyReport, PIPELINE,
};
use crate::inputs::SeedInputs;

/// The backend that runs on Buildkite, if the seed has one.
pub(crate) const FOREIGN: &str = "lab/five";
/// The backend with several workflows, and whose default branch may get another name.
pub(crate) const MANY_WORKFLOWS: &str = "acme/four";
/// The job that a commit of upstream's branch may break.
pub(crate) const BREAKING_JOB: &str = "test";
/// Runs of other senders in one of GitHub's lists. A page has 100.
const CROWD: [u64; 2] = [60, 130];
/// The most runs that GitHub lists for one question.
const LISTED_RUNS: u64 = 1000;
/// Further apart, runs aren't in the list of one dispatch.
const SPAN_OF_A_LIST: SignedDuration = SignedDuration::from_mins(15);
const FIRST_RUN: u64 = 5000;
const FIRST_CROWD_RUN: u64 = 1_000_000;

/// Something that happens downstream at a certain time.
#[derive(Debug, Clone)]
pub(crate) enum LabEvent {
    /// GitHub creates the planned run of this number.
    RunCreated(u64),
    /// Runs of another sender's events.
    OthersRuns {
        repo: &'static str,
        count: u64,
    },
    Report(LabReport),
    /// GitHub closes the run.
    RunOver {
        run: u64,
        attempt: u32,
        conclusion: &'static str,
    },
}

/// A job of a run. Legs have one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LabJob {
    pub(crate) name: &'static str,
    pub(crate) leg: u8,
}

impl LabJob {
    /// The number of its check run downstream, or of its job elsewhere.
    fn check_run_id(self, run: u64, attempt: u32) -> u64 {
        let name = match self.name {
            "lint" => 1,
            "test" => 2,
            _ => 3,
        };
        run * 1000 + u64::from(attempt) * 100 + u64::from(self.leg) * 10 + name
    }
}

/// A dispatch that GitHub has accepted.
#[derive(Debug)]
pub(crate) struct LabDispatch {
    pub(crate) repo: &'static str,
    pub(crate) delivery: String,
    pub(crate) head: String,
    /// Whether it starts no run although it should.
    pub(crate) is_ignored: bool,
}

#[derive(Debug)]
pub(crate) struct LabRun {
    pub(crate) repo: &'static str,
    pub(crate) delivery: String,
    pub(crate) head: String,
    pub(crate) file: &'static str,
    /// The workflow's name; two files may have the same.
    pub(crate) workflow: &'static str,
    pub(crate) is_foreign: bool,
    /// Whether none of its jobs reports.
    is_silent: bool,
    /// Whether its setup fails: the infrastructure's fault.
    pub(crate) setup_fails: bool,
    /// On upstream's branch: whether the test is broken there.
    is_broken: Option<bool>,
    pub(crate) branch: String,
    jobs: Vec<LabJob>,
    pub(crate) attempt: u32,
    payload: Value,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) attempt_at: Timestamp,
    /// GitHub's conclusion of the last attempt that has ended, and when; `None` until the first one has.
    pub(crate) ended: Option<(&'static str, Timestamp)>,
    /// The attempt that `ended` is about.
    pub(crate) ended_attempt: u32,
    failed_jobs: BTreeSet<LabJob>,
    /// How each job ends, and the newest attempt in which it runs.
    planned: BTreeMap<LabJob, (u32, &'static str)>,
    /// The jobs that GitHub lists of the attempt that ended last.
    pub(crate) listed: BTreeMap<LabJob, (u32, &'static str)>,
}

impl LabRun {
    /// A run that GitHub hasn't created yet.
    fn planned(payload: Value, at: Timestamp) -> Self {
        Self {
            repo: "",
            delivery: String::new(),
            head: String::new(),
            file: "",
            workflow: "",
            is_foreign: false,
            is_silent: false,
            setup_fails: false,
            is_broken: None,
            branch: String::new(),
            jobs: vec![],
            attempt: 1,
            payload,
            created_at: None,
            attempt_at: at,
            ended: None,
            ended_attempt: 0,
            failed_jobs: BTreeSet::new(),
            planned: BTreeMap::new(),
            listed: BTreeMap::new(),
        }
    }
}

/// What genuine reports have said about a job of one upstream commit.
#[derive(Debug, Default)]
pub(crate) struct JobReports {
    pub(crate) started: bool,
    pub(crate) conclusions: BTreeSet<&'static str>,
    pub(crate) was_forged_end: bool,
    /// The run, attempt and leg of each end that was sent, whether it was acknowledged or not.
    pub(crate) sent: BTreeSet<(u64, u32, u8)>,
    /// By run, attempt and leg: what the relay has acknowledged; `None` while only the start is known.
    /// And when the newest of both was acknowledged.
    pub(crate) acknowledged: BTreeMap<(u64, u32, u8), (Option<&'static str>, Timestamp)>,
}

#[derive(Default)]
pub(crate) struct BackendLab {
    inputs: SeedInputs,
    pub(crate) dispatches: Vec<LabDispatch>,
    /// Also those that GitHub hasn't created yet.
    pub(crate) runs: BTreeMap<u64, LabRun>,
    /// By upstream commit and name of the check run, its repository in lower case.
    pub(crate) jobs: BTreeMap<(String, String), JobReports>,
    /// When the relay first acknowledged a genuine report of a run.
    pub(crate) heard_at: BTreeMap<u64, Timestamp>,
    /// Default branches other than `main`.
    pub(crate) branches: BTreeMap<&'static str, String>,
    /// Some callback token of another dispatch.
    other_token: Option<Value>,
    /// How many runs others' events have started, by repository and time.
    others_runs: Vec<(String, Timestamp, u64)>,
}

/// What a dispatch asks a backend to run.
pub(crate) struct RunTarget<'a> {
    pub(crate) repo: &'static str,
    pub(crate) head: &'a str,
    /// Whether every setup of its author fails.
    pub(crate) setup_fails: bool,
    /// On upstream's branch: whether the test is broken there.
    pub(crate) is_broken: Option<bool>,
}

pub(crate) type Agenda = Vec<(Timestamp, LabEvent)>;

/// The workflow files that an event starts, each with its name.
fn workflows(
    repo: &str,
    event_type: &str,
    inputs: SeedInputs,
) -> &'static [(&'static str, &'static str)] {
    match (repo, event_type) {
        (MANY_WORKFLOWS, "push") => &[("ci.yml", "CI"), ("perf.yml", "Perf")],
        (MANY_WORKFLOWS, _) if inputs.shared_names => &[("ci.yml", "CI"), ("gpu.yml", "CI")],
        (MANY_WORKFLOWS, _) => &[("ci.yml", "CI"), ("gpu.yml", "GPU")],
        _ => &[("ci.yml", "CI")],
    }
}

impl BackendLab {
    pub(crate) fn new(inputs: SeedInputs) -> Self {
        Self { inputs, ..Self::default() }
    }

    /// A backend gets a dispatch.
    pub(crate) fn receive(
        &mut self,
        github: &State,
        dispatch: &Dispatch,
        RunTarget { repo, head, setup_fails, is_broken }: RunTarget<'_>,
        random: &mut StdRng,
    ) -> Agenda {
        let payload = &dispatch.client_payload;
        let delivery = payload["delivery_id"].as_str().unwrap_or_default().to_owned();
        let is_closed = payload["payload"]["action"] == "closed";
        // A backend with several workflows never forgets one, so that the runs of each are as many as its dispatches.
        let may_ignore = repo != MANY_WORKFLOWS && !self.inputs.has_sound_backends();
        let is_ignored = may_ignore && !is_closed && random.random_ratio(1, 12);
        let at = github.clock.now();
        self.dispatches.push(LabDispatch {
            repo,
            delivery: delivery.clone(),
            head: head.to_owned(),
            is_ignored,
        });
        let is_foreign = self.inputs.foreign_ci && repo == FOREIGN;
        if repo == "acme/one" || is_ignored || (is_closed && is_foreign) {
            return vec![];
        }
        let mut agenda = vec![];
        for (file, workflow) in workflows(repo, &dispatch.event_type, self.inputs) {
            let id = self.next_run();
            let is_gpu = *file == "gpu.yml";
            let is_silent = *file == "perf.yml"
                || (is_gpu && self.inputs.late_runs && random.random_ratio(1, 3))
                || (is_gpu && self.inputs.crowded_lists && random.random_ratio(1, 2));
            let is_late = self.inputs.late_runs && random.random_ratio(1, 3);
            let delay = random.random_range(0..if is_late { 50 } else { 3 });
            let run = LabRun {
                repo,
                delivery: delivery.clone(),
                head: head.to_owned(),
                file,
                workflow,
                is_foreign,
                is_silent: is_silent || is_closed,
                setup_fails: setup_fails && !is_closed,
                is_broken,
                branch: self.branches.get(repo).cloned().unwrap_or_else(|| "main".to_owned()),
                // Nothing is built for a closed pull request: GitHub starts the workflow and skips its jobs.
                jobs: match is_closed {
                    true => vec![],
                    false => attempts::jobs(self.inputs.shared_names || is_foreign, random),
                },
                ..LabRun::planned(payload.clone(), at)
            };
            self.runs.insert(id, run);
            agenda.push((at + Duration::from_secs(delay), LabEvent::RunCreated(id)));
        }
        // Only GitHub's list tells of a run without reports.
        let has_silent_runs = repo == MANY_WORKFLOWS;
        if self.inputs.crowded_lists && random.random_ratio(if has_silent_runs { 2 } else { 1 }, 3)
        {
            let count = match has_silent_runs {
                true => CROWD[1],
                false => CROWD[random.random_range(0..CROWD.len())],
            };
            let after = Duration::from_secs(random.random_range(3..40));
            agenda.push((at + after, LabEvent::OthersRuns { repo, count }));
        }
        self.other_token = payload.get("callback_token").cloned();
        agenda
    }

    /// The number that the next run will have.
    pub(crate) fn next_run(&self) -> u64 {
        FIRST_RUN + self.runs.len() as u64
    }

    pub(crate) fn create(&mut self, github: &State, id: u64, random: &mut StdRng) -> Agenda {
        let now = github.clock.now();
        let inputs = self.inputs;
        let Some(run) = self.runs.get_mut(&id) else { return vec![] };
        run.created_at = Some(now);
        run.attempt_at = now;
        if !run.is_foreign {
            let event_type = run.payload["event_type"].as_str().unwrap_or_default();
            let title = match run.repo {
                FOREIGN => format!("CI for {}", run.delivery),
                _ => event_type.to_owned(),
            };
            github.runs.add(Run {
                id,
                repository: run.repo.to_owned(),
                event: "repository_dispatch".to_owned(),
                workflow: run.workflow.to_owned(),
                workflow_path: format!(".github/workflows/{}", run.file),
                title: Some(title),
                git_ref: format!("refs/heads/{}", run.branch),
                created_at: now,
                ..Run::push()
            });
        }
        run.begin_attempt(id, inputs, now, random)
    }

    /// Runs of the same repository that another sender's events start. They end at once.
    pub(crate) fn create_others_runs(&mut self, github: &State, repo: &str, count: u64) {
        let before: u64 = self.others_runs.iter().map(|(_, _, count)| count).sum();
        for number in 0..count {
            github.runs.add(Run {
                id: FIRST_CROWD_RUN + before + number,
                repository: repo.to_owned(),
                event: "repository_dispatch".to_owned(),
                workflow: format!("bot {number}"),
                workflow_path: format!(".github/workflows/bot-{number}.yml"),
                title: Some("sync".to_owned()),
                created_at: github.clock.now(),
                status: "completed".to_owned(),
                conclusion: Some("success".to_owned()),
                ..Run::push()
            });
        }
        self.others_runs.push((repo.to_owned(), github.clock.now(), count));
    }

    /// Whether GitHub may have more runs of the minutes around a time than it lists. Then nobody knows all of them.
    pub(crate) fn may_list_be_cut(&self, repo: &str, at: Timestamp) -> bool {
        let is_near = |time: Timestamp| time.duration_since(at).abs() < SPAN_OF_A_LIST;
        let near = self.others_runs.iter().filter(|(of, time, _)| of == repo && is_near(*time));
        let own = self.runs.values().filter(|run| run.repo == repo).count() as u64;
        near.map(|(_, _, count)| count).sum::<u64>() + own >= LISTED_RUNS
    }

    pub(crate) fn rerun(
        &mut self,
        id: u64,
        attempt: u32,
        failed_only: bool,
        now: Timestamp,
        random: &mut StdRng,
    ) -> Agenda {
        let inputs = self.inputs;
        let Some(run) = self.runs.get_mut(&id) else { return vec![] };
        run.attempt = attempt;
        run.attempt_at = now;
        if failed_only && !run.failed_jobs.is_empty() {
            run.jobs.retain(|job| run.failed_jobs.contains(job));
        }
        run.failed_jobs.clear();
        run.begin_attempt(id, inputs, now, random)
    }

    /// GitHub closes an attempt, unless there is a newer one.
    pub(crate) fn close(
        &mut self,
        github: &State,
        id: u64,
        attempt: u32,
        conclusion: &'static str,
    ) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.attempt == attempt) else { return };
        run.ended = Some((conclusion, github.clock.now()));
        run.ended_attempt = attempt;
        run.listed.clone_from(&run.planned);
        let Some(known) = github.runs.get(id) else { return };
        github.runs.add(Run {
            status: "completed".to_owned(),
            conclusion: Some(conclusion.to_owned()),
            ..(*known).clone()
        });
        // What didn't run again is listed, too.
        for (job, (attempt, end)) in &run.listed {
            let check_run_id = job.check_run_id(id, *attempt);
            let conclusion = Some((*end).to_owned());
            let added = github.runs.add_job(id, job.name);
            github.runs.update_job(&Job { check_run_id, conclusion, ..added });
        }
    }
}
