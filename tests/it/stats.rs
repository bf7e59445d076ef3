//! `crcr stats explain` and `crcr stats pack`, and which files `crcr stats collect` reads.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use crcr_domain::ci_data::test_run::TestRowKind;
use crcr_standin::runs::Run;
use serde_json::{Value, json};

use crate::artifact_download::World;
use crate::stats_collect::{offline, parsed, reasons, rows, zip};
use crate::support::Crcr;

const COMMIT: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

const REPORT: &str = "<?xml version='1.0'?>\n<testsuites><testsuite name='s' timestamp='2001-02-03T04:05:06'>\n\
     <testcase classname='c' name='good' file='t.py' time='0.1'/>\n\
     <testcase classname='c' name='bad' time='0.2'><failure message='assert 1 == 2'>where</failure></testcase>\n\
     <testcase classname='c' name='shaky' time='3'>\n\
     <flakyFailure message='timeout'/></testcase>\n\
     <testcase classname='c' name='off'><skipped message='no GPU'/></testcase>\n\
     </testsuite></testsuites>\n";

fn explain(report: &str, args: &[&str]) -> (i32, String) {
    let args = [&["stats", "explain", "-"], args].concat();
    let ran = Crcr::new(&args).stdin(report).run();
    (ran.code, ran.stdout)
}

#[test]
fn explain_as_json_has_counts_cases_flaky_tests_and_findings() {
    let (code, stdout) = explain(REPORT, &["--format", "json"]);
    assert_eq!(code, 0);
    let mut json: Value = serde_json::from_str(&stdout).unwrap();
    let shaky = json["cases"][2].take();
    assert_eq!(
        shaky,
        json!({
            "name": "shaky", "classname": "c", "file": null, "suite": "s", "result": "success",
            "attempts": 2, "flaky": true, "time": 3.0, "message": null
        })
    );
    let bad = json["cases"][1].take();
    assert_eq!((&bad["result"], &bad["message"]), (&json!("failure"), &json!("assert 1 == 2")));
    json["cases"] = json!(json["cases"].as_array().unwrap().len());
    let stale = json["findings"][0]["message"].take();
    assert!(stale.as_str().unwrap().contains("more than a day ago"), "{stale}");
    assert_eq!(
        json,
        json!({
            "file": "-", "grade": "suboptimal", "truncated": false, "quarantined": null,
            "counts": {
                "tests": 4, "successes": 2, "failures": 1, "errors": 0, "skipped": 1,
                "unfinished": 0, "flaky": 1
            },
            "time": 3.3, "cases": 4, "flaky": ["shaky"],
            "findings": [
                { "rule": "stale-timestamp", "line": 2, "message": null },
                { "rule": "no-duration", "line": 7, "message": "`off` has no duration" },
            ],
        })
    );
}

#[test]
fn explain_tells_a_person_what_failed_and_what_is_wrong() {
    let (code, stdout) = explain(&REPORT.replace("2001-02-03T04:05:06", ""), &[]);
    assert_eq!(code, 0);
    insta::assert_snapshot!(stdout, @r"
    -: suboptimal
      4 tests: 2 passed, 1 failed, 1 skipped, 1 flaky, 3.3 s
      failure: s › c › bad: assert 1 == 2
      flaky: s › c › shaky
      line 7: `off` has no duration [no-duration]
    ");
}

#[test]
fn explain_fails_for_an_invalid_report_and_for_what_is_no_report() {
    let cut = &REPORT[..REPORT.find("where").unwrap()];
    let (code, stdout) = explain(cut, &["--format", "json"]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["grade"], &json["truncated"]), (1, &json!("invalid"), &json!(true)));
    assert_eq!(json["counts"]["failures"], 1);
    let (code, stdout) = explain("<html/>", &["--format", "json"]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["grade"], &json["counts"]["tests"]), (1, &json!("invalid"), &json!(0)));
    assert!(json["quarantined"].as_str().unwrap().contains("a page in HTML"), "{json}");
    let ran = Crcr::new(&["stats", "explain", "-"]).stdin(b"\x1f\x8b\x08\0").run().expect_code(1);
    assert!(ran.stdout.contains("it is compressed by gzip"), "{}", ran.report());
    let ran = Crcr::new(&["stats", "explain", "absent.xml"]).run().expect_code(2);
    assert!(ran.stderr.contains("`absent.xml` can't be read"), "{}", ran.report());
}

