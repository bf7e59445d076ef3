//! How fast every page answers over a large history.
//!
//! `cargo bench --workspace --bench hud_speed -- RESULTS [ATTEMPTS] [DAYS] [WEBHOOKS] [TESTS]` fills RESULTS
//! (`sqlite:PATH` or `clickhouse+http://…`, empty or filled by the same command) with invented attempts of 20 backends
//! over DAYS days, one report each, with webhooks of the upstream repository's own CI, and with TESTS results of its
//! tests in the last 30 days. It asks for every page and its twin 60 times in turn, first while nothing is written,
//! then while 50 facts a second are, each of a dispatch of today. With Chromium and `tests/peers` it also says after
//! how long each page is painted, from the navigation on. The last column are its bytes, compressed.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for measuring: it stops at what is wrong and reads its arguments"
)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::checks::check_run::CheckRunStatus;
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun};
use crcr_domain::ci_data::test_run::{TestCase, TestResult};
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::protocol::callback::ReportDetails;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, CheckFact, DispatchFact, DispatchFactStatus, Fact,
};
use crcr_domain::{Allowlist, Level, RepoName};
use crcr_hud::{Hud, router};
use crcr_results::{Results, ResultsUrl, Window};
use crcr_store::StoreRole;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tower::ServiceExt as _;

/// How often facts are written, as the relay does it.
const BATCH_EVERY: Duration = Duration::from_millis(250);
/// What `cargo bench` adds to the arguments.
const CARGO_BENCH: &str = "--bench";

