//! Tests that every implementation of [`Results`] must pass, on its real server. The expected numbers
//! are computed from the facts directly, without a store.

use std::collections::BTreeMap;

use crcr_domain::Level;
use crcr_domain::checks::check_run::CheckRunStatus;
use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::protocol::callback::{FailedTest, ReportDetails};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::criteria::{
    ReviewWindow as Evidence, at_level_since, demotion, promotion,
};
use crcr_domain::results::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, CheckFact, DispatchFact, DispatchFactStatus, Fact,
    MergeBaseFact,
};
use crcr_domain::results::rates::{end_to_end_seconds, execution_seconds, queue_seconds};
use crcr_domain::results::totals::by_day;
use crcr_domain::results::triage::TriageVerdict;
use crcr_domain::results::{
    DurationStats, JobOfRecord, JobOutcome, LevelCriteria, Rate, RepoDay, ResultCounts,
    ResultTotals, jobs_of_record,
};
use jiff::{SignedDuration, Timestamp};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

use super::{AttemptFilter, Results, Window, retention};

const UPSTREAM: &str = "acme/upstream";
const GOOD: JobState = JobState::Completed(Conclusion::Success);
const BAD: JobState = JobState::Completed(Conclusion::Failure);
const CANCELLED: JobState = JobState::Completed(Conclusion::Cancelled);

/// Runs every test. `results` must be empty.
pub(crate) async fn all(results: &dyn Results) {
    results.prepare().await.unwrap();
    results.prepare().await.unwrap();
    empty_results_answer_every_query(results).await;
    let facts = facts();
    write_out_of_order_and_twice(results, &facts).await;
    each_window_returns_the_rows_and_rates_of_its_facts(results, &facts).await;
    pull_requests_with_one_number_are_told_apart_by_upstream(results).await;
    dispatches_of_a_commit_are_found_by_its_first_digits(results).await;
    attempts_without_a_pull_request_are_found_by_the_first_digits_of_their_commit(results).await;
    the_merge_base_written_last_wins(results).await;
    the_newest_check_run_of_a_commit_wins(results).await;
    reports_of_an_outcome_are_the_newest(results, &facts).await;
    known_defects_of_the_old_dashboards_do_not_occur(results).await;
    hostile_texts_are_stored_unchanged(results).await;
    at_level_since_is_the_start_of_the_newest_unbroken_span(results, &facts).await;
    the_revision_of_a_day_grows_with_each_write(results).await;
    rolled_up_days_keep_their_numbers_after_deletion(results).await;
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + seconds).unwrap()
}

fn window(from: i64, to: i64, repo: Option<&str>) -> Window {
    Window { repos: repo.map(|repo| vec![repo.to_owned()]), ..Window::all(at(from), at(to)) }
}

fn attempt(repo: &str, sha: &str, run: &str, number: u32, state: JobState, s: i64) -> AttemptFact {
    AttemptFact {
        received_at: at(s),
        dispatched_at: at(s - 600),
        repo: repo.into(),
        delivery: format!("of-{sha}"),
        workflow: "ci".into(),
        job: Some("test".into()),
        run_id: run.into(),
        run_attempt: number,
        state,
        start_unknown: false,
        queue_seconds: Some(60.25),
        execution_seconds: (state != JobState::InProgress).then_some(539.75),
        details: ReportDetails {
            check_run_id: Some(format!("{run}-{number}")),
            started_at: Some(at(s - 540)),
            completed_at: (state != JobState::InProgress).then_some(at(s)),
            ..ReportDetails::default()
        },
        missing_proof: None,
        expected: None,
        level: Level::L2,
        event: EventName::PullRequest,
        upstream: UPSTREAM.into(),
        pull_request: Some(7),
        head_sha: sha.into(),
    }
}

fn dispatch(repo: &str, sha: &str, s: i64) -> DispatchFact {
    DispatchFact {
        at: at(s + 1),
        delivery: format!("of-{sha}"),
        upstream: UPSTREAM.into(),
        pull_request: Some(7),
        head_sha: sha.into(),
        event: EventName::PullRequest,
        repo: repo.into(),
        level: Level::L2,
        labels: vec!["ciflow/crcr/npu".into()],
        enqueued_at: at(s),
        sent_at: Some(at(s + 1)),
        status: DispatchFactStatus::Sent,
        superseded_by: None,
        tries: 1,
        last_error: None,
    }
}

