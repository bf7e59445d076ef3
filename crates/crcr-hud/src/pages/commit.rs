//! `/commit/{sha}`: what happened to a commit. Seven digits of it are enough.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::RepoName;
use crcr_domain::ci_data::pull_request::PullRequestState;
use crcr_domain::ci_data::workflow::{BranchCommit, changed_files};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::facts::{AttemptFact, DispatchFact};
use crcr_results::Window;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::head::{self, NextStep, in_tree, out_of_tree};
use crate::address::{self, branch_path};
use crate::context::{Hud, PageError};
use crate::layout::{ago, changed_file_list, short_sha};
use crate::model::head::{HeadFacts, InTreeJobs, OwnRuns, PullBackend, own_runs};
use crate::model::known_repositories;
use crate::view::View;

/// GitHub shortens to seven digits at least.
pub(crate) const MIN_DIGITS: usize = 7;
/// Repositories in which a commit is looked for.
const MAX_REPOSITORIES: usize = 100;
/// Repositories and kinds of webhooks that are asked at the same time.
const CONCURRENT_READS: usize = 8;
/// Commits that one prefix may mean.
const MAX_COMMITS: usize = 20;
/// Dispatches of the commits of one prefix that are read.
const MAX_DISPATCHES: usize = 1000;
/// Attempts without a pull request on the commits of one prefix that are read.
const MAX_ATTEMPTS: usize = 1000;
/// A longer list of changed files is folded.
const MAX_FILES_OPEN: usize = 20;
/// The lengths of a whole SHA.
const WHOLE: [usize; 2] = [40, 64];
/// What is dispatched in so short a time is read at once.
const MERGED_SPAN: SignedDuration = SignedDuration::from_mins(5);
/// Spans that are read, the newest ones: whoever closes and reopens a pull request after a month has its commit
/// dispatched again, and the results in between are everybody's.
const MAX_SPANS: usize = 24;

/// `?upstream=OWNER/REPO`: the repository whose commit it is. A fork has the commits of its upstream.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct CommitQuery {
    upstream: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct CommitModel {
    /// The digits that were asked for.
    pub(crate) asked: String,
    /// The only commit that has them.
    pub(crate) commit: Option<CommitDetails>,
    /// All commits that have them, if there are more.
    pub(crate) others: Vec<FoundCommit>,
}

/// Where a commit was heard of.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub(crate) struct FoundCommit {
    pub(crate) repository: String,
    pub(crate) sha: String,
    pub(crate) title: String,
    pub(crate) author: String,
    /// When it was first heard of.
    pub(crate) at: Option<Timestamp>,
    /// The pull requests that it was the head of, and the one that its title names.
    pub(crate) pull_requests: BTreeSet<u64>,
    /// The branches that it was pushed to.
    pub(crate) branches: BTreeSet<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct CommitDetails {
    #[serde(flatten)]
    pub(crate) found: FoundCommit,
    /// Title, author and branches of its pull request, if it was the head of one.
    pub(crate) pull_request: Option<PullRequestState>,
    /// From L4 down to L1.
    pub(crate) backends: Vec<PullBackend>,
    /// Nightly runs and others that no dispatch started, from L4 down to L2.
    pub(crate) own_runs: Vec<OwnRuns>,
    /// Whether nothing waits for backends: it is of a branch, or its pull request is merged.
    pub(crate) is_merged: bool,
    /// The files that its push changed.
    pub(crate) changed_files: Vec<String>,
    #[serde(flatten)]
    pub(crate) jobs: InTreeJobs,
}

impl CommitDetails {
    fn is_stored(&self) -> bool {
        self.found.at.is_some() || !self.jobs.in_tree.is_empty()
    }
}

impl FoundCommit {
    fn heard(&mut self, at: Timestamp) {
        self.at = Some(self.at.map_or(at, |known| known.min(at)));
    }
}

