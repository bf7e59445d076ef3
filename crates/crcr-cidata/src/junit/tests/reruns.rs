//! Which of a test's runs in one report counts.

use crcr_domain::ci_data::test_run::{TestDetailKind, TestResult};

use super::super::{EarlierAttempts, JunitRule, TestReport, join_spread_attempts, of_one_class};
use super::{attempts, only, read, rules, suite};

#[test]
fn test_that_passed_after_nested_reruns_is_flaky() {
    for child in ["rerun", "flakyFailure", "flakyError", "rerunFailure", "rerunError"] {
        let case = only(suite(&format!(
            "<testcase name='a'><{child} message='m'><stackTrace>t</stackTrace>\
             <system-out>o</system-out></{child}><{child}/></testcase>"
        )));
        assert_eq!((case.result, case.flaky, case.attempts), (TestResult::Success, true, 3));
        assert_eq!(case.details[0].kind, TestDetailKind::Rerun);
        assert_eq!(case.details[0].text.as_deref(), Some("t"));
    }
}

#[test]
fn test_that_failed_in_every_rerun_is_a_failure() {
    let case =
        only(suite("<testcase name='a'><failure/><rerunFailure/><rerunFailure/></testcase>"));
    assert_eq!((case.result, case.flaky, case.attempts), (TestResult::Failure, false, 3));
}

#[test]
fn failures_of_a_test_that_firebase_marks_as_flaky_are_of_earlier_attempts() {
    let read = |flakes: &str| {
        read(format!(
            "<testsuites><testsuite name='s' tests='2' failures='1' {flakes}>\
             <testcase classname='C' name='a' flaky='true' time='1'><failure>x</failure></testcase>\
             <testcase classname='C' name='b' time='1'><failure>y</failure><failure>z</failure></testcase>\
             </testsuite></testsuites>"
        ))
    };
    use TestResult::{Failure, Success};
    let report = read("flakes='1'");
    assert_eq!(attempts(&report), [(Success, 2, true), (Failure, 1, false)]);
    assert_eq!((report.tally.failures, rules(&report)), (1, vec![]));
    // Whatever else writes such an attribute may mean that a test that failed often does.
    assert_eq!(read("").tally.failures, 2);
}

#[test]
fn pytest_repetition_is_an_attempt_and_the_worst_one_counts() {
    use TestResult::{Error, Failure, Skipped, Success};
    for (later, expected) in [
        (["", ""], (Success, 2, true)),
        (["", "<failure/>"], (Failure, 2, false)),
        (["<failure/>", "<error/>"], (Failure, 2, false)),
        // Not what a plugin writes for a retry: the job is red.
        (["<failure/>", ""], (Failure, 2, false)),
        (["<error/>", "<skipped/>"], (Error, 2, false)),
        (["<skipped/>", ""], (Skipped, 2, false)),
    ] {
        let case = |inner| format!("<testcase name='a' time='1'>{inner}</testcase>");
        let cases = later.map(case).concat();
        let report = read(format!("<testsuite name='pytest'>{cases}</testsuite>"));
        assert_eq!(attempts(&report), [expected], "{later:?}");
        assert_eq!(report.cases[0].time, Some(2.0));
        let named = format!(
            "<testsuites name='pytest tests'><testsuite name='mine'>{cases}</testsuite></testsuites>"
        );
        assert_eq!(attempts(&read(named)), [expected], "{later:?}");
    }
}

