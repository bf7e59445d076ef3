//! `/crcr/feed.atom`: regressions as an Atom feed (RFC 4287).

use crcr_domain::RepoName;
use crcr_domain::results::Regression;
use crcr_results::Window;
use jiff::Timestamp;
use maud::{Markup, PreEscaped, html};

use crate::context::{Hud, PageError};
use crate::layout::short_sha;
use crate::message::regression_text;
use crate::model::days::regressions;
use crate::query::{SpanQuery, TimeSpan};

/// The most regressions that a feed tells.
const MAX_ENTRIES: usize = 50;

/// Regressions of the last 30 days, of all backends or one.
#[derive(Debug)]
pub(crate) struct FeedModel {
    /// `None` for all backends.
    pub(crate) repo: Option<String>,
    pub(crate) upstream: String,
    pub(crate) now: Timestamp,
    pub(crate) regressions: Vec<Regression>,
}

pub(crate) async fn build(hud: &Hud, repo: Option<&RepoName>) -> Result<FeedModel, PageError> {
    let repo = repo.map(RepoName::as_str);
    let now = (hud.clock)();
    let month = TimeSpan::from_query(&SpanQuery::month(), now).map_err(PageError::Query)?;
    let mut window = Window::all(month.from, month.to);
    window.repos = repo.map(|repo| vec![repo.to_owned()]);
    let mut regressions = regressions(hud, &window).await?;
    regressions.sort_by_key(|regression| std::cmp::Reverse(regression.at));
    regressions.truncate(MAX_ENTRIES);
    let repo = repo.map(str::to_owned);
    Ok(FeedModel { repo, upstream: hud.upstream.as_str().to_owned(), now, regressions })
}

/// Links are relative, because the relay may not know its own address.
pub(crate) fn feed(model: &FeedModel) -> Markup {
    let (path, title) = match &model.repo {
        Some(repo) => (format!("/crcr/{repo}"), format!("{repo} turned red")),
        None => ("/crcr".to_owned(), format!("Backends of {} that turned red", model.upstream)),
    };
    let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
    let updated = model.regressions.first().map_or(model.now, |regression| regression.at);
    html! {
        (PreEscaped("<?xml version=\"1.0\" encoding=\"utf-8\"?>"))
        feed xmlns="http://www.w3.org/2005/Atom" {
            id { "urn:crcr:red:" (model.repo.as_deref().unwrap_or(&model.upstream)) }
            title { (title) }
            updated { (second(updated)) }
            author { name { "Cross-repository CI" } }
            link rel="self" href=(format!("{path}/feed.atom")) {}
            link rel="alternate" type="text/html" href=(path) {}
            @for regression in &model.regressions {
                entry {
                    id { "urn:crcr:red:" (regression.repo) ":" (regression.event) ":" (regression.head_sha) }
                    title { (regression.repo) " turned red on " (regression.event) " " (short_sha(&regression.head_sha)) }
                    updated { (second(regression.at)) }
                    link rel="alternate" type="text/html" href=(format!("/crcr/{}", regression.repo)) {}
                    content type="text" { (regression_text(regression)) }
                }
            }
        }
    }
}
