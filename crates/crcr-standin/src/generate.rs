//! Generates plausible facts of invented backends for the demo, tests and benchmarks.

mod breakages;
mod upstream_ci;

use std::time::Duration;

use crcr_domain::Level;
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::protocol::callback::{FailedTest, ReportDetails, TestCounts};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, DispatchFact, DispatchFactStatus, Fact,
    MergeBaseFact,
};
use jiff::{Timestamp, ToSpan as _};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

pub use self::breakages::{BrokenMonth, break_upstream};
use self::upstream_ci::FILES;
pub use self::upstream_ci::UpstreamCi;

/// An invented backend and its reliability.
#[derive(Debug, Clone, Copy)]
pub struct GeneratedBackend {
    /// `owner/repo`.
    pub repo: &'static str,
    pub level: Level,
    /// Share of jobs that pass at the first attempt.
    pub passes: f64,
    /// Share of jobs that fail because of infrastructure.
    pub breaks: f64,
    /// Typical seconds in the queue.
    pub queue: f64,
    pub environment: Option<&'static str>,
    pub jobs: &'static [&'static str],
}

/// Invented names; no such repositories exist.
pub const BACKENDS: [GeneratedBackend; 5] = [
    GeneratedBackend {
        repo: "aurora-example/torch-aurora",
        level: Level::L4,
        passes: 0.97,
        breaks: 0.01,
        queue: 90.0,
        environment: Some("Aurora A2 · driver 550.54 · ubuntu-24.04"),
        jobs: &["build", "test (1, 3)", "test (2, 3)", "test (3, 3)"],
    },
    GeneratedBackend {
        repo: "basalt-example/torch-basalt",
        level: Level::L3,
        passes: 0.93,
        breaks: 0.03,
        queue: 400.0,
        environment: Some("Basalt B1 · driver 12.1 · debian-12"),
        jobs: &["build", "ops", "models"],
    },
    GeneratedBackend {
        repo: "cedar-example/torch-cedar",
        level: Level::L2,
        passes: 0.96,
        breaks: 0.01,
        queue: 240.0,
        environment: None,
        jobs: &["ci"],
    },
    GeneratedBackend {
        repo: "dune-example/torch-dune",
        level: Level::L2,
        passes: 0.7,
        breaks: 0.15,
        queue: 2500.0,
        environment: Some("Dune D4 · firmware 7"),
        jobs: &["build", "unit", "distributed"],
    },
    GeneratedBackend {
        repo: "ember-example/torch-ember",
        level: Level::L1,
        passes: 0.9,
        breaks: 0.05,
        queue: 60.0,
        environment: None,
        jobs: &["smoke"],
    },
];

/// An allowlist that grants [`BACKENDS`] their levels.
pub const ALLOWLIST: &str = "\
L1:
  - ember-example/torch-ember
L2:
  - cedar-example/torch-cedar
  - dune-example/torch-dune
L3:
  basalt:
    basalt-example/torch-basalt: [basalt-oncall]
L4:
  - aurora-example/torch-aurora: [aurora-oncall, aurora-backup]
";

/// A path, and the text at a time.
pub type GeneratedFile = (&'static str, fn(Timestamp) -> String);

/// Files of the upstream repository, which tell who owns its tests and which may fail. An entry of a quarantine ends
/// soon after a given time.
pub const FILES_OF_UPSTREAM: [GeneratedFile; 2] =
    [(".github/CODEOWNERS", |_| CODEOWNERS.to_owned()), (".github/quarantine.yml", quarantine)];

const CODEOWNERS: &str = "\
* @example/core
test/test_ops.py @example/operators @ada-example
test/test_distributed.py @example/distributed
test/test_random.py @grace-example
test/test_models.py @example/models
";

fn quarantine(now: Timestamp) -> String {
    let day = |days: i64| (now + (24 * days).hours()).strftime("%Y-%m-%d").to_string();
    format!(
        "- pattern: TestRandom.test_seed_per_device
  owner: grace-example
  reason: the seed isn't set on the second device
  expiry: {}
- pattern: TestModels.test_transformer_*
  owner: example/models
  reason: needs more memory than the new runners have
  expiry: {}
  mode: skip
",
        day(12),
        day(3)
    )
}

/// Facts of the `days` days before `until` with `per_day` upstream events each, in order of time. The
/// same seed gives the same facts.
pub fn facts(seed: u64, until: Timestamp, days: u32, per_day: u32, upstream: &str) -> Vec<Fact> {
    let mut month = GeneratedMonth {
        random: StdRng::seed_from_u64(seed),
        upstream,
        facts: vec![],
        run: 900_000,
        tip: None,
    };
    let start = until - (24 * i64::from(days)).hours();
    let step = 86_400 / i64::from(per_day.max(1));
    let mut pull = 101_000;
    for n in 0..i64::from(days) * i64::from(per_day) {
        let at = start + (n * step + month.random.random_range(0..step.max(2))).seconds();
        if n % 3 == 0 {
            pull += 1;
        }
        let number = if n % 7 == 6 { None } else { Some(pull) };
        let sha = month.sha();
        let delivery = format!("generated-{seed}-{n}");
        let event = GeneratedEvent { delivery: &delivery, pull_request: number, sha: &sha, at };
        for backend in &BACKENDS {
            month.dispatch(backend, &event, until);
        }
        month.branch(number, sha, at);
    }
    for day in 0..i64::from(days) {
        month.nightly(start + (24 * day + 2).hours());
    }
    month.facts.sort_by_key(|(at, _)| *at);
    month.facts.into_iter().take_while(|(at, _)| *at < until).map(|(_, fact)| fact).collect()
}

struct GeneratedMonth<'a> {
    random: StdRng,
    upstream: &'a str,
    facts: Vec<(Timestamp, Fact)>,
    run: u64,
    tip: Option<(String, Timestamp)>,
}

