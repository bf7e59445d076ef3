//! `crcr levels review`: every backend of a generated month against the bar of its level.

use std::fs;
use std::path::Path;

use crcr_standin::generate::{ALLOWLIST, facts};
use crcr_store::{SqliteStore, StateStore as _, StoreRole, WriteBatch};
use jiff::Timestamp;
use serde_json::Value;

use crate::support::{Crcr, Ran};

const TO: &str = "2026-09-15T12:00:00Z";

/// Reviews a month of all backends.
async fn review(args: &[&str], criteria: &str) -> Ran {
    let args = [&["levels", "review", "--results", "crcr.db", "--to", TO], args].concat();
    let run = Crcr::new(&args).arg("--allowlist=a.yml").arg("--criteria=criteria.json");
    let to: Timestamp = TO.parse().unwrap();
    let store = SqliteStore::open(&run.folder().join("crcr.db"), StoreRole::Server).unwrap();
    let facts = facts(7, to, 35, 6, "pytorch/pytorch");
    store.commit(WriteBatch { facts, ..WriteBatch::default() }, to).await.unwrap();
    drop(store);
    fs::write(run.folder().join("a.yml"), ALLOWLIST).unwrap();
    fs::write(run.folder().join("criteria.json"), criteria).unwrap();
    let before = files(run.folder());
    let ran = run.run();
    assert_eq!(files(&ran.path("")), before, "a review changes nothing");
    ran
}

/// Names, sizes and digests of the files of the store.
fn files(folder: &Path) -> Vec<(String, usize, String)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let mut files: Vec<_> = named
        .filter(|(name, _)| name.starts_with("crcr.db"))
        .map(|(name, path)| {
            let bytes = fs::read(path).unwrap();
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes);
            (name, bytes.len(), format!("{digest:?}"))
        })
        .collect();
    files.sort();
    files
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()))
}

#[tokio::test]
async fn every_repository_is_reviewed_by_the_criteria_of_its_level() {
    let ran = review(&["--format", "json"], "{}").await.expect_code(0);
    let document = json(&ran);
    assert!(document.get("proposals").is_none());
    assert_eq!(document["criteria"]["job-pass-share"], 0.9);
    let reviews = document["repositories"].as_array().unwrap();
    let told = |key: &str| -> Vec<_> {
        reviews.iter().map(|review| review[key].as_str().unwrap()).collect()
    };
    assert_eq!(told("level"), ["L4", "L3", "L2", "L2", "L1"]);
    assert_eq!(told("question"), ["stay", "stay", "promotion", "promotion", "signal"]);
    assert_eq!(told("from")[0], "2026-09-08T12:00:00Z");
    assert_eq!(told("from")[2], "2026-09-01T12:00:00Z");
    let dune = &reviews[3];
    assert_eq!(
        (&dune["repo"], &dune["verdict"]),
        (&"dune-example/torch-dune".into(), &"not_met".into())
    );
    let criteria: Vec<_> = dune["evidence"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["criterion"].as_str().unwrap())
        .collect();
    assert_eq!(
        criteria,
        ["time_at_l2", "coverage", "queue", "overrun", "end_to_end", "timeouts", "job_pass"]
    );
    for rate in ["availability", "test_pass", "signal"] {
        assert!(dune[rate]["denominator"].as_u64() > Some(20), "{rate}: {dune}");
    }
    assert_eq!(reviews[4]["evidence"], serde_json::json!([]), "no threshold decides at L1");
}

#[tokio::test]
async fn proposals_name_their_criteria() {
    // Timeouts are rare in one month, so their number may differ by one.
    let easy = r#"{"timeout-share": 0.5, "overrun-share": 0.5}"#;
    let ran = review(&["--propose", "--format", "json"], easy).await.expect_code(0);
    let document = json(&ran);
    let proposals = document["proposals"].as_array().unwrap();
    let up = proposals.iter().find(|one| one["change"] == "promote").unwrap();
    assert_eq!(up["repository"], "cedar-example/torch-cedar");
    assert_eq!((&up["from"], &up["to"]), (&"L2".into(), &"L3".into()));
    assert_eq!(up["reasons"].as_array().unwrap().len(), 7);
    let strict = r#"{"job-pass-share": 0.999}"#;
    let ran = review(&["--propose", "--hud-url", "https://hud.test"], strict).await.expect_code(0);
    let told = |start: &str| ran.stdout.lines().any(|line| line.starts_with(start));
    assert!(told("demote basalt-example/torch-basalt from L3 to L2: "), "{}", ran.report());
    assert!(told("demote aurora-example/torch-aurora from L4 to L3: "), "{}", ran.report());
    assert!(!told("promote "), "{}", ran.report());
    let link = "  https://hud.test/crcr/basalt-example/torch-basalt/level?level=L3&from=\
                2026-09-08T12:00:00Z&to=2026-09-15T12:00:00Z";
    assert!(told(link), "{}", ran.report());
    let ran = review(&["--propose", "--format", "markdown"], strict).await.expect_code(0);
    let line = "- demote `basalt-example/torch-basalt` from L3 to L2: ";
    assert!(
        ran.stdout.contains(line) && ran.stdout.contains("| CI job pass rate |"),
        "{}",
        ran.report()
    );
}

#[tokio::test]
async fn too_few_results_are_unknown_and_cause_no_proposal() {
    let args = ["--propose", "--from", "2026-09-15T00:00:00Z"];
    let ran = review(&args, "{}").await.expect_code(0);
    assert!(
        ran.stdout.ends_with("the results ask for no promotion and no demotion\n"),
        "{}",
        ran.report()
    );
    let table = ran.stdout.lines().filter(|line| line.contains("CI job pass rate"));
    assert!(table.into_iter().any(|line| line.ends_with("unknown")), "{}", ran.report());
}

#[tokio::test]
async fn invalid_windows_and_criteria_are_rejected() {
    let ran = review(&["--from", "2026-09-16T00:00:00Z"], "{}").await.expect_code(2);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("error[window]"), "{}", ran.report());
    let odd = r#"{"job-pass-share": 90, "queue-seconds": 0}"#;
    let ran = review(&[], odd).await.expect_code(1);
    for told in ["error[criteria]", "`job-pass-share`: a share from 0 to 1", "`queue-seconds`"] {
        assert!(ran.stdout.is_empty() && ran.stderr.contains(told), "{told}\n{}", ran.report());
    }
}
