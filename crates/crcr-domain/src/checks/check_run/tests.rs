use super::*;
use crate::protocol::callback::{FailedTest, TestCounts};

fn job() -> JobId {
    JobId {
        run_id: "12".to_owned(),
        run_attempt: 1,
        workflow: "CI".to_owned(),
        job: Some("test / linux".to_owned()),
    }
}

fn context(level: Level) -> CheckRunContext<'static> {
    CheckRunContext {
        repo: "acme/backend",
        level,
        oncalls: &[],
        server_url: "https://github.com",
        pull_request: Some(7),
        page: None,
        blame: None,
        keeps_failing: false,
        nonblocking: None,
    }
}

fn content(
    context: &CheckRunContext<'_>,
    state: JobState,
    details: &ReportDetails,
) -> CheckRunContent {
    let shown = ShownJob {
        id: &job(),
        state,
        details,
        ended_without_proof: false,
        is_foreign: false,
        failed_before: false,
    };
    job_content(context, &shown)
}

#[test]
fn neutral_title_says_why_it_is_neutral() {
    let reason = "The worst of its runs and jobs: failure".to_owned();
    let state = HeadState::Ended(Conclusion::Failure);
    let verdict = HeadVerdict { state, run: None, is_foreign: false, reason };
    let open = CheckRunContext { keeps_failing: true, ..context(Level::L4) };
    let shown = dispatch_content(&open, &verdict);
    let title = shown.title;
    assert!(title.starts_with("Neutral, because this backend's infrastructure"), "{title}");
    assert!(shown.summary.contains("has failed several times in a row"), "{}", shown.summary);
    let soft = CheckRunContext { nonblocking: Some(Conclusion::Neutral), ..context(Level::L3) };
    let shown = dispatch_content(&soft, &verdict);
    let title = shown.title;
    assert!(title.starts_with("Neutral, because failures at L3 block nobody"), "{title}");
    assert!(!shown.summary.contains("several times in a row"), "{}", shown.summary);
    let title = dispatch_content(&context(Level::L4), &verdict).title;
    assert_eq!(title, verdict.reason);
}

/// Another job of the same dispatch may have passed, or still run.
#[test]
fn only_what_failed_is_neutral_while_the_infrastructure_keeps_failing() {
    let open = CheckRunContext { keeps_failing: true, ..context(Level::L4) };
    let passed = JobState::Completed(Conclusion::Success);
    for (state, status, title) in [
        (passed, CheckRunStatus::Completed(Conclusion::Success), "Success"),
        (JobState::InProgress, CheckRunStatus::InProgress, "In progress"),
    ] {
        let shown = content(&open, state, &ReportDetails::default());
        assert_eq!((shown.status, &*shown.title), (status, title));
        assert!(!shown.summary.contains("Neutral"), "{}", shown.summary);
    }
}

#[test]
fn verdict_says_how_to_run_a_failure_again_and_links_the_run() {
    let shown = |state| {
        let (run, reason) = (Some("12".to_owned()), "Why".to_owned());
        let verdict = HeadVerdict { state, run, is_foreign: false, reason };
        dispatch_content(&context(Level::L4), &verdict)
    };
    let url = "https://github.com/acme/backend/actions/runs/12";
    for (state, status, is_bad) in [
        (HeadState::Running, CheckRunStatus::InProgress, false),
        (
            HeadState::Ended(Conclusion::Success),
            CheckRunStatus::Completed(Conclusion::Success),
            false,
        ),
        (
            HeadState::Ended(Conclusion::Failure),
            CheckRunStatus::Completed(Conclusion::Failure),
            true,
        ),
    ] {
        let shown = shown(state);
        assert_eq!((shown.status, &*shown.title), (status, "Why"));
        assert_eq!(shown.summary.contains("press *Re-run*"), is_bad, "{}", shown.summary);
        assert_eq!(shown.details_url.as_deref(), Some(url));
        assert_eq!(shown.external_id.as_deref(), Some("12:7"));
    }
}

