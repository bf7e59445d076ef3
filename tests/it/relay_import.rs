//! `crcr relay import`: rows of the deployed system's table.

use std::fs;

use crcr_results::Window;
use crcr_results::sqlite::SqliteResults;
use crcr_store::{SqliteStore, StoreRole};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::{Crcr, Ran};

fn row(n: u32) -> Value {
    json!({
        "status": "completed", "downstream_repo": "acme/backend",
        "upstream_repo": "pytorch/pytorch", "pr_number": "7", "pytorch_head_sha": "a".repeat(40),
        "delivery_id": format!("d-{n}"), "workflow_name": "ci", "job_name": "test",
        "check_run_id": n.to_string(), "run_id": n.to_string(), "run_attempt": 1,
        "conclusion": "success", "queue_time": 60.5, "execution_time": 600,
        "started_at": "2026-08-01 10:00:00", "completed_at": "2026-08-01 10:10:00",
        "downstream_repo_level": "L2", "event_type": "pull_request",
    })
}

fn import(folder: &std::path::Path, files: &[&str], stdin: Option<&str>) -> Ran {
    let database = format!("sqlite:{}", folder.join("crcr.db").display());
    let mut run = Crcr::new(&["relay", "import"]).env("CRCR_STORE", &database);
    for file in files {
        let path = if *file == "-" { (*file).into() } else { folder.join(file) };
        run = run.arg(path.to_str().unwrap());
    }
    match stdin {
        Some(text) => run.stdin(text).run(),
        None => run.run(),
    }
}

/// How many attempts and dispatches there are.
fn kept(folder: &std::path::Path) -> (usize, usize) {
    let store = SqliteStore::open(&folder.join("crcr.db"), StoreRole::Tool).unwrap();
    let results = SqliteResults::new(std::sync::Arc::new(store));
    let always = Window::all(Timestamp::MIN, Timestamp::MAX);
    (results.attempts(&always).unwrap().len(), results.dispatches(&always).unwrap().len())
}

#[test]
fn import_stores_good_rows_once_and_reports_bad_lines() {
    let folder = tempfile::tempdir().unwrap();
    drop(SqliteStore::open(&folder.path().join("crcr.db"), StoreRole::Server).unwrap());
    let mut lines: Vec<String> = (0..30).map(|n| row(n).to_string()).collect();
    let mut odd = row(99);
    odd["status"] = json!("splendid");
    lines.insert(3, odd.to_string());
    lines.insert(5, "no json".to_owned());
    lines.insert(7, "x".repeat(3 * 1024 * 1024));
    lines.insert(9, String::new());
    fs::write(folder.path().join("rows.jsonl"), lines.join("\n")).unwrap();
    let ran = import(folder.path(), &["rows.jsonl"], None).expect_code(1);
    assert_eq!(ran.stdout, "30 rows were imported, 3 lines could not be imported\n");
    for told in ["rows.jsonl:4: [report] ", "rows.jsonl:6: [no-json] ", "rows.jsonl:8: [too-long] "]
    {
        assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
    }
    assert_eq!(kept(folder.path()), (30, 30));
    // A Buildkite job's row, and one with odd details.
    let mut foreign = row(0);
    for (name, value) in [
        ("delivery_id", json!("buildkite-89891-0192")),
        ("event_type", json!("nightly")),
        ("check_run_id", json!("")),
        ("pr_number", json!("0")),
        ("pytorch_head_sha", json!("buildkite-89891-0192")),
    ] {
        foreign[name] = value;
    }
    let mut odd = row(1);
    odd["conclusion"] = json!("splendid");
    odd["artifact_url"] = json!("not an address");
    let ran = import(folder.path(), &["-"], Some(&format!("{foreign}\n{odd}"))).expect_code(0);
    assert_eq!(ran.stdout, "2 rows were imported, 0 lines could not be imported\n");
    assert!(ran.stderr.contains("-:2: [detail] `workflow.conclusion`"), "{}", ran.stderr);
    assert_eq!(kept(folder.path()), (31, 30));
    let again: Vec<String> = (0..40).map(|n| row(n).to_string()).collect();
    let ran = import(folder.path(), &["-"], Some(&again.join("\n"))).expect_code(0);
    assert_eq!(ran.stdout, "40 rows were imported, 0 lines could not be imported\n");
    assert_eq!(kept(folder.path()), (41, 40), "rows that were there are not doubled");
}

#[test]
fn missing_file_or_results_fail_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rows.jsonl"), "").unwrap();
    let ran = import(folder.path(), &["rows.jsonl"], None).expect_code(1);
    assert!(ran.stderr.contains("error[results]: no results exist at"), "{}", ran.stderr);
    assert!(ran.stderr.contains("start `crcr relay serve` once"), "{}", ran.stderr);
    drop(SqliteStore::open(&folder.path().join("crcr.db"), StoreRole::Server).unwrap());
    let ran = import(folder.path(), &["none.jsonl"], None).expect_code(1);
    assert!(ran.stderr.contains("error[file]"), "{}", ran.stderr);
}
