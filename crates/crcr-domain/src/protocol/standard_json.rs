//! JSON as reporters write it, beyond what the standard allows (RFC 8259): numbers that aren't finite or are too large,
//! and surrogates without their other half, as a text has that was cut within an emoji (Python, JavaScript); bytes that
//! aren't UTF-8, as the output of a compiler or a test may have (a shell script).

use std::borrow::Cow;

/// The same JSON with `null` for each number that isn't finite, U+FFFD for each lone surrogate and for what isn't UTF-8,
/// and no byte order mark.
pub fn standard_json(body: &[u8]) -> Cow<'_, [u8]> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    match String::from_utf8_lossy(body) {
        Cow::Borrowed(_) => standard_text(body),
        Cow::Owned(text) => Cow::Owned(standard_text(text.as_bytes()).into_owned()),
    }
}

fn standard_text(body: &[u8]) -> Cow<'_, [u8]> {
    let mut standard = vec![];
    // What is before `copied` is in `standard`.
    let (mut at, mut copied, mut in_string) = (0, 0, false);
    while at < body.len() {
        let rest = &body[at..];
        let (length, replacement) = match rest[0] {
            b'"' => {
                in_string = !in_string;
                (1, None)
            }
            b'\\' => escape(rest),
            b'N' | b'I' | b'-' | b'0'..=b'9' if !in_string => number(rest),
            _ => (1, None),
        };
        if let Some(replacement) = replacement {
            standard.extend_from_slice(&body[copied..at]);
            standard.extend_from_slice(replacement);
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Cow::Borrowed(body);
    }
    standard.extend_from_slice(&body[copied..]);
    Cow::Owned(standard)
}

/// The length of the number at the start, and what replaces it.
fn number(text: &[u8]) -> (usize, Option<&'static [u8]>) {
    const NULL: Option<&[u8]> = Some(b"null");
    let names: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    if let Some(name) = names.iter().find(|name| text.starts_with(name)) {
        return (name.len(), NULL);
    }
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let length = text.iter().take_while(|byte| is_part(byte)).count();
    let digits = std::str::from_utf8(&text[..length]).unwrap_or_default();
    let is_infinite = digits.parse::<f64>().is_ok_and(f64::is_infinite);
    (length.max(1), if is_infinite { NULL } else { None })
}

/// The length of the escape sequence at the start, and what replaces it.
fn escape(text: &[u8]) -> (usize, Option<&'static [u8]>) {
    let is_in = |at: usize, range: std::ops::RangeInclusive<u32>| {
        text.get(at..at + 6).and_then(code_unit).is_some_and(|unit| range.contains(&unit))
    };
    match (is_in(0, 0xd800..=0xdbff), is_in(6, 0xdc00..=0xdfff), is_in(0, 0xdc00..=0xdfff)) {
        (true, true, _) => (12, None),
        (true, false, _) | (_, _, true) => (6, Some(b"\\ufffd")),
        _ => (2, None),
    }
}

/// The number of `\uXXXX`.
fn code_unit(escape: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(escape.strip_prefix(b"\\u")?).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_and_javascript_write_becomes_standard_and_the_rest_stays() {
        for (text, expected) in [
            (r#"{"a": NaN, "b": [-Infinity, Infinity]}"#, r#"{"a": null, "b": [null, null]}"#),
            (r#"{"a": 1e400, "b": [-2.5E+999]}"#, r#"{"a": null, "b": [null]}"#),
            (
                r#"["cut \ud83d", "\ude00 cut", "\ud83d\ud83d\ude00"]"#,
                r#"["cut \ufffd", "\ufffd cut", "\ufffd\ud83d\ude00"]"#,
            ),
            ("\u{feff}{}", "{}"),
        ] {
            assert_eq!(standard_json(text.as_bytes()), expected.as_bytes(), "{text}");
        }
        let latin_1 = standard_json(b"[\"caf\xe9 \\ud83d\", NaN]");
        assert_eq!(latin_1, "[\"caf\u{fffd} \\ufffd\", null]".as_bytes());
        for text in [
            r#"{"NaN": "Infinity -Infinity \"NaN", "b": -1e5}"#,
            r#"{"1e400": "1e400", "b": [1e-400, 12345678901234567890123, -0.5e3, 1e308]}"#,
            r#"["\ud83d\ude00", "\\ud83d", "\u00e9", "\\", "\u12"#,
            "[\"\\ud8",
            "\\",
            "",
        ] {
            assert!(
                matches!(standard_json(text.as_bytes()), Cow::Borrowed(same) if same == text.as_bytes()),
                "{text}"
            );
        }
    }
}
