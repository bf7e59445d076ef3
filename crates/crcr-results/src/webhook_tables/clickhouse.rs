//! Rows of webhooks in ClickHouse.

use async_trait::async_trait;
use crcr_domain::ci_data::webhook::{WebhookRow, is_event_name};
use serde_json::json;

use crate::Results as _;
use crate::ResultsError;
use crate::clickhouse::rows::{self, RowReader};
use crate::clickhouse::{ClickHouseResults, QueryValue};
use crate::webhook_tables::{
    KnownRepository, MAX_OF_COMMITS, MAX_OF_PREFIX, ThingQuery, ThingSelection, WebhookResults,
    select_current,
};

/// Things of a branch that are read for each one that is asked for: of some, an older state was
/// received on the branch, or they were deleted.
const BRANCH_MARGIN: usize = 2;

/// Ordered by commit, because a page asks for the jobs of its commits. Granules are small, because a
/// document has kilobytes and granules are read whole. The other table has when a branch was last heard
/// of: finding that in the first one would take a look at every row.
pub(crate) const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS crcr_webhook (
        event String, delivery String, received_at Int64, repo_key String, repo String,
        thing String, action String, sha String, branch String, number Int64, version String,
        is_deleted UInt8, document String
     ) ENGINE = ReplacingMergeTree()
     PARTITION BY toYYYYMM(toDateTime(intDiv(received_at, 1000), 'UTC'))
     ORDER BY (event, repo_key, sha, thing, delivery) SETTINGS index_granularity = 256",
    "CREATE TABLE IF NOT EXISTS crcr_webhook_branch (
        event String, repo_key String, repo String, branch String, newest Int64
     ) ENGINE = ReplacingMergeTree(newest) ORDER BY (event, repo_key, branch)",
    "CREATE MATERIALIZED VIEW IF NOT EXISTS crcr_webhook_branch_view TO crcr_webhook_branch AS
     SELECT event, repo_key, any(repo) AS repo, branch, max(received_at) AS newest
     FROM crcr_webhook GROUP BY event, repo_key, branch",
    // Whether each pull request's row with the greatest version is open: to find that in `crcr_webhook`, the
    // server would read the rows of every pull request there was.
    "CREATE TABLE IF NOT EXISTS crcr_pull_state (
        repo_key String, thing String, heard SimpleAggregateFunction(max, Int64),
        was_open AggregateFunction(argMax, UInt8, String),
        state_at AggregateFunction(argMax, Int64, String)
     ) ENGINE = AggregatingMergeTree() ORDER BY (repo_key, thing)",
    "CREATE MATERIALIZED VIEW IF NOT EXISTS crcr_pull_state_view TO crcr_pull_state AS
     SELECT repo_key, thing, max(received_at) AS heard,
       argMaxState(toUInt8(is_deleted = 0 AND
         JSONExtractString(document, 'pull_request', 'state') = 'open'), version) AS was_open,
       argMaxState(received_at, version) AS state_at
     FROM crcr_webhook WHERE event = 'pull_request' GROUP BY repo_key, thing",
];

const COLUMNS: &str = "event, delivery, received_at, repo, thing, action, sha, branch, number, \
                       version, is_deleted, document";
/// A column with no number.
const NO_NUMBER: i64 = -1;

#[async_trait]
impl WebhookResults for ClickHouseResults {
    async fn append_webhooks(&self, rows: Vec<WebhookRow>) -> Result<(), ResultsError> {
        self.prepare().await?;
        let (mut lines, mut ended) = (vec![], vec![]);
        for row in &rows {
            if let Some(row) = crate::ci_times::clickhouse::row(row) {
                rows::line(&mut ended, &row);
            }
            self.create_views(&row.event).await?;
            let row = json!({
                "event": row.event, "delivery": row.delivery,
                "received_at": row.received_at.as_millisecond(),
                "repo_key": row.repository.to_ascii_lowercase(), "repo": row.repository,
                "thing": row.thing, "action": row.action, "sha": row.sha, "branch": row.branch,
                "number": row.number.map_or(NO_NUMBER, u64::cast_signed), "version": row.version,
                "is_deleted": u8::from(row.is_deleted), "document": row.document,
            });
            rows::line(&mut lines, &row);
        }
        if !ended.is_empty() {
            self.insert("crcr_ended_ci", &ended).await?;
        }
        if lines.is_empty() { Ok(()) } else { self.insert("crcr_webhook", &lines).await }
    }

