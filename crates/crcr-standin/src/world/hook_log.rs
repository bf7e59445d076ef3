//! The App's log of webhook deliveries. A redelivery posts the same bytes with the same GUID and
//! signature to the App's URL again.
//!
//! <https://docs.github.com/en/rest/apps/webhooks>

use std::sync::Arc;

use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use url::Url;

use super::World;
use super::api::{ApiResult, refusal};
use super::webhooks::{Answer, Delivery};
use crate::State;

/// GitHub shows an attempt, and delivers it again, for three days:
/// <https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks>
const KEPT: SignedDuration = SignedDuration::from_hours(72);

/// One attempt to deliver a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedDelivery {
    pub id: u64,
    pub delivery: Delivery,
    pub delivered_at: Timestamp,
    /// Whether the App asked for this attempt.
    pub redelivery: bool,
    /// The status of the App's answer; 0 when there was none.
    pub status: u16,
}

#[derive(Debug, Default)]
pub(crate) struct HookLog {
    /// The oldest attempt first.
    attempts: Vec<LoggedDelivery>,
    url: Option<Url>,
    /// Redeliveries that were asked for while the App had no URL.
    waiting: Vec<Delivery>,
    settings: HookSettings,
    is_unsigned: bool,
}

/// How the App's webhook is set up on GitHub.
#[derive(Debug, Clone)]
pub struct HookSettings {
    /// The address that GitHub shows while [`World::set_webhook_url`] wasn't called.
    pub url: String,
    pub content_type: String,
    pub verifies_certificates: bool,
    pub events: Vec<String>,
}

impl Default for HookSettings {
    fn default() -> Self {
        let events =
            ["pull_request", "push", "check_run", "check_suite", "merge_group", "repository"];
        Self {
            url: "https://relay.example.com/github/webhook".to_owned(),
            content_type: "json".to_owned(),
            verifies_certificates: true,
            events: events.map(str::to_owned).to_vec(),
        }
    }
}

impl World {
    pub fn hook_settings(&self) -> HookSettings {
        self.lock().hook_log.settings.clone()
    }

    pub fn set_hook_settings(&self, settings: HookSettings) {
        self.lock().hook_log.settings = settings;
    }

    /// Takes the webhook's secret away, so that GitHub doesn't sign it.
    pub fn remove_hook_secret(&self) {
        self.lock().hook_log.is_unsigned = true;
    }

    /// Sets the App's webhook URL, to which redeliveries are posted.
    pub fn set_webhook_url(&self, url: Url) {
        self.lock().hook_log.url = Some(url);
    }

    /// Adds an attempt to the log; returns its number.
    pub fn log_delivery(
        &self,
        delivery: &Delivery,
        delivered_at: Timestamp,
        redelivery: bool,
        status: u16,
    ) -> u64 {
        let mut inner = self.lock();
        let id = inner.next_id();
        let delivery = delivery.clone();
        let attempt = LoggedDelivery { id, delivery, delivered_at, redelivery, status };
        inner.hook_log.attempts.push(attempt);
        id
    }

    /// All attempts, the oldest first.
    pub fn delivery_log(&self) -> Vec<LoggedDelivery> {
        self.lock().hook_log.attempts.clone()
    }

    /// The redeliveries that were asked for since the last call of this, if the App has no webhook
    /// URL: the caller delivers and logs them.
    pub fn take_redeliveries(&self) -> Vec<Delivery> {
        std::mem::take(&mut self.lock().hook_log.waiting)
    }
}

impl State {
    /// Posts a webhook to the App's URL and logs the attempt. `None` when nobody answered.
    ///
    /// # Panics
    /// When the App has no webhook URL.
    pub async fn deliver(&self, delivery: &Delivery, redelivery: bool) -> Option<Answer> {
        let url = self.world.lock().hook_log.url.clone().expect("the App's URL was set");
        let answer = delivery.send(&reqwest::Client::new(), &url).await.ok();
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        self.world.log_delivery(delivery, self.clock.now(), redelivery, status);
        answer
    }
}

