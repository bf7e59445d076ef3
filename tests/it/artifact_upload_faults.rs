//! `crcr artifact upload` with bad input, and with stores that refuse, fail or are full.

use std::fs;
use std::time::{Duration, Instant};

use axum::http::Method;
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule};
use crcr_testkit::s3::S3Server;

use crate::artifact_upload::{noise, step, with_github, with_s3};
use crate::support::{Crcr, Ran};

pub(crate) fn outcome(ran: &Ran) -> (&str, &str) {
    (&ran.outputs["store"], &ran.outputs["reason"])
}

/// The step with `bucket` behind `endpoint`.
pub(crate) fn with_bucket(step: Crcr, bucket: &str, endpoint: &str) -> Crcr {
    step.arg("--s3-bucket")
        .arg(bucket)
        .arg("--s3-endpoint")
        .arg(endpoint)
        .arg("--aws-region")
        .arg("us-east-1")
        .env("AWS_ACCESS_KEY_ID", crcr_testkit::s3::ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", crcr_testkit::s3::SECRET_KEY)
}

/// Runs the step and calls `act` once the proxy has seen `count` requests with `method`.
pub(crate) fn act_during(
    step: Crcr,
    proxy: &FaultProxy,
    (method, count): (Method, usize),
    act: impl FnOnce(),
) -> Ran {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| step.run());
        let started = Instant::now();
        while proxy.count(&method, "", "") < count {
            assert!(started.elapsed() < Duration::from_secs(60) && !running.is_finished());
            std::thread::sleep(Duration::from_millis(1));
        }
        act();
        running.join().unwrap()
    })
}

#[test]
fn each_line_without_files_follows_if_no_files_found() {
    let s3 = S3Server::start("artifacts").unwrap();
    let lines = |what: &str| {
        let path = "dist\nlogs/*.log\n!dist/x";
        let args = ["--path", path, "--if-no-files-found", what, "--name", what];
        with_s3(step(&args), &s3).run()
    };
    let ran = lines("warn").expect_code(0);
    assert_eq!(outcome(&ran), ("s3", "ok"));
    assert!(ran.stderr.contains("no files were found for `logs/*.log`"), "{}", ran.report());
    assert_eq!(ran.stderr.matches("no files were found").count(), 1, "{}", ran.report());
    assert!(!lines("ignore").expect_code(0).stderr.contains("no files"));
    let ran = lines("error").expect_code(1);
    assert!(ran.stderr.contains("`logs/*.log`") && ran.stderr.contains("no-files"));
    assert_eq!(outcome(&ran), ("none", "no-files"));
}

#[test]
fn path_without_matches_follows_if_no_files_found() {
    let nothing = |more: &[&str]| step(&[&["--path", "nothing"], more].concat()).run();
    let ran = nothing(&[]).expect_code(0);
    assert!(ran.stderr.contains("::warning") && ran.stderr.contains("nothing"), "{}", ran.report());
    let ran = nothing(&["--if-no-files-found", "ignore"]).expect_code(0);
    assert!(!ran.stderr.contains("::warning"), "{}", ran.report());
    let ran = nothing(&["--if-no-files-found", "error"]).expect_code(1);
    assert!(ran.stderr.contains("::error") && ran.stderr.contains("no-files"), "{}", ran.report());
    assert_eq!(outcome(&ran), ("none", "no-files"));
}

#[test]
fn name_or_path_that_one_store_forbids_fails_before_anything_is_sent() {
    let s3 = S3Server::start("artifacts").unwrap();
    let ran = with_s3(step(&["--path", "dist", "--name", "a/b"]), &s3).run().expect_code(1);
    assert!(ran.stderr.contains("bad-name"), "{}", ran.report());
    assert_eq!(ran.outputs["store"], "none");
    let step = with_s3(step(&["--path", "dist"]), &s3);
    fs::write(step.folder().join("dist/a:b\n::error::x"), "").unwrap();
    let ran = step.run().expect_code(1);
    assert!(ran.stderr.contains("bad-path") && ran.stderr.contains("a:b"), "{}", ran.report());
    assert!(!ran.stderr.contains("\n::error::x"), "{}", ran.report());
    assert!(s3.calls().is_empty());
}

