//! `crcr quarantine propose`: a diff of the file, from stored results.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::process::ExitCode;

use crcr_cidata::test_names::lasting_pattern;
use crcr_domain::Oncall;
use crcr_domain::ci_data::codeowners::Codeowners;
use crcr_domain::ci_data::quarantine::{
    MAX_BYTES, ParsedQuarantine, QuarantineEntry, QuarantineMode,
};
use crcr_domain::ci_data::test_run::{full_name, name_with_variant};
use crcr_results::Results;
use crcr_results::test_runs::{TestQuery, TestRanking, TestStats, date};
use jiff::ToSpan as _;
use jiff::civil::Date;
use similar::TextDiff;

use super::{check, today};
use crate::cli::quarantine::ProposeArgs;
use crate::commands::read_bounded;
use crate::commands::stats::owners;
use crate::commands::stats::rank::{days, not_read, open};
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;

/// Makes editors check the file while it is written.
const SCHEMA_LINE: &str = "# yaml-language-server: $schema=https://raw.githubusercontent.com/pytorch/crcr/main/schemas/quarantine.json\n";

/// One failure before a rerun may have been the machine.
const MIN_FLAKY: u64 = 2;
/// A test that fails once in ten runs passes this often with a chance of an eighth.
const MIN_RUNS: u64 = 20;
/// Tests that one search may find.
const MAX_TESTS: usize = 10_000;
/// Tests of one name that are looked at.
const MAX_NAMESAKES: usize = 100;

pub async fn run(args: &ProposeArgs, env: &Env, printer: &Printer) -> Outcome {
    let path = args.file.strip_prefix("./").unwrap_or(&args.file);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if path.starts_with('/')
        || path.split('/').any(|part| part == "..")
        || !path.chars().all(is_plain)
    {
        let text = format!("`{path}` isn't a plain path in the repository");
        return Err(
            Failure::unexpected("usage", text).hint("run this in the repository's root folder")
        );
    }
    let before = read_text(path)?;
    let today = today();
    let parsed = ParsedQuarantine::parse(before.as_bytes(), today);
    check(path, &parsed, printer)?;

    let results = open(&args.stored, env).await?;
    let new = new_entries(args, &*results, &parsed.entries, today, printer).await?;
    let mut stay = vec![];
    let mut leave = vec![];
    for entry in &parsed.entries {
        match no_longer_fails(args, &*results, entry).await? {
            true => leave.push(entry),
            false => stay.push(entry),
        }
    }
    printer.line(&format!(
        "{path}: {} to add, {} to remove",
        plural(new.len(), "test", "tests"),
        plural(leave.len(), "entry", "entries")
    ));
    let mut after = edit(&before, &parsed, &leave, &new);
    if before.is_empty() && !after.is_empty() {
        after.insert_str(0, SCHEMA_LINE);
    }
    // The file may be in a layout that lines can't be added to.
    let edited = ParsedQuarantine::parse(after.as_bytes(), today);
    let expected =
        stay.iter().map(|entry| &entry.pattern).chain(new.iter().map(|new| &new.pattern));
    if edited.findings.errors() > 0
        || !edited.entries.iter().map(|entry| &entry.pattern).eq(expected)
    {
        let text = format!("the layout of `{path}` can't be edited");
        return Err(Failure::user("quarantine-layout", text)
            .hint("write each entry as a block that begins with `- `"));
    }
    if before != after {
        let old = if before.is_empty() { "/dev/null".to_owned() } else { format!("a/{path}") };
        let diff = TextDiff::from_lines(&before, &after);
        printer.data_text(&diff.unified_diff().header(&old, &format!("b/{path}")).to_string());
    }
    Ok(ExitCode::SUCCESS)
}

/// A file that doesn't exist is empty.
fn read_text(path: &str) -> Result<String, Failure> {
    let unreadable = |why: anyhow::Error| {
        Failure::unexpected("quarantine-unreadable", format!("`{path}` can't be read")).because(why)
    };
    let bytes = match File::open(path).and_then(|file| read_bounded(file, MAX_BYTES)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(unreadable(error.into())),
    };
    if bytes.len() > MAX_BYTES {
        return Err(unreadable(anyhow::anyhow!("it is larger than {} KiB", MAX_BYTES / 1024)));
    }
    String::from_utf8(bytes).map_err(|error| unreadable(error.into()))
}

