//! JUnit reports. There is no standard; the fixtures in `tests/fixtures/junit` are what tools write.
//!
//! A report is read as a stream, whatever its size. Only XML's five predefined entities are resolved, and
//! no other file is read.

mod findings;
#[cfg(test)]
mod fixtures;
mod input;
mod reader;
mod report;
#[cfg(test)]
mod tests;
mod text;

pub use self::findings::{JunitFinding, JunitGrade, JunitRule};
pub use self::reader::{JunitError, JunitSummary, read_cases};
pub use self::report::TestReport;
