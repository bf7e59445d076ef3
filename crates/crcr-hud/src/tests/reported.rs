//! Reported jobs one by one: what the counts of a backend and of the overview lead to.

use crcr_domain::protocol::callback::FailedTest;
use crcr_domain::results::facts::DispatchFactStatus;

use super::*;

/// Follows the pages of a list; returns how many rows it has.
async fn listed(site: &Site, query: &str) -> usize {
    let (mut count, mut older) = (0, String::new());
    loop {
        let model = site.json(&format!("/api/v1/reported?{query}{older}")).await;
        let jobs = model["jobs"].as_array().unwrap().len();
        assert!(jobs <= 100, "{query}{older}: {jobs}");
        count += jobs;
        let Some(before) = model["older"].as_str() else { return count };
        older = format!("&before={before}&skip={}", model["older_skip"]);
    }
}

/// The counts of a page that lead to reported jobs, with what their links ask for.
fn counts(page: &str, part: &str) -> Vec<(u64, String)> {
    let links = page.split("href=\"/reported?").skip(1).map(|link| {
        let (query, rest) = link.split_once("\">").unwrap();
        (rest.split('<').next().unwrap().parse().unwrap(), query.replace("&amp;", "&"))
    });
    links.filter(|(_, query)| query.contains(part)).collect()
}

#[tokio::test]
async fn each_count_of_a_backends_jobs_leads_to_as_many_rows() {
    let mut all = break_upstream(7, facts(7, now(), 30, 10, UPSTREAM)).facts;
    // More that run, and all of one dispatch, than a page has rows.
    let (dispatch, attempt) = of_aurora();
    let (event, at) = (EventName::Push, now() - jiff::SignedDuration::from_hours(1));
    all.push(Fact::Dispatch(DispatchFact {
        delivery: "open".to_owned(),
        event: event.clone(),
        enqueued_at: at,
        pull_request: None,
        ..dispatch
    }));
    all.extend((0..250).map(|n| {
        Fact::Attempt(Box::new(AttemptFact {
            delivery: "open".to_owned(),
            job: Some(format!("leg {n}")),
            state: JobState::InProgress,
            event: event.clone(),
            dispatched_at: at,
            pull_request: None,
            ..attempt.clone()
        }))
    }));
    let site = site(all).await;
    let backend = format!("/crcr/{AURORA}?window=30d");
    let model = site.json(&format!("/api/v1/repositories/{AURORA}?window=30d")).await;
    let (_, page) = site.get(&backend).await;
    for (kind, counted_as) in [("kind=running", "running"), ("kind=upstream", "upstream_failures")]
    {
        let (count, query) = &counts(&page, kind)[0];
        assert!(*count > 10 && model[counted_as] == *count, "{kind} {count}");
        assert_eq!(listed(&site, query).await as u64, *count, "{query}");
    }
    let tests = model["failing_tests"].as_array().unwrap();
    assert!(tests.len() > 3, "{tests:?}");
    let of_tests = counts(&page, "test=");
    assert_eq!(of_tests.len(), tests.len());
    for (count, query) in of_tests {
        assert_eq!(listed(&site, &query).await as u64, count, "{query}");
    }
    // Each outcome that the summary counts.
    for (outcome, count) in model["outcomes"].as_object().unwrap() {
        let query = format!("kind={outcome}&backend={AURORA}&window=30d");
        assert_eq!(listed(&site, &query).await as u64, count.as_u64().unwrap(), "{query}");
    }
}

