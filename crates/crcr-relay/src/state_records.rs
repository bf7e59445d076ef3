//! The types of the store's records, and their keys.

use std::collections::BTreeMap;

use crcr_domain::RepoName;
use crcr_domain::checks::check_run::CheckRunStatus;
use crcr_domain::checks::lifecycle::JobState;
use crcr_domain::checks::proof::ReportProvenance;
use crcr_domain::protocol::callback::{JobId, ReportDetails};
use crcr_domain::protocol::dispatch::Dispatch;
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
    /// The backends it is dispatched to.
    pub targets: Vec<RepoName>,
    /// The newer delivery that replaces it.
    pub superseded_by: Option<String>,
}

impl DeliveryRecord {
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

/// A pull request, as its events described it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PullRecord {
    /// The newest head that was dispatched.
    pub head_sha: String,
    /// The `updated_at` of the newest dispatched event.
    pub updated_at: Timestamp,
    /// How the head moved in the second of `updated_at`, in any order.
    pub moves: Vec<HeadMove>,
    /// When the head at the beginning of that second was set; `None` if it isn't known.
    pub start_at: Option<Timestamp>,
    /// The [`order`](crcr_domain::protocol::dispatch::Dispatch::order) of the newest event.
    pub order: i64,
    pub is_closed: bool,
    /// How often it was closed more than opened again, since before the second of `updated_at`.
    pub closings: i64,
    /// Whether its newest dispatched event says that it is ready for review.
    pub is_ready: bool,
    /// The branch that it goes to, by that event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_branch: Option<String>,
    /// The deliveries of that head, the newest last.
    pub deliveries: Vec<String>,
    /// The heads before it, the oldest first. Their jobs can still report.
    pub older: Vec<OlderHead>,
    pub labels: Vec<String>,
    /// The `updated_at` of the event that had these labels.
    pub labels_at: Timestamp,
    /// Whether it has landed, and wasn't opened again since.
    pub has_landed: bool,
}

impl CheckRunRecord {
    /// The record of the same check run, of which it isn't known what GitHub has.
    pub(crate) fn with_unknown_content(&self, unanswered_since: Option<Timestamp>) -> Self {
        Self { digest: String::new(), unanswered_since, ..self.clone() }
    }

    /// Whether GitHub may show it as open.
    pub(crate) fn may_be_open(&self) -> bool {
        self.status.is_open() || self.digest.is_empty()
    }

    pub fn has_failed(&self) -> bool {
        matches!(self.status, CheckRunStatus::Completed(end) if !end.is_good())
    }
}

impl PullRecord {
    /// Whether it goes to another branch now than when it was dispatched, as far as that is known.
    pub fn goes_to_another_branch_than(&self, dispatch: &Dispatch) -> bool {
        let both = self.base_branch.as_ref().zip(dispatch.base_branch.as_ref());
        both.is_some_and(|(own, other)| own != other)
    }

    /// Adds a delivery of the head that came later than the newest one, and is about an earlier event.
    pub(crate) fn add_older_delivery(&mut self, delivery: &str) {
        let newest = self.deliveries.len().saturating_sub(1);
        self.deliveries.insert(newest, delivery.to_owned());
        drop_oldest(&mut self.deliveries);
    }

    /// Adds a delivery of a head that others had replaced before it came. The commit may still be another pull request's.
    pub(crate) fn add_late_delivery(&mut self, head_sha: &str, delivery: &str) {
        match self.older.iter_mut().find(|older| older.head_sha == head_sha) {
            Some(older) => {
                older.deliveries.push(delivery.to_owned());
                drop_oldest(&mut older.deliveries);
            }
            None => {
                let deliveries = vec![delivery.to_owned()];
                self.older.insert(0, OlderHead { head_sha: head_sha.to_owned(), deliveries });
            }
        }
        self.drop_oldest_heads();
    }

    /// Makes another head the current one. Returns the deliveries of the one before.
    pub(crate) fn replace_head(&mut self, head_sha: &str) -> Vec<String> {
        // Somebody may push an earlier head again.
        let again = self.older.iter().position(|older| older.head_sha == head_sha);
        let deliveries = again.map(|at| self.older.remove(at).deliveries).unwrap_or_default();
        let replaced = std::mem::replace(&mut self.deliveries, deliveries);
        let head_sha = std::mem::replace(&mut self.head_sha, head_sha.to_owned());
        if !replaced.is_empty() {
            self.older.push(OlderHead { head_sha, deliveries: replaced.clone() });
        }
        self.drop_oldest_heads();
        replaced
    }

