//! The HTTP server: listeners, connections, routes, responses.

pub(crate) mod body_memory;
pub(crate) mod connections;
pub(crate) mod http_response;
pub mod lambda;
pub(crate) mod metrics;
pub(crate) mod open_connections;
mod restarting;
pub mod router;
pub mod serve;
mod server_metrics;
