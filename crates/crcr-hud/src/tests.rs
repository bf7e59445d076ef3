//! The pages, through the router, from generated and from hostile facts.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::callback::ReportDetails;
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::event::EventName;
use crcr_domain::facts::{AttemptFact, DispatchFact, Fact, MergeBaseFact};
use crcr_domain::lifecycle::{Conclusion, JobState};
use crcr_domain::{Allowlist, Level, RepoName};
use crcr_results::sqlite::SqliteResults;
use crcr_standin::generate::{ALLOWLIST, break_upstream, facts};
use crcr_store::sqlite::{SqliteStore, StoreRole};
use crcr_store::{StateStore as _, WriteBatch};
use jiff::{Timestamp, ToSpan as _};
use serde_json::json;
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::{Hud, router};

const UPSTREAM: &str = "acme/upstream";

struct Site {
    router: Router,
    hud: Arc<Hud>,
    store: Arc<SqliteStore>,
    _folder: TempDir,
}

fn now() -> Timestamp {
    "2026-09-15T12:00:00Z".parse().unwrap()
}

async fn site(facts: Vec<Fact>) -> Site {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.db"), StoreRole::Server).unwrap();
    let store = Arc::new(store);
    store.commit(WriteBatch { facts, ..WriteBatch::default() }, now()).await.unwrap();
    let upstream = RepoName::new(UPSTREAM).unwrap();
    let policy = Allowlist::parse(ALLOWLIST.as_bytes(), &upstream).accepted().ok().map(Arc::new);
    let results = Arc::new(SqliteResults::new(Arc::clone(&store)));
    let hud = Hud::new(results, Box::new(move || policy.clone()), Box::new(now), upstream);
    let hud = Arc::new(hud);
    Site { router: router(Arc::clone(&hud)), hud, store, _folder: folder }
}

impl Site {
    async fn get(&self, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let policy = answer.headers().get("content-security-policy").cloned();
        assert!(policy.is_some_and(|p| p.to_str().unwrap().contains("default-src 'none'")));
        let body = axum::body::to_bytes(answer.into_body(), 8 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn json(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }
}

#[tokio::test]
async fn page_is_503_with_retry_after_while_too_many_are_computed() {
    let site = site(vec![]).await;
    let all = u32::try_from(super::MAX_CONCURRENT_PAGES).unwrap();
    let held = Arc::clone(&site.hud.page_permits).acquire_many_owned(all).await.unwrap();
    let request = Request::get("/crcr").body(Body::empty()).unwrap();
    let answer = site.router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["retry-after"], "5");
    drop(held);
    assert_eq!(site.get("/crcr").await.0, StatusCode::OK);
}

#[tokio::test]
async fn every_page_of_a_month_and_its_twin() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let repo = "aurora-example/torch-aurora";
    for path in [
        "/crcr".to_owned(),
        "/crcr?window=24h&events=nightly".to_owned(),
        format!("/crcr/{repo}?window=30d"),
        format!("/crcr/{repo}/level"),
        "/crcr/dune-example/torch-dune/level".to_owned(),
        "/pr/101090".to_owned(),
    ] {
        let (status, page) = site.get(&path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("</main>"), "{path}");
        assert!(!page.contains("style=\"") && !page.contains("http://"), "{path}");
    }
    let overview = site.json("/api/v1/overview?window=30d").await;
    let levels = overview["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 4);
    assert_eq!(levels[0]["level"], "L4");
    let aurora = &levels[0]["backends"][0];
    let (pass, of) = (&aurora["job_pass"]["numerator"], &aurora["job_pass"]["denominator"]);
    assert!(pass.as_u64() > Some(900) && of.as_u64() > pass.as_u64(), "{aurora}");
    let l2: Vec<_> = levels[2]["backends"].as_array().unwrap().iter().collect();
    assert_eq!(l2[0]["repo"], "dune-example/torch-dune", "the worst comes first");
    assert_eq!(l2[0]["standing"], "below");
    let pull = site.json("/api/v1/pulls/101090").await;
    assert_eq!(pull["backends"].as_array().unwrap().len(), 5);
    assert_eq!(pull["backends"][0]["blocks"], true);
    let review = site.json("/api/v1/repositories/dune-example/torch-dune/level").await;
    assert_eq!(review["verdict"], "not_met");
    let link = review["permalink"].as_str().unwrap();
    assert!(link.contains("/level?level=L2&from=2026-09-01T12:00:00Z&to="), "{link}");
    let twin = link.replacen("/crcr/", "/api/v1/repositories/", 1);
    assert_eq!(site.json(&twin).await, review);
    let stays = site.json(&twin.replacen("level=L2", "level=L3", 1)).await;
    assert_eq!((&stays["question"], &stays["from"]), (&"stay".into(), &review["from"]));
}

#[tokio::test]
async fn what_is_kept_of_earlier_answers_changes_no_number() {
    let all = facts(7, now(), 12, 10, UPSTREAM);
    // Every third fact comes late, whatever its day.
    let (mut early, mut late) = (vec![], vec![]);
    for (n, fact) in all.iter().enumerate() {
        if n % 3 == 0 { late.push(fact.clone()) } else { early.push(fact.clone()) }
    }
    let used = site(early).await;
    let fresh = site(all).await;
    let repo = "dune-example/torch-dune";
    let paths = [
        "/api/v1/overview?window=24h".to_owned(),
        "/api/v1/overview?window=7d".to_owned(),
        "/api/v1/overview?window=30d&events=nightly".to_owned(),
        "/api/v1/overview?from=2026-09-08T07:08:09Z&to=2026-09-12T03:04:05Z".to_owned(),
        format!("/api/v1/repositories/{repo}?window=24h"),
        format!("/api/v1/repositories/{repo}?window=30d&heads=all"),
        format!("/api/v1/repositories/{repo}?from=2026-09-08T07:08:09Z&to=2026-09-12T03:04:05Z"),
        format!("/api/v1/repositories/{repo}/level"),
        "/crcr/feed.atom".to_owned(),
        format!("/crcr/{repo}/feed.atom"),
    ];
    let mut changed = 0;
    let mut before = vec![];
    for path in &paths {
        before.push(used.get(path).await);
    }
    used.store.commit(WriteBatch { facts: late, ..WriteBatch::default() }, now()).await.unwrap();
    for (path, before) in paths.iter().zip(before) {
        let now = used.get(path).await;
        assert_eq!(now, fresh.get(path).await, "{path}");
        assert_eq!(now, used.get(path).await, "{path}, again");
        changed += usize::from(now != before);
    }
    assert!(changed >= 8, "{changed}");
}

#[tokio::test]
async fn a_permalink_shows_the_same_numbers_as_its_page() {
    let site = site(facts(7, now(), 10, 10, UPSTREAM)).await;
    let page = site.json("/api/v1/overview?window=7d").await;
    let link = page["permalink"].as_str().unwrap();
    let again = site.json(&format!("/api/v1/overview{link}")).await;
    assert_eq!(page["levels"], again["levels"]);
}

#[tokio::test]
async fn nothing_and_nonsense_have_words_of_their_own() {
    let site = site(vec![]).await;
    let (status, page) = site.get("/crcr").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("No results in this span."), "{page}");
    for (path, expected) in [
        ("/pr/1", StatusCode::NOT_FOUND),
        ("/crcr/no-such/repo", StatusCode::NOT_FOUND),
        ("/crcr/-odd-/repo", StatusCode::NOT_FOUND),
        ("/crcr?window=1y", StatusCode::BAD_REQUEST),
        ("/crcr/cedar-example/torch-cedar/level?level=L5", StatusCode::BAD_REQUEST),
        ("/pr/1?upstream=odd", StatusCode::BAD_REQUEST),
    ] {
        let (status, page) = site.get(path).await;
        assert_eq!(status, expected, "{path}");
        assert!(page.contains("All backends"), "{path}: {page}");
    }
}

