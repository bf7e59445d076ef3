//! The Cross-Repository CI Relay server.

pub mod admin;
pub mod allowlist;
mod breaker;
pub mod callback;
mod compat;
pub mod config;
mod deciding_settings;
pub mod demotions;
mod facts;
pub mod http;
pub mod limits;
mod line_budget;
pub mod log_rules;
mod probes;
mod prune_clock;
mod queue;
pub mod reconcile;
pub mod relay;
mod repository_files;
pub mod repository_pins;
pub mod restore;
pub mod state_records;
mod traces;
mod update;
pub mod upstream_identity;
pub mod uptime;
mod usage;
mod warnings;
pub mod webhook;

pub use self::config::{Config, SettingProblem};
pub use self::queue::workers::{WorkerTimeouts, run as run_workers};
pub use self::relay::{Relay, StartError};
pub use self::traces::Traces;

#[cfg(test)]
mod tests;
