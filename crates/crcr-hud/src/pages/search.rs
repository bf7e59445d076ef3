//! `/search`: finds the page that a search is about, or lists what it may be about, by kind.

mod criteria;
mod newest_jobs;
mod pasted;
mod reported;

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::allowlist::level::LABEL_PREFIX;
use crcr_domain::ci_data::job_log::{EndedJob, JobLogRow};
use crcr_domain::ci_data::pull_request::PullRequestState;
use crcr_domain::ci_data::webhook::WebhookRow;
use crcr_domain::ci_data::workflow::{BranchCommit, WHOLE_RUN, WorkflowJob, changed_files};
use crcr_domain::{Level, RepoName};
use crcr_results::ci_times::{CiGrouping, CiTimesQuery, CiUnit, OTHER_NAMES};
use crcr_results::job_logs::FailedJobsQuery;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use self::criteria::criteria;
use self::newest_jobs::NewestJobs;
use self::reported::{ReportedWeek, reported};
use super::{commit, failure, overview, pull, quarantine, tests, trends};
use crate::address::{self, address, branch_path};
use crate::context::{Hud, PageError};
use crate::layout::short_sha;
use crate::model::known_repositories;
use crate::model::open_pulls::MAX_PULLS;
use crate::model::red_branches::trunk;
use crate::query::{MAX_SEARCH_CHARS, without_level};
use crate::view::View;

/// An address has filters, and may be longer than what is searched for.
const MAX_ADDRESS_CHARS: usize = 2000;
/// Pages of one kind that are listed.
const MAX_OF_A_KIND: usize = 50;
/// Pull requests that changed last, and commits that were pushed last: they are looked at for a title or an author.
const MAX_NEWEST: usize = 300;
const MAX_BRANCHES: usize = 200;
/// Jobs of these days are searched by name, and older ones only if none of these has it.
const JOB_DAYS: i64 = 7;
/// Events for which workflows run on a commit or a pull request.
const CHECK_EVENTS: [&str; 7] = [
    "pull_request",
    "pull_request_target",
    "push",
    "merge_group",
    "schedule",
    "workflow_dispatch",
    "repository_dispatch",
];
/// The longest window of the trends, which have jobs and runners of before.
const LONGEST_WINDOW: &str = "90d";
/// Failures that ended last: the lines that explain them are looked at.
const MAX_FAILURES: usize = 500;
const FAILURE_DAYS: i64 = 30;
/// A longer line of a log is cut.
const MAX_LINE_CHARS: usize = 300;

/// `?q=TEXT`.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct SearchQuery {
    #[serde(default)]
    q: String,
}

impl SearchQuery {
    fn text(&self) -> String {
        self.q.trim().chars().take(MAX_ADDRESS_CHARS).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HitKind {
    PullRequest,
    Commit,
    Backend,
    Criterion,
    Repository,
    Branch,
    Job,
    BackendJob,
    Runner,
    Test,
    BackendTest,
    Quarantine,
    Failure,
    Step,
    Machine,
}

impl HitKind {
    fn title(self) -> &'static str {
        match self {
            Self::PullRequest => "Pull requests",
            Self::Commit => "Commits",
            Self::Backend => "Backends",
            Self::Criterion => "Criteria of levels",
            Self::Repository => "Repositories",
            Self::Branch => "Branches",
            Self::Job => "Jobs",
            Self::BackendJob => "Jobs of backends",
            Self::Runner => "Runners",
            Self::Test => "Tests",
            Self::BackendTest => "Failed tests of backends",
            Self::Quarantine => "Quarantined tests",
            Self::Failure => "Failures",
            Self::Step => "Steps of jobs",
            Self::Machine => "Jobs on machines",
        }
    }
}

/// A page that the search may be about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct SearchHit {
    pub(crate) kind: HitKind,
    pub(crate) path: String,
    pub(crate) name: String,
}

