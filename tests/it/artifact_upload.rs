//! `crcr artifact upload` against S3 and against GitHub's artifact service.

use std::fs;
use std::io::Cursor;

use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::s3::{ACCESS_KEY, S3Server, SECRET_KEY};

use crate::support::Crcr;

const KEY: &str = "acme/upstream/4242/linux/artifacts.zip";
const LOCATOR: &str = "acme/upstream/4242/linux.crcr.json";

/// An upload of `linux`, unless `args` name it, in a folder with two small files in `dist`.
pub(crate) fn step(args: &[&str]) -> Crcr {
    let mut all = vec!["artifact", "upload"];
    if !args.contains(&"--name") {
        all.extend(["--name", "linux"]);
    }
    all.extend(args);
    let step = Crcr::step(&all, "push", &serde_json::json!({}));
    fs::create_dir_all(step.folder().join("dist/sub")).unwrap();
    fs::write(step.folder().join("dist/a.txt"), "a\n".repeat(1000)).unwrap();
    fs::write(step.folder().join("dist/sub/b.txt"), "b").unwrap();
    step
}

/// The step with a bucket and its credentials.
pub(crate) fn with_s3(step: Crcr, s3: &S3Server) -> Crcr {
    step.arg("--s3-bucket")
        .arg("artifacts")
        .arg("--s3-endpoint")
        .arg(s3.url().as_str())
        .arg("--aws-region")
        .arg("us-east-1")
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
}

/// The step as a job of `run` of the stand-in.
pub(crate) fn with_github(mut step: Crcr, github: &StandIn, run: &Run) -> Crcr {
    let state = github.state();
    if state.runs.get(run.id).is_none() {
        state.runs.add(run.clone());
    }
    let job = state.runs.add_job(run.id, "build");
    let environment = state.job_environment(&job);
    for (name, poison) in [
        ("ACTIONS_RUNTIME_TOKEN", "CRCR_RUNTIME_TOKEN"),
        ("ACTIONS_RESULTS_URL", "CRCR_RESULTS_URL"),
    ] {
        step = step.env(poison, &environment[name]).env(name, "poison");
    }
    step
}

/// Bytes that don't shrink, always the same.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[test]
fn upload_with_credentials_and_bucket_goes_to_s3() {
    let s3 = S3Server::start("artifacts").unwrap();
    let ran = with_s3(step(&["--path", "dist"]), &s3).run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("s3", "ok"));
    assert_eq!(s3.keys(), [LOCATOR, KEY]);
    let zip = s3.object(KEY).unwrap();
    let archive = zip::ZipArchive::new(Cursor::new(zip)).unwrap();
    assert_eq!(archive.file_names().collect::<Vec<_>>(), ["a.txt", "sub/b.txt"]);
    assert!(
        ran.summary
            .contains("/artifacts/acme/upstream/4242/linux/artifacts.zip) | s3 | ok | 2 files |"),
        "{}",
        ran.report()
    );
    let locator: serde_json::Value = serde_json::from_str(&ran.outputs["locator"]).unwrap();
    assert_eq!(locator["key"], KEY);
    assert!(s3.unfinished().is_empty());
}

#[test]
fn upload_without_credentials_goes_to_github_as_one_artifact() {
    let github = StandIn::start().unwrap();
    let run = Run::push();
    let ran = with_github(step(&["--path", "dist"]), &github, &run).run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("github", "no-bucket"));
    let mut names: Vec<_> =
        github.state().artifacts.all().into_iter().map(|artifact| artifact.name).collect();
    names.sort();
    assert_eq!(names, ["linux"]);
    assert!(!ran.outputs["artifact-id"].is_empty());
    let again = with_github(step(&["--path", "dist"]), &github, &run).run().expect_code(0);
    assert_eq!(again.outputs["artifact-digest"], ran.outputs["artifact-digest"]);
    assert_eq!(github.state().artifacts.all().len(), 1, "the same bytes are there once");
}

#[test]
fn refusal_by_s3_falls_back_to_github_with_a_warning() {
    let github = StandIn::start().unwrap();
    let s3 = S3Server::start("artifacts").unwrap();
    s3.rules(|rules| {
        rules.denied.insert("PutObject");
    });
    let step = with_github(with_s3(step(&["--path", "dist"]), &s3), &github, &Run::push());
    let ran = step.run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("github", "s3-denied"));
    assert!(ran.stderr.contains("::warning"), "{}", ran.report());
    assert!(s3.keys().is_empty());
}

#[test]
fn fallback_never_fails_instead_of_using_github() {
    let s3 = S3Server::start("artifacts").unwrap();
    s3.rules(|rules| {
        rules.denied.insert("PutObject");
    });
    let ran = with_s3(step(&["--path", "dist", "--fallback", "never"]), &s3).run().expect_code(2);
    assert_eq!(ran.outputs["store"], "none");
}

