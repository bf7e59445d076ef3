//! Moves one repository to another level by editing the text of the file. All other lines, comments included,
//! stay byte for byte as they are.

use super::{Allowlist, AllowlistEntry, ParseOutcome, diff};
use crate::allowlist::level::{Device, Level};
use crate::diagnostic::Severity;
use crate::repo::RepoName;
use crate::yaml::scalar;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    #[error("the allowlist has errors")]
    Invalid,
    #[error("`{0}` isn't listed")]
    NotListed(RepoName),
    #[error("`{0}` needs a device at L3")]
    NoDevice(RepoName),
    #[error(
        "`{0}` isn't on lines of its own, so it can't be moved without rewriting other entries"
    )]
    NotOnOwnLines(RepoName),
    #[error("with `{repo}` at {to} the allowlist would have an error: {first}")]
    HasErrors { repo: RepoName, to: Level, first: String },
    /// The edited text was parsed again and says something else than intended.
    #[error("moving `{0}` would change more than its entry")]
    ChangesMore(RepoName),
}

/// The lines of an entry, in block style.
struct EntryBlock {
    first: usize,
    /// The first line after it.
    end: usize,
    /// Column of the `-` at L1, L2 and L4, and of the name at L3.
    indent: usize,
    /// Column of the name, including its quote.
    name_column: usize,
}

struct FileLines<'a> {
    file: &'a ParseOutcome,
    lines: Vec<&'a str>,
}

struct Insertion {
    /// Index of the line that will follow it.
    before: usize,
    indent: usize,
    /// Keys that the file lacks: a level, a device.
    missing_keys: String,
    /// A key with an explicitly empty value, such as `L2: []`, that has to lose the value.
    emptied: Option<(usize, String)>,
}

/// Returns the whole text with `repo` at level `to`. `device`: only used at L3, and required there.
///
/// Parses the result again, and fails if anything but the level and the device of this entry changed.
pub fn move_entry(
    file: &ParseOutcome,
    repo: &RepoName,
    to: Level,
    device: Option<&Device>,
    upstream: &RepoName,
) -> Result<String, MoveError> {
    if file.findings.errors() > 0 {
        return Err(MoveError::Invalid);
    }
    let at = file.policy.position(repo).ok_or_else(|| MoveError::NotListed(repo.clone()))?;
    let entry = file.policy.iter().nth(at).expect("the position is of an entry");
    let device = match to {
        Level::L3 => Some(device.ok_or_else(|| MoveError::NoDevice(repo.clone()))?),
        _ => None,
    };
    let own_lines = || MoveError::NotOnOwnLines(repo.clone());
    let text = FileLines { file, lines: file.source.text().split_inclusive('\n').collect() };
    let block = text.block(at).ok_or_else(own_lines)?;
    let insertion = text.insertion(to, device, at).ok_or_else(own_lines)?;
    let moved = text.edited(&block, &insertion, at, to);

    let parsed = Allowlist::parse(moved.as_bytes(), upstream);
    let expected = AllowlistEntry { level: to, device: device.cloned(), ..entry.clone() };
    if let Some(first) = parsed.findings.kept().iter().find(|one| one.severity == Severity::Error) {
        let first = first.message.clone();
        return Err(MoveError::HasErrors { repo: repo.clone(), to, first });
    }
    let changes = diff::changes(&file.policy, &parsed.policy, &[]);
    let only_this = matches!(&*changes, [change] if change.after == Some(&expected)
        && expected.repo.as_str() == change.repo().as_str());
    if !only_this {
        return Err(MoveError::ChangesMore(repo.clone()));
    }
    Ok(moved)
}

impl<'a> FileLines<'a> {
    /// The lines of an entry; `None` if it shares a line with something else.
    fn block(&self, at: usize) -> Option<EntryBlock> {
        let is_item = self.file.policy.iter().nth(at)?.level != Level::L3;
        let (first, column) = self.line_of(self.file.places[at].repo.bytes.start);
        let line = self.lines[first];
        let indent = indent_of(line);
        if line[..column].trim() != if is_item { "-" } else { "" } {
            return None;
        }
        let mut end = first + 1;
        for (index, line) in self.lines.iter().enumerate().skip(first + 1) {
            if is_blank(line) {
                continue;
            }
            let is_inside = indent_of(line) > indent
                // A list may be at the column of its key.
                || (!is_item && indent_of(line) == indent && line.trim_start().starts_with('-'));
            if !is_inside {
                break;
            }
            end = index + 1;
        }
        Some(EntryBlock { first, end, indent, name_column: column })
    }

