//! How a command fails: whose fault it is, a stable code, what, why and what to do.

use std::fmt;
use std::process::ExitCode;

/// Whose move it is; this alone decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The user can fix it: exit code 1.
    User,
    /// Usage, the network or a service: exit code 2.
    Unexpected,
}

/// An error as a person reads it.
///
/// The message says what happened, `causes` why (outermost first), `hint` what to do. None of them
/// may contain a secret.
#[derive(Debug)]
pub struct Failure {
    fault: Fault,
    code: &'static str,
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
}

/// What a command returns: the exit code when it has said everything itself, or a [`Failure`].
pub type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// Something the user can fix (exit code 1). `code` is stable and in kebab case.
    pub fn user(code: &'static str, message: impl Into<String>) -> Self {
        Self { fault: Fault::User, code, message: message.into(), causes: vec![], hint: None }
    }

    /// Usage, network or a service (exit code 2). `code` is stable and in kebab case.
    pub fn unexpected(code: &'static str, message: impl Into<String>) -> Self {
        Self { fault: Fault::Unexpected, code, message: message.into(), causes: vec![], hint: None }
    }

    /// Adds why: the error and the errors behind it, at most three of them.
    #[must_use]
    pub fn because(mut self, error: impl Into<anyhow::Error>) -> Self {
        for cause in error.into().chain() {
            let text = cause.to_string();
            // Libraries repeat their source in their own text; say each thing once.
            let told = self.causes.last().is_some_and(|last| last.contains(&text));
            if !told && self.causes.len() < 3 {
                self.causes.push(text);
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

    pub fn help(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// 1 for the user's, 2 for everything else.
    pub fn exit_code(&self) -> ExitCode {
        match self.fault {
            Fault::User => ExitCode::from(1),
            Fault::Unexpected => ExitCode::from(2),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
