//! What a check run on an upstream commit says, from the runs and reports of its dispatches.

pub mod check_run;
pub mod demotion;
pub mod downstream_run;
pub mod lifecycle;
pub mod proof;
pub mod verdict;