    fn insertion(&self, to: Level, device: Option<&Device>, moved: usize) -> Option<Insertion> {
        let mut siblings = self.file.policy.iter().enumerate().filter(|(at, entry)| {
            *at != moved && entry.level == to && entry.device.as_ref() == device
        });
        if let Some((mut last, _)) = siblings.next_back() {
            // In the text, too, the last one of several sections of a device.
            last = siblings.map(|(at, _)| at).fold(last, usize::max);
            let block = self.block(last)?;
            let (before, indent) = (block.end, block.indent);
            return Some(Insertion { before, indent, missing_keys: String::new(), emptied: None });
        }
        let line_end = self.line_end();
        let Some((level_line, emptied)) = self.key(to.as_str(), 0..self.lines.len(), Some(0))
        else {
            let mut missing_keys = format!("{to}:{line_end}");
            if let Some(device) = device {
                missing_keys += &format!("  {}:{line_end}", scalar::quoted(device.as_str()));
            }
            let indent = if device.is_some() { 4 } else { 2 };
            let before = self.lines.len();
            return Some(Insertion { before, indent, missing_keys, emptied: None });
        };
        let Some(device) = device else {
            let before = level_line + 1;
            return Some(Insertion { before, indent: 2, missing_keys: String::new(), emptied });
        };
        let section_end = (level_line + 1..self.lines.len())
            .find(|at| !is_blank(self.lines[*at]) && indent_of(self.lines[*at]) == 0)
            .unwrap_or(self.lines.len());
        let below = level_line + 1..section_end;
        if let Some((line, emptied)) = self.key(device.as_str(), below.clone(), None) {
            let indent = indent_of(self.lines[line]) + 2;
            return Some(Insertion {
                before: line + 1,
                indent,
                missing_keys: String::new(),
                emptied,
            });
        }
        let first = below.clone().find(|at| !is_blank(self.lines[*at]));
        let indent = first.map_or(2, |at| indent_of(self.lines[at]));
        let missing_keys = format!("{:indent$}{}:{line_end}", "", scalar::quoted(device.as_str()));
        Some(Insertion { before: level_line + 1, indent: indent + 2, missing_keys, emptied })
    }

    /// The line of a key without entries, and what it has to become if its value is explicitly empty.
    fn key(
        &self,
        name: &str,
        within: std::ops::Range<usize>,
        indent: Option<usize>,
    ) -> Option<(usize, Option<(usize, String)>)> {
        for index in within {
            let line = self.lines[index];
            let column = indent_of(line);
            let (key, value) = line.trim_start().split_once(':').unwrap_or_default();
            let key = key.trim().trim_matches(['"', '\'']);
            if !key.eq_ignore_ascii_case(name) || indent.is_some_and(|indent| indent != column) {
                continue;
            }
            let content = value.split('#').next().unwrap_or_default().trim();
            let emptied = matches!(content, "[]" | "{}" | "~" | "null")
                .then(|| (index, line.replacen(content, "", 1)));
            return Some((index, emptied));
        }
        None
    }

    fn edited(&self, block: &EntryBlock, to: &Insertion, at: usize, level: Level) -> String {
        let line_end = self.line_end();
        let mut entry = to.missing_keys.clone();
        let is_item = level != Level::L3;
        let name_column = to.indent + if is_item { 2 } else { 0 };
        for (index, line) in self.lines[block.first..block.end].iter().enumerate() {
            if index == 0 {
                let lead = if is_item { "- " } else { "" };
                entry += &format!("{:indent$}{lead}", "", indent = to.indent);
                entry += &self.as_key(at, line, block.name_column, is_item);
            } else if line.trim().is_empty() {
                entry += line;
            } else {
                // Below the name, every column keeps its distance to the name's.
                let indent = (indent_of(line) + name_column).saturating_sub(block.name_column);
                entry += &format!("{:indent$}{}", "", line.trim_start_matches(' '));
            }
        }
        if !entry.ends_with('\n') {
            entry += line_end;
        }
        let mut out = String::with_capacity(self.file.source.text().len() + entry.len());
        if self.file.source.has_byte_order_mark() {
            out.push('\u{feff}');
        }
        let push_entry = |out: &mut String| {
            if !out.is_empty() && !out.ends_with(['\n', '\u{feff}']) {
                out.push_str(line_end);
            }
            out.push_str(&entry);
        };
        for (index, line) in self.lines.iter().enumerate() {
            if index == to.before {
                push_entry(&mut out);
            }
            match &to.emptied {
                Some((emptied, text)) if *emptied == index => out.push_str(text),
                _ if (block.first..block.end).contains(&index) => {}
                _ => out.push_str(line),
            }
        }
        if to.before == self.lines.len() {
            push_entry(&mut out);
        }
        out
    }

