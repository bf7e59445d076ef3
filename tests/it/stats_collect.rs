//! `crcr stats collect`: a run's reports as rows, whatever a fork has left in them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use crcr_domain::ci_data::test_row::{JobIdCheck, ReportRows};
use crcr_domain::ci_data::test_run::TestRowKind;
use crcr_results::test_runs::{FileTimesQuery, TestQuery, TestRanking};
use crcr_results::{Results, ResultsUrl};
use crcr_standin::runs::{Job, Run};
use crcr_standin::traffic::Fault;
use crcr_store::StoreRole;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::artifact_download::World;
use crate::support::{Crcr, Ran};

const IDENTITY: [&str; 6] = ["--repo", "acme/upstream", "--run-id", "4242", "--run-attempt", "1"];

/// A report of `tests` tests, of which the second fails and the third is flaky.
pub(crate) fn report(suite: &str, tests: usize) -> String {
    let mut xml = format!("<testsuites><testsuite name=\"{suite}\">");
    for n in 0..tests {
        let body = match n {
            1 => "<failure message=\"1 != 2\">trace &lt;b&gt;</failure>",
            2 => "<flakyFailure message=\"once\"/>",
            _ => "",
        };
        xml.push_str(&format!(
            "<testcase name=\"test_{n}\" classname=\"tests.{suite}\" time=\"{n}.5\">{body}</testcase>"
        ));
    }
    xml + "</testsuite></testsuites>"
}

pub fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(vec![]));
    for (name, content) in files {
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated);
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

pub fn offline(folder: &Path, args: &[&str]) -> Crcr {
    let start = Crcr::new(&["stats", "collect", "--dir"]).arg(folder.to_str().unwrap());
    IDENTITY.iter().chain(args).fold(start, |run, arg| run.arg(arg))
}

/// The end of run 4242 as a step of another workflow hears of it.
fn collect(world: &World, args: &[&str]) -> Crcr {
    collect_run(world, 4242, args)
}

fn collect_run(world: &World, id: u64, args: &[&str]) -> Crcr {
    let run = world.github.state().runs.get(id).unwrap();
    let payload = json!({
        "action": "completed",
        "repository": { "full_name": "acme/upstream", "default_branch": "main" },
        "workflow_run": run.api(world.github.state().origin()),
    });
    let step = Crcr::step(&["stats", "collect"], "workflow_run", &payload)
        .env("GITHUB_API_URL", world.github.state().origin())
        .env("GITHUB_TOKEN", "ghs_token");
    args.iter().fold(step, |step, arg| step.arg(arg))
}

fn job(world: &World, name: &str, conclusion: &str) -> Job {
    let runs = &world.github.state().runs;
    let mut job = runs.add_job(4242, name);
    job.conclusion = Some(conclusion.to_owned());
    runs.update_job(&job);
    job
}

pub fn parsed(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.report()))
}

