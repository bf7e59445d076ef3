//! `crcr artifact …`: artifacts that land in S3 or, without credentials, in GitHub's own store.

use std::fmt;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

use crate::cli::{DataFormat, number};

/// What to do with an artifact.
#[derive(Debug, Subcommand)]
pub enum ArtifactCommand {
    /// Store files as an artifact: in S3 where there are credentials, else with GitHub
    #[command(after_help = UPLOAD_EXAMPLES)]
    Upload(Box<UploadArgs>),
    /// Fetch artifacts from wherever they are, verified before anything becomes visible
    #[command(after_help = DOWNLOAD_EXAMPLES)]
    Download(Box<DownloadArgs>),
    /// Merge artifacts of this run into one
    #[command(after_help = MERGE_EXAMPLES)]
    Merge(Box<MergeArgs>),
    /// Print the artifacts of a run: name, store, size, created, digest
    #[command(after_help = LIST_EXAMPLES)]
    List(Box<ListArgs>),
}

const DOWNLOAD_EXAMPLES: &str = "\
Examples:
  crcr artifact download --name wheels --path dist --s3-bucket my-artifacts
  crcr artifact download --pattern 'wheels-*' --path dist --merge-multiple true
  crcr artifact download --name logs --repository acme/app --run-id 4242

Without --name, --pattern, --artifact-ids and --locator: all artifacts of the run, a folder each.";

const MERGE_EXAMPLES: &str = "\
Examples:
  crcr artifact merge --name wheels --pattern 'wheels-*'
  crcr artifact merge --pattern 'logs-*' --separate-directories true";

const LIST_EXAMPLES: &str = "\
Examples:
  crcr artifact list --s3-bucket my-artifacts
  crcr artifact list --repository acme/app --run-id 4242 --format json";

const UPLOAD_EXAMPLES: &str = "\
Examples:
  crcr artifact upload --name wheels --path dist --s3-bucket my-artifacts
  crcr artifact upload --name logs --path '**/*.log' --path '!**/secret.log'
  crcr artifact upload --name stats --path stats.json --required false

S3 takes the artifact when there are credentials and a bucket. Without, or when S3 refuses, GitHub
does: that needs the job's runtime token, which the action `upload-artifact-with-fallback` hands
over as CRCR_RUNTIME_TOKEN and CRCR_RESULTS_URL.";

/// Where S3 is and who asks; the same for every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "S3")]
pub struct S3Args {
    /// Bucket of the artifacts, or the ARN of an access point; without one, only GitHub's store is used
    #[arg(long, value_name = "BUCKET")]
    pub s3_bucket: Option<String>,
    /// Folder of the artifact; `{owner}`, `{repo}`, `{run_id}`, `{run_attempt}`, `{job}` and
    /// `{name}` are filled in [default: {owner}/{repo}/{run_id}/{name}]
    #[arg(long, value_name = "TEMPLATE")]
    pub s3_prefix: Option<String>,
    /// Region of the bucket [default: AWS_REGION, AWS_DEFAULT_REGION, or what the bucket says]
    #[arg(long, value_name = "REGION")]
    pub aws_region: Option<String>,
    /// URL of a server that speaks S3 [default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon's]
    #[arg(long, value_name = "URL")]
    pub s3_endpoint: Option<String>,
    /// Who pays for requests to the bucket, when its owner doesn't
    #[arg(long, value_enum, value_name = "WHO")]
    pub s3_request_payer: Option<RequestPayer>,
    /// Whose credentials [default: CRCR_AUTH_MODE, then `env` where AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY are set, then `anonymous`]
    #[arg(long, value_enum, value_name = "MODE")]
    pub auth_mode: Option<AuthArg>,
}

/// Who pays for requests, in S3's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RequestPayer {
    /// The account of the credentials
    Requester,
}

/// What new objects in the bucket get; a bucket's policy may demand it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "S3")]
pub struct S3ObjectArgs {
    /// Canned ACL of new objects, such as `bucket-owner-full-control`
    #[arg(long, value_name = "ACL")]
    pub s3_acl: Option<String>,
    /// Encryption of new objects: `AES256`, `aws:kms` or `aws:kms:dsse` [default: the bucket's]
    #[arg(long, value_name = "ALGORITHM")]
    pub s3_sse: Option<String>,
    /// KMS key of new objects, with `--s3-sse aws:kms`: its id or its ARN
    #[arg(long, value_name = "KEY")]
    pub s3_sse_kms_key_id: Option<String>,
    /// Storage class of new objects, such as `STANDARD_IA`
    #[arg(long, value_name = "CLASS")]
    pub s3_storage_class: Option<String>,
}

/// Whose credentials S3 sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuthArg {
    /// Those that `crcr oidc configure` exported; where its session has the default name and no
    /// policies, and the job may mint tokens, they are made anew when they run out
    Oidc,
    /// The AWS_* variables of this process
    Env,
    /// Whatever the machine has: profiles, container and instance roles
    Ambient,
    /// Nobody's: requests aren't signed
    Anonymous,
}

