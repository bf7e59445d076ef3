//! Finds webhooks that GitHub couldn't deliver, and asks for them again. GitHub doesn't redeliver by
//! itself, so a webhook that was sent while the relay was down, or was answered with an error, would be
//! lost.
//!
//! The App's log of deliveries is read from its newest entry back to where everything is settled. A
//! webhook is settled when the store has it, or when its newest attempt was accepted: webhooks that
//! cause nothing aren't stored.
//!
//! After a restore, what was accepted between the backup and the restore is missing as well.

use std::collections::HashSet;
use std::time::Duration;

use crcr_github::app::Clock;
use crcr_github::hook_deliveries::{DELIVERIES_PER_PAGE, HookDelivery};
use crcr_github::{GithubApp, GithubError};
use crcr_store::{
    CommitOutcome, StateStore, StoreError, Versioned, WriteBatch, decode_record, read_record,
};
use jiff::Timestamp;
use serde::Serialize;

use crate::limits;
use crate::restore::RestoreRecord;
use crate::state_records::{self, LogScan, ReconcileRecord, RedeliveryRecord};

/// The event whose heads are compared with the store.
const PULL_REQUEST: &str = "pull_request";
/// The answer to a webhook that caused something.
const ACCEPTED: u16 = 202;
/// How often GitHub is asked for a webhook that was accepted and then lost by a restore.
const ASKS_AFTER_RESTORE: u32 = 2;

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Github(#[from] GithubError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was found in the log, and done about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reconciliation {
    /// Attempts that were read.
    pub read: usize,
    /// Failed deliveries that the store has: the answer came too late.
    pub stored: usize,
    /// Failed deliveries that GitHub was asked for before.
    pub waiting: usize,
    /// Failed deliveries that GitHub was asked for now, and those that a restore has lost.
    pub asked: Vec<FailedDelivery>,
    /// Failed deliveries that GitHub doesn't want to deliver again.
    pub refused: Vec<RefusedRedelivery>,
    /// Every older delivery is settled; `None` while a part of the log is left.
    pub settled_until: Option<Timestamp>,
    /// Whether GitHub may be about to deliver one of a pull request, for the first time or again.
    #[serde(skip)]
    pub has_pull_on_its_way: bool,
    /// After a restore: the time since the backup of which GitHub delivers nothing again.
    pub out_of_reach: Option<(Timestamp, Timestamp)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedDelivery {
    pub id: String,
    pub event: String,
    pub delivered_at: Timestamp,
    /// The status of the answer, 0 when there was none.
    pub status_code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedRedelivery {
    #[serde(flatten)]
    pub delivery: FailedDelivery,
    pub reason: String,
}

/// What to do about a failed delivery.
enum NextStep {
    Nothing,
    Wait { is_on_its_way: bool },
    Ask(Versioned<RedeliveryRecord>),
}

/// Reads one part of the log, at most [`limits::RECONCILE_PAGES`] pages in about [`limits::RECONCILE_READING`]. Then asks
/// for what is missing, for about [`limits::RECONCILE_ASKING`].
/// `keeps_ignored`: whether the relay keeps the webhooks of an event that cause nothing.
pub async fn reconcile(
    app: &GithubApp,
    store: &dyn StateStore,
    clock: &Clock,
    keeps_ignored: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Reconciliation, ReconcileError> {
    let restore = RestoreRecord::read(store).await?;
    let known: Versioned<ReconcileRecord> =
        read_record(store, state_records::reconcile_key()).await?;
    let record = known.value.as_ref();
    let now = clock();
    let oldest = now - limits::RECONCILE_BACK;
    let settled_until = record.map_or(oldest, |record| record.settled_until.max(oldest));
    let mut scan = record.and_then(|record| record.unfinished.clone()).unwrap_or(LogScan {
        started_at: now,
        back_to: settled_until,
        oldest_open: None,
        cursor: None,
    });
    let mut begun = scan.clone();
    let out_of_reach = restore.and_then(|restore| restore.out_of_reach(now));
    let mut found = Reconciliation { out_of_reach, ..Reconciliation::default() };
    let mut attempts =
        AttemptReader { restore, keeps_ignored, seen: HashSet::new(), settled: HashSet::new() };
    let mut open = vec![];
    let mut is_whole = false;
    for _ in 0..limits::RECONCILE_PAGES {
        let page = match app.hook_deliveries(scan.cursor.as_deref()).await {
            // GitHub keeps its log for three days, and the relay may have been down since.
            Err(GithubError::Unprocessable(why)) if scan.cursor.is_some() && found.read == 0 => {
                tracing::warn!(why, "the log of deliveries is read from its newest entry again");
                scan = LogScan { started_at: now, oldest_open: None, cursor: None, ..begun };
                begun = scan.clone();
                continue;
            }
            page => page?,
        };
        if let Some(at) = page.read_at.filter(|_| scan.cursor.is_none()) {
            // This clock may be ahead: what is delivered from now on would seem to be settled.
            scan.started_at = scan.started_at.min(at);
            begun.started_at = scan.started_at;
        }
        found.read += page.deliveries.len();
        let in_range = page.deliveries.iter().filter(|it| it.delivered_at >= scan.back_to);
        let failed: Vec<_> = in_range.filter(|attempt| attempts.is_open(attempt)).collect();
        let steps = next_steps(store, &failed, clock()).await?;
        for (attempt, step) in failed.into_iter().zip(steps) {
            match step {
                NextStep::Nothing => {
                    found.stored += 1;
                    continue;
                }
                NextStep::Wait { is_on_its_way } => {
                    found.waiting += 1;
                    found.has_pull_on_its_way |= is_on_its_way && attempt.event == PULL_REQUEST;
                }
                NextStep::Ask(asked) => open.push((attempt.clone(), asked)),
            }
            let oldest_open = scan.oldest_open.unwrap_or(attempt.delivered_at);
            scan.oldest_open = Some(oldest_open.min(attempt.delivered_at));
        }
        let last = page.deliveries.last();
        let is_over = last.is_none_or(|attempt| attempt.delivered_at < scan.back_to);
        // An empty page may be an incomplete answer, and so may a full one without a link to the next.
        let is_end = page.next.is_none() && page.deliveries.len() < DELIVERIES_PER_PAGE;
        is_whole = last.is_some() && (is_over || is_end);
        scan.cursor = page.next.filter(|_| !is_over);
        if scan.cursor.is_none() || clock() > now + limits::RECONCILE_READING {
            break;
        }
    }
    // GitHub may stop answering before the last one: what blocks pull requests comes first.
    open.sort_by_key(|(attempt, _)| urgency(&attempt.event));
    let begun_asking = clock();
    let mut open = open.into_iter();
    for (attempt, asked) in open.by_ref().take(limits::REDELIVERIES_PER_TASK) {
        ask(app, store, &attempt, asked, clock(), &mut found).await?;
        if clock() > begun_asking + limits::RECONCILE_ASKING {
            break;
        }
    }
    let is_too_much = open.next().is_some();
    found.has_pull_on_its_way |= found.asked.iter().any(|asked| asked.event == PULL_REQUEST);
    if is_too_much {
        // The same pages are read again, and what was asked for is skipped.
        save(store, &known, settled_until.min(begun.back_to), Some(begun), clock()).await?;
    } else if scan.cursor.is_some() {
        save(store, &known, settled_until, Some(scan), clock()).await?;
    } else {
        let until = scan.started_at - limits::RECONCILE_MARGIN;
        // What a list that may lack something doesn't show isn't settled: it is read again.
        let until = if is_whole { until } else { settled_until };
        let until = scan.oldest_open.map_or(until, |open| open.min(until));
        save(store, &known, until, None, clock()).await?;
        found.settled_until = Some(until);
    }
    Ok(found)
}

/// Reads the attempts of the log, the newest first.
struct AttemptReader<'a> {
    restore: Option<RestoreRecord>,
    keeps_ignored: &'a (dyn Fn(&str) -> bool + Sync),
    /// Webhooks whose newest attempt was read.
    seen: HashSet<String>,
    /// Webhooks of which no older attempt matters.
    settled: HashSet<String>,
}

impl AttemptReader<'_> {
    /// Whether the webhook of this attempt may have to be delivered again.
    fn is_open(&mut self, attempt: &HookDelivery) -> bool {
        let may_be_lost = self.restore.is_some_and(|restore| restore.lost(attempt.delivered_at));
        // What the relay ignored was answered with 200.
        let was_kept = attempt.status_code == ACCEPTED || (self.keeps_ignored)(&attempt.event);
        let is_newest = self.seen.insert(attempt.guid.clone());
        let is_missing = (may_be_lost && was_kept) || (is_newest && !attempt.is_accepted());
        let is_open = is_missing && !self.settled.contains(&attempt.guid);
        // Before a restore, 200 is also the answer to a duplicate of one that was lost.
        if is_missing || (attempt.is_accepted() && !may_be_lost) {
            self.settled.insert(attempt.guid.clone());
        }
        is_open
    }
}

/// The lowest comes first.
fn urgency(event: &str) -> u8 {
    match event {
        PULL_REQUEST | "merge_group" => 0,
        "check_run" | "check_suite" => 1,
        "push" => 2,
        _ => 3,
    }
}

async fn next_steps(
    store: &dyn StateStore,
    failed: &[&HookDelivery],
    now: Timestamp,
) -> Result<Vec<NextStep>, StoreError> {
    let deliveries: Vec<_> =
        failed.iter().map(|attempt| state_records::delivery_key(&attempt.guid)).collect();
    let redeliveries: Vec<_> =
        failed.iter().map(|attempt| state_records::redelivery_key(&attempt.guid)).collect();
    let stored = store.records(&deliveries).await?;
    let asked = store.records(&redeliveries).await?;
    let mut steps = Vec::with_capacity(failed.len());
    for (((attempt, stored), asked), key) in failed.iter().zip(stored).zip(asked).zip(redeliveries)
    {
        let asked: Versioned<RedeliveryRecord> = decode_record(key, asked)?;
        steps.push(if stored.is_some() {
            NextStep::Nothing
        } else if attempt.is_accepted()
            && asked.value.as_ref().is_some_and(|asked| {
                asked.times >= ASKS_AFTER_RESTORE && asked.attempt == attempt.id
            })
        {
            // It was delivered again in a part of the log that isn't read now, and caused nothing.
            NextStep::Nothing
        } else if now
            < may_ask_at(
                attempt,
                asked.value.as_ref().filter(|it| it.asked_at <= now + limits::CLOCK_BACK),
            )
        {
            NextStep::Wait { is_on_its_way: is_on_its_way(attempt, asked.value.as_ref()) }
        } else {
            NextStep::Ask(asked)
        });
    }
    Ok(steps)
}

/// Whether GitHub may still deliver it: it hasn't refused to, and hasn't been asked too often without a delivery.
fn is_on_its_way(attempt: &HookDelivery, asked: Option<&RedeliveryRecord>) -> bool {
    asked.is_none_or(|asked| {
        let is_given_up = asked.is_refused || asked.times >= limits::REDELIVERIES_IN_VAIN;
        asked.attempt == attempt.id && !is_given_up
    })
}

/// An attempt that failed again is asked for less and less often, so that a webhook which the relay
/// can't take is tried about ten times in three days.
fn may_ask_at(attempt: &HookDelivery, asked: Option<&RedeliveryRecord>) -> Timestamp {
    let Some(asked) = asked else {
        // One that was accepted isn't in progress any more.
        let margin = if attempt.is_accepted() { Duration::ZERO } else { limits::RECONCILE_MARGIN };
        return attempt.delivered_at + margin;
    };
    if asked.attempt == attempt.id {
        return asked.asked_at + limits::REDELIVERY_LOST;
    }
    let doubled = asked.times.saturating_sub(1).min(10);
    asked.asked_at + limits::RECONCILE_INTERVAL * 2_u32.pow(doubled)
}

/// Asks for one redelivery. It is recorded first, so that another relay doesn't ask as well, and so that
/// a crash can't make this one ask twice.
async fn ask(
    app: &GithubApp,
    store: &dyn StateStore,
    attempt: &HookDelivery,
    asked: Versioned<RedeliveryRecord>,
    now: Timestamp,
    found: &mut Reconciliation,
) -> Result<(), ReconcileError> {
    let times = asked.value.as_ref().map_or(0, |before| before.times) + 1;
    let record = RedeliveryRecord { attempt: attempt.id, asked_at: now, times, is_refused: false };
    let expiry = now + 2 * limits::RECONCILE_BACK;
    let mut batch = WriteBatch::default();
    batch.update(&asked, &record, expiry);
    if store.commit(batch, now).await? != CommitOutcome::Done {
        found.waiting += 1;
        return Ok(());
    }
    let delivery = FailedDelivery {
        id: attempt.guid.clone(),
        event: attempt.event.clone(),
        delivered_at: attempt.delivered_at,
        status_code: attempt.status_code,
    };
    match app.redeliver(attempt.id).await {
        Ok(()) => {
            tracing::warn!(
                delivery = delivery.id,
                event = delivery.event,
                status = delivery.status_code,
                "GitHub was asked to deliver a webhook again"
            );
            found.asked.push(delivery);
        }
        Err(error @ (GithubError::NotFound(_) | GithubError::Unprocessable(_))) => {
            let reason = error.to_string();
            let mut batch = WriteBatch::default();
            batch.set(asked.key, &RedeliveryRecord { is_refused: true, ..record }, expiry);
            store.commit(batch, now).await?;
            tracing::error!(
                delivery = delivery.id,
                reason,
                "GitHub doesn't deliver a webhook again"
            );
            found.refused.push(RefusedRedelivery { delivery, reason });
        }
        Err(error) => {
            // It can be asked for again at once.
            let before = asked.value.unwrap_or(RedeliveryRecord {
                attempt: 0,
                asked_at: Timestamp::UNIX_EPOCH,
                times: 0,
                is_refused: false,
            });
            let mut batch = WriteBatch::default();
            batch.set(asked.key, &before, expiry);
            store.commit(batch, now).await?;
            return Err(error.into());
        }
    }
    Ok(())
}

async fn save(
    store: &dyn StateStore,
    known: &Versioned<ReconcileRecord>,
    settled_until: Timestamp,
    unfinished: Option<LogScan>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut batch = WriteBatch::default();
    let record = ReconcileRecord { settled_until, unfinished };
    batch.update(known, &record, now + 2 * limits::RECONCILE_BACK);
    // A conflict means that `crcr relay reconcile` has read the same log meanwhile.
    store.commit(batch, now).await?;
    Ok(())
}
