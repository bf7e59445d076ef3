//! Breaks upstream in generated facts, so that it is known which failures upstream caused.

use std::collections::{HashMap, HashSet};

use crcr_domain::checks::lifecycle::{Conclusion, JobState};
use crcr_domain::protocol::callback::FailedTest;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::AttemptId;
use crcr_domain::results::facts::{AttemptFact, Fact};
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// A change that breaks all backends at once is rare: drivers and supported operators differ.
const AFFECTED: f64 = 0.8;
/// Share of pull requests' heads that are broken.
const BROKEN_HEADS: f64 = 0.08;
/// Share of pushes that begin a breakage of the branch.
const BROKEN_PUSHES: f64 = 0.08;
/// Until somebody reverts it.
const MAX_PUSHES_BROKEN: usize = 3;

pub struct BrokenMonth {
    pub facts: Vec<Fact>,
    /// Attempts that failed because of upstream.
    pub broken: HashSet<AttemptId>,
}

/// One change that breaks backends.
struct Breakage {
    test: String,
    backends: HashSet<&'static str>,
}

/// Breaks some heads of pull requests, and upstream's branch for some pushes: what branches off there,
/// and each night in that time, fails as well. The same seed gives the same breakages.
pub fn break_upstream(seed: u64, mut facts: Vec<Fact>) -> BrokenMonth {
    let mut random = StdRng::seed_from_u64(seed);
    let mut breakages: Vec<Breakage> = vec![];
    let mut new_breakage = |random: &mut StdRng| {
        let backends = super::BACKENDS.iter().map(|backend| backend.repo);
        breakages.push(Breakage {
            test: format!("TestUpstream.test_change_{}", breakages.len()),
            backends: backends.filter(|_| random.random_bool(AFFECTED)).collect(),
        });
        breakages.len() - 1
    };
    // In order of time, each with its breakage.
    let mut pushes: Vec<(Timestamp, String, Option<usize>)> = vec![];
    let mut heads: Vec<String> = vec![];
    let mut seen = HashSet::new();
    let mut bases: HashMap<String, String> = HashMap::new();
    for fact in &facts {
        match fact {
            Fact::Dispatch(sent) if seen.insert(sent.head_sha.clone()) => match sent.pull_request {
                Some(_) => heads.push(sent.head_sha.clone()),
                None => pushes.push((sent.enqueued_at, sent.head_sha.clone(), None)),
            },
            Fact::MergeBase(found) => {
                bases.insert(found.head_sha.clone(), found.merge_base.clone());
            }
            _ => {}
        }
    }
    let mut at = 0;
    while at < pushes.len() {
        if random.random_bool(BROKEN_PUSHES) {
            let breakage = new_breakage(&mut random);
            let end = (at + random.random_range(1..=MAX_PUSHES_BROKEN)).min(pushes.len());
            pushes[at..end].iter_mut().for_each(|push| push.2 = Some(breakage));
            at = end;
        }
        at += 1;
    }
    let mut commits: HashMap<String, usize> = HashMap::new();
    commits.extend(pushes.iter().filter_map(|(_, sha, broken)| Some((sha.clone(), (*broken)?))));
    for head in heads {
        let inherited = bases.get(&head).and_then(|base| commits.get(base)).copied();
        let own = random.random_bool(BROKEN_HEADS).then(|| new_breakage(&mut random));
        if let Some(breakage) = inherited.or(own) {
            commits.insert(head, breakage);
        }
    }
    let mut broken = HashSet::new();
    for fact in &mut facts {
        let Fact::Attempt(row) = fact else { continue };
        let breakage = match row.event {
            EventName::Nightly => {
                let last = pushes.partition_point(|(at, ..)| *at <= row.received_at);
                pushes[..last].last().and_then(|(.., broken)| *broken)
            }
            _ => commits.get(&row.head_sha).copied(),
        };
        let Some(breakage) = breakage.map(|at| &breakages[at]) else { continue };
        if breakage.backends.contains(&*row.repo) && runs_tests(row) {
            fail(row, &breakage.test);
            broken.insert(AttemptId::of(row));
        }
    }
    BrokenMonth { facts, broken }
}

/// Whether the attempt got to its tests, and is of the job that has the broken one.
fn runs_tests(row: &AttemptFact) -> bool {
    let backend = super::BACKENDS.iter().find(|backend| backend.repo == row.repo);
    let last = backend.and_then(|backend| backend.jobs.last().copied());
    let ended = match row.state {
        JobState::Completed(Conclusion::Success) => true,
        JobState::Completed(Conclusion::Failure) => row.details.phase.as_deref() == Some("test"),
        _ => false,
    };
    ended && row.job.as_deref() == last
}

fn fail(row: &mut AttemptFact, test: &str) {
    row.state = JobState::Completed(Conclusion::Failure);
    row.details.phase = Some("test".to_owned());
    row.details.failed_tests.push(FailedTest {
        name: test.to_owned(),
        file: Some("test/test_upstream.py".to_owned()),
        message: Some("AssertionError: upstream changed".to_owned()),
        ..FailedTest::default()
    });
    if let Some(tests) = &mut row.details.tests {
        (tests.passed, tests.failed) = (tests.passed.saturating_sub(1), tests.failed + 1);
    }
}
