//! Finds the commit that broke a test, although the test is flaky: a branch was green at one commit and is red at a
//! later one, and any commit between them may be the culprit.
//!
//! The posterior over the candidates is computed from all observations. A commit from the culprit on fails; one before
//! it fails only as often as the test flakes. The next commit is the one whose result is expected to tell most.
//!
//! Perhaps no commit is at fault, and the backend itself broke: then every commit fails from some run on, also the one
//! that was green. That one is run, too, and a culprit is named only if its parent has passed after all.

use serde::{Deserialize, Serialize};

/// How often a commit with the fault passes nevertheless. More than never, so that one wrong observation doesn't rule
/// out the truth.
const LUCKY_PASS: f64 = 0.001;
/// A test that never flaked before may do so now.
const LEAST_FLAKE_RATE: f64 = 0.02;
/// A test that flakes more often than this can't be bisected with a few runs. It is also that of a very flaky test.
const MOST_FLAKE_RATE: f64 = 0.5;
/// How probable it is that a test is very flaky before anything is known of it.
const VERY_FLAKY: f64 = 0.1;
/// How probable it is, before the first run, that the backend itself broke.
const BACKEND_CHANGED: f64 = 0.05;
/// How probable it is that the backend breaks between two runs.
const CHANGES_MEANWHILE: f64 = 0.002;
/// An answer is named at this certainty.
const CERTAINTY: f64 = 0.99;
/// The runs of one bisection, those that check the answer included.
pub const MAX_RUNS: usize = 16;

/// How often a test fails for no reason.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FlakeRate {
    /// As far as that is known.
    #[serde(rename = "flake_rate")]
    pub usual: f64,
    /// The probability that it fails half of the time instead.
    pub very_flaky: f64,
}

impl FlakeRate {
    /// `changes`: how often a result was another one than that before it, of `pairs` that follow each other. A fault stays
    /// for several commits, while the results of a very flaky test change half of the time.
    pub fn after(usual: f64, changes: usize, pairs: usize) -> Self {
        let same = pairs.saturating_sub(changes) as f64;
        // A logarithm, as a product of thousands would be zero.
        let likelihood = |rate: f64| {
            let change = 2.0 * rate * (1.0 - rate);
            changes as f64 * change.ln() + same * (1.0 - change).ln()
        };
        let rate = usual.clamp(LEAST_FLAKE_RATE, MOST_FLAKE_RATE);
        let against = (likelihood(rate) - likelihood(MOST_FLAKE_RATE)).exp();
        let very_flaky = 1.0 / (1.0 + against * (1.0 - VERY_FLAKY) / VERY_FLAKY);
        Self { usual, very_flaky }
    }
}

