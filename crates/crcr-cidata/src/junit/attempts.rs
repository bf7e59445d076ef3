//! Attempts of one test, and what tells tests of one name apart.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crcr_domain::ci_data::test_run::{
    TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind,
};

use super::pytest_repeat::names_without_counters;
use super::summary::{HiddenFailures, RepeatedTest, SuiteElement, SuiteLabels};

/// The class that xcbeautify gives all tests of Swift Testing, whose names are those of functions in any suite.
const SWIFT_TESTING: &str = "SwiftTesting";

/// From this many tests on that all ran equally often, pytest ran with `--dist each`; fewer may have failed and run again.
const LEAST_TESTS_OF_EACH: usize = 5;

/// More details of one test are dropped.
const MAX_DETAILS: usize = 1000;

/// Which tests of a report may be attempts of one another.
#[derive(Debug, Default)]
pub(crate) struct AttemptFinder {
    candidates: Vec<PossibleAttempt>,
}

#[derive(Debug, Clone, Copy)]
struct PossibleAttempt {
    position: u32,
    /// The number of the suite's element.
    element: u32,
    run: u32,
    repeats: RepeatedTest,
}

impl AttemptFinder {
    pub(crate) fn note(&mut self, position: u32, case: &TestCase, element: &SuiteElement) {
        // What is said of a suite again and again is one failure.
        let is_candidate = match element.repeats {
            _ if case.kind == TestRowKind::Suite => true,
            RepeatedTest::OtherTests => false,
            RepeatedTest::Pytest
            | RepeatedTest::PytestRepeat
            | RepeatedTest::Go
            | RepeatedTest::Unittest
            | RepeatedTest::Surefire
            | RepeatedTest::Numbered => true,
            RepeatedTest::Xctest => {
                case.suite == case.classname && &*case.classname != SWIFT_TESTING
            }
        };
        if is_candidate && !(case.name.trim().is_empty() && case.kind == TestRowKind::Test) {
            self.candidates.push(PossibleAttempt {
                position,
                element: element.number,
                run: element.run,
                repeats: element.repeats,
            });
        }
    }

    /// Puts the attempts of each test together, and the failures of each suite; its other ones are added to `hidden`.
    /// Returns the first test that passed at last where the report doesn't tell whether it was run again because it
    /// failed.
    pub(crate) fn merge(
        mut self,
        cases: &mut Vec<TestCase>,
        hidden: &mut HiddenFailures,
    ) -> Option<String> {
        // Elements of suites can lie in each other.
        self.candidates.sort_by_key(|candidate| candidate.element);
        for of_element in self.candidates.chunk_by_mut(|a, b| a.element == b.element) {
            take_counters_of_pytest(cases, of_element);
        }
        let is_xctest_rerun = is_xctest_rerun(cases, &self.candidates);
        let mut is_merged = vec![];
        let mut guessed = None;
        for of_element in self.candidates.chunk_by(|a, b| a.element == b.element) {
            let groups = repeated(cases, of_element);
            let is_rerun = is_rerun(cases, &groups) && !adds_tests(cases, of_element);
            let is_of_each_worker = is_of_each_worker(&groups, of_element);
            let groups =
                groups.into_iter().flat_map(|group| runs_of_one(cases, group, is_xctest_rerun));
            for group in groups.collect::<Vec<_>>() {
                let first = group[0].position as usize;
                let is_suite = cases[first].kind == TestRowKind::Suite;
                let repeats = match group[0].repeats {
                    _ if is_suite => RepeatedTest::OtherTests,
                    RepeatedTest::Go if !is_rerun => continue,
                    repeats => repeats,
                };
                if is_suite {
                    count_other_failures(cases, &group, hidden);
                }
                for later in &group[1..] {
                    if is_merged.is_empty() {
                        is_merged = vec![false; cases.len()];
                    }
                    let later = later.position as usize;
                    is_merged[later] = true;
                    let later = cases[later].clone();
                    add_attempt(&mut cases[first], later, repeats);
                }
                cases[first].flaky &= !is_of_each_worker;
                let is_guess = repeats == RepeatedTest::Xctest
                    || (repeats == RepeatedTest::Go && group[0].run == 0);
                if is_guess && cases[first].flaky {
                    guessed = guessed.or_else(|| Some(cases[first].full_name()));
                }
            }
        }
        if !is_merged.is_empty() {
            let mut is_merged = is_merged.into_iter();
            cases.retain(|_| !is_merged.next().unwrap_or_default());
        }
        guessed
    }
}