#[test]
fn tests_that_pytest_repeat_ran_several_times_are_one_each_and_flaky_if_they_did_both() {
    use TestResult::{Failure, Success};
    let of = |names: &[&str], failed: &[&str]| {
        let case = |name: &&str| {
            let inner = if failed.contains(name) { "<failure message='no'/>" } else { "" };
            format!("<testcase classname='t' name='{name}' time='1'>{inner}</testcase>")
        };
        let cases: String = names.iter().map(case).collect();
        read(format!("<testsuite name='pytest'>{cases}</testsuite>"))
    };
    let names = [
        "test_a[1-2]",
        "test_a[2-2]",
        "test_b[x-1-2]",
        "test_b[x-2-2]",
        "test_b[-1-1-2]",
        "test_b[-1-2-2]",
    ];
    let report = of(&names, &["test_a[1-2]", "test_b[x-1-2]", "test_b[x-2-2]"]);
    assert_eq!(attempts(&report), [(Failure, 2, true), (Failure, 2, false), (Success, 2, false)]);
    let found: Vec<_> = report.cases.iter().map(|case| &*case.name).collect();
    assert_eq!(found, ["test_a", "test_b[x]", "test_b[-1]"]);
    assert_eq!((report.tally.failures, report.tally.flaky), (2, 1));
    // One test alone, often enough.
    let often: Vec<String> = (1..=10).map(|n| format!("test_a[{n}-10]")).collect();
    let often: Vec<&str> = often.iter().map(String::as_str).collect();
    assert_eq!(attempts(&of(&often, &["test_a[7-10]"])), [(Failure, 10, true)]);
    // Parameters that look alike, or a run that ended early.
    assert_eq!(of(&names[..2], &names[..1]).tally.tests, 2);
    assert_eq!(of(&names[..5], &names[..1]).tally.tests, 5);
    assert_eq!(of(&[&names[..], &["test_c"]].concat(), &names[..1]).tally.tests, 7);
}

/// Since version 9, without a plugin.
#[test]
fn subtests_of_pytest_are_a_part_of_their_test_and_nothing_is_missing() {
    let report = read(
        "<testsuites name='pytest tests'><testsuite name='pytest' errors='0' failures='2' skipped='0' tests='7'>\
         <testcase classname='t' name='test_a' time='0'><failure message='assert 1 != 1'/>\
         <failure message='contains 1 failed subtest'/></testcase>\
         <testcase classname='t' name='test_b' time='0'/></testsuite></testsuites>",
    );
    use TestResult::{Failure, Success};
    assert_eq!(attempts(&report), [(Failure, 1, false), (Success, 1, false)]);
    assert!(rules(&report).is_empty(), "{:?}", rules(&report));
}

#[test]
fn tests_that_each_worker_of_xdist_ran_are_not_flaky() {
    use TestResult::{Failure, Success};
    let of = |tests: u32, last: &str| {
        let case =
            |at: u32| format!("<testcase classname='t' name='test_{}' time='1'/>", at % tests);
        let cases: String = (0..2 * tests).map(case).collect();
        read(format!("<testsuite name='pytest'>{cases}{last}</testsuite>"))
    };
    assert_eq!(attempts(&of(5, "")), [(Success, 2, false); 5]);
    // Tests that were run again, beside one that wasn't.
    let other = "<testcase classname='t' name='other' time='1'/>";
    assert_eq!(of(5, other).tally.flaky, 5);
    assert_eq!(of(4, "").tally.flaky, 4);
    let failed = "<testcase classname='t' name='a' time='1'/>\
                  <testcase classname='t' name='a' time='1'><failure/></testcase>";
    assert_eq!(attempts(&of(4, failed))[4], (Failure, 2, false));
}

/// The report of a Go package whose tests have these names and results.
fn go(results: &[(&str, &str)]) -> TestReport {
    let cases: String = results
        .iter()
        .map(|(name, inner)| format!("<testcase name='{name}' time='1'>{inner}</testcase>"))
        .collect();
    read(format!(
        "<testsuite name='p'><properties><property name='go.version' value='go1.26'/>\
         </properties>{cases}</testsuite>"
    ))
}

