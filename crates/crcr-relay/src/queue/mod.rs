//! The durable queue: kinds of tasks, workers, what a task does, and what copies facts to results that
//! are kept elsewhere.

pub(crate) mod fact_feed;
pub(crate) mod handlers;
pub(crate) mod task;
pub(crate) mod workers;
