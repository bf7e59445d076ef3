//! The findings of `crcr doctor` as text, JSON and markdown.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::allowlist::ReviewFormat;
use crate::escape::{escape_markdown, neutralize};
use crate::render::code_and_text;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckStatus {
    Ok,
    /// A fact that is neither right nor wrong.
    Info,
    NotChecked,
    Warning,
    Error,
}

impl CheckStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::NotChecked => "not checked",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Self::Ok => "✅ ok",
            Self::Info => "ℹ️ info",
            Self::NotChecked => "❔ not checked",
            Self::Warning => "⚠️ warning",
            Self::Error => "❌ error",
        }
    }
}

/// What one check found. Messages hold no secrets, but may hold untrusted text.
#[derive(Debug, Clone, Serialize)]
pub struct CheckResult {
    pub check: &'static str,
    pub status: CheckStatus,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl CheckResult {
    fn new(check: &'static str, status: CheckStatus, message: impl Into<String>) -> Self {
        Self { check, status, message: message.into(), fix: None }
    }

    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Ok, message)
    }

    pub fn info(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Info, message)
    }

    /// `message` says why it wasn't checked.
    pub fn not_checked(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::NotChecked, message)
    }

    pub fn warning(check: &'static str, message: impl Into<String>, fix: &str) -> Self {
        Self::new(check, CheckStatus::Warning, message).fix(fix)
    }

    pub fn error(check: &'static str, message: impl Into<String>, fix: &str) -> Self {
        Self::new(check, CheckStatus::Error, message).fix(fix)
    }

    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

#[derive(Debug)]
pub struct CheckReport {
    /// What was checked, such as `this machine`.
    pub subject: String,
    pub results: Vec<CheckResult>,
}

impl CheckReport {
    fn count(&self, status: CheckStatus) -> usize {
        self.results.iter().filter(|result| result.status == status).count()
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.count(CheckStatus::Error) > 0))
    }

    /// Such as `2 errors, 1 warning, 3 not checked`.
    fn summary(&self) -> String {
        let counted = |n: usize, word: &str| match n {
            1 => format!("1 {word}"),
            n => format!("{n} {word}s"),
        };
        format!(
            "{}, {}, {} not checked",
            counted(self.count(CheckStatus::Error), "error"),
            counted(self.count(CheckStatus::Warning), "warning"),
            self.count(CheckStatus::NotChecked)
        )
    }

    pub fn render(&self, format: ReviewFormat) -> String {
        match format {
            ReviewFormat::Text => neutralize(&self.text()).into_owned(),
            ReviewFormat::Json => self.json(),
            ReviewFormat::Markdown => self.markdown(),
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for CheckResult { check, status, message, fix } in &self.results {
            let message = message.replace('\n', " ");
            let _ = writeln!(out, "{:<11}  {check}: {message}", status.word());
            if let Some(fix) = fix {
                let _ = writeln!(out, "{:<11}  fix: {}", "", fix.replace('\n', " "));
            }
        }
        let _ = writeln!(out, "\n{}: {}", self.subject, self.summary());
        out
    }

    fn json(&self) -> String {
        let document = serde_json::json!({
            "version": 1,
            "subject": self.subject,
            "checks": self.results,
            "summary": {
                "errors": self.count(CheckStatus::Error),
                "warnings": self.count(CheckStatus::Warning),
                "not_checked": self.count(CheckStatus::NotChecked),
            },
        });
        format!("{document:#}\n")
    }

    pub fn markdown(&self) -> String {
        let mut out = format!("### {}: {}\n\n", escape_markdown(&self.subject), self.summary());
        out.push_str("| | check | what | what to do |\n|---|---|---|---|\n");
        for CheckResult { check, status, message, fix } in &self.results {
            let fix = code_and_text(fix.as_deref().unwrap_or_default());
            let (sign, message) = (status.sign(), code_and_text(message));
            let _ = writeln!(out, "| {sign} | `{check}` | {message} | {fix} |");
        }
        out
    }
}
