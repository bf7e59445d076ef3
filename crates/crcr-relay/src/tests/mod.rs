//! The relay through its router, with GitHub's stand-in behind it.

mod backend_files;
mod budgets;
mod callbacks;
mod faults;
mod job_logs;
mod kept_webhooks;
mod lambda;
mod late_labels;
mod operators;
mod outbox;
mod pages;
mod queue;
mod receive;
mod reconcile;
mod repository_files;
mod rotation;
mod support;
mod upstream_moved;
mod webhooks;
