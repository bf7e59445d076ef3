//! Two tables without I/O: whether this job can have credentials, and the outputs for each result.

use std::fmt;

use crate::cli::oidc::OnUnavailable;

/// The facts that decide, from the runner and from the event's payload.
#[derive(Debug, Clone, Default)]
pub struct JobFacts {
    pub event: String,
    pub git_ref: Option<String>,
    /// The name of the repository's default branch, from the event's payload.
    pub default_branch: Option<String>,
    /// `owner/repo` of the workflow.
    pub repository: Option<String>,
    /// Whether that repository was itself forked from another one.
    pub is_fork_of_another: bool,
    /// Owners whose repositories get credentials; empty means all.
    pub owners: Vec<String>,
    pub actor: Option<String>,
    pub pull_request: Option<PullRequestFacts>,
    /// Whether `ACTIONS_ID_TOKEN_REQUEST_URL` is set.
    pub token_url: bool,
    /// Whether `ACTIONS_ID_TOKEN_REQUEST_TOKEN` is set.
    pub token_bearer: bool,
    /// Whether the machine's own credentials may be used.
    pub ambient: bool,
    /// Whether the input `role-to-assume` is set.
    pub role: bool,
}

#[derive(Debug, Clone, Default)]
pub struct PullRequestFacts {
    /// `owner/repo`; `None` for a deleted repository.
    pub head: Option<String>,
    /// `owner/repo`.
    pub base: Option<String>,
    pub author: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthPlan {
    /// Get a token and assume the role.
    Token,
    /// Ask the AWS SDK's default chain. If it has nothing, go on with [`JobFacts::without_ambient`].
    Ambient,
    /// Go on without credentials, because the event gives none.
    Anonymous(AuthReason),
    Broken(AuthReason),
}

/// Why the job has credentials or not: the stable output `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthReason {
    Ok,
    Fork,
    Dependabot,
    ForeignRepo,
    NoPermission,
    PartialToken,
    StsDenied,
    TokenEndpoint,
    StsUnreachable,
    InvalidInput,
    EventPayload,
}

impl AuthReason {
    /// The output `reason`, which is also the code of the error.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Fork => "fork",
            Self::Dependabot => "dependabot",
            Self::ForeignRepo => "foreign-repo",
            Self::NoPermission => "no-permission",
            Self::PartialToken => "partial-token",
            Self::StsDenied => "sts-denied",
            Self::TokenEndpoint => "token-endpoint",
            Self::StsUnreachable => "sts-unreachable",
            Self::InvalidInput => "invalid-input",
            Self::EventPayload => "event-payload",
        }
    }
}

impl fmt::Display for AuthReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

const DEPENDABOT: &str = "dependabot[bot]";
/// Runs of this event belong to the base branch, with its secrets.
pub const TARGET: &str = "pull_request_target";

impl JobFacts {
    /// The first rule that matches: foreign repository, fork, Dependabot, then the token variables.
    pub fn plan(&self) -> AuthPlan {
        let no_token = !self.token_url && !self.token_bearer;
        if self.is_foreign() {
            return AuthPlan::Anonymous(AuthReason::ForeignRepo);
        }
        // A role that is a secret is empty in these runs, even where their permissions give a token.
        let no_way = no_token || !self.role && !self.ambient;
        // `pull_request_target` runs with the base repository's rights, so there the permission helps.
        if no_way && self.is_fork() && self.event != TARGET {
            return AuthPlan::Anonymous(AuthReason::Fork);
        }
        if no_way && self.is_dependabot() && self.event != TARGET {
            return AuthPlan::Anonymous(AuthReason::Dependabot);
        }
        match (self.token_url, self.token_bearer) {
            (true, true) if self.ambient && !self.role => AuthPlan::Ambient,
            (true, true) => AuthPlan::Token,
            (false, false) if self.ambient => AuthPlan::Ambient,
            (false, false) => AuthPlan::Broken(AuthReason::NoPermission),
            _ => AuthPlan::Broken(AuthReason::PartialToken),
        }
    }

    /// The plan if the machine has no credentials of its own.
    pub fn without_ambient(&self) -> AuthPlan {
        Self { ambient: false, ..self.clone() }.plan()
    }

    /// Whether the pull request's head is in another repository than the workflow, or in a deleted one.
    ///
    /// GitHub's `fork` flag doesn't say this, because the upstream repository may be a fork itself.
    pub fn is_fork(&self) -> bool {
        let Some(pull_request) = self.pull_request.as_ref() else { return false };
        let here = self.repository.as_ref().or(pull_request.base.as_ref());
        self.event.starts_with("pull_request")
            && match (&pull_request.head, here) {
                (Some(head), Some(here)) => !head.eq_ignore_ascii_case(here),
                (None, _) => true,
                (Some(_), None) => false,
            }
    }

    /// Whether GitHub gives the run none of the repository's secrets and variables.
    pub fn has_no_secrets(&self) -> bool {
        self.is_fork() && self.event != TARGET
    }

