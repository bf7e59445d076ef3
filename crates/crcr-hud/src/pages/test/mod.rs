//! `/test/OWNER/REPO?id=…`: one test, and what became of it.

mod history;
mod markup;

use std::collections::BTreeSet;

use crcr_domain::RepoName;
use crcr_domain::ci_data::test_run::{TestResult, full_name};
use crcr_domain::probes::Culprit;
use crcr_domain::results::Rate;
use crcr_results::retention::day_of;
use crcr_results::test_history::{TestIdentity, TestJobDay, TestResultRow};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub(crate) use self::history::on_commits;
use self::history::{
    SetupOnCommit, charts, is_of_mixed, message_id, messages, mixed_setups, sort_messages, state,
    strip,
};
pub(crate) use self::markup::{feed_address, page};
use crate::address::SortOrder;
use crate::context::{Hud, PageError, repo_name};
use crate::files::QuarantineView;
use crate::model::RateView;
use crate::plot::Plot;
use crate::query::{MAX_SEARCH_CHARS, given, given_name};

const DEFAULT_DAYS: i64 = 30;
pub(crate) const MAX_DAYS: i64 = 90;
/// Failures that are read one by one.
const MAX_FAILURES: usize = 1000;
const MAX_MESSAGES: usize = 20;
const MESSAGE_SORTS: [&str; 4] = ["failures", "jobs", "newest", "oldest"];
/// A pass that is older says little about now.
const STALE: SignedDuration = SignedDuration::from_hours(72);
const RUNS_PER_PAGE: usize = 50;
/// Tests of one name.
const MAX_CHOICES: usize = 50;

/// `?id=HEX` or `?name=CLASS.NAME`, `?days=N`, `?runs=failed|flaky`, `?branches=default` and `?job=NAME` for some of its
/// runs, `?message=HEX` for the failures that say the same, `?page=N`, `?messages=failures|jobs|newest|oldest` to sort what
/// it says.
#[derive(Debug, Clone, Default, Deserialize, schemars::JsonSchema)]
pub(crate) struct TestPageQuery {
    id: Option<String>,
    name: Option<String>,
    #[schemars(with = "Option<u64>")]
    days: Option<String>,
    runs: Option<String>,
    branches: Option<String>,
    job: Option<String>,
    message: Option<String>,
    #[schemars(with = "Option<u64>")]
    page: Option<String>,
    messages: Option<String>,
}

