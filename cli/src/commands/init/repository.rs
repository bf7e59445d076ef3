//! What is known of the repository that `crcr init` runs in, and of the actions that it will use.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crcr_domain::RepoName;
use serde_yaml::Value;

use super::FOLDER;
use super::template::ActionsPin;
use crate::cli::init::InitArgs;
use crate::commands::git::{Git, is_commit};
use crate::commands::workflow::starts_on;
use crate::commands::{no_temporary_folder, working_folder};
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

/// How long a server may take to list its branches.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
const GITHUB: &str = "https://github.com";
/// Longer workflow files aren't read.
const MAX_WORKFLOW_BYTES: u64 = 1024 * 1024;

pub struct LocalRepository<'a> {
    /// Where its files are.
    pub top: PathBuf,
    name: RepoName,
    actions: &'a str,
    server: String,
    /// The server of `origin`, if the environment names none. It doesn't decide about the workflow: it can be a mirror.
    server_of_branches: String,
    env: &'a Env,
    printer: &'a Printer,
}

impl<'a> LocalRepository<'a> {
    pub async fn find(
        init: &'a InitArgs,
        env: &'a Env,
        printer: &'a Printer,
    ) -> Result<Self, Failure> {
        let cwd = working_folder()?;
        let git = Git::new(&cwd, GITHUB, None, printer);
        let top = git.capture(&["rev-parse", "--show-toplevel"]).await;
        let origin = git.capture(&["config", "--get", "remote.origin.url"]).await;
        let named = env.get(env_vars::GITHUB_SERVER_URL);
        let server = named.unwrap_or(GITHUB).trim_end_matches('/').to_owned();
        let is_origins = named.is_none() && init.repository.is_none();
        let of_origin = origin.as_deref().ok().filter(|_| is_origins).and_then(server_of);
        let server_of_branches = of_origin.unwrap_or_else(|| server.clone());
        let name = match &init.repository {
            Some(name) => name.clone(),
            None => {
                let unknown = |why: &str| {
                    Failure::user(
                        "unknown-repository",
                        format!("this repository has no name: {why}"),
                    )
                    .hint("run it in a clone, or name it: `--repository OWNER/REPO`")
                };
                let url = origin.map_err(|error| match error.code() {
                    "no-git" => error,
                    _ => unknown("git knows no remote `origin` here"),
                })?;
                repository_name(&url).ok_or_else(|| {
                    unknown("the address of `origin` isn't of the form OWNER/REPO")
                })?
            }
        };
        let top = top.map_or(cwd, PathBuf::from);
        Ok(Self { top, name, actions: &init.actions, server, server_of_branches, env, printer })
    }

    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The branch that is named, or that GitHub names, or that git remembers from the clone.
    pub async fn default_branch(&self, named: Option<&str>) -> Option<String> {
        if let Some(named) = named {
            return Some(named.to_owned());
        }
        // The token is GitHub's, and `origin` can be anybody's server.
        let server = &self.server_of_branches;
        let token = self.env.get(env_vars::GITHUB_TOKEN).filter(|_| *server == self.server);
        let git = Git::new(&self.top, server, token, self.printer);
        let url = format!("{server}/{}", self.name);
        if let Ok(refs) = list_refs(&git, &url, &["HEAD"]).await
            && let Some(branch) = refs.head_branch()
        {
            return Some(branch.to_owned());
        }
        let head = ["symbolic-ref", "--short", "refs/remotes/origin/HEAD"];
        let branch = git.capture(&head).await.ok()?;
        let branch = branch.strip_prefix("origin/")?.to_owned();
        self.printer.warning(
            &format!("GitHub can't be asked for the default branch; git remembers `{branch}`"),
            Some("name it if it isn't that one: `--default-branch NAME`"),
        );
        Some(branch)
    }

    pub fn server(&self) -> &str {
        &self.server
    }

    /// The server that runs the jobs. If `origin` is elsewhere, it may be a mirror, and a repository of that name at
    /// GitHub may be somebody else's.
    pub fn certain_server(&self) -> Result<&str, Failure> {
        let Self { server, server_of_branches: origin, name, .. } = self;
        if origin == server {
            return Ok(server);
        }
        let message = format!(
            "`origin` is at `{origin}`, and the repository `{name}` of `{server}` may be somebody else's"
        );
        Err(Failure::user("unknown-server", message).hint(format!(
            "set `GITHUB_SERVER_URL={origin}` if jobs run there; if `origin` is a mirror, name the repository: \
             `--repository {name}`"
        )))
    }

