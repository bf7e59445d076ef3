use super::*;

#[tokio::test]
async fn tests_page_shows_each_kind_filters_by_the_address_and_escapes_hostile_names() {
    use crcr_domain::ci_data::test_row::{
        JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun,
    };
    use crcr_domain::ci_data::test_run::{TestCase, TestResult};

    let site = site(vec![]).await;
    assert!(site.get("/tests").await.1.contains("No results of tests are stored"));
    let row = |id: u64, name: &str, result: TestResult, flaky: bool, time: f64| TestRunRow {
        test_id: id,
        case: TestCase {
            suite: "s".into(),
            classname: "tests.Class".into(),
            time: Some(time),
            flaky,
            ..TestCase::new(name.to_owned(), result)
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
    let (_, page) = site.get("/tests?show=failing").await;
    for runs in ["runs=failed&amp;", ""] {
        let link = format!("?id=0000000000000003&amp;days=7&amp;{runs}branches=default#runs\"");
        assert!(page.contains(&link), "{link}: {page}");
    }
    let (_, page) = site.get("/tests?show=failing&days=300&branches=all&job=mac").await;
    let link = "?id=0000000000000003&amp;days=90&amp;runs=failed&amp;job=mac#runs\"";
    assert!(page.contains(link), "a test's page has no more days: {page}");
    for (asked, count) in
        [("branches=default", 1), ("", 2), ("job=mac", 1), ("branches=default&job=mac", 0)]
    {
        let asked = format!("test/acme/widgets?id=3&days=7&runs=failed&{asked}");
        let test = site.json(&format!("/api/v1/{asked}")).await;
        assert_eq!(test["results"].as_array().unwrap().len(), count, "{asked}: {test}");
        let (_, page) = site.get(&format!("/{asked}")).await;
        assert_eq!(page.contains("Every branch and job"), count < 2, "{asked}: {page}");
    }
    assert_eq!(site.get("/test/acme/widgets?id=3&branches=odd").await.0, StatusCode::BAD_REQUEST);
    let (status, page) = site.get("/tests?show=flaky&q=script").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script>alert"), "{page}");
    assert!(page.contains("/tests?repo=acme%2Fwidgets&amp;sort=slow&amp;days=7&amp;q=script"));
    assert!(page.contains("aria-sort=\"descending\""), "the sorted column says so: {page}");
    let request = Request::get("/search?q=class.BROK").body(Body::empty()).unwrap();
    let answer = site.router.clone().oneshot(request).await.unwrap();
    let expected = "/tests?repo=acme%2Fwidgets&sort=slow&days=30&branches=all&q=class.BROK";
    assert_eq!(answer.headers()["location"], expected, "a test is found by a part of its name");
    for name in ["tests.Class.broken", "broken"] {
        let found = site.json(&format!("/api/v1/search?q={name}")).await;
        assert_eq!(found["page"], "/test/acme/widgets?id=0000000000000003", "{name}: {found}");
    }
    for (asked, said) in [("", "Nothing was asked for"), ("no_such_test", "Nothing is known")] {
        let (status, page) = site.get(&format!("/search?q={asked}")).await;
        assert!(status == StatusCode::OK && page.contains(said), "{page}");
    }
    for (asked, said) in [
        ("repo=acme/gadgets", "No result of a test of <bdi>acme/gadgets</bdi> is stored."),
        ("q=none", "No such test on the default branch in these days."),
        ("q=none&branches=all", "No such test in these days."),
        ("owner=alice&branches=all", "CODEOWNERS isn't known, so no test has an owner here."),
    ] {
        let (_, page) = site.get(&format!("/tests?{asked}")).await;
        assert!(page.contains(said), "{asked}: {page}");
    }
    for wrong in ["sort=odd", "days=0", "days=9999", "branches=some", "page=0", "page=41"] {
        assert_eq!(site.get(&format!("/tests?{wrong}")).await.0, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn failures_of_a_quarantined_test_that_was_not_compared_are_unknown() {
    use crcr_domain::ci_data::test_row::{
        JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun,
    };
    use crcr_domain::ci_data::test_run::{TestCase, TestResult};

    for (others, is_compared) in [(10, true), (2000, false)] {
        let site = site(vec![]).await.with_logs("file:/none", |_| {});
        let row = |test_id: u64, class: &str, name: String| TestRunRow {
            test_id,
            case: TestCase { classname: class.into(), ..TestCase::new(name, TestResult::Failure) },
        };
        // Of tests that failed as often, the first by name are compared.
        let mut rows: Vec<_> = (0..others).map(|n| row(n + 2, "A", format!("test_{n}"))).collect();
        rows.push(row(1, "TestRandom", "test_seed_per_device".to_owned()));
        let run = TestedRun {
            repository: UPSTREAM.to_owned(),
            workflow_id: None,
            workflow: None,
            run_id: 1,
            run_attempt: 1,
            head_branch: None,
            head_sha: None,
            on_default_branch: true,
            started_at: now(),
        };
        let source = ReportSource {
            report_id: 1,
            job_id: None,
            job_id_check: JobIdCheck::Missing,
            job: "linux".into(),
            artifact: "".into(),
            path: "a.xml".to_owned(),
            invoking_file: None,
        };
        let report = ReportRows { source, rows };
        site.hud.results.append_test_runs(&run, vec![report]).await.unwrap();
        site.hud.results.finish_test_runs(&run).await.unwrap();
        let model = site.json("/api/v1/quarantine?q=grace").await;
        assert_eq!(model["only_most_failing"], !is_compared, "{others}");
        let entry = &model["entries"][0];
        assert_eq!(entry["counts_known"], is_compared, "{others}: {entry}");
        assert_eq!(entry["failures"], u64::from(is_compared), "{others}: {entry}");
        let (_, page) = site.get("/quarantine?q=grace").await;
        assert_eq!(page.contains(">unknown</span>"), !is_compared, "{others}: {page}");
        assert_eq!(page.contains("a number may be too low"), !is_compared, "{others}: {page}");
    }
}

#[tokio::test]
async fn logs_are_grouped_by_cause_filtered_by_the_address_and_shown_with_the_job() {
    use crcr_domain::ci_data::job_log::{
        EndedJob, JobLogOutcome, JobLogRow, LogClassification, LogMatch, LogMatchSource, LogReason,
        NoLogReason, NovelLine,
    };

    let site = site(vec![]).await;
    assert!(site.get("/failures").await.1.contains("No failed job with a log in these days"));
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
                head_sha: if job_id == 2 { "def" } else { "abc" }.to_owned(),
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
        let json = site.json(&format!("/api/v1/failures?{query}")).await;
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let groups = json["groups"].as_array().unwrap().iter();
        groups.map(|g| (number(&g["failures"]), number(&g["newest"]["job_id"]))).collect()
    };
    assert_eq!(groups("").await, [(2, 1), (1, 3)], "the most frequent first, of seven days");
    assert_eq!(groups("days=30").await, [(2, 1), (1, 3), (1, 4)]);
    assert_eq!(groups("repo=Acme/Gadgets&category=").await, [(1, 2)]);
    assert_eq!(groups("category=network").await, [(1, 3)]);
    assert_eq!(groups("category=nothing").await, []);
    let (_, page) = site.get("/failures?category=nothing").await;
    assert!(page.contains("No such failed job"), "others failed: {page}");
    for (text, path) in [
        ("Network", "/failures?category=network&days=30"),
        ("Rule+of+test", "/failures?list=jobs&like=acme%2Fwidgets%2F1&days=30"),
    ] {
        let found = site.json(&format!("/api/v1/search?q={text}")).await;
        assert_eq!(found["page"], path, "what the list prints is found: {found}");
    }
    assert_eq!(site.get("/failures?days=0").await.0, 400);
    let (status, page) = site.get("/failure/acme/widgets/1").await;
    assert_eq!(status, 200);
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>alert"), "{page}");
    assert!(page.contains("href=\"/failure/acme/gadgets/2\""), "more like this: {page}");
    assert!(page.contains(" on abc · CRCR</title>"), "tabs of one job tell its commits: {page}");
    let before = "<strong>Not only here</strong>: <bdi>acme/gadgets</bdi> had this failure before";
    assert!(page.contains(before), "it isn't the fault of the commit: {page}");
    site.page_with("/failure/acme/widgets/3", "<strong>Only here</strong>: nobody else").await;
    let page = site.page_with("/failure/acme/widgets/4", "GitHub has no log of this job").await;
    assert!(!page.contains("GitHub may still have it"), "it says both: {page}");
    assert_eq!(site.get("/failure/acme/widgets/2").await.0, 404, "it is of another repository");
    assert_eq!(site.get("/failure/acme/widgets/x").await.0, 400);

    let sha = "abc".repeat(5);
    let job = json!({
        "id": 1, "run_id": 7, "name": "test", "workflow_name": "Trunk", "status": "completed",
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