fn hostile_verdict() -> TriageVerdict {
    let verdict = json!({
        "schema_version": 1, "category": "upstream", "confidence": "low", "summary": HOSTILE,
        "suspected_upstream": {"pr": 1, "reason": HOSTILE}, "evidence": [{"excerpt": HOSTILE}],
    });
    TriageVerdict::read(&verdict).unwrap()
}

/// A generated week, plus the cases that older dashboards got wrong.
fn facts() -> Vec<Fact> {
    let mut facts = crcr_standin::generate::facts(11, at(0), 7, 8, UPSTREAM);
    let mut row = |row: AttemptFact| facts.push(Fact::Attempt(Box::new(row)));
    // The start report arrives after the end report.
    row(attempt("Acme/Late", "a", "1", 1, GOOD, 1000));
    row(AttemptFact {
        dispatched_at: at(400),
        ..attempt("Acme/Late", "a", "1", 1, JobState::InProgress, 1100)
    });
    // The same number at another upstream.
    row(AttemptFact {
        upstream: "other/upstream".into(),
        ..attempt("acme/pulls", "b", "2", 1, BAD, 1000)
    });
    row(attempt("acme/pulls", "c", "3", 1, GOOD, 1000));
    // An old commit is run again after the new one failed.
    row(attempt("acme/old", "old", "4", 1, BAD, 1000));
    row(attempt("acme/old", "new", "5", 1, BAD, 2000));
    row(AttemptFact { dispatched_at: at(400), ..attempt("acme/old", "old", "4", 2, GOOD, 3000) });
    // Cancelled by a newer head.
    row(attempt("acme/superseded", "h1", "6", 1, CANCELLED, 1600));
    row(attempt("acme/superseded", "h2", "7", 1, GOOD, 2100));
    // Failed, then passed on a re-run.
    row(attempt("acme/rerun", "d", "8", 1, BAD, 1000));
    row(AttemptFact { dispatched_at: at(400), ..attempt("acme/rerun", "d", "8", 2, GOOD, 2000) });
    // The start report never arrived.
    let mut unstarted = attempt("acme/unstarted", "e", "9", 1, GOOD, 1000);
    unstarted.start_unknown = true;
    (unstarted.queue_seconds, unstarted.execution_seconds) = (None, None);
    unstarted.details.started_at = None;
    row(unstarted);
    // A name that claims a level, and one at that level.
    row(AttemptFact {
        workflow: "ci (L4)".into(),
        job: Some("test (L4)".into()),
        ..attempt("acme/spoofed", "f", "10", 1, GOOD, 1000)
    });
    row(AttemptFact { level: Level::L4, ..attempt("acme/four", "f", "11", 1, GOOD, 1000) });
    // What isn't there, and what is odd.
    row(AttemptFact {
        job: None,
        pull_request: None,
        event: EventName::Nightly,
        workflow: HOSTILE.into(),
        details: ReportDetails {
            environment: Some(HOSTILE.into()),
            triage: Some(hostile_verdict()),
            warnings: vec![HOSTILE.into()],
            failed_tests: vec![FailedTest {
                name: HOSTILE.into(),
                stacktrace: Some(HOSTILE.into()),
                duration: Some(0.1),
                ..FailedTest::default()
            }],
            ..ReportDetails::default()
        },
        missing_proof: Some(crcr_domain::checks::proof::MissingProof::Branch),
        ..attempt("acme/odd", "g", "12", 1, GOOD, 1000)
    });
    for (repo, sha, s) in
        [("acme/superseded", "h1", 1000), ("acme/superseded", "h2", 1500), ("acme/rerun", "d", 400)]
    {
        facts.push(Fact::Dispatch(dispatch(repo, sha, s)));
    }
    // Refused reports: some of an unknown sender, some of a known one, three in each millisecond.
    for n in 0..9 {
        facts.push(Fact::Callback(CallbackFact {
            at: at(300 + n / 3),
            repo: (n % 2 == 0).then(|| "Acme/Late".into()),
            delivery: None,
            run_id: None,
            job: Some(format!("{n} {HOSTILE}")),
            status: None,
            conclusion: None,
            outcome: CallbackOutcome::BadToken,
            answer: 401,
            detail: Some(HOSTILE.into()),
            latency_ms: 1.25,
        }));
    }
    // Of two rows of one millisecond, the one with the later status wins.
    let mut queued = dispatch("acme/rerun", "d", 400);
    queued.status = DispatchFactStatus::Queued;
    facts.push(Fact::Dispatch(queued));
    facts
}

