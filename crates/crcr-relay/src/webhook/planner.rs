//! Decides which backends get an event, and which event of a pull request is the newest. Nothing here
//! reads or writes the state.

use std::collections::BTreeSet;

use crcr_domain::probes::ProbeTag;
use crcr_domain::protocol::dispatch::Dispatch;
use crcr_domain::protocol::event::{EventName, PullRequest, PullRequestAction, UpstreamEvent};
use crcr_domain::{Allowlist, AllowlistEntry, RepoName};
use jiff::Timestamp;

use crate::limits;
use crate::state_records::{HeadMove, PullRecord, drop_oldest};

/// The beginning of the id of a delivery that the relay has made up, as GitHub didn't send it.
pub(crate) const MADE_UP: &str = "reconciled-";

/// The part of a dispatch that is the same for every backend.
struct DispatchContent<'a> {
    event: EventName,
    action: Option<PullRequestAction>,
    pull: Option<&'a PullRequest>,
    head_sha: &'a str,
    base_sha: Option<&'a str>,
    author_texts: &'a str,
}

/// The dispatches of an event: one for every repository of the allowlist that takes it, in the order
/// of the file.
pub fn dispatches(
    event: &UpstreamEvent,
    delivery: &str,
    upstream: &RepoName,
    allowlist: &Allowlist,
    now: Timestamp,
) -> Vec<Dispatch> {
    let (content, takes): (_, fn(&AllowlistEntry) -> bool) = match event {
        UpstreamEvent::PullRequest(pull) if pull.action.dispatches() => (
            DispatchContent::of_pull(EventName::PullRequest, Some(pull.action), pull),
            AllowlistEntry::is_dispatched_to,
        ),
        UpstreamEvent::Push(push) => {
            let head_sha = push.head_sha.as_str();
            let content = DispatchContent {
                event: EventName::Push,
                action: None,
                pull: None,
                head_sha,
                base_sha: None,
                author_texts: &push.author_texts,
            };
            (content, AllowlistEntry::is_dispatched_to)
        }
        UpstreamEvent::MergeGroup(group) => {
            let (head_sha, base_sha) = (group.head_sha.as_str(), group.base_sha.as_deref());
            let content = DispatchContent {
                event: EventName::MergeGroup,
                action: None,
                pull: None,
                head_sha,
                base_sha,
                author_texts: &group.author_texts,
            };
            (content, AllowlistEntry::takes_merge_groups)
        }
        _ => return vec![],
    };
    let entries = allowlist.iter().filter(|entry| takes(entry));
    entries.map(|entry| content.dispatch(entry, delivery, upstream, now)).collect()
}

/// The dispatches that announce that a pull request has landed. They have a delivery id of their own,
/// because the event itself may be dispatched, too.
pub fn landed(
    pull: &PullRequest,
    delivery: &str,
    upstream: &RepoName,
    allowlist: &Allowlist,
    now: Timestamp,
) -> Vec<Dispatch> {
    let content = DispatchContent::of_pull(EventName::Landed, None, pull);
    let entries = allowlist.iter().filter(|entry| entry.is_dispatched_to());
    entries.map(|entry| content.dispatch(entry, delivery, upstream, now)).collect()
}

/// A commit that a backend is asked to run to explain a failure.
pub fn probe(
    entry: &AllowlistEntry,
    delivery: &str,
    upstream: &RepoName,
    commit: &str,
    tag: ProbeTag,
    now: Timestamp,
) -> Dispatch {
    let content = DispatchContent {
        event: EventName::Probe,
        action: None,
        pull: None,
        head_sha: commit,
        base_sha: None,
        author_texts: "",
    };
    Dispatch { probe: Some(tag), ..content.dispatch(entry, delivery, upstream, now) }
}

impl<'a> DispatchContent<'a> {
    fn of_pull(event: EventName, action: Option<PullRequestAction>, pull: &'a PullRequest) -> Self {
        let (head_sha, base_sha) = (pull.head_sha.as_str(), pull.base_sha.as_deref());
        Self {
            event,
            action,
            pull: Some(pull),
            head_sha,
            base_sha,
            author_texts: &pull.author_texts,
        }
    }

