//! `/prs`: the open pull requests, what the backends say of each, and what blocks it.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crcr_domain::{AllowlistEntry, Level};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::pull_fault;
use crate::address::{SortOrder, Sorted, order_header};
use crate::context::{Hud, PageError};
use crate::layout::{ago, counted, short_repo, short_sha};
use crate::model::open_pulls::{self, BackendAnswer, OpenPull, PullStanding};
use crate::query::{given, parse_time, without_level};
use crate::view::View;

/// Rows on a page.
const MAX_ROWS: usize = 100;
/// Backends with a column of their own.
const MAX_COLUMNS: usize = 24;
const SORTS: [&str; 6] = ["number", "title", "author", "age", "state", "since"];

/// `?show=blocked|running|green|untold&backend=OWNER/REPO&author=LOGIN&sort=COLUMN&before=TIME&page=N`; a `-` before
/// the column sorts the other way.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct PullsQuery {
    show: Option<String>,
    backend: Option<String>,
    author: Option<String>,
    sort: Option<String>,
    before: Option<String>,
    #[schemars(with = "Option<u64>")]
    page: Option<String>,
}

/// The filters, as the address has them.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct PullsFilter {
    pub(crate) show: Option<PullStanding>,
    pub(crate) backend: Option<String>,
    pub(crate) author: Option<String>,
    pub(crate) sort: SortOrder,
    pub(crate) before: Option<Timestamp>,
    pub(crate) page: usize,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct PullsModel {
    pub(crate) upstream: String,
    pub(crate) filter: PullsFilter,
    /// The backends with a column: L4 first, those that the filter names.
    pub(crate) backends: Vec<PullColumn>,
    /// How many of them have none.
    pub(crate) more_backends: usize,
    /// Those that the filter names if none of them has one: results of lower levels aren't shown upstream.
    pub(crate) unlisted: Vec<PullColumn>,
    pub(crate) pulls: Vec<OpenPull>,
    /// How many match and are on later pages.
    pub(crate) more: usize,
    /// How many of those that are looked at have each standing, with the other filters.
    pub(crate) counts: Vec<(PullStanding, usize)>,
    /// Pull requests that changed before this time may be open, too.
    pub(crate) older: Option<Timestamp>,
    /// Whether webhooks say which pull requests are open.
    pub(crate) are_known: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
pub(crate) struct PullColumn {
    pub(crate) level: Level,
    pub(crate) repo: String,
}

impl PullsFilter {
    fn new(query: &PullsQuery) -> Result<Self, PageError> {
        let show = given(query.show.as_deref());
        let show = show.map(|show| {
            let known = PullStanding::from_name(&show);
            known.ok_or_else(|| {
                let text = "`show` has to be `blocked`, `running`, `green` or `untold`";
                PageError::Query(text.to_owned())
            })
        });
        let before = given(query.before.as_deref()).as_deref().map(parse_time);
        let last = open_pulls::MAX_PULLS.div_ceil(MAX_ROWS);
        let page = given(query.page.as_deref()).map_or(Ok(1), |page| {
            let known = page.parse().ok().filter(|page| (1..=last).contains(page));
            let wrong = || PageError::Query(format!("`page` has to be a number from 1 to {last}"));
            known.ok_or_else(wrong)
        });
        Ok(Self {
            show: show.transpose()?,
            backend: given(query.backend.as_deref()),
            author: given(query.author.as_deref()),
            sort: SortOrder::new(query.sort.as_deref(), "state", &SORTS)
                .map_err(PageError::Query)?,
            before: before.transpose().map_err(PageError::Query)?,
            page: page?,
        })
    }

    /// The address of the page with these filters.
    fn address(&self) -> String {
        let page = (self.page > 1).then(|| self.page.to_string());
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let before = self.before.map(|before| before.to_string());
        let sort = self.sort.parameter("state");
        for (name, value) in [
            ("show", self.show.map(PullStanding::as_str)),
            ("backend", self.backend.as_deref()),
            ("author", self.author.as_deref()),
            ("sort", sort.as_deref()),
            ("before", before.as_deref()),
            ("page", page.as_deref()),
        ] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        let query = query.finish();
        if query.is_empty() { "/prs".to_owned() } else { format!("/prs?{query}") }
    }

    fn includes(&self, pull: &OpenPull) -> bool {
        let is_author = self.author.as_ref().is_none_or(|author| {
            let author = author.trim_start_matches('@');
            pull.author.as_ref().is_some_and(|known| known.eq_ignore_ascii_case(author))
        });
        // A part of a name is enough.
        let is_backend =
            self.backend.is_none() || pull.backends.iter().any(|backend| self.is_of(&backend.repo));
        is_author && is_backend
    }

    /// Whether it is the backend that is asked for, if one is.
    fn is_of(&self, repo: &str) -> bool {
        let asked = self.backend.as_deref().map(without_level);
        asked.is_none_or(|asked| repo.to_lowercase().contains(&asked.to_lowercase()))
    }
}

pub(crate) async fn build(hud: &Hud, (): (), query: PullsQuery) -> Result<PullsModel, PageError> {
    let filter = PullsFilter::new(&query)?;
    let found = open_pulls::read(hud, filter.before.unwrap_or(Timestamp::MAX)).await?;
    let columns: BTreeSet<PullColumn> = (found.pulls.iter().flat_map(|pull| &pull.backends))
        .filter(|backend| filter.is_of(&backend.repo))
        .map(|backend| PullColumn { level: backend.level, repo: backend.repo.clone() })
        .collect();
    let mut backends: Vec<PullColumn> = columns.into_iter().collect();
    backends.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.repo.cmp(&b.repo)));
    let more_backends = backends.len().saturating_sub(MAX_COLUMNS);
    backends.truncate(MAX_COLUMNS);
    let unlisted = if backends.is_empty() { unlisted(hud, &filter) } else { vec![] };
    let matching = |pull: &OpenPull, show: Option<PullStanding>| {
        show.is_none_or(|show| pull.standing == show) && filter.includes(pull)
    };
    let counts = PullStanding::ALL.map(|standing| {
        (standing, found.pulls.iter().filter(|pull| matching(pull, Some(standing))).count())
    });
    let mut pulls: Vec<OpenPull> =
        found.pulls.into_iter().filter(|pull| matching(pull, filter.show)).collect();
    pulls.sort_by(|a, b| {
        filter.sort.apply(compare(filter.sort.column, a, b)).then(b.number.cmp(&a.number))
    });
    let mut pulls = pulls.split_off(pulls.len().min((filter.page - 1) * MAX_ROWS));
    let more = pulls.len().saturating_sub(MAX_ROWS);
    pulls.truncate(MAX_ROWS);
    Ok(PullsModel {
        upstream: hud.upstream.as_str().to_owned(),
        filter,
        backends,
        more_backends,
        unlisted,
        pulls,
        more,
        counts: counts.to_vec(),
        older: found.older,
        are_known: found.are_known,
    })
}

