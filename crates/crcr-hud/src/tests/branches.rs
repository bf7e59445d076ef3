use super::*;

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
    let path = crate::address::branch_path("acme/tree", BRANCH);
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
    assert_eq!(rerun["passed_after_rerun"], true, "it isn't like one that never failed");
    assert_eq!(commits[2]["cells"][1], serde_json::Value::Null, "it did not run");
    let open = site.json(&format!("/api/v1{path}?open=CI+%2F+test&rows=failing&q=TEST")).await;
    assert_eq!(names(&open), ["test (1, 2)", "test (2, 2)"]);
    assert_eq!(open["commits"].as_array().unwrap().len(), 1);
    let none =
        site.page_with(&format!("{path}?q=nothing"), "No job of these commits and no ").await;
    assert!(!none.contains("<table"), "a table without columns: {none}");
    let failed = cell["job"].as_u64().unwrap();
    let (status, page) = site.get(&format!("{path}?job={failed}")).await;
    assert_eq!(status, StatusCode::OK);
    for expected in [
        "Failed in step 1: <strong><bdi>make &lt;test&gt;",
        "Commit &lt;b&gt;3&lt;/b&gt;",
        "took 5 min",
        "/pr/73?upstream=acme%2Ftree",
        "title=\"failed, 1 of 2 jobs\" aria-label=\"failed, 1 of 2 jobs",
        "so many of its jobs failed",
        "aria-label=\"passed after re-run\">↻</a>",
        "<span class=\"legend\">↻ passed after re-run</span>",
        "newest commit <time class=\"ago\" datetime=\"2026-09-15T10:50:00Z\">",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
}

#[tokio::test]
async fn repositories_branches_and_search_lead_to_the_branch() {
    let site = site_with_jobs("main").await;
    site.page_with("/hud", "<a href=\"/hud/acme/tree\">").await;
    site.page_with("/hud/acme/tree", "<a href=\"/hud/acme/tree/main\">").await;
    for (text, expected) in [
        ("%2371", "/pr/71"),
        ("71", "/pr/71"),
        ("acme/tree", "/hud/acme/tree"),
        ("basalt-example/torch-basalt", "/crcr/basalt-example/torch-basalt"),
        (&"3".repeat(40), &format!("/commit/{}", "3".repeat(40))),
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
    assert_eq!(answer.headers()["location"], format!("/commit/{}", "9".repeat(40)));
    let commit = site.json(&format!("/api/v1/commits/{}", "9".repeat(40))).await;
    assert_eq!(commit["commit"]["pull_requests"], json!([79]), "a fork's run knows its number");
    let (_, page) = site.get("/hud/acme/tree").await;
    assert!(!page.contains("topic"), "{page}");
    let (status, page) = site.get("/search?q=%3Cscript%3E").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("Nothing is known about <strong><bdi>&lt;script&gt;"), "{page}");
    for missing in ["/hud/acme/other", "/hud/acme/tree/other", "/hud/acme/..%2F"] {
        assert_eq!(site.get(missing).await.0, StatusCode::NOT_FOUND, "{missing}");
    }
}

pub(crate) fn push(sha: &str, minutes: i64) -> (&'static str, i64, serde_json::Value) {
    let commit = json!({ "message": format!("Commit {sha}"), "author": { "name": "Ada" } });
    let push = json!({ "ref": "refs/heads/main", "after": sha.repeat(20), "head_commit": commit });
    ("push", minutes, push)
}

pub(crate) fn job(sha: &str, conclusion: Option<&str>) -> (&'static str, i64, serde_json::Value) {
    let job = json!({
        "id": u64::from_str_radix(sha, 16).unwrap(), "name": "build", "workflow_name": "CI",
        "status": if conclusion.is_some() { "completed" } else { "in_progress" },
        "conclusion": conclusion, "head_sha": sha.repeat(20), "head_branch": "main",
    });
    ("workflow_job", 1, json!({ "workflow_job": job }))
}

