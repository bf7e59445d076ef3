//! The claims of a GitHub Actions token.

use crcr_domain::RepoName;
use crcr_domain::protocol::identity::{CallerIdentity, GitHubClaims, ProviderClaims};

use super::AuthError;
use super::token::VerifiedToken;

/// The caller's identity. 401 without a `repository`.
pub(crate) fn identity(issuer: &str, token: &VerifiedToken) -> Result<CallerIdentity, AuthError> {
    let repository = token.text("repository").and_then(|name| RepoName::new(&name).ok());
    let missing = || AuthError::unauthorized("GitHub OIDC token missing 'repository' claim");
    Ok(CallerIdentity {
        repository: repository.ok_or_else(missing)?,
        issuer: issuer.to_owned(),
        expires_at: token.expires_at,
        token_id: token.id(),
        claims: ProviderClaims::GitHub(GitHubClaims {
            repository_id: token.number("repository_id"),
            run_id: token.number("run_id"),
            run_attempt: token.number("run_attempt"),
            event_name: token.text("event_name"),
            ref_name: token.text("ref"),
            sha: token.text("sha"),
            job_workflow_ref: token.text("job_workflow_ref"),
            workflow_ref: token.text("workflow_ref"),
        }),
    })
}
