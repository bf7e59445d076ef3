//! The HTTP server: listeners, connections, routes, responses.

pub(crate) mod connections;
pub(crate) mod http_response;
pub mod lambda;
pub(crate) mod metrics;
pub mod router;
pub mod serve;
