//! `--act`: runs the backend's workflow on this machine, as the relay's dispatch would start it.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use crcr_cidata::webhook_archive::{ArchivedWebhook, WebhookHead};
use serde_json::json;
use tokio::process::Command;

use super::recipe::Recipe;
use super::test_command::shell_word;
use crate::cli::reproduce::ReproduceArgs;
use crate::commands::git::Git;
use crate::commands::workflow::DispatchWorkflow;
use crate::commands::{no_temporary_folder, working_folder};
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

const FOLDER: &str = ".github/workflows";
const MAX_EVENT_BYTES: u64 = 1024 * 1024;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// What act itself needs. The rest, such as tokens and keys, stays away from the workflow.
const KEPT_VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "TMPDIR",
    "TERM",
    "LANG",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "LLVM_PROFILE_FILE",
];

pub async fn run(args: &ReproduceArgs, recipe: &Recipe, env: &Env, printer: &Printer) -> Outcome {
    let workflow = find_workflow(args, recipe)?;
    check_commit(args, recipe, &workflow, printer).await?;
    let event = match &args.event {
        Some(path) => recorded_event(path)?,
        None => made_event(recipe),
    };
    let mut file = tempfile::Builder::new()
        .prefix("crcr-event")
        .suffix(".json")
        .tempfile()
        .map_err(no_temporary_folder)?;
    file.write_all(event.to_string().as_bytes()).map_err(no_temporary_folder)?;
    let known = known_to_act(&workflow)?;
    let workflow = known.as_ref().map_or(workflow, |(_, path)| path.clone());
    let mut line: Vec<OsString> = ["repository_dispatch", "--eventpath"].map(OsString::from).into();
    line.extend([file.path().into(), "--workflows".into(), workflow.into_os_string()]);
    line.extend(args.act_args.iter().cloned());
    let words: Vec<_> = line.iter().map(|word| shell_word(&word.to_string_lossy())).collect();
    printer.line(&format!("act {}", words.join(" ")));
    let kept = KEPT_VARIABLES.into_iter().filter_map(|name| Some((name, env.get(name)?)));
    let mut act = Command::new("act");
    act.args(&line).env_clear().envs(kept).stdin(Stdio::null()).kill_on_drop(true);
    let status = act.status().await.map_err(|error| {
        Failure::unexpected("no-act", "`act` can't be run")
            .because(error)
            .hint("install it from https://nektosact.com, or leave out `--act`")
    })?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The workflow named, or that of the failed run, or the only one here that the relay starts.
fn find_workflow(args: &ReproduceArgs, recipe: &Recipe) -> Result<PathBuf, Failure> {
    let backend = &recipe.backend;
    let found: Vec<PathBuf> = match (&args.workflow, &*recipe.workflows) {
        (Some(path), _) => vec![path.clone()],
        (None, [only]) if is_workflow_path(&only.path) => vec![PathBuf::from(&only.path)],
        (None, _) => dispatched_workflows(Path::new(FOLDER)),
    };
    match &*found {
        [path] if path.is_file() => Ok(path.clone()),
        [path] => {
            let message = format!("there is no `{}` here", path.display());
            Err(Failure::user("no-workflow", message)
                .hint(format!("run it in a clone of `{backend}`")))
        }
        [] => {
            let message = "no workflow here starts on `repository_dispatch`";
            Err(Failure::user("no-workflow", message)
                .hint(format!("run it in a clone of `{backend}`")))
        }
        _ => {
            Err(Failure::user("many-workflows", "several workflows start on `repository_dispatch`")
                .hint("name one: `--workflow PATH`"))
        }
    }
}

/// Whether this clone is at the commit whose workflow ran; what it has to do with upstream may have changed
/// since.
async fn check_commit(
    args: &ReproduceArgs,
    recipe: &Recipe,
    workflow: &Path,
    printer: &Printer,
) -> Result<(), Failure> {
    if args.any_commit {
        return Ok(());
    }
    let ran: Vec<_> =
        recipe.workflows.iter().filter(|run| Path::new(&run.path) == workflow).collect();
    let Some(run) = ran.first() else {
        let why =
            recipe.workflows_unknown.as_deref().unwrap_or("no failed run is of this workflow");
        let message = format!("it isn't known at which commit `{}` ran: {why}", recipe.backend);
        printer
            .warning(&message, Some("the workflow and the files of this clone's commit are used"));
        return Ok(());
    };
    let here = working_folder()?;
    let git = Git::new(&here, "https://github.com", None, printer);
    let hint = format!(
        "`git checkout {}` in a clone of `{}`, or pass `--any-commit` to run what is here",
        run.commit, recipe.backend
    );
    let head = git.capture(&["rev-parse", "HEAD"]).await.map_err(|error| match error.code() {
        "no-git" => error,
        _ => Failure::user("no-clone", "git knows no commit here").hint(&*hint),
    })?;
    if ran.iter().any(|run| run.commit == head) {
        return Ok(());
    }
    let message = format!("this clone is at {head}, and the run was at {}", run.commit);
    Err(Failure::user("other-commit", message).hint(hint))
}

/// A copy of a workflow without the keys that act refuses although GitHub knows them: `cache-mode`, and `deployment`
/// of an environment. `None` if it has none of them. The folder lives as long as the value.
fn known_to_act(path: &Path) -> Result<Option<(tempfile::TempDir, PathBuf)>, Failure> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(None) };
    let is_refused = |line: &&str| {
        ["cache-mode:", "deployment:"].iter().any(|key| line.trim_start().starts_with(key))
    };
    if !text.lines().any(|line| is_refused(&line)) {
        return Ok(None);
    }
    let folder = tempfile::tempdir().map_err(no_temporary_folder)?;
    let copy = folder.path().join(path.file_name().unwrap_or("workflow.yml".as_ref()));
    let kept = text.lines().filter(|line| !is_refused(line)).map(|line| format!("{line}\n"));
    fs::write(&copy, kept.collect::<String>()).map_err(no_temporary_folder)?;
    Ok(Some((folder, copy)))
}

