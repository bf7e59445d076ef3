//! `crcr quarantine …`: the file, and what stored results propose for it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde_json::Value;

use crate::support::Crcr;

/// So many days from today.
pub(crate) fn day(days: i32) -> String {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    today.saturating_add(days.days()).to_string()
}

pub(crate) fn entry(pattern: &str, owner: &str, days: i32) -> String {
    let expiry = day(days);
    format!("- pattern: \"{pattern}\"\n  owner: {owner}\n  reason: flaky\n  expiry: {expiry}\n")
}

#[test]
fn validate_reports_every_mistake_with_its_line_and_expired_entries_as_warnings() {
    let text = entry("tests.ops.a", "alice", 30)
        + &entry("tests.ops.b", "a b", 31)
        + &entry("tests.ops.c", "alice", -3)
        + "- pattern: tests.ops.d\n  until: never\n";
    let args = ["quarantine", "validate", "--format", "json", "-"];
    let ran = Crcr::new(&args).stdin(text).run().expect_code(1);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let found: Vec<_> = json["diagnostics"].as_array().unwrap().iter().collect();
    let told: Vec<_> =
        found.iter().map(|f| (f["line"].as_u64().unwrap(), f["rule"].as_str().unwrap())).collect();
    assert_eq!(
        told,
        [
            (6, "invalid-owner"),
            (8, "expiry-too-far"),
            (12, "quarantine-expired"),
            (13, "missing-field"),
            (13, "missing-field"),
            (13, "missing-field"),
            (14, "unknown-field"),
        ]
    );
    assert_eq!(found[2]["severity"], "warning");
    assert!(found[2]["message"].as_str().unwrap().contains("expired 3 days ago"), "{json}");
    assert_eq!((&json["summary"]["errors"], &json["summary"]["tests"]), (&6.into(), &2.into()));

    let expired = entry("tests.ops.c", "alice", -1);
    let ran = Crcr::new(&["quarantine", "validate", "-"]).stdin(expired).run().expect_code(0);
    assert!(
        ran.stdout.contains("warning[quarantine-expired]: the entry expired yesterday"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("<stdin>: 1 warning; 1 test"), "{}", ran.stdout);
    let ran = Crcr::new(&["quarantine", "validate"]).run().expect_code(2);
    assert!(ran.stderr.contains("`.github/quarantine.yml` can't be read"), "{}", ran.stderr);
}

#[test]
fn list_prints_the_tests_to_skip_and_leaves_out_expired_ones() {
    let text = entry("tests.ops.a", "alice", 3)
        + &entry("tests.ops.b", "alice", 3).replace("  reason", "  mode: skip\n  reason")
        + &entry("tests.ops.c", "alice", -1).replace("  reason", "  mode: skip\n  reason");
    let list = |args: &[&str], code: i32, text: &str| {
        let args = [&["quarantine", "list", "-"], args].concat();
        Crcr::new(&args).stdin(text).run().expect_code(code)
    };
    assert_eq!(list(&[], 0, &text).stdout, "tests.ops.a\ntests.ops.b\n");
    assert_eq!(list(&["--mode", "skip"], 0, &text).stdout, "tests.ops.b\n");
    let json = list(&["--mode", "skip", "--format", "json"], 0, &text).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["pattern"], &json[0]["mode"]), (&"tests.ops.b".into(), &"skip".into()));
    let ran = list(&[], 1, "- pattern: x\n");
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("error[invalid-quarantine]"), "{}", ran.stderr);
}

/// Loads runs of these tests: the name, and in how many of the first runs each is flaky and fails.
fn load(folder: &Path, runs: u32, tests: &[(&str, u32, u32)]) -> String {
    let results = format!("sqlite:{}", folder.join("crcr.db").display());
    for run in 1..=runs {
        let reports = folder.join("reports");
        fs::create_dir_all(&reports).unwrap();
        let case = |(name, flaky, failed): &(&str, u32, u32)| {
            let inner = match () {
                () if run <= *failed => "<failure/>",
                () if run <= *flaky => "<flakyFailure message='once'/>",
                () => "",
            };
            format!("<testcase classname='tests.ops' name='{name}' time='0.1'>{inner}</testcase>")
        };
        let cases: String = tests.iter().map(case).collect();
        fs::write(reports.join("a.xml"), format!("<testsuite name='s'>{cases}</testsuite>"))
            .unwrap();
        let id = run.to_string();
        let args = [
            "stats",
            "collect",
            "--dir",
            reports.to_str().unwrap(),
            "--repo",
            "acme/app",
            "--run-id",
            &id,
            "--run-attempt",
            "1",
            "--on-default-branch",
            "--results",
            &results,
        ];
        Crcr::new(&args).run().expect_code(0);
    }
    results
}

