//! `crcr init …`: a workflow for this repository.

use clap::{Args, Subcommand, ValueEnum};
use crcr_domain::RepoName;
use crcr_github::SecureUrl;

use super::allowlist::DEFAULT_FILE;
use super::number;

#[derive(Debug, Subcommand)]
pub enum InitCommand {
    /// CI for another repository's pull requests, which the relay starts here
    #[command(after_help = DOWNSTREAM_EXAMPLES)]
    Downstream(DownstreamArgs),
    /// A build with S3 cache and artifacts that also works on pull requests from forks
    #[command(after_help = FORK_BUILD_EXAMPLES)]
    ForkBuild(ForkBuildArgs),
    /// Terraform or JSON for the roles and buckets of `fork-build`, with this repository's numeric ids
    #[command(after_help = AWS_EXAMPLES)]
    Aws(AwsArgs),
    /// A review of each change of the allowlist, as a comment on its pull request
    #[command(after_help = ALLOWLIST_REVIEW_EXAMPLES)]
    AllowlistReview(AllowlistReviewArgs),
    /// Collection of the test results of this repository's other workflows
    #[command(after_help = TEST_STATS_EXAMPLES)]
    TestStats(TestStatsArgs),
}

#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// This repository [default: that of the git remote `origin`]
    #[arg(long, value_name = "OWNER/REPO")]
    pub repository: Option<RepoName>,
    /// Where crcr's actions are; a branch or tag is resolved to its commit
    #[arg(long, value_name = "OWNER/REPO[@REF]", default_value = "pytorch/crcr")]
    pub actions: String,
    /// Replace files that exist and differ, without asking
    #[arg(long)]
    pub force: bool,
    /// Print the workflow to stdout and write nothing
    #[arg(long, visible_alias = "dry-run")]
    pub stdout: bool,
}

