//! What CI leaves behind: JUnit reports.

pub mod junit;
