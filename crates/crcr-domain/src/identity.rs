//! Who is calling: what a verified token says.

use jiff::Timestamp;

use crate::RepoName;

/// A caller whose token has been verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    /// The repository that the caller speaks for.
    pub repository: RepoName,
    /// The issuer of the token.
    pub issuer: String,
    /// When the token ends; what is kept against replay must outlive it.
    pub expires_at: Timestamp,
    /// The token's own id, where the issuer gives one.
    pub jti: Option<String>,
    /// What only this kind of issuer says.
    pub claims: ProviderClaims,
}

/// What only one kind of issuer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderClaims {
    /// A job of GitHub Actions.
    GitHub(GitHubClaims),
    Buildkite(BuildkiteClaims),
}

/// The claims of a job of GitHub Actions that decide something here.
///
/// <https://docs.github.com/en/actions/reference/security/oidc>
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitHubClaims {
    /// The repository's number: it stays when the name is given to somebody else.
    pub repository_id: Option<u64>,
    pub run_id: Option<u64>,
    /// The attempt of the run, from 1.
    pub run_attempt: Option<u64>,
    /// The event that started the run.
    pub event_name: Option<String>,
    /// The Git ref that the run is on.
    pub ref_name: Option<String>,
    /// The commit that the run is on.
    pub sha: Option<String>,
    /// The workflow file of the job, a reusable workflow's own, at its ref.
    pub job_workflow_ref: Option<String>,
    /// The workflow file of the run, at its ref.
    pub workflow_ref: Option<String>,
}

/// The claims of a job of Buildkite that decide something here.
///
/// <https://buildkite.com/docs/agent/v3/cli-oidc>
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildkiteClaims {
    pub organization_id: String,
    pub pipeline_id: String,
    /// The build's id, when the token carries it.
    pub build_id: Option<String>,
    /// The job's id, when the token carries it.
    pub job_id: Option<String>,
}

impl CallerIdentity {
    /// The claims of GitHub Actions, if that is where the caller runs.
    pub fn github(&self) -> Option<&GitHubClaims> {
        match &self.claims {
            ProviderClaims::GitHub(claims) => Some(claims),
            ProviderClaims::Buildkite(_) => None,
        }
    }

    /// The claims of Buildkite, if that is where the caller runs.
    pub fn buildkite(&self) -> Option<&BuildkiteClaims> {
        match &self.claims {
            ProviderClaims::Buildkite(claims) => Some(claims),
            ProviderClaims::GitHub(_) => None,
        }
    }
}
