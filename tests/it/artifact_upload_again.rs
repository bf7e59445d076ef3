//! `crcr artifact upload` of a name that is there already: by the same attempt, a later one,
//! another job.

use std::fs;
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::s3::S3Server;

use crate::artifact_upload::{noise, step, with_github, with_s3};
use crate::support::{Crcr, Ran};

const FOLDER: &str = "acme/upstream/4242/linux";

fn large(s3: &S3Server, archive: &str, first: u8) -> Crcr {
    let step = step(&["--path", "dist", "--archive", archive]);
    let mut bytes = noise(9 << 20);
    bytes[0] = first;
    fs::write(step.folder().join("dist/large.bin"), bytes).unwrap();
    with_s3(step, s3)
}

fn is_conflict(ran: Ran) {
    let ran = ran.expect_code(1);
    for word in ["conflict", "overwrite"] {
        assert!(ran.stderr.contains(word), "{}", ran.report());
    }
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", "conflict"));
}

#[test]
fn same_large_artifact_again_succeeds_and_another_one_is_a_conflict() {
    for archive in ["zip", "none"] {
        let s3 = S3Server::start("artifacts").unwrap();
        let first = large(&s3, archive, 1).run().expect_code(0);
        let keys = s3.keys();
        let again = large(&s3, archive, 1).run().expect_code(0);
        assert!(again.stderr.contains("was there already"), "{}", again.report());
        assert_eq!(first.outputs["artifact-digest"], again.outputs["artifact-digest"]);
        is_conflict(large(&s3, archive, 2).run());
        assert!(s3.keys() == keys && s3.unfinished().is_empty());
        let other = large(&s3, archive, 2).arg("--overwrite").run().expect_code(0);
        assert_ne!(first.outputs["artifact-digest"], other.outputs["artifact-digest"]);
        large(&s3, archive, 2).run().expect_code(0);
        large(&s3, archive, 3).env("GITHUB_RUN_ATTEMPT", "2").run().expect_code(0);
        is_conflict(large(&s3, archive, 4).env("GITHUB_RUN_ATTEMPT", "2").run());
        assert!(s3.unfinished().is_empty());
    }
}

#[test]
fn artifact_name_of_another_job_is_a_conflict_in_every_attempt() {
    let s3 = S3Server::start("artifacts").unwrap();
    with_s3(step(&["--path", "dist"]), &s3).run().expect_code(0);
    let other = with_s3(step(&["--path", "dist"]), &s3).env("GITHUB_JOB", "test");
    fs::write(other.folder().join("dist/a.txt"), "other").unwrap();
    is_conflict(other.env("GITHUB_RUN_ATTEMPT", "2").run());
    let github = StandIn::start().unwrap();
    let run = Run::push();
    with_github(step(&["--path", "dist"]), &github, &run).run().expect_code(0);
    let other = with_github(step(&["--path", "dist"]), &github, &run).env("GITHUB_JOB", "test");
    fs::write(other.folder().join("dist/a.txt"), "other").unwrap();
    is_conflict(other.env("GITHUB_RUN_ATTEMPT", "2").run());
}

#[test]
fn github_artifact_of_another_job_is_replaced_only_with_overwrite() {
    let github = StandIn::start().unwrap();
    let with = |text: &str| {
        let step = with_github(step(&["--path", "dist"]), &github, &Run::push());
        fs::write(step.folder().join("dist/a.txt"), text).unwrap();
        step
    };
    let first = with("one").run().expect_code(0);
    is_conflict(with("two").run());
    with("one").run().expect_code(0);
    let there = github.state().artifacts.all();
    assert_eq!(there[0].id.to_string(), first.outputs["artifact-id"]);
    with("two").arg("--overwrite").run().expect_code(0);
    assert_eq!(github.state().artifacts.all().len(), 1);
}

