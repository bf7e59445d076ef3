use serde_json::json;

use super::*;
use crate::checks::lifecycle::Conclusion;

const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

/// As the deployed action sends it.
fn body() -> Value {
    json!({
        "event_type": "pull_request",
        "delivery_id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "payload": {"pull_request": {"number": 7, "labels": []}},
        "workflow": {
            "schema_version": "1", "status": "completed", "conclusion": "success",
            "name": "CI", "url": "https://github.com/acme/backend/actions/runs/12",
            "run_id": "12", "run_attempt": "2", "job_name": "test (3.12, linux)",
            "check_run_id": "34", "started_at": null,
            "completed_at": "2026-08-01T10:00:00.123456Z",
            "test_results": {"passed": 10, "failed": 1, "skipped": 2}
        }
    })
}

fn with(field: &str, value: Value) -> Result<Callback, BodyError> {
    let mut body = body();
    body["workflow"][field] = value;
    read(body.to_string().as_bytes())
}

#[test]
fn body_of_the_deployed_action_is_accepted() {
    let callback = read(body().to_string().as_bytes()).unwrap();
    assert_eq!(callback.state, JobState::Completed(Conclusion::Success));
    assert_eq!((callback.job.run_id.as_str(), callback.job.run_attempt), ("12", 2));
    assert_eq!(callback.details.tests.unwrap().total, 13);
    assert_eq!(callback.kind, CallbackKind::Dispatch);
}

#[test]
fn numbers_may_be_strings_and_run_ids_may_be_uuids() {
    let callback = with("run_id", json!(12)).unwrap();
    assert_eq!(callback.job.run_id, "12");
    let uuid = "0190a1b2-aaaa-bbbb-cccc-0123456789ab";
    assert_eq!(with("run_id", json!(uuid)).unwrap().job.run_id, uuid);
    assert_eq!(with("run_attempt", json!(3)).unwrap().job.run_attempt, 3);
    for absent in [Value::Null, json!(""), json!(" ")] {
        assert_eq!(with("run_attempt", absent).unwrap().job.run_attempt, 1);
    }
    for three in [json!(3.0), json!(" 3\n")] {
        let run = |field| with(field, three.clone()).unwrap().job;
        assert_eq!(run("run_id").run_id, "3");
        assert_eq!(run("run_attempt").run_attempt, 3);
    }
    assert_eq!(with("job_name", Value::Null).unwrap().job.job, None);
}

