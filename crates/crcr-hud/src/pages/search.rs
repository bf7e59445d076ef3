//! `/search`: from a number, a commit or a name to its page.

use maud::{Markup, html};

use crate::layout::shell;

/// A page that the search may be about: a branch or pull request that a commit is on, or tests.
#[derive(PartialEq, Eq)]
pub(crate) struct SearchHit {
    pub(crate) path: String,
    pub(crate) name: String,
}

pub(crate) fn page(text: &str, hits: &[SearchHit]) -> Markup {
    shell(
        "Search",
        false,
        &html! {
            h1 { "Search" }
            @if hits.is_empty() {
                p role="status" { "Nothing is known about " strong { bdi { (text) } } "." }
                p.muted { "Search for the number of a pull request, the whole SHA of a commit, OWNER/REPO, or a part of the name of a backend, a device or a test." }
            } @else {
                ul.plain { @for hit in hits { li {
                    a href=(hit.path) { bdi { (hit.name) } }
                } } }
            }
        },
    )
}
