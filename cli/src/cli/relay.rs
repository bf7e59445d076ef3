//! `crcr relay …`

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use crcr_domain::RepoName;
use jiff::Timestamp;

use super::{DataFormat, number, time};

/// A group of which exactly one is needed. If both are missing, clap's message names both, which it doesn't do for
/// `required_unless_present`.
fn one_of(args: [&'static str; 2]) -> ArgGroup {
    ArgGroup::new("one_of").args(args).required(true)
}

#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Serve webhooks and reports until a signal stops it
    #[command(after_help = SERVE_HELP)]
    Serve(Box<ServeArgs>),
    /// Ask a running relay whether it is ready
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(HealthArgs),
    /// Send stored webhooks to a relay, or archived ones to its results
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Make the relay check its open dispatches now
    #[command(after_help = "Example:\n  crcr relay sweep --store sqlite:/var/lib/crcr/crcr.db")]
    Sweep(StoreArgs),
    /// Import results of the deployed relay
    ///
    /// They are rows of its table, one JSON object per line.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Ask GitHub for the webhooks that it couldn't deliver
    ///
    /// The running relay does so every ten minutes.
    #[command(after_help = RECONCILE_EXAMPLES)]
    Reconcile(ReconcileArgs),
    /// Check the relay's promises in a model of its world, with faults
    ///
    /// The relay runs against models of GitHub and of its store. A seed chooses the faults.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// Copy the data of a running relay to a new folder, and check it
    #[command(after_help = BACKUP_EXAMPLES)]
    Backup(BackupArgs),
    /// Put a backup back, or only check it
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(RestoreArgs),
    /// Estimate processor, memory, disk and API calls for a load
    #[command(after_help = SIZE_EXAMPLES)]
    Size(SizeArgs),
    /// Show deliveries and their dispatches, and redeliver dead letters
    #[command(subcommand, after_help = DELIVERIES_EXAMPLES)]
    Deliveries(DeliveriesCommand),
    /// Show which repository a name is pinned to; confirm a changed one
    #[command(subcommand, after_help = REPOSITORY_EXAMPLES)]
    Repository(RepositoryCommand),
}

