//! `crcr stats …`: test reports of a job, and what many of them say together.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};

use crate::cli::artifact::S3Args;
use crate::cli::{DataFormat, number, owner_and_name, time};

#[derive(Debug, Subcommand)]
pub enum StatsCommand {
    /// Show what a JUnit report says, and what is wrong with it
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Gather the test reports of a job in one zip, for an upload step
    #[command(after_help = PACK_EXAMPLES)]
    Pack(PackArgs),
    /// Collect the test reports of a run into rows, in files and in the results database
    #[command(after_help = COLLECT_EXAMPLES)]
    Collect(Box<CollectArgs>),
    /// List the tests that passed and failed on one commit
    #[command(after_help = FLAKY_EXAMPLES)]
    Flaky(RankArgs),
    /// List the tests that take the longest
    #[command(after_help = SLOW_EXAMPLES)]
    Slow(RankArgs),
    /// List the tests that fail most often
    #[command(after_help = FAILING_EXAMPLES)]
    Failing(RankArgs),
    /// Write how long each test file takes, to split tests into shards
    #[command(after_help = TIMES_EXAMPLES)]
    Times(TimesArgs),
    /// Print the test files of one of several shards that take equally long
    #[command(after_help = SHARD_EXAMPLES)]
    Shard(ShardArgs),
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
  crcr stats pack --path 'test/**/*.xml' --expect test/slow.xml

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
    /// Status of the job, `${{ job.status }}` in a workflow
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

const COLLECT_EXAMPLES: &str = "\
Examples:
  crcr stats collect --results sqlite:crcr.db --s3-bucket my-artifacts
  crcr stats collect --dir reports --repo acme/app --results sqlite:crcr.db
  crcr stats collect --dir reports --repo acme/app --run-id 4242 --dry-run

In a workflow started by `workflow_run` the event says which run. Collecting a run again changes
nothing. A file that can't be read is listed with the reason, and all others count. Exit codes: 0
collected; 1 nothing could be read, or with --strict a file couldn't; 2 usage, network or a service.";

/// The inputs of `collect-test-stats`.
#[derive(Clone, Args)]
pub struct CollectArgs {
    /// Read the `.xml`, `.trx`, `.json`, `.ndjson` and `.zip` files below this folder instead of the run's artifacts
    #[arg(long, value_name = "FOLDER", requires = "repo")]
    pub dir: Option<PathBuf>,
    /// Repository of the run, as `owner/repo` [default: that of the event]
    #[arg(long, value_name = "REPOSITORY", value_parser = owner_and_name)]
    pub repo: Option<String>,
    /// Number of the run [default: that of the event; with --dir a new one]
    #[arg(long, value_name = "RUN", requires = "repo")]
    pub run_id: Option<u64>,
    /// Attempt of the run [default: that of the event; with --dir 1]
    #[arg(long, value_name = "NUMBER", requires = "run_id", value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub run_attempt: Option<u32>,
    /// Branch of the run's commit, when GitHub isn't asked
    #[arg(long, value_name = "BRANCH", requires = "dir")]
    pub branch: Option<String>,
    /// Name of the job, for reports whose artifact doesn't name one [default: unknown]
    #[arg(long, value_name = "JOB", requires = "dir")]
    pub job: Option<String>,
    /// Commit of the run, when GitHub isn't asked
    #[arg(long, value_name = "SHA", requires = "dir")]
    pub sha: Option<String>,
    /// When the run started, such as `2026-11-23T07:00:00Z`, when GitHub isn't asked [default: now]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "dir")]
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
    /// Tests that may fail for now, a path in this repository's checkout: the summary lists their
    /// failures apart [default: .github/quarantine.yml, if there is one]
    #[arg(long, value_name = "FILE")]
    pub quarantine_file: Option<String>,
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
impl std::fmt::Debug for CollectArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "run {:?} of {:?}", self.run_id, self.repo)
    }
}

const FLAKY_EXAMPLES: &str = "\
Example:
  crcr stats flaky --repo acme/app --since 30d --results sqlite:crcr.db";
const SLOW_EXAMPLES: &str = "\
Example:
  crcr stats slow --repo acme/app --limit 10 --results sqlite:crcr.db";