pub fn reasons(json: &Value) -> BTreeMap<String, String> {
    let files = json["quarantined"].as_array().unwrap().iter();
    let text = |file: &Value, key: &str| file[key].as_str().unwrap().to_owned();
    files.map(|file| (text(file, "file"), text(file, "reason"))).collect()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

fn open(path: &Path) -> Arc<dyn Results> {
    let url = ResultsUrl::Sqlite(path.to_owned());
    block_on(crcr_results::open(&url, StoreRole::Tool)).unwrap()
}

pub fn rows(path: &Path) -> Vec<ReportRows> {
    let results = open(path);
    block_on(results.test_runs("acme/upstream", 4242, 1)).unwrap()
}

/// The objects of NDJSON as lines, by the start of their keys.
fn lines(folder: &Path, kind: &str) -> Vec<Value> {
    lines_of_run(4242, folder, kind)
}

fn lines_of_run(id: u64, folder: &Path, kind: &str) -> Vec<Value> {
    let run = format!("owner=acme/repo=upstream/run={id}/attempt=1");
    let folder = folder.join(kind).join(run);
    let Ok(files) = fs::read_dir(folder) else { return vec![] };
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut text = String::new();
    for file in files {
        let file = fs::File::open(file).unwrap();
        zstd::Decoder::new(file).unwrap().read_to_string(&mut text).unwrap();
    }
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn both_stores_and_layouts_give_rows_whose_jobs_are_checked_against_the_run() {
    let world = World::new(Run::fork());
    let linux = job(&world, "linux / test (default, 1, 2)", "failure");
    let mac = job(&world, "mac", "success");
    let (in_s3, at_github) = (report("alpha", 4), report("beta", 3));
    let name = format!("test-reports-test-default-1-2_{}.zip", linux.check_run_id);
    world.s3(
        &format!("acme/upstream/4242/1/artifact/{name}"),
        &zip(&[("test/test-reports/python-pytest/test_a/a.xml", in_s3.as_bytes())]),
        &[],
    );
    // The same job's reports at GitHub are left out, and those of another attempt.
    let github = |suffix: &str, attempt: u32, xml: &str| {
        let name = format!("test-reports-runattempt{attempt}-{suffix}.zip");
        let files = [("test-reports/python-pytest/test_b/b.xml", xml.as_bytes())];
        world.github(&name, "application/zip", &zip(&files));
    };
    github(&format!("test-default-1-2_{}", linux.check_run_id), 1, &at_github);
    github(&format!("mac_{}", mac.check_run_id), 1, &at_github);
    github("stranger_123456", 1, &report("gamma", 1));
    github("nobody", 1, &report("delta", 1));
    github(&format!("mac_{}", mac.check_run_id), 2, &report("epsilon", 9));
    let step = collect(&world, &["--results", "sqlite:r.db", "--rows", "file:rows"]);
    let ran = world.signed(step).run().expect_code(0);
    let found = rows(&ran.path("r.db"));
    let mut sources: Vec<_> = found
        .iter()
        .map(|report| {
            let source = &report.source;
            (&*source.job, source.job_id, source.job_id_check, report.rows.len())
        })
        .collect();
    sources.sort_by_key(|source| source.0);
    assert_eq!(
        sources,
        [
            ("linux / test (default, 1, 2)", Some(linux.check_run_id), JobIdCheck::Verified, 4),
            ("mac", Some(mac.check_run_id), JobIdCheck::Verified, 3),
            ("nobody", None, JobIdCheck::Missing, 1),
            ("stranger", None, JobIdCheck::OtherRun, 1),
        ]
    );
    let linux = found.iter().find(|report| report.source.job.starts_with("linux")).unwrap();
    assert_eq!(linux.source.path, "test-reports/python-pytest/test_a/a.xml");
    assert_eq!(linux.source.invoking_file.as_deref(), Some("test_a"));
    // What GitHub says, not what a report could say; a fork's results aren't the default branch's.
    let line = &lines(&ran.path("rows"), "test_run")[0];
    for (key, expected) in [
        ("repository", json!("acme/upstream")),
        ("run_id", json!(4242)),
        ("workflow_id", json!(11)),
        ("head_branch", json!("topic")),
        ("on_default_branch", json!(false)),
    ] {
        assert_eq!(line[key], expected, "{line}");
    }
    assert_eq!(lines(&ran.path("rows"), "test_run").len(), 9);
    assert_eq!(lines(&ran.path("rows"), "failed_test_runs").len(), 2);
    let summaries = lines(&ran.path("rows"), "test_run_summary");
    assert_eq!(summaries.len(), 4);
    let alpha = summaries.iter().find(|row| row["classname"] == "tests.alpha").unwrap();
    assert_eq!(
        (&alpha["tests"], &alpha["failures"], &alpha["time"]),
        (&json!(4), &json!(1), &json!(8.0))
    );
    assert_eq!(
        (&*ran.outputs["tests"], &*ran.outputs["failed"], &*ran.outputs["rows"]),
        ("9", "2", "9")
    );
    insta::assert_snapshot!("collect_summary", ran.summary);
}

/// Each of them has tested another pull request, and all are of one commit of the default branch.
#[test]
fn runs_that_may_build_anybodys_code_are_not_the_default_branchs_and_flaky_for_each_other() {
    for (event, is_own) in [
        ("push", true),
        ("repository_dispatch", false),
        ("workflow_run", false),
        ("issue_comment", false),
    ] {
        let target = tempfile::tempdir().unwrap();
        let results = format!("sqlite:{}", target.path().join("r.db").display());
        for (id, body) in [(4242, ""), (4243, "<failure/>")] {
            let created_at = Timestamp::now();
            let world = World::new(Run { id, event: event.to_owned(), created_at, ..Run::push() });
            let case = format!("<testcase classname='c' name='t'>{body}</testcase>");
            let xml = format!("<testsuite name='s'>{case}</testsuite>");
            let zip = zip(&[("test-reports/a.xml", xml.as_bytes())]);
            world.github("test-reports-runattempt1-linux.zip", "application/zip", &zip);
            let rows = format!("file:{}", target.path().join(id.to_string()).display());
            let args = ["--results", &results, "--rows", &rows];
            collect_run(&world, id, &args).run().expect_code(0);
            let row = &lines_of_run(id, &target.path().join(id.to_string()), "test_run")[0];
            assert_eq!(row["on_default_branch"], json!(is_own), "{event}: {row}");
            assert_eq!(
                row["head_sha"].as_str().is_some_and(|sha| !sha.is_empty()),
                is_own,
                "{row}"
            );
        }
        let args = ["stats", "flaky", "--repo", "acme/upstream", "--all-branches"];
        let ran = Crcr::new(&args).env("CRCR_RESULTS", &results).run().expect_code(0);
        assert_eq!(!ran.stdout.is_empty(), is_own, "{event}: {}", ran.report());
    }
}

#[test]
fn a_failed_job_whose_reports_have_no_failure_is_a_row() {
    let world = World::new(Run::push());
    let (crashed, green) = (job(&world, "gpu", "failure"), job(&world, "cpu", "success"));
    for (job, tests) in [(&crashed, 1), (&green, 1)] {
        let name = format!("test-reports-runattempt1-{}_{}.zip", job.name, job.check_run_id);
        world.github(
            &name,
            "application/zip",
            &zip(&[("test-reports/a.xml", report("a", tests).as_bytes())]),
        );
    }
    job(&world, "lint", "failure");
    let ran = collect(&world, &["--results", "sqlite:r.db"]).run().expect_code(0);
    let lost: Vec<_> = rows(&ran.path("r.db"))
        .into_iter()
        .flat_map(|report| report.rows)
        .filter(|row| row.case.kind == TestRowKind::NoReport)
        .map(|row| row.case.name)
        .collect();
    assert_eq!(lost.len(), 2, "{lost:?}");
    assert!(lost.contains(&"gpu".to_owned()) && lost.contains(&"lint".to_owned()), "{lost:?}");
    assert!(ran.summary.contains("Crashed, or without a report (2)"), "{}", ran.summary);
    let rerun = Run { attempt: 2, ..Run::push() };
    world.github.state().runs.add(rerun);
    let ran = collect(&world, &["--results", "sqlite:r.db"]).run().expect_code(0);
    assert!(ran.stderr.contains("no test reports"), "{}", ran.report());
}

/// Such a row would stay beside the failures that are read later, or were read before.
#[test]
fn failed_job_whose_report_cannot_be_read_has_no_row_that_says_there_is_none() {
    let world = World::new(Run::push());
    let red = job(&world, "gpu", "failure");
    let name = format!("test-reports-runattempt1-gpu_{}.zip", red.check_run_id);
    let xml = report("a", 2);
    world.github(&name, "application/zip", &zip(&[("test-reports/a.xml", xml.as_bytes())]));
    let target = tempfile::tempdir().unwrap();
    let database = target.path().join("r.db");
    let results = format!("sqlite:{}", database.display());
    let collected = |code| {
        let ran = collect(&world, &["--results", &results]).run().expect_code(code);
        let kinds = rows(&database).into_iter().flat_map(|report| report.rows);
        (ran, kinds.map(|row| row.case.kind).collect::<Vec<_>>())
    };
    let state = world.github.state();
    let body = json!({ "message": "Resource not accessible by integration" }).to_string();
    let refused = Fault::Answer { status: StatusCode::FORBIDDEN, retry_after: None, body };
    state.traffic.fail("artifact-zip", 1, refused);
    assert!(collected(2).1.is_empty());
    let tests = [TestRowKind::Test; 2];
    assert_eq!(collected(0).1, tests);
    state.clock.advance(Duration::from_secs(91 * 24 * 3600));
    let (ran, kinds) = collected(0);
    assert_eq!(kinds, tests);
    assert!(ran.stderr.contains(&format!("`{name}` has expired")), "{}", ran.report());
}

#[test]
fn a_suite_without_an_end_and_a_report_that_is_missing_are_rows() {
    let folder = tempfile::tempdir().unwrap();
    let whole = report("a", 5);
    let cut = &whole[..whole.find("test_4").unwrap()];
    let manifest = json!({
        "version": 1, "job_id": 7, "job": "test", "job_status": "failure", "reports": [],
        "missing": ["test-reports/slow/*.xml"],
    });
    let pack = zip(&[
        ("crcr-job.json", manifest.to_string().as_bytes()),
        ("test-reports/a.xml", cut.as_bytes()),
    ]);
    fs::write(folder.path().join("test-reports-runattempt1-gpu_7.zip"), pack).unwrap();
    let ran = offline(folder.path(), &["--results", "sqlite:r.db"]).run().expect_code(0);
    let crashed: Vec<_> = rows(&ran.path("r.db"))
        .into_iter()
        .filter(|report| {
            assert_eq!(report.source.job_id, Some(7));
            assert_eq!(report.source.job_id_check, JobIdCheck::Unverified);
            true
        })
        .flat_map(|report| report.rows)
        .filter(|row| row.case.kind == TestRowKind::Crashed)
        .map(|row| (row.case.suite.to_string(), row.case.name))
        .collect();
    assert_eq!(crashed.len(), 2, "{crashed:?}");
    assert!(crashed.contains(&("a".to_owned(), "test-reports/a.xml".to_owned())), "{crashed:?}");
    assert!(
        crashed.contains(&(String::new(), "test-reports/slow/*.xml".to_owned())),
        "{crashed:?}"
    );
}

#[test]
fn report_of_an_earlier_run_is_quarantined() {
    let world = World::new(Run::push());
    let mut job = job(&world, "gpu", "success");
    job.started_at = "2026-11-20T12:00:00Z".parse().unwrap();
    world.github.state().runs.update_job(&job);
    let report = |day: u32| {
        format!(
            "<testsuite name=\"s\" timestamp=\"2026-11-{day}T11:00:00\"><testcase name=\"t\" classname=\"c\" time=\"1\"/></testsuite>"
        )
    };
    let name = format!("test-reports-runattempt1-gpu_{}.zip", job.check_run_id);
    let files = [("old.xml", report(19)), ("zone.xml", report(20))];
    let files: Vec<_> = files.iter().map(|(name, xml)| (*name, xml.as_bytes())).collect();
    world.github(&name, "application/zip", &zip(&files));
    let ran = collect(&world, &["--format", "json"]).run().expect_code(0);
    let json = parsed(&ran);
    assert_eq!(json["files"], 1);
    let reasons = reasons(&json);
    assert!(
        reasons[&format!("{name}/old.xml")].starts_with("stale: a suite ran at"),
        "{reasons:?}"
    );
}

#[test]
fn hostile_files_are_quarantined_with_their_reasons_and_the_rest_counts() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let good = report("good", 2);
    put("good.xml", good.as_bytes());
    put("bomb.zip", &zip(&[("a.xml", &vec![b' '; 64 << 20])]));
    let inner = zip(&[("b.xml", &vec![b' '; 64 << 20])]);
    put("nested-bomb.zip", &zip(&[("inner.zip", &inner), ("ok.xml", report("ok", 1).as_bytes())]));
    put(
        "names.zip",
        &zip(&[
            ("../../escape.xml", good.as_bytes()),
            ("/etc/root.xml", good.as_bytes()),
            ("C:\\windows.xml", good.as_bytes()),
            ("fine.xml", report("fine", 1).as_bytes()),
        ]),
    );
    let mut damaged = zip(&[("a.xml", good.as_bytes()), ("b.xml", report("b", 1).as_bytes())]);
    damaged[60] ^= 0xff;
    put("damaged.zip", &damaged);
    put("no.zip", b"PK\x03\x04 not really");
    put("html.xml", b"<html><body>503</body></html>");
    put("binary.xml", &[0, 159, 146, 150]);
    put("empty.xml", b"");
    put("entities.xml", b"<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b SYSTEM \"file:///etc/passwd\">]><testsuite name=\"e\"><testcase name=\"&b;\" classname=\"c\" time=\"1\"/></testsuite>");
    #[cfg(unix)]
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link.xml")).unwrap();
    let ran = offline(folder.path(), &["--format", "json", "--results", "sqlite:r.db"]).run();
    let ran = ran.expect_code(0);
    let json = parsed(&ran);
    let reasons = reasons(&json);
    for (file, reason) in [
        ("bomb.zip", "cap `ratio`"),
        ("nested-bomb.zip/inner.zip", "cap `ratio`"),
        ("names.zip/../../escape.xml", "leaves the artifact"),
        ("names.zip//etc/root.xml", "absolute"),
        ("names.zip/C:\\windows.xml", "the path"),
        ("no.zip", "zip"),
        ("html.xml", "a page in HTML"),
        ("binary.xml", ""),
        ("empty.xml", ""),
    ] {
        let found = reasons.get(file).unwrap_or_else(|| panic!("{file} in {reasons:?}"));
        assert!(found.contains(reason), "{file}: {found}");
    }
    assert!(reasons.keys().any(|file| file.starts_with("damaged.zip")), "{reasons:?}");
    assert_eq!(reasons.contains_key("link.xml"), cfg!(unix), "{reasons:?}");
    let mut suites: Vec<_> = rows(&ran.path("r.db"))
        .iter()
        .flat_map(|report| &report.rows)
        .map(|row| row.case.suite.to_string())
        .collect();
    suites.sort();
    suites.dedup();
    assert_eq!(suites, ["b", "e", "fine", "good", "ok"]);
    // Nothing is written by a name from a zip.
    assert!(!ran.path("../../escape.xml").exists() && !ran.path("fine.xml").exists());
    let strict = offline(folder.path(), &["--strict", "--dry-run"]).run().expect_code(1);
    assert!(strict.stderr.contains("isn't counted"), "{}", strict.report());
    assert!(!strict.path("r.db").exists());
}

#[test]
fn artifact_of_a_hundred_thousand_files_is_read_and_one_of_too_many_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let many = |count: usize| {
        let mut writer = zip::ZipWriter::new(Cursor::new(vec![]));
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored);
        for n in 0..count {
            writer.start_file(format!("{n}.xml"), options).unwrap();
            if n % 1000 == 0 {
                writer.write_all(report(&format!("s{n}"), 1).as_bytes()).unwrap();
            }
        }
        writer.finish().unwrap().into_inner()
    };
    fs::write(folder.path().join("many.zip"), many(100_000)).unwrap();
    fs::write(folder.path().join("more.zip"), many(200_001)).unwrap();
    let ran = offline(folder.path(), &["--format", "json"]).run().expect_code(0);
    let json = parsed(&ran);
    assert_eq!((&json["files"], &json["tests"]), (&json!(100), &json!(100)));
    assert!(reasons(&json)["many.zip"].starts_with("99800 more files"));
    assert!(reasons(&json)["more.zip"].contains("cap `members`"));
}

