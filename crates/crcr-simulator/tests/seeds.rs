//! The seeds that every change has to pass. `crcr relay simulate --seeds 10000` runs many more.

use crcr_simulator::{SimulatedTraffic, StoreKind, simulate};

/// Each takes one to three seconds of CPU without optimisation.
const SEEDS: u64 = 6;
/// On a real store they take longer.
const SEEDS_ON_A_STORE: u64 = 4;

fn findings(store: StoreKind, seeds: u64) -> Vec<String> {
    std::thread::scope(|scope| {
        let halves = [0, 1].map(|first| {
            scope.spawn(move || {
                let seeds = (first..seeds).step_by(2);
                seeds
                    .filter_map(|seed| simulate(seed, SimulatedTraffic::Steps(60), store, 80).err())
                    .collect::<Vec<_>>()
            })
        });
        let found = halves.into_iter().flat_map(|half| half.join().expect("no seed panics"));
        found.map(|finding| finding.to_string()).collect()
    })
}

#[test]
fn relay_keeps_its_promises_under_every_seed() {
    assert_eq!(findings(StoreKind::Memory, SEEDS), Vec::<String>::new());
}

#[test]
fn relay_keeps_its_promises_on_sqlite_whose_disk_loses_its_power() {
    assert_eq!(findings(StoreKind::Sqlite, SEEDS_ON_A_STORE), Vec::<String>::new());
}

#[test]
#[ignore = "needs redis-server"]
fn relay_keeps_its_promises_on_redis_that_is_killed() {
    assert_eq!(findings(StoreKind::Redis, SEEDS_ON_A_STORE), Vec::<String>::new());
}

#[test]
fn busy_hours_end_as_the_plain_model_says() {
    let summary = simulate(0, SimulatedTraffic::Hours(2), StoreKind::Memory, 80)
        .unwrap_or_else(|finding| panic!("{finding}"));
    assert!(summary.compared > 50, "{summary:?}");
}

fn trace_hash(seed: u64, store: StoreKind) -> u64 {
    let summary = simulate(seed, SimulatedTraffic::Steps(60), store, 80);
    summary.unwrap_or_else(|finding| panic!("{finding}")).trace_hash
}

#[test]
fn same_seed_does_the_same_and_another_one_something_else() {
    for store in [StoreKind::Memory, StoreKind::Sqlite] {
        let first = trace_hash(7, store);
        assert_eq!(trace_hash(7, store), first, "{store:?}");
        assert_ne!(trace_hash(8, store), first, "{store:?}");
    }
}

#[test]
#[ignore = "needs redis-server"]
fn same_seed_does_the_same_on_redis() {
    assert_eq!(trace_hash(7, StoreKind::Redis), trace_hash(7, StoreKind::Redis));
}