#[tokio::test]
async fn branch_is_green_only_at_a_commit_on_which_everything_ended_and_passed() {
    let site = site(vec![]).await;
    let green = async || {
        let now = site.json("/api/v1/now").await;
        let page = site.get("/").await.1;
        let green = now["branches"][0]["green"]["sha"].as_str().map(str::to_owned);
        assert_eq!(page.contains("</a> is green at <a"), green.is_some(), "{page}");
        assert_eq!(page.contains("is green isn't known"), green.is_none(), "{page}");
        green
    };
    site.add_webhooks(vec![push("a1", 99)]).await;
    assert_eq!(green().await, None, "no job is known");
    site.add_webhooks(vec![job("a1", Some("skipped"))]).await;
    assert_eq!(green().await, None, "nothing passed");
    site.add_webhooks(vec![push("b2", 98), job("b2", Some("success"))]).await;
    site.add_webhooks(vec![push("c3", 97), job("c3", None)]).await;
    assert_eq!(green().await, Some("b2".repeat(20)), "a job of the newest commit runs");
    site.add_webhooks(vec![push("d4", 96), job("d4", Some("cancelled"))]).await;
    assert_eq!(green().await, Some("b2".repeat(20)));
}

#[tokio::test]
async fn job_and_backend_that_are_run_again_are_red_on_each_page_until_the_re_run_has_ended() {
    let rerun = |facts: Vec<Fact>| {
        let mut again = facts.clone();
        for fact in &mut again {
            if let Fact::Attempt(row) = fact {
                (row.run_attempt, row.state) = (row.run_attempt + 1, JobState::InProgress);
            }
        }
        facts.into_iter().chain(again)
    };
    let mut facts = vec![pushed("a1", Conclusion::Success)];
    facts.extend(rerun(vec![pushed("b2", Conclusion::Failure)]));
    let site = site(facts).await;
    let at = |sha, minutes, conclusion| [push(sha, minutes), job(sha, Some(conclusion))];
    site.add_webhooks([at("a1", 99, "success"), at("b2", 98, "failure")].concat()).await;
    let mut again = job("b2", None);
    again.2["workflow_job"]["id"] = json!(900);
    again.2["workflow_job"]["run_attempt"] = json!(2);
    site.add_webhooks(vec![again]).await;
    let now = site.json("/api/v1/now").await;
    let red = now["branches"][0]["red"].as_array().unwrap();
    assert_eq!(red.len(), 2, "{now}");
    assert!(red.iter().all(|red| red["since"]["sha"] == "b2".repeat(20)), "{now}");
    let path = format!("/hud/{UPSTREAM}/main");
    let grid = site.json(&format!("/api/v1{path}")).await;
    assert_eq!(grid["commits"][0]["cells"][0]["state"], "running", "{grid}");
    assert_eq!(grid["red"][0]["sha"], "b2".repeat(20), "{grid}");
    let backends = grid["red_backends"].as_array().unwrap().iter();
    assert_eq!(backends.filter(|red| red["sha"] == "b2".repeat(20)).count(), 1, "{grid}");
}

