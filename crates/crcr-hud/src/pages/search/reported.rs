//! What the search finds of the reports of backends.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::RepoName;
use crcr_domain::protocol::callback::FailedTest;
use crcr_domain::results::facts::AttemptFact;
use crcr_domain::results::jobs_by_day;
use crcr_results::Window;
use crcr_results::retention::midnight;
use jiff::SignedDuration;

use super::{HitKind, JOB_DAYS, SearchHit, has_text, hits_of, words};
use crate::address::address;
use crate::context::{Hud, PageError};
use crate::model::days::{SharedFacts, facts};
use crate::query::ShownEvents;

/// Writes of facts of the days in which jobs and tests of backends are looked for.
const MAX_REPORTED: u64 = 100_000;

/// What backends reported in the last days: the newest days, until they are too much to read.
pub(crate) struct ReportedWeek {
    facts: SharedFacts,
    window: Window,
}

pub(crate) async fn reported(hud: &Hud) -> Result<Option<ReportedWeek>, PageError> {
    let now = hud.now();
    let week = Window::all(now - SignedDuration::from_hours(24 * JOB_DAYS), now);
    let mut writes: BTreeMap<i64, u64> = BTreeMap::new();
    // The revision without a repository is that of the reports.
    let revisions = hud.results.day_revisions(&week).await?;
    for revision in revisions.iter().filter(|revision| !revision.repo.is_empty()) {
        *writes.entry(revision.day).or_default() += revision.changes;
    }
    let mut sum: u64 = 0;
    let read = writes.into_iter().rev().take_while(|(_, changes)| {
        sum += changes;
        sum <= MAX_REPORTED
    });
    let Some((first, _)) = read.last() else { return Ok(None) };
    let window = Window { from: week.from.max(midnight(first)), ..week };
    Ok(Some(ReportedWeek { facts: facts(hud, &window).await?, window }))
}

impl ReportedWeek {
    /// The jobs with the text in their name, their workflow's or what they ran on: shown on the backend's page.
    pub(crate) fn jobs(&self, text: &str) -> Vec<SearchHit> {
        let lower = text.to_lowercase();
        let mut known = BTreeSet::new();
        for row in self.facts.attempts(&self.window).filter(|row| row.expected.is_none()) {
            let (job, machine) = (row.job.as_deref(), row.details.environment.as_deref());
            let is_nightly = ShownEvents::Nightly.includes(&row.event);
            known.insert((&*row.repo, &*row.workflow, job, is_nightly, machine));
        }
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for (repo, workflow, job, is_nightly, machine) in known {
            let name = job_name(workflow, job);
            if [Some(&*name), machine].iter().flatten().any(|text| has_text(text, &lower)) {
                let path = matrix(repo, &name, is_nightly);
                found.entry(format!("{repo}: {name}")).or_insert(path);
            }
        }
        hits_of(HitKind::BackendJob, found)
    }

    /// The job that GitHub gave this id, or the jobs of the run.
    pub(crate) fn with_id(&self, id: &str) -> Vec<SearchHit> {
        let has_id = |row: &&AttemptFact| {
            let ids = [Some(&*row.run_id), row.details.check_run_id.as_deref()];
            row.expected.is_none() && ids.contains(&Some(id))
        };
        let rows = self.facts.attempts(&self.window).filter(has_id);
        let hit = |row: &AttemptFact| {
            let name = job_name(&row.workflow, row.job.as_deref());
            let path = matrix(&row.repo, &name, ShownEvents::Nightly.includes(&row.event));
            (format!("{}: {name}", row.repo), path)
        };
        hits_of(HitKind::BackendJob, rows.map(hit).collect())
    }

    /// The newest report of a run of a backend.
    pub(crate) fn of_run(&self, repo: &RepoName, run_id: &str) -> Option<&AttemptFact> {
        let rows = self
            .facts
            .attempts(&self.window)
            .filter(|row| row.run_id == run_id && row.repo.eq_ignore_ascii_case(repo.as_str()));
        rows.max_by_key(|row| row.received_at)
    }

