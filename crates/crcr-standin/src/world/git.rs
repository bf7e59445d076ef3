//! Branches, trees, commits, and pull requests that are opened, changed and closed over the API.
//!
//! The default branch is the repository's `files`: its head is a commit of what they are at the moment.

use std::sync::Arc;

use aws_lc_rs::digest;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::World;
use super::api::{ApiResult, TEXT_CHARS, TITLE_CHARS, check_length, page, parse, refusal};
use super::model::{Files, PullRequest, WorldCommit, WorldRepo, label};
use super::repo_call::{PathBelowRepo, RepoCall};
use crate::State;

const LABEL_CHARS: usize = 50;

impl World {
    /// A token as a job of `name` gets it in `GITHUB_TOKEN`, with these permissions.
    pub fn job_token(&self, name: &str, permissions: &[(&str, &str)]) -> String {
        self.install_with(name, permissions);
        let mut inner = self.lock();
        let id = inner.expect(name).installation.expect("it was installed");
        let answer = inner.issue(id, Default::default(), Timestamp::now(), "");
        let answer = answer.expect("the installation has what it was given");
        answer["token"].as_str().expect("a token is text").to_owned()
    }

    /// Points a branch at a commit, as a push does.
    pub fn put_branch(&self, name: &str, branch: &str, sha: &str) {
        self.lock().expect(name).branches.insert(branch.to_owned(), sha.to_owned());
    }

    /// The branches of a repository, without the default one.
    pub fn branches(&self, name: &str) -> Vec<String> {
        self.lock().expect(name).branches.keys().cloned().collect()
    }

    /// A file of a branch or of a commit.
    pub fn file_at(&self, name: &str, reference: &str, path: &str) -> Option<Vec<u8>> {
        self.lock().expect(name).files_at(Some(reference))?.get(path).cloned()
    }

    /// The pull requests of a repository by number.
    pub fn pulls(&self, name: &str) -> Vec<PullRequest> {
        self.lock().expect(name).pulls.values().cloned().collect()
    }

    /// Merges a pull request of the repository's own branch; the branch stays.
    pub fn merge_pull(&self, name: &str, number: u64) {
        let mut inner = self.lock();
        let repo = inner.expect(name);
        let pull = repo.pulls.get_mut(&number).expect("the pull request was opened before");
        (pull.open, pull.merged) = (false, true);
        let sha = pull.head_sha.clone();
        repo.files = repo.files_at(Some(&sha)).expect("its head has files").clone();
    }

    /// Closes a pull request as a maintainer does, without merging it.
    pub fn close_pull(&self, name: &str, number: u64) {
        self.change_pull(name, number, |pull| pull.open = false);
    }
}

impl WorldRepo {
    /// The files of a branch or commit; of the default branch without one, and for a commit whose files
    /// nobody gave.
    pub(crate) fn files_at(&self, reference: Option<&str>) -> Option<&Files> {
        let Some(name) = reference.filter(|name| *name != self.default_branch) else {
            return Some(&self.files);
        };
        let name = name.strip_prefix("refs/heads/").unwrap_or(name);
        let sha = self.branches.get(name).map_or(name, String::as_str);
        match self.commits.get(sha) {
            Some(WorldCommit { tree: Some(tree), .. }) => self.trees.get(tree),
            // Tests name commits that they never made.
            _ => Some(&self.files),
        }
    }

    fn add_tree(&mut self, files: Files) -> String {
        let sha = hash(&format!("{files:?}"));
        self.trees.insert(sha.clone(), files);
        sha
    }

    /// The newest commit of a branch.
    fn branch_head(&mut self, branch: &str, now: Timestamp) -> Option<String> {
        if branch != self.default_branch {
            return self.branches.get(branch).cloned();
        }
        let tree = self.add_tree(self.files.clone());
        let sha = hash(&format!("{branch} {tree}"));
        let commit = WorldCommit { parents: vec![], tree: Some(tree), committed_at: now };
        self.commits.entry(sha.clone()).or_insert(commit);
        Some(sha)
    }

    fn own_pulls_of<'a>(
        &'a mut self,
        branch: &'a str,
    ) -> impl Iterator<Item = &'a mut PullRequest> {
        let name = &self.full_name;
        self.pulls.values_mut().filter(move |pull| {
            pull.open
                && pull.head_ref == branch
                && pull.head_repository.as_ref().is_some_and(|head| head.eq_ignore_ascii_case(name))
        })
    }

    /// Points a branch at a commit. Like GitHub, closes its pull requests when nothing is left to merge.
    fn set_branch(&mut self, branch: &str, sha: &str, now: Timestamp) {
        self.branches.insert(branch.to_owned(), sha.to_owned());
        let main = self.default_branch.clone();
        let nothing_left = self.branch_head(&main, now).as_deref() == Some(sha);
        for pull in self.own_pulls_of(branch) {
            sha.clone_into(&mut pull.head_sha);
            pull.updated_at = now;
            pull.open = !nothing_left;
        }
    }
}

