//! Skips that fail a run, and errors that are skips.

use crcr_domain::ci_data::test_run::TestResult;

use super::{read, results, rules};

/// `ct_run` and Rebar fail for it; what a suite itself skips is `tc_user_skip`.
#[test]
fn test_of_common_test_that_a_failed_setup_skips_is_an_error() {
    let of = |reason: &str| {
        format!(
            "<testcase name='adds' time='0.1'><skipped type='skip' \
             message='Test adds in a_SUITE skipped!'>{reason}</skipped></testcase>"
        )
    };
    let setup = of("{tc_auto_skip,{failed,{a_SUITE,init_per_testcase,\n  {badmatch,1}}}}");
    let chosen = of("{tc_user_skip,\"no tc_auto_skip\"}");
    let report = read(format!(
        "<testsuite name='a_SUITE' tests='2' failures='0' errors='0' skipped='2'>{setup}{chosen}</testsuite>"
    ));
    assert_eq!(results(&report), [("adds", TestResult::Error), ("adds", TestResult::Skipped)]);
    assert!(report.uncounted_failure().is_none());
}

#[test]
fn unexpected_success_that_nose2_writes_as_a_skip_is_an_error() {
    let of = |message: &str| {
        let xml = format!(
            "<testsuite name='nose2-junit' errors='0' failures='0' skipped='1' tests='1' time='0'>\
             <testcase classname='t.E' name='test_x' time='0'><skipped message='{message}'/><system-out/>\
             </testcase></testsuite>"
        );
        read(xml).cases[0].result
    };
    assert_eq!(of("test passes unexpectedly"), TestResult::Error);
    assert_eq!(of("expected test failure"), TestResult::Skipped);
}

/// `godog run` passes with it.
#[test]
fn scenario_that_godog_skips_is_no_error_and_one_that_failed_or_is_undefined_stays_red() {
    let skipped = "<error message='Step then' type='skipped'/>";
    let report = read(format!(
        "<testsuites name='godog' tests='3' skipped='0' failures='1' errors='1'><testsuite name='A' tests='3' \
         skipped='0' failures='1' errors='1'><testcase name='chosen' status='passed' time='0'>{skipped}</testcase>\
         <testcase name='failed' status='failed' time='0'><failure message='no'/>{skipped}</testcase>\
         <testcase name='undefined' status='undefined' time='0'><error message='Step x' type='undefined'/>{skipped}\
         </testcase></testsuite></testsuites>"
    ));
    use TestResult::{Error, Failure, Skipped};
    assert_eq!(results(&report), [("chosen", Skipped), ("failed", Failure), ("undefined", Error)]);
    assert!(rules(&report).is_empty(), "{:?}", rules(&report));
    // One that the suite counts as an error is one.
    let counted = format!(
        "<testsuite name='s' errors='1'><testcase name='a' time='0'>{skipped}</testcase></testsuite>"
    );
    assert_eq!(read(counted).tally.errors, 1);
}