    fn dispatch(
        &self,
        entry: &AllowlistEntry,
        delivery: &str,
        upstream: &RepoName,
        now: Timestamp,
    ) -> Dispatch {
        let caused_by = (delivery, upstream.as_str(), self.event.clone());
        Dispatch {
            action: self.action,
            pull_request: self.pull.map(|pull| pull.number),
            author: self.pull.and_then(|pull| pull.author.clone()),
            base_sha: self.base_sha.map(str::to_owned),
            base_branch: self.pull.and_then(|pull| pull.base_branch.clone()),
            device: entry.device.clone(),
            labels: self.pull.map(|pull| pull.labels.clone()).unwrap_or_default(),
            is_draft: self.pull.is_some_and(|pull| pull.is_draft),
            is_known_author: self.pull.is_some_and(|pull| pull.is_known_author),
            author_texts: self.author_texts.to_owned(),
            ..Dispatch::queued(caused_by, self.head_sha, (entry.repo.clone(), entry.level), now)
        }
    }
}

/// An event's position among the events of its pull request.
#[derive(Debug, Clone, PartialEq)]
pub struct EventOrder {
    /// The pull request's record after the event.
    pub pull: PullRecord,
    /// The newer delivery that arrived before this event.
    pub superseded_by: Option<String>,
    /// Whether that delivery is of the same head, which it may not have brought to every backend.
    pub is_of_newest_head: bool,
    /// Deliveries of an older head. Their unsent dispatches are cancelled.
    pub replaces: Vec<String>,
}

impl EventOrder {
    fn newest(pull: PullRecord, replaces: Vec<String>) -> Self {
        Self { pull, superseded_by: None, is_of_newest_head: false, replaces }
    }
}

/// The head after all these moves, in whatever order they are known. Every head but the last is left as often as it
/// is reached, and the last one is reached once more.
///
/// If some of the moves aren't known, several heads can be the last one. Those that only moves from the head at the
/// beginning lead to are left again, so another one is taken; of these `newest` or else `known`.
fn head_after<'a>(moves: &'a [HeadMove], newest: &'a str, known: &'a str) -> &'a str {
    let balance = |head: &str| -> i64 {
        let reached = moves.iter().filter(|step| step.to == head).count();
        let left = moves.iter().filter(|step| step.from.as_deref() == Some(head)).count();
        reached as i64 - left as i64
    };
    let heads = || moves.iter().map(|step| step.to.as_str());
    let best = heads().map(balance).max().unwrap_or(0);
    let from_start = heads_from_start(moves);
    let is_best = |head: &str| balance(head) == best;
    let is_further = |head: &str| is_best(head) && !from_start.contains(head);
    let has_further = heads().any(is_further);
    let is_last = |head: &str| if has_further { is_further(head) } else { is_best(head) };
    if is_last(newest) || best <= 0 {
        newest
    } else if is_last(known) {
        known
    } else {
        heads().find(|head| is_last(head)).unwrap_or(newest)
    }
}

/// The head at the beginning, and those that the known moves lead to from there.
fn heads_from_start(moves: &[HeadMove]) -> BTreeSet<&str> {
    let mut heads = BTreeSet::new();
    loop {
        let known = heads.len();
        for step in moves {
            if step.from.as_deref().is_none_or(|from| heads.contains(from)) {
                heads.insert(step.to.as_str());
            }
        }
        if heads.len() == known {
            return heads;
        }
    }
}

/// The moves of the second of an event, together with its own.
fn moves_with(event: &PullRequest, known: &PullRecord) -> Vec<HeadMove> {
    let mut moves = match event.updated_at == known.updated_at {
        true => known.moves.clone(),
        // The head at the beginning of the second.
        false if known.deliveries.is_empty() => vec![],
        false => vec![HeadMove { from: None, to: known.head_sha.clone() }],
    };
    let is_left = |head: &str| moves.iter().any(|step| step.from.as_deref() == Some(head));
    let from = match event.action {
        PullRequestAction::Opened => None,
        PullRequestAction::Synchronize => {
            Some(event.before.clone().unwrap_or_else(|| known.head_sha.clone()))
        }
        // It isn't a push, but can be the first to tell of one.
        _ if event.head_sha != known.head_sha && !is_left(&event.head_sha) => {
            Some(known.head_sha.clone())
        }
        _ => return moves,
    };
    moves.push(HeadMove { from, to: event.head_sha.clone() });
    let surplus = moves.len().saturating_sub(limits::MOVES_PER_SECOND);
    moves.drain(..surplus);
    moves
}

