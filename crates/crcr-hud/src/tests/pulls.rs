use crcr_domain::probes::{Culprit, ProbesOverview, SuspectCommit};
use crcr_domain::protocol::callback::FailedTest;
use crcr_domain::results::facts::DispatchFactStatus;

use super::one_test::HOSTILE;
use super::*;

#[tokio::test]
async fn a_pull_request_of_another_upstream_does_not_show_up() {
    let mut facts = facts(7, now(), 3, 10, UPSTREAM);
    for fact in &mut facts {
        match fact {
            Fact::Dispatch(fact) => fact.upstream = "other/upstream".to_owned(),
            Fact::Attempt(fact) => fact.upstream = "other/upstream".to_owned(),
            Fact::MergeBase(fact) => fact.upstream = "other/upstream".to_owned(),
            Fact::Callback(_) | Fact::Check(_) => {}
        }
    }
    let site = site(facts).await;
    assert_eq!(site.get("/pr/101002").await.0, StatusCode::NOT_FOUND);
    let other = site.json("/api/v1/pulls/101002?upstream=Other/Upstream").await;
    assert_eq!(other["number"], 101_002);
}

#[tokio::test]
async fn job_that_failed_stands_before_those_that_passed_and_a_dozen_of_these_are_folded() {
    let mut all = branched(2, true);
    let failed = all.iter().find_map(|fact| match fact {
        Fact::Attempt(row) if row.pull_request == Some(7) => Some(row.clone()),
        _ => None,
    });
    let failed = failed.unwrap();
    let passed = |n: usize| AttemptFact {
        job: Some(format!("a leg {n}")),
        state: JobState::Completed(Conclusion::Success),
        details: ReportDetails::default(),
        ..*failed.clone()
    };
    for (more, is_folded) in [(2, false), (12, true)] {
        all.extend((0..more).map(|n| Fact::Attempt(Box::new(passed(n)))));
        let (_, page) = site(all.clone()).await.get("/pr/7").await;
        let (_, card) = page.split_once("<ul class=\"jobs\">").unwrap();
        let (bad, leg) = (card.find("outcome bad").unwrap(), card.find("a leg 0").unwrap());
        assert!(bad < leg, "what failed is first: {card}");
        let fold = "<summary>12 other jobs</summary>";
        assert_eq!(card.contains(fold), is_folded, "{card}");
    }
}

#[tokio::test]
async fn contributor_gets_the_command_that_repeats_a_backends_failure_if_the_hud_has_an_address() {
    let site = site(branched(2, true)).await;
    assert!(!site.get("/pr/7").await.1.contains("crcr reproduce"), "the command needs an address");
    let site = site.with_logs("file:/none", |hud| {
        hud.public_url = Some("https://hud.example".to_owned());
    });
    let (_, page) = site.get("/pr/7").await;
    let command = format!("7 --upstream {UPSTREAM} --backend {AURORA} --hud https://hud.example");
    assert!(page.contains(&format!("<code>crcr reproduce {command}</code>")), "{page}");
}

/// The facts of pull request 7, whose test of aurora fails, and of upstream's pushes: where it
/// branched off, `days` ago, where the test passed; and of today, where it fails.
pub(crate) fn branched(days: i64, learned: bool) -> Vec<Fact> {
    let (dispatch, attempt) = of_aurora();
    let row = |sha: &str, pull_request, hours, conclusion| {
        let at = now() - jiff::SignedDuration::from_hours(hours);
        Fact::Attempt(Box::new(AttemptFact {
            delivery: format!("of-{sha}"),
            dispatched_at: at,
            received_at: at + std::time::Duration::from_secs(600),
            event: if pull_request == Some(7) { EventName::PullRequest } else { EventName::Push },
            state: JobState::Completed(conclusion),
            details: ReportDetails { phase: None, ..attempt.details.clone() },
            pull_request,
            head_sha: sha.repeat(20),
            ..attempt.clone()
        }))
    };
    let fork_hours = days * 24;
    let mut all = vec![
        row("f0", None, fork_hours - 2, Conclusion::Success),
        row("f1", None, 5, Conclusion::Failure),
        row("f2", Some(7), 3, Conclusion::Failure),
        Fact::Dispatch(DispatchFact {
            delivery: "of-f2".to_owned(),
            enqueued_at: now() - jiff::SignedDuration::from_hours(3),
            event: EventName::PullRequest,
            pull_request: Some(7),
            head_sha: "f2".repeat(20),
            ..dispatch
        }),
    ];
    if learned {
        all.push(Fact::MergeBase(MergeBaseFact {
            at: now(),
            upstream: UPSTREAM.to_owned(),
            pull_request: 7,
            head_sha: "f2".repeat(20),
            merge_base: "f0".repeat(20),
            committed_at: now() - jiff::SignedDuration::from_hours(fork_hours),
            changed_files: vec![],
        }));
    }
    all
}

