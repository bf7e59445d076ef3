//! Reads the App's log of deliveries every ten minutes, and asks for what is missing. Then compares the heads
//! of open pull requests with the store: GitHub may have lost a webhook before it was logged.

use crcr_domain::RepoName;
use crcr_domain::protocol::event::{EventFilter, is_sha};
use crcr_github::branches_pulls::OPEN_PULLS_PER_PAGE;
use crcr_store::{CommitOutcome, SetInsert, Versioned, WriteBatch, read_record};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::limits;
use crate::queue::task_kind::{TaskDone, TaskError};
use crate::reconcile::{ReconcileError, reconcile};
use crate::relay::Relay;
use crate::state_records::{self, HeadsLook, PullRecord};
use crate::webhook;
use crate::webhook::planner::MADE_UP;

pub(crate) async fn run(relay: &Relay) -> Result<TaskDone, TaskError> {
    let begun_at = relay.now();
    let keeps_ignored = |event: &str| relay.config.keeps_webhooks(event);
    let found = reconcile(&relay.app, relay.store.as_ref(), &relay.clock, &keeps_ignored).await;
    let found = found.map_err(|error| match error {
        ReconcileError::Github(error) => error.into(),
        ReconcileError::Store(error) => TaskError::from(error),
    })?;
    relay.metrics.reconciled(&found);
    if found.settled_until.is_some() && relay.now() > begun_at + limits::RECONCILE_ASKING {
        // GitHub is slow: the heads are compared by a task of their own, which reads a short log.
        return Ok(TaskDone::RunAgain(relay.now() + limits::RECONCILE_PAUSE));
    }
    // While GitHub sends the webhook of a pull request again, its head isn't missing.
    let is_over = found.settled_until.is_some()
        && (found.has_pull_on_its_way || find_missing_heads(relay).await?);
    let pause = if is_over { limits::RECONCILE_INTERVAL } else { limits::RECONCILE_PAUSE };
    Ok(TaskDone::RunAgain(relay.now() + pause))
}

/// Makes up the webhook of each pull request whose head the store should know and doesn't. Looks at the pull requests that
/// have changed since the last time, and returns whether it got to the last of them.
async fn find_missing_heads(relay: &Relay) -> Result<bool, TaskError> {
    let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
    let now = relay.now();
    let key = state_records::heads_look_key(upstream);
    let look: Versioned<Option<HeadsLook>> = read_record(store, key).await?;
    let HeadsLook { begun_at, next_page } =
        look.value.clone().flatten().unwrap_or(HeadsLook { begun_at: now, next_page: 1 });
    let key = state_records::heads_since_key(upstream);
    let since: Versioned<Timestamp> = read_record(store, key).await?;
    let key = state_records::heads_compared_key(upstream);
    let compared: Versioned<Timestamp> = read_record(store, key).await?;
    let since_at = since.value.unwrap_or(now);
    let compared_until = compared.value.unwrap_or(since_at);
    let mut batch = WriteBatch::default();
    batch.set(since.key, &since_at, now + limits::UPSTREAM_MEMORY);
    relay.commit(batch).await?;
    let mut is_last = false;
    let mut end = next_page;
    for page in next_page..next_page + limits::OPEN_PULL_PAGES {
        end = page + 1;
        let pulls = relay.app.open_pulls(upstream.as_str(), page).await?;
        is_last = pulls.len() < OPEN_PULLS_PER_PAGE;
        for pull in pulls {
            let Some(missing) = MissingHead::of(&pull) else { continue };
            is_last |= missing.updated_at < compared_until;
            // Its webhook may still be on its way.
            if missing.updated_at + limits::RECONCILE_MARGIN <= now {
                make_up(relay, &pull, &missing, since_at).await?;
            }
        }
        // The next part begins with the last page of this one, so one page isn't enough.
        if is_last || (page > next_page && relay.now() > now + limits::COMPARING_HEADS) {
            break;
        }
    }
    if !is_last && end > limits::MOST_OPEN_PULL_PAGES {
        tracing::warn!(
            "more pull requests have changed than are compared: heads of some may be missing"
        );
        is_last = true;
    }
    let mut batch = WriteBatch::default();
    if is_last {
        // The clocks of GitHub and this relay may differ.
        let until = begun_at - limits::RECONCILE_INTERVAL;
        batch.update(&compared, &until, now + limits::UPSTREAM_MEMORY);
    }
    // If one of those before it is closed meanwhile, each following one is a place further in front.
    let rest = (!is_last).then_some(HeadsLook { begun_at, next_page: end - 1 });
    batch.set(look.key, &rest, now + limits::UPSTREAM_MEMORY);
    relay.commit(batch).await?;
    Ok(is_last)
}