const HOSTILE: &str = "'; DROP TABLE crcr_attempt; -- \\ \" {to:Int64} \u{0} \t\n \u{202e}é";

async fn empty_results_answer_every_query(results: &dyn Results) {
    let window = window(-1_000_000, 1_000_000, None);
    assert!(results.attempts(&window).await.unwrap().is_empty());
    assert!(results.dispatches(&window).await.unwrap().is_empty());
    assert!(results.callbacks(&window).await.unwrap().is_empty());
    let (attempts, dispatches) =
        results.pull_request_facts(UPSTREAM, &[7], AttemptFilter::default()).await.unwrap();
    assert!(attempts.is_empty() && dispatches.is_empty());
    results.append(vec![]).await.unwrap();
}

async fn write_out_of_order_and_twice(results: &dyn Results, facts: &[Fact]) {
    let mut mixed = facts.to_vec();
    mixed.shuffle(&mut rand::rngs::StdRng::seed_from_u64(5));
    let again = mixed[..mixed.len() / 3].to_vec();
    for part in mixed.chunks(400) {
        results.append(part.to_vec()).await.unwrap();
    }
    results.append(again).await.unwrap();
}

/// Rows of a window, in order.
type FactRows = (Vec<DispatchFact>, Vec<AttemptFact>, Vec<CallbackFact>);

/// The rows that hold, by the definitions and by nothing else.
fn expected(facts: &[Fact], window: &Window) -> FactRows {
    let inside = |time: Timestamp| {
        let (time, from) = (time.as_millisecond(), window.from.as_millisecond());
        time >= from && time < window.to.as_millisecond()
    };
    let ours = |repo: Option<&str>| match &window.repos {
        Some(wanted) => repo.is_some_and(|r| wanted.iter().any(|w| r.eq_ignore_ascii_case(w))),
        None => true,
    };
    let mut dispatches: BTreeMap<_, &DispatchFact> = BTreeMap::new();
    let mut attempts: BTreeMap<_, &AttemptFact> = BTreeMap::new();
    let mut callbacks = vec![];
    for fact in facts {
        match fact {
            Fact::Dispatch(fact) if ours(Some(&fact.repo)) && inside(fact.enqueued_at) => {
                let slot = dispatches.entry((&fact.delivery, &fact.repo)).or_insert(fact);
                if fact.version() > slot.version() {
                    *slot = fact;
                }
            }
            Fact::Attempt(fact) if ours(Some(&fact.repo)) && inside(fact.dispatched_at) => {
                let key = (&fact.delivery, &fact.repo, &fact.run_id, fact.run_attempt);
                let key = (key, &fact.workflow, &fact.job, &fact.details.check_run_id);
                let slot = attempts.entry(key).or_insert(fact);
                if fact.version() > slot.version() {
                    *slot = fact;
                }
            }
            Fact::Callback(fact) if ours(fact.repo.as_deref()) && inside(fact.at) => {
                callbacks.push(fact.clone());
            }
            _ => {}
        }
    }
    (
        dispatches.into_values().cloned().collect(),
        attempts.into_values().cloned().collect(),
        callbacks,
    )
}

/// As text that compares: times in milliseconds, sorted.
fn texts<T: serde::Serialize>(rows: &[T]) -> Vec<String> {
    let mut texts: Vec<_> = rows.iter().map(|row| millis(json!(row)).to_string()).collect();
    texts.sort();
    texts
}

fn millis(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, millis(value))).collect())
        }
        Value::String(text) => match text.parse::<Timestamp>() {
            Ok(time) => json!(time.as_millisecond()),
            Err(_) => Value::String(text),
        },
        other => other,
    }
}

