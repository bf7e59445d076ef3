//! The App's log of webhook deliveries, and asking GitHub to deliver one again.
//!
//! <https://docs.github.com/en/rest/apps/webhooks>

use http::{HeaderMap, Method, header};
use jiff::Timestamp;
use serde::Deserialize;
use url::Url;

use crate::app::GithubApp;
use crate::error::GithubError;
use crate::null_as_default;
use crate::rest::{RestRequest, encoded, response_date};

/// As many attempts as GitHub lists at once.
pub const DELIVERIES_PER_PAGE: usize = 100;
/// The longest cursor that is sent back to GitHub, in bytes.
const MAX_CURSOR: usize = 256;

/// One attempt to deliver a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HookDelivery {
    /// The number of this attempt to deliver.
    pub id: u64,
    /// `X-GitHub-Delivery`, the same for all attempts.
    pub guid: String,
    pub delivered_at: Timestamp,
    /// Whether somebody asked for this attempt.
    #[serde(default, deserialize_with = "null_as_default")]
    pub redelivery: bool,
    /// Such as `OK` or `failed to connect`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: String,
    /// The status of the App's answer; 0 when there was none.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status_code: u16,
    #[serde(default, deserialize_with = "null_as_default")]
    pub event: String,
}

impl HookDelivery {
    pub fn is_accepted(&self) -> bool {
        (200..300).contains(&self.status_code)
    }
}

/// A part of the log, the newest attempt first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookDeliveryPage {
    pub deliveries: Vec<HookDelivery>,
    /// The cursor of the page with older attempts; `None` at the log's end.
    pub next: Option<String>,
    /// By GitHub's clock.
    pub read_at: Option<Timestamp>,
}

impl GithubApp {
    /// The newest attempts, or those from `cursor` on; at most [`DELIVERIES_PER_PAGE`].
    pub async fn hook_deliveries(
        &self,
        cursor: Option<&str>,
    ) -> Result<HookDeliveryPage, GithubError> {
        let mut path = format!("/app/hook/deliveries?per_page={DELIVERIES_PER_PAGE}");
        if let Some(cursor) = cursor {
            path = format!("{path}&cursor={}", encoded(cursor));
        }
        let request = RestRequest::get(path);
        let response = self.send_as_app(&request).await?;
        let next = next_cursor(response.headers());
        let read_at = response_date(response.headers());
        let deliveries = self.client().read_json(&request, response).await?;
        Ok(HookDeliveryPage { deliveries, next, read_at })
    }

    /// Has GitHub deliver the webhook of attempt `id` again, with the same GUID.
    pub async fn redeliver(&self, id: u64) -> Result<(), GithubError> {
        let path = format!("/app/hook/deliveries/{id}/attempts");
        let request = RestRequest::new(Method::POST, path);
        let response = self.send_as_app(&request).await?;
        self.client().confirm(&request, response).await
    }
}

/// The cursor in the `Link` header's address of the next page.
fn next_cursor(headers: &HeaderMap) -> Option<String> {
    let links = headers.get(header::LINK)?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let address = next.split_once('<')?.1.split_once('>')?.0;
    let address = Url::parse(address).ok()?;
    let (_, cursor) = address.query_pairs().find(|(name, _)| name == "cursor")?;
    (!cursor.is_empty() && cursor.len() <= MAX_CURSOR).then(|| cursor.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(link: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::LINK, link.parse().unwrap());
        next_cursor(&headers)
    }

    #[test]
    fn only_the_link_to_the_next_page_has_the_cursor() {
        let link = |cursor: &str, rel: &str| {
            format!(
                "<https://api.github.com/app/hook/deliveries?per_page=2&cursor={cursor}>; \
                 rel=\"{rel}\""
            )
        };
        let both = format!("{}, {}", link("v1_9", "prev"), link("v1_1%2F2", "next"));
        assert_eq!(cursor(&both).as_deref(), Some("v1_1/2"));
        assert_eq!(cursor(&link("v1_9", "prev")), None);
        assert_eq!(cursor(&link("", "next")), None);
        assert_eq!(cursor(&link(&"x".repeat(MAX_CURSOR + 1), "next")), None);
        assert_eq!(cursor("<not an address>; rel=\"next\""), None);
        assert_eq!(next_cursor(&HeaderMap::new()), None);
    }
}
