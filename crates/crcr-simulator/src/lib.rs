//! A simulation of the relay in one thread. Two replicas of the relay, with their code unchanged, work
//! against a store in memory or a real one, and against the stand-in for GitHub in the same process. A seed decides the
//! order of everything, and what fails: see `docs/simulation.md`.

mod backend_files;
mod end_state;
mod gates;
mod inputs;
mod invariants;
mod lab;
mod ledger;
mod levels;
mod main_branch;
mod names;
mod probes;
mod scheduler;
mod stores;
mod truth;
mod upstream;

use std::fmt;

pub use self::probes::CulpritScore;
pub use self::scheduler::SimulatedTraffic;
pub use self::stores::StoreKind;

/// The result of a seed without a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedSummary {
    /// A hash of everything that happened.
    pub trace_hash: u64,
    pub steps: usize,
    pub webhooks: usize,
    pub dispatches: usize,
    pub reports: usize,
    pub crashes: usize,
    /// After hours of traffic: dispatches and check runs that were compared with the model's.
    pub compared: usize,
    /// How the searches for the commit that broke something have ended.
    pub culprits: CulpritScore,
    /// The last steps, the newest last, with each answer that was wrong.
    pub trace: Vec<String>,
}

/// A promise that the relay broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenPromise {
    pub seed: u64,
    pub step: usize,
    /// The broken promise, such as `verdict-without-run`.
    pub invariant: &'static str,
    pub detail: String,
    /// The last steps, the newest last.
    pub trace: Vec<String>,
    traffic: SimulatedTraffic,
    store: StoreKind,
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, invariant, detail, trace, traffic, store } = self;
        writeln!(f, "seed {seed}, step {step}: {invariant}: {detail}")?;
        writeln!(f, "inputs: {}", seed_inputs(*seed).join(", "))?;
        for line in trace {
            writeln!(f, "  {line}")?;
        }
        let what = match traffic {
            SimulatedTraffic::Steps(steps) => format!("--steps {steps}"),
            SimulatedTraffic::Hours(hours) => format!("--hours {hours}"),
        };
        write!(f, "to repeat it: crcr relay simulate --seed {seed} {what}")?;
        if *store != StoreKind::Memory {
            write!(f, " --store {}", store.as_str())?;
        }
        Ok(())
    }
}

/// The unusual inputs that a seed has.
pub fn seed_inputs(seed: u64) -> Vec<String> {
    inputs::SeedInputs::of(seed).names()
}

/// Runs one seed: its traffic with faults, and then no faults until everything is settled. A finding has the
/// last `trace_lines` steps.
pub fn simulate(
    seed: u64,
    traffic: SimulatedTraffic,
    store: StoreKind,
    trace_lines: usize,
) -> Result<SeedSummary, Box<BrokenPromise>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads can always be made");
    runtime.block_on(scheduler::run(seed, traffic, store, trace_lines))
}