#[test]
fn go_repetition_is_an_attempt_unless_tests_that_passed_ran_again() {
    use TestResult::{Failure, Success};
    let failed = ("A", "<failure/>");
    assert_eq!(
        attempts(&go(&[failed, ("B", ""), ("A", "")])),
        [(Success, 2, true), (Success, 1, false)]
    );
    assert_eq!(attempts(&go(&[failed, failed])), [(Failure, 2, false)]);
    let rule = |report: &TestReport| report.summary.findings.first().map(|first| first.rule);
    let flaky = go(&[failed, ("A", "")]);
    assert_eq!(rule(&flaky), Some(JunitRule::GuessedRerun), "`-count=2` looks like it");
    assert!(
        flaky.uncounted_failure().is_some() && go(&[failed, failed]).uncounted_failure().is_none()
    );
    // `-count=2`: one run of each is red, and so is the job.
    let counted = go(&[failed, ("A", ""), ("B", ""), ("B", "")]);
    assert_eq!(counted.tally.failures, 1);
    assert_eq!(go(&[failed, ("A", "<skipped/>")]).tally.failures, 1);
    assert_eq!(go(&[("A", ""), failed]).tally.failures, 1);
}

#[test]
fn subtest_of_go_that_passed_may_run_again_only_with_a_test_around_it_that_failed() {
    use TestResult::{Failure, Success};
    const FAIL: &str = "<failure/>";
    let again = go(&[("A", FAIL), ("A/x", ""), ("A", ""), ("A/x", "")]);
    assert_eq!(attempts(&again), [(Success, 2, true), (Success, 2, false)]);
    // A failure after it is the last attempt.
    let worse = go(&[("A", FAIL), ("A/x", ""), ("A", FAIL), ("A/x", FAIL)]);
    assert_eq!(attempts(&worse), [(Failure, 2, false), (Failure, 2, false)]);
    // `-count=2`: the test around it passed twice, or ran once.
    for (first, last) in [("", ""), ("", FAIL)] {
        let counted = go(&[("A", first), ("A/x", ""), ("A/y", FAIL), ("A", last), ("A/x", "")]);
        assert_eq!(counted.cases.len(), 5, "{first} {last}");
    }
    assert_eq!(go(&[("A", FAIL), ("A/x", ""), ("A/x", "")]).cases.len(), 3);
}

#[test]
fn ginkgos_output_tells_of_earlier_attempts_and_that_of_others_does_not() {
    let of = |property: &str, inner: &str| {
        only(format!(
            "<testsuite name='s'><properties><property name='{property}' value='true'/></properties>\
             <testcase name='a' time='1'>{inner}</testcase></testsuite>"
        ))
    };
    let output = "<system-err>&gt; Enter&#xA;Attempt #1 Failed.  Retrying ↺ @ 04:17&#xA;&#xA;\
                  Attempt #2 Failed.  Retrying ↺ @ 04:18&#xA;</system-err>";
    let flaky = of("SuiteSucceeded", output);
    assert_eq!((flaky.result, flaky.attempts, flaky.flaky), (TestResult::Success, 3, true));
    let failed = of("SuiteSucceeded", &format!("<failure message='x'/>{output}"));
    assert_eq!((failed.result, failed.attempts, failed.flaky), (TestResult::Failure, 3, false));
    let repeated = output.replace("Failed.  Retrying", "Passed.  Repeating");
    assert_eq!(of("SuiteSucceeded", &repeated).attempts, 1, "`MustPassRepeatedly`");
    assert_eq!(of("other", output).attempts, 1);
}

