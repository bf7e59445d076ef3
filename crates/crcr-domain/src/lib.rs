//! The rules of cross-repository CI: repositories, levels, events, results. No I/O and no clock; the
//! current time is always an argument.

#[macro_use]
mod names;

pub mod allowlist;
pub mod checks;
pub mod ci_data;
pub mod diagnostic;
pub mod probes;
pub mod protocol;
pub mod repo;
pub mod results;
mod text;
mod yaml;

pub use self::allowlist::level::{CheckRunPolicy, Device, EventKind, EventSet, Level};
pub use self::allowlist::{Allowlist, AllowlistEntry};
pub use self::repo::{Oncall, RepoName};
pub use self::yaml::display::find_similar;