/// Every number that a page shows of these rows.
fn numbers(dispatches: &[DispatchFact], attempts: &[AttemptFact], until: Timestamp) -> Value {
    let jobs = jobs_of_record(attempts, dispatches);
    let sums = ResultCounts::of(&jobs, dispatches);
    let (rows, sent): (Vec<_>, Vec<_>) = (attempts.iter().collect(), dispatches.iter().collect());
    let window = Evidence {
        attempts: &rows,
        dispatches: &sent,
        reports: Rate::default(),
        core_tests: &[],
        until,
        upstream_failures: 0,
    };
    let criteria = LevelCriteria::default();
    json!({
        "sums": sums, "test": sums.test_pass(), "job": sums.job_pass(), "timeouts": sums.timeouts(),
        "queue": DurationStats::of(queue_seconds(&jobs)),
        "execution": DurationStats::of(execution_seconds(&jobs)),
        "end_to_end": DurationStats::of(end_to_end_seconds(&jobs, dispatches)),
        "promotion": promotion(window, Some(at(-900_000)), &criteria),
        "demotion": demotion(window, &criteria),
    })
}

async fn each_window_returns_the_rows_and_rates_of_its_facts(
    results: &dyn Results,
    facts: &[Fact],
) {
    let mut seen = 0;
    for repo in [None, Some("AURORA-example/torch-aurora"), Some("acme/late"), Some("no/such")] {
        for (from, to) in [(-700_000, 10_000), (-400_000, -200_000), (-90_000, -86_400), (9, 10)] {
            let window = window(from, to, repo);
            let (dispatches, attempts, callbacks) = (
                results.dispatches(&window).await.unwrap(),
                results.attempts(&window).await.unwrap(),
                results.callbacks(&window).await.unwrap(),
            );
            let expected = expected(facts, &window);
            assert_eq!(texts(&dispatches), texts(&expected.0), "{window:?}");
            assert_eq!(texts(&attempts), texts(&expected.1), "{window:?}");
            assert_eq!(texts(&callbacks), texts(&expected.2), "{window:?}");
            parts_of_them_are_the_same_rows(results, &window, &attempts, &callbacks).await;
            // The order of rows is part of the answer, too.
            assert!(attempts.is_sorted_by_key(|row| row.received_at));
            assert!(dispatches.is_sorted_by_key(|row| row.enqueued_at));
            let all: Vec<AttemptFact> = serde_json::from_value(rounded(&expected.1)).unwrap();
            let sent: Vec<DispatchFact> = serde_json::from_value(rounded(&expected.0)).unwrap();
            let numbers =
                |dispatches: &[_], attempts: &[_]| numbers(dispatches, attempts, window.to);
            assert_eq!(numbers(&dispatches, &attempts), numbers(&sent, &all), "{window:?}");
            seen += attempts.len();
        }
    }
    assert!(seen > 500, "there were facts: {seen}");
}

/// A query for a part of the rows returns what that part is in all rows.
async fn parts_of_them_are_the_same_rows(
    results: &dyn Results,
    window: &Window,
    attempts: &[AttemptFact],
    callbacks: &[CallbackFact],
) {
    let pushes = attempts.iter().filter(|row| row.pull_request.is_none()).cloned();
    assert_eq!(
        results.push_attempts(window).await.unwrap(),
        pushes.collect::<Vec<_>>(),
        "{window:?}"
    );
    let refused: Vec<_> = callbacks
        .iter()
        .rev()
        .filter(|row| row.answer >= 400 || row.outcome == CallbackOutcome::Unproven)
        .cloned()
        .collect();
    let newest = &refused[..refused.len().min(5)];
    assert_eq!(results.refused_callbacks(window, 5).await.unwrap(), newest, "{window:?}");
    let answer = |at: Timestamp, outcome: CallbackOutcome, latency_ms: f64| {
        (at, outcome, (latency_ms * 1000.0).round() as i64)
    };
    let answers = results.report_outcomes(window).await.unwrap();
    let mut answers: Vec<_> =
        answers.iter().map(|row| answer(row.at, row.outcome, row.latency_ms)).collect();
    let mut of_all: Vec<_> =
        callbacks.iter().map(|row| answer(row.at, row.outcome, row.latency_ms)).collect();
    answers.sort_unstable();
    of_all.sort_unstable();
    assert_eq!(answers, of_all, "{window:?}");
    // Several repositories are asked for as one is.
    let Some(repos) = &window.repos else { return };
    let others = ["acme/old", "dune-example/torch-dune"].map(str::to_owned);
    let more = window.clone().of_repos(repos.iter().cloned().chain(others.clone()).collect());
    let more = results.attempts(&more).await.unwrap();
    let alone = window.clone().of_repos(others.into());
    assert_eq!(more.len(), attempts.len() + results.attempts(&alone).await.unwrap().len());
    assert!(attempts.iter().all(|row| more.contains(row)));
    let none = window.clone().of_repos(vec![]);
    assert!(results.attempts(&none).await.unwrap().is_empty());
    assert!(results.day_revisions(&none).await.unwrap().is_empty());
}