#[test]
fn file_that_disappears_or_shrinks_is_named_and_the_files_are_looked_up_again() {
    for (archive, gone) in [("zip", true), ("zip", false), ("none", true), ("none", false)] {
        let s3 = S3Server::start("artifacts").unwrap();
        let proxy = FaultProxy::start(s3.url()).unwrap();
        proxy.add(Rule::any(Fault::Delay(Duration::from_secs(1))).method(Method::GET).times(1));
        let step = step(&["--path", "dist", "--archive", archive]);
        let step = with_bucket(step, "artifacts", proxy.url().as_str());
        let path = step.folder().join("dist/a.txt");
        let act = || if gone { fs::remove_file(path) } else { fs::write(path, "x") }.unwrap();
        let ran = act_during(step, &proxy, (Method::GET, 1), act).expect_code(0);
        let word = if gone { "can't be read" } else { "changed while it was read" };
        for word in ["::warning", "a.txt", word, "looked up again"] {
            assert!(ran.stderr.contains(word), "{}", ran.report());
        }
        assert_eq!(outcome(&ran), ("s3", "ok"));
        assert_eq!(ran.outputs["files"], if gone { "1" } else { "2" });
    }
}

#[test]
fn file_that_changes_each_time_fails_the_step_and_nothing_is_stored() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(Fault::Delay(Duration::from_secs(1))).method(Method::GET));
    let step = step(&["--path", "dist"]);
    let step = with_bucket(step, "artifacts", proxy.url().as_str());
    let path = step.folder().join("dist/a.txt");
    let shrink = || {
        for n in 1..=3 {
            let started = Instant::now();
            while proxy.count(&Method::GET, "crcr.json", "") < n {
                assert!(started.elapsed() < Duration::from_secs(60), "request {n} doesn't come");
                std::thread::sleep(Duration::from_millis(1));
            }
            fs::write(&path, "x".repeat(100 - 10 * n)).unwrap();
        }
    };
    let ran = act_during(step, &proxy, (Method::GET, 1), shrink).expect_code(1);
    assert_eq!(ran.stderr.matches("looked up again").count(), 2, "{}", ran.report());
    assert!(ran.stderr.contains("[unreadable]") || ran.stderr.contains("title=unreadable"));
    assert!(ran.outputs["store"] == "none" && s3.keys().is_empty(), "{}", ran.report());
}

#[test]
fn large_file_that_changes_during_the_upload_leaves_no_unfinished_upload() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(Fault::Delay(Duration::from_secs(1))).query("partNumber=1").times(1));
    let step = step(&["--path", "dist", "--archive", "none"]);
    let step = with_bucket(step, "artifacts", proxy.url().as_str());
    let path = step.folder().join("dist/large.bin");
    fs::File::create(&path).unwrap().set_len(96 << 20).unwrap();
    let shrink = || fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1).unwrap();
    let ran = act_during(step, &proxy, (Method::POST, 1), shrink).expect_code(0);
    assert!(ran.stderr.contains("changed while it was read"), "{}", ran.report());
    let stored = s3.object("acme/upstream/4242/linux/large.bin").unwrap();
    assert!(s3.unfinished().is_empty() && stored.len() == 1, "{}", ran.report());
}

#[test]
fn missing_bucket_falls_back_to_github_with_a_warning() {
    let github = StandIn::start().unwrap();
    let s3 = S3Server::start("artifacts").unwrap();
    let missing = || with_bucket(step(&["--path", "dist"]), "missing", s3.url().as_str());
    let ran = with_github(missing(), &github, &Run::push()).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "s3-missing-bucket"));
    assert!(
        ran.stderr.contains("::warning") && ran.stderr.contains("`missing`"),
        "{}",
        ran.report()
    );
    let ran = missing().arg("--fallback").arg("never").run().expect_code(2);
    assert_eq!(outcome(&ran), ("none", "s3-missing-bucket"));
    assert!(ran.stderr.contains("doesn't exist"), "{}", ran.report());
}

