//! A file of variables for containers that a step starts, as `docker run --env-file` reads it.
//!
//! A line is `NAME=VALUE` up to its end. There are no quotes and no escapes, so a value of several lines
//! can't be written: <https://docs.docker.com/reference/cli/docker/container/run/#env>

use std::fs;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};

use crate::commands::oidc::unsupported_inputs::invalid;
use crate::failure::Failure;
use crate::runner::Runner;

/// A variable for later steps, or for a container.
pub type Export = (&'static str, String);

/// docker reads lines of at most 64 KiB.
const MAX_LINE_BYTES: usize = 64 * 1024 - 1;

/// The path of the file. It has to be in the runner's folder for temporary files, which the runner empties
/// before and after each job: the workspace would end up in images and artifacts.
pub fn path(given: &Path, runner: &Runner) -> Result<PathBuf, Failure> {
    let temp = runner.temp_dir();
    let path = temp.join(given);
    let plain = path.components().all(|part| part != Component::ParentDir);
    if plain && path.starts_with(&temp) && path != temp {
        return Ok(path);
    }
    Err(invalid(format!("`env-file` (`{}`) isn't below `RUNNER_TEMP`", given.display())).hint(
        "give the name of a file, such as `container.env`: the runner deletes what is in \
         `RUNNER_TEMP` at the end of the job",
    ))
}

/// Writes the file, readable for the runner's user alone, and replaces an earlier one as a whole.
pub fn write(path: &Path, variables: &[Export]) -> Result<(), Failure> {
    let mut text = String::new();
    for (name, value) in variables {
        let line = format!("{name}={value}");
        if value.contains(['\n', '\r', '\0']) || line.len() > MAX_LINE_BYTES {
            return Err(invalid(format!("`{name}` can't be written to `env-file`"))
                .hint("docker takes one line of at most 64 KiB for a variable, without escapes"));
        }
        text.push_str(&line);
        text.push('\n');
    }
    let failed = |error: std::io::Error| {
        Failure::unexpected("runner-file", format!("`{}` can't be written", path.display()))
            .because(error)
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed)?;
    // It has the mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Deletes a file of an earlier step.
pub fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::unexpected(
            "runner-file",
            format!("`{}` can't be deleted", path.display()),
        )
        .because(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_docker_would_read_as_two_variables_is_refused_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("container.env");
        for value in ["a\nB=evil", "a\rb", "a\0b", &"x".repeat(70_000)] {
            let error = write(&path, &[("A", value.to_owned())]).unwrap_err();
            assert!(error.message().contains("`A`"), "{}", error.message());
            assert!(!path.exists());
        }
        write(&path, &[("A", "\"'# $x".to_owned()), ("B", String::new())]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "A=\"'# $x\nB=\n");
    }
}
