//! What every backend's CI is worth: `attempts → jobs → runs → rates`, defined once.
//!
//! Every page, command and comment asks these functions and nothing else, so that no two of them
//! can disagree about which attempt counts.

pub mod criteria;
pub mod jobs;
pub mod outcome;
pub mod rates;
pub mod review;
pub mod tally;
pub mod turns;

pub use self::criteria::{Criteria, Criterion, Verdict};
pub use self::jobs::{Job, jobs_of_record};
pub use self::outcome::Outcome;
pub use self::rates::{Distribution, Rate, Sums};
pub use self::review::Review;
pub use self::tally::{DayOf, Tally};
pub use self::turns::{Turn, turned_red};

#[cfg(test)]
mod tests;