/// The commits of `named` and of all known repositories whose SHA begins with these digits, the newest first.
pub(crate) async fn find(
    hud: &Hud,
    named: &RepoName,
    prefix: &str,
) -> Result<Vec<FoundCommit>, PageError> {
    let mut found: BTreeMap<(String, String), FoundCommit> = BTreeMap::new();
    let mut known = vec![hud.upstream.as_str().to_owned()];
    for event in ["workflow_job", "push"] {
        let repositories = known_repositories::read(hud, event, MAX_REPOSITORIES).await?;
        known.extend(repositories.into_iter().map(|known| known.name));
    }
    known.push(named.as_str().to_owned());
    let mut seen = BTreeSet::new();
    known.retain(|name| seen.insert(name.to_ascii_lowercase()));
    let places = known.iter().flat_map(|repository| {
        ["push", "workflow_run", "pull_request"].map(|event| (repository, event))
    });
    let asked = stream::iter(places).map(async |(repository, event)| {
        let selection = ThingSelection::CommitPrefix(prefix);
        let query = ThingQuery { event, repository, selection };
        Ok::<_, PageError>((repository, hud.results.current_things(&query).await?))
    });
    let mut answers = asked.buffered(CONCURRENT_READS);
    while let Some((repository, rows)) = answers.try_next().await? {
        for row in rows {
            let key = (repository.to_ascii_lowercase(), row.sha.clone());
            let commit = found.entry(key).or_default();
            commit.repository.clone_from(repository);
            commit.sha.clone_from(&row.sha);
            commit.heard(row.received_at);
            let of_branch = BranchCommit::from_row(&row);
            if row.event == "pull_request" || of_branch.is_none() {
                commit.pull_requests.extend(row.number);
            }
            let Some(of_branch) = of_branch else { continue };
            commit.pull_requests.extend(of_branch.pull_request);
            if !row.branch.is_empty() {
                commit.branches.insert(row.branch);
            }
            if commit.title.is_empty() {
                (commit.title, commit.author) = (of_branch.title, of_branch.author);
            }
        }
    }
    for sent in hud.results.dispatches_of_commits(prefix, MAX_DISPATCHES).await? {
        let key = (sent.upstream.to_ascii_lowercase(), sent.head_sha.clone());
        let commit = found.entry(key).or_default();
        (commit.repository, commit.sha) = (sent.upstream, sent.head_sha);
        commit.heard(sent.enqueued_at);
        commit.pull_requests.extend(sent.pull_request);
    }
    for row in hud.results.attempts_of_commits(prefix, MAX_ATTEMPTS).await? {
        let key = (row.upstream.to_ascii_lowercase(), row.head_sha.clone());
        let commit = found.entry(key).or_default();
        (commit.repository, commit.sha) = (row.upstream, row.head_sha);
        commit.heard(row.received_at);
    }
    let mut found: Vec<FoundCommit> = found.into_values().collect();
    found.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.sha.cmp(&b.sha)));
    found.truncate(MAX_COMMITS);
    Ok(found)
}

