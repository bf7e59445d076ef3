//! `crcr artifact download` with what workflows for `actions/download-artifact` say, and with what
//! nobody should.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use crcr_artifacts::digest::Digest;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::s3::{ACCESS_KEY, Anonymous, SECRET_KEY};
use serde_json::json;

use crate::artifact_download::{World, noise, refused, visible, zip};
use crate::artifact_upload_faults::with_bucket;
use crate::support::Crcr;

const ZIP: &str = "application/zip";

#[test]
fn pattern_with_one_match_and_pattern_with_a_name_work_as_in_the_official_action() {
    let world = World::new(Run::push());
    world.github("wheels", ZIP, &zip(&[("a", 0o644, b"wheel")]));
    world.github("logs", ZIP, &zip(&[("b", 0o644, b"log")]));
    let step = |args: &[&str]| world.step("download", args);
    for args in [&["--pattern", "whe*"][..], &["--pattern", "!logs"]] {
        let ran = step(args).run().expect_code(0);
        assert_eq!(visible(&ran.path("")), ["a"], "straight into the folder");
    }
    let ran = step(&["--name", "wheels", "--pattern", "logs"]).run().expect_code(0);
    assert_eq!(visible(&ran.path("")), ["a"]);
    assert!(ran.stderr.contains("`pattern` has no effect beside `name`"), "{}", ran.report());
    let ran = step(&["--pattern", "+(wheels|logs)"]).run().expect_code(1);
    refused(&ran, "pattern", &["`+(…` isn't supported", "write `{a,b}`"]);
}

/// A block of YAML and a secret end with a line break.
#[test]
fn inputs_are_read_without_the_white_space_around_them() {
    let world = World::new(Run::push());
    world.github("wheels", ZIP, &zip(&[("a", 0o644, b"wheel")]));
    let step = world.step("download", &[]).env("INPUT_NAME", "wheels\n");
    let step = step.env("INPUT_RUN_ID", "  ").env("INPUT_MERGE_MULTIPLE", "True\r\n");
    let ran = step.env("INPUT_PATH", " out\n").run().expect_code(0);
    assert_eq!(visible(&ran.path("out")), ["a"]);
    let ran = world.step("download", &[]).env("INPUT_MERGE_MULTIPLE", "yes").run().expect_code(2);
    assert!(ran.stderr.contains("[possible values: true, false]"), "{}", ran.report());
}

#[test]
fn public_bucket_is_read_by_a_machine_without_credentials_of_its_own() {
    let world = World::new(Run::push());
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &zip(&[("a", 0o644, b"wheel")]), &[]);
    world.s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let step = world.step("download", &["--name", "wheels", "--auth-mode", "ambient"]);
    let step = with_bucket(step, "artifacts", world.s3.url().as_str());
    let step = step.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY");
    let ran = step.env("AWS_EC2_METADATA_DISABLED", "true").run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"wheel");
}

/// The workspace and `RUNNER_TEMP` in a container job are such mounts.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs root and unshare"]
fn destination_may_be_a_mount_of_the_file_system_that_its_parent_is_on() {
    let world = World::new(Run::push());
    world.github("wheels", ZIP, &zip(&[("a", 0o644, b"wheel"), ("sub/b", 0o644, b"b")]));
    let step = world.step("download", &["--name", "wheels", "--path", "out"]);
    fs::create_dir(step.folder().join("out")).unwrap();
    fs::write(step.folder().join("out/a"), "old").unwrap();
    let mounted = "exec unshare -m bash -c 'mount --bind out out && exec \"$@\"' bash \"$@\"";
    let ran = step.in_bash(mounted).run().expect_code(0);
    assert_eq!(visible(&ran.path("out")), ["a", "sub"]);
    assert_eq!(fs::read(ran.path("out/a")).unwrap(), b"wheel");
}

