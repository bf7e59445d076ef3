//! The page of one test.

use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun};
use crcr_domain::ci_data::test_run::{TestCase, TestDetail, TestDetailKind, TestResult};

use super::*;

pub(crate) const HOSTILE: &str = "test_<script>alert(1)</script>\u{202e}[a.b]";

/// Loads a result of one test for each sign of a text, the oldest first: `.` passed, `x` failed, `f` flaky, `s`
/// skipped.
async fn load(site: &Site, job: &str, results: &str, on_default_branch: bool) {
    load_every(600, site, job, results, on_default_branch).await;
}

/// The same, one result in so many minutes.
async fn load_every(minutes: i64, site: &Site, job: &str, results: &str, on_default_branch: bool) {
    for (n, sign) in results.chars().enumerate() {
        let n = n as u64;
        let run = TestedRun {
            run_id: 100 + n + if on_default_branch { 0 } else { 10_000 },
            head_sha: Some(format!("{n}").repeat(40)[..40].to_owned()),
            on_default_branch,
            ..run(minutes * (results.len() as i64 - n as i64))
        };
        let message = format!("<b>expected</b> {n} at 0x7f{n}\nmore");
        let result = match sign {
            'x' => TestResult::Failure,
            's' => TestResult::Skipped,
            _ => TestResult::Success,
        };
        let case = TestCase { time: Some(1.5), flaky: sign == 'f', ..case(result, &message) };
        append(site, &run, job, 500 + n, case).await;
    }
}

/// A result: the run and its attempt, the digit of the commit, how many minutes ago it began, and what it said if it
/// failed.
type OneResult<'a> = ((u64, u32), &'a str, i64, Option<&'a str>);