#[test]
fn artifact_of_an_earlier_attempt_is_replaced_and_of_the_same_attempt_is_a_conflict() {
    let s3 = S3Server::start("artifacts").unwrap();
    with_s3(step(&["--path", "dist"]), &s3).run().expect_code(0);
    let first = s3.object(KEY).unwrap();
    with_s3(step(&["--path", "dist"]), &s3).run().expect_code(0);
    let other = with_s3(step(&["--path", "dist"]), &s3);
    fs::write(other.folder().join("dist/a.txt"), "other").unwrap();
    let ran = other.run().expect_code(1);
    for word in ["conflict", "overwrite", "a name of its own"] {
        assert!(ran.stderr.contains(word), "{}", ran.report());
    }
    assert!(s3.object(KEY).unwrap() == first);
    let second = with_s3(step(&["--path", "dist"]), &s3).env("GITHUB_RUN_ATTEMPT", "2");
    fs::write(second.folder().join("dist/a.txt"), "other").unwrap();
    second.run().expect_code(0);
    assert!(s3.object(KEY).unwrap() != first);
}

#[test]
fn upload_without_files_or_with_an_invalid_name_is_reported() {
    let ran = step(&["--path", "nothing"]).run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", "no-files"));
    step(&["--path", "nothing", "--if-no-files-found", "error"]).run().expect_code(1);
    let ran = Crcr::step(
        &["artifact", "upload", "--name", "a:b", "--path", "."],
        "push",
        &serde_json::json!({}),
    )
    .run()
    .expect_code(1);
    assert!(ran.stderr.contains("bad-name"), "{}", ran.report());
    let ran = step(&["--path", "dist"]).run().expect_code(2);
    assert!(ran.stderr.contains("upload-artifact-with-fallback"), "{}", ran.report());
}

#[test]
fn upload_without_an_archive_makes_objects_with_content_type_and_mode() {
    let s3 = S3Server::start("artifacts").unwrap();
    let step = with_s3(step(&["--path", "dist", "--archive", "none"]), &s3);
    fs::write(step.folder().join("dist/big.bin"), vec![7; 20 << 20]).unwrap();
    step.run().expect_code(0);
    let folder = "acme/upstream/4242/linux";
    assert_eq!(s3.object(&format!("{folder}/sub/b.txt")).unwrap(), b"b");
    assert_eq!(s3.object(&format!("{folder}/big.bin")).unwrap().len(), 20 << 20);
    assert!(s3.unfinished().is_empty());
}

#[test]
fn expired_oidc_credentials_are_renewed_during_an_upload() {
    for audience in ["sts.amazonaws.com", "sts.example.com"] {
        renewed(audience);
    }
}

fn renewed(audience: &str) {
    let world = crate::oidc_configure::world_with(audience);
    let job = world.job(Run::same_repository());
    let configured = world.step(&job).arg("--audience").arg(audience).run().expect_code(0);
    let s3 = S3Server::start("artifacts").unwrap();
    let keys = [2, 3].map(crcr_testkit::sts::key);
    keys.iter().for_each(|(id, secret)| s3.add_key(id, secret));
    let secret = &keys[0].1;
    let upload = || {
        let mut step = with_s3(step(&["--path", "dist", "--fallback", "never"]), &s3);
        let job = world.github.state().job_environment(&job);
        for name in ["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"] {
            step = step.env(name, &job[name]);
        }
        for (name, value) in &configured.exported {
            step = step.env(name, value);
        }
        step.env("CRCR_AUTH_EXPIRATION", "2020-01-02T03:04:05Z")
    };
    let ran = upload().env("CRCR_AUTH_FINGERPRINT", "a narrower session").run().expect_code(2);
    assert_eq!((&*ran.outputs["reason"], world.sts.granted().len()), ("s3-denied", 1));
    let ran = upload().run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], world.sts.granted().len()), ("s3", 2));
    // The token endpoint is away while the credentials are renewed: for a while, and for good.
    let away = |times| world.github.state().traffic.fail("mint", times, Fault::status(503));
    away(7);
    assert_eq!(upload().run().expect_code(0).outputs["store"], "s3");
    away(999);
    let gone = upload().env("CRCR_RETRY_SECONDS", "10").run().expect_code(2);
    assert_eq!(gone.outputs["reason"], "s3-unreachable", "{}", gone.report());
    assert!(gone.stderr.contains("token endpoint gave no token"), "{}", gone.report());
    let shown = ran.stderr.replace(&format!("::add-mask::{secret}\n"), "");
    assert!(shown.len() < ran.stderr.len() && !shown.contains(secret), "{}", ran.report());
}

