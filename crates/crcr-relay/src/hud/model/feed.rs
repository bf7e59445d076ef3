//! Backends that turned red lately, the newest first.

use crcr_domain::results::{Turn, turned_red};
use jiff::Timestamp;

use super::super::query::{Events, Span, SpanQuery};
use super::super::{Hud, Problem};
use super::facts;

/// The most turns that a feed tells.
const TURNS: usize = 50;

/// Backends that turned red in the last 30 days: all, or one.
#[derive(Debug)]
pub(in super::super) struct Feed {
    /// The only backend that it is about.
    pub(in super::super) repo: Option<String>,
    pub(in super::super) upstream: String,
    pub(in super::super) now: Timestamp,
    pub(in super::super) turns: Vec<Turn>,
}

pub(in super::super) async fn build(hud: &Hud, repo: Option<&str>) -> Result<Feed, Problem> {
    let now = (hud.clock)();
    let month = Span::of(&SpanQuery::month(), now).map_err(Problem::Query)?;
    let mut turns = Vec::new();
    for events in [Events::Pr, Events::Nightly] {
        let own = facts(hud, &Span { events, ..month.clone() }, repo).await?;
        turns.extend(turned_red(&own.jobs, &own.dispatches));
    }
    turns.sort_by_key(|turn| std::cmp::Reverse(turn.at));
    turns.truncate(TURNS);
    let repo = repo.map(str::to_owned);
    Ok(Feed { repo, upstream: hud.upstream.as_str().to_owned(), now, turns })
}
