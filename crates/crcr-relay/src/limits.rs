//! All limits of the relay. Sizes are in bytes.

use std::time::Duration;

use crcr_github::http::RetryPolicy;

/// The largest webhook that GitHub sends: <https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap>
pub const WEBHOOK_BYTES: usize = 25 * 1024 * 1024;
/// As large as the deployed HUD takes a result. A thousand failing tests with their stack traces can have more than 1 MiB.
pub(crate) const CALLBACK_BYTES: usize = FORWARD_BYTES;
pub(crate) const ADMIN_BYTES: usize = 64 * 1024;
/// The largest result from another relay, and to an external HUD.
pub(crate) const FORWARD_BYTES: usize = 2 * 1024 * 1024;
/// How many bytes of [`FORWARD_BYTES`] the fields around a report may take.
pub(crate) const FORWARD_ENVELOPE_BYTES: usize = 1024;
pub(crate) const ALLOWLIST_BYTES: usize = 1024 * 1024;
/// The memory of all bodies together: eight of the largest webhooks, or all [`MAX_CONNECTIONS`] with 256 KiB.
pub(crate) const BODY_MEMORY_BYTES: usize = 8 * WEBHOOK_BYTES;
pub(crate) const HEAD_BYTES: usize = 64 * 1024;
/// How long a connection may be idle, or take to send a request's head. Load balancers close an idle
/// connection after 60 s. If the relay closed it first, a request could be lost.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a request may take, including its body.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Open connections of one listener. Together with the relay's own files they stay below the usual limit
/// of 1,024.
pub(crate) const MAX_CONNECTIONS: usize = 800;
/// Files that the relay opens itself, at most: of its stores, connections to servers, and operators' ones.
pub(crate) const OWN_FILES: usize = 224;
/// A connection is closed when the client doesn't read for this long.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The minimal length of the admin token and of a callback key, which makes them infeasible to guess.
pub(crate) const SECRET_CHARS: usize = 16;
/// After this many wrong admin tokens in a minute, from all clients together, further ones are refused
/// without a check.
pub(crate) const WRONG_TOKENS: u32 = 10;
/// How long `/readyz` relies on its last successful write to the store, and waits for the next one.
pub(crate) const READINESS_PERIOD: Duration = Duration::from_secs(5);
/// How long the first page relies on what it found wrong with the relay: anybody can ask for it.
pub(crate) const WARNINGS_PERIOD: Duration = Duration::from_secs(30);
/// How long `/readyz` relies on a write that failed.
pub(crate) const FAILED_READINESS_PERIOD: Duration = Duration::from_secs(1);
/// Open connections of the operators' listener.
pub(crate) const ADMIN_CONNECTIONS: usize = 50;
/// A connection of this age is closed after its current request, so that none is held forever.
pub(crate) const CONNECTION_LIFE: Duration = Duration::from_secs(3600);
/// The longest `X-GitHub-Delivery`, in characters.
pub(crate) const DELIVERY_CHARS: usize = 100;
/// The largest webhook in a `client_payload`, in bytes, with `<`, `>` and `&` counted as six. GitHub
/// accepts 65,535 characters; the rest is for the delivery, the callback token and the callback URL.
/// <https://docs.github.com/en/rest/repos/repos#create-a-repository-dispatch-event>
pub(crate) const PAYLOAD_BYTES: usize = 60_000;