#[test]
fn unknown_artifact_ids_are_a_warning_unless_all_are_unknown() {
    let world = World::new(Run::push());
    let id = world.github("wheels", ZIP, &zip(&[("a", 0o644, b"x")])).to_string();
    let step = |ids: &str| world.step("download", &["--artifact-ids", ids]);
    let ran = step(&format!("{id},777,778")).run().expect_code(0);
    assert_eq!(visible(&ran.path("")), ["a"]);
    let told = "::warning::run 4242 has no artifact with the numbers 777, 778";
    assert!(ran.stderr.contains(told), "{}", ran.report());
    let ran = step("777").run().expect_code(1);
    refused(&ran, "artifact-not-found", &["no artifact with the number 777", "(1 artifact)"]);
    refused(&step(" , ").run().expect_code(1), "artifact-ids", &["names no number"]);
    let step = world.signed(step("777,778")).without("CRCR_RUNTIME_TOKEN");
    let told = ["the artifact with the numbers 777, 778 can't be looked up", "and its `name`"];
    refused(&step.run().expect_code(1), "nowhere-to-look", &told);
}

#[test]
fn skip_decompress_keeps_the_zip_from_either_store() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, b"x")]);
    world.github("wheels", ZIP, &bytes);
    world.github("report.txt", "text/plain", b"plain");
    world.s3("acme/upstream/4242/logs/artifacts.zip", &bytes, &[]);
    let step = |name: &str| {
        let args = ["--name", name, "--skip-decompress", "true"];
        world.signed(world.step("download", &args)).run().expect_code(0)
    };
    for name in ["wheels", "logs"] {
        let ran = step(name);
        assert_eq!(fs::read(ran.path(&format!("{name}.zip"))).unwrap(), bytes);
        assert_eq!(ran.outputs["files"], "1");
    }
    assert_eq!(fs::read(step("report.txt").path("report.txt")).unwrap(), b"plain");
}

#[test]
fn files_that_differ_in_case_only_are_unpacked_on_linux() {
    let world = World::new(Run::push());
    world.github("cases", ZIP, &zip(&[("Makefile", 0o644, b"1"), ("makefile", 0o644, b"2")]));
    let ran = world.step("download", &["--name", "cases", "--path", "out"]).run().expect_code(0);
    assert_eq!(visible(&ran.path("out")), ["Makefile", "makefile"]);
}

