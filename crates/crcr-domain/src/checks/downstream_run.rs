//! Downstream runs, and which of them a dispatch started.
//!
//! GitHub's response to `repository_dispatch` doesn't name a run, and a run doesn't name its dispatch. Runs
//! are matched by proven reports, by titles, and by the time and event of the dispatches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::checks::lifecycle::Conclusion;
use crate::protocol::callback::JobId;
use crate::protocol::event::EventName;

/// GitHub may have created the run before it answered the request: a request takes less than this.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(15);

/// How many runs and groups of runs are kept with one dispatch. Each workflow that listens for the event
/// starts one run.
pub const RUNS_PER_DISPATCH: usize = 200;

/// A downstream run that a dispatch started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownstreamRun {
    pub id: String,
    /// The workflow's file. For each workflow only the newest run counts.
    pub workflow: String,
    /// The attempt that `state` describes, from 1.
    pub attempt: u32,
    pub state: RunState,
    /// Jobs of older attempts that GitHub's list of the newest attempt doesn't have any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced_jobs: Vec<JobId>,
    /// If it failed: the check runs of the jobs that didn't end well, by GitHub's list. Not every job reports. `None`:
    /// no whole list was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_jobs: Option<Vec<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "conclusion")]
pub enum RunState {
    Open,
    Over(Conclusion),
    /// It is over, and its conclusion isn't one that this version knows, or GitHub doesn't have the run any
    /// more.
    OverUnknown,
}

impl RunState {
    pub fn is_good(self) -> bool {
        matches!(self, Self::Over(end) if end.is_good())
    }

    /// Whether a job of the run has failed, by GitHub's conclusion of the run.
    pub fn has_failed(self) -> bool {
        matches!(self, Self::Over(end) if !end.is_good() && end != Conclusion::Cancelled)
    }
}

/// Runs of one workflow that can't be told apart: any of them may be the dispatch's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRuns {
    pub workflow: String,
    pub is_open: bool,
    /// Whether all of them that are over ended well.
    pub are_good: bool,
    /// Whether one of them is the dispatch's, for all that is known: the other dispatches that they may belong to need
    /// others of them, or runs that aren't in the list.
    pub include_own: bool,
}

/// A run of the downstream repository, as GitHub lists it for `event=repository_dispatch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRun {
    pub id: u64,
    pub workflow: String,
    pub attempt: u32,
    pub state: RunState,
    /// When its first attempt was created.
    pub created_at: Timestamp,
    /// The display title. A workflow's `run-name` may put the delivery id into it.
    pub title: String,
}

/// A dispatch that GitHub accepted, or may have accepted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AcceptedSend {
    pub delivery: String,
    pub event: EventName,
    /// The time by GitHub's clock.
    pub at: Timestamp,
    /// Whether GitHub said so, and not only may have got it.
    pub is_certain: bool,
    /// [`PullRequest::author_texts`](crate::protocol::event::PullRequest::author_texts): a run's title may say what its
    /// pull request's author wants.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author_texts: String,
    /// When GitHub created the latest of its runs that came after the usual time: others may be as late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_run_at: Option<Timestamp>,
}

/// The runs of a dispatch, as far as a list of runs tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DispatchRuns {
    pub own: Vec<DownstreamRun>,
    pub shared: Vec<SharedRuns>,
}

impl AcceptedSend {
    /// When GitHub creates the runs of the dispatch. `window`: how long it may take, unless it is known to be late.
    pub fn window(&self, window: Duration) -> (Timestamp, Timestamp) {
        let last = self.late_run_at.map_or(self.at, |late| late.max(self.at));
        (self.at - MAX_REQUEST_TIME, last + window)
    }

    fn may_have_started(&self, run: &ListedRun, window: Duration) -> bool {
        let (from, to) = self.window(window);
        from <= run.created_at && run.created_at <= to
    }

