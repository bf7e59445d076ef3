//! What became of a test, and of a suite outside its tests.

use crcr_domain::ci_data::test_run::{TestResult, TestRowKind};

use super::super::{JunitGrade, JunitRule, TestReport};
use super::{only, read, results, rules, suite};

#[test]
fn every_field_of_a_test_is_read() {
    let report = read(
        r#"<?xml version="1.0" encoding="utf-8"?>
        <testsuites><testsuite name="pytest" tests="4" timestamp="2026-11-23T05:00:00.123">
          <testcase classname="test.test_ops.TestOps" name="test_add" file="test/test_ops.py" time="0.01"/>
          <testcase classname="c" name="test_mul"><failure message="assert 1 &lt; 0" type="E">Traceback &amp; more</failure></testcase>
          <testcase name="test_div"><error>no &#60;<![CDATA[device>]]> &amp; x</error></testcase>
          <testcase name="test_npu"><skipped type="pytest.skip" message="no NPU"/></testcase>
        </testsuite></testsuites>"#,
    );
    let [add, mul, div, npu] = &report.cases[..] else { panic!("{:?}", report.cases) };
    assert_eq!((&*add.suite, &*add.classname), ("pytest", "test.test_ops.TestOps"));
    assert_eq!((add.file.as_deref(), add.time), (Some("test/test_ops.py"), Some(0.01)));
    assert_eq!((add.result, add.message()), (TestResult::Success, None));
    assert_eq!((mul.result, mul.message()), (TestResult::Failure, Some("assert 1 < 0")));
    let detail = &mul.details[0];
    assert_eq!(detail.type_name.as_deref(), Some("E"));
    assert_eq!(detail.text.as_deref(), Some("Traceback & more"));
    assert_eq!((div.result, div.message()), (TestResult::Error, Some("no <device> & x")));
    assert_eq!((npu.result, npu.message()), (TestResult::Skipped, Some("no NPU")));
    assert_eq!(report.tally.tests, 4);
    assert!(!report.summary.is_truncated);
    assert_eq!(report.summary.earliest.unwrap().0.to_string(), "2026-11-23T05:00:00.123Z");
}

#[test]
fn failure_outranks_error_and_error_outranks_skipped_in_any_order() {
    let report = read(suite(
        "<testcase name='a'><skipped/><error/><failure/><error/></testcase>\
         <testcase name='b'><error/><skipped/></testcase>\
         <testcase name='c'><skipped/></testcase>",
    ));
    use TestResult::{Error, Failure, Skipped};
    assert_eq!(results(&report), [("a", Failure), ("b", Error), ("c", Skipped)]);
}

#[test]
fn traceback_without_a_message_is_told_by_its_exception() {
    let message = |text: &str| {
        let report =
            read(suite(&format!("<testcase name='a' time='1'><error>{text}</error></testcase>")));
        let case = &report.cases[0];
        (case.message().unwrap().to_owned(), case.message_details().is_some())
    };
    let frames =
        "Traceback (most recent call last):\n  File \"a.py\", line 5, in a\n    b()\n    ~^^";
    for (text, cause) in [
        (format!("x._StringException: {frames}\nRuntimeError: boom\n\n"), "RuntimeError: boom"),
        (
            format!("{frames}\nE: 1\n\nDuring it, another:\n\n{frames}\nF: 2 != 3\n- 2\n+ 3"),
            "F: 2 != 3\n- 2\n+ 3",
        ),
        (
            "---\n  name: AssertionError\n  at: a.js:1\n...".to_owned(),
            "name: AssertionError\n  at: a.js:1",
        ),
    ] {
        assert_eq!(message(&text), (cause.to_owned(), true), "{text}");
    }
    // Where the end is missing, the text is all there is.
    assert_eq!(message(frames), (frames.to_owned(), false));
}

#[test]
fn failure_that_says_nothing_is_told_by_what_the_test_printed() {
    let message = |inside: &str| {
        let report = read(format!(
            "<testsuite name='s'><testcase name='t' time='0'>{inside}</testcase></testsuite>"
        ));
        report.cases[0].message().map(str::to_owned)
    };
    let output = "<system-out>\n<![CDATA[a.cc:3: x &lt; 1]]>\n</system-out>";
    for failure in [
        "<failure message=''/>",
        "<failure message='Failed'/>",
        "<failure/>",
        "<error type='crash'> </error>",
    ] {
        let told = message(&format!("{failure}<system-out/>{output}<system-err>late</system-err>"));
        assert_eq!(told.as_deref(), Some("a.cc:3: x &lt; 1"), "{failure}");
    }
    for said in ["<failure message='no'/>", "<failure>no</failure>"] {
        assert_eq!(message(&format!("{said}{output}")).as_deref(), Some("no"));
    }
    assert_eq!(message(&format!("<skipped/>{output}")), None);
    assert_eq!(message(output), None, "it passed");
}

