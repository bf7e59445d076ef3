//! The review of one repository by the criteria of its level. The HUD, `crcr allowlist diff` and
//! `crcr levels review` show it.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan as _};
use serde::{Deserialize, Serialize};

use super::blame::BlamedJobs;
use super::criteria::{
    Criterion, CriterionEvidence, CriterionVerdict, LOOK_BACK_DAYS, LevelCriteria, NamedTestDay,
    ReviewWindow, UpstreamFailures, promotion_of_jobs, reaching, staying,
};
use super::rates::{Rate, ResultCounts};
use super::totals::jobs_of_days;
use crate::allowlist::level::{EventKind, Level};
use crate::results::facts::{AttemptFact, CallbackOutcome, DispatchFact};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReviewQuestion {
    /// May it go from L1 to L2? Unless the criteria have targets for L2, maintainers decide.
    Signal,
    /// May it be promoted from L2 to L3, or from L3 to L4?
    Promotion,
    /// May it stay at its level?
    Stay,
}

impl ReviewQuestion {
    /// A repository that isn't listed is reviewed like one at L2.
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

    /// Start of the window that ends at `to`.
    pub fn from(self, to: Timestamp, criteria: &LevelCriteria) -> Timestamp {
        let days = match self {
            Self::Signal | Self::Promotion => criteria.promotion_days,
            Self::Stay => criteria.demotion_days,
        };
        days_before(to, days)
    }
}

/// A review up to `to` needs no earlier dispatches.
pub fn earliest_dispatch_time(to: Timestamp) -> Timestamp {
    days_before(to, LOOK_BACK_DAYS)
}

fn days_before(to: Timestamp, days: u32) -> Timestamp {
    to.saturating_sub((24 * i64::from(days)).hours()).unwrap_or(Timestamp::MIN)
}

/// A time during which a repository had one level, by its dispatches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LevelPeriod {
    pub level: Level,
    /// The first dispatch at this level, if it isn't older than the relay looks back.
    pub from: Timestamp,
    /// The first dispatch at the next level; `None` if it still has this level.
    pub until: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy)]
pub struct ReviewSubject<'a> {
    pub repo: &'a str,
    /// Its level; `None` when it isn't listed.
    pub level: Option<Level>,
    pub from: Timestamp,
    pub to: Timestamp,
}

/// The facts about one repository, for all kinds of events.
#[derive(Debug, Default)]
pub struct ReviewFacts<'a> {
    /// Rows of its jobs within the window.
    pub attempts: Vec<&'a AttemptFact>,
    /// The newest row of each of its dispatches within the window.
    pub dispatches: Vec<&'a DispatchFact>,
    /// When it reached L2, not earlier than [`earliest_dispatch_time`].
    pub at_l2_since: Option<Timestamp>,
    /// Outcomes of its reports within the window.
    pub reports: Vec<CallbackOutcome>,
    /// Whose fault its failed jobs are.
    pub blamed: BlamedJobs,
    /// Results of the tests that the criteria name.
    pub core_tests: Vec<NamedTestDay>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RepoReview {
    pub repo: String,
    /// Its level; `None` when it isn't listed.
    pub level: Option<Level>,
    pub from: Timestamp,
    pub to: Timestamp,
    pub question: ReviewQuestion,
    /// One item per criterion; empty for [`ReviewQuestion::Signal`] without targets.
    pub evidence: Vec<CriterionEvidence>,
    pub verdict: CriterionVerdict,
    /// The other question about this level, if the criteria have targets for it: whether it may stay at L2, or
    /// be promoted from L3 to L4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<SecondQuestion>,
    /// Dispatches whose jobs all reached a verdict: measures infrastructure only.
    pub availability: Rate,
    /// Passed jobs out of passed and failed ones: measures tests only.
    pub test_pass: Rate,
    /// Passed jobs out of all that ended.
    pub job_pass: Rate,
    /// Whether the criteria count `upstream_failures`.
    pub upstream_failures_are: UpstreamFailures,
    /// How many jobs failed because of upstream. `*_without_upstream` are the rates without them.
    pub upstream_failures: u64,
    pub test_pass_without_upstream: Rate,
    pub job_pass_without_upstream: Rate,
    /// Valid reports out of all received ones.
    pub signal: Rate,
    /// Rejected reports by outcome.
    pub refused: BTreeMap<CallbackOutcome, u64>,
}

/// Whether a repository meets the criteria of its level. It is good when all of them are met.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct LevelStanding {
    /// `None` if its level has no criteria, or nothing was reported.
    pub verdict: Option<CriterionVerdict>,
    pub has_criteria: bool,
    /// The criteria that aren't met.
    pub failing: Vec<CriterionEvidence>,
    /// Those with too few samples.
    pub unknown: Vec<CriterionEvidence>,
    /// How many criteria its level has.
    pub criteria: usize,
}

