//! `crcr stats collect`: several reports of one test, and one report in several places.

use std::fs;

use serde_json::json;

use crate::stats_collect::{offline, parsed, reasons, report, zip};

#[test]
fn earlier_attempts_of_bazel_are_attempts_of_its_tests_in_folders_and_zips() {
    let xml = |inner: &str| {
        format!(
            "<testsuites><testsuite name='foo' tests='1'><testcase name='foo' time='1'>{inner}</testcase>\
             </testsuite></testsuites>"
        )
    };
    let files = [
        ("test-reports/foo/test_attempts/attempt_1.xml", xml("<error message='flaked'/>")),
        ("test-reports/foo/test.xml", xml("")),
        // Whose last attempt isn't there.
        ("test-reports/bar/test_attempts/attempt_1.xml", xml("<error message='gone'/>")),
    ];
    for folder in in_folder_and_zip(&files) {
        let folder = folder.path();
        let json = parsed(&offline(folder, &["--dry-run", "--format", "json"]).run());
        let counts = ["tests", "successes", "errors", "flaky", "files"].map(|count| &json[count]);
        assert_eq!(counts, [2, 1, 1, 1, 2], "{json}");
    }
}

/// A folder with these files, and one with a zip of them.
fn in_folder_and_zip(files: &[(&str, impl AsRef<str>)]) -> [tempfile::TempDir; 2] {
    let [folder, zipped] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (path, content) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content.as_ref()).unwrap();
    }
    let members: Vec<_> =
        files.iter().map(|(path, content)| (*path, content.as_ref().as_bytes())).collect();
    fs::write(zipped.path().join("test-reports-linux_1.zip"), zip(&members)).unwrap();
    [folder, zipped]
}

#[test]
fn attempts_of_dotnet_that_ran_only_failed_tests_are_one_report_in_folders_and_zips() {
    let trx = |results: &str| {
        format!(
            "<TestRun xmlns='http://microsoft.com/schemas/VisualStudio/TeamTest/2010'><Results>{results}\
             </Results></TestRun>"
        )
    };
    let result = |name: &str, outcome: &str| {
        format!("<UnitTestResult testName='{name}' duration='00:00:01' outcome='{outcome}'/>")
    };
    let first = trx(&[result("a", "Failed"), result("b", "Passed")].concat());
    let last = trx(&result("a", "Passed"));
    let files = [
        ("out/Retries/x7f2q/1/a.trx", &first),
        ("out/Retries/x7f2q/2/a.trx", &last),
        ("out/a.trx", &last),
    ];
    for folder in in_folder_and_zip(&files) {
        let folder = folder.path();
        let json = parsed(&offline(folder, &["--dry-run", "--format", "json"]).run());
        let counts = ["tests", "successes", "failures", "flaky", "files"].map(|count| &json[count]);
        assert_eq!(counts, [2, 2, 0, 1, 1], "{json}");
    }
}

#[test]
fn attempts_in_surefires_reports_of_nested_classes_are_of_one_test_in_folders_and_zips() {
    let xml = |suite: &str, inner: &str| {
        format!(
            "<testsuite xsi:noNamespaceSchemaLocation='surefire-test-report-3.0.xsd' name='{suite}'>\
             <testcase name='a' classname='demo.T' time='1'>{inner}</testcase></testsuite>"
        )
    };
    let files = [
        ("test-reports/TEST-demo.T$Inner.xml", xml("demo.T$Inner", "<failure message='first'/>")),
        ("test-reports/TEST-demo.T.xml", xml("demo.T", "")),
        // A class of that name in another module.
        ("test-reports/other/TEST-demo.T.xml", xml("demo.T", "<failure message='no'/>")),
    ];
    for folder in in_folder_and_zip(&files) {
        let folder = folder.path();
        let json = parsed(&offline(folder, &["--dry-run", "--format", "json"]).run());
        let counts = ["tests", "successes", "failures", "flaky", "files"].map(|count| &json[count]);
        assert_eq!(counts, [2, 1, 1, 1, 3], "{json}");
    }
}

#[test]
fn compressed_report_beside_another_or_in_a_zip_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.xml"), report("a", 1)).unwrap();
    fs::write(folder.path().join("a.xml.gz"), b"\x1f\x8b\x08\0").unwrap();
    fs::write(folder.path().join("z.zip"), zip(&[("in/b.trx.gz", b"\x1f")])).unwrap();
    let json = parsed(&offline(folder.path(), &["--dry-run", "--format", "json"]).run());
    let reasons = reasons(&json);
    assert_eq!(reasons.keys().collect::<Vec<_>>(), ["a.xml.gz", "z.zip/in/b.trx.gz"]);
    assert!(reasons.values().all(|reason| reason.contains("unpack it first")), "{reasons:?}");
}

#[test]
fn reports_of_two_machines_with_the_same_results_both_count_and_a_packed_copy_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let xml = "<testsuite name='s'><testcase name='a' time='0'/><testcase name='b' time='0'><failure/>\
               </testcase></testsuite>";
    for machine in ["linux", "macos"] {
        fs::create_dir(folder.path().join(machine)).unwrap();
        fs::write(folder.path().join(machine).join("report.xml"), xml).unwrap();
    }
    let files = [("linux/report.xml", xml.as_bytes()), ("macos/report.xml", xml.as_bytes())];
    fs::write(folder.path().join("packed.zip"), zip(&files)).unwrap();
    let json = parsed(&offline(folder.path(), &["--dry-run", "--format", "json"]).run());
    assert_eq!((&json["tests"], &json["failures"]), (&json!(4), &json!(2)), "{json}");
    let reasons = reasons(&json);
    let copies: Vec<_> = reasons.keys().map(String::as_str).collect();
    assert_eq!(copies, ["packed.zip/linux/report.xml", "packed.zip/macos/report.xml"]);
}