#[tokio::test]
async fn group_is_red_since_the_first_failure_of_the_shards_that_are_still_red() {
    let site = site(vec![]).await;
    let shards = |sha: &str, minutes: i64, shards: [&str; 2]| {
        let mut rows = vec![push(sha, minutes)];
        for (n, conclusion) in (1..).zip(shards) {
            let (event, minutes, mut ran) = job(sha, Some(conclusion));
            let id = 1000 * n + u64::from_str_radix(sha, 16).unwrap();
            ran["workflow_job"]["id"] = json!(id);
            ran["workflow_job"]["name"] = json!(format!("test ({n}, 2)"));
            rows.push((event, minutes, ran));
        }
        rows
    };
    let (good, bad, open) = ("success", "failure", "cancelled");
    // The shards on the commits one after another; since which the group is red, the failures since, and the shard.
    for (n, (sha, ran, since)) in [
        ("a1", [good, good], None),
        ("b2", [bad, good], Some(("b2", 1, 1))),
        ("c3", [good, bad], Some(("c3", 1, 2))),
        ("d4", [good, bad], Some(("c3", 2, 2))),
        ("e5", [bad, bad], Some(("c3", 3, 2))),
        ("f6", [bad, good], Some(("e5", 2, 1))),
        ("a7", [open, good], Some(("e5", 2, 1))),
        ("b8", [good, good], None),
    ]
    .into_iter()
    .enumerate()
    {
        site.add_webhooks(shards(sha, 99 - n as i64, ran)).await;
        let grid = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
        let now = site.json("/api/v1/now").await;
        let (red, job) = (&grid["red"][0], &now["branches"][0]["red"][0]);
        let Some((since, commits, shard)) = since else {
            assert!(red.is_null() && job.is_null(), "{sha}: {red} {job}");
            continue;
        };
        let id = 1000 * shard + u64::from_str_radix(since, 16).unwrap();
        let expected = json!({
            "sha": since.repeat(20), "commits": commits, "is_first": true, "job": id,
        });
        assert_eq!(*red, expected, "{sha}");
        assert_eq!(
            (&job["since"]["sha"], &job["commits"]),
            (&red["sha"], &red["commits"]),
            "{sha}"
        );
    }
    let (_, feed) = site.get(&format!("/feeds/{UPSTREAM}/main")).await;
    let titles =
        feed.split("<title>CI / test ").skip(1).map(|rest| rest.split('<').next().unwrap());
    let titles: Vec<_> = titles.collect();
    let expected = [
        "is green again on main at b8b8",
        "turned red on main at c3c3",
        "turned red on main at b2b2",
    ];
    assert_eq!(titles.len(), expected.len(), "{titles:?}");
    assert!(
        titles.iter().zip(expected).all(|(title, begin)| title.starts_with(begin)),
        "{titles:?}"
    );
}

