//! The page about an address that is pasted into the search.

use crcr_domain::RepoName;
use crcr_domain::checks::check_run;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;

use super::commit_path;
use super::reported::reported;
use crate::address::{self, address, branch_path};
use crate::context::{Hud, PageError};
use crate::pages::{commit, failure};

/// Parts between slashes that the name of a branch in an address can have.
const MAX_BRANCH_PARTS: usize = 8;

/// What somebody put into quotation marks, a code span, an autolink or a link of Markdown, or before the end of a
/// sentence.
pub(crate) fn without_wrapping(text: &str) -> &str {
    let link = text.strip_prefix('[').and_then(|text| text.strip_suffix(')'));
    let text = link.and_then(|link| link.rsplit_once("](")).map_or(text, |(_, target)| target);
    let is_sign = |sign: char| "\"'`<>*.,:;!?…“”„‘’".contains(sign);
    let text = text.trim_matches(is_sign);
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    inner.unwrap_or_else(|| if text.contains('(') { text } else { text.trim_end_matches(')') })
}

/// The page about what a pasted address of GitHub or of this HUD shows, the name of a check run, `OWNER/REPO#NUMBER`,
/// `OWNER/REPO@SHA`, `OWNER/REPO/JOB`, or `OWNER/REPO BRANCH`.
pub(crate) async fn page_of(hud: &Hud, text: &str) -> Result<Option<String>, PageError> {
    if let Some((repo, number)) = text.split_once('#')
        && let (Ok(repo), Ok(number)) = (RepoName::new(repo), number.parse::<u64>())
    {
        return Ok(Some(format!("/pr/{number}?upstream={repo}")));
    }
    if let Some((repo, sha)) = text.split_once('@')
        && let Ok(repo) = RepoName::new(repo)
        && commit::is_prefix(sha)
    {
        return Ok(Some(commit_path(hud, repo.as_str(), sha)));
    }
    if let Some((repo, job)) = text.rsplit_once('/')
        && let (Ok(repo), Ok(job)) = (RepoName::new(repo), job.parse())
        && failure::webhook_of(hud, &repo, job).await?.is_some()
    {
        return Ok(Some(address::failure(repo.as_str(), job)));
    }
    if let Some((repo, branch)) = text.split_once(' ')
        && let Ok(repo) = RepoName::new(repo)
        && is_branch(hud, &repo, branch).await?
    {
        return Ok(Some(branch_path(repo.as_str(), branch)));
    }
    if let Some(page) = page_of_check_run(hud, text) {
        return Ok(Some(page));
    }
    let (Some(url), Ok(github)) = (url_of(text), url::Url::parse(&hud.github_url)) else {
        return Ok(None);
    };
    let parts: Vec<&str> = url.path().split('/').filter(|part| !part.is_empty()).collect();
    if url.host_str() != github.host_str() {
        return Ok(own_page(&url, &parts));
    }
    let [owner, repo, rest @ ..] = parts.as_slice() else { return Ok(None) };
    let repo = repo.strip_suffix(".git").unwrap_or(repo);
    let Ok(repo) = RepoName::new(&format!("{owner}/{repo}")) else { return Ok(None) };
    let rest = match rest {
        [kind @ ("pull" | "commit"), id] => vec![*kind, without_format(id)],
        _ => rest.to_vec(),
    };
    on_github(hud, &repo, &rest).await.map(Some)
}

/// The job on the page of its backend. The name of a check run is [`check_run::name_of_job`]; a long one is cut.
fn page_of_check_run(hud: &Hud, name: &str) -> Option<String> {
    let repo = RepoName::new(check_run::repo_of(name)?).ok()?;
    hud.entry_of(&repo)?;
    let page = format!("/crcr/{repo}");
    if name == check_run::dispatch_name(repo.as_str()) {
        return Some(page);
    }
    let (workflow, job) = name.splitn(4, '/').nth(3)?.split_once('/')?;
    let workflow = percent_decode_str(workflow).decode_utf8_lossy();
    let job = job.split_once('…').map_or(job, |(start, _)| start);
    let listed = if job == "None" { workflow.into_owned() } else { format!("{workflow} / {job}") };
    Some(format!("{}#matrix", address(&page, [("q", Some(&*listed))])))
}

/// `7` of `7.diff`.
fn without_format(id: &str) -> &str {
    [".diff", ".patch"].into_iter().find_map(|format| id.strip_suffix(format)).unwrap_or(id)
}

/// An address, with its scheme or without it; what begins with a slash is of this HUD.
fn url_of(text: &str) -> Option<url::Url> {
    let remote = text.strip_prefix("git@").and_then(|remote| remote.split_once(':'));
    let url = if let Some((host, path)) = remote {
        url::Url::parse(&format!("https://{host}/{path}")).ok()?
    } else if text.starts_with('/') {
        let path = text.trim_start_matches(['/', '\\']);
        url::Url::parse(&format!("http://here.invalid/{path}")).ok()?
    } else if text.contains("://") {
        url::Url::parse(text).ok()?
    } else {
        let host = text.split_once('/').map(|(host, _)| host).filter(|host| host.contains('.'))?;
        let is_host =
            host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:".contains(&byte));
        url::Url::parse(&format!("https://{text}")).ok().filter(|_| is_host)?
    };
    ["http", "https"].contains(&url.scheme()).then_some(url)
}