/// The rows with their times in whole milliseconds.
fn rounded<T: serde::Serialize>(rows: &[T]) -> Value {
    fn round(value: Value) -> Value {
        match value {
            Value::Array(items) => Value::Array(items.into_iter().map(round).collect()),
            Value::Object(fields) => {
                Value::Object(fields.into_iter().map(|(k, v)| (k, round(v))).collect())
            }
            Value::String(text) => match text.parse::<Timestamp>() {
                Ok(time) => json!(Timestamp::from_millisecond(time.as_millisecond()).unwrap()),
                Err(_) => Value::String(text),
            },
            other => other,
        }
    }
    round(json!(rows))
}

async fn pull_requests_with_one_number_are_told_apart_by_upstream(results: &dyn Results) {
    let (attempts, dispatches) =
        results.pull_request_facts("Acme/Upstream", &[7], AttemptFilter::default()).await.unwrap();
    assert!(attempts.iter().all(|row| row.upstream == UPSTREAM && row.pull_request == Some(7)));
    assert!(attempts.iter().any(|row| row.head_sha == "c"));
    assert_eq!(dispatches.len(), 3);
    let (attempts, dispatches) =
        results.pull_request_facts("other/upstream", &[7], AttemptFilter::default()).await.unwrap();
    assert_eq!((attempts.len(), dispatches.len()), (1, 0));
    assert_eq!(attempts[0].head_sha, "b");
    let of = async |numbers: &[u64]| {
        let (attempts, dispatches) =
            results.pull_request_facts(UPSTREAM, numbers, AttemptFilter::default()).await.unwrap();
        (attempts, dispatches.len())
    };
    let (seven, generated) = (of(&[7]).await, of(&[101_001]).await);
    assert!(!generated.0.is_empty());
    let both = of(&[7, 101_001, u64::MAX]).await;
    assert_eq!(both.0.len(), seven.0.len() + generated.0.len());
    assert_eq!(both.1, seven.1 + generated.1);
    assert!(both.0.is_sorted_by_key(|row| row.received_at));
    assert_eq!(of(&[]).await, (vec![], 0));
    let head = [seven.0[0].head_sha.clone(), "' OR 1=1 --".to_owned()];
    let read = async |only| {
        let (attempts, sent) =
            results.pull_request_facts(UPSTREAM, &[7, 101_001], only).await.unwrap();
        assert_eq!(sent.len(), both.1, "dispatches are all of them");
        attempts
    };
    let on_head = read(AttemptFilter { heads: &head, repos: None }).await;
    let expected = seven.0.iter().filter(|row| row.head_sha == head[0]).cloned();
    assert_eq!(on_head, expected.collect::<Vec<_>>(), "of other heads nothing is read");
    assert!(on_head.len() < both.0.len());
    let repo = seven.0[0].repo.clone();
    let repos = [repo.to_ascii_uppercase(), "' OR 1=1 --".to_owned()];
    let of_repo = read(AttemptFilter { heads: &[], repos: Some(&repos) }).await;
    let expected = both.0.iter().filter(|row| row.repo == repo).cloned();
    assert_eq!(of_repo, expected.collect::<Vec<_>>(), "of other backends nothing is read");
    assert!(of_repo.len() < both.0.len());
    assert_eq!(read(AttemptFilter { heads: &[], repos: Some(&[]) }).await, []);
}

async fn dispatches_of_a_commit_are_found_by_its_first_digits(results: &dyn Results) {
    let (_, sent) =
        results.pull_request_facts(UPSTREAM, &[101_001], AttemptFilter::default()).await.unwrap();
    let sha = &sent[0].head_sha;
    let expected: Vec<_> = sent.iter().filter(|sent| sent.head_sha == *sha).cloned().collect();
    for digits in [7, 39, 40] {
        let found = results.dispatches_of_commits(&sha[..digits], 100).await.unwrap();
        assert_eq!(found, expected, "{digits} digits of {sha}");
    }
    assert_eq!(results.dispatches_of_commits("' OR 1=1 --", 100).await.unwrap(), []);
}

