//! Runs seeds in one thread and prints the first line of every finding, without stopping at the first one. It is built
//! much faster than the whole binary, whose `crcr relay simulate` repeats a finding.
//!
//! usage: seeds FIRST COUNT [STEPS [LINES]] [INPUT] [sqlite|redis]
//! STEPS: of hours of a large upstream, their number and an `h`. LINES: how many of the last steps are printed of a
//! finding, of a seed that names a wrong culprit, and of a single seed. INPUT: only seeds that have this input.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Instant;

use crcr_simulator::{CulpritScore, SimulatedTraffic, StoreKind, seed_inputs, simulate};

fn main() -> std::io::Result<()> {
    let hours = |text: &str| text.strip_suffix('h').and_then(|hours| hours.parse::<u32>().ok());
    let number = |text: &str| hours(text).map(u64::from).or_else(|| text.parse().ok());
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| number(&text)).collect();
    let [first, count, rest @ ..] = numbers.as_slice() else {
        return Err(std::io::Error::other(
            "usage: seeds FIRST COUNT [STEPS [LINES]] [INPUT] [sqlite|redis]",
        ));
    };
    let steps = usize::try_from(rest.first().copied().unwrap_or(200)).unwrap_or(200);
    let lines = usize::try_from(rest.get(1).copied().unwrap_or(0)).unwrap_or(0);
    let traffic = match std::env::args().nth(3).as_deref().and_then(hours) {
        Some(hours) => SimulatedTraffic::Hours(hours),
        None => SimulatedTraffic::Steps(steps),
    };
    let words = || std::env::args().skip(1).filter(|text| number(text).is_none());
    let real = [StoreKind::Sqlite, StoreKind::Redis];
    let store_of = |word: &str| real.into_iter().find(|kind| kind.as_str() == word);
    let store = words().find_map(|word| store_of(&word)).unwrap_or_default();
    let input = words().find(|word| store_of(word).is_none());
    let seeds: Vec<u64> = (*first..first + count)
        .filter(|seed| input.as_ref().is_none_or(|input| seed_inputs(*seed).contains(input)))
        .collect();
    let count = seeds.len();
    let started = Instant::now();
    let mut found: BTreeMap<&str, u32> = BTreeMap::new();
    let mut out = std::io::stdout();
    let mut sums = [0; 5];
    let mut culprits = CulpritScore::default();
    for (done, seed) in seeds.into_iter().enumerate() {
        if done > 0 && done % 50 == 0 {
            writeln!(out, "seeds before {seed} are done")?;
        }
        match simulate(seed, traffic, store, lines) {
            Ok(mut summary) => {
                let trace = std::mem::take(&mut summary.trace);
                if lines > 0 {
                    writeln!(out, "seed {seed}: no finding, {summary:?}")?;
                    for line in trace.iter().filter(|_| count == 1) {
                        writeln!(out, "  {line}")?;
                    }
                }
                let parts = [
                    summary.steps,
                    summary.webhooks,
                    summary.dispatches,
                    summary.reports,
                    summary.crashes,
                ];
                sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
                culprits.add(summary.culprits);
                if summary.culprits.wrong > 0 {
                    writeln!(out, "seed {seed} names a wrong culprit: {:?}", summary.culprits)?;
                    for line in trace {
                        writeln!(out, "  {line}")?;
                    }
                }
            }
            Err(finding) => {
                *found.entry(finding.invariant).or_default() += 1;
                let text = finding.to_string();
                let text = if lines > 0 { &text } else { text.lines().next().unwrap_or_default() };
                writeln!(out, "{text}")?;
            }
        }
        out.flush()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let [steps, webhooks, dispatches, reports, crashes] = sums;
    let findings: u32 = found.values().sum();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = count as f64 / seconds;
    writeln!(
        out,
        "{count} seeds, {findings} findings {found:?} in {seconds:.1} s ({rate:.1} a second): {steps} steps, \
         {webhooks} webhooks, {dispatches} dispatches, {reports} reports, {crashes} crashes"
    )?;
    let CulpritScore { right, wrong, unnamed, runs } = culprits;
    writeln!(out, "culprits: {right} right, {wrong} wrong, {unnamed} not named, {runs} runs")
}
