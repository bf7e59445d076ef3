//! What a workflow lets code reach that its repository doesn't control: upstream's pull requests, forks.
//!
//! A job that runs such code is lost as a whole: the code can change every later step of it, by environment
//! files, by git's configuration, or by processes that it leaves behind. So the job must have nothing to take,
//! and the jobs that have something must read what it left as data.

use serde_yaml::Value;

use super::workflow::{grants_id_token, reports, starts_on, steps};

/// What is wrong, in the order of the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exposure {
    Token,
    WritePermission,
    Secret,
    GitCredentials,
    Cache,
    RoleWithoutEnvironment,
    SharedRunner,
    ArtifactName,
    ArtifactPath,
    ArtifactToEnvironment,
    ArtifactInScript,
    OutputInScript,
    ReportedConclusion,
}

impl Exposure {
    pub const ALL: [Self; 13] = [
        Self::Token,
        Self::WritePermission,
        Self::Secret,
        Self::GitCredentials,
        Self::Cache,
        Self::RoleWithoutEnvironment,
        Self::SharedRunner,
        Self::ArtifactName,
        Self::ArtifactPath,
        Self::ArtifactToEnvironment,
        Self::ArtifactInScript,
        Self::OutputInScript,
        Self::ReportedConclusion,
    ];

    /// The stable code of the check.
    pub fn check(self) -> &'static str {
        match self {
            Self::Token => "token-exposed",
            Self::WritePermission => "write-permission",
            Self::Secret => "secret-exposed",
            Self::GitCredentials => "git-credentials",
            Self::Cache => "cache-mode",
            Self::RoleWithoutEnvironment => "role-environment",
            Self::SharedRunner => "shared-runner",
            Self::ArtifactName => "artifact-name",
            Self::ArtifactPath => "artifact-path",
            Self::ArtifactToEnvironment => "artifact-to-environment",
            Self::ArtifactInScript => "artifact-in-script",
            Self::OutputInScript => "output-in-script",
            Self::ReportedConclusion => "reported-conclusion",
        }
    }

    /// What holds where nothing was found.
    pub fn held(self) -> &'static str {
        match self {
            Self::Token => "no job with upstream code may request tokens",
            Self::WritePermission => "no job with upstream code has a token that writes",
            Self::Secret => "no job with upstream code gets a secret",
            Self::GitCredentials => "no checkout leaves a token beside upstream code",
            Self::Cache => "no job with upstream code can write the cache",
            Self::RoleWithoutEnvironment => "every cloud role is for a deployment environment",
            Self::SharedRunner => "no job with a token shares its runners with upstream code",
            Self::ArtifactName => "jobs with a token download artifacts by name",
            Self::ArtifactPath => "jobs with a token unpack artifacts into folders of their own",
            Self::ArtifactToEnvironment => "no artifact is written into the environment of a job",
            Self::ArtifactInScript => "no script beside a token prints or runs an artifact",
            Self::OutputInScript => "no script holds an output of a job with upstream code",
            Self::ReportedConclusion => "the reported conclusion is GitHub's",
        }
    }

    /// What was found, before the names of the jobs.
    pub fn found(self) -> &'static str {
        match self {
            Self::Token => {
                "a job checks out upstream code and has `id-token: write`, so any pull request can \
                 get tokens of this repository's default branch"
            }
            Self::WritePermission => {
                "a job with upstream code has a token that may write, by `permissions` or by the \
                 repository's default"
            }
            Self::Secret => "a job with upstream code gets a secret",
            Self::GitCredentials => {
                "a job with upstream code has a checkout that leaves its token in git's configuration"
            }
            Self::Cache => {
                "a job with upstream code can write the cache, which builds of the default branch \
                 restore"
            }
            Self::RoleWithoutEnvironment => {
                "a job gets a cloud role without a deployment environment, so the role has to trust \
                 the default branch, and upstream code runs as that branch"
            }
            Self::SharedRunner => {
                "a job with a token runs on the same self-hosted runners as upstream code, which may \
                 have left processes there that read the token"
            }
            Self::ArtifactName => {
                "a job with a token downloads artifacts without naming one, so upstream code chooses \
                 which"
            }
            Self::ArtifactPath => {
                "a job with a token unpacks an artifact of upstream code over its own files"
            }
            Self::ArtifactToEnvironment => {
                "a job with a token downloads an artifact and writes an environment file, such as \
                 `GITHUB_ENV` or `GITHUB_PATH`"
            }
            Self::ArtifactInScript => {
                "a script in a job with a token handles an artifact of upstream code: what it prints \
                 may be workflow commands or trip a problem matcher"
            }
            Self::OutputInScript => {
                "a script holds an output of a job with upstream code, which may be shell code"
            }
            Self::ReportedConclusion => "a job reports a conclusion that upstream code chose",
        }
    }

    pub fn fix(self) -> &'static str {
        match self {
            Self::Token => "report from a separate job, as the template does",
            Self::WritePermission => {
                "give the job `permissions: {contents: read}` and nothing else"
            }
            Self::Secret => {
                "move the step that needs it into another job, which runs no upstream code"
            }
            Self::GitCredentials => "add `persist-credentials: false` to the checkout",
            Self::Cache => "add `cache-mode: none` to the job, beside `runs-on`",
            Self::RoleWithoutEnvironment => {
                "add `environment:` to the job, and let the role trust `…:environment:NAME` only"
            }
            Self::SharedRunner => {
                "run one of them elsewhere, as the template does, or use runners that take one job \
                 and are gone"
            }
            Self::ArtifactName => "download one artifact by its `name`",
            Self::ArtifactPath => "give a `path` of its own, such as `test-reports`",
            Self::ArtifactToEnvironment => {
                "read the artifact with a step that needs no variable of it"
            }
            Self::ArtifactInScript => {
                "handle it in a job without a token, or with an action that treats it as data, such \
                 as `report-ci-result`"
            }
            Self::OutputInScript => "pass the value as `env:` and use the quoted variable",
            Self::ReportedConclusion => {
                "report `${{ needs.JOB.result }}`, which upstream code can't choose"
            }
        }
    }

    /// A warning where the repository may have its reasons; the others are errors.
    pub fn is_warning(self) -> bool {
        matches!(self, Self::ArtifactName | Self::ArtifactPath | Self::ReportedConclusion)
    }
}