/// Gives the tests that pytest-repeat ran several times their own names.
fn take_counters_of_pytest(cases: &mut [TestCase], of_element: &mut [PossibleAttempt]) {
    if !of_element.iter().all(|candidate| candidate.repeats == RepeatedTest::Pytest) {
        return;
    }
    let positions = of_element.iter().map(|candidate| candidate.position as usize);
    let positions: Vec<usize> =
        positions.filter(|at| cases[*at].kind == TestRowKind::Test).collect();
    let tests: Vec<&TestCase> = positions.iter().map(|at| &cases[*at]).collect();
    let Some(names) = names_without_counters(&tests) else { return };
    for (at, name) in positions.into_iter().zip(names) {
        cases[at].name = name;
    }
    for candidate in of_element {
        candidate.repeats = RepeatedTest::PytestRepeat;
    }
}

/// Each test that is in an element more than once.
fn repeated<'a>(
    cases: &[TestCase],
    of_element: &'a [PossibleAttempt],
) -> Vec<Vec<&'a PossibleAttempt>> {
    let mut first: HashMap<(bool, &str, &str, &str), (&PossibleAttempt, usize)> = HashMap::new();
    let mut groups: Vec<Vec<&PossibleAttempt>> = vec![];
    for candidate in of_element {
        let case = &cases[candidate.position as usize];
        let is_test = case.kind == TestRowKind::Test;
        let identity = (is_test, &*case.suite, &*case.classname, &*case.name);
        match first.get_mut(&identity) {
            None => {
                first.insert(identity, (candidate, usize::MAX));
            }
            Some((first, group)) => {
                if *group == usize::MAX {
                    *group = groups.len();
                    groups.push(vec![*first]);
                }
                groups[*group].push(candidate);
            }
        }
    }
    groups
}

/// Counts what else failed in a suite beside its tests, such as another of its files. What tells the same again is one
/// failure.
fn count_other_failures(
    cases: &[TestCase],
    group: &[&PossibleAttempt],
    hidden: &mut HiddenFailures,
) {
    let rows = group.iter().map(|candidate| &cases[candidate.position as usize]);
    let mut messages = HashSet::new();
    for case in rows.filter(|case| case.name.is_empty() && case.classname.is_empty()) {
        let message = case.details.first().map(|detail| (&detail.message, &detail.text));
        if messages.insert(message) && messages.len() > 1 {
            match case.result {
                TestResult::Failure => hidden.failures += 1,
                TestResult::Error => hidden.errors += 1,
                _ => {}
            }
        }
    }
}

/// Whether Go's tests were run again because they failed: then every attempt but the last one failed, and
/// each is of another run of the package. `gotestsum --rerun-fails-run-root-test` runs all subtests of a failed test
/// again, also those that passed.
fn is_rerun(cases: &[TestCase], groups: &[Vec<&PossibleAttempt>]) -> bool {
    let case = |group: &[&PossibleAttempt]| &cases[group[0].position as usize];
    let mut failed = HashSet::new();
    for group in groups.iter().filter(|group| failed_until_last(cases, group)) {
        let case = case(group);
        failed.insert((&*case.suite, &*case.classname, &*case.name));
    }
    groups.iter().all(|group| {
        let case = case(group);
        let is_of_failed = case
            .name
            .split_once('/')
            .is_some_and(|(root, _)| failed.contains(&(&*case.suite, &*case.classname, root)));
        (is_of_failed || failed_until_last(cases, group))
            && group.is_sorted_by(|a, b| a.run < b.run || (a.run, b.run) == (0, 0))
    })
}

/// Whether a later run of a Go package has a test that its first one doesn't have: then it is another run, and not one
/// of the tests that failed. A subtest may be new, as the test around it can have failed before it began.
fn adds_tests(cases: &[TestCase], of_element: &[PossibleAttempt]) -> bool {
    let (first, later): (Vec<_>, Vec<_>) = of_element
        .iter()
        .filter(|candidate| candidate.repeats == RepeatedTest::Go)
        .map(|candidate| (candidate.run, &cases[candidate.position as usize]))
        .filter(|(_, case)| case.kind == TestRowKind::Test)
        .partition(|(run, _)| *run <= 1);
    if later.is_empty() {
        return false;
    }
    let root = |case: &TestCase| case.name.split('/').next().unwrap_or_default().to_owned();
    let known: HashSet<String> = first.into_iter().map(|(_, case)| root(case)).collect();
    later.into_iter().any(|(_, case)| !known.contains(&root(case)))
}