/// The backends that the filter names and whose level isn't shown upstream.
fn unlisted(hud: &Hud, filter: &PullsFilter) -> Vec<PullColumn> {
    let policy = (hud.policy)();
    let entries = policy.iter().flat_map(|policy| policy.iter());
    let lower = entries.filter(|entry| {
        filter.backend.is_some() && entry.level < Level::L3 && filter.is_of(entry.repo.as_str())
    });
    let column = |entry: &AllowlistEntry| PullColumn {
        level: entry.level,
        repo: entry.repo.as_str().to_owned(),
    };
    lower.take(MAX_COLUMNS).map(column).collect()
}

/// What comes first when a column is sorted: the blocked, the longest blocked, the newest.
fn compare(column: &str, a: &OpenPull, b: &OpenPull) -> Ordering {
    let text = |text: &Option<String>| text.as_ref().map(|text| text.to_lowercase());
    match column {
        "number" => a.number.cmp(&b.number),
        "title" => text(&a.title).cmp(&text(&b.title)),
        "author" => text(&a.author).cmp(&text(&b.author)),
        "age" => b.head_at.cmp(&a.head_at),
        "since" => since(a).cmp(&since(b)),
        _ => a.standing.cmp(&b.standing).then_with(|| since(a).cmp(&since(b))),
    }
}

