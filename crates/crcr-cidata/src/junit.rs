//! Parses JUnit reports as a stream; memory use depends on the largest element only.
//!
//! There is no standard. This accepts the output of pytest, surefire, gtest, Bazel and similar tools. Only
//! XML's five predefined entities are expanded, and no other file is read.

use std::io::BufRead;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// Maximum nesting of elements.
const MAX_DEPTH: usize = 128;
/// In bytes. Longer failure texts are cut.
const MAX_TEXT: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestVerdict {
    Failure,
    Error,
    Skipped,
    /// It passed, possibly after a re-run.
    Success,
}

impl TestVerdict {
    /// If a test has several results, the one with the highest rank counts.
    fn rank(self) -> u8 {
        match self {
            Self::Failure => 3,
            Self::Error => 2,
            Self::Skipped => 1,
            Self::Success => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestCase {
    /// Empty if the report has none.
    pub name: String,
    /// A class or a dotted path.
    pub classname: Option<String>,
    pub file: Option<String>,
    pub verdict: TestVerdict,
    /// The `message` of the result element, or its text (at most 4 KiB).
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportEnd {
    Complete,
    /// The report ends early: its writer crashed, or the caller's limit was reached.
    Truncated,
}

#[derive(Debug, thiserror::Error)]
pub enum JunitError {
    #[error("it isn't a JUnit report: it starts with `<{0}>` instead of `<testsuites>`")]
    OtherRoot(String),
    #[error("it contains no XML")]
    Empty,
    #[error("its elements are nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Invalid XML or UTF-8, or an I/O error.
    #[error("it is invalid at byte {at}: {source}")]
    Broken { at: u64, source: quick_xml::Error },
}

/// Reads a report and passes each test to `on_case`.
///
/// A truncated report yields its complete tests and [`ReportEnd::Truncated`]. An invalid one yields the
/// tests before the error.
pub fn read(
    input: impl BufRead,
    mut on_case: impl FnMut(TestCase),
) -> Result<ReportEnd, JunitError> {
    let mut reader = Reader::from_reader(input);
    let mut buffer = Vec::new();
    let mut state = JunitParser::default();
    loop {
        buffer.clear();
        let event = match reader.read_event_into(&mut buffer) {
            Ok(event) => event,
            // The file ends within a tag, comment or section.
            Err(quick_xml::Error::Syntax(_)) if state.seen_root => return Ok(ReportEnd::Truncated),
            Err(source) => return Err(JunitError::Broken { at: reader.error_position(), source }),
        };
        match event {
            Event::Start(tag) => state.open(&tag)?,
            Event::Empty(tag) => {
                state.open(&tag)?;
                state.close().into_iter().for_each(&mut on_case);
            }
            Event::End(_) => state.close().into_iter().for_each(&mut on_case),
            Event::Text(text) => state.text(&text),
            Event::CData(text) => state.text(&text),
            Event::GeneralRef(name) => match name.resolve_char_ref() {
                Ok(Some(c)) => state.text(c.encode_utf8(&mut [0; 4])),
                _ => {
                    let known = quick_xml::escape::resolve_predefined_entity(&name);
                    state.text(known.unwrap_or_default());
                }
            },
            Event::Eof if !state.seen_root => return Err(JunitError::Empty),
            Event::Eof if state.depth > 0 => return Ok(ReportEnd::Truncated),
            Event::Eof => return Ok(ReportEnd::Complete),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

#[derive(Default)]
struct JunitParser {
    depth: usize,
    seen_root: bool,
    /// The current test and the depth of its element.
    case: Option<(TestCase, usize)>,
    /// The verdict, `message` and text of the current result element.
    child: Option<(TestVerdict, Option<String>, String)>,
}

impl JunitParser {
    fn open(&mut self, tag: &BytesStart<'_>) -> Result<(), JunitError> {
        let name = tag.local_name();
        let name: &str = name.as_ref();
        if !self.seen_root && !matches!(name, "testsuites" | "testsuite" | "testcase") {
            return Err(JunitError::OtherRoot(name.chars().take(40).collect()));
        }
        self.seen_root = true;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(JunitError::TooDeep);
        }
        match &self.case {
            None if name == "testcase" => {
                let case = TestCase {
                    name: attribute(tag, "name").unwrap_or_default(),
                    classname: attribute(tag, "classname"),
                    file: attribute(tag, "file"),
                    verdict: TestVerdict::Success,
                    message: None,
                };
                self.case = Some((case, self.depth));
            }
            Some((_, depth)) if self.depth == depth + 1 => {
                let verdict = match name {
                    "failure" => TestVerdict::Failure,
                    "error" => TestVerdict::Error,
                    "skipped" => TestVerdict::Skipped,
                    // `rerun`, `rerunFailure`, `flakyFailure`, `system-out`: no verdict.
                    _ => return Ok(()),
                };
                self.child = Some((verdict, attribute(tag, "message"), String::new()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Closes the current element. Returns the test if it is complete.
    fn close(&mut self) -> Option<TestCase> {
        let closed = self.depth;
        self.depth = self.depth.saturating_sub(1);
        let (case, depth) = self.case.as_mut()?;
        if closed == *depth {
            return self.case.take().map(|(case, _)| case);
        }
        if closed == *depth + 1
            && let Some((verdict, message, text)) = self.child.take()
            && verdict.rank() > case.verdict.rank()
        {
            let message = message.filter(|message| !message.trim().is_empty());
            case.verdict = verdict;
            case.message =
                message.or_else(|| Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
        }
        None
    }

    fn text(&mut self, text: &str) {
        let Some((_, _, kept)) = &mut self.child else { return };
        let room = MAX_TEXT.saturating_sub(kept.len());
        let end = text.floor_char_boundary(room.min(text.len()));
        kept.push_str(&text[..end]);
    }
}

/// Unknown entities stay as they are.
fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = tag.attributes().flatten().find(|attribute| attribute.key.0 == name)?;
    Some(match found.normalized_value(XmlVersion::Implicit1_0) {
        Ok(value) => value.into_owned(),
        Err(_) => found.value.into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(xml: &str) -> (Vec<TestCase>, Result<ReportEnd, JunitError>) {
        let mut all = Vec::new();
        let ending = read(xml.as_bytes(), |case| all.push(case));
        (all, ending)
    }

    fn verdicts(xml: &str) -> Vec<TestVerdict> {
        cases(xml).0.into_iter().map(|case| case.verdict).collect()
    }

    #[test]
    fn pytest_report_is_parsed() {
        let (all, ending) = cases(
            r#"<?xml version="1.0" encoding="utf-8"?>
            <testsuites><testsuite name="pytest" tests="4">
              <testcase classname="test.test_ops.TestOps" name="test_add" file="test/test_ops.py" time="0.01"/>
              <testcase classname="c" name="test_mul"><failure message="assert 1 &lt; 0">Traceback &amp; more</failure></testcase>
              <testcase name="test_div"><error>no &#60;<![CDATA[device>]]></error></testcase>
              <testcase name="test_npu"><skipped type="pytest.skip" message="no NPU"/></testcase>
            </testsuite></testsuites>"#,
        );
        assert_eq!(ending.unwrap(), ReportEnd::Complete);
        let seen: Vec<_> = all
            .iter()
            .map(|case| (case.name.as_str(), case.verdict, case.message.as_deref()))
            .collect();
        assert_eq!(
            seen,
            [
                ("test_add", TestVerdict::Success, None),
                ("test_mul", TestVerdict::Failure, Some("assert 1 < 0")),
                ("test_div", TestVerdict::Error, Some("no <device>")),
                ("test_npu", TestVerdict::Skipped, Some("no NPU")),
            ]
        );
        assert_eq!(all[0].file.as_deref(), Some("test/test_ops.py"));
    }

    #[test]
    fn failure_outranks_error_and_skipped() {
        let xml = "<testsuite><testcase name='a'><skipped/><error/><failure/><error/></testcase>\
                   <testcase name='b'><error/><skipped/></testcase></testsuite>";
        assert_eq!(verdicts(xml), [TestVerdict::Failure, TestVerdict::Error]);
    }

    #[test]
    fn test_that_passed_after_a_rerun_is_a_success() {
        let xml = "<testsuite><testcase name='a'><rerun message='x'><failure/></rerun>\
                   <flakyFailure/><system-out>failure</system-out></testcase></testsuite>";
        assert_eq!(verdicts(xml), [TestVerdict::Success]);
    }

    #[test]
    fn truncated_report_yields_its_complete_tests() {
        let whole = "<testsuites><testsuite><testcase name='a'/><testcase name='b'/>\
                     <testcase name='c'><failure>x</failure></testcase></testsuite></testsuites>";
        assert_eq!(cases(whole).0.len(), 3);
        for cut in 14..whole.len() {
            let (all, ending) = cases(&whole[..cut]);
            assert!(all.len() <= 3);
            assert_eq!(ending.unwrap(), ReportEnd::Truncated, "{}", &whole[..cut]);
        }
    }

    #[test]
    fn other_files_are_rejected() {
        for (xml, told) in [
            ("<html></html>", "it starts with `<html>`"),
            ("", "contains no XML"),
            ("plain text", "contains no XML"),
            ("<testsuite><a></b></testsuite>", "invalid at byte"),
        ] {
            let error = cases(xml).1.unwrap_err().to_string();
            assert!(error.contains(told), "{xml}: {error}");
        }
        let deep = format!("<testsuite>{}", "<a>".repeat(200));
        assert!(matches!(cases(&deep).1.unwrap_err(), JunitError::TooDeep));
    }

    #[test]
    fn custom_entities_are_not_expanded() {
        let xml = r#"<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>
            <testsuite><testcase name="&b;"><failure>x&b;&f;</failure></testcase></testsuite>"#;
        let all = cases(xml).0;
        assert_eq!((all[0].name.as_str(), all[0].message.as_deref()), ("&b;", Some("x")));
    }

    #[test]
    fn long_failure_text_is_cut() {
        let xml = format!(
            "<testsuite><testcase name='a'><failure>{}</failure></testcase></testsuite>",
            "ö".repeat(5000)
        );
        let message = cases(&xml).0.remove(0).message.unwrap();
        assert!(message.len() <= MAX_TEXT && message.starts_with("öö"));
    }
}
