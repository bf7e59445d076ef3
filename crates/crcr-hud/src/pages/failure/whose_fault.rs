//! What tells whose fault a failed job is: its tests' history and owners, and whether others had the failure before.

use std::collections::BTreeSet;

use crcr_domain::RepoName;
use crcr_domain::ci_data::job_log::EndedJob;
use crcr_domain::ci_data::test_run::{TestRowKind, full_name};
use crcr_domain::results::Rate;
use crcr_results::retention::day_of;
use crcr_results::test_history::TestIdentity;
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use jiff::tz::TimeZone;
use maud::{Markup, html};
use serde::Serialize;

use super::{JobModel, MAX_SIMILAR, SIMILAR_SINCE, alike};
use crate::address;
use crate::context::{Hud, PageError};
use crate::files::QuarantineView;
use crate::layout::ago;
use crate::model::RateView;
use crate::model::red_branches::trunk;

/// Failed tests whose history is read.
const MAX_KNOWN_TESTS: usize = 5;
/// Days of which flaky results are counted.
const FLAKY_DAYS: i64 = 30;

/// What is known of a test that failed in a job.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct KnownTest {
    pub(crate) identity: TestIdentity,
    /// On the default branch, in the last 30 days.
    pub(crate) flaky: RateView,
    pub(crate) owners: Vec<String>,
    pub(crate) quarantine: Option<QuarantineView>,
}

/// The newest failure with the same cause that ended before, elsewhere. One of the default branch comes first.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct EarlierFailure {
    pub(crate) job: EndedJob,
    pub(crate) on_default_branch: bool,
}

pub(crate) async fn add(hud: &Hud, repo: &RepoName, model: &mut JobModel) -> Result<(), PageError> {
    for identity in failed_tests(hud, repo, model).await? {
        let known = known_test(hud, repo, identity).await?;
        model.known_tests.push(known);
    }
    let Some(found) = model.found() else { return Ok(()) };
    // A line has numbers, which no other has; what a rule captures hasn't.
    let is_comparable = !found.captures.is_empty();
    let trunk = trunk(hud, repo.as_str()).await?.unwrap_or_default();
    if model.is_on_branch && model.branch() == trunk {
        model.alike_since = alike::since(hud, repo, model).await?;
        return Ok(());
    }
    model.earlier = earlier(hud, repo, model, &trunk).await?;
    model.is_only_here =
        is_comparable && model.earlier.is_none() && model.similar.len() < MAX_SIMILAR;
    Ok(())
}

/// The tests that reports name, or else the one that the log's line names.
async fn failed_tests(
    hud: &Hud,
    repo: &RepoName,
    model: &JobModel,
) -> Result<Vec<TestIdentity>, PageError> {
    let mut found = vec![];
    let reported = model.failed_tests.iter().filter(|test| test.kind == TestRowKind::Test);
    for test in reported.take(MAX_KNOWN_TESTS) {
        found.extend(hud.results.test_identity(repo.as_str(), test.test_id).await?);
    }
    let line = model.found().map(|found| found.captures.first().unwrap_or(&found.line));
    if model.failed_tests.is_empty()
        && let Some(name) = line.and_then(|line| name_in_pytest(line))
    {
        let named = hud.results.tests_named(repo.as_str(), &name, 2).await?;
        // Which of several it is, the line doesn't say.
        if named.len() == 1 {
            found.extend(named);
        }
    }
    Ok(found)
}

/// `CLASS.NAME` of `FILE.py::CLASS::NAME`, which the lines of logs have.
pub(crate) fn name_in_pytest(text: &str) -> Option<String> {
    let id = text.split_whitespace().find(|word| word.contains("::"))?;
    Some(id.split_once(".py::").map_or(id, |(_, name)| name).replace("::", "."))
}

