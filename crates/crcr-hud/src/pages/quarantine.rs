//! `/quarantine`: tests that may fail for a while, who owns them, and until when.

use std::collections::BTreeMap;

use crcr_domain::ci_data::quarantine::QuarantineEntry;
use crcr_results::retention::day_of;
use crcr_results::test_runs::{TestQuery, TestRanking, TestStats};
use jiff::tz::TimeZone;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::address::{self, Sorted, address, sort_header};
use crate::context::{Hud, PageError, repo_parameter};
use crate::files::QuarantineView;
use crate::layout::{time, zone};
use crate::query::given;
use crate::view::View;

/// The days whose results are counted.
const DAYS: i64 = 7;
/// Tests that are compared with the entries: those that failed most often, and as many that were flaky most often.
const MAX_FAILING: usize = 2000;

/// `?repo=OWNER/REPO&sort=end|owner|test|failures&q=TEXT`: a part of a test's name, of an owner's or of a reason.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct QuarantineQuery {
    repo: Option<String>,
    sort: Option<String>,
    q: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QuarantineSort {
    End,
    Owner,
    Test,
    Failures,
}

impl QuarantineSort {
    const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Test, "test", "Test"),
        (Self::End, "end", "Ends (UTC)"),
        (Self::Owner, "owner", "Owner"),
        (Self::Failures, "failures", "Failed in 7 days"),
    ];
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct QuarantineModel {
    pub(crate) repository: String,
    pub(crate) repositories: Vec<String>,
    pub(crate) sort: QuarantineSort,
    pub(crate) q: Option<String>,
    /// `None` if the repository has no quarantine file, or it isn't known.
    pub(crate) entries: Option<Vec<ListedEntry>>,
    /// Whether there may be more failing tests than were compared with the entries, so that counts may be too low.
    pub(crate) only_most_failing: bool,
    pub(crate) problem: Option<String>,
    pub(crate) read_at: Option<jiff::Timestamp>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct ListedEntry {
    #[serde(flatten)]
    pub(crate) entry: QuarantineView,
    /// Whether the counts are known: not if it covers none of the tests that were compared, and there are others.
    pub(crate) counts_known: bool,
    /// In the last seven days.
    pub(crate) failures: u64,
    /// How often it failed and passed on one commit, in the same job.
    pub(crate) flaky: u64,
    /// The tests that it covers and that failed.
    pub(crate) failing_tests: usize,
}

pub(crate) async fn build(
    hud: &Hud,
    (): (),
    query: QuarantineQuery,
) -> Result<QuarantineModel, PageError> {
    let sort = match given(query.sort.as_deref()).as_deref() {
        None => QuarantineSort::End,
        Some(given) => {
            QuarantineSort::ALL
                .into_iter()
                .find(|(_, name, _)| *name == given)
                .ok_or_else(|| {
                    PageError::Query(
                        "`sort` has to be `end`, `owner`, `test` or `failures`".to_owned(),
                    )
                })?
                .0
        }
    };
    let mut repositories = hud.results.tested_repositories().await?;
    if repositories.is_empty() {
        repositories.push(hud.upstream.to_string());
    }
    let named = repo_parameter("repo", query.repo.as_deref())?.map(|named| named.to_string());
    let repository = named.unwrap_or_else(|| {
        let upstream =
            repositories.iter().find(|name| name.eq_ignore_ascii_case(hud.upstream.as_str()));
        upstream.unwrap_or(&repositories[0]).clone()
    });
    let files = (hud.files)(&repository);
    let entries = files.as_ref().and_then(|files| files.quarantine.as_deref());
    let q = given(query.q.as_deref());
    let lower = q.as_deref().unwrap_or_default().to_lowercase();
    let (listed, only_most_failing) = match entries {
        Some(entries) => {
            let entries: Vec<_> = entries.iter().filter(|entry| has_text(entry, &lower)).collect();
            let (listed, only_most) = listed_entries(hud, &repository, &entries, sort).await?;
            (Some(listed), only_most)
        }
        None => (None, false),
    };
    Ok(QuarantineModel {
        repository,
        repositories,
        sort,
        q,
        entries: listed,
        only_most_failing,
        problem: files.as_ref().and_then(|files| files.problem.clone()),
        read_at: files.as_ref().map(|files| files.read_at),
    })
}

/// Whether an entry has the text in its pattern, its owner's name or its reason.
pub(crate) fn has_text(entry: &QuarantineEntry, lower: &str) -> bool {
    let texts = [&entry.pattern, &entry.reason];
    texts.into_iter().any(|text| text.to_lowercase().contains(lower))
        || entry.owner.to_string().to_lowercase().contains(lower.trim_start_matches('@'))
}

/// The entries with the failures of the tests that they cover, and whether only the most failing tests were compared.
async fn listed_entries(
    hud: &Hud,
    repository: &str,
    entries: &[&QuarantineEntry],
    sort: QuarantineSort,
) -> Result<(Vec<ListedEntry>, bool), PageError> {
    let today = hud.now().to_zoned(TimeZone::UTC).date();
    let last = day_of(hud.now());
    let mut failing: BTreeMap<u64, TestStats> = BTreeMap::new();
    let mut only_most = false;
    for ranking in [TestRanking::Failing, TestRanking::Flaky] {
        let query = TestQuery {
            repository: repository.to_owned(),
            ranking,
            days: (last - DAYS + 1, last),
            job: None,
            all_branches: true,
            search: None,
            offset: 0,
            limit: MAX_FAILING,
        };
        let found = hud.results.test_stats(&query).await?;
        only_most |= found.len() >= MAX_FAILING;
        failing.extend(found.into_iter().map(|test| (test.test_id, test)));
    }
    let mut found: Vec<ListedEntry> = entries
        .iter()
        .map(|entry| {
            let covered = failing.values().filter(|test| {
                let variant = test.variant.as_deref();
                entry.matches(&test.suite, &test.classname, &test.name, variant)
            });
            let (mut failures, mut flaky, mut failing_tests) = (0, 0, 0);
            for test in covered {
                failures += test.failures;
                flaky += test.flaky;
                failing_tests += 1;
            }
            let entry = QuarantineView::new(entry, today);
            let counts_known = failing_tests > 0 || !only_most;
            ListedEntry { entry, counts_known, failures, flaky, failing_tests }
        })
        .collect();
    match sort {
        QuarantineSort::End => found.sort_by_key(|listed| listed.entry.expiry),
        QuarantineSort::Owner => found.sort_by(|a, b| a.entry.owner.cmp(&b.entry.owner)),
        QuarantineSort::Test => found.sort_by(|a, b| a.entry.pattern.cmp(&b.entry.pattern)),
        QuarantineSort::Failures => {
            found.sort_by_key(|listed| std::cmp::Reverse((listed.failures, listed.flaky)));
        }
    }
    Ok((found, only_most))
}

pub(crate) fn page(model: &QuarantineModel, view: &View<'_>) -> Markup {
    view.shell(
        "Quarantine",
        false,
        &html! {
            div.title { h1 { "Quarantine" } span.muted { bdi { (model.repository) } } }
            @if model.repositories.len() > 1 {
                nav.controls aria-label="Repositories" { @for name in &model.repositories {
                    a aria-current=[(*name == model.repository).then_some("true")] href=(address("/quarantine", [("repo", Some(&**name))])) { bdi { (name) } } " "
                } }
            }
            form.controls method="get" action="/quarantine" role="search" aria-label="Quarantined tests" {
                input type="hidden" name="repo" value=(model.repository);
                @for (sort, name, _) in QuarantineSort::ALL { @if sort == model.sort { input type="hidden" name="sort" value=(name); } }
                label { "Test, owner or reason " input type="search" name="q" maxlength="200" value=(model.q.as_deref().unwrap_or_default()); }
                button { "Show" }
            }
            @if let Some(problem) = &model.problem { p.note { bdi { (problem) } } }
            @match &model.entries {
                None => p.note { "No quarantine file of this repository is known. The relay reads " code { ".github/quarantine.yml" } " of the default branch, where the GitHub App is installed." },
                Some(entries) if entries.is_empty() => p { @if model.q.is_some() { "No such test is quarantined." } @else { "No test is quarantined." } },
                Some(entries) => {
                    @if model.only_most_failing { p.note role="status" {
                        "Many tests failed or were flaky in these days. Only the " (MAX_FAILING) " that failed most often, and the " (MAX_FAILING)
                        " that were flaky most often, are counted here, so a number may be too low."
                    } }
                    (table(entries, model))
                }
            }
            @if let Some(read_at) = model.read_at { p.detail { @if model.entries.is_some() { "The file was read at " } @else { "It was looked for at " } (time(read_at)) " " (zone()) "." } }
        },
    )
}

fn table(entries: &[ListedEntry], model: &QuarantineModel) -> Markup {
    let link = |sort: &str| {
        let asked =
            [("repo", Some(&*model.repository)), ("sort", Some(sort)), ("q", model.q.as_deref())];
        address("/quarantine", asked)
    };
    let sorted = |sort: QuarantineSort| match sort {
        sort if sort != model.sort => Sorted::No,
        QuarantineSort::Failures => Sorted::Descending,
        QuarantineSort::End | QuarantineSort::Owner | QuarantineSort::Test => Sorted::Ascending,
    };
    let names: BTreeMap<&str, &str> =
        BTreeMap::from([("run", "runs, its failure doesn't count"), ("skip", "isn't run")]);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Quarantined tests" { table.stack {
            thead { tr {
                @for (sort, name, title) in QuarantineSort::ALL { (sort_header(title, sorted(sort), &link(name))) }
                th scope="col" { "Reason" } th scope="col" { "Meanwhile" }
            } }
            tbody { @for listed in entries { tr {
                th scope="row" { a href=(pattern_link(model, &listed.entry.pattern, None)) { bdi { (listed.entry.pattern) } } }
                td data-label="Ends (UTC)" { @if listed.entry.is_expired { span.tag { "ended" } " " } (listed.entry.expiry) span.detail { (listed.entry.distance()) } }
                td data-label="Owner" { bdi { (listed.entry.owner) } }
                td data-label="Failed in 7 days" {
                    @if !listed.counts_known { span.muted { "unknown" } } @else if listed.failures == 0 { span.muted { "0" } } @else {
                        a href=(pattern_link(model, &listed.entry.pattern, Some("failed"))) { (listed.failures) }
                    }
                    @if listed.flaky > 0 { span.detail { a href=(pattern_link(model, &listed.entry.pattern, Some("flaky"))) { (listed.flaky) } " flaky" } }
                    @if listed.failing_tests > 1 { span.detail { "of " (listed.failing_tests) " tests" } }
                }
                td.message data-label="Reason" { bdi { (listed.entry.reason) } }
                td data-label="Meanwhile" { (names.get(listed.entry.mode).copied().unwrap_or(listed.entry.mode)) }
            } } }
        } }
    }
}

/// What an entry covers: a pattern with `*` is of several tests. `runs`: what is counted of them.
fn pattern_link(model: &QuarantineModel, pattern: &str, runs: Option<&str>) -> String {
    let days = DAYS.to_string();
    let days = runs.is_some().then_some(&*days);
    match pattern.split('*').max_by_key(|part| part.len()) {
        Some(part) if pattern.contains('*') => address(
            "/tests",
            [
                ("repo", Some(&*model.repository)),
                ("sort", Some(if runs == Some("flaky") { "flaky" } else { "failing" })),
                ("days", days),
                ("branches", Some("all")),
                ("q", Some(part.trim_start_matches('.'))),
            ],
        ),
        _ => {
            let page = address::test_named(&model.repository, pattern);
            match runs {
                Some(runs) => format!("{page}&days={DAYS}&runs={runs}#runs"),
                None => page,
            }
        }
    }
}
