//! `crcr report` with quarantined tests: what it hides, and what it never hides.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::quarantine::{day, entry};
use crate::report::{Answer, Job, OK, Relay};
use crate::support::{Crcr, Ran};

const FILE: &str = ".github/quarantine.yml";

fn git(folder: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]);
    let output = git.args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Commits the file in a new repository and returns the commit.
fn commit(folder: &Path, text: &str) -> String {
    fs::create_dir_all(folder.join(".github")).unwrap();
    fs::write(folder.join(FILE), text).unwrap();
    git(folder, &["init", "-q"]);
    git(folder, &["add", "-f", FILE]);
    git(folder, &["commit", "-q", "-m", "quarantine"]);
    git(folder, &["rev-parse", "HEAD"])
}

fn report_xml(cases: &[(&str, &str)]) -> String {
    let case = |(name, inner): &(&str, &str)| {
        format!("<testcase classname='tests.ops' name='{name}'>{inner}</testcase>")
    };
    format!("<testsuite name='s'>{}</testsuite>", cases.iter().map(case).collect::<String>())
}

const FAILED: &str = "<failure message='no'/>";

struct Reported {
    workflow: Value,
    ran: Ran,
}

/// Reports a failed job whose repository has committed `file`, after `prepare` has changed the folder.
fn reported(file: &str, args: &[&str], prepare: impl FnOnce(Crcr, &Path) -> Crcr) -> Reported {
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK)]));
    let args = [&["--status", "completed", "--conclusion", "failure"], args].concat();
    let run = job.report(&relay, &args);
    let folder = run.folder().to_owned();
    let commit = commit(&folder, file);
    let run = prepare(run.env("GITHUB_SHA", &commit), &folder);
    let ran = run.run().expect_code(0);
    Reported { workflow: relay.next().body["workflow"].take(), ran }
}

fn with_reports(reports: &[(&str, &str)]) -> impl FnOnce(Crcr, &Path) -> Crcr {
    let reports: Vec<_> = reports.iter().map(|(n, x)| ((*n).to_owned(), (*x).to_owned())).collect();
    move |run, folder| {
        for (name, xml) in reports {
            fs::write(folder.join(name), xml).unwrap();
        }
        run
    }
}

#[test]
fn failures_that_are_all_quarantined_are_a_success_and_still_shown_and_sent() {
    let file = entry("tests.ops.test_conv*", "alice", 10) + &entry("tests.ops.test_add", "bob", 0);
    let xml = report_xml(&[("test_conv[cpu]", FAILED), ("test_add", "<error/>"), ("test_ok", "")]);
    let Reported { workflow, ran } =
        reported(&file, &["--junit", "*.xml", "--phase", "test"], with_reports(&[("a.xml", &xml)]));
    assert_eq!(workflow["conclusion"], "success", "{}", ran.report());
    assert_eq!(workflow["test_results"]["failed"], 2);
    assert_eq!(workflow["failed_tests"].as_array().unwrap().len(), 2);
    let log = &ran.stderr;
    assert!(log.contains("::group::2 failures in quarantine"), "{log}");
    let line = format!("tests.ops.test_conv[cpu] (alice, until {}): flaky", day(10));
    assert!(log.contains(&line), "{log}");
    assert!(log.contains("all tests that failed are quarantined"), "{log}");
    let summary = &ran.summary;
    assert!(summary.contains("### 2 failures in quarantine"), "{summary}");
    assert!(summary.contains("| tests.ops.test\\_add | bob |"), "{summary}");
}

