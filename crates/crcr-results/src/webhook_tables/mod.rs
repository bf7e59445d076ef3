//! Webhooks as rows, for pages and queries: every delivery of the chosen events, and the current state of
//! what they are about.

pub(crate) mod clickhouse;
pub(crate) mod sqlite;

use async_trait::async_trait;
use crcr_domain::ci_data::webhook::WebhookRow;
use jiff::Timestamp;

use crate::ResultsError;

/// Which things of one event and repository.
#[derive(Debug, Clone)]
pub struct ThingQuery<'a> {
    pub event: &'a str,
    pub repository: &'a str,
    pub selection: ThingSelection<'a>,
}

#[derive(Debug, Clone)]
pub enum ThingSelection<'a> {
    /// Those of these commits, [`MAX_OF_COMMITS`] at most.
    Commits(&'a [String]),
    /// The newest of a branch: `limit` things whose current state was received before the time.
    Branch { name: &'a str, before: Timestamp, limit: usize },
    /// Those of the commits whose SHA begins with these hexadecimal digits in lower case, as many as fit on a page.
    CommitPrefix(&'a str),
    /// The newest: `limit` things whose current state was received before the time.
    Newest { before: Timestamp, limit: usize },
    /// Open pull requests: `limit` of those whose current state was received before the time, the newest.
    OpenPulls { before: Timestamp, limit: usize },
    /// Those of a pull request or issue.
    Number(u64),
    /// The thing with GitHub's id.
    Id(&'a str),
    /// The things with these ids.
    Ids(&'a [String]),
}

/// A repository with webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRepository {
    pub name: String,
    pub newest: Timestamp,
}

#[async_trait]
pub trait WebhookResults: Send + Sync {
    /// Stores rows durably before it returns. A delivery that is stored already changes nothing.
    async fn append_webhooks(&self, rows: Vec<WebhookRow>) -> Result<(), ResultsError>;

    /// The current states, newest received first. What was deleted isn't included.
    async fn current_things(&self, query: &ThingQuery<'_>)
    -> Result<Vec<WebhookRow>, ResultsError>;

    /// The repositories of which there are rows of this event, ordered by name.
    async fn repositories(&self, event: &str) -> Result<Vec<KnownRepository>, ResultsError>;

    /// The branches of a repository with rows of this event, the newest first.
    async fn branches(
        &self,
        event: &str,
        repository: &str,
        limit: usize,
    ) -> Result<Vec<String>, ResultsError>;
}

/// Things of commits that are read at once: ten commits of 2,000 jobs, and some. A pull request can have workflows and
/// matrices without end.
pub const MAX_OF_COMMITS: usize = 30_000;
/// Things of commits with one prefix that are read.
pub(crate) const MAX_OF_PREFIX: usize = 200;

/// The rows of a query's answer as it promises them.
pub(crate) fn select_current(
    mut rows: Vec<WebhookRow>,
    selection: &ThingSelection<'_>,
) -> Vec<WebhookRow> {
    rows.retain(|row| {
        !row.is_deleted
            && match selection {
                ThingSelection::Commits(shas) => shas.contains(&row.sha),
                ThingSelection::Branch { name, before, .. } => {
                    row.branch == *name && row.received_at < *before
                }
                ThingSelection::CommitPrefix(prefix) => row.sha.starts_with(prefix),
                ThingSelection::Newest { before, .. }
                | ThingSelection::OpenPulls { before, .. } => row.received_at < *before,
                ThingSelection::Number(number) => row.number == Some(*number),
                ThingSelection::Id(thing) => row.thing == *thing,
                ThingSelection::Ids(things) => things.contains(&row.thing),
            }
    });
    rows.sort_by(|a, b| b.received_at.cmp(&a.received_at).then_with(|| b.version.cmp(&a.version)));
    if let ThingSelection::Branch { limit, .. }
    | ThingSelection::Newest { limit, .. }
    | ThingSelection::OpenPulls { limit, .. } = selection
    {
        rows.truncate(*limit);
    }
    rows
}

#[cfg(test)]
pub(crate) mod suite {
    use rand::SeedableRng as _;
    use rand::seq::SliceRandom as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::Results;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).unwrap()
    }

    fn row(event: &str, delivery: &str, second: i64, payload: &Value) -> WebhookRow {
        WebhookRow::new(event, delivery, at(second), payload.to_string().as_bytes()).unwrap()
    }

    fn job(
        delivery: &str,
        id: u64,
        sha: &str,
        branch: &str,
        status: &str,
        second: i64,
    ) -> WebhookRow {
        let payload = json!({
            "action": status, "repository": { "full_name": "Acme/Upstream" },
            "workflow_job": {
                "id": id, "run_attempt": 1, "status": status, "head_sha": sha,
                "head_branch": branch, "created_at": at(second).to_string(),
            },
        });
        row("workflow_job", delivery, second, &payload)
    }

    fn pull(number: u64, action: &str, state: &str, second: i64) -> WebhookRow {
        let payload = json!({
            "action": action, "number": number, "repository": { "full_name": "Acme/Upstream" },
            "pull_request": {
                "id": number, "number": number, "state": state, "updated_at": at(second).to_string(),
            },
        });
        row("pull_request", &format!("p{number}-{second}"), second, &payload)
    }

    fn rows() -> Vec<WebhookRow> {
        let deleted = json!({
            "action": "deleted", "repository": { "full_name": "acme/upstream" },
            "issue": { "number": 3 }, "comment": { "id": 5, "updated_at": at(1).to_string() },
        });
        let edited = json!({
            "action": "edited", "repository": { "full_name": "acme/upstream" },
            "issue": { "number": 3 }, "comment": { "id": 5, "updated_at": at(9).to_string() },
        });
        let kept = json!({
            "action": "created", "repository": { "full_name": "acme/upstream" },
            "issue": { "number": 3 }, "comment": { "id": 6, "body": "' OR 1=1 --\\\t\n\u{202e}\u{0}" },
        });
        vec![
            job("a1", 1, "aaa", "main", "queued", 10),
            job("a2", 1, "aaa", "main", "completed", 30),
            job("a3", 1, "aaa", "main", "in_progress", 40),
            job("b1", 2, "aaa", "main", "in_progress", 20),
            job("c1", 3, "bbb", "main", "completed", 50),
            job("d1", 4, "ccc", "feature/x", "completed", 60),
            row("issue_comment", "e1", 70, &edited),
            row("issue_comment", "e2", 75, &deleted),
            row("issue_comment", "f1", 80, &kept),
            pull(1, "opened", "open", 60),
            pull(2, "opened", "open", 61),
            pull(2, "closed", "closed", 66),
            pull(3, "opened", "open", 62),
            pull(3, "closed", "closed", 63),
            pull(3, "reopened", "open", 64),
            pull(4, "labeled", "closed", 65),
            row(
                "push",
                "g1",
                90,
                &json!({"ref": "refs/heads/main", "after": "bbb",
                "repository": { "full_name": "other/repo" }}),
            ),
        ]
    }

    async fn deliveries(
        results: &dyn Results,
        event: &str,
        selection: ThingSelection<'_>,
    ) -> Vec<String> {
        let query = ThingQuery { event, repository: "acme/UPSTREAM", selection };
        let found = results.current_things(&query).await.unwrap();
        found.into_iter().map(|row| row.delivery).collect()
    }

    /// `results` must be empty.
    pub(crate) async fn all(results: &dyn Results) {
        results.prepare().await.unwrap();
        assert_eq!(results.repositories("workflow_job").await.unwrap(), []);
        let mut random = rand::rngs::StdRng::seed_from_u64(1);
        // In any order, and twice.
        for _ in 0..2 {
            let mut rows = rows();
            rows.shuffle(&mut random);
            let rest = rows.split_off(4);
            results.append_webhooks(rows).await.unwrap();
            results.append_webhooks(rest).await.unwrap();
        }
        let commits = ["aaa".to_owned(), "bbb".to_owned()];
        let found = deliveries(results, "workflow_job", ThingSelection::Commits(&commits)).await;
        assert_eq!(found, ["c1", "a2", "b1"], "a late in_progress doesn't undo completed");
        assert_eq!(
            deliveries(results, "workflow_job", ThingSelection::Commits(&[])).await,
            [""; 0]
        );
        let branch =
            |name, second, limit| ThingSelection::Branch { name, before: at(second), limit };
        assert_eq!(deliveries(results, "workflow_job", branch("main", 999, 2)).await, ["c1", "a2"]);
        assert_eq!(deliveries(results, "workflow_job", branch("main", 30, 9)).await, ["b1"]);
        assert_eq!(deliveries(results, "workflow_job", branch("feature/x", 999, 9)).await, ["d1"]);
        assert_eq!(deliveries(results, "workflow_job", branch("x' OR 1=1", 999, 9)).await, [""; 0]);
        assert_eq!(deliveries(results, "workflow_job", ThingSelection::Id("1")).await, ["a2"]);
        let ids = ["4", "1", "99", "' OR 1=1 --"].map(str::to_owned);
        assert_eq!(
            deliveries(results, "workflow_job", ThingSelection::Ids(&ids)).await,
            ["d1", "a2"]
        );
        assert_eq!(deliveries(results, "workflow_job", ThingSelection::Ids(&[])).await, [""; 0]);
        let prefix = deliveries(results, "workflow_job", ThingSelection::CommitPrefix("aa")).await;
        assert_eq!(prefix, ["a2", "b1"], "two digits of a commit find it");
        let none = deliveries(results, "workflow_job", ThingSelection::CommitPrefix("aab")).await;
        assert_eq!(none, [""; 0]);
        let newest = |second, limit| ThingSelection::Newest { before: at(second), limit };
        assert_eq!(deliveries(results, "workflow_job", newest(999, 2)).await, ["d1", "c1"]);
        assert_eq!(deliveries(results, "workflow_job", newest(50, 9)).await, ["a2", "b1"]);
        let open = |second, limit| ThingSelection::OpenPulls { before: at(second), limit };
        let pulls = deliveries(results, "pull_request", open(999, 9)).await;
        assert_eq!(pulls, ["p3-64", "p1-60"], "closed ones don't count, whatever came before");
        assert_eq!(deliveries(results, "pull_request", open(999, 1)).await, ["p3-64"]);
        assert_eq!(deliveries(results, "pull_request", open(64, 9)).await, ["p1-60"]);
        let comments = deliveries(results, "issue_comment", ThingSelection::Number(3)).await;
        assert_eq!(comments, ["f1"], "nothing undoes a deletion");
        let query = ThingQuery {
            event: "issue_comment",
            repository: "acme/upstream",
            selection: ThingSelection::Id("6"),
        };
        let found = results.current_things(&query).await.unwrap();
        assert_eq!(found, [rows().remove(8)], "a row comes back unchanged");
        let known = results.repositories("workflow_job").await.unwrap();
        assert_eq!(known.len(), 1);
        assert_eq!((known[0].name.as_str(), known[0].newest), ("Acme/Upstream", at(60)));
        let branches = results.branches("workflow_job", "acme/upstream", 9).await.unwrap();
        assert_eq!(branches, ["feature/x", "main"]);
        results.delete_before(at(55)).await.unwrap();
        assert_eq!(deliveries(results, "workflow_job", ThingSelection::Id("4")).await, ["d1"]);
    }
}
