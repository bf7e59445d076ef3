//! Runs git without a shell and without prompts. Only git's environment holds the token.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use std::{fs, io};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crcr_github::http::RetryPolicy;
use tempfile::{NamedTempFile, TempDir};
use tokio::process::Command;

use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;

/// Variables by which a step that works in another repository would lead git there, as
/// `git rev-parse --local-env-vars` lists them.
const OF_ANOTHER_REPOSITORY: [&str; 13] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Whether this is the whole id of a commit, and not a name that can move.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

pub struct Git<'a> {
    folder: PathBuf,
    /// Names and values of git settings, passed in the environment.
    settings: Vec<(String, String)>,
    protocols: &'static str,
    /// For a folder of another user.
    global_settings: Option<NamedTempFile>,
    printer: &'a Printer,
}

impl<'a> Git<'a> {
    /// git in `folder`, which sends `token` only to `server`.
    pub fn new(folder: &Path, server: &str, token: Option<&str>, printer: &'a Printer) -> Self {
        let host = server.split_once("://").map_or(server, |(_, host)| host);
        let mut settings = vec![
            // Submodules may have SSH addresses, and there is no SSH key here.
            (format!("url.{server}/.insteadOf"), format!("git@{host}:")),
            ("url.https://github.com/.insteadOf".to_owned(), "git@github.com:".to_owned()),
            ("safe.directory".to_owned(), folder.to_string_lossy().into_owned()),
            ("advice.detachedHead".to_owned(), "false".to_owned()),
            ("core.hooksPath".to_owned(), "/dev/null".to_owned()),
            ("credential.helper".to_owned(), String::new()),
        ];
        if let Some(token) = token {
            let basic = STANDARD.encode(format!("x-access-token:{token}"));
            printer.mask(token);
            printer.mask(&basic);
            let name = format!("http.{server}/.extraheader");
            // GitHub answers 400 to two such headers, and the user's own settings may have one.
            settings.push((name.clone(), String::new()));
            settings.push((name, format!("AUTHORIZATION: basic {basic}")));
        }
        // The addresses in `.gitmodules` are untrusted: no local files, no commands.
        let protocols = if server.starts_with("http://") { "http" } else { "https" };
        Self { folder: folder.to_owned(), settings, protocols, global_settings: None, printer }
    }

    /// In a container job the folder belongs to the runner's user, and git runs as root. Git before 2.38, as in
    /// Ubuntu 22.04, reads `safe.directory` only from files. So it gets one, which includes the user's own.
    #[must_use]
    pub fn where_folder_may_be_anothers(mut self, env: &Env) -> Self {
        self.global_settings = global_settings(&self.folder, env);
        self
    }

    pub async fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<(), Failure> {
        self.output(arguments).await.map(|_| ())
    }

    /// Runs a command that needs the network. An outage of a minute is survived, and a fetch that broke after
    /// many minutes is tried again.
    pub async fn run_with_retries<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<(), Failure> {
        let base = Duration::from_secs(1);
        let policy = |tries, seconds| {
            let total = Duration::from_secs(seconds);
            RetryPolicy { tries, base, total, ..RetryPolicy::default() }.start()
        };
        let (mut outage, mut any) = (policy(u32::MAX, 75), policy(3, 3600));
        loop {
            let failure = match self.run(arguments).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let text = failure.causes().join(" ");
            let again = failure.code() == "git"
                && match RemoteProblem::of(&failure) {
                    // A retry can't help.
                    RemoteProblem::Gone
                    | RemoteProblem::Refused
                    | RemoteProblem::Filter
                    | RemoteProblem::Certificate
                    | RemoteProblem::Machine => false,
                    RemoteProblem::Outage => {
                        outage.wait_to_retry(&text, None).await
                            || any.wait_to_retry(&text, None).await
                    }
                    RemoteProblem::Other => any.wait_to_retry(&text, None).await,
                };
            if !again {
                return Err(match outage.history().filter(|_| outage.tried() > 1) {
                    Some(history) => failure.because(anyhow::anyhow!("{history}")),
                    None => failure,
                });
            }
            self.printer.line(&format!("git failed ({text}); trying again"));
        }
    }