#[test]
fn failures_that_are_declared_and_have_no_test_count_and_are_a_finding() {
    for (xml, failures, errors) in [
        (
            "<testsuite name='s' failures='3'><testcase name='a' time='1'><failure/></testcase></testsuite>",
            3,
            0,
        ),
        ("<testsuite name='s' errors='2'><testcase name='a' time='1'/></testsuite>", 0, 2),
        (
            "<testsuites failures='1'><testsuite name='s'><testcase name='a' time='1'/></testsuite></testsuites>",
            1,
            0,
        ),
        // Once, where it is missing.
        (
            "<testsuites failures='2'><testsuite name='o' failures='2'><testsuite name='s' failures='2'>\
          <testcase name='a' time='1'><failure/></testcase></testsuite></testsuite></testsuites>",
            2,
            0,
        ),
        // A test that passed at last isn't among the declared failures.
        (
            "<testsuite name='s' failures='1'><testcase name='a' time='1'><flakyFailure/></testcase></testsuite>",
            1,
            0,
        ),
        ("<testsuite name='s' failures='1'><testcase name='a' time='1'/>", 1, 0),
        // A report in a report.
        (
            "<testsuites failures='1'><testsuites failures='0'><testsuite name='s'><testcase name='a' time='1'/>\
          </testsuite></testsuites></testsuites>",
            1,
            0,
        ),
        ("<testsuite failures='18446744073709551615' errors='9'/>", 10_000_000, 0),
    ] {
        let report = read(xml);
        let found = (report.tally.failures, report.tally.errors);
        assert!(
            found == (failures, errors) || failures > 9 && found.0 >= failures,
            "{xml}: {found:?}"
        );
        assert!(rules(&report).iter().any(|(rule, _)| *rule == JunitRule::FailureCount), "{xml}");
        assert_eq!(report.grade(), JunitGrade::Invalid, "{xml}");
        let of_suite = report.cases.iter().filter(|case| case.kind == TestRowKind::Suite);
        assert_eq!(of_suite.count(), 1, "{xml}: which no quarantine covers");
    }
}

#[test]
fn tool_that_declares_failed_assertions_has_no_failures_without_a_test() {
    let report = read(
        "<testsuite name='s' failures='3' tests='5'><testcase name='a' time='1'><failure/><failure/>\
         </testcase><testcase name='b' time='1'><failure/></testcase></testsuite>",
    );
    assert_eq!((report.tally.tests, report.tally.failures), (2, 2));
}

#[test]
fn failure_of_a_suite_beside_a_failed_test_is_a_row_of_its_own() {
    let report = read(suite("<testcase name='a'><failure/></testcase><error message='teardown'/>"));
    assert_eq!((report.tally.failures, report.tally.errors), (1, 1));
    assert_eq!(report.cases[1].kind, TestRowKind::Suite);
}

#[test]
fn failure_that_catch2_allows_is_a_skip() {
    use TestResult::{Failure, Skipped};
    let report = read(suite(
        "<testcase name='a' status='run'><skipped message='TEST_CASE tagged with !mayfail'/><failure type='FAIL'/>\
         <error message='thrown'/></testcase><testcase name='b'><failure/></testcase>",
    ));
    assert_eq!(results(&report), [("a", Skipped), ("b", Failure)]);
}

#[test]
fn test_that_ctest_could_not_run_is_a_skip_and_a_finding_that_no_quarantine_covers() {
    let of = |status: &str, why: &str| {
        read(suite(&format!(
            "<testcase name='a' status='{status}'><skipped message='{why}'/></testcase>"
        )))
    };
    for why in ["Unable to find executable", "Required Files Missing", "Fixture dependency failed"]
    {
        let report = of("notrun", why);
        assert_eq!(results(&report), [("a", TestResult::Skipped)]);
        assert_eq!(rules(&report), [(JunitRule::NotRun, 1)], "{why}");
        assert_eq!(report.uncounted_failure(), Some("a test couldn't run"));
    }
    for (status, why) in
        [("notrun", "SKIP_RETURN_CODE=125"), ("disabled", "Disabled"), ("run", "no GPU")]
    {
        assert_eq!(rules(&of(status, why)), [], "{why}");
    }
}

