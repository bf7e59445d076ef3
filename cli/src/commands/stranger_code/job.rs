//! A job as it runs: with the steps of the repository's own actions, and the jobs of its own workflows that it calls.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_yaml::Value;

use super::dispatches::as_own;
use super::events::{self, narrowed};
use super::outputs::outputs_of;
use super::scope::{ContextReach, ContextScope, MAX_NAMES, NamedReaches, StepOutputs};
use super::script::{scripts, sets_variables};
use super::step::{self, JobStep, action_path, is_checkout_pr};
use super::{Source, WorkflowSet};
use crate::commands::workflow::{events_of, own_path, steps, triggers};

/// As deep as GitHub lets workflows call each other.
const MAX_DEPTH: usize = 10;
/// Jobs and steps of a workflow with all that it calls. More aren't read.
const MAX_PARTS: usize = 2500;

pub struct JudgedJob<'a> {
    /// Its key; of a called workflow's job, after that of the job that calls it and `/`.
    pub name: String,
    /// As the report names it.
    pub shown: String,
    pub value: &'a Value,
    pub workflow: &'a Value,
    /// The events for which it runs.
    pub events: Vec<String>,
    /// Whether it runs for merged pull requests only.
    pub is_for_merged: bool,
    pub steps: Vec<JobStep<'a>>,
    pub scope: ContextScope,
    pub permissions: Option<&'a Value>,
    pub cache_mode: Option<&'a Value>,
    /// The jobs that it needs, as they are called in `name`.
    pub needs: Vec<String>,
    /// Labels and groups, in lower case.
    pub ephemeral_runners: &'a BTreeSet<String>,
    /// Why it isn't understood.
    pub unknown: Vec<String>,
}

/// What a called workflow has from the job that calls it.
struct Caller<'a> {
    prefix: String,
    shown: String,
    gate: JobGate,
    inputs: NamedReaches,
    permissions: Option<&'a Value>,
    cache_mode: Option<&'a Value>,
    needs: Vec<String>,
    /// How many workflows have called one another down to this job.
    depth: usize,
}

/// For whom a job runs.
#[derive(Debug, Clone, Default)]
struct JobGate {
    events: Vec<String>,
    is_for_merged: bool,
}

impl JobGate {
    /// That of a job within this one. It is skipped with any that it needs, unless its condition asks how they ended.
    fn narrowed(&self, condition: &str, needed: &[Self]) -> Self {
        let compact: String = condition.to_lowercase().split_whitespace().collect();
        let goes_on = ["always(", "cancelled(", "failure("].iter().any(|ask| compact.contains(ask));
        let needed: &[Self] = if goes_on { &[] } else { needed };
        let mut events = narrowed(&self.events, condition);
        events.retain(|event| needed.iter().all(|gate| gate.events.contains(event)));
        let is_for_merged = self.is_for_merged
            || events::requires_merge(condition)
            || needed.iter().any(|gate| gate.is_for_merged);
        Self { events, is_for_merged }
    }
}

/// The jobs of a workflow as they are read.
struct JobReading<'a> {
    set: &'a WorkflowSet,
    jobs: Vec<JudgedJob<'a>>,
    /// How many parts may still be read.
    left: usize,
}

impl JobReading<'_> {
    /// Whether another part may be read.
    fn take(&mut self) -> bool {
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        more
    }
}

/// Every job of a workflow, for the events that start it. `None` if it is too large.
pub fn jobs_of<'a>(
    set: &'a WorkflowSet,
    path: &str,
    workflow: &'a Value,
) -> Option<Vec<JudgedJob<'a>>> {
    let mut events = events_of(workflow);
    if !set.hears_strangers(workflow) {
        events = events.into_iter().map(as_own).collect();
    }
    let caller = Caller {
        prefix: String::new(),
        shown: String::new(),
        gate: JobGate { events, is_for_merged: false },
        inputs: NamedReaches::new(),
        permissions: None,
        cache_mode: None,
        needs: vec![],
        depth: 0,
    };
    let mut reading = JobReading { set, jobs: vec![], left: MAX_PARTS };
    add_jobs(&mut reading, path, workflow, &caller);
    (reading.left > 0).then_some(reading.jobs)
}

