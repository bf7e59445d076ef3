//! An upstream event on its way to one downstream repository.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::allowlist::level::{CheckRunPolicy, Device, Level};
use crate::checks::downstream_run::{AcceptedSend, DownstreamRun, SharedRuns};
use crate::probes::{FilteredEvent, LeftOut, ProbeTag};
use crate::protocol::event::{EventName, PullRequestAction};
use crate::repo::RepoName;

/// One upstream event for one downstream repository. The commit, pull request, labels and level of a
/// result are always taken from here, never from the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The delivery that caused it.
    pub delivery: String,
    pub upstream: String,
    /// Also the `event_type` that downstream workflows listen for.
    pub event: EventName,
    pub action: Option<PullRequestAction>,
    pub pull_request: Option<u64>,
    /// Who opened the pull request.
    pub author: Option<String>,
    pub head_sha: String,
    /// The base commit of the pull request when the event arrived.
    pub base_sha: Option<String>,
    /// The branch that the pull request was to be merged into when the event arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_branch: Option<String>,
    /// The downstream repository, as the allowlist spells it.
    pub repo: RepoName,
    /// The level when the event arrived.
    pub level: Level,
    /// Repositories at L3 have one.
    pub device: Option<Device>,
    /// The pull request's labels when the event arrived.
    pub labels: Vec<String>,
    /// When the event was accepted, or from when on it could be sent if the backend's file held it back.
    pub enqueued_at: Timestamp,
    /// Orders the dispatches of a commit as their events were accepted. Two events of one pull request never
    /// have the same, whichever relay took them and whatever its clock said.
    pub order: i64,
    pub status: DispatchStatus,
    /// Number of calls to GitHub.
    pub tries: u32,
    pub last_error: Option<String>,
    /// GitHub's id of the downstream repository when the dispatch was sent. Somebody who registers the
    /// name later has another id.
    pub repository_id: Option<u64>,
    /// The downstream repository's default branch when the dispatch was sent.
    pub default_branch: Option<String>,
    /// The names that the default branch had before. Runs that began then keep the name of then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_branches: Vec<String>,
    /// Whether no report came in time.
    pub never_started: bool,
    /// Whether the time for a first proven report is over.
    pub is_overdue: bool,
    /// Whether a report was proven. From then on it isn't sent again: its runs are re-run instead.
    pub is_answered: bool,
    /// When GitHub accepted it, by GitHub's clock.
    pub accepted_at: Option<Timestamp>,
    /// Whether it is sent although the backend's breaker is open, because somebody asked for it.
    pub is_trial: bool,
    /// Whether somebody asked for it. Then the backend's file doesn't leave it out.
    pub is_asked_for: bool,
    /// Until when the backend's file holds it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Timestamp>,
    /// Whether the pull request was a draft when the event arrived.
    pub is_draft: bool,
    /// Whether the pull request's author has contributed to upstream before.
    pub is_known_author: bool,
    /// The same as [`PullRequest::author_texts`](crate::protocol::event::PullRequest::author_texts).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author_texts: String,
    /// What it is to explain, if the relay itself asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeTag>,
    /// The downstream runs that it started, as of the last request to GitHub.
    pub runs: Vec<DownstreamRun>,
    /// Runs that it may have started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_runs: Vec<SharedRuns>,
    /// Whether `runs` and `shared_runs` are all: they were listed as a whole after GitHub's time to create runs.
    pub are_runs_known: bool,
    /// [`AcceptedSend::late_run_at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_run_at: Option<Timestamp>,
    /// Why GitHub's list of its runs can't be read.
    pub runs_problem: Option<String>,
    /// Since when the list, or one of its runs, can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_unread_since: Option<Timestamp>,
    /// Why no report is known although the backend may have run.
    pub silence: Option<String>,
    /// The last re-run that somebody asked for and GitHub refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_rerun: Option<RefusedRerun>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRerun {
    pub at: Timestamp,
    pub run_id: u64,
    /// What GitHub answered to the request.
    pub reason: String,
}