/// An upstream event, or a night, for which backends run.
struct GeneratedEvent<'a> {
    delivery: &'a str,
    /// `None` for a push.
    pull_request: Option<u64>,
    sha: &'a str,
    at: Timestamp,
}

impl GeneratedEvent<'_> {
    fn name(&self) -> EventName {
        if self.pull_request.is_some() { EventName::PullRequest } else { EventName::Push }
    }
}

impl GeneratedMonth<'_> {
    fn dispatch(
        &mut self,
        backend: &GeneratedBackend,
        event: &GeneratedEvent<'_>,
        until: Timestamp,
    ) {
        let at = event.at;
        let silent = backend.level > Level::L1 && self.random.random_bool(backend.breaks / 4.0);
        // The relay records a silent dispatch after two hours.
        let noticed = silent && at + 2.hours() < until;
        let sent = at + seconds(self.random.random_range(0.05..0.25));
        self.facts.push((
            at,
            Fact::Dispatch(DispatchFact {
                at: sent,
                delivery: event.delivery.to_owned(),
                upstream: self.upstream.to_owned(),
                pull_request: event.pull_request,
                head_sha: event.sha.to_owned(),
                event: event.name(),
                repo: backend.repo.to_owned(),
                level: backend.level,
                labels: vec![],
                enqueued_at: at,
                sent_at: Some(sent),
                status: if noticed {
                    DispatchFactStatus::NeverStarted
                } else {
                    DispatchFactStatus::Sent
                },
                superseded_by: None,
                tries: 1,
                last_error: None,
            }),
        ));
        if silent || !backend.level.shows_results() {
            return;
        }
        self.run += 1;
        for job in backend.jobs {
            self.job(backend, event, job, self.run);
        }
    }

    /// A push is what pull requests branch off from then on.
    fn branch(&mut self, pull_request: Option<u64>, sha: String, at: Timestamp) {
        let Some(number) = pull_request else {
            self.tip = Some((sha, at));
            return;
        };
        let Some((merge_base, committed_at)) = self.tip.clone() else { return };
        let fact = MergeBaseFact {
            at,
            upstream: self.upstream.to_owned(),
            pull_request: number,
            head_sha: sha,
            merge_base,
            committed_at,
            changed_files: changed_files(number),
        };
        self.facts.push((at, Fact::MergeBase(fact)));
    }

    /// A night's run of every backend's own, of which only the ends are reported.
    fn nightly(&mut self, at: Timestamp) {
        let others = std::mem::take(&mut self.facts);
        let sha = self.sha();
        let night = GeneratedEvent { delivery: &sha, pull_request: None, sha: &sha, at };
        for backend in BACKENDS.iter().filter(|backend| backend.level.shows_results()) {
            self.run += 1;
            for job in backend.jobs {
                self.job(backend, &night, job, self.run);
            }
        }
        self.facts.retain_mut(|(_, fact)| match fact {
            Fact::Attempt(row) => {
                row.event = EventName::Nightly;
                row.dispatched_at = row.received_at;
                (row.queue_seconds, row.execution_seconds) = (None, None);
                !row.state.is_open()
            }
            Fact::Callback(row) => row.conclusion.is_some(),
            Fact::Dispatch(_) | Fact::MergeBase(_) | Fact::Check(_) => true,
        });
        self.facts.extend(others);
    }

    fn job(&mut self, backend: &GeneratedBackend, event: &GeneratedEvent<'_>, job: &str, run: u64) {
        let queue = self.spread(backend.queue);
        let execution = self.spread(2400.0);
        let ended = event.at + seconds(queue) + seconds(execution);
        let (conclusion, phase) = self.end(backend);
        let row = AttemptFact {
            received_at: ended,
            dispatched_at: event.at,
            repo: backend.repo.to_owned(),
            delivery: event.delivery.to_owned(),
            workflow: "ci".to_owned(),
            job: Some(job.to_owned()),
            run_id: run.to_string(),
            run_attempt: 1,
            state: JobState::Completed(conclusion),
            start_unknown: false,
            queue_seconds: Some(queue),
            execution_seconds: Some(execution),
            details: self.details(backend, phase, job, run),
            missing_proof: None,
            expected: None,
            level: backend.level,
            event: event.name(),
            upstream: self.upstream.to_owned(),
            pull_request: event.pull_request,
            head_sha: event.sha.to_owned(),
        };
        let started = AttemptFact {
            received_at: event.at + seconds(queue),
            state: JobState::InProgress,
            execution_seconds: None,
            details: ReportDetails {
                check_run_id: row.details.check_run_id.clone(),
                url: row.details.url.clone(),
                environment: row.details.environment.clone(),
                ..ReportDetails::default()
            },
            ..row.clone()
        };
        let is_run_again = conclusion == Conclusion::Failure && self.random.random_bool(0.3);
        let rerun = is_run_again.then(|| AttemptFact {
            received_at: ended + 30.minutes(),
            run_attempt: 2,
            state: JobState::Completed(Conclusion::Success),
            details: ReportDetails {
                check_run_id: Some(format!("{run}-{job}-2")),
                phase: None,
                tests: Some(test_counts(0)),
                failed_tests: vec![],
                ..row.details.clone()
            },
            ..row.clone()
        });
        [Some(started), Some(row), rerun].into_iter().flatten().for_each(|row| self.report(row));
    }

    /// How a job ends, and in which phase it fails.
    fn end(&mut self, backend: &GeneratedBackend) -> (Conclusion, Option<&'static str>) {
        let end = self.random.random::<f64>();
        if end < backend.passes {
            (Conclusion::Success, None)
        } else if end < backend.passes + backend.breaks {
            match self.random.random_range(0..3) {
                0 => (Conclusion::TimedOut, None),
                1 => (Conclusion::Cancelled, None),
                _ => (Conclusion::Failure, Some("setup")),
            }
        } else {
            (Conclusion::Failure, Some("test"))
        }
    }

    fn details(
        &mut self,
        backend: &GeneratedBackend,
        phase: Option<&str>,
        job: &str,
        run: u64,
    ) -> ReportDetails {
        let failed_tests = self.failed_tests(phase);
        let failing = failed_tests.len() as u64;
        let url = format!("https://github.com/{}/actions/runs/{run}", backend.repo);
        ReportDetails {
            check_run_id: Some(format!("{run}-{job}")),
            phase: phase.map(str::to_owned),
            tests: Some(test_counts(failing)),
            failed_tests,
            url: Some(url),
            environment: backend.environment.map(str::to_owned),
            ..ReportDetails::default()
        }
    }

    /// The report of an attempt, and what became of it.
    fn report(&mut self, row: AttemptFact) {
        let latency_ms = f64::from(self.random.random_range(400..6000)) / 1000.0;
        let callback = CallbackFact {
            at: row.received_at,
            repo: Some(row.repo.clone()),
            delivery: Some(row.delivery.clone()),
            run_id: Some(row.run_id.clone()),
            job: row.job.clone(),
            status: Some(row.state.status().to_owned()),
            conclusion: row.state.conclusion().map(|c| c.as_str().to_owned()),
            outcome: CallbackOutcome::Accepted,
            answer: 200,
            detail: None,
            latency_ms,
        };
        self.facts.push((row.received_at, Fact::Callback(callback)));
        self.facts.push((row.received_at, Fact::Attempt(Box::new(row))));
    }

    fn sha(&mut self) -> String {
        let (high, low) = (self.random.random::<u32>(), self.random.random::<u128>());
        format!("{high:08x}{low:032x}")
    }

    /// Up to three, each once, as each run of a test has one result.
    fn failed_tests(&mut self, phase: Option<&str>) -> Vec<FailedTest> {
        let most = self.random.random_range(1..4_u64);
        let most = if phase == Some("test") { most } else { 0 };
        let mut tests: Vec<FailedTest> = vec![];
        for _ in 0..most {
            let test = self.failed_test();
            if !tests.iter().any(|other| other.name == test.name) {
                tests.push(test);
            }
        }
        tests
    }

    fn failed_test(&mut self) -> FailedTest {
        const NAMES: [&str; 6] = [
            "TestOps.test_add_float16",
            "TestOps.test_matmul_strided",
            "TestAutograd.test_double_backward",
            "TestModels.test_resnet_training",
            "TestSerialization.test_round_trip",
            "TestRandom.test_seed_per_device",
        ];
        let name = NAMES[self.random.random_range(0..NAMES.len())];
        FailedTest {
            name: name.to_owned(),
            file: Some("test/test_backend.py".to_owned()),
            message: Some("AssertionError: Tensor-likes are not close!".to_owned()),
            ..FailedTest::default()
        }
    }

    /// Around `typical`, seldom many times as long.
    fn spread(&mut self, typical: f64) -> f64 {
        let around = self.random.random_range(0.4..1.6);
        let tail = if self.random.random_bool(0.05) { 3.0 } else { 1.0 };
        (typical * around * tail * 10.0).round() / 10.0
    }
}

fn test_counts(failed: u64) -> TestCounts {
    TestCounts { passed: 1200 - failed, failed, skipped: 31, total: 1231 }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn changed_files(pull_request: u64) -> Vec<String> {
    let files = FILES.iter().cycle().skip(pull_request as usize % FILES.len()).take(2);
    files.map(|file| (*file).to_owned()).collect()
}
