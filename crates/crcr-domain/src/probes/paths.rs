//! Patterns of paths, in order: the last one that matches a path decides about it.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};

use crate::yaml::display::is_invisible;

/// Patterns of a file. More would cost time for every pull request.
pub(crate) const MAX_PATTERNS: usize = 64;
pub(crate) const MAX_PATTERN_CHARS: usize = 256;

/// Which changed files concern a backend. `*` is any text within a folder, `**` any text across folders, `!` in front
/// leaves out what an earlier pattern took in. They mean the same in the filters of GitHub's workflows, from which people
/// copy them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathFilter(Vec<String>);

impl PathFilter {
    /// Each of them has passed [`check`].
    pub(crate) fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    /// Whether one of the files concerns the backend. A filter that can't be evaluated takes all.
    pub fn takes_any<'a>(&self, mut files: impl Iterator<Item = &'a str>) -> bool {
        let Ok(set) = self.compile() else { return true };
        files.any(|file| {
            let decides = set.matches(file).into_iter().max();
            decides.is_some_and(|last| !self.0[last].starts_with('!'))
        })
    }

    fn compile(&self) -> Result<GlobSet, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for text in &self.0 {
            let pattern = text.strip_prefix('!').unwrap_or(text);
            set.add(GlobBuilder::new(&glob_of(pattern)).literal_separator(true).build()?);
        }
        set.build()
    }
}

/// A pattern as globset reads it. For globset, a `**` beside other text, as in `**.py`, doesn't cross folders.
fn glob_of(pattern: &str) -> String {
    let of_part = |part: &str| match part {
        "**" => part.to_owned(),
        _ => part.replace("**", "{*,*/**/*}"),
    };
    pattern.split('/').map(of_part).collect::<Vec<_>>().join("/")
}

/// Why a text can't be a pattern, and what to do. A pattern that no file can match is a mistake: it would leave out
/// everything without a word.
pub(crate) fn check(text: &str) -> Option<(String, &'static str)> {
    let pattern = text.strip_prefix('!').unwrap_or(text);
    let chars = pattern.chars().count();
    if !(1..=MAX_PATTERN_CHARS).contains(&chars) {
        let message =
            format!("a pattern has 1 to {MAX_PATTERN_CHARS} characters, and this one {chars}");
        return Some((message, "name folders or files, such as `aten/**`"));
    }
    if pattern.starts_with('/') || pattern.starts_with("./") {
        let message = "a pattern doesn't begin with `/` or `./`";
        return Some((message.to_owned(), "drop it: paths begin at the top of the repository"));
    }
    if pattern.ends_with('/') {
        let message = "a pattern is compared with files, and no file ends with `/`";
        return Some((message.to_owned(), "write `**` behind it"));
    }
    if pattern.starts_with('!') {
        let message = "a pattern has one `!` at most, at the start";
        return Some((message.to_owned(), "drop the second one"));
    }
    if pattern.split('/').any(|part| ["", ".", ".."].contains(&part)) {
        let message = "no file's path has `//`, `.` or `..` in it";
        return Some((message.to_owned(), "write the path from the top of the repository"));
    }
    let is_hidden = |c: char| is_invisible(c) || (c.is_whitespace() && c != ' ');
    let hidden = pattern.chars().find(|c| is_hidden(*c) && !c.is_control());
    if let Some(hidden) = hidden {
        let message = format!("U+{:04X} is invisible or looks like a space", u32::from(hidden));
        return Some((message, "remove it, or type a space in its place"));
    }
    if pattern.starts_with(' ') || pattern.ends_with(' ') {
        let message = "a pattern doesn't begin or end with a space";
        return Some((message.to_owned(), "remove it"));
    }
    let odd = pattern.chars().find(|c| "?[]{}\\".contains(*c) || c.is_control())?;
    let message = format!("`{}` has no meaning in a pattern", odd.escape_debug());
    Some((message, "use `*` for any text within a folder, and `**` for any text across folders"))
}
