//! The upstream's templates for its allowlist, run by a real workflow runner.

use std::fs;

use crcr_standin::generate::{ALLOWLIST, facts};
use crcr_standin::runs::Run;
use crcr_standin::world::PullRequest;
use crcr_store::{SqliteStore, StateStore as _, StoreRole, WriteBatch};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use serde_yaml::Value;

use crate::act::{Outside, Ran, git, read};
use crate::relay_process::{Place, UPSTREAM};

const FILE: &str = ".github/allowlist.yml";

/// The template `name`, with the binary under test. `actions/upload-artifact` and
/// `actions/download-artifact` can't be had here: the project's own actions are in their place.
fn template(name: &str) -> String {
    let mut workflow: Value =
        serde_yaml::from_str(&read(&format!("workflows-templates/{name}"))).unwrap();
    for (_, job) in workflow["jobs"].as_mapping_mut().unwrap() {
        for step in job["steps"].as_sequence_mut().unwrap() {
            let uses = step.get("uses").and_then(Value::as_str).unwrap_or_default().to_owned();
            for (theirs, ours) in [
                ("actions/upload-artifact@", "upload-artifact-with-fallback"),
                ("actions/download-artifact@", "download-artifact-with-fallback"),
            ] {
                if uses.starts_with(theirs) {
                    step["uses"] = format!("pytorch/crcr/actions/{ours}@v1").into();
                    step["with"]["binary"] = crate::act::binary().into();
                    if ours.starts_with("download") {
                        step["with"]["allow-fork"] = true.into();
                    }
                }
            }
            if uses.starts_with("pytorch/crcr") {
                step["with"]["binary"] = crate::act::binary().into();
            }
        }
    }
    serde_yaml::to_string(&workflow).unwrap()
}

/// An option that gives the job a token with these permissions.
fn token(outside: &Outside, permissions: &[(&str, &str)]) -> [String; 2] {
    let token = outside.github.state().world.job_token(UPSTREAM, permissions);
    ["--secret".to_owned(), format!("GITHUB_TOKEN={token}")]
}

#[tokio::test]
#[ignore = "needs act and node"]
async fn levels_template_opens_a_demotion_by_the_huds_results_and_keeps_it_in_the_next_run() {
    let place = Place::new(&[], ALLOWLIST);
    // The same at any time of the day: the evidence ends at midnight.
    let midnight = Timestamp::now().to_zoned(TimeZone::UTC).start_of_day().unwrap().timestamp();
    let store = SqliteStore::open(&place.database(), StoreRole::Server).unwrap();
    let facts = facts(7, midnight, 35, 6, UPSTREAM);
    store.commit(WriteBatch { facts, ..WriteBatch::default() }, midnight).await.unwrap();
    drop(store);
    let hud = place.serve();
    hud.ready().await;

    let mut outside = Outside::new(Run { event: "schedule".to_owned(), ..Run::push() });
    outside.write("levels.yml", &template("levels-sync.yml"));
    let write = [("contents", "write"), ("pull_requests", "write")];
    outside.options = [
        token(&outside, &write).as_slice(),
        &["--var".to_owned(), format!("CRCR_HUD_URL={}", hud.url)],
    ]
    .concat();
    outside.github.state().world.put_file(UPSTREAM, FILE, ALLOWLIST);
    let variables = outside.runner_variables();
    let Ran { succeeded, log } = outside.run(&variables, false);
    assert!(succeeded, "{log}");
    let pulls = || outside.github.state().world.pulls(UPSTREAM);
    let opened = pulls();
    assert!(!opened.is_empty(), "{log}");
    for pull in &opened {
        assert!(pull.title.starts_with("[crcr] Demote "), "{}", pull.title);
        assert!(pull.body.contains(&format!("](<{}crcr/", hud.url)), "{}", pull.body);
    }
    let Ran { succeeded, log } = outside.run(&variables, false);
    assert!(succeeded, "{log}");
    assert!(log.contains("keep "), "{log}");
    assert!(pulls().iter().all(|pull| pull.open) && pulls().len() == opened.len(), "{log}");
}

#[test]
#[ignore = "needs act and node"]
fn review_templates_leave_one_comment_that_the_next_run_replaces() {
    let mut outside = Outside::new(Run::fork());
    let (number, head) = (outside.run.pull_request.unwrap(), outside.run.sha.clone());
    outside.options = token(&outside, &[("actions", "read"), ("pull_requests", "write")]).to_vec();
    let pull = PullRequest::from_fork(number, UPSTREAM, &head, Timestamp::now());
    outside.github.state().world.put_pull(UPSTREAM, pull);
    let checkout = outside.path("checkout");
    outside.write("review.yml", &template("allowlist-review.yml"));
    outside.write("comment.yml", &template("allowlist-review-comment.yml"));
    git(&checkout, &["init", "--quiet", "--initial-branch", "main"]);
    git(&checkout, &["remote", "add", "origin", "https://github.com/acme/upstream.git"]);
    let commit = |text: &str| {
        fs::write(checkout.join(FILE), text).unwrap();
        git(&checkout, &["add", "--all"]);
        git(&checkout, &["commit", "--quiet", "--message", "list"]);
    };
    commit("L1: [acme/one]\nL2: [acme/two]\n");
    git(&checkout, &["tag", "base"]);
    let invalid = "L1: [acme/one]\nL2: [acme/two, Acme/One]\n";
    let promotes = "L2: [acme/one, acme/two]\n";
    for (id, allowlist, valid, expected) in [
        (4242, invalid, false, "### Allowlist: 1 error"),
        (4243, promotes, true, "| promoted | <code>acme/one</code> | L1 → L2 |"),
    ] {
        git(&checkout, &["reset", "--quiet", "--hard", "base"]);
        commit(allowlist);
        let pushed = Run { id, ..Run::fork() };
        outside.run = pushed.clone();
        let variables = outside.runner_variables();
        outside.payload = pushed.payload();
        let Ran { succeeded, log } = outside.run(&variables, false);
        assert_eq!(succeeded, valid, "{log}");

        outside.run = Run { event: "workflow_run".to_owned(), ..pushed.clone() };
        let state = outside.github.state();
        outside.payload = json!({
            "action": "completed", "repository": pushed.payload()["repository"],
            "workflow_run": state.runs.get(id).unwrap().api(state.origin()),
        });
        let Ran { succeeded, log } = outside.run(&variables, false);
        assert!(succeeded, "{log}");
        let comments = outside.github.state().world.comments(UPSTREAM, number);
        assert_eq!(comments.len(), 1, "{log}");
        assert!(comments[0].body.contains(expected), "{}", comments[0].body);
    }
}
