//! Relays in the states that pages have words for, each on a port of its own, at one time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Weak};

use crcr_aws::object_store::ObjectStore;
use crcr_cidata::logs::{LogPacker, log_key};
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::ci_data::job_log::{JobLogOutcome, JobLogRow};
use crcr_domain::ci_data::test_row::{ReportRows, TestedRun};
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::protocol::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{CallbackOutcome, Fact};
use crcr_domain::{Level, RepoName};
use crcr_relay::Config;
use crcr_relay::http::router;
use crcr_relay::http::serve::hud_of;
use crcr_relay::relay::Relay;
use crcr_relay::state_records::{self, DeliveryRecord};
use crcr_results::sqlite::SqliteResults;
use crcr_results::{JobLogResults as _, TestRunResults as _, WebhookResults as _};
use crcr_standin::StandIn;
use crcr_standin::generate::{self, UpstreamCi};
use crcr_store::{
    LeaseRequest, NewTask, SetInsert, SqliteStore, StateStore as _, StoreKey, StoreRole,
    TaskOutcome, WriteBatch,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

pub(crate) const TOKEN: &str = "let me in; please";
const UPSTREAM: &str = "example/torch";
const AURORA: &str = "aurora-example/torch-aurora";
/// Markup, 200 characters without a space, right to left, emoji.
const EVIL: &str =
    "<img src=x onerror=alert(1)>\u{202e}\u{5e2}\u{5d1}\u{5e8}\u{5d9}\u{5ea} 🦀\"'&amp;";

/// The sites, served until they are dropped.
pub(crate) struct Sites {
    urls: BTreeMap<&'static str, String>,
    _folders: Vec<TempDir>,
    _github: StandIn,
}

fn now() -> Timestamp {
    "2026-09-15T12:00:00Z".parse().unwrap()
}

impl Sites {
    /// Those that all tests look at which change nothing.
    pub(crate) async fn shared() -> Arc<Self> {
        // A test's own runtime ends with the test.
        static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
        static SHARED: Mutex<Weak<Sites>> = Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(sites) = shared.upgrade() {
            return sites;
        }
        let sites = Arc::new(RUNTIME.spawn(Self::serve()).await.unwrap());
        *shared = Arc::downgrade(&sites);
        sites
    }

    pub(crate) async fn serve() -> Self {
        let github = StandIn::start().unwrap();
        let since = Timestamp::now().duration_since(now());
        github.state().clock.set_back(since.try_into().unwrap());
        github.state().world.install(UPSTREAM);
        for (path, text) in generate::FILES_OF_UPSTREAM {
            github.state().world.put_file(UPSTREAM, path, text(now()));
        }
        let month = generate::facts(7, now(), 30, 6, UPSTREAM);
        let three_days_ago = now() - SignedDuration::from_hours(72);
        let states = [
            ("full", month.clone()),
            ("empty", vec![]),
            ("stale", generate::facts(7, three_days_ago, 3, 6, UPSTREAM)),
            ("broken", vec![]),
            ("hostile", hostile(month.clone())),
            ("wide", wide(month.clone())),
        ];
        let (mut urls, mut folders) = (BTreeMap::new(), vec![]);
        for (name, facts) in states {
            let folder = tempfile::tempdir().unwrap();
            let store =
                SqliteStore::open(&folder.path().join("crcr.db"), StoreRole::Server).unwrap();
            let store = Arc::new(store);
            store.commit(WriteBatch { facts, ..WriteBatch::default() }, now()).await.unwrap();
            if name == "full" {
                deliveries(&store).await;
            }
            let mut ci = UpstreamCi::new(&month, now()).unwrap();
            if name == "full" || name == "hostile" {
                keep_logs(&mut ci, &archive_of(folder.path()), name == "hostile").await;
            }
            let results = SqliteResults::new(Arc::clone(&store));
            match name {
                "full" => ci.store(&results).await.unwrap(),
                "hostile" => {
                    results.append_webhooks(hostile_webhooks(ci.webhooks)).await.unwrap();
                    results.put_job_logs(hostile_logs(ci.job_logs)).await.unwrap();
                    for (run, reports) in hostile_tests(ci.test_runs) {
                        results.append_test_runs(&run, reports).await.unwrap();
                        results.finish_test_runs(&run).await.unwrap();
                    }
                }
                "wide" => {
                    results.append_webhooks(wide_webhooks()).await.unwrap();
                    results.append_webhooks(many_jobs()).await.unwrap();
                }
                _ => {}
            }
            if name == "broken" {
                break_it(&folder.path().join("crcr.db"));
            }
            urls.insert(name, relay(&github, folder.path(), store).await);
            folders.push(folder);
        }
        Self { urls, _folders: folders, _github: github }
    }

    pub(crate) fn urls(&self) -> &BTreeMap<&'static str, String> {
        &self.urls
    }
}

