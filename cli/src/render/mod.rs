//! Findings of a file in the formats that people and programs read: one file per format, and none
//! knows a rule.

mod github;
mod json;
mod markdown;
mod sarif;
mod text;

use crcr_domain::diagnostic::{Findings, Source};

pub use markdown::code_and_text;

/// How findings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Annotated source, for people
    Text,
    /// Annotations of GitHub Actions
    Github,
    /// One JSON document
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// For a comment or the step summary
    Markdown,
}

/// A file and what was found in it.
pub struct Report<'a> {
    /// Its name as given; `<stdin>` for standard input.
    pub file: &'a str,
    /// Its text.
    pub source: &'a Source,
    /// What was found, sorted.
    pub findings: &'a Findings,
    /// How many repositories it lists.
    pub repositories: usize,
    /// Which rules were not checked and why; a sentence each.
    pub not_checked: &'a [String],
}

impl Report<'_> {
    /// The report in a format; `color` matters to [`Format::Text`] only.
    pub fn render(&self, format: Format, color: bool) -> String {
        match format {
            Format::Text => text::render(self, color),
            Format::Github => github::render(self),
            Format::Json => json::render(self),
            Format::Sarif => sarif::render(self),
            Format::Markdown => markdown::render(self),
        }
    }

    /// `2 errors, 1 warning; 10 repositories`.
    pub fn counts(&self) -> String {
        let repositories = plural(self.repositories, "repository", "repositories");
        let (errors, warnings) = (self.findings.errors(), self.findings.warnings());
        let found: Vec<_> = [(errors, "error", "errors"), (warnings, "warning", "warnings")]
            .into_iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, one, many)| plural(count, one, many))
            .collect();
        if found.is_empty() {
            format!("valid; {repositories}")
        } else {
            format!("{}; {repositories}", found.join(", "))
        }
    }
}

/// `1 error`, `2 errors`.
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
