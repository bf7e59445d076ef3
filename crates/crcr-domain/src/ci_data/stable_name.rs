//! Names that hold a time, a commit or a random id, and so change from run to run.

/// A part that changes, with its length in bytes.
type Matcher = fn(&[u8]) -> Option<usize>;

const MATCHERS: [Matcher; 4] = [uuid, date_and_time, digits_of_time, hexadecimal];

/// The name without its times, commits and random ids, each with the separator before it. A date alone
/// stays unless it is `today`, the day of the run: it can be a version.
///
/// Python's unittest-xml-reporting adds `-20261123061909`, Avocado names its suite
/// `job-2026-11-25T00.01-b9bef66`.
pub fn stable_name(name: &str, today: Option<&str>) -> String {
    let bytes = name.as_bytes();
    let mut kept = String::with_capacity(name.len());
    let mut at = 0;
    let mut plain_from = 0;
    while at < bytes.len() {
        let is_start = at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
        let length = if is_start { changing_part(&bytes[at..], today) } else { None };
        let Some(length) = length else {
            at += 1;
            continue;
        };
        let plain = &name[plain_from..at];
        kept.push_str(plain.strip_suffix(is_separator).unwrap_or(plain));
        at += length;
        plain_from = at;
    }
    kept.push_str(&name[plain_from..]);
    kept
}

fn is_separator(c: char) -> bool {
    matches!(c, '-' | '_' | '.' | ':' | '@' | '#' | ' ')
}

fn changing_part(rest: &[u8], today: Option<&str>) -> Option<usize> {
    // Most parts of names begin with a letter that none of these can begin with.
    if !rest[0].is_ascii_hexdigit() {
        return None;
    }
    let is_today = || today.filter(|day| rest.starts_with(day.as_bytes())).map(str::len);
    let found = MATCHERS.iter().find_map(|matcher| matcher(rest)).or_else(is_today)?;
    // Not a part of a longer word.
    (!rest.get(found).is_some_and(u8::is_ascii_alphanumeric)).then_some(found)
}

fn count(rest: &[u8], is: fn(&u8) -> bool) -> usize {
    rest.iter().take_while(|byte| is(byte)).count()
}

/// The length if each group has this many bytes of the kind, with one of `separators` between them.
fn groups(rest: &[u8], lengths: &[usize], separators: &[u8], is: fn(&u8) -> bool) -> Option<usize> {
    let mut at = 0;
    for (group, length) in lengths.iter().enumerate() {
        if group > 0 {
            rest.get(at).filter(|byte| separators.contains(byte))?;
            at += 1;
        }
        (count(&rest[at..], is) == *length).then_some(())?;
        at += length;
    }
    Some(at)
}

fn uuid(rest: &[u8]) -> Option<usize> {
    groups(rest, &[8, 4, 4, 4, 12], b"-_", u8::is_ascii_hexdigit)
}

/// `2026-11-25T00:01` or `25.11.2026 00:01`, with seconds, fractions and a zone or without, in any punctuation.
fn date_and_time(rest: &[u8]) -> Option<usize> {
    let digits = u8::is_ascii_digit;
    let date = groups(rest, &[4, 2, 2], b"-_./", digits)
        .or_else(|| groups(rest, &[2, 2, 4], b"-_./", digits))?;
    rest.get(date).filter(|byte| b"T _-".contains(byte))?;
    let time = &rest[date + 1..];
    let with_seconds = groups(time, &[2, 2, 2], b":.-_", digits);
    let length = with_seconds.or_else(|| groups(time, &[2, 2], b":.-_", digits))?;
    let mut end = date + 1 + length;
    if rest.get(end).is_some_and(|byte| b".,".contains(byte)) {
        let fraction = count(&rest[end + 1..], digits);
        end += if fraction > 0 { fraction + 1 } else { 0 };
    }
    if rest.get(end) == Some(&b'Z') {
        end += 1;
    } else if rest.get(end).is_some_and(|byte| b"+-".contains(byte)) {
        let zone = groups(&rest[end + 1..], &[2, 2], b":", digits)
            .or_else(|| groups(&rest[end + 1..], &[4], b"", digits));
        end += zone.map_or(0, |zone| zone + 1);
    }
    Some(end)
}