/// The inputs of `upload-artifact-with-fallback`.
#[derive(Debug, Clone, Args)]
pub struct UploadArgs {
    /// Name of the artifact, unique in the run [default: artifact; with `--archive none`, the
    /// name of the one file]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// File, folder or glob to upload; repeats, or one a line; `!` excludes, the last match wins
    #[arg(long, value_name = "PATH", allow_hyphen_values = true)]
    pub path: Vec<String>,
    /// What to do when a line of `--path` matches nothing, or what it matches can't be read
    #[arg(long, value_enum, default_value_t = NoFiles::Warn, value_name = "WHAT")]
    pub if_no_files_found: NoFiles,
    /// Days to keep the artifact, 1 to 90; 0 is the store's own default
    #[arg(long, value_name = "DAYS", default_value_t = 0, value_parser = number::<u32>(0..=400))]
    pub retention_days: u32,
    /// `auto` (fast, and stored where it doesn't shrink) or 0 (stored) to 9 (smallest)
    #[arg(long, value_name = "LEVEL", default_value = "auto", value_parser = compression_level)]
    pub compression_level: CompressionLevel,
    /// Replace an artifact of the same name that this attempt of the run has stored already
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub overwrite: bool,
    /// Take hidden files, and files in hidden folders, too
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub include_hidden_files: bool,
    /// What is stored for a symbolic link; a link that leads out of the artifact is followed in any
    /// case
    #[arg(long, value_enum, default_value_t = SymlinksArg::Follow, value_name = "HOW")]
    pub symlinks: SymlinksArg,
    /// One zip, or the files as they are (with GitHub, that is for a single file of the artifact's
    /// name)
    #[arg(long, value_enum, default_value_t = ArchiveArg::Zip, value_name = "HOW")]
    pub archive: ArchiveArg,
    #[command(flatten)]
    pub s3: S3Args,
    #[command(flatten)]
    pub s3_objects: S3ObjectArgs,
    /// The same as `--aws-region`, as upload-artifact-s3 calls it
    #[arg(long, value_name = "REGION", conflicts_with = "aws_region")]
    pub region: Option<String>,
    /// Checksum by which S3 verifies what it receives
    #[arg(long, value_enum, default_value_t = S3Checksum::Crc64nvme, value_name = "CHECKSUM")]
    pub s3_checksum: S3Checksum,
    /// Make `artifact-url` on S3 an address that anybody can download from for so many seconds, at
    /// most 604800; 0 is the address in the AWS console
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = number::<u32>(0..=604_800))]
    pub s3_presign: u32,
    /// When GitHub's store is used
    #[arg(long, value_enum, default_value_t = FallbackArg::Auto, value_name = "WHEN")]
    pub fallback: FallbackArg,
    /// Total size of files that may go to GitHub's store when S3 fails, such as `500MB` or `2GiB`;
    /// with more the step fails [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub fallback_max_size: Option<String>,
    /// `false`: the run can do without the artifact; what goes wrong is a warning, and the step
    /// doesn't fail
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub required: bool,
    /// Also store the locator as a GitHub artifact, `crcr-locator-NAME`
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub publish_locator: bool,
    /// Whether GitHub's full storage fails the step
    #[arg(long, value_enum, default_value_t = OnQuota::Fail, value_name = "WHAT")]
    pub on_quota: OnQuota,
}

/// The inputs of `upload-artifact-with-fallback/merge`.
#[derive(Debug, Clone, Args)]
pub struct MergeArgs {
    /// Name of the new artifact
    #[arg(long, value_name = "NAME", default_value = "merged-artifacts")]
    pub name: String,
    /// Glob of the names of artifacts to merge
    #[arg(long, value_name = "GLOB", default_value = "*")]
    pub pattern: String,
    /// Give each artifact a folder of its name in the new one
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub separate_directories: bool,
    /// Delete the merged artifacts once the new one is stored
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub delete_merged: bool,
    /// Days to keep the artifact, 1 to 90; 0 is the store's own default
    #[arg(long, value_name = "DAYS", default_value_t = 0, value_parser = number::<u32>(0..=400))]
    pub retention_days: u32,
    /// `auto` (fast, and stored where it doesn't shrink) or 0 (stored) to 9 (smallest)
    #[arg(long, value_name = "LEVEL", default_value = "auto", value_parser = compression_level)]
    pub compression_level: CompressionLevel,
    /// Take hidden files, and files in hidden folders, too
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub include_hidden_files: bool,
    #[command(flatten)]
    pub s3: S3Args,
    #[command(flatten)]
    pub s3_objects: S3ObjectArgs,
    /// Checksum by which S3 verifies what it receives
    #[arg(long, value_enum, default_value_t = S3Checksum::Crc64nvme, value_name = "CHECKSUM")]
    pub s3_checksum: S3Checksum,
}

