//! Levels, their criteria and reviews.

use jiff::{Timestamp, ToSpan as _};

use super::criteria::{
    Criterion, CriterionEvidence, CriterionVerdict, LevelTargets, NamedTestDay, ReviewWindow,
    ThresholdBound, at_level_since, demotion, promotion,
};
use super::review::{ReviewFacts, ReviewQuestion, ReviewSubject};
use super::tests::{BAD, GOOD, at, attempt, dispatch};
use super::{AttemptId, LevelCriteria, Rate, RepoReview, UpstreamFailures};
use crate::allowlist::level::Level;
use crate::checks::lifecycle::{Conclusion, JobState};
use crate::protocol::event::EventName;
use crate::results::facts::{AttemptFact, CallbackOutcome, DispatchFact};
use crate::results::triage::TriageVerdict;

fn refs<T>(all: &[T]) -> Vec<&T> {
    all.iter().collect()
}

/// `days` days of one dispatch and one job each, of which every `bad_every`th fails its tests.
fn month(days: i64, bad_every: i64) -> (Vec<AttemptFact>, Vec<DispatchFact>) {
    (0..days)
        .map(|day| {
            let (delivery, sha) = (format!("d{day}"), format!("s{day}"));
            let s = day * 86_400;
            let state = if day % bad_every == bad_every - 1 { BAD } else { GOOD };
            let row = attempt(&delivery, &sha, &day.to_string(), 1, state, s + 700);
            (row, dispatch(&delivery, &sha, s))
        })
        .unzip()
}

/// What there is of a repository in the first `days`, without reports and named tests.
fn window<'a>(
    attempts: &'a [&'a AttemptFact],
    dispatches: &'a [&'a DispatchFact],
    days: i64,
) -> ReviewWindow<'a> {
    ReviewWindow {
        attempts,
        dispatches,
        reports: Rate::default(),
        core_tests: &[],
        until: at(days * 86_400),
        upstream_failures: 0,
    }
}

#[test]
fn promotion_has_evidence_for_every_criterion() {
    let (attempts, dispatches) = month(40, 8);
    let since = at_level_since(&dispatches, Level::L2);
    let (attempts, dispatches) = (refs(&attempts), refs(&dispatches));
    let window = window(&attempts, &dispatches, 40);
    assert_eq!(since, Some(at(0)));
    let evidence = promotion(window, since, &LevelCriteria::default());
    let of = |criterion| evidence.iter().find(|e| e.criterion == criterion).unwrap();
    assert_eq!(of(Criterion::TimeAtL2).verdict, CriterionVerdict::Met);
    assert_eq!(of(Criterion::TimeAtL2).value, Some(40.0));
    assert_eq!(of(Criterion::Coverage).value, Some(40.0));
    assert_eq!(of(Criterion::Queue).value, Some(60.0));
    assert_eq!(of(Criterion::Queue).n, 40);
    assert_eq!(of(Criterion::EndToEnd).value, Some(700.0));
    assert_eq!(of(Criterion::Timeouts).value, Some(0.0));
    // 5 of 40 fail: 87.5 % pass.
    assert_eq!(of(Criterion::JobPass).value, Some(0.875));
    assert_eq!(of(Criterion::JobPass).verdict, CriterionVerdict::NotMet);
}

#[test]
fn too_few_samples_are_unknown_and_cause_no_demotion() {
    let (attempts, dispatches) = month(19, 2);
    let (attempts, dispatches) = (refs(&attempts), refs(&dispatches));
    let window = window(&attempts, &dispatches, 19);
    for evidence in demotion(window, &LevelCriteria::default()) {
        assert_eq!(evidence.verdict, CriterionVerdict::Unknown, "{evidence:?}");
    }
}

#[test]
fn end_to_end_time_at_the_threshold_changes_no_level() {
    let (mut attempts, dispatches) = month(20, 100);
    for (row, dispatch) in attempts.iter_mut().zip(&dispatches) {
        row.received_at = dispatch.enqueued_at + 3.hours();
    }
    let (attempts, dispatches) = (refs(&attempts), refs(&dispatches));
    let window = window(&attempts, &dispatches, 20);
    let verdict = |evidence: Vec<CriterionEvidence>| {
        evidence.iter().find(|e| e.criterion == Criterion::EndToEnd).unwrap().verdict
    };
    assert_eq!(
        verdict(promotion(window, None, &LevelCriteria::default())),
        CriterionVerdict::NotMet
    );
    assert_eq!(verdict(demotion(window, &LevelCriteria::default())), CriterionVerdict::Met);
}

