//! The quarantine: tests that may fail for a while without failing their job.
//!
//! The file is a list with one entry for each test. Every entry has an owner and ends after at most
//! [`MAX_DAYS`], so that a test isn't forgotten there.

mod reader;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

use jiff::civil::Date;
use serde::Serialize;

use super::test_run::{TestCase, TestResult, TestRowKind, full_name, name_with_variant};
use crate::diagnostic::{Findings, SourceText};
use crate::repo::Oncall;

/// A larger quarantine file is refused.
pub const MAX_BYTES: usize = 256 * 1024;
pub const MAX_ENTRIES: usize = 1000;
/// From today to the last day of an entry.
pub const MAX_DAYS: i32 = 30;
/// Longer names of tests aren't compared with patterns, which are shorter.
const MAX_NAME_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QuarantineMode {
    /// The test runs, and its failure is shown apart.
    Run,
    /// The test isn't to be run at all; see `crcr quarantine list`.
    Skip,
}

names! { QuarantineMode { Run "run", Skip "skip" } }

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineEntry {
    /// The full name of a test, see [`full_name`], with or without its variant, see [`name_with_variant`]. `*` stands for
    /// any characters, and all others for themselves.
    pub pattern: String,
    pub owner: Oncall,
    pub reason: String,
    /// The last day, in UTC.
    pub expiry: Date,
    pub mode: QuarantineMode,
    /// Where the entry is in the text, from its dash on.
    pub bytes: Range<usize>,
}

impl QuarantineEntry {
    pub fn is_expired(&self, today: Date) -> bool {
        self.expiry < today
    }

    /// Whether the pattern is of this test. One without a class also goes by its name alone, and a pattern without a
    /// variant is of all of them.
    pub fn matches(&self, suite: &str, classname: &str, name: &str, variant: Option<&str>) -> bool {
        names(suite, classname, name, variant).any(|name| matches_name(&self.pattern, &name))
    }
}

/// A file, with everything that is wrong with it.
#[derive(Debug, Clone)]
pub struct ParsedQuarantine {
    /// The text that all spans refer to.
    pub source: SourceText,
    pub entries: Vec<QuarantineEntry>,
    pub findings: Findings,
}

/// The entries that count on one day. Without any, nothing is quarantined.
#[derive(Debug, Default)]
pub struct Quarantine {
    entries: Vec<QuarantineEntry>,
    exact: HashMap<String, usize>,
    wildcards: Vec<usize>,
    expired: Vec<QuarantineEntry>,
}

impl Quarantine {
    pub fn new(entries: Vec<QuarantineEntry>, today: Date) -> Self {
        let (expired, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.is_expired(today));
        let (mut exact, mut wildcards) = (HashMap::new(), vec![]);
        for (at, entry) in entries.iter().enumerate() {
            if entry.pattern.contains('*') {
                wildcards.push(at);
            } else {
                exact.insert(entry.pattern.clone(), at);
            }
        }
        Self { entries, exact, wildcards, expired }
    }

    /// The entry that covers the failure of a test. A failure outside the tests, a crash and a test
    /// without an end are never covered: what they hide isn't known.
    pub fn covers(&self, case: &TestCase) -> Option<&QuarantineEntry> {
        if !is_coverable(case) {
            return None;
        }
        let exact = names_of(case).find_map(|name| self.exact.get(&name)).copied();
        let matching = |at: &&usize| pattern_matches(&self.entries[**at], case);
        let at = exact.or_else(|| self.wildcards.iter().find(matching).copied())?;
        Some(&self.entries[at])
    }

    /// The entry that would cover the failure if it hadn't ended.
    pub fn expired(&self, case: &TestCase) -> Option<&QuarantineEntry> {
        self.expired.iter().find(|entry| is_coverable(case) && pattern_matches(entry, case))
    }
}

fn pattern_matches(entry: &QuarantineEntry, case: &TestCase) -> bool {
    entry.matches(&case.suite, &case.classname, &case.name, case.variant.as_deref())
}

fn is_coverable(case: &TestCase) -> bool {
    case.kind == TestRowKind::Test
        && matches!(case.result, TestResult::Failure | TestResult::Error)
        && !case.name.is_empty()
}

fn names_of(case: &TestCase) -> impl Iterator<Item = String> {
    names(&case.suite, &case.classname, &case.name, case.variant.as_deref())
}

/// What a test goes by: the names with its variant first, as they say more.
fn names(
    suite: &str,
    classname: &str,
    name: &str,
    variant: Option<&str>,
) -> impl Iterator<Item = String> {
    let alone = classname.trim().is_empty().then(|| name.to_owned());
    let full = full_name(suite, classname, name);
    // A pattern without quotes has no blanks at its ends.
    let trimmed = (full.trim() != full).then(|| full.trim().to_owned());
    let names = [Some(full), alone, trimmed];
    let with_variant = variant.map(|variant| {
        names.clone().map(|name| name.map(|name| name_with_variant(name, Some(variant))))
    });
    with_variant.into_iter().flatten().chain(names).flatten()
}

fn matches_name(pattern: &str, name: &str) -> bool {
    if name.len() > MAX_NAME_BYTES {
        return false;
    }
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(name) = name.strip_prefix(start).and_then(|name| name.strip_suffix(end)) else {
        return false;
    };
    let mut left = name;
    middle.split('*').all(|part| match left.find(part) {
        Some(at) => {
            left = &left[at + part.len()..];
            true
        }
        None => false,
    })
}
