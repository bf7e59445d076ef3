use super::*;

#[tokio::test]
async fn every_page_of_a_month_and_its_twin() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let repo = "aurora-example/torch-aurora";
    for path in [
        "/crcr".to_owned(),
        "/crcr?window=24h&events=nightly".to_owned(),
        format!("/crcr/{repo}?window=30d"),
        format!("/crcr/{repo}/level"),
        "/crcr/dune-example/torch-dune/level".to_owned(),
        "/pr/101090".to_owned(),
    ] {
        let (status, page) = site.get(&path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("</main>"), "{path}");
        assert!(!page.contains("style=\"") && !page.contains("http://"), "{path}");
    }
    let dune = "/crcr/dune-example/torch-dune";
    let (_, level) = site.get(&format!("{dune}/level")).await;
    let span = level.split("<p class=\"detail\">").nth(1).unwrap().split(" · ").next().unwrap();
    let (_, page) = site.get(&format!("{dune}?window=24h")).await;
    assert!(page.contains(span), "the criteria are of {span}: {page}");
    let (_, page) = site.get("/crcr?window=24h").await;
    assert!(page.contains("over 14 days") && page.contains("over 7 days"), "{page}");
    let overview = site.json("/api/v1/overview?window=30d").await;
    let levels = overview["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 4);
    assert_eq!(levels[0]["level"], "L4");
    let aurora = &levels[0]["backends"][0];
    let (pass, of) = (&aurora["job_pass"]["numerator"], &aurora["job_pass"]["denominator"]);
    assert!(pass.as_u64() > Some(900) && of.as_u64() > pass.as_u64(), "{aurora}");
    let l2: Vec<_> = levels[2]["backends"].as_array().unwrap().iter().collect();
    assert_eq!(l2[0]["repo"], "dune-example/torch-dune", "the worst comes first");
    assert_eq!(l2[0]["standing"], "no_criteria", "by default nothing is asked of L2");
    assert!(
        l2[0]["next_level"]["missing"].as_array().unwrap().contains(&"CI job pass rate".into())
    );
    let pull = site.json("/api/v1/pulls/101090").await;
    assert_eq!(pull["backends"].as_array().unwrap().len(), 5);
    assert_eq!(pull["backends"][0]["blocks"], true);
    let review = site.json("/api/v1/repositories/dune-example/torch-dune/level").await;
    assert_eq!(review["verdict"], "not_met");
    let link = review["permalink"].as_str().unwrap();
    assert!(link.contains("/level?level=L2&from=2026-09-01T12:00:00Z&to="), "{link}");
    let twin = link.replacen("/crcr/", "/api/v1/repositories/", 1);
    assert_eq!(site.json(&twin).await, review);
    let stays = site.json(&twin.replacen("level=L2", "level=L3", 1)).await;
    assert_eq!((&stays["question"], &stays["from"]), (&"stay".into(), &review["from"]));
}

#[tokio::test]
async fn charts_of_a_day_have_its_hours_and_add_up_to_the_day() {
    let site = site(facts(7, now(), 3, 24, UPSTREAM)).await;
    let path = format!("repositories/{AURORA}?window=24h");
    let model = site.json(&format!("/api/v1/{path}")).await;
    let hours = model["trend"].as_array().unwrap();
    assert_eq!((hours.len(), &hours[0]["hour"]), (24, &json!("2026-09-14T12:00:00Z")));
    for count in ["numerator", "denominator"] {
        let sum: u64 = hours.iter().map(|hour| hour["job_pass"][count].as_u64().unwrap()).sum();
        assert_eq!(sum, model["job_pass"][count].as_u64().unwrap(), "{count}");
    }
    let (_, page) = site.get(&format!("/crcr/{AURORA}?window=24h")).await;
    assert!(page.contains("data-hour=\"2026-09-14T12:00:00Z\">09-14 12:00 UTC"), "{page}");
    let week = site.json(&format!("/api/v1/repositories/{AURORA}")).await;
    assert_eq!(
        (week["trend"].as_array().unwrap().len(), &week["trend"][0]["hour"]),
        (8, &json!(null))
    );
}

#[tokio::test]
async fn span_that_ends_at_midnight_has_no_chart_of_the_day_that_begins_then() {
    let site = site(facts(7, now(), 10, 10, UPSTREAM)).await;
    for (to, last) in [("10T00:00:00", "2026-09-09"), ("10T00:01:00", "2026-09-10")] {
        let span = format!("from=2026-09-08T00:00:00Z&to=2026-09-{to}Z");
        let model = site.json(&format!("/api/v1/repositories/{AURORA}?{span}")).await;
        let days = model["trend"].as_array().unwrap();
        assert_eq!(days[0]["date"], "2026-09-08");
        assert_eq!(days.last().unwrap()["date"], last);
    }
}

