//! What a repository's files say of its tests.

use std::sync::Arc;

use crcr_domain::ci_data::codeowners::Codeowners;
use crcr_domain::ci_data::quarantine::QuarantineEntry;
use crcr_results::test_history::TestIdentity;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;

/// The files of a repository's default branch, as they were read last. Pages never wait for GitHub.
#[derive(Debug, Default)]
pub struct RepositoryFiles {
    /// `None` if the repository has none.
    pub codeowners: Option<Codeowners>,
    /// `None` if the repository has no quarantine file.
    pub quarantine: Option<Vec<QuarantineEntry>>,
    /// Why a file is missing here that may be there.
    pub problem: Option<String>,
    pub read_at: Timestamp,
}

impl RepositoryFiles {
    pub(crate) fn owners_of(&self, repository: &str, test: &TestIdentity) -> Vec<String> {
        let owners = self
            .codeowners
            .as_ref()
            .map(|owners| owners.owners_of_test(repository, test.file.as_deref(), &test.classname));
        owners.unwrap_or_default().to_vec()
    }

    /// The entry that covers the test; of several, the one that ends last.
    pub(crate) fn quarantine_of(&self, test: &TestIdentity, today: Date) -> Option<QuarantineView> {
        let entries = self.quarantine.iter().flatten();
        let variant = test.variant.as_deref();
        let covering = entries
            .filter(|entry| entry.matches(&test.suite, &test.classname, &test.name, variant));
        let last = covering.max_by_key(|entry| entry.expiry);
        last.map(|entry| QuarantineView::new(entry, today))
    }
}

/// Returns the files of a repository, if they were read.
pub type FilesOf = Box<dyn Fn(&str) -> Option<Arc<RepositoryFiles>> + Send + Sync>;

/// An entry of a quarantine file, as pages show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct QuarantineView {
    pub(crate) pattern: String,
    pub(crate) owner: String,
    pub(crate) reason: String,
    /// The last day, in UTC.
    pub(crate) expiry: Date,
    /// `run` or `skip`: what happens to the test meanwhile.
    pub(crate) mode: &'static str,
    pub(crate) is_expired: bool,
    pub(crate) days_left: i32,
}

impl QuarantineView {
    pub(crate) fn new(entry: &QuarantineEntry, today: Date) -> Self {
        let left = entry.expiry.since(today).map_or(0, |span| span.get_days());
        Self {
            pattern: entry.pattern.clone(),
            owner: entry.owner.to_string(),
            reason: entry.reason.clone(),
            expiry: entry.expiry,
            mode: entry.mode.as_str(),
            is_expired: entry.is_expired(today),
            days_left: left,
        }
    }

    /// When it ends, in words.
    pub(crate) fn end(&self) -> String {
        let verb = if self.is_expired { "ended" } else { "ends" };
        format!("{verb} on {} (UTC), {}", self.expiry, self.distance())
    }

    /// How far its last day is from today.
    pub(crate) fn distance(&self) -> String {
        match self.days_left {
            -1 => "yesterday".to_owned(),
            0 => "today".to_owned(),
            1 => "tomorrow".to_owned(),
            days if days < 0 => format!("{} days ago", -days),
            days => format!("in {days} days"),
        }
    }
}