    fn drop_oldest_heads(&mut self) {
        let surplus = self.older.len().saturating_sub(limits::OLDER_HEADS);
        self.older.drain(..surplus);
    }
}

/// Drops the oldest deliveries of a head that are too many.
pub(crate) fn drop_oldest(deliveries: &mut Vec<String>) {
    let surplus = deliveries.len().saturating_sub(limits::DELIVERIES_PER_HEAD);
    deliveries.drain(..surplus);
}

/// A push to a pull request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadMove {
    /// The head before it; `None` for the first one that is known.
    pub from: Option<String>,
    pub to: String,
}

/// A head that a pull request had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OlderHead {
    pub head_sha: String,
    pub deliveries: Vec<String>,
}

/// The steps in [`JobRecord::steps`] that are more than are told apart.
pub(crate) const OTHER_STEPS: &str = "others";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    pub id: JobId,
    pub state: JobState,
    /// Whether its end was reported, but not its start.
    pub start_unknown: bool,
    /// When the first report of it was received. That of a parallel step's end may be older than the start.
    pub heard_at: Timestamp,
    pub started_at: Option<Timestamp>,
    /// When the last start of a step under this name was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_started_at: Option<Timestamp>,
    /// When its end was received, or it was found to be lost.
    pub ended_at: Option<Timestamp>,
    /// Whether no other job of its run and attempt reported before it. The others wait for jobs that they
    /// need, which isn't time in the queue.
    pub is_first_of_run: bool,
    pub details: ReportDetails,
    pub provenance: ReportProvenance,
    /// Whether its start was proven, but not its end.
    pub ended_without_proof: bool,
    /// The pipeline of a build elsewhere: its organization and itself, by their immutable ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<String>,
    /// The number of a build elsewhere in its pipeline, whichever name of it the reports use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_number: Option<u64>,
    /// Whether it said that nothing else of its run will report.
    pub ends_run: bool,
    /// The steps of a build elsewhere that reported under this name, each with whether it failed; `None` before its end.
    /// Parallel ones may share a name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, Option<bool>>,
}

/// When the relay was down, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uptime {
    /// When a relay was last known to be up.
    pub alive_at: Option<Timestamp>,
    pub downtimes: Vec<(Timestamp, Timestamp)>,
}

/// A check run on GitHub, as last sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckRunRecord {
    pub id: u64,
    /// The run that it links; 0 if there is none.
    pub run: u64,
    pub status: CheckRunStatus,
    /// The delivery whose answer it shows. It is evidence even when newer ones have taken its place in the index.
    pub delivery: String,
    /// SHA-256 of the content that GitHub has, so that the same content isn't sent twice; empty while it
    /// isn't known what GitHub has.
    pub digest: String,
    pub sent_at: Timestamp,
    /// When an update was begun whose answer isn't known: GitHub may still get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered_since: Option<Timestamp>,
    /// Whether another App made it, which this one has replaced: only that one could change it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_other_app: bool,
}

/// The use of an OIDC token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedToken {
    /// SHA-256 of the report that came with it.
    pub body: String,
    /// What that report said of its job.
    pub state: JobState,
}

/// GitHub's cached answer whether upstream has a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitLookup {
    pub exists: bool,
    pub until: Timestamp,
}

/// How far the App's log of deliveries was compared with the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileRecord {
    /// Every delivery before this is stored, or GitHub got an answer that accepts it.
    pub settled_until: Timestamp,
    /// What a task began and couldn't finish.
    pub unfinished: Option<LogScan>,
}

/// Reading the log from its newest entry back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogScan {
    pub started_at: Timestamp,
    /// Older entries aren't read.
    pub back_to: Timestamp,
    /// The oldest delivery so far that isn't settled.
    pub oldest_open: Option<Timestamp>,
    /// The next page; `None` for the first one.
    pub cursor: Option<String>,
}

/// The last time that GitHub was asked to deliver a webhook again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedeliveryRecord {
    /// The number of the failed attempt.
    pub attempt: u64,
    pub asked_at: Timestamp,
    /// How often it was asked, this time included.
    pub times: u32,
    /// Whether it doesn't deliver it again.
    pub is_refused: bool,
}

