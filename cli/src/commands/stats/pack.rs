//! `crcr stats pack`: the test reports of a job as one zip, for an upload step.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crcr_artifacts::blocks::{BlobBlocks, GrownFiles};
use crcr_artifacts::collect::{CollectedFiles, FileEntry, FileQuery, LinkRule, collect};
use crcr_artifacts::digest::DigestAlgorithm;
use crcr_artifacts::zip::write::{self as zip, DeflateLevel, FileSet};
use crcr_cidata::job_manifest::{JobManifest, MANIFEST_FILE, MAX_LISTED_SUITES, ManifestReport};
use crcr_cidata::junit::{
    EarlierAttempts, JunitError, OtherFile, TestReport, has_extension, is_report_file,
    join_spread_attempts, of_one_class, unread_file,
};
use crcr_domain::ci_data::test_run::TestTally;
use tempfile::TempDir;

use crate::cli::stats::PackArgs;
use crate::commands::working_folder;
use crate::env_vars::{self, Env};
use crate::escape::escape_markdown;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;
use crate::render::plural;
use crate::runner::Runner;

/// The folder that every report is in, as readers of the packs expect.
const FOLDER: &str = "test-reports";
/// Where the packs of an attempt are in a bucket, as the input `s3-prefix` of the upload.
const S3_PREFIX: &str = "{owner}/{repo}/{run_id}/{run_attempt}/artifact";
/// File systems allow 255 for the name.
const MAX_SUFFIX_BYTES: usize = 150;
const BLOCK_BYTES: usize = 1 << 20;
/// Files that aren't packed; more are only counted.
const MAX_OTHERS_NAMED: usize = 50;

pub async fn run(args: &PackArgs, env: &Env, printer: &Printer) -> Outcome {
    let runner = Runner::new(env, printer);
    let job_id = job_id(args, env)?;
    if job_id.is_none() {
        let hint = "set `job-id` to `${{ job.check_run_id }}`";
        printer.warning("the reports can't be matched to this job: its id isn't known", Some(hint));
    }
    let name = pack_name(args, job_id, env);
    let FoundFiles { reports: found, others } = find(&args.path, env)?;
    warn_of_others(&others, printer);
    let mut manifest = JobManifest::new(
        job_id,
        env.get(env_vars::GITHUB_JOB).map(str::to_owned),
        args.job_status.clone(),
    );
    for pattern in args.expect.iter().flat_map(|text| text.lines()).map(str::trim) {
        if !pattern.is_empty() && find(&[pattern.to_owned()], env)?.reports.entries.is_empty() {
            manifest.missing.push(pattern.to_owned());
        }
    }
    let folder = args.output.clone().unwrap_or_else(|| runner.temp_dir());
    fs::create_dir_all(&folder).map_err(failed("the folder of the pack can't be made"))?;
    let staging = TempDir::with_prefix_in(".crcr-pack-", &folder).map_err(failed(NOT_GATHERED))?;
    let tally = gather(&found, staging.path(), &mut manifest, printer)?;
    warn(&manifest, args, printer);
    write_manifest(&manifest, staging.path()).map_err(failed(NOT_GATHERED))?;
    let path = folder.join(&name);
    write_zip(staging.path(), &manifest, &path).await?;
    let reports = plural(manifest.reports.len(), "report", "reports");
    let path = path.to_string_lossy();
    runner.set_outputs(&[
        ("path", &path),
        ("name", &name),
        ("prefix", S3_PREFIX),
        ("files", &manifest.reports.len().to_string()),
        ("tests", &tally.tests.to_string()),
        ("failed", &failed_tests(&tally).to_string()),
    ])?;
    let counts = super::counts(&tally);
    printer.line(&format!("packed {reports} ({counts}) in `{path}`"));
    runner.append_summary(&summary(&manifest, &reports, &counts))?;
    Ok(ExitCode::SUCCESS)
}

