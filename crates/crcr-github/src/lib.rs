//! GitHub over HTTP. Base addresses are arguments, so that tests and GitHub Enterprise Server only need another
//! address.
//!
//! The REST API has one client, on octocrab ([`app`], [`lookup`], [`runs_artifacts`]). On reqwest
//! alone are the services that aren't part of that API: the token endpoint of a job ([`oidc`]), the
//! artifact service ([`artifact`]) and the issuer's keys ([`jwks`]).

mod error;
mod rest;
mod secure_url;

pub use app::GithubApp;
pub use error::{ClientSetupError, GithubError};
pub use rest::Transport;
pub use secure_url::{SecureUrl, SecureUrlError, is_loopback};

pub mod app;
pub mod artifact;
pub mod branches_pulls;
pub mod checks;
pub mod comments;
pub mod contents;
pub mod dispatches;
pub mod hook_deliveries;
pub mod http;
pub mod job_logs;
pub mod jwks;
pub mod lookup;
pub mod oidc;
pub mod runs;
pub mod runs_artifacts;
pub mod server;

use serde::{Deserialize, Deserializer};

/// Reads `null` as the default: GitHub's schemas call many fields nullable.
pub fn null_as_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
