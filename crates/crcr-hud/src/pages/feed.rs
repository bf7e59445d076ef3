//! Atom feeds (RFC 4287): what turned red and what is green again, of all backends, of one, of a branch,
//! or of a test.

use crcr_domain::RepoName;
use crcr_domain::results::Regression;
use crcr_results::Window;
use crcr_results::test_runs::hex_id;
use jiff::Timestamp;
use maud::{Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::test::{self, TestPageQuery};
use crate::address::{self, branch_path};
use crate::context::{Hud, PageError, repo_name};
use crate::layout::short_sha;
use crate::message::{printable, recovery_text, regression_text};
use crate::model::days::regressions;
use crate::model::red_branches;
use crate::query::{NoQuery, SpanQuery, TimeSpan};

/// The most entries of a feed.
const MAX_ENTRIES: usize = 50;

#[derive(Debug)]
pub(crate) struct FeedModel {
    /// Where the relay is reached; without it, links are relative.
    base: String,
    id: String,
    title: String,
    /// The address of the feed, and of the page with the same content.
    path: String,
    page: String,
    /// Sorted, the newest first.
    entries: Vec<FeedEntry>,
}

#[derive(Debug)]
struct FeedEntry {
    id: String,
    title: String,
    at: Timestamp,
    page: String,
    text: String,
}

impl FeedModel {
    fn with_entries(mut self, mut entries: Vec<FeedEntry>) -> Self {
        entries.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.id.cmp(&b.id)));
        entries.truncate(MAX_ENTRIES);
        self.entries = entries;
        self
    }
}

/// The last 30 days of one backend.
pub(crate) async fn build_backend(
    hud: &Hud,
    (owner, repo): (String, String),
    _: NoQuery,
) -> Result<FeedModel, PageError> {
    build(hud, Some(&repo_name(&owner, &repo)?)).await
}

/// The last 30 days of all backends or one.
pub(crate) async fn build(hud: &Hud, repo: Option<&RepoName>) -> Result<FeedModel, PageError> {
    let month = TimeSpan::from_query(&SpanQuery::month(), hud.now()).map_err(PageError::Query)?;
    let mut window = Window::all(month.from, month.to);
    window.repos = repo.map(|repo| vec![repo.as_str().to_owned()]);
    if let Some(repo) = repo
        && hud.entry_of(repo).is_none()
        && hud.results.day_revisions(&window).await?.is_empty()
    {
        return Err(PageError::NotFound(format!("no result of {repo} is known")));
    }
    let regressions = regressions(hud, &window).await?;
    let upstream = hud.upstream.as_str();
    let page = repo.map_or("/crcr".to_owned(), |repo| format!("/crcr/{repo}"));
    let feed = FeedModel {
        base: hud.public_url.clone().unwrap_or_default(),
        id: format!("urn:crcr:red:{}", repo.map_or(upstream, RepoName::as_str)),
        title: match repo {
            Some(repo) => format!("{repo}: red and green"),
            None => format!("Backends of {upstream} that turned red or green"),
        },
        path: format!("{page}/feed.atom"),
        page,
        entries: vec![],
    };
    Ok(feed.with_entries(regressions.iter().flat_map(entries).collect()))
}

/// An entry for a backend that turned red, and one for when it is green again.
fn entries(regression: &Regression) -> impl Iterator<Item = FeedEntry> {
    let Regression { repo, event, head_sha, .. } = regression;
    let page = format!("/crcr/{repo}");
    let red = FeedEntry {
        id: format!("urn:crcr:red:{repo}:{event}:{head_sha}"),
        title: format!("{repo} turned red on {event} {}", short_sha(head_sha)),
        at: regression.at,
        page: page.clone(),
        text: regression_text(regression),
    };
    let green = regression.recovery.as_ref().map(|green| FeedEntry {
        id: format!("urn:crcr:green:{repo}:{event}:{}", green.head_sha),
        title: format!("{repo} is green again on {event} {}", short_sha(&green.head_sha)),
        at: green.at,
        page,
        text: recovery_text(regression),
    });
    std::iter::once(red).chain(green)
}

