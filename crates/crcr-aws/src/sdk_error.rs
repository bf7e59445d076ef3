//! The errors of the AWS SDK, in words for users.

use std::error::Error;

use crcr_github::http::root_cause;

/// An error's innermost cause, on one line. The text of a program that prints credentials may have several.
pub fn sdk_cause(error: &dyn Error) -> String {
    let cause = root_cause(error);
    // The SDK says here how a program has to be compiled.
    if cause.contains("cargo feature") {
        return "the profile is one of `aws sso login` or `aws login`, which isn't supported; `aws configure \
                export-credentials --format env` prints its credentials as variables"
            .to_owned();
    }
    cause.split_whitespace().collect::<Vec<_>>().join(" ")
}
