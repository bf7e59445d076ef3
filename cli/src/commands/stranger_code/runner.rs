//! Where a job runs.

use serde_yaml::Value;

use super::events;
use super::exposure::Exposure;
use super::expression::{expressions, literals, mentions_of};
use super::job::JudgedJob;

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
        let group = runs_on.get("group").and_then(Value::as_str);
        let labels = match runs_on.get("labels").unwrap_or(runs_on) {
            Value::String(one) => vec![one.clone()],
            Value::Sequence(many) => {
                many.iter().filter_map(|label| Some(label.as_str()?.to_owned())).collect()
            }
            _ => vec![],
        };
        if let [expression] = &labels[..]
            && group.is_none()
            && expression.trim().starts_with("${{")
        {
            return Self::of_expression(job, expression, events);
        }
        let mut labels: Vec<_> = labels.iter().map(|label| label.to_lowercase()).collect();
        labels.extend(group.map(|group| format!("group {}", group.to_lowercase())));
        labels.sort();
        vec![Self::of_labels(job, labels)]
    }

    fn of_labels(job: &JudgedJob<'_>, labels: Vec<String>) -> Self {
        let is_ephemeral = |label: &String| {
            job.ephemeral_runners.contains(label.strip_prefix("group ").unwrap_or(label))
        };
        // A runner has all the labels.
        let is_hosted = labels.iter().all(|label| HOSTED.contains(&&**label));
        match is_hosted || labels.iter().any(is_ephemeral) {
            true => Self::Hosted,
            false => Self::Own(labels),
        }
    }

    fn of_expression(job: &JudgedJob<'_>, text: &str, events: &[String]) -> Vec<Self> {
        if expressions(text).join(" ").to_lowercase().contains("pull_request.head.repo") {
            return vec![Self::ByFork];
        }
        let each = expressions(text).into_iter().map(|each| events::alternatives(events, each));
        let expression = each.collect::<Vec<_>>().join(" ");
        let mut values = literals(&expression);
        for found in mentions_of(&expression).into_iter().filter(|found| found.is_value) {
            match values_of(job, &found.path) {
                Some(more) => values.extend(more),
                None => return vec![Self::Unknown(text.trim().to_owned())],
            }
        }
        let each = values.into_iter().map(|label| vec![label.to_lowercase()]);
        each.map(|labels| Self::of_labels(job, labels)).collect()
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

/// The fixed values of a matrix's name, or of an input.
fn values_of(job: &JudgedJob<'_>, path: &str) -> Option<Vec<String>> {
    let name = path.split_once('.')?.1;
    if path.starts_with("inputs.") {
        let reach = job.scope.inputs.get(name)?;
        return reach.paths.is_empty().then(|| reach.texts.iter().cloned().collect());
    }
    if !path.starts_with("matrix.") {
        return None;
    }
    let matrix = job.value.get("strategy")?.get("matrix")?.as_mapping()?;
    let mut found = vec![];
    for (key, value) in matrix {
        let key = key.as_str().unwrap_or_default().to_lowercase();
        let values: Vec<_> = match value {
            Value::Sequence(list) if key == name => list.iter().collect(),
            Value::Sequence(list) if key == "include" => {
                list.iter().filter_map(|one| one.get(name)).collect()
            }
            // The whole list is computed.
            _ if key == name || key == "include" => return None,
            _ => vec![],
        };
        for value in values {
            let text = value.as_str()?;
            if text.contains("${{") {
                return None;
            }
            found.push(text.to_owned());
        }
    }
    (!found.is_empty()).then_some(found)
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
