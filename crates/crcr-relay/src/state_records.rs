//! What the store's records hold, and where they are.

use crcr_domain::RepoName;
use crcr_domain::callback::{JobId, ReportDetails};
use crcr_domain::check_run::CheckRunStatus;
use crcr_domain::lifecycle::JobState;
use crcr_domain::proof::ReportProvenance;
use crcr_store::{StoreError, StoreKey};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    pub id: String,
    pub event: String,
    pub received_at: Timestamp,
    pub pull_request: Option<u64>,
    pub head_sha: String,
    /// Whom it is dispatched to.
    pub targets: Vec<RepoName>,
    /// The delivery that had replaced it before it came.
    pub superseded_by: Option<String>,
}

impl DeliveryRecord {
    /// A delivery of which nothing but its arrival is known.
    pub(crate) fn new(id: &str, event: &str, received_at: Timestamp) -> Self {
        Self {
            id: id.to_owned(),
            event: event.to_owned(),
            received_at,
            pull_request: None,
            head_sha: String::new(),
            targets: vec![],
            superseded_by: None,
        }
    }
}

/// What is known of a pull request from its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PullRecord {
    /// The newest head that was dispatched.
    pub head_sha: String,
    /// The head before that one, as far as its event told it.
    #[serde(default)]
    pub before: Option<String>,
    /// The `updated_at` of the newest dispatched event.
    pub updated_at: Timestamp,
    /// The deliveries of that head, the newest last.
    pub deliveries: Vec<String>,
    pub labels: Vec<String>,
    /// The `updated_at` of the event that told them.
    pub labels_at: Timestamp,
    /// Whether an event said that it has landed.
    #[serde(default)]
    pub has_landed: bool,
}

/// A downstream job, as far as it reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    pub id: JobId,
    /// Where it is in its life.
    pub state: JobState,
    /// Its end was heard and its start never.
    pub start_unknown: bool,
    /// When its start was received.
    pub started_at: Option<Timestamp>,
    /// When its end was received, or it was swept.
    pub ended_at: Option<Timestamp>,
    pub details: ReportDetails,
    #[serde(default)]
    pub evidence: ReportProvenance,
    /// Whether its end was reported without the proof that its start had.
    #[serde(default)]
    pub ended_without_proof: bool,
}

/// A check run on GitHub, as it was sent last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckRunRecord {
    pub id: u64,
    /// The run and attempt that it shows: a newer one takes it over.
    pub run: (u64, u32),
    #[serde(rename = "verdict")]
    pub status: CheckRunStatus,
    /// The delivery that it was sent for last: what "Re-run" dispatches again when no run answered.
    #[serde(default)]
    pub delivery: String,
    /// SHA-256 of all that was sent, so that nothing is sent twice.
    pub digest: String,
}

/// A token that was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedToken {
    /// SHA-256 of the body that came with it.
    pub body: String,
}

/// Whether upstream has a commit, as GitHub said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitLookup {
    pub exists: bool,
    /// GitHub is asked again after this.
    pub until: Timestamp,
}

/// Where a delivery is. All that belongs to it begins with the same parts, so that what is written
/// together is neighbours in the store's index.
pub fn delivery_key(id: &str) -> StoreKey {
    StoreKey::new(&["delivery", id])
}

/// The key of a delivery's body, [packed](pack): the webhook as it came.
pub fn body_key(id: &str) -> StoreKey {
    StoreKey::new(&["delivery", id, "body"])
}

/// The key of a delivery's body that was too large to be dispatched as it came.
pub(crate) fn reduced_body_key(id: &str) -> StoreKey {
    StoreKey::new(&["delivery", id, "reduced_body"])
}

/// Makes a body small for the store: most of a webhook is the same links over and over.
pub fn pack(body: &[u8]) -> Vec<u8> {
    lz4_flex::compress_prepend_size(body)
}

/// The body as it came; [`StoreError::Malformed`] when the store holds something else.
pub fn unpack(key: &StoreKey, packed: &[u8]) -> Result<Vec<u8>, StoreError> {
    let whole = || {
        let (size, packed) = lz4_flex::block::uncompressed_size(packed)?;
        lz4_flex::decompress(packed, size.min(limits::WEBHOOK_BYTES))
    };
    whole().map_err(|error| StoreError::Malformed {
        key: key.as_str().to_owned(),
        reason: error.to_string(),
    })
}

/// The set of deliveries by time.
pub fn delivery_set_key() -> StoreKey {
    StoreKey::new(&["deliveries"])
}

/// Where a [`crcr_domain::dispatch::Dispatch`] is.
pub fn dispatch_key(delivery: &str, repo: &RepoName) -> StoreKey {
    StoreKey::new(&["delivery", delivery, "dispatch", &repo.key()])
}

/// Where the last good allowlist is.
pub(crate) fn allowlist_key() -> StoreKey {
    StoreKey::new(&["allowlist"])
}

/// What `/readyz` writes, to see whether the store takes it.
pub(crate) fn write_probe_key() -> StoreKey {
    StoreKey::new(&["probe"])
}