#[test]
fn failed_assertions_of_xctest_are_one_failure_and_a_retry_that_passed_makes_its_test_flaky() {
    use TestResult::{Failure, Success};
    const FAILURE: &str = "<failure message='/a/T.swift:3 - XCTAssertTrue failed'/>";
    let of = |class: &str, tests: &[(&str, &str)]| {
        let case = |(name, inner): &(&str, &str)| {
            format!("<testcase classname='{class}' name='{name}' time='0.1'>{inner}</testcase>")
        };
        let cases: String = tests.iter().map(case).collect();
        read(format!(
            "<testsuites name='All tests'><testsuite name='{class}'>{cases}</testsuite></testsuites>"
        ))
    };
    let failed = ("a", FAILURE);
    let asserted = of("App.T", &[failed, failed, failed]);
    assert_eq!(attempts(&asserted), [(Failure, 1, false)]);
    assert_eq!(asserted.cases[0].details.len(), 3);
    let retried = of("App.T", &[failed, failed, ("a", ""), ("b", "")]);
    assert_eq!(attempts(&retried), [(Success, 2, true), (Success, 1, false)]);
    assert!(retried.uncounted_failure().is_some(), "another device looks like it");
    // A second device, on which all tests pass, and one test on two devices.
    let devices = of("App.T", &[failed, ("b", ""), ("a", ""), ("b", "")]);
    assert_eq!((devices.tally.tests, devices.tally.failures, devices.tally.flaky), (4, 1, 0));
    assert_eq!(of("App.T", &[failed, ("a", "")]).tally.failures, 1);
    // A skip, `-run-tests-until-failure`, and functions of two suites.
    assert_eq!(of("App.T", &[("a", ""), failed, failed, ("b", "")]).tally.failures, 1);
    assert_eq!(of("App.T", &[failed, ("a", "<skipped/>"), ("b", "")]).tally.failures, 1);
    let functions = of("SwiftTesting", &[failed, ("a", ""), ("b", ""), failed]);
    assert_eq!((functions.tally.failures, functions.tally.flaky), (2, 0));
}

#[test]
fn bazels_earlier_attempt_makes_a_test_that_passed_flaky_and_fails_nothing() {
    let report = |inner: [&str; 3]| {
        let case = |(at, inner): (usize, &str)| {
            format!("<testcase name='{at}' classname='c' time='1'>{inner}</testcase>")
        };
        let cases: String = inner.into_iter().enumerate().map(case).collect();
        read(format!("<testsuite name='s'>{cases}</testsuite>"))
    };
    let mut last = report(["", "<failure message='last'/>", ""]);
    last.add_earlier_attempt(report([
        "<error message='m'/>",
        "<failure message='first'/>",
        "<skipped/>",
    ]));
    use TestResult::{Failure, Success};
    assert_eq!(attempts(&last), [(Success, 2, true), (Failure, 2, false), (Success, 1, false)]);
    assert_eq!(last.cases[1].message(), Some("last"));
    assert_eq!((last.tally.flaky, last.tally.failures, last.tally.errors), (1, 1, 0));
}

#[test]
fn bazels_attempts_are_known_by_their_paths_beside_the_last_one() {
    let paths = [
        "a/foo/test.xml",
        "a/foo/test_attempts/attempt_1.xml",
        "a/foo/test_attempts/attempt_2.xml",
        "test.xml",
        "test_attempts/attempt_1.xml",
        "b/test_attempts/attempt_1.xml",
        "a/foo/test_attempts/attempt_x.xml",
        "a/foo/my_test_attempts/attempt_1.xml",
    ];
    let attempts = EarlierAttempts::of(paths.into_iter());
    assert_eq!(attempts.before("a/foo/test.xml"), [paths[2], paths[1]]);
    assert_eq!(attempts.before("test.xml"), [paths[4]]);
    let earlier: Vec<_> = paths.into_iter().filter(|path| attempts.contains(path)).collect();
    assert_eq!(earlier, [paths[1], paths[2], paths[4]]);
}