#[tokio::test]
async fn what_is_kept_of_earlier_answers_changes_no_number() {
    let all = facts(7, now(), 12, 10, UPSTREAM);
    // Every third fact comes late, whatever its day.
    let (mut early, mut late) = (vec![], vec![]);
    for (n, fact) in all.iter().enumerate() {
        if n % 3 == 0 { late.push(fact.clone()) } else { early.push(fact.clone()) }
    }
    let used = site(early).await;
    let fresh = site(all).await;
    let repo = "dune-example/torch-dune";
    let paths = [
        "/api/v1/overview?window=24h".to_owned(),
        "/api/v1/overview?window=7d".to_owned(),
        "/api/v1/overview?window=30d&events=nightly".to_owned(),
        "/api/v1/overview?from=2026-09-08T07:08:09Z&to=2026-09-12T03:04:05Z".to_owned(),
        format!("/api/v1/repositories/{repo}?window=24h"),
        format!("/api/v1/repositories/{repo}?window=30d&heads=all"),
        format!("/api/v1/repositories/{repo}?from=2026-09-08T07:08:09Z&to=2026-09-12T03:04:05Z"),
        format!("/api/v1/repositories/{repo}/level"),
        "/crcr/feed.atom".to_owned(),
        format!("/crcr/{repo}/feed.atom"),
    ];
    let mut changed = 0;
    let mut before = vec![];
    for path in &paths {
        before.push(used.get(path).await);
    }
    // Those of one backend first, and then those of the others, which may change whose fault its failures are.
    let is_own = |fact: &Fact| serde_json::to_string(fact).unwrap().contains(repo);
    let (own, others): (Vec<Fact>, Vec<Fact>) = late.into_iter().partition(is_own);
    assert!(own.len() > 10 && others.len() > 10, "{} {}", own.len(), others.len());
    for facts in [own, others] {
        used.store.commit(WriteBatch { facts, ..WriteBatch::default() }, now()).await.unwrap();
        used.get(&paths[1]).await;
        used.get(&paths[0]).await;
    }
    for (path, before) in paths.iter().zip(before) {
        let now = used.get(path).await;
        assert_eq!(now, fresh.get(path).await, "{path}");
        assert_eq!(now, used.get(path).await, "{path}, again");
        changed += usize::from(now != before);
    }
    assert!(changed >= 8, "{changed}");
}

#[tokio::test]
async fn a_permalink_shows_the_same_numbers_as_its_page() {
    let site = site(facts(7, now(), 10, 10, UPSTREAM)).await;
    let page = site.json("/api/v1/overview?window=7d").await;
    let link = page["permalink"].as_str().unwrap();
    let again = site.json(&format!("/api/v1/overview{link}")).await;
    assert_eq!(page["levels"], again["levels"]);
}

#[tokio::test]
async fn old_results_are_called_stale() {
    let mut old = facts(7, now() - jiff::SignedDuration::from_hours(72), 3, 10, UPSTREAM);
    old.truncate(400);
    let (_, page) = site(old).await.get("/crcr").await;
    assert!(page.contains("Stale: no data since"), "{page}");
}

#[tokio::test]
async fn matrix_shows_40_jobs_and_50_commits_and_counts_the_others() {
    let mut rows = vec![];
    for fact in facts(7, now(), 7, 40, UPSTREAM) {
        if let Fact::Attempt(mut row) = fact
            && row.repo == "aurora-example/torch-aurora"
        {
            for n in 0..60 {
                row.job = Some(format!("job {n}"));
                rows.push(Fact::Attempt(row.clone()));
            }
        }
    }
    let page = site(rows).await.json("/api/v1/repositories/aurora-example/torch-aurora").await;
    assert_eq!(page["matrix"]["columns"].as_array().unwrap().len(), 40);
    assert_eq!(page["matrix"]["rows"].as_array().unwrap().len(), 50);
    assert_eq!(page["matrix"]["more_columns"], 20);
    assert!(page["matrix"]["more_rows"].as_u64() > Some(0));
}

