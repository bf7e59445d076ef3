//! Logs of failed jobs: fetched, kept and explained.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_aws::object_store::ObjectStore;
use crcr_cidata::logs::unpack_log;
use crcr_domain::ci_data::job_log::{JobLogRow, LogMatchSource, NoLogReason};
use crcr_domain::results::facts::MergeBaseFact;
use crcr_standin::traffic::Fault;
use serde_json::{Value, json};

use super::support::{UPSTREAM, World};
use crate::limits;

const JOB: u64 = 5_000_000_001;
const GREEN: u64 = 4_000_000_001;
const LOG: &str = "2026-11-23T10:00:00.1234567Z ##[group]Run make\n\
    2026-11-23T10:00:01.1234567Z building step 7\n\
    2026-11-23T10:00:02.1234567Z src/a.c:7:1: error: unknown type name '<script>alert(1)</script>'\n\
    2026-11-23T10:00:03.1234567Z make: *** [all] Error 2\n\
    2026-11-23T10:00:04.1234567Z ##[error]Process completed with exit code 2.\n";

struct ArchivedWorld {
    world: World,
    folder: tempfile::TempDir,
}

impl ArchivedWorld {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file:{}", folder.path().display());
        Self { world: World::with(&[("CRCR_ARCHIVE", &url)]).await, folder }
    }

    async fn stored_log(&self, key: &str) -> Option<String> {
        let store = ObjectStore::Folder(self.folder.path().to_owned());
        let packed = store.get(key, 1 << 20).await.unwrap()?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut unpack_log(packed).unwrap(), &mut text).unwrap();
        Some(text)
    }
}

fn payload(id: u64, conclusion: &str) -> Value {
    json!({
        "action": "completed",
        "repository": { "full_name": UPSTREAM, "default_branch": "main", "private": false },
        "workflow_job": {
            "id": id, "run_id": id + 1, "run_attempt": 1, "status": "completed", "name": "test (a, 1)",
            "workflow_name": "Trunk", "conclusion": conclusion, "head_sha": "abc",
            "head_branch": "main", "created_at": "2026-08-01T10:00:00Z",
            "completed_at": "2026-08-01T10:30:00Z",
        },
    })
}

async fn send(world: &World, event: &str, payload: &Value) {
    let delivery = world.github.state().world.delivery(event, payload);
    assert!(world.send(&delivery).await.0.is_success());
}

/// Sends the webhook of a job, and works until its log is due.
async fn job_ended(world: &World, payload: &Value) -> Vec<String> {
    send(world, "workflow_job", payload).await;
    let mut errors = world.work().await;
    world.later(limits::JOB_LOG_DELAY);
    errors.extend(world.work().await);
    errors
}

/// Job [`GREEN`] succeeded on `main` of `head_repository`.
async fn green_run(world: &World, head_repository: &str, log: &str) {
    let run = json!({
        "action": "requested", "repository": { "full_name": UPSTREAM },
        "workflow_run": {
            "id": GREEN + 1, "name": "Trunk", "run_attempt": 1, "status": "requested",
            "event": "push", "head_sha": "abc", "head_branch": "main",
            "head_repository": { "full_name": head_repository },
        },
    });
    send(world, "workflow_run", &run).await;
    world.github.state().world.put_job_log(UPSTREAM, GREEN, log);
    assert_eq!(job_ended(world, &payload(GREEN, "success")).await, [""; 0]);
}

async fn row(world: &World) -> Option<JobLogRow> {
    world.relay.results.job_logs(UPSTREAM, &[JOB]).await.unwrap().pop()
}

async fn line(world: &World) -> String {
    let row = row(world).await.expect("there is a row");
    row.classification().unwrap().found.as_ref().unwrap().line.clone()
}

fn log_calls(world: &World) -> usize {
    world.github.state().world.count(&format!("GET /repos/{UPSTREAM}/actions/jobs/*"))
}

