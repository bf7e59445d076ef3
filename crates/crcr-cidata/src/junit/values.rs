//! Numbers, times and names as the tools write them into attributes.

use std::sync::Arc;

use crcr_domain::ci_data::test_run::TestResult;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;

use super::text::{LimitedText, TextFlaws};

const YEAR_SECONDS: f64 = 366.0 * 86_400.0;
/// In seconds since 1970.
const YEAR_2000: i64 = 946_684_800;

/// The value of an attribute, which is often that of the test before.
pub(crate) fn shared(raw: &str, last: &mut Arc<str>, flaws: &mut TextFlaws) -> Arc<str> {
    // With entities or other whitespace, equal values needn't look equal.
    let is_plain = raw.bytes().fold(true, |plain, byte| plain & (byte >= 0x20) & (byte != b'&'));
    if !is_plain || raw != &**last {
        *last = LimitedText::of_attribute(raw, flaws).into();
    }
    Arc::clone(last)
}

pub(crate) fn shorten(text: &str) -> String {
    if text.chars().nth(80).is_none() {
        return text.to_owned();
    }
    text.chars().take(80).chain(['…']).collect()
}

/// The result in `status`, `result` or `outcome`. Most JUnit tools don't write it; every TRX test has it (vstest's
/// `TestOutcome`).
pub(crate) fn status_result(value: &str) -> Option<TestResult> {
    // `failed: assertion`, `errored`, `UNEXPECTED_SUCCESS`, `Timed out`
    const STARTS: [(&str, TestResult); 25] = [
        ("fail", TestResult::Failure),
        ("unexpected", TestResult::Failure),
        ("xpass", TestResult::Failure),
        ("unsuccessful", TestResult::Failure),
        ("notok", TestResult::Failure),
        ("notpassed", TestResult::Failure),
        ("undefined", TestResult::Failure),
        ("ambiguous", TestResult::Failure),
        ("error", TestResult::Error),
        ("hookerror", TestResult::Error),
        ("cleanuperror", TestResult::Error),
        ("timeout", TestResult::Error),
        ("timedout", TestResult::Error),
        ("crash", TestResult::Error),
        ("abort", TestResult::Error),
        ("panic", TestResult::Error),
        ("interrupt", TestResult::Error),
        ("kill", TestResult::Error),
        ("cancel", TestResult::Error),
        ("disconnect", TestResult::Error),
        ("terminated", TestResult::Error),
        ("exception", TestResult::Error),
        ("fatal", TestResult::Error),
        ("segfault", TestResult::Error),
        ("unresolved", TestResult::Error),
    ];
    let mut word = value.trim().to_ascii_lowercase();
    word.retain(|c| !matches!(c, ' ' | '_' | '-'));
    match word.as_str() {
        "pass" | "passed" | "passedbutrunaborted" | "warning" | "completed" => {
            Some(TestResult::Success)
        }
        "notrun" | "notrunnable" | "notexecuted" | "disabled" | "suppressed" | "skipped"
        | "ignored" | "pending" | "untested" | "incomplete" | "inconclusive" | "blocked" => {
            Some(TestResult::Skipped)
        }
        "inprogress" => Some(TestResult::Unfinished),
        "ko" | "nok" => Some(TestResult::Failure),
        "broken" => Some(TestResult::Error),
        _ => STARTS.iter().find(|(start, _)| word.starts_with(start)).map(|(_, result)| *result),
    }
}

/// A sum, such as `12`, `1.0` or, with thousands set apart, `1,000`.
pub(crate) fn parse_sum(raw: &str) -> Option<u64> {
    let raw = raw.trim();
    let mut groups = raw.split([',', ' ', '\'', '\u{2019}', '\u{a0}', '\u{202f}']);
    let first = groups.next().unwrap_or_default();
    let mut groups = groups.peekable();
    let is_grouped = groups.peek().is_some() && matches!(first.len(), 1..=3);
    if is_grouped && groups.clone().all(|group| group.len() == 3) {
        return groups.fold(first.to_owned(), |sum, group| sum + group).parse().ok();
    }
    let (whole, fraction) = raw.split_once(['.', ',']).unwrap_or((raw, ""));
    fraction.bytes().all(|byte| byte.is_ascii_digit()).then(|| whole.parse().ok())?
}

/// Not negative and at most a year. A comma may separate thousands.
pub(crate) fn parse_seconds(raw: &str) -> Option<f64> {
    let raw = raw.trim();
    let seconds = match raw.split_once(',') {
        None => raw.parse::<f64>().ok()?,
        Some((first, rest)) => {
            let whole = rest.split('.').next().unwrap_or_default();
            let is_grouped =
                matches!(first.as_bytes(), [b'1'..=b'9'] | [b'1'..=b'9', _] | [b'1'..=b'9', _, _])
                    && whole.split(',').all(|group| group.len() == 3);
            is_grouped.then(|| raw.replace(',', "").parse::<f64>().ok())??
        }
    };
    valid_seconds(seconds)
}

fn valid_seconds(seconds: f64) -> Option<f64> {
    // The sum makes 0 of -0, which would print its sign.
    (0.0..=YEAR_SECONDS).contains(&seconds).then_some(seconds + 0.0)
}

/// `[DAYS.]HOURS:MINUTES:SECONDS`, as .NET writes durations.
pub(crate) fn parse_time_span(raw: &str) -> Option<f64> {
    let mut parts = raw.trim().rsplit(':');
    let seconds: f64 = parts.next()?.parse().ok()?;
    let minutes: f64 = parts.next()?.parse().ok()?;
    let (days, hours) = match parts.next()?.split_once('.') {
        Some((days, hours)) => (days.parse().ok()?, hours),
        None => (0.0, raw.trim().split(':').next()?),
    };
    let hours: f64 = hours.parse().ok()?;
    let is_end = parts.next().is_none();
    valid_seconds(((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds).filter(|_| is_end)
}

/// `None` also for what tools write where they have no time, such as the years 1 and 1970.
pub(crate) fn parse_timestamp(raw: &str) -> Option<Timestamp> {
    let raw = raw.trim();
    let local = || raw.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    let time = raw
        .parse()
        .ok()
        .or_else(|| local().map(|zoned| zoned.timestamp()))
        .or_else(|| rfc2822::parse(raw).ok().map(|zoned| zoned.timestamp()))?;
    (time > Timestamp::constant(YEAR_2000, 0)).then_some(time)
}

/// The last part of a path of either kind.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// A path without what some tools write behind it: Pest the name of the test (`ATest.php::adds`), and ExUnit's formatter
/// the line (`a_test.exs:7`).
pub(crate) fn path_of_place(place: &str) -> &str {
    let file = place.split_once("::").map_or(place, |(file, _)| file);
    let file = match file.rsplit_once(':') {
        Some((path, line)) if line.parse::<u32>().is_ok() => path,
        _ => file,
    };
    if file.contains('.') { file } else { place }
}

/// Whether a host is one of many: names of projects, which Playwright writes as `hostname`, look like words.
pub(crate) fn is_machine_name(host: &str) -> bool {
    let digits = host.bytes().filter(u8::is_ascii_digit).count();
    let may_be_host = !host.contains(char::is_whitespace);
    is_runner_name(host) || (may_be_host && (host.contains('.') || digits >= 3))
}

/// GitHub's runners are `runnervmf2e7y` or `fv-az1234-567`.
pub(crate) fn is_runner_name(host: &str) -> bool {
    host == "localhost" || host.starts_with("runnervm") || host.starts_with("fv-az")
}
