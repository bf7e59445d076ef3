//! The weighed lines of a log, and which of them explain its failure.

use std::ops::RangeInclusive;

use crcr_domain::ci_data::job_log::{LogMatch, LogMatchSource, LogReason};

use super::candidate::{LineCandidate, MAX_CONTEXT_LINE_BYTES, MAX_LINE_BYTES};
use super::cleaner::cut_text;
use super::features::{Features, Trait, is_never_the_cause, log_count_u64, score_of_no_line};
use super::rules::{LAST_RESORT, LogRule, Pick, RuleScope, RuleSet};
use super::traceback::TracebackPart;

const MAX_REASONS: usize = 6;

pub(crate) struct WeighedLine {
    pub(crate) candidate: LineCandidate,
    pub(crate) features: Features,
    /// The rule that decides about the line, if it is one that matches.
    pub(crate) rule: Option<usize>,
    /// `None` outside failed sections.
    pub(crate) section: Option<u64>,
    /// Whether its section says after it that all tests passed.
    pub(crate) is_before_success: bool,
}

impl WeighedLine {
    pub(crate) fn is_never_the_cause(&self) -> bool {
        let text = self.candidate.text();
        let is_in_stack =
            matches!(text.traceback, Some(TracebackPart::Frame | TracebackPart::Source));
        self.features.get(Trait::SpecificRule) == 0.0
            && (is_in_stack || is_never_the_cause(&text.line))
    }

    /// See [`Features::tells_of_failure`]. Words before the end of tests that all passed don't tell of one.
    pub(crate) fn tells_of_failure(&self, is_likeliest: bool) -> bool {
        (!self.is_before_success || self.features.is_of_a_tool())
            && self.features.tells_of_failure(&self.candidate.text().line, is_likeliest)
    }

    /// Whether the green run has such a line, too: then no rule makes it the cause, but what else speaks for it may.
    pub(crate) fn is_in_green_run(&self) -> bool {
        self.features.get(Trait::InGreenRun) > 0.0
    }

    /// Weighs it as a line outside failed sections: its own doesn't count.
    pub(crate) fn put_outside(&mut self, end: u64) {
        self.section = None;
        self.features.flag(Trait::FailingSection, false);
        self.features.flag(Trait::NearTheEnd, false);
        self.features.flag(Trait::OtherStep, true);
        let distance = end.saturating_sub(self.candidate.ordinal);
        self.features.set(Trait::DistanceToEnd, log_count_u64(distance));
    }

    /// Whether it says enough to be named.
    pub(crate) fn explains(&self) -> bool {
        self.features.get(Trait::SpecificRule) > 0.0
            || (self.features.score() > score_of_no_line() && self.tells_of_failure(false))
    }
}

/// The lines of a log that may explain its failure, with what speaks for each.
pub(crate) struct WeighedLog<'r> {
    pub(crate) rules: &'r RuleSet,
    pub(crate) lines: Vec<WeighedLine>,
    /// The numbers of their lines.
    pub(crate) failed_sections: Vec<RangeInclusive<u64>>,
    /// The number and the text of the line that the last of them ended with.
    pub(crate) failed_end: Option<(u64, Box<[u8]>)>,
}