/// How far a look for missing heads has come that one task couldn't finish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadsLook {
    pub begun_at: Timestamp,
    /// The next page of GitHub's list of open pull requests, which has the most recently changed ones first.
    pub next_page: u32,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $vis:vis $name:ident($($arg:ident: $kind:ty),*) = [$($part:expr),+];)+) => {
        $($(#[$doc])* $vis fn $name($($arg: $kind),*) -> StoreKey {
            StoreKey::new(&[$($part),+])
        })+
    };
}

// The keys of all records, sets and buckets but those of jobs, runs and searches, which are below.
keys! {
    /// All keys of a delivery begin with the same parts, so that records which are written together are next
    /// to each other in the store's index.
    pub delivery_key(id: &str) = ["delivery", id];
    /// The key of a delivery's body, [packed](pack): the webhook as it came.
    pub body_key(id: &str) = ["delivery", id, "body"];
    /// The key of a delivery's body that was too large to be dispatched as it came.
    pub(crate) reduced_body_key(id: &str) = ["delivery", id, "reduced_body"];
    pub(crate) redelivery_key(id: &str) = ["delivery", id, "redelivery"];
    /// How the store was put back to a backup.
    pub(crate) restore_key() = ["restored"];
    pub(crate) reconcile_key() = ["reconciled"];
    /// The key of a webhook that waits to be kept in the archive and the results.
    pub(crate) pending_webhook_key(event: &str, delivery: &str) =
        ["delivery", delivery, "pending", event];
    /// The set of all deliveries, by time.
    pub delivery_set_key() = ["deliveries"];
    pub dispatch_key(delivery: &str, repo: &RepoName) =
        ["delivery", delivery, "dispatch", &repo.key()];
    /// What is known of a backend's `.github/crcr.yml`.
    pub backend_file_key(upstream: &RepoName, repo: &RepoName) =
        ["backend_file", &upstream.key(), &repo.key()];
    /// The delivery that asked for the checks of a merge group; `None` once the group has left the queue.
    pub(crate) merge_group_key(upstream: &RepoName, head_sha: &str) =
        ["merge_group", &upstream.key(), head_sha];
    /// The token bucket of the calls that read a backend's file.
    pub(crate) file_calls_key(repo: &RepoName) = ["file_calls", &repo.key()];
    /// Who waits for a probe.
    pub(crate) probe_key(delivery: &str, repo: &RepoName) =
        ["delivery", delivery, "probe", &repo.key()];
    /// What was done to explain the failures of a backend on a head.
    pub(crate) confirmation_key(repo: &RepoName, head_sha: &str) =
        ["confirmation", head_sha, &repo.key()];
    /// The set of the answers to searches for the commit that broke a job, each as JSON.
    pub culprits_key(upstream: &RepoName) = ["culprits", &upstream.key()];
    /// The files that a head changes.
    pub(crate) changed_files_key(base_sha: &str, head_sha: &str) =
        ["changed_files", base_sha, head_sha];
    /// The bucket that exists when a dispatch has its place among those of a day.
    pub(crate) admitted_key(delivery: &str, repo: &RepoName) = ["admitted", delivery, &repo.key()];
    pub(crate) allowlist_key() = ["allowlist"];
    /// The settings that decide what check runs show, as they were at the last start.
    pub(crate) deciding_settings_key() = ["deciding_settings"];
    /// Upstream's name at the last start.
    pub(crate) last_upstream_key() = ["last_upstream"];
    /// When the settings that decide what check runs show last changed.
    pub(crate) settings_changed_key() = ["settings_changed"];
    /// When old results were last rolled up into days on AWS Lambda.
    pub(crate) rolled_up_key() = ["rolled_up"];
    /// The record of the times that the store has seen.
    pub(crate) clock_key() = ["clock"];
    /// The record that `/readyz` writes to find out whether the store can be written.
    pub(crate) write_probe_key() = ["probe"];
    pub pull_request_key(upstream: &RepoName, number: u64) =
        ["pull", &upstream.key(), &number.to_string()];
    /// The set of the jobs of a dispatch, each as JSON.
    pub job_set_key(delivery: &str, repo: &RepoName) = ["jobs", delivery, &repo.key()];
    pub check_run_key(head_sha: &str, name: &str) = ["shown", head_sha, name];
    /// Exists when the creation of a check run was begun: GitHub may have it although it has no record.
    pub begun_check_run_key(head_sha: &str, name: &str) = ["begun_check_run", head_sha, name];
    /// When the creation of a check run was begun whose answer isn't known: GitHub may still get it.
    pub unanswered_creation_key(head_sha: &str, name: &str) =
        ["unanswered_creation", head_sha, name];
    /// The set of the dispatches that GitHub accepted for a repository in one minute since 1970, by its clock, each as
    /// JSON ([`crcr_domain::checks::downstream_run::AcceptedSend`]).
    pub sends_key(repo: &RepoName, minute: i64) = ["sent_to", &repo.key(), &minute.to_string()];
    /// The set of those who asked for a commit: [`commit_deliveries_key`] has what each asked for.
    pub commit_origins_key(head_sha: &str) = ["commit_origins", head_sha];
    /// The set of the deliveries about a commit that one of them caused.
    pub commit_deliveries_key(head_sha: &str, origin: &str) =
        ["commit_deliveries", head_sha, origin];
    /// The set of those of them that a backend has answered, by the weight of what it said.
    pub(crate) commit_evidence_key(head_sha: &str, origin: &str, repo: &RepoName) =
        ["commit_evidence", head_sha, origin, &repo.key()];
    /// The set of the heads that may be open, by the time of their last event: numbers of pull requests, and commits of
    /// merge groups.
    pub open_heads_key(upstream: &RepoName) = ["open_heads", &upstream.key()];
    /// When a backend's default branch was last asked for.
    pub branch_look_key(repo: &RepoName) = ["branch_look", &repo.key()];
    /// The open demotions as they were last read, by any replica.
    pub open_demotions_key(upstream: &RepoName) = ["demotions", &upstream.key()];
    /// The keys of each token issuer ([`crcr_github::jwks::KeyDocument`]), as any replica fetched them last.
    pub(crate) issuer_keys_key() = ["issuer_keys"];
    pub(crate) provider_map_key() = ["provider_map"];
    pub uptime_key() = ["uptime"];
    pub used_token_key(issuer: &str, token: &str) = ["used", issuer, token];
    /// The token bucket that limits how many runs of a repository report.
    pub report_limit_key(repo: &RepoName) = ["rate", &repo.key()];
    /// The token bucket that limits the reports of one run in one of its attempts.
    pub(crate) run_reports_key(repo: &RepoName, run_id: &str, attempt: u32) =
        ["run_reports", &repo.key(), run_id, &attempt.to_string()];
    /// The token bucket of a backend's calls of GitHub's API for check runs of jobs.
    pub(crate) job_calls_key(repo: &RepoName) = ["job_calls", &repo.key()];
    /// The token bucket of those of all backends.
    pub(crate) job_calls_of_all_key(upstream: &RepoName) = ["job_calls_of_all", &upstream.key()];
    /// The token bucket of the looks at a backend's runs.
    pub(crate) run_looks_key(repo: &RepoName) = ["run_looks", &repo.key()];
    /// The token bucket of those that are for one author's pull requests.
    pub(crate) run_looks_of_author_key(repo: &RepoName, author: &str) =
        ["run_looks_of", &repo.key(), &author.to_ascii_lowercase()];
    /// The names of the check runs of jobs that a backend has on a commit.
    pub(crate) job_checks_key(repo: &RepoName, head_sha: &str) =
        ["job_checks", head_sha, &repo.key()];
    /// The token bucket that limits how many of a repository's refused reports are recorded.
    pub refused_report_limit_key(repo: &RepoName) = ["refused", &repo.key()];
    pub commit_key(upstream: &RepoName, sha: &str) = ["commit", &upstream.key(), sha];
    /// The key of a [`crate::repository_pins::Pin`].
    pub pin_key(upstream: &RepoName, repo: &RepoName) = ["pin", &upstream.key(), &repo.key()];
    /// When this relay began to compare the heads of open pull requests with the store.
    pub heads_since_key(upstream: &RepoName) = ["heads_since", &upstream.key()];
    /// The open pull requests that changed before this have been compared with the store.
    pub heads_compared_key(upstream: &RepoName) = ["heads_compared", &upstream.key()];
    /// The look for missing heads that isn't finished.
    pub heads_look_key(upstream: &RepoName) = ["heads_look", &upstream.key()];
    /// GitHub's number of the upstream repository.
    pub upstream_number_key(upstream: &RepoName) = ["upstream_number", &upstream.key()];
    /// The name by which the upstream repository of this number is known.
    pub upstream_name_key(number: u64) = ["upstream_name", &number.to_string()];
    /// The name that the upstream repository had before it was renamed or transferred.
    pub former_upstream_key(upstream: &RepoName) = ["former_upstream", &upstream.key()];
    /// The set of pinned repositories.
    pub pin_set_key(upstream: &RepoName) = ["pins", &upstream.key()];
    /// Exists when the oncalls of a repository were mentioned on a pull request.
    pub oncall_comment_key(upstream: &RepoName, pull: u64, repo: &RepoName) =
        ["called", &upstream.key(), &pull.to_string(), &repo.key()];
    /// Whether the infrastructure of a backend keeps failing.
    pub breaker_key(upstream: &RepoName, repo: &RepoName) =
        ["breaker", &upstream.key(), &repo.key()];
    /// Exists when an alert was sent that a backend turned red on a commit.
    pub alert_key(repo: &RepoName, event: &str, head_sha: &str) =
        ["alerted", &repo.key(), event, head_sha];
    /// What was red on a feed when it was looked at for alerts.
    pub red_on_feed_key(address: &str) = ["red-on-feed", address];
    /// How a backend turned red, after an alert said so; gone when it is green again.
    pub red_since_key(repo: &RepoName, event: &str) = ["red_turn", &repo.key(), event];
    /// Exists when GitHub was asked where a pull request branched off.
    pub merge_base_key(upstream: &RepoName, pull: u64, head_sha: &str, base_sha: &str) =
        ["branched", &upstream.key(), &pull.to_string(), head_sha, base_sha];
}