#[tokio::test]
async fn failure_of_the_last_of_sixty_jobs_is_shown_and_older_commits_go_on() {
    let (dispatch, attempt) = of_aurora();
    let mut facts = vec![];
    for commit in 0..120_u64 {
        let delivery = format!("d{commit}");
        let head_sha = format!("{commit:040x}");
        let at = now() - jiff::SignedDuration::from_mins(300 - commit.cast_signed());
        let event = EventName::PullRequest;
        let pull_request = Some(1000 + commit);
        for job in 0..60 {
            // One job fails, on one commit.
            let state = match (commit, job) {
                (3, 59) => JobState::Completed(Conclusion::Failure),
                _ => JobState::Completed(Conclusion::Success),
            };
            facts.push(Fact::Attempt(Box::new(AttemptFact {
                job: Some(format!("job {job:02}")),
                delivery: delivery.clone(),
                head_sha: head_sha.clone(),
                dispatched_at: at,
                received_at: at,
                event: event.clone(),
                state,
                pull_request,
                ..attempt.clone()
            })));
        }
        let sent = DispatchFact {
            enqueued_at: at,
            event,
            delivery,
            head_sha,
            pull_request,
            ..dispatch.clone()
        };
        facts.push(Fact::Dispatch(sent));
    }
    let site = site(facts).await;
    let titled = json!({
        "id": 1003, "number": 1003, "state": "open", "title": "Align <it>",
        "head": { "sha": format!("{:040x}", 3), "ref": "topic" },
    });
    site.add_webhooks(vec![("pull_request", 1, json!({ "number": 1003, "pull_request": titled }))])
        .await;
    let path = format!("/crcr/{AURORA}");
    let matrix = async |query: &str| {
        site.json(&format!("/api/v1/repositories/{AURORA}?{query}")).await["matrix"].take()
    };
    let failing = matrix("rows=failing").await;
    let columns = failing["columns"].as_array().unwrap();
    assert_eq!(
        (columns.len(), columns.last().unwrap().as_str().unwrap().ends_with("job 59")),
        (40, true)
    );
    assert_eq!(
        (&failing["more_columns"], &failing["more_failed_columns"]),
        (&json!(20), &json!(0))
    );
    let rows = failing["rows"].as_array().unwrap();
    assert_eq!(
        (rows.len(), &rows[0]["pull_request"], &rows[0]["title"]),
        (1, &json!(1003), &json!("Align <it>"))
    );
    let (_, page) = site.get(&format!("{path}?rows=failing")).await;
    assert!(
        page.contains("Align &lt;it&gt;")
            && page.contains("20 jobs are left out, none of which failed"),
        "{page}"
    );
    let mut numbers = vec![];
    for number in 1..=3 {
        let rows = matrix(&format!("page={number}")).await["rows"].take();
        numbers.extend(
            rows.as_array().unwrap().iter().map(|row| row["pull_request"].as_u64().unwrap()),
        );
    }
    assert_eq!(numbers, (1000..1120).rev().collect::<Vec<_>>(), "each commit is on one page");
    let (_, page) = site.get(&format!("{path}?page=2&q=JOB+5")).await;
    let (_, pager) = page.split_once("<p class=\"pager\">").unwrap();
    for expected in
        ["&amp;q=JOB+5#matrix\">Newer commits", "&amp;q=JOB+5&amp;page=3#matrix\">20 older commits"]
    {
        assert!(pager.contains(expected), "{expected}: {pager}");
    }
    assert!(page.contains("<input type=\"hidden\" name=\"window\" value=\"7d\">"), "{page}");
    assert_eq!(matrix("q=JOB+5").await["columns"].as_array().unwrap().len(), 10);
}

#[tokio::test]
async fn a_badge_is_an_image_of_level_and_rate() {
    let site = site(facts(7, now(), 10, 10, UPSTREAM)).await;
    let (status, image) = site.get("/crcr/aurora-example/torch-aurora/badge.svg").await;
    assert_eq!(status, StatusCode::OK);
    assert!(image.starts_with("<svg") && image.contains("L4 ·"), "{image}");
}

#[tokio::test]
async fn a_feed_tells_which_backends_turned_red() {
    let site = site(facts(7, now(), 20, 20, UPSTREAM)).await;
    let (status, feed) = site.get("/crcr/feed.atom").await;
    assert_eq!(status, StatusCode::OK);
    assert!(feed.starts_with("<?xml version=\"1.0\" encoding=\"utf-8\"?><feed xmlns="), "{feed}");
    assert!(feed.ends_with("</feed>") && feed.contains("</link>"), "{feed}");
    assert!(feed.matches("<entry>").count() > 2, "{feed}");
    assert!(feed.contains("torch-dune turned red on push"), "{feed}");
    let (_, one) = site.get("/crcr/dune-example/torch-dune/feed.atom").await;
    assert!(!one.contains("torch-aurora") && one.contains("<entry>"), "{one}");
    let (_, none) = self::site(vec![]).await.get("/crcr/feed.atom").await;
    assert!(!none.contains("<entry>") && none.contains("<updated>1970-01-01T00:00:00Z"), "{none}");
}