#[test]
fn unreachable_s3_falls_back_to_github_with_a_warning() {
    let github = StandIn::start().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    drop(silent);
    let step = || {
        let step = step(&["--path", "dist"]).env("CRCR_RETRY_SECONDS", "5");
        with_bucket(step, "artifacts", &endpoint)
    };
    let ran = with_github(step(), &github, &Run::push()).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "s3-unreachable"));
    assert!(ran.stderr.contains("::warning"), "{}", ran.report());
    assert_eq!(ran.stderr.matches("waiting, and trying again").count(), 1, "{}", ran.report());
    assert!(ran.stderr.contains("times in "), "the time waited is told: {}", ran.report());
    let step = with_github(step(), &github, &Run::push()).arg("--fallback-max-size").arg("1KiB");
    let ran = step.run().expect_code(2);
    assert_eq!(outcome(&ran), ("none", "s3-unreachable"));
    assert!(ran.stderr.contains("fallback-max-size"), "{}", ran.report());
    assert_eq!(github.state().artifacts.all().len(), 1);
}

#[test]
fn limit_of_the_fallback_is_a_size_with_a_unit() {
    let ran = step(&["--path", "dist", "--fallback-max-size", "two apples"]).run().expect_code(1);
    assert!(ran.stderr.contains("`two apples`") && ran.stderr.contains("GiB"), "{}", ran.report());
}

#[test]
fn outage_of_each_call_is_survived_and_one_that_lasts_names_its_time() {
    let github = StandIn::start().unwrap();
    let traffic = &github.state().traffic;
    for call in ["CreateArtifact", "PutBlob", "FinalizeArtifact"] {
        traffic.fail(call, 4, Fault::status(503));
    }
    with_github(step(&["--path", "dist"]), &github, &Run::push()).run().expect_code(0);
    for call in ["ListArtifacts", "GetSignedArtifactURL", "GetBlob"] {
        traffic.fail(call, 4, Fault::status(503));
    }
    let args = ["artifact", "download", "--name", "linux", "--path", "out"];
    let download = || Crcr::step(&args, "push", &serde_json::json!({}));
    with_github(download(), &github, &Run::push()).run().expect_code(0);
    assert!(traffic.unmet().is_empty(), "{:?}", traffic.unmet());
    traffic.fail("ListArtifacts", 99, Fault::status(503));
    let ran = with_github(download(), &github, &Run::push()).env("CRCR_RETRY_SECONDS", "3");
    let ran = ran.run();
    assert!(ran.code != 0 && ran.stderr.contains("times in "), "{}", ran.report());
}

#[test]
fn page_of_a_proxy_is_waited_out_and_a_refusal_of_the_service_fails_at_once() {
    let page = |status: u16| Fault::Answer {
        status: axum::http::StatusCode::from_u16(status).unwrap(),
        retry_after: None,
        body: "<!DOCTYPE html><html><title>Forbidden</title></html>".to_owned(),
    };
    let from_proxy = || {
        Fault::Answer {
        status: axum::http::StatusCode::FORBIDDEN,
        retry_after: None,
        body: r#"{"code":"permission_denied","msg":"Error from intermediary with HTTP status code 403"}"#
            .to_owned(),
    }
    };
    let github = StandIn::start().unwrap();
    let traffic = &github.state().traffic;
    for call in ["CreateArtifact", "PutBlob", "FinalizeArtifact"] {
        traffic.fail(call, 1, page(403));
        traffic.fail(call, 1, page(200));
        traffic.fail(call, 1, page(302));
        traffic.fail(call, 1, from_proxy());
    }
    with_github(step(&["--path", "dist"]), &github, &Run::push()).run().expect_code(0);
    for call in ["ListArtifacts", "GetSignedArtifactURL"] {
        traffic.fail(call, 1, page(403));
        traffic.fail(call, 1, page(200));
        traffic.fail(call, 1, from_proxy());
    }
    traffic.fail("GetBlob", 1, page(403));
    let args = ["artifact", "download", "--name", "linux", "--path", "out"];
    let download = Crcr::step(&args, "push", &serde_json::json!({}));
    with_github(download, &github, &Run::push()).run().expect_code(0);
    assert!(traffic.unmet().is_empty(), "{:?}", traffic.unmet());

    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    for status in [403, 200] {
        for method in [Method::GET, Method::HEAD, Method::PUT] {
            proxy.add(crcr_testkit::fault::web_page(status).method(method).times(1));
        }
    }
    let ran = with_bucket(step(&["--path", "dist"]), "artifacts", proxy.url().as_str()).run();
    assert_eq!(outcome(&ran.expect_code(0)), ("s3", "ok"));

    let refusal = Fault::Answer {
        status: axum::http::StatusCode::FORBIDDEN,
        retry_after: None,
        body: r#"{"code":"permission_denied","msg":"the token is another run's"}"#.to_owned(),
    };
    let before = traffic.calls("CreateArtifact");
    traffic.fail("CreateArtifact", 1, refusal);
    let ran = with_github(step(&["--path", "dist", "--name", "other"]), &github, &Run::push());
    let ran = ran.run().expect_code(2);
    assert!(ran.stderr.contains("the token is another run's"), "{}", ran.report());
    assert_eq!(traffic.calls("CreateArtifact"), before + 1);
}