    /// For a command that can't do without; offers the branch that is checked out.
    pub async fn no_default_branch(&self) -> Failure {
        let git = Git::new(&self.top, &self.server, None, self.printer);
        let current = git.capture(&["symbolic-ref", "--short", "HEAD"]).await.ok();
        let current = current.filter(|branch| !branch.is_empty());
        let hint = match &current {
            Some(branch) => {
                format!("if it is the branch you are on, pass `--default-branch {branch}`")
            }
            None => "name it: `--default-branch main`".to_owned(),
        };
        let message =
            "GitHub can't be asked for the default branch, and this clone doesn't remember it";
        Failure::unexpected("default-branch", message).hint(hint)
    }

    /// The commit that pins the actions.
    pub async fn actions_pin(&self) -> Result<ActionsPin, Failure> {
        let (name, reference) = match self.actions.split_once('@') {
            Some((name, reference)) => (name, Some(reference)),
            None => (self.actions, None),
        };
        let repository = RepoName::new(name).map_err(|error| {
            let message =
                format!("`--actions {}` names no repository: {error}", name.escape_debug());
            Failure::unexpected("usage", message)
                .hint("write it as `OWNER/REPO` or `OWNER/REPO@REF`, such as `pytorch/crcr@v1`")
        })?;
        let repository = repository.to_string();
        if let Some(commit) = reference.filter(|reference| is_commit(reference)) {
            return Ok(ActionsPin { repository, commit: commit.to_owned(), name: None });
        }
        // Not in this repository's folder: its settings could send git to another server.
        let nowhere = tempfile::tempdir().map_err(no_temporary_folder)?;
        let git = Git::new(nowhere.path(), &self.server, None, self.printer);
        let url = format!("{}/{repository}", self.server);
        let wanted = reference.unwrap_or("v1");
        let (tag, branch) = (format!("refs/tags/{wanted}"), format!("refs/heads/{wanted}"));
        let peeled = format!("{tag}^{{}}");
        let refs = list_refs(&git, &url, &["HEAD", &tag, &peeled, &branch]).await;
        let refs = refs.map_err(|error| {
            let message = format!("the commit of `{}` can't be looked up", self.actions);
            Failure::unexpected("github-unavailable", message)
                .because(anyhow::anyhow!("{error}: {}", error.causes().join("; ")))
                .hint(format!("name the commit: `--actions {repository}@COMMIT`"))
        })?;
        let named = [&peeled, &tag, &branch].into_iter().find_map(|name| refs.commit(name));
        let found = match (named, reference) {
            (Some(commit), _) => Some((commit, wanted)),
            (None, Some(_)) => None,
            (None, None) => refs.commit("HEAD").zip(refs.head_branch()),
        };
        let (commit, name) = found.ok_or_else(|| {
            Failure::user(
                "actions-unknown",
                format!("`{repository}` has no tag or branch `{wanted}`"),
            )
            .hint(format!("name the commit: `--actions {repository}@COMMIT`"))
        })?;
        let (commit, name) = (commit.to_owned(), Some(name.to_owned()));
        Ok(ActionsPin { repository, commit, name })
    }

    /// The workflows here that a push or a pull request starts.
    pub fn workflows_with_tests(&self) -> Result<TestedWorkflows, Failure> {
        let folder = self.top.join(FOLDER);
        let (mut names, mut nameless) = (vec![], vec![]);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_yaml = path.extension().is_some_and(|end| end == "yml" || end == "yaml");
            let small = entry
                .metadata()
                .is_ok_and(|file| file.is_file() && file.len() <= MAX_WORKFLOW_BYTES);
            if is_yaml && small {
                match fs::read_to_string(&path).ok().and_then(|text| tested_name(&text)) {
                    Some(name) if name.is_empty() => {
                        nameless.push(format!("`{}`", entry.file_name().to_string_lossy()));
                    }
                    name => names.extend(name),
                }
            }
        }
        names.sort();
        names.dedup();
        nameless.sort();
        if names.is_empty() {
            let which = match nameless.is_empty() {
                true => "no workflow".to_owned(),
                false => format!("no workflow with a `name`, and {} without,", nameless.join(", ")),
            };
            let message = format!("{which} in `{FOLDER}` starts on `push` or `pull_request`");
            return Err(Failure::user("no-workflows", message)
                .hint("name the workflows that have tests: `--workflow NAME`"));
        }
        Ok(TestedWorkflows { names, nameless })
    }
}

