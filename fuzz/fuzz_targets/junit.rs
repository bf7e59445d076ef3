//! Any bytes: the reader of reports neither panics nor hangs, its counts add up, and a report that is
//! cut has no more tests that ended than the whole one.
#![no_main]

use crcr_cidata::junit::TestReport;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(report) = TestReport::read(bytes) else { return };
    let tally = report.tally;
    // Failures that are declared and have no row.
    let hidden = report.summary.hidden_failures;
    let hidden = hidden.failures + hidden.errors;
    assert_eq!(tally.tests, report.cases.len() as u64 + hidden);
    let sum = tally.successes + tally.failures + tally.errors + tally.skipped + tally.unfinished;
    assert_eq!(tally.tests, sum);
    assert!(tally.flaky <= tally.successes);
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    for finding in &report.summary.findings {
        assert!((1..=lines).contains(&finding.line));
    }
    for case in &report.cases {
        assert!(case.attempts > 0);
        assert!(case.time.is_none_or(|time| time >= 0.0));
    }
    let elements = |report: &TestReport| report.cases.iter().map(|case| case.attempts).sum::<u32>();
    if let Ok(cut) = TestReport::read(&bytes[..bytes.len() / 2]) {
        // The test that is cut, and its suite.
        assert!(elements(&cut) <= elements(&report) + 2);
    }
});
