//! `crcr allowlist …`: output for maintainers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::checkout::git;
use crate::contracts::text;
use crate::support::Crcr;

fn fixtures(kind: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder().join(kind))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "yml"))
        .collect();
    files.sort();
    files
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/allowlist")
}

/// Snapshots are next to the folders of files, named after the files.
fn assert_reads(kind: &str, file: &Path, text: &str) {
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(folder().join("snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_input_file(file.file_name().unwrap());
    let name = format!("{kind}__{}", file.file_stem().unwrap().to_str().unwrap());
    settings.bind(|| insta::assert_snapshot!(name, text));
}

fn json(file: &Path, flags: &[&str]) -> (i32, Value) {
    let mut args = vec!["allowlist", "validate", "--format", "json"];
    args.extend(flags);
    args.push(file.to_str().unwrap());
    let ran = Crcr::new(&args).run();
    (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report())))
}

#[test]
fn findings_of_every_fixture_match_their_snapshots() {
    let mut files = 0;
    for (kind, code) in [("valid", 0), ("invalid", 1)] {
        for path in fixtures(kind) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let run = Crcr::new(&["allowlist", "validate", name]).dir(path.parent().unwrap());
            let ran = run.run().expect_code(code);
            assert!(ran.stderr.is_empty(), "{}", ran.report());
            assert_reads(kind, &path, &ran.stdout);
            files += 1;
        }
    }
    assert!(files >= 60, "{files} files");
}

#[test]
fn strict_turns_warnings_into_errors() {
    for path in fixtures("valid") {
        let (_, loose) = json(&path, &[]);
        let (code, strict) = json(&path, &["--strict"]);
        let warnings = loose["summary"]["warnings"].as_u64().unwrap();
        assert_eq!(code, i32::from(warnings > 0), "{}", path.display());
        assert_eq!(strict["summary"]["errors"], warnings);
        assert_eq!(strict["summary"]["warnings"], 0);
        let diagnostics = strict["diagnostics"].as_array().unwrap();
        assert!(diagnostics.iter().all(|found| found["severity"] == "error"));
    }
}

#[test]
fn json_output_has_all_documented_fields() {
    let file = folder().join("invalid/duplicate-repository-two-levels.yml");
    let (code, mut document) = json(&file, &[]);
    assert_eq!(code, 1);
    let duplicate = document["diagnostics"].as_array_mut().unwrap().pop().unwrap();
    let expected = serde_json::json!({
        "rule": "duplicate-repository",
        "severity": "error",
        "message": "`org2/repo2` is listed at two levels",
        "line": 7, "column": 5, "end_line": 7, "end_column": 15,
        "related": [{"message": "first listed here", "line": 4, "column": 5}],
        "help": "keep the entry at the level the repository holds now",
    });
    assert_eq!(duplicate, expected);
    assert_eq!(document["version"], 1);
    assert_eq!(document["file"], file.to_str().unwrap());
    let summary = serde_json::json!({"errors": 1, "warnings": 1, "repositories": 1});
    assert_eq!(document["summary"], summary);
}

#[test]
fn findings_about_standard_input_are_at_stdin() {
    let ran = Crcr::new(&["allowlist", "validate", "-"]).stdin("L5: []\n").run().expect_code(1);
    assert!(ran.stdout.contains("--> <stdin>:1:1"), "{}", ran.report());
}

#[test]
fn default_file_is_github_allowlist_yml() {
    let run = Crcr::new(&["allowlist", "validate"]);
    fs::create_dir(run.folder().join(".github")).unwrap();
    fs::write(run.folder().join(".github/allowlist.yml"), "L1: [a/b]\n").unwrap();
    let ran = run.run().expect_code(0);
    assert_eq!(ran.stdout, ".github/allowlist.yml: valid; 1 repository\n");
}

#[test]
fn unreadable_file_is_exit_2_without_stdout() {
    for args in
        [&["no-such.yml"][..], &["."], &[], &["--format", "xml", "-"], &["--upstream", "x", "-"]]
    {
        let ran = Crcr::new(&[&["allowlist", "validate"][..], args].concat()).run().expect_code(2);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{}", ran.report());
    }
}

