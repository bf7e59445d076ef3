//! `crcr oidc …`: credentials from the job's OIDC token, or a deliberate step down without them.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

use super::{DataFormat, number};

/// What to do with the job's OIDC token.
#[derive(Debug, Subcommand)]
pub enum OidcCommand {
    /// Get AWS credentials for this job, or go on without them where the event gives none
    #[command(after_help = CONFIGURE_EXAMPLES)]
    Configure(Box<ConfigureArgs>),
    /// Take the credentials away from the later steps of this job
    #[command(after_help = DROP_EXAMPLES)]
    Drop,
}

const DROP_EXAMPLES: &str = "\
Example:
  crcr oidc drop    in a step before one that runs code that you don't trust

Variables become empty, since a step can't unset them. A job with `id-token: write` can ask for new
credentials: run such code in a job without it.";

const CONFIGURE_EXAMPLES: &str = "\
Examples:
  crcr oidc configure --aws-region us-east-1 \\
    --role-to-assume arn:aws:iam::123456789012:role/ci --sccache-bucket my-cache
  crcr oidc configure --role-to-assume \"$ROLE\" --aws-region us-east-1 --explain

The role and its settings are looked at only where a token can be had: on a fork, where secrets are
empty, they may be absent.";

/// The inputs of `configure-oidc-fallback`.
#[derive(Debug, Clone, Args)]
pub struct ConfigureArgs {
    /// Role to assume: `arn:PARTITION:iam::ACCOUNT:role/NAME`
    #[arg(long, value_name = "ARN")]
    pub role_to_assume: Option<String>,
    /// Region of the credentials and of the STS endpoint
    #[arg(long, value_name = "REGION")]
    pub aws_region: Option<String>,
    /// Audience of the token, as the identity provider in AWS has it
    #[arg(long, value_name = "AUDIENCE", default_value = "sts.amazonaws.com")]
    pub audience: String,
    /// Lifetime of the credentials, 900 to 43200 and at most what the role allows
    #[arg(long, value_name = "SECONDS", default_value = "3600")]
    pub role_duration_seconds: String,
    /// Name of the session in AWS's logs [default: REPO-RUN_ID-ATTEMPT]
    #[arg(long, value_name = "NAME")]
    pub role_session_name: Option<String>,
    /// JSON policy that narrows the session
    #[arg(long, value_name = "JSON")]
    pub inline_session_policy: Option<String>,
    /// ARN of a managed policy that narrows the session; repeats, or one a line
    #[arg(long, value_name = "ARN")]
    pub managed_session_policies: Vec<String>,
    /// Accounts that the role may belong to; repeats, or separated by lines or commas
    #[arg(long, value_name = "ID")]
    pub allowed_account_ids: Vec<String>,
    /// Endpoint of STS [default: AWS_ENDPOINT_URL_STS, or the region's own]
    #[arg(long, value_name = "URL")]
    pub sts_endpoint: Option<String>,
    /// How long tries may go on, for token and credentials together
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = number::<u64>(1..=600))]
    pub timeout: u64,
    /// Owners whose repositories get credentials; in anybody else's fork the job goes on without;
    /// repeats, or separated by lines or commas [default: all, except forks that the role refuses]
    #[arg(long, value_name = "OWNER")]
    pub owners: Vec<String>,
    /// Whether credentials of the machine may serve where no token can be had, or no role is named
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Ambient::Never)]
    pub ambient: Ambient,
    /// Keep credentials for the same role and policies that an earlier step of the job got, while more
    /// than half of their time is left
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true,
          action = ArgAction::Set, value_name = "BOOL")]
    pub use_existing: bool,
    /// When there are no credentials: `auto` goes on where the event can't give any and fails where
    /// something is broken, `degrade` always goes on, `fail` always fails
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = OnUnavailable::Auto)]
    pub on_unavailable: OnUnavailable,
    /// Bucket of sccache; exports the settings that sccache needs, after one probe
    #[arg(long, value_name = "BUCKET")]
    pub sccache_bucket: Option<String>,
    /// Region of the bucket of sccache [default: the one of --aws-region]
    #[arg(long, value_name = "REGION")]
    pub sccache_region: Option<String>,
    /// Prefix of sccache's keys in the bucket; `default-branch/` or `pull-requests/` is added to it
    #[arg(long, value_name = "PREFIX")]
    pub sccache_key_prefix: Option<String>,
    /// Folder of sccache's cache on disk, below GITHUB_WORKSPACE or absolute, in front of the bucket
    #[arg(long, value_name = "PATH")]
    pub sccache_dir: Option<PathBuf>,
    /// S3 endpoint for sccache [default: AWS's own for the region]
    #[arg(long, value_name = "URL")]
    pub sccache_endpoint: Option<String>,
    /// Confine the session to this run's own artifacts below PREFIX in this bucket
    #[arg(long, value_name = "BUCKET[/PREFIX]")]
    pub s3_scope: Option<String>,
    /// Also set the credentials as outputs of the step; they are masked in the log
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub output_credentials: bool,
    /// Export the credentials to the later steps of the job
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true,
          action = ArgAction::Set, value_name = "BOOL")]
    pub output_env_credentials: bool,
    /// Also write the variables to this file in RUNNER_TEMP, for `docker run --env-file`
    #[arg(long, value_name = "NAME")]
    pub env_file: Option<PathBuf>,
    /// Mask the account's number in the log; jobs that need an output with it get it empty then
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub mask_aws_account_id: bool,
    /// Print what is seen and what would be done; do nothing
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false,
          action = ArgAction::Set, value_name = "BOOL")]
    pub explain: bool,
    /// How --explain prints what it found
    #[arg(long, value_enum, default_value_t = DataFormat::Text)]
    pub format: DataFormat,
    #[command(flatten)]
    pub peer: PeerArgs,
}