pub(crate) fn routes() -> Router<Arc<State>> {
    Router::new()
        .route("/app/hook/config", get(config))
        .route("/app/hook/deliveries", get(list))
        .route("/app/hook/deliveries/{id}/attempts", post(redeliver))
}

fn attempt_json(attempt: &LoggedDelivery) -> Value {
    let status = match attempt.status {
        0 => "failed to connect".to_owned(),
        200..300 => "OK".to_owned(),
        status => format!("Invalid HTTP Response: {status}"),
    };
    json!({
        "id": attempt.id, "guid": attempt.delivery.id, "delivered_at": attempt.delivered_at,
        "redelivery": attempt.redelivery, "duration": 0.1, "status": status,
        "status_code": attempt.status, "event": attempt.delivery.event, "action": null,
        "installation_id": null, "repository_id": null, "throttled_at": null,
    })
}

async fn config(Shared(state): Shared<Arc<State>>, headers: HeaderMap) -> ApiResult {
    state.world.check_app(&headers, state.clock.now())?;
    let inner = state.world.lock();
    let HookSettings { url, content_type, verifies_certificates, .. } = &inner.hook_log.settings;
    let url = inner.hook_log.url.as_ref().map_or_else(|| url.clone(), Url::to_string);
    let insecure_ssl = if *verifies_certificates { "0" } else { "1" };
    let mut body =
        json!({ "content_type": content_type, "insecure_ssl": insecure_ssl, "url": url });
    if !inner.hook_log.is_unsigned {
        body["secret"] = json!("********");
    }
    Ok(Json(body).into_response())
}

async fn list(Shared(state): Shared<Arc<State>>, headers: HeaderMap, uri: Uri) -> ApiResult {
    state.world.check_app(&headers, state.clock.now())?;
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let asked =
        |name: &str| query.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str());
    let per_page = asked("per_page").and_then(|text| text.parse().ok()).unwrap_or(30);
    let per_page = usize::clamp(per_page, 1, 100);
    let from = match asked("cursor") {
        None => u64::MAX,
        Some(cursor) => cursor
            .strip_prefix("v1_")
            .and_then(|id| id.parse().ok())
            .ok_or_else(|| refusal(422, "Invalid cursor"))?,
    };
    let kept_since = state.clock.now() - KEPT;
    let inner = state.world.lock();
    let is_listed =
        |attempt: &&LoggedDelivery| attempt.id <= from && attempt.delivered_at >= kept_since;
    let mut older = inner.hook_log.attempts.iter().rev().filter(is_listed);
    let page: Vec<Value> = older.by_ref().take(per_page).map(attempt_json).collect();
    let next = older.next().map(|attempt| {
        let origin = state.origin();
        format!(
            "<{origin}/app/hook/deliveries?per_page={per_page}&cursor=v1_{}>; rel=\"next\"",
            attempt.id
        )
    });
    let mut response = Json(page).into_response();
    if let Some(next) = next.and_then(|next| next.parse().ok()) {
        response.headers_mut().insert(header::LINK, next);
    }
    Ok(response)
}

async fn redeliver(
    Shared(state): Shared<Arc<State>>,
    Path(id): Path<u64>,
    headers: HeaderMap,
) -> ApiResult {
    state.world.check_app(&headers, state.clock.now())?;
    let kept_since = state.clock.now() - KEPT;
    let mut inner = state.world.lock();
    let log = &mut inner.hook_log;
    let is_kept = |it: &&LoggedDelivery| it.id == id && it.delivered_at >= kept_since;
    let found = log.attempts.iter().find(is_kept);
    let delivery = found.ok_or_else(|| refusal(404, "Not Found"))?.delivery.clone();
    if log.url.is_none() {
        log.waiting.push(delivery);
    } else {
        drop(inner);
        tokio::spawn(async move { state.deliver(&delivery, true).await });
    }
    Ok(accepted())
}

fn accepted() -> Response {
    (StatusCode::ACCEPTED, Json(json!({}))).into_response()
}
