//! What the text of a workflow says about its triggers, reports and tokens.

use std::collections::{BTreeMap, BTreeSet};

use crcr_domain::RepoName;
use serde_yaml::Value;

use super::git::is_commit;

/// Suffixes of the paths of actions that report to the relay.
const REPORTING_ACTIONS: [&str; 2] = ["/report-ci-result", "/cross-repo-ci-relay-callback"];

/// What one or more workflows do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkflowUse {
    /// One starts on `repository_dispatch`.
    pub receives: bool,
    /// One has a step that reports.
    pub reports: bool,
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
            if let Some(called) = job.get("uses").and_then(Value::as_str) {
                // Workflows of the same repository are read, too.
                seen.calls_others |= own_path(called).is_none();
            }
            for step in steps(job) {
                let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
                let path = text("uses").split('@').next().unwrap_or_default();
                seen.reports |= reports(step);
                seen.calls_others |= own_path(path).is_some();
            }
        }
        seen
    }

    pub fn union(self, other: Self) -> Self {
        Self {
            receives: self.receives | other.receives,
            reports: self.reports | other.reports,
            calls_others: self.calls_others | other.calls_others,
        }
    }
}

pub fn grants_id_token(permissions: &Value) -> bool {
    let token = permissions.get("id-token").and_then(Value::as_str);
    token == Some("write") || permissions.as_str() == Some("write-all")
}

/// A workflow that the relay may start, as `crcr doctor downstream` judges it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DispatchWorkflow {
    /// The event types that it listens for; `None` for all.
    pub types: Option<Vec<String>>,
    /// Actions and workflows that aren't pinned by commit.
    pub unpinned: Vec<String>,
    /// Jobs that report and may request no OIDC token.
    pub reports_without_token: Vec<String>,
    /// Whether `run-name` holds the delivery, so that a run shows which dispatch started it.
    pub names_delivery: bool,
}

impl DispatchWorkflow {
    /// `None` for a workflow that doesn't start on `repository_dispatch`.
    pub fn read(text: &str) -> Option<Self> {
        let workflow: Value = serde_yaml::from_str(text).ok()?;
        if !starts_on(&workflow, "repository_dispatch") {
            return None;
        }
        let event = triggers(&workflow).and_then(|events| events.get("repository_dispatch"));
        let types = match event.and_then(|event| event.get("types")) {
            Some(Value::String(one)) => Some(vec![one.clone()]),
            Some(Value::Sequence(all)) => {
                Some(all.iter().filter_map(|one| Some(one.as_str()?.to_owned())).collect())
            }
            _ => None,
        };
        let run_name = workflow.get("run-name").and_then(Value::as_str).unwrap_or_default();
        let names_delivery = run_name.contains("client_payload.delivery_id");
        let mut found = Self { types, names_delivery, ..Self::default() };
        let jobs = workflow.get("jobs").and_then(Value::as_mapping);
        for (name, job) in jobs.into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            let permissions = job.get("permissions").or_else(|| workflow.get("permissions"));
            let has_token = permissions.is_some_and(grants_id_token);
            let steps = steps(job);
            let uses = steps.iter().copied().chain([job]).filter_map(|it| it.get("uses")?.as_str());
            found.unpinned.extend(uses.filter(|uses| !is_pinned(uses)).map(str::to_owned));
            if steps.iter().any(|step| reports(step)) && !has_token {
                found.reports_without_token.push(name.to_owned());
            }
        }
        found.unpinned.sort();
        found.unpinned.dedup();
        Some(found)
    }
}

/// What a workflow that a schedule starts has to do with upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScheduledWorkflow {
    /// It reports to the relay, or checks out upstream code.
    pub is_nightly: bool,
    /// It calls a workflow or an action that isn't read here and may do so.
    pub calls_others: bool,
}

impl ScheduledWorkflow {
    /// `None` for a workflow that no schedule starts. `called` reads a workflow of the same repository.
    pub fn read(
        text: &str,
        upstream: &str,
        called: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let workflow: Value = serde_yaml::from_str(text).ok()?;
        if !starts_on(&workflow, "schedule") {
            return None;
        }
        let mut found = Self::default();
        found.add(&workflow, upstream);
        for path in local_calls(&workflow) {
            match called(path).and_then(|text| serde_yaml::from_str(&text).ok()) {
                Some(workflow) => found.add(&workflow, upstream),
                None => found.calls_others = true,
            }
        }
        Some(found)
    }

