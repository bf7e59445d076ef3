//! One line of the input `path`, read as `@actions/glob` reads it.
//! <https://github.com/actions/toolkit/blob/main/packages/glob/src/internal-pattern.ts>

use std::path::{Component, MAIN_SEPARATOR, Path, PathBuf};

use regex::bytes::Regex;

/// An absolute pattern, split at its separators.
#[derive(Debug)]
pub(crate) struct PathPattern {
    /// The line as the user wrote it.
    pub(crate) line: String,
    pub(crate) excludes: bool,
    /// The part before the first wildcard.
    start: PathBuf,
    rest: Vec<PatternPart>,
    /// The line ends with a separator: it matches folders, with all that is in them, but no file.
    only_folders: bool,
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
    /// The names that one part matches.
    Name(Regex),
}

impl PatternPart {
    fn is_name(&self, part: &Component<'_>) -> bool {
        match self {
            Self::Any => true,
            Self::Name(name) => name.is_match(part.as_os_str().as_encoded_bytes()),
        }
    }
}

impl PathPattern {
    /// Parses a line; `None` for an empty one or a comment.
    pub(crate) fn parse(
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
        let mut pattern = Self {
            line: line.to_owned(),
            excludes,
            start: start.to_path_buf(),
            rest: vec![],
            only_folders: text.ends_with(separator),
        };
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
        match part {
            ".." if self.rest.is_empty() => {
                self.start.pop();
                return Ok(());
            }
            ".." => return Err(bad("`..` can't follow a wildcard")),
            _ if cfg!(windows) && part.ends_with(':') && self.rest.is_empty() => return Ok(()),
            "**" if matches!(self.rest.last(), Some(PatternPart::Any)) => return Ok(()),
            "**" => {
                self.rest.push(PatternPart::Any);
                return Ok(());
            }
            _ => {}
        }
        let name = NamePattern::parse(part);
        match name.literal {
            Some(literal) if self.rest.is_empty() => self.start.push(literal),
            _ => {
                let regex = Regex::new(&name.regex).map_err(|_| bad("it is too long"))?;
                self.rest.push(PatternPart::Name(regex));
            }
        }
        Ok(())
    }

    /// The part before the first wildcard.
    pub(crate) fn start(&self) -> PathBuf {
        self.start.clone()
    }

    /// Whether the pattern matches `path`, or a folder above it.
    pub(crate) fn matches(&self, path: &Path, is_folder: bool) -> bool {
        let Ok(below) = path.strip_prefix(&self.start) else { return false };
        let needs_folder = self.only_folders && !is_folder;
        matches_whole(&self.rest, &below.components().collect::<Vec<_>>(), needs_folder)
    }

    /// Whether the pattern may match something below the folder `path`.
    pub(crate) fn may_match_below(&self, path: &Path) -> bool {
        match path.strip_prefix(&self.start) {
            Ok(below) => matches_prefix(&self.rest, &below.components().collect::<Vec<_>>()),
            Err(_) => self.start.starts_with(path),
        }
    }
}

fn separator(c: char) -> bool {
    c == '/' || c == MAIN_SEPARATOR
}

/// The pattern of one name.
struct NamePattern {
    /// For a regular expression of bytes, because names needn't be UTF-8.
    regex: String,
    /// The only name that matches, if there is no wildcard.
    literal: Option<String>,
}

