//! Failures of quarantined tests, which are shown apart from all others.

use std::fmt::Write as _;

use crcr_domain::ci_data::quarantine::{Quarantine, QuarantineEntry};
use crcr_domain::ci_data::test_run::TestCase;

use crate::escape::escape_markdown;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::render::plural;
use crate::runner::Runner;

/// Tests in each list.
const LISTED: usize = 50;

#[derive(Debug, Default)]
pub struct QuarantinedFailures {
    pub count: u64,
    /// Why the quarantine doesn't explain everything that went wrong.
    pub not_all: Vec<String>,
    listed: Vec<ListedFailure>,
    /// Their entries have ended, so these failures count.
    expired: Vec<ListedFailure>,
}

#[derive(Debug)]
struct ListedFailure {
    test: String,
    owner: String,
    expiry: String,
    reason: String,
}

impl ListedFailure {
    fn new(case: &TestCase, entry: &QuarantineEntry) -> Self {
        Self {
            test: case.full_name(),
            owner: entry.owner.to_string(),
            expiry: entry.expiry.to_string(),
            reason: entry.reason.clone(),
        }
    }
}

impl QuarantinedFailures {
    pub fn add(&mut self, case: &TestCase, quarantine: &Quarantine) {
        let list = match (quarantine.covers(case), quarantine.expired(case)) {
            (Some(entry), _) => {
                self.count += 1;
                Some((&mut self.listed, entry))
            }
            (None, Some(entry)) => Some((&mut self.expired, entry)),
            (None, None) => None,
        };
        if let Some((list, entry)) = list.filter(|(list, _)| list.len() < LISTED) {
            list.push(ListedFailure::new(case, entry));
        }
    }

    /// Prints them to the log and the step's summary.
    pub fn show(&self, runner: &Runner, printer: &Printer) -> Result<(), Failure> {
        for failure in &self.expired {
            let ListedFailure { test, owner, expiry, .. } = failure;
            let text = format!("the quarantine of `{test}` ended on {expiry}: its failure counts");
            printer.warning(&text, Some(&format!("`{owner}` owns it: fix the test")));
        }
        if self.count == 0 {
            return Ok(());
        }
        let title = format!("{} in quarantine", plural(self.count, "failure", "failures"));
        printer.group(&title);
        let mut summary =
            format!("### {title}\n\n| test | owner | until | reason |\n|---|---|---|---|\n");
        for failure in &self.listed {
            let ListedFailure { test, owner, expiry, reason } = failure;
            printer.line(&format!("{test} ({owner}, until {expiry}): {reason}"));
            let cells = [test, owner, expiry, reason].map(|cell| escape_markdown(cell));
            let _ = writeln!(summary, "| {} |", cells.join(" | "));
        }
        if self.count > self.listed.len() as u64 {
            let more = format!("… and {} more", self.count - self.listed.len() as u64);
            printer.line(&more);
            let _ = writeln!(summary, "\n{more}");
        }
        printer.end_group();
        runner.append_summary(&summary)
    }
}
