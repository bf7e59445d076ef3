//! The parts of a Python traceback. Its exception may have any name, so only its place tells what it is.

use std::sync::LazyLock;

use regex_automata::meta::Regex;

use super::cleaner::PROCESS_LABEL;
use super::features::line_regex;

/// Lines between a frame and the exception: the frame's source, which may have several lines, and the marks below it.
const MAX_LINES_OF_FRAME: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TracebackPart {
    Frame,
    Source,
    /// The exception: `subprocess.TimeoutExpired: …`.
    End,
}

/// What exception groups and pytest write before each line, and labels of processes.
static MARGIN: LazyLock<Regex> =
    LazyLock::new(|| line_regex(&format!(r"^(?:E   |INTERNALERROR> | *\| |{PROCESS_LABEL})")));
static FRAME: LazyLock<Regex> =
    LazyLock::new(|| line_regex(r#"^ +File ".+", line \d+(?:, in |$)"#));
static EXCEPTION: LazyLock<Regex> = LazyLock::new(|| line_regex(r"^ *[A-Za-z_][\w.<>]*(?:: |:?$)"));

/// What a line is. `before`: the lines before it, the nearest first.
pub(crate) fn traceback_part<'l>(
    line: &'l [u8],
    before: impl Iterator<Item = &'l [u8]>,
) -> Option<TracebackPart> {
    let (margin, text) = split_margin(line);
    if FRAME.is_match(text) {
        return Some(TracebackPart::Frame);
    }
    let mut least_indent = usize::MAX;
    for earlier in before.take(MAX_LINES_OF_FRAME) {
        let (its_margin, its_text) = split_margin(earlier);
        let its_indent = indent(its_text);
        if its_margin != margin {
            return None;
        }
        if FRAME.is_match(its_text) {
            let is_in_it = least_indent >= its_indent;
            return match indent(text) {
                deeper if is_in_it && deeper > its_indent => Some(TracebackPart::Source),
                less if is_in_it && less < its_indent && EXCEPTION.is_match(text) => {
                    Some(TracebackPart::End)
                }
                _ => None,
            };
        }
        least_indent = least_indent.min(its_indent);
    }
    None
}

/// The margin has a place for the indent of the text after it, so that `E     File` is indented by two.
fn split_margin(line: &[u8]) -> (&[u8], &[u8]) {
    line.split_at(MARGIN.find(line).map_or(0, |margin| margin.end()))
}

fn indent(text: &[u8]) -> usize {
    text.len() - text.trim_ascii_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<Option<TracebackPart>> {
        let lines: Vec<&[u8]> = text.lines().map(str::as_bytes).collect();
        let part = |at: usize| traceback_part(lines[at], lines[..at].iter().rev().copied());
        (0..lines.len()).map(part).collect()
    }

    #[test]
    fn exception_of_any_name_ends_a_traceback() {
        use TracebackPart::{End, Frame, Source};
        let plain = "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    \
            main()\n    ~~~~^^\n  File \"a.py\", line 2, in main\n  [Previous line repeated 9 more times]\n\
            torch._dynamo.exc.Unsupported: call_function\n  Explanation: no\ndone: 3\n";
        let [frame, source, end] = [Frame, Source, End].map(Some);
        let expected = vec![None, frame, source, source, frame, None, end, None, None];
        assert_eq!(parts(plain), expected);
        let group = "  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1, in f\n  \
            |     g()\n  | ExceptionGroup: errors (1 sub-exception)\n  +-+---------------- 1 ----------------\n    \
            | Traceback (most recent call last):\n    |   File \"a.py\", line 2, in g\n    | StopIteration\n";
        let expected = vec![None, frame, source, end, None, None, frame, end];
        assert_eq!(parts(group), expected);
        assert_eq!(
            parts("E     File \"a.py\", line 1\nE       x(\nE   SyntaxError: no"),
            [frame, source, end]
        );
    }

    #[test]
    fn place_in_ocaml_is_no_frame() {
        let text = "File \"src/a.ml\", line 3, characters 4-7:\n3 | let x = y\n        ^^^\nError: Unbound value y\n";
        assert_eq!(parts(text), [None; 4]);
    }
}