#[test]
fn test_that_googletest_did_not_begin_is_a_skip_and_a_finding_that_no_quarantine_covers() {
    let of = |timestamp: &str, why: &str| {
        read(suite(&format!(
            "<testcase name='a' file='b.cc' line='5' timestamp='{timestamp}'><skipped message='{why}'/></testcase>"
        )))
    };
    for epoch in ["1970-01-01T09:00:00.000", "1969-12-31T19:00:00.000"] {
        let report = of(epoch, "b.cc:5&#x0A;");
        assert_eq!(results(&report), [("a", TestResult::Skipped)]);
        assert_eq!(rules(&report), [(JunitRule::NotRun, 1)], "{epoch}");
        assert!(report.uncounted_failure().is_some());
        assert_eq!(rules(&of(epoch, "b.cc:5&#x0A;no GPU")), []);
    }
    assert_eq!(rules(&of("2026-11-27T07:46:42.669", "b.cc:5&#x0A;")), [], "`GTEST_SKIP()`");
}

#[test]
fn test_that_an_interrupted_pytest_leaves_without_a_name_is_unfinished() {
    use TestResult::{Success, Unfinished};
    let of = |name: &str| {
        read(format!(
            "<testsuite name='{name}'><testcase classname='c' name='a' time='1'/><testcase time='0.000'/></testsuite>"
        ))
    };
    let report = of("pytest");
    assert_eq!(results(&report), [("a", Success), ("", Unfinished)]);
    assert_eq!((report.tally.successes, report.tally.unfinished), (1, 1));
    assert_eq!(report.grade(), JunitGrade::Invalid);
    assert_eq!(results(&of("s")), [("a", Success), ("", Success)]);
}

#[test]
fn failure_that_only_a_sum_in_the_comments_of_node_tells_counts_and_is_a_finding() {
    let of = |inner: &str, comments: &str| {
        read(format!(
            "<testsuites><testsuite name='parent'><testcase name='a' classname='test' time='1'>{inner}</testcase>\
             </testsuite>{comments}</testsuites>"
        ))
    };
    let left_out = of("", "<!-- pass 1 -->\n<!-- fail 1 --><!-- cancelled 0 -->");
    assert_eq!(rules(&left_out), [(JunitRule::FailureCount, 1)]);
    assert_eq!((left_out.tally.failures, left_out.grade()), (1, JunitGrade::Invalid));
    assert_eq!(of("", "<!-- fail 0 --><!-- cancelled 2 -->").tally.failures, 2);
    // The test around one that failed is the second.
    for sums in ["<!-- fail 1 -->", "<!-- fail 2 -->", "<!-- fail 1 --><!-- cancelled 1 -->"] {
        let report = of("<failure/>", sums);
        assert_eq!((rules(&report), report.tally.failures), (vec![], 1), "{sums}");
    }
    assert_eq!(of("<failure/>", "<!-- fail 3 -->").tally.failures, 2);
    let long = format!("<!--{}fail 1 -->", " ".repeat(100));
    assert_eq!(rules(&of("", &long)), []);
    let of_another_tool =
        "<testsuites name='x'><testcase name='a' time='1'/><!-- fail 1 --></testsuites>";
    assert_eq!(rules(&read(of_another_tool)), []);
}

#[test]
fn failed_test_without_a_class_is_a_test_as_when_it_passes() {
    let report = read(suite("<testcase name='top' classname=''><failure/></testcase>"));
    assert_eq!(report.cases[0].kind, TestRowKind::Test);
}

#[test]
fn failed_test_that_is_named_like_its_suite_is_a_test_unless_it_is_a_file() {
    let kind = |name: &str, tests: u32, more: &str| {
        let report = read(format!(
            "<testsuite name='{name}' tests='{tests}'><testcase name='{name}' classname='{name}' time='1'>\
             <failure/></testcase>{more}</testsuite>"
        ));
        report.cases[0].kind
    };
    let more = "<testcase name='b' classname='a' time='1'/>";
    assert_eq!(kind("Regex", 2, more), TestRowKind::Test);
    assert_eq!(kind("Regex", 1, ""), TestRowKind::Test);
    assert_eq!(kind("a/b.test.mjs", 2, more), TestRowKind::Test);
    assert_eq!(kind("a/b.test.mjs", 1, ""), TestRowKind::Suite, "Vitest couldn't load it");
}

#[test]
fn first_failure_of_a_test_is_the_one_that_is_shown() {
    let case = only(suite(
        "<testcase name='a'><failure message='cause'>at 1</failure><failure message='teardown'/></testcase>",
    ));
    assert_eq!((case.message(), case.message_details()), (Some("cause"), Some("at 1")));
}

#[test]
fn tests_in_elements_that_no_tool_of_ours_writes_are_read() {
    let report = read(
        "<testsuites><group><testsuite name='s'><tests><testcase name='a' time='1'><failure/></testcase>\
         </tests></testsuite></group></testsuites>",
    );
    assert_eq!(report.tally.failures, 1);
}

