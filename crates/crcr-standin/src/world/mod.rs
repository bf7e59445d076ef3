//! The GitHub behind the REST API and the webhooks: repositories, an App and its installations, pull
//! requests, check runs, comments, dispatches, re-runs and rate limits.
//!
//! Tests and the demo use [`World`]; the code under test uses the REST API. Whatever a call changes
//! counts as unseen until the test reads it, so that [`World::leftovers`] shows at the end of a test
//! what the code did and nobody expected.

#![expect(clippy::result_large_err, reason = "a handler's error is a whole HTTP response")]

mod actions_settings;
mod api;
mod auth;
mod calls;
mod checks;
mod git;
mod hook_log;
mod job_logs;
mod lookups;
mod model;
mod repo_call;
mod webhooks;

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;

pub(crate) use api::routes;
pub use auth::{AppIdentity, CLIENT_ID};
pub use calls::Call;
pub use hook_log::{HookSettings, LoggedDelivery};
pub(crate) use lookups::by_number;
pub use model::{CheckRun, Comment, Dispatch, PullRequest, Started};
pub use webhooks::{Answer, Delivery};

use crate::traffic::Fault;
use calls::ApiCalls;
use model::{WorldInstallation, WorldRepo};

/// GitHub's state. Each method locks it while it runs.
#[derive(Debug, Default)]
pub struct World {
    inner: Mutex<WorldState>,
}

/// Generating a key is slow, so all worlds of a process share one.
static APP: LazyLock<AppIdentity> = LazyLock::new(AppIdentity::generate);

#[derive(Debug, Default)]
struct WorldState {
    /// By name in lower case, because GitHub ignores case.
    repos: BTreeMap<String, WorldRepo>,
    installations: BTreeMap<u64, WorldInstallation>,
    tokens: BTreeMap<String, auth::IssuedToken>,
    /// Users' tokens, and whether each may read teams.
    readers: BTreeMap<String, bool>,
    /// Old names of renamed repositories, with the repository's number.
    moved: BTreeMap<String, u64>,
    people: BTreeSet<String>,
    teams: BTreeSet<(String, String)>,
    /// Organisation, team and login.
    members: BTreeSet<(String, String, String)>,
    /// By repository in lower case and pull request, oldest first.
    reviews: BTreeMap<(String, u64), Vec<Value>>,
    dispatches: Vec<Dispatch>,
    reruns: Vec<Started>,
    calls: ApiCalls,
    hook_log: hook_log::HookLog,
    started: Option<mpsc::UnboundedSender<Started>>,
    ids: u64,
}

impl WorldState {
    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        700_000 + self.ids
    }

    fn repo(&self, name: &str) -> Option<&WorldRepo> {
        self.repos.get(&name.to_lowercase())
    }

    fn repo_mut(&mut self, name: &str) -> Option<&mut WorldRepo> {
        self.repos.get_mut(&name.to_lowercase())
    }

    fn expect(&mut self, name: &str) -> &mut WorldRepo {
        self.repo_mut(name).unwrap_or_else(|| panic!("`{name}` was added to the world before"))
    }

    fn tell(&self, started: Started) {
        if let Some(listener) = &self.started {
            // The receiver may have been dropped.
            let _ = listener.send(started);
        }
    }
}

impl World {
    /// The only App of this GitHub.
    pub fn app(&self) -> &AppIdentity {
        &APP
    }

    /// Adds the public repository `owner/name` with the default branch `main`, unless it exists;
    /// returns its number.
    pub fn add_repo(&self, name: &str) -> u64 {
        let mut inner = self.lock();
        if let Some(known) = inner.repo(name) {
            return known.id;
        }
        let id = inner.next_id();
        inner.repos.insert(name.to_lowercase(), WorldRepo::new(id, name));
        id
    }

    /// Deletes a repository. Its name can be used again, its number can't.
    pub fn delete_repo(&self, name: &str) {
        self.lock().repos.remove(&name.to_lowercase());
    }

    /// Installs the App on `name`, which is added when it is new, with all permissions that the relay
    /// needs; returns the installation's number.
    pub fn install(&self, name: &str) -> u64 {
        let all = ["actions", "checks", "contents", "pull_requests"];
        self.install_with(name, &all.map(|permission| (permission, "write")))
    }

