//! `crcr artifact upload`, then `download` and `list`, on either store.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::http::Method;
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule};
use crcr_testkit::s3::{ACCESS_KEY, Anonymous, S3Server, SECRET_KEY};
use serde_json::{Value, json};
use url::Url;

use crate::artifact_upload_faults::act_during;
use crate::support::{Crcr, Ran};

const BUCKET: &str = "artifacts";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    S3,
    GitHub,
}

use Store::{GitHub, S3};

/// One run of a workflow, with both stores.
struct World {
    github: StandIn,
    s3: S3Server,
    /// Of S3, or of a proxy before it.
    endpoint: Url,
}

type Files<'a> = &'a [(&'a str, u32, &'a [u8])];

impl World {
    fn new() -> Self {
        let s3 = S3Server::start(BUCKET).unwrap();
        Self { github: StandIn::start().unwrap(), endpoint: s3.url().clone(), s3 }
    }

    /// A step of a new job in this attempt of the run, with credentials or without.
    fn step(&self, store: Store, attempt: u32, command: &str, args: &[&str]) -> Crcr {
        let state = self.github.state();
        let job = state.runs.add_job(state.runs.add(Run { attempt, ..Run::push() }), "build");
        let environment = state.job_environment(&job);
        let mut step = Crcr::step(&["artifact", command], "push", &json!({}))
            .env("GITHUB_RUN_ATTEMPT", &attempt.to_string())
            .env("GITHUB_API_URL", &environment["GITHUB_API_URL"])
            .env("CRCR_RUNTIME_TOKEN", &environment["ACTIONS_RUNTIME_TOKEN"])
            .env("CRCR_RESULTS_URL", &environment["ACTIONS_RESULTS_URL"]);
        if store == S3 {
            step = step
                .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
                .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
                .env("AWS_REGION", "us-east-1");
        }
        step = step.arg("--s3-bucket").arg(BUCKET).arg("--s3-endpoint").arg(self.endpoint.as_str());
        args.iter().fold(step, |step, arg| step.arg(arg))
    }

    fn upload(&self, store: Store, attempt: u32, args: &[&str], files: Files<'_>) -> Ran {
        self.upload_step(store, attempt, args, files).run()
    }

    fn upload_step(&self, store: Store, attempt: u32, args: &[&str], files: Files<'_>) -> Crcr {
        let step = self.step(store, attempt, "upload", args).arg("--path").arg("dist");
        for (name, mode, bytes) in files {
            let path = step.folder().join("dist").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
        step
    }

    fn download(&self, store: Store, attempt: u32, args: &[&str]) -> Ran {
        self.step(store, attempt, "download", args).arg("--path").arg("out").run()
    }

    /// Names of what is stored with GitHub, unfinished uploads included.
    fn names(&self) -> Vec<String> {
        let all = self.github.state().artifacts.all().into_iter();
        let mut names: Vec<_> = all.map(|artifact| artifact.name).collect();
        names.sort();
        names
    }
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            S3 => "s3",
            GitHub => "github",
        }
    }
}

/// Every file below `root`, with its mode and bytes.
fn tree(root: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            found.insert(name, (mode, fs::read(&path).unwrap()));
        }
    }
    found
}

#[track_caller]
fn arrived(ran: &Ran, files: Files<'_>) {
    let wanted = files.iter().map(|(name, mode, bytes)| {
        let bytes = bytes.to_vec();
        ((*name).to_owned(), (*mode, bytes))
    });
    let wanted: BTreeMap<_, _> = wanted.collect();
    let there = tree(&ran.path("out"));
    let names = |of: &BTreeMap<String, (u32, Vec<u8>)>| {
        of.iter()
            .map(|(name, (mode, bytes))| (name.clone(), *mode, bytes.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&there), names(&wanted), "{}", ran.report());
    assert!(there == wanted, "the bytes differ");
}

/// Bytes that don't compress.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    aws_lc_rs::rand::fill(&mut bytes).unwrap();
    bytes
}

