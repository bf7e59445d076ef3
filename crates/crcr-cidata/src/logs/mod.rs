//! Logs of jobs: which line explains why a job failed.
//!
//! A log is read once, from its start to its end, in memory that doesn't depend on its size:
//! [`cleaner`] strips timestamps and escape sequences from a chunk, [`classifier`] finds the lines that
//! rules match anywhere, [`evidence`] weighs lines by where they stand and what they look like,
//! [`weighed`] says which of them explain the failure, and [`diff`] knows which other runs of the same
//! job have, too.

mod candidate;
mod classifier;
mod cleaner;
mod diff;
mod evidence;
mod features;
mod fixtures;
mod import;
mod line_marks;
mod line_shape;
mod literal_search;
mod literals;
mod packed;
mod rules;
mod sections;
mod stored;
mod test_output;
#[cfg(test)]
mod tests;
mod traceback;
mod unpack;
mod weighed;

use classifier::weighed_lines;
pub use classifier::{LineFeatures, classify, matching_rules};
pub use diff::Baseline;
pub use features::names as feature_names;
pub use fixtures::{
    FixtureOutcome, FixtureResult, LabelledLines, LabelledLog, labelled_lines, read_labels,
    try_fixture,
};
pub use import::{ImportedRules, import_rules};
pub use packed::{LogIndex, LogPacker, LogStep, LogTooLarge, MAX_PACKED_LOG, log_key, unpack_log};
pub use rules::{
    LAST_RESORT, LogRule, Pick, RuleFinding, RuleKind, RuleScope, RuleSet, STARTER_RULES,
};
pub use stored::{LogLine, LogPage, LogTextEnd, StoredLog, StoredLogs};
pub use unpack::{LogSource, log_sources, unpacked};

pub(crate) use packed::PREFIX;
