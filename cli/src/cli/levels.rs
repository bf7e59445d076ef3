//! `crcr levels …`

use std::str::FromStr;

use clap::{Args, Subcommand};
use crcr_domain::RepoName;
use crcr_domain::allowlist::level::Device;
use crcr_domain::checks::demotion::{DEMOTION_BRANCH, DEMOTION_LABEL};
use jiff::Timestamp;
use secrecy::SecretString;

use super::allowlist::{DEFAULT_FILE, ReviewFormat, ReviewOptions};
use super::{DataFormat, time};

#[derive(Debug, Subcommand)]
pub enum LevelsCommand {
    /// Compare every repository's recorded results with the criteria of its level
    #[command(after_help = REVIEW_HELP)]
    Review(Box<ReviewArgs>),
    /// Open, update and close the pull requests that demote backends upstream
    #[command(after_help = SYNC_HELP)]
    Sync(Box<SyncArgs>),
    /// Print the JSON Schema of a file with criteria, for editors
    #[command(after_help = schema_help!("levels", "criteria"))]
    Schema,
}

const SYNC_HELP: &str = "\
Examples:
  crcr levels sync --results https://hud.example.com --dry-run
  crcr levels sync --results https://hud.example.com
  crcr levels sync --results sqlite:crcr.db --hud-url https://hud.example.com
  crcr levels sync --results crcr.db --promotions --device acme/backend=npu

The allowlist is read from upstream's default branch. Each pull request moves one repository by one
level, and changes no other line of the file. It is
  opened   when a criterion of the repository's level isn't met,
  updated  when the evidence or the allowlist upstream has changed,
  closed   when the repository meets its criteria again, or has left the level.
Without results nothing is opened and nothing is closed. A pull request that somebody closed is left
alone until its branch is deleted, which happens here once the repository meets its criteria.

The token in GITHUB_TOKEN needs `contents: write` and `pull-requests: write`; with --dry-run, reading is enough.

Exit codes: 0 done · 1 the allowlist has errors, or an entry can't be moved · 2 usage, network, GitHub";

const REVIEW_HELP: &str = "\
Examples:
  crcr levels review --results sqlite:/var/lib/crcr/crcr.db
  crcr levels review --results https://hud.example.com --propose
  crcr levels review --results crcr.db --from 2026-09-01T00:00Z

Rates cover pull requests and pushes; with fewer than 20 samples a criterion is unknown.
--results takes a path, sqlite:PATH, clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE, or the URL
of a HUD, which reviews by its own criteria.

Criteria that a file may change, with their defaults:
  promotion-days 14        days before today that a promotion considers
  demotion-days 7          days before today that a demotion considers
  days-at-l2 30            days at L2 before a promotion
  coverage-days 14         days with results before a promotion
  queue-seconds 1800       the average wait of first attempts is shorter
  overrun-seconds 10800    a job that runs longer is an overrun
  overrun-share 0.01       share of jobs that may overrun, exclusive
  end-to-end-seconds 10800 median from dispatch to last result is shorter
  timeout-share 0.01       share of jobs that may time out, exclusive
  job-pass-share 0.9       share of jobs that must pass, exclusive
  upstream-failures count  or leave-out: those that upstream caused don't count in that share

Below `l2:`, `l3:` and `l4:` the six from queue-seconds to job-pass-share can have another value for this
level; l2 has none of them unless it is there. These have no default, and are only criteria where they are given:
  valid-report-share       share of reports that must be valid
  flake-share              share of passed jobs that may have failed before on the same commit
  core-jobs                jobs (JOB, or WORKFLOW / JOB) that must have run and passed
  core-tests               tests (CLASS.NAME or NAME) whose collected results say the same
With `l2:`, --propose also names moves between L1 and L2; with `l4:`, promotions to L4. Such a file:
  job-pass-share: 0.9
  l2: {valid-report-share: 0.8}
  l4: {job-pass-share: 0.95, flake-share: 0.02, core-jobs: [CI / core]}";

#[derive(Debug, Clone, Args)]
pub struct ReviewArgs {
    /// The relay's results: sqlite:PATH, PATH, clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE, or
    /// the URL of a HUD
    #[arg(long, value_name = "STORE")]
    pub results: String,
    /// The allowlist with the levels; `-` is standard input
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub allowlist: String,
    /// Repository whose pull requests are tested
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Also list the promotions and demotions that the results ask for
    #[arg(long)]
    pub propose: bool,
    /// Only consider results since this time [default: as far back as the criteria say]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from: Option<Timestamp>,
    /// Only consider results before this time [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to: Option<Timestamp>,
    #[command(flatten)]
    pub options: ReviewOptions,
    /// How the review is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
}

#[derive(Debug, Clone, Args)]
pub struct SyncArgs {
    /// The results: the URL of a HUD, sqlite:PATH, PATH, or
    /// clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, value_name = "STORE")]
    pub results: String,
    /// Repository whose pull requests are tested
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Path of the allowlist in the upstream repository
    #[arg(long, value_name = "PATH", default_value = DEFAULT_FILE)]
    pub allowlist_path: String,
    /// Branch that pull requests target [default: upstream's default branch]
    #[arg(long, value_name = "BRANCH")]
    pub base: Option<String>,
    /// Only consider results before this time [default: the last midnight, UTC]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to: Option<Timestamp>,
    /// Also open, update and close the pull requests that promote backends
    #[arg(long)]
    pub promotions: bool,
    /// Device of a repository that moves to L3; repeats
    #[arg(long, value_name = "OWNER/REPO=DEVICE")]
    pub device: Vec<DeviceOf>,
    /// Branches of demotions are called PREFIX/OWNER/REPO
    #[arg(long, value_name = "PREFIX", default_value = DEMOTION_BRANCH)]
    pub demotion_branch: String,
    /// Label of pull requests that demote
    #[arg(long, value_name = "LABEL", default_value = DEMOTION_LABEL)]
    pub demotion_label: String,
    /// Branches of promotions are called PREFIX/OWNER/REPO
    #[arg(long, value_name = "PREFIX", default_value = "crcr-promotion")]
    pub promotion_branch: String,
    /// Label of pull requests that promote
    #[arg(long, value_name = "LABEL", default_value = "crcr-auto-promotion")]
    pub promotion_label: String,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Token for GitHub [default: GITHUB_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub github_token: Option<SecretString>,
    #[command(flatten)]
    pub options: ReviewOptions,
    /// How the steps are printed
    #[arg(long, value_enum, default_value_t = DataFormat::Text, value_name = "FORMAT")]
    pub format: DataFormat,
}

/// The device of a repository that is promoted to L3, given as `OWNER/REPO=DEVICE`.
#[derive(Debug, Clone)]
pub struct DeviceOf {
    pub repo: RepoName,
    pub device: Device,
}

impl FromStr for DeviceOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (repo, device) = text.split_once('=').ok_or("it has to be OWNER/REPO=DEVICE")?;
        let repo = RepoName::new(repo).map_err(|error| error.to_string())?;
        let device = Device::new(device).map_err(|error| error.to_string())?;
        Ok(Self { repo, device })
    }
}