#[test]
fn tests_and_suites_in_a_test_are_read_and_the_test_around_them_stays() {
    use TestResult::{Failure, Success};
    let inner = "<testcase name='inner' time='1'><failure message='m'/></testcase>";
    for nested in [
        inner.to_owned(),
        format!("<testsuite name='t'><properties/>{inner}</testsuite>"),
        format!("<steps>{inner}</steps>"),
    ] {
        let report = read(format!(
            "<testsuite name='s'><testcase name='outer' time='1'>{nested}</testcase>\
             <testcase name='next' time='1'/></testsuite>"
        ));
        let expected = [("inner", Failure), ("outer", Success), ("next", Success)];
        assert_eq!(results(&report), expected, "{nested}");
        assert!(report.cases.iter().all(|case| case.kind == TestRowKind::Test), "{nested}");
    }
    let broken = read(suite(
        "<testcase name='outer'><testsuite name='t'><testcase name='inner'/></testsuite>\
         <failure/></testcase>",
    ));
    assert_eq!(results(&broken), [("inner", Success), ("outer", Failure)]);
    let cut = read(
        "<testsuite name='s'><testcase name='o' time='1'><testsuite name='t'><testcase name='i'",
    );
    assert_eq!(results(&cut), [("o", TestResult::Unfinished)]);
}

#[test]
fn capitals_of_elements_do_not_matter_and_an_unknown_result_is_a_finding() {
    use TestResult::{Failure, Skipped, Success};
    let report = read(suite(
        "<testcase name='a'><Failure message='m'/></testcase><testcase name='b'><FAILURE/></testcase>\
         <testcase name='c'><Skipped/></testcase><testcase name='d'><failed/></testcase>\
         <testcase name='e'><trace-id/></testcase>",
    ));
    let expected = [("a", Failure), ("b", Failure), ("c", Skipped), ("d", Success), ("e", Success)];
    assert_eq!(results(&report), expected);
    assert_eq!(report.cases[0].message(), Some("m"));
    assert_eq!(rules(&report), [(JunitRule::UnknownResult, 1)]);
    assert_eq!(report.grade(), JunitGrade::Invalid, "its result may be missing");
    let report = read(
        "<TestSuites><TestSuite name='s'><TestCase name='a' time='1'/></TestSuite></TestSuites>",
    );
    assert_eq!(results(&report), [("a", Success)]);
}

#[test]
fn capitals_of_attributes_do_not_matter() {
    let case = only(
        "<TestSuite Name='s' Failures='1'><TestCase Name='a' className='C' Time='1' Result='Failed'/></TestSuite>",
    );
    assert_eq!((case.result, case.full_name().as_str()), (TestResult::Failure, "C.a"));
    assert_eq!((&*case.suite, case.time), ("s", Some(1.0)));
}

#[test]
fn tests_that_did_not_run_are_skipped() {
    for status in [
        "status='notrun'",
        "status='disabled'",
        "result='suppressed'",
        "status='notrun' result='suppressed'",
    ] {
        let case = only(suite(&format!("<testcase name='a' {status}/>")));
        assert_eq!(case.result, TestResult::Skipped, "{status}");
    }
    let disabled = only(suite("<testcase name='a'><ignored/></testcase>"));
    assert_eq!(disabled.result, TestResult::Skipped, "as TestNG writes it");
    for status in ["status='run'", "status='run' result='completed'", "status='passed'"] {
        let case = only(suite(&format!("<testcase name='a' {status}/>")));
        assert_eq!(case.result, TestResult::Success, "{status}");
    }
}

#[test]
fn failed_status_without_an_element_is_a_failure() {
    let report = read(suite("<testcase name='a' status='failed'/>"));
    assert_eq!(results(&report), [("a", TestResult::Failure)]);
    assert_eq!(rules(&report), [(JunitRule::StatusOnly, 1)]);
}

#[test]
fn phpunit_warning_is_a_success_and_noted() {
    let report = read(suite("<testcase name='a'><warning type='W'>w</warning></testcase>"));
    assert_eq!(results(&report), [("a", TestResult::Success)]);
    assert_eq!(rules(&report), [(JunitRule::Warning, 1)]);
}

#[test]
fn failure_outside_the_tests_is_one_row_of_the_suite() {
    let crash = "ok 1\npanic: runtime error\n\ngoroutine 1 [running]:\nmain.main()\n";
    for (xml, result, message) in [
        (
            "<testcase name='' classname='C'><error message='setup'/></testcase>",
            TestResult::Error,
            "setup",
        ),
        (
            "<testcase name='t.py' classname=''><error message='collection failure'/></testcase>",
            TestResult::Error,
            "collection failure",
        ),
        (
            "<testcase name='internal' classname='pytest'><error message='internal error'/></testcase>",
            TestResult::Error,
            "internal error",
        ),
        ("<testcase name='ok'/><failure message='teardown'/>", TestResult::Failure, "teardown"),
        (&format!("<system-out>{crash}</system-out>"), TestResult::Error, "panic: runtime error"),
        (
            &format!("<system-err><![CDATA[{crash}]]></system-err>"),
            TestResult::Error,
            "panic: runtime error",
        ),
    ] {
        let report = read(suite(xml));
        let rows: Vec<_> =
            report.cases.iter().filter(|case| case.kind == TestRowKind::Suite).collect();
        assert_eq!(rows.len(), 1, "{xml}: {:?}", report.cases);
        assert_eq!((&*rows[0].suite, rows[0].result), ("s", result), "{xml}");
        assert_eq!(rows[0].message(), Some(message), "{xml}");
        assert_eq!(report.tally.errors + report.tally.failures, 1, "{xml}");
    }
}

