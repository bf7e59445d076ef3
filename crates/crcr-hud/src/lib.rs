//! The HUD: results of every backend as server-rendered pages, each with a JSON twin.
//!
//! [`routes`] has a line for each page. A page is one file in [`pages`]: what it asks (its model,
//! which is also its JSON twin) and what it shows. What several pages compute is in [`model`].
//! Pages can be read without JavaScript and load nothing from other hosts.

mod address;
mod badge;
mod chart;
mod context;
pub mod errors;
mod files;
pub mod layout;
pub mod message;
mod model;
mod openapi;
pub mod pages;
mod plot;
mod query;
mod routes;
mod security_headers;
#[cfg(test)]
mod tests;
mod transfer;
mod view;
mod watch;

pub use self::context::{Hud, PolicyInForce, RelayWarning};
pub use self::errors::errors_as_pages;
pub use self::files::{FilesOf, RepositoryFiles};
pub use self::routes::{router, warm, with_headers};
pub use self::view::{Operator, View};
pub use self::watch::{FeedLook, WatchedFeed, WatchedThing};