#[test]
fn share_of_passed_jobs_has_to_be_over_its_target_and_a_job_that_takes_all_its_time_is_in_time() {
    let (mut attempts, dispatches) = month(40, 10);
    attempts[3].execution_seconds = Some(3.0 * 3600.0);
    let (attempts, dispatches) = (refs(&attempts), refs(&dispatches));
    let evidence = demotion(window(&attempts, &dispatches, 40), &LevelCriteria::default());
    let of = |criterion| evidence.iter().find(|e| e.criterion == criterion).unwrap();
    let pass = of(Criterion::JobPass);
    assert_eq!((pass.value, pass.verdict), (Some(0.9), CriterionVerdict::NotMet));
    assert_eq!(of(Criterion::Overrun).value, Some(0.0));
}

#[test]
fn job_that_passed_after_a_rerun_is_a_flake_and_a_core_job_that_passed() {
    let (mut attempts, dispatches) = month(20, 100);
    attempts[19].state = BAD;
    attempts.push(attempt("d19", "s19", "19", 2, GOOD, 19 * 86_400 + 900));
    let l3 = LevelTargets {
        flake_share: Some(0.05),
        core_jobs: ["test", "missing"].map(str::to_owned).into(),
        ..LevelTargets::default()
    };
    let criteria = LevelCriteria { l3, ..LevelCriteria::default() };
    let (attempts, dispatches) = (refs(&attempts), refs(&dispatches));
    let evidence = demotion(window(&attempts, &dispatches, 20), &criteria);
    let of = |criterion| {
        let found = evidence.iter().find(|e| e.criterion == criterion).unwrap();
        (found.value, found.n, found.verdict)
    };
    assert_eq!(of(Criterion::Flakes), (Some(0.05), 20, CriterionVerdict::Met));
    assert_eq!(of(Criterion::CoreJobs), (Some(0.5), 1, CriterionVerdict::NotMet));
}

#[test]
fn value_that_misses_its_target_has_as_many_decimals_as_tell_them_apart() {
    let decimals = |value, target, scale, least| {
        let (criterion, bound) = (Criterion::JobPass, ThresholdBound::Over);
        let verdict = CriterionVerdict::NotMet;
        let item = CriterionEvidence { criterion, value, bound, target, n: 40, verdict };
        item.telling_decimals(scale, least)
    };
    assert_eq!(decimals(Some(0.8996), 0.9, 100.0, 0), Some(2), "90.0 % would read as if it met it");
    assert_eq!(decimals(Some(0.5), 0.9, 100.0, 1), Some(1));
    assert_eq!(decimals(Some(0.9), 0.9, 100.0, 0), None);
    assert_eq!(decimals(None, 0.9, 100.0, 0), None);
}

#[test]
fn timeouts_dont_count_as_overruns() {
    let (mut attempts, dispatches) = month(40, 100);
    attempts[3].state = JobState::Completed(Conclusion::TimedOut);
    attempts[3].execution_seconds = Some(20_000.0);
    attempts[4].execution_seconds = Some(20_000.0);
    let (attempts, dispatches) = (refs(&attempts), refs(&dispatches));
    let window = window(&attempts, &dispatches, 40);
    let evidence = demotion(window, &LevelCriteria::default());
    let overrun = evidence.iter().find(|e| e.criterion == Criterion::Overrun).unwrap();
    assert_eq!((overrun.n, overrun.verdict), (39, CriterionVerdict::NotMet));
    assert_eq!(overrun.value, Some(1.0 / 39.0));
}