    fn add(&mut self, workflow: &Value, upstream: &str) {
        for job in jobs(workflow) {
            let called = job.get("uses").and_then(Value::as_str);
            self.calls_others |= called.is_some_and(|called| own_path(called).is_none());
            for step in steps(job) {
                let uses = step.get("uses").and_then(Value::as_str).unwrap_or_default();
                let path = uses.split('@').next().unwrap_or_default();
                let repository = step.get("with").and_then(|with| with.get("repository"));
                let is_upstream = repository
                    .and_then(Value::as_str)
                    .is_some_and(|repository| repository.eq_ignore_ascii_case(upstream));
                self.is_nightly |= reports(step) || is_upstream || path.ends_with("/checkout-pr");
                self.calls_others |= own_path(path).is_some();
            }
        }
    }
}

/// The workflows of the same repository that `workflow` calls, as paths.
fn local_calls(workflow: &Value) -> impl Iterator<Item = &str> {
    jobs(workflow).filter_map(|job| own_path(job.get("uses")?.as_str()?))
}

fn jobs(workflow: &Value) -> impl Iterator<Item = &Value> {
    let jobs = workflow.get("jobs").and_then(Value::as_mapping);
    jobs.into_iter().flat_map(|jobs| jobs.values())
}

/// The steps of a job or of a composite action, with those that run beside each other (`parallel`).
pub fn steps(job: &Value) -> Vec<&Value> {
    let mut found = vec![];
    for step in job.get("steps").and_then(Value::as_sequence).into_iter().flatten() {
        match step.get("parallel").and_then(Value::as_sequence) {
            Some(beside) => found.extend(beside),
            None => found.push(step),
        }
    }
    found
}

/// The path of an action or workflow of the same repository: `./` from the workspace, or `$/` from the commit of the
/// workflow.
///
/// <https://github.blog/changelog/2026-07-30-reference-same-repository-actions-with-self-repository-syntax/>
pub fn own_path(uses: &str) -> Option<&str> {
    uses.strip_prefix("./").or_else(|| uses.strip_prefix("$/"))
}

/// What a workflow uses, and the runner labels of each job, as it writes them.
pub fn pins(text: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let (mut uses, mut runs_on) = (BTreeSet::new(), BTreeMap::new());
    let Ok(workflow) = serde_yaml::from_str::<Value>(text) else { return (uses, runs_on) };
    let jobs = workflow.get("jobs").and_then(Value::as_mapping);
    for (name, job) in jobs.into_iter().flatten() {
        let used = steps(job).into_iter().chain([job]).filter_map(|it| it.get("uses")?.as_str());
        uses.extend(used.map(str::to_owned));
        let image = job.get("container").map(|container| match container.get("image") {
            Some(image) => image,
            None => container,
        });
        let labels = job.get("runs-on").into_iter().chain(image);
        let mut labels: Vec<_> = labels.map(one_line).collect();
        // The same name may be another image by now.
        if let Some(image) = image
            && let Some(last) = labels.last_mut()
            && !one_line(image).contains("@sha256:")
        {
            last.push_str(" (an image without a digest)");
        }
        if let (Some(name), false) = (name.as_str(), labels.is_empty()) {
            runs_on.insert(name.to_owned(), labels.join(", in "));
        }
    }
    (uses, runs_on)
}

fn one_line(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        None => serde_json::to_string(value).unwrap_or_default(),
    }
}

/// Files of the same repository are at the same commit; images are pinned by digest.
fn is_pinned(uses: &str) -> bool {
    if own_path(uses).is_some() {
        return true;
    }
    if let Some(image) = uses.strip_prefix("docker://") {
        return image.contains("@sha256:");
    }
    uses.rsplit_once('@').is_some_and(|(_, reference)| is_commit(reference))
}

/// The repository and the tag or branch of an action or workflow that isn't pinned by commit.
pub fn unpinned_action(uses: &str) -> Option<(String, &str)> {
    if is_pinned(uses) || uses.starts_with("docker://") {
        return None;
    }
    let (path, reference) = uses.rsplit_once('@')?;
    let mut parts = path.split('/');
    let repository = format!("{}/{}", parts.next()?, parts.next()?);
    Some((RepoName::new(&repository).ok()?.to_string(), reference))
}

pub fn reports(step: &Value) -> bool {
    let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
    let path = text("uses").split('@').next().unwrap_or_default();
    REPORTING_ACTIONS.iter().any(|end| path.ends_with(end)) || text("run").contains("crcr report")
}

pub fn triggers(workflow: &Value) -> Option<&Value> {
    // YAML 1.1 reads the key `on` as a boolean.
    workflow.get("on").or_else(|| workflow.get(Value::Bool(true)))
}

pub fn starts_on(workflow: &Value, event: &str) -> bool {
    events_of(workflow).iter().any(|one| one == event)
}

