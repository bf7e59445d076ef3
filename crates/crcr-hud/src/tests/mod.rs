//! The pages, through the router, from generated and from hostile facts.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::protocol::callback::ReportDetails;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{AttemptFact, DispatchFact, Fact, MergeBaseFact};
use crcr_domain::{Allowlist, Level, RepoName};
use crcr_results::sqlite::SqliteResults;
use crcr_standin::generate::{ALLOWLIST, break_upstream, facts};
use crcr_store::sqlite::{SqliteStore, StoreRole};
use crcr_store::{StateStore as _, WriteBatch};
use jiff::{Timestamp, ToSpan as _};
use serde_json::json;
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::{Hud, router};

mod backends;
mod branches;
mod checks;
mod feeds;
mod frame;
mod jobs;
mod now;
mod one_test;
mod pulls;
mod relay;
mod reported;
mod search;
mod tests_and_logs;
mod trends;
mod wire;

const UPSTREAM: &str = "acme/upstream";

struct Site {
    router: Router,
    hud: Arc<Hud>,
    store: Arc<SqliteStore>,
    _folder: TempDir,
}

fn now() -> Timestamp {
    "2026-09-15T12:00:00Z".parse().unwrap()
}

async fn site(facts: Vec<Fact>) -> Site {
    site_on(facts, "https://github.com", Box::new(now)).await
}

async fn site_on(
    facts: Vec<Fact>,
    github_url: &str,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
) -> Site {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("store.db"), StoreRole::Server).unwrap();
    let store = Arc::new(store);
    store.commit(WriteBatch { facts, ..WriteBatch::default() }, now()).await.unwrap();
    let upstream = RepoName::new(UPSTREAM).unwrap();
    let policy = Allowlist::parse(ALLOWLIST.as_bytes(), &upstream).accepted().ok().map(Arc::new);
    let results = Arc::new(SqliteResults::new(Arc::clone(&store)));
    let mut hud = Hud::new(results, Box::new(move || policy.clone()), clock, upstream);
    hud.github_url = github_url.to_owned();
    let hud = Arc::new(hud);
    Site { router: router(Arc::clone(&hud)), hud, store, _folder: folder }
}

const AURORA: &str = "aurora-example/torch-aurora";

/// The attempt as one that failed then, at the head of this pull request.
fn failed_on_pull(attempt: &AttemptFact, number: u64, at: Timestamp) -> AttemptFact {
    AttemptFact {
        delivery: format!("of-{number}"),
        head_sha: format!("{number:040}"),
        run_id: number.to_string(),
        dispatched_at: at,
        received_at: at,
        event: EventName::PullRequest,
        pull_request: Some(number),
        state: JobState::Completed(Conclusion::Failure),
        ..attempt.clone()
    }
}

/// A dispatch to the backend at L4 and an attempt of its job, to be changed into others.
fn of_aurora() -> (DispatchFact, AttemptFact) {
    let (mut dispatch, mut attempt) = (None, None);
    for fact in facts(7, now(), 1, 1, UPSTREAM) {
        match fact {
            Fact::Dispatch(fact) if fact.repo == AURORA => dispatch = Some(fact),
            Fact::Attempt(fact) if fact.repo == AURORA => attempt = Some(*fact),
            _ => {}
        }
    }
    (dispatch.unwrap(), attempt.unwrap())
}

/// A result of the backend at L4 on a commit that was pushed two hours ago.
fn pushed(sha: &str, conclusion: Conclusion) -> Fact {
    let at = now() - jiff::SignedDuration::from_hours(2);
    Fact::Attempt(Box::new(AttemptFact {
        delivery: format!("of-{sha}"),
        dispatched_at: at,
        received_at: at,
        event: EventName::Push,
        state: JobState::Completed(conclusion),
        pull_request: None,
        head_sha: sha.repeat(20),
        ..of_aurora().1
    }))
}

impl Site {
    /// Stores webhooks of the upstream repository: event, how many minutes ago it was received, payload.
    async fn add_webhooks(&self, rows: Vec<(&str, i64, serde_json::Value)>) {
        let row = |(event, minutes, mut payload): (&str, i64, serde_json::Value)| {
            payload["repository"] = json!({ "full_name": UPSTREAM });
            let (at, body) =
                (now() - jiff::SignedDuration::from_mins(minutes), payload.to_string());
            WebhookRow::new(event, &body, at, body.as_bytes()).unwrap()
        };
        let rows = rows.into_iter().map(row).collect();
        self.hud.results.append_webhooks(rows).await.unwrap();
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let policy = answer.headers().get("content-security-policy").cloned();
        assert!(policy.is_some_and(|p| p.to_str().unwrap().contains("default-src 'none'")));
        let body = axum::body::to_bytes(answer.into_body(), 8 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// The page at this path, which has this text.
    async fn page_with(&self, path: &str, text: &str) -> String {
        let (_, page) = self.get(path).await;
        assert!(page.contains(text), "{page}");
        page
    }

    async fn json(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }
}