#[test]
fn failed_credentials_step_is_named_where_its_artifact_goes_elsewhere() {
    let github = StandIn::start().unwrap();
    let step = step(&["--path", "dist", "--s3-bucket", "artifacts"]).env("CRCR_AUTH_MODE", "error");
    let ran = with_github(step, &github, &Run::push()).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "anonymous"));
    assert!(ran.stderr.contains("::warning") && ran.stderr.contains("configure-oidc-fallback"));
}

#[test]
fn server_that_ignores_conditions_of_writes_does_not_lose_an_artifact() {
    let s3 = S3Server::start("artifacts").unwrap();
    s3.rules(|rules| rules.ignores_write_conditions = true);
    with_s3(step(&["--path", "dist"]), &s3).run().expect_code(0);
    let before = s3.object("acme/upstream/4242/linux/artifacts.zip");
    let other = with_s3(step(&["--path", "dist"]), &s3).env("GITHUB_JOB", "test");
    fs::write(other.folder().join("dist/a.txt"), "other").unwrap();
    let ran = other.run().expect_code(1);
    assert!(ran.stderr.contains("[conflict]"), "{}", ran.report());
    assert_eq!(s3.object("acme/upstream/4242/linux/artifacts.zip"), before);
}

#[test]
fn long_retry_after_from_s3_falls_back_without_waiting() {
    let (github, s3) = (StandIn::start().unwrap(), S3Server::start("artifacts").unwrap());
    let proxy = FaultProxy::start(s3.url()).unwrap();
    let hour = Fault::Answer {
        status: axum::http::StatusCode::SERVICE_UNAVAILABLE,
        retry_after: Some(3600),
        body: String::new(),
    };
    proxy.add(Rule::any(hour).method(Method::PUT));
    let step = with_bucket(step(&["--path", "dist"]), "artifacts", proxy.url().as_str());
    let started = Instant::now();
    let ran = with_github(step, &github, &Run::push()).run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "s3-unreachable"));
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

#[test]
fn upload_goes_to_the_buckets_own_region() {
    let s3 = S3Server::start("artifacts").unwrap();
    s3.rules(|rules| rules.region = "eu-west-1".to_owned());
    let ran = with_s3(step(&["--path", "dist"]), &s3).run().expect_code(0);
    assert_eq!(outcome(&ran), ("s3", "ok"));
    assert!(ran.stderr.contains("eu-west-1") && ran.outputs["locator"].contains("eu-west-1"));
}

/// MinIO and Ceph name it in the body alone.
#[test]
fn region_in_the_body_of_a_refusal_is_the_buckets_own() {
    let s3 = S3Server::start("artifacts").unwrap();
    s3.rules(|rules| rules.region = "eu-x".to_owned());
    let proxy = FaultProxy::start(s3.url()).unwrap();
    let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong; expecting \
                'eu-x'</Message><Region>eu-x</Region></Error>";
    let status = axum::http::StatusCode::BAD_REQUEST;
    let wrong = Fault::Answer { status, retry_after: None, body: body.to_owned() };
    proxy.add(Rule::any(wrong).times(1));
    proxy.add(Rule::any(Fault::status(403)).method(Method::HEAD).times(1));
    let step = with_bucket(step(&["--path", "dist"]), "artifacts", proxy.url().as_str());
    let ran = step.run().expect_code(0);
    assert_eq!(outcome(&ran), ("s3", "ok"), "{}", ran.report());
    assert!(ran.stderr.contains("is in `eu-x`, not in `us-east-1`"), "{}", ran.report());
}