/// The names of the events that start a workflow.
pub fn events_of(workflow: &Value) -> Vec<String> {
    let name = |event: &Value| event.as_str().map(str::to_owned);
    match triggers(workflow) {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Sequence(events)) => events.iter().filter_map(name).collect(),
        Some(Value::Mapping(events)) => events.keys().filter_map(name).collect(),
        _ => vec![],
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
        assert_eq!(read("jobs: {a: {uses: $/.github/workflows/z.yml}}"), (false, false, false));
        assert_eq!(step("uses: $/.github/actions/ci"), (false, false, true));
        let beside = "jobs: {a: {steps: [{parallel: [{run: make}, {run: crcr report}]}]}}";
        assert_eq!(read(beside), (false, true, false));
    }

    #[test]
    fn scheduled_workflow_is_a_nightly_if_it_reports_or_checks_out_upstream() {
        let called = |path: &str| {
            (path == "tests.yml").then(|| "jobs: {a: {steps: [{run: crcr report}]}}".to_owned())
        };
        let read = |job: &str| {
            let text = format!("on: {{schedule: []}}\njobs: {{a: {job}}}");
            let found = ScheduledWorkflow::read(&text, "acme/upstream", called).unwrap();
            (found.is_nightly, found.calls_others)
        };
        assert_eq!(ScheduledWorkflow::read("on: push", "acme/upstream", called), None);
        assert_eq!(read("{steps: [{uses: actions/stale@v10}]}"), (false, false));
        assert_eq!(read("{steps: [{uses: actions/checkout@v6}]}"), (false, false));
        let upstream = "{steps: [{uses: actions/checkout@v6, with: {repository: Acme/Upstream}}]}";
        assert_eq!(read(upstream), (true, false));
        assert_eq!(read("{steps: [{uses: pytorch/crcr/actions/checkout-pr@v1}]}"), (true, false));
        assert_eq!(read("{steps: [{run: crcr report --status completed}]}"), (true, false));
        assert_eq!(read("{uses: ./tests.yml}"), (true, false));
        assert_eq!(read("{uses: $/tests.yml}"), (true, false));
        assert_eq!(read("{uses: ./gone.yml}"), (false, true));
        assert_eq!(read("{uses: x/y/.github/workflows/z.yml@v1}"), (false, true));
        assert_eq!(read("{steps: [{uses: ./.github/actions/ci}]}"), (false, true));
    }

    #[test]
    fn types_pins_and_tokens_of_a_dispatched_workflow_are_found() {
        assert_eq!(DispatchWorkflow::read("on: push\njobs: {}"), None);
        let read = |on: &str, job: &str| {
            DispatchWorkflow::read(&format!("on: {on}\njobs: {{a: {job}}}")).unwrap()
        };
        let all = "repository_dispatch";
        assert_eq!(read(all, "{}").types, None);
        let one = "{repository_dispatch: {types: push}}";
        assert_eq!(read(one, "{}").types.unwrap(), ["push"]);
        let sha = "0123456789abcdef0123456789abcdef01234567";
        let job = format!(
            "{{steps: [{{parallel: [{{uses: a/b@v1}}]}}, {{uses: c/d@{sha}}}, {{uses: ./e}}, {{uses: $/e}}, {{uses: \
             'docker://f:1'}}, {{uses: x/crcr/actions/report-ci-result@{sha}}}, {{uses: a/b@v1}}]}}"
        );
        let found = read(all, &job);
        assert_eq!(found.unpinned, ["a/b@v1", "docker://f:1"]);
        assert_eq!(found.reports_without_token, ["a"]);
        let allowed = read(all, &job.replacen("{", "{permissions: {id-token: write}, ", 1));
        assert_eq!(allowed.reports_without_token, [""; 0]);
        let called = read(all, "{uses: x/y/.github/workflows/z.yml@main}");
        assert_eq!(called.unpinned, ["x/y/.github/workflows/z.yml@main"]);
    }

    #[test]
    fn unpinned_actions_have_a_repository_and_a_reference() {
        let found =
            |uses| unpinned_action(uses).map(|(repository, at)| format!("{repository} {at}"));
        assert_eq!(found("actions/checkout@v6").unwrap(), "actions/checkout v6");
        assert_eq!(found("a/b/.github/workflows/c.yml@x/y").unwrap(), "a/b x/y");
        let pinned = "actions/checkout@0123456789abcdef0123456789abcdef01234567";
        for other in
            [pinned, "./local", "$/local", "docker://alpine:3", "actions@v1", "a/b", "../..@v1"]
        {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