#[tokio::test]
async fn level_status_agrees_with_the_level_pages() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let status = site.json("/api/crcr/level-status").await;
    let repos = status["repos"].as_array().unwrap();
    let names: Vec<_> = repos.iter().map(|repo| repo["repo"].as_str().unwrap()).collect();
    assert!(!names.is_empty() && names.len() < 4, "those at L3: {names:?}");
    for repo in repos {
        let name = repo["repo"].as_str().unwrap();
        let page = site.json(&format!("/api/v1/repositories/{name}/level")).await;
        for (criterion, evidence) in
            repo["criteria"].as_array().unwrap().iter().zip(page["evidence"].as_array().unwrap())
        {
            // As the deployed HUD sends it: what its page shows.
            let measured = criterion["measured"].as_str().unwrap();
            assert_eq!(measured == "–", evidence["value"].is_null(), "{name}");
            assert!(criterion["target"].is_string() && criterion["criterion"].is_string());
            let met = match evidence["verdict"].as_str().unwrap() {
                "met" => serde_json::Value::Bool(true),
                "not_met" => serde_json::Value::Bool(false),
                _ => serde_json::Value::Null,
            };
            assert_eq!(criterion["met"], met, "{name}");
        }
        let fails = page["question"] == "stay" && page["verdict"] == "not_met";
        assert_eq!(repo["change"] == "demote", fails, "{name}");
        assert_eq!(repo["noData"], false);
    }
    let empty = self::site(vec![]).await.json("/api/crcr/level-status").await;
    for repo in empty["repos"].as_array().unwrap() {
        assert_eq!((&repo["noData"], &repo["change"]), (&true.into(), &().into()));
    }
}

#[tokio::test]
async fn page_of_a_backend_says_at_its_top_that_it_fails_its_level() {
    let mut all = facts(7, now(), 10, 10, UPSTREAM);
    for fact in &mut all {
        if let Fact::Attempt(row) = fact
            && row.repo == AURORA
            && matches!(row.state, JobState::Completed(_))
        {
            row.state = JobState::Completed(Conclusion::Failure);
        }
    }
    let site = site(all).await;
    let now = site.json("/api/v1/now").await;
    let mut failing = now["failing"].as_array().unwrap().iter();
    let sentence = failing.find(|one| one["repo"] == AURORA).unwrap()["sentence"].as_str().unwrap();
    assert!(sentence.contains("CI job pass rate"), "{sentence}");
    let (_, page) = site.get(&format!("/crcr/{AURORA}")).await;
    let link = format!(" It <a href=\"/crcr/{AURORA}/level\">{sentence}</a>.");
    let at = page.find(&link).unwrap_or_else(|| panic!("{link} isn't in {page}"));
    assert!(at < page.find("class=\"cards\"").unwrap(), "{page}");
}

#[tokio::test]
async fn new_backend_has_too_few_results_and_does_not_look_like_one_that_fails_every_criterion() {
    let (_, page) = site(vec![]).await.get(&format!("/crcr/{AURORA}")).await;
    assert!(page.contains("0 of 5 criteria met, 5 with too few results"), "{page}");
}

#[tokio::test]
async fn level_page_tells_the_levels_so_far_and_how_soon_an_oncall_reacted() {
    let repo = "aurora-example/torch-aurora";
    let mut all = facts(7, now(), 30, 10, UPSTREAM);
    let promoted_at: Timestamp = "2026-09-01T00:00:00Z".parse().unwrap();
    for fact in &mut all {
        if let Fact::Dispatch(sent) = fact
            && sent.repo == repo
            && sent.enqueued_at < promoted_at
        {
            sent.level = Level::L3;
        }
    }
    let of_repo = all.iter().filter_map(|fact| match fact {
        Fact::Attempt(row) if row.repo == repo && row.dispatched_at > now() - 72.hours() => {
            Some(row)
        }
        _ => None,
    });
    let of_repo: Vec<_> = of_repo.collect();
    let is_rerun = |row: &AttemptFact| {
        of_repo.iter().any(|other| other.run_id == row.run_id && other.run_attempt > 1)
    };
    let end = JobState::Completed(Conclusion::Failure);
    let failed = of_repo.iter().filter(|row| row.state == end && !is_rerun(row));
    let (number, failed_at) =
        failed.filter_map(|row| Some((row.pull_request?, row.received_at))).min().unwrap();
    let site = site(all).await;
    let path = format!("/api/v1/repositories/{repo}/level");
    let level = site.json(&path).await;
    assert!(level["oncall_reaction"].is_null(), "no comments are received");
    let periods = level["history"].as_array().unwrap();
    assert_eq!(periods.len(), 2, "{periods:?}");
    assert_eq!((&periods[0]["level"], &periods[0]["until"]), (&"L4".into(), &().into()));
    assert_eq!((&periods[1]["level"], &periods[1]["until"]), (&"L3".into(), &periods[0]["from"]));

    let comment = |id: u64, login: &str, minutes: i64| {
        let body = json!({
            "action": "created", "repository": { "full_name": UPSTREAM },
            "issue": { "number": number },
            "comment": {
                "id": id, "user": { "login": login }, "created_at": failed_at + minutes.minutes(),
                "updated_at": failed_at + minutes.minutes(),
            },
        });
        let body = body.to_string();
        WebhookRow::new("issue_comment", &format!("c{id}"), now(), body.as_bytes()).unwrap()
    };
    let comments = vec![
        comment(1, "aurora-oncall", -5),
        comment(2, "somebody", 1),
        comment(3, "Aurora-Backup", 30),
        comment(4, "aurora-oncall", 90),
    ];
    site.hud.results.append_webhooks(comments).await.unwrap();
    let reaction = &site.json(&path).await["oncall_reaction"];
    assert_eq!(
        (&reaction["seconds"]["n"], &reaction["seconds"]["p50"]),
        (&1.into(), &1800.0.into())
    );
    let blocked = reaction["blocked"].as_u64().unwrap();
    let pulls = reaction["pulls"].as_array().unwrap();
    assert!(blocked > 1 && pulls.len() as u64 == blocked, "{reaction}");
    let commented: Vec<_> = pulls.iter().filter(|pull| !pull["seconds"].is_null()).collect();
    assert_eq!((commented.len(), commented[0]["number"].as_u64()), (1, Some(number)));
    let (_, page) = site.get(&format!("/crcr/{repo}/level")).await;
    assert!(page.contains("First comment P50") && page.contains("30 min"), "{page}");
    assert_eq!(page.matches("no comment").count() as u64, blocked - 1, "each is listed: {page}");
    assert!(page.contains(&format!("href=\"/pr/{number}\"")), "{page}");
    assert!(page.contains("Levels so far") && page.contains("L3 stable"), "{page}");
    let (_, page) = site.get(&format!("/crcr/{repo}")).await;
    assert!(page.contains("Details of the jobs") && page.contains("driver 550.54"), "{page}");
}

