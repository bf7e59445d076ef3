//! `crcr downstream …`: a backend's maintainer checks `.github/crcr.yml` before it is merged.

use std::fs;

use serde_json::Value;

use crate::support::Crcr;

const BROKEN: &str =
    "dispatch:\n  quiet-minuts: 10\n  drafts: no\nprobes: {reruns-per-day: many}\n";

#[test]
fn every_mistake_is_printed_with_its_line_in_every_format_and_the_exit_code_is_1() {
    let validate = |format: &str| {
        let args = ["downstream", "validate", "--format", format, "-"];
        Crcr::new(&args).stdin(BROKEN.to_owned()).run().expect_code(1).stdout
    };
    let json: Value = serde_json::from_str(&validate("json")).unwrap();
    let found: Vec<_> = json["diagnostics"].as_array().unwrap().iter().collect();
    let told: Vec<_> =
        found.iter().map(|f| (f["line"].as_u64().unwrap(), f["rule"].as_str().unwrap())).collect();
    assert_eq!(told, [(2, "unknown-field"), (3, "invalid-drafts"), (4, "invalid-number")]);
    let sarif: Value = serde_json::from_str(&validate("sarif")).unwrap();
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 3);
    let text = validate("text");
    assert!(text.contains("help: did you mean `quiet-minutes`?"), "{text}");
    let github = validate("github");
    assert_eq!(github.lines().filter(|line| line.starts_with("::error ")).count(), 3, "{github}");
}

#[test]
fn the_file_of_the_working_folder_is_checked_and_a_missing_one_says_what_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let validate = || Crcr::new(&["downstream", "validate"]).dir(folder.path()).run();
    let ran = validate().expect_code(2);
    assert!(ran.stderr.contains("error[downstream-file-unreadable]"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`crcr init downstream` writes one"), "{}", ran.stderr);
    fs::create_dir(folder.path().join(".github")).unwrap();
    let file = folder.path().join(".github/crcr.yml");
    fs::write(&file, include_str!("../../cli/src/commands/init/crcr.yml")).unwrap();
    let ran = validate().expect_code(0);
    assert!(ran.stdout.contains(".github/crcr.yml: valid; 2 settings"), "{}", ran.stdout);
}

#[test]
fn example_on_the_page_about_probes_is_a_valid_file() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/probes.md");
    let page = fs::read_to_string(page).unwrap();
    let example = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let ran = Crcr::new(&["downstream", "validate", "-"]).stdin(example.to_owned()).run();
    assert!(ran.expect_code(0).stdout.contains("valid; 7 settings"));
}
