//! `crcr allowlist diff --results`: promotions reviewed by recorded results.

use std::fs;

use crcr_standin::generate::{ALLOWLIST, facts};
use crcr_store::sqlite::{SqliteStore, StoreRole};
use crcr_store::{StateStore as _, WriteBatch};
use jiff::Timestamp;
use serde_json::Value;

use crate::support::{Crcr, Ran};

const UNTIL: &str = "2026-09-15T12:00:00Z";

/// Reviews the change of level of a generated backend by `days` days of results.
async fn promote(days: u32, repo: &str, level: &str) -> Ran {
    change(days, repo, level, "json", "{}").await.run()
}

/// The same, in any format and with other criteria.
async fn change(days: u32, repo: &str, level: &str, format: &str, criteria: &str) -> Crcr {
    let args = ["allowlist", "diff", "old.yml", "new.yml", "--format", format];
    let run = Crcr::new(&args).arg("--results=sqlite:crcr.db").arg("--until").arg(UNTIL);
    let run = run.arg("--criteria=criteria.yml");
    fs::write(run.folder().join("criteria.yml"), criteria).unwrap();
    let until: Timestamp = UNTIL.parse().unwrap();
    let store = SqliteStore::open(&run.folder().join("crcr.db"), StoreRole::Server).unwrap();
    let facts = facts(7, until, days, 10, "pytorch/pytorch");
    store.commit(WriteBatch { facts, ..WriteBatch::default() }, until).await.unwrap();
    let named = |line: &&str| line.contains(repo);
    let old = ALLOWLIST.lines().find(named).unwrap();
    let without = ALLOWLIST.replacen(&format!("{old}\n"), "", 1);
    let item = if level == "L2:" { format!("  - {repo}") } else { format!("    {repo}: [x]") };
    let new = without.replacen(&format!("{level}\n"), &format!("{level}\n{item}\n"), 1);
    assert_eq!(new.matches(repo).count(), 1, "{new}");
    fs::write(run.folder().join("old.yml"), ALLOWLIST).unwrap();
    fs::write(run.folder().join("new.yml"), new).unwrap();
    run
}

const EASY: &str = "{queue-seconds: 1e6, overrun-share: 1, end-to-end-seconds: 1e6,
                     timeout-share: 1, job-pass-share: 0}";

/// Rule, message and help of each finding.
fn found(ran: &Ran) -> Vec<[String; 3]> {
    let document: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()));
    let text = |found: &Value, key: &str| found[key].as_str().unwrap_or_default().to_owned();
    let found = document["diagnostics"].as_array().unwrap().iter();
    found.map(|one| ["rule", "message", "help"].map(|key| text(one, key))).collect()
}

#[tokio::test]
async fn promotion_that_misses_criteria_is_an_error() {
    let ran = promote(40, "dune-example/torch-dune", "  basalt:").await.expect_code(1);
    let [[rule, message, help]] = &found(&ran)[..] else { panic!("{}", ran.report()) };
    assert_eq!(rule, "criteria-not-met");
    assert!(
        message.starts_with("`dune-example/torch-dune` goes up from L2 to L3 but doesn't meet: ")
    );
    assert!(message.contains("CI job pass rate") && message.contains("average queue"), "{message}");
    assert!(!message.contains("time at L2"), "{message}");
    let page = "/crcr/dune-example/torch-dune/level?level=L2&from=2026-09-01T12:00:00Z\
                &to=2026-09-15T12:00:00Z";
    assert!(help.contains(page), "{help}");
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let [evidence] = &document["evidence"].as_array().unwrap()[..] else { panic!("{document:#}") };
    assert_eq!(evidence["permalink"], page);
    let pass = evidence["evidence"].as_array().unwrap().last().unwrap();
    assert_eq!((&pass["criterion"], &pass["verdict"]), (&"job_pass".into(), &"not_met".into()));
    assert!(pass["n"].as_u64() > Some(300) && pass["value"].as_f64() < Some(0.9), "{pass}");
}

#[tokio::test]
async fn early_promotion_names_the_criterion_of_time_at_l2() {
    let ran = promote(10, "cedar-example/torch-cedar", "  basalt:").await.expect_code(1);
    let [[rule, message, _]] = &found(&ran)[..] else { panic!("{}", ran.report()) };
    assert_eq!(rule, "criteria-not-met");
    assert!(message.contains("time at L2 10 days, target ≥ 30 days"), "{message}");
}

