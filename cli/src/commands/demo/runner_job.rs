//! Runs a job the way the GitHub runner does: one process of this executable per step, with only the
//! environment variables that GitHub sets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crcr_standin::State;
use crcr_standin::runs::Job;
use serde_json::Value;
use tokio::process::Command;

use super::demo_failure;
use crate::env_vars::{self, Env};
use crate::failure::Failure;

const STEP_TIMEOUT: Duration = Duration::from_secs(30);

pub struct RunnerJob {
    folder: PathBuf,
    environment: BTreeMap<String, String>,
}

pub struct StepOutputs {
    outputs: BTreeMap<String, String>,
}

impl StepOutputs {
    /// Empty if the output wasn't set.
    pub fn output(&self, name: &str) -> &str {
        self.outputs.get(name).map_or("", String::as_str)
    }
}

impl RunnerJob {
    /// Prepares the job `job` of the stand-in below `folder`.
    pub fn new(
        state: &State,
        job: &Job,
        event: &Value,
        folder: PathBuf,
        env: &Env,
    ) -> Result<Self, Failure> {
        let workspace = folder.join("workspace");
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        fs::create_dir_all(&workspace).map_err(|error| unwritable(&folder, error))?;
        fs::write(folder.join("event.json"), event.to_string())
            .map_err(|error| unwritable(&folder, error))?;
        let set = state.job_environment(job);
        let mut environment: BTreeMap<String, String> =
            set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        // The runner gives these two to JavaScript actions only; our actions pass them on to one step.
        for (runner_name, step_name) in [
            (env_vars::ACTIONS_RUNTIME_TOKEN, env_vars::CRCR_RUNTIME_TOKEN),
            (env_vars::ACTIONS_RESULTS_URL, env_vars::CRCR_RESULTS_URL),
        ] {
            if let Some(value) = environment.remove(runner_name) {
                environment.insert(step_name.to_owned(), value);
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
        fs::create_dir_all(folder.join("temp")).map_err(|error| unwritable(&folder, error))?;
        if let Some(path) = env.get("PATH") {
            environment.insert("PATH".to_owned(), path.to_owned());
        }
        Ok(Self { folder, environment })
    }

    fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    /// Writes a file into the workspace.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.workspace().join(name);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, bytes))
            .map_err(|error| unwritable(&path, error))
    }

    /// Runs `crcr ARGUMENTS`, and passes exported variables on to the next step. Fails unless the exit code
    /// is 0.
    pub async fn run_step(&mut self, arguments: &[&str]) -> Result<StepOutputs, Failure> {
        // The subcommands, without the flags.
        let words = arguments.iter().take_while(|argument| !argument.starts_with('-'));
        let name = words.copied().collect::<Vec<_>>().join(" ");
        let executable = std::env::current_exe()
            .map_err(|error| demo_failure("no path to this executable").because(error))?;
        let outputs = self.folder.join("output");
        // Outputs of the previous step must not leak into this one.
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
        let output = tokio::time::timeout(STEP_TIMEOUT, output)
            .await
            .map_err(|_| {
                let (repo, seconds) = (self.repository(), STEP_TIMEOUT.as_secs());
                demo_failure(format!(
                    "`crcr {name}` of {repo} didn't finish within {seconds} seconds"
                ))
            })?
            .map_err(|error| demo_failure(format!("`crcr {name}` can't be run")).because(error))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            let said: Vec<_> =
                log.lines().filter(|line| !line.starts_with("::add-mask::")).collect();
            let what = format!("`crcr {name}` of {} failed: {}", self.repository(), output.status);
            return Err(demo_failure(what).because(anyhow::anyhow!("{}", said.join("; "))));
        }
        let exported = read_runner_file(&self.folder.join("env"));
        self.environment.extend(exported);
        Ok(StepOutputs { outputs: read_runner_file(&outputs) })
    }

    /// Fails unless the files in the folder `here` equal those in the other job's folder `there`.
    pub fn expect_same_files(
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
                return Err(demo_failure(what));
            }
        }
        Ok(())
    }

    fn repository(&self) -> &str {
        self.environment.get(env_vars::GITHUB_REPOSITORY).map_or("a job", String::as_str)
    }
}

fn unwritable(path: &Path, error: std::io::Error) -> Failure {
    demo_failure(format!("`{}` can't be written", path.display())).because(error)
}

/// Reads a `GITHUB_OUTPUT` or `GITHUB_ENV` file: `name=value`, or a heredoc.
fn read_runner_file(path: &Path) -> BTreeMap<String, String> {
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