#[test]
fn rankings_of_a_database_that_is_not_there_say_so_and_which_one_to_name() {
    let flaky = ["stats", "flaky", "--repo", "acme/app", "--results", "sqlite:absent.db"];
    let ran = Crcr::new(&flaky).run().expect_code(2);
    insta::assert_snapshot!(ran.stderr, @r"
    error[results-unreadable]: the results can't be read
      because: the results can't be used: `absent.db`: No such file or directory (os error 2)
    hint: name the database that `crcr stats collect` or the relay writes
    ");
}

#[test]
fn test_that_ran_once_has_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let report = "<testsuite><testcase classname='c' name='t'><failure/></testcase></testsuite>";
    fs::write(folder.path().join("report.xml"), report).unwrap();
    let results = format!("sqlite:{}", folder.path().join("results.db").display());
    let stored = ["--repo", "acme/app", "--results", &results];
    let collect = ["stats", "collect", "--on-default-branch", "--dir"];
    let collect = [&collect[..], &[folder.path().to_str().unwrap()], &stored].concat();
    Crcr::new(&collect).run().expect_code(0);
    let failing = [&["stats", "failing"][..], &stored].concat();
    let ran = Crcr::new(&failing).run().expect_code(0);
    assert!(ran.stdout.ends_with(" 1 run   c.t\n"), "{}", ran.report());
}

#[test]
fn two_folders_without_a_run_id_are_two_runs_and_a_commit_makes_their_test_flaky() {
    let folder = tempfile::tempdir().unwrap();
    let results = format!("sqlite:{}", folder.path().join("results.db").display());
    let stored = ["--repo", "acme/app", "--results", &results];
    let stats = |command: &str| {
        Crcr::new(&[&["stats", command][..], &stored].concat()).run().expect_code(0)
    };
    for (run, failure) in ["<failure/>", "", "<failure/>", ""].into_iter().enumerate() {
        let reports = folder.path().join(format!("run-{run}"));
        fs::create_dir(&reports).unwrap();
        let case = format!("<testcase classname='c' name='t'>{failure}</testcase>");
        fs::write(reports.join("a.xml"), format!("<testsuite>{case}</testsuite>")).unwrap();
        let collect = ["stats", "collect", "--on-default-branch", "--dir"];
        let sha: &[&str] = if run < 2 { &[] } else { &["--sha", COMMIT] };
        let collect = [&collect[..], &[reports.to_str().unwrap()], &stored, sha].concat();
        Crcr::new(&collect).run().expect_code(0);
        if run == 1 {
            let failing = stats("failing");
            assert!(failing.stdout.ends_with(" 2 runs  c.t\n"), "{}", failing.report());
            let flaky = stats("flaky");
            assert!(flaky.stderr.contains("stats collect --sha"), "{}", flaky.report());
        }
    }
    let flaky = stats("flaky");
    assert!(flaky.stdout.ends_with(" c.t\n"), "{}", flaky.report());
}

/// Nothing is stored under such a name, and an empty ranking would look like good news.
#[test]
fn repository_without_its_owner_is_refused_before_anything_is_read() {
    for repo in ["app", "acme/", "/app", "acme/app/x", "https://github.com/acme/app"] {
        for command in [
            &["stats", "failing"][..],
            &["stats", "times"],
            &["stats", "collect", "--dir", "."],
            &["quarantine", "propose", "--owner", "alice"],
        ] {
            let named = ["--repo", repo, "--results", "sqlite:absent.db"];
            let ran = Crcr::new(&[command, &named[..]].concat()).run().expect_code(2);
            assert!(ran.stderr.contains("expected `owner/repo`"), "{}", ran.report());
        }
    }
}

#[test]
fn names_in_a_report_are_no_commands_to_the_runner() {
    let report = "<testsuite><testcase name='&#10;::add-path::/tmp ##[error]x'><failure message='::stop-commands::x'/></testcase></testsuite>";
    for format in ["text", "json"] {
        let (_, stdout) = explain(report, &["--format", format]);
        assert!(!stdout.contains("##["), "{stdout}");
        assert!(!stdout.lines().any(|line| line.trim_start().starts_with("::")), "{stdout}");
    }
}