#[test]
fn huge_or_deeply_nested_allowlist_is_a_syntax_error_in_few_bytes() {
    for bytes in [vec![b'#'; 50_000_000], vec![0; 1_000_000], b"[".repeat(5000)] {
        let ran = Crcr::new(&["allowlist", "validate", "-"]).stdin(bytes).run().expect_code(1);
        assert!(ran.stdout.contains("error[yaml-syntax]"), "{}", ran.report());
        assert!(ran.stdout.len() < 10_000);
    }
}

#[test]
fn output_for_a_file_full_of_mistakes_is_bounded() {
    let text = "L1: [".to_owned() + &"a, ".repeat(100_000) + "]";
    let args = ["allowlist", "validate", "--format", "json", "-"];
    let ran = Crcr::new(&args).stdin(text).run().expect_code(1);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["summary"]["errors"], 100_000);
    assert_eq!(document["summary"]["left_out"], 90_000);
    assert_eq!(document["diagnostics"].as_array().unwrap().len(), 10_000);
}

#[test]
fn github_annotations_are_escaped() {
    let run = Crcr::new(&["allowlist", "validate", "--format", "github", "a,b:c%.yml"]);
    fs::write(run.folder().join("a,b:c%.yml"), "L4:\n  - acme/backend\n  - \"a\\n::error::x\"\n")
        .unwrap();
    let ran = run.run().expect_code(1);
    assert_eq!(
        ran.stdout,
        "::error title=missing-oncall,file=a%2Cb%3Ac%25.yml,line=2,col=5,endColumn=17::`acme/backend` \
         has no oncall at L4%0Ahelp: add at least one login or team: `[login, org/team]`\n\
         ::error title=invalid-repository,file=a%2Cb%3Ac%25.yml,line=3,col=5,endColumn=20::\
         `a\\n::error::x` isn't `owner/repo`: it has no `/`%0Ahelp: write one name per line, \
         without spaces, and check the indentation of the next line\n\
         ::error title=missing-oncall,file=a%2Cb%3Ac%25.yml,line=3,col=5,endColumn=20::\
         `a\\n::error::x` has no oncall at L4%0Ahelp: add at least one login or team: `[login, \
         org/team]`\n\
         ::debug::a,b:c%25.yml: 3 errors; 1 repository\n"
    );
}

#[test]
fn workflow_step_gets_outputs_summary_and_sarif_file() {
    let args = ["allowlist", "validate", "a.yml", "--sarif-file", "a.sarif"];
    let run = Crcr::step(&args, "pull_request", &serde_json::json!({}));
    fs::write(run.folder().join("a.yml"), "L1: ['##[error]x']\n").unwrap();
    let ran = run.run().expect_code(1);
    assert!(!ran.stdout.contains("##["), "{}", ran.report());
    assert_eq!(ran.outputs["valid"], "false");
    assert_eq!((&*ran.outputs["errors"], &*ran.outputs["repositories"]), ("1", "0"));
    assert!(ran.outputs["comment"].starts_with("<!-- crcr: allowlist -->"), "{}", ran.report());
    assert!(ran.summary.contains("invalid-repository"), "{}", ran.report());
    let sarif: Value = serde_json::from_slice(&fs::read(ran.path("a.sarif")).unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["results"][0]["ruleId"], "invalid-repository");
}