#[tokio::test]
async fn count_of_a_test_that_failed_weeks_ago_leads_to_its_row_and_an_empty_page_says_until_when()
{
    let (dispatch, attempt) = of_aurora();
    let mut all = vec![];
    for (day, number) in (0..25).zip(500_u64..) {
        let at = now() - jiff::SignedDuration::from_hours(24 * day + 1);
        let mut attempt = failed_on_pull(&attempt, number, at);
        let (delivery, head_sha) = (attempt.delivery.clone(), attempt.head_sha.clone());
        let name = if day == 20 { "Seldom.test_odd" } else { "Often.test_even" }.to_owned();
        attempt.details.failed_tests = vec![FailedTest { name, ..FailedTest::default() }];
        all.push(Fact::Attempt(Box::new(attempt)));
        all.push(Fact::Dispatch(DispatchFact {
            delivery,
            head_sha,
            enqueued_at: at,
            event: EventName::PullRequest,
            pull_request: Some(number),
            ..dispatch.clone()
        }));
    }
    let site = site(all).await;
    let (_, page) = site.get(&format!("/crcr/{AURORA}?window=30d")).await;
    let of_test = counts(&page, "test=Seldom.test_odd");
    let [(count, query)] = of_test.as_slice() else { panic!("{of_test:?} {page}") };
    let list = site.json(&format!("/api/v1/reported?{query}")).await;
    let rows = list["jobs"].as_array().unwrap().len() as u64;
    assert_eq!((rows, *count, &list["older"]), (1, 1, &json!(null)), "{list}");
    // The days of all backends are read one week at a time.
    let of_all = "/reported?test=Seldom.test_odd&window=30d&events=pr";
    let page = site.page_with(of_all, "No such job was dispatched since ").await;
    assert!(page.contains("There may be older ones.") && page.contains(">Older</a>"), "{page}");
    assert_eq!(listed(&site, "test=Seldom.test_odd&window=30d&events=pr").await, 1);
}

#[tokio::test]
async fn failing_tests_are_sorted_before_some_are_left_out_and_the_page_says_of_how_many() {
    let (_, attempt) = of_aurora();
    let failed = |number: u64, hours: i64, names: &[String]| {
        let at = now() - jiff::SignedDuration::from_hours(hours);
        let mut attempt = failed_on_pull(&attempt, number, at);
        let test = |name: &String| FailedTest { name: name.clone(), ..FailedTest::default() };
        attempt.details.failed_tests = names.iter().map(test).collect();
        Fact::Attempt(Box::new(attempt))
    };
    let often: Vec<String> = (0..25).map(|n| format!("Often.test_{n:02}")).collect();
    let once = ["Seldom.test_new".to_owned()];
    let all = vec![failed(500, 48, &often), failed(501, 40, &often), failed(502, 1, &once)];
    let site = site(all).await;
    for (query, first) in [
        ("", &*often[0]),
        ("?sort=-failures", &*once[0]),
        ("?sort=last", &*once[0]),
        ("?sort=-name", &*once[0]),
    ] {
        let model = site.json(&format!("/api/v1/repositories/{AURORA}{query}")).await;
        let tests = model["failing_tests"].as_array().unwrap();
        assert_eq!((tests.len(), &model["more_failing_tests"]), (20, &json!(6)), "{query}");
        assert_eq!(tests[0]["name"], first, "{query}");
    }
    let told = "Failing tests</h2><span class=\"detail\">20 of 26</span>";
    site.page_with(&format!("/crcr/{AURORA}"), told).await;
}

#[tokio::test]
async fn each_count_of_jobs_that_fail_on_purpose_leads_to_as_many_rows() {
    let canary = |sha: &str, state: JobState, at: i64| {
        let at = now() - jiff::SignedDuration::from_hours(at);
        let (dispatch, attempt) = of_aurora();
        let (delivery, head_sha) = (format!("of-{sha}"), sha.repeat(20));
        let (event, pull_request) = (EventName::Push, None);
        [
            Fact::Dispatch(DispatchFact {
                delivery: delivery.clone(),
                enqueued_at: at,
                head_sha: head_sha.clone(),
                event: event.clone(),
                status: DispatchFactStatus::Sent,
                pull_request,
                ..dispatch
            }),
            Fact::Attempt(Box::new(AttemptFact {
                delivery,
                dispatched_at: at,
                received_at: at,
                event,
                state,
                pull_request,
                head_sha,
                job: Some("xfail <b>".to_owned()),
                expected: Some(Conclusion::Failure),
                ..attempt
            })),
        ]
    };
    let failed = JobState::Completed(Conclusion::Failure);
    let mut all = vec![];
    all.extend(canary("a1", failed, 2));
    all.extend(canary("a2", failed, 3));
    all.extend(canary("a3", JobState::Completed(Conclusion::Success), 4));
    all.extend(canary("a4", JobState::Lost, 30));
    // A commit on which nothing but another job was reported.
    let [dispatch, attempt] = canary("a5", failed, 5);
    let Fact::Attempt(attempt) = attempt else { panic!("it is an attempt") };
    let other = AttemptFact { job: Some("other".to_owned()), expected: None, ..*attempt.clone() };
    let never = DispatchFactStatus::NeverStarted;
    let Fact::Dispatch(dispatch) = dispatch else { panic!("it is a dispatch") };
    all.push(Fact::Dispatch(DispatchFact { status: never, ..dispatch }));
    all.push(Fact::Attempt(Box::new(other)));
    let site = site(all).await;
    let (_, page) = site.get("/crcr?window=7d").await;
    for (kind, count) in [("expected_seen", 2), ("expected_not_seen", 1), ("expected_missing", 2)] {
        let (shown, query) = &counts(&page, kind)[0];
        assert_eq!((*shown, listed(&site, query).await), (count, count as usize), "{query}");
        let (_, list) = site.get(&format!("/reported?{query}")).await;
        assert!(list.contains("xfail &lt;b&gt;") && !list.contains("<b>"), "{list}");
        let is_of_push = list.contains("<td data-label=\"Of\">push</td>");
        assert!(kind == "expected_missing" || is_of_push, "of what it is: {list}");
    }
}

