//! What the workflows of the checkout around `crcr doctor` let strangers' code reach.

use std::fs;
use std::path::{Path, PathBuf};

use super::downstream::stranger_code;
use super::report::{CheckResult, CheckStatus};
use crate::env_vars::{self, Env};
use crate::render::plural;

const FOLDER: &str = ".github/workflows";
const MAX_WORKFLOWS: usize = 100;
const MAX_WORKFLOW_BYTES: u64 = 1024 * 1024;

/// The findings; one result that nothing was found if there is nothing. Empty outside of a checkout.
pub fn check(env: &Env) -> Vec<CheckResult> {
    let Some(folder) = workflow_folder(env) else { return vec![] };
    let files = read(&folder);
    let texts: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
    let results = stranger_code(&texts, env).into_iter();
    let mut results: Vec<_> = results.filter(|found| found.status != CheckStatus::Ok).collect();
    if results.is_empty() && !files.is_empty() {
        let count = plural(files.len(), "workflow", "workflows");
        let message = format!("{count} of this checkout: strangers' code reaches nothing");
        results.push(CheckResult::ok("workflows", message));
    }
    results
}

/// That of the job's workspace, or of the repository around the working directory.
fn workflow_folder(env: &Env) -> Option<PathBuf> {
    let here = std::env::current_dir().ok();
    let start = env.get(env_vars::GITHUB_WORKSPACE).map(PathBuf::from).or(here)?;
    let top = start.ancestors().find(|folder| folder.join(".git").exists())?;
    Some(top.join(FOLDER)).filter(|folder| folder.is_dir())
}

/// The workflows of a folder, at most a hundred, by their paths.
fn read(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries
        .filter(|entry| {
            let small = |file: fs::Metadata| file.is_file() && file.len() <= MAX_WORKFLOW_BYTES;
            entry.metadata().is_ok_and(small)
        })
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "yml" || end == "yaml"))
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((format!("{FOLDER}/{name}"), fs::read_to_string(path).ok()?))
    };
    paths.into_iter().take(MAX_WORKFLOWS).filter_map(read).collect()
}