#[test]
fn review_follows_the_level_and_proposes_one_step() {
    let (attempts, dispatches) = month(40, 8);
    let review = |level, attempts: &[AttemptFact]| {
        let subject =
            ReviewSubject { repo: "acme/backend", level, from: at(0), to: at(40 * 86_400) };
        let facts = ReviewFacts {
            attempts: refs(attempts),
            dispatches: refs(&dispatches),
            at_l2_since: at_level_since(&dispatches, Level::L2),
            ..ReviewFacts::default()
        };
        RepoReview::of(subject, facts, &LevelCriteria::default())
    };
    let l1 = review(Some(Level::L1), &attempts);
    assert_eq!((l1.question, l1.verdict), (ReviewQuestion::Signal, CriterionVerdict::Unknown));
    assert!(l1.evidence.is_empty() && l1.proposal().is_none());
    // 87.5 % pass.
    let l2 = review(Some(Level::L2), &attempts);
    assert_eq!(
        (l2.question, l2.verdict, l2.proposal()),
        (ReviewQuestion::Promotion, CriterionVerdict::NotMet, None)
    );
    for (level, down) in [(Level::L3, Level::L2), (Level::L4, Level::L3)] {
        let stays = review(Some(level), &attempts);
        assert_eq!((stays.question, stays.proposal()), (ReviewQuestion::Stay, Some(down)));
    }
    let (good, _) = month(40, 100);
    assert_eq!(review(Some(Level::L2), &good).proposal(), Some(Level::L3));
    assert_eq!(review(None, &good).proposal(), None, "who isn't listed is not promoted");
    assert_eq!(review(Some(Level::L3), &good).verdict, CriterionVerdict::Met);
    let few = review(Some(Level::L3), &attempts[..10]);
    assert_eq!((few.verdict, few.proposal()), (CriterionVerdict::Unknown, None));
    assert!(review(Some(Level::L2), &attempts).has_results());
    assert_eq!(
        l2.permalink(),
        "/crcr/acme/backend/level?level=L2&from=2026-09-21T14:13:20Z&to=2026-10-31T14:13:20Z"
    );
}

#[test]
fn nightly_runs_dont_count_in_reviews() {
    let (mut attempts, mut dispatches) = month(40, 2);
    for (row, dispatch) in attempts.iter_mut().zip(&mut dispatches) {
        if matches!(row.state, BAD) {
            row.event = EventName::Nightly;
            dispatch.event = EventName::Nightly;
        }
    }
    let subject = ReviewSubject {
        repo: "acme/backend",
        level: Some(Level::L2),
        from: at(0),
        to: at(40 * 86_400),
    };
    let (attempts, dispatches) = (refs(&attempts), refs(&dispatches));
    let facts = ReviewFacts { attempts, dispatches, ..ReviewFacts::default() };
    let review = RepoReview::of(subject, facts, &LevelCriteria::default());
    let pass = review.evidence.iter().find(|e| e.criterion == Criterion::JobPass).unwrap();
    assert_eq!((pass.value, pass.n), (Some(1.0), 20));
    assert_eq!(review.availability, Rate { numerator: 20, denominator: 20 });
}

#[test]
fn review_counts_valid_and_rejected_reports() {
    use CallbackOutcome as C;
    let outcomes = [C::Accepted, C::Duplicate, C::BelowLevel, C::BadToken, C::BadToken, C::BadBody];
    let subject =
        ReviewSubject { repo: "acme/backend", level: Some(Level::L1), from: at(0), to: at(86_400) };
    let facts = ReviewFacts { reports: outcomes.into(), ..ReviewFacts::default() };
    let review = RepoReview::of(subject, facts, &LevelCriteria::default());
    assert_eq!(review.signal, Rate { numerator: 3, denominator: 6 });
    assert_eq!(review.refused, [(C::BadToken, 2), (C::BadBody, 1)].into());
    assert!(!review.has_results());
}

#[test]
fn time_at_a_level_restarts_after_another_level() {
    let mut dispatches: Vec<_> =
        (0..5).map(|n| dispatch(&format!("d{n}"), "s", n * 86_400)).collect();
    dispatches[2].level = Level::L1;
    assert_eq!(at_level_since(&dispatches, Level::L2), Some(at(3 * 86_400)));
    assert_eq!(at_level_since(&dispatches, Level::L3), None);
}

