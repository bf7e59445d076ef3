//! Strangers' texts: what may break them, when they say it is, and a short hash for those that are cut.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// FNV-1a. Unlike the standard library's hash, it never changes between versions.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether a character could break a line, or change how the text around it is read.
pub(crate) fn breaks_text(c: char) -> bool {
    let is_directional = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_directional || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// The pull request in the title of a commit that a squash or a merge of it made.
pub(crate) fn pull_request_of_title(title: &str) -> Option<u64> {
    let squashed = title.trim_end().strip_suffix(')').and_then(|rest| rest.rsplit_once("(#"));
    let merged = title.strip_prefix("Merge pull request #").and_then(|rest| rest.split_once(' '));
    // The rest of a merge's title is the name of a branch, which may look like the other form.
    merged.map(|(digits, _)| digits).or(squashed.map(|(_, digits)| digits))?.parse().ok()
}

/// A time with its zone, or without one in UTC.
pub(crate) fn utc_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let in_utc = || Some(text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
    text.parse::<Timestamp>().ok().or_else(in_utc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_request_of_a_commit_is_the_one_that_its_title_names() {
        for (title, number) in [
            ("Speed up the reduction (#123)", Some(123)),
            ("Revert \"Speed up the reduction (#123)\" (#130)", Some(130)),
            ("Merge pull request #77 from alice/fix-(#5)", Some(77)),
            ("Revert \"Speed up the reduction (#123)\"", None),
            ("Merge pull request #77", None),
            ("Merge branch 'main' into fix", None),
        ] {
            assert_eq!(pull_request_of_title(title), number, "{title}");
        }
    }

    /// From the test vectors of the hash's authors: what is cut today has to keep its name tomorrow.
    #[test]
    fn hash_of_a_text_never_changes() {
        for (text, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv1a(text), hash, "{text:?}");
        }
    }

    #[test]
    fn characters_that_break_a_line_or_turn_the_text_around_are_known() {
        let breaking = "\0\t\n\u{7f}\u{85}\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2028}\u{2029}\u{2066}\u{2069}\u{feff}";
        assert_eq!(breaking.chars().find(|c| !breaks_text(*c)), None);
        let harmless = " aé漢\u{61b}\u{200d}\u{2010}\u{2027}\u{202f}\u{2065}\u{206a}\u{fefe}";
        assert_eq!(harmless.chars().find(|c| breaks_text(*c)), None);
    }

    #[test]
    fn time_without_a_zone_is_in_utc() {
        for (text, utc) in [
            (" 2026-11-26T08:00:00Z\n", Some("2026-11-26T08:00:00Z")),
            ("2026-11-26T08:00:00", Some("2026-11-26T08:00:00Z")),
            ("2026-11-26 08:00:00", Some("2026-11-26T08:00:00Z")),
            ("2026-11-26T08:00:00+02:00", Some("2026-11-26T06:00:00Z")),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(utc_time(text), utc.map(|utc| utc.parse().unwrap()), "{text:?}");
        }
    }
}