#[test]
fn collecting_again_or_after_a_kill_anywhere_gives_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..12 {
        let path = folder.path().join(format!("test-reports-runattempt1-job{n}_{n}.zip"));
        let files = [
            ("test-reports/a.xml", report(&format!("a{n}"), 700)),
            ("test-reports/b.xml", report("b", 300)),
        ];
        let files: Vec<_> = files.iter().map(|(name, xml)| (*name, xml.as_bytes())).collect();
        fs::write(path, zip(&files)).unwrap();
    }
    let target = tempfile::tempdir().unwrap();
    let args = |name: &str| {
        let results = format!("sqlite:{}", target.path().join(format!("{name}.db")).display());
        let rows = format!("file:{}", target.path().join(name).display());
        ["--results".to_owned(), results, "--rows".to_owned(), rows]
    };
    let command = |name: &str| {
        let args = args(name);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let started = ["--started-at", "2026-11-20T12:00:00Z", "--on-default-branch"];
        offline(folder.path(), &[&args[..], &started].concat())
    };
    let state = |name: &str| {
        let path = target.path().join(format!("{name}.db"));
        let results = open(&path);
        let day = crcr_results::retention::day_of("2026-11-20T12:00:00Z".parse().unwrap());
        let query = |ranking| TestQuery {
            repository: "acme/upstream".to_owned(),
            ranking,
            days: (day, day),
            job: None,
            all_branches: false,
            search: None,
            offset: 0,
            limit: 100_000,
        };
        let times = FileTimesQuery {
            repository: "acme/upstream".to_owned(),
            days: (day, day),
            job: None,
            all_branches: false,
        };
        block_on(async {
            let stats = results.test_stats(&query(TestRanking::Slow)).await.unwrap();
            assert_eq!(stats.len(), 12 * 700 + 300);
            let flaky = results.test_stats(&query(TestRanking::Flaky)).await.unwrap();
            let times = results.file_times(&times).await.unwrap();
            let kinds = ["test_run", "failed_test_runs", "test_run_summary"];
            let files = kinds.map(|kind| lines(&target.path().join(name), kind));
            assert_eq!(files[0].len(), 12_000);
            (stats, flaky, times, files)
        })
    };
    command("whole").run().expect_code(0);
    let size = |name: &str| -> u64 {
        let files = ["db", "db-wal"].map(|kind| target.path().join(format!("{name}.{kind}")));
        files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum()
    };
    let whole = size("whole");
    let expected = (rows(&target.path().join("whole.db")), state("whole"));
    command("whole").run().expect_code(0);
    assert!((rows(&target.path().join("whole.db")), state("whole")) == expected, "twice");
    let mut kills = 0;
    for point in 0..6_u64 {
        let name = format!("killed-{point}");
        // Once the database has grown to this part of its size, and at another part after that.
        for share in [point, point + 1] {
            let mut killed = command(&name);
            let mut child = killed.command().stdout(std::process::Stdio::null()).spawn().unwrap();
            while child.try_wait().unwrap().is_none() && size(&name) < whole * share / 7 {
                std::thread::sleep(Duration::from_millis(1));
            }
            kills += u32::from(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        command(&name).run().expect_code(0);
        let found = (rows(&target.path().join(format!("{name}.db"))), state(&name));
        assert!(found == expected, "killed at {point}");
    }
    assert!(kills > 0, "{kills} processes were killed while they worked");
}

#[test]
fn json_has_the_counts_and_nothing_is_written_in_a_dry_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.xml"), report("a", 4)).unwrap();
    let args = ["--dry-run", "--format", "json", "--rows", "file:rows", "--results", "sqlite:r.db"];
    let ran = offline(folder.path(), &args).run().expect_code(0);
    assert_eq!(
        parsed(&ran),
        json!({
            "tests": 4, "successes": 3, "failures": 1, "errors": 0, "skipped": 0, "unfinished": 0,
            "flaky": 1, "files": 1, "rows": 4, "quarantined": [],
        })
    );
    assert!(!ran.path("r.db").exists() && !ran.path("rows").exists());
}

