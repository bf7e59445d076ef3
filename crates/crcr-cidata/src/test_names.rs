//! Parts of tests' names that change from run to run, and so don't belong to their ids.

use std::borrow::Cow;
use std::collections::HashMap;

use crcr_domain::ci_data::test_run::{TestCase, TestRowKind, full_name};

/// Folders in which names of files are random.
const TEMPORARY_FOLDERS: [&[u8]; 4] = [b"/tmp/", b"/T/", b"\\Temp\\", b"/temp/"];

/// The name without addresses in memory, hashes of objects and names of temporary files, as in Python's
/// `test (obj=<Foo object at 0x7f4296f7d550>, dir='/tmp/tmp1zvcafbj')`.
pub(crate) fn without_random_parts(name: &str) -> Cow<'_, str> {
    replace_random_parts(name, "")
}

fn replace_random_parts<'a>(name: &'a str, by: &str) -> Cow<'a, str> {
    if !["0x", "tmp", "@", "/T/", "Temp\\", "/temp/"].iter().any(|sign| name.contains(sign)) {
        return Cow::Borrowed(name);
    }
    let bytes = name.as_bytes();
    let mut kept = String::new();
    let (mut at, mut plain_from) = (0, 0);
    // The end of the last separator: to look for it at each of many numbers would take hours.
    let mut folder = 0;
    while at < bytes.len() {
        let (before, rest) = bytes.split_at(at);
        let random = address(before, rest)
            .or_else(|| object_hash(before, rest))
            .or_else(|| temporary_file(before, rest))
            .or_else(|| temporary_number((before, folder), rest));
        if let Some(length) = random {
            kept.push_str(&name[plain_from..at]);
            kept.push_str(by);
            at += length;
            plain_from = at;
        } else {
            at += 1;
            if matches!(bytes[at - 1], b'/' | b'\\') {
                folder = at;
            }
        }
    }
    kept.push_str(&name[plain_from..]);
    Cow::Owned(kept)
}

/// Behind `at `, or as long as only addresses are: constants have up to 8 digits, or 16.
fn address(before: &[u8], rest: &[u8]) -> Option<usize> {
    let digits = rest.strip_prefix(b"0x")?;
    let length = digits.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let is_end = |byte: Option<&u8>| !byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_word = is_end(before.last()) && is_end(digits.get(length));
    let is_address = match length {
        9..=12 => true,
        // Ruby's `#<Foo:0x000078e1f4a2b3c8>`, and Java's `$$Lambda/0x0000000800c03000`.
        16 if digits.starts_with(b"0000") && matches!(before.last(), Some(b':' | b'/')) => true,
        _ => (6..=16).contains(&length) && before.ends_with(b" at "),
    };
    (is_word && is_address).then_some(2 + length)
}

/// Java's `acme.Foo@5e91993f` and `[I@5e91993f`, an object or an array of numbers that has no text of its own.
fn object_hash(before: &[u8], rest: &[u8]) -> Option<usize> {
    let digits = rest.strip_prefix(b"@")?;
    let length = digits.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).count();
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_of_class = |byte: &u8| byte.is_ascii_alphanumeric() || b"._$;[/".contains(byte);
    let start = before.iter().rposition(|byte| !is_of_class(byte)).map_or(0, |at| at + 1);
    let class = &before[start..];
    let is_array =
        matches!(class, [.., b'[', b'B' | b'C' | b'D' | b'F' | b'I' | b'J' | b'S' | b'Z']);
    // Behind a package, which an address of mail and a version of another repository haven't.
    let dot = class.iter().rposition(|byte| *byte == b'.');
    let is_class = dot.and_then(|dot| class.get(dot + 1)).is_some_and(u8::is_ascii_uppercase);
    let is_hash = (6..=8).contains(&length)
        && digits[..length].iter().any(u8::is_ascii_digit)
        && !digits.get(length).is_some_and(goes_on);
    (is_hash && (is_array || is_class)).then_some(1 + length)
}

