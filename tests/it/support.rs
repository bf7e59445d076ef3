//! Runs the binary as a workflow step would, in an otherwise empty environment.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

/// `cargo llvm-cov` measures a process that knows where to write its counters; it would write them
/// into its working directory otherwise.
pub(crate) fn keep_coverage(command: &mut Command) {
    if let Some(file) = std::env::var_os("LLVM_PROFILE_FILE") {
        command.env("LLVM_PROFILE_FILE", file);
    }
}

/// One run of the binary: an empty environment, a folder of its own, the runner's files.
pub(crate) struct Crcr {
    command: Command,
    folder: TempDir,
    stdin: Option<Vec<u8>>,
}

pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// `GITHUB_OUTPUT`, parsed as the runner parses it.
    pub(crate) outputs: BTreeMap<String, String>,
    /// The variables of `GITHUB_ENV`, parsed in the same way.
    pub(crate) exported: BTreeMap<String, String>,
    pub(crate) summary: String,
    folder: TempDir,
}

impl Crcr {
    /// The binary with these arguments, outside of any CI.
    pub(crate) fn new(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_crcr"));
        command.args(args).env_clear();
        command.env("HOME", folder.path()).env("TMPDIR", folder.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.current_dir(folder.path());
        keep_coverage(&mut command);
        Self { command, folder, stdin: None }
    }

    /// The binary as a step of a workflow of `acme/upstream`, run 4242, attempt 1, started by
    /// `event` with `payload`.
    pub(crate) fn step(args: &[&str], event: &str, payload: &serde_json::Value) -> Self {
        let run = Self::new(args);
        let runner = run.folder.path().join("runner");
        fs::create_dir(&runner).unwrap();
        fs::write(runner.join("event.json"), payload.to_string()).unwrap();
        run.env("GITHUB_ACTIONS", "true")
            .env("CI", "true")
            .env("GITHUB_EVENT_NAME", event)
            .env("GITHUB_EVENT_PATH", runner.join("event.json").to_str().unwrap())
            .env("GITHUB_OUTPUT", runner.join("output").to_str().unwrap())
            .env("GITHUB_ENV", runner.join("env").to_str().unwrap())
            .env("GITHUB_STEP_SUMMARY", runner.join("summary").to_str().unwrap())
            .env("RUNNER_TEMP", runner.to_str().unwrap())
            .env("GITHUB_REPOSITORY", "acme/upstream")
            .env("GITHUB_REPOSITORY_OWNER", "acme")
            .env("GITHUB_RUN_ID", "4242")
            .env("GITHUB_RUN_ATTEMPT", "1")
            .env("GITHUB_JOB", "build")
            .env("GITHUB_ACTOR", "octocat")
            .env("GITHUB_SERVER_URL", "https://github.com")
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// The same step with a limit on file sizes in KiB, like a full disk.
    pub(crate) fn with_file_limit(self, kib: u64) -> Self {
        self.in_bash(&format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\""))
    }

    /// The same step, started by a script, which gets it as its arguments.
    pub(crate) fn in_bash(mut self, script: &str) -> Self {
        let mut command = Command::new("bash");
        command.arg("-c").arg(script).arg("bash").arg(self.command.get_program());
        command.args(self.command.get_args()).env_clear();
        for (name, value) in self.command.get_envs() {
            command.envs(value.map(|value| (name, value)));
        }
        command.current_dir(self.command.get_current_dir().unwrap_or(self.folder.path()));
        self.command = command;
        self
    }

    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// The folder of this run: its home, its temporary folder and where it starts.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The command, for a test that needs the process itself.
    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    pub(crate) fn run(mut self) -> Ran {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let bytes = self.stdin.take().unwrap_or_default();
        let feeder = std::thread::spawn(move || {
            // A command that doesn't read its input closes the pipe early.
            let _ = std::io::Write::write_all(&mut pipe, &bytes);
        });
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        let runner = self.folder.path().join("runner");
        let read = |name: &str| fs::read_to_string(runner.join(name)).unwrap_or_default();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            outputs: parse_pairs(&read("output")),
            exported: parse_pairs(&read("env")),
            summary: read("summary"),
            folder: self.folder,
        }
    }
}

impl Ran {
    /// Everything that a user sees of the run, for a snapshot; the run's folder reads `[FOLDER]`.
    pub(crate) fn report(&self) -> String {
        let mut text = format!("exit code: {}\n", self.code);
        for (name, part) in
            [("stdout", &self.stdout), ("stderr", &self.stderr), ("summary", &self.summary)]
        {
            if !part.is_empty() {
                let _ = write!(text, "--- {name}\n{part}");
            }
        }
        for (name, pairs) in [("outputs", &self.outputs), ("exported", &self.exported)] {
            if !pairs.is_empty() {
                let _ = writeln!(text, "--- {name}");
                for (key, value) in pairs {
                    let _ = writeln!(text, "{key}={value}");
                }
            }
        }
        text.replace(self.folder.path().to_str().unwrap(), "[FOLDER]")
    }

    /// A file below the run's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}", self.report());
        self
    }
}

/// Parses `name=value` lines and heredocs as the runner does; the last value of a name wins.
fn parse_pairs(text: &str) -> BTreeMap<String, String> {
    let mut pairs = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let heredoc = line.split_once("<<").filter(|(name, _)| !name.contains('='));
        if let Some((name, delimiter)) = heredoc {
            let value: Vec<_> = lines.by_ref().take_while(|line| *line != delimiter).collect();
            pairs.insert(name.to_owned(), value.join("\n"));
        } else {
            let (name, value) = line.split_once('=').expect("a line of a runner file is a pair");
            pairs.insert(name.to_owned(), value.to_owned());
        }
    }
    pairs
}

/// Writes `ca.pem`, and `server.pem` and `server.key` for `localhost`.
pub(crate) fn write_certificates(folder: &Path) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let server = server.signed_by(&key, &authority).unwrap();
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    fs::write(folder.join("server.pem"), server.pem()).unwrap();
    fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
}
