//! How long a failure that blocks pull requests waits for the first comment of one of the backend's oncalls.

use std::collections::HashMap;

use crcr_domain::results::facts::AttemptFact;
use crcr_domain::results::{DurationStats, JobOfRecord, JobOutcome};
use crcr_domain::{AllowlistEntry, Level};
use crcr_results::webhook_tables::{ThingQuery, ThingSelection};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::context::{Hud, PageError};

/// The newest blocked pull requests that are looked at.
const MAX_PULLS: usize = 50;
const CONCURRENT_READS: usize = 4;

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct OncallReaction {
    /// Pull requests that the backend blocked.
    pub(crate) blocked: u64,
    /// Seconds from the first failure on a pull request to the first comment on it; of those below with a comment.
    pub(crate) seconds: Option<DurationStats>,
    /// Those pull requests, the one that failed last first; at most 50.
    pub(crate) pulls: Vec<BlockedPull>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct BlockedPull {
    pub(crate) number: u64,
    pub(crate) failed_at: Timestamp,
    /// Seconds from then to the first comment; `None` without a comment.
    pub(crate) seconds: Option<f64>,
}

/// `None` below L4, without oncalls, or if the relay doesn't receive comments of the upstream repository.
/// Comments of members of an oncall team aren't recognised.
pub(crate) async fn read(
    hud: &Hud,
    entry: &AllowlistEntry,
    jobs: &[JobOfRecord<'_>],
) -> Result<Option<OncallReaction>, PageError> {
    const EVENT: &str = "issue_comment";
    if entry.level != Level::L4 || entry.oncalls.is_empty() {
        return Ok(None);
    }
    let known = hud.results.repositories(EVENT).await?;
    let Some(upstream) =
        known.iter().find(|one| one.name.eq_ignore_ascii_case(hud.upstream.as_str()))
    else {
        return Ok(None);
    };
    let mut pulls: Vec<_> =
        first_failures(jobs.iter(), hud.upstream.as_str()).into_iter().collect();
    pulls.sort_unstable_by_key(|(_, failed_at)| std::cmp::Reverse(*failed_at));
    let blocked = pulls.len() as u64;
    pulls.truncate(MAX_PULLS);
    let waits = stream::iter(pulls).map(async |(number, failed_at)| {
        let query = ThingQuery {
            event: EVENT,
            repository: &upstream.name,
            selection: ThingSelection::Number(number),
        };
        let comments = hud.results.current_things(&query).await?;
        let times = comments.iter().filter_map(|row| {
            let document: Value = serde_json::from_str(&row.document).ok()?;
            let author = document["comment"]["user"]["login"].as_str()?;
            let is_oncall =
                entry.oncalls.iter().any(|one| one.as_str().eq_ignore_ascii_case(author));
            let at: Timestamp = document["comment"]["created_at"].as_str()?.parse().ok()?;
            (is_oncall && at >= failed_at).then_some(at)
        });
        let first = times.min();
        let seconds = first.map(|at| at.duration_since(failed_at).as_secs_f64());
        Ok::<_, PageError>(BlockedPull { number, failed_at, seconds })
    });
    let pulls: Vec<BlockedPull> = waits.buffered(CONCURRENT_READS).try_collect().await?;
    let seconds = DurationStats::of(pulls.iter().filter_map(|pull| pull.seconds));
    Ok(Some(OncallReaction { blocked, seconds, pulls }))
}

/// When a job first failed on each pull request.
fn first_failures<'a>(
    jobs: impl Iterator<Item = &'a JobOfRecord<'a>>,
    upstream: &str,
) -> HashMap<u64, Timestamp> {
    let mut first: HashMap<u64, Timestamp> = HashMap::new();
    for job in jobs {
        let AttemptFact { pull_request, received_at, .. } = job.record;
        let blocks = job.outcome.is_some_and(|outcome| {
            !outcome.is_pass() && !matches!(outcome, JobOutcome::Neutral | JobOutcome::Superseded)
        });
        if let Some(number) = pull_request
            && blocks
            && job.record.upstream.eq_ignore_ascii_case(upstream)
        {
            let at = first.entry(*number).or_insert(*received_at);
            *at = (*at).min(*received_at);
        }
    }
    first
}
