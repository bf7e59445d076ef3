//! The lines of a log that may explain its failure, before they are weighed.

use super::cleaner::TestOutput;
use super::line_marks::LineMarks;
use super::traceback::TracebackPart;

/// What is kept of a line beside the one that was found.
pub(super) const MAX_CONTEXT_LINE_BYTES: usize = 500;
/// What is kept of the line itself.
pub(super) const MAX_LINE_BYTES: usize = 4096;

/// A line that may explain the failure.
pub(super) struct LineCandidate {
    /// Counts the segments of the log.
    pub(super) ordinal: u64,
    pub(super) line_number: u64,
    pub(super) marks: LineMarks,
    pub(super) is_red: bool,
    pub(super) output: TestOutput,
    pub(super) is_after_blank: bool,
    pub(super) shape: u64,
    /// `None` while the line is in the present chunk: most lines are dropped before it ends.
    pub(super) text: Option<Box<CandidateText>>,
}

pub(super) struct CandidateText {
    /// At most `MAX_LINE_BYTES` of it.
    pub(super) line: Box<[u8]>,
    /// What it is in a Python traceback.
    pub(super) traceback: Option<TracebackPart>,
    pub(super) is_cut: bool,
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
}

impl LineCandidate {
    pub(super) fn text(&self) -> &CandidateText {
        self.text.as_ref().expect("lines are copied before they are weighed")
    }
}
