//! The seeds that every change has to pass. `crcr relay simulate --seeds 10000` runs many more.

use crcr_simulator::{SimulatedTraffic, simulate};

/// Each takes one to three seconds of CPU without optimisation.
const SEEDS: u64 = 6;

#[test]
fn relay_keeps_its_promises_under_every_seed() {
    let found: Vec<String> = std::thread::scope(|scope| {
        let halves = [0, 1].map(|first| {
            scope.spawn(move || {
                let seeds = (first..SEEDS).step_by(2);
                seeds
                    .filter_map(|seed| simulate(seed, SimulatedTraffic::Steps(120), 80).err())
                    .collect::<Vec<_>>()
            })
        });
        let found = halves.into_iter().flat_map(|half| half.join().unwrap());
        found.map(|finding| finding.to_string()).collect()
    });
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn busy_hours_end_as_the_plain_model_says() {
    let summary =
        simulate(0, SimulatedTraffic::Hours(2), 80).unwrap_or_else(|finding| panic!("{finding}"));
    assert!(summary.compared > 50, "{summary:?}");
}

#[test]
fn same_seed_does_the_same_and_another_one_something_else() {
    let first = simulate(7, SimulatedTraffic::Steps(150), 80).unwrap();
    assert_eq!(simulate(7, SimulatedTraffic::Steps(150), 80).unwrap(), first);
    assert_ne!(simulate(8, SimulatedTraffic::Steps(150), 80).unwrap().trace_hash, first.trace_hash);
}