const SERVE_HELP: &str = "\
Settings (environment; each also as NAME_FILE, the path of a file with the value):
  GITHUB_APP_ID, GITHUB_APP_SECRET, GITHUB_APP_PRIVATE_KEY, ALLOWLIST_URL    required
  UPSTREAM_REPO            upstream repository [pytorch/pytorch]
  GITHUB_API_URL           GitHub's REST API [https://api.github.com]
  GITHUB_SERVER_URL        GitHub's pages [those of GITHUB_API_URL's GitHub]
  CRCR_CALLBACK_KEY        callback token's keys, newest first, comma list, 16 characters at least
                           [made from GITHUB_APP_SECRET]
  CRCR_OIDC_ISSUERS        token issuers, ISSUER[=JWKS URL], comma list [the one of
                           GITHUB_API_URL's GitHub, and Buildkite]
  CRCR_OIDC_AUDIENCE       audience of tokens [pytorch-cross-repo-ci-relay]
  CI_PROVIDERS_URL         map of other CI systems' pipelines, format as ALLOWLIST_URL, or `off`
                           [for PyTorch that of its test-infra, else none]
  CRCR_LABEL_PREFIX        prefix of the labels that ask for check runs [ciflow/crcr/]
  CRCR_LANDED_LABEL        label of closed pull requests that have landed [Merged]
  CRCR_DEMOTION_BRANCH     prefix of the branches of demotions upstream [crcr-demotion]
  CRCR_WEBHOOK_EVENTS      events whose webhooks are rows in the results, comma list, `all` or `off`
                           [workflow_job,workflow_run,push,pull_request]
  CRCR_JOB_LOGS            explain failed jobs from their logs: on (of public repositories), all
                           (with rows of private ones' webhooks, too), or off [on]
  CRCR_RUN_WINDOW          how long GitHub may take to create the runs of a dispatch [60s]
  CRCR_CRITERIA            criteria of promotions and demotions, YAML or JSON, as for --criteria of
                           `crcr levels review` [the ratified criteria]
  CRCR_BREAKER_FAILURES    failures of a backend's infrastructure in a row, after which they are
                           neutral and only trials are dispatched, or `off` [5]
  CRCR_EXPECTED_CONCLUSIONS  jobs that fail on purpose, OWNER/REPO:JOB=CONCLUSION, comma list;
                           `*` in JOB is any text; `off` for none [for PyTorch its canary's]
  CRCR_ADMIN_TOKEN         token for operators on the public listener [none]
  CRCR_ALERT_URL           gets a POST when a backend starts to fail [none]
  CRCR_ALERT_FEEDS         feeds of branches and tests that are posted, too, comma list [none]
  INTERNAL_API_TOKEN       token for another relay to send results to this HUD [none]
  HUD_API_URL, HUD_BOT_KEY an external HUD that also gets every result, or `off` [none]
  CRCR_HUD_DISPATCHES      whether that HUD also gets dispatches: on or off [off]
  HUD_MAX_RETRIES          retries of a result for it [during an outage for a day]
  CRCR_STATUS_TTL          how long deliveries and jobs are kept [35d]
  IN_PROGRESS_WARN_THRESHOLD  warn about more open dispatches than this [never]
  MAX_DISPATCH_WORKERS     dispatches that are sent at the same time [32]
  RATE_LIMIT_PER_MIN       runs of a repository that may begin to report in a minute [100]
  ALLOWLIST_TTL_SECONDS    how often the allowlist is fetched [60]
  CRCR_SEVERAL_MACHINES    whether relays on several machines share CRCR_STORE and CRCR_RESULTS: on,
                           which refuses files of one machine, or off [off]
  REDIS_ENDPOINT, REDIS_LOGIN  without CRCR_STORE: HOST[:PORT], and USER:PASSWORD or PASSWORD
  CRCR_LOG                 what is logged, as TARGET=LEVEL, comma list; always JSON lines
                           [info of crcr, warnings of its libraries]
  OTEL_EXPORTER_OTLP_ENDPOINT  where traces go, such as http://127.0.0.1:4318 [nowhere]
  OTEL_EXPORTER_OTLP_HEADERS   headers for it, such as a token: NAME=VALUE, comma list [none]
  SECRET_STORE_ARN         AWS secret: JSON of settings by name [none]

During a rotation a secret may have two values, the new one first: one per line, or two PEM blocks.
The file of a secret is read again when it changes.

Examples:
  crcr relay serve --check
  crcr relay serve --listen 0.0.0.0:8080 --store sqlite:/var/lib/crcr/crcr.db";

const HEALTH_EXAMPLES: &str = "\
Examples:
  crcr relay health
  crcr relay health --url https://relay.example.com
  crcr relay health --url http://127.0.0.1:8081 --format json

It prints one line. Exit code 0: ready. 1: it answers, isn't ready, and says why. 2: no answer, or not from a
relay. The operators' listener (http://127.0.0.1:8081) says more than the public one. A relay on this machine
is also sent CRCR_ADMIN_TOKEN or CRCR_ADMIN_TOKEN_FILE, if it is set, and then says everything.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  crcr relay replay --event pull_request opened.json
  crcr relay replay --url https://relay.example.com --event push push.json
  crcr relay replay --from 2026-10-01T00:00Z --archive s3://ci/webhooks

An archived webhook dispatches nothing: it becomes a row of the results again. Replaying it twice, or beside
a running relay, changes nothing.

The webhook secret is read from GITHUB_APP_SECRET or GITHUB_APP_SECRET_FILE. A file's delivery id is
the SHA-256 of its bytes, so that the same file sent twice is dispatched once.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  clickhouse-client --query \"SELECT * FROM default.crcr_workflow_job FINAL
    FORMAT JSONEachRow\" | crcr relay import -
  crcr relay import --results sqlite:/var/lib/crcr/crcr.db rows.jsonl

Importing the same rows again changes nothing. A line that can't be imported is reported with its
number and a code; the other lines are imported, and the exit code is 1.";

const RECONCILE_EXAMPLES: &str = "\
Examples:
  crcr relay reconcile --store sqlite:/var/lib/crcr/crcr.db
  crcr relay reconcile --format json

It needs the settings of `crcr relay serve`. The App's log of deliveries is read back to where everything is
settled, at most three days. What failed and isn't in the store is asked for again; the relay has to run to
receive it.";

const BACKUP_EXAMPLES: &str = "\
Examples:
  crcr relay backup /backups/2026-11-25 --store sqlite:/var/lib/crcr/crcr.db
  crcr relay backup /backups/2026-11-25 --store redis://127.0.0.1:6379 \\
    --results sqlite:results.db

Run it with the relay's settings: what they don't name isn't copied. The copy of a SQLite file has everything that
was acknowledged before. A Redis server writes a snapshot, which is copied if it is on this machine. Results in
ClickHouse and the archive of webhooks aren't copied: the output says what to do about them.";

const RESTORE_EXAMPLES: &str = "\
Examples:
  crcr relay restore /backups/2026-11-25 --check
  crcr relay restore /backups/2026-11-25 --store sqlite:/var/lib/crcr/crcr.db
  crcr relay restore --since 2026-11-25T09:00Z --store redis://127.0.0.1:6379

Stop every relay that uses the store first. A file that exists is never overwritten. Redis has to be running with the
backup's snapshot. When the relay starts again, it asks GitHub for the webhooks since the backup, sends dispatches
again that were open, and evaluates every check run again.";

const SIZE_EXAMPLES: &str = "\
Examples:
  crcr relay size --pulls 1000 --backends 50
  crcr relay size --pulls 3000 --backends 20 --jobs 12 --check-runs 3

From the figures of docs/benchmarks.md. docs/operating/sizing.md has the formulas, and what each form of deployment
costs.";

const SIMULATE_EXAMPLES: &str = "\
Examples:
  crcr relay simulate --seeds 1000
  crcr relay simulate --seed 42 --steps 200
  crcr relay simulate --hours 24

It connects to nothing but the server of `--store redis`, and writes only to a temporary folder. The same seed does the
same in the same version of crcr. A broken promise is printed with its last steps and the command that repeats it, and
the exit code is 1. What is simulated and what isn't: docs/simulation.md.";

const DELIVERIES_EXAMPLES: &str = "\
Examples:
  crcr relay deliveries list --limit 20
  crcr relay deliveries show 72d3162e-cc78-11e3-81ab-4c9367dc0958
  crcr relay deliveries redeliver 72d3162e-cc78-11e3-81ab-4c9367dc0958
  crcr relay deliveries redeliver --given-up
  crcr relay deliveries discard '[\"labels\",\"101090\"]'";

const REPOSITORY_EXAMPLES: &str = "\
Examples:
  crcr relay repository list
  crcr relay repository confirm acme/backend
  crcr relay repository confirm acme/backend --id 123456789

The number that GitHub gives a repository is pinned with the first dispatch to it. After a repository is
deleted or renamed, somebody else can register its name; dispatches and reports are refused until an
operator confirms the new number.";

/// Each flag takes precedence over its environment variable.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Test the settings, list everything that doesn't work, and exit
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
    /// Older results are rolled up into daily sums [env: CRCR_RESULTS_RETENTION] [default: 400d]
    #[arg(long, value_name = "TIME")]
    pub results_retention: Option<String>,
    /// Keep every webhook here: file:FOLDER or s3://BUCKET/PREFIX [env: CRCR_ARCHIVE] [default: none]
    #[arg(long, value_name = "URL")]
    pub archive: Option<String>,
    /// Rules that explain the logs of failed jobs, as for `crcr logs classify`; read again when the file
    /// changes [env: CRCR_LOG_RULES] [default: those of `crcr logs rules`]
    #[arg(long, value_name = "FILE")]
    pub log_rules: Option<String>,
    /// The allowlist: https://github.com/OWNER/REPO/blob/REF/PATH or file:PATH [env: ALLOWLIST_URL]
    #[arg(long, value_name = "URL")]
    pub allowlist_url: Option<String>,
    /// Public address of this relay: check runs, comments and alerts link to it, and dispatches name
    /// it as the callback address [env: CRCR_PUBLIC_URL] [default: none]
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,
    /// Upstream repository [env: UPSTREAM_REPO] [default: pytorch/pytorch]
    #[arg(long, value_name = "OWNER/REPO")]
    pub upstream_repo: Option<String>,
    /// Refs whose pushes are dispatched, `*` matches any text, but branches of the merge queue match only a pattern that
    /// begins with `gh-readonly-queue/`; repeats [env: CRCR_PUSH_REF] [default: the default branch]
    #[arg(long, value_name = "REF")]
    pub push_ref: Vec<String>,
    /// A dispatch without a report for this long counts as never started [env: CRCR_NEVER_STARTED_AFTER]
    /// [default: 2h]
    #[arg(long, value_name = "TIME")]
    pub never_started_after: Option<String>,
    /// A job that doesn't end within this time counts as lost [env: ZOMBIE_TIMEOUT_SECONDS] [default: 6h]
    #[arg(long, value_name = "TIME")]
    pub lost_after: Option<String>,
    /// Conclusion of an L4 repository that doesn't report: failure or timed_out [env: CRCR_SILENT_L4] [default:
    /// failure]
    #[arg(long, value_name = "CONCLUSION")]
    pub silent_l4: Option<String>,
    /// How a failure below L4 is shown: real or neutral [env: CRCR_NONBLOCKING_CONCLUSION]
    /// [default: real]
    #[arg(long, value_name = "CONCLUSION")]
    pub nonblocking_conclusion: Option<String>,
    /// Whether failing check runs mention their oncalls: on or off [env: CRCR_ONCALL_COMMENTS]
    /// [default: off]
    #[arg(long, value_name = "ON|OFF")]
    pub oncall_comments: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct HealthArgs {
    /// Address of the relay [default: CRCR_LISTEN on this machine, or http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// One sentence, or all that the relay says
    #[arg(long, value_enum, default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// The relay's state: sqlite:PATH, rediss://HOST or redis://HOST [env: CRCR_STORE]
    /// [default: sqlite:crcr.db]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct ReconcileArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct SizeArgs {
    /// Upstream pull requests a week
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=1_000_000))]
    pub pulls: u32,
    /// Downstream repositories that get them
    #[arg(long, value_name = "M", value_parser = number::<u32>(1..=100_000))]
    pub backends: u32,
    /// Commits that a pull request has in its life
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = number::<u32>(1..=1000))]
    pub heads: u32,
    /// Jobs that report for one dispatch
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = number::<u32>(1..=1000))]
    pub jobs: u32,
    /// Backends with check runs, L3 and L4 [default: a tenth of them]
    #[arg(long, value_name = "COUNT")]
    pub check_runs: Option<u32>,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