/// How many reports one run may send at once, in one of its attempts: the start and the end of four full
/// matrices of 256 jobs. Then it gets as many a minute as the repository gets runs.
pub(crate) const REPORTS_PER_RUN: u64 = 2048;
/// How many reports of one repository are recorded on a day. Each takes about 3 KB in the store.
pub(crate) const REPORTS_PER_DAY: u64 = 150_000;
/// How many bytes of texts, such as those of failing tests, are kept for one repository and day.
pub(crate) const TEXT_BYTES_PER_DAY: u64 = 256 << 20;
/// How many bytes of reports go to the external HUD as they came, for one repository and day. If it is away, they wait
/// in the queue.
pub(crate) const FORWARDED_BYTES_PER_DAY: u64 = 256 << 20;
/// The longest value that the external HUD still gets of a report after these bytes are used up, as JSON.
pub(crate) const FORWARDED_VALUE_BYTES: usize = 300;
/// The longest `Retry-After` of a caller who is over a limit.
pub(crate) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// How many jobs of one backend have check runs of their own on one commit. Further ones are counted in the
/// backend's.
pub(crate) const JOB_CHECK_RUNS: usize = 64;
/// The longest address that a check run links to. GitHub documents no limit.
pub(crate) const DETAILS_URL_BYTES: usize = 1024;
/// A backend's `.github/crcr.yml` is read again when something is dispatched this long after the last time.
pub(crate) const BACKEND_FILE_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// How many times an hour the file of one backend is read, however often it is pushed.
pub(crate) const BACKEND_FILE_CALLS: u64 = 30;
/// The names of a pull request's changed files, in bytes. If there are more, every backend gets it.
pub(crate) const CHANGED_FILES_BYTES: usize = 64 * 1024;
/// How long after a failure it is looked into, so that its run and the other backends can end.
pub(crate) const CONFIRM_DELAY: Duration = Duration::from_secs(60);
/// An older merge base isn't run: whoever opens a pull request chooses where it branches off, and old code may have what
/// was mended since.
pub(crate) const MAX_BASE_AGE: Duration = Duration::from_secs(60 * 24 * 3600);
/// How often a merge base is run until its tests have a result.
pub(crate) const BASE_ATTEMPTS: u32 = 3;
/// How many heads and searches wait for one probe. Others see its result when they are evaluated.
pub(crate) const PROBE_WAITERS: usize = 64;
/// An author's pull requests get one of this many shares of what a backend's file allows on a day.
pub(crate) const AUTHOR_SHARES: u64 = 4;
/// How many runs of one search are open at once, if the backend's budget is large.
pub(crate) const PARALLEL_PROBES: usize = 3;
/// How many earlier results a search compares with its commit until one is on the same branch.
pub(crate) const BISECT_COMPARISONS: usize = 8;
/// How many comparisons of commits are remembered for the searches of other jobs.
pub(crate) const CACHED_COMPARISONS: usize = 64;
/// How long after its start a search ends with what is known.
pub(crate) const LONGEST_BISECTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// How many answers the HUD shows.
pub(crate) const SHOWN_CULPRITS: usize = 100;
/// How long a dispatch waits for a place among those of a day.
pub(crate) const WAIT_FOR_PLACE: Duration = Duration::from_secs(24 * 3600);
/// How many calls of GitHub's API an hour the check runs of all jobs may take, of the 5,000 that an
/// installation has at least. The backends share them equally.
pub(crate) const JOB_CHECK_CALLS: u64 = 4_000;
/// How many of these calls every backend has at least.
pub(crate) const LEAST_CALLS: u64 = 60;
/// How many of them may be made in a minute: creating a check run takes two, and 6 of the 900 points that GitHub allows
/// an installation in a minute, where writing counts 5 and reading 1. The rest is for results and what people ask for.
/// <https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits>
pub(crate) const JOB_CHECK_CALLS_A_MINUTE: u64 = 150;
/// How many dispatches of a replaced delivery are cancelled in one transaction.
pub(crate) const SUPERSEDED_AT_ONCE: usize = 200;
/// How many bytes of webhooks are kept on a day for each repository of the allowlist and for all other
/// repositories of upstream's account, compressed.
pub const WEBHOOK_BYTES_PER_DAY: u64 = 1 << 30;
/// As [`WEBHOOK_BYTES_PER_DAY`], for all repositories of another account that aren't on the allowlist.
pub(crate) const UNLISTED_WEBHOOK_BYTES_PER_DAY: u64 = 16 << 20;
/// How many logs of failed jobs are fetched on a day for each repository of the allowlist and for upstream's account.
pub(crate) const LOGS_PER_DAY: u64 = 5_000;
/// As [`LOGS_PER_DAY`], for each other account.
pub(crate) const UNLISTED_LOGS_PER_DAY: u64 = 20;