const UPSTREAM: &str = "acme/upstream";
const BACKENDS: u64 = 20;
const JOBS: u64 = 3;
/// Runs of each commit.
const CI_RUNS: u64 = 10;
const CI_JOBS: u64 = 100;
/// Steps of each job; their size is most of what a page reads.
const CI_STEPS: u64 = 12;
const TESTS: u64 = 20_000;
/// Each runs all tests.
const TEST_JOBS: u64 = 4;
const TEST_DAYS: u64 = 30;
const REPORT_TESTS: u64 = 500;
/// Attempts that are written at a time.
const PART: usize = 10_000;
/// Facts that are written in a second.
const WRITTEN: f64 = 50.0;
/// How often each page is asked for.
const ROUNDS: usize = 60;

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != CARGO_BENCH);
    let url = ResultsUrl::parse(&args.next().expect("where the results are")).unwrap();
    let mut number = |default: u64| args.next().map_or(default, |text| text.parse().unwrap());
    let (attempts, days, webhooks) = (number(1_000_000), number(400), number(1_000_000));
    let tests = number(1_000_000);
    let results = crcr_results::open(&url, StoreRole::Server).await.unwrap();
    results.prepare().await.unwrap();
    let now: Timestamp = "2026-09-15T12:20:00Z".parse().unwrap();
    let day = Window::all(now - SignedDuration::from_hours(24), now);
    if results.attempts(&day).await.unwrap().is_empty() {
        let started = Instant::now();
        fill(&*results, now, attempts, days).await;
        println!("{attempts} attempts of {days} days written in {:.0?}", started.elapsed());
    }
    if results.repositories("push").await.unwrap().is_empty() {
        let started = Instant::now();
        fill_webhooks(&*results, now, webhooks, days).await;
        fill_pulls(&*results, now, attempts / JOBS / BACKENDS).await;
        fill_closed_pulls(&*results, now, webhooks / 50, days).await;
        println!("{webhooks} webhooks written in {:.0?}", started.elapsed());
    }
    if results.tested_repositories().await.unwrap().is_empty() {
        let started = Instant::now();
        fill_tests(&*results, now, tests).await;
        println!("{tests} results of tests written in {:.0?}", started.elapsed());
    }
    let upstream = RepoName::new(UPSTREAM).unwrap();
    let list = Allowlist::parse(allowlist().as_bytes(), &upstream);
    let policy = Arc::new(list.accepted().ok().unwrap());
    let policy = Box::new(move || Some(Arc::clone(&policy)));
    let started = Instant::now();
    // As in earnest, no two requests come at the same time.
    let clock = Box::new(move || now + started.elapsed());
    let hud = Hud::new(Arc::clone(&results), policy, clock, upstream);
    let hud = Arc::new(hud);
    let started = Instant::now();
    // As the relay does when it starts.
    crcr_hud::warm(Arc::clone(&hud)).await;
    println!("what the first page needs read in {:.0?}", started.elapsed());
    let router = router(hud);
    let events = attempts / JOBS / BACKENDS;
    let paths = [
        "/".to_owned(),
        "/prs".to_owned(),
        "/relay".to_owned(),
        "/relay?list=reports&window=30d".to_owned(),
        "/relay?kind=dead&window=30d".to_owned(),
        "/reported?kind=test_failed&window=30d".to_owned(),
        format!("/commit/{:040x}", events - 2),
        "/search?q=Commit+7".to_owned(),
        "/search?q=no+such+thing".to_owned(),
        "/crcr?window=24h".to_owned(),
        "/crcr".to_owned(),
        "/crcr?window=30d".to_owned(),
        "/api/v1/overview?window=30d".to_owned(),
        format!("/crcr/{}", repo(3)),
        format!("/crcr/{}?window=30d", repo(3)),
        format!("/api/v1/repositories/{}?window=30d", repo(3)),
        format!("/crcr/{}/badge.svg", repo(3)),
        format!("/crcr/{}/level", repo(3)),
        "/crcr/feed.atom".to_owned(),
        format!("/crcr/{}/feed.atom", repo(3)),
        format!("/pr/{}", 1000 + events / 2),
        format!("/pr/{}", 1000 + events - 2),
        "/hud".to_owned(),
        format!("/hud/{UPSTREAM}"),
        format!("/hud/{UPSTREAM}/main"),
        format!("/hud/{UPSTREAM}/main?rows=failing&q=test"),
        format!("/api/v1/hud/{UPSTREAM}/main"),
        format!("/hud/{UPSTREAM}/main?before={}", now - SignedDuration::from_hours(24)),
        format!("/hud/{UPSTREAM}/main?job={}", CI_JOBS * 8),
        format!("/panel/{UPSTREAM}/{}", CI_JOBS * 8),
        format!("/failure/{UPSTREAM}/{}", CI_JOBS * 8),
        "/failures".to_owned(),
        "/failures?days=30&list=jobs".to_owned(),
        "/trends?window=24h".to_owned(),
        "/trends".to_owned(),
        "/trends?window=30d".to_owned(),
        "/trends?window=90d&sort=run".to_owned(),
        "/jobs?window=90d".to_owned(),
        "/jobs?window=90d&state=failed".to_owned(),
        "/quarantine".to_owned(),
        "/tests".to_owned(),
        "/tests?days=30".to_owned(),
        "/tests?days=30&sort=failing".to_owned(),
        "/tests?days=30&sort=failing&page=4".to_owned(),
        "/tests?days=7&sort=slow".to_owned(),
        "/tests?days=30&sort=slow".to_owned(),
        "/tests?days=30&sort=new".to_owned(),
        "/tests?days=30&sort=slow&q=test_17".to_owned(),
        // One that fails now and then, and one that never does.
        format!("/test/{UPSTREAM}?name=test_200_cpu_float32"),
        format!("/test/{UPSTREAM}?name=test_201_cpu_float32&days=90"),
    ];
    let mut quiet = vec![];
    for path in &paths {
        quiet.push(round(&router, path).await);
    }
    let painted = painted(&router, &paths).await;
    let writer = tokio::spawn(write(results, now, events));
    println!(
        "{:44}    first      p50      p95  written to: p50      p95  painted    bytes",
        "milliseconds"
    );
    for ((path, [first, p50, p95]), painted) in paths.iter().zip(quiet).zip(painted) {
        let [_, live50, live95] = round(&router, path).await;
        let painted = painted.map_or("-".to_owned(), |painted| format!("{painted:.0}"));
        let bytes = compressed(&router, path).await;
        println!(
            "{path:44} {first:8.1} {p50:8.1} {p95:8.1}         {live50:8.1} {live95:8.1} {painted:>8} {bytes:8}"
        );
    }
    writer.abort();
}

