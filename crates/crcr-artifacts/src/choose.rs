//! Which store takes the artifact, decided from facts alone.

use std::fmt;

/// Whose credentials S3 sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Those that an earlier step got for the job's token.
    Oidc,
    /// Those of the process's environment.
    Env,
    /// Whatever the machine has. Only ever on request.
    Ambient,
    Anonymous,
}

/// The mode: as asked for, else as an earlier step recorded it (`CRCR_AUTH_MODE`), else the
/// environment's credentials where there are any, else none.
pub fn auth_mode(asked: Option<AuthMode>, recorded: Option<&str>, env_keys: bool) -> AuthMode {
    let recorded = recorded.map(|mode| match mode {
        "oidc" => AuthMode::Oidc,
        "env" => AuthMode::Env,
        "ambient" => AuthMode::Ambient,
        _ => AuthMode::Anonymous,
    });
    let found = if env_keys { AuthMode::Env } else { AuthMode::Anonymous };
    asked.or(recorded).unwrap_or(found)
}

/// When GitHub's store is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// When S3 can't.
    Auto,
    /// Never.
    Never,
    Always,
}

/// Why the artifact is where it is: the output `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// S3 took it.
    Ok,
    NoBucket,
    Anonymous,
    /// S3 refused.
    S3Denied,
    /// S3 answered with another error, such as a key of KMS that is disabled, or a header that the
    /// server doesn't know.
    S3Refused,
    S3MissingBucket,
    /// S3 gave no answer.
    S3Unreachable,
    Forced,
    /// There was nothing to store.
    NoFiles,
    Quota,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::NoBucket => "no-bucket",
            Self::Anonymous => "anonymous",
            Self::S3Denied => "s3-denied",
            Self::S3Refused => "s3-refused",
            Self::S3MissingBucket => "s3-missing-bucket",
            Self::S3Unreachable => "s3-unreachable",
            Self::Forced => "forced",
            Self::NoFiles => "no-files",
            Self::Quota => "quota",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// S3, and GitHub when it refuses or can't be reached.
    S3ThenGitHub,
    /// S3 or nothing.
    S3Only,
    GitHub(Reason),
    /// Nowhere: S3 can't, for this reason, and nothing else is allowed.
    Impossible(Reason),
}

/// Decides where the artifact goes.
pub fn plan(mode: AuthMode, bucket: Option<&str>, fallback: Fallback) -> Plan {
    let obstacle = match (mode, bucket) {
        (_, None) => Some(Reason::NoBucket),
        (AuthMode::Anonymous, Some(_)) => Some(Reason::Anonymous),
        _ => None,
    };
    match (fallback, obstacle) {
        (Fallback::Always, _) => Plan::GitHub(Reason::Forced),
        (Fallback::Never, Some(reason)) => Plan::Impossible(reason),
        (Fallback::Auto, Some(reason)) => Plan::GitHub(reason),
        (Fallback::Never, None) => Plan::S3Only,
        (Fallback::Auto, None) => Plan::S3ThenGitHub,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_the_asked_one_then_the_recorded_one_then_what_is_there() {
        use AuthMode::{Ambient, Anonymous, Env, Oidc};
        assert_eq!(auth_mode(Some(Ambient), Some("anonymous"), true), Ambient);
        assert_eq!(auth_mode(None, Some("anonymous"), true), Anonymous);
        assert_eq!(auth_mode(None, Some("error"), true), Anonymous);
        assert_eq!(auth_mode(None, Some("oidc"), true), Oidc);
        assert_eq!(auth_mode(None, Some("env"), false), Env);
        assert_eq!(auth_mode(None, Some("ambient"), false), Ambient);
        assert_eq!(auth_mode(None, None, true), Env);
        assert_eq!(auth_mode(None, None, false), Anonymous, "never the machine's own role");
    }

    #[test]
    fn every_row_of_the_choice() {
        use AuthMode::{Ambient, Anonymous, Env, Oidc};
        use Fallback::{Always, Auto, Never};
        let bucket = Some("b");
        for mode in [Oidc, Env, Ambient] {
            assert_eq!(plan(mode, bucket, Auto), Plan::S3ThenGitHub);
            assert_eq!(plan(mode, bucket, Never), Plan::S3Only);
            assert_eq!(plan(mode, bucket, Always), Plan::GitHub(Reason::Forced));
            assert_eq!(plan(mode, None, Auto), Plan::GitHub(Reason::NoBucket));
            assert_eq!(plan(mode, None, Never), Plan::Impossible(Reason::NoBucket));
        }
        assert_eq!(plan(Anonymous, bucket, Auto), Plan::GitHub(Reason::Anonymous));
        assert_eq!(plan(Anonymous, None, Auto), Plan::GitHub(Reason::NoBucket));
        assert_eq!(plan(Anonymous, bucket, Never), Plan::Impossible(Reason::Anonymous));
        assert_eq!(plan(Anonymous, bucket, Always), Plan::GitHub(Reason::Forced));
    }
}
