//! Inputs of `aws-actions/configure-aws-credentials` that aren't supported. They are refused, because a
//! job with an ignored input could have other credentials than its author expects.

use crate::cli::oidc::PeerArgs;
use crate::commands::oidc::decide::AuthReason;
use crate::failure::Failure;

/// The failure of an input: a usage error (exit code 2).
pub fn invalid(message: impl Into<String>) -> Failure {
    Failure::unexpected(AuthReason::InvalidInput.word(), message)
}

/// Fails for the first unsupported input with a value.
pub fn refuse(args: &PeerArgs) -> Result<(), Failure> {
    const STATIC: &str = "credentials come from the job's OIDC token; for keys that are secrets, set them \
                          in `env:` of the steps that need them";
    for (name, value, hint) in [
        ("aws-access-key-id", &args.aws_access_key_id, STATIC),
        ("aws-secret-access-key", &args.aws_secret_access_key, STATIC),
        ("aws-session-token", &args.aws_session_token, STATIC),
        (
            "aws-profile",
            &args.aws_profile,
            "credentials go into the environment of the job, not into a profile; for two roles take \
             two jobs, or `output-credentials: true` with `output-env-credentials: false`",
        ),
        (
            "web-identity-token-file",
            &args.web_identity_token_file,
            "the token comes from GitHub; for a token file of the machine, set \
             `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN` and use `ambient: allow`",
        ),
        (
            "role-chaining",
            &args.role_chaining,
            "let the role trust the repository's OIDC provider itself, or call \
             `aws sts assume-role` in a later step",
        ),
        (
            "role-external-id",
            &args.role_external_id,
            "STS takes none with an OIDC token; let the trust policy look at the token's claims",
        ),
        (
            "unset-current-credentials",
            &args.unset_current_credentials,
            "new credentials replace those of earlier steps; `use-existing: false` never keeps any, and \
             `configure-oidc-fallback/drop` takes them away from later steps",
        ),
        (
            "special-characters-workaround",
            &args.special_characters_workaround,
            "leave it out: no value is passed through a shell here",
        ),
        (
            "retry-max-attempts",
            &args.retry_max_attempts,
            "`timeout` says for how long tries go on; a refusal isn't tried again",
        ),
    ] {
        // `false` is what happens anyway.
        if value.as_deref().is_some_and(|value| value != "false") {
            return Err(invalid(format!("the input `{name}` isn't supported")).hint(hint));
        }
    }
    Ok(())
}
