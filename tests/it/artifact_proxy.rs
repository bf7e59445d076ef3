//! Artifacts in a bucket behind a proxy, as the usual variables name it.

use std::fs;

use axum::http::Method;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule};
use crcr_testkit::s3::Anonymous;
use serde_json::json;

use crate::artifact_download::World;
use crate::artifact_upload::step;
use crate::artifact_upload_faults::with_bucket;
use crate::support::Crcr;

/// A name that nobody but the proxy can know.
const ENDPOINT: &str = "http://s3.example.invalid";

/// A download of two objects without credentials, which takes a list, with nothing but the bucket.
fn anonymous(endpoint: &str, proxy: &FaultProxy) -> Crcr {
    let args = ["artifact", "download", "--name", "logs", "--auth-mode", "anonymous"];
    let step = Crcr::step(&args, "push", &json!({})).env("AWS_REGION", "us-east-1");
    let step = step.arg("--s3-bucket").arg("artifacts").arg("--s3-endpoint").arg(endpoint);
    step.env("HTTP_PROXY", proxy.url().as_str()).env("HTTPS_PROXY", proxy.url().as_str())
}

fn world() -> (World, FaultProxy) {
    let world = World::new(Run::push());
    world.s3("acme/upstream/4242/logs/a", b"1", &[]);
    world.s3("acme/upstream/4242/logs/d/b", b"2", &[]);
    world.s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    (world, proxy)
}

#[test]
fn bucket_is_read_anonymously_through_the_proxy() {
    let (_world, proxy) = world();
    let ran = anonymous(ENDPOINT, &proxy).run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"1");
    assert_eq!(fs::read(ran.path("d/b")).unwrap(), b"2");
    assert!(proxy.count(&Method::GET, "", "list-type=2") > 0);
    assert!(proxy.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
}

#[test]
fn hosts_in_no_proxy_are_reached_directly() {
    let (world, proxy) = world();
    let port = world.s3.url().port().unwrap();
    for value in ["127.0.0.1", &format!("a.example, 127.0.0.1:{port}"), "*"] {
        let step = anonymous(world.s3.url().as_str(), &proxy).env("NO_PROXY", value);
        let ran = step.run().expect_code(0);
        assert_eq!(fs::read(ran.path("a")).unwrap(), b"1");
        assert!(proxy.seen().is_empty(), "{value}");
    }
}

/// Content goes another way than the rest, so it has its own eyes for the proxy.
#[test]
fn all_requests_of_an_upload_use_the_proxy_or_none_does() {
    let (world, proxy) = world();
    let upload = || with_bucket(step(&["--path", "dist"]), "artifacts", world.s3.url().as_str());
    upload().env("HTTP_PROXY", proxy.url().as_str()).run().expect_code(0);
    let seen = proxy.seen();
    assert!(seen.iter().any(|seen| seen.method == Method::PUT), "{seen:?}");
    assert!(seen.iter().any(|seen| seen.method == Method::GET), "{seen:?}");
    let step = upload().arg("--overwrite").env("HTTP_PROXY", proxy.url().as_str());
    step.env("NO_PROXY", "127.0.0.1").run().expect_code(0);
    assert_eq!(proxy.seen().len(), seen.len());
}

#[test]
fn error_names_a_proxy_that_refuses_the_tunnel() {
    let (_world, proxy) = world();
    proxy.add(Rule::any(Fault::status(407)).method(Method::CONNECT));
    let ran = anonymous("https://s3.example.invalid", &proxy).run().expect_code(2);
    assert!(proxy.count(&Method::CONNECT, "", "") > 0, "{}", ran.report());
    assert!(
        ran.stderr.contains("[store-unreachable]") && ran.stderr.contains("the proxy"),
        "{}",
        ran.report()
    );
}
