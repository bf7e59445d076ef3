//! Counts of JUnit reports, and the tests that failed.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use crcr_artifacts::collect::{FileQuery, collect};
use crcr_cidata::junit::{self, ReportEnd, TestCase, TestVerdict};
use crcr_domain::callback::{FAILED_TESTS, FailedTest, MESSAGE_CHARS, NAME_CHARS, TestCounts};

use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

/// The most bytes of one report that are read.
const MAX_REPORT: u64 = 256 * 1024 * 1024;

/// What the reports say together.
#[derive(Debug, PartialEq)]
pub struct Tests {
    pub counts: TestCounts,
    /// The first ones, in the order of the files' names.
    pub failed: Vec<FailedTest>,
}

/// Reads every report that the globs find; `None` without globs, or when nothing was found.
///
/// A broken report costs a warning and what comes after the break, not the result of the job.
pub fn read(globs: &[String], env: &Env, printer: &Printer) -> Result<Option<Tests>, Failure> {
    if globs.is_empty() {
        return Ok(None);
    }
    let cwd = std::env::current_dir()
        .map_err(|error| Failure::unexpected("cwd", "no working directory").because(error))?;
    let home = env.get(env_vars::HOME).map(Path::new);
    let query = FileQuery { patterns: globs, cwd: &cwd, home, hidden: false };
    let found = collect(&query).map_err(|error| {
        Failure::user("junit-glob", "the input `junit` finds nothing to read").because(error)
    })?;
    let mut tests = Tests {
        counts: TestCounts { passed: 0, failed: 0, skipped: 0, total: 0 },
        failed: Vec::new(),
    };
    let mut reports = 0;
    for entry in found.entries.iter().filter(|entry| entry.path.ends_with(".xml")) {
        reports += 1;
        if let Err(why) = add(&found.root.join(&entry.path), &mut tests) {
            printer.warning(&format!("`{}`: {why}", entry.path), None);
        }
    }
    if reports == 0 {
        let globs = globs.join("`, `");
        let hint = "the tests may have died before they wrote a report";
        printer.warning(&format!("no JUnit report at `{globs}`"), Some(hint));
        return Ok(None);
    }
    Ok(Some(tests))
}

fn add(path: &Path, tests: &mut Tests) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let ending = junit::read(BufReader::new(file.take(MAX_REPORT)), |case| tests.count(&case));
    match ending {
        Ok(ReportEnd::Complete) => Ok(()),
        Ok(ReportEnd::Truncated) => {
            Err("the report stops in the middle; what it says up to there counts".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

impl Tests {
    fn count(&mut self, case: &TestCase) {
        self.counts.total += 1;
        match case.verdict {
            TestVerdict::Success => self.counts.passed += 1,
            TestVerdict::Skipped => self.counts.skipped += 1,
            TestVerdict::Failure | TestVerdict::Error => {
                self.counts.failed += 1;
                if self.failed.len() < FAILED_TESTS {
                    self.failed.push(failed(case));
                }
            }
        }
    }
}

fn failed(case: &TestCase) -> FailedTest {
    let name = match &case.classname {
        Some(class) => format!("{class}.{}", case.name),
        None => case.name.clone(),
    };
    let cut = |text: &str, most: usize| text.chars().take(most).collect::<String>();
    FailedTest {
        name: cut(&name, NAME_CHARS),
        file: case.file.as_deref().map(|file| cut(file, NAME_CHARS)),
        message: case.message.as_deref().map(|message| cut(message, MESSAGE_CHARS)),
        ..FailedTest::default()
    }
}