#[test]
fn upload_with_required_false_is_tried_and_never_fails_the_step() {
    let github = StandIn::start().unwrap();
    let optional = || step(&["--path", "dist", "--required", "false"]);
    let ran = with_github(optional(), &github, &Run::push()).run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("github", "no-bucket"));
    let no_files = ["--path", "none", "--required", "false", "--if-no-files-found", "error"];
    let bad_name = ["--path", "dist", "--required", "false", "--name", "a:b"];
    let conflict = with_github(optional(), &github, &Run::push());
    fs::write(conflict.folder().join("dist/a.txt"), "other").unwrap();
    for (ran, reason) in [
        (optional().run(), "no-bucket"),
        (step(&no_files).run(), "no-files"),
        (step(&bad_name).run(), "bad-name"),
        (conflict.run(), "conflict"),
    ] {
        let ran = ran.expect_code(0);
        assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", reason));
        assert!(ran.stderr.contains("::warning::"), "{}", ran.report());
        assert!(!ran.stderr.contains("::error"), "{}", ran.report());
        assert!(ran.summary.contains("| error |"), "{}", ran.report());
    }
}

#[test]
fn publish_locator_stores_a_github_artifact_that_leads_to_the_bucket() {
    let github = StandIn::start().unwrap();
    let s3 = S3Server::start("artifacts").unwrap();
    let run = Run::push();
    let args = ["--path", "dist", "--s3-prefix", "ci/{run_id}/{job}/{name}", "--publish-locator"];
    let ran = with_github(with_s3(step(&args), &s3), &github, &run).run().expect_code(0);
    assert_eq!(ran.outputs["store"], "s3");
    let all = github.state().artifacts.all();
    let names: Vec<_> = all.iter().map(|artifact| &*artifact.name).collect();
    assert_eq!(names, ["crcr-locator-linux"]);
    let zip = github.state().artifacts.bytes(all[0].id).unwrap();
    let archive = zip::ZipArchive::new(Cursor::new(zip)).unwrap();
    assert_eq!(archive.file_names().collect::<Vec<_>>(), ["locator.json"]);
    let args = ["artifact", "download", "--name", "linux", "--s3-prefix", args[3]];
    let down = with_s3(Crcr::step(&args, "push", &serde_json::json!({})), &s3);
    let down = with_github(down, &github, &run).run().expect_code(0);
    assert_eq!(fs::read(down.path("sub/b.txt")).unwrap(), b"b");
}

#[test]
fn blank_path_and_what_is_no_buckets_name_are_refused_by_name() {
    let s3 = S3Server::start("artifacts").unwrap();
    let ran = step(&["--path", " \n \n"]).run().expect_code(1);
    assert!(ran.stderr.contains("[no-path]"), "{}", ran.report());
    for (bucket, code, told) in [
        ("b\nc", "[s3-bucket]", "b\\nc"),
        ("arn:aws:s3:::acme", "[aws-name]", "write its name, `acme`"),
    ] {
        let ran = step(&["--path", "dist", "--s3-bucket", bucket])
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .run()
            .expect_code(1);
        assert!(ran.stderr.contains(code) && ran.stderr.contains(told), "{}", ran.report());
    }
    let one = with_s3(step(&["--path", "dist/a.txt"]), &s3).env("GITHUB_RETENTION_DAYS", "0");
    let ran = one.arg("--retention-days").arg("5").run().expect_code(0);
    assert!(ran.stderr.contains(" 1 file,") && ran.summary.contains("| 1 file |"));
    assert_eq!(s3.tags(KEY)["retention-days"], "5");
}

#[test]
fn content_type_of_a_raw_wheel_is_not_zip() {
    let github = StandIn::start().unwrap();
    let step = step(&["--path", "dist/a.whl", "--archive", "none", "--name", "a.whl"]);
    fs::write(step.folder().join("dist/a.whl"), "PK").unwrap();
    with_github(step, &github, &Run::push()).run().expect_code(0);
    assert_eq!(github.state().artifacts.all()[0].mime_type, "application/octet-stream");
}

fn step_named(name: &str) -> Crcr {
    step(&["--path", "dist", "--name", ""]).env("INPUT_NAME", name)
}

#[test]
fn untrusted_names_and_paths_in_uploads_are_stored_or_refused_and_never_executed() {
    let s3 = S3Server::start("artifacts").unwrap();
    let odd =
        ["a b", "it's", "$(touch pwned)", "`touch pwned`", "-rf", "\u{202e}gpj", "##[group]x"];
    for name in odd {
        let step = with_s3(step_named(name), &s3);
        fs::write(step.folder().join("dist").join(name), name).unwrap();
        let ran = step.run();
        assert!(ran.code <= 1, "{}", ran.report());
        assert!(!ran.path("pwned").exists() && !ran.stderr.contains("##["), "{}", ran.report());
    }
    for name in ["a\nb", "a\"b", "::error::x"] {
        let ran = step_named(name).run().expect_code(1);
        assert!(ran.stderr.contains("bad-name"), "{}", ran.report());
    }
}
