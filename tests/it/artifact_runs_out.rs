//! Artifacts when something runs out: a server's answer, the disk, a token, a right.

use std::fs;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule};
use crcr_testkit::s3::S3Server;

use crate::artifact_download::{World, noise as bytes, visible, zip};
use crate::artifact_upload::{noise, step, with_github, with_s3};
use crate::artifact_upload_faults::{outcome, with_bucket};
use crate::support::{Crcr, Ran};

/// More than one part or block.
fn large(args: &[&str]) -> Crcr {
    let step = step(&[&["--path", "dist"], args].concat());
    fs::write(step.folder().join("dist/large.bin"), noise(9 << 20)).unwrap();
    step
}

fn answer(status: u16, body: &str) -> Fault {
    let status = StatusCode::from_u16(status).unwrap();
    Fault::Answer { status, retry_after: None, body: body.to_owned() }
}

/// A step that gives up on a silent server soon, and yet not on a slow machine.
fn impatient(step: Crcr) -> Crcr {
    step.env("CRCR_READ_TIMEOUT", "5")
}

#[track_caller]
fn says(ran: &Ran, words: &[&str]) {
    for word in words {
        assert!(ran.stderr.contains(word), "`{word}` in\n{}", ran.report());
    }
}

#[test]
fn upload_is_retried_after_the_server_stops_responding() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(Fault::StallAfterBytes(1 << 20)).query("partNumber=1").times(1));
    proxy.add(Rule::any(Fault::Stall).method(Method::POST).query("uploads").times(1));
    let step = with_bucket(large(&[]), "artifacts", proxy.url().as_str());
    let ran = impatient(step).run().expect_code(0);
    assert_eq!(outcome(&ran), ("s3", "ok"));
    assert!(s3.unfinished().is_empty() && s3.keys().len() == 2, "{:?}", s3.keys());

    let github = StandIn::start().unwrap();
    github.state().traffic.fail("PutBlock", 1, Fault::Stall);
    github.state().traffic.fail("FinalizeArtifact", 1, Fault::Stall);
    let ran = impatient(with_github(large(&[]), &github, &Run::push())).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "no-bucket"));
    assert!(github.state().traffic.unmet().is_empty());
}

#[test]
fn upload_to_an_unresponsive_s3_falls_back_and_leaves_nothing() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(Fault::Stall).query("partNumber=2"));
    let github = StandIn::start().unwrap();
    let step = with_bucket(large(&[]), "artifacts", proxy.url().as_str());
    let step = with_github(step, &github, &Run::push()).env("CRCR_RETRY_SECONDS", "12");
    let ran = impatient(step).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "s3-unreachable"));
    says(&ran, &["::warning", "`linux` went to GitHub's store", "s3-endpoint"]);
    assert!(s3.unfinished().is_empty() && s3.keys().is_empty());
}

#[test]
fn s3_that_says_nothing_to_many_files_is_left_soon() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(Fault::Stall).method(Method::PUT));
    let step = step(&["--path", "dist", "--archive", "none"]);
    for n in 0..24 {
        fs::write(step.folder().join(format!("dist/{n}.txt")), n.to_string()).unwrap();
    }
    let step = with_bucket(step, "artifacts", proxy.url().as_str());
    let step = step.env("CRCR_READ_TIMEOUT", "3").env("CRCR_RETRY_SECONDS", "6");
    let (github, started) = (StandIn::start().unwrap(), Instant::now());
    let ran = with_github(step, &github, &Run::push()).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "s3-unreachable"));
    // Six seconds, and the time-outs of files that wait for their turn.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    says(&ran, &["waiting, and trying again for up to", "times in"]);
}

/// Several blocks of these are in flight at once.
#[test]
fn store_that_takes_blocks_and_says_nothing_is_waited_for_once() {
    let silent = Fault::StallAfterBytes(3 << 20);
    let upload = || {
        let step = step(&["--path", "dist"]);
        fs::write(step.folder().join("dist/large.bin"), noise(30 << 20)).unwrap();
        step.env("CRCR_READ_TIMEOUT", "4").env("CRCR_RETRY_SECONDS", "8")
    };
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(silent.clone()).query("partNumber"));
    let github = StandIn::start().unwrap();
    let (endpoint, started) = (proxy.url().as_str(), Instant::now());
    let step = with_bucket(upload(), "artifacts", endpoint);
    let ran = with_github(step, &github, &Run::push()).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "s3-unreachable"));
    assert!(started.elapsed() < Duration::from_secs(19), "{:?}", started.elapsed());

    let github = StandIn::start().unwrap();
    github.state().traffic.fail("PutBlock", 99, silent);
    let started = Instant::now();
    with_github(upload(), &github, &Run::push()).run().expect_code(2);
    assert!(started.elapsed() < Duration::from_secs(19), "{:?}", started.elapsed());
}

