//! The quarantine that counts for the run of a workflow.
//!
//! It is read from the commit that the workflow itself runs at, not from the working folder. There, the
//! checkout of the tested pull request or a test that ran could have put a file that hides its own
//! failures.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use crcr_domain::ci_data::quarantine::{MAX_BYTES, ParsedQuarantine, Quarantine};
use crcr_domain::protocol::event::is_sha;

use super::{report, today};
use crate::cli::allowlist::FindingsFormat;
use crate::cli::quarantine::DEFAULT_FILE;
use crate::commands::git::ObjectReader;
use crate::commands::read_bounded;
use crate::env_vars::{self, Env};
use crate::printer::Printer;

/// Without `given` it is the default file, which need not exist. A quarantine that can't be read is
/// a warning, and then every failure counts.
pub fn read_committed(given: Option<&str>, env: &Env, printer: &Printer) -> Quarantine {
    let name = given.unwrap_or(DEFAULT_FILE);
    let commit = env.get(env_vars::GITHUB_SHA);
    // On other CI systems and at a terminal, which file is meant has to be said.
    if given.is_none() && commit.is_none() {
        return Quarantine::default();
    }
    let read = match commit {
        Some(commit) => read_blob(name, commit, env),
        None => File::open(name)
            .and_then(|file| read_bounded(file, MAX_BYTES))
            .map_err(|error| error.to_string()),
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(why) => {
            if given.is_some() {
                let text = format!("no test is quarantined, since `{name}` can't be used: {why}");
                let hint = "check out this repository, not the tested one, in this job, and name a \
                            file of its commit in `quarantine-file`";
                printer.warning(&text, Some(hint));
            }
            return Quarantine::default();
        }
    };
    let today = today();
    let parsed = ParsedQuarantine::parse(&bytes, today);
    if parsed.findings.errors() > 0 {
        let text = report(name, &parsed).render(FindingsFormat::Text, false);
        printer.line(text.trim_end());
        let text = format!("no test is quarantined, since `{name}` has errors");
        printer.warning(&text, Some("`crcr quarantine validate` finds them before a merge"));
        return Quarantine::default();
    }
    Quarantine::new(parsed.entries, today)
}

fn read_blob(name: &str, commit: &str, env: &Env) -> Result<Vec<u8>, String> {
    if !is_sha(commit) {
        return Err("`GITHUB_SHA` isn't a commit".to_owned());
    }
    let event = env.get(env_vars::GITHUB_EVENT_NAME).unwrap_or_default();
    // Unlike these, `pull_request_target` runs at a commit of the base branch.
    if event.starts_with("pull_request") && event != "pull_request_target" {
        return Err(
            "this run is of a pull request, which could quarantine what it breaks".to_owned()
        );
    }
    let path = Path::new(name);
    let folder = path.parent().unwrap_or(Path::new(""));
    // A sparse checkout may lack the folder.
    let existing =
        folder.ancestors().find(|folder| folder.as_os_str().is_empty() || folder.is_dir());
    let existing = existing.unwrap_or(Path::new(""));
    let inner = path.strip_prefix(existing).unwrap_or(path).to_str();
    let inner = inner.ok_or("its name isn't UTF-8")?;
    let start = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let git = ObjectReader::new(env).map_err(|error| error.to_string())?;
    let mut command = git.command();
    command.args(["-c", "core.hooksPath=/dev/null", "cat-file", "blob"]);
    command.arg(format!("{commit}:./{inner}")).current_dir(start);
    // A ref of this kind replaces an object by another one.
    command.env("GIT_NO_REPLACE_OBJECTS", "1");
    // The tested code may have set a command to fetch with.
    command.env("GIT_NO_LAZY_FETCH", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("git can't be run: {error}"))?;
    let stdout = child.stdout.take().expect("the output is a pipe");
    let bytes = read_bounded(stdout, MAX_BYTES).map_err(|error| error.to_string());
    let is_too_large = bytes.as_ref().is_ok_and(|bytes| bytes.len() > MAX_BYTES);
    if is_too_large {
        // git waits for somebody to read the rest.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() && !is_too_large {
        let short: String = commit.chars().take(10).collect();
        return Err(format!(
            "the commit {short} of this workflow isn't checked out there, or has no such file"
        ));
    }
    bytes
}
