//! `crcr checkout`: checks out exactly the commit that the relay dispatched.

mod source;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::source::CheckoutSource;
use crate::cli::checkout::{CheckoutArgs, Submodules};
use crate::commands::git::Git;
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::runner::Runner;

pub async fn run(args: &CheckoutArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let source = CheckoutSource::find(args, &runner)?;
    let server = source::server(args, env)?;
    let folder = folder(args, env)?;
    let url = format!("{server}/{}", source.repository);
    prepare_folder(&folder, &url, env)?;
    let git = Git::new(&folder, &server, args.token.as_deref(), printer);

    git.run(&["init", "--quiet", "--template=", "."]).await?;
    git.run(&["remote", "add", "origin", &url]).await?;
    let wanted = if args.merge { source.merge_ref()? } else { source.sha.clone() };
    fetch(&git, &source, &server, &wanted, args).await?;
    git.run(&["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"]).await?;
    let sha = verify(&git, &source, args.merge).await?;
    submodules(&git, args).await?;

    let number = source.pull_request.map(|number| number.to_string()).unwrap_or_default();
    printer.line(&match args.merge {
        true => format!("checked out {} at {sha}, which merges {}", source.repository, source.sha),
        false => format!("checked out {} at {sha}", source.repository),
    });
    runner.set_outputs(&[
        ("repository", &source.repository.to_string()),
        ("sha", &sha),
        ("head-sha", &source.sha),
        ("pull-request", &number),
        ("path", &folder.to_string_lossy()),
    ])?;
    Ok(ExitCode::SUCCESS)
}

/// The absolute path of the folder to check out into.
fn folder(args: &CheckoutArgs, env: &Env) -> Result<PathBuf, Failure> {
    let base = match env.get(env_vars::GITHUB_WORKSPACE) {
        Some(workspace) => PathBuf::from(workspace),
        None => std::env::current_dir()
            .map_err(|error| Failure::unexpected("cwd", "no working directory").because(error))?,
    };
    let path = args.path.as_deref().unwrap_or(Path::new("."));
    std::path::absolute(base.join(path))
        .map_err(|error| Failure::unexpected("cwd", "no working directory").because(error))
}

/// Creates the folder, or empties it if it has an earlier checkout of the same repository.
///
/// A `.git` from an earlier job may run code when git reads it, so nothing of it is kept. A folder with
/// any other content is refused.
fn prepare_folder(folder: &Path, url: &str, env: &Env) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::unexpected("checkout-folder", format!("`{}` can't be used", folder.display()))
            .because(error)
    };
    fs::create_dir_all(folder).map_err(failed)?;
    if fs::read_dir(folder).map_err(failed)?.next().is_none() {
        return Ok(());
    }
    let config = fs::read_to_string(folder.join(".git/config")).unwrap_or_default();
    let ours = config.lines().any(|line| line.trim() == format!("url = {url}"));
    let in_job = env.get(env_vars::GITHUB_WORKSPACE).is_some_and(|top| folder.starts_with(top));
    if !(ours && in_job) {
        return Err(Failure::user(
            "checkout-folder",
            format!("`{}` isn't empty", folder.display()),
        )
        .hint("set the input `path` to a folder that is empty or doesn't exist yet"));
    }
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_folder = entry.file_type().map_err(failed)?.is_dir();
        let path = entry.path();
        if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }.map_err(failed)?;
    }
    Ok(())
}

/// Fetches `wanted` from the event's repository, or, if it isn't there any more, from the pull request's
/// head repository.
async fn fetch(
    git: &Git<'_>,
    source: &CheckoutSource,
    server: &str,
    wanted: &str,
    args: &CheckoutArgs,
) -> Result<(), Failure> {
    let mut from = vec!["origin".to_owned()];
    if let Some(fork) = source.head_repository.as_ref().filter(|_| !args.merge) {
        from.push(format!("{server}/{fork}"));
    }
    let depth = match (args.fetch_depth, args.merge) {
        (0, _) => None,
        // The check of the merge needs its parents.
        (depth, true) => Some(depth.max(2)),
        (depth, false) => Some(depth),
    };
    let mut last = None;
    for remote in &from {
        let mut line: Vec<OsString> =
            ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--force"]
                .map(OsString::from)
                .to_vec();
        line.extend(depth.map(|depth| format!("--depth={depth}").into()));
        line.extend(["--", remote, wanted].map(OsString::from));
        match git.run_with_retries(&line).await {
            Ok(()) => return Ok(()),
            Err(failure) => last = Some(failure),
        }
    }
    let failure = last.unwrap_or_else(|| Failure::unexpected("git", "nothing to fetch from"));
    Err(failure.hint(if args.merge {
        "GitHub makes no merge result when the pull request conflicts with its base"
    } else {
        "the commit may be gone after a force-push, or the repository is private: set `token`"
    }))
}

/// Checks that `HEAD` is the requested commit, and returns its hash.
async fn verify(git: &Git<'_>, source: &CheckoutSource, merge: bool) -> Result<String, Failure> {
    let head = git.capture(&["rev-parse", "--verify", "HEAD^{commit}"]).await?;
    let shown =
        if merge { git.capture(&["rev-parse", "--verify", "HEAD^2"]).await? } else { head.clone() };
    if shown.eq_ignore_ascii_case(&source.sha) {
        return Ok(head);
    }
    let what = if merge {
        format!("the merge result contains `{shown}`, not the dispatched `{}`", source.sha)
    } else {
        format!("git fetched `{shown}`, not the dispatched `{}`", source.sha)
    };
    Err(Failure::user("other-commit", what).hint(
        "the pull request has moved on, and its newer head has a run of its own; or check out the \
         head itself, without `merge`",
    ))
}

async fn submodules(git: &Git<'_>, args: &CheckoutArgs) -> Result<(), Failure> {
    let recursive = match args.submodules {
        Submodules::False => return Ok(()),
        Submodules::True => None,
        Submodules::Recursive => Some("--recursive"),
    };
    let mut line: Vec<OsString> =
        ["submodule", "--quiet", "update", "--init", "--force"].map(OsString::from).to_vec();
    line.extend(recursive.map(OsString::from));
    if args.fetch_depth > 0 {
        line.push(format!("--depth={}", args.fetch_depth).into());
    }
    git.run_with_retries(&line).await
}
