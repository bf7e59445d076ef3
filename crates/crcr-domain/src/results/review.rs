//! One repository against the bar of its level: what the HUD's page, the review of an allowlist and
//! `crcr levels review` show.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan as _};
use serde::Serialize;

use super::criteria::{
    Criterion, CriterionEvidence, CriterionVerdict, LOOK_BACK_DAYS, LevelCriteria, ReviewWindow,
    demotion_of_jobs, promotion_of_jobs,
};
use super::jobs::jobs_of_record;
use super::rates::{Rate, ResultCounts};
use crate::facts::{AttemptFact, CallbackOutcome, DispatchFact};
use crate::level::{EventKind, Level};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReviewQuestion {
    /// Does it report as it should, and may go from L1 to L2? That is for people to say: no
    /// threshold decides it.
    Signal,
    /// May it be promoted from L2 to L3?
    Promotion,
    /// May it stay at L3 or L4?
    Stay,
}

impl ReviewQuestion {
    /// What is asked of a repository at `level`; of one that isn't listed, what is asked at L2.
    pub fn at(level: Option<Level>) -> Self {
        match level {
            Some(Level::L1) => Self::Signal,
            None | Some(Level::L2) => Self::Promotion,
            Some(Level::L3 | Level::L4) => Self::Stay,
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Signal => "Does it report as it should?",
            Self::Promotion => "May it be promoted to L3?",
            Self::Stay => "May it stay at its level?",
        }
    }

    /// When the window begins that ends at `to`.
    pub fn from(self, to: Timestamp, criteria: &LevelCriteria) -> Timestamp {
        let days = match self {
            Self::Signal | Self::Promotion => criteria.promotion_days,
            Self::Stay => criteria.demotion_days,
        };
        days_before(to, days)
    }
}

/// The earliest dispatch that a review up to `to` asks for.
pub fn earliest_dispatch_time(to: Timestamp) -> Timestamp {
    days_before(to, LOOK_BACK_DAYS)
}

fn days_before(to: Timestamp, days: u32) -> Timestamp {
    to.saturating_sub((24 * i64::from(days)).hours()).unwrap_or(Timestamp::MIN)
}

#[derive(Debug, Clone, Copy)]
pub struct ReviewSubject<'a> {
    pub repo: &'a str,
    /// Its level; `None` when it isn't listed.
    pub level: Option<Level>,
    pub from: Timestamp,
    pub to: Timestamp,
}

/// The facts about one repository, of events of every kind.
#[derive(Debug, Clone, Default)]
pub struct ReviewFacts<'a> {
    /// Rows of its jobs within the window.
    pub attempts: Vec<&'a AttemptFact>,
    /// The newest row of each of its dispatches within the window.
    pub dispatches: Vec<&'a DispatchFact>,
    /// Since when it has been at L2, as far as [`earliest_dispatch_time`].
    pub at_l2_since: Option<Timestamp>,
    /// What became of its reports within the window.
    pub reports: Vec<CallbackOutcome>,
}

/// A repository's standing, with the evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RepoReview {
    /// `owner/repo`.
    pub repo: String,
    /// Its level; `None` when it isn't listed.
    pub level: Option<Level>,
    pub from: Timestamp,
    pub to: Timestamp,
    pub question: ReviewQuestion,
    /// What the facts say to each criterion; nothing when no threshold decides.
    pub evidence: Vec<CriterionEvidence>,
    /// What follows from all of them.
    pub verdict: CriterionVerdict,
    /// Infrastructure alone: dispatches all of whose jobs reached a verdict.
    pub availability: Rate,
    /// Tests alone: passed, of passed and failed.
    pub test_pass: Rate,
    /// Valid reports of all that came in.
    pub signal: Rate,
    /// Reports that were refused, by kind.
    pub refused: BTreeMap<CallbackOutcome, u64>,
}

impl RepoReview {
    /// Reviews by `facts`. Rates are of pull requests and pushes; nightly runs are no part of them.
    pub fn of(
        subject: ReviewSubject<'_>,
        mut facts: ReviewFacts<'_>,
        criteria: &LevelCriteria,
    ) -> Self {
        let ReviewSubject { repo, level, from, to } = subject;
        let question = ReviewQuestion::at(level);
        facts.attempts.retain(|row| EventKind::PullRequest.includes(&row.event));
        facts.dispatches.retain(|dispatch| EventKind::PullRequest.includes(&dispatch.event));
        let (attempts, dispatches) = (&*facts.attempts, &*facts.dispatches);
        let window = ReviewWindow { attempts, dispatches, until: to };
        let jobs = jobs_of_record(attempts.iter().copied(), dispatches.iter().copied());
        let evidence = match question {
            ReviewQuestion::Signal => vec![],
            ReviewQuestion::Promotion => {
                promotion_of_jobs(&jobs, window, facts.at_l2_since, criteria)
            }
            ReviewQuestion::Stay => demotion_of_jobs(&jobs, window, criteria),
        };
        let has = |verdict| evidence.iter().any(|one| one.verdict == verdict);
        let verdict = if has(CriterionVerdict::NotMet) {
            CriterionVerdict::NotMet
        } else if evidence.is_empty() || has(CriterionVerdict::Unknown) {
            CriterionVerdict::Unknown
        } else {
            CriterionVerdict::Met
        };
        let sums = ResultCounts::of(&jobs, dispatches.iter().copied());
        let mut signal = Rate::default();
        let mut refused = BTreeMap::new();
        for report in &facts.reports {
            let valid = report.is_valid();
            signal += Rate { numerator: u64::from(valid), denominator: 1 };
            if !valid {
                *refused.entry(*report).or_default() += 1;
            }
        }
        Self {
            repo: repo.to_owned(),
            level,
            from,
            to,
            question,
            evidence,
            verdict,
            availability: sums.availability,
            test_pass: sums.test_pass(),
            signal,
            refused,
        }
    }

    /// Whether any job reported, or any dispatch was due to.
    pub fn has_results(&self) -> bool {
        self.availability.denominator > 0
            || self.evidence.iter().any(|one| one.criterion != Criterion::TimeAtL2 && one.n > 0)
    }

    /// The level that the evidence asks for instead, one step away: up from L2 when every criterion
    /// is met, down from L3 or L4 when one isn't. `None` when it asks for no change.
    pub fn proposal(&self) -> Option<Level> {
        match (self.question, self.verdict, self.level?) {
            (ReviewQuestion::Promotion, CriterionVerdict::Met, Level::L2) => Some(Level::L3),
            (ReviewQuestion::Stay, CriterionVerdict::NotMet, Level::L3) => Some(Level::L2),
            (ReviewQuestion::Stay, CriterionVerdict::NotMet, Level::L4) => Some(Level::L3),
            _ => None,
        }
    }

    /// The page that shows the same review for ever, below the HUD's address.
    pub fn permalink(&self) -> String {
        let Self { repo, from, to, .. } = self;
        let level = self.level.map(|level| format!("level={level}&")).unwrap_or_default();
        format!("/crcr/{repo}/level?{level}from={from}&to={to}")
    }
}
