//! Backends that turned red lately, the newest first.

use crcr_domain::results::Turn;
use crcr_results::Window;
use jiff::Timestamp;

use super::days::turns;
use crate::query::{Span, SpanQuery};
use crate::{Hud, Problem};

/// The most turns that a feed tells.
const TURNS: usize = 50;

/// Backends that turned red in the last 30 days: all, or one.
#[derive(Debug)]
pub(crate) struct Feed {
    /// The only backend that it is about.
    pub(crate) repo: Option<String>,
    pub(crate) upstream: String,
    pub(crate) now: Timestamp,
    pub(crate) turns: Vec<Turn>,
}

pub(crate) async fn build(hud: &Hud, repo: Option<&str>) -> Result<Feed, Problem> {
    let now = (hud.clock)();
    let month = Span::of(&SpanQuery::month(), now).map_err(Problem::Query)?;
    let mut window = Window::all(month.from, month.to);
    window.repos = repo.map(|repo| vec![repo.to_owned()]);
    let mut turns = turns(hud, &window).await?;
    turns.sort_by_key(|turn| std::cmp::Reverse(turn.at));
    turns.truncate(TURNS);
    let repo = repo.map(str::to_owned);
    Ok(Feed { repo, upstream: hud.upstream.as_str().to_owned(), now, turns })
}
