use super::super::jobs_of_record;
use super::super::tests::{at, attempt};
use super::*;
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::protocol::callback::{FailedTest, TestCounts};

const GOOD: JobState = JobState::Completed(Conclusion::Success);
const BAD: JobState = JobState::Completed(Conclusion::Failure);

/// A result of a backend's job on the pull request's head, at second 1,000.
fn here(repo: &str, state: JobState, tests: &[&str]) -> AttemptFact {
    let failed = |name: &&str| FailedTest { name: (*name).to_owned(), ..FailedTest::default() };
    let mut row = attempt(&format!("d-{repo}"), "head", &format!("1-{repo}"), 1, state, 1000);
    row.repo = repo.into();
    row.details.failed_tests = tests.iter().map(failed).collect();
    row.details.url = Some(format!("https://ci.test/{repo}"));
    row
}

fn ended_in(phase: &str, mut row: AttemptFact) -> AttemptFact {
    row.details.phase = Some(phase.into());
    row
}

/// A result on one of upstream's own commits.
fn upstream(repo: &str, sha: &str, state: JobState, tests: &[&str], s: i64) -> AttemptFact {
    AttemptFact {
        event: EventName::Push,
        pull_request: None,
        head_sha: sha.into(),
        delivery: format!("{sha}-{repo}"),
        run_id: format!("{sha}-{repo}"),
        received_at: at(s),
        dispatched_at: at(s - 60),
        ..here(repo, state, tests)
    }
}

fn nightly(row: AttemptFact) -> AttemptFact {
    AttemptFact { event: EventName::Nightly, ..row }
}

/// The verdict on the job of `acme/one`, the first row of the head.
fn verdict_on_first(head: &[AttemptFact], branch: &[AttemptFact]) -> Option<TriageVerdict> {
    let (head, branch) = (jobs_of_record(head, &[]), jobs_of_record(branch, &[]));
    let context = BlameContext {
        head: &head,
        branch: &BranchResults::new(&branch),
        merge_base: Some("base"),
        pull_request: Some(7),
        first: Timestamp::MIN,
        last: Timestamp::MAX,
    };
    let job = head.iter().find(|job| job.record.repo == "acme/one").unwrap();
    context.verdict(job)
}

fn summary(head: &[AttemptFact], branch: &[AttemptFact]) -> String {
    let Some(verdict) = verdict_on_first(head, branch) else { return "no verdict".to_owned() };
    let (category, confidence) = (verdict.category.as_str(), verdict.confidence.as_str());
    format!("{category} {confidence}: {}", verdict.summary)
}

