//! Data that CI produces: JUnit reports, logs and webhooks, and where they are kept.

pub mod job_manifest;
pub mod junit;
pub mod logs;
pub mod test_names;
pub mod test_rows;
pub mod webhook_archive;
