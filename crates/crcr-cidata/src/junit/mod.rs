//! Test reports: JUnit, for which there is no standard (the fixtures in `tests/fixtures/junit` are what tools
//! write), NUnit 3, xUnit.net, TRX and the lines of `go test -json`.
//!
//! A report is read as a stream, whatever its size. Only XML's five predefined entities are resolved, and
//! no other file is read.

mod attempts;
mod dialect;
mod dialects;
mod elements;
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

/// Extensions of the files in which reports are looked for. TAP isn't read, and each file of it is named.
pub const REPORT_EXTENSIONS: [&str; 5] = ["xml", "trx", "json", "jsonl", "tap"];

/// Why a file that [`is_compressed_report`] names isn't read.
pub const COMPRESSED_REPORT: &str = "it is compressed: unpack it first";

/// Whether a file's name is that of a compressed report. Compressed JSON is seldom one.
pub fn is_compressed_report(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let ends = [".gz", ".bz2", ".xz", ".zst", ".zip"];
    let inner = ends.into_iter().find_map(|end| path.strip_suffix(end));
    inner.is_some_and(|inner| inner.ends_with(".xml") || inner.ends_with(".trx"))
}

pub use self::findings::{JunitFinding, JunitGrade, JunitRule};
pub use self::other_files::OtherFile;
pub use self::reader::read_cases;
pub use self::report::{EarlierAttempts, TestReport, attempt_of, last_attempt_of};
pub use self::spread_attempts::{
    MAX_OF_ONE_CLASS, join_spread_attempts, of_one_class, outermost_class_report,
};
pub use self::summary::{JunitError, JunitSummary, SuiteElement};