#[test]
fn uploaded_files_are_downloaded_with_the_same_names_modes_and_bytes() {
    let noise = noise(20 << 20);
    let text = "every line is the same\n".repeat(1_000_000);
    let files: Files<'_> = &[
        ("bin/tool", 0o755, b"run"),
        ("deep/er/ünï cödé 🦀.txt", 0o644, b"hello"),
        ("empty", 0o600, b""),
        ("noise.bin", 0o640, &noise),
        ("text", 0o644, text.as_bytes()),
    ];
    for store in [S3, GitHub] {
        for archive in ["zip", "none"] {
            let world = World::new();
            let args = ["--name", "my wheels", "--archive", archive];
            let ran = world.upload(store, 1, &args, files).expect_code(0);
            assert_eq!(ran.outputs["store"], store.name(), "{}", ran.report());
            let zipped = ran.stderr.contains("are in a zip, in spite of `archive: none`");
            assert_eq!(zipped, (store, archive) == (GitHub, "none"), "{}", ran.report());
            let down = world.download(store, 1, &["--name", "my wheels"]).expect_code(0);
            arrived(&down, files);
            assert_eq!(down.outputs["store"], store.name());
            assert!(world.s3.unfinished().is_empty());
            let by_locator = ["--locator", &ran.outputs["locator"]];
            arrived(&world.download(store, 1, &by_locator).expect_code(0), files);
        }
    }
}

#[test]
fn single_file_without_an_archive_keeps_its_name() {
    let files: Files<'_> = &[("report.html", 0o644, b"<p>")];
    for store in [S3, GitHub] {
        let world = World::new();
        for name in ["report.html", "coverage"] {
            let args = ["--name", name, "--archive", "none"];
            world.upload(store, 1, &args, files).expect_code(0);
            arrived(&world.download(store, 1, &["--name", name]).expect_code(0), files);
        }
    }
}

/// AWS answers 416 to each range of an empty object, and then says nothing of its metadata.
#[test]
fn empty_file_keeps_its_mode_when_the_locator_is_too_long_to_list_the_files() {
    let mut world = World::new();
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    let of_empty = Rule::any(Fault::status(416)).method(Method::GET).path("/empty");
    proxy.add(of_empty.sending("range"));
    world.endpoint = proxy.url().clone();
    let names: Vec<String> = (0..800).map(|n| format!("tests/test_number_{n}.py")).collect();
    let full = names.iter().map(|name| (name.as_str(), 0o644, &b"pass"[..]));
    let files: Vec<_> = full.chain([("empty", 0o755, &b""[..])]).collect();
    let ran = world.upload(S3, 1, &["--name", "tests", "--archive", "none"], &files).expect_code(0);
    let locator = &ran.outputs["locator"];
    assert!(!locator.contains("test_number"), "{locator}");
    arrived(&world.download(S3, 1, &["--locator", locator]).expect_code(0), &files);
}

#[test]
fn rerun_with_other_content_replaces_the_first_attempts_artifact() {
    for store in [S3, GitHub] {
        for archive in ["zip", "none"] {
            let world = World::new();
            let args = ["--name", "wheels", "--archive", archive];
            let first =
                world.upload(store, 1, &args, &[("a", 0o644, b"first"), ("b", 0o644, b"b")]);
            first.expect_code(0);
            let (keys, names) = (world.s3.keys(), world.names());
            let files: Files<'_> = &[("a", 0o644, b"second"), ("b", 0o644, b"b")];
            let second = world.upload(store, 2, &args, files).expect_code(0);
            assert_eq!(second.outputs["store"], store.name(), "{}", second.report());
            // GitHub keeps the artifacts of all attempts.
            let copies = if store == S3 { 1 } else { 2 };
            let names: Vec<_> = (0..copies).flat_map(|_| names.clone()).collect();
            assert_eq!((world.s3.keys(), world.names()), (keys, names));
            let down = world.download(store, 2, &["--name", "wheels"]).expect_code(0);
            arrived(&down, files);
            assert_eq!(down.outputs["artifact-digest"], second.outputs["artifact-digest"]);
            arrived(&world.download(store, 2, &["--locator", &second.outputs["locator"]]), files);
            // The first attempt's artifact is not to win over the second one's.
            let late = world.upload(store, 1, &args, &[("a", 0o644, b"late"), ("b", 0o644, b"b")]);
            late.expect_code(1);
            arrived(&world.download(store, 2, &["--name", "wheels"]), files);
        }
    }
}