#[tokio::test]
async fn backend_that_is_red_on_a_branch_is_red_on_each_page_of_the_branch() {
    let facts = vec![pushed("a1", Conclusion::Success), pushed("b2", Conclusion::Failure)];
    let site = site(facts).await;
    let green = |sha, minutes| [push(sha, minutes), job(sha, Some("success"))];
    site.add_webhooks([green("a1", 99), green("b2", 98)].concat()).await;
    let now = site.json("/api/v1/now").await;
    let health = &now["branches"][0];
    let red = &health["red"][0];
    assert_eq!((&red["backend"], &red["commits"]), (&json!(AURORA), &json!(1)), "{health}");
    assert_eq!(health["green"]["sha"], "a1".repeat(20), "{health}");
    let (_, page) = site.get("/").await;
    assert!(page.contains(" is red on ") && !page.contains("</a> is green at <a"), "{page}");
    let path = format!("/hud/{UPSTREAM}/main");
    let grid = site.json(&format!("/api/v1{path}")).await;
    let column = grid["backends"].as_array().unwrap().iter().position(|b| b["repo"] == AURORA);
    let red = &grid["red_backends"][column.unwrap()];
    assert_eq!((&red["sha"], &red["is_first"]), (&json!("b2".repeat(20)), &json!(true)), "{grid}");
    let (_, page) = site.get(&path).await;
    for expected in [
        "torch-aurora</bdi></strong> is red since",
        "the first red one\" aria-label=",
        "↻ passed after re-run",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let failing = site.json(&format!("/api/v1{path}?rows=failing")).await;
    assert_eq!(failing["commits"].as_array().unwrap().len(), 1, "{failing}");
    assert_eq!(failing["commits"][0]["sha"], "b2".repeat(20));
    assert_eq!(failing["red_backends"], grid["red_backends"], "hidden commits count");
    let (_, feed) = site.get(&format!("/feeds/{UPSTREAM}/main")).await;
    assert!(feed.contains(&format!("<title>{AURORA} turned red on main at b2b2")), "{feed}");
}

#[tokio::test]
async fn cancelled_job_of_a_backend_makes_a_commit_neither_red_nor_green_on_any_page() {
    let facts = vec![
        pushed("a1", Conclusion::Success),
        pushed("b2", Conclusion::Cancelled),
        pushed("c3", Conclusion::Failure),
        pushed("d4", Conclusion::Cancelled),
    ];
    let site = site(facts).await;
    let green = |sha, minutes| [push(sha, minutes), job(sha, Some("success"))];
    for (commits, expected) in
        [([("a1", 99), ("b2", 98)], json!([])), ([("c3", 97), ("d4", 96)], json!([AURORA]))]
    {
        site.add_webhooks(commits.map(|(sha, minutes)| green(sha, minutes)).concat()).await;
        let now = site.json("/api/v1/now").await;
        let red = now["branches"][0]["red"].as_array().unwrap().iter();
        let red: Vec<_> = red.map(|red| red["backend"].clone()).collect();
        assert_eq!(json!(red), expected, "{now}");
        assert_eq!(now["branches"][0]["green"]["sha"], "a1".repeat(20), "{now}");
    }
    let grid = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
    let red = grid["red_backends"].as_array().unwrap().iter().find(|red| !red.is_null()).unwrap();
    assert_eq!((&red["sha"], &red["commits"]), (&json!("c3".repeat(20)), &json!(1)), "{grid}");
    let failing = site.json(&format!("/api/v1/hud/{UPSTREAM}/main?rows=failing")).await;
    let failing = failing["commits"].as_array().unwrap().iter().map(|row| row["sha"].clone());
    assert_eq!(failing.collect::<Vec<_>>(), [json!("c3".repeat(20))], "{grid}");
    for feed in [format!("/feeds/{UPSTREAM}/main"), format!("/crcr/{AURORA}/feed.atom")] {
        let (_, feed) = site.get(&feed).await;
        assert!(feed.contains("turned red") && !feed.contains("is green again"), "{feed}");
        assert!(!feed.contains("b2b2") && !feed.contains("d4d4"), "{feed}");
    }
}

#[tokio::test]
async fn column_that_was_red_once_is_not_marked_on_a_page_of_older_commits() {
    let site = site(vec![pushed("a1", Conclusion::Failure)]).await;
    for (sha, minutes, conclusion) in
        [("a1", 99, "failure"), ("b2", 98, "failure"), ("c3", 97, "success")]
    {
        site.add_webhooks(vec![push(sha, minutes), job(sha, Some(conclusion))]).await;
    }
    let path = format!("/hud/{UPSTREAM}/main?before=2026-09-15T10:22:30Z");
    let grid = site.json(&format!("/api/v1{path}")).await;
    assert_eq!(grid["commits"].as_array().unwrap().len(), 2, "{grid}");
    let red = ["red", "red_backends"].map(|red| grid[red].as_array().unwrap());
    assert!(red.iter().all(|red| red.iter().all(serde_json::Value::is_null)), "{grid}");
    let (_, page) = site.get(&path).await;
    assert!(!page.contains("red since") && !page.contains("the first red one"), "{page}");
    assert!(!page.contains("newest commit"), "{page}");
}

#[tokio::test]
async fn rerun_of_an_old_commit_neither_comes_first_nor_makes_the_branch_red() {
    let site = site(vec![]).await;
    site.add_webhooks(vec![push("b2", 90), job("b2", Some("success"))]).await;
    // Pushed before what is kept of pushes, and run again a minute ago.
    let created = (now() - jiff::SignedDuration::from_hours(24 * 20)).to_string();
    let run = json!({ "workflow_run": {
        "id": 9, "run_attempt": 2, "event": "push", "head_sha": "a1".repeat(20), "head_branch": "main",
        "created_at": created, "status": "completed", "conclusion": "failure",
        "head_commit": { "message": "Old", "author": { "name": "Ada" } },
    } });
    let (event, minutes, mut failed) = job("a1", Some("failure"));
    failed["workflow_job"]["run_id"] = json!(9);
    site.add_webhooks(vec![("workflow_run", 1, run), (event, minutes, failed)]).await;
    let grid = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
    let first = &grid["commits"][0];
    assert_eq!(first["sha"], "b2".repeat(20), "{grid}");
    assert_eq!(grid["red"], json!([null]), "{grid}");
    let now = site.json("/api/v1/now").await;
    assert_eq!(now["branches"][0]["red"], json!([]), "{now}");
}

#[tokio::test]
async fn repositories_of_strangers_hide_neither_upstream_nor_its_commits() {
    let site = site(vec![]).await;
    site.add_webhooks(vec![push("b2", 90), job("b2", Some("success"))]).await;
    let row = |n: usize, event: &str, mut payload: serde_json::Value| {
        payload["repository"] = json!({ "full_name": format!("aaa/repository-{n:03}") });
        let (delivery, body) = (format!("{event} {n}"), payload.to_string());
        WebhookRow::new(event, &delivery, now(), body.as_bytes()).unwrap()
    };
    let rows = (0..250).flat_map(|n| {
        let (_, _, pushed) = push("c3", 1);
        let (_, _, mut ran) = job("c3", Some("success"));
        ran["workflow_job"]["id"] = json!(1000 + n);
        [row(n, "push", pushed), row(n, "workflow_job", ran)]
    });
    site.hud.results.append_webhooks(rows.collect()).await.unwrap();
    let (status, page) = site.get("/commit/b2b2b2b2").await;
    assert_eq!(status, StatusCode::OK, "{page}");
    let known = site.json("/api/v1/hud").await;
    let names = known["repositories"].as_array().unwrap();
    assert_eq!((names.len(), &known["has_more"]), (200, &json!(true)));
    assert!(names.iter().any(|one| one["name"] == UPSTREAM), "{known}");
    for path in ["/failures", "/trends"] {
        let (_, page) = site.get(path).await;
        assert!(page.matches("<option").count() < 250 && page.contains(UPSTREAM), "{path}");
    }
}

#[tokio::test]
async fn run_that_failed_without_a_job_is_red_until_the_next_one_passes() {
    let site = site(vec![]).await;
    let run = |sha: &str, conclusion: &str| {
        let id = 9000 + u64::from_str_radix(sha, 16).unwrap();
        let run = json!({
            "id": id, "run_attempt": 1, "name": "Nightly", "event": "push", "head_sha": sha.repeat(20),
            "head_branch": "main", "status": "completed", "conclusion": conclusion,
            "html_url": format!("https://github.com/{UPSTREAM}/actions/runs/{id}"),
        });
        ("workflow_run", 1, json!({ "action": "completed", "workflow_run": run }))
    };
    let passed = |sha, minutes| vec![push(sha, minutes), job(sha, Some("success"))];
    site.add_webhooks([passed("a1", 99), vec![run("a1", "success")]].concat()).await;
    // Its workflow file is broken: nothing of it ran.
    site.add_webhooks([passed("b2", 98), vec![run("b2", "startup_failure")]].concat()).await;
    let now = site.json("/api/v1/now").await;
    let health = &now["branches"][0];
    assert_eq!(health["red"][0]["title"], "Nightly / whole run", "{health}");
    assert_eq!(health["green"]["sha"], "a1".repeat(20), "{health}");
    let (_, grid) = site.get(&format!("/hud/{UPSTREAM}/main")).await;
    assert!(grid.contains("Nightly / whole run</bdi></strong> is red since"), "{grid}");
    let found = site.json("/api/v1/search?q=nightly+/+whole+run").await;
    assert_eq!(found["page"], format!("/hud/{UPSTREAM}/main?q=Nightly+%2F+whole+run"), "{found}");
    let id = 9000 + 0xb2;
    let (status, panel) = site.get(&format!("/panel/{UPSTREAM}/{id}")).await;
    assert_eq!(status, StatusCode::OK, "{panel}");
    assert!(panel.contains(&format!("/actions/runs/{id}\"")), "{panel}");
    assert!(panel.contains("No failed job of this run is known"), "{panel}");
    let commit = site.json(&format!("/api/v1/commits/{}", "b2".repeat(20))).await;
    assert_eq!(commit["commit"]["in_tree"][0]["state"], "failed", "{commit}");
    let (_, page) = site.get(&format!("/commit/{}", "b2".repeat(20))).await;
    assert!(page.contains(&format!("<a href=\"/failure/{UPSTREAM}/{id}\">Why")), "{page}");
    site.add_webhooks([passed("c3", 97), vec![run("c3", "success")]].concat()).await;
    let now = site.json("/api/v1/now").await;
    assert_eq!(now["branches"][0]["red"], json!([]), "{now}");
    assert_eq!(now["branches"][0]["green"]["sha"], "c3".repeat(20), "{now}");
    // What is told of its job came late, and a link to the run is kept in a chat.
    let (event, minutes, mut late) = job("b2", Some("failure"));
    (late["workflow_job"]["id"], late["workflow_job"]["run_id"]) = (json!(9999), json!(id));
    site.add_webhooks(vec![(event, minutes, late)]).await;
    let (_, panel) = site.get(&format!("/panel/{UPSTREAM}/{id}")).await;
    assert!(panel.contains(&format!("<a href=\"/failure/{UPSTREAM}/9999\">")), "{panel}");
    assert!(!panel.contains("No failed job of this run is known"), "{panel}");
}

#[tokio::test]
async fn commit_whose_run_was_cancelled_before_it_had_jobs_is_not_green() {
    let site = site(vec![]).await;
    let run = |sha: &str, conclusion: &str| {
        let run = json!({
            "id": 9000 + u64::from_str_radix(sha, 16).unwrap(), "name": "Trunk", "event": "push",
            "head_sha": sha.repeat(20), "head_branch": "main", "status": "completed",
            "conclusion": conclusion,
        });
        ("workflow_run", 1, json!({ "workflow_run": run }))
    };
    for (sha, minutes, conclusion) in [("a1", 99, "success"), ("b2", 98, "cancelled")] {
        let rows = vec![push(sha, minutes), job(sha, Some("success")), run(sha, conclusion)];
        site.add_webhooks(rows).await;
    }
    let now = site.json("/api/v1/now").await;
    assert_eq!(now["branches"][0]["green"]["sha"], "a1".repeat(20), "{now}");
    let grid = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
    assert!(grid["commits"][0].to_string().contains("\"state\":\"cancelled\""), "{grid}");
    site.page_with(&format!("/failure/{UPSTREAM}/{}", 9000 + 0xb2), "This run was cancelled").await;
}

#[tokio::test]
async fn pull_request_of_a_strangers_main_at_a_commit_of_main_makes_it_neither_green_nor_red() {
    // A run of the stranger's pull request, and one of its jobs.
    let stranger = |sha: &str, conclusion: &str| {
        let run = json!({
            "id": 9000, "run_attempt": 1, "name": "CI", "event": "pull_request", "head_sha": sha.repeat(20),
            "head_branch": "main", "status": "completed", "conclusion": conclusion,
            "head_repository": { "full_name": "stranger/upstream" },
        });
        let (event, minutes, mut ran) = job(sha, Some(conclusion));
        (ran["workflow_job"]["id"], ran["workflow_job"]["run_id"]) = (json!(9001), json!(9000));
        [("workflow_run", 1, json!({ "workflow_run": run })), (event, minutes, ran)]
    };
    for (own, other) in [("failure", "success"), ("success", "failure")] {
        let site = site(vec![]).await;
        site.add_webhooks(vec![push("a1", 99), job("a1", Some("success"))]).await;
        site.add_webhooks(vec![push("b2", 98), job("b2", Some(own))]).await;
        site.add_webhooks(stranger("b2", other).to_vec()).await;
        let state = if own == "failure" { "failed" } else { "passed" };
        let grid = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
        assert_eq!(grid["commits"][0]["cells"][0]["state"], state, "{grid}");
        let now = site.json("/api/v1/now").await;
        let red = now["branches"][0]["red"].as_array().unwrap().len();
        assert_eq!(red, usize::from(own == "failure"), "{now}");
        // Both are on the page of the commit.
        let commit = site.json(&format!("/api/v1/commits/{}", "b2".repeat(20))).await;
        let jobs = commit["commit"]["in_tree"].as_array().unwrap();
        let states: Vec<&str> = jobs.iter().map(|job| job["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["failed", "passed"], "{commit}");
    }
}

#[tokio::test]
async fn commit_with_a_cancelled_job_that_has_no_column_is_not_folded_as_a_green_one() {
    let site = site(vec![]).await;
    for (n, sha) in ["a1", "a2", "a3", "a4", "a5"].into_iter().enumerate() {
        let named = |at: usize| {
            let (event, minutes, mut ran) = job(sha, Some("success"));
            ran["workflow_job"]["id"] = json!(1000 * (n + 1) + at);
            // Columns are sorted by name, and the last ones are left out.
            ran["workflow_job"]["name"] = json!(format!("job {at:03}"));
            if at == 70 {
                ran["workflow_job"]["conclusion"] = json!("cancelled");
            }
            (event, minutes, ran)
        };
        site.add_webhooks(vec![push(sha, 99 - n as i64)]).await;
        site.add_webhooks((1..=70).map(named).collect()).await;
    }
    let (_, page) = site.get(&format!("/hud/{UPSTREAM}/main")).await;
    assert!(page.contains("more jobs have no column") && !page.contains("⊘</a>"), "{page}");
    assert!(!page.contains("green commits"), "{page}");
    let (_, some) = site.get(&format!("/hud/{UPSTREAM}/main?q=job+00")).await;
    assert!(some.contains("5 commits, green in these"), "others were cancelled: {some}");
}

#[tokio::test]
async fn commits_on_which_everything_was_skipped_are_not_folded_as_green_ones() {
    let site = site(vec![]).await;
    for (n, sha) in ["a1", "a2", "a3", "a4", "a5"].into_iter().enumerate() {
        site.add_webhooks(vec![push(sha, 99 - n as i64), job(sha, Some("skipped"))]).await;
    }
    let (_, page) = site.get(&format!("/hud/{UPSTREAM}/main")).await;
    assert!(!page.contains("green commits") && page.contains("id=\"c-a1a1"), "{page}");
}

#[tokio::test]
async fn page_of_an_old_commit_leads_to_its_row_on_the_grid() {
    let site = site(vec![]).await;
    let sha = |n: i64| format!("{n:02x}").repeat(20);
    let commit = json!({ "message": "One more", "author": { "name": "Ada" } });
    let push = |n: i64| {
        let push = json!({ "ref": "refs/heads/main", "after": sha(n), "head_commit": commit });
        ("push", n, push)
    };
    site.add_webhooks((1..=120).map(push).collect()).await;
    for n in [1, 50, 51, 120] {
        let short = &sha(n)[..10];
        let path = format!("/hud/{UPSTREAM}/main?rows=all&commit={short}");
        let (_, page) = site.get(&format!("/commit/{short}")).await;
        let link = format!("{}#c-{short}\"", path.replace('&', "&amp;"));
        assert!(page.contains(&link), "{link}: {page}");
        let (_, grid) = site.get(&path).await;
        assert!(grid.contains(&format!("id=\"c-{short}\"")), "{short}: {grid}");
        let has_newest = grid.contains("id=\"c-0101010101\"");
        assert_eq!(has_newest, n <= 50, "the newest page as long as it has the commit: {grid}");
    }
    let of = async |commit: &str| site.get(&format!("/hud/{UPSTREAM}/main?commit={commit}")).await;
    let (status, grid) = of("ffffffffff").await;
    assert!(status == StatusCode::OK && grid.contains("c-0101010101"), "it isn't known: {grid}");
    let unknown = "No commit <code>ffffffffff</code> on this branch is known.";
    assert!(grid.contains(unknown) && !of("0101010101").await.1.contains("No commit"), "{grid}");
    assert_eq!(of("main").await.0, StatusCode::BAD_REQUEST);
}
