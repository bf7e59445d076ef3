//! Names on GitHub: repositories, logins and teams.

use std::cmp::Ordering;
use std::hash::Hasher;

use serde::{Deserialize, Serialize};

/// GitHub's limit for the name of an owner.
const MAX_OWNER_CHARS: usize = 39;
/// GitHub's limit for the name of a repository, without its owner.
pub const MAX_NAME_CHARS: usize = 100;

/// A repository on GitHub, `owner/repo`.
///
/// Compares, orders and hashes ignoring case, as GitHub does. Keeps its spelling for display.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RepoName {
    text: Box<str>,
    slash: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RepoNameError {
    /// A URL or an SSH address. Holds the `owner/repo` in it, if there is one.
    #[error("it is an address, not a name")]
    Address(Option<String>),
    #[error("it has no `/`")]
    NoSlash,
    #[error("it has more than one `/`")]
    ManySlashes,
    #[error("the owner is empty")]
    EmptyOwner,
    #[error("the repository is empty")]
    EmptyName,
    #[error("the owner has {0} characters, and GitHub allows {MAX_OWNER_CHARS}")]
    LongOwner(usize),
    #[error("the repository has {0} characters, and GitHub allows {MAX_NAME_CHARS}")]
    LongName(usize),
    #[error("the owner can't have {}", describe_char(*.0))]
    OwnerChar(char),
    #[error("the repository can't have {}", describe_char(*.0))]
    NameChar(char),
    #[error("the owner can't begin or end with a hyphen or have two in a row")]
    OwnerHyphen,
    /// Enterprise-managed users have names like `login_suffix`.
    #[error("the owner can only have one `_`, before an enterprise suffix")]
    OwnerUnderscore,
    #[error("the repository can't be `.` or `..`")]
    Dots,
    #[error("the repository can't end with `{0}`")]
    Suffix(&'static str),
}

/// Shows a character; non-ASCII look-alikes get their code point.
fn describe_char(c: char) -> String {
    match c {
        ' ' => "a space".to_owned(),
        c if c.is_ascii_graphic() => format!("`{c}`"),
        c if c.is_control() || c.is_whitespace() => format!("the character U+{:04X}", u32::from(c)),
        c => format!("`{c}` (U+{:04X})", u32::from(c)),
    }
}

impl RepoName {
    /// Parses `owner/repo` by GitHub's rules. The owner has 1–39 of `[A-Za-z0-9-]`, single inner
    /// hyphens and at most one enterprise `_suffix`. The name has 1–100 of `[A-Za-z0-9._-]`, isn't `.` or
    /// `..`, and doesn't end with `.git` or `.wiki`.
    pub fn new(text: &str) -> Result<Self, RepoNameError> {
        if text.contains("://") || text.starts_with("git@") || starts_with_host(text) {
            return Err(RepoNameError::Address(name_in_address(text)));
        }
        let slash = text.find('/').ok_or(RepoNameError::NoSlash)?;
        let (owner, name) = (&text[..slash], &text[slash + 1..]);
        if owner.is_empty() {
            return Err(RepoNameError::EmptyOwner);
        }
        if name.is_empty() {
            return Err(RepoNameError::EmptyName);
        }
        if name.contains('/') {
            return Err(RepoNameError::ManySlashes);
        }
        check_owner(owner)?;
        check_name(name)?;
        let slash = u8::try_from(slash).map_err(|_| RepoNameError::LongOwner(slash))?;
        Ok(Self { text: text.into(), slash })
    }

    pub fn owner(&self) -> &str {
        &self.text[..usize::from(self.slash)]
    }

    pub fn name(&self) -> &str {
        &self.text[usize::from(self.slash) + 1..]
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// `owner/repo` in lower case, for stores that compare bytes.
    pub fn key(&self) -> String {
        self.text.to_ascii_lowercase()
    }
}

fn check_owner(owner: &str) -> Result<(), RepoNameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if let Some(c) = owner.chars().find(|c| !allowed(*c)) {
        return Err(RepoNameError::OwnerChar(c));
    }
    if owner.len() > MAX_OWNER_CHARS {
        return Err(RepoNameError::LongOwner(owner.len()));
    }
    let base = match owner.split_once('_') {
        Some((base, suffix)) => {
            let plain = suffix.chars().all(|c| c.is_ascii_alphanumeric());
            if base.is_empty() || suffix.is_empty() || !plain {
                return Err(RepoNameError::OwnerUnderscore);
            }
            base
        }
        None => owner,
    };
    if base.starts_with('-')
        || base.ends_with('-')
        || base.as_bytes().windows(2).any(|two| two == b"--")
    {
        return Err(RepoNameError::OwnerHyphen);
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), RepoNameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        return Err(RepoNameError::NameChar(c));
    }
    if name.len() > MAX_NAME_CHARS {
        return Err(RepoNameError::LongName(name.len()));
    }
    if name == "." || name == ".." {
        return Err(RepoNameError::Dots);
    }
    for suffix in [".git", ".wiki"] {
        let tail = name.len().checked_sub(suffix.len()).and_then(|at| name.get(at..));
        if tail.is_some_and(|tail| tail.eq_ignore_ascii_case(suffix)) {
            return Err(RepoNameError::Suffix(suffix));
        }
    }
    Ok(())
}