    /// The tests that failed with the text in their name or in the path of their file: the jobs in which they did.
    pub(crate) fn tests(&self, text: &str) -> Vec<SearchHit> {
        let lower = text.to_lowercase();
        self.failed_tests(|test| {
            let texts = [Some(&*test.name), test.file.as_deref()];
            texts.iter().flatten().any(|text| has_text(text, &lower))
        })
    }

    /// The tests that failed with the text in their message.
    pub(crate) fn tests_by_message(&self, text: &str) -> Vec<SearchHit> {
        let wanted = words(text);
        self.failed_tests(|test| {
            test.message.as_deref().is_some_and(|message| words(message).contains(&wanted))
        })
    }

    /// Only attempts that count are searched, because `/reported` lists no others.
    fn failed_tests(&self, is_found: impl Fn(&FailedTest) -> bool) -> Vec<SearchHit> {
        let wanted = self.wanted_tests(is_found);
        let repos: BTreeSet<&str> = wanted.iter().map(|(repo, ..)| *repo).collect();
        let attempts = self.facts.attempts(&self.window);
        let attempts = attempts.filter(|row| repos.contains(&*row.repo));
        // Which commits were replaced doesn't decide which attempts count.
        let days = jobs_by_day(attempts, std::iter::empty(), std::iter::empty());
        let mut seen = BTreeSet::new();
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for (day, (jobs, _)) in days {
            let counted = jobs.iter().map(|job| job.record).filter(|row| row.expected.is_none());
            for (row, test) in counted.flat_map(failed_tests_of) {
                let is_first = wanted.contains(&reported_test(row, test))
                    && seen.insert((day.nightly, &*row.repo, &*test.name));
                let name = || format!("{}: {}", row.repo, test.name);
                // One page has either; most want that of pull requests.
                if is_first && !(day.nightly && found.contains_key(&name())) {
                    found.insert(name(), reported_path(row, test, day.nightly));
                }
            }
        }
        hits_of(HitKind::BackendTest, found)
    }

    fn wanted_tests(&self, is_found: impl Fn(&FailedTest) -> bool) -> BTreeSet<ReportedTest<'_>> {
        let (mut seen, mut wanted) = (BTreeSet::new(), BTreeSet::new());
        for (row, test) in self.facts.attempts(&self.window).flat_map(failed_tests_of) {
            let reported = reported_test(row, test);
            // Most fail again and again.
            if seen.insert(reported) && is_found(test) {
                wanted.insert(reported);
            }
        }
        wanted
    }
}

/// Its backend, its name, its file and its message.
type ReportedTest<'a> = (&'a str, &'a str, Option<&'a str>, Option<&'a str>);

fn reported_test<'a>(row: &'a AttemptFact, test: &'a FailedTest) -> ReportedTest<'a> {
    (&row.repo, &test.name, test.file.as_deref(), test.message.as_deref())
}

fn failed_tests_of(row: &AttemptFact) -> impl Iterator<Item = (&AttemptFact, &FailedTest)> {
    row.details.failed_tests.iter().map(move |test| (row, test))
}

/// The jobs in which a test failed.
fn reported_path(row: &AttemptFact, test: &FailedTest, is_nightly: bool) -> String {
    let asked = [
        ("backend", Some(&*row.repo)),
        ("test", Some(&*test.name)),
        ("window", Some("7d")),
        ("events", Some(events(is_nightly))),
    ];
    address("/reported", asked)
}

fn job_name(workflow: &str, job: Option<&str>) -> String {
    job.map_or(workflow.to_owned(), |job| format!("{workflow} / {job}"))
}

/// Where the page of a backend shows a job.
fn matrix(repo: &str, name: &str, is_nightly: bool) -> String {
    let asked = [("events", Some(events(is_nightly))), ("q", Some(name))];
    format!("{}#matrix", address(&format!("/crcr/{repo}"), asked))
}

fn events(is_nightly: bool) -> &'static str {
    if is_nightly { ShownEvents::Nightly.as_str() } else { ShownEvents::Pr.as_str() }
}
