//! `crcr checkout`: checks out exactly the commit that the relay dispatched.

mod folder;
mod source;
mod unsafe_pr;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crcr_github::http::RetryPolicy;

use self::source::CheckoutSource;
use crate::cli::checkout::{CheckoutArgs, Submodules};
use crate::commands::git::{Git, RemoteProblem};
use crate::commands::{no_working_folder, working_folder};
use crate::env_vars::{self, Env};
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::runner::Runner;

pub async fn run(args: &CheckoutArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let source = CheckoutSource::find(args, &runner)?;
    unsafe_pr::refuse_fork_code(args, &source, &runner)?;
    let directories = sparse_directories(args)?;
    let filter = filter(args)?;
    let server = source::server(args, env)?;
    let folder = folder(args, env)?;
    let url = format!("{server}/{}", source.repository);
    folder::prepare(&folder, &url, env)?;
    let git = Git::new(&folder, &server, args.token.as_deref(), printer);
    let git = git.where_folder_may_be_anothers(env);

    folder::claim(&folder, &url)?;
    git.run(&["init", "--quiet", "--template=", "."]).await?;
    let wanted = if args.merge { source.merge_ref()? } else { source.sha.clone() };
    fetch(&git, &source, &server, &wanted, filter.as_deref(), args).await?;
    if !directories.is_empty() {
        let set = ["sparse-checkout", "set", "--cone", "--"].map(str::to_owned);
        git.run(&[set.as_slice(), &directories].concat()).await?;
    }
    // With `filter` this fetches the files, too.
    git.run_with_retries(&["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"]).await?;
    let sha = verify(&git, &source, args.merge).await?;
    warn_of_missing(&directories, &folder, &source, printer);
    if args.fetch_depth == 0 {
        let tags = ["fetch", "--quiet", "--force", "--no-recurse-submodules", "--", "origin"];
        git.run_with_retries(&[&tags[..], &["+refs/tags/*:refs/tags/*"]].concat()).await?;
    }
    submodules(&git, args).await?;
    lfs(&git, &folder, &url, args, printer).await?;

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
        None => working_folder()?,
    };
    let path = args.path.as_deref().unwrap_or(Path::new("."));
    let folder = std::path::absolute(base.join(path)).map_err(no_working_folder)?;
    folder::check_place(&folder, env)?;
    Ok(folder)
}

/// GitHub makes the refs of a pull request some seconds after it has told of it, and so do its replicas.
const NOT_YET_THERE: RetryPolicy = RetryPolicy {
    tries: 3,
    base: Duration::from_secs(4),
    cap: Duration::from_secs(8),
    total: Duration::from_secs(60),
};

