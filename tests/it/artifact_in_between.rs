//! Answers that no service gives: of a proxy or a load balancer in between, or of a server that has done what was asked
//! and says that it hasn't.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule, s3_error, web_page};
use crcr_testkit::s3::{ACCESS_KEY, S3Server, SECRET_KEY};

use crate::artifact_download::{World, zip};
use crate::artifact_upload::{noise, step, with_github};
use crate::artifact_upload_faults::{outcome, with_bucket};
use crate::support::{Crcr, Ran};

const ZIP: &str = "acme/upstream/4242/linux/artifacts.zip";
const PAGE: &str = "<html><head><title>Sign in</title></head></html>";

fn answer(status: u16, body: &str) -> Fault {
    let status = StatusCode::from_u16(status).unwrap();
    Fault::Answer { status, retry_after: None, body: body.to_owned() }
}

fn download() -> Crcr {
    let args = ["artifact", "download", "--name", "linux", "--path", "out"];
    Crcr::step(&args, "push", &serde_json::json!({}))
}

const FORMS: [(u16, &str); 18] = [
    (200, PAGE),
    (200, ""),
    (200, "{\"ok\": tr"),
    (200, "{}"),
    (200, "[]"),
    (200, "{\"error\": \"try later\"}"),
    (204, ""),
    (403, PAGE),
    (403, "Forbidden"),
    (403, ""),
    (404, PAGE),
    (401, PAGE),
    (408, ""),
    (421, ""),
    (425, ""),
    (499, ""),
    (451, PAGE),
    (502, PAGE),
];

#[test]
fn answer_that_is_not_githubs_is_waited_out_by_each_call() {
    std::thread::scope(|scope| {
        for (status, body) in FORMS {
            scope.spawn(move || {
                let github = StandIn::start().unwrap();
                let traffic = &github.state().traffic;
                for call in ["CreateArtifact", "PutBlob", "FinalizeArtifact"] {
                    traffic.fail(call, 1, answer(status, body));
                }
                let upload = with_github(step(&["--path", "dist"]), &github, &Run::push());
                upload.run().expect_code(0);
                for call in ["ListArtifacts", "GetSignedArtifactURL"] {
                    traffic.fail(call, 1, answer(status, body));
                }
                // Of a blob, any other body can be a part.
                if body == PAGE {
                    traffic.fail("GetBlob", 1, answer(status, body));
                }
                let ran = with_github(download(), &github, &Run::push()).run().expect_code(0);
                assert!(ran.path("out/a.txt").exists(), "{status} {body}");
                assert!(traffic.unmet().is_empty(), "{status} {body}: {:?}", traffic.unmet());
            });
        }
    });
}

#[test]
fn login_page_that_something_in_between_leads_to_is_waited_out_by_a_download() {
    let github = StandIn::start().unwrap();
    with_github(step(&["--path", "dist"]), &github, &Run::push()).run().expect_code(0);
    let traffic = &github.state().traffic;
    for (status, body) in [(302, ""), (302, PAGE), (200, PAGE)] {
        traffic.fail("GetBlob", 1, answer(status, body));
        let signed = traffic.calls("GetSignedArtifactURL");
        let ran = with_github(download(), &github, &Run::push()).run().expect_code(0);
        assert!(ran.path("out/a.txt").exists(), "{}", ran.report());
        // The address may have been given by what is in between.
        assert_eq!(traffic.calls("GetSignedArtifactURL") - signed, 2, "{status}");
    }
    assert!(traffic.unmet().is_empty());
}

/// The first answer to each call of the REST API that a download from another run makes.
fn another_run_answers_first(fault: Fault) {
    let world = World::new(Run::push());
    world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    let traffic = &reader.github.state().traffic;
    let calls = ["run-artifacts", "run", "artifact-zip"];
    for call in calls {
        traffic.fail(call, 1, fault.clone());
    }
    let args = ["--name", "wheels", "--run-id", "4242", "--github-token", "ghs_reader"];
    let ran = reader.step("download", &args).env("GITHUB_RUN_ID", "5000").run().expect_code(0);
    assert!(ran.path("a").exists() && traffic.unmet().is_empty(), "{fault:?}");
    for call in calls {
        assert_eq!(traffic.calls(call), 2, "{call} {fault:?}");
    }
}