#[test]
fn attempt_of_dotnet_that_ran_only_failed_tests_gets_the_others_from_the_first_one() {
    use TestResult::{Failure, Success};
    let read = |results: &[(&str, &str)]| {
        let results: String = (results.iter())
            .map(|(name, outcome)| {
                format!(
                    "<UnitTestResult testName='{name}' duration='00:00:01' outcome='{outcome}'/>"
                )
            })
            .collect();
        read(format!(
            "<TestRun xmlns='http://microsoft.com/schemas/VisualStudio/TeamTest/2010'><Results>{results}\
             </Results></TestRun>"
        ))
    };
    let mut last = read(&[("a", "Failed")]);
    last.add_earlier_attempt(read(&[("a", "Failed")]));
    assert_eq!(attempts(&last), [(Failure, 1, false)], "a copy of it");
    last.add_earlier_attempt(read(&[("b", "Passed"), ("a", "Failed")]));
    last.add_earlier_attempt(read(&[("c", "Passed"), ("a", "Failed"), ("b", "Failed")]));
    assert_eq!(attempts(&last), [(Failure, 3, false), (Success, 2, true), (Success, 1, false)]);
    let tally = last.tally;
    assert_eq!((tally.tests, tally.successes, tally.failures, tally.flaky), (3, 2, 1, 1));
    let paths =
        ["r/a.trx", "r/Retries/x1/2/a.trx", "r/Retries/x1/10/a.trx", "r/Retries/x1/1/b.trx"];
    let of_paths = EarlierAttempts::of(paths.into_iter());
    assert_eq!(of_paths.before(paths[0]), [paths[2], paths[1]]);
    assert!(!of_paths.contains(paths[0]) && !of_paths.contains(paths[3]));
}

/// What fastlane writes of Xcode 16's results.
#[test]
fn test_that_fastlane_shows_as_retried_is_one_test_with_its_attempts() {
    use TestResult::{Failure, Success};
    let run = |name: &str, result: &str, run: &str| {
        format!(
            "<testcase name='{name}()' classname='ATests' time='1'>{result}<properties><property \
             name='repetition' value='{run}'/></properties></testcase>"
        )
    };
    let red = "<failure message='no'/>";
    let read = |runs: &[String]| {
        read(format!(
            "<testsuites tests='2' failures='0' skipped='0' time='5'><testsuite name='AppTests' tests='2' \
             failures='0'><testsuite name='ATests' tests='2' failures='0'>{}</testsuite></testsuite></testsuites>",
            runs.concat()
        ))
    };
    let flaky = [run("a", red, "First Run"), run("a", red, "Retry 1"), run("a", "", "Retry 2")];
    let red_at_last = [run("b", red, "First Run"), run("b", red, "Retry 1")];
    let report = read(&[flaky.concat(), red_at_last.concat()]);
    assert_eq!(attempts(&report), [(Success, 3, true), (Failure, 2, false)]);
    assert_eq!(report.cases[0].details[0].kind, TestDetailKind::Rerun);
    assert!(report.uncounted_failure().is_none(), "{:?}", report.summary.findings);
    // On a second device it begins again, and repetitions that were asked for each count.
    let two_devices = read(&[flaky.concat(), run("a", red, "First Run"), run("a", red, "Retry 1")]);
    assert_eq!(attempts(&two_devices), [(Success, 3, true), (Failure, 2, false)]);
    let asked = [run("a", red, "Repetition 1"), run("a", "", "Repetition 2")];
    assert_eq!(attempts(&read(&asked)), [(Failure, 1, false), (Success, 1, false)]);
}

/// What unittest-xml-reporting writes: all failures of a suite, then its errors.
#[test]
fn test_of_unittest_whose_teardown_fails_as_well_is_one_failure() {
    use TestResult::{Error, Failure, Success};
    let of = |suite: &str| {
        let case = |(name, inner): &(&str, &str)| {
            format!("<testcase classname='t.T' name='{name}' time='1' line='7'>{inner}</testcase>")
        };
        let (red, broken) = ("<failure message='body'/>", "<error message='teardown'/>");
        let tests = [("a", red), ("b", red), ("a", broken), ("b", broken), ("c", broken)];
        let cases: String = tests.iter().map(case).collect();
        read(format!(
            "<testsuite name='{suite}' tests='5' failures='2' errors='3'>{cases}</testsuite>"
        ))
    };
    let report = of("t.T-20261127205552");
    assert_eq!(attempts(&report), [(Failure, 1, false), (Failure, 1, false), (Error, 1, false)]);
    assert_eq!(report.cases[0].message(), Some("body"));
    assert_eq!(report.cases[0].details.len(), 2);
    assert!(report.summary.findings.is_empty(), "{:?}", report.summary.findings);
    assert_eq!(of("t.T-2026").tally.tests, 5, "another tool's");
    // A pass clears no failure.
    let again = read(
        "<testsuite name='t.T-20261127205552'><testcase name='a' time='1'><failure/></testcase>\
         <testcase name='a' time='1'/></testsuite>",
    );
    assert_eq!(attempts(&again), [(Failure, 1, false), (Success, 1, false)]);
}