/// Compresses a body. Most of a webhook is the same few links.
pub fn pack(body: &[u8]) -> Vec<u8> {
    lz4_flex::compress_prepend_size(body)
}

/// Fails with [`StoreError::Malformed`] if `packed` isn't a packed body.
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

/// The search for the commit that broke a job.
pub(crate) fn bisection_key(
    repo: &RepoName,
    (workflow, job): (&str, Option<&str>),
    bad_sha: &str,
) -> StoreKey {
    let repo = repo.key();
    let mut parts = vec!["bisection", &*repo, bad_sha, workflow];
    parts.extend(job);
    StoreKey::new(&parts)
}

pub fn job_key(delivery: &str, repo: &RepoName, job: &JobId) -> StoreKey {
    let attempt = job.run_attempt.to_string();
    let repo = repo.key();
    let mut parts = vec!["delivery", delivery, "job", &repo, &job.run_id, &attempt, &job.workflow];
    // A job without a name has one part less, so that its key differs from that of every name.
    parts.extend(job.job.as_deref());
    StoreKey::new(&parts)
}

/// The job that reported first of a run's attempt.
pub(crate) fn first_job_key(delivery: &str, repo: &RepoName, job: &JobId) -> StoreKey {
    let attempt = job.run_attempt.to_string();
    StoreKey::new(&["delivery", delivery, "first_job", &repo.key(), &job.run_id, &attempt])
}

