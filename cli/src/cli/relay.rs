//! `crcr relay …`: the server, and tools beside it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DataFormat;

/// The server, and tools beside it.
#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Serve webhooks and reports until a signal ends it
    #[command(after_help = SERVE_HELP)]
    Serve(Box<ServeArgs>),
    /// Send stored webhook payloads to a relay, signed
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Let the relay look after its open dispatches now instead of when they are due
    #[command(after_help = "Example:\n  crcr relay sweep --store sqlite:/var/lib/crcr/crcr.db")]
    Sweep(StoreArgs),
    /// Take results from the deployed system: rows of its table, one JSON object a line
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Show deliveries and what became of them, and send again what was given up
    #[command(subcommand, after_help = DELIVERIES_EXAMPLES)]
    Deliveries(DeliveriesCommand),
    /// Show which repositories the allowlist's names stand for, and confirm one that changed
    #[command(subcommand, after_help = REPOSITORY_EXAMPLES)]
    Repository(RepositoryCommand),
}

const SERVE_HELP: &str = "\
Settings (environment; each also as NAME_FILE, the path of a file that holds it):
  GITHUB_APP_ID, GITHUB_APP_SECRET, GITHUB_APP_PRIVATE_KEY, ALLOWLIST_URL    required
  UPSTREAM_REPO            upstream repository [pytorch/pytorch]
  GITHUB_API_URL           GitHub's REST API [https://api.github.com]
  GITHUB_SERVER_URL        GitHub's pages [https://github.com]
  CRCR_CALLBACK_KEY        keys of the callback token, new first, comma list [from the App's secret]
  CRCR_OIDC_ISSUERS        token issuers, ISSUER[=JWKS URL], comma list [the one of
                           GITHUB_API_URL's GitHub, and Buildkite]
  CRCR_OIDC_AUDIENCE       audience of tokens [pytorch-cross-repo-ci-relay]
  CI_PROVIDERS_URL         mapping of other CI systems' pipelines, as ALLOWLIST_URL [none]
  CRCR_LABEL_PREFIX        labels that ask for check runs [ciflow/crcr/]
  CRCR_LANDED_LABEL        label of closed pull requests that have landed [Merged]
  CRCR_CRITERIA            what promotions and demotions ask for, YAML or JSON, as for --criteria of
                           `crcr levels review` [the ratified criteria]
  CRCR_ADMIN_TOKEN         lets operators in on the public listener [nobody]
  CRCR_ALERT_URL           told by POST when a backend turns red [none]
  INTERNAL_API_TOKEN       lets another relay send results to this HUD [nobody]
  HUD_API_URL, HUD_BOT_KEY an external HUD that gets every result too, or `off` [none]
  CRCR_HUD_DISPATCHES      whether that HUD is told of dispatches too: on or off [off]
  HUD_MAX_RETRIES          tries of a result for it after the first one [14]
  CRCR_STATUS_TTL          how long deliveries and jobs are known [35d]
  IN_PROGRESS_WARN_THRESHOLD  warn of more open dispatches than this [never]
  MAX_DISPATCH_WORKERS     tasks that are worked on at a time [32]
  RATE_LIMIT_PER_MIN       reports of one repository a minute [100]
  ALLOWLIST_TTL_SECONDS    how often the allowlist is asked for [60]
  SECRET_STORE_ARN         AWS secret: JSON of settings by name [none]

A secret may hold two values while it is changed, the new one first: one a line, or two PEM blocks. The
file of a secret is read again when it changes.

Examples:
  crcr relay serve --check
  crcr relay serve --listen 0.0.0.0:8080 --store sqlite:/var/lib/crcr/crcr.db";

const REPLAY_EXAMPLES: &str = "\
Examples:
  crcr relay replay --event pull_request opened.json
  crcr relay replay --url https://relay.example.com --event push push-1.json push-2.json

The webhook secret is read from GITHUB_APP_SECRET or GITHUB_APP_SECRET_FILE. A file's delivery id is
the SHA-256 of its bytes, so that the same file sent twice is dispatched once.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  clickhouse-client --query \"SELECT * FROM default.crcr_workflow_job FINAL FORMAT JSONEachRow\" |
    crcr relay import -
  crcr relay import --results sqlite:/var/lib/crcr/crcr.db rows.jsonl

The same rows again change nothing. A line that can't be taken is told with its number and a code,
the others are kept, and the exit code is 1.";

const DELIVERIES_EXAMPLES: &str = "\
Examples:
  crcr relay deliveries list --limit 20
  crcr relay deliveries show 72d3162e-cc78-11e3-81ab-4c9367dc0958
  crcr relay deliveries redeliver 72d3162e-cc78-11e3-81ab-4c9367dc0958 --repo acme/backend
  crcr relay deliveries redeliver --given-up
  crcr relay deliveries discard '[\"labels\",\"101090\"]'";

const REPOSITORY_EXAMPLES: &str = "\
Examples:
  crcr relay repository list
  crcr relay repository confirm acme/backend
  crcr relay repository confirm acme/backend --id 123456789

GitHub's number of a repository is pinned when the first dispatch to it is accepted. A name that is
deleted or renamed can be registered by somebody else: its dispatches and reports are refused until
an operator confirms the new number.";

/// The server's flags; each wins over its environment variable.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Try the settings out, tell everything that doesn't work, and exit
    #[arg(long)]
    pub check: bool,
    /// Where to listen [env: CRCR_LISTEN] [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Where to listen for operators, or `off` [env: CRCR_ADMIN_LISTEN] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Where results are kept: sqlite:PATH or clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE
    /// [env: CRCR_RESULTS] [default: the store]
    #[arg(long, value_name = "URL")]
    pub results: Option<String>,
    /// Results that are older are kept as sums of days [env: CRCR_RESULTS_RETENTION] [default: 400d]
    #[arg(long, value_name = "TIME")]
    pub results_retention: Option<String>,
    /// The allowlist: https://github.com/OWNER/REPO/blob/REF/PATH or file:PATH [env: ALLOWLIST_URL]
    #[arg(long, value_name = "URL")]
    pub allowlist_url: Option<String>,
    /// Address of this relay for people and downstream: check runs, comments and alerts link its
    /// pages, and each dispatch names its callback address [env: CRCR_PUBLIC_URL] [default: none]
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,
    /// Upstream repository [env: UPSTREAM_REPO] [default: pytorch/pytorch]
    #[arg(long, value_name = "OWNER/REPO")]
    pub upstream_repo: Option<String>,
    /// Refs whose pushes are dispatched, `*` for any text; repeats [env: CRCR_PUSH_REF] [default:
    /// the default branch]
    #[arg(long, value_name = "REF")]
    pub push_ref: Vec<String>,
    /// Without a report for this long a dispatch never started [env: CRCR_NEVER_STARTED_AFTER]
    /// [default: 2h]
    #[arg(long, value_name = "TIME")]
    pub never_started_after: Option<String>,
    /// Without an end for this long a job is lost [env: ZOMBIE_TIMEOUT_SECONDS] [default: 6h]
    #[arg(long, value_name = "TIME")]
    pub lost_after: Option<String>,
    /// How a silent repository at L4 ends: failure or timed_out [env: CRCR_SILENT_L4] [default:
    /// failure]
    #[arg(long, value_name = "CONCLUSION")]
    pub silent_l4: Option<String>,
    /// What a failure below L4 is shown as: real or neutral [env: CRCR_NONBLOCKING_CONCLUSION]
    /// [default: real]
    #[arg(long, value_name = "CONCLUSION")]
    pub nonblocking_conclusion: Option<String>,
    /// Whether failing check runs call their oncalls: on or off [env: CRCR_ONCALL_COMMENTS]
    /// [default: off]
    #[arg(long, value_name = "ON|OFF")]
    pub oncall_comments: Option<String>,
}

/// Where the relay's state is.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// The relay's state: sqlite:PATH [env: CRCR_STORE] [default: sqlite:crcr.db]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
}

