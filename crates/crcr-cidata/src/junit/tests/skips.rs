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
    assert_eq!(
        results(&report),
        [("chosen", Skipped), ("failed", Failure), ("undefined", Error)]
    );
    assert!(rules(&report).is_empty(), "{:?}", rules(&report));
    // One that the suite counts as an error is one.
    let counted = format!(
        "<testsuite name='s' errors='1'><testcase name='a' time='0'>{skipped}</testcase></testsuite>"
    );
    assert_eq!(read(counted).tally.errors, 1);
}
