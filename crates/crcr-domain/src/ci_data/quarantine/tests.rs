use jiff::civil::{Date, date};

use super::*;

fn today() -> Date {
    date(2026, 11, 23)
}

fn entry(fields: &str) -> String {
    format!("- pattern: tests.ops.test_conv\n  owner: alice\n  reason: it hangs\n  {fields}\n")
}

fn codes(text: &str) -> Vec<String> {
    let parsed = ParsedQuarantine::parse(text.as_bytes(), today());
    let found = parsed.findings.kept().iter();
    found.map(|found| format!("{}:{}", found.span.start.line, found.rule.code())).collect()
}

fn failure(classname: &str, name: &str) -> TestCase {
    TestCase {
        suite: "suite".into(),
        classname: classname.into(),
        ..TestCase::new(name.to_owned(), TestResult::Failure)
    }
}

fn quarantine(text: &str) -> Quarantine {
    ParsedQuarantine::parse(text.as_bytes(), today()).accepted(today()).unwrap()
}

#[test]
fn complete_entries_are_read_with_their_places() {
    let text = "# flaky\n- pattern: \"a.b[1-*]long_name\"\n  owner: \"@acme/gpu\"\n  reason: >-\n    it\n    \
                hangs\n  expiry: 2026-12-23\n  mode: skip\n\n-\n  pattern: x\n  owner: bob\n  \
                reason: y\n  expiry: \"2026-11-23\"\n# end\n";
    let parsed = ParsedQuarantine::parse(text.as_bytes(), today());
    assert_eq!(parsed.findings.kept(), [], "{text}");
    let [first, second] = &parsed.entries[..] else { panic!("{:?}", parsed.entries) };
    assert_eq!((&*first.pattern, first.owner.as_str()), ("a.b[1-*]long_name", "acme/gpu"));
    assert_eq!((&*first.reason, first.mode), ("it hangs", QuarantineMode::Skip));
    assert_eq!((first.expiry, second.expiry), (date(2026, 12, 23), today()));
    assert!(text[first.bytes.clone()].starts_with("- pattern: \"a.b"));
    assert!(text[first.bytes.clone()].ends_with("mode: skip"));
    assert!(text[second.bytes.clone()].starts_with("-\n  pattern: x"), "{:?}", second.bytes);
    assert!(text[second.bytes.clone()].ends_with("2026-11-23\""), "{:?}", second.bytes);
    for empty in ["", "# nothing\n", "[]\n", "---\n", "~"] {
        assert_eq!(codes(empty), [""; 0], "{empty}");
    }
}

/// A block ends with a line end, which nobody means.
#[test]
fn reason_on_several_lines_has_no_blanks_at_its_ends() {
    for reason in ["|\n    it hangs\n", "' it hangs '", ">\n    it\n    hangs\n"] {
        let text = entry("expiry: 2026-12-01").replace("it hangs", reason);
        let parsed = ParsedQuarantine::parse(text.as_bytes(), today());
        assert_eq!(parsed.findings.kept(), [], "{text}");
        assert_eq!(parsed.entries[0].reason, "it hangs");
    }
}

#[test]
fn entry_with_a_mistake_is_left_out() {
    let text = entry("expiry: 2026-12-01\n  until: x");
    assert!(ParsedQuarantine::parse(text.as_bytes(), today()).entries.is_empty());
}

#[test]
fn each_mistake_has_a_code_and_a_line() {
    let good = entry("expiry: 2026-12-01");
    let twice = format!("{good}{good}");
    for (text, expected) in [
        (good.clone(), vec![]),
        (entry("mode: run"), vec!["1:missing-field"]),
        ("- pattern: abc\n".to_owned(), vec!["1:missing-field"; 3]),
        ("- {}\n".to_owned(), vec!["1:missing-field"; 4]),
        (entry("expiry: 2026-12-24"), vec!["4:expiry-too-far"]),
        (entry("expiry: 2026-11-22"), vec!["4:quarantine-expired"]),
        (entry("expiry: soon"), vec!["4:invalid-expiry"]),
        (entry("expiry: 2026-13-01"), vec!["4:invalid-expiry"]),
        (entry("expiry: 20261201"), vec!["4:invalid-expiry"]),
        (entry("expiry:"), vec!["4:invalid-expiry"]),
        (entry("expiry: 2026-12-01\n  mode: off"), vec!["5:invalid-mode"]),
        (entry("expiry: 2026-12-01\n  until: x"), vec!["5:unknown-field"]),
        (entry("expiry: 2026-12-01\n  owner: bob"), vec!["5:duplicate-key"]),
        (entry("expiry: [2026-12-01]"), vec!["4:wrong-shape"]),
        (entry("expiry: 2026-12-01").replace("alice", "al ice"), vec!["2:invalid-owner"]),
        (entry("expiry: 2026-12-01").replace("alice", "~"), vec!["2:invalid-owner"]),
        (entry("expiry: 2026-12-01").replace("it hangs", "''"), vec!["3:invalid-reason"]),
        (good.replace("tests.ops.test_conv", "'*'"), vec!["1:invalid-pattern"]),
        (good.replace("tests.ops.test_conv", "test*"), vec!["1:invalid-pattern"]),
        (good.replace("tests.ops.test_conv", "''"), vec!["1:invalid-pattern"]),
        (good.replace("tests.ops.test_conv", "\"a\\tb\""), vec!["1:invalid-pattern"]),
        (twice, vec!["5:duplicate-pattern"]),
        ("tests: []\n".to_owned(), vec!["1:wrong-shape"]),
        ("- tests.ops\n".to_owned(), vec!["1:wrong-shape"]),
        ("- [a]\n".to_owned(), vec!["1:wrong-shape"]),
        (format!("{good}  ? [a]\n  : b\n"), vec!["5:wrong-shape"]),
        ("[]\n---\n[]\n".to_owned(), vec!["2:wrong-shape"]),
        ("- pattern: [\n".to_owned(), vec!["1:wrong-shape", "1:yaml-syntax"]),
        ("\0".to_owned(), vec!["1:yaml-syntax"]),
    ] {
        assert_eq!(codes(&text), expected, "{text}");
    }
}