#[test]
fn upload_is_retried_during_an_s3_outage_and_leaves_one_copy() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(Fault::status(503)).query("uploads").times(1));
    proxy.add(Rule::any(Fault::ResetAfterBytes(100_000)).query("partNumber=2").times(1));
    proxy.add(Rule::any(Fault::ResetAfterwards).method(Method::POST).query("uploadId").times(1));
    let step = with_bucket(step(&["--path", "dist"]), "artifacts", proxy.url().as_str());
    fs::write(step.folder().join("dist/large.bin"), noise(9 << 20)).unwrap();
    let ran = step.run().expect_code(0);
    assert_eq!(outcome(&ran), ("s3", "ok"));
    assert!(s3.unfinished().is_empty() && s3.keys().len() == 2, "{:?}", s3.keys());
}

#[test]
fn upload_is_retried_during_a_github_outage_and_leaves_one_copy() {
    let github = StandIn::start().unwrap();
    let traffic = &github.state().traffic;
    traffic.fail("CreateArtifact", 1, Fault::ResetAfterwards);
    traffic.fail("PutBlock", 1, Fault::ResetAfterBytes(100_000));
    traffic.fail("PutBlock", 1, Fault::status(503));
    traffic.fail("PutBlockList", 1, Fault::Reset);
    traffic.fail("FinalizeArtifact", 1, Fault::ResetAfterwards);
    let step = with_github(step(&["--path", "dist"]), &github, &Run::push());
    fs::write(step.folder().join("dist/large.bin"), noise(9 << 20)).unwrap();
    let ran = step.run().expect_code(0);
    assert_eq!(outcome(&ran), ("github", "no-bucket"));
    let all = github.state().artifacts.all();
    assert!(all.len() == 1 && all.iter().all(|artifact| artifact.finalized), "{all:?}");
    assert!(traffic.unmet().is_empty(), "{:?}", traffic.unmet());
}

#[test]
fn exceeded_storage_quota_warns_or_fails_as_configured() {
    let github = StandIn::start().unwrap();
    github.state().artifacts.spend_quota(true);
    let full = || with_github(step(&["--path", "dist"]), &github, &Run::push());
    let ran = full().run().expect_code(2);
    assert_eq!(outcome(&ran), ("none", "quota"));
    assert!(ran.stderr.contains("on-quota"), "{}", ran.report());
    let ran = full().arg("--on-quota").arg("warn").run().expect_code(0);
    assert_eq!(outcome(&ran), ("none", "quota"));
    assert!(
        ran.stderr.contains("::warning") && !ran.stderr.contains("::error"),
        "{}",
        ran.report()
    );
}

#[test]
fn outputs_are_printed_without_an_output_file() {
    let s3 = S3Server::start("artifacts").unwrap();
    let step = with_s3(step(&["--path", "dist"]), &s3).without("GITHUB_OUTPUT");
    let ran = step.run().expect_code(0);
    for line in ["store=s3\n", "reason=ok\n", "files=2\n"] {
        assert!(ran.stdout.contains(line), "{}", ran.report());
    }
}

#[test]
fn github_enterprise_server_stores_artifacts_only_on_s3() {
    let github = StandIn::start().unwrap();
    // It has another service at this address, or none.
    github.state().traffic.fail("CreateArtifact", 1, Fault::status(404));
    let other = |args: &[&str]| {
        let step = with_github(step(args), &github, &Run::push());
        step.env("GITHUB_SERVER_URL", "https://ghe.example.com").run()
    };
    let ran = other(&["--path", "dist"]).expect_code(2);
    let first = "GitHub Enterprise Server has no v4 artifacts";
    assert!(ran.stderr.contains(first) && ran.stderr.contains("s3-bucket"), "{}", ran.report());
    assert_eq!(outcome(&ran), ("none", "no-bucket"));
    // Gitea and Forgejo have the service.
    let ran = other(&["--path", "dist"]).expect_code(0);
    assert_eq!(outcome(&ran), ("github", "no-bucket"));
}

#[test]
fn cancelled_upload_leaves_nothing() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(Rule::any(Fault::Stall).query("partNumber=2"));
    let mut step = with_bucket(step(&["--path", "dist"]), "artifacts", proxy.url().as_str());
    fs::write(step.folder().join("dist/large.bin"), noise(9 << 20)).unwrap();
    let mut child = step.command().spawn().unwrap();
    let started = Instant::now();
    while proxy.count(&Method::PUT, "", "partNumber=2") == 0 {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    let told = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(told.success());
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert!(s3.unfinished().is_empty() && s3.keys().is_empty());
}

