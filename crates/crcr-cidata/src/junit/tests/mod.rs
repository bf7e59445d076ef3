mod files;
mod identity;
mod messages;
mod reruns;
mod results;
mod skips;
mod verdicts;

use crcr_domain::ci_data::test_run::{TestCase, TestResult};

use super::{JunitRule, TestReport};

fn read(xml: impl AsRef<[u8]>) -> TestReport {
    TestReport::read(xml.as_ref()).unwrap()
}

fn refusal(xml: impl AsRef<[u8]>) -> String {
    TestReport::read(xml.as_ref()).unwrap_err().to_string()
}

fn only(xml: impl AsRef<[u8]>) -> TestCase {
    let mut report = read(xml);
    assert_eq!(report.cases.len(), 1, "{:?}", report.cases);
    report.cases.remove(0)
}

/// In a suite, each with a duration.
fn suite(cases: &str) -> String {
    format!("<testsuite name='s'>{}</testsuite>", cases.replace("<testcase", "<testcase time='1'"))
}

fn results(report: &TestReport) -> Vec<(&str, TestResult)> {
    report.cases.iter().map(|case| (case.name.as_str(), case.result)).collect()
}

fn rules(report: &TestReport) -> Vec<(JunitRule, u64)> {
    report.summary.findings.iter().map(|finding| (finding.rule, finding.line)).collect()
}

/// Of each test: its result, how often it ran, and whether it is flaky.
fn attempts(report: &TestReport) -> Vec<(TestResult, u32, bool)> {
    report.cases.iter().map(|case| (case.result, case.attempts, case.flaky)).collect()
}
