//! Test reports → rows: where a report comes from, and what each row says about its test.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows, ReportSource, TestRunRow, TestedRun};
use crcr_domain::ci_data::test_run::{
    TestCase, TestDetail, TestDetailKind, TestResult, TestRowKind, TestTally,
};
use serde::Serialize;

use crate::test_names::{
    number_lengths, without_checkout, without_checkouts, without_line, without_random_parts,
};

/// Artifacts with reports, and those with what else is known of tests.
pub const ARTIFACT_KINDS: [&str; 2] = ["test-reports", "test-jsons"];
const REPORT_FOLDER: &str = "test-reports/";

/// What an artifact's name says. All of it may be made up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportArtifact {
    pub kind: &'static str,
    /// The same in both stores.
    pub label: Arc<str>,
    /// The label without the job's id.
    pub job: Arc<str>,
    pub job_id: Result<u64, JobIdCheck>,
}

impl ReportArtifact {
    /// Reads `{kind}-SUFFIX_JOBID.zip` and `{kind}-runattempt{N}-SUFFIX_JOBID.zip`. `None` if it is
    /// called otherwise, or belongs to another attempt.
    pub fn parse(name: &str, run_attempt: u32) -> Option<Self> {
        let (kind, attempt, suffix) = split_name(name)?;
        if attempt.is_some_and(|attempt| attempt != run_attempt) {
            return None;
        }
        let (job, job_id) = match suffix.rsplit_once('_') {
            Some((job, id)) => (job, id.parse().map_err(|_| JobIdCheck::Malformed)),
            None => (suffix, Err(JobIdCheck::Missing)),
        };
        Some(Self { kind, label: suffix.into(), job: job.into(), job_id })
    }

    /// The attempt that an artifact belongs to, if its name says so.
    pub fn attempt(name: &str) -> Option<u32> {
        split_name(name).and_then(|(_, attempt, _)| attempt)
    }

    /// The source of a report that isn't in an artifact.
    pub fn none() -> Self {
        Self { kind: "", label: "".into(), job: "unknown".into(), job_id: Err(JobIdCheck::Missing) }
    }
}

/// The kind of an artifact, its attempt, and the rest of its name.
fn split_name(name: &str) -> Option<(&'static str, Option<u32>, &str)> {
    let (kind, suffix) = ARTIFACT_KINDS
        .iter()
        .find_map(|kind| Some((*kind, name.strip_prefix(kind)?.strip_prefix('-')?)))?;
    let suffix = suffix.strip_suffix(".zip").unwrap_or(suffix);
    let of_attempt = suffix.strip_prefix("runattempt").and_then(|rest| {
        let (attempt, rest) = rest.split_once('-')?;
        Some((attempt.parse::<u32>().ok()?, rest))
    });
    Some(match of_attempt {
        Some((attempt, rest)) => (kind, Some(attempt), rest),
        None => (kind, None, suffix),
    })
}

/// The path of a report from its folder `test-reports` on: some stores have a folder around it.
pub fn report_path(path: &str) -> &str {
    let at = match path.starts_with(REPORT_FOLDER) {
        true => Some(0),
        false => path.find(&format!("/{REPORT_FOLDER}")).map(|at| at + 1),
    };
    at.map_or(path, |at| &path[at..])
}

/// The test file that was started: reports are in `test-reports/TOOL/TEST_FILE/`.
pub fn invoking_file(path: &str) -> Option<&str> {
    let mut parts = report_path(path).strip_prefix(REPORT_FOLDER)?.rsplit('/').skip(1);
    let file = parts.next()?;
    parts.next().map(|_| file)
}

fn hash(parts: &[&str]) -> u64 {
    finish(hashed(Context::new(&SHA256), parts))
}

