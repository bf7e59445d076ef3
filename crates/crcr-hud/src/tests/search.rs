//! What the search finds, whatever else has the same words.

use crcr_domain::ci_data::job_log::{EndedJob, JobLogOutcome, JobLogRow};
use crcr_domain::protocol::callback::FailedTest;
use crcr_standin::generate::UpstreamCi;

use super::*;

const STEPS: [&str; 3] = ["Check out", "Build the wheel", "Upload"];

/// A job that ended on the machine `builder-7`, and the step in which it failed.
fn ended_job(id: u64, minutes: i64, failed: Option<&str>) -> serde_json::Value {
    let at = |minutes: i64| (now() - jiff::SignedDuration::from_mins(minutes)).to_string();
    let conclusion_of = |failed: bool| if failed { "failure" } else { "success" };
    let step = |name: &str| json!({ "name": name, "status": "completed", "conclusion": conclusion_of(failed == Some(name)) });
    let job = json!({
        "id": id, "run_id": 4, "run_attempt": 1, "name": "wheel", "workflow_name": "Nightly",
        "status": "completed", "conclusion": conclusion_of(failed.is_some()),
        "head_sha": "b7".repeat(20), "head_branch": "main", "labels": ["linux"],
        "runner_name": "builder-7", "steps": STEPS.map(step), "created_at": at(minutes + 9),
        "started_at": at(minutes + 8), "completed_at": at(minutes),
    });
    json!({ "action": "completed", "workflow_job": job })
}

fn log_of(job_id: u64) -> JobLogRow {
    let classification = json!({
        "match": {
            "rule": "linker-error", "category": "toolchain", "by": "rule", "line_number": 7,
            "line": "ld: cannot find -lfoo", "captures": ["foo"],
            "context": ["ld: cannot find -lfoo", "collect2: ld returned 1 exit status"],
            "certainty_percent": 90, "reasons": [],
        },
        "candidates": [],
        "novel": [{ "line_number": 9, "line": "an odd   warning" }],
    });
    let job = EndedJob {
        repository: UPSTREAM.to_owned(),
        run_id: 4,
        run_attempt: 1,
        job_id,
        job_name: "wheel".to_owned(),
        workflow: "Nightly".to_owned(),
        branch: "main".to_owned(),
        head_sha: "b7".repeat(20),
        completed_at: now(),
    };
    let outcome = JobLogOutcome::Classified(serde_json::from_value(classification).unwrap());
    JobLogRow { job, looked_at: now(), log_key: None, outcome }
}

/// A site where a step, a machine, a failure and a test are known, and a commit whose title names them all.
async fn site_with_a_telling_title() -> Site {
    let (_, mut attempt) = of_aurora();
    attempt.details.failed_tests = vec![FailedTest {
        name: "test_odd_wheel".to_owned(),
        message: Some("Wheels ARE round".to_owned()),
        ..FailedTest::default()
    }];
    attempt.state = JobState::Completed(Conclusion::Failure);
    let site = site(vec![Fact::Attempt(Box::new(attempt))]).await;
    let title = "Toolchain: linker-error, ld: cannot find -lfoo in Build the wheel on builder-7, \
                 test_odd_wheel: wheels are round";
    let commit = json!({ "message": title, "author": { "name": "Ada" } });
    let push = |branch: &str, sha: &str| json!({ "ref": format!("refs/heads/{branch}"), "after": sha.repeat(20), "head_commit": commit });
    let rows = vec![
        ("push", 60, push("main", "a1")),
        ("push", 50, push("toolchain", "a2")),
        ("push", 40, push("linker-error", "a3")),
        ("push", 30, push("upload", "a4")),
        ("push", 20, push("wheel", "a5")),
        ("workflow_job", 90, ended_job(71, 90, Some("Build the wheel"))),
        ("workflow_job", 80, ended_job(72, 80, Some("Upload"))),
        ("workflow_job", 70, ended_job(73, 70, None)),
    ];
    site.add_webhooks(rows).await;
    site.hud.results.put_job_logs(vec![log_of(71)]).await.unwrap();
    site
}

