//! Trends of a repository's CI.

use crcr_standin::generate::UpstreamCi;

use super::*;

#[tokio::test]
async fn on_call_sees_how_red_the_branch_is_and_where_the_queue_is() {
    let facts = facts(7, now(), 30, 12, UPSTREAM);
    let ci = UpstreamCi::new(&facts, now()).unwrap();
    let site = site(facts).await;
    ci.store(&*site.hud.results).await.unwrap();
    for (window, times) in [("24h", 24), ("7d", 7), ("30d", 30), ("90d", 13)] {
        let model = site.json(&format!("/api/v1/trends?window={window}")).await;
        let charts = model["charts"].as_array().unwrap();
        assert_eq!(charts.len(), 6, "{window}");
        for chart in charts {
            assert_eq!(chart["times"].as_array().unwrap().len(), times, "{window}");
            let values = |line: &serde_json::Value| {
                line["values"].as_array().unwrap().iter().any(|value| !value.is_null())
            };
            let lines = chart["lines"].as_array().unwrap();
            assert!(lines.iter().any(values), "{window}: {}", chart["title"]);
        }
        assert_eq!(model["runners"][0]["name"], "linux.8xlarge.gpu", "the longest queue first");
        assert!(model["runners"][0]["queue_p95"].as_f64() > Some(1000.0));
    }
    let (_, page) = site.get("/trends?window=24h").await;
    for expected in [
        "Red commits of",
        "Longest queue",
        "As a table",
        ":00 UTC",
        "aria-sort",
        "/trends?repo=acme%2Fupstream&amp;branch=main",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    // An hour is shown in the reader's time, and a day is one of UTC.
    assert!(
        page.contains("<th scope=\"row\" data-hour=\"2026-09-15T12:00:00Z\">09-15 12:00 UTC"),
        "{page}"
    );
    let (_, days) = site.get("/trends?window=7d").await;
    assert!(days.contains("Day (UTC)") && !days.contains("data-hour"), "{days}");
    let model = site.json("/api/v1/trends?window=7d").await;
    let red = model["jobs"].as_array().unwrap().iter().find(|row| row["failed"] != 0).unwrap();
    let (name, count) = (red["name"].as_str().unwrap(), &red["failed"]);
    let encoded: String =
        url::form_urlencoded::Serializer::new(String::new()).append_pair("job", name).finish();
    let path = format!("/failures?list=jobs&repo=acme%2Fupstream&{encoded}&days=7");
    let link = format!("href=\"{}\">{count}</a>", path.replace('&', "&amp;"));
    assert!(days.contains(&link), "{link}: {days}");
    let failures = site.json(&format!("/api/v1{path}")).await;
    let jobs = failures["jobs"]["jobs"].as_array().unwrap();
    assert!(!jobs.is_empty(), "{failures}");
    for row in jobs {
        let title = format!(
            "{} / {}",
            row["workflow"].as_str().unwrap(),
            row["job_name"].as_str().unwrap()
        );
        assert!(title.starts_with(name), "{title} isn't {name}");
    }
    let job = "Trunk+%2F+windows+%2F+build";
    let (_, page) = site.get(&format!("/trends?job={job}&sort=run")).await;
    assert!(page.contains("Duration of Trunk / windows / build"), "{page}");
    for wrong in ["window=1y", "sort=odd"] {
        assert_eq!(site.get(&format!("/trends?{wrong}")).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn month_without_data_is_a_page_that_says_so() {
    let site = site(vec![]).await;
    let (status, page) = site.get("/trends?window=30d").await;
    assert_eq!(status, 200);
    assert!(page.contains("no data in this span") && page.contains("Nothing ended"), "{page}");
    assert!(!page.contains("NaN"), "{page}");
}