/// Where a pull request is.
pub fn pull_request_key(upstream: &RepoName, number: u64) -> StoreKey {
    StoreKey::new(&["pull", &upstream.key(), &number.to_string()])
}

pub fn job_key(delivery: &str, repo: &RepoName, job: &JobId) -> StoreKey {
    let attempt = job.run_attempt.to_string();
    let repo = repo.key();
    let mut parts = vec!["delivery", delivery, "job", &repo, &job.run_id, &attempt, &job.workflow];
    // Without a job's name there is one part less, so that no name can stand for it.
    parts.extend(job.job.as_deref());
    StoreKey::new(&parts)
}

/// The set of jobs of a dispatch, each as JSON.
pub fn job_set_key(delivery: &str, repo: &RepoName) -> StoreKey {
    StoreKey::new(&["jobs", delivery, &repo.key()])
}

/// Where a check run is.
pub fn check_run_key(head_sha: &str, name: &str) -> StoreKey {
    StoreKey::new(&["shown", head_sha, name])
}

/// Where the delivery is that the proven reports of a downstream run answer.
pub fn run_claim_key(repo: &RepoName, run_id: &str) -> StoreKey {
    StoreKey::new(&["run_claim", &repo.key(), run_id])
}

/// The set of dispatches that were sent to a repository, by time: deliveries.
pub fn recent_sends_key(repo: &RepoName) -> StoreKey {
    StoreKey::new(&["sent_to", &repo.key()])
}

/// Where a token's use is.
pub fn used_token_key(issuer: &str, token: &str) -> StoreKey {
    StoreKey::new(&["used", issuer, token])
}

/// The bucket that limits a repository's reports.
pub fn report_limit_key(repo: &RepoName) -> StoreKey {
    StoreKey::new(&["rate", &repo.key()])
}

/// The bucket that limits what is recorded of a repository's reports that changed nothing.
pub fn refused_report_limit_key(repo: &RepoName) -> StoreKey {
    StoreKey::new(&["refused", &repo.key()])
}

/// Where it is remembered for a short time whether upstream has a commit.
pub fn commit_key(upstream: &RepoName, sha: &str) -> StoreKey {
    StoreKey::new(&["commit", &upstream.key(), sha])
}

/// Where the [`crate::repository_pins::Pin`] of an allowlist entry is.
pub fn pin_key(upstream: &RepoName, repo: &RepoName) -> StoreKey {
    StoreKey::new(&["pin", &upstream.key(), &repo.key()])
}

/// The set of pinned repositories.
pub fn pin_set_key(upstream: &RepoName) -> StoreKey {
    StoreKey::new(&["pins", &upstream.key()])
}

/// Where it is remembered that the oncalls of a repository were called to a pull request.
pub fn oncall_comment_key(upstream: &RepoName, pull: u64, repo: &RepoName) -> StoreKey {
    StoreKey::new(&["called", &upstream.key(), &pull.to_string(), &repo.key()])
}

/// Where it is remembered that somebody was told of a backend that turned red on a commit.
pub fn alert_key(repo: &RepoName, event: &str, head_sha: &str) -> StoreKey {
    StoreKey::new(&["alerted", &repo.key(), event, head_sha])
}

/// Where it is remembered that it was looked where a pull request branched off.
pub fn merge_base_key(upstream: &RepoName, pull: u64, head_sha: &str, base_sha: &str) -> StoreKey {
    StoreKey::new(&["branched", &upstream.key(), &pull.to_string(), head_sha, base_sha])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_unpacked_as_it_came_and_what_is_none_is_an_error() {
        let key = body_key("d");
        let webhook = br#"{"url": "https://a.test/a", "html_url": "https://a.test/b"}"#.repeat(9);
        let packed = pack(&webhook);
        assert!(packed.len() < webhook.len() / 4);
        assert_eq!(unpack(&key, &packed).unwrap(), webhook);
        assert_eq!(unpack(&key, &pack(b"")).unwrap(), b"");
        let huge = [&u32::MAX.to_le_bytes()[..], &packed[4..]].concat();
        for broken in [&b"abc"[..], &packed[..packed.len() / 2], b"{\"action\": 1}", &huge[..20]] {
            assert!(matches!(unpack(&key, broken), Err(StoreError::Malformed { .. })));
        }
    }

    #[test]
    fn names_of_separators_or_digits_never_share_a_key() {
        let repo = RepoName::new("acme/backend").unwrap();
        let id = |workflow: &str, name: Option<&str>| JobId {
            run_id: "1".to_owned(),
            run_attempt: 1,
            workflow: workflow.to_owned(),
            job: name.map(str::to_owned),
        };
        let keys = [
            job_key("d", &repo, &id("a", Some("b:c"))),
            job_key("d", &repo, &id("a:b", Some("c"))),
            job_key("d", &repo, &id("a", Some("b\",\"c"))),
            job_key("d", &repo, &id("a", Some("1"))),
            job_key("d", &repo, &id("a", Some("None"))),
            job_key("d", &repo, &id("a", None)),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