/// Milliseconds until Chromium paints each page for the first time, the median of five; `None` for what isn't a page.
async fn painted(router: &Router, paths: &[String]) -> Vec<Option<f64>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let node = root.join("tests/peers/node_modules/.bin/node");
    if !node.exists() {
        return vec![None; paths.len()];
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let site = format!("http://{}", listener.local_addr().unwrap());
    let router = router.clone();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let mut command = Command::new(node);
    command.arg(root.join("tests/bench/first_paint.mjs")).arg(site).args(paths);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    server.abort();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asks for a page again and again: the first answer, the median and the 95th percentile, in
/// milliseconds.
async fn round(router: &Router, path: &str) -> [f64; 3] {
    let mut times: Vec<f64> = vec![];
    for _ in 0..ROUNDS {
        times.push(ask(router, path).await.as_secs_f64() * 1000.0);
        // So that something is written between two.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let first = times[0];
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(ROUNDS * share).div_ceil(100) - 1];
    [first, at(50), at(95)]
}

/// Writes 50 facts a second, a dispatch and its jobs' attempts and reports, in batches as a relay
/// does.
async fn write(results: Arc<dyn Results>, now: Timestamp, events: u64) {
    let mut ticks = tokio::time::interval(BATCH_EVERY);
    let per_dispatch = 1.0 + 2.0 * JOBS as f64;
    let (mut due, mut dispatches) = (0.0, 0);
    loop {
        ticks.tick().await;
        due += WRITTEN * BATCH_EVERY.as_secs_f64();
        let mut part = vec![];
        while due >= per_dispatch {
            due -= per_dispatch;
            let (event, backend) = (events + dispatches / BACKENDS, dispatches % BACKENDS);
            dispatches += 1;
            // They were dispatched an hour ago, so that their jobs may have ended.
            part.extend(dispatch(event, backend, now - SignedDuration::from_hours(1), now));
        }
        results.append(part).await.unwrap();
    }
}

async fn ask(router: &Router, path: &str) -> Duration {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let started = Instant::now();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 64 << 20).await.unwrap();
    let took = started.elapsed();
    assert_eq!(status, StatusCode::OK, "{path}: {}", String::from_utf8_lossy(&body));
    took
}

/// Bytes of a page as browsers get it.
async fn compressed(router: &Router, path: &str) -> usize {
    let request = Request::get(path).header("accept-encoding", "br, gzip");
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    axum::body::to_bytes(answer.into_body(), 64 << 20).await.unwrap().len()
}

/// Two backends block pull requests, and four are shown there.
fn level(backend: u64) -> Level {
    match backend {
        0..=1 => Level::L4,
        2..=5 => Level::L3,
        _ => Level::L2,
    }
}

fn allowlist() -> String {
    let of = |wanted| (0..BACKENDS).filter(move |n| level(*n) == wanted).map(repo);
    let lines = |wanted, line: fn(String) -> String| of(wanted).map(line).collect::<String>();
    format!(
        "L2:\n{}L3:\n{}L4:\n{}",
        lines(Level::L2, |repo| format!("  - {repo}\n")),
        lines(Level::L3, |repo| format!("  {}:\n    {repo}: [on-call]\n", repo.replace('/', "-"))),
        lines(Level::L4, |repo| format!("  - {repo}: [on-call]\n")),
    )
}

fn repo(n: u64) -> String {
    format!("backend-{n}/torch")
}

async fn fill(results: &dyn Results, now: Timestamp, attempts: u64, days: u64) {
    let events = attempts / JOBS / BACKENDS;
    let step = days * 86_400_000 / events;
    let mut part = vec![];
    for event in 0..events {
        let ago = i64::try_from((events - event) * step).unwrap();
        let at = now - SignedDuration::from_millis(ago);
        for backend in 0..BACKENDS {
            part.extend(dispatch(event, backend, at, now));
        }
        if part.len() >= PART || event + 1 == events {
            results.append(std::mem::take(&mut part)).await.unwrap();
        }
    }
}

/// Each commit has a push, 10 runs and 100 jobs; each run and job has three webhooks. Every fourth commit is
/// on the main branch, the others are on branches of their own.
async fn fill_webhooks(results: &dyn Results, now: Timestamp, webhooks: u64, days: u64) {
    const ROWS: u64 = 1 + (CI_RUNS + CI_JOBS) * 3;
    let commits = webhooks.div_ceil(ROWS);
    let step = days * 86_400_000 / commits.max(1);
    let mut part = vec![];
    for commit in 0..commits {
        let ago = i64::try_from((commits - commit) * step).unwrap();
        ci_of_commit(commit, now - SignedDuration::from_millis(ago), &mut part);
        if part.len() >= PART || commit + 1 == commits {
            results.append_webhooks(std::mem::take(&mut part)).await.unwrap();
        }
    }
}

