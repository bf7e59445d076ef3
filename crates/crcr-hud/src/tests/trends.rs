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
        "failed in the newest attempt that has ended",
        "Longest queue",
        "As a table",
        ":00 UTC",
        "aria-sort",
        "/trends?repo=acme%2Fupstream&amp;branch=main",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    for window in ["24h", "30d"] {
        let red = site.json(&format!("/api/v1/trends?window={window}")).await["red"].take();
        let count = format!("<strong>{} of {}</strong>", red["numerator"], red["denominator"]);
        let page = site.page_with(&format!("/trends?window={window}"), &count).await;
        assert!(!page.contains("too few"), "{page}");
    }
    let newest = "/main?rows=failing\">newest on the grid</a>";
    site.page_with("/trends?window=30d", newest).await;
    // An hour is shown in the reader's time, and a day is one of UTC.
    assert!(
        page.contains("<th scope=\"row\" data-hour=\"2026-09-15T12:00:00Z\">09-15 12:00 UTC"),
        "{page}"
    );
    let (_, days) = site.get("/trends?window=7d").await;
    assert!(days.contains("Day (UTC)") && !days.contains("data-hour"), "{days}");
    let job = "Trunk+%2F+windows+%2F+build";
    let (_, page) = site.get(&format!("/trends?job={job}&sort=run")).await;
    assert!(page.contains("Duration of Trunk / windows / build"), "{page}");
    for wrong in ["window=1y", "sort=odd"] {
        assert_eq!(site.get(&format!("/trends?{wrong}")).await.0, 400, "{wrong}");
    }
}

/// The jobs of a list, on all its pages.
async fn listed(site: &Site, path: &str) -> Vec<serde_json::Value> {
    let mut found: Vec<serde_json::Value> = vec![];
    let mut more = String::new();
    loop {
        let page = site.json(&format!("/api/v1{path}{more}")).await;
        found.extend(page["jobs"].as_array().unwrap().iter().cloned());
        let (Some(older), job) = (page["older"].as_str(), &page["older_job"]) else { break };
        more = format!("&before={older}&before_job={job}");
        site.page_with(&format!("{path}{more}"), "/failure/acme/upstream/").await;
    }
    found
}