async fn attempts_without_a_pull_request_are_found_by_the_first_digits_of_their_commit(
    results: &dyn Results,
) {
    let all = results.attempts(&window(-1_000_000, 1_000_000, None)).await.unwrap();
    let nightly = all.iter().find(|row| row.event == EventName::Nightly).unwrap();
    let of_pull = all.iter().find(|row| row.pull_request.is_some()).unwrap();
    let sha = &nightly.head_sha;
    let expected: Vec<_> = all.iter().filter(|row| row.head_sha == *sha).cloned().collect();
    for digits in [7, 39, 40] {
        let found = results.attempts_of_commits(&sha[..digits], 100).await.unwrap();
        assert_eq!(found, expected, "{digits} digits of {sha}");
    }
    assert_eq!(results.attempts_of_commits(sha, 1).await.unwrap().len(), 1);
    for none in [&*of_pull.head_sha, "' OR 1=1 --"] {
        assert_eq!(results.attempts_of_commits(none, 100).await.unwrap(), []);
    }
}

async fn the_merge_base_written_last_wins(results: &dyn Results) {
    let learned = |upstream: &str, number, seconds, base: &str| MergeBaseFact {
        at: at(seconds),
        upstream: upstream.into(),
        pull_request: number,
        head_sha: "head".into(),
        merge_base: base.into(),
        committed_at: at(seconds - 5000),
        changed_files: vec![format!("{base}.py"), HOSTILE.into()],
    };
    let newest = learned(UPSTREAM, 7, 1000, "newest");
    let eight = learned(UPSTREAM, 8, 400, HOSTILE);
    let before = results.day_revisions(&window(-900_000, 10_000, None)).await.unwrap();
    for facts in [
        vec![newest.clone(), learned("other/upstream", 7, 3000, "others")],
        vec![learned(UPSTREAM, 7, 900, "older"), eight.clone(), newest.clone()],
    ] {
        results.append(facts.into_iter().map(Fact::MergeBase).collect()).await.unwrap();
    }
    let of = async |upstream, number| results.merge_bases(upstream, &[number]).await.unwrap();
    assert_eq!(of("Acme/Upstream", 7).await, [newest]);
    assert_eq!(of(UPSTREAM, 8).await, [eight]);
    let mut both = results.merge_bases(UPSTREAM, &[8, 9, 7]).await.unwrap();
    both.sort_by_key(|found| found.pull_request);
    assert_eq!(both.len(), 2, "{both:?}");
    assert_eq!(results.merge_bases(UPSTREAM, &[]).await.unwrap(), []);
    for (upstream, number) in [(UPSTREAM, 9), ("no/such", 7), (HOSTILE, 7)] {
        assert_eq!(of(upstream, number).await, [], "{upstream} {number}");
    }
    let after = results.day_revisions(&window(-900_000, 10_000, None)).await.unwrap();
    let sum = |marks: &[super::DayRevision]| marks.iter().map(|mark| mark.changes).sum::<u64>();
    assert_eq!(sum(&before), sum(&after), "no day changes");
}

async fn the_newest_check_run_of_a_commit_wins(results: &dyn Results) {
    let check = |head: &str, repo: &str, seconds, status, title: &str| CheckFact {
        at: at(seconds),
        upstream: "Acme/Upstream".into(),
        head_sha: head.into(),
        repo: repo.into(),
        status,
        title: title.into(),
    };
    let ended = CheckRunStatus::Completed(Conclusion::Success);
    let newest = check("aa", "Acme/One", 200, ended, HOSTILE);
    let other = check("bb", "acme/one", 50, CheckRunStatus::Queued, "queued");
    for facts in [
        vec![newest.clone(), other.clone()],
        vec![check("aa", "acme/one", 100, CheckRunStatus::InProgress, "older"), newest.clone()],
    ] {
        results.append(facts.into_iter().map(Fact::Check).collect()).await.unwrap();
    }
    let of = async |upstream: &str, heads: &[&str]| {
        let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
        let mut found = results.checks(upstream, &heads).await.unwrap();
        found.sort_by(|a, b| a.head_sha.cmp(&b.head_sha));
        found
    };
    assert_eq!(of("acme/UPSTREAM", &["aa", "bb", "cc"]).await, [newest, other]);
    for (upstream, heads) in
        [("acme/upstream", &[][..]), ("other/upstream", &["aa"]), (HOSTILE, &[HOSTILE])]
    {
        assert_eq!(of(upstream, heads).await, []);
    }
}

