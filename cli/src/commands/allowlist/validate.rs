//! `crcr allowlist validate`: prints all findings about a file.

use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;

use crcr_domain::allowlist::ParseOutcome;
use crcr_domain::allowlist::diff::{self, RepositoryRename};

use super::approval;
use super::diff::{UNREADABLE_BASE, markdown, review_level_changes};
use super::online::{self, OnlineFindings, OnlineScope};
use crate::cli::allowlist::{DEFAULT_FILE, FindingsFormat, ValidateArgs};
use crate::commands::allowlist_file::AllowlistFile;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::{FindingsReport, ListedEntries, path_in_repository};
use crate::runner::Runner;

/// The description of the pull request that the run is about; empty if there is none. It is read from the event's
/// file, since no variable holds one of more than 128 KiB.
fn description(runner: &Runner) -> Result<String, Failure> {
    Ok(runner.event()?.pull_request.and_then(|pull| pull.body).unwrap_or_default())
}

/// Reads what `file` is compared with: of a revision, the file of the same path.
fn read_base(
    base: &str,
    file: &str,
    env: &Env,
    printer: &Printer,
) -> Result<AllowlistFile, Failure> {
    let path = path_in_repository(file).filter(|_| file != "-");
    let read = AllowlistFile::read_revision(base, path.as_deref().unwrap_or(DEFAULT_FILE), env)?;
    if let Some(elsewhere) = &read.elsewhere {
        printer.notice(&format!(
            "`{}` doesn't exist, so every entry counts as added; `--base {elsewhere}` compares with the file that the \
             revision has",
            read.name
        ));
    }
    Ok(read)
}

/// Prints the findings to stdout; in a workflow also sets outputs and writes the step summary.
pub async fn run(args: &ValidateArgs, env: &Env, printer: &Printer) -> Outcome {
    let upstream = &args.file.upstream;
    let input = AllowlistFile::read(args.file.name())?;
    let mut outcome = input.parse(upstream);
    let base = match &args.base {
        Some(base) => Some(read_base(base, args.file.name(), env, printer)?.parse(upstream)),
        None => None,
    };
    let (renames, unseen_renames) =
        find_renames(args, base.as_ref(), &outcome, env, printer).await?;
    let review = match &base {
        Some(base) => {
            let tools = (env, printer);
            review_change(args, base, &mut outcome, renames.as_deref(), tools).await?
        }
        None => String::new(),
    };
    let mut checked = if args.online.online {
        let scope = OnlineScope::Everything { ephemeral_runners: &args.ephemeral };
        online::check(&args.online, &outcome, upstream, scope, env, printer).await?
    } else {
        OnlineFindings::default()
    };
    outcome.findings.extend(checked.findings);
    checked.not_checked.extend(unseen_renames);
    if base.is_some_and(|base| base.findings.errors() > 0) {
        checked.not_checked.push(UNREADABLE_BASE.to_owned());
    }
    for sentence in &checked.not_checked {
        printer.notice(sentence);
    }
    if args.strict {
        outcome.findings.make_strict();
    }
    outcome.findings.sort();
    let report = FindingsReport {
        file: &input.name,
        source: &outcome.source,
        findings: &outcome.findings,
        listed: ListedEntries::Repositories(outcome.policy.len()),
        not_checked: &checked.not_checked,
    };
    print_report(args, &report, printer)?;
    if env.get(env_vars::GITHUB_OUTPUT).is_some() {
        let comment = report.render(FindingsFormat::Markdown, false) + &review;
        set_workflow_outputs(&Runner::new(env, printer), args, &report, &comment)?;
    }
    Ok(ExitCode::from(u8::from(outcome.findings.errors() > 0)))
}

/// The entries that have only a new name, `None` if GitHub isn't asked; and a sentence for each that the token can't
/// see.
async fn find_renames(
    args: &ValidateArgs,
    base: Option<&ParseOutcome>,
    head: &ParseOutcome,
    env: &Env,
    printer: &Printer,
) -> Result<(Option<Vec<RepositoryRename>>, Vec<String>), Failure> {
    let Some(base) = base.filter(|_| args.online.online) else { return Ok((None, vec![])) };
    let found = online::find_renames(&args.online, &base.policy, &head.policy, env, printer);
    let (renames, unseen) = found.await?;
    for RepositoryRename { from, to, id } in &renames {
        printer.notice(&format!(
            "`{to}` is `{from}` under a new name, neither added nor removed: GitHub answers with repository {id} \
             to both"
        ));
    }
    Ok((Some(renames), unseen))
}

