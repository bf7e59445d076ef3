//! `crcr reproduce`: what a developer needs to repeat a backend's failure.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use crcr_domain::RepoName;
use url::Url;

use crate::cli::allowlist::ReviewFormat;
use crate::cli::number;

pub const EXAMPLES: &str = "\
Examples:
  crcr reproduce 101090 --backend acme/torch-npu --hud https://hud.example.org
  crcr reproduce 101090 --backend acme/npu --hud https://hud.example.org --act

With GITHUB_TOKEN it also reads the workflow of each failed run, and the commits that its actions' tags
name now. `--act` runs the backend's workflow on this machine by act (nektosact.com), after printing the
command, in a clone of the backend at the run's commit. Without `--event` act gets a payload made from the
HUD's record: repository, number and head. The recorded one is in the relay's archive, which its operators
read, and on GitHub's page of the App's deliveries. What follows a `--` goes to act.";

#[derive(Debug, Clone, Args)]
pub struct ReproduceArgs {
    /// Number of the upstream pull request
    #[arg(value_name = "PR", value_parser = number::<u64>(1..=u64::MAX))]
    pub number: u64,
    /// The backend that failed
    #[arg(long, value_name = "OWNER/REPO")]
    pub backend: RepoName,
    /// The HUD, which has the results
    #[arg(long, value_name = "URL")]
    pub hud: Url,
    /// Upstream repository [default: that of the HUD]
    #[arg(long, value_name = "OWNER/REPO")]
    pub upstream: Option<RepoName>,
    /// Only this job, as the HUD names it [default: every failed job]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// How the recipe is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
    /// Also run the backend's workflow with act
    #[arg(long)]
    pub act: bool,
    /// The recorded event for act: the run's event, its `client_payload`, or the webhook, as JSON or as the
    /// relay's archive keeps it [default: made from the HUD's record]
    #[arg(long, value_name = "FILE", requires = "act")]
    pub event: Option<PathBuf>,
    /// Workflow for act [default: that of the failed run, or the only one that the relay starts]
    #[arg(long, value_name = "PATH", requires = "act")]
    pub workflow: Option<PathBuf>,
    /// Run what this clone has, even if the run was at another commit
    #[arg(long, requires = "act")]
    pub any_commit: bool,
    /// More arguments for act
    #[arg(last = true, value_name = "ACT_ARGS", requires = "act")]
    pub act_args: Vec<OsString>,
}
