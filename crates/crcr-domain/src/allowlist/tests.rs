//! The reader, from outside: texts and the findings that they get.

use proptest::prelude::*;

use super::*;
use crate::diagnostic::{Diagnostic, Rule, Severity};

fn parse(text: &str) -> ParseOutcome {
    Allowlist::parse(text.as_bytes(), &RepoName::new("pytorch/pytorch").unwrap())
}

/// `rule line:column-line:column` of a finding; warnings with a `?`, related places after `<`.
fn line(found: &Diagnostic) -> String {
    let place = |span: &crate::diagnostic::SourceSpan| {
        let (start, end) = (span.start, span.end);
        if start.line == end.line {
            format!("{}:{}-{}", start.line, start.column, end.column)
        } else {
            format!("{}:{}-{}:{}", start.line, start.column, end.line, end.column)
        }
    };
    let mark = if found.severity == Severity::Warning { "?" } else { "" };
    let mut text = format!("{}{mark} {}", found.rule.code(), place(&found.span));
    for related in &found.related {
        text.push_str(" <");
        text.push_str(&place(&related.span));
    }
    text
}

fn findings(text: &str) -> Vec<String> {
    parse(text).findings.kept().iter().map(line).collect()
}

/// The files that `tests/it/allowlist.rs` shows as a maintainer sees them: what is said, and what each fix would write.
#[test]
fn every_invalid_file_gets_words_and_fixes_that_a_maintainer_can_follow() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/allowlist/invalid");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut told = String::new();
    for file in files {
        let upstream = RepoName::new("pytorch/pytorch").unwrap();
        let outcome = Allowlist::parse(&std::fs::read(&file).unwrap(), &upstream);
        told += &format!("{}\n", file.file_name().unwrap().display());
        for found in outcome.findings.kept() {
            let help = found.help.as_deref().unwrap_or("-");
            told += &format!("  {}: {} [{}] {help}\n", line(found), found.message, found.label);
            for related in &found.related {
                told += &format!("    also: {} [{}]\n", related.message, related.label);
            }
            if let Some(fix) = &found.fix {
                let edits = fix.edits.iter().map(|edit| {
                    let before = &outcome.source.text()[edit.span.bytes.clone()];
                    format!("{before:?} to {:?}", edit.text)
                });
                told += &format!(
                    "    fix: {}: {}\n",
                    fix.description,
                    edits.collect::<Vec<_>>().join(", ")
                );
            }
        }
    }
    insta::assert_snapshot!(told);
}

/// A fix writes what the help says, so nothing may be made of a name that isn't one on GitHub.
#[test]
fn names_that_a_fix_could_get_wrong_get_words_only() {
    for (text, help) in [
        ("L1: ['https://gitlab.com/acme/one']", "write the name as in the address"),
        ("L1: ['https://api.github.com/repos/acme/one']", "write the name as in the address"),
        ("L1: ['https://github.com/orgs/acme/teams']", "write the name as in the address"),
        ("L1: ['https://g\u{456}thub.com/acme/one']", "a character in it is invisible"),
        ("L1: [acme\u{ff0f}one]", "a character in it is invisible"),
        ("L\u{ff11}: [acme/one]", "a character in it is invisible"),
        ("L1: ['acme/*']", "aren't supported"),
    ] {
        let findings = parse(text).findings;
        let found = &findings.kept()[0];
        assert!(found.help.as_deref().unwrap().contains(help), "{text}: {:?}", found.help);
        assert_eq!(found.fix, None, "{text}");
    }
}

/// Typos whose line a maintainer looks at without seeing them.
#[test]
fn line_without_a_key_says_what_is_wrong_with_it() {
    for (text, place, message) in [
        ("L1:\n  - a/b\n  c/d\nL2:\n  - e/f\n", (3, 3), "this line has no `:`"),
        ("L1:\n<<<<<<< HEAD\n  - a/b\n", (2, 1), "a merge conflict isn't resolved"),
        (
            "L1:\n  - a/b\n\u{a0} - c/d\n",
            (3, 1),
            "U+00A0 looks like a space, and isn't one in YAML",
        ),
        (
            "L1:\n  - a/b\nL2\u{3000}c/d\nL4:\n",
            (3, 3),
            "U+3000 looks like a space, and isn't one in YAML",
        ),
    ] {
        let outcome = parse(text);
        let [found] = outcome.findings.kept() else { panic!("{:?}", outcome.findings) };
        let start = found.span.start;
        assert_eq!(((start.line, start.column), &*found.message), (place, message), "{text}");
    }
}