/// How long records are kept: a workflow can be re-run for 30 days.
/// <https://docs.github.com/en/actions/how-tos/manage-workflow-runs/re-run-workflows-and-jobs>
pub(crate) const RECORD_RETENTION: Duration = Duration::from_secs(35 * 24 * 3600);
/// How long a delivery's body is kept, and so how long its dispatches can be redelivered.
pub(crate) const BODY_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a merge queue waits for a group's checks at most: `check_response_timeout_minutes` is up to 360
/// (<https://docs.github.com/en/rest/repos/rules>).
pub(crate) const MERGE_GROUP_WAIT: Duration = Duration::from_secs(6 * 3600);

/// How often a dispatch is let through while a backend's breaker is open.
pub(crate) const BREAKER_TRIAL_INTERVAL: Duration = Duration::from_secs(600);
/// How many failures of its infrastructure in a row open a backend's breaker, by default.
pub(crate) const BREAKER_FAILURES: u32 = 5;

/// After this, a leased task is due again.
pub(crate) const TASK_LEASE: Duration = Duration::from_secs(120);
/// After this, GitHub has got a request whose sender is unknown, or never gets it: no handler runs for as long as
/// [`TASK_LEASE`], and the clocks of two relays may differ.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(180);
/// How long a handler may take. It is less than [`TASK_LEASE`], so that the outcome is recorded before the
/// task can be leased again.
pub(crate) const HANDLER_TIMEOUT: Duration = Duration::from_secs(90);
/// How many dispatches are sent at a time by default. Other work has workers of its own.
pub(crate) const DISPATCH_WORKERS: u32 = 32;
/// How many refused requests of people who haven't proven that they may send anything are logged in a minute.
pub(crate) const STRANGERS_LINES: u32 = 60;
/// How many failures of tasks that are tried again are logged in a minute.
pub(crate) const FAILED_TASK_LINES: u32 = 300;
/// How many tries a task gets.
pub(crate) const TASK_TRIES: u32 = 15;
/// The pauses between the tries of a task, unless GitHub asks for longer ones.
pub(crate) const TASK_RETRY: RetryPolicy = RetryPolicy {
    tries: TASK_TRIES,
    base: Duration::from_secs(1),
    cap: Duration::from_secs(600),
    total: Duration::MAX,
};
/// The pauses while GitHub or the external HUD has an outage. They grow with the age of a task and end soon after it
/// is back.
pub(crate) const OUTAGE_RETRY: RetryPolicy = RetryPolicy {
    tries: u32::MAX,
    base: Duration::from_secs(1),
    cap: Duration::from_secs(120),
    total: Duration::MAX,
};
/// What GitHub refuses, such as a check run of a commit that it doesn't have any more, is tried again after its age divided
/// by this.
pub(crate) const REFUSED_AGE_SHARE: u64 = 8;
/// The longest of these pauses.
pub(crate) const REFUSED_PAUSE_CAP: Duration = Duration::from_secs(6 * 3600);
/// For how long an outage is waited out. An older event isn't worth a dispatch.
pub(crate) const LONGEST_OUTAGE: Duration = Duration::from_secs(24 * 3600);
/// Dispatches of events that are older than this aren't sent again together with all others.
pub(crate) const RESEND_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// How long a shutdown waits for running tasks and open requests.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How often the queue is polled.
pub(crate) const QUEUE_POLL: Duration = Duration::from_millis(500);
/// The relay is quiet if it took no webhook and no report for this long.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(20);
/// How long keeping webhooks waits while others are being accepted.
pub(crate) const KEEP_WAIT: Duration = Duration::from_secs(10);
/// How often a change is tried again after a conflict with another one.
pub(crate) const CONFLICT_TRIES: usize = 50;

/// How many parallel steps of a build elsewhere are told apart under one name.
pub(crate) const STEPS_OF_A_NAME: usize = 256;

