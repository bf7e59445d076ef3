//! The stored objects, and their JSON in the API.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::actions_settings::ActionsSettings;

#[derive(Debug)]
pub(crate) struct WorldRepo {
    pub(crate) id: u64,
    pub(crate) full_name: String,
    pub(crate) default_branch: String,
    pub(crate) installation: Option<u64>,
    pub(crate) archived: bool,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) files: Files,
    pub(crate) commits: BTreeMap<String, WorldCommit>,
    /// All branches but the default one, whose files are `files`.
    pub(crate) branches: BTreeMap<String, String>,
    pub(crate) tags: BTreeMap<String, String>,
    /// The files of the trees that the API made, by hash.
    pub(crate) trees: BTreeMap<String, Files>,
    pub(crate) pulls: BTreeMap<u64, PullRequest>,
    pub(crate) comments: Vec<Comment>,
    pub(crate) check_runs: BTreeMap<u64, CheckRun>,
    pub(crate) job_logs: BTreeMap<u64, Vec<u8>>,
    pub(crate) settings: ActionsSettings,
    /// The files that a pull request's head changes, by the head.
    pub(crate) changed: BTreeMap<String, Vec<String>>,
}

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

#[derive(Debug)]
pub(crate) struct WorldCommit {
    pub(crate) parents: Vec<String>,
    /// `None` for a commit whose files no test looks at.
    pub(crate) tree: Option<String>,
    pub(crate) committed_at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct WorldInstallation {
    pub(crate) permissions: BTreeMap<String, String>,
    pub(crate) suspended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    pub number: u64,
    pub title: String,
    pub body: String,
    pub author: String,
    /// `owner/name` of the repository with its commits; `None` when it was deleted.
    pub head_repository: Option<String>,
    pub head_ref: String,
    pub head_sha: String,
    pub base_ref: String,
    /// The commit of that branch when the pull request last changed.
    pub base_sha: String,
    pub labels: BTreeSet<String>,
    pub open: bool,
    pub merged: bool,
    pub draft: bool,
    /// Whether the author has never contributed to the repository.
    pub is_stranger: bool,
    pub updated_at: Timestamp,
}

impl PullRequest {
    /// A pull request from the branch `topic` of a fork into `main`.
    pub fn from_fork(number: u64, upstream: &str, head_sha: &str, updated_at: Timestamp) -> Self {
        let name = upstream.rsplit('/').next().unwrap_or_default();
        Self {
            number,
            title: "Speed up the reduction kernel".to_owned(),
            body: "Uses one pass where two were made.".to_owned(),
            author: "contributor".to_owned(),
            head_repository: Some(format!("contributor/{name}")),
            head_ref: "topic".to_owned(),
            head_sha: head_sha.to_owned(),
            base_ref: "main".to_owned(),
            base_sha: "b5".repeat(20),
            labels: BTreeSet::new(),
            open: true,
            merged: false,
            draft: false,
            is_stranger: false,
            updated_at,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRun {
    pub id: u64,
    /// Its check suite; there is one for each commit.
    pub suite: u64,
    pub head_sha: String,
    /// The number of the App that made it.
    pub app: u64,
    pub name: String,
    pub external_id: Option<String>,
    pub details_url: Option<String>,
    /// `queued`, `in_progress` or `completed`.
    pub status: String,
    pub conclusion: Option<String>,
    pub title: String,
    pub summary: String,
    /// The number of updates since its creation.
    pub updates: u32,
    pub(crate) seen: bool,
}

/// A comment on a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    pub id: u64,
    pub number: u64,
    pub body: String,
    pub author: String,
    pub(crate) seen: bool,
}

/// A `repository_dispatch` event that GitHub accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// The repository whose workflows it starts.
    pub repository: String,
    /// Matched against `types:` of the workflows.
    pub event_type: String,
    pub client_payload: Value,
}

/// Something that starts a workflow run.
#[derive(Debug, Clone, PartialEq)]
pub enum Started {
    Dispatch(Dispatch),
    Rerun { repository: String, run_id: u64, attempt: u32, failed_only: bool },
}

impl WorldRepo {
    pub(crate) fn new(id: u64, full_name: &str) -> Self {
        Self {
            id,
            full_name: full_name.to_owned(),
            default_branch: "main".to_owned(),
            installation: None,
            archived: false,
            labels: BTreeSet::new(),
            files: BTreeMap::new(),
            commits: BTreeMap::new(),
            branches: BTreeMap::new(),
            tags: BTreeMap::new(),
            trees: BTreeMap::new(),
            pulls: BTreeMap::new(),
            comments: Vec::new(),
            check_runs: BTreeMap::new(),
            job_logs: BTreeMap::new(),
            settings: ActionsSettings::default(),
            changed: BTreeMap::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.full_name.rsplit('/').next().unwrap_or_default()
    }

    pub(crate) fn owner(&self) -> &str {
        self.full_name.split('/').next().unwrap_or_default()
    }

    pub(crate) fn json(&self, origin: &str) -> Value {
        let full_name = &self.full_name;
        json!({
            "id": self.id, "node_id": node_id("Repository", self.id),
            "name": self.name(), "full_name": full_name,
            "private": false, "owner": user(self.owner(), origin), "fork": false,
            "html_url": format!("{origin}/{full_name}"), "description": null,
            "url": format!("{origin}/repos/{full_name}"),
            "clone_url": format!("{origin}/{full_name}.git"),
            "default_branch": self.default_branch, "visibility": "public",
            "archived": self.archived,
        })
    }

    /// Adds a commit unless it exists.
    pub(crate) fn commit(&mut self, sha: &str, parents: &[&str], committed_at: Timestamp) {
        let parents = parents.iter().map(|sha| (*sha).to_owned()).collect();
        let commit = WorldCommit { parents, tree: None, committed_at };
        self.commits.entry(sha.to_owned()).or_insert(commit);
    }

    /// Adds the commits that a pull request names.
    pub(crate) fn head_of(&mut self, pull: &PullRequest) {
        self.commit(&pull.base_sha, &[], pull.updated_at);
        self.commit(&pull.head_sha, &[&pull.base_sha], pull.updated_at);
    }

    /// The commit and its ancestors, each before its parents; empty when it doesn't exist.
    pub(crate) fn history<'a>(&'a self, sha: &'a str) -> Vec<&'a str> {
        let (mut found, mut seen) = (vec![], HashSet::new());
        let mut open = vec![(sha, false)];
        while let Some((sha, has_parents)) = open.pop() {
            if has_parents {
                found.push(sha);
            } else if let Some(commit) = self.commits.get(sha)
                && seen.insert(sha)
            {
                open.push((sha, true));
                open.extend(commit.parents.iter().rev().map(|sha| (sha.as_str(), false)));
            }
        }
        found.reverse();
        found
    }

    pub(crate) fn changed_files(&self, head: &str) -> &[String] {
        self.changed.get(head).map(Vec::as_slice).unwrap_or_default()
    }

    /// A commit as the compare API shows it.
    pub(crate) fn commit_json(&self, sha: &str, origin: &str) -> Value {
        let full_name = &self.full_name;
        let url = format!("{origin}/repos/{full_name}/commits/{sha}");
        let commit = self.commits.get(sha);
        let date = commit.map(|commit| commit.committed_at);
        let parents = commit.map(|commit| commit.parents.as_slice()).unwrap_or_default();
        let person = json!({ "date": date, "email": "a@example.org", "name": "A" });
        let parents: Vec<Value> = parents.iter().map(|sha| json!({ "sha": sha })).collect();
        json!({
            "sha": sha, "node_id": "C_1", "url": url, "comments_url": format!("{url}/comments"),
            "html_url": format!("{origin}/{full_name}/commit/{sha}"), "parents": parents,
            "author": user("octocat", origin), "committer": user("octocat", origin),
            "commit": { "author": person, "committer": person, "message": "Change",
                "comment_count": 0, "url": url, "tree": { "sha": "0".repeat(40), "url": url } },
        })
    }

    /// The pull request as the API and webhooks show it.
    pub(crate) fn pull_json(&self, pull: &PullRequest, origin: &str) -> Value {
        let side = |repo: Value, owner: &str, branch: &str, sha: &str| {
            json!({ "label": format!("{owner}:{branch}"), "ref": branch, "sha": sha,
                "user": user(owner, origin), "repo": repo })
        };
        let head_name = pull.head_repository.as_deref();
        let head_repo = head_name.map_or(Value::Null, |name| {
            if name.eq_ignore_ascii_case(&self.full_name) {
                return self.json(origin);
            }
            let mut fork = Self::new(self.id + 500_000, name).json(origin);
            fork["fork"] = json!(true);
            fork
        });
        let head_owner = head_name.and_then(|n| n.split('/').next()).unwrap_or("unknown");
        let labels: Vec<Value> = pull.labels.iter().map(|name| label(name, origin)).collect();
        let full_name = &self.full_name;
        let number = pull.number;
        json!({
            "url": format!("{origin}/repos/{full_name}/pulls/{number}"),
            "id": 1_000_000 + number, "node_id": node_id("PullRequest", number),
            "html_url": format!("{origin}/{full_name}/pull/{number}"), "number": number,
            "state": if pull.open { "open" } else { "closed" }, "locked": false,
            "title": pull.title, "user": user(&pull.author, origin), "body": pull.body,
            "created_at": pull.updated_at, "updated_at": pull.updated_at,
            "closed_at": (!pull.open).then_some(pull.updated_at),
            "merged_at": pull.merged.then_some(pull.updated_at),
            "labels": labels, "draft": pull.draft,
            "head": side(head_repo, head_owner, &pull.head_ref, &pull.head_sha),
            "base": side(self.json(origin), self.owner(), &pull.base_ref, &pull.base_sha),
            "author_association": if pull.is_stranger { "FIRST_TIME_CONTRIBUTOR" } else { "CONTRIBUTOR" },
            "merged": pull.merged,
        })
    }
}

/// A user or organisation; its number is computed from its name.
pub(crate) fn user(login: &str, origin: &str) -> Value {
    let id = login.bytes().fold(5381_u64, |hash, byte| (hash * 33 + u64::from(byte)) % 99_999_989);
    json!({
        "login": login, "id": id, "node_id": node_id("User", id),
        "html_url": format!("{origin}/{login}"), "url": format!("{origin}/users/{login}"),
        "type": if login.ends_with("[bot]") { "Bot" } else { "User" }, "site_admin": false,
    })
}

pub(crate) fn label(name: &str, origin: &str) -> Value {
    json!({ "id": name.len(), "node_id": node_id("Label", name.len() as u64), "name": name,
        "url": format!("{origin}/labels/{name}"), "color": "ededed", "default": false,
        "description": null })
}

pub(crate) fn node_id(kind: &str, id: u64) -> String {
    format!("{kind}_{id}")
}
