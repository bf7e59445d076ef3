//! `crcr allowlist validate`: everything that is wrong with a file, in one run.

use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;

use crcr_domain::allowlist::diff;

use super::input::Input;
use super::online::{self, Answers, Ask};
use crate::cli::allowlist::ValidateArgs;
use crate::commands::allowlist::diff as review;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::{Format, Report};
use crate::runner::Runner;

/// Prints the findings to stdout; in a workflow also outputs and the step summary.
pub async fn run(args: &ValidateArgs, env: &Env, printer: &Printer) -> Outcome {
    let upstream = &args.file.upstream;
    let input = Input::read(args.file.name())?;
    let mut outcome = input.parse(upstream);
    let base = match &args.base {
        Some(base) => Some(Input::read_revision(base)?.parse(upstream)),
        None => None,
    };
    if let Some(base) = &base {
        let reason = args.reason.as_deref().unwrap_or_default();
        let found = diff::review(&base.policy, &outcome, reason);
        outcome.findings.extend(found);
    }
    let answers = if args.online.online {
        online::check(&args.online, &outcome, upstream, Ask::Everything, env, printer).await?
    } else {
        Answers::default()
    };
    outcome.findings.extend(answers.findings);
    for told in &answers.not_checked {
        printer.notice(told);
    }
    if args.strict {
        outcome.findings.make_strict();
    }
    outcome.findings.sort();
    let report = Report {
        file: &input.name,
        source: &outcome.source,
        findings: &outcome.findings,
        repositories: outcome.policy.len(),
        not_checked: &answers.not_checked,
    };
    if let Some(path) = &args.sarif_file {
        write_whole(Path::new(path), &report.render(Format::Sarif, false))?;
    }
    let text = report.render(args.format, printer.color_out());
    // A source line can hold what the runner acts on anywhere in a line.
    let guard = args.format == Format::Text && printer.actions();
    printer.data(&if guard { text.replace("##[", "## [") } else { text });

    if env.get(env_vars::GITHUB_OUTPUT).is_some() {
        let mut comment = report.render(Format::Markdown, false);
        if let Some(base) = &base {
            comment.push_str(&review::markdown(&base.policy, &outcome.policy));
        }
        tell_the_workflow(&Runner::new(env, printer), args, &report, &comment)?;
    }
    Ok(ExitCode::from(u8::from(outcome.findings.errors() > 0)))
}

fn tell_the_workflow(
    runner: &Runner,
    args: &ValidateArgs,
    report: &Report<'_>,
    comment: &str,
) -> Result<(), Failure> {
    runner.summary(comment)?;
    let findings = report.findings;
    runner.set_outputs(&[
        ("valid", if findings.errors() == 0 { "true" } else { "false" }),
        ("errors", &findings.errors().to_string()),
        ("warnings", &findings.warnings().to_string()),
        ("repositories", &report.repositories.to_string()),
        ("sarif-file", args.sarif_file.as_deref().unwrap_or_default()),
        ("comment", &fitting(comment)),
    ])
}

/// The most characters of a comment: GitHub takes 65,536, and a step's variable holds 128 KiB.
const MAX_COMMENT: usize = 30_000;

/// The text, cut after a whole line where it is too long for a comment.
fn fitting(comment: &str) -> Cow<'_, str> {
    let Some((end, _)) = comment.char_indices().nth(MAX_COMMENT) else { return comment.into() };
    let end = comment[..end].rfind('\n').map_or(end, |line| line + 1);
    let more = "\n… and more, in the summary of the workflow run\n";
    format!("{}{more}", &comment[..end]).into()
}

/// Writes a file whole or not at all.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        // The permissions of the file that it replaces, else those of any new file.
        let mode = std::fs::metadata(path).map(|old| old.permissions());
        file.as_file().set_permissions(mode.unwrap_or_else(|_| plain_permissions(&file)))?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|error: std::io::Error| {
        Failure::unexpected("file-unwritable", format!("`{}` can't be written", path.display()))
            .because(error)
    })
}

/// What anybody may read; a temporary file is private.
#[cfg(unix)]
fn plain_permissions(_file: &tempfile::NamedTempFile) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

/// What the system gives a new file.
#[cfg(not(unix))]
fn plain_permissions(file: &tempfile::NamedTempFile) -> std::fs::Permissions {
    file.as_file().metadata().map(|data| data.permissions()).expect("the file is open")
}