#[test]
fn outage_of_github_is_waited_out_once_and_its_line_says_why() {
    let github = StandIn::start().unwrap();
    let traffic = &github.state().traffic;
    traffic.fail("FinalizeArtifact", 99, Fault::status(503));
    traffic.fail("DeleteArtifact", 99, Fault::status(503));
    let step = with_github(step(&["--path", "dist"]), &github, &Run::push());
    let ran = step.env("CRCR_RETRY_SECONDS", "5").run().expect_code(2);
    let waiting = ran.stderr.lines().find(|line| line.starts_with("waiting, and trying again"));
    let waiting = waiting.unwrap_or_else(|| panic!("{}", ran.report()));
    assert!(waiting.contains("FinalizeArtifact: the server answered 503"), "{waiting}");
    assert_eq!(traffic.calls("DeleteArtifact"), 1, "{}", ran.report());
}

#[test]
fn store_that_is_silent_once_says_how_long_it_was_waited_for() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let step = with_bucket(step(&["--path", "dist"]), "artifacts", &endpoint);
    let step = step.env("CRCR_READ_TIMEOUT", "3").env("CRCR_RETRY_SECONDS", "1");
    says(&step.arg("--fallback").arg("never").run().expect_code(2), &["timed out", "(waited "]);
}

#[test]
fn download_is_retried_after_the_server_stops_responding_and_fails_without_files() {
    let world = World::new(Run::push());
    let content = bytes(20 << 20);
    world.github("big", "application/zip", &zip(&[("a", 0o644, &content)]));
    let step = || impatient(world.step("download", &["--name", "big"]));
    let traffic = &world.github.state().traffic;
    traffic.fail("GetBlob", 2, Fault::StallAfterBytes(1 << 20));
    traffic.fail("GetBlob", 1, Fault::Stall);
    let ran = step().run().expect_code(0);
    assert!(fs::read(ran.path("a")).unwrap() == content && traffic.unmet().is_empty());
    traffic.fail("GetBlob", 40, Fault::Stall);
    let ran = step().env("CRCR_RETRY_SECONDS", "12").run().expect_code(2);
    says(&ran, &["[fetch]", "timed out", "run the step again"]);
    assert_eq!(visible(&ran.path("")), [""; 0]);
    assert_eq!(outcome(&ran), ("none", "fetch"));
}

#[test]
fn download_of_objects_is_retried_after_the_server_stops_responding() {
    let world = World::new(Run::push());
    let content = bytes(3 << 20);
    world.s3("acme/upstream/4242/logs/one", &content, &[]);
    world.s3("acme/upstream/4242/logs/two", b"2", &[]);
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    proxy.add(Rule::any(Fault::StallAfterBytes(1 << 20)).path("logs/one").times(1));
    proxy.add(Rule::any(Fault::Stall).path("logs/two").times(1));
    let step = impatient(world.step("download", &["--name", "logs"]));
    let ran = with_bucket(step, "artifacts", proxy.url().as_str()).run().expect_code(0);
    assert!(fs::read(ran.path("one")).unwrap() == content);
    assert_eq!(fs::read(ran.path("two")).unwrap(), b"2");
}

#[test]
fn invalid_read_timeout_is_named() {
    let s3 = S3Server::start("artifacts").unwrap();
    for wrong in ["0", "1.5", "soon"] {
        let step = with_s3(step(&["--path", "dist"]), &s3).env("CRCR_READ_TIMEOUT", wrong);
        says(&step.run().expect_code(2), &["CRCR_READ_TIMEOUT", wrong]);
    }
}