fn propose(folder: &Path, results: &str) -> Crcr {
    let args = ["quarantine", "propose", "--repo", "acme/app", "--owner", "acme/gpu", "--results"];
    Crcr::new(&args).arg(results).dir(folder)
}

fn apply(folder: &Path, diff: &str) {
    let mut git = Command::new("git");
    git.args(["apply", "-"]).current_dir(folder).stdin(Stdio::piped());
    let mut child = git.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), diff.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{diff}");
}

#[test]
fn propose_adds_flaky_tests_and_removes_only_entries_that_no_longer_fail() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let results = load(
        folder,
        20,
        &[
            ("test_flaky[a \"b\": c]", 10, 0),
            ("test_rare", 2, 0),
            ("test_once", 1, 0),
            ("test_known", 9, 0),
            ("test_late", 9, 0),
            ("test_mended", 0, 0),
            ("test_failing", 0, 1),
            ("test_skipped", 0, 0),
        ]
        .map(|(name, flaky, failed)| {
            (&*Box::leak(name.replace('"', "&quot;").into_boxed_str()), flaky, failed)
        }),
    );
    let file = folder.join(".github/quarantine.yml");

    // A file that doesn't exist yet.
    let first = propose(folder, &results).run().expect_code(0);
    assert!(first.stderr.contains("4 tests to add, 0 entries to remove"), "{}", first.stderr);
    apply(folder, &first.stdout);
    let text = fs::read_to_string(&file).unwrap();
    let (schema, text) = text.split_once('\n').unwrap();
    assert!(schema.ends_with("/schemas/quarantine.json"), "editors check a new file: {schema}");
    assert!(
        text.starts_with(
            "- pattern: \"tests.ops.test_flaky[a \\\"b\\\": c]\"\n  owner: \"acme/gpu\"\n"
        ),
        "{text}"
    );
    assert!(text.contains("flaky in 10 of 20 runs (50.0 %)"), "{text}");
    Crcr::new(&["quarantine", "validate"]).dir(folder).run().expect_code(0);
    let again = propose(folder, &results).run().expect_code(0);
    assert_eq!(again.stdout, "", "what was applied is proposed again");

    // A file that others keep.
    let before = format!(
        "# ours\n{}\n# a comment that stays\n{}{}{}{}{}",
        entry("tests.ops.test_mended", "bob", 5),
        entry("tests.ops.test_known", "bob", 5),
        entry("tests.ops.test_late", "bob", -5),
        entry("tests.ops.test_failing", "bob", 5),
        entry("tests.gpu.test_of_another_machine", "bob", 5),
        entry("tests.ops.test_skipped", "bob", 5).replace("  reason", "  mode: skip\n  reason"),
    );
    fs::write(&file, &before).unwrap();
    let ran = propose(folder, &results).run().expect_code(0);
    let twice = propose(folder, &results).run().expect_code(0);
    assert_eq!(ran.stdout, twice.stdout);
    assert!(ran.stderr.contains("2 tests to add, 1 entry to remove"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("`tests.ops.test_late` is still flaky, and its entry has expired"),
        "{}",
        ran.stderr
    );
    apply(folder, &ran.stdout);
    let after = fs::read_to_string(&file).unwrap();
    let kept = before.replace(&entry("tests.ops.test_mended", "bob", 5), "");
    let added = after.strip_prefix(&*kept).unwrap_or_else(|| panic!("{after}"));
    let patterns: Vec<_> = added.lines().filter(|line| line.starts_with("- pattern")).collect();
    assert_eq!(patterns.len(), 2, "{added}");
    assert!(patterns[0].contains("test_flaky") && patterns[1].contains("test_rare"), "{added}");
}

#[test]
fn proposed_entry_of_a_browsers_test_is_of_that_browser_only() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let of = |browser: &str, inner: &str| {
        format!(
            "<testsuite name='s'><properties><property name='browser' value='{browser}'/></properties>\
             <testcase classname='a.spec' name='log in' time='0.1'>{inner}</testcase></testsuite>"
        )
    };
    let suites = of("firefox", "<flakyFailure message='once'/>") + &of("chromium", "");
    fs::create_dir_all(folder.join("reports")).unwrap();
    fs::write(folder.join("reports/b.xml"), format!("<testsuites>{suites}</testsuites>")).unwrap();
    let results = load(folder, 3, &[("test_passes", 0, 0)]);
    let ran = propose(folder, &results).run().expect_code(0);
    assert!(ran.stderr.contains("1 test to add"), "{}", ran.stderr);
    assert!(ran.stdout.contains("+- pattern: \"a.spec.log in (firefox)\"\n"), "{}", ran.stdout);
    apply(folder, &ran.stdout);
    let again = propose(folder, &results).run().expect_code(0);
    assert_eq!(again.stdout, "", "the entry covers the test that it was made for");
}

