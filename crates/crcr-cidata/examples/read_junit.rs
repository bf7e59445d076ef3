//! Measures the JUnit reader: `read_junit cases|report FILE`. `tests/bench/junit.sh` runs it.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement for developers")]

use std::fs::{File, read_to_string};
use std::time::Instant;

use crcr_cidata::junit::{TestReport, read_cases};

fn main() {
    let args: Vec<_> = std::env::args().collect();
    let [_, what, path] = &args[..] else { panic!("usage: read_junit cases|report FILE") };
    let file = File::open(path).unwrap();
    let megabytes = file.metadata().unwrap().len() as f64 / 1e6;
    let start = Instant::now();
    let (mut tests, mut failed) = (0, 0);
    if what == "cases" {
        read_cases(file, |case, _| {
            tests += 1;
            failed += u64::from(case.result.is_failed());
        })
        .unwrap();
    } else {
        let report = TestReport::read(file).unwrap();
        (tests, failed) = (report.tally.tests, report.tally.failures + report.tally.errors);
    }
    let seconds = start.elapsed().as_secs_f64();
    let status = read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: f64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!(
        "crcr, {what}: {tests} tests, {failed} failed, {seconds:.2} s, {:.0} MB/s, {:.0} MB",
        megabytes / seconds,
        peak * 1024.0 / 1e6
    );
}