/// What the allowlist says of a backend now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentEntry<'a> {
    pub level: Level,
    pub device: Option<&'a Device>,
    /// Whether its events include that of the dispatch.
    pub takes_event: bool,
}

/// Whether a dispatch has check runs on the upstream pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckRunVisibility {
    Shown,
    /// The event has nothing to merge: a push, a closed pull request.
    NoneForEvent,
    /// The level has no check runs. `None`: the repository was removed from the allowlist.
    NoneAtLevel(Option<Level>),
    /// The backend's entry doesn't take such events any more.
    NoneOfEvents,
    /// At L3, and the pull request doesn't have the device's label.
    NoneWithoutLabel,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum DispatchStatus {
    /// Waits for its first or next try.
    Queued,
    Sent {
        at: Timestamp,
    },
    /// Not sent: a newer head of the pull request arrived, or the backend had already got a later event of it.
    Superseded {
        /// The delivery that replaced it.
        by: String,
    },
    /// Failed after the last try; can be redelivered.
    Dead,
    /// The App can't reach the repository: not installed, suspended, or lacking a permission.
    Unreachable,
    /// The name now belongs to another repository, which an operator has to confirm.
    RepositoryChanged,
    /// The backend's infrastructure keeps failing, so only a probe now and then is sent.
    Withheld,
    /// The backend's own file says that it doesn't take it.
    LeftOut {
        why: LeftOut,
    },
}

impl DispatchStatus {
    /// Whether an operator can send it again.
    pub fn can_be_redelivered(&self) -> bool {
        matches!(
            self,
            Self::Dead
                | Self::Unreachable
                | Self::RepositoryChanged
                | Self::Withheld
                | Self::LeftOut { .. }
        )
    }

    /// The name in lists and facts.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sent { .. } => "sent",
            Self::Superseded { .. } => "superseded",
            Self::Dead => "dead",
            Self::Unreachable => "unreachable",
            Self::RepositoryChanged => "repository_changed",
            Self::Withheld => "withheld",
            Self::LeftOut { .. } => "left_out",
        }
    }
}

impl Dispatch {
    /// One that waits for its first try, of an event that isn't a pull request's.
    pub fn queued(
        (delivery, upstream, event): (&str, &str, EventName),
        head_sha: &str,
        (repo, level): (RepoName, Level),
        now: Timestamp,
    ) -> Self {
        Self {
            delivery: delivery.to_owned(),
            upstream: upstream.to_owned(),
            event,
            action: None,
            pull_request: None,
            author: None,
            head_sha: head_sha.to_owned(),
            base_sha: None,
            base_branch: None,
            repo,
            level,
            device: None,
            labels: vec![],
            enqueued_at: now,
            order: now.as_millisecond(),
            status: DispatchStatus::Queued,
            tries: 0,
            last_error: None,
            repository_id: None,
            default_branch: None,
            former_branches: vec![],
            never_started: false,
            is_overdue: false,
            is_answered: false,
            accepted_at: None,
            is_trial: false,
            is_asked_for: false,
            held_until: None,
            is_draft: false,
            is_known_author: false,
            author_texts: String::new(),
            probe: None,
            runs: vec![],
            shared_runs: vec![],
            are_runs_known: false,
            late_run_at: None,
            runs_problem: None,
            runs_unread_since: None,
            silence: None,
            refused_rerun: None,
        }
    }

    /// Whether the dispatch has check runs now. `entry`: the backend's entry in the allowlist (`None`: it was
    /// removed). `labels`: the current labels of the pull request.
    pub fn check_runs(
        &self,
        entry: Option<CurrentEntry<'_>>,
        labels: &[String],
        prefix: &str,
    ) -> CheckRunVisibility {
        let in_merge_queue = self.event == EventName::MergeGroup;
        if !self.has_head_to_merge() {
            return CheckRunVisibility::NoneForEvent;
        }
        // A dispatch to a lower level expects no report, so nothing could be shown.
        let asked = self.level.shows_results();
        match entry.filter(|_| asked).map(|entry| entry.level.check_run()) {
            None | Some(CheckRunPolicy::Never) => {
                CheckRunVisibility::NoneAtLevel(entry.map(|entry| entry.level.min(self.level)))
            }
            Some(_) if entry.is_some_and(|entry| !entry.takes_event) => {
                CheckRunVisibility::NoneOfEvents
            }
            // At L3 only repositories that subscribe to merge groups get them.
            Some(CheckRunPolicy::WhenLabelled)
                if !in_merge_queue
                    && !entry
                        .and_then(|entry| entry.device)
                        .is_some_and(|device| is_labelled(labels, prefix, device)) =>
            {
                CheckRunVisibility::NoneWithoutLabel
            }
            Some(CheckRunPolicy::WhenLabelled | CheckRunPolicy::Always) => {
                CheckRunVisibility::Shown
            }
        }
    }