impl TestPageQuery {
    /// The test with an id, or with a name; `None` without both.
    pub(crate) fn of(id: Option<String>, name: Option<String>) -> Option<Self> {
        (id.is_some() || name.is_some()).then(|| Self { id, name, ..Self::default() })
    }
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct TestModel {
    pub(crate) repository: String,
    pub(crate) name: String,
    pub(crate) days: i64,
    /// The tests of this name, if there are several: nothing else is told then.
    pub(crate) choices: Vec<TestIdentity>,
    #[serde(flatten)]
    pub(crate) test: Option<OneTest>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct OneTest {
    pub(crate) identity: TestIdentity,
    pub(crate) runs: u64,
    pub(crate) failed: RateView,
    pub(crate) flaky: RateView,
    /// In seconds.
    pub(crate) mean_time: Option<f64>,
    pub(crate) state: TestState,
    /// Whether it ran on the default branch; else all of this is of other branches and of pull requests.
    pub(crate) is_on_default_branch: bool,
    /// When the newest run began in which it wasn't skipped, of those that the state is of.
    pub(crate) newest_at: Option<Timestamp>,
    /// Whether that is days ago.
    pub(crate) is_stale: bool,
    pub(crate) owners: Vec<String>,
    /// Whether the repository's CODEOWNERS is known.
    pub(crate) owners_known: bool,
    pub(crate) quarantine: Option<QuarantineView>,
    pub(crate) quarantine_known: bool,
    /// The newest commits first. Those of the default branch, unless the test never ran there.
    pub(crate) commits: Vec<StripCommit>,
    /// The jobs that the test runs in, each with a result for each commit.
    pub(crate) jobs: Vec<StripJob>,
    /// The first ones in the order of `message_sort`, of `message_count`.
    pub(crate) messages: Vec<MessageGroup>,
    pub(crate) message_count: usize,
    pub(crate) message_sort: SortOrder,
    pub(crate) charts: Vec<Plot>,
    /// Which runs are listed.
    #[serde(flatten)]
    pub(crate) listed: RunFilter,
    /// Single results, the newest first.
    pub(crate) results: Vec<TestResultRow>,
    pub(crate) has_older: bool,
    /// Which commits broke jobs of backends in which this test failed.
    pub(crate) culprits: Vec<Culprit>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct RunFilter {
    pub(crate) only_failed: bool,
    pub(crate) only_flaky: bool,
    pub(crate) only_default_branch: bool,
    pub(crate) job: Option<String>,
    /// The [`MessageGroup::id`] of those that failed.
    pub(crate) message_id: Option<String>,
    pub(crate) page: usize,
}

impl RunFilter {
    /// `mixed`: where the test both failed and passed.
    fn includes(&self, row: &TestResultRow, mixed: &BTreeSet<SetupOnCommit<'_>>) -> bool {
        if self.only_default_branch && !row.on_default_branch
            || self.job.as_ref().is_some_and(|job| *job != row.job)
        {
            return false;
        }
        match &self.message_id {
            Some(id) => row.result.is_failed() && message_id(row) == *id,
            None if self.only_flaky => row.flaky || is_of_mixed(row, mixed),
            None => !self.only_failed || row.result.is_failed(),
        }
    }
}

/// How a test stands on the newest commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum TestState {
    NoResults,
    Passing,
    /// It failed on each of these commits.
    Failing {
        first_failing: String,
        since: Timestamp,
        last_good: Option<String>,
        commits: usize,
    },
    /// It passes now, and failed before.
    Recovered {
        last_failing: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct StripCommit {
    pub(crate) sha: String,
    pub(crate) at: Timestamp,
    /// What the test said, if it failed in a job and didn't pass there, too.
    #[serde(skip)]
    pub(crate) message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct StripJob {
    pub(crate) job: String,
    pub(crate) cells: Vec<Option<StripCell>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct StripCell {
    pub(crate) state: CellState,
    pub(crate) run_id: u64,
    pub(crate) job_id: Option<u64>,
}

/// Ordered from the worst to the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CellState {
    Failed,
    Unfinished,
    Flaky,
    Passed,
    Skipped,
}

/// Failures that say the same, whatever their numbers are.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct MessageGroup {
    pub(crate) id: String,
    pub(crate) message: String,
    pub(crate) failures: usize,
    pub(crate) jobs: usize,
    pub(crate) newest: TestResultRow,
    pub(crate) oldest_at: Timestamp,
}

pub(crate) async fn build(
    hud: &Hud,
    (owner, repo): (String, String),
    query: TestPageQuery,
) -> Result<TestModel, PageError> {
    let repo = repo_name(&owner, &repo)?;
    let days = number("days", query.days.as_deref(), DEFAULT_DAYS, 1..=MAX_DAYS)?;
    let page = number("page", query.page.as_deref(), 1, 1..=10_000)?;
    let (only_failed, only_flaky) = match given(query.runs.as_deref()).as_deref() {
        None | Some("all") => (false, false),
        Some("failed") => (true, false),
        Some("flaky") => (false, true),
        Some(_) => {
            return Err(PageError::Query("`runs` has to be `all`, `failed` or `flaky`".to_owned()));
        }
    };
    let only_default_branch = match given(query.branches.as_deref()).as_deref() {
        None | Some("all") => false,
        Some("default") => true,
        Some(_) => {
            return Err(PageError::Query("`branches` has to be `all` or `default`".to_owned()));
        }
    };
    let message_sort =
        SortOrder::named("messages", query.messages.as_deref(), "failures", &MESSAGE_SORTS)
            .map_err(PageError::Query)?;
    let name: String =
        query.name.unwrap_or_default().trim().chars().take(MAX_SEARCH_CHARS * 5).collect();
    let mut model = TestModel {
        repository: repo.to_string(),
        name: name.clone(),
        days,
        choices: vec![],
        test: None,
    };
    let identity = match given(query.id.as_deref()) {
        Some(id) => {
            let wrong = |_| PageError::Query("`id` has to be 16 hexadecimal digits".to_owned());
            let id = u64::from_str_radix(&id, 16).map_err(wrong)?;
            hud.results.test_identity(repo.as_str(), id).await?
        }
        None if name.is_empty() => {
            return Err(PageError::Query(
                "`name` has to be a test's name, as CLASS.NAME".to_owned(),
            ));
        }
        None => {
            let mut named = hud.results.tests_named(repo.as_str(), &name, MAX_CHOICES).await?;
            if named.len() > 1 {
                model.choices = named;
                return Ok(model);
            }
            named.pop()
        }
    };
    let identity = identity.ok_or_else(|| no_such_test(&repo, &name))?;
    model.name = full_name(&identity.suite, &identity.classname, &identity.name);
    let message_id = given(query.message.as_deref());
    if message_id.iter().any(|id| id.bytes().any(|byte| !byte.is_ascii_hexdigit())) {
        let text = "`message` has to be hexadecimal digits, as links to messages have them";
        return Err(PageError::Query(text.to_owned()));
    }
    let job = given_name(query.job.as_deref());
    let page = page as usize;
    let listed = RunFilter { only_failed, only_flaky, only_default_branch, job, message_id, page };
    let mut test = one_test(hud, &repo, identity, days, listed).await?;
    sort_messages(&mut test.messages, &message_sort);
    test.messages.truncate(MAX_MESSAGES);
    test.message_sort = message_sort;
    model.test = Some(test);
    Ok(model)
}

pub(crate) fn number(
    name: &str,
    value: Option<&str>,
    default: i64,
    allowed: std::ops::RangeInclusive<i64>,
) -> Result<i64, PageError> {
    let Some(value) = given(value) else { return Ok(default) };
    value.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        let (from, to) = (allowed.start(), allowed.end());
        PageError::Query(format!("`{name}` has to be a number from {from} to {to}"))
    })
}

fn no_such_test(repo: &RepoName, name: &str) -> PageError {
    let named = if name.is_empty() { String::new() } else { format!(" `{name}`") };
    PageError::NotFound(format!("no results of a test{named} of {repo} are stored"))
}

async fn one_test(
    hud: &Hud,
    repo: &RepoName,
    identity: TestIdentity,
    days: i64,
    listed: RunFilter,
) -> Result<OneTest, PageError> {
    let today = day_of(hud.now());
    let span = (today - days + 1, today);
    let (of_days, results) = tokio::try_join!(
        hud.results.test_job_days(repo.as_str(), identity.test_id, span),
        hud.results.test_results(repo.as_str(), identity.test_id, span, MAX_FAILURES),
    )?;
    let on_default = of_days.iter().any(|day| day.on_default_branch);
    let counted: Vec<&TestJobDay> =
        of_days.iter().filter(|day| day.on_default_branch == on_default).collect();
    let sum = |count: fn(&TestJobDay) -> u64| counted.iter().map(|day| count(day)).sum::<u64>();
    let ran = sum(|day| day.runs).saturating_sub(sum(|day| day.skipped));
    let share =
        |numerator: u64| RateView::from(Rate { numerator, denominator: ran.max(numerator) });
    let timed = sum(|day| day.timed);
    let seconds: f64 = counted.iter().map(|day| day.seconds).sum();
    let shown: Vec<&TestResultRow> =
        results.iter().filter(|row| row.on_default_branch == on_default).collect();
    let (commits, jobs) = strip(&shown);
    let ran_at = shown.iter().filter(|row| row.result != TestResult::Skipped).map(|row| row.at);
    let newest_at = ran_at.max();
    let files = (hud.files)(repo.as_str());
    let files = files.as_deref();
    let date_today = hud.now().to_zoned(TimeZone::UTC).date();
    let first = (listed.page - 1) * RUNS_PER_PAGE;
    let mixed = if listed.only_flaky { mixed_setups(&results) } else { BTreeSet::new() };
    let chosen = || results.iter().filter(|row| listed.includes(row, &mixed));
    let messages = messages(&shown);
    let full = full_name(&identity.suite, &identity.classname, &identity.name);
    let is_named = |one: &Culprit| {
        let mut tests = one.tests.iter();
        one.upstream.eq_ignore_ascii_case(repo.as_str()) && tests.any(|test| *test == full)
    };
    let culprits = (hud.probes)().await.culprits.into_iter().filter(is_named).collect();
    Ok(OneTest {
        culprits,
        runs: ran,
        failed: share(sum(|day| day.failures)),
        flaky: share(sum(|day| day.flaky)),
        mean_time: (timed > 0).then(|| seconds / timed as f64),
        state: state(&commits, &jobs),
        is_on_default_branch: on_default,
        is_stale: newest_at.is_some_and(|newest| hud.now().duration_since(newest) > STALE),
        newest_at,
        owners: files.map(|files| files.owners_of(repo.as_str(), &identity)).unwrap_or_default(),
        owners_known: files.is_some_and(|files| files.codeowners.is_some()),
        quarantine: files.and_then(|files| files.quarantine_of(&identity, date_today)),
        quarantine_known: files.is_some_and(|files| files.quarantine.is_some()),
        message_count: messages.len(),
        messages,
        message_sort: SortOrder { column: MESSAGE_SORTS[0], is_reversed: false },
        charts: charts(&counted, span),
        has_older: chosen().count() > first + RUNS_PER_PAGE,
        results: chosen().skip(first).take(RUNS_PER_PAGE).cloned().collect(),
        listed,
        identity,
        commits,
        jobs,
    })
}