/// Fetches `wanted` from the event's repository, or, if it isn't there, from the pull request's head repository; again
/// after some seconds if neither has it.
async fn fetch(
    git: &Git<'_>,
    source: &CheckoutSource,
    server: &str,
    wanted: &str,
    filter: Option<&str>,
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
    let mut tries = NOT_YET_THERE.start();
    let failure = loop {
        let failure = match fetch_from_any(git, &from, wanted, depth, filter).await {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        let is_gone = RemoteProblem::of(&failure) == RemoteProblem::Gone;
        if !is_gone || !tries.wait_to_retry(&failure.with_causes(), None).await {
            break failure;
        }
    };
    let hint = match RemoteProblem::of(&failure) {
        RemoteProblem::Gone if args.merge => {
            "GitHub makes no merge result when the pull request conflicts with its base; a private repository's needs \
             `token`"
        }
        RemoteProblem::Gone => {
            "the commit may be gone after a force-push, or the repository is private: set `token`"
        }
        RemoteProblem::Refused => {
            "the repository is private or the token may not read it: set `token` to one that may"
        }
        RemoteProblem::Certificate => {
            "install the root certificates (`ca-certificates`) here; if a proxy has its own, name a file with it by \
             `GIT_SSL_CAINFO`"
        }
        RemoteProblem::Filter => {
            "git here doesn't know this filter: set `filter` to `blob:none`, or install a newer git"
        }
        RemoteProblem::Machine => "make room on this machine, or let the job's user write there",
        RemoteProblem::Outage | RemoteProblem::Other => {
            "this says nothing about the commit: run the job again; if it fails again, look at the \
             server's status, the network and the proxy"
        }
    };
    Err(failure.hint(hint))
}

async fn fetch_from_any(
    git: &Git<'_>,
    from: &[String],
    wanted: &str,
    depth: Option<u32>,
    filter: Option<&str>,
) -> Result<(), Failure> {
    let mut last = None;
    for remote in from {
        let mut line: Vec<OsString> =
            ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--force"]
                .map(OsString::from)
                .to_vec();
        line.extend(depth.map(|depth| format!("--depth={depth}").into()));
        // What is left out is fetched from `origin` later, and the fork's commit isn't there.
        let filter = filter.filter(|_| remote == "origin");
        line.extend(filter.map(|filter| format!("--filter={filter}").into()));
        line.extend(["--", remote, wanted].map(OsString::from));
        match git.run_with_retries(&line).await {
            Ok(()) => return Ok(()),
            Err(failure) => {
                let is_gone = RemoteProblem::of(&failure) == RemoteProblem::Gone;
                last = Some(failure);
                if !is_gone {
                    break;
                }
            }
        }
    }
    Err(last.unwrap_or_else(|| Failure::unexpected("git", "nothing to fetch from")))
}

/// The folders to check out; empty for all.
fn sparse_directories(args: &CheckoutArgs) -> Result<Vec<String>, Failure> {
    let lines = args.sparse_checkout.iter().flat_map(|value| value.lines()).map(str::trim);
    let directories: Vec<_> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let is_elsewhere =
        |line: &str| line.starts_with('/') || line.split('/').any(|part| part == "..");
    let is_pattern = |line: &str| line.contains(['*', '?', '[', '!', '\\']);
    match directories.iter().find(|line| is_pattern(line) || is_elsewhere(line)) {
        None => Ok(directories),
        Some(other) => Err(Failure::user(
            "sparse-checkout",
            format!("`{other}` isn't a folder in the repository"),
        )
        .hint(
            "list folders from its top, such as `docs/api`, one a line; patterns aren't supported",
        )),
    }
}

/// git says nothing of a folder that the commit doesn't have, and the checkout is without it.
fn warn_of_missing(
    directories: &[String],
    folder: &Path,
    source: &CheckoutSource,
    printer: &Printer,
) {
    let is_there = |name: &String| folder.join(name).symlink_metadata().is_ok_and(|m| m.is_dir());
    let missing = directories.iter().filter(|name| !is_there(name));
    let missing: Vec<_> = missing.map(|name| format!("`{name}`")).collect();
    if !missing.is_empty() {
        let (missing, repository) = (missing.join(", "), &source.repository);
        printer.warning(
            &format!(
                "{repository} has no folder {missing} at this commit, which `sparse-checkout` names"
            ),
            Some("list folders from its top, such as `docs/api`, as they are written there"),
        );
    }
}

/// git's filter of a partial clone. A sparse checkout doesn't need the other folders' files.
fn filter(args: &CheckoutArgs) -> Result<Option<String>, Failure> {
    let sparse = (!args.sparse_checkout.is_empty()).then(|| "blob:none".to_owned());
    let Some(filter) = args.filter.as_deref().map(str::trim) else { return Ok(sparse) };
    if is_filter(filter) {
        return Ok(Some(filter.to_owned()));
    }
    Err(Failure::user("filter", format!("`--filter` is `{filter}`, which isn't a filter of git"))
        .hint("such as `blob:none`, `tree:0` or `blob:limit=1m`"))
}

/// Whether it is one of git's filters (git-rev-list, `--filter`), without those that read a list of paths.
fn is_filter(filter: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match filter.split_once(':') {
        Some(("blob", "none")) => true,
        Some(("blob", limit)) => limit.strip_prefix("limit=").is_some_and(|limit| {
            is_number(limit.strip_suffix(['k', 'm', 'g', 'K', 'M', 'G']).unwrap_or(limit))
        }),
        Some(("tree", depth)) => is_number(depth),
        Some(("object", kind)) => {
            ["type=blob", "type=commit", "type=tag", "type=tree"].contains(&kind)
        }
        Some(("combine", parts)) => {
            parts.split('+').all(|part| !part.starts_with("combine") && is_filter(part))
        }
        _ => false,
    }
}

/// The largest `.gitattributes` that is searched for files of Git LFS.
const MAX_ATTRIBUTES_BYTES: u64 = 1024 * 1024;

/// Fetches the files of Git LFS, or says that they are missing.
async fn lfs(
    git: &Git<'_>,
    folder: &Path,
    url: &str,
    args: &CheckoutArgs,
    printer: &Printer,
) -> Result<(), Failure> {
    if !args.lfs {
        let attributes = attributes_files(git).await;
        if attributes.iter().any(|file| names_lfs_files(&folder.join(file))) {
            printer.warning(
                "`.gitattributes` names files of Git LFS; in this checkout they are pointers",
                Some("set `lfs: true` to fetch them"),
            );
        }
        return Ok(());
    }
    // A `.lfsconfig` of the commit could name another server.
    let server = format!("lfs.url={url}.git/info/lfs");
    let missing = |failure: Failure| {
        failure
            .hint("`lfs: true` needs Git LFS: install `git-lfs` on the runner or in the container")
    };
    git.run(&["lfs", "version"]).await.map_err(missing)?;
    git.run(&["lfs", "install", "--local", "--skip-repo"]).await?;
    git.run_with_retries(&["-c", &server, "lfs", "pull", "origin"]).await?;
    if args.submodules != Submodules::False {
        let each = ["submodule", "--quiet", "foreach", "--recursive", LFS_OF_SUBMODULE];
        git.run_with_retries(&each).await?;
    }
    Ok(())
}

/// Each submodule's own server has its files, and its `.lfsconfig` could name another one, too.
const LFS_OF_SUBMODULE: &str = "git lfs install --local --skip-repo >/dev/null && \
                                url=$(git ls-remote --get-url origin) && \
                                git -c \"lfs.url=${url%.git}.git/info/lfs\" lfs pull origin";

/// Every `.gitattributes` of the commit and its submodules; each folder may have its own. Most aren't there in a sparse
/// checkout.
async fn attributes_files(git: &Git<'_>) -> Vec<String> {
    let attributes = ":(glob)**/.gitattributes";
    let listed = git.capture(&["ls-files", "--recurse-submodules", "-z", "--", attributes]).await;
    let listed = listed.unwrap_or_default();
    listed.split('\0').filter(|file| !file.is_empty()).map(str::to_owned).collect()
}

fn names_lfs_files(attributes: &Path) -> bool {
    use std::io::Read as _;
    let mut text = Vec::new();
    let is_file = attributes.symlink_metadata().is_ok_and(|found| found.is_file());
    let file = std::fs::File::open(attributes).ok().filter(|_| is_file);
    let read = file.map(|file| file.take(MAX_ATTRIBUTES_BYTES).read_to_end(&mut text));
    read.is_some_and(|read| read.is_ok()) && String::from_utf8_lossy(&text).contains("filter=lfs")
}

/// Checks that `HEAD` is the requested commit, and returns its hash.
async fn verify(git: &Git<'_>, source: &CheckoutSource, merge: bool) -> Result<String, Failure> {
    let head = git.capture(&["rev-parse", "--verify", "HEAD^{commit}"]).await?;
    // An annotated tag has a hash of its own, and `HEAD` is the commit that it names.
    let wanted = if merge { "HEAD^2" } else { "FETCH_HEAD" };
    let shown = git.capture(&["rev-parse", "--verify", wanted]).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_that_git_does_not_know_or_that_reads_a_file_is_refused() {
        for filter in [
            "blob:none",
            "blob:limit=0",
            "blob:limit=10k",
            "blob:limit=1G",
            "tree:0",
            "object:type=commit",
            "combine:blob:none+tree:3",
        ] {
            assert!(is_filter(filter), "{filter}");
        }
        for filter in [
            "",
            "foo",
            "blob:",
            "blob:limit=",
            "blob:limit=k",
            "blob:limit=1t",
            "tree:-1",
            "object:type=",
            "sparse:oid=main:paths",
            "combine:",
            "combine:blob:none+foo",
            "blob:none --upload-pack=x",
        ] {
            assert!(!is_filter(filter), "{filter}");
        }
    }
}