#[tokio::test]
async fn every_blocked_pull_request_is_counted_though_only_the_newest_fifty_are_read() {
    let (_, attempt) = of_aurora();
    let failed = |number: u64| {
        let at = now() - jiff::SignedDuration::from_mins(10 * number.cast_signed());
        Fact::Attempt(Box::new(failed_on_pull(&attempt, number, at)))
    };
    let site = site((1..=60).map(failed).collect()).await;
    let comment = json!({
        "id": 1, "user": { "login": "aurora-oncall" }, "created_at": now(), "updated_at": now(),
    });
    let comment = json!({ "action": "created", "issue": { "number": 1 }, "comment": comment });
    site.add_webhooks(vec![("issue_comment", 1, comment)]).await;
    let level = site.json(&format!("/api/v1/repositories/{AURORA}/level")).await;
    let reaction = &level["oncall_reaction"];
    let read = reaction["pulls"].as_array().unwrap().len();
    assert_eq!((&reaction["blocked"], read), (&json!(60), 50), "{reaction}");
    let told = "<dd>1 of the newest <a rel=\"nofollow\" href=\"#blocked\">50</a> \
                <span class=\"detail\">of 60</span></dd>";
    site.page_with(&format!("/crcr/{AURORA}/level"), told).await;
}

#[tokio::test]
async fn backend_page_says_whose_fault_each_failure_is_and_shows_rates_without_upstreams() {
    let month = break_upstream(7, facts(7, now(), 30, 10, UPSTREAM));
    let site = site(month.facts).await;
    let repo = "aurora-example/torch-aurora";
    let model = site.json(&format!("/api/v1/repositories/{repo}?window=30d")).await;
    let left_out = model["upstream_failures"].as_u64().unwrap();
    assert!(left_out > 10, "{left_out}");
    for rate in ["job_pass", "test_pass"] {
        let number = |rate: &str, part| model[rate][part].as_u64().unwrap();
        let without = format!("{rate}_without_upstream");
        assert_eq!(number(rate, "numerator"), number(&without, "numerator"));
        assert_eq!(number(rate, "denominator"), number(&without, "denominator") + left_out);
    }
    let (mut blamed, mut passed) = (0, 0);
    for row in model["matrix"]["rows"].as_array().unwrap() {
        for cell in row["cells"].as_array().unwrap().iter().filter(|cell| !cell.is_null()) {
            match cell["outcome"].as_str() {
                Some("test_failed" | "infra_failed" | "timed_out" | "passed_after_rerun") => {
                    assert!(cell["blame"]["summary"].is_string(), "{cell}");
                    blamed += 1;
                }
                _ => {
                    assert_eq!(cell["blame"], serde_json::Value::Null, "{cell}");
                    passed += 1;
                }
            }
        }
    }
    assert!(blamed > 5 && passed > 50, "{blamed} {passed}");
    let (_, page) = site.get(&format!("/crcr/{repo}?window=30d")).await;
    assert!(page.contains("<th scope=\"col\">Whose fault</th>"), "{page}");
    assert!(page.contains("<span class=\"tag\">this change</span>"), "{page}");
    let listed = format!("events=pr\">{left_out}</a>)</dt>");
    assert!(page.contains("CI job pass without upstream's failures (<a "), "{page}");
    assert!(page.contains(&listed), "{page}");
    let page = site.page_with(&format!("/crcr/{repo}/level"), "They count in the criteria.").await;
    let (_, rest) =
        page.split_once("Failed because of upstream: <a rel=\"nofollow\" href=\"").unwrap();
    let (link, rest) = rest.split_once("\">").unwrap();
    let count: usize = rest.split('<').next().unwrap().parse().unwrap();
    let listed = site.json(&format!("/api/v1{}", link.replace("&amp;", "&"))).await;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), count, "{link}");
}

