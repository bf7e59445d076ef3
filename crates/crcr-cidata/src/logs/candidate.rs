//! The lines of a log that may explain its failure, before they are weighed.

use super::cleaner::TestOutput;
use super::line_marks::LineMarks;
use super::traceback::TracebackPart;

/// What is kept of a line beside the one that was found.
pub(crate) const MAX_CONTEXT_LINE_BYTES: usize = 500;
/// What is kept of the line itself.
pub(crate) const MAX_LINE_BYTES: usize = 4096;

/// A line that may explain the failure.
pub(crate) struct LineCandidate {
    /// Counts the segments of the log.
    pub(crate) ordinal: u64,
    pub(crate) line_number: u64,
    pub(crate) marks: LineMarks,
    pub(crate) is_red: bool,
    pub(crate) output: TestOutput,
    pub(crate) is_after_blank: bool,
    pub(crate) shape: u64,
    /// `None` while the line is in the present chunk: most lines are dropped before it ends.
    pub(crate) text: Option<Box<CandidateText>>,
}

pub(crate) struct CandidateText {
    /// At most `MAX_LINE_BYTES` of it.
    pub(crate) line: Box<[u8]>,
    /// What it is in a Python traceback.
    pub(crate) traceback: Option<TracebackPart>,
    pub(crate) is_cut: bool,
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
}

impl LineCandidate {
    pub(crate) fn text(&self) -> &CandidateText {
        self.text.as_ref().expect("lines are copied before they are weighed")
    }
}

impl CandidateText {
    /// Whether Ansible went on after it, as the task may fail.
    pub(crate) fn is_ignored_by_ansible(&self) -> bool {
        self.after.first().is_some_and(|next| next == "...ignoring")
    }
}

/// Keeps the most promising lines, of equal ones the first and the last, in the order of the log. Returns the others.
pub(crate) fn keep_most_promising(
    pool: &mut Vec<LineCandidate>,
    first: usize,
    last: usize,
) -> Vec<LineCandidate> {
    let promise = |line: &LineCandidate| std::cmp::Reverse(line.marks.promise(line.is_red));
    if first < pool.len() {
        pool.select_nth_unstable_by_key(first, |line| (promise(line), line.ordinal));
    }
    let mut rest = pool.split_off(first.min(pool.len()));
    let mut dropped = vec![];
    if last < rest.len() {
        let key = |line: &LineCandidate| (promise(line), std::cmp::Reverse(line.ordinal));
        rest.select_nth_unstable_by_key(last, key);
        dropped = rest.split_off(last);
    }
    pool.extend(rest);
    pool.sort_unstable_by_key(|line| line.ordinal);
    dropped
}
