use super::*;
use crate::diagnostic::Diagnostic;

const WHOLE: &str = "\
dispatch:
  events: [pull_request, push, landed]
  paths: [\"aten/**\", \"torch/csrc/**\", \"!**/*.md\"]
  drafts: skip
  quiet-minutes: 10
  max-per-day: 200
probes:
  reruns-per-day: 20
  commits-per-day: 30
";

fn parse(text: &str) -> ParsedDownstreamFile {
    ParsedDownstreamFile::parse(text.as_bytes())
}

fn findings(text: &str) -> Vec<String> {
    let line = |found: &Diagnostic| {
        let at = found.span.start;
        format!("{} {}:{}", found.rule.code(), at.line, at.column)
    };
    parse(text).findings.kept().iter().map(line).collect()
}

#[test]
fn a_whole_file_is_read_and_survives_the_store() {
    let parsed = parse(WHOLE);
    assert_eq!(parsed.settings, 7);
    let config = parsed.accepted().unwrap();
    assert_eq!(config.dispatch.events.len(), 3);
    assert_eq!(config.dispatch.drafts, Drafts::Skip);
    assert_eq!((config.dispatch.quiet_minutes, config.dispatch.max_per_day), (10, Some(200)));
    assert_eq!((config.probes.reruns_per_day, config.probes.commits_per_day), (20, 30));
    let stored = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<DownstreamConfig>(&stored).unwrap(), config);
}

#[test]
fn without_a_file_or_with_an_empty_one_everything_is_dispatched_and_nothing_probed() {
    for text in ["", "# nothing\n", "dispatch:\n", "---\n~\n", "dispatch: {events: }\nprobes: ~\n"]
    {
        let config = parse(text).accepted().unwrap();
        assert_eq!(config, DownstreamConfig::default(), "{text:?}");
    }
    let all = DownstreamConfig::default();
    for event in ["pull_request", "push", "landed", "merge_group", "nightly"] {
        let event = EventName::from(event);
        let event = FilteredEvent { event: &event, has_head: true, is_draft: true };
        assert_eq!(all.dispatch.leaves_out(event), None);
        assert_eq!((all.dispatch.paths_of(event), all.dispatch.quiet_seconds(event)), (None, 0));
    }
    assert_eq!((all.probes.reruns_per_day, all.probes.commits_per_day), (0, 0));
}

