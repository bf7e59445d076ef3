//! Reports that the tools themselves wrote, against the counts that they printed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestRowKind, TestTally};

use super::{TestReport, join_spread_attempts};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/junit")
}

fn reports(tool: &str) -> Vec<TestReport> {
    let mut paths: Vec<_> =
        fs::read_dir(root().join(tool)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("report"));
    paths.sort();
    let read = |path| TestReport::read(File::open(path).unwrap()).unwrap();
    let mut reports: Vec<_> = paths.iter().map(read).collect();
    join_spread_attempts(reports.iter_mut());
    reports
}

fn cases(tool: &str) -> Vec<TestCase> {
    reports(tool).into_iter().flat_map(|report| report.cases).collect()
}

fn named(tool: &str, name: &str) -> TestCase {
    let mut found: Vec<_> = cases(tool).into_iter().filter(|case| case.name == name).collect();
    assert_eq!(found.len(), 1, "{tool}: {name}");
    found.remove(0)
}

#[test]
fn every_tool_printed_the_counts_that_are_read_from_its_report() {
    let mut tools = 0;
    for entry in fs::read_dir(root()).unwrap() {
        let folder = entry.unwrap().path();
        let tool = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let Ok(printed) = fs::read(folder.join("counts.json")) else { continue };
        let printed: BTreeMap<String, u64> = serde_json::from_slice(&printed).unwrap();
        let mut tally = TestTally::default();
        let mut attempts = 0;
        for report in reports(&tool) {
            assert!(!report.summary.is_truncated, "{tool}");
            tally.add(&report.tally);
            attempts += report.cases.iter().map(|case| u64::from(case.attempts)).sum::<u64>();
        }
        for (what, number) in &printed {
            let read = match what.as_str() {
                "tests" => tally.tests,
                "successes" => tally.successes,
                "failures" => tally.failures,
                "errors" => tally.errors,
                "skipped" => tally.skipped,
                "flaky" => tally.flaky,
                "attempts" => attempts,
                other => panic!("{tool}: {other}"),
            };
            assert_eq!(read, *number, "{tool}: {what} of {tally:?}");
        }
        assert!(printed.values().sum::<u64>() > 0, "{tool}");
        assert_eq!(tally.unfinished, 0, "{tool}");
        tools += 1;
    }
    assert!(tools >= 92, "{tools}");
}

#[test]
fn test_that_passed_at_last_is_flaky_in_every_report_that_tells() {
    for (tool, name) in [
        ("nextest", "flaky"),
        ("surefire", "flaky"),
        ("gotestsum", "TestFlaky"),
        ("pytest-rerunfailures", "test_flaky"),
        ("pytest-flaky", "test_flaky"),
        ("ginkgo", "[It] all is flaky"),
    ] {
        let case = named(tool, name);
        assert_eq!(
            (case.result, case.attempts, case.flaky),
            (TestResult::Success, 3, true),
            "{tool}"
        );
    }
}

#[test]
fn file_that_cannot_be_loaded_is_one_failed_suite() {
    for tool in ["pytest-collection", "jest", "vitest", "surefire", "unittest-xml-reporting"] {
        let cases = cases(tool);
        let suites: Vec<_> = cases.iter().filter(|case| case.kind == TestRowKind::Suite).collect();
        assert_eq!(suites.len(), 1, "{tool}: {suites:?}");
        assert!(suites[0].result.is_failed() && suites[0].message().is_some(), "{tool}");
    }
    assert_eq!(
        cases("gotestsum-broken").iter().filter(|case| case.kind == TestRowKind::Suite).count(),
        // Two packages, and the error that the report declares.
        3
    );
}

#[test]
fn element_that_is_not_of_a_test_is_a_failed_suite() {
    for (tool, names) in [
        ("ant", &["BrokenEndTest", "BrokenSetupTest"][..]),
        ("bun-hooks", &["(unnamed)", "(unnamed)"][..]),
        ("go-junit-report-1", &["[build failed]"][..]),
        (
            "jest-hooks",
            &[" Test execution failure: could be caused by test hooks like 'afterAll'."][..],
        ),
        ("vitest-errors", &["Uncaught Exception: nobody waits"][..]),
        // Two packages, and the error that the report declares.
        ("gotestsum-short", &["TestMain", "TestMain", ""][..]),
    ] {
        let cases = cases(tool);
        let of_suites = cases.iter().filter(|case| case.kind == TestRowKind::Suite);
        let told: Vec<_> = of_suites.map(|case| case.name.as_str()).collect();
        assert_eq!(told, names, "{tool}");
    }
}

