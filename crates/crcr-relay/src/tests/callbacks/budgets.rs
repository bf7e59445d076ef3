//! Reports and check runs have an owner with a share, and what is shown upstream is never given up.

use super::*;
use crate::queue::handlers::{runs, sweep};
use crate::queue::task_kind::TaskDone;
use crcr_domain::protocol::dispatch::Dispatch;

const MINUTE: Duration = Duration::from_secs(60);
const CREATE: &str = "POST /repos/acme/upstream/check-runs";
const LISTED: &str = "GET /repos/acme/upstream/commits/*";

fn names(count: usize) -> Vec<&'static str> {
    (0..count).map(|n| &*format!("leg {n}").leak()).collect()
}

#[tokio::test]
async fn matrix_of_150_legs_ends_green_at_the_default_limit() {
    let (world, two) = World::new().await.opened("acme/two").await;
    for job in names(150) {
        let leg = two.of_job(job);
        assert_eq!(leg.start(&world).await, said("in_progress"));
        assert_eq!(leg.end(&world, "success").await, said("completed"));
    }
    assert_eq!(world.results.attempts(&world.always()).unwrap().len(), 150);
}

#[tokio::test]
pub(crate) async fn matrix_that_reports_at_once_is_one_run_of_the_limit() {
    let (world, two) = World::with(&[("RATE_LIMIT_PER_MIN", "1")]).await.opened("acme/two").await;
    let legs: Vec<_> = names(40).into_iter().map(|job| two.of_job(job)).collect();
    let answers = futures_util::future::join_all(legs.iter().map(|leg| leg.start(&world))).await;
    assert!(answers.iter().all(|answer| *answer == said("in_progress")), "{answers:?}");
}

#[tokio::test]
pub(crate) async fn rate_limit_is_per_run_and_repository_and_refused_reports_are_free() {
    let world = World::with(&[("RATE_LIMIT_PER_MIN", "2")]).await;
    let run = open(&world).await;
    let of_run = |number| Downstream { run: number, ..run("acme/two") };
    for number in [1, 2] {
        assert_eq!(of_run(number).start(&world).await, said("in_progress"));
    }
    let third = of_run(3);
    let mut waits = vec![];
    for _ in 0..5 {
        let token = world.github.state().oidc.sign(&third.claims(&world));
        let request = http::Request::post("/github/callback")
            .header("authorization", format!("Bearer {token}"))
            .body(axum::body::Body::from(third.body("in_progress", None).to_string()));
        let answer = world.answer(request.unwrap()).await;
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        let wait: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        waits.push(wait);
    }
    let distinct: std::collections::BTreeSet<_> = waits.iter().collect();
    assert_eq!(distinct.len(), waits.len(), "each caller has a turn of its own: {waits:?}");
    let (_, body) = third.start(&world).await;
    assert_eq!(body["detail"], "rate limit exceeded for acme/two");
    // Known runs, and other repositories, go on.
    assert_eq!(of_run(1).end(&world, "success").await, said("completed"));
    assert_eq!(run("acme/three").start(&world).await, said("in_progress"));
    // A refused report changes nothing: the same token and body are accepted later.
    let (claims, body) = (third.claims(&world), third.body("in_progress", None));
    let (status, _) = third.report_as(&world, &claims, &body).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    world.later(Duration::from_secs(31));
    assert_eq!(third.report_as(&world, &claims, &body).await, said("in_progress"));
}

/// A failed job's report with the texts of some failing tests, which differ by `seed`.
fn with_texts(run: &Downstream, seed: usize, kilobytes: usize) -> Value {
    let mut body = run.body("completed", Some("failure"));
    let tests: Vec<_> = (0..kilobytes)
        .map(|n| {
            let name = format!("test_{seed}_{n}");
            json!({ "name": name, "message": format!("{seed:04} {n:04} ").repeat(100) })
        })
        .collect();
    body["workflow"]["failed_tests_detail"] = json!(tests);
    body
}