#[test]
fn every_refusal_by_s3_falls_back_with_the_refusal_as_a_warning() {
    let s3 = S3Server::start("artifacts").unwrap();
    let any = |status, code| Rule::any(crcr_testkit::fault::s3_error(status, code));
    for (rule, reason, told) in [
        (any(400, "ExpiredToken"), "s3-denied", "ExpiredToken"),
        (any(403, "AccessDenied").method(Method::PUT), "s3-denied", "AccessDenied"),
        (any(400, "KMS.DisabledException").method(Method::PUT), "s3-refused", "KMS.Disabled"),
        (any(405, "MethodNotAllowed").method(Method::PUT), "s3-refused", "MethodNotAllowed"),
        (any(404, "NoSuchThing").method(Method::PUT), "s3-refused", "s3-refused"),
        (any(501, "NotImplemented").method(Method::PUT), "s3-refused", "NotImplemented"),
    ] {
        let proxy = FaultProxy::start(s3.url()).unwrap();
        // Larger than one part, so that its key is looked at before anything is sent.
        let large = || {
            let step = step(&["--path", "dist"]);
            fs::write(step.folder().join("dist/large.bin"), noise(6 << 20)).unwrap();
            with_bucket(step, "artifacts", proxy.url().as_str())
        };
        proxy.add(rule);
        let github = StandIn::start().unwrap();
        let ran = with_github(large(), &github, &Run::push()).run().expect_code(0);
        assert_eq!(outcome(&ran), ("github", reason), "{}", ran.report());
        assert!(ran.stderr.contains("::warning"), "{}", ran.report());
        assert!(ran.stderr.contains(told), "{told}\n{}", ran.report());
        let ran = large().arg("--fallback=never").run().expect_code(2);
        assert_eq!(ran.outputs["store"], "none");
    }
}

/// As a server behind nginx or Traefik answers to `http:`.
#[test]
fn redirect_of_a_server_that_wants_tls_is_not_told_as_a_region() {
    let s3 = S3Server::start("artifacts").unwrap();
    for page in [false, true] {
        let proxy = FaultProxy::start(s3.url()).unwrap();
        let moved = Rule::any(Fault::status(301)).header("location", "https://minio.example.org/");
        proxy.add(if page { moved.header("content-type", "text/html") } else { moved });
        let step = step(&["--path", "dist", "--fallback", "never"]).env("CRCR_RETRY_SECONDS", "2");
        let ran = with_bucket(step, "artifacts", proxy.url().as_str()).run().expect_code(2);
        for told in ["it leads to `https://minio.example.org/`", "`s3-endpoint`"] {
            assert!(ran.stderr.contains(told), "{told}\n{}", ran.report());
        }
        assert!(!ran.stderr.contains("another region"), "{}", ran.report());
    }
}

/// As versitygw does.
#[test]
fn access_key_that_a_server_refuses_by_404_is_not_called_a_missing_object() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    let body = "<Error><Code>XAdminUserNotFound</Code><Message>No user exists with the provided access \
                key ID.</Message></Error>";
    let status = axum::http::StatusCode::NOT_FOUND;
    proxy.add(Rule::any(Fault::Answer { status, retry_after: None, body: body.to_owned() }));
    let ours = |step| with_bucket(step, "artifacts", proxy.url().as_str()).run().expect_code(2);
    let ran = ours(step(&["--path", "dist"]));
    assert_eq!(outcome(&ran), ("none", "s3-refused"));
    let told =
        "S3 refused: XAdminUserNotFound: No user exists with the provided access key ID for `";
    assert!(ran.stderr.contains(told), "{}", ran.report());
    let args = ["artifact", "download", "--name", "linux", "--path", "out"];
    let ran = ours(Crcr::step(&args, "push", &serde_json::json!({})));
    assert!(ran.stderr.contains(told), "{}", ran.report());
}

