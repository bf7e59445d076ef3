//! Query parameters of the pages: a time span and a kind of event.

use crcr_domain::protocol::event::EventName;
use crcr_domain::{EventKind, Level};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde::{Deserialize, Serialize};

use crate::address::address;

/// A longer search is cut.
pub(crate) const MAX_SEARCH_CHARS: usize = 200;
/// The most pages of the matrix of jobs: a year of a busy backend has about as many.
const MAX_PAGES: usize = 1000;
/// The longest name that is stored: that of a workflow, ` / `, and that of a job.
const MAX_NAME_CHARS: usize = 255 + 3 + 255;
/// The longest time span of a page, in days.
const MAX_DAYS: i64 = 366;

/// A time span and a kind of event, as every page with a time span takes them.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct TimeQuery {
    window: Option<String>,
    from: Option<String>,
    to: Option<String>,
    events: Option<String>,
}

impl TimeQuery {
    /// Whether the query says when the time span begins.
    pub(crate) fn has_start(&self) -> bool {
        filled(self.from.as_deref()).is_some()
    }
}

/// `?window=24h|7d|30d` (begins at a full hour) or `?from=…&to=…` (RFC 3339; UTC without a zone),
/// `?events=pr|nightly`, for the job matrix `?heads=all`, `?rows=failing`, `?q=TEXT` and `?page=N`, for
/// the overview `?q=TEXT`, `?show=STANDING` and `?sort=COLUMN`.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct SpanQuery {
    #[serde(flatten)]
    time: TimeQuery,
    heads: Option<String>,
    rows: Option<String>,
    q: Option<String>,
    #[schemars(with = "Option<u64>")]
    page: Option<String>,
    sort: Option<String>,
    show: Option<String>,
}

/// `?level=L2` for the criteria of another level, `?window=24h|7d|30d` or `?from=…&to=…` (RFC 3339; UTC without a
/// zone), `?events=pr|nightly`.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct LevelQuery {
    #[serde(flatten)]
    pub(crate) time: TimeQuery,
    level: Option<String>,
}

impl LevelQuery {
    /// The level whose criteria apply.
    pub(crate) fn level(&self) -> Result<Option<Level>, String> {
        let level = filled(self.level.as_deref()).map(str::parse).transpose();
        level.map_err(|_| "`level` has to be `L1`, `L2`, `L3` or `L4`".to_owned())
    }
}

impl From<TimeQuery> for SpanQuery {
    fn from(time: TimeQuery) -> Self {
        Self { time, ..Self::default() }
    }
}

impl SpanQuery {
    /// Whether the query says which time span it is about.
    pub(crate) fn has_span(&self) -> bool {
        let ends = [&self.time.window, &self.time.from, &self.time.to];
        ends.into_iter().any(|end| filled(end.as_deref()).is_some())
    }

    /// The last 24 hours.
    pub(crate) fn day() -> Self {
        TimeQuery { window: Some("24h".to_owned()), ..TimeQuery::default() }.into()
    }

    /// From this time until now.
    pub(crate) fn starting(from: Timestamp) -> Self {
        TimeQuery { from: Some(from.to_string()), ..TimeQuery::default() }.into()
    }

    /// The last 30 days.
    pub(crate) fn month() -> Self {
        TimeQuery { window: Some("30d".to_owned()), ..TimeQuery::default() }.into()
    }
}

/// A page without parameters. Unknown ones are ignored, as on every page.
#[derive(Debug, Clone, Copy, Deserialize, schemars::JsonSchema)]
pub(crate) struct NoQuery {}

/// Groups of jobs that are shown one by one at a time.
const MAX_OPEN: usize = 20;

/// `?q=TEXT` shows the jobs with this text, `?rows=failing` commits with a failure, `?rows=all` each
/// green commit, `?before=TIME` older
/// commits, `?commit=SHA` those around this one, `?open=WORKFLOW / NAME` the single jobs of groups (one a line), `?job=ID` the details of a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "Vec<(String, String)>")]
pub(crate) struct BranchQuery {
    pub(crate) q: Option<String>,
    pub(crate) rows: Option<String>,
    pub(crate) before: Option<Timestamp>,
    /// Isn't kept in the links of the page.
    pub(crate) commit: Option<String>,
    pub(crate) open: Vec<String>,
    pub(crate) job: Option<u64>,
}

/// `?before=TIME`.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, String> {
    let wrong = || "`before` has to be a time such as `2026-09-01T00:00:00Z`".to_owned();
    text.parse().map_err(|_| wrong())
}

impl TryFrom<Vec<(String, String)>> for BranchQuery {
    type Error = String;

