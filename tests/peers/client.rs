//! GitHub's own artifact client, for tests that talk to it: `tests/peers/artifact.mjs`, run by node.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use serde_json::Value;

/// GitHub's client as a step of one job.
pub(crate) struct Peer {
    pub(crate) environment: BTreeMap<&'static str, String>,
    folder: tempfile::TempDir,
}

impl Peer {
    /// A step of a new job of `run`.
    pub(crate) fn new(github: &StandIn, run: Run) -> Self {
        let runs = &github.state().runs;
        let job = runs.add_job(runs.add(run), "build");
        Self::with(github.state().job_environment(&job))
    }

    /// A step with these variables.
    pub(crate) fn with(environment: BTreeMap<&'static str, String>) -> Self {
        Self { environment, folder: tempfile::tempdir().unwrap() }
    }

    /// A path below the step's own folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs one call: the client's answer, or all it said.
    pub(crate) fn call(&self, args: &[&str]) -> Result<Value, String> {
        let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut peers = folders.map(|folder| folder.join("tests/peers"));
        let peers = peers.find(|folder| folder.is_dir()).unwrap();
        let output = Command::new(peers.join("node_modules/.bin/node"))
            .arg(peers.join("artifact.mjs"))
            .args(args)
            .env_clear()
            .envs(&self.environment)
            .env("GITHUB_WORKSPACE", self.folder.path())
            .env("RUNNER_TEMP", self.folder.path())
            .current_dir(self.folder.path())
            .output()
            .expect("tests/peers is installed");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer = said.lines().find_map(|line| line.strip_prefix("answer: "));
        match answer {
            Some(answer) if output.status.success() => Ok(serde_json::from_str(answer).unwrap()),
            _ => Err(said + &String::from_utf8_lossy(&output.stderr)),
        }
    }

    /// Writes `files` and uploads them.
    pub(crate) fn upload(
        &self,
        name: &str,
        level: &str,
        files: &[(&str, Vec<u8>)],
    ) -> Result<Value, String> {
        let root = self.path("files");
        let mut args = vec!["upload".to_owned(), name.to_owned()];
        args.extend([root.to_str().unwrap().to_owned(), level.to_owned()]);
        for (file, bytes) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            args.push(path.to_str().unwrap().to_owned());
        }
        self.call(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// Bytes that don't compress.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    aws_lc_rs::rand::fill(&mut bytes).unwrap();
    bytes
}