/// How long GitHub may take to create the runs of a dispatch, by default. Usually it takes seconds.
pub(crate) const RUN_WINDOW: Duration = Duration::from_secs(60);
/// The longest such time that can be set.
pub(crate) const LONGEST_RUN_WINDOW: Duration = Duration::from_secs(600);
/// A run that is created later has been started by something else than its dispatch alone, such as a workflow that sends
/// the event on. No others are waited for because of it: GitHub lists at most 1,000 runs of so long a time.
pub(crate) const LATEST_RUN: Duration = Duration::from_secs(20 * 60);
/// How often in an hour GitHub is asked for the runs of one backend, a fifth of it at once. Most looks take one call, and an
/// installation has at least 5,000 in an hour, which its dispatches need, too.
pub(crate) const RUN_LOOKS: u64 = 3000;
/// How often GitHub is asked about a young downstream run. With [`RUN_END_LOOK`], a verdict is final within 75 s of
/// the end of its last run.
pub(crate) const RUN_POLL: Duration = Duration::from_secs(60);
/// The longest pause between two such requests.
pub(crate) const RUN_POLL_CAP: Duration = Duration::from_secs(5 * 60);
/// How long after a job's end GitHub is asked whether its run is over.
pub(crate) const RUN_END_LOOK: Duration = Duration::from_secs(10);
/// How long after the request for a re-run GitHub is asked about the run.
pub(crate) const RERUN_LOOK: Duration = Duration::from_secs(10);
/// How many dispatches are looked at when a run is run again: in most minutes a backend gets fewer.
pub(crate) const SWEEPS_PER_RERUN: usize = 64;
/// How many dispatches to one repository of one minute are compared.
pub(crate) const SENDS_PER_MINUTE: usize = 1000;
/// How many askers of a commit are read: authors of pull requests, upstream's pushes, its merge queue.
pub(crate) const ORIGINS_PER_COMMIT: usize = 32;
/// How many deliveries of each of them are read.
pub(crate) const DELIVERIES_PER_ORIGIN: usize = 32;
/// How many open heads one task evaluates again after a change of the allowlist.
pub(crate) const HEADS_PER_TASK: usize = 200;
/// How many open heads are evaluated at most, the most recently changed ones first.
pub(crate) const OPEN_HEADS: usize = 20_000;
/// How many pushes of one pull request in one second are compared.
pub(crate) const MOVES_PER_SECOND: usize = 32;
/// How often a backend's default branch is asked for, when its reports come from another branch.
pub(crate) const BRANCH_LOOK: Duration = Duration::from_secs(60);
/// How many outcomes of a backend its breaker looks at, one for each pull request.
pub(crate) const BREAKER_OUTCOMES: usize = 64;
/// How many authors have to be hit before a breaker opens.
pub(crate) const BREAKER_AUTHORS: usize = 3;
/// How often it is written down that the relay is up.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(60);
/// A longer gap between two of these is a downtime.
pub(crate) const SHORTEST_DOWNTIME: Duration = Duration::from_secs(300);
pub(crate) const KEPT_DOWNTIMES: usize = 32;
/// How many earlier deliveries of a pull request are looked up to learn whether one of them is on its way to a backend.
pub(crate) const EARLIER_DELIVERIES: usize = 4;
/// How long a dispatch waits for one of them, before it looks again.
pub(crate) const EARLIER_DISPATCH_WAIT: Duration = Duration::from_secs(1);
/// How many deliveries of one head a pull request's record names; older ones are dropped.
pub(crate) const DELIVERIES_PER_HEAD: usize = 32;
/// How many earlier heads a pull request's record names; older ones are dropped.
pub(crate) const OLDER_HEADS: usize = 16;
/// How many jobs of one dispatch are read: those that ended badly first, then the newest. If there are more, their result
/// isn't known.
pub(crate) const MAX_JOBS_READ: usize = 4000;
/// How many tasks an operator's command reads.
pub(crate) const MAX_DEAD_TASKS: usize = 100_000;
/// How many pinned repositories are listed.
pub(crate) const MAX_PINS_LISTED: usize = 10_000;
/// How often the pinned repositories are read to recognise one under a new name.
pub(crate) const PINNED_NAMES_INTERVAL: Duration = Duration::from_secs(60);
/// How long replicas with old settings may run beside those with new ones.
pub(crate) const ROLLOUT: Duration = Duration::from_secs(30 * 60);
/// On AWS Lambda: how long a request works what is due before it is answered. GitHub waits ten seconds.
pub(crate) const LAMBDA_WORK: Duration = Duration::from_secs(5);
/// How long a schedule event works what is due. The function's timeout is a minute.
pub(crate) const LAMBDA_SCHEDULED_WORK: Duration = Duration::from_secs(40);
/// How long after its start a schedule event still copies facts.
pub(crate) const LAMBDA_SCHEDULED: Duration = Duration::from_secs(56);
/// The largest answer; Lambda takes 6 MB, in JSON and perhaps Base64.
/// <https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html>
pub(crate) const LAMBDA_ANSWER_BYTES: usize = 4 << 20;
/// How long an invocation on Lambda waits for running tasks after [`LAMBDA_WORK`] or [`LAMBDA_SCHEDULED_WORK`].
pub(crate) const LAMBDA_GRACE: Duration = Duration::from_secs(4);
/// How long the first response waits for the allowlist. GitHub waits ten seconds for a response.
pub(crate) const FIRST_ALLOWLIST: Duration = Duration::from_secs(5);
/// How many facts are copied to the results at a time.
pub(crate) const FEED_ROWS: usize = 5000;
/// How long a batch waits for more facts.
pub(crate) const FEED_LINGER: Duration = Duration::from_millis(250);
/// How often the outbox of a store that others write is looked at.
pub(crate) const SHARED_FEED_POLL: Duration = Duration::from_secs(1);
/// The pauses after facts couldn't be copied to the results; it is tried forever.
pub(crate) const FEED_RETRY: RetryPolicy = RetryPolicy {
    tries: u32::MAX,
    base: Duration::from_millis(500),
    cap: Duration::from_secs(30),
    total: Duration::MAX,
};
/// How often old results are rolled up.
pub(crate) const RETENTION_INTERVAL: Duration = Duration::from_secs(3600);
/// How often expired records are deleted.
pub(crate) const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// How much further each of these deletions may come than the one before. A clock that is far ahead deletes
/// little until it is set right.
pub(crate) const PRUNE_STEP: Duration = Duration::from_secs(1800);
/// The clocks of two relays may differ by this much.
pub(crate) const CLOCKS_APART: Duration = Duration::from_secs(60);
/// A token that isn't valid for longer than this isn't waited for.
pub(crate) const EARLY_TOKEN: Duration = Duration::from_secs(900);
/// A clock that is set back by more than this was wrong before.
pub(crate) const CLOCK_BACK: Duration = Duration::from_secs(600);
/// The pause between two transactions that delete expired records, so that other writes go first.
pub(crate) const PRUNE_PAUSE: Duration = Duration::from_millis(20);
/// How long the answer is cached that upstream doesn't have a commit, which may still be pushed.
pub(crate) const COMMIT_ABSENT: Duration = Duration::from_secs(300);
/// How long a report waits for GitHub's answer whether upstream has its commit. The deployed action gives up after 10 s.
pub(crate) const COMMIT_LOOK: Duration = Duration::from_secs(3);
/// How long the answer is cached that upstream has a commit.
pub(crate) const COMMIT_EXISTS: Duration = Duration::from_secs(3600);
/// How often the files of secrets are checked for changes.
pub(crate) const SECRET_FILES_INTERVAL: Duration = Duration::from_secs(10);
/// How long a result is retried that the external HUD refused as it would any: its key or its address may be changing.
pub(crate) const HUD_CHANGE: Duration = Duration::from_secs(3600);
/// How often CODEOWNERS and quarantine files are read.
pub(crate) const REPOSITORY_FILES_INTERVAL: Duration = Duration::from_secs(600);
/// How often the map from pipelines of other CI systems to repositories is read.
pub(crate) const PROVIDER_MAP_INTERVAL: Duration = Duration::from_secs(300);
/// The pause after a failure to read that map.
pub(crate) const PROVIDER_MAP_RETRY: Duration = Duration::from_secs(30);

