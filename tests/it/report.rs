//! `crcr report` with the responses of this relay and of the deployed one.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use axum::http::StatusCode;
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use serde_json::{Value, json};

use crate::support::{Crcr, Ran};

const DELIVERY: &str = "72d3162e-cc78-11e3-81ab-4c9367dc0958";

/// A relay that sends these responses, one for each connection, and records the requests.
pub(crate) struct Relay {
    url: String,
    requests: mpsc::Receiver<Request>,
}

#[derive(Debug)]
pub(crate) struct Request {
    line: String,
    authorization: String,
    pub(crate) body: Value,
}

/// What the relay does with a request.
pub(crate) enum Answer {
    Say(u16, &'static str),
    /// 429, with a turn after so many seconds.
    Later(u64),
    /// Takes it and closes the connection.
    Silence,
}

impl Relay {
    pub(crate) fn start(
        answers: impl IntoIterator<Item = Answer, IntoIter: Send + 'static>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/github/callback", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::channel();
        let answers = answers.into_iter();
        std::thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let (mut length, mut authorization) = (0, String::new());
                loop {
                    let mut header = String::new();
                    reader.read_line(&mut header).unwrap();
                    let Some((name, value)) = header.trim().split_once(": ") else { break };
                    match name.to_lowercase().as_str() {
                        "content-length" => length = value.parse().unwrap(),
                        "authorization" => authorization = value.to_owned(),
                        _ => {}
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let body = serde_json::from_slice(&body).unwrap();
                let line = line.trim().to_owned();
                let _ = sender.send(Request { line, authorization, body });
                let (status, body, turn) = match answer {
                    Answer::Say(status, body) => (status, body, String::new()),
                    Answer::Later(seconds) => {
                        let body = r#"{"detail":"rate limit exceeded for acme/backend"}"#;
                        (429, body, format!("retry-after: {seconds}\r\n"))
                    }
                    Answer::Silence => continue,
                };
                let length = body.len();
                write!(
                    &stream,
                    "HTTP/1.1 {status} X\r\n{turn}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
                )
                .unwrap();
            }
        });
        Self { url, requests }
    }

    pub(crate) fn next(&self) -> Request {
        self.requests.recv_timeout(Duration::from_secs(10)).unwrap()
    }
}

/// A job of `acme/backend` that the relay dispatched a pull request to.
pub(crate) struct Job {
    github: StandIn,
    environment: Vec<(&'static str, String)>,
}

impl Job {
    pub(crate) fn new() -> Self {
        let github = StandIn::start().unwrap();
        let run = Run {
            repository: "acme/backend".to_owned(),
            head_repository: Some("acme/backend".to_owned()),
            event: "repository_dispatch".to_owned(),
            ..Run::push()
        };
        let runs = &github.state().runs;
        let job = runs.add_job(runs.add(run), "build");
        let mut environment: Vec<_> = github.state().job_environment(&job).into_iter().collect();
        environment.push(("GITHUB_SERVER_URL", "https://github.com".to_owned()));
        Self { github, environment }
    }

    pub(crate) fn report(&self, relay: &Relay, args: &[&str]) -> Crcr {
        let args = [&["report", "--callback-url", &relay.url], args].concat();
        self.on_dispatch(&args, &event())
    }

    /// A step of a run that this event started.
    fn on_dispatch(&self, args: &[&str], event: &Value) -> Crcr {
        let mut run = Crcr::step(args, "repository_dispatch", event);
        for (name, value) in &self.environment {
            run = run.env(name, value);
        }
        run.env("GITHUB_EVENT_NAME", "repository_dispatch")
    }

