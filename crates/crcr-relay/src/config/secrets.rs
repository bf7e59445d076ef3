//! Secrets that can be rotated while the relay runs: two values at a time, in files that are read again.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use parking_lot::RwLock;
use secrecy::{ExposeSecret as _, SecretString};

use crate::limits;

/// The largest secret file.
const MAX_BYTES: u64 = 64 * 1024;
/// How long a program may take to write a secret to a pipe.
const WAIT_FOR_PIPE: Duration = Duration::from_secs(5);
/// The new value and the old one.
const MAX_VALUES: usize = 2;

/// How the values of a secret are separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretFormat {
    /// One value on each line, at most two. A value may contain commas.
    Lines,
    /// As [`Self::Lines`], and each value is long enough that it can't be guessed.
    Tokens,
    /// Values separated by commas or line feeds, each as long.
    List,
    /// One value, such as PEM.
    Whole,
}

/// A secret's values, the new one first. `Debug` prints its name only.
pub struct Secret {
    name: &'static str,
    format: SecretFormat,
    file: Option<PathBuf>,
    /// Whether it comes from the secret store, such as AWS Secrets Manager.
    is_stored: bool,
    state: RwLock<SecretState>,
}

struct SecretState {
    values: Arc<[SecretString]>,
    /// The file as it was last read.
    stamp: Option<FileStamp>,
    /// Why the file's present content isn't in force.
    problem: Option<String>,
}

/// Differs when the file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReloadResult {
    Unchanged,
    /// The new values are in force.
    New,
    /// The new file can't be used, and the old values stay. Returned once for each change.
    Broken(String),
}

impl Secret {
    /// The secret of the setting `name`, with `text` from `file` if that is given.
    pub fn new(
        name: &'static str,
        format: SecretFormat,
        text: &str,
        file: Option<PathBuf>,
    ) -> Result<Self, String> {
        let values = format.read(text)?;
        let stamp = file.as_deref().and_then(|file| FileStamp::of(file).ok());
        let state = RwLock::new(SecretState { values, stamp, problem: None });
        Ok(Self { name, format, file, is_stored: false, state })
    }

    /// A secret whose value comes from the secret store.
    #[must_use]
    pub fn stored(self) -> Self {
        Self { is_stored: true, ..self }
    }

