//! What a text of a workflow leads to, through environments, inputs and outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_yaml::Value;

use super::expression::{mentions, overlaps};

/// The contexts whose text may be in a value, and every text on the way to them.
#[derive(Debug, Clone, Default)]
pub struct ContextReach {
    pub paths: BTreeSet<String>,
    pub texts: BTreeSet<String>,
}

/// Stands for text of strangers that a step gets from elsewhere than the event, such as the names of changed files.
pub const FETCHED_TEXT: &str = "stranger.text";

/// What each variable, input or output leads to, by its name.
pub type NamedReaches = BTreeMap<String, Rc<ContextReach>>;

/// What the outputs of a step lead to.
#[derive(Debug, Clone, Default)]
pub struct StepOutputs {
    /// Those whose values can be read.
    pub named: NamedReaches,
    /// What each other one may lead to.
    pub others: Rc<ContextReach>,
}

impl StepOutputs {
    fn get(&self, output: Option<&str>) -> ContextReach {
        match output.filter(|output| *output != "*") {
            Some(output) => ContextReach::clone(self.named.get(output).unwrap_or(&self.others)),
            None => self.all(),
        }
    }

    pub fn all(&self) -> ContextReach {
        ContextReach::of_all(self.named.values().chain([&self.others]).map(Rc::as_ref))
    }
}

/// More names in one mapping aren't read.
pub const MAX_NAMES: usize = 200;

impl ContextReach {
    /// A workflow that leads everywhere must not fill the memory.
    const MAX_ENTRIES: usize = 200;
    const MAX_TEXT_BYTES: usize = 500;

    pub fn merge(&mut self, other: &Self) {
        other.paths.iter().for_each(|path| self.add_path(path));
        other.texts.iter().for_each(|text| self.add_text(text));
    }

    pub fn add_path(&mut self, path: &str) {
        match self.paths.len() < Self::MAX_ENTRIES {
            true => self.paths.insert(path.to_owned()),
            false => self.paths.insert("*".to_owned()),
        };
    }

    fn add_text(&mut self, text: &str) {
        if self.texts.len() < Self::MAX_ENTRIES {
            let end = text.floor_char_boundary(Self::MAX_TEXT_BYTES);
            self.texts.insert(text[..end].to_owned());
        }
    }

    fn without(&self, path: &str) -> Self {
        let mut rest = self.clone();
        rest.paths.remove(path);
        rest
    }

    pub fn of_all<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut merged = Self::default();
        all.into_iter().for_each(|one| merged.merge(one));
        merged
    }

    pub fn overlaps(&self, patterns: &[&str]) -> bool {
        self.paths.iter().any(|path| patterns.iter().any(|pattern| overlaps(path, pattern)))
    }
}

/// What the contexts of one place lead to. Names are in lower case, as in `expression`.
#[derive(Debug, Clone, Default)]
pub struct ContextScope {
    pub env: NamedReaches,
    pub inputs: NamedReaches,
    pub steps: BTreeMap<String, StepOutputs>,
    /// The outputs of each job that is needed.
    pub needs: BTreeMap<String, NamedReaches>,
    pub matrix: Rc<ContextReach>,
    /// What earlier steps may have written into the job's environment.
    pub written: Rc<ContextReach>,
}

impl ContextScope {
    pub fn reach(&self, text: &str) -> ContextReach {
        let mut found = ContextReach::default();
        found.add_text(text);
        for mention in mentions(text).into_iter().filter(|found| found.is_value) {
            self.follow(&mention.path, &mut found);
        }
        found
    }

    /// What every text in a value reaches.
    pub fn reach_all(&self, value: &Value) -> ContextReach {
        let mut found = ContextReach::default();
        for text in texts(value) {
            found.merge(&self.reach(&text));
        }
        found
    }

    fn follow(&self, path: &str, found: &mut ContextReach) {
        let parts: Vec<_> = path.split('.').collect();
        let name = parts.get(1).copied().unwrap_or("*");
        let mut add = |names: &NamedReaches, name: &str| {
            let all = names.iter().filter(|(key, _)| name == "*" || *key == name);
            let all: Vec<_> = all.collect();
            all.iter().for_each(|(_, reach)| found.merge(reach));
            !all.is_empty()
        };
        let is_known = match parts[0] {
            "env" => add(&self.env, name),
            "inputs" => add(&self.inputs, name),
            "steps" if matches!(parts.get(2), Some(&("outcome" | "conclusion"))) => false,
            "steps" => {
                let output = parts.get(3).copied();
                for (_, outputs) in self.steps.iter().filter(|(key, _)| name == "*" || *key == name)
                {
                    let reach = outputs.get(output);
                    match output.is_some_and(is_answer) {
                        true => found.merge(&reach.without(FETCHED_TEXT)),
                        false => found.merge(&reach),
                    }
                }
                false
            }
            "needs" | "jobs" if parts.get(2) == Some(&"result") => false,
            // A workflow that others call has its own jobs' outputs as `jobs`.
            "needs" | "jobs" => {
                let jobs = self.needs.iter().filter(|(key, _)| name == "*" || *key == name);
                let output = parts.get(3).copied().unwrap_or("*");
                for (_, outputs) in jobs {
                    add(outputs, output);
                }
                false
            }
            "matrix" | "strategy" => {
                found.merge(&self.matrix);
                false
            }
            _ => false,
        };
        if !is_known {
            found.add_path(path);
            if parts[0] == "env" {
                found.merge(&self.written);
            }
        }
    }

    /// The names of a mapping, with what each leads to here.
    pub fn names(&self, mapping: Option<&Value>) -> NamedReaches {
        let all = mapping.and_then(Value::as_mapping).into_iter().flatten().take(MAX_NAMES);
        let named = all.filter_map(|(key, value)| {
            Some((key.as_str()?.to_lowercase(), Rc::new(self.reach_all(value))))
        });
        named.collect()
    }
}

/// Whether an output of an action is a number, a hash or yes or no, by its name.
fn is_answer(output: &str) -> bool {
    let starts = ["any_", "base", "has_", "is_", "only_"];
    let ends = ["count", "found", "id", "number", "sha", "state", "status", "triggered", "url"];
    starts.iter().any(|start| output.starts_with(start))
        || ends.iter().any(|end| output.ends_with(end))
}

/// Every text in a value, with numbers and booleans as texts.
pub fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Bool(flag) => vec![flag.to_string()],
        Value::Sequence(list) => list.iter().flat_map(texts).collect(),
        Value::Mapping(map) => map.values().flat_map(texts).collect(),
        _ => vec![],
    }
}
