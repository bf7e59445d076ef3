//! `crcr artifact upload` of one name by two jobs at the same time: one artifact ends whole, and the
//! other job hears of a conflict, unless both overwrite.

use std::fs;

use axum::http::Method;
use crcr_testkit::fault::{FaultProxy, Rule};
use crcr_testkit::s3::S3Server;
use serde_json::Value;

use crate::artifact_upload::{noise, step, with_s3};
use crate::artifact_upload_faults::{act_during, with_bucket};
use crate::support::{Crcr, Ran};

const FOLDER: &str = "acme/upstream/4242/linux";
/// The locator is put after two parts.
const LOCATOR_PUT: usize = 3;

struct World {
    s3: S3Server,
    proxy: FaultProxy,
}

impl World {
    fn new() -> Self {
        let s3 = S3Server::start("artifacts").unwrap();
        let proxy = FaultProxy::start(s3.url()).unwrap();
        Self { s3, proxy }
    }

    /// An upload of two parts, told apart by their first byte, that goes through the proxy.
    fn slow(&self, first: u8, args: &[&str]) -> Crcr {
        with_bucket(large(first, args), "artifacts", self.proxy.url().as_str())
    }

    /// The same, held by the proxy at its request number `at.1` of method `at.0` while `act` runs.
    fn slow_while(&self, first: u8, args: &[&str], at: (Method, usize), act: impl FnOnce()) -> Ran {
        let step = self.slow(first, args).env("CRCR_READ_TIMEOUT", "600");
        act_during(step, &self.proxy, at, || {
            act();
            self.proxy.release();
        })
    }

    fn fast(&self, first: u8, args: &[&str]) -> Ran {
        with_s3(large(first, args), &self.s3).run()
    }

    /// What is stored is what `winner` uploaded, with its locator and nothing else.
    #[track_caller]
    fn holds(&self, winner: &Ran) {
        let bytes = self.s3.object(&format!("{FOLDER}/artifacts.zip")).unwrap();
        let digest = crcr_artifacts::digest::Digest::of(&bytes);
        assert_eq!(winner.outputs["artifact-digest"], digest.hex());
        let locator = self.s3.object(&format!("{FOLDER}.crcr.json")).unwrap();
        let locator: Value = serde_json::from_slice(&locator).unwrap();
        assert_eq!(locator["digest"], digest.to_string());
        assert!(self.s3.unfinished().is_empty() && self.s3.keys().len() == 2);
    }
}

fn large(first: u8, args: &[&str]) -> Crcr {
    let step = step(&[&["--path", "dist"], args].concat());
    let mut bytes = noise(9 << 20);
    bytes[0] = first;
    fs::write(step.folder().join("dist/large.bin"), bytes).unwrap();
    step
}

#[track_caller]
fn is_conflict(ran: Ran) {
    let ran = ran.expect_code(1);
    assert!(ran.stderr.contains("[conflict]"), "{}", ran.report());
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", "conflict"));
}

#[test]
fn first_of_two_simultaneous_uploads_wins_and_the_other_one_is_a_conflict_unless_equal() {
    for (other, part) in [(2, true), (2, false), (1, true), (1, false)] {
        let world = World::new();
        // It waits with its second part, or with its completion, while the other one ends.
        let (wait, at) = match part {
            true => (Rule::hold().query("partNumber=2"), (Method::PUT, 2)),
            false => (Rule::hold().method(Method::POST).query("uploadId"), (Method::POST, 2)),
        };
        world.proxy.add(wait);
        let mut winner = None;
        let act = || winner = Some(world.fast(other, &[]));
        let late = world.slow_while(1, &[], at, act);
        let winner = winner.unwrap().expect_code(0);
        match other {
            1 => assert_eq!(late.expect_code(0).outputs["reason"], "ok"),
            _ => is_conflict(late),
        }
        world.holds(&winner);
    }
}

#[test]
fn object_without_its_locator_yet_is_not_replaced() {
    let world = World::new();
    world.proxy.add(Rule::hold().method(Method::PUT).path(".crcr.json"));
    let mut second = None;
    let act = || second = Some(world.fast(2, &[]));
    let first = world.slow_while(1, &[], (Method::PUT, LOCATOR_PUT), act).expect_code(0);
    is_conflict(second.unwrap());
    world.holds(&first);
}

#[test]
fn locator_matches_the_object_after_two_simultaneous_overwrites() {
    let world = World::new();
    world.proxy.add(Rule::hold().method(Method::PUT).path(".crcr.json"));
    let mut winner = None;
    let act = || winner = Some(world.fast(2, &["--overwrite"]));
    let late = world.slow_while(1, &["--overwrite"], (Method::PUT, LOCATOR_PUT), act);
    winner.unwrap().expect_code(0);
    world.holds(&late.expect_code(0));
}

#[test]
fn overwrite_that_another_one_aborts_or_precedes_ends_whole() {
    for (rule, at) in [
        (Rule::hold().query("partNumber=2"), (Method::PUT, 2)),
        (Rule::hold().method(Method::POST).query("uploadId"), (Method::POST, 2)),
    ] {
        let world = World::new();
        world.proxy.add(rule);
        let mut first = None;
        let act = || first = Some(world.fast(2, &["--overwrite"]));
        let late = world.slow_while(1, &["--overwrite"], at, act);
        first.unwrap().expect_code(0);
        world.holds(&late.expect_code(0));
    }
}

#[test]
fn separate_files_are_deleted_if_one_of_them_fails() {
    let world = World::new();
    let denied = crcr_testkit::fault::access_denied();
    world.proxy.add(Rule::any(denied).method(Method::PUT).path("sub/b.txt"));
    let ran = world.slow(1, &["--archive", "none", "--fallback", "never"]).run().expect_code(2);
    assert_eq!(ran.outputs["reason"], "s3-denied");
    assert!(ran.stderr.contains("s3:PutObject"), "{}", ran.report());
    assert!(
        world.s3.keys().is_empty() && world.s3.unfinished().is_empty(),
        "{:?}",
        world.s3.keys()
    );
}

#[test]
fn failed_upload_keeps_files_that_a_simultaneous_upload_relies_on() {
    let world = World::new();
    world.proxy.add(Rule::hold().method(Method::PUT).path("large.bin"));
    let args = ["--archive", "none"];
    let mut winner = None;
    let act = || winner = Some(world.fast(2, &args));
    // `a.txt`, the same in both, is there by then; the large file, which takes all the memory, is held.
    is_conflict(world.slow_while(1, &args, (Method::PUT, 2), act));
    let winner = winner.unwrap().expect_code(0);
    let locator = world.s3.object(&format!("{FOLDER}.crcr.json")).unwrap();
    let locator: Value = serde_json::from_slice(&locator).unwrap();
    let files = locator["files"].as_array().unwrap();
    assert_eq!(winner.outputs["files"], files.len().to_string());
    for file in files {
        let path = file["path"].as_str().unwrap();
        assert!(world.s3.object(&format!("{FOLDER}/{path}")).is_some(), "{path} is gone");
    }
}
