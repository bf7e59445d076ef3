//! Reviews single repositories by recorded results, and prints the reviews.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use crcr_domain::results::criteria::{CriterionEvidence, CriterionUnit};
use crcr_domain::results::review::{ReviewFacts, ReviewQuestion, ReviewSubject};
use crcr_domain::results::{Criterion, CriterionVerdict, LevelCriteria, Rate, RepoReview};
use crcr_domain::{Level, RepoName};
use crcr_github::http::{self, RetryPolicy};
use crcr_github::{SecureUrl, SecureUrlError};
use crcr_results::review::{MAX_CRITERIA_BYTES, criteria, review, window};
use crcr_results::{Results, ResultsUrl, Window};
use jiff::Timestamp;
use serde_json::Value;
use url::Url;

use crate::cli::allowlist::ReviewOptions;
use crate::commands::github;
use crate::failure::Failure;

pub struct LevelReviewer {
    /// The results as the user named them.
    location: String,
    source: ReviewSource,
    hud_url: Option<Url>,
}

enum ReviewSource {
    Store(Arc<dyn Results>, Box<LevelCriteria>),
    /// A HUD that reviews by its own criteria.
    Hud(reqwest::Client, SecureUrl),
}

/// A review has a few KiB.
const MAX_REVIEW_BYTES: usize = 256 * 1024;

impl LevelReviewer {
    /// Opens results read-only. `location` is a path, `sqlite:PATH`, a ClickHouse URL, or the https URL of a
    /// HUD.
    pub async fn open(location: &str, options: &ReviewOptions) -> Result<Self, Failure> {
        let hud_url = options.hud_url.clone();
        if location.starts_with("https://") || location.starts_with("http://") {
            return Self::open_hud(location, options.criteria.is_some(), hud_url);
        }
        let criteria = match &options.criteria {
            Some(path) => read_criteria(path)?,
            None => LevelCriteria::default(),
        };
        let url = if location.contains(':') { location } else { &format!("sqlite:{location}") };
        let url =
            ResultsUrl::parse(url).map_err(|why| unreadable(location, anyhow::anyhow!(why)))?;
        let results =
            crcr_results::open_to_read(&url).await.map_err(|error| unreadable(location, error))?;
        let source = ReviewSource::Store(results, Box::new(criteria));
        Ok(Self { location: location.to_owned(), source, hud_url })
    }

    fn open_hud(location: &str, has_criteria: bool, hud_url: Option<Url>) -> Result<Self, Failure> {
        if has_criteria {
            let text = "a HUD reviews by its own criteria, so `--criteria` has no effect";
            return Err(Failure::unexpected("usage", text)
                .hint("leave `--criteria` out, or read the relay's store with `--results`"));
        }
        let url: SecureUrl = location.parse().map_err(|error: SecureUrlError| {
            Failure::unexpected("results-url", format!("`--results` {error}"))
        })?;
        let http = github::http()?;
        let hud_url = hud_url.or_else(|| Url::parse(url.as_str()).ok());
        let source = ReviewSource::Hud(http, url);
        Ok(Self { location: location.to_owned(), source, hud_url })
    }

    /// `None`: the HUD's own, which it doesn't publish.
    pub fn criteria(&self) -> Option<&LevelCriteria> {
        match &self.source {
            ReviewSource::Store(_, criteria) => Some(criteria),
            ReviewSource::Hud(..) => None,
        }
    }

    /// Reviews a repository at `level` by the results of a window; without a start, the criteria define it.
    pub async fn review(
        &self,
        repo: &RepoName,
        level: Level,
        window: (Option<Timestamp>, Timestamp),
    ) -> Result<RepoReview, Failure> {
        match &self.source {
            ReviewSource::Store(results, criteria) => {
                review(&**results, repo, Some(level), window, criteria)
                    .await
                    .map_err(|error| unreadable(&self.location, error))
            }
            ReviewSource::Hud(http, url) => review_on_hud(http, url, repo, level, window)
                .await
                .map_err(|error| unreadable(&self.location, error)),
        }
    }

