//! The meaning of a relay's response, for this relay and for the one that is deployed today.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::failure::Failure;

#[derive(Debug)]
pub enum ReportOutcome {
    Recorded,
    /// An earlier try had arrived, and its response was lost.
    Duplicate,
    /// The relay recorded an earlier try but failed to save it, and refuses it now.
    Unsaved,
    /// A later state of the job arrived first.
    Stale,
    /// The repository's level is too low.
    Ignored,
    /// The relay proved that the run is of a dry dispatch, and recorded nothing.
    DryDispatch,
    Retry(RetryableFailure),
    Refused(Failure),
}

/// A failure after which a retry may help.
#[derive(Debug)]
pub struct RetryableFailure {
    pub after: Option<Duration>,
    /// The error if no retry helps.
    pub end: Failure,
    pub cause: Cause,
    /// What this try may have changed at the relay.
    pub leaves: EarlierTry,
}

/// Why a try failed, which decides how long it is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The relay, GitHub or something in between failed.
    Outage,
    /// With [`RetryableFailure::after`], the relay has named a time at which it takes the report.
    RateLimit,
    Refusal,
}

/// What earlier tries may have changed at the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EarlierTry {
    Nothing,
    /// There was no response, so the report may have been recorded.
    Silence,
    /// The relay failed, maybe after it recorded the report.
    Failed,
}

impl RetryableFailure {
    pub fn unreachable(end: Failure, leaves: EarlierTry) -> Self {
        Self { after: None, end, cause: Cause::Outage, leaves }
    }
}

/// Interprets a response. For a redirect, `body` is its address. `earlier` is what earlier tries may have
/// changed at the relay.
pub fn read(
    status: u16,
    body: &[u8],
    after: Option<Duration>,
    earlier: EarlierTry,
) -> ReportOutcome {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        detail: Value,
        #[serde(default)]
        ok: bool,
        #[serde(default)]
        duplicate: bool,
        #[serde(default)]
        stale: bool,
        #[serde(default)]
        dry_dispatch: bool,
        #[serde(default)]
        status: Value,
    }
    let answer: Option<Answer> = serde_json::from_slice(body).ok();
    if status == 200
        && let Some(answer) = answer.as_ref().filter(|answer| answer.ok)
    {
        return match answer.status.as_str() {
            _ if answer.dry_dispatch => ReportOutcome::DryDispatch,
            Some("ignored") => ReportOutcome::Ignored,
            _ if answer.duplicate => ReportOutcome::Duplicate,
            _ if answer.stale => ReportOutcome::Stale,
            _ => ReportOutcome::Recorded,
        };
    }
    let is_json = answer.is_some();
    let detail = answer.map(|answer| answer.detail).unwrap_or_default();
    let detail = match &detail {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    match status {
        408 | 421 | 425 | 499 | 500.. => {
            ReportOutcome::Retry(RetryableFailure { after, ..failed(status, &detail) })
        }
        300..400 => ReportOutcome::Refused(moved(body)),
        429 if detail.is_empty() => ReportOutcome::Retry(throttled(status, after)),
        // Such as `{"message":"Forbidden"}` of API Gateway.
        403 | 413 if detail.is_empty() && is_json => ReportOutcome::Retry(throttled(status, after)),
        _ if detail.is_empty() => ReportOutcome::Refused(stranger(status)),
        _ => refused(status, &detail, after, earlier),
    }
}

fn refusal(code: &'static str, status: u16, detail: &str) -> Failure {
    Failure::user(code, format!("the relay refused this report: {status} {detail}"))
}

