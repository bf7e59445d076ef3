//! `POST /github/callback`: verifies the caller, validates the report, and takes one step in the
//! life of a job.

pub mod auth;
mod dispatched_job;
pub mod dry_dispatch;
mod endpoint;
pub(crate) mod kept_trust;
mod response;
pub(crate) mod self_report;
pub(crate) mod token;
mod verified_report;

pub(crate) use self::endpoint::handle;
