//! Computes results from facts: attempts, then jobs of record, then rates and reviews.
//!
//! All pages, commands and comments use these functions, so they agree on which attempt counts.

pub mod blame;
pub mod criteria;
pub mod expected;
mod expected_counts;
pub mod facts;
pub mod histogram;
pub mod jobs;
pub mod outcome;
pub mod rates;
pub mod regressions;
pub mod review;
pub mod totals;
pub mod triage;

pub use self::blame::{
    AttemptId, BaseResult, BlameContext, BlamedJobs, BranchResults, SAME_COMMIT,
};
pub use self::criteria::{Criterion, CriterionVerdict, LevelCriteria, UpstreamFailures};
pub use self::expected_counts::{ExpectedCounts, ExpectedEnd, ExpectedJob, expected_jobs};
pub use self::histogram::DurationHistogram;
pub use self::jobs::{JobOfRecord, jobs_of_record};
pub use self::outcome::{JobOutcome, outcome};
pub use self::rates::{DurationStats, Rate, ResultCounts};
pub use self::regressions::{BackendRecovery, Regression, find_regressions};
pub use self::review::RepoReview;
pub use self::totals::{RepoDay, ResultTotals, jobs_by_day, jobs_of_days};

#[cfg(test)]
mod criteria_tests;
#[cfg(test)]
mod tests;
