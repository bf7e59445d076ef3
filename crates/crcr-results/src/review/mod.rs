//! Reviews of levels: reading what they are made of, and their criteria.

use crcr_domain::results::criteria::NamedTestDay;
use crcr_domain::results::facts::{AttemptFact, CallbackOutcome, DispatchFact};
use crcr_domain::results::review::{
    LevelPeriod, ReviewFacts, ReviewQuestion, ReviewSubject, earliest_dispatch_time,
};
use crcr_domain::results::{BlamedJobs, LevelCriteria, RepoReview, jobs_of_days};
use crcr_domain::{Level, RepoName};
use jiff::Timestamp;

use super::blame::{blame_jobs, read_pushes};
use super::retention::day_of;
use super::{Results, ResultsError, Window};

/// The largest file of criteria, in bytes.
pub const MAX_CRITERIA_BYTES: usize = 64 * 1024;

/// The window of a review of `repo` at `level` by the facts before `to`, and since `from`; without
/// it, from the full hour on that is as long ago as `criteria` say, so that a review stays the same within an hour
/// in which nothing happens. Times are cut to whole seconds, which is what a permalink holds.
pub fn window(
    repo: &RepoName,
    level: Option<Level>,
    (from, to): (Option<Timestamp>, Timestamp),
    criteria: &LevelCriteria,
) -> Window {
    let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
    let to = second(to);
    let hour = |time: Timestamp| Timestamp::from_second(time.as_second().div_euclid(3600) * 3600);
    let from = from.map_or_else(
        || {
            let from = ReviewQuestion::at(level).from(to, criteria);
            hour(from).unwrap_or(from)
        },
        second,
    );
    Window::all(from, to).of_repos(vec![repo.as_str().to_owned()])
}

/// Reviews a repository at `level` by the facts of its [`window`].
pub async fn review(
    results: &dyn Results,
    repo: &RepoName,
    level: Option<Level>,
    span: (Option<Timestamp>, Timestamp),
    criteria: &LevelCriteria,
) -> Result<RepoReview, ResultsError> {
    let window = window(repo, level, span, criteria);
    let reports = async {
        let answers = results.report_outcomes(&window).await?;
        Ok(answers.into_iter().map(|answer| answer.outcome).collect())
    };
    let (attempts, dispatches, beside) = tokio::try_join!(
        results.attempts(&window),
        results.dispatches(&window),
        ReviewInputs::read(results, (repo, level), &window, criteria, reports),
    )?;
    let jobs = jobs_of_days(&attempts, &dispatches);
    let blamed =
        blame_jobs(results, &jobs, async |query| read_pushes(results, query).await).await?;
    let facts = (attempts.iter().collect(), dispatches.iter().collect());
    Ok(beside.review(repo, level, &window, facts, blamed, criteria))
}

/// More changes of level aren't shown.
const MAX_LEVEL_PERIODS: usize = 20;

/// The levels that the repository had before `to`, the newest first.
pub async fn level_history(
    results: &dyn Results,
    repo: &RepoName,
    to: Timestamp,
) -> Result<Vec<LevelPeriod>, ResultsError> {
    let from = earliest_dispatch_time(to);
    let mut periods: Vec<LevelPeriod> = vec![];
    while periods.len() < MAX_LEVEL_PERIODS {
        let until = periods.last().map(|period| period.from);
        let before = Window::all(from, until.unwrap_or(to)).of_repos(vec![repo.as_str().into()]);
        let since = async |level| {
            let since = results.at_level_since(&before, level).await?;
            Ok::<_, ResultsError>(since.map(|from| LevelPeriod { level, from, until }))
        };
        // Only one level can be the newest.
        let found = tokio::try_join!(
            since(Level::L1),
            since(Level::L2),
            since(Level::L3),
            since(Level::L4)
        )?;
        let Some(period) = found.0.or(found.1).or(found.2).or(found.3) else { break };
        periods.push(period);
    }
    Ok(periods)
}

/// What a review reads beside attempts and dispatches.
pub struct ReviewInputs {
    at_l2_since: Option<Timestamp>,
    reports: Vec<CallbackOutcome>,
    core_tests: Vec<NamedTestDay>,
}