impl WeighedLog<'_> {
    /// The line that a rule found in the whole log, if it was weighed.
    pub(crate) fn by_rule_anywhere(&self, found: &LogRule, line_number: u64) -> Option<usize> {
        self.best_of_rules(|line, rule| {
            let is_line = line.candidate.line_number == line_number;
            rule.name == found.name && (found.pick == Pick::Best || is_line)
        })
    }

    /// The line of a failing section that a specific rule matches, preferably one that counts anywhere.
    pub(crate) fn by_rule_of_failing_section(&self) -> Option<usize> {
        let of_scope = |scope| {
            self.best_of_rules(|line, rule| {
                line.section.is_some() && rule.scope == scope && !line.is_in_green_run()
            })
        };
        of_scope(RuleScope::Log).or_else(|| of_scope(RuleScope::FailingSection))
    }

    pub(crate) fn is_in_failed_section(&self, line_number: u64) -> bool {
        self.failed_sections.iter().any(|numbers| numbers.contains(&line_number))
    }

    /// What ended the step that failed, if a rule of last resort found a line of another step.
    pub(crate) fn end_instead_of(&self, line_number: u64) -> Option<LogMatch> {
        let (number, line) = self.failed_end.as_ref()?;
        let rule = self.rules.deciding_rule(line).filter(|rule| rule.category == LAST_RESORT)?;
        if self.is_in_failed_section(line_number) {
            return None;
        }
        let mut found = line_match(line, *number, Some(rule), LogMatchSource::Rule);
        found.context.push(cut_text(line, MAX_CONTEXT_LINE_BYTES));
        Some(found)
    }

    /// The line whose rule stands highest, among those that count.
    fn best_of_rules(&self, counts: impl Fn(&WeighedLine, &LogRule) -> bool) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        for (index, line) in self.lines.iter().enumerate() {
            let Some(priority) = line.rule else { continue };
            let rule = &self.rules.rules[priority];
            if rule.category == LAST_RESORT || !counts(line, rule) {
                continue;
            }
            let is_better = best.is_none_or(|(known, known_index)| {
                priority < known || (priority == known && self.is_picked(rule, index, known_index))
            });
            if is_better {
                best = Some((priority, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Whether the rule picks the later line of two.
    fn is_picked(&self, rule: &LogRule, later: usize, earlier: usize) -> bool {
        match rule.pick {
            Pick::First => false,
            Pick::Last => true,
            Pick::Best => self.score(later) > self.score(earlier),
        }
    }

    fn score(&self, index: usize) -> f32 {
        self.lines[index].features.score()
    }

    /// The shares of certainty of all lines, in the order of `lines`, and last the one of the case that none of
    /// them explains the failure.
    pub(crate) fn shares(&self) -> Vec<f32> {
        let scores = (0..self.lines.len()).map(|index| self.score(index));
        let scores: Vec<f32> = scores.chain([score_of_no_line()]).collect();
        let top = scores.iter().copied().fold(f32::MIN, f32::max);
        let powers: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
        let sum: f32 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum).collect()
    }

    /// The line that is named where no rule decides, if that is likelier than that no line explains the failure, and if
    /// it says something of a failure. What only gives advice (`Please commit the changes.`) has to be likelier than all
    /// else together, or gives way to the next line, which says what it is about. `order`: the likeliest first.
    pub(crate) fn named_without_rule(
        &self,
        order: &[usize],
        shares: &[f32],
        of_no_line: f32,
    ) -> Option<usize> {
        let tells = |index: usize| {
            let share = shares[index];
            share > of_no_line && self.lines[index].tells_of_failure(share > 0.5)
        };
        let (&first, rest) = order.split_first()?;
        if tells(first) {
            return Some(first);
        }
        let next = *rest.first()?;
        let gives_way = self.lines[first].features.has_form(&["advice"])
            && 2.0 * shares[next] >= shares[first]
            && !self.lines[next].features.has_form(&["summary"]);
        (gives_way && tells(next)).then_some(next)
    }

    pub(crate) fn describe(&self, index: usize, certainty_percent: u8) -> LogMatch {
        let WeighedLine { candidate, features, rule, .. } = &self.lines[index];
        let rule = rule.map(|priority| &self.rules.rules[priority]);
        let rule = rule.filter(|rule| rule.category != LAST_RESORT);
        let is_novel = features.get(Trait::NotInGreenRun) > 0.0;
        let by = match rule {
            Some(rule) if rule.scope != RuleScope::Hint => LogMatchSource::Rule,
            _ if is_novel => LogMatchSource::Diff,
            _ => LogMatchSource::Evidence,
        };
        let text = candidate.text();
        let mut found = line_match(&text.line, candidate.line_number, rule, by);
        found.context.clone_from(&text.before);
        found.context.push(cut_text(&text.line, MAX_CONTEXT_LINE_BYTES));
        found.context.extend_from_slice(&text.after);
        found.certainty_percent = certainty_percent;
        found.reasons = features
            .terms()
            .into_iter()
            .take(MAX_REASONS)
            .map(|(name, points)| LogReason { name: name.to_owned(), points })
            .collect();
        found
    }

    pub(crate) fn line(&self, index: usize) -> (u64, &[u8]) {
        let candidate = &self.lines[index].candidate;
        (candidate.line_number, &candidate.text().line)
    }
}

/// What is reported of a line. The context, the certainty and the reasons are still to be added.
pub(crate) fn line_match(
    line: &[u8],
    line_number: u64,
    rule: Option<&LogRule>,
    by: LogMatchSource,
) -> LogMatch {
    let (captures, start) = rule.map_or((vec![], 0), |rule| rule.captures(line));
    // A very long line is shown from a little before the match.
    let start =
        if line.len() > MAX_LINE_BYTES { start.saturating_sub(MAX_LINE_BYTES / 4) } else { 0 };
    LogMatch {
        rule: rule.map(|rule| rule.name.clone()),
        category: rule.map(|rule| rule.category.clone()),
        line_number,
        line: cut_text(&line[start..], MAX_LINE_BYTES),
        captures,
        context: vec![],
        by,
        certainty_percent: 0,
        reasons: vec![],
    }
}
