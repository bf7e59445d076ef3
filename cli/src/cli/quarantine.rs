//! `crcr quarantine …`: tests that may fail for a while without failing their job.

use clap::{Args, Subcommand, ValueEnum};
use crcr_domain::Oncall;

use super::allowlist::FindingsFormat;
use super::stats::StoredTestArgs;
use super::{DataFormat, number};

pub const DEFAULT_FILE: &str = ".github/quarantine.yml";

#[derive(Debug, Subcommand)]
pub enum QuarantineCommand {
    /// Report everything that is wrong with a file
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate(ValidateQuarantineArgs),
    /// Print the patterns that count today, to leave those tests out of a run
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Print the JSON Schema of the file, for editors
    #[command(after_help = schema_help!("quarantine", "quarantine"))]
    Schema,
    /// Propose flaky tests for the file, and the removal of entries whose test no longer fails
    #[command(after_help = PROPOSE_EXAMPLES)]
    Propose(Box<ProposeArgs>),
}

const VALIDATE_EXAMPLES: &str = "\
Examples:
  crcr quarantine validate
  crcr quarantine validate --format json quarantine.yml

The file is a list with one entry for each test:

  - pattern: tests.ops.TestConv.test_backward[*]   # `*` is any text, all else is literal
    owner: alice                                   # a login or org/team
    reason: hangs on old drivers, acme/app#42
    expiry: 2026-12-20                             # the last day, at most 30 days from today
    mode: run                                      # or skip; see `crcr quarantine list`

An entry that has expired is a warning. Exit codes: 0 valid; 1 findings of severity error; 2 the file
can't be read.";

const LIST_EXAMPLES: &str = "\
Examples:
  crcr quarantine list
  crcr quarantine list --mode skip --format json

Exit codes: 0 printed; 1 the file has mistakes; 2 it can't be read.";

const PROPOSE_EXAMPLES: &str = "\
Examples:
  crcr quarantine propose --repo acme/app --owner alice --results sqlite:crcr.db
  crcr quarantine propose --repo acme/app --owner alice --since 14d | git apply

Prints a diff of the file, to be applied in the repository's root folder. A test is proposed if it
passed and failed on one commit at least twice. An entry is proposed for removal if its tests ran at least
20 times and none failed, not even before a rerun; without such evidence it stays. The same results
give the same diff.";

#[derive(Debug, Clone, Args)]
pub struct ValidateQuarantineArgs {
    /// File to check; `-` is standard input
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: String,
    /// How to print findings
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = FindingsFormat::Text)]
    pub format: FindingsFormat,
}

#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// File to read; `-` is standard input
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: String,
    /// Only entries of this mode
    #[arg(long, value_enum, value_name = "MODE")]
    pub mode: Option<ListedMode>,
    /// For people or for programs
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListedMode {
    /// The test runs, and its failure is shown apart
    Run,
    /// The test isn't to be run
    Skip,
}

#[derive(Debug, Clone, Args)]
pub struct ProposeArgs {
    /// File to change; a path in the repository
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: String,
    #[command(flatten)]
    pub stored: StoredTestArgs,
    /// Owner of new entries whose file has none in CODEOWNERS: a login or `org/team`
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<Oncall>,
    /// Take owners from this file [default: the CODEOWNERS of the working folder, if there is one]
    #[arg(long, value_name = "FILE")]
    pub codeowners: Option<std::path::PathBuf>,
    /// Propose tests that are flaky in at least this share of their runs, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub at_least: f64,
    /// Days that new entries last
    #[arg(long, value_name = "DAYS", default_value_t = 14, value_parser = number::<i32>(1..=30))]
    pub days: i32,
    /// Propose no more new entries than this, the most flaky first
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub limit: usize,
}
