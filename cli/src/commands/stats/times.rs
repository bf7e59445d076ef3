//! `crcr stats times` and `crcr stats shard`: how long test files take, and shards of equal length.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::process::ExitCode;

use crcr_results::test_runs::{FileTime, FileTimesQuery};
use serde_json::{Map, Value, json};

use super::rank::{branches, days, not_read, open};
use crate::cli::DataFormat;
use crate::cli::stats::{ShardArgs, TimesArgs};
use crate::env_vars::Env;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Limit for the file with times, and for the list of test files.
const MAX_INPUT_BYTES: u64 = 256 << 20;

/// `{job: {config: {file: seconds}}}`, or with `--classes` `{job: {config: {file: {class: seconds}}}}`.
pub async fn times(args: &TimesArgs, env: &Env, printer: &Printer) -> Outcome {
    let results = open(&args.stored, env).await?;
    let query = FileTimesQuery {
        repository: args.stored.repo.clone(),
        days: days(&args.stored),
        job: args.job.clone(),
        all_branches: args.stored.all_branches,
    };
    let times = results.file_times(&query).await.map_err(not_read)?;
    let text = match args.format {
        DataFormat::Json => {
            let json = nested(&times, args.classes);
            serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
        }
        DataFormat::Text => times.iter().map(line).collect(),
    };
    match &args.output {
        Some(path) => std::fs::write(path, text).map_err(|error| {
            let what = format!("`{}` can't be written", path.display());
            Failure::unexpected("file-unwritable", what).because(error)
        })?,
        None => printer.data_as(args.format, &text),
    }
    if times.is_empty() {
        let of = branches(&args.stored);
        printer.notice(&format!("no test file has a time in these days{of}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Names may contain anything that a report can.
fn line(time: &FileTime) -> String {
    let names = [&time.job, &time.config, &time.file, &time.classname];
    let names = names.map(|name| name.escape_debug().to_string()).join("  ");
    format!("{:8.1} s  {names}\n", time.seconds)
}

/// The seconds of each class, by file.
type FileSeconds<'a> = BTreeMap<&'a str, BTreeMap<&'a str, f64>>;

fn nested(times: &[FileTime], classes: bool) -> Value {
    let mut jobs: BTreeMap<&str, BTreeMap<&str, FileSeconds<'_>>> = BTreeMap::new();
    for time in times {
        let file = jobs
            .entry(&time.job)
            .or_default()
            .entry(&time.config)
            .or_default()
            .entry(&time.file)
            .or_default();
        *file.entry(&time.classname).or_default() += time.seconds;
    }
    let seconds = |seconds: f64| json!((seconds * 1000.0).round() / 1000.0);
    let object = |fields: Vec<(&str, Value)>| {
        Value::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    };
    let file = |file: &BTreeMap<&str, f64>| match classes {
        true => object(file.iter().map(|(class, time)| (*class, seconds(*time))).collect()),
        false => seconds(file.values().sum()),
    };
    object(
        jobs.iter()
            .map(|(job, configs)| {
                let configs = configs.iter().map(|(config, files)| {
                    (
                        *config,
                        object(files.iter().map(|(name, times)| (*name, file(times))).collect()),
                    )
                });
                (*job, object(configs.collect()))
            })
            .collect(),
    )
}

/// Prints the test files of one shard.
pub fn shard(args: &ShardArgs, printer: &Printer) -> Outcome {
    if args.index > args.shards {
        let text = format!("`--index` is {}, and there are {} shards", args.index, args.shards);
        return Err(Failure::unexpected("usage", text));
    }
    let times = read_times(args)?;
    let files = match args.files.is_empty() {
        false => args.files.clone(),
        true => {
            let mut text = String::new();
            std::io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut text).map_err(|error| {
                Failure::unexpected("input", "the list of test files can't be read").because(error)
            })?;
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
        }
    };
    let known = known_times(&files, &times);
    let (found, all) = (known.len(), files.iter().collect::<BTreeSet<_>>().len());
    if found < all {
        let what = format!("{found} of {all} files have a time");
        let hint = "a time is of a file, or of a class such as `tests.test_ops.TestAdd` of the file \
                    `tests/test_ops.py`; `crcr stats times --format text` shows them";
        match found {
            0 => printer.warning(&format!("{what}: each counts as 1 s"), Some(hint)),
            _ => printer.notice(&format!("{what}; the others count as the mean")),
        }
    }
    let shards = split(&files, &known, args.shards);
    let (files, seconds) = &shards[args.index - 1];
    if files.is_empty() {
        printer.warning(
            &format!("shard {} of {} has no test files", args.index, args.shards),
            Some("skip the step then: most test tools run all tests if no file is named"),
        );
    }
    let text = match args.format {
        DataFormat::Text => files.iter().map(|file| format!("{file}\n")).collect::<String>(),
        DataFormat::Json => {
            let seconds = (seconds * 1000.0).round() / 1000.0;
            format!("{}\n", json!({ "index": args.index, "files": files, "seconds": seconds }))
        }
    };
    printer.data_as(args.format, &text);
    Ok(ExitCode::SUCCESS)
}

/// The seconds of each test file, of the job and configuration that the flags name; else the highest of
/// all.
fn read_times(args: &ShardArgs) -> Result<BTreeMap<String, f64>, Failure> {
    let path = &args.times;
    let wrong = |why: &str| {
        Failure::user("times", format!("`{}` has no times of test files", path.display()))
            .hint(format!("{why}; `crcr stats times` writes such a file"))
    };
    let file = std::fs::File::open(path).map_err(|error| {
        Failure::unexpected("times-unreadable", format!("`{}` can't be read", path.display()))
            .because(error)
            .hint("`crcr stats times` writes such a file")
    })?;
    let json: Value = serde_json::from_reader(std::io::BufReader::new(file.take(MAX_INPUT_BYTES)))
        .map_err(|error| wrong("it isn't JSON").because(error))?;
    let object = |value: &Value| -> Result<Map<String, Value>, Failure> {
        value
            .as_object()
            .cloned()
            .ok_or_else(|| wrong("its shape is {job: {config: {file: seconds}}}"))
    };
    let mut times: BTreeMap<String, f64> = BTreeMap::new();
    for (job, configs) in object(&json)? {
        if args.job.as_ref().is_some_and(|wanted| *wanted != job) {
            continue;
        }
        for (config, files) in object(&configs)? {
            if args.config.as_ref().is_some_and(|wanted| *wanted != config) {
                continue;
            }
            for (file, seconds) in object(&files)? {
                let seconds = seconds.as_f64().filter(|seconds| *seconds >= 0.0);
                let seconds = seconds.ok_or_else(|| wrong("a time isn't a number of seconds"))?;
                let time = times.entry(file).or_default();
                *time = time.max(seconds);
            }
        }
    }
    Ok(times)
}

/// The seconds of each file that has a time, by its own name or by those of its classes: reports of
/// pytest name `tests.test_ops.TestAdd`, not `tests/test_ops.py`.
fn known_times<'a>(files: &'a [String], times: &BTreeMap<String, f64>) -> BTreeMap<&'a str, f64> {
    let stem = |file: &'a str| -> &'a str {
        let file = plain(file);
        let name = file.rfind('/').map_or(0, |at| at + 1);
        file[name..].rfind('.').map_or(file, |at| &file[..name + at])
    };
    let mut known = BTreeMap::new();
    for file in files {
        let bare = stem(file).strip_prefix("test/").unwrap_or(stem(file));
        let names = [file, plain(file), stem(file), bare];
        if let Some((name, seconds)) = names.iter().find_map(|name| times.get_key_value(*name)) {
            let is_module = !name.contains('/') && name.len() < plain(file).len();
            let of_classes = if is_module { times_of_classes(name, times) } else { 0.0 };
            known.insert(file.as_str(), seconds + of_classes);
        }
    }
    for (file, seconds) in times_of_paths(files, times) {
        known.entry(file).or_insert(seconds);
    }
    // Classes are named from the tests' own root folder on, which may be below that of the list. A name
    // that fits two files tells of neither.
    let mut modules: BTreeMap<String, Option<&str>> = BTreeMap::new();
    for file in files.iter().collect::<BTreeSet<_>>() {
        let parts: Vec<&str> = stem(file).split('/').collect();
        for start in 0..parts.len() {
            let module = parts[start..].join(".");
            modules.entry(module).and_modify(|file| *file = None).or_insert(Some(file));
        }
    }
    let mut of_classes: BTreeMap<&str, f64> = BTreeMap::new();
    for (class, seconds) in times {
        // A class in another one, as Java names it, is behind a `$`.
        let ends = class.match_indices(['.', '$']).map(|(at, _)| at).chain([class.len()]);
        let ends: Vec<usize> = ends.collect();
        let file = ends.iter().rev().find_map(|end| modules.get(&class[..*end]).copied());
        if let Some(file) = file.flatten().filter(|file| !known.contains_key(file)) {
            *of_classes.entry(file).or_default() += seconds;
        }
    }
    known.extend(of_classes);
    known
}

/// The seconds of all classes of a module in the tests' root folder. Such a module is called like its file, without the
/// extension.
fn times_of_classes(module: &str, times: &BTreeMap<String, f64>) -> f64 {
    let start = format!("{module}.");
    let classes = times.range(start.clone()..).take_while(|(class, _)| class.starts_with(&start));
    classes.map(|(_, seconds)| seconds).sum()
}

fn plain(file: &str) -> &str {
    file.strip_prefix("./").unwrap_or(file)
}

/// The seconds of files whose whole paths on a runner the reports name, as those of Mocha and PHPUnit do. Runners have
/// different folders: the highest counts.
fn times_of_paths<'a>(
    files: &'a [String],
    times: &BTreeMap<String, f64>,
) -> BTreeMap<&'a str, f64> {
    let listed: BTreeMap<&str, &'a str> = files.iter().map(|file| (plain(file), &**file)).collect();
    let mut known: BTreeMap<&str, f64> = BTreeMap::new();
    for (path, seconds) in times {
        let path = path.replace('\\', "/");
        let is_whole = path.starts_with('/') || path.get(1..3) == Some(":/");
        let mut ends = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
        if let Some(file) = ends.find_map(|end| listed.get(end)).filter(|_| is_whole) {
            let time = known.entry(*file).or_default();
            *time = time.max(*seconds);
        }
    }
    known
}