struct NewEntry {
    pattern: String,
    text: String,
}

/// Flaky tests that no entry has, the most often flaky first.
async fn new_entries(
    args: &ProposeArgs,
    results: &dyn Results,
    entries: &[QuarantineEntry],
    today: Date,
    printer: &Printer,
) -> Result<Vec<NewEntry>, Failure> {
    let mut stats =
        results.test_stats(&query(args, TestRanking::Flaky, None)).await.map_err(not_read)?;
    stats.retain(|test| test.flaky >= MIN_FLAKY && test.share(test.flaky) * 100.0 >= args.at_least);
    let name = |test: &TestStats| {
        let name = full_name(&test.suite, &test.classname, &test.name);
        name_with_variant(name, test.variant.as_deref())
    };
    stats.sort_by(|a, b| {
        let order = b.share(b.flaky).total_cmp(&a.share(a.flaky)).then(b.flaky.cmp(&a.flaky));
        order.then_with(|| name(a).cmp(&name(b)))
    });
    let expiry = today.saturating_add(args.days.days());
    let codeowners = owners::read(args.codeowners.as_deref())?;
    let mut seen = BTreeSet::new();
    let mut new = vec![];
    for test in &stats {
        let is_of = |entry: &&QuarantineEntry| covers(entry, test);
        let pattern = lasting_pattern(&args.stored.repo, &test.suite, &test.classname, &test.name);
        let pattern = name_with_variant(pattern, test.variant.as_deref());
        let pattern: String =
            pattern.chars().map(|c| if c.is_control() { '*' } else { c }).collect();
        if let Some(entry) = entries.iter().find(is_of) {
            if entry.is_expired(today) {
                printer.notice(&format!("`{pattern}` is still flaky, and its entry has expired"));
            }
            continue;
        }
        if new.len() == args.limit || !seen.insert(pattern.clone()) {
            continue;
        }
        // `test_op[*]` would cover `test_op[+]` as well.
        if name(test).contains('*') {
            let why = "its name can't be a pattern, in which `*` stands for any text";
            printer.notice(&format!("`{pattern}` is flaky, and {why}"));
            continue;
        }
        if has_namesake(args, results, test).await? {
            printer.notice(&format!(
                "`{pattern}` is flaky, and another test has the same name: rename one of them"
            ));
            continue;
        }
        let Some(owner) = owner(args, &codeowners, test) else {
            printer.notice(&format!(
                "`{pattern}` is flaky, and has no owner: name one with `--owner`, or in CODEOWNERS"
            ));
            continue;
        };
        let runs = test.runs_not_skipped();
        let reason = format!(
            "flaky in {} of {runs} runs ({:.1} %) from {} to {}",
            test.flaky,
            test.share(test.flaky) * 100.0,
            date(days(&args.stored).0),
            date(test.last_day),
        );
        let text = format!(
            "- pattern: {}\n  owner: {}\n  reason: {}\n  expiry: {expiry}\n  mode: run\n",
            quoted(&pattern),
            quoted(&owner),
            quoted(&reason)
        );
        if ParsedQuarantine::parse(text.as_bytes(), today).findings.errors() > 0 {
            printer.notice(&format!("`{pattern}` is flaky, and its name can't be a pattern"));
            continue;
        }
        new.push(NewEntry { pattern, text });
    }
    Ok(new)
}

