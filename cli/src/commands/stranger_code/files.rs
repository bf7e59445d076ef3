//! Files that steps of a job wrote text of a stranger into.

use std::collections::BTreeMap;

/// More files than any job writes. They could take long to compare.
const MAX_FILES: usize = 200;

/// Where the runner and the system take text from that no step runs as a file.
const NO_FILES: [&str; 6] =
    ["github_env", "github_path", "github_output", "github_state", "github_step_summary", "/dev/"];

/// The files by their names in lower case, each with whether a stranger may have begun a line of it.
///
/// A file is recognized by the last part of its path: where a script is when it names one isn't known.
#[derive(Debug, Clone, Default)]
pub struct StrangerFiles(BTreeMap<String, bool>);

impl StrangerFiles {
    pub fn add(&mut self, path: &str, begins_lines: bool) {
        let path = normal(path);
        let is_number = last(&path).bytes().all(|b| b.is_ascii_digit() || b == b'-');
        if is_number || NO_FILES.iter().any(|part| path.contains(part)) || self.0.len() >= MAX_FILES
        {
            return;
        }
        *self.0.entry(path).or_default() |= begins_lines;
    }

    /// For one that is written anew.
    pub fn remove(&mut self, path: &str) {
        self.0.remove(&normal(path));
    }

    pub fn extend(&mut self, others: Self) {
        for (path, begins_lines) in others.0 {
            self.add(&path, begins_lines);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn holds(&self, path: &str) -> bool {
        self.find(path).is_some()
    }

    /// Whether a stranger may have begun a line of the file, such as one with the name of a variable.
    pub fn has_lines(&self, path: &str) -> bool {
        self.find(path) == Some(true)
    }

    pub fn any_lines(&self) -> bool {
        self.0.values().any(|begins_lines| *begins_lines)
    }

    fn find(&self, path: &str) -> Option<bool> {
        if self.is_empty() || path.is_empty() {
            return None;
        }
        let path = normal(path);
        let same = self.0.iter().filter(|(file, _)| last(file) == last(&path));
        same.map(|(_, begins_lines)| *begins_lines).max()
    }

    /// Without those whose names only the script that wrote them knows.
    pub fn for_later_steps(mut self) -> Self {
        self.0.retain(|file, _| last(file).contains("${{") || !last(file).contains('$'));
        self
    }
}

fn normal(path: &str) -> String {
    let path = path.trim_matches(['"', '\'']).to_lowercase();
    if path.contains("${{") { path } else { path.replace(['{', '}'], "") }
}

fn last(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or_default()
}
