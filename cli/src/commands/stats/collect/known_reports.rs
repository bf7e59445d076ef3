//! Which reports were read already: the same one can be in several folders and artifacts.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crcr_cidata::junit::TestReport;
use crcr_cidata::test_rows::distinct_report_id;
use crcr_domain::ci_data::test_row::ReportSource;

#[derive(Default)]
pub struct KnownReports {
    ids: HashSet<u64>,
    /// What was read, with the id that its artifact and path give.
    read: HashSet<(u64, u64)>,
    /// Contents of reports, by the name of their file, and where the first one is.
    contents: HashMap<(String, u64), ReportLocation>,
}

#[derive(Clone, Copy)]
pub struct ReportLocation {
    pub is_in_zip: bool,
    pub is_in_artifact: bool,
}

impl KnownReports {
    /// Gives a report an id of its own. Two reports can have one path from `test-reports` on, such as those of two
    /// modules or zips: the second one is known by where it is, which is `shown`. An error says why it isn't read.
    pub fn claim(
        &mut self,
        source: &mut ReportSource,
        shown: &str,
        content: u64,
    ) -> Result<(), &'static str> {
        if !self.read.insert((source.report_id, content)) {
            return Err("the same report was read already");
        }
        if self.ids.insert(source.report_id) {
            return Ok(());
        }
        source.report_id = distinct_report_id(source.report_id, shown);
        shown.clone_into(&mut source.path);
        match self.ids.insert(source.report_id) {
            true => Ok(()),
            false => Err("another report has the same path"),
        }
    }

    /// Whether a report beside the zips is one of those in them. Two in folders are of two jobs, although tests that
    /// take no time look the same in both.
    pub fn is_repeated(&mut self, path: &str, at: ReportLocation, content: u64) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path).to_owned();
        let first = *self.contents.entry((name, content)).or_insert(at);
        first.is_in_zip != at.is_in_zip && !(first.is_in_artifact && at.is_in_artifact)
    }
}

/// A hash of all that a report says of its tests.
pub fn content_of(report: &TestReport) -> u64 {
    let mut hasher = DefaultHasher::new();
    for case in &report.cases {
        (case.kind, &*case.suite, &*case.classname, &case.name).hash(&mut hasher);
        (case.variant.as_deref(), case.result, case.attempts).hash(&mut hasher);
        case.time.map(f64::to_bits).hash(&mut hasher);
        for detail in &case.details {
            (detail.kind, &detail.message, &detail.text).hash(&mut hasher);
        }
    }
    let summary = &report.summary;
    let hidden = summary.hidden_failures;
    (summary.is_truncated, hidden.failures, hidden.errors).hash(&mut hasher);
    summary.earliest.map(|(time, _)| time).hash(&mut hasher);
    hasher.finish()
}

pub fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