/// `tmp1zvcafbj` of Python, `tmp.Xy12AbCd34` of `mktemp`, `.tmpXy12Ab` of Rust.
fn temporary_file(before: &[u8], rest: &[u8]) -> Option<usize> {
    if !TEMPORARY_FOLDERS.iter().any(|folder| before.ends_with(folder)) {
        return None;
    }
    let visible = rest.strip_prefix(b".").unwrap_or(rest).strip_prefix(b"tmp")?;
    let random = visible.strip_prefix(b".").unwrap_or(visible);
    let is_random = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
    let length = random.iter().take_while(is_random).count();
    let is_end = !matches!(random.get(length), Some(b'.' | b'-'));
    (is_end && (6..=12).contains(&length)).then_some(rest.len() - random.len() + length)
}

/// The number in `/tmp/TestCopy2456863797/001` of Go's `t.TempDir`, `/tmp/junit5416341234/a` of JUnit, and others.
/// `folder` is the length of what is before it up to the last separator.
fn temporary_number((before, folder): (&[u8], usize), rest: &[u8]) -> Option<usize> {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    // Before the digits are counted: at each digit of a long number that would take hours.
    if !is_digit(rest.first()) || is_digit(before.last()) {
        return None;
    }
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length < 6 {
        return None;
    }
    let is_temporary = TEMPORARY_FOLDERS.iter().any(|end| before[..folder].ends_with(end));
    is_temporary.then_some(length)
}

/// The text behind the folder of the repository's checkout, which differs between runners: `/home/runner/work/app/app/`,
/// `D:\a\app\app\`, `/opt/runner-3/_work/app/app/`. Pester and linters write such paths as suites, classes or names.
pub(crate) fn without_checkout<'a>(text: &'a str, repository: &str) -> &'a str {
    let is_absolute = match text.as_bytes() {
        [b'/', ..] => true,
        [drive, b':', b'\\' | b'/', ..] => drive.is_ascii_alphabetic(),
        _ => false,
    };
    let name = repository.rsplit('/').next().unwrap_or(repository);
    if !is_absolute || name.is_empty() {
        return text;
    }
    let (mut at, mut outer) = (0, "");
    for part in text.split_inclusive(['/', '\\']) {
        let folder = part.trim_end_matches(['/', '\\']);
        at += part.len();
        let is_checkout = [outer, folder].iter().all(|part| part.eq_ignore_ascii_case(name));
        if is_checkout && at < text.len() {
            return &text[at..];
        }
        outer = folder;
    }
    text
}

/// A name without the folder of the checkout in the paths in it.
pub(crate) fn without_checkouts<'a>(name: &'a str, repository: &str) -> Cow<'a, str> {
    let name = without_checkout(name, repository);
    if !name.contains(['/', '\\']) {
        return Cow::Borrowed(name);
    }
    name.split_inclusive(is_before_path).map(|word| without_checkout(word, repository)).collect()
}

fn is_before_path(c: char) -> bool {
    c.is_whitespace() || "\"'`([{<=,|".contains(c)
}

/// The pattern of the quarantine that covers a test in its next runs, too: `*` stands for what changes in its class and
/// name.
pub fn lasting_pattern(repository: &str, suite: &str, class: &str, name: &str) -> String {
    let lasting = |text: &str| -> String {
        let text = replace_random_parts(text, "*");
        let with_any_checkout = |word: &str| match without_checkout(word, repository).len() {
            kept if kept == word.len() => word.to_owned(),
            // From the separator on that ends the folder.
            kept => format!("*{}", &word[word.len() - kept - 1..]),
        };
        text.split_inclusive(is_before_path).map(with_any_checkout).collect()
    };
    let file = without_line(class);
    let class = if file == class { lasting(class) } else { format!("{}:*", lasting(file)) };
    let name = match place_length(name).filter(|length| *length < name.len()) {
        Some(length) if name.starts_with('[') => format!("[*] {}", lasting(&name[length..])),
        Some(length) => format!("test_*_{}", lasting(&name[length..])),
        None => lasting(name),
    };
    full_name(&lasting(suite), &class, &name)
}

/// The class without the line of the test, which busted writes behind the file: `./a_spec.lua:3`.
pub(crate) fn without_line(class: &str) -> &str {
    match class.rsplit_once(':') {
        Some((file, line)) if file.ends_with(".lua") && line.parse::<u32>().is_ok() => file,
        _ => class,
    }
}

