//! Results as the deployed system writes them: what its relay sends to its HUD, and rows of its
//! table `default.crcr_workflow_job`. Both become the same facts.

use crcr_domain::checks::lifecycle::JobState;
use crcr_domain::checks::proof::MissingProof;
use crcr_domain::protocol::callback::{self, Callback, CallbackKind};
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::expected::ExpectedConclusions;
use crcr_domain::results::facts::{AttemptFact, DispatchFact, DispatchFactStatus, Fact};
use crcr_domain::{Level, RepoName};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The workflow that stands for a dispatch itself in the deployed HUD's table.
pub const DISPATCH_WORKFLOW: &str = "relay";
/// The job of that workflow, and the number of its check run.
pub const DISPATCH_JOB: &str = "dispatch";

/// The upstream repository where a result names none.
const UPSTREAM: &str = "pytorch/pytorch";

/// What the deployed relay sends to its HUD.
#[derive(Debug, Deserialize)]
pub struct ForwardedResult {
    trusted: TrustedPart,
    untrusted: UntrustedPart,
}

#[derive(Debug, Deserialize)]
struct TrustedPart {
    /// `queue_time` and `execution_time` in seconds. One that isn't a number is left out.
    #[serde(default)]
    ci_metrics: Value,
    verified_repo: String,
    downstream_repo_level: Option<String>,
}

#[derive(Debug, Deserialize)]
struct UntrustedPart {
    callback_payload: Value,
}

/// A result that can't be taken: a code, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableResult {
    /// Stays the same when the text is reworded.
    pub code: &'static str,
    /// The field, what came and what is expected.
    pub what: String,
}

#[derive(Debug, Clone)]
pub struct ReceivedResult {
    pub repo: RepoName,
    level: Level,
    queue_seconds: Option<f64>,
    execution_seconds: Option<f64>,
    callback: Callback,
    upstream: String,
    pull_request: Option<u64>,
    head_sha: String,
}

fn unreadable(code: &'static str, what: impl Into<String>) -> UnreadableResult {
    UnreadableResult { code, what: what.into() }
}

fn is_missing(value: &Value) -> bool {
    value.is_null() || value == ""
}

impl TrustedPart {
    /// Relays from before levels didn't send one. They sent results, which begin at L2.
    fn level(&self) -> Option<Level> {
        match self.downstream_repo_level.as_deref() {
            None | Some("") => Some(Level::L2),
            Some(level) => level.parse().ok(),
        }
    }
}

impl ForwardedResult {
    /// Validates it as the HUD in the field does, and then as a report.
    pub fn read(self) -> Result<ReceivedResult, UnreadableResult> {
        if is_missing(&self.untrusted.callback_payload["workflow"]["job_name"]) {
            let what = "Missing required field: workflow.job_name";
            return Err(unreadable("missing-field", what));
        }
        self.read_stored()
    }

    /// Like [`Self::read`], but rows from before the HUD required a job's name have none.
    fn read_stored(self) -> Result<ReceivedResult, UnreadableResult> {
        let mut payload = self.untrusted.callback_payload;
        if is_missing(&payload["workflow"]["run_id"]) {
            payload["workflow"]["run_id"] = json!("0");
        }
        let repo = RepoName::new(&self.trusted.verified_repo)
            .map_err(|error| unreadable("repository", format!("trusted.verified_repo: {error}")))?;
        let level = self.trusted.level().ok_or_else(|| {
            unreadable("level", "trusted.downstream_repo_level: expected L1, L2, L3 or L4")
        })?;
        let body = payload.to_string();
        let callback = callback::read(body.as_bytes())
            .map_err(|error| unreadable("report", error.to_string()))?;
        let event = &payload["payload"];
        let text = |value: &Value| {
            let text = value.as_str().filter(|text| !text.is_empty())?;
            (text.chars().count() <= callback::NAME_CHARS && !text.chars().any(char::is_control))
                .then(|| text.to_owned())
        };
        let pull = &event["pull_request"];
        let head_sha = if callback.kind.is_self_report() {
            callback.claimed_commit.clone().unwrap_or_default()
        } else {
            let named = [&pull["head"]["sha"], &event["head_sha"]].into_iter().find_map(text);
            named.unwrap_or_else(|| callback.delivery.clone())
        };
        let seconds = |name: &str| {
            let given = &self.trusted.ci_metrics[name];
            let given = given.as_f64().or_else(|| given.as_str()?.trim().parse().ok());
            given.filter(|seconds| (0.0..1e8).contains(seconds)).map(thousandths)
        };
        Ok(ReceivedResult {
            repo,
            level,
            queue_seconds: seconds("queue_time"),
            execution_seconds: seconds("execution_time"),
            upstream: text(&event["repository"]["full_name"]).unwrap_or(UPSTREAM.to_owned()),
            pull_request: pull["number"].as_u64().filter(|number| *number > 0),
            head_sha,
            callback,
        })
    }
}

