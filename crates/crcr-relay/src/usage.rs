//! Who uses how much, for the metrics, and whose turn it is after a rate limit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crcr_domain::RepoName;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use parking_lot::Mutex;

use crate::limits;

/// The metrics name the repositories that use most of a thing; all others are one.
const NAMED_REPOSITORIES: usize = 10;

/// What a repository uses of what all share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Reports,
    TextBytes,
    /// Reports that were recorded without their texts.
    DroppedTexts,
    /// Calls of GitHub's API for check runs of jobs.
    CheckRunCalls,
    WebhookRows,
    LogFetches,
}

crcr_domain::names! {
    Resource {
        Reports "reports", TextBytes "text_bytes", DroppedTexts "dropped_texts",
        CheckRunCalls "check_run_calls", WebhookRows "webhook_rows", LogFetches "log_fetches",
    }
}

/// What this process has seen on this day, in UTC.
#[derive(Default)]
pub(crate) struct Usage {
    today: Mutex<UseOfDay>,
    /// When the next caller of a repository over its limit is asked to come again.
    turns: Mutex<HashMap<String, Instant>>,
}

#[derive(Default)]
struct UseOfDay {
    day: Option<Date>,
    used: BTreeMap<Resource, HashMap<Arc<str>, u64>>,
}

impl Usage {
    pub(crate) fn add(&self, now: Timestamp, resource: Resource, repo: &str, count: u64) {
        let mut today = self.today.lock();
        let day = now.to_zoned(TimeZone::UTC).date();
        if today.day != Some(day) {
            *today = UseOfDay { day: Some(day), ..UseOfDay::default() };
        }
        *today
            .used
            .entry(resource)
            .or_default()
            .entry(repo.to_ascii_lowercase().into())
            .or_default() += count;
    }

    /// For each resource the repositories that use most of it, and the sum of the others.
    pub(crate) fn most(&self) -> Vec<(Resource, String, u64)> {
        let today = self.today.lock();
        let mut most = vec![];
        for (resource, used) in &today.used {
            let mut used: Vec<_> = used.iter().map(|(repo, count)| (*count, repo)).collect();
            used.sort_unstable_by(|a, b| b.cmp(a));
            let others: u64 = used.iter().skip(NAMED_REPOSITORIES).map(|(count, _)| count).sum();
            let named = used.iter().take(NAMED_REPOSITORIES);
            most.extend(named.map(|(count, repo)| (*resource, repo.to_string(), *count)));
            if others > 0 {
                most.push((*resource, "others".to_owned(), others));
            }
        }
        most
    }

    /// How long the next caller of a repository has to wait when a token is free after `wait`: each one comes
    /// for a token of its own.
    pub(crate) fn next_turn(&self, repo: &RepoName, wait: Duration, per_minute: u32) -> Duration {
        if wait > limits::LONGEST_RETRY_AFTER {
            return wait;
        }
        let now = Instant::now();
        let pause = Duration::from_secs(60) / per_minute.max(1);
        let mut turns = self.turns.lock();
        let turn = turns.entry(repo.key()).or_insert(now);
        *turn = (*turn + pause).max(now + wait);
        if *turn > now + limits::LONGEST_RETRY_AFTER {
            // More callers than there are turns begin again at the front.
            *turn = now + wait;
        }
        turn.duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_over_the_limit_come_again_one_after_the_other() {
        let (usage, repo) = (Usage::default(), RepoName::new("acme/one").unwrap());
        let other = RepoName::new("acme/two").unwrap();
        let first = Duration::from_millis(600);
        let turns: Vec<_> = (0..150).map(|_| usage.next_turn(&repo, first, 100)).collect();
        for pair in turns.windows(2) {
            let apart = pair[1].saturating_sub(pair[0]);
            assert!(apart > Duration::from_millis(400), "{apart:?}: a token comes every 600 ms");
        }
        assert!(turns[149] < Duration::from_secs(91), "{:?}", turns[149]);
        let of_other = usage.next_turn(&other, first, 100);
        assert!(of_other < Duration::from_secs(1), "nobody waits for another repository");
    }

    #[test]
    fn metrics_name_few_repositories_however_many_there_are() {
        let usage = Usage::default();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        for n in 0..500 {
            usage.add(now, Resource::Reports, &format!("acme/r{n}"), n);
        }
        let most = usage.most();
        assert_eq!(most.len(), NAMED_REPOSITORIES + 1);
        assert_eq!(most[0], (Resource::Reports, "acme/r499".to_owned(), 499));
        assert_eq!(most.iter().map(|(_, _, count)| count).sum::<u64>(), (0..500).sum::<u64>());
        let tomorrow = now + Duration::from_secs(86_400);
        usage.add(tomorrow, Resource::Reports, "acme/r1", 1);
        assert_eq!(usage.most(), [(Resource::Reports, "acme/r1".to_owned(), 1)]);
    }
}
