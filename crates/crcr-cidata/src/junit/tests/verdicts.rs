//! What suites say of themselves, apart from their tests.

use super::read;

/// `--fail-on-pending` and others, and a `Skip` in `BeforeSuite`, which is a reason as well.
#[test]
fn reason_of_ginkgos_suite_is_a_failure_beside_its_tests_unless_the_suite_passed() {
    let of = |succeeded: bool, reason: &str, inner: &str| {
        read(format!(
            "<testsuite name='s'><properties><property name='SuiteSucceeded' value='{succeeded}'/><property \
             name='SpecialSuiteFailureReason' value='{reason}'/></properties><testcase name='a' time='1'>{inner}\
             </testcase></testsuite>"
        ))
    };
    let long = "Suite Timeout Elapsed, ".repeat(9);
    for reason in ["Suite Timeout Elapsed", &long] {
        let report = of(false, reason, "<failure message='x'/>");
        assert_eq!((report.tally.failures, report.tally.errors), (1, 1), "{reason}");
        assert_eq!(of(false, reason, "").tally.errors, 1);
    }
    assert_eq!(of(false, "", "").tally.errors, 1, "it says that it failed");
    assert_eq!(of(false, "", "<failure message='x'/>").tally.errors, 0);
    assert_eq!(of(true, "Suite skipped in BeforeSuite", "<skipped/>").tally.errors, 0);
    assert_eq!(of(true, "", "").tally.errors, 0);
}

#[test]
fn failure_that_mochas_old_reporter_declares_as_an_error_as_well_counts_once() {
    let of = |suite: &str, failures: u32, errors: u32| {
        read(format!(
            "<testsuite name='{suite}' tests='2' failures='{failures}' errors='{errors}'><testcase name='a' time='1'>\
             <failure>x</failure></testcase><testcase name='b' time='1'/></testsuite>"
        ))
        .tally
    };
    for suite in ["Mocha Tests", "TAP Tests"] {
        assert_eq!((of(suite, 1, 1).failures, of(suite, 1, 1).errors), (1, 0), "{suite}");
        assert_eq!(of(suite, 2, 2).failures, 2, "one has no test");
        assert_eq!(of(suite, 1, 2).errors, 2, "they aren't the same ones");
    }
    assert_eq!(of("s", 1, 1).errors, 1);
}