async fn known_test(
    hud: &Hud,
    repo: &RepoName,
    identity: TestIdentity,
) -> Result<KnownTest, PageError> {
    let today = day_of(hud.now());
    let span = (today - FLAKY_DAYS + 1, today);
    let days = hud.results.test_job_days(repo.as_str(), identity.test_id, span).await?;
    let (mut ran, mut flaky) = (0, 0);
    for day in days.iter().filter(|day| day.on_default_branch) {
        ran += day.runs.saturating_sub(day.skipped);
        flaky += day.flaky;
    }
    let files = (hud.files)(repo.as_str());
    let date = hud.now().to_zoned(TimeZone::UTC).date();
    Ok(KnownTest {
        flaky: RateView::from(Rate { numerator: flaky, denominator: ran.max(flaky) }),
        owners: files
            .as_ref()
            .map(|files| files.owners_of(repo.as_str(), &identity))
            .unwrap_or_default(),
        quarantine: files.and_then(|files| files.quarantine_of(&identity, date)),
        identity,
    })
}

async fn earlier(
    hud: &Hud,
    repo: &RepoName,
    model: &JobModel,
    trunk: &str,
) -> Result<Option<EarlierFailure>, PageError> {
    let Some(log) = &model.log else { return Ok(None) };
    let (own, sha) = (&log.job, model.sha());
    let before = |job: &&EndedJob| job.completed_at < own.completed_at && job.head_sha != sha;
    let candidates: Vec<&EndedJob> = model.similar.iter().filter(before).collect();
    let shas: Vec<String> = candidates.iter().map(|job| job.head_sha.clone()).collect();
    if shas.is_empty() {
        return Ok(None);
    }
    let selection = ThingSelection::Commits(&shas);
    let query = ThingQuery { event: "push", repository: repo.as_str(), selection };
    let pushes = hud.results.current_things(&query).await?.into_iter();
    // A fork's branch may have the name of the default one.
    let pushed: BTreeSet<String> =
        pushes.filter(|row| row.branch == trunk).map(|row| row.sha).collect();
    let is_here = |job: &EndedJob| job.repository == own.repository;
    let is_on_trunk = |job: &EndedJob| is_here(job) && pushed.contains(&job.head_sha);
    let on_trunk = candidates.iter().find(|job| is_on_trunk(job));
    let elsewhere = candidates.iter().find(|job| !is_here(job) || job.branch != own.branch);
    Ok(on_trunk
        .or(elsewhere)
        .map(|job| EarlierFailure { job: (*job).clone(), on_default_branch: on_trunk.is_some() }))
}

/// Whether the failure was there before, in a sentence.
pub(crate) fn sentence(model: &JobModel) -> Markup {
    html! {
        @if let Some(EarlierFailure { job, on_default_branch }) = &model.earlier {
            p {
                strong { "Not only here" } ": "
                @if *on_default_branch || job.repository != model.repository {
                    bdi { @if *on_default_branch { (job.branch) } @else { (job.repository) } }
                } @else { "another branch" }
                " had this failure before, in "
                a href=(address::failure(&job.repository, job.job_id)) { bdi { (job.title()) } } ", " (ago(job.completed_at)) "."
            }
        } @else if model.is_only_here {
            p { strong { "Only here" } ": nobody else had this failure in the " (SIMILAR_SINCE.as_hours() / 24) " days before." }
        }
    }
}

/// The test that the log's line names, where no report does.
pub(crate) fn test_of_line(model: &JobModel) -> Markup {
    html! { @if model.failed_tests.is_empty() && !model.known_tests.is_empty() {
        p { strong { "The test of this line" } }
        ul.tests { @for KnownTest { identity: test, .. } in &model.known_tests { li {
            a href=(address::test(&model.repository, test.test_id)) { bdi { (full_name(&test.suite, &test.classname, &test.name)) } }
            (about(model, test.test_id))
        } } }
    } }
}

/// Whether a failed test is flaky or quarantined, and whom to ask.
pub(crate) fn about(model: &JobModel, test_id: u64) -> Markup {
    let test = model.known_tests.iter().find(|test| test.identity.test_id == test_id);
    html! { @if let Some(test) = test {
        @let flaky = test.flaky.rate;
        @if flaky.numerator > 0 {
            div.detail { strong { "Flaky" } ": " (flaky.numerator) " of " (flaky.denominator) " results on the default branch in " (FLAKY_DAYS) " days" }
        }
        @if let Some(entry) = &test.quarantine {
            div.detail { strong { "Quarantined" } " by " bdi { (entry.owner) } ": " bdi { (entry.reason) } ". It " (entry.end()) }
        }
        @if !test.owners.is_empty() { div.detail { "Owned by " bdi { (test.owners.join(", ")) } } }
    } }
}
