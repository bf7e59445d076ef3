//! The GitHub Actions runner: the variables and the event payload of this step, and the files that
//! take its outputs, variables and summary.
//!
//! Formats: <https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands>

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crcr_github::runs::WorkflowRun;
use rand::Rng as _;
use serde::Deserialize;

use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

/// The largest event payload that is read, in bytes; GitHub's own cap for a webhook.
const MAX_EVENT_BYTES: u64 = 25 * 1024 * 1024;

/// The runner of this step. Outside Actions its variables are absent and outputs go to stdout.
#[derive(Clone)]
pub struct Runner {
    env: Env,
    printer: Printer,
}

/// The fields of the event payload that commands read. All of them are untrusted.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Such as `opened`, for events that have actions.
    pub action: Option<String>,
    /// The pull request of `pull_request` and `pull_request_target`.
    pub pull_request: Option<PullRequest>,
    /// The run whose end a `workflow_run` is about.
    pub workflow_run: Option<WorkflowRun>,
    pub repository: Option<EventRepository>,
    /// The payload of a `repository_dispatch`, as it came.
    pub client_payload: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PullRequest {
    pub number: u64,
    pub head: Side,
    pub base: Side,
    /// GitHub's merge of head and base, if it could be made.
    pub merge_commit_sha: Option<String>,
    pub user: Option<User>,
    /// The description that its author writes.
    pub body: Option<String>,
}

/// The head or the base of a pull request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Side {
    pub sha: String,
    #[serde(rename = "ref")]
    pub ref_name: String,
    /// The repository; `None` when it has been deleted.
    pub repo: Option<Repository>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Repository {
    /// `owner/repo`.
    pub full_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct EventRepository {
    pub full_name: String,
    pub default_branch: String,
    /// Whether it was forked from another one.
    pub fork: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct User {
    pub login: String,
}

impl Runner {
    pub fn new(env: &Env, printer: &Printer) -> Self {
        Self { env: env.clone(), printer: printer.clone() }
    }

    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The name of the event that started the workflow, empty outside Actions.
    pub fn event_name(&self) -> &str {
        self.env.get(env_vars::GITHUB_EVENT_NAME).unwrap_or_default()
    }

    /// `owner/repo` of the workflow.
    pub fn repository(&self) -> Option<&str> {
        self.env.get(env_vars::GITHUB_REPOSITORY)
    }

    /// Whether the workspace has `GITHUB_SHA` checked out as a detached `HEAD`, which is what
    /// `actions/checkout` leaves. Reads `.git/HEAD` instead of running git.
    pub fn base_is_checked_out(&self) -> bool {
        let (Some(workspace), Some(sha)) =
            (self.env.get(env_vars::GITHUB_WORKSPACE), self.env.get(env_vars::GITHUB_SHA))
        else {
            return false;
        };
        let head = std::fs::read_to_string(Path::new(workspace).join(".git/HEAD"));
        head.is_ok_and(|head| head.trim() == sha)
    }

    /// `RUNNER_TEMP`, or the system's folder for temporary files.
    pub fn temp_dir(&self) -> PathBuf {
        self.env.get(env_vars::RUNNER_TEMP).map_or_else(std::env::temp_dir, PathBuf::from)
    }

    /// The event payload; empty outside Actions.
    ///
    /// Fails with `event-payload` when the file can't be read, is larger than 25 MB or isn't the
    /// JSON that GitHub writes.
    pub fn event(&self) -> Result<Event, Failure> {
        let Some(path) = self.env.get(env_vars::GITHUB_EVENT_PATH) else {
            return Ok(Event::default());
        };
        let unusable = |what: String| {
            Failure::unexpected("event-payload", what)
                .hint("`GITHUB_EVENT_PATH` must name the JSON file that the runner wrote")
        };
        let file = File::open(path).map_err(|e| {
            unusable(format!("the event payload `{path}` can't be read")).because(e)
        })?;
        let mut bytes = Vec::new();
        file.take(MAX_EVENT_BYTES + 1).read_to_end(&mut bytes).map_err(|e| {
            unusable(format!("the event payload `{path}` can't be read")).because(e)
        })?;
        if bytes.len() as u64 > MAX_EVENT_BYTES {
            return Err(unusable(format!("the event payload `{path}` is larger than 25 MB")));
        }
        serde_json::from_slice(&bytes).map_err(|e| {
            unusable(format!("the event payload `{path}` isn't what GitHub writes")).because(e)
        })
    }

    /// Sets step outputs in a single write. Without an output file they are printed to stdout as
    /// `name=value`.
    pub fn set_outputs(&self, outputs: &[(&str, &str)]) -> Result<(), Failure> {
        if self.env.get(env_vars::GITHUB_OUTPUT).is_none() {
            for (name, value) in outputs {
                self.printer.data(&format!("{name}={value}\n"));
            }
            return Ok(());
        }
        self.append_pairs(env_vars::GITHUB_OUTPUT, outputs)
    }

    /// Exports variables to the later steps of the job in a single write. Does nothing outside
    /// Actions, where nobody could read them.
    pub fn export(&self, variables: &[(&str, &str)]) -> Result<(), Failure> {
        if self.env.get(env_vars::GITHUB_ENV).is_none() {
            return Ok(());
        }
        self.append_pairs(env_vars::GITHUB_ENV, variables)
    }

    /// Adds markdown to the step summary, if there is one. Untrusted text in it must have gone
    /// through [`escape_markdown`](crate::escape::escape_markdown).
    pub fn append_summary(&self, markdown: &str) -> Result<(), Failure> {
        if self.env.get(env_vars::GITHUB_STEP_SUMMARY).is_none() {
            return Ok(());
        }
        self.append(env_vars::GITHUB_STEP_SUMMARY, &format!("{markdown}\n"))
    }

    fn append_pairs(&self, variable: &str, pairs: &[(&str, &str)]) -> Result<(), Failure> {
        let mut text = String::new();
        for (name, value) in pairs {
            text.push_str(&file_command(name, value));
        }
        self.append(variable, &text)
    }

    fn append(&self, variable: &str, text: &str) -> Result<(), Failure> {
        let path = self.env.get(variable).unwrap_or_default();
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| {
                let hint = match e.kind() {
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                        "free some space on the runner's disk"
                    }
                    _ => "the runner names this file; a container job must mount its folder",
                };
                Failure::unexpected(
                    "runner-file",
                    format!("`{variable}` (`{path}`) can't be written"),
                )
                .because(e)
                .hint(hint)
            })
    }
}

/// One entry of an output or environment file.
///
/// A value of several lines is enclosed in a random delimiter, so that it can't end early and set a
/// second name.
fn file_command(name: &str, value: &str) -> String {
    debug_assert!(!name.contains(['=', '\n', '\r', '<']), "not a valid name: {name}");
    if value.contains(['\n', '\r']) {
        let delimiter = format!("crcr_{:032x}", rand::rng().random::<u128>());
        format!("{name}<<{delimiter}\n{value}\n{delimiter}\n")
    } else {
        format!("{name}={value}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multi_line_value_cannot_set_a_second_name() {
        let first = file_command("a", "x\nEOF\nb=evil");
        let second = file_command("a", "x\nEOF\nb=evil");
        assert_ne!(first, second, "the delimiter is random");
        let delimiter = first.lines().next().unwrap().strip_prefix("a<<").unwrap();
        assert_eq!(first.matches(delimiter).count(), 2);
        assert!(first.ends_with(&format!("\n{delimiter}\n")));
        assert_eq!(file_command("a", "b=c"), "a=b=c\n");
    }
}