#[test]
fn every_mistake_is_reported_at_its_place_and_a_file_with_one_has_no_effect() {
    #[rustfmt::skip]
    let table: &[(&str, &[&str])] = &[
        ("dispatch: [a]\n", &["wrong-shape 1:11"]),
        ("- dispatch\n", &["wrong-shape 1:1"]),
        ("dispatch: all\n", &["wrong-shape 1:11"]),
        ("dispatch:\n  event: [push]\n", &["unknown-field 2:3"]),
        ("probe:\n  reruns-per-day: 1\n", &["unknown-field 1:1"]),
        ("probes: {reruns-per-day: 1}\nprobes: {}\n", &["duplicate-key 2:1"]),
        ("dispatch:\n  events: [push, pul_request]\n", &["invalid-event 2:18"]),
        ("dispatch:\n  events: []\n", &["wrong-shape 2:11"]),
        ("dispatch:\n  events: push\n", &["wrong-shape 2:11"]),
        ("dispatch:\n  paths: [\"!a/**\"]\n", &["invalid-pattern 2:11"]),
        ("dispatch:\n  paths: [a, /b, \"c?\", d/, \"\", {e: f}]\n",
            &["invalid-pattern 2:14", "invalid-pattern 2:18", "invalid-pattern 2:24",
              "invalid-pattern 2:28", "wrong-shape 2:32"]),
        ("dispatch:\n  paths: [1, ~, \"2\", a/b, true]\n",
            &["not-a-string 2:11", "not-a-string 2:14", "not-a-string 2:27"]),
        ("dispatch:\n  drafts: no\n", &["invalid-drafts 2:11"]),
        ("dispatch:\n  quiet-minutes: 10m\n  max-per-day: 0\n",
            &["invalid-number 2:18", "invalid-number 3:16"]),
        ("probes:\n  reruns-per-day: \"3\"\n  commits-per-day: 1001\n",
            &["invalid-number 2:19", "invalid-number 3:20"]),
        ("probes:\n  reruns-per-day: 99999999999999999999\n", &["invalid-number 2:19"]),
        ("dispatch:\n  quiet-minutes: 1441\n  max-per-day: 100001\n",
            &["invalid-number 2:18", "invalid-number 3:16"]),
        ("dispatch:\n  quiet-minutes: +5\n  max-per-day: [5]\n",
            &["invalid-number 2:18", "wrong-shape 3:16"]),
        ("dispatch:\n  drafts: [skip]\n", &["wrong-shape 2:11"]),
        ("dispatch: \"~\"\n", &["wrong-shape 1:11"]),
        ("dispatch:\n  events:\n    - push: yes\n", &["wrong-shape 3:7"]),
        ("dispatch:\n  paths: [./a, \"!\", \"a\\tb\", \"{a}\"]\n",
            &["invalid-pattern 2:11", "invalid-pattern 2:16", "invalid-pattern 2:21",
              "invalid-pattern 2:29"]),
        ("dispatch:\n  paths: [a//b, a/../b, '../a', a/., '!!a', ' a', 'a ', \"a\\u200b/b\"]\n",
            &["invalid-pattern 2:11", "invalid-pattern 2:17", "invalid-pattern 2:25",
              "invalid-pattern 2:33", "invalid-pattern 2:38", "invalid-pattern 2:45",
              "invalid-pattern 2:51", "invalid-pattern 2:57"]),
        ("dispatch:\n  quiet-minutes: 010\n", &["invalid-number 2:18"]),
        ("? [a]\n: b\n", &["wrong-shape 1:3"]),
        ("probes: &a {}\ndispatch: *a\n", &["alias 1:9", "alias 2:11"]),
        ("dispatch: {\n", &["yaml-syntax 1:11"]),
        ("dispatch: {}\n---\nprobes: {}\n", &["wrong-shape 2:1"]),
        ("dispatch: {}\n---\nprobes: &a 1\n", &["wrong-shape 2:1", "alias 3:9"]),
        ("dispatch:\n  paths: [\"a\\u3000b\"]\n", &["invalid-pattern 2:11"]),
    ];
    for (text, expected) in table {
        assert_eq!(findings(text), *expected, "{text}");
        assert!(parse(text).accepted().is_err());
    }
    let many = format!("dispatch:\n  paths: [{}]\n", "a, ".repeat(65));
    assert_eq!(findings(&many), ["too-many-entries 2:10"]);
    assert_eq!(findings(&many.replacen("a, ", "", 1)), Vec::<String>::new());
    let largest = "#".repeat(MAX_BYTES);
    assert_eq!(findings(&largest), Vec::<String>::new());
    let large = "#".repeat(MAX_BYTES + 1);
    assert_eq!(findings(&large), ["yaml-syntax 1:1"]);
    let deep = format!("dispatch: {}", "[".repeat(10_000));
    assert_eq!(parse(&deep).findings.errors(), 1);
}

#[test]
fn values_at_their_bounds_are_accepted() {
    let text = "dispatch: {quiet-minutes: 1440, max-per-day: 100000, drafts: dispatch}\n\
                probes: {reruns-per-day: 0, commits-per-day: 1000}\n";
    let config = parse(text).accepted().unwrap();
    assert_eq!((config.dispatch.quiet_minutes, config.dispatch.max_per_day), (1440, Some(100_000)));
    assert_eq!((config.probes.reruns_per_day, config.probes.commits_per_day), (0, 1000));
    let draft = FilteredEvent { event: &EventName::PullRequest, has_head: true, is_draft: true };
    assert_eq!(config.dispatch.leaves_out(draft), None);
    assert!(parse("dispatch: {max-per-day: 1}\n").accepted().is_ok());
    for (chars, count) in [(256, 0), (257, 1)] {
        let text = format!("dispatch: {{paths: [{}]}}\n", "a".repeat(chars));
        assert_eq!(parse(&text).findings.errors(), count, "{chars}");
    }
}

