//! Attempts of one test in several reports of Surefire.

use std::collections::HashMap;

use crcr_domain::ci_data::test_run::{TestDetailKind, TestResult, TestRowKind};

use super::report::TestReport;

/// Reports of a class and of more nested ones aren't read together.
pub const MAX_OF_ONE_CLASS: usize = 64;

/// Groups of Surefire's reports of a class and of those nested in it, in the order of each one's first; any other file is
/// a group of its own.
pub fn of_one_class<T>(
    files: impl Iterator<Item = T>,
    path: impl for<'a> Fn(&'a T) -> &'a str,
) -> Vec<Vec<T>> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut groups: Vec<Vec<T>> = vec![];
    for file in files {
        let class = outermost_class_report(path(&file)).map(str::to_owned);
        let known = class.as_ref().and_then(|class| places.get(class)).copied();
        match known {
            Some(at) if groups[at].len() < MAX_OF_ONE_CLASS => groups[at].push(file),
            _ => {
                places.extend(class.map(|class| (class, groups.len())));
                groups.push(vec![file]);
            }
        }
    }
    groups
}

/// The part of a Surefire report's path that a class shares with the classes nested in it:
/// `target/surefire-reports/TEST-demo.T` of `target/surefire-reports/TEST-demo.T$Inner.xml`.
pub fn outermost_class_report(path: &str) -> Option<&str> {
    let path = path.strip_suffix(".xml")?;
    let name = path.rsplit('/').next()?;
    let class = name.strip_prefix("TEST-")?;
    let nested_bytes = class.find('$').map_or(0, |at| class.len() - at);
    Some(&path[..path.len() - nested_bytes])
}

/// Makes one test of the attempts that Surefire 3.0 to 3.5.2 spread over the reports of a class and of those nested in
/// it: it puts the tests of a class into the report of the nested one that ended last, which is another one when only
/// the failed tests run again. It runs a test again only after a failure, so a pass is the last attempt.
pub fn join_spread_attempts<'a>(reports: impl Iterator<Item = &'a mut TestReport>) {
    let mut reports: Vec<_> = reports.collect();
    if reports.len() < 2 || !reports.iter().any(|report| report.summary.has_moved_tests) {
        return;
    }
    let mut is_changed = vec![false; reports.len()];
    for attempts in spread_attempts(&reports) {
        let rank = |result| match result {
            TestResult::Success => 3,
            TestResult::Error => 2,
            TestResult::Failure => 1,
            TestResult::Skipped | TestResult::Unfinished => 0,
        };
        let result = |at: &CasePlace| reports[at.report].cases[at.case].result;
        let Some(last) = attempts.iter().copied().max_by_key(|at| rank(result(at))) else {
            continue;
        };
        for at in attempts {
            is_changed[at.report] = true;
            if at != last {
                join(&mut reports, last, at);
            }
        }
    }
    for (report, _) in reports.into_iter().zip(is_changed).filter(|(_, is_changed)| *is_changed) {
        // A test without attempts was joined to another one.
        report.cases.retain(|case| case.attempts > 0);
        report.add_up();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CasePlace {
    report: usize,
    case: usize,
}

/// Where the attempts of each test are. If one report has a test of that name twice, these are two tests; if it passed
/// twice, it wasn't run again for a failure.
fn spread_attempts(reports: &[&mut TestReport]) -> Vec<Vec<CasePlace>> {
    type Identity<'a> = (&'a str, &'a str, &'a str, Option<&'a str>);
    let mut places: HashMap<Identity<'_>, Vec<CasePlace>> = HashMap::new();
    for (number, report) in reports.iter().enumerate() {
        let tests = report.cases.iter().enumerate();
        for (at, case) in tests.filter(|(_, case)| case.kind == TestRowKind::Test) {
            let identity = (&*case.suite, &*case.classname, &*case.name, case.variant.as_deref());
            places.entry(identity).or_default().push(CasePlace { report: number, case: at });
        }
    }
    let result = |at: &CasePlace| reports[at.report].cases[at.case].result;
    let are_attempts = |places: &Vec<CasePlace>| {
        places.len() > 1
            && places.is_sorted_by(|a, b| a.report < b.report)
            && places.iter().any(|at| result(at).is_failed())
            && places.iter().filter(|at| result(at) == TestResult::Success).count() < 2
            && places.iter().all(|at| result(at) != TestResult::Unfinished)
    };
    places.into_values().filter(are_attempts).collect()
}

/// Adds the attempts at `from` to the last one, and leaves `from` without any.
fn join(reports: &mut [&mut TestReport], last: CasePlace, from: CasePlace) {
    let earlier = &mut reports[from.report].cases[from.case];
    let attempts = std::mem::take(&mut earlier.attempts);
    let mut details = std::mem::take(&mut earlier.details);
    let (time, file) = (earlier.time, earlier.file.take());
    details.iter_mut().for_each(|detail| detail.kind = TestDetailKind::Rerun);
    let case = &mut reports[last.report].cases[last.case];
    case.attempts = case.attempts.saturating_add(attempts);
    case.details.extend(details);
    case.flaky = case.result == TestResult::Success;
    case.time = case.time.zip(time).map(|(last, earlier)| last + earlier).or(case.time).or(time);
    case.file = case.file.take().or(file);
}
