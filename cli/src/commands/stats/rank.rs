//! `crcr stats flaky|slow|failing`: the tests of a repository that stand out.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use crcr_domain::ci_data::test_run::{full_name, name_with_variant};
use crcr_domain::results::Rate;
use crcr_results::retention::day_of;
use crcr_results::test_runs::{TestQuery, TestRanking, TestStats, date};
use crcr_results::{Results, ResultsError, ResultsUrl};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::owners;
use crate::cli::DataFormat;
use crate::cli::stats::{RankArgs, StoredTestArgs};
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

pub async fn run(args: &RankArgs, ranking: TestRanking, env: &Env, printer: &Printer) -> Outcome {
    let results = open(&args.stored, env).await?;
    let query = TestQuery {
        repository: args.stored.repo.clone(),
        ranking,
        days: days(&args.stored),
        job: args.job.clone(),
        all_branches: args.stored.all_branches,
        search: None,
        offset: 0,
        limit: args.limit,
    };
    let codeowners = owners::read(args.codeowners.as_deref())?;
    let stats = results.test_stats(&query).await.map_err(not_read)?;
    let owners = |test: &TestStats| {
        codeowners.owners_of_test(&args.stored.repo, test.file.as_deref(), &test.classname).to_vec()
    };
    let text = match args.format {
        DataFormat::Text => text(&stats, ranking, owners),
        DataFormat::Json => format!("{}\n", json(&stats, ranking, owners)),
    };
    printer.data_as(args.format, &text);
    if stats.is_empty() {
        let kind = match ranking {
            TestRanking::Flaky => "flaky test",
            TestRanking::Slow => "test with a time",
            TestRanking::Failing => "failing test",
            TestRanking::New => "new test",
        };
        let of = branches(&args.stored);
        let commit = match ranking {
            TestRanking::Flaky => {
                "; a flaky test passed and failed on one commit, which `crcr stats collect --sha` names"
            }
            _ => "",
        };
        printer.notice(&format!(
            "no {kind} of {} since {}{of}{commit}",
            args.stored.repo,
            date(query.days.0)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Which results were looked at, for a message that there are none.
pub(crate) fn branches(args: &StoredTestArgs) -> &'static str {
    if args.all_branches {
        ""
    } else {
        " on its default branch; `--all-branches` includes the others, such as runs of `repository_dispatch`, \
         and reports that were collected without `--on-default-branch`"
    }
}

/// What the ranking is by, of the runs of a test.
fn ranked(test: &TestStats, ranking: TestRanking) -> Option<(Rate, &'static str)> {
    let (count, what) = match ranking {
        TestRanking::Flaky => (test.flaky, "flaky"),
        TestRanking::Failing => (test.failures, "failed"),
        TestRanking::Slow | TestRanking::New => return None,
    };
    let denominator = test.runs_not_skipped();
    Some((Rate { numerator: count.min(denominator), denominator }, what))
}

fn text(
    stats: &[TestStats],
    ranking: TestRanking,
    owners: impl Fn(&TestStats) -> Vec<String>,
) -> String {
    let mut text = String::new();
    for test in stats {
        let name = full_name(&test.suite, &test.classname, &test.name);
        let mut name = name_with_variant(name, test.variant.as_deref());
        let owners = owners(test).join(" ");
        if !owners.is_empty() {
            let _ = write!(name, "  {owners}");
        }
        let number = match ranked(test, ranking) {
            Some((rate, what)) => {
                let (low, high) = rate.wilson().unwrap_or_default();
                let interval = format!("({:.0}–{:.0} %)", low * 100.0, high * 100.0);
                let percent = rate.value().unwrap_or_default() * 100.0;
                format!("{percent:8.1} % {what:<6} {interval:<11}")
            }
            None => format!("{:8.1} s", test.mean_time.unwrap_or_default()),
        };
        // A name may contain anything that a report can.
        let name: String = name.chars().flat_map(char::escape_debug).collect();
        let runs = if test.runs == 1 { "run " } else { "runs" };
        let _ = writeln!(text, "{number} {:6} {runs}  {name}", test.runs);
    }
    text
}

/// The statistics with the rate, its interval of 95 %, and the owners.
fn json(
    stats: &[TestStats],
    ranking: TestRanking,
    owners: impl Fn(&TestStats) -> Vec<String>,
) -> Value {
    let tests = stats.iter().map(|test| {
        let mut json = json!(test);
        json["owners"] = json!(owners(test));
        if let Some((rate, _)) = ranked(test, ranking) {
            json["rate"] = json!(rate.value());
            json["interval"] = json!(rate.wilson());
        }
        json
    });
    tests.collect()
}

/// The results database, for reading.
pub async fn open(args: &StoredTestArgs, env: &Env) -> Result<Arc<dyn Results>, Failure> {
    let url = match &args.results {
        Some(url) => Some(url.clone()),
        None => env.setting(env_vars::CRCR_RESULTS)?,
    };
    let url = url.ok_or_else(|| {
        Failure::unexpected("usage", "no results to read")
            .hint("name them with `--results` or CRCR_RESULTS")
    })?;
    let url = ResultsUrl::parse(&url)
        .map_err(|what| Failure::user("results", format!("`--results`: {what}")))?;
    crcr_results::open_to_read(&url).await.map_err(|error| {
        not_read(error).hint("name the database that `crcr stats collect` or the relay writes")
    })
}

pub fn not_read(error: ResultsError) -> Failure {
    Failure::unexpected("results-unreadable", "the results can't be read").because(error)
}

/// The first and the last day.
pub fn days(args: &StoredTestArgs) -> (i64, i64) {
    let today = day_of(Timestamp::now());
    (args.since.first_day(today), today)
}