fn zip_files(path: &str) -> Vec<(String, String)> {
    let mut zip = zip::ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    (0..zip.len())
        .map(|at| {
            let mut file = zip.by_index(at).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            (file.name().to_owned(), text)
        })
        .collect()
}

fn write(folder: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn pack(args: &[&str]) -> Crcr {
    let args = [&["stats", "pack"], args].concat();
    Crcr::step(&args, "push", &json!({})).env("CRCR_CHECK_RUN_ID", "987")
}

#[test]
fn pack_has_every_report_and_a_manifest_under_the_name_that_collectors_read() {
    let run = pack(&["--path", "test/**/*.xml", "--job-status", "failure"])
        .env("CRCR_MATRIX", r#"{"os":"linux/2","shard":1}"#)
        .env("GITHUB_RUN_ATTEMPT", "2");
    write(run.folder(), "test/test-reports/a/x.xml", REPORT);
    write(
        run.folder(),
        "test/test-reports/b.xml",
        "<testsuites><testsuite name='died'><testcase name='t'>",
    );
    write(run.folder(), "test/test-reports/b.log", "not a report");
    let ran = run.run().expect_code(0);
    let name = "test-reports-runattempt2-build-linux-2-1_987.zip";
    assert_eq!(ran.outputs["name"], name);
    assert!(ran.outputs["path"].ends_with(name));
    assert_eq!(ran.outputs["prefix"], "{owner}/{repo}/{run_id}/{run_attempt}/artifact");
    let counts = ["files", "tests", "failed"].map(|name| ran.outputs[name].as_str());
    assert_eq!(counts, ["2", "5", "2"]);
    let files = zip_files(&ran.outputs["path"]);
    let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["crcr-job.json", "test-reports/a/x.xml", "test-reports/b.xml"]);
    assert_eq!(files[1].1, REPORT);
    let manifest: Value = serde_json::from_str(&files[0].1).unwrap();
    assert_eq!(
        manifest,
        json!({
            "version": 1, "job_id": 987, "job": "build", "job_status": "failure",
            "reports": [
                { "path": "test-reports/a/x.xml", "suites": ["s"], "open_suites": [], "problem": null },
                {
                    "path": "test-reports/b.xml", "suites": ["died"], "open_suites": ["died"],
                    "problem": "the report ends early"
                },
            ],
            "missing": [],
        })
    );
    assert!(ran.stderr.contains("`test-reports/b.xml`: the report ends early"), "{}", ran.report());
}

#[test]
fn reports_of_other_folders_go_below_the_folder_that_collectors_read() {
    for (files, packed) in [
        (
            &["target/nextest/junit.xml", "build/ctest.xml"][..],
            &["test-reports/build/ctest.xml", "test-reports/target/nextest/junit.xml"][..],
        ),
        (
            &["a/test-reports/x.xml", "b/test-reports/x.xml"],
            &["test-reports/a/test-reports/x.xml", "test-reports/b/test-reports/x.xml"],
        ),
    ] {
        let run = pack(&["--path", "**/*.xml"]);
        for file in files {
            write(run.folder(), file, REPORT);
        }
        let ran = run.run().expect_code(0);
        let names: Vec<_> =
            zip_files(&ran.outputs["path"]).into_iter().skip(1).map(|(name, _)| name).collect();
        assert_eq!(names, packed);
    }
}

#[test]
fn missing_reports_are_told_and_packed_as_missing() {
    let run = pack(&["--path", "out/*.xml", "--expect", "out/fast.xml\nout/slow-*.xml"]);
    write(run.folder(), "out/fast.xml", REPORT);
    let ran = run.run().expect_code(0);
    let manifest: Value = serde_json::from_str(&zip_files(&ran.outputs["path"])[0].1).unwrap();
    assert_eq!(manifest["missing"], json!(["out/slow-*.xml"]));
    assert!(
        ran.stderr.contains("no report at `out/slow-*.xml`, which is expected"),
        "{}",
        ran.report()
    );

    let ran = pack(&[]).run().expect_code(0);
    assert_eq!((ran.outputs["files"].as_str(), zip_files(&ran.outputs["path"]).len()), ("0", 1));
    assert!(ran.stderr.contains("no report at `**/test-reports/**/*.xml`"), "{}", ran.report());
}

#[test]
fn compressed_reports_are_named_by_pack() {
    let run = pack(&["--path", "out/*"]);
    write(run.folder(), "out/a.xml", REPORT);
    write(run.folder(), "out/b.xml.gz", "");
    fs::write(run.folder().join("out/c.xml"), b"\x1f\x8b\x08\0").unwrap();
    let ran = run.run().expect_code(0);
    for told in ["b.xml.gz` isn't packed: it is compressed", "c.xml`: it is compressed by gzip"] {
        assert!(ran.stderr.contains(told), "{}", ran.report());
    }
}

#[test]
fn report_in_capitals_is_packed_and_a_file_that_is_not_is_named() {
    let run = pack(&["--path", "out/*"]);
    write(run.folder(), "out/RESULTS.XML", REPORT);
    write(run.folder(), "out/results.junit", REPORT);
    write(run.folder(), "out/notes.txt", "nothing");
    let ran = run.run().expect_code(0);
    let names: Vec<_> =
        zip_files(&ran.outputs["path"]).into_iter().skip(1).map(|(name, _)| name).collect();
    assert_eq!(names, ["test-reports/RESULTS.XML"]);
    assert!(ran.stderr.contains("`results.junit` isn't packed: reports"), "{}", ran.report());
    assert!(!ran.stderr.contains("notes.txt"), "{}", ran.report());
}

#[test]
fn pack_without_a_job_id_warns_and_a_wrong_one_is_refused() {
    let ran = pack(&[]).without("CRCR_CHECK_RUN_ID").run().expect_code(0);
    assert_eq!(ran.outputs["name"], "test-reports-runattempt1-build.zip");
    assert!(ran.stderr.contains("its id isn't known"), "{}", ran.report());
    let ran = pack(&["--job-id", "12a"]).run().expect_code(1);
    assert!(ran.stderr.contains("`job-id` isn't the number of a job"), "{}", ran.report());
    assert!(!ran.outputs.contains_key("path"));
}

#[test]
fn packing_the_same_reports_again_gives_the_same_bytes() {
    let bytes = || {
        let run = pack(&["--path", "r/*.xml"]);
        write(run.folder(), "r/a.xml", REPORT);
        let ran = run.run().expect_code(0);
        fs::read(&ran.outputs["path"]).unwrap()
    };
    assert_eq!(bytes(), bytes());
}

#[test]
fn packed_reports_reach_the_statistics_through_either_store() {
    for to_s3 in [false, true] {
        let world = World::new(Run::fork());
        let runs = &world.github.state().runs;
        let mut job = runs.add_job(4242, "linux");
        job.conclusion = Some("failure".to_owned());
        runs.update_job(&job);
        let packing = pack(&["--path", "**/*.xml", "--expect", "slow.xml"])
            .env("CRCR_CHECK_RUN_ID", &job.check_run_id.to_string());
        write(packing.folder(), "test/test-reports/a.xml", REPORT);
        write(
            packing.folder(),
            "test/test-reports/b.xml",
            "<testsuite name='died'><testcase name='t'/>",
        );
        let packed = packing.run().expect_code(0);
        let output = |name: &str| packed.outputs[name].as_str();
        let inputs =
            ["--name", output("name"), "--path", output("path"), "--s3-prefix", output("prefix")];
        let args =
            [&["artifact", "upload", "--archive", "none", "--required", "false"], &inputs[..]];
        let upload = Crcr::step(&args.concat(), "push", &json!({}));
        let upload = if to_s3 {
            world.signed(upload)
        } else {
            let given = world.github.state().job_environment(&job);
            upload
                .env("CRCR_RUNTIME_TOKEN", &given["ACTIONS_RUNTIME_TOKEN"])
                .env("CRCR_RESULTS_URL", &given["ACTIONS_RESULTS_URL"])
        };
        let uploaded = upload.run().expect_code(0);
        assert_eq!(uploaded.outputs["store"], if to_s3 { "s3" } else { "github" });

        let payload = json!({
            "action": "completed",
            "repository": { "full_name": "acme/upstream", "default_branch": "main" },
            "workflow_run": runs.get(4242).unwrap().api(world.github.state().origin()),
        });
        let collect = ["stats", "collect", "--format", "json", "--rows", "file:rows"];
        let collect = Crcr::step(&collect, "workflow_run", &payload)
            .env("GITHUB_API_URL", world.github.state().origin())
            .env("GITHUB_TOKEN", "ghs_token");
        let collected = world.signed(collect).run().expect_code(0);
        let json: Value = serde_json::from_str(&collected.stdout).unwrap();
        let counts = ["tests", "failures", "flaky", "files"].map(|key| json[key].as_u64().unwrap());
        assert_eq!(counts, [5, 1, 1, 2], "{}", collected.report());
        // Beside the tests: the suite that died, and the report that isn't there.
        assert_eq!(json["rows"], 7, "{}", collected.report());
        for lost in ["died", "slow.xml"] {
            assert!(collected.summary.contains(lost), "{}", collected.summary);
        }
    }
}

const GREEN: &str = "<testsuite name='s'><testcase name='a' classname='c' time='1'/></testsuite>";
const RED: &str = "<testsuite name='s'><testcase name='a' classname='c' time='1'><failure/></testcase>\
                   </testsuite>";

fn folder_of(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        write(folder.path(), path, content);
    }
    folder
}

