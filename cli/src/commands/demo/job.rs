//! A job of a workflow as the runner would run it: this executable, one process a step, in an
//! environment that holds what GitHub sets and nothing of the caller's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crcr_standin::State;
use crcr_standin::runs::Job as RunnerJob;
use serde_json::Value;
use tokio::process::Command;

use super::failed;
use crate::env_vars::{self, Env};
use crate::failure::Failure;

/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job and its folder.
pub struct Job {
    folder: PathBuf,
    environment: BTreeMap<String, String>,
}

/// What a step left behind.
pub struct Step {
    outputs: BTreeMap<String, String>,
}

impl Step {
    /// An output, empty when it wasn't set.
    pub fn output(&self, name: &str) -> &str {
        self.outputs.get(name).map_or("", String::as_str)
    }
}

impl Job {
    /// The job `job` of the stand-in, with its event and folders below `folder`.
    pub fn new(
        state: &State,
        job: &RunnerJob,
        event: &Value,
        folder: PathBuf,
        env: &Env,
    ) -> Result<Self, Failure> {
        let workspace = folder.join("workspace");
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        fs::create_dir_all(&workspace).map_err(|error| no_folder(&folder, error))?;
        fs::write(folder.join("event.json"), event.to_string())
            .map_err(|error| no_folder(&folder, error))?;
        let set = state.job_environment(job);
        let mut environment: BTreeMap<String, String> =
            set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        // Only an action's JavaScript sees these two; our actions hand them to one step.
        for (theirs, ours) in [
            ("ACTIONS_RUNTIME_TOKEN", env_vars::CRCR_RUNTIME_TOKEN),
            ("ACTIONS_RESULTS_URL", env_vars::CRCR_RESULTS_URL),
        ] {
            if let Some(value) = environment.remove(theirs) {
                environment.insert(ours.to_owned(), value);
            }
        }
        for (name, file) in [
            (env_vars::GITHUB_EVENT_PATH, "event.json"),
            (env_vars::GITHUB_ENV, "env"),
            (env_vars::GITHUB_STEP_SUMMARY, "summary"),
            (env_vars::GITHUB_WORKSPACE, "workspace"),
            (env_vars::RUNNER_TEMP, "temp"),
            (env_vars::HOME, "workspace"),
            ("TMPDIR", "temp"),
        ] {
            environment.insert(name.to_owned(), path(file));
        }
        fs::create_dir_all(folder.join("temp")).map_err(|error| no_folder(&folder, error))?;
        if let Some(path) = env.get("PATH") {
            environment.insert("PATH".to_owned(), path.to_owned());
        }
        Ok(Self { folder, environment })
    }

    /// The folder that the steps work in.
    fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    /// Writes a file of the build.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.workspace().join(name);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, bytes))
            .map_err(|error| no_folder(&path, error))
    }

    /// Runs `crcr ARGUMENTS`, which has to succeed, and hands what it exports on to the next step.
    pub async fn step(&mut self, arguments: &[&str]) -> Result<Step, Failure> {
        // The subcommands, without the flags.
        let words = arguments.iter().take_while(|argument| !argument.starts_with('-'));
        let name = words.copied().collect::<Vec<_>>().join(" ");
        let executable = std::env::current_exe()
            .map_err(|error| failed("no path to this executable").because(error))?;
        let outputs = self.folder.join("output");
        // A step starts without the outputs of the last one.
        let _ = fs::remove_file(&outputs);
        let output = Command::new(executable)
            .args(arguments)
            .env_clear()
            .envs(&self.environment)
            .env(env_vars::GITHUB_OUTPUT, &outputs)
            .current_dir(self.workspace())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(PATIENCE, output)
            .await
            .map_err(|_| {
                let (repo, seconds) = (self.repository(), PATIENCE.as_secs());
                failed(format!("`crcr {name}` of {repo} didn't end within {seconds} seconds"))
            })?
            .map_err(|error| failed(format!("`crcr {name}` can't be run")).because(error))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            let said: Vec<_> =
                log.lines().filter(|line| !line.starts_with("::add-mask::")).collect();
            let what = format!("`crcr {name}` of {} failed: {}", self.repository(), output.status);
            return Err(failed(what).because(anyhow::anyhow!("{}", said.join("; "))));
        }
        let exported = read_pairs(&self.folder.join("env"));
        self.environment.extend(exported);
        Ok(Step { outputs: read_pairs(&outputs) })
    }

    /// Fails unless these files in the folder `here` hold what the other job has in `there`.
    pub fn same_as(
        &self,
        other: &Self,
        there: &str,
        here: &str,
        names: &[&str],
    ) -> Result<(), Failure> {
        for name in names {
            let built = fs::read(other.workspace().join(there).join(name));
            let fetched = fs::read(self.workspace().join(here).join(name));
            if !matches!((built, fetched), (Ok(built), Ok(fetched)) if built == fetched) {
                let what = format!("a second job of {} didn't get `{name}`", self.repository());
                return Err(failed(what));
            }
        }
        Ok(())
    }

    fn repository(&self) -> &str {
        self.environment.get(env_vars::GITHUB_REPOSITORY).map_or("a job", String::as_str)
    }
}

fn no_folder(path: &Path, error: std::io::Error) -> Failure {
    failed(format!("`{}` can't be written", path.display())).because(error)
}

/// The pairs of a runner file: `name=value`, or a heredoc.
fn read_pairs(path: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut pairs = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let heredoc = line.split_once("<<").filter(|(name, _)| !name.contains('='));
        if let Some((name, delimiter)) = heredoc {
            let value: Vec<_> = lines.by_ref().take_while(|line| *line != delimiter).collect();
            pairs.insert(name.to_owned(), value.join("\n"));
        } else if let Some((name, value)) = line.split_once('=') {
            pairs.insert(name.to_owned(), value.to_owned());
        }
    }
    pairs
}
