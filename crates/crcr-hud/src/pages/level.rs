//! `/crcr/{owner}/{repo}/level`: the evidence for a level.

use crcr_domain::Level;
use crcr_domain::results::criteria::{CriterionEvidence, CriterionUnit};
use crcr_domain::results::review::{LevelPeriod, ReviewQuestion};
use crcr_domain::results::{
    Criterion, CriterionVerdict, JobOutcome, RepoReview, UpstreamFailures, jobs_of_days,
};
use crcr_results::{Window, review};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

use super::relay::RelayList;
use super::reported::{ReportedKind, link_between};
use crate::address::address;
use crate::context::repo_name;
use crate::context::{Hud, PageError};
use crate::layout::{count_link, distribution, duration, outcome_parts, percent, rate, time, zone};
use crate::model::days::{facts, review_of};
use crate::model::oncall_reaction;
use crate::model::oncall_reaction::OncallReaction;
use crate::query::{LevelQuery, TimeSpan};
use crate::view::View;

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct LevelReview {
    #[serde(flatten)]
    pub(crate) review: RepoReview,
    pub(crate) permalink: String,
}

impl From<RepoReview> for LevelReview {
    fn from(review: RepoReview) -> Self {
        Self { permalink: review.permalink(), review }
    }
}

/// The page: the review, and what no threshold decides.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct LevelModel {
    #[serde(flatten)]
    pub(crate) review: LevelReview,
    /// Sorted, the newest first.
    pub(crate) history: Vec<LevelPeriod>,
    /// The level on the allowlist, whichever is asked for.
    pub(crate) level_now: Option<Level>,
    pub(crate) oncall_reaction: Option<OncallReaction>,
}

pub(crate) async fn build(
    hud: &Hud,
    (owner, repo): (String, String),
    query: LevelQuery,
) -> Result<LevelModel, PageError> {
    let repo = &repo_name(&owner, &repo)?;
    let span = hud.span(&query.time.clone().into())?;
    // Without a start, the criteria define how far back to look.
    let window = (query.time.has_start().then_some(span.from), span.to);
    let level = query.level().map_err(PageError::Query)?;
    let review = LevelReview::from(review_of(hud, repo, level, window).await?);
    let history = async { Ok(review::level_history(&*hud.results, repo, window.1).await?) };
    let reaction = async {
        let Some(entry) = hud.entry_of(repo) else { return Ok(None) };
        let window = Window::all(review.review.from, review.review.to)
            .of_repos(vec![entry.repo.as_str().to_owned()]);
        let facts = facts(hud, &window).await?;
        let jobs = jobs_of_days(facts.attempts(&window), facts.dispatches(&window));
        oncall_reaction::read(hud, &entry, &jobs).await
    };
    let (history, oncall_reaction) = tokio::try_join!(history, reaction)?;
    let level_now = hud.entry_of(repo).map(|entry| entry.level);
    Ok(LevelModel { review, history, level_now, oncall_reaction })
}

pub(crate) fn page(model: &LevelModel, view: &View<'_>) -> Markup {
    let review = &model.review.review;
    let question = review.question.title();
    let (glyph, class, word) = answer(review.verdict);
    view.shell(
        &format!("Level of {}", review.repo),
        false,
        &html! {
            div.title {
                h1 { "Level of " bdi { (review.repo) } }
                @match review.level { Some(level) => span.tag { (level) " " (level.title()) }, None => span.tag { "not on the allowlist" } }
                a href=(format!("/crcr/{}", review.repo)) { "Its results" }
            }
            p { strong { "It " (review.standing().sentence()) "." } }
            @if let Some((now, asked)) = model.other_level() {
                p { "It is at " (now) "; this is how it would do at " (asked) "." }
            } @else if let Some((before, until)) = model.higher_level() {
                p { "It was at " (before.level) " until " (time(until)) " " (zone()) ": " a rel="nofollow" href=(as_it_was(&review.repo, before.level, until)) { "how it did then" } "." }
            }
            @if review.question == ReviewQuestion::Signal && review.evidence.is_empty() {
                p.note { (question) " No threshold decides it." }
            } @else {
                p.note.(class) { (question) " " strong.outcome.(class) { span aria-hidden="true" { (glyph) } " " (word) } }
            }
            p.detail { (time(review.from)) " to " (time(review.to)) " " (zone()) " · pull requests and pushes · " a rel="nofollow" href=(model.review.permalink) { "permalink" } }
            @if !review.evidence.is_empty() { (table("Criteria", &review.evidence, review)) }
            @if let Some(second) = &review.second {
                @let (glyph, class, word) = answer(second.verdict);
                p.note.(class) { (second.title()) " " strong.outcome.(class) { span aria-hidden="true" { (glyph) } " " (word) } }
                (table(second.title(), &second.evidence, review))
            }
            h2 { "Infrastructure and tests, apart" }
            dl.cards {
                div { dt { "Availability" } dd { (rate(&review.availability.into())) } }
                div { dt { "Test pass" } dd { (rate(&review.test_pass.into())) } }
            }
            h2 { "With and without upstream's failures" }
            @let failed = link_between(ReportedKind::Upstream, &review.repo, (review.from, review.to));
            p.detail { "Failed because of upstream: " (count_link(review.upstream_failures, Some(&*failed).filter(|_| review.upstream_failures > 0))) ". A failure counts as upstream's when at least two backends have it that didn't have it before. "
                @match review.upstream_failures_are {
                    UpstreamFailures::LeaveOut => "They are left out of the criteria.",
                    UpstreamFailures::Count => "They count in the criteria.",
                }
            }
            dl.cards {
                div { dt { "CI job pass" } dd { (rate(&review.job_pass.into())) } }
                div { dt { "CI job pass without them" } dd { (rate(&review.job_pass_without_upstream.into())) } }
                div { dt { "Test pass without them" } dd { (rate(&review.test_pass_without_upstream.into())) } }
            }
            h2 { "Reports" }
            dl.cards {
                div { dt { "Valid" } dd { (rate(&review.signal.into())) } }
                @for (kind, count) in &review.refused {
                    div { dt { "Refused: " (kind.as_str().replace('_', " ")) } dd { (count_link(count, Some(&reports_between(&review.repo, kind.as_str(), (review.from, review.to))))) } }
                }
            }
            @if let Some(reaction) = &model.oncall_reaction { (oncall_reaction(reaction)) }
            @if !model.history.is_empty() { (history(&model.history, review)) }
        },
    )
}

