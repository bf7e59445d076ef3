//! Prints the findings of a file. One file per format; no format depends on a particular rule.

mod github;
mod json;
mod markdown;
mod sarif;
mod text;

use std::borrow::Cow;
use std::fmt::Display;
use std::path::{Component, Path};

use crcr_domain::diagnostic::{Findings, SourceText};

use crate::cli::allowlist::FindingsFormat;
use crate::printer::Printer;

pub use markdown::code_and_text;

pub struct FindingsReport<'a> {
    /// As given on the command line; `<stdin>` for standard input.
    pub file: &'a str,
    pub source: &'a SourceText,
    pub findings: &'a Findings,
    pub listed: ListedEntries,
    /// One sentence for each rule that could not be checked.
    pub not_checked: &'a [String],
}

/// What the file lists, for its summary.
#[derive(Debug, Clone, Copy)]
pub enum ListedEntries {
    Repositories(usize),
    Tests(usize),
    Settings(usize),
}

impl ListedEntries {
    pub fn count(self) -> usize {
        match self {
            Self::Repositories(count) | Self::Tests(count) | Self::Settings(count) => count,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Repositories(count) => plural(count, "repository", "repositories"),
            Self::Tests(count) => plural(count, "test", "tests"),
            Self::Settings(count) => plural(count, "setting", "settings"),
        }
    }
}

impl FindingsReport<'_> {
    /// `color` applies to [`FindingsFormat::Text`] only.
    pub fn render(&self, format: FindingsFormat, color: bool) -> String {
        match format {
            FindingsFormat::Text => text::render(self, color),
            FindingsFormat::Github => github::render(self),
            FindingsFormat::Json => json::render(self),
            FindingsFormat::Sarif => sarif::render(self),
            FindingsFormat::Markdown => markdown::render(self),
        }
    }

    /// Prints it to stdout. It quotes lines of the file.
    pub fn print(&self, format: FindingsFormat, printer: &Printer) {
        let text = self.render(format, printer.color_stdout());
        match format {
            FindingsFormat::Text | FindingsFormat::Markdown => printer.data_text(&text),
            FindingsFormat::Json | FindingsFormat::Sarif => printer.data_json(&text),
            // Commands to the runner themselves, in which it looks for no other.
            FindingsFormat::Github => printer.data(&text),
        }
    }

    /// `2 errors, 1 warning; 10 repositories`.
    pub fn counts(&self) -> String {
        let listed = self.listed.text();
        let (errors, warnings) = (self.findings.errors(), self.findings.warnings());
        let found: Vec<_> = [(errors, "error", "errors"), (warnings, "warning", "warnings")]
            .into_iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, one, many)| plural(count, one, many))
            .collect();
        if found.is_empty() {
            format!("valid; {listed}")
        } else {
            format!("{}; {listed}", found.join(", "))
        }
    }
}

/// The path at which GitHub shows findings: relative to the repository that has the file. A path outside of a repository,
/// or of a file that doesn't exist, stays as it is.
fn repository_path(file: &str) -> Cow<'_, str> {
    path_in_repository(file).map_or(Cow::Borrowed(file), Cow::Owned)
}

/// The path of a file from the top of the repository that has it, if there is one.
pub fn path_in_repository(file: &str) -> Option<String> {
    let path = Path::new(file).parent()?.join(".").canonicalize().ok()?;
    let path = path.join(Path::new(file).file_name()?);
    if !path.exists() {
        return None;
    }
    let top = path.ancestors().skip(1).find(|folder| folder.join(".git").exists())?;
    let parts = path.strip_prefix(top).ok()?.components().map(Component::as_os_str);
    Some(parts.map(|part| part.to_str()).collect::<Option<Vec<_>>>()?.join("/"))
}

/// `1 error`, `2 errors`.
pub fn plural<N: Copy + Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    let noun = if count == N::from(1) { one } else { many };
    format!("{count} {noun}")
}
