//! The grid's panel, the page of a failed job and its stored log.

use crcr_aws::object_store::ObjectStore;
use crcr_cidata::logs::{LogPacker, StoredLogs, log_key};
use crcr_domain::ci_data::job_log::{
    EndedJob, JobLogOutcome, JobLogRow, LogClassification, LogMatch, LogMatchSource, NoLogReason,
    NovelLine,
};
use crcr_standin::generate::UpstreamCi;

use super::*;

/// A month of upstream's own CI, with the logs of its failed jobs.
pub(crate) async fn month() -> Site {
    let facts = facts(7, now(), 30, 6, UPSTREAM);
    let mut ci = UpstreamCi::new(&facts, now()).unwrap();
    let site = site(facts).await;
    let url = format!("file:{}", site._folder.path().join("archive").display());
    let store = ObjectStore::open(&url).await.unwrap();
    let key = |repo: &str, job: u64| log_key(&RepoName::new(repo).unwrap(), job);
    for (key, text) in ci.keep_logs(key).into_iter().rev().take(60) {
        store.put(&key, LogPacker::packed(text.as_bytes()).unwrap()).await.unwrap();
    }
    ci.store(&*site.hud.results).await.unwrap();
    site.with_logs(&url, |_| {})
}

impl Site {
    /// The same site with an archive, files of the upstream repository, and what `change` does.
    pub(crate) fn with_logs(self, url: &str, change: impl FnOnce(&mut Hud)) -> Self {
        let (results, upstream) = (Arc::clone(&self.hud.results), self.hud.upstream.clone());
        let policy = (self.hud.policy)();
        let mut hud = Hud::new(results, Box::new(move || policy.clone()), Box::new(now), upstream);
        hud.logs = StoredLogs::new(Some(url.to_owned()));
        hud.files = Box::new(|repository| {
            let files = crcr_standin::generate::FILES_OF_UPSTREAM.map(|(_, text)| text(now()));
            let quarantine = crcr_domain::ci_data::quarantine::ParsedQuarantine::parse(
                files[1].as_bytes(),
                "2026-09-15".parse().unwrap(),
            );
            assert_eq!(quarantine.findings.errors(), 0, "{:?}", quarantine.findings.kept());
            (repository == UPSTREAM).then(|| {
                Arc::new(crate::RepositoryFiles {
                    codeowners: Some(crcr_domain::ci_data::codeowners::Codeowners::parse(
                        &files[0],
                    )),
                    quarantine: Some(quarantine.entries),
                    problem: None,
                    read_at: now(),
                })
            })
        });
        change(&mut hud);
        let hud = Arc::new(hud);
        Self { router: router(Arc::clone(&hud)), hud, ..self }
    }
}

/// The newest failure of the red job of the branch.
pub(crate) async fn red_job(site: &Site) -> u64 {
    let grid = site.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
    let red = grid["red"].as_array().unwrap().iter().find(|red| !red.is_null()).unwrap();
    assert_eq!(red["is_first"], true, "{red}");
    red["job"].as_u64().unwrap()
}