/// For each test the length of what its tool put before its name and an edit of another test changes: the number of a
/// converter of TAP, if every test of its suite has one, in counting order, and that of minitest/spec or the place of
/// Karate, if no other test of the class has the same name without it. Empty if no test has one.
pub(crate) fn number_lengths(cases: &[TestCase]) -> Vec<usize> {
    let mut lengths = vec![];
    let mut at = 0;
    for of_suite in cases.chunk_by(|a, b| a.suite == b.suite) {
        if let Some(of_suite) = lengths_of_suite(of_suite) {
            lengths.resize(at, 0);
            lengths.extend(of_suite);
        }
        at += of_suite.len();
    }
    for (at, length) in lengths_of_places(cases) {
        lengths.resize(lengths.len().max(cases.len()), 0);
        lengths[at] = length;
    }
    lengths
}

fn lengths_of_places(cases: &[TestCase]) -> Vec<(usize, usize)> {
    let mut named: HashMap<_, Vec<(usize, usize)>> = HashMap::new();
    for (at, case) in cases.iter().enumerate().filter(|(_, case)| case.kind == TestRowKind::Test) {
        if let Some(length) = place_length(&case.name).filter(|length| *length < case.name.len()) {
            let variant = case.variant.as_deref();
            let test = (&*case.suite, &*case.classname, variant, &case.name[length..]);
            named.entry(test).or_default().push((at, length));
        }
    }
    named.into_values().filter(|tests| tests.len() == 1).flatten().collect()
}

/// minitest/spec: `test_0001_adds`. Karate: `[1:6] adds`, and `[1.2:13] adds` of an example, with the line.
fn place_length(name: &str) -> Option<usize> {
    let number = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if let Some(rest) = name.strip_prefix("test_") {
        let digits = number(rest);
        let is_number = digits == 4 || (digits > 4 && !rest.starts_with('0'));
        return (is_number && rest[digits..].starts_with('_')).then_some(5 + digits + 1);
    }
    let (place, _) = name.strip_prefix('[')?.split_once("] ")?;
    let (scenario, line) = place.split_once(':')?;
    let (section, example) = scenario.split_once('.').unwrap_or((scenario, "1"));
    let is_number = |text: &str| !text.is_empty() && number(text) == text.len();
    [section, example, line].into_iter().all(is_number).then_some(place.len() + 3)
}

fn lengths_of_suite(cases: &[TestCase]) -> Option<Vec<usize>> {
    let mut lengths = vec![];
    let mut last = None;
    for case in cases {
        if case.kind != TestRowKind::Test {
            lengths.push(0);
            continue;
        }
        let (number, separator) = number(&case.name)?;
        let is_next = match last {
            None => separator == HASH || number == 1,
            Some((last, of_last)) => (number, separator) == (last + 1, of_last),
        };
        if !is_next {
            return None;
        }
        last = Some((number, separator));
        let length = separator.before.len() + digits(number) + separator.after.len();
        // A test without a name has nothing but its number.
        lengths.push(if length < case.name.len() { length } else { 0 });
    }
    last.map(|_| lengths)
}

#[derive(Clone, Copy, PartialEq)]
struct NumberSeparator {
    before: &'static str,
    after: &'static str,
}

/// tap-xunit: `#2 adds`. It goes on counting in the next suite.
const HASH: NumberSeparator = NumberSeparator { before: "#", after: " " };
/// TAP::Formatter::JUnit: `2 - adds`.
const DASH: NumberSeparator = NumberSeparator { before: "", after: " - " };

fn number(name: &str) -> Option<(u32, NumberSeparator)> {
    let separator = if name.starts_with('#') { HASH } else { DASH };
    let rest = name.strip_prefix(separator.before)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let number: u32 = rest[..end].parse().ok().filter(|_| !rest.starts_with('0'))?;
    let is_separated = rest.len() == end || rest[end..].starts_with(separator.after);
    (is_separated && number < u32::MAX).then_some((number, separator))
}

