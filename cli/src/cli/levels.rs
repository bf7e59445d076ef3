//! `crcr levels …`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use crcr_domain::RepoName;
use jiff::Timestamp;
use url::Url;

use super::allowlist::{DEFAULT_FILE, ReviewFormat};

#[derive(Debug, Subcommand)]
pub enum LevelsCommand {
    /// Compare every repository's recorded results with the criteria of its level
    #[command(after_help = REVIEW_HELP)]
    Review(Box<ReviewArgs>),
}

const REVIEW_HELP: &str = "\
Examples:
  crcr levels review --results sqlite:/var/lib/crcr/crcr.db
  crcr levels review --results crcr.db --propose --format markdown --hud-url https://hud.example.com
  crcr levels review --results crcr.db --from 2026-09-01T00:00:00Z --to 2026-09-15T00:00:00Z

Rates cover pull requests and pushes; with fewer than 20 samples a criterion is unknown.
--results takes a path, sqlite:PATH or clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE.
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
  job-pass-share 0.9       share of jobs that must pass, exclusive";

#[derive(Debug, Clone, Args)]
pub struct ReviewArgs {
    /// The relay's results: sqlite:PATH, PATH, or clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, value_name = "STORE")]
    pub results: String,
    /// The allowlist with the levels; `-` is standard input
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub allowlist: String,
    /// Upstream repository
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Also list the promotions and demotions that the results ask for
    #[arg(long)]
    pub propose: bool,
    /// Only consider results since this time [default: as far back as the criteria say]
    #[arg(long, value_name = "TIME")]
    pub from: Option<Timestamp>,
    /// Only consider results before this time [default: now]
    #[arg(long, value_name = "TIME")]
    pub to: Option<Timestamp>,
    #[command(flatten)]
    pub options: ReviewOptions,
    /// How the review is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
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
