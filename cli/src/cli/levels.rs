//! `crcr levels …`: what the recorded results say to each repository's level.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use crcr_domain::RepoName;
use jiff::Timestamp;
use url::Url;

use super::allowlist::{DEFAULT_FILE, ReviewFormat};

/// What to do with levels.
#[derive(Debug, Subcommand)]
pub enum LevelsCommand {
    /// Hold every repository's recorded results against the bar of its level
    #[command(after_help = REVIEW_HELP)]
    Review(Box<ReviewArgs>),
}

const REVIEW_HELP: &str = "\
Examples:
  crcr levels review --results sqlite:/var/lib/crcr/crcr.db
  crcr levels review --results crcr.db --propose --format markdown --hud-url https://hud.example.com
  crcr levels review --results crcr.db --from 2026-09-01T00:00:00Z --to 2026-09-15T00:00:00Z

Rates are of pull requests and pushes; with fewer than 20 samples a criterion is unknown. Criteria that
a file may change, with their defaults:
  promotion-days 14        days that a promotion looks back
  demotion-days 7          days that a demotion looks back
  days-at-l2 30            days at L2 before a promotion
  coverage-days 14         days with results before a promotion
  queue-seconds 1800       the average wait of a first attempt is under it
  overrun-seconds 10800    a job that runs longer overruns
  overrun-share 0.01       under this share of jobs overruns
  end-to-end-seconds 10800 dispatch to last result takes less, in the median
  timeout-share 0.01       under this share of jobs times out
  job-pass-share 0.9       over this share of jobs passes";

/// What `review` takes.
#[derive(Debug, Clone, Args)]
pub struct ReviewArgs {
    /// The relay's store: sqlite:PATH or PATH
    #[arg(long, value_name = "STORE")]
    pub results: String,
    /// The allowlist with the levels; `-` is standard input
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub allowlist: String,
    /// Repository whose events are passed on
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Also name the promotions and demotions that the results ask for
    #[arg(long)]
    pub propose: bool,
    /// Review by results since this time [default: as far back as the criteria look]
    #[arg(long, value_name = "TIME")]
    pub from: Option<Timestamp>,
    /// Review by results before this time [default: now]
    #[arg(long, value_name = "TIME")]
    pub to: Option<Timestamp>,
    #[command(flatten)]
    pub bar: BarArgs,
    /// How the review is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
}

/// What results are held against, and where they are shown.
#[derive(Debug, Clone, Args)]
pub struct BarArgs {
    /// Criteria other than the ratified ones, YAML or JSON; `crcr levels review --help` names them
    #[arg(long, value_name = "FILE")]
    pub criteria: Option<PathBuf>,
    /// Address of the HUD, for links to the evidence
    #[arg(long, value_name = "URL")]
    pub hud_url: Option<Url>,
}
