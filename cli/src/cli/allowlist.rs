//! `crcr allowlist …`

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Args, Subcommand, ValueEnum};
use crcr_domain::RepoName;
use secrecy::SecretString;
use url::Url;

use super::{DataFormat, number, time};
pub const DEFAULT_FILE: &str = ".github/allowlist.yml";

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
identity in GITHUB_APP_ID and GITHUB_APP_PRIVATE_KEY (or _FILE). Names that the token can't see are listed as not checked.
With --base, a repository that GitHub knows to be renamed or transferred keeps its level under the new name.

Exit codes: 0 valid · 1 findings of severity error · 2 could not check")]
    Validate(Box<ValidateArgs>),
    /// List the repositories by level
    #[command(after_help = "\
Examples:
  crcr allowlist show
  crcr allowlist show --format json allowlist.yml")]
    Show(ShowArgs),
    /// Explain what a repository receives, what is shown, what blocks a merge, and why
    #[command(after_help = "\
Examples:
  crcr allowlist explain Ascend/pytorch
  crcr allowlist explain pytorch/crcr-test --label ciflow/crcr/crcr-test
  crcr allowlist explain acme/backend allowlist.yml --event nightly")]
    Explain(ExplainArgs),
    /// Show the effect of a change to the file, and review it
    #[command(after_help = "\
Examples:
  crcr allowlist diff main HEAD
  crcr allowlist diff old.yml new.yml --format json
  crcr allowlist diff main HEAD --results sqlite:/var/lib/crcr/crcr.db
  crcr allowlist diff main HEAD --pull-request 1234 --approval-label approved
  crcr allowlist diff origin/main:allowlist.yml allowlist.yml --format markdown

BASE and HEAD are files, git revisions (of which .github/allowlist.yml is read) or REVISION:PATH.")]
    Diff(Box<DiffArgs>),
    /// Fix what needs no decision; comments and layout stay as they are
    #[command(after_help = "\
Examples:
  crcr allowlist fix
  crcr allowlist fix --diff allowlist.yml
  GITHUB_TOKEN=$(gh auth token) crcr allowlist fix --online
  crcr allowlist fix - < allowlist.yml > fixed.yml")]
    Fix(FixArgs),
    /// Print the JSON Schema of the file, for editors
    #[command(after_help = schema_help!("allowlist", "allowlist"))]
    Schema,
}

#[derive(Debug, Clone, Args)]
pub struct FileArgs {
    /// File to read; `-` is standard input [default: .github/allowlist.yml]
    #[arg(value_name = "FILE")]
    pub path: Option<String>,
    /// The same as the argument FILE
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    pub file: Option<String>,
    /// Repository whose pull requests are tested
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FindingsFormat {
    /// Annotated source, for people
    Text,
    /// Annotations of GitHub Actions
    Github,
    /// One JSON document, for programs
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// For a comment or the step summary
    Markdown,
}

/// The inputs of `validate-allowlist`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    #[command(flatten)]
    pub file: FileArgs,
    /// How findings are printed
    #[arg(long, value_enum, default_value_t = FindingsFormat::Text, value_name = "FORMAT")]
    pub format: FindingsFormat,
    /// Count every warning as an error
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub strict: bool,
    /// File or git revision to compare with: adds the review rules
    ///
    /// Of a revision, the file of the same path is read.
    #[arg(long, value_name = "BASE")]
    pub base: Option<String>,
    /// Why repositories are demoted or removed, for the review rules [default: the description of
    /// the run's pull request]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub reason: Option<String>,
    /// Also write the findings to this file, as SARIF
    #[arg(long, value_name = "PATH")]
    pub sarif_file: Option<String>,
    #[command(flatten)]
    pub online: OnlineArgs,
    /// With `--online`, label or group of runners that take one job and are gone, such as larger ones
    /// of GitHub; repeats, or one a line
    #[arg(long, value_name = "RUNNER")]
    pub ephemeral: Vec<String>,
    #[command(flatten)]
    pub evidence: EvidenceArgs,
    #[command(flatten)]
    pub approval: ApprovalArgs,
}

