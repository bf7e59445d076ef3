//! Data that CI jobs produce: JUnit reports.

pub mod junit;
pub mod object_store;