/// What to import, and where to.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// Files of rows, `-` for stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The relay's results [env: CRCR_RESULTS, CRCR_STORE] [default: sqlite:crcr.db]
    #[arg(long, value_name = "URL")]
    pub results: Option<String>,
}

/// What to replay.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// Files with webhook payloads
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Name of their event
    #[arg(long, value_name = "NAME", default_value = "pull_request")]
    pub event: String,
    /// The relay
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
}

/// Deliveries.
#[derive(Debug, Subcommand)]
pub enum DeliveriesCommand {
    /// The newest deliveries, and what was given up
    List {
        #[command(flatten)]
        store: StoreArgs,
        /// The most deliveries
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: usize,
        /// How to print them
        #[arg(long, value_enum, default_value_t = DataFormat::Text)]
        format: DataFormat,
    },
    /// One delivery and its dispatches
    Show {
        /// The delivery's id
        id: String,
        #[command(flatten)]
        store: StoreArgs,
        /// How to print it
        #[arg(long, value_enum, default_value_t = DataFormat::Text)]
        format: DataFormat,
    },
    /// Remove a task that was given up and isn't worth another try
    Discard {
        /// The task's key, as `list` shows it
        key: String,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Send again what was given up, or couldn't be sent
    Redeliver {
        /// The id of the delivery whose dispatches are meant
        #[arg(required_unless_present = "given_up")]
        id: Option<String>,
        /// Everything that was given up: dispatches, check runs, results for the HUD
        #[arg(long, conflicts_with_all = ["id", "repo"])]
        given_up: bool,
        /// One downstream repository only
        #[arg(long, value_name = "OWNER/REPO")]
        repo: Option<String>,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Repositories that names of the allowlist stand for.
#[derive(Debug, Subcommand)]
pub enum RepositoryCommand {
    /// Every name, its number, and the number that is refused
    List {
        #[command(flatten)]
        names: PinArgs,
        /// How to print them
        #[arg(long, value_enum, default_value_t = DataFormat::Text)]
        format: DataFormat,
    },
    /// Let a name stand for another repository from now on
    Confirm {
        /// The name
        #[arg(value_name = "OWNER/REPO")]
        repo: String,
        /// The number of the new repository [default: the one that was refused]
        #[arg(long, value_name = "NUMBER")]
        id: Option<u64>,
        #[command(flatten)]
        names: PinArgs,
    },
}

/// Whose names, and where they are kept.
#[derive(Debug, Clone, Args)]
pub struct PinArgs {
    /// Upstream repository [env: UPSTREAM_REPO] [default: pytorch/pytorch]
    #[arg(long, value_name = "OWNER/REPO")]
    pub upstream_repo: Option<String>,
    #[command(flatten)]
    pub store: StoreArgs,
}
