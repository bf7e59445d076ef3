//! Every limit of the relay, in one place.

use std::time::Duration;

use crcr_github::http::RetryPolicy;

/// The largest webhook body, in bytes: GitHub's own limit.
pub const WEBHOOK_BYTES: usize = 25 * 1024 * 1024;
/// The largest callback body, in bytes.
pub const CALLBACK_BYTES: usize = 1024 * 1024;
/// The largest body of an operator's request, in bytes.
pub const ADMIN_BYTES: usize = 64 * 1024;
/// The largest result that another relay may send, in bytes.
pub const FORWARD_BYTES: usize = 2 * 1024 * 1024;
/// The largest allowlist, in bytes.
pub const ALLOWLIST_BYTES: usize = 1024 * 1024;
/// A body up to this size, in bytes, needs no place among the large ones.
pub const SMALL_BODY: usize = 256 * 1024;
/// Bodies over that size that are held at a time: 200 MiB at the most, and as much again for all the
/// small ones that [`CONNECTIONS`] may send.
pub const LARGE_BODIES: usize = 8;
/// The largest head of a request, in bytes.
pub const HEAD_BYTES: usize = 64 * 1024;
/// How long a connection may be silent, or take for a request's head. Longer than load balancers
/// keep an idle connection (60 s), so that they close it and no request meets a closed one.
pub const HEAD: Duration = Duration::from_secs(75);
/// The longest that a request may take, its body included.
pub const REQUEST: Duration = Duration::from_secs(60);
/// Connections of one listener at a time: with what the relay opens itself, below the usual limit
/// of 1,024 open files.
pub const CONNECTIONS: usize = 800;
/// How long a client may leave an answer unread before its connection is closed.
pub const WRITE: Duration = Duration::from_secs(30);
/// The fewest characters of the admin token, so that guessing it is hopeless.
pub const ADMIN_TOKEN_CHARS: usize = 16;
/// Wrong admin tokens in a minute, of everybody together, before further ones are refused unread.
pub const WRONG_TOKENS: u32 = 10;
/// How long `/readyz` believes that the store takes what is written, before it tries again.
pub const PROBE: Duration = Duration::from_secs(5);
/// Connections of the operators' listener at a time.
pub const ADMIN_CONNECTIONS: usize = 50;
/// How old a connection gets before it is closed, so that none is held for ever.
pub const CONNECTION_LIFE: Duration = Duration::from_secs(3600);
/// The longest `X-GitHub-Delivery`, in characters.
pub const DELIVERY_CHARS: usize = 100;
/// The largest webhook in a `client_payload`, in bytes, with `<`, `>` and `&` counted as six. GitHub
/// accepts 65,535 characters; the rest is for the delivery, the callback token and the callback URL.
pub const PAYLOAD_BYTES: usize = 60_000;

/// How long records live: GitHub re-runs a workflow for 30 days.
pub const KEEP: Duration = Duration::from_secs(35 * 24 * 3600);
/// How long a delivery's body lives: dead letters can be redelivered for as long.
pub const KEEP_BODY: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a task is a worker's own; after that it comes back.
pub const LEASE: Duration = Duration::from_secs(120);
/// How long a handler may take. Well below [`LEASE`], so that its end is recorded before the task
/// could be leased again.
pub const HANDLER: Duration = Duration::from_secs(90);
/// Tasks that are worked on at a time, unless set otherwise.
pub const WORKERS: u32 = 32;
/// Tasks of one account downstream that are worked on at a time.
pub const WORKERS_PER_LANE: usize = 8;
/// RetryLoop of a task before it is given up.
pub const TRIES: u32 = 15;
/// The pauses between the tries of a task, unless GitHub asks for longer ones.
pub const TASK_RETRY: RetryPolicy = RetryPolicy {
    tries: TRIES,
    base: Duration::from_secs(1),
    cap: Duration::from_secs(600),
    total: Duration::MAX,
};
/// How long a stop waits for work that is under way.
pub const GRACE: Duration = Duration::from_secs(10);
/// How often the queue is looked at without being told of new work.
pub const POLL: Duration = Duration::from_millis(500);
/// How often a change is decided anew because somebody else's came first.
pub const CONFLICTS: usize = 50;

/// How often GitHub is asked whether a downstream run is over.
pub const RUN_POLL: Duration = Duration::from_secs(120);
/// The longest pause between two such questions.
pub const RUN_POLL_CAP: Duration = Duration::from_secs(30 * 60);
/// How soon after a job's end GitHub is asked whether its run is over.
pub const RUN_END_LOOK: Duration = Duration::from_secs(30);
/// How soon after a re-run was asked for GitHub is asked how the run stands.
pub const RERUN_LOOK: Duration = Duration::from_secs(10);
/// How soon it is looked again whether a report is proven that came before its dispatch was recorded
/// as sent.
pub const PROOF_POLL: Duration = Duration::from_secs(5);
/// Dispatches to one repository that are compared by the time of their sending.
pub const RECENT_SENDS: usize = 64;
/// How long the time of a sending is kept.
pub const KEEP_SENDS: Duration = Duration::from_secs(24 * 3600);
/// Deliveries of one head that a pull request's record names: the oldest go first.
pub const DELIVERIES_PER_HEAD: usize = 32;
/// After this long without an open job, a run elsewhere than on GitHub is over.
pub const FOREIGN_RUN_QUIET: Duration = Duration::from_secs(30 * 60);
/// Jobs of one dispatch that are looked at.
pub const JOBS: usize = 1000;
/// Tasks that were given up and are put back at a time.
pub const DEAD: usize = 100_000;
/// The most pinned repositories that are listed.
pub const PINS: usize = 10_000;
/// How long the first answer waits for the allowlist: GitHub waits ten seconds for it.
pub const FIRST_ALLOWLIST: Duration = Duration::from_secs(5);
/// Facts that one batch copies to the results.
pub const FEED_ROWS: usize = 5000;
/// How long a batch waits for more facts.
pub const FEED_LINGER: Duration = Duration::from_millis(250);
/// The pauses after facts couldn't be copied to the results; it is tried forever.
pub const FEED_RETRY: RetryPolicy = RetryPolicy {
    tries: u32::MAX,
    base: Duration::from_millis(500),
    cap: Duration::from_secs(30),
    total: Duration::MAX,
};
/// How often old results are looked for.
pub const RETAIN: Duration = Duration::from_secs(3600);
/// How often what has expired is forgotten.
pub const PRUNE: Duration = Duration::from_secs(60);
/// The pause between two portions of that, so that the relay's own writes come first.
pub const PRUNE_PAUSE: Duration = Duration::from_millis(20);
/// How long it is believed that upstream doesn't have a commit; it may be pushed later.
pub const COMMIT_ABSENT: Duration = Duration::from_secs(300);
/// How long it is believed that upstream has a commit.
pub const COMMIT_EXISTS: Duration = Duration::from_secs(3600);
/// How often the files of secrets are looked at.
pub const SECRETS: Duration = Duration::from_secs(10);
/// How long a result is kept trying that the external HUD refuses with 401: its key is being
/// changed.
pub const HUD_KEY_CHANGE: Duration = Duration::from_secs(3600);
/// How often the mapping of other CI systems' pipelines is read.
pub const PROVIDERS: Duration = Duration::from_secs(300);
/// How soon that mapping is asked for again after a failure.
pub const PROVIDERS_AGAIN: Duration = Duration::from_secs(30);
