//! What is red and what is green on a branch or of a test, for alerts: the same as their feeds tell.

use std::sync::Arc;

use crcr_domain::RepoName;
use percent_encoding::percent_decode_str;

use crate::address;
use crate::context::{Hud, PageError, compute};
use crate::layout::short_sha;
use crate::message::printable;
use crate::model::red_branches;
use crate::pages::test::{self, TestPageQuery, TestState};

/// A feed whose turns are alerts, by its address: `/feeds/OWNER/REPO/BRANCH` or `/test/OWNER/REPO/feed.atom?id=HEX`.
#[derive(Debug, Clone)]
pub struct WatchedFeed {
    address: String,
    repo: RepoName,
    of: FeedKind,
}

#[derive(Debug, Clone)]
enum FeedKind {
    Branch(String),
    Test(TestPageQuery),
}

/// What a feed says now.
#[derive(Debug)]
pub struct FeedLook {
    /// The address of the page with the same content, without the host.
    pub page: String,
    pub things: Vec<WatchedThing>,
}

/// A job, a backend or a test.
#[derive(Debug)]
pub struct WatchedThing {
    pub name: String,
    pub is_red: bool,
    /// Whether it is known to have been green: what is red from the first known commit on didn't turn there.
    pub was_green: bool,
    /// Since which commit it is that.
    pub sha: String,
    /// That it turned, in words.
    pub text: String,
}

impl WatchedFeed {
    /// Reads the address of a feed, as pages link to it, with or without the host. The error says what is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` isn't the address of a feed: expected /feeds/OWNER/REPO/BRANCH or \
                 /test/OWNER/REPO/feed.atom?id=HEX"
            )
        };
        let start = text.find("/feeds/").or_else(|| text.find("/test/")).ok_or_else(wrong)?;
        let address = &text[start..];
        let url = url::Url::parse(&format!("http://here.invalid{address}")).map_err(|_| wrong())?;
        let parts: Vec<&str> = url.path().split('/').skip(1).collect();
        let (owner, repo, of) = match &*parts {
            ["feeds", owner, repo, branch @ ..] if branch.iter().any(|part| !part.is_empty()) => {
                let branch = branch.join("/");
                let branch = percent_decode_str(&branch).decode_utf8().map_err(|_| wrong())?;
                (owner, repo, FeedKind::Branch(branch.into_owned()))
            }
            ["test", owner, repo, "feed.atom"] => {
                let asked = |name: &str| {
                    let found = url.query_pairs().find(|(known, _)| known == name);
                    found.map(|(_, value)| value.into_owned()).filter(|value| !value.is_empty())
                };
                let query = TestPageQuery::of(asked("id"), asked("name")).ok_or_else(wrong)?;
                (owner, repo, FeedKind::Test(query))
            }
            _ => return Err(wrong()),
        };
        let repo = RepoName::new(&format!("{owner}/{repo}")).map_err(|_| wrong())?;
        Ok(Self { address: address.to_owned(), repo, of })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// The name of what is told when something turned.
    pub fn event(&self, is_red: bool) -> &'static str {
        match (&self.of, is_red) {
            (FeedKind::Branch(_), true) => "branch_turned_red",
            (FeedKind::Branch(_), false) => "branch_green_again",
            (FeedKind::Test(_), true) => "test_turned_red",
            (FeedKind::Test(_), false) => "test_green_again",
        }
    }

    /// `None` if nothing is known of the branch or the test. The error is for operators.
    pub async fn look(&self, hud: Arc<Hud>) -> Result<Option<FeedLook>, String> {
        let feed = self.clone();
        let found = compute(hud, async move |hud| match &feed.of {
            FeedKind::Branch(branch) => look_at_branch(hud, &feed.repo, branch).await,
            FeedKind::Test(query) => look_at_test(hud, &feed.repo, query.clone()).await,
        });
        match found.await {
            Ok(found) => Ok(Some(found)),
            Err(PageError::NotFound(_)) => Ok(None),
            Err(PageError::Query(why) | PageError::Store(why)) => Err(why),
            Err(PageError::Busy) => Err("too many pages are being computed".to_owned()),
        }
    }
}

