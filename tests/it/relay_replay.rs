//! `crcr relay replay --from`: the archive gives the same rows again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crcr_aws::object_store::ObjectStore;
use crcr_cidata::webhook_archive::{ArchivedWebhook, WebhookArchive, WebhookHead};
use serde_json::Value;

use crate::support::Crcr;

struct Archive {
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Archive {
    fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        Self { folder: tempfile::tempdir().unwrap(), runtime }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn add(&self, event: &str, delivery: &str, received_at: &str, body: &Value) {
        let head = WebhookHead {
            event: event.to_owned(),
            delivery: delivery.to_owned(),
            received_at: received_at.parse().unwrap(),
            headers: BTreeMap::new(),
        };
        let webhook = ArchivedWebhook { head, body: body.to_string().into() };
        let archive = WebhookArchive::new(ObjectStore::Folder(self.path("archive")));
        self.runtime.block_on(archive.add(&webhook.head, webhook.pack().into())).unwrap();
    }

    fn replay(&self, results: &str, args: &[&str]) -> Crcr {
        let archive = format!("file:{}", self.path("archive").display());
        let results = format!("sqlite:{}", self.path(results).display());
        let fixed =
            ["relay", "replay", "--archive", archive.as_str(), "--results", results.as_str()];
        Crcr::new(&[&fixed, args].concat())
    }

    /// Every column of every row, and the rows of the views.
    fn rows(&self, results: &str) -> Vec<String> {
        let connection = rusqlite::Connection::open(self.path(results)).unwrap();
        let rows = |sql: &str| -> Vec<String> {
            let mut statement = connection.prepare(sql).unwrap();
            let columns = statement.column_count();
            let row = |row: &rusqlite::Row<'_>| {
                let values = (0..columns).map(|n| row.get::<_, rusqlite::types::Value>(n));
                Ok(format!("{:?}", values.collect::<Result<Vec<_>, _>>()?))
            };
            statement.query_map([], row).unwrap().map(Result::unwrap).collect()
        };
        let mut all = rows("SELECT * FROM webhook ORDER BY event, delivery");
        // What the grid, the trends and the list of branches read. The published examples say of one job that it passed
        // and that it failed, which GitHub never does, so that isn't compared.
        let times = "repo, grouped_by, start, name, ended, queue, run";
        for (columns, table) in [
            ("*", "branch_run"),
            ("repo, kind, id, attempt, ended_at, name, runner", "ci_counted"),
            (times, "ci_day"),
            (times, "ci_hour"),
            ("*", "known_branch"),
        ] {
            let mut of_table = rows(&format!("SELECT {columns} FROM {table}"));
            of_table.sort();
            all.append(&mut of_table);
        }
        let views = rows("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY name");
        assert!(!views.is_empty());
        for view in views {
            let name = view.split('"').nth(1).unwrap();
            if name.starts_with("current_") {
                let mut current = rows(&format!("SELECT * FROM {name} ORDER BY repo, thing"));
                all.append(&mut current);
            }
        }
        all
    }
}

fn job(status: &str) -> Value {
    serde_json::json!({
        "action": status, "repository": { "full_name": "acme/upstream" },
        "workflow_job": { "id": 5, "status": status, "head_sha": "abc", "head_branch": "main" },
    })
}

