//! A few hundred seeds.

use crcr_simulator::simulate;

#[test]
fn relay_keeps_its_promises_in_a_few_hundred_seeds() {
    let started = std::time::Instant::now();
    let range = std::env::var("SEEDS").unwrap_or("0-30".into());
    let (from, to) = range.split_once('-').unwrap();
    let one = std::env::var("TRACE").is_ok();
    let mut steps = 0;
    for seed in from.parse().unwrap()..to.parse().unwrap() {
        match simulate(seed, 200) {
            Ok(summary) => { steps += summary.steps; if one { eprintln!("{summary:?}") } }
            Err(finding) if one => eprintln!("{finding}"),
            Err(finding) => eprintln!("{}", finding.to_string().lines().next().unwrap()),
        }
    }
    eprintln!("{:?} {steps}", started.elapsed());
}