impl NamePattern {
    /// `*`, `?` and `[…]` are wildcards. A backslash takes the next character's meaning away, but
    /// separates names on Windows. Braces are literal.
    fn parse(part: &str) -> Self {
        let case = if cfg!(windows) { "(?i)" } else { "" };
        let mut regex = format!("(?s-u){case}^");
        let mut literal = Some(String::new());
        let mut rest = part;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            let mut one = c;
            match c {
                '*' => {
                    regex.push_str(".*");
                    literal = None;
                    continue;
                }
                '?' => {
                    // One character, of up to four bytes.
                    regex.push_str(r"(?:[\x00-\x7F]|[\xC0-\xFF][\x80-\xBF]*|[\x80-\xBF])");
                    literal = None;
                    continue;
                }
                '[' => {
                    if let Some((class, after)) = name_class(rest) {
                        rest = after;
                        regex.push_str(&class.regex);
                        literal = literal.zip(class.only).map(|(text, only)| text + &only);
                        continue;
                    }
                }
                '\\' if !cfg!(windows) && !rest.is_empty() => {
                    one = rest.chars().next().unwrap_or_default();
                    rest = &rest[one.len_utf8()..];
                }
                _ => {}
            }
            regex.push_str(&format!("(?u:{})", regex::escape(one.encode_utf8(&mut [0; 4]))));
            literal.iter_mut().for_each(|text| text.push(one));
        }
        regex.push('$');
        Self { regex, literal }
    }
}

struct NameClass {
    regex: String,
    /// The only character in it.
    only: Option<String>,
}

/// Reads the class after its `[`, and returns it with what follows. `None` if it is none: it doesn't
/// end, or a range in it is empty.
fn name_class(text: &str) -> Option<(NameClass, &str)> {
    let negated = text.starts_with(['!', '^']);
    let mut chars = text.char_indices().skip(usize::from(negated)).peekable();
    let mut members: Vec<(char, bool)> = vec![];
    let end = loop {
        let (at, c) = chars.next()?;
        match c {
            // A bracket at the start is a member.
            ']' if !members.is_empty() => break at,
            '\\' if !cfg!(windows) => members.push((chars.next()?.1, false)),
            c => members.push((c, c == '-')),
        }
    };
    let mut class = String::new();
    let escaped = |c: char| format!("\\u{{{:x}}}", u32::from(c));
    let mut n = 0;
    while n < members.len() {
        match (members.get(n), members.get(n + 1), members.get(n + 2)) {
            (Some((from, _)), Some((_, true)), Some((to, _))) => {
                if from > to {
                    return None;
                }
                class.push_str(&format!("{}-{}", escaped(*from), escaped(*to)));
                n += 3;
            }
            (Some((one, _)), ..) => {
                class.push_str(&escaped(*one));
                n += 1;
            }
            (None, ..) => break,
        }
    }
    let only = match members.as_slice() {
        [(one, _)] if !negated => Some(one.to_string()),
        _ => None,
    };
    let not = if negated { "^" } else { "" };
    let regex = format!("(?u:[{not}{class}])");
    Some((NameClass { regex, only }, &text[end + 1..]))
}

/// Whether `pattern` matches `path` or a folder above it; with `needs_folder`, only a folder above it.
///
/// After each `**` the first place that fits leaves most of the path to the rest, so no other one is tried, and many
/// `**` take no longer than a few.
fn matches_whole(pattern: &[PatternPart], path: &[Component<'_>], needs_folder: bool) -> bool {
    let mut rest = path;
    for (n, names) in pattern.split(|part| matches!(part, PatternPart::Any)).enumerate() {
        let last_place = if n == 0 { 0 } else { rest.len() };
        let Some(at) = (0..=last_place).find(|at| starts_with(&rest[*at..], names)) else {
            return false;
        };
        rest = &rest[at + names.len()..];
    }
    !needs_folder || !rest.is_empty()
}

fn starts_with(path: &[Component<'_>], names: &[PatternPart]) -> bool {
    names.len() <= path.len() && names.iter().zip(path).all(|(name, part)| name.is_name(part))
}

fn matches_prefix(pattern: &[PatternPart], path: &[Component<'_>]) -> bool {
    match (pattern, path) {
        ([] | [PatternPart::Any, ..], _) | (_, []) => true,
        ([name, rest @ ..], [part, below @ ..]) => {
            name.is_name(part) && matches_prefix(rest, below)
        }
    }
}
