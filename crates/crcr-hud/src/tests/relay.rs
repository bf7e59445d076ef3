//! Dispatches and reports one by one: what the counts of other pages lead to.

use crcr_domain::results::facts::{CallbackFact, CallbackOutcome, DispatchFactStatus};

use super::*;

fn sent(n: i64, status: DispatchFactStatus) -> Fact {
    Fact::Dispatch(DispatchFact {
        delivery: format!("{status:?}-{n}"),
        enqueued_at: now() - jiff::SignedDuration::from_mins(10 * n),
        status,
        last_error: Some("<b>why</b>".to_owned()),
        ..of_aurora().0
    })
}

/// A report that arrived `n` minutes ago.
pub(crate) fn report(n: i64, repo: Option<&str>, outcome: CallbackOutcome) -> Fact {
    Fact::Callback(CallbackFact {
        at: now() - jiff::SignedDuration::from_mins(n),
        repo: repo.map(str::to_owned),
        delivery: None,
        run_id: Some(n.to_string()),
        job: Some("job of <b>".to_owned()),
        status: None,
        conclusion: None,
        outcome,
        answer: if outcome.is_valid() { 200 } else { 401 },
        detail: Some("the reason of <b>".to_owned()),
        latency_ms: 1.0,
    })
}

/// Follows the pages of a list; returns how many rows it has.
async fn listed(site: &Site, query: &str, rows: &str) -> usize {
    let (mut count, mut before) = (0, String::new());
    loop {
        let model = site.json(&format!("/api/v1/relay?{query}{before}")).await;
        count += model[rows].as_array().unwrap().len();
        match model["older"].as_str() {
            Some(older) => before = format!("&before={older}"),
            None => return count,
        }
    }
}

#[tokio::test]
async fn each_count_of_dispatches_and_reports_leads_to_as_many_rows() {
    use CallbackOutcome::{BadToken, Stale, Unproven};
    use DispatchFactStatus::{Dead, NeverStarted};
    let mut all = facts(7, now(), 7, 12, UPSTREAM);
    all.extend((0..250).map(|n| sent(n, Dead)));
    all.extend((0..3).map(|n| sent(600 + n, NeverStarted)));
    all.extend((0..130).map(|n| report(n, Some(AURORA), Stale)));
    all.extend((0..5).map(|n| report(2000 + n, Some("secret-org/private"), BadToken)));
    all.extend((0..2).map(|n| report(3000 + n, Some(AURORA), Unproven)));
    let site = site(all).await;
    let overview = site.json("/api/v1/overview").await;
    let mut kinds = 0;
    for (list, counts) in [("dispatches", "dispatches"), ("reports", "callbacks")] {
        for (kind, count) in overview["relay"][counts].as_object().unwrap() {
            kinds += 1;
            let path = format!("/relay?list={list}&amp;kind={kind}&amp;window=7d");
            let (_, page) = site.get("/crcr").await;
            assert!(page.contains(&format!("href=\"{path}\">{count}</a>")), "{path} {count}");
            let query = format!("list={list}&kind={kind}&window=7d");
            let found = listed(&site, &query, list).await;
            assert_eq!(found as u64, count.as_u64().unwrap(), "{query}");
            let model = site.json(&format!("/api/v1/relay?{query}")).await;
            assert_eq!(model["counts"][kind], *count, "{query}");
        }
    }
    assert!(kinds >= 6, "{kinds}");
    // The other figures are those of nightly runs, which reports can't be told by.
    let nightly = site.json("/api/v1/overview?events=nightly").await;
    assert_eq!(nightly["relay"]["callbacks"], overview["relay"]["callbacks"]);
    site.page_with("/crcr?events=nightly", "<dt>Reports of all events</dt>").await;
    let now = site.json("/api/v1/now").await;
    let refused = listed(&site, "list=reports&kind=refused&window=24h", "reports").await;
    assert_eq!(refused as u64, now["relay"]["refused"].as_u64().unwrap());
    let (_, page) = site.get("/relay?list=reports&kind=unproven").await;
    assert!(
        page.contains("the reason of &lt;b&gt;") && page.contains("job of &lt;b&gt;"),
        "{page}"
    );
    let (_, page) = site.get("/relay?kind=dead").await;
    assert!(page.contains("&lt;b&gt;why") && page.contains(">Older</a>"), "{page}");
}

#[tokio::test]
async fn report_of_a_repository_that_is_no_backend_does_not_tell_its_name_or_what_it_says() {
    let site = site(vec![
        report(5, Some("secret-org/private"), CallbackOutcome::BadToken),
        report(6, None, CallbackOutcome::BadBody),
    ])
    .await;
    let (_, page) = site.get("/relay?list=reports&window=24h").await;
    let json = site.json("/api/v1/relay?list=reports&window=24h").await.to_string();
    for text in [&page, &json] {
        assert!(!text.contains("secret-org") && !text.contains("the reason"), "{text}");
    }
    assert_eq!(page.matches("not a backend").count(), 2, "{page}");
}

#[tokio::test]
async fn list_of_one_backend_and_wrong_parameters() {
    let site = site(facts(7, now(), 3, 6, UPSTREAM)).await;
    let model = site.json(&format!("/api/v1/relay?backend={AURORA}")).await;
    let rows = model["dispatches"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["repo"] == AURORA), "{model}");
    let counted: u64 =
        model["counts"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(rows.len() as u64, counted);
    for (wrong, name) in [
        ("list=odd", "`list`"),
        ("kind=odd", "`kind`"),
        ("list=reports&kind=odd", "`kind`"),
        ("backend=odd", "`backend`"),
        ("before=odd", "`before`"),
        ("window=1y", "`window`"),
    ] {
        let (status, page) = site.get(&format!("/relay?{wrong}")).await;
        assert!(status == StatusCode::BAD_REQUEST && page.contains(name), "{wrong}: {page}");
    }
}

