//! The repository that a webhook is of.

use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct WebhookRepository {
    /// `owner/repo`.
    pub(crate) full_name: String,
}