/// The newest pull requests, of which four in ten are open.
async fn fill_pulls(results: &dyn Results, now: Timestamp, events: u64) {
    const PULLS: u64 = 1000;
    let row = |back: u64| {
        let (event, minutes) = (events.checked_sub(back)?, back.cast_signed());
        let number = 1000 + event;
        let payload = json!({
            "action": "synchronize", "number": number, "repository": { "full_name": UPSTREAM },
            "pull_request": {
                "id": number, "number": number, "state": if back % 10 < 4 { "open" } else { "closed" },
                "title": format!("Change {number}"), "body": "What it is for. ".repeat(1000),
                "user": { "login": format!("author-{}", number % 50) },
                "head": { "sha": format!("{event:040x}"), "ref": format!("topic/{number}") },
                "base": { "ref": "main", "repo": { "default_branch": "main" } },
            },
        });
        let (delivery, at) = (format!("pull-{number}"), now - SignedDuration::from_mins(minutes));
        WebhookRow::new("pull_request", &delivery, at, payload.to_string().as_bytes()).ok()
    };
    results.append_webhooks((1..=PULLS).filter_map(row).collect()).await.unwrap();
}

/// Pull requests that were closed long ago, with five webhooks each. The last one of some isn't that of their end.
async fn fill_closed_pulls(results: &dyn Results, now: Timestamp, webhooks: u64, days: u64) {
    const ACTIONS: [&str; 5] = ["opened", "synchronize", "labeled", "closed", "labeled"];
    let pulls = webhooks / ACTIONS.len() as u64;
    let mut part = vec![];
    for pull in 0..pulls {
        // Numbers that no dispatch has.
        let number = 10_000_000 + pull;
        let day = now - SignedDuration::from_hours((24 * (1 + pull % days)).cast_signed());
        for (n, action) in ACTIONS.into_iter().enumerate() {
            if n == 4 && pull.is_multiple_of(3) {
                continue;
            }
            let at = day + SignedDuration::from_mins(n as i64);
            let payload = json!({
                "action": action, "number": number, "repository": { "full_name": UPSTREAM },
                "pull_request": {
                    "id": number, "number": number, "state": if n < 3 { "open" } else { "closed" },
                    "title": format!("Old change {number}"), "body": "What it was for. ".repeat(100),
                    "updated_at": at.to_string(), "user": { "login": format!("author-{}", number % 50) },
                    "head": { "sha": format!("{number:040x}"), "ref": format!("topic/{number}") },
                    "base": { "ref": "main", "repo": { "default_branch": "main" } },
                },
            });
            let delivery = format!("closed-{number}-{n}");
            let body = payload.to_string();
            part.push(WebhookRow::new("pull_request", &delivery, at, body.as_bytes()).unwrap());
        }
        if part.len() >= PART || pull + 1 == pulls {
            results.append_webhooks(std::mem::take(&mut part)).await.unwrap();
        }
    }
}