#[derive(Debug, Clone, Args)]
pub struct DefaultBranchArgs {
    /// Default branch of this repository [default: what GitHub says, else what git knows]
    #[arg(long, value_name = "BRANCH")]
    pub default_branch: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct RunnerArgs {
    /// Label of the runners that do the work; repeat it for runners that need several
    #[arg(long = "runner", value_name = "LABEL", default_value = "ubuntu-latest")]
    pub runners: Vec<String>,
}

const DOWNSTREAM_EXAMPLES: &str = "\
Examples:
  crcr init downstream --nightly
  crcr init downstream --upstream acme/app --runner self-hosted --runner npu";

#[derive(Debug, Clone, Args)]
pub struct DownstreamArgs {
    /// Repository whose pull requests are tested
    #[arg(long, value_name = "OWNER/REPO", default_value = "pytorch/pytorch")]
    pub upstream: RepoName,
    /// Also write a workflow that tests upstream's newest commit every night
    #[arg(long)]
    pub nightly: bool,
    #[command(flatten)]
    pub runner: RunnerArgs,
    #[command(flatten)]
    pub default_branch: DefaultBranchArgs,
    #[command(flatten)]
    pub init: InitArgs,
}

const FORK_BUILD_EXAMPLES: &str = "\
Examples:
  crcr init fork-build \\
    --role-to-assume arn:aws:iam::123456789012:role/ci-default-branch \\
    --pull-request-role arn:aws:iam::123456789012:role/ci-pull-requests \\
    --aws-region us-east-1 --sccache-bucket acme-cache \\
    --s3-bucket acme-artifacts
  crcr init fork-build --dry-run";

#[derive(Debug, Clone, Args)]
pub struct ForkBuildArgs {
    /// AWS role of jobs of the default branch, which trusts the environment `ci`
    #[arg(long, value_name = "ARN")]
    pub role_to_assume: Option<String>,
    /// AWS role of pull requests from branches, which trusts the environment `ci-pull-request`
    #[arg(long, value_name = "ARN")]
    pub pull_request_role: Option<String>,
    /// AWS region of the role and the buckets
    #[arg(long, value_name = "REGION")]
    pub aws_region: Option<String>,
    /// S3 bucket of the compiler cache
    #[arg(long, value_name = "BUCKET")]
    pub sccache_bucket: Option<String>,
    /// S3 bucket of artifacts
    #[arg(long, value_name = "BUCKET")]
    pub s3_bucket: Option<String>,
    #[command(flatten)]
    pub runner: RunnerArgs,
    #[command(flatten)]
    pub default_branch: DefaultBranchArgs,
    #[command(flatten)]
    pub init: InitArgs,
}

const AWS_EXAMPLES: &str = "\
Examples:
  crcr init aws --aws-region us-east-1 --cache-bucket acme-cache \\
    --artifact-bucket acme-artifacts
  crcr init aws --format json --account-id 123456789012 --aws-region us-east-1 \\
    --cache-bucket acme-cache --artifact-bucket acme-artifacts

GITHUB_TOKEN is used to ask GitHub for the repository's ids and the form of its tokens' `sub`;
without it, give --owner-id and --repository-id. docs/aws.md explains what is set up and what it costs.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AwsFormat {
    /// A module of Terraform
    Terraform,
    /// The policies, for the console or the AWS CLI
    Json,
}

#[derive(Debug, Clone, Args)]
pub struct AwsArgs {
    /// AWS region of the buckets
    #[arg(long, value_name = "REGION")]
    pub aws_region: String,
    /// Bucket of the compiler cache, to be created; everybody may list it
    #[arg(long, value_name = "NAME")]
    pub cache_bucket: String,
    /// Bucket of artifacts, to be created
    #[arg(long, value_name = "NAME")]
    pub artifact_bucket: String,
    /// AWS account; JSON needs it
    #[arg(long, value_name = "NUMBER")]
    pub account_id: Option<String>,
    /// Form in which the roles and buckets are written
    #[arg(long, value_enum, default_value_t = AwsFormat::Terraform, value_name = "FORMAT")]
    pub format: AwsFormat,
    /// Folder in this repository to write to
    #[arg(long, value_name = "FOLDER", default_value = "deploy/aws-ci")]
    pub folder: String,
    /// This repository [default: that of the git remote `origin`]
    #[arg(long, value_name = "OWNER/REPO")]
    pub repository: Option<RepoName>,
    /// Numeric id of the repository's owner [default: asked of GitHub]
    #[arg(long, value_name = "NUMBER", requires = "repository_id", value_parser = number::<u64>(1..=u64::MAX))]
    pub owner_id: Option<u64>,
    /// Number of the repository [default: asked of GitHub]
    #[arg(long, value_name = "NUMBER", requires = "owner_id", value_parser = number::<u64>(1..=u64::MAX))]
    pub repository_id: Option<u64>,
    /// Let nobody but the two roles read the cache, as for a private repository
    #[arg(long)]
    pub private: bool,
    /// The account has the OIDC provider of GitHub already
    #[arg(long)]
    pub existing_provider: bool,
    /// Replace files that exist and differ, without asking
    #[arg(long)]
    pub force: bool,
    /// Print the files to stdout and write nothing
    #[arg(long, visible_alias = "dry-run")]
    pub stdout: bool,
}

const ALLOWLIST_REVIEW_EXAMPLES: &str = "\
Examples:
  crcr init allowlist-review
  crcr init allowlist-review --approval-label crcr-approved
  crcr init allowlist-review --file ci/allowlist.yml --dry-run";

#[derive(Debug, Clone, Args)]
pub struct AllowlistReviewArgs {
    /// Path of the allowlist
    #[arg(long, value_name = "PATH", default_value = DEFAULT_FILE)]
    pub file: String,
    /// Address of the HUD whose results are the evidence for changes of level
    #[arg(long, value_name = "URL")]
    pub hud: Option<SecureUrl>,
    /// Label that promotions to L3 and L4 need
    #[arg(long, value_name = "LABEL")]
    pub approval_label: Option<String>,
    #[command(flatten)]
    pub runner: RunnerArgs,
    #[command(flatten)]
    pub init: InitArgs,
}

const TEST_STATS_EXAMPLES: &str = "\
Examples:
  crcr init test-stats
  crcr init test-stats --workflow build --workflow 'nightly tests'";

#[derive(Debug, Clone, Args)]
pub struct TestStatsArgs {
    /// Name of a workflow with tests; repeat it [default: those that `push` or `pull_request` start]
    #[arg(long = "workflow", value_name = "NAME")]
    pub workflows: Vec<String>,
    #[command(flatten)]
    pub runner: RunnerArgs,
    #[command(flatten)]
    pub init: InitArgs,
}