/// Events whose runs have the repository's own rights, whoever wrote the code that they check out.
const PRIVILEGED_EVENTS: [&str; 6] = [
    "repository_dispatch",
    "schedule",
    "workflow_dispatch",
    "pull_request_target",
    "workflow_run",
    "issue_comment",
];

/// Where a stranger's repository or revision is named in an event.
const STRANGERS: [&str; 4] =
    ["client_payload", "pull_request.head", "workflow_run.head", "github.head_ref"];

/// Actions that exchange the job's OIDC token for the rights of a cloud role, by the end of their path.
const ROLE_ACTIONS: [&str; 4] = [
    "/configure-oidc-fallback",
    "aws-actions/configure-aws-credentials",
    "google-github-actions/auth",
    "azure/login",
];

/// A job, with what is needed of its workflow.
struct JobView<'a> {
    name: &'a str,
    job: &'a Value,
    workflow: &'a Value,
}

/// Each exposure of a workflow, with the job that has it.
pub fn exposures(text: &str) -> Vec<(Exposure, String)> {
    let Ok(workflow) = serde_yaml::from_str::<Value>(text) else { return vec![] };
    if !PRIVILEGED_EVENTS.iter().any(|event| starts_on(&workflow, event)) {
        return vec![];
    }
    let named = workflow.get("jobs").and_then(Value::as_mapping);
    let all: Vec<_> = named
        .into_iter()
        .flatten()
        .map(|(name, job)| JobView {
            name: name.as_str().unwrap_or_default(),
            job,
            workflow: &workflow,
        })
        .collect();
    let (strangers, own): (Vec<_>, Vec<_>) = all.iter().partition(|job| job.runs_stranger());
    let mut found = vec![];
    for job in &strangers {
        found.extend(job.as_stranger().into_iter().map(|exposure| (exposure, job.name.to_owned())));
    }
    for job in &own {
        let exposed = job.beside_strangers(&strangers);
        found.extend(exposed.into_iter().map(|exposure| (exposure, job.name.to_owned())));
    }
    found.sort();
    found
}

