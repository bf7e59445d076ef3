//! `crcr allowlist …`: which repositories take part, and how deeply.

use clap::{ArgAction, Args, Subcommand, ValueEnum};
use crcr_domain::RepoName;
use secrecy::SecretString;

use super::DataFormat;
use crate::render::Format;

/// The file that is read when none is named.
pub const DEFAULT_FILE: &str = ".github/allowlist.yml";

/// What to do with an allowlist.
#[derive(Debug, Subcommand)]
pub enum AllowlistCommand {
    /// Report everything that is wrong with a file
    #[command(after_help = "\
Examples:
  crcr allowlist validate
  crcr allowlist validate --format json allowlist.yml
  git show HEAD~1:.github/allowlist.yml | crcr allowlist validate --strict -
  GITHUB_TOKEN=$(gh auth token) crcr allowlist validate --online

--online asks GitHub whether repositories, oncalls, labels and workflows exist. Any token that reads
public data will do; teams need one of a member with `read:org`, and the App's installations its own
identity in GITHUB_APP_ID and GITHUB_APP_PRIVATE_KEY (or _FILE). What a token can't see is told.

Exit codes: 0 valid · 1 findings of severity error · 2 could not check")]
    Validate(Box<ValidateArgs>),
    /// List the repositories by level
    #[command(after_help = "\
Examples:
  crcr allowlist show
  crcr allowlist show --format json allowlist.yml")]
    Show(ShowArgs),
    /// Say what a repository receives, what is shown, what blocks, and why
    #[command(after_help = "\
Examples:
  crcr allowlist explain Ascend/pytorch
  crcr allowlist explain pytorch/crcr-test --label ciflow/crcr/crcr-test
  crcr allowlist explain acme/backend --event nightly --file allowlist.yml")]
    Explain(ExplainArgs),
    /// Say what a change of the file does, and review it
    #[command(after_help = "\
Examples:
  crcr allowlist diff main HEAD
  crcr allowlist diff old.yml new.yml --format json
  crcr allowlist diff main HEAD --results sqlite:/var/lib/crcr/crcr.db
  crcr allowlist diff origin/main:.github/allowlist.yml .github/allowlist.yml --format markdown

BASE and HEAD are files, git revisions (of which .github/allowlist.yml is read) or REVISION:PATH.")]
    Diff(Box<DiffArgs>),
    /// Put right what needs no decision; comments and layout stay
    #[command(after_help = "\
Examples:
  crcr allowlist fix
  crcr allowlist fix --diff allowlist.yml
  GITHUB_TOKEN=$(gh auth token) crcr allowlist fix --online
  crcr allowlist fix - < allowlist.yml > fixed.yml")]
    Fix(FixArgs),
    /// Print the JSON Schema of the file, for editors
    #[command(after_help = "\
Example:
  crcr allowlist schema > allowlist.schema.json
  # then, in the file:  # yaml-language-server: $schema=allowlist.schema.json")]
    Schema,
}

/// Which file, and whose.
#[derive(Debug, Clone, Args)]
pub struct FileArgs {
    /// File to read; `-` is standard input [default: .github/allowlist.yml]
    #[arg(value_name = "FILE")]
    pub path: Option<String>,
    /// The same as FILE
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    pub file: Option<String>,
    /// Repository whose events are passed on
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
}

/// Whether and how GitHub is asked.
#[derive(Debug, Clone, Args)]
pub struct OnlineArgs {
    /// Also ask GitHub about the names in the file
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub online: bool,
    /// Token for `--online` [default: GITHUB_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub github_token: Option<SecretString>,
}

/// The inputs of `validate-allowlist`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    #[command(flatten)]
    pub file: FileArgs,
    /// How findings are printed
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,
    /// Count every warning as an error
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub strict: bool,
    /// File or git revision to compare with: adds the review rules
    #[arg(long, value_name = "BASE")]
    pub base: Option<String>,
    /// Why repositories go down or are removed, for the review rules
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub reason: Option<String>,
    /// Also write the findings to this file, as SARIF
    #[arg(long, value_name = "PATH")]
    pub sarif_file: Option<String>,
    #[command(flatten)]
    pub online: OnlineArgs,
}

/// What `show` takes.
#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub file: FileArgs,
    /// How the list is printed
    #[arg(long, value_enum, default_value_t = DataFormat::Text, value_name = "FORMAT")]
    pub format: DataFormat,
}

/// What `explain` takes.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Repository to explain
    #[arg(value_name = "OWNER/REPO")]
    pub repo: RepoName,
    /// File to read; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<String>,
    /// Repository whose events are passed on
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Label that the pull request carries; repeats
    #[arg(long, value_name = "LABEL")]
    pub label: Vec<String>,
    /// Event to explain
    #[arg(long, value_enum, value_name = "EVENT", default_value_t = EventName::PullRequest)]
    pub event: EventName,
    /// How the explanation is printed
    #[arg(long, value_enum, default_value_t = DataFormat::Text, value_name = "FORMAT")]
    pub format: DataFormat,
}

/// An event by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum EventName {
    /// A pull request
    PullRequest,
    /// A push to an upstream branch
    Push,
    /// A group of a merge queue
    MergeGroup,
    /// A nightly run
    Nightly,
    /// A periodic run
    Periodic,
}

/// How a review is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReviewFormat {
    /// For people
    Text,
    /// For programs
    Json,
    /// For a comment or the step summary
    Markdown,
}

/// What `diff` takes.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// Before: a file, a git revision or REVISION:PATH
    #[arg(value_name = "BASE")]
    pub base: String,
    /// After: the same
    #[arg(value_name = "HEAD")]
    pub head: String,
    /// Repository whose events are passed on
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Why repositories go down or are removed: a line that names one and says more
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub reason: Option<String>,
    /// Count every warning as an error
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub strict: bool,
    /// The relay's store with the results that changes of level are reviewed by: sqlite:PATH or
    /// PATH
    #[cfg(feature = "relay")]
    #[arg(long, value_name = "STORE")]
    pub results: Option<String>,
    /// Review by the results before this time [default: now]
    #[cfg(feature = "relay")]
    #[arg(long, value_name = "TIME", requires = "results")]
    pub until: Option<jiff::Timestamp>,
    #[cfg(feature = "relay")]
    #[command(flatten)]
    pub bar: super::levels::BarArgs,
    /// How the review is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
}

/// What `fix` takes.
#[derive(Debug, Clone, Args)]
pub struct FixArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub online: OnlineArgs,
    /// Print what would change instead of changing it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub diff: bool,
}