/// Takes the head of an older event for the one at the beginning of the newest second, if no later one is known.
/// Returns whether it is.
fn take_start(pull: &mut PullRecord, event: &PullRequest) -> bool {
    use PullRequestAction::{Opened, Synchronize};
    let has_start = pull.moves.iter().any(|step| step.from.is_none());
    let is_later = match pull.start_at {
        Some(at) => event.updated_at >= at,
        None => !has_start && !pull.moves.is_empty(),
    };
    if !is_later || !matches!(event.action, Opened | Synchronize) {
        return false;
    }
    pull.moves.retain(|step| step.from.is_some());
    pull.moves.insert(0, HeadMove { from: None, to: event.head_sha.clone() });
    pull.start_at = Some(event.updated_at);
    true
}

/// Takes over the labels of an event. Events of one second arrive in any order, so each of them only changes the label
/// that it is about.
fn take_labels(pull: &mut PullRecord, event: &PullRequest) {
    if event.updated_at > pull.labels_at {
        pull.labels.clone_from(&event.labels);
        pull.labels_at = event.updated_at;
        return;
    }
    let Some(label) = event.label.as_ref().filter(|_| event.updated_at == pull.labels_at) else {
        return;
    };
    match event.action {
        PullRequestAction::Labeled
            if !pull.labels.iter().any(|known| known.eq_ignore_ascii_case(label)) =>
        {
            pull.labels.push(label.clone());
        }
        PullRequestAction::Unlabeled => {
            pull.labels.retain(|known| !known.eq_ignore_ascii_case(label));
        }
        _ => {}
    }
}

fn first_record(event: &PullRequest, delivery: &str, now: Timestamp) -> PullRecord {
    let dispatched = event.action.dispatches();
    PullRecord {
        head_sha: event.head_sha.clone(),
        updated_at: if dispatched { event.updated_at } else { Timestamp::UNIX_EPOCH },
        moves: if dispatched {
            let from = event.before.clone();
            vec![HeadMove { from, to: event.head_sha.clone() }]
        } else {
            vec![]
        },
        start_at: None,
        order: now.as_millisecond(),
        is_closed: event.action == PullRequestAction::Closed,
        closings: closing(event.action),
        is_ready: dispatched && !event.is_draft,
        base_branch: event.base_branch.clone().filter(|_| dispatched),
        deliveries: if dispatched { vec![delivery.to_owned()] } else { vec![] },
        older: vec![],
        labels: event.labels.clone(),
        labels_at: event.updated_at,
        has_landed: event.has_landed,
    }
}

fn closing(action: PullRequestAction) -> i64 {
    match action {
        PullRequestAction::Closed => 1,
        PullRequestAction::Reopened => -1,
        _ => 0,
    }
}

/// Takes over whether the pull request is closed. Within one second it can be closed and opened again, and the events
/// arrive in any order.
fn take_closing(pull: &mut PullRecord, known: &PullRecord, event: &PullRequest) {
    let before = match closing(event.action) {
        _ if event.updated_at == known.updated_at => known.closings,
        // A closed one gets labels, and nothing else that isn't about closing.
        0 if event.action.dispatches() => 0,
        _ => i64::from(known.is_closed),
    };
    pull.closings = before + closing(event.action);
    pull.is_closed = pull.closings > 0;
}

/// Whether the newest event that is known says all that this one of the same second does. One that the relay has made up
/// tells of the pull request as it was long after that second.
fn is_told(known: &PullRecord, event: &PullRequest, delivery: &str) -> bool {
    let is_made_up = |id: &str| id.starts_with(MADE_UP);
    let has_branch = known.base_branch.is_none() || known.base_branch == event.base_branch;
    let is_same = known.head_sha == event.head_sha
        && !known.is_closed
        && known.is_ready != event.is_draft
        && has_branch;
    known.updated_at == event.updated_at
        && known
            .deliveries
            .last()
            .is_some_and(|newest| is_made_up(newest) || (is_made_up(delivery) && is_same))
}

