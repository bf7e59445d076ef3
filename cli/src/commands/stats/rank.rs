//! `crcr stats flaky|slow|failing`: the tests of a repository that stand out.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use crcr_results::retention::day_of;
use crcr_results::test_runs::{TestQuery, TestRanking, TestStats, date};
use crcr_results::{Results, ResultsError, ResultsUrl};
use jiff::Timestamp;
use serde_json::json;

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
        limit: args.limit,
    };
    let stats = results.test_stats(&query).await.map_err(not_read)?;
    printer.data(&match args.format {
        DataFormat::Text => text(&stats, ranking),
        DataFormat::Json => format!("{}\n", json!(stats)),
    });
    if stats.is_empty() {
        let kind = match ranking {
            TestRanking::Flaky => "flaky test",
            TestRanking::Slow => "test with a time",
            TestRanking::Failing => "failing test",
            TestRanking::New => "new test",
        };
        let of = branches(&args.stored);
        printer.notice(&format!(
            "no {kind} of {} since {}{of}",
            args.stored.repo,
            date(query.days.0)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Which results were looked at, for a message that there are none.
pub(super) fn branches(args: &StoredTestArgs) -> &'static str {
    if args.all_branches {
        ""
    } else {
        " on its default branch; `--all-branches` includes the others"
    }
}

fn text(stats: &[TestStats], ranking: TestRanking) -> String {
    let mut text = String::new();
    for test in stats {
        let name = [&*test.classname, &*test.name].join(".");
        let (number, what) = match ranking {
            TestRanking::Flaky => (test.share(test.flaky) * 100.0, "% flaky"),
            TestRanking::Failing => (test.share(test.failures) * 100.0, "% failed"),
            TestRanking::Slow | TestRanking::New => (test.mean_time.unwrap_or_default(), "s"),
        };
        // A name may contain anything that a report can.
        let name: String = name.chars().flat_map(char::escape_debug).collect();
        let _ = writeln!(text, "{number:8.1} {what:<9} {:6} runs  {name}", test.runs);
    }
    text
}

/// The results database, for reading.
pub async fn open(args: &StoredTestArgs, env: &Env) -> Result<Arc<dyn Results>, Failure> {
    let url = args.results.as_deref().or_else(|| env.get(env_vars::CRCR_RESULTS));
    let url = url.ok_or_else(|| {
        Failure::unexpected("usage", "no results to read")
            .hint("name them with `--results` or CRCR_RESULTS")
    })?;
    let url = ResultsUrl::parse(url)
        .map_err(|what| Failure::user("results", format!("`--results`: {what}")))?;
    crcr_results::open_to_read(&url).await.map_err(not_read)
}

pub fn not_read(error: ResultsError) -> Failure {
    Failure::unexpected("results", "the results can't be read").because(error)
}

/// The first and the last day.
pub fn days(args: &StoredTestArgs) -> (i64, i64) {
    let today = day_of(Timestamp::now());
    (args.since.first_day(today), today)
}