fn since(pull: &OpenPull) -> Timestamp {
    pull.since.unwrap_or(Timestamp::MAX)
}

pub(crate) fn page(model: &PullsModel, view: &View<'_>) -> Markup {
    view.shell(
        "Pull requests",
        true,
        &html! {
            div.title { h1 { "Open pull requests of " bdi { (model.upstream) } } }
            (filters(model))
            @if !model.are_known {
                p.note role="status" { "Titles, authors and which pull requests are open aren't known: the relay doesn't keep webhooks of " code { "pull_request" } ". These were dispatched in the last three days." }
            }
            @if !model.unlisted.is_empty() {
                p.note role="status" {
                    "Only backends at L3 and L4 are listed here: "
                    @for (n, backend) in model.unlisted.iter().enumerate() {
                        @if n > 0 { ", " }
                        a href=(format!("/crcr/{}", backend.repo)) { bdi { (backend.repo) } } " is at " (backend.level)
                    }
                }
            } @else if model.pulls.is_empty() {
                p.muted { @if model.older.is_some() { "None of those that changed last matches." } @else { "No open pull request matches." } }
            }
            @else { (table(model)) }
            @if model.more_backends > 0 { p.detail { (counted(model.more_backends, "more backend has", "more backends have")) " no column; name one above to see it." } }
            @let beside = |page| PullsFilter { page, ..model.filter.clone() }.address();
            @if model.filter.page > 1 || model.more > 0 { p.pager {
                @if model.filter.page > 1 { a rel="nofollow" href=(beside(model.filter.page - 1)) { "Back" } }
                @if model.more > 0 { a rel="nofollow" href=(beside(model.filter.page + 1)) { (model.more) " more" } }
            } }
            @if let Some(older) = model.older {
                p { a rel="nofollow" href=(PullsFilter { before: Some(older), page: 1, ..model.filter.clone() }.address()) { "Pull requests that changed earlier" } }
            }
        },
    )
}

fn filters(model: &PullsModel) -> Markup {
    let filter = &model.filter;
    let link =
        |show: Option<PullStanding>| PullsFilter { show, page: 1, ..filter.clone() }.address();
    let is_filtered =
        filter.backend.is_some() || filter.author.is_some() || filter.before.is_some();
    html! {
        div.controls {
            nav.group aria-label="Standing" {
                a rel="nofollow" aria-current=[filter.show.is_none().then_some("true")] href=(link(None)) { "All" }
                @for (standing, count) in &model.counts {
                    a rel="nofollow" aria-current=[(filter.show == Some(*standing)).then_some("true")] href=(link(Some(*standing))) {
                        (standing_name(*standing)) @if model.older.is_none() { " " (count) }
                    }
                }
            }
            form.span method="get" action="/prs" {
                @if let Some(show) = filter.show { input type="hidden" name="show" value=(show.as_str()); }
                @if let Some(before) = filter.before { input type="hidden" name="before" value=(before); }
                @if let Some(sort) = filter.sort.parameter("state") { input type="hidden" name="sort" value=(sort); }
                label { "Backend" input type="search" name="backend" maxlength="200" value=(filter.backend.as_deref().unwrap_or_default()); }
                label { "Author" input type="search" name="author" maxlength="200" value=(filter.author.as_deref().unwrap_or_default()); }
                button { "Show" }
            }
            @if is_filtered { a href="/prs" { "Reset" } }
        }
    }
}