#[tokio::test]
async fn each_count_of_ended_jobs_leads_to_a_list_of_as_many() {
    let facts = facts(7, now(), 30, 12, UPSTREAM);
    let ci = UpstreamCi::new(&facts, now()).unwrap();
    let site = site(facts).await;
    ci.store(&*site.hud.results).await.unwrap();
    for window in ["24h", "7d"] {
        let (_, page) = site.get(&format!("/trends?window={window}")).await;
        let model = site.json(&format!("/api/v1/trends?window={window}")).await;
        let mut seen = 0;
        for (kind, rows) in [("runner", "runners"), ("job", "jobs")] {
            for row in model[rows].as_array().unwrap() {
                for (count, state) in [("ended", ""), ("failed", "&state=failed")] {
                    let name = row["name"].as_str().unwrap();
                    let count = row[count].as_u64().unwrap();
                    let name: String = url::form_urlencoded::Serializer::new(String::new())
                        .append_pair(kind, name)
                        .finish();
                    let path = format!("/jobs?repo=acme%2Fupstream&window={window}&{name}{state}");
                    let link = format!("href=\"{}\">{count}</a>", path.replace('&', "&amp;"));
                    assert_eq!(page.contains(&link), count > 0, "{link}: {page}");
                    let listed = listed(&site, &path).await;
                    assert_eq!(listed.len() as u64, count, "{path}");
                    let ids: std::collections::BTreeSet<_> =
                        listed.iter().map(|job| job["id"].as_u64()).collect();
                    assert_eq!(ids.len(), listed.len(), "each job once");
                    assert!(state.is_empty() || listed.iter().all(|job| job["failed"] == true));
                    seen += listed.len();
                }
            }
        }
        assert!(seen > 20, "{seen}");
    }
    let (_, page) = site.get("/jobs?runner=linux.8xlarge.gpu&window=30d").await;
    for expected in ["Jobs of ", "linux.8xlarge.gpu", "Waited", "Older jobs", "Trends"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(!page.contains("data-label=\"Runner\""), "each would have what was asked for: {page}");
    assert!(site.get("/jobs?window=30d").await.1.contains("data-label=\"Runner\""));
    site.page_with("/jobs?runner=no-such", "No such job ended").await;
    for wrong in ["window=1y", "state=odd", "before=x", "before_job=-1", "repo=x"] {
        let (status, page) = site.get(&format!("/jobs?{wrong}")).await;
        let name = wrong.split('=').next().unwrap();
        assert!(status == 400 && page.contains(&format!("`{name}`")), "{wrong}: {page}");
    }
}

#[tokio::test]
async fn each_page_says_which_attempts_it_counts() {
    let site = site(vec![]).await;
    let of_record = "Rates count one attempt per job and commit: the highest attempt";
    let each = "Each attempt of a job counts";
    let backend = format!("/crcr/{AURORA}");
    for (path, said, other) in [
        ("/trends", each, of_record),
        ("/jobs", "each attempt that passed or failed", of_record),
        ("/crcr", of_record, each),
        (&*backend, of_record, each),
        ("/reported", of_record, each),
        ("/tests", "Times are UTC.", of_record),
    ] {
        let page = site.page_with(path, said).await;
        assert!(!page.contains(other), "{path}: {page}");
    }
}

#[tokio::test]
async fn tables_of_trends_sort_by_each_column_both_ways() {
    let facts = facts(7, now(), 30, 12, UPSTREAM);
    let ci = UpstreamCi::new(&facts, now()).unwrap();
    let site = site(facts).await;
    ci.store(&*site.hud.results).await.unwrap();
    for sort in ["name", "ended", "failed", "queue", "run"] {
        let names = async |sort: &str| -> Vec<serde_json::Value> {
            let model = site.json(&format!("/api/v1/trends?sort={sort}")).await;
            model["jobs"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect()
        };
        let (one, mut other) = (names(sort).await, names(&format!("-{sort}")).await);
        other.reverse();
        assert_eq!(one, other, "{sort}");
    }
    let page = site.page_with("/trends?sort=-name", "aria-sort=\"descending\"").await;
    assert!(page.contains("sort=name\">Labels"), "a second click turns it around: {page}");
}

#[tokio::test]
async fn job_and_runner_that_ended_weeks_ago_are_found_where_they_are_printed() {
    let site = site(vec![]).await;
    let weeks = 20 * 24 * 60;
    let at = |minutes: i64| (now() - jiff::SignedDuration::from_mins(minutes)).to_string();
    let job = json!({
        "id": 5, "run_id": 4, "run_attempt": 1, "name": "xla / test (1, 2)", "workflow_name": "Slow",
        "status": "completed", "conclusion": "success", "head_sha": "b7".repeat(20),
        "head_branch": "main", "labels": ["linux.old.gpu"], "created_at": at(weeks + 9),
        "started_at": at(weeks + 8), "completed_at": at(weeks),
    });
    let ended = json!({ "action": "completed", "workflow_job": job });
    site.add_webhooks(vec![("workflow_job", weeks, ended)]).await;
    let job = "job=Slow+%2F+xla+%2F+test";
    for (text, asked, shown) in [
        ("slow+%2F+xla+%2F+test", job, "Duration of Slow / xla / test"),
        ("Slow+%2F+xla+%2F+test+%281%2C+2%29", job, "Duration of Slow / xla / test"),
        ("linux.old", "runner=linux.old.gpu", "Queue of linux.old.gpu"),
    ] {
        let found = site.json(&format!("/api/v1/search?q={text}")).await;
        let path = format!("/trends?window=90d&{asked}");
        assert_eq!(found["page"], path, "{text}: {found}");
        site.page_with(&path, shown).await;
    }
}

#[tokio::test]
async fn month_without_data_is_a_page_that_says_so() {
    let site = site(vec![]).await;
    let (status, page) = site.get("/trends?window=30d").await;
    assert_eq!(status, 200);
    assert!(page.contains("no data in this span") && page.contains("Nothing ended"), "{page}");
    assert!(!page.contains("NaN"), "{page}");
    assert!(page.contains("<dt>Red commits of the branch</dt>"), "of what: {page}");
}

#[tokio::test]
async fn hours_add_up_to_what_the_overview_counts_without_nightly_runs() {
    let site = site(facts(7, now(), 30, 12, UPSTREAM)).await;
    let trends = site.json("/api/v1/trends?window=24h").await;
    let (from, to) = (trends["from"].as_str().unwrap(), trends["to"].as_str().unwrap());
    let ended = async |events: &str| -> u64 {
        let path = format!("/api/v1/overview?from={from}&to={to}&events={events}");
        let overview = site.json(&path).await;
        let levels = overview["levels"].as_array().unwrap().iter();
        let backends = levels.flat_map(|level| level["backends"].as_array().unwrap());
        let outcomes = backends.flat_map(|backend| backend["outcomes"].as_object().unwrap());
        outcomes.map(|(_, count)| count.as_u64().unwrap()).sum()
    };
    let charts = trends["charts"].as_array().unwrap();
    let mut lines = charts.iter().flat_map(|chart| chart["lines"].as_array().unwrap());
    let reported = lines.find(|line| line["name"] == "jobs reported").unwrap();
    let hours = reported["values"].as_array().unwrap().iter();
    let sum: f64 = hours.map(|hour| hour.as_f64().unwrap()).sum();
    assert_eq!(sum as u64, ended("pr").await);
    assert!(ended("nightly").await > 0, "there are some to leave out");
    let backend = site.json(&format!("/api/v1/repositories/{AURORA}?window=24h")).await;
    let jobs = |rate: &serde_json::Value| rate["job_pass"]["denominator"].as_u64().unwrap();
    let by_hour: u64 = backend["trend"].as_array().unwrap().iter().map(jobs).sum();
    assert_eq!(by_hour, jobs(&backend));
}