#[test]
fn suite_that_declares_failures_and_has_none_is_a_failure() {
    let report = read(
        "<testsuites><testsuite name='a' errors='1'><testsuite name='b' errors='1'>\
                       <testcase name='x' time='1'/></testsuite></testsuite></testsuites>",
    );
    assert_eq!(report.cases[1].kind, TestRowKind::Suite);
    assert_eq!((report.tally.tests, report.tally.errors), (2, 1), "once, in the inner suite");
}

#[test]
fn panic_that_a_passing_suite_prints_is_no_failure() {
    let report = read(suite("<testcase name='a'/><system-out>recovered: panic: x\n</system-out>"));
    assert_eq!(report.tally.tests, 1);
    let report = read(suite("<testcase name='a'/><system-out>panic: not a crash\n</system-out>"));
    assert_eq!(report.tally.tests, 1);
}

#[test]
fn crash_that_dotnets_junit_logger_only_prints_is_a_failure_beside_a_failed_test() {
    let report = |error: &str| {
        read(suite(&format!(
            "<testcase name='a'><failure/></testcase><system-err>Warning - x\nError - {error}\n</system-err>"
        )))
    };
    for error in [
        "The active test run was aborted. Reason: Test host process crashed",
        "[xUnit.net 00:00:01.02]     [Test Class Cleanup Failure (A.T)]: boom",
    ] {
        assert_eq!(results(&report(error)), [("a", TestResult::Failure), ("", TestResult::Error)]);
    }
    assert_eq!(report("[xUnit.net 00:00:01.02]     A.T.a [FAIL]").tally.tests, 1);
}

#[test]
fn class_that_junit_or_sbt_cannot_run_is_a_failed_suite() {
    for name in [
        "initializationError",
        "executionError",
        "classMethod",
        "(It is not a test it is a sbt.testing.SuiteSelector)",
    ] {
        let of = |inner: &str| {
            only(suite(&format!("<testcase classname='acme.T' name='{name}'>{inner}</testcase>")))
        };
        assert_eq!(of("<failure message='x'/>").kind, TestRowKind::Suite, "{name}");
        assert_eq!(of("").kind, TestRowKind::Test, "{name}");
    }
}

#[test]
fn package_that_go_junit_report_calls_a_test_is_a_failed_suite() {
    let kind = |name: &str, inner: &str| {
        only(suite(&format!("<testcase classname='acme/b' name='{name}'>{inner}</testcase>"))).kind
    };
    let (build, run) = ("<error message='Build error'/>", "<error message='Runtime error'/>");
    for name in ["[build failed]", "[setup failed]"] {
        assert_eq!(kind(name, build), TestRowKind::Suite, "{name}");
    }
    assert_eq!(kind("Failure", run), TestRowKind::Suite);
    assert_eq!(kind("TestA", run), TestRowKind::Test);
    assert_eq!(kind("Failure", "<failure message='Failed'/>"), TestRowKind::Test);
}

#[test]
fn process_of_gradles_tests_that_failed_is_one_suite_in_every_run() {
    let of = |number: u32, name: &str| {
        only(format!(
            "<testsuite name='Gradle Test Executor {number}'><testcase time='1' name='{name}' \
             classname='Gradle Test Executor {number}'><failure message='x'/></testcase></testsuite>"
        ))
    };
    for name in ["failed to execute tests", "executionError"] {
        let case = of(9, name);
        assert_eq!((case.kind, &*case.suite), (TestRowKind::Suite, "Gradle Test Executor"));
        assert_eq!(case, of(10, name), "{name}");
    }
}

#[test]
fn status_alone_decides_where_a_tool_writes_no_element() {
    let of = |status: &str| only(suite(&format!("<testcase name='a' status='{status}'/>"))).result;
    for status in ["panicked", "interrupted", "broken", "timed_out", "hook_error", "cleanup_error"]
    {
        assert_eq!(of(status), TestResult::Error, "{status}");
    }
    assert_eq!((of("pending"), of("untested")), (TestResult::Skipped, TestResult::Skipped));
}