/// Who has to approve promotions to L3 and L4.
#[derive(Debug, Clone, Args)]
pub struct ApprovalArgs {
    /// Number of the upstream pull request that makes the change
    #[arg(long, value_name = "NUMBER", value_parser = number::<u64>(1..=u64::MAX))]
    pub pull_request: Option<u64>,
    /// Promotions to L3 and L4 need this label on the pull request, which is read with `--github-token`
    #[arg(long, value_name = "LABEL", requires = "pull_request")]
    pub approval_label: Option<String>,
    /// Promotions to L3 and L4 need an approving review of its newest commit by a member of this team. GitHub is asked
    /// with `--github-token`. With `--approval-label`, either one is enough
    #[arg(long, value_name = "ORG/TEAM", requires = "pull_request")]
    pub approval_team: Option<ApprovalTeam>,
}

impl ApprovalArgs {
    pub fn has_rule(&self) -> bool {
        self.approval_label.is_some() || self.approval_team.is_some()
    }
}

#[derive(Debug, Clone)]
pub struct ApprovalTeam {
    pub org: String,
    pub slug: String,
}

impl FromStr for ApprovalTeam {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (org, slug) = text.split_once('/').ok_or("write it as `org/team`")?;
        if org.is_empty() || slug.is_empty() || slug.contains('/') {
            return Err("write it as `org/team`");
        }
        Ok(Self { org: org.to_owned(), slug: slug.to_owned() })
    }
}

impl fmt::Display for ApprovalTeam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.slug)
    }
}

/// The results and the criteria by which changes of level are reviewed.
#[derive(Debug, Clone, Args)]
pub struct EvidenceArgs {
    /// Results to review level changes by: the URL of a HUD, sqlite:PATH, PATH, or
    /// clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, value_name = "STORE")]
    pub results: Option<String>,
    #[command(flatten)]
    pub options: ReviewOptions,
}

#[derive(Debug, Clone, Args)]
pub struct ReviewOptions {
    /// Criteria other than the ratified ones, YAML or JSON; `crcr levels review --help` names them
    #[arg(long, value_name = "FILE")]
    pub criteria: Option<PathBuf>,
    /// Address of the HUD, for links to the evidence
    #[arg(long, value_name = "URL")]
    pub hud_url: Option<Url>,
}

#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub file: FileArgs,
    /// How the list is printed
    #[arg(long, value_enum, default_value_t = DataFormat::Text, value_name = "FORMAT")]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Repository whose treatment is explained
    #[arg(value_name = "OWNER/REPO")]
    pub repo: RepoName,
    #[command(flatten)]
    pub file: FileArgs,
    /// Label that the pull request carries; repeats
    #[arg(long, value_name = "LABEL")]
    pub label: Vec<String>,
    /// Event of upstream, or kind of run, to explain
    #[arg(long, value_enum, value_name = "EVENT", default_value_t = ExplainEvent::PullRequest)]
    pub event: ExplainEvent,
    /// How the explanation is printed
    #[arg(long, value_enum, default_value_t = DataFormat::Text, value_name = "FORMAT")]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ExplainEvent {
    /// A pull request is opened or pushed to
    PullRequest,
    /// A push to an upstream branch
    Push,
    /// A group of a merge queue
    MergeGroup,
    /// A nightly run that the repository starts itself
    Nightly,
    /// A periodic run that the repository starts itself
    Periodic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReviewFormat {
    /// Sentences and tables, for people
    Text,
    /// JSON, for programs to read
    Json,
    /// For a comment or the step summary
    Markdown,
}

impl From<ReviewFormat> for DataFormat {
    fn from(format: ReviewFormat) -> Self {
        match format {
            ReviewFormat::Json => Self::Json,
            ReviewFormat::Text | ReviewFormat::Markdown => Self::Text,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// Before: a file, a git revision or REVISION:PATH
    #[arg(value_name = "BASE")]
    pub base: String,
    /// After: a file, a git revision or REVISION:PATH
    #[arg(value_name = "HEAD")]
    pub head: String,
    /// Repository whose pull requests are tested
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Why repositories are demoted or removed: one line per repository that names it and gives a reason
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub reason: Option<String>,
    /// Count every warning as an error
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub strict: bool,
    #[command(flatten)]
    pub evidence: EvidenceArgs,
    #[command(flatten)]
    pub approval: ApprovalArgs,
    /// Token for the approval rules [default: GITHUB_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub github_token: Option<SecretString>,
    /// Only consider results before this time [default: now]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "results")]
    pub until: Option<jiff::Timestamp>,
    /// How the review is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
}

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
