//! `crcr stats …`: test reports of a job, and what many of them say together.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::DataFormat;

#[derive(Debug, Subcommand)]
pub enum StatsCommand {
    /// Show what a JUnit report says, and what is wrong with it
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Gather the test reports of a job in one zip, for an upload step
    #[command(after_help = PACK_EXAMPLES)]
    Pack(PackArgs),
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