    /// Installs the App with these permissions and `metadata: read`.
    pub fn install_with(&self, name: &str, permissions: &[(&str, &str)]) -> u64 {
        self.add_repo(name);
        let mut inner = self.lock();
        let id = inner.next_id();
        let granted = permissions.iter().copied().chain([("metadata", "read")]);
        let permissions = granted.map(|(p, level)| (p.to_owned(), level.to_owned())).collect();
        inner.installations.insert(id, WorldInstallation { permissions, suspended_at: None });
        inner.expect(name).installation = Some(id);
        id
    }

    /// Removes the App from `name`, and revokes its tokens.
    pub fn uninstall(&self, name: &str) {
        let mut inner = self.lock();
        if let Some(id) = inner.expect(name).installation.take() {
            inner.installations.remove(&id);
            inner.tokens.retain(|_, token| token.installation != id);
        }
    }

    /// Suspends the installation on `name`, or ends its suspension with `None`.
    pub fn suspend(&self, name: &str, since: Option<Timestamp>) {
        let mut inner = self.lock();
        let id = inner.expect(name).installation.expect("the App is installed there");
        if let Some(installation) = inner.installations.get_mut(&id) {
            installation.suspended_at = since;
        }
    }

    /// Revokes all installation tokens, as GitHub does when permissions change.
    pub fn revoke_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// Puts a file on the default branch.
    pub fn put_file(&self, name: &str, path: &str, bytes: impl Into<Vec<u8>>) {
        self.lock().expect(name).files.insert(path.to_owned(), bytes.into());
    }

    /// Renames the default branch of the repository `name`.
    pub fn rename_default_branch(&self, name: &str, to: &str) {
        to.clone_into(&mut self.lock().expect(name).default_branch);
    }

    /// Removes a file from the default branch.
    pub fn remove_file(&self, name: &str, path: &str) {
        self.lock().expect(name).files.remove(path);
    }

    /// Sets which files the comparison of a pull request's head with its base shows.
    pub fn set_changed_files(&self, name: &str, head_sha: &str, files: &[&str]) {
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        self.lock().expect(name).changed.insert(head_sha.to_owned(), files);
    }

    /// Adds the commit `sha`, which has no parent, to the repository `name`.
    pub fn add_commit(&self, name: &str, sha: &str) {
        self.lock().expect(name).commit(sha, &[], Timestamp::UNIX_EPOCH);
    }

    /// Adds the commit `sha`, committed at `at` on top of `parent`, to the repository `name`.
    pub fn add_commit_on(&self, name: &str, sha: &str, parent: &str, at: Timestamp) {
        self.lock().expect(name).commit(sha, &[parent], at);
    }

    /// Adds a merge of other commits into the first one.
    pub fn add_merge(&self, name: &str, sha: &str, parents: &[&str], at: Timestamp) {
        self.lock().expect(name).commit(sha, parents, at);
    }

    /// Opens a pull request, or replaces the one of that number. Its head commit is added, on top of
    /// its base.
    pub fn put_pull(&self, name: &str, pull: PullRequest) {
        let mut inner = self.lock();
        let repo = inner.expect(name);
        repo.head_of(&pull);
        repo.pulls.insert(pull.number, pull);
    }

    /// Changes a pull request.
    ///
    /// # Panics
    /// When there is no such pull request.
    pub fn change_pull(&self, name: &str, number: u64, change: impl FnOnce(&mut PullRequest)) {
        let mut inner = self.lock();
        let repo = inner.expect(name);
        let pull = repo.pulls.get_mut(&number).expect("the pull request was opened before");
        change(pull);
        let pull = pull.clone();
        repo.head_of(&pull);
    }

    /// The pull request as it is now.
    pub fn pull(&self, name: &str, number: u64) -> Option<PullRequest> {
        self.lock().repo(name)?.pulls.get(&number).cloned()
    }