fn standing_name(standing: PullStanding) -> &'static str {
    match standing {
        PullStanding::Blocked => "Blocked",
        PullStanding::Running => "Running",
        PullStanding::Green => "Green",
        PullStanding::Untold => "No L4 backend",
    }
}

fn table(model: &PullsModel) -> Markup {
    let url = |sort: &SortOrder| {
        PullsFilter { sort: sort.clone(), page: 1, ..model.filter.clone() }.address()
    };
    let head = |column: &'static str, name: &str| {
        order_header((column, name), &model.filter.sort, Sorted::Ascending, url)
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Open pull requests" { table.stack.pulls {
            thead { tr {
                (head("number", "Pull request"))
                (head("author", "Author"))
                (head("age", "Head"))
                @for column in &model.backends { th.job scope="col" title=(column.repo) { span { bdi { (short_repo(&column.repo)) } " " (column.level) } } }
                (head("state", "Blocked by"))
                th scope="col" { "Fault" }
                (head("since", "Since"))
            } }
            tbody { @for pull in &model.pulls { (row(pull, model)) } }
        } }
    }
}

fn row(pull: &OpenPull, model: &PullsModel) -> Markup {
    let of_author = |author: &str| {
        let author = Some(author.to_owned());
        PullsFilter { author, page: 1, ..model.filter.clone() }.address()
    };
    html! {
        tr {
            th scope="row" {
                a href=(format!("/pr/{}", pull.number)) { "#" (pull.number) @if let Some(title) = &pull.title { " " bdi { (title) } } }
                @if pull.is_draft { " " span.tag { "draft" } }
            }
            td data-label="Author" { @match &pull.author {
                Some(author) => a rel="nofollow" href=(of_author(author)) { bdi { (author) } },
                None => span.muted { "unknown" },
            } }
            td data-label="Head" { (ago(pull.head_at)) " " code.detail { (short_sha(&pull.head_sha)) } }
            @for column in &model.backends {
                @let found = pull.backends.iter().find(|backend| backend.repo == column.repo);
                (backend_cell(found, column))
            }
            td.message data-label="Blocked by" { (blocked_by(pull)) }
            td.message.none[pull.why.is_none()] data-label="Fault" { @match &pull.why {
                Some(why) => { span.tag { (pull_fault(pull)) } " " span.detail { bdi { (why) } } },
                None => span.muted { "–" },
            } }
            td.none[pull.since.is_none()] data-label="Since" { @match pull.since { Some(since) => (ago(since)), None => span.muted { "–" } } }
        }
    }
}

fn backend_cell(answer: Option<&BackendAnswer>, column: &PullColumn) -> Markup {
    html! {
        @match answer {
            Some(answer) => {
                @let (class, word) = (answer.state.class(), answer.word());
                td.(class).state data-label=(short_repo(&column.repo)) {
                    span.outcome.(class) title=(format!("{}: {word}", column.repo)) {
                        span.glyph aria-hidden="true" { (answer.state.glyph()) } " " span.word { (word) }
                    }
                }
            }
            None => td.state data-label=(short_repo(&column.repo)) { span.muted title="not told of this head" { span aria-hidden="true" { "·" } span.hidden { "not told" } } },
        }
    }
}

fn blocked_by(pull: &OpenPull) -> Markup {
    html! {
        @match pull.standing {
            PullStanding::Blocked => {
                span.outcome.bad { span.glyph aria-hidden="true" { "✗" } " " span.hidden { "blocked by " } }
                @for (n, repo) in pull.blocked_by.iter().enumerate() {
                    @if n > 0 { ", " }
                    a href=(format!("/crcr/{repo}")) title=(repo) { bdi { (short_repo(repo)) } }
                }
            }
            PullStanding::Running => span.outcome.running { span.glyph aria-hidden="true" { "◐" } " running" },
            PullStanding::Green => span.outcome.good { span.glyph aria-hidden="true" { "✓" } " nothing" },
            PullStanding::Untold => span.muted { "no backend at L4" },
        }
    }
}