    /// Whether the title contains the delivery's id, and not that of another delivery which begins with it.
    fn is_named_by(&self, title: &str) -> bool {
        let id = self.delivery.as_str();
        title.match_indices(id).any(|(at, _)| {
            let (before, after) = (&title[..at], &title[at + id.len()..]);
            let is_part =
                |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-');
            !is_part(before.chars().next_back())
                && !is_part(after.chars().next())
                // The delivery that announces that a pull request has landed.
                && !after.starts_with(":landed")
        })
    }
}

/// The default title of a run is the type of its event.
fn is_event_title(title: &str) -> bool {
    ["pull_request", "push", "merge_group", "landed"].contains(&title)
}

/// The listed runs that the dispatch `own` started, or may have started.
///
/// `listed`: all runs that were created between `listed_from` and `listed_to`. `others`: the other dispatches to the
/// repository that may have started one of them. `window`: how long GitHub may take to create a run. `claimed_by`
/// returns the delivery that proven reports of a run belong to.
pub fn runs_of_dispatch<'a>(
    listed: &[ListedRun],
    (listed_from, listed_to): (Timestamp, Timestamp),
    own: &'a AcceptedSend,
    others: &'a [AcceptedSend],
    window: Duration,
    claimed_by: impl Fn(u64) -> Option<&'a str>,
) -> DispatchRuns {
    let sends: Vec<&AcceptedSend> = [own].into_iter().chain(others).collect();
    let is_seen = |send: &&AcceptedSend| {
        let (from, to) = send.window(window);
        listed_from <= from && to <= listed_to
    };
    let are_seen: Vec<bool> = sends.iter().map(is_seen).collect();
    let mut workflows: BTreeMap<&str, Vec<RunMatch<'_>>> = BTreeMap::new();
    for run in listed {
        let found = RunMatch::new(run, &sends, window, claimed_by(run.id));
        workflows.entry(&run.workflow).or_default().push(found);
    }
    let mut found = DispatchRuns::default();
    for (workflow, runs) in workflows {
        let own = runs.iter().filter(|run| run.is_named && run.candidates.contains(&OWN));
        found.own.extend(own.map(RunMatch::downstream));
        let unnamed = unnamed(&runs, &sends);
        let (possible, belief) = possible_runs(&unnamed, &are_seen);
        match possible.as_slice() {
            [] => {}
            [run] if belief == OwnRun::Certain && !run.is_doubtful => {
                found.own.push(run.downstream());
            }
            runs => found.shared.push(shared(workflow, runs, belief != OwnRun::Needless)),
        }
    }
    found
}

/// The index of the dispatch whose runs are looked for.
const OWN: usize = 0;

/// A listed run, and the dispatches that may have started it, by their index.
#[derive(Clone)]
struct RunMatch<'a> {
    run: &'a ListedRun,
    candidates: BTreeSet<usize>,
    /// Whether a report or the title says so.
    is_named: bool,
    /// Whether it may also be that of a dispatch which GitHub may not have accepted.
    is_doubtful: bool,
}

impl<'a> RunMatch<'a> {
    fn new(
        run: &'a ListedRun,
        sends: &[&AcceptedSend],
        window: Duration,
        claim: Option<&str>,
    ) -> Self {
        let of = |test: &dyn Fn(&AcceptedSend) -> bool| -> BTreeSet<usize> {
            (0..sends.len()).filter(|index| test(sends[*index])).collect()
        };
        if let Some(claim) = claim {
            let candidates = of(&|send| send.delivery == claim);
            return Self { run, candidates, is_named: true, is_doubtful: false };
        }
        let named = of(&|send| send.is_named_by(&run.title));
        // The id may come from the text of another dispatch's pull request.
        let is_wanted = |send: &AcceptedSend| {
            let names_one = |text: &&str| named.iter().any(|one| sends[*one].is_named_by(text));
            send.may_have_started(run, window)
                && send.author_texts.lines().filter(names_one).any(|text| run.title.contains(text))
        };
        let wanted = of(&is_wanted);
        if !named.is_empty() {
            let is_named = wanted.is_empty();
            return Self { run, candidates: &named | &wanted, is_named, is_doubtful: false };
        }
        let is_other_event = |send: &AcceptedSend| {
            is_event_title(&run.title)
                && run.title != send.event.as_str()
                && !send.author_texts.lines().any(|text| text == run.title)
        };
        let candidates = of(&|send| send.may_have_started(run, window) && !is_other_event(send));
        Self { run, candidates, is_named: false, is_doubtful: false }
    }

