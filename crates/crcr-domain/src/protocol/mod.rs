//! What upstream, the relay and downstream repositories send each other.

pub mod callback;
pub mod dispatch;
pub mod dry_dispatch;
pub mod event;
pub mod identity;
pub mod standard_json;