impl JobView<'_> {
    fn runs_stranger(&self) -> bool {
        steps(self.job).iter().any(|step| {
            let path = action_path(step);
            let script = text_of(step, "run");
            let named = ["repository", "ref"].into_iter().filter_map(|key| input(step, key));
            path.ends_with("/checkout-pr")
                || script.contains("crcr checkout")
                || (path == "actions/checkout"
                    && named
                        .into_iter()
                        .any(|value| STRANGERS.iter().any(|name| value.contains(name))))
        })
    }

    /// A key of the job, or of the workflow where the job doesn't have it.
    fn inherited(&self, key: &str) -> Option<&Value> {
        self.job.get(key).or_else(|| self.workflow.get(key))
    }

    fn as_stranger(&self) -> Vec<Exposure> {
        let permissions = self.inherited("permissions");
        let mut found = vec![];
        if permissions.is_some_and(grants_id_token) {
            found.push(Exposure::Token);
        }
        if permissions.is_none_or(may_write) {
            found.push(Exposure::WritePermission);
        }
        let with_secret = [Some(self.job), self.workflow.get("env")].into_iter().flatten();
        if with_secret.into_iter().any(holds_secret) {
            found.push(Exposure::Secret);
        }
        let keeps_token = |step: &Value| {
            action_path(step) == "actions/checkout"
                && input(step, "persist-credentials").is_none_or(|value| value != "false")
        };
        if steps(self.job).iter().any(keeps_token) {
            found.push(Exposure::GitCredentials);
        }
        let mode = self.inherited("cache-mode").and_then(Value::as_str);
        if !matches!(mode, Some("none" | "read")) {
            found.push(Exposure::Cache);
        }
        found
    }

    /// Of a job that runs no stranger's code itself, in a workflow where others may.
    fn beside_strangers(&self, strangers: &[&JobView<'_>]) -> Vec<Exposure> {
        let steps = steps(self.job);
        let mut found = vec![];
        let takes_role =
            |step: &Value| ROLE_ACTIONS.iter().any(|end| action_path(step).ends_with(end));
        if steps.iter().any(takes_role) && self.job.get("environment").is_none() {
            found.push(Exposure::RoleWithoutEnvironment);
        }
        let depends = |stranger: &&&JobView<'_>| needs(self.job).any(|job| job == stranger.name);
        let needed: Vec<_> = strangers.iter().filter(depends).collect();
        let outputs: Vec<_> =
            needed.iter().map(|job| format!("needs.{}.outputs", job.name)).collect();
        let holds_output = |step: &Value| {
            outputs.iter().any(|output| expressions(&text_of(step, "run")).contains(output))
        };
        if steps.iter().any(holds_output) {
            found.push(Exposure::OutputInScript);
        }
        let chosen = |step: &Value| {
            let conclusion = input(step, "conclusion").unwrap_or_default();
            reports(step) && conclusion.contains(".outputs.")
        };
        if steps.iter().any(chosen) {
            found.push(Exposure::ReportedConclusion);
        }
        let has_token = self
            .inherited("permissions")
            .is_none_or(|permissions| grants_id_token(permissions) || may_write(permissions))
            || holds_secret(self.job);
        if !has_token {
            return found;
        }
        if strangers.iter().any(|stranger| shares_runner(self.job, stranger.job)) {
            found.push(Exposure::SharedRunner);
        }
        if !needed.is_empty() {
            found.extend(downloads(steps));
        }
        found
    }
}

/// What is wrong with how the steps of a job with a token handle the artifacts of strangers.
fn downloads(steps: &[Value]) -> Vec<Exposure> {
    let downloads: Vec<_> = steps
        .iter()
        .filter(|step| {
            let path = action_path(step);
            path == "actions/download-artifact"
                || path.ends_with("/download-artifact-with-fallback")
        })
        .collect();
    if downloads.is_empty() {
        return vec![];
    }
    let mut found = vec![];
    if downloads.iter().any(|step| input(step, "name").is_none()) {
        found.push(Exposure::ArtifactName);
    }
    let paths: Vec<_> =
        downloads.iter().map(|step| input(step, "path").unwrap_or_default()).collect();
    let is_shared = |path: &String| {
        let path = path.trim().trim_end_matches('/');
        let own = path.trim_start_matches("./");
        own.is_empty()
            || own == "."
            || own.starts_with(['~', '/', '.'])
            || own.contains("runner.temp")
            || own.ends_with("github.workspace }}")
    };
    if paths.iter().any(is_shared) {
        found.push(Exposure::ArtifactPath);
    }
    let scripts: Vec<_> = steps.iter().map(|step| text_of(step, "run")).collect();
    let files = ["GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT"];
    if scripts.iter().any(|script| files.iter().any(|file| script.contains(file))) {
        found.push(Exposure::ArtifactToEnvironment);
    }
    let handles = |script: &String| {
        paths
            .iter()
            .map(|path| path.trim().trim_matches(['.', '/']))
            .any(|path| if path.is_empty() { !script.is_empty() } else { script.contains(path) })
    };
    if scripts.iter().any(handles) {
        found.push(Exposure::ArtifactInScript);
    }
    found
}

