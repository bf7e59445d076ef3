use crcr_domain::ci_data::test_run::{
    CUT_MARK, MAX_TEXT_BYTES, TestCase, TestDetailKind, TestResult, TestRowKind,
};

use super::{EarlierAttempts, JunitError, JunitGrade, JunitRule, TestReport};

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

/// The results of tests with one name, as `(result, attempts, flaky)`.
fn attempts(report: &TestReport) -> Vec<(TestResult, u32, bool)> {
    report.cases.iter().map(|case| (case.result, case.attempts, case.flaky)).collect()
}

#[test]
fn repeated_name_in_a_suite_is_another_test_so_no_pass_or_skip_hides_its_failure() {
    use TestResult::{Error, Failure, Skipped, Success};
    for (later, result) in [("", Success), ("<skipped/>", Skipped), ("<error/>", Error)] {
        let report = read(suite(&format!(
            "<testcase name='a'><failure/></testcase><testcase name='a'>{later}</testcase>"
        )));
        assert_eq!(attempts(&report), [(Failure, 1, false), (result, 1, false)]);
    }
}

#[test]
fn tests_of_one_name_in_two_suites_are_two_tests_whatever_tells_them_apart() {
    use TestResult::{Failure, Success};
    let cases =
        ["<testcase name='a' time='1'><failure/></testcase>", "<testcase name='a' time='1'/>"];
    for (first, second, variants) in [
        ("package='a'", "package='b'", [Some("a"), Some("b")]),
        ("file='a.js'", "file='b.js'", [Some("a.js"), Some("b.js")]),
        // The next run has other machines.
        ("hostname='fv-az1234'", "hostname='fv-az5678'", [None, None]),
        ("hostname='runnervmf2e7y'", "hostname='runnervmwhb2q'", [None, None]),
        ("hostname='builder'", "hostname='worker'", [None, None]),
        ("id='0'", "id='1'", [None, None]),
        ("", "", [None, None]),
    ] {
        let report = read(format!(
            "<testsuites><testsuite name='s' {first}>{}</testsuite>\
             <testsuite name='s' {second}>{}</testsuite></testsuites>",
            cases[0], cases[1]
        ));
        assert_eq!(attempts(&report), [(Failure, 1, false), (Success, 1, false)], "{first}");
        let found: Vec<_> = report.cases.iter().map(|case| case.variant.as_deref()).collect();
        assert_eq!(found, variants, "{first}");
    }
}

#[test]
fn hostname_is_a_project_where_the_root_is_playwrights_and_no_machine_anywhere() {
    let variant = |root: &str, host: &str| {
        let report = read(format!(
            "<testsuites {root}><testsuite name='s' hostname='{host}'><testcase name='a' time='1'/>\
             </testsuite></testsuites>"
        ));
        report.cases[0].variant.clone()
    };
    assert_eq!(variant("id='' name=''", "chromium").as_deref(), Some("chromium"));
    assert_eq!(variant("id='' name=''", "runnervmf2e7y"), None);
    assert_eq!(variant("name=''", "builder"), None);
}

#[test]
fn browser_or_device_in_the_properties_of_a_suite_or_a_test_is_its_variant() {
    let report = read(
        "<testsuite name='s'><properties><property name='browserName' value='safari'/>\
         <property name='device' value='iPhone 17'/><property name='build' value='77'/></properties>\
         <testcase name='a' time='1'/>\
         <testcase name='b' time='1'><properties><property name='browser' value='edge'/></properties>\
         </testcase></testsuite>",
    );
    let found: Vec<_> = report.cases.iter().map(|case| case.variant.as_deref()).collect();
    assert_eq!(found, [Some("safari, iPhone 17"), Some("safari, iPhone 17, edge")]);
}

#[test]
fn test_is_the_same_one_after_an_update_of_karmas_browser() {
    let of_browser = |version: &str| {
        let class = format!("Chrome_Headless_{}_(Linux_0_0_0)", version.replace('.', "_"));
        read(format!(
            "<testsuite name='Chrome Headless {version} (Linux 0.0.0)' id='0' hostname='vm' tests='1' errors='0' \
             failures='1'><properties><property name='browser.fullName' value='Mozilla/5.0 …'/></properties>\
             <testcase name='sum adds' time='0' classname='{class}.sum'><failure/></testcase></testsuite>"
        ))
    };
    let before = of_browser("155.0.1.2").cases.remove(0);
    assert_eq!(before.full_name(), "sum.sum adds");
    assert_eq!(before.variant.as_deref(), Some("Chrome Headless Linux"));
    assert_eq!(before, of_browser("156.0.0.0").cases.remove(0));
}

