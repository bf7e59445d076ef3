//! Decides which commit of which repository to check out, from the flags and the dispatched event.

use crcr_domain::protocol::event::is_sha;
use crcr_domain::repo::RepoName;
use crcr_github::SecureUrl;
use serde::Deserialize;

use crate::cli::checkout::CheckoutArgs;
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::runner::Runner;

#[derive(Debug)]
pub struct CheckoutSource {
    pub repository: RepoName,
    pub sha: String,
    /// The pull request's head repository, if it is another one.
    pub head_repository: Option<RepoName>,
    pub pull_request: Option<u64>,
}

/// The fields of `client_payload` that are needed. All are untrusted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClientPayload {
    payload: DispatchPayload,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DispatchPayload {
    repository: Option<RepositoryRef>,
    pull_request: Option<DispatchedPullRequest>,
    merge_group: Option<MergeGroup>,
    after: Option<String>,
}

/// A merge queue's group, whose commit is on a branch of the upstream repository.
#[derive(Debug, Deserialize)]
struct MergeGroup {
    head_sha: String,
}

#[derive(Debug, Deserialize)]
struct DispatchedPullRequest {
    number: u64,
    head: PullRequestHead,
}

#[derive(Debug, Deserialize)]
struct PullRequestHead {
    sha: String,
    repo: Option<RepositoryRef>,
}

#[derive(Debug, Deserialize)]
struct RepositoryRef {
    full_name: String,
}

impl CheckoutSource {
    /// Flags win over the event. Repository and hash are validated, because they become arguments of
    /// git.
    pub fn find(args: &CheckoutArgs, runner: &Runner) -> Result<Self, Failure> {
        let payload = dispatched(runner)?;
        let pull = payload.pull_request;
        let event_sha = pull
            .as_ref()
            .map(|pull| pull.head.sha.clone())
            .or(payload.merge_group.map(|group| group.head_sha))
            .or(payload.after);
        let chosen = args.sha.is_some() || args.repository.is_some();
        let nothing = |what: &str| {
            Failure::user("no-commit", format!("nothing says which {what} to check out")).hint(
                "run on `repository_dispatch`, whose payload the relay made, or set the inputs \
                 `repository` and `sha`",
            )
        };
        let named = payload.repository.map(|repository| repository.full_name);
        let repository = args.repository.clone().or(named).ok_or_else(|| nothing("repository"))?;
        let sha = args.sha.clone().or(event_sha).ok_or_else(|| nothing("commit"))?;
        if !is_sha(&sha) {
            return Err(Failure::user(
                "bad-sha",
                format!("`{}` isn't a full commit hash", shortened(&sha)),
            )
            .hint("a commit is named by its 40 hexadecimal digits; branches and tags move"));
        }
        if sha.bytes().all(|byte| byte == b'0') {
            return Err(Failure::user("no-commit", "the push deleted the branch")
                .hint("there is nothing to build; skip this job on deletions"));
        }
        let repository = repository_name(&repository)?;
        let fork = pull.as_ref().and_then(|pull| pull.head.repo.as_ref());
        let fork = fork.map(|fork| repository_name(&fork.full_name)).transpose()?;
        Ok(Self {
            head_repository: fork.filter(|fork| *fork != repository && !chosen),
            pull_request: pull.filter(|_| !chosen).map(|pull| pull.number),
            repository,
            sha: sha.to_ascii_lowercase(),
        })
    }

    /// The ref of GitHub's merge result.
    pub fn merge_ref(&self) -> Result<String, Failure> {
        self.pull_request.map(|number| format!("refs/pull/{number}/merge")).ok_or_else(|| {
            Failure::user("no-merge", "only a dispatched pull request has a merge result")
                .hint("leave `merge` out for pushes and for a commit of your own choice")
        })
    }
}

fn dispatched(runner: &Runner) -> Result<DispatchPayload, Failure> {
    let Some(payload) = runner.event()?.client_payload else {
        return Ok(DispatchPayload::default());
    };
    serde_json::from_value::<ClientPayload>(payload).map(|dispatched| dispatched.payload).map_err(
        |error| {
            Failure::user("client-payload", "the dispatched payload isn't what the relay sends")
                .because(error)
                .hint("set the inputs `repository` and `sha` for a dispatch of your own")
        },
    )
}

fn repository_name(text: &str) -> Result<RepoName, Failure> {
    text.parse::<RepoName>().map_err(|error| {
        Failure::user("bad-repository", format!("`{}` isn't a repository", shortened(text)))
            .because(error)
            .hint("a repository is named as `owner/repo`")
    })
}

/// Limits the length of untrusted text in a message.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// GitHub's address, without a final slash.
pub fn server(args: &CheckoutArgs, env: &Env) -> Result<String, Failure> {
    let given = args.server_url.as_deref().or_else(|| env.get(env_vars::GITHUB_SERVER_URL));
    let given = given.unwrap_or("https://github.com").trim_end_matches('/');
    let url = given.parse::<SecureUrl>().ok().filter(|url| url.query().is_none());
    url.map(|url| url.as_str().trim_end_matches('/').to_owned()).ok_or_else(|| {
        Failure::user(
            "server-url",
            format!("`{}` isn't the https address of a GitHub", shortened(given)),
        )
        .hint("leave `server-url` out for the GitHub that runs this job")
    })
}
