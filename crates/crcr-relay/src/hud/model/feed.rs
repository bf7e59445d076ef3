//! Backends that turned red lately, the newest first.

use crcr_domain::EventKind;
use crcr_domain::results::{Turn, jobs_of_record, turned_red};
use jiff::Timestamp;

use super::super::query::{Span, SpanQuery};
use super::super::{Hud, Problem};
use super::days::{Facts, pushes};
use crate::results::Window;

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
    let mut window = Window::all(month.from, month.to);
    window.repos = repo.map(|repo| vec![repo.to_owned()]);
    // What happened on pull requests is no turn.
    let Facts { mut attempts, mut dispatches } = pushes(hud, &window).await?;
    attempts.retain(|row| EventKind::of_event(&row.event).is_some());
    dispatches.retain(|dispatch| EventKind::of_event(&dispatch.event).is_some());
    let mut turns = turned_red(&jobs_of_record(&attempts, &[]), &dispatches);
    turns.sort_by_key(|turn| std::cmp::Reverse(turn.at));
    turns.truncate(TURNS);
    let repo = repo.map(str::to_owned);
    Ok(Feed { repo, upstream: hud.upstream.as_str().to_owned(), now, turns })
}