/// What Surefire writes of TestNG's `IRetryAnalyzer`.
#[test]
fn test_that_testng_skipped_to_run_it_again_is_one_test_and_flaky_if_it_passed() {
    use TestResult::{Failure, Skipped, Success};
    let of = |schema: &str, tests: &[(&str, &str)]| {
        let case = |(name, inner): &(&str, &str)| {
            format!("<testcase name='{name}' classname='demo.T' time='1'>{inner}</testcase>")
        };
        let cases: String = tests.iter().map(case).collect();
        read(format!(
            "<testsuite xsi:noNamespaceSchemaLocation='{schema}' name='TestSuite'>{cases}</testsuite>"
        ))
    };
    let surefire = "https://maven.apache.org/x/xsd/surefire-test-report-3.0.xsd";
    let (skip, red) = ("<skipped message='no'/>", "<failure message='no' type='E'>at</failure>");
    let retried = [("a", skip), ("a", ""), ("b", skip), ("b", skip), ("b", red), ("c", skip)];
    let report = of(surefire, &retried);
    assert_eq!(attempts(&report), [(Success, 2, true), (Failure, 3, false), (Skipped, 1, false)]);
    assert_eq!(report.cases[0].details[0].kind, TestDetailKind::Rerun);
    assert_eq!(report.cases[1].message(), Some("no"));
    assert_eq!(of("another.xsd", &retried).tally.flaky, 0);
    // JUnit's own skips, those after a set-up that failed, and different tests with one name.
    let of_junit = "<skipped message='no' type='TestAbortedException'>at</skipped>";
    for tests in [
        [("a", of_junit), ("a", "")],
        [("b", red), ("b", skip)],
        [("c", skip), ("c", skip)],
        [("d", ""), ("d", "")],
        [("e", red), ("e", "")],
    ] {
        let report = of(surefire, &tests);
        assert_eq!((report.tally.tests, report.tally.flaky), (2, 0), "{tests:?}");
    }
}

/// What Gradle writes with `reports.junitXml.mergeReruns = true`.
#[test]
fn attempts_that_gradle_merges_and_still_counts_are_no_hidden_failures() {
    let of = |sums: &str, first: &str| {
        read(format!(
            "<testsuite name='acme.T' {sums} skipped='0' errors='0'>\
             <testcase name='a()' classname='acme.T' time='1'>{first}</testcase>\
             <testcase name='b()' classname='acme.T' time='1'/></testsuite>"
        ))
    };
    let flaky = "<flakyFailure message='boom' type='E'><stackTrace>at</stackTrace></flakyFailure>";
    let passed = of("tests='3' failures='1'", flaky);
    assert_eq!((passed.tally.failures, passed.tally.tests, passed.tally.flaky), (0, 2, 1));
    assert!(passed.summary.findings.is_empty(), "{:?}", passed.summary.findings);
    let failed = "<failure message='boom'/><rerunFailure message='boom'/>";
    assert_eq!(of("tests='3' failures='2'", failed).tally.failures, 1);
    // A test that isn't there, and a failure beyond the attempts.
    assert_eq!(of("tests='4' failures='2'", flaky).tally.failures, 2);
    assert_eq!(of("tests='3' failures='2'", flaky).tally.failures, 2);
    assert_eq!(of("tests='2' failures='1'", flaky).tally.failures, 1);
    // Also below a root with sums of its own.
    let suite = format!(
        "<testsuites tests='3' failures='1'><testsuite tests='2' failures='1'><testcase name='a' \
         time='1'>{flaky}</testcase></testsuite><testsuite tests='1' failures='0'><testcase name='b' \
         time='1'/></testsuite></testsuites>"
    );
    assert_eq!(read(suite).tally.failures, 0);
}