#[tokio::test]
async fn verdict_rests_on_the_merge_base_however_old_it_is() {
    for days in [2, 60] {
        let site = site(branched(days, true)).await;
        let pull = site.json("/api/v1/pulls/7").await;
        assert_eq!(pull["merge_base"], "f0".repeat(20));
        let verdict = &pull["backends"][0]["verdict"];
        assert_eq!(
            (&verdict["category"], &verdict["confidence"]),
            (&"unknown".into(), &"medium".into())
        );
        let (_, page) = site.get("/pr/7").await;
        let sentence = "This pull request or the backend: it passed on the merge base";
        assert!(page.contains(sentence), "{page}");
        assert!(page.contains(" on f0f0f0f0f0f0"), "the evidence names the commit: {page}");
        assert!(page.contains(" · merge base <a href=\"/commit/f0f0f0f"), "{page}");
    }
    let mut unheard = branched(2, true);
    unheard.retain(|fact| match fact {
        Fact::Attempt(row) => row.head_sha != "f0".repeat(20),
        Fact::Dispatch(row) => row.head_sha != "f0".repeat(20),
        _ => true,
    });
    let (_, page) = site(unheard).await.get("/pr/7").await;
    let on_github = format!(" · merge base <a href=\"https://github.com/{UPSTREAM}/commit/f0f0f0f");
    assert!(page.contains(&on_github), "it has no page here: {page}");
    let pull = site(branched(2, false)).await.json("/api/v1/pulls/7").await;
    let verdict = &pull["backends"][0]["verdict"];
    assert_eq!(
        verdict["summary"],
        "Not this pull request: it failed on the newest commit upstream with a result, too"
    );
    assert_eq!(pull["merge_base"], serde_json::Value::Null);
}