fn add_jobs<'a>(
    reading: &mut JobReading<'a>,
    path: &str,
    workflow: &'a Value,
    caller: &Caller<'a>,
) -> BTreeMap<String, NamedReaches> {
    let named = workflow.get("jobs").and_then(Value::as_mapping);
    let mut waiting: Vec<_> = named
        .into_iter()
        .flatten()
        .map(|(name, job)| (name.as_str().unwrap_or_default().to_owned(), job))
        .take(MAX_PARTS + 1)
        .collect();
    let mut pending: BTreeSet<_> = waiting.iter().map(|(name, _)| name.clone()).collect();
    let mut outputs: BTreeMap<String, NamedReaches> = BTreeMap::new();
    let mut gates: BTreeMap<String, JobGate> = BTreeMap::new();
    // A job's outputs are known before those of the jobs that need it. A circle runs nowhere.
    while !waiting.is_empty() && reading.take() {
        let is_ready = |(_, job): &(String, &Value)| needs(job).all(|need| !pending.contains(need));
        let at = waiting.iter().position(is_ready).unwrap_or_default();
        let (name, value) = waiting.remove(at);
        pending.remove(&name);
        let needed = needs(value).map(str::to_lowercase);
        let needed = needed.filter_map(|need| Some((need.clone(), outputs.get(&need)?.clone())));
        let scope = ContextScope {
            inputs: caller.inputs.clone(),
            needs: needed.collect(),
            ..ContextScope::default()
        };
        let needed: Vec<_> = needs(value).filter_map(|need| gates.get(need).cloned()).collect();
        let condition = value.get("if").map(super::scope::texts).unwrap_or_default().join("");
        let gate = caller.gate.narrowed(&condition, &needed);
        gates.insert(name.clone(), gate.clone());
        let left = read_job(reading, (path, workflow), caller, (&name, value), (scope, gate));
        outputs.insert(name.to_lowercase(), left);
    }
    outputs
}

/// Whether a job with this `cache-mode` may write the cache.
pub fn may_save(cache_mode: &Value) -> bool {
    !matches!(cache_mode.as_str(), Some("none" | "read"))
}

/// Adds a job, or those of the workflow that it calls, and returns its outputs.
fn read_job<'a>(
    reading: &mut JobReading<'a>,
    (path, workflow): (&str, &'a Value),
    caller: &Caller<'a>,
    (name, value): (&str, &'a Value),
    (mut scope, gate): (ContextScope, JobGate),
) -> NamedReaches {
    let set = reading.set;
    if let Some(matrix) = value.get("strategy") {
        scope.matrix = Rc::new(scope.reach_all(matrix));
    }
    for level in [workflow, value] {
        let env = scope.names(level.get("env"));
        scope.env.extend(env);
    }
    let inherited = |key: &str| value.get(key).or_else(|| workflow.get(key));
    let permissions = inherited("permissions").or(caller.permissions);
    let cache_mode = inherited("cache-mode");
    // A called workflow gets no more than its caller has.
    let is_limited = caller.cache_mode.is_some_and(|mode| !may_save(mode));
    let cache_mode = cache_mode.filter(|_| !is_limited).or(caller.cache_mode);
    let full_name = format!("{}{name}", caller.prefix);
    let shown = format!("{}`{name}` in `{path}`", caller.shown);
    let mut needed: Vec<_> = needs(value).map(|need| format!("{}{need}", caller.prefix)).collect();
    needed.extend(caller.needs.iter().cloned());

    let called = value.get("uses").and_then(Value::as_str);
    let local = called.and_then(own_path);
    if let Some(Source::Read(callee)) = local.and_then(|path| set.source(path))
        && let Some(local) = local
        && caller.depth < MAX_DEPTH
    {
        let declared = call_event(callee).and_then(|event| event.get("inputs"));
        let inner = Caller {
            prefix: format!("{full_name}/"),
            shown: format!("{shown}: "),
            gate,
            inputs: inputs(declared, value, &scope),
            permissions,
            cache_mode,
            needs: needed,
            depth: caller.depth + 1,
        };
        return add_called(reading, local, callee, &inner);
    }
    let mut job = JudgedJob {
        name: full_name,
        shown,
        value,
        workflow,
        events: gate.events,
        is_for_merged: gate.is_for_merged,
        steps: vec![],
        permissions,
        cache_mode,
        needs: needed,
        ephemeral_runners: &set.ephemeral_runners,
        unknown: vec![],
        scope,
    };
    if let Some(called) = called {
        job.unknown.push(format!("calls `{called}`, which isn't read here"));
    }
    let mut scope = job.scope.clone();
    add_steps(reading, steps(value), &mut scope, &mut job, 0);
    reading.jobs.push(job);
    scope.names(value.get("outputs"))
}

/// The event of a workflow that others can call.
fn call_event(workflow: &Value) -> Option<&Value> {
    triggers(workflow).and_then(|events| events.get("workflow_call"))
}

/// Adds the jobs of a called workflow, and returns its outputs.
fn add_called<'a>(
    reading: &mut JobReading<'a>,
    path: &str,
    workflow: &'a Value,
    caller: &Caller<'a>,
) -> NamedReaches {
    let needs = add_jobs(reading, path, workflow, caller);
    let declared = call_event(workflow).and_then(|event| event.get("outputs"));
    let inputs = caller.inputs.clone();
    ContextScope { needs, inputs, ..ContextScope::default() }.names(declared)
}

