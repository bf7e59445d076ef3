//! `crcr logs …`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crcr_standin::StandIn;
use serde_json::{Value, json};

use crate::support::{Crcr, keep_coverage};

fn fixtures(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/logs").join(folder)
}

#[test]
fn classify_as_json_has_line_captures_context_and_what_is_new() {
    let run = Crcr::new(&["logs", "classify", "-", "--baseline", "green.log", "--format", "json"]);
    fs::write(run.folder().join("green.log"), "start 1\nall fine\n").unwrap();
    let log = "2026-11-23T06:17:44.1234567Z start 2\n\
        2026-11-23T06:17:44.1234567Z \u{1b}[31msrc/core.c:12:5: error: 'x' undeclared\u{1b}[0m\n\
        2026-11-23T06:17:44.1234567Z ##[error]Process completed with exit code 2.\n";
    let ran = run.stdin(log).run().expect_code(0);
    assert!(!ran.stdout.contains("##["), "the runner would act on it");
    let line = "src/core.c:12:5: error: 'x' undeclared";
    let mut json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let entry = &mut json[0];
    let reasons = entry["match"]["reasons"].take();
    let names: Vec<&str> =
        reasons.as_array().unwrap().iter().map(|reason| reason["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"specific rule") && names.contains(&"printed in red"), "{names:?}");
    assert_eq!(entry["candidates"][0]["line"], line);
    assert_eq!(
        (&entry["file"], &entry["novel"]),
        (&json!("-"), &json!([{ "line_number": 2, "line": line }]))
    );
    assert_eq!(
        entry["match"],
        json!({
            "rule": "C or C++ error", "category": "compile", "line_number": 2, "line": line,
            "captures": ["core.c", "12", "'x' undeclared"],
            "context": ["start 2", line, "##[error]Process completed with exit code 2."],
            "by": "rule", "certainty_percent": 90, "reasons": null
        })
    );
}

#[test]
fn log_without_a_telling_line_is_no_error_and_a_missing_file_is() {
    let ran = Crcr::new(&["logs", "classify", "-"]).stdin("all fine\n").run().expect_code(0);
    assert_eq!(ran.stdout, "-: no line explains the failure\n");
    let ran = Crcr::new(&["logs", "classify", "absent.log"]).run().expect_code(2);
    assert!(ran.stderr.contains("`absent.log` can't be read"), "{}", ran.stderr);
    let run = Crcr::new(&["logs", "classify", "logs"]);
    fs::create_dir(run.folder().join("logs")).unwrap();
    let ran = run.run().expect_code(0);
    assert!(ran.stderr.contains("no logs in `logs`"), "{}", ran.report());
}

/// `crcr logs fetch … | head` ends quietly, as every other command does.
#[test]
fn reader_of_a_fetched_log_may_stop_early() {
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    world.add_repo("acme/app");
    world.put_job_log("acme/app", 7, "a line of the log\n".repeat(100_000));
    let mut crcr = Command::new(env!("CARGO_BIN_EXE_crcr"));
    crcr.args(["logs", "fetch", "--repo", "acme/app", "--job", "7"]).env_clear();
    crcr.env("GITHUB_API_URL", github.state().origin());
    crcr.env("GITHUB_TOKEN", world.reader_token(false));
    keep_coverage(&mut crcr);
    let mut child = crcr.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn line_that_may_explain_the_failure_is_shown_and_not_denied() {
    let log = "widget: the frobnicator has no proper settings\n\
        ##[error]Process completed with exit code 1.\n";
    let ran = Crcr::new(&["logs", "classify", "-"]).stdin(log).run().expect_code(0);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], "-:2: exit code; not sure which line explains the failure");
    assert!(lines.iter().any(|line| line.contains("% line 1: widget: ")), "{}", ran.stdout);
    let log = "##[error]Process completed with exit code 1.\n";
    let ran = Crcr::new(&["logs", "classify", "-"]).stdin(log).run().expect_code(0);
    assert!(ran.stdout.starts_with("-:1: exit code; the log says no more\n"), "{}", ran.stdout);
}

#[test]
fn all_mistakes_of_a_rules_file_are_printed() {
    let run = Crcr::new(&["logs", "classify", "x.log", "--rules", "rules.toml"]);
    fs::write(
        run.folder().join("rules.toml"),
        "[[rule]]\nname = 'a'\npattern = '('\ncategory = ''\n",
    )
    .unwrap();
    let ran = run.run().expect_code(1);
    assert!(ran.stderr.contains("`rules.toml` has 2 mistakes"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("line 3: the pattern isn't a regular expression"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("line 4: `category` is"), "{}", ran.stderr);
}

#[test]
fn test_names_rules_that_are_shadowed_never_match_or_have_no_literal() {
    let run = Crcr::new(&["logs", "test", "rules.toml", "--format", "json"]);
    let rules = "[[rule]]\nname = 'wide'\ncategory = 'c'\npattern = 'error'\nexamples = ['an error']\n\
        [[rule]]\nname = 'narrow'\ncategory = 'c'\npattern = 'error: x'\nexamples = ['error: x']\n\
        [[rule]]\nname = 'digits'\ncategory = 'c'\npattern = '\\d+$'\n";
    fs::write(run.folder().join("rules.toml"), rules).unwrap();
    let ran = run.run().expect_code(1);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["shadowed"], json!({ "narrow": "wide" }));
    assert_eq!(json["never_matched"], json!(["digits"]));
    assert_eq!(json["without_literal"], json!(["digits"]));
    assert_eq!(json["unexpected"].as_array().unwrap().len(), 1);
}

#[test]
fn starter_rules_are_printed_and_can_be_used_as_a_file() {
    let rules = Crcr::new(&["logs", "rules"]).run().expect_code(0).stdout;
    let ran = Crcr::new(&["logs", "test", "-"]).stdin(rules).run().expect_code(0);
    assert!(!ran.stdout.contains("not as expected"), "{}", ran.stdout);
}

/// Of labelled logs: (right, wrong, without a line).
fn accuracy(folder: &str) -> (u64, u64, u64) {
    let folder = fixtures(folder);
    let args = ["logs", "test", "--format", "json", "--fixtures", folder.to_str().unwrap()];
    let ran = Crcr::new(&args).run();
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let count = |name: &str| json[name].as_u64().unwrap();
    (count("right"), count("wrong"), count("nothing"))
}

#[test]
fn starter_rules_find_the_right_line_of_the_logs_that_they_were_written_with() {
    let (right, wrong, nothing) = accuracy("labelled");
    assert!(right + wrong + nothing >= 102);
    assert!(right >= RIGHT_OF_LABELLED, "{right} right, {wrong} wrong, {nothing} without a line");
}

#[test]
fn starter_rules_find_the_right_line_of_logs_that_were_made_afterwards() {
    let (right, wrong, nothing) = accuracy("held-out");
    assert!(right + wrong + nothing >= 50);
    assert!(right >= RIGHT_OF_HELD_OUT, "{right} right, {wrong} wrong, {nothing} without a line");
}

#[test]
fn starter_rules_find_the_right_line_in_what_well_known_tools_write_last() {
    let (right, wrong, nothing) = accuracy("endings");
    assert!(right + wrong + nothing >= 536);
    assert!(right >= RIGHT_OF_ENDINGS, "{right} right, {wrong} wrong, {nothing} without a line");
}

#[test]
fn log_that_does_not_say_what_failed_gets_no_line_of_its_own() {
    let (right, wrong, nothing) = accuracy("silent");
    assert_eq!((right, wrong, nothing), (44, 0, 0), "the exit code is all that is known");
}

/// Raise these when the rules get better; docs/benchmarks.md has the numbers.
const RIGHT_OF_LABELLED: u64 = 102;
const RIGHT_OF_HELD_OUT: u64 = 50;
const RIGHT_OF_ENDINGS: u64 = 536;

/// 200 MB without a line feed, which the command has read when its memory is looked at.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_length_of_a_line() {
    use std::io::Write as _;

    let mut run = Crcr::new(&["logs", "classify", "-"]);
    let command = run.command().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let piece = vec![b'a'; 1 << 20];
    for _ in 0..200 {
        input.write_all(&piece).unwrap();
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    input.write_all(b"\nfatal error: the end\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(peak < 100_000, "{peak} KiB");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("> fatal error: the end"), "{text}");
}
