//! Addresses of pages, with what is asked in them.

use crcr_results::test_runs::hex_id;
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::query::SortOrder;

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

/// The page of a test.
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

/// The page of a commit.
pub(crate) fn commit(repository: &str, sha: &str) -> String {
    address(&format!("/commit/{sha}"), [("upstream", Some(repository))])
}

/// The page of a pull request.
pub(crate) fn pull(repository: &str, number: u64) -> String {
    address(&format!("/pr/{number}"), [("upstream", Some(repository))])
}

/// How a column is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sorted {
    No,
    Ascending,
    Descending,
}

/// A column of a table that is sorted by `order`. `first`: how it is sorted until it is chosen again.
pub(crate) fn order_header(
    (column, name): (&'static str, &str),
    order: &SortOrder,
    first: Sorted,
    url: impl Fn(&SortOrder) -> String,
) -> Markup {
    let sorted = match (order.column == column, order.is_reversed, first) {
        (false, ..) => Sorted::No,
        (true, true, Sorted::Ascending) => Sorted::Descending,
        (true, true, _) => Sorted::Ascending,
        (true, false, first) => first,
    };
    sort_header(name, sorted, &url(&order.toggled(column)))
}

/// A column by which a table can be sorted.
pub(crate) fn sort_header(name: &str, sorted: Sorted, address: &str) -> Markup {
    let (value, sign) = match sorted {
        Sorted::No => (None, ""),
        Sorted::Ascending => (Some("ascending"), " ▴"),
        Sorted::Descending => (Some("descending"), " ▾"),
    };
    html! {
        th scope="col" aria-sort=[value] {
            a rel="nofollow" href=(address) { (name) @if value.is_some() { span aria-hidden="true" { (sign) } } }
        }
    }
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