/// Whether the token of a job with these permissions may change something. OIDC tokens are another matter.
fn may_write(permissions: &Value) -> bool {
    match permissions {
        Value::String(all) => all == "write-all",
        Value::Mapping(each) => each.iter().any(|(name, level)| {
            name.as_str() != Some("id-token") && level.as_str() == Some("write")
        }),
        _ => false,
    }
}

/// Whether a value somewhere holds an expression with a secret. The job's own token is judged by `permissions`.
fn holds_secret(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            let inner = expressions(text).replace("secrets.github_token", "");
            inner.contains("secrets.")
                || inner.contains("secrets[")
                || inner.contains("tojson(secrets)")
        }
        Value::Sequence(list) => list.iter().any(holds_secret),
        Value::Mapping(map) => {
            let inherits = map.get("secrets").and_then(Value::as_str) == Some("inherit");
            inherits || map.values().any(holds_secret)
        }
        _ => false,
    }
}

/// What stands in `${{ }}`, in lower case and without spaces.
fn expressions(text: &str) -> String {
    let inner = text.split("${{").skip(1).filter_map(|rest| rest.split("}}").next());
    let inner: Vec<_> = inner.map(|part| part.split_whitespace().collect::<String>()).collect();
    inner.join(" ").to_ascii_lowercase()
}

fn needs(job: &Value) -> impl Iterator<Item = &str> {
    let (one, many) = match job.get("needs") {
        Some(Value::String(one)) => (Some(one.as_str()), None),
        Some(Value::Sequence(many)) => (None, Some(many.iter().filter_map(Value::as_str))),
        _ => (None, None),
    };
    one.into_iter().chain(many.into_iter().flatten())
}

/// Whether both may run on one machine. GitHub's own runners take one job each and are gone.
fn shares_runner(one: &Value, other: &Value) -> bool {
    let (one, other) = (labels(one), labels(other));
    let is_hosted = |labels: &[String]| {
        let hosted = ["ubuntu-", "windows-", "macos-"];
        labels.iter().all(|label| hosted.iter().any(|start| label.starts_with(start)))
    };
    !is_hosted(&one) && one == other
}

fn labels(job: &Value) -> Vec<String> {
    let runs_on = job.get("runs-on");
    let named = runs_on.and_then(|runs_on| runs_on.get("labels").or(Some(runs_on)));
    let mut labels: Vec<_> = match named {
        Some(Value::String(one)) => vec![one.to_lowercase()],
        Some(Value::Sequence(many)) => {
            many.iter().filter_map(|label| Some(label.as_str()?.to_lowercase())).collect()
        }
        _ => vec![],
    };
    labels.extend(runs_on.and_then(|runs_on| Some(runs_on.get("group")?.as_str()?.to_lowercase())));
    labels.sort();
    labels
}

fn action_path(step: &Value) -> String {
    text_of(step, "uses").split('@').next().unwrap_or_default().to_owned()
}