    /// Whether its result is about a commit that may be merged. Nothing is built for a pull request that was closed
    /// or has landed.
    pub fn is_about_commit(&self) -> bool {
        self.action != Some(PullRequestAction::Closed) && self.event != EventName::Landed
    }

    fn has_head_to_merge(&self) -> bool {
        (self.pull_request.is_some() || self.event == EventName::MergeGroup)
            && self.is_about_commit()
    }

    /// Whether the dispatch may have check runs now or later: a label, and a change of the allowlist, can ask for
    /// them.
    pub fn may_have_check_runs(&self) -> bool {
        self.has_head_to_merge() && self.level.shows_results()
    }

    /// Whether the dispatch has check runs by the level and labels when the event arrived.
    pub fn has_check_run_when_dispatched(&self, prefix: &str) -> bool {
        let device = self.device.as_ref();
        let entry = CurrentEntry { level: self.level, device, takes_event: true };
        self.check_runs(Some(entry), &self.labels, prefix) == CheckRunVisibility::Shown
    }

    /// What the matching of runs needs, once GitHub has accepted it.
    pub fn accepted_send(&self) -> Option<AcceptedSend> {
        let at = self.accepted_at.or(self.sent_at())?;
        Some(self.send_at(at, true))
    }

    /// Whose share of a budget it uses: its pull request's author, or `*` for all who haven't contributed to upstream before.
    pub fn share_owner(&self) -> &str {
        self.author.as_deref().filter(|_| self.is_known_author).unwrap_or("*")
    }

    /// A request to send it that GitHub accepted then, by its clock, or, if not `is_certain`, may have accepted.
    pub fn send_at(&self, at: Timestamp, is_certain: bool) -> AcceptedSend {
        let (delivery, event) = (self.delivery.clone(), self.event.event_type().into());
        AcceptedSend {
            delivery,
            event,
            at,
            is_certain,
            author_texts: self.author_texts.clone(),
            late_run_at: self.late_run_at,
        }
    }

    /// Whether the pull request goes to another branch here than there, as far as that is known.
    pub fn goes_to_another_branch_than(&self, other: &Self) -> bool {
        let both = self.base_branch.as_ref().zip(other.base_branch.as_ref());
        both.is_some_and(|(own, other)| own != other)
    }

    /// What the backend's file decides about it.
    pub fn filtered_event(&self) -> FilteredEvent<'_> {
        FilteredEvent {
            event: &self.event,
            has_head: self.is_about_commit(),
            is_draft: self.is_draft,
        }
    }

    /// Whether a report is expected. Nothing is built for a pull request that was closed or has landed.
    pub fn expects_report(&self) -> bool {
        self.level.shows_results() && self.is_about_commit()
    }

    pub fn sent_at(&self) -> Option<Timestamp> {
        match self.status {
            DispatchStatus::Sent { at } => Some(at),
            _ => None,
        }
    }
}