/// Puts the longest file into the shortest shard, again and again. A file without a time counts as the
/// mean. The same input gives the same shards, so each job of a matrix can compute its own.
fn split(files: &[String], known: &BTreeMap<&str, f64>, shards: usize) -> Vec<(Vec<String>, f64)> {
    let mean =
        if known.is_empty() { 1.0 } else { known.values().sum::<f64>() / known.len() as f64 };
    let mut timed: Vec<(&String, f64)> = files
        .iter()
        .map(|file| (file, known.get(file.as_str()).copied().unwrap_or(mean)))
        .collect();
    timed.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let mut seen = BTreeSet::new();
    timed.retain(|&(file, _)| seen.insert(plain(file)));
    let mut all: Vec<(Vec<String>, f64)> = vec![(vec![], 0.0); shards];
    for (file, seconds) in timed {
        let shortest = (0..shards).min_by(|a, b| {
            (all[*a].1.total_cmp(&all[*b].1)).then_with(|| all[*a].0.len().cmp(&all[*b].0.len()))
        });
        let shard = &mut all[shortest.unwrap_or_default()];
        shard.0.push(file.clone());
        shard.1 += seconds;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_of_equal_length_whole_and_the_same_each_time() {
        let files: Vec<String> = (0..50).map(|n| format!("test/test_{n}.py")).collect();
        let times = (0..40).map(|n| (format!("test_{n}"), f64::from(n * n % 97))).collect();
        let known = known_times(&files, &times);
        assert_eq!(known.len(), 40);
        let shards = split(&files, &known, 5);
        let mut all: Vec<_> = shards.iter().flat_map(|(files, _)| files.clone()).collect();
        all.sort();
        let mut expected = files.clone();
        expected.sort();
        assert_eq!(all, expected);
        let lengths: Vec<f64> = shards.iter().map(|(_, seconds)| *seconds).collect();
        let (least, most) =
            lengths.iter().fold((f64::MAX, 0.0_f64), |(a, b), x| (a.min(*x), b.max(*x)));
        assert!(most - least < 0.05 * most, "{lengths:?}");
        let reversed: Vec<String> = files.into_iter().rev().collect();
        assert_eq!(split(&reversed, &known_times(&reversed, &times), 5), shards);
    }

    #[test]
    fn classes_of_a_report_without_files_are_mapped_to_the_files_that_hold_them() {
        let times: BTreeMap<String, f64> = [
            ("tests.test_ops.TestAdd", 3.0),
            ("tests.test_ops.TestMul", 4.0),
            ("tests.test_ops", 0.5),
            ("tests.test_ops.deep.test_x", 9.0),
            ("com.acme.FooTest", 2.0),
            ("com.acme.FooTest$Inner$Deep", 5.0),
            ("tests/test_own.py", 6.0),
            ("tests.test_own.TestTwice", 1.0),
            ("test_twin.TestIt", 8.0),
            ("tests.test_fast", 0.0),
            ("test_root", 1.0),
            ("test_root.TestIn", 2.0),
        ]
        .into_iter()
        .map(|(name, seconds)| (name.to_owned(), seconds))
        .collect();
        let files = [
            "tests/test_ops.py",
            "./tests/test_ops/deep/test_x.py",
            "src/test/java/com/acme/FooTest.java",
            "tests/test_own.py",
            "a/test_twin.py",
            "b/test_twin.py",
            "tests/test_fast.py",
            "test_root.py",
        ]
        .map(str::to_owned);
        let known = known_times(&files, &times);
        let of = |file: usize| known.get(files[file].as_str()).copied();
        let expected =
            [Some(7.5), Some(9.0), Some(7.0), Some(6.0), None, None, Some(0.0), Some(3.0)];
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(of), expected);
    }

    #[test]
    fn files_that_reports_name_by_their_path_on_a_runner_have_its_time() {
        let times: BTreeMap<String, f64> = [
            ("/home/runner/work/app/app/web/a.spec.js", 3.0),
            ("/__w/app/app/web/a.spec.js", 5.0),
            ("D:\\a\\app\\app\\web\\b.spec.js", 2.0),
            ("/home/runner/work/app/app/web/own.js", 9.0),
            ("web/own.js", 1.0),
            ("packages/web/c.js", 4.0),
        ]
        .into_iter()
        .map(|(name, seconds)| (name.to_owned(), seconds))
        .collect();
        let files =
            ["./web/a.spec.js", "web/b.spec.js", "web/own.js", "web/c.js"].map(str::to_owned);
        let known = known_times(&files, &times);
        let of = |file: usize| known.get(files[file].as_str()).copied();
        assert_eq!([0, 1, 2, 3].map(of), [Some(5.0), Some(2.0), Some(1.0), None]);
    }

    #[test]
    fn file_that_is_listed_twice_is_in_one_shard() {
        let files = ["a.py", "b.py", "./a.py", "a.py"].map(str::to_owned);
        let shards = split(&files, &BTreeMap::from([("a.py", 3.0), ("./a.py", 3.0)]), 2);
        assert_eq!(shards.iter().map(|(files, _)| files.len()).sum::<usize>(), 2);
    }

    #[test]
    fn more_shards_than_files_and_no_times_still_give_every_file_a_shard() {
        let files = ["b".to_owned(), "a".to_owned()];
        let shards = split(&files, &BTreeMap::new(), 3);
        let counts: Vec<usize> = shards.iter().map(|(files, _)| files.len()).collect();
        assert_eq!(counts, [1, 1, 0]);
    }
}
