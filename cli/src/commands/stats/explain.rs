//! `crcr stats explain`: what a report says, and what is wrong with it.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::process::ExitCode;

use crcr_cidata::junit::{JunitError, JunitGrade, TestReport};
use crcr_domain::ci_data::test_run::{TestCase, TestResult, TestTally};
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::DataFormat;
use crate::cli::stats::ExplainArgs;
use crate::escape::neutralize;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// More failing tests are counted only in the text; JSON has all.
const MAX_LISTED: usize = 50;

pub fn run(args: &ExplainArgs, printer: &Printer) -> Outcome {
    let unreadable = |error: io::Error| {
        Failure::unexpected("report-unreadable", format!("`{}` can't be read", args.file))
            .because(error)
            .hint("name the file, or `-` for standard input")
    };
    let report = if args.file == "-" {
        TestReport::read(io::stdin().lock())
    } else {
        TestReport::read(File::open(&args.file).map_err(unreadable)?)
    };
    let report = match report {
        Ok(mut report) => {
            report.check_age(Timestamp::now());
            Ok(report)
        }
        Err(JunitError::Read(error)) => return Err(unreadable(error)),
        Err(error) => Err(error.to_string()),
    };
    let grade = report.as_ref().map_or(JunitGrade::Invalid, TestReport::grade);
    let text = match args.format {
        DataFormat::Text => text(&args.file, grade, &report),
        DataFormat::Json => {
            let json = serde_json::to_string_pretty(&Explanation::new(&args.file, grade, &report))
                .map_err(|error| Failure::unexpected("json", "no JSON").because(error))?;
            format!("{json}\n")
        }
    };
    printer.data_as(args.format, &text);
    Ok(if grade == JunitGrade::Invalid { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

#[derive(Serialize)]
struct Explanation<'a> {
    file: &'a str,
    grade: &'static str,
    truncated: bool,
    quarantined: Option<&'a str>,
    counts: TestTally,
    time: f64,
    cases: Vec<ExplainedCase<'a>>,
    flaky: Vec<&'a str>,
    findings: Vec<ExplainedFinding<'a>>,
}

#[derive(Serialize)]
struct ExplainedCase<'a> {
    name: &'a str,
    classname: &'a str,
    file: Option<&'a str>,
    suite: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a str>,
    result: TestResult,
    attempts: u32,
    flaky: bool,
    time: Option<f64>,
    message: Option<&'a str>,
}

#[derive(Serialize)]
struct ExplainedFinding<'a> {
    rule: &'static str,
    line: u64,
    message: &'a str,
}

impl<'a> Explanation<'a> {
    fn new(file: &'a str, grade: JunitGrade, report: &'a Result<TestReport, String>) -> Self {
        let read = report.as_ref().ok();
        let cases = read.map_or(&[][..], |report| &report.cases);
        let findings = read.map_or(&[][..], |report| &report.summary.findings);
        Self {
            file,
            grade: grade.as_str(),
            truncated: read.is_some_and(|report| report.summary.is_truncated),
            quarantined: report.as_ref().err().map(String::as_str),
            counts: read.map(|report| report.tally).unwrap_or_default(),
            time: rounded(read.map_or(0.0, |report| report.time)),
            cases: cases.iter().map(ExplainedCase::new).collect(),
            flaky: cases.iter().filter(|case| case.flaky).map(|case| &*case.name).collect(),
            findings: findings
                .iter()
                .map(|finding| ExplainedFinding {
                    rule: finding.rule.as_str(),
                    line: finding.line,
                    message: &finding.message,
                })
                .collect(),
        }
    }
}

impl<'a> ExplainedCase<'a> {
    fn new(case: &'a TestCase) -> Self {
        Self {
            name: &case.name,
            classname: &case.classname,
            file: case.file.as_deref(),
            suite: &case.suite,
            variant: case.variant.as_deref(),
            result: case.result,
            attempts: case.attempts,
            flaky: case.flaky,
            time: case.time.map(rounded),
            message: case.message(),
        }
    }
}

/// To microseconds, which hides what adding binary fractions leaves behind.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

fn text(file: &str, grade: JunitGrade, report: &Result<TestReport, String>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}: {}", neutralize(file), grade.as_str());
    let report = match report {
        Ok(report) => report,
        Err(reason) => {
            let _ = writeln!(text, "  not a report that counts: {}", neutralize(reason));
            return text;
        }
    };
    let _ = writeln!(text, "  {}, {} s", super::counts(&report.tally), rounded(report.time));
    let is_bad =
        |case: &&TestCase| case.result.is_failed() || case.result == TestResult::Unfinished;
    list(&mut text, report.cases.iter().filter(is_bad), |case| case.result.as_str());
    list(&mut text, report.cases.iter().filter(|case| case.flaky), |_| "flaky");
    for finding in &report.summary.findings {
        let message = neutralize(&finding.message);
        let _ = writeln!(text, "  line {}: {message} [{}]", finding.line, finding.rule.as_str());
    }
    text
}

fn list<'a>(
    text: &mut String,
    mut cases: impl Iterator<Item = &'a TestCase>,
    what: impl Fn(&TestCase) -> &'static str,
) {
    for case in cases.by_ref().take(MAX_LISTED) {
        let variant = case.variant.as_deref().unwrap_or_default();
        let names = [&*case.suite, &*case.classname, &*case.name, variant];
        let name =
            names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" › ");
        let name = name.replace('\n', " ");
        let _ = write!(text, "  {}: {}", what(case), neutralize(&name));
        let first_line = case.message().and_then(|message| message.lines().next());
        let _ = match first_line {
            Some(line) => {
                let line: String = line.chars().take(200).collect();
                writeln!(text, ": {}", neutralize(&line))
            }
            None => writeln!(text),
        };
    }
    let more = cases.count();
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
}