#[tokio::test]
async fn verdict_of_a_past_span_leads_to_the_evidence_of_that_span() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let to = "2026-09-08T00:00:00Z";
    let span = format!("?from=2026-09-01T00:00:00Z&to={to}&events=pr");
    for path in [format!("/crcr{span}"), format!("/crcr/{AURORA}{span}")] {
        let (_, page) = site.get(&path).await;
        let links = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let levels: Vec<&str> = links.filter(|link| link.contains("/level")).collect();
        assert!(!levels.is_empty(), "{path}: {page}");
        for level in levels {
            let twin = level.replacen("/crcr/", "/api/v1/repositories/", 1).replace("&amp;", "&");
            assert_eq!(site.json(&twin).await["to"], to, "{path}: {level}");
        }
        let until_now = path.replace(&span, "?window=7d");
        site.page_with(&until_now, &format!("href=\"/crcr/{AURORA}/level\"")).await;
    }
}

#[tokio::test]
async fn whose_fault_a_failure_is_does_not_depend_on_which_page_was_opened_first() {
    let month = || break_upstream(7, facts(7, now(), 30, 10, UPSTREAM)).facts;
    let (used, fresh) = (site(month()).await, site(month()).await);
    // They find the answers for all backends at once, as many days as each level is judged by.
    used.json("/api/v1/now").await;
    used.json("/api/v1/overview?from=2026-09-01T00:00:00Z&to=2026-09-10T12:00:00Z").await;
    let mut failures = 0;
    for repo in [AURORA, "basalt-example/torch-basalt", "dune-example/torch-dune"] {
        let page = format!("/api/v1/repositories/{repo}?window=30d");
        let model = fresh.json(&page).await;
        failures += model["upstream_failures"].as_u64().unwrap();
        assert_eq!(used.json(&page).await, model, "{repo}");
        let level = format!("/api/v1/repositories/{repo}/level");
        assert_eq!(used.json(&level).await, fresh.json(&level).await, "{repo}");
    }
    assert!(failures > 20, "{failures}");
}

