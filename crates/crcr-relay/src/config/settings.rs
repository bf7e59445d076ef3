//! Reads settings by the names of their environment variables, and collects everything that is wrong.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crcr_github::{SecureUrl, SecureUrlError};
use url::Url;

use super::SettingProblem;
use super::secrets::{self, Secret, SecretFormat};

const MAX_DURATION_DAYS: u64 = 3660;

pub(crate) struct Settings<'a> {
    /// The value of a flag or of its environment variable.
    lookup: &'a dyn Fn(&str) -> Option<String>,
    /// The settings from a secret store, for names that `lookup` doesn't know.
    stored: BTreeMap<String, String>,
    pub(crate) problems: Vec<SettingProblem>,
}

/// Every method that returns an `Option<T>` for a setting adds a problem when it returns `None`.
impl<'a> Settings<'a> {
    pub(crate) fn new(
        lookup: &'a dyn Fn(&str) -> Option<String>,
        stored: BTreeMap<String, String>,
    ) -> Self {
        Self { lookup, stored, problems: vec![] }
    }

    /// The value of NAME, or the content of the file NAME_FILE, without blanks around it. An empty value counts as
    /// absent.
    pub(crate) fn get(&mut self, name: &str) -> Option<String> {
        self.get_with_file(name).map(|(text, _)| text.trim().to_owned())
    }

    /// The value of NAME as it is, and the file it was read from. A file without a value is a problem: without the setting
    /// the relay would do something else than whoever names a file expects.
    pub(crate) fn get_with_file(&mut self, name: &str) -> Option<(String, Option<PathBuf>)> {
        let filled = |text: String| (!text.trim().is_empty()).then_some(text);
        if let Some(value) = (self.lookup)(name).and_then(filled) {
            return Some((value, None));
        }
        if let Some(path) = (self.lookup)(&format!("{name}_FILE")).and_then(filled) {
            let path = PathBuf::from(path);
            return match secrets::read(&path) {
                Ok(text) if text.trim().is_empty() => {
                    self.invalid(&format!("{name}_FILE"), format!("`{}` is empty", path.display()))
                }
                Ok(text) => Some((text, Some(path))),
                Err(problem) => self.invalid(&format!("{name}_FILE"), problem),
            };
        }
        self.stored.get(name).cloned().and_then(filled).map(|text| (text, None))
    }

    /// An optional secret; `None` when it is invalid.
    pub(crate) fn secret(
        &mut self,
        name: &'static str,
        format: SecretFormat,
    ) -> Option<Option<Secret>> {
        let before = self.problems.len();
        let Some((text, file)) = self.get_with_file(name) else {
            return (self.problems.len() == before).then_some(None);
        };
        // A variable wins over the secret store.
        let is_stored =
            file.is_none() && (self.lookup)(name).is_none_or(|text| text.trim().is_empty());
        match Secret::new(name, format, &text, file) {
            Ok(secret) => Some(Some(if is_stored { secret.stored() } else { secret })),
            Err(what) => self.invalid(name, what),
        }
    }

    pub(crate) fn required_secret(
        &mut self,
        name: &'static str,
        format: SecretFormat,
    ) -> Option<Secret> {
        let secret = self.secret(name, format)?;
        if secret.is_none() {
            self.add_problem(name, "missing".to_owned());
        }
        secret
    }

    pub(crate) fn get_or(&mut self, name: &str, default: &str) -> String {
        self.get(name).unwrap_or_else(|| default.to_owned())
    }

    pub(crate) fn required(&mut self, name: &str) -> Option<String> {
        let before = self.problems.len();
        let value = self.get(name);
        if value.is_none() && self.problems.len() == before {
            self.add_problem(name, "missing".to_owned());
        }
        value
    }

    pub(crate) fn positive_number(&mut self, name: &str, default: u32) -> Option<u32> {
        let Some(text) = self.get(name) else { return Some(default) };
        match text.trim().parse() {
            Ok(number) if number > 0 => Some(number),
            _ => {
                self.invalid(name, format!("`{text}` isn't a whole number from 1 to {}", u32::MAX))
            }
        }
    }

    /// A number of seconds, or a number with the unit `s`, `m`, `h` or `d`.
    pub(crate) fn duration(&mut self, name: &str, default: u64) -> Option<Duration> {
        let Some(text) = self.get(name) else { return Some(Duration::from_secs(default)) };
        let text = text.trim();
        let (digits, unit) = match text.char_indices().last() {
            Some((at, 's')) => (&text[..at], 1),
            Some((at, 'm')) => (&text[..at], 60),
            Some((at, 'h')) => (&text[..at], 3600),
            Some((at, 'd')) => (&text[..at], 86_400),
            _ => (text, 1),
        };
        match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
            Some(seconds) if (1..=MAX_DURATION_DAYS * 86_400).contains(&seconds) => {
                Some(Duration::from_secs(seconds))
            }
            _ => {
                let range = format!("from 1s to {MAX_DURATION_DAYS}d, such as 90s, 30m or 2h");
                self.invalid(name, format!("`{text}` isn't a duration {range}"))
            }
        }
    }

    pub(crate) fn choice<T: Copy>(
        &mut self,
        name: &str,
        default: &str,
        known: &[(&str, T)],
    ) -> Option<T> {
        let text = self.get_or(name, default);
        if let Some((_, value)) = known.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
        self.invalid(name, format!("`{text}` isn't one of {}", words.join(", ")))
    }

    /// `on` or `off`, which is the default.
    pub(crate) fn switch(&mut self, name: &str) -> Option<bool> {
        self.choice(name, "off", &[("on", true), ("off", false)])
    }

    pub(crate) fn url(&mut self, name: &str, default: &str) -> Option<SecureUrl> {
        let text = self.get_or(name, default);
        self.valid(name, secure_url(&text))
    }

    pub(crate) fn optional_number(&mut self, name: &str) -> Option<Option<u32>> {
        if self.get(name).is_some() { self.positive_number(name, 1).map(Some) } else { Some(None) }
    }

    /// What was read, or a problem with the reason why it couldn't be.
    pub(crate) fn valid<T>(&mut self, name: &str, read: Result<T, String>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(what) => self.invalid(name, what),
        }
    }

    pub(crate) fn invalid<T>(&mut self, name: &str, what: String) -> Option<T> {
        self.add_problem(name, what);
        None
    }

    /// A setting that others need, too, is read several times and named once.
    pub(crate) fn add_problem(&mut self, name: &str, what: String) {
        let problem = SettingProblem { name: name.to_owned(), what };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// The error repeats `text`, unless a password may be in it.
pub(crate) fn secure_url(text: &str) -> Result<SecureUrl, String> {
    text.parse().map_err(|error: SecureUrlError| {
        if text.contains('@') { error.to_string() } else { format!("`{text}` {error}") }
    })
}

/// Whether a URL would be a [`SecureUrl`] without the user name and password that may be in it.
pub(crate) fn is_secure_with_password(text: &str) -> bool {
    let bare = Url::parse(text.trim()).ok().and_then(|mut url| {
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        Some(url)
    });
    bare.is_some_and(|url| SecureUrl::try_from(url).is_ok())
}
