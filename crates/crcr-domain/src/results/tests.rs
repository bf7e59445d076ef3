//! The definitions as tables, and every defect of the dashboards that these replace.

use jiff::Timestamp;

use super::outcome::outcome;
use super::rates::{end_to_end_seconds, queue_seconds};
use super::{DurationStats, JobOfRecord, JobOutcome, Rate, ResultCounts, jobs_of_record};
use crate::allowlist::level::Level;
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::checks::proof::MissingProof;
use crate::protocol::callback::ReportDetails;
use crate::protocol::event::EventName;
use crate::results::facts::{AttemptFact, CallbackOutcome, DispatchFact, DispatchFactStatus};

pub(crate) const GOOD: JobState = JobState::Completed(Conclusion::Success);
pub(crate) const BAD: JobState = JobState::Completed(Conclusion::Failure);
const CANCELLED: JobState = JobState::Completed(Conclusion::Cancelled);

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + seconds).unwrap()
}

pub(crate) fn attempt(
    delivery: &str,
    sha: &str,
    run: &str,
    number: u32,
    state: JobState,
    s: i64,
) -> AttemptFact {
    AttemptFact {
        received_at: at(s),
        dispatched_at: at(s - 60),
        repo: "acme/backend".into(),
        delivery: delivery.into(),
        workflow: "ci".into(),
        job: Some("test".into()),
        run_id: run.into(),
        run_attempt: number,
        state,
        start_unknown: false,
        queue_seconds: Some(60.0),
        execution_seconds: (!matches!(state, JobState::InProgress)).then_some(600.0),
        details: ReportDetails {
            check_run_id: Some(format!("{run}-{number}")),
            ..ReportDetails::default()
        },
        missing_proof: None,
        expected: None,
        level: Level::L2,
        event: EventName::PullRequest,
        upstream: "acme/upstream".into(),
        pull_request: Some(7),
        head_sha: sha.into(),
    }
}

pub(crate) fn dispatch(delivery: &str, sha: &str, s: i64) -> DispatchFact {
    DispatchFact {
        at: at(s),
        delivery: delivery.into(),
        upstream: "acme/upstream".into(),
        pull_request: Some(7),
        head_sha: sha.into(),
        event: EventName::PullRequest,
        repo: "acme/backend".into(),
        level: Level::L2,
        labels: vec![],
        enqueued_at: at(s),
        sent_at: Some(at(s + 1)),
        status: DispatchFactStatus::Sent,
        superseded_by: None,
        tries: 1,
        last_error: None,
    }
}