#[test]
fn every_case_has_its_verdict() {
    let bad = || here("acme/one", BAD, &[]);
    let base_good = || upstream("acme/one", "base", GOOD, &[], 100);
    let base_bad = || upstream("acme/one", "base", BAD, &[], 100);
    let infra = ended_in("setup", bad());
    let second = |state| AttemptFact {
        run_attempt: 2,
        received_at: at(2000),
        ..here("acme/one", state, &[])
    };
    let cases = [
        ("passed", vec![here("acme/one", GOOD, &[])], vec![]),
        ("flaky", vec![bad(), second(GOOD)], vec![]),
        ("setup failed", vec![infra], vec![]),
        (
            "timed out",
            vec![here("acme/one", JobState::Completed(Conclusion::TimedOut), &[])],
            vec![],
        ),
        ("lost", vec![here("acme/one", JobState::Lost, &[])], vec![]),
        (
            "cancelled",
            vec![here("acme/one", JobState::Completed(Conclusion::Cancelled), &[])],
            vec![],
        ),
        ("nothing known of the base", vec![bad()], vec![]),
        ("red on the base", vec![bad()], vec![base_bad()]),
        (
            "red on the base for two backends",
            vec![bad(), here("acme/two", BAD, &[])],
            vec![base_bad(), upstream("acme/two", "base", BAD, &[], 100)],
        ),
        (
            "red on the base, and for another backend, which passes here",
            vec![bad(), here("acme/two", GOOD, &[])],
            vec![base_bad(), upstream("acme/two", "base", BAD, &[], 100)],
        ),
        (
            "green on the base and red in the newest nightly",
            vec![bad()],
            vec![base_good(), nightly(upstream("acme/one", "night", BAD, &[], 500))],
        ),
        (
            "a nightly after the dispatch counts for nothing",
            vec![bad()],
            vec![base_good(), nightly(upstream("acme/one", "night", BAD, &[], 990))],
        ),
        (
            "green on the base after a red nightly",
            vec![bad()],
            vec![base_good(), nightly(upstream("acme/one", "night", BAD, &[], 50))],
        ),
        (
            "it doesn't build, and a test fails on the base",
            vec![ended_in("build", bad())],
            vec![ended_in("test", upstream("acme/one", "base", BAD, &["a"], 100))],
        ),
        (
            "a test fails, and the base doesn't build",
            vec![ended_in("test", here("acme/one", BAD, &["a"]))],
            vec![ended_in("build", base_bad())],
        ),
        (
            "it fails twice in different tests",
            vec![
                here("acme/one", BAD, &["a"]),
                AttemptFact {
                    run_attempt: 2,
                    received_at: at(2000),
                    ..here("acme/one", BAD, &["b"])
                },
            ],
            vec![base_good()],
        ),
        ("green on the base, alone", vec![bad()], vec![base_good()]),
        (
            "green on the base, the others pass",
            vec![bad(), here("acme/two", GOOD, &[]), here("acme/three", GOOD, &[])],
            vec![base_good()],
        ),
        (
            "green on the base for all, and all fail",
            vec![bad(), here("acme/two", BAD, &[])],
            vec![base_good(), upstream("acme/two", "base", GOOD, &[], 100)],
        ),
        (
            "two of three fail",
            vec![bad(), here("acme/two", BAD, &[]), here("acme/three", GOOD, &[])],
            vec![base_good(), upstream("acme/two", "base", GOOD, &[], 100)],
        ),
        (
            "two of three fail, in different tests",
            vec![
                here("acme/one", BAD, &["a"]),
                here("acme/two", BAD, &["b"]),
                here("acme/three", GOOD, &[]),
            ],
            vec![base_good(), upstream("acme/two", "base", GOOD, &[], 100)],
        ),
        (
            "two of three fail in a common test",
            vec![
                here("acme/one", BAD, &["a", "b"]),
                here("acme/two", BAD, &["b", "c"]),
                here("acme/three", GOOD, &[]),
            ],
            vec![base_good(), upstream("acme/two", "base", GOOD, &[], 100)],
        ),
        (
            "all fail, in different tests",
            vec![here("acme/one", BAD, &["a"]), here("acme/two", BAD, &["b"])],
            vec![base_good(), upstream("acme/two", "base", GOOD, &[], 100)],
        ),
        (
            "red on the base for two backends in different tests",
            vec![here("acme/one", BAD, &["a"]), here("acme/two", BAD, &["b"])],
            vec![
                upstream("acme/one", "base", BAD, &["a"], 100),
                upstream("acme/two", "base", BAD, &["b"], 100),
            ],
        ),
        (
            "the other one failed before, too",
            vec![bad(), here("acme/two", BAD, &[])],
            vec![base_good(), upstream("acme/two", "base", BAD, &[], 100)],
        ),
        (
            "the other one's infrastructure says nothing",
            vec![bad(), ended_in("checkout", here("acme/two", BAD, &[]))],
            vec![base_good()],
        ),
        (
            "green on an earlier push only",
            vec![bad()],
            vec![upstream("acme/one", "push", GOOD, &[], 100)],
        ),
        (
            "red on the base in other tests",
            vec![here("acme/one", BAD, &["a", "b"])],
            vec![upstream("acme/one", "base", BAD, &["b"], 100)],
        ),
        (
            "red on the base in the same tests",
            vec![here("acme/one", BAD, &["b"])],
            vec![upstream("acme/one", "base", BAD, &["b", "c"], 100)],
        ),
        (
            "red on the base, and for two pushes before",
            vec![bad()],
            vec![
                upstream("acme/one", "green", GOOD, &[], 70),
                upstream("acme/one", "first", BAD, &[], 80),
                upstream("acme/one", "second", BAD, &[], 90),
                nightly(upstream("acme/one", "night", GOOD, &[], 95)),
                base_bad(),
                upstream("acme/one", "after", BAD, &[], 110),
            ],
        ),
        (
            "red on the base, and green before",
            vec![bad()],
            vec![upstream("acme/one", "green", GOOD, &[], 90), base_bad()],
        ),
        ("green on the base, failed twice here", vec![bad(), second(BAD)], vec![base_good()]),
        (
            "green on the base, failed twice here, and the other passes",
            vec![bad(), second(BAD), here("acme/two", GOOD, &[])],
            vec![base_good()],
        ),
        (
            "green on the base, and a push after it is red",
            vec![bad()],
            vec![base_good(), upstream("acme/one", "push", BAD, &[], 200)],
        ),
        (
            "a push that ended after the job counts for nothing",
            vec![bad()],
            vec![upstream("acme/one", "push", GOOD, &[], 1000)],
        ),
        (
            "a probe of another commit counts for nothing",
            vec![bad()],
            vec![AttemptFact {
                event: EventName::Probe,
                ..upstream("acme/one", "probed", GOOD, &[], 200)
            }],
        ),
        (
            "a merge group with the pull request in it counts for nothing",
            vec![bad()],
            vec![AttemptFact {
                event: EventName::MergeGroup,
                ..upstream("acme/one", "group", BAD, &[], 200)
            }],
        ),
        (
            "red in a nightly run without a proven commit",
            vec![bad()],
            vec![
                base_good(),
                AttemptFact {
                    head_sha: "".into(),
                    ..nightly(upstream("acme/one", "night", BAD, &[], 500))
                },
            ],
        ),
    ];
    let table = cases.map(|(case, head, branch)| format!("{case}: {}", summary(&head, &branch)));
    insta::assert_snapshot!(table.join("\n"));
}

