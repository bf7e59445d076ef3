//! What the workflows of the checkout around `crcr doctor` let strangers' code reach.

use std::fs;
use std::path::{Path, PathBuf};

use super::report::CheckResult;
use super::strangers;
use crate::commands::stranger_code::WorkflowSet;
use crate::env_vars::{self, Env};
use crate::render::plural;

const FOLDER: &str = ".github/workflows";
const MAX_WORKFLOWS: usize = 1000;
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Whose pull requests are tested, where no option says it.
const UPSTREAM: &str = "pytorch/pytorch";

/// The findings and what isn't understood; one result that nothing was found if there is neither.
pub fn check(ephemeral_runners: &[String], env: &Env) -> Vec<CheckResult> {
    const CHECK: &str = "workflows";
    let top = match checkout(env) {
        Ok(top) => top,
        Err(why) => return vec![CheckResult::not_checked(CHECK, why)],
    };
    let own = env.get(env_vars::GITHUB_REPOSITORY).map(str::to_owned).or_else(|| origin(&top));
    let mut set = WorkflowSet::new(own.as_deref(), UPSTREAM);
    set.add_ephemeral_runners(ephemeral_runners);
    let count = add_workflows(&mut set, &top);
    while let wanted = set.wanted_actions()
        && !wanted.is_empty()
    {
        for path in wanted {
            set.add_action(&path, read(&top.join(&path)).ok().as_deref());
        }
    }
    let judged = set.judge();
    let mut results = strangers::open_ways(&judged, env);
    if let Some(unknown) = strangers::unknown(&judged) {
        results.push(CheckResult::not_checked(CHECK, unknown));
    }
    if count > 0 && results.is_empty() {
        let count = plural(count, "workflow", "workflows");
        let message = format!("{count} of this checkout: strangers' code reaches nothing");
        results.push(CheckResult::ok(CHECK, message));
    }
    results
}

/// The top of the repository around the job's workspace or the working directory, or where there is none, as in an
/// unpacked archive, the nearest folder with workflows. Else why nothing is checked.
fn checkout(env: &Env) -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("the working folder: {error}"));
    let start = env.get(env_vars::GITHUB_WORKSPACE).map(PathBuf::from).map_or(here, Ok)?;
    let has_workflows = |folder: &&Path| folder.join(FOLDER).is_dir();
    let found = match start.ancestors().find(|folder| folder.join(".git").exists()) {
        Some(top) => Some(top).filter(has_workflows),
        None => start.ancestors().find(has_workflows),
    };
    found
        .map(Path::to_owned)
        .ok_or_else(|| format!("no `{FOLDER}` in `{}` or above", start.display()))
}

/// Adds the workflows, up to a limit, and returns how many there are.
fn add_workflows(set: &mut WorkflowSet, top: &Path) -> usize {
    let entries = match fs::read_dir(top.join(FOLDER)) {
        Ok(entries) => entries,
        Err(error) => {
            set.add_unknown(format!("`{FOLDER}`: {error}"));
            return 0;
        }
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let is_workflow =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "yml" || end == "yaml");
    let mut paths: Vec<_> = paths.filter(is_workflow).filter(|path| path.is_file()).collect();
    paths.sort();
    for path in paths.iter().take(MAX_WORKFLOWS) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{FOLDER}/{name}");
        match read(path) {
            Ok(text) => set.add_workflow(&name, &text),
            Err(why) => set.add_unknown(format!("`{name}`: {why}")),
        }
    }
    if paths.len() > MAX_WORKFLOWS {
        set.add_unknown(format!("{} of {} workflows", paths.len() - MAX_WORKFLOWS, paths.len()));
    }
    paths.len()
}

/// The repository that a clone is of, `owner/repo`.
fn origin(top: &Path) -> Option<String> {
    let config = read(&top.join(".git/config")).ok()?;
    let section = config.split("[remote \"origin\"]").nth(1)?;
    let url = section.lines().find_map(|line| line.trim().strip_prefix("url = "))?;
    let mut parts = url.trim_end_matches('/').trim_end_matches(".git").rsplit(['/', ':']);
    let (name, owner) = (parts.next()?, parts.next()?);
    Some(format!("{owner}/{name}"))
}

fn read(path: &Path) -> Result<String, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MAX_FILE_BYTES {
        return Err("larger than 1 MiB".to_owned());
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}