#[test]
fn whatever_the_quarantine_does_not_name_is_a_failure() {
    let good = entry("tests.ops.test_conv", "alice", 10);
    let quarantined = report_xml(&[("test_conv", FAILED)]);
    let other = report_xml(&[("test_conv", FAILED), ("test_add", FAILED)]);
    let suite = "<testsuite name='s'><testcase classname='tests.ops' name='test_conv'><failure/>\
                 </testcase><testcase classname='' name=''><error message='setup'/></testcase>\
                 </testsuite>";
    let cut = "<testsuite name='s'><testcase classname='tests.ops' name='test_conv'><failure/>\
               </testcase><testcase classname='tests.ops' name='test_next'>";
    let expired = entry("tests.ops.test_conv", "alice", -1);
    let broken = good.clone() + "- pattern: x\n";
    let too_long = entry("tests.ops.test_conv", "alice", 31);
    let junit: &[&str] = &["--junit", "*.xml"];
    let detail: &[&str] = &["--junit", "*.xml", "--failed-tests-detail", r#"[{"name": "other"}]"#];
    for (what, file, args, xml, warning) in [
        ("a test beside it", &good, junit, &*other, ""),
        ("an error of the suite", &good, junit, suite, ""),
        ("a report that ends early", &good, junit, cut, "stops in the middle"),
        (
            "a missing report",
            &good,
            &["--junit", "a.xml\nb.xml"],
            &quarantined,
            "no report at `b.xml`",
        ),
        (
            "another phase",
            &good,
            &["--junit", "*.xml", "--phase", "build"],
            &quarantined,
            "phase `build`",
        ),
        ("a failure that isn't in JUnit", &good, detail, &quarantined, "`failed-tests-detail`"),
        (
            "counts beyond JUnit",
            &good,
            &["--junit", "*.xml", "--test-results", r#"{"failed": 2}"#],
            &quarantined,
            "`test-results`",
        ),
        (
            "an expired entry",
            &expired,
            junit,
            &quarantined,
            "the quarantine of `tests.ops.test_conv` ended",
        ),
        ("a broken file", &broken, junit, &quarantined, "`.github/quarantine.yml` has errors"),
        (
            "an entry without an end",
            &too_long,
            junit,
            &quarantined,
            "`.github/quarantine.yml` has errors",
        ),
        (
            "a missing file",
            &good,
            &["--junit", "*.xml", "--quarantine-file", "no.yml"],
            &quarantined,
            "`no.yml` can't be used",
        ),
    ] {
        let Reported { workflow, ran } = reported(file, args, with_reports(&[("a.xml", xml)]));
        assert_eq!(workflow["conclusion"], "failure", "{what}: {}", ran.report());
        assert!(ran.stderr.contains(warning), "{what}: {}", ran.report());
    }
}

#[test]
fn tested_code_cannot_quarantine_its_own_failures() {
    let own = entry("tests.ops.other", "alice", 10);
    let hides = entry("tests.ops.test_conv", "mallory", 10);
    let xml = report_xml(&[("test_conv", FAILED)]);
    let junit: &[&str] = &["--junit", "*.xml"];
    let nested: &[&str] =
        &["--junit", "*.xml", "--quarantine-file", "upstream/.github/quarantine.yml"];
    type Prepare<'a> = &'a dyn Fn(Crcr, &Path) -> Crcr;
    let edited: Prepare<'_> = &|run, folder| {
        fs::write(folder.join(FILE), &hides).unwrap();
        run
    };
    let replaced: Prepare<'_> = &|run, folder| {
        let old = git(folder, &["rev-parse", &format!("HEAD:{FILE}")]);
        fs::write(folder.join("new"), &hides).unwrap();
        let new = git(folder, &["hash-object", "-w", "new"]);
        git(folder, &["replace", &old, &new]);
        run
    };
    let checkout: Prepare<'_> = &|run, folder| {
        fs::create_dir(folder.join("upstream")).unwrap();
        commit(&folder.join("upstream"), &hides);
        run
    };
    let committed: Prepare<'_> = &|run, folder| {
        commit(folder, &hides);
        run
    };
    for (what, args, prepare) in [
        ("the file in the working folder was changed", junit, edited),
        ("the committed object was replaced", junit, replaced),
        ("the file is in the checkout of the tested code", nested, checkout),
        ("a later commit has it", junit, committed),
    ] {
        let Reported { workflow, ran } = reported(&own, args, |run, folder| {
            fs::write(folder.join("a.xml"), &xml).unwrap();
            prepare(run, folder)
        });
        assert_eq!(workflow["conclusion"], "failure", "{what}: {}", ran.report());
    }
    let Reported { workflow, ran } = reported(&hides, junit, |run, folder| {
        fs::write(folder.join("a.xml"), &xml).unwrap();
        run.env("GITHUB_EVENT_NAME", "pull_request").env(
            "CRCR_CLIENT_PAYLOAD",
            &json!({ "delivery_id": "d", "event_type": "push" }).to_string(),
        )
    });
    assert_eq!(workflow["conclusion"], "failure", "a pull request's own file: {}", ran.report());
}

