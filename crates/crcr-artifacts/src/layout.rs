//! Where an artifact lies in a bucket: the template of the keys, and what follows from it.
//!
//! The folder of an artifact holds the one object `artifacts.zip`, or an object per file; its
//! locator lies beside the folder, as `<folder>.crcr.json`.

use crate::locator::KEY_SUFFIX;

/// The key below the artifact's folder of an artifact that is one zip.
pub const ARCHIVE_OBJECT: &str = "artifacts.zip";
/// The folder of an artifact where no template is given.
pub const DEFAULT_TEMPLATE: &str = "{owner}/{repo}/{run_id}/{name}";

/// Metadata of an object: the SHA-256 of its content, 64 hexadecimal digits.
pub const META_SHA256: &str = "sha256";
/// Metadata of an object: the attempt of the run that wrote it.
pub const META_ATTEMPT: &str = "crcr-attempt";
/// Metadata of an object: the key of the job that wrote it.
pub const META_JOB: &str = "crcr-job";
/// Metadata of an object that is one file: its permission bits in octal.
pub const META_MODE: &str = "crcr-mode";

/// What a template's placeholders stand for. `None` leaves the placeholder in place.
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

/// A template of folder keys: text with `{owner} {repo} {run_id} {run_attempt} {job} {name}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLayout(String);

/// A template that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Text in braces that is no placeholder.
    #[error(
        "`{{{0}}}` in the prefix is no placeholder: they are `{{owner}}`, `{{repo}}`, `{{run_id}}`, \
         `{{run_attempt}}`, `{{job}}` and `{{name}}`"
    )]
    Placeholder(String),
    /// An empty part, `.` or `..`.
    #[error("the prefix `{0}` has an empty part, a `.` or a `..` between its slashes")]
    Part(String),
}

impl KeyLayout {
    /// Takes the input `s3-prefix` (white space, line ends and slashes around it are dropped; empty
    /// is the default).
    pub fn new(template: &str) -> Result<Self, LayoutError> {
        let template = template.trim().trim_matches('/');
        if template.is_empty() {
            return Ok(Self(DEFAULT_TEMPLATE.to_owned()));
        }
        if template.split('/').any(|part| matches!(part, "" | "." | "..")) {
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

    /// The template with every known fact filled in.
    ///
    /// What is filled in can't add a part of its own: a slash, `{` or `}` in a job or name becomes
    /// `_`.
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

/// The key of the locator of the artifact in `folder`.
pub fn locator_key(folder: &str) -> String {
    format!("{folder}{KEY_SUFFIX}")
}

/// The key of the zip of the artifact in `folder`.
pub fn archive_key(folder: &str) -> String {
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
    fn the_default_is_what_readers_of_today_expect() {
        for empty in ["", " \n", "/"] {
            let layout = KeyLayout::new(empty).unwrap();
            assert_eq!(layout.render(&FACTS), "acme/upstream/42/linux");
        }
        assert_eq!(locator_key("acme/upstream/42/linux"), "acme/upstream/42/linux.crcr.json");
        assert_eq!(archive_key("acme/upstream/42/linux"), "acme/upstream/42/linux/artifacts.zip");
    }

    #[test]
    fn a_template_from_a_block_scalar_is_trimmed_and_filled() {
        let layout =
            KeyLayout::new("\n  {owner}/{repo}/{run_id}/{run_attempt}/{job}-x/\n").unwrap();
        assert_eq!(layout.render(&FACTS), "acme/upstream/42/2/build-x");
        let some = PlaceholderValues { run_attempt: None, job: Some("a/../{name}"), ..FACTS };
        assert_eq!(layout.render(&some), "acme/upstream/42/{run_attempt}/a_..__name_-x");
    }

    #[test]
    fn a_template_with_holes_or_unknown_placeholders_is_refused() {
        for bad in ["a//b", "../x", "a/./b"] {
            assert!(matches!(KeyLayout::new(bad), Err(LayoutError::Part(_))), "{bad}");
        }
        for bad in ["{sha}", "a/{owner", "{}"] {
            assert!(matches!(KeyLayout::new(bad), Err(LayoutError::Placeholder(_))), "{bad}");
        }
    }
}