fn zip_of(xml: &str) -> Vec<u8> {
    zip(&[("report.xml", xml.as_bytes())])
}

#[test]
fn reports_of_one_path_both_count_unless_they_say_the_same() {
    let (green, red) = (GREEN.as_bytes(), RED.as_bytes());
    let modules = zip(&[("core/test-reports/a.xml", green), ("zapi/test-reports/a.xml", red)]);
    for files in [
        vec![("linux.zip", zip_of(GREEN)), ("windows.zip", zip_of(RED))],
        vec![("a/reports.zip", zip_of(GREEN)), ("b/reports.zip", zip_of(RED))],
        vec![("all.zip", zip(&[("linux.zip", &zip_of(GREEN)), ("windows.zip", &zip_of(RED))]))],
        vec![
            ("core/target/test-reports/a.xml", green.to_vec()),
            ("zapi/target/test-reports/a.xml", red.to_vec()),
        ],
        vec![("test-reports-runattempt1-all_1.zip", modules)],
    ] {
        let folder = folder_of(&files);
        let args = ["--format", "json", "--results", "sqlite:r.db"];
        let ran = offline(folder.path(), &args).run().expect_code(0);
        let json = parsed(&ran);
        assert_eq!((&json["tests"], &json["failures"]), (&json!(2), &json!(1)), "{json}");
        assert_eq!(json["quarantined"], json!([]));
        assert_eq!(rows(&ran.path("r.db")).len(), 2, "each has an id of its own");
    }
    let folder = folder_of(&[("linux.zip", zip_of(RED)), ("windows.zip", zip_of(RED))]);
    let json = parsed(&offline(folder.path(), &["--dry-run", "--format", "json"]).run());
    assert_eq!(json["tests"], 1, "{json}");
    assert!(reasons(&json)["windows.zip/report.xml"].contains("read already"), "{json}");
}