impl ForwardedResult {
    /// What another relay of this kind tells of a dispatch; `None` when it is a job's report.
    ///
    /// `now` stands in for a time that can't be read.
    pub fn dispatch(&self, now: Timestamp) -> Option<DispatchFact> {
        let payload = &self.untrusted.callback_payload;
        let workflow = &payload["workflow"];
        let status = match workflow["status"].as_str()? {
            "dispatched" => DispatchFactStatus::Sent,
            // The deployed relay doesn't send these two.
            "sent" | "queued" => return None,
            status => DispatchFactStatus::from_name(status)?,
        };
        if workflow["name"] != DISPATCH_WORKFLOW || workflow["job_name"] != DISPATCH_JOB {
            return None;
        }
        let text = |value: &Value| {
            let text = value.as_str().filter(|text| !text.is_empty())?;
            (text.len() <= callback::NAME_CHARS && !text.chars().any(char::is_control))
                .then(|| text.to_owned())
        };
        let at = workflow["started_at"].as_str().and_then(|time| time.parse().ok());
        let at: Timestamp = at.filter(|at| *at <= now).unwrap_or(now);
        let event = &payload["payload"];
        Some(DispatchFact {
            at,
            delivery: text(&payload["delivery_id"])?,
            upstream: text(&event["repository"]["full_name"])?,
            pull_request: event["pull_request"]["number"].as_u64(),
            head_sha: text(&event["head_sha"])?,
            event: text(&payload["event_type"])?.into(),
            repo: RepoName::new(&self.trusted.verified_repo).ok()?.as_str().to_owned(),
            level: self.trusted.level()?,
            labels: vec![],
            enqueued_at: at,
            sent_at: (status == DispatchFactStatus::Sent).then_some(at),
            status,
            superseded_by: text(&workflow["superseded_by"]),
            tries: 0,
            last_error: None,
        })
    }
}

impl ReceivedResult {
    /// What tells it from other results: repository, delivery, workflow, job and check run.
    pub fn key(&self) -> [&str; 5] {
        let Callback { delivery, job, details, .. } = &self.callback;
        [
            self.repo.as_str(),
            delivery,
            &job.workflow,
            job.job.as_deref().unwrap_or_default(),
            details.check_run_id.as_deref().unwrap_or_default(),
        ]
    }

    /// What was dropped from it or changed in it, and why.
    pub fn warnings(&self) -> &[String] {
        &self.callback.details.warnings
    }