fn turn(is_red: bool) -> &'static str {
    if is_red { "turned red" } else { "is green again" }
}

async fn look_at_branch(hud: &Hud, repo: &RepoName, branch: &str) -> Result<FeedLook, PageError> {
    let states = red_branches::states(hud, repo, branch).await?;
    let thing = |found: red_branches::ColumnState| {
        let commit = &found.since;
        let mut text = format!(
            "{} {} on {branch} of {repo} at {} {}",
            found.title,
            turn(found.is_red),
            short_sha(&commit.sha),
            commit.title
        );
        if !commit.author.is_empty() {
            text = format!("{text} by {}", commit.author);
        }
        WatchedThing {
            text: printable(&text),
            name: found.title,
            is_red: found.is_red,
            was_green: found.was_green,
            sha: found.since.sha,
        }
    };
    let page = address::branch_path(repo.as_str(), branch);
    Ok(FeedLook { page, things: states.into_iter().map(thing).collect() })
}

async fn look_at_test(
    hud: &Hud,
    repo: &RepoName,
    query: TestPageQuery,
) -> Result<FeedLook, PageError> {
    let (owner, name) = (repo.owner().to_owned(), repo.name().to_owned());
    let model = test::build(hud, (owner, name), query).await?;
    let Some(found) = &model.test else {
        return Err(PageError::Query(
            "several tests go by this name: choose one by its `id`".into(),
        ));
    };
    let state = match &found.state {
        TestState::NoResults => None,
        TestState::Failing { first_failing, last_good, .. } => {
            Some((true, last_good.is_some(), first_failing))
        }
        TestState::Passing | TestState::Recovered { .. } => {
            found.commits.first().map(|newest| (false, true, &newest.sha))
        }
    };
    let things = state.map(|(is_red, was_green, sha)| {
        let text = format!("{} of {repo} {} at {}", model.name, turn(is_red), short_sha(sha));
        let commit = found.commits.iter().find(|commit| is_red && commit.sha == *sha);
        let said = commit.and_then(|commit| commit.message.as_deref());
        let text = match said.and_then(|message| message.lines().next()) {
            Some(line) if !line.is_empty() => format!("{text}: {line}"),
            _ => text,
        };
        let (name, text, sha) = (model.name.clone(), printable(&text), sha.clone());
        WatchedThing { name, is_red, was_green, sha, text }
    });
    let page = address::test(repo.as_str(), found.identity.test_id);
    Ok(FeedLook { page, things: things.into_iter().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feed_is_named_by_its_address_with_or_without_a_host() {
        for (text, address, event) in [
            ("/feeds/acme/up/release/2.9", "/feeds/acme/up/release/2.9", "branch_turned_red"),
            (
                "https://relay.test/ci/feeds/acme/up/main",
                "/feeds/acme/up/main",
                "branch_turned_red",
            ),
            (
                "/test/acme/up/feed.atom?id=5140cf91",
                "/test/acme/up/feed.atom?id=5140cf91",
                "test_turned_red",
            ),
            (
                "/test/acme/up/feed.atom?name=A.b%20c",
                "/test/acme/up/feed.atom?name=A.b%20c",
                "test_turned_red",
            ),
        ] {
            let feed = WatchedFeed::parse(text).unwrap();
            assert_eq!((feed.address(), feed.event(true)), (address, event), "{text}");
        }
        let FeedKind::Branch(branch) = WatchedFeed::parse("/feeds/a/b/x%23y/z").unwrap().of else {
            panic!("it is of a branch")
        };
        assert_eq!(branch, "x#y/z");
        for wrong in [
            "",
            "main",
            "/feeds/acme/up",
            "/feeds/acme/up/",
            "/test/acme/up/feed.atom",
            "/crcr/a/b/feed.atom",
        ] {
            assert!(WatchedFeed::parse(wrong).is_err(), "{wrong}");
        }
    }
}
