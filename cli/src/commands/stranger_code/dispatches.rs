//! Whose words the payload of a `repository_dispatch` has.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
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

/// How many workflows in a row may hand on a stranger's words by dispatches. After more, any type may have them.
const MAX_HOPS: usize = 20;

/// A type that a script writes out in full, as a field of gh or in quotes. What is behind it must not go on with it, as in
/// `event_type="build-"$KIND` or `event_type: 'build-' + kind`.
static WRITTEN_TYPE: LazyLock<Regex> = LazyLock::new(|| {
    let field = r#"(?:-[fF]|--(?:raw-)?field)[\s=]*["']?event_type=["']?([\w.-]+)["']?(?:[\s)]|$)"#;
    let quoted = r#"event_type\\?["']?\s*[:=]\s*\\?["']([\w.-]+)\\?["']"#;
    let end = r#"[ \t]*(?:[^\w\s"'+.$|?%]|[\r\n]|$)"#;
    Regex::new(&format!("{field}|{quoted}{end}")).expect("a constant pattern")
});

impl WorkflowSet {
    /// Whether a stranger may have written any part of the payload: the relay sends it for upstream's pull requests, or a
    /// workflow of the repository fills it in.
    pub(crate) fn hears_strangers(&self, workflow: &Value) -> bool {
        self.hears(workflow, self.sent_types.get_or_init(|| self.types_with_words()))
    }

    /// As [`Self::hears_strangers`]; `sent` has the types, in lower case, that carry strangers' words. `None` is of one
    /// that isn't known.
    fn hears(&self, workflow: &Value, sent: &BTreeSet<Option<String>>) -> bool {
        let event = triggers(workflow).and_then(|events| events.get("repository_dispatch"));
        let types = event.and_then(|event| event.get("types")).map(texts).unwrap_or_default();
        let is_for = |is_one: &dyn Fn(&str) -> bool| {
            types.is_empty() || types.iter().any(|kind| is_one(&kind.to_lowercase()))
        };
        let is_sent = |kind: &str| sent.contains(&None) || sent.contains(&Some(kind.to_owned()));
        (is_for(&|kind| RELAYED.contains(&kind))
            && *self.is_downstream.get_or_init(|| self.shows_relay()))
            || (!sent.is_empty() && is_for(&is_sent))
    }

    /// Whether a workflow or an action has to do with the relay or with upstream.
    fn shows_relay(&self) -> bool {
        let all = self.workflows.values().chain(self.actions.values()).filter_map(Source::read);
        all.flat_map(texts).any(|text| {
            let lower = text.to_lowercase();
            lower.contains(&self.upstream) || SIGNS_OF_RELAY.iter().any(|sign| lower.contains(sign))
        })
    }

    /// The types of dispatches by which workflows of the repository hand on strangers' words, also those that they got by
    /// a dispatch themselves.
    fn types_with_words(&self) -> BTreeSet<Option<String>> {
        let mut sent = BTreeSet::new();
        for _ in 0..MAX_HOPS {
            let workflows = self.workflows.values().filter_map(Source::read);
            let more: BTreeSet<_> =
                workflows.flat_map(|workflow| self.types_sent_by(workflow, &sent)).collect();
            if more.len() == sent.len() {
                return sent;
            }
            sent = more;
        }
        BTreeSet::from([None])
    }

    fn types_sent_by(
        &self,
        workflow: &Value,
        sent: &BTreeSet<Option<String>>,
    ) -> Vec<Option<String>> {
        let mut events = events_of(workflow);
        if !self.hears(workflow, sent) {
            events = events.into_iter().map(as_own).collect();
        }
        let jobs = workflow.get("jobs").and_then(Value::as_mapping);
        let mut types = vec![];
        for job in jobs.into_iter().flat_map(|jobs| jobs.values()) {
            let env = [workflow.get("env"), job.get("env")];
            let env: Vec<_> = env.into_iter().flatten().collect();
            let sending = steps(job).into_iter().filter(|step| self.dispatches_here(step));
            types.extend(sending.filter(|step| has_words(step, &env, &events)).flat_map(types_of));
        }
        types
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

/// The types of the dispatches that a step sends.
fn types_of(step: &Value) -> Vec<Option<String>> {
    if action_path(step).ends_with("/repository-dispatch") {
        let given = input(step, "event-type").unwrap_or_else(|| "repository-dispatch".to_owned());
        return vec![Some(given.trim().to_lowercase()).filter(|kind| !kind.contains("${{"))];
    }
    let scripts = scripts(step).join("\n");
    let written = WRITTEN_TYPE.captures_iter(&scripts);
    let mut types: Vec<_> = written
        .filter_map(|found| Some(Some(found.get(1).or(found.get(2))?.as_str().to_lowercase())))
        .collect();
    let named = scripts.matches("event_type").count();
    if named == 0 || named > types.len() {
        types.push(None);
    }
    types
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