#[test]
fn answer_of_a_bisection_is_a_sentence_that_claims_no_more_than_is_known() {
    let suspect = SuspectCommit {
        sha: "bad0123456789bad".to_owned(),
        title: "Speed up the reduction".to_owned(),
        author: Some("alice".to_owned()),
        pull_request: Some(123),
    };
    let named = Culprit {
        repo: "acme/two".to_owned(),
        upstream: "acme/upstream".to_owned(),
        workflow: "CI".to_owned(),
        job: Some("test".to_owned()),
        tests: vec![],
        good_sha: "900d".to_owned(),
        bad_sha: "bad0".to_owned(),
        candidates: 8,
        suspect: Some(suspect.clone()),
        backend_changed: false,
        certainty: 0.9967,
        is_certain: true,
        runs: 6,
        at: Timestamp::UNIX_EPOCH,
    };
    assert_eq!(
        named.sentence(),
        "test broke with bad012345678, #123, by alice: 99.6 % certain after 6 runs"
    );
    let anonymous = SuspectCommit { author: None, pull_request: None, ..suspect };
    let anonymous = Culprit { suspect: Some(anonymous), job: None, ..named.clone() };
    assert_eq!(anonymous.sentence(), "CI broke with bad012345678: 99.6 % certain after 6 runs");
    let flake = Culprit { suspect: None, ..named.clone() };
    assert_eq!(flake.sentence(), "test has no culprit: its failure was a flake (6 runs)");
    let backend = Culprit { backend_changed: true, ..flake.clone() };
    assert_eq!(
        backend.sentence(),
        "No commit broke test: the backend changed after 900d, which passed and fails now (6 runs)"
    );
    for uncertain in [named, flake, backend] {
        let uncertain = Culprit { is_certain: false, ..uncertain };
        assert_eq!(
            uncertain.sentence(),
            "Not enough runs to say which of 8 commits after 900d broke test (6 runs)"
        );
    }
}

#[test]
fn title_of_a_suspect_is_one_short_line() {
    let commit = SuspectCommit::new("a".repeat(40), format!("a\tb\u{7}{}", "c".repeat(300)), None);
    assert_eq!(commit.title, format!("ab{}", "c".repeat(198)));
}

#[test]
fn mistakes_come_with_what_to_write_instead() {
    for (text, help) in [
        ("dispatch:\n  quiet_minutes: 5\n", "did you mean `quiet-minutes`?"),
        ("dispatch:\n  events: [merge-group]\n", "did you mean `merge_group`?"),
        ("prob:\n", "did you mean `probes`?"),
        (
            "dispatch: {events: [issues]}\n",
            "the events are `pull_request`, `push`, `landed`, `merge_group`",
        ),
        ("dispatch: {paths: [/b]}\n", "drop it: paths begin at the top of the repository"),
        ("dispatch: {paths: [./c]}\n", "drop it: paths begin at the top of the repository"),
        ("filters: {}\n", "the keys here are `dispatch`, `probes`"),
        ("dispatch:\nevents: [push]\n", "indent it under `dispatch`"),
        ("dispatch:\n  reruns-per-day: 3\n", "indent it under `probes`"),
        ("dispatch: {max-per-day: 0}\n", "take a number within these bounds"),
        ("dispatch: {quiet-minutes: 10m}\n", "write digits only, such as `quiet-minutes: 20`"),
        (
            "dispatch: {quiet-minutes: 010}\n",
            "write it without the `0` in front, which some programs read as octal",
        ),
    ] {
        let parsed = parse(text);
        assert_eq!(parsed.findings.kept()[0].help.as_deref(), Some(help), "{text}");
    }
}

#[test]
fn the_last_pattern_that_matches_a_file_decides_and_one_file_is_enough() {
    let config = parse(WHOLE).accepted().unwrap();
    let paths = config.dispatch.paths.unwrap();
    let takes = |files: &[&str]| paths.takes_any(files.iter().copied());
    assert!(takes(&["aten/src/ATen/native/Add.cpp"]));
    assert!(takes(&["docs/a.rst", "torch/csrc/jit/x.h"]));
    assert!(!takes(&["aten/README.md"]), "left out by a later pattern");
    assert!(!takes(&["docs/a.rst", "torch/nn/x.py"]));
    assert!(!takes(&["aten"]), "the folder itself isn't a file in it");
    assert!(!takes(&[]));
    let paths = |list: &str| {
        let text = format!("dispatch:\n  paths: [{list}]\n");
        parse(&text).accepted().unwrap().dispatch.paths.unwrap()
    };
    let star = paths("'*.py', 'a/*/c', '**/d.txt'");
    for (file, taken) in [
        ("x.py", true),
        ("a/x.py", false),
        ("a/b/c", true),
        ("a/b/b/c", false),
        ("d.txt", true),
        ("a/b/d.txt", true),
        ("ad.txt", false),
    ] {
        assert_eq!(star.takes_any([file].into_iter()), taken, "{file}");
    }
    let back = paths("'**', '!docs/**', 'docs/api/**'");
    assert!(back.takes_any(["docs/api/a"].into_iter()));
    assert!(!back.takes_any(["docs/a"].into_iter()));
}

