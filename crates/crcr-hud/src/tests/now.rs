//! What needs somebody now: blocked pull requests, red branches, backends, the relay.

use crcr_domain::results::Criterion;
use crcr_domain::results::facts::{CallbackOutcome, DispatchFactStatus};
use crcr_standin::generate::UpstreamCi;

use super::*;

async fn full() -> Site {
    let facts = facts(7, now(), 10, 10, UPSTREAM);
    let ci = UpstreamCi::new(&facts, now()).unwrap();
    let site = site(facts).await;
    ci.store(&*site.hud.results).await.unwrap();
    site
}

#[tokio::test]
async fn on_call_sees_who_blocks_which_pull_request_since_when_and_whose_fault_it_is() {
    let site = full().await;
    let pulls = site.json("/api/v1/pulls?show=blocked").await;
    let blocked = pulls["pulls"].as_array().unwrap();
    assert!(!blocked.is_empty(), "{pulls}");
    for pull in blocked {
        assert_eq!(pull["blocked_by"], json!(["aurora-example/torch-aurora"]), "only L4 blocks");
        assert!(pull["title"].is_string() && pull["since"].is_string(), "{pull}");
        let number = pull["number"].as_u64().unwrap();
        let page = site.json(&format!("/api/v1/pulls/{number}")).await;
        assert_eq!(page["head_sha"], pull["head_sha"], "{number}");
        let aurora = &page["backends"][0];
        assert!(["failed", "broken"].contains(&aurora["state"].as_str().unwrap()), "{aurora}");
    }
    let (_, page) = site.get("/").await;
    for expected in
        ["is blocked by", ">torch-aurora</bdi>", "Backends that fail their level", "The relay"]
    {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let now = site.json("/api/v1/now").await;
    let shown = now["blocked"].as_array().unwrap().len() as u64;
    assert_eq!(shown + now["more_blocked"].as_u64().unwrap(), blocked.len() as u64);
}

#[tokio::test]
async fn pull_requests_filter_and_sort_by_the_address() {
    let site = full().await;
    let numbers = async |query: &str| -> Vec<u64> {
        let json = site.json(&format!("/api/v1/pulls?{query}")).await;
        json["pulls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pull| pull["number"].as_u64().unwrap())
            .collect()
    };
    let mut sorted = numbers("sort=number").await;
    assert!(sorted.len() > 10 && sorted.is_sorted(), "{sorted:?}");
    sorted.reverse();
    assert_eq!(numbers("sort=-number").await, sorted);
    let all = site.json("/api/v1/pulls").await;
    let standings: Vec<&str> =
        all["pulls"].as_array().unwrap().iter().map(|p| p["standing"].as_str().unwrap()).collect();
    let order = ["blocked", "running", "green", "untold"];
    assert!(
        standings.is_sorted_by_key(|s| order.iter().position(|known| known == s)),
        "{standings:?}"
    );
    for (show, count) in all["counts"].as_array().unwrap().iter().map(|c| (&c[0], &c[1])) {
        let shown = numbers(&format!("show={}", show.as_str().unwrap())).await.len() as u64;
        assert_eq!(shown, count.as_u64().unwrap(), "{show}");
    }
    assert_eq!(numbers("author=nobody").await, [0; 0]);
    assert_eq!(numbers("backend=no-such").await, [0; 0]);
    let page = site.page_with("/prs?sort=-number", "aria-sort=\"descending\"").await;
    let nothing = "<td class=\"message none\" data-label=\"Fault\">";
    assert!(page.contains(nothing), "it takes no line on a phone: {page}");
    let old = numbers("before=2026-09-10T00:00:00Z").await;
    assert!(!old.is_empty() && old.len() < sorted.len() && old.iter().all(|n| sorted.contains(n)));
}

#[tokio::test]
async fn closed_pull_request_is_not_open_and_without_webhooks_the_page_says_so() {
    let site = full().await;
    let before = site.json("/api/v1/pulls?sort=-number").await;
    let number = before["pulls"][0]["number"].as_u64().unwrap();
    let closed = json!({
        "action": "closed", "number": number, "repository": { "full_name": UPSTREAM },
        "pull_request": { "id": number, "number": number, "state": "closed", "merged": true,
            "title": "x", "updated_at": now().to_string(), "head": { "sha": "ab", "ref": "t" } },
    });
    let closed = WebhookRow::new("pull_request", "closed", now(), closed.to_string().as_bytes());
    site.hud.results.append_webhooks(vec![closed.unwrap()]).await.unwrap();
    let after = site.json("/api/v1/pulls?sort=-number").await;
    assert_ne!(after["pulls"][0]["number"], number);
    let bare = self::site(facts(7, now(), 3, 10, UPSTREAM)).await;
    let pulls = bare.json("/api/v1/pulls").await;
    assert_eq!(pulls["are_known"], false);
    assert!(!pulls["pulls"].as_array().unwrap().is_empty(), "those that were dispatched");
    assert!(bare.get("/prs").await.1.contains("aren't known"));
    let empty = self::site(vec![]).await;
    empty.page_with("/", "Which others are open isn't known").await;
}

#[tokio::test]
async fn overview_level_page_now_and_badge_give_one_verdict_on_each_backend() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let now = site.json("/api/v1/now").await;
    let failing: Vec<&str> =
        now["failing"].as_array().unwrap().iter().map(|b| b["repo"].as_str().unwrap()).collect();
    let overview = site.json("/api/v1/overview").await;
    let mut judged = 0;
    for row in overview["levels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|l| l["backends"].as_array().unwrap())
    {
        let repo = row["repo"].as_str().unwrap();
        let level = site.json(&format!("/api/v1/repositories/{repo}/level")).await;
        let stays = if level["question"] == "stay" {
            Some(&level)
        } else {
            Some(&level["second"]).filter(|s| s.is_object())
        };
        let expected = match stays.map(|stays| stays["verdict"].as_str().unwrap()) {
            None => "no_criteria",
            Some("met") => "met",
            Some("not_met") => "below",
            Some(_) => "unknown",
        };
        assert_eq!(row["standing"], expected, "{repo}");
        assert_eq!(failing.contains(&repo), expected == "below", "{repo}");
        let (_, page) = site.get(&format!("/crcr/{repo}/level")).await;
        assert!(page.contains(row["sentence"].as_str().unwrap()), "{repo}: {page}");
        let (_, badge) = site.get(&format!("/crcr/{repo}/badge.svg")).await;
        let word = match expected {
            "met" => "good",
            "below" => "fails",
            "unknown" => "unknown",
            _ => "no criteria",
        };
        assert!(badge.contains(word), "{repo}: {badge}");
        let missed = stays.map(|stays| {
            stays["evidence"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|e| e["verdict"] == "not_met")
                .count()
        });
        assert_eq!(
            row["failing"].as_array().unwrap().len(),
            missed.unwrap_or(0),
            "each failing criterion is named"
        );
        judged += usize::from(stays.is_some());
    }
    assert!(judged >= 2, "{judged}");
}

#[tokio::test]
async fn commit_is_found_by_seven_digits_with_its_pull_request_its_backends_and_its_branch() {
    let site = full().await;
    let pulls = site.json("/api/v1/pulls").await;
    let pull = &pulls["pulls"][0];
    let sha = pull["head_sha"].as_str().unwrap();
    let commit = site.json(&format!("/api/v1/commits/{}", &sha[..7])).await;
    assert_eq!((&commit["asked"], &commit["commit"]["sha"]), (&sha[..7].into(), &sha.into()));
    assert_eq!(commit["commit"]["pull_requests"], json!([pull["number"]]));
    assert!(!commit["commit"]["backends"].as_array().unwrap().is_empty(), "{commit}");
    assert!(!commit["commit"]["in_tree"].as_array().unwrap().is_empty(), "{commit}");
    let branch = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
    let sha = branch["commits"][0]["sha"].as_str().unwrap();
    let (status, page) = site.get(&format!("/commit/{}", &sha[..10])).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    assert!(
        page.contains(&format!("/hud/{UPSTREAM}/main?rows=all&amp;commit={0}#c-{0}", &sha[..10])),
        "its place on the grid: {page}"
    );
    let (_, grid) = site.get(&format!("/hud/{UPSTREAM}/main?rows=all")).await;
    assert!(grid.contains(&format!("id=\"c-{}\"", &sha[..10])), "the place exists");
    for (path, said) in [("/commit/0123456789", "no commit"), ("/pr/77", "nothing is stored")] {
        let (status, page) = site.get(path).await;
        assert!(status == StatusCode::NOT_FOUND && page.contains(said), "{page}");
        let on_github = format!("https://github.com/{UPSTREAM}{}", path.replace("/pr/", "/pull/"));
        assert!(page.contains(&format!("href=\"{on_github}\"")), "{page}");
    }
}

#[tokio::test]
async fn commit_of_which_nothing_is_stored_has_a_page_that_says_so_and_leads_to_github() {
    let site = full().await;
    let path = format!("/commit/{}", "b7".repeat(20));
    let note = "Nothing is stored about this commit";
    for (query, repository) in [("", UPSTREAM), ("?upstream=other%2Frepo", "other/repo")] {
        let (status, page) = site.get(&format!("{path}{query}")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let on_github = format!("https://github.com/{repository}{path}");
        assert!(page.contains(note) && page.contains(&on_github), "{page}");
    }
    let job = json!({
        "id": 5, "name": "build", "workflow_name": "CI", "status": "completed",
        "conclusion": "failure", "head_sha": "b7".repeat(20), "head_branch": "main",
    });
    site.add_webhooks(vec![("workflow_job", 1, json!({ "workflow_job": job }))]).await;
    let (_, page) = site.get(&path).await;
    assert!(page.contains("CI / build") && !page.contains(note), "its run isn't known: {page}");
}

#[tokio::test]
async fn whatever_the_hud_prints_is_found_by_the_search() {
    let site = full().await;
    let pulls = site.json("/api/v1/pulls").await;
    let pull = &pulls["pulls"][0];
    let (number, sha) = (pull["number"].as_u64().unwrap(), pull["head_sha"].as_str().unwrap());
    let commit = site.json(&format!("/api/v1/commits/{sha}")).await;
    let job = &commit["commit"]["in_tree"][0];
    let (run, job) = (&job["run_id"], &job["id"]);
    for (text, expected) in [
        (format!("#{number}"), format!("/pr/{number}")),
        (sha[..10].to_owned(), format!("/commit/{sha}")),
        ("torch-aur".to_owned(), "/crcr/aurora-example/torch-aurora".to_owned()),
        ("https://hud.test/relay?kind=dead".to_owned(), "/relay?kind=dead".to_owned()),
        ("/jobs?runner=a&window=24h".to_owned(), "/jobs?runner=a&window=24h".to_owned()),
        ("@aurora-backup".to_owned(), "/crcr/aurora-example/torch-aurora".to_owned()),
        (
            format!("https://github.com/{UPSTREAM}/pull/{number}/files"),
            format!("/pr/{number}?upstream={UPSTREAM}"),
        ),
        (format!("https://github.com/{UPSTREAM}/commit/{sha}"), format!("/commit/{sha}")),
        (
            format!("https://github.com/{UPSTREAM}/pull/{number}/commits/{sha}"),
            format!("/commit/{sha}"),
        ),
        (
            format!("https://github.com/{UPSTREAM}/pull/{number}/commits/{}", "b7".repeat(20)),
            format!("/pr/{number}?upstream={UPSTREAM}"),
        ),
        (format!("https://hud.example.org/pr/{number}"), format!("/pr/{number}")),
        (
            format!("hud.example.org//failure/a/b/5?from=3#L{number}"),
            format!("/failure/a/b/5?from=3#L{number}"),
        ),
        ("https://hud.example.org//test/a/b".to_owned(), "/test/a/b".to_owned()),
        (
            format!("https://hud.example.org/trends?job={}", "x".repeat(300)),
            format!("/trends?job={}", "x".repeat(300)),
        ),
        ("/quarantine?sort=owner".to_owned(), "/quarantine?sort=owner".to_owned()),
        (format!("Pull request #{number}"), format!("/pr/{number}")),
        (format!("PR {number}"), format!("/pr/{number}")),
        (format!("{UPSTREAM}@{}", &sha[..10]), format!("/commit/{}", &sha[..10])),
        (format!("github.com/{UPSTREAM}/commit/{sha}"), format!("/commit/{sha}")),
        (
            format!("https://github.com/{UPSTREAM}/tree/release/2.0"),
            format!("/hud/{UPSTREAM}/release/2.0"),
        ),
        (format!("https://github.com/{UPSTREAM}/tree/main/a/b"), format!("/hud/{UPSTREAM}/main")),
        (format!("github.com/{UPSTREAM}/blob/main/b.py#L7"), format!("/hud/{UPSTREAM}/main")),
        (
            format!("https://github.com/{UPSTREAM}/actions/runs/{run}/job/{job}?pr=1#step:3:1"),
            format!("/failure/{UPSTREAM}/{job}"),
        ),
        (format!("https://github.com/{UPSTREAM}/actions/runs/{run}"), format!("/commit/{sha}")),
        (format!("https://github.com/{UPSTREAM}/actions/runs/1"), format!("/hud/{UPSTREAM}")),
        (format!("https://github.com/{UPSTREAM}.git"), format!("/hud/{UPSTREAM}")),
        (format!("git@github.com:{AURORA}.git"), format!("/crcr/{AURORA}")),
        (
            format!("https://github.com/{UPSTREAM}/pull/{number}.diff"),
            format!("/pr/{number}?upstream={UPSTREAM}"),
        ),
        (format!("https://github.com/{UPSTREAM}/commit/{sha}.patch"), format!("/commit/{sha}")),
        (format!("https://github.com/{UPSTREAM}/runs/{job}"), format!("/failure/{UPSTREAM}/{job}")),
        (format!("https://github.com/{UPSTREAM}/blob/{sha}/a/b.py#L7"), format!("/commit/{sha}")),
        (format!("https://github.com/{AURORA}/actions/runs/1/job/2"), format!("/crcr/{AURORA}")),
        (format!("{UPSTREAM}/{job}"), format!("/failure/{UPSTREAM}/{job}")),
        (job.to_string(), format!("/failure/{UPSTREAM}/{job}")),
        (run.to_string(), format!("/commit/{sha}")),
        (number.to_string(), format!("/pr/{number}")),
        ("ciflow/crcr/basalt".to_owned(), "/crcr/basalt-example/torch-basalt".to_owned()),
        ("torch-aurora L4".to_owned(), format!("/crcr/{AURORA}")),
        (format!("{AURORA} (L4)"), format!("/crcr/{AURORA}")),
        (format!("commit {}", &sha[..10]), format!("/commit/{sha}")),
        ("linux.8xlarge.gpu".to_owned(), "/trends?runner=linux.8xlarge.gpu".to_owned()),
        (
            "trunk / LINUX / test (default, 1, 3)".to_owned(),
            format!("/hud/{UPSTREAM}/main?q=trunk+%2F+LINUX+%2F+test+%28default%2C+1%2C+3%29"),
        ),
    ] {
        let text: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let request = Request::get(format!("/search?q={text}")).body(Body::empty()).unwrap();
        let answer = site.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{text}");
        assert_eq!(answer.headers()["location"], expected, "{text}");
    }
    let title: String =
        url::form_urlencoded::byte_serialize(pull["title"].as_str().unwrap().as_bytes()).collect();
    let (_, page) = site.get(&format!("/search?q={title}")).await;
    assert!(page.contains("<h2>Pull requests</h2>"), "several are grouped by kind: {page}");
    let page = site.page_with("/search?q=example", "<h1>Search for <bdi>example</bdi></h1>").await;
    assert!(page.contains("<h2>Backends</h2>"), "{page}");
}

#[tokio::test]
async fn long_number_leads_to_the_job_the_run_or_the_pull_request_that_has_it() {
    let (_, attempt) = of_aurora();
    let attempt = AttemptFact {
        run_id: "33445566001".to_owned(),
        event: EventName::PullRequest,
        details: ReportDetails {
            check_run_id: Some("33445566002".to_owned()),
            ..attempt.details.clone()
        },
        ..attempt
    };
    let site = site(vec![Fact::Attempt(Box::new(attempt))]).await;
    let job = json!({
        "id": 33_445_566_778_u64, "run_id": 33_445_566_777_u64, "name": "build", "workflow_name": "CI",
        "status": "completed", "conclusion": "failure", "head_sha": "b7".repeat(20), "head_branch": "main",
    });
    let run = json!({
        "id": 33_445_566_777_u64, "run_attempt": 1, "name": "CI", "event": "push",
        "head_sha": "b7".repeat(20), "head_branch": "main", "status": "completed", "conclusion": "failure",
    });
    let rows = vec![
        ("workflow_job", 1, json!({ "workflow_job": job })),
        ("workflow_run", 1, json!({ "workflow_run": run })),
        pull(1_234_567, 1, "open"),
    ];
    site.add_webhooks(rows).await;
    for (text, page) in [
        ("33445566778", format!("/failure/{UPSTREAM}/33445566778")),
        ("33445566777", format!("/commit/{}", "b7".repeat(20))),
        ("33445566001", format!("/crcr/{AURORA}?events=pr")),
        ("33445566002", format!("/crcr/{AURORA}?events=pr")),
        ("1234567", "/pr/1234567".to_owned()),
        ("%2333445566778", "/pr/33445566778".to_owned()),
        ("33445566999", String::new()),
        // GitHub may know it.
        ("4711", "/pr/4711".to_owned()),
    ] {
        let found = site.json(&format!("/api/v1/search?q={text}")).await;
        let shown = found["page"].as_str().unwrap_or_default();
        assert_eq!(shown.is_empty(), page.is_empty(), "{text}: {found}");
        assert!(shown.starts_with(&page), "{text}: {found}");
        assert_eq!(found["hits"], json!([]), "{text}");
    }
}

#[tokio::test]
async fn jobs_machines_tests_files_oncalls_and_quarantine_are_found_where_they_are_shown() {
    let site = full().await.with_logs("", |_| {});
    let changed = json!({
        "ref": "refs/heads/main", "after": "c7".repeat(20), "commits": [{ "modified": ["src/Odd.cpp"] }],
        "head_commit": { "message": "Odd one", "author": { "name": "Ada" } },
    });
    site.add_webhooks(vec![("push", 1, changed)]).await;
    let commit = format!("/commit/{}", "c7".repeat(20));
    for (text, path, shown) in [
        ("ci / MODELS", "/crcr/basalt-example/torch-basalt?events=", "ci / models"),
        ("Aurora A2", "/crcr/aurora-example/torch-aurora?events=", "Aurora A2"),
        ("basalt-on", "/crcr/basalt-example/torch-basalt", "basalt-oncall"),
        ("TestSerialization.test_round", "/reported?backend=", "test_round_trip"),
        ("test/test_backend.py", "/reported?backend=", "in which "),
        ("TestRandom.test_seed_per", "/quarantine?repo=acme%2Fupstream", "test_seed_per_device"),
        ("test_backend.py::TestSerialization::test_round", "/reported?backend=", "test_round_trip"),
        (
            "FAILED [ 0.9s] test_random.py::TestRandom::test_seed",
            "/quarantine?repo=",
            "test_seed_per",
        ),
        ("@grace-example", "/quarantine?repo=acme%2Fupstream", "grace-example"),
        ("src/odd.cpp", &*commit, "src/Odd.cpp</bdi>"),
        ("Runner-1", "/failure/acme/upstream/", " · on <bdi>runner-1"),
        ("Tensor-likes  ARE not close", "/reported?backend=", "Tensor-likes are not close"),
        ("RuntimeError:  REDUCER.py: ", "/failures?list=jobs&like=", "RuntimeError: reducer.py"),
    ] {
        let query: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
        let found = site.json(&format!("/api/v1/search?q={query}")).await;
        let hits = found["hits"].as_array().unwrap().iter().map(|hit| &hit["path"]);
        let mut paths = hits.chain([&found["page"]]).filter_map(|path| path.as_str());
        let hit = paths.find(|found| found.starts_with(path)).expect(text);
        let (status, page) = site.get(hit).await;
        assert!(status == StatusCode::OK && page.contains(shown), "{text}: {hit}: {page}");
    }
}

#[tokio::test]
async fn owner_of_tests_is_found_and_their_tests_are_listed() {
    let site = full().await.with_logs("", |_| {});
    let found = site.json("/api/v1/search?q=%40Example%2Foperators").await;
    let asked = "tests?repo=acme%2Fupstream&sort=slow&days=30&branches=all";
    assert_eq!(found["page"], format!("/{asked}&owner=%40example%2Foperators"), "{found}");
    let owns = |test: &serde_json::Value| {
        test["owners"].as_array().unwrap().contains(&json!("@example/operators"))
    };
    let of = async |more: &str| site.json(&format!("/api/v1/{asked}{more}")).await["tests"].clone();
    let mut all = of("").await.as_array().unwrap().clone();
    let count = all.len();
    all.retain(owns);
    assert!(!all.is_empty() && all.len() < count, "{all:?}");
    for owner in ["example%2Foperators", "%40EXAMPLE%2Foperators", "+operators+"] {
        assert_eq!(of(&format!("&owner={owner}")).await, json!(all), "{owner}");
    }
    assert_eq!(of("&owner=operators&page=2").await, json!([]));
    let (_, page) = site.get(&format!("/{asked}&owner=operators")).await;
    assert!(page.contains("name=\"owner\" maxlength=\"200\" value=\"operators\""), "{page}");
    assert!(page.contains("branches=all&amp;owner=operators"), "other orders keep it: {page}");
}

#[tokio::test]
async fn each_text_of_the_first_page_is_found_by_the_search() {
    let site = full().await;
    let now = site.json("/api/v1/now").await;
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let mut texts = vec![];
    for pull in now["blocked"].as_array().unwrap().iter().take(2) {
        let number = &pull["number"];
        let title = text(&pull["title"]);
        texts.extend([format!("#{number} {title}"), title, text(&pull["author"])]);
        texts.extend([format!("{UPSTREAM}#{number}"), format!("/pr/{number}")]);
    }
    for branch in now["branches"].as_array().unwrap() {
        texts.push(text(&branch["branch"]));
        for red in branch["red"].as_array().unwrap() {
            let since = &red["since"];
            texts.extend([&red["title"], &since["title"], &since["author"]].map(text));
            texts.push(text(&since["sha"])[..10].to_owned());
        }
    }
    for backend in now["failing"].as_array().unwrap() {
        texts.push(text(&backend["repo"]));
        let query = format!("/api/v1/repositories/{}/level", text(&backend["repo"]));
        let review = site.json(&query).await;
        let of_review = review["evidence"].as_array().unwrap().iter();
        let failing: Vec<_> = of_review.filter(|item| item["verdict"] == "not_met").collect();
        assert!(!failing.is_empty(), "{review}");
        for item in failing {
            let criterion: Criterion = serde_json::from_value(item["criterion"].clone()).unwrap();
            let title = criterion.title();
            let path = format!("/search?q={}", title.replace(' ', "+"));
            let start = format!("{}: {title} ", text(&backend["repo"]));
            site.page_with(&path, &start).await;
            texts.push(title.to_owned());
        }
        texts.extend(backend["oncalls"].as_array().unwrap().iter().map(text));
    }
    assert!(texts.len() > 15, "{texts:?}");
    for searched in texts {
        let query: String = url::form_urlencoded::byte_serialize(searched.as_bytes()).collect();
        let found = site.json(&format!("/api/v1/search?q={query}")).await;
        let hits = found["hits"].as_array().unwrap().len();
        assert!(found["page"].is_string() || hits > 0, "{searched}: {found}");
        if let Some(page) = found["page"].as_str() {
            assert_eq!(site.get(page).await.0, StatusCode::OK, "{searched} leads to {page}");
        }
    }
    for foreign in ["//evil.example/pr/7", "/\\evil.example/pr/7", "/nowhere"] {
        let found = site.json(&format!("/api/v1/search?q={foreign}")).await;
        let page = found["page"].as_str().unwrap_or("/");
        assert!(!page[1..].starts_with(['/', '\\']), "{foreign}: {found}");
    }
}

#[tokio::test]
async fn pull_request_page_leads_to_older_heads_and_says_the_next_step() {
    let site = full().await;
    let pulls = site.json("/api/v1/pulls?sort=number").await;
    let mut checked = 0;
    for pull in pulls["pulls"].as_array().unwrap() {
        let number = pull["number"].as_u64().unwrap();
        let model = site.json(&format!("/api/v1/pulls/{number}")).await;
        let (_, page) = site.get(&format!("/pr/{number}")).await;
        assert!(page.contains(model["pull_request"]["title"].as_str().unwrap()), "{page}");
        if pull["standing"] == "blocked" {
            assert!(page.contains("Next: ") && page.contains("Re-run it"), "{page}");
        }
        let heads = model["heads"].as_array().unwrap();
        let Some(old) = heads.get(1).map(|head| head["sha"].as_str().unwrap()) else { continue };
        let (status, older) = site.get(&format!("/pr/{number}?head={}", &old[..10])).await;
        assert!(status == StatusCode::OK && older.contains("This is an older head"), "{older}");
        checked += 1;
    }
    assert!(checked > 3, "{checked}");
    assert_eq!(site.get("/pr/101090?head=0000000").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn title_of_an_old_open_pull_request_and_of_an_old_commit_of_the_branch_is_found() {
    let site = site(vec![]).await;
    let closed = (100..500).map(|number| pull(number, 1, "closed"));
    let on_topics = (0..700).map(|n| {
        let commit = json!({ "message": "Try it", "author": { "name": "Ada" } });
        let push = json!({ "ref": format!("refs/heads/topic/{n}"), "after": format!("{n:040x}"), "head_commit": commit });
        ("push", 1, push)
    });
    let commit = json!({ "message": "The frobnicator is aligned", "author": { "name": "Ada" } });
    let on_main =
        json!({ "ref": "refs/heads/main", "after": "a1".repeat(20), "head_commit": commit });
    let rows = closed.chain(on_topics).chain([pull(7, 600, "open"), ("push", 600, on_main)]);
    site.add_webhooks(rows.collect()).await;
    for (text, page) in
        [("#7+Pull+7", "/pr/7"), ("frobnicator", &format!("/commit/{}", "a1".repeat(20)))]
    {
        let found = site.json(&format!("/api/v1/search?q={}", text.replace('#', "%23"))).await;
        assert_eq!(found["page"], page, "{text}: {found}");
    }
    let branches = site.json(&format!("/api/v1/hud/{UPSTREAM}")).await;
    assert_eq!((&branches["branches"][0], &branches["has_more"]), (&json!("main"), &json!(true)));
    let trends = site.json("/api/v1/trends").await;
    assert_eq!(trends["branch"], "main", "{trends}");
}

#[tokio::test]
async fn red_default_branch_is_on_the_first_page_whatever_else_was_pushed_and_whatever_its_name_is()
{
    for name in ["main", "viable/strict"] {
        let site = site(vec![]).await;
        let push = |name: &str, sha: &str, minutes| {
            let push = json!({
                "ref": format!("refs/heads/{name}"), "after": sha,
                "head_commit": { "message": "One more", "author": { "name": "Ada" } },
            });
            ("push", minutes, push)
        };
        let job = json!({
            "id": 5, "name": "build", "workflow_name": "CI", "status": "completed",
            "conclusion": "failure", "head_sha": "a1".repeat(20), "head_branch": name,
        });
        let (event, minutes, mut of_pull) = pull(7, 600, "open");
        of_pull["pull_request"]["base"] =
            json!({ "ref": name, "repo": { "default_branch": name } });
        let topics = (0..60).map(|n| push(&format!("topic/{n}"), &format!("{n:040x}"), 1));
        let rows = [
            push(name, &"a1".repeat(20), 600),
            ("workflow_job", 590, json!({ "workflow_job": job })),
        ];
        site.add_webhooks(topics.chain(rows).chain([(event, minutes, of_pull)]).collect()).await;
        let now = site.json("/api/v1/now").await;
        assert_eq!(now["branches"][0]["branch"], name, "{now}");
        assert_eq!(now["branches"][0]["red"][0]["title"], "CI / build", "{now}");
    }
}

#[tokio::test]
async fn each_of_250_open_pull_requests_is_on_a_page() {
    let site = site(vec![]).await;
    let facts = (1..=250).map(|number| {
        Fact::Dispatch(DispatchFact {
            pull_request: Some(number),
            delivery: format!("d{number}"),
            ..of_aurora().0
        })
    });
    let facts = facts.collect();
    site.store.commit(WriteBatch { facts, ..WriteBatch::default() }, now()).await.unwrap();
    let mut numbers = vec![];
    for page in 1..=3 {
        let pulls = site.json(&format!("/api/v1/pulls?sort=-number&page={page}")).await;
        let shown = pulls["pulls"].as_array().unwrap().iter();
        numbers.extend(shown.map(|pull| pull["number"].as_u64().unwrap()));
    }
    assert_eq!(numbers, (1..=250).rev().collect::<Vec<_>>());
    let (_, page) = site.get("/prs?sort=-number&page=2").await;
    assert!(page.contains("/prs?sort=-number&amp;page=3\">50 more</a>"), "{page}");
    assert!(page.contains("/prs?sort=-number\">Back</a>"), "{page}");
}

#[tokio::test]
async fn dispatch_that_started_no_run_was_told_of_all_the_same() {
    let sent = |status, delivery: &str| {
        let at = now() - jiff::SignedDuration::from_hours(3);
        Fact::Dispatch(DispatchFact {
            status,
            delivery: delivery.to_owned(),
            enqueued_at: at,
            ..of_aurora().0
        })
    };
    let site = site(vec![
        sent(DispatchFactStatus::NeverStarted, "a"),
        sent(DispatchFactStatus::Dead, "b"),
    ])
    .await;
    let page = site.page_with("/", "torch-aurora</bdi></a> never started a run for ").await;
    let (_, given_up) = page.split_once("torch-aurora</bdi></a> was not told of ").unwrap();
    assert!(given_up.contains("</time>: given up"), "{page}");
}

/// Pull request `number`, which changed some minutes ago.
fn pull(number: u64, minutes: i64, state: &str) -> (&'static str, i64, serde_json::Value) {
    let pull = json!({
        "id": number, "number": number, "state": state, "title": format!("Pull {number}"),
        "head": { "sha": "f2".repeat(20), "ref": "topic" },
    });
    ("pull_request", minutes, json!({ "number": number, "pull_request": pull }))
}

#[tokio::test]
async fn oldest_open_pull_request_is_blocked_however_many_were_closed_since() {
    let site = site(pulls::branched(2, true)).await;
    let closed = (100..500).map(|number| pull(number, 1, "closed"));
    site.add_webhooks(closed.chain([pull(7, 600, "open")]).collect()).await;
    let now = site.json("/api/v1/now").await;
    assert_eq!(now["blocked"][0]["number"], 7, "{now}");
    assert_eq!(now["looked_at_since"], json!(null));
}

#[tokio::test]
async fn page_that_looks_at_some_of_the_open_pull_requests_does_not_say_that_none_is_blocked() {
    let site = site(pulls::branched(2, true)).await;
    let newer = (100..400).map(|number| {
        let (event, minutes, mut payload) = pull(number, 1, "open");
        payload["pull_request"]["head"]["sha"] = json!("e1".repeat(20));
        (event, minutes, payload)
    });
    site.add_webhooks(newer.chain([pull(7, 600, "open")]).collect()).await;
    let (_, page) = site.get("/").await;
    assert!(!page.contains("No backend blocks") && !page.contains("0 running"), "{page}");
    let (_, rest) = page.split_once("<a href=\"/prs?show=blocked&amp;before=").unwrap();
    let before = rest.split('"').next().unwrap();
    let (_, earlier) = site.get(&format!("/prs?show=blocked&before={before}")).await;
    assert!(earlier.contains("Pull 7"), "the link leads to the rest: {earlier}");
    let (_, first) = site.get("/prs?show=blocked").await;
    assert!(first.contains("None of those that changed last matches"), "{first}");
    assert!(!first.contains("Blocked 0"), "{first}");
}

#[tokio::test]
async fn no_pull_request_is_open_when_all_known_ones_are_closed() {
    let site = site(pulls::branched(2, true)).await;
    site.add_webhooks(vec![pull(7, 1, "closed")]).await;
    let pulls = site.json("/api/v1/pulls").await;
    assert_eq!((&pulls["are_known"], &pulls["pulls"]), (&json!(true), &json!([])));
}

#[tokio::test]
async fn commit_of_a_fork_and_of_its_upstream_is_that_of_the_repository_that_the_address_names() {
    let site = site(vec![]).await;
    let push = |repository: &str| {
        let payload = json!({
            "ref": "refs/heads/main", "after": "b2".repeat(20), "repository": { "full_name": repository },
            "head_commit": { "message": format!("Of {repository}"), "author": { "name": "Ada" } },
        });
        WebhookRow::new("push", repository, now(), payload.to_string().as_bytes()).unwrap()
    };
    let rows = [UPSTREAM, "aaa/fork", "zzz/fork"].map(push).to_vec();
    site.hud.results.append_webhooks(rows).await.unwrap();
    for (query, repository) in
        [("", UPSTREAM), ("?upstream=aaa%2Ffork", "aaa/fork"), ("?upstream=zzz%2Ffork", "zzz/fork")]
    {
        let commit = site.json(&format!("/api/v1/commits/b2b2b2b{query}")).await;
        assert_eq!(commit["commit"]["repository"], repository, "{query}: {commit}");
    }
    assert_eq!(site.get("/commit/b2b2b2b?upstream=odd").await.0, StatusCode::BAD_REQUEST);
    let (_, page) = site.get("/search?q=b2b2b2b2").await;
    assert!(page.contains("href=\"/commit/") && page.contains("?upstream=zzz%2Ffork\""), "{page}");
}

#[tokio::test]
async fn commit_that_was_dispatched_again_after_weeks_reads_minutes_and_not_the_weeks_between() {
    let (sent, attempt) = of_aurora();
    let again = |days: i64, delivery: &str, conclusion: Conclusion| {
        let at = now() - jiff::SignedDuration::from_hours(24 * days);
        let sent = DispatchFact { delivery: delivery.to_owned(), enqueued_at: at, ..sent.clone() };
        let attempt = AttemptFact {
            delivery: delivery.to_owned(),
            run_id: delivery.to_owned(),
            dispatched_at: at,
            received_at: at + jiff::SignedDuration::from_mins(30),
            state: JobState::Completed(conclusion),
            head_sha: sent.head_sha.clone(),
            pull_request: sent.pull_request,
            event: sent.event.clone(),
            ..attempt.clone()
        };
        (sent, attempt)
    };
    let (old, failed) = again(25, "old", Conclusion::Failure);
    let (new, passed) = again(1, "new", Conclusion::Success);
    let windows = crate::pages::commit::windows(&[old.clone(), new.clone()]);
    let read: i64 = windows.iter().map(|one| one.to.duration_since(one.from).as_mins()).sum();
    assert_eq!((windows.len(), read), (2, 0));
    let attempts = [failed, passed].map(|row| Fact::Attempt(Box::new(row)));
    let site =
        site([vec![Fact::Dispatch(old), Fact::Dispatch(new)], attempts.to_vec()].concat()).await;
    let commit = site.json(&format!("/api/v1/commits/{}", sent.head_sha)).await;
    let jobs = &commit["commit"]["backends"][0]["jobs"];
    assert_eq!(
        (&jobs[0]["attempts"], &jobs[0]["outcome"]),
        (&json!(2), &json!("passed_after_rerun"))
    );
}

#[tokio::test]
async fn lost_dispatch_of_another_upstream_leads_to_its_own_pull_request_and_one_is_not_many() {
    let at = now() - jiff::SignedDuration::from_hours(3);
    let lost = DispatchFact {
        status: DispatchFactStatus::Dead,
        delivery: "other".to_owned(),
        upstream: "other/upstream".to_owned(),
        pull_request: Some(7),
        enqueued_at: at,
        ..of_aurora().0
    };
    let site = site(vec![Fact::Dispatch(lost)]).await;
    let (_, page) = site.get("/").await;
    for expected in [
        "href=\"/pr/7?upstream=other%2Fupstream\"",
        "kind=dead&amp;window=24h\">1 dispatch was given up.</a>",
        "In the last 24 hours: <a rel=\"nofollow\" href=\"/relay?list=dispatches&amp;window=24h\">1 dispatch</a>;",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}

#[tokio::test]
async fn jobs_that_passed_so_far_are_not_called_all_that_will_come() {
    let site = full().await;
    let pulls = site.json("/api/v1/pulls?show=green").await;
    let (_, page) = site.get(&format!("/pr/{}", pulls["pulls"][0]["number"])).await;
    assert!(
        page.contains("Nothing blocks so far: every job that backends at L4 reported"),
        "{page}"
    );
}

#[tokio::test]
async fn relay_that_does_not_send_what_waits_is_not_well() {
    let queued = |minutes: i64| {
        let at = now() - jiff::SignedDuration::from_mins(minutes);
        let (sent, mut attempt) = of_aurora();
        (attempt.received_at, attempt.dispatched_at) = (at, at);
        (attempt.event, attempt.state) =
            (EventName::PullRequest, JobState::Completed(Conclusion::Success));
        let delivery = format!("waits-{minutes}");
        let status = DispatchFactStatus::Queued;
        let sent = DispatchFact { delivery, enqueued_at: at, sent_at: None, status, ..sent };
        let reported = relay::report(minutes, Some(AURORA), CallbackOutcome::Accepted);
        vec![Fact::Dispatch(sent), Fact::Attempt(Box::new(attempt)), reported]
    };
    let (_, page) = site(queued(5)).await.get("/").await;
    assert!(page.contains("No dispatch was lost or waits too long"), "it may be sent soon: {page}");
    let (_, page) = site([queued(5), queued(20), queued(90)].concat()).await.get("/").await;
    assert!(
        page.contains("2 dispatches have waited to be sent for more than 10 minutes"),
        "{page}"
    );
    assert!(page.contains("/relay?list=dispatches&amp;kind=queued&amp;window=24h"), "{page}");
    assert!(!page.contains("No dispatch was lost or waits too long"), "{page}");
}

#[tokio::test]
async fn backend_without_results_is_not_one_that_meets_its_level() {
    let mut facts = facts(7, now(), 14, 10, UPSTREAM);
    facts.retain_mut(|fact| match fact {
        Fact::Dispatch(sent) => sent.repo == AURORA,
        Fact::Attempt(row) => {
            row.state = JobState::Completed(Conclusion::Success);
            row.execution_seconds = Some(60.0);
            row.repo == AURORA
        }
        _ => true,
    });
    let site = site(facts).await;
    let now = site.json("/api/v1/now").await;
    assert_eq!((&now["meeting"], &now["unknown"]), (&json!(1), &json!(1)), "{now}");
    let (_, page) = site.get("/").await;
    assert!(!page.contains("criteria meet") && page.contains("too few results"), "{page}");
}

#[tokio::test]
async fn counts_of_unknown_and_silent_backends_are_those_of_the_overview() {
    let is_silent = |repo: &str| repo.starts_with("basalt") || repo.starts_with("cedar");
    let mut facts = facts(7, now(), 14, 10, UPSTREAM);
    facts.retain_mut(|fact| match fact {
        Fact::Dispatch(sent) if is_silent(&sent.repo) => {
            sent.status = DispatchFactStatus::Dead;
            true
        }
        Fact::Attempt(row) => !is_silent(&row.repo),
        _ => true,
    });
    let site = site(facts).await;
    let now = site.json("/api/v1/now").await;
    let overview = site.json("/api/v1/overview").await;
    for standing in ["unknown", "silent"] {
        let counts = json!([standing, now[standing]]);
        assert!(overview["standings"].as_array().unwrap().contains(&counts), "{counts} {overview}");
    }
    let shown = format!("href=\"/crcr?show=silent\" rel=\"nofollow\">{} backend", now["silent"]);
    assert!(now["silent"].as_u64() > Some(0) && site.get("/").await.1.contains(&shown), "{now}");
}