#[test]
fn failures_of_upstream_are_left_out_only_if_the_criteria_say_so_and_both_rates_are_told() {
    let row = |n: i64| {
        let (delivery, sha, run) = (format!("d{n}"), format!("s{n}"), n.to_string());
        attempt(&delivery, &sha, &run, 1, if n < 6 { BAD } else { GOOD }, 1000 + n)
    };
    let attempts: Vec<_> = (0..40).map(row).collect();
    let verdict = |category: &str| {
        let json = serde_json::json!({
            "schema_version": 1, "category": category, "confidence": "high", "summary": "x",
        });
        TriageVerdict::read(&json).unwrap()
    };
    let review = |upstream_failures| {
        let subject = ReviewSubject {
            repo: "acme/backend",
            level: Some(Level::L3),
            from: at(0),
            to: at(86_400),
        };
        // A verdict on a job that passed leaves nothing out.
        let blamed = attempts.iter().enumerate().map(|(n, row)| {
            let category = if n == 0 { "backend" } else { "upstream" };
            (AttemptId::of(row), verdict(category))
        });
        let facts = ReviewFacts {
            attempts: refs(&attempts),
            blamed: blamed.collect(),
            ..ReviewFacts::default()
        };
        let criteria = LevelCriteria { upstream_failures, ..LevelCriteria::default() };
        let review = RepoReview::of(subject, facts, &criteria);
        assert_eq!(review.upstream_failures, 5);
        assert_eq!(review.job_pass, Rate { numerator: 34, denominator: 40 });
        let without = Rate { numerator: 34, denominator: 35 };
        assert_eq!(review.job_pass_without_upstream, without);
        assert_eq!(review.test_pass_without_upstream, without);
        let pass = review.evidence.iter().find(|e| e.criterion == Criterion::JobPass).unwrap();
        (pass.n, pass.verdict)
    };
    assert_eq!(review(UpstreamFailures::Count), (40, CriterionVerdict::NotMet));
    assert_eq!(review(UpstreamFailures::LeaveOut), (35, CriterionVerdict::Met));
}

/// A review at `level` of 40 days of which every eighth fails, with a valid report a day.
fn review_by(criteria: &LevelCriteria, level: Level) -> RepoReview {
    let (attempts, dispatches) = month(40, 8);
    let to = at(40 * 86_400);
    let subject = ReviewSubject { repo: "acme/backend", level: Some(level), from: at(0), to };
    let facts = ReviewFacts {
        attempts: attempts.iter().collect(),
        dispatches: dispatches.iter().collect(),
        at_l2_since: Some(at(0)),
        reports: vec![CallbackOutcome::Accepted; 40],
        ..ReviewFacts::default()
    };
    RepoReview::of(subject, facts, criteria)
}

#[test]
fn every_level_has_its_own_targets() {
    // 87.5 % pass.
    let with = |share: f64| LevelTargets { job_pass_share: Some(share), ..Default::default() };
    let ratified = LevelCriteria::default();
    let proposal = |criteria: &LevelCriteria, level| review_by(criteria, level).proposal();
    for level in [Level::L1, Level::L2] {
        assert_eq!(proposal(&ratified, level), None);
    }
    assert_eq!(proposal(&ratified, Level::L3), Some(Level::L2));
    assert_eq!(proposal(&ratified, Level::L4), Some(Level::L3));
    let l2 = |share| LevelCriteria { l2: with(share), ..ratified.clone() };
    assert_eq!(proposal(&l2(0.8), Level::L1), Some(Level::L2));
    assert_eq!(proposal(&l2(0.95), Level::L1), None);
    assert_eq!(proposal(&l2(0.95), Level::L2), Some(Level::L1));
    assert_eq!(proposal(&l2(0.8), Level::L2), None, "it stays, and misses what L3 needs");
    let l3 = LevelCriteria { l3: with(0.8), ..ratified.clone() };
    assert_eq!(proposal(&l3, Level::L2), Some(Level::L3));
    assert_eq!(proposal(&l3, Level::L3), None);
    assert_eq!(proposal(&l3, Level::L4), Some(Level::L3), "L4 keeps the common targets");
    let both = |share| LevelCriteria { l4: with(share), ..l3.clone() };
    assert_eq!(proposal(&both(0.85), Level::L3), Some(Level::L4));
    assert_eq!(proposal(&both(0.9), Level::L3), None);
    assert_eq!(proposal(&both(0.85), Level::L4), None);
    assert!(review_by(&ratified, Level::L3).second.is_none());
}