#[test]
fn files_of_a_killed_download_are_deleted_by_the_next_one() {
    let world = World::new(Run::push());
    world.github("big", ZIP, &zip(&[("a", 0o644, &noise(20 << 20))]));
    let traffic = &world.github.state().traffic;
    traffic.fail("GetBlob", 3, Fault::StallAfterBytes(2 << 20));
    let workspace = tempfile::tempdir().unwrap();
    let target = workspace.path().join("out");
    let args = ["--name", "big", "--path", target.to_str().unwrap()];
    let mut step = world.step("download", &args);
    let command = step.command().stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while traffic.calls("GetBlob") < 3 && began.elapsed().as_secs() < 30 {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let left = visible(workspace.path());
    assert!(left.len() == 1 && left[0].starts_with(".crcr-download-"), "{left:?}");
    world.github("small", ZIP, &zip(&[("a", 0o644, b"x")]));
    let args = ["--name", "small", "--path", target.to_str().unwrap()];
    world.step("download", &args).run().expect_code(0);
    assert_eq!(visible(workspace.path()), ["out"]);
}

#[test]
fn untrusted_names_and_paths_in_downloads_are_literal_or_refused_and_never_executed() {
    let hostile = ["a b", "it's", "$(touch pwned)", "`touch pwned`", "-rf", "gnp\u{202e}exe"];
    let world = World::new(Run::push());
    for name in hostile {
        let files: Vec<_> = hostile.iter().map(|path| (*path, 0o644, name.as_bytes())).collect();
        world.github(name, ZIP, &zip(&files));
    }
    for name in hostile {
        let step = world.step("download", &[]).env("INPUT_NAME", name).env("INPUT_PATH", name);
        let ran = step.run().expect_code(0);
        assert_eq!(visible(&ran.path("")), [name]);
        let mut all = hostile;
        all.sort_unstable();
        assert_eq!(visible(&ran.path(name)), all);
        assert!(!ran.stderr.contains('\u{202e}'), "{}", ran.report());
    }
    let ran = world.step("download", &["--path", "out"]).run().expect_code(0);
    assert_eq!(visible(&ran.path("")), ["out"]);
    assert_eq!(fs::read(ran.path("out/-rf/$(touch pwned)")).unwrap(), b"-rf");
    let (_, unfolded) = ran.stderr.split_once("::endgroup::\n").unwrap();
    assert!(unfolded.lines().count() <= 12, "{}", ran.report());
    world.github("lines", ZIP, &zip(&[("x\n::add-path::/tmp", 0o644, b"x")]));
    let ran = world.step("download", &["--name", "lines"]).run().expect_code(0);
    assert!(!ran.stderr.contains("\n::add-path"), "{}", ran.report());
}

#[test]
fn download_with_required_false_never_fails_the_job() {
    let world = World::new(Run::push());
    let wrong_value = ["--on-collision", "perhaps"];
    for (args, reason) in [(&["--name", "none"][..], "artifact-not-found"), (&wrong_value, "usage")]
    {
        let ran = world.step("download", args).env("INPUT_REQUIRED", "false").run().expect_code(0);
        assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", reason));
        assert!(ran.stderr.contains("it isn't required"), "{}", ran.report());
    }
    world.step("download", &wrong_value).run().expect_code(2);
    let flag = world.step("download", &["--required=true"]).env("INPUT_REQUIRED", "false");
    flag.env("INPUT_ON_COLLISION", "perhaps").run().expect_code(2);
}

#[test]
fn upload_with_required_false_survives_an_unknown_input_value() {
    let args = ["artifact", "upload", "--path", "x", "--required", "false"];
    let step = || Crcr::step(&args, "push", &serde_json::json!({}));
    let ran = step().env("INPUT_COMPRESSION_LEVEL", "12").run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", "usage"));
    assert!(ran.stderr.contains("::warning::"), "{}", ran.report());
}

#[test]
fn endpoint_from_the_environment_is_used_unless_the_input_is_set() {
    let world = World::new(Run::push());
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &zip(&[("a", 0o644, b"s3")]), &[]);
    let step = |endpoints: &[(&str, &str)]| {
        let step = world.step("download", &["--name", "wheels", "--s3-bucket", "artifacts"]);
        let step = step.env("AWS_REGION", "us-east-1").env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
        let step = step.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        endpoints.iter().fold(step, |step, (name, url)| step.env(name, url))
    };
    let (here, nowhere) = (world.s3.url().as_str(), "http://127.0.0.1:1");
    for endpoints in [
        &[("AWS_ENDPOINT_URL", here)][..],
        &[("AWS_ENDPOINT_URL", nowhere), ("AWS_ENDPOINT_URL_S3", here)],
        &[("AWS_ENDPOINT_URL_S3", nowhere), ("INPUT_S3_ENDPOINT", here)],
    ] {
        let ran = step(endpoints).run().expect_code(0);
        assert_eq!(fs::read(ran.path("a")).unwrap(), b"s3");
    }
    let ran = step(&[("AWS_ENDPOINT_URL_S3", "s3.example")]).run().expect_code(1);
    refused(&ran, "s3-endpoint", &["`AWS_ENDPOINT_URL_S3` (`s3.example`)"]);
    let fips = step(&[("AWS_ENDPOINT_URL_S3", here), ("AWS_USE_FIPS_ENDPOINT", "true")]);
    refused(&fips.run().expect_code(2), "store-refused", &["FIPS"]);
}

#[test]
fn artifact_in_the_bucket_is_downloaded_if_githubs_list_fails() {
    let world = World::new(Run::push());
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &zip(&[("a", 0o644, b"s3")]), &[]);
    world.github.state().traffic.fail("ListArtifacts", 50, Fault::status(403));
    let ran = world.signed(world.step("download", &["--name", "wheels"])).run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"s3");
    assert!(ran.stderr.contains("::warning::GitHub's list was left out"), "{}", ran.report());
    let again = world.signed(world.step("download", &["--name", "wheels"]));
    let ran = again.env("GITHUB_RUN_ATTEMPT", "2").run();
    assert_ne!(ran.code, 0, "a later attempt may have stored on GitHub\n{}", ran.report());
}

