//! `crcr relay size`: what a relay needs for a load, from measured figures.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use crate::cli::DataFormat;
use crate::cli::relay::SizeArgs;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

/// Processor time of a webhook whose body is kept, in milliseconds: "Binaries" in `docs/benchmarks.md`.
const WEBHOOK_MS: f64 = 0.46;
/// Time of a processor for each dispatch, with up to 100 backends.
const DISPATCH_MS: f64 = 1.2;
/// The same with 1,000 backends.
const DISPATCH_MS_OF_MANY: f64 = 1.8;
/// The same for each report: 5,450 a second on two cores, the load included.
const REPORT_MS: f64 = 0.37;
/// Bytes of a dispatch with its delivery in SQLite: 3.5 GiB for 10⁶, 462 MiB for 10⁵.
const DISPATCH_BYTES: f64 = 3_600.0;
/// Bytes of a job's results in SQLite, of which two reports are estimated: `docs/operating/sizing.md`.
const JOB_BYTES: f64 = 2_000.0;
/// The same in ClickHouse, which takes 154 bytes where SQLite takes 1,427: `tests/bench/sizes.sh`.
const JOB_BYTES_IN_CLICKHOUSE: f64 = 216.0;
/// Bytes of a webhook as a row of the results in SQLite: `tests/bench/sizes.sh`.
const JOB_EVENT_BYTES: f64 = 3_000.0;
const RUN_EVENT_BYTES: f64 = 4_600.0;
const PULL_EVENT_BYTES: f64 = 6_600.0;
/// The same in ClickHouse, whatever the webhook is about: 250 to 300.
const EVENT_BYTES_IN_CLICKHOUSE: f64 = 275.0;
/// Queued or requested, in progress, completed.
const EVENTS_EACH: f64 = 3.0;
/// Resident after a load of which the webhooks were kept.
const RELAY_MIB: u64 = 57;
/// The caches of the HUD: eight kinds of entries with 64 MiB each.
const HUD_MIB: u64 = 512;
/// Bodies of requests, which anybody can send: eight of the largest.
const BODIES_MIB: u64 = 200;

/// How long records of dispatches and jobs are kept, in weeks (`CRCR_STATUS_TTL`).
const STATE_WEEKS: f64 = 5.0;
/// How long facts are kept, in weeks (`CRCR_RESULTS_RETENTION`).
const FACT_WEEKS: f64 = 400.0 / 7.0;
/// The part of a week's load in its busiest hour. An even load has 0.006.
const BUSIEST_HOUR: f64 = 0.03;
/// How busy one core may be in that hour.
const FULL: f64 = 0.7;
/// Calls of GitHub's API that an installation has in an hour.
const CALLS_AN_HOUR: f64 = 5_000.0;
/// Calls for one backend's check runs at one commit: created, begun, ended, and the lists of runs.
const CALLS_PER_VERDICT: f64 = 6.0;
/// Calls for the check run of one job: two to create it, one to end it.
const CALLS_PER_JOB: f64 = 3.0;

#[derive(Debug, Clone, PartialEq, Serialize)]
struct RelaySize {
    webhooks_a_week: f64,
    dispatches_a_week: f64,
    reports_a_week: f64,
    /// Seconds of one core.
    cpu_seconds_a_week: f64,
    /// Share of one core.
    cpu_in_the_busiest_hour: f64,
    memory_mib: u64,
    /// Records of 35 days, in SQLite or Redis.
    state_gib: f64,
    /// Results of 400 days, in SQLite.
    results_gib: f64,
    results_in_clickhouse_gib: f64,
    /// Webhooks of 400 days that are rows of the results, in SQLite, if the App gets those of backends' runs and jobs.
    webhook_rows_gib: f64,
    webhook_rows_in_clickhouse_gib: f64,
    /// Calls that count for one account, if all backends have it in common.
    dispatch_calls_in_the_busiest_hour: f64,
    upstream_calls_in_the_busiest_hour: f64,
    /// Pull requests a week at which one core of a relay is full.
    pulls_that_fill_a_core: f64,
    /// Pull requests a week at which GitHub's hourly limit is reached, upstream or by backends of one account.
    pulls_that_reach_githubs_limit: f64,
}