/// <https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-syntax#filter-pattern-cheat-sheet>
#[test]
fn two_stars_beside_other_text_cross_folders_as_in_filters_of_github() {
    for (pattern, taken, left) in [
        ("**.py", vec!["x.py", "a/x.py", "a/.b/c.py", ".py"], vec!["x.pyi", "a/py"]),
        ("src/**.cpp", vec!["src/x.cpp", "src/a/b/x.cpp"], vec!["x.cpp", "a/src/x.cpp"]),
        ("**/migrate-**", vec!["migrate-1", "db/migrate-a/b.sql"], vec!["db/xmigrate-1"]),
        ("a**", vec!["a", "ab", "a/b", "ab/c/d"], vec!["b/a"]),
        ("a**b/c", vec!["ab/c", "axb/c", "a/x/b/c", "ax/yb/c"], vec!["ab", "ab/d"]),
        ("***.md", vec!["x.md", "a/x.md"], vec!["x.mdx"]),
        ("**", vec!["x", ".github/x"], vec![]),
        ("Docs/**", vec!["Docs/x"], vec!["docs/x"]),
        ("my docs/**", vec!["my docs/x"], vec!["docs/x"]),
    ] {
        let filter = PathFilter::new(vec![pattern.to_owned()]);
        assert_eq!(paths::check(pattern), None, "{pattern}");
        for (files, is_taken) in [(taken, true), (left, false)] {
            for file in files {
                assert_eq!(filter.takes_any([file].into_iter()), is_taken, "{pattern} {file}");
            }
        }
    }
}

#[test]
fn events_drafts_and_the_quiet_time_are_of_heads_that_may_be_built() {
    let filter = parse(WHOLE).accepted().unwrap().dispatch;
    let (pull, push, group) = (EventName::PullRequest, EventName::Push, EventName::MergeGroup);
    let event = |event, has_head, is_draft| FilteredEvent { event, has_head, is_draft };
    assert_eq!(filter.leaves_out(event(&group, true, false)), Some(LeftOut::Event));
    assert_eq!(filter.leaves_out(event(&pull, true, true)), Some(LeftOut::Draft));
    assert_eq!(filter.leaves_out(event(&pull, true, false)), None);
    assert_eq!(filter.quiet_seconds(event(&pull, true, false)), 600);
    assert_eq!(
        filter.quiet_seconds(event(&pull, false, false)),
        0,
        "a closed one waits for nothing"
    );
    assert_eq!(filter.quiet_seconds(event(&push, true, false)), 0);
    assert!(filter.paths_of(event(&push, true, false)).is_none());
}

#[test]
fn schema_knows_every_key_of_the_reader_and_its_bounds() {
    let schema = include_str!("../../../../schemas/downstream.json");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    let sections = schema["properties"].as_object().unwrap();
    let (dispatch, probes) =
        (&sections["dispatch"]["properties"], &sections["probes"]["properties"]);
    for (key, most) in [
        (&dispatch["quiet-minutes"], reader::MAX_QUIET_MINUTES),
        (&dispatch["max-per-day"], reader::MAX_DISPATCHES),
        (&probes["reruns-per-day"], reader::MAX_PROBES),
        (&probes["commits-per-day"], reader::MAX_PROBES),
    ] {
        assert_eq!(key["maximum"], most, "{key}");
    }
    assert_eq!(dispatch["paths"]["maxItems"], paths::MAX_PATTERNS);
    assert_eq!(dispatch["events"]["items"]["enum"], serde_json::json!(TakenEvent::ALL));
    for (section, keys) in sections {
        for key in keys["properties"].as_object().unwrap().keys() {
            let text = format!("{section}:\n  {key}: {{}}\n");
            let codes: Vec<_> =
                parse(&text).findings.kept().iter().map(|f| f.rule.code()).collect();
            assert!(!codes.contains(&"unknown-field"), "{section}.{key}: {codes:?}");
        }
    }
    assert_eq!(sections.len(), 2);
}

#[test]
fn whoever_looks_for_a_missing_run_reads_which_setting_left_it_out() {
    for (why, setting) in [
        (LeftOut::Event, "`events`"),
        (LeftOut::Paths, "`paths`"),
        (LeftOut::Draft, "`drafts`"),
        (LeftOut::Closed, "`quiet-minutes`"),
        (LeftOut::MaxPerDay, "`max-per-day`"),
        (LeftOut::SameHead, "another event of the pull request"),
    ] {
        assert!(why.reason().contains(setting), "{why:?}: {}", why.reason());
    }
}