    async fn current_things(
        &self,
        query: &ThingQuery<'_>,
    ) -> Result<Vec<WebhookRow>, ResultsError> {
        self.prepare().await?;
        let repo = query.repository.to_ascii_lowercase();
        let mut values = vec![
            ("event".to_owned(), QueryValue::Text(query.event)),
            ("repo".to_owned(), QueryValue::Text(&repo)),
        ];
        let of = "event = {event:String} AND repo_key = {repo:String}";
        // What stays on its commit is found by the primary key.
        let key = if is_on_one_commit(query.event) { "sha" } else { "thing" };
        let Some(condition) = thing_condition(&query.selection, of, &mut values) else {
            return Ok(vec![]);
        };
        let keys = match query.selection {
            ThingSelection::OpenPulls { .. } => condition,
            ThingSelection::Commits(_) if key == "sha" => condition,
            // A commit of one of them has thousands of others.
            ThingSelection::Ids(_) => format!(
                "{key} IN (SELECT {key} FROM crcr_webhook PREWHERE {of} AND {condition}) AND {condition}"
            ),
            _ => format!("{key} IN (SELECT {key} FROM crcr_webhook PREWHERE {of} AND {condition})"),
        };
        // PREWHERE: documents are read only where a row matches.
        let sql = format!(
            "SELECT {COLUMNS} FROM crcr_webhook PREWHERE {of} AND {keys} \
             ORDER BY version DESC LIMIT 1 BY thing LIMIT {MAX_OF_COMMITS}"
        );
        let rows = self.rows(&sql, &values, read_row).await?;
        Ok(select_current(rows, &query.selection))
    }

    async fn repositories(&self, event: &str) -> Result<Vec<KnownRepository>, ResultsError> {
        self.prepare().await?;
        let sql = "SELECT any(repo), max(newest) FROM crcr_webhook_branch \
                   WHERE event = {event:String} AND repo_key != '' \
                   GROUP BY repo_key ORDER BY repo_key";
        let values = [("event".to_owned(), QueryValue::Text(event))];
        self.rows(sql, &values, |row| {
            Ok(KnownRepository { name: row.text()?, newest: row.time()? })
        })
        .await
    }

    async fn branches(
        &self,
        event: &str,
        repository: &str,
        limit: usize,
    ) -> Result<Vec<String>, ResultsError> {
        self.prepare().await?;
        let repo = repository.to_ascii_lowercase();
        let values = [
            ("event".to_owned(), QueryValue::Text(event)),
            ("repo".to_owned(), QueryValue::Text(&repo)),
        ];
        let sql = format!(
            "SELECT branch FROM crcr_webhook_branch WHERE event = {{event:String}} \
             AND repo_key = {{repo:String}} AND branch != '' \
             GROUP BY branch ORDER BY max(newest) DESC LIMIT {limit}"
        );
        self.rows(&sql, &values, |row| row.text()).await
    }
}

impl ClickHouseResults {
    /// Creates the views of an event, once for each process.
    async fn create_views(&self, event: &str) -> Result<(), ResultsError> {
        if !is_event_name(event) || self.viewed_events.lock().contains(event) {
            return Ok(());
        }
        for view in [
            format!(
                "CREATE VIEW IF NOT EXISTS crcr_webhook_{event} AS \
                 SELECT {COLUMNS} FROM crcr_webhook WHERE event = '{event}' \
                 LIMIT 1 BY delivery"
            ),
            format!(
                "CREATE VIEW IF NOT EXISTS crcr_current_{event} AS SELECT {COLUMNS} FROM \
                 (SELECT * FROM crcr_webhook WHERE event = '{event}' \
                  ORDER BY version DESC LIMIT 1 BY repo_key, thing) WHERE is_deleted = 0"
            ),
        ] {
            self.query(&view, &[]).await?;
        }
        self.viewed_events.lock().insert(event.to_owned());
        Ok(())
    }
}

/// Whether the things of an event never move to another commit, as a pull request does.
fn is_on_one_commit(event: &str) -> bool {
    matches!(event, "push" | "workflow_run" | "workflow_job" | "check_run" | "check_suite")
}

fn read_row(row: &mut RowReader<'_>) -> Result<WebhookRow, String> {
    Ok(WebhookRow {
        event: row.text()?,
        delivery: row.text()?,
        received_at: row.time()?,
        repository: row.text()?,
        thing: row.text()?,
        action: row.text()?,
        sha: row.text()?,
        branch: row.text()?,
        number: Some(row.integer()?).filter(|number| *number >= 0).map(i64::cast_unsigned),
        version: row.text()?,
        is_deleted: row.u8()? == 1,
        document: row.text()?,
    })
}

