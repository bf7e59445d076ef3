//! Text, limits and damage.

use crcr_domain::ci_data::test_run::{CUT_MARK, MAX_TEXT_BYTES, TestResult};

use super::super::{JunitError, JunitGrade, JunitRule, TestReport, is_report_file, unread_file};
use super::{only, read, refusal, results, rules, suite};

#[test]
fn only_plain_durations_are_read() {
    for (time, seconds) in [
        ("1,234.5", Some(1234.5)),
        ("1,234,567", Some(1_234_567.0)),
        ("0.5", Some(0.5)),
        (" 2 ", Some(2.0)),
        ("1e-05", Some(0.00001)),
        ("0", Some(0.0)),
        ("0,123", None),
        ("1,23", None),
        ("-1", None),
        ("NaN", None),
        ("inf", None),
        ("", None),
        ("31622401", None),
        ("soon", None),
    ] {
        let report = read(format!("<testsuite><testcase name='a' time='{time}'/></testsuite>"));
        assert_eq!(report.cases[0].time, seconds, "{time}");
        let noted = if seconds.is_none() { vec![(JunitRule::BadDuration, 1)] } else { vec![] };
        assert_eq!(rules(&report), noted, "{time}");
    }
}

const SAMPLE: &str = "<?xml version=\"1.0\"?>\n<testsuites><testsuite name='s'>\n\
     <testcase name='a' time='1'/><testcase name='b' time='1'><skipped/></testcase><!-- nöte é-->\n\
     <testcase name='c' time='1'><failure message='m'>x &amp; é<![CDATA[y😀 é]]></failure></testcase>\
     <testcase name='d' time='1'><system-out>o</system-out></testcase></testsuite></testsuites>\n";

#[test]
fn report_cut_anywhere_keeps_its_complete_tests_and_a_failure_that_had_begun() {
    let at = |text: &str| SAMPLE.find(text).unwrap();
    let end = at("</testsuites>") + "</testsuites>".len();
    let mut complete = 0;
    for cut in 0..end {
        let bytes = &SAMPLE.as_bytes()[..cut];
        let text = String::from_utf8_lossy(bytes);
        let report = match TestReport::read(bytes) {
            Ok(report) => report,
            Err(error) => {
                assert!(matches!(error, JunitError::NoElement), "{text}: {error}");
                assert!(cut <= at("<testsuites>") + "<testsuites".len(), "{text}");
                continue;
            }
        };
        assert!(report.summary.is_truncated, "{text}");
        assert_eq!(report.grade(), JunitGrade::Invalid, "{text}");
        let now = report.tally.tests - report.tally.unfinished;
        assert!(now >= complete, "{text}");
        complete = now;
        let third = report.cases.get(2).map(|case| case.result);
        if cut >= at("<failure message") + "<failure".len() {
            assert_eq!(third, Some(TestResult::Failure), "{text}");
        } else if cut > at("name='c' time='1'>") + "name='c' time='1'>".len() {
            assert_eq!(third, Some(TestResult::Unfinished), "{text}");
        }
        let is_open = cut >= at("name='s'>") + "name='s'>".len()
            && cut < at("</testsuite>") + "</testsuite>".len();
        assert_eq!(report.summary.open_suites.len(), usize::from(is_open), "{text}");
    }
    assert!(!read(SAMPLE).summary.is_truncated);
    assert_eq!(read(SAMPLE).tally.tests, 4);
}

