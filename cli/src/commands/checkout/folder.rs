//! The folder to check out into.

use std::ffi::OsStr;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Component, Path, PathBuf};

use crate::env_vars::{self, Env};
use crate::failure::Failure;

/// How many entries are searched for one that belongs to another user.
const MAX_SEARCHED: usize = 100_000;
const EMPTY_FOLDER: &str = "set the input `path` to a folder that is empty or doesn't exist yet";

/// Refuses a folder outside of the job's workspace, also one behind a link, and one in git's own folder.
pub fn check_place(folder: &Path, env: &Env) -> Result<(), Failure> {
    let real = real_path(folder);
    let top = env.get(env_vars::GITHUB_WORKSPACE).and_then(|top| std::path::absolute(top).ok());
    let below = match &top {
        // Outside of a job a person chooses any folder.
        None => real.as_path(),
        Some(top) => real.strip_prefix(real_path(top)).map_err(|_| {
            let message =
                format!("`--path` leads to `{}`, outside of the workspace", real.display());
            Failure::user("checkout-folder", message)
                .hint(format!("set `path` to a folder below `{}`", top.display()))
        })?,
    };
    if below.components().any(|part| part.as_os_str().eq_ignore_ascii_case(".git")) {
        let message = format!("`--path` leads to `{}`, in git's own folder", real.display());
        return Err(Failure::user("checkout-folder", message).hint("set `path` to another folder"));
    }
    Ok(())
}

/// Where an absolute path leads by the links that are there. What doesn't exist yet is taken as it is written.
fn real_path(path: &Path) -> PathBuf {
    let mut real = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            real.pop();
            continue;
        }
        real.push(part);
        if let (Component::Normal(_), Ok(target)) = (part, fs::canonicalize(&real)) {
            real = target;
        }
    }
    real
}

/// Creates the folder, or empties it if it has an earlier checkout of the same repository.
///
/// A `.git` from an earlier job may run code when git reads it, so nothing of it is kept. A folder with
/// any other content is refused.
pub fn prepare(folder: &Path, url: &str, env: &Env) -> Result<(), Failure> {
    let failed = |error: Error| unusable(folder, error);
    fs::create_dir_all(folder).map_err(failed)?;
    let git = folder.join(".git");
    // A job that is killed at the end of `empty` leaves this. Only an empty folder is removed.
    let _ = fs::remove_dir(&git);
    if fs::read_dir(folder).map_err(failed)?.next().is_none() {
        return Ok(());
    }
    let config = match fs::read_to_string(git.join("config")) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(failed(error)),
        config => config.unwrap_or_default(),
    };
    let ours = config.lines().any(|line| line.trim() == format!("url = {url}"));
    let in_job = env.get(env_vars::GITHUB_WORKSPACE).is_some_and(|top| folder.starts_with(top));
    if !(ours && in_job) {
        return Err(Failure::user(
            "checkout-folder",
            format!("`{}` isn't empty", folder.display()),
        )
        .hint(EMPTY_FOLDER));
    }
    empty(folder, &git).map_err(failed)
}

/// Notes in the empty folder whose it is, before git makes the rest of `.git`: if the job is killed meanwhile, the next
/// one can go on.
pub fn claim(folder: &Path, url: &str) -> Result<(), Failure> {
    let git = folder.join(".git");
    let config = format!(
        "[remote \"origin\"]\n\turl = {url}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
    );
    fs::create_dir(&git)
        .and_then(|()| fs::write(git.join("config"), config))
        .map_err(|error| unusable(folder, error))
}

/// Removes everything. `.git/config` goes last, because it says whose folder this is: if the job is killed before the
/// end, the next one can go on.
fn empty(folder: &Path, git: &Path) -> Result<(), Error> {
    remove_others(folder, ".git")?;
    if git.symlink_metadata()?.is_dir() {
        remove_others(git, "config")?;
        fs::remove_dir_all(git)
    } else {
        fs::remove_file(git)
    }
}

/// Removes all that is in the folder, but the entry `kept`.
fn remove_others(folder: &Path, kept: &str) -> Result<(), Error> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == OsStr::new(kept) {
            continue;
        }
        let is_folder = entry.file_type()?.is_dir();
        let path = entry.path();
        if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }?;
    }
    Ok(())
}

fn unusable(folder: &Path, error: Error) -> Failure {
    let denied = error.kind() == ErrorKind::PermissionDenied;
    let failure = Failure::user("checkout-folder", format!("`{}` can't be used", folder.display()));
    let is_file = matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotADirectory);
    match denied.then(|| foreign_entry(folder)).flatten() {
        None if is_file => failure.because(error).hint(EMPTY_FOLDER),
        None => failure.because(error),
        Some((path, user)) => failure
            .because(anyhow::anyhow!("`{}` belongs to the user {user}: {error}", path.display()))
            .hint(format!(
                "an earlier job left it, probably one whose container ran as another user: remove \
                 it on the runner (`sudo rm -rf {}`), or let that job clean up after itself",
                folder.display()
            )),
    }
}

/// The first entry that belongs to another user than this process, and that user's number.
#[cfg(unix)]
fn foreign_entry(folder: &Path) -> Option<(PathBuf, u32)> {
    use std::os::unix::fs::MetadataExt as _;
    let own = tempfile::tempfile().ok()?.metadata().ok()?.uid();
    let mut left = vec![folder.to_owned()];
    for _ in 0..MAX_SEARCHED {
        let path = left.pop()?;
        let Ok(found) = path.symlink_metadata() else { continue };
        if found.uid() != own && path != folder {
            return Some((path, found.uid()));
        }
        if found.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        }
    }
    None
}

#[cfg(not(unix))]
fn foreign_entry(_: &Path) -> Option<(PathBuf, u32)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_a_job_that_was_killed_while_it_emptied_the_folder_are_removed() {
        const URL: &str = "https://github.test/acme/upstream";
        let workspace = tempfile::tempdir().unwrap();
        let folder = workspace.path().join("src");
        let env = Env::from_iter([("GITHUB_WORKSPACE", workspace.path().to_str().unwrap())]);
        for (left, file) in [
            (".git/objects", "old.txt"),
            (".git/objects", ".git/HEAD"),
            (".git", ".git/config"),
            (".git", ""),
        ] {
            fs::create_dir_all(folder.join(left)).unwrap();
            if !file.is_empty() {
                let config = format!("[remote \"origin\"]\n\turl = {URL}\n");
                fs::write(folder.join(".git/config"), &config).unwrap();
                fs::write(folder.join(file), config).unwrap();
            }
            prepare(&folder, URL, &env).unwrap();
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{left} {file}");
        }
    }

    #[test]
    fn everything_else_goes_before_the_file_that_says_whose_folder_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let git = folder.path().join(".git");
        fs::create_dir_all(git.join("objects")).unwrap();
        for file in ["config", "HEAD", "../old.txt"] {
            fs::write(git.join(file), "").unwrap();
        }
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
            entries.collect::<Vec<_>>()
        };
        remove_others(folder.path(), ".git").unwrap();
        assert_eq!(names(folder.path()), [".git"]);
        remove_others(&git, "config").unwrap();
        assert_eq!(names(&git), ["config"]);
    }
}
