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

/// A time with its zone, or without one in UTC.
pub(crate) fn utc_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let in_utc = || Some(text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
    text.parse::<Timestamp>().ok().or_else(in_utc)
}
