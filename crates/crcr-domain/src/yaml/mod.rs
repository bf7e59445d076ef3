//! YAML events with their positions. Nothing is expanded.

pub(crate) mod display;
pub(crate) mod plain;
pub(crate) mod scalar;
pub(crate) mod syntax;

use std::borrow::Cow;
use std::ops::Range;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, StrInput};

/// The allowlist needs a nesting of five.
pub(crate) const MAX_DEPTH: usize = 16;

#[derive(Debug)]
pub(crate) struct YamlToken<'a> {
    pub(crate) kind: TokenKind<'a>,
    pub(crate) bytes: Range<usize>,
    pub(crate) tag: Option<Range<usize>>,
}

#[derive(Debug)]
pub(crate) enum TokenKind<'a> {
    /// The flag: plain, which is neither quoted nor a block scalar.
    Scalar(Cow<'a, str>, bool),
    ListStart,
    ListEnd,
    MapStart,
    MapEnd,
    Alias,
    /// `&name`; comes after the node that it names.
    Anchor,
    DocumentStart,
    DocumentEnd,
    End,
}

impl YamlToken<'_> {
    /// Whether it opens (+1) or closes (-1) a collection.
    pub(crate) fn nesting(&self) -> isize {
        match self.kind {
            TokenKind::ListStart | TokenKind::MapStart => 1,
            TokenKind::ListEnd | TokenKind::MapEnd => -1,
            _ => 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) kind: ErrorKind,
    /// Bytes from the start of the file.
    pub(crate) at: usize,
    /// The innermost bracket that is open at this position.
    pub(crate) open: Option<usize>,
}

pub(crate) struct YamlReader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Start of each open flow collection; `None` for block collections.
    open: Vec<Option<usize>>,
}

impl<'a> YamlReader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let options = granit_parser::options! {
            emit_anchor_events: true,
            emit_comments: false,
            emit_unresolved_aliases: true,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        };
        Self { parser: Parser::new_from_str_with_options(text, options), open: Vec::new() }
    }

    /// Returns [`TokenKind::End`] at the end and from then on.
    pub(crate) fn next(&mut self) -> Result<YamlToken<'a>, SyntaxError> {
        loop {
            let Some(next) = self.parser.next_event() else {
                return Ok(YamlToken { kind: TokenKind::End, bytes: 0..0, tag: None });
            };
            let (event, span) = next.map_err(|error| self.syntax_error(&error))?;
            let bytes = span.byte_range().unwrap_or_default();
            let tag = span.tag_span().and_then(|tag| tag.byte_range());
            let kind = match event {
                Event::Scalar(text, style, ..) => {
                    TokenKind::Scalar(text, style == ScalarStyle::Plain)
                }
                Event::SequenceStart(..) => TokenKind::ListStart,
                Event::MappingStart(..) => TokenKind::MapStart,
                Event::SequenceEnd => TokenKind::ListEnd,
                Event::MappingEnd => TokenKind::MapEnd,
                Event::Alias(_) | Event::UnresolvedAlias(_) => TokenKind::Alias,
                Event::Anchor(..) => TokenKind::Anchor,
                Event::DocumentStart(..) => TokenKind::DocumentStart,
                Event::DocumentEnd => TokenKind::DocumentEnd,
                Event::StreamEnd => TokenKind::End,
                _ => continue,
            };
            let token = YamlToken { kind, bytes, tag };
            match token.nesting() {
                1 => self.open.push((!token.bytes.is_empty()).then_some(token.bytes.start)),
                -1 => drop(self.open.pop()),
                _ => {}
            }
            return Ok(token);
        }
    }

    fn syntax_error(&self, error: &ScanError) -> SyntaxError {
        SyntaxError {
            kind: error.kind().clone(),
            at: error.marker().byte_offset().unwrap_or_default(),
            open: self.open.last().copied().flatten(),
        }
    }
}