    fn try_from(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let mut found = Self::default();
        for (name, value) in pairs {
            let text = value.trim();
            match &*name {
                _ if text.is_empty() => {}
                "q" => found.q = Some(text.to_owned()),
                "rows" if ["all", "failing"].contains(&text) => found.rows = Some(text.to_owned()),
                "rows" => return Err("`rows` has to be `all` or `failing`".to_owned()),
                "before" => found.before = Some(parse_time(text)?),
                "commit" if text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    found.commit = Some(text.to_ascii_lowercase());
                }
                "commit" => {
                    return Err(
                        "`commit` has to be a SHA, or the digits that it begins with".to_owned()
                    );
                }
                "open" if found.open.len() < MAX_OPEN => found.open.push(value),
                "job" => {
                    let job = text.parse();
                    found.job = Some(job.map_err(|_| "`job` has to be the number of a job")?);
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

impl BranchQuery {
    pub(crate) fn only_failing(&self) -> bool {
        self.rows.as_deref() == Some("failing")
    }

    /// As part of an address, with its `?`; empty for the defaults.
    pub(crate) fn address(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in [("q", &self.q), ("rows", &self.rows)] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        if let Some(before) = self.before {
            query.append_pair("before", &before.to_string());
        }
        for open in &self.open {
            query.append_pair("open", open);
        }
        if let Some(job) = self.job {
            query.append_pair("job", &job.to_string());
        }
        let query = query.finish();
        if query.is_empty() { query } else { format!("?{query}") }
    }
}

/// A parameter without the blanks around it; `None` if it is empty. A long one is cut.
pub(crate) fn given(value: Option<&str>) -> Option<String> {
    given_chars(value, MAX_SEARCH_CHARS)
}

/// The same of a name, which is looked for whole.
pub(crate) fn given_name(value: Option<&str>) -> Option<String> {
    given_chars(value, MAX_NAME_CHARS)
}

fn given_chars(value: Option<&str>, most: usize) -> Option<String> {
    Some(filled(value)?.chars().take(most).collect())
}

/// A form sends each of its fields: an empty one is an absent one.
fn filled(value: Option<&str>) -> Option<&str> {
    value.map(str::trim).filter(|value| !value.is_empty())
}

/// `NAME` of `NAME L4` and of `NAME (L4)`, as columns and sentences have it.
pub(crate) fn without_level(text: &str) -> &str {
    let (name, level) = text.rsplit_once(' ').unwrap_or((text, ""));
    let level = level.trim_start_matches('(').trim_end_matches(')');
    if level.parse::<Level>().is_ok() { name } else { text }
}

/// Which events a page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShownEvents {
    Pr,
    Nightly,
}

crcr_domain::names! { ShownEvents { Pr "pr", Nightly "nightly" } }

impl ShownEvents {
    /// Whether this event, in GitHub's spelling or `nightly`, is shown.
    pub(crate) fn includes(self, event: &EventName) -> bool {
        let kind = match self {
            Self::Pr => EventKind::PullRequest,
            Self::Nightly => EventKind::Nightly,
        };
        kind.includes(event)
    }
}

/// The time span, the kind of event and the filters of a page.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct TimeSpan {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    /// Without `?to=` a time span ends now.
    #[serde(skip)]
    pub(crate) until_now: bool,
    pub(crate) events: ShownEvents,
    /// Whether the query names them.
    #[serde(skip)]
    pub(crate) events_named: bool,
    /// `24h`, `7d` or `30d`; `None` for a span that was given by its ends.
    pub(crate) window: Option<&'static str>,
    /// Also show older commits of pull requests.
    pub(crate) all_heads: bool,
    /// Show only commits on which something failed.
    pub(crate) only_failing: bool,
    /// Show only the jobs with this text in their name, on the overview the backends.
    pub(crate) q: Option<String>,
    /// How the overview is sorted.
    pub(crate) sort: Option<String>,
    /// Which backends the overview shows, by their standing.
    pub(crate) show: Option<String>,
    /// Which page of commits is shown.
    pub(crate) page: usize,
}

impl TimeSpan {
    /// Errors name the parameter: not a time, an empty time span, or one over [`MAX_DAYS`].
    pub(crate) fn from_query(query: &SpanQuery, now: Timestamp) -> Result<Self, String> {
        let named = filled(query.time.events.as_deref());
        let events = match named {
            None | Some("pr") => ShownEvents::Pr,
            Some("nightly") => ShownEvents::Nightly,
            Some(_) => return Err("`events` has to be `pr` or `nightly`".to_owned()),
        };
        let all_heads = match filled(query.heads.as_deref()) {
            None | Some("current") => false,
            Some("all") => true,
            Some(_) => return Err("`heads` has to be `current` or `all`".to_owned()),
        };
        let only_failing = match filled(query.rows.as_deref()) {
            None | Some("all") => false,
            Some("failing") => true,
            Some(_) => return Err("`rows` has to be `all` or `failing`".to_owned()),
        };
        let page = given(query.page.as_deref()).map_or(Ok(1), |page| {
            let known = page.parse().ok().filter(|page| (1..=MAX_PAGES).contains(page));
            known.ok_or_else(|| format!("`page` has to be a number from 1 to {MAX_PAGES}"))
        })?;
        let (start, end) = (filled(query.time.from.as_deref()), filled(query.time.to.as_deref()));
        let until_now = end.is_none();
        let span = |from, to, window| Self {
            from,
            to,
            until_now,
            events,
            events_named: named.is_some(),
            window,
            all_heads,
            only_failing,
            q: given(query.q.as_deref()),
            sort: given(query.sort.as_deref()),
            show: given(query.show.as_deref()),
            page,
        };
        let time = |name: &str, text: &str| {
            // A form's `datetime-local` has no zone; the page shows UTC.
            let utc =
                || Some(text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
            let known = text.parse::<Timestamp>().ok().or_else(utc);
            known.ok_or_else(|| format!("`{name}` has to be a time such as `2026-09-01T00:00:00Z`"))
        };
        if start.is_some() || end.is_some() {
            let to = end.map_or(Ok(end_of_minute(now)), |text| time("to", text))?;
            let from = match start {
                Some(text) => time("from", text)?,
                None => ago(to, 7 * 24),
            };
            let days = to.duration_since(from).as_hours() / 24;
            if from >= to || days > MAX_DAYS {
                return Err(format!("`from` has to be before `to`, by at most {MAX_DAYS} days"));
            }
            return Ok(span(from, to, None));
        }
        let (window, hours) = match filled(query.time.window.as_deref()) {
            Some("24h") => ("24h", 24),
            None | Some("7d") => ("7d", 7 * 24),
            Some("30d") => ("30d", 30 * 24),
            Some(_) => return Err("`window` has to be `24h`, `7d` or `30d`".to_owned()),
        };
        Ok(span(full_hour(ago(now, hours)), end_of_minute(now), Some(window)))
    }

    /// The query string of a link to this page; a window stays a window that ends now.
    pub(crate) fn address(&self) -> String {
        match self.window {
            Some(window) => {
                format!("?window={window}&events={}{}", self.events.as_str(), self.filters())
            }
            None => self.permalink(),
        }
    }

    /// The same span on another page.
    pub(crate) fn unfiltered(&self) -> Self {
        Self {
            all_heads: false,
            only_failing: false,
            q: None,
            sort: None,
            show: None,
            page: 1,
            ..self.clone()
        }
    }

    fn filters(&self) -> String {
        let page = (self.page > 1).then(|| self.page.to_string());
        let filters = [
            ("heads", self.all_heads.then_some("all")),
            ("rows", self.only_failing.then_some("failing")),
            ("q", self.q.as_deref()),
            ("sort", self.sort.as_deref()),
            ("show", self.show.as_deref()),
            ("page", page.as_deref()),
        ];
        address("", filters).replacen('?', "&", 1)
    }

    /// The query string of a link that always shows the same rows. It ends with the minute, so that it is one link
    /// within it.
    pub(crate) fn permalink(&self) -> String {
        let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        let (from, to) = (second(self.from), second(self.to));
        format!("?from={from}&to={to}&events={}{}", self.events.as_str(), self.filters())
    }
}

/// The beginning of this time's hour. Windows begin there, so that the tally of a window's first
/// day is computed once an hour instead of for every request.
fn full_hour(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second().div_euclid(3600) * 3600).unwrap_or(time)
}

/// The end of this time's minute: nothing of the minute is left out, and a page and its permalink stay the same
/// within it.
pub(crate) fn end_of_minute(time: Timestamp) -> Timestamp {
    let minutes = (time.as_millisecond() + 59_999).div_euclid(60_000);
    Timestamp::from_second(minutes * 60).unwrap_or(time)
}

fn ago(time: Timestamp, hours: i64) -> Timestamp {
    time.saturating_sub(hours.hours()).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Result<TimeSpan, String> {
        let query: axum::extract::Query<SpanQuery> =
            axum::extract::Query::try_from_uri(&format!("/crcr?{text}").parse().unwrap()).unwrap();
        TimeSpan::from_query(&query, "2026-09-15T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_window_ends_now_and_a_permalink_keeps_its_times() {
        let span = ask("window=24h").unwrap();
        assert_eq!(span.from.to_string(), "2026-09-14T12:00:00Z", "at a full hour");
        assert_eq!(
            span.permalink(),
            "?from=2026-09-14T12:00:00Z&to=2026-09-15T12:00:00Z&events=pr"
        );
        let reread = ask(&span.permalink()[1..]).unwrap();
        assert_eq!((reread.from, reread.to, reread.window), (span.from, span.to, None));
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
    fn empty_field_of_a_form_is_an_absent_parameter() {
        for (sent, meant) in [
            ("window=&events=&heads=&rows=", ""),
            ("from=2026-09-01&to=", "from=2026-09-01"),
            ("from=&to=+&window=24h", "window=24h"),
        ] {
            assert_eq!(ask(sent).unwrap().address(), ask(meant).unwrap().address(), "{sent}");
        }
    }

    #[test]
    fn invalid_query_parameters_are_refused() {
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