fn ci_of_commit(commit: u64, at: Timestamp, rows: &mut Vec<WebhookRow>) {
    let branch =
        if commit.is_multiple_of(4) { "main".to_owned() } else { format!("topic/{commit}") };
    let sha = format!("{:040x}", u128::from(commit + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C));
    let mut add = |event: &str, seconds: u64, payload: serde_json::Value| {
        let delivery = format!("{commit}-{}", rows.len());
        let at = at + SignedDuration::from_secs(seconds.cast_signed());
        rows.push(WebhookRow::new(event, &delivery, at, payload.to_string().as_bytes()).unwrap());
    };
    let head_commit = json!({
        "id": sha, "message": format!("Commit {commit} (#{commit})"), "author": { "name": "Ada" },
    });
    let repository = json!({ "full_name": UPSTREAM });
    add(
        "push",
        0,
        json!({
            "ref": format!("refs/heads/{branch}"), "after": sha, "head_commit": head_commit,
            "repository": repository,
        }),
    );
    for (n, status) in ["queued", "in_progress", "completed"].into_iter().enumerate() {
        let seconds = 600 * n as u64;
        for run in 0..CI_RUNS {
            add(
                "workflow_run",
                seconds,
                json!({
                    "action": status, "repository": repository,
                    "workflow_run": {
                        "id": commit * CI_RUNS + run, "run_attempt": 1, "status": status, "event": "push",
                        "name": format!("Workflow {run}"), "created_at": at.to_string(),
                        "conclusion": (status == "completed").then_some(if commit.is_multiple_of(9) { "failure" } else { "success" }),
                        "updated_at": (at + SignedDuration::from_secs(seconds.cast_signed())).to_string(),
                        "head_sha": sha, "head_branch": branch, "head_commit": head_commit,
                    },
                }),
            );
        }
        for job in 0..CI_JOBS {
            let failed = chance(commit, job).is_multiple_of(50);
            let conclusion = match (status, failed) {
                ("completed", true) => Some("failure"),
                ("completed", false) => Some("success"),
                _ => None,
            };
            let steps: Vec<_> = (0..CI_STEPS)
                .map(|step| {
                    json!({
                        "name": format!("Step {step} of the job"), "number": step,
                        "status": status, "conclusion": conclusion,
                        "started_at": at.to_string(), "completed_at": at.to_string(),
                    })
                })
                .collect();
            add(
                "workflow_job",
                seconds,
                json!({
                    "action": status, "repository": repository,
                    "workflow_job": {
                        "id": commit * CI_JOBS + job, "run_id": commit * CI_RUNS + job % CI_RUNS,
                        "run_attempt": 1, "workflow_name": format!("Workflow {}", job % CI_RUNS),
                        "name": format!("linux-{} / test (default, {}, 5)", job % 20, job / 20 + 1),
                        "status": status, "conclusion": conclusion, "head_sha": sha,
                        "head_branch": branch, "created_at": at.to_string(), "steps": steps,
                        "started_at": (at + SignedDuration::from_secs(chance(commit, job).cast_signed() % 900)).to_string(),
                        "completed_at": (at + SignedDuration::from_secs(1200 + chance(job, commit).cast_signed() % 4000)).to_string(),
                        "html_url": format!("https://github.com/{UPSTREAM}/actions/runs/{commit}/job/{job}"),
                        "labels": [format!("linux.{}xlarge", 2 << (job % 4))], "runner_name": format!("runner-{job}"),
                    },
                }),
            );
        }
    }
}

/// Runs of the default branch, as many on each day. One of 200 tests fails now and then, and one of
/// 100 is flaky.
async fn fill_tests(results: &dyn Results, now: Timestamp, tests: u64) {
    let runs = tests.div_ceil(TESTS * TEST_JOBS);
    for number in 0..runs {
        let ago = (runs - number) * TEST_DAYS * 86_400_000 / runs;
        let run = TestedRun {
            repository: UPSTREAM.to_owned(),
            workflow_id: Some(1),
            workflow: Some("Trunk".to_owned()),
            run_id: number,
            run_attempt: 1,
            head_branch: Some("main".to_owned()),
            head_sha: Some(format!("{number:040x}")),
            on_default_branch: true,
            started_at: now - SignedDuration::from_millis(ago.cast_signed()),
        };
        for job in 0..TEST_JOBS {
            let reports = (0..TESTS / REPORT_TESTS).map(|part| report(number, job, part)).collect();
            results.append_test_runs(&run, reports).await.unwrap();
        }
        results.finish_test_runs(&run).await.unwrap();
    }
}

fn report(run: u64, job: u64, part: u64) -> ReportRows {
    let file: Arc<str> = format!("test/test_module_{part}.py").into();
    let row = |test: u64| {
        let luck = chance(run * TEST_JOBS + job, test) % 20;
        let result = if test.is_multiple_of(200) && luck == 0 {
            TestResult::Failure
        } else {
            TestResult::Success
        };
        // From a millisecond to ten seconds, one test of eleven over a second.
        let seconds = 0.001 * 10f64.powf(4.0 * (chance(1, test) as f64 % 1000.0 / 1000.0).powi(3));
        let case = TestCase {
            suite: "pytest".into(),
            classname: format!("test.test_module_{part}.TestClass{}", test % 50).into(),
            file: Some(Arc::clone(&file)),
            time: Some(seconds),
            flaky: test.is_multiple_of(100) && luck == 1,
            ..TestCase::new(format!("test_{test}_cpu_float32"), result)
        };
        TestRunRow { test_id: chance(part, test % 50) << 48 | test, case }
    };
    ReportRows {
        source: ReportSource {
            report_id: chance(run, job * TESTS + part) << 20 | part,
            job_id: Some(run * TEST_JOBS + job),
            job_id_check: JobIdCheck::Verified,
            job: format!("linux / test (default, {}, {TEST_JOBS})", job + 1).into(),
            artifact: format!("test-reports-{job}.zip").into(),
            path: format!("{file}/report.xml"),
            invoking_file: Some(file.clone()),
        },
        rows: (part * REPORT_TESTS..(part + 1) * REPORT_TESTS).map(row).collect(),
    }
}