/// What Surefire before 3.5.3 writes of `rerunFailingTestsCount`.
#[test]
fn attempts_that_surefire_spread_over_the_reports_of_nested_classes_are_of_one_test() {
    use TestResult::{Error, Failure, Success};
    let of = |suite: &str, tests: &[(&str, &str)]| {
        let case = |(name, inner): &(&str, &str)| {
            format!("<testcase name='{name}' classname='demo.T' time='1'>{inner}</testcase>")
        };
        let cases: String = tests.iter().map(case).collect();
        read(format!(
            "<testsuite xsi:noNamespaceSchemaLocation='surefire-test-report-3.0.xsd' name='{suite}'>{cases}\
             </testsuite>"
        ))
    };
    let joined = |mut reports: [TestReport; 3]| {
        join_spread_attempts(reports.iter_mut());
        let tests: u64 = reports.iter().map(|report| report.tally.tests).sum();
        let cases = reports.iter().flat_map(attempts).collect::<Vec<_>>();
        assert_eq!(tests, cases.len() as u64);
        (cases, reports)
    };
    let (red, broken) = ("<failure message='first'/>", "<error message='m'/>");
    let more = "<error message='m'/><rerunError message='m'/>";
    // The first run, then those of what had failed.
    let (cases, reports) = joined([
        of("demo.T$Z", &[("flaky", red), ("fails", broken), ("passes", ""), ("late", red)]),
        of("demo.T$A", &[("fails", more), ("late", "<flakyFailure/>")]),
        of("demo.T", &[("flaky", "")]),
    ]);
    assert_eq!(
        cases,
        [(Success, 1, false), (Error, 3, false), (Success, 3, true), (Success, 2, true)]
    );
    let flaky = &reports[2].cases[0];
    assert_eq!((&*flaky.suite, flaky.time, flaky.details.len()), ("demo.T", Some(2.0), 1));
    assert_eq!(flaky.details[0].kind, TestDetailKind::Rerun);
    assert_eq!(reports[2].tally.flaky, 1);
    // Other versions put no test there, a pass isn't run again, and two tests of one report have one name.
    let two = [(Failure, 1, false), (Success, 1, false)];
    let none = || of("demo.T", &[]);
    for (tests, expected) in [
        ([of("demo.T", &[("a", red)]), of("demo.T", &[("a", "")]), none()], vec![two[0], two[1]]),
        (
            [of("demo.T$A", &[("a", red), ("a", "")]), of("demo.T", &[("a", "")]), none()],
            vec![two[0], two[1], two[1]],
        ),
        (
            [
                of("demo.T$A", &[("a", red)]),
                of("demo.T$B", &[("a", "")]),
                of("demo.T", &[("a", "")]),
            ],
            vec![two[0], two[1], two[1]],
        ),
        (
            [of("demo.T$A", &[("a", red)]), of("demo.T$B", &[("a", "<skipped/>")]), none()],
            vec![(Failure, 2, false)],
        ),
    ] {
        assert_eq!(joined(tests).0, expected);
    }
}

#[test]
fn reports_of_a_class_and_of_those_nested_in_it_are_read_together() {
    let paths = ["a/TEST-T$A.xml", "a/TEST-U.xml", "b/TEST-T.xml", "a/TEST-T.xml", "a/T$A.xml"];
    let groups = of_one_class(paths.into_iter(), |path| path);
    assert_eq!(groups, [vec![paths[0], paths[3]], vec![paths[1]], vec![paths[2]], vec![paths[4]]]);
    let many: Vec<_> = (0..100).map(|n| format!("TEST-T${n}.xml")).collect();
    assert_eq!(of_one_class(many.iter(), |path| path.as_str()).len(), 2);
}