#[test]
fn errors_name_field_received_and_expected_value() {
    let refusals: Vec<String> = [
        ("status", Value::Null),
        ("status", json!("queued")),
        ("name", Value::Null),
        ("name", json!(["CI"])),
        ("run_id", json!(-1)),
        ("run_id", json!("1:2")),
        ("run_attempt", json!("+1")),
        ("run_attempt", json!(1.5)),
    ]
    .into_iter()
    .map(|(field, value)| with(field, value).unwrap_err().to_string())
    .collect();
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn fault_in_a_detail_costs_that_detail_and_never_the_result() {
    let warnings: Vec<String> = [
        ("conclusion", Value::Null),
        ("conclusion", json!("  ")),
        ("conclusion", json!("great")),
        ("name", json!("a\u{0}b")),
        ("name", json!(" ")),
        ("job_name", json!("test\t(1)\u{202e}\u{2028}")),
        ("job_name", json!("x".repeat(201))),
        ("job_name", json!(["a"])),
        ("check_run_id", json!({"id": 7})),
        ("url", json!("javascript:alert(1)")),
        ("url", json!("https://github.com@evil.test/")),
        ("artifact_url", json!("http://acme.test/")),
        ("artifact_url", json!("https://acme.test/ x")),
        ("artifact_url", json!(7)),
        ("started_at", json!("yesterday")),
        ("completed_at", json!(1_788_000_000)),
        ("test_results", json!({"passed": -1})),
        ("test_results", json!({"passed": 1.5})),
        ("test_results", json!([1, 2])),
        ("test_results", json!("all good")),
        ("failed_tests", json!([{"file": "a.py"}])),
        ("failed_tests", json!(7)),
        ("failed_tests_detail", json!("[{")),
        ("failed_tests_detail", json!({})),
        ("triage_verdict", json!({"schema_version": 1})),
        ("triage_verdict", json!("{")),
        ("phase", json!(["build"])),
        ("environment", json!(true)),
    ]
    .into_iter()
    .map(|(field, value)| {
        let callback = with(field, value).unwrap();
        assert!(callback.state.conclusion().is_some(), "{field}");
        let [warning] = &callback.details.warnings[..] else {
            panic!("{field}: {:?}", callback.details.warnings)
        };
        warning.clone()
    })
    .collect();
    insta::assert_snapshot!(warnings.join("\n"));
}

#[test]
fn conclusion_is_read_in_any_case_and_an_unknown_one_is_never_a_success() {
    let conclusion = |value| with("conclusion", value).unwrap().state.conclusion().unwrap();
    for text in ["Success", "SUCCESS", " success "] {
        assert_eq!(conclusion(json!(text)), Conclusion::Success);
    }
    assert_eq!(conclusion(json!("Timed-Out")), Conclusion::TimedOut);
    assert_eq!(conclusion(json!("canceled")), Conclusion::Cancelled);
    assert_eq!(conclusion(json!("failed")), Conclusion::Failure);
    for odd in [Value::Null, json!(""), json!("passed"), json!(true), json!(["success"])] {
        assert!(!conclusion(odd.clone()).is_good(), "{odd}");
    }
}

#[test]
fn what_reporters_in_the_field_send_as_details_is_read() {
    let results = |value| with("test_results", value).unwrap().details;
    for value in [
        json!({"passed": 3.0, "failed": 1, "skipped": null}),
        json!({"passed": "3", "failed": 1}),
        json!("{\"passed\": 3, \"failed\": 1}"),
    ] {
        let details = results(value.clone());
        let tests = details.tests.unwrap();
        assert_eq!((tests.passed, tests.failed, tests.total), (3, 1, 4), "{value}");
        assert_eq!(details.warnings, Vec::<String>::new());
    }
    assert_eq!(results(json!({"passed": 3, "failed": -1})).tests, None, "no half of a count");
    let details = with("artifact_url", json!("http://acme.test/a")).unwrap().details;
    assert_eq!(details.artifact_url.as_deref(), Some("http://acme.test/a"));
    let details = with("started_at", json!("2026-08-01T10:00:00")).unwrap().details;
    assert_eq!(details.started_at.unwrap().to_string(), "2026-08-01T10:00:00Z");
}

#[test]
fn absent_details_are_no_faults() {
    for field in [
        "job_name",
        "check_run_id",
        "url",
        "artifact_url",
        "started_at",
        "completed_at",
        "test_results",
        "failed_tests",
        "failed_tests_detail",
        "triage_verdict",
        "phase",
        "environment",
    ] {
        for absent in [Value::Null, json!(""), json!(" ")] {
            let details = with(field, absent.clone()).unwrap().details;
            assert_eq!(details.warnings, Vec::<String>::new(), "{field} {absent}");
        }
    }
}

#[test]
fn only_plain_addresses_are_linked() {
    let longest = format!("https://acme.test/{}", "a".repeat(URL_BYTES - 18));
    for good in ["https://acme.test", "http://[::1]:8080/a", "https://acme.test?a@b#c", &longest] {
        assert_eq!(with("url", json!(good)).unwrap().details.url.as_deref(), Some(good));
    }
    let too_long = format!("{longest}a");
    for bad in [
        "ftp://acme.test/",
        "https://",
        "https:///a",
        "https://-a.test/",
        "https://a@acme.test/",
        "https://acme.test/ a",
        "https://acme.test/\u{202e}",
        "https://acme.test/<a>",
        &too_long,
    ] {
        assert_eq!(with("url", json!(bad)).unwrap().details.url, None, "{bad}");
    }
}

#[test]
fn two_long_names_with_the_same_start_stay_two_jobs() {
    let name = |end: &str| {
        let job = with("job_name", json!(format!("{}{end}", "x".repeat(300)))).unwrap().job;
        job.job.unwrap()
    };
    assert_ne!(name("a"), name("b"));
    assert_eq!(name("a"), name("a"));
    assert_eq!(name("a").chars().count(), NAME_CHARS);
    assert!(name("a").starts_with(&"x".repeat(NAME_CHARS - 18)) && name("a").contains('…'));
    let longest = "é".repeat(NAME_CHARS);
    let whole = with("job_name", json!(longest)).unwrap();
    assert_eq!((whole.job.job, whole.details.warnings), (Some(longest), vec![]));
}

#[test]
fn body_that_isnt_an_object_is_rejected() {
    let text = |body: &[u8]| read(body).unwrap_err().to_string();
    assert_eq!(text(b""), "Invalid JSON body");
    assert_eq!(text(b"{"), "Invalid JSON body");
    assert_eq!(text(b"[]"), "Invalid JSON body: received a list, expected an object");
    assert_eq!(text(b"null"), "Invalid JSON body: received null, expected an object");
    assert_eq!(text(b"{}"), "callback body missing required field: workflow");
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(70), "]".repeat(70));
    assert_eq!(text(deep.as_bytes()), "Invalid JSON body: nested deeper than 64");
}