#[test]
fn each_mistake_says_what_is_expected_instead() {
    let mut told = String::new();
    for text in [
        "- {}\n".to_owned(),
        "tests: []\n".to_owned(),
        "some text\n".to_owned(),
        entry("expiry: 2026-11-22"),
        entry("expiry: 2026-11-13"),
        entry("expiry: 2026-12-24"),
        entry("expiry: soon"),
        entry("expiry: 2026-12-01\n  until: x"),
    ] {
        let parsed = ParsedQuarantine::parse(text.as_bytes(), today());
        for found in parsed.findings.kept() {
            told += &format!("{}: {}\n", found.message, found.help.as_deref().unwrap_or("-"));
        }
    }
    insta::assert_snapshot!(told);
    let fits = |bytes| {
        let comment = "#".repeat(bytes);
        ParsedQuarantine::parse(comment.as_bytes(), today()).findings.kept().is_empty()
    };
    assert!(fits(MAX_BYTES) && !fits(MAX_BYTES + 1));
}

#[test]
fn hostile_file_is_refused_quickly_and_covers_nothing() {
    let bomb = "- &a [x, x]\n- &b [*a, *a]\n- &c [*b, *b]\n- {<<: *c, pattern: *a}\n";
    let deep = "[".repeat(100_000);
    let many = entry("expiry: 2026-12-01").replace("test_conv", "t") + &"- {}\n".repeat(2000);
    let long = format!("- pattern: {}\n", "x".repeat(200_000));
    let huge = "#".repeat(MAX_BYTES + 1);
    for (text, code) in [
        (bomb, "alias"),
        (&deep, "yaml-syntax"),
        (&many, "too-many-entries"),
        (&long, "invalid-pattern"),
        (&huge, "yaml-syntax"),
        ("- !!python/object:os.system {pattern: x}\n", "alias"),
    ] {
        let started = std::time::Instant::now();
        let parsed = ParsedQuarantine::parse(text.as_bytes(), today());
        let found = parsed.findings.kept();
        assert!(found.iter().any(|found| found.rule.code() == code), "{code}: {found:?}");
        assert!(found.iter().all(|found| found.message.len() < 500));
        assert!(parsed.accepted(today()).is_err(), "{code}");
        assert!(started.elapsed().as_secs() < 5, "{code}");
    }
}

#[test]
fn one_mistake_in_the_file_covers_no_test_at_all() {
    let text = entry("expiry: 2026-12-01") + "- pattern: other\n";
    let parsed = ParsedQuarantine::parse(text.as_bytes(), today());
    assert_eq!(parsed.entries.len(), 1);
    assert!(parsed.accepted(today()).is_err());
}

#[test]
fn pattern_covers_its_test_only_and_characters_other_than_stars_are_literal() {
    for (pattern, class, name, expected) in [
        ("tests.ops.test_conv", "tests.ops", "test_conv", true),
        ("tests.ops.test_conv", "tests.ops", "test_conv2", false),
        ("tests.ops.test_conv", "Tests.ops", "test_conv", false),
        ("tests.ops.test_conv*", "tests.ops", "test_conv[cpu]", true),
        ("tests.ops.test_conv[*]", "tests.ops", "test_conv[cpu]", true),
        ("tests.ops.test_conv[c-z]", "tests.ops", "test_convd", false),
        ("*.test_conv_backward", "tests.ops", "test_conv_backward", true),
        ("tests*conv*backward", "tests.ops", "test_conv_x_backward", true),
        ("tests*conv*backward", "tests.ops", "test_backward_conv", false),
        ("abcdefgh*abcdefgh", "", "abcdefgh", false),
        ("long_x*ab*ba*y_name", "", "long_xabay_name", false),
        ("long_x*ab*ab*y_name", "", "long_xzabzaby_name", true),
        ("test_alone", "", "test_alone", true),
        ("suite.test_alone", "", "test_alone", true),
        ("test?", "", "test1", false),
    ] {
        let text =
            format!("- {{pattern: '{pattern}', owner: alice, reason: r, expiry: 2026-12-01}}\n");
        let case = failure(class, name);
        assert_eq!(quarantine(&text).covers(&case).is_some(), expected, "{pattern} {name}");
    }
    let any =
        quarantine(&entry("expiry: 2026-12-01").replace("tests.ops.test_conv", "'aaaaaaaaaaaa*'"));
    let covers = |bytes| any.covers(&failure("", &"a".repeat(bytes))).is_some();
    assert!(covers(MAX_NAME_BYTES) && !covers(MAX_NAME_BYTES + 1));
}

