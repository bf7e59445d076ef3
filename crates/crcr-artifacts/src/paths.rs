//! Which paths of an archive may be written, and where a symbolic link may point. Everything here is
//! decided from the text of the path, before anything is created.

const MAX_PATH_BYTES: usize = 4096;
const MAX_PARTS: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathRefusal {
    #[error("the path is absolute")]
    Absolute,
    #[error("the path starts with a drive letter")]
    Drive,
    #[error("the path leaves the artifact through `..`")]
    Parent,
    #[error("the path holds a NUL")]
    Nul,
    /// Windows takes a backslash for a separator, and other systems take it for part of the name.
    #[error("the path holds a backslash")]
    Backslash,
    #[error("the path is empty")]
    Empty,
    #[error("the path is too long")]
    TooLong,
    #[error("Windows can't have a file of this name")]
    Windows,
    /// Git would run its hooks, GitHub its workflows.
    #[error("`.git` and `.github` aren't taken from an artifact in a privileged event")]
    GitFolder,
    #[error("the symbolic link's target isn't UTF-8")]
    NotUtf8,
    #[error("the symbolic link leads out of the artifact")]
    Escape,
    /// Where `name/..` leads depends on whether `name` is a link.
    #[error("the symbolic link has `..` after a name")]
    ParentAfterName,
}

/// Removes `.` and empty parts from `path`, and refuses one that could lead out of the artifact.
pub fn check(path: &str) -> Result<String, PathRefusal> {
    let parts = parts(path)?;
    if parts.contains(&"..") {
        return Err(PathRefusal::Parent);
    }
    if parts.is_empty() {
        return Err(PathRefusal::Empty);
    }
    if cfg!(windows) && parts.iter().any(|part| !is_valid_on_windows(part)) {
        return Err(PathRefusal::Windows);
    }
    Ok(parts.join("/"))
}

/// Refuses `.git` and `.github` in a checked path or in the target of a link.
pub(crate) fn check_privileged(path: &str) -> Result<(), PathRefusal> {
    // The last two are the short names of the others on Windows.
    let acts = |part: &str| {
        let part = part.trim_end_matches(['.', ' ']);
        [".git", ".github", "git~1", "github~1"].iter().any(|name| part.eq_ignore_ascii_case(name))
    };
    if path.split('/').any(acts) { Err(PathRefusal::GitFolder) } else { Ok(()) }
}

/// Refuses the target of the link at the checked path `link` if it leads out of the artifact.
///
/// `..` may only come first: after a name it would be resolved from wherever another link points.
pub(crate) fn check_link_target(link: &str, target: &str) -> Result<(), PathRefusal> {
    let parts = parts(target)?;
    let up = parts.iter().take_while(|part| **part == "..").count();
    if parts[up..].contains(&"..") {
        return Err(PathRefusal::ParentAfterName);
    }
    if up > link.split('/').count() - 1 {
        return Err(PathRefusal::Escape);
    }
    Ok(())
}

fn parts(path: &str) -> Result<Vec<&str>, PathRefusal> {
    let bytes = path.as_bytes();
    if bytes.contains(&0) {
        return Err(PathRefusal::Nul);
    }
    if bytes.len() >= 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' {
        return Err(PathRefusal::Drive);
    }
    if path.contains('\\') {
        return Err(PathRefusal::Backslash);
    }
    if path.starts_with('/') {
        return Err(PathRefusal::Absolute);
    }
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if path.len() > MAX_PATH_BYTES || parts.len() > MAX_PARTS {
        return Err(PathRefusal::TooLong);
    }
    Ok(parts)
}

/// Names that Windows reads as a device, a stream or another name.
/// <https://learn.microsoft.com/en-us/windows/win32/fileio/naming-a-file>
fn is_valid_on_windows(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let port = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    let is_digit = |c: char| c.is_ascii_digit() || "¹²³".contains(c);
    let device = matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$")
        || port.is_some_and(|port| port.chars().count() == 1 && port.ends_with(is_digit));
    let forbidden = |c: char| c.is_ascii_control() || "<>:\"|?*".contains(c);
    !device && !part.contains(forbidden) && !part.ends_with(['.', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_inside_the_artifact_is_accepted_without_its_dots() {
        for (path, taken) in [
            ("a", "a"),
            ("a/b c/ö.txt", "a/b c/ö.txt"),
            ("./a//b/./c", "a/b/c"),
            ("..a/b..", "..a/b.."),
            (".git/config", ".git/config"),
        ] {
            assert_eq!(check(path).as_deref(), Ok(taken));
        }
    }

    #[test]
    fn path_that_leads_out_of_the_artifact_is_refused() {
        for (path, refused) in [
            ("/etc/passwd", PathRefusal::Absolute),
            ("//host/share", PathRefusal::Absolute),
            ("../x", PathRefusal::Parent),
            ("a/../../x", PathRefusal::Parent),
            ("a/..", PathRefusal::Parent),
            ("C:/x", PathRefusal::Drive),
            ("c:x", PathRefusal::Drive),
            ("a\\..\\x", PathRefusal::Backslash),
            ("a\0b", PathRefusal::Nul),
            ("", PathRefusal::Empty),
            ("./", PathRefusal::Empty),
        ] {
            assert_eq!(check(path), Err(refused), "{path:?}");
        }
        assert_eq!(check(&"a".repeat(5000)), Err(PathRefusal::TooLong));
        assert_eq!(check(&"a/".repeat(300)), Err(PathRefusal::TooLong));
    }

    #[test]
    fn git_and_github_folders_are_refused_in_every_spelling() {
        for bad in [
            ".git/config",
            "a/.GIT",
            ".GitHub/workflows/x.yml",
            "x/git~1/y",
            "GITHUB~1/workflows/x.yml",
            ".git./x",
        ] {
            assert_eq!(check_privileged(bad), Err(PathRefusal::GitFolder), "{bad}");
        }
        for good in [".gitignore", "git/x", ".github.md", "a.git/x"] {
            assert_eq!(check_privileged(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn link_target_outside_the_artifact_is_refused() {
        for (link, target) in [("a/b", "../c"), ("a", "b/c"), ("a/b/c", "../../d"), ("a", ".")] {
            assert_eq!(check_link_target(link, target), Ok(()), "{link} -> {target}");
        }
        for (link, target, refused) in [
            ("a", "..", PathRefusal::Escape),
            ("a/b", "../../x", PathRefusal::Escape),
            ("a", "/etc/passwd", PathRefusal::Absolute),
            ("a", "C:/x", PathRefusal::Drive),
            ("a", "b/../../x", PathRefusal::ParentAfterName),
            ("a/b", "x/../y", PathRefusal::ParentAfterName),
            ("a", "..\\x", PathRefusal::Backslash),
        ] {
            assert_eq!(check_link_target(link, target), Err(refused), "{link} -> {target}");
        }
    }

    #[test]
    fn windows_device_and_stream_names_are_invalid() {
        for bad in
            ["con", "NUL.txt", "com1", "a:b", "x.", "y ", "LPT9.log", "COM¹.txt", "conin$", "a\tb"]
        {
            assert!(!is_valid_on_windows(bad), "{bad}");
        }
        for good in ["console", "a", "com", "comx", "null", "com10", "¹"] {
            assert!(is_valid_on_windows(good), "{good}");
        }
    }
}
