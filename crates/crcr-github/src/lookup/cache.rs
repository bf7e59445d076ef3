//! GitHub's answers on disk, each with its `ETag`. Holds no token, and can be deleted at any time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The largest file that is read or written.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Above this, the answers that were used longest ago are removed.
const MAX_ANSWERS: usize = 50_000;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LookupCache {
    /// The number of programs that wrote the file, which orders `last_used`.
    generation: u64,
    answers: HashMap<String, CachedAnswer>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CachedAnswer {
    etag: String,
    last_used: u64,
    value: Value,
}

impl LookupCache {
    /// The answers in the file at `path`; none when it is absent, too large or malformed.
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
            tracing::debug!(%error, path = %path.display(), "no cached answers");
            Self::default()
        });
        cache.generation += 1;
        cache
    }

    /// Replaces the file at `path`, which only its owner can read.
    pub fn write(&mut self, path: &Path) -> io::Result<()> {
        let mut oldest: Vec<_> =
            self.answers.iter().map(|(k, a)| (a.last_used, k.clone())).collect();
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
            // Still too large: remove half of the rest.
            surplus = oldest.len() - self.answers.len() / 2;
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // Only the owner can read a temporary file, and renaming keeps that.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&text)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<(String, Value)> {
        let answer = self.answers.get_mut(key)?;
        answer.last_used = self.generation;
        Some((answer.etag.clone(), answer.value.clone()))
    }

    pub(crate) fn put(&mut self, key: String, etag: String, value: Value) {
        if etag.len() <= 256 && value.to_string().len() <= MAX_ANSWER_BYTES {
            self.answers.insert(key, CachedAnswer { etag, last_used: self.generation, value });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_process_and_only_the_owner_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/github.json");
        let mut cache = LookupCache::read(&path);
        cache.put("k".to_owned(), "\"e\"".to_owned(), Value::Bool(true));
        cache.write(&path).unwrap();
        let mut again = LookupCache::read(&path);
        assert_eq!(again.get("k"), Some(("\"e\"".to_owned(), Value::Bool(true))));
        assert_eq!(again.get("other"), None);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        fs::write(&path, "no cache").unwrap();
        assert_eq!(LookupCache::read(&path).get("k"), None);
    }

    #[test]
    fn least_recently_used_answers_are_removed_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("github.json");
        let mut cache = LookupCache::read(&path);
        for n in 0..MAX_ANSWERS {
            cache.put(format!("old{n}"), "e".to_owned(), Value::Null);
        }
        cache.generation += 1;
        cache.put("new".to_owned(), "e".to_owned(), Value::Null);
        cache.write(&path).unwrap();
        let mut again = LookupCache::read(&path);
        assert_eq!(again.answers.len(), MAX_ANSWERS);
        assert!(again.get("new").is_some());
    }
}
