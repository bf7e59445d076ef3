//! What a large upload needs: memory that doesn't grow, and few bytes sent twice.

use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;

use crate::artifact_upload::{noise, step, with_github};
use crate::support::Crcr;

/// More than the 64 MB of a release build, for one that isn't optimised; far less than the files.
const LIMIT_KIB: u64 = 96 << 10;

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn broken_connections_resend_only_a_little() {
    const SIZE: usize = 40 << 20;
    let github = StandIn::start().unwrap();
    let step = with_github(step(&["--path", "dist"]), &github, &Run::push());
    fs::write(step.folder().join("dist/large.bin"), noise(SIZE)).unwrap();
    let state = github.state();
    state.traffic.fail("PutBlock", 2, Fault::ResetAfterBytes(1 << 20));
    state.traffic.fail("PutBlock", 1, Fault::ResetAfterBytes(512 << 10));
    step.run().expect_code(0);
    assert_eq!(state.traffic.unmet(), [""; 0]);
    let received = state.artifacts.received_bytes();
    assert!(received < SIZE as u64 * 11 / 10, "{received} bytes for {SIZE}");
    assert!(received > SIZE as u64 + (2 << 20), "the broken blocks count");
}

/// Runs the step and gives the most memory that it had, in KiB.
#[cfg(target_os = "linux")]
fn peak(mut step: Crcr) -> u64 {
    let command = step.command().stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (mut peak, started) = (0, Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(started.elapsed() < PATIENCE);
        let about = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = about.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        peak = kib.unwrap_or(0).max(peak);
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success());
    peak
}

#[cfg(target_os = "linux")]
#[test]
fn upload_of_a_large_file_needs_little_memory() {
    let hole = |mib: u64, args: &[&str]| {
        let step =
            step(&[&["--path", "dist/hole", "--name", &format!("hole-{mib}")], args].concat());
        File::create(step.folder().join("dist/hole")).unwrap().set_len(mib << 20).unwrap();
        step
    };
    let github = StandIn::start().unwrap();
    github.state().artifacts.drop_bodies();
    let stored = ["--compression-level", "0"];
    let peak = peak(with_github(hole(256, &stored), &github, &Run::push()));
    assert!(peak < LIMIT_KIB, "{peak} KiB");
}
