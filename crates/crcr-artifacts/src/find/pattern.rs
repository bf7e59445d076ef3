//! Patterns of artifact names, as in `actions/download-artifact`.

use globset::{GlobBuilder, GlobMatcher};

/// A glob of names. Each `!` before it negates it.
#[derive(Debug, Clone)]
pub struct NamePattern {
    negated: bool,
    glob: GlobMatcher,
}

#[derive(Debug, thiserror::Error)]
pub enum NamePatternError {
    #[error(transparent)]
    Glob(#[from] globset::Error),
    #[error("`{found}…` isn't supported; {instead}")]
    Unsupported { found: &'static str, instead: &'static str },
}

/// Syntax of the official action that globset doesn't have, and its replacement.
const UNSUPPORTED: [(&str, &str); 8] = [
    ("@(", "write `{a,b}`"),
    ("+(", "write `{a,b}`, or a `*`"),
    ("?(", "write `{,a,b}`"),
    ("*(", "write `{a,b}`, or a `*`"),
    ("!(", "write a `!` before the whole pattern"),
    ("[[:", "write a range such as `[a-z]`"),
    ("..", "write the numbers out, such as `{1,2,3}`"),
    ("[]", "write `\\]` for a bracket"),
];

impl NamePattern {
    pub fn new(text: &str) -> Result<Self, NamePatternError> {
        let text = text.trim();
        let glob = text.trim_start_matches('!');
        let bangs = text.len() - glob.len();
        let unsupported = UNSUPPORTED.iter().find(|(found, _)| match *found {
            "!(" => glob.contains(found) || (bangs > 0 && glob.starts_with('(')),
            // Two dots are a range only between braces.
            ".." => glob
                .split('{')
                .skip(1)
                .any(|part| part.split('}').next().is_some_and(|inner| inner.contains(".."))),
            _ => glob.contains(found),
        });
        if let Some((found, instead)) = unsupported {
            return Err(NamePatternError::Unsupported { found, instead });
        }
        let glob = GlobBuilder::new(glob).backslash_escape(true).empty_alternates(true).build()?;
        Ok(Self { negated: bangs % 2 == 1, glob: glob.compile_matcher() })
    }

    pub fn matches(&self, name: &str) -> bool {
        self.glob.is_match(name) != self.negated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_same_names_as_in_the_official_action() {
        let names = ["wheels-1", "wheels-2", "logs", "a[b", "x,y"];
        for (pattern, matched) in [
            ("wheels-*", &["wheels-1", "wheels-2"][..]),
            ("!wheels-*", &["logs", "a[b", "x,y"]),
            ("!!logs", &["logs"]),
            ("{logs,wheels-?}", &["wheels-1", "wheels-2", "logs"]),
            ("wheels-[!1]", &["wheels-2"]),
            ("wheels-{,1}", &["wheels-1"]),
            ("a\\[b", &["a[b"]),
        ] {
            let pattern = NamePattern::new(pattern).unwrap();
            let all: Vec<_> = names.into_iter().filter(|name| pattern.matches(name)).collect();
            assert_eq!(all, matched, "{pattern:?}");
        }
    }

    #[test]
    fn unsupported_syntax_is_refused_with_a_replacement() {
        for pattern in ["+(a|b)", "!(a)", "x-!(a)", "@(a)", "*(a)", "?(a)", "[[:alpha:]]", "{1..3}"]
        {
            let error = NamePattern::new(pattern).unwrap_err();
            assert!(matches!(error, NamePatternError::Unsupported { .. }), "{pattern}: {error}");
            assert!(error.to_string().contains("write"), "{error}");
        }
        for good in ["v1..2", "a(b)", "a{b,c}..d"] {
            NamePattern::new(good).unwrap();
        }
        assert!(matches!(NamePattern::new("{a"), Err(NamePatternError::Glob(_))));
    }
}