impl RelaySize {
    fn of(load: &SizeArgs) -> Self {
        let [pulls, backends, heads, jobs] =
            [load.pulls, load.backends, load.heads, load.jobs].map(f64::from);
        let shown = f64::from(load.check_runs.unwrap_or_else(|| load.backends.div_ceil(10)));
        // `opened`, a `synchronize` for each further head, and `closed`.
        let webhooks = pulls * (heads + 1.0);
        let dispatches = webhooks * backends;
        // Nothing is built for `closed`.
        let built = pulls * heads * backends;
        let reports = built * jobs * 2.0;
        let dispatch_ms = if load.backends > 100 { DISPATCH_MS_OF_MANY } else { DISPATCH_MS };
        let cpu =
            (webhooks * WEBHOOK_MS + dispatches * dispatch_ms + reports * REPORT_MS) / 1_000.0;
        let busy = cpu * BUSIEST_HOUR / 3_600.0;
        let dispatch_calls = dispatches * BUSIEST_HOUR;
        let upstream_calls =
            pulls * heads * shown * (CALLS_PER_VERDICT + jobs * CALLS_PER_JOB) * BUSIEST_HOUR;
        let events_of_ci = built * EVENTS_EACH * (RUN_EVENT_BYTES + jobs * JOB_EVENT_BYTES);
        let events = built * EVENTS_EACH * (1.0 + jobs) + webhooks;
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let per_pull = |most: f64, value: f64| if value > 0.0 { pulls * most / value } else { 0.0 };
        Self {
            webhooks_a_week: webhooks,
            dispatches_a_week: dispatches,
            reports_a_week: reports,
            cpu_seconds_a_week: cpu,
            cpu_in_the_busiest_hour: busy,
            memory_mib: RELAY_MIB + HUD_MIB + BODIES_MIB,
            state_gib: gib(dispatches * STATE_WEEKS * DISPATCH_BYTES),
            results_gib: gib(built * jobs * FACT_WEEKS * JOB_BYTES),
            results_in_clickhouse_gib: gib(built * jobs * FACT_WEEKS * JOB_BYTES_IN_CLICKHOUSE),
            webhook_rows_gib: gib(FACT_WEEKS * (events_of_ci + webhooks * PULL_EVENT_BYTES)),
            webhook_rows_in_clickhouse_gib: gib(FACT_WEEKS * events * EVENT_BYTES_IN_CLICKHOUSE),
            dispatch_calls_in_the_busiest_hour: dispatch_calls,
            upstream_calls_in_the_busiest_hour: upstream_calls,
            pulls_that_fill_a_core: per_pull(FULL, busy),
            pulls_that_reach_githubs_limit: per_pull(
                CALLS_AN_HOUR,
                dispatch_calls.max(upstream_calls),
            ),
        }
    }
}

pub fn run(args: &SizeArgs, printer: &Printer) -> Outcome {
    if args.check_runs.is_some_and(|count| count > args.backends) {
        return Err(Failure::user("check-runs", "`--check-runs` is more than `--backends`"));
    }
    let size = RelaySize::of(args);
    match args.format {
        DataFormat::Json => printer.data_line(&json!(size).to_string()),
        DataFormat::Text => printer.data_line(&text(args, &size)),
    }
    Ok(ExitCode::SUCCESS)
}

/// For a terminal of 80 columns.
fn text(args: &SizeArgs, size: &RelaySize) -> String {
    let SizeArgs { pulls, backends, heads, jobs, .. } = *args;
    let mut text = format!(
        "{} with {}, {} with {}\n",
        plural(pulls, "pull request a week", "pull requests a week"),
        plural(heads, "head", "heads"),
        plural(backends, "backend", "backends"),
        plural(jobs, "job", "jobs")
    );
    for (name, lines) in load_rows(size).into_iter().chain(limit_rows(pulls, size)) {
        for (n, line) in lines.lines().enumerate() {
            let name = if n == 0 { name } else { "" };
            let _ = writeln!(text, "  {name:36} {line}");
        }
    }
    text.push_str(
        "The busiest hour has 3 % of a week's load. docs/operating/sizing.md says what is\n\
         measured and what is assumed.",
    );
    text
}