pub struct BackupArgs {
    /// The folder to make; it must not exist
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    /// The relay's results [env: CRCR_RESULTS] [default: the store]
    #[arg(long, value_name = "URL")]
    pub results: Option<String>,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Args)]
#[command(group = one_of(["folder", "since"]))]
pub struct RestoreArgs {
    /// The folder that `crcr relay backup` made
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Only check that the backup is whole and that this crcr can read it
    #[arg(long)]
    pub check: bool,
    /// Instead of a backup: the store is there already and lacks what came since then, because a server lost data or
    /// was restored by other means
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["check", "results"])]
    pub since: Option<Timestamp>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Where the results go, if they were in a file of their own [env: CRCR_RESULTS]
    #[arg(long, value_name = "URL")]
    pub results: Option<String>,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = DataFormat::Text)]
    pub format: DataFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum SimulatedStore {
    #[default]
    Memory,
    Sqlite,
    Redis,
}

#[derive(Debug, Clone, Args)]
pub struct SimulateArgs {
    /// The first seed; it decides everything that is left to chance
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// How many steps with faults each seed has
    #[arg(long, value_name = "M", default_value_t = 200)]
    pub steps: usize,
    /// Simulate hours of a large upstream for each seed, and compare the end with a plain model
    #[arg(long, conflicts_with = "steps", value_parser = number::<u32>(1..=240))]
    pub hours: Option<u32>,
    /// How many seeds to run
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = number::<u64>(1..=u64::MAX))]
    pub seeds: u64,
    /// Where the state of the simulated relay is: in memory, on SQLite, whose disk loses its power, or on a
    /// `redis-server` of this machine, which is killed
    #[arg(long, value_enum, default_value_t)]
    pub store: SimulatedStore,
    /// How many of the last steps are printed when a promise is broken
    #[arg(long, value_name = "LINES", default_value_t = 80)]
    pub trace: usize,
}