#[test]
fn answer_that_is_not_githubs_is_waited_out_by_each_call_about_another_run() {
    let limit = r#"{"message": "You have exceeded a secondary rate limit"}"#.to_owned();
    let status = StatusCode::FORBIDDEN;
    let limit = Fault::Answer { status, retry_after: Some(1), body: limit };
    let forms = FORMS.into_iter().map(|(status, body)| answer(status, body));
    std::thread::scope(|scope| {
        for fault in forms.chain([limit]) {
            scope.spawn(move || another_run_answers_first(fault));
        }
    });
}

#[test]
fn answer_about_another_run_that_is_cut_is_asked_for_again() {
    let world = World::new(Run::push());
    world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    let api = reader.github.state().origin().parse().unwrap();
    for cut in [Fault::CutAfterBytes(9), Fault::ResetAfterBytes(9)] {
        let proxy = FaultProxy::start(&api).unwrap();
        proxy.add(Rule::any(cut.clone()).path("/actions/runs/4242/artifacts").times(1));
        proxy.add(Rule::any(cut).path("/actions/runs/4242").times(1));
        let args = ["--name", "wheels", "--run-id", "4242", "--github-token", "ghs_reader"];
        let step = reader.step("download", &args).env("GITHUB_RUN_ID", "5000");
        let ran = step.env("GITHUB_API_URL", proxy.url().as_str()).run().expect_code(0);
        assert!(ran.path("a").exists() && proxy.seen().len() == 5, "{:?}", proxy.seen());
    }
}

#[test]
fn artifact_that_github_does_not_finish_is_not_reported_as_stored() {
    let github = StandIn::start().unwrap();
    github.state().traffic.fail("FinalizeArtifact", 99, answer(200, "{\"error\": \"later\"}"));
    let upload = with_github(step(&["--path", "dist"]), &github, &Run::push());
    let ran = upload.env("CRCR_RETRY_SECONDS", "2").run().expect_code(2);
    assert_eq!(outcome(&ran), ("none", "no-bucket"));
    let told = "FinalizeArtifact: something in between answered 200 OK instead of the server: \
                {\"error\": \"later\"}";
    assert!(ran.stderr.contains(told), "{}", ran.report());
    assert!(github.state().artifacts.all().is_empty());
}

/// The step against `s3` behind a proxy that answers once by this rule.
fn through(step: Crcr, s3: &S3Server, rule: Rule) -> Ran {
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(rule.times(1));
    with_bucket(step, "artifacts", proxy.url().as_str()).run()
}

#[test]
fn object_whose_answer_was_lost_is_our_own() {
    let lost = [Fault::AnswerAfterwards(500), Fault::AnswerAfterwards(503), Fault::ResetAfterwards];
    for (fault, archive) in lost.iter().flat_map(|fault| [(fault, "zip"), (fault, "none")]) {
        let s3 = S3Server::start("artifacts").unwrap();
        let upload = step(&["--path", "dist", "--archive", archive]);
        let ran = through(upload, &s3, Rule::any(fault.clone()).method(Method::PUT));
        assert_eq!(outcome(&ran.expect_code(0)), ("s3", "ok"), "{fault:?} {archive}");
    }
}

