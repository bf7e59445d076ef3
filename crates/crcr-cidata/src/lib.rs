//! Data that CI jobs produce: JUnit reports, and what a job knew of them.

pub mod job_manifest;
pub mod junit;
