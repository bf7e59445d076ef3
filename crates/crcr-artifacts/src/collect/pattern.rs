//! One line of the input `path`.

use std::path::{Component, MAIN_SEPARATOR, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

/// An absolute pattern, split at its separators.
#[derive(Debug)]
pub(super) struct PathPattern {
    pub(super) excludes: bool,
    /// The part before the first wildcard.
    start: PathBuf,
    rest: Vec<PatternPart>,
}

#[derive(Debug, thiserror::Error)]
#[error("`{pattern}` isn't a pattern: {why}")]
pub struct PathPatternError {
    pattern: String,
    why: String,
}

#[derive(Debug)]
enum PatternPart {
    /// `**`: any number of folders.
    Any,
    /// A name, or a glob of names.
    Name(GlobMatcher),
}

impl PathPattern {
    /// Parses a line; `None` for an empty one or a comment.
    pub(super) fn parse(
        line: &str,
        cwd: &Path,
        home: Option<&Path>,
    ) -> Result<Option<Self>, PathPatternError> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let bad = |why: &str| PathPatternError { pattern: line.to_owned(), why: why.to_owned() };
        // As in the official action, a second `!` cancels the first.
        let text = line.trim_start_matches('!');
        let excludes = (line.len() - text.len()) % 2 == 1;
        let text = text.trim_start();
        if text.is_empty() {
            return Err(bad("nothing follows the `!`"));
        }
        let (start, text) = match text.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with(separator) => {
                (home.ok_or_else(|| bad("there is no home folder for `~`"))?, rest)
            }
            _ => (cwd, text),
        };
        let mut pattern = Self { excludes, start: start.to_path_buf(), rest: vec![] };
        if start == cwd && Path::new(text).has_root() {
            let prefix: PathBuf = Path::new(text)
                .components()
                .take_while(|part| matches!(part, Component::Prefix(_) | Component::RootDir))
                .collect();
            pattern.start = cwd.join(prefix);
        }
        for part in text.split(separator).filter(|part| !part.is_empty() && *part != ".") {
            pattern.push(part, &bad)?;
        }
        Ok(Some(pattern))
    }

    fn push(
        &mut self,
        part: &str,
        bad: &impl Fn(&str) -> PathPatternError,
    ) -> Result<(), PathPatternError> {
        let glob = part.contains(['*', '?', '[']);
        match part {
            ".." if self.rest.is_empty() => {
                self.start.pop();
            }
            ".." => return Err(bad("`..` can't follow a wildcard")),
            _ if cfg!(windows) && part.ends_with(':') && self.rest.is_empty() => {}
            _ if self.rest.is_empty() && !glob => self.start.push(part),
            "**" if matches!(self.rest.last(), Some(PatternPart::Any)) => {}
            "**" => self.rest.push(PatternPart::Any),
            _ => self.rest.push(PatternPart::Name(name(part).map_err(|why| bad(&why))?)),
        }
        Ok(())
    }

    /// The part before the first wildcard.
    pub(super) fn start(&self) -> PathBuf {
        self.start.clone()
    }

    /// Whether the pattern matches `path` or a folder above it.
    pub(super) fn matches(&self, path: &Path) -> bool {
        let Ok(below) = path.strip_prefix(&self.start) else { return false };
        matches_whole(&self.rest, &below.components().collect::<Vec<_>>())
    }

    /// Whether the pattern may match something below the folder `path`.
    pub(super) fn may_match_below(&self, path: &Path) -> bool {
        match path.strip_prefix(&self.start) {
            Ok(below) => matches_prefix(&self.rest, &below.components().collect::<Vec<_>>()),
            Err(_) => self.start.starts_with(path),
        }
    }
}

fn separator(c: char) -> bool {
    c == '/' || c == MAIN_SEPARATOR
}

/// The glob of one name. Braces are literal, as in the official action.
fn name(part: &str) -> Result<GlobMatcher, String> {
    let literal = part.replace('{', "[{]").replace('}', "[}]");
    GlobBuilder::new(&literal)
        .literal_separator(true)
        .backslash_escape(false)
        .case_insensitive(cfg!(windows))
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|e| e.kind().to_string())
}

fn matches_whole(pattern: &[PatternPart], path: &[Component<'_>]) -> bool {
    match (pattern, path) {
        ([], _) => true,
        ([PatternPart::Any, rest @ ..], _) => {
            (0..=path.len()).any(|n| matches_whole(rest, &path[n..]))
        }
        ([PatternPart::Name(_), ..], []) => false,
        ([PatternPart::Name(glob), rest @ ..], [name, below @ ..]) => {
            glob.is_match(name.as_os_str()) && matches_whole(rest, below)
        }
    }
}

fn matches_prefix(pattern: &[PatternPart], path: &[Component<'_>]) -> bool {
    match (pattern, path) {
        ([] | [PatternPart::Any, ..], _) | (_, []) => true,
        ([PatternPart::Name(glob), rest @ ..], [name, below @ ..]) => {
            glob.is_match(name.as_os_str()) && matches_prefix(rest, below)
        }
    }
}
