//! The facts that dashboards, rates and reviews are computed from.

pub mod generate;
pub mod sqlite;

use jiff::Timestamp;

/// Which facts: of a time span, and of one downstream repository when it is named.
#[derive(Debug, Clone)]
pub struct Window {
    /// From this time on.
    pub from: Timestamp,
    /// Before this time.
    pub to: Timestamp,
    /// One repository, compared without case; else all.
    pub repo: Option<String>,
}