    fn downstream(&self) -> DownstreamRun {
        DownstreamRun {
            id: self.run.id.to_string(),
            workflow: self.run.workflow.clone(),
            attempt: self.run.attempt,
            state: self.run.state,
            replaced_jobs: vec![],
            failed_jobs: None,
        }
    }
}

/// The runs of a workflow that nothing names. A dispatch whose run is known needs no other run of the workflow, and one
/// that GitHub may not have accepted takes none away from those that it has.
fn unnamed<'a>(runs: &[RunMatch<'a>], sends: &[&AcceptedSend]) -> Vec<RunMatch<'a>> {
    let named = runs.iter().filter(|run| run.is_named).flat_map(|run| &run.candidates);
    let settled: BTreeSet<usize> = named.copied().collect();
    let mut unnamed: Vec<_> = runs.iter().filter(|run| !run.is_named).cloned().collect();
    for run in &mut unnamed {
        run.candidates.retain(|send| !settled.contains(send));
        let all = run.candidates.len();
        run.candidates.retain(|send| sends[*send].is_certain);
        run.is_doubtful = run.candidates.len() < all;
    }
    unnamed.retain(|run| !run.candidates.is_empty());
    unnamed
}

/// Whether one of the runs that may be the own dispatch's is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnRun {
    Certain,
    /// Another dispatch may have started it, or have a run that isn't in the list.
    Doubtful,
    /// Another dispatch has none, so the workflow doesn't run for each dispatch.
    Needless,
}

/// The runs that may be the own dispatch's, and whether one of them is. `are_seen`: of each dispatch, whether all runs
/// of its window are listed.
///
/// Every run is one of its candidates', and a dispatch starts a workflow once. So the runs are matched with dispatches,
/// and it is found out which other matchings there are: a run of another dispatch may be the own one's if the own run
/// can be that dispatch's, perhaps over several others. If the own run can be that of a dispatch without run, the own
/// dispatch needn't have one.
fn possible_runs<'a, 'b>(
    runs: &'b [RunMatch<'a>],
    are_seen: &[bool],
) -> (Vec<&'b RunMatch<'a>>, OwnRun) {
    let is_adjacent = |run: &usize| runs[*run].candidates.contains(&OWN);
    let all = |is_possible: &dyn Fn(&usize) -> bool| {
        (0..runs.len()).filter(is_adjacent).filter(is_possible).map(|run| &runs[run]).collect()
    };
    let mut matching =
        RunMatching { run_of: vec![None; are_seen.len()], send_of: vec![None; runs.len()] };
    for run in connected(runs) {
        if !matching.add(runs, run) {
            // GitHub accepted some dispatch more often than is known.
            return (all(&|_| true), OwnRun::Certain);
        }
    }
    let Some(own) = matching.run_of[OWN] else { return (all(&|_| true), OwnRun::Needless) };
    let mut belief = OwnRun::Certain;
    let mut reached = BTreeSet::from([own]);
    let mut queue = vec![own];
    while let Some(run) = queue.pop() {
        for send in runs[run].candidates.iter().filter(|send| **send != OWN) {
            match matching.run_of[*send] {
                Some(next) if reached.insert(next) => queue.push(next),
                Some(_) => {}
                None if are_seen[*send] => return (all(&|_| true), OwnRun::Needless),
                None => belief = OwnRun::Doubtful,
            }
        }
    }
    (all(&|run| reached.contains(run)), belief)
}