async fn reports_of_an_outcome_are_the_newest(results: &dyn Results, facts: &[Fact]) {
    let all = window(-900_000, 900_000, None);
    for outcomes in
        [vec![CallbackOutcome::Accepted], vec![CallbackOutcome::BadToken, CallbackOutcome::BadBody]]
    {
        let (_, _, mut expected) = expected(facts, &all);
        expected.retain(|report| outcomes.contains(&report.outcome));
        expected.sort_by_key(|report| std::cmp::Reverse(report.at));
        let found = results.newest_callbacks(&all, &outcomes, 100_000).await.unwrap();
        let times = |reports: &[CallbackFact]| -> Vec<i64> {
            reports.iter().map(|report| report.at.as_millisecond()).collect()
        };
        assert!(times(&found) == times(&expected), "{outcomes:?}: {}", found.len());
        let two = results.newest_callbacks(&all, &outcomes, 2).await.unwrap();
        assert_eq!(times(&two), times(&expected)[..two.len()], "{outcomes:?}");
        assert_eq!(two.len(), expected.len().min(2));
    }
}

async fn jobs(results: &dyn Results, repo: &str) -> (Vec<JobOfRecord<'static>>, ResultCounts) {
    let window = window(0, 10_000, Some(repo));
    let dispatches = results.dispatches(&window).await.unwrap();
    let attempts: &'static [_] = results.attempts(&window).await.unwrap().leak();
    let jobs = jobs_of_record(attempts, &dispatches);
    let sums = ResultCounts::of(&jobs, &dispatches);
    (jobs, sums)
}

async fn known_defects_of_the_old_dashboards_do_not_occur(results: &dyn Results) {
    let (late, sums) = jobs(results, "acme/late").await;
    assert_eq!((late.len(), late[0].outcome, sums.running), (1, Some(JobOutcome::Passed), 0));

    let (old, _) = jobs(results, "acme/old").await;
    let of = |sha: &str| old.iter().find(|job| job.record.head_sha == sha).unwrap().outcome;
    assert_eq!(of("new"), Some(JobOutcome::TestFailed));
    assert_eq!(of("old"), Some(JobOutcome::PassedAfterRerun));

    let (_, superseded) = jobs(results, "acme/superseded").await;
    assert_eq!(superseded.count(JobOutcome::Superseded), 1);
    assert_eq!(superseded.job_pass(), Rate { numerator: 1, denominator: 1 });
    assert_eq!(superseded.availability, Rate { numerator: 1, denominator: 1 });

    let (rerun, sums) = jobs(results, "acme/rerun").await;
    assert_eq!((rerun.len(), rerun[0].attempts), (1, 2));
    assert_eq!(sums.test_pass(), Rate { numerator: 1, denominator: 1 });

    let (unstarted, _) = jobs(results, "acme/unstarted").await;
    let row = &unstarted[0].record;
    assert!(row.details.started_at.is_none() && row.began() > at(0), "it isn't in 1970");
    assert_eq!(queue_seconds(&unstarted).count(), 0);

    let (spoofed, _) = jobs(results, "acme/spoofed").await;
    assert_eq!(spoofed[0].record.level, Level::L2, "a name grants nothing");
    assert_eq!(jobs(results, "acme/four").await.0[0].record.level, Level::L4);
}

async fn hostile_texts_are_stored_unchanged(results: &dyn Results) {
    let (odd, _) = jobs(results, "acme/odd").await;
    let row = &odd[0].record;
    assert_eq!(
        (row.workflow.as_str(), row.details.environment.as_deref()),
        (HOSTILE, Some(HOSTILE))
    );
    assert_eq!(row.missing_proof, Some(crcr_domain::checks::proof::MissingProof::Branch));
    assert_eq!(row.details.warnings, [HOSTILE]);
    assert_eq!((&row.job, &row.details.check_run_id, row.pull_request), (&None, &None, None));
    for hostile in [HOSTILE, "' OR '1' = '1", "\\", "a\tb"] {
        let (attempts, _) =
            results.pull_request_facts(hostile, &[7], AttemptFilter::default()).await.unwrap();
        assert!(attempts.is_empty(), "{hostile}");
        assert!(jobs(results, hostile).await.0.is_empty(), "{hostile}");
    }
    let ever = Window::all(Timestamp::MIN, Timestamp::MAX);
    let week = at(0) - SignedDuration::from_hours(24 * 8);
    let rows = results.attempts(&ever).await.unwrap();
    assert!(rows.iter().all(|row| row.dispatched_at > week), "no row is in 1970");
}

