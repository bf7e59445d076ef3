//! Any bytes as a job's log, compressed or not: classifying neither panics nor hangs, and the line that
//! it finds is in the log.
#![no_main]

use std::io::Read as _;
use std::sync::LazyLock;

use crcr_cidata::logs::{Baseline, RuleSet, classify, unpacked};
use libfuzzer_sys::fuzz_target;

static RULES: LazyLock<RuleSet> = LazyLock::new(RuleSet::starter);

fuzz_target!(|input: (&[u8], &[u8])| {
    let (green, red) = input;
    let Ok(text) = unpacked(red) else { return };
    let baseline = Baseline::read(green).expect("memory can be read");
    let mut text = text.take(1 << 20);
    let mut log = vec![];
    if text.read_to_end(&mut log).is_err() {
        return;
    }
    let outcome = classify(log.as_slice(), &RULES, Some(&baseline)).expect("memory can be read");
    let lines = log.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    for line in outcome.found.iter().map(|found| found.line_number) {
        assert!((1..=lines).contains(&line));
    }
});