#[tokio::test]
async fn on_call_reads_on_the_first_page_what_is_wrong_with_the_relay_itself() {
    let warning = |text: &str, page: Option<&str>| crate::RelayWarning {
        text: text.to_owned(),
        page: page.map(str::to_owned),
    };
    let breaker = warning("The breaker is <open>.", Some("/crcr/acme/four"));
    let warned = vec![breaker, warning("The newest allowlist has errors.", None)];
    for (warned, is_well) in [(vec![], true), (warned, false)] {
        let (_, attempt) = of_aurora();
        let (at, event) = (now(), EventName::PullRequest);
        let attempt = AttemptFact { received_at: at, dispatched_at: at, event, ..attempt };
        let reported = report(5, Some(AURORA), CallbackOutcome::Accepted);
        let facts = vec![Fact::Attempt(Box::new(attempt)), reported];
        let site = site(facts).await.with_logs("", |hud| {
            hud.warnings = Box::new(move || {
                let warned = warned.clone();
                Box::pin(async move { warned })
            });
        });
        let (_, page) = site.get("/").await;
        for told in [
            "<a rel=\"nofollow\" href=\"/crcr/acme/four\"><bdi>The breaker is &lt;open&gt;.</bdi></a>",
            "<bdi>The newest allowlist has errors.</bdi>",
        ] {
            assert_eq!(page.contains(told), !is_well, "{told}: {page}");
        }
        assert_eq!(page.contains("No dispatch was lost or waits too long"), is_well, "{page}");
    }
}

#[tokio::test]
async fn any_report_of_the_last_day_is_one_and_a_job_that_the_relay_gave_up_is_none() {
    let at = now() - jiff::SignedDuration::from_mins(30);
    let given_up = Fact::Attempt(Box::new(AttemptFact {
        dispatched_at: at,
        received_at: at,
        event: EventName::PullRequest,
        state: JobState::Lost,
        ..of_aurora().1
    }));
    // No job of the last day's dispatches is among them: they may be of a nightly run, or of an older dispatch.
    for (minutes, outcome, arrives) in [
        (90, CallbackOutcome::Accepted, true),
        (90, CallbackOutcome::Duplicate, true),
        (90, CallbackOutcome::Unproven, true),
        (90, CallbackOutcome::BadToken, false),
        (26 * 60, CallbackOutcome::Accepted, false),
    ] {
        let site = site(vec![given_up.clone(), report(minutes, Some(AURORA), outcome)]).await;
        let at = now() - jiff::SignedDuration::from_mins(minutes);
        let newest = if arrives { json!(at) } else { json!(null) };
        let now = site.json("/api/v1/now").await;
        assert_eq!(now["relay"]["newest_report"], newest, "{minutes} {outcome:?}");
        let (_, page) = site.get("/").await;
        let alarm = "No report arrived in the last 24 hours.";
        assert_eq!(page.contains(alarm), !arrives, "{minutes} {outcome:?}: {page}");
    }
}

#[tokio::test]
async fn count_of_refused_reports_of_a_review_leads_to_those_of_its_span() {
    let mut all = facts(7, now(), 30, 4, UPSTREAM);
    let refused = |n| report(n, Some(AURORA), CallbackOutcome::BadToken);
    let day = 24 * 60;
    all.extend((0..3).map(|n| refused(2 * day + n)));
    all.extend((0..2).map(|n| refused(20 * day + n)));
    let site = site(all).await;
    for (query, count) in [("", 3), ("?to=2026-08-28T00:00:00Z", 2)] {
        let (_, page) = site.get(&format!("/crcr/{AURORA}/level{query}")).await;
        let card = "<dt>Refused: bad token</dt><dd><a rel=\"nofollow\" href=\"/relay?";
        let (_, rest) = page.split_once(card).unwrap_or_else(|| panic!("{page}"));
        let (link, rest) = rest.split_once("\">").unwrap();
        assert!(rest.starts_with(&format!("{count}</a>")), "{query}: {rest}");
        let link = link.replace("&amp;", "&");
        assert_eq!(listed(&site, &link, "reports").await, count, "{link}");
    }
}

#[tokio::test]
async fn table_of_refused_reports_says_how_many_there_are_and_leads_to_all_of_them() {
    let mut all = facts(7, now(), 3, 4, UPSTREAM);
    all.extend((1..=45).map(|n| report(n, Some(AURORA), CallbackOutcome::BadToken)));
    let site = site(all).await;
    let past = "?from=2026-09-13T00:00:00Z&to=2026-09-15T11:45:30Z";
    for (query, count) in [("", 45), (past, 31)] {
        let path = format!("repositories/{AURORA}{query}");
        let model = site.json(&format!("/api/v1/{path}")).await;
        assert_eq!(model["refused"].as_array().unwrap().len(), 20, "{query}");
        assert_eq!(model["more_refused"], count - 20, "{query}");
        let (_, page) = site.get(&format!("/crcr/{AURORA}{query}")).await;
        let (_, rest) = page.split_once("Refused and unproven reports</h2>").unwrap();
        let told = format!("<span class=\"detail\">20 of {count}</span>");
        assert!(rest.starts_with(&told), "{rest}");
        let (_, link) = rest.split_once("href=\"/relay?").unwrap();
        let link = link.split_once("\">All</a>").unwrap().0.replace("&amp;", "&");
        assert_eq!(listed(&site, &link, "reports").await, count, "{link}");
    }
}
