//! Parts of every page: the shell, and the markup of outcomes, rates and times.

use std::fmt::Display;

use crcr_domain::ci_data::workflow::CiState;
use crcr_domain::probes::Culprit;
use crcr_domain::results::{DurationStats, JobOutcome};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};

use crate::address;
use crate::model::RateView;
use crate::view::View;

pub(crate) const STYLE: &str = concat!(include_str!("hud.css"), include_str!("pages.css"));
/// Reloads the page in place; pages work without it.
pub(crate) const SCRIPT: &str = concat!(include_str!("hud.js"), include_str!("pages.js"));

pub(crate) const ICON: &str = concat!(
    r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">"##,
    r##"<rect width="16" height="16" rx="3" fill="#0757ba"/>"##,
    r##"<path d="M4 8.5l2.5 2.5L12 5" fill="none" stroke="#fff" stroke-width="2"/></svg>"##
);
/// The pages of the first rank.
pub(crate) const PAGES: [(&str, &str); 7] = [
    ("/", "Now"),
    ("/prs", "Pull requests"),
    ("/hud", "Branches"),
    ("/crcr", "Backends"),
    ("/tests", "Tests"),
    ("/failures", "Failures"),
    ("/trends", "Trends"),
];
/// Seconds between reloads of an open page.
const REFRESH_SECONDS: u32 = 60;

impl View<'_> {
    /// A whole page around `main`; with `refresh` it reloads itself.
    pub fn shell(&self, title: &str, refresh: bool, main: &Markup) -> Markup {
        shell(self, title, refresh, main)
    }
}

fn shell(view: &View<'_>, title: &str, refresh: bool, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · CRCR" }
                link rel="icon" href="/crcr/assets/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/crcr/assets/hud.css";
                link rel="alternate" type="application/atom+xml" title="Backends that turned red" href="/crcr/feed.atom";
                script src="/crcr/assets/hud.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                header {
                    a.home href="/" { "Cross-repository CI" }
                    nav.pages aria-label="Pages" {
                        @for (address, name) in PAGES {
                            a href=(address) aria-current=[current(view.path, address)] { (name) }
                        }
                        @if view.is_operator {
                            a href="/crcr/deliveries" aria-current=[current(view.path, "/crcr/deliveries")] { "Deliveries" }
                        }
                    }
                    form.search method="get" action="/search" role="search" {
                        input type="search" name="q" maxlength="2000" aria-label="Search for a pull request, a commit, a repository or a test"
                            placeholder="Pull request, commit, repository, test";
                    }
                    span #refreshed {}
                }
                main #main tabindex="-1" data-refresh=[refresh.then_some(REFRESH_SECONDS)] { (main) }
                footer {
                    p {
                        @if counts_one_attempt(view.path) { "Rates count one attempt per job and commit: the highest attempt of the newest run. " }
                        span #zone { "Times are UTC." }
                    }
                    p { @if view.has_login { a href="/crcr/login" rel="nofollow" { "For operators" } " · " } a href="/api/v1/openapi.json" rel="nofollow" { "API" } " · " a href="/crcr/feed.atom" { "Feed of what turned red" } }
                    // The script's switches.
                    div #settings {}
                }
            }
        }
    }
}

fn is_for_operators(path: &str) -> bool {
    ["/crcr/deliveries", "/crcr/login"].iter().any(|start| path.starts_with(start))
}

/// Whether the page is about the attempts of record of backends' jobs.
fn counts_one_attempt(path: &str) -> bool {
    ["/crcr", "/reported"].contains(&path) || path.starts_with("/crcr/") && !is_for_operators(path)
}

/// `page` for the page itself, `true` for the part of the site that a page belongs to.
fn current(path: &str, address: &str) -> Option<&'static str> {
    let is_below =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    let belongs = match address {
        "/prs" => is_below("/pr"),
        "/hud" => is_below("/hud") || is_below("/commit"),
        "/tests" => is_below("/test") || path == "/quarantine",
        "/failures" => is_below("/failure"),
        "/trends" => path == "/jobs",
        "/crcr" => {
            ["/relay", "/reported"].contains(&path) || is_below("/crcr") && !is_for_operators(path)
        }
        _ => false,
    };
    if path == address { Some("page") } else { belongs.then_some("true") }
}

/// An outcome as a symbol and a word.
pub(crate) fn outcome(outcome: Option<JobOutcome>) -> Markup {
    let (glyph, class, word) = outcome_parts(outcome);
    html! { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } }
}