const NOT_GATHERED: &str = "the reports can't be gathered";

fn failed(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        Failure::unexpected("pack", what)
            .because(error)
            .hint("free some space on the runner's disk")
    }
}

/// Puts the reports into the folder and into the manifest. Returns what they add up to.
fn gather(
    found: &CollectedFiles,
    folder: &Path,
    manifest: &mut JobManifest,
    printer: &Printer,
) -> Result<TestTally, Failure> {
    let mut tally = TestTally::default();
    let packed = packed_paths(found);
    let attempts = EarlierAttempts::of(packed.iter().map(|(_, path)| path.as_str()));
    let sources: HashMap<_, _> =
        packed.iter().map(|(source, path)| (path.clone(), source.clone())).collect();
    for group in of_one_class(packed.into_iter(), |(_, path)| path.as_str()) {
        let mut reports = vec![];
        for (source, path) in &group {
            let mut report =
                TestReport::read(File::open(source).map_err(failed("a report can't be read"))?);
            let earlier = attempts.before(path).iter().filter_map(|path| sources.get(path));
            let earlier = earlier.filter_map(|path| TestReport::read(File::open(path).ok()?).ok());
            if let Ok(report) = &mut report {
                earlier.for_each(|earlier| report.add_earlier_attempt(earlier));
            }
            reports.push(report);
        }
        join_spread_attempts(reports.iter_mut().flatten());
        for ((source, path), report) in group.into_iter().zip(reports) {
            if let Some(other) = without_tests(&path, &report) {
                printer.notice(&format!("`{path}` isn't packed: {other}"));
                continue;
            }
            link_or_copy(&source, &folder.join(&path)).map_err(failed(NOT_GATHERED))?;
            let mut uncounted = TestTally::default();
            let tally = if attempts.contains(&path) { &mut uncounted } else { &mut tally };
            manifest.reports.push(describe(path, report, tally, printer));
        }
    }
    Ok(tally)
}

fn failed_tests(tally: &TestTally) -> u64 {
    tally.failures + tally.errors + tally.unfinished
}

fn job_id(args: &PackArgs, env: &Env) -> Result<Option<u64>, Failure> {
    let given = args.job_id.as_deref().or_else(|| env.get(env_vars::CRCR_CHECK_RUN_ID));
    given.map(str::trim).filter(|id| !id.is_empty()).map(str::parse).transpose().map_err(|error| {
        Failure::user("job-id", "`job-id` isn't the number of a job")
            .because(anyhow::Error::from(error))
            .hint("set it to `${{ job.check_run_id }}`")
    })
}

/// `test-reports-runattemptN-SUFFIX_JOBID.zip`: readers take the attempt and the job from it.
fn pack_name(args: &PackArgs, job_id: Option<u64>, env: &Env) -> String {
    let attempt = env.get(env_vars::GITHUB_RUN_ATTEMPT).unwrap_or("1");
    let suffix = match &args.suffix {
        Some(suffix) => suffix.clone(),
        None => {
            let matrix =
                env.get(env_vars::CRCR_MATRIX).and_then(|text| serde_json::from_str(text).ok());
            let job = env.get(env_vars::GITHUB_JOB).unwrap_or("job");
            [vec![job.to_owned()], matrix_values(matrix)].concat().join("-")
        }
    };
    // Both stores forbid some characters; `_` separates the job id.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let suffix: String = suffix
        .trim()
        .chars()
        .map(|c| if is_plain(c) { c } else { '-' })
        .take(MAX_SUFFIX_BYTES)
        .collect();
    let id = job_id.map(|id| format!("_{id}")).unwrap_or_default();
    format!("{FOLDER}-runattempt{attempt}-{suffix}{id}.zip")
}

fn matrix_values(matrix: Option<serde_json::Value>) -> Vec<String> {
    let Some(serde_json::Value::Object(matrix)) = matrix else { return vec![] };
    let values = matrix.into_iter().filter_map(|(_, value)| match value {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        serde_json::Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    });
    values.collect()
}

