//! The allowlist: which downstream repositories take part, and at which level.
//!
//! [`Allowlist::parse`] is the only parser of the file. The validator, the relay and the HUD share it.

pub mod diff;
pub mod edit;
mod entry;
pub mod level;
mod reader;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fmt;

use serde::Serialize;

use crate::allowlist::level::{CheckRunPolicy, Device, EventKind, EventSet, Level};
use crate::protocol::event::EventName;
use crate::repo::{Oncall, RepoName};
use crate::yaml::scalar;

pub use self::reader::{EntrySpans, MAX_BYTES, ParseOutcome};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllowlistEntry {
    pub repo: RepoName,
    pub level: Level,
    /// Set at L3 and only there.
    pub device: Option<Device>,
    pub oncalls: Vec<Oncall>,
    pub events: EventSet,
}

impl AllowlistEntry {
    /// Whether pull requests and pushes are dispatched to it. Nightly runs aren't dispatched: backends start
    /// them themselves.
    pub fn is_dispatched_to(&self) -> bool {
        self.level.receives_events() && self.events.contains(EventKind::PullRequest)
    }

    /// Whether it takes part in nightly runs only. It has nothing to show of pull requests.
    pub fn is_nightly_only(&self) -> bool {
        self.events.iter().all(|kind| kind == EventKind::Nightly)
    }

    /// Whether merge groups are dispatched to it: always if its check is required, otherwise if it subscribes
    /// to them.
    pub fn takes_merge_groups(&self) -> bool {
        self.events.contains(EventKind::MergeGroup)
            || (self.is_dispatched_to() && self.level.blocks_merge())
    }

    /// Whether such an event is dispatched to it.
    pub fn takes(&self, event: &EventName) -> bool {
        match event {
            EventName::MergeGroup => self.takes_merge_groups(),
            _ => self.is_dispatched_to(),
        }
    }

    /// When its results become a check run on the upstream pull request.
    pub fn check_run(&self) -> CheckRunPolicy {
        if self.events.contains(EventKind::PullRequest) {
            self.level.check_run()
        } else {
            CheckRunPolicy::Never
        }
    }
}

/// Contains each repository at most once. Allowlists are equal if they have the same effect, regardless of
/// order and spelling.
#[derive(Debug, Clone, Default)]
pub struct Allowlist {
    entries: Vec<AllowlistEntry>,
    index: HashMap<RepoName, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    #[error("`{0}` is listed already")]
    Listed(RepoName),
    /// An entry at L3 without a device, or at another level with one.
    #[error("`{0}` needs a device at L3, and at L3 only")]
    Device(RepoName),
}

impl Allowlist {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a repository. Fails if it is listed already, or if the device is missing at L3 or set at another
    /// level.
    pub fn insert(&mut self, entry: AllowlistEntry) -> Result<(), InsertError> {
        if entry.device.is_some() != (entry.level == Level::L3) {
            return Err(InsertError::Device(entry.repo));
        }
        match self.index.entry(entry.repo.clone()) {
            Slot::Occupied(_) => Err(InsertError::Listed(entry.repo)),
            Slot::Vacant(slot) => {
                slot.insert(self.entries.len());
                self.entries.push(entry);
                Ok(())
            }
        }
    }

    /// Names are compared without case.
    pub fn get(&self, repo: &RepoName) -> Option<&AllowlistEntry> {
        self.index.get(repo).map(|at| &self.entries[*at])
    }

    /// Index of a repository in [`Allowlist::iter`].
    pub fn position(&self, repo: &RepoName) -> Option<usize> {
        self.index.get(repo).copied()
    }

    /// In the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, AllowlistEntry> {
        self.entries.iter()
    }

    /// In the order of the file.
    pub fn at_level(&self, level: Level) -> impl Iterator<Item = &AllowlistEntry> {
        self.entries.iter().filter(move |entry| entry.level == level)
    }

    /// Each device once, in file order.
    pub fn devices(&self) -> Vec<&Device> {
        let mut seen = std::collections::HashSet::new();
        self.entries.iter().filter_map(|e| e.device.as_ref()).filter(|d| seen.insert(*d)).collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl PartialEq for Allowlist {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|entry| other.get(&entry.repo) == Some(entry))
    }
}

impl Eq for Allowlist {}

impl<'a> IntoIterator for &'a Allowlist {
    type Item = &'a AllowlistEntry;
    type IntoIter = std::slice::Iter<'a, AllowlistEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Writes a file that [`Allowlist::parse`] parses into an equal allowlist.
impl fmt::Display for Allowlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for level in Level::ALL {
            if self.at_level(level).next().is_none() {
                continue;
            }
            writeln!(f, "{level}:")?;
            if level != Level::L3 {
                for entry in self.at_level(level) {
                    write_entry(f, "  - ", entry)?;
                }
                continue;
            }
            for device in self.devices() {
                writeln!(f, "  {}:", scalar::quoted(device.as_str()))?;
                let members = self.iter().filter(|entry| entry.device.as_ref() == Some(device));
                for entry in members {
                    write_entry(f, "    ", entry)?;
                }
            }
        }
        Ok(())
    }
}

fn write_entry(f: &mut fmt::Formatter<'_>, lead: &str, entry: &AllowlistEntry) -> fmt::Result {
    let names: Vec<_> = entry.oncalls.iter().map(|name| scalar::quoted(name.as_str())).collect();
    let oncalls = format!("[{}]", names.join(", "));
    write!(f, "{lead}{}", entry.repo)?;
    if entry.events != EventSet::DEFAULT {
        let indent = " ".repeat(lead.len() + 2);
        let events: Vec<_> = entry.events.iter().map(EventKind::as_str).collect();
        writeln!(f, ":\n{indent}oncalls: {oncalls}\n{indent}events: [{}]", events.join(", "))
    } else if !entry.oncalls.is_empty() {
        writeln!(f, ": {oncalls}")
    } else if entry.level == Level::L3 {
        writeln!(f, ":")
    } else {
        writeln!(f)
    }
}

#[cfg(test)]
mod tests;