#[tokio::test]
async fn overview_backend_and_level_page_have_the_same_rates_for_every_repository() {
    let mut all = facts(7, now(), 14, 10, UPSTREAM);
    // Pull requests that are dispatched again on the next day, and fail then.
    let again = all.iter().filter_map(|fact| match fact {
        Fact::Dispatch(sent) if sent.pull_request.is_some_and(|number| number % 3 == 0) => {
            let day = |time: Timestamp| time + jiff::SignedDuration::from_hours(24);
            let sent = DispatchFact {
                delivery: format!("{}-again", sent.delivery),
                enqueued_at: day(sent.enqueued_at),
                sent_at: sent.sent_at.map(day),
                at: day(sent.at),
                ..sent.clone()
            };
            (sent.enqueued_at < now()).then_some(Fact::Dispatch(sent))
        }
        Fact::Attempt(row) if row.pull_request.is_some_and(|number| number % 3 == 0) => {
            let day = |time: Timestamp| time + jiff::SignedDuration::from_hours(24);
            let row = AttemptFact {
                delivery: format!("{}-again", row.delivery),
                run_id: format!("{}1", row.run_id),
                details: ReportDetails {
                    check_run_id: row.details.check_run_id.as_ref().map(|id| format!("{id}-again")),
                    ..row.details.clone()
                },
                dispatched_at: day(row.dispatched_at),
                received_at: day(row.received_at),
                state: match row.state {
                    JobState::Completed(Conclusion::Success) => {
                        JobState::Completed(Conclusion::Failure)
                    }
                    state => state,
                },
                ..(**row).clone()
            };
            (row.received_at < now()).then_some(Fact::Attempt(Box::new(row)))
        }
        _ => None,
    });
    let again: Vec<_> = again.collect();
    assert!(again.len() > 100);
    all.extend(again);
    let site = site(all).await;
    let span = "from=2026-09-03T07:00:00Z&to=2026-09-15T12:00:00Z";
    let overview = site.json(&format!("/api/v1/overview?{span}")).await;
    let mut compared = 0;
    for group in overview["levels"].as_array().unwrap() {
        for row in group["backends"].as_array().unwrap() {
            let repo = row["repo"].as_str().unwrap();
            let page = site.json(&format!("/api/v1/repositories/{repo}?{span}")).await;
            let level = site.json(&format!("/api/v1/repositories/{repo}/level?{span}")).await;
            for rate in ["job_pass", "test_pass", "availability"] {
                for part in ["numerator", "denominator"] {
                    let told = &row[rate][part];
                    assert_eq!(told, &page[rate][part], "{repo} {rate}: the backend's page");
                    assert_eq!(told, &level[rate][part], "{repo} {rate}: the level page");
                }
            }
            for rate in ["job_pass_without_upstream", "test_pass_without_upstream"] {
                let (page, level) = (&page[rate]["denominator"], &level[rate]["denominator"]);
                assert_eq!(page, level, "{repo} {rate}");
            }
            let evidence = level["evidence"].as_array().unwrap().iter();
            if let Some(pass) = evidence.clone().find(|e| e["criterion"] == "job_pass") {
                assert_eq!(row["job_pass"]["value"], pass["value"], "{repo}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 4);
}

#[tokio::test]
async fn backend_that_nothing_reached_for_a_week_does_not_meet_its_level_by_what_was_before() {
    use crcr_domain::results::facts::DispatchFactStatus::{Dead, NeverStarted, Unreachable};
    let week = now() - jiff::SignedDuration::from_hours(8 * 24);
    for status in [NeverStarted, Unreachable, Dead] {
        let mut facts = facts(7, now(), 30, 6, UPSTREAM);
        facts.retain(|fact| !matches!(fact, Fact::Attempt(row) if row.repo == AURORA && row.dispatched_at > week));
        for fact in &mut facts {
            if let Fact::Dispatch(sent) = fact
                && sent.repo == AURORA
                && sent.enqueued_at > week
            {
                sent.status = status;
            }
        }
        let site = site(facts).await;
        let overview = site.json("/api/v1/overview").await;
        let rows = overview["levels"].as_array().unwrap().iter();
        let mut rows = rows.flat_map(|group| group["backends"].as_array().unwrap());
        let row = rows.find(|row| row["repo"] == AURORA).unwrap();
        assert_ne!(row["standing"], "met", "{status:?}: {row}");
    }
}

#[tokio::test]
async fn overview_sorts_by_each_column_within_its_level_and_finds_a_device_and_an_oncall() {
    let site = site(facts(7, now(), 10, 10, UPSTREAM)).await;
    let names = async |query: &str| -> Vec<String> {
        let overview = site.json(&format!("/api/v1/overview?{query}")).await;
        let levels = overview["levels"].as_array().unwrap().iter();
        let rows = levels.flat_map(|level| level["backends"].as_array().unwrap().clone());
        rows.map(|row| row["repo"].as_str().unwrap().to_owned()).collect()
    };
    let at_l2 = |names: &[String]| -> Vec<String> {
        let of_l2 = |name: &&String| ["cedar", "dune"].contains(&name.split('-').next().unwrap());
        names.iter().filter(of_l2).cloned().collect()
    };
    for column in ["name", "status", "job_pass", "test_pass", "availability", "queue", "end_to_end"]
    {
        let sorted = at_l2(&names(&format!("sort={column}")).await);
        let mut reversed = at_l2(&names(&format!("sort=-{column}")).await);
        // Both have no criteria, so their status is the same.
        reversed.reverse();
        assert_eq!(sorted.len(), 2, "{sorted:?}");
        assert!(sorted == reversed || column == "status", "{column}: {sorted:?} {reversed:?}");
    }
    assert_eq!(names("q=BASALT").await, ["basalt-example/torch-basalt"]);
    assert_eq!(names("q=@aurora-backup").await, [AURORA]);
    let none = site.page_with("/crcr?q=nothing", "No backend matches.").await;
    assert!(!none.contains("· no backends"), "levels without such a backend have others: {none}");
    site.page_with(&format!("/crcr/{AURORA}?q=nothing"), "No such job in this time span.").await;
    assert_eq!(site.get("/crcr?sort=size").await.0, StatusCode::BAD_REQUEST);
    let (_, page) = site.get("/crcr?sort=-queue&q=torch").await;
    for expected in
        ["aria-sort=\"descending\"", "&amp;q=torch&amp;sort=queue\">", "role=\"img\" aria-label=\""]
    {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(
        !page.contains("Permalink")
            && page.contains(&format!("/crcr/{AURORA}?window=7d&amp;events=pr\"")),
        "{page}"
    );
}

#[tokio::test]
async fn each_count_of_backends_leads_to_those_that_it_counts() {
    let site = site(facts(7, now(), 30, 10, UPSTREAM)).await;
    let overview = site.json("/api/v1/overview?window=30d").await;
    let (_, page) = site.get("/crcr?window=30d").await;
    let mut seen = 0;
    for (standing, count) in
        overview["standings"].as_array().unwrap().iter().map(|pair| (&pair[0], &pair[1]))
    {
        let show = standing.as_str().unwrap();
        let shown = site.json(&format!("/api/v1/overview?window=30d&show={show}")).await;
        assert_eq!(shown["standings"], overview["standings"], "the counts stay");
        let levels = shown["levels"].as_array().unwrap().iter();
        let rows: Vec<_> = levels.flat_map(|level| level["backends"].as_array().unwrap()).collect();
        assert_eq!(rows.len() as u64, count.as_u64().unwrap(), "{show}");
        assert!(rows.iter().all(|row| row["standing"] == *show), "{show}");
        let link = format!("href=\"/crcr?window=30d&amp;events=pr&amp;show={show}\"");
        assert_eq!(page.contains(&link), !rows.is_empty(), "{show}: {page}");
        seen += rows.len();
    }
    assert_eq!(seen, 4, "all but the one at L1");
    let (status, page) = site.get("/crcr?show=odd").await;
    assert!(status == StatusCode::BAD_REQUEST && page.contains("`show`"), "{page}");
}

#[tokio::test]
async fn backend_that_left_the_allowlist_is_shown_as_it_was_last_wherever_a_page_leads_to_it() {
    let gone = "gone-org/torch-gone";
    let (mut dispatch, mut attempt) = of_aurora();
    let at = now() - jiff::SignedDuration::from_hours(24 * 20);
    (dispatch.repo, dispatch.enqueued_at) = (gone.to_owned(), at);
    (attempt.repo, attempt.dispatched_at, attempt.received_at) = (gone.to_owned(), at, at);
    dispatch.event = EventName::PullRequest;
    let number = 77;
    dispatch.pull_request = Some(number);
    attempt.event.clone_from(&dispatch.event);
    attempt.head_sha.clone_from(&dispatch.head_sha);
    attempt.pull_request = dispatch.pull_request;
    let site = site(vec![Fact::Dispatch(dispatch), Fact::Attempt(Box::new(attempt))]).await;
    let (_, list) = site.get("/relay?window=30d").await;
    let link = format!("/crcr/{gone}?window=30d&amp;events=pr");
    assert!(list.contains(&link), "{list}");
    site.page_with(&format!("/pr/{number}"), &format!("href=\"/crcr/{gone}\"")).await;
    for path in [link.replace("&amp;", "&"), format!("/crcr/{gone}")] {
        let (status, page) = site.get(&path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        assert!(page.contains("not on the allowlist") && page.contains(&format!("#{number}")));
    }
    let (status, page) = site.get(&format!("/crcr/{gone}?window=24h")).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{page}");
    assert_eq!(site.get("/crcr/no-org/torch-none").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn commit_of_a_nightly_run_has_a_page_with_the_run() {
    let site = site(facts(7, now(), 3, 6, UPSTREAM)).await;
    let backend = site.json(&format!("/api/v1/repositories/{AURORA}?events=nightly")).await;
    let rows = backend["matrix"]["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{backend}");
    for row in rows {
        let sha = row["head_sha"].as_str().unwrap();
        let commit = site.json(&format!("/api/v1/commits/{sha}")).await;
        let runs = commit["commit"]["own_runs"].as_array().unwrap();
        let own = runs.iter().find(|runs| runs["repo"] == AURORA).unwrap();
        assert!(!own["jobs"].as_array().unwrap().is_empty(), "{commit}");
        let (status, page) = site.get(&format!("/commit/{}", &sha[..10])).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        assert!(page.contains("Backends' own runs"), "{page}");
    }
}

#[tokio::test]
async fn nightly_run_on_a_dispatched_commit_is_shown_apart_from_what_the_dispatch_started() {
    let (sent, attempt) = of_aurora();
    let sent = DispatchFact { pull_request: None, event: EventName::Push, ..sent };
    let run = AttemptFact {
        delivery: sent.delivery.clone(),
        dispatched_at: sent.enqueued_at,
        state: JobState::Completed(Conclusion::Success),
        event: EventName::Push,
        pull_request: None,
        head_sha: sent.head_sha.clone(),
        ..attempt
    };
    let nightly = AttemptFact {
        delivery: "night".to_owned(),
        run_id: "1".to_owned(),
        state: JobState::Completed(Conclusion::Failure),
        event: EventName::Nightly,
        ..run.clone()
    };
    let path = format!("/api/v1/commits/{}", sent.head_sha);
    let attempts = [run, nightly].map(|row| Fact::Attempt(Box::new(row)));
    let site = site([vec![Fact::Dispatch(sent)], attempts.to_vec()].concat()).await;
    let commit = site.json(&path).await["commit"].take();
    let backend = &commit["backends"][0];
    let jobs = |of: &serde_json::Value| of["jobs"].as_array().unwrap().len();
    assert_eq!((jobs(backend), &backend["state"]), (1, &json!("passed")), "{commit}");
    assert_eq!(jobs(&commit["own_runs"][0]), 1, "{commit}");
}