#[test]
fn first_of_two_reports_of_one_path_has_the_id_that_it_has_alone() {
    let ids = |files: &[(&str, Vec<u8>)]| -> Vec<(u64, String)> {
        let folder = folder_of(files);
        let ran = offline(folder.path(), &["--results", "sqlite:r.db"]).run().expect_code(0);
        let sources = rows(&ran.path("r.db")).into_iter().map(|report| report.source);
        sources.map(|source| (source.report_id, source.path)).collect()
    };
    let alone = ids(&[("linux.zip", zip_of(GREEN))]);
    let both = ids(&[("linux.zip", zip_of(GREEN)), ("windows.zip", zip_of(RED))]);
    assert_eq!((alone.len(), both.len()), (1, 2));
    assert!(both.contains(&alone[0]), "{alone:?} {both:?}");
    assert!(both.iter().any(|(_, path)| path == "windows.zip/report.xml"), "{both:?}");
}

#[test]
fn artifact_belongs_to_the_attempt_that_its_name_says() {
    let folder = folder_of(&[
        ("test-reports-runattempt1-linux_11.zip", zip_of(RED)),
        ("test-reports-runattempt2-linux_11.zip", zip_of(GREEN)),
        ("test-reports-runattempt2-mac_12/report.xml", GREEN.as_bytes().to_vec()),
    ]);
    let collect = |more: &[&str]| {
        let start = ["stats", "collect", "--repo", "acme/app", "--run-id", "1", "--dry-run"];
        let args = [&start[..], &["--format", "json", "--dir"]].concat();
        let run = Crcr::new(&args).arg(folder.path().to_str().unwrap());
        parsed(&more.iter().fold(run, |run, arg| run.arg(arg)).run().expect_code(0))
    };
    for (attempt, successes, failures) in [("1", 0, 1), ("2", 2, 0)] {
        let json = collect(&["--run-attempt", attempt]);
        assert_eq!((&json["successes"], &json["failures"]), (&json!(successes), &json!(failures)));
        assert_eq!(json["quarantined"], json!([]));
    }
    // Nobody said which attempt, so the others are named.
    let json = collect(&[]);
    assert_eq!((&json["successes"], &json["failures"]), (&json!(0), &json!(1)), "{json}");
    let reasons = reasons(&json);
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons.values().all(|why| why.starts_with("it is of attempt 2")), "{reasons:?}");
}

