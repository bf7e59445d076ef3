//! Where a job runs.

use serde_yaml::Value;

use super::events;
use super::exposure::Exposure;
use super::expression::{expressions, literals, mentions_of};
use super::job::JudgedJob;
use super::scope::texts;

/// More combinations of labels aren't read.
const MAX_ALTERNATIVES: usize = 200;

/// The labels of GitHub's own runners, which take one job each and are gone.
/// <https://docs.github.com/en/actions/reference/runners/github-hosted-runners>
const HOSTED: [&str; 27] = [
    "ubuntu-latest",
    "ubuntu-slim",
    "ubuntu-26.04",
    "ubuntu-26.04-arm",
    "ubuntu-24.04",
    "ubuntu-24.04-arm",
    "ubuntu-22.04",
    "ubuntu-22.04-arm",
    "windows-latest",
    "windows-2025",
    "windows-2025-vs2026",
    "windows-2022",
    "windows-11-arm",
    "macos-latest",
    "macos-latest-large",
    "macos-latest-xlarge",
    "macos-26",
    "macos-26-intel",
    "macos-26-large",
    "macos-26-xlarge",
    "macos-15",
    "macos-15-intel",
    "macos-15-large",
    "macos-15-xlarge",
    "macos-14",
    "macos-14-large",
    "macos-14-xlarge",
];

/// Labels that GitHub has taken out of use, on which no job starts any more.
const RETIRED: [&str; 8] = [
    "macos-11",
    "macos-12",
    "macos-13",
    "macos-13-large",
    "macos-13-xlarge",
    "ubuntu-18.04",
    "ubuntu-20.04",
    "windows-2019",
];

/// How labels of services begin that start a virtual machine for each job.
/// <https://depot.dev/docs/github-actions/overview>, <https://docs.blacksmith.sh/blacksmith-runners/overview>
const SERVICES: [&str; 2] = ["blacksmith-", "depot-"];

pub fn is_hosted_label(label: &str) -> bool {
    HOSTED.contains(&&*label.to_lowercase())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runner {
    /// One of GitHub's own, or another one that takes one job and is gone.
    Hosted,
    /// Labels and the name of a group, sorted.
    Own(Vec<String>),
    /// An expression decides by the head's repository.
    ByFork,
    /// An expression that isn't understood.
    Unknown(String),
}

impl Runner {
    /// The runners of a job; several if a matrix chooses them.
    pub fn all_of(job: &JudgedJob<'_>) -> Vec<Self> {
        Self::all_for(job, &job.events)
    }

    /// Those for a stranger in some of the job's events.
    pub fn all_for(job: &JudgedJob<'_>, events: &[String]) -> Vec<Self> {
        let Some(runs_on) = job.value.get("runs-on") else { return vec![] };
        let labels = labels_of(runs_on);
        if let [text] = &labels[..]
            && text.contains("${{")
        {
            if expressions(text).join(" ").to_lowercase().contains("pull_request.head.repo") {
                return vec![Self::ByFork];
            }
            return match alternatives(job, text, events) {
                Some(all) => all.into_iter().map(|labels| Self::of_labels(job, labels)).collect(),
                None => vec![Self::Unknown(text.trim().to_owned())],
            };
        }
        let mut all: Vec<Vec<String>> = vec![vec![]];
        for label in labels {
            let known = Some(&label).filter(|label| label.contains("${{"));
            let known = known.and_then(|label| alternatives(job, label, events));
            let each = known.unwrap_or_else(|| vec![vec![label]]);
            let longer = all
                .iter()
                .flat_map(|one| each.iter().map(move |more| [one.as_slice(), more].concat()));
            all = longer.take(MAX_ALTERNATIVES).collect();
        }
        all.into_iter().map(|labels| Self::of_labels(job, labels)).collect()
    }

    fn of_labels(job: &JudgedJob<'_>, labels: Vec<String>) -> Self {
        let mut labels: Vec<_> = labels.iter().map(|label| label.to_lowercase()).collect();
        labels.sort();
        let is_ephemeral = |label: &String| {
            SERVICES.iter().any(|start| label.starts_with(start))
                || job.ephemeral_runners.contains(label.strip_prefix("group ").unwrap_or(label))
        };
        // A runner has all the labels.
        let is_githubs = |label: &String| HOSTED.iter().chain(&RETIRED).any(|known| known == label);
        let is_hosted = labels.iter().all(is_githubs);
        match is_hosted || labels.iter().any(is_ephemeral) {
            true => Self::Hosted,
            false => Self::Own(labels),
        }
    }

    /// Whether jobs of both may run on one machine: it has all the labels of each.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(one), Self::Own(other)) => {
                let within = |a: &[String], b: &[String]| a.iter().all(|label| b.contains(label));
                within(one, other) || within(other, one)
            }
            (Self::Unknown(one), Self::Unknown(other)) => one == other,
            _ => false,
        }
    }

    /// Whether an expression alone decides whether jobs of both run on one machine.
    pub fn may_be_shared_with(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Unknown(_), Self::Own(_)) | (Self::Own(_), Self::Unknown(_)))
    }
}

