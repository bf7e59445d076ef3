-- Which job each row of `ci_counted` is, so that the sums can be told one by one: its name without what is in parentheses
-- at the end, with its workflow, and the labels of its runner. What ended before this step has neither.
ALTER TABLE ci_counted ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE ci_counted ADD COLUMN runner TEXT NOT NULL DEFAULT '';
ALTER TABLE ci_counted ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX ci_counted_repo ON ci_counted (repo, ended_at, id, failed) WHERE name <> '';
CREATE INDEX ci_counted_name ON ci_counted (repo, name, ended_at, id, failed) WHERE name <> '';
CREATE INDEX ci_counted_runner ON ci_counted (repo, runner, ended_at, id, failed) WHERE name <> '';