    /// A receiver of everything that starts workflow runs from now on, as GitHub's runners get it. A
    /// second call replaces the first receiver.
    pub fn listen(&self) -> mpsc::UnboundedReceiver<Started> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.lock().started = Some(sender);
        receiver
    }

    /// The dispatches since the last call of this, oldest first.
    pub fn take_dispatches(&self) -> Vec<Dispatch> {
        std::mem::take(&mut self.lock().dispatches)
    }

    /// The re-runs since the last call of this.
    pub fn take_reruns(&self) -> Vec<Started> {
        std::mem::take(&mut self.lock().reruns)
    }

    /// Adds a check run of GitHub Actions (App 15368), as a workflow of the pull request could.
    pub fn add_foreign_check_run(&self, name: &str, head_sha: &str, run: &str, conclusion: &str) {
        let mut inner = self.lock();
        let (id, suite) = (inner.next_id(), inner.next_id());
        let Some(repo) = inner.repo_mut(name) else { return };
        let run = CheckRun {
            id,
            suite,
            head_sha: head_sha.to_owned(),
            app: 15368,
            name: run.to_owned(),
            external_id: None,
            details_url: None,
            status: "completed".to_owned(),
            conclusion: Some(conclusion.to_owned()),
            title: String::new(),
            summary: String::new(),
            updates: 0,
            seen: true,
        };
        repo.check_runs.insert(id, run);
    }

    /// Another App is used from now on: those check runs that `name` has are of the one before.
    pub fn replace_app(&self, name: &str) {
        let mut inner = self.lock();
        let Some(repo) = inner.repo_mut(name) else { return };
        repo.check_runs.values_mut().for_each(|run| run.app = 1);
    }

    /// The check runs of `name`, by number, but those that have ended and that a newer one of their name stands for:
    /// that is in their place. All count as seen until they change.
    pub fn check_runs(&self, name: &str) -> Vec<CheckRun> {
        let mut shown: Vec<CheckRun> = vec![];
        let mut places: HashMap<_, usize> = HashMap::new();
        for run in self.all_check_runs(name) {
            let of_name = (run.app, run.head_sha.clone(), run.name.clone());
            match places.get(&of_name).copied() {
                Some(place) if shown[place].status == "completed" => shown[place] = run,
                _ => {
                    places.insert(of_name, shown.len());
                    shown.push(run);
                }
            }
        }
        shown
    }

    /// All check runs of `name`, by number. They count as seen until they change.
    pub fn all_check_runs(&self, name: &str) -> Vec<CheckRun> {
        let mut inner = self.lock();
        let Some(repo) = inner.repo_mut(name) else { return vec![] };
        repo.check_runs.values_mut().for_each(|run| run.seen = true);
        repo.check_runs.values().cloned().collect()
    }

    /// A person comments on a pull request.
    pub fn comment(&self, name: &str, number: u64, author: &str, body: &str) {
        let mut inner = self.lock();
        let id = inner.next_id();
        let (author, body) = (author.to_owned(), body.to_owned());
        inner.expect(name).comments.push(Comment { id, number, body, author, seen: true });
    }

    /// The comments on a pull request, oldest first. They count as seen.
    pub fn comments(&self, name: &str, number: u64) -> Vec<Comment> {
        let mut inner = self.lock();
        let Some(repo) = inner.repo_mut(name) else { return vec![] };
        let of_this = repo.comments.iter_mut().filter(|comment| comment.number == number);
        of_this
            .map(|comment| {
                comment.seen = true;
                comment.clone()
            })
            .collect()
    }

    /// All calls so far, including refused ones.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.all.clone()
    }

    /// How many calls matched `route`, as in [`World::fail`].
    pub fn count(&self, route: &str) -> usize {
        self.lock().calls.all.iter().filter(|call| calls::matches(route, &call.route())).count()
    }

    /// Lets the next `times` calls of `route` fail with `fault`. A route is `METHOD /path` without a
    /// query, like `POST /repos/acme/backend/dispatches`, and may end with `*`.
    pub fn fail(&self, route: &str, times: usize, fault: Fault) {
        self.lock().calls.fail(route, times, fault);
    }

    /// Ends an outage: the faults that didn't happen yet don't happen.
    pub fn clear_faults(&self) {
        self.lock().calls.clear_faults();
    }

    /// Sets the rate limit: `remaining` calls until `reset`, then 5,000 an hour again.
    pub fn limit(&self, remaining: u64, reset: Timestamp) {
        self.lock().calls.limit(remaining, reset);
    }

    /// Dispatches, re-runs, comments and check runs that the test hasn't read, and faults that didn't
    /// happen. Empty at the end of a good test.
    pub fn leftovers(&self) -> Vec<String> {
        let inner = self.lock();
        let mut left: Vec<String> =
            inner.dispatches.iter().map(|d| format!("dispatch to {}", d.repository)).collect();
        left.extend(inner.reruns.iter().map(|started| format!("{started:?}")));
        for repo in inner.repos.values() {
            let runs = repo.check_runs.values().filter(|run| !run.seen);
            left.extend(runs.map(|run| format!("check run {} on {}", run.name, repo.full_name)));
            let comments = repo.comments.iter().filter(|comment| !comment.seen);
            left.extend(comments.map(|c| format!("comment on {}#{}", repo.full_name, c.number)));
        }
        left.extend(inner.calls.unmet());
        left
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.inner.lock()
    }
}