    fn minted(&self) -> usize {
        self.github.state().traffic.calls("mint")
    }
}

fn event() -> Value {
    json!({ "action": "pull_request", "client_payload": {
        "event_type": "pull_request", "delivery_id": DELIVERY, "callback_token": "v1.k1.abc",
        "payload": { "action": "opened", "pull_request": { "number": 7 } },
    } })
}

pub(crate) const OK: &str = r#"{"ok":true,"status":"completed"}"#;
const IN_PROGRESS: [&str; 2] = ["--status", "in_progress"];
const SUCCESS: [&str; 4] = ["--status", "completed", "--conclusion", "success"];

fn without_port(ran: &Ran) -> String {
    ran.report()
        .lines()
        .filter(|line| !line.contains("::add-mask::"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn report_is_the_dispatched_payload_and_the_key_workflow() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let ran = job.report(&relay, &IN_PROGRESS).run().expect_code(0);
    let Request { line, authorization, mut body } = relay.next();
    assert_eq!(line, "POST /github/callback HTTP/1.1");
    assert!(authorization.starts_with("Bearer ey"), "{authorization}");
    let token = authorization.trim_start_matches("Bearer ");
    let shown = ran.report().replace(&format!("::add-mask::{token}"), "");
    assert!(!shown.contains(token), "the token is masked and nowhere else");
    let started = body["workflow"]["started_at"].take();
    assert!(started.as_str().unwrap().ends_with('Z'), "{started}");
    let mut expected = event()["client_payload"].clone();
    expected["workflow"] = json!({
        "schema_version": "1", "status": "in_progress", "conclusion": null, "name": "build",
        "url": "https://github.com/acme/backend/actions/runs/4242", "run_id": "4242",
        "run_attempt": "1", "job_name": "build", "check_run_id": "4242-1", "started_at": null,
        "completed_at": null,
    });
    assert_eq!(body, expected);
    assert_eq!(ran.outputs["outcome"], "recorded");
    assert!(
        ran.stderr.contains("reported to 127.0.0.1: `build` is in_progress"),
        "{}",
        ran.report()
    );
}

/// The `end` job of a downstream: it reports for `test (3.12)`, whose own run left `file`.
fn reported_by_the_last_job(github: &str, file: Option<&[u8]>) -> (Value, Ran) {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let args =
        ["--status", "completed", "--job-name", "test (3.12)", "--outcome-file", "outcome.json"];
    let run = job.report(&relay, &args).arg("--conclusion").arg(github);
    let run = run.env("GITHUB_JOB", "end").env("CRCR_CHECK_RUN_ID", "77");
    if let Some(bytes) = file {
        fs::write(run.folder().join("outcome.json"), bytes).unwrap();
    }
    let ran = run.run().expect_code(0);
    (relay.next().body["workflow"].take(), ran)
}

#[test]
fn matrix_leg_reports_its_own_outcome_from_another_job() {
    for (github, left, conclusion, phase) in [
        ("failure", r#"{"conclusion": "success", "phase": "test"}"#, "success", json!("test")),
        ("failure", r#"{"conclusion": "failure", "phase": "build"}"#, "failure", json!("build")),
        ("failure", r#"{"conclusion": "cancelled"}"#, "cancelled", Value::Null),
        ("failure", "{}", "failure", Value::Null),
        // GitHub says that every leg passed, or that none ran.
        ("success", r#"{"conclusion": "failure"}"#, "success", Value::Null),
        ("skipped", r#"{"conclusion": "success"}"#, "skipped", Value::Null),
    ] {
        let (workflow, ran) = reported_by_the_last_job(github, Some(left.as_bytes()));
        assert_eq!(workflow["conclusion"], conclusion, "{github} {left}");
        assert_eq!(workflow["phase"], phase, "{github} {left}");
        assert_eq!(workflow["job_name"], "test (3.12)");
        assert!(ran.stderr.contains(&format!("completed ({conclusion})")), "{}", ran.report());
    }
}

#[test]
fn outcome_file_is_bounded_and_never_prevents_the_report() {
    let long = format!(r#"{{"conclusion": "success", "phase": "{}"}}"#, "x".repeat(100_000));
    for file in [
        None,
        Some(&b"no JSON"[..]),
        Some(br#"{"conclusion": "neutral"}"#),
        Some(br#"{"conclusion": ["success"]}"#),
        Some(b"\xff\xfe"),
        Some(long.as_bytes()),
    ] {
        let (workflow, ran) = reported_by_the_last_job("failure", file);
        assert_eq!(workflow["conclusion"], "failure", "{file:?}");
        assert!(ran.stderr.contains("`outcome-file` can't be read"), "{}", ran.report());
    }
    let odd = br#"{"conclusion": "success", "phase": "<b>\n::error::x"}"#;
    let (workflow, ran) = reported_by_the_last_job("failure", Some(odd));
    assert_eq!((&workflow["conclusion"], &workflow["phase"]), (&json!("success"), &Value::Null));
    assert!(!ran.stderr.contains("<b>"), "{}", ran.report());
}

#[test]
fn both_reports_of_a_job_name_the_same_check_run_whichever_job_sends_them() {
    let check_run = |key: &str, name: &str| {
        let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
        let run = job.report(&relay, &IN_PROGRESS).arg("--job-name").arg(name);
        run.env("GITHUB_JOB", key).env("CRCR_CHECK_RUN_ID", "77").run().expect_code(0);
        relay.next().body["workflow"]["check_run_id"].take()
    };
    assert_eq!(check_run("start", "test (3.12)"), "4242-1");
    assert_eq!(check_run("end", "test (3.12)"), "4242-1");
    assert_eq!(check_run("test", "test (3.12)"), "77", "a job that reports for itself");
}

#[test]
fn junit_reports_are_counted_and_failing_tests_named() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let run = job.report(
        &relay,
        &[
            "--status",
            "completed",
            "--conclusion",
            "failure",
            "--junit",
            "reports/**/*.xml",
            "--phase",
            "test",
            "--environment",
            "npu-910b",
            "--job-name",
            "build (3.12)",
        ],
    );
    let reports = run.folder().join("reports/a");
    fs::create_dir_all(&reports).unwrap();
    let failing: String = (0..60)
        .map(|n| format!("<testcase classname='c' name='t{n}'><failure message='no'/></testcase>"))
        .collect();
    fs::write(reports.join("1.xml"), format!("<testsuite>{failing}</testsuite>")).unwrap();
    let passing = "<testsuites><testsuite><testcase name='a'/><testcase name='b'><skipped/>\
                   </testcase><testcase name='cut";
    fs::write(reports.join("2.xml"), passing).unwrap();
    fs::write(reports.join("3.xml"), "<html/>").unwrap();
    let ran = run.run().expect_code(0);
    let workflow = relay.next().body["workflow"].take();
    let counts = json!({ "passed": 1, "failed": 60, "skipped": 1, "total": 62 });
    assert_eq!(workflow["test_results"], counts);
    assert_eq!(workflow["failed_tests"].as_array().unwrap().len(), 60);
    assert_eq!(workflow["failed_tests"][0], json!({ "name": "c.t0", "message": "no" }));
    assert_eq!(workflow["phase"], "test");
    assert_eq!(
        (&workflow["environment"], &workflow["job_name"]),
        (&json!("npu-910b"), &json!("build (3.12)"))
    );
    assert!(ran.stderr.contains("2.xml`: the report stops in the middle"), "{}", ran.report());
    assert!(
        ran.stderr.contains("3.xml` is left out: it isn't a test report: it is a page in HTML"),
        "{}",
        ran.report()
    );
}

/// A dozen folders with links to each other have 12! paths, and an artifact of a stranger may have them.
#[cfg(unix)]
#[test]
fn folders_of_reports_that_link_to_each_other_are_not_searched_for_ever() {
    use std::os::unix::fs::symlink;
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let globs = "reports/**/*.xml\nreports/*/*.xml";
    let args = ["--status", "completed", "--conclusion", "success", "--junit", globs];
    let run = job.report(&relay, &args);
    let at = |n: usize| run.folder().join(format!("reports/d{n}"));
    for n in 0..12 {
        fs::create_dir_all(at(n)).unwrap();
        for other in (0..12).filter(|other| *other != n) {
            symlink(at(other), at(n).join(format!("l{other}"))).unwrap();
        }
        let report = "<testsuite><testcase name='a'/></testsuite>";
        fs::write(at(n).join("a.xml"), report).unwrap();
    }
    let started = std::time::Instant::now();
    let ran = run.run().expect_code(0);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(ran.outputs["outcome"], "recorded", "{}", ran.report());
    assert!(ran.stderr.contains("is a link to a folder, which isn't entered"), "{}", ran.report());
    assert_eq!(relay.next().body["workflow"]["test_results"]["total"], 12);
}

#[test]
fn test_that_fails_in_two_browsers_is_named_with_each() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let run = job
        .report(&relay, &["--status", "completed", "--conclusion", "failure", "--junit", "*.xml"]);
    let of = |browser: &str| {
        format!(
            "<testsuite name='a.spec.js'><properties><property name='browser' value='{browser}'/></properties>\
             <testcase classname='a.spec.js' name='log in' time='1'><failure message='no'/></testcase></testsuite>"
        )
    };
    let suites = of("chromium") + &of("firefox");
    fs::write(run.folder().join("a.xml"), format!("<testsuites>{suites}</testsuites>")).unwrap();
    run.run().expect_code(0);
    let failed = relay.next().body["workflow"]["failed_tests"].take();
    let names: Vec<_> = failed.as_array().unwrap().iter().map(|test| &test["name"]).collect();
    assert_eq!(names, ["a.spec.js.log in (chromium)", "a.spec.js.log in (firefox)"]);
}

#[test]
fn job_that_is_green_in_spite_of_failed_tests_is_reported_as_a_failure() {
    for (conclusion, report, told, warning) in [
        ("success", "<failure/>", "failure", Some("the job succeeded, and 1 test in")),
        ("success", "<skipped/>", "success", None),
        (
            "failure",
            "<skipped/>",
            "failure",
            Some("the job failed, and no test in its reports did"),
        ),
        ("cancelled", "<failure/>", "cancelled", None),
    ] {
        let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
        let args = ["--status", "completed", "--conclusion", conclusion, "--junit", "*.xml"];
        let run = job.report(&relay, &args);
        let xml = format!("<testsuite><testcase name='a'>{report}</testcase></testsuite>");
        fs::write(run.folder().join("a.xml"), xml).unwrap();
        let ran = run.run().expect_code(0);
        assert_eq!(relay.next().body["workflow"]["conclusion"], told, "{conclusion} {report}");
        let has_warning = warning.map(|warning| ran.stderr.contains(warning));
        assert_ne!(has_warning, Some(false), "{}", ran.report());
        assert_eq!(ran.stderr.contains("in its reports"), warning.is_some(), "{}", ran.report());
    }
}

#[test]
fn test_that_passed_in_another_of_surefires_reports_is_counted_once_and_fails_no_job() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let args = ["--status", "completed", "--conclusion", "success", "--junit", "*.xml"];
    let run = job.report(&relay, &args);
    for (suite, inner) in [("demo.T$Inner", "<failure/>"), ("demo.T", "")] {
        let xml = format!(
            "<testsuite xsi:noNamespaceSchemaLocation='surefire-test-report-3.0.xsd' name='{suite}'>\
             <testcase name='a' classname='demo.T' time='1'>{inner}</testcase></testsuite>"
        );
        fs::write(run.folder().join(format!("TEST-{suite}.xml")), xml).unwrap();
    }
    run.run().expect_code(0);
    let body = relay.next().body;
    let workflow = &body["workflow"];
    assert_eq!(workflow["conclusion"], "success", "{workflow}");
    assert_eq!(workflow["test_results"]["total"], 1, "{workflow}");
}

#[test]
fn nightly_run_reports_for_an_upstream_commit() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let sha = "ab".repeat(20);
    let args = [&SUCCESS[..], &["--event-type", "nightly", "--delivery-id", &sha]].concat();
    job.report(&relay, &args).run().expect_code(0);
    let body = relay.next().body;
    assert_eq!(body["delivery_id"], sha);
    let payload = json!({ "repository": { "full_name": "pytorch/pytorch" }, "head_sha": sha });
    assert_eq!(body["payload"], payload);
    assert!(body["workflow"]["started_at"].is_string() && body.get("callback_token").is_none());
}

#[test]
fn every_try_has_a_new_token() {
    let answers = vec![
        Answer::Say(503, r#"{"detail":"redis temporary outage"}"#),
        Answer::Silence,
        Answer::Say(200, OK),
    ];
    let (job, relay) = (Job::new(), Relay::start(answers));
    job.report(&relay, &SUCCESS).run().expect_code(0);
    let tokens: Vec<_> = (0..3).map(|_| relay.next().authorization).collect();
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2]);
    assert_eq!(job.minted(), 3);
}

const PAGE: &str = "<html><head><title>Welcome</title></head></html>";

#[test]
fn outage_of_relay_or_token_endpoint_and_answer_of_a_proxy_are_waited_out() {
    let down = || Answer::Say(503, r#"{"detail":"redis temporary outage"}"#);
    let outages = [
        // The pauses before the seventh try are at least 7.8 seconds.
        (6, Some(down as fn() -> Answer)),
        (6, None),
        (1, Some(|| Answer::Say(200, PAGE))),
        (1, Some(|| Answer::Say(200, ""))),
        (1, Some(|| Answer::Say(200, "{}"))),
        (1, Some(|| Answer::Say(200, r#"{"error":"try later"}"#))),
        (1, Some(|| Answer::Say(403, PAGE))),
        (1, Some(|| Answer::Say(403, "Forbidden"))),
        (1, Some(|| Answer::Say(404, PAGE))),
        (1, Some(|| Answer::Say(429, PAGE))),
        (1, Some(|| Answer::Say(408, ""))),
    ];
    std::thread::scope(|scope| {
        for (times, bad) in outages {
            scope.spawn(move || {
                let job = Job::new();
                let bad: Vec<_> = bad.iter().flat_map(|bad| (0..times).map(|_| bad())).collect();
                let is_long = times > 1;
                if bad.is_empty() {
                    let status = StatusCode::SERVICE_UNAVAILABLE;
                    let fault = Fault::Answer { status, retry_after: None, body: String::new() };
                    job.github.state().traffic.fail("mint", times, fault);
                }
                let relay = Relay::start(bad.into_iter().chain([Answer::Say(200, OK)]));
                let ran = job.report(&relay, &SUCCESS).run().expect_code(0);
                assert_eq!(ran.outputs["outcome"], "recorded", "{}", ran.report());
                let waits = ran.report().matches("waiting, and trying again for up to").count();
                assert_eq!(waits, usize::from(is_long), "{}", ran.report());
            });
        }
    });
}

#[test]
fn page_in_place_of_the_relay_for_good_is_named_with_how_long_was_waited() {
    for (status, on_unreachable, code) in [(200, "warn", 0), (404, "fail", 2)] {
        let job = Job::new();
        let relay = Relay::start(std::iter::repeat_with(move || Answer::Say(status, PAGE)));
        let args = [&SUCCESS[..], &["--on-unreachable", on_unreachable]].concat();
        let ran = job.report(&relay, &args).env("CRCR_RETRY_SECONDS", "2").run();
        let ran = ran.expect_code(code);
        for part in
            [&format!("in between answered {status}"), "`Welcome`", "times in", "callback URL"]
        {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.report());
        }
        assert!(!ran.stderr.contains("for up to 0 s"), "{}", ran.report());
    }
}

#[test]
fn lost_response_of_the_deployed_relay_is_not_a_failure() {
    let refused =
        r#"{"detail":"callback rejected: invalid state transition delivery_id=D repo=R status=S"}"#;
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Silence, Answer::Say(400, refused)]));
    let ran = job.report(&relay, &SUCCESS).run().expect_code(0);
    assert_eq!(ran.outputs["outcome"], "duplicate");

    let relay = Relay::start(vec![Answer::Say(400, refused)]);
    let ran = job.report(&relay, &SUCCESS).run().expect_code(1);
    insta::assert_snapshot!(without_port(&ran));
}

#[test]
fn leg_of_a_large_matrix_waits_for_its_turn_and_ends_green() {
    let mut answers: Vec<_> = (0..6).map(|_| Answer::Later(1)).collect();
    answers.push(Answer::Say(200, OK));
    let (job, relay) = (Job::new(), Relay::start(answers));
    let quick = [&SUCCESS[..], &["--max-time", "1"]].concat();
    let ran = job.report(&relay, &quick).run().expect_code(0);
    assert_eq!(ran.outputs["outcome"], "recorded", "{}", ran.report());
    // A turn that is an hour away is too late for a job.
    let relay = Relay::start(vec![Answer::Later(3600)]);
    let ran = job.report(&relay, &quick).run().expect_code(1);
    assert!(ran.stderr.contains("[rate-limit]"), "{}", ran.report());
}

/// AWS Lambda and proxies throttle, too, and say nothing of the report.
#[test]
fn throttle_before_the_relay_is_an_outage_and_no_refusal() {
    let started_with = |status, body, args: &[&str]| {
        let relay = Relay::start(std::iter::repeat_with(move || Answer::Say(status, body)));
        let args = [&SUCCESS[..], args].concat();
        Job::new().report(&relay, &args).env("CRCR_RETRY_SECONDS", "1").run()
    };
    let fail = ["--on-unreachable", "fail"];
    for (status, body) in [
        (429, r#"{"Message":"Rate Exceeded."}"#),
        (429, PAGE),
        (403, r#"{"message":"Forbidden"}"#),
        (413, r#"{"message":"Request Too Long"}"#),
    ] {
        let ran = started_with(status, body, &[]).expect_code(0);
        assert_eq!(ran.outputs["outcome"], "unreachable", "{}", ran.report());
        started_with(status, body, &fail).expect_code(2);
    }
    let own = r#"{"detail":"rate limit exceeded for acme/backend"}"#;
    let ran = started_with(429, own, &[]).expect_code(1);
    assert!(ran.stderr.contains("[rate-limit]"), "{}", ran.report());
}

#[test]
fn too_low_level_is_a_warning() {
    let answer = Answer::Say(200, r#"{"ok":true,"status":"ignored"}"#);
    let (job, relay) = (Job::new(), Relay::start(vec![answer]));
    let ran = job.report(&relay, &SUCCESS).run().expect_code(0);
    insta::assert_snapshot!(without_port(&ran));
}

#[test]
fn unreachable_relay_fails_the_job_only_with_on_unreachable_fail() {
    let job = Job::new();
    let dead = || Relay {
        // A port that was free a moment ago and that nobody listens on.
        url: {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            format!("http://{}/github/callback", listener.local_addr().unwrap())
        },
        requests: mpsc::channel().1,
    };
    let ran = job.report(&dead(), &SUCCESS).env("CRCR_RETRY_SECONDS", "2").run().expect_code(0);
    assert_eq!(ran.outputs["outcome"], "unreachable");
    assert!(
        ran.stderr.contains("::warning::the relay at `127.0.0.1` can't be reached"),
        "{}",
        ran.report()
    );
    let fail = [&SUCCESS[..], &["--on-unreachable", "fail"]].concat();
    let ran = job.report(&dead(), &fail).env("CRCR_RETRY_SECONDS", "2").run().expect_code(2);
    assert!(ran.outputs.is_empty(), "{}", ran.report());
}

#[test]
fn report_that_the_relay_would_refuse_is_not_sent() {
    let (job, relay) = (Job::new(), Relay::start(vec![]));
    for (args, code) in [
        (&["--status", "completed"][..], "no-conclusion"),
        (&[&SUCCESS[..], &["--test-results", r#"{"passed": -1}"#]].concat(), "test-results"),
    ] {
        let ran = job.report(&relay, args).run().expect_code(1);
        assert!(ran.stderr.contains(&format!("[{code}]")), "{code}: {}", ran.report());
    }
    let wrong = ["--status", "completed", "--conclusion", "green"];
    job.report(&relay, &wrong).run().expect_code(2);
    assert_eq!(job.minted(), 0, "no token is minted for nothing");
}

#[test]
fn missing_id_token_permission_is_named() {
    let (job, relay) = (Job::new(), Relay::start(vec![]));
    let ran = job
        .report(&relay, &SUCCESS)
        .without("ACTIONS_ID_TOKEN_REQUEST_URL")
        .without("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
        .run()
        .expect_code(1);
    assert!(ran.stderr.contains("id-token: write"), "{}", ran.report());
}

#[test]
fn missing_callback_url_or_delivery_is_an_error_with_a_hint() {
    let (job, relay) = (Job::new(), Relay::start(vec![]));
    let ran = job.on_dispatch(&[&["report"], &IN_PROGRESS[..]].concat(), &event()).run();
    let ran = ran.expect_code(1);
    assert!(ran.stderr.contains("callback-url"), "{}", ran.report());
    let ran = job.report(&relay, &IN_PROGRESS).env("GITHUB_EVENT_PATH", "").run().expect_code(1);
    assert!(ran.stderr.contains("repository_dispatch"), "{}", ran.report());
}

#[test]
fn callback_url_defaults_to_the_one_in_the_dispatch() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let report = |named: &str, variable: Option<&str>| {
        let mut event = event();
        event["client_payload"]["callback_url"] = json!(named);
        let run = job.on_dispatch(&[&["report"], &SUCCESS[..]].concat(), &event);
        match variable {
            Some(url) => run.env("CRCR_CALLBACK_URL", url).run(),
            None => run.run(),
        }
    };
    for named in ["http://relay.example.org/github/callback", "https://me:pw@relay.example.org/"] {
        let ran = report(named, None).expect_code(1);
        assert!(ran.stderr.contains("callback-url"), "{}", ran.report());
        assert_eq!(job.minted(), 0, "no token is made for {named}");
    }
    report(&relay.url, None).expect_code(0);
    assert_eq!(relay.next().body["callback_url"], relay.url);
    // The downstream's own setting wins.
    let own = Relay::start(vec![Answer::Say(200, OK)]);
    report(&relay.url, Some(&own.url)).expect_code(0);
    own.next();
}

#[cfg(unix)]
#[test]
fn buildkite_job_reports_with_its_agents_token() {
    use std::os::unix::fs::PermissionsExt as _;
    let relay = Relay::start(vec![Answer::Say(200, OK)]);
    let payload = event()["client_payload"].to_string();
    let mut run = Crcr::new(&["report", "--callback-url", &relay.url])
        .arg("--status=completed")
        .arg("--conclusion=success")
        .env("BUILDKITE", "true")
        .env("BUILDKITE_PIPELINE_SLUG", "npu-ci")
        .env("BUILDKITE_BUILD_ID", "01970000-0000-7000-8000-000000000001")
        .env("BUILDKITE_BUILD_URL", "https://buildkite.com/acme/npu-ci/builds/3")
        .env("BUILDKITE_RETRY_COUNT", "1")
        .env("BUILDKITE_STEP_KEY", "test")
        .env("CRCR_CLIENT_PAYLOAD", &payload);
    let bin = run.folder().join("bin");
    fs::create_dir(&bin).unwrap();
    let agent = bin.join("buildkite-agent");
    fs::write(&agent, "#!/bin/sh\n[ \"$*\" = \"oidc request-token --audience pytorch-cross-repo-ci-relay --lifetime 300\" ] || exit 9\necho a.b.c\n").unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    run.command().env("PATH", path);
    run.run().expect_code(0);
    let request = relay.next();
    assert_eq!(request.authorization, "Bearer a.b.c");
    let workflow = &request.body["workflow"];
    assert_eq!(workflow["run_id"], "01970000-0000-7000-8000-000000000001");
    assert_eq!((&workflow["name"], &workflow["job_name"]), (&json!("npu-ci"), &json!("test")));
    assert_eq!(workflow["run_attempt"], "2");
}

#[test]
fn explanations_of_a_failure_are_checked_before_they_are_sent() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK), Answer::Say(200, OK)]));
    let failure = ["--status", "completed", "--conclusion", "failure"];
    let detail = r#"[{"name": "test_add", "stacktrace": "ops.py:7", "duration": 0.5}]"#;
    let verdict =
        r#"{"schema_version": 1, "category": "flake", "confidence": "low", "summary": "again"}"#;
    let given = ["--failed-tests-detail", detail, "--triage-verdict", verdict];
    job.report(&relay, &[&failure[..], &given].concat()).run().expect_code(0);
    let sent = relay.next().body["workflow"].clone();
    assert_eq!(sent["failed_tests_detail"], serde_json::from_str::<Value>(detail).unwrap());
    assert_eq!(sent["triage_verdict"]["category"], "flake");
    let faulty = ["--failed-tests-detail", "[{}]", "--triage-verdict", r#"{"category": "x"}"#];
    let ran = job.report(&relay, &[&failure[..], &faulty].concat()).run().expect_code(0);
    let shown = ran.report();
    assert!(
        shown.contains("`workflow.failed_tests_detail` was dropped: an entry has no `name`"),
        "{shown}"
    );
    assert!(shown.contains("the triage verdict was dropped: `schema_version`"), "{shown}");
    let sent = relay.next().body["workflow"].clone();
    assert_eq!((&sent["conclusion"], &sent["triage_verdict"]), (&json!("failure"), &Value::Null));
}

/// A step's variables can have 128 KiB each, so a longer input would fail before crcr starts.
#[test]
fn failing_tests_that_no_variable_can_hold_come_from_a_file_and_are_shortened() {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK), Answer::Say(200, OK)]));
    let test = |n: usize| json!({ "name": format!("test_{n}"), "stacktrace": "x".repeat(3000) });
    let tests: Vec<_> = (0..400).map(test).collect();
    let text = json!(tests).to_string();
    assert!(text.len() > 1024 * 1024, "far more than a variable can hold");
    let args = ["--status", "completed", "--conclusion", "failure"];
    let run = job.report(&relay, &args).env("INPUT_FAILED_TESTS_DETAIL_FILE", "failed.json");
    fs::write(run.folder().join("failed.json"), &text).unwrap();
    let ran = run.run().expect_code(0);
    let sent = relay.next().body["workflow"]["failed_tests_detail"].clone();
    assert_eq!(sent.as_array().unwrap().len(), 400, "{}", ran.report());
    assert!(sent.to_string().len() < 200 * 1024, "stack traces are dropped first");

    let run = job.report(&relay, &args).env("INPUT_FAILED_TESTS_DETAIL_FILE", "missing.json");
    let ran = run.run().expect_code(0);
    assert!(
        ran.stderr.contains("`failed-tests-detail-file` (`missing.json`) is left out"),
        "{}",
        ran.report()
    );
    assert_eq!(relay.next().body["workflow"]["conclusion"], "failure");
}