/// The runs that share dispatches with those that may be the own one's, directly or over others.
fn connected(runs: &[RunMatch<'_>]) -> BTreeSet<usize> {
    let mut of_send: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        run.candidates.iter().for_each(|send| of_send.entry(*send).or_default().push(index));
    }
    let mut found = BTreeSet::new();
    let mut queue = vec![OWN];
    while let Some(send) = queue.pop() {
        for run in of_send.remove(&send).unwrap_or_default() {
            if found.insert(run) {
                queue.extend(runs[run].candidates.iter().filter(|send| of_send.contains_key(send)));
            }
        }
    }
    found
}

/// Runs and their dispatches, by their indices.
struct RunMatching {
    run_of: Vec<Option<usize>>,
    send_of: Vec<Option<usize>>,
}

impl RunMatching {
    /// Gives a run a dispatch, if need be by giving others another one, along the shortest augmenting path. `false`:
    /// there are fewer dispatches than runs.
    fn add(&mut self, runs: &[RunMatch<'_>], run: usize) -> bool {
        let mut wanted_by: BTreeMap<usize, usize> = BTreeMap::new();
        if let Some(free) = runs[run].candidates.iter().find(|send| self.run_of[**send].is_none()) {
            wanted_by.insert(*free, run);
            self.flip(*free, &wanted_by);
            return true;
        }
        let mut queue = VecDeque::from([run]);
        while let Some(run) = queue.pop_front() {
            for send in &runs[run].candidates {
                if wanted_by.contains_key(send) {
                    continue;
                }
                wanted_by.insert(*send, run);
                let Some(taken_by) = self.run_of[*send] else {
                    self.flip(*send, &wanted_by);
                    return true;
                };
                queue.push_back(taken_by);
            }
        }
        false
    }

    /// Gives a free dispatch to the run that wants it, that run's dispatch to the next one, and so on.
    fn flip(&mut self, free: usize, wanted_by: &BTreeMap<usize, usize>) {
        let mut free = Some(free);
        while let Some(send) = free {
            let run = wanted_by[&send];
            free = self.send_of[run].replace(send);
            self.run_of[send] = Some(run);
        }
    }
}

fn shared(workflow: &str, runs: &[&RunMatch<'_>], include_own: bool) -> SharedRuns {
    let is_open = |run: &&&RunMatch<'_>| run.run.state == RunState::Open;
    SharedRuns {
        workflow: workflow.to_owned(),
        is_open: runs.iter().any(|run| is_open(&run)),
        are_good: runs.iter().filter(|run| !is_open(run)).all(|run| run.run.state.is_good()),
        include_own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);
    const GOOD: RunState = RunState::Over(Conclusion::Success);
    const BAD: RunState = RunState::Over(Conclusion::Failure);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn listed(id: u64, workflow: &str, second: i64) -> ListedRun {
        ListedRun {
            id,
            workflow: workflow.to_owned(),
            attempt: 1,
            state: RunState::Open,
            created_at: at(second),
            title: "a title of its own".to_owned(),
        }
    }

    fn send(delivery: &str, event: EventName, second: i64) -> AcceptedSend {
        let author_texts = String::new();
        AcceptedSend {
            delivery: delivery.to_owned(),
            event,
            at: at(second),
            is_certain: true,
            author_texts,
            late_run_at: None,
        }
    }

    fn pull_with(author_texts: &str, delivery: &str, second: i64) -> AcceptedSend {
        AcceptedSend { author_texts: author_texts.to_owned(), ..pull(delivery, second) }
    }

    fn pull(delivery: &str, second: i64) -> AcceptedSend {
        send(delivery, EventName::PullRequest, second)
    }

    fn found(
        listed: &[ListedRun],
        others: &[AcceptedSend],
        claims: &[(u64, &str)],
    ) -> DispatchRuns {
        found_within((Timestamp::MIN, Timestamp::MAX), listed, others, claims)
    }

    fn found_within(
        within: (Timestamp, Timestamp),
        listed: &[ListedRun],
        others: &[AcceptedSend],
        claims: &[(u64, &str)],
    ) -> DispatchRuns {
        found_for(&pull("d", 0), within, listed, others, claims)
    }

    fn found_for(
        own: &AcceptedSend,
        within: (Timestamp, Timestamp),
        listed: &[ListedRun],
        others: &[AcceptedSend],
        claims: &[(u64, &str)],
    ) -> DispatchRuns {
        runs_of_dispatch(listed, within, own, others, WINDOW, |id| {
            claims.iter().find(|(run, _)| *run == id).map(|(_, delivery)| *delivery)
        })
    }

    fn own(runs: &DispatchRuns) -> Vec<&str> {
        runs.own.iter().map(|run| run.id.as_str()).collect()
    }

    #[test]
    fn run_without_reports_belongs_to_the_only_dispatch_of_its_time() {
        let all = [listed(1, "lint.yml", -60), listed(2, "lint.yml", 3), listed(3, "ci.yml", 400)];
        let runs = found(&all, &[pull("e", 600)], &[]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["2"], 0));
    }

    #[test]
    fn run_with_reports_belongs_to_their_delivery_regardless_of_time() {
        let all = [listed(2, "ci.yml", 3), listed(3, "ci.yml", 4), listed(9, "ci.yml", 9000)];
        let runs = found(&all, &[pull("e", 1)], &[(3, "e"), (9, "d")]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["9"], 0), "2 is nobody's any more");
    }

