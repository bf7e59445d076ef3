//! Findings as annotated source, for people.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{
    Annotation, AnnotationKind, Element, Group, Level, Origin, Renderer, Snippet,
};
use crcr_domain::diagnostic::{Diagnostic, Severity, SourceSpan};

use super::FindingsReport;

/// Source up to this many bytes is printed as one snippet; if two places are further apart, each gets its
/// own snippet.
const MAX_SNIPPET_BYTES: usize = 16 * 1024;
/// Context in a long line on either side of a place.
const CONTEXT_BYTES: usize = 120;

pub(crate) fn render(report: &FindingsReport<'_>, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let renderer = renderer.decor_style(DecorStyle::Ascii);
    let mut out = String::new();
    for found in report.findings.kept() {
        out.push_str(&renderer.render(&[group(report, found)]));
        out.push_str("\n\n");
    }
    let left_out = report.findings.left_out();
    if left_out > 0 {
        out.push_str(&format!("and {left_out} more\n"));
    }
    out.push_str(&format!("{}: {}\n", report.file, report.counts()));
    out
}

fn group<'a>(report: &'a FindingsReport<'a>, found: &'a Diagnostic) -> Group<'a> {
    let level = match found.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(found.message.as_str()).id(found.rule.code());
    let group = title.elements(snippets(report, found));
    match &found.help {
        Some(help) => group.element(Level::HELP.message(help.as_str())),
        None => group,
    }
}

/// The source of a finding: one snippet if its places are near each other, else one per place.
fn snippets<'a>(report: &'a FindingsReport<'a>, found: &'a Diagnostic) -> Vec<Element<'a>> {
    let source = report.source;
    let mut places = vec![(&found.span, AnnotationKind::Primary, found.label.as_str())];
    places
        .extend(found.related.iter().map(|r| (&r.span, AnnotationKind::Context, r.label.as_str())));
    let lines = |span: &SourceSpan| source.lines(span.start.line, span.end.line);
    let first = places.iter().map(|(span, ..)| lines(span).start).min().unwrap_or(0);
    let last = places.iter().map(|(span, ..)| lines(span).end).max().unwrap_or(0);
    if last - first <= MAX_SNIPPET_BYTES {
        let line = source.position(first).line;
        let shown = places.into_iter().map(|(span, kind, label)| {
            annotation(kind, span.bytes.start - first..span.bytes.end - first, label)
        });
        let text = &source.text()[first..last];
        let snippet = Snippet::source(text).path(report.file).line_start(line).annotations(shown);
        return vec![snippet.into()];
    }
    let piece = |(span, kind, label): (&SourceSpan, AnnotationKind, &'a str)| {
        let visible = visible_range(source.text(), &lines(span), &span.bytes);
        let end = span.bytes.end.min(visible.end);
        let place = span.bytes.start - visible.start..end - visible.start;
        Snippet::source(&source.text()[visible])
            .line_start(span.start.line)
            .annotation(annotation(kind, place, label))
    };
    let start = found.span.start;
    let origin = Origin::path(report.file).line(start.line).char_column(start.column);
    std::iter::once(origin.into()).chain(places.into_iter().map(|p| piece(p).into())).collect()
}

fn annotation<'a>(kind: AnnotationKind, place: Range<usize>, label: &'a str) -> Annotation<'a> {
    let annotation = kind.span(place);
    if label.is_empty() { annotation } else { annotation.label(label) }
}

/// The part of a long line around a place.
fn visible_range(text: &str, line: &Range<usize>, place: &Range<usize>) -> Range<usize> {
    let mut start = line.start.max(place.start.saturating_sub(CONTEXT_BYTES));
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = line.end.min(place.start + 2 * CONTEXT_BYTES);
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}
