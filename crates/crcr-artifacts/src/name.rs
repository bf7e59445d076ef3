//! Names and paths that both stores accept. They are checked before anything is sent, so that a
//! fallback to the other store can't fail because of a name.
//!
//! GitHub's rules are those of the official client,
//! <https://github.com/actions/toolkit/blob/main/packages/artifact/src/internal/upload/path-and-artifact-name-validation.ts>.

use crate::locator;

/// What GitHub refuses in names and paths.
const FORBIDDEN: [char; 9] = ['"', ':', '<', '>', '|', '*', '?', '\r', '\n'];
/// With the prefix or suffix of a locator, a name of this length is still a valid file name (255 bytes).
const MAX_NAME_BYTES: usize = 240;
/// S3 keys have at most 1024 bytes, and the artifact's folder is part of the key.
const MAX_PATH_BYTES: usize = 1000;

/// Why an artifact can't have this name.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name == "." || name == ".." {
        return Err("it isn't a valid name for a file or folder".to_owned());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("it has {} bytes, {MAX_NAME_BYTES} are allowed", name.len()));
    }
    if locator::is_locator_artifact(name) || locator::is_locator_key(name) {
        let (prefix, suffix) = (locator::ARTIFACT_PREFIX, locator::KEY_SUFFIX);
        return Err(format!("`{prefix}…` and `…{suffix}` are names of locators"));
    }
    if let Some(c) = name.chars().find(|c| matches!(c, '/' | '\\')) {
        return Err(format!("`{c}` isn't allowed in it"));
    }
    forbidden(name)
}

/// Why an artifact can't hold a file of this path (relative, with `/` between its parts).
pub fn check_path(path: &str) -> Result<(), String> {
    if path.len() > MAX_PATH_BYTES {
        return Err(format!("it has {} bytes, {MAX_PATH_BYTES} are allowed", path.len()));
    }
    if path.contains('\\') {
        return Err("a backslash in it would be a folder on other systems".to_owned());
    }
    forbidden(path)
}

fn forbidden(text: &str) -> Result<(), String> {
    match text.chars().find(|c| FORBIDDEN.contains(c) || c.is_control()) {
        Some(c) if c.is_control() => Err(format!("`{}` isn't allowed in it", c.escape_default())),
        Some(c) => Err(format!("`{c}` isn't allowed in it")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_or_path_forbidden_by_either_store_is_refused() {
        for good in ["linux-build", "a b", "ünïcode", "v1.2 (x64)"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
            assert_eq!(check_path(&format!("dir/{good}")), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a\\b", "x.crcr.json", "crcr-locator-x", &"n".repeat(241)]
        {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for c in ["\"", ":", "<", ">", "|", "*", "?", "\r", "\n", "\u{7}"] {
            assert!(check_name(&format!("a{c}b")).is_err(), "{c:?}");
            assert!(check_path(&format!("a/{c}b")).is_err(), "{c:?}");
        }
        assert_eq!(check_name(&"n".repeat(240)), Ok(()));
        assert_eq!(check_path(&"p".repeat(1000)), Ok(()));
        assert!(check_path("a\\b").is_err() && check_path(&"p".repeat(1001)).is_err());
        assert_eq!(check_name("a\nb").unwrap_err(), "`\\n` isn't allowed in it");
    }
}