#[test]
fn file_in_a_subfolder_of_the_checkout_and_of_a_sparse_one_is_found_in_the_commit() {
    let xml = report_xml(&[("test_conv", FAILED)]);
    let (job, relay) = (Job::new(), Relay::start(vec![Answer::Say(200, OK), Answer::Say(200, OK)]));
    for missing in [false, true] {
        let args = ["--status", "completed", "--conclusion", "failure", "--junit", "*.xml"];
        let run = job.report(&relay, &args);
        let folder = run.folder().join("own");
        fs::create_dir(&folder).unwrap();
        let commit = commit(&folder, &entry("tests.ops.test_conv", "alice", 10));
        if missing {
            fs::remove_dir_all(folder.join(".github")).unwrap();
        }
        fs::write(run.folder().join("a.xml"), &xml).unwrap();
        let run =
            run.env("GITHUB_SHA", &commit).arg("--quarantine-file=own/.github/quarantine.yml");
        let ran = run.run().expect_code(0);
        assert_eq!(relay.next().body["workflow"]["conclusion"], "success", "{}", ran.report());
    }
}

/// The workspace belongs to the runner's user, and in a container the job's is root.
#[cfg(unix)]
#[test]
fn file_in_a_folder_of_another_user_is_found_by_an_older_git() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = entry("tests.ops.test_conv", "alice", 10);
    let xml = report_xml(&[("test_conv", FAILED)]);
    let Reported { workflow, ran } = reported(&file, &["--junit", "*.xml"], |run, folder| {
        fs::write(folder.join("a.xml"), &xml).unwrap();
        let (tools, path) = (folder.join("tools"), std::env::var("PATH").unwrap());
        fs::create_dir(&tools).unwrap();
        // git before 2.38 reads `safe.directory` only from files.
        let script = format!(
            "#!/bin/sh\nfor one do\n\
             case $one in safe.directory=*) one=crcr.ignored=1 ;; esac\n\
             shift\nset -- \"$@\" \"$one\"\ndone\nPATH='{path}' exec git \"$@\"\n"
        );
        fs::write(tools.join("git"), script).unwrap();
        fs::set_permissions(tools.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
        run.env("PATH", &format!("{}:{path}", tools.display()))
            .env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    });
    assert_eq!(workflow["conclusion"], "success", "{}", ran.report());
}

#[test]
fn failure_that_no_test_of_a_report_has_is_never_quarantined() {
    let file = entry("tests.ops.test_conv", "alice", 10);
    let failed = "<testcase classname='tests.ops' name='test_conv'><failure/></testcase>";
    let other =
        |inner: &str| format!("<testcase classname='tests.ops' name='test_add'>{inner}</testcase>");
    for (what, xml) in [
        (
            "more failures are declared than tests failed",
            format!("<testsuite name='s' failures='2'>{failed}{}</testsuite>", other("")),
        ),
        (
            "a failure and then a skip under one name",
            format!(
                "<testsuite name='s'>{failed}{}{}</testsuite>",
                other("<error/>"),
                other("<skipped/>")
            ),
        ),
        (
            "the test passed in another browser",
            format!(
                "<testsuites id='' name=''><testsuite name='s' hostname='chromium'>{failed}{}</testsuite>\
                 <testsuite name='s' hostname='firefox'>{}</testsuite></testsuites>",
                other("<failure/>"),
                other("")
            ),
        ),
        (
            "a failure beside the tests",
            format!("<testsuite name='s'>{failed}<error message='teardown'/></testsuite>"),
        ),
        (
            "Node.js counts one more in a comment",
            format!(
                "<testsuites>{failed}<testsuite name='p'>{}</testsuite><!-- fail 2 --></testsuites>",
                other("")
            ),
        ),
    ] {
        let Reported { workflow, ran } = reported(
            &file,
            &["--junit", "*.xml", "--phase", "test"],
            with_reports(&[("a.xml", &xml)]),
        );
        assert_eq!(workflow["conclusion"], "failure", "{what}: {}", ran.report());
        assert_eq!(workflow["test_results"]["failed"], 2, "{what}");
    }
}

#[test]
fn coverage_beside_the_reports_is_left_out_and_does_not_end_the_quarantine() {
    let file = entry("tests.ops.test_conv", "alice", 10);
    let xml = report_xml(&[("test_conv", FAILED)]);
    let files = [("a.xml", &*xml), ("coverage.xml", "<coverage line-rate='1'/>")];
    let Reported { workflow, ran } =
        reported(&file, &["--junit", "*.xml", "--phase", "test"], with_reports(&files));
    assert_eq!(workflow["conclusion"], "success", "{}", ran.report());
    let told =
        "`coverage.xml` is left out: it isn't a test report: it is a coverage report of Cobertura";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
}