/// `20261123061909`, `20261123T061909`, and seconds or milliseconds since 1970.
fn digits_of_time(rest: &[u8]) -> Option<usize> {
    let length = count(rest, u8::is_ascii_digit);
    match length {
        8 => {
            rest.get(8).filter(|byte| b"T-_".contains(byte))?;
            let time = count(&rest[9..], u8::is_ascii_digit);
            let is_date = rest.starts_with(b"20") && matches!(time, 4 | 6);
            is_date.then_some(9 + time)
        }
        10 | 13 => rest.starts_with(b"1").then_some(length),
        14 | 17 => rest.starts_with(b"20").then_some(length),
        _ => None,
    }
}

/// A commit, short or whole, or another number in hexadecimal. A word has fewer digits.
fn hexadecimal(rest: &[u8]) -> Option<usize> {
    let length = count(rest, u8::is_ascii_hexdigit);
    let digits = rest[..length].iter().filter(|byte| byte.is_ascii_digit()).count();
    let is_number = digits == length;
    // Git writes as many digits of a commit as tell it apart: up to 12 in the largest repositories.
    (matches!(length, 7..=12 | 16 | 20 | 32 | 40 | 64) && digits >= 2 && !is_number)
        .then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_commits_and_random_ids_are_left_out_and_names_stay() {
        for (name, stable) in [
            ("test_all.TestAll-20261123061909", "test_all.TestAll"),
            ("job-2026-11-25T00.01-b9bef66", "job"),
            ("run 2026-11-25 00:01:59.123Z linux", "run linux"),
            ("nightly_20261125T000159_gpu", "nightly_gpu"),
            ("suite-1764028800", "suite"),
            ("suite.1764028800123.x", "suite.x"),
            ("run-0f8fad5b-d9cb-469f-a165-70867728950e", "run"),
            ("2026-11-25T00:01:00+01:00", ""),
            ("b9bef66c0ffee00112233445566778899aabbccd tests", " tests"),
            ("(b9bef66)", "()"),
            ("unit-b9bef66c0f", "unit"),
            ("Tests 25/11/2026 00:01:59", "Tests"),
            ("Tests 2026/11/25 00:01", "Tests"),
            ("Tests_25.11.2026_00.01.59", "Tests"),
            ("run-2026-11-25T00:01:59.", "run."),
            ("run-2026-11-25T00:01:59.x", "run.x"),
            ("run-2026-11-25T00:01:59+0100", "run"),
            ("run-2026-11-25T00:01:59+1", "run+1"),
            ("build-20261125T0001", "build"),
            ("build-20261125T00015", "build-20261125T00015"),
            ("build-19261125T0001", "build-19261125T0001"),
            ("test_ops-1b2c3d4e.xml", "test_ops.xml"),
            // Names, versions, parameters.
            ("api-2024-01-01", "api-2024-01-01"),
            ("10.20.3000", "10.20.3000"),
            ("pytest", "pytest"),
            ("facade.deadbeef", "facade.deadbeef"),
            ("sha256_avx512", "sha256_avx512"),
            ("issue-12345678", "issue-12345678"),
            ("run-abcde12", "run"),
            ("run-abcdef1", "run-abcdef1"),
            ("test-12ab34", "test-12ab34"),
            ("run-b9bef66c0ffe", "run"),
            ("run-b9bef66c0ffee", "run-b9bef66c0ffee"),
            ("example.com/mod/v2", "example.com/mod/v2"),
            ("größe-b9bef66", "größe"),
            ("", ""),
        ] {
            assert_eq!(stable_name(name, None), stable, "{name}");
        }
        assert_eq!(stable_name("run-2026-11-25", Some("2026-11-25")), "run");
    }
}