fn refused(
    status: u16,
    detail: &str,
    after: Option<Duration>,
    earlier: EarlierTry,
) -> ReportOutcome {
    let says = |part: &str| detail.contains(part);
    let stop = |code, hint: &str| ReportOutcome::Refused(refusal(code, status, detail).hint(hint));
    let again = |code, hint: &str| {
        ReportOutcome::Retry(RetryableFailure {
            after,
            end: refusal(code, status, detail).hint(hint),
            cause: if status == 429 { Cause::RateLimit } else { Cause::Refusal },
            leaves: EarlierTry::Nothing,
        })
    };
    match status {
        400 if says("invalid state transition") => match earlier {
            EarlierTry::Silence => ReportOutcome::Duplicate,
            EarlierTry::Failed => ReportOutcome::Unsaved,
            EarlierTry::Nothing if says("has ended with another conclusion") => stop(
                "state-transition",
                "the first conclusion stays: report each job's end once, and give every job of a \
                 matrix its own `job-name`",
            ),
            EarlierTry::Nothing => stop(
                "state-transition",
                "each job of each attempt reports `in_progress` once and `completed` once after \
                 it: report the start too, and give every job of a matrix its own `job-name`",
            ),
        },
        400 if says("no matching dispatch record") => again(
            "no-dispatch",
            "the relay has no record that it dispatched this delivery to this repository; records \
             are kept for days, so start the workflow by a new event upstream",
        ),
        400 if says("nightly/periodic") => stop(
            "self-report",
            "a nightly or periodic run is reported once, with `status: completed`",
        ),
        400 => stop("callback-body", "correct the input that the relay names"),
        401 if says("Unsupported OIDC issuer") => stop(
            "issuer",
            "the relay trusts other CI systems than this one; its operators set which",
        ),
        401 if says("Missing authorization token") => stop(
            "token-lost",
            "something between here and the relay removed the `Authorization` header",
        ),
        401 if says("Invalid authorization token") => again(
            "token-refused",
            "the relay may expect another audience (input `audience`) or have older keys of the \
             issuer; run the job again, and tell its operators if it fails again",
        ),
        401 => stop("token-refused", "the token isn't what this relay takes from this report"),
        403 => stop(
            "not-registered",
            "ask the relay's operators to register this pipeline, or correct its entry",
        ),
        404 | 405 => stop("callback-url", "the callback URL ends with `/github/callback`"),
        413 => stop("too-large", "send fewer or shorter texts"),
        429 => again("rate-limit", "report less often: once when a job starts, once when it ends"),
        _ if says("HUD rejected callback") => {
            stop("hud", "the relay took the report and the HUD didn't; tell the relay's operators")
        }
        _ => stop("refused", "tell the relay's operators"),
    }
}

fn failed(status: u16, detail: &str) -> RetryableFailure {
    let detail = if detail.is_empty() { "without a reason" } else { detail };
    let end = Failure::unexpected("relay-failed", format!("the relay failed: {status} {detail}"))
        .hint("the result of this job isn't recorded; run the job again to report it");
    RetryableFailure::unreachable(end, EarlierTry::Failed)
}

/// Each relay says why it refuses. Without a reason, something before it did, such as AWS Lambda or API Gateway with more
/// requests than they take, and the relay knows nothing of this try.
fn throttled(status: u16, after: Option<Duration>) -> RetryableFailure {
    RetryableFailure { after, leaves: EarlierTry::Nothing, ..failed(status, "") }
}

fn moved(to: &[u8]) -> Failure {
    let to: String = String::from_utf8_lossy(to).chars().take(200).collect();
    Failure::user("callback-url", format!("the callback URL has moved to `{to}`")).hint(
        "set `callback-url` to the new address if it is the relay's; tokens follow no redirect",
    )
}