fn oncall_reaction(reaction: &OncallReaction) -> Markup {
    let answered = reaction.seconds.as_ref().map_or(0, |seconds| seconds.n);
    let read = reaction.pulls.len();
    html! {
        h2 { "Reaction of the oncalls" }
        p.detail { "From the first failure on a pull request that it blocked to the first comment of an oncall there; no threshold decides it." }
        dl.cards {
            div { dt { "First comment P50" } dd { (distribution(reaction.seconds.as_ref())) } }
            div { dt { "Blocked and commented" } dd {
                (answered) " of " @if reaction.blocked > read as u64 { "the newest " }
                (count_link(read, Some("#blocked").filter(|_| read > 0)))
                @if reaction.blocked > read as u64 { " " span.detail { "of " (reaction.blocked) } }
            } }
        }
        @if !reaction.pulls.is_empty() {
            div.scroll #blocked tabindex="0" role="region" aria-label="Pull requests that it blocked" { table.stack {
                thead { tr { th scope="col" { "Pull request" } th scope="col" { "First failure (" (zone()) ")" } th scope="col" { "First comment after" } } }
                tbody { @for pull in &reaction.pulls { tr {
                    th scope="row" { a href=(format!("/pr/{}", pull.number)) { "#" (pull.number) } }
                    td data-label="First failure" { (time(pull.failed_at)) }
                    td data-label="First comment after" { @match pull.seconds { Some(seconds) => (duration(seconds)), None => "no comment" } }
                } } }
            } }
        }
    }
}

impl LevelModel {
    /// The level that it is at, and the lower one that is asked for.
    fn other_level(&self) -> Option<(Level, Level)> {
        let (now, asked) = (self.level_now?, self.review.review.level?);
        // The page of the past shows it at a level that it has left.
        let is_there = self.history.first().is_some_and(|newest| newest.level == now);
        (now > asked && is_there).then_some((now, asked))
    }

    /// The newest time at a higher level than now, and when it ended.
    fn higher_level(&self) -> Option<(&LevelPeriod, Timestamp)> {
        let review = &self.review.review;
        let level = review.level?;
        let before = self.history.iter().find(|period| period.level > level)?;
        Some((before, before.until.unwrap_or(review.to)))
    }
}

/// The address of the reports of a backend between two times.
pub(crate) fn reports_between(
    repo: &str,
    kind: &str,
    (from, to): (Timestamp, Timestamp),
) -> String {
    let (from, to) = (from.to_string(), to.to_string());
    address(
        "/relay",
        [
            ("list", Some(RelayList::Reports.as_str())),
            ("kind", Some(kind)),
            ("backend", Some(repo)),
            ("from", Some(&*from)),
            ("to", Some(&*to)),
        ],
    )
}

/// The evidence for what the page of a time span says of a level. It is judged up to the end of the span.
pub(crate) fn evidence_path(review: &RepoReview, span: &TimeSpan) -> String {
    if span.until_now { format!("/crcr/{}/level", review.repo) } else { review.permalink() }
}

/// How a backend did against the criteria of a level when its time there ended.
fn as_it_was(repo: &str, level: Level, until: Timestamp) -> String {
    let (level, until) = (level.to_string(), until.to_string());
    address(&format!("/crcr/{repo}/level"), [("level", Some(&*level)), ("to", Some(&*until))])
}