async fn at_level_since_is_the_start_of_the_newest_unbroken_span(
    results: &dyn Results,
    facts: &[Fact],
) {
    for (repo, level) in [
        ("aurora-example/torch-aurora", Level::L4),
        ("aurora-example/torch-aurora", Level::L2),
        ("no/such", Level::L2),
    ] {
        let window = window(-700_000, 10_000, Some(repo));
        let since = results.at_level_since(&window, level).await.unwrap();
        let expected = at_level_since(&expected(facts, &window).0, level);
        assert_eq!(since.map(millisecond), expected.map(millisecond), "{repo} {level:?}");
    }
}

fn millisecond(time: Timestamp) -> i64 {
    time.as_millisecond()
}

async fn the_revision_of_a_day_grows_with_each_write(results: &dyn Results) {
    let of = async |repo| {
        let mut marks = results.day_revisions(&window(0, 1, Some(repo))).await.unwrap();
        assert_eq!(marks.len(), 1, "{repo}");
        marks.remove(0)
    };
    let (late, four) = (of("acme/late").await, of("acme/four").await);
    assert_eq!(late.repo, "acme/late");
    let again = attempt("Acme/Late", "a", "1", 2, GOOD, 2000);
    let again = AttemptFact { dispatched_at: at(400), ..again };
    results.append(vec![Fact::Attempt(Box::new(again))]).await.unwrap();
    assert!(of("acme/late").await.changes > late.changes);
    assert_eq!(of("acme/four").await, four);
}

/// What the days of a window came to, from facts and from what was rolled up.
async fn tallies(results: &dyn Results, window: &Window) -> BTreeMap<RepoDay, ResultTotals> {
    let later = results.dispatches(&retention::after(window)).await.unwrap();
    let attempts = results.attempts(window).await.unwrap();
    let dispatches = results.dispatches(window).await.unwrap();
    let mut days = by_day(&attempts, &dispatches, &later);
    let rolled = results.rolled_up_days(window).await.unwrap();
    days.extend(rolled.into_iter().map(|rolled| (rolled.day, rolled.tally)));
    days
}

async fn rolled_up_days_keep_their_numbers_after_deletion(results: &dyn Results) {
    let cut = retention::day_of(at(-200_000));
    let (from, to) = (retention::midnight(cut - 4), retention::midnight(cut));
    let window = Window::all(from, to);
    let before = tallies(results, &window).await;
    let jobs: u64 = before.values().flat_map(|tally| tally.sums.outcomes.values()).sum();
    assert!(before.len() >= 20 && jobs > 200, "{} days, {jobs} jobs", before.len());
    let count = retention::roll_up(results, at(-200_000)).await.unwrap();
    assert!(count >= before.len(), "{count}");
    // A server may take its time to delete.
    while !results.attempts(&window).await.unwrap().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(tallies(results, &window).await, before);
    let kept = Window::all(to, at(10_000));
    assert!(results.attempts(&kept).await.unwrap().len() > 50, "newer facts stay");
    assert_eq!(retention::roll_up(results, at(-200_000)).await.unwrap(), 0, "once is enough");
    assert_eq!(tallies(results, &window).await, before);
}

#[tokio::test]
async fn sqlite_gives_the_numbers_of_the_facts() {
    let folder = tempfile::tempdir().unwrap();
    let url = super::ResultsUrl::Sqlite(folder.path().join("results.db"));
    all(&*super::open(&url, crcr_store::StoreRole::Server).await.unwrap()).await;
}

#[tokio::test]
#[ignore = "needs chdb"]
async fn clickhouse_gives_the_numbers_of_the_facts() {
    let server = crcr_testkit::clickhouse::ClickHouse::start().unwrap();
    let url = super::ResultsUrl::parse(&server.url()).unwrap();
    all(&*super::open(&url, crcr_store::StoreRole::Server).await.unwrap()).await;
}