/// Makes up the webhook of a pull request whose head, state or label is missing. `since_at`: when this relay began to look.
async fn make_up(
    relay: &Relay,
    pull: &Value,
    missing: &MissingHead,
    since_at: Timestamp,
) -> Result<(), TaskError> {
    let key = state_records::pull_request_key(&relay.config.upstream, missing.number);
    let mut known: Versioned<PullRecord> = relay.read_record(key).await?;
    // A label may be the first that was heard of it.
    let is_dispatched = |pull: &PullRecord| !pull.deliveries.is_empty();
    if !known.value.as_ref().is_some_and(is_dispatched) {
        known.value = take_over(relay, &known, missing.number).await?;
    }
    let filter = &relay.config.event_filter;
    let (action, label) = match &known.value {
        Some(known) => match missing.unheard_event(known, filter) {
            Some(event) => event,
            None => return Ok(()),
        },
        // Pull requests from before this relay's time are none of its business.
        None if missing.created_at < since_at => return Ok(()),
        None => ("opened", None),
    };
    let (number, head) = (missing.number, &missing.head_sha);
    tracing::warn!(number, head, action, "GitHub never sent an event of a pull request");
    relay.metrics.head_was_missing();
    let before = known.value.as_ref().map(|known| known.head_sha.as_str());
    let from = known.value.as_ref().and_then(|known| known.base_branch.as_deref());
    let label = label.map(|name| json!({ "name": name }));
    let changes = (action == "edited").then(|| json!({ "base": { "ref": { "from": from } } }));
    let body = json!({
        "action": action, "number": number, "before": before, "after": head, "changes": changes,
        "label": label, "repository": pull["base"]["repo"], "sender": pull["user"],
        "pull_request": pull,
    });
    // The same head may get lost again, after others.
    let id = format!("{MADE_UP}{number}-{head}-{}", missing.updated_at.as_second());
    let taken = webhook::take_made_up(relay, "pull_request", &id, &body.to_string()).await;
    taken.map_err(TaskError::retry)
}

/// Takes over what is known of a pull request by the name that upstream had before. `newer`: what is known by the new
/// one, if it got or lost a label since.
async fn take_over(
    relay: &Relay,
    newer: &Versioned<PullRecord>,
    number: u64,
) -> Result<Option<PullRecord>, TaskError> {
    let (store, upstream) = (relay.store.as_ref(), &relay.config.upstream);
    let key = state_records::former_upstream_key(upstream);
    let former: Versioned<RepoName> = read_record(store, key).await?;
    let Some(former) = former.value else { return Ok(None) };
    let key = state_records::pull_request_key(&former, number);
    let Some(mut pull) = read_record::<PullRecord>(store, key).await?.value else {
        return Ok(None);
    };
    if let Some(newer) = &newer.value {
        pull.labels.clone_from(&newer.labels);
        (pull.labels_at, pull.order) = (newer.labels_at, newer.order);
    }
    let mut batch = WriteBatch::default();
    batch.update(newer, &pull, relay.expiry_of_pull(&pull));
    batch.set_inserts.push(SetInsert {
        set: state_records::open_heads_key(upstream),
        member: number.to_string(),
        score: pull.order,
        expires_at: relay.expiry(),
    });
    match relay.commit(batch).await? {
        CommitOutcome::Done => Ok(Some(pull)),
        _ => Err(TaskError::retry("the pull request was changed in the meantime")),
    }
}

struct MissingHead {
    number: u64,
    head_sha: String,
    base_branch: Option<String>,
    is_ready: bool,
    labels: Vec<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl MissingHead {
    fn of(pull: &Value) -> Option<Self> {
        let time = |name: &str| pull[name].as_str()?.parse().ok();
        Some(Self {
            number: pull["number"].as_u64()?,
            head_sha: pull["head"]["sha"].as_str().filter(|sha| is_sha(sha))?.to_owned(),
            base_branch: pull["base"]["ref"].as_str().map(str::to_owned),
            is_ready: pull["draft"] == false,
            labels: pull["labels"].as_array().map(|all| label_names(all)).unwrap_or_default(),
            created_at: time("created_at")?,
            updated_at: time("updated_at")?,
        })
    }

    /// The event that leads from what is known of the pull request, which is open, to what it is now, and the label that it
    /// is about.
    fn unheard_event<'a>(
        &'a self,
        known: &'a PullRecord,
        filter: &EventFilter,
    ) -> Option<(&'static str, Option<&'a str>)> {
        if known.updated_at > self.updated_at {
            return None;
        }
        // Of several pushes in one second, the last one isn't always known to be the last.
        let is_later =
            |action: &&str| known.updated_at < self.updated_at || *action == "synchronize";
        if let Some(action) = self.unheard_action(known).filter(is_later) {
            return Some((action, None));
        }
        self.unheard_label(known, filter).map(|(action, label)| (action, Some(label)))
    }

    fn unheard_action(&self, known: &PullRecord) -> Option<&'static str> {
        let has_another_branch =
            known.base_branch.is_some() && self.base_branch != known.base_branch;
        if known.head_sha != self.head_sha {
            Some("synchronize")
        } else if known.is_closed {
            Some("reopened")
        } else if has_another_branch {
            Some("edited")
        } else {
            (self.is_ready && !known.is_ready).then_some("ready_for_review")
        }
    }

    /// The event of a label for check runs that was set or removed since. If there are several, one event is enough: it has
    /// all labels of the pull request.
    fn unheard_label<'a>(
        &'a self,
        known: &'a PullRecord,
        filter: &EventFilter,
    ) -> Option<(&'static str, &'a str)> {
        if self.updated_at < known.labels_at {
            return None;
        }
        let lacking = |labels: &'a [String], others: &[String]| {
            let is_asking = |label: &&String| {
                filter.asks_for_check_runs(label)
                    && !others.iter().any(|other| other.eq_ignore_ascii_case(label))
            };
            labels.iter().find(is_asking).map(String::as_str)
        };
        let set = lacking(&self.labels, &known.labels).map(|label| ("labeled", label));
        set.or_else(|| lacking(&known.labels, &self.labels).map(|label| ("unlabeled", label)))
    }
}

fn label_names(labels: &[Value]) -> Vec<String> {
    labels.iter().filter_map(|label| label["name"].as_str().map(str::to_owned)).collect()
}
