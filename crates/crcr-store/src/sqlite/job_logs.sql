-- One row for each failed job whose log was looked at. Pages show the newest failures of a repository, a
-- category or a cause, so each of these has an index that ends with the time: a page reads its newest rows
-- and stops, however many older ones there are. The document comes last, because it has kilobytes, and
-- reading the columns before it doesn't touch its pages.
CREATE TABLE job_log (
    repo TEXT NOT NULL COLLATE NOCASE, job_id INTEGER NOT NULL, version INTEGER NOT NULL,
    completed_at INTEGER NOT NULL, reason TEXT NOT NULL, category TEXT NOT NULL, rule TEXT NOT NULL,
    capture TEXT NOT NULL, line TEXT NOT NULL, run_id INTEGER NOT NULL, run_attempt INTEGER NOT NULL,
    job_name TEXT NOT NULL, workflow TEXT NOT NULL, branch TEXT NOT NULL, head_sha TEXT NOT NULL,
    looked_at INTEGER NOT NULL, log_key TEXT, document TEXT NOT NULL
);
CREATE UNIQUE INDEX job_log_key ON job_log (repo, job_id);
CREATE INDEX job_log_time ON job_log (completed_at);
CREATE INDEX job_log_repo ON job_log (repo, completed_at);
CREATE INDEX job_log_category ON job_log (category, completed_at);
CREATE INDEX job_log_cause ON job_log (rule, capture, completed_at);

-- The newest green run of each job, on the default branch and elsewhere.
CREATE TABLE green_job (
    repo TEXT NOT NULL COLLATE NOCASE, workflow TEXT NOT NULL, job_name TEXT NOT NULL,
    on_default_branch INTEGER NOT NULL, run_id INTEGER NOT NULL, run_attempt INTEGER NOT NULL,
    job_id INTEGER NOT NULL, branch TEXT NOT NULL, head_sha TEXT NOT NULL,
    completed_at INTEGER NOT NULL, PRIMARY KEY (repo, workflow, job_name, on_default_branch)
) WITHOUT ROWID;