#[tokio::test]
async fn title_of_a_commit_or_a_branch_hides_no_step_machine_failure_or_test() {
    let site = site_with_a_telling_title().await;
    let like = format!("/failures?list=jobs&like={}%2F71&days=30", UPSTREAM.replace('/', "%2F"));
    let failure = |job: u64| format!("/failure/{UPSTREAM}/{job}");
    for (text, kind, path, shown) in [
        ("Toolchain", "failure", "/failures?category=toolchain&days=30", "cannot find -lfoo"),
        ("LINKER-error", "failure", &*like, "cannot find -lfoo"),
        ("ld: cannot FIND -lfoo", "failure", &*like, "cannot find -lfoo"),
        ("build the WHEEL", "step", &*failure(71), "Failed in step 2: <strong><bdi>Build the"),
        ("uploa", "step", &*failure(72), "Failed in step 3: <strong><bdi>Upload"),
        ("Upload", "step", &*failure(72), "Failed in step 3: <strong><bdi>Upload"),
        ("check out", "step", &*failure(72), "Check out"),
        ("Builder-7", "machine", &*failure(73), " · on <bdi>builder-7"),
        ("test_odd_wheel", "backend_test", "/reported?", "test_odd_wheel"),
        ("wheels are round", "backend_test", "/reported?", "Wheels ARE round"),
    ] {
        let asked: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let found = site.json(&format!("/api/v1/search?q={asked}")).await;
        let hits = found["hits"].as_array().unwrap();
        let is_wanted = |hit: &&serde_json::Value| {
            hit["kind"] == kind && hit["path"].as_str().unwrap().starts_with(path)
        };
        let path = match found["page"].as_str() {
            Some(page) => page,
            None => hits.iter().find(is_wanted).expect(text)["path"].as_str().unwrap(),
        };
        let (status, page) = site.get(path).await;
        assert!(status == StatusCode::OK && page.contains(shown), "{text}: {path}: {page}");
    }
}

#[tokio::test]
async fn test_that_passed_when_its_job_was_run_again_leads_to_no_empty_page() {
    let (_, attempt) = of_aurora();
    let failed_test = |name: &str| FailedTest { name: name.to_owned(), ..FailedTest::default() };
    let run = |run_attempt: u32, conclusion: Conclusion, failed: Vec<FailedTest>| {
        let state = JobState::Completed(conclusion);
        let mut row = AttemptFact { run_attempt, state, ..attempt.clone() };
        row.details.failed_tests = failed;
        Fact::Attempt(Box::new(row))
    };
    let first = vec![failed_test("test_odd"), failed_test("test_even")];
    let second = vec![failed_test("test_even")];
    let (failure, success) = (Conclusion::Failure, Conclusion::Success);
    for (end, last, is_listed) in [(failure, second, true), (success, vec![], false)] {
        let site = site(vec![run(1, failure, first.clone()), run(2, end, last)]).await;
        let found = site.json("/api/v1/search?q=test_odd").await;
        assert_eq!((&found["page"], &found["hits"]), (&json!(null), &json!([])), "{found}");
        let found = site.json("/api/v1/search?q=test_even").await;
        assert_eq!(found["page"].is_string(), is_listed, "{found}");
        if let Some(page) = found["page"].as_str() {
            let listed = site.json(&format!("/api/v1{page}")).await;
            assert_eq!(listed["jobs"].as_array().unwrap().len(), 1, "{page}: {listed}");
        }
    }
}