#[test]
fn failed_job_elsewhere_says_that_rerun_does_not_reach_it() {
    let (id, details) = (job(), ReportDetails::default());
    let shown = ShownJob {
        id: &id,
        state: JobState::Completed(Conclusion::Failure),
        details: &details,
        ended_without_proof: false,
        is_foreign: true,
        failed_before: false,
    };
    let content = job_content(&context(Level::L4), &shown);
    assert!(content.summary.contains("retry the job in its own CI"), "{}", content.summary);
    assert_eq!(content.external_id.as_deref(), Some("build-12:7"));
    assert_eq!(
        content.details_url, None,
        "the number of a build elsewhere isn't that of a run on GitHub"
    );
}

#[test]
fn whose_fault_a_failure_is_stands_in_its_text_and_cannot_format_it() {
    let blame = Some("Infrastructure: it failed in `x` @all [a](https://b.c)`, before");
    let ended = JobState::Completed(Conclusion::Failure);
    let known = CheckRunContext { blame, ..context(Level::L4) };
    let shown = content(&known, ended, &ReportDetails::default());
    let line =
        "by the other results: `Infrastructure: it failed in 'x' @all [a](https://b.c)', before`";
    assert!(shown.summary.contains(line), "{}", shown.summary);
}

#[test]
fn with_a_public_address_every_check_run_links_the_pull_requests_page() {
    let page = Some("https://relay.test/pr/7");
    let known = CheckRunContext { page, ..context(Level::L4) };
    let ended = JobState::Completed(Conclusion::Success);
    let shown = content(&known, ended, &ReportDetails::default());
    assert!(shown.summary.contains("https://relay.test/pr/7"), "{}", shown.summary);
    assert!(shown.details_url.unwrap().ends_with("/actions/runs/12"), "the run stays in front");
    let reason = "Dispatched".to_owned();
    let waiting = HeadVerdict { state: HeadState::Queued, run: None, is_foreign: false, reason };
    let shown = dispatch_content(&known, &waiting);
    assert_eq!(shown.details_url.as_deref(), page, "its run hasn't started");
    assert!(shown.summary.contains("https://relay.test/pr/7"), "{}", shown.summary);
    let shown = dispatch_content(&context(Level::L4), &waiting);
    assert_eq!(shown.details_url, None);
}

#[test]
fn a_name_leads_back_to_its_repository() {
    assert_eq!(repo_of(&job_name("acme/backend", &job())), Some("acme/backend"));
    assert_eq!(repo_of(&dispatch_name("acme/backend")), Some("acme/backend"));
    for foreign in ["lint", "crcr/", "crcr/acme", "crcr/acme/backend", "crcr//backend/x"] {
        assert_eq!(repo_of(foreign), None, "{foreign}");
    }
}

#[test]
fn no_two_jobs_share_a_check_run_and_none_has_the_dispatchs() {
    let named = |workflow: &str, name: &str| {
        let id = JobId { workflow: workflow.to_owned(), job: Some(name.to_owned()), ..job() };
        job_name("acme/backend", &id)
    };
    let long = "x".repeat(200);
    let names = [
        named("a/b", "c"),
        named("a", "b/c"),
        named("a%2Fb", "c"),
        named("a%252Fb", "c"),
        named("relay", "dispatch"),
        named(&long, &long),
        named(&long, &format!("{}y", &long[1..])),
        dispatch_name("acme/backend"),
    ];
    let distinct: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "{names:#?}");
    assert!(names.iter().all(|name| name.chars().count() <= NAME_CHARS));
    assert_eq!(named("CI", "test / linux"), "crcr/acme/backend/CI/test / linux");
    let longest = "x".repeat(NAME_CHARS - "crcr/acme/backend/CI/".len());
    assert!(named("CI", &longest).ends_with(&longest), "it is whole");
}

#[test]
fn texts_of_any_length_fit() {
    let name = "é".repeat(200);
    let failed =
        FailedTest { name: name.clone(), file: Some(name.repeat(400)), ..FailedTest::default() };
    let details = ReportDetails { failed_tests: vec![failed; 50], ..ReportDetails::default() };
    let ended = JobState::Completed(Conclusion::Failure);
    let shown = content(&context(Level::L4), ended, &details);
    assert!(shown.summary.len() <= 65_535, "GitHub counts bytes");
    let reason = "why ".repeat(1000);
    let verdict = HeadVerdict { state: HeadState::Queued, run: None, is_foreign: false, reason };
    assert!(dispatch_content(&context(Level::L4), &verdict).title.chars().count() <= TITLE_CHARS);
}