/// Mixes two numbers into one that looks like chance.
fn chance(event: u64, n: u64) -> u64 {
    let mixed = (event.wrapping_mul(1_000_003).wrapping_add(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
}

fn dispatch(event: u64, backend: u64, at: Timestamp, now: Timestamp) -> Vec<Fact> {
    let (delivery, sha) = (format!("delivery-{event}"), format!("{event:040x}"));
    let pull_request = (event % 7 != 6).then_some(1000 + event);
    let kind = if pull_request.is_some() { "pull_request" } else { "push" };
    let mut facts = vec![Fact::Dispatch(DispatchFact {
        at,
        delivery: delivery.clone(),
        upstream: UPSTREAM.to_owned(),
        pull_request,
        head_sha: sha.clone(),
        event: EventName::from(kind),
        repo: repo(backend),
        level: level(backend),
        labels: vec![],
        enqueued_at: at,
        sent_at: Some(at + SignedDuration::from_millis(120)),
        status: DispatchFactStatus::Sent,
        superseded_by: None,
        tries: 1,
        last_error: None,
    })];
    if level(backend).blocks_merge() {
        let failed = chance(event, backend * JOBS).is_multiple_of(20);
        let end = if failed { Conclusion::Failure } else { Conclusion::Success };
        facts.push(Fact::Check(CheckFact {
            at: (at + SignedDuration::from_mins(45)).min(now),
            upstream: UPSTREAM.to_owned(),
            head_sha: sha.clone(),
            repo: repo(backend),
            status: CheckRunStatus::Completed(end),
            title: "The worst of its runs and jobs".to_owned(),
        }));
    }
    let run = (event * BACKENDS + backend).to_string();
    for job in 0..JOBS {
        let luck = chance(event, backend * JOBS + job);
        let (queue, execution) = (30_000 + luck % 600_000, 600_000 + luck % 1_700_000);
        let received_at = at + SignedDuration::from_millis((queue + execution).cast_signed());
        if received_at > now {
            continue;
        }
        let state = match luck % 100 {
            0..=3 => JobState::Completed(Conclusion::Failure),
            4 => JobState::Completed(Conclusion::TimedOut),
            _ => JobState::Completed(Conclusion::Success),
        };
        let name = format!("job {job}");
        facts.push(Fact::Callback(CallbackFact {
            at: received_at,
            repo: Some(repo(backend)),
            delivery: Some(delivery.clone()),
            run_id: Some(run.clone()),
            job: Some(name.clone()),
            status: Some("completed".to_owned()),
            conclusion: state.conclusion().map(|conclusion| conclusion.as_str().to_owned()),
            outcome: CallbackOutcome::Accepted,
            answer: 200,
            detail: None,
            latency_ms: (500 + luck % 4000) as f64 / 1000.0,
        }));
        facts.push(Fact::Attempt(Box::new(AttemptFact {
            received_at,
            dispatched_at: at,
            repo: repo(backend),
            delivery: delivery.clone(),
            workflow: "ci".to_owned(),
            job: Some(name),
            run_id: run.clone(),
            run_attempt: 1,
            state,
            start_unknown: false,
            queue_seconds: Some(queue as f64 / 1000.0),
            execution_seconds: Some(execution as f64 / 1000.0),
            details: ReportDetails {
                check_run_id: Some(format!("{run}{job}")),
                url: Some(format!("https://github.com/{}/actions/runs/{run}", repo(backend))),
                ..ReportDetails::default()
            },
            missing_proof: None,
            expected: None,
            level: level(backend),
            event: EventName::from(kind),
            upstream: UPSTREAM.to_owned(),
            pull_request,
            head_sha: sha.clone(),
        })));
    }
    facts
}
