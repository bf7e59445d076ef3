//! Words that tell, while a log is scanned, which of its lines are worth a second look.

use std::ops::BitOrAssign;

/// What the words of a line say about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LineMarks(u8);

impl LineMarks {
    /// It has a word of failure.
    pub(crate) const FAILURE: Self = Self(1);
    /// It has the form of an error message.
    pub(crate) const FORM: Self = Self(1 << 1);
    /// It has a text that a rule needs.
    pub(crate) const OF_A_RULE: Self = Self(1 << 2);
    pub(crate) const WARNING: Self = Self(1 << 3);
    /// A step, a command or a group of lines may start here.
    pub(crate) const SECTION_START: Self = Self(1 << 4);
    /// A step or a command may have ended here.
    pub(crate) const SECTION_END: Self = Self(1 << 5);
    /// It has a text that a specific rule needs.
    pub(crate) const OF_A_SPECIFIC_RULE: Self = Self(1 << 7);
    /// A part of a diff starts here.
    pub(crate) const HUNK: Self = Self(1 << 6);

    pub(crate) fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How promising a line is, before anything else is known about it.
    pub(crate) fn promise(self, is_red: bool) -> i8 {
        let points = |mark, points| if self.has(mark) { points } else { 0 };
        points(Self::FAILURE, 2)
            + points(Self::FORM, 3)
            + points(Self::OF_A_RULE, 2)
            + points(Self::HUNK, 2)
            - points(Self::WARNING, 3)
            + if is_red { 2 } else { 0 }
    }
}

impl BitOrAssign for LineMarks {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// In lower case, as ASCII case doesn't matter. A line feed stands for the start of the line.
pub(crate) const LINE_MARKS: &[(&str, LineMarks)] = {
    const FAILURE: LineMarks = LineMarks::FAILURE;
    const FORM: LineMarks = LineMarks::FORM;
    const START: LineMarks = LineMarks::SECTION_START;
    const END: LineMarks = LineMarks::SECTION_END;
    &[
        ("error", FAILURE),
        ("fail", FAILURE),
        ("fatal", FAILURE),
        ("exception", FAILURE),
        ("panic", FAILURE),
        ("abort", FAILURE),
        ("assert", FAILURE),
        ("traceback", FAILURE),
        ("denied", FAILURE),
        ("refused", FAILURE),
        ("not found", FAILURE),
        ("no such", FAILURE),
        ("timeout", FAILURE),
        ("time-out", FAILURE),
        ("timed out", FAILURE),
        ("killed", FAILURE),
        ("cannot", FAILURE),
        ("can't", FAILURE),
        ("could not", FAILURE),
        ("couldn't", FAILURE),
        ("does not", FAILURE),
        ("doesn't", FAILURE),
        ("don't", FAILURE),
        ("won't", FAILURE),
        ("not ok", FAILURE),
        ("unable", FAILURE),
        ("undefined", FAILURE),
        ("unexpected", FAILURE),
        ("expected", FAILURE),
        ("invalid", FAILURE),
        ("missing", FAILURE),
        ("mismatch", FAILURE),
        ("unresolved", FAILURE),
        ("unsupported", FAILURE),
        ("unrecognized", FAILURE),
        ("unknown", FAILURE),
        ("illegal", FAILURE),
        ("incorrect", FAILURE),
        ("violat", FAILURE),
        ("offense", FAILURE),
        ("conflict", FAILURE),
        ("segmentation", FAILURE),
        ("cancel", FAILURE),
        ("corrupt", FAILURE),
        ("broken", FAILURE),
        ("would reformat", FAILURE),
        ("not formatted", FAILURE),
        ("not installed", FAILURE),
        ("out of date", FAILURE),
        ("✗", FAILURE),
        ("✖", FAILURE),
        ("✘", FAILURE),
        ("×", FAILURE),
        ("●", FAILURE),
        ("error:", FORM),
        ("\nerror", FORM),
        ("\n[error]", FORM),
        ("\nfail", FORM),
        ("\nfatal", FORM),
        ("\ne   ", FORM),
        ("exception:", FORM),
        ("panicked", FORM),
        ("assertionerror", FORM),
        ("failed asserting", FORM),
        ("--- fail", FORM),
        ("not ok ", FORM),
        ("warning", LineMarks::WARNING),
        ("deprecat", LineMarks::WARNING),
        ("\n@@ -", LineMarks::HUNK),
        ("\n##[group]", START),
        ("\n##[endgroup]", START),
        ("\npost job cleanup.", START),
        ("\ntravis_fold:start", START),
        ("\n$ ", START),
        ("\n##[error]", END),
        ("\nthe command \"", END),
        ("\" exited with ", END),
        ("\nno output has been received", END),
        ("\nthe build has been terminated", END),
        ("\nyour build has been stopped", END),
        ("\nthe job exceeded the maximum", END),
        ("\nthe log length has exceeded", END),
        ("\nfinished: failure", END),
        ("build step ", END),
        ("process completed with exit code", END),
        ("\nerror: job failed: exit ", END),
        ("error: the command exited with status", END),
        ("\nexited with code exit status", END),
        ("exitcode '", END),
        (" exited with code '", END),
    ]
};

pub(crate) struct MarkedLine {
    pub(crate) segment: usize,
    pub(crate) marks: LineMarks,
    pub(crate) shape: u64,
}