#[test]
fn a_reference_leads_back_to_its_run() {
    assert_eq!(external_id("12", Some(7)), "12:7");
    assert_eq!(external_id("12", None), "12");
    assert_eq!(run_of("12:7"), Some(12));
    assert_eq!(run_of("12"), Some(12));
    assert_eq!(run_of("0190a1b2-aaaa:7"), None);
    assert_eq!(run_of(""), None);
}

#[test]
fn failure_text_lists_tests_and_oncalls_without_mentions() {
    let details = ReportDetails {
        tests: Some(TestCounts { passed: 9, failed: 1, skipped: 0, total: 10 }),
        failed_tests: vec![FailedTest {
            name: "test_add`@everyone`\n# big".to_owned(),
            file: Some("test_ops.py".to_owned()),
            message: None,
            ..FailedTest::default()
        }],
        ..ReportDetails::default()
    };
    let oncalls = ["alice".to_owned()];
    let context = CheckRunContext { oncalls: &oncalls, ..context(Level::L4) };
    let shown = content(&context, JobState::Completed(Conclusion::Failure), &details);
    assert_eq!(shown.status, CheckRunStatus::Completed(Conclusion::Failure));
    insta::assert_snapshot!(format!("{}\n\n{}", shown.title, shown.summary));
}

#[test]
fn title_of_a_job_says_how_it_ended_and_whether_that_is_proven() {
    use JobState::{Completed, Dispatched, InProgress, Lost, NeverStarted};
    let (id, mut details) = (job(), ReportDetails::default());
    details.tests = Some(TestCounts { passed: 9, failed: 0, skipped: 1, total: 10 });
    let titled = |state, ended_without_proof, failed_before| {
        let shown = ShownJob {
            id: &id,
            state,
            details: &details,
            ended_without_proof,
            is_foreign: false,
            failed_before,
        };
        let shown = job_content(&context(Level::L4), &shown);
        let asks_for_a_retry = shown.summary.contains("press *Re-run*");
        (shown.status, shown.title, asks_for_a_retry)
    };
    let ended = CheckRunStatus::Completed;
    let unproven = "Its end was reported without proof, so its result isn't shown";
    let lost = "No result: it started and its end was never reported";
    for (state, without_proof, failed_before, status, title, asks) in [
        (Dispatched, false, true, CheckRunStatus::Queued, "Queued", false),
        (InProgress, false, true, CheckRunStatus::InProgress, "In progress", false),
        (Dispatched, true, false, ended(Conclusion::Cancelled), unproven, true),
        (InProgress, true, false, ended(Conclusion::Cancelled), unproven, true),
        (NeverStarted, false, false, ended(Conclusion::TimedOut), lost, true),
        (Lost, false, false, ended(Conclusion::TimedOut), lost, true),
        (
            Completed(Conclusion::Success),
            false,
            false,
            ended(Conclusion::Success),
            "Success",
            false,
        ),
        (
            Completed(Conclusion::Success),
            false,
            true,
            ended(Conclusion::Success),
            "Passed after a retry",
            false,
        ),
        (Completed(Conclusion::Failure), false, true, ended(Conclusion::Failure), "Failure", true),
    ] {
        let expected = (status, title.to_owned(), asks);
        assert_eq!(titled(state, without_proof, failed_before), expected, "{state:?}");
    }
}

#[test]
fn failing_tests_that_are_not_listed_are_counted() {
    let summary = |named: usize, more_failed_tests| {
        let failed_tests = (0..named)
            .map(|n| FailedTest { name: format!("test_{n}"), ..FailedTest::default() })
            .collect();
        let details = ReportDetails { failed_tests, more_failed_tests, ..ReportDetails::default() };
        content(&context(Level::L4), JobState::Completed(Conclusion::Failure), &details).summary
    };
    let unnamed = "failing tests aren't named";
    for (named, more, told) in [
        (0, 3, Some("\n3 failing tests aren't named")),
        (2, 3, Some("- and 3 more\n")),
        (SHOWN_TESTS, 1, Some("- and 1 more\n")),
        (SHOWN_TESTS + 2, 3, Some("- and 5 more\n")),
        (SHOWN_TESTS, 0, None),
        (0, 0, None),
    ] {
        let text = summary(named, more);
        match told {
            Some(line) => assert!(text.contains(line), "{named} {more}: {text}"),
            None => assert!(!text.contains(unnamed) && !text.contains("- and"), "{text}"),
        }
        assert_eq!(text.contains(unnamed), named == 0 && more > 0, "{text}");
    }
}