impl ReviewInputs {
    /// Reads it, for a review of this window; what became of its reports is `reports`.
    pub async fn read<E: From<ResultsError>>(
        results: &dyn Results,
        (repo, level): (&RepoName, Option<Level>),
        window: &Window,
        criteria: &LevelCriteria,
        reports: impl Future<Output = Result<Vec<CallbackOutcome>, E>>,
    ) -> Result<Self, E> {
        let ever = Window { from: earliest_dispatch_time(window.to), ..window.clone() };
        let since = async {
            // No other question depends on it.
            match ReviewQuestion::at(level) {
                ReviewQuestion::Promotion => Ok(results.at_level_since(&ever, Level::L2).await?),
                ReviewQuestion::Signal | ReviewQuestion::Stay => Ok(None),
            }
        };
        let (names, days) = (criteria.core_tests(), (day_of(window.from), day_of(window.to)));
        let core_tests = async {
            if names.is_empty() {
                return Ok(vec![]);
            }
            Ok(results.newest_test_days(repo.as_str(), &names, days).await?)
        };
        let (at_l2_since, reports, core_tests) = tokio::try_join!(since, reports, core_tests)?;
        Ok(Self { at_l2_since, reports, core_tests })
    }

    /// Reviews by it and by the attempts and dispatches of the window.
    pub fn review(
        self,
        repo: &RepoName,
        level: Option<Level>,
        window: &Window,
        (attempts, dispatches): (Vec<&AttemptFact>, Vec<&DispatchFact>),
        blamed: BlamedJobs,
        criteria: &LevelCriteria,
    ) -> RepoReview {
        let Self { at_l2_since, reports, core_tests } = self;
        let subject =
            ReviewSubject { repo: repo.as_str(), level, from: window.from, to: window.to };
        RepoReview::of(
            subject,
            ReviewFacts { attempts, dispatches, at_l2_since, reports, blamed, core_tests },
            criteria,
        )
    }
}

/// Reads criteria, YAML or JSON: any of the names of [`LevelCriteria`], the others keep their defaults.
/// Refuses what is over [`MAX_CRITERIA_BYTES`], isn't YAML, has another name, or makes no sense.
pub fn criteria(text: &str) -> Result<LevelCriteria, String> {
    if text.len() > MAX_CRITERIA_BYTES {
        return Err(format!("larger than {} KiB", MAX_CRITERIA_BYTES / 1024));
    }
    // A file of comments alone is YAML's null.
    let read: Option<LevelCriteria> =
        serde_yaml::from_str(text).map_err(|error| error.to_string())?;
    let criteria = read.unwrap_or_default();
    match &*criteria.problems() {
        [] => Ok(criteria),
        problems => Err(problems.join("; ")),
    }
}

#[cfg(test)]
mod spreadsheet;

#[cfg(test)]
mod tests {
    use crcr_domain::results::UpstreamFailures;

    use super::*;

    #[test]
    fn criteria_override_the_defaults_by_name() {
        let read = criteria("job-pass-share: 0.95\nend-to-end-seconds: 7200\n").unwrap();
        let leave_out = criteria("upstream-failures: leave-out").unwrap();
        assert_eq!(leave_out.upstream_failures, UpstreamFailures::LeaveOut);
        let expected = LevelCriteria {
            job_pass_share: 0.95,
            end_to_end_seconds: 7200.0,
            ..LevelCriteria::default()
        };
        assert_eq!(read, expected);
        assert_eq!(criteria("{\"days-at-l2\": 10}").unwrap().days_at_l2, 10);
        let levels = "job-pass-share: 0.8\nl4: {job-pass-share: 0.95, core-jobs: [CI / core]}\n";
        let read = criteria(levels).unwrap();
        let pass = [Level::L2, Level::L3, Level::L4].map(|l| read.targets(l).job_pass_share);
        assert_eq!(pass, [None, Some(0.8), Some(0.95)]);
        assert_eq!(read.targets(Level::L4).core_jobs, ["CI / core"]);
        assert_eq!(criteria("# the ratified ones\n"), Ok(LevelCriteria::default()));
    }

    #[test]
    fn odd_criteria_are_refused_with_every_reason() {
        for (text, told) in [
            ("job-pass: 0.9", "unknown field `job-pass`"),
            ("job-pass-share: high", "job-pass-share"),
            ("[1]", "expected"),
            ("promotion-days: -1", "promotion-days"),
            ("upstream-failures: hide", "upstream-failures"),
            ("job-pass-share: 90", "`job-pass-share`: a share from 0 to 1, not 90"),
            ("queue-seconds: .nan", "`queue-seconds`: a number of seconds above 0, not NaN"),
            ("promotion-days: 1000\nqueue-seconds: 0", "0; `"),
            ("l2: {job-pass-share: 2}", "`l2.job-pass-share`: a share from 0 to 1, not 2"),
            ("l4: {days: 2}", "unknown field `days`"),
            ("promotion-days: 7", "`coverage-days`: at most `promotion-days`, 7, not 14"),
        ] {
            let why = criteria(text).unwrap_err();
            assert!(why.contains(told), "{text}: {why}");
        }
        assert!(criteria(&" ".repeat(MAX_CRITERIA_BYTES + 1)).unwrap_err().contains("64 KiB"));
    }
}