#[test]
fn exit_codes_tell_a_wrong_call_an_empty_folder_and_a_service_that_is_down_apart() {
    let folder = tempfile::tempdir().unwrap();
    let empty = offline(folder.path(), &[]).run().expect_code(1);
    assert!(empty.stderr.contains("[no-reports]"), "{}", empty.report());
    fs::write(folder.path().join("a.xml"), "<html/>").unwrap();
    offline(folder.path(), &[]).run().expect_code(1);
    let dir = folder.path().to_str().unwrap();
    Crcr::new(&["stats", "collect", "--dir", dir]).run().expect_code(2);
    let no_run = Crcr::new(&["stats", "collect"]).run().expect_code(2);
    assert!(!no_run.stderr.contains("panicked"), "{}", no_run.report());
    let ran = offline(folder.path(), &["--results", "mysql://me:hush@db/x"]).run().expect_code(1);
    assert!(!ran.stderr.contains("hush"), "{}", ran.report());
    let world = World::new(Run::push());
    let (good, broken) = (job(&world, "a", "success"), job(&world, "b", "success"));
    for job in [&good, &broken] {
        let name = format!("test-reports-runattempt1-{}_{}.zip", job.name, job.check_run_id);
        world.github(&name, "application/zip", &zip(&[("a.xml", report("s", 1).as_bytes())]));
    }
    world.github.state().traffic.fail("artifact-zip", 1, Fault::status(404));
    let ran = collect(&world, &["--results", "sqlite:r.db"]).run().expect_code(0);
    assert!(ran.stderr.contains("isn't counted"), "{}", ran.report());
    assert_eq!(rows(&ran.path("r.db")).len(), 1, "the other artifact counts");
}

