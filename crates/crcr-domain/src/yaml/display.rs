//! How messages show text of the file, and "did you mean" suggestions.

/// Longer text is cut in messages.
const SHOWN_CHARS: usize = 60;

/// Text of the file for messages: cut, on one line, with invisible characters escaped.
pub(crate) fn show(text: &str) -> String {
    if text.is_empty() {
        return "an empty name".to_owned();
    }
    let mut out = String::from("`");
    for (n, c) in text.chars().enumerate() {
        if n == SHOWN_CHARS {
            out.push('…');
            break;
        }
        match c {
            '`' => out.push('\''),
            '\n' => out.push_str("\\n"),
            ' ' => out.push(' '),
            c if c.is_control() || c.is_whitespace() || is_invisible(c) => {
                out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('`');
    out
}

/// Zero-width characters and those that change the text direction.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(u32::from(c), 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0xfe00..=0xfe0f | 0xfeff | 0xe0000..=0xe0fff)
}

/// The candidate that was probably meant: equal ignoring case, or at most two edits away.
pub fn find_similar<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.trim().to_lowercase().replace('-', "_");
    candidates
        .iter()
        .map(|candidate| (strsim::levenshtein(&word, &candidate.to_lowercase()), *candidate))
        .filter(|(distance, candidate)| *distance <= 2 && *distance * 2 < candidate.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(show("a\u{200b}/b\t`\n"), "`a\\u{200b}/b\\u{9}'\\n`");
        assert_eq!(show(""), "an empty name");
        assert_eq!(show(&"x".repeat(100)).chars().count(), SHOWN_CHARS + 3);
        let whole = "x".repeat(SHOWN_CHARS);
        assert_eq!(show(&whole), format!("`{whole}`"), "nothing is cut");
        let invisible = "\u{ad}\u{61c}\u{180e}\u{200b}\u{200f}\u{202a}\u{202e}\u{2060}\u{206f}\u{fe00}\u{fe0f}\u{feff}\u{e0000}\u{e0fff}";
        assert_eq!(invisible.chars().find(|c| !is_invisible(*c)), None);
        let visible = "\u{ac}\u{ae}\u{2010}\u{2027}\u{2070}\u{fdff}\u{fe10}\u{e1000}";
        assert_eq!(visible.chars().find(|c| is_invisible(*c)), None);
    }

    #[test]
    fn find_similar_ignores_case_and_allows_two_edits() {
        assert_eq!(find_similar("oncall", &["oncalls", "events"]), Some("oncalls"));
        assert_eq!(find_similar("Events", &["oncalls", "events"]), Some("events"));
        assert_eq!(
            find_similar("pull-request", &["pull_request", "nightly"]),
            Some("pull_request")
        );
        assert_eq!(find_similar("nigthly", &["pull_request", "nightly"]), Some("nightly"));
        assert_eq!(find_similar("labels", &["oncalls", "events"]), None);
        assert_eq!(find_similar("", &["oncalls", "events"]), None);
        assert_eq!(find_similar("pathes", &["patches", "paths"]), Some("patches"), "the nearest");
        assert_eq!(find_similar("abxy", &["abcd"]), None, "half of it is another word");
        assert_eq!(find_similar("abxye", &["abcde"]), Some("abcde"));
    }
}