/// Symbol, CSS class and word of an outcome; `None` is a running job.
pub(crate) fn outcome_parts(
    outcome: Option<JobOutcome>,
) -> (&'static str, &'static str, &'static str) {
    match outcome {
        None => ("◐", "running", "running"),
        Some(JobOutcome::Passed) => ("✓", "good", "passed"),
        Some(JobOutcome::PassedAfterRerun) => ("↻", "good", "passed after re-run"),
        Some(JobOutcome::TestFailed) => ("✗", "bad", "tests failed"),
        Some(JobOutcome::InfraFailed) => ("⚠", "infra", "infrastructure failed"),
        Some(JobOutcome::TimedOut) => ("◷", "infra", "timed out"),
        Some(JobOutcome::Lost) => ("?", "infra", "lost"),
        Some(JobOutcome::NeverStarted) => ("∅", "infra", "never started"),
        Some(JobOutcome::Cancelled) => ("⊘", "infra", "cancelled"),
        Some(JobOutcome::Superseded) => ("»", "muted", "superseded"),
        Some(JobOutcome::Neutral) => ("–", "muted", "neutral"),
    }
}

/// A rate with its samples and its interval.
pub(crate) fn rate(view: &RateView) -> Markup {
    let n = format!("{}/{}", view.rate.numerator, view.rate.denominator);
    html! {
        @match (view.value, view.interval) {
            (Some(value), Some((low, high))) if view.known => {
                span.rate { (percent(value)) }
                " " span.detail title=(format!("95 % interval {} to {}", percent(low), percent(high))) {
                    (n) " · " (whole_percents(low, high))
                }
            }
            (Some(_), _) => { span.muted { "unknown" } " " span.detail title="fewer than 20 samples" { (n) ", too few" } }
            (None, _) => { span.muted { "no data" } }
        }
    }
}

/// A share (0 to 1) in percent, with one decimal unless that is 0. Only all is 100 %, and only nothing is 0 %.
pub(crate) fn percent(share: f64) -> String {
    match format!("{:.1}", share * 100.0).as_str() {
        "100.0" if share < 1.0 => "> 99.9 %".to_owned(),
        "0.0" if share > 0.0 => "< 0.1 %".to_owned(),
        text => format!("{} %", text.strip_suffix(".0").unwrap_or(text)),
    }
}

/// An interval of shares in whole percent. Its ends are rounded away from all and nothing, as [`percent`] does.
fn whole_percents(low: f64, high: f64) -> String {
    let low = if low < 1.0 { (100.0 * low).min(99.0) } else { 100.0 };
    let high = if high > 0.0 { (100.0 * high).max(1.0) } else { 0.0 };
    format!("{low:.0}–{high:.0} %")
}

/// The files that a push changed.
pub(crate) fn changed_file_list(files: &[String], is_open: bool) -> Markup {
    html! {
        details open[is_open] {
            summary { (counted(files.len(), "file", "files")) " changed" }
            ul.plain { @for file in files { li { code { bdi { (file) } } } } }
        }
    }
}

/// A number with its noun: `1 job`, `2 jobs`.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(
    count: N,
    one: &str,
    many: &str,
) -> String {
    let noun = if count == N::from(1) { one } else { many };
    format!("{count} {noun}")
}

/// A duration in the unit that fits it.
pub(crate) fn in_unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        s if s < 100.0 => (s, "s"),
        s if s < 100.0 * 60.0 => (s / 60.0, "min"),
        s if s < 72.0 * 3600.0 => (s / 3600.0, "h"),
        s => (s / 86_400.0, "d"),
    }
}

/// Seconds as people read them: `45 s`, `12 min`, `2.5 h`.
pub(crate) fn duration(seconds: f64) -> String {
    let (value, unit) = in_unit(seconds);
    if value < 10.0 && unit != "s" {
        let text = format!("{value:.1}");
        format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    } else if seconds > 0.0 && seconds < 1.0 {
        format!("{:.0} ms", seconds * 1000.0)
    } else {
        format!("{value:.0} {unit}")
    }
}

/// P50 and P95 of a distribution.
pub(crate) fn distribution(of: Option<&DurationStats>) -> Markup {
    html! {
        @match of {
            Some(d) => {
                (duration(d.p50)) " " span.detail title=(format!("mean {}, longest {}", duration(d.mean), duration(d.max))) {
                    "P95 " (duration(d.p95)) " · n " (d.n)
                }
            }
            None => span.muted { "no data" },
        }
    }
}

/// A number that leads to what it counts, if there is such a page.
pub(crate) fn count_link(count: impl Display, address: Option<&str>) -> Markup {
    html! { @match address {
        Some(address) => a rel="nofollow" href=(address) { (count.to_string()) },
        None => (count.to_string()),
    } }
}

/// A time to the minute; the `datetime` attribute has the full time.
pub fn time(time: Timestamp) -> Markup {
    let text = time.strftime("%Y-%m-%d %H:%M").to_string();
    html! { time datetime=(time) { (text) } }
}

/// A time that the script shows as "3 h ago"; without it, the time to the minute. What doesn't change is
/// sent, so that a page stays the same until its data changes.
pub fn ago(time: Timestamp) -> Markup {
    let text = time.strftime("%Y-%m-%d %H:%M").to_string();
    html! { time.ago datetime=(time) { (text) } }
}