/// Where an address of github.com has an owner, these are pages of GitHub's own.
const PAGES_OF_GITHUB: [&str; 8] =
    ["apps", "enterprises", "marketplace", "orgs", "settings", "sponsors", "topics", "users"];

/// `github.com/owner/repo` without a scheme.
fn starts_with_host(text: &str) -> bool {
    let host = text.split('/').next().unwrap_or_default();
    text.matches('/').count() >= 2 && host.contains('.')
}

/// The `owner/repo` in a web or SSH address of github.com. On another host, the name is somebody else's on GitHub.
fn name_in_address(text: &str) -> Option<String> {
    let (host, path) = match (text.split_once("://"), text.strip_prefix("git@")) {
        // Behind the host of a URL, a colon is that of a port.
        (Some((_, rest)), _) => rest.strip_prefix("git@").unwrap_or(rest).split_once('/')?,
        (None, Some(rest)) => rest.split_once([':', '/'])?,
        (None, None) => text.split_once('/')?,
    };
    if !["github.com", "www.github.com"].iter().any(|known| host.eq_ignore_ascii_case(known)) {
        return None;
    }
    let mut segments = path.split(['/', '?', '#']).filter(|segment| !segment.is_empty());
    let (owner, name) = (segments.next()?, segments.next()?);
    if PAGES_OF_GITHUB.contains(&owner) {
        return None;
    }
    let name = name.strip_suffix(".git").unwrap_or(name);
    RepoName::new(&format!("{owner}/{name}")).ok().map(String::from)
}

text_ignoring_case!(RepoName.text, RepoNameError);

impl Ord for RepoName {
    fn cmp(&self, other: &Self) -> Ordering {
        cmp_ignoring_case(&self.text, &other.text)
    }
}

impl PartialOrd for RepoName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Hashes ASCII text so that texts that only differ in case have the same hash.
pub(crate) fn hash_ignoring_case<H: Hasher>(text: &str, state: &mut H) {
    // Chunks: hashing byte by byte is far slower.
    for piece in text.as_bytes().chunks(64) {
        let mut lower = [0; 64];
        lower[..piece.len()].copy_from_slice(piece);
        lower.make_ascii_lowercase();
        state.write(&lower[..piece.len()]);
    }
    state.write_u8(0xff);
}

fn cmp_ignoring_case(a: &str, b: &str) -> Ordering {
    let lower = |byte: u8| byte.to_ascii_lowercase();
    a.bytes().map(lower).cmp(b.bytes().map(lower))
}

/// Who is on call for a repository: a GitHub login, or a team as `org/team`.
///
/// Compares ignoring case. Keeps its spelling for display.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Oncall(Box<str>);

/// Why a text is neither a login nor `org/team`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OncallError {
    #[error("it is empty")]
    Empty,
    /// The login, or the organisation of the team, isn't valid.
    #[error("{}", .0.to_string().replace("the owner", "a login"))]
    Login(RepoNameError),
    #[error("a team's name is made of letters, digits, `-` and `_`")]
    Team,
}

impl Oncall {
    /// Parses a login, by the rules for owners of [`RepoName`], or `org/team`.
    pub fn new(text: &str) -> Result<Self, OncallError> {
        if text.is_empty() {
            return Err(OncallError::Empty);
        }
        let login = match text.split_once('/') {
            Some((org, team)) => {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if team.is_empty() || team.len() > MAX_NAME_CHARS || !team.chars().all(plain) {
                    return Err(OncallError::Team);
                }
                org
            }
            None => text,
        };
        if login.is_empty() {
            return Err(OncallError::Login(RepoNameError::EmptyOwner));
        }
        check_owner(login).map_err(OncallError::Login)?;
        Ok(Self(text.into()))
    }

    /// The login, without the `@`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Organisation and team, if this isn't a login.
    pub fn team(&self) -> Option<(&str, &str)> {
        self.0.split_once('/')
    }
}