pub(crate) enum SearchResult {
    /// The address of the one page.
    Page(String),
    Hits {
        text: String,
        hits: Vec<SearchHit>,
    },
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct SearchModel {
    /// The address of the page that the search is about, if there is only one.
    page: Option<String>,
    /// Otherwise those that it may be about.
    hits: Vec<SearchHit>,
}

pub(crate) async fn build(hud: &Hud, (): (), query: SearchQuery) -> Result<SearchModel, PageError> {
    Ok(match find(hud, (), query).await? {
        SearchResult::Page(page) => SearchModel { page: Some(page), hits: vec![] },
        SearchResult::Hits { hits, .. } => SearchModel { page: None, hits },
    })
}

pub(crate) async fn find(hud: &Hud, (): (), query: SearchQuery) -> Result<SearchResult, PageError> {
    let text = query.text();
    let bare = pasted::without_wrapping(&text);
    // Signs at its end are never part of an address, but may be part of any other name.
    let mut tried = if bare.contains("://") { vec![bare] } else { vec![&*text, bare] };
    tried.dedup();
    tried.retain(|text| !text.is_empty());
    for text in tried {
        if let Some(page) = pasted::page_of(hud, text).await? {
            return Ok(SearchResult::Page(page));
        }
        let text: String = text.chars().take(MAX_SEARCH_CHARS).collect();
        let hits = everything(hud, without_event(&text)).await?;
        if let [hit] = hits.as_slice() {
            return Ok(SearchResult::Page(hit.path.clone()));
        }
        if !hits.is_empty() {
            return Ok(SearchResult::Hits { text, hits });
        }
    }
    let text = text.chars().take(MAX_SEARCH_CHARS).collect();
    Ok(SearchResult::Hits { text, hits: vec![] })
}

/// GitHub writes the event behind the name of a check, as in `CI / test (pull_request)`.
fn without_event(text: &str) -> &str {
    match text.strip_suffix(')').and_then(|text| text.rsplit_once(" (")) {
        Some((name, event)) if CHECK_EVENTS.contains(&event) => name,
        _ => text,
    }
}

fn commit_path(hud: &Hud, repository: &str, sha: &str) -> String {
    address::commit_of(repository, hud.upstream.as_str(), sha)
}

/// The number in `7`, `#7`, `PR 7`, `Pull request #7`, `pull/7`, `GH-7` or `refs/pull/7/head`, and whether it is named as
/// that of a pull request.
fn pull_number(text: &str) -> Option<(u64, bool)> {
    let lower = text.to_ascii_lowercase();
    let rest = lower.strip_prefix("refs/").unwrap_or(&lower);
    let mut words = ["pull request", "pull/", "pr/", "pr", "gh-"].into_iter();
    let rest = words.find_map(|word| rest.strip_prefix(word)).unwrap_or(rest).trim_start();
    let digits = rest.trim_start_matches('#');
    let mut ends = ["/head", "/merge"].into_iter();
    let digits = ends.find_map(|end| digits.strip_suffix(end)).unwrap_or(digits);
    Some((digits.parse().ok()?, digits.len() < lower.len()))
}

/// What a bare number may be: that of a pull request, or the id of a job or a run. Pages write `run 7` and `job 7`, too.
async fn numbered(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_ascii_lowercase();
    let id = ["job ", "run "].into_iter().find_map(|word| lower.strip_prefix(word));
    if let Some(id) = id.and_then(|id| id.trim_start().parse().ok()) {
        return with_id(hud, id).await;
    }
    let Some((number, is_named)) = pull_number(text) else { return Ok(vec![]) };
    let pull = SearchHit {
        kind: HitKind::PullRequest,
        path: format!("/pr/{number}"),
        name: format!("{} #{number}", hud.upstream),
    };
    if is_named {
        return Ok(vec![pull]);
    }
    let mut hits = with_id(hud, number).await?;
    // GitHub may have a pull request that isn't known here, though none with so long a number as ids have.
    let is_short = hits.is_empty() && text.len() < commit::MIN_DIGITS;
    if is_short || pull::has_page(hud, &hud.upstream, number).await? {
        hits.insert(0, pull);
    }
    Ok(hits)
}

/// The jobs and runs that GitHub gave this id.
async fn with_id(hud: &Hud, id: u64) -> Result<Vec<SearchHit>, PageError> {
    let thing = id.to_string();
    let mut hits = vec![];
    for known in known_repositories::read(hud, "workflow_job", MAX_OF_A_KIND).await? {
        let repository = known.name.as_str();
        for event in ["workflow_job", "workflow_run"] {
            let query = ThingQuery { event, repository, selection: ThingSelection::Id(&thing) };
            let rows = hud.results.current_things(&query).await?;
            hits.extend(rows.iter().filter_map(|row| job_or_run(hud, repository, row)));
        }
    }
    let reported = reported(hud).await?;
    hits.extend(reported.iter().flat_map(|reported| reported.with_id(&thing)));
    Ok(hits)
}

/// The page of a job, or of a run's commit.
fn job_or_run(hud: &Hud, repository: &str, row: &WebhookRow) -> Option<SearchHit> {
    let (job, path) = if row.event == "workflow_job" {
        let job = WorkflowJob::from_row(row)?;
        let path = address::failure(repository, job.id);
        (job, path)
    } else {
        let run = WorkflowJob::of_run(row).filter(|run| commit::is_prefix(&run.head_sha))?;
        let path = commit_path(hud, repository, &run.head_sha);
        (run, path)
    };
    let sha = short_sha(&job.head_sha);
    let name = format!("{repository}: {} / {} on {sha}", job.workflow, job.name);
    Some(SearchHit { kind: HitKind::Job, path, name })
}

/// The SHA of `1a2b3c4`, `commit 1a2b3c4` or `1a2b3c4 TITLE`, and the newer one of `1a2b3c4..5d6e7f8`.
fn leading_sha(text: &str) -> &str {
    let named = match text.split_at_checked("commit ".len()) {
        Some((word, rest)) if word.eq_ignore_ascii_case("commit ") => rest.trim_start(),
        _ => text,
    };
    let sha = named.split(' ').next().unwrap_or_default();
    sha.rsplit("..").next().unwrap_or_default()
}

/// The commits that begin with these digits.
async fn with_sha(hud: &Hud, sha: &str) -> Result<Vec<SearchHit>, PageError> {
    let sha = &*sha.to_ascii_lowercase();
    if !commit::is_prefix(sha) {
        return Ok(vec![]);
    }
    let commits = commit::find(hud, &hud.upstream, sha).await?;
    let path = |found: &commit::FoundCommit| match &*commits {
        [_] => format!("/commit/{}", found.sha),
        _ => commit_path(hud, &found.repository, &found.sha),
    };
    let hit = |found: &commit::FoundCommit| SearchHit {
        kind: HitKind::Commit,
        path: path(found),
        name: format!("{} {} {}", found.repository, short_sha(&found.sha), found.title),
    };
    Ok(commits.iter().map(hit).collect())
}

/// All that fits, in the order of its kinds. Each kind is looked for whatever the others have, or the title of a commit
/// would hide the failure that it names.
async fn everything(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let mut hits = numbered(hud, text).await?;
    hits.extend(with_sha(hud, leading_sha(text)).await?);
    if !hits.is_empty() {
        hits.sort_by_key(|hit| hit.kind);
        return Ok(hits);
    }
    // Pages write `JOB on 1a2b3c4` and `TITLE 1a2b3c4`. A title may end with another commit's SHA.
    if let Some((_, last)) = text.rsplit_once(' ') {
        hits.extend(with_sha(hud, last).await?);
    }
    hits.extend(backends(hud, text));
    hits.extend(repositories(hud, text).await?);
    hits.extend(pulls(hud, text).await?);
    hits.extend(commits(hud, text).await?);
    hits.extend(branches(hud, text).await?);
    hits.extend(jobs_and_runners(hud, text).await?);
    let reported = reported(hud).await?;
    hits.extend(reported.iter().flat_map(|reported| reported.jobs(text)));
    let failures = failures(hud, text).await?;
    let newest_jobs = NewestJobs::read(hud).await?;
    // A whole name is about that one, even if others contain it.
    let mut whole = hits.iter().filter(|hit| hit.name.eq_ignore_ascii_case(text));
    if let (Some(hit), None) = (whole.next(), whole.next())
        && failures.by_name.is_empty()
        && !newest_jobs.have_step(text)
    {
        return Ok(vec![hit.clone()]);
    }
    hits.extend(criteria(hud, text).await?);
    hits.extend(tests_of(hud, reported.as_ref(), text).await?);
    hits.extend(failures.by_name.into_iter().chain(failures.by_line));
    hits.extend(reported.iter().flat_map(|reported| reported.tests_by_message(text)));
    hits.extend(newest_jobs.with_step(text));
    hits.extend(newest_jobs.on_machine(text));
    hits.sort_by_key(|hit| hit.kind);
    Ok(hits)
}

/// Those of the last days, and older ones only if none of these has the text.
async fn jobs_and_runners(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let mut hits = jobs(hud, text).await?;
    hits.extend(runners(hud, text).await?);
    if hits.is_empty() { older_names(hud, text).await } else { Ok(hits) }
}

/// The tests and the quarantined tests with the text in their name, as reports have it or as pytest prints it.
async fn tests_of(
    hud: &Hud,
    reported: Option<&ReportedWeek>,
    text: &str,
) -> Result<Vec<SearchHit>, PageError> {
    let mut hits = vec![];
    for text in std::iter::once(text.to_owned()).chain(failure::name_in_pytest(text)) {
        let found = tests::search(hud, &text).await?;
        let hit = |(path, name)| SearchHit { kind: HitKind::Test, path, name };
        hits.extend(found.into_iter().map(hit));
        hits.extend(reported.iter().flat_map(|reported| reported.tests(&text)));
        hits.extend(owners(hud, &text).await?);
        hits.extend(quarantined(hud, &text).await?);
        if !hits.is_empty() {
            break;
        }
    }
    Ok(hits)
}

/// The tests of each owner with the text in the name.
async fn owners(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let found = tests::search_owners(hud, text).await?;
    let hit = |(path, name)| SearchHit { kind: HitKind::Test, path, name };
    Ok(found.into_iter().take(MAX_OF_A_KIND).map(hit).collect())
}

/// Failures of the last days.
#[derive(Default)]
struct FoundFailures {
    /// All of the category with this name, and all causes with the rule of this name.
    by_name: Vec<SearchHit>,
    /// All of a cause, by the line that explains one of them. If there are neither, single ones by another line that
    /// their pages show.
    by_line: Vec<SearchHit>,
}

async fn failures(hud: &Hud, text: &str) -> Result<FoundFailures, PageError> {
    let (wanted, days) = (words(text), FAILURE_DAYS.to_string());
    let asked = FailedJobsQuery {
        repository: None,
        cause: None,
        category: None,
        job: None,
        from: hud.now() - SignedDuration::from_hours(24 * FAILURE_DAYS),
        to: Timestamp::MAX,
        to_job: None,
        limit: MAX_FAILURES,
    };
    let mut found = FoundFailures::default();
    let (mut seen, mut categories) = (BTreeSet::new(), BTreeSet::new());
    let mut by_other_line: Vec<SearchHit> = vec![];
    for row in hud.results.failed_jobs(&asked).await? {
        let (line, cause) = (row.short_line(), row.cause());
        if words(&cause.category) == wanted && categories.insert(cause.category.clone()) {
            let asked = [("category", Some(&*cause.category)), ("days", Some(&*days))];
            let path = address("/failures", asked);
            found.by_name.push(SearchHit { kind: HitKind::Failure, path, name: cause.category });
        }
        let is_named = words(&cause.rule) == wanted;
        // Two causes may have one line.
        let name = match &*cause.rule {
            "" => line.clone(),
            rule => format!("{line} ({rule})"),
        };
        let is_found = is_named || words(&line).contains(&wanted);
        if is_found && seen.insert((cause.rule, cause.capture)) {
            let like = format!("{}/{}", row.job.repository, row.job.job_id);
            let asked = [("list", Some("jobs")), ("like", Some(&*like)), ("days", Some(&*days))];
            let path = address("/failures", asked);
            let hits = if is_named { &mut found.by_name } else { &mut found.by_line };
            hits.push(SearchHit { kind: HitKind::Failure, path, name });
        } else if let Some(line) = other_line(&row, &wanted) {
            by_other_line.push(failed_job(&row, &line));
        }
    }
    if found.by_name.is_empty() && found.by_line.is_empty() {
        found.by_line = by_other_line;
    }
    found.by_name.truncate(MAX_OF_A_KIND);
    found.by_line.truncate(MAX_OF_A_KIND);
    Ok(found)
}

/// The page of a job whose log has a line.
fn failed_job(row: &JobLogRow, line: &str) -> SearchHit {
    let EndedJob { repository, job_id, head_sha, .. } = &row.job;
    let name = format!("{line}: {} on {}", row.job.title(), short_sha(head_sha));
    SearchHit { kind: HitKind::Failure, path: address::failure(repository, *job_id), name }
}

/// A line that the page of a failure shows beside the one that explains it: around that, as less certain, or as new.
fn other_line(row: &JobLogRow, wanted: &str) -> Option<String> {
    let known = row.classification()?;
    let around = known.found.iter().flat_map(|found| &found.context);
    let less_certain = known.candidates.iter().map(|found| &found.line);
    let new = known.novel.iter().map(|novel| &novel.line);
    let mut lines = around.chain(less_certain).chain(new);
    let line = lines.find(|line| words(line).contains(wanted))?;
    Some(line.chars().take(MAX_LINE_CHARS).collect())
}

/// The backends with the text in their name, their owner's, their device's or an oncall's, or at the level that it
/// names. The label of a device is as good as its name.
fn backends(hud: &Hud, text: &str) -> Vec<SearchHit> {
    let text = without_level(text).to_lowercase();
    let text = text.strip_prefix(LABEL_PREFIX).unwrap_or(&text);
    let policy = (hud.policy)();
    let entries = policy.iter().flat_map(|policy| policy.iter());
    let is_at = |level: Level| {
        let (name, title) = (level.as_str().to_lowercase(), level.title());
        text == name || text == title || text == format!("{name} {title}")
    };
    let found = entries.filter(|entry| overview::has_text(entry, text) || is_at(entry.level));
    let hit = |entry: &crcr_domain::AllowlistEntry| SearchHit {
        kind: HitKind::Backend,
        path: format!("/crcr/{}", entry.repo),
        name: entry.repo.as_str().to_owned(),
    };
    found.take(MAX_OF_A_KIND).map(hit).collect()
}

/// The repositories whose own CI is known. A backend is found as one.
async fn repositories(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let text = text.to_lowercase();
    let known = hud.results.repositories("workflow_job").await?;
    let is_backend =
        |name: &str| RepoName::new(name).is_ok_and(|name| hud.entry_of(&name).is_some());
    let found = known.into_iter().filter(|known| known.name.to_lowercase().contains(&text));
    let found = found.filter(|known| !is_backend(&known.name)).take(MAX_OF_A_KIND);
    Ok(found
        .map(|known| SearchHit {
            kind: HitKind::Repository,
            path: format!("/hud/{}", known.name),
            name: known.name,
        })
        .collect())
}

/// The pull requests with the text in their title, of this author, or from this branch, which GitHub writes as
/// `OWNER:BRANCH`.
async fn pulls(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let branch = lower.split_once(':').map_or(&*lower, |(_, branch)| branch);
    let before = Timestamp::MAX;
    let newest = ThingSelection::Newest { before, limit: MAX_NEWEST };
    let open = ThingSelection::OpenPulls { before, limit: MAX_PULLS };
    let rows = things(hud, "pull_request", [newest, open]).await?;
    let found = rows.iter().filter_map(PullRequestState::from_row).filter(|pull| {
        // A list writes the number before the title, and the page of one behind it.
        format!("#{0} {1} #{0}", pull.number, pull.title).to_lowercase().contains(&lower)
            || pull.branch.to_lowercase() == branch
            || pull.author.to_lowercase() == lower.trim_start_matches('@')
    });
    let hit = |pull: PullRequestState| SearchHit {
        kind: HitKind::PullRequest,
        path: format!("/pr/{}", pull.number),
        name: format!("#{} {}", pull.number, pull.title),
    };
    Ok(found.take(MAX_OF_A_KIND).map(hit).collect())
}

/// The commits with the text in their title or in the path of a file that they changed, or of this author.
async fn commits(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let before = Timestamp::MAX;
    let newest = ThingSelection::Newest { before, limit: MAX_NEWEST };
    let main = trunk(hud, hud.upstream.as_str()).await?.unwrap_or_default();
    let of_main = ThingSelection::Branch { name: &main, before, limit: MAX_NEWEST };
    let rows = things(hud, "push", [newest, of_main]).await?;
    let is_path = lower.contains(['/', '.']);
    let found = rows.iter().filter_map(|row| {
        let commit = BranchCommit::from_row(row)?;
        let is_found = has_text(&commit.title, &lower)
            || commit.author.to_lowercase() == lower
            || is_path && changed_files(row).iter().any(|file| has_text(file, &lower));
        is_found.then_some(commit)
    });
    let hit = |commit: BranchCommit| SearchHit {
        kind: HitKind::Commit,
        path: format!("/commit/{}", commit.sha),
        name: format!("{} {}", short_sha(&commit.sha), commit.title),
    };
    Ok(found.take(MAX_OF_A_KIND).map(hit).collect())
}

/// The upstream repository's things of both selections, each once.
async fn things(
    hud: &Hud,
    event: &str,
    selections: [ThingSelection<'_>; 2],
) -> Result<Vec<WebhookRow>, PageError> {
    let (mut rows, mut seen): (Vec<WebhookRow>, BTreeSet<String>) = (vec![], BTreeSet::new());
    for selection in selections {
        let query = ThingQuery { event, repository: hud.upstream.as_str(), selection };
        let found = hud.results.current_things(&query).await?;
        rows.extend(found.into_iter().filter(|row| seen.insert(row.thing.clone())));
    }
    Ok(rows)
}

/// The branches with the text in their name, which git also writes as `refs/heads/NAME` and `origin/NAME`.
async fn branches(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let (lower, upstream) = (text.to_lowercase(), hud.upstream.as_str());
    let mut remotes = ["refs/heads/", "origin/"].into_iter();
    let named = remotes.find_map(|remote| lower.strip_prefix(remote)).unwrap_or(&lower);
    let known = hud.results.branches("push", upstream, MAX_BRANCHES).await?;
    let found = known.into_iter().filter(|name| name.to_lowercase().contains(named));
    let hit = |name: String| SearchHit {
        kind: HitKind::Branch,
        path: branch_path(upstream, &name),
        name,
    };
    Ok(found.take(MAX_OF_A_KIND).map(hit).collect())
}

/// The name of a job without that of its shard, as in `linux / test (1, 3)`. The shards of a job are one column of the
/// grid, and one row of the trends.
fn without_shard(name: &str) -> &str {
    match name.split_once(" (") {
        Some((base, _)) if name.ends_with(')') => base,
        _ => name,
    }
}

/// The jobs with the text in their name: shown on the grid of the main branch. A single shard is named whole.
async fn jobs(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let base = without_shard(&lower);
    let mut names = names_of_week(hud, CiGrouping::Job).await?;
    if lower.contains(WHOLE_RUN) {
        let workflows = names_of_week(hud, CiGrouping::Branch).await?;
        names.extend(workflows.iter().map(|workflow| format!("{workflow} / {WHOLE_RUN}")));
    }
    let names: BTreeSet<&str> =
        names.iter().map(|name| name.split(" (").next().unwrap_or_default()).collect();
    let found = names.into_iter().filter_map(|name| {
        let known = name.to_lowercase();
        let is_shard = base != lower && !base.is_empty() && known.ends_with(base);
        (is_shard || known.contains(&lower)).then_some((name, is_shard))
    });
    let found: Vec<_> = found.take(MAX_OF_A_KIND).collect();
    if found.is_empty() {
        return Ok(vec![]);
    }
    let Some(branch) = trunk(hud, hud.upstream.as_str()).await? else { return Ok(vec![]) };
    let grid = branch_path(hud.upstream.as_str(), &branch);
    let hit = |(name, is_shard): (&str, bool)| SearchHit {
        kind: HitKind::Job,
        path: address(&grid, [("q", Some(if is_shard { text } else { name }))]),
        name: name.to_owned(),
    };
    Ok(found.into_iter().map(hit).collect())
}

/// The runners with the text in their labels.
async fn runners(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let names = names_of_week(hud, CiGrouping::Runner).await?;
    let found = names.into_iter().filter(|name| name.to_lowercase().contains(&lower));
    let hit = |name: String| SearchHit {
        kind: HitKind::Runner,
        path: address("/trends", [("runner", Some(&*name))]),
        name,
    };
    Ok(found.take(MAX_OF_A_KIND).map(hit).collect())
}

/// Text to compare: a browser copies several blanks of a line as one.
fn words(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn has_text(text: &str, lower: &str) -> bool {
    text.to_lowercase().contains(lower)
}

/// Paths by their names.
fn hits_of(kind: HitKind, found: BTreeMap<String, String>) -> Vec<SearchHit> {
    let hit = |(name, path)| SearchHit { kind, path, name };
    found.into_iter().take(MAX_OF_A_KIND).map(hit).collect()
}

/// The entries of quarantine files with the text in their pattern, their owner's name or the reason.
async fn quarantined(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let mut repositories = BTreeSet::from([hud.upstream.to_string()]);
    repositories.extend(hud.results.tested_repositories().await?);
    let mut found = BTreeMap::new();
    for repository in repositories.iter().take(MAX_OF_A_KIND) {
        let files = (hud.files)(repository);
        let entries = files.as_ref().and_then(|files| files.quarantine.as_deref());
        for entry in entries.unwrap_or_default() {
            if quarantine::has_text(entry, &lower) {
                let asked = [("repo", Some(&**repository)), ("q", Some(&*entry.pattern))];
                let name = format!("{repository}: {}", entry.pattern);
                found.insert(name, address("/quarantine", asked));
            }
        }
    }
    Ok(hits_of(HitKind::Quarantine, found))
}

/// The jobs and runners with the text in their name that only the longest window of the trends shows.
async fn older_names(hud: &Hud, text: &str) -> Result<Vec<SearchHit>, PageError> {
    let lower = text.to_lowercase();
    let base = without_shard(&lower);
    let (from, _) = trends::span_of(LONGEST_WINDOW, hud.now());
    let mut hits = vec![];
    for (kind, grouping, parameter) in
        [(HitKind::Job, CiGrouping::Job, "job"), (HitKind::Runner, CiGrouping::Runner, "runner")]
    {
        let names = names_since(hud, grouping, from).await?;
        let found = names.into_iter().filter(|name| has_text(name, base));
        hits.extend(found.take(MAX_OF_A_KIND).map(|name| {
            let asked = [("window", Some(LONGEST_WINDOW)), (parameter, Some(&*name))];
            SearchHit { kind, path: address("/trends", asked), name }
        }));
    }
    Ok(hits)
}

async fn names_of_week(hud: &Hud, grouping: CiGrouping) -> Result<BTreeSet<String>, PageError> {
    names_since(hud, grouping, hud.now() - SignedDuration::from_hours(24 * JOB_DAYS)).await
}

/// The names of the upstream repository's jobs or runners with which something ended since then.
async fn names_since(
    hud: &Hud,
    grouping: CiGrouping,
    from: Timestamp,
) -> Result<BTreeSet<String>, PageError> {
    let query = CiTimesQuery {
        repository: hud.upstream.to_string(),
        grouping,
        unit: CiUnit::Day,
        from,
        to: hud.now(),
        name: None,
    };
    let rows = hud.results.ci_times(&query).await?;
    Ok(rows.into_iter().map(|row| row.name).filter(|name| name != OTHER_NAMES).collect())
}

pub(crate) fn page(text: &str, hits: &[SearchHit], view: &View<'_>) -> Markup {
    let mut kinds: BTreeMap<HitKind, Vec<&SearchHit>> = BTreeMap::new();
    for hit in hits {
        kinds.entry(hit.kind).or_default().push(hit);
    }
    view.shell(
        "Search",
        false,
        &html! {
            h1 { "Search" @if !hits.is_empty() { " for " bdi { (text) } } }
            @if hits.is_empty() {
                @if text.is_empty() { p.muted { "Nothing was asked for." } }
                @else { p role="status" { "Nothing is known about " strong { bdi { (text) } } "." } }
                p.muted { "Search for the number, the title or the author of a pull request, seven digits of a commit, a part of the name of a repository, a device, an oncall, a criterion, a machine, a test, the file or the owner of one, a branch, a job, a step or a runner, the line, the category or the rule of a failure, or paste an address." }
            }
            @for (kind, hits) in &kinds {
                h2 { (kind.title()) }
                ul.plain { @for hit in hits { li { a href=(hit.path) { bdi { (hit.name) } } } } }
            }
        },
    )
}