/// `overwrite` replaces an artifact of the same name, and not what lies where the prefix leads.
#[test]
fn prefix_without_the_name_loses_no_artifact_to_another_one() {
    for archive in ["zip", "none"] {
        let world = World::new();
        let prefix = ["--s3-prefix", "ci/{run_id}"];
        let upload = |attempt, name, files| {
            let args = ["--name", name, "--archive", archive, "--overwrite"];
            world.upload(S3, attempt, &[&args[..], &prefix].concat(), files)
        };
        let files: Files<'_> = &[("a", 0o644, b"first")];
        upload(1, "first", files).expect_code(0);
        for attempt in [1, 2] {
            let ran = upload(attempt, "second", &[("a", 0o644, b"second")]).expect_code(1);
            assert!(ran.stderr.contains("doesn't contain `{name}`"), "{}", ran.report());
        }
        let down = world.download(S3, 1, &[&["--name", "first"], &prefix[..]].concat());
        arrived(&down.expect_code(0), files);
    }
}

#[test]
fn file_missing_in_the_rerun_is_deleted_from_the_artifact() {
    for store in [S3, GitHub] {
        let world = World::new();
        let args = ["--name", "wheels", "--archive", "none"];
        world.upload(store, 1, &args, &[("a", 0o644, b"1"), ("old", 0o644, b"1")]).expect_code(0);
        let files: Files<'_> = &[("a", 0o644, b"2"), ("b", 0o644, b"2")];
        world.upload(store, 2, &[&args[..], &["--overwrite"]].concat(), files).expect_code(0);
        arrived(&world.download(store, 2, &["--name", "wheels"]).expect_code(0), files);
    }
}

#[test]
fn rerun_with_the_same_content_succeeds() {
    let files: Files<'_> = &[("a", 0o755, b"same"), ("b", 0o644, b"b")];
    for store in [S3, GitHub] {
        for archive in ["zip", "none"] {
            let world = World::new();
            let args = ["--name", "wheels", "--archive", archive];
            let first = world.upload(store, 1, &args, files).expect_code(0);
            for attempt in [1, 2] {
                let again = world.upload(store, attempt, &args, files).expect_code(0);
                assert_eq!(again.outputs["artifact-digest"], first.outputs["artifact-digest"]);
            }
            arrived(&world.download(store, 2, &["--name", "wheels"]).expect_code(0), files);
        }
    }
}

#[test]
fn other_content_in_the_same_attempt_is_a_conflict_without_overwrite() {
    for store in [S3, GitHub] {
        for archive in ["zip", "none"] {
            let world = World::new();
            let args = ["--name", "wheels", "--archive", archive];
            world
                .upload(store, 1, &args, &[("a", 0o644, b"one"), ("b", 0o644, b"b")])
                .expect_code(0);
            let files: Files<'_> = &[("a", 0o644, b"two"), ("b", 0o644, b"b")];
            let refused = world.upload(store, 1, &args, files).expect_code(1);
            for word in ["[conflict]", "overwrite"] {
                assert!(refused.stderr.contains(word), "{word}\n{}", refused.report());
            }
            let overwrite = [&args[..], &["--overwrite"]].concat();
            world.upload(store, 1, &overwrite, files).expect_code(0);
            arrived(&world.download(store, 1, &["--name", "wheels"]).expect_code(0), files);
        }
    }
}