fn hashed(mut context: Context, parts: &[&str]) -> Context {
    for part in parts {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    context
}

fn finish(context: Context) -> u64 {
    u64::from_be_bytes(context.finish().as_ref().first_chunk().copied().unwrap_or_default())
}

/// The beginning of the ids of a class's tests, which most tests share with the one before them.
///
/// Ids of one class begin with the same 16 bits. A report has few classes, so its rows are neighbours
/// in tables that are ordered by test, and a load writes few pages of them.
struct ClassOfTests {
    suite: Arc<str>,
    classname: Arc<str>,
    context: Context,
    bits: u64,
}

impl ClassOfTests {
    const BITS: u32 = 16;

    fn new(repository: &str, case: &TestCase) -> Self {
        let suite = without_checkout(&case.suite, repository);
        let class = without_line(without_checkout(&case.classname, repository));
        let class = [repository, suite, class];
        let context = hashed(Context::new(&SHA256), &class);
        let bits = finish(context.clone()) >> (64 - Self::BITS) << (64 - Self::BITS);
        let (suite, classname) = (Arc::clone(&case.suite), Arc::clone(&case.classname));
        Self { suite, classname, context, bits }
    }

    fn is_of(&self, case: &TestCase) -> bool {
        self.suite == case.suite && self.classname == case.classname
    }

    fn test_id(&self, name: &[&str]) -> u64 {
        self.bits | finish(hashed(self.context.clone(), name)) >> Self::BITS
    }
}

/// The number of the report at `path` of an artifact.
pub fn report_id(run: &TestedRun, artifact: &str, path: &str) -> u64 {
    let repository = run.repository.to_ascii_lowercase();
    let (id, attempt) = (run.run_id.to_string(), run.run_attempt.to_string());
    hash(&[&repository, &id, &attempt, artifact, report_path(path)])
}

/// The number of another report that has the number `id` by its path, too; `place` tells the two apart.
pub fn distinct_report_id(id: u64, place: &str) -> u64 {
    hash(&[&id.to_string(), place])
}

/// Rows of tests. A test has the same id wherever and whenever it runs.
pub fn rows(repository: &str, cases: Vec<TestCase>) -> Vec<TestRunRow> {
    let repository = repository.to_ascii_lowercase();
    let numbers = number_lengths(&cases);
    let mut ids = HashSet::with_capacity(cases.len());
    // How many tests have an identity: 100,000 of one, each counted from the first, would take hours.
    let mut last_numbers: HashMap<u64, u32> = HashMap::new();
    let mut class = None::<ClassOfTests>;
    let row = |(at, case): (usize, TestCase)| {
        let class = match class.take_if(|class| class.is_of(&case)) {
            Some(known) => class.insert(known),
            None => class.insert(ClassOfTests::new(&repository, &case)),
        };
        // What isn't a test must not share the id of one.
        let kind = if case.kind == TestRowKind::Test { "" } else { case.kind.as_str() };
        let variant = case.variant.as_deref().unwrap_or_default();
        let number = numbers.get(at).copied().unwrap_or_default();
        let plain_name = without_checkouts(&case.name[number..], &repository);
        let stable_name = without_random_parts(&plain_name);
        let name = [&*stable_name, kind, variant];
        // Without a variant it is what it was before there were any.
        let name = &name[..if variant.is_empty() { 2 } else { 3 }];
        let mut id = class.test_id(name);
        // Several tests of a report can have one identity, such as those without a name.
        if !ids.insert(id) {
            let number = last_numbers.entry(id).or_insert(1_u32);
            while !ids.insert(id) {
                *number += 1;
                id = class.test_id(&[name, &[&*number.to_string()]].concat());
            }
        }
        TestRunRow { test_id: id, case }
    };
    cases.into_iter().enumerate().map(row).collect()
}

/// A row for what left no result behind.
pub fn lost_case(kind: TestRowKind, suite: Arc<str>, name: String, why: String) -> TestCase {
    let detail =
        TestDetail { kind: TestDetailKind::Error, type_name: None, message: Some(why), text: None };
    TestCase { kind, suite, details: vec![detail], ..TestCase::new(name, TestResult::Error) }
}

/// Rows of one file and class of a report, added up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SummaryRow<'a> {
    pub file: &'a str,
    pub classname: &'a str,
    #[serde(flatten)]
    pub tally: TestTally,
    /// How long it took, in seconds.
    pub time: f64,
}

/// In the order in which files and classes appear.
pub fn summaries(report: &ReportRows) -> Vec<SummaryRow<'_>> {
    let mut positions: HashMap<(&str, &str), usize> = HashMap::new();
    let mut rows: Vec<SummaryRow<'_>> = vec![];
    for TestRunRow { case, .. } in &report.rows {
        let (file, classname) = (report.source.sharded_file(case), &*case.classname);
        let at = *positions.entry((file, classname)).or_insert_with(|| {
            let tally = TestTally::default();
            rows.push(SummaryRow { file, classname, tally, time: 0.0 });
            rows.len() - 1
        });
        rows[at].tally.count(case);
        rows[at].time += case.time.unwrap_or_default();
    }
    rows
}