/// Code scanning and annotations show a finding only at a path below the repository's top, whatever folder a job works in.
#[test]
fn findings_for_github_are_at_the_files_path_in_its_repository() {
    let top = tempfile::tempdir().unwrap();
    for folder in [".git", ".github", "tools"] {
        fs::create_dir(top.path().join(folder)).unwrap();
    }
    let file = top.path().join(".github/allowlist.yml");
    fs::write(&file, "L1: [acme]\n").unwrap();
    for name in [file.to_str().unwrap(), "../.github/allowlist.yml"] {
        let validate = |format: &str| {
            let args = ["allowlist", "validate", "--format", format, name];
            Crcr::new(&args).dir(&top.path().join("tools")).run().expect_code(1).stdout
        };
        let sarif: Value = serde_json::from_str(&validate("sarif")).unwrap();
        let place = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], ".github/allowlist.yml", "{name}");
        let annotations = validate("github");
        assert!(annotations.contains(",file=.github/allowlist.yml,line=1,"), "{annotations}");
        let text = validate("text");
        assert!(text.contains(&format!("--> {name}:1:")), "{text}");
    }
}

/// A review of a large allowlist that is written anew.
#[test]
fn long_review_is_cut_in_the_comment_and_complete_in_the_summary() {
    let list = |owner: &str| {
        let rows: String = (0..900).map(|n| format!("  - {owner}-{n}/repository\n")).collect();
        format!("L1:\n{rows}")
    };
    let args = ["allowlist", "validate", "new.yml", "--base", "old.yml"];
    let run = Crcr::step(&args, "pull_request", &serde_json::json!({}));
    fs::write(run.folder().join("old.yml"), list("old")).unwrap();
    fs::write(run.folder().join("new.yml"), list("new")).unwrap();
    let ran = run.run().expect_code(0);
    let comment = &ran.outputs["comment"];
    assert!(comment.chars().count() < 65_536 && comment.len() < 128 << 10, "{}", comment.len());
    assert!(comment.starts_with("<!-- crcr: allowlist -->"));
    let (rows, last) = comment.trim_end().rsplit_once('\n').unwrap();
    assert!(rows.trim_end().ends_with('|'), "cut after a whole row: {rows}");
    assert_eq!(last, "… and more, in the summary of the workflow run");
    assert!(ran.summary.contains("new-899/repository"));
}

/// GitHub merges a pull request into the newest base, and its event names the base of the last push.
#[test]
fn review_of_the_templates_leaves_out_what_others_changed_since_the_pull_request_was_pushed() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(".github")).unwrap();
    let git = |args: &[&str]| git(folder.path(), args);
    let commit = |text: &str| {
        fs::write(folder.path().join(".github/allowlist.yml"), text).unwrap();
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--message", "list"]);
    };
    git(&["init", "--quiet", "--initial-branch", "main"]);
    commit("L1:\n  - acme/one\n\n\n\nL2:\n  - acme/two\n");
    git(&["checkout", "--quiet", "-b", "pull"]);
    commit("L1:\n  - acme/one\n  - acme/new\n\n\n\nL2:\n  - acme/two\n");
    git(&["checkout", "--quiet", "main"]);
    commit("L1:\n  - acme/one\n\n\n\nL2:\n  - acme/other\n");
    git(&["merge", "--quiet", "--no-edit", "pull"]);
    for page in ["workflows-templates/allowlist-review.yml", "docs/start/upstream.md"] {
        let page = text(page);
        let (_, base) = page.split_once(" base: ").unwrap();
        let base = base.split_whitespace().next().unwrap();
        let args = ["allowlist", "validate", "--base", base];
        let run = Crcr::step(&args, "pull_request", &serde_json::json!({})).dir(folder.path());
        let ran = run.run().expect_code(0);
        let comment = &ran.outputs["comment"];
        assert!(comment.contains("acme/new") && !comment.contains("acme/two"), "{comment}");
    }
}

/// One tab must not look like the removal of every backend, nor its repair like new ones that skip levels.
#[test]
fn broken_file_is_reviewed_by_what_can_be_read_of_it() {
    let whole = "L1: [acme/one]\nL4:\n  - acme/four: alice\n";
    let broken = "L1: [acme/one]\nL4:\n\t- acme/four: alice\n";
    for (base, head, code) in [(whole, broken, 1), (broken, whole, 0)] {
        let args = ["allowlist", "validate", "new.yml", "--base", "old.yml"];
        let run = Crcr::step(&args, "pull_request", &serde_json::json!({}));
        fs::write(run.folder().join("old.yml"), base).unwrap();
        fs::write(run.folder().join("new.yml"), head).unwrap();
        let ran = run.run().expect_code(code);
        let comment = &ran.outputs["comment"];
        for wrong in ["removal-without-reason", "level-skipped", "| removed |", "No effect"] {
            assert!(!ran.stdout.contains(wrong) && !comment.contains(wrong), "{}", ran.report());
        }
        assert_eq!(comment.contains("the base has errors"), code == 0, "{}", ran.report());
    }
}

