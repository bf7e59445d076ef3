//! `docs/errors.md` has a row for each error code of the sources, and for no other.

use std::collections::BTreeSet;

use crcr_domain::diagnostic::Rule;
use regex::Regex;

use crate::contracts::{files, text};

/// A section of the page.
fn section(title: &str) -> String {
    let page = text("docs/errors.md");
    let (_, rest) = page.split_once(title).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// The codes in the first column of its tables.
fn listed(section: &str) -> BTreeSet<String> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// What the first group of `pattern` captures in a source, or in all below a folder, tests left out.
fn captured(path: &str, pattern: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).unwrap();
    let is_source = |name: &str| name.ends_with(".rs") && !name.ends_with("tests.rs");
    let mut found = BTreeSet::new();
    let sources = if is_source(path) { vec![path.to_owned()] } else { files(path, is_source) };
    for file in sources {
        let source = text(&file);
        let source = source.split("\n#[cfg(test)]\nmod ").next().unwrap();
        found.extend(pattern.captures_iter(source).map(|captures| captures[1].to_owned()));
    }
    found
}

/// The codes with which a command ends: those that the user can fix, and the others.
fn codes_of_commands() -> [BTreeSet<String>; 2] {
    let commands = "cli/src/commands";
    let all = |sources: &[(&str, &str)]| -> BTreeSet<String> {
        sources.iter().flat_map(|(path, pattern)| captured(path, pattern)).collect()
    };
    let mut fixable = all(&[
        ("cli/src", r#"Failure::user\(\s*"([^"]+)""#),
        // What a relay answers.
        ("cli/src/commands/report", r#"\b(?:stop|again)\(\s*"([^"]+)""#),
        // Those that are handed on by a function.
        (commands, r#"\(\s*"(s3-[a-z-]+)",\s*"x-amz"#),
    ]);
    let mut unexpected = all(&[
        ("cli/src", r#"Failure::unexpected\(\s*"([^"]+)""#),
        (commands, r#"\bseconds\(env, [\w:]+, "([^"]+)""#),
    ]);
    // What `configure-oidc-fallback` gives as a reason.
    let decide = text("cli/src/commands/oidc/decide.rs");
    let (_, reasons) = decide.split_once("impl AuthReason {").unwrap();
    let named = Regex::new(r#"Self::(\w+) => "([^"]+)""#).unwrap();
    for reason in named.captures_iter(reasons.split("\n}").next().unwrap()) {
        let ends = |kind: &str| {
            let pattern = format!(r"Failure::{kind}\(\s*AuthReason::{}\.(word)", &reason[1]);
            !captured(commands, &pattern).is_empty()
        };
        if ends("unexpected") {
            unexpected.insert(reason[2].to_owned());
        }
        if ends("user") || !unexpected.contains(&reason[2]) {
            fixable.insert(reason[2].to_owned());
        }
    }
    [fixable, unexpected]
}

#[test]
fn page_of_errors_has_every_code_of_a_command() {
    let codes: BTreeSet<_> = codes_of_commands().into_iter().flatten().collect();
    let page = text("docs/errors.md");
    let (of_commands, _) = page.split_once("\n## Findings in files").unwrap();
    assert_eq!(listed(of_commands), codes);
}

#[test]
fn code_has_one_exit_code_and_the_page_lists_those_with_exit_code_2() {
    let [fixable, unexpected] = codes_of_commands();
    let both: Vec<_> = fixable.intersection(&unexpected).collect();
    assert!(both.is_empty(), "{both:?} have two exit codes");
    let section = section("\n## Exit codes");
    let (_, list) = section.split_once(':').unwrap();
    let listed: BTreeSet<_> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(listed, unexpected);
}

#[test]
fn page_of_errors_has_every_finding_and_its_severity() {
    let row = |rule: &Rule| {
        format!("| `{}` | {} | {} |", rule.code(), rule.severity().as_str(), rule.summary())
    };
    let expected: Vec<_> = Rule::ALL.iter().map(row).collect();
    let section = section("\n## Findings in files");
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows, expected);
}

#[test]
fn page_of_errors_has_every_check_of_the_doctor() {
    let doctor = "cli/src/commands/doctor";
    let sources = [
        (doctor, r#"CheckResult::\w+\(\s*"([^"]+)""#),
        (doctor, r#"const (?:\w*CHECK|FORMS|INSTALLED|PERMISSIONS): &str = "([^"]+)""#),
        ("cli/src/commands/stranger_code/exposure.rs", r#"[A-Z]\w+ "((?:[a-z]+-)+[a-z]+)","#),
    ];
    let checks = sources.iter().flat_map(|(path, pattern)| captured(path, pattern)).collect();
    assert_eq!(listed(&section("\n## Checks of the doctor")), checks);
}
