//! Decides which store takes an artifact, from the credentials, the bucket and the input `fallback`.

use std::fmt;

/// Whose credentials S3 sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// An earlier step exchanged the job's OIDC token for them.
    Oidc,
    Env,
    /// Whatever the machine has, such as an instance role. Used only when the caller asks for it.
    Ambient,
    Anonymous,
}

/// `requested` wins over `recorded` (`CRCR_AUTH_MODE`, set by an earlier step), which wins over
/// credentials in the environment.
pub fn auth_mode(requested: Option<AuthMode>, recorded: Option<&str>, env_keys: bool) -> AuthMode {
    let recorded = recorded.map(|mode| match mode {
        "oidc" => AuthMode::Oidc,
        "env" => AuthMode::Env,
        "ambient" => AuthMode::Ambient,
        _ => AuthMode::Anonymous,
    });
    let found = if env_keys { AuthMode::Env } else { AuthMode::Anonymous };
    requested.or(recorded).unwrap_or(found)
}

/// When GitHub's store is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackPolicy {
    /// When S3 fails or isn't configured.
    Auto,
    Never,
    Always,
}

/// Why the artifact is in this store: the output `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreReason {
    Ok,
    NoBucket,
    Anonymous,
    S3Denied,
    /// Any other error of S3, such as a disabled KMS key or a header that the server doesn't know.
    S3Refused,
    S3MissingBucket,
    S3Unreachable,
    Forced,
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
    /// S3, and GitHub when S3 refuses or can't be reached.
    S3ThenGitHub,
    S3Only,
    GitHub(StoreReason),
    /// S3 can't be used, for this reason, and the fallback isn't allowed.
    Impossible(StoreReason),
}

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
    fn requested_mode_wins_over_recorded_mode_over_environment() {
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
    fn plan_for_every_mode_bucket_and_fallback() {
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