#[test]
fn fork_that_promotes_where_no_rule_is_set_is_told_that_nobody_has_to_approve() {
    let told = |event: &str, head: &str, list: &str| {
        let args = ["allowlist", "validate", "new.yml", "--base", "old.yml"];
        let payload = serde_json::json!({ "pull_request": {
            "number": 7, "head": { "repo": { "full_name": head } }, "body": "",
        } });
        let run = Crcr::step(&args, event, &payload);
        fs::write(run.folder().join("old.yml"), "L2: [acme/backend]\n").unwrap();
        fs::write(run.folder().join("new.yml"), list).unwrap();
        run.run().stderr.contains("no approval rule is set for promotions to L3 and L4")
    };
    let promoted = "L4: [acme/backend: alice]\n";
    assert!(told("pull_request", "stranger/upstream", promoted));
    assert!(!told("pull_request", "acme/upstream", promoted));
    assert!(!told("pull_request_target", "stranger/upstream", promoted));
    assert!(!told("pull_request", "stranger/upstream", "L2: [acme/backend, acme/other]\n"));
}

#[test]
fn reason_is_in_the_pull_requests_description_however_long_that_is() {
    let told = |body: String, reason: &str| {
        let args = ["allowlist", "validate", "new.yml", "--base", "old.yml", "--format", "json"];
        let payload = serde_json::json!({ "pull_request": { "number": 7, "body": body } });
        let run = Crcr::step(&args, "pull_request", &payload).env("INPUT_REASON", reason);
        fs::write(run.folder().join("old.yml"), "L2: [acme/backend]\n").unwrap();
        fs::write(run.folder().join("new.yml"), "L1: [acme/backend]\n").unwrap();
        run.run().expect_code(0).stdout.contains("demotion-without-reason")
    };
    let reason = "acme/backend: its machines are gone\n";
    // A variable of a process holds 128 KiB.
    assert!(!told(format!("{}\n{reason}", "ä".repeat(70_000)), ""));
    assert!(told("ä".repeat(70_000), ""));
    assert!(told(reason.to_owned(), "another reason"), "the input wins");
    assert!(!told(String::new(), reason));
}

#[test]
fn explain_covers_every_level_of_the_real_allowlist() {
    let file = folder().join("valid/pytorch.yml");
    let explain = |repo: &str, flags: &[&str]| {
        let mut args = vec!["allowlist", "explain", repo, "--file", file.to_str().unwrap()];
        args.extend(["--format", "json"]);
        args.extend(flags);
        let ran = Crcr::new(&args).run().expect_code(0);
        let document: Value = serde_json::from_str(&ran.stdout).unwrap();
        let answers = ["receives_event", "shown_on_hud", "check_run", "blocks_merge"]
            .map(|key| document[key]["value"].as_bool().unwrap());
        (document["level"].as_str().unwrap().to_owned(), answers)
    };
    let on = |level: &str, answers| (level.to_owned(), answers);
    for repo in [
        "riseproject-dev/pytorch-ci",
        "NVIDIA-dev/pytorch-oot-internal",
        "NVIDIA/pytorch-windows-ci",
        "google-pytorch/torch_tpu",
        "rbln-sw/TORCH-RBLN",
    ] {
        assert_eq!(explain(repo, &[]), on("L1", [true, false, false, false]));
    }
    for repo in [
        "TorchedHat/pytorch-redhat-ci",
        "Ascend/pytorch",
        "torch-spyre/torch-spyre",
        "vllm-project/vllm",
    ] {
        assert_eq!(explain(repo, &[]), on("L2", [true, true, false, false]));
    }
    let (repo, label) = ("pytorch/crcr-test", "ciflow/crcr/crcr-test");
    assert_eq!(explain(repo, &[]), on("L3", [true, true, false, false]));
    assert_eq!(explain(repo, &["--label", label]), on("L3", [true, true, true, false]));
    assert_eq!(
        explain(repo, &["--event", "push", "--label", label]),
        on("L3", [true, true, false, false])
    );
    assert_eq!(explain(repo, &["--event", "nightly"]), on("L3", [false, true, false, false]));
    let args = ["allowlist", "explain", "acme/stranger", "--file", file.to_str().unwrap()];
    let ran = Crcr::new(&args).run().expect_code(1);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("isn't listed"), "{}", ran.report());
}

