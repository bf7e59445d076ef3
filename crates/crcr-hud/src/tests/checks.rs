//! What the check run of a backend at L4 says counts for pull requests and branches, and not what its jobs said so far.

use crcr_domain::checks::check_run::CheckRunStatus;
use crcr_domain::results::facts::{CheckFact, DispatchFactStatus};

use super::*;

fn check(sha: &str, minutes: i64, status: CheckRunStatus) -> Fact {
    Fact::Check(CheckFact {
        at: now() - jiff::SignedDuration::from_mins(minutes),
        upstream: UPSTREAM.to_owned(),
        head_sha: sha.repeat(20),
        repo: AURORA.to_owned(),
        status,
        title: format!("Why <b>{sha}</b>"),
    })
}

/// A dispatch of pull request 7 an hour ago, and its job, which ended half an hour ago.
fn answered(conclusion: Option<Conclusion>) -> Vec<Fact> {
    let (dispatch, attempt) = of_aurora();
    let at = now() - jiff::SignedDuration::from_mins(60);
    let sent = DispatchFact {
        enqueued_at: at,
        pull_request: Some(7),
        head_sha: "f2".repeat(20),
        status: DispatchFactStatus::Sent,
        ..dispatch
    };
    let attempt = conclusion.map(|conclusion| {
        Fact::Attempt(Box::new(AttemptFact {
            delivery: sent.delivery.clone(),
            dispatched_at: at,
            received_at: now() - jiff::SignedDuration::from_mins(30),
            state: JobState::Completed(conclusion),
            missing_proof: None,
            pull_request: Some(7),
            head_sha: sent.head_sha.clone(),
            event: EventName::PullRequest,
            ..attempt
        }))
    });
    [Some(Fact::Dispatch(sent)), attempt].into_iter().flatten().collect()
}

/// The standing of pull request 7 in the list, the state of its backend on its page, and that page.
async fn told(facts: Vec<Fact>) -> (String, String, String) {
    let site = site(facts).await;
    let pulls = site.json("/api/v1/pulls").await;
    let pull = site.json("/api/v1/pulls/7").await;
    let (_, page) = site.get("/pr/7").await;
    let (listed, state) = (&pulls["pulls"][0], &pull["backends"][0]["state"]);
    assert_eq!(listed["backends"][0]["state"], *state, "the list and the page say the same");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    (text(&listed["standing"]), text(state), page)
}

#[tokio::test]
async fn list_says_what_blocks_in_the_words_of_the_pull_requests_page() {
    let site = site(answered(Some(Conclusion::Cancelled))).await;
    let pulls = site.json("/api/v1/pulls").await;
    let page = site.json("/api/v1/pulls/7").await;
    let listed = &pulls["pulls"][0];
    assert_eq!(listed["standing"], "blocked", "{listed}");
    assert_eq!(listed["why"], page["backends"][0]["sentence"]);
}

#[tokio::test]
async fn jobs_that_passed_block_still_while_the_check_run_waits_or_has_failed() {
    use CheckRunStatus::{Completed, InProgress, Queued};
    let passed = || answered(Some(Conclusion::Success));
    let failed = || answered(Some(Conclusion::Failure));
    let ended = |conclusion| Completed(conclusion);
    for (jobs, minutes, status, standing, state) in [
        (passed(), 40, InProgress, "running", "running"),
        (passed(), 1, Queued, "running", "running"),
        (passed(), 20, ended(Conclusion::Success), "green", "passed"),
        (passed(), 20, ended(Conclusion::TimedOut), "blocked", "broken"),
        (failed(), 40, InProgress, "blocked", "failed"),
        (failed(), 20, ended(Conclusion::Failure), "blocked", "failed"),
        // The breaker: nobody is blocked by it.
        (failed(), 20, ended(Conclusion::Neutral), "untold", "skipped"),
        // A re-run is green, and what is stored of it is of before.
        (failed(), 20, ended(Conclusion::Success), "green", "passed"),
        // The report is newer than the check run.
        (failed(), 40, ended(Conclusion::Success), "blocked", "failed"),
        (passed(), 40, ended(Conclusion::Failure), "blocked", "broken"),
        (answered(None), 20, InProgress, "running", "running"),
        (answered(None), 20, ended(Conclusion::Failure), "blocked", "broken"),
    ] {
        let facts = [jobs, vec![check("f2", minutes, status)]].concat();
        let (found, shown, page) = told(facts).await;
        assert_eq!((&*found, &*shown), (standing, state), "{status:?}");
        assert!(!page.contains("<b>f2"), "{page}");
        if state == "running" || state == "broken" {
            assert!(!page.contains("Nothing blocks"), "{status:?}: {page}");
        }
        if standing == "green" {
            assert!(page.contains("every backend at L4 has ended, and none failed"), "{page}");
        }
    }
    let (_, _, page) = told([passed(), vec![check("f2", 1, InProgress)]].concat()).await;
    assert!(page.contains("Its check run says: Why &lt;b&gt;f2"), "{page}");
    let (standing, _, page) = told(passed()).await;
    assert_eq!(standing, "green", "of before check runs were stored");
    assert!(page.contains("Nothing blocks so far"), "{page}");
}

