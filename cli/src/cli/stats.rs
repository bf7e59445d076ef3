//! `crcr stats …`: test reports of a job, and what many of them say together.

use std::path::PathBuf;

#[cfg(feature = "relay")]
use clap::ArgAction;
use clap::{Args, Subcommand};

use crate::cli::DataFormat;
#[cfg(feature = "relay")]
use crate::cli::artifact::S3Args;

#[derive(Debug, Subcommand)]
pub enum StatsCommand {
    /// Show what a JUnit report says, and what is wrong with it
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Gather the test reports of a job in one zip, for an upload step
    #[command(after_help = PACK_EXAMPLES)]
    Pack(PackArgs),
    /// Collect the test reports of a run into rows, in files and in the results database
    #[cfg(feature = "relay")]
    #[command(after_help = COLLECT_EXAMPLES)]
    Collect(Box<CollectArgs>),
}

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  crcr stats explain test-reports/report.xml
  crcr stats explain --format json - < report.xml

The grade is `valid`, `suboptimal` (every test counts, but something is missing or had to be
guessed) or `invalid` (tests or results may be missing). Exit codes: 0 valid or suboptimal; 1
invalid, or not a report at all; 2 the file can't be read.";

#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The report; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: String,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

const PACK_EXAMPLES: &str = "\
Examples:
  crcr stats pack --path 'test/**/*.xml' --job-id \"$JOB_ID\"
  crcr stats pack --path 'test/**/*.xml' --expect test/test-reports/slow.xml --job-status failure

The zip is made even if there are no reports: it then says so to `crcr stats collect`. Exit codes:
0 packed; 1 an input is wrong; 2 the zip can't be written.";

/// The inputs of `pack-test-reports`.
#[derive(Debug, Clone, Args)]
pub struct PackArgs {
    /// JUnit reports; repeats, or one glob a line; `!` excludes
    #[arg(
        long,
        value_name = "GLOB",
        default_value = "**/test-reports/**/*.xml",
        allow_hyphen_values = true
    )]
    pub path: Vec<String>,
    /// Reports that the job writes if its tests end, one glob a line: what matches nothing is noted
    /// as crashed
    #[arg(long, value_name = "GLOB")]
    pub expect: Vec<String>,
    /// Number of the job, `${{ job.check_run_id }}` in a workflow [default: CRCR_CHECK_RUN_ID]
    #[arg(long, value_name = "NUMBER")]
    pub job_id: Option<String>,
    /// How the job stands, `${{ job.status }}` in a workflow
    #[arg(long, value_name = "STATUS")]
    pub job_status: Option<String>,
    /// Part of the zip's name that tells the job from others [default: the job's key and its matrix
    /// values]
    #[arg(long, value_name = "TEXT")]
    pub suffix: Option<String>,
    /// Folder for the zip [default: RUNNER_TEMP]
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
}

#[cfg(feature = "relay")]
const COLLECT_EXAMPLES: &str = "\
Examples:
  crcr stats collect --results sqlite:crcr.db --s3-bucket my-artifacts
  crcr stats collect --dir reports --repo acme/app --run-id 4242 --run-attempt 1 --rows file:rows
  crcr stats collect --dir reports --repo acme/app --run-id 4242 --run-attempt 1 --dry-run

In a workflow started by `workflow_run` the event says which run. Collecting a run again changes
nothing. A file that can't be read is listed with the reason, and all others count. Exit codes: 0
collected; 1 nothing could be read, or with --strict a file couldn't; 2 usage, network or a service.";

/// The inputs of `collect-test-stats`.
#[cfg(feature = "relay")]
#[derive(Clone, Args)]
pub struct CollectArgs {
    /// Read the `.xml` and `.zip` files below this folder instead of the run's artifacts
    #[arg(long, value_name = "FOLDER", requires_all = ["repo", "run_id", "run_attempt"])]
    pub dir: Option<PathBuf>,
    /// Repository of the run, as `owner/repo` [default: that of the event]
    #[arg(long, value_name = "REPOSITORY", requires = "run_id")]
    pub repo: Option<String>,
    /// Number of the run [default: that of the event]
    #[arg(long, value_name = "RUN", requires_all = ["repo", "run_attempt"])]
    pub run_id: Option<u64>,
    /// Attempt of the run [default: that of the event]
    #[arg(long, value_name = "NUMBER", requires = "run_id", value_parser = clap::value_parser!(u32).range(1..))]
    pub run_attempt: Option<u32>,
    /// Branch of the run's commit, when GitHub isn't asked
    #[arg(long, value_name = "BRANCH", requires = "dir")]
    pub branch: Option<String>,
    /// Commit of the run, when GitHub isn't asked
    #[arg(long, value_name = "SHA", requires = "dir")]
    pub sha: Option<String>,
    /// When the run started, such as `2026-11-23T07:00:00Z`, when GitHub isn't asked [default: now]
    #[arg(long, value_name = "TIME", requires = "dir")]
    pub started_at: Option<jiff::Timestamp>,
    /// Count the results for the repository's default branch, when GitHub isn't asked
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL", requires = "dir")]
    pub on_default_branch: bool,
    /// Token with `actions: read` [default: GITHUB_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub github_token: Option<String>,
    /// Write the rows as NDJSON there: `file:FOLDER` or `s3://BUCKET/PREFIX`
    #[arg(long, value_name = "URL")]
    pub rows: Option<String>,
    /// Load the rows there: `sqlite:PATH` or `clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE`
    /// [default: CRCR_RESULTS]
    #[arg(long, value_name = "URL")]
    pub results: Option<String>,
    /// Read and count, and write nothing
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub dry_run: bool,
    /// Fail if a file can't be read
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub strict: bool,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Text)]
    pub format: DataFormat,
    #[command(flatten)]
    pub s3: S3Args,
}

// The token and the address of the results are secrets.
#[cfg(feature = "relay")]
impl std::fmt::Debug for CollectArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "run {:?} of {:?}", self.run_id, self.repo)
    }
}