#[test]
fn explain_and_show_print_readable_text() {
    let file = folder().join("valid/pytorch.yml");
    let mut text = String::new();
    for args in [
        &["show", "pytorch.yml"][..],
        &["explain", "Ascend/pytorch", "--file", "pytorch.yml"],
        &[
            "explain",
            "pytorch/crcr-test",
            "--file",
            "pytorch.yml",
            "--label",
            "ciflow/crcr/crcr-test",
        ],
    ] {
        let args = [&["allowlist"][..], args].concat();
        let ran = Crcr::new(&args).dir(file.parent().unwrap()).run().expect_code(0);
        text.push_str(&format!("$ crcr {}\n{}\n", args.join(" "), ran.stdout));
    }
    assert_reads("people", &file, &text);
}

#[test]
fn fixed_file_validates_and_is_otherwise_unchanged() {
    let (mut fixed, mut whole) = (0, 0);
    for path in [fixtures("valid"), fixtures("invalid")].concat() {
        let Ok(before) = fs::read_to_string(&path) else { continue };
        let (_, document) = json(&path, &[]);
        let diagnostics = document["diagnostics"].as_array().unwrap();
        let fixable = diagnostics.iter().filter(|found| found.get("fix").is_some()).count();
        let decisions = diagnostics
            .iter()
            .filter(|found| found["severity"] == "error" && found.get("fix").is_none())
            .count();
        let run = Crcr::new(&["allowlist", "fix", "a.yml"]);
        fs::write(run.folder().join("a.yml"), &before).unwrap();
        let ran = run.run();
        let after = fs::read_to_string(ran.path("a.yml")).unwrap();
        if fixable == 0 {
            assert_eq!(after, before, "{}", path.display());
            continue;
        }
        fixed += 1;
        assert_ne!(after, before, "{}", path.display());
        let changed = before.lines().zip(after.lines()).filter(|(old, new)| old != new).count();
        assert_eq!(before.lines().count(), after.lines().count(), "{}", path.display());
        assert!(changed <= fixable, "{}: {changed} lines for {fixable} fixes", path.display());
        let comments = |text: &str| {
            text.lines()
                .filter_map(|line| Some(line.split_once(" #")?.1.to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(comments(&before), comments(&after), "{}", path.display());
        // A name that is written right may be there twice now, which only people can decide.
        let checked = Crcr::new(&["allowlist", "validate", "-"]).stdin(after).run();
        assert_eq!(checked.code, ran.code, "{}", checked.report());
        whole += usize::from(ran.code == 0 && decisions == 0);
    }
    assert!(whole >= 3, "{whole} files without errors after their fixes");
    assert!(fixed >= 3, "{fixed} fixable files");
}

/// Where `validate` says what to write, nothing is left to decide.
#[test]
fn fix_writes_each_replacement_that_validate_prints() {
    for (before, after) in [
        ("L1:\n  - acme/one.git # c\n", "L1:\n  - acme/one # c\n"),
        ("L1:\n  - \"https://github.com/acme/one\"\n", "L1:\n  - \"acme/one\"\n"),
        ("L1:\n  - acme/one/\n", "L1:\n  - acme/one\n"),
        ("level 1:\n  - acme/one\n", "L1:\n  - acme/one\n"),
        (
            "L4:\n  - acme/one: {oncall: [dave], events: [pull_requests]}\n",
            "L4:\n  - acme/one: {oncalls: [dave], events: [pull_request]}\n",
        ),
    ] {
        let run = Crcr::new(&["allowlist", "fix", "a.yml"]);
        fs::write(run.folder().join("a.yml"), before).unwrap();
        let ran = run.run().expect_code(0);
        assert_eq!(fs::read_to_string(ran.path("a.yml")).unwrap(), after, "{}", ran.report());
        let checked = Crcr::new(&["allowlist", "validate", "-"]).stdin(after).run();
        checked.expect_code(0);
    }
}

#[test]
fn fix_diff_prints_the_difference_and_writes_nothing() {
    let run = Crcr::new(&["allowlist", "fix", "--diff", "a.yml"]);
    let text = "\u{feff}L4: # c\r\n  - a/b: [@x,  \"@y\"]\r\n";
    fs::write(run.folder().join("a.yml"), text).unwrap();
    let ran = run.run().expect_code(0);
    assert_eq!(
        ran.stdout,
        "--- a.yml\n+++ a.yml\n@@ -2 +2 @@\n-  - a/b: [@x,  \"@y\"]\r\n+  - a/b: [x,  \"y\"]\r\n"
    );
    assert_eq!(fs::read_to_string(ran.path("a.yml")).unwrap(), text);
    let ran = Crcr::new(&["allowlist", "fix", "-"]).stdin(text).run().expect_code(0);
    assert_eq!(ran.stdout, "\u{feff}L4: # c\r\n  - a/b: [x,  \"y\"]\r\n");
}

#[test]
fn diff_reports_effects_and_not_text() {
    let run = Crcr::new(&["allowlist", "diff", "old.yml", "new.yml"]);
    fs::write(run.folder().join("old.yml"), "L1: [a/b, c/d]\nL2: [e/f, g/h]\n").unwrap();
    let new = "# e/f rests\nL4: [{a/b: [x]}]\nL1: [e/f]\nL2: [c/d]\n";
    fs::write(run.folder().join("new.yml"), new).unwrap();
    let ran = run.run().expect_code(1);
    assert_reads("diff", Path::new("effect.yml"), &ran.stdout);
    let run = Crcr::new(&["allowlist", "diff", "old.yml", "new.yml", "--format", "json"]);
    fs::write(run.folder().join("old.yml"), "L1: [a/b, c/d]\n").unwrap();
    fs::write(run.folder().join("new.yml"), "# sorted\nL1:\n  - c/d\n  - a/b\n").unwrap();
    let ran = run.run().expect_code(0);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["changes"], serde_json::json!([]));
}

#[test]
fn diff_shows_who_is_on_call_for_a_new_entry_and_which_events_it_takes() {
    let run = Crcr::new(&["allowlist", "diff", "old.yml", "new.yml"]);
    fs::write(run.folder().join("old.yml"), "L1: [a/b]\n").unwrap();
    let new = "L1: [a/b, c/d: {oncalls: [x, o/t], events: [nightly]}]\n";
    fs::write(run.folder().join("new.yml"), new).unwrap();
    let ran = run.run().expect_code(0);
    assert_eq!(ran.stdout, "added     c/d: L1; oncalls: `x`, `o/t`; events: `nightly`\n\n");
}

#[test]
fn diff_with_a_base_that_has_errors_calls_nothing_new_or_unchanged() {
    for (format, said) in [("text", ""), ("json", "\"changes\": []"), ("markdown", "valid")] {
        let run = Crcr::new(&["allowlist", "diff", "old.yml", "new.yml", "--format", format]);
        let broken = "L1: [acme/one]\nL4:\n\t- acme/four: alice\n";
        fs::write(run.folder().join("old.yml"), broken).unwrap();
        fs::write(run.folder().join("new.yml"), broken.replace('\t', "  ")).unwrap();
        let ran = run.run().expect_code(0);
        assert!(ran.stderr.contains("the base has errors"), "{}", ran.report());
        let told = &ran.stdout;
        assert!(told.contains(said) && (format != "text" || told.is_empty()), "{told}");
        assert!(!told.contains("added") && !told.contains("o effect"), "{told}");
    }
}

/// A pull request can add a file of any name, and the workflow names the base by its hash.
#[test]
fn git_revision_wins_over_a_file_of_the_same_name() {
    let run = Crcr::new(&["allowlist", "diff", "v1", ".github/allowlist.yml"]);
    let git = |args: &[&str]| {
        let identity =
            ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
        let ran = Command::new("git").args(identity).args(args).current_dir(run.folder()).output();
        assert!(ran.unwrap().status.success(), "git {args:?}");
    };
    git(&["init", "-q"]);
    fs::create_dir(run.folder().join(".github")).unwrap();
    fs::write(run.folder().join(".github/allowlist.yml"), "L1: [a/b]\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "list"]);
    git(&["tag", "v1"]);
    fs::write(run.folder().join(".github/allowlist.yml"), "L4: [a/b: [me]]\n").unwrap();
    fs::write(run.folder().join("v1"), "L4: [a/b: [me]]\n").unwrap();
    let ran = run.run();
    assert!(ran.stdout.contains("promoted  a/b: L1 → L4"), "{}", ran.report());
}

/// In a job's container there may be no git, and no repository.
#[test]
fn file_with_the_name_of_a_commit_is_never_taken_for_it() {
    let hash = "0123456789abcdef0123456789abcdef01234567";
    let run = Crcr::new(&["allowlist", "diff", hash, "new.yml"]);
    for name in [hash, "new.yml"] {
        fs::write(run.folder().join(name), "L4: [a/b: [me]]\n").unwrap();
    }
    let ran = run.run().expect_code(2);
    assert!(ran.stderr.contains("neither a file nor a git revision"), "{}", ran.report());
}

#[test]
fn diff_compares_git_revisions() {
    let run = Crcr::new(&["allowlist", "diff", "HEAD~1", "HEAD"]);
    let git = |args: &[&str]| {
        let identity =
            ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
        let ran = Command::new("git").args(identity).args(args).current_dir(run.folder()).output();
        assert!(ran.unwrap().status.success(), "git {args:?}");
    };
    git(&["init", "-q"]);
    git(&["commit", "-q", "--allow-empty", "-m", "nothing yet"]);
    fs::create_dir(run.folder().join(".github")).unwrap();
    fs::write(run.folder().join(".github/allowlist.yml"), "L1: [a/b]\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "list"]);
    // The workspace belongs to the runner's user, and in a container the job's is root.
    let run = run.env("GITHUB_ACTIONS", "true").env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1");
    let ran = run.run().expect_code(0);
    assert_eq!(ran.stdout, "added     a/b: L1\n\n");
    for odd in ["no-such-branch", "--help", "--upload-pack=x"] {
        let ran = Crcr::new(&["allowlist", "diff", "--", odd, odd]).run().expect_code(2);
        assert!(ran.stdout.is_empty(), "{}", ran.report());
    }
}

#[test]
fn revision_is_compared_by_the_file_of_the_same_path_from_whatever_folder() {
    let folder = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| git(folder.path(), args);
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let list = "L2: [acme/one]\nL4: [acme/two: alice]\n";
    git(&["init", "--quiet", "--initial-branch", "main"]);
    write(".github/allowlist.yml", "L1: [acme/other]\n");
    write("config/list.yml", list);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "list"]);
    write("config/list.yml", &format!("# why\n{list}"));
    write("config/new.yml", list);
    let validate = |file: &str, below: &str, base: &str| {
        let args = ["allowlist", "validate", file, "--base", base];
        let dir = folder.path().join(below);
        let run = Crcr::step(&args, "pull_request", &serde_json::json!({})).dir(&dir);
        run.run()
    };
    for (file, below) in
        [("config/list.yml", ""), ("list.yml", "config"), ("../config/list.yml", ".github")]
    {
        let ran = validate(file, below, "HEAD").expect_code(0);
        assert!(ran.outputs["comment"].contains("**No effect**"), "{}", ran.report());
    }
    let ran = validate("config/new.yml", "", "HEAD");
    let notice = "`HEAD:config/new.yml` doesn't exist, so every entry counts as added";
    assert!(ran.stderr.contains(notice), "{}", ran.report());
    assert!(ran.stderr.contains("--base HEAD:.github/allowlist.yml"), "{}", ran.report());
    let ran = validate("config/list.yml", "", "HEAD:.github/allowlist.yml");
    assert!(ran.outputs["comment"].contains("acme/other"), "{}", ran.report());
}

#[test]
fn printed_schema_is_a_json_schema_of_draft_7() {
    let ran = Crcr::new(&["allowlist", "schema"]).run().expect_code(0);
    let schema: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
}

/// What a JSON Schema can see: shapes and names. Of two entries it only sees that they are the same.
const OF_SHAPE: [&str; 7] = [
    "wrong-shape",
    "unknown-level",
    "unknown-field",
    "invalid-repository",
    "invalid-device",
    "invalid-oncall",
    "invalid-event",
];

#[test]
#[ignore = "needs check-jsonschema from tests/peers/requirements.txt"]
fn schema_accepts_valid_files_and_rejects_wrong_shapes() {
    let scratch = tempfile::tempdir().unwrap();
    let schema = scratch.path().join("schema.json");
    fs::write(&schema, Crcr::new(&["allowlist", "schema"]).run().stdout).unwrap();
    let (valid, invalid) = (fixtures("valid"), fixtures("invalid"));
    let mut check = Command::new("check-jsonschema");
    check.args(["--output-format", "json", "--schemafile"]).arg(schema);
    let ran = check.args([&*valid, &*invalid].concat()).output().unwrap();
    let told: Value = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stderr)));
    let named = |list: &str| told[list].as_array().unwrap().iter();
    // A file that isn't YAML to the checker is refused, too.
    let refused: Vec<&str> = named("errors")
        .chain(named("parse_errors"))
        .map(|one| one["filename"].as_str().unwrap())
        .collect();
    let refuses = |path: &Path| refused.contains(&path.to_str().unwrap());
    for path in &valid {
        assert!(!refuses(path), "{}: {told:#}", path.display());
    }
    let mut wrong = 0;
    for path in &invalid {
        let (_, document) = json(path, &[]);
        let found = document["diagnostics"].as_array().unwrap().iter();
        let errors = found.filter(|one| one["severity"] == "error");
        let rules: Vec<_> = errors.map(|one| one["rule"].as_str().unwrap()).collect();
        if rules.iter().any(|rule| OF_SHAPE.contains(rule)) {
            assert!(refuses(path), "{}: {rules:?}", path.display());
            wrong += 1;
        } else if rules.iter().all(|rule| *rule == "upstream-listed") {
            assert!(!refuses(path), "{}: {rules:?}", path.display());
        }
    }
    assert!(wrong >= 20, "{wrong} files of a wrong shape");
}

#[test]
#[ignore = "needs check-jsonschema from tests/peers/requirements.txt"]
fn sarif_output_is_valid_by_the_published_schema() {
    let logs = tempfile::tempdir().unwrap();
    let mut check = Command::new("check-jsonschema");
    // The published schema has a pattern that isn't a Unicode regular expression.
    check.args(["--regex-variant", "nonunicode", "--schemafile"]);
    check.arg(folder().join("../sarif-schema-2.1.0.json"));
    for (n, path) in [fixtures("valid"), fixtures("invalid")].concat().iter().enumerate() {
        let args = ["allowlist", "validate", "--format", "sarif", path.to_str().unwrap()];
        let log = logs.path().join(format!("{n}.sarif"));
        fs::write(&log, Crcr::new(&args).run().stdout).unwrap();
        check.arg(log);
    }
    let ran = check.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}
