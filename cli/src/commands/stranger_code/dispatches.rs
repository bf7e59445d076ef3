//! Whose words the payload of a `repository_dispatch` has.

use serde_yaml::Value;

use super::as_code;
use super::events;
use super::scope::{ContextReach, ContextScope, texts};
use super::script::scripts;
use super::step::{action_path, input};
use super::{Source, WorkflowSet};
use crate::commands::workflow::{events_of, steps, triggers};

/// The types of the dispatches that the relay sends.
const RELAYED: [&str; 3] = ["merge_group", "pull_request", "push"];

/// Parts of the texts of workflows that such a dispatch starts.
const SIGNS_OF_RELAY: [&str; 8] = [
    "/checkout-pr",
    "/cross-repo-ci-relay-callback",
    "/report-ci-result",
    "client_payload.callback_token",
    "client_payload.delivery_id",
    "client_payload.payload",
    "crcr checkout",
    "crcr report",
];

impl WorkflowSet {
    /// Whether a stranger may have written any part of the payload: the relay sends it for upstream's pull requests, or a
    /// workflow of the repository fills it in.
    pub(crate) fn hears_strangers(&self, workflow: &Value) -> bool {
        let event = triggers(workflow).and_then(|events| events.get("repository_dispatch"));
        let types = event.and_then(|event| event.get("types")).map(texts).unwrap_or_default();
        let is_relayed =
            types.is_empty() || types.iter().any(|kind| RELAYED.contains(&kind.as_str()));
        (is_relayed && *self.is_downstream.get_or_init(|| self.shows_relay()))
            || *self.sends_words.get_or_init(|| self.sends_words_of_strangers())
    }

    /// Whether a workflow or an action has to do with the relay or with upstream.
    fn shows_relay(&self) -> bool {
        let all = self.workflows.values().chain(self.actions.values()).filter_map(Source::read);
        all.flat_map(texts).any(|text| {
            let lower = text.to_lowercase();
            lower.contains(&self.upstream) || SIGNS_OF_RELAY.iter().any(|sign| lower.contains(sign))
        })
    }

    fn sends_words_of_strangers(&self) -> bool {
        self.workflows.values().filter_map(Source::read).any(|workflow| {
            let events: Vec<_> = events_of(workflow).into_iter().map(as_own).collect();
            let jobs = workflow.get("jobs").and_then(Value::as_mapping);
            jobs.into_iter().flat_map(|jobs| jobs.values()).any(|job| {
                let env = [workflow.get("env"), job.get("env")];
                let env: Vec<_> = env.into_iter().flatten().collect();
                let mut sending = steps(job).into_iter().filter(|step| self.dispatches_here(step));
                sending.any(|step| has_words(step, &env, &events))
            })
        })
    }

    /// Whether a step sends a dispatch to the repository itself.
    fn dispatches_here(&self, step: &Value) -> bool {
        let is_here = |name: String| {
            name.contains("github.repository")
                || self.own.as_ref().is_some_and(|own| *own == name.trim().to_lowercase())
        };
        // Below `/workflows/`, the call starts one workflow, with inputs in place of a payload.
        let is_call = |word: &str| word.contains("/dispatches") && !word.contains("/workflows/");
        let by_script = |script: &String| {
            script.contains("createDispatchEvent") || script.split_whitespace().any(is_call)
        };
        input(step, "repository").is_none_or(is_here)
            && (action_path(step).ends_with("/repository-dispatch")
                || scripts(step).iter().any(by_script))
    }
}

/// The event as one that no stranger fills in, if it is a dispatch.
pub fn as_own(event: String) -> String {
    if event == "repository_dispatch" { events::OWN_DISPATCH.to_owned() } else { event }
}

/// Whether a step names text or a commit of a stranger, also by the variables `env` of its job and workflow.
fn has_words(step: &Value, env: &[&Value], events: &[String]) -> bool {
    let scope = ContextScope::default();
    let named = env.iter().chain([&step]).map(|value| scope.reach_all(value));
    let reach = ContextReach::of_all(&named.collect::<Vec<_>>());
    let is_head = |path: &String| path.split('.').any(|part| part.starts_with("head"));
    let asks =
        |script: &String| script.contains("context.payload") || as_code::asks_for_text(script);
    events::is_text(&reach, events)
        || (events.iter().any(|event| events::is_caused_by_strangers(event))
            && (reach.paths.iter().any(is_head) || scripts(step).iter().any(asks)))
}