/// Whether a commit of a repository has a page.
pub(crate) async fn is_known(hud: &Hud, repository: &str, sha: &str) -> Result<bool, PageError> {
    if !hud.results.dispatches_of_commits(sha, 1).await?.is_empty()
        || !hud.results.attempts_of_commits(sha, 1).await?.is_empty()
    {
        return Ok(true);
    }
    for event in ["push", "workflow_run", "pull_request"] {
        let selection = ThingSelection::CommitPrefix(sha);
        let query = ThingQuery { event, repository, selection };
        if !hud.results.current_things(&query).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) fn is_prefix(text: &str) -> bool {
    (MIN_DIGITS..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(crate) async fn build(
    hud: &Hud,
    sha: String,
    query: CommitQuery,
) -> Result<CommitModel, PageError> {
    let asked: String = sha.trim().to_lowercase().chars().take(64).collect();
    if !is_prefix(&asked) {
        let text = format!(
            "`{asked}` isn't a commit: its SHA has hexadecimal digits, of which the first {MIN_DIGITS} are enough"
        );
        return Err(PageError::Query(text));
    }
    let upstream = hud.upstream_of(query.upstream.as_deref())?;
    let is_named = |commit: &FoundCommit| commit.repository.eq_ignore_ascii_case(upstream.as_str());
    let mut found = find(hud, &upstream, &asked).await?;
    if found.iter().any(|commit| commit.sha == asked) {
        found.retain(|commit| commit.sha == asked);
    }
    let is_one = found.windows(2).all(|pair| pair[0].sha == pair[1].sha);
    if (is_one || query.upstream.is_some()) && found.iter().any(is_named) {
        found.retain(is_named);
    }
    let chosen = match found.len() {
        // Pages name commits of which no more is stored, such as the one that broke something.
        0 if WHOLE.contains(&asked.len()) => FoundCommit {
            repository: upstream.to_string(),
            sha: asked.clone(),
            ..FoundCommit::default()
        },
        0 => {
            let text = format!(
                "no commit `{asked}` is known: it was neither pushed nor dispatched in the time that is kept"
            );
            return Err(PageError::NotFound(text));
        }
        1 => found.remove(0),
        _ => return Ok(CommitModel { asked, commit: None, others: found }),
    };
    let commit = Some(details(hud, chosen).await?);
    Ok(CommitModel { asked, commit, others: vec![] })
}

async fn details(hud: &Hud, found: FoundCommit) -> Result<CommitDetails, PageError> {
    let upstream = RepoName::new(&found.repository)
        .map_err(|_| PageError::NotFound("this commit is of no repository".to_owned()))?;
    let mut dispatches = hud.results.dispatches_of_commits(&found.sha, MAX_DISPATCHES).await?;
    dispatches.retain(|sent| {
        sent.event != EventName::Probe && sent.upstream.eq_ignore_ascii_case(&found.repository)
    });
    let mut attempts = vec![];
    for window in windows(&dispatches) {
        let rows = hud.results.attempts(&window).await?;
        let of_dispatch =
            |row: &AttemptFact| row.head_sha == found.sha && !row.event.is_self_reported();
        attempts.extend(rows.into_iter().filter(of_dispatch));
    }
    let mut own = hud.results.attempts_of_commits(&found.sha, MAX_ATTEMPTS).await?;
    own.retain(|row| {
        let is_of = |sent: &DispatchFact| {
            sent.delivery == row.delivery && sent.repo.eq_ignore_ascii_case(&row.repo)
        };
        row.upstream.eq_ignore_ascii_case(&found.repository) && !dispatches.iter().any(is_of)
    });
    let number = dispatches.iter().find_map(|sent| sent.pull_request);
    let merge_base = match number {
        Some(number) => {
            let known = hud.results.merge_bases(upstream.as_str(), &[number]).await?;
            known.into_iter().find(|known| known.head_sha == found.sha)
        }
        None => None,
    };
    let facts = HeadFacts {
        upstream: &upstream,
        head_sha: &found.sha,
        pull_request: number,
        attempts: &attempts,
        dispatches: &dispatches,
        merge_base,
    };
    let backends = facts.backends(hud).await?;
    let jobs = InTreeJobs::read(hud, &upstream, &found.sha).await?;
    let pull_request = match found.pull_requests.first() {
        Some(number) => {
            let selection = ThingSelection::Number(*number);
            let query =
                ThingQuery { event: "pull_request", repository: upstream.as_str(), selection };
            let rows = hud.results.current_things(&query).await?;
            rows.iter().find_map(PullRequestState::from_row)
        }
        None => None,
    };
    let own_runs = own_runs(hud, &own);
    let changed_files = files_of(hud, &upstream, &found.sha).await?;
    let of_branch =
        |sent: &DispatchFact| sent.pull_request.is_none() && sent.event != EventName::MergeGroup;
    let is_merged = match &pull_request {
        Some(pull) if pull.is_merged => true,
        None => dispatches.iter().all(of_branch),
        Some(_) => !dispatches.is_empty() && dispatches.iter().all(of_branch),
    };
    let details =
        CommitDetails { found, pull_request, backends, own_runs, is_merged, changed_files, jobs };
    Ok(details)
}

/// The files that pushes with this head changed.
async fn files_of(hud: &Hud, upstream: &RepoName, sha: &str) -> Result<Vec<String>, PageError> {
    let shas = [sha.to_owned()];
    let selection = ThingSelection::Commits(&shas);
    let query = ThingQuery { event: "push", repository: upstream.as_str(), selection };
    let pushes = hud.results.current_things(&query).await?;
    let files: BTreeSet<String> = pushes.iter().flat_map(changed_files).collect();
    Ok(files.into_iter().collect())
}

/// When dispatches were accepted, which are sorted by that.
pub(crate) fn windows(dispatches: &[DispatchFact]) -> Vec<Window> {
    let mut windows: Vec<Window> = vec![];
    for sent in dispatches {
        let to = sent.enqueued_at + SignedDuration::from_millis(1);
        match windows.last_mut() {
            Some(last) if to.duration_since(last.from) <= MERGED_SPAN => last.to = to,
            _ => windows.push(Window::all(sent.enqueued_at, to)),
        }
    }
    windows.split_off(windows.len().saturating_sub(MAX_SPANS))
}

pub(crate) fn page(model: &CommitModel, view: &View<'_>) -> Markup {
    let Some(commit) = &model.commit else { return several(model, view) };
    let CommitDetails { found, pull_request, .. } = commit;
    let title = match pull_request {
        Some(pull) if found.title.is_empty() => &pull.title,
        _ => &found.title,
    };
    let next = NextStep {
        view,
        upstream: &found.repository,
        pull_request: found.pull_requests.first().copied(),
        head_sha: &found.sha,
        merge_base_url: None,
        is_merged: commit.is_merged,
    };
    view.shell(
        &format!("{} {title}", short_sha(&found.sha)),
        true,
        &html! {
            div.title {
                h1 { @if title.is_empty() { "Commit" } @else { bdi { (title) } } " " code { (short_sha(&found.sha)) } }
                a href=(view.commit_url(&found.repository, &found.sha)) rel="noreferrer" { "on GitHub" }
            }
            p.detail {
                bdi { (found.repository) }
                @if !found.author.is_empty() { " · by " bdi { (found.author) } }
                @else if let Some(pull) = pull_request { @if !pull.author.is_empty() { " · by " bdi { (pull.author) } } }
                @if let Some(at) = found.at { " · " (ago(at)) }
                " · " code { (found.sha) }
            }
            p {
                @for number in &found.pull_requests {
                    a href=(format!("/pr/{number}?upstream={}", found.repository)) { "Pull request #" (number) } " "
                }
                @for branch in &found.branches {
                    a rel="nofollow" href=(format!("{}?rows=all&commit={1}#c-{1}", branch_path(&found.repository, branch), short_sha(&found.sha))) { "Its place on " bdi { (branch) } } " "
                }
            }
            @if !commit.is_stored() {
                p.note role="status" {
                    "Nothing is stored about this commit: it is older than what is kept, or nothing ran on it and it wasn't the last commit of a push. "
                    a href=(view.commit_url(&found.repository, &found.sha)) rel="noreferrer" { "Look for it on GitHub" } "."
                }
            }
            @if !commit.changed_files.is_empty() { (changed_file_list(&commit.changed_files, commit.changed_files.len() <= MAX_FILES_OPEN)) }
            @if commit.backends.is_empty() {
                section aria-labelledby="out-of-tree" {
                    h2 #out-of-tree { "Out-of-tree backends" }
                    p.muted { "No backend was told of this commit." }
                }
            } @else { (out_of_tree(&commit.backends, &next)) }
            @if !commit.own_runs.is_empty() { (head::own_runs(&commit.own_runs, &found.repository)) }
            @if commit.jobs.in_tree.is_empty() {
                section aria-labelledby="in-tree" { h2 #in-tree { "In-tree jobs" } p.muted { "No job of the repository itself is known on this commit." } }
            } @else { (in_tree(&commit.jobs, &found.repository)) }
        },
    )
}

/// More than one commit begins with the digits.
fn several(model: &CommitModel, view: &View<'_>) -> Markup {
    view.shell(
        &format!("Commits {}", model.asked),
        false,
        &html! {
            h1 { "Commits that begin with " code { (model.asked) } }
            ul.plain { @for commit in &model.others { li {
                a href=(address::commit(&commit.repository, &commit.sha)) { code { (commit.sha) } } " " bdi { (commit.title) }
                " " span.detail { bdi { (commit.repository) } @if let Some(at) = commit.at { " · " (ago(at)) } }
            } } }
        },
    )
}
