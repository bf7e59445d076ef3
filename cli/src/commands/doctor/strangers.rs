//! What the workflows of a repository let strangers' code reach, as results of checks.

use crcr_github::artifact::is_enterprise_server;

use super::report::CheckResult;
use crate::commands::stranger_code::{Exposure, WorkflowJudgement};
use crate::env_vars::{self, Env};

/// One result for each way, also for those that are closed.
pub fn every_result(judged: &WorkflowJudgement, env: &Env) -> Vec<CheckResult> {
    let result = |exposure: Exposure| {
        found(exposure, judged, env).unwrap_or_else(|| match unknown(judged) {
            Some(unknown) => CheckResult::not_checked(exposure.as_str(), unknown),
            None => CheckResult::ok(exposure.as_str(), exposure.held()),
        })
    };
    Exposure::ALL.into_iter().map(result).collect()
}

/// One result for each way that is open.
pub fn open_ways(judged: &WorkflowJudgement, env: &Env) -> Vec<CheckResult> {
    Exposure::ALL.into_iter().filter_map(|exposure| found(exposure, judged, env)).collect()
}

/// What isn't understood, as a sentence.
pub fn unknown(judged: &WorkflowJudgement) -> Option<String> {
    (!judged.unknown.is_empty()).then(|| format!("not understood: {}", listed(&judged.unknown)))
}

fn found(exposure: Exposure, judged: &WorkflowJudgement, env: &Env) -> Option<CheckResult> {
    let server = env.get(env_vars::GITHUB_SERVER_URL).unwrap_or("https://github.com");
    let (check, jobs) = (exposure.as_str(), judged.found.iter().filter(|(of, _)| *of == exposure));
    let jobs: Vec<_> = jobs.map(|(_, job)| job.clone()).collect();
    if jobs.is_empty() {
        return None;
    }
    let message = format!("{}: {}", exposure.finding(), listed(&jobs));
    Some(if exposure == Exposure::Cache && is_enterprise_server(server) {
        CheckResult::not_checked(check, "GitHub Enterprise Server has no `cache-mode`")
    } else if exposure.is_warning() {
        CheckResult::warning(check, message, exposure.fix())
    } else {
        CheckResult::error(check, message, exposure.fix())
    })
}

/// At most ten names.
pub fn listed(names: &[String]) -> String {
    let shown = names.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        ..=10 => shown,
        n => format!("{shown} and {} more", n - 10),
    }
}