    /// Runs it and returns its trimmed output.
    pub async fn capture<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<String, Failure> {
        let output = self.output(arguments).await?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    async fn output<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Output, Failure> {
        let mut command = Command::new("git");
        command
            .args(arguments)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "")
            // Files of Git LFS are fetched by a command of their own, or not at all.
            .env("GIT_LFS_SKIP_SMUDGE", "1")
            .env("GIT_ALLOW_PROTOCOL", self.protocols)
            .env("LC_ALL", "C")
            .env_remove("GIT_CONFIG_COUNT");
        for name in OF_ANOTHER_REPOSITORY {
            command.env_remove(name);
        }
        command.env("GIT_CONFIG_PARAMETERS", parameters(&self.settings));
        if let Some(file) = &self.global_settings {
            command.env("GIT_CONFIG_GLOBAL", file.path());
        }
        let output = command.output().await.map_err(|error| {
            Failure::unexpected("no-git", "`git` can't be run")
                .because(error)
                .hint("install git on the runner, or in the job's container")
        })?;
        if output.status.success() {
            return Ok(output);
        }
        // After `-c NAME=VALUE`.
        let verb = arguments.iter().find(|verb| {
            let verb = verb.as_ref().to_string_lossy();
            verb != "-c" && !verb.contains('=')
        });
        let verb = verb.map(|verb| verb.as_ref().to_string_lossy().into_owned());
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        let stderr = stderr.collect::<Vec<_>>().join("; ");
        let stderr: String = stderr.chars().take(500).collect();
        Err(Failure::unexpected("git", format!("`git {}` failed", verb.unwrap_or_default()))
            .because(anyhow::anyhow!(
                "{}",
                if stderr.is_empty() { "it printed nothing" } else { &stderr }
            )))
    }
}

/// Settings as `git -c` hands them to the commands that it runs. git before 2.31, as in Debian 11, knows no other
/// variable for them, and arguments would show the token to other processes.
fn parameters(settings: &[(String, String)]) -> String {
    let quoted = |(name, value): &(String, String)| {
        let setting = format!("{name}={value}").replace('\'', r"'\''").replace('!', r"'\!'");
        format!("'{setting}'")
    };
    settings.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// `None` in a folder of this user's own.
#[cfg(unix)]
fn global_settings(folder: &Path, env: &Env) -> Option<NamedTempFile> {
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;
    let mut file = NamedTempFile::new().ok()?;
    if folder.metadata().ok()?.uid() == file.as_file().metadata().ok()?.uid() {
        return None;
    }
    file.write_all(own_settings_and_safe(&folder.to_string_lossy(), env).as_bytes()).ok()?;
    Some(file)
}

#[cfg(not(unix))]
fn global_settings(_: &Path, _: &Env) -> Option<NamedTempFile> {
    None
}

/// The user's own settings, and a folder that git uses whoever owns it.
fn own_settings_and_safe(folder: &str, env: &Env) -> String {
    let quoted = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
    let below = |name: &str, rest: &str| Some(format!("{}/{rest}", env.get(name)?));
    let own = match env.get(env_vars::GIT_CONFIG_GLOBAL) {
        Some(own) => vec![own.to_owned()],
        None => {
            let xdg = below(env_vars::XDG_CONFIG_HOME, "git/config");
            let xdg = xdg.or_else(|| below(env_vars::HOME, ".config/git/config"));
            xdg.into_iter().chain(below(env_vars::HOME, ".gitconfig")).collect()
        }
    };
    // git ignores an included file that doesn't exist.
    let own = own.iter().map(|path| format!("[include]\n\tpath = \"{}\"\n", quoted(path)));
    let safe = quoted(folder);
    // After the user's own, which may take all folders off the list by an empty one.
    format!("{}[safe]\n\tdirectory = \"{safe}\"\n", own.collect::<String>())
}

/// git that reads objects of a repository whoever owns it: in a container job that is the runner's user. It gets a home
/// of its own, since git that asks for the owner can be older than `GIT_CONFIG_GLOBAL`.
pub struct ObjectReader {
    home: TempDir,
}

impl ObjectReader {
    pub fn new(env: &Env) -> io::Result<Self> {
        let home = tempfile::tempdir()?;
        fs::write(home.path().join(".gitconfig"), own_settings_and_safe("*", env))?;
        Ok(Self { home })
    }

    pub fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new("git");
        let others = [env_vars::GIT_CONFIG_GLOBAL, env_vars::XDG_CONFIG_HOME];
        for name in OF_ANOTHER_REPOSITORY.iter().chain(&others) {
            command.env_remove(name);
        }
        command.env("HOME", self.home.path());
        command
    }
}

/// Why a command failed that asked a server, from what git printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteProblem {
    /// The server has no such commit, ref or repository, or doesn't show it.
    Gone,
    Refused,
    /// git here doesn't know the filter of a partial clone.
    Filter,
    /// This machine doesn't trust the server's certificate.
    Certificate,
    /// This machine can't write the files.
    Machine,
    /// No answer, half an answer, one that says that the server is down, or one of something in between.
    Outage,
    Other,
}

impl RemoteProblem {
    pub fn of(failure: &Failure) -> Self {
        Self::in_text(&failure.causes().join(" "))
    }