const FAILING_EXAMPLES: &str = "\
Example:
  crcr stats failing --repo acme/app --since 2026-11-01 --results sqlite:crcr.db";
const TIMES_EXAMPLES: &str = "\
Examples:
  crcr stats times --repo acme/app --results sqlite:crcr.db --output times.json
  crcr stats times --repo acme/app --classes --results sqlite:crcr.db

The shape is {job: {config: {file: seconds}}}, with --classes {job: {config: {file: {class: seconds}}}}.";
const SHARD_EXAMPLES: &str = "\
Examples:
  crcr stats shard --times times.json --shards 4 --index 1 test_a.py test_b.py
  ls test_*.py | crcr stats shard --times times.json --shards 4 --index 1";

/// Which of the stored results are read.
#[derive(Clone, Args)]
pub struct StoredTestArgs {
    /// Repository whose results are read, as `owner/repo`
    #[arg(long, value_name = "REPOSITORY", value_parser = owner_and_name)]
    pub repo: String,
    /// Since this day, such as `2026-11-23`, or a number of days, such as `7d`
    #[arg(long, value_name = "DAY", default_value = "7d")]
    pub since: SinceDay,
    /// Also results of branches and pull requests, not of the default branch alone
    #[arg(long)]
    pub all_branches: bool,
    /// Where results are: `sqlite:PATH` or `clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE`
    /// [default: CRCR_RESULTS]
    #[arg(long, value_name = "URL")]
    pub results: Option<String>,
}

// The address of the results is a secret.
impl std::fmt::Debug for StoredTestArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tests of {} since {:?}", self.repo, self.since)
    }
}

#[derive(Debug, Clone, Copy)]
pub enum SinceDay {
    Day(jiff::civil::Date),
    /// Today is the first one.
    Days(i64),
}

impl SinceDay {
    /// The first day that is read, as days since 1970.
    pub fn first_day(self, today: i64) -> i64 {
        match self {
            Self::Day(date) => {
                let zoned = date.to_zoned(jiff::tz::TimeZone::UTC);
                zoned.map_or(today, |midnight| midnight.timestamp().as_second().div_euclid(86_400))
            }
            Self::Days(days) => today - days + 1,
        }
    }
}

impl std::str::FromStr for SinceDay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok());
        match (days.filter(|days| *days > 0), text.parse()) {
            (Some(days), _) => Ok(Self::Days(days.into())),
            (None, Ok(date)) => Ok(Self::Day(date)),
            (None, Err(_)) => {
                Err("expected a day such as 2026-11-23, or days such as 7d".to_owned())
            }
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct RankArgs {
    #[command(flatten)]
    pub stored: StoredTestArgs,
    /// Only this job, with its full name
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Show the owners that this file names [default: the CODEOWNERS of the working folder, if there is
    /// one]
    #[arg(long, value_name = "FILE")]
    pub codeowners: Option<PathBuf>,
    /// Maximum number of tests to list
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = number::<usize>(1..=u64::MAX))]
    pub limit: usize,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct TimesArgs {
    #[command(flatten)]
    pub stored: StoredTestArgs,
    /// Only this job, without configuration and shard
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Split the seconds of each file by class
    #[arg(long)]
    pub classes: bool,
    /// Write there instead of to stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Json)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct ShardArgs {
    /// What `crcr stats times` wrote
    #[arg(long, value_name = "FILE")]
    pub times: PathBuf,
    /// How many shards there are
    #[arg(long, value_name = "NUMBER", value_parser = number::<usize>(1..=10_000))]
    pub shards: usize,
    /// Which of them, from 1
    #[arg(long, value_name = "NUMBER", value_parser = number::<usize>(1..=10_000))]
    pub index: usize,
    /// Take the times of this job [default: the highest of all jobs]
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Take the times of this configuration [default: the highest of all]
    ///
    /// It is `default` of the job `test (default, 1, 5)`, and `ubuntu, 3.11` of `test (ubuntu, 3.11)`.
    #[arg(long, value_name = "CONFIG")]
    pub config: Option<String>,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Text)]
    pub format: DataFormat,
    /// The test files; without any they are read from stdin, one a line
    #[arg(value_name = "FILE")]
    pub files: Vec<String>,
}