#[test]
fn crash_suite_failure_unfinished_and_expired_tests_are_never_covered() {
    let quarantined = quarantine(&entry("expiry: 2026-11-23"));
    let case = failure("tests.ops", "test_conv");
    assert!(quarantined.covers(&case).is_some());
    for kind in [TestRowKind::Suite, TestRowKind::Crashed, TestRowKind::NoReport] {
        assert!(quarantined.covers(&TestCase { kind, ..case.clone() }).is_none(), "{kind:?}");
    }
    let unfinished = TestCase { result: TestResult::Unfinished, ..case.clone() };
    assert!(quarantined.covers(&unfinished).is_none());
    let tomorrow = date(2026, 11, 24);
    let text = entry("expiry: 2026-11-23");
    let expired = ParsedQuarantine::parse(text.as_bytes(), tomorrow).accepted(tomorrow).unwrap();
    assert!(expired.covers(&case).is_none());
    assert_eq!(expired.expired(&case).unwrap().owner.as_str(), "alice");
    assert!(expired.expired(&failure("tests.ops", "test_other")).is_none());
    assert!(expired.expired(&unfinished).is_none());
}

#[test]
fn pattern_with_a_variant_covers_the_test_there_only_and_one_without_everywhere() {
    let text = |pattern: &str, owner: &str| {
        format!("- {{pattern: '{pattern}', owner: {owner}, reason: r, expiry: 2026-12-01}}\n")
    };
    let of = |variant: Option<&str>| TestCase {
        variant: variant.map(Into::into),
        ..failure("a.spec.js", "log in")
    };
    let firefox = quarantine(&text("a.spec.js.log in (firefox)", "alice"));
    assert!(firefox.covers(&of(Some("firefox"))).is_some());
    assert!(firefox.covers(&of(Some("chromium"))).is_none(), "it fails in another browser, too");
    assert!(firefox.covers(&of(None)).is_none());
    let any = text("a.spec.js.log in", "bob");
    assert!(quarantine(&any).covers(&of(Some("chromium"))).is_some());
    let both = quarantine(&(any + &text("a.spec.js.log in (firefox)", "alice")));
    assert_eq!(both.covers(&of(Some("firefox"))).unwrap().owner.as_str(), "alice");
    let wide = quarantine(&text("a.spec.js.* (firefox)", "alice"));
    assert!(wide.covers(&of(Some("firefox"))).is_some());
    assert!(wide.covers(&of(Some("chromium"))).is_none());
}

/// jest-junit gives a test outside of any `describe` a class that begins with a blank.
#[test]
fn blanks_at_the_ends_of_a_name_are_matched_with_and_without_quotes() {
    let failed = TestCase { suite: "".into(), ..failure("", " opens the door") };
    for pattern in ["\" opens the door\"", "opens the door", "' opens*door'"] {
        let text = format!(
            "- pattern: {pattern}\n  owner: alice\n  reason: it hangs\n  expiry: 2026-12-01\n"
        );
        assert!(quarantine(&text).covers(&failed).is_some(), "{pattern}");
    }
    let text =
        "- pattern: \"opens the door \"\n  owner: alice\n  reason: y\n  expiry: 2026-12-01\n";
    assert!(quarantine(text).covers(&failed).is_none(), "quoted blanks are part of the name");
}

/// As the JSON Schema has it: an editor shows the mistake.
#[test]
fn blanks_in_quotes_are_part_of_an_owner_a_day_and_a_mode_and_so_a_mistake() {
    for (field, code) in [
        ("owner: ' alice'", "invalid-owner"),
        ("expiry: '2026-12-01 '", "invalid-expiry"),
        ("mode: ' run'", "invalid-mode"),
    ] {
        let known = ["owner: alice", "expiry: 2026-12-01", "mode: run"];
        let fields = known.map(|one| {
            let name = field.split(':').next().unwrap();
            if one.starts_with(name) { field } else { one }
        });
        let text =
            format!("- pattern: tests.ops.test_add\n  reason: x\n  {}\n", fields.join("\n  "));
        let parsed = ParsedQuarantine::parse(text.as_bytes(), date(2026, 11, 23));
        let codes: Vec<_> = parsed.findings.kept().iter().map(|f| f.rule.code()).collect();
        assert_eq!(codes, [code], "{text}");
    }
}