#[tokio::test]
async fn promotion_without_results_is_a_no_evidence_warning() {
    for (repo, level) in
        [("cedar-example/torch-cedar", "  basalt:"), ("ember-example/torch-ember", "L2:")]
    {
        let ran = promote(0, repo, level).await.expect_code(0);
        let rules: Vec<_> = found(&ran).into_iter().map(|[rule, ..]| rule).collect();
        assert!(rules.contains(&"no-evidence".to_owned()), "{}", ran.report());
        assert!(!rules.contains(&"criteria-not-met".to_owned()), "{}", ran.report());
    }
}

#[tokio::test]
async fn demotion_is_reviewed_by_the_criteria_of_the_old_level() {
    let repo = "aurora-example/torch-aurora";
    let rules = async |criteria: &str| {
        let ran = change(10, repo, "  basalt:", "json", criteria).await.run().expect_code(0);
        let document: Value = serde_json::from_str(&ran.stdout).unwrap();
        let evidence = &document["evidence"][0];
        assert_eq!(evidence["question"], "stay");
        assert!(evidence["permalink"].as_str().unwrap().contains("level=L4&"), "{evidence}");
        let rules: Vec<_> = found(&ran).into_iter().map(|[rule, ..]| rule).collect();
        (evidence["verdict"].clone(), rules)
    };
    // Nobody passes more often than always.
    let (verdict, told) = rules("job-pass-share: 1").await;
    assert_eq!(
        (verdict, &told[..]),
        ("not_met".into(), &["demotion-without-reason".to_owned()][..])
    );
    let (verdict, told) = rules(EASY).await;
    assert_eq!(verdict, "met");
    assert_eq!(told, ["demotion-without-reason", "no-evidence"]);
}

#[tokio::test]
async fn review_is_printed_as_a_table_with_a_link() {
    let repo = "dune-example/torch-dune";
    let run = change(40, repo, "  basalt:", "text", "{}").await.arg("--hud-url=https://hud.test/");
    let ran = run.run().expect_code(1);
    let link = "https://hud.test/crcr/dune-example/torch-dune/level?level=L2&from=2026-09-01T12:00:00Z\
                &to=2026-09-15T12:00:00Z";
    for text in ["L2. May it be promoted to L3? not met\n", "  criterion ", "≥ 30 days", link] {
        assert!(ran.stdout.contains(text), "{text}\n{}", ran.report());
    }
    let run = change(40, repo, "  basalt:", "markdown", "{}").await;
    let ran = run.arg("--hud-url=https://hud.test").run().expect_code(1);
    for text in ["| criterion | value | target | n | verdict |\n|---|", "| &lt; 30 min |", link] {
        assert!(ran.stdout.contains(text), "{text}\n{}", ran.report());
    }
}

#[tokio::test]
async fn invalid_criteria_are_exit_1() {
    let run = change(1, "cedar-example/torch-cedar", "  basalt:", "text", "job-pass: 1").await;
    let ran = run.run().expect_code(1);
    assert!(ran.stdout.is_empty(), "{}", ran.report());
    assert!(ran.stderr.contains("error[criteria]"), "{}", ran.report());
    assert!(ran.stderr.contains("unknown field `job-pass`"), "{}", ran.report());
}

#[test]
fn missing_store_is_exit_2_and_isnt_created() {
    let run = Crcr::new(&["allowlist", "diff", "a.yml", "a.yml", "--results", "crcr.db"]);
    fs::write(run.folder().join("a.yml"), "L1: [a/b]\n").unwrap();
    let ran = run.run().expect_code(2);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("results-unreadable"), "{}", ran.report());
    assert!(!ran.path("crcr.db").exists());
}

#[tokio::test]
async fn validation_of_a_pull_request_with_results_puts_the_evidence_into_its_comment() {
    let args = ["allowlist", "validate", "new.yml", "--base=old.yml", "--results=crcr.db"];
    let run = Crcr::step(&args, "pull_request", &serde_json::json!({}));
    let run = run.arg("--hud-url=https://hud.test");
    let prepared = change(40, "dune-example/torch-dune", "  basalt:", "json", "{}").await;
    for file in ["old.yml", "new.yml", "crcr.db"] {
        fs::copy(prepared.folder().join(file), run.folder().join(file)).unwrap();
    }
    let ran = run.run();
    let comment = &ran.outputs["comment"];
    for told in [
        "#### `dune-example/torch-dune`: L2. May it be promoted to L3?",
        "| CI job pass rate |",
        "](<https://hud.test/crcr/dune-example/torch-dune/level?level=L2&from=",
    ] {
        assert!(comment.contains(told), "{told}\n{}", ran.report());
    }
    // The generated results end before today, so there are none to speak for the promotion.
    assert!(comment.contains("no-evidence") || comment.contains("criteria-not-met"), "{comment}");
}