/// Whether `labels` contain the label of the device. Labels compare ignoring case.
fn is_labelled(labels: &[String], prefix: &str, device: &Device) -> bool {
    labels.iter().any(|label| {
        label.get(..prefix.len()).zip(label.get(prefix.len()..)).is_some_and(|(start, rest)| {
            start.eq_ignore_ascii_case(prefix) && rest.eq_ignore_ascii_case(device.as_str())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch() -> Dispatch {
        let repo = RepoName::new("acme/backend").unwrap();
        let delivery = ("d", "acme/upstream", EventName::PullRequest);
        Dispatch {
            pull_request: Some(7),
            device: Some(Device::new("npu").unwrap()),
            ..Dispatch::queued(delivery, &"0".repeat(40), (repo, Level::L3), Timestamp::UNIX_EPOCH)
        }
    }

    #[test]
    fn check_run_visibility_of_every_event_action_level_and_label() {
        use PullRequestAction::{
            BaseChanged, Closed, Labeled, Opened, ReadyForReview, Reopened, Synchronize, Unlabeled,
        };
        let on = ["ciflow/crcr/npu".to_owned()];
        let events = [
            (EventName::Push, None, None),
            (EventName::Landed, Some(7), None),
            (EventName::MergeGroup, None, None),
            (EventName::PullRequest, Some(7), Some(Opened)),
            (EventName::PullRequest, Some(7), Some(Reopened)),
            (EventName::PullRequest, Some(7), Some(Synchronize)),
            (EventName::PullRequest, Some(7), Some(ReadyForReview)),
            (EventName::PullRequest, Some(7), Some(BaseChanged)),
            (EventName::Probe, None, None),
            (EventName::PullRequest, Some(7), Some(Labeled)),
            (EventName::PullRequest, Some(7), Some(Unlabeled)),
            (EventName::PullRequest, Some(7), Some(Closed)),
        ];
        let device = Device::new("npu").unwrap();
        let levels_now = [None, Some(Level::L1), Some(Level::L2), Some(Level::L3), Some(Level::L4)];
        let mut shown = 0;
        for (event, pull_request, action) in events {
            for level in Level::ALL {
                for level_now in levels_now {
                    for labels in [&[][..], &on] {
                        let dispatch = Dispatch {
                            event: event.clone(),
                            pull_request,
                            action,
                            level,
                            ..dispatch()
                        };
                        let ends = [EventName::Push, EventName::Landed, EventName::Probe]
                            .contains(&event)
                            || action == Some(Closed);
                        let current = |level| CurrentEntry {
                            level,
                            device: Some(&device),
                            takes_event: true,
                        };
                        let entry = level_now.map(current);
                        let expected = match level_now {
                            _ if ends => CheckRunVisibility::NoneForEvent,
                            _ if level == Level::L1 => {
                                CheckRunVisibility::NoneAtLevel(level_now.map(|_| Level::L1))
                            }
                            None | Some(Level::L1 | Level::L2) => {
                                CheckRunVisibility::NoneAtLevel(level_now)
                            }
                            Some(Level::L3)
                                if labels.is_empty() && event == EventName::PullRequest =>
                            {
                                CheckRunVisibility::NoneWithoutLabel
                            }
                            Some(Level::L3 | Level::L4) => CheckRunVisibility::Shown,
                        };
                        let found = dispatch.check_runs(entry, labels, "ciflow/crcr/");
                        assert_eq!(
                            found, expected,
                            "{event} {action:?} {level} {level_now:?} {labels:?}"
                        );
                        shown += usize::from(found == CheckRunVisibility::Shown);
                        let unasked =
                            entry.map(|entry| CurrentEntry { takes_event: false, ..entry });
                        let not_taken = dispatch.check_runs(unasked, labels, "ciflow/crcr/");
                        let expected = match expected {
                            CheckRunVisibility::Shown | CheckRunVisibility::NoneWithoutLabel => {
                                CheckRunVisibility::NoneOfEvents
                            }
                            other => other,
                        };
                        assert_eq!(not_taken, expected, "{event} {action:?} {level} {level_now:?}");
                    }
                }
            }
        }
        // Three levels when dispatched; seven actions: L4 twice, L3 with the label; the merge group: all.
        assert_eq!(shown, 3 * (7 * (2 + 1) + 2 * 2));
    }

    #[test]
    fn check_run_and_report_are_expected_of_a_commit_to_merge_above_l1() {
        let closed = Some(PullRequestAction::Closed);
        for (event, pull_request, action, has_head, reports) in [
            (EventName::PullRequest, Some(7), None, true, true),
            (EventName::PullRequest, Some(7), closed, false, false),
            (EventName::MergeGroup, None, None, true, true),
            (EventName::Push, None, None, false, true),
            (EventName::Landed, Some(7), None, false, false),
        ] {
            for level in Level::ALL {
                let (event, labels) = (event.clone(), vec!["ciflow/crcr/npu".to_owned()]);
                let one = Dispatch { event, pull_request, action, level, ..dispatch() };
                let labelled = Dispatch { labels, ..one.clone() };
                let found = (one.may_have_check_runs(), one.expects_report());
                let shows = level != Level::L1;
                assert_eq!(found, (has_head && shows, reports && shows), "{level} {one:?}");
                let shown =
                    [&one, &labelled].map(|one| one.has_check_run_when_dispatched("ciflow/crcr/"));
                let unasked = level == Level::L4
                    || (level == Level::L3 && one.event == EventName::MergeGroup);
                let asked = matches!(level, Level::L3 | Level::L4);
                assert_eq!(shown, [has_head && unasked, has_head && asked], "{level} {one:?}");
            }
        }
    }

    #[test]
    fn only_what_was_sent_or_is_waited_for_is_not_redelivered() {
        let at = Timestamp::from_second(5).unwrap();
        let superseded = DispatchStatus::Superseded { by: "e".to_owned() };
        for (status, name, can_be_redelivered) in [
            (DispatchStatus::Queued, "queued", false),
            (DispatchStatus::Sent { at }, "sent", false),
            (superseded, "superseded", false),
            (DispatchStatus::Dead, "dead", true),
            (DispatchStatus::Unreachable, "unreachable", true),
            (DispatchStatus::RepositoryChanged, "repository_changed", true),
            (DispatchStatus::Withheld, "withheld", true),
            (DispatchStatus::LeftOut { why: LeftOut::Draft }, "left_out", true),
        ] {
            assert_eq!((status.as_str(), status.can_be_redelivered()), (name, can_be_redelivered));
            assert_eq!(serde_json::to_value(&status).unwrap()["status"], name);
            let sent = (name == "sent").then_some(at);
            assert_eq!(Dispatch { status, ..dispatch() }.sent_at(), sent);
        }
    }

    #[test]
    fn runs_are_looked_for_from_when_github_accepted_the_dispatch() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let sent = DispatchStatus::Sent { at: at(5) };
        assert_eq!(dispatch().accepted_send(), None);
        let probe = Dispatch { status: sent, event: EventName::Probe, ..dispatch() };
        let send = |at| AcceptedSend {
            delivery: "d".to_owned(),
            event: EventName::Push,
            at,
            is_certain: true,
            author_texts: String::new(),
            late_run_at: None,
        };
        assert_eq!(probe.accepted_send(), Some(send(at(5))), "a probe goes out as a push");
        let known = Dispatch { accepted_at: Some(at(3)), ..probe };
        assert_eq!(known.accepted_send(), Some(send(at(3))), "by GitHub's clock if that is known");
    }

    #[test]
    fn pull_request_goes_to_another_branch_only_if_both_are_known() {
        let to = |branch: Option<&str>| Dispatch {
            base_branch: branch.map(str::to_owned),
            ..dispatch()
        };
        for (one, other, is_another) in [
            (Some("main"), Some("release"), true),
            (Some("main"), Some("main"), false),
            (Some("main"), None, false),
            (None, Some("main"), false),
            (None, None, false),
        ] {
            let found = to(one).goes_to_another_branch_than(&to(other));
            assert_eq!(found, is_another, "{one:?} {other:?}");
        }
    }

    #[test]
    fn label_matches_its_device_ignoring_case() {
        let device = Device::new("npu").unwrap();
        let has = |label: &str| is_labelled(&[label.to_owned()], "ciflow/crcr/", &device);
        assert!(has("ciflow/crcr/npu"));
        assert!(has("Ciflow/CRCR/NPU"));
        assert!(!has("ciflow/crcr/npu2"));
        assert!(!has("ciflow/crcr/"));
        assert!(!has("npu"));
        assert!(!has("ciflow/crcré"));
    }
}
