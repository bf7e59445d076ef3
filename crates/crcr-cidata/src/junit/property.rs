//! Whatever tree of suites a tool writes: a red report never reads as green, and a quarantine of tests
//! never hides what has no test.

use std::fmt::Write as _;

use crcr_domain::ci_data::test_run::TestRowKind;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::TestReport;

/// What a tree of suites says, by the rules of `docs/test-reports.md`.
#[derive(Debug, Default, Clone, Copy)]
struct Truth {
    failed: u64,
    /// Failures that are declared beyond those.
    hidden: u64,
    /// Elements that failed, and whose test passed or failed later. gotestsum declares them, too.
    attempts: u64,
    elements: u64,
}

/// How a tool repeats tests in a suite.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Plain,
    Pytest,
    /// `gotestsum --rerun-fails`: only the last attempt of a test that failed can pass.
    GoReruns,
}

struct Generator {
    random: StdRng,
    number: u32,
}

impl Generator {
    fn report(seed: u64) -> (String, Truth) {
        let mut this = Self { random: StdRng::seed_from_u64(seed), number: 0 };
        let shape = match this.random.random_range(0..4) {
            0 => Shape::Pytest,
            1 => Shape::GoReruns,
            _ => Shape::Plain,
        };
        let mut inner = String::new();
        let mut truth = Truth::default();
        for _ in 0..this.random.random_range(1..4) {
            let (xml, of_suite) = this.suite(shape, 0);
            inner.push_str(&xml);
            truth.add(of_suite);
        }
        let sums = this.sums(&mut truth);
        let id = if this.chance(3) { " id='' name=''" } else { "" };
        (format!("<testsuites{id}{sums}>{inner}</testsuites>"), truth)
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_ratio(1, one_in)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.random.random_range(0..from.len())]
    }

    /// What a suite declares: nothing, too little, its sum, or more than it shows.
    fn sums(&mut self, truth: &mut Truth) -> String {
        let failed = truth.failed + truth.attempts;
        let declared = match self.random.random_range(0..8) {
            0 | 1 => return String::new(),
            2 => failed / 2,
            3 => {
                truth.hidden += 1 + u64::from(self.chance(2));
                failed + truth.hidden
            }
            _ => failed + truth.hidden,
        };
        let errors = self.random.random_range(0..=declared);
        format!(" tests='{}' failures='{}' errors='{errors}'", truth.elements, declared - errors)
    }

    fn suite(&mut self, shape: Shape, depth: u32) -> (String, Truth) {
        let (mut inner, mut truth) = (String::new(), Truth::default());
        if shape == Shape::GoReruns {
            inner.push_str("<properties><property name='go.version' value='go1.26'/></properties>");
        }
        for _ in 0..self.random.random_range(0..6) {
            if depth < 3 && shape == Shape::Plain && self.chance(4) {
                let (xml, of_suite) = self.suite(shape, depth + 1);
                inner.push_str(&xml);
                truth.add(of_suite);
            } else {
                self.test(shape, &mut inner, &mut truth);
            }
        }
        if self.chance(8) {
            // One or two fixtures that failed, after or beside the tests.
            for fixture in 0..=u32::from(self.chance(2)) {
                let _ = write!(inner, "<error message='teardown {fixture}'/>");
                truth.failed += 1;
            }
        }
        let sums = self.sums(&mut truth);
        let name = match shape {
            Shape::Pytest => "pytest",
            _ => self.pick(&["a", "a", "b", ""]),
        };
        let mut told = String::new();
        for attribute in ["hostname", "package", "id", "file"] {
            if shape == Shape::Plain && self.chance(3) {
                let value = self.pick(&["chromium", "firefox", "fv-az1234"]);
                let _ = write!(told, " {attribute}='{value}'");
            }
        }
        (format!("<testsuite name='{name}'{told}{sums}>{inner}</testsuite>"), truth)
    }

    /// One test, with its repetitions.
    fn test(&mut self, shape: Shape, xml: &mut String, truth: &mut Truth) {
        let mut name = self.pick(&["x", "y", "z", " x"]).to_owned();
        let class = self.pick(&["C", "", "c.D"]);
        let results: Vec<&str> = match shape {
            Shape::GoReruns => {
                self.number += 1;
                name = format!("{name}{}", self.number);
                let attempts = self.random.random_range(0..3);
                let last = self.pick(&["", "", "<failure/>"]);
                [vec!["<failure/>"; attempts], vec![last]].concat()
            }
            _ => {
                let count = if self.chance(3) { 3 } else { 1 };
                let kinds = [
                    "",
                    "",
                    "<failure/>",
                    "<error/>",
                    "<skipped/>",
                    "<skipped/>",
                    "<error message='setup'/>",
                    "status='failed'",
                ];
                (0..count).map(|_| self.pick(&kinds)).collect()
            }
        };
        let last = results.len() - 1;
        for (at, result) in results.iter().enumerate() {
            truth.elements += 1;
            let is_red = result.contains("fail") || result.contains("error");
            // Its later attempt decides.
            let is_attempt = shape == Shape::GoReruns && at < last;
            truth.failed += u64::from(is_red && !is_attempt);
            truth.attempts += u64::from(is_attempt);
            let attribute = if result.starts_with('<') { "" } else { result };
            let child = if result.starts_with('<') { result } else { "" };
            let _ = write!(
                xml,
                "<testcase name='{name}' classname='{class}' time='0' {attribute}>{child}</testcase>"
            );
        }
    }
}

impl Truth {
    fn add(&mut self, other: Self) {
        self.failed += other.failed;
        self.hidden += other.hidden;
        self.attempts += other.attempts;
        self.elements += other.elements;
    }
}

#[test]
fn red_report_never_reads_as_green_whatever_its_tree_of_suites() {
    let (mut red, mut hidden) = (0, 0);
    for seed in 0..4_000 {
        let (xml, truth) = Generator::report(seed);
        let report = TestReport::read(xml.as_bytes()).unwrap();
        let failed = report.tally.failures + report.tally.errors;
        let rows = || report.cases.iter().filter(|case| case.result.is_failed());
        let is_red = truth.failed + truth.hidden > 0;
        assert!(!is_red || failed > 0, "{seed}: {xml}");
        assert!(is_red || failed == 0, "{seed}: {xml}");
        assert!(!is_red || rows().count() > 0, "{seed}: a row tells of it: {xml}");
        if !xml.contains("pytest") {
            assert!(failed >= truth.failed, "{seed}: {failed} of {truth:?}: {xml}");
        }
        if truth.hidden > 0 {
            let is_uncoverable = |kind| kind == TestRowKind::Suite;
            assert!(rows().any(|case| is_uncoverable(case.kind)), "{seed}: {xml}");
            hidden += 1;
        }
        let sum = report.tally.successes + report.tally.skipped + report.tally.unfinished + failed;
        assert_eq!(report.tally.tests, sum, "{seed}");
        red += u32::from(is_red);
    }
    assert!(red > 1_000 && hidden > 300, "{red} {hidden}");
}
