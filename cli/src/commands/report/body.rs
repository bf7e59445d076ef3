//! The body of the callback, schema version 1: the dispatched fields and the key `workflow`.

use std::borrow::Cow;

use crcr_domain::protocol::callback::{
    Callback, CallbackKind, SentWorkflow, TestCounts, limit_failed_tests,
};
use crcr_domain::protocol::dry_dispatch;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::junit::Tests;
use super::outcome_file::OutcomeFile;
use crate::cli::report::{ReportArgs, Status};
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::runner::Runner;

pub struct ReportBody {
    pub json: Vec<u8>,
    /// The job, for messages.
    pub job: String,
    /// The address in the dispatch.
    pub callback_url: Option<String>,
    /// The state of the job, for messages.
    pub state: String,
    /// Whether `crcr doctor` sent the dispatch.
    pub is_dry: bool,
}

/// The run and the job, on GitHub Actions or Buildkite.
struct ReportedJob<'a> {
    workflow: &'a str,
    url: String,
    run_id: &'a str,
    attempt: u64,
    name: Cow<'a, str>,
}

/// Fails for a body that the relay would refuse.
pub fn build(
    args: &ReportArgs,
    outcome_file: &OutcomeFile,
    runner: &Runner,
    mut tests: Option<Tests>,
    printer: &Printer,
    now: Timestamp,
) -> Result<ReportBody, Failure> {
    let given = args.test_results.as_deref().map(counts).transpose()?;
    let phase = args.phase.as_deref().or(outcome_file.phase.as_deref());
    if let Some(tests) = &mut tests {
        let other = other_failure(args, phase, given.as_ref(), &tests.counts);
        tests.quarantined.not_all.extend(other);
    }
    let conclusion = conclusion(args, outcome_file, tests.as_ref(), printer)?;
    let mut echo = dispatched(args, runner)?;
    let callback_url = echo.get("callback_url").and_then(Value::as_str).map(str::to_owned);
    let job = ReportedJob::find(args, runner.env())?;
    let (counted, mut failed_tests) =
        tests.map_or((None, vec![]), |tests| (Some(tests.counts), tests.failed));
    limit_failed_tests(&mut failed_tests);
    let time = now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    // A nightly or periodic run is reported only at its end, so both times are the same.
    let (started, ended) = match args.status {
        Status::InProgress => (Some(time), None),
        Status::Completed if is_own(args) => (Some(time.clone()), Some(time)),
        Status::Completed => (None, Some(time)),
    };
    let check_run_id = own_check_run(&job, runner.env());
    let workflow = SentWorkflow {
        schema_version: "1",
        status: args.status.word(),
        conclusion,
        name: job.workflow,
        url: job.url,
        run_id: job.run_id,
        run_attempt: job.attempt.to_string(),
        job_name: &job.name,
        check_run_id: check_run_id.unwrap_or_else(|| format!("{}-{}", job.run_id, job.attempt)),
        started_at: started,
        completed_at: ended,
        test_results: given.or(counted),
        failed_tests,
        failed_tests_detail: args.failed_tests_detail.as_deref(),
        triage_verdict: args.triage_verdict.as_deref(),
        artifact_url: args.artifact_url.as_deref(),
        phase,
        environment: args.environment.as_deref(),
        run_ended: runner.env().is_true(env_vars::CRCR_RUN_ENDED)
            && args.status == Status::Completed,
    };
    echo.insert("workflow".to_owned(), json!(workflow));
    let report = check(&echo, printer)?;
    // What was read replaces what was given, which could be larger than a relay accepts.
    let fields = &mut echo["workflow"];
    for (name, value) in [
        ("failed_tests_detail", json!(report.details.failed_tests)),
        ("triage_verdict", json!(report.details.triage)),
    ] {
        if fields.get(name).is_some() {
            fields[name] = value;
        }
    }
    let json = Value::Object(echo).to_string().into_bytes();
    let conclusion = conclusion.map_or(String::new(), |conclusion| format!(" ({conclusion})"));
    Ok(ReportBody {
        json,
        job: job.name.into_owned(),
        callback_url,
        is_dry: report.kind == CallbackKind::Dispatch && dry_dispatch::is_dry(&report.delivery),
        state: format!("{}{conclusion}", args.status.word()),
    })
}