fn load_rows(size: &RelaySize) -> [(&'static str, String); 6] {
    let [webhooks, dispatches, reports] =
        [size.webhooks_a_week, size.dispatches_a_week, size.reports_a_week];
    [
        (
            "webhooks, dispatches, reports a week",
            format!("{webhooks:.0}, {dispatches:.0}, {reports:.0}"),
        ),
        (
            "processor",
            format!(
                "{:.0} s of a core a week,\n{:.1} % of a core in the busiest hour",
                size.cpu_seconds_a_week,
                size.cpu_in_the_busiest_hour * 100.0
            ),
        ),
        ("memory of a relay", format!("{} MiB at most, without logs of jobs", size.memory_mib)),
        (
            "state of 35 days",
            format!("{:.1} GiB on disk,\nor in Redis (estimated)", size.state_gib),
        ),
        (
            "results of 400 days",
            format!(
                "{:.1} GiB in SQLite,\nor about {:.1} GiB in ClickHouse",
                size.results_gib, size.results_in_clickhouse_gib
            ),
        ),
        (
            "webhooks as rows, of 400 days",
            format!(
                "{:.1} GiB in SQLite,\nor about {:.1} GiB in ClickHouse,\n\
                 with the default of CRCR_WEBHOOK_EVENTS",
                size.webhook_rows_gib, size.webhook_rows_in_clickhouse_gib
            ),
        ),
    ]
}

fn limit_rows(pulls: u32, size: &RelaySize) -> [(&'static str, String); 3] {
    let backends = size.dispatch_calls_in_the_busiest_hour;
    let upstream = size.upstream_calls_in_the_busiest_hour;
    [
        (
            "GitHub calls in the busiest hour",
            format!("{backends:.0} to backends,\n{upstream:.0} upstream; 5000 for each account"),
        ),
        (
            "one relay is full at",
            format!("{:.0} pull requests a week (one core)", size.pulls_that_fill_a_core),
        ),
        (
            "GitHub's limit: pull requests a week",
            format!(
                "{} upstream,\n{} if all backends are in one account",
                pulls_at_the_limit(pulls, upstream),
                pulls_at_the_limit(pulls, backends)
            ),
        ),
    ]
}

/// At how many pull requests a week these calls take all that GitHub allows in an hour.
fn pulls_at_the_limit(pulls: u32, calls: f64) -> String {
    if calls > 0.0 {
        format!("{:.0}", f64::from(pulls) * CALLS_AN_HOUR / calls)
    } else {
        "any number".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pulls: u32, backends: u32) -> SizeArgs {
        let format = DataFormat::Text;
        SizeArgs { pulls, backends, heads: 4, jobs: 4, check_runs: None, format }
    }

    #[test]
    fn size_grows_with_the_load_and_full_is_where_the_busiest_hour_fills_a_core() {
        let small = RelaySize::of(&load(1_000, 10));
        let large = RelaySize::of(&load(2_000, 10));
        assert!((large.cpu_seconds_a_week / small.cpu_seconds_a_week - 2.0).abs() < 1e-9);
        assert!((small.pulls_that_fill_a_core - large.pulls_that_fill_a_core).abs() < 1e-6);
        assert!((small.dispatches_a_week - 50_000.0).abs() < 1e-9);
        assert!((small.reports_a_week - 320_000.0).abs() < 1e-9);
        let pulls = small.pulls_that_fill_a_core as u32;
        let full = RelaySize::of(&load(pulls, 10));
        assert!((full.cpu_in_the_busiest_hour - FULL).abs() < 0.01, "{full:?}");
        // GitHub allows less than a relay can do.
        assert!(small.pulls_that_reach_githubs_limit < small.pulls_that_fill_a_core);
    }

    /// `docs/operating/sizing.md` has these.
    #[test]
    fn results_take_less_in_clickhouse_than_in_sqlite() {
        for (backends, results, rows) in [(10, 1.8, 9.0), (50, 9.0, 44.0), (200, 37.0, 176.0)] {
            let load = load(1_000, backends);
            let size = RelaySize::of(&load);
            assert!((size.results_in_clickhouse_gib - results).abs() < 0.5, "{size:?}");
            assert!((size.webhook_rows_in_clickhouse_gib - rows).abs() < 0.5, "{size:?}");
            let text = text(&load, &size);
            assert_eq!(text.matches(" GiB in ClickHouse").count(), 2, "{text}");
        }
    }

    #[test]
    fn every_line_fits_a_terminal_of_80_columns() {
        for (pulls, backends) in [(1, 1), (1_000, 50), (100_000, 1_000)] {
            let load = SizeArgs { check_runs: Some(backends / 2), ..load(pulls, backends) };
            let text = text(&load, &RelaySize::of(&load));
            assert!(
                !text.contains(" 1 backends") && !text.starts_with("1 pull requests"),
                "{text}"
            );
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.contains("GitHub's limit: pull requests a week"), "{text}");
        }
    }
}