/// Reports name some of their failed tests, and count all of them.
#[test]
fn tests_that_are_counted_and_not_named_are_neither_the_same_nor_others() {
    let counted = |failed, mut row: AttemptFact| {
        row.details.tests = Some(TestCounts { passed: 9, failed, skipped: 0, total: failed + 9 });
        row
    };
    let base =
        |failed, tests: &[&str]| counted(failed, upstream("acme/one", "base", BAD, tests, 100));
    let one = |failed, tests: &[&str]| counted(failed, here("acme/one", BAD, tests));
    let again = |row: AttemptFact| AttemptFact { run_attempt: 2, received_at: at(2000), ..row };
    let others = "unknown medium: This pull request or the backend: it failed in other tests on the merge base";
    let perhaps = "unknown medium: This pull request or the backend: it failed on the merge base, too, \
                   perhaps in the same tests";
    let same = "backend medium: Not this pull request: it failed on the merge base, too";
    for (head, base, expected) in [
        (vec![one(500, &["a"])], base(1, &["a"]), others),
        (vec![one(500, &[])], base(1, &["a"]), others),
        (vec![one(500, &[])], base(1, &[]), others),
        (vec![one(1, &["b"])], base(30, &["a"]), perhaps),
        (vec![one(1, &["b"]), again(one(1, &["b"]))], base(30, &["a"]), perhaps),
        (vec![one(1, &["b"]), here("acme/two", GOOD, &[])], base(30, &["a"]), perhaps),
        (vec![one(1, &["a"])], base(30, &["a"]), same),
        (vec![one(3, &["a"])], base(3, &["a"]), same),
        (vec![one(1, &[])], base(30, &["a"]), same),
        (vec![one(4, &[])], base(0, &[]), same),
    ] {
        assert_eq!(summary(&head, &[base]), expected);
    }
}