#[test]
fn what_follows_a_report_and_is_none_is_noted() {
    let suite = "<testsuite><testcase name='a' time='1'/></testsuite>";
    for behind in ["Killed", "{\"Action\":\"fail\"}"] {
        let report = read(format!("{suite}\n{behind}\n"));
        assert_eq!(rules(&report), [(JunitRule::Malformed, 1)], "{behind}");
        assert!(!report.summary.is_truncated && report.grade() == JunitGrade::Invalid);
    }
    for behind in [
        "\n",
        "\n<!-- made by a tool -->",
        "\u{feff}<testsuite></testsuite>\n",
        "\nDone in 1.24s.\n",
        "\n✨  Done in 1.24s.\n",
    ] {
        assert!(rules(&read(format!("{suite}{behind}"))).is_empty(), "{behind}");
    }
    let events = "{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"A\"}\n\
                  {\"Action\":\"pass\",\"Package\":\"p\"}\n";
    let report = read(format!("{events}<?xml version=\"1.0\"?>\n{suite}\n"));
    assert_eq!(rules(&report), [(JunitRule::Malformed, 3), (JunitRule::Malformed, 4)]);
}

#[test]
fn report_that_stops_being_xml_keeps_the_tests_before() {
    let report =
        read("<testsuite>\n<testcase name='a' time='1'/>\n<b></c><testcase name='d'/></testsuite>");
    assert_eq!(results(&report), [("a", TestResult::Success)]);
    assert_eq!(rules(&report), [(JunitRule::Malformed, 3)]);
    assert!(report.summary.is_truncated);
}

#[test]
fn two_reports_in_one_file_are_both_read() {
    let one =
        "<?xml version='1.0'?>\n<testsuite name='s'><testcase name='a' time='1'/></testsuite>\n";
    let report = read(format!("{one}{}", one.replace("'a'", "'b'")));
    assert_eq!(report.tally.tests, 2);
    assert!(!report.summary.is_truncated);
}

#[test]
fn reports_of_different_formats_in_one_file_are_all_read() {
    use TestResult::{Failure, Success};
    let junit = |inner: &str| suite(&format!("<testcase name='a'>{inner}</testcase>"));
    let nunit = |result: &str| {
        format!(
            "<?xml version='1.0'?><test-run result='{result}'><test-suite name='b.dll' result='{result}'>\
             <test-case name='b' classname='B' result='{result}' duration='1'/></test-suite></test-run>\n"
        )
    };
    let red_last = read(junit("") + &nunit("Failed"));
    assert_eq!(results(&red_last), [("a", Success), ("b", Failure)]);
    let red_first = read(nunit("Passed") + &junit("<failure/>"));
    assert_eq!(results(&red_first), [("b", Success), ("a", Failure)]);
    assert_eq!(rules(&red_first), []);
    let other = read(junit("") + "\n<html><body/></html>" + &nunit("Failed"));
    assert_eq!(results(&other), [("a", Success), ("b", Failure)]);
    assert_eq!(rules(&other), [(JunitRule::Malformed, 2)]);
    assert_eq!(other.grade(), JunitGrade::Invalid);
}