#[test]
fn archive_of_a_time_span_is_replayed_and_a_damaged_object_costs_only_itself() {
    let archive = Archive::new();
    archive.add("workflow_job", "before", "2026-08-31T23:59:59Z", &job("queued"));
    archive.add("workflow_job", "first", "2026-09-01T00:00:00Z", &job("completed"));
    archive.add("workflow_job", "late", "2026-09-02T11:00:00Z", &job("in_progress"));
    archive.add("push", "push", "2026-09-02T11:00:00Z", &serde_json::json!({ "after": "abc" }));
    archive.add("push", "text", "2026-09-02T11:30:00Z", &Value::String("not an object".to_owned()));
    archive.add("workflow_job", "after", "2026-09-02T12:00:00Z", &job("queued"));
    let day = archive.path("archive/push/2026/09/02");
    fs::write(day.join("broken.json.zst"), "not zstd").unwrap();
    // An object that claims another's place.
    fs::copy(day.join("push.json.zst"), day.join("forged.json.zst")).unwrap();
    let span = ["--from", "2026-09-01T00:00:00Z", "--until", "2026-09-02T12:00:00Z"];
    let ran = archive.replay("dry.db", &[&span[..], &["--dry-run"]].concat()).run().expect_code(1);
    assert!(ran.stdout.contains("3 webhooks can be replayed, 3 can't be read"), "{}", ran.report());
    assert!(!archive.path("dry.db").exists());
    for _ in 0..2 {
        let ran = archive.replay("results.db", &span).run().expect_code(1);
        let report = ran.report();
        assert!(report.contains("3 webhooks were replayed, 3 can't be read"), "{report}");
        for expected in [
            "`push/2026/09/02/broken.json.zst` is damaged",
            "`push/2026/09/02/forged.json.zst` says that it is `push/2026/09/02/push.json.zst`",
            "`push/2026/09/02/text.json.zst`: the body isn't a JSON object",
        ] {
            assert!(report.contains(expected), "{expected}\n{report}");
        }
        let rows = archive.rows("results.db");
        assert_eq!(
            rows.len(),
            3 + 2 + 2,
            "three webhooks, a job, a push, their branch and what of it is counted"
        );
    }
}

/// An empty file would be taken for a relay's that has nothing.
#[test]
fn replay_makes_no_results_that_nobody_named_or_that_would_be_empty() {
    let archive = Archive::new();
    let span = ["--from", "2026-09-01T00:00:00Z"];
    let ran = archive.replay("results.db", &span).run().expect_code(1);
    assert!(ran.report().contains("has no webhooks"), "{}", ran.report());
    assert!(!archive.path("results.db").exists());

    archive.add("workflow_job", "first", "2026-09-01T00:00:00Z", &job("completed"));
    let from = format!("file:{}", archive.path("archive").display());
    let args = ["relay", "replay", "--archive", from.as_str(), span[0], span[1]];
    let unnamed = Crcr::new(&args);
    let file = unnamed.folder().join("crcr.db");
    let ran = unnamed.run().expect_code(1);
    assert!(ran.report().contains("no results exist at `crcr.db`"), "{}", ran.report());
    assert!(!file.exists());
    Crcr::new(&args).env("CRCR_STORE", "sqlite:new.db").run().expect_code(0);
}

#[test]
fn files_that_a_pull_request_changes_are_replayed_without_an_app() {
    let archive = Archive::new();
    let fact = serde_json::json!({
        "at": "2026-09-01T10:00:00Z", "upstream": "acme/upstream", "pull_request": 7, "head_sha": "abc",
        "merge_base": "def", "committed_at": "2026-08-01T10:00:00Z", "changed_files": ["src/op.c"],
    });
    archive.add("merge_base", "7-abc", "2026-09-01T10:00:00Z", &fact);
    let other = Value::String("not one".to_owned());
    archive.add("merge_base", "8-abc", "2026-09-01T10:00:00Z", &other);
    let span = ["--from", "2026-09-01T00:00:00Z", "--until", "2026-09-02T00:00:00Z"];
    for _ in 0..2 {
        let ran = archive.replay("results.db", &span).run().expect_code(1);
        assert!(
            ran.stdout.contains("0 webhooks were replayed, 1 can't be read"),
            "{}",
            ran.report()
        );
        let connection = rusqlite::Connection::open(archive.path("results.db")).unwrap();
        let sql = "SELECT group_concat(document) FROM fact_merge_base";
        let found: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&found).unwrap(), fact);
    }
}

