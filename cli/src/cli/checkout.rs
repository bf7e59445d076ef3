//! `crcr checkout`: the exact commit that the relay dispatched.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

/// Examples of the command.
pub const EXAMPLES: &str = "\
Examples:
  crcr checkout --path pytorch           what the relay dispatched to this run
  crcr checkout --path pytorch --submodules recursive --merge
  crcr checkout --path pytorch --repository pytorch/pytorch \\
    --sha 0123456789abcdef0123456789abcdef01234567

The token, when there is one, is given to git for the time it runs and is not written anywhere.";

/// The inputs of `checkout-pr`.
#[derive(Debug, Clone, Args)]
pub struct CheckoutArgs {
    /// Repository to check out [default: the one of the dispatched event]
    #[arg(long, value_name = "OWNER/REPO")]
    pub repository: Option<String>,
    /// Full hash of the commit [default: the head of the dispatched event]
    #[arg(long, value_name = "SHA")]
    pub sha: Option<String>,
    /// Folder to check out into, below GITHUB_WORKSPACE [default: .]
    #[arg(long, value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// How many commits to fetch; 0 for all, with the tags
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub fetch_depth: u32,
    /// Which submodules to check out
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Submodules::False)]
    pub submodules: Submodules,
    /// Check out GitHub's merge of the pull request into its base, instead of its head
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub merge: bool,
    /// Only these folders, and the files at the top; repeats, or one a line
    #[arg(long, value_name = "FOLDER")]
    pub sparse_checkout: Vec<String>,
    /// Filter of a partial clone, such as `blob:none`; files that it leaves out are fetched when git
    /// needs them [default: blob:none with --sparse-checkout, else none]
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Fetch the files of Git LFS, instead of leaving pointers
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub lfs: bool,
    /// Allow a fork's code in a run that has the base repository's secrets, as `pull_request_target` does
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub allow_unsafe_pr_checkout: bool,
    /// Token for private repositories; better as INPUT_TOKEN, since other processes see arguments
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Address of the GitHub that has the repository [default: GITHUB_SERVER_URL]
    #[arg(long, value_name = "URL")]
    pub server_url: Option<String>,
}

/// Which submodules are checked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Submodules {
    /// Submodules stay empty folders
    False,
    /// The submodules of the repository itself
    True,
    /// Submodules of submodules, too
    Recursive,
}