/// A page of this HUD, wherever it is served.
fn own_page(url: &url::Url, parts: &[&str]) -> Option<String> {
    const OWN: [&str; 16] = [
        "pr",
        "prs",
        "commit",
        "hud",
        "feeds",
        "crcr",
        "test",
        "tests",
        "quarantine",
        "failure",
        "failures",
        "trends",
        "jobs",
        "relay",
        "reported",
        "search",
    ];
    OWN.contains(parts.first()?).then(|| {
        let part = |sign: &str, part: Option<&str>| part.map(|part| format!("{sign}{part}"));
        let query = part("?", url.query()).unwrap_or_default();
        let fragment = part("#", url.fragment()).unwrap_or_default();
        format!("/{}{query}{fragment}", parts.join("/"))
    })
}

/// The page about what GitHub shows at a path of a repository.
async fn on_github(hud: &Hud, repo: &RepoName, rest: &[&str]) -> Result<String, PageError> {
    match rest {
        ["pull" | "pulls", number, part @ ..] if number.parse::<u64>().is_ok() => {
            // Of a pull request's commits, mostly only those that were its head are known.
            if let ["commits" | "changes", sha, ..] = part
                && commit::is_prefix(sha)
                && !commit::find(hud, repo, sha).await?.is_empty()
            {
                return Ok(commit_path(hud, repo.as_str(), sha));
            }
            return Ok(format!("/pr/{number}?upstream={repo}"));
        }
        ["commit" | "commits", sha, ..] if commit::is_prefix(sha) => {
            return Ok(commit_path(hud, repo.as_str(), sha));
        }
        ["compare", range] => {
            let newer = range.rsplit("..").next().unwrap_or_default();
            if commit::is_prefix(newer) {
                return Ok(commit_path(hud, repo.as_str(), newer));
            }
        }
        // A permalink of a file or a folder.
        ["tree" | "blob" | "blame", sha, ..] if sha.len() >= 40 && commit::is_prefix(sha) => {
            return Ok(commit_path(hud, repo.as_str(), sha));
        }
        ["tree" | "commits" | "blob" | "blame", path @ ..] if !path.is_empty() => {
            if let Some(branch) = branch_of(hud, repo, path).await? {
                return Ok(branch_path(repo.as_str(), &branch));
            }
            if ["tree", "commits"].contains(&rest[0]) {
                return Ok(format!("/hud/{repo}/{}", path.join("/")));
            }
        }
        ["actions", "runs", _, "job", job, ..] | ["runs", job, ..] => {
            // Only webhooks tell of the jobs of a repository.
            if let Ok(job) = job.parse()
                && failure::webhook_of(hud, repo, job).await?.is_some()
            {
                return Ok(address::failure(repo.as_str(), job));
            }
        }
        ["actions", "runs", run, ..] => {
            let selection = ThingSelection::Id(run);
            let query = ThingQuery { event: "workflow_run", repository: repo.as_str(), selection };
            let run = hud.results.current_things(&query).await?.pop();
            if let Some(run) = run.filter(|run| commit::is_prefix(&run.sha)) {
                return Ok(commit_path(hud, repo.as_str(), &run.sha));
            }
        }
        _ => {}
    }
    let is_backend = hud.entry_of(repo).is_some();
    if let ["actions", "runs", run, ..] = rest
        && is_backend
        && let Some(page) = reported_by_run(hud, repo, run).await?
    {
        return Ok(page);
    }
    Ok(if is_backend { format!("/crcr/{repo}") } else { format!("/hud/{repo}") })
}

/// The commit or the pull request that a backend's run of the last days reported on.
async fn reported_by_run(
    hud: &Hud,
    repo: &RepoName,
    run: &str,
) -> Result<Option<String>, PageError> {
    let reported = reported(hud).await?;
    let Some(row) = reported.as_ref().and_then(|reported| reported.of_run(repo, run)) else {
        return Ok(None);
    };
    if commit::is_prefix(&row.head_sha) {
        return Ok(Some(commit_path(hud, &row.upstream, &row.head_sha)));
    }
    Ok(row.pull_request.map(|number| address::pull(&row.upstream, number)))
}

/// The branch of `BRANCH/FOLDER/FILE`, which may have slashes: the longest that is known.
async fn branch_of(hud: &Hud, repo: &RepoName, path: &[&str]) -> Result<Option<String>, PageError> {
    for end in (1..=path.len().min(MAX_BRANCH_PARTS)).rev() {
        let encoded = path[..end].join("/");
        let name = percent_decode_str(&encoded).decode_utf8_lossy();
        if is_branch(hud, repo, &name).await? {
            return Ok(Some(name.into_owned()));
        }
    }
    Ok(None)
}

async fn is_branch(hud: &Hud, repo: &RepoName, name: &str) -> Result<bool, PageError> {
    let selection = ThingSelection::Branch { name, before: Timestamp::MAX, limit: 1 };
    let query = ThingQuery { event: "push", repository: repo.as_str(), selection };
    Ok(!hud.results.current_things(&query).await?.is_empty())
}