/// A path from GitHub's answer, which must not lead out of the folder.
fn is_workflow_path(path: &str) -> bool {
    let name = path.strip_prefix(".github/workflows/").unwrap_or_default();
    !name.is_empty() && !name.contains(['/', '\\'])
}

fn dispatched_workflows(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "yml" || end == "yaml"))
        .filter(|path| {
            fs::read_to_string(path).is_ok_and(|text| DispatchWorkflow::read(&text).is_some())
        })
        .collect();
    found.sort();
    found
}

/// An event that somebody kept: the run's whole event, its `client_payload`, the webhook that upstream's
/// GitHub sent, or that webhook as an object of the relay's archive.
fn recorded_event(path: &Path) -> Result<serde_json::Value, Failure> {
    let unusable = || Failure::user("event", format!("`{}` can't be used", path.display()));
    let size = fs::metadata(path).map_err(|error| unusable().because(error))?.len();
    if size > MAX_EVENT_BYTES {
        return Err(unusable().hint("an event of `repository_dispatch` has 64 KiB at most"));
    }
    let text = fs::read(path).map_err(|error| unusable().because(error))?;
    let json = |text: &[u8]| -> Result<serde_json::Value, Failure> {
        serde_json::from_slice(text).map_err(|error| unusable().because(error))
    };
    if text.starts_with(&ZSTD_MAGIC) {
        let archived = ArchivedWebhook::unpack(&text)
            .map_err(|reason| unusable().because(anyhow::anyhow!(reason)))?;
        let WebhookHead { event, delivery, .. } = &archived.head;
        return Ok(dispatched(event, delivery, json(&archived.body)?));
    }
    let event = json(&text)?;
    Ok(match (event.get("client_payload"), event.get("delivery_id"), event.get("pull_request")) {
        (Some(_), ..) => event,
        (None, None, Some(_)) => dispatched("pull_request", "crcr-reproduce", event),
        _ => json!({ "action": event["event_type"], "client_payload": event }),
    })
}

/// The event of the run that the relay's dispatch of a webhook starts.
fn dispatched(event: &str, delivery: &str, webhook: serde_json::Value) -> serde_json::Value {
    let payload = json!({ "event_type": event, "delivery_id": delivery, "payload": webhook });
    json!({ "action": event, "client_payload": payload })
}

/// What the relay dispatched, as far as the HUD recorded it. There is no callback token, so that a report
/// of this run proves nothing.
fn made_event(recipe: &Recipe) -> serde_json::Value {
    let Recipe { upstream, pull_request, head_sha, .. } = recipe;
    json!({
        "action": "pull_request",
        "repository": { "full_name": recipe.backend },
        "client_payload": {
            "event_type": "pull_request",
            "delivery_id": "crcr-reproduce",
            "payload": {
                "action": "synchronize",
                "number": pull_request,
                "repository": { "full_name": upstream },
                "pull_request": {
                    "number": pull_request,
                    "head": { "sha": head_sha, "repo": { "full_name": upstream } },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_act_refuses_are_left_out_of_the_copy_it_gets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ci.yml");
        fs::write(&path, "jobs:\n  a:\n    cache-mode: none\n    environment:\n      name: ci\n")
            .unwrap();
        let (_folder, copy) = known_to_act(&path).unwrap().unwrap();
        assert_eq!(copy.file_name().unwrap(), "ci.yml");
        let text = fs::read_to_string(copy).unwrap();
        assert_eq!(text, "jobs:\n  a:\n    environment:\n      name: ci\n");
        fs::write(&path, "jobs: {}\n").unwrap();
        assert!(known_to_act(&path).unwrap().is_none());
    }

    #[test]
    fn workflow_path_of_a_run_cannot_leave_its_folder() {
        assert!(is_workflow_path(".github/workflows/ci.yml"));
        for path in ["", ".github/workflows/", "../ci.yml", ".github/workflows/../../x.yml", "/x"] {
            assert!(!is_workflow_path(path), "{path}");
        }
    }
}
