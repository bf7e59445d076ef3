//! A typed view of the GitHub Actions runner: the job's facts, the event, and everything a step
//! can tell the runner, with the escaping that it requires.
//!
//! Formats: <https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands>

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rand::Rng as _;
use serde::Deserialize;

use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

/// The largest event payload that is read, in bytes; GitHub's own cap for a webhook.
const MAX_EVENT_BYTES: u64 = 25 * 1024 * 1024;

/// The runner as this step sees it. Outside Actions every fact is absent and outputs are printed.
#[derive(Clone)]
pub struct Runner {
    env: Env,
    printer: Printer,
}

/// The parts of an event's payload that decide something here. Everything in it is untrusted.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    /// What happened, for events that have actions.
    pub action: Option<String>,
    /// The pull request of `pull_request` and `pull_request_target`.
    pub pull_request: Option<PullRequest>,
    /// The payload of a `repository_dispatch`, as it came.
    pub client_payload: Option<serde_json::Value>,
}

/// A pull request in an event's payload.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PullRequest {
    /// Its number in the base repository.
    pub number: u64,
    pub head: Side,
    /// Where they are to go.
    pub base: Side,
    pub user: Option<User>,
}

/// One side of a pull request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Side {
    pub sha: String,
    #[serde(rename = "ref")]
    pub ref_name: String,
    /// The repository; `None` when it has been deleted.
    pub repo: Option<Repository>,
}

/// A repository in an event's payload.
#[derive(Debug, Clone, Deserialize)]
pub struct Repository {
    /// `owner/repo`.
    pub full_name: String,
}

/// A user in an event's payload.
#[derive(Debug, Clone, Deserialize)]
pub struct User {
    pub login: String,
}

impl Runner {
    /// The runner that `env` describes.
    pub fn new(env: &Env, printer: &Printer) -> Self {
        Self { env: env.clone(), printer: printer.clone() }
    }

    /// The variables of the job.
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

    /// Whether the workspace holds the commit that `GITHUB_SHA` names, as far as its `.git` tells
    /// without running git: a detached `HEAD`, which is what `actions/checkout` leaves.
    pub fn base_is_checked_out(&self) -> bool {
        let (Some(workspace), Some(sha)) =
            (self.env.get(env_vars::GITHUB_WORKSPACE), self.env.get(env_vars::GITHUB_SHA))
        else {
            return false;
        };
        let head = std::fs::read_to_string(Path::new(workspace).join(".git/HEAD"));
        head.is_ok_and(|head| head.trim() == sha)
    }

    /// The folder for temporary files: the runner's, else the system's.
    pub fn temp_dir(&self) -> PathBuf {
        self.env.get(env_vars::RUNNER_TEMP).map_or_else(std::env::temp_dir, PathBuf::from)
    }

    /// The payload of the event; an empty one when there is none.
    ///
    /// Fails with `event-payload` when the file can't be read, is over 25 MB or isn't the JSON
    /// that GitHub writes.
    pub fn event(&self) -> Result<Event, Failure> {
        let Some(path) = self.env.get(env_vars::GITHUB_EVENT_PATH) else {
            return Ok(Event::default());
        };
        let broken = |what: String| {
            Failure::unexpected("event-payload", what)
                .hint("`GITHUB_EVENT_PATH` must name the JSON file that the runner wrote")
        };
        let file = File::open(path)
            .map_err(|e| broken(format!("the event payload `{path}` can't be read")).because(e))?;
        let mut bytes = Vec::new();
        file.take(MAX_EVENT_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| broken(format!("the event payload `{path}` can't be read")).because(e))?;
        if bytes.len() as u64 > MAX_EVENT_BYTES {
            return Err(broken(format!("the event payload `{path}` is larger than 25 MB")));
        }
        serde_json::from_slice(&bytes).map_err(|e| {
            broken(format!("the event payload `{path}` isn't what GitHub writes")).because(e)
        })
    }

    /// Sets outputs of this step, all in one write; printed to stdout as `name=value` when there
    /// is no output file.
    pub fn set_outputs(&self, outputs: &[(&str, &str)]) -> Result<(), Failure> {
        if self.env.get(env_vars::GITHUB_OUTPUT).is_none() {
            for (name, value) in outputs {
                self.printer.data(&format!("{name}={value}\n"));
            }
            return Ok(());
        }
        self.append_pairs(env_vars::GITHUB_OUTPUT, outputs)
    }

    /// Exports variables to the later steps of the job, all in one write; outside Actions nobody
    /// could read them, so nothing happens.
    pub fn export(&self, variables: &[(&str, &str)]) -> Result<(), Failure> {
        if self.env.get(env_vars::GITHUB_ENV).is_none() {
            return Ok(());
        }
        self.append_pairs(env_vars::GITHUB_ENV, variables)
    }

    /// Adds markdown to the step summary, when there is one. The text of strangers in it must have
    /// gone through [`markdown_text`].
    pub fn summary(&self, markdown: &str) -> Result<(), Failure> {
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
/// A value of several lines stands between two lines of a random delimiter, so that no value can
/// end itself early and smuggle in a second name.
fn file_command(name: &str, value: &str) -> String {
    debug_assert!(!name.contains(['=', '\n', '\r', '<']), "names are ours: {name}");
    if value.contains(['\n', '\r']) {
        let delimiter = format!("crcr_{:032x}", rand::rng().random::<u128>());
        format!("{name}<<{delimiter}\n{value}\n{delimiter}\n")
    } else {
        format!("{name}={value}\n")
    }
}

/// A workflow command as the runner parses it: `::name key=value,key=value::message`.
pub fn command(name: &str, properties: &[(&str, &str)], message: &str) -> String {
    let mut out = format!("::{name}");
    for (n, (key, value)) in properties.iter().enumerate() {
        out.push(if n == 0 { ' ' } else { ',' });
        out.push_str(key);
        out.push('=');
        out.push_str(&escape(value).replace(':', "%3A").replace(',', "%2C"));
    }
    out.push_str("::");
    out.push_str(&escape(message));
    out
}

fn escape(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Text of a stranger as markdown that shows it and does nothing: no HTML, link, mention or table
/// cell of its own.
pub fn markdown_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' => out.push_str("@\u{200b}"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '(' | ')' | '#' | '!' | '|' | '~' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_escape_what_the_runner_would_read_as_syntax() {
        assert_eq!(
            command("error", &[("file", "a,b:c%.yml"), ("line", "3")], "50 %\r\n::warning::x"),
            "::error file=a%2Cb%3Ac%25.yml,line=3::50 %25%0D%0A::warning::x"
        );
        assert_eq!(command("endgroup", &[], ""), "::endgroup::");
    }

    #[test]
    fn a_value_of_several_lines_cannot_set_a_second_name() {
        let first = file_command("a", "x\nEOF\nb=evil");
        let second = file_command("a", "x\nEOF\nb=evil");
        assert_ne!(first, second, "the delimiter is random");
        let delimiter = first.lines().next().unwrap().strip_prefix("a<<").unwrap();
        assert_eq!(first.matches(delimiter).count(), 2);
        assert!(first.ends_with(&format!("\n{delimiter}\n")));
        assert_eq!(file_command("a", "b=c"), "a=b=c\n");
    }

    #[test]
    fn markdown_of_a_stranger_is_text() {
        assert_eq!(
            markdown_text("<b>@team|[x](y)`\n"),
            "&lt;b&gt;@\u{200b}team\\|\\[x\\]\\(y\\)\\` "
        );
    }
}