#[test]
fn failure_in_a_part_of_a_test_is_its_failure() {
    for inner in [
        "<step name='s'><failure message='m'/></step>",
        "<failures><failure message='m'/></failures>",
        "<steps><step><error message='m'/></step></steps>",
    ] {
        let case = only(suite(&format!("<testcase name='a'>{inner}</testcase>")));
        assert!(case.result.is_failed(), "{inner}");
        assert_eq!(case.message(), Some("m"), "{inner}");
    }
}

#[test]
fn sums_and_results_under_other_names_count() {
    let case = "<testcase name='a' time='1'/>";
    for attributes in
        ["failed='1'", "failure='1'", "failures='1.0'", "status='failed'", "result='Error'"]
    {
        for xml in [
            format!("<testsuites><testsuite name='s' {attributes}>{case}</testsuite></testsuites>"),
            format!("<testsuites {attributes}><testsuite name='s'>{case}</testsuite></testsuites>"),
        ] {
            let tally = read(&*xml).tally;
            assert_eq!(tally.failures + tally.errors, 1, "{xml}");
        }
    }
    for sum in ["errored", "timeouts", "crashed", "aborted"] {
        let of = |declared: &str, inner: &str| {
            let xml = format!(
                "<testsuites {declared}><testsuite {declared}><testcase name='a' time='1'>{inner}\
                 </testcase></testsuite></testsuites>"
            );
            let tally = read(xml).tally;
            tally.failures + tally.errors
        };
        assert_eq!(of(&format!("{sum}='1'"), ""), 1, "{sum}");
        assert_eq!(of(&format!("{sum}='0'"), ""), 0, "{sum}");
        let beside = u64::from(sum == "errored");
        let declared = format!("failures='1' {sum}='1'");
        assert_eq!(of(&declared, "<failure/>"), 1 + beside, "{sum}: may be the failure");
        assert_eq!(of(&format!("errors='1' {sum}='1'"), "<error/>"), 1, "{sum}");
    }
    // The errors are among them.
    let both = "<testcase name='b'><failure/></testcase><testcase name='c'><error/></testcase>";
    for order in ["failed='2' errors='1'", "errors='1' failed='2'"] {
        let tally = read(format!("<testsuite name='s' {order}>{both}</testsuite>")).tally;
        assert_eq!((tally.failures, tally.errors), (1, 1), "{order}");
    }
}

#[test]
fn status_that_begins_with_a_failure_or_is_another_tools_word_is_one() {
    use TestResult::{Error, Failure};
    for (attribute, result) in [
        ("status='failed: assertion'", Failure),
        ("status='Failed '", Failure),
        ("status='KO'", Failure),
        ("status='not ok'", Failure),
        ("result='xpass'", Failure),
        ("success='false'", Failure),
        ("status='errored'", Error),
        ("status='killed'", Error),
    ] {
        let case = only(suite(&format!("<testcase name='a' {attribute}/>")));
        assert_eq!(case.result, result, "{attribute}");
    }
    for (attributes, result) in [
        ("status='completed' result='failed'", Failure),
        ("status='passed' outcome='timed out'", Error),
        ("status='InProgress'", TestResult::Unfinished),
    ] {
        let case = only(suite(&format!("<testcase name='a' {attributes}/>")));
        assert_eq!(case.result, result, "{attributes}");
    }
    let passed = only(suite("<testcase name='a' success='true' status='Success'/>"));
    assert_eq!(passed.result, TestResult::Success);
}

/// Of Qt 6, errors are errors, and a test that is skipped says so.
#[test]
fn message_of_qt_test_is_no_error() {
    let of = |version: &str| {
        read(format!(
            "<testsuite errors='2' failures='0' tests='2' name='All'><properties>\
             <property value='{version}' name='QTestVersion'/></properties>\
             <testcase result='pass' name='adds'><!-- type='qwarn' --></testcase>\
             <testcase name='skips'><!-- type='skip' --></testcase></testsuite>"
        ))
        .tally
    };
    let (qt5, qt6) = (of("5.15.8"), of("6.8.1"));
    assert_eq!((qt5.successes, qt5.skipped, qt5.errors), (1, 1, 0));
    assert_eq!((qt6.successes, qt6.errors), (2, 2));
}

/// ESLint's formatter writes both alike, and fails for errors only.
#[test]
fn warning_of_eslint_is_no_failure() {
    let report = read(
        "<testsuites><testsuite package='org.eslint' time='0' tests='2' errors='2' name='/w/a.js'>\
         <testcase time='0' name='org.eslint.no-console' classname='/w/a'><failure message='Unexpected'>\
         <![CDATA[line 1, col 1, Warning - Unexpected. (no-console)]]></failure></testcase>\
         <testcase time='0' name='org.eslint.no-undef' classname='/w/a'><failure message='x'>\
         <![CDATA[line 2, col 1, Error - x, Warning - y. (no-undef)]]></failure></testcase>\
         </testsuite></testsuites>",
    );
    let (warned, failed) = (TestResult::Success, TestResult::Failure);
    assert_eq!(
        results(&report),
        [("org.eslint.no-console", warned), ("org.eslint.no-undef", failed)]
    );
    assert_eq!(rules(&report), [(JunitRule::Warning, 1)]);
    assert!(report.uncounted_failure().is_some(), "with `--max-warnings`, it may be why");
}