#[test]
fn reports_flakes_and_core_jobs_are_criteria_only_where_they_have_targets() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let review = |core: &[&str]| {
        let l3 = LevelTargets {
            valid_report_share: Some(0.9),
            flake_share: Some(0.01),
            core_jobs: names(core),
            ..Default::default()
        };
        review_by(&LevelCriteria { l3, ..LevelCriteria::default() }, Level::L3)
    };
    let of = |review: &RepoReview, criterion| {
        let found = review.evidence.iter().find(|e| e.criterion == criterion).unwrap();
        (found.value, found.n, found.verdict)
    };
    let (attempts, _) = month(1, 8);
    let name = attempts[0].job.clone().unwrap();
    let full = format!("{} / {name}", attempts[0].workflow);
    let all = review(&[&full]);
    assert_eq!(of(&all, Criterion::ValidReports), (Some(1.0), 40, CriterionVerdict::Met));
    assert_eq!(of(&all, Criterion::Flakes), (Some(0.0), 35, CriterionVerdict::Met));
    // The newest of 40 days failed.
    assert_eq!(of(&all, Criterion::CoreJobs), (Some(0.0), 1, CriterionVerdict::NotMet));
    let some = review(&[&name, "missing"]);
    assert_eq!(of(&some, Criterion::CoreJobs).2, CriterionVerdict::NotMet);
    let none = review(&["missing"]);
    assert_eq!(of(&none, Criterion::CoreJobs), (None, 0, CriterionVerdict::Unknown));
    let ratified = review_by(&LevelCriteria::default(), Level::L3);
    assert_eq!(ratified.evidence.len(), 5);

    let day =
        |name: &str, runs, failures| NamedTestDay { name: name.into(), day: 1, runs, failures };
    let core = |asked: &[&str], days: Vec<NamedTestDay>| {
        let core_tests = names(asked);
        let l3 = LevelTargets { core_tests, ..Default::default() };
        let subject =
            ReviewSubject { repo: "acme/backend", level: Some(Level::L3), from: at(0), to: at(1) };
        let facts = ReviewFacts { core_tests: days, ..ReviewFacts::default() };
        let criteria = LevelCriteria { l3, ..LevelCriteria::default() };
        of(&RepoReview::of(subject, facts, &criteria), Criterion::CoreTests)
    };
    let both = ["T.a", "b"];
    let found = |a_fails| core(&both, vec![day("T.a", 10, a_fails), day("b", 1, 0)]);
    assert_eq!(found(4), (Some(1.0), 2, CriterionVerdict::Met));
    assert_eq!(found(5), (Some(0.5), 2, CriterionVerdict::NotMet));
    assert_eq!(core(&both, vec![day("b", 1, 0)]), (Some(0.5), 1, CriterionVerdict::NotMet));
    assert_eq!(core(&both, vec![]), (None, 0, CriterionVerdict::Unknown));
}

#[test]
fn every_odd_target_is_told_with_its_bounds() {
    let most = |bound: u32| LevelCriteria { promotion_days: bound, ..LevelCriteria::default() };
    assert_eq!(LevelCriteria::default().problems(), Vec::<String>::new());
    assert_eq!(most(366).problems(), Vec::<String>::new());
    assert_eq!(most(14).problems(), Vec::<String>::new(), "as many as `coverage-days`");
    let names = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    let own = LevelTargets {
        flake_share: Some(1.0),
        core_jobs: names(100),
        core_tests: names(100),
        ..LevelTargets::default()
    };
    let good = LevelCriteria { l2: own.clone(), ..LevelCriteria::default() };
    assert_eq!(good.problems(), Vec::<String>::new());
    let odd = LevelCriteria {
        promotion_days: 367,
        demotion_days: 0,
        coverage_days: 400,
        queue_seconds: 0.0,
        overrun_seconds: f64::INFINITY,
        overrun_share: -0.1,
        job_pass_share: f64::NAN,
        l2: LevelTargets {
            flake_share: Some(1.1),
            core_jobs: names(101),
            core_tests: names(102),
            ..own
        },
        l4: LevelTargets { end_to_end_seconds: Some(-1.0), ..LevelTargets::default() },
        ..LevelCriteria::default()
    };
    insta::assert_snapshot!(odd.problems().join("\n"));
}

#[test]
fn core_tests_of_all_levels_are_asked_for_once() {
    let named = |names: &[&str]| LevelTargets {
        core_tests: names.iter().map(|name| (*name).to_owned()).collect(),
        ..LevelTargets::default()
    };
    let criteria = LevelCriteria {
        l2: named(&["b"]),
        l3: named(&["a", "b"]),
        l4: named(&["c"]),
        ..LevelCriteria::default()
    };
    assert_eq!(criteria.core_tests(), ["a", "b", "c"]);
    let own = LevelTargets { overrun_seconds: Some(5.0), ..LevelTargets::default() };
    let criteria = LevelCriteria { l3: own, ..LevelCriteria::default() };
    assert_eq!(criteria.targets(Level::L3).overrun_seconds, Some(5.0));
    assert_eq!(criteria.targets(Level::L4).overrun_seconds, Some(3.0 * 3600.0));
}