/// Workflows that a push or a pull request starts.
pub struct TestedWorkflows {
    pub names: Vec<String>,
    /// The quoted files of those without a name, which `workflow_run` can't list.
    pub nameless: Vec<String>,
}

/// The name of a workflow that a push or a pull request starts; empty if it has none.
fn tested_name(text: &str) -> Option<String> {
    let workflow: Value = serde_yaml::from_str(text).ok()?;
    let started = ["push", "pull_request"].iter().any(|event| starts_on(&workflow, event));
    started.then(|| match workflow.get("name") {
        // GitHub takes no expression there.
        Some(Value::String(name)) if !name.contains("${{") => name.clone(),
        Some(Value::Number(name)) => name.to_string(),
        _ => String::new(),
    })
}

/// What `git ls-remote --symref` prints.
struct RemoteRefs(String);

impl RemoteRefs {
    fn commit(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.lines().filter_map(|line| line.split_once('\t'));
        pairs.find(|(commit, found)| *found == name && is_commit(commit)).map(|(commit, _)| commit)
    }

    fn head_branch(&self) -> Option<&str> {
        self.0.lines().find_map(|line| {
            line.strip_prefix("ref: refs/heads/").and_then(|line| line.strip_suffix("\tHEAD"))
        })
    }
}

async fn list_refs(git: &Git<'_>, url: &str, patterns: &[&str]) -> Result<RemoteRefs, Failure> {
    let line = [&["ls-remote", "--symref", "--", url], patterns].concat();
    let listed = tokio::time::timeout(LIST_TIMEOUT, git.capture(&line)).await;
    let timed_out = |_| Failure::unexpected("git", "`git ls-remote` took longer than 20 seconds");
    listed.map_err(timed_out)?.map(RemoteRefs)
}

/// `owner/repo` of a remote's address: HTTPS, SSH or the short form of SSH.
fn repository_name(url: &str) -> Option<RepoName> {
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/')?.1,
        None => url.split_once(':').map_or(url, |(_, path)| path),
    };
    let path = path.trim_matches('/');
    RepoName::new(path.strip_suffix(".git").unwrap_or(path)).ok()
}

/// Where a remote of this address is, such as Enterprise Server. An alias in SSH's configuration has no dot, or is of
/// the form that GitHub's pages show: `github.com-work`.
fn server_of(url: &str) -> Option<String> {
    let is_http = url.starts_with("http://") || url.starts_with("https://");
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_http => (scheme, rest.split('/').next()?),
        Some(("ssh", rest)) => ("https", rest.split('/').next()?),
        Some(_) => return None,
        None => ("https", url.split_once(':')?.0),
    };
    let host = rest.rsplit('@').next()?;
    // The port is that of SSH.
    let host = if is_http { host } else { host.split(':').next()? };
    let host = match host.to_ascii_lowercase() {
        host if host == "ssh.github.com" => "github.com".to_owned(),
        host => host,
    };
    let is_alias = !host.contains('.') || host.starts_with("github.com-");
    (is_http || !is_alias).then(|| format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_addresses_name_their_server() {
        for (url, server) in [
            ("https://token@ghe.acme.example:8443/acme/backend", "https://ghe.acme.example:8443"),
            ("http://localhost:3000/acme/backend.git", "http://localhost:3000"),
            ("git@ghe.acme.example:acme/backend.git", "https://ghe.acme.example"),
            ("ssh://git@ghe.acme.example:22/acme/backend", "https://ghe.acme.example"),
            ("ssh://git@ssh.github.com:443/acme/backend", "https://github.com"),
            ("https://GitHub.com/acme/backend", "https://github.com"),
        ] {
            assert_eq!(server_of(url).as_deref(), Some(server), "{url}");
        }
        for url in [
            "github-work:acme/backend",
            "git@github.com-work:acme/backend",
            "/srv/git/backend.git",
            "file:///srv/git/a/b",
            "",
        ] {
            assert_eq!(server_of(url), None, "{url}");
        }
    }

    #[test]
    fn remote_addresses_name_their_repository() {
        for url in [
            "https://github.com/acme/backend.git",
            "https://token@github.com/acme/backend",
            "git@github.com:acme/backend.git",
            "ssh://git@github.com:22/acme/backend.git",
        ] {
            assert_eq!(repository_name(url).unwrap().as_str(), "acme/backend", "{url}");
        }
        for url in ["/srv/git/backend.git", "https://example.com/a/b/c", "https://github.com", ""] {
            assert!(repository_name(url).is_none(), "{url}");
        }
    }
}