async fn page(world: &World, path: &str) -> String {
    let answer = world.answer(Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn failed_job_gets_a_stored_log_and_the_line_that_explains_it() {
    let here = ArchivedWorld::new().await;
    here.world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    assert_eq!(job_ended(&here.world, &payload(JOB, "failure")).await, [""; 0]);
    let row = row(&here.world).await.unwrap();
    assert_eq!((row.job.run_id, row.job.job_name.as_str()), (JOB + 1, "test (a, 1)"));
    assert_eq!(row.job.completed_at, "2026-08-01T10:30:00Z".parse().unwrap());
    let found = row.classification().unwrap().found.clone().unwrap();
    assert_eq!((found.line_number, found.by), (3, LogMatchSource::Rule));
    assert!(found.line.contains("unknown type name") && found.context.len() > 1, "{found:?}");
    let key = row.log_key.unwrap();
    assert_eq!(key, format!("logs/acme/upstream/{JOB}.txt.zst"));
    assert_eq!(here.stored_log(&key).await.unwrap(), LOG);
    // The same webhook again asks GitHub for nothing.
    let calls = log_calls(&here.world);
    assert_eq!(job_ended(&here.world, &payload(JOB, "failure")).await, [""; 0]);
    assert_eq!((log_calls(&here.world), calls), (1, 1));
    let archive = here.world.relay.archive().await.unwrap().unwrap();
    assert_eq!(archive.events().await.unwrap(), ["workflow_job"], "logs aren't webhooks");
}

#[tokio::test]
async fn timed_out_job_is_explained_without_an_archive_too() {
    let world = World::new().await;
    world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    assert_eq!(job_ended(&world, &payload(JOB, "timed_out")).await, [""; 0]);
    let row = row(&world).await.unwrap();
    assert!(row.classification().unwrap().found.is_some());
    assert_eq!(row.log_key, None);
}

#[tokio::test]
async fn jobs_that_did_not_fail_and_private_repositories_ask_for_no_log() {
    let world = World::new().await;
    world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    for conclusion in ["success", "cancelled", "skipped", "neutral"] {
        assert_eq!(job_ended(&world, &payload(JOB, conclusion)).await, [""; 0]);
    }
    let mut private = payload(JOB, "failure");
    private["repository"]["private"] = json!(true);
    assert_eq!(job_ended(&world, &private).await, [""; 0]);
    assert_eq!((log_calls(&world), row(&world).await), (0, None));
    let world = world.restart(&[("CRCR_JOB_LOGS", "off")]).await;
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    assert_eq!((log_calls(&world), row(&world).await), (0, None));
    let world = world.restart(&[("CRCR_JOB_LOGS", "all")]).await;
    assert_eq!(job_ended(&world, &private).await, [""; 0]);
    assert!(row(&world).await.is_some());
}

#[tokio::test]
async fn log_waits_for_the_end_of_the_rate_limit_and_nothing_else_does() {
    let here = ArchivedWorld::new().await;
    let world = &here.world;
    world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    let reset = world.relay.now() + Duration::from_secs(1800);
    world.github.state().world.limit(0, reset);
    let errors = job_ended(world, &payload(JOB, "failure")).await;
    assert!(errors.len() == 1 && errors[0].contains("rate limit"), "{errors:?}");
    let waiting = "SELECT count(*) FROM record WHERE key LIKE '%\"pending\"%' AND value <> x''";
    assert_eq!(world.value(waiting), 0, "the webhook is kept");
    let calls = world.github.state().world.calls().len();
    world.later(Duration::from_secs(1700));
    assert_eq!(world.work().await, [""; 0]);
    assert_eq!(world.github.state().world.calls().len(), calls, "GitHub is left alone");
    world.later(Duration::from_secs(120));
    assert_eq!(world.work().await, [""; 0]);
    assert!(line(world).await.contains("unknown type name"));
}

#[tokio::test]
async fn failing_fetch_is_tried_again_until_github_answers() {
    let world = World::new().await;
    world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    let route = format!("GET /repos/{UPSTREAM}/actions/jobs/{JOB}/logs");
    world.github.state().world.fail(&route, 20, Fault::status(502));
    job_ended(&world, &payload(JOB, "failure")).await;
    for _ in 0..40 {
        world.work_after(Duration::from_secs(660)).await;
    }
    assert!(line(&world).await.contains("unknown type name"));
    world.nothing_else();
}

#[tokio::test]
async fn deleted_log_and_missing_permission_are_recorded_and_not_tried_again() {
    let world = World::new().await;
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    assert_eq!(row(&world).await.unwrap().no_log_reason(), Some(NoLogReason::Gone));
    let calls = log_calls(&world);
    world.later(Duration::from_secs(86_400));
    assert_eq!(world.work().await, [""; 0]);
    assert_eq!(log_calls(&world), calls);

    let state = world.github.state();
    state.world.put_job_log(UPSTREAM, JOB, LOG);
    state.world.install_with(UPSTREAM, &[("contents", "write")]);
    let world = world.restart(&[]).await;
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    assert_eq!(row(&world).await.unwrap().no_log_reason(), Some(NoLogReason::Refused));
    // Once the permission is granted, the next webhook of the job gets the log.
    world.github.state().world.install(UPSTREAM);
    let world = world.restart(&[]).await;
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    assert!(line(&world).await.contains("unknown type name"));
}

#[tokio::test]
async fn log_of_one_endless_line_is_explained_in_little_space() {
    let world = World::new().await;
    let log = format!("{} error: out of luck {}", "x".repeat(9 << 20), "y".repeat(9 << 20));
    world.github.state().world.put_job_log(UPSTREAM, JOB, log);
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    let row = row(&world).await.unwrap();
    assert!(row.classification().is_some());
    let stored = world.value("SELECT max(length(document)) FROM job_log");
    assert!(stored < 100_000, "{stored}");
}

#[tokio::test]
async fn new_rules_count_from_the_next_job_on_and_broken_ones_never() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.toml");
    let rule = |pattern: &str| {
        format!("[[rule]]\nname = \"r\"\ncategory = \"c\"\npattern = '{pattern}'\n")
    };
    std::fs::write(&path, rule("make: .*")).unwrap();
    let world = World::with(&[("CRCR_LOG_RULES", path.to_str().unwrap())]).await;
    for job in JOB..JOB + 3 {
        world.github.state().world.put_job_log(UPSTREAM, job, LOG);
    }
    let mut lines = vec![];
    for (job, rules) in [(JOB, None), (JOB + 1, Some("(")), (JOB + 2, Some("building .*"))] {
        if let Some(rules) = rules {
            std::fs::write(&path, rule(rules)).unwrap();
            world.relay.reload_log_rules();
        }
        job_ended(&world, &payload(job, "failure")).await;
        let rows = world.relay.results.job_logs(UPSTREAM, &[job]).await.unwrap();
        lines.push(rows[0].classification().unwrap().found.as_ref().unwrap().line.clone());
    }
    assert_eq!(lines, ["make: *** [all] Error 2", "make: *** [all] Error 2", "building step 7"]);
}

#[tokio::test]
async fn relay_that_is_killed_before_it_has_the_log_gets_it_after_the_restart() {
    let world = World::new().await;
    world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    send(&world, "workflow_job", &payload(JOB, "failure")).await;
    let world = world.restart(&[]).await;
    world.work().await;
    assert_eq!(row(&world).await, None, "the log isn't due yet");
    let world = world.restart(&[]).await;
    world.later(limits::JOB_LOG_DELAY);
    assert_eq!(world.work().await, [""; 0]);
    assert!(line(&world).await.contains("unknown type name"));
}

const UNKNOWN: &str = "starting on host 17\nthe frobnicator is misaligned\nbye\n";

#[tokio::test]
async fn failure_without_a_rule_is_compared_with_the_last_green_run() {
    let here = ArchivedWorld::new().await;
    green_run(&here.world, UPSTREAM, "starting on host 3\nbye\n").await;
    assert_eq!(log_calls(&here.world), 0, "the log of a green job is fetched when it is needed");
    here.world.github.state().world.put_job_log(UPSTREAM, JOB, UNKNOWN);
    assert_eq!(job_ended(&here.world, &payload(JOB, "failure")).await, [""; 0]);
    let row = row(&here.world).await.unwrap();
    let known = row.classification().unwrap();
    assert_eq!(known.found.as_ref().unwrap().by, LogMatchSource::Diff);
    let novel: Vec<_> = known.novel.iter().map(|novel| novel.line.as_str()).collect();
    assert_eq!(novel, ["the frobnicator is misaligned"]);
    let key = format!("logs/acme/upstream/{GREEN}.txt.zst");
    assert!(here.stored_log(&key).await.is_some(), "and kept for the next failure");
}

#[tokio::test]
async fn green_job_of_a_fork_hides_no_line_of_others_failures() {
    let world = World::new().await;
    green_run(&world, "somebody/upstream", "the frobnicator is misaligned\n").await;
    world.github.state().world.put_job_log(UPSTREAM, JOB, UNKNOWN);
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    let row = row(&world).await.unwrap();
    assert_eq!((row.classification().unwrap().novel.len(), log_calls(&world)), (0, 1));
}

#[tokio::test]
async fn deleted_log_of_the_green_run_leaves_the_rules() {
    let world = World::new().await;
    green_run(&world, UPSTREAM, "bye\n").await;
    world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    world.github.state().world.remove_job_log(UPSTREAM, GREEN);
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    assert!(line(&world).await.contains("unknown type name"));
}

#[tokio::test]
async fn page_of_a_hostile_log_shows_its_line_as_text() {
    let world = World::new().await;
    world.github.state().world.put_job_log(UPSTREAM, JOB, LOG);
    assert_eq!(job_ended(&world, &payload(JOB, "failure")).await, [""; 0]);
    for path in [format!("/failure/{UPSTREAM}/{JOB}"), "/failures?days=366".to_owned()] {
        let page = page(&world, &path).await;
        assert!(page.contains("unknown type name") && !page.contains("<script>alert"), "{page}");
    }
    let twin = format!("/api/v1/failure/{UPSTREAM}/{JOB}");
    let (status, body) = world.call(Request::get(twin).body(Body::empty()).unwrap()).await;
    assert_eq!((status, &body["log"]["job_id"]), (StatusCode::OK, &json!(JOB)));
}

#[tokio::test]
async fn author_sees_which_of_their_files_the_failing_line_names() {
    let here = ArchivedWorld::new().await;
    let world = &here.world;
    let github = &world.github.state().world;
    let [fork, tip, head] = ["f0", "f1", "f2"].map(|byte| byte.repeat(20));
    let at = world.relay.now();
    github.add_commit(UPSTREAM, &fork);
    github.add_commit_on(UPSTREAM, &tip, &fork, at);
    github.add_commit_on(UPSTREAM, &head, &fork, at);
    github.set_changed_files(UPSTREAM, &head, &["src/op.c", "docs/a.md"]);
    world.change(|pull| (pull.base_sha, pull.head_sha) = (tip.clone(), head.clone()));
    assert!(world.send(&world.pull_request("opened")).await.0.is_success());
    world.work().await;
    github.put_job_log(UPSTREAM, JOB, "src/op.c:3:1: error: unknown type name 'half'\n");
    let mut job = payload(JOB, "failure");
    job["workflow_job"]["head_sha"] = json!(head);
    assert_eq!(job_ended(world, &job).await, [""; 0]);
    let bases = world.relay.results.merge_bases(UPSTREAM, &[7]).await.unwrap();
    assert_eq!((&*bases[0].merge_base, bases[0].changed_files.len()), (&*fork, 2));
    let archive = world.relay.archive().await.unwrap().unwrap();
    let day = bases[0].at.to_zoned(jiff::tz::TimeZone::UTC).date();
    let keys = archive.keys(MergeBaseFact::EVENT, day).await.unwrap();
    let kept: MergeBaseFact =
        serde_json::from_slice(&archive.read(&keys[0]).await.unwrap().body).unwrap();
    assert_eq!(kept, bases[0], "so that it can be replayed");
    let page = page(world, &format!("/failure/{UPSTREAM}/{JOB}")).await;
    assert!(page.contains("named by these lines: <code><bdi>src/op.c</bdi></code>"), "{page}");
    assert!(page.contains("2 files changed"), "{page}");
    let compare = format!("GET /repos/{UPSTREAM}/compare/{tip}...{head}");
    assert_eq!(github.count(&compare), 1);
}