/// Loads results of one job.
async fn load_results(site: &Site, on_default_branch: bool, results: &[OneResult<'_>]) {
    for &((run_id, run_attempt), digit, minutes, said) in results {
        let head_sha = Some(digit.repeat(40));
        let run = TestedRun { run_id, run_attempt, head_sha, on_default_branch, ..run(minutes) };
        let case = match said {
            Some(message) => case(TestResult::Failure, message),
            None => case(TestResult::Success, ""),
        };
        append(site, &run, "linux", run_id * 10 + u64::from(run_attempt), case).await;
    }
}

/// A run that began so many minutes ago.
fn run(minutes: i64) -> TestedRun {
    TestedRun {
        repository: "acme/widgets".to_owned(),
        workflow_id: None,
        workflow: None,
        run_id: 1,
        run_attempt: 1,
        head_branch: Some("main".to_owned()),
        head_sha: None,
        on_default_branch: true,
        started_at: now() - jiff::SignedDuration::from_mins(minutes),
    }
}

/// `message`: what it says if it failed.
fn case(result: TestResult, message: &str) -> TestCase {
    let detail = TestDetail {
        kind: TestDetailKind::Failure,
        type_name: None,
        message: Some(message.to_owned()),
        text: None,
    };
    TestCase {
        suite: "s".into(),
        classname: "tests.Class".into(),
        file: Some("test/test_a.py".into()),
        details: result.is_failed().then_some(detail).into_iter().collect(),
        ..TestCase::new(HOSTILE.to_owned(), result)
    }
}

async fn append(site: &Site, run: &TestedRun, job: &str, job_id: u64, case: TestCase) {
    let TestedRun { run_id, run_attempt, .. } = run;
    let source = ReportSource {
        report_id: crcr_store::hash64(format!("{job} {run_id} {run_attempt}").as_bytes()) >> 1,
        job_id: Some(job_id),
        job_id_check: JobIdCheck::Verified,
        job: job.into(),
        artifact: "".into(),
        path: "a.xml".to_owned(),
        invoking_file: None,
    };
    let report = ReportRows { source, rows: vec![TestRunRow { test_id: 0xabc, case }] };
    site.hud.results.append_test_runs(run, vec![report]).await.unwrap();
    site.hud.results.finish_test_runs(run).await.unwrap();
}

fn encoded(name: &str) -> String {
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

#[tokio::test]
async fn author_sees_since_which_commit_a_test_fails_and_where_it_passed_last() {
    let site = site(vec![]).await;
    load(&site, "linux", ".f.xx", true).await;
    load(&site, "mac", "....x", true).await;
    let name = encoded(&format!("tests.Class.{HOSTILE}"));
    let test = site.json(&format!("/api/v1/test/acme/widgets?name={name}")).await;
    assert_eq!(test["state"]["state"], "failing");
    assert_eq!(test["state"]["first_failing"], "3".repeat(40));
    assert_eq!(test["state"]["last_good"], "2".repeat(40));
    assert_eq!((&test["runs"], &test["failed"]["numerator"]), (&10.into(), &3.into()));
    assert_eq!(test["flaky"]["interval"].as_array().unwrap().len(), 2, "an interval");
    assert_eq!(test["jobs"].as_array().unwrap().len(), 2);
    let messages = test["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 1, "messages that differ in numbers are one: {messages:?}");
    assert_eq!((&messages[0]["failures"], &messages[0]["jobs"]), (&3.into(), &2.into()));
    let (status, page) = site.get("/test/acme/widgets?id=0000000000000abc").await;
    assert_eq!(status, 200);
    for expected in [
        "Fails since ",
        "/commit/3333333333",
        "/failure/acme/widgets/504",
        "CODEOWNERS isn't known",
        "&lt;b&gt;expected",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(!page.contains("<script>alert") && !page.contains("<b>expected"), "{page}");
}

#[tokio::test]
async fn test_that_passes_again_or_only_elsewhere_says_so() {
    let site = site(vec![]).await;
    load(&site, "linux", ".x.s", true).await;
    let test = site.json("/api/v1/test/acme/widgets?id=abc").await;
    assert_eq!(test["state"]["state"], "recovered", "a commit without a result says nothing");
    assert_eq!(test["state"]["last_failing"], "1".repeat(40));
    let site = self::site(vec![]).await;
    load(&site, "linux", "...", false).await;
    let test = site.json("/api/v1/test/acme/widgets?id=abc").await;
    assert_eq!((&test["state"]["state"], &test["runs"]), (&"passing".into(), &3.into()));
    let (_, page) = site.get("/test/acme/widgets?id=abc").await;
    assert!(page.contains("It didn't run on the default branch"), "{page}");
    assert!(
        !page.contains("note good"),
        "a pass on another branch isn't shown as a success: {page}"
    );
}

#[tokio::test]
async fn test_that_passed_days_ago_does_not_pass_now() {
    for (minutes, is_stale) in [(600, false), (6000, true)] {
        for results in ["...", ".x.", "..s"] {
            let site = site(vec![]).await;
            load_every(minutes, &site, "linux", results, true).await;
            let test = site.json("/api/v1/test/acme/widgets?id=abc").await;
            assert_eq!(test["is_stale"], is_stale, "{results} {minutes}");
            let (_, page) = site.get("/test/acme/widgets?id=abc").await;
            assert_eq!(page.contains("note good"), !is_stale, "{results} {minutes}: {page}");
            assert_eq!(page.contains("It hasn't run since"), is_stale, "{page}");
        }
    }
}

#[tokio::test]
async fn messages_of_a_test_sort_by_the_address_and_flaky_runs_are_listed() {
    let site = site(vec![]).await;
    load(&site, "linux", "xx.f.f", true).await;
    load_results(&site, true, &[((900, 1), "e", 5, Some("quite another"))]).await;
    let first = async |sort: &str| -> String {
        let path = format!("/api/v1/test/acme/widgets?id=abc&messages={sort}");
        site.json(&path).await["messages"][0]["message"].as_str().unwrap().to_owned()
    };
    assert!(first("failures").await.contains("expected"));
    assert_eq!(first("-failures").await, "quite another");
    assert_eq!(first("newest").await, "quite another");
    assert!(first("oldest").await.contains("expected"));
    site.page_with("/test/acme/widgets?id=abc&messages=newest", "messages=-newest#messages").await;
    let (status, page) = site.get("/test/acme/widgets?id=abc&messages=odd").await;
    assert!(status == 400 && page.contains("`messages`"), "{page}");
    let flaky = site.json("/api/v1/test/acme/widgets?id=abc&runs=flaky").await;
    assert_eq!(
        flaky["results"].as_array().unwrap().len() as u64,
        flaky["flaky"]["numerator"].as_u64().unwrap()
    );
    assert_eq!(flaky["flaky"]["numerator"], 2);
}

#[tokio::test]
async fn watched_test_is_red_from_the_commit_on_which_it_failed_and_green_when_it_passes() {
    for (results, expected) in [
        ("..xx", Some((true, true, "2"))),
        ("xx", Some((true, false, "0"))),
        (".x.", Some((false, true, "2"))),
        ("ss", None),
    ] {
        let site = site(vec![]).await;
        load(&site, "linux", results, true).await;
        let feed = crate::WatchedFeed::parse("/test/acme/widgets/feed.atom?id=abc").unwrap();
        let look = feed.look(Arc::clone(&site.hud)).await.unwrap().unwrap();
        assert_eq!(look.page, "/test/acme/widgets?id=0000000000000abc");
        let found = look.things.first();
        let found = found.map(|thing| (thing.is_red, thing.was_green, &thing.sha[..1]));
        assert_eq!(found, expected, "{results}");
    }
    let nothing = crate::WatchedFeed::parse("/test/acme/widgets/feed.atom?id=1").unwrap();
    assert!(nothing.look(site(vec![]).await.hud).await.unwrap().is_none());
}

#[tokio::test]
async fn runs_of_a_test_go_on_page_by_page_and_filter() {
    let site = site(vec![]).await;
    load(&site, "linux", &"..x".repeat(21), true).await;
    let mut runs = vec![];
    for page in 1.. {
        let path = format!("/api/v1/test/acme/widgets?id=abc&days=90&page={page}");
        let test = site.json(&path).await;
        runs.extend(test["results"].as_array().unwrap().iter().map(|run| run["run_id"].clone()));
        if test["has_older"] == false {
            break;
        }
    }
    assert_eq!(runs.len(), 63);
    let failed = site.json("/api/v1/test/acme/widgets?id=abc&days=90&runs=failed").await;
    assert_eq!(failed["results"].as_array().unwrap().len(), 21);
    assert_eq!(failed["commits"].as_array().unwrap().len(), 40, "the newest commits");
    for (wrong, status) in [
        ("id=xyz", 400),
        ("", 400),
        ("id=1", 404),
        ("name=no", 404),
        ("id=abc&days=91", 400),
        ("id=abc&runs=odd", 400),
    ] {
        assert_eq!(site.get(&format!("/test/acme/widgets?{wrong}")).await.0, status, "{wrong}");
    }
}

#[tokio::test]
async fn test_fails_until_the_job_that_failed_passes_whatever_other_jobs_say_meanwhile() {
    for (linux, macos, state) in [
        ("..xx", ".....", "failing"),
        ("..xx.", ".....", "recovered"),
        // The job doesn't run any more.
        (".x", "........", "recovered"),
    ] {
        let site = site(vec![]).await;
        load(&site, "linux", linux, true).await;
        load(&site, "macos", macos, true).await;
        let test = site.json("/api/v1/test/acme/widgets?id=abc&days=90").await;
        assert_eq!(test["state"]["state"], state, "{linux}: {}", test["state"]);
        if state == "failing" {
            assert_eq!(test["state"]["first_failing"], "2".repeat(40), "{}", test["state"]);
            let (_, feed) = site.get("/test/acme/widgets/feed.atom?id=abc").await;
            assert!(!feed.contains("is green again"), "{feed}");
        }
    }
}

#[tokio::test]
async fn count_of_a_message_leads_to_the_runs_that_say_it() {
    let site = site(vec![]).await;
    load(&site, "linux", &"..x".repeat(4), true).await;
    let test = site.json("/api/v1/test/acme/widgets?id=abc&days=90").await;
    let group = &test["messages"][0];
    assert_eq!(group["failures"], 4, "{group}");
    let id = group["id"].as_str().unwrap();
    let path = format!(
        "test/acme/widgets?id=0000000000000abc&days=90&runs=failed&branches=default&message={id}"
    );
    let (_, page) = site.get("/test/acme/widgets?id=abc&days=90").await;
    let link = format!("href=\"/{}#runs\">4</a>", path.replace('&', "&amp;"));
    assert!(page.contains(&link), "{link}: {page}");
    let runs = site.json(&format!("/api/v1/{path}")).await;
    assert_eq!(runs["results"].as_array().unwrap().len(), 4, "{runs}");
    assert_eq!(runs["message_id"], id);
    let chosen = "runs=flaky&branches=default&job=linux";
    let (_, some) = site.get(&format!("/test/acme/widgets?id=abc&days=90&{chosen}")).await;
    let days = format!("&amp;days=7&amp;{}\">7 d</a>", chosen.replace('&', "&amp;"));
    assert!(some.contains(&days), "{days}: {some}");
    let (status, page) = site.get("/test/acme/widgets?id=abc&days=90&message=odd").await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{page}");
    let other = site.json("/api/v1/test/acme/widgets?id=abc&days=90&message=0123").await;
    assert_eq!(other["results"], json!([]), "{other}");
}

#[tokio::test]
async fn results_of_pull_requests_take_no_place_of_those_of_the_branch() {
    let site = site(vec![]).await;
    load(&site, "linux", "x.x", true).await;
    // Newer than all of the branch: the same job, and others that come later in the alphabet.
    load_every(2, &site, "linux", &".".repeat(230), false).await;
    for n in 0..30 {
        load_every(1, &site, &format!("zz {n}"), ".", false).await;
    }
    let test = site.json("/api/v1/test/acme/widgets?id=abc").await;
    assert_eq!(test["state"]["first_failing"], "2".repeat(40), "{}", test["state"]);
    assert_eq!(test["state"]["last_good"], "1".repeat(40), "{}", test["state"]);
}

#[tokio::test]
async fn job_among_many_that_passes_again_does_not_fail() {
    let site = site(vec![]).await;
    for job in 1..30 {
        load(&site, &format!("job {job:02}"), "......", true).await;
    }
    // The last one in the order in which jobs are looked up.
    load(&site, "job 00", ".x....", true).await;
    let test = site.json("/api/v1/test/acme/widgets?id=abc").await;
    assert_eq!(test["state"]["state"], "recovered", "{}", test["state"]);
    let (_, feed) = site.get("/test/acme/widgets/feed.atom?id=abc").await;
    assert!(feed.contains("turned red") && feed.contains("is green again"), "{feed}");
}

#[tokio::test]
async fn flake_across_re_runs_is_listed_where_it_is_counted() {
    let site = site(vec![]).await;
    let said = Some("Timeout");
    let results = [((1, 1), "a", 50, said), ((1, 2), "a", 40, None), ((2, 1), "b", 30, None)];
    load_results(&site, true, &results).await;
    // A failure on one commit and a pass on another aren't a flake.
    load_results(&site, true, &[((3, 1), "c", 20, said)]).await;
    let test = site.json("/api/v1/test/acme/widgets?id=abc&runs=flaky").await;
    assert_eq!(test["flaky"]["numerator"], 1, "{}", test["flaky"]);
    let listed = test["results"].as_array().unwrap().iter();
    let listed: Vec<_> = listed.map(|row| (&row["run_id"], &row["run_attempt"])).collect();
    assert_eq!(listed, [(&json!(1), &json!(2)), (&json!(1), &json!(1))]);
}

#[tokio::test]
async fn messages_and_links_of_counts_leave_out_pull_requests() {
    let site = site(vec![]).await;
    load(&site, "linux", "fx", true).await;
    let said = Some("of a pull request");
    load_results(&site, false, &[((1, 1), "a", 9, said), ((2, 1), "b", 8, said)]).await;
    let test = site.json("/api/v1/test/acme/widgets?id=abc").await;
    let messages = test["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 1, "{messages:?}");
    let (_, page) = site.get("/test/acme/widgets?id=abc").await;
    for runs in ["failed", "flaky"] {
        let link = format!("days=30&amp;runs={runs}&amp;branches=default#runs\">which</a>");
        assert!(page.contains(&link), "{link}: {page}");
    }
    let id = messages[0]["id"].as_str().unwrap();
    let link = format!("runs=failed&amp;branches=default&amp;message={id}#runs\">1</a>");
    assert!(page.contains(&link), "{link}: {page}");
}

#[tokio::test]
async fn feed_of_a_test_quotes_what_it_said_on_the_commit_on_which_it_turned_red() {
    let site = site(vec![]).await;
    let results = [
        ((1, 1), "a", 50, None),
        ((2, 1), "b", 40, Some("Timeout")),
        ((3, 1), "c", 30, Some("Timeout")),
        ((4, 1), "d", 20, None),
        ((5, 1), "e", 10, Some("wrong shape")),
    ];
    load_results(&site, true, &results).await;
    let (_, feed) = site.get("/test/acme/widgets/feed.atom?id=abc").await;
    let texts = feed.split("<content type=\"text\">").skip(1);
    let texts: Vec<_> = texts.map(|rest| rest.split("</content>").next().unwrap()).collect();
    assert_eq!(texts, ["wrong shape", "", "Timeout"], "{feed}");
}

#[tokio::test]
async fn newest_message_is_shown_even_if_it_is_the_rarest_of_many() {
    let site = site(vec![]).await;
    for (n, letter) in ('a'..='w').enumerate() {
        let said = format!("said {letter}");
        let (run, said) = (n as u64 + 1, Some(&*said));
        load_results(&site, true, &[((run, 1), "a", 90, said), ((run, 2), "a", 80, said)]).await;
    }
    load_results(&site, true, &[((900, 1), "b", 5, Some("quite new"))]).await;
    for (sort, has_newest) in [("newest", true), ("failures", false)] {
        let path = format!("test/acme/widgets?id=abc&messages={sort}");
        let test = site.json(&format!("/api/v1/{path}")).await;
        let messages = test["messages"].as_array().unwrap();
        assert_eq!((messages.len(), &test["message_count"]), (20, &json!(24)), "{sort}");
        assert_eq!(messages[0]["message"] == "quite new", has_newest, "{sort}: {}", messages[0]);
        site.page_with(&format!("/{path}"), "20 of 24 messages").await;
    }
}
