//! Data that CI produces: JUnit reports and webhooks, and where they are kept.

pub mod job_manifest;
pub mod junit;
pub mod object_store;
pub mod test_rows;
pub mod webhook_archive;