#[tokio::test]
async fn line_of_several_failed_jobs_leads_to_each_of_them() {
    let site = site(vec![]).await;
    let jobs: Vec<JobLogRow> = [81, 82].map(log_of).into();
    site.hud.results.put_job_logs(jobs).await.unwrap();
    let found = site.json("/api/v1/search?q=an+odd+warning").await;
    assert_eq!(found["page"], json!(null), "{found}");
    let hits = found["hits"].as_array().unwrap();
    let mut paths: Vec<_> = hits.iter().map(|hit| hit["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths, [81, 82].map(|job| format!("/failure/{UPSTREAM}/{job}")), "{found}");
    let name = format!("Nightly / wheel on {}", "b7".repeat(5));
    assert!(found["hits"][0]["name"].as_str().unwrap().ends_with(&name), "{found}");
}

#[tokio::test]
async fn run_of_a_backend_leads_to_the_commit_that_it_reported_on() {
    let Fact::Attempt(row) = pushed("c4", Conclusion::Failure) else { panic!("it is an attempt") };
    let row = AttemptFact { run_id: "901421".to_owned(), ..*row };
    let site = site(vec![Fact::Attempt(Box::new(row))]).await;
    let commit = format!("/commit/{}", "c4".repeat(20));
    for (address, page) in [
        (format!("{AURORA}/actions/runs/901421"), commit.clone()),
        (format!("{AURORA}/actions/runs/901421/job/7"), commit.clone()),
        (format!("{AURORA}/actions/runs/901422"), format!("/crcr/{AURORA}")),
        ("basalt-example/torch-basalt/actions/runs/901421".to_owned(), String::new()),
    ] {
        let found = site.json(&format!("/api/v1/search?q=https://github.com/{address}")).await;
        let page = if page.is_empty() { "/crcr/basalt-example/torch-basalt" } else { &*page };
        assert_eq!(found["page"], page, "{address}: {found}");
    }
    site.page_with(&commit, AURORA).await;
}

#[tokio::test]
async fn each_step_of_a_job_is_one_hit_however_often_the_job_ran() {
    let site = site_with_a_telling_title().await;
    let found = site.json("/api/v1/search?q=the+wheel").await;
    let steps = found["hits"].as_array().unwrap().iter().filter(|hit| hit["kind"] == "step");
    let names: Vec<_> = steps.map(|hit| hit["name"].as_str().unwrap()).collect();
    assert_eq!(names, [format!("Build the wheel: Nightly / wheel on {}", "b7".repeat(5))]);
}

#[tokio::test]
async fn whole_name_of_a_branch_leads_there_though_a_step_contains_it() {
    let site = site_with_a_telling_title().await;
    let found = site.json("/api/v1/search?q=Wheel").await;
    assert_eq!(found["page"], format!("/hud/{UPSTREAM}/wheel"), "{found}");
}

#[tokio::test]
async fn what_pages_write_beside_a_name_or_a_line_is_found_too() {
    let site = site_with_a_telling_title().await;
    let failure = format!("/failure/{UPSTREAM}/71");
    for (text, page) in [
        ("job 71", &*failure),
        ("Returned 1 exit", &*failure),
        ("an odd warning", &*failure),
        ("a2a2a2a #7 Toolchain", &*format!("/commit/{}", "a2".repeat(20))),
        ("Odd (#7) a2a2a2a2a2", &*format!("/commit/{}", "a2".repeat(20))),
        ("Nightly / wheel (1, 2) on A2a2a2a", &*format!("/commit/{}", "a2".repeat(20))),
        (&*format!("{UPSTREAM} wheel"), &*format!("/hud/{UPSTREAM}/wheel")),
    ] {
        let asked: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let found = site.json(&format!("/api/v1/search?q={asked}")).await;
        assert_eq!(found["page"], page, "{text}: {found}");
    }
    let found = site.json("/api/v1/search?q=builder-7+(Linux)").await;
    let kinds: Vec<_> = found["hits"].as_array().unwrap().iter().map(|hit| &hit["kind"]).collect();
    assert_eq!(kinds, ["machine"; 3], "{found}");
}

#[tokio::test]
async fn names_as_github_git_and_a_chat_write_them_are_found() {
    let site = site_with_a_telling_title().await;
    let pull = json!({
        "id": 7, "number": 7, "state": "open", "title": "Odd",
        "head": { "sha": "f2".repeat(20), "ref": "topic/odd" },
    });
    let opened = json!({ "number": 7, "pull_request": pull });
    site.add_webhooks(vec![("pull_request", 5, opened)]).await;
    let commit = format!("/commit/{}", "a2".repeat(20));
    let grid = format!("/hud/{UPSTREAM}/main?q=Nightly+%2F+wheel");
    let named = format!("/pr/7?upstream={UPSTREAM}");
    let (backend, url) = (format!("/crcr/{AURORA}"), format!("https://github.com/{UPSTREAM}"));
    let (commit, grid, named, backend) = (&*commit, &*grid, &*named, &*backend);
    for (text, page) in [
        ("Nightly / wheel (pull_request)", grid),
        ("`Nightly / wheel (push)`", grid),
        (
            &*format!("crcr/{AURORA}/CI%2Fa/test (1, 3)"),
            &*format!("{backend}?q=CI%2Fa+%2F+test+%281%2C+3%29#matrix"),
        ),
        (&*format!("crcr/{AURORA}/ci/None"), &*format!("{backend}?q=ci#matrix")),
        (&*format!("crcr/{AURORA}/relay/dispatch"), backend),
        (&*format!("<{url}/pull/7>,"), named),
        (&*format!("[the change]({url}/pull/7)"), named),
        (&*format!("{url}/pull/7)."), named),
        (&*format!("{url}/compare/b7b7b7b...a2a2a2a"), "/commit/a2a2a2a"),
        ("b7b7b7b..A2A2A2A", commit),
        ("(a2a2a2a)", commit),
        ("a2a2a2a…", commit),
        ("pull/7", "/pr/7"),
        ("pr/7", "/pr/7"),
        ("GH-7", "/pr/7"),
        ("refs/pull/7/head", "/pr/7"),
        ("Ada:topic/odd", "/pr/7"),
        ("refs/heads/toolchain", &*format!("/hud/{UPSTREAM}/toolchain")),
        ("origin/linker-error", &*format!("/hud/{UPSTREAM}/linker-error")),
        ("Odd #7", "/pr/7"),
        ("l4", backend),
        ("Mature", backend),
        ("L4 mature", backend),
    ] {
        let asked: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let found = site.json(&format!("/api/v1/search?q={asked}")).await;
        assert_eq!(found["page"], page, "{text}: {found}");
    }
    for unknown in ["''", "crcr/no-such/backend/ci/test", "crcr/a", "[](", "refs/pull/x/head"] {
        let asked: String = url::form_urlencoded::byte_serialize(unknown.as_bytes()).collect();
        let found = site.json(&format!("/api/v1/search?q={asked}")).await;
        assert_eq!(found["page"], json!(null), "{unknown}: {found}");
    }
}

#[tokio::test]
async fn filters_take_names_as_pages_write_them() {
    let facts = facts(7, now(), 10, 10, UPSTREAM);
    let ci = UpstreamCi::new(&facts, now()).unwrap();
    let site = site(facts).await;
    ci.store(&*site.hud.results).await.unwrap();
    let site = site.with_logs("", |_| {});
    let pulls = site.json("/api/v1/pulls").await;
    let author = pulls["pulls"][0]["author"].as_str().unwrap();
    let grid = format!("hud/{UPSTREAM}/main?q=");
    for (path, list, plain, written) in [
        ("pulls?author=", "pulls", author, &*format!("@{author}")),
        ("pulls?backend=", "pulls", "torch-aurora", "torch-aurora+L4"),
        (&*grid, "backends", "torch-aurora", "torch-aurora+L4"),
        ("quarantine?q=", "entries", "grace-example", "@grace-example"),
    ] {
        let found = async |name: &str| site.json(&format!("/api/v1/{path}{name}")).await;
        let (plain, written) = (found(plain).await[list].take(), found(written).await[list].take());
        assert!(!plain.as_array().unwrap().is_empty(), "{path}");
        assert_eq!(plain, written, "{path}");
    }
}
