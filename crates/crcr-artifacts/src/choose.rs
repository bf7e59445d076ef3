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
pub enum FallbackPolicy {
    /// When S3 can't.
    Auto,
    /// Never.
    Never,
    Always,
}

/// Why the artifact is where it is: the output `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreReason {
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

impl fmt::Display for StoreReason {
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
pub enum StorePlan {
    /// S3, and GitHub when it refuses or can't be reached.
    S3ThenGitHub,
    /// S3 or nothing.
    S3Only,
    GitHub(StoreReason),
    /// Nowhere: S3 can't, for this reason, and nothing else is allowed.
    Impossible(StoreReason),
}

/// Decides where the artifact goes.
pub fn plan(mode: AuthMode, bucket: Option<&str>, fallback: FallbackPolicy) -> StorePlan {
    let obstacle = match (mode, bucket) {
        (_, None) => Some(StoreReason::NoBucket),
        (AuthMode::Anonymous, Some(_)) => Some(StoreReason::Anonymous),
        _ => None,
    };
    match (fallback, obstacle) {
        (FallbackPolicy::Always, _) => StorePlan::GitHub(StoreReason::Forced),
        (FallbackPolicy::Never, Some(reason)) => StorePlan::Impossible(reason),
        (FallbackPolicy::Auto, Some(reason)) => StorePlan::GitHub(reason),
        (FallbackPolicy::Never, None) => StorePlan::S3Only,
        (FallbackPolicy::Auto, None) => StorePlan::S3ThenGitHub,
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
        use FallbackPolicy::{Always, Auto, Never};
        let bucket = Some("b");
        for mode in [Oidc, Env, Ambient] {
            assert_eq!(plan(mode, bucket, Auto), StorePlan::S3ThenGitHub);
            assert_eq!(plan(mode, bucket, Never), StorePlan::S3Only);
            assert_eq!(plan(mode, bucket, Always), StorePlan::GitHub(StoreReason::Forced));
            assert_eq!(plan(mode, None, Auto), StorePlan::GitHub(StoreReason::NoBucket));
            assert_eq!(plan(mode, None, Never), StorePlan::Impossible(StoreReason::NoBucket));
        }
        assert_eq!(plan(Anonymous, bucket, Auto), StorePlan::GitHub(StoreReason::Anonymous));
        assert_eq!(plan(Anonymous, None, Auto), StorePlan::GitHub(StoreReason::NoBucket));
        assert_eq!(plan(Anonymous, bucket, Never), StorePlan::Impossible(StoreReason::Anonymous));
        assert_eq!(plan(Anonymous, bucket, Always), StorePlan::GitHub(StoreReason::Forced));
    }
}
