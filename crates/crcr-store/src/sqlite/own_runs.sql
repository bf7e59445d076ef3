-- The commits of what has no pull request: no dispatch names the commit of a nightly run. The condition is about the
-- document, because SQLite would choose `fact_attempt_of_pull` for one about the column, and read all of these.
CREATE INDEX fact_attempt_head ON fact_attempt (json_extract(document, '$.head_sha'))
    WHERE json_extract(document, '$.pull_request') IS NULL;