#[test]
fn download_from_s3_waits_out_each_call_and_asks_again_for_what_breaks_off() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    let through_proxy = |step| with_bucket(step, "artifacts", proxy.url().as_str());
    let fault = |fault: &Fault, method, path| Rule::any(fault.clone()).method(method).path(path);
    for archive in ["zip", "none"] {
        let upload = step(&["--path", "dist", "--archive", archive, "--name", archive]);
        let locator = through_proxy(upload).run().expect_code(0).outputs["locator"].clone();
        for how in [["--name", archive], ["--locator", &locator]] {
            let cut = Fault::ResetAfterBytes(20);
            for down in [Fault::status(503), cut, answer(302, ""), answer(200, "")] {
                for rule in [
                    fault(&down, Method::HEAD, ""),
                    fault(&down, Method::GET, "/dist"),
                    fault(&down, Method::GET, archive),
                    fault(&down, Method::GET, "crcr.json"),
                    fault(&answer(403, ""), Method::GET, archive),
                    fault(&answer(403, ""), Method::GET, "crcr.json"),
                    fault(&answer(404, "no such route"), Method::GET, archive),
                    web_page(404).method(Method::HEAD),
                ] {
                    proxy.clear();
                    proxy.add(rule.clone().times(1));
                    let args = ["artifact", "download", "--path", "out", how[0], how[1]];
                    let download = Crcr::step(&args, "push", &serde_json::json!({}));
                    let ran = through_proxy(download).run().expect_code(0);
                    assert!(ran.path("out/a.txt").exists(), "{rule:?}: {}", ran.report());
                }
            }
        }
    }
}

#[test]
fn locator_that_something_in_between_cuts_is_read_again() {
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = step(&["--path", "dist"]);
    with_bucket(upload, "artifacts", s3.url().as_str()).run().expect_code(0);
    let cut = Rule::any(Fault::ShortenTo(20)).method(Method::GET).path("crcr.json");
    let ran = through(download(), &s3, cut).expect_code(0);
    assert!(ran.path("out/a.txt").exists(), "{}", ran.report());
}

/// Some servers know only the first version of lists.
#[test]
fn list_that_is_cut_without_a_way_on_is_not_taken_for_the_whole_artifact() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    let upload = step(&["--path", "dist", "--archive", "none"]);
    with_bucket(upload, "artifacts", s3.url().as_str()).run().expect_code(0);
    let list = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents>\
                <Key>acme/upstream/4242/linux/a.txt</Key><Size>2000</Size></Contents></ListBucketResult>";
    proxy.add(Rule::any(s3_error(404, "NoSuchKey")).path("crcr.json"));
    proxy.add(Rule::any(answer(200, list)).query("list-type=2"));
    let ran = with_bucket(download(), "artifacts", proxy.url().as_str()).run().expect_code(2);
    assert!(ran.stderr.contains("is cut"), "{}", ran.report());
    assert!(!ran.path("out/a.txt").exists());
}

#[test]
fn weak_etag_of_a_proxy_is_no_condition() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    let upload = step(&["--path", "dist", "--compression-level", "0"]);
    fs::write(upload.folder().join("dist/large.bin"), noise(9 << 20)).unwrap();
    with_bucket(upload, "artifacts", proxy.url().as_str()).run().expect_code(0);
    for method in [Method::GET, Method::HEAD] {
        let weak = Rule::any(Fault::Delay(Duration::ZERO)).method(method);
        proxy.add(weak.header("etag", "W/\"1\""));
    }
    let ran = with_bucket(download(), "artifacts", proxy.url().as_str()).run().expect_code(0);
    assert_eq!(fs::metadata(ran.path("out/large.bin")).unwrap().len(), 9 << 20);
}

#[test]
fn web_page_with_a_good_status_is_told_with_that_status() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(web_page(200));
    let upload = step(&["--path", "dist", "--fallback", "never"]).env("CRCR_RETRY_SECONDS", "1");
    let ran = with_bucket(upload, "artifacts", proxy.url().as_str()).run().expect_code(2);
    let text = "answered 200, or the endpoint isn't that of S3";
    assert!(ran.stderr.contains(text), "{}", ran.report());
}

#[test]
fn missing_route_is_not_told_as_a_missing_artifact() {
    for page in [answer(404, "no Route matched"), answer(404, PAGE)] {
        let s3 = S3Server::start("artifacts").unwrap();
        let proxy = FaultProxy::start(s3.url()).unwrap();
        proxy.add(Rule::any(page));
        for upload in [false, true] {
            let upload_args = ["--path", "dist", "--fallback", "never"];
            let step = if upload { step(&upload_args) } else { download() };
            let step = step.env("CRCR_RETRY_SECONDS", "1");
            let ran = with_bucket(step, "artifacts", proxy.url().as_str()).run().expect_code(2);
            let text = "answered 404, or the endpoint isn't that of S3";
            assert!(ran.stderr.contains(text), "{}", ran.report());
        }
    }
}

