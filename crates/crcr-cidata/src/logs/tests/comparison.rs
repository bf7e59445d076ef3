//! A log beside those of other runs of its job.

use crcr_domain::ci_data::job_log::LogMatchSource;

use super::super::{Baseline, RuleSet, classify};
use super::{green_run, rule, rules};

#[test]
fn comparison_reports_lines_that_a_green_run_never_has() {
    let green = "2026-01-01T00:00:00.1Z Set up run 17 in /tmp/a1\nBuilt in 3.5 s\nChecked 4096 files, commit 0123abcdef\ndone\n";
    let failed = "2026-02-02T00:00:00.1Z Set up run 23 in /var/b2\nBuilt in 4.75 s\nChecked 9 files, commit fedcba98765\nwidget exploded in room 7\nERROR: widget failed\nnoise 1\nnoise 2\ndone\n";
    let baseline = green_run(green);
    let set = rules(&rule("none", "nothing here", ""));
    let result = classify(failed.as_bytes(), &set, Some(&baseline)).unwrap();
    let novel: Vec<(u64, &str)> =
        result.novel.iter().map(|novel| (novel.line_number, novel.line.as_str())).collect();
    // What occurs twice comes last.
    assert_eq!(
        novel,
        [(5, "ERROR: widget failed"), (4, "widget exploded in room 7"), (7, "noise 2")]
    );
    assert_eq!(
        (result.candidates[0].by, result.candidates[0].line_number),
        (LogMatchSource::Diff, 5)
    );
}

#[test]
fn error_that_the_green_run_has_too_gives_way_to_a_new_line() {
    let step = |lines: &str| {
        format!(
            "##[group]Run check\n##[endgroup]\n{lines}##[error]Process completed with exit code 1.\n"
        )
    };
    let failed =
        step("error: cache not found, going on\nerror: config invalid: no `name` in line 3\n");
    let green = "##[group]Run check\n##[endgroup]\nerror: cache not found, going on\n";
    let baseline = green_run(green);
    let set = RuleSet::starter();
    let best =
        |baseline| classify(failed.as_bytes(), &set, baseline).unwrap().candidates.remove(0).line;
    assert_eq!(best(Some(&baseline)), "error: config invalid: no `name` in line 3");
}

#[test]
fn error_that_earlier_logs_of_the_job_have_too_gives_way_to_one_that_none_has() {
    let quiet: String = (1..40).map(|n| format!("step {n} is done\n")).collect();
    let log = |cause: &str, mirror: u32| {
        format!(
            "##[group]Run check\n##[endgroup]\nerror: {cause}\n{quiet}\
             error: no answer from mirror {mirror}, going on\n##[error]Process completed with exit code 1.\n"
        )
    };
    let mut logs = Baseline::default();
    for cause in ["disk is full", "host is down", "port is taken"] {
        logs.add_earlier(log(cause, 3).as_bytes()).unwrap();
    }
    let failed = log("name is misspelled", 7);
    let set = rules(&rule("none", "nothing here", ""));
    let first = |logs| classify(failed.as_bytes(), &set, logs).unwrap();
    assert_eq!(first(None).candidates[0].line, "error: no answer from mirror 7, going on");
    let compared = first(Some(&logs));
    assert_eq!(compared.candidates[0].line, "error: name is misspelled");
    assert_eq!(compared.novel, [], "only a green run tells what is new");
}

#[test]
fn error_of_a_step_that_passed_is_found_if_no_green_run_has_it() {
    let log = |described: &str, failed: &str| {
        let tags: String = (1..1000).map(|n| format!("v1.{n}.0\n")).collect();
        format!(
            "##[group]Run git describe | tee version\n##[endgroup]\n{tags}{described}\n\
             ##[group]Run ./split\n##[endgroup]\n{failed}Post job cleanup.\n"
        )
    };
    let green = green_run(&log("v1.999.0", "split\n"));
    let error = "fatal: No tags can describe '60a189413d732eccd0158591618422c7cad1aed7'.";
    let failed = log(error, "##[error]Process completed with exit code 1.\n");
    let found = classify(failed.as_bytes(), &RuleSet::starter(), Some(&green)).unwrap();
    assert_eq!(found.found.unwrap().line, error);
}

#[test]
fn rule_does_not_decide_about_a_line_that_the_green_run_has_too() {
    let oom = "config 17 skipped: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
    let log = |in_first: &str, in_second: &str| {
        format!(
            "##[group]Run pytest\n##[endgroup]\n{in_first}1 passed in 41.20s\n\
             ##[group]Run check_perf\n##[endgroup]\n{in_second}Post job cleanup.\n"
        )
    };
    let regression = "Regression: resnet50 is 23.0 % slower than main (limit: 5 %)";
    let failed = format!("{regression}\n##[error]Process completed with exit code 1.\n");
    let skipped = format!("{oom}\n");
    let found = |log: &str, baseline: Option<&Baseline>| {
        classify(log.as_bytes(), &RuleSet::starter(), baseline).unwrap().candidates.remove(0)
    };
    let green = green_run(&log(&skipped, "fine\n"));
    let in_other_step = log(&skipped, &failed);
    assert_eq!(found(&in_other_step, Some(&green)).line, regression);
    assert_eq!(found(&in_other_step, None).line, oom);
    // In the step that failed it may still be likely, but not by the rule alone.
    let green = green_run(&log("", &format!("{skipped}fine\n")));
    let in_failed_step = log("", &format!("{skipped}{failed}"));
    assert!(found(&in_failed_step, Some(&green)).certainty_percent < 80);
    assert_eq!(found(&in_failed_step, None).certainty_percent, 90);
}

#[test]
fn rule_wins_over_the_comparison_and_a_last_resort_loses_against_it() {
    let set = rules(
        &(rule("known", "known cause", "")
            + "[[rule]]\nname = 'exit code'\ncategory = 'last-resort'\npattern = 'exit code \\d+'\n"),
    );
    let baseline = green_run("fine\n");
    let by = |log: &str, baseline| {
        classify(log.as_bytes(), &set, baseline).unwrap().found.map(|found| (found.by, found.line))
    };
    let odd = "fine\nFAIL: odd thing\nexit code 1\n";
    assert_eq!(
        by(odd, Some(&baseline)),
        Some((LogMatchSource::Diff, "FAIL: odd thing".to_owned()))
    );
    assert_eq!(
        by("fine\nexit code 1\n", Some(&baseline)),
        Some((LogMatchSource::Rule, "exit code 1".to_owned()))
    );
    let known = "known cause\nFAIL: odd thing\nexit code 1\n";
    assert_eq!(by(known, Some(&baseline)), Some((LogMatchSource::Rule, "known cause".to_owned())));
}

#[test]
fn comparison_of_endless_new_lines_keeps_the_last_ones() {
    let baseline = green_run("fine\n");
    let name =
        |n: u32| n.to_string().bytes().map(|digit| char::from(digit + 49)).collect::<String>();
    let log: String = (0..20_000).map(|n| format!("new {}\n", name(n))).collect();
    let set = rules(&rule("none", "nothing here", ""));
    let result = classify(log.as_bytes(), &set, Some(&baseline)).unwrap();
    assert_eq!(result.novel.len(), 50);
    assert_eq!(result.novel[0].line_number, 20_000);
}