/// Who uses the runners of all workflows: one that keeps files or processes keeps them for every workflow.
#[derive(Debug, Default)]
pub struct RunnerUses {
    /// Those of jobs that run strangers' code.
    strangers: Vec<Runner>,
    /// Those of each other job that has a token, and how the report names it.
    others: Vec<(Vec<Runner>, String)>,
}

impl RunnerUses {
    pub fn add(&mut self, jobs: &[JudgedJob<'_>], strangers: &[&JudgedJob<'_>]) {
        // An expression in two workflows may name two runners.
        let theirs = strangers.iter().flat_map(|job| Runner::all_of(job));
        self.strangers.extend(theirs.filter(|runner| matches!(runner, Runner::Own(_))));
        // Jobs of a workflow that others call are judged where it is called.
        let starts = |job: &&JudgedJob<'_>| job.events.iter().any(|event| event != "workflow_call");
        let is_own =
            |job: &&JudgedJob<'_>| strangers.iter().all(|stranger| stranger.name != job.name);
        let others = jobs.iter().filter(starts).filter(is_own).filter(|job| job.has_token());
        self.others.extend(others.map(|job| (Runner::all_of(job), job.shown.clone())));
    }

    /// The jobs that may run where strangers' code ran before.
    pub fn shared(self) -> impl Iterator<Item = (Exposure, String)> {
        let Self { strangers, others } = self;
        let is_shared = move |(runners, _): &(Vec<Runner>, String)| {
            strangers.iter().any(|theirs| runners.iter().any(|own| own.is_shared_with(theirs)))
        };
        let shared = others.into_iter().filter(is_shared);
        shared.map(|(_, job)| (Exposure::SharedRunner, job))
    }
}

/// The labels that a value of `runs-on` has, and its group. A text may be a list as JSON.
fn labels_of(value: &Value) -> Vec<String> {
    let group = value.get("group").and_then(Value::as_str).map(|group| format!("group {group}"));
    let labels = match value.get("labels").unwrap_or(value) {
        Value::String(text) if text.trim_start().starts_with(['[', '{']) => {
            serde_yaml::from_str(text).map_or_else(|_| vec![], |inner: Value| labels_of(&inner))
        }
        Value::Sequence(many) => {
            many.iter().filter_map(|label| Some(label.as_str()?.to_owned())).collect()
        }
        Value::Mapping(_) => vec![],
        one => texts(one),
    };
    labels.into_iter().chain(group).collect()
}

/// The labels that a text with expressions may stand for. `None` if they aren't known.
fn alternatives(job: &JudgedJob<'_>, text: &str, events: &[String]) -> Option<Vec<Vec<String>>> {
    let all = expressions(text);
    let [inside] = all[..] else { return None };
    let (before, after) = text.trim().split_once("${{")?;
    let after = after.strip_prefix(inside)?.strip_prefix("}}")?;
    let expression = events::alternatives(events, inside);
    let fixed = literals(&expression).into_iter();
    let mut values: Vec<_> = fixed.map(|text| labels_of(&Value::String(text))).collect();
    for found in mentions_of(&expression).into_iter().filter(|found| found.is_value) {
        values.extend(values_of(job, &found.path)?);
    }
    let is_part = !(before.is_empty() && after.is_empty());
    if values.iter().any(|labels| labels.is_empty() || (is_part && labels.len() > 1)) {
        return None;
    }
    let whole = |label: String| format!("{before}{label}{after}");
    Some(values.into_iter().map(|labels| labels.into_iter().map(whole).collect()).collect())
}