fn failed_until_last(cases: &[TestCase], group: &[&PossibleAttempt]) -> bool {
    let result = |candidate: &PossibleAttempt| cases[candidate.position as usize].result;
    let (last, earlier) = group.split_last().expect("a group has two tests");
    earlier.iter().all(|candidate| result(candidate).is_failed())
        && result(last) != TestResult::Skipped
}

/// Whether pytest's tests were repeated because each worker of xdist ran all of them, as on several interpreters.
fn is_of_each_worker(groups: &[Vec<&PossibleAttempt>], of_element: &[PossibleAttempt]) -> bool {
    let repetitions = groups.first().map_or(0, Vec::len);
    of_element.iter().all(|candidate| candidate.repeats == RepeatedTest::Pytest)
        && groups.len() >= LEAST_TESTS_OF_EACH
        && groups.iter().all(|group| group.len() == repetitions)
        && groups.len() * repetitions == of_element.len()
}

/// Whether tests of XCTest that failed and passed were run again because they failed. On two devices, and with
/// `-test-iterations` alone, a test that passes is there twice, so another one has to be there that passed once.
fn is_xctest_rerun(cases: &[TestCase], candidates: &[PossibleAttempt]) -> bool {
    let result = |candidate: &PossibleAttempt| cases[candidate.position as usize].result;
    let mut passed_once = candidates
        .iter()
        .filter(|test| test.repeats == RepeatedTest::Xctest && result(test) == TestResult::Success)
        .count();
    if passed_once == 0 {
        return false;
    }
    let elements = candidates.chunk_by(|a, b| a.element == b.element);
    for of_element in elements.filter(|tests| tests[0].repeats == RepeatedTest::Xctest) {
        for group in repeated(cases, of_element) {
            let (last, earlier) = group.split_last().expect("a group has two tests");
            if !earlier.iter().all(|test| result(test).is_failed())
                || result(last) == TestResult::Skipped
            {
                return false;
            }
            passed_once -= usize::from(result(last) == TestResult::Success);
        }
    }
    passed_once > 0
}

/// Parts of a group, each with the attempts of one test.
fn runs_of_one<'a>(
    cases: &[TestCase],
    group: Vec<&'a PossibleAttempt>,
    is_xctest_rerun: bool,
) -> Vec<Vec<&'a PossibleAttempt>> {
    match group[0].repeats {
        RepeatedTest::Xctest if !is_xctest_rerun => runs_of_failures(cases, &group),
        RepeatedTest::Unittest => runs_of_failures(cases, &group),
        RepeatedTest::Surefire if is_of_tests(cases, &group) => retries_of_testng(cases, &group),
        // The first run again is that on another device.
        RepeatedTest::Numbered => group.chunk_by(|a, b| a.run < b.run).map(<[_]>::to_vec).collect(),
        _ => vec![group],
    }
}

/// Parts of a group, each with the failed assertions, or the failed parts, of one test.
fn runs_of_failures<'a>(
    cases: &[TestCase],
    group: &[&'a PossibleAttempt],
) -> Vec<Vec<&'a PossibleAttempt>> {
    let has_failed = |test: &PossibleAttempt| cases[test.position as usize].result.is_failed();
    group.chunk_by(|a, b| has_failed(a) && has_failed(b)).map(<[_]>::to_vec).collect()
}

fn is_of_tests(cases: &[TestCase], group: &[&PossibleAttempt]) -> bool {
    group.iter().all(|candidate| cases[candidate.position as usize].kind == TestRowKind::Test)
}

/// Parts of a group, in each of which all but the last were skipped to be run again. A test of one name may be another
/// one, too, such as with the next parameter.
fn retries_of_testng<'a>(
    cases: &[TestCase],
    group: &[&'a PossibleAttempt],
) -> Vec<Vec<&'a PossibleAttempt>> {
    let is_retried = |test: &PossibleAttempt| {
        let case = &cases[test.position as usize];
        let is_failure = |skip: &TestDetail| skip.message.is_some() && skip.type_name.is_none();
        case.result == TestResult::Skipped
            && matches!(&case.details[..], [skip] if is_failure(skip))
    };
    let mut runs = vec![];
    for run in group.chunk_by(|a, _| is_retried(a)) {
        match run.last() {
            Some(last) if cases[last.position as usize].result != TestResult::Skipped => {
                runs.push(run.to_vec());
            }
            _ => runs.extend(run.iter().map(|test| vec![*test])),
        }
    }
    runs
}