#[test]
fn web_page_in_place_of_the_region_is_not_told_as_a_missing_bucket() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    proxy.add(web_page(404));
    let args = ["--path", "dist", "--fallback", "never", "--s3-bucket", "artifacts"];
    let step = step(&args).arg("--s3-endpoint").arg(proxy.url().as_str());
    let step = step.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    let ran = step.env("CRCR_RETRY_SECONDS", "1").run().expect_code(2);
    let text = "answered 404, or the endpoint isn't that of S3";
    assert!(ran.stderr.contains(text), "{}", ran.report());
}

#[test]
fn locator_whose_answer_breaks_off_still_guards_what_another_job_has_stored() {
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = || step(&["--path", "dist", "--archive", "none"]);
    with_bucket(upload(), "artifacts", s3.url().as_str()).run().expect_code(0);
    for (fault, times) in [
        (Fault::ResetAfterBytes(20), 1),
        (Fault::ShortenTo(20), 1),
        // It isn't known then whose it is.
        (Fault::ShortenTo(20), 99),
    ] {
        let other = upload().env("GITHUB_JOB", "test");
        fs::rename(other.folder().join("dist/a.txt"), other.folder().join("dist/c.txt")).unwrap();
        fs::remove_dir_all(other.folder().join("dist/sub")).unwrap();
        let proxy = FaultProxy::start(s3.url()).unwrap();
        proxy.add(Rule::any(fault).method(Method::GET).path("crcr.json").times(times));
        let ran = with_bucket(other, "artifacts", proxy.url().as_str()).run().expect_code(1);
        assert!(ran.stderr.contains("[conflict]"), "{}", ran.report());
        assert!(s3.keys().iter().all(|key| !key.ends_with("c.txt")), "{:?}", s3.keys());
    }
}

#[test]
fn answer_that_is_not_s3s_is_waited_out() {
    let page = |status| web_page(status).method(Method::PUT);
    let put = |fault| Rule::any(fault).method(Method::PUT);
    let forms = [
        page(404),
        page(401),
        page(405),
        put(answer(200, "")),
        put(answer(200, PAGE)),
        put(answer(302, "")),
        put(answer(303, PAGE)),
        page(307),
        web_page(307).method(Method::HEAD),
        put(answer(403, "")),
        put(answer(403, "Forbidden")),
        put(answer(404, "no such route")),
        put(answer(421, "")),
        put(answer(425, "")),
        put(answer(499, "")),
        Rule::any(answer(403, "")).method(Method::POST).query("uploads"),
        Rule::any(answer(403, "")).method(Method::GET).path("crcr.json"),
        Rule::any(answer(403, "Forbidden")).method(Method::POST).query("uploads"),
        Rule::any(answer(403, "Forbidden")).query("partNumber=2"),
        Rule::any(answer(200, "")).method(Method::HEAD),
        Rule::any(answer(204, "")).method(Method::HEAD),
        put(s3_error(200, "InternalError")),
        put(s3_error(409, "ConditionalRequestConflict")),
        put(s3_error(409, "OperationAborted")),
        put(s3_error(400, "BadDigest")),
        put(s3_error(400, "IncompleteBody")),
        Rule::any(answer(200, "")).method(Method::POST).query("uploads"),
        // Within the answer's first tag, and before the upload's id.
        Rule::any(Fault::ShortenTo(60)).method(Method::POST).query("uploads"),
        Rule::any(Fault::ShortenTo(150)).method(Method::POST).query("uploads"),
        Rule::any(answer(200, "")).method(Method::POST).query("uploadId"),
        Rule::any(s3_error(200, "InternalError")).method(Method::POST).query("uploadId"),
        Rule::any(s3_error(200, "ServiceUnavailable")).method(Method::POST).query("uploadId"),
        Rule::any(answer(200, "")).query("partNumber=2"),
        web_page(404).query("partNumber=2"),
    ];
    std::thread::scope(|scope| {
        for rule in forms {
            scope.spawn(move || {
                let s3 = S3Server::start("artifacts").unwrap();
                let upload = step(&["--path", "dist"]);
                let is_large = format!("{rule:?}").contains("partNumber")
                    || format!("{rule:?}").contains("upload");
                let size = if is_large { 11 << 20 } else { 1000 };
                let content = noise(size);
                fs::write(upload.folder().join("dist/c.bin"), &content).unwrap();
                let ran = through(upload, &s3, rule.clone()).expect_code(0);
                assert_eq!(outcome(&ran), ("s3", "ok"), "{rule:?}");
                assert!(s3.unfinished().is_empty(), "{rule:?}");
                // The locator names the proxy, which is gone.
                fs::write(ran.path("zip"), s3.object(ZIP).unwrap()).unwrap();
                let zip = fs::File::open(ran.path("zip")).unwrap();
                let mut zip = zip::ZipArchive::new(zip).unwrap();
                let mut stored = vec![];
                zip.by_name("c.bin").unwrap().read_to_end(&mut stored).unwrap();
                assert!(stored == content, "{rule:?}");
            });
        }
    });
}

