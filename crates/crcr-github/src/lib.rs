//! GitHub over HTTP. Every base URL is a parameter, so that a test or GitHub Enterprise is only
//! another address.

mod error;
mod secure_url;

pub use app::App;
pub use error::Error;
pub use secure_url::{SecureUrl, SecureUrlError, is_loopback};

pub mod app;
pub mod artifact;
pub mod checks;
pub mod comments;
pub mod contents;
pub mod dispatches;
pub mod http;
pub mod jwks;
pub mod lookup;
pub mod oidc;
pub mod runs;
pub mod runs_artifacts;
pub mod sts;
