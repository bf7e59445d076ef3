//! What the text of a workflow says about its triggers, reports and tokens.

use serde_yaml::Value;

/// Suffixes of the paths of actions that report to the relay.
const REPORTING_ACTIONS: [&str; 2] = ["/report-ci-result", "/cross-repo-ci-relay-callback"];

/// What one or more workflows do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkflowUse {
    /// One starts on `repository_dispatch`.
    pub receives: bool,
    /// One has a step that reports.
    pub reports: bool,
    /// One has a job that checks out the dispatched code and may request OIDC tokens.
    pub exposes_token: bool,
    /// One calls a workflow or an action that isn't read here and may report.
    pub calls_others: bool,
}

impl WorkflowUse {
    /// A file that isn't YAML does nothing, as on GitHub.
    pub fn read(text: &str) -> Self {
        let Ok(workflow) = serde_yaml::from_str::<Value>(text) else { return Self::default() };
        let mut seen =
            Self { receives: starts_on(&workflow, "repository_dispatch"), ..Self::default() };
        let jobs = workflow.get("jobs").and_then(Value::as_mapping);
        for job in jobs.into_iter().flat_map(|jobs| jobs.values()) {
            // A job's own permissions replace those of the workflow.
            let permissions = job.get("permissions").or_else(|| workflow.get("permissions"));
            let has_token = permissions.is_some_and(grants_id_token);
            if let Some(called) = job.get("uses").and_then(Value::as_str) {
                // Workflows of the same repository are read, too.
                seen.calls_others |= !called.starts_with("./");
            }
            let steps = job.get("steps").and_then(Value::as_sequence);
            for step in steps.into_iter().flatten() {
                let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
                let (action, run) = (text("uses"), text("run"));
                let path = action.split('@').next().unwrap_or_default();
                seen.reports |= REPORTING_ACTIONS.iter().any(|end| path.ends_with(end));
                seen.reports |= run.contains("crcr report");
                seen.calls_others |= path.starts_with("./");
                let repository = step.get("with").and_then(|with| with.get("repository"));
                let dispatched = repository
                    .and_then(Value::as_str)
                    .is_some_and(|repository| repository.contains("client_payload"));
                seen.exposes_token |= has_token && (path.ends_with("/checkout-pr") || dispatched);
            }
        }
        seen
    }

    pub fn union(self, other: Self) -> Self {
        Self {
            receives: self.receives | other.receives,
            reports: self.reports | other.reports,
            exposes_token: self.exposes_token | other.exposes_token,
            calls_others: self.calls_others | other.calls_others,
        }
    }
}

fn grants_id_token(permissions: &Value) -> bool {
    let token = permissions.get("id-token").and_then(Value::as_str);
    token == Some("write") || permissions.as_str() == Some("write-all")
}

/// What `on:` holds.
pub fn triggers(workflow: &Value) -> Option<&Value> {
    // YAML 1.1 reads the key `on` as a boolean.
    workflow.get("on").or_else(|| workflow.get(Value::Bool(true)))
}

pub fn starts_on(workflow: &Value, event: &str) -> bool {
    match triggers(workflow) {
        Some(Value::String(one)) => one == event,
        Some(Value::Sequence(events)) => events.iter().any(|one| one == event),
        Some(Value::Mapping(events)) => events.contains_key(event),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatches_reports_and_calls_are_recognised() {
        let read = |text: &str| {
            let seen = WorkflowUse::read(text);
            (seen.receives, seen.reports, seen.calls_others)
        };
        assert_eq!(read("on: repository_dispatch"), (true, false, false));
        assert_eq!(read("on: [push, repository_dispatch]"), (true, false, false));
        assert_eq!(read("on:\n  repository_dispatch:\n    types: [push]\n"), (true, false, false));
        assert_eq!(read("on: push # repository_dispatch"), (false, false, false));
        assert_eq!(read("on: {push: "), (false, false, false));
        let step = |step: &str| read(&format!("jobs: {{a: {{steps: [{{{step}}}]}}}}"));
        assert_eq!(step("uses: pytorch/crcr/actions/report-ci-result@v1"), (false, true, false));
        let callback = "uses: pytorch/test-infra/.github/actions/cross-repo-ci-relay-callback@main";
        assert_eq!(step(callback), (false, true, false));
        assert_eq!(step("run: crcr report --status completed"), (false, true, false));
        assert_eq!(step("uses: actions/checkout@v6"), (false, false, false));
        assert_eq!(step("uses: ./.github/actions/ci"), (false, false, true));
        assert_eq!(read("jobs: {a: {uses: x/y/.github/workflows/z.yml@v1}}"), (false, false, true));
        assert_eq!(read("jobs: {a: {uses: ./.github/workflows/z.yml}}"), (false, false, false));
    }

    #[test]
    fn job_with_upstream_code_and_id_token_permission_exposes_token() {
        let job = |permissions: &str, step: &str| {
            WorkflowUse::read(&format!(
                "on: repository_dispatch\n{permissions}\njobs: {{a: {{steps: [{{{step}}}]}}}}"
            ))
            .exposes_token
        };
        let ours = "uses: pytorch/crcr/actions/checkout-pr@v1";
        let theirs = "uses: actions/checkout@v6, with: {repository: '${{ github.event.\
                      client_payload.payload.repository.full_name }}'}";
        for code in [ours, theirs] {
            assert!(job("permissions: {id-token: write}", code));
            assert!(job("permissions: write-all", code));
            assert!(!job("permissions: {contents: read}", code));
            assert!(!job("", code), "jobs get no OIDC token by default");
        }
        assert!(!job("permissions: {id-token: write}", "uses: actions/checkout@v6"));
        let template = include_str!("../../../workflows-templates/downstream-ci.yml");
        let seen = WorkflowUse::read(template);
        assert!(seen.receives && seen.reports && !seen.exposes_token, "{seen:?}");
    }
}