    /// Only runs that build what is on the default branch are trusted with its part of the cache.
    pub fn trust_class(&self) -> TrustClass {
        let branch = self.git_ref.as_deref().and_then(|name| name.strip_prefix("refs/heads/"));
        let on_default = branch.is_some() && branch == self.default_branch.as_deref();
        match builds_default_branch(&self.event, on_default) {
            true => TrustClass::DefaultBranch,
            false => TrustClass::PullRequests,
        }
    }

    fn is_dependabot(&self) -> bool {
        let author = self.pull_request.as_ref().and_then(|p| p.author.as_deref());
        self.actor.as_deref() == Some(DEPENDABOT) || author == Some(DEPENDABOT)
    }

    /// Whether this may be a contributor's copy of the workflow, which the role needn't trust. An upstream
    /// repository that is a fork itself has its owner in `owners`.
    pub fn may_be_a_copy(&self) -> bool {
        self.is_fork_of_another && self.owners.is_empty() && self.event != TARGET
    }

    fn is_foreign(&self) -> bool {
        let owner = self.repository.as_deref().and_then(|name| name.split_once('/'));
        owner.is_some_and(|(owner, _)| {
            !self.owners.is_empty() && !self.owners.iter().any(|o| o.eq_ignore_ascii_case(owner))
        })
    }
}

/// Whether a run builds what is on the default branch. `is_its_ref`: whether its ref is that branch's. A run of an
/// event such as `repository_dispatch` has that ref, too, and may build a pull request's code.
pub fn builds_default_branch(event: &str, is_its_ref: bool) -> bool {
    match event {
        "schedule" => true,
        "push" | "workflow_dispatch" => is_its_ref,
        _ => false,
    }
}

/// Whose code a run builds. Each class has a part of the compiler cache of its own, so that the default
/// branch never reads what a pull request wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustClass {
    DefaultBranch,
    /// And everything else with credentials: other branches, tags, merge queues.
    PullRequests,
}

impl TrustClass {
    /// The last folder of the cache's prefix.
    pub fn folder(self) -> &'static str {
        match self {
            Self::DefaultBranch => "default-branch",
            Self::PullRequests => "pull-requests",
        }
    }
}

/// The result, before `on-unavailable` is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthResult {
    Oidc,
    Ambient,
    Anonymous(AuthReason),
    Broken(AuthReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    Oidc,
    Ambient,
    Anonymous,
    Error,
}

impl AuthMode {
    pub fn word(self) -> &'static str {
        match self {
            Self::Oidc => "oidc",
            Self::Ambient => "ambient",
            Self::Anonymous => "anonymous",
            Self::Error => "error",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Line,
    Notice,
    Warning,
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActionOutputs {
    pub mode: AuthMode,
    pub reason: AuthReason,
    /// Whether this is normal for the event.
    pub expected: bool,
    /// Whether the job goes on without credentials.
    pub degraded: bool,
    /// Whether later steps can write to S3.
    pub can_write: bool,
    pub exit: u8,
    pub level: LogLevel,
}

/// The outputs and the exit code for a result.
pub fn action_outputs(ended: AuthResult, policy: OnUnavailable) -> ActionOutputs {
    let good = |mode| ActionOutputs {
        mode,
        reason: AuthReason::Ok,
        expected: true,
        degraded: false,
        can_write: true,
        exit: 0,
        level: LogLevel::Line,
    };
    match ended {
        AuthResult::Oidc => good(AuthMode::Oidc),
        AuthResult::Ambient => good(AuthMode::Ambient),
        AuthResult::Anonymous(reason) => {
            let fails = policy == OnUnavailable::Fail;
            // `permissions` can give Dependabot's runs a token, and a run doesn't know whether its
            // workflow has tried that. So the job goes on, with a warning that says so.
            let expected = reason != AuthReason::Dependabot;
            ActionOutputs {
                mode: AuthMode::Anonymous,
                reason,
                expected,
                degraded: true,
                can_write: false,
                exit: fails.into(),
                level: match (fails, expected) {
                    (true, _) => LogLevel::Error,
                    (false, true) => LogLevel::Notice,
                    (false, false) => LogLevel::Warning,
                },
            }
        }
        AuthResult::Broken(reason) => {
            let softened = policy == OnUnavailable::Degrade;
            ActionOutputs {
                mode: if softened { AuthMode::Anonymous } else { AuthMode::Error },
                reason,
                expected: false,
                degraded: softened,
                can_write: false,
                exit: if softened { 0 } else { exit_of(reason) },
                level: if softened { LogLevel::Warning } else { LogLevel::Error },
            }
        }
    }
}

/// 1 if the user can fix it, 2 for usage, the network and services.
fn exit_of(reason: AuthReason) -> u8 {
    match reason {
        AuthReason::NoPermission | AuthReason::PartialToken | AuthReason::StsDenied => 1,
        _ => 2,
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