/// The zone of the times beside it. The script changes them together.
pub(crate) fn zone() -> Markup {
    html! { span.zone { "UTC" } }
}

/// A commit of any upstream repository, as a link to its page.
pub(crate) fn commit_of(repository: &str, own: &str, sha: &str) -> Markup {
    html! { a href=(address::commit_of(repository, own, sha)) { code { (short_sha(sha)) } } }
}

/// A commit, as a link to its page.
pub fn commit_link(sha: &str) -> Markup {
    html! { a href=(format!("/commit/{sha}")) { code { (short_sha(sha)) } } }
}

pub(crate) fn short_repo(repo: &str) -> &str {
    repo.split_once('/').map_or(repo, |(_, name)| name)
}

/// A link to another site, showing its host. A URL that isn't https becomes plain text.
pub(crate) fn external_link(url: &str, text: &str) -> Markup {
    let host = url::Url::parse(url)
        .ok()
        .filter(|url| ["https", "http"].contains(&url.scheme()))
        .and_then(|url| url.host_str().map(str::to_owned));
    html! {
        @match host {
            Some(host) => {
                a href=(url) rel="noreferrer nofollow" { bdi { (text) } span.host { " (" (host) ")" } }
            }
            None => bdi { (text) },
        }
    }
}

/// The first ten characters of a commit's hash.
pub(crate) fn short_sha(sha: &str) -> String {
    sha.chars().take(10).collect()
}

/// Which commits broke jobs of backends; nothing without answers.
pub(crate) fn culprit_list(culprits: &[Culprit]) -> Markup {
    html! {
        @if !culprits.is_empty() {
            section aria-labelledby="culprits" {
                h2 #culprits { "Which commit broke what" }
                ul { @for found in culprits {
                    li {
                        a href=(format!("/crcr/{}", found.repo)) { bdi { (found.repo) } } ": " bdi { (found.sentence()) }
                        div.detail {
                            (ago(found.at))
                            @if let Some(commit) = found.suspect.as_ref().filter(|_| found.is_certain) {
                                " · " a href=(address::commit(&found.upstream, &commit.sha)) { bdi { (commit.title) } }
                            }
                            @if let Some(test) = found.tests.first() { " · " bdi { (test) } @if found.tests.len() > 1 { " and " (found.tests.len() - 1) " more" } }
                        }
                    }
                } }
            }
        }
    }
}

/// Symbol, CSS class and word.
pub(crate) fn state_parts(state: CiState) -> (&'static str, &'static str, &'static str) {
    match state {
        CiState::Passed => ("✓", "good", "passed"),
        CiState::Failed => ("✗", "bad", "failed"),
        CiState::TimedOut => ("◷", "infra", "timed out"),
        CiState::Cancelled => ("⊘", "infra", "cancelled"),
        CiState::Running => ("◐", "running", "running"),
        CiState::Queued => ("◌", "running", "queued"),
        CiState::Neutral => ("–", "muted", "skipped"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_use_the_unit_that_fits() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.25, "250 ms"),
            (45.0, "45 s"),
            (100.0, "1.7 min"),
            (179.0, "3 min"),
            (181.0, "3 min"),
            (599.0, "10 min"),
            (720.0, "12 min"),
            (9_000.0, "2.5 h"),
            (86_400.0 * 4.0, "4 d"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!((percent(0.9), percent(0.945)), ("90 %".into(), "94.5 %".into()));
    }

    #[test]
    fn one_failure_among_thousands_is_neither_all_nor_nothing() {
        for (share, text) in
            [(1.0, "100 %"), (0.9999, "> 99.9 %"), (0.0001, "< 0.1 %"), (0.0, "0 %")]
        {
            assert_eq!(percent(share), text);
        }
        for (low, high, text) in
            [(0.997, 1.0, "99–100 %"), (0.0, 0.003, "0–1 %"), (0.956, 0.984, "96–98 %")]
        {
            assert_eq!(whole_percents(low, high), text);
        }
    }

    #[test]
    fn one_thing_has_the_noun_of_one() {
        assert_eq!(
            (counted(1_u64, "job", "jobs"), counted(0, "job", "jobs")),
            ("1 job".into(), "0 jobs".into())
        );
    }

    #[test]
    fn only_web_addresses_become_links_and_their_host_is_shown() {
        let link = external_link("https://ci.example/run/1?a=\"><script>", "log").into_string();
        assert!(link.contains("(ci.example)") && !link.contains("<script>"), "{link}");
        for odd in ["javascript:alert(1)", "ftp://ci.example/", "//ci.example/", "data:text/html,x"]
        {
            assert_eq!(external_link(odd, "log").into_string(), "<bdi>log</bdi>", "{odd}");
        }
    }
}
