//! Answers of GitHub on disk, each with its `ETag`. Holds no token; may be lost at any time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The largest file that is read or written, in bytes.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The largest answer that is kept, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// The most answers that are kept; the ones that were not asked for longest go first.
const MAX_ANSWERS: usize = 50_000;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Cache {
    /// Counts the runs that wrote the file.
    run: u64,
    answers: HashMap<String, Answer>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    etag: String,
    /// The run that asked for it last.
    used: u64,
    value: Value,
}

impl Cache {
    /// The answers in the file at `path`; none when it is absent, too large or not ours.
    pub fn read(path: &Path) -> Self {
        let read = || -> io::Result<Self> {
            let mut text = Vec::new();
            File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut text)?;
            if text.len() as u64 > MAX_BYTES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Ok(serde_json::from_slice(&text)?)
        };
        let mut cache = read().unwrap_or_else(|error| {
            tracing::debug!(%error, path = %path.display(), "no answers are kept");
            Self::default()
        });
        cache.run += 1;
        cache
    }

    /// Writes the answers to `path`, whole or not at all, for its owner's eyes only.
    pub fn write(&mut self, path: &Path) -> io::Result<()> {
        let mut oldest: Vec<_> = self.answers.iter().map(|(k, a)| (a.used, k.clone())).collect();
        oldest.sort();
        let mut surplus = oldest.len().saturating_sub(MAX_ANSWERS);
        let text = loop {
            for (_, key) in &oldest[..surplus] {
                self.answers.remove(key);
            }
            let text = serde_json::to_vec(self)?;
            if text.len() as u64 <= MAX_BYTES {
                break text;
            }
            // Too large still: half of what is left goes.
            surplus = oldest.len() - self.answers.len() / 2;
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // A temporary file is its owner's alone, and stays so under its new name.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&text)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    pub(super) fn get(&mut self, key: &str) -> Option<(String, Value)> {
        let answer = self.answers.get_mut(key)?;
        answer.used = self.run;
        Some((answer.etag.clone(), answer.value.clone()))
    }

    pub(super) fn put(&mut self, key: String, etag: String, value: Value) {
        if etag.len() <= 256 && value.to_string().len() <= MAX_ANSWER {
            self.answers.insert(key, Answer { etag, used: self.run, value });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_outlive_the_process_for_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/github.json");
        let mut cache = Cache::read(&path);
        cache.put("k".to_owned(), "\"e\"".to_owned(), Value::Bool(true));
        cache.write(&path).unwrap();
        let mut again = Cache::read(&path);
        assert_eq!(again.get("k"), Some(("\"e\"".to_owned(), Value::Bool(true))));
        assert_eq!(again.get("other"), None);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        fs::write(&path, "no cache").unwrap();
        assert_eq!(Cache::read(&path).get("k"), None);
    }

    #[test]
    fn the_answers_not_asked_for_longest_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("github.json");
        let mut cache = Cache::read(&path);
        for n in 0..MAX_ANSWERS {
            cache.put(format!("old{n}"), "e".to_owned(), Value::Null);
        }
        cache.run += 1;
        cache.put("new".to_owned(), "e".to_owned(), Value::Null);
        cache.write(&path).unwrap();
        let mut again = Cache::read(&path);
        assert_eq!(again.answers.len(), MAX_ANSWERS);
        assert!(again.get("new").is_some());
    }
}