#[test]
fn failures_that_fill_all_known_results_began_at_the_first_of_them_at_the_latest() {
    let bad = [here("acme/one", BAD, &[])];
    let mut branch = vec![
        upstream("acme/one", "first", BAD, &[], 80),
        upstream("acme/one", "second", BAD, &[], 90),
        upstream("acme/one", "base", BAD, &[], 100),
    ];
    let ends = |branch: &[AttemptFact], since: &str| {
        let told = summary(&bad, branch);
        assert!(told.ends_with(&format!(", and it does so since {since} (2026-09-21)")), "{told}");
    };
    ends(&branch, "at least first");
    branch.push(upstream("acme/one", "green", GOOD, &[], 70));
    ends(&branch, "first");
}

#[test]
fn verdict_links_the_results_that_it_rests_on() {
    let head = [here("acme/one", BAD, &[]), here("acme/two", BAD, &[])];
    let branch = [
        upstream("acme/one", "base", GOOD, &[], 100),
        upstream("acme/two", "base", GOOD, &[], 100),
    ];
    let verdict = verdict_on_first(&head, &branch).unwrap();
    assert_eq!(verdict.suspected_upstream.as_ref().unwrap().pr, Some(7));
    let links = verdict
        .evidence
        .iter()
        .map(|item| (item.job.as_deref().unwrap(), item.log_url.as_deref().unwrap()));
    assert_eq!(
        links.collect::<Vec<_>>(),
        [
            ("acme/one · test on base", "https://ci.test/acme/one"),
            ("acme/one · test on head", "https://ci.test/acme/one"),
            ("acme/two · test on head", "https://ci.test/acme/two"),
        ]
    );
    let json = serde_json::to_value(&verdict).unwrap();
    let read = TriageVerdict::read(&json).expect("it is a verdict of version 1");
    assert_eq!(read, verdict);
}

#[test]
fn verdict_says_whether_a_retry_failed_again_and_which_commit_is_suspected() {
    let bad = here("acme/one", BAD, &[]);
    let second = |state| AttemptFact {
        run_attempt: 2,
        received_at: at(2000),
        ..here("acme/one", state, &[])
    };
    let retried = |head: &[AttemptFact]| verdict_on_first(head, &[]).unwrap().reproduced_on_retry;
    assert_eq!(retried(std::slice::from_ref(&bad)), None);
    assert_eq!(retried(&[bad.clone(), second(BAD)]), Some(true));
    assert_eq!(retried(&[bad.clone(), second(GOOD)]), Some(false));
    let lost = here("acme/one", JobState::Lost, &[]);
    assert_eq!(retried(&[lost]), None);
    let red = |repo| upstream(repo, "base", BAD, &[], 100);
    let suspect = |branch: &[AttemptFact]| {
        let head = [bad.clone(), here("acme/two", BAD, &[])];
        verdict_on_first(&head, branch).unwrap().suspected_upstream
    };
    assert_eq!(suspect(&[red("acme/one")]), None);
    let both = suspect(&[red("acme/one"), red("acme/two")]).unwrap();
    assert_eq!((both.commit.as_deref(), both.pr), (Some("base"), None));
}

#[test]
fn upstream_was_broken_before_if_its_own_commit_is_accused_and_not_the_pull_request() {
    let head = [here("acme/one", BAD, &[]), here("acme/two", BAD, &[])];
    for (base, was_broken) in [(BAD, true), (GOOD, false)] {
        let branch = ["acme/one", "acme/two"].map(|repo| upstream(repo, "base", base, &[], 100));
        let verdict = verdict_on_first(&head, &branch).unwrap();
        assert_eq!(verdict.category, TriageCategory::Upstream);
        assert_eq!(verdict.was_broken_before(), was_broken, "{}", verdict.summary);
    }
}