fn text_of(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// An input of a step, as text.
fn input(step: &Value, key: &str) -> Option<String> {
    match step.get("with")?.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWNSTREAM: &str = include_str!("../../../workflows-templates/downstream-ci.yml");
    const NIGHTLY: &str = include_str!("../../../workflows-templates/downstream-nightly.yml");

    fn codes(text: &str) -> Vec<&'static str> {
        exposures(text).into_iter().map(|(exposure, _)| exposure.check()).collect()
    }

    #[test]
    fn templates_expose_nothing() {
        assert_eq!(codes(DOWNSTREAM), [""; 0]);
        assert_eq!(codes(NIGHTLY), [""; 0]);
    }

    /// Each is a way out for code that the job `test` runs; the test `hostile_run…` tries them on the template.
    #[test]
    fn each_escape_is_named_in_a_copy_of_the_template_that_allows_it() {
        let read = "contents: read # and nothing else, ever: this job runs a stranger's code";
        let download = "      - name: Fetch what the job left\n";
        let report = "      - name: Report the end\n";
        let upload = "      - name: Hand it to the last job\n";
        for (code, from, to) in [
            ("cache-mode", "    cache-mode: none", "    # no cache-mode"),
            ("cache-mode", "    cache-mode: none", "    cache-mode: write"),
            ("token-exposed", read, "id-token: write"),
            ("write-permission", read, "contents: write"),
            (
                "secret-exposed",
                "        id: build\n",
                "        env: {KEY: \"${{ secrets.KEY }}\"}\n",
            ),
            (
                "secret-exposed",
                "permissions: {}\n",
                "permissions: {}\nenv: {KEY: \"${{ secrets['KEY'] }}\"}\n",
            ),
            (
                "git-credentials",
                "      - name: Build\n",
                "      - uses: actions/checkout@v7\n      - name: Build\n",
            ),
            (
                "role-environment",
                report,
                "      - uses: aws-actions/configure-aws-credentials@v6\n      - name: Report the end\n",
            ),
            ("shared-runner", "runs-on: ubuntu-latest", "runs-on: [self-hosted, npu]"),
            ("shared-runner", "runs-on: ubuntu-latest", "runs-on: {group: npu}"),
            (
                "artifact-name",
                "          name: test-reports-${{ matrix.python }}\n          path: test-reports\n",
                "          pattern: test-reports-*\n          path: test-reports\n",
            ),
            ("artifact-path", "          path: test-reports\n", "          path: .\n"),
            (
                "artifact-path",
                "          path: test-reports\n",
                "          path: ${{ runner.temp }}\n",
            ),
            (
                "artifact-to-environment",
                report,
                "      - run: cat reports/env >> \"$GITHUB_ENV\"\n      - name: Report the end\n",
            ),
            (
                "artifact-to-environment",
                report,
                "      - run: cat reports/path >> \"$GITHUB_PATH\"\n      - name: Report the end\n",
            ),
            (
                "artifact-in-script",
                report,
                "      - run: cat test-reports/log.txt\n      - name: Report the end\n",
            ),
            (
                "output-in-script",
                report,
                "      - run: echo ${{ needs.test.outputs.title }}\n      - name: Report the end\n",
            ),
            (
                "reported-conclusion",
                "conclusion: ${{ needs.test.result }}",
                "conclusion: ${{ needs.test.outputs.conclusion }}",
            ),
        ] {
            for part in [download, report, upload, from] {
                assert!(DOWNSTREAM.contains(part), "{part}");
            }
            let broken = DOWNSTREAM.replace(from, to);
            assert!(codes(&broken).contains(&code), "{code}: {:?}", codes(&broken));
        }
        let own = format!("    permissions:\n      {read}\n");
        assert!(DOWNSTREAM.contains(&own));
        let unlimited = DOWNSTREAM.replacen("permissions: {}\n", "", 1).replace(&own, "");
        assert!(codes(&unlimited).contains(&"write-permission"), "{:?}", codes(&unlimited));
    }

    #[test]
    fn every_code_differs_and_workflows_without_strangers_are_left_alone() {
        let mut codes: Vec<_> = Exposure::ALL.iter().map(|exposure| exposure.check()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Exposure::ALL.len());
        for text in [
            "on: push\njobs: {a: {steps: [{uses: x/y/actions/checkout-pr@v1}]}}",
            "on: pull_request\njobs: {a: {steps: [{uses: actions/checkout@v7}]}}",
            "not yaml: {",
            "on: schedule\njobs: []",
        ] {
            assert_eq!(exposures(text), [], "{text}");
        }
        let target = "on: pull_request_target\njobs: {a: {steps: [{uses: actions/checkout@v7, with: \
                      {ref: '${{ github.event.pull_request.head.sha }}'}}]}}";
        assert!(!exposures(target).is_empty());
    }
}