fn outcomes(jobs: &[JobOfRecord<'_>]) -> Vec<Option<JobOutcome>> {
    jobs.iter().map(|job| job.outcome).collect()
}

#[test]
fn every_job_state_has_one_outcome() {
    use Conclusion as C;
    let table = [
        (JobState::Dispatched, None, false, None),
        (JobState::InProgress, None, false, None),
        (JobState::NeverStarted, None, false, Some(JobOutcome::NeverStarted)),
        (JobState::Lost, None, false, Some(JobOutcome::Lost)),
        (GOOD, None, false, Some(JobOutcome::Passed)),
        (GOOD, None, true, Some(JobOutcome::PassedAfterRerun)),
        (BAD, None, false, Some(JobOutcome::TestFailed)),
        (BAD, Some("test"), true, Some(JobOutcome::TestFailed)),
        (BAD, Some("Setup"), false, Some(JobOutcome::InfraFailed)),
        (BAD, Some("checkout"), false, Some(JobOutcome::InfraFailed)),
        (JobState::Completed(C::StartupFailure), None, false, Some(JobOutcome::InfraFailed)),
        (JobState::Completed(C::TimedOut), None, false, Some(JobOutcome::TimedOut)),
        (JobState::Completed(C::Neutral), None, false, Some(JobOutcome::Neutral)),
        (JobState::Completed(C::Skipped), None, false, Some(JobOutcome::Neutral)),
        (JobState::Completed(C::Stale), None, false, Some(JobOutcome::Neutral)),
        (JobState::Completed(C::ActionRequired), None, false, Some(JobOutcome::Neutral)),
        (CANCELLED, None, false, Some(JobOutcome::Cancelled)),
    ];
    for (state, phase, failed_before, expected) in table {
        let mut row = attempt("d", "a", "1", 1, state, 0);
        row.details.phase = phase.map(str::to_owned);
        assert_eq!(outcome(&row, false, failed_before), expected, "{state:?} {phase:?}");
    }
    let row = attempt("d", "a", "1", 1, CANCELLED, 0);
    assert_eq!(outcome(&row, true, false), Some(JobOutcome::Superseded));
}

#[test]
fn late_start_report_doesnt_hide_the_conclusion() {
    let rows =
        [attempt("d", "a", "1", 1, GOOD, 10), attempt("d", "a", "1", 1, JobState::InProgress, 20)];
    assert_eq!(outcomes(&jobs_of_record(&rows, &[])), [Some(JobOutcome::Passed)]);
}

#[test]
fn failure_with_a_passing_rerun_counts_as_one_pass() {
    let rows = [attempt("d", "a", "1", 1, BAD, 10), attempt("d", "a", "1", 2, GOOD, 20)];
    let jobs = jobs_of_record(&rows, &[dispatch("d", "a", 0)]);
    assert_eq!(outcomes(&jobs), [Some(JobOutcome::PassedAfterRerun)]);
    assert_eq!(ResultCounts::of(&jobs, &[]).test_pass(), Rate { numerator: 1, denominator: 1 });
}

#[test]
fn pass_is_one_after_a_rerun_only_if_an_earlier_attempt_failed() {
    use Conclusion as C;
    let ended = JobState::Completed;
    for (before, after) in [
        (BAD, JobOutcome::PassedAfterRerun),
        (ended(C::TimedOut), JobOutcome::PassedAfterRerun),
        (ended(C::StartupFailure), JobOutcome::PassedAfterRerun),
        (CANCELLED, JobOutcome::Passed),
        (ended(C::Skipped), JobOutcome::Passed),
        (JobState::Lost, JobOutcome::Passed),
        (GOOD, JobOutcome::Passed),
    ] {
        let rows = [attempt("d", "a", "1", 1, before, 10), attempt("d", "a", "1", 2, GOOD, 20)];
        assert_eq!(outcomes(&jobs_of_record(&rows, &[])), [Some(after)], "{before:?}");
    }
}

#[test]
fn rerun_of_an_old_commit_doesnt_replace_the_result_of_a_new_one() {
    let rows = [
        attempt("d1", "old", "1", 1, BAD, 10),
        attempt("d2", "new", "2", 1, BAD, 20),
        attempt("d1", "old", "1", 2, GOOD, 30),
    ];
    let jobs = jobs_of_record(&rows, &[]);
    let new = jobs.iter().find(|job| job.record.head_sha == "new").unwrap();
    assert_eq!(new.outcome, Some(JobOutcome::TestFailed));
    assert_eq!(jobs.len(), 2);
}

#[test]
fn newest_run_counts_and_not_the_highest_attempt() {
    let rows = [
        attempt("d1", "a", "1", 1, BAD, 10),
        attempt("d1", "a", "1", 3, BAD, 15),
        attempt("d2", "a", "2", 1, GOOD, 20),
    ];
    let jobs = jobs_of_record(&rows, &[]);
    assert_eq!(outcomes(&jobs), [Some(JobOutcome::PassedAfterRerun)]);
    assert_eq!(jobs[0].attempts, 3);
}

#[test]
fn same_pull_request_number_of_another_upstream_is_another_job() {
    let mut other = attempt("d2", "a", "2", 1, BAD, 20);
    other.upstream = "other/upstream".into();
    let rows = [attempt("d1", "a", "1", 1, GOOD, 10), other];
    assert_eq!(jobs_of_record(&rows, &[]).len(), 2);
}

#[test]
fn superseded_jobs_count_in_no_rate() {
    let dispatches = [dispatch("d1", "old", 0), dispatch("d2", "new", 5)];
    let rows =
        [attempt("d1", "old", "1", 1, CANCELLED, 10), attempt("d2", "new", "2", 1, GOOD, 20)];
    let jobs = jobs_of_record(&rows, &dispatches);
    let sums = ResultCounts::of(&jobs, &dispatches);
    assert_eq!(sums.count(JobOutcome::Superseded), 1);
    let one = Rate { numerator: 1, denominator: 1 };
    assert_eq!((sums.job_pass(), sums.test_pass(), sums.availability), (one, one, one));
}

#[test]
fn cancelled_job_on_the_current_head_is_not_superseded() {
    let dispatches = [dispatch("d1", "a", 0), dispatch("d2", "b", 50)];
    let rows = [attempt("d1", "a", "1", 1, CANCELLED, 10)];
    assert_eq!(outcomes(&jobs_of_record(&rows, &dispatches)), [Some(JobOutcome::Cancelled)]);
}

#[test]
fn head_that_was_not_dispatched_supersedes_nothing() {
    let rows = [attempt("d1", "old", "1", 1, CANCELLED, 300)];
    let elsewhere = DispatchFact { repo: "acme/other".into(), ..dispatch("d2", "new", 100) };
    for (newer, outcome) in
        [(elsewhere, JobOutcome::Cancelled), (dispatch("d2", "new", 100), JobOutcome::Superseded)]
    {
        let dispatches = [dispatch("d1", "old", 0), newer];
        assert_eq!(outcomes(&jobs_of_record(&rows, &dispatches)), [Some(outcome)]);
    }
}

#[test]
fn availability_and_test_pass_rate_are_independent() {
    let dispatches: Vec<_> =
        (0..4).map(|n| dispatch(&format!("d{n}"), &format!("s{n}"), n)).collect();
    let mut infra = attempt("d1", "s1", "1", 1, BAD, 11);
    infra.details.phase = Some("setup".into());
    let rows = [
        attempt("d0", "s0", "0", 1, GOOD, 10),
        infra,
        attempt("d2", "s2", "2", 1, BAD, 12),
        attempt("d3", "s3", "3", 1, JobState::Lost, 13),
    ];
    let sums = ResultCounts::of(&jobs_of_record(&rows, &dispatches), &dispatches);
    assert_eq!(sums.test_pass(), Rate { numerator: 1, denominator: 2 });
    assert_eq!(sums.job_pass(), Rate { numerator: 1, denominator: 4 });
    assert_eq!(sums.availability, Rate { numerator: 2, denominator: 4 });
    assert_eq!(sums.timeouts(), Rate { numerator: 1, denominator: 4 });
}

#[test]
fn never_started_dispatch_lowers_availability() {
    let mut silent = dispatch("d1", "b", 1);
    silent.status = DispatchFactStatus::NeverStarted;
    let mut replaced = dispatch("d2", "c", 2);
    replaced.status = DispatchFactStatus::Superseded;
    let waiting = dispatch("d4", "e", 4);
    let sent = dispatch("d0", "a", 0);
    let dispatches = [sent.clone(), sent, silent, replaced, dispatch("d3", "d", 3), waiting];
    let rows = [
        attempt("d0", "a", "1", 1, GOOD, 10),
        attempt("d3", "d", "2", 1, JobState::InProgress, 11),
    ];
    let mut sums = ResultCounts::of(&jobs_of_record(&rows, &dispatches), &dispatches);
    assert_eq!(sums.availability, Rate { numerator: 1, denominator: 2 }, "each counts once");
    assert_eq!(sums.running, 1);
    let day = sums.clone();
    sums += &day;
    assert_eq!(sums.availability, Rate { numerator: 2, denominator: 4 });
    assert_eq!((sums.running, sums.count(JobOutcome::Passed)), (2, 2), "of two days");
}

#[test]
fn times_count_first_attempts_with_a_known_start() {
    let mut unknown = attempt("d2", "b", "2", 1, GOOD, 20);
    unknown.start_unknown = true;
    let mut rerun = attempt("d1", "a", "1", 2, GOOD, 30);
    rerun.queue_seconds = Some(9_000.0);
    let rows = [attempt("d1", "a", "1", 1, BAD, 10), rerun, unknown];
    let jobs = jobs_of_record(&rows, &[]);
    assert_eq!(queue_seconds(&jobs).collect::<Vec<_>>(), [60.0]);
}

#[test]
fn end_to_end_time_needs_all_jobs_to_be_over() {
    let dispatches = [dispatch("d1", "a", 0), dispatch("d2", "b", 0)];
    let mut other = attempt("d2", "b", "2", 1, JobState::InProgress, 20);
    other.job = Some("other".into());
    let rows = [
        attempt("d1", "a", "1", 1, JobState::Lost, 21_600),
        attempt("d2", "b", "2", 1, GOOD, 30),
        other,
    ];
    let jobs = jobs_of_record(&rows, &dispatches);
    assert_eq!(end_to_end_seconds(&jobs, &dispatches), [21_600.0]);
}

#[test]
fn end_to_end_time_ends_with_the_first_attempt() {
    let rows = [attempt("d1", "a", "1", 1, BAD, 600), attempt("d1", "a", "1", 2, GOOD, 9_000)];
    let dispatches = [dispatch("d1", "a", 0)];
    assert_eq!(end_to_end_seconds(&jobs_of_record(&rows, &dispatches), &dispatches), [600.0]);
}

#[test]
fn rate_has_a_wilson_interval() {
    let rate = Rate { numerator: 90, denominator: 100 };
    let (low, high) = rate.wilson().unwrap();
    assert!((low - 0.8256).abs() < 1e-4 && (high - 0.9448).abs() < 1e-4, "{low} {high}");
    assert_eq!(Rate::default().value(), None);
    assert_eq!(Rate::default().wilson(), None);
    assert!(!Rate { numerator: 19, denominator: 19 }.is_known());
    assert!(Rate { numerator: 0, denominator: 20 }.is_known());
    let all = Rate { numerator: 20, denominator: 20 }.wilson().unwrap();
    assert!(all.1 <= 1.0 && all.0 > 0.8);
}

#[test]
fn percentiles_are_measured_durations() {
    let d = DurationStats::of((1..=100).map(f64::from).chain([f64::NAN, -1.0])).unwrap();
    assert_eq!((d.n, d.p50, d.p95, d.max, d.mean), (100, 50.0, 95.0, 100.0, 50.5));
    assert_eq!(DurationStats::of([]), None);
    assert_eq!(DurationStats::of([5.0]).unwrap().p95, 5.0);
    assert_eq!(DurationStats::of([0.0, 2.0]).unwrap().mean, 1.0, "no time at all is measured, too");
}

#[test]
fn status_and_outcome_are_stored_under_their_name_and_read_again() {
    for status in DispatchFactStatus::ALL {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        assert_eq!(DispatchFactStatus::from_name(status.as_str()), Some(status));
    }
    for outcome in JobOutcome::ALL {
        assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
    }
    for outcome in CallbackOutcome::ALL {
        assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
        assert_eq!(CallbackOutcome::from_name(outcome.as_str()), Some(outcome));
        let is_stored = [CallbackOutcome::Accepted, CallbackOutcome::Unproven].contains(&outcome);
        assert_eq!(outcome.is_stored(), is_stored, "{outcome:?}");
    }
    assert_eq!(DispatchFactStatus::from_name("Sent"), None);
    assert_eq!(CallbackOutcome::from_name("Accepted"), None);
}

#[test]
fn of_two_runs_of_a_job_the_one_that_began_later_counts_whatever_their_ids_are() {
    let run = |id: &str, state, s| AttemptFact {
        queue_seconds: None,
        ..attempt("d", "a", id, 1, state, s)
    };
    let rows = [run("9", GOOD, 100), run("10", BAD, 200)];
    assert_eq!(outcomes(&jobs_of_record(&rows, [])), [Some(JobOutcome::TestFailed)]);
    let rows = [run("9", BAD, 200), run("10", GOOD, 100)];
    assert_eq!(outcomes(&jobs_of_record(&rows, [])), [Some(JobOutcome::TestFailed)]);
}

#[test]
fn of_two_rows_of_a_dispatch_the_later_counts_and_within_a_millisecond_the_one_that_went_further() {
    use DispatchFactStatus::{Dead, NeverStarted, Queued, Sent, Superseded};
    let row = |status, s| DispatchFact { status, ..dispatch("d", "a", s) };
    let in_order = [
        row(Queued, 1),
        row(Sent, 1),
        row(Dead, 1),
        row(NeverStarted, 1),
        row(Superseded, 1),
        row(Queued, 2),
    ];
    assert!(in_order.is_sorted_by(|a, b| a.version() < b.version()));
}

#[test]
fn self_report_is_evidence_only_with_a_proven_commit() {
    let nightly = AttemptFact { event: EventName::Nightly, ..attempt("d", "a", "1", 1, GOOD, 0) };
    assert!(nightly.is_evidence());
    assert!(!AttemptFact { head_sha: "".into(), ..nightly.clone() }.is_evidence());
    let unproven = AttemptFact { missing_proof: Some(MissingProof::Commit), ..nightly };
    assert!(!unproven.is_evidence());
    assert!(AttemptFact { event: EventName::PullRequest, ..unproven }.is_evidence());
    let began = |queue_seconds| {
        AttemptFact { queue_seconds, ..attempt("d", "a", "1", 1, GOOD, 100) }.began()
    };
    assert_eq!(began(Some(30.0)), at(70), "dispatched at 40");
    assert_eq!(began(None), at(100));
    assert_eq!(began(Some(f64::MAX)), at(100));
}

#[test]
fn times_of_added_days_are_those_of_their_jobs_and_dispatches() {
    let jobs = [attempt("d", "a", "1", 1, GOOD, 60), attempt("e", "b", "2", 1, BAD, 160)];
    let slow = DispatchFact { sent_at: Some(at(104)), ..dispatch("e", "b", 100) };
    let dispatches = [dispatch("d", "a", 0), slow];
    let totals = |range: std::ops::Range<usize>| {
        let dispatches: Vec<_> = dispatches[range.clone()].iter().collect();
        super::ResultTotals::of(jobs_of_record(&jobs[range], &[]), &dispatches)
    };
    let mut sum = totals(0..1);
    sum.add(&totals(1..2));
    let both = totals(0..2);
    for (name, found, expected) in [
        ("queue", [sum.queue(), both.queue()], 60.0),
        ("execution", [sum.execution(), both.execution()], 600.0),
        ("end to end", [sum.end_to_end(), both.end_to_end()], 60.0),
        ("dispatch", [sum.dispatch(), both.dispatch()], 2.5),
    ] {
        for stats in found {
            let stats = stats.unwrap();
            assert_eq!((stats.n, stats.mean), (2, expected), "{name}");
        }
    }
    assert_eq!(sum.statuses[&DispatchFactStatus::Sent], 2);
    assert_eq!(sum.statuses, both.statuses);
    let empty = super::ResultTotals::default();
    assert_eq!((empty.queue(), empty.dispatch()), (None, None));
    assert_eq!(both.bytes() - empty.bytes(), (2 + 2 + 2 + 2) * size_of::<i64>());
}