/// What to do when no file is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NoFiles {
    /// Print a warning and go on
    Warn,
    /// Fail the step
    Error,
    /// Go on silently
    Ignore,
}

/// What is stored for a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SymlinksArg {
    /// What it leads to
    Follow,
    /// The link itself; needs `--archive zip`
    Keep,
}

/// What to do when the storage is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnQuota {
    /// Fail the step
    Fail,
    /// Print a warning and go on without the artifact
    Warn,
}

/// How the files are stored; `true` and `false` are the words of upload-artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArchiveArg {
    /// One zip with all files
    #[value(alias = "true")]
    Zip,
    /// The files as they are
    #[value(alias = "false")]
    None,
}

/// The checksum by which S3 verifies what it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum S3Checksum {
    /// CRC-64/NVME, which S3 itself prefers
    Crc64nvme,
    /// None, for servers that refuse the header
    None,
}

/// When GitHub's store is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FallbackArg {
    /// When S3 can't take it
    Auto,
    /// Never: S3, or the step fails
    Never,
    /// Always, without trying S3
    Always,
}

/// How hard to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionLevel {
    /// Fast, and stored where it doesn't shrink.
    Auto,
    /// From 0 (stored) to 9.
    Fixed(u8),
}

fn compression_level(text: &str) -> Result<CompressionLevel, String> {
    match text {
        "auto" => Ok(CompressionLevel::Auto),
        digit => match digit.parse() {
            Ok(level @ 0..=9) => Ok(CompressionLevel::Fixed(level)),
            _ => Err("it is `auto` or a digit from 0 to 9".to_owned()),
        },
    }
}

/// Which run's artifacts, and who asks GitHub.
#[derive(Clone, Args)]
pub struct RunArgs {
    /// Token with `actions: read`, for artifacts of another run or repository, and for downloads in a
    /// privileged event [default: GITHUB_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub github_token: Option<String>,
    /// Repository of the run, as `owner/repo` [default: this one]
    #[arg(long, value_name = "REPOSITORY")]
    pub repository: Option<String>,
    /// Number of the run [default: this one]
    #[arg(long, value_name = "RUN")]
    pub run_id: Option<u64>,
}

/// The inputs of `download-artifact-with-fallback`.
#[derive(Debug, Clone, Args)]
pub struct DownloadArgs {
    /// Name of the artifact
    #[arg(long, value_name = "NAME", conflicts_with = "artifact_ids")]
    pub name: Option<String>,
    /// Folder to unpack into [default: the working directory; in a privileged event a fresh
    /// temporary folder]
    #[arg(long, value_name = "FOLDER")]
    pub path: Option<String>,
    /// Glob of names; a `!` before it takes all others. Beside `--name` and `--artifact-ids` it has
    /// no effect
    #[arg(long, value_name = "GLOB")]
    pub pattern: Option<String>,
    /// Numbers of artifacts at GitHub; repeats, or several with commas or one a line
    #[arg(long, value_name = "NUMBERS")]
    pub artifact_ids: Vec<String>,
    /// Unpack several artifacts into one folder, in order, instead of a folder each
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub merge_multiple: bool,
    /// Keep each archive as it is, as NAME.zip
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub skip_decompress: bool,
    /// `false`: the job can do without the artifact; what goes wrong is a warning, and the step
    /// doesn't fail
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub required: bool,
    /// What to do when two artifacts hold one path
    #[arg(long, value_enum, default_value_t = OnCollisionArg::Error, value_name = "WHAT")]
    pub on_collision: OnCollisionArg,
    /// What to do when an artifact isn't what its digest says
    #[arg(long, value_enum, default_value_t = DigestMismatch::Error, value_name = "WHAT")]
    pub digest_mismatch: DigestMismatch,
    /// Output `locator` of the upload, or the path of a file with it: where to look
    #[arg(long, value_name = "JSON", conflicts_with_all = ["pattern", "artifact_ids"])]
    pub locator: Option<String>,
    /// In a privileged event, or of another run, take what a stranger's code may have made
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub allow_fork: bool,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub s3: S3Args,
}

/// The flags of `crcr artifact list`.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// Glob of names; a `!` before it takes all others
    #[arg(long, value_name = "GLOB")]
    pub pattern: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub s3: S3Args,
    /// How to print: a table, or an array of locators
    #[arg(long, value_enum, default_value_t = DataFormat::Text, value_name = "FORMAT")]
    pub format: DataFormat,
}

/// What to do when two artifacts hold one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnCollisionArg {
    /// Fail, with nothing unpacked
    Error,
    /// Take the later artifact's file
    Last,
}

/// What to do when an artifact isn't what its digest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DigestMismatch {
    /// Unpack it silently
    Ignore,
    /// Unpack it, and say so in the log
    Info,
    /// Unpack it, and print a warning
    Warn,
    /// Fail, with nothing unpacked
    Error,
}

impl fmt::Debug for RunArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { github_token: _, repository, run_id } = self;
        write!(f, "run {run_id:?} of {repository:?}")
    }
}