/// S3 was away for the first upload of a job that stores the same name again and again.
#[test]
fn overwrite_on_s3_also_replaces_what_fell_back_to_github() {
    let world = World::new();
    let overwrite = ["--name", "wheels", "--overwrite"];
    world.upload(GitHub, 1, &["--name", "logs"], &[("a", 0o644, b"logs")]).expect_code(0);
    let files: Files<'_> = &[("a", 0o644, b"two")];
    for fallback in ["auto", "never"] {
        world.upload(GitHub, 1, &overwrite, &[("a", 0o644, b"one")]).expect_code(0);
        let on_s3 = [&overwrite[..], &["--fallback", fallback]].concat();
        let ran = world.upload(S3, 1, &on_s3, files).expect_code(0);
        assert_eq!((&*ran.outputs["store"], world.names()), ("s3", vec!["logs".to_owned()]));
        arrived(&world.download(S3, 1, &["--name", "wheels"]).expect_code(0), files);
    }
    world.github.state().traffic.fail("ListArtifacts", 9, Fault::status(400));
    let ran = world.upload(S3, 1, &overwrite, &[("a", 0o644, b"three")]).expect_code(0);
    assert!(ran.stderr.contains("can't be deleted from GitHub's store"), "{}", ran.report());
}

/// S3 was away for the first job, or it had no credentials.
#[test]
fn name_that_another_job_stored_at_github_is_a_conflict_on_s3() {
    let world = World::new();
    let wheels = ["--name", "wheels"];
    let files: Files<'_> = &[("a", 0o644, b"one")];
    world.upload(GitHub, 1, &wheels, files).expect_code(0);
    for archive in ["zip", "none"] {
        let args = [&wheels[..], &["--archive", archive]].concat();
        let ran = world.upload(S3, 1, &args, &[("a", 0o644, b"two")]).expect_code(1);
        assert!(ran.stderr.contains("[conflict]"), "{}", ran.report());
        assert!(world.s3.keys().is_empty(), "{:?}", world.s3.keys());
    }
    arrived(&world.download(S3, 1, &wheels).expect_code(0), files);
    let same = world.upload(S3, 1, &wheels, files).expect_code(0);
    assert_eq!(same.outputs["store"], "s3", "{}", same.report());
    // The next attempt replaces what an earlier one stored anywhere.
    let newer: Files<'_> = &[("a", 0o644, b"three")];
    world.upload(S3, 2, &wheels, newer).expect_code(0);
    arrived(&world.download(S3, 2, &wheels).expect_code(0), newer);
}

/// The second job has no credentials, or leaves S3 on purpose.
#[test]
fn name_that_another_job_stored_on_s3_is_a_conflict_at_github() {
    for archive in ["zip", "none"] {
        let world = World::new();
        world.s3.rules(|rules| rules.anonymous = Anonymous::Read);
        let wheels = ["--name", "wheels", "--archive", archive];
        let files: Files<'_> = &[("a", 0o644, b"one"), ("b", 0o644, b"b")];
        world.upload(S3, 1, &wheels, files).expect_code(0);
        let always = [&wheels[..], &["--fallback", "always"]].concat();
        let other: Files<'_> = &[("a", 0o644, b"two"), ("b", 0o644, b"b")];
        for (store, attempt, job) in [(GitHub, 1, "build"), (S3, 1, "test"), (GitHub, 2, "test")] {
            let step = world.upload_step(store, attempt, &always, other).env("GITHUB_JOB", job);
            let ran = step.run().expect_code(1);
            assert!(ran.stderr.contains("[conflict]"), "{}", ran.report());
            assert!(ran.stderr.contains("belongs to the job `build`"), "{}", ran.report());
            assert!(world.names().is_empty(), "{:?}", world.names());
        }
        arrived(&world.download(S3, 1, &["--name", "wheels"]).expect_code(0), files);
        let same = world.upload(GitHub, 1, &wheels, files).expect_code(0);
        assert_eq!(same.outputs["store"], "github", "{}", same.report());
        // The job's next attempt replaces what an earlier one stored anywhere.
        world.upload(GitHub, 2, &wheels, other).expect_code(0);
        arrived(&world.download(S3, 2, &["--name", "wheels"]).expect_code(0), other);
    }
}