/// Orders an event among those of its pull request by `updated_at`, not by arrival. Within one second, which is its
/// resolution, pushes are ordered by the heads that they lead from and to.
pub fn order(
    known: Option<&PullRecord>,
    event: &PullRequest,
    delivery: &str,
    now: Timestamp,
) -> EventOrder {
    let Some(known) = known else {
        let pull = first_record(event, delivery, now);
        return EventOrder::newest(pull, vec![]);
    };
    let mut pull = known.clone();
    // The clocks of two relays may differ.
    pull.order = now.as_millisecond().max(known.order + 1);
    // An event from before it was opened again may arrive late, and says nothing about its next landing.
    pull.has_landed |=
        event.has_landed && (known.is_closed || event.updated_at >= known.updated_at);
    take_labels(&mut pull, event);
    if !event.action.dispatches() {
        return EventOrder::newest(pull, vec![]);
    }
    let superseded = |mut pull: PullRecord| {
        let by = known.deliveries.last().cloned();
        // Nothing is built for one that is closed, and it has been opened again since.
        let is_of_newest_head = by.is_some()
            && event.head_sha == known.head_sha
            && event.action != PullRequestAction::Closed;
        if is_of_newest_head {
            pull.add_older_delivery(delivery);
        } else if event.head_sha != known.head_sha {
            pull.add_late_delivery(&event.head_sha, delivery);
        }
        EventOrder { pull, superseded_by: by, is_of_newest_head, replaces: vec![] }
    };
    if is_told(known, event, delivery) {
        return superseded(pull);
    }
    if event.updated_at < known.updated_at {
        let is_start = take_start(&mut pull, event);
        // Where not all moves are known, an older event never wins over the head that is known.
        let head = head_after(&pull.moves, &known.head_sha, &known.head_sha);
        if !is_start || head != event.head_sha || head == known.head_sha {
            return superseded(pull);
        }
        // The pushes of that second have led back to this head.
        let replaces = pull.replace_head(&event.head_sha);
        pull.deliveries.push(delivery.to_owned());
        return EventOrder::newest(pull, replaces);
    }
    pull.moves = moves_with(event, known);
    if event.updated_at > known.updated_at {
        pull.start_at = (!known.deliveries.is_empty()).then_some(known.updated_at);
    }
    let is_same_second = event.updated_at == known.updated_at;
    take_closing(&mut pull, known, event);
    let is_undone = match event.action {
        PullRequestAction::Closed => !pull.is_closed,
        PullRequestAction::Reopened => pull.is_closed,
        _ => false,
    };
    let head = head_after(&pull.moves, &event.head_sha, &known.head_sha);
    if is_same_second && (is_undone || head != event.head_sha) {
        return superseded(pull);
    }
    if (known.is_closed || event.action == PullRequestAction::Reopened) && !pull.is_closed {
        // For example after its revert: it can land again.
        pull.has_landed = false;
    }
    pull.updated_at = event.updated_at;
    pull.is_ready = !event.is_draft;
    pull.base_branch.clone_from(&event.base_branch);
    let replaces =
        if known.head_sha == event.head_sha { vec![] } else { pull.replace_head(&event.head_sha) };
    pull.deliveries.push(delivery.to_owned());
    drop_oldest(&mut pull.deliveries);
    EventOrder::newest(pull, replaces)
}

#[cfg(test)]
mod tests {
    use crcr_domain::protocol::event::Push;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn event(action: PullRequestAction, head: char, second: i64) -> PullRequest {
        PullRequest {
            action,
            number: 7,
            author: None,
            label: None,
            head_sha: head.to_string().repeat(40),
            before: None,
            base_sha: None,
            base_branch: None,
            updated_at: Timestamp::from_second(second).unwrap(),
            labels: vec![format!("at-{second}")],
            has_landed: false,
            is_draft: false,
            is_known_author: true,
            author_texts: String::new(),
        }
    }

    use PullRequestAction::{Closed, Labeled, Opened, Reopened, Synchronize};

