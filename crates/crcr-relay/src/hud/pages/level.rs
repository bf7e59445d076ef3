//! `/crcr/{owner}/{repo}/level`: the evidence.

use crcr_domain::results::{Criterion, Verdict};
use maud::{Markup, html};

use super::super::layout::{duration, percent, rate, shell, time};
use super::super::model::level::{LevelReview, Question};

pub(in super::super) fn page(model: &LevelReview) -> Markup {
    let path = format!("/crcr/{}/level", model.repo);
    let question = match model.question {
        Question::Promotion => "May it be promoted to L3?",
        Question::Stay => "May it stay at its level?",
    };
    let (glyph, class, word) = verdict(model.verdict);
    shell(
        &format!("Level of {}", model.repo),
        false,
        &html! {
            div.title {
                h1 { "Level of " bdi { (model.repo) } }
                @match model.level { Some(level) => span.tag { (level) " " (level.title()) }, None => span.tag { "not on the allowlist" } }
                a href=(format!("/crcr/{}", model.repo)) { "Its results" }
            }
            p.note.(class) { (question) " " strong.outcome.(class) { span aria-hidden="true" { (glyph) } " " (word) } }
            p.detail { (time(model.from)) " to " (time(model.to)) " · pull requests and pushes · " a href=(format!("{path}{}", model.permalink)) { "permalink" } }
            div.scroll tabindex="0" role="region" aria-label="Criteria" { table {
                thead { tr {
                    th scope="col" { "Criterion" } th scope="col" { "Value" } th scope="col" { "Target" }
                    th scope="col" { "n" } th scope="col" { "Verdict" }
                } }
                tbody { @for evidence in &model.evidence {
                    @let (glyph, class, word) = verdict(evidence.verdict);
                    tr {
                        th scope="row" { (evidence.criterion.title()) }
                        td { @match evidence.value { Some(value) => (amount(evidence.criterion, value)), None => span.muted { "no data" } } }
                        td { (target(evidence.criterion, model.question)) " " (amount(evidence.criterion, evidence.target)) }
                        td { (evidence.n) }
                        td.(class) { span.outcome.(class) { span.glyph aria-hidden="true" { (glyph) } " " (word) } }
                    }
                } }
            } }
            h2 { "Infrastructure and tests, apart" }
            dl.cards {
                div { dt { "Availability" } dd { (rate(&model.availability)) } }
                div { dt { "Test pass" } dd { (rate(&model.test_pass)) } }
            }
        },
    )
}

pub(super) fn verdict(verdict: Verdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        Verdict::Met => ("✓", "good", "met"),
        Verdict::NotMet => ("✗", "bad", "not met"),
        Verdict::Unknown => ("–", "muted", "unknown"),
    }
}

pub(super) fn amount(criterion: Criterion, value: f64) -> String {
    match criterion {
        Criterion::TimeAtL2 | Criterion::Coverage => format!("{:.0} d", value.floor()),
        Criterion::Queue | Criterion::EndToEnd => duration(value),
        Criterion::Overrun | Criterion::Timeouts | Criterion::JobPass => percent(value),
    }
}

pub(super) fn target(criterion: Criterion, question: Question) -> &'static str {
    match criterion {
        Criterion::TimeAtL2 | Criterion::Coverage => "≥",
        Criterion::JobPass => ">",
        Criterion::EndToEnd if question == Question::Stay => "≤",
        Criterion::Queue | Criterion::Overrun | Criterion::EndToEnd | Criterion::Timeouts => "<",
    }
}