/// Inputs of `aws-actions/configure-aws-credentials` that are refused, each with what to do instead.
#[derive(Clone, Args)]
#[command(next_help_heading = "Refused, with what to do instead")]
pub struct PeerArgs {
    /// Not supported: credentials come from the job's token
    #[arg(long, value_name = "ID")]
    pub aws_access_key_id: Option<String>,
    /// Not supported: credentials come from the job's token
    #[arg(long, value_name = "KEY")]
    pub aws_secret_access_key: Option<String>,
    /// Not supported: credentials come from the job's token
    #[arg(long, value_name = "TOKEN")]
    pub aws_session_token: Option<String>,
    /// Not supported: credentials go into the environment
    #[arg(long, value_name = "NAME")]
    pub aws_profile: Option<String>,
    /// Not supported: see `--ambient`
    #[arg(long, value_name = "FILE")]
    pub web_identity_token_file: Option<String>,
    /// Not supported: let the role trust the token
    #[arg(long, value_name = "BOOL")]
    pub role_chaining: Option<String>,
    /// Not supported: STS takes none with a token
    #[arg(long, value_name = "ID")]
    pub role_external_id: Option<String>,
    /// Not supported: see `--use-existing`
    #[arg(long, value_name = "BOOL")]
    pub unset_current_credentials: Option<String>,
    /// Not supported: nothing here needs it
    #[arg(long, value_name = "BOOL")]
    pub special_characters_workaround: Option<String>,
    /// Not supported: see `--timeout`
    #[arg(long, value_name = "COUNT")]
    pub retry_max_attempts: Option<String>,
}

impl std::fmt::Debug for PeerArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys may be in it by mistake.
        f.write_str("PeerArgs")
    }
}

/// Whether the machine's own credentials may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ambient {
    /// They are never used
    Never,
    /// The AWS SDK's default chain is asked
    Allow,
}

/// What happens when there are no credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnUnavailable {
    /// Success where the event can't give credentials, failure where something is broken
    Auto,
    /// Never a failure; what is broken is a warning
    Degrade,
    /// Always a failure of the step
    Fail,
}