#[test]
fn file_that_is_no_report_is_refused_with_the_reason() {
    for (xml, reason) in [
        ("", "no XML element"),
        ("  \n", "no XML element"),
        ("plain text", "no XML element"),
        ("<?xml version='1.0'?>", "no XML element"),
        ("<html></html>", "it is a page in HTML (`<html>`)"),
        ("<unknown></unknown>", "starts with `<unknown>`"),
        ("<coverage line-rate='1'/>", "a coverage report of Cobertura or Clover"),
        ("<failsafe-summary result='255'/>", "the summary of Maven Failsafe"),
        (
            "<test-results/>",
            "NUnit 2 (`<test-results>`), which isn't read: run the tests with NUnit 3",
        ),
        ("<assembly/>", "xUnit.net v1"),
        ("<stream><ready-test-suite/></stream>", "test-unit's own XML (`<stream>`)"),
        ("<testsuites><suite><test result='failure'/></suite></testsuites>", "libcheck"),
        (
            "<!DOCTYPE testsuite [<!ELEMENT testsuite (test | summary)+>]>\n<testsuite><test>\
             <result>FAIL</result><name>gcc.dg/a.c</name></test></testsuite>",
            "DejaGnu's own report",
        ),
        ("<TestRun><FailedTests/></TestRun>", "CppUnit"),
        ("{\"name\": \"crcr\"}", "it is JSON, and not the lines of `go test -json`"),
        ("TAP version 13\n1..1\nok 1 - a\n", "the Test Anything Protocol"),
        ("# a comment\n\n1..2\nnot ok 1 - a\n", "the Test Anything Protocol"),
        ("ok 1 - a\n1..1\n", "which isn't read: convert it to JUnit"),
        ("1..2 isn't a plan", "no XML element"),
        ("{\"numFailedTests\":0,\"numTotalTestSuites\":1,\"testResults\":[]}", "use `jest-junit`"),
        (
            "[{\"keyword\":\"Feature\",\"uri\":\"a.feature\",\"elements\":[]}]",
            "Cucumber's own JSON",
        ),
        (r#"{"reportFormat":"CTRF","specVersion":"0.0.0","results":{}}"#, "(CTRF)"),
        (r#"{"results":{"tool":{"name":"jest"},"summary":{"failed":1}}}"#, "(CTRF)"),
        (r#"{"stats":{"suites":1,"passPercent":50},"results":[]}"#, "Mochawesome"),
        (r#"[{"SuitePath":"/a","SuiteDescription":"A"}]"#, "Ginkgo's own"),
        (r#"{"generator":"Robot 7.5","generated":"2026","rpa":false}"#, "Robot Framework's own"),
        (r#"[{"keyword":"Feature","location":"a.feature:1","elements":[]}]"#, "Behave's own"),
        ("{ \"type\": \"suite\", \"event\": \"started\", \"test_count\": 2 }\n", "cargo nextest"),
        ("<1></2>", "starts with `<1>`"),
        ("</a>", "isn't XML"),
        ("<!bogus><testsuite/>", "isn't XML"),
    ] {
        let told = refusal(xml);
        assert!(told.contains(reason), "{xml}: {told}");
    }
    assert!(refusal([0, 159, 146, 150, 0, 1, 2]).contains("no XML element"));
    assert!(refusal([0x1f, 0x8b, 8, 0, 0, 0]).contains("compressed by gzip"));
    assert!(refusal(b"PK\x03\x04\x14\0").contains("it is a zip, which isn't read: unpack it"));
    assert!(refusal(b"\xb3+\x03@g\x19").contains("a stream of subunit"));
}

/// Their failures would be left out with the file, and a quarantine of other tests would make the job green.
#[test]
fn file_of_a_test_tool_in_json_or_text_is_none_without_tests() {
    for (text, tool) in [
        ("    ok 1 - a\nnot ok 2\n1..2\n", "Test Anything Protocol"),
        ("not ok\n", "Test Anything Protocol"),
        ("time: 2026-11-20 10:00:00Z\ntest: a\nfailure: a [\nx\n]\n", "subunit"),
        ("##teamcity[testFailed name='a']\n", "TeamCity"),
        ("Test run by ci on Fri Nov 20\n\t\t=== gcc tests ===\nFAIL: a\n", "DejaGnu"),
        ("[\"start\",{\"total\":1}]\n[\"fail\",{}]\n", "Mocha"),
        (r#"{"tests":1,"failures":1,"disabled":0,"testsuites":[]}"#, "GoogleTest"),
        (r#"{"version":1,"metadata":{"catch2-version":"3.8.0"},"test-run":{}}"#, "Catch2"),
        (r#"{"testNodes":[],"testPlanConfigurations":[]}"#, "xcresulttool"),
        (r#"{"kind":"event","payload":{"kind":"runStarted"},"version":0}"#, "Swift Testing"),
        (r#"{"id":{"started":{}},"started":{"buildToolVersion":"8.0"}}"#, "Bazel"),
        (r#"{"name":"a","result":"FAIL","starttime":1.5,"returncode":1}"#, "Meson"),
        (r#"{"reportversion":"1","toxversion":"4.23","testenvs":{}}"#, "tox"),
        (r#"{"userAgents":["Chrome"],"passed":0,"total":1,"fixtures":[]}"#, "TestCafe"),
        (r#"{"start":"2026","capabilities":{},"framework":"mocha","suites":[]}"#, "WebdriverIO"),
        (r#"{"collection":{"info":{},"item":[]},"run":{"failures":[{}]}}"#, "Newman"),
        (r#"{"root_group":{},"metrics":{"checks":{"fails":1}}}"#, "k6"),
        (
            r#"{"version":"3.13.5","examples":[{"id":"./spec/a_spec.rb[1:1]","description":"a","full_description":"A a"#,
            "RSpec",
        ),
        (
            r#"{"version":"3.13.5","messages":["An error occurred"],"examples":[],"summary":{},"summary_line":"0"}"#,
            "RSpec",
        ),
        (r#"[{"id":"1","name":"a","result":"failed"}]"#, "JSON with results"),
        (r#"{"summary":{"passed":1,"failed":2}}"#, "JSON with results"),
        ("[\n  {\n    \"Action\": \"fail\"\n  }\n]\n", "JSON with results"),
        ("=== RUN   TestA\n--- FAIL: TestA (0.00s)\nFAIL\n", "text of `go test`"),
        ("ok  \tacme/a\t0.1s\nFAIL\tacme/b\t0.1s\n", "text of `go test`"),
        ("<tests><test className='A' methodName='t' status='3'/></tests>", "TestDox"),
    ] {
        let JunitError::OtherFile(other) = TestReport::read(text.as_bytes()).unwrap_err() else {
            panic!("{text} isn't known");
        };
        assert!(other.to_string().contains(tool), "{text}: {other}");
        assert!(!other.has_no_tests(), "{text}");
    }
    for text in [
        "TN:\nSF:/a.js\nDA:1,1\nend_of_record\n",
        "mode: set\na.go:1.1,2.2 1 1\n",
        r#"{"$schema":"https://json.schemastore.org/sarif-2.1.0.json","runs":[{"results":["fails"]}]}"#,
        r#"{"/w/failure.js":{"path":"/w/failure.js","statementMap":{},"fnMap":{}}}"#,
        r#"[{"filePath":"/w/a.js","messages":[],"errorCount":0}]"#,
        r#"{"Version":"2012-10-17","Statement":[{"Action":"s3:GetObject"}]}"#,
        "<?xml version='1.0'?>\n<mutations partial='true'><mutation/></mutations>",
        // Surefire puts it beside the reports of a red run, and its tests are in those.
        "<!DOCTYPE suite SYSTEM 'https://testng.org/testng-1.0.dtd'>\n<suite name='Failed suite'/>",
    ] {
        let error = TestReport::read(text.as_bytes()).unwrap_err();
        assert!(matches!(error, JunitError::OtherFile(other) if other.has_no_tests()), "{text}");
    }
}

#[test]
fn lines_of_go_test_that_print_the_output_of_another_tool_are_read() {
    let line = |action: &str, rest: &str| {
        format!(r#"{{"Action":"{action}","Package":"p","Test":"TestA"{rest}}}"#)
    };
    let lines =
        [line("run", ""), line("output", r#","Output":"TAP version 13\n""#), line("pass", "")];
    assert_eq!(results(&read(lines.join("\n"))), [("TestA", TestResult::Success)]);
}

#[test]
fn report_is_read_in_the_encoding_of_its_mark_or_declaration() {
    let text = "<testsuite name='s'><testcase name='ä€' time='1'/></testsuite>";
    let utf16 = |bytes: fn(u16) -> [u8; 2], mark: &str| -> Vec<u8> {
        format!("{mark}{text}").encode_utf16().flat_map(bytes).collect()
    };
    for (what, bytes) in [
        ("UTF-8", text.as_bytes().to_vec()),
        ("UTF-8 with a mark", format!("\u{feff}{text}").into_bytes()),
        ("UTF-16LE", utf16(u16::to_le_bytes, "\u{feff}")),
        ("UTF-16BE", utf16(u16::to_be_bytes, "\u{feff}")),
        ("UTF-16LE without a mark", utf16(u16::to_le_bytes, "")),
        ("UTF-16BE without a mark", utf16(u16::to_be_bytes, "")),
    ] {
        let report = read(bytes);
        assert_eq!(report.cases[0].name, "ä€", "{what}");
        assert_eq!(rules(&report), [], "{what}");
    }
    for (label, encoding) in [
        ("windows-1251", encoding_rs::WINDOWS_1251),
        ("GBK", encoding_rs::GBK),
        ("Shift_JIS", encoding_rs::SHIFT_JIS),
        ("ISO-8859-2", encoding_rs::ISO_8859_2),
    ] {
        let name = match label {
            "windows-1251" => "тест",
            "ISO-8859-2" => "łódź",
            _ => "試験",
        };
        let text = format!(
            "<?xml version='1.0' encoding='{label}'?><testsuite><testcase name='{name}' time='1'/></testsuite>"
        );
        let report = read(encoding.encode(&text).0);
        assert_eq!((report.cases[0].name.as_str(), rules(&report)), (name, vec![]), "{label}");
    }
    // .NET's `StringWriter` says so, whatever it is then written as.
    let report = read(format!("<?xml version='1.0' encoding='utf-16'?>{text}"));
    assert_eq!((report.cases[0].name.as_str(), rules(&report)), ("ä€", vec![]));
    let latin1 = b"<?xml version=\"1.0\" encoding='ISO-8859-1'?><testsuite><testcase name='\xe4' time='1'/></testsuite>";
    let report = read(latin1);
    assert_eq!((report.cases[0].name.as_str(), rules(&report)), ("ä", vec![]));
}

#[test]
fn bytes_in_another_encoding_are_replaced_and_noted() {
    let report = read(b"<testsuite>\n<testcase name='\xe4b' time='1'/></testsuite>");
    assert_eq!(report.cases[0].name, "\u{fffd}b");
    assert_eq!(rules(&report), [(JunitRule::Encoding, 2)]);
    let report = read(
        "<?xml version='1.0' encoding='EBCDIC-US'?><testsuite><testcase name='a' time='1'/></testsuite>",
    );
    assert_eq!(rules(&report), [(JunitRule::Encoding, 1)]);
}

#[test]
fn control_characters_are_replaced_and_noted() {
    let report = read(
        "<testsuite><testcase time='1' name='a\u{1b}[1m'>\n<failure message='&#x1b;'>x\0y\tz\r\n&#7;</failure></testcase></testsuite>",
    );
    let case = &report.cases[0];
    assert_eq!(case.name, "a\u{fffd}[1m");
    assert_eq!(case.details[0].message.as_deref(), Some("\u{fffd}"));
    assert_eq!(case.details[0].text.as_deref(), Some("x\u{fffd}y\tz\n\u{fffd}"));
    let rule = JunitRule::ControlCharacter;
    assert_eq!(rules(&report), [(rule, 1), (rule, 2), (rule, 2)]);
}

#[test]
fn entities_of_a_file_are_never_expanded() {
    let bomb: String = (1..10)
        .map(|i| format!("<!ENTITY l{i} '{}'>", format!("&l{};", i - 1).repeat(10)))
        .collect();
    let xml = format!(
        "<!DOCTYPE r [<!ENTITY l0 'lol'>{bomb}<!ENTITY f SYSTEM \"file:///etc/passwd\">]>\
         <testsuite><testcase name='&l9;' time='1'><failure>x&l9;&f; &amp; &; & <![CDATA[&f;]]></failure></testcase></testsuite>"
    );
    let report = read(xml);
    assert_eq!(report.cases[0].name, "&l9;");
    assert_eq!(report.cases[0].message(), Some("x&l9;&f; & &; & &f;"));
    assert!(rules(&report).contains(&(JunitRule::UnknownEntity, 1)));
}

#[test]
fn entity_at_the_end_of_a_buffer_is_resolved() {
    // The buffers hold 64 KiB: every position of the entity around their end.
    for before in (64 << 10) - 120..(64 << 10) + 4 {
        let start = "<testsuite><testcase name='a' time='1'><failure>";
        let filler = " ".repeat(before - start.len());
        for (raw, text) in [
            ("&lt;&#x1F600;&amp;b", "<😀&b"),
            ("a<![CDATA[]]]]><!-- --->b", "a]]b"),
            ("&am", "&am"),
        ] {
            let report = read(format!("{start}{filler}{raw}</failure></testcase></testsuite>"));
            assert_eq!(report.cases[0].message(), Some(text), "{before}");
        }
    }
}

#[test]
fn duplicate_and_broken_attributes_are_noted() {
    let report = read(
        "<testsuite>\n<testcase name='a' name='b' time='1'/>\n<testcase time=1 name='c'/></testsuite>",
    );
    assert_eq!(results(&report)[0], ("a", TestResult::Success));
    let rules = rules(&report);
    assert!(rules.contains(&(JunitRule::DuplicateAttribute, 2)), "{rules:?}");
    assert!(rules.contains(&(JunitRule::BadAttribute, 3)), "{rules:?}");
    assert_eq!(report.tally.tests, 2);
}

#[test]
fn long_texts_are_cut_and_marked() {
    for (length, is_cut) in [(MAX_TEXT_BYTES, false), (MAX_TEXT_BYTES + 1, true), (300_000, true)] {
        for xml in [
            format!("<testcase name='a'><failure message='{}'/></testcase>", "x".repeat(length)),
            format!("<testcase name='a'><failure>{}</failure></testcase>", "x".repeat(length)),
            format!(
                "<testcase name='a'><failure><![CDATA[{}]]></failure></testcase>",
                "x".repeat(length)
            ),
        ] {
            let case = only(suite(&xml));
            let message = case.message().unwrap();
            assert_eq!(message.len(), length.min(MAX_TEXT_BYTES));
            assert_eq!(message.ends_with(CUT_MARK), is_cut);
        }
    }
    let case = only(suite(&format!(
        "<testcase name='a'><failure>{}</failure></testcase>",
        "ö".repeat(20_000)
    )));
    assert!(case.message().unwrap().starts_with("öö"));
}

#[test]
fn grade_and_findings_name_the_line() {
    let long = "n".repeat(1001);
    let mut report = read(format!(
        "<testsuites>\n<testsuite name='s' timestamp='2026-01-01T00:00:00' tests='9'>\n<testcase name='a'/>\n\
         <testcase name='{long}' time='1'/>\n<testcase\n time='1'/></testsuite></testsuites>"
    ));
    assert_eq!(report.grade(), JunitGrade::Invalid, "a test without a name");
    report.check_age("2026-01-02T00:00:01Z".parse().unwrap());
    assert_eq!(
        rules(&report),
        [
            (JunitRule::TestCount, 2),
            (JunitRule::StaleTimestamp, 2),
            (JunitRule::NoDuration, 3),
            (JunitRule::LongName, 4),
            (JunitRule::MissingName, 5),
        ]
    );
    assert_eq!(read(suite("<testcase name='a'/>")).grade(), JunitGrade::Valid);
    assert_eq!(read("<testsuite><testcase name='a'/></testsuite>").grade(), JunitGrade::Suboptimal);
    assert_eq!(read("<testsuite/>").grade(), JunitGrade::Suboptimal);
}

#[test]
fn tests_without_a_name_each_count() {
    let report = read(suite("<testcase classname='c'/><testcase classname='c'/>"));
    assert_eq!((report.tally.tests, report.tally.successes), (2, 2));
}

#[test]
fn each_limit_quarantines_the_file_and_is_named() {
    let deep = |levels: usize| format!("<testsuite>{}", "<a>".repeat(levels));
    assert!(refusal(deep(128)).contains("cap `depth`"));
    assert!(TestReport::read(deep(127).as_bytes()).is_ok());
    let tag = format!("<testsuite><testcase name='{}'/></testsuite>", "x".repeat(17 << 20));
    assert!(refusal(tag).contains("cap `tag-size`"));
    let name = format!("<testsuite><{0}></{0}></testsuite>", "x".repeat(2000));
    assert!(refusal(name).contains("cap `tag-size`"));
    let endless = std::io::Read::chain(&b"<testsuite>"[..], std::io::repeat(b'x'));
    assert!(matches!(TestReport::read(endless), Err(JunitError::TooLarge)));
}

#[test]
fn many_findings_of_one_rule_are_counted() {
    let report = read(format!(
        "<testsuite>{}</testsuite>",
        (0..1500).map(|i| format!("<testcase name='{i}'/>\n")).collect::<String>()
    ));
    assert_eq!(report.summary.findings.len(), 1000);
    let last = &report.summary.findings[999];
    assert_eq!((last.line, last.message.as_str()), (1000, "`999` has no duration, and 500 more"));
}

#[test]
fn output_larger_than_any_limit_of_a_tag_is_skipped() {
    let output = "some output <b>\n".repeat(5 << 18);
    for (start, end) in [("<system-out><![CDATA[", "]]></system-out>"), ("<!-- ", " -->")] {
        let report = read(format!(
            "<testsuite><testcase name='a' time='1'>{start}{output}{end}</testcase>\n<testcase/></testsuite>"
        ));
        assert_eq!(report.tally.tests, 2);
        let last = report.summary.findings.last().unwrap();
        assert_eq!((last.rule, last.line), (JunitRule::MissingName, (5 << 18) + 2));
    }
}

#[test]
fn arbitrary_damage_never_panics_and_never_adds_tests() {
    let whole = read(SAMPLE).tally.tests;
    for at in 0..SAMPLE.len() {
        for byte in [0, b'<', b'>', b'&', b'"', b'\'', b'/', b'!', 0xc3, 0xff] {
            let mut bytes = SAMPLE.as_bytes().to_vec();
            bytes[at] = byte;
            if let Ok(report) = TestReport::read(&bytes[..]) {
                assert!(report.tally.tests <= whole + 1, "{at} {byte}");
            }
            bytes.remove(at);
            let _ = TestReport::read(&bytes[..]);
        }
    }
}

#[test]
fn quote_that_is_not_escaped_and_hides_a_failed_test_makes_a_report_invalid() {
    let hidden = read(
        "<testsuite name='s'>\n<testcase name=\"5\" pipe\" time=\"1\"/>\n\
         <testcase name=\"b\" time=\"1\"><failure message=\"boom\"/></testcase>\n\
         <testcase name=\"6\" pipe\" time=\"1\"/>\n</testsuite>",
    );
    assert_eq!(hidden.tally.failures, 0, "{:?}", hidden.cases);
    assert!(rules(&hidden).contains(&(JunitRule::Malformed, 2)), "{:?}", rules(&hidden));
    assert_eq!(hidden.grade(), JunitGrade::Invalid);
    let harmless = read("<testsuite><testcase time=1 name='c'/></testsuite>");
    assert_eq!(harmless.grade(), JunitGrade::Suboptimal);
}

#[test]
fn names_of_reports_have_any_capitals_and_what_looks_like_one_and_is_not_read_says_why() {
    for name in ["a.xml", "x/RESULTS.TRX", "a.Xml", "go.ndjson", "go.JSON"] {
        assert!(is_report_file(name), "{name}");
        assert_eq!(unread_file(name), None, "{name}");
    }
    for name in ["a.tar.gz", "A.TGZ", "a.7z", "b.junit", "a.xml.gz"] {
        assert!(!is_report_file(name) && unread_file(name).is_some(), "{name}");
    }
    for name in ["go-test.log", "xml", "a.txt", "b.ndjson.zst"] {
        assert!(!is_report_file(name) && unread_file(name).is_none(), "{name}");
    }
}