#[test]
fn page_of_a_proxy_is_waited_out_by_each_call_of_a_collection() {
    let world = World::new(Run::push());
    let job = job(&world, "a", "success");
    let name = format!("test-reports-runattempt1-a_{}.zip", job.check_run_id);
    world.github(&name, "application/zip", &zip(&[("a.xml", report("s", 1).as_bytes())]));
    let body = "<html><title>Sign in</title></html>".to_owned();
    let page = Fault::Answer { status: StatusCode::NOT_FOUND, retry_after: None, body };
    let traffic = &world.github.state().traffic;
    for call in ["run-artifacts", "artifact-zip", "run-jobs"] {
        traffic.fail(call, 1, page.clone());
    }
    let ran = collect(&world, &["--results", "sqlite:r.db"]).run().expect_code(0);
    assert_eq!(rows(&ran.path("r.db")).len(), 1, "{}", ran.report());
    assert!(traffic.unmet().is_empty(), "{:?}", traffic.unmet());
}

#[test]
fn run_is_collected_on_the_day_it_started_whenever_that_happens() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.xml"), report("a", 2)).unwrap();
    let target = tempfile::tempdir().unwrap();
    let results = format!("sqlite:{}", target.path().join("r.db").display());
    let args = ["--results", &results, "--started-at", "2026-01-02T03:04:05Z"];
    offline(folder.path(), &args).run().expect_code(0);
    offline(folder.path(), &args[..2]).run().expect_code(0);
    let results = open(&target.path().join("r.db"));
    let stored = block_on(results.stored_run("acme/upstream", 4242, 1)).unwrap().unwrap();
    assert_eq!(stored.started_at, "2026-01-02T03:04:05Z".parse::<Timestamp>().unwrap());
}

