//! What a log says, whatever is in it.

mod comparison;
mod failed_step;

use std::io::{self, Read};

use aho_corasick::automaton::Automaton as _;
use crcr_domain::ci_data::job_log::{LogMatch, LogMatchSource};

use super::*;

fn rules(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap_or_else(|findings| panic!("{findings:?}"))
}

fn findings(text: &str) -> Vec<String> {
    RuleSet::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn rule(name: &str, pattern: &str, more: &str) -> String {
    format!("[[rule]]\nname = '{name}'\ncategory = 'c'\npattern = '''{pattern}'''\n{more}\n")
}

/// What a rule found.
fn found_in(log: &[u8], rules: &RuleSet) -> Option<LogMatch> {
    let found = classify(log, rules, None).unwrap().found;
    found.filter(|found| found.by == LogMatchSource::Rule)
}

fn green_run(log: &str) -> Baseline {
    let mut baseline = Baseline::default();
    baseline.add_green(log.as_bytes()).unwrap();
    baseline
}

fn line_of(log: &str, rules_text: &str) -> Option<(u64, String)> {
    found_in(log.as_bytes(), &rules(rules_text)).map(|found| (found.line_number, found.line))
}

#[test]
fn rule_of_highest_priority_wins_at_its_last_match() {
    let last = "pick = 'last'";
    let text = rule("disk", "No space left", last) + &rule("any", "error: (.+)", last);
    let log = "error: a\nNo space left\nNo space left again\nerror: b\n";
    assert_eq!(line_of(log, &text), Some((3, "No space left again".to_owned())));
    assert_eq!(line_of("error: a\nx\nerror: b\n", &text), Some((3, "error: b".to_owned())));
}

#[test]
fn first_match_wins_with_pick_first() {
    let text = rule("compiler", r"error: (.+)", "pick = 'first'") + &rule("late", "late", "");
    let found = found_in(b"x\nerror: a\nerror: b\nlate\n", &rules(&text)).unwrap();
    assert_eq!((found.line_number, found.captures), (2, vec!["a".to_owned()]));
}

#[test]
fn line_that_a_rule_ignores_is_found_only_by_a_rule_above_it() {
    let probe = rule("probe", "^checking", "kind = 'ignore'");
    let general = probe.clone() + &rule("any", "error", "pick = 'last'");
    assert_eq!(line_of("error 1\nchecking error.h\n", &general), Some((1, "error 1".to_owned())));
    assert_eq!(line_of("checking error.h\n", &general), None);
    let specific = rule("header", r"error\.h", "") + &probe;
    assert_eq!(line_of("checking error.h\n", &specific).unwrap().0, 1);
}

#[test]
fn starter_rules_are_searched_with_the_fast_automaton() {
    let literal_search::LiteralSearch::Fast(automaton) = RuleSet::starter().literals else {
        panic!("the literals are too long together");
    };
    let bytes = automaton.memory_usage();
    assert!(bytes < 10_000_000, "{bytes}: the bytes of the literals have more than 128 classes");
}

/// Upstream's retries are named in the very lines that tell the cause.
#[test]
fn cause_with_the_word_retry_in_it_is_not_ignored() {
    let set = RuleSet::starter();
    for (line, name) in [
        ("FAILED tests/test_retry.py::test_backoff - assert 3 == 4", "pytest: failed test"),
        ("[  FAILED  ] Client.Retry (3 ms)", "GoogleTest: failed test"),
        ("a.c:3:5: error: use of undeclared identifier 'retry'", "C or C++ error"),
        ("--- FAIL: TestRetry (0.00s)", "Go: failed test"),
    ] {
        let log = format!(
            "##[group]Run make\n##[endgroup]\nworking\n{line}\n##[error]Process completed with exit code 1.\n"
        );
        let found = classify(log.as_bytes(), &set, None).unwrap().found.unwrap();
        assert_eq!((found.rule.as_deref(), found.line.as_str()), (Some(name), line));
    }
}

#[test]
fn error_before_the_failing_step_does_not_explain_it() {
    let log = "##[group]Run ./probe\n##[endgroup]\nfatal: no upstream configured\nprobe.c:1:1: error: no such header\n\
        ##[group]Run make test\nmake test\nshell: /usr/bin/bash -e {0}\n##[endgroup]\nrunning 4 tests\n\
        core_test.c:9: error: expected 4, got 3\n1 of 4 tests failed\n\
        ##[error]Process completed with exit code 2.\nPost job cleanup.\n";
    let result = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap();
    assert_eq!(result.found.unwrap().line, "core_test.c:9: error: expected 4, got 3");
    let offered: Vec<&str> = result.candidates.iter().map(|line| line.line.as_str()).collect();
    assert_eq!(offered[0], "core_test.c:9: error: expected 4, got 3");
    assert!(offered.iter().all(|line| !line.starts_with("shell:")), "{offered:?}");
}

#[test]
fn log_that_says_nothing_gets_no_line_but_the_exit_code() {
    let quiet: String = (0..50).map(|n| format!("step {n}\n")).collect();
    let log = format!(
        "##[group]Run ./ci/run.sh\n./ci/run.sh\n##[endgroup]\n{quiet}##[error]Process completed with exit code 7.\n"
    );
    let found = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap();
    assert_eq!(found.rule.as_deref(), Some("exit code"), "{}", found.line);
    assert!(classify(quiet.as_bytes(), &RuleSet::starter(), None).unwrap().found.is_none());
}

#[test]
fn candidates_have_shares_of_certainty_and_reasons() {
    let log = "$ make test\nstarting\nERROR: widget exploded in room 7\nsee the wiki\nThe command \"make test\" exited with 2.\n";
    let result = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap();
    let best = &result.candidates[0];
    assert_eq!(best.line, "ERROR: widget exploded in room 7");
    let sum: u32 = result.candidates.iter().map(|line| u32::from(line.certainty_percent)).sum();
    assert!(best.certainty_percent > 30 && sum <= 101, "{} of {sum}", best.certainty_percent);
    assert!(best.reasons.iter().any(|reason| reason.name == "word of failure"));
    assert_eq!(best.context[0], "$ make test");
}

#[test]
fn red_line_without_a_word_of_failure_is_a_candidate() {
    let log = "$ check\nall quiet\n\u{1b}[31mpages/mat2.md:3: TLDR004 end with a period\u{1b}[0m\nbye\nThe command \"check\" exited with 1.\n";
    let result = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap();
    assert!(result.candidates[0].line.starts_with("pages/mat2.md"), "{:?}", result.candidates[0]);
}

#[test]
fn log_in_utf_16_is_read_with_and_without_its_mark() {
    let log = "##[group]Run build\n##[endgroup]\nmain.c:1:2: error: 'ü' undeclared\n##[error]Process completed with exit code 1.\n";
    let little = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let big = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
    let marked = format!("\u{feff}{log}");
    for bytes in [little(log), little(&marked), big(log), big(&marked)] {
        let text = unpacked(&bytes[..]).unwrap();
        let found = classify(text, &RuleSet::starter(), None).unwrap().found.unwrap();
        assert_eq!(
            (found.line_number, found.line.as_str()),
            (3, "main.c:1:2: error: 'ü' undeclared")
        );
    }
}

#[test]
fn archive_of_a_run_has_a_log_for_each_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logs.zip");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    for (name, text) in [
        ("0_build.txt", "whole build\n"),
        ("build/1_Set up job.txt", "a step of build\n"),
        ("test (3.12)/10_Run tests.txt", "step 10\n"),
        ("test (3.12)/2_Checkout.txt", "step 2\n"),
        ("../../etc/passwd", "odd\n"),
    ] {
        zip.start_file(name, options).unwrap();
        io::Write::write_all(&mut zip, text.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    let logs: Vec<(String, String)> = log_sources(&path)
        .unwrap()
        .iter()
        .map(|log| (log.name.clone(), io::read_to_string(log.open().unwrap()).unwrap()))
        .collect();
    let expected = [
        ("../../etc/passwd", "odd\n"),
        ("0_build.txt", "whole build\n"),
        ("test (3.12)", "step 2\nstep 10\n"),
    ];
    assert_eq!(logs, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
}

#[test]
fn section_with_endless_errors_keeps_its_first_and_its_last_ones() {
    let errors: String =
        (0..50_000).map(|n| format!("worker {n} error: lost its lease\n")).collect();
    let log = format!(
        "$ run\nrun.c:7: error: lease table is corrupt\n{errors}The command \"run\" exited with 1.\n"
    );
    let result = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap();
    assert!(result.candidates.iter().any(|line| line.line_number == 2), "{:?}", result.candidates);
}

#[test]
fn rule_without_literal_competes_with_the_others_by_priority() {
    let digits = rule("digits", r"\d+$", "pick = 'last'");
    let words = rule("word", "failed", "pick = 'last'");
    let log = "17\nfailed\nfailed twice\n";
    assert_eq!(line_of(log, &(digits.clone() + &words)).unwrap().0, 1);
    assert_eq!(line_of(log, &(words + &digits)).unwrap().0, 3);
    assert!(rules(&digits).rules()[0].is_without_literal());
}

#[test]
fn timestamps_escape_sequences_links_and_byte_order_marks_are_stripped() {
    let text = rule("rustc", r"^error(\[E\d+\])?: (.+)$", "");
    for line in [
        "2026-11-23T06:17:44.1234567Z error: x",
        "\u{feff}2026-11-23T06:17:44.1234567Z error: x",
        "2026-11-23T06:17:44Z \u{feff}error: x\r",
        "2026-11-23T06:17:44.1Z \u{1b}[1m\u{1b}[31merror\u{1b}[0m: \u{1b}]8;;https://a.test\u{1b}\\x\u{1b}]8;;\u{1b}\\",
        "build\tRun make\t2026-11-23T06:17:44.1234567Z error: x",
        "2026-11-23T06:17:44.123456Z 00O error: x",
        "10%\r50%\rerror: x",
        "e\0r\0r\0o\0r\0:\0 \0x\0",
        "\u{1b}]0;title\u{7}error: x",
    ] {
        assert_eq!(line_of(line, &text), Some((1, "error: x".to_owned())), "{line:?}");
    }
}

#[test]
fn escape_sequence_without_end_hides_nothing() {
    let text = rule("any", "error: x", "");
    for start in ["\u{1b}]8;;", "\u{1b}P", "\u{1b}[", "\u{1b}[12;"] {
        let log = format!("{start}{}\nerror: x {start}", "a".repeat(10_000));
        assert_eq!(line_of(&log, &text).unwrap().0, 2, "{start:?}");
        let same_line = format!("{start}\u{e9} error: x");
        assert!(line_of(&same_line, &text).is_some(), "{start:?}");
    }
}

#[test]
fn context_has_the_lines_around_the_match_across_chunks() {
    let filler = "x".repeat(99);
    let text = rule("any", "boom", "");
    // Whatever the place of the line in the chunks, which are 256 KiB.
    for before in [0, 1, 2, 2600, 2620, 2621, 2622, 2623, 5241, 5242] {
        let mut log: String = (0..before).map(|n| format!("{n:<5}{}\n", &filler[5..])).collect();
        log += "boom\nafter 1\nafter 2\nafter 3\nafter 4\n";
        let found = found_in(log.as_bytes(), &rules(&text)).unwrap();
        assert_eq!(found.line_number, before + 1);
        let at = found.context.iter().position(|line| line == "boom").unwrap();
        assert_eq!(at as u64, before.min(3), "{before}");
        assert_eq!(found.context[at + 1..], ["after 1", "after 2", "after 3"], "{before}");
    }
}

#[test]
fn captures_are_the_groups_that_took_part_else_the_whole_match() {
    let text = rule("either", r"undefined (\w+)|missing (\w+)", "") + &rule("whole", "no disk", "");
    let captures = |log: &str| found_in(log.as_bytes(), &rules(&text)).unwrap().captures;
    assert_eq!(captures("x missing lib"), ["lib"]);
    assert_eq!(captures("there is no disk left"), ["no disk"]);
}

#[test]
fn literals_are_found_in_the_middle_of_patterns_and_whatever_their_case() {
    for pattern in [
        r"^\S+:\d+: error: ",
        r"(?i)out of memory",
        r"(?:foo|bar)+ [0-9]+ failed",
        r"[Ee]rror: \w+",
        r"\b(?:SIGSEGV|SIGABRT)\b",
        r"^(?:a+ )?panic!+",
        r"^E: (.+)",
        r"\w+(?:Error|Exit)(?:: (.+)|$)",
    ] {
        assert!(!rules(&rule("r", pattern, "")).rules()[0].is_without_literal(), "{pattern}");
    }
    // Words that every log is full of aren't searched for if there is another text.
    let hir = regex_syntax::parse("HCL.{0,20}(?:failed|error)|the build failed").unwrap();
    let mut literals = literals::required_literals(&hir).unwrap();
    literals.sort();
    assert_eq!(literals, [&b"hcl"[..], b"the build failed"]);
    // Other signs than those of ASCII make the automaton large, and are left out if there is enough text beside them.
    let literals_of = |pattern| literals::required_literals(&regex_syntax::parse(pattern).unwrap());
    assert_eq!(literals_of("» CVE-2026").unwrap(), [b" cve-2026"]);
    assert_eq!(literals_of("✗ failed").unwrap(), ["✗ failed".as_bytes()]);
    let text = rule("memory", "(?i)out of MEMORY", "");
    assert_eq!(line_of("a\nOUT of mEmOrY\n", &text).unwrap().0, 2);
}

/// The engine against trying every rule on every line.
#[test]
fn result_is_that_of_trying_every_rule_on_every_line() {
    let patterns = [
        "ab+c",
        r"^\d+ x",
        "(?i)Err(?:or)?: (.*)",
        "[a-c]{2}$",
        "zz|y{3,}",
        r"\bfail\w*",
        "a.c",
        "q?ab",
        "^ab",
        "^12 .",
        "a[bc]+$",
        "(?:^|x)c",
        "^(?:z|yy)+ ",
        "ca(?:: |$)",
    ];
    let words = ["abc", "12 x", "ERROR: q", "ca", "zz", "yyyy", "failed", "aXc", "none", "ab", ""];
    let mut state = 7_u32;
    let mut random = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    for _ in 0..400 {
        let count = 1 + random(patterns.len());
        let text: String = (0..count)
            .map(|n| {
                let more = match random(4) {
                    0 => "pick = 'first'",
                    1 if n > 0 => "kind = 'ignore'",
                    _ => "pick = 'last'",
                };
                rule(&format!("r{n}"), patterns[random(patterns.len())], more)
            })
            .collect();
        let set = rules(&text);
        let lines: Vec<String> = (0..1 + random(12))
            .map(|_| format!("{} {}", words[random(words.len())], words[random(words.len())]))
            .collect();
        let winner =
            |line: &String| matching_rules(&set, line).first().map(|rule| rule.name.clone());
        let priority =
            |name: &String| set.rules().iter().position(|rule| rule.name == *name).unwrap();
        let all: Vec<(usize, usize)> =
            (1..).zip(&lines).filter_map(|(n, line)| Some((priority(&winner(line)?), n))).collect();
        let best = all.iter().map(|(rule, _)| *rule).min();
        let expected = best.map(|best| {
            let mut of_best = all.iter().filter(|(rule, _)| *rule == best).map(|(_, line)| *line);
            let first = set.rules()[best].pick == Pick::First;
            (best, if first { of_best.next() } else { of_best.next_back() }.unwrap() as u64)
        });
        let found = found_in(lines.join("\n").as_bytes(), &set);
        let found = found.map(|found| (priority(found.rule.as_ref().unwrap()), found.line_number));
        assert_eq!(found, expected, "{text}\n{lines:#?}");
    }
}

#[test]
fn all_mistakes_of_a_file_are_reported_at_once_with_their_lines() {
    let text = "extends = 'other'\n\
        [[rule]]\nname = 'a'\npattern = '(x'\ncategory = 'c'\n\
        [[rule]]\nname = 'a'\npattern = 'ok'\ncategory = 'c'\npick = 'middle'\n\
        [[rule]]\npattern = 'x*'\ncategory = 'c'\ncolour = 1\n\
        [[rule]]\nname = 'b'\npattern = '(?=x)y'\ncategory = 'c'\n\
        [[rule]]\nname = 'd'\npattern = '(?:\\w{500}){500}'\ncategory = 'c'\n\
        [[rule]]\nname = 'e'\npattern = 'a\\nb'\ncategory = 'c'\n";
    let found = findings(text).join("\n");
    for expected in [
        "line 1: `extends` can only be \"starter\"",
        "line 4: the pattern isn't a regular expression: unclosed group",
        "line 10: `pick` is \"first\" or \"last\"",
        "line 11: the rule has no `name`",
        "line 12: the pattern matches every line, because it can be empty",
        "line 14: `colour` isn't a key of a rule",
        "line 17: the pattern isn't a regular expression: look-around",
        "line 21: the pattern takes more than 524288 bytes when compiled",
        "line 25: the pattern needs a line feed",
    ] {
        assert!(found.contains(expected), "{expected} in:\n{found}");
    }
    assert!(findings("").concat().contains("there is no `[[rule]]`"));
    assert!(findings("[[rule]\n").concat().starts_with("line 1: "));
    let twice = rule("a", "x1", "") + &rule("a", "y1", "");
    assert_eq!(findings(&twice), ["line 6: `a` is the name of the rule in line 1, too"]);
    let long = rule("a", &"x".repeat(2001), "");
    assert_eq!(findings(&long), ["line 4: the pattern is longer than 2000 bytes"]);
}

#[test]
fn own_rules_come_before_the_starter_rules_and_replace_those_of_the_same_name() {
    let own = format!("extends = 'starter'\n{}", rule("exit code", "my own", ""));
    let set = rules(&own);
    assert_eq!(set.rules().len(), RuleSet::starter().rules().len());
    assert_eq!((set.rules()[0].name.as_str(), &*set.rules()[0].pattern), ("exit code", "my own"));
}

#[test]
fn every_starter_rule_has_examples_that_it_wins() {
    let set = RuleSet::starter();
    let mut wrong = vec![];
    for rule in set.rules() {
        if rule.examples.is_empty() {
            wrong.push(format!("`{}` has no example", rule.name));
        }
        for example in &rule.examples {
            let winner = matching_rules(&set, example).first().map(|first| first.name.clone());
            let expected = (rule.kind == RuleKind::Match).then(|| rule.name.clone());
            if winner != expected || !rule.is_match(example) {
                wrong.push(format!("{example}: {winner:?} in place of `{}`", rule.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The alternatives of a backtracking engine would take longer than the universe has been there.
#[test]
fn pattern_that_would_backtrack_takes_linear_time() {
    let text = rule("nested", r"^(?:a+)+$", "") + &rule("pairs", r"(?:x+x+)+y", "");
    let log = format!("{}!\n{}\n", "a".repeat(60_000), "x".repeat(60_000)).repeat(10);
    let start = std::time::Instant::now();
    assert_eq!(line_of(&log, &text), None);
    assert!(start.elapsed().as_secs() < 20);
}

#[test]
fn binary_noise_and_floods_of_escape_sequences_are_read_to_the_end() {
    let text = rule("end", "the end", "");
    let mut log = vec![];
    for n in 0..2_000_000_u32 {
        log.push((n.wrapping_mul(2_654_435_761) >> 24) as u8);
    }
    log.extend(b"\n".iter().chain(&b"\x1b[31m\x1b]8;;x\x07\0\xff".repeat(100_000)));
    log.extend(b"the end\xff\xfe");
    let found = found_in(&log, &rules(&text)).unwrap();
    assert!(found.line.ends_with("the end\u{fffd}\u{fffd}"));
}

struct OneLine {
    left: u64,
    end: &'static [u8],
}

impl Read for OneLine {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return self.end.read(buffer);
        }
        let count = buffer.len().min(usize::try_from(self.left).unwrap());
        buffer[..count].fill(b'a');
        self.left -= count as u64;
        Ok(count)
    }
}

#[test]
fn end_of_a_line_of_many_chunks_is_searched_too_and_the_report_stays_small() {
    let text = rule("end", "boom", "");
    let log = OneLine { left: 50_000_000, end: b" boom\n" };
    let found = classify(log, &rules(&text), None).unwrap().found.unwrap();
    assert_eq!(found.line_number, 1);
    assert!(found.line.len() < 5000 && found.line.ends_with("boom"));
}

#[test]
fn compressed_logs_are_read_and_a_cut_one_is_an_error() {
    let text = "error: x\n".repeat(1000);
    let mut gzip = flate2::read::GzEncoder::new(text.as_bytes(), flate2::Compression::fast());
    let mut packed = vec![];
    gzip.read_to_end(&mut packed).unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for packed in [&packed, &zstd] {
        let mut read = String::new();
        unpacked(&packed[..]).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
        let cut = &packed[..packed.len() - 5];
        let read = unpacked(cut).and_then(|mut log| log.read_to_string(&mut String::new()));
        assert!(read.is_err());
    }
    let mut short = String::new();
    unpacked(&b"ab"[..]).unwrap().read_to_string(&mut short).unwrap();
    assert_eq!(short, "ab");
}

/// A job of GitHub Actions whose tests failed; `before` and `after` are what other steps wrote.
fn log_of_failed_tests(before: &str, own: &str, after: &str) -> String {
    format!(
        "##[group]Run ./setup\n##[endgroup]\n{before}\n##[group]Run pytest\n##[endgroup]\n{own}\n\
        ##[error]Process completed with exit code 1.\n##[group]Run other\n##[endgroup]\n{after}\nPost job cleanup.\n"
    )
}

fn found_line(log: &str) -> String {
    classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap().line
}

#[test]
fn failed_test_wins_over_what_counts_anywhere_but_stands_in_another_step() {
    let test = "FAILED test_a.py::test_one - assert 1 == 2";
    for (before, own, after) in [
        ("", "", "##[warning]No files were found with the provided path: a.xml. No artifacts"),
        ("", "", "##[error]No files were found with the provided path: a.xml. No artifacts"),
        ("", "", "##[error]Unable to download artifact(s): Artifact not found for name: a"),
        ("##[warning]Unexpected input(s) 'x', valid inputs are ['y']", "", ""),
        ("upload: AccessDenied when calling PutObject (skipped)", "", ""),
        ("", "test_d.py::test_w[No space left on device] PASSED [ 10%]", ""),
        ("", "test_d.py::test_w XFAIL (CUDA out of memory) [ 10%]", ""),
        ("", "INFO  server: The runner has received a shutdown signal in mock mode", ""),
    ] {
        let log = log_of_failed_tests(before, &format!("{own}\n{test}"), after);
        assert_eq!(found_line(&log), test, "{before}{own}{after}");
    }
}

#[test]
fn line_of_a_specific_rule_is_found_among_hundreds_that_promise_more() {
    let exceptions: String =
        (0..600).map(|n| format!("java.net.ConnectException: error: no route {n}\n")).collect();
    let failed = "[info] - adds *** FAILED ***";
    let log = format!(
        "$ sbt test\n{exceptions}{failed}\n{exceptions}The command \"sbt test\" exited with 1.\n"
    );
    assert_eq!(found_line(&log), failed);
}

#[test]
fn file_whose_diff_is_all_that_a_formatter_prints_is_found() {
    let long: String = (0..100).map(|n| format!(" line {n}\n")).collect();
    for more in ["", &long] {
        let log = format!(
            "##[group]Run ormolu --mode check src\n##[endgroup]\nsrc/Lib.hs\n@@ -1,2 +1,2 @@\n- ( f\n+   ( f,\n\
             {more}##[error]Process completed with exit code 100.\n"
        );
        assert_eq!(found_line(&log), "src/Lib.hs");
    }
}

#[test]
fn error_of_the_runner_or_of_an_earlier_step_wins_over_a_failed_test() {
    let test = "FAILED test_a.py::test_one - assert 1 == 2";
    let shutdown = "##[error]The runner has received a shutdown signal.";
    assert_eq!(found_line(&log_of_failed_tests("", test, shutdown)), shutdown);
    let download = "##[error]Unable to download artifact(s): Artifact not found for name: a";
    assert_eq!(found_line(&log_of_failed_tests(download, test, "")), download);
    let disk = "cp: error writing 'a': No space left on device";
    assert_eq!(found_line(&log_of_failed_tests("", &format!("{disk}\n{test}"), "")), disk);
}

#[test]
fn exception_of_any_name_is_found_and_never_a_line_of_its_traceback() {
    for end in [
        "subprocess.TimeoutExpired: Command '['sleep', '5']' timed out after 1 seconds",
        "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print)",
        "django.core.exceptions.ImproperlyConfigured: Requested setting DATABASES",
        "StopIteration",
    ] {
        let own = format!(
            "step 1 done\nTraceback (most recent call last):\n  File \"a.py\", line 9, in <module>\n    main()\n  \
            File \"a.py\", line 3, in main\n    run(model)\n    ~~~^^^^^^^\n{end}"
        );
        let log = log_of_failed_tests("", &own, "");
        let result = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap();
        assert_eq!(result.found.unwrap().line, end);
        let offered: Vec<&str> = result.candidates.iter().map(|line| &*line.line).collect();
        assert!(
            offered.iter().all(|line| !line.contains("main") && !line.contains("run(")),
            "{offered:?}"
        );
    }
}

#[test]
fn frames_and_echoed_environments_are_never_offered() {
    let own = "Error: it broke\n    at viteLog (file:///src/node.js:34880:57)\n    at file:///src/a.mjs:47:26\n    \
        at async Promise.all (index 0)\n    at eval (eval at run (a.ts:3:2), <anonymous>:13:8)\n\tat com.acme.Core.add(Core.java:7)\n#0 0x55d1 in main a.c:3\n\
        >>> UBSAN_OPTIONS=halt_on_error=1 ./test\n    at least one test failed (see above)";
    let log = log_of_failed_tests("", own, "");
    let result = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap();
    let offered: Vec<&str> = result.candidates.iter().map(|line| &*line.line).collect();
    assert_eq!(offered, ["Error: it broke", "    at least one test failed (see above)"]);
}

#[test]
fn marks_below_source_code_and_rules_between_parts_are_never_offered() {
    let own = "app.rb:7:in `greet': undefined method `name' for nil (NoMethodError)\n\n  puts user.name\n           ^^^^^\n\
        ==========\n   |         ^~~~\n━━━━━━━━";
    let log = log_of_failed_tests("", own, "");
    let result = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap();
    assert!(result.found.unwrap().line.starts_with("app.rb:7"));
    let offered: Vec<&str> = result.candidates.iter().map(|line| &*line.line).collect();
    assert!(offered.iter().all(|line| !line.contains(['^', '='])), "{offered:?}");
}

#[test]
fn rules_of_one_tool_do_not_match_what_others_write() {
    let set = RuleSet::starter();
    for (line, other) in [
        ("   |         ^^ memory access failed: alloc1 has been freed", "PowerShell"),
        ("test/gm_SUITE.erl:19: Warning: behaviour gm undefined", "Erlang"),
        ("src/Core.hs:5:9: Warning: Defined but not used: ‘x’", "HLint"),
        (" ERR_PNPM_RECURSIVE_RUN_FIRST_FAIL  @acme/a@1.0.0 build: `tsc -p .`", "pnpm"),
        ("• [FAILED] [0.000 seconds]", "Ginkgo"),
        ("FAIL src/core.test.js", "Vitest or Pest"),
        ("[!] Error building the application - see the log above", "CocoaPods"),
        ("not ok 1 adds", "bats"),
        ("helm.go:84: [debug] execution error at (app/templates/d.yaml:3:4): x", "Go error"),
        ("ERROR: failed to build: failed to solve: process \"/bin/sh -c make\"", "Bazel"),
    ] {
        let matching = matching_rules(&set, line);
        assert!(matching.iter().all(|rule| rule.name != other), "{line}: {other}");
    }
}

#[test]
fn rule_matches_behind_what_another_tool_writes_before_a_line() {
    for (line, rule) in [
        ("       > a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("app> src/Lib.hs:7:9: error: [GHC-88464]", "GHC"),
        ("#12 0.630 a.c:3:10: fatal error: zlib.h: No such file or directory", "C or C++ error"),
        ("      a.c:3:10: fatal error: zlib.h: No such file or directory", "C or C++ error"),
        ("      csrc/a.cu(21): error: identifier \"foo\" is undefined", "nvcc error"),
        ("[CI/build]   | lib/a.cs(4,9): error CS0103: The name 'totl' does not exist", "C# error"),
        ("[1,0]<stderr>:a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("web-1  | a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("               +test | a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("@acme/web:build: a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("web:build: a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("web_1  | a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("@acme/web: a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("packages/web build: a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("err: a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
        ("[1] a.c:3:1: error: unknown type name 'foo'", "C or C++ error"),
    ] {
        let log = log_of_failed_tests("", &format!("building\n{line}"), "");
        let found = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap();
        assert_eq!((found.rule.as_deref(), &*found.line), (Some(rule), line));
        assert!(!found.captures[0].contains(['|', '>', ' ']), "{:?}", found.captures);
    }
}

#[test]
fn exception_of_a_process_is_found_among_the_lines_of_others() {
    let torchrun = "[rank0]: Traceback (most recent call last):\n\
        [rank0]:   File \"train.py\", line 31, in main\n\
        [rank0]:     loss = a + b\n\
        [rank0]: RuntimeError: The size of tensor a (3) must match";
    let vllm = "(EngineCore_0 pid=22) ERROR 11-20 09:00:05 [core.py:700] Traceback (most recent call last):\n\
        (EngineCore_0 pid=22) ERROR 11-20 09:00:05 [core.py:700]   File \"worker.py\", line 120, in init\n\
        (EngineCore_0 pid=22) ERROR 11-20 09:00:05 [core.py:700]     raise ValueError(\"no\")\n\
        (EngineCore_0 pid=22) ERROR 11-20 09:00:05 [core.py:700] ValueError: Unsupported dtype";
    let mpi = "[1,0]<stderr>:Traceback (most recent call last):\n\
        [1,0]<stderr>:  File \"train.py\", line 12, in <module>\n\
        [1,0]<stderr>:    main()\n\
        [1,0]<stderr>:ValueError: shapes do not match";
    let after = "Traceback (most recent call last):\n  File \"/usr/bin/torchrun\", line 8, in <module>\n    \
        sys.exit(main())\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: ";
    for text in [torchrun, vllm, mpi] {
        let log = log_of_failed_tests("", &format!("{text}\n{after}"), "");
        let found = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap();
        assert_eq!(Some(&*found.line), text.lines().last());
    }
}

#[test]
fn line_that_says_of_itself_that_nothing_failed_is_not_named() {
    for line in [
        "09:00:00 [main] INFO  com.acme.Reporter - error reporting is on",
        "26/11/20 09:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library",
        "{\"level\":\"info\",\"msg\":\"started\",\"error\":\"none\"}",
        "W1120 09:00:00.123000 2210 site-packages/torch/_inductor/utils.py:1137] Not enough SMs",
        "2026-11-20 09:00:00.123: I tensorflow/core/util/port.cc:153] rounding errors are expected",
        "172.18.0.1 - - [20/Nov/2026:09:00:00 +0000] \"GET /error HTTP/1.1\" 200 612 \"-\"",
        "[info] - fails on bad input",
        "==22== ERROR SUMMARY: 0 errors from 0 contexts (suppressed: 0 from 0)",
        "  Errors               0",
        "     http_req_failed................: 0.00%   ✓ 0        ✗ 200",
    ] {
        let log = log_of_failed_tests("", line, "");
        let found = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap();
        assert_eq!(found.rule.as_deref(), Some("exit code"), "{}", found.line);
    }
}

#[test]
fn step_whose_action_fails_is_the_failing_one_whatever_later_steps_print() {
    let log = "##[group]Run ./setup.sh\n##[endgroup]\nDEBUG: cache lookup failed, falling back to network\n\
               INFO: 0 errors so far\n##[group]Run actions/setup-node@v4\n##[endgroup]\n\
               Attempting to download 99...\nDEBUG: cache lookup failed, falling back to network\n\
               ##[error]Unable to find Node version '99' for platform linux and architecture x64.\n\
               ##[group]Run ./notify.sh\n##[endgroup]\nError: notification skipped, webhook not configured\n\
               Post job cleanup.\n";
    let found = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap();
    assert!(found.line.contains("Unable to find Node version"), "{}", found.line);
    // What a script reports before it ends is in the section that it ends.
    let log = "##[group]Run make\n##[endgroup]\n##[error]a.ts(3,5): not assignable\n\
               src/core.c:7:1: error: expected ';'\n##[error]Process completed with exit code 2.\n\
               ##[group]Run ./upload\n##[endgroup]\n##[error]Unable to find any files at dist/*\n";
    let found = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap();
    assert!(found.line.contains("expected ';'"), "{}", found.line);
}

#[test]
fn action_in_a_container_fails_without_an_error_of_the_runner() {
    let log = |cleanup: &str| {
        format!(
            "##[group]Run make\n##[endgroup]\nFAIL: test_old (a.T.test_old)\n##[group]Run acme/publish@v1\n\
             ##[endgroup]\nE: Unable to locate package libcart-dev\nPost job cleanup.\n{cleanup}\
             Post job cleanup.\nCleaning up orphan processes\n"
        )
    };
    assert_eq!(found_line(&log("")), "E: Unable to locate package libcart-dev");
    let of_cleanup = "##[error]fatal: couldn't find remote ref v1\n";
    assert_eq!(found_line(&log(of_cleanup)), of_cleanup.trim_end());
}

#[test]
fn words_of_failure_before_tests_that_all_passed_are_not_named() {
    for line in [
        "    raises ParseError",
        "  * test returns an error for missing files (0.1ms)",
        "2026/11/26 05:00:00 recovered from panic: boom",
        "epoch 1 loss 2.31 error 0.89",
        "  ● Console",
        "1 chart(s) linted, 0 chart(s) failed",
    ] {
        let log = format!(
            "##[group]Run ./check\n##[endgroup]\n{line}\n\n2 examples, 0 failures\n\
             ##[error]Process completed with exit code 1.\n"
        );
        let found = classify(log.as_bytes(), &RuleSet::starter(), None).unwrap().found.unwrap();
        assert_eq!(found.rule.as_deref(), Some("exit code"), "{line}: {}", found.line);
    }
}

/// The found line of a log with one failing step.
fn line_of_step(lines: &str) -> String {
    found_line(&format!(
        "##[group]Run ci\n##[endgroup]\n{lines}##[error]Process completed with exit code 1.\n"
    ))
}

#[test]
fn packages_with_an_error_in_their_name_are_not_named() {
    for line in [
        "Collecting exceptiongroup",
        " + exceptiongroup==1.2.0",
        "  - Installing exceptiongroup (1.2.0)",
        "  exceptional 2.1.3",
        "Installing multierror 1.0",
        "Pulling exceptionless (exceptionless/app:8)",
    ] {
        let found = line_of_step(&format!("{line}\n"));
        assert_eq!(found, "##[error]Process completed with exit code 1.", "{line}");
    }
    let errored = "the upload errored on the mirror";
    assert_eq!(line_of_step(&format!("{errored}\n")), errored);
}

#[test]
fn what_a_passed_test_prints_gives_way_to_the_reported_failure() {
    let of_googletest = "[ RUN      ] Disk.Full\nE1127 07:00:00 12 a.cc:3] No space left on device\n\
        [       OK ] Disk.Full (3 ms)\n[ RUN      ] Core.Adds\na.cc:10: Failure\n\
        [  FAILED  ] Core.Adds (0 ms)\n[  FAILED  ] Core.Adds\n";
    assert_eq!(line_of_step(of_googletest), "[  FAILED  ] Core.Adds (0 ms)");
    let of_go = "=== RUN   TestFull\n    disk_test.go:10: write: no space left on device\n\
        --- PASS: TestFull (0.01s)\n=== RUN   TestAdd\n    add_test.go:8: got 2, want 3\n\
        --- FAIL: TestAdd (0.00s)\nFAIL\n";
    assert_eq!(line_of_step(of_go), "--- FAIL: TestAdd (0.00s)");
    let of_surefire = "[INFO] Running a.DiskTest\n09:00:00 [main] ERROR a.Disk - No space left on device\n\
        [INFO] Tests run: 1, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s -- in a.DiskTest\n\
        [ERROR] a.CoreTest.adds -- Time elapsed: 0.01 s <<< FAILURE!\n";
    assert!(line_of_step(of_surefire).starts_with("[ERROR] a.CoreTest.adds"));
    // A program with a data race fails at its end, after its tests have passed.
    let raced = "[ RUN      ] Core.Adds\nWARNING: ThreadSanitizer: data race (pid=7)\n    #0 add\n\
        [       OK ] Core.Adds (3 ms)\n[  PASSED  ] 1 test.\nThreadSanitizer: reported 1 warnings\n";
    assert_eq!(line_of_step(raced), "WARNING: ThreadSanitizer: data race (pid=7)");
    // Without a result, it isn't known that the test handles the error.
    let cut = "[ RUN      ] Disk.Full\nE1127 07:00:00 12 a.cc:3] No space left on device\n";
    assert!(line_of_step(cut).ends_with("No space left on device"));
}

#[test]
fn what_tests_print_gives_way_to_what_pytest_and_unittest_report() {
    let of_pytest = "===== FAILURES =====\n_____ test_b _____\n>       assert count() == 3\n\
        E       assert 2 == 3\ntests/test_a.py:9: AssertionError\n----- Captured log call -----\n\
        WARNING  root:a.py:3 write failed with No space left on device, using memory\n\
        ----- Captured stderr call -----\nModuleNotFoundError: No module named 'fast'\n\
        ===== short test summary info =====\nFAILED tests/test_a.py::test_b - assert 2 == 3\n\
        ===== 1 failed in 0.12s =====\n";
    assert_eq!(line_of_step(of_pytest), "FAILED tests/test_a.py::test_b - assert 2 == 3");
    let rule = "=".repeat(70);
    let of_unittest = |message: &str| {
        format!(
            "handled: CUDA out of memory. Tried to allocate 2.00 GiB\n.F\n{rule}\n\
             ERROR: test_b (t.T.test_b)\nTraceback (most recent call last):\n  File \"t.py\", line 7, in test_b\n\
             {message}\nRan 2 tests in 0.1s\n"
        )
    };
    assert_eq!(line_of_step(&of_unittest("KeyError: 'a'")), "ERROR: test_b (t.T.test_b)");
    let full = "OSError: [Errno 28] No space left on device";
    assert_eq!(line_of_step(&of_unittest(full)), full, "the failure itself says so");
}
