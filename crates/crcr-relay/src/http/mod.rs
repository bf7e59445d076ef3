//! The relay as an HTTP server: listeners, connections, paths, answers.

pub(crate) mod connections;
pub(crate) mod http_response;
pub(crate) mod metrics;
pub mod router;
pub mod serve;