    /// The first line of an entry from its name on. L3 needs a `:` behind the name, the other levels don't.
    fn as_key(&self, at: usize, line: &str, name_column: usize, is_item: bool) -> String {
        let is_quoted = line[name_column..].starts_with(['"', '\'']);
        let name = self.file.policy.iter().nth(at).map_or("", |entry| entry.repo.as_str());
        let (name, rest) = line[name_column..].split_at(name.len() + if is_quoted { 2 } else { 0 });
        if is_item || rest.trim_start().starts_with(':') {
            return format!("{name}{rest}");
        }
        format!("{name}:{rest}")
    }

    /// Index of the line with this byte, and the byte's column.
    fn line_of(&self, byte: usize) -> (usize, usize) {
        let before = &self.file.source.text()[..byte];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count(), byte - start)
    }

    fn line_end(&self) -> &'static str {
        if self.lines.first().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" }
    }
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Whether the line is empty or only a comment.
fn is_blank(line: &str) -> bool {
    let content = line.trim();
    content.is_empty() || content.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(text: &str, repo: &str, to: Level, device: Option<&str>) -> Result<String, MoveError> {
        let upstream = RepoName::new("up/stream").unwrap();
        let file = Allowlist::parse(text.as_bytes(), &upstream);
        let device = device.map(|device| Device::new(device).unwrap());
        move_entry(&file, &RepoName::new(repo).unwrap(), to, device.as_ref(), &upstream)
    }

    const FILE: &str = "\
# Who takes part. Ask in #ci.
L1:
  - acme/one   # new

L2: # observed
  # Long-standing partner.
  - \"acme/two\": alice,  bob
  - acme/plain # quiet

# The devices
L3:
  npu:
      acme/three: [carol]   # why
      acme/map:
        oncalls:
        # at night
        - dan
        events: [nightly]
  xpu:
      acme/alone: [erin]
L4:
- acme/four: [frank,
    grace]
";

    #[test]
    fn demotion_moves_one_line_and_leaves_every_other_byte() {
        let text = moved(FILE, "acme/three", Level::L2, None).unwrap();
        let expected = FILE
            .replace("      acme/three: [carol]   # why\n", "")
            .replace("# quiet\n", "# quiet\n  - acme/three: [carol]   # why\n");
        assert_eq!(text, expected);
    }

    #[test]
    fn entries_of_several_lines_move_with_their_comments() {
        let text = moved(FILE, "acme/map", Level::L2, None).unwrap();
        let block = "  - acme/map:\n      oncalls:\n      # at night\n      - dan\n      events: [nightly]\n";
        assert!(text.contains(&format!("# quiet\n{block}")), "{text}");
        let blank = "L3:\n  npu:\n    a/b:\n\n      - c\n";
        let text = moved(blank, "a/b", Level::L2, None).unwrap();
        assert_eq!(text, "L3:\n  npu:\nL2:\n  - a/b:\n\n      - c\n");
        let text = moved(FILE, "acme/four", Level::L3, Some("xpu")).unwrap();
        assert!(text.contains("[erin]\n      acme/four: [frank,\n        grace]\nL4:\n"), "{text}");
    }

    #[test]
    fn every_entry_moves_to_every_level_and_only_it_changes() {
        let upstream = RepoName::new("up/stream").unwrap();
        let file = Allowlist::parse(FILE.as_bytes(), &upstream);
        for entry in &file.policy {
            for to in Level::ALL {
                for device in ["npu", "xpu", "new"] {
                    let device = (to == Level::L3).then_some(device);
                    if entry.level == to && entry.device.as_ref().map(Device::as_str) == device {
                        continue;
                    }
                    let text = moved(FILE, entry.repo.as_str(), to, device);
                    if to == Level::L4 && entry.oncalls.is_empty() {
                        assert!(matches!(text, Err(MoveError::HasErrors { .. })), "{text:?}");
                        continue;
                    }
                    let text = text.unwrap_or_else(|e| panic!("{} to {to}: {e}", entry.repo));
                    let lost = FILE.lines().filter(|line| !text.lines().any(|new| new == *line));
                    let lost: Vec<_> = lost.collect();
                    assert!(lost.len() <= 5, "{} to {to}: {lost:?}", entry.repo);
                    // Back again gives the same policy.
                    let back = moved(
                        &text,
                        entry.repo.as_str(),
                        entry.level,
                        entry.device.as_ref().map(Device::as_str),
                    );
                    let back = Allowlist::parse(back.unwrap().as_bytes(), &upstream);
                    assert_eq!(back.policy, file.policy);
                }
            }
        }
    }

    #[test]
    fn missing_and_empty_levels_are_filled() {
        let only = "L3:\n  npu:\n    a/b: [c]";
        assert_eq!(
            moved(only, "a/b", Level::L2, None).unwrap(),
            "L3:\n  npu:\nL2:\n  - a/b: [c]\n"
        );
        for (empty, full) in [("L2:", "L2:"), ("L2: []", "L2: "), ("L2: ~ # none", "L2:  # none")] {
            let text = format!("{empty}\n{only}\n");
            let moved = moved(&text, "a/b", Level::L2, None).unwrap();
            assert_eq!(moved, format!("{full}\n  - a/b: [c]\nL3:\n  npu:\n"));
        }
        assert_eq!(
            moved("L2:\n  - a/b: [c]\n", "a/b", Level::L3, Some("npu")).unwrap(),
            "L2:\nL3:\n  npu:\n    a/b: [c]\n"
        );
        let unended = "L3:\n  npu:\n    a/b: [c]\nL1:\n  - d/e";
        assert_eq!(
            moved(unended, "a/b", Level::L2, None).unwrap(),
            "L3:\n  npu:\nL1:\n  - d/e\nL2:\n  - a/b: [c]\n"
        );
        let up = moved("L2: [c/d]\nL1:\n  - a/b: e\n", "a/b", Level::L4, None).unwrap();
        assert_eq!(up, "L2: [c/d]\nL1:\nL4:\n  - a/b: e\n");
    }

    #[test]
    fn quotes_and_lists_at_the_column_of_their_key_move_with_their_entry() {
        let text = "L3:\n  npu:\n    \"a/b\":\n    - c\n    # why\n    - 'd'\n    e/f: [g]\n";
        assert_eq!(
            moved(text, "a/b", Level::L2, None).unwrap(),
            "L3:\n  npu:\n    e/f: [g]\nL2:\n  - \"a/b\":\n    - c\n    # why\n    - 'd'\n"
        );
        assert_eq!(
            moved("L2:\n  - 'a/b'\nL4:\n  - c/d: [e]\n", "c/d", Level::L2, None).unwrap(),
            "L2:\n  - 'a/b'\n  - c/d: [e]\nL4:\n"
        );
    }

    #[test]
    fn comments_and_blank_lines_do_not_end_a_section() {
        for between in ["# The devices\n", "\n", "  # The devices\n"] {
            let text = format!("L3:\n{between}  npu:\nL2:\n  - a/b: [c]\n");
            assert_eq!(
                moved(&text, "a/b", Level::L3, Some("npu")).unwrap(),
                format!("L3:\n{between}  npu:\n    a/b: [c]\nL2:\n")
            );
            assert_eq!(
                moved(&text, "a/b", Level::L3, Some("xpu")).unwrap(),
                format!("L3:\n  xpu:\n    a/b: [c]\n{between}  npu:\nL2:\n")
            );
        }
    }

    #[test]
    fn byte_order_mark_and_carriage_returns_stay() {
        let text = "\u{feff}L3:\r\n  npu:\r\n    a/b: [c]\r\nL1:\r\n  - d/e\r\n";
        assert_eq!(
            moved(text, "a/b", Level::L2, None).unwrap(),
            "\u{feff}L3:\r\n  npu:\r\nL1:\r\n  - d/e\r\nL2:\r\n  - a/b: [c]\r\n"
        );
    }

    #[test]
    fn entries_that_share_a_line_and_broken_files_are_refused() {
        use MoveError as E;
        let repo = RepoName::new("a/b").unwrap();
        for (text, error) in [
            ("L3: {npu: {a/b: [c], d/e: [f]}}\n", E::NotOnOwnLines(repo.clone())),
            ("L3:\n  npu:\n    a/b: [c]\nL2: [d/e]\n", E::NotOnOwnLines(repo.clone())),
            ("L3:\n  npu:\n    a/c: [c]\n", E::NotListed(repo.clone())),
            ("L3:\n  npu:\n    a/b: [c]\n    a/b: [c]\n", E::Invalid),
        ] {
            assert_eq!(moved(text, "a/b", Level::L2, None), Err(error), "{text}");
        }
        let l4 = moved("L4:\n  - a/b: [c]\n", "a/b", Level::L3, None);
        assert_eq!(l4, Err(E::NoDevice(repo)));
    }
}