/// Whether another test that ran has all the names of this one: an entry would hide its failures, too.
async fn has_namesake(
    args: &ProposeArgs,
    results: &dyn Results,
    test: &TestStats,
) -> Result<bool, Failure> {
    let repository = &args.stored.repo;
    let full = full_name(&test.suite, &test.classname, &test.name);
    let named = results.tests_named(repository, &full, MAX_NAMESAKES).await.map_err(not_read)?;
    for other in &named {
        let is_namesake = other.test_id != test.test_id
            && other.suite == test.suite
            && other.classname == test.classname
            && other.name == test.name
            && other.variant == test.variant;
        if !is_namesake {
            continue;
        }
        let ran = results.test_job_days(repository, other.test_id, days(&args.stored)).await;
        if !ran.map_err(not_read)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first owner of the test's file that an entry can name, else the one of the flag.
fn owner(args: &ProposeArgs, codeowners: &Codeowners, test: &TestStats) -> Option<String> {
    let (file, class) = (test.file.as_deref(), &test.classname);
    let owners = codeowners.owners_of_test(&args.stored.repo, file, class);
    let of_file = owners.iter().find_map(|owner| Oncall::new(owner.strip_prefix('@')?).ok());
    of_file.or_else(|| args.owner.clone()).map(|owner| owner.as_str().to_owned())
}

/// A string of YAML, which takes those of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Whether the tests of an entry ran often enough to say that they don't fail now. A test that isn't
/// run says nothing.
async fn no_longer_fails(
    args: &ProposeArgs,
    results: &dyn Results,
    entry: &QuarantineEntry,
) -> Result<bool, Failure> {
    if entry.mode == QuarantineMode::Skip {
        return Ok(false);
    }
    // What is stored has no suite in the name that is searched.
    let search = |text: &str| text.split('*').max_by_key(|part| part.len()).map(str::to_owned);
    // Nor a variant, which may have a dot.
    let without_variant = entry.pattern.strip_suffix(')').and_then(|name| name.rsplit_once(" ("));
    let pattern = without_variant.map_or(&*entry.pattern, |(name, _)| name);
    let name = pattern.rsplit('.').next().and_then(search).filter(|part| !part.is_empty());
    let search = name.or_else(|| search(pattern)).unwrap_or_default();
    let mut runs = 0;
    // Among the slow ones are all that have a time. Those without one are seen only if they fail.
    for ranking in [TestRanking::Slow, TestRanking::Failing, TestRanking::Flaky] {
        let query = query(args, ranking, Some(search.clone()));
        let stats = results.test_stats(&query).await.map_err(not_read)?;
        if stats.len() == MAX_TESTS {
            return Ok(false);
        }
        for test in stats.iter().filter(|test| covers(entry, test)) {
            if test.flaky + test.failures > 0 {
                return Ok(false);
            }
            runs += test.runs_not_skipped();
        }
    }
    Ok(runs >= MIN_RUNS)
}

fn covers(entry: &QuarantineEntry, test: &TestStats) -> bool {
    entry.matches(&test.suite, &test.classname, &test.name, test.variant.as_deref())
}

fn query(args: &ProposeArgs, ranking: TestRanking, search: Option<String>) -> TestQuery {
    TestQuery {
        repository: args.stored.repo.clone(),
        ranking,
        days: days(&args.stored),
        job: None,
        all_branches: args.stored.all_branches,
        search,
        offset: 0,
        limit: MAX_TESTS,
    }
}

/// The file without the lines of the entries that leave, and with the new ones at the end.
fn edit(
    before: &str,
    parsed: &ParsedQuarantine,
    leave: &[&QuarantineEntry],
    new: &[NewEntry],
) -> String {
    let source = &parsed.source;
    let mut after = String::with_capacity(before.len());
    if source.has_byte_order_mark() {
        after.push('\u{feff}');
    }
    let mut at = 0;
    for entry in leave {
        let lines = source.position(entry.bytes.start).line..=source.position(entry.bytes.end).line;
        let lines = source.lines(*lines.start(), *lines.end());
        after.push_str(&source.text()[at..lines.start]);
        at = lines.end;
    }
    after.push_str(&source.text()[at..]);
    if new.is_empty() {
        return after;
    }
    if parsed.entries.is_empty() {
        // An empty list can't be added to.
        let lines = after.split_inclusive('\n').filter(|line| line.trim() != "[]");
        after = lines.collect();
    }
    let end = if before.contains("\r\n") { "\r\n" } else { "\n" };
    if !after.is_empty() && !after.ends_with('\n') {
        after.push_str(end);
    }
    let indent =
        parsed.entries.first().map_or(0, |first| source.position(first.bytes.start).column - 1);
    for line in new.iter().flat_map(|entry| entry.text.lines()) {
        let _ = write!(after, "{:indent$}{line}{end}", "");
    }
    after
}