    /// The address of the review on the HUD; only its path if the HUD's address isn't known.
    pub fn link(&self, review: &RepoReview) -> String {
        let base = self.hud_url.as_ref().map_or("", |url| url.as_str().trim_end_matches('/'));
        format!("{base}{}", review.permalink())
    }

    pub fn text(&self, review: &RepoReview) -> String {
        let mut out = format!("{}  {}\n", review.repo, heading(review));
        let _ = writeln!(out, "  {} to {}, pull requests and pushes", review.from, review.to);
        let _ = writeln!(out, "  {}", review.standing().sentence());
        out += &text_table(&review.evidence);
        if let Some(second) = &review.second {
            let _ = writeln!(out, "  {} {}", second.title(), verdict_name(second.verdict));
            out += &text_table(&second.evidence);
        }
        for (name, value) in separate_rates(review) {
            let _ = writeln!(out, "  {name}: {value}");
        }
        let _ = writeln!(out, "  {}", self.link(review));
        out
    }

    /// A section of a pull request comment.
    pub fn markdown(&self, review: &RepoReview) -> String {
        let link = self.link(review);
        let mut out = format!("\n#### `{}`: {}\n\n", review.repo, heading(review));
        let _ = writeln!(out, "{}\n", review.standing().sentence());
        out += &markdown_table(&review.evidence);
        if let Some(second) = &review.second {
            let _ = writeln!(out, "\n{} {}\n", second.title(), verdict_name(second.verdict));
            out += &markdown_table(&second.evidence);
        }
        let rates =
            separate_rates(review).map(|(name, value)| format!("{name}: {value}")).join(" · ");
        let window = format!("{} to {}, pull requests and pushes", review.from, review.to);
        let _ = match self.hud_url {
            Some(_) => writeln!(out, "\n{rates}<br>[{window}](<{link}>)"),
            None => writeln!(out, "\n{rates}<br>{window}: `{link}` on the relay"),
        };
        out
    }

    pub fn json(&self, review: &RepoReview) -> Value {
        let mut value = serde_json::to_value(review).expect("a review is always JSON");
        value["permalink"] = self.link(review).into();
        value
    }
}

fn unreadable(location: &str, error: impl Into<anyhow::Error>) -> Failure {
    Failure::unexpected("results-unreadable", format!("the results in `{location}` can't be read"))
        .because(error)
        .hint("name the relay's results: a path, `sqlite:PATH`, a ClickHouse URL or the HUD's URL")
}

/// The same review as the level page of a HUD.
async fn review_on_hud(
    client: &reqwest::Client,
    hud: &SecureUrl,
    repo: &RepoName,
    level: Level,
    (from, to): (Option<Timestamp>, Timestamp),
) -> anyhow::Result<RepoReview> {
    let base = hud.as_str().trim_end_matches('/');
    let start = from.map(|from| format!("&from={from:.0}")).unwrap_or_default();
    let url = format!("{base}/api/v1/repositories/{repo}/level?level={level}{start}&to={to:.0}");
    let response = match http::send(RetryPolicy::CALL, || client.get(&url)).await {
        Ok(response) => response,
        // The HUD knows no results of it, and its allowlist doesn't have it yet.
        Err(error) if error.status().is_some_and(|status| status.as_u16() == 404) => {
            let criteria = LevelCriteria::default();
            // In whole seconds, as of any other repository.
            let Window { from, to, .. } = window(repo, Some(level), (from, to), &criteria);
            let subject = ReviewSubject { repo: repo.as_str(), level: Some(level), from, to };
            return Ok(RepoReview::of(subject, ReviewFacts::default(), &criteria));
        }
        Err(error) => return Err(error).with_context(|| format!("`{url}`")),
    };
    let review: RepoReview =
        http::read_json(response, MAX_REVIEW_BYTES).await.with_context(|| format!("`{url}`"))?;
    let is_same = review.repo.eq_ignore_ascii_case(repo.as_str()) && review.level == Some(level);
    anyhow::ensure!(is_same, "`{url}` answered with a review of something else");
    Ok(RepoReview { repo: repo.as_str().to_owned(), ..review })
}