#[test]
fn test_is_the_same_one_after_an_update_of_webdriverios_browser() {
    let of_browser = |browser: &str| {
        let report = read(format!(
            "<testsuite name='Login page'><properties><property name='specId' value='0'/>\
             <property name='capabilities' value='{browser}'/></properties>\
             <testcase classname='{browser}.Login_page' name='logs in' time='0'><failure/></testcase>\
             </testsuite>"
        ));
        report.cases.into_iter().next().unwrap()
    };
    let before = of_browser("chrome.119_0_6045_105.linux");
    assert_eq!(before.full_name(), "Login_page.logs in");
    assert_eq!(before.variant.as_deref(), Some("chrome linux"));
    assert_eq!(before, of_browser("chrome.120_0_1_2.linux"));
}

#[test]
fn testcafes_browsers_and_marks_are_no_part_of_names_and_a_failure_counts_once() {
    let of_run = |version: &str, time: &str| {
        read(format!(
            "<testsuite name='TestCafe Tests: Chrome {version} / Windows 10, Firefox 118.0 / Linux 0.0' tests='3' \
             failures='1' errors='1'>\
             <testcase classname='Shop' name='buys (unstable) (screenshots: /w/{time}/test-1)' time='1'/>\
             <testcase classname='Shop' name='looks (screenshots: /w/{time}/test-2)' time='1'><failure/></testcase>\
             <testcase classname='Shop' name='pays' time='1'/></testsuite>"
        ))
    };
    let report = of_run("119.0.0.0", "2026-11-25_10-11-12");
    use TestResult::{Failure, Success};
    assert_eq!(results(&report), [("buys", Success), ("looks", Failure), ("pays", Success)]);
    let flaky: Vec<_> = report.cases.iter().map(|case| case.flaky).collect();
    assert_eq!(flaky, [true, false, false]);
    assert_eq!(&*report.cases[0].suite, "TestCafe Tests");
    assert_eq!(report.cases[0].variant.as_deref(), Some("Chrome / Windows, Firefox / Linux"));
    assert_eq!(report.cases, of_run("120.0.0.0", "2026-11-26_01-02-03").cases);
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
fn go_repetition_is_an_attempt_unless_tests_that_passed_ran_again() {
    use TestResult::{Failure, Success};
    let go = |results: &[(&str, &str)]| {
        let cases: String = results
            .iter()
            .map(|(name, inner)| format!("<testcase name='{name}' time='1'>{inner}</testcase>"))
            .collect();
        read(format!(
            "<testsuite name='p'><properties><property name='go.version' value='go1.26'/>\
             </properties>{cases}</testsuite>"
        ))
    };
    let failed = ("A", "<failure/>");
    assert_eq!(
        attempts(&go(&[failed, ("B", ""), ("A", "")])),
        [(Success, 2, true), (Success, 1, false)]
    );
    assert_eq!(attempts(&go(&[failed, failed])), [(Failure, 2, false)]);
    let rule = |report: &TestReport| report.summary.findings.first().map(|first| first.rule);
    let flaky = go(&[failed, ("A", "")]);
    assert_eq!(rule(&flaky), Some(JunitRule::GuessedRerun), "`-count=2` looks like it");
    assert!(flaky.has_guessed_rerun() && !go(&[failed, failed]).has_guessed_rerun());
    // `-count=2`: one run of each is red, and so is the job.
    let counted = go(&[failed, ("A", ""), ("B", ""), ("B", "")]);
    assert_eq!(counted.tally.failures, 1);
    assert_eq!(go(&[failed, ("A", "<skipped/>")]).tally.failures, 1);
    assert_eq!(go(&[("A", ""), failed]).tally.failures, 1);
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
        "<testsuites><TestSuite name='s'><TestCase name='a' time='1'/></TestSuite></testsuites>",
    );
    assert_eq!(results(&report), [("a", Success)]);
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
fn only_plain_durations_are_read() {
    for (time, seconds) in [
        ("1,234.5", Some(1234.5)),
        ("1,234,567", Some(1_234_567.0)),
        ("0.5", Some(0.5)),
        (" 2 ", Some(2.0)),
        ("1e-05", Some(0.00001)),
        ("0", Some(0.0)),
        ("0,123", None),
        ("1,23", None),
        ("-1", None),
        ("NaN", None),
        ("inf", None),
        ("", None),
        ("31622401", None),
        ("soon", None),
    ] {
        let report = read(format!("<testsuite><testcase name='a' time='{time}'/></testsuite>"));
        assert_eq!(report.cases[0].time, seconds, "{time}");
        let noted = if seconds.is_none() { vec![(JunitRule::BadDuration, 1)] } else { vec![] };
        assert_eq!(rules(&report), noted, "{time}");
    }
}

#[test]
fn names_that_look_like_numbers_stay_as_they_are() {
    for name in ["1e5", "007", "nan", "1,000", " a "] {
        assert_eq!(only(suite(&format!("<testcase name='{name}'/>"))).name, name);
    }
}

#[test]
fn file_of_the_suite_is_the_file_of_its_tests() {
    let report = read(
        "<testsuites><testsuite name='s' file='a.js'><testcase name='x'/>\
         <testcase name='y' file='b.js'/></testsuite>\
         <testsuite name='t' filepath='c.js'><testcase name='z'/></testsuite></testsuites>",
    );
    let files: Vec<_> = report.cases.iter().map(|case| case.file.as_deref().unwrap()).collect();
    assert_eq!(files, ["a.js", "b.js", "c.js"]);
}

const SAMPLE: &str = "<?xml version=\"1.0\"?>\n<testsuites><testsuite name='s'>\n\
     <testcase name='a' time='1'/><testcase name='b' time='1'><skipped/></testcase><!-- nöte é-->\n\
     <testcase name='c' time='1'><failure message='m'>x &amp; é<![CDATA[y😀 é]]></failure></testcase>\
     <testcase name='d' time='1'><system-out>o</system-out></testcase></testsuite></testsuites>\n";

#[test]
fn report_cut_anywhere_keeps_its_complete_tests_and_a_failure_that_had_begun() {
    let at = |text: &str| SAMPLE.find(text).unwrap();
    let end = at("</testsuites>") + "</testsuites>".len();
    let mut complete = 0;
    for cut in 0..end {
        let bytes = &SAMPLE.as_bytes()[..cut];
        let text = String::from_utf8_lossy(bytes);
        let report = match TestReport::read(bytes) {
            Ok(report) => report,
            Err(error) => {
                assert!(matches!(error, JunitError::NoElement), "{text}: {error}");
                assert!(cut <= at("<testsuites>") + "<testsuites".len(), "{text}");
                continue;
            }
        };
        assert!(report.summary.is_truncated, "{text}");
        assert_eq!(report.grade(), JunitGrade::Invalid, "{text}");
        let now = report.tally.tests - report.tally.unfinished;
        assert!(now >= complete, "{text}");
        complete = now;
        let third = report.cases.get(2).map(|case| case.result);
        if cut >= at("<failure message") + "<failure".len() {
            assert_eq!(third, Some(TestResult::Failure), "{text}");
        } else if cut > at("name='c' time='1'>") + "name='c' time='1'>".len() {
            assert_eq!(third, Some(TestResult::Unfinished), "{text}");
        }
        let is_open = cut >= at("name='s'>") + "name='s'>".len()
            && cut < at("</testsuite>") + "</testsuite>".len();
        assert_eq!(report.summary.open_suites.len(), usize::from(is_open), "{text}");
    }
    assert!(!read(SAMPLE).summary.is_truncated);
    assert_eq!(read(SAMPLE).tally.tests, 4);
}

#[test]
fn report_that_stops_being_xml_keeps_the_tests_before() {
    let report =
        read("<testsuite>\n<testcase name='a' time='1'/>\n<b></c><testcase name='d'/></testsuite>");
    assert_eq!(results(&report), [("a", TestResult::Success)]);
    assert_eq!(rules(&report), [(JunitRule::Malformed, 3)]);
    assert!(report.summary.is_truncated);
}

#[test]
fn two_reports_in_one_file_are_both_read() {
    let one =
        "<?xml version='1.0'?>\n<testsuite name='s'><testcase name='a' time='1'/></testsuite>\n";
    let report = read(format!("{one}{}", one.replace("'a'", "'b'")));
    assert_eq!(report.tally.tests, 2);
    assert!(!report.summary.is_truncated);
}

#[test]
fn file_that_is_no_report_is_refused_with_the_reason() {
    for (xml, reason) in [
        ("", "no XML element"),
        ("  \n", "no XML element"),
        ("plain text", "no XML element"),
        ("<?xml version='1.0'?>", "no XML element"),
        ("<html></html>", "it is a page in HTML (`<html>`)"),
        ("<unknown></unknown>", "starts with `<unknown>`"),
        ("<coverage line-rate='1'/>", "a coverage report of Cobertura or Clover"),
        ("<failsafe-summary result='255'/>", "the summary of Maven Failsafe"),
        (
            "<test-results/>",
            "NUnit 2 (`<test-results>`), which isn't read: run the tests with NUnit 3",
        ),
        ("<assembly/>", "xUnit.net v1"),
        ("<testsuites><suite><test result='failure'/></suite></testsuites>", "libcheck"),
        ("<TestRun><FailedTests/></TestRun>", "CppUnit"),
        ("{\"name\": \"crcr\"}", "it is JSON, and not the lines of `go test -json`"),
        ("TAP version 13\n1..1\nok 1 - a\n", "the Test Anything Protocol"),
        ("# a comment\n\n1..2\nnot ok 1 - a\n", "the Test Anything Protocol"),
        ("ok 1 - a\n1..1\n", "which isn't read: convert it to JUnit"),
        ("1..2 isn't a plan", "no XML element"),
        ("{\"numFailedTests\":0,\"numTotalTestSuites\":1,\"testResults\":[]}", "use `jest-junit`"),
        (
            "[{\"keyword\":\"Feature\",\"uri\":\"a.feature\",\"elements\":[]}]",
            "Cucumber's own JSON",
        ),
        ("{ \"type\": \"suite\", \"event\": \"started\", \"test_count\": 2 }\n", "cargo nextest"),
        ("<1></2>", "starts with `<1>`"),
        ("</a>", "isn't XML"),
        ("<!bogus><testsuite/>", "isn't XML"),
    ] {
        let told = refusal(xml);
        assert!(told.contains(reason), "{xml}: {told}");
    }
    assert!(refusal([0, 159, 146, 150, 0, 1, 2]).contains("no XML element"));
}

#[test]
fn encodings_are_decoded() {
    let text = "<testsuite name='s'><testcase name='ä€' time='1'/></testsuite>";
    let utf16 = |bytes: fn(u16) -> [u8; 2], mark: &str| -> Vec<u8> {
        format!("{mark}{text}").encode_utf16().flat_map(bytes).collect()
    };
    for (what, bytes) in [
        ("UTF-8", text.as_bytes().to_vec()),
        ("UTF-8 with a mark", format!("\u{feff}{text}").into_bytes()),
        ("UTF-16LE", utf16(u16::to_le_bytes, "\u{feff}")),
        ("UTF-16BE", utf16(u16::to_be_bytes, "\u{feff}")),
        ("UTF-16LE without a mark", utf16(u16::to_le_bytes, "")),
        ("UTF-16BE without a mark", utf16(u16::to_be_bytes, "")),
    ] {
        let report = read(bytes);
        assert_eq!(report.cases[0].name, "ä€", "{what}");
        assert_eq!(rules(&report), [], "{what}");
    }
    let latin1 = b"<?xml version=\"1.0\" encoding='ISO-8859-1'?><testsuite><testcase name='\xe4' time='1'/></testsuite>";
    let report = read(latin1);
    assert_eq!((report.cases[0].name.as_str(), rules(&report)), ("ä", vec![]));
}

#[test]
fn bytes_in_another_encoding_are_replaced_and_noted() {
    let report = read(b"<testsuite>\n<testcase name='\xe4b' time='1'/></testsuite>");
    assert_eq!(report.cases[0].name, "\u{fffd}b");
    assert_eq!(rules(&report), [(JunitRule::Encoding, 2)]);
    let report = read(
        "<?xml version='1.0' encoding='KOI8-R'?><testsuite><testcase name='a' time='1'/></testsuite>",
    );
    assert_eq!(rules(&report), [(JunitRule::Encoding, 1)]);
}

#[test]
fn control_characters_are_replaced_and_noted() {
    let report = read(
        "<testsuite><testcase time='1' name='a\u{1b}[1m'>\n<failure message='&#x1b;'>x\0y\tz\r\n&#7;</failure></testcase></testsuite>",
    );
    let case = &report.cases[0];
    assert_eq!(case.name, "a\u{fffd}[1m");
    assert_eq!(case.details[0].message.as_deref(), Some("\u{fffd}"));
    assert_eq!(case.details[0].text.as_deref(), Some("x\u{fffd}y\tz\n\u{fffd}"));
    let rule = JunitRule::ControlCharacter;
    assert_eq!(rules(&report), [(rule, 1), (rule, 2), (rule, 2)]);
}

#[test]
fn entities_of_a_file_are_never_expanded() {
    let bomb: String = (1..10)
        .map(|i| format!("<!ENTITY l{i} '{}'>", format!("&l{};", i - 1).repeat(10)))
        .collect();
    let xml = format!(
        "<!DOCTYPE r [<!ENTITY l0 'lol'>{bomb}<!ENTITY f SYSTEM \"file:///etc/passwd\">]>\
         <testsuite><testcase name='&l9;' time='1'><failure>x&l9;&f; &amp; &; & <![CDATA[&f;]]></failure></testcase></testsuite>"
    );
    let report = read(xml);
    assert_eq!(report.cases[0].name, "&l9;");
    assert_eq!(report.cases[0].message(), Some("x&l9;&f; & &; & &f;"));
    assert!(rules(&report).contains(&(JunitRule::UnknownEntity, 1)));
}

#[test]
fn entity_at_the_end_of_a_buffer_is_resolved() {
    // The buffers hold 64 KiB: every position of the entity around their end.
    for before in (64 << 10) - 120..(64 << 10) + 4 {
        let start = "<testsuite><testcase name='a' time='1'><failure>";
        let filler = " ".repeat(before - start.len());
        for (raw, text) in [
            ("&lt;&#x1F600;&amp;b", "<😀&b"),
            ("a<![CDATA[]]]]><!-- --->b", "a]]b"),
            ("&am", "&am"),
        ] {
            let report = read(format!("{start}{filler}{raw}</failure></testcase></testsuite>"));
            assert_eq!(report.cases[0].message(), Some(text), "{before}");
        }
    }
}

#[test]
fn duplicate_and_broken_attributes_are_noted() {
    let report = read(
        "<testsuite>\n<testcase name='a' name='b' time='1'/>\n<testcase time=1 name='c'/></testsuite>",
    );
    assert_eq!(results(&report)[0], ("a", TestResult::Success));
    let rules = rules(&report);
    assert!(rules.contains(&(JunitRule::DuplicateAttribute, 2)), "{rules:?}");
    assert!(rules.contains(&(JunitRule::BadAttribute, 3)), "{rules:?}");
    assert_eq!(report.tally.tests, 2);
}

#[test]
fn long_texts_are_cut_and_marked() {
    for (length, is_cut) in [(MAX_TEXT_BYTES, false), (MAX_TEXT_BYTES + 1, true), (300_000, true)] {
        for xml in [
            format!("<testcase name='a'><failure message='{}'/></testcase>", "x".repeat(length)),
            format!("<testcase name='a'><failure>{}</failure></testcase>", "x".repeat(length)),
            format!(
                "<testcase name='a'><failure><![CDATA[{}]]></failure></testcase>",
                "x".repeat(length)
            ),
        ] {
            let case = only(suite(&xml));
            let message = case.message().unwrap();
            assert_eq!(message.len(), length.min(MAX_TEXT_BYTES));
            assert_eq!(message.ends_with(CUT_MARK), is_cut);
        }
    }
    let case = only(suite(&format!(
        "<testcase name='a'><failure>{}</failure></testcase>",
        "ö".repeat(20_000)
    )));
    assert!(case.message().unwrap().starts_with("öö"));
}

#[test]
fn grade_and_findings_name_the_line() {
    let long = "n".repeat(1001);
    let mut report = read(format!(
        "<testsuites>\n<testsuite name='s' timestamp='2026-01-01T00:00:00' tests='9'>\n<testcase name='a'/>\n\
         <testcase name='{long}' time='1'/>\n<testcase\n time='1'/></testsuite></testsuites>"
    ));
    assert_eq!(report.grade(), JunitGrade::Invalid, "a test without a name");
    report.check_age("2026-01-02T00:00:01Z".parse().unwrap());
    assert_eq!(
        rules(&report),
        [
            (JunitRule::TestCount, 2),
            (JunitRule::StaleTimestamp, 2),
            (JunitRule::NoDuration, 3),
            (JunitRule::LongName, 4),
            (JunitRule::MissingName, 5),
        ]
    );
    assert_eq!(read(suite("<testcase name='a'/>")).grade(), JunitGrade::Valid);
    assert_eq!(read("<testsuite><testcase name='a'/></testsuite>").grade(), JunitGrade::Suboptimal);
    assert_eq!(read("<testsuite/>").grade(), JunitGrade::Suboptimal);
}

#[test]
fn tests_without_a_name_each_count() {
    let report = read(suite("<testcase classname='c'/><testcase classname='c'/>"));
    assert_eq!((report.tally.tests, report.tally.successes), (2, 2));
}

#[test]
fn each_limit_quarantines_the_file_and_is_named() {
    let deep = |levels: usize| format!("<testsuite>{}", "<a>".repeat(levels));
    assert!(refusal(deep(128)).contains("cap `depth`"));
    assert!(TestReport::read(deep(127).as_bytes()).is_ok());
    let tag = format!("<testsuite><testcase name='{}'/></testsuite>", "x".repeat(17 << 20));
    assert!(refusal(tag).contains("cap `tag-size`"));
    let name = format!("<testsuite><{0}></{0}></testsuite>", "x".repeat(2000));
    assert!(refusal(name).contains("cap `tag-size`"));
    let endless = std::io::Read::chain(&b"<testsuite>"[..], std::io::repeat(b'x'));
    assert!(matches!(TestReport::read(endless), Err(JunitError::TooLarge)));
}

#[test]
fn many_findings_of_one_rule_are_counted() {
    let report = read(format!(
        "<testsuite>{}</testsuite>",
        (0..1500).map(|i| format!("<testcase name='{i}'/>\n")).collect::<String>()
    ));
    assert_eq!(report.summary.findings.len(), 1000);
    let last = &report.summary.findings[999];
    assert_eq!((last.line, last.message.as_str()), (1000, "`999` has no duration, and 500 more"));
}

#[test]
fn output_larger_than_any_limit_of_a_tag_is_skipped() {
    let output = "some output <b>\n".repeat(5 << 18);
    for (start, end) in [("<system-out><![CDATA[", "]]></system-out>"), ("<!-- ", " -->")] {
        let report = read(format!(
            "<testsuite><testcase name='a' time='1'>{start}{output}{end}</testcase>\n<testcase/></testsuite>"
        ));
        assert_eq!(report.tally.tests, 2);
        let last = report.summary.findings.last().unwrap();
        assert_eq!((last.rule, last.line), (JunitRule::MissingName, (5 << 18) + 2));
    }
}

#[test]
fn arbitrary_damage_never_panics_and_never_adds_tests() {
    let whole = read(SAMPLE).tally.tests;
    for at in 0..SAMPLE.len() {
        for byte in [0, b'<', b'>', b'&', b'"', b'\'', b'/', b'!', 0xc3, 0xff] {
            let mut bytes = SAMPLE.as_bytes().to_vec();
            bytes[at] = byte;
            if let Ok(report) = TestReport::read(&bytes[..]) {
                assert!(report.tally.tests <= whole + 1, "{at} {byte}");
            }
            bytes.remove(at);
            let _ = TestReport::read(&bytes[..]);
        }
    }
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
    assert_eq!(attempts.before("a/foo/test.xml"), [paths[1], paths[2]]);
    assert_eq!(attempts.before("test.xml"), [paths[4]]);
    let earlier: Vec<_> = paths.into_iter().filter(|path| attempts.contains(path)).collect();
    assert_eq!(earlier, [paths[1], paths[2], paths[4]]);
}