#[test]
fn refusal_without_credentials_has_no_hint_about_permissions() {
    let world = World::new(Run::fork());
    let step = world.step("download", &["--pattern", "*"]).without("CRCR_RUNTIME_TOKEN");
    let step = step.arg("--s3-bucket=artifacts").arg("--aws-region=us-east-1");
    let ran = step.arg(&format!("--s3-endpoint={}", world.s3.url())).run().expect_code(1);
    refused(&ran, "store-denied", &["configure-oidc-fallback"]);
    assert!(!ran.stderr.contains("the credentials need"), "{}", ran.report());
}

#[test]
fn expired_artifact_is_called_expired_however_it_is_asked_for() {
    let world = World::new(Run::push());
    let id = world.github("old", "application/zip", &zip(&[("a", 0o644, b"1")]));
    let another_run = ["--run-id", "4242", "--github-token", "ghs_reader"];
    let locator = json!({
        "version": 1, "name": "old", "repository": "acme/upstream", "run_id": 4242, "run_attempt": 1,
        "job": "build", "store": "github", "artifact_id": id, "archive": "zip", "size": 1,
        "digest": Digest::of(b"").to_string(), "file_count": 1, "files": [],
        "created": "2026-01-02T03:04:05Z", "trust": "same-repo",
    });
    let asked = [
        ("--name", "old".to_owned()),
        ("--artifact-ids", id.to_string()),
        ("--locator", locator.to_string()),
    ];
    // It expires between the list and the download.
    let answer = |status| Fault::Answer {
        status: StatusCode::from_u16(status).unwrap(),
        retry_after: None,
        body: r#"{"message": "Artifact has expired", "status": "410"}"#.to_owned(),
    };
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    let state = reader.github.state();
    let step = |(flag, value): &(&str, String)| {
        let step = reader.step("download", &another_run).arg(flag).arg(value);
        step.env("GITHUB_RUN_ID", "5000")
    };
    for asked in &asked[..2] {
        state.traffic.fail("artifact-zip", 1, answer(410));
        let words = ["has expired", "retention-days"];
        refused(&step(asked).run().expect_code(1), "artifact-expired", &words);
    }
    state.clock.advance(Duration::from_secs(91 * 24 * 3600));
    for asked in &asked {
        refused(
            &step(asked).run().expect_code(1),
            "artifact-expired",
            &["`old`", "retention-days"],
        );
    }
    let ran = step(&("--pattern", "o*".to_owned())).run().expect_code(0);
    assert!(ran.stderr.contains("`old` has expired and is left out"), "{}", ran.report());
}

#[test]
fn machine_without_root_certificates_is_told_what_it_lacks() {
    let args = ["artifact", "list", "--s3-bucket", "acme-artifacts", "--aws-region", "us-east-1"];
    let step = Crcr::step(&args, "push", &json!({}));
    let nothing = step.folder().join("no-certificates");
    fs::create_dir_all(&nothing).unwrap();
    let step = step.env("SSL_CERT_DIR", nothing.to_str().unwrap());
    let file = nothing.join("none.pem");
    let ran = step.env("SSL_CERT_FILE", file.to_str().unwrap()).run().expect_code(2);
    assert!(ran.stderr.contains("apt-get install ca-certificates"), "{}", ran.report());
}

#[test]
fn artifact_name_in_a_list_is_never_a_workflow_command() {
    let world = World::new(Run::push());
    world.github("##[group]x", "application/zip", &zip(&[("a", 0o644, b"x")]));
    for format in ["text", "json"] {
        let ran = world.step("list", &["--format", format]).run().expect_code(0);
        assert!(ran.stdout.contains("group]x") && !ran.stdout.contains("##["), "{}", ran.report());
    }
}

/// An artifact of a fork that is allowed is still a stranger's.
#[test]
fn forks_artifact_of_another_run_is_bounded_by_what_was_sent() {
    let world = World::new(Run::fork());
    let step = world.step("upload", &["--name", "disk", "--path", "disk.img"]);
    fs::File::create(step.folder().join("disk.img")).unwrap().set_len(513 << 20).unwrap();
    step.run().expect_code(0);
    let later = world.in_run(Run { id: 5000, ..Run::push() });
    let args = ["--name", "disk", "--run-id", "4242", "--github-token", "ghs_reader"];
    let step = later.step("download", &args).env("GITHUB_RUN_ID", "5000").arg("--allow-fork");
    refused(&step.run().expect_code(1), "artifact-refused", &["zip bomb"]);
}