fn digits(number: u32) -> usize {
    number.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::test_rows::lost_case;

    #[test]
    fn addresses_hashes_of_objects_and_temporary_files_are_left_out_and_constants_stay() {
        for (name, stable) in [
            (
                "test_s (obj=<t.Foo object at 0x7f4296f7d550>, dir='/tmp/tmp1zvcafbj')",
                "test_s (obj=<t.Foo object at >, dir='/tmp/')",
            ),
            ("f(<Foo at 0x1c2d3e>)", "f(<Foo at >)"),
            ("TestX/0xc0000140a8", "TestX/"),
            ("in /tmp/tmp.Xy12AbCd34/a.txt", "in /tmp//a.txt"),
            ("/var/folders/a/T/.tmpXy12Ab", "/var/folders/a/T/"),
            (r"C:\Temp\tmp1zvcafbj", r"C:\Temp\"),
            ("adds #<Foo:0x000078e1f4a2b3c8>", "adds #<Foo:>"),
            ("[1] acme.Foo$Bar@5e91993f", "[1] acme.Foo$Bar"),
            ("adds[acme.Foo@1b2c3d](2)", "adds[acme.Foo](2)"),
            ("a([I@1b2c3d4)[1]", "a([I)[1]"),
            ("[2] [Ljava.lang.String;@1b2c3d4, 7", "[2] [Ljava.lang.String;, 7"),
            ("T$$Lambda/0x0000000800c03000", "T$$Lambda/"),
            ("acme.T$$Lambda$14/0x0000000800c03000@5e91993f", "acme.T$$Lambda$14/"),
            // Constants, and names that look alike.
            ("crc[0xdeadbeef]", "crc[0xdeadbeef]"),
            ("hash[0x0123456789abcdef]", "hash[0x0123456789abcdef]"),
            ("mask[0x0000ffff0000ffff]", "mask[0x0000ffff0000ffff]"),
            ("mails jane.doe@cafe123.org", "mails jane.doe@cafe123.org"),
            ("J.Doe@decade1.org", "J.Doe@decade1.org"),
            ("acme/app@b9bef66", "acme/app@b9bef66"),
            ("example.com/Mod@1234567", "example.com/Mod@1234567"),
            ("@scope/pkg@20241127", "@scope/pkg@20241127"),
            ("app.Foo@feed", "app.Foo@feed"),
            ("at 0x10", "at 0x10"),
            ("TestCopy//tmp/TestCopy2456863797/001", "TestCopy//tmp/TestCopy/001"),
            ("/var/folders/a/T/junit5416341234/a", "/var/folders/a/T/junit/a"),
            (r"C:\Temp\go-build123456789", r"C:\Temp\go-build"),
            ("/tmp/v2/20261127", "/tmp/v2/20261127"),
            ("/tmp/v12345", "/tmp/v12345"),
            ("TestX/tmpl_basic", "TestX/tmpl_basic"),
            ("/tmp/tmpl.html", "/tmp/tmpl.html"),
            ("/tmp/template.html", "/tmp/template.html"),
            ("größe 0x7f4296f7d550", "größe "),
        ] {
            assert_eq!(without_random_parts(name), stable, "{name}");
        }
    }

    /// Takes hours if the digits behind each digit are counted, or the separator before each number is looked for.
    #[test]
    fn name_with_a_million_digits_is_read_once() {
        let digits = "1".repeat(1 << 20);
        let name = format!("tmp {digits}");
        assert_eq!(without_random_parts(&name), name);
        assert_eq!(without_random_parts(&format!("/tmp/a{digits}")), "/tmp/a");
        let numbers = format!("tmp {}", "123456a".repeat(1 << 17));
        assert_eq!(without_random_parts(&numbers), numbers);
    }

    #[test]
    fn pattern_of_a_test_has_an_asterisk_for_what_changes_from_run_to_run() {
        for (class, name, pattern) in [
            ("c.T", "test_p[<Foo object at 0x7f4296f7d550>]", "c.T.test_p[<Foo object at *>]"),
            ("T", "[1] acme.Foo@5e91993f", "T.[1] acme.Foo*"),
            ("/home/runner/work/app/app/a.js", "adds", "*/a.js.adds"),
            ("a", r"loads(D:\a\app\app\x.dll)", r"a.loads(*\x.dll)"),
            ("./a_spec.lua:3", "a adds", "./a_spec.lua:*.a adds"),
            ("a.feature", "[1.2:13] adds", "a.feature.[*] adds"),
            ("Sum", "test_0001_adds", "Sum.test_*_adds"),
            ("", "adds[1]", "s.adds[1]"),
        ] {
            assert_eq!(lasting_pattern("acme/app", "s", class, name), pattern);
        }
    }

    #[test]
    fn folder_of_the_checkout_is_left_out_of_a_path() {
        for (path, stable) in [
            ("/home/runner/work/app/app/src/a.js", "src/a.js"),
            ("/opt/runner-3/_work/App/App/src/a.js", "src/a.js"),
            ("/__w/app/app/app/app/a.js", "app/app/a.js"),
            (r"D:\a\app\app\a.Tests.ps1", "a.Tests.ps1"),
            // Other folders, and texts that only look like a path.
            ("/home/app/src/a.js", "/home/app/src/a.js"),
            ("/home/runner/work/app/app", "/home/runner/work/app/app"),
            ("app/app/a.js", "app/app/a.js"),
            ("a:app/app/a.js", "a:app/app/a.js"),
            ("", ""),
        ] {
            assert_eq!(without_checkout(path, "acme/app"), stable, "{path}");
        }
    }

    #[test]
    fn folder_of_the_checkout_is_left_out_of_paths_in_a_name() {
        for (name, stable) in [
            ("lints /home/runner/work/app/app/src/a.js:3", "lints src/a.js:3"),
            ("copies \"/w/app/app/a\" to '/w/app/app/b c'", "copies \"a\" to 'b c'"),
            (r"loads(D:\a\app\app\x.dll)", "loads(x.dll)"),
            ("reads src/app/app/a.js", "reads src/app/app/a.js"),
            ("reads /etc/app/a", "reads /etc/app/a"),
            ("adds", "adds"),
        ] {
            assert_eq!(without_checkouts(name, "acme/app"), stable, "{name}");
        }
    }

    #[test]
    fn places_of_minitest_and_karate_and_lines_of_busted_are_left_out_where_names_differ() {
        let lengths = |names: &[(&str, &str)]| {
            let case = |(class, name): &(&str, &str)| {
                let (kind, name) = (TestRowKind::Test, (*name).to_owned());
                let mut case = lost_case(kind, Arc::from("s"), name, String::new());
                case.classname = Arc::from(*class);
                case
            };
            number_lengths(&names.iter().map(case).collect::<Vec<_>>())
        };
        assert_eq!(
            lengths(&[("a", "x"), ("a", "test_0001_adds"), ("b", "test_0002_adds")]),
            [0, 10, 10]
        );
        assert_eq!(lengths(&[("a", "[1:6] adds"), ("a", "[2.11:13] adds 7")]), [6, 10]);
        assert!(lengths(&[("a", "test_0001_adds"), ("a", "test_0002_adds")]).is_empty());
        assert!(lengths(&[("a", "[1.1:13] adds"), ("a", "[1.2:14] adds")]).is_empty());
        for name in
            ["test_001_adds", "test_00001_adds", "test_0001_", "[1] adds", "[a:1] adds", "[1:6]"]
        {
            assert!(lengths(&[("a", name)]).is_empty(), "{name}");
        }
        assert_eq!(without_line("./a_spec.lua:3"), "./a_spec.lua");
        assert_eq!(without_line("a.LuaTest:x"), "a.LuaTest:x");
    }

    #[test]
    fn numbers_of_tap_are_left_out_only_where_a_whole_suite_is_counted() {
        let lengths = |names: &[(&str, &str)]| {
            let case = |(suite, name): &(&str, &str)| {
                lost_case(TestRowKind::Test, Arc::from(*suite), (*name).to_owned(), String::new())
            };
            number_lengths(&names.iter().map(case).collect::<Vec<_>>())
        };
        let dashed = [("a", "1 - adds"), ("a", "2"), ("a", "3 - is 3 - 1")];
        assert_eq!(lengths(&dashed), [4, 0, 4]);
        let hashed = [("x", "plain"), ("a", "#9 adds"), ("a", "#10 b"), ("b", "#11 c")];
        assert_eq!(lengths(&hashed), [0, 3, 4, 4]);
        assert!(lengths(&[("a", "1 - a"), ("a", "3 - b")]).is_empty());
        assert!(lengths(&[("a", "1 - a"), ("a", "b")]).is_empty());
        assert!(lengths(&[("a", "#1 a"), ("a", "2 - b")]).is_empty());
        assert!(lengths(&[("a", "2 - a")]).is_empty());
        assert!(lengths(&[("a", "2024 report"), ("a", "#007 agent")]).is_empty());
    }
}