#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// Files of rows, `-` for stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The relay's results [env: CRCR_RESULTS, CRCR_STORE] [default: sqlite:crcr.db]
    #[arg(long, value_name = "URL")]
    pub results: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(group = one_of(["files", "from"]))]
pub struct ReplayArgs {
    /// Files with webhook payloads, to be sent to a relay
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Name of the webhook event [default: pull_request for files, all events for the archive]
    #[arg(long, value_name = "NAME")]
    pub event: Option<String>,
    /// Address of the relay that files are sent to
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Instead of files: write the archive's webhooks that were received since then to the results
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from: Option<Timestamp>,
    /// Only webhooks that were received before [default: now]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "from")]
    pub until: Option<Timestamp>,
    /// The archive: file:FOLDER or s3://BUCKET/PREFIX [env: CRCR_ARCHIVE]
    #[arg(long, value_name = "URL", requires = "from")]
    pub archive: Option<String>,
    /// The relay's results [env: CRCR_RESULTS, CRCR_STORE] [default: sqlite:crcr.db]
    #[arg(long, value_name = "URL", requires = "from")]
    pub results: Option<String>,
    /// Read the archive and write nothing
    #[arg(long, requires = "from")]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum DeliveriesCommand {
    /// List the newest deliveries, and the dead letters
    #[command(after_help = "Example:\n  crcr relay deliveries list --limit 20")]
    List {
        #[command(flatten)]
        store: StoreArgs,
        /// Maximum number of deliveries
        #[arg(long, default_value_t = 50, value_name = "N", value_parser = number::<usize>(1..=u64::MAX))]
        limit: usize,
        /// For people or for programs
        #[arg(long, value_enum, default_value_t = DataFormat::Text)]
        format: DataFormat,
    },
    /// Show one delivery and its dispatches
    #[command(
        after_help = "Example:\n  crcr relay deliveries show 72d3162e-cc78-11e3-81ab-4c9367dc0958"
    )]
    Show {
        /// The delivery's id, which GitHub sends as `X-GitHub-Delivery`
        id: String,
        #[command(flatten)]
        store: StoreArgs,
        /// For people or for programs
        #[arg(long, value_enum, default_value_t = DataFormat::Text)]
        format: DataFormat,
    },
    /// Delete a dead letter
    #[command(after_help = "Example:\n  crcr relay deliveries discard '[\"labels\",\"101090\"]'")]
    #[command(group = one_of(["key", "repo"]))]
    Discard {
        /// Key of the task, as `list` shows it
        key: Option<String>,
        /// All dead letters of this downstream repository
        #[arg(long, value_name = "OWNER/REPO")]
        repo: Option<RepoName>,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Redeliver dead letters and dispatches that could not be sent
    #[command(after_help = "Example:\n  crcr relay deliveries redeliver --given-up")]
    #[command(group = one_of(["id", "given_up"]))]
    Redeliver {
        /// Redeliver the dispatches of this delivery
        id: Option<String>,
        /// Redeliver all dead letters, but not dispatches of events older than a day
        #[arg(long, conflicts_with = "repo")]
        given_up: bool,
        /// Only to this downstream repository
        #[arg(long, value_name = "OWNER/REPO")]
        repo: Option<RepoName>,
        #[command(flatten)]
        store: StoreArgs,
    },
}

#[derive(Debug, Subcommand)]
pub enum RepositoryCommand {
    /// List every name, the number it is pinned to, and the number that is refused
    #[command(after_help = "Example:\n  crcr relay repository list")]
    List {
        #[command(flatten)]
        names: PinArgs,
        /// For people or for programs
        #[arg(long, value_enum, default_value_t = DataFormat::Text)]
        format: DataFormat,
    },
    /// Pin a name to another repository
    #[command(after_help = "Example:\n  crcr relay repository confirm acme/backend --id 123456789")]
    Confirm {
        /// Name in the allowlist
        #[arg(value_name = "OWNER/REPO")]
        repo: RepoName,
        /// Number of the new repository [default: the one that is refused]
        #[arg(long, value_name = "NUMBER", value_parser = number::<u64>(1..=u64::MAX))]
        id: Option<u64>,
        #[command(flatten)]
        names: PinArgs,
    },
}

#[derive(Debug, Clone, Args)]
pub struct PinArgs {
    /// Upstream repository [env: UPSTREAM_REPO] [default: pytorch/pytorch]
    #[arg(long, value_name = "OWNER/REPO")]
    pub upstream_repo: Option<String>,
    #[command(flatten)]
    pub store: StoreArgs,
}
