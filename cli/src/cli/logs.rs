//! `crcr logs …`: logs of jobs, and the rules that find the line that explains a failure.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use crcr_domain::RepoName;

use super::{DataFormat, number};

#[derive(Debug, Subcommand)]
pub enum LogsCommand {
    /// Find the line that explains why a job failed
    #[command(after_help = CLASSIFY_EXAMPLES)]
    Classify(ClassifyArgs),
    /// Try rules on their examples and on labelled logs
    #[command(after_help = TEST_EXAMPLES)]
    Test(TestArgs),
    /// Print the rules that `crcr` comes with
    #[command(after_help = RULES_EXAMPLE)]
    Rules,
    /// Turn the rules of PyTorch's log classifier into rules for `crcr`
    #[command(after_help = IMPORT_EXAMPLES)]
    ImportRules(ImportRulesArgs),
    /// Fetch the log of a job
    #[command(after_help = FETCH_EXAMPLES)]
    Fetch(FetchArgs),
}

const CLASSIFY_EXAMPLES: &str = "\
Examples:
  crcr logs classify build.log
  crcr logs classify failed.log.gz --baseline green.log.gz --explain
  crcr logs classify failed.log.gz --earlier log.1.gz --earlier log.2.gz
  gh run view --log-failed --job 4242 | crcr logs classify -
  crcr logs classify logs_4242.zip       # GitHub's archive of a run: each job

A log may be compressed with gzip or zstd, or be UTF-16; a folder and an archive are read log by log.
Memory doesn't depend on the size. Up to three lines are shown, each with how certain it is. Exit
codes: 0 read, whether or not a line was found; 1 the rules have mistakes; 2 a file can't be read.";

const IMPORT_EXAMPLES: &str = "\
Example:
  crcr logs import-rules ruleset.toml > rules.toml
  crcr logs test rules.toml

Rules keep their order. They count in the section that failed, not anywhere in the log. Exit codes: 0
all rules are in the output; 1 some aren't, and are named in comments; 2 the file can't be read.";

const TEST_EXAMPLES: &str = "\
Examples:
  crcr logs test
  crcr logs test rules.toml --fixtures logs --format json

Every `examples` line of a rule has to be found by that rule. A folder of logs has a file
`labels.toml` with entries such as

  [[log]]
  file = \"failed.log.gz\"
  lines = [\"fatal error: foo.h: No such file\"]   # the right line has one of these texts
  rule = \"gcc error\"                             # if it matters
  baseline = \"green.log.gz\"                      # a green run of the same job
  earlier = [\"log.1.gz\", \"log.2.gz\"]            # earlier runs of it, failed or not

Exit codes: 0 everything as expected; 1 an example or log isn't, or the rules have mistakes; 2 a file
can't be read.";

const RULES_EXAMPLE: &str = "\
Example:
  crcr logs rules > rules.toml

A file of rules that starts with `extends = \"starter\"` has these after its own.";

const FETCH_EXAMPLES: &str = "\
Examples:
  crcr logs fetch --job 4242 --repo acme/app --output job.log
  crcr logs fetch --job 4242 --repo acme/app | crcr logs classify -

The token in GITHUB_TOKEN needs `actions: read`. Exit codes: 0 fetched; 1 GitHub doesn't have the log, or the token
may not read it; 2 usage, network or GitHub.";

#[derive(Debug, Clone, Args)]
pub struct ClassifyArgs {
    /// Logs, folders or archives of logs; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<String>,
    /// Log of the last green run of the same job: lines that it never has are reported
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<String>,
    /// Logs of earlier runs of the same job, failed or not: a line that most of them have counts less
    #[arg(long, value_name = "FILE", action = clap::ArgAction::Append)]
    pub earlier: Vec<String>,
    /// Rules to use instead of those of `crcr`
    #[arg(long, value_name = "FILE")]
    pub rules: Option<String>,
    /// Show which features count for each line, with their points
    #[arg(long)]
    pub explain: bool,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct ImportRulesArgs {
    /// File with `[[rule]]` entries that have a `name` and a `pattern`; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: String,
}

#[derive(Debug, Clone, Args)]
pub struct TestArgs {
    /// Rules to try [default: those of `crcr`]
    #[arg(value_name = "RULES")]
    pub rules: Option<String>,
    /// Folder of labelled logs
    #[arg(long, value_name = "DIR")]
    pub fixtures: Option<PathBuf>,
    /// Leave out the logs of green and earlier runs
    #[arg(long)]
    pub without_baseline: bool,
    /// Write the features of each line to a file, from which weights are learned
    #[arg(long, value_name = "FILE", requires = "fixtures")]
    pub features: Option<PathBuf>,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct FetchArgs {
    /// Number of the job, as in its address
    #[arg(long, value_name = "ID", value_parser = number::<u64>(1..=u64::MAX))]
    pub job: u64,
    /// Repository of the job
    #[arg(long, value_name = "OWNER/REPO")]
    pub repo: RepoName,
    /// Where the log goes; `-` is standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub output: String,
    /// The largest log that is fetched, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub max_size: u64,
}
