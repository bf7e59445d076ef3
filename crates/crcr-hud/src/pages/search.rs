//! `/search`: from a number, a commit or a name to its page.

use maud::{Markup, html};

use crate::layout::shell;

/// The page of a branch or pull request that a commit is on.
#[derive(PartialEq, Eq)]
pub(crate) struct CommitHit {
    pub(crate) path: String,
    pub(crate) name: String,
}

pub(crate) fn page(text: &str, hits: &[CommitHit]) -> Markup {
    shell(
        "Search",
        false,
        &html! {
            h1 { "Search" }
            @if hits.is_empty() {
                p role="status" { "Nothing is known about " strong { bdi { (text) } } "." }
                p.muted { "Search for the number of a pull request, the whole SHA of a commit, OWNER/REPO, or a part of a test's name." }
            } @else {
                ul.plain { @for hit in hits { li {
                    a href=(hit.path) { bdi { (hit.name) } }
                } } }
            }
        },
    )
}
