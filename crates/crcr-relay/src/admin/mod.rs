//! What operators see and do, and what they may try out before they start a relay.

pub mod deliveries;
pub(crate) mod deliveries_endpoint;
pub(crate) mod operators;
mod pages;
pub mod preflight;
pub(crate) mod repositories;
pub(crate) mod wrong_tokens;

/// Where an operator logs in, on the public listener.
pub(crate) const LOGIN: &str = "/crcr/login";
/// Where a browser goes from there.
pub(crate) const HOME: &str = "/crcr/deliveries";