fn is_among<'a>(
    column: &str,
    wanted: &'a [String],
    values: &mut Vec<(String, QueryValue<'a>)>,
) -> String {
    let name = |(n, value): (usize, &'a String)| {
        values.push((format!("{column}{n}"), QueryValue::Text(value)));
        format!("{{{column}{n}:String}}")
    };
    let names: Vec<String> = wanted.iter().enumerate().map(name).collect();
    format!("{column} IN ({})", names.join(", "))
}

/// A condition that selects things among the rows `of` an event and a repository; `None` if it selects none.
fn thing_condition<'a>(
    selection: &ThingSelection<'a>,
    of: &str,
    values: &mut Vec<(String, QueryValue<'a>)>,
) -> Option<String> {
    Some(match selection {
        ThingSelection::Commits([]) | ThingSelection::Ids([]) => return None,
        ThingSelection::Commits(shas) => is_among("sha", shas, values),
        ThingSelection::Ids(things) => is_among("thing", things, values),
        ThingSelection::Branch { name, before, limit } => {
            values.push(("branch".to_owned(), QueryValue::Text(name)));
            values.push(("before".to_owned(), QueryValue::Number(before.as_millisecond())));
            format!(
                "branch = {{branch:String}} AND received_at < {{before:Int64}} GROUP BY sha, thing \
                 ORDER BY max(received_at) DESC LIMIT {}",
                limit.saturating_mul(BRANCH_MARGIN)
            )
        }
        ThingSelection::CommitPrefix(prefix) => {
            values.push(("prefix".to_owned(), QueryValue::Text(prefix)));
            format!("startsWith(sha, {{prefix:String}}) LIMIT {MAX_OF_PREFIX}")
        }
        ThingSelection::Newest { before, limit } => {
            values.push(("before".to_owned(), QueryValue::Number(before.as_millisecond())));
            format!(
                "received_at < {{before:Int64}} GROUP BY sha, thing \
                 ORDER BY max(received_at) DESC LIMIT {}",
                limit.saturating_mul(BRANCH_MARGIN)
            )
        }
        ThingSelection::OpenPulls { before, limit } => {
            values.push(("before".to_owned(), QueryValue::Number(before.as_millisecond())));
            format!(
                "(thing, version) IN (SELECT thing, max(version) FROM crcr_webhook PREWHERE {of}
                   AND thing IN (SELECT thing FROM crcr_pull_state WHERE repo_key = {{repo:String}}
                     GROUP BY thing HAVING argMaxMerge(was_open) = 1
                       AND argMaxMerge(state_at) < {{before:Int64}}
                     ORDER BY argMaxMerge(state_at) DESC LIMIT {limit})
                   GROUP BY thing)"
            )
        }
        ThingSelection::Number(number) => {
            // A greater one would be that of rows without a number.
            let number = i64::try_from(*number).ok()?;
            values.push(("number".to_owned(), QueryValue::Number(number)));
            "number = {number:Int64}".to_owned()
        }
        ThingSelection::Id(thing) => {
            values.push(("thing".to_owned(), QueryValue::Text(thing)));
            "thing = {thing:String}".to_owned()
        }
    })
}

#[cfg(test)]
mod tests {
    use crcr_testkit::clickhouse::ClickHouse as TestServer;

    use super::*;
    use crate::clickhouse::ClickHouseServer;

    #[tokio::test]
    #[ignore = "needs chdb"]
    async fn clickhouse_answers_about_webhooks_as_the_suite_says_and_deletes_old_ones() {
        let server = TestServer::start().unwrap();
        let address = ClickHouseServer::parse(&server.url()).unwrap();
        let results = ClickHouseResults::new(address, crate::CLICKHOUSE_STEPS).unwrap();
        crate::webhook_tables::suite::all(&results).await;
        let number = async |sql: &str| -> u64 {
            let answer = results.query(sql, &[]).await.unwrap();
            String::from_utf8(answer).unwrap().trim().parse().unwrap()
        };
        assert_eq!(number("SELECT count() FROM crcr_current_issue_comment").await, 1);
        results.delete_before("2100-01-01T00:00:00Z".parse().unwrap()).await.unwrap();
        for table in ["crcr_webhook_branch", "crcr_pull_state"] {
            let sql = format!("SELECT count() FROM system.mutations WHERE table = '{table}'");
            assert!(number(&sql).await > 0, "{table} has no retention");
        }
    }

    #[test]
    fn number_that_no_pull_request_has_is_not_that_of_rows_without_one() {
        for (number, is_asked) in [(7, true), (u64::MAX, false), (1 << 63, false)] {
            let condition = thing_condition(&ThingSelection::Number(number), "", &mut vec![]);
            assert_eq!(condition.is_some(), is_asked, "{number}");
        }
    }
}