/// A nightly run may be on the commit of a push that was days before.
#[test]
fn on_a_commit_of_upstream_only_results_of_about_the_same_time_are_compared() {
    let day = SAME_COMMIT.as_secs();
    let branch = ["acme/one", "acme/two"].map(|repo| upstream(repo, "base", GOOD, &[], 100));
    let branch = jobs_of_record(&branch, &[]);
    for (second, category) in [
        (1000, TriageCategory::Upstream),
        (1000 - day, TriageCategory::Upstream),
        (1000 - day - 1, TriageCategory::Unknown),
    ] {
        let failed = |repo, s| upstream(repo, "head", BAD, &[], s);
        let head = [failed("acme/one", 1000), failed("acme/two", second)];
        let head = jobs_of_record(&head, &[]);
        let context = BlameContext {
            head: &head,
            branch: &BranchResults::new(&branch),
            merge_base: Some("base"),
            pull_request: None,
            first: Timestamp::MIN,
            last: Timestamp::MAX,
        };
        let job = head.iter().find(|job| job.record.repo == "acme/one").unwrap();
        let verdict = context.verdict(job).unwrap();
        assert_eq!(verdict.category, category, "{second}: {}", verdict.summary);
    }
}

#[test]
fn nightly_that_ends_as_the_job_is_dispatched_is_not_the_one_before_it() {
    let bad = [here("acme/one", BAD, &[])];
    let good = upstream("acme/one", "base", GOOD, &[], 100);
    let with = |s| [good.clone(), nightly(upstream("acme/one", "night", BAD, &[], s))];
    let alone = summary(&bad, std::slice::from_ref(&good));
    assert_eq!(summary(&bad, &with(940)), alone);
    assert_ne!(summary(&bad, &with(939)), alone);
}

#[test]
fn failure_after_a_cancelled_attempt_or_beside_another_leg_is_not_its_second_one() {
    let base = [upstream("acme/one", "base", GOOD, &[], 100)];
    let bad = |attempt| AttemptFact {
        run_attempt: attempt,
        received_at: at(2000),
        ..here("acme/one", BAD, &[])
    };
    let cancelled = here("acme/one", JobState::Completed(Conclusion::Cancelled), &[]);
    let unready = ended_in("setup", here("acme/one", BAD, &[]));
    let mut leg = here("acme/one", GOOD, &[]);
    leg.details.check_run_id = Some("of another leg".to_owned());
    for head in [[cancelled, bad(2)], [unready, bad(2)], [leg, bad(1)]] {
        let verdict = verdict_on_first(&head, &base).unwrap();
        assert_eq!(verdict.category, TriageCategory::Unknown, "{}", verdict.summary);
        assert_eq!(verdict.reproduced_on_retry, None);
    }
}

#[test]
fn verdicts_of_several_days_are_kept_together() {
    let row = here("acme/one", BAD, &[]);
    let verdict = verdict_on_first(std::slice::from_ref(&row), &[]).unwrap();
    let day: BlamedJobs = [(AttemptId::of(&row), verdict.clone())].into_iter().collect();
    let mut all = BlamedJobs::default();
    assert!(all.is_empty());
    all.add(&day);
    assert_eq!((all.len(), all.is_empty()), (1, false));
    assert_eq!(all.verdict(&row), Some(&verdict));
    assert_eq!(all.verdict(&here("acme/two", BAD, &[])), None);
}

#[test]
fn test_is_new_if_it_failed_in_none_of_the_last_runs_upstream() {
    let head = [here("acme/one", BAD, &["old", "new", "long ago"])];
    let mut branch: Vec<_> = (0..KNOWN_FAILURE_RUNS as i64)
        .map(|n| upstream("acme/one", &format!("push{n}"), BAD, &["old"], 200 + n))
        .collect();
    branch.push(upstream("acme/one", "ancient", BAD, &["long ago"], 100));
    // No earlier run: it ended when the job did.
    branch.push(upstream("acme/one", "meanwhile", BAD, &["new"], 1000));
    let (head, branch) = (jobs_of_record(&head, &[]), jobs_of_record(&branch, &[]));
    let new_tests = |branch: &BranchResults<'_>| {
        let context = BlameContext {
            head: &head,
            branch,
            merge_base: None,
            pull_request: Some(7),
            first: Timestamp::MIN,
            last: Timestamp::MAX,
        };
        context.new_tests(&head[0])
    };
    assert_eq!(new_tests(&BranchResults::new(&branch)), Some(vec![false, true, true]));
    assert_eq!(new_tests(&BranchResults::default()), None, "nothing to compare with");
}
