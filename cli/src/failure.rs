//! Errors of commands: a stable code, what happened, why, and what to do.

use std::fmt;
use std::process::ExitCode;

/// Decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The user can fix it: exit code 1.
    User,
    /// Usage, the network or a service: exit code 2.
    Unexpected,
}

/// An error message for users: what happened, why (`causes`, outermost first) and what to do (`hint`).
/// None of these may contain a secret.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    code: &'static str,
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
}

/// The exit code of a command that has printed everything itself, or a [`Failure`] to print.
pub type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// Something the user can fix (exit code 1). `code` is stable and in kebab case.
    pub fn user(code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: FailureKind::User, code, message: message.into(), causes: vec![], hint: None }
    }

    /// Usage, network or a service (exit code 2). `code` is stable and in kebab case.
    pub fn unexpected(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Unexpected,
            code,
            message: message.into(),
            causes: vec![],
            hint: None,
        }
    }

    /// Adds the error and its sources as causes, up to three.
    #[must_use]
    pub fn because(mut self, error: impl Into<anyhow::Error>) -> Self {
        for cause in error.into().chain() {
            let text = plain_words(&cause.to_string());
            // Some errors repeat the text of their source, or what the message says; print it only once.
            let last = self.causes.last().unwrap_or(&self.message);
            let new = text.strip_prefix(&format!("{last}: ")).unwrap_or(&text);
            if !last.contains(new) && self.causes.len() < 3 {
                self.causes.push(new.to_owned());
            }
        }
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn code(&self) -> &'static str {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn causes(&self) -> &[String] {
        &self.causes
    }

    /// The message and its causes on one line.
    pub fn with_causes(&self) -> String {
        let parts = std::iter::once(&self.message).chain(&self.causes);
        parts.map(String::as_str).collect::<Vec<_>>().join(": ")
    }

    pub fn help(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub fn exit_code(&self) -> ExitCode {
        match self.kind {
            FailureKind::User => ExitCode::from(1),
            FailureKind::Unexpected => ExitCode::from(2),
        }
    }
}

/// What parsers of numbers and URLs say, in words that say what to write.
pub fn plain_words(text: &str) -> String {
    text.replace("invalid digit found in string", "it isn't a whole number")
        .replace("number too large to fit in target type", "the number is too large")
        .replace("cannot parse integer from empty string", "it is empty")
        .replace("relative URL without a base", "it has no `https://` in front")
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_say_nothing_twice() {
        let because = |message: &str, cause: &str| {
            Failure::user("x", message).because(anyhow::Error::msg(cause.to_owned())).causes
        };
        let store = "the store can't be used";
        assert_eq!(because(store, "the store can't be used: no space"), ["no space"]);
        assert_eq!(because(store, store), [""; 0]);
        assert_eq!(because(store, "no space"), ["no space"]);
        assert_eq!(because(store, "invalid digit found in string"), ["it isn't a whole number"]);
        let nested = anyhow::Error::msg("no space").context("the disk: no space");
        assert_eq!(Failure::user("x", store).because(nested).causes, ["the disk: no space"]);
    }
}