fn hash(text: &str) -> String {
    hex::encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

pub(crate) fn routes() -> Router<Arc<State>> {
    let at = |path: &str| format!("/repos/{{owner}}/{{repo}}{path}");
    Router::new()
        .route(&at("/git/ref/heads/{*branch}"), get(branch))
        .route(&at("/git/matching-refs/heads/{*prefix}"), get(matching))
        .route(&at("/git/trees"), post(create_tree))
        .route(&at("/git/commits"), post(create_commit))
        .route(&at("/git/refs"), post(create_branch))
        .route(&at("/git/refs/heads/{*branch}"), axum::routing::patch(move_branch).delete(delete))
        .route(&at("/pulls"), get(pulls).post(open_pull))
}

fn ref_json(branch: &str, sha: &str, origin: &str) -> Value {
    let url = format!("{origin}/git/commits/{sha}");
    json!({ "ref": format!("refs/heads/{branch}"), "node_id": "REF_1",
        "url": format!("{origin}/git/refs/heads/{branch}"),
        "object": { "type": "commit", "sha": sha, "url": url } })
}

async fn branch(call: RepoCall, Path((.., branch)): PathBelowRepo<String>) -> ApiResult {
    let (mut inner, now) = (call.state.world.lock(), call.state.clock.now());
    let repo = call.permitted(&mut inner, "contents", "read")?;
    let sha = repo.branch_head(&branch, now).ok_or_else(|| refusal(404, "Not Found"))?;
    Ok(Json(ref_json(&branch, &sha, call.state.origin())).into_response())
}

async fn matching(call: RepoCall, Path((.., prefix)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "read")?;
    let found = repo.branches.iter().filter(|(name, _)| name.starts_with(&prefix));
    let list = found.map(|(name, sha)| ref_json(name, sha, call.state.origin())).collect();
    Ok(Json(page(call.uri.query(), list)).into_response())
}

async fn create_tree(call: RepoCall, body: Bytes) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        base_tree: String,
        tree: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        path: String,
        content: String,
    }
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "write")?;
    let body: Body = parse(&body)?;
    let base = repo.trees.get(&body.base_tree);
    let mut files = base.ok_or_else(|| refusal(404, "Not Found"))?.clone();
    files.extend(body.tree.into_iter().map(|entry| (entry.path, entry.content.into_bytes())));
    let sha = repo.add_tree(files);
    Ok((StatusCode::CREATED, Json(json!({ "sha": sha, "truncated": false }))).into_response())
}

async fn create_commit(call: RepoCall, body: Bytes) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        message: String,
        tree: String,
        parents: Vec<String>,
    }
    let (mut inner, now) = (call.state.world.lock(), call.state.clock.now());
    let repo = call.permitted(&mut inner, "contents", "write")?;
    let Body { message, tree, parents } = parse(&body)?;
    if !repo.trees.contains_key(&tree) || !parents.iter().all(|sha| repo.commits.contains_key(sha))
    {
        return Err(refusal(422, "Tree SHA or parent does not exist"));
    }
    let sha = hash(&format!("{message} {tree} {parents:?}"));
    repo.commits.insert(sha.clone(), WorldCommit { parents, tree: Some(tree), committed_at: now });
    Ok((StatusCode::CREATED, Json(json!({ "sha": sha, "message": message }))).into_response())
}

async fn create_branch(call: RepoCall, body: Bytes) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        r#ref: String,
        sha: String,
    }
    let (mut inner, now) = (call.state.world.lock(), call.state.clock.now());
    let repo = call.permitted(&mut inner, "contents", "write")?;
    let Body { r#ref, sha } = parse(&body)?;
    let branch = r#ref.strip_prefix("refs/heads/").unwrap_or_default();
    // <https://git-scm.com/docs/git-check-ref-format>
    let part = |part: &str| part.is_empty() || part.starts_with('.') || part.ends_with(".lock");
    if branch.split('/').any(part) || branch.contains("..") || branch.ends_with('.') {
        return Err(refusal(422, "Reference name is not a valid ref name"));
    }
    if repo.branches.contains_key(branch) {
        return Err(refusal(422, "Reference already exists"));
    }
    if !repo.commits.contains_key(&sha) {
        return Err(refusal(422, "Object does not exist"));
    }
    repo.set_branch(branch, &sha, now);
    Ok((StatusCode::CREATED, Json(ref_json(branch, &sha, call.state.origin()))).into_response())
}

async fn move_branch(
    call: RepoCall,
    Path((.., branch)): PathBelowRepo<String>,
    body: Bytes,
) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        sha: String,
        #[serde(default)]
        force: bool,
    }
    let (mut inner, now) = (call.state.world.lock(), call.state.clock.now());
    let repo = call.permitted(&mut inner, "contents", "write")?;
    let Body { sha, force } = parse(&body)?;
    let Some(old) = repo.branches.get(&branch) else {
        return Err(refusal(422, "Reference does not exist"));
    };
    if !repo.commits.contains_key(&sha) {
        return Err(refusal(422, "Object does not exist"));
    }
    if !force && !repo.history(&sha).contains(&old.as_str()) {
        return Err(refusal(422, "Update is not a fast forward"));
    }
    repo.set_branch(&branch, &sha, now);
    Ok(Json(ref_json(&branch, &sha, call.state.origin())).into_response())
}

