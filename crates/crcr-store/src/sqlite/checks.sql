-- What a check run shows, as a fact; of one check run the newest is kept.
CREATE TABLE fact_check (
    upstream TEXT NOT NULL COLLATE NOCASE, head_sha TEXT NOT NULL, repo TEXT NOT NULL COLLATE NOCASE,
    at INTEGER NOT NULL, document TEXT NOT NULL, PRIMARY KEY (upstream, head_sha, repo)
) WITHOUT ROWID;
