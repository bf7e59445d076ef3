//! Reads an allowlist from disk, standard input or a git revision.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crcr_domain::allowlist::{MAX_BYTES, ParseOutcome};
use crcr_domain::protocol::event::is_sha;
use crcr_domain::{Allowlist, RepoName};

use crate::cli::allowlist::{DEFAULT_FILE, FileArgs, FindingsFormat};
use crate::commands::git::ObjectReader;
use crate::commands::{no_temporary_folder, read_bounded, read_file};
use crate::env_vars::{self, Env};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::render::{FindingsReport, ListedEntries};

/// The content of a file, cut one byte above the size that the parser accepts.
pub struct AllowlistFile {
    /// As messages show it: `<stdin>`, a path or `REVISION:PATH`.
    pub name: String,
    pub bytes: Vec<u8>,
    /// `REVISION:PATH` of the allowlist in its default place, of a revision that has it only there.
    pub elsewhere: Option<String>,
}

impl FileArgs {
    pub fn name(&self) -> &str {
        self.path.as_deref().or(self.file.as_deref()).unwrap_or(DEFAULT_FILE)
    }
}

impl AllowlistFile {
    /// Reads a file; `-` is standard input.
    pub fn read(name: &str) -> Result<Self, Failure> {
        let shown = if name == "-" { "<stdin>" } else { name };
        let bytes = read_file(name, MAX_BYTES).map_err(|error| {
            Failure::unexpected("allowlist-unreadable", format!("`{shown}` can't be read"))
                .because(error)
                .hint("name the file, or `-` for standard input")
        })?;
        Ok(Self { name: shown.to_owned(), bytes, elsewhere: None })
    }

    /// Reads `REVISION:PATH`, the allowlist of a git revision at `default_path`, or a file. If the revision has no such
    /// file, the content is empty: the change under review adds the file.
    ///
    /// A revision takes precedence over a file of the same name, which a pull request could add. A full
    /// commit hash is always a revision, even where git is missing or refuses the folder.
    pub fn read_revision(name: &str, default_path: &str, env: &Env) -> Result<Self, Failure> {
        let (revision, path) = name.split_once(':').unwrap_or((name, default_path));
        let git = GitCommands::new(env).map_err(no_temporary_folder)?;
        let is_file =
            || !is_sha(revision) && Path::new(name).exists() && !git.is_revision(revision);
        if name == "-" || is_file() {
            return Self::read(name);
        }
        let no_revision = |what: String| {
            Failure::unexpected("no-such-revision", what)
                .hint("name a file, a git revision, or REVISION:PATH; in a workflow, check out with `fetch-depth: 0`")
        };
        if revision.is_empty() || revision.starts_with('-') || path.is_empty() {
            return Err(no_revision(format!("`{name}` is neither a file nor a git revision")));
        }
        match git.revision_status(revision) {
            Ok(status) if status.success() => {}
            Ok(_) => {
                return Err(no_revision(format!("`{name}` is neither a file nor a git revision")));
            }
            Err(error) => return Err(no_revision("git can't be run".to_owned()).because(error)),
        }
        let object = format!("{revision}:{path}");
        let mut child = git
            .command(&["cat-file", "blob"])
            .arg(&object)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| no_revision("git can't be run".to_owned()).because(error))?;
        let stdout = child.stdout.take().expect("the output is a pipe");
        let bytes = read_bounded(stdout, MAX_BYTES)
            .map_err(|error| no_revision(format!("`{object}` can't be read")).because(error))?;
        // Of a file that is too large git can't print the rest, and fails, too.
        let has_failed = !child.wait().is_ok_and(|status| status.success());
        let is_missing = has_failed && bytes.is_empty();
        let default = format!("{revision}:{DEFAULT_FILE}");
        let is_elsewhere = is_missing && !name.contains(':') && git.has_object(&default);
        Ok(Self { name: object, bytes, elsewhere: is_elsewhere.then_some(default) })
    }

    pub fn parse(&self, upstream: &RepoName) -> ParseOutcome {
        Allowlist::parse(&self.bytes, upstream)
    }

    /// Parses the file. If it has errors, prints all findings to stderr and fails with exit code 1.
    pub fn parse_valid(
        &self,
        upstream: &RepoName,
        printer: &Printer,
    ) -> Result<ParseOutcome, Failure> {
        let outcome = self.parse(upstream);
        if outcome.findings.errors() == 0 {
            return Ok(outcome);
        }
        let report = FindingsReport {
            file: &self.name,
            source: &outcome.source,
            findings: &outcome.findings,
            listed: ListedEntries::Repositories(outcome.policy.len()),
            not_checked: &[],
        };
        printer.line(report.render(FindingsFormat::Text, false).trim_end());
        Err(Failure::user("invalid-allowlist", format!("`{}` has errors", self.name))
            .hint("fix them first; `crcr allowlist validate` prints them, too"))
    }
}

/// On a runner the folder is the workspace, which the job uses whoever owns it. Elsewhere git refuses a folder of another
/// user, whose settings may start programs.
struct GitCommands(Option<ObjectReader>);

impl GitCommands {
    fn new(env: &Env) -> io::Result<Self> {
        let is_runner = env.get(env_vars::GITHUB_ACTIONS).is_some();
        is_runner.then(|| ObjectReader::new(env)).transpose().map(Self)
    }

    fn is_revision(&self, name: &str) -> bool {
        !name.is_empty()
            && !name.starts_with('-')
            && self.revision_status(name).is_ok_and(|status| status.success())
    }

    fn revision_status(&self, revision: &str) -> io::Result<ExitStatus> {
        self.command(&["rev-parse", "--verify", "--quiet", "--end-of-options"])
            .arg(format!("{revision}^{{commit}}"))
            .stdout(Stdio::null())
            .status()
    }

    fn has_object(&self, object: &str) -> bool {
        let status = self.command(&["cat-file", "-e"]).arg(object).stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = match &self.0 {
            Some(reader) => reader.command(),
            None => Command::new("git"),
        };
        command.args(args).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }
}