    fn in_text(text: &str) -> Self {
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        // git shows what a refusal or a 404 says if it is plain text, as GitHub's is, and nothing of a web page.
        let is_missing = has(&["fatal: repository"]) && has(&["not found"]);
        let is_of_proxy = (is_missing || has(&["error: 403"])) && !has(&["remote:"]);
        // A full disk breaks the connection, too, and a limit of GitHub's is a 403.
        if has(&["invalid filter-spec"]) {
            Self::Filter
        } else if has(&["No space left", "Disk quota exceeded", "Read-only file system"])
            || (has(&[
                "unable to create",
                "unable to write",
                "unable to unlink",
                "could not open",
                "cannot create",
            ]) && has(&["Permission denied"]))
        {
            Self::Machine
        } else if has(&["certificate", "SSL CA cert"]) {
            Self::Certificate
        } else if is_of_proxy || has(&["rate limit"]) {
            Self::Outage
        } else if has(&[
            "error: 401",
            "error: 403",
            "Authentication failed",
            "could not read Username",
            "HTTP code 407 from proxy",
        ]) {
            Self::Refused
        } else if has(&["unable to access"]) && !has(&["returned error"]) {
            Self::Outage
        } else if has(&["not our ref", "couldn't find remote ref", "not found", "denied"]) {
            Self::Gone
        } else if has(&[
            "error: 30",
            "error: 408",
            "error: 421",
            "error: 425",
            "error: 429",
            "error: 499",
            "error: 5",
            // A page, where the server's list of refs should be.
            "dumb http transport",
            "info/refs not valid",
            "url base from redirection",
            "Cannot obtain needed object",
            "transfer closed",
            "andshake",
            "HTTP/2 stream",
            "expected flush",
            "esolve host",
            "onnect to",
            "onnection",
            "imed out",
            "early EOF",
            "RPC failed",
            "unexpected disconnect",
            "hung up",
            "Empty reply",
            "Recv failure",
            "too slow",
            "protocol error",
        ]) {
            Self::Outage
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As git 2.39, curl and the libraries of TLS print it.
    #[test]
    fn outage_refusal_and_missing_commit_are_told_apart() {
        for (text, problem) in [
            ("fatal: remote error: upload-pack: not our ref 1111", RemoteProblem::Gone),
            ("fatal: couldn't find remote ref refs/pull/7/merge", RemoteProblem::Gone),
            ("remote: Repository not found.; fatal: repository 'x' not found", RemoteProblem::Gone),
            ("fatal: repository 'x' not found", RemoteProblem::Outage),
            (
                "fatal: could not read Username for 'https://github.com': terminal prompts disabled",
                RemoteProblem::Refused,
            ),
            (
                "remote: Write access to repository not granted.; fatal: unable to access 'x': The requested URL \
                 returned error: 403",
                RemoteProblem::Refused,
            ),
            (
                "fatal: unable to access 'x': The requested URL returned error: 403",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': The requested URL returned error: 302",
                RemoteProblem::Outage,
            ),
            (
                "fatal: dumb http transport does not support shallow capabilities",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': transfer closed with 50 bytes remaining to read",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': The requested URL returned error: 503",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': The requested URL returned error: 499",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': Could not resolve host: github.com",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': Failed to connect to 127.0.0.1 port 1 after 0 ms: \
                 Couldn't connect to server",
                RemoteProblem::Outage,
            ),
            (
                "error: RPC failed; curl 56 GnuTLS recv error (-9); fatal: early EOF",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': OpenSSL SSL_read: error:0A000126:SSL routines::unexpected eof while \
                 reading, errno 0",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': GnuTLS recv error (-54): Error in the pull function.",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': Could not resolve proxy: proxy.corp",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': Received HTTP code 503 from proxy after CONNECT",
                RemoteProblem::Outage,
            ),
            ("fatal: protocol error: bad line length character: <htm", RemoteProblem::Outage),
            (
                "remote: You have exceeded a secondary rate limit.; fatal: unable to access 'x': The requested URL \
                 returned error: 403",
                RemoteProblem::Outage,
            ),
            (
                "fatal: unable to access 'x': Received HTTP code 407 from proxy after CONNECT",
                RemoteProblem::Refused,
            ),
            (
                "fatal: unable to access 'x': server certificate verification failed. CAfile: none CRLfile: none",
                RemoteProblem::Certificate,
            ),
            (
                "fatal: unable to access 'x': SSL certificate problem: unable to get local issuer certificate",
                RemoteProblem::Certificate,
            ),
            (
                "fatal: unable to access 'x': Problem with the SSL CA cert (path? access rights?)",
                RemoteProblem::Certificate,
            ),
            (
                "fatal: write error: No space left on device; fatal: fetch-pack: unexpected disconnect while reading \
                 sideband packet; fatal: early EOF",
                RemoteProblem::Machine,
            ),
            ("error: unable to create file a/b: Permission denied", RemoteProblem::Machine),
            (
                "fatal: unable to access 'x': Failed to connect to github.com port 443: Permission denied",
                RemoteProblem::Outage,
            ),
            ("fatal: invalid filter-spec 'object:type=tree'", RemoteProblem::Filter),
            ("fatal: unable to write new index file", RemoteProblem::Other),
            ("fatal: transport 'file' not allowed", RemoteProblem::Other),
        ] {
            assert_eq!(RemoteProblem::in_text(text), problem, "{text}");
        }
    }
}
