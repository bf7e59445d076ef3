//! `crcr artifact upload` of a name that is there already: by the same attempt, a later one,
//! another job.

use std::fs;

use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_testkit::s3::S3Server;

use crate::artifact_upload::{noise, step, with_github, with_s3};
use crate::support::{Crcr, Ran};

const FOLDER: &str = "acme/upstream/4242/linux";

/// More than one part.
fn large(s3: &S3Server, archive: &str, first: u8) -> Crcr {
    let step = step(&["--path", "dist", "--archive", archive]);
    let mut bytes = noise(9 << 20);
    bytes[0] = first;
    fs::write(step.folder().join("dist/large.bin"), bytes).unwrap();
    with_s3(step, s3)
}

fn is_conflict(ran: Ran, reason: &str) {
    let ran = ran.expect_code(1);
    for word in ["conflict", "overwrite", "{run_attempt}"] {
        assert!(ran.stderr.contains(word), "{}", ran.report());
    }
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", reason));
}

#[test]
fn a_large_artifact_again_is_success_and_another_one_in_its_place_is_a_conflict() {
    for archive in ["zip", "none"] {
        let s3 = S3Server::start("artifacts").unwrap();
        let first = large(&s3, archive, 1).run().expect_code(0);
        let keys = s3.keys();
        let again = large(&s3, archive, 1).run().expect_code(0);
        assert!(again.stderr.contains("was there already"), "{}", again.report());
        assert_eq!(first.outputs["artifact-digest"], again.outputs["artifact-digest"]);
        is_conflict(large(&s3, archive, 2).run(), "conflict");
        assert!(s3.keys() == keys && s3.unfinished().is_empty());
        let other = large(&s3, archive, 2).arg("--overwrite").run().expect_code(0);
        assert_ne!(first.outputs["artifact-digest"], other.outputs["artifact-digest"]);
        large(&s3, archive, 2).run().expect_code(0);
        large(&s3, archive, 3).env("GITHUB_RUN_ATTEMPT", "2").run().expect_code(0);
        is_conflict(large(&s3, archive, 4).env("GITHUB_RUN_ATTEMPT", "2").run(), "conflict");
        assert!(s3.unfinished().is_empty());
    }
}

#[test]
fn an_artifact_of_another_job_is_a_conflict_in_every_attempt() {
    let s3 = S3Server::start("artifacts").unwrap();
    with_s3(step(&["--path", "dist"]), &s3).run().expect_code(0);
    let other = with_s3(step(&["--path", "dist"]), &s3).env("GITHUB_JOB", "test");
    fs::write(other.folder().join("dist/a.txt"), "other").unwrap();
    is_conflict(other.env("GITHUB_RUN_ATTEMPT", "2").run(), "conflict");
    let github = StandIn::start().unwrap();
    let run = Run::push();
    with_github(step(&["--path", "dist"]), &github, &run).run().expect_code(0);
    let other = with_github(step(&["--path", "dist"]), &github, &run).env("GITHUB_JOB", "test");
    fs::write(other.folder().join("dist/a.txt"), "other").unwrap();
    is_conflict(other.env("GITHUB_RUN_ATTEMPT", "2").run(), "no-bucket");
}

#[test]
fn with_github_an_earlier_attempt_is_replaced_and_the_same_one_is_a_conflict() {
    let github = StandIn::start().unwrap();
    let run = Run::push();
    let with = |text: &str, attempt: &str| {
        let step = with_github(step(&["--path", "dist"]), &github, &run);
        fs::write(step.folder().join("dist/a.txt"), text).unwrap();
        step.env("GITHUB_RUN_ATTEMPT", attempt)
    };
    let first = with("one", "1").run().expect_code(0);
    is_conflict(with("two", "1").run(), "no-bucket");
    with("one", "1").run().expect_code(0);
    let second = with("two", "2").run().expect_code(0);
    assert_ne!(first.outputs["artifact-digest"], second.outputs["artifact-digest"]);
    with("three", "2").arg("--overwrite").run().expect_code(0);
    assert_eq!(github.state().artifacts.all().len(), 2);
}

#[test]
fn files_that_the_new_artifact_has_not_are_removed() {
    let s3 = S3Server::start("artifacts").unwrap();
    with_s3(step(&["--path", "dist", "--archive", "none"]), &s3).run().expect_code(0);
    let second = with_s3(step(&["--path", "dist", "--archive", "none"]), &s3);
    fs::rename(second.folder().join("dist/a.txt"), second.folder().join("dist/c.txt")).unwrap();
    second.env("GITHUB_RUN_ATTEMPT", "2").run().expect_code(0);
    let below = |names: &[&str]| {
        let keys: Vec<_> = names.iter().map(|name| format!("{FOLDER}/{name}")).collect();
        [vec![format!("{FOLDER}.crcr.json")], keys].concat()
    };
    assert_eq!(s3.keys(), below(&["c.txt", "sub/b.txt"]));
    let third = with_s3(step(&["--path", "dist"]), &s3).env("GITHUB_RUN_ATTEMPT", "3");
    third.run().expect_code(0);
    assert_eq!(s3.keys(), below(&["artifacts.zip"]));
    with_s3(step(&["--path", "dist", "--archive", "none"]), &s3)
        .env("GITHUB_RUN_ATTEMPT", "4")
        .run()
        .expect_code(0);
    // What a locator is like that can't list its files, because there are too many.
    let locator = format!("{FOLDER}.crcr.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&s3.object(&locator).unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("files").unwrap();
    s3.tamper(&locator, json.to_string().as_bytes()).unwrap();
    with_s3(step(&["--path", "dist/a.txt", "--archive", "none"]), &s3)
        .env("GITHUB_RUN_ATTEMPT", "5")
        .run()
        .expect_code(0);
    assert_eq!(s3.keys(), below(&["a.txt"]));
    s3.rules(|rules| {
        rules.denied.insert("DeleteObject");
    });
    let last = with_s3(step(&["--path", "dist/sub", "--archive", "none"]), &s3);
    let ran = last.env("GITHUB_RUN_ATTEMPT", "6").run().expect_code(0);
    assert!(ran.stderr.contains("s3:DeleteObject"), "{}", ran.report());
}