#[tokio::test]
async fn verdict_of_the_backend_is_shown_with_its_analyzer_and_whom_it_suspects() {
    let mut facts = branched(2, true);
    let triage = serde_json::json!({
        "schema_version": 1, "category": "upstream", "confidence": "low",
        "summary": "<b>it</b> broke", "analyzer": {"name": "acme-triage"},
        "suspected_upstream": {"pr": 99, "reason": "it renamed `foo`"},
        "evidence": [{"test": "test_foo", "log_url": "https://logs.acme.test/1"}],
    });
    for fact in &mut facts {
        if let Fact::Attempt(row) = fact {
            row.details.triage =
                Some(crcr_domain::results::triage::TriageVerdict::read(&triage).unwrap());
            row.details.environment = Some("npu-910b".to_owned());
            row.details.artifact_url = Some("https://artifacts.acme.test/7".to_owned());
        }
    }
    let site = site(facts).await;
    let (_, page) = site.get("/pr/7").await;
    for expected in [
        "acme-triage</bdi> says: upstream (low confidence): <bdi>&lt;b&gt;it&lt;/b&gt; broke",
        "suspects <a href=\"/pr/99?upstream=acme%2Fupstream\">pull request 99</a>",
        "href=\"https://logs.acme.test/1\"",
        "on <bdi>npu-910b</bdi>",
        "href=\"https://artifacts.acme.test/7\"",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    let pull = site.json("/api/v1/pulls/7").await;
    let job = &pull["backends"][0]["jobs"][0];
    assert_eq!(job["reported_verdict"]["suspected_upstream"]["pr"], 99);
    assert_eq!(job["verdict"]["analyzer"]["name"], "crcr");
}

#[tokio::test]
async fn cancelled_job_is_to_be_run_again_and_its_own_run_is_linked() {
    let mut facts = branched(2, true);
    let attempt = facts.iter_mut().find_map(|fact| match fact {
        Fact::Attempt(row) if row.pull_request == Some(7) => Some(row),
        _ => None,
    });
    let cancelled = attempt.unwrap();
    cancelled.details.failed_tests = vec![];
    let mut passed = cancelled.clone();
    for (row, job, conclusion) in
        [(&mut *cancelled, "zz", Conclusion::Cancelled), (&mut passed, "aa", Conclusion::Success)]
    {
        (row.job, row.state) = (Some(job.to_owned()), JobState::Completed(conclusion));
        row.details.url = Some(format!("https://ci.acme.test/{job}"));
    }
    facts.push(Fact::Attempt(passed));
    let site = site(facts).await;
    let pull = site.json("/api/v1/pulls/7").await;
    assert_eq!(pull["backends"][0]["jobs"].as_array().unwrap().len(), 2, "{pull}");
    let (_, page) = site.get("/pr/7").await;
    let next = page.split("Next: ").nth(1).unwrap().split("</p>").next().unwrap();
    for expected in
        ["it was cancelled: ", "Re-run it", "https://ci.acme.test/zz", "if it is cancelled again, "]
    {
        assert!(next.contains(expected), "{expected}: {next}");
    }
    assert!(!next.contains("failing tests") && !next.contains("/aa"), "{next}");
}

#[tokio::test]
async fn failed_test_of_a_backend_leads_to_where_else_it_failed() {
    let mut facts = branched(2, true);
    for fact in &mut facts {
        if let Fact::Attempt(row) = fact {
            row.details.failed_tests = vec![FailedTest {
                name: "odd <test> & more".to_owned(),
                file: Some("odd.py".to_owned()),
                ..FailedTest::default()
            }];
        }
    }
    let site = site(facts).await;
    let (_, page) = site.get("/pr/7").await;
    let (_, link) = page.split_once("href=\"/reported?").expect(&page);
    let query = link.split('"').next().unwrap().replace("&amp;", "&");
    let found = site.json(&format!("/api/v1/reported?{query}")).await;
    let jobs = found["jobs"].as_array().unwrap();
    assert!(jobs.iter().any(|job| job["pull_request"] == 7), "{query}: {found}");
    assert!(jobs.iter().all(|job| job["repo"] == AURORA), "{query}: {found}");
}

/// The same as [`branched`], with a second backend that has the same results.
fn branched_for_two() -> Vec<Fact> {
    let mut facts = branched(2, true);
    let of_other = |fact: &Fact| match fact {
        Fact::Attempt(row) => {
            let repo = "basalt-example/torch-basalt".to_owned();
            Some(Fact::Attempt(Box::new(AttemptFact { repo, ..(**row).clone() })))
        }
        _ => None,
    };
    let others: Vec<Fact> = facts.iter().filter_map(of_other).collect();
    facts.extend(others);
    facts
}

#[tokio::test]
async fn author_of_a_change_that_broke_two_backends_is_not_told_that_it_was_not_the_change() {
    let next = async |facts: Vec<Fact>| {
        let (_, page) = site(facts).await.get("/pr/7").await;
        let next = page.split("Next: ").nth(1).unwrap().split("</p>").next().unwrap();
        (page.clone(), next.to_owned())
    };
    let tags = async |facts: Vec<Fact>| -> Vec<String> {
        let site = site(facts).await;
        let mut tags = vec![];
        for path in ["/", "/prs", "/pr/7", "/crcr/aurora-example/torch-aurora"] {
            let (_, page) = site.get(path).await;
            let known = ["this change", "broken before", "upstream"];
            let is_tag = |text: &&str| page.contains(&format!("<span class=\"tag\">{text}"));
            tags.push(known.into_iter().filter(is_tag).collect());
        }
        tags
    };
    assert_eq!(tags(branched_for_two()).await, ["this change"; 4]);
    let (page, told) = next(branched_for_two()).await;
    assert!(page.contains("This pull request: 2 of 2 backends have failures"), "{page}");
    for expected in ["this change is the likely cause: ", "fix it, or revert it", "Re-run it"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert!(!told.contains("it isn't this change"), "{told}");
    let mut broken_before = branched_for_two();
    for fact in &mut broken_before {
        if let Fact::Attempt(row) = fact {
            row.state = JobState::Completed(Conclusion::Failure);
        }
    }
    assert_eq!(tags(broken_before.clone()).await, ["broken before"; 4]);
    let (page, told) = next(broken_before).await;
    assert!(page.contains("Not this pull request: upstream is broken on the merge base"), "{page}");
    assert!(told.contains("it isn't this change. "), "{told}");
}

#[tokio::test]
async fn pull_request_page_has_the_in_tree_jobs_of_its_head() {
    let site = site(branched(2, true)).await;
    let payload = |n: u64, conclusion: &str| {
        serde_json::json!({
            "repository": { "full_name": UPSTREAM },
            "workflow_job": {
                "id": n, "name": format!("lint {n}"), "workflow_name": "Lint", "status": "completed",
                "conclusion": conclusion, "head_sha": "f2".repeat(20), "head_branch": "topic",
                "steps": [{ "name": "ruff", "conclusion": conclusion }],
            },
        })
    };
    let rows = [(1, "success"), (2, "failure")].map(|(n, conclusion)| {
        let body = payload(n, conclusion).to_string();
        WebhookRow::new("workflow_job", &format!("d{n}"), now(), body.as_bytes()).unwrap()
    });
    site.hud.results.append_webhooks(rows.to_vec()).await.unwrap();
    let pull = site.json("/api/v1/pulls/7").await;
    assert_eq!(pull["in_tree"][0]["name"], "lint 2", "failures first");
    let page = site.page_with("/pr/7", "<p>1 failed, 1 passed, 0 still to end</p>").await;
    assert!(page.contains("Lint / lint 2") && page.contains("in step <bdi>ruff"), "{page}");
}

#[tokio::test]
async fn backend_that_was_left_out_is_skipped_and_has_not_passed() {
    let mut facts = branched(2, true);
    facts.retain(|fact| !matches!(fact, Fact::Attempt(row) if row.pull_request == Some(7)));
    for fact in &mut facts {
        if let Fact::Dispatch(sent) = fact {
            sent.status = DispatchFactStatus::LeftOut;
        }
    }
    let site = site(facts).await;
    let pull = site.json("/api/v1/pulls/7").await;
    assert_eq!(pull["backends"][0]["state"], "skipped", "{pull}");
    let pulls = site.json("/api/v1/pulls").await;
    let pull = &pulls["pulls"][0];
    assert_eq!(
        (&pull["standing"], &pull["backends"][0]["state"]),
        (&json!("untold"), &json!("skipped"))
    );
    assert_eq!(site.json("/api/v1/now").await["green"], 0);
    let page = site.page_with("/pr/7", "Nothing blocks: no backend at L4 ran").await;
    assert!(!page.contains("passed: ") && page.contains("skipped: "), "{page}");
    site.page_with("/prs", "torch-aurora: skipped").await;
}

#[tokio::test]
async fn counts_of_a_backends_pull_requests_are_those_of_the_rows() {
    let mut facts = branched(2, true);
    let of_aurora = facts.iter().find_map(|fact| match fact {
        Fact::Dispatch(sent) if sent.pull_request == Some(7) => Some(sent.clone()),
        _ => None,
    });
    let repo = "basalt-example/torch-basalt".to_owned();
    facts.push(Fact::Dispatch(DispatchFact { repo, ..of_aurora.unwrap() }));
    let site = site(facts).await;
    for query in ["backend=basalt", "backend=basalt&show=blocked"] {
        let found = site.json(&format!("/api/v1/pulls?{query}")).await;
        let blocked = found["pulls"].as_array().unwrap();
        assert_eq!(blocked.len(), 1, "{query}: {found}");
        assert_eq!(blocked[0]["blocked_by"], json!([AURORA]), "{query}");
        assert_eq!(found["counts"][0], json!(["blocked", 1]), "{query}: {found}");
    }
}

#[tokio::test]
async fn pull_requests_of_a_backend_at_a_low_level_are_not_said_to_be_none() {
    let site = site(branched(2, true)).await;
    let page = site.page_with("/prs?backend=cedar", "Only backends at L3 and L4 are listed").await;
    let cedar = "<bdi>cedar-example/torch-cedar</bdi></a> is at L2";
    assert!(page.contains(cedar) && !page.contains("No open pull request matches"), "{page}");
    for others in ["no-such", "aurora&author=nobody"] {
        let page = format!("/prs?backend={others}");
        let page = site.page_with(&page, "No open pull request matches").await;
        assert!(!page.contains("Only backends at"), "{page}");
    }
}

#[tokio::test]
async fn results_of_an_older_head_block_no_newer_one_that_nobody_was_told_of() {
    let site = site(branched(2, true)).await;
    let newer = "e9".repeat(20);
    let pull = json!({
        "id": 7, "number": 7, "state": "open", "title": "Pull 7", "updated_at": now().to_string(),
        "head": { "sha": newer, "ref": "topic" },
    });
    site.add_webhooks(vec![("pull_request", 1, json!({ "number": 7, "pull_request": pull }))])
        .await;
    let pulls = site.json("/api/v1/pulls").await;
    assert_eq!(pulls["pulls"][0]["standing"], "untold", "{pulls}");
    let pull = site.json("/api/v1/pulls/7").await;
    assert_eq!((&pull["head_sha"], &pull["backends"]), (&json!(newer), &json!([])), "{pull}");
    let page = site.page_with("/pr/7", "No backend at L3 or L4 was told of this commit").await;
    assert!(!page.contains("Blocked by"), "{page}");
    let older = &pull["heads"][1];
    assert_eq!(older["sha"], "f2".repeat(20));
    let there = site.json(&format!("/api/v1/pulls/7?head={}", "f2".repeat(20))).await;
    assert_eq!(older["state"], there["backends"][0]["state"], "{pull}");
    assert_eq!((&older["state"], &pull["heads"][0]["state"]), (&json!("failed"), &json!(null)));
    let listed = "f2f2f2f2f2</code></a> <span class=\"outcome bad\">";
    assert!(page.contains(listed), "{page}");
    let (_, page) = site.get(&format!("/pr/7?head={}", "f2".repeat(20))).await;
    assert!(page.contains("This is an older head") && page.contains("Blocked by"), "{page}");
}

#[tokio::test]
async fn link_to_an_author_or_an_order_keeps_what_was_chosen() {
    let site = site(branched(2, true)).await;
    let pull = json!({
        "id": 7, "number": 7, "state": "open", "title": "Pull 7", "user": { "login": "ada" },
        "head": { "sha": "f2".repeat(20), "ref": "topic" },
    });
    site.add_webhooks(vec![("pull_request", 1, json!({ "number": 7, "pull_request": pull }))])
        .await;
    let author = "\"/prs?show=blocked&amp;author=ada&amp;sort=-since\"";
    site.page_with("/prs?show=blocked&sort=-since", author).await;
    let sorted = "\"/crcr?window=7d&amp;events=pr&amp;sort=queue&amp;show=silent\"";
    site.page_with("/crcr?show=silent", sorted).await;
}

#[tokio::test]
async fn backend_that_was_demoted_or_removed_no_longer_blocks() {
    let allowlists = [
        ALLOWLIST.to_owned(),
        ALLOWLIST.replace("L4:\n  -", "  aurora:\n   "),
        ALLOWLIST.replace(AURORA, "other/one"),
    ];
    for (allowlist, level) in allowlists.into_iter().zip(["L4", "L3", "L2"]) {
        let site = site(branched(2, true)).await.with_logs("file:none", |hud| {
            let policy = Allowlist::parse(allowlist.as_bytes(), &hud.upstream).accepted().unwrap();
            let policy = Arc::new(policy);
            hud.policy = Box::new(move || Some(Arc::clone(&policy)));
        });
        let blocks = level == "L4";
        let pull = site.json("/api/v1/pulls/7").await;
        let backend = &pull["backends"][0];
        assert_eq!((&backend["level"], &backend["blocks"]), (&json!(level), &json!(blocks)));
        let (_, page) = site.get("/pr/7").await;
        assert_eq!(page.contains("Blocked by"), blocks, "{level}: {page}");
        let now = site.json("/api/v1/now").await;
        assert_eq!(now["blocked"].as_array().unwrap().len(), usize::from(blocks), "{level}");
    }
}

#[tokio::test]
async fn author_reads_on_the_pull_request_what_it_broke_once_that_is_certain() {
    let culprit = |title: &str, is_certain| Culprit {
        repo: "acme/four".to_owned(),
        upstream: UPSTREAM.to_uppercase(),
        workflow: "CI".to_owned(),
        job: Some(HOSTILE.to_owned()),
        tests: vec!["TestOps.test_add".to_owned()],
        good_sha: "f0".repeat(20),
        bad_sha: "f9".repeat(20),
        candidates: 32,
        suspect: Some(SuspectCommit::new("f5".repeat(20), title.to_owned(), None)),
        backend_changed: false,
        certainty: 0.995,
        is_certain,
        runs: 9,
        at: now(),
    };
    for (title, is_certain, is_told) in [
        ("Faster sums (#7)", true, true),
        ("Faster sums (#7)", false, false),
        ("Faster sums (#8)", true, false),
    ] {
        let culprits = vec![culprit(title, is_certain)];
        let overview = ProbesOverview { culprits, ..ProbesOverview::default() };
        let site = site(branched(2, true)).await.with_logs("file:none", |hud| {
            hud.probes = Box::new(move || {
                let overview = overview.clone();
                Box::pin(async { overview })
            });
        });
        let (_, page) = site.get("/pr/7").await;
        let sentence = "broke with f5f5f5f5f5f5, #7: 99.5 % certain after 9 runs";
        assert_eq!(page.contains(sentence), is_told, "{title} {is_certain}: {page}");
        assert!(!page.contains("<script>alert"), "{page}");
        let told = site.json("/api/v1/pulls/7").await["culprits"].as_array().unwrap().len();
        assert_eq!(told, usize::from(is_told));
    }
}

#[tokio::test]
async fn page_lists_a_bounded_number_of_jobs_and_says_how_many_more_there_are() {
    let site = site(branched(2, true)).await;
    let rows = (1..=3100_u64).map(|n| {
        let payload = json!({
            "repository": { "full_name": UPSTREAM },
            "workflow_job": {
                "id": n, "name": format!("leg {n}"), "workflow_name": "Matrix", "status": "completed",
                "conclusion": "success", "head_sha": "f2".repeat(20), "head_branch": "topic",
            },
        });
        let body = payload.to_string();
        WebhookRow::new("workflow_job", &format!("d{n}"), now(), body.as_bytes()).unwrap()
    });
    site.hud.results.append_webhooks(rows.collect()).await.unwrap();
    let (_, page) = site.get("/pr/7").await;
    assert_eq!(page.matches("Matrix / leg ").count(), 3000);
    assert!(page.contains("3100 other jobs") && page.contains("100 more aren't listed"), "of 3100");
}

#[tokio::test]
async fn each_of_sixty_heads_of_a_pull_request_is_found() {
    let mut facts = branched(2, true);
    let known = facts.iter().find_map(|fact| match fact {
        Fact::Dispatch(sent) if sent.pull_request == Some(7) => Some(sent.clone()),
        _ => None,
    });
    let known = known.unwrap();
    facts.extend((10..70).map(|n| {
        Fact::Dispatch(DispatchFact {
            delivery: format!("head {n}"),
            head_sha: format!("{n}").repeat(20),
            enqueued_at: known.enqueued_at - jiff::SignedDuration::from_hours(n),
            ..known.clone()
        })
    }));
    let site = site(facts).await;
    let pull = site.json("/api/v1/pulls/7?head=6969696969").await;
    assert_eq!((&pull["head_sha"], &pull["is_older"]), (&json!("69".repeat(20)), &json!(true)));
    assert!(pull["older_heads"].as_u64().unwrap() >= 60, "{}", pull["older_heads"]);
    site.page_with("/pr/7", "older heads more: ").await;
}

#[tokio::test]
async fn commit_that_two_upstream_repositories_have_is_that_of_the_row_that_links_it() {
    let (dispatch, attempt) = of_aurora();
    let at = now() - jiff::SignedDuration::from_hours(1);
    let of = |upstream: &str| {
        let dispatch = DispatchFact {
            delivery: format!("of {upstream}"),
            enqueued_at: at,
            upstream: upstream.to_owned(),
            event: EventName::PullRequest,
            pull_request: Some(7),
            head_sha: "a1".repeat(20),
            status: DispatchFactStatus::Dead,
            ..dispatch.clone()
        };
        let attempt = AttemptFact {
            delivery: dispatch.delivery.clone(),
            dispatched_at: at,
            received_at: at,
            upstream: upstream.to_owned(),
            event: EventName::PullRequest,
            pull_request: Some(7),
            head_sha: "a1".repeat(20),
            ..attempt.clone()
        };
        [Fact::Dispatch(dispatch), Fact::Attempt(Box::new(attempt))]
    };
    let site = site([of(UPSTREAM), of("zzz/fork")].concat()).await;
    let commit = format!("href=\"/commit/{}", "a1".repeat(20));
    for path in ["/", "/relay", "/reported", "/pr/7?upstream=zzz/fork"] {
        let (_, page) = site.get(path).await;
        assert!(page.contains(&format!("{commit}?upstream=zzz%2Ffork\"")), "{path}: {page}");
        let has_own = page.contains(&format!("{commit}\""));
        assert_eq!(has_own, !path.starts_with("/pr"), "{path}: {page}");
    }
}
