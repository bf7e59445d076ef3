//! `crcr artifact upload` killed at many moments, and run again.

use std::fs;
use std::io::Cursor;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_testkit::s3::S3Server;

use crate::artifact_upload::{noise, step, with_s3};
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
fn rerun_of_a_killed_s3_upload_leaves_one_copy() {
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

#[test]
fn rerun_of_a_killed_s3_upload_of_separate_files_leaves_one_copy() {
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
fn rerun_of_a_killed_github_upload_leaves_one_copy() {
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
        // Two steps of one job, which have the runner's temporary folder in common.
        let temp = tempfile::tempdir().unwrap();
        state.runs.add(run.clone());
        let environment = state.job_environment(&state.runs.add_job(run.id, "build"));
        let upload = || {
            large("linux")
                .env("RUNNER_TEMP", temp.path().to_str().unwrap())
                .env("CRCR_RUNTIME_TOKEN", &environment["ACTIONS_RUNTIME_TOKEN"])
                .env("CRCR_RESULTS_URL", &environment["ACTIONS_RESULTS_URL"])
        };
        kill_at(upload(), moment, come);
        upload().run().expect_code(0);
        let mut all = state.artifacts.all();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<_> = all.iter().map(|artifact| artifact.name.as_str()).collect();
        assert_eq!(names, ["linux"], "moment {moment}");
        assert!(all.iter().all(|artifact| artifact.finalized), "moment {moment}: {all:?}");
        let zip = state.artifacts.bytes(all[0].id).unwrap();
        assert!(content_of(zip) == noise(LARGE), "moment {moment}");
    }
}