/// The size of the store's file, in bytes, without what is only in its log.
fn store_bytes(world: &World) -> i64 {
    world.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    world.value("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
}

#[tokio::test]
async fn loudest_backend_takes_less_than_a_gigabyte_of_disk_a_day() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let reports: i64 = 600;
    let jobs = names(reports as usize / 2 + 100);
    for job in &jobs[..100] {
        two.of_job(job).start(&world).await;
    }
    let before = store_bytes(&world);
    for job in &jobs[100..] {
        let leg = two.of_job(job);
        assert_eq!(leg.start(&world).await, said("in_progress"));
        assert_eq!(leg.end(&world, "failure").await, said("completed"));
    }
    let per_report = (store_bytes(&world) - before) / reports;
    // The texts of reports beyond the budget are dropped, so the budget is all that they take, besides what
    // SQLite needs for it.
    let texts = jobs.len() / 8;
    let before = store_bytes(&world);
    for (seed, job) in names(jobs.len() + texts)[jobs.len()..].iter().enumerate() {
        let leg = two.of_job(job);
        let (status, answer) = leg.report(&world, &with_texts(&leg, seed, 100)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    let stored = store_bytes(&world) - before - per_report * texts as i64;
    let sent: i64 = world.value(
        "SELECT CAST(sum(? - tokens) AS INTEGER) FROM bucket WHERE key LIKE '[\"budget\",\"text\"%'"
            .replace('?', &crate::limits::TEXT_BYTES_PER_DAY.to_string())
            .as_str(),
    );
    let overhead = stored as f64 / sent as f64;
    let day = per_report as f64 * crate::limits::REPORTS_PER_DAY as f64
        + overhead * crate::limits::TEXT_BYTES_PER_DAY as f64;
    println!(
        "{per_report} bytes a report, {overhead:.2} bytes a byte of text: {day:.0} bytes a day"
    );
    assert!(day < 1e9, "{per_report} bytes a report, {overhead:.2} a byte of text: {day:.0} a day");
}

#[tokio::test]
async fn same_texts_are_stored_once() {
    let (world, two) = World::new().await.opened("acme/two").await;
    for job in names(20) {
        let leg = two.of_job(job);
        assert_eq!(leg.report(&world, &with_texts(&leg, 1, 100)).await, said("completed"));
    }
    assert_eq!(world.rows("fact_text"), 1);
    assert!(world.largest_record_but_bodies() < 20_000, "a record has the names that are shown");
    let facts = world.results.attempts(&world.always()).unwrap();
    assert!(
        facts.iter().all(|fact| fact.details.failed_tests.len() == 100),
        "and pages have all of them"
    );
    assert!(facts[0].details.failed_tests[0].message.is_some());
}

#[tokio::test]
async fn result_over_the_budget_of_its_backend_is_kept_without_its_texts() {
    let world = World::new().await;
    let run = open(&world).await;
    let (three, four) = (run("acme/three"), run("acme/four"));
    let key = crate::state_records::budget_of_day_key("text", world.relay.now(), "acme/four");
    let charge = crcr_store::BudgetCharge {
        bucket: key,
        capacity: crate::limits::TEXT_BYTES_PER_DAY,
        per_minute: 0.0,
        cost: crate::limits::TEXT_BYTES_PER_DAY,
        first_of: None,
    };
    let batch = crcr_store::WriteBatch { charges: vec![charge], ..Default::default() };
    world.relay.commit(batch).await.unwrap();
    let (status, answer) = four.report(&world, &with_texts(&four, 1, 30)).await;
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")));
    let warning = answer["warnings"][0].as_str().unwrap();
    assert!(warning.contains("the texts of this report aren't"), "{warning}");
    let (_, of_other) = three.report(&world, &with_texts(&three, 1, 30)).await;
    assert_eq!(of_other.get("warnings"), None, "the others have their own");
    let facts = world.results.attempts(&world.always()).unwrap();
    let fact = |repo: &str| facts.iter().find(|fact| fact.repo == repo).unwrap();
    assert_eq!(fact("acme/four").state, JobState::Completed(Conclusion::Failure));
    assert_eq!(fact("acme/four").details.failed_tests.len(), 0);
    assert_eq!(fact("acme/three").details.failed_tests.len(), 30);
    world.work().await;
    let runs = world.github.state().world.check_runs(UPSTREAM);
    let shown = runs.iter().find(|run| run.name.ends_with("four/CI/test")).unwrap();
    assert!(shown.summary.contains("30 failing tests aren't named"), "{}", shown.summary);
    // The next day begins with a new budget.
    world.later(24 * 60 * MINUTE);
    let leg = Downstream { job: "another", ..four };
    let (_, answer) = leg.report(&world, &with_texts(&leg, 2, 30)).await;
    assert_eq!(answer.get("warnings"), None, "{answer}");
}

#[tokio::test]
async fn reports_over_the_budget_of_their_backend_wait_for_the_external_hud_without_what_it_does_not_store()
 {
    let settings = [("HUD_API_URL", "https://hud.test/api"), ("HUD_BOT_KEY", "key")];
    let world = World::with(&settings).await;
    let run = open(&world).await;
    let (two, four) = (run("acme/two"), run("acme/four"));
    let waiting = "SELECT sum(length(payload)) FROM task WHERE lane LIKE 'hud:%'";
    let large = |job: &'static str| {
        let mut body = two.of_job(job).body("completed", Some("failure"));
        body["payload"]["pull_request"]["body"] = json!("x".repeat(900_000));
        body["workflow"]["extra"] = json!("y".repeat(50_000));
        body
    };
    assert_eq!(two.report(&world, &large("first")).await, said("completed"));
    assert!(world.value(waiting) > 900_000, "it goes as it came");
    let charge = crcr_store::BudgetCharge {
        bucket: crate::state_records::budget_of_day_key("forwarded", world.relay.now(), "acme/two"),
        capacity: crate::limits::FORWARDED_BYTES_PER_DAY,
        per_minute: 0.0,
        cost: crate::limits::FORWARDED_BYTES_PER_DAY - 1_000_000,
        first_of: None,
    };
    let batch = crcr_store::WriteBatch { charges: vec![charge], ..Default::default() };
    world.relay.commit(batch).await.unwrap();
    let before = world.value(waiting);
    assert_eq!(two.report(&world, &large("second")).await, said("completed"));
    let took = world.value(waiting) - before;
    assert!(took < 3000, "{took}");
    let payload: String = world
        .database()
        .query_row(
            "SELECT payload FROM task WHERE lane LIKE 'hud:%' AND payload LIKE '%second%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let task: Value = serde_json::from_str(&payload).unwrap();
    let sent: Value = serde_json::from_str(task["body"].as_str().unwrap()).unwrap();
    assert_eq!(sent["trusted"]["verified_repo"], "acme/two");
    let sent = &sent["untrusted"]["callback_payload"];
    assert_eq!(sent["payload"]["pull_request"]["head"]["sha"], HEAD);
    assert_eq!(sent["payload"]["pull_request"]["number"], 7);
    assert_eq!(sent["workflow"]["conclusion"], "failure");
    assert_eq!(sent["workflow"]["check_run_id"], "77");
    // Others have a budget of their own.
    assert_eq!(four.start(&world).await, said("in_progress"));
    assert_eq!(world.value("SELECT count(*) FROM task WHERE payload LIKE '%callback_token%'"), 2);
}

#[tokio::test]
async fn check_runs_are_right_minutes_after_two_hours_without_github() {
    for retry_after in [None, Some(60)] {
        let world = World::new().await;
        let status = StatusCode::from_u16(if retry_after.is_some() { 403 } else { 502 }).unwrap();
        let body = json!({ "message": "You have exceeded a secondary rate limit." }).to_string();
        let four = open(&world).await("acme/four");
        let github = &world.github.state().world;
        let fault = || Fault::Answer { status, retry_after, body: body.clone() };
        for route in ["PATCH /repos/acme/upstream/check-runs/*", CREATE, LISTED] {
            github.fail(route, 5_000, fault());
        }
        four.complete(&world, "failure").await;
        for _ in 0..120 {
            world.work().await;
            world.later(MINUTE);
        }
        assert_eq!(world.relay.store.queue_depth().await.unwrap().dead, 0, "{status}");
        github.clear_faults();
        for _ in 0..5 {
            world.work_after(MINUTE).await;
        }
        let runs = github.check_runs(UPSTREAM);
        let of_four: Vec<_> = runs.iter().filter(|run| run.name.contains("acme/four")).collect();
        assert_eq!(of_four.len(), 2, "the backend's and the job's: {of_four:?}");
        for run in of_four {
            assert_eq!(run.conclusion.as_deref(), Some("failure"), "{status}: {}", run.name);
        }
    }
}

/// The newest text of the backend's own check run.
fn text_of_backend(world: &World) -> String {
    let runs = world.github.state().world.check_runs(UPSTREAM);
    runs.iter().find(|run| run.name == "crcr/acme/four/relay/dispatch").unwrap().summary.clone()
}

#[tokio::test]
pub(crate) async fn jobs_beyond_their_share_are_folded_into_the_check_run_of_the_backend() {
    let world = World::with(&[("CRCR_PUBLIC_URL", "https://relay.example.org")]).await;
    let four = open(&world).await("acme/four");
    let jobs = names(crate::limits::JOB_CHECK_RUNS + 6);
    for job in &jobs {
        assert_eq!(four.of_job(job).end(&world, "failure").await, said("completed"));
    }
    world.work().await;
    let shown = || {
        let runs = world.github.state().world.check_runs(UPSTREAM);
        runs.iter().filter(|run| run.name.starts_with("crcr/acme/four/CI/")).count()
    };
    assert_eq!(shown(), crate::limits::JOB_CHECK_RUNS);
    let text = text_of_backend(&world);
    assert!(text.contains("64 of its jobs have check runs of their own"), "{text}");
    assert!(text.contains("relay.example.org"), "{text}");
    // A further job takes no call while the run is open.
    let updates = || world.github.state().world.count("PATCH /repos/acme/upstream/check-runs/*");
    let before = updates();
    assert_eq!(four.of_job("one more").end(&world, "failure").await, said("completed"));
    world.work().await;
    assert_eq!(updates(), before);
    four.on_github(&world, "completed", Some("failure"));
    world.work_after(5 * MINUTE).await;
    let text = text_of_backend(&world);
    assert!(text.contains("64 of its 71 jobs") && text.contains("the other 7 have none"), "{text}");
    // Those that have one keep it.
    let again = Downstream { run: RUN + 1, ..four };
    assert_eq!(again.of_job(jobs[0]).end(&world, "success").await, said("completed"));
    world.work().await;
    assert_eq!(shown(), crate::limits::JOB_CHECK_RUNS);
}

#[tokio::test]
pub(crate) async fn backend_over_its_calls_waits_and_its_own_check_run_goes_on() {
    // Two backends have check runs, so each has half of the calls. All of them together pass the limit of a minute.
    let of_hour = crate::limits::JOB_CHECK_CALLS / 2;
    let of_minute = crate::limits::JOB_CHECK_CALLS_A_MINUTE;
    let backend = "acme/four".parse().unwrap();
    for (bucket, capacity, per_minute, text) in [
        (
            crate::state_records::job_calls_key(&backend),
            of_hour,
            of_hour as f64 / 60.0,
            "calls of this hour",
        ),
        (
            crate::state_records::job_calls_of_all_key(&UPSTREAM.parse().unwrap()),
            of_minute,
            of_minute as f64,
            "calls of this minute",
        ),
    ] {
        let (world, four) = World::new().await.opened("acme/four").await;
        let charge = crcr_store::BudgetCharge {
            bucket,
            capacity,
            per_minute,
            cost: capacity,
            first_of: None,
        };
        let batch = crcr_store::WriteBatch { charges: vec![charge], ..Default::default() };
        world.relay.commit(batch).await.unwrap();
        four.begin(&world).await;
        let errors = world.work().await;
        assert!(errors.iter().all(|error| error.contains(text)), "{errors:?}");
        assert_eq!(errors.len(), 1);
        let status = |name: &str| {
            let runs = world.github.state().world.check_runs(UPSTREAM);
            runs.iter().find(|run| run.name == name).map(|run| run.status.clone())
        };
        assert_eq!(status("crcr/acme/four/relay/dispatch").as_deref(), Some("in_progress"));
        assert_eq!(status("crcr/acme/four/CI/test"), None);
        world.work_after(MINUTE).await;
        assert_eq!(status("crcr/acme/four/CI/test").as_deref(), Some("in_progress"));
    }
}

#[tokio::test]
async fn repository_that_has_used_up_its_day_is_told_so_and_when_the_next_one_begins() {
    let (world, two) = World::new().await.opened("acme/two").await;
    let (now, capacity) = (world.relay.now(), crate::limits::REPORTS_PER_DAY);
    let charge = crcr_store::BudgetCharge {
        bucket: crate::state_records::budget_of_day_key("reports", now, "acme/two"),
        capacity,
        per_minute: 0.0,
        cost: capacity,
        first_of: None,
    };
    let batch = crcr_store::WriteBatch { charges: vec![charge], ..Default::default() };
    world.relay.commit(batch).await.unwrap();
    let token = world.github.state().oidc.sign(&two.claims(&world));
    let request = http::Request::post("/github/callback")
        .header("authorization", format!("Bearer {token}"))
        .body(axum::body::Body::from(two.body("in_progress", None).to_string()));
    let answer = world.answer(request.unwrap()).await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait: i64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let left = 86_400 - now.as_second().rem_euclid(86_400);
    assert!((left - 60..left + 120).contains(&wait), "{wait} s, and {left} s are left");
    let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap();
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("150000 reports were sent on this day"), "{body}");
}

#[tokio::test]
pub(crate) async fn looks_at_runs_leave_calls_for_everything_else() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.complete(&world, "success").await;
    world.settle().await;
    let (repo, delivery) = (four.repo.parse().unwrap(), four.client_payload["delivery_id"].clone());
    let key = crate::state_records::dispatch_key(delivery.as_str().unwrap(), &repo);
    let known = crcr_store::read_record::<Dispatch>(world.relay.store.as_ref(), key).await.unwrap();
    let known = known.value.unwrap();
    let used_up = async |dispatch: &Dispatch| {
        let mut count = 0;
        while runs::charge_look(&world.relay, dispatch).await.unwrap().is_none() {
            count += 1;
        }
        count
    };
    // Somebody who closes and reopens a pull request all day leaves half of them to others.
    let of = |author: &str, is_known_author| Dispatch {
        author: Some(author.to_owned()),
        is_known_author,
        ..known.clone()
    };
    assert_eq!(used_up(&of("mallory", false)).await, crate::limits::RUN_LOOKS / 10);
    assert_eq!(used_up(&of("another", false)).await, 0, "newcomers share theirs");
    assert_eq!(used_up(&known).await, crate::limits::RUN_LOOKS / 10);
    let looks = || world.github.state().traffic.calls("runs");
    let before = looks();
    let swept = sweep::run(&world.relay, delivery.as_str().unwrap(), &repo).await;
    assert!(matches!(swept, Ok(TaskDone::RunAgain(_))));
    assert_eq!(looks(), before);
    for _ in 0..3 {
        world.wait(MINUTE).await;
    }
    assert!(looks() > before);
    assert_eq!(checks(&world)[0], check(DISPATCH, "completed", Some("success")));
}

/// It is evaluated every minute.
#[tokio::test]
pub(crate) async fn job_that_goes_on_takes_no_calls_meanwhile() {
    let (world, four) = World::new().await.opened("acme/four").await;
    four.begin(&world).await;
    world.settle().await;
    let calls = || {
        let mut all = world.relay.usage.most().into_iter();
        all.find(|(what, ..)| *what == crate::usage::Resource::CheckRunCalls)
    };
    let of_start = calls();
    assert!(of_start.is_some());
    for _ in 0..10 {
        world.wait(MINUTE).await;
    }
    assert_eq!(calls(), of_start);
}

#[tokio::test]
async fn failing_jobs_of_a_commit_read_whose_fault_they_are_together() {
    let (world, four) = World::new().await.opened("acme/four").await;
    for job in names(30) {
        assert_eq!(four.of_job(job).end(&world, "failure").await, said("completed"));
    }
    world.work().await;
    let reads = || world.relay.blame.reads.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(reads(), 1, "30 failing jobs");
    four.of_job("one more").end(&world, "failure").await;
    world.work().await;
    assert_eq!(reads(), 2, "a change");
}
