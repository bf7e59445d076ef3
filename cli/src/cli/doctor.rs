//! `crcr doctor`: what CI needs here, or in a downstream repository.

use clap::{Args, Subcommand};
use crcr_domain::RepoName;
use crcr_github::SecureUrl;
use url::Url;

use crate::cli::allowlist::ReviewFormat;

pub const EXAMPLES: &str = "\
Examples:
  crcr doctor
  crcr doctor --relay https://relay.example.org --format json
  crcr doctor downstream acme/backend --format markdown

Exit codes: 0 no error was found; 1 an error was found; 2 usage. What can't be checked is
listed as such. No token or key is printed.";

#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    #[command(subcommand)]
    pub command: Option<DoctorCommand>,
    /// Address of a relay to reach [default: that of CRCR_CALLBACK_URL]
    #[arg(long, value_name = "URL")]
    pub relay: Option<Url>,
    /// Label or group of runners that take one job and are gone, such as larger ones of GitHub
    #[arg(long, value_name = "RUNNER")]
    pub ephemeral: Vec<String>,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
}

#[derive(Debug, Clone, Subcommand)]
pub enum DoctorCommand {
    /// Check a downstream repository before it is added to the allowlist
    #[command(after_help = DOWNSTREAM_EXAMPLES)]
    Downstream(DownstreamArgs),
    /// Check the AWS role and buckets of a build, from a laptop or in a job
    #[command(after_help = AWS_EXAMPLES)]
    Aws(Box<AwsArgs>),
}

const AWS_EXAMPLES: &str = "\
Example:
  crcr doctor aws \\
    --role arn:aws:iam::123456789012:role/crcr-acme.app-default-branch \\
    --bucket acme-cache --artifact-bucket acme-artifacts --region us-east-1

It sends what an anonymous caller would send, and writes nothing. Where there are AWS credentials
that may `iam:GetRole`, it says whom the role trusts. As a step of a job with `id-token: write`
and an environment, it also takes the role and says what that may do.
Exit codes: 0 no error was found; 1 an error was found; 2 wrong usage.";

#[derive(Debug, Clone, Args)]
pub struct AwsArgs {
    /// The role of the job
    #[arg(long, value_name = "ARN")]
    pub role: String,
    /// Bucket of the compiler cache
    #[arg(long, value_name = "BUCKET")]
    pub bucket: String,
    /// AWS region of the buckets
    #[arg(long, value_name = "REGION")]
    pub region: String,
    /// Bucket of artifacts, which has to be private
    #[arg(long, value_name = "BUCKET")]
    pub artifact_bucket: Option<String>,
    /// The `sccache-key-prefix` that the build gives to `configure-oidc-fallback`
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<String>,
    /// The cache is for a private repository, so nobody else may read it
    #[arg(long)]
    pub private: bool,
    /// Address of another S3 server than AWS's
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<Url>,
    /// Address of another STS than AWS's
    #[arg(long, value_name = "URL")]
    pub sts_endpoint: Option<SecureUrl>,
    /// Address of another IAM than AWS's
    #[arg(long, value_name = "URL")]
    pub iam_endpoint: Option<Url>,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
}

const DOWNSTREAM_EXAMPLES: &str = "\
Examples:
  crcr doctor downstream acme/backend
  crcr doctor downstream acme/backend --upstream acme/app --format markdown

It needs GITHUB_TOKEN to read the repository. The App's installation is checked only with the
App's own credentials, GITHUB_APP_ID and GITHUB_APP_PRIVATE_KEY; so is `--dispatch`, which
sends a closed pull request as the relay would, and waits for the run that names it in its title.
With the relay's CRCR_CALLBACK_KEY (or GITHUB_APP_SECRET, if it has none) and CRCR_PUBLIC_URL the
dispatch is signed, and the run's job `dry dispatch` reports. `ok` proves that this job succeeded,
which it does only if the relay accepts its OIDC token and the signature. The relay needs no record
of the dispatch and keeps none; no upstream code runs, so that checkout and tests aren't tried.
Exit codes: 0 no error was found; 1 an error was found; 2 GitHub couldn't be asked.";

#[derive(Debug, Clone, Args)]
pub struct DownstreamArgs {
    /// The downstream repository to check
    #[arg(value_name = "OWNER/REPO")]
    pub repository: RepoName,
    /// Repository whose pull requests are tested
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// HUD of a relay that dispatches to it already, such as a test relay
    #[arg(long, value_name = "URL")]
    pub hud: Option<Url>,
    /// Also send a dispatch that starts no tests, and wait for its run to report
    #[arg(long)]
    pub dispatch: bool,
    /// How long to wait for that run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 180, requires = "dispatch")]
    pub timeout: u64,
    /// Label or group of runners that take one job and are gone, such as larger ones of GitHub
    #[arg(long, value_name = "RUNNER")]
    pub ephemeral: Vec<String>,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t = ReviewFormat::Text, value_name = "FORMAT")]
    pub format: ReviewFormat,
}
