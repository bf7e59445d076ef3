-- One row for each delivery. Views `webhook_EVENT` and `current_EVENT` are made when an event is first seen.
CREATE TABLE webhook (
    event TEXT NOT NULL, delivery TEXT NOT NULL, received_at INTEGER NOT NULL,
    repo TEXT NOT NULL COLLATE NOCASE, thing TEXT NOT NULL, action TEXT NOT NULL,
    sha TEXT NOT NULL, branch TEXT NOT NULL, number INTEGER, version TEXT NOT NULL,
    is_deleted INTEGER NOT NULL, document TEXT NOT NULL
);
CREATE UNIQUE INDEX webhook_key ON webhook (event, delivery);
CREATE INDEX webhook_thing ON webhook (event, repo, thing, version);
CREATE INDEX webhook_sha ON webhook (event, repo, sha, thing) WHERE sha <> '';
CREATE INDEX webhook_branch ON webhook (event, repo, branch, received_at, thing) WHERE branch <> '';
CREATE INDEX webhook_newest ON webhook (event, repo, received_at, thing);
CREATE INDEX webhook_number ON webhook (event, repo, number, thing) WHERE number IS NOT NULL;
CREATE INDEX webhook_time ON webhook (received_at);

-- When a branch was last heard of: finding that in `webhook` would take a look at every row.
CREATE TABLE known_branch (
    event TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE, branch TEXT NOT NULL,
    newest INTEGER NOT NULL, PRIMARY KEY (event, repo, branch)
) WITHOUT ROWID;
CREATE INDEX known_branch_newest ON known_branch (event, repo, newest);

-- Pull requests that are open, each with when its current state was received: to find that in `webhook`, SQLite would
-- read every row.
CREATE TABLE open_pull (
    repo TEXT NOT NULL COLLATE NOCASE, thing TEXT NOT NULL, received_at INTEGER NOT NULL,
    PRIMARY KEY (repo, thing)
) WITHOUT ROWID;
CREATE INDEX open_pull_newest ON open_pull (repo, received_at, thing);