#[test]
fn second_attempt_needs_no_overwrite_at_github_and_a_download_takes_its_artifact() {
    let github = StandIn::start().unwrap();
    let attempt = |number: u32, step: Crcr| {
        let run = Run { attempt: number, ..Run::push() };
        github.state().runs.add(run.clone());
        with_github(step, &github, &run).env("GITHUB_RUN_ATTEMPT", &number.to_string())
    };
    let upload = |number: u32, text: &str| {
        let step = step(&["--path", "dist"]);
        fs::write(step.folder().join("dist/a.txt"), text).unwrap();
        attempt(number, step).run()
    };
    let first = upload(1, "one").expect_code(0);
    let second = upload(2, "two").expect_code(0);
    assert_ne!(first.outputs["artifact-id"], second.outputs["artifact-id"]);
    is_conflict(upload(2, "three"));
    // Equal bytes of an earlier attempt are no proof that this attempt's upload has ended.
    github.state().traffic.fail("FinalizeArtifact", 1, Fault::AnswerAfterwards(502));
    let third = upload(3, "one").expect_code(0);
    assert_eq!(github.state().artifacts.all().len(), 3);
    let newest = github.state().artifacts.all().pop().unwrap();
    assert_eq!(newest.id.to_string(), third.outputs["artifact-id"]);
    let download = |number: u32| {
        let args = ["artifact", "download", "--name", "linux", "--path", "out"];
        attempt(number, Crcr::step(&args, "push", &serde_json::json!({}))).run().expect_code(0)
    };
    assert_eq!(download(3).outputs["artifact-id"], third.outputs["artifact-id"]);
    let all = Crcr::step(&["artifact", "list"], "push", &serde_json::json!({}));
    let listed = attempt(3, all).run().expect_code(0);
    assert_eq!(listed.stdout.matches("linux").count(), 1, "{}", listed.report());
}

#[test]
fn reservation_that_was_answered_with_an_error_is_our_own() {
    for status in [500, 502, 503, 504] {
        let github = StandIn::start().unwrap();
        let traffic = &github.state().traffic;
        traffic.fail("CreateArtifact", 1, Fault::AnswerAfterwards(status));
        traffic.fail("DeleteArtifact", 1, Fault::AnswerAfterwards(status));
        traffic.fail("PutBlob", 1, Fault::AnswerAfterwards(status));
        traffic.fail("FinalizeArtifact", 1, Fault::AnswerAfterwards(status));
        let ran = with_github(step(&["--path", "dist"]), &github, &Run::push()).run();
        let ran = ran.expect_code(0);
        let all = github.state().artifacts.all();
        assert!(all.len() == 1 && all[0].finalized, "{all:?}");
        assert_eq!(all[0].id.to_string(), ran.outputs["artifact-id"]);
        assert!(traffic.unmet().is_empty(), "{:?}", traffic.unmet());
    }
}

#[test]
fn simultaneous_overwrites_all_succeed_and_one_of_them_is_whole() {
    for same in [true, false] {
        for round in 0..3 {
            let github = StandIn::start().unwrap();
            let steps: Vec<Crcr> = (0..4)
                .map(|n| {
                    let step = step(&["--path", "dist", "--overwrite"]);
                    let text = if same { "same".to_owned() } else { format!("{n}") };
                    fs::write(step.folder().join("dist/a.txt"), text).unwrap();
                    with_github(step, &github, &Run::push())
                })
                .collect();
            std::thread::scope(|scope| {
                let running: Vec<_> =
                    steps.into_iter().map(|step| scope.spawn(move || step.run())).collect();
                for ran in running {
                    ran.join().unwrap().expect_code(0);
                }
            });
            let all = github.state().artifacts.all();
            assert!(all.len() == 1 && all[0].finalized, "round {round}: {all:?}");
            let args = ["artifact", "download", "--name", "linux", "--path", "out"];
            let download = Crcr::step(&args, "push", &serde_json::json!({}));
            with_github(download, &github, &Run::push()).run().expect_code(0);
        }
    }
}

#[test]
fn simultaneous_overwrites_on_s3_all_succeed_and_the_locator_is_of_what_is_there() {
    for (archive, size) in [("zip", 1000), ("zip", 6 << 20), ("none", 6 << 20)] {
        for same in [true, false] {
            let s3 = S3Server::start("artifacts").unwrap();
            let steps = (0..4).map(|n: u8| {
                let args = ["--path", "dist", "--archive", archive, "--overwrite"];
                let step = with_s3(step(&[&args[..], &["--fallback", "never"]].concat()), &s3);
                let mut bytes = noise(size);
                bytes[0] = if same { 0 } else { n };
                fs::write(step.folder().join("dist/a.txt"), &bytes[..1000]).unwrap();
                fs::write(step.folder().join("dist/large.bin"), &bytes).unwrap();
                let index = n.to_string();
                step.env("CRCR_MATRIX", &format!("{{\"n\": {n}}}")).env("CRCR_JOB_INDEX", &index)
            });
            let steps: Vec<Crcr> = steps.collect();
            std::thread::scope(|scope| {
                let running: Vec<_> =
                    steps.into_iter().map(|step| scope.spawn(move || step.run())).collect();
                for ran in running {
                    ran.join().unwrap().expect_code(0);
                }
            });
            assert!(s3.unfinished().is_empty(), "{archive} {size} {same}");
            // A download verifies each byte by the locator.
            let args = ["artifact", "download", "--name", "linux", "--path", "out"];
            let download = Crcr::step(&args, "push", &serde_json::json!({}));
            let ran = with_s3(download, &s3).run().expect_code(0);
            let first = |name: &str| fs::read(ran.path("out").join(name)).unwrap()[0];
            assert_eq!(first("a.txt"), first("large.bin"), "{archive} {size} {same}");
        }
    }
}