fn conclusion(
    args: &ReportArgs,
    outcome_file: &OutcomeFile,
    tests: Option<&Tests>,
    printer: &Printer,
) -> Result<Option<&'static str>, Failure> {
    match (args.status, args.conclusion) {
        (Status::InProgress, _) => Ok(None),
        (Status::Completed, Some(conclusion)) => {
            let of_job = outcome_file.conclusion(conclusion);
            let of_tests = tests.map(|tests| tests.conclusion(of_job, printer));
            Ok(Some(of_tests.unwrap_or(of_job).as_str()))
        }
        (Status::Completed, None) => {
            Err(Failure::user("no-conclusion", "a completed job needs a conclusion")
                .hint("set the input `conclusion` to `${{ job.status }}`"))
        }
    }
}

/// Reads a body by the relay's own rules, so that what it would refuse is explained by the name of the input.
fn check(body: &Map<String, Value>, printer: &Printer) -> Result<Callback, Failure> {
    let json = json!(body).to_string();
    let report = crcr_domain::protocol::callback::read(json.as_bytes()).map_err(|error| {
        Failure::user("report", "this report isn't what a relay takes").because(error).hint(
            "correct what the field is made from: the input of that name, or the workflow's own \
             `name`",
        )
    })?;
    for warning in &report.details.warnings {
        printer.warning(warning, Some("the rest of the report is sent"));
    }
    Ok(report)
}

/// What went wrong besides the failed tests of the JUnit reports.
fn other_failure(
    args: &ReportArgs,
    phase: Option<&str>,
    given: Option<&TestCounts>,
    counted: &TestCounts,
) -> Option<String> {
    let details = args.failed_tests_detail.as_deref().map(str::trim);
    match phase {
        Some(phase) if !phase.eq_ignore_ascii_case("test") => {
            Some(format!("the job failed in the phase `{phase}`"))
        }
        _ if details.is_some_and(|details| details != "[]") => {
            Some("`failed-tests-detail` names more".to_owned())
        }
        _ if given.is_some_and(|given| given.failed > counted.failed) => {
            Some("`test-results` counts more".to_owned())
        }
        _ => None,
    }
}

/// The check run of this job, unless the report is about another job: all reports about a job must name
/// the same check run, whichever job sends them.
fn own_check_run(job: &ReportedJob<'_>, env: &Env) -> Option<String> {
    let key = env.get(env_vars::GITHUB_JOB).unwrap_or_default();
    let own = job.name.starts_with(key);
    env.get(env_vars::CRCR_CHECK_RUN_ID).filter(|_| own).map(str::to_owned)
}

fn is_own(args: &ReportArgs) -> bool {
    matches!(args.event_type.as_deref(), Some("nightly" | "periodic"))
}

