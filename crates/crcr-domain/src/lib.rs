//! The rules of cross-repository CI: repositories, levels, events, results. No I/O and no clock; the
//! current time is always an argument.

pub mod allowlist;
pub mod aws;
pub mod callback;
pub mod check_run;
pub mod ci_data;
pub mod demotion;
pub mod diagnostic;
pub mod dispatch;
pub mod downstream_run;
pub mod dry_dispatch;
pub mod event;
pub mod expected;
pub mod facts;
pub mod identity;
pub mod level;
pub mod lifecycle;
pub mod probes;
pub mod proof;
pub mod repo;
pub mod results;
mod text;
pub mod triage;
pub mod verdict;
mod yaml;

pub use self::allowlist::{Allowlist, AllowlistEntry};
pub use self::level::{CheckRunPolicy, Device, EventKind, EventSet, Level};
pub use self::repo::{Oncall, RepoName};
pub use self::yaml::display::find_similar;