/// The fixed values of a matrix's name, or of an input, each as its labels.
fn values_of(job: &JudgedJob<'_>, path: &str) -> Option<Vec<Vec<String>>> {
    let (context, name) = path.split_once('.')?;
    if context == "inputs" {
        let reach = job.scope.inputs.get(name)?;
        let labels = |text: &String| labels_of(&Value::String(text.clone()));
        return reach.paths.is_empty().then(|| reach.texts.iter().map(labels).collect());
    }
    if context != "matrix" {
        return None;
    }
    let mut parts = name.split('.');
    let name = parts.next()?;
    let matrix = job.value.get("strategy")?.get("matrix")?.as_mapping()?;
    let mut found = vec![];
    for (key, value) in matrix {
        let key = key.as_str().unwrap_or_default().to_lowercase();
        let values: Vec<_> = match value {
            Value::Sequence(list) if key == name => list.iter().collect(),
            Value::Sequence(list) if key == "include" => {
                list.iter().filter_map(|one| named(one, name)).collect()
            }
            // The whole list is computed.
            _ if key == name || key == "include" => return None,
            _ => vec![],
        };
        for value in values {
            let Some(value) = parts.clone().try_fold(value, named) else { continue };
            let labels = labels_of(value);
            if labels.is_empty() || labels.iter().any(|label| label.contains("${{")) {
                return None;
            }
            found.push(labels);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The value that a mapping has for a name in lower case, as GitHub finds it.
fn named<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let mut all = value.as_mapping()?.iter();
    let is_it = |key: &Value| key.as_str().is_some_and(|key| key.eq_ignore_ascii_case(name));
    all.find(|(key, _)| is_it(key)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::super::{Exposure, WorkflowSet};

    /// What upstream's code leaves running on the machine reads the token of whatever comes next there.
    #[test]
    fn job_of_another_workflow_on_the_runners_of_strangers_code_is_told() {
        let found = |upstream: &str, own: &str| -> Vec<(Exposure, String)> {
            let mut set = WorkflowSet::new(None, "acme/app");
            let steps = "steps: [{uses: actions/checkout@v7, with: {repository: acme/app, \
                         persist-credentials: false}}, {run: make}]";
            let text = format!(
                "on: repository_dispatch\njobs: {{a: {{runs-on: {upstream}, permissions: {{contents: \
                 read}}, cache-mode: none, {steps}}}}}"
            );
            set.add_workflow(".github/workflows/a.yml", &text);
            set.add_workflow(".github/workflows/b.yml", own);
            set.judge().found
        };
        let own = |event: &str, runner: &str, permissions: &str| {
            format!(
                "on: {event}\njobs: {{b: {{runs-on: {runner}, permissions: {{{permissions}}}, steps: [{{run: \
                 make}}]}}}}"
            )
        };
        let deploy = own("push", "[self-hosted, npu]", "packages: write");
        let named = "`b` in `.github/workflows/b.yml`".to_owned();
        assert_eq!(found("[self-hosted, npu]", &deploy), [(Exposure::SharedRunner, named)]);
        assert_eq!(found("ubuntu-latest", &deploy), []);
        assert_eq!(found("[self-hosted, gpu]", &deploy), []);
        for harmless in [
            own("push", "[self-hosted, npu]", "contents: read"),
            own("push", "ubuntu-latest", "packages: write"),
            own("workflow_call", "[self-hosted, npu]", "packages: write"),
        ] {
            assert_eq!(found("[self-hosted, npu]", &harmless), [], "{harmless}");
        }
    }

    /// Large projects keep what differs between platforms in one list.
    #[test]
    fn runner_that_a_matrix_has_as_a_list_or_in_a_mapping_is_read() {
        let found = |matrix: &str, runs_on: &str| {
            let mut set = WorkflowSet::new(None, "acme/app");
            let text = format!(
                "on: pull_request\njobs:\n  a:\n    runs-on: {runs_on}\n    strategy: {{matrix: {matrix}}}\n    steps: []\n"
            );
            set.add_workflow(".github/workflows/w.yml", &text);
            let judged = set.judge();
            assert_eq!(judged.unknown, [""; 0], "{text}");
            !judged.found.is_empty()
        };
        let of_matrix = "'${{ matrix.r }}'";
        for (matrix, runs_on) in [
            ("{include: [{r: [self-hosted, npu]}]}", of_matrix),
            ("{r: [ubuntu-latest, [self-hosted, npu]]}", of_matrix),
            ("{r: [{group: npu}]}", of_matrix),
            ("{include: [{r: {group: npu, labels: [linux]}}]}", of_matrix),
            ("{r: ['[\"self-hosted\", \"npu\"]']}", "'${{ fromJSON(matrix.r) }}'"),
            ("{r: [npu]}", "[self-hosted, '${{ matrix.r }}']"),
            ("{at: [{r: npu}]}", "'${{ matrix.at.r }}'"),
            ("{r: [npu]}", "'own-${{ matrix.r }}'"),
        ] {
            assert!(found(matrix, runs_on), "{matrix} {runs_on}");
        }
        for (matrix, runs_on) in [
            ("{include: [{r: [ubuntu-latest]}]}", of_matrix),
            ("{R: [ubuntu-latest]}", "'${{ matrix.R }}'"),
            ("{r: ['[\"ubuntu-latest\"]']}", "'${{ fromJSON(matrix.r) }}'"),
            ("{at: [{r: ubuntu-latest}, {r: macos-15}]}", "'${{ matrix.at.r }}'"),
            ("{r: [ubuntu, macos]}", "'${{ matrix.r }}-latest'"),
            ("{r: [24.04]}", "'ubuntu-${{ matrix.r }}'"),
            ("{r: [ubuntu-latest]}", "['${{ matrix.r }}']"),
        ] {
            assert!(!found(matrix, runs_on), "{matrix} {runs_on}");
        }
    }

    /// What strangers' code leaves on one of the labels is there for a job that names them one by one.
    #[test]
    fn runner_of_a_matrix_is_the_same_as_that_of_fixed_labels() {
        let mut set = WorkflowSet::new(None, "acme/app");
        set.add_workflow(
            ".github/workflows/a.yml",
            "on: repository_dispatch\njobs: {a: {runs-on: '${{ matrix.r }}', strategy: {matrix: {include: [{r: \
             [self-hosted, npu]}]}}, permissions: {contents: read}, cache-mode: none, steps: [{uses: \
             x/y/actions/checkout-pr@v1}]}}",
        );
        set.add_workflow(
            ".github/workflows/b.yml",
            "on: push\njobs: {b: {runs-on: [npu, Self-Hosted], permissions: {packages: write}, steps: [{run: make}]}}",
        );
        let found: Vec<_> = set.judge().found.into_iter().map(|(exposure, _)| exposure).collect();
        assert_eq!(found, [Exposure::SharedRunner]);
    }

    /// GitHub's larger runners have names of their own.
    #[test]
    fn runners_that_are_said_to_take_one_job_each_count_as_githubs_own() {
        let found = |runs_on: &str, ephemeral: &[String]| -> Vec<Exposure> {
            let mut set = WorkflowSet::new(None, "acme/app");
            set.add_ephemeral_runners(ephemeral);
            let text =
                format!("on: pull_request\njobs:\n  a:\n    runs-on: {runs_on}\n    steps: []\n");
            set.add_workflow(".github/workflows/w.yml", &text);
            set.judge().found.into_iter().map(|(exposure, _)| exposure).collect()
        };
        let said = ["Acme-16-Core".to_owned(), "large".to_owned()];
        for runs_on in ["acme-16-core", "[self-hosted, acme-16-core]", "{group: Large}"] {
            assert_eq!(found(runs_on, &[]), [Exposure::ForkRunner], "{runs_on}");
            assert!(found(runs_on, &said).is_empty(), "{runs_on}");
        }
        assert_eq!(found("[self-hosted, npu]", &said), [Exposure::ForkRunner]);
    }
}