/// What the relay dispatched, or what the flags say in its place.
fn dispatched(args: &ReportArgs, runner: &Runner) -> Result<Map<String, Value>, Failure> {
    let payload = match runner.env().get(env_vars::CRCR_CLIENT_PAYLOAD) {
        Some(text) => Some(serde_json::from_str(text).map_err(|error| {
            Failure::user("client-payload", "`CRCR_CLIENT_PAYLOAD` isn't JSON").because(error)
        })?),
        None => runner.event()?.client_payload,
    };
    let payload = payload.and_then(|payload| match payload {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    let (Some(delivery), Some(event)) = (&args.delivery_id, &args.event_type) else {
        return payload.filter(|fields| fields.contains_key("delivery_id")).ok_or_else(|| {
            Failure::user("no-delivery", "nothing says which delivery this run answers").hint(
                "run on `repository_dispatch`, whose payload the relay made; or, for a run of \
                 your own, set `event-type: nightly` (or `periodic`) and `delivery-id` to the \
                 upstream commit",
            )
        });
    };
    // Flags that name the dispatch itself keep its other fields, such as the proof for the relay.
    if let Some(payload) =
        payload.filter(|fields| fields.get("delivery_id") == Some(&json!(delivery)))
    {
        return Ok(payload);
    }
    let mut upstream = json!({ "repository": { "full_name": args.upstream_repository } });
    if is_own(args) {
        upstream["head_sha"] = json!(delivery);
    }
    let fields = json!({ "event_type": event, "delivery_id": delivery, "payload": upstream });
    match fields {
        Value::Object(fields) => Ok(fields),
        _ => unreachable!("an object was just written"),
    }
}

fn counts(text: &str) -> Result<TestCounts, Failure> {
    #[derive(serde::Deserialize)]
    struct Given {
        #[serde(default)]
        passed: u64,
        #[serde(default)]
        failed: u64,
        #[serde(default)]
        skipped: u64,
        total: Option<u64>,
    }
    let Given { passed, failed, skipped, total } = serde_json::from_str(text).map_err(|error| {
        Failure::user("test-results", "`test-results` isn't what it should be")
            .because(error)
            .hint(r#"it looks like `{"passed": 10, "failed": 0, "skipped": 2}`"#)
    })?;
    let sum = passed.saturating_add(failed).saturating_add(skipped);
    Ok(TestCounts { passed, failed, skipped, total: total.unwrap_or(sum) })
}

impl<'a> ReportedJob<'a> {
    fn find(args: &'a ReportArgs, env: &'a Env) -> Result<Self, Failure> {
        let missing = |name: &str| {
            Failure::unexpected("no-run", format!("`{name}` isn't set"))
                .hint("this command runs in a job of GitHub Actions or Buildkite, which set it")
        };
        let need = |name: &'static str| env.get(name).ok_or_else(|| missing(name));
        let attempt = |name: &str| env.get(name).and_then(|text| text.parse::<u64>().ok());
        if env.is_true(env_vars::BUILDKITE) && env.get(env_vars::GITHUB_RUN_ID).is_none() {
            let label = env.get(env_vars::BUILDKITE_LABEL);
            let name = args.job_name.as_deref().or(label);
            let name = name.map_or_else(|| need(env_vars::BUILDKITE_STEP_KEY), Ok)?;
            let name = match env.get(env_vars::BUILDKITE_PARALLEL_JOB) {
                Some(index) => Cow::Owned(format!("{name} #{index}")),
                None => Cow::Borrowed(name),
            };
            return Ok(Self {
                workflow: need(env_vars::BUILDKITE_PIPELINE_SLUG)?,
                url: env.get(env_vars::BUILDKITE_BUILD_URL).unwrap_or_default().to_owned(),
                run_id: need(env_vars::BUILDKITE_BUILD_ID)?,
                attempt: attempt(env_vars::BUILDKITE_RETRY_COUNT).unwrap_or(0) + 1,
                name,
            });
        }
        let run_id = need(env_vars::GITHUB_RUN_ID)?;
        let server = env.get(env_vars::GITHUB_SERVER_URL).unwrap_or("https://github.com");
        let repository = need(env_vars::GITHUB_REPOSITORY)?;
        // The relay takes https only; elsewhere (a stand-in on this machine) there is no page.
        let url = if server.starts_with("https://") {
            format!("{server}/{repository}/actions/runs/{run_id}")
        } else {
            String::new()
        };
        Ok(Self {
            workflow: need(env_vars::GITHUB_WORKFLOW)?,
            url,
            run_id,
            attempt: attempt(env_vars::GITHUB_RUN_ATTEMPT).unwrap_or(1),
            name: Cow::Borrowed(match args.job_name.as_deref() {
                Some(name) => name,
                None => need(env_vars::GITHUB_JOB)?,
            }),
        })
    }
}
