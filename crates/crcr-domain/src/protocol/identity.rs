//! The identity of a caller, from the claims of a verified token.

use jiff::Timestamp;

use crate::RepoName;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    /// The repository that the caller speaks for.
    pub repository: RepoName,
    pub issuer: String,
    /// When the token expires. Replay protection must last longer.
    pub expires_at: Timestamp,
    /// Tells the token from every other: its `jti`, or a digest of it.
    pub token_id: String,
    pub claims: ProviderClaims,
}

/// Claims that depend on the kind of issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderClaims {
    /// A job of GitHub Actions.
    GitHub(GitHubClaims),
    Buildkite(BuildkiteClaims),
}

/// The claims of GitHub Actions that the relay uses.
///
/// <https://docs.github.com/en/actions/reference/security/oidc>
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitHubClaims {
    /// GitHub's id of the repository. It doesn't change when the name is transferred or reused.
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
    /// The workflow file that defines the job, with its ref; for a reusable workflow the called file.
    pub job_workflow_ref: Option<String>,
    /// The workflow file of the run, with its ref.
    pub workflow_ref: Option<String>,
}

/// The claims of Buildkite that the relay uses.
///
/// <https://buildkite.com/docs/agent/v3/cli-oidc>
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildkiteClaims {
    pub organization_id: String,
    pub pipeline_id: String,
    pub build_id: Option<String>,
    /// Counts the builds of the pipeline.
    pub build_number: Option<String>,
    pub job_id: Option<String>,
}

impl CallerIdentity {
    /// Whether each report brings a token of its own. A Buildkite agent mints one for a step, and the step
    /// reports for all jobs of a build.
    pub fn is_minted_per_report(&self) -> bool {
        self.github().is_some()
    }

    pub fn github(&self) -> Option<&GitHubClaims> {
        match &self.claims {
            ProviderClaims::GitHub(claims) => Some(claims),
            ProviderClaims::Buildkite(_) => None,
        }
    }

    pub fn buildkite(&self) -> Option<&BuildkiteClaims> {
        match &self.claims {
            ProviderClaims::Buildkite(claims) => Some(claims),
            ProviderClaims::GitHub(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn github_mints_a_token_for_each_report_and_buildkite_one_for_a_step() {
        let identity = |claims| CallerIdentity {
            repository: RepoName::new("acme/backend").unwrap(),
            issuer: "https://issuer.test".to_owned(),
            expires_at: Timestamp::UNIX_EPOCH,
            token_id: "t".to_owned(),
            claims,
        };
        let of_run = GitHubClaims { run_id: Some(12), ..GitHubClaims::default() };
        let github = identity(ProviderClaims::GitHub(of_run.clone()));
        assert_eq!((github.github(), github.buildkite()), (Some(&of_run), None));
        assert!(github.is_minted_per_report());
        let of_build =
            BuildkiteClaims { pipeline_id: "p".to_owned(), ..BuildkiteClaims::default() };
        let buildkite = identity(ProviderClaims::Buildkite(of_build.clone()));
        assert_eq!((buildkite.github(), buildkite.buildkite()), (None, Some(&of_build)));
        assert!(!buildkite.is_minted_per_report());
    }
}