fn stranger(status: u16) -> Failure {
    Failure::user("callback-url", format!("something that isn't a relay answered with {status}"))
        .hint("the callback URL ends with `/github/callback`; a proxy may have answered instead")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, body: &str, earlier: EarlierTry) -> String {
        match read(status, body.as_bytes(), None, earlier) {
            ReportOutcome::Retry(again) => {
                let kind = if again.cause == Cause::Outage { "unreachable" } else { "refused" };
                format!("again, then {kind} [{}]", again.end.code())
            }
            ReportOutcome::Refused(failure) => {
                assert!(failure.help().is_some(), "a refusal says what to do");
                format!("refused [{}]", failure.code())
            }
            other => format!("{other:?}"),
        }
    }

    fn detail(text: &str) -> String {
        serde_json::json!({ "detail": text }).to_string()
    }

    #[test]
    fn successful_responses_of_both_relays_are_recognized() {
        for (body, meaning) in [
            (r#"{"ok":true,"status":"in_progress"}"#, "Recorded"),
            (r#"{"ok":true,"status":"completed"}"#, "Recorded"),
            (r#"{"ok":true,"status":"ignored"}"#, "Ignored"),
            (r#"{"ok":true,"status":"ignored","dry_dispatch":true}"#, "DryDispatch"),
            (r#"{"ok":true,"duplicate":true}"#, "Duplicate"),
            (r#"{"ok":true,"stale":true}"#, "Stale"),
            ("{}", "refused [callback-url]"),
        ] {
            assert_eq!(told(200, body, EarlierTry::Nothing), meaning, "{body}");
        }
    }

    #[test]
    fn refusals_of_both_relays_are_recognized() {
        let transition =
            "callback rejected: invalid state transition delivery_id=D repo=R status=S";
        let internal = "An internal failure occurred. Your update was not saved, retry later";
        for (status, text, meaning) in [
            (400, "Invalid JSON body", "refused [callback-body]"),
            (400, "callback body missing required field: 'workflow'", "refused [callback-body]"),
            (400, "unknown callback status: 'x'", "refused [callback-body]"),
            (
                400,
                "callback rejected: no matching dispatch record",
                "again, then refused [no-dispatch]",
            ),
            (400, transition, "refused [state-transition]"),
            (
                400,
                "nightly/periodic callbacks must have status 'completed', got 'in_progress'",
                "refused [self-report]",
            ),
            (401, "Missing authorization token", "refused [token-lost]"),
            (401, "Unsupported OIDC issuer: None", "refused [issuer]"),
            (401, "Invalid authorization token", "again, then refused [token-refused]"),
            (401, "GitHub OIDC token missing 'repository' claim", "refused [token-refused]"),
            (403, "Buildkite pipeline O/P is not registered with CRCR", "refused [not-registered]"),
            (404, "Not found", "refused [callback-url]"),
            (405, "Method not allowed", "refused [callback-url]"),
            (413, "body too large", "refused [too-large]"),
            (422, "HUD rejected callback: HTTP 422: no", "refused [hud]"),
            (429, "rate limit exceeded for a/b", "again, then refused [rate-limit]"),
            (500, internal, "again, then unreachable [relay-failed]"),
            (503, "redis temporary outage", "again, then unreachable [relay-failed]"),
        ] {
            assert_eq!(told(status, &detail(text), EarlierTry::Nothing), meaning, "{text}");
        }
        assert_eq!(
            told(502, "<html>", EarlierTry::Nothing),
            "again, then unreachable [relay-failed]"
        );
        for (status, meaning) in [
            (403, "refused [callback-url]"),
            (408, "again, then unreachable [relay-failed]"),
            (421, "again, then unreachable [relay-failed]"),
            (425, "again, then unreachable [relay-failed]"),
            (499, "again, then unreachable [relay-failed]"),
            (429, "again, then unreachable [relay-failed]"),
        ] {
            assert_eq!(told(status, "", EarlierTry::Nothing), meaning, "{status}");
        }
        for (status, body) in [
            (429, r#"{"Message":"Rate Exceeded."}"#),
            (429, "<html>"),
            (429, "slow down"),
            (403, r#"{"message":"Forbidden"}"#),
            (403, r#"{"status":403,"message":"Forbidden"}"#),
            (413, r#"{"message":"Request Too Long"}"#),
        ] {
            let unreachable = "again, then unreachable [relay-failed]";
            assert_eq!(told(status, body, EarlierTry::Nothing), unreachable, "{body}");
        }
        assert_eq!(told(307, "https://other/", EarlierTry::Nothing), "refused [callback-url]");
    }

    #[test]
    fn refused_transition_after_a_lost_response_counts_as_recorded() {
        let body = detail("callback rejected: invalid state transition delivery_id=D");
        assert_eq!(told(400, &body, EarlierTry::Silence), "Duplicate");
        assert_eq!(told(400, &body, EarlierTry::Failed), "Unsaved");
    }
}