#[test]
fn warning_may_be_why_the_job_failed() {
    let report = read(suite("<testcase name='a'><warning>w</warning></testcase>"));
    assert!(report.uncounted_failure().is_some(), "PHPUnit's `--fail-on-warning`");
}

#[test]
fn warnings_of_other_linters_are_no_failures_and_their_errors_are() {
    let tslint = |severity: &str| {
        format!(
            "<testsuites package='tslint'><testsuite name='a.ts'><testcase name='no-console' \
             classname='a.ts'><failure type='{severity}'>x Line 1, Column 1</failure></testcase></testsuite>\
             </testsuites>"
        )
    };
    let swiftlint = |severity: &str| {
        let (warnings, errors) = if severity == "error" { (0, 1) } else { (1, 0) };
        format!(
            "<testsuites failures='{warnings}' errors='{errors}'><testsuite failures='{warnings}' \
             errors='{errors}'><testcase classname='Formatting Test' name='/w/A.swift'>\
             <failure message='too long'>{severity}:\nLine:3 </failure></testcase></testsuite></testsuites>"
        )
    };
    let oxlint = |severity: &str| {
        let (element, warnings, errors) =
            if severity == "error" { ("error", 0, 1) } else { ("failure", 1, 0) };
        format!(
            "<testsuites name='Oxlint' tests='1' failures='{warnings}' errors='{errors}'><testsuite \
             name='a.js' tests='1' disabled='0' errors='{errors}' failures='{warnings}'><testcase \
             name='no-debugger'><{element} message='x'>line 1, column 1, x</{element}></testcase>\
             </testsuite></testsuites>"
        )
    };
    for report in [&tslint as &dyn Fn(&str) -> String, &swiftlint, &oxlint] {
        let warned = read(report("warning"));
        assert_eq!(warned.tally.failures + warned.tally.errors, 0, "{}", report("warning"));
        assert!(warned.uncounted_failure().is_some());
        let failed = read(report("error")).tally;
        assert_eq!(failed.failures + failed.errors, 1, "{}", report("error"));
    }
}

#[test]
fn errors_of_biome_count_once_and_its_warnings_are_no_failures_if_it_found_no_error() {
    let of = |root: &str, package: &str| {
        let suite = format!(
            "<testsuite name='a.ts' tests='1' disabled='0' errors='0' failures='1' package='{package}'><testcase \
             name='org.biome.lint.a' line='1'><failure message='x'>line 1, col 1, x</failure></testcase></testsuite>"
        );
        read(format!("<testsuites {root}>{suite}{suite}</testsuites>"))
    };
    let counts = |report: &TestReport| (report.tally.failures, report.tally.errors);
    let mixed = of("name='Biome' tests='2' failures='2' errors='1'", "org.biome");
    assert_eq!((counts(&mixed), mixed.summary.findings.len()), ((2, 0), 2), "no durations");
    let limited = of("name='Biome' tests='2' failures='2' errors='9'", "org.biome");
    assert_eq!(counts(&limited), (9, 0), "it writes only so many");
    let warned = of("name='Biome' tests='2' failures='2' errors='0'", "org.biome");
    assert_eq!(counts(&warned), (0, 0));
    assert!(warned.uncounted_failure().is_some(), "`--error-on-warnings` may be why");
    // Other tools' tests of something called so, and a report that was merged.
    assert_eq!(counts(&of("name='Biome' failures='2' errors='0'", "acme")), (2, 0));
    assert_eq!(counts(&of("failures='2' errors='0'", "org.biome")), (2, 0));
    let formatted =
        read("<testsuites name='Biome' tests='0' failures='0' errors='2'></testsuites>");
    assert_eq!(counts(&formatted), (0, 2));
}