    pub fn status(&self) -> &'static str {
        self.callback.state.status()
    }

    /// The attempt that it tells of, received at `now`, after what was told `before`.
    pub fn attempt(self, before: Option<AttemptFact>, now: Timestamp) -> AttemptFact {
        let known = before.as_ref();
        let queue_seconds = self.queue_seconds.or(known.and_then(|row| row.queue_seconds));
        let execution_seconds =
            self.execution_seconds.or(known.and_then(|row| row.execution_seconds));
        let earlier = |time: Timestamp, seconds: Option<f64>| {
            let span = seconds.and_then(|s| SignedDuration::try_from_secs_f64(s).ok());
            span.and_then(|span| time.checked_sub(span).ok()).unwrap_or(time)
        };
        let dispatched_at = known.map_or_else(
            || earlier(earlier(now, self.execution_seconds), self.queue_seconds),
            |row| row.dispatched_at,
        );
        let Callback { kind, delivery, state, job, mut details, .. } = self.callback;
        let ended = !matches!(state, JobState::InProgress);
        details.started_at = details.started_at.or(known.and_then(|row| row.details.started_at));
        AttemptFact {
            received_at: now,
            dispatched_at,
            repo: self.repo.as_str().to_owned(),
            delivery,
            workflow: job.workflow,
            job: job.job,
            run_id: job.run_id,
            run_attempt: job.run_attempt,
            state,
            start_unknown: ended && execution_seconds.is_none() && details.started_at.is_none(),
            queue_seconds,
            execution_seconds,
            details,
            missing_proof: (kind.is_self_report() && self.head_sha.is_empty())
                .then_some(MissingProof::Commit),
            expected: None,
            level: self.level,
            event: match kind {
                CallbackKind::Nightly => EventName::Nightly,
                CallbackKind::Periodic => EventName::Periodic,
                CallbackKind::Dispatch if self.pull_request.is_some() => EventName::PullRequest,
                CallbackKind::Dispatch => EventName::Push,
            },
            upstream: self.upstream,
            pull_request: self.pull_request,
            head_sha: self.head_sha,
        }
    }
}

/// The facts of an attempt whose dispatch was somebody else's: that there was one is all that is
/// known of it.
pub fn facts(attempt: AttemptFact) -> Vec<Fact> {
    let self_report = attempt.event.is_self_reported();
    let dispatch = DispatchFact {
        at: attempt.dispatched_at,
        delivery: attempt.delivery.clone(),
        upstream: attempt.upstream.clone(),
        pull_request: attempt.pull_request,
        head_sha: attempt.head_sha.clone(),
        event: attempt.event.clone(),
        repo: attempt.repo.clone(),
        level: attempt.level,
        labels: vec![],
        enqueued_at: attempt.dispatched_at,
        sent_at: None,
        status: DispatchFactStatus::Sent,
        superseded_by: None,
        tries: 0,
        last_error: None,
    };
    let dispatch = (!self_report).then_some(Fact::Dispatch(dispatch));
    [Some(Fact::Attempt(Box::new(attempt))), dispatch].into_iter().flatten().collect()
}

/// Reads a row of the deployed system's table, as ClickHouse prints it with `FORMAT JSONEachRow`.
///
/// Times are the row's own: it was received when it ended or, while it runs, when it started.
pub fn row(line: &[u8]) -> Result<Vec<Fact>, UnreadableResult> {
    let row: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|error| unreadable("no-json", format!("no JSON object: {error}")))?;
    let get = |name: &str| row.get(name).unwrap_or(&Value::Null);
    let text = |name: &str| match get(name) {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    // 64-bit numbers come as texts, unless the server was told otherwise.
    let number = |name: &str| text(name).and_then(|text| text.parse::<f64>().ok());
    let count = |name: &str| number(name).filter(|n| (0.0..1e15).contains(n)).map(|n| n as u64);
    let (started_at, completed_at) = (time(text("started_at")), time(text("completed_at")));
    let status = text("status").unwrap_or_default();
    let (start, end) = (started_at.clone().ok().flatten(), completed_at.clone().ok().flatten());
    let received = if status == "completed" { end.or(start) } else { start };
    let received = received.ok_or_else(|| {
        unreadable("time", "`started_at` and `completed_at`: neither is there, expected a time")
    })?;
    let execution = number("execution_time").filter(|s| *s >= 0.0).or_else(|| {
        let span = end?.duration_since(start?);
        (status == "completed" && !span.is_negative()).then(|| span.as_secs_f64())
    });
    let tests = match (count("passed_tests"), count("failed_tests"), count("skipped_tests")) {
        (None, None, None) => Value::Null,
        (Some(0), Some(0), Some(0)) if count("total_tests").unwrap_or(0) == 0 => Value::Null,
        (passed, failed, skipped) => {
            let [passed, failed, skipped] =
                [passed, failed, skipped].map(Option::unwrap_or_default);
            let total = count("total_tests").unwrap_or(passed + failed + skipped);
            json!({ "passed": passed, "failed": failed, "skipped": skipped, "total": total })
        }
    };
    let payload = json!({
        "event_type": text("event_type"),
        "delivery_id": text("delivery_id"),
        "payload": {
            "repository": { "full_name": text("upstream_repo") },
            "pull_request": count("pr_number").filter(|number| *number > 0).map(|number| {
                json!({ "number": number, "head": { "sha": text("pytorch_head_sha") } })
            }),
            "head_sha": text("pytorch_head_sha"),
        },
        "workflow": {
            "status": status,
            "conclusion": text("conclusion"),
            "name": text("workflow_name"),
            "url": text("workflow_run_url"),
            "run_id": text("run_id"),
            "run_attempt": text("run_attempt"),
            "job_name": text("job_name"),
            "check_run_id": text("check_run_id"),
            // What isn't a time is dropped with a warning.
            "started_at": started_at.as_ref().map_or_else(|what| json!(what), |time| json!(time)),
            "completed_at": completed_at.as_ref().map_or_else(|what| json!(what), |time| json!(time)),
            "test_results": tests,
            "artifact_url": text("artifact_url"),
            "environment": text("environment"),
            // Both may be JSON in a text.
            "failed_tests": text("failed_tests_json"),
            "triage_verdict": text("triage_verdict_json"),
        },
    });
    let forward = ForwardedResult {
        trusted: TrustedPart {
            ci_metrics: json!({
                "queue_time": number("queue_time"),
                "execution_time": execution,
            }),
            verified_repo: text("downstream_repo").unwrap_or_default(),
            downstream_repo_level: text("downstream_repo_level"),
        },
        untrusted: UntrustedPart { callback_payload: payload },
    };
    let mut attempt = forward.read_stored()?.attempt(None, received);
    attempt.expected = ExpectedConclusions::of_upstream(&attempt.upstream)
        .conclusion(&attempt.repo, attempt.job.as_deref());
    Ok(facts(attempt))
}