#[test]
fn review_covers_whole_days_before_its_end() {
    let criteria = LevelCriteria::default();
    let days = |question: ReviewQuestion| {
        at(0).duration_since(question.from(at(0), &criteria)).as_hours() / 24
    };
    assert_eq!(days(ReviewQuestion::Signal), 14);
    assert_eq!(days(ReviewQuestion::Promotion), 14);
    assert_eq!(days(ReviewQuestion::Stay), 7);
    let earliest = super::review::earliest_dispatch_time(at(0));
    assert_eq!(at(0).duration_since(earliest).as_hours(), 366 * 24);
    assert_eq!(super::review::earliest_dispatch_time(Timestamp::MIN), Timestamp::MIN);
}

#[test]
fn standing_is_said_in_a_sentence() {
    let subject = |level| ReviewSubject { repo: "acme/backend", level, from: at(-1), to: at(0) };
    let empty =
        |level| RepoReview::of(subject(level), ReviewFacts::default(), &LevelCriteria::default());
    let sentence = |review: &RepoReview| review.standing().sentence();
    let l3 = empty(Some(Level::L3));
    assert!(!l3.has_results());
    assert_eq!(sentence(&l3), "has no results yet");
    assert_eq!(sentence(&empty(Some(Level::L1))), "has a level without criteria");
    let with = |verdict, verdicts: &[CriterionVerdict]| {
        let mut review = l3.clone();
        review.verdict = verdict;
        review.evidence.truncate(verdicts.len());
        for (item, verdict) in review.evidence.iter_mut().zip(verdicts) {
            (item.verdict, item.n) = (*verdict, 1);
        }
        assert!(review.has_results());
        review
    };
    use CriterionVerdict::{Met, NotMet, Unknown};
    assert_eq!(sentence(&with(Met, &[Met])), "meets the criterion of its level");
    assert_eq!(sentence(&with(Met, &[Met, Met])), "meets all 2 criteria of its level");
    let one = |verdict| {
        let review = with(verdict, &[Met, verdict]);
        (sentence(&review), review.evidence[1].criterion.title())
    };
    let (failing, title) = one(NotMet);
    assert_eq!(failing, format!("fails its level: {title}"));
    let (unknown, title) = one(Unknown);
    assert_eq!(unknown, format!("can't be said yet: too few samples of {title}"));
    let mut only_time = with(Met, &[Met]);
    only_time.evidence[0].criterion = Criterion::TimeAtL2;
    assert!(!only_time.has_results(), "time passes without results");
    only_time.availability.denominator = 1;
    assert!(only_time.has_results());
}

#[test]
fn every_criterion_and_question_has_a_title_of_its_own() {
    use super::review::SecondQuestion;
    let second = |question| {
        SecondQuestion { question, evidence: vec![], verdict: CriterionVerdict::Met }.title()
    };
    let questions = [
        ReviewQuestion::Signal.title(),
        ReviewQuestion::Promotion.title(),
        ReviewQuestion::Stay.title(),
        second(ReviewQuestion::Promotion),
        second(ReviewQuestion::Stay),
    ];
    let bounds = [
        ThresholdBound::AtLeast.sign(),
        ThresholdBound::Over.sign(),
        ThresholdBound::AtMost.sign(),
        ThresholdBound::Under.sign(),
    ];
    let titles = [&questions[..], &Criterion::ALL.map(Criterion::title), &bounds].concat();
    insta::assert_snapshot!(titles.join("\n"));
}

#[test]
fn core_job_or_test_without_a_name_is_refused() {
    for names in ["[\"\"]", "[null]", "[\"a\", null]"] {
        for kind in ["core-jobs", "core-tests"] {
            let text = format!("{{\"l4\": {{\"{kind}\": {names}}}}}");
            let read = serde_json::from_str::<LevelCriteria>(&text);
            assert!(read.unwrap_err().to_string().contains("a name is empty"), "{text}");
        }
    }
}
