//! The latest regressions, newest first.

use crcr_domain::results::Regression;
use crcr_results::Window;
use jiff::Timestamp;

use super::days::regressions;
use crate::query::{SpanQuery, TimeSpan};
use crate::{Hud, PageError};

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

pub(crate) async fn build(hud: &Hud, repo: Option<&str>) -> Result<FeedModel, PageError> {
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
