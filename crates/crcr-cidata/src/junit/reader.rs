//! A report → tests.

use std::io::{BufRead as _, Read};
use std::sync::Arc;

use crcr_domain::ci_data::test_run::TestCase;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::elements::ElementReader;
use super::findings::JunitRule;
use super::go_json;
use super::input::{AfterText, ReportText};
use super::other_files::OtherFile;
use super::summary::{JunitError, JunitSummary, ReportEnd, SuiteElement, read_error};

/// Reads a report and passes each test to `on_case` as soon as it ends, and each suite that failed
/// outside its tests. The format is JUnit, NUnit 3, xUnit.net, TRX or the lines of `go test -json`.
///
/// An element that repeats a test isn't merged with the earlier ones; [`TestReport`](super::TestReport)
/// does that. The memory that is needed doesn't depend on the size of the report, except for TRX, where
/// the classes of the tests are at the end.
pub fn read_cases(
    input: impl Read,
    on_case: impl FnMut(TestCase, &SuiteElement),
) -> Result<JunitSummary, JunitError> {
    let mut text = ReportText::new(input);
    let start = match text.fill_buf() {
        Ok(start) => start.trim_ascii_start(),
        Err(error) => return Err(read_error(&text, error)),
    };
    let is_xml = matches!(start.first(), Some(b'<') | None);
    // Output in its lines may look like that of another tool.
    let is_go = !is_xml && go_json::begins_below(start);
    let other = match is_xml || is_go {
        true => None,
        false => OtherFile::of_start(&String::from_utf8_lossy(start)),
    };
    match other {
        Some(other) => Err(JunitError::OtherFile(other)),
        None if is_go => go_json::read(text, on_case),
        None => read_xml(text, on_case),
    }
}

fn read_xml<R: Read>(
    text: ReportText<R>,
    on_case: impl FnMut(TestCase, &SuiteElement),
) -> Result<JunitSummary, JunitError> {
    let mut xml = Reader::from_reader(text);
    let mut elements = ElementReader::new(on_case);
    let mut tag = Vec::new();
    let ending = loop {
        let text = xml.get_mut();
        // quick-xml would hold the whole text in memory.
        match elements.read_text(text) {
            Ok(AfterText::Markup) => {}
            Ok(AfterText::End) => break ReportEnd::End,
            Ok(AfterText::CutSection) => break ReportEnd::Cut,
            Err(error) => return Err(read_error(text, error)),
        }
        let line = text.line();
        tag.clear();
        match xml.read_event_into(&mut tag) {
            Ok(Event::Start(tag)) => elements.open(&tag, line)?,
            Ok(Event::Empty(tag)) => {
                elements.open(&tag, line)?;
                elements.close()?;
            }
            Ok(Event::End(_)) => elements.close()?,
            Ok(Event::DocType(_)) => elements.has_document_type = true,
            Ok(_) => {}
            Err(quick_xml::Error::Io(error)) => {
                let kind = error.kind();
                let error = Arc::into_inner(error).unwrap_or_else(|| kind.into());
                return Err(read_error(xml.get_ref(), error));
            }
            Err(quick_xml::Error::Syntax(_)) if xml.get_ref().is_at_end() => break ReportEnd::Cut,
            Err(error) => break ReportEnd::Malformed(line, error),
        }
    };
    let text = xml.get_ref();
    if let Some(line) = text.invalid_line() {
        let message = "bytes that aren't text in the report's encoding are replaced";
        elements.findings.add(JunitRule::Encoding, line, message);
    }
    if let Some(encoding) = text.unknown_encoding() {
        let message =
            format_args!("the encoding `{encoding}` isn't known; the report is read as UTF-8");
        elements.findings.add(JunitRule::Encoding, 1, message);
    }
    elements.finish(ending, &tag, text.line())
}