/// Reviews the change from `base`: adds its findings to `head`, and returns its sections of the comment.
async fn review_change(
    args: &ValidateArgs,
    base: &ParseOutcome,
    head: &mut ParseOutcome,
    renames: Option<&[RepositoryRename]>,
    (env, printer): (&Env, &Printer),
) -> Result<String, Failure> {
    let runner = Runner::new(env, printer);
    let proven = renames.unwrap_or_default();
    let mut sections = changes_table(base, head, proven);
    let reason = match &args.reason {
        Some(reason) => reason.clone(),
        None => description(&runner)?,
    };
    let found = diff::review(base, head, renames, &reason);
    head.findings.extend(found);
    let policy = (&base.policy, proven);
    let evidence = review_level_changes(&args.evidence, None, policy, head).await?;
    sections.extend(evidence.iter().map(|shown| &*shown.markdown));
    approval::tell_missing_rule(&args.approval, policy, head, &runner, printer);
    let (token, upstream) = (args.online.github_token.as_ref(), &args.file.upstream);
    approval::review(&args.approval, token, upstream, policy, head, (env, printer)).await?;
    Ok(sections)
}

fn print_report(
    args: &ValidateArgs,
    report: &FindingsReport<'_>,
    printer: &Printer,
) -> Result<(), Failure> {
    if let Some(path) = &args.sarif_file {
        replace_file(Path::new(path), &report.render(FindingsFormat::Sarif, false))?;
    }
    report.print(args.format, printer);
    Ok(())
}

/// A section of the comment. Of a file with errors it isn't known that nothing has changed.
fn changes_table(base: &ParseOutcome, head: &ParseOutcome, renames: &[RepositoryRename]) -> String {
    let changes = diff::visible_changes(base, head, renames);
    let has_errors = base.findings.errors() + head.findings.errors() > 0;
    if changes.is_empty() && has_errors { String::new() } else { markdown(&changes) }
}

fn set_workflow_outputs(
    runner: &Runner,
    args: &ValidateArgs,
    report: &FindingsReport<'_>,
    comment: &str,
) -> Result<(), Failure> {
    runner.append_summary(comment)?;
    let findings = report.findings;
    runner.set_outputs(&[
        ("valid", if findings.errors() == 0 { "true" } else { "false" }),
        ("errors", &findings.errors().to_string()),
        ("warnings", &findings.warnings().to_string()),
        ("repositories", &report.listed.count().to_string()),
        ("sarif-file", args.sarif_file.as_deref().unwrap_or_default()),
        ("comment", &truncate_comment(comment)),
    ])
}

/// GitHub accepts 65,536 in a comment, and a step's variable 128 KiB.
const MAX_COMMENT_CHARS: usize = 30_000;

/// Cuts a comment that is too long at the end of a line.
fn truncate_comment(comment: &str) -> Cow<'_, str> {
    let Some((end, _)) = comment.char_indices().nth(MAX_COMMENT_CHARS) else {
        return comment.into();
    };
    let end = comment[..end].rfind('\n').map_or(end, |line| line + 1);
    let more = "\n… and more, in the summary of the workflow run\n";
    format!("{}{more}", &comment[..end]).into()
}

/// Replaces a file atomically.
pub(crate) fn replace_file(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        // Keep the permissions of the replaced file; temporary files are private otherwise.
        let mode = std::fs::metadata(path).map(|old| old.permissions());
        file.as_file().set_permissions(mode.unwrap_or_else(|_| default_permissions(&file)))?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|error: std::io::Error| {
        Failure::unexpected("file-unwritable", format!("`{}` can't be written", path.display()))
            .because(error)
    })
}

#[cfg(unix)]
fn default_permissions(_file: &tempfile::NamedTempFile) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

#[cfg(not(unix))]
fn default_permissions(file: &tempfile::NamedTempFile) -> std::fs::Permissions {
    file.as_file().metadata().map(|data| data.permissions()).expect("the file is open")
}
