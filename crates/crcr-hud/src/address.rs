//! Addresses of pages, with what is asked in them.

use crcr_results::test_runs::hex_id;
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

/// A path with the parameters that are given.
pub(crate) fn address<'a>(
    path: &str,
    parameters: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

pub(crate) fn test(repository: &str, test_id: u64) -> String {
    address(&format!("/test/{repository}"), [("id", Some(&*hex_id(test_id)))])
}

/// The page of the tests that have a name.
pub(crate) fn test_named(repository: &str, name: &str) -> String {
    address(&format!("/test/{repository}"), [("name", Some(name))])
}

/// The page of a failed job.
pub(crate) fn failure(repository: &str, job_id: u64) -> String {
    format!("/failure/{repository}/{job_id}")
}

pub(crate) fn commit(repository: &str, sha: &str) -> String {
    address(&format!("/commit/{sha}"), [("upstream", Some(repository))])
}

/// The page of a commit of any upstream repository. A fork has the commits of its upstream, so that of another one than
/// the HUD's `own` is named with it.
pub(crate) fn commit_of(repository: &str, own: &str, sha: &str) -> String {
    if repository.eq_ignore_ascii_case(own) {
        format!("/commit/{sha}")
    } else {
        commit(repository, sha)
    }
}

/// The page of a pull request.
pub(crate) fn pull(repository: &str, number: u64) -> String {
    address(&format!("/pr/{number}"), [("upstream", Some(repository))])
}

/// The page of the jobs that ended, of a runner or of a name.
pub(crate) fn jobs(
    repository: &str,
    window: &str,
    (runner, job): (Option<&str>, Option<&str>),
    only_failed: bool,
) -> String {
    address(
        "/jobs",
        [
            ("repo", Some(repository)),
            ("window", Some(window)),
            ("runner", runner),
            ("job", job),
            ("state", only_failed.then_some("failed")),
        ],
    )
}

/// `?sort=COLUMN`, or `?sort=-COLUMN` for the other direction.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct SortOrder {
    pub(crate) column: &'static str,
    pub(crate) is_reversed: bool,
}

impl SortOrder {
    /// `?sort=`. Errors name the columns.
    pub(crate) fn new(
        query: Option<&str>,
        default: &'static str,
        columns: &[&'static str],
    ) -> Result<Self, String> {
        Self::named("sort", query, default, columns)
    }

    /// The same of a table whose order has a parameter of its own.
    pub(crate) fn named(
        parameter: &str,
        query: Option<&str>,
        default: &'static str,
        columns: &[&'static str],
    ) -> Result<Self, String> {
        let query = query.map(str::trim).filter(|query| !query.is_empty()).unwrap_or(default);
        let (name, is_reversed) = match query.strip_prefix('-') {
            Some(name) => (name, true),
            None => (query, false),
        };
        let column = columns.iter().find(|column| **column == name);
        let column = column.ok_or_else(|| {
            format!(
                "`{parameter}` has to be one of `{}`, with `-` for the other way",
                columns.join("`, `")
            )
        })?;
        Ok(Self { column, is_reversed })
    }

    /// `None` for the default.
    pub(crate) fn parameter(&self, default: &str) -> Option<String> {
        let sign = if self.is_reversed { "-" } else { "" };
        (self.is_reversed || self.column != default).then(|| format!("{sign}{}", self.column))
    }

    pub(crate) fn apply(&self, order: std::cmp::Ordering) -> std::cmp::Ordering {
        if self.is_reversed { order.reverse() } else { order }
    }

    /// Sorted by this column; the other way if it is already.
    pub(crate) fn toggled(&self, column: &'static str) -> Self {
        Self { column, is_reversed: self.column == column && !self.is_reversed }
    }

    /// How a column is sorted. `first`: how it is until it is chosen again.
    pub(crate) fn sorted(&self, column: &str, first: Sorted) -> Sorted {
        match (self.column == column, self.is_reversed, first) {
            (false, ..) => Sorted::No,
            (true, true, Sorted::Ascending) => Sorted::Descending,
            (true, true, _) => Sorted::Ascending,
            (true, false, first) => first,
        }
    }
}

/// How a column is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sorted {
    No,
    Ascending,
    Descending,
}

impl Sorted {
    pub(crate) fn aria(self) -> Option<&'static str> {
        match self {
            Self::No => None,
            Self::Ascending => Some("ascending"),
            Self::Descending => Some("descending"),
        }
    }
}

/// A column of a table that is sorted by `order`. `first`: how it is sorted until it is chosen again.
pub(crate) fn order_header(
    (column, name): (&'static str, &str),
    order: &SortOrder,
    first: Sorted,
    url: impl Fn(&SortOrder) -> String,
) -> Markup {
    sort_header(name, order.sorted(column, first), &url(&order.toggled(column)))
}

/// A column by which a table can be sorted.
pub(crate) fn sort_header(name: &str, sorted: Sorted, address: &str) -> Markup {
    html! { th scope="col" aria-sort=[sorted.aria()] { (sort_link(name, sorted, address)) } }
}

/// What such a column's header holds.
pub(crate) fn sort_link(name: &str, sorted: Sorted, address: &str) -> Markup {
    let sign = match sorted {
        Sorted::No => None,
        Sorted::Ascending => Some(" ▴"),
        Sorted::Descending => Some(" ▾"),
    };
    html! { a rel="nofollow" href=(address) { (name) @if let Some(sign) = sign { span aria-hidden="true" { (sign) } } } }
}

/// All that has a meaning in an address, except the slashes of a branch's name.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The grid of a branch.
pub(crate) fn branch_path(repository: &str, branch: &str) -> String {
    format!("/hud/{repository}/{}", utf8_percent_encode(branch, PATH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_are_quoted_in_addresses() {
        assert_eq!(
            test_named("acme/upstream", "a&b=<c> #d"),
            "/test/acme/upstream?name=a%26b%3D%3Cc%3E+%23d"
        );
        assert_eq!(pull("a/b", 7), "/pr/7?upstream=a%2Fb");
    }
}
