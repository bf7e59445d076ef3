//! Recognises plain scalars that YAML doesn't read as strings.
//!
//! YAML 1.1 (PyYAML, libyaml) converts `yes`, `1_000`, `0b1`, `1:30` and dates; YAML 1.2 converts `0o7`. A
//! name that either version converts is unsafe in a file that several programs read.
//! <https://yaml.org/type/> and <https://yaml.org/spec/1.2.2/#103-core-schema>

use std::borrow::Cow;

/// The type of a plain scalar, if either version of YAML doesn't read it as a string.
pub(crate) fn not_a_string(text: &str) -> Option<&'static str> {
    if is_null(text) {
        Some("null")
    } else if is_boolean(text) {
        Some("a boolean")
    } else if is_number(text) {
        Some("a number")
    } else if is_date(text) {
        Some("a date")
    } else {
        None
    }
}

pub(crate) fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Quotes the text if either version would convert it. Only for names: letters, digits and `._-/`,
/// beginning with a letter or digit.
pub(crate) fn quoted(text: &str) -> Cow<'_, str> {
    if not_a_string(text).is_some() { Cow::Owned(format!("\"{text}\"")) } else { text.into() }
}

fn is_boolean(text: &str) -> bool {
    const WORDS: [&str; 8] = ["y", "yes", "n", "no", "true", "false", "on", "off"];
    let spelled = |word: &str| {
        let tail = &text[1.min(text.len())..];
        text.eq_ignore_ascii_case(word)
            && (tail == &word[1..] || text.bytes().all(|b| b.is_ascii_uppercase()))
    };
    text.is_ascii() && WORDS.iter().any(|word| spelled(word))
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let digits = |text: &str, digit: fn(&u8) -> bool| {
        text.bytes().any(|b| digit(&b)) && text.bytes().all(|b| digit(&b) || b == b'_')
    };
    let (prefix, rest) = unsigned.split_at_checked(2).unwrap_or((unsigned, ""));
    match prefix {
        "0x" if digits(rest, u8::is_ascii_hexdigit) => return true,
        "0o" if digits(rest, |b| matches!(b, b'0'..=b'7')) => return true,
        "0b" if digits(rest, |b| matches!(b, b'0' | b'1')) => return true,
        _ => {}
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    is_sexagesimal(unsigned) || is_decimal(unsigned)
}

/// `1`, `1_000`, `1.`, `.5`, `1e3`, `6.02E+23`.
fn is_decimal(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let exponent_ok = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    });
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    exponent_ok && digits(whole) && digits(fraction) && mantissa.bytes().any(|b| b.is_ascii_digit())
}

/// Base 60 in YAML 1.1: `1:30`, `190:20:30.15`.
fn is_sexagesimal(text: &str) -> bool {
    let mut parts = text.split(':');
    let head = parts.next().unwrap_or_default();
    let rest: Vec<_> = parts.collect();
    let Some((last, middle)) = rest.split_last() else { return false };
    let minutes = |text: &str| {
        (1..=2).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_digit())
            && (text.len() == 1 || text.as_bytes()[0] < b'6')
    };
    let (seconds, fraction) = last.split_once('.').unwrap_or((last, ""));
    head.starts_with(|c: char| c.is_ascii_digit())
        && head.bytes().all(|b| b.is_ascii_digit() || b == b'_')
        && middle.iter().all(|part| minutes(part))
        && minutes(seconds)
        && fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// `2026-09-01`, or a timestamp.
fn is_date(text: &str) -> bool {
    let number = |text: &str, least: usize, most: usize| {
        (least..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
    };
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let (date, time) = match text.find(['T', 't', ' ', '\t']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let parts: Vec<_> = date.split('-').collect();
    let &[year, month, day] = parts.as_slice() else { return false };
    match time {
        None => number(year, 4, 4) && number(month, 2, 2) && number(day, 2, 2),
        Some(time) => {
            let clock = time.trim_start().split(['.', 'Z', '+', '-', ' ']).next();
            let clock: Vec<_> = clock.unwrap_or_default().split(':').collect();
            number(year, 4, 4)
                && number(month, 1, 2)
                && number(day, 1, 2)
                && matches!(clock.as_slice(), [h, m, s]
                    if number(h, 1, 2) && number(m, 2, 2) && number(s, 2, 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_that_either_yaml_version_converts_are_quoted() {
        for (text, kind) in [
            ("", "null"),
            ("~", "null"),
            ("NULL", "null"),
            ("yes", "a boolean"),
            ("No", "a boolean"),
            ("OFF", "a boolean"),
            ("y", "a boolean"),
            ("N", "a boolean"),
            ("True", "a boolean"),
            ("False", "a boolean"),
            ("910", "a number"),
            ("007", "a number"),
            ("+1", "a number"),
            ("1_000", "a number"),
            ("0x1F", "a number"),
            ("0o17", "a number"),
            ("0b11", "a number"),
            ("1:30", "a number"),
            ("190:20:30.15", "a number"),
            ("1.", "a number"),
            (".5", "a number"),
            ("1e3", "a number"),
            ("6.02E+23", "a number"),
            ("-.inf", "a number"),
            ("-0x1_F", "a number"),
            ("1:59", "a number"),
            ("1:3:30", "a number"),
            ("1_0:30", "a number"),
            (".NaN", "a number"),
            ("2026-09-01", "a date"),
            ("2001-12-14t21:59:43.10-05:00", "a date"),
            ("2001-12-14 21:59:43.10 -5", "a date"),
            ("2001-1-4\t1:59:43", "a date"),
        ] {
            assert_eq!(not_a_string(text), Some(kind), "{text}");
            assert_eq!(quoted(text), format!("\"{text}\""));
        }
        for text in [
            "xpu",
            "null1",
            "yES",
            "tRUE",
            "nope",
            "910b",
            "1.2.3",
            "0x",
            "0b2",
            "e3",
            "1e",
            "1:60x",
            "a:1",
            "2026-9-1",
            "2026-09-011",
            "2026-09-01T",
            "-",
            ".",
            "_1",
            "v1_0",
            "é",
            "1:60",
            "1:300",
            "1:60:30",
            "1:30.x",
            "-.nan",
            "0x_",
            "0x1g",
            "0o8",
            "1e+",
            "1e3x",
            "._",
            "226-09-01",
            "20260-09-01",
            "2026-009-01 01:02:03",
            "2026-09-001 01:02:03",
            "2026-09-01 001:02:03",
            "2026-09-01 01:2:03",
            "2026-09-01 01:02:3",
            "2026-09-01 01:02",
        ] {
            assert_eq!(not_a_string(text), None, "{text}");
            assert_eq!(quoted(text), text);
        }
    }
}
