//! `crcr allowlist diff --results`: promotions reviewed by recorded results.

use std::fs;

use crcr_relay::results::generate::{ALLOWLIST, facts};
use crcr_relay::store::sqlite::{Role, Sqlite};
use crcr_relay::store::{Batch, Store as _};
use jiff::Timestamp;
use serde_json::Value;

use crate::support::{Crcr, Ran};

const UNTIL: &str = "2026-09-15T12:00:00Z";

/// Reviews the promotion of a generated backend by `days` days of results.
async fn promote(days: u32, repo: &str, level: &str) -> Ran {
    let args = ["allowlist", "diff", "old.yml", "new.yml", "--format", "json"];
    let run = Crcr::new(&args).arg("--results=sqlite:crcr.db").arg("--until").arg(UNTIL);
    let until: Timestamp = UNTIL.parse().unwrap();
    let store = Sqlite::open(&run.folder().join("crcr.db"), Role::Server).unwrap();
    let facts = facts(7, until, days, 10, "pytorch/pytorch");
    store.commit(Batch { facts, ..Batch::default() }, until).await.unwrap();
    let without = ALLOWLIST.replacen(&format!("  - {repo}\n"), "", 1);
    let item = if level == "L2:" { format!("  - {repo}") } else { format!("    {repo}: [x]") };
    let new = without.replacen(&format!("{level}\n"), &format!("{level}\n{item}\n"), 1);
    assert_eq!(new.matches(repo).count(), 1, "{new}");
    fs::write(run.folder().join("old.yml"), ALLOWLIST).unwrap();
    fs::write(run.folder().join("new.yml"), new).unwrap();
    run.run()
}

/// Rule, message and help of each finding.
fn found(ran: &Ran) -> Vec<[String; 3]> {
    let document: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()));
    let text = |found: &Value, key: &str| found[key].as_str().unwrap_or_default().to_owned();
    let found = document["diagnostics"].as_array().unwrap().iter();
    found.map(|one| ["rule", "message", "help"].map(|key| text(one, key))).collect()
}

#[tokio::test]
async fn a_promotion_that_the_results_speak_against_is_an_error() {
    let ran = promote(40, "dune-example/torch-dune", "  basalt:").await.expect_code(1);
    let [[rule, message, help]] = &found(&ran)[..] else { panic!("{}", ran.report()) };
    assert_eq!(rule, "criteria-not-met");
    assert!(
        message.starts_with("`dune-example/torch-dune` goes up from L2 to L3, and doesn't meet: ")
    );
    assert!(message.contains("CI job pass rate") && message.contains("average queue"), "{message}");
    assert!(!message.contains("time at L2"), "{message}");
    let page = "/crcr/dune-example/torch-dune/level?to=2026-09-15T12:00:00Z";
    assert!(help.contains(page), "{help}");
}

#[tokio::test]
async fn a_promotion_that_comes_early_is_told_which_time_is_missing() {
    let ran = promote(10, "cedar-example/torch-cedar", "  basalt:").await.expect_code(1);
    let [[rule, message, _]] = &found(&ran)[..] else { panic!("{}", ran.report()) };
    assert_eq!(rule, "criteria-not-met");
    assert!(message.contains("time at L2 10 days, target 30 days"), "{message}");
}

#[tokio::test]
async fn without_results_there_is_no_evidence() {
    for (repo, level) in
        [("cedar-example/torch-cedar", "  basalt:"), ("ember-example/torch-ember", "L2:")]
    {
        let ran = promote(0, repo, level).await.expect_code(0);
        let rules: Vec<_> = found(&ran).into_iter().map(|[rule, ..]| rule).collect();
        assert!(rules.contains(&"no-evidence".to_owned()), "{}", ran.report());
        assert!(!rules.contains(&"criteria-not-met".to_owned()), "{}", ran.report());
    }
}

#[test]
fn a_store_that_is_not_there_is_exit_2_and_stays_away() {
    let run = Crcr::new(&["allowlist", "diff", "a.yml", "a.yml", "--results", "crcr.db"]);
    fs::write(run.folder().join("a.yml"), "L1: [a/b]\n").unwrap();
    let ran = run.run().expect_code(2);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("results-unreadable"), "{}", ran.report());
    assert!(!ran.path("crcr.db").exists());
}