#[test]
fn events_that_an_entry_gets_follow_its_level_and_its_list() {
    let entries = |text: &str| parse(text).policy;
    for (events, at_l4, at_l2) in [
        ("", (true, true, false), (true, false, false)),
        ("[pull_request]", (true, true, false), (true, false, false)),
        ("[nightly]", (false, false, true), (false, false, true)),
        ("[merge_group]", (false, true, false), (false, true, false)),
        ("[nightly, merge_group]", (false, true, false), (false, true, false)),
        ("[pull_request, merge_group]", (true, true, false), (true, true, false)),
    ] {
        for (level, expected) in [("L4", at_l4), ("L2", at_l2)] {
            let events =
                if events.is_empty() { String::new() } else { format!(", events: {events}") };
            let policy = entries(&format!("{level}: [{{a/b: {{oncalls: [x]{events}}}}}]"));
            assert_eq!((policy.len(), policy.is_empty()), (1, false));
            let entry = policy.iter().next().unwrap();
            let found =
                (entry.is_dispatched_to(), entry.takes_merge_groups(), entry.is_nightly_only());
            assert_eq!(found, expected, "{level} {events}");
            let takes = [EventName::Push, EventName::MergeGroup].map(|event| entry.takes(&event));
            assert_eq!(takes, [expected.0, expected.1], "{level} {events}");
        }
    }
    assert!(entries("").is_empty());
}

#[test]
fn allowlists_differ_if_any_entry_does() {
    let base = parse("L1: [a/b]\nL2: [c/d]").policy;
    assert_eq!(base, parse("L2: [C/d]\nL1: [A/b]").policy);
    for other in ["L1: [a/b]", "L1: [a/b, c/d]", "L1: [a/b]\nL2: [c/e]", ""] {
        assert_ne!(base, parse(other).policy, "{other}");
        assert_ne!(parse(other).policy, base, "{other}");
    }
    let names: Vec<_> = (&base).into_iter().map(|entry| entry.repo.as_str()).collect();
    assert_eq!(names, ["a/b", "c/d"]);
}