#[tokio::test]
async fn old_results_are_called_stale() {
    let mut old = facts(7, now() - jiff::SignedDuration::from_hours(72), 3, 10, UPSTREAM);
    old.truncate(400);
    let (_, page) = site(old).await.get("/crcr").await;
    assert!(page.contains("Stale: no data since"), "{page}");
}

#[tokio::test]
async fn a_pull_request_of_another_upstream_does_not_show_up() {
    let mut facts = facts(7, now(), 3, 10, UPSTREAM);
    for fact in &mut facts {
        match fact {
            Fact::Dispatch(fact) => fact.upstream = "other/upstream".to_owned(),
            Fact::Attempt(fact) => fact.upstream = "other/upstream".to_owned(),
            Fact::MergeBase(fact) => fact.upstream = "other/upstream".to_owned(),
            Fact::Callback(_) => {}
        }
    }
    let site = site(facts).await;
    assert_eq!(site.get("/pr/101002").await.0, StatusCode::NOT_FOUND);
    let other = site.json("/api/v1/pulls/101002?upstream=Other/Upstream").await;
    assert_eq!(other["number"], 101_002);
}

/// The facts of pull request 7, whose test of aurora fails, and of upstream's pushes: where it
/// branched off, `days` ago, where the test passed; and of today, where it fails.
fn branched(days: i64, learned: bool) -> Vec<Fact> {
    let generated = facts(7, now(), 1, 1, UPSTREAM);
    let repo = "aurora-example/torch-aurora";
    let (mut dispatch, mut attempt) = (None, None);
    for fact in generated {
        match fact {
            Fact::Dispatch(fact) if fact.repo == repo => dispatch = Some(fact),
            Fact::Attempt(fact) if fact.repo == repo => attempt = Some(fact),
            _ => {}
        }
    }
    let (dispatch, attempt) = (dispatch.unwrap(), attempt.unwrap());
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
            ..(*attempt).clone()
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
        assert!(page.contains(" · merge base <code>f0f0f0f"), "{page}");
    }
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
            row.details.triage = Some(crcr_domain::triage::TriageVerdict::read(&triage).unwrap());
            row.details.environment = Some("npu-910b".to_owned());
            row.details.artifact_url = Some("https://artifacts.acme.test/7".to_owned());
        }
    }
    let site = site(facts).await;
    let (_, page) = site.get("/pr/7").await;
    for expected in [
        "acme-triage</bdi> says: upstream (low confidence): <bdi>&lt;b&gt;it&lt;/b&gt; broke",
        "suspects <a href=\"/pr/99\">pull request 99</a>",
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
async fn hostile_words_are_shown_as_text() {
    let evil = "\"><script>alert(1)</script>\u{202e}".to_owned() + &"x".repeat(200);
    let mut facts = facts(7, now(), 2, 10, UPSTREAM);
    for fact in &mut facts {
        if let Fact::Attempt(row) = fact {
            row.job = Some(evil.clone());
            row.workflow = "ci (L4)".to_owned();
            row.details.url = Some("javascript:alert(1)".to_owned());
            row.state = JobState::Completed(Conclusion::Failure);
            for test in &mut row.details.failed_tests {
                test.name.clone_from(&evil);
                test.message = Some(evil.clone());
            }
        }
    }
    let site = site(facts).await;
    for path in ["/crcr", "/crcr/aurora-example/torch-aurora", "/pr/101002"] {
        let (_, page) = site.get(path).await;
        assert!(!page.contains("<script>alert"), "{path}");
        assert!(!page.contains("href=\"javascript:"), "{path}");
    }
    // A job's name says nothing about its level.
    let page = site.json("/api/v1/repositories/cedar-example/torch-cedar").await;
    assert_eq!(page["level"], "L2");
}

#[tokio::test]
async fn the_matrix_is_bounded() {
    let mut rows = vec![];
    for fact in facts(7, now(), 7, 40, UPSTREAM) {
        if let Fact::Attempt(mut row) = fact
            && row.repo == "aurora-example/torch-aurora"
        {
            for n in 0..60 {
                row.job = Some(format!("job {n}"));
                rows.push(Fact::Attempt(row.clone()));
            }
        }
    }
    let page = site(rows).await.json("/api/v1/repositories/aurora-example/torch-aurora").await;
    assert_eq!(page["matrix"]["columns"].as_array().unwrap().len(), 40);
    assert_eq!(page["matrix"]["rows"].as_array().unwrap().len(), 50);
    assert_eq!(page["matrix"]["more_columns"], 20);
    assert!(page["matrix"]["more_rows"].as_u64() > Some(0));
}

#[tokio::test]
async fn a_badge_is_an_image_of_level_and_rate() {
    let site = site(facts(7, now(), 10, 10, UPSTREAM)).await;
    let (status, image) = site.get("/crcr/aurora-example/torch-aurora/badge.svg").await;
    assert_eq!(status, StatusCode::OK);
    assert!(image.starts_with("<svg") && image.contains("L4 ·"), "{image}");
}

#[tokio::test]
async fn a_feed_tells_which_backends_turned_red() {
    let site = site(facts(7, now(), 20, 20, UPSTREAM)).await;
    let (status, feed) = site.get("/crcr/feed.atom").await;
    assert_eq!(status, StatusCode::OK);
    assert!(feed.starts_with("<?xml version=\"1.0\" encoding=\"utf-8\"?><feed xmlns="), "{feed}");
    assert!(feed.ends_with("</feed>") && feed.contains("</link>"), "{feed}");
    assert!(feed.matches("<entry>").count() > 2, "{feed}");
    assert!(feed.contains("torch-dune turned red on push"), "{feed}");
    let (_, one) = site.get("/crcr/dune-example/torch-dune/feed.atom").await;
    assert!(!one.contains("torch-aurora") && one.contains("<entry>"), "{one}");
    let (_, none) = self::site(vec![]).await.get("/crcr/feed.atom").await;
    assert!(!none.contains("<entry>") && none.contains("<updated>2026-09-15T12:00:00Z"), "{none}");
}

/// The colours of one scheme, by name.
fn colours(css: &str) -> std::collections::BTreeMap<String, [f64; 3]> {
    let mut colours = std::collections::BTreeMap::new();
    for part in css.split(['{', ';', '}']) {
        let Some((name, value)) = part.trim().split_once(':') else { continue };
        let (Some(name), Some(hex)) = (name.strip_prefix("--"), value.trim().strip_prefix('#'))
        else {
            continue;
        };
        let channel = |n: usize| f64::from(u8::from_str_radix(&hex[n..n + 2], 16).unwrap()) / 255.0;
        colours.insert(name.to_owned(), [channel(0), channel(2), channel(4)]);
    }
    colours
}

/// <https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio>
fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let luminance = |colour: [f64; 3]| {
        let linear =
            colour.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    };
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn every_text_can_be_read_in_both_schemes() {
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
    let css = crate::layout::STYLE;
    let (light, rest) = css.split_once("@media (prefers-color-scheme: dark)").unwrap();
    let dark = rest.split_once("}\n}").unwrap().0;
    let mut pairs = vec![];
    let grounds = ["ground", "panel", "good-tint", "bad-tint", "infra-tint", "running-tint"];
    for text in ["text", "muted", "link"] {
        pairs.extend(grounds.map(|ground| (text, ground, 4.5)));
    }
    for outcome in ["good", "bad", "infra", "running"] {
        pairs.extend(grounds.map(|ground| (outcome, ground, 4.5)));
    }
    // A button's text, and the chosen one of a group; then lines, which need less.
    pairs.push(("ground", "link", 4.5));
    pairs.extend([("a", "ground", 3.0), ("b", "ground", 3.0)]);
    for (scheme, text) in [("light", light), ("dark", dark)] {
        let colours = colours(text);
        for (text, ground, least) in &pairs {
            let ratio = contrast(colours[*text], colours[*ground]);
            assert!(ratio >= *least, "{scheme}: {text} on {ground} is {ratio:.2}, under {least}");
        }
    }
}

const BRANCH: &str = "release/2.0?#&é";

/// Webhooks of `acme/tree`: three commits, the newest one with a failure and a re-run.
async fn site_with_jobs(branch: &str) -> Site {
    let site = site(vec![]).await;
    let row = |event: &str, delivery: String, minute: i64, payload: serde_json::Value| {
        let at = now() - jiff::SignedDuration::from_mins(100 - minute);
        WebhookRow::new(event, &delivery, at, payload.to_string().as_bytes()).unwrap()
    };
    let repository = serde_json::json!({ "full_name": "acme/tree" });
    let mut rows = vec![];
    for (n, minute) in [(1, 10), (2, 20), (3, 30)] {
        rows.push(row("push", format!("push-{n}"), minute, serde_json::json!({
            "ref": format!("refs/heads/{branch}"), "after": format!("{n}").repeat(40), "repository": repository,
            "head_commit": { "message": format!("Commit <b>{n}</b> (#7{n})"), "author": { "name": "Ada" } },
        })));
    }
    let mut id = 100;
    let mut job = |commit: u64, name: &str, attempt: u64, conclusion: &str| {
        id += 1;
        row(
            "workflow_job",
            format!("job-{id}"),
            40,
            serde_json::json!({
                "action": "completed", "repository": repository,
                "workflow_job": {
                    "id": id, "run_id": commit, "run_attempt": attempt, "name": name, "workflow_name": "CI",
                    "status": "completed", "conclusion": conclusion, "head_sha": format!("{commit}").repeat(40),
                    "head_branch": branch, "html_url": format!("https://github.com/acme/tree/job/{id}"),
                    "started_at": "2026-09-15T11:00:00Z", "completed_at": "2026-09-15T11:05:00Z",
                    "steps": [{ "name": "make <test>", "conclusion": conclusion }],
                },
            }),
        )
    };
    rows.push(job(1, "build", 1, "success"));
    rows.push(job(2, "build", 1, "failure"));
    rows.push(job(2, "build", 2, "success"));
    rows.push(job(3, "build", 1, "success"));
    rows.push(job(3, "test (1, 2)", 1, "success"));
    rows.push(job(3, "test (2, 2)", 1, "failure"));
    site.hud.results.append_webhooks(rows).await.unwrap();
    site
}

#[tokio::test]
async fn branch_page_shows_commits_by_jobs_and_folds_the_shards_of_a_job() {
    let site = site_with_jobs(BRANCH).await;
    let path = super::pages::branch::branch_path("acme/tree", BRANCH);
    assert_eq!(path, "/hud/acme/tree/release/2.0%3F%23%26%C3%A9");
    let model = site.json(&format!("/api/v1{path}")).await;
    let names = |model: &serde_json::Value| -> Vec<String> {
        let groups = model["groups"].as_array().unwrap().iter();
        groups.map(|group| group["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&model), ["build", "test"]);
    let commits = model["commits"].as_array().unwrap();
    assert_eq!(commits.len(), 3);
    assert_eq!(
        (&commits[0]["sha"], &commits[0]["pull_request"]),
        (&"3".repeat(40).into(), &73.into())
    );
    let cell = &commits[0]["cells"][1];
    assert_eq!(
        (&cell["state"], &cell["jobs"], &cell["failed"]),
        (&"failed".into(), &2.into(), &1.into())
    );
    let rerun = &commits[1]["cells"][0];
    assert_eq!((&rerun["state"], &rerun["was_rerun"]), (&"passed".into(), &true.into()));
    assert_eq!(commits[2]["cells"][1], serde_json::Value::Null, "it did not run");
    let open = site.json(&format!("/api/v1{path}?open=CI+%2F+test&rows=failing&q=TEST")).await;
    assert_eq!(names(&open), ["test (1, 2)", "test (2, 2)"]);
    assert_eq!(open["commits"].as_array().unwrap().len(), 1);
    let failed = cell["job"].as_u64().unwrap();
    let (status, page) = site.get(&format!("{path}?job={failed}")).await;
    assert_eq!(status, StatusCode::OK);
    for expected in [
        "Failed in step <strong><bdi>make &lt;test&gt;",
        "Commit &lt;b&gt;3&lt;/b&gt;",
        "took 5 min",
        "/pr/73?upstream=acme/tree",
        "CI / test: failed, 1 of 2 jobs failed",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
}

#[tokio::test]
async fn repositories_branches_and_search_lead_to_the_branch() {
    let site = site_with_jobs("main").await;
    let (_, page) = site.get("/hud").await;
    assert!(page.contains("<a href=\"/hud/acme/tree\">"), "{page}");
    let (_, page) = site.get("/hud/acme/tree").await;
    assert!(page.contains("<a href=\"/hud/acme/tree/main\">"), "{page}");
    for (text, expected) in [
        ("%2371", "/pr/71"),
        ("71", "/pr/71"),
        ("acme/tree", "/hud/acme/tree"),
        ("basalt-example/torch-basalt", "/crcr/basalt-example/torch-basalt"),
        (&"3".repeat(40), "/hud/acme/tree/main"),
    ] {
        let request = Request::get(format!("/search?q={text}")).body(Body::empty()).unwrap();
        let answer = site.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{text}");
        assert_eq!(answer.headers()["location"], expected, "{text}");
    }
    // The head of a pull request, which was built on a branch that isn't the repository's own.
    let run = serde_json::json!({
        "repository": { "full_name": "acme/tree" },
        "workflow_run": {
            "id": 9, "event": "pull_request", "head_sha": "9".repeat(40), "head_branch": "topic",
            "pull_requests": [{ "number": 79 }],
        },
    });
    let run = WebhookRow::new("workflow_run", "run-9", now(), run.to_string().as_bytes()).unwrap();
    site.hud.results.append_webhooks(vec![run]).await.unwrap();
    let request = Request::get(format!("/search?q={}", "9".repeat(40))).body(Body::empty());
    let answer = site.router.clone().oneshot(request.unwrap()).await.unwrap();
    assert_eq!(answer.headers()["location"], "/pr/79?upstream=acme/tree");
    let (_, page) = site.get("/hud/acme/tree").await;
    assert!(!page.contains("topic"), "{page}");
    let (status, page) = site.get("/search?q=%3Cscript%3E").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("Nothing is known about <strong><bdi>&lt;script&gt;"), "{page}");
    for missing in ["/hud/acme/other", "/hud/acme/tree/other", "/hud/acme/..%2F"] {
        assert_eq!(site.get(missing).await.0, StatusCode::NOT_FOUND, "{missing}");
    }
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
    let (_, page) = site.get("/pr/7").await;
    assert!(page.contains("<p>1 failed, 1 passed, 0 still to end</p>"), "{page}");
    assert!(page.contains("Lint / lint 2") && page.contains("in step <bdi>ruff"), "{page}");
}

#[tokio::test]
async fn level_status_agrees_with_the_level_pages() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let status = site.json("/api/crcr/level-status").await;
    let repos = status["repos"].as_array().unwrap();
    let names: Vec<_> = repos.iter().map(|repo| repo["repo"].as_str().unwrap()).collect();
    assert!(!names.is_empty() && names.len() < 4, "those at L3: {names:?}");
    for repo in repos {
        let name = repo["repo"].as_str().unwrap();
        let page = site.json(&format!("/api/v1/repositories/{name}/level")).await;
        for (criterion, evidence) in
            repo["criteria"].as_array().unwrap().iter().zip(page["evidence"].as_array().unwrap())
        {
            // As the deployed HUD sends it: what its page shows.
            let measured = criterion["measured"].as_str().unwrap();
            assert_eq!(measured == "–", evidence["value"].is_null(), "{name}");
            assert!(criterion["target"].is_string() && criterion["criterion"].is_string());
            let met = match evidence["verdict"].as_str().unwrap() {
                "met" => serde_json::Value::Bool(true),
                "not_met" => serde_json::Value::Bool(false),
                _ => serde_json::Value::Null,
            };
            assert_eq!(criterion["met"], met, "{name}");
        }
        let fails = page["question"] == "stay" && page["verdict"] == "not_met";
        assert_eq!(repo["change"] == "demote", fails, "{name}");
        assert_eq!(repo["noData"], false);
    }
    let empty = self::site(vec![]).await.json("/api/crcr/level-status").await;
    for repo in empty["repos"].as_array().unwrap() {
        assert_eq!((&repo["noData"], &repo["change"]), (&true.into(), &().into()));
    }
}

#[tokio::test]
async fn level_page_tells_the_levels_so_far_and_how_soon_an_oncall_reacted() {
    let repo = "aurora-example/torch-aurora";
    let mut all = facts(7, now(), 30, 10, UPSTREAM);
    let promoted_at: Timestamp = "2026-09-01T00:00:00Z".parse().unwrap();
    for fact in &mut all {
        if let Fact::Dispatch(sent) = fact
            && sent.repo == repo
            && sent.enqueued_at < promoted_at
        {
            sent.level = Level::L3;
        }
    }
    let of_repo = all.iter().filter_map(|fact| match fact {
        Fact::Attempt(row) if row.repo == repo && row.dispatched_at > now() - 72.hours() => {
            Some(row)
        }
        _ => None,
    });
    let of_repo: Vec<_> = of_repo.collect();
    let is_rerun = |row: &AttemptFact| {
        of_repo.iter().any(|other| other.run_id == row.run_id && other.run_attempt > 1)
    };
    let end = JobState::Completed(Conclusion::Failure);
    let failed = of_repo.iter().filter(|row| row.state == end && !is_rerun(row));
    let (number, failed_at) =
        failed.filter_map(|row| Some((row.pull_request?, row.received_at))).min().unwrap();
    let site = site(all).await;
    let path = format!("/api/v1/repositories/{repo}/level");
    let level = site.json(&path).await;
    assert!(level["oncall_reaction"].is_null(), "no comments are received");
    let periods = level["history"].as_array().unwrap();
    assert_eq!(periods.len(), 2, "{periods:?}");
    assert_eq!((&periods[0]["level"], &periods[0]["until"]), (&"L4".into(), &().into()));
    assert_eq!((&periods[1]["level"], &periods[1]["until"]), (&"L3".into(), &periods[0]["from"]));

    let comment = |id: u64, login: &str, minutes: i64| {
        let body = json!({
            "action": "created", "repository": { "full_name": UPSTREAM },
            "issue": { "number": number },
            "comment": {
                "id": id, "user": { "login": login }, "created_at": failed_at + minutes.minutes(),
                "updated_at": failed_at + minutes.minutes(),
            },
        });
        let body = body.to_string();
        WebhookRow::new("issue_comment", &format!("c{id}"), now(), body.as_bytes()).unwrap()
    };
    let comments = vec![
        comment(1, "aurora-oncall", -5),
        comment(2, "somebody", 1),
        comment(3, "Aurora-Backup", 30),
        comment(4, "aurora-oncall", 90),
    ];
    site.hud.results.append_webhooks(comments).await.unwrap();
    let reaction = &site.json(&path).await["oncall_reaction"];
    assert_eq!(
        (&reaction["seconds"]["n"], &reaction["seconds"]["p50"]),
        (&1.into(), &1800.0.into())
    );
    assert!(reaction["blocked"].as_u64() > Some(1), "{reaction}");
    let (_, page) = site.get(&format!("/crcr/{repo}/level")).await;
    assert!(page.contains("First comment P50") && page.contains("30 min"), "{page}");
    assert!(page.contains("Levels so far") && page.contains("L3 stable"), "{page}");
    let (_, page) = site.get(&format!("/crcr/{repo}")).await;
    assert!(page.contains("Details of the jobs") && page.contains("driver 550.54"), "{page}");
}

#[tokio::test]
async fn backend_page_says_whose_fault_each_failure_is_and_shows_rates_without_upstreams() {
    let month = break_upstream(7, facts(7, now(), 30, 10, UPSTREAM));
    let site = site(month.facts).await;
    let repo = "aurora-example/torch-aurora";
    let model = site.json(&format!("/api/v1/repositories/{repo}?window=30d")).await;
    let left_out = model["upstream_failures"].as_u64().unwrap();
    assert!(left_out > 10, "{left_out}");
    for rate in ["job_pass", "test_pass"] {
        let number = |rate: &str, part| model[rate][part].as_u64().unwrap();
        let without = format!("{rate}_without_upstream");
        assert_eq!(number(rate, "numerator"), number(&without, "numerator"));
        assert_eq!(number(rate, "denominator"), number(&without, "denominator") + left_out);
    }
    let (mut blamed, mut passed) = (0, 0);
    for row in model["matrix"]["rows"].as_array().unwrap() {
        for cell in row["cells"].as_array().unwrap().iter().filter(|cell| !cell.is_null()) {
            match cell["outcome"].as_str() {
                Some("test_failed" | "infra_failed" | "timed_out" | "passed_after_rerun") => {
                    assert!(cell["blame"]["summary"].is_string(), "{cell}");
                    blamed += 1;
                }
                _ => {
                    assert_eq!(cell["blame"], serde_json::Value::Null, "{cell}");
                    passed += 1;
                }
            }
        }
    }
    assert!(blamed > 5 && passed > 50, "{blamed} {passed}");
    let (_, page) = site.get(&format!("/crcr/{repo}?window=30d")).await;
    assert!(page.contains("<th scope=\"col\">Whose fault</th>"), "{page}");
    assert!(page.contains("<span class=\"tag\">upstream</span>"), "{page}");
    let without = format!("CI job pass without upstream's failures ({left_out})");
    assert!(page.contains(&without), "{page}");
    let (_, page) = site.get(&format!("/crcr/{repo}/level")).await;
    assert!(page.contains("They count in the criteria."), "{page}");
}

#[tokio::test]
async fn overview_backend_and_level_page_have_the_same_rates_for_every_repository() {
    let mut all = facts(7, now(), 14, 10, UPSTREAM);
    // Pull requests that are dispatched again on the next day, and fail then.
    let again = all.iter().filter_map(|fact| match fact {
        Fact::Dispatch(sent) if sent.pull_request.is_some_and(|number| number % 3 == 0) => {
            let day = |time: Timestamp| time + jiff::SignedDuration::from_hours(24);
            let sent = DispatchFact {
                delivery: format!("{}-again", sent.delivery),
                enqueued_at: day(sent.enqueued_at),
                sent_at: sent.sent_at.map(day),
                at: day(sent.at),
                ..sent.clone()
            };
            (sent.enqueued_at < now()).then_some(Fact::Dispatch(sent))
        }
        Fact::Attempt(row) if row.pull_request.is_some_and(|number| number % 3 == 0) => {
            let day = |time: Timestamp| time + jiff::SignedDuration::from_hours(24);
            let row = AttemptFact {
                delivery: format!("{}-again", row.delivery),
                run_id: format!("{}1", row.run_id),
                details: ReportDetails {
                    check_run_id: row.details.check_run_id.as_ref().map(|id| format!("{id}-again")),
                    ..row.details.clone()
                },
                dispatched_at: day(row.dispatched_at),
                received_at: day(row.received_at),
                state: match row.state {
                    JobState::Completed(Conclusion::Success) => {
                        JobState::Completed(Conclusion::Failure)
                    }
                    state => state,
                },
                ..(**row).clone()
            };
            (row.received_at < now()).then_some(Fact::Attempt(Box::new(row)))
        }
        _ => None,
    });
    let again: Vec<_> = again.collect();
    assert!(again.len() > 100);
    all.extend(again);
    let site = site(all).await;
    let span = "from=2026-09-03T07:00:00Z&to=2026-09-15T12:00:00Z";
    let overview = site.json(&format!("/api/v1/overview?{span}")).await;
    let mut compared = 0;
    for group in overview["levels"].as_array().unwrap() {
        for row in group["backends"].as_array().unwrap() {
            let repo = row["repo"].as_str().unwrap();
            let page = site.json(&format!("/api/v1/repositories/{repo}?{span}")).await;
            let level = site.json(&format!("/api/v1/repositories/{repo}/level?{span}")).await;
            for rate in ["job_pass", "test_pass", "availability"] {
                for part in ["numerator", "denominator"] {
                    let told = &row[rate][part];
                    assert_eq!(told, &page[rate][part], "{repo} {rate}: the backend's page");
                    assert_eq!(told, &level[rate][part], "{repo} {rate}: the level page");
                }
            }
            for rate in ["job_pass_without_upstream", "test_pass_without_upstream"] {
                let (page, level) = (&page[rate]["denominator"], &level[rate]["denominator"]);
                assert_eq!(page, level, "{repo} {rate}");
            }
            let evidence = level["evidence"].as_array().unwrap().iter();
            if let Some(pass) = evidence.clone().find(|e| e["criterion"] == "job_pass") {
                assert_eq!(row["job_pass"]["value"], pass["value"], "{repo}");
                let standing = match pass["verdict"].as_str().unwrap() {
                    "met" => "met",
                    "not_met" => "below",
                    _ => "unknown",
                };
                assert_eq!(row["standing"], standing, "{repo}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 4);
}

#[tokio::test]
async fn tests_page_shows_each_kind_filters_by_the_address_and_escapes_hostile_names() {
    use crcr_domain::ci_data::test_row::{
        JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun,
    };
    use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestRowKind};

    let site = site(vec![]).await;
    assert!(site.get("/crcr/tests").await.1.contains("No results of tests are stored"));
    let row = |id: u64, name: &str, result: TestResult, flaky: bool, time: f64| TestRunRow {
        test_id: id,
        case: TestCase {
            kind: TestRowKind::Test,
            suite: "s".into(),
            classname: "tests.Class".into(),
            name: name.to_owned(),
            file: None,
            variant: None,
            result,
            time: Some(time),
            attempts: 1,
            flaky,
            details: vec![],
        },
    };
    let hostile = "<script>alert(1)</script>\u{202e}";
    let rows = vec![
        row(1, hostile, TestResult::Success, true, 1.0),
        row(2, "slowest", TestResult::Success, false, 90.0),
        row(3, "broken", TestResult::Failure, false, 2.0),
    ];
    for (run_id, on_default_branch, job) in [(1, true, "linux"), (2, false, "mac")] {
        let run = TestedRun {
            repository: "acme/widgets".to_owned(),
            workflow_id: None,
            workflow: None,
            run_id,
            run_attempt: 1,
            head_branch: None,
            head_sha: None,
            on_default_branch,
            started_at: now(),
        };
        let source = ReportSource {
            report_id: run_id,
            job_id: None,
            job_id_check: JobIdCheck::Missing,
            job: job.into(),
            artifact: "".into(),
            path: "a.xml".to_owned(),
            invoking_file: None,
        };
        let report = ReportRows { source, rows: rows.clone() };
        site.hud.results.append_test_runs(&run, vec![report]).await.unwrap();
        site.hud.results.finish_test_runs(&run).await.unwrap();
    }
    let names = async |query: &str| -> Vec<String> {
        let json = site.json(&format!("/api/v1/tests?{query}")).await;
        let tests = json["tests"].as_array().unwrap().iter();
        tests.map(|test| test["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("").await, [hostile], "flaky tests of the only repository");
    assert_eq!(names("show=failing").await, ["broken"]);
    assert_eq!(names("show=slow&days=1").await[0], "slowest");
    assert_eq!(names("show=new").await.len(), 3);
    assert_eq!(names("show=slow&q=CLASS.brok").await, ["broken"]);
    assert_eq!(names("show=slow&job=mac").await, [""; 0]);
    assert_eq!(names("show=slow&job=mac&branches=all").await.len(), 3);
    assert_eq!(names("repo=acme/none").await, [""; 0]);
    let runs = site.json("/api/v1/tests?show=failing&branches=all").await;
    assert_eq!(runs["tests"][0]["runs"], 2);
    let (status, page) = site.get("/crcr/tests?show=flaky&q=script").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script>alert"), "{page}");
    assert!(page.contains("/crcr/tests?repo=acme%2Fwidgets&amp;show=slow&amp;days=7&amp;q=script"));
    let request = Request::get("/search?q=class.BROK").body(Body::empty()).unwrap();
    let answer = site.router.clone().oneshot(request).await.unwrap();
    let expected = "/crcr/tests?repo=acme%2Fwidgets&show=slow&days=30&branches=all&q=class.BROK";
    assert_eq!(answer.headers()["location"], expected, "a test is found by a part of its name");
    for nothing in ["", "no_such_test"] {
        let (status, page) = site.get(&format!("/search?q={nothing}")).await;
        assert!(status == StatusCode::OK && page.contains("Nothing is known"), "{page}");
    }
    for wrong in ["show=odd", "days=0", "days=9999", "branches=some"] {
        assert_eq!(site.get(&format!("/crcr/tests?{wrong}")).await.0, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn logs_are_grouped_by_cause_filtered_by_the_address_and_shown_with_the_job() {
    use crcr_domain::ci_data::job_log::{
        EndedJob, JobLogOutcome, JobLogRow, LogClassification, LogMatch, LogMatchSource, LogReason,
        NoLogReason, NovelLine,
    };

    let site = site(vec![]).await;
    assert!(site.get("/crcr/logs").await.1.contains("No failed job with a log in these days"));
    let hostile = "<script>alert(1)</script>\u{202e}";
    let row = |job_id: u64, repository: &str, days: i64, category: Option<&str>| {
        let found = category.map(|category| LogMatch {
            rule: Some(format!("rule of {category}")),
            category: Some(category.to_owned()),
            line_number: 7,
            line: hostile.to_owned(),
            captures: vec!["cause".to_owned()],
            context: vec!["before".to_owned(), hostile.to_owned()],
            by: LogMatchSource::Rule,
            certainty_percent: 90,
            reasons: vec![LogReason { name: hostile.to_owned(), points: 2.5 }],
        });
        let other =
            found.clone().map(|found| LogMatch { line_number: 9, certainty_percent: 4, ..found });
        let candidates = found.iter().cloned().chain(other).collect();
        let novel = vec![NovelLine { line_number: 8, line: hostile.to_owned() }];
        let known = LogClassification { found, candidates, novel };
        let completed_at = now() - jiff::SignedDuration::from_hours(24 * days);
        JobLogRow {
            job: EndedJob {
                repository: repository.to_owned(),
                run_id: 1,
                run_attempt: 1,
                job_id,
                job_name: hostile.to_owned(),
                workflow: "Trunk".to_owned(),
                branch: "main".to_owned(),
                head_sha: "abc".to_owned(),
                completed_at,
            },
            looked_at: completed_at,
            log_key: None,
            outcome: match category {
                Some(_) => JobLogOutcome::Classified(Box::new(known)),
                None => JobLogOutcome::NoLog(NoLogReason::Gone),
            },
        }
    };
    let rows = vec![
        row(1, "acme/widgets", 1, Some("test")),
        row(2, "acme/gadgets", 2, Some("test")),
        row(3, "acme/widgets", 3, Some("network")),
        row(4, "acme/widgets", 20, None),
    ];
    site.hud.results.put_job_logs(rows).await.unwrap();
    let groups = async |query: &str| -> Vec<(u64, u64)> {
        let json = site.json(&format!("/api/v1/logs?{query}")).await;
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let groups = json["groups"].as_array().unwrap().iter();
        groups.map(|g| (number(&g["failures"]), number(&g["newest"]["job_id"]))).collect()
    };
    assert_eq!(groups("").await, [(2, 1), (1, 3)], "the most frequent first, of seven days");
    assert_eq!(groups("days=30").await, [(2, 1), (1, 3), (1, 4)]);
    assert_eq!(groups("repo=Acme/Gadgets&category=").await, [(1, 2)]);
    assert_eq!(groups("category=network").await, [(1, 3)]);
    assert_eq!(groups("category=nothing").await, []);
    assert_eq!(site.get("/crcr/logs?days=0").await.0, 400);
    let (status, page) = site.get("/crcr/logs/acme/widgets/1").await;
    assert_eq!(status, 200);
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>alert"), "{page}");
    assert!(page.contains("href=\"/crcr/logs/acme/gadgets/2\""), "more like this: {page}");
    assert!(
        site.get("/crcr/logs/acme/widgets/4").await.1.contains("GitHub has no log of this job")
    );
    assert_eq!(site.get("/crcr/logs/acme/widgets/2").await.0, 404, "it is of another repository");
    assert_eq!(site.get("/crcr/logs/acme/widgets/x").await.0, 400);

    let sha = "abc".repeat(5);
    let job = json!({
        "id": 1, "run_id": 1, "name": "test", "workflow_name": "Trunk", "status": "completed",
        "conclusion": "failure", "head_sha": sha, "head_branch": "main",
    });
    let push = json!({ "ref": "refs/heads/main", "after": sha, "head_commit": { "message": "m" } });
    let pull =
        json!({ "number": 9, "pull_request": { "id": 9, "number": 9, "head": { "sha": sha } } });
    for (event, mut payload) in
        [("workflow_job", json!({ "workflow_job": job })), ("push", push), ("pull_request", pull)]
    {
        payload["repository"] = json!({ "full_name": "acme/widgets" });
        let body = payload.to_string();
        let row = WebhookRow::new(event, event, now(), body.as_bytes()).unwrap();
        site.hud.results.append_webhooks(vec![row]).await.unwrap();
    }
    for path in ["/hud/acme/widgets/main?job=1", "/pr/9?upstream=acme/widgets"] {
        let (status, page) = site.get(path).await;
        assert!(status == 200 && page.contains("rule of test"), "{path}: {page}");
        assert!(!page.contains("<script>alert"), "{path}: {page}");
    }
}
