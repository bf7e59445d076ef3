-- Results of tests. Ids are hashes, times are milliseconds since 1970, days are days since 1970,
-- durations are seconds. A repository compares without case.
CREATE TABLE test_report (
    id INTEGER PRIMARY KEY, repo TEXT NOT NULL COLLATE NOCASE, workflow_id INTEGER, workflow TEXT,
    run_id INTEGER NOT NULL, run_attempt INTEGER NOT NULL, head_branch TEXT, head_sha TEXT,
    on_default INTEGER NOT NULL, started_at INTEGER NOT NULL, day INTEGER NOT NULL, job_id INTEGER,
    job_id_check TEXT NOT NULL, job TEXT NOT NULL, job_base TEXT NOT NULL, config TEXT NOT NULL,
    artifact TEXT NOT NULL, path TEXT NOT NULL, invoking_file TEXT, setup TEXT NOT NULL
);
CREATE INDEX test_report_run ON test_report (repo, run_id, run_attempt);
CREATE INDEX test_report_day ON test_report (day);
-- The newest reports of the same tests under the same conditions: a test has no index of its own, which would have
-- to be written for every row.
CREATE INDEX test_report_setup ON test_report (repo, job, on_default, setup, started_at);
-- The other runs of a commit.
CREATE INDEX test_report_commit ON test_report (head_sha, repo) WHERE head_sha IS NOT NULL;
-- A test, once for the default branch and once for all others.
CREATE TABLE test_case (
    id INTEGER NOT NULL, on_default INTEGER NOT NULL, repo TEXT NOT NULL COLLATE NOCASE,
    suite TEXT NOT NULL, classname TEXT NOT NULL, name TEXT NOT NULL, file TEXT, variant TEXT,
    first_day INTEGER NOT NULL, PRIMARY KEY (id, on_default)
) WITHOUT ROWID;
CREATE INDEX test_case_name ON test_case (name);
CREATE INDEX test_case_new ON test_case (repo, on_default, first_day);
-- Rows of one report lie together, so loading a report writes few pages.
CREATE TABLE test_run (
    report INTEGER NOT NULL, test INTEGER NOT NULL, kind TEXT NOT NULL, result TEXT NOT NULL,
    time REAL, attempts INTEGER NOT NULL, flaky INTEGER NOT NULL, details TEXT,
    PRIMARY KEY (report, test)
) WITHOUT ROWID;
CREATE INDEX test_run_failed ON test_run (test) WHERE result IN ('failure', 'error');
CREATE VIEW failed_test_runs AS
    SELECT test_run.*, suite, classname, name, file, variant, test_report.repo, run_id, run_attempt,
        workflow_id, head_branch, head_sha, started_at, job_id, job, invoking_file
    FROM test_run JOIN test_report ON test_report.id = report
        JOIN test_case ON test_case.id = test AND test_case.on_default = test_report.on_default
    WHERE result IN ('failure', 'error');
CREATE TABLE test_run_summary (
    report INTEGER NOT NULL, file TEXT NOT NULL, classname TEXT NOT NULL, tests INTEGER NOT NULL,
    successes INTEGER NOT NULL, failures INTEGER NOT NULL, errors INTEGER NOT NULL,
    skipped INTEGER NOT NULL, unfinished INTEGER NOT NULL, flaky INTEGER NOT NULL,
    timed INTEGER NOT NULL, time REAL NOT NULL, PRIMARY KEY (report, file, classname)
) WITHOUT ROWID;
-- What the roll-ups are of: a job of a repository, or all its jobs (job ''), on the default branch
-- or on all others.
CREATE TABLE test_scope (
    id INTEGER PRIMARY KEY, repo TEXT NOT NULL COLLATE NOCASE, on_default INTEGER NOT NULL,
    job TEXT NOT NULL, last_day INTEGER NOT NULL
);
CREATE INDEX test_scope_repo ON test_scope (repo);
-- The day comes before the test because a page reads all tests of a few days.
CREATE TABLE test_day (
    scope INTEGER NOT NULL, day INTEGER NOT NULL, test INTEGER NOT NULL, runs INTEGER NOT NULL,
    failures INTEGER NOT NULL, skipped INTEGER NOT NULL, flaky INTEGER NOT NULL,
    timed INTEGER NOT NULL, time REAL NOT NULL, PRIMARY KEY (scope, day, test)
) WITHOUT ROWID;
CREATE INDEX test_day_flaky ON test_day (scope, day) WHERE flaky > 0;
CREATE INDEX test_day_failed ON test_day (scope, day) WHERE failures > 0;
-- Days on which a test took more than a second on average. Few tests do.
CREATE INDEX test_day_slow ON test_day (scope, day) WHERE time > timed;
