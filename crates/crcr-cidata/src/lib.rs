//! Data that CI jobs produce: JUnit reports.

pub mod junit;
