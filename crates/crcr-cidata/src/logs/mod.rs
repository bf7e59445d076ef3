//! Logs of jobs: which line explains why a job failed.
//!
//! A log is read once, from its start to its end, in memory that doesn't depend on its size:
//! [`cleaner`] strips timestamps and escape sequences from a chunk, [`classifier`] finds the lines
//! that rules match, and [`diff`] those that a green run of the same job never had.

mod classifier;
mod cleaner;
mod diff;
mod fixtures;
mod literals;
mod packed;
mod rules;
#[cfg(test)]
mod tests;
mod unpack;

pub use classifier::{classify, matching_rules};
pub use diff::Baseline;
pub use fixtures::{FixtureOutcome, LabelledLog, read_labels, try_fixture};
pub use packed::{LogPacker, LogTooLarge, MAX_LOG, MAX_PACKED_LOG, log_key, unpack_log};
pub use rules::{LAST_RESORT, LogRule, Pick, RuleFinding, RuleKind, RuleSet, STARTER_RULES};
pub use unpack::unpacked;

pub(crate) use packed::PREFIX;