/// They are written in parts of 500, so that a long span of time needs no more memory than a short one.
#[test]
fn changed_files_of_many_pull_requests_are_all_replayed() {
    let archive = Archive::new();
    for number in 0..502 {
        let fact = serde_json::json!({
            "at": "2026-09-01T10:00:00Z", "upstream": "acme/upstream", "pull_request": number,
            "head_sha": "abc", "merge_base": "def", "committed_at": "2026-08-01T10:00:00Z",
        });
        archive.add("merge_base", &format!("{number}-abc"), "2026-09-01T10:00:00Z", &fact);
    }
    archive.add("workflow_job", "job", "2026-09-01T10:00:00Z", &job("queued"));
    let span = ["--from", "2026-09-01T00:00:00Z", "--until", "2026-09-02T00:00:00Z"];
    let ran = archive.replay("results.db", &span).run().expect_code(0);
    assert!(ran.stdout.contains("1 webhook was replayed"), "{}", ran.report());
    let connection = rusqlite::Connection::open(archive.path("results.db")).unwrap();
    let count = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        connection.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("fact_merge_base"), count("webhook")), (502, 1));
}

#[test]
#[ignore = "needs the npm package @octokit/webhooks-examples below tests/peers"]
fn every_published_webhook_replays_to_the_same_state_in_any_order_and_twice() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/peers/node_modules/@octokit/webhooks-examples/api.github.com/index.json");
    let groups: Vec<Value> =
        serde_json::from_slice(&fs::read(path).expect("npm ci in tests/peers")).unwrap();
    let archive = Archive::new();
    let mut all = vec![];
    for group in &groups {
        let event = group["name"].as_str().unwrap();
        for example in group["examples"].as_array().unwrap() {
            let delivery = format!("d-{}", all.len());
            archive.add(event, &delivery, "2026-09-01T10:00:00Z", example);
            all.push((event, delivery, example));
        }
    }
    assert!(all.len() >= 329, "{}", all.len());
    let open = |name: &str| {
        let path = archive.path(name);
        crcr_store::SqliteStore::open(&path, crcr_store::StoreRole::Server).unwrap()
    };
    drop(open("one.db"));
    let span = ["--from", "2026-09-01T00:00:00Z", "--until", "2026-09-02T00:00:00Z"];
    // Some of the examples are of private repositories, which everybody would read on the HUD.
    let private = all.iter().filter(|(.., example)| example["repository"]["private"] == true);
    let shown = all.len() - private.count();
    let said = archive.replay("public.db", &span).run().expect_code(0);
    assert!(shown < all.len() && said.stdout.contains(&format!("{shown} webhooks were replayed")));
    let replay = |results: &str| {
        archive.replay(results, &span).env("CRCR_JOB_LOGS", "all").run().expect_code(0)
    };
    let said = replay("one.db");
    assert!(said.stdout.contains(&format!("{} webhooks were replayed", all.len())));
    let once = archive.rows("one.db");
    replay("one.db");
    assert_eq!(archive.rows("one.db"), once, "twice");
    // In the reverse order, as a relay that hears of them itself.
    let results = crcr_results::sqlite::SqliteResults::new(std::sync::Arc::new(open("two.db")));
    let rows = all.iter().rev().map(|(event, delivery, example)| {
        let at = "2026-09-01T10:00:00Z".parse().unwrap();
        let body = example.to_string();
        crcr_domain::ci_data::webhook::WebhookRow::new(event, delivery, at, body.as_bytes())
            .unwrap()
    });
    let append = crcr_results::WebhookResults::append_webhooks(&results, rows.collect());
    archive.runtime.block_on(append).unwrap();
    drop(results);
    let other = archive.rows("two.db");
    let differing: Vec<_> = once.iter().zip(&other).filter(|(one, other)| one != other).collect();
    assert!(differing.is_empty() && once.len() == other.len(), "in any order: {differing:#?}");
}