/// What a run of one commit said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BisectOutcome {
    Passed,
    Failed,
    /// Its infrastructure failed, or it never started: it tells nothing.
    NoResult,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BisectRun {
    /// Its index among the candidates, oldest first. `None` is the green commit before them.
    pub candidate: Option<usize>,
    /// `None` while it runs.
    pub outcome: Option<BisectOutcome>,
    /// The answer that it was to check, as an index of the candidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum BisectStep {
    /// Run these next; `None` is the green commit. `checks` is the answer that they check.
    Run {
        candidates: Vec<Option<usize>>,
        checks: Option<usize>,
    },
    /// Nothing more can be said until an open run ends.
    Wait,
    Answer(BisectAnswer),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BisectAnswer {
    pub suspect: Suspect,
    /// The probability of it.
    pub certainty: f64,
    /// Whether it may be named: it is probable enough, and was checked. Otherwise the runs weren't enough.
    pub is_certain: bool,
    /// How many runs it took.
    pub runs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suspect {
    Candidate(usize),
    /// None of them: the failure that began it was a flake.
    Flake,
    /// None of them: the green commit fails now, too.
    BackendChanged,
}

struct Posterior {
    /// The probability that the backend changed, that of each candidate, and last that the failure was a flake.
    weights: Vec<f64>,
    /// The same together with each flake rate that is possible.
    by_rate: [(f64, Vec<f64>); 2],
}

/// What to do next. `parallel` is how many runs may be open at once, `budget` how many more may be made now.
///
/// A run that tells nothing counts as one that was made.
pub fn next_step(
    candidates: usize,
    flakes: FlakeRate,
    runs: &[BisectRun],
    (parallel, budget): (usize, usize),
) -> BisectStep {
    let posterior = Posterior::of(candidates, flakes, runs);
    let (suspect, certainty) = posterior.suspect();
    let open = runs.iter().filter(|run| run.outcome.is_none()).count();
    let left = MAX_RUNS.saturating_sub(runs.len());
    let (mut wanted, checks) = match suspect {
        // The run of the parent also tells whether it was the backend that changed.
        Suspect::Candidate(culprit)
            if posterior.without_change(certainty) >= CERTAINTY
                && !to_check(culprit, runs).is_empty() =>
        {
            (to_check(culprit, runs), Some(culprit))
        }
        Suspect::BackendChanged if certainty >= CERTAINTY => {
            let is_enough = |one| matches!(one, None | Some(BisectOutcome::Failed));
            (if of_green(runs).any(is_enough) { vec![] } else { vec![None] }, None)
        }
        _ if certainty >= CERTAINTY => (vec![], None),
        _ if open > 0 => return BisectStep::Wait,
        _ => (posterior.most_telling(parallel.max(1)), None),
    };
    if wanted.is_empty() || left == 0 {
        if open > 0 {
            return BisectStep::Wait;
        }
        return BisectStep::Answer(answer(candidates, flakes, runs));
    }
    wanted.truncate(left.min(budget));
    if wanted.is_empty() {
        return BisectStep::Wait;
    }
    BisectStep::Run { candidates: wanted, checks }
}

/// What is most probable by now.
pub fn answer(candidates: usize, flakes: FlakeRate, runs: &[BisectRun]) -> BisectAnswer {
    let (suspect, certainty) = Posterior::of(candidates, flakes, runs).suspect();
    let is_checked = match suspect {
        // A backend that broke in between would have failed there, too.
        Suspect::Candidate(culprit) => {
            let is = |run: &BisectRun, commit, outcome| {
                run.candidate == commit && run.outcome == Some(outcome)
            };
            let failed = |run: &BisectRun| is(run, Some(culprit), BisectOutcome::Failed);
            let parent = culprit.checked_sub(1);
            let later = runs.iter().skip_while(|run| !failed(run));
            later.into_iter().any(|run| is(run, parent, BisectOutcome::Passed))
        }
        Suspect::BackendChanged => {
            of_green(runs).any(|outcome| outcome == Some(BisectOutcome::Failed))
        }
        Suspect::Flake => true,
    };
    let is_certain = is_checked && certainty >= CERTAINTY;
    BisectAnswer { suspect, certainty, is_certain, runs: runs.len() }
}

/// What is still to be run once more before a culprit is named: the culprit, and its parent until that has passed.
fn to_check(culprit: usize, runs: &[BisectRun]) -> Vec<Option<usize>> {
    let parent = culprit.checked_sub(1);
    let mut of_pair = runs.iter().filter(|run| run.checks == Some(culprit));
    let is_culprit = |run: &BisectRun| run.candidate == Some(culprit);
    let has_culprit =
        of_pair.clone().any(|run| is_culprit(run) && run.outcome != Some(BisectOutcome::NoResult));
    let has_parent = of_pair.any(|run| {
        run.candidate == parent && matches!(run.outcome, None | Some(BisectOutcome::Passed))
    });
    let mut pair = [(!has_culprit).then_some(Some(culprit)), (!has_parent).then_some(parent)];
    // With one run left, the parent's is the one that an answer needs.
    if runs.iter().any(|run| is_culprit(run) && run.outcome == Some(BisectOutcome::Failed)) {
        pair.reverse();
    }
    pair.into_iter().flatten().collect()
}

fn of_green(runs: &[BisectRun]) -> impl Iterator<Item = Option<BisectOutcome>> {
    runs.iter().filter(|run| run.candidate.is_none()).map(|run| run.outcome)
}

impl Posterior {
    fn of(candidates: usize, flakes: FlakeRate, runs: &[BisectRun]) -> Self {
        let before = |(rate, probability): (f64, f64)| {
            // Before the first run: the failure is as often a flake as the test flakes.
            let none = rate / (1.0 + rate);
            let each = (1.0 - none - BACKEND_CHANGED) / candidates.max(1) as f64;
            let mut weights = vec![probability * BACKEND_CHANGED];
            weights.resize(1 + candidates, probability * each);
            weights.push(probability * none);
            (rate, weights)
        };
        let usual = flakes.usual.clamp(LEAST_FLAKE_RATE, MOST_FLAKE_RATE);
        let rates = [(usual, 1.0 - flakes.very_flaky), (MOST_FLAKE_RATE, flakes.very_flaky)];
        let mut posterior = Self { weights: vec![], by_rate: rates.map(before) };
        posterior.normalize();
        for run in runs {
            match run.outcome {
                Some(BisectOutcome::Passed) => posterior.update(place(run.candidate), false),
                Some(BisectOutcome::Failed) => posterior.update(place(run.candidate), true),
                Some(BisectOutcome::NoResult) | None => {}
            }
        }
        posterior
    }

    /// The probability of something else if the backend hasn't changed.
    fn without_change(&self, weight: f64) -> f64 {
        weight / (1.0 - self.weights[0])
    }

    /// The commits that can be run: the green one, and the candidates.
    fn places(&self) -> usize {
        self.weights.len() - 1
    }

    fn update(&mut self, ran: usize, failed: bool) {
        let places = self.places();
        for (rate, weights) in &mut self.by_rate {
            let changes = CHANGES_MEANWHILE * weights.iter().sum::<f64>();
            for (culprit, weight) in weights.iter_mut().enumerate() {
                *weight *= 1.0 - CHANGES_MEANWHILE;
                *weight += if culprit == 0 { changes } else { 0.0 };
                let has_fault = culprit <= ran && culprit < places;
                let fails = if has_fault { 1.0 - LUCKY_PASS } else { *rate };
                *weight *= if failed { fails } else { 1.0 - fails };
            }
        }
        self.normalize();
    }

    fn normalize(&mut self) {
        let all = || self.by_rate.iter().flat_map(|(_, weights)| weights);
        let sum: f64 = all().sum();
        for (_, weights) in &mut self.by_rate {
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        let [(_, usual), (_, very_flaky)] = &self.by_rate;
        self.weights = usual.iter().zip(very_flaky).map(|(one, other)| one + other).collect();
    }

    fn suspect(&self) -> (Suspect, f64) {
        let best = self.weights.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let (at, certainty) = best.map_or((0, 0.0), |(at, weight)| (at, *weight));
        let suspect = match commit(at) {
            None => Suspect::BackendChanged,
            Some(_) if at == self.places() => Suspect::Flake,
            Some(candidate) => Suspect::Candidate(candidate),
        };
        (suspect, certainty)
    }

    /// One: the commit with the highest expected gain of information. Several: those that cut the posterior into equal
    /// parts.
    fn most_telling(&self, parallel: usize) -> Vec<Option<usize>> {
        if parallel == 1 {
            let gains: Vec<f64> = (0..self.places()).map(|at| self.gain(at)).collect();
            // The first of equal ones.
            let best =
                (0..gains.len()).max_by(|a, b| gains[*a].total_cmp(&gains[*b]).then(b.cmp(a)));
            return best.into_iter().map(commit).collect();
        }
        let mut before = 0.0;
        let cumulative: Vec<f64> = self.weights[..self.places()]
            .iter()
            .map(|weight| {
                before += weight;
                before
            })
            .collect();
        let cuts = (1..=parallel).map(|cut| cut as f64 / (parallel + 1) as f64);
        let mut chosen: Vec<usize> =
            cuts.filter_map(|cut| cumulative.iter().position(|sum| *sum >= cut)).collect();
        chosen.dedup();
        if chosen.is_empty() {
            return self.most_telling(1);
        }
        chosen.into_iter().map(commit).collect()
    }

    /// What a run of the commit at this place is expected to tell, in bits.
    fn gain(&self, at: usize) -> f64 {
        let good: f64 = self.weights[at + 1..].iter().sum();
        let flakes =
            |(rate, weights): &(f64, Vec<f64>)| rate * weights[at + 1..].iter().sum::<f64>();
        let flakes: f64 = self.by_rate.iter().map(flakes).sum();
        let has_fault = 1.0 - good;
        let fails = has_fault * (1.0 - LUCKY_PASS) + flakes;
        let rate = if good > 0.0 { flakes / good } else { 0.0 };
        entropy(fails) - has_fault * entropy(LUCKY_PASS) - good * entropy(rate)
    }
}

/// Where a commit is among those that can be run.
fn place(candidate: Option<usize>) -> usize {
    candidate.map_or(0, |candidate| candidate + 1)
}

fn commit(place: usize) -> Option<usize> {
    place.checked_sub(1)
}

fn entropy(probability: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    part(probability) + part(1.0 - probability)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::month::SeededRandom;

    /// A branch with one culprit, whose runs fail for no reason in `flakes`, and tell nothing in `infra`.
    struct Branch {
        candidates: usize,
        culprit: Option<usize>,
        flakes: f64,
        infra: f64,
        /// After so many runs everything fails.
        backend_breaks_after: usize,
    }

    impl Default for Branch {
        fn default() -> Self {
            let (flakes, infra) = (0.0, 0.0);
            Self { candidates: 64, culprit: None, flakes, infra, backend_breaks_after: usize::MAX }
        }
    }

    /// That of a test of which much is known.
    fn known(usual: f64) -> FlakeRate {
        FlakeRate { usual, very_flaky: 0.0 }
    }

    fn bisect(seed: u64, branch: &Branch, assumed: f64, parallel: usize) -> BisectAnswer {
        bisect_with(seed, branch, known(assumed), parallel)
    }

    fn bisect_with(seed: u64, branch: &Branch, flakes: FlakeRate, parallel: usize) -> BisectAnswer {
        let mut random = SeededRandom(seed);
        let mut runs: Vec<BisectRun> = vec![];
        loop {
            match next_step(branch.candidates, flakes, &runs, (parallel, usize::MAX)) {
                BisectStep::Answer(answer) => return answer,
                BisectStep::Wait => panic!("nothing is open"),
                BisectStep::Run { candidates, checks } => {
                    assert!(!candidates.is_empty() && candidates.len() <= parallel.max(2));
                    for candidate in candidates {
                        let has_fault =
                            branch.culprit.is_some_and(|culprit| candidate >= Some(culprit))
                                || runs.len() >= branch.backend_breaks_after;
                        let outcome = if random.chance(branch.infra) {
                            BisectOutcome::NoResult
                        } else if has_fault || random.chance(branch.flakes) {
                            BisectOutcome::Failed
                        } else {
                            BisectOutcome::Passed
                        };
                        runs.push(BisectRun { candidate, outcome: Some(outcome), checks });
                    }
                    assert!(runs.len() <= MAX_RUNS, "the budget is never exceeded");
                }
            }
        }
    }

    struct Score {
        right: usize,
        named: usize,
        wrongly_named: usize,
        runs: usize,
        most_runs: usize,
    }

    /// 1,000 branches of 64 candidates.
    fn score(flakes: f64, infra: f64, assumed: FlakeRate, parallel: usize) -> Score {
        let mut score = Score { right: 0, named: 0, wrongly_named: 0, runs: 0, most_runs: 0 };
        for seed in 0..1000 {
            let culprit = (SeededRandom(seed ^ 0xabcd).next() % 64) as usize;
            let branch = Branch { culprit: Some(culprit), flakes, infra, ..Branch::default() };
            let answer = bisect_with(seed, &branch, assumed, parallel);
            let is_right = answer.suspect == Suspect::Candidate(culprit);
            score.right += usize::from(is_right);
            score.named += usize::from(answer.is_certain);
            score.wrongly_named += usize::from(answer.is_certain && !is_right);
            score.runs += answer.runs;
            score.most_runs = score.most_runs.max(answer.runs);
        }
        score
    }

    #[test]
    fn culprit_of_64_candidates_with_10_per_cent_flakes_is_right_in_99_per_cent() {
        let Score { right, named, wrongly_named, runs, most_runs } = score(0.1, 0.0, known(0.1), 1);
        println!(
            "right {right}, named {named}, of these wrong {wrongly_named}, runs {runs}, at most {most_runs}"
        );
        assert!(right >= 990, "{right} of 1000 right");
        assert!(runs <= 12_000, "{} runs on average", runs as f64 / 1000.0);
        assert!(most_runs <= 16, "{most_runs}");
        assert!(wrongly_named <= 5 && named >= 980, "{wrongly_named} of {named}");
    }

    #[test]
    fn a_culprit_is_seldom_named_wrongly_even_if_the_flake_rate_is_another() {
        for (flakes, infra, assumed, parallel) in
            [(0.0, 0.0, 0.02, 1), (0.1, 0.0, 0.05, 1), (0.02, 0.2, 0.05, 1), (0.1, 0.0, 0.1, 3)]
        {
            let Score { right, named, wrongly_named, runs, most_runs } =
                score(flakes, infra, known(assumed), parallel);
            println!(
                "flakes {flakes}, no result {infra}, assumed {assumed}, {parallel} at once: right {right}, named {named}, wrong {wrongly_named}, runs {runs}, at most {most_runs}"
            );
            assert!(wrongly_named <= 10, "{flakes} {infra} {assumed} {parallel}");
            assert!(most_runs <= MAX_RUNS);
        }
    }

    /// The first results of a backend don't tell how flaky it is.
    #[test]
    fn very_flaky_test_of_which_little_is_known_seldom_has_a_wrong_culprit_named() {
        for (flakes, results, limit) in [(0.5, 1, 30), (0.3, 1, 10), (0.1, 1, 5), (0.1, 12, 5)] {
            // All of them passed before the failure that is looked into.
            let assumed = FlakeRate::after(1.0 / (10.0 + f64::from(results)), 1, results as usize);
            let Score { right, named, wrongly_named, runs, most_runs } =
                score(flakes, 0.0, assumed, 1);
            println!(
                "flakes {flakes} after {results} results: very flaky {:.3}, right {right}, named {named}, wrong {wrongly_named}, runs {runs}, at most {most_runs}",
                assumed.very_flaky
            );
            assert!(wrongly_named <= limit, "{flakes} {results}: {wrongly_named}");
        }
    }

    #[test]
    fn results_that_change_all_the_time_are_those_of_a_very_flaky_test() {
        let very_flaky = |changes, pairs| FlakeRate::after(0.1, changes, pairs).very_flaky;
        assert!(very_flaky(1, 12) < 0.01, "the first failure");
        assert!(very_flaky(2, 60) < 0.001, "it was broken for a while, and repaired");
        assert!(very_flaky(8, 16) > 0.5);
        assert!((very_flaky(0, 0) - VERY_FLAKY).abs() < 1e-9);
        assert_eq!([very_flaky(0, 9000), very_flaky(4500, 9000)], [0.0, 1.0]);
    }

    #[test]
    fn a_failure_that_was_a_flake_has_no_culprit() {
        let mut flakes = 0;
        for seed in 0..200 {
            let branch = Branch { candidates: 20, flakes: 0.1, ..Branch::default() };
            let answer = bisect(seed, &branch, 0.1, 1);
            flakes += usize::from(answer.suspect == Suspect::Flake);
        }
        assert!(flakes >= 190, "{flakes} of 200");
    }

    #[test]
    fn one_candidate_is_named_after_the_green_commit_has_passed_once_more() {
        let branch = Branch { candidates: 1, culprit: Some(0), ..Branch::default() };
        let answer = bisect(1, &branch, 0.02, 1);
        assert_eq!(answer.suspect, Suspect::Candidate(0));
        assert!(answer.is_certain && answer.runs <= 4, "{answer:?}");
    }

    #[test]
    fn if_the_green_commit_fails_too_the_backend_changed_and_no_commit_is_named() {
        for (candidates, assumed) in [(1, 0.02), (1, 0.1), (2, 0.1), (64, 0.1), (250, 0.1)] {
            let branch = Branch { candidates, backend_breaks_after: 0, ..Branch::default() };
            let answer = bisect(1, &branch, assumed, 1);
            assert_eq!(answer.suspect, Suspect::BackendChanged, "{candidates} {assumed}");
            assert!(answer.is_certain && answer.runs <= 8, "{candidates} {assumed}: {answer:?}");
        }
    }

    #[test]
    fn a_backend_that_breaks_during_the_search_has_nobody_named_for_it() {
        for seed in 0..1000 {
            let candidates = 1 + (SeededRandom(seed).next() % 64) as usize;
            for parallel in [1, 3] {
                let branch = Branch {
                    candidates,
                    flakes: 0.02,
                    backend_breaks_after: (seed % 6) as usize,
                    ..Branch::default()
                };
                let answer = bisect(seed, &branch, 0.1, parallel);
                let named = matches!(answer.suspect, Suspect::Candidate(_)) && answer.is_certain;
                assert!(!named, "{seed} {candidates}: {answer:?}");
            }
        }
    }

    #[test]
    fn runs_without_a_result_tell_nothing_and_use_up_the_budget() {
        let branch = Branch { culprit: Some(3), infra: 1.0, ..Branch::default() };
        let answer = bisect(7, &branch, 0.1, 1);
        assert_eq!(answer.runs, MAX_RUNS);
        assert!(!answer.is_certain, "not enough runs is an answer");
    }

    #[test]
    fn last_run_is_that_of_the_parent_if_the_culprit_has_failed_already() {
        let run = |candidate, outcome, checks| BisectRun { candidate, outcome, checks };
        let failed = run(Some(1), Some(BisectOutcome::Failed), None);
        let none = run(Some(1), Some(BisectOutcome::NoResult), Some(1));
        assert_eq!(to_check(1, &[]), [Some(1), Some(0)]);
        assert_eq!(to_check(1, &[failed]), [Some(0), Some(1)]);
        assert_eq!(to_check(1, &[failed, none]), [Some(0), Some(1)], "that run told nothing");
    }

    #[test]
    fn without_a_budget_it_waits_and_open_runs_are_waited_for() {
        assert_eq!(next_step(8, known(0.1), &[], (1, 0)), BisectStep::Wait);
        let open = BisectRun { candidate: Some(3), outcome: None, checks: None };
        assert_eq!(next_step(8, known(0.1), &[open], (1, 9)), BisectStep::Wait);
    }
}
