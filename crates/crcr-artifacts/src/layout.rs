//! The keys of an artifact's objects in a bucket.
//!
//! The folder of an artifact holds either the one object `artifacts.zip` or an object for each file.
//! The locator is the object `<folder>.crcr.json`.

use crate::digest::Digest;
use crate::locator::KEY_SUFFIX;

const ARCHIVE_OBJECT: &str = "artifacts.zip";
const DEFAULT_TEMPLATE: &str = "{owner}/{repo}/{run_id}/{name}";

// Names of the metadata of an object.
/// The SHA-256 of an archive, 64 hexadecimal digits.
pub(crate) const META_SHA256: &str = "sha256";
/// The BLAKE3 of an object that is one file, 64 hexadecimal digits.
pub(crate) const META_BLAKE3: &str = "blake3";
/// The attempt of the run that wrote it.
pub(crate) const META_ATTEMPT: &str = "crcr-attempt";
/// The job that wrote it, with the leg of its matrix.
pub(crate) const META_JOB: &str = "crcr-job";
/// Permission bits in octal, on an object that is one file.
pub(crate) const META_MODE: &str = "crcr-mode";

/// The digest in the metadata of an object, whose values `meta` returns by name.
pub(crate) fn digest_in_metadata<T: AsRef<str>>(
    meta: impl Fn(&str) -> Option<T>,
) -> Option<Digest> {
    let read = |name: &str, prefix: &str| format!("{prefix}:{}", meta(name)?.as_ref()).parse().ok();
    read(META_SHA256, "sha256").or_else(|| read(META_BLAKE3, "blake3"))
}

/// The values of a template's placeholders. `None` leaves the placeholder in place.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlaceholderValues<'a> {
    /// `owner/repo`.
    pub repository: Option<&'a str>,
    pub run_id: Option<u64>,
    /// The attempt of the run, from 1.
    pub run_attempt: Option<u64>,
    /// The key of the job in the workflow file.
    pub job: Option<&'a str>,
    pub name: Option<&'a str>,
}

/// A template of an artifact's folder, such as `{owner}/{repo}/{run_id}/{name}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLayout(String);

#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error(
        "`{{{0}}}` in the prefix isn't a placeholder: they are `{{owner}}`, `{{repo}}`, `{{run_id}}`, \
         `{{run_attempt}}`, `{{job}}` and `{{name}}`"
    )]
    Placeholder(String),
    #[error("the prefix `{}` has an empty part, a `.`, a `..` or a line break between its slashes", .0.escape_debug())]
    Part(String),
}

impl KeyLayout {
    /// Parses the input `s3-prefix`. White space and slashes around it are dropped.
    pub fn new(template: &str) -> Result<Self, LayoutError> {
        let template = template.trim().trim_matches('/');
        if template.is_empty() {
            return Ok(Self(DEFAULT_TEMPLATE.to_owned()));
        }
        let is_bad =
            |part: &str| matches!(part, "" | "." | "..") || part.contains(char::is_control);
        if template.split('/').any(is_bad) {
            return Err(LayoutError::Part(template.to_owned()));
        }
        let mut rest = template;
        while let Some((_, after)) = rest.split_once('{') {
            let unclosed = || LayoutError::Placeholder(after.to_owned());
            let (name, after) = after.split_once('}').ok_or_else(unclosed)?;
            if !["owner", "repo", "run_id", "run_attempt", "job", "name"].contains(&name) {
                return Err(LayoutError::Placeholder(name.to_owned()));
            }
            rest = after;
        }
        Ok(Self(template.to_owned()))
    }

    /// Fills in the known values. A slash, `{` or `}` in a value becomes `_`, so that no value can add
    /// a folder or a placeholder.
    pub fn render(&self, facts: &PlaceholderValues<'_>) -> String {
        let (owner, repo) = match facts.repository.and_then(|r| r.split_once('/')) {
            Some((owner, repo)) => (Some(owner), Some(repo)),
            None => (None, None),
        };
        let number = |n: Option<u64>| n.map(|n| n.to_string());
        let (run_id, attempt) = (number(facts.run_id), number(facts.run_attempt));
        let mut out = self.0.clone();
        for (placeholder, value) in [
            ("{owner}", owner),
            ("{repo}", repo),
            ("{run_id}", run_id.as_deref()),
            ("{run_attempt}", attempt.as_deref()),
            ("{job}", facts.job),
            ("{name}", facts.name),
        ] {
            if let Some(value) = value {
                out = out.replace(placeholder, &value.replace(['/', '{', '}'], "_"));
            }
        }
        out
    }
}

pub(crate) fn locator_key(folder: &str) -> String {
    format!("{folder}{KEY_SUFFIX}")
}

pub(crate) fn archive_key(folder: &str) -> String {
    format!("{folder}/{ARCHIVE_OBJECT}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: PlaceholderValues<'_> = PlaceholderValues {
        repository: Some("acme/upstream"),
        run_id: Some(42),
        run_attempt: Some(2),
        job: Some("build"),
        name: Some("linux"),
    };

    #[test]
    fn default_template_gives_owner_repo_run_and_name() {
        for empty in ["", " \n", "/"] {
            let layout = KeyLayout::new(empty).unwrap();
            assert_eq!(layout.render(&FACTS), "acme/upstream/42/linux");
        }
        assert_eq!(locator_key("acme/upstream/42/linux"), "acme/upstream/42/linux.crcr.json");
        assert_eq!(archive_key("acme/upstream/42/linux"), "acme/upstream/42/linux/artifacts.zip");
    }

    #[test]
    fn template_from_a_yaml_block_scalar_is_trimmed_and_filled_in() {
        let layout =
            KeyLayout::new("\n  {owner}/{repo}/{run_id}/{run_attempt}/{job}-x/\n").unwrap();
        assert_eq!(layout.render(&FACTS), "acme/upstream/42/2/build-x");
        let some = PlaceholderValues { run_attempt: None, job: Some("a/../{name}"), ..FACTS };
        assert_eq!(layout.render(&some), "acme/upstream/42/{run_attempt}/a_..__name_-x");
    }

    #[test]
    fn template_with_empty_parts_or_unknown_placeholders_is_refused() {
        for bad in ["a//b", "../x", "a/./b", "a\nb"] {
            assert!(matches!(KeyLayout::new(bad), Err(LayoutError::Part(_))), "{bad}");
        }
        for bad in ["{sha}", "a/{owner", "{}"] {
            assert!(matches!(KeyLayout::new(bad), Err(LayoutError::Placeholder(_))), "{bad}");
        }
    }
}
