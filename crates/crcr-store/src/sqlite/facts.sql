-- A fact is what identifies, selects and orders it, and the whole of it as JSON. Times are milliseconds since 1970,
-- repositories compare without case. For one key only the row with the highest version is kept: (at, rank) of a
-- dispatch, (rank, received_at) of an attempt, at of a merge base.
CREATE TABLE fact_dispatch (
    delivery TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, at INTEGER NOT NULL,
    rank INTEGER NOT NULL, enqueued_at INTEGER NOT NULL, level TEXT NOT NULL,
    upstream TEXT NOT NULL COLLATE NOCASE, pull_request INTEGER, document TEXT NOT NULL
);
CREATE UNIQUE INDEX fact_dispatch_key ON fact_dispatch (delivery, repo);
CREATE INDEX fact_dispatch_repo ON fact_dispatch (repo, enqueued_at, level);
CREATE INDEX fact_dispatch_time ON fact_dispatch (enqueued_at);
CREATE INDEX fact_dispatch_head ON fact_dispatch (json_extract(document, '$.head_sha'));
CREATE INDEX fact_dispatch_pull ON fact_dispatch (pull_request);
-- The document lacks the failing tests, which many attempts share: `failed_tests` has their text if it is short, or
-- its SHA-256.
CREATE TABLE fact_attempt (
    delivery TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, run_id TEXT NOT NULL,
    run_attempt INTEGER NOT NULL, workflow TEXT NOT NULL, job TEXT NOT NULL,
    check_run_id TEXT NOT NULL, rank INTEGER NOT NULL, received_at INTEGER NOT NULL,
    dispatched_at INTEGER NOT NULL, upstream TEXT NOT NULL COLLATE NOCASE, pull_request INTEGER,
    failed_tests TEXT NOT NULL, document TEXT NOT NULL
);
CREATE UNIQUE INDEX fact_attempt_key ON fact_attempt (delivery, repo, run_id, run_attempt,
    workflow, job, check_run_id);
CREATE INDEX fact_attempt_repo ON fact_attempt (repo, dispatched_at);
CREATE INDEX fact_attempt_time ON fact_attempt (dispatched_at);
CREATE INDEX fact_attempt_of_pull ON fact_attempt (pull_request, dispatched_at);
-- The commits of what has no pull request: no dispatch names the commit of a nightly run. The condition is about the
-- document, because SQLite would choose `fact_attempt_of_pull` for one about the column, and read all of these.
CREATE INDEX fact_attempt_head ON fact_attempt (json_extract(document, '$.head_sha'))
    WHERE json_extract(document, '$.pull_request') IS NULL;
CREATE TABLE fact_text (
    digest TEXT PRIMARY KEY, text TEXT NOT NULL, used_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX fact_text_used ON fact_text (used_at);
CREATE TABLE fact_callback (
    at INTEGER NOT NULL, id INTEGER NOT NULL, repo TEXT COLLATE NOCASE, outcome TEXT NOT NULL,
    answer INTEGER NOT NULL, latency_ms REAL NOT NULL, document TEXT NOT NULL
);
CREATE UNIQUE INDEX fact_callback_time ON fact_callback (at, id);
CREATE INDEX fact_callback_repo ON fact_callback (repo, at);
CREATE INDEX fact_callback_troubled ON fact_callback (repo, at)
    WHERE answer >= 400 OR outcome = 'unproven';
CREATE TABLE fact_merge_base (
    upstream TEXT NOT NULL COLLATE NOCASE, pull_request INTEGER NOT NULL, head_sha TEXT NOT NULL,
    at INTEGER NOT NULL, document TEXT NOT NULL, PRIMARY KEY (upstream, pull_request, head_sha)
) WITHOUT ROWID;
-- What a check run shows; of one check run the newest is kept.
CREATE TABLE fact_check (
    upstream TEXT NOT NULL COLLATE NOCASE, head_sha TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE,
    at INTEGER NOT NULL, document TEXT NOT NULL, PRIMARY KEY (upstream, head_sha, repo)
) WITHOUT ROWID;
CREATE TABLE fact_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, changes INTEGER NOT NULL,
    PRIMARY KEY (day, repo)
) WITHOUT ROWID;
CREATE TABLE rolled_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL, nightly INTEGER NOT NULL, tally TEXT NOT NULL,
    PRIMARY KEY (day, repo, nightly)
) WITHOUT ROWID;