#[test]
fn result_in_words_is_read_from_an_attribute_or_an_element_whatever_its_form() {
    use TestResult::{Error, Failure, Skipped, Success};
    for (word, result) in [
        // Python's own tests write it for a test that should have failed.
        ("UNEXPECTED_SUCCESS", Failure),
        ("unexpected", Failure),
        ("not passed", Failure),
        ("undefined", Failure),
        ("Timed out", Error),
        ("crash", Error),
        ("cancelled", Error),
        ("UNRESOLVED", Error),
        ("incomplete", Skipped),
        ("passed", Success),
    ] {
        for test in [
            format!("<testcase name='a' status='{word}'/>"),
            format!("<testcase name='a' outcome='{word}'/>"),
            format!(
                "<testcase name='a' status='run' result='completed'><outcome>{word}</outcome></testcase>"
            ),
            format!("<testcase name='a'><result>{word}</result></testcase>"),
        ] {
            assert_eq!(only(suite(&test)).result, result, "{test}");
        }
    }
    assert_eq!(only(suite("<testcase name='a' passed='False'/>")).result, Failure);
    let cut = read("<testsuite name='s'><testcase name='a'><outcome>FAIL");
    assert_eq!(results(&cut), [("a", TestResult::Unfinished)]);
}

#[test]
fn two_failures_of_one_suite_outside_its_tests_are_both_counted() {
    // As busted writes the files that it can't load, and a `setup` and a `teardown` that fail.
    let report = read(
        "<testsuites errors='3' failures='0' tests='1'><error>./b_spec.lua:2: unexpected symbol</error>\
         <testsuite name='Run 1 of 1' errors='2' failures='0' tests='1'><error>./a_spec.lua:2: setup</error>\
         <testcase classname='./a_spec.lua:3' name='o' time='0'/><error>./a_spec.lua:3: td</error>\
         </testsuite></testsuites>",
    );
    assert_eq!((report.tally.errors, report.tally.failures), (3, 0));
    assert_eq!((report.tally.tests, report.tally.successes), (4, 1));
    let rows = report.cases.iter().filter(|case| case.kind == TestRowKind::Suite);
    assert_eq!(rows.map(|case| case.details.len()).collect::<Vec<_>>(), [1, 2]);
    let repeated = read(suite("<testcase name='a'/><error>td</error><error>td</error>"));
    assert_eq!(repeated.tally.errors, 1, "it is told twice");
}

#[test]
fn declared_sum_is_read_with_its_separators_or_is_a_finding() {
    for (sum, failures) in [
        ("1,000", 1000),
        ("1,234,567", 1_234_567),
        ("1 000", 1000),
        ("1\u{a0}000", 1000),
        ("2.0", 2),
        ("2,0", 2),
        ("&#50;", 2),
        (" 3 ", 3),
        ("0", 0),
        ("", 0),
    ] {
        let report = read(
            suite("<testcase name='a'/>")
                .replace("name='s'", &format!("name='s' failures='{sum}'")),
        );
        assert_eq!(report.tally.failures, failures, "{sum}");
        assert!(!rules(&report).contains(&(JunitRule::BadSum, 1)), "{sum}");
    }
    for (sum, failures) in
        [("12 tests", 1), ("1e3", 1), ("&n;", 1), ("NaN", 0), ("-1", 0), ("undefined", 0)]
    {
        let report = read(
            suite("<testcase name='a'/>").replace("name='s'", &format!("name='s' errors='{sum}'")),
        );
        assert_eq!(report.tally.errors, failures, "{sum}");
        assert!(rules(&report).contains(&(JunitRule::BadSum, 1)), "{sum}");
        assert_eq!(report.grade(), JunitGrade::Invalid, "{sum}");
    }
}

#[test]
fn entity_that_may_stand_for_a_failure_makes_a_test_or_its_suite_red() {
    let start = "<!DOCTYPE t [<!ENTITY f \"<failure message='x'/>\"><!ENTITY t 'boom'>]>";
    let case = |inner: &str| {
        read(format!("{start}{}", suite(&format!("<testcase name='a'>{inner}</testcase>"))))
    };
    for inner in ["&f;", "<steps><step>&f;</step></steps>"] {
        let report = case(inner);
        assert_eq!((report.tally.errors, report.tally.successes), (1, 0), "{inner}");
        assert!(rules(&report).contains(&(JunitRule::UnknownEntity, 1)));
        assert!(!report.cases[0].message().unwrap().contains("<failure"), "it isn't expanded");
    }
    let failed = case("<failure>&t; &lt;</failure>");
    assert_eq!((failed.tally.failures, failed.tally.errors), (1, 0));
    assert_eq!(failed.cases[0].message(), Some("&t; <"));
    let of_suite = read(format!("{start}{}", suite("<testcase name='a'/>&f;")));
    assert_eq!((of_suite.tally.errors, of_suite.tally.successes), (1, 1));
    let of_root = read(format!("{start}<testsuites>&f;<testsuite/></testsuites>"));
    assert_eq!(of_root.tally.errors, 1);
    // Without a document type, no entity can be defined, and what is printed defines none.
    for green in ["<system-out>&f; R&D</system-out>", ""] {
        assert_eq!(case(green).tally.errors, 0, "{green}");
    }
    assert_eq!(read(suite("<testcase name='a'>R&D</testcase>")).tally.errors, 0);
}
