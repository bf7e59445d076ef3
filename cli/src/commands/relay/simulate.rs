//! `crcr relay simulate`: looks for a sequence of faults that makes the relay break a promise.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crcr_simulator::{BrokenPromise, SeedSummary, simulate, simulate_day};
use tokio::task::JoinSet;

use crate::cli::relay::SimulateArgs;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Each thread takes the next seed, until all are done or one has a finding.
pub async fn run(args: &SimulateArgs, printer: &Printer) -> Outcome {
    let started = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let next = Arc::new(AtomicU64::new(args.seed));
    let end = args.seed.saturating_add(args.seeds);
    let mut workers = JoinSet::new();
    for _ in 0..threads.min(args.seeds) {
        let (next, steps) = (Arc::clone(&next), (!args.day).then_some(args.steps));
        workers.spawn_blocking(move || run_seeds(&next, end, steps));
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
    let seconds = started.elapsed().as_secs_f64();
    let [steps, webhooks, dispatches, reports, crashes, compared] = sums;
    let compared = match args.day {
        true => format!(", {compared} dispatches and check runs as the model has them"),
        false => String::new(),
    };
    printer.data_line(&format!(
        "{} seeds without a finding in {seconds:.1} s ({:.0} a second): {steps} steps, {webhooks} \
         webhooks, {dispatches} dispatches, {reports} reports, {crashes} crashes{compared}",
        args.seeds,
        args.seeds as f64 / seconds,
    ));
    Ok(ExitCode::SUCCESS)
}

type Sums = [usize; 6];

/// Without `steps`, each seed is a day.
fn run_seeds(
    next: &AtomicU64,
    end: u64,
    steps: Option<usize>,
) -> (Sums, Option<Box<BrokenPromise>>) {
    let mut sums = [0; 6];
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return (sums, None);
        }
        let outcome = steps.map_or_else(|| simulate_day(seed), |steps| simulate(seed, steps));
        match outcome {
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
