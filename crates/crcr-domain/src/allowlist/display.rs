//! Words of the file in messages, and near words.

/// The most characters of a text that a message repeats.
const SHOWN_CHARS: usize = 60;

/// A text of the file as a message shows it: cut, on one line, with invisible characters visible.
pub(super) fn show(text: &str) -> String {
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

/// Characters without width and those that change the direction of the text.
fn is_invisible(c: char) -> bool {
    matches!(u32::from(c), 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0xfe00..=0xfe0f | 0xfeff | 0xe0000..=0xe0fff)
}

/// The candidate that a word most likely means: equal without case, or two letters away.
pub(super) fn near<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.trim().to_lowercase().replace('-', "_");
    if word.len() > 40 {
        return None;
    }
    candidates
        .iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), *candidate))
        .filter(|(distance, candidate)| *distance <= 2 && *distance * 2 < candidate.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be put in, taken out or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_what_an_editor_hides() {
        assert_eq!(show("a\u{200b}/b\t`\n"), "`a\\u{200b}/b\\u{9}'\\n`");
        assert_eq!(show(""), "an empty name");
        assert_eq!(show(&"x".repeat(100)).chars().count(), SHOWN_CHARS + 3);
    }

    #[test]
    fn near_words() {
        assert_eq!(near("oncall", &["oncalls", "events"]), Some("oncalls"));
        assert_eq!(near("Events", &["oncalls", "events"]), Some("events"));
        assert_eq!(near("pull-request", &["pull_request", "nightly"]), Some("pull_request"));
        assert_eq!(near("nigthly", &["pull_request", "nightly"]), Some("nightly"));
        assert_eq!(near("labels", &["oncalls", "events"]), None);
        assert_eq!(near("", &["oncalls", "events"]), None);
    }
}