/// What a file is that has no tests at all, such as a report of coverage.
fn without_tests<'a>(
    path: &str,
    report: &'a Result<TestReport, JunitError>,
) -> Option<&'a OtherFile> {
    match report {
        Err(JunitError::OtherFile(other)) if other.has_no_tests() => Some(other),
        Err(JunitError::OtherFile(other))
            if !has_extension(path, "xml") && !has_extension(path, "trx") =>
        {
            Some(other)
        }
        _ => None,
    }
}

/// The files that patterns match.
struct FoundFiles {
    /// Those that can be reports.
    reports: CollectedFiles,
    /// The paths of others that look like reports, and why they aren't packed.
    others: Vec<(String, &'static str)>,
}

fn find(patterns: &[String], env: &Env) -> Result<FoundFiles, Failure> {
    let cwd = working_folder()?;
    let home = env.get(env_vars::HOME).map(Path::new);
    let query = FileQuery { patterns, cwd: &cwd, home, hidden: true, links: LinkRule::Follow };
    let mut found = collect(&query).map_err(|error| {
        Failure::user("report-glob", "the reports can't be found").because(error)
    })?;
    if let Some((path, why)) = found.unreadable.first() {
        let text = format!("`{}` can't be read", path.display().to_string().escape_debug());
        return Err(Failure::user("report-glob", text).because(anyhow::anyhow!("{why}")));
    }
    let mut others = vec![];
    found.entries.retain(|entry| {
        if is_report_file(&entry.path) {
            return true;
        }
        others.extend(unread_file(&entry.path).map(|why| (entry.path.clone(), why)));
        false
    });
    Ok(FoundFiles { reports: found, others })
}

fn warn_of_others(others: &[(String, &str)], printer: &Printer) {
    for (path, why) in others.iter().take(MAX_OTHERS_NAMED) {
        printer.warning(&format!("`{path}` isn't packed: {why}"), None);
    }
    if others.len() > MAX_OTHERS_NAMED {
        let more = others.len() - MAX_OTHERS_NAMED;
        printer.warning(&format!("{more} more files aren't packed"), None);
    }
}

/// Each file with its path in the zip, which begins with [`FOLDER`]: from the folder of that name on, or
/// where that would give two files one path, below a new folder of that name.
fn packed_paths(found: &CollectedFiles) -> Vec<(PathBuf, String)> {
    let entries = || found.entries.iter().map(|entry| entry.path.as_str());
    let inner = |path: &str| -> Option<String> {
        let whole = format!("{}/{path}", found.root.to_string_lossy().replace('\\', "/"));
        let at = whole.find(&format!("/{FOLDER}/"))?;
        Some(whole[at + 1..].to_owned())
    };
    let outer = |path: &str| format!("{FOLDER}/{path}");
    let shortened: Vec<_> =
        entries().map(|path| inner(path).unwrap_or_else(|| outer(path))).collect();
    let is_unique = shortened.iter().collect::<HashSet<_>>().len() == shortened.len();
    let packed = if is_unique { shortened } else { entries().map(outer).collect() };
    entries().map(|path| found.root.join(path)).zip(packed).collect()
}

fn link_or_copy(source: &Path, target: &Path) -> io::Result<()> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    // A link to a symbolic link would be one, too.
    let source = fs::canonicalize(source)?;
    fs::hard_link(&source, target).or_else(|_| fs::copy(&source, target).map(drop))
}