#[test]
fn file_that_looks_like_a_report_or_an_archive_and_is_not_read_is_named() {
    let inner = zip(&[("deep.zip", &zip_of(RED))]);
    let events = "{\"Action\":\"fail\",\"Package\":\"p\",\"Test\":\"TestA\"}\n\
                  {\"Action\":\"fail\",\"Package\":\"p\"}\n";
    let folder = folder_of(&[
        ("ok.xml", GREEN.as_bytes().to_vec()),
        ("artifacts.zip", zip(&[("inner.zip", &inner), ("in.tgz", b"\x1f")])),
        ("t.tar.gz", b"\x1f".to_vec()),
        ("b.junit", RED.as_bytes().to_vec()),
        ("notes.txt", b"no".to_vec()),
        ("go.ndjson", events.as_bytes().to_vec()),
    ]);
    let (in_zip, deep) = ("artifacts.zip/in.tgz", "artifacts.zip/inner.zip/deep.zip");
    let mut named = vec![in_zip, deep, "b.junit", "link.xml", "t.tar.gz"];
    named.retain(|name| cfg!(unix) || *name != "link.xml");
    #[cfg(unix)]
    for (target, name) in [("/etc/hosts", "link.xml"), ("ok.xml", "newest.xml"), (".", "all.xml")] {
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    }
    let json = parsed(&offline(folder.path(), &["--dry-run", "--format", "json"]).run());
    assert_eq!((&json["tests"], &json["failures"]), (&json!(2), &json!(1)), "{json}");
    assert_eq!(reasons(&json).keys().collect::<Vec<_>>(), named);
    offline(folder.path(), &["--dry-run", "--strict"]).run().expect_code(1);
}

#[test]
fn pack_that_was_unpacked_has_the_rows_of_its_zip() {
    let manifest = json!({
        "version": 1, "job_id": 77, "job": "gpu", "job_status": "failure", "reports": [],
        "missing": ["slow/*.xml"],
    })
    .to_string();
    let files = [("crcr-job.json", manifest.as_bytes()), ("test-reports/a.xml", GREEN.as_bytes())];
    let name = "test-reports-runattempt1-gpu_77";
    let zipped = folder_of(&[("test-reports-runattempt1-gpu_77.zip", zip(&files))]);
    let unpacked = tempfile::tempdir().unwrap();
    for (path, content) in files {
        write(unpacked.path(), &format!("{name}/{path}"), content);
    }
    let found = |folder: &Path| {
        let ran = offline(folder, &["--results", "sqlite:r.db"]).run().expect_code(0);
        let mut reports = rows(&ran.path("r.db"));
        reports.sort_by_key(|report| report.source.report_id);
        reports
    };
    let kinds: Vec<_> = found(zipped.path())
        .iter()
        .flat_map(|report| &report.rows)
        .map(|row| row.case.kind)
        .collect();
    for kind in [TestRowKind::Test, TestRowKind::Crashed] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert!(found(zipped.path()) == found(unpacked.path()));
}