#[test]
fn brackets_in_strings_dont_count_as_nesting() {
    let nested = |depth: usize| {
        let body = body().to_string();
        let rest = body.strip_prefix('{').unwrap();
        format!("{{\"more\": {}{}, {rest}", "[".repeat(depth - 1), "]".repeat(depth - 1))
    };
    assert!(read(nested(DEPTH).as_bytes()).is_ok());
    assert_eq!(read(nested(DEPTH + 1).as_bytes()), Err(BodyError::TooDeep));
    assert_eq!(read(nested(1000).as_bytes()), Err(BodyError::TooDeep));
    let brackets = json!({ "more": "[[[[\"[[".repeat(DEPTH), "workflow": 1 }).to_string();
    assert_eq!(
        read(brackets.as_bytes()).unwrap_err().to_string(),
        "callback body field `workflow`: received 1, expected an object"
    );
    for (kept, inner) in [("workflow", "x"), ("payload", "head_sha"), ("payload", "x")] {
        for (depth, is_fine) in [(DEPTH - 2, true), (DEPTH - 1, false), (1000, false)] {
            let deep = "[".repeat(depth) + &"]".repeat(depth);
            let body = format!("{{\"{kept}\": {{\"{inner}\": {deep}}}}}");
            let is_too_deep = read(body.as_bytes()) == Err(BodyError::TooDeep);
            assert_eq!(is_too_deep, !is_fine, "{kept}.{inner}, {depth}");
        }
    }
}

#[test]
fn callback_token_is_kept_as_it_is_or_dropped_with_a_warning() {
    let token = |value: Value| {
        let mut body = body();
        body["callback_token"] = value;
        let callback = read(body.to_string().as_bytes()).unwrap();
        (callback.callback_token, callback.details.warnings.len())
    };
    let longest = "t".repeat(NAME_CHARS);
    assert_eq!(token(json!(longest)), (Some(longest.clone()), 0));
    assert_eq!(token(Value::Null), (None, 0));
    assert_eq!(token(json!(format!("{longest}t"))), (None, 1));
    assert_eq!(token(json!(7)), (None, 1));
}

#[test]
fn report_of_a_start_has_no_conclusion() {
    let start = |conclusion: Value| {
        let mut body = body();
        body["workflow"]["status"] = json!("in_progress");
        body["workflow"]["conclusion"] = conclusion;
        let callback = read(body.to_string().as_bytes()).unwrap();
        assert_eq!(callback.state, JobState::InProgress);
        callback.details.warnings
    };
    assert_eq!(start(Value::Null), Vec::<String>::new());
    assert_eq!(start(json!("")), Vec::<String>::new());
    assert!(start(json!("success"))[0].contains("null while in progress"));
}

#[test]
fn strangers_text_in_an_error_is_shortened() {
    let told = |status: &str| with("status", json!(status)).unwrap_err();
    assert_eq!(told(&"q".repeat(80)), BodyError::Status("q".repeat(80)));
    assert_eq!(told(&"q".repeat(81)), BodyError::Status(format!("{}…", "q".repeat(80))));
    assert_eq!(told("a\nb"), BodyError::Status("a b".to_owned()));
}

#[test]
fn job_is_named_with_its_run_and_attempt() {
    let mut job = read(body().to_string().as_bytes()).unwrap().job;
    assert_eq!(job.to_string(), "CI/test (3.12, linux) of run 12, attempt 2");
    job.job = None;
    assert_eq!(job.to_string(), "CI/None of run 12, attempt 2");
}

