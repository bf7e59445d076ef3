-- Jobs and runs of repositories' own CI that have ended. `ci_counted` has what the sums below count already, so a
-- webhook that comes twice or is replayed counts once. Of a job it has the name without what is in parentheses at the
-- end, with its workflow, and the labels of its runner; of a run neither. `queue` and `run` are histograms as JSON. Times
-- are milliseconds since 1970.
CREATE TABLE ci_counted (
    repo TEXT NOT NULL COLLATE NOCASE, kind TEXT NOT NULL, id INTEGER NOT NULL, attempt INTEGER NOT NULL,
    ended_at INTEGER NOT NULL, name TEXT NOT NULL DEFAULT '', runner TEXT NOT NULL DEFAULT '',
    failed INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (repo, kind, id, attempt)
) WITHOUT ROWID;
CREATE INDEX ci_counted_time ON ci_counted (ended_at);
CREATE INDEX ci_counted_repo ON ci_counted (repo, ended_at, id, failed) WHERE name <> '';
CREATE INDEX ci_counted_name ON ci_counted (repo, name, ended_at, id, failed) WHERE name <> '';
CREATE INDEX ci_counted_runner ON ci_counted (repo, runner, ended_at, id, failed) WHERE name <> '';
CREATE TABLE ci_hour (
    repo TEXT NOT NULL COLLATE NOCASE, grouped_by TEXT NOT NULL, start INTEGER NOT NULL, name TEXT NOT NULL,
    ended INTEGER NOT NULL, failed INTEGER NOT NULL, queue TEXT NOT NULL, run TEXT NOT NULL,
    PRIMARY KEY (repo, grouped_by, start, name)
) WITHOUT ROWID;
CREATE INDEX ci_hour_start ON ci_hour (start);
CREATE TABLE ci_day (
    repo TEXT NOT NULL COLLATE NOCASE, grouped_by TEXT NOT NULL, start INTEGER NOT NULL, name TEXT NOT NULL,
    ended INTEGER NOT NULL, failed INTEGER NOT NULL, queue TEXT NOT NULL, run TEXT NOT NULL,
    PRIMARY KEY (repo, grouped_by, start, name)
) WITHOUT ROWID;
CREATE INDEX ci_day_start ON ci_day (start);
-- The newest attempt of each run of a branch's own commits.
CREATE TABLE branch_run (
    repo TEXT NOT NULL COLLATE NOCASE, run_id INTEGER NOT NULL, attempt INTEGER NOT NULL, branch TEXT NOT NULL,
    sha TEXT NOT NULL, created_at INTEGER NOT NULL, failed INTEGER NOT NULL, PRIMARY KEY (repo, run_id)
) WITHOUT ROWID;
CREATE INDEX branch_run_time ON branch_run (repo, branch, created_at, sha, failed);
CREATE INDEX branch_run_age ON branch_run (created_at);
