//! `/search`: from a number, a commit or a name to its page.

use maud::{Markup, html};

use super::branch::branch_path;
use crate::layout::shell;

/// Where a commit was built.
pub(crate) struct CommitHit {
    pub(crate) repository: String,
    pub(crate) branch: String,
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
                    a href=(branch_path(&hit.repository, &hit.branch)) { bdi { (hit.repository) " " (hit.branch) } }
                } } }
            }
        },
    )
}