#[test]
fn refused_rerun_is_told_before_the_result_from_before() {
    let ended = JobState::Completed(Conclusion::Failure);
    let mut shown = content(&context(Level::L4), ended, &ReportDetails::default());
    let before = shown.clone();
    let refused =
        RefusedRerun { run_id: 12, at: jiff::Timestamp::UNIX_EPOCH, reason: "403 `no`".to_owned() };
    add_refused_rerun(&mut shown, &refused);
    assert_eq!(shown.title, "Re-run refused by GitHub. Failure");
    let told = "GitHub refused to re-run run 12 at 1970-01-01 00:00 UTC: `403 'no'`. What is shown";
    assert!(shown.summary.starts_with(told), "{}", shown.summary);
    assert!(shown.summary.ends_with(&before.summary), "{}", shown.summary);
    assert_eq!(shown.status, before.status);
}

#[test]
fn withdrawn_check_run_ends_and_says_why() {
    use CheckRunVisibility::{NoneAtLevel, NoneForEvent, NoneOfEvents, NoneWithoutLabel, Shown};
    let level = context(Level::L3);
    for (why, expected) in [
        (NoneWithoutLabel, (Conclusion::Skipped, "No label asks for this backend")),
        (NoneOfEvents, (Conclusion::Neutral, "doesn't take such events any more")),
        (NoneAtLevel(None), (Conclusion::Neutral, "was removed from the allowlist")),
        (NoneAtLevel(Some(Level::L2)), (Conclusion::Neutral, "The repository is at L2 now")),
    ] {
        let shown = withdrawn_content(&level, Some("12"), why).unwrap();
        assert_eq!(shown.status, CheckRunStatus::Completed(expected.0));
        assert!(shown.title.contains(expected.1), "{}", shown.title);
        assert_eq!(shown.external_id.as_deref(), Some("12:7"));
    }
    assert_eq!(withdrawn_content(&level, None, Shown), None);
    assert_eq!(withdrawn_content(&level, None, NoneForEvent), None);
}

#[test]
fn only_results_at_l4_block_the_merge_and_the_others_say_so() {
    let ended = JobState::Completed(Conclusion::Failure);
    for level in [Level::L1, Level::L2, Level::L3, Level::L4] {
        let shown = content(&context(level), ended, &ReportDetails::default()).summary;
        let is_harmless = shown.contains("This result does not block the merge.");
        assert_eq!(is_harmless, level != Level::L4, "{level}: {shown}");
    }
}

#[test]
fn the_real_conclusion_is_shown_below_l4_unless_softened() {
    let ended = JobState::Completed(Conclusion::Failure);
    for (level, nonblocking, expected) in [
        (Level::L3, None, Conclusion::Failure),
        (Level::L3, Some(Conclusion::Neutral), Conclusion::Neutral),
        (Level::L4, Some(Conclusion::Neutral), Conclusion::Failure),
    ] {
        let context = CheckRunContext { nonblocking, ..context(level) };
        let shown = content(&context, ended, &ReportDetails::default());
        assert_eq!(shown.status, CheckRunStatus::Completed(expected), "{level:?}");
    }
}

#[test]
fn conclusions_reserved_for_github_are_never_sent() {
    for conclusion in Conclusion::BEST_TO_WORST {
        let sent = CheckRunStatus::Completed(conclusion).conclusion().unwrap();
        let lets_through = ["success", "neutral", "skipped"].contains(&sent);
        assert_eq!(lets_through, conclusion.is_good(), "{conclusion}");
        assert!(!["stale", "startup_failure"].contains(&sent));
    }
}

#[test]
fn an_open_check_run_has_a_status_and_no_conclusion() {
    for (status, name, is_open) in [
        (CheckRunStatus::Queued, "queued", true),
        (CheckRunStatus::InProgress, "in_progress", true),
        (CheckRunStatus::Completed(Conclusion::Success), "completed", false),
    ] {
        assert_eq!((status.status(), status.is_open()), (name, is_open));
        assert_eq!(status.conclusion().is_none(), is_open);
    }
}