/// Serves a relay; returns its address.
async fn relay(github: &StandIn, folder: &Path, store: Arc<SqliteStore>) -> String {
    let results = Arc::new(SqliteResults::new(Arc::clone(&store)));
    let allowlist = folder.join("allowlist.yml");
    std::fs::write(&allowlist, generate::ALLOWLIST).unwrap();
    let app = github.state().world.app();
    let settings = BTreeMap::from([
        ("GITHUB_APP_ID", app.id.clone()),
        ("GITHUB_APP_SECRET", app.webhook_secret.clone()),
        ("GITHUB_APP_PRIVATE_KEY", app.private_key.clone()),
        ("GITHUB_API_URL", github.state().origin().to_owned()),
        ("CRCR_OIDC_ISSUERS", github.state().origin().to_owned()),
        ("ALLOWLIST_URL", format!("file:{}", allowlist.display())),
        ("UPSTREAM_REPO", UPSTREAM.to_owned()),
        ("CRCR_ADMIN_TOKEN", TOKEN.to_owned()),
        ("CRCR_ARCHIVE", archive_of(folder)),
    ]);
    let config = Config::read(&|name| settings.get(name).cloned(), BTreeMap::new()).unwrap();
    let relay = Arc::new(Relay::new(config, store, results, Arc::new(now)).unwrap());
    relay.allowlist.refresh(&relay.app, now()).await;
    relay.verifier.refresh(now()).await;
    relay.read_repository_files().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = router::public(&relay, &Arc::new(hud_of(&relay)));
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

fn archive_of(folder: &Path) -> String {
    format!("file:{}", folder.join("archive").display())
}

/// The logs of failed jobs; hostile ones are what everybody who runs a job can write.
async fn keep_logs(ci: &mut UpstreamCi, archive: &str, is_hostile: bool) {
    let store = ObjectStore::open(archive).await.unwrap();
    let key = |repo: &str, job: u64| log_key(&RepoName::new(repo).unwrap(), job);
    for (key, mut text) in ci.keep_logs(key) {
        if is_hostile {
            text = text.replace("compiling object", &format!("{EVIL}{}", "x".repeat(300)));
            text = text.replace("Run ./ci", &format!("Run {EVIL}{}", "y".repeat(300)));
        }
        store.put(&key, LogPacker::packed(text.as_bytes()).unwrap()).await.unwrap();
    }
}

/// Names and messages of tests, which everybody who opens a pull request can choose.
fn hostile_tests(mut runs: Vec<(TestedRun, Vec<ReportRows>)>) -> Vec<(TestedRun, Vec<ReportRows>)> {
    let long = format!("{EVIL}{}", "x".repeat(400));
    for (run, reports) in &mut runs {
        run.head_branch = Some(long.clone());
        for report in reports {
            report.source.job = format!("{EVIL} {}", report.source.job).into();
            for row in &mut report.rows {
                row.case.name = format!("{}{long}", row.case.name);
                row.case.classname = long.as_str().into();
                row.case.file = Some(long.as_str().into());
                for detail in &mut row.case.details {
                    detail.message = Some(format!("{long}\n{long}"));
                }
            }
        }
    }
    runs
}

/// Names that others choose, as bad as the relay takes them.
fn hostile(mut facts: Vec<Fact>) -> Vec<Fact> {
    let long = format!("{EVIL}{}", "x".repeat(200 - EVIL.chars().count()));
    let mut n = 0;
    for fact in &mut facts {
        let Fact::Attempt(row) = fact else { continue };
        n += 1;
        row.workflow = long.clone();
        row.job = Some(format!("{EVIL} (L4) {}", n % 3));
        row.details.url = Some(
            if n % 2 == 0 { "javascript:alert(1)" } else { "https://evil.example/<b>" }.into(),
        );
        if let JobState::Completed(_) = row.state {
            row.state = JobState::Completed(Conclusion::Failure);
        }
        for test in &mut row.details.failed_tests {
            (test.name, test.file) = (long.clone(), Some(long.clone()));
            test.message = Some(format!("{long}\n{long}"));
        }
    }
    for fact in &mut facts {
        if let Fact::Callback(row) = fact {
            (row.outcome, row.answer, row.detail) =
                (CallbackOutcome::BadBody, 400, Some(long.clone()));
        }
        if let Fact::Dispatch(row) = fact {
            row.last_error = Some(long.clone());
        }
    }
    facts
}

/// More pull requests and jobs than a matrix shows: 50 by 40 of them are left.
fn wide(facts: Vec<Fact>) -> Vec<Fact> {
    let mut rows = vec![];
    for fact in facts {
        let Fact::Attempt(row) = fact else { continue };
        if row.repo == AURORA {
            rows.extend((0..45).map(|n| {
                Fact::Attempt(Box::new(crcr_domain::results::facts::AttemptFact {
                    job: Some(format!("linux / test (default, {}, 45)", n + 10)),
                    ..(*row).clone()
                }))
            }));
        }
    }
    rows
}

/// Names in webhooks that others choose.
fn hostile_webhooks(mut rows: Vec<WebhookRow>) -> Vec<WebhookRow> {
    let long = format!("{EVIL}{}", "x".repeat(250 - EVIL.chars().count()));
    for row in &mut rows {
        for (known, hostile) in [
            ("linux / build", format!("{EVIL} build")),
            ("macos / build", long.clone()),
            ("Run the linters", long.clone()),
            ("Ada Example", long.clone()),
            ("Fuse pointwise kernels", long.clone()),
            ("Document the stable operators", format!("{EVIL}\n{long}")),
        ] {
            let escaped = json!(hostile).to_string();
            let text = escaped.trim_matches('"').trim_end_matches('\\');
            row.document = row.document.replace(known, text);
        }
        row.document = row.document.replace("https://github.com/", "javascript:alert(1)//");
    }
    rows
}

/// Lines of logs, which everybody who runs a job writes.
fn hostile_logs(mut rows: Vec<JobLogRow>) -> Vec<JobLogRow> {
    // As long as the relay keeps them.
    let long = |chars: usize| format!("{EVIL}\u{0}{}", "x".repeat(chars - EVIL.chars().count()));
    let (name, line) = (long(250), long(4000));
    for row in &mut rows {
        row.job.job_name.clone_from(&name);
        row.job.branch.clone_from(&name);
        let JobLogOutcome::Classified(known) = &mut row.outcome else { continue };
        if let Some(found) = &mut known.found {
            found.rule = found.rule.as_ref().map(|_| name.clone());
            found.category = found.category.as_ref().map(|_| name.clone());
            found.captures = vec![line.clone()];
            found.line.clone_from(&line);
            found.context = vec![long(500), EVIL.to_owned()];
        }
        for novel in &mut known.novel {
            novel.line = long(1000);
        }
    }
    rows
}

/// 50 commits of 40 jobs that aren't folded. A commit of zeros only would be a deleted branch.
fn wide_webhooks() -> Vec<WebhookRow> {
    let repository = json!({ "full_name": UPSTREAM });
    let mut rows = vec![];
    for commit in 1..=50 {
        let (sha, at) = (format!("{commit:040}"), now() - SignedDuration::from_hours(50 - commit));
        let head = json!({ "message": format!("Commit {commit} (#{commit})"), "author": { "name": "Ada" } });
        let push = json!({
            "ref": "refs/heads/main", "after": sha, "head_commit": head, "repository": repository,
        });
        let mut add = |event: &str, payload: &serde_json::Value| {
            let (delivery, body) = (format!("wide-{}", rows.len()), payload.to_string());
            rows.push(WebhookRow::new(event, &delivery, at, body.as_bytes()).unwrap());
        };
        add("push", &push);
        for job in 0..40 {
            let job = json!({
                "id": 1000 * commit + job, "name": format!("linux-{job} / test"), "workflow_name": "Trunk",
                "status": "completed", "conclusion": if (commit + job) % 9 == 0 { "failure" } else { "success" },
                "head_sha": sha, "head_branch": "main",
            });
            add("workflow_job", &json!({ "workflow_job": job, "repository": repository }));
        }
    }
    rows
}

/// Three commits of 2,000 jobs each, with names of 200 characters, on a branch of their own.
fn many_jobs() -> Vec<WebhookRow> {
    let repository = json!({ "full_name": UPSTREAM });
    let mut rows = vec![];
    for commit in 1..=3 {
        let (sha, at) = (format!("{commit:039}a"), now() - SignedDuration::from_hours(5 - commit));
        let head = json!({ "message": "x".repeat(200), "author": { "name": EVIL } });
        let push = json!({
            "ref": "refs/heads/many", "after": sha, "head_commit": head, "repository": repository,
        });
        let mut add = |event: &str, payload: &serde_json::Value| {
            let (delivery, body) = (format!("many-{commit}-{}", rows.len()), payload.to_string());
            rows.push(WebhookRow::new(event, &delivery, at, body.as_bytes()).unwrap());
        };
        add("push", &push);
        for job in 0..2000 {
            let name = format!("{}-{} / test (default, {job}, 2000)", "j".repeat(200), job % 80);
            let job = json!({
                "id": 900_000 + 10_000 * commit + job, "name": name, "workflow_name": "Many", "status": "completed",
                "conclusion": if job % 97 == 0 { "failure" } else { "success" }, "head_sha": sha, "head_branch": "many",
            });
            add("workflow_job", &json!({ "workflow_job": job, "repository": repository }));
        }
    }
    rows
}

/// A delivery whose dispatch was given up, one that was sent, and a task that was given up.
async fn deliveries(store: &SqliteStore) {
    let repo = |name: &str| RepoName::new(name).unwrap();
    let later = now() + SignedDuration::from_hours(24);
    let mut batch = WriteBatch::default();
    for (n, status) in
        [DispatchStatus::Sent { at: now() }, DispatchStatus::Dead].into_iter().enumerate()
    {
        let id = format!("3f1c0de0-9b1d-11ef-8e1a-00000000000{n}");
        let dead = status == DispatchStatus::Dead;
        let delivery = (id.as_str(), UPSTREAM, EventName::PullRequest);
        let dispatch = Dispatch {
            pull_request: Some(101_090),
            status,
            tries: if dead { 15 } else { 1 },
            last_error: dead.then(|| "GitHub answered 503".to_owned()),
            ..Dispatch::queued(delivery, &"ab".repeat(20), (repo(AURORA), Level::L4), now())
        };
        batch.set(state_records::dispatch_key(&id, &dispatch.repo), &dispatch, later);
        let delivery = DeliveryRecord {
            id: id.clone(),
            event: dispatch.event.into(),
            received_at: now() - SignedDuration::from_mins(3 - n as i64),
            pull_request: dispatch.pull_request,
            head_sha: dispatch.head_sha,
            targets: vec![dispatch.repo],
            superseded_by: None,
        };
        let score = delivery.received_at.as_millisecond();
        batch.set(state_records::delivery_key(&id), &delivery, later);
        batch.set_inserts.push(SetInsert {
            set: state_records::delivery_set_key(),
            member: id,
            score,
            expires_at: later,
        });
    }
    batch.tasks.push(NewTask {
        key: StoreKey::new(&["labels", "101090"]),
        lane: "example".to_owned(),
        payload: r#"{"kind":"labels","pull":101090}"#.to_owned(),
        due_at: now(),
    });
    store.commit(batch, now()).await.unwrap();
    let want = LeaseRequest {
        now: now(),
        until: later,
        max_tasks: 1,
        max_per_lane: 1,
        ..LeaseRequest::default()
    };
    let task = store.lease_tasks(want).await.unwrap().pop().unwrap();
    let error = "GitHub answered 403: Resource not accessible by integration".to_owned();
    let settle = Some(task.settle(TaskOutcome::Dead { error, expires_at: later }));
    store.commit(WriteBatch { settlement: settle, ..WriteBatch::default() }, now()).await.unwrap();
}

/// Takes tables away, so that every page that reads one has to say so.
fn break_it(path: &Path) {
    let store = rusqlite::Connection::open(path).unwrap();
    for table in ["fact_attempt", "fact_day"] {
        store.execute_batch(&format!("ALTER TABLE {table} RENAME TO no_{table}")).unwrap();
    }
}
