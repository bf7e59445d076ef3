//! One step of a job.

use serde_yaml::Value;

use super::as_code;
use super::events;
use super::scope::ContextScope;
use super::script::scripts;
use crate::commands::workflow::own_path;

pub struct JobStep<'a> {
    pub value: &'a Value,
    pub scope: ContextScope,
    pub events: Vec<String>,
}

/// The action of a step without its version, in lower case as GitHub doesn't distinguish it; a path of this
/// repository as it is.
pub fn action_path(step: &Value) -> String {
    let uses = step.get("uses").and_then(Value::as_str).unwrap_or_default();
    match own_path(uses).is_some() {
        true => uses.to_owned(),
        false => uses.split('@').next().unwrap_or_default().to_lowercase(),
    }
}

/// Actions with outputs that strangers write: names of changed files and of branches, titles, comments.
const FETCHES_TEXT: [&str; 21] = [
    "8bitjonny/gh-get-current-pr",
    "actions-ecosystem/action-get-merged-pull-request",
    "ahmadnassri/action-changed-files",
    "eficode/resolve-pr-refs",
    "futuratrepadeira/changed-files",
    "jitterbit/get-changed-files",
    "jwalton/gh-find-current-pr",
    "khan/pull-request-comment-trigger",
    "lots0logs/gh-action-get-changed-files",
    "masesgroup/retrieve-changed-files",
    "octokit/request-action",
    "peter-evans/find-comment",
    "peter-murray/issue-body-parser-action",
    "potiuk/get-workflow-origin",
    "stefanbuck/github-issue-parser",
    "tj-actions/branch-names",
    "tj-actions/changed-files",
    "tj-actions/verify-changed-files",
    "trilom/file-changes-action",
    "xt0rted/pull-request-comment-branch",
    "zentered/issue-forms-body-parser",
];

/// Whether a step's outputs may be text that strangers write, though it is given none.
pub fn fetches_text(step: &Value) -> bool {
    let lists_files =
        || input(step, "list-files").is_some_and(|form| ["csv", "json"].contains(&form.trim()));
    let path = action_path(step);
    FETCHES_TEXT.contains(&path.as_str())
        || (path == "dorny/paths-filter" && lists_files())
        || scripts(step).iter().any(|script| {
            (script.contains("GITHUB_OUTPUT") || script.contains("GITHUB_ENV"))
                && as_code::asks_for_text(script)
        })
}

/// Whether what the step prints may set variables for later steps, as runners of before 2020 let it.
pub fn takes_commands_for_variables(step: &JobStep<'_>) -> bool {
    let is_on = step.scope.env.get("actions_allow_unsecure_commands").is_some_and(|reach| {
        reach.texts.iter().any(|text| text.trim().eq_ignore_ascii_case("true"))
    });
    is_on && step.events.iter().any(|event| events::is_caused_by_strangers(event))
}

/// The folder that a step checks a repository out into, if it isn't the workspace itself.
pub fn checkout_folder(step: &Value) -> Option<String> {
    let folder = input(step, "path").filter(|_| action_path(step) == "actions/checkout")?;
    Some(folder.trim().trim_start_matches("./").trim_end_matches('/').to_owned())
}

/// The path of an action within such a folder, as of `./base/.github/actions/x`.
pub fn path_in_checkout<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    path.strip_prefix(folder)?.strip_prefix('/')
}

pub fn is_checkout_pr(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/checkout-pr")
}

/// An input of a step, as text.
pub fn input(step: &Value, name: &str) -> Option<String> {
    let with = step.get("with")?.as_mapping()?;
    let given =
        with.iter().find(|(key, _)| key.as_str().is_some_and(|key| key.eq_ignore_ascii_case(name)));
    match given?.1 {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
