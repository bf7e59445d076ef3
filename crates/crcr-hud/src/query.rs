//! What an address asks for: a span of time, a kind of event.

use crcr_domain::{EventKind, Level};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde::{Deserialize, Serialize};

/// The longest span a page shows, in days.
const MAX_DAYS: i64 = 366;

/// `?window=24h|7d|30d`, which begins at a full hour, or `?from=…&to=…` (RFC 3339, or UTC without a zone), `?events=pr|nightly`,
/// of a matrix `?heads=all` and `?rows=failing`, and of a review `?level=L2`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct SpanQuery {
    window: Option<String>,
    from: Option<String>,
    to: Option<String>,
    events: Option<String>,
    heads: Option<String>,
    rows: Option<String>,
    level: Option<String>,
}

impl SpanQuery {
    /// Whether the address says when the span begins.
    pub(super) fn has_start(&self) -> bool {
        self.from.is_some()
    }

    /// The level to review at.
    pub(super) fn level(&self) -> Result<Option<Level>, String> {
        let level = self.level.as_deref().map(str::parse).transpose();
        level.map_err(|_| "`level` has to be `L1`, `L2`, `L3` or `L4`".to_owned())
    }

    /// The last 30 days.
    pub(super) fn month() -> Self {
        Self { window: Some("30d".to_owned()), ..Self::default() }
    }
}

/// `?upstream=owner/repo`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct PullQuery {
    pub(super) upstream: Option<String>,
}

/// Which events a page is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Events {
    Pr,
    Nightly,
}

impl Events {
    /// The word in an address.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pr => "pr",
            Self::Nightly => "nightly",
        }
    }

    /// Whether an event of this name is among them.
    pub(super) fn has(self, event: &str) -> bool {
        let kind = match self {
            Self::Pr => EventKind::PullRequest,
            Self::Nightly => EventKind::Nightly,
        };
        kind.has(event)
    }
}

/// A span of time and a kind of event.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Span {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// It ends now, as every span does that isn't told an end.
    #[serde(skip)]
    pub(super) until_now: bool,
    pub(super) events: Events,
    /// `24h`, `7d` or `30d` when the span ends now.
    pub(super) window: Option<&'static str>,
    /// Older heads of pull requests too.
    pub(super) all_heads: bool,
    /// Only commits on which something failed.
    pub(super) only_failing: bool,
}

impl Span {
    /// The span that `query` asks for at `now`; refuses what is no time, empty or over a year.
    pub(super) fn of(query: &SpanQuery, now: Timestamp) -> Result<Self, String> {
        let events = match query.events.as_deref() {
            None | Some("pr") => Events::Pr,
            Some("nightly") => Events::Nightly,
            Some(_) => return Err("`events` has to be `pr` or `nightly`".to_owned()),
        };
        let all_heads = match query.heads.as_deref() {
            None | Some("current") => false,
            Some("all") => true,
            Some(_) => return Err("`heads` has to be `current` or `all`".to_owned()),
        };
        let only_failing = match query.rows.as_deref() {
            None | Some("all") => false,
            Some("failing") => true,
            Some(_) => return Err("`rows` has to be `all` or `failing`".to_owned()),
        };
        let until_now = query.to.is_none();
        let span = |from, to, window| Self {
            from,
            to,
            until_now,
            events,
            window,
            all_heads,
            only_failing,
        };
        let time = |name: &str, text: &str| {
            // A form sends what a reader of UTC sees, without a zone.
            let utc =
                || Some(text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
            let known = text.parse::<Timestamp>().ok().or_else(utc);
            known.ok_or_else(|| format!("`{name}` has to be a time such as `2026-09-01T00:00:00Z`"))
        };
        if query.from.is_some() || query.to.is_some() {
            let to = query.to.as_deref().map_or(Ok(now), |text| time("to", text))?;
            let from = match &query.from {
                Some(text) => time("from", text)?,
                None => ago(to, 7 * 24),
            };
            let days = to.duration_since(from).as_hours() / 24;
            if from >= to || days > MAX_DAYS {
                return Err(format!("`from` has to be before `to`, by at most {MAX_DAYS} days"));
            }
            return Ok(span(from, to, None));
        }
        let (window, hours) = match query.window.as_deref() {
            Some("24h") => ("24h", 24),
            None | Some("7d") => ("7d", 7 * 24),
            Some("30d") => ("30d", 30 * 24),
            Some(_) => return Err("`window` has to be `24h`, `7d` or `30d`".to_owned()),
        };
        Ok(span(full_hour(ago(now, hours)), now, Some(window)))
    }

    /// The query of a link to the same, ending now where this one does.
    pub(super) fn address(&self) -> String {
        match self.window {
            Some(window) => {
                format!("?window={window}&events={}{}", self.events.word(), self.filters())
            }
            None => self.permalink(),
        }
    }

    fn filters(&self) -> String {
        let heads = if self.all_heads { "&heads=all" } else { "" };
        let rows = if self.only_failing { "&rows=failing" } else { "" };
        format!("{heads}{rows}")
    }

    /// The query of a link that shows the same rows for ever.
    pub(super) fn permalink(&self) -> String {
        let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        let (from, to) = (second(self.from), second(self.to));
        format!("?from={from}&to={to}&events={}{}", self.events.word(), self.filters())
    }
}

/// The beginning of a time's hour. A window begins at one, so that what its first day came to is
/// asked for once in an hour and not anew by every reader.
fn full_hour(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second().div_euclid(3600) * 3600).unwrap_or(time)
}

fn ago(time: Timestamp, hours: i64) -> Timestamp {
    time.saturating_sub(hours.hours()).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Result<Span, String> {
        let query: axum::extract::Query<SpanQuery> =
            axum::extract::Query::try_from_uri(&format!("/crcr?{text}").parse().unwrap()).unwrap();
        Span::of(&query, "2026-09-15T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_window_ends_now_and_a_permalink_never_moves() {
        let span = ask("window=24h").unwrap();
        assert_eq!(span.from.to_string(), "2026-09-14T12:00:00Z", "at a full hour");
        assert_eq!(
            span.permalink(),
            "?from=2026-09-14T12:00:00Z&to=2026-09-15T12:00:00Z&events=pr"
        );
        let again = ask(&span.permalink()[1..]).unwrap();
        assert_eq!((again.from, again.to, again.window), (span.from, span.to, None));
    }

    #[test]
    fn a_form_sends_times_without_a_zone_and_filters_stay_in_links() {
        let span = ask("from=2026-09-01T10:30&to=2026-09-02&heads=all&rows=failing").unwrap();
        assert_eq!(span.from.to_string(), "2026-09-01T10:30:00Z");
        assert_eq!(span.to.to_string(), "2026-09-02T00:00:00Z");
        assert!(span.address().ends_with("&events=pr&heads=all&rows=failing"));
        let span = ask("window=30d&events=nightly").unwrap();
        assert_eq!(span.address(), "?window=30d&events=nightly");
    }

    #[test]
    fn odd_spans_are_refused() {
        for odd in [
            "window=1y",
            "from=yesterday",
            "from=2026-09-16T00:00:00Z",
            "from=2020-01-01T00:00:00Z",
            "events=all",
            "heads=none",
            "rows=odd",
        ] {
            assert!(ask(odd).is_err(), "{odd}");
        }
    }
}