/// Also warns of what is wrong with the report.
fn describe(
    path: String,
    report: Result<TestReport, JunitError>,
    tally: &mut TestTally,
    printer: &Printer,
) -> ManifestReport {
    let names = |suites: &[std::sync::Arc<str>]| -> Vec<String> {
        suites
            .iter()
            .take(MAX_LISTED_SUITES)
            .map(|name| name.chars().take(1000).collect())
            .collect()
    };
    match report {
        Ok(report) => {
            tally.add(&report.tally);
            let truncated = report.summary.is_truncated;
            if truncated {
                let hint = "its tests crashed, or were stopped";
                printer.warning(&format!("`{path}`: the report ends early"), Some(hint));
            }
            ManifestReport {
                path,
                suites: names(&report.summary.suites),
                open_suites: names(&report.summary.open_suites),
                problem: truncated.then(|| "the report ends early".to_owned()),
            }
        }
        Err(error) => {
            let hint = match &error {
                JunitError::OtherFile(other) => other.hint(),
                JunitError::NoElement => Some("its tests crashed, or were stopped"),
                _ => None,
            };
            printer.warning(&format!("`{path}`: {error}"), hint);
            let problem = Some(error.to_string());
            ManifestReport { path, suites: vec![], open_suites: vec![], problem }
        }
    }
}

fn warn(manifest: &JobManifest, args: &PackArgs, printer: &Printer) {
    for pattern in &manifest.missing {
        let hint = "the tests may have died before they wrote it";
        printer.warning(&format!("no report at `{pattern}`, which is expected"), Some(hint));
    }
    if manifest.reports.is_empty() {
        let patterns = args.path.join("`, `");
        let hint = "the pack says so; correct `path` if there are reports elsewhere";
        printer.warning(&format!("no report at `{patterns}`"), Some(hint));
    }
}

fn write_manifest(manifest: &JobManifest, folder: &Path) -> io::Result<()> {
    let mut file = File::create(folder.join(MANIFEST_FILE))?;
    serde_json::to_writer_pretty(&mut file, manifest)?;
    file.write_all(b"\n")
}

/// Writes the manifest and the reports in `folder` to `path`, which appears when it is complete.
async fn write_zip(folder: &Path, manifest: &JobManifest, path: &Path) -> Result<(), Failure> {
    let failed = |error: anyhow::Error| {
        Failure::unexpected("pack", format!("`{}` can't be written", path.display()))
            .because(error)
            .hint("free some space on the runner's disk")
    };
    let reports = manifest.reports.iter().map(|report| report.path.as_str());
    let entries: io::Result<Vec<FileEntry>> = std::iter::once(MANIFEST_FILE)
        .chain(reports)
        .map(|path| {
            let size = fs::metadata(folder.join(path))?.len();
            Ok(FileEntry { path: path.to_owned(), size, mode: Some(0o644), link: None })
        })
        .collect();
    let entries = entries.map_err(|error| failed(error.into()))?;
    let parent = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(|error| failed(error.into()))?;
    let root = folder.to_owned();
    let mut blocks = BlobBlocks::start(BLOCK_BYTES, DigestAlgorithm::Sha256, move |sink| {
        let grown = GrownFiles::default();
        let files = FileSet { root: &root, entries: &entries, grown: &grown };
        zip::write(sink, files, DeflateLevel::Auto, false, &|_| {})
    });
    while let Some(block) = blocks.next().await {
        file.write_all(&block).map_err(|error| failed(error.into()))?;
    }
    blocks.finish().await.map_err(|error| failed(error.into()))?;
    file.persist(path).map_err(|error| failed(error.into()))?;
    Ok(())
}

fn summary(manifest: &JobManifest, reports: &str, counts: &str) -> String {
    let mut text = format!("### Test reports\n\n{reports}: {counts}\n");
    let broken = manifest
        .reports
        .iter()
        .filter_map(|report| Some((&report.path, report.problem.as_deref()?)));
    let missing = manifest.missing.iter().map(|pattern| (pattern, "expected, and not there"));
    for (what, problem) in broken.chain(missing).take(50) {
        text.push_str(&format!("\n- {}: {}", escape_markdown(what), escape_markdown(problem)));
    }
    text.push('\n');
    text
}
