//! `crcr report`: the state of a downstream job, told to the relay.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use crcr_domain::checks::lifecycle::Conclusion;

use super::number;

/// Examples of the command.
pub const EXAMPLES: &str = "\
Examples:
  crcr report --status in_progress
  crcr report --status completed --conclusion success --junit 'reports/**/*.xml'
  crcr report --status completed --conclusion failure --phase test \\
    --environment 'npu-910b, CANN 8.2'
  crcr report --status completed --conclusion success \\
    --event-type nightly --delivery-id SHA

The job needs `permissions: id-token: write`. What the relay dispatched is read from the event of the
run; CRCR_CLIENT_PAYLOAD (JSON) stands in for it on other CI systems. Exit codes: 0 accepted, already
known, or ignored because of the level; 1 refused; 2 unreachable with `--on-unreachable fail`.";

/// The inputs of `report-ci-result`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Whether the job has started or ended
    #[arg(long, value_enum, value_name = "STATUS")]
    pub status: Status,
    /// How the job ended, with `completed`: `${{ job.status }}` in a workflow
    #[arg(long, value_name = "CONCLUSION", value_parser = conclusion)]
    pub conclusion: Option<Conclusion>,
    /// File in which the tested job left its own outcome, as JSON such as `{"conclusion": "failure",
    /// "phase": "test"}`: for a report from another job, whose `--conclusion` is of the whole matrix
    #[arg(long, value_name = "FILE")]
    pub outcome_file: Option<PathBuf>,
    /// Name of the job; give each job of a matrix its own [default: the job's key]
    #[arg(long, value_name = "NAME")]
    pub job_name: Option<String>,
    /// Counts as JSON, `{"passed": 1, "failed": 0, "skipped": 0}`; they win over `--junit`
    #[arg(long, value_name = "JSON")]
    pub test_results: Option<String>,
    /// JUnit reports to count, with their failing tests; repeats, or one glob a line
    #[arg(long, value_name = "GLOB")]
    pub junit: Vec<String>,
    /// Tests that may fail for now, a path in this repository's checkout; the file of the workflow's own
    /// commit counts [default: .github/quarantine.yml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub quarantine_file: Option<String>,
    /// Failing tests as a JSON array of objects with `name`, `classname`, `message`, `stacktrace` and
    /// `duration` (seconds); they are added to those of `--junit`
    #[arg(long, value_name = "JSON")]
    pub failed_tests_detail: Option<String>,
    /// The same in a file of at most 16 MiB; a variable can have 128 KiB
    #[arg(long, value_name = "FILE", conflicts_with = "failed_tests_detail")]
    pub failed_tests_detail_file: Option<PathBuf>,
    /// Whose fault a failure is, as a JSON object with `schema_version`, `category`, `confidence` and
    /// `summary`
    #[arg(long, value_name = "JSON")]
    pub triage_verdict: Option<String>,
    /// Where the job's artifact is (https)
    #[arg(long, value_name = "URL")]
    pub artifact_url: Option<String>,
    /// What the job was doing when it ended: `checkout`, `setup`, `build`, `test`, …
    #[arg(long, value_name = "PHASE")]
    pub phase: Option<String>,
    /// Where it ran: device, driver, image
    #[arg(long, value_name = "TEXT")]
    pub environment: Option<String>,
    /// The delivery that started the run; of a nightly or periodic run, the upstream commit
    #[arg(long, value_name = "ID", requires = "event_type")]
    pub delivery_id: Option<String>,
    /// The event of that delivery; `nightly` or `periodic` for a run of your own
    #[arg(long, value_name = "EVENT", requires = "delivery_id")]
    pub event_type: Option<String>,
    /// Upstream repository of a nightly or periodic run
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream_repository: String,
    /// The relay's callback address [default: CRCR_CALLBACK_URL, then what the dispatch names]
    #[arg(long, value_name = "URL")]
    pub callback_url: Option<String>,
    /// Audience of the OIDC token [default: CRCR_OIDC_AUDIENCE, then pytorch-cross-repo-ci-relay]
    #[arg(long, value_name = "AUDIENCE")]
    pub audience: Option<String>,
    /// Seconds that one try may take. An outage of the relay is waited out for 75 seconds, or for three times
    /// as many as this if that is longer
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = number::<u64>(1..=600))]
    pub max_time: u64,
    /// What to do when the relay can't be reached
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnUnreachable::Warn)]
    pub on_unreachable: OnUnreachable,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Status {
    /// The job has started and runs
    #[value(name = "in_progress")]
    InProgress,
    /// The job has ended, with a conclusion
    #[value(name = "completed")]
    Completed,
}

impl Status {
    /// As it is sent.
    pub fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
        }
    }
}

/// What an unreachable relay means for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnUnreachable {
    /// A warning, and exit code 0
    Warn,
    /// An error, and exit code 2
    Fail,
}

fn conclusion(text: &str) -> Result<Conclusion, String> {
    text.parse().map_err(|()| {
        let known = Conclusion::BEST_TO_WORST.map(Conclusion::as_str).join(", ");
        format!("one of {known}")
    })
}