#[derive(Serialize)]
struct RunFields<'a> {
    repository: &'a str,
    workflow_id: Option<u64>,
    workflow: Option<&'a str>,
    run_id: u64,
    run_attempt: u32,
    head_branch: Option<&'a str>,
    head_sha: Option<&'a str>,
    on_default_branch: bool,
    started_at: String,
    report_id: String,
    job_id: Option<u64>,
    job_id_check: JobIdCheck,
    job: &'a str,
    artifact: &'a str,
    path: &'a str,
    invoking_file: Option<&'a str>,
}

#[derive(Serialize)]
struct CaseFields<'a> {
    test_id: HexId,
    kind: TestRowKind,
    suite: &'a str,
    classname: &'a str,
    name: &'a str,
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a str>,
    result: TestResult,
    time: Option<f64>,
    attempts: u32,
    flaky: bool,
    #[serde(skip_serializing_if = "no_details")]
    failure: Details<'a>,
    #[serde(skip_serializing_if = "no_details")]
    error: Details<'a>,
    #[serde(skip_serializing_if = "no_details")]
    skipped: Details<'a>,
    #[serde(skip_serializing_if = "no_details")]
    rerun: Details<'a>,
}

/// Written as 16 hexadecimal digits: other programs round numbers of this size.
struct HexId(u64);

impl Serialize for HexId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", self.0))
    }
}

/// The details of one kind, as a list.
struct Details<'a>(&'a [TestDetail], TestDetailKind);

fn no_details(details: &Details<'_>) -> bool {
    details.0.iter().all(|detail| detail.kind != details.1)
}

impl Serialize for Details<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Texts<'a> {
            #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
            type_name: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            message: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            text: Option<&'a str>,
        }
        let details = self.0.iter().filter(|detail| detail.kind == self.1);
        serializer.collect_seq(details.map(|detail| Texts {
            type_name: detail.type_name.as_deref(),
            message: detail.message.as_deref(),
            text: detail.text.as_deref(),
        }))
    }
}

/// The lines of a report's rows in NDJSON. What all rows of a report share is written once and
/// copied, which takes half the time.
pub struct RowLines {
    /// An object without its closing brace.
    shared: Vec<u8>,
}

impl RowLines {
    pub fn new(run: &TestedRun, source: &ReportSource) -> Self {
        let fields = RunFields {
            repository: &run.repository,
            workflow_id: run.workflow_id,
            workflow: run.workflow.as_deref(),
            run_id: run.run_id,
            run_attempt: run.run_attempt,
            head_branch: run.head_branch.as_deref(),
            head_sha: run.head_sha.as_deref(),
            on_default_branch: run.on_default_branch,
            started_at: run.started_at.to_string(),
            report_id: format!("{:016x}", source.report_id),
            job_id: source.job_id,
            job_id_check: source.job_id_check,
            job: &source.job,
            artifact: &source.artifact,
            path: &source.path,
            invoking_file: source.invoking_file.as_deref(),
        };
        let mut shared = serde_json::to_vec(&fields).expect("the fields are always JSON");
        shared.pop();
        Self { shared }
    }

    /// A line of `test_run` or `failed_test_runs`, added to `lines`.
    pub fn test_run(&self, row: &TestRunRow, lines: &mut Vec<u8>) -> io::Result<()> {
        let TestRunRow { test_id, case } = row;
        let details = |kind| Details(&case.details, kind);
        let fields = CaseFields {
            test_id: HexId(*test_id),
            kind: case.kind,
            suite: &case.suite,
            classname: &case.classname,
            name: &case.name,
            file: case.file.as_deref(),
            variant: case.variant.as_deref(),
            result: case.result,
            time: case.time,
            attempts: case.attempts,
            flaky: case.flaky,
            failure: details(TestDetailKind::Failure),
            error: details(TestDetailKind::Error),
            skipped: details(TestDetailKind::Skipped),
            rerun: details(TestDetailKind::Rerun),
        };
        self.line(&fields, lines)
    }

    /// A line of `test_run_summary`.
    pub fn summary(&self, row: &SummaryRow<'_>, lines: &mut Vec<u8>) -> io::Result<()> {
        self.line(row, lines)
    }