#[tokio::test]
async fn demoted_backend_reads_which_jobs_fail_a_criterion_and_how_it_did_at_its_level_before() {
    let dune = "dune-example/torch-dune";
    let demoted_at: Timestamp = "2026-09-08T00:00:00Z".parse().unwrap();
    let mut all = facts(7, now(), 30, 10, UPSTREAM);
    for fact in &mut all {
        if let Fact::Dispatch(sent) = fact
            && sent.repo == dune
            && sent.enqueued_at < demoted_at
        {
            sent.level = Level::L3;
        }
    }
    let site = site(all).await;
    let model = site.json(&format!("/api/v1/repositories/{dune}/level")).await;
    let (_, page) = site.get(&format!("/crcr/{dune}/level")).await;
    let (_, jobs) = page.split_once("CI job pass rate<div class=\"detail\">Jobs: ").unwrap();
    let mut against = 0;
    for link in jobs.split("</div>").next().unwrap().split("href=\"/reported?").skip(1) {
        let query = link.split('"').next().unwrap().replace("&amp;", "&");
        against += listed(&site, &query).await as u64;
    }
    let number = |part: &str| model["job_pass"][part].as_u64().unwrap();
    assert!(against > 20, "{page}");
    assert_eq!(against, number("denominator") - number("numerator"), "{page}");
    let (_, then) = page.split_once("It was at L3 until ").unwrap();
    let (_, link) = then.split_once("href=\"").unwrap();
    let link = link.split('"').next().unwrap().replace("&amp;", "&");
    let (status, then) = site.get(&link).await;
    assert!(status == StatusCode::OK && then.contains("It fails its level: "), "{link}: {then}");
}

#[tokio::test]
async fn backend_that_is_asked_for_at_a_lower_level_was_not_demoted() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let path = format!("/crcr/{AURORA}/level");
    let lower = "It is at L4; this is how it would do at L2.";
    let page = site.page_with(&format!("{path}?level=L2"), lower).await;
    assert!(!page.contains("It was at L4 until"), "{page}");
    for own in ["", "?level=L4"] {
        let (_, page) = site.get(&format!("{path}{own}")).await;
        assert!(!page.contains("how it would do"), "{own}: {page}");
    }
}

#[tokio::test]
async fn list_of_reported_jobs_is_empty_without_any_and_names_what_is_wrong() {
    let site = site(vec![]).await;
    let (status, page) = site.get("/reported").await;
    assert!(status == StatusCode::OK && page.contains("No such job in these days."), "{page}");
    let chosen =
        "aria-current=\"true\" href=\"/reported?window=7d&amp;events=pr\">Pull requests and";
    assert!(page.contains(chosen), "{page}");
    let (_, page) = site.get("/reported?kind=test_failed").await;
    assert!(page.contains("tests failed"), "in the words of the result: {page}");
    for (wrong, name) in [
        ("kind=odd", "`kind`"),
        ("backend=odd", "`backend`"),
        ("before=odd", "`before`"),
        ("skip=-1", "`skip`"),
        ("skip=99999999999", "`skip`"),
        ("window=1y", "`window`"),
    ] {
        let (status, page) = site.get(&format!("/reported?{wrong}")).await;
        assert!(status == StatusCode::BAD_REQUEST && page.contains(name), "{wrong}: {page}");
    }
}
