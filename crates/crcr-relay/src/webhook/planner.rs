//! Decides which backends get an event, and which event of a pull request is the newest. Nothing here
//! reads or writes the state.

use crcr_domain::dispatch::{Dispatch, DispatchStatus};
use crcr_domain::event::{EventName, PullRequest, PullRequestAction, UpstreamEvent};
use crcr_domain::{Allowlist, AllowlistEntry, RepoName};
use jiff::Timestamp;

use crate::limits;
use crate::state_records::PullRecord;

/// The part of a dispatch that is the same for every backend.
struct DispatchContent<'a> {
    event: EventName,
    action: Option<PullRequestAction>,
    pull: Option<&'a PullRequest>,
    head_sha: &'a str,
    base_sha: Option<&'a str>,
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

impl<'a> DispatchContent<'a> {
    fn of_pull(event: EventName, action: Option<PullRequestAction>, pull: &'a PullRequest) -> Self {
        let (head_sha, base_sha) = (pull.head_sha.as_str(), pull.base_sha.as_deref());
        Self { event, action, pull: Some(pull), head_sha, base_sha }
    }

    fn dispatch(
        &self,
        entry: &AllowlistEntry,
        delivery: &str,
        upstream: &RepoName,
        now: Timestamp,
    ) -> Dispatch {
        Dispatch {
            delivery: delivery.to_owned(),
            upstream: upstream.as_str().to_owned(),
            event: self.event.clone(),
            action: self.action,
            pull_request: self.pull.map(|pull| pull.number),
            head_sha: self.head_sha.to_owned(),
            base_sha: self.base_sha.map(str::to_owned),
            repo: entry.repo.clone(),
            level: entry.level,
            device: entry.device.clone(),
            labels: self.pull.map(|pull| pull.labels.clone()).unwrap_or_default(),
            enqueued_at: now,
            status: DispatchStatus::Queued,
            tries: 0,
            last_error: None,
            repository_id: None,
            default_branch: None,
            never_started: false,
            is_answered: false,
            runs: vec![],
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
    /// Deliveries of an older head. Their unsent dispatches are cancelled.
    pub replaces: Vec<String>,
}

/// Whether an event is older than the record although both have the same `updated_at`, which has a
/// resolution of one second: the event's head is the one that was replaced, or the event opened the
/// pull request.
fn precedes_within_second(event: &PullRequest, known: &PullRecord) -> bool {
    let same = event.updated_at == known.updated_at && event.head_sha != known.head_sha;
    let opened = event.action == PullRequestAction::Opened;
    let replaced = |before: &String| opened || *before == event.head_sha;
    same && known.before.as_ref().is_some_and(replaced)
}

/// Orders an event among those of its pull request by `updated_at`, not by arrival.
pub fn order(known: Option<&PullRecord>, event: &PullRequest, delivery: &str) -> EventOrder {
    let Some(known) = known else {
        let dispatched = event.action.dispatches();
        let pull = PullRecord {
            head_sha: event.head_sha.clone(),
            before: event.before.clone(),
            updated_at: if dispatched { event.updated_at } else { Timestamp::UNIX_EPOCH },
            deliveries: if dispatched { vec![delivery.to_owned()] } else { vec![] },
            older: vec![],
            labels: event.labels.clone(),
            labels_at: event.updated_at,
            has_landed: event.has_landed,
        };
        return EventOrder { pull, superseded_by: None, replaces: vec![] };
    };
    let mut pull = known.clone();
    pull.has_landed |= event.has_landed;
    if event.updated_at >= known.labels_at {
        pull.labels.clone_from(&event.labels);
        pull.labels_at = event.updated_at;
    }
    if !event.action.dispatches() {
        return EventOrder { pull, superseded_by: None, replaces: vec![] };
    }
    if event.updated_at < known.updated_at || precedes_within_second(event, known) {
        let by = known.deliveries.last().cloned();
        return EventOrder { pull, superseded_by: by, replaces: vec![] };
    }
    pull.updated_at = event.updated_at;
    let replaces = if known.head_sha == event.head_sha {
        vec![]
    } else {
        pull.before.clone_from(&event.before);
        pull.replace_head(&event.head_sha)
    };
    pull.deliveries.push(delivery.to_owned());
    let surplus = pull.deliveries.len().saturating_sub(limits::DELIVERIES_PER_HEAD);
    pull.deliveries.drain(..surplus);
    EventOrder { pull, superseded_by: None, replaces }
}

#[cfg(test)]
mod tests {
    use crcr_domain::event::Push;

    use super::*;

    fn event(action: PullRequestAction, head: char, second: i64) -> PullRequest {
        PullRequest {
            action,
            number: 7,
            head_sha: head.to_string().repeat(40),
            before: None,
            base_sha: None,
            updated_at: Timestamp::from_second(second).unwrap(),
            labels: vec![format!("at-{second}")],
            has_landed: false,
        }
    }

    use PullRequestAction::{Closed, Labeled, Opened, Synchronize};

    #[test]
    fn redeliveries_of_one_head_let_its_record_grow_to_a_bound_only() {
        let mut pull = order(None, &event(Opened, 'a', 10), "0").pull;
        for n in 1..=3 * limits::DELIVERIES_PER_HEAD {
            pull = order(Some(&pull), &event(Synchronize, 'a', 10), &n.to_string()).pull;
        }
        assert_eq!(pull.deliveries.len(), limits::DELIVERIES_PER_HEAD);
        let newest = (3 * limits::DELIVERIES_PER_HEAD).to_string();
        assert_eq!(pull.deliveries.last(), Some(&newest), "the oldest go");
    }

    #[test]
    fn a_newer_head_replaces_every_delivery_of_the_older_one() {
        let first = order(None, &event(Opened, 'a', 10), "d1").pull;
        let again = order(Some(&first), &event(Closed, 'a', 20), "d2");
        assert_eq!(again.replaces, Vec::<String>::new());
        let newer = order(Some(&again.pull), &event(Synchronize, 'b', 30), "d3");
        assert_eq!(newer.replaces, ["d1", "d2"]);
        assert_eq!(newer.pull.deliveries, ["d3"]);
        assert_eq!(newer.pull.deliveries_of(&"a".repeat(40)), ["d1", "d2"]);
        assert_eq!(newer.pull.deliveries_of(&"b".repeat(40)), ["d3"]);
        let back = order(Some(&newer.pull), &event(Synchronize, 'a', 40), "d4");
        assert_eq!(back.replaces, ["d3"]);
        assert_eq!(back.pull.deliveries, ["d1", "d2", "d4"]);
        assert_eq!(back.pull.deliveries_of(&"b".repeat(40)), ["d3"]);
    }

    #[test]
    fn as_many_older_heads_are_kept_as_the_bound_says() {
        let mut pull = order(None, &event(Opened, 'a', 10), "0").pull;
        for (n, head) in ('b'..='z').enumerate() {
            let at = 11 + i64::try_from(n).unwrap();
            pull = order(Some(&pull), &event(Synchronize, head, at), &head.to_string()).pull;
        }
        assert_eq!(pull.older.len(), limits::OLDER_HEADS);
        assert_eq!(pull.deliveries_of(&"y".repeat(40)), ["y"]);
        assert!(pull.deliveries_of(&"a".repeat(40)).is_empty());
    }

    #[test]
    fn an_older_event_that_comes_late_is_superseded() {
        let newer = order(None, &event(Synchronize, 'b', 30), "d2").pull;
        let late = order(Some(&newer), &event(Opened, 'a', 10), "d1");
        assert_eq!(late.superseded_by.as_deref(), Some("d2"));
        assert_eq!(late.pull, newer);
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
            let first = order(None, &older, "old").pull;
            let second = order(Some(&first), &newer, "new");
            assert_eq!((second.superseded_by, second.replaces), (None, vec!["old".to_owned()]));
            let first = order(None, &newer, "new").pull;
            let second = order(Some(&first), &older, "old");
            assert_eq!(second.superseded_by.as_deref(), Some("new"));
            assert_eq!(second.pull.head_sha, "b".repeat(40));
        }
    }

    #[test]
    fn a_label_event_never_supersedes_a_push() {
        let opened = order(None, &event(Opened, 'a', 10), "d1").pull;
        let labelled = order(Some(&opened), &event(Labeled, 'b', 30), "d2").pull;
        assert_eq!(labelled.labels, ["at-30"]);
        let late = order(Some(&labelled), &event(Synchronize, 'b', 20), "d3");
        assert_eq!((late.superseded_by, late.replaces.len()), (None, 1));
        assert_eq!(late.pull.labels, ["at-30"], "the newer labels stay");
    }

    #[test]
    fn nightly_only_repositories_get_no_events() {
        let text =
            b"L2:\n  - acme/one\n  - acme/two: {events: [nightly]}\nL4:\n  - acme/four: [bob]\n";
        let upstream = RepoName::new("acme/upstream").unwrap();
        let allowlist = Allowlist::parse(text, &upstream).accepted().unwrap();
        let push = UpstreamEvent::Push(Push { git_ref: String::new(), head_sha: "a".repeat(40) });
        let planned = dispatches(&push, "d", &upstream, &allowlist, Timestamp::UNIX_EPOCH);
        let repos: Vec<_> = planned.iter().map(|dispatch| dispatch.repo.as_str()).collect();
        assert_eq!(repos, ["acme/one", "acme/four"]);
        let labelled = UpstreamEvent::PullRequest(event(Labeled, 'a', 10));
        assert!(
            dispatches(&labelled, "d", &upstream, &allowlist, Timestamp::UNIX_EPOCH).is_empty()
        );
    }
}
