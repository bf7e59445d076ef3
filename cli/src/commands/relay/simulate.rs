//! `crcr relay simulate`: looks for a sequence of faults that makes the relay break a promise.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crcr_simulator::{BrokenPromise, SeedSummary, SimulatedTraffic, StoreKind, simulate};
use tokio::task::JoinSet;

use crate::cli::relay::{SimulateArgs, SimulatedStore};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

/// Each thread takes the next seed, until all are done or one has a finding.
pub async fn run(args: &SimulateArgs, printer: &Printer) -> Outcome {
    let store = match args.store {
        SimulatedStore::Memory => StoreKind::Memory,
        SimulatedStore::Sqlite => StoreKind::Sqlite,
        SimulatedStore::Redis => StoreKind::Redis,
    };
    store.check().map_err(|error| {
        Failure::unexpected("simulate", error.to_string())
            .hint("install Redis, or simulate on another store")
    })?;
    let started = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let next = Arc::new(AtomicU64::new(args.seed));
    let end = args.seed.saturating_add(args.seeds);
    let mut workers = JoinSet::new();
    for _ in 0..threads.min(args.seeds) {
        let (next, trace) = (Arc::clone(&next), args.trace);
        let traffic =
            args.hours.map_or(SimulatedTraffic::Steps(args.steps), SimulatedTraffic::Hours);
        let run = move |seed| simulate(seed, traffic, store, trace);
        workers.spawn_blocking(move || run_seeds(&next, end, run));
    }
    let mut sums = [0; 6];
    let mut first: Option<Box<BrokenPromise>> = None;
    while let Some(worked) = workers.join_next().await {
        let (partial, finding) = worked
            .map_err(|error| Failure::unexpected("simulate", "a seed panicked").because(error))?;
        sums.iter_mut().zip(partial).for_each(|(sum, part)| *sum += part);
        if let Some(finding) = finding
            && first.as_ref().is_none_or(|first| finding.seed < first.seed)
        {
            first = Some(finding);
        }
    }
    if let Some(finding) = first {
        printer.data_line(&finding.to_string());
        return Ok(ExitCode::FAILURE);
    }
    printer.data_line(&summary(args.seeds, sums, args.hours.is_some(), started.elapsed()));
    Ok(ExitCode::SUCCESS)
}

type Sums = [usize; 6];

fn summary(seeds: u64, sums: Sums, is_compared: bool, elapsed: Duration) -> String {
    let [steps, webhooks, dispatches, reports, crashes, compared] = sums;
    let mut parts = vec![
        plural(steps, "step", "steps"),
        plural(webhooks, "webhook", "webhooks"),
        plural(dispatches, "dispatch", "dispatches"),
        plural(reports, "report", "reports"),
        plural(crashes, "crash", "crashes"),
    ];
    if is_compared {
        parts.push(format!("{compared} dispatches and check runs as the model has them"));
    }
    let seconds = elapsed.as_secs_f64();
    format!(
        "{} without a finding in {seconds:.1} s ({:.0} a second): {}",
        plural(seeds, "seed", "seeds"),
        seeds as f64 / seconds,
        parts.join(", ")
    )
}

fn run_seeds(
    next: &AtomicU64,
    end: u64,
    run: impl Fn(u64) -> Result<SeedSummary, Box<BrokenPromise>>,
) -> (Sums, Option<Box<BrokenPromise>>) {
    let mut sums = [0; 6];
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return (sums, None);
        }
        match run(seed) {
            Ok(SeedSummary { steps, webhooks, dispatches, reports, crashes, compared, .. }) => {
                let parts = [steps, webhooks, dispatches, reports, crashes, compared];
                sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            }
            Err(finding) => {
                // Nobody starts another seed.
                next.store(end, Ordering::Relaxed);
                return (sums, Some(finding));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_one_seed_says_one_of_each() {
        assert_eq!(
            summary(1, [1; 6], false, Duration::from_secs(1)),
            "1 seed without a finding in 1.0 s (1 a second): 1 step, 1 webhook, 1 dispatch, 1 report, \
             1 crash"
        );
    }
}