#[test]
fn run_is_not_collected_again_as_another_branchs_or_another_commits() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.xml"), report("a", 2)).unwrap();
    let target = tempfile::tempdir().unwrap();
    let collect = |database: &str, args: &[&str]| {
        let results = format!("sqlite:{}", target.path().join(database).display());
        offline(folder.path(), &[args, &["--results", &results]].concat()).run()
    };
    let refused = |database: &str, args: &[&str], kind: &str| {
        let ran = collect(database, args).expect_code(1);
        let told = format!("[run-differs]: run 4242 was collected as {kind}");
        assert!(ran.stderr.contains(&told), "{}", ran.report());
    };
    collect("branch.db", &[]).expect_code(0);
    refused("branch.db", &["--on-default-branch"], "another branch's");
    refused("branch.db", &["--sha", "c1"], "one without a commit");
    collect("branch.db", &[]).expect_code(0);
    let default = ["--on-default-branch", "--sha", "c1"];
    collect("default.db", &default).expect_code(0);
    refused("default.db", &default[1..], "the default branch's");
    refused("default.db", &["--on-default-branch", "--sha", "c2"], "another commit's");
    // What isn't said is as it was: the reports that are new belong to the same commit.
    fs::write(folder.path().join("b.xml"), report("b", 2)).unwrap();
    collect("default.db", &default[..1]).expect_code(0);
    let connection = rusqlite::Connection::open(target.path().join("default.db")).unwrap();
    let of_commit = "SELECT count(*) FROM test_report WHERE head_sha = 'c1'";
    assert_eq!(connection.query_row(of_commit, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
}

#[test]
fn stored_results_rank_tests_and_split_files_into_shards() {
    let folder = tempfile::tempdir().unwrap();
    for (job, file, seconds) in [
        ("linux-1-2_1", "test_a", 30),
        ("linux-1-2_1", "test_b", 10),
        ("linux-2-2_2", "test_c", 20),
    ] {
        let path = folder.path().join(format!("test-reports-{job}/test-reports/pytest/{file}"));
        fs::create_dir_all(&path).unwrap();
        let cases = format!("<testcase name=\"slow\" classname=\"{file}\" time=\"{seconds}\"/>");
        let report = report(file, 3)
            .replace("<testcase name=\"test_0\"", &format!("{cases}<testcase name=\"test_0\""));
        fs::write(path.join("r.xml"), report).unwrap();
    }
    let target = tempfile::tempdir().unwrap();
    let results = format!("sqlite:{}", target.path().join("r.db").display());
    offline(folder.path(), &["--results", &results, "--on-default-branch"]).run().expect_code(0);
    let stats = |args: &[&str]| {
        let start = Crcr::new(&["stats"]).env("CRCR_RESULTS", &results);
        args.iter().fold(start, |run, arg| run.arg(arg)).run().expect_code(0)
    };
    let names = |command: &str| -> Vec<String> {
        let ran = stats(&[command, "--repo", "Acme/Upstream", "--format", "json", "--limit", "2"]);
        let tests = parsed(&ran);
        let name = |test: &Value| {
            format!("{}.{}", test["classname"].as_str().unwrap(), test["name"].as_str().unwrap())
        };
        tests.as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(names("flaky"), ["tests.test_a.test_2", "tests.test_b.test_2"]);
    assert_eq!(names("failing"), ["tests.test_a.test_1", "tests.test_b.test_1"]);
    assert_eq!(names("slow"), ["test_a.slow", "test_c.slow"]);
    let none =
        stats(&["flaky", "--repo", "acme/upstream", "--since", "2020-01-01", "--job", "other"]);
    assert_eq!(none.stdout, "");
    let ran = stats(&["times", "--repo", "acme/upstream"]);
    assert_eq!(
        parsed(&ran),
        json!({
            "linux-1-2": { "default": { "test_a": 34.5, "test_b": 14.5 } },
            "linux-2-2": { "default": { "test_c": 24.5 } },
        })
    );
    let times = target.path().join("times.json");
    fs::write(&times, &ran.stdout).unwrap();
    let shard = |index: &str| {
        let start = Crcr::new(&["stats", "shard", "--shards", "2", "--index", index, "--times"])
            .arg(times.to_str().unwrap());
        start.stdin("test/test_a.py\ntest/test_b.py\ntest/test_c.py\n").run()
    };
    assert_eq!(shard("1").expect_code(0).stdout, "test/test_a.py\n");
    assert_eq!(shard("2").expect_code(0).stdout, "test/test_c.py\ntest/test_b.py\n");
    shard("3").expect_code(2);
    let unknown = |files: &str| {
        let args = ["stats", "shard", "--shards", "1", "--index", "1", "--times"];
        Crcr::new(&args).arg(times.to_str().unwrap()).stdin(files).run().expect_code(0).stderr
    };
    let told = unknown("test/test_x.py\ntest/test_y.py\n");
    assert!(told.contains("warning: 0 of 2 files have a time: each counts as 1 s"), "{told}");
    let told = unknown("test/test_a.py\ntest/test_y.py\n");
    assert!(told.contains("1 of 2 files have a time; the others count as the mean"), "{told}");
    let args = ["stats", "shard", "--shards", "1", "--index", "1", "--times", "nope"];
    let told = Crcr::new(&args).run().expect_code(2).stderr;
    assert!(told.contains("error[times-unreadable]: `nope` can't be read"), "{told}");
    // `pytest $(crcr stats shard …)` would run all tests.
    let told = unknown("");
    assert!(told.contains("warning: shard 1 of 1 has no test files"), "{told}");
}

#[test]
fn folder_of_reports_fills_the_database_that_rankings_read() {
    let run = Crcr::new(&[
        "stats",
        "collect",
        "--dir",
        "in",
        "--repo",
        "acme/app",
        "--on-default-branch",
        "--job",
        "linux",
        "--results",
        "sqlite:r.db",
    ]);
    let folder = run.folder().join("in");
    fs::create_dir(&folder).unwrap();
    let manifest = json!({ "version": 1, "job": "gpu", "job_status": "failure", "reports": [], "missing": [] });
    let manifest = manifest.to_string();
    let passed = report("beta", 1);
    fs::write(folder.join("a.xml"), report("alpha", 4)).unwrap();
    // The same report again, in a zip, and a job that failed without a failed test.
    fs::write(folder.join("packed.zip"), zip(&[("a.xml", report("alpha", 4).as_bytes())])).unwrap();
    let pack = zip(&[("b.xml", passed.as_bytes()), ("crcr-job.json", manifest.as_bytes())]);
    fs::write(folder.join("test-reports-gpu_7.zip"), pack).unwrap();
    fs::write(folder.join("coverage.xml"), "<coverage/>").unwrap();
    fs::write(folder.join("package.json"), "{\"name\": \"app\"}").unwrap();
    // Failed tests in formats that aren't read.
    fs::write(folder.join("bats.tap"), "1..1\nnot ok 1 - a\n").unwrap();
    fs::write(folder.join("jest.json"), "{\"numTotalTestSuites\":1,\"testResults\":[]}").unwrap();
    let ran = run.run().expect_code(0);
    assert!(
        ran.stdout.starts_with("5 tests:") && ran.stdout.contains("in 2 reports, 6 rows"),
        "{}",
        ran.report()
    );
    assert!(ran.stderr.contains("a coverage report of Cobertura"), "{}", ran.stderr);
    for (file, is_named) in [("package.json", false), ("bats.tap", true), ("jest.json", true)] {
        assert_eq!(ran.stderr.contains(file), is_named, "{file}: {}", ran.stderr);
    }
    let database = ran.path("r.db");
    let results = open(&database);
    let query = TestQuery {
        repository: "acme/app".to_owned(),
        ranking: TestRanking::Failing,
        days: (0, 99_999),
        job: None,
        all_branches: false,
        search: None,
        offset: 0,
        limit: 10,
    };
    let failing = block_on(results.test_stats(&query)).unwrap();
    let names: Vec<_> = failing.iter().map(|test| test.name.as_str()).collect();
    assert_eq!(names, ["gpu", "test_1"]);
    let url = format!("sqlite:{}", database.display());
    let flaky = Crcr::new(&["stats", "flaky", "--repo", "acme/app", "--results", &url]);
    fs::write(flaky.folder().join("CODEOWNERS"), "/tests/ @acme/gpu\n").unwrap();
    let ran = flaky.run().expect_code(0);
    assert!(
        ran.stdout.contains("100.0 % flaky") && ran.stdout.contains("@acme/gpu"),
        "{}",
        ran.stdout
    );
}