#[tokio::test]
async fn on_call_sees_which_column_is_red_since_which_commit_and_whose() {
    let site = month().await;
    let (status, page) = site.get(&format!("/hud/{UPSTREAM}/main")).await;
    assert_eq!(status, 200);
    for expected in [
        "is red since <a href=\"/commit/",
        " by <bdi>",
        "the first red one",
        "L4",
        "L3",
        " green commits",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let (_, all) = site.get(&format!("/hud/{UPSTREAM}/main?rows=all")).await;
    assert!(!all.contains("green commits</a>"), "nothing is folded");
    let commits = |page: &str| page.matches("<tr id=\"c-").count();
    assert!(commits(&all) > commits(&page), "{} {}", commits(&all), commits(&page));
}

#[tokio::test]
async fn cell_of_the_grid_opens_beside_it_as_a_page_and_as_a_fragment() {
    let site = month().await;
    let job = red_job(&site).await;
    let (_, page) = site.get(&format!("/hud/{UPSTREAM}/main?job={job}")).await;
    let (status, fragment) = site.get(&format!("/panel/{UPSTREAM}/{job}")).await;
    assert_eq!(status, 200);
    assert!(
        !fragment.contains("<html") && page.contains("aria-current=\"true\""),
        "the cell is marked"
    );
    for expected in [
        "Failed in step 3: ",
        "test_all_reduce",
        "90 % certain",
        "Run it again on GitHub",
        "torch/distributed/reducer.py",
        "linux.8xlarge.gpu",
        &format!("/failure/{UPSTREAM}/{job}?from="),
        &format!("/test/{UPSTREAM}?id="),
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
        assert!(fragment.contains(expected), "{expected}: {fragment}");
    }
    assert_eq!(site.get(&format!("/panel/{UPSTREAM}/1")).await.0, 404);
}

#[tokio::test]
async fn failure_page_shows_the_stored_log_from_the_line_that_explains_it() {
    let site = month().await;
    let job = red_job(&site).await;
    let model = site.json(&format!("/api/v1/failure/{UPSTREAM}/{job}")).await;
    let line = model["log"]["classified"]["match"]["line_number"].as_u64().unwrap();
    let shown = model["stored"]["lines"].as_array().unwrap();
    let found = shown.iter().find(|shown| shown["number"] == line).unwrap();
    assert!(found["text"].as_str().unwrap().starts_with("FAILED [ 14.2s]"), "{found}");
    let path = format!("/failure/{UPSTREAM}/{job}");
    let (_, page) = site.get(&path).await;
    for expected in [
        format!("<li id=\"L{line}\" value=\"{line}\" class=\"found\">"),
        "<summary><bdi>Run ./ci/run.sh</bdi>".to_owned(),
        format!("{path}/log.txt?download=1"),
        "Others with the same cause".to_owned(),
    ] {
        assert!(page.contains(&expected), "{expected}: {page}");
    }
    let (_, start) = site.get(&format!("{path}?from=1")).await;
    assert!(start.contains("id=\"L1\"") && start.contains("Later lines"), "{start}");
    assert!(!start.contains('\u{1b}'), "escape sequences aren't shown");
    let (status, text) = site.get(&format!("{path}/log.txt")).await;
    assert_eq!(status, 200);
    assert_eq!(text.lines().count() as u64, model["stored"]["line_count"].as_u64().unwrap());
    assert_eq!(site.get(&format!("/failure/{UPSTREAM}/1/log.txt")).await.0, 404);
    assert_eq!(site.get(&format!("{path}?from=x")).await.0, 400);
    let request = Request::get(format!("/crcr/logs/{UPSTREAM}/{job}?from=7")).body(Body::empty());
    let answer = site.router.clone().oneshot(request.unwrap()).await.unwrap();
    assert_eq!(answer.headers()["location"], format!("{path}?from=7"), "old links lead on");
}

#[tokio::test]
async fn contributor_reads_beside_a_failed_test_that_it_is_flaky_quarantined_and_whose() {
    let site = month().await;
    let list = site.json("/api/v1/failures?list=jobs&days=30").await;
    let is_asked = |job: &&serde_json::Value| {
        let line = job["classified"]["match"]["line"].as_str().unwrap_or_default();
        line.contains("TestRandom::test_seed_per_device") && job["branch"] != "main"
    };
    let job = list["jobs"]["jobs"].as_array().unwrap().iter().find(is_asked).unwrap();
    for page in ["failure", "panel"] {
        let (_, page) = site.get(&format!("/{page}/{UPSTREAM}/{}", job["job_id"])).await;
        for expected in [
            "<bdi>TestRandom.test_seed_per_device</bdi></a>",
            "<strong>Flaky</strong>: ",
            "<strong>Quarantined</strong> by <bdi>grace-example</bdi>: ",
            "Owned by <bdi>@grace-example</bdi>",
            "<strong>Not only here</strong>: ",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
    }
}

#[tokio::test]
async fn page_of_a_job_that_has_just_failed_fetches_itself_until_its_log_is_read() {
    let site = site(vec![]).await;
    for (id, minutes, is_refreshed) in [(1, 1, true), (2, 60, false)] {
        let ended = now() - jiff::SignedDuration::from_mins(minutes);
        let job = json!({
            "id": id, "run_id": 9, "name": "test", "workflow_name": "CI", "status": "completed",
            "conclusion": "failure", "head_sha": "c3".repeat(20), "head_branch": "topic",
            "completed_at": ended,
        });
        let row = ("workflow_job", minutes, json!({ "workflow_job": job }));
        site.add_webhooks(vec![row]).await;
        let (_, page) = site.get(&format!("/failure/{UPSTREAM}/{id}")).await;
        assert!(page.contains("Nothing is known about its log yet"), "{page}");
        assert_eq!(page.contains("data-refresh"), is_refreshed, "{minutes}: {page}");
    }
}

#[tokio::test]
async fn job_that_passed_when_it_was_run_again_is_not_to_be_run_again() {
    let site = site(vec![]).await;
    let attempt = |id: u64, attempt: u64, conclusion: &str| {
        let job = json!({
            "id": id, "run_id": 9, "run_attempt": attempt, "name": "test", "workflow_name": "CI",
            "status": "completed", "conclusion": conclusion, "head_sha": "c3".repeat(20),
            "head_branch": "topic",
        });
        ("workflow_job", 60, json!({ "workflow_job": job }))
    };
    site.add_webhooks(vec![attempt(1, 1, "failure"), attempt(2, 2, "failure")]).await;
    for kind in ["failure", "panel"] {
        let page = format!("/{kind}/{UPSTREAM}/1");
        let page = site.page_with(&page, "Run it again on GitHub").await;
        assert!(!page.contains("Passed in attempt"), "{page}");
    }
    site.add_webhooks(vec![attempt(3, 3, "success")]).await;
    let link = format!("<a href=\"/failure/{UPSTREAM}/3\">Passed in attempt 3</a>");
    for (kind, id) in [("failure", 1), ("failure", 2), ("panel", 1)] {
        let page = site.page_with(&format!("/{kind}/{UPSTREAM}/{id}"), &link).await;
        assert!(!page.contains("Run it again"), "{page}");
    }
    let (_, page) = site.get(&format!("/failure/{UPSTREAM}/3")).await;
    assert!(!page.contains("Passed in attempt"), "{page}");
}

#[tokio::test]
async fn log_is_shown_when_only_webhooks_and_the_archive_are_left() {
    let before = month().await;
    let job = red_job(&before).await;
    let facts = facts(7, now(), 30, 6, UPSTREAM);
    let ci = UpstreamCi::new(&facts, now()).unwrap();
    let url = format!("file:{}", before._folder.path().join("archive").display());
    let site = site(facts).await.with_logs(&url, |_| {});
    // As `crcr relay replay` does.
    site.hud.results.append_webhooks(ci.webhooks).await.unwrap();
    let path = format!("/failure/{UPSTREAM}/{job}");
    let (_, page) = site.get(&path).await;
    assert!(page.contains("Run ./ci/run.sh") && page.contains("id=\"L1\""), "{page}");
    assert!(page.contains("files changed"), "{page}");
    let (status, text) = site.get(&format!("{path}/log.txt")).await;
    assert!(status == StatusCode::OK && text.contains("FAILED ["), "{text}");
    assert_eq!(site.get(&format!("/failure/{UPSTREAM}/1/log.txt")).await.0, 404);
    assert_eq!(site.get(&format!("/failure/{UPSTREAM}/one/log.txt")).await.0, 400);
}

#[tokio::test]
async fn a_count_leads_to_what_it_counts_and_older_failures_go_on() {
    let site = month().await;
    let groups = site.json("/api/v1/failures?days=30").await;
    let group = &groups["groups"][0];
    let like = format!("{UPSTREAM}/{}", group["newest"]["job_id"]);
    let (mut before, mut jobs) = (String::new(), vec![]);
    loop {
        let query = format!("/api/v1/failures?list=jobs&days=30&like={like}&before={before}");
        let list = site.json(&query).await["jobs"].take();
        jobs.extend(list["jobs"].as_array().unwrap().iter().map(|job| job["job_id"].clone()));
        match list["older"].as_str() {
            Some(older) => before = format!("{older}&before_job={}", list["older_job"]),
            None => break,
        }
    }
    jobs.sort_by_key(|job| job.as_u64());
    jobs.dedup();
    assert_eq!(
        jobs.len() as u64,
        group["failures"].as_u64().unwrap(),
        "every failure is there once"
    );
    site.page_with("/failures?days=30", "/failures?list=jobs&amp;like=").await;
    for wrong in ["sort=odd", "before=odd&list=jobs", "like=odd", "page=99"] {
        assert_eq!(site.get(&format!("/failures?{wrong}")).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn each_of_sixty_jobs_that_failed_in_one_second_is_on_a_page() {
    let site = site(vec![]).await;
    let row = |job_id| {
        let job = EndedJob {
            repository: UPSTREAM.to_owned(),
            run_id: 1,
            run_attempt: 1,
            job_id,
            job_name: format!("leg {job_id}"),
            workflow: String::new(),
            branch: "main".to_owned(),
            head_sha: "abc".to_owned(),
            completed_at: now() - jiff::SignedDuration::from_hours(1),
        };
        let outcome = JobLogOutcome::NoLog(NoLogReason::Gone);
        JobLogRow { job, looked_at: now(), log_key: None, outcome }
    };
    site.hud.results.put_job_logs((1..=60).map(row).collect()).await.unwrap();
    let link = format!("href=\"/failure/{UPSTREAM}/");
    let (mut path, mut seen) = ("/failures?list=jobs".to_owned(), vec![]);
    loop {
        let (_, page) = site.get(&path).await;
        let jobs = page.split(&link).skip(1);
        seen.extend(jobs.map(|rest| rest.split('"').next().unwrap().parse::<u64>().unwrap()));
        let Some((link, _)) = page.split_once("\">Older failures") else { break };
        path = link.rsplit("href=\"").next().unwrap().replace("&amp;", "&");
    }
    assert_eq!(seen, (1..=60).rev().collect::<Vec<_>>());
    for (category, count) in [("nonsense", 0), ("", 50)] {
        let path = format!("/api/v1/failures?list=jobs&category={category}");
        assert_eq!(site.json(&path).await["jobs"]["jobs"].as_array().unwrap().len(), count);
    }
}

/// A job that failed as many seconds ago as its id says.
fn failed(job_id: u64, outcome: JobLogOutcome) -> JobLogRow {
    let job = EndedJob {
        repository: UPSTREAM.to_owned(),
        run_id: 1,
        run_attempt: 1,
        job_id,
        job_name: "test".to_owned(),
        workflow: "Trunk".to_owned(),
        branch: "main".to_owned(),
        head_sha: "abc".to_owned(),
        completed_at: now() - jiff::SignedDuration::from_secs(job_id.cast_signed()),
    };
    JobLogRow { job, looked_at: now(), log_key: None, outcome }
}

/// A job that failed for this cause, by a line that its last green run doesn't have.
fn caused(job_id: u64, cause: &str) -> JobLogRow {
    let found = LogMatch {
        rule: Some("rule".to_owned()),
        category: None,
        line_number: 7,
        line: "a line".to_owned(),
        captures: vec![cause.to_owned()],
        context: vec![],
        by: LogMatchSource::Rule,
        certainty_percent: 90,
        reasons: vec![],
    };
    let novel = vec![NovelLine { line_number: 7, line: "a line".to_owned() }];
    let known = LogClassification { found: Some(found), candidates: vec![], novel };
    failed(job_id, JobLogOutcome::Classified(Box::new(known)))
}

#[tokio::test]
async fn failure_that_the_default_branch_had_before_is_not_called_new() {
    use super::branches::{job, push};

    let site = site(vec![]).await;
    // The commits one after another: what each failed of, and the first that failed alike.
    let commits = [
        ("91", Some("one"), None),
        ("92", Some("one"), Some("or before <a href=\"/commit/9191")),
        ("a1", None, None),
        ("b2", Some("one"), None),
        ("c3", Some("one"), Some("<a href=\"/commit/b2b2")),
        ("d4", Some("other"), None),
        ("e5", Some("one"), Some("<a href=\"/commit/b2b2")),
        ("f6", None, None),
        ("a7", Some("one"), None),
    ];
    let id = |sha: &str| u64::from_str_radix(sha, 16).unwrap();
    for (n, (sha, cause, _)) in commits.into_iter().enumerate() {
        let conclusion = if cause.is_some() { "failure" } else { "success" };
        site.add_webhooks(vec![push(sha, 99 - n as i64), job(sha, Some(conclusion))]).await;
        let log = cause.map(|cause| caused(id(sha), cause));
        site.hud.results.put_job_logs(log.into_iter().collect()).await.unwrap();
    }
    for (sha, cause, alike) in commits {
        if cause.is_none() {
            continue;
        }
        for page in ["failure", "panel"] {
            let (_, page) = site.get(&format!("/{page}/{UPSTREAM}/{}", id(sha))).await;
            let is_new = page.contains("<strong>new</strong>: the last green run");
            assert_eq!(is_new, alike.is_none(), "{sha}: {page}");
            let since = alike.map(|since| {
                format!(
                    "<strong>Not new here</strong>: <bdi>main</bdi> first failed alike at {since}"
                )
            });
            assert!(since.iter().all(|since| page.contains(since)), "{sha}: {page}");
        }
    }
}

#[tokio::test]
async fn page_of_too_many_failures_and_causes_says_that_some_are_neither_counted_nor_listed() {
    let site = site(vec![]).await;
    let row = |job_id: u64| {
        let found = LogMatch {
            rule: Some("rule".to_owned()),
            category: None,
            line_number: 1,
            line: "a line".to_owned(),
            captures: vec![format!("cause {}", job_id % 1500)],
            context: vec![],
            by: LogMatchSource::Rule,
            certainty_percent: 90,
            reasons: vec![],
        };
        let known = LogClassification { found: Some(found), candidates: vec![], novel: vec![] };
        failed(job_id, JobLogOutcome::Classified(Box::new(known)))
    };
    site.hud.results.put_job_logs((1..=12_000).map(row).collect()).await.unwrap();
    for page in [1, 19, 20] {
        let model = site.json(&format!("/api/v1/failures?page={page}")).await;
        assert_eq!(model["groups"].as_array().unwrap().len(), 50, "{page}");
        assert_eq!(
            (&model["newest_only"], &model["most_frequent_only"], &model["has_more"]),
            (&json!(10_000), &json!(1000), &json!(true)),
            "{page}"
        );
    }
    site.page_with("/failures?sort=oldest", "more causes than the 1000 most frequent").await;
    site.page_with("/failures?page=20", "There are more; choose a repository or a category").await;
}

#[tokio::test]
async fn count_of_jobs_without_a_log_leads_to_those_without_one_for_the_same_reason() {
    use NoLogReason::{Gone, Refused, TooLarge};
    let site = site(vec![]).await;
    let reasons = [Refused, Refused, Refused, Refused, Gone, Gone, Gone, TooLarge, TooLarge];
    let rows = (1..).zip(reasons).map(|(id, reason)| failed(id, JobLogOutcome::NoLog(reason)));
    site.hud.results.put_job_logs(rows.collect()).await.unwrap();
    let groups = site.json("/api/v1/failures").await["groups"].take();
    let groups = groups.as_array().unwrap();
    assert_eq!(groups.len(), 3);
    for (group, count) in groups.iter().zip([4, 3, 2]) {
        assert_eq!(group["failures"], count, "{group}");
        let like = format!("{UPSTREAM}/{}", group["newest"]["job_id"]);
        let list = site.json(&format!("/api/v1/failures?list=jobs&like={like}")).await;
        let jobs = list["jobs"]["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), count, "{list}");
        assert!(jobs.iter().all(|job| job["no_log"] == group["reason"]), "{list}");
    }
}

#[tokio::test]
async fn failures_of_a_job_are_found_by_the_longest_name_that_is_stored() {
    let site = site(vec![]).await;
    let (workflow, job_name) = ("w".repeat(255), "j".repeat(255));
    let path = format!("/api/v1/failures?list=jobs&job={workflow}+%2F+{job_name}");
    let job = EndedJob {
        repository: UPSTREAM.to_owned(),
        run_id: 1,
        run_attempt: 1,
        job_id: 5,
        job_name,
        workflow,
        branch: "main".to_owned(),
        head_sha: "abc".to_owned(),
        completed_at: now() - jiff::SignedDuration::from_hours(1),
    };
    let outcome = JobLogOutcome::NoLog(NoLogReason::Gone);
    let row = JobLogRow { job, looked_at: now(), log_key: None, outcome };
    site.hud.results.put_job_logs(vec![row]).await.unwrap();
    assert_eq!(site.json(&path).await["jobs"]["jobs"][0]["job_id"], 5);
}

/// 1 GB of log: the page and its memory are those of a small one.
#[tokio::test]
async fn page_of_a_huge_log_reads_a_part_of_it() {
    let site = site(vec![]).await;
    let url = format!("file:{}", site._folder.path().join("archive").display());
    let store = ObjectStore::open(&url).await.unwrap();
    let (repo, job_id) = (RepoName::new("acme/huge").unwrap(), 7);
    let mut packer = LogPacker::new().unwrap();
    let block =
        format!("a line of a build that says too much, again{}\n", " and again".repeat(150))
            .repeat(600);
    let blocks = 1_000_000_000 / block.len();
    for _ in 0..blocks {
        packer.add(block.as_bytes()).unwrap();
    }
    let key = log_key(&repo, job_id);
    store.put(&key, packer.finish().unwrap()).await.unwrap();
    let lines = blocks as u64 * 600;
    let found = LogMatch {
        rule: None,
        category: None,
        line_number: lines / 2,
        line: "a line".to_owned(),
        captures: vec![],
        context: vec![],
        by: LogMatchSource::Evidence,
        certainty_percent: 50,
        reasons: vec![],
    };
    let known = LogClassification { found: Some(found), candidates: vec![], novel: vec![] };
    let job = EndedJob {
        repository: repo.to_string(),
        run_id: 1,
        run_attempt: 1,
        job_id,
        job_name: "build".to_owned(),
        workflow: String::new(),
        branch: "main".to_owned(),
        head_sha: "abc".to_owned(),
        completed_at: now(),
    };
    let outcome = JobLogOutcome::Classified(Box::new(known));
    let row = JobLogRow { job, looked_at: now(), log_key: Some(key), outcome };
    site.hud.results.put_job_logs(vec![row]).await.unwrap();
    let site = site.with_logs(&url, |_| {});
    let before = peak_memory_kb();
    for from in ["", "?from=1", &format!("?from={lines}"), &format!("?from={}", lines * 2)] {
        let (status, page) = site.get(&format!("/failure/acme/huge/7{from}")).await;
        assert!(status == 200 && page.len() < 1_500_000, "{from}: {}", page.len());
        assert!(page.contains("too much, again"), "{from}");
    }
    let grown = peak_memory_kb() - before;
    assert!(grown < 64 * 1024, "pages of a log of 1 GB took {grown} kB");
    // As text it comes in pieces: whoever stops reading stops the work.
    let request = Request::get("/failure/acme/huge/7/log.txt").body(Body::empty()).unwrap();
    let answer = site.router.clone().oneshot(request).await.unwrap();
    let first = futures_util::StreamExt::next(&mut answer.into_body().into_data_stream()).await;
    assert!(first.unwrap().unwrap().len() < 8 << 20);
    assert!(peak_memory_kb() - before < 96 * 1024);
}

fn peak_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// On the wire, with gzip, as hud.pytorch.org's own grid of this size has ten times as much.
#[tokio::test]
async fn grid_of_fifty_commits_by_forty_jobs_has_at_most_15_kb_on_the_wire() {
    let site = site(vec![]).await;
    let repository = json!({ "full_name": "acme/wide" });
    let mut rows = vec![];
    for commit in 0..50_u64 {
        let sha = format!(
            "{:040x}",
            u128::from(commit + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)
        );
        let at = now() - jiff::SignedDuration::from_mins(60 * (50 - commit as i64));
        let head = json!({ "message": format!("Fuse kernels of module {commit} (#{})", 160_000 + 37 * commit), "author": { "name": "Ada" } });
        let push = json!({ "ref": "refs/heads/main", "after": sha, "head_commit": head, "repository": repository });
        rows.push(
            WebhookRow::new("push", &format!("p{commit}"), at, push.to_string().as_bytes())
                .unwrap(),
        );
        for job in 0..40_u64 {
            // As far apart as GitHub's numbers are.
            let id = 41_200_000_000 + commit * 900_001 + job * 37 + (commit * job) % 29;
            let failed = (commit * 7 + job * 11) % 19 == 0;
            let job = json!({
                "id": id, "name": format!("linux-jammy-{job} / test"), "workflow_name": "trunk", "status": "completed",
                "conclusion": if failed { "failure" } else { "success" }, "head_sha": sha, "head_branch": "main",
            });
            let payload = json!({ "workflow_job": job, "repository": repository });
            rows.push(
                WebhookRow::new(
                    "workflow_job",
                    &id.to_string(),
                    at,
                    payload.to_string().as_bytes(),
                )
                .unwrap(),
            );
        }
    }
    site.hud.results.append_webhooks(rows).await.unwrap();
    let (_, page) = site.get("/hud/acme/wide/main").await;
    assert_eq!(page.matches("<td").count(), 2000);
    let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    std::io::Write::write_all(&mut packed, page.as_bytes()).unwrap();
    let bytes = packed.finish().unwrap().len();
    assert!(bytes <= 15_000, "{bytes} bytes");
}

#[tokio::test]
async fn quarantine_lists_every_entry_with_its_end_and_its_failures() {
    let site = month().await;
    let model = site.json("/api/v1/quarantine").await;
    let entries = model["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(
        (&entries[0]["expiry"], &entries[0]["days_left"]),
        (&"2026-09-18".into(), &3.into())
    );
    let (_, page) = site.get("/quarantine?sort=owner").await;
    assert!(page.contains("2026-09-27<span class=\"detail\">in 12 days"), "{page}");
    assert!(page.contains("/test/acme/upstream?name=TestRandom.test_seed_per_device"), "{page}");
    let flaky = "TestRandom.test_seed_per_device&amp;days=7&amp;runs=flaky#runs\"";
    assert!(page.contains(flaky), "what is counted is listed: {page}");
    assert!(page.contains("aria-sort=\"ascending\""), "{page}");
    assert_eq!(site.get("/quarantine?sort=odd").await.0, 400);
    let found = site.json("/api/v1/quarantine?q=GRACE").await;
    assert_eq!(found["entries"].as_array().unwrap().len(), 1, "{found}");
    let flaky = &found["entries"][0];
    assert_eq!(flaky["owner"], "grace-example", "{flaky}");
    assert!(flaky["flaky"].as_u64().unwrap() > 0, "it is quarantined because it is flaky: {flaky}");
    site.page_with("/quarantine?q=nothing", "No such test is quarantined").await;
    let (status, page) = site.get("/quarantine?repo=acme/other").await;
    assert!(status == 200 && page.contains("No quarantine file"), "{page}");
    let site = site.with_logs("file:/none", |hud| {
        hud.files = Box::new(|_| {
            Some(Arc::new(crate::RepositoryFiles { read_at: now(), ..Default::default() }))
        });
    });
    let (_, page) = site.get("/quarantine").await;
    assert!(page.contains("It was looked for at ") && !page.contains("was read"), "{page}");
}

#[tokio::test]
async fn page_of_a_log_that_cannot_be_read_does_not_say_where_it_is() {
    let site = month().await;
    let job = red_job(&site).await;
    let archive = site._folder.path().join("archive");
    let key = log_key(&RepoName::new(UPSTREAM).unwrap(), job);
    std::fs::write(archive.join(key), b"no log at all").unwrap();
    let (status, page) = site.get(&format!("/failure/{UPSTREAM}/{job}")).await;
    assert!(status == 200 && page.contains("The stored log can't be shown"), "{page}");
    assert!(!page.contains("archive/") && !page.contains(".zst"), "{page}");
}