/// How long after the end of a failed job its log is fetched: GitHub puts it together after the webhook.
pub(crate) const JOB_LOG_DELAY: Duration = Duration::from_secs(5);
/// How many logs are read at a time, each with a few dozen MB of memory.
pub(crate) const JOB_LOGS_AT_ONCE: usize = 4;
/// When the task of another log looks again whether it may start.
pub(crate) const JOB_LOG_BUSY: Duration = Duration::from_secs(2);
/// How often a log is tried: for about a day, with pauses of ten minutes at the end.
pub(crate) const JOB_LOG_TRIES: u32 = 150;
/// How long fetching a log may take: less than [`HANDLER_TIMEOUT`], of which classifying needs the rest.
pub(crate) const JOB_LOG_TIMEOUT: Duration = Duration::from_secs(45);
/// A log that is larger and took too long isn't tried again.
pub(crate) const LARGE_LOG_BYTES: usize = 256 * 1024 * 1024;
/// How long fetching the log of a green run may take.
pub(crate) const BASELINE_LOG_TIMEOUT: Duration = Duration::from_secs(20);
/// How many bytes of a file of log rules are read. One that is larger is refused.
pub(crate) const LOG_RULES_BYTES: u64 = 4 * 1024 * 1024;

/// How long the upstream repository's number is remembered, and which of its pull requests have been compared.
pub(crate) const UPSTREAM_MEMORY: Duration = Duration::from_secs(400 * 24 * 3600);
/// How often a feed is looked at for alerts. A look reads the newest 50 commits of a branch.
pub(crate) const ALERT_FEED_INTERVAL: Duration = Duration::from_secs(120);
/// How many feeds are looked at.
pub(crate) const ALERT_FEEDS: usize = 20;
/// How long an open pull request is remembered without an event. One that isn't known is taken for a new one whose webhook
/// got lost, as soon as somebody comments on it.
pub(crate) const OPEN_PULL_MEMORY: Duration = UPSTREAM_MEMORY;
/// How often the App's log of deliveries is compared with the store.
pub(crate) const RECONCILE_INTERVAL: Duration = Duration::from_secs(600);
/// A younger attempt may still be in progress, and GitHub's clock may differ from ours by this much.
pub(crate) const RECONCILE_MARGIN: Duration = Duration::from_secs(120);
/// How many pages of open pull requests are compared with the store at a time.
pub(crate) const OPEN_PULL_PAGES: u32 = 40;
/// How many pages of open pull requests are compared in one round, by several tasks.
pub(crate) const MOST_OPEN_PULL_PAGES: u32 = 1000;
/// How far back the log is read at most. GitHub redelivers what is at most three days old.
pub(crate) const RECONCILE_BACK: Duration = Duration::from_secs(3 * 24 * 3600);
/// After this long, GitHub is asked again for a delivery that it hasn't tried.
pub(crate) const REDELIVERY_LOST: Duration = Duration::from_secs(3600);
/// After this many such requests, it isn't expected any more that GitHub delivers it.
pub(crate) const REDELIVERIES_IN_VAIN: u32 = 3;
/// How many pages of the log, of 100 attempts each, one task reads.
pub(crate) const RECONCILE_PAGES: usize = 50;
/// How many redeliveries one task asks for.
pub(crate) const REDELIVERIES_PER_TASK: usize = 100;
/// How often the secret store is read again.
pub(crate) const SECRET_STORE_INTERVAL: Duration = Duration::from_secs(300);
/// How long dispatches of a restored store wait for newer events that GitHub delivers again.
pub(crate) const RESTORE_PAUSE: Duration = Duration::from_secs(300);
/// How long a restore is remembered: longer than any record that is older than it.
pub(crate) const RESTORE_MEMORY: Duration = Duration::from_secs(400 * 24 * 3600);
/// How long one task reads the log, and then asks for deliveries. On AWS Lambda a handler has 44 seconds at most, and within
/// a request nine.
pub(crate) const RECONCILE_READING: Duration = Duration::from_secs(10);
pub(crate) const RECONCILE_ASKING: Duration = Duration::from_secs(8);
/// How long one task compares open pull requests with the store.
pub(crate) const COMPARING_HEADS: Duration = Duration::from_secs(8);
/// The pause before the next part of a log that one task can't finish.
pub(crate) const RECONCILE_PAUSE: Duration = Duration::from_secs(1);

/// Tasks that the metrics look at: those that are due first.
pub(crate) const METRIC_TASKS: usize = 1_000;
/// Dead letters that the metrics count, and tasks of either state that the first page's warnings are about. Forks and
/// accounts that ask to wait leave many, which may hide no other.
pub(crate) const METRIC_DEAD_TASKS: usize = 20_000;