#[test]
fn proposed_entry_covers_the_test_in_its_next_run_although_an_address_in_its_name_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let results = load(folder.path(), 4, &[("test_p[&lt;Foo object at 0x7f4296f7d550&gt;]", 4, 0)]);
    let ran = propose(folder.path(), &results).run().expect_code(0);
    assert!(ran.stdout.contains(r#""tests.ops.test_p[<Foo object at *>]""#), "{}", ran.stdout);
}

/// Loads runs of `test_flaky`, and each time also this report.
fn load_with(folder: &Path, runs: u32, xml: &str) -> String {
    fs::create_dir_all(folder.join("reports")).unwrap();
    fs::write(folder.join("reports/b.xml"), xml).unwrap();
    load(folder, runs, &[("test_flaky", runs, 0), ("test_mended", 0, 0)])
}

#[test]
fn propose_leaves_out_a_test_whose_entry_would_cover_another_one_of_the_same_name() {
    let folder = tempfile::tempdir().unwrap();
    let of = |inner: &str| {
        format!(
            "<testsuite name='s'><testcase classname='tests.ops' name='test_twin' time='0.1'>{inner}\
             </testcase></testsuite>"
        )
    };
    let suites = of("<flakyFailure message='once'/>") + &of("");
    let xml = format!("<testsuites>{suites}</testsuites>");
    let results = load_with(folder.path(), 4, &xml);
    let ran = propose(folder.path(), &results).run().expect_code(0);
    assert!(ran.stderr.contains("1 test to add"), "{}", ran.stderr);
    assert!(ran.stdout.contains("test_flaky") && !ran.stdout.contains("twin"), "{}", ran.stdout);
    let told = "`tests.ops.test_twin` is flaky, and another test has the same name";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
}

#[test]
fn entry_of_a_test_that_fails_stays_although_the_test_has_no_time() {
    for (inner, removed) in [("<failure/>", 0), ("", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let case =
            format!("<testcase classname='tests.ops' name='test_mended[2]'>{inner}</testcase>");
        let xml = format!("<testsuite name='t'>{case}</testsuite>");
        let results = load_with(folder, 20, &xml);
        fs::create_dir(folder.join(".github")).unwrap();
        let text = entry("tests.ops.test_mended*", "bob", 5);
        fs::write(folder.join(".github/quarantine.yml"), text).unwrap();
        let ran = propose(folder, &results).run().expect_code(0);
        let entries = if removed == 1 { "1 entry" } else { "0 entries" };
        assert!(ran.stderr.contains(&format!("{entries} to remove")), "{}", ran.stderr);
    }
}

/// Names in files and results are of strangers, and the log of a job has what a command prints.
#[test]
fn data_on_stdout_is_no_command_to_the_runner_in_any_format() {
    let folder = tempfile::tempdir().unwrap();
    let tests = [("##[add-mask]x", 4, 0), ("##[add-mask]y", 0, 4)];
    let results = load(folder.path(), 4, &tests);
    let times = folder.path().join("times.json");
    fs::write(&times, r###"{"linux": {"default": {"##[add-mask]x.py": 1.5}}}"###).unwrap();
    let list = entry("tests.ops.##[add-mask]x", "alice", 3) + &entry("::add-mask::x", "alice", 3);
    let allowlist = "L1: ['##[add-mask]x']\n".to_owned();
    let downstream = "'##[add-mask]x': 1\n".to_owned();
    let findings = ["text", "json", "sarif", "markdown"];
    let data = ["text", "json"];
    let stats = |ranking| format!("stats {ranking} --repo acme/app");
    for (command, stdin, formats) in [
        ("allowlist validate -".to_owned(), &allowlist, &findings[..]),
        ("downstream validate -".to_owned(), &downstream, &findings),
        ("quarantine validate -".to_owned(), &(list.clone() + &list), &findings),
        ("quarantine list -".to_owned(), &list, &data),
        (stats("flaky"), &String::new(), &data),
        (stats("failing"), &String::new(), &data),
        (stats("slow"), &String::new(), &data),
        (
            format!("stats shard --shards 1 --index 1 --times {}", times.display()),
            &"##[add-mask]x.py\n::add-mask::x.py\n".to_owned(),
            &data,
        ),
        ("quarantine propose --repo acme/app --owner acme/gpu".to_owned(), &String::new(), &[]),
    ] {
        let formats = formats.iter().map(|format| vec!["--format", *format]);
        let formats = formats.chain(command.contains("propose").then(Vec::new));
        for format in formats {
            let args: Vec<_> = command.split(' ').chain(format).collect();
            let run = Crcr::new(&args).env("GITHUB_ACTIONS", "true").env("CRCR_RESULTS", &results);
            let ran = run.dir(folder.path()).stdin(stdin.as_str()).run();
            assert!(ran.stdout.contains("add-mask"), "{args:?}: {}", ran.report());
            assert!(!ran.stdout.contains("##["), "{args:?}: {}", ran.report());
            let is_command = |line: &str| line.trim_start().starts_with("::");
            assert!(!ran.stdout.lines().any(is_command), "{args:?}: {}", ran.report());
        }
    }
}

#[test]
fn propose_leaves_out_a_test_whose_name_would_cover_others_as_a_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let results = load(folder.path(), 20, &[("test_operator[*]", 10, 0), ("test_other", 10, 0)]);
    let ran = propose(folder.path(), &results).run().expect_code(0);
    assert!(ran.stdout.contains("test_other") && !ran.stdout.contains("[*]"), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("`tests.ops.test_operator[*]` is flaky, and its name"),
        "{}",
        ran.stderr
    );
}

#[test]
fn propose_keeps_line_endings_and_indentation_and_refuses_what_it_cannot_edit() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let results = load(folder, 4, &[("test_flaky", 4, 0)]);
    fs::create_dir(folder.join(".github")).unwrap();
    let file = folder.join(".github/quarantine.yml");
    let other = entry("tests.ops.other", "bob", 5);
    let indented: String = other.lines().map(|line| format!("  {line}\n")).collect();
    for before in [
        "[]\n".to_owned(),
        "# none\n".to_owned(),
        other.trim_end().to_owned(),
        indented,
        other.replace('\n', "\r\n"),
        format!("\u{feff}{other}"),
    ] {
        fs::write(&file, &before).unwrap();
        let ran = propose(folder, &results).run().expect_code(0);
        apply(folder, &ran.stdout);
        let after = fs::read_to_string(&file).unwrap();
        let has_crlf = before.contains('\r');
        assert!(after.lines().count() >= 5 && after.contains("test_flaky"), "{after}");
        assert_eq!(
            after.matches("\r\n").count(),
            if has_crlf { after.matches('\n').count() } else { 0 }
        );
        Crcr::new(&["quarantine", "validate"]).dir(folder).run().expect_code(0);
    }
    let flow = format!("[{{pattern: tests.ops.x, owner: a, reason: b, expiry: {}}}]\n", day(3));
    fs::write(&file, flow).unwrap();
    let ran = propose(folder, &results).run().expect_code(1);
    assert!(
        ran.stderr.contains("error[quarantine-layout]") && ran.stdout.is_empty(),
        "{}",
        ran.stderr
    );
    fs::write(&file, "- pattern: x\n").unwrap();
    propose(folder, &results).run().expect_code(1);
    let args = ["quarantine", "propose", "--repo", "a/b", "--owner", "x", "../q.yml"];
    Crcr::new(&args).run().expect_code(2);
}

#[test]
fn summary_of_collected_tests_shows_quarantined_failures_apart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let xml = "<testsuite name='s'><testcase classname='tests.ops' name='a'><failure/></testcase>\
               <testcase classname='tests.ops' name='b'><failure message='1'/></testcase></testsuite>";
    fs::write(folder.join("a.xml"), xml).unwrap();
    fs::write(folder.join("q.yml"), entry("tests.ops.a", "alice", 3)).unwrap();
    let args =
        ["stats", "collect", "--repo", "acme/app", "--run-id", "1", "--run-attempt", "1", "--dir"];
    let step = Crcr::step(&args, "workflow_run", &Value::Null).arg(folder.to_str().unwrap());
    let ran = step
        .arg("--quarantine-file")
        .arg(folder.join("q.yml").to_str().unwrap())
        .run()
        .expect_code(0);
    let (failing, apart) = ran.summary.split_once("#### Failing, in quarantine (1)").unwrap();
    assert!(
        failing.contains("#### Failing (1)") && failing.contains("| tests.ops.b |"),
        "{}",
        ran.summary
    );
    let note = format!("| tests.ops.a | unknown | alice, until {}: flaky |", day(3));
    assert!(apart.contains(&note), "{}", ran.summary);
}
