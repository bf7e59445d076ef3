//! The Cross-Repository CI Relay server.

pub mod allowlist;
mod answer;
pub mod auth;
mod callback;
pub mod check;
pub mod config;
mod connections;
pub mod deliveries;
mod facts;
mod file;
mod handlers;
pub mod hud;
pub mod limits;
mod metrics;
mod operators;
mod payload;
mod planner;
pub mod queue;
mod receive;
pub mod records;
pub mod relay;
pub mod repositories;
pub mod results;
pub mod router;
mod secrets;
pub mod serve;
pub mod signature;
pub mod store;
mod token;
mod turns;
mod webhook;

pub use self::config::{Config, Problem};
pub use self::relay::{Relay, StartError};

#[cfg(test)]
mod tests;
