//! Data that CI jobs leave behind, as both its readers and the results database know it.

pub mod codeowners;
pub mod ended_ci;
pub mod job_log;
pub mod pull_request;
pub mod quarantine;
pub mod stable_name;
pub mod test_row;
pub mod test_run;
pub mod webhook;
pub mod workflow;
