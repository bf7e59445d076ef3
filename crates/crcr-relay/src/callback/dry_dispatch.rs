//! The report of a run that answers a dry dispatch, which `crcr doctor downstream` sent in the relay's
//! place. The relay says whether it would believe the run, and records nothing.

use crcr_domain::RepoName;
use crcr_domain::protocol::callback::Callback;
use crcr_domain::protocol::dry_dispatch;
use crcr_domain::protocol::identity::CallerIdentity;
use jiff::Timestamp;

use super::token::CallbackKeys;
use crate::config::{SettingProblem, dispatch_settings};
use crate::relay::Relay;

/// What a dry dispatch holds so that its run can report.
#[derive(Debug)]
pub struct DryDispatchProof {
    pub callback_token: String,
    /// Where to, if the settings name it.
    pub callback_url: Option<String>,
}

/// The proof for a dry dispatch to `repo`, with the settings of the relay; `None` if they have no key.
pub fn proof(
    lookup: &dyn Fn(&str) -> Option<String>,
    delivery: &str,
    repo: &RepoName,
) -> Result<Option<DryDispatchProof>, SettingProblem> {
    let settings = dispatch_settings(lookup)?;
    let callback_token = CallbackKeys::new(&settings.signing_secrets).sign_dry(delivery, repo);
    let callback_url = settings.callback_url;
    Ok(callback_token.map(|callback_token| DryDispatchProof { callback_token, callback_url }))
}

/// Whether the report is of a run that a dry dispatch started, sent by somebody with this relay's key.
/// The level doesn't matter: it is tried before the repository is on the allowlist.
pub(crate) fn is_proven(
    relay: &Relay,
    identity: &CallerIdentity,
    callback: &Callback,
    now: Timestamp,
) -> bool {
    let delivery = &callback.delivery;
    let token = callback.callback_token.as_deref().unwrap_or_default();
    let event = identity.github().and_then(|claims| claims.event_name.as_deref());
    dry_dispatch::is_dry(delivery)
        && !callback.kind.is_self_report()
        && event.is_none_or(|event| event == "repository_dispatch")
        && relay.keys.verify_dry(token, delivery, &identity.repository, now)
}