text_ignoring_case!(Oncall.0, OncallError);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn repositories_compare_ignoring_case() {
        let [a, b] = ["Ascend/pytorch", "ascend/PyTorch"].map(|text| RepoName::new(text).unwrap());
        assert_eq!(a, b);
        assert_eq!(a.cmp(&b), Ordering::Equal);
        assert_eq!(HashSet::from([a.clone(), b]).len(), 1);
        assert_eq!((a.owner(), a.name(), a.as_str()), ("Ascend", "pytorch", "Ascend/pytorch"));
        assert_eq!(a.key(), "ascend/pytorch");
        let other = RepoName::new("ascend/vision").unwrap();
        assert_eq!(a.cmp(&other), Ordering::Less, "by their letters, whatever the case");
        assert_ne!(a, other);
        assert!(RepoName::new("B/a").unwrap() > a);
    }

    #[test]
    fn characters_that_look_alike_are_told_by_their_number() {
        for (bad, why) in [
            ("a/b c", "the repository can't have a space"),
            ("a/b#", "the repository can't have `#`"),
            ("а/b", "the owner can't have `а` (U+0430)"),
            ("a/b\t", "the repository can't have the character U+0009"),
            ("a/b\u{a0}", "the repository can't have the character U+00A0"),
        ] {
            assert_eq!(RepoName::new(bad).unwrap_err().to_string(), why, "{bad:?}");
        }
        let why = Oncall::new("a--b").unwrap_err().to_string();
        assert_eq!(why, "a login can't begin or end with a hyphen or have two in a row");
    }

    #[test]
    fn repository_names_follow_githubs_rules() {
        for good in [
            "a/b",
            "0/0",
            "NVIDIA-dev/pytorch-oot-internal",
            "octo_corp/x",
            "a/-",
            "a/_._",
            "a/...",
            "a/.github",
            "a/gitx.gi",
            &format!("{}/{}", "o".repeat(39), "r".repeat(100)),
        ] {
            assert_eq!(RepoName::new(good).map(String::from), Ok(good.to_owned()));
        }
        use RepoNameError as E;
        for (bad, why) in [
            ("", E::NoSlash),
            ("pytorch", E::NoSlash),
            ("/b", E::EmptyOwner),
            ("a/", E::EmptyName),
            ("a/b/", E::ManySlashes),
            ("a/b/c", E::ManySlashes),
            ("-a/b", E::OwnerHyphen),
            ("a-/b", E::OwnerHyphen),
            ("a--b/c", E::OwnerHyphen),
            ("a-_x/c", E::OwnerHyphen),
            ("_x/c", E::OwnerUnderscore),
            ("a_/c", E::OwnerUnderscore),
            ("a_b_c/c", E::OwnerUnderscore),
            ("a_b-c/c", E::OwnerUnderscore),
            ("a.b/c", E::OwnerChar('.')),
            ("a b/c", E::OwnerChar(' ')),
            ("a/b c", E::NameChar(' ')),
            ("a/b#note", E::NameChar('#')),
            ("а/b", E::OwnerChar('а')),
            ("a/ьb", E::NameChar('ь')),
            ("a/.", E::Dots),
            ("a/..", E::Dots),
            ("a/b.git", E::Suffix(".git")),
            ("a/.GIT", E::Suffix(".git")),
            ("a/b.Wiki", E::Suffix(".wiki")),
            ("https://github.com/a/b.git", E::Address(Some("a/b".into()))),
            ("github.com/a/b", E::Address(Some("a/b".into()))),
            ("git@github.com:a/b.git", E::Address(Some("a/b".into()))),
            ("https://github.com/a/b?tab=readme", E::Address(Some("a/b".into()))),
            ("https://github.com/a/b#usage", E::Address(Some("a/b".into()))),
            ("ssh://git@github.com/a/b", E::Address(Some("a/b".into()))),
            ("ssh://git@github.com:22/a/b", E::Address(None)),
            ("HTTPS://www.GitHub.com/a/b/pulls", E::Address(Some("a/b".into()))),
            ("https://gitlab.com/a/b", E::Address(None)),
            ("git@bitbucket.org:a/b.git", E::Address(None)),
            ("https://api.github.com/repos/a/b", E::Address(None)),
            ("https://gist.github.com/a/0123", E::Address(None)),
            ("https://github.com.evil.test/a/b", E::Address(None)),
            ("https://github.com@evil.test/a/b", E::Address(None)),
            ("https://github.com/orgs/a/teams/b", E::Address(None)),
            ("https://github.com", E::Address(None)),
            ("https://github.com/a", E::Address(None)),
            ("git@github.com", E::Address(None)),
        ] {
            assert_eq!(RepoName::new(bad), Err(why), "{bad}");
        }
        assert_eq!(RepoName::new(&format!("{}/b", "o".repeat(40))), Err(E::LongOwner(40)));
        assert_eq!(RepoName::new(&format!("{}/b", "o".repeat(400))), Err(E::LongOwner(400)));
        assert_eq!(RepoName::new(&format!("a/{}", "r".repeat(101))), Err(E::LongName(101)));
    }

    #[test]
    fn an_oncall_is_a_login_or_a_team() {
        for good in ["octocat", "a-b", "octo_corp", "pytorch/team-x", "pytorch/team_1", "123"] {
            assert!(Oncall::new(good).is_ok(), "{good}");
        }
        for bad in ["", "@a", "a b", "-a", "a/", "/a", "a/b/c", "a/b.c", "bot[bot]", "é", "a@b.c"]
        {
            assert!(Oncall::new(bad).is_err(), "{bad}");
        }
        assert!(Oncall::new(&format!("o/{}", "t".repeat(100))).is_ok());
        assert_eq!(Oncall::new(&format!("o/{}", "t".repeat(101))), Err(OncallError::Team));
        assert_eq!(Oncall::new("Alice").unwrap(), Oncall::new("alice").unwrap());
        assert_ne!(Oncall::new("alice").unwrap(), Oncall::new("alicia").unwrap());
        assert_eq!(Oncall::new("o/t").unwrap().team(), Some(("o", "t")));
    }
}