#[test]
fn upload_to_github_never_deletes_a_running_upload_of_the_same_name() {
    for attempt in ["1", "2"] {
        let github = StandIn::start().unwrap();
        let run = Run { attempt: attempt.parse().unwrap(), ..Run::push() };
        let with = |text: &str| {
            let step = with_github(step(&["--path", "dist"]), &github, &run);
            fs::write(step.folder().join("dist/a.txt"), text).unwrap();
            step.env("GITHUB_RUN_ATTEMPT", attempt)
        };
        let traffic = &github.state().traffic;
        traffic.fail("FinalizeArtifact", 1, Fault::Delay(Duration::from_secs(8)));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| with("one").run());
            let started = Instant::now();
            while traffic.calls("FinalizeArtifact") == 0 {
                assert!(started.elapsed() < Duration::from_secs(60) && !first.is_finished());
                std::thread::sleep(Duration::from_millis(1));
            }
            // After such an answer the name may be our own.
            traffic.fail("CreateArtifact", 1, Fault::status(503));
            is_conflict(with("two").run());
            let first = first.join().unwrap().expect_code(0);
            let all = github.state().artifacts.all();
            assert!(all.len() == 1 && all[0].finalized, "{all:?}");
            assert_eq!(all[0].id.to_string(), first.outputs["artifact-id"]);
        });
        assert!(traffic.unmet().is_empty());
    }
}

#[test]
fn matrix_legs_are_different_jobs_and_a_rerun_of_a_leg_is_the_same_job() {
    let s3 = S3Server::start("artifacts").unwrap();
    let leg = |text: &str, python: &str, index: &str, attempt: &str, archive: &str| {
        let args = ["--path", "dist", "--archive", archive, "--name", archive];
        let step = with_s3(step(&args), &s3);
        fs::write(step.folder().join("dist/a.txt"), text).unwrap();
        step.env("CRCR_MATRIX", &format!("{{\n  \"python\": \"{python}\"\n}}"))
            .env("CRCR_JOB_INDEX", index)
            .env("GITHUB_RUN_ATTEMPT", attempt)
            .run()
    };
    for archive in ["zip", "none"] {
        leg("one", "3.12", "0", "1", archive).expect_code(0);
        is_conflict(leg("two", "3.13", "1", "1", archive));
        is_conflict(leg("two", "3.13", "1", "2", archive));
        leg("one again", "3.12", "0", "2", archive).expect_code(0);
    }
    let locator = s3.object("acme/upstream/4242/zip.crcr.json").unwrap();
    let locator: serde_json::Value = serde_json::from_slice(&locator).unwrap();
    assert!(locator["leg"].as_str().unwrap().starts_with("0-"), "{locator}");
}

#[test]
fn locator_of_another_jobs_separate_files_is_kept() {
    let s3 = S3Server::start("artifacts").unwrap();
    let step = |check_run: &str| {
        let step = with_s3(step(&["--path", "dist", "--archive", "none"]), &s3);
        step.env("CRCR_CHECK_RUN_ID", check_run)
    };
    step("1").run().expect_code(0);
    let locator = || s3.object(&format!("{FOLDER}.crcr.json")).unwrap();
    let before = locator();
    // Another job, and another call of the same reusable workflow, with files of other names.
    for (job, check_run) in [("test", "1"), ("build", "2")] {
        let other = step(check_run).env("GITHUB_JOB", job);
        fs::remove_file(other.folder().join("dist/a.txt")).unwrap();
        fs::write(other.folder().join("dist/other"), "other").unwrap();
        is_conflict(other.run());
        assert!(locator() == before);
    }
    step("2").arg("--overwrite").run().expect_code(0);
    assert!(locator() != before);
}

#[test]
fn files_that_the_new_artifact_lacks_are_deleted() {
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