    /// Uses the value that the secret store has now. `accept` can reject it.
    pub(crate) fn reload_stored(
        &self,
        text: Option<&str>,
        accept: impl FnOnce(&[SecretString]) -> Result<(), String>,
    ) -> ReloadResult {
        if !self.is_stored {
            return ReloadResult::Unchanged;
        }
        let taken = text.ok_or_else(|| "isn't in the secret any more".to_owned());
        let taken = taken.and_then(|text| self.format.read(text));
        let mut state = self.state.write();
        let is_same = |values: &Arc<[SecretString]>| {
            let pairs = values.iter().zip(state.values.iter());
            values.len() == state.values.len()
                && pairs.into_iter().all(|(a, b)| a.expose_secret() == b.expose_secret())
        };
        if taken.as_ref().is_ok_and(is_same) {
            state.problem = None;
            return ReloadResult::Unchanged;
        }
        take(&mut state, taken.and_then(|values| accept(&values).map(|()| values)))
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// All valid values, the new one first; there is at least one.
    pub fn all(&self) -> Arc<[SecretString]> {
        Arc::clone(&self.state.read().values)
    }

    pub fn first(&self) -> SecretString {
        self.all()[0].clone()
    }

    /// Reads the file again if it has changed. `accept` can reject the new values.
    pub(crate) fn reload(
        &self,
        accept: impl FnOnce(&[SecretString]) -> Result<(), String>,
    ) -> ReloadResult {
        let Some(file) = &self.file else { return ReloadResult::Unchanged };
        let before = FileStamp::of(file);
        let mut state = self.state.write();
        if before.as_ref().is_ok_and(|stamp| state.stamp == Some(*stamp)) {
            return ReloadResult::Unchanged;
        }
        let read = before.and_then(|stamp| {
            if is_pipe(file) {
                // Until somebody wrote to it, nobody could use the secret.
                return Err(format!("`{}` isn't a file: only the start reads it", file.display()));
            }
            let text = read_to_end(file)?;
            // It is still being written, and is read at the next call.
            if FileStamp::of(file)? != stamp {
                return Ok(None);
            }
            Ok(Some((stamp, text)))
        });
        let taken = match read {
            Ok(None) => return ReloadResult::Unchanged,
            Ok(Some((stamp, text))) => {
                state.stamp = Some(stamp);
                self.format.read(&text).and_then(|values| accept(&values).map(|()| values))
            }
            Err(problem) => Err(problem),
        };
        take(&mut state, taken)
    }
}

/// Puts new values in force, or keeps the old ones and says once why.
fn take(state: &mut SecretState, taken: Result<Arc<[SecretString]>, String>) -> ReloadResult {
    match taken {
        Ok(values) => {
            state.values = values;
            state.problem = None;
            ReloadResult::New
        }
        Err(problem) if state.problem.as_ref() == Some(&problem) => ReloadResult::Unchanged,
        Err(problem) => {
            state.problem = Some(problem.clone());
            ReloadResult::Broken(problem)
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SecretFormat {
    fn read(self, text: &str) -> Result<Arc<[SecretString]>, String> {
        let filled = |text: &&str| !text.trim().is_empty();
        let values: Arc<[SecretString]> = match self {
            Self::Lines | Self::Tokens => text
                .split('\n')
                .map(|line| line.trim_end_matches('\r'))
                .filter(filled)
                .map(SecretString::from)
                .collect(),
            Self::List => text
                .split([',', '\n'])
                .map(str::trim)
                .filter(filled)
                .map(SecretString::from)
                .collect(),
            Self::Whole => Some(text).filter(filled).map(SecretString::from).into_iter().collect(),
        };
        match values.len() {
            0 => Err("has no value".to_owned()),
            count if self != Self::List && count > MAX_VALUES => Err(format!(
                "has {count} lines: at most {MAX_VALUES}, the new value and the old one"
            )),
            _ if matches!(self, Self::Tokens | Self::List) && values.iter().any(is_short) => {
                let least = limits::SECRET_CHARS;
                Err(format!("has fewer than {least} characters: `openssl rand -hex 32`"))
            }
            _ => Ok(values),
        }
    }
}

fn is_short(token: &SecretString) -> bool {
    token.expose_secret().chars().count() < limits::SECRET_CHARS
}

impl FileStamp {
    fn of(file: &Path) -> Result<Self, String> {
        let metadata = fs::metadata(file).map_err(|error| unreadable(file, &error))?;
        Ok(Self { modified: metadata.modified().ok(), bytes: metadata.len() })
    }
}

/// Reads a secret's file, without a byte order mark and line feeds at its end.
pub fn read(file: &Path) -> Result<String, String> {
    read_within(file, WAIT_FOR_PIPE)
}

fn read_within(file: &Path, wait: Duration) -> Result<String, String> {
    if !is_pipe(file) {
        return read_to_end(file);
    }
    // Somebody has to write to it, or it would be waited for without end.
    let (done, text) = mpsc::channel();
    let path = file.to_owned();
    thread::spawn(move || done.send(read_to_end(&path)));
    text.recv_timeout(wait).unwrap_or_else(|_| {
        let wait = wait.as_secs_f64();
        Err(format!("`{}` isn't a file, and gave nothing within {wait} seconds", file.display()))
    })
}

fn is_pipe(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

fn read_to_end(file: &Path) -> Result<String, String> {
    use std::io::Read as _;
    let opened = fs::File::open(file).map_err(|error| unreadable(file, &error))?;
    let mut text = String::new();
    let read = opened.take(MAX_BYTES + 1).read_to_string(&mut text);
    let bytes = read.map_err(|error| unreadable(file, &error))?;
    if bytes as u64 > MAX_BYTES {
        return Err(format!("`{}` is larger than {MAX_BYTES} bytes", file.display()));
    }
    // Some editors write a byte order mark, which would be a part of the secret.
    let bare = text.trim_start_matches('\u{feff}').trim_end_matches(['\r', '\n']);
    Ok(bare.to_owned())
}

fn unreadable(file: &Path, error: &std::io::Error) -> String {
    format!("can't read `{}`: {error}", file.display())
}

/// The secrets that sign callback tokens, the new one first. Without keys of their own, tokens are signed with keys
/// that are derived from the webhook secret.
pub(crate) fn callback_secrets(
    keys: Option<&Secret>,
    webhook_secret: Option<&Secret>,
) -> Vec<SecretString> {
    match (keys, webhook_secret) {
        (Some(keys), _) => keys.all().to_vec(),
        (None, Some(secret)) => secret.all().iter().map(derived_key).collect(),
        (None, None) => vec![],
    }
}

fn derived_key(webhook_secret: &SecretString) -> SecretString {
    let key = hmac::Key::new(hmac::HMAC_SHA256, webhook_secret.expose_secret().as_bytes());
    SecretString::from(hex::encode(hmac::sign(&key, b"crcr callback key")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_value_of_the_secret_store_is_used_and_a_missing_one_keeps_the_old() {
        let secret = Secret::new("NAME", SecretFormat::Lines, "old", None).unwrap();
        assert_eq!(secret.reload_stored(Some("new"), fine), ReloadResult::Unchanged, "not stored");
        let secret = secret.stored();
        assert_eq!(secret.reload_stored(Some("old"), fine), ReloadResult::Unchanged);
        assert_eq!(secret.reload_stored(Some("new\nold"), fine), ReloadResult::New);
        assert_eq!(values(&secret), ["new", "old"]);
        for broken in [None, Some(""), Some("one\ntwo\nthree")] {
            assert!(matches!(secret.reload_stored(broken, fine), ReloadResult::Broken(_)));
            assert_eq!(secret.reload_stored(broken, fine), ReloadResult::Unchanged, "told once");
            assert_eq!(values(&secret), ["new", "old"]);
        }
    }

    fn values(secret: &Secret) -> Vec<String> {
        secret.all().iter().map(|value| value.expose_secret().to_owned()).collect()
    }

    fn fine(_: &[SecretString]) -> Result<(), String> {
        Ok(())
    }

    #[cfg(unix)]
    fn make_pipe(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[cfg(unix)]
    #[test]
    fn pipe_is_read_and_one_that_nobody_writes_to_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        make_pipe(&path);
        let writer = thread::spawn({
            let path = path.clone();
            move || fs::write(path, "a secret\n").unwrap()
        });
        assert_eq!(read(&path).unwrap(), "a secret");
        writer.join().unwrap();
        let silent = read_within(&path, Duration::from_millis(50)).unwrap_err();
        assert!(silent.ends_with("isn't a file, and gave nothing within 0.05 seconds"), "{silent}");
        assert!(read(folder.path()).unwrap_err().starts_with("can't read"));
    }

    /// While a file is read again, everybody who needs the secret waits.
    #[cfg(unix)]
    #[test]
    fn file_that_becomes_a_pipe_is_told_at_once_and_the_old_value_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let secret = Secret::new("NAME", SecretFormat::Lines, "old", Some(path.clone())).unwrap();
        make_pipe(&path);
        let started = std::time::Instant::now();
        let told = secret.reload(fine);
        assert!(
            matches!(&told, ReloadResult::Broken(why) if why.contains("isn't a file")),
            "{told:?}"
        );
        assert_eq!(secret.reload(fine), ReloadResult::Unchanged, "told once");
        assert!(started.elapsed() < WAIT_FOR_PIPE, "nobody was waited for");
        assert_eq!(values(&secret), ["old"]);
    }

    #[test]
    fn changed_file_is_used_and_invalid_file_keeps_the_old_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "old, with a comma\n").unwrap();
        let text = read(&path).unwrap();
        let secret = Secret::new("NAME", SecretFormat::Lines, &text, Some(path.clone())).unwrap();
        assert_eq!(secret.reload(fine), ReloadResult::Unchanged);
        fs::write(&path, "new\r\nold, with a comma\r\n\r\n").unwrap();
        assert_eq!(secret.reload(fine), ReloadResult::New);
        assert_eq!(values(&secret), ["new", "old, with a comma"]);
        for broken in ["", " \n", "one\ntwo\nthree\n", &"x".repeat(70_000)] {
            fs::write(&path, broken).unwrap();
            let told = secret.reload(fine);
            assert!(matches!(&told, ReloadResult::Broken(why) if !why.contains("two")), "{told:?}");
            assert_eq!(secret.reload(fine), ReloadResult::Unchanged, "told once");
            assert_eq!(values(&secret), ["new", "old, with a comma"]);
            fs::write(&path, "new\nold, with a comma").unwrap();
            assert_eq!(secret.reload(fine), ReloadResult::New);
        }
        fs::remove_file(&path).unwrap();
        assert!(
            matches!(secret.reload(fine), ReloadResult::Broken(why) if why.contains("can't read"))
        );
        assert_eq!(secret.reload(fine), ReloadResult::Unchanged);
        fs::write(&path, "unacceptable").unwrap();
        let refuse = |_: &[SecretString]| Err("not a key".to_owned());
        assert_eq!(secret.reload(refuse), ReloadResult::Broken("not a key".to_owned()));
        assert_eq!(values(&secret), ["new", "old, with a comma"]);
        fs::write(&path, "newest").unwrap();
        assert_eq!(secret.reload(fine), ReloadResult::New);
        assert_eq!(values(&secret), ["newest"]);
        assert!(!format!("{secret:?}").contains("newest"));
    }
}
