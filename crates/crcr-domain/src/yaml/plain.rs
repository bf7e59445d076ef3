//! A small file of plain YAML. Anchors, aliases and tags are mistakes in it, and so is a second document.

use std::ops::Range;

use super::{SyntaxError, TokenKind, YamlReader, YamlToken};
use crate::diagnostic::{Diagnostic, Findings, Rule, SourceText};

pub(crate) struct PlainYaml<'a> {
    yaml: YamlReader<'a>,
    pub(crate) source: &'a SourceText,
    /// End of the previous token.
    pub(crate) read_to: usize,
    pub(crate) findings: Findings,
}

impl<'a> PlainYaml<'a> {
    pub(crate) fn new(source: &'a SourceText) -> Self {
        let yaml = YamlReader::new(source.text());
        Self { yaml, source, read_to: 0, findings: Findings::default() }
    }

    /// The next token. Reports tags and anchors.
    pub(crate) fn next(&mut self) -> Result<YamlToken<'a>, SyntaxError> {
        loop {
            let token = self.yaml.next()?;
            if let Some(tag) = token.tag.clone() {
                self.report(Rule::Alias, tag, "tags aren't supported", "remove it");
            }
            if !matches!(token.kind, TokenKind::Anchor) {
                self.read_to = self.read_to.max(token.bytes.end);
                return Ok(token);
            }
            self.report(Rule::Alias, token.bytes, "anchors aren't supported", "remove it");
        }
    }

    pub(crate) fn report_alias(&mut self, bytes: Range<usize>) {
        self.report(Rule::Alias, bytes, "aliases aren't supported", "write the text itself");
    }

    /// Reads the rest of the file after its root.
    pub(crate) fn end(&mut self) -> Result<(), SyntaxError> {
        while !matches!(self.next()?.kind, TokenKind::DocumentEnd | TokenKind::End) {}
        let second = self.next()?;
        if matches!(second.kind, TokenKind::DocumentStart) {
            let help = "put everything into one document";
            self.report(Rule::WrongShape, second.bytes, "the file has a second document", help);
            while !matches!(self.next()?.kind, TokenKind::End) {}
        }
        Ok(())
    }

    pub(crate) fn report(
        &mut self,
        rule: Rule,
        bytes: Range<usize>,
        message: impl Into<String>,
        help: &str,
    ) {
        let span = self.source.span(bytes);
        self.findings.push(Diagnostic::new(rule, span, message).help(help));
    }
}
