//! The relay through its router, with GitHub's stand-in behind it.

mod archive;
mod callbacks;
mod faults;
mod operators;
mod outbox;
mod pages;
mod queue;
mod receive;
mod rotation;
mod support;
mod webhooks;