fn read_criteria(path: &Path) -> Result<LevelCriteria, Failure> {
    let name = path.display();
    let mut text = String::new();
    let read = File::open(path)
        .and_then(|file| file.take(MAX_CRITERIA_BYTES as u64 + 1).read_to_string(&mut text));
    read.map_err(|error| {
        Failure::unexpected("criteria-unreadable", format!("`{name}` can't be read")).because(error)
    })?;
    criteria(&text).map_err(|why| {
        Failure::user("criteria", format!("the criteria in `{name}` can't be used"))
            .because(anyhow::anyhow!(why))
            .hint("`crcr levels review --help` lists the names and their defaults")
    })
}

/// Such as `L2. May it be promoted to L3? not met`.
fn heading(review: &RepoReview) -> String {
    let level = review.level.map_or("not listed", Level::as_str);
    let question = review.question.title();
    match review.question {
        ReviewQuestion::Signal if review.evidence.is_empty() => {
            format!("{level}. {question} No threshold decides it")
        }
        _ => format!("{level}. {question} {}", verdict_name(review.verdict)),
    }
}

fn text_table(evidence: &[CriterionEvidence]) -> String {
    let mut out = String::new();
    let mut rows = vec![["criterion", "value", "target", "n", "verdict"].map(str::to_owned)];
    rows.extend(evidence.iter().map(table_row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 5] = std::array::from_fn(|column| width(column).unwrap_or(0));
    for row in rows.iter().filter(|_| !evidence.is_empty()) {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, " {cell:width$} ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn markdown_table(evidence: &[CriterionEvidence]) -> String {
    let mut out = String::new();
    if !evidence.is_empty() {
        out.push_str("| criterion | value | target | n | verdict |\n|---|---|---|---|---|\n");
    }
    for evidence in evidence {
        let _ = writeln!(out, "| {} |", table_row(evidence).join(" | ").replace('<', "&lt;"));
    }
    out
}

fn table_row(evidence: &CriterionEvidence) -> [String; 5] {
    let value = evidence.value.map_or("no data".to_owned(), |value| exact_value(evidence, value));
    [
        evidence.criterion.title().to_owned(),
        value,
        format_target(evidence),
        evidence.n.to_string(),
        verdict_name(evidence.verdict).to_owned(),
    ]
}

/// Rates that no criterion combines: infrastructure, tests and reports.
fn separate_rates(review: &RepoReview) -> [(&'static str, String); 4] {
    let mut reports = format!("{} valid", format_rate(review.signal));
    if !review.refused.is_empty() {
        let kinds = review.refused.iter();
        let kinds: Vec<_> =
            kinds.map(|(kind, n)| format!("{} {n}", kind.as_str().replace('_', " "))).collect();
        let _ = write!(reports, "; refused: {}", kinds.join(", "));
    }
    [
        ("infrastructure, available", format_rate(review.availability)),
        ("tests passed", format_rate(review.test_pass)),
        ("jobs passed", both_rates(review)),
        ("reports", reports),
    ]
}

/// Such as `93 % of 420; 95.2 % of 410 without the 10 that upstream broke`.
fn both_rates(review: &RepoReview) -> String {
    let all = format_rate(review.job_pass);
    match review.upstream_failures {
        0 => all,
        n => {
            let without = format_rate(review.job_pass_without_upstream);
            format!("{all}; {without} without the {n} that upstream broke")
        }
    }
}

/// Such as `95.2 % of 420`, or `unknown, 3 of 4` with too few samples.
fn format_rate(rate: Rate) -> String {
    let Rate { numerator, denominator } = rate;
    match rate.value().filter(|_| rate.is_known()) {
        Some(value) => format!("{} of {denominator}", percent(value)),
        None if denominator == 0 => "none".to_owned(),
        None => format!("unknown, {numerator} of {denominator}"),
    }
}

fn verdict_name(verdict: CriterionVerdict) -> &'static str {
    match verdict {
        CriterionVerdict::Met => "met",
        CriterionVerdict::NotMet => "not met",
        CriterionVerdict::Unknown => "unknown",
    }
}

/// Such as `CI job pass rate 85.71 % of 320, target > 90 %`.
pub fn describe_evidence(evidence: &CriterionEvidence) -> String {
    let (title, n) = (evidence.criterion.title(), evidence.n);
    let target = format_target(evidence);
    match evidence.value {
        Some(value) => {
            let value = exact_value(evidence, value);
            // For days, the value itself is the number of samples.
            let is_days = evidence.criterion.unit() == CriterionUnit::Days;
            let samples = if is_days { String::new() } else { format!(" of {n}") };
            format!("{title} {value}{samples}, target {target}")
        }
        None => format!("{title}, target {target}"),
    }
}

/// With as many decimals as tell it from the target.
fn exact_value(evidence: &CriterionEvidence, value: f64) -> String {
    let text = format_value(evidence.criterion, value);
    if text != format_value(evidence.criterion, evidence.target) {
        return text;
    }
    let (scale, least, unit) = match evidence.criterion.unit() {
        CriterionUnit::Days => (1.0, 1, "days"),
        CriterionUnit::Seconds if value < 7200.0 => (1.0 / 60.0, 1, "min"),
        CriterionUnit::Seconds => (1.0 / 3600.0, 2, "h"),
        CriterionUnit::Share => (100.0, 2, "%"),
    };
    let decimals = evidence.telling_decimals(scale, least);
    decimals.map_or(text, |decimals| format!("{} {unit}", round_to(value * scale, decimals)))
}

fn format_target(evidence: &CriterionEvidence) -> String {
    format!("{} {}", evidence.bound.sign(), format_value(evidence.criterion, evidence.target))
}

fn format_value(criterion: Criterion, value: f64) -> String {
    match criterion.unit() {
        CriterionUnit::Days => format!("{} days", round_to(value, 1)),
        CriterionUnit::Seconds if value < 7200.0 => format!("{} min", round_to(value / 60.0, 1)),
        CriterionUnit::Seconds => format!("{} h", round_to(value / 3600.0, 2)),
        CriterionUnit::Share => percent(value),
    }
}

/// Only all is 100 %, and only nothing is 0 %.
fn percent(share: f64) -> String {
    match round_to(share * 100.0, 2).as_str() {
        "100" if share < 1.0 => "> 99.99 %".to_owned(),
        "0" if share > 0.0 => "< 0.01 %".to_owned(),
        text => format!("{text} %"),
    }
}

/// Rounds to at most `decimals` places, without trailing zeros.
fn round_to(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_in_readable_units() {
        for (criterion, value, text) in [
            (Criterion::TimeAtL2, 30.0, "30 days"),
            (Criterion::TimeAtL2, 29.96, "30 days"),
            (Criterion::Queue, 1800.0, "30 min"),
            (Criterion::Queue, 257.0, "4.3 min"),
            (Criterion::EndToEnd, 10_800.0, "3 h"),
            (Criterion::EndToEnd, 9_050.0, "2.51 h"),
            (Criterion::JobPass, 0.857_142, "85.71 %"),
            (Criterion::JobPass, 1.0, "100 %"),
            (Criterion::Timeouts, 0.0, "0 %"),
        ] {
            assert_eq!(format_value(criterion, value), text);
        }
        assert_eq!(percent(29_999.0 / 30_000.0), "> 99.99 %");
        assert_eq!(format_rate(Rate { numerator: 3, denominator: 4 }), "unknown, 3 of 4");
        assert_eq!(format_rate(Rate { numerator: 30, denominator: 40 }), "75 % of 40");
    }

    #[test]
    fn value_that_misses_its_target_by_little_does_not_read_like_it() {
        for (criterion, value, target, text) in [
            (Criterion::JobPass, 0.899_97, 0.9, "89.997 %"),
            (Criterion::TimeAtL2, 29.96, 30.0, "29.96 days"),
            (Criterion::Queue, 1802.0, 1800.0, "30.03 min"),
            (Criterion::EndToEnd, 10_800.0, 10_800.0, "3 h"),
        ] {
            let evidence = CriterionEvidence {
                criterion,
                value: Some(value),
                bound: crcr_domain::results::criteria::ThresholdBound::AtLeast,
                target,
                n: 100,
                verdict: CriterionVerdict::NotMet,
            };
            assert_eq!(exact_value(&evidence, value), text);
        }
    }
}
