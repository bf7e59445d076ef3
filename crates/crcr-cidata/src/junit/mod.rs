//! Test reports: JUnit, for which there is no standard (the fixtures in `tests/fixtures/junit` are what tools
//! write), NUnit 3, xUnit.net, TRX and the lines of `go test -json`.
//!
//! A report is read as a stream, whatever its size. Only XML's five predefined entities are resolved, and
//! no other file is read.

mod attempts;
mod dialect;
mod dialects;
mod elements;
mod failure_messages;
mod findings;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod formats;
mod go_json;
mod input;
mod other_files;
#[cfg(test)]
mod property;
mod pytest_repeat;
mod reader;
mod report;
mod spread_attempts;
mod suites;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod values;

use std::path::Path;

/// Extensions of the files in which reports are looked for. TAP isn't read, and each file of it is named.
const REPORT_EXTENSIONS: [&str; 6] = ["xml", "trx", "json", "jsonl", "ndjson", "tap"];

/// How the names of some tools' reports end.
const OTHER_REPORT_ENDS: [&str; 4] = [".junit", ".xunit", ".nunit", ".subunit"];
const ARCHIVE_ENDS: [&str; 11] = [
    ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst", ".7z",
    ".rar",
];

/// Why a file that [`is_report_file`] doesn't know isn't read.
pub const NOT_A_REPORT_FILE: &str =
    "reports are `.xml`, `.trx`, `.json`, `.jsonl` and `.ndjson` files";

/// Why a file that [`is_compressed_report`] names isn't read.
pub const COMPRESSED_REPORT: &str = "it is compressed: unpack it first";

/// Whether a file's name is that of a compressed report. Compressed JSON is seldom one.
pub fn is_compressed_report(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let ends = [".gz", ".bz2", ".xz", ".zst", ".zip"];
    let inner = ends.into_iter().find_map(|end| path.strip_suffix(end));
    inner.is_some_and(|inner| inner.ends_with(".xml") || inner.ends_with(".trx"))
}

/// Whether a file's name is one of those in which reports are looked for.
pub fn is_report_file(path: &str) -> bool {
    REPORT_EXTENSIONS.iter().any(|extension| has_extension(path, extension))
}

/// Whatever its capitals, as Windows writes some.
pub fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
}

/// Why a file isn't read whose name is that of a report or of an archive other than a zip. `None` for other names.
pub fn unread_file(path: &str) -> Option<&'static str> {
    if is_compressed_report(path) {
        return Some(COMPRESSED_REPORT);
    }
    let path = path.to_ascii_lowercase();
    let has_end = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    if has_end(&ARCHIVE_ENDS) {
        return Some("of archives, only zips are read: unpack it first");
    }
    has_end(&OTHER_REPORT_ENDS).then_some(NOT_A_REPORT_FILE)
}

pub use self::findings::{JunitFinding, JunitGrade, JunitRule};
pub use self::other_files::OtherFile;
pub use self::reader::read_cases;
pub use self::report::{EarlierAttempts, TestReport, attempt_of, last_attempt_of};
pub use self::spread_attempts::{
    MAX_OF_ONE_CLASS, join_spread_attempts, of_one_class, outermost_class_report,
};
pub use self::summary::{JunitError, JunitSummary, SuiteElement};