#[test]
fn self_report_must_be_completed_and_may_name_a_commit() {
    let mut nightly = body();
    nightly["event_type"] = json!("nightly");
    let read = |body: &Value| read(body.to_string().as_bytes());
    // As a reporter on Buildkite names itself.
    nightly["delivery_id"] = json!("buildkite-89891-0192");
    nightly["workflow"].as_object_mut().unwrap().remove("check_run_id");
    nightly["event_type"] = json!("periodic");
    assert_eq!(read(&nightly).unwrap().kind, CallbackKind::Periodic);
    nightly["event_type"] = json!("nightly");
    let callback = read(&nightly).unwrap();
    assert_eq!((callback.kind, callback.claimed_commit), (CallbackKind::Nightly, None));
    assert_eq!(callback.delivery, "buildkite-89891-0192");
    nightly["payload"]["head_sha"] = json!(SHA);
    assert_eq!(read(&nightly).unwrap().claimed_commit.as_deref(), Some(SHA));
    nightly["delivery_id"] = json!(SHA.to_ascii_uppercase());
    assert_eq!(read(&nightly).unwrap().claimed_commit.as_deref(), Some(SHA));
    nightly["delivery_id"] = json!("n".repeat(200));
    assert!(read(&nightly).is_ok());
    nightly["delivery_id"] = json!("n".repeat(201));
    assert!(read(&nightly).unwrap_err().to_string().contains("delivery_id"));
    nightly["delivery_id"] = json!("  ");
    assert_eq!(read(&nightly).unwrap_err(), BodyError::Missing("delivery_id"));
    nightly["delivery_id"] = json!(SHA);
    nightly["workflow"]["status"] = json!("in_progress");
    assert_eq!(
        read(&nightly).unwrap_err().to_string(),
        "nightly/periodic callbacks must have status 'completed', got 'in_progress'"
    );
    assert_eq!(super::read(body().to_string().as_bytes()).unwrap().claimed_commit, None);
}

#[test]
fn commit_of_a_self_report_is_the_head_of_its_payload_whatever_stands_behind_it() {
    let mut nightly = body();
    nightly["event_type"] = json!("nightly");
    nightly["payload"] = json!({"head_sha": SHA, "base_sha": "f".repeat(40), "ref": "main"});
    nightly["delivery_id"] = json!(12);
    let callback = read(nightly.to_string().as_bytes()).unwrap();
    assert_eq!(callback.claimed_commit.as_deref(), Some(SHA));
    assert_eq!(callback.delivery, "12", "a build's number is one, too");
}

#[test]
fn failing_test_without_a_name_costs_no_other_and_a_text_is_a_name() {
    let tests = json!([{"name": "a", "duration": "1.5"}, {"name": ""}, "b", {"name": null}]);
    let details = with("failed_tests_detail", tests).unwrap().details;
    let names: Vec<_> = details.failed_tests.iter().map(|test| &*test.name).collect();
    assert_eq!((&names[..], details.failed_tests[0].duration), (&["a", "b"][..], Some(1.5)));
    let [warning] = &details.warnings[..] else { panic!("{:?}", details.warnings) };
    assert!(warning.contains("2 without a `name`"), "{warning}");
    assert!(!details.names_all_failed_tests(), "there are more than are named");
    assert_eq!(details.more_failed_tests, 2);
    let mut both = body();
    both["workflow"]["failed_tests"] = json!(["a", {"file": "b.py"}]);
    both["workflow"]["failed_tests_detail"] = json!([{"name": "a"}, {"file": "c.py"}]);
    let details = read(both.to_string().as_bytes()).unwrap().details;
    assert_eq!((details.failed_tests.len(), details.more_failed_tests), (1, 2));
    let none = with("failed_tests", json!([])).unwrap().details;
    assert_eq!((none.warnings, none.more_failed_tests), (vec![], 0));
    let traced = json!([{"name": "a", "stacktrace": "one\ntwo\u{7}"}]);
    let traced = with("failed_tests", traced).unwrap().details.failed_tests;
    assert_eq!(traced[0].stacktrace.as_deref(), Some("one\ntwo "), "its lines stay");
}