#[test]
fn compressed_report_is_named_and_ends_the_quarantine() {
    let file = entry("tests.ops.test_conv", "alice", 10);
    let xml = report_xml(&[("test_conv", FAILED)]);
    let files = [("a.xml", &*xml), ("a.xml.gz", "")];
    let Reported { workflow, ran } =
        reported(&file, &["--junit", "*.xml*", "--phase", "test"], with_reports(&files));
    assert_eq!(workflow["conclusion"], "failure", "{}", ran.report());
    assert!(ran.stderr.contains("`a.xml.gz` isn't read: it is compressed"), "{}", ran.stderr);
}

#[test]
fn whatever_else_junit_finds_is_read_or_named_and_hides_no_failure() {
    let file = entry("tests.ops.test_conv", "alice", 10);
    let (known, other) =
        (report_xml(&[("test_conv", FAILED)]), report_xml(&[("test_add", FAILED)]));
    let events = "{\"Action\":\"fail\",\"Package\":\"p\",\"Test\":\"TestA\"}\n\
                  {\"Action\":\"fail\",\"Package\":\"p\"}\n";
    for (name, content, failed, told) in [
        ("r-RESULTS.XML", &*other, 2, ""),
        ("r-go.ndjson", events, 2, ""),
        ("r-go-test.log", events, 1, "`r-go-test.log` isn't read: reports are `.xml`"),
        ("r-out.junit", "", 1, "`r-out.junit` isn't read: reports are `.xml`"),
    ] {
        let files = [("r-known.xml", &*known), (name, content)];
        let Reported { workflow, ran } =
            reported(&file, &["--junit", "r-*", "--phase", "test"], with_reports(&files));
        assert_eq!(workflow["conclusion"], "failure", "{name}: {}", ran.report());
        assert_eq!(workflow["test_results"]["failed"], failed, "{name}");
        assert!(ran.stderr.contains(told), "{name}: {}", ran.report());
    }
    // What tools put beside their reports.
    let others =
        [("r-known.xml", &*known), ("r-out.txt", "1 failed"), ("r-page", "<!DOCTYPE html>")];
    let args = ["--junit", "r-*", "--phase", "test"];
    let Reported { workflow, ran } = reported(&file, &args, with_reports(&others));
    assert_eq!(workflow["conclusion"], "success", "{}", ran.report());
}

#[test]
fn package_of_go_that_is_not_built_and_a_failure_that_may_be_of_a_count_end_the_quarantine() {
    let file = entry("q.TestQ", "alice", 10);
    let events = [
        r#"{"Action":"run","Package":"q","Test":"TestQ"}"#,
        r#"{"Action":"fail","Package":"q","Test":"TestQ"}"#,
        r#"{"Action":"fail","Package":"q"}"#,
    ]
    .join("\n");
    let gotestsum = |more: &str| {
        format!(
            "<testsuite name='q'><properties><property name='go.version' value='go1.26'/></properties>\
             <testcase classname='q' name='TestQ' time='1'><failure/></testcase>{more}</testsuite>"
        )
    };
    let warm = "<testcase classname='q' name='TestWarm' time='1'>";
    let twice = format!("{warm}<failure/></testcase>{warm}</testcase>");
    for (name, report, conclusion) in [
        ("a.json", &events, "success"),
        ("a.json", &format!("{events}\nFAIL\tc [build failed]\n"), "failure"),
        ("a.xml", &gotestsum(""), "success"),
        ("a.xml", &gotestsum(&twice), "failure"),
    ] {
        let Reported { workflow, ran } = reported(
            &file,
            &["--junit", "a.*", "--phase", "test"],
            with_reports(&[(name, report)]),
        );
        assert_eq!(workflow["conclusion"], conclusion, "{report}: {}", ran.report());
    }
}

#[test]
fn earlier_attempts_of_bazel_are_no_failures_of_the_job() {
    let report = |inner: &str| report_xml(&[("test_conv", inner)]);
    let (first, last) = (report(FAILED), report(""));
    let Reported { workflow, .. } =
        reported("[]", &["--junit", "**/*.xml", "--phase", "test"], |run, folder| {
            fs::create_dir_all(folder.join("foo/test_attempts")).unwrap();
            fs::write(folder.join("foo/test.xml"), last).unwrap();
            fs::write(folder.join("foo/test_attempts/attempt_1.xml"), first).unwrap();
            run
        });
    let results = &workflow["test_results"];
    assert_eq!((&results["failed"], &results["passed"]), (&json!(0), &json!(1)), "{results}");
}
