//! The operators' pages and actions, and the check of settings before a relay is started.

pub mod dead_letters;
pub mod deliveries;
pub(crate) mod deliveries_endpoint;
pub(crate) mod operators;
mod pages;
pub mod preflight;
pub(crate) mod repositories;
pub(crate) mod wrong_tokens;

pub(crate) const LOGIN: &str = "/crcr/login";
pub(crate) const HOME: &str = "/crcr/deliveries";
