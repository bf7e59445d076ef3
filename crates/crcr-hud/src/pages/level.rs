//! `/crcr/{owner}/{repo}/level`: the evidence for a level.

use crcr_domain::results::review::ReviewQuestion;
use crcr_domain::results::{Criterion, CriterionVerdict, UpstreamFailures};
use maud::{Markup, html};

use crate::layout::{duration, percent, rate, shell, time};
use crate::model::level::LevelReview;

pub(crate) fn page(model: &LevelReview) -> Markup {
    let review = &model.review;
    let question = review.question.title();
    let (glyph, class, word) = verdict(review.verdict);
    shell(
        &format!("Level of {}", review.repo),
        false,
        &html! {
            div.title {
                h1 { "Level of " bdi { (review.repo) } }
                @match review.level { Some(level) => span.tag { (level) " " (level.title()) }, None => span.tag { "not on the allowlist" } }
                a href=(format!("/crcr/{}", review.repo)) { "Its results" }
            }
            @if review.question == ReviewQuestion::Signal {
                p.note { (question) " No threshold decides it." }
            } @else {
                p.note.(class) { (question) " " strong.outcome.(class) { span aria-hidden="true" { (glyph) } " " (word) } }
            }
            p.detail { (time(review.from)) " to " (time(review.to)) " · pull requests and pushes · " a href=(model.permalink) { "permalink" } }
            @if !review.evidence.is_empty() {
                div.scroll tabindex="0" role="region" aria-label="Criteria" { table {
                    thead { tr {
                        th scope="col" { "Criterion" } th scope="col" { "Value" } th scope="col" { "Target" }
                        th scope="col" { "n" } th scope="col" { "Verdict" }
                    } }
                    tbody { @for evidence in &review.evidence {
                        @let (glyph, class, word) = verdict(evidence.verdict);
                        tr {
                            th scope="row" { (evidence.criterion.title()) }
                            td { @match evidence.value { Some(value) => (amount(evidence.criterion, value)), None => span.muted { "no data" } } }
                            td { (evidence.bound.sign()) " " (amount(evidence.criterion, evidence.target)) }
                            td { (evidence.n) }
                            td.(class) { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } }
                        }
                    } }
                } }
            }
            h2 { "Infrastructure and tests, apart" }
            dl.cards {
                div { dt { "Availability" } dd { (rate(&review.availability.into())) } }
                div { dt { "Test pass" } dd { (rate(&review.test_pass.into())) } }
            }
            h2 { "With and without upstream's failures" }
            p.detail { (review.upstream_failures) " jobs failed because of upstream: at least two backends failed on the same commit and not before. "
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
                    div { dt { "Refused: " (kind.as_str().replace('_', " ")) } dd { (count) } }
                }
            }
        },
    )
}

pub(super) fn verdict(verdict: CriterionVerdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        CriterionVerdict::Met => ("✓", "good", "met"),
        CriterionVerdict::NotMet => ("✗", "bad", "not met"),
        CriterionVerdict::Unknown => ("–", "muted", "unknown"),
    }
}

pub(super) fn amount(criterion: Criterion, value: f64) -> String {
    match criterion {
        Criterion::TimeAtL2 | Criterion::Coverage => format!("{:.0} d", value.floor()),
        Criterion::Queue | Criterion::EndToEnd => duration(value),
        Criterion::Overrun | Criterion::Timeouts | Criterion::JobPass => percent(value),
    }
}