#[test]
fn upload_to_s3_hears_of_a_job_that_stored_the_name_at_github_meanwhile() {
    let mut world = World::new();
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    proxy.add(Rule::hold().method(Method::PUT).path(".crcr.json"));
    world.endpoint = proxy.url().clone();
    let wheels = ["--name", "wheels"];
    let step = world.upload_step(S3, 1, &wheels, &[("a", 0o644, b"one")]);
    let files: Files<'_> = &[("a", 0o644, b"two")];
    // The locator is put after the archive.
    let late = act_during(step, &proxy, (Method::PUT, 2), || {
        world.upload(GitHub, 1, &wheels, files).expect_code(0);
        proxy.release();
    });
    let late = late.expect_code(1);
    assert!(late.stderr.contains("[conflict]"), "{}", late.report());
    arrived(&world.download(S3, 1, &wheels).expect_code(0), files);
}

#[test]
fn upload_to_s3_needs_no_list_of_github() {
    let world = World::new();
    let args = ["--name", "wheels"];
    for (fault, times) in [(Fault::status(503), 3), (Fault::status(400), 1), (Fault::Stall, 1)] {
        world.github.state().traffic.fail("ListArtifacts", times, fault.clone());
        let ran = world.upload(S3, 1, &args, &[("a", 0o644, b"one")]).expect_code(0);
        assert_eq!(ran.outputs["store"], "s3", "{fault:?}: {}", ran.report());
    }
    assert!(world.github.state().traffic.unmet().is_empty());
}

#[test]
fn list_shows_both_stores_and_no_locators() {
    let world = World::new();
    let in_s3 = world.upload(S3, 1, &["--name", "wheels"], &[("a", 0o644, b"a")]).expect_code(0);
    let with_github =
        world.upload(GitHub, 1, &["--name", "logs"], &[("b", 0o644, b"b")]).expect_code(0);
    let ran = world.step(S3, 1, "list", &[]).run().expect_code(0);
    let rows: Vec<Vec<_>> =
        ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let digest = |ran: &Ran| format!("sha256:{}", ran.outputs["artifact-digest"]);
    let shown: Vec<_> = rows.iter().map(|row| (row[0], row[1], *row.last().unwrap())).collect();
    let (logs, wheels) = (digest(&with_github), digest(&in_s3));
    assert_eq!(shown, [("logs", "github", &*logs), ("wheels", "s3", &*wheels)], "{}", ran.report());

    let ran = world.step(S3, 1, "list", &["--format", "json"]).run().expect_code(0);
    let listed: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let locator = |ran: &Ran| serde_json::from_str::<Value>(&ran.outputs["locator"]).unwrap();
    assert_eq!(listed[1], locator(&in_s3));
    for field in ["name", "store", "artifact_id", "digest", "size", "run_id"] {
        assert_eq!(listed[0][field], locator(&with_github)[field], "{field}");
    }
    assert_eq!(world.names(), ["logs"], "nothing of ours is beside it on GitHub");

    let ran = world.step(S3, 1, "download", &["--path", "out"]).run().expect_code(0);
    arrived(&ran, &[("logs/b", 0o644, b"b"), ("wheels/a", 0o644, b"a")]);
}

#[test]
fn locator_finds_an_artifact_under_a_custom_prefix() {
    let world = World::new();
    let prefix = ["--s3-prefix", "ci/{run_id}/{run_attempt}/{job}/{name}"];
    let args = [&["--name", "wheels"], &prefix[..]].concat();
    let files: Files<'_> = &[("a", 0o644, b"by locator")];
    let ran = world.upload(S3, 1, &args, files).expect_code(0);
    let args = [&["--locator", &*ran.outputs["locator"]], &prefix[..]].concat();
    let down = world.download(S3, 1, &args).expect_code(0);
    arrived(&down, files);
    assert_eq!(down.outputs["store"], "s3");
}