#[test]
fn download_to_a_full_disk_fails_without_files() {
    let world = World::new(Run::push());
    let long = vec![7; 4 << 20];
    world.s3("acme/upstream/4242/objects/long", &long, &[]);
    let archive = zip(&[("first", 0o644, b"x"), ("long", 0o644, &long)]);
    world.github("fetched", "application/zip", &archive);
    let mut small = zip::ZipWriter::new(std::io::Cursor::new(vec![]));
    small.start_file("long", zip::write::SimpleFileOptions::default()).unwrap();
    std::io::Write::write_all(&mut small, &long).unwrap();
    let small = small.finish().unwrap().into_inner();
    assert!(small.len() < 1 << 20, "it fits, and what is in it doesn't");
    world.github("unpacked", "application/zip", &small);
    for name in ["fetched", "unpacked", "objects"] {
        let step = world.signed(world.step("download", &["--name", name, "--path", "out"]));
        let ran = step.with_file_limit(1024).run().expect_code(1);
        says(&ran, &["[disk-full]", "can't be written", "free some space"]);
        assert_eq!(visible(&ran.path("")), [""; 0], "{}", ran.report());
        assert_eq!(outcome(&ran), ("none", "disk-full"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_file_on_a_full_disk_fails_and_the_log_has_the_locator() {
    let s3 = S3Server::start("artifacts").unwrap();
    let ran = with_s3(step(&["--path", "dist"]), &s3).env("GITHUB_OUTPUT", "/dev/full");
    let ran = ran.run().expect_code(2);
    says(&ran, &["[runner-file]", "No space left", "free some space"]);
    says(&ran, &["/artifacts/acme/upstream/4242/linux/artifacts.zip"]);
    let ran = with_s3(step(&["--path", "nothing", "--if-no-files-found", "error"]), &s3);
    let ran = ran.env("GITHUB_OUTPUT", "/dev/full").run().expect_code(1);
    says(&ran, &["::warning", "No space left", "[no-files]"]);
}

#[test]
fn upload_whose_credentials_expire_leaves_no_unfinished_upload() {
    const EXPIRED: &str = "<Error><Code>ExpiredToken</Code><Message>The provided token has \
                           expired.</Message></Error>";
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(answer(400, EXPIRED)).query("partNumber=2"));
    let upload = |args: &[&str]| with_bucket(large(args), "artifacts", proxy.url().as_str());
    let github = StandIn::start().unwrap();
    let ran = with_github(upload(&[]), &github, &Run::push()).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "s3-denied"));
    let words = ["ExpiredToken: The provided token has expired", "role-duration-seconds"];
    says(&ran, &words);
    assert!(s3.unfinished().is_empty() && s3.keys().is_empty());
    let ran = upload(&["--fallback", "never"]).run().expect_code(2);
    assert_eq!(outcome(&ran), ("none", "s3-denied"));
    says(&ran, &words);
}

#[test]
fn error_names_a_runtime_token_that_expired_during_the_upload() {
    let ended = || answer(401, r#"{"code":"unauthenticated","msg":"token has expired"}"#);
    for (operation, words) in [
        ("FinalizeArtifact", ["FinalizeArtifact", "token has expired"]),
        ("CreateArtifact", ["CreateArtifact", "token has expired"]),
        ("PutBlock", ["401", "lives about an hour"]),
    ] {
        let github = StandIn::start().unwrap();
        // Several blocks are on their way at once, and the upload is begun anew once.
        github.state().traffic.fail(operation, 20, ended());
        let ran = with_github(large(&[]), &github, &Run::push()).run().expect_code(2);
        says(&ran, &words);
        says(&ran, &["[no-store]", "the runtime token lives as long as its job"]);
        assert_eq!(outcome(&ran), ("none", "no-bucket"));
        assert!(github.state().artifacts.all().is_empty(), "{operation}");
    }
}

#[test]
fn upload_is_stored_without_the_retention_tag_if_the_bucket_refuses_it() {
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = |name: &str, archive: &str| {
        let args = ["--retention-days", "5", "--name", name, "--archive", archive];
        with_s3(large(&args), &s3).run().expect_code(0)
    };
    let zip = |name: &str| format!("acme/upstream/4242/{name}/artifacts.zip");
    upload("tagged", "zip");
    assert_eq!(s3.tags(&zip("tagged"))["retention-days"], "5");
    s3.rules(|rules| {
        rules.denied.insert("PutObjectTagging");
    });
    for (name, archive) in [("zip", "zip"), ("files", "none")] {
        let ran = upload(name, archive);
        assert_eq!(outcome(&ran), ("s3", "ok"));
        says(&ran, &["::warning", "retention-days", "s3:PutObjectTagging"]);
    }
    assert!(s3.tags(&zip("zip")).is_empty() && s3.unfinished().is_empty());
}