#[test]
fn failing_tests_are_limited_in_number_and_length() {
    let test = json!({"name": "n".repeat(300), "message": "m\u{7}".repeat(2000)});
    let callback = with("failed_tests", Value::Array(vec![test; 80])).unwrap();
    let kept = &callback.details.failed_tests;
    assert_eq!(kept.len(), 80);
    assert_eq!(kept[0].name.len(), NAME_CHARS);
    assert!(!kept[0].message.as_ref().unwrap().contains('\u{7}'));
    assert!(callback.details.warnings.is_empty());
    let names = (0..2000).map(|n| json!({"name": format!("{n:0200}"), "message": "why"}));
    let callback = with("failed_tests", Value::Array(names.collect())).unwrap();
    let kept = &callback.details.failed_tests;
    assert!((500..FAILED_TESTS).contains(&kept.len()), "{}", kept.len());
    assert!(kept.iter().all(|test| test.message.is_none()), "names go first");
    let cut = ["failing tests were cut to 1000 and 128 KiB of text"];
    assert_eq!(callback.details.warnings, cut);
    let short = |count| {
        let test = json!({"name": "n"});
        with("failed_tests", Value::Array(vec![test; count])).unwrap().details
    };
    assert_eq!(short(FAILED_TESTS).warnings, Vec::<String>::new());
    assert_eq!(short(FAILED_TESTS + 1).warnings, cut);
}

#[test]
fn names_go_before_messages_and_messages_before_stack_traces() {
    let text = |bytes: usize| Some("x".repeat(bytes));
    let test = |message, stacktrace| FailedTest {
        name: "n".to_owned(),
        message: text(message),
        stacktrace: text(stacktrace),
        ..FailedTest::default()
    };
    let limited = |mut tests: Vec<FailedTest>| {
        let is_cut = limit_failed_tests(&mut tests);
        let bytes = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let kept: Vec<_> =
            tests.iter().map(|test| (bytes(&test.message), bytes(&test.stacktrace))).collect();
        (is_cut, kept)
    };
    let half = FAILED_TESTS_BYTES / 2;
    let full = vec![test(1, half - 2), test(1, half - 2)];
    assert_eq!(limited(full), (false, vec![(1, half - 2), (1, half - 2)]), "exactly the limit");
    let over = vec![test(1, half - 2), test(1, half - 1)];
    assert_eq!(limited(over), (true, vec![(1, half - 2), (1, 0)]), "the last stack trace");
    let messages = vec![test(half, half), test(half, half)];
    assert_eq!(limited(messages), (true, vec![(half, 0), (0, 0)]), "all stack traces first");
    let mut names = vec![FailedTest { name: "n".repeat(half), ..FailedTest::default() }; 4];
    assert!(limit_failed_tests(&mut names));
    assert_eq!(names.len(), 2);
    let mut many = vec![FailedTest::default(); FAILED_TESTS];
    assert!(!limit_failed_tests(&mut many));
    many.push(FailedTest::default());
    assert!(limit_failed_tests(&mut many));
    assert_eq!(many.len(), FAILED_TESTS);
}

/// A report with every kind of text whose length its sender chooses.
fn wordy() -> Callback {
    let mut body = body();
    body["workflow"]["failed_tests"] = json!([
        {"name": "ab", "classname": "c", "file": "f.py", "message": "mmm", "stacktrace": "ssss"}
    ]);
    body["workflow"]["environment"] = json!("linux");
    body["workflow"]["artifact_url"] = json!("https://acme.test/a");
    body["workflow"]["triage_verdict"] = json!({
        "schema_version": 1, "category": "upstream", "confidence": "high", "summary": "why"
    });
    body["workflow"]["url"] = json!(format!("https://acme.test/{}", "u".repeat(283)));
    read(body.to_string().as_bytes()).unwrap()
}

#[test]
fn texts_of_a_report_are_counted_and_dropped_without_its_result() {
    let mut callback = wordy();
    let details = &mut callback.details;
    let triage = serde_json::to_vec(details.triage.as_ref().unwrap()).unwrap().len() as u64;
    let others = "abcf.pymmmssss".len() + "linux".len() + "https://acme.test/a".len();
    assert_eq!(details.text_bytes(), triage + others as u64 + 301);
    details.url.as_mut().unwrap().pop();
    assert_eq!(details.text_bytes(), triage + others as u64, "as long as a CI system's is");
    callback.details.more_failed_tests = 2;
    callback.details.drop_texts("too many");
    assert_eq!(callback.details.text_bytes(), 0);
    assert_eq!(callback.details.more_failed_tests, 3);
    assert_eq!(callback.details.warnings, ["too many"]);
    assert_eq!(callback.details.url.as_ref().map(String::len), Some(300));
    assert_eq!(callback.details.tests.unwrap().failed, 1);
    let mut callback = wordy();
    callback.details.drop_texts("too many");
    assert_eq!(callback.details.url, None);
}