    fn line(&self, fields: &impl Serialize, lines: &mut Vec<u8>) -> io::Result<()> {
        lines.write_all(&self.shared)?;
        let at = lines.len();
        serde_json::to_writer(&mut *lines, fields)?;
        lines[at] = b',';
        lines.push(b'\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_stores_give_one_label_and_the_job_of_the_last_part() {
        let parse = |name| ReportArtifact::parse(name, 2);
        let expected = ReportArtifact {
            kind: "test-reports",
            label: "test-default-1-5-gpu_x_77".into(),
            job: "test-default-1-5-gpu_x".into(),
            job_id: Ok(77),
        };
        assert_eq!(parse("test-reports-test-default-1-5-gpu_x_77.zip"), Some(expected.clone()));
        let github = "test-reports-runattempt2-test-default-1-5-gpu_x_77.zip";
        assert_eq!(parse(github), Some(expected.clone()));
        assert_eq!(parse(github.trim_end_matches(".zip")), Some(expected));
        for (name, check) in [
            ("test-reports-linux.zip", JobIdCheck::Missing),
            ("test-reports-linux_.zip", JobIdCheck::Malformed),
            ("test-reports-linux_-1.zip", JobIdCheck::Malformed),
            ("test-reports-linux_99999999999999999999.zip", JobIdCheck::Malformed),
        ] {
            assert_eq!(parse(name).unwrap().job_id, Err(check), "{name}");
        }
        for name in ["logs-a_1.zip", "test-reports.zip", "test-reports-runattempt1-a_1.zip", ""] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn layouts_of_both_stores_give_one_path_and_the_file_that_was_started() {
        for path in [
            "test/test-reports/python-pytest/test_ops/test_ops-1.xml",
            "test-reports/python-pytest/test_ops/test_ops-1.xml",
        ] {
            assert_eq!(report_path(path), "test-reports/python-pytest/test_ops/test_ops-1.xml");
            assert_eq!(invoking_file(path), Some("test_ops"));
        }
        for path in ["test-reports/a.xml", "test-reports/pytest/a.xml", "build/x/y/a.xml", "a.xml"]
        {
            assert_eq!(invoking_file(path), None, "{path}");
        }
        assert_eq!(report_path("my-test-reports/a.xml"), "my-test-reports/a.xml");
    }

    #[test]
    fn test_ids_do_not_depend_on_case_of_the_repository_and_never_collide_in_a_report() {
        let case = |kind, name: &str| lost_case(kind, "s".into(), name.to_owned(), String::new());
        let ids = |repository: &str| -> Vec<u64> {
            let cases = vec![
                case(TestRowKind::Test, "a"),
                case(TestRowKind::Crashed, "a"),
                case(TestRowKind::Test, ""),
                case(TestRowKind::Test, ""),
                case(TestRowKind::Test, ""),
            ];
            rows(repository, cases).into_iter().map(|row| row.test_id).collect()
        };
        let ids_of = |names: &[&str]| -> Vec<u64> {
            let cases = names.iter().map(|name| case(TestRowKind::Test, name)).collect();
            rows("acme/widgets", cases).into_iter().map(|row| row.test_id).collect()
        };
        assert_eq!(ids("Acme/Widgets"), ids("acme/widgets"));
        assert_ne!(ids("acme/other"), ids("acme/widgets"));
        assert_eq!(ids("acme/other").into_iter().collect::<HashSet<_>>().len(), 5);
        assert_eq!(
            ids_of(&["#1 adds", "#2 subtracts"])[1],
            ids_of(&["#1 is new", "#2 adds", "#3 subtracts"])[2]
        );
        assert_eq!(ids_of(&["a (x at 0x7f4296f7d550)"]), ids_of(&["a (x at 0x7f42970c8550)"]));
        let id_of_path = |folder: &str| {
            let path = format!("{folder}/widgets/widgets/a.js");
            let mut case = case(TestRowKind::Test, &path);
            (case.suite, case.classname) = (path.as_str().into(), path.as_str().into());
            rows("acme/widgets", vec![case])[0].test_id
        };
        assert_eq!(id_of_path("/home/runner/work"), id_of_path("/opt/runner-3/_work"));
        let id_in_class = |class: &str, name: &str| {
            let mut case = case(TestRowKind::Test, name);
            case.classname = class.into();
            rows("acme/widgets", vec![case])[0].test_id
        };
        assert_eq!(id_in_class("a_spec.lua:3", "a adds"), id_in_class("a_spec.lua:9", "a adds"));
        assert_eq!(id_in_class("a", "test_0001_adds"), id_in_class("a", "test_0007_adds"));
        // Takes hours if each is counted from the first.
        let many = ids_of(&vec!["a"; 100_000]);
        assert_eq!(many.into_iter().collect::<HashSet<_>>().len(), 100_000);
        // Stored ids stay valid.
        assert_eq!(format!("{:016x}", ids("acme/widgets")[0]), "29476685b2f4196f");
    }
}