/// A time as ClickHouse or the reporter writes it; before 2000 there was none. The error is the text.
fn time(text: Option<String>) -> Result<Option<Timestamp>, String> {
    let Some(text) = text else { return Ok(None) };
    let parsed = text.parse::<Timestamp>().ok().or_else(|| {
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    });
    match parsed {
        Some(time) if time.as_second() < 946_684_800 => Ok(None),
        // A table may hold a year of dust, but not a month of it in the future.
        Some(time) if time.as_second() < 4_102_444_800 => Ok(Some(time)),
        _ => Err(text),
    }
}

fn thousandths(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use crcr_domain::checks::lifecycle::Conclusion;

    use super::*;

    fn line(change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let mut row = json!({
            "status": "completed", "downstream_repo": "acme/backend",
            "upstream_repo": "pytorch/pytorch", "pr_number": "7",
            "pytorch_head_sha": "a".repeat(40), "delivery_id": "d-1",
            "workflow_run_url": "https://github.com/acme/backend/actions/runs/9",
            "workflow_name": "ci", "job_name": "test", "check_run_id": "77", "run_id": "9",
            "run_attempt": 1, "conclusion": "success", "queue_time": 60.5, "execution_time": null,
            "started_at": "2026-08-01 10:00:00", "completed_at": "2026-08-01T10:10:00.250Z",
            "total_tests": 10, "passed_tests": 9, "failed_tests": 1, "skipped_tests": 0,
            "artifact_url": "", "downstream_repo_level": "L2", "event_type": "pull_request",
        });
        change(&mut row);
        row.to_string().into_bytes()
    }

    #[test]
    fn a_row_is_an_attempt_and_the_dispatch_it_came_of() {
        let facts = row(&line(|_| {})).unwrap();
        let [Fact::Attempt(attempt), Fact::Dispatch(dispatch)] = &facts[..] else { panic!() };
        assert_eq!(attempt.state, JobState::Completed(Conclusion::Success));
        assert_eq!(attempt.received_at.to_string(), "2026-08-01T10:10:00.25Z");
        assert_eq!(attempt.execution_seconds, Some(600.25));
        assert_eq!(attempt.dispatched_at.to_string(), "2026-08-01T09:58:59.5Z");
        assert_eq!((attempt.pull_request, attempt.details.tests.unwrap().total), (Some(7), 10));
        assert_eq!(dispatch.enqueued_at, attempt.dispatched_at);
        assert_eq!(row(&line(|_| {})).unwrap(), facts, "the same row is the same facts");
    }

    #[test]
    fn a_row_whose_start_never_arrived_is_not_of_1970() {
        let facts = row(&line(|row| row["started_at"] = json!("1970-01-01 00:00:00"))).unwrap();
        let Fact::Attempt(attempt) = &facts[0] else { panic!() };
        assert!(attempt.start_unknown && attempt.details.started_at.is_none());
        assert!(attempt.dispatched_at.to_string().starts_with("2026-08-01"));
    }

    #[test]
    fn a_nightly_row_has_no_dispatch() {
        let facts = row(&line(|row| {
            row["event_type"] = json!("nightly");
            row["delivery_id"] = json!("b".repeat(40));
            row["pr_number"] = json!(0);
        }))
        .unwrap();
        let [Fact::Attempt(attempt)] = &facts[..] else { panic!() };
        assert_eq!((attempt.event.as_str(), attempt.pull_request), ("nightly", None));
    }

    #[test]
    fn row_with_odd_details_is_imported_with_warnings() {
        for (change, warning) in [
            ("conclusion", "`workflow.conclusion`: received \"splendid\""),
            ("started_at", "`workflow.started_at` was dropped: received \"splendid\""),
            ("artifact_url", "`workflow.artifact_url` was dropped: received \"splendid\""),
        ] {
            let facts = row(&line(|row| row[change] = json!("splendid"))).unwrap();
            let Fact::Attempt(attempt) = &facts[0] else { panic!() };
            assert!(
                attempt.details.warnings[0].starts_with(warning),
                "{:?}",
                attempt.details.warnings
            );
        }
        let bare = row(&line(|row| {
            row["check_run_id"] = json!("");
            row["run_id"] = json!("");
            row["job_name"] = json!("");
            row["downstream_repo_level"] = json!("");
            row["conclusion"] = json!("SUCCESS");
        }));
        let Fact::Attempt(attempt) = &bare.unwrap()[0] else { panic!() };
        assert_eq!(attempt.state, JobState::Completed(Conclusion::Success));
        assert_eq!((&attempt.details.check_run_id, attempt.level), (&None, Level::L2));
        assert_eq!((&*attempt.workflow, &attempt.job), ("ci", &None));
    }

    #[test]
    fn row_has_its_failing_tests_and_its_verdict_and_an_unreadable_one_costs_only_itself() {
        let details = |name: &str, value: Value| {
            let facts = row(&line(|row| row[name] = value)).unwrap();
            let Fact::Attempt(attempt) = &facts[0] else { panic!() };
            attempt.details.clone()
        };
        let verdict = json!({
            "schema_version": 1, "category": "flake", "confidence": "low", "summary": "again",
        });
        assert!(details("triage_verdict_json", json!(verdict.to_string())).triage.is_some());
        let tests = details("failed_tests_json", json!(r#"[{"name": "a"}]"#)).failed_tests;
        assert_eq!(tests[0].name, "a");
        for name in ["failed_tests_json", "triage_verdict_json"] {
            assert_eq!(details(name, json!("[{")).warnings.len(), 1, "{name}");
            assert_eq!(details(name, json!("")).warnings, Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn what_can_not_be_read_says_why() {
        type Change = fn(&mut Value);
        let table: [(&str, Change); 4] = [
            ("repository", |row| row["downstream_repo"] = json!("no repository")),
            ("level", |row| row["downstream_repo_level"] = json!("L9")),
            ("report", |row| row["status"] = json!("splendid")),
            ("time", |row| {
                row["started_at"] = Value::Null;
                row["completed_at"] = Value::Null;
            }),
        ];
        for (code, change) in table {
            assert_eq!(row(&line(change)).unwrap_err().code, code);
        }
        assert_eq!(row(b"[]").unwrap_err().code, "no-json");
        assert_eq!(row(b"{").unwrap_err().code, "no-json");
    }
}
