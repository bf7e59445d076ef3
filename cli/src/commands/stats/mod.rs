//! `crcr stats …`

mod collect;
mod explain;
pub mod owners;
mod pack;
pub mod rank;
mod times;

use std::fmt::Write as _;

use crcr_domain::ci_data::test_run::TestTally;
use crcr_results::test_runs::TestRanking;

use crate::cli::stats::StatsCommand;
use crate::env_vars::Env;
use crate::failure::Outcome;
use crate::printer::Printer;
use crate::render::plural;

pub async fn run(command: StatsCommand, env: &Env, printer: &Printer) -> Outcome {
    match command {
        StatsCommand::Explain(args) => explain::run(&args, printer),
        StatsCommand::Pack(args) => pack::run(&args, env, printer).await,
        StatsCommand::Flaky(args) => rank::run(&args, TestRanking::Flaky, env, printer).await,
        StatsCommand::Slow(args) => rank::run(&args, TestRanking::Slow, env, printer).await,
        StatsCommand::Failing(args) => rank::run(&args, TestRanking::Failing, env, printer).await,
        StatsCommand::Times(args) => times::times(&args, env, printer).await,
        StatsCommand::Shard(args) => times::shard(&args, printer),
        StatsCommand::Collect(args) => Box::pin(collect::run(&args, env, printer)).await,
    }
}

/// Such as `4 tests: 2 passed, 1 failed, 1 skipped, 1 flaky`.
fn counts(tally: &TestTally) -> String {
    let tests = plural(tally.tests, "test", "tests");
    let mut text = format!("{tests}: {} passed", tally.successes);
    for (number, what) in [
        (tally.failures, "failed"),
        (tally.errors, "with errors"),
        (tally.skipped, "skipped"),
        (tally.unfinished, "unfinished"),
        (tally.flaky, "flaky"),
    ] {
        if number > 0 {
            let _ = write!(text, ", {number} {what}");
        }
    }
    text
}