#[test]
fn suite_of_ginkgo_that_fails_for_a_pending_test_is_red() {
    let cases = cases("ginkgo-pending");
    let failed: Vec<_> = cases.iter().filter(|case| case.result.is_failed()).collect();
    assert_eq!(failed.len(), 1, "{cases:?}");
    let why = "Detected pending specs and --fail-on-pending is set";
    assert_eq!((failed[0].kind, failed[0].message()), (TestRowKind::Suite, Some(why)));
}

#[test]
fn subtest_that_passed_and_ran_again_with_the_test_around_it_is_not_flaky() {
    let cases = cases("gotestsum-root");
    let mut told: Vec<_> = (cases.iter())
        .map(|case| (case.name.as_str(), case.result, case.attempts, case.flaky))
        .collect();
    told.sort_by_key(|(name, ..)| *name);
    assert_eq!(
        told,
        [
            ("TestFlaky", TestResult::Success, 2, true),
            ("TestFlaky/fails_at_first", TestResult::Success, 2, true),
            ("TestFlaky/passes", TestResult::Success, 2, false),
            ("TestFlaky/skips", TestResult::Skipped, 2, false),
            ("TestPasses", TestResult::Success, 1, false),
        ]
    );
}

#[test]
fn failures_of_node_tap_count_once_and_a_file_that_cannot_be_loaded_is_one_more() {
    let report = reports("node-tap").remove(0);
    assert_eq!((report.tally.tests, report.tally.failures), (10, 5), "{:?}", report.cases);
    let of_suites = report.cases.iter().filter(|case| case.kind == TestRowKind::Suite);
    assert_eq!(of_suites.count(), 1);
}

#[test]
fn karmas_browser_is_the_variant_of_a_test_and_not_a_part_of_its_name() {
    let case = named("karma", "sum adds");
    assert_eq!((case.full_name().as_str(), &*case.suite), ("sum.sum adds", ""));
    assert_eq!(case.variant.as_deref(), Some("Chrome Headless Linux"));
    let lost = cases("karma").into_iter().filter(|case| case.kind == TestRowKind::Suite);
    assert_eq!(lost.count(), 1, "the setup that failed");
}

#[test]
fn errors_that_a_tool_counts_among_the_failures_are_no_further_ones() {
    let cases = cases("criterion");
    assert_eq!(cases.iter().filter(|case| case.result.is_failed()).count(), 3);
    assert!(cases.iter().all(|case| case.kind == TestRowKind::Test));
}

#[test]
fn exception_that_a_tool_writes_below_its_traceback_is_the_message() {
    for (name, message) in [
        ("test_breaks", "RuntimeError: boom"),
        ("test_fails", "testtools.matchers._impl.MismatchError: 1 != 2"),
    ] {
        let case = named("testtools", name);
        assert_eq!(case.message(), Some(message));
        assert!(case.message_details().unwrap().contains("Traceback"), "{name}");
    }
}

#[test]
fn message_is_what_failed_and_not_the_test_the_captured_output_or_markup_before_it() {
    for (tool, name, message) in [
        ("phpunit", "testFails", "Failed asserting that 2 is identical to 1."),
        ("phpunit", "testError", "RuntimeException: error"),
        ("phpunit", "testNumbers with data set \"two\"", "Failed asserting that 2 is less than 2."),
        ("testtools-details", "test_fails", "testtools.matchers._impl.MismatchError: 1 != 2"),
        ("testtools-details", "test_parts", "AssertionError: 0 is not true : even"),
        ("robot-merge", "Fails", "<b> isn't \"c\" & d"),
        (
            "jest-hooks",
            " Test execution failure: could be caused by test hooks like 'afterAll'.",
            "Error: not <closed>",
        ),
        ("eunit", "all:0 error_test", "error:boom"),
        ("eunit", "fixture setup [1,4]", "throw:no_setup"),
    ] {
        let case = named(tool, name);
        assert_eq!(case.message(), Some(message), "{tool}: {name}");
        assert_eq!(case.message_details().is_some(), tool != "robot-merge", "{tool}: {name}");
    }
}

