-- A store as the last build without a schema version left it, with records and tasks.
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS record (
    key TEXT PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS record_expires ON record (expires_at);
CREATE TABLE IF NOT EXISTS member (
    set_key TEXT NOT NULL, member TEXT NOT NULL, score INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, PRIMARY KEY (set_key, member)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS member_score ON member (set_key, score);
CREATE INDEX IF NOT EXISTS member_expires ON member (expires_at);
CREATE TABLE IF NOT EXISTS bucket (
    key TEXT PRIMARY KEY, tokens REAL NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS task (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, lane TEXT NOT NULL, payload TEXT NOT NULL,
    state INTEGER NOT NULL, due_at INTEGER NOT NULL, again_at INTEGER, lease INTEGER,
    failed INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL, last_error TEXT
);
CREATE INDEX IF NOT EXISTS task_due ON task (due_at) WHERE state < 2;
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, fact TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS fact_dispatch (
    at INTEGER NOT NULL, delivery TEXT NOT NULL, upstream TEXT NOT NULL, pull_request INTEGER,
    head_sha TEXT NOT NULL, event TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE,
    level TEXT NOT NULL, labels TEXT NOT NULL, enqueued_at INTEGER NOT NULL, sent_at INTEGER,
    status TEXT NOT NULL, superseded_by TEXT, tries INTEGER NOT NULL, last_error TEXT,
    rank INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_dispatch_key ON fact_dispatch (delivery, repo);
CREATE INDEX IF NOT EXISTS fact_dispatch_repo ON fact_dispatch (repo, enqueued_at, level);
CREATE INDEX IF NOT EXISTS fact_dispatch_time ON fact_dispatch (enqueued_at);
CREATE INDEX IF NOT EXISTS fact_dispatch_pull ON fact_dispatch (pull_request);
CREATE TABLE IF NOT EXISTS fact_attempt (
    received_at INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, delivery TEXT NOT NULL,
    workflow TEXT NOT NULL, job TEXT, run_id TEXT NOT NULL, run_attempt INTEGER NOT NULL,
    check_run_id TEXT, state TEXT NOT NULL, rank INTEGER NOT NULL, start_unknown INTEGER NOT NULL,
    phase TEXT, queue_seconds REAL, execution_seconds REAL, started_at INTEGER,
    completed_at INTEGER, tests TEXT, failed_tests TEXT NOT NULL, url TEXT, artifact_url TEXT,
    environment TEXT, level TEXT NOT NULL, event TEXT NOT NULL, upstream TEXT NOT NULL,
    pull_request INTEGER, head_sha TEXT NOT NULL, dispatched_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_attempt_key ON fact_attempt (delivery, repo, run_id,
    run_attempt, workflow, ifnull(job, ''), ifnull(check_run_id, ''));
CREATE INDEX IF NOT EXISTS fact_attempt_repo ON fact_attempt (repo, dispatched_at);
CREATE INDEX IF NOT EXISTS fact_attempt_time ON fact_attempt (dispatched_at);
DROP INDEX IF EXISTS fact_attempt_pull;
CREATE INDEX IF NOT EXISTS fact_attempt_of_pull ON fact_attempt (pull_request, dispatched_at);
CREATE TABLE IF NOT EXISTS fact_callback (
    at INTEGER NOT NULL, repo TEXT COLLATE NOCASE, delivery TEXT, run_id TEXT, job TEXT,
    status TEXT, conclusion TEXT, outcome TEXT NOT NULL, answer INTEGER NOT NULL, detail TEXT,
    latency_ms REAL NOT NULL, id INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS fact_callback_time ON fact_callback (at, id);
CREATE INDEX IF NOT EXISTS fact_callback_repo ON fact_callback (repo, at);
CREATE INDEX IF NOT EXISTS fact_callback_refused ON fact_callback (repo, at) WHERE answer >= 400;
CREATE TABLE IF NOT EXISTS fact_merge_base (
    upstream TEXT NOT NULL COLLATE NOCASE, pull_request INTEGER NOT NULL, head_sha TEXT NOT NULL,
    at INTEGER NOT NULL, merge_base TEXT NOT NULL, committed_at INTEGER NOT NULL,
    PRIMARY KEY (upstream, pull_request, head_sha)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fact_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, changes INTEGER NOT NULL,
    PRIMARY KEY (day, repo)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rolled_day (
    day INTEGER NOT NULL, repo TEXT NOT NULL, nightly INTEGER NOT NULL, tally TEXT NOT NULL,
    PRIMARY KEY (day, repo, nightly)
) WITHOUT ROWID;

INSERT INTO record (key, version, value, expires_at) VALUES
  ('["delivery","d1"]', 1, CAST('{"id":"d1"}' AS BLOB), 1803024000000),
  ('["pull","acme/upstream","7"]', 3, CAST('{"head_sha":"a"}' AS BLOB), 1803024000000);
INSERT INTO member (set_key, member, score, expires_at) VALUES
  ('["deliveries"]', 'd1', 1800000000000, 1803024000000),
  ('["deliveries"]', 'd2', 1800000000001, 1803024000000);
INSERT INTO bucket (key, tokens, at) VALUES ('["rate","acme/one"]', 3.5, 1800000000000);
INSERT INTO task (key, lane, payload, state, due_at, lease, failed, created_at, last_error) VALUES
  ('["dispatch","d1","acme/one"]', 'acme', '{"kind":"dispatch"}', 0, 1799999999000, NULL, 0, 1799999999000, NULL),
  ('["dispatch","d2","acme/one"]', 'acme', '{"kind":"dispatch"}', 1, 1800000120000, 77, 1, 1799999999500, 'GitHub answered 502'),
  ('["forward","r1"]', 'hud of acme', '{"kind":"forward"}', 2, 1800000000000, NULL, 15, 1799990000000, 'the HUD: 500'),
  ('["sweep","d1","acme/two"]', 'acme', '{"kind":"sweep"}', 2, 1800000000000, NULL, 15, 1799990000000, 'GitHub answered 502');
INSERT INTO outbox (fact) VALUES ('{}');
DELETE FROM outbox;