#[test]
fn refusal_of_s3_names_its_own_status_and_what_is_wrong_with_the_credentials() {
    let s3 = S3Server::start("artifacts").unwrap();
    for (code, hint) in [
        ("SignatureDoesNotMatch", "space or a line break"),
        ("InvalidAccessKeyId", "doesn't know these credentials"),
        ("AccessDenied", "s3:PutObject"),
    ] {
        let upload = step(&["--path", "dist", "--fallback", "never"]);
        let ran = through(upload, &s3, Rule::any(s3_error(403, code)).method(Method::PUT));
        let text = ran.expect_code(2).stderr;
        assert!(text.contains(code) && text.contains(hint), "{text}");
    }
    let upload = step(&["--path", "dist", "--fallback", "never"]);
    let ran = through(upload, &s3, Rule::any(answer(401, "")).method(Method::PUT));
    assert!(ran.stderr.contains("401 for"), "{}", ran.report());
}

/// A connection to `upstream` that carries `bytes_per_second`, as a home's uplink that all requests share.
fn slow_line(upstream: &url::Url, bytes_per_second: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    let upstream = format!("127.0.0.1:{}", upstream.port().unwrap());
    let line = std::sync::Arc::new(std::sync::Mutex::new(()));
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&upstream).unwrap());
            let (mut back, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back, &mut to));
            let line = line.clone();
            std::thread::spawn(move || carry(near, far, &line, bytes_per_second));
        }
    });
    url
}

fn carry(mut near: TcpStream, mut far: TcpStream, line: &std::sync::Mutex<()>, speed: usize) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = near.read(&mut piece) {
        let turn = line.lock().unwrap();
        std::thread::sleep(Duration::from_secs_f64(read as f64 / speed as f64));
        drop(turn);
        if far.write_all(&piece[..read]).is_err() {
            return;
        }
    }
}

#[test]
fn upload_at_a_crawl_reaches_the_bucket_while_bytes_flow() {
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = step(&["--path", "dist"]);
    let content = noise(24 << 20);
    fs::write(upload.folder().join("dist/large.bin"), &content).unwrap();
    let line = slow_line(s3.url(), 2 << 20);
    let upload = with_bucket(upload, "artifacts", &line);
    let started = Instant::now();
    let ran = upload.env("CRCR_READ_TIMEOUT", "4").env("CRCR_RETRY_SECONDS", "6").run();
    assert_eq!(outcome(&ran.expect_code(0)), ("s3", "ok"));
    assert!(started.elapsed() > Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(s3.object(ZIP).unwrap().len() > content.len());
}