impl LevelStanding {
    /// Names each criterion that isn't met.
    pub fn sentence(&self) -> String {
        let names = |evidence: &[CriterionEvidence]| {
            let names: Vec<_> = evidence.iter().map(|item| item.criterion.title()).collect();
            names.join(", ")
        };
        match self.verdict {
            Some(CriterionVerdict::Met) => match self.criteria {
                1 => "meets the criterion of its level".to_owned(),
                n => format!("meets all {n} criteria of its level"),
            },
            Some(CriterionVerdict::NotMet) => format!("fails its level: {}", names(&self.failing)),
            Some(CriterionVerdict::Unknown) => {
                format!("can't be said yet: too few samples of {}", names(&self.unknown))
            }
            None if self.has_criteria => "has no results yet".to_owned(),
            None => "has a level without criteria".to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SecondQuestion {
    pub question: ReviewQuestion,
    pub evidence: Vec<CriterionEvidence>,
    pub verdict: CriterionVerdict,
}

impl SecondQuestion {
    pub fn title(&self) -> &'static str {
        match self.question {
            ReviewQuestion::Promotion => "May it be promoted to L4?",
            question => question.title(),
        }
    }
}

fn combined(evidence: &[CriterionEvidence]) -> CriterionVerdict {
    let has = |verdict| evidence.iter().any(|item| item.verdict == verdict);
    if has(CriterionVerdict::NotMet) {
        CriterionVerdict::NotMet
    } else if evidence.is_empty() || has(CriterionVerdict::Unknown) {
        CriterionVerdict::Unknown
    } else {
        CriterionVerdict::Met
    }
}

impl RepoReview {
    /// Rates cover pull requests and pushes, not nightly runs.
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
        let jobs = jobs_of_days(attempts.iter().copied(), dispatches.iter().copied());
        let upstream_failures = facts.blamed.upstream_failures(&jobs);
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
        let window = ReviewWindow {
            attempts,
            dispatches,
            reports: signal,
            core_tests: &facts.core_tests,
            until: to,
            upstream_failures,
        };
        let evidence = match question {
            ReviewQuestion::Signal => reaching(&jobs, window, criteria, Level::L2),
            ReviewQuestion::Promotion => {
                promotion_of_jobs(&jobs, window, facts.at_l2_since, criteria)
            }
            ReviewQuestion::Stay => staying(&jobs, window, criteria, level.unwrap_or(Level::L3)),
        };
        let verdict = combined(&evidence);
        let second = match level {
            Some(Level::L2) if !criteria.l2.is_empty() => {
                Some((ReviewQuestion::Stay, staying(&jobs, window, criteria, Level::L2)))
            }
            Some(Level::L3) if !criteria.l4.is_empty() => {
                Some((ReviewQuestion::Promotion, reaching(&jobs, window, criteria, Level::L4)))
            }
            _ => None,
        };
        let second = second.map(|(question, evidence)| {
            let verdict = combined(&evidence);
            SecondQuestion { question, evidence, verdict }
        });
        Self {
            repo: repo.to_owned(),
            level,
            from,
            to,
            question,
            evidence,
            verdict,
            second,
            availability: sums.availability,
            test_pass: sums.test_pass(),
            job_pass: sums.job_pass(),
            upstream_failures_are: criteria.upstream_failures,
            upstream_failures,
            test_pass_without_upstream: sums.test_pass().without_failures(upstream_failures),
            job_pass_without_upstream: sums.job_pass().without_failures(upstream_failures),
            signal,
            refused,
        }
    }

    /// Whether any job reported or should have reported.
    pub fn has_results(&self) -> bool {
        self.availability.denominator > 0
            || self.evidence.iter().any(|item| item.criterion != Criterion::TimeAtL2 && item.n > 0)
    }

    /// Evidence and verdict for staying at its level; `None` if the criteria have no targets for that.
    pub fn staying(&self) -> Option<(&[CriterionEvidence], CriterionVerdict)> {
        self.answer(|question| question == ReviewQuestion::Stay)
    }

    /// Whether it meets its level. The overview, the level page, the badge, the feeds and `crcr levels review` show
    /// this one answer.
    pub fn standing(&self) -> LevelStanding {
        let (evidence, verdict) = match self.staying() {
            Some((evidence, verdict)) => (evidence, Some(verdict)),
            None => (&[][..], None),
        };
        let of = |verdict| {
            let all = evidence.iter().filter(move |item| item.verdict == verdict);
            all.cloned().collect::<Vec<_>>()
        };
        LevelStanding {
            verdict: verdict.filter(|_| self.has_results()),
            has_criteria: verdict.is_some(),
            failing: of(CriterionVerdict::NotMet),
            unknown: of(CriterionVerdict::Unknown),
            criteria: evidence.len(),
        }
    }

    /// Evidence and verdict for the next level; `None` if the criteria have no targets for that.
    pub fn promotion(&self) -> Option<(&[CriterionEvidence], CriterionVerdict)> {
        self.answer(|question| question != ReviewQuestion::Stay)
    }

    fn answer(
        &self,
        is_asked: impl Fn(ReviewQuestion) -> bool,
    ) -> Option<(&[CriterionEvidence], CriterionVerdict)> {
        if is_asked(self.question) {
            return (!self.evidence.is_empty()).then_some((&*self.evidence, self.verdict));
        }
        let second = self.second.as_ref().filter(|second| is_asked(second.question))?;
        Some((&*second.evidence, second.verdict))
    }

    /// The level to change to, one step away: down if a criterion for staying isn't met, else up if all criteria
    /// of the next level are met. `None`: no change.
    pub fn proposal(&self) -> Option<Level> {
        let verdict =
            |answer: Option<(&[CriterionEvidence], CriterionVerdict)>| answer.map(|a| a.1);
        let at = Level::ALL.iter().position(|level| Some(*level) == self.level)?;
        if verdict(self.staying()) == Some(CriterionVerdict::NotMet) {
            return Level::ALL.get(at.checked_sub(1)?).copied();
        }
        let is_met = verdict(self.promotion()) == Some(CriterionVerdict::Met);
        is_met.then(|| Level::ALL.get(at + 1).copied()).flatten()
    }

    /// Path on the HUD that shows the same review permanently.
    pub fn permalink(&self) -> String {
        let Self { repo, from, to, .. } = self;
        let level = self.level.map(|level| format!("level={level}&")).unwrap_or_default();
        format!("/crcr/{repo}/level?{level}from={from}&to={to}")
    }
}
