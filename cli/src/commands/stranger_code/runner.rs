//! Where a job runs.

use serde_yaml::Value;

use super::events;
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