#[tokio::test]
async fn nothing_waits_for_backends_of_what_is_merged() {
    let of_pull = || answered(Some(Conclusion::Failure));
    let mut of_branch = of_pull();
    for fact in &mut of_branch {
        match fact {
            Fact::Dispatch(sent) => (sent.event, sent.pull_request) = (EventName::Push, None),
            Fact::Attempt(row) => (row.event, row.pull_request) = (EventName::Push, None),
            _ => {}
        }
    }
    let sha = "f2".repeat(20);
    let commit = format!("/commit/{sha}");
    let merged = json!({ "id": 7, "number": 7, "state": "closed", "merged": true, "head": { "sha": sha, "ref": "topic" } });
    let merged = ("pull_request", 1, json!({ "number": 7, "pull_request": merged }));
    for (facts, webhooks, path, is_merged) in [
        (of_pull(), vec![], "/pr/7", false),
        (of_pull(), vec![], &*commit, false),
        (of_pull(), vec![merged.clone()], "/pr/7", true),
        (of_pull(), vec![merged], &*commit, true),
        (of_branch, vec![], &*commit, true),
    ] {
        let site = site(facts).await;
        site.add_webhooks(webhooks).await;
        let (_, page) = site.get(path).await;
        let is_failed = page.contains(&format!("Failed at {AURORA}"));
        let blocks = ["Blocked by", "blocks the merge"].map(|text| page.contains(text));
        assert_eq!((is_failed, blocks), (is_merged, [!is_merged; 2]), "{path}: {page}");
    }
}

#[tokio::test]
async fn check_run_of_a_backend_that_does_not_block_changes_nothing() {
    let mut facts = answered(Some(Conclusion::Success));
    for fact in &mut facts {
        match fact {
            Fact::Dispatch(sent) => sent.level = Level::L3,
            Fact::Attempt(row) => row.level = Level::L3,
            _ => {}
        }
    }
    facts.push(check("f2", 1, CheckRunStatus::InProgress));
    let (standing, state, _) = told(facts).await;
    assert_eq!((&*standing, &*state), ("untold", "passed"));
}

#[tokio::test]
async fn branch_is_not_green_before_each_backend_that_was_told_has_answered() {
    let sent = |sha: &str, status| {
        Fact::Dispatch(DispatchFact {
            delivery: format!("of-{sha}"),
            enqueued_at: now() - jiff::SignedDuration::from_hours(2),
            event: EventName::Push,
            pull_request: None,
            head_sha: sha.repeat(20),
            status,
            ..of_aurora().0
        })
    };
    use DispatchFactStatus::{LeftOut, NeverStarted, Sent};
    let success = |sha| pushed(sha, Conclusion::Success);
    for (more, cell, green) in [
        (vec![success("b2"), sent("b2", Sent)], json!("passed"), "b2"),
        (vec![sent("b2", Sent)], json!(null), "a1"),
        (vec![sent("b2", NeverStarted)], json!("never_started"), "a1"),
        (vec![success("b2"), check("b2", 1, CheckRunStatus::InProgress)], json!(null), "a1"),
        (
            vec![success("b2"), check("b2", 1, CheckRunStatus::Completed(Conclusion::Failure))],
            json!("lost"),
            "a1",
        ),
        (
            vec![success("b2"), check("b2", 1, CheckRunStatus::Completed(Conclusion::Cancelled))],
            json!("cancelled"),
            "a1",
        ),
        (
            vec![pushed("b2", Conclusion::Cancelled), check("b2", 1, CheckRunStatus::InProgress)],
            json!("cancelled"),
            "a1",
        ),
    ] {
        let site = site([vec![success("a1")], more].concat()).await;
        let passed =
            |sha, minutes| [branches::push(sha, minutes), branches::job(sha, Some("success"))];
        site.add_webhooks([passed("a1", 99), passed("b2", 98)].concat()).await;
        let grid = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
        let at = grid["backends"].as_array().unwrap().iter().position(|one| one["repo"] == AURORA);
        let found = &grid["commits"][0]["backend_cells"][at.unwrap()];
        assert_eq!(found["outcome"], cell, "{found}");
        let now = site.json("/api/v1/now").await;
        assert_eq!(now["branches"][0]["green"]["sha"], green.repeat(20), "{found}");
    }
    // It says itself that it doesn't take the commit.
    let site = site(vec![success("a1"), sent("b2", LeftOut)]).await;
    let passed = |sha, minutes| [branches::push(sha, minutes), branches::job(sha, Some("success"))];
    site.add_webhooks([passed("a1", 99), passed("b2", 98)].concat()).await;
    let now = site.json("/api/v1/now").await;
    assert_eq!(now["branches"][0]["green"]["sha"], "b2".repeat(20), "{now}");
}