fn add_steps<'a>(
    reading: &mut JobReading<'a>,
    steps: Vec<&'a Value>,
    scope: &mut ContextScope,
    job: &mut JudgedJob<'a>,
    depth: usize,
) {
    for value in steps {
        if !reading.take() {
            return;
        }
        add_step(reading, value, scope, job, depth);
    }
}

fn add_step<'a>(
    reading: &mut JobReading<'a>,
    value: &'a Value,
    scope: &mut ContextScope,
    job: &mut JudgedJob<'a>,
    depth: usize,
) {
    let mut inner = scope.clone();
    let env = inner.names(value.get("env"));
    inner.env.extend(env);
    let condition = value.get("if").map(super::scope::texts).unwrap_or_default().join("");
    let events = narrowed(&job.events, &condition);
    let path = action_path(value);
    // Ours checks out what its inputs say, wherever it is.
    let local = own_path(&path).filter(|_| !is_checkout_pr(&path));
    let in_checkout = local.and_then(|local| {
        let own = job.steps.iter().filter(|step| reading.set.checks_out_itself(step));
        let mut folders = own.filter_map(|step| step::checkout_folder(step.value));
        folders.find_map(|folder| step::path_in_checkout(local, &folder))
    });
    let action = in_checkout.or(local).and_then(|local| reading.set.action(local));
    let left;
    match action {
        Some(Source::Read(action)) if depth < MAX_DEPTH => {
            let composite = action.get("runs").filter(|runs| runs.get("steps").is_some());
            if let Some(composite) = composite {
                let mut within = ContextScope {
                    inputs: inputs(action.get("inputs"), value, &inner),
                    steps: BTreeMap::new(),
                    needs: BTreeMap::new(),
                    ..inner
                };
                let before = std::mem::replace(&mut job.events, events);
                add_steps(reading, steps(composite), &mut within, job, depth + 1);
                job.events = before;
                Rc::make_mut(&mut scope.written).merge(&within.written);
                let named = within.names(action.get("outputs"));
                left = StepOutputs { named, ..StepOutputs::default() };
            } else {
                let others = Rc::new(inner.reach_all(value));
                left = StepOutputs { others, ..StepOutputs::default() };
                add_program(job, (&path, action), value, inner, events);
            }
        }
        found => {
            if local.is_some() && !matches!(found, Some(Source::Read(_))) {
                let why = format!("uses `{path}`, which can't be read here");
                job.unknown.push(why);
            }
            left = outputs_of(value, &path, &inner);
            if scripts(value).iter().any(|script| sets_variables(script)) {
                Rc::make_mut(&mut scope.written).merge(&left.all());
            }
            job.steps.push(JobStep { value, scope: inner, events });
        }
    }
    if let Some(id) = value.get("id").and_then(Value::as_str) {
        scope.steps.insert(id.to_lowercase(), left);
    }
}

/// Adds a step whose action is a program: JavaScript or a container.
fn add_program<'a>(
    job: &mut JudgedJob<'a>,
    (path, action): (&str, &'a Value),
    step: &'a Value,
    scope: ContextScope,
    events: Vec<String>,
) {
    let mut within =
        ContextScope { inputs: inputs(action.get("inputs"), step, &scope), ..scope.clone() };
    let given = ContextReach::of_all(within.inputs.values().map(Rc::as_ref));
    let env = ContextReach::of_all(scope.env.values().map(Rc::as_ref));
    if events::is_text(&given, &events)
        || events::is_text(&env, &events)
        || events.iter().any(|event| events::is_caused_by_strangers(event))
    {
        job.unknown.push(format!("uses `{path}`, whose code isn't read"));
    }
    job.steps.push(JobStep { value: step, scope, events: events.clone() });
    if let Some(runs) = action.get("runs") {
        let env = within.names(runs.get("env"));
        within.env.extend(env);
        job.steps.push(JobStep { value: runs, scope: within, events });
    }
}

/// The inputs of an action or of a called workflow, by what it is given and by their defaults.
fn inputs(declared: Option<&Value>, call: &Value, outside: &ContextScope) -> NamedReaches {
    let mut inputs = NamedReaches::new();
    for (name, input) in declared.and_then(Value::as_mapping).into_iter().flatten().take(MAX_NAMES)
    {
        let Some(name) = name.as_str() else { continue };
        let default =
            input.get("default").map(|default| ContextScope::default().reach_all(default));
        inputs.insert(name.to_lowercase(), Rc::new(default.unwrap_or_default()));
    }
    inputs.extend(outside.names(call.get("with")));
    inputs
}

pub fn needs(job: &Value) -> impl Iterator<Item = &str> {
    let (one, many) = match job.get("needs") {
        Some(Value::String(one)) => (Some(one.as_str()), None),
        Some(Value::Sequence(many)) => (None, Some(many.iter().filter_map(Value::as_str))),
        _ => (None, None),
    };
    one.into_iter().chain(many.into_iter().flatten())
}
