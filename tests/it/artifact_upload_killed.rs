//! `crcr artifact upload` killed at many moments, and run again.

use std::fs;
use std::io::Cursor;
use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::http::Method;
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_testkit::fault::FaultProxy;
use crcr_testkit::s3::S3Server;

use crate::artifact_upload::{noise, step, with_github, with_s3};
use crate::artifact_upload_faults::with_bucket;
use crate::support::Crcr;

/// Bytes that don't shrink, for two parts or blocks.
const LARGE: usize = 9 << 20;
/// How long an upload may take to get to the moment of its end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the step until `calls` requests have come, or it ends, and kills it there.
fn kill_at(mut step: Crcr, calls: usize, come: impl Fn() -> usize) {
    let before = come();
    let command = step.command();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while come() < before + calls && child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < PATIENCE, "the upload never made request {calls}");
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn large(name: &str) -> Crcr {
    let step = step(&["--path", "dist", "--name", name]);
    fs::write(step.folder().join("dist/large.bin"), noise(LARGE)).unwrap();
    step
}

fn content_of(zip: Vec<u8>) -> Vec<u8> {
    let mut archive = zip::ZipArchive::new(Cursor::new(zip)).unwrap();
    let mut bytes = Vec::new();
    std::io::copy(&mut archive.by_name("large.bin").unwrap(), &mut bytes).unwrap();
    bytes
}

#[test]
fn killed_on_its_way_to_s3_and_run_again_there_is_one_copy() {
    let s3 = S3Server::start("artifacts").unwrap();
    for moment in 1..=8 {
        let name = format!("linux-{moment}");
        kill_at(with_s3(large(&name), &s3), moment, || s3.calls().len());
        let ran = with_s3(large(&name), &s3).run().expect_code(0);
        assert_eq!(ran.outputs["store"], "s3", "{}", ran.report());
        let folder = format!("acme/upstream/4242/{name}");
        let mut keys = s3.keys();
        keys.retain(|key| {
            key.starts_with(&format!("{folder}/")) || key.contains(&format!("{name}."))
        });
        assert_eq!(keys, [format!("{folder}.crcr.json"), format!("{folder}/artifacts.zip")]);
        assert!(s3.unfinished().is_empty(), "moment {moment}: {:?}", s3.unfinished());
        let zip = s3.object(&format!("{folder}/artifacts.zip")).unwrap();
        assert!(content_of(zip) == noise(LARGE), "moment {moment}");
    }
}

/// Parts of the file in the next tests, beside the mark of the upload: more than are on their way at
/// once.
const PARTS: usize = 12;

/// How many parts have come, marks among them.
fn parts(s3: &S3Server) -> usize {
    s3.calls().iter().filter(|(call, _)| call == "UploadPart").count()
}

#[test]
fn what_a_killed_process_has_sent_to_s3_is_not_sent_again() {
    for (archive, key) in [("zip", "artifacts.zip"), ("none", "large.bin")] {
        // A process that has been silent for long is dead; another one may yet go on.
        for dead in [true, false] {
            let s3 = S3Server::start("artifacts").unwrap();
            let content = noise(PARTS * (5 << 20) - 1000);
            let upload = || {
                let step = step(&["--path", "dist", "--archive", archive]);
                fs::write(step.folder().join("dist/large.bin"), &content).unwrap();
                step
            };
            kill_at(with_s3(upload(), &s3), PARTS - 1, || parts(&s3));
            if dead {
                s3.age_parts(Duration::from_secs(3600));
            }
            let proxy = FaultProxy::start(s3.url()).unwrap();
            let again = with_bucket(upload(), "artifacts", proxy.url().as_str());
            let ran = again.run().expect_code(0);
            let sent = proxy.count(&Method::PUT, "", "partNumber");
            assert!(if dead { sent < PARTS } else { sent == PARTS + 1 }, "{archive} {dead} {sent}");
            let bytes = s3.object(&format!("acme/upstream/4242/linux/{key}")).unwrap();
            let bytes = if archive == "zip" { content_of(bytes) } else { bytes };
            assert!(bytes == content, "{}", ran.report());
            assert!(s3.unfinished().is_empty());
        }
    }
}

#[test]
fn parts_of_another_attempt_and_parts_that_differ_are_not_taken() {
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = |first: u8, attempt: &str| {
        let mut content = noise(PARTS * (5 << 20) - 1000);
        content[0] = first;
        let step = step(&["--path", "dist"]).env("GITHUB_RUN_ATTEMPT", attempt);
        fs::write(step.folder().join("dist/large.bin"), &content).unwrap();
        (with_s3(step, &s3), content)
    };
    kill_at(upload(1, "1").0, PARTS - 1, || parts(&s3));
    s3.age_parts(Duration::from_secs(3600));
    let (step, content) = upload(2, "2");
    step.run().expect_code(0);
    let begun = s3.calls().iter().filter(|(call, _)| call == "CreateMultipartUpload").count();
    assert_eq!(begun, 2);
    let zip = s3.object("acme/upstream/4242/linux/artifacts.zip").unwrap();
    assert!(content_of(zip) == content && s3.unfinished().is_empty());

    kill_at(upload(1, "3").0, PARTS - 1, || parts(&s3));
    s3.age_parts(Duration::from_secs(3600));
    let (step, content) = upload(2, "3");
    step.run().expect_code(0);
    let zip = s3.object("acme/upstream/4242/linux/artifacts.zip").unwrap();
    assert!(content_of(zip) == content && s3.unfinished().is_empty());
}

#[test]
fn killed_as_files_on_their_way_to_s3_and_run_again_there_is_one_copy() {
    let s3 = S3Server::start("artifacts").unwrap();
    for moment in [3, 6, 8, 10] {
        let name = format!("linux-{moment}");
        let files = || with_s3(large(&name), &s3).arg("--archive").arg("none");
        kill_at(files(), moment, || s3.calls().len());
        files().run().expect_code(0);
        let folder = format!("acme/upstream/4242/{name}");
        let mut keys = s3.keys();
        keys.retain(|key| key.starts_with(&format!("{folder}/")));
        let expected = ["a.txt", "large.bin", "sub/b.txt"].map(|path| format!("{folder}/{path}"));
        assert_eq!(keys, expected);
        assert!(s3.unfinished().is_empty(), "moment {moment}: {:?}", s3.unfinished());
        assert!(s3.object(&expected[1]).unwrap() == noise(LARGE), "moment {moment}");
    }
}

#[test]
fn killed_on_its_way_to_github_and_run_again_there_is_one_copy() {
    const CALLS: [&str; 6] = [
        "CreateArtifact",
        "PutBlock",
        "PutBlockList",
        "PutBlob",
        "FinalizeArtifact",
        "ListArtifacts",
    ];
    for moment in 1..=8 {
        let github = StandIn::start().unwrap();
        let run = Run::push();
        let state = github.state().clone();
        let come = || CALLS.iter().map(|call| state.traffic.calls(call)).sum();
        kill_at(with_github(large("linux"), &github, &run), moment, come);
        with_github(large("linux"), &github, &run).run().expect_code(0);
        let mut all = state.artifacts.all();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<_> = all.iter().map(|artifact| artifact.name.as_str()).collect();
        assert_eq!(names, ["linux", "linux.crcr.json"], "moment {moment}");
        assert!(all.iter().all(|artifact| artifact.finalized), "moment {moment}: {all:?}");
        let zip = state.artifacts.bytes(all[0].id).unwrap();
        assert!(content_of(zip) == noise(LARGE), "moment {moment}");
    }
}