#[test]
fn message_of_tools_that_write_only_the_result_is_what_their_text_says() {
    for (tool, name, message) in [
        ("gotestsum", "TestFails", "all_test.go:10: \"<a>\" isn't \"b & c\""),
        ("go-junit-report", "TestFails", "all_test.go:10: \"<a>\" isn't \"b & c\""),
        (
            "pytest-collection",
            "test_unimportable",
            "ModuleNotFoundError: No module named 'module_that_is_not_there'",
        ),
        ("nose2", "test_fails", "AssertionError: 1 != 2"),
        ("boost", "fails_twice", "check 1 == 2 has failed [1 != 2]"),
        ("common-test", "fails", "{{badmatch,2},"),
        ("libtest", "fails", "thread 'tests::fails' (15865) panicked at src/lib.rs:6:18:"),
        ("lua-unit", "TestAll.testFails", "all.lua:4: expected: 2, actual: 1"),
    ] {
        let case = named(tool, name);
        assert_eq!(case.message().and_then(|message| message.lines().next()), Some(message));
        assert_eq!(case.message_details().is_some(), tool != "libtest", "{tool}");
    }
}

#[test]
fn failed_test_whose_teardown_fails_too_is_one_test() {
    let case = named("pytest-teardown", "test_fails_twice");
    assert_eq!((case.result, case.attempts), (TestResult::Failure, 2));
    assert_eq!(case.message(), Some("assert False"), "the cause, not the teardown");
}

#[test]
fn suite_has_the_same_name_in_every_run() {
    let case = named("unittest-xml-reporting", "test_passes");
    assert_eq!((&*case.suite, &*case.classname), ("test_all.TestAll", "test_all.TestAll"));
}

#[test]
fn test_of_each_browser_is_a_test_of_its_own() {
    for tool in ["playwright", "playwright-two-projects"] {
        let cases = cases(tool);
        let of = |browser: &str| {
            let of_browser = cases.iter().filter(|case| case.variant.as_deref() == Some(browser));
            of_browser.filter(|case| case.result.is_failed()).count()
        };
        assert_eq!((of("chromium"), of("firefox")), (2, 0), "{tool}");
        assert!(cases.iter().all(|case| !case.flaky && case.attempts == 1), "{tool}");
    }
}

#[test]
fn every_run_of_go_test_with_a_count_is_counted() {
    let cases = cases("go-junit-report-count");
    let of = |name: &str| cases.iter().filter(|case| case.name == name).count();
    assert_eq!((of("TestFails"), of("TestPasses")), (2, 2));
    let of_json = reports("go-json-count").remove(0).cases;
    assert!(of_json.iter().all(|case| case.attempts == 1), "{of_json:?}");
}

#[test]
fn package_that_go_1_23_could_not_build_or_set_up_is_a_failed_suite_with_what_the_compiler_said() {
    let cases = cases("go-json-unbuilt");
    let of_suite = cases.iter().filter(|case| case.kind == TestRowKind::Suite);
    let told: Vec<_> = of_suite.map(|case| (&*case.suite, case.message().unwrap())).collect();
    assert_eq!(
        told,
        [
            ("example.test/old/c", "c/c_test.go:5:28: undefined: undefined"),
            (
                "example.test/old/b",
                "b/b_test.go:6:2: no required module provides package example.test/old/nothere; to add it:"
            ),
        ]
    );
}

#[test]
fn numbers_of_taps_converters_are_no_part_of_an_id() {
    use crate::test_names::number_lengths;
    assert_eq!(number_lengths(&cases("tap-xunit")), [3, 3, 3, 3]);
    let perl = cases("perl-tap");
    let names: Vec<_> = (perl.iter().zip(number_lengths(&perl)))
        .filter(|(case, _)| case.kind == TestRowKind::Test)
        .map(|(case, length)| &case.name[length..])
        .collect();
    assert_eq!(names, ["passes", "fails", "3", "to do", "passes"]);
}

#[test]
fn name_of_a_job_is_the_same_in_every_run() {
    assert!(cases("avocado").iter().all(|case| &*case.suite == "job"));
}