fn history(periods: &[LevelPeriod], review: &RepoReview) -> Markup {
    html! {
        h2 { "Levels so far" }
        div.scroll tabindex="0" role="region" aria-label="Levels so far" { table.stack {
            thead { tr { th scope="col" { "Level" } th scope="col" { "First dispatch (" (zone()) ")" } th scope="col" { "Until (" (zone()) ")" } th scope="col" { "Tenure" } } }
            tbody { @for period in periods { tr {
                th scope="row" { (period.level) " " (period.level.title()) }
                td data-label="First dispatch" { (time(period.from)) }
                td data-label="Until" { @match period.until {
                    Some(until) => { (time(until)) " " a rel="nofollow" href=(as_it_was(&review.repo, period.level, until)) { "as it was then" } }
                    None => "today",
                } }
                td data-label="Tenure" { (period.until.unwrap_or(review.to).duration_since(period.from).as_hours() / 24) " d" }
            } } }
        } }
    }
}

fn table(label: &str, evidence: &[CriterionEvidence], review: &RepoReview) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) { table.stack {
            thead { tr {
                th scope="col" { "Criterion" } th scope="col" { "Value" } th scope="col" { "Target" }
                th scope="col" { "n" } th scope="col" { "Verdict" }
            } }
            tbody { @for item in evidence {
                @let (glyph, class, word) = verdict(item.verdict);
                tr {
                    th scope="row" { (item.criterion.title()) (jobs_against(item, review)) }
                    td data-label="Value" { @match measured(item) { Some(value) => (value), None => span.muted { "no data" } } }
                    td data-label="Target" { (item.bound.sign()) " " (amount(item.criterion, item.target)) }
                    td data-label="n" { (item.n) }
                    td.(class) data-label="Verdict" { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } }
                }
            } }
        } }
    }
}

/// The jobs for which a criterion isn't met, by what they came to.
fn jobs_against(item: &CriterionEvidence, review: &RepoReview) -> Markup {
    use JobOutcome::{Cancelled, InfraFailed, Lost, NeverStarted, TestFailed, TimedOut};
    let outcomes: &[JobOutcome] = match (item.verdict, item.criterion) {
        (CriterionVerdict::NotMet, Criterion::Timeouts) => &[TimedOut, Lost],
        (CriterionVerdict::NotMet, Criterion::JobPass) => {
            &[TestFailed, InfraFailed, TimedOut, Lost, NeverStarted, Cancelled]
        }
        _ => return html! {},
    };
    let link = |outcome| {
        link_between(ReportedKind::Ended(outcome), &review.repo, (review.from, review.to))
    };
    html! { div.detail {
        "Jobs: "
        @for (n, outcome) in outcomes.iter().enumerate() {
            @if n > 0 { ", " }
            a rel="nofollow" href=(link(*outcome)) { (outcome_parts(Some(*outcome)).2) }
        }
    } }
}

pub(crate) fn verdict(verdict: CriterionVerdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        CriterionVerdict::Met => ("✓", "good", "met"),
        CriterionVerdict::NotMet => ("✗", "bad", "not met"),
        CriterionVerdict::Unknown => ("–", "muted", "unknown"),
    }
}

/// The answer to a question such as "May it stay at its level?".
fn answer(of: CriterionVerdict) -> (&'static str, &'static str, &'static str) {
    let (glyph, class, word) = verdict(of);
    match of {
        CriterionVerdict::Met => (glyph, class, "yes"),
        CriterionVerdict::NotMet => (glyph, class, "no"),
        CriterionVerdict::Unknown => (glyph, class, word),
    }
}

/// The value, with as many decimals as tell it from the target.
pub(crate) fn measured(item: &CriterionEvidence) -> Option<String> {
    let text = amount(item.criterion, item.value?);
    if text != amount(item.criterion, item.target) {
        return Some(text);
    }
    let (scale, least, unit) = match item.criterion.unit() {
        // Whole days have passed.
        CriterionUnit::Days => return Some(text),
        CriterionUnit::Seconds => (1.0 / 60.0, 0, "min"),
        CriterionUnit::Share => (100.0, 1, "%"),
    };
    let decimals = item.telling_decimals(scale, least);
    let exact =
        |decimals: usize| format!("{:.*} {unit}", decimals, item.value.unwrap_or(0.0) * scale);
    Some(decimals.map_or(text, exact))
}

pub(crate) fn amount(criterion: Criterion, value: f64) -> String {
    match criterion.unit() {
        CriterionUnit::Days => format!("{:.0} d", value.floor()),
        CriterionUnit::Seconds => duration(value),
        CriterionUnit::Share => percent(value),
    }
}

#[cfg(test)]
mod tests {
    use crcr_domain::results::criteria::ThresholdBound;

    use super::*;

    #[test]
    fn value_that_misses_its_target_by_little_does_not_read_like_it() {
        let (share, time) = (Criterion::JobPass, Criterion::Queue);
        for (criterion, value, target, text) in [
            (share, 0.8996, 0.9, "89.96 %"),
            (share, 0.85, 0.9, "85 %"),
            (share, 0.9, 0.9, "90 %"),
            (time, 1812.0, 1800.0, "30.2 min"),
            (Criterion::TimeAtL2, 29.99, 30.0, "29 d"),
        ] {
            let item = CriterionEvidence {
                criterion,
                value: Some(value),
                bound: ThresholdBound::Over,
                target,
                n: 5000,
                verdict: CriterionVerdict::NotMet,
            };
            assert_eq!(measured(&item).as_deref(), Some(text));
        }
    }
}