/// The newest commits of a branch of a repository's own CI.
pub(crate) async fn build_branch(
    hud: &Hud,
    (owner, repo, branch): (String, String, String),
    _: NoQuery,
) -> Result<FeedModel, PageError> {
    let repo = repo_name(&owner, &repo)?;
    let turns = red_branches::turns(hud, &repo, &branch).await?;
    let page = branch_path(repo.as_str(), &branch);
    let feed = FeedModel {
        base: hud.public_url.clone().unwrap_or_default(),
        id: format!("urn:crcr:branch:{repo}:{branch}"),
        title: format!("{branch} of {repo}: red and green"),
        path: page.replacen("/hud/", "/feeds/", 1),
        page: page.clone(),
        entries: vec![],
    };
    let entry = |turn: red_branches::JobTurn| {
        let (word, colour) =
            if turn.is_red { ("turned red", "red") } else { ("is green again", "green") };
        let short = short_sha(&turn.commit.sha);
        FeedEntry {
            id: format!("urn:crcr:{colour}:{repo}:{branch}:{}:{}", turn.title, turn.commit.sha),
            title: format!("{} {word} on {branch} at {short}", turn.title),
            at: turn.commit.at,
            page: address::commit(repo.as_str(), &turn.commit.sha),
            text: match turn.commit.author.as_str() {
                "" => turn.commit.title,
                author => format!("{} by {author}", turn.commit.title),
            },
        }
    };
    Ok(feed.with_entries(turns.into_iter().map(entry).collect()))
}

/// The newest commits on which one test ran, of the default branch if it runs there.
pub(crate) async fn build_test(
    hud: &Hud,
    address: (String, String),
    query: TestPageQuery,
) -> Result<FeedModel, PageError> {
    let repo = format!("{}/{}", address.0, address.1);
    let model = test::build(hud, address, query).await?;
    let Some(found) = &model.test else {
        let text = format!("several tests of {repo} go by this name: choose one by its `id`");
        return Err(PageError::Query(text));
    };
    let (name, id) = (&model.name, hex_id(found.identity.test_id));
    let page = address::test(&repo, found.identity.test_id);
    let feed = FeedModel {
        base: hud.public_url.clone().unwrap_or_default(),
        id: format!("urn:crcr:test:{repo}:{id}"),
        title: format!("{name} in {repo}: red and green"),
        path: test::feed_address(&repo, found),
        page,
        entries: vec![],
    };
    let mut was_red = None;
    let mut entries = vec![];
    for (commit, is_red) in test::on_commits(&found.commits, &found.jobs).into_iter().rev() {
        // A test that fails from its first known commit on didn't turn there.
        if was_red.is_some_and(|was_red| was_red != is_red) {
            let (word, colour) =
                if is_red { ("turned red", "red") } else { ("is green again", "green") };
            let quoted = commit.message.clone().filter(|_| is_red);
            entries.push(FeedEntry {
                id: format!("urn:crcr:{colour}:{repo}:{id}:{}", commit.sha),
                title: format!("{name} {word} at {}", short_sha(&commit.sha)),
                at: commit.at,
                page: address::commit(&repo, &commit.sha),
                text: quoted.unwrap_or_default(),
            });
        }
        was_red = Some(is_red);
    }
    Ok(feed.with_entries(entries))
}

/// Names of jobs and branches have blanks and more that an IRI can't have.
/// <https://www.rfc-editor.org/rfc/rfc4287#section-4.2.6>
fn iri(id: &str) -> String {
    const NOT_IN_IDS: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b':')
        .remove(b'/')
        .remove(b'@')
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    utf8_percent_encode(id, NOT_IN_IDS).to_string()
}

pub(crate) fn feed(model: &FeedModel) -> Markup {
    let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
    let link = |path: &str| format!("{}{path}", model.base);
    // Nothing was ever updated in an empty feed, which is the same each time.
    let updated = model.entries.first().map_or(Timestamp::UNIX_EPOCH, |entry| entry.at);
    html! {
        (PreEscaped("<?xml version=\"1.0\" encoding=\"utf-8\"?>"))
        feed xmlns="http://www.w3.org/2005/Atom" {
            id { (iri(&model.id)) }
            title { (printable(&model.title)) }
            updated { (second(updated)) }
            author { name { "Cross-repository CI" } }
            link rel="self" href=(link(&model.path)) {}
            link rel="alternate" type="text/html" href=(link(&model.page)) {}
            @for entry in &model.entries {
                entry {
                    id { (iri(&entry.id)) }
                    title { (printable(&entry.title)) }
                    updated { (second(entry.at)) }
                    link rel="alternate" type="text/html" href=(link(&entry.page)) {}
                    content type="text" { (printable(&entry.text)) }
                }
            }
        }
    }
}