/// As Backblaze B2, Alibaba's OSS and older servers do.
#[test]
fn headers_that_a_server_does_not_know_are_left_out() {
    let s3 = S3Server::start("artifacts").unwrap();
    let refusing = |status, header| {
        let message = format!("Unsupported header '{header}' received for this API call");
        let xml =
            format!("<Error><Code>InvalidArgument</Code><Message>{message}</Message></Error>");
        let unnamed = || crcr_testkit::fault::s3_error(status, "NotImplemented");
        let named = Fault::Answer {
            status: axum::http::StatusCode::BAD_REQUEST,
            retry_after: None,
            body: xml,
        };
        Rule::any(if status == 0 { named } else { unnamed() }).sending(header)
    };
    for (n, (sums, conditions)) in
        [(0, None), (501, None), (0, Some(501)), (501, Some(400))].into_iter().enumerate()
    {
        for (archive, tag) in [("zip", if n == 3 { "3" } else { "0" }), ("none", "0")] {
            let proxy = FaultProxy::start(s3.url()).unwrap();
            for header in ["x-amz-checksum-crc64nvme", "x-amz-checksum-algorithm"] {
                proxy.add(refusing(sums, header));
            }
            for header in ["if-none-match", "if-match"] {
                for method in [Method::PUT, Method::POST] {
                    if let Some(status) = conditions {
                        proxy.add(refusing(status, header).method(method));
                    }
                }
            }
            let name = format!("{n}-{archive}-{tag}");
            let args = ["--path", "dist", "--archive", archive, "--name", &name];
            let upload = || {
                let step = step(&[&args[..], &["--retention-days", tag]].concat());
                let step = with_bucket(step, "artifacts", proxy.url().as_str());
                fs::write(step.folder().join("dist/large.bin"), vec![7; 6 << 20]).unwrap();
                step.arg("--compression-level=0")
            };
            let ran = upload().run().expect_code(0);
            assert_eq!(outcome(&ran), ("s3", "ok"), "{name}: {}", ran.report());
            assert!(!ran.stderr.contains("::warning"), "{name}: {}", ran.report());
            // What another job has stored is safe, even where no write has a condition.
            let other = upload().env("GITHUB_JOB", "test");
            fs::write(other.folder().join("dist/a.txt"), "other").unwrap();
            let ran = other.run().expect_code(1);
            assert!(ran.stderr.contains("[conflict]"), "{name}: {}", ran.report());
        }
    }
}

/// Cloudflare's R2 refuses the tag like this, and AWS a role without `s3:PutObjectTagging` by 403.
#[test]
fn server_that_refuses_the_retention_tag_is_not_asked_again_for_each_file() {
    const FILES: usize = 300;
    let s3 = S3Server::start("artifacts").unwrap();
    for (status, code) in [(501, "NotImplemented"), (403, "AccessDenied")] {
        let proxy = FaultProxy::start(s3.url()).unwrap();
        proxy.add(Rule::any(crcr_testkit::fault::s3_error(status, code)).sending("x-amz-tagging"));
        let args = ["--path", "dist", "--archive", "none", "--name", code, "--retention-days", "5"];
        let step = step(&args);
        for n in 0..FILES {
            fs::write(step.folder().join(format!("dist/{n}.txt")), "text").unwrap();
        }
        let ran = with_bucket(step, "artifacts", proxy.url().as_str()).run().expect_code(0);
        assert_eq!(outcome(&ran), ("s3", "ok"), "{}", ran.report());
        assert!(ran.stderr.contains("retention-days"), "{}", ran.report());
        // The first ones are sent together.
        let puts = proxy.count(&Method::PUT, "", "");
        assert!(puts < 2 * FILES, "{code}: {puts}");
    }
}

#[test]
fn s3_checksum_none_uploads_to_a_server_that_refuses_checksums() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    for header in ["x-amz-checksum-crc64nvme", "x-amz-checksum-algorithm"] {
        proxy.add(Rule::any(crcr_testkit::fault::s3_error(501, "NotImplemented")).sending(header));
    }
    for archive in ["zip", "none"] {
        let args = ["--path", "dist", "--s3-checksum", "none", "--archive", archive];
        let step = step(&[&args[..], &["--name", archive]].concat());
        fs::write(step.folder().join("dist/large.bin"), noise(11 << 20)).unwrap();
        let ran = with_bucket(step, "artifacts", proxy.url().as_str()).run().expect_code(0);
        assert_eq!(outcome(&ran), ("s3", "ok"), "{}", ran.report());
    }
}