/// Every code of the reader, and where it points.
#[test]
fn findings_point_at_the_offending_token() {
    let mut seen = std::collections::BTreeSet::new();
    for (text, expected) in TABLE {
        assert_eq!(findings(text), *expected, "{text}");
        for found in parse(text).findings.kept() {
            seen.insert(found.rule);
        }
    }
    let of_the_reader = Rule::ALL.iter().take_while(|rule| **rule != Rule::RepositoryNotFound);
    let missing: Vec<_> = of_the_reader.filter(|rule| !seen.contains(*rule)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

#[rustfmt::skip]
const TABLE: &[(&str, &[&str])] = &[
    // Good files.
    ("L1:\n  - a/b\n", &[]),
    ("\u{feff}L1:\r\n  - a/b\r\n", &[]),
    ("L1: [a/b, c/d]\nL4: [{e/f: x}]", &[]),
    ("---\nL4:\n  - a/b: \"x, org/team\"\n...\n", &[]),
    ("L3:\n  xpu: {a/b: {oncalls: [x], events: [nightly]}}\n", &[]),
    ("L3:\n  \"910\":\n    a/b: [\"1\"]\n", &[]),
    // yaml-syntax
    ("L4:\n  - a/b: [@oncall1,@oncall2]\n", &["yaml-syntax 2:11-12", "yaml-syntax 2:20-21"]),
    ("L3:\n  d:\nL4:\n  - a/b: @x\n", &["empty-device? 2:3-4", "yaml-syntax 4:10-11"]),
    ("L4:\n  - a/b: @x, @y\n", &["yaml-syntax 2:10-11", "oncall-at-sign? 2:14-16"]),
    ("L4:\n  - @a/b: [@]\n", &["yaml-syntax 2:5-6", "yaml-syntax 2:12-13", "invalid-oncall 2:13-13"]),
    ("L1:\n\t- a/b\n", &["yaml-syntax 2:1-2"]),
    ("L1:\n  \t- a/b\n", &["yaml-syntax 2:3-4"]),
    ("L1:\n  -\ta/b\t\n\t# comment\n\t\n", &["yaml-syntax 2:4-5"]),
    ("L1:\n  - a/b\n  \t- c/d\n", &["yaml-syntax 3:3-4"]),
    ("L4: [a/b: [\"@x\ty\",\t'q']] #\tcomment", &["invalid-oncall 1:13-17", "yaml-syntax 1:19-20"]),
    ("L1:\n  - a/b\0\n", &["yaml-syntax 2:8-9"]),
    ("# \u{7} in a comment\nL1: [a/b]", &["yaml-syntax 1:3-4"]),
    ("L1: [a/b\n", &["yaml-syntax 1:5-6"]),
    ("L1: [a/b\nL2: [c/d]\n", &["yaml-syntax 2:3-4 <1:5-6"]),
    ("L1: 'a\n", &["yaml-syntax 1:5-6"]),
    ("L1: [`a/b]", &["yaml-syntax 1:6-7"]),
    ("L1: [%a/b]", &["yaml-syntax 1:6-7"]),
    ("L4:\n  - a/b: # isn't old\n      'one\n- c/d\n", &["yaml-syntax 3:7-8"]),
    ("L1: [[[[[[[[[[[[[[[[[a/b]]]]]]]]]]]]]]]]]", &["yaml-syntax 1:21-22"]),
    ("L1:\n  - nobody\n  - c/d: x: y\n", &["invalid-repository 2:5-11", "unused-oncall? 3:10-11", "yaml-syntax 3:11-12"]),
    // wrong-shape
    ("- a/b\n", &["wrong-shape 1:1-6"]),
    ("L1\n", &["wrong-shape 1:1-3"]),
    ("[]", &["wrong-shape 1:1-3"]),
    ("L1: [a/b]\n---\nL2: [c/d]\n", &["wrong-shape 2:1-4"]),
    ("L1: a/b\n", &["wrong-shape 1:5-8"]),
    ("L1:\n  a/b: x # c\n  c/d: y\n", &["wrong-shape 2:3-9"]),
    ("L2: {a/b: x}\n", &["wrong-shape 1:5-13"]),
    ("L3: [a/b]\n", &["wrong-shape 1:5-10"]),
    ("L3:\n  xpu:\n    - a/b\n", &["wrong-shape 3:5-10"]),
    ("L3:\n  xpu: a/b\n", &["wrong-shape 2:8-11"]),
    ("L1: [a/b]\n---\nL2: &x [c/d]\n", &["wrong-shape 2:1-4", "alias 3:5-7"]),
    ("L1:\n  - {a/b: , c/d: }\n", &["wrong-shape 2:5-9 <2:13-16"]),
    ("L1:\n  - a/b: {}\n    c/d: {}\n    e/f: {}\n", &["wrong-shape 2:5-8 <3:5-8"]),
    ("L4:\n  - a/b: p\n    c/d: q\n", &["wrong-shape 2:5-8 <3:5-8"]),
    ("L4:\n  - a/b:\n    oncalls: [x]\n", &["missing-oncall 2:5-8", "wrong-shape 2:5-8 <3:5-12"]),
    ("L1:\n  - [a/b]\n", &["wrong-shape 2:5-10"]),
    ("L1:\n  - {}\n", &["wrong-shape 2:5-7"]),
    ("L4:\n  - a/b: [[x]]\n", &["wrong-shape 2:11-14"]),
    ("L4:\n  - a/b: [{x: y}]\n", &["wrong-shape 2:11-17"]),
    ("L4:\n  - a/b: {oncalls: {x: y}}\n", &["wrong-shape 2:20-26"]),
    ("L4:\n  - a/b: {oncalls: x, events: nightly}\n", &["wrong-shape 2:31-38"]),
    ("L4:\n  - a/b: {oncalls: x, events: }\n", &["wrong-shape 2:23-29"]),
    ("L4:\n  - a/b: {oncalls: x, events: [[nightly], pull_request]}\n", &["wrong-shape 2:32-41"]),
    ("? [L1]\n: [a/b]\n", &["wrong-shape 1:3-7"]),
    // alias
    ("L1: &x\n  - a/b\nL2: *x\n", &["alias 1:5-7", "alias 3:5-7"]),
    ("L1:\n  - !!str a/b\n", &["alias 2:5-10"]),
    ("L1:\n  - *nobody\n", &["alias 2:5-12"]),
    ("L3:\n  xpu: &d\n    a/b: [x]\n  npu:\n    <<: *d\n    c/d: [q]\n", &["alias 2:8-10", "alias 5:5-7"]),
    ("a: &a [x]\n", &["unknown-level 1:1-2", "alias 1:4-6"]),
    ("L2: &x\n  - a/b\n*x : [c/d]\n", &["alias 1:5-7", "alias 3:1-3"]),
    ("L3:\n  npu:\n    <<: {a/b: [x]}\n    c/d: [q]\n", &["alias 3:5-7"]),
    // not-a-string
    ("L1:\n  - 123\n  - true\n  -\n  - ~\n  - 2026-09-01\n", &[
        "not-a-string 2:5-8", "not-a-string 3:5-9", "not-a-string 4:3-4", "not-a-string 5:5-6",
        "not-a-string 6:5-15",
    ]),
    ("L3:\n  910: {a/b: [x]}\n  007: {c/d: [x]}\n  yes: {e/f: [x]}\n", &[
        "not-a-string 2:3-6", "not-a-string 3:3-6", "not-a-string 4:3-6",
    ]),
    ("L4:\n  - a/b: [x, 123, null]\n", &["not-a-string 2:14-17", "not-a-string 2:19-23"]),
    ("L4:\n  - a/b: 123\n", &["not-a-string 2:10-13"]),
    ("L4:\n  - a/b: [x]\n  - no: [q]\n", &["not-a-string 3:5-7"]),
    // duplicate-key
    ("L1: [a/b]\nL1: [c/d]\n", &["duplicate-key 2:1-3 <1:1-3"]),
    ("L3:\n  x: {a/b: [p]}\n  x: {c/d: [q]}\n", &["duplicate-key 3:3-4 <2:3-4"]),
    ("L3:\n  x:\n    a/b: [p]\n    a/b: [q]\n", &["duplicate-key 4:5-8 <3:5-8"]),
    ("L4: [{a/b: {oncalls: p, oncalls: q}}]", &["duplicate-key 1:25-32 <1:13-20"]),
    // unknown-level
    ("l2: [a/b]\nL5: [c/d]\nLevel 1: [e/f]\n", &[
        "unknown-level 1:1-3", "unknown-level 2:1-3", "unknown-level 3:1-8",
    ]),
    // invalid-repository
    ("L1:\n  - pytorch\n  - a/b/c\n  - a/b/\n  - a b/c\n  - a/b#note\n  - а/b\n  - \"\"\n", &[
        "invalid-repository 2:5-12", "invalid-repository 3:5-10", "invalid-repository 4:5-9",
        "invalid-repository 5:5-10", "invalid-repository 6:5-13", "invalid-repository 7:5-8",
        "invalid-repository 8:5-7",
    ]),
    ("L1:\n  - https://github.com/a/b\n  - a/b.git\n  - -a/b\n  - a/b\n    - c/d\n", &[
        "invalid-repository 2:5-27", "invalid-repository 3:5-12", "invalid-repository 4:5-9",
        "invalid-repository 5:5-8",
    ]),
    ("L4:\n  - oncalls: [x]\n", &["invalid-repository 2:5-12"]),
    // duplicate-repository
    ("L2:\n  - org2/repo2: \nL3:\n  d:\n    Org2/repo2: [carol]\n", &["duplicate-repository 5:5-15 <2:5-15"]),
    ("L1: [a/b, A/B, a/b]", &["duplicate-repository 1:11-14 <1:6-9", "duplicate-repository 1:16-19 <1:6-9"]),
    ("L3: {x: {a/b: [p]}, z: {a/b: [p]}}", &["duplicate-repository 1:25-28 <1:10-13"]),
    // upstream-listed
    ("L1:\n  - PyTorch/pytorch\n", &["upstream-listed 2:5-20"]),
    // invalid-device, duplicate-device
    ("L3:\n  a b: {a/b: [x]}\n  \"\": {c/d: [x]}\n  ddddddddddddddddddddddddddddddddddddddd: {e/f: [x]}\n", &[
        "invalid-device 2:3-6", "invalid-device 3:3-5", "invalid-device 4:3-42",
    ]),
    ("L3:\n  npu: {a/b: [x]}\n  NPU: {c/d: [x]}\n", &["duplicate-device 3:3-6 <2:3-6"]),
    // oncalls
    ("L4:\n  - a/b: [x y, a/b/c, \"\", '-x']\n", &[
        "invalid-oncall 2:11-14", "invalid-oncall 2:16-21", "invalid-oncall 2:23-25", "invalid-oncall 2:28-30",
    ]),
    ("L4:\n  - a/b: \"x, é!, y\"\n", &["invalid-oncall 2:14-16"]),
    ("L4:\n  - a/b\n  - c/d: []\n  - e/f: \" , \"\n  - g/h:\nL3:\n  d:\n    i/j:\n", &[
        "missing-oncall 2:5-8", "missing-oncall 3:5-8", "missing-oncall 4:5-8", "missing-oncall 5:5-8",
        "missing-oncall? 8:5-8",
    ]),
    ("L4:\n  - a/b: [\"@x\", '@org/team']\n", &["oncall-at-sign? 2:12-14", "oncall-at-sign? 2:18-27"]),
    ("L4:\n  - a/b: x, X, y, x\n", &["duplicate-oncall? 2:13-14 <2:10-11", "duplicate-oncall? 2:19-20 <2:10-11"]),
    ("L1:\n  - a/b: [x]\nL2:\n  - c/d: x, y\n", &["unused-oncall? 2:10-12", "unused-oncall? 4:10-14"]),
    // fields
    ("L4:\n  - a/b:\n      oncall: [x]\n      oncalls: [x]\n      events: [push, nigthly, 1]\n", &[
        "unknown-field 3:7-13", "invalid-event 5:16-20", "invalid-event 5:22-29", "not-a-string 5:31-32",
    ]),
    ("L4: [{a/b: {oncalls: x, events: []}}]", &["invalid-event 1:33-35"]),
    // empty
    ("", &["empty-file? 1:1-1"]),
    ("# nobody yet\n", &["empty-file? 1:1-1"]),
    ("---\n", &["empty-file? 1:1-1"]),
    ("{}\n", &["empty-file? 1:1-1"]),
    ("L1:\nL2: []\nL3: {}\nL4: ~\n", &["empty-level? 1:1-3", "empty-level? 2:1-3", "empty-level? 3:1-3", "empty-level? 4:1-3"]),
    ("L3: []\n", &["empty-level? 1:1-3"]),
    ("L3:\n  xpu:\n  npu: {}\n", &["empty-device? 2:3-6", "empty-device? 3:3-6"]),
];

#[test]
fn columns_count_characters_of_any_width() {
    assert_eq!(
        findings("L4:\n  - a/b: [\"漢字\", \"@é\", x, X]\n"),
        ["invalid-oncall 2:12-14", "invalid-oncall 2:18-20", "duplicate-oncall? 2:26-27 <2:23-24",]
    );
    assert_eq!(findings("\u{feff}L5: []\r\n"), ["unknown-level 1:1-3"]);
}

#[test]
fn invalid_bytes_are_reported_at_their_position() {
    let rule = |bytes: &[u8]| {
        let outcome = Allowlist::parse(bytes, &RepoName::new("o/r").unwrap());
        outcome.findings.kept().iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(rule(b"L1:\n  - a/\xff\n"), ["yaml-syntax 2:7-8"]);
    assert_eq!(rule(b"\xff\xfeL\x001\x00"), ["yaml-syntax 1:1-2"]);
    assert_eq!(rule(b"\0\xff"), ["yaml-syntax 1:1-2"]);
    assert_eq!(rule(&vec![b' '; MAX_BYTES + 1]), ["yaml-syntax 1:1-1"]);
    assert_eq!(rule(&vec![b' '; MAX_BYTES]), ["empty-file? 1:1-1"]);
}

/// PyYAML reads an entry behind some of these characters, and a reviewer doesn't see it.
#[test]
fn comment_cannot_hide_an_entry_behind_a_line_break_of_some_parsers_or_reversed_text() {
    for (hidden, told) in [
        ('\u{85}', "U+0085 ends a line for some YAML parsers, and not for others"),
        ('\u{2028}', "U+2028 ends a line for some YAML parsers, and not for others"),
        ('\u{2029}', "U+2029 ends a line for some YAML parsers, and not for others"),
        ('\u{202e}', "U+202E has text shown in another order than programs read it"),
        ('\u{2066}', "U+2066 has text shown in another order than programs read it"),
    ] {
        let text = format!("L1:\n  - acme/one # new{hidden}  - evil/two\n");
        assert_eq!(findings(&text), ["yaml-syntax 2:19-20"], "{told}");
        assert_eq!(parse(&text).findings.kept()[0].message, told);
    }
    let text = "L1:\n  - acme/one # new\r  - evil/two\n";
    let told = "U+000D without a line feed ends a line for YAML, and many editors don't show that";
    assert_eq!(parse(text).findings.kept()[0].message, told);
    assert_eq!(parse("L1:\r  - acme/one\r").findings.errors(), 0, "every line ends so");
    assert_eq!(parse("L1:\r\n  - acme/one\r\n").findings.errors(), 0);
    for shown in ['\u{a0}', 'é', '\u{200b}', '日'] {
        let text = format!("L1:\n  - acme/one # new{shown}\n");
        assert_eq!(findings(&text), [""; 0], "{shown:?}");
    }
}

#[test]
fn entries_of_every_form_are_parsed() {
    let text = "L2: [A/b]\nL3:\n  Xpu:\n    c/d: '@one, org/two'\nL4:\n  - e/f:\n      oncalls: [x]\n      \
                events: [nightly]\n";
    let outcome = parse(text);
    assert_eq!(outcome.findings.errors(), 0);
    assert_eq!(outcome.places.len(), 3);
    let policy = outcome.accepted().unwrap();
    let get = |name: &str| policy.get(&RepoName::new(name).unwrap()).unwrap();
    assert_eq!((get("a/B").level, get("a/b").repo.as_str()), (Level::L2, "A/b"));
    assert_eq!(get("c/d").device.as_ref().unwrap().as_str(), "Xpu");
    assert_eq!(get("c/d").oncalls, [Oncall::new("one").unwrap(), Oncall::new("org/two").unwrap()]);
    assert!(!get("e/f").is_dispatched_to() && get("e/f").check_run() == CheckRunPolicy::Never);
    assert!(policy.get(&RepoName::new("g/h").unwrap()).is_none());
}

#[test]
fn allowlist_with_an_error_is_not_accepted() {
    assert!(parse("L1: [a/b]\nL5: []\n").accepted().is_err());
    assert!(parse("L3: {x: {a/b: }}").accepted().is_ok(), "a warning stops nothing");
}

#[test]
fn hostile_files_are_parsed_quickly() {
    let started = std::time::Instant::now();
    let bomb = (0..20).fold("a: &a [x]\n".to_owned(), |mut text, n| {
        text.push_str(&format!("b{n}: &b{n} [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"));
        text
    });
    assert!(parse(&bomb).findings.errors() > 180);
    for text in [
        "[".repeat(5000),
        "{a: ".repeat(5000),
        "- ".repeat(5000),
        "? ".repeat(5000),
        "\0".repeat(5000),
        "L1: [@".to_owned() + &"@a, ".repeat(20_000),
        "- a\n".repeat(20_000),
        "L4: [{a/b: ".to_owned() + &"x,".repeat(20_000),
        "\"".repeat(5001),
        "L1:\n".to_owned() + &" -\t@a\n".repeat(10_000),
    ] {
        assert!(parse(&text).findings.errors() > 0, "{}", &text[..20]);
    }
    assert!(started.elapsed().as_secs() < 20, "took {:?}", started.elapsed());
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9]{1,4}(-[a-z0-9]{1,3}){0,2}(_[a-z]{2})?"
}

fn repo() -> impl Strategy<Value = RepoName> {
    (name(), "[A-Za-z0-9._-]{1,8}").prop_filter_map("a repository", |(owner, repo)| {
        RepoName::new(&format!("{owner}/{repo}")).ok()
    })
}

fn oncalls() -> impl Strategy<Value = Vec<Oncall>> {
    let team = (name(), "[a-z0-9_-]{1,6}").prop_map(|(org, team)| format!("{org}/{team}"));
    let oncall = prop_oneof![name(), team, "[0-9]{1,3}|yes|n|null|1e3"];
    prop::collection::vec(oncall, 0..4).prop_map(|names| {
        let mut unique: Vec<Oncall> = Vec::new();
        for name in names {
            let oncall = Oncall::new(&name).unwrap();
            if !unique.contains(&oncall) {
                unique.push(oncall);
            }
        }
        unique
    })
}

fn entry() -> impl Strategy<Value = AllowlistEntry> {
    let device = "[A-Za-z0-9][A-Za-z0-9._-]{0,6}|[0-9]{1,4}|yes|No|2026-01-01|0x1f|1e3";
    let events = prop::sample::subsequence(&EventKind::ALL[..], 1..=3);
    let level = prop::sample::select(&Level::ALL[..]);
    (repo(), level, device, oncalls(), events).prop_map(
        |(repo, level, device, mut oncalls, events)| {
            if level == Level::L4 && oncalls.is_empty() {
                oncalls.push(Oncall::new("somebody").unwrap());
            }
            let device = (level == Level::L3).then(|| Device::new(&device).unwrap());
            AllowlistEntry { repo, level, device, oncalls, events: EventSet::new(events).unwrap() }
        },
    )
}

proptest! {
    #[test]
    fn printed_allowlist_parses_back_equal(entries in prop::collection::vec(entry(), 0..30)) {
        let mut policy = Allowlist::new();
        for entry in entries {
            // A repository that came up twice stays as it was first.
            let _ = policy.insert(entry);
        }
        let text = policy.to_string();
        let outcome = parse(&text);
        prop_assert_eq!(outcome.findings.errors(), 0, "{}\n{:?}", text, outcome.findings.kept());
        prop_assert_eq!(outcome.accepted().unwrap(), policy, "{}", text);
    }

    #[test]
    fn random_bytes_dont_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Allowlist::parse(&bytes, &RepoName::new("o/r").unwrap());
    }

    #[test]
    fn random_allowlist_tokens_dont_panic(
        words in prop::collection::vec(prop::sample::select(WORDS), 0..60)
    ) {
        let text = words.concat();
        let outcome = parse(&text);
        for found in outcome.findings.kept() {
            prop_assert!(found.span.start <= found.span.end);
            prop_assert!(outcome.source.text().get(found.span.bytes.clone()).is_some());
            for edit in found.fix.iter().flat_map(|fix| &fix.edits) {
                prop_assert!(outcome.source.text().get(edit.span.bytes.clone()).is_some());
            }
        }
        prop_assert_eq!(outcome.places.len(), outcome.policy.len());
    }
}

const WORDS: &[&str] = &[
    "L1",
    "L2",
    "L3",
    "L4",
    "l5",
    ":",
    ": ",
    ":\n",
    "\n",
    "\n  ",
    "\n    ",
    "\n      ",
    "- ",
    "-",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "a/b",
    "A/B",
    "c/d: ",
    "org/team",
    "@x",
    "'",
    "\"",
    "&a ",
    "*a",
    "!!str ",
    "<<: ",
    "~",
    "910",
    "yes",
    "# c",
    "\t",
    "\r",
    "\0",
    "é",
    "漢",
    "\u{feff}",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "|",
    ">",
    "? ",
    "`",
    "oncalls: ",
    "events: ",
    "nightly",
    "\u{2028}",
    "\u{85}",
    "pytorch/pytorch",
];