fn add_attempt(case: &mut TestCase, later: TestCase, repeats: RepeatedTest) {
    // The element of a failed assertion isn't that of an attempt.
    let is_assertion = matches!(repeats, RepeatedTest::Xctest | RepeatedTest::Unittest)
        && later.result.is_failed();
    let is_testng = repeats == RepeatedTest::Surefire;
    let has_failed_before = case.flaky || case.result.is_failed();
    let last_counts = is_testng
        || matches!(repeats, RepeatedTest::Go | RepeatedTest::Xctest | RepeatedTest::Numbered);
    if last_counts && !is_assertion {
        for detail in &mut case.details {
            if is_testng || detail.kind != TestDetailKind::Skipped {
                detail.kind = TestDetailKind::Rerun;
            }
        }
        case.result = later.result;
    }
    let results = [case.result, later.result];
    let has_both =
        results.contains(&TestResult::Success) && results.iter().any(|result| result.is_failed());
    if !last_counts && repeats != RepeatedTest::OtherTests {
        case.result = worst(case.result, later.result);
    }
    if case.kind == TestRowKind::Test && !is_assertion {
        case.attempts = case.attempts.saturating_add(later.attempts);
        // pytest writes an element without a failure for an attempt that is followed by another.
        case.flaky = match repeats {
            RepeatedTest::PytestRepeat => case.flaky || later.flaky || has_both,
            // A subtest that passed runs again with a test around it.
            RepeatedTest::Go => case.result == TestResult::Success && has_failed_before,
            _ => case.result == TestResult::Success,
        };
    }
    case.details.extend(later.details);
    case.details.truncate(MAX_DETAILS);
    case.time = match (case.time, later.time) {
        (Some(first), Some(second)) => Some(first + second),
        (first, second) => first.or(second),
    };
    case.file = case.file.take().or(later.file);
}

fn worst(a: TestResult, b: TestResult) -> TestResult {
    let rank = |result| match result {
        TestResult::Failure => 4,
        TestResult::Error => 3,
        TestResult::Unfinished => 2,
        TestResult::Skipped => 1,
        TestResult::Success => 0,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// The labels of the suites, each from the position of its first test on.
#[derive(Debug, Default)]
pub(crate) struct SuiteRanges {
    starts: Vec<(u32, u32, Arc<SuiteLabels>)>,
}

impl SuiteRanges {
    pub(crate) fn note(&mut self, position: u32, element: &SuiteElement) {
        if self.starts.last().is_none_or(|(_, number, _)| *number != element.number) {
            self.starts.push((position, element.number, Arc::clone(&element.labels)));
        }
    }

    /// Gives tests of one name in different suites the package or file that tells them apart. What doesn't
    /// differ tells nothing; then rows have numbers. A `hostname` is another one in the next run.
    pub(crate) fn tell_apart(&self, cases: &mut [TestCase]) {
        let labels = |at: usize| {
            let after = self.starts.partition_point(|(start, ..)| *start as usize <= at);
            after.checked_sub(1).map(|range| &self.starts[range].2)
        };
        let mut groups: HashMap<(&str, &str, &str), Vec<u32>> = HashMap::new();
        for (at, case) in cases.iter().enumerate().filter(|(_, case)| case.variant.is_none()) {
            let identity = (&*case.suite, &*case.classname, &*case.name);
            groups.entry(identity).or_default().push(at as u32);
        }
        let mut variants: Vec<(u32, Arc<str>)> = vec![];
        for positions in groups.into_values().filter(|positions| positions.len() > 1) {
            let label = |of: fn(&SuiteLabels) -> &Option<Arc<str>>| {
                let values: Vec<_> =
                    positions.iter().filter_map(|at| of(labels(*at as usize)?).clone()).collect();
                let is_of_all = values.len() == positions.len();
                let differ = values.iter().any(|value| *value != values[0]);
                (is_of_all && differ).then_some(values)
            };
            let told = label(|of| &of.package).or_else(|| label(|of| &of.file));
            variants.extend(positions.iter().copied().zip(told.into_iter().flatten()));
        }
        for (at, variant) in variants {
            cases[at as usize].variant = Some(variant);
        }
    }
}