#[test]
fn of_the_tests_that_a_check_run_shows_the_names_are_kept_and_the_rest_is_counted() {
    let mut details = wordy().details;
    details.failed_tests = vec![details.failed_tests[0].clone(); SHOWN_TESTS + 3];
    details.more_failed_tests = 2;
    details.keep_shown_tests();
    assert_eq!((details.failed_tests.len(), details.more_failed_tests), (SHOWN_TESTS, 5));
    let kept = FailedTest {
        name: "ab".to_owned(),
        file: Some("f.py".to_owned()),
        ..FailedTest::default()
    };
    assert!(details.failed_tests.iter().all(|test| *test == kept));
}

#[test]
fn failed_tests_are_all_named_unless_some_were_cut_or_more_are_counted() {
    let details = |count: usize, counts: Value| {
        let mut body = body();
        let tests: Vec<Value> = (0..count).map(|n| json!({ "name": format!("t{n}") })).collect();
        body["workflow"]["failed_tests_detail"] = Value::Array(tests);
        body["workflow"]["test_results"] = counts;
        read(body.to_string().as_bytes()).unwrap().details
    };
    assert!(!details(0, Value::Null).names_all_failed_tests());
    assert!(details(2, Value::Null).names_all_failed_tests());
    assert!(details(2, json!({"failed": 2})).names_all_failed_tests());
    assert!(!details(2, json!({"failed": 3})).names_all_failed_tests());
    let cut = details(FAILED_TESTS + 2, Value::Null);
    assert!(cut.more_failed_tests > 0);
    assert!(!cut.names_all_failed_tests());
}

#[test]
fn details_of_failing_tests_are_merged_with_their_names() {
    let mut body = body();
    body["workflow"]["failed_tests"] = json!([{"name": "a"}, {"name": "b", "file": "b.py"}]);
    let detail = json!([
        {"name": "a", "classname": "TestA", "message": "1 != 2", "stacktrace": "a.py:7",
         "duration": 0.5, "colour": "red"},
        {"name": "c", "duration": -1}
    ]);
    for detail in [detail.clone(), Value::String(detail.to_string())] {
        body["workflow"]["failed_tests_detail"] = detail;
        let callback = read(body.to_string().as_bytes()).unwrap();
        let tests = callback.details.failed_tests;
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
        assert_eq!(tests[0].classname.as_deref(), Some("TestA"));
        assert_eq!(tests[0].stacktrace.as_deref(), Some("a.py:7"));
        assert_eq!((tests[0].duration, tests[1].duration), (Some(0.5), None));
        assert_eq!(tests[2].file.as_deref(), Some("b.py"));
    }
}

#[test]
fn of_a_body_with_very_many_values_few_are_kept_and_its_own_fields_all_are() {
    fn values_in(value: &Value) -> usize {
        match value {
            Value::Array(list) => 1 + list.iter().map(values_in).sum::<usize>(),
            Value::Object(fields) => 1 + fields.values().map(values_in).sum::<usize>(),
            _ => 1,
        }
    }
    let many = vec![json!({"": 0}); 100_000];
    let mut large = body();
    let workflow = large["workflow"].as_object_mut().unwrap();
    workflow.insert("more".to_owned(), json!({"a": many, "b": {"c": many}}));
    workflow.insert("failed_tests".to_owned(), json!(json!(many).to_string()));
    workflow.insert("list".to_owned(), json!(["cut"]));
    workflow.insert("after".to_owned(), json!("kept"));
    let text = large.to_string();
    let fields = body_fields::read(text.as_bytes()).unwrap();
    assert!(values_in(&fields["workflow"]) < 100, "{}", values_in(&fields["workflow"]));
    assert_eq!(fields["workflow"]["after"], "kept");
    assert_eq!(fields["workflow"]["list"], Value::Null, "it isn't an empty one");
    let callback = read(text.as_bytes()).unwrap();
    assert_eq!(callback.job, read(body().to_string().as_bytes()).unwrap().job);
    let warned = callback.details.warnings.join("\n");
    assert!(warned.contains("too many values") && warned.contains("16000 values"), "{warned}");
    let names: String = (0..5000).map(|n| format!("\"n{n}\": {{}},")).collect();
    let named = text.replacen("\"workflow\":{", &format!("\"workflow\":{{{names}"), 1);
    assert_ne!(named, text);
    let kept = body_fields::read(named.as_bytes()).unwrap();
    assert_eq!(kept["workflow"].as_object().unwrap().len(), 1000);
}