/// The job of a self-report. Its delivery can be any text, also that of a dispatch.
pub(crate) fn self_report_key(delivery: &str, repo: &RepoName, job: &JobId) -> StoreKey {
    let attempt = job.run_attempt.to_string();
    let repo = repo.key();
    let mut parts = vec!["self_report", delivery, &repo, &job.run_id, &attempt, &job.workflow];
    parts.extend(job.job.as_deref());
    StoreKey::new(&parts)
}

/// The delivery that the proven reports of a downstream run answer. Elsewhere than on GitHub, pipelines count their builds
/// by themselves.
pub(crate) fn run_claim_key(repo: &RepoName, pipeline: Option<&str>, run_id: &str) -> StoreKey {
    let repo = repo.key();
    let mut parts = vec!["run_claim", &repo, run_id];
    parts.extend(pipeline);
    StoreKey::new(&parts)
}

/// The bucket of what a repository or an account may use on a day, in UTC.
pub(crate) fn budget_of_day_key(what: &str, now: Timestamp, owner: &str) -> StoreKey {
    let day = now.strftime("%F").to_string();
    StoreKey::new(&["budget", what, &day, &owner.to_ascii_lowercase()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_round_trips_and_malformed_body_is_an_error() {
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
    fn job_names_with_separators_or_digits_have_different_keys() {
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