    /// The deliveries of a head, the newest last.
    fn deliveries_of<'a>(pull: &'a PullRecord, head_sha: &str) -> &'a [String] {
        if pull.head_sha == head_sha {
            return &pull.deliveries;
        }
        let older = pull.older.iter().find(|older| older.head_sha == head_sha);
        older.map(|older| older.deliveries.as_slice()).unwrap_or_default()
    }

    #[test]
    fn redeliveries_of_one_head_let_its_record_grow_to_a_bound_only() {
        let mut pull = order(None, &event(Opened, 'a', 10), "0", NOW).pull;
        for n in 1..=3 * limits::DELIVERIES_PER_HEAD {
            pull = order(Some(&pull), &event(Synchronize, 'a', 10), &n.to_string(), NOW).pull;
        }
        assert_eq!(pull.deliveries.len(), limits::DELIVERIES_PER_HEAD);
        let newest = (3 * limits::DELIVERIES_PER_HEAD).to_string();
        assert_eq!(pull.deliveries.last(), Some(&newest), "the oldest go");
    }

    #[test]
    fn a_newer_head_replaces_every_delivery_of_the_older_one() {
        let first = order(None, &event(Opened, 'a', 10), "d1", NOW).pull;
        let again = order(Some(&first), &event(Closed, 'a', 20), "d2", NOW);
        assert_eq!(again.replaces, Vec::<String>::new());
        let newer = order(Some(&again.pull), &event(Synchronize, 'b', 30), "d3", NOW);
        assert_eq!(newer.replaces, ["d1", "d2"]);
        assert_eq!(newer.pull.deliveries, ["d3"]);
        assert_eq!(deliveries_of(&newer.pull, &"a".repeat(40)), ["d1", "d2"]);
        assert_eq!(deliveries_of(&newer.pull, &"b".repeat(40)), ["d3"]);
        let back = order(Some(&newer.pull), &event(Synchronize, 'a', 40), "d4", NOW);
        assert_eq!(back.replaces, ["d3"]);
        assert_eq!(back.pull.deliveries, ["d1", "d2", "d4"]);
        assert_eq!(deliveries_of(&back.pull, &"b".repeat(40)), ["d3"]);
    }

    #[test]
    fn as_many_older_heads_are_kept_as_the_bound_says() {
        let mut pull = order(None, &event(Opened, 'a', 10), "0", NOW).pull;
        for (n, head) in ('b'..='z').enumerate() {
            let at = 11 + i64::try_from(n).unwrap();
            pull = order(Some(&pull), &event(Synchronize, head, at), &head.to_string(), NOW).pull;
        }
        assert_eq!(pull.older.len(), limits::OLDER_HEADS);
        assert_eq!(deliveries_of(&pull, &"y".repeat(40)), ["y"]);
        assert!(deliveries_of(&pull, &"a".repeat(40)).is_empty());
    }

    #[test]
    fn head_whose_event_comes_after_its_next_one_changes_with_the_labels_too() {
        let pushed = order(None, &event(Synchronize, 'b', 20), "push", NOW).pull;
        let late = order(Some(&pushed), &event(Opened, 'a', 10), "opening", NOW);
        assert_eq!(late.superseded_by.as_deref(), Some("push"));
        assert_eq!(deliveries_of(&late.pull, &"a".repeat(40)), ["opening"]);
        assert_eq!(deliveries_of(&late.pull, &"b".repeat(40)), ["push"]);
        let again = order(Some(&late.pull), &event(Opened, 'a', 10), "again", NOW).pull;
        assert_eq!(deliveries_of(&again, &"a".repeat(40)), ["opening", "again"]);
    }

    #[test]
    fn an_older_event_that_comes_late_is_superseded() {
        let newer = order(None, &event(Synchronize, 'b', 30), "d2", NOW).pull;
        let late = order(Some(&newer), &event(Opened, 'a', 10), "d1", NOW);
        assert_eq!(late.superseded_by.as_deref(), Some("d2"));
        assert_eq!(PullRecord { order: newer.order, older: vec![], ..late.pull }, newer);
    }

    #[test]
    fn of_two_heads_of_one_second_the_replaced_one_is_superseded_whichever_comes_first() {
        let opened = event(Opened, 'a', 10);
        let push = |before: char, head: char| PullRequest {
            before: Some(before.to_string().repeat(40)),
            ..event(Synchronize, head, 10)
        };
        for older in [opened, push('0', 'a')] {
            let newer = push('a', 'b');
            let first = order(None, &older, "old", NOW).pull;
            let second = order(Some(&first), &newer, "new", NOW);
            assert_eq!((second.superseded_by, second.replaces), (None, vec!["old".to_owned()]));
            let first = order(None, &newer, "new", NOW).pull;
            let second = order(Some(&first), &older, "old", NOW);
            assert_eq!(second.superseded_by.as_deref(), Some("new"));
            assert_eq!(second.pull.head_sha, "b".repeat(40));
        }
    }

    #[test]
    fn push_back_within_one_second_is_the_head_in_whatever_order_its_events_arrive() {
        let push = |before: char, head: char| PullRequest {
            before: Some(before.to_string().repeat(40)),
            ..event(Synchronize, head, 10)
        };
        let events = [event(Opened, 'a', 10), push('a', 'b'), push('b', 'a')];
        let earlier = [event(Opened, 'a', 9), push('a', 'b'), push('b', 'a')];
        for events in [&events, &earlier] {
            for arrival in permutations(events.len()) {
                let mut pull: Option<PullRecord> = None;
                let mut live: Vec<(String, String)> = vec![];
                for index in &arrival {
                    let id = index.to_string();
                    let found = order(pull.as_ref(), &events[*index], &id, NOW);
                    live.retain(|(known, _)| !found.replaces.contains(known));
                    if found.superseded_by.is_none() {
                        live.push((id, events[*index].head_sha.clone()));
                    }
                    pull = Some(found.pull);
                }
                let head = "a".repeat(40);
                assert_eq!(pull.unwrap().head_sha, head, "{arrival:?}");
                assert!(
                    !live.is_empty() && live.iter().all(|(_, sha)| *sha == head),
                    "{arrival:?}: {live:?}"
                );
            }
        }
    }

    #[test]
    fn last_of_three_pushes_of_one_second_is_the_head_in_whatever_order_their_events_arrive() {
        let push = |before: char, head: char| PullRequest {
            before: Some(before.to_string().repeat(40)),
            ..event(Synchronize, head, 10)
        };
        let events = [push('a', 'b'), push('b', 'c'), push('c', 'd')];
        for arrival in permutations(events.len()) {
            let mut pull = order(None, &event(Opened, 'a', 9), "opened", NOW).pull;
            for index in &arrival {
                pull = order(Some(&pull), &events[*index], &index.to_string(), NOW).pull;
            }
            assert_eq!(pull.head_sha, "d".repeat(40), "{arrival:?}");
            assert_eq!(pull.deliveries, ["2"], "{arrival:?}");
        }
    }

    #[test]
    fn made_up_event_and_the_webhook_that_comes_after_all_are_dispatched_once() {
        let opened = order(None, &event(Opened, 'a', 9), "opened", NOW).pull;
        let push = |head: char| PullRequest {
            before: Some("a".repeat(40)),
            ..event(Synchronize, head, 10)
        };
        for [first, second] in [["reconciled-7", "webhook"], ["webhook", "reconciled-7"]] {
            let pushed = order(Some(&opened), &push('b'), first, NOW).pull;
            let again = order(Some(&pushed), &push('b'), second, NOW);
            assert_eq!(again.superseded_by.as_deref(), Some(first));
            assert!(again.is_of_newest_head, "a backend that didn't get it gets this one");
        }
        // The relay looked long after that second.
        let pushed = order(Some(&opened), &push('b'), "reconciled-7", NOW).pull;
        for late in [push('c'), event(Closed, 'b', 10)] {
            let found = order(Some(&pushed), &late, "webhook", NOW);
            assert_eq!(found.superseded_by.as_deref(), Some("reconciled-7"));
            let (head, is_closed) = (found.pull.head_sha, found.pull.is_closed);
            assert_eq!((head, is_closed), ("b".repeat(40), false));
        }
        // What is known of that second says less.
        let pushed = order(Some(&opened), &push('b'), "webhook", NOW).pull;
        let closed = order(Some(&pushed), &event(Closed, 'b', 10), "closed", NOW).pull;
        let draft = PullRequest { is_draft: true, ..push('b') };
        let draft = order(Some(&opened), &draft, "webhook", NOW).pull;
        for (known, action) in [(closed, Reopened), (draft, PullRequestAction::ReadyForReview)] {
            let found = order(Some(&known), &event(action, 'b', 10), "reconciled-7", NOW);
            assert_eq!(found.superseded_by, None, "{action:?}");
        }
    }

    #[test]
    fn pull_request_that_is_closed_and_opened_again_within_a_second_is_open_in_whatever_order() {
        let events = |actions: [PullRequestAction; 2]| actions.map(|action| event(action, 'a', 10));
        for (before, actions, is_closed) in
            [(Opened, [Closed, Reopened], false), (Closed, [Reopened, Closed], true)]
        {
            for arrival in permutations(2) {
                let events = events(actions);
                let mut pull = order(None, &event(Opened, 'a', 8), "opened", NOW).pull;
                if before != Opened {
                    pull = order(Some(&pull), &event(before, 'a', 9), "before", NOW).pull;
                }
                let mut live = vec![];
                for index in &arrival {
                    let found = order(Some(&pull), &events[*index], &index.to_string(), NOW);
                    if found.superseded_by.is_none() {
                        live.push(actions[*index]);
                    }
                    pull = found.pull;
                }
                assert_eq!(pull.is_closed, is_closed, "{arrival:?}");
                assert_eq!(live.last(), Some(&actions[1]), "{arrival:?}");
            }
        }
        // Of another second, each says how it is, also if the one before was lost.
        let mut pull = order(None, &event(Closed, 'a', 10), "1", NOW).pull;
        for (action, second, is_closed) in [
            (Closed, 11, true),
            (Reopened, 12, false),
            (Closed, 13, true),
            (Labeled, 14, true),
            (Synchronize, 15, false),
        ] {
            pull = order(Some(&pull), &event(action, 'a', second), "2", NOW).pull;
            assert_eq!(pull.is_closed, is_closed, "{action:?}");
        }
    }

    fn permutations(count: usize) -> Vec<Vec<usize>> {
        if count == 0 {
            return vec![vec![]];
        }
        let shorter = permutations(count - 1);
        let insert = |at: usize| {
            shorter.iter().map(move |order| [&order[..at], &[count - 1], &order[at..]].concat())
        };
        (0..count).flat_map(insert).collect()
    }

    #[test]
    fn label_of_the_second_in_which_the_pull_request_was_opened_stays() {
        let labelled = |action, label: &str, labels: &[&str]| PullRequest {
            label: Some(label.to_owned()),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            ..event(action, 'a', 10)
        };
        let opened = PullRequest { labels: vec![], ..event(Opened, 'a', 10) };
        let npu = labelled(Labeled, "ciflow/crcr/npu", &["ciflow/crcr/npu"]);
        let gpu = labelled(Labeled, "ciflow/crcr/gpu", &["ciflow/crcr/npu", "ciflow/crcr/gpu"]);
        for arrival in permutations(3) {
            let events = [&opened, &npu, &gpu];
            let mut pull: Option<PullRecord> = None;
            for index in &arrival {
                pull = Some(order(pull.as_ref(), events[*index], &index.to_string(), NOW).pull);
            }
            let mut labels = pull.unwrap().labels;
            labels.sort();
            assert_eq!(labels, ["ciflow/crcr/gpu", "ciflow/crcr/npu"], "{arrival:?}");
        }
        let gone = labelled(PullRequestAction::Unlabeled, "ciflow/crcr/npu", &[]);
        let pull = order(None, &npu, "1", NOW).pull;
        assert_eq!(order(Some(&pull), &gone, "2", NOW).pull.labels, Vec::<String>::new());
    }

    #[test]
    fn a_label_event_never_supersedes_a_push() {
        let opened = order(None, &event(Opened, 'a', 10), "d1", NOW).pull;
        let labelled = order(Some(&opened), &event(Labeled, 'b', 30), "d2", NOW).pull;
        assert_eq!(labelled.labels, ["at-30"]);
        let late = order(Some(&labelled), &event(Synchronize, 'b', 20), "d3", NOW);
        assert_eq!((late.superseded_by, late.replaces.len()), (None, 1));
        assert_eq!(late.pull.labels, ["at-30"], "the newer labels stay");
    }

    #[test]
    fn nightly_only_repositories_get_no_events() {
        let text =
            b"L2:\n  - acme/one\n  - acme/two: {events: [nightly]}\nL4:\n  - acme/four: [bob]\n";
        let upstream = RepoName::new("acme/upstream").unwrap();
        let allowlist = Allowlist::parse(text, &upstream).accepted().unwrap();
        let (git_ref, author_texts) = (String::new(), String::new());
        let push = UpstreamEvent::Push(Push { git_ref, head_sha: "a".repeat(40), author_texts });
        let planned = dispatches(&push, "d", &upstream, &allowlist, Timestamp::UNIX_EPOCH);
        let repos: Vec<_> = planned.iter().map(|dispatch| dispatch.repo.as_str()).collect();
        assert_eq!(repos, ["acme/one", "acme/four"]);
        let labelled = UpstreamEvent::PullRequest(event(Labeled, 'a', 10));
        assert!(
            dispatches(&labelled, "d", &upstream, &allowlist, Timestamp::UNIX_EPOCH).is_empty()
        );
    }
}