    #[test]
    fn title_with_a_delivery_decides_and_a_longer_id_is_another_one() {
        let titled =
            |id, title: &str| ListedRun { title: title.to_owned(), ..listed(id, "ci.yml", 3) };
        let others = [pull("72d3162e-cc79", 1), send("d:landed", EventName::Landed, 1)];
        let all = [titled(2, "CI of d"), titled(3, "72d3162e-cc79"), titled(4, "d:landed")];
        let runs = found(&all, &others, &[]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["2"], 0));
        // A title counts at any time, and only with the whole id.
        let late = |title: &str| [ListedRun { created_at: at(9000), ..titled(2, title) }];
        for title in ["d", "CI of d", "CI (d)", "d: CI", "of d-2 and d"] {
            assert_eq!(own(&found(&late(title), &[], &[])), ["2"], "{title}");
        }
        for title in ["d-2", "2-d", "d2", "2d", "d:landed", "CI"] {
            assert_eq!(found(&late(title), &[], &[]), DispatchRuns::default(), "{title}");
        }
    }

    #[test]
    fn run_titled_as_another_event_is_not_evidence() {
        let push_only =
            ListedRun { title: "push".to_owned(), state: BAD, ..listed(2, "push.yml", 3) };
        for others in [vec![send("p", EventName::Push, 1)], vec![]] {
            let runs = found(std::slice::from_ref(&push_only), &others, &[]);
            assert_eq!(runs, DispatchRuns::default());
        }
    }

    #[test]
    fn author_disowns_no_failed_run_by_the_title_of_a_pull_request() {
        let always = (Timestamp::MIN, Timestamp::MAX);
        let failed = |title: &str| {
            [ListedRun { title: title.to_owned(), state: BAD, ..listed(2, "lint.yml", 3) }]
        };
        // The title of GitHub's default for another event.
        let own_push = pull_with("push\ntopic\nmallory", "d", 0);
        let runs = found_for(&own_push, always, &failed("push"), &[], &[]);
        assert_eq!(own(&runs), ["2"]);
        let push = send("p", EventName::Push, 1);
        let runs = found_for(&own_push, always, &failed("push"), &[push], &[]);
        assert!(runs.own.is_empty() && !runs.shared[0].are_good, "it may be the push's, too");
        // The id of the dispatch before, which anybody can read in its payload.
        let named = pull_with("Retry of e\ntopic\nmallory", "d", 0);
        for title in ["Retry of e", "CI: Retry of e"] {
            let runs = found_for(&named, always, &failed(title), &[pull("e", -1)], &[]);
            assert!(runs.own.is_empty() && !runs.shared[0].are_good, "{title}");
        }
    }

    #[test]
    fn author_makes_no_failed_run_anothers_by_the_title_of_a_pull_request() {
        let titled = |id, title: &str, state| ListedRun {
            title: title.to_owned(),
            state,
            ..listed(id, "lint.yml", 3)
        };
        let all = [titled(2, "CI of d", GOOD), titled(3, "CI of e: see d", BAD)];
        let other = pull_with("see d\ntopic\nmallory", "e", 1);
        let runs = found(&all, &[other], &[]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["2"], 0));
    }

    #[test]
    fn run_that_can_only_be_anothers_is_left_to_it() {
        // The second dispatch's window doesn't contain the first run, so the second run is the second's.
        let all = [listed(2, "lint.yml", 2), listed(3, "lint.yml", 52)];
        let runs = found(&all, &[pull("e", 50)], &[]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["2"], 0));
        // A report of the other run leaves only the first one.
        let all = [listed(2, "lint.yml", 2), listed(3, "lint.yml", 3)];
        let runs = found(&all, &[pull("e", 1)], &[(3, "e")]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["2"], 0));
    }

    #[test]
    fn runs_that_cannot_be_told_apart_are_one_of_them_ours_if_there_are_enough() {
        let ended = |id, state| ListedRun { state, ..listed(id, "lint.yml", 3) };
        let all = [ended(2, GOOD), ended(3, BAD)];
        let runs = found(&all, &[pull("e", 1)], &[]);
        let group = |are_good, include_own| SharedRuns {
            workflow: "lint.yml".to_owned(),
            is_open: false,
            are_good,
            include_own,
        };
        assert_eq!((own(&runs), runs.shared.clone()), (vec![], vec![group(false, true)]));
        // The workflow ran once for two dispatches, so it doesn't run for each of them.
        let runs = found(&[ended(2, BAD)], &[send("p", EventName::Push, 1)], &[]);
        assert_eq!((own(&runs), runs.shared.clone()), (vec![], vec![group(false, false)]));
    }

    #[test]
    fn failed_run_counts_although_a_dispatch_that_github_may_have_refused_could_have_started_it() {
        let failed = ListedRun { state: BAD, ..listed(2, "gpu.yml", 3) };
        let lost = AcceptedSend { is_certain: false, ..pull("e", 1) };
        let runs = found(std::slice::from_ref(&failed), std::slice::from_ref(&lost), &[]);
        assert!(own(&runs).is_empty(), "it may be the other's after all");
        assert!(runs.shared[0].include_own && !runs.shared[0].are_good, "{runs:?}");
        // GitHub had accepted both.
        let both = [failed, ListedRun { state: GOOD, ..listed(3, "gpu.yml", 4) }];
        let runs = found(&both, &[lost], &[]);
        assert!(runs.shared[0].include_own && !runs.shared[0].are_good, "{runs:?}");
    }

    #[test]
    fn failed_run_is_ours_if_the_other_runs_are_as_many_as_the_other_dispatches() {
        // Three dispatches within seconds, ours half a minute later, and a run of each, none of which has reported.
        let others = [pull("e", -33), pull("f", -32), pull("g", -31)];
        let before: Vec<_> =
            (2..5).map(|id| ListedRun { state: GOOD, ..listed(id, "gpu.yml", -20) }).collect();
        let failed = ListedRun { state: BAD, ..listed(9, "gpu.yml", 15) };
        let runs = found(&[before.clone(), vec![failed.clone()]].concat(), &others, &[]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["9"], 0));
        // One of the others has no run that is known, so the failed one may be its.
        let runs = found(&[before[1..].to_vec(), vec![failed]].concat(), &others, &[]);
        assert!(own(&runs).is_empty() && !runs.shared[0].include_own);
    }

    #[test]
    fn runs_are_told_apart_although_a_later_dispatch_has_none() {
        // Two runs are those of the two dispatches before ours, the next one is ours, and the last one may be that of
        // any of the two dispatches after it.
        let others = [pull("e", -50), pull("f", -50), pull("x", 70), pull("y", 70)];
        let run = |id, second, state| ListedRun { state, ..listed(id, "gpu.yml", second) };
        let all = [run(2, -40, GOOD), run(3, -40, GOOD), run(4, 5, BAD), run(5, 58, GOOD)];
        let runs = found(&all, &others, &[]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["4"], 0));
    }

    #[test]
    fn failed_run_counts_while_the_run_of_a_dispatch_may_be_outside_of_the_list() {
        let run = |id, second, state| ListedRun { state, ..listed(id, "gpu.yml", second) };
        let (e, f) = (pull("e", 46), pull("f", 92));
        let failed = run(2, 46, BAD);
        let mut all = vec![failed.clone(), run(3, 95, GOOD), run(4, 130, GOOD)];
        let list = |to: &AcceptedSend| (pull("d", 0).window(WINDOW).0, to.window(WINDOW).1);
        let others = [e.clone(), f.clone()];
        let runs = found_within(list(&f), &all, &others, &[]);
        assert_eq!(own(&runs), ["2"], "each of the three dispatches has a run");
        all.pop();
        for (end, is_ours) in [(&e, true), (&f, false)] {
            let runs = found_within(list(end), &all, &others, &[]);
            assert!(own(&runs).is_empty() && !runs.shared[0].are_good, "{runs:?}");
            assert_eq!(runs.shared[0].include_own, is_ours, "{runs:?}");
        }
        // The list begins after a dispatch whose run may have been created before.
        let runs = found_within(list(&e), &[failed], &[pull("c", -10), e], &[]);
        assert!(!runs.shared[0].include_own, "`e` has no run, and all of its window is listed");
        let early = run(2, 5, BAD);
        let runs = found_within(list(&f), &[early], &[pull("c", -10)], &[]);
        assert!(runs.shared[0].include_own, "{runs:?}");
    }

    #[test]
    fn runs_of_a_great_many_dispatches_are_matched_at_once() {
        let others: Vec<_> = (1..400).map(|n| pull(&format!("other-{n}"), n % 40)).collect();
        let all: Vec<_> = (0..400)
            .map(|n| ListedRun { state: GOOD, ..listed(n, "ci.yml", 40 - n as i64 % 50) })
            .collect();
        let runs = found(&all, &others, &[]);
        assert!(runs.shared[0].include_own);
    }

    #[test]
    fn of_two_runs_of_one_workflow_the_one_without_report_is_not_evidence() {
        let all = [listed(2, "ci.yml", 3), listed(3, "ci.yml", 4)];
        let runs = found(&all, &[], &[(2, "d")]);
        assert_eq!((own(&runs), runs.shared.len()), (vec!["2"], 0));
        let runs = found(&all, &[], &[]);
        assert!(own(&runs).is_empty() && runs.shared[0].include_own && runs.shared[0].is_open);
    }

    #[test]
    fn stack_of_many_dispatches_drops_no_run() {
        let others: Vec<_> = (1..20).map(|n| pull(&format!("other-{n}"), n / 4)).collect();
        let mut all: Vec<_> = (0..60)
            .map(|n| ListedRun { state: GOOD, ..listed(n, ["a", "b", "c"][n as usize % 3], 5) })
            .collect();
        all[59].state = RunState::Open;
        let runs = found(&all, &others, &[]);
        let open: Vec<_> = runs.shared.iter().filter(|group| group.is_open).collect();
        assert_eq!(open.len(), 1, "the running one is waited for");
    }
}
