-- Times are milliseconds since 1970.
CREATE TABLE record (
    key TEXT PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX record_expires ON record (expires_at);
CREATE TABLE member (
    set_key TEXT NOT NULL, member TEXT NOT NULL, score INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, PRIMARY KEY (set_key, member)
) WITHOUT ROWID;
CREATE INDEX member_score ON member (set_key, score);
CREATE INDEX member_expires ON member (expires_at);
CREATE TABLE bucket (
    key TEXT PRIMARY KEY, tokens REAL NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
-- States: 0 is ready, 1 leased, 2 dead. The `due_at` of a dead task is when it is deleted.
CREATE TABLE task (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, lane TEXT NOT NULL, payload TEXT NOT NULL,
    state INTEGER NOT NULL, due_at INTEGER NOT NULL, again_at INTEGER, lease INTEGER,
    failed INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL, last_error TEXT,
    changed_at INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX task_lane ON task (lane, due_at) WHERE state < 2;
CREATE INDEX task_dead ON task (due_at) WHERE state = 2;
CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, fact TEXT NOT NULL);