async fn delete(call: RepoCall, Path((.., branch)): PathBelowRepo<String>) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "contents", "write")?;
    if repo.branches.remove(&branch).is_none() {
        return Err(refusal(422, "Reference does not exist"));
    }
    repo.own_pulls_of(&branch).for_each(|pull| pull.open = false);
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn pulls(call: RepoCall) -> ApiResult {
    let mut inner = call.state.world.lock();
    let repo = call.permitted(&mut inner, "pull_requests", "read")?;
    let pairs = url::form_urlencoded::parse(call.uri.query().unwrap_or_default().as_bytes());
    let value = |name: &str| pairs.clone().find(|(key, _)| key == name).map(|(_, value)| value);
    let (wanted, head) = (value("state"), value("head"));
    let chosen = repo.pulls.values().rev().filter(|pull| {
        let is_wanted = match wanted.as_deref().unwrap_or("open") {
            "all" => true,
            state => (state == "open") == pull.open,
        };
        // GitHub compares the owner of the head's repository, whatever its name.
        let owner = pull.head_repository.as_deref().and_then(|name| name.split('/').next());
        let label = format!("{}:{}", owner.unwrap_or_default(), pull.head_ref);
        is_wanted && head.as_deref().is_none_or(|head| head == label)
    });
    let mut chosen: Vec<_> = chosen.collect();
    if value("sort").as_deref() == Some("updated") {
        chosen.sort_by_key(|pull| std::cmp::Reverse(pull.updated_at));
    }
    let list = chosen.into_iter().map(|pull| repo.pull_json(pull, call.state.origin())).collect();
    Ok(Json(page(call.uri.query(), list)).into_response())
}

async fn open_pull(call: RepoCall, body: Bytes) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        title: String,
        head: String,
        base: String,
        #[serde(default)]
        body: String,
    }
    let (mut inner, now) = (call.state.world.lock(), call.state.clock.now());
    let repo = call.permitted(&mut inner, "pull_requests", "write")?;
    let Body { title, head, base, body } = parse(&body)?;
    check_length("title", &title, TITLE_CHARS)?;
    check_length("body", &body, TEXT_CHARS)?;
    let invalid = |why: &str| refusal(422, &format!("Validation Failed: {why}"));
    let (head_sha, base_sha) = (repo.branch_head(&head, now), repo.branch_head(&base, now));
    let head_sha = head_sha.ok_or_else(|| invalid("head is invalid"))?;
    let base_sha = base_sha.ok_or_else(|| invalid("base is invalid"))?;
    if head_sha == base_sha {
        return Err(invalid(&format!("No commits between {base} and {head}")));
    }
    if repo.own_pulls_of(&head).next().is_some() {
        return Err(invalid(&format!("A pull request already exists for {}:{head}.", call.owner)));
    }
    let number = repo.pulls.keys().next_back().unwrap_or(&100) + 1;
    let pull = PullRequest {
        title,
        body,
        author: "github-actions[bot]".to_owned(),
        head_repository: Some(repo.full_name.clone()),
        head_ref: head,
        base_ref: base,
        base_sha,
        ..PullRequest::from_fork(number, &call.name, &head_sha, now)
    };
    let answer = repo.pull_json(&pull, call.state.origin());
    repo.pulls.insert(number, pull);
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

pub(crate) async fn edit_pull(
    call: RepoCall,
    Path((.., number)): PathBelowRepo<u64>,
    body: Bytes,
) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        title: Option<String>,
        body: Option<String>,
        state: Option<String>,
    }
    let now = call.state.clock.now();
    call.at_pull(number, "write", |repo| {
        let change: Body = parse(&body)?;
        check_length("title", change.title.as_deref().unwrap_or_default(), TITLE_CHARS)?;
        check_length("body", change.body.as_deref().unwrap_or_default(), TEXT_CHARS)?;
        let pull = repo.pulls.get_mut(&number).ok_or_else(|| refusal(404, "Not Found"))?;
        pull.title = change.title.unwrap_or(std::mem::take(&mut pull.title));
        pull.body = change.body.unwrap_or(std::mem::take(&mut pull.body));
        pull.open = change.state.map_or(pull.open, |state| state == "open");
        pull.updated_at = now;
        Ok(Json(repo.pull_json(&repo.pulls[&number], call.state.origin())).into_response())
    })
}

pub(crate) async fn add_labels(
    call: RepoCall,
    Path((.., number)): PathBelowRepo<u64>,
    body: Bytes,
) -> ApiResult {
    #[derive(Deserialize)]
    struct Body {
        labels: Vec<String>,
    }
    call.at_pull(number, "write", |repo| {
        let Body { labels } = parse(&body)?;
        labels.iter().try_for_each(|name| check_length("name", name, LABEL_CHARS))?;
        repo.labels.extend(labels.iter().cloned());
        let pull = repo.pulls.get_mut(&number).ok_or_else(|| refusal(404, "Not Found"))?;
        pull.labels.extend(labels);
        let all: Vec<_> = pull.labels.iter().map(|name| label(name, call.state.origin())).collect();
        Ok(Json(all).into_response())
    })
}
