//! `crcr artifact download` and `list`: from either store, whole or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use axum::http::Method;
use crcr_artifacts::digest::Digest;
use crcr_artifacts::locator::{ArchiveFormat, ArtifactTrust, Locator, StoredPlace, VERSION};
use crcr_artifacts::store::s3::{S3Access, S3Config, S3Store};
use crcr_github::artifact::ArtifactService;
use crcr_standin::StandIn;
use crcr_standin::runs::{Job, Run};
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule};
use crcr_testkit::s3::{ACCESS_KEY, Anonymous, S3Server, SECRET_KEY};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::artifact_upload_faults::with_bucket;
use crate::support::{Crcr, Ran};

const BUCKET: &str = "artifacts";

/// GitHub, a bucket, and a job of run 4242 that reads what another has stored.
pub(crate) struct World {
    pub(crate) github: StandIn,
    pub(crate) s3: S3Server,
    job: Job,
    runtime: Runtime,
}

impl World {
    pub(crate) fn new(run: Run) -> Self {
        let github = StandIn::start().unwrap();
        let runs = &github.state().runs;
        let job = runs.add_job(runs.add(run), "build");
        let s3 = S3Server::start(BUCKET).unwrap();
        Self { github, s3, job, runtime: Runtime::new().unwrap() }
    }

    /// The same world, as a job of another run sees it.
    pub(crate) fn in_run(self, run: Run) -> Self {
        let runs = &self.github.state().runs;
        let job = runs.add_job(runs.add(run), "later");
        Self { job, ..self }
    }

    /// Stores a blob with GitHub and gives its number.
    pub(crate) fn github(&self, name: &str, kind: &str, bytes: &[u8]) -> u64 {
        self.runtime.block_on(store_raw(&self.github, &self.job, (name, kind), bytes))
    }

    /// Stores an object with metadata.
    pub(crate) fn s3(&self, key: &str, bytes: &[u8], metadata: &[(&str, &str)]) {
        let credentials =
            aws_credential_types::Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "test");
        let config = S3Config {
            bucket: BUCKET.to_owned(),
            region: Some("us-east-1".to_owned()),
            endpoint: Some(self.s3.url().clone()),
            fips: false,
            dual_stack: false,
            checksum: true,
            object_headers: vec![],
            requester_pays: false,
            silence: crcr_github::http::SILENCE,
            retry: crcr_github::http::RetryPolicy::CALL,
            access: S3Access::Given(
                aws_credential_types::provider::SharedCredentialsProvider::new(credentials),
            ),
        };
        self.runtime.block_on(async {
            let store = S3Store::connect(config).await.unwrap();
            let mut put = store.client().put_object().bucket(BUCKET).key(key);
            for (name, value) in metadata {
                put = put.metadata(*name, *value);
            }
            put.body(bytes.to_vec().into()).send().await.unwrap();
        });
    }

    /// The locator of a zip in the bucket.
    pub(crate) fn locator(&self, key: &str, bytes: &[u8]) -> Locator {
        Locator {
            version: VERSION,
            name: "wheels".to_owned(),
            repository: "acme/upstream".to_owned(),
            run_id: 4242,
            run_attempt: 1,
            job: "build".to_owned(),
            leg: None,
            check_run_id: None,
            place: StoredPlace::S3 {
                bucket: BUCKET.to_owned(),
                key: key.to_owned(),
                endpoint: Some(self.s3.url().to_string()),
                region: None,
            },
            archive: ArchiveFormat::Zip,
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            file_count: 1,
            files: vec![],
            created: "2026-01-02T03:04:05Z".parse().unwrap(),
            trust: ArtifactTrust::SameRepo,
        }
    }

    /// A step of the job, with the token of the artifact service.
    pub(crate) fn step(&self, command: &str, args: &[&str]) -> Crcr {
        self.step_of(&self.job.run.event, command, args)
    }

    fn step_of(&self, event: &str, command: &str, args: &[&str]) -> Crcr {
        let mut step = Crcr::step(&["artifact", command], event, &json!({}));
        let environment: BTreeMap<_, _> = self.github.state().job_environment(&self.job);
        step = step.env("GITHUB_API_URL", &environment["GITHUB_API_URL"]);
        step = step.env("CRCR_RUNTIME_TOKEN", &environment["ACTIONS_RUNTIME_TOKEN"]);
        step = step.env("CRCR_RESULTS_URL", &environment["ACTIONS_RESULTS_URL"]);
        args.iter().fold(step, |step, arg| step.arg(arg))
    }

    /// The same with the bucket and credentials for it.
    pub(crate) fn signed(&self, step: Crcr) -> Crcr {
        step.arg("--s3-bucket")
            .arg(BUCKET)
            .arg("--s3-endpoint")
            .arg(self.s3.url().as_str())
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    }
}

/// Stores bytes of this name and content type as `job` may, without any client's checks.
pub(crate) async fn store_raw(
    github: &StandIn,
    job: &Job,
    (name, kind): (&str, &str),
    bytes: &[u8],
) -> u64 {
    let environment = github.state().job_environment(job);
    let http = crcr_github::http::client().unwrap();
    let token = environment["ACTIONS_RUNTIME_TOKEN"].clone().into();
    let url = &environment["ACTIONS_RESULTS_URL"];
    let service = ArtifactService::new(http.clone(), url, token).unwrap();
    let url = service.create(name, None, kind).await.unwrap().url;
    let put = http.put(url.expose_secret()).header("x-ms-blob-type", "BlockBlob");
    assert_eq!(put.body(bytes.to_vec()).send().await.unwrap().status(), 201);
    let digest = Digest::of(bytes).to_string();
    service.finalize(name, bytes.len() as u64, &digest).await.unwrap()
}

pub(crate) fn zip(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(vec![]));
    for (name, mode, content) in files {
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .unix_permissions(*mode);
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Bytes that no two ranges have in common.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// What the step sees in its own folder, but for the runner's files.
pub(crate) fn visible(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name != "runner");
    names.sort();
    names
}

#[track_caller]
pub(crate) fn refused(ran: &Ran, code: &str, texts: &[&str]) {
    assert!(ran.stderr.contains(&format!("[{code}]")), "{}", ran.report());
    for text in texts {
        assert!(ran.stderr.contains(text), "`{text}` in\n{}", ran.report());
    }
    assert_eq!(visible(&ran.path("")), [""; 0], "{}", ran.report());
}

#[test]
fn artifact_of_another_job_is_downloaded_from_github_with_its_modes() {
    let world = World::new(Run::fork());
    let bytes = zip(&[("bin/tool", 0o755, b"run"), ("note.txt", 0o600, b"hello")]);
    let id = world.github("wheels", "application/zip", &bytes);
    world.github("other", "application/zip", &zip(&[("x", 0o644, b"x")]));
    let ran = world.step("download", &["--name", "wheels", "--path", "out"]).run().expect_code(0);
    let mode = |name: &str| fs::metadata(ran.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("out/bin/tool"), mode("out/note.txt")), (0o755, 0o600));
    assert_eq!(fs::read(ran.path("out/note.txt")).unwrap(), b"hello");
    assert_eq!(visible(&ran.path("")), ["out"]);
    assert_eq!(ran.outputs["store"], "github");
    assert_eq!(ran.outputs["artifact-id"], id.to_string());
    assert_eq!(ran.outputs["artifact-digest"], Digest::of(&bytes).hex());
    assert_eq!(ran.outputs["download-path"], ran.path("out").to_str().unwrap());
    assert_eq!((&*ran.outputs["files"], &*ran.outputs["reason"]), ("2", "ok"));
}

#[test]
fn several_artifacts_get_separate_folders_or_are_merged_in_order() {
    let world = World::new(Run::push());
    for (name, content) in [("a-1", "one"), ("a-2", "two"), ("b", "no")] {
        world.github(name, "application/zip", &zip(&[("same", 0o644, content.as_bytes())]));
    }
    world.github("crcr-locator-b-3", "application/zip", b"hidden, as nobody asks for b-3");
    fn read(ran: &Ran, name: &str) -> String {
        fs::read_to_string(ran.path(name)).unwrap()
    }
    let world_step = |args: &[&str]| world.step("download", args);
    let ran = world_step(&["--pattern", "a-[12]"]).run().expect_code(0);
    assert_eq!((&*read(&ran, "a-1/same"), &*read(&ran, "a-2/same")), ("one", "two"));
    let merge = ["--pattern", "a-[12]", "--merge-multiple", "true"];
    let ran = world_step(&merge).run().expect_code(1);
    let told = ["`same` is in two artifacts, `a-1` and `a-2`", "without `merge-multiple` each"];
    refused(&ran, "path-collision", &told);
    let ran = world_step(&merge).arg("--on-collision=last").run().expect_code(0);
    assert_eq!(read(&ran, "same"), "two");
    let ran = world_step(&["--pattern", "nothing-*"]).run().expect_code(0);
    assert_eq!(ran.outputs["store"], "none");
}

#[test]
fn single_raw_file_keeps_its_name() {
    let world = World::new(Run::push());
    world.github("report.txt", "text/plain", b"plain");
    let ran = world.step("download", &["--name", "report.txt"]).run().expect_code(0);
    assert_eq!(fs::read(ran.path("report.txt")).unwrap(), b"plain");
}

#[test]
fn bucket_is_read_by_the_conventional_key_signed_and_then_anonymously() {
    let world = World::new(Run::same_repository());
    let bytes = zip(&[("a", 0o644, b"from s3")]);
    let digest = Digest::of(&bytes).hex();
    let key = "acme/upstream/4242/wheels/artifacts.zip";
    world.s3(key, &bytes, &[("sha256", &digest), ("crcr-attempt", "1")]);
    let step = world.signed(world.step("download", &["--name", "wheels"]));
    let ran = step.run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"from s3");
    assert_eq!(ran.outputs["store"], "s3");
    world.s3.rules(|rules| rules.anonymous = Anonymous::Read);
    let wrong = world.signed(world.step("download", &["--name", "wheels"]));
    let ran = wrong.env("AWS_SECRET_ACCESS_KEY", "wrong").run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"from s3");
}

#[test]
fn artifact_of_separate_objects_is_downloaded_with_modes() {
    let world = World::new(Run::push());
    world.s3("acme/upstream/4242/logs/d/run.sh", b"run", &[("crcr-mode", "755")]);
    world.s3("acme/upstream/4242/logs/empty", b"", &[]);
    let ran = world.signed(world.step("download", &["--name", "logs"])).run().expect_code(0);
    let mode = fs::metadata(ran.path("d/run.sh")).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode, fs::read(ran.path("empty")).unwrap()), (0o755, vec![]));
    let lie = [("sha256", &*"0".repeat(64))];
    world.s3("acme/upstream/4242/logs/lie", b"x", &lie);
    let ran = world.signed(world.step("download", &["--name", "logs"])).run().expect_code(2);
    refused(&ran, "digest-mismatch", &["`lie`"]);
}

#[test]
fn artifact_of_the_higher_attempt_is_downloaded() {
    let world = World::new(Run::push());
    for (attempt, content) in [("2", "second"), ("1", "first")] {
        let bytes = zip(&[("a", 0o644, content.as_bytes())]);
        world.s3(&format!("ci/4242/{attempt}/wheels/artifacts.zip"), &bytes, &[]);
    }
    let args = ["--name", "wheels", "--s3-prefix", "ci/{run_id}/{run_attempt}/{name}"];
    let ran = world.signed(world.step("download", &args)).run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"second");
}

#[test]
fn locator_is_followed_only_into_the_prefix_of_its_run() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, b"x")]);
    let good = world.locator("acme/upstream/4242/wheels/artifacts.zip", &bytes);
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &bytes, &[]);
    world.s3("acme/upstream/4141/wheels/artifacts.zip", &bytes, &[]);
    let download = |locator: &Locator| {
        let json = locator.to_json(64 * 1024);
        world.signed(world.step("download", &["--locator", &json])).run()
    };
    let ran = download(&good).expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"x");
    assert_eq!(ran.outputs["locator"], good.to_json(64 * 1024));
    let url = format!("{}artifacts/acme/upstream/4242/wheels/artifacts.zip", world.s3.url());
    assert_eq!(ran.outputs["artifact-url"], url);

    let outside = world.locator("acme/upstream/4141/wheels/artifacts.zip", &bytes);
    let ran = download(&outside).expect_code(1);
    refused(&ran, "locator-refused", &["isn't below `acme/upstream/4242/wheels/`"]);
    let climbing = world.locator("acme/upstream/4242/wheels/../../4141/wheels/a.zip", &bytes);
    refused(&download(&climbing).expect_code(1), "locator-refused", &[]);
    let place = StoredPlace::S3 {
        bucket: "elsewhere".to_owned(),
        key: "acme/upstream/4242/wheels/artifacts.zip".to_owned(),
        endpoint: Some(world.s3.url().to_string()),
        region: None,
    };
    let ran = download(&Locator { place, ..good.clone() }).expect_code(1);
    refused(&ran, "locator-refused", &["bucket `elsewhere`"]);
    let ran = download(&Locator { run_id: 1, ..good.clone() }).expect_code(1);
    refused(&ran, "locator-refused", &["run `1`"]);
    let ran = download(&Locator { digest: Digest::of(b"other"), ..good.clone() }).expect_code(2);
    refused(&ran, "digest-mismatch", &["its digest is"]);

    let larger = Locator { size: good.size + 1, digest: Digest::of(b"other"), ..good };
    refused(&download(&larger).expect_code(2), "fetch", &["in its place", "upload it again"]);
    let json = larger.to_json(64 * 1024);
    let args = ["--locator", &json, "--digest-mismatch", "warn"];
    let ran = world.signed(world.step("download", &args)).run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"x", "{}", ran.report());
    let mut gone = larger;
    if let StoredPlace::S3 { key, .. } = &mut gone.place {
        *key = "acme/upstream/4242/wheels/gone.zip".to_owned();
    }
    refused(&download(&gone).expect_code(1), "artifact-not-found", &["has deleted it"]);
}

/// Such as an address within a cluster, and one for GitHub's own runners.
#[test]
fn artifact_is_found_at_another_address_of_the_server_that_it_was_stored_at() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, b"x")]);
    let key = "acme/upstream/4242/wheels/artifacts.zip";
    let json = world.locator(key, &bytes).to_json(64 * 1024);
    world.s3(key, &bytes, &[]);
    world.s3("acme/upstream/4242/wheels.crcr.json", json.as_bytes(), &[]);
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    for args in [["--name", "wheels"], ["--locator", &json]] {
        let step = world.step("download", &args);
        let ran = with_bucket(step, BUCKET, proxy.url().as_str()).run().expect_code(0);
        assert_eq!(fs::read(ran.path("a")).unwrap(), b"x");
    }
    let other = world.locator("acme/upstream/4242/wheels/other.zip", &bytes).to_json(64 * 1024);
    let step = world.step("download", &["--locator", &other]);
    let ran = with_bucket(step, BUCKET, proxy.url().as_str()).run().expect_code(1);
    refused(&ran, "locator-refused", &[world.s3.url().as_str(), "doesn't have it"]);
}

#[test]
fn locator_published_at_github_leads_to_the_bucket() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, b"by locator")]);
    let locator = world.locator("acme/upstream/4242/wheels/artifacts.zip", &bytes);
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &bytes, &[]);
    let json = locator.to_json(64 * 1024);
    let published = zip(&[("locator.json", 0o644, json.as_bytes())]);
    world.github("crcr-locator-wheels", "application/zip", &published);
    let ran = world.signed(world.step("download", &["--name", "wheels"])).run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"by locator");
    let ran = world.signed(world.step("list", &["--format", "json"])).run().expect_code(0);
    let listed: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(listed, json!([locator]));
    let ran = world.step("download", &["--name", "wheels"]).run().expect_code(1);
    refused(&ran, "locator-refused", &["no `s3-bucket` is configured"]);
}

#[test]
fn list_prints_name_store_size_created_and_digest() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, b"x")]);
    world.github("wheels", "application/zip", &bytes);
    let ran = world.step("list", &[]).run().expect_code(0);
    let digest = Digest::of(&bytes).to_string();
    let line: Vec<_> = ran.stdout.split_whitespace().collect();
    assert_eq!((line[0], line[1]), ("wheels", "github"));
    assert_eq!(*line.last().unwrap(), digest);
    assert_eq!(ran.stdout.lines().count(), 1);
}

#[test]
fn error_for_a_missing_artifact_lists_the_places_searched() {
    let world = World::new(Run::push());
    let ran = world.signed(world.step("download", &["--name", "wheels"])).run().expect_code(1);
    let places = ["GitHub's list of run 4242", "s3://artifacts/acme/upstream/4242/wheels"];
    refused(&ran, "artifact-not-found", &places);
    assert!(!ran.stderr.contains("anonymous"), "who may list knows: {}", ran.report());
    let empty = ["download-path", "artifact-id", "artifact-url", "artifact-digest", "locator"];
    assert!(empty.iter().all(|name| ran.outputs[*name].is_empty()), "{}", ran.report());
    let reason = (&*ran.outputs["store"], &*ran.outputs["reason"]);
    assert_eq!(reason, ("none", "artifact-not-found"));
    let elsewhere = || {
        let step = world.signed(world.step("download", &["--name", "wheels"]));
        step.env("GITHUB_SERVER_URL", "https://ghe.example.com").run().expect_code(1)
    };
    // Gitea and Forgejo have the list, and Enterprise Server doesn't.
    let ran = elsewhere();
    assert!(!ran.stderr.contains("Enterprise Server"), "{}", ran.report());
    world.github.state().traffic.fail("ListArtifacts", 1, Fault::status(404));
    let ran = elsewhere();
    refused(&ran, "artifact-not-found", &["GitHub Enterprise Server has no v4 artifacts; there"]);
    // A re-run there finds what is in the bucket.
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &zip(&[("a", 0o644, b"x")]), &[]);
    world.github.state().traffic.fail("ListArtifacts", 1, Fault::status(404));
    let step = world.signed(world.step("download", &["--name", "wheels"]));
    let step = step.env("GITHUB_SERVER_URL", "https://ghe.example.com");
    step.env("GITHUB_RUN_ATTEMPT", "2").run().expect_code(0);
}

#[test]
fn bucket_in_another_region_is_read_in_its_region() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, b"x")]);
    let key = "acme/upstream/4242/wheels/artifacts.zip";
    world.s3(key, &bytes, &[]);
    world.s3("acme/upstream/4242/logs/l", b"l", &[]);
    let locator = world.locator(key, &bytes).to_json(64 * 1024);
    world.s3.rules(|rules| rules.region = "eu-west-1".to_owned());
    let signed = |args: &[&str]| world.signed(world.step("download", args)).run().expect_code(0);
    for args in [["--name", "wheels"], ["--locator", &locator]] {
        assert_eq!(fs::read(signed(&args).path("a")).unwrap(), b"x");
    }
    assert_eq!(fs::read(signed(&["--name", "logs"]).path("l")).unwrap(), b"l");
    let ran = world.signed(world.step("list", &[])).run().expect_code(0);
    assert_eq!(ran.stdout.lines().count(), 2, "{}", ran.report());

    // A server that says only that it is elsewhere.
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    proxy.add(Rule::any(Fault::status(301)));
    let step = world.step("download", &["--name", "wheels"]);
    let ran = with_bucket(step, BUCKET, proxy.url().as_str()).run().expect_code(1);
    refused(&ran, "wrong-region", &["another region, not in `us-east-1`", "`aws-region`"]);
}

#[test]
fn forbidden_and_missing_buckets_have_different_errors() {
    let world = World::new(Run::push());
    world.s3.rules(|rules| {
        rules.denied.extend(["HeadObject", "GetObject", "ListObjectsV2"]);
    });
    let ran = world.signed(world.step("download", &["--name", "wheels"])).run().expect_code(1);
    refused(&ran, "store-denied", &["bucket `artifacts` is forbidden", "signed: S3", "GetObject"]);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", "store-denied"));
    let step = world.signed(world.step("download", &["--name", "wheels"]));
    let ran = step.arg("--auth-mode=anonymous").run().expect_code(1);
    refused(&ran, "artifact-not-found", &["GitHub's list", "anonymous: S3"]);
    let ran = world.signed(world.step("list", &[])).run().expect_code(1);
    refused(&ran, "store-denied", &["s3:ListBucket"]);
    world.s3.rules(|rules| rules.denied.clear());
    let step = world.step("download", &["--name", "x", "--s3-bucket", "missing", "--s3-endpoint"]);
    let step = step.arg(world.s3.url().as_str()).env("AWS_REGION", "us-east-1");
    let ran = step.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
    let ran = ran.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).run().expect_code(1);
    refused(&ran, "missing-bucket", &["`missing` doesn't exist"]);
}

#[test]
fn artifacts_of_another_run_need_a_token() {
    let world = World::new(Run::push());
    world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    let args = ["--name", "wheels", "--run-id", "4242"];
    let step = || reader.step("download", &args).env("GITHUB_RUN_ID", "5000");
    refused(&step().run().expect_code(1), "token-needed", &["run 4242"]);
    let ran = step().arg("--github-token=ghs_reader").run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"x");
}

#[test]
fn token_that_can_not_read_actions_is_told_what_it_needs() {
    let world = World::new(Run::push());
    world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    let job_token = |permission: &str| {
        reader.github.state().world.job_token("acme/upstream", &[(permission, "read")])
    };
    let args = ["--name", "wheels", "--run-id", "4242", "--github-token"];
    let run =
        |token: &str| reader.step("download", &args).arg(token).env("GITHUB_RUN_ID", "5000").run();
    let ran = run(&job_token("contents")).expect_code(1);
    refused(
        &ran,
        "store-denied",
        &["not accessible by integration", "`permissions: actions: read`"],
    );
    run(&job_token("actions")).expect_code(0);
}

#[test]
fn artifacts_of_another_run_are_found_by_id() {
    let world = World::new(Run::push());
    let one = world.github("one", "application/zip", &zip(&[("a", 0o644, b"1")]));
    let two = world.github("two", "application/zip", &zip(&[("a", 0o644, b"2")]));
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    let step = |ids: &str| {
        let args = ["--artifact-ids", ids, "--run-id", "4242", "--github-token", "ghs_reader"];
        reader.step("download", &args).env("GITHUB_RUN_ID", "5000")
    };
    let ran = step(&one.to_string()).run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"1");
    assert_eq!(ran.outputs["artifact-id"], one.to_string());
    let url = format!("https://github.com/acme/upstream/actions/runs/4242/artifacts/{one}");
    assert_eq!(ran.outputs["artifact-url"], url);
    let ran = step(&format!("{one}, {two}")).run().expect_code(0);
    assert_eq!(fs::read(ran.path("two/a")).unwrap(), b"2");
    let ran = step("77").run().expect_code(1);
    refused(&ran, "artifact-not-found", &["the number 77", "run 4242"]);
}

#[test]
fn broken_download_is_resumed_where_it_broke() {
    let world = World::new(Run::push());
    let content = noise(20 << 20);
    world.github("big", "application/zip", &zip(&[("a", 0o644, &content)]));
    let traffic = &world.github.state().traffic;
    traffic.fail("GetBlob", 2, Fault::ResetAfterBytes(3 << 20));
    traffic.fail("GetBlob", 1, Fault::CutAfterBytes(1 << 20));
    traffic.fail("GetBlob", 1, Fault::ShortenTo(1 << 20));
    traffic.fail("GetBlob", 1, Fault::status(503));
    let ran = world.step("download", &["--name", "big"]).run().expect_code(0);
    assert!(fs::read(ran.path("a")).unwrap() == content);
    assert_eq!(traffic.unmet(), [""; 0]);
}

#[test]
fn expired_signed_url_is_requested_again() {
    let world = World::new(Run::push());
    world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
    world.github.state().traffic.fail("GetSignedArtifactURL", 1, Fault::ExpiredUrl);
    world.step("download", &["--name", "wheels"]).run().expect_code(0);
    assert_eq!(world.github.state().traffic.calls("GetSignedArtifactURL"), 2);
}

#[test]
fn bytes_that_change_once_on_their_way_are_fetched_again() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, &noise(5000))]);
    world.github("wheels", "application/zip", &bytes);
    world.github.state().traffic.fail("GetBlob", 1, Fault::Corrupt);
    let ran = world.step("download", &["--name", "wheels"]).run().expect_code(0);
    assert!(ran.stderr.contains("`wheels` is fetched once more"), "{}", ran.report());
    assert_eq!(fs::read(ran.path("a")).unwrap().len(), 5000);

    let digest = Digest::of(b"run").hex();
    let sum = [("sha256", &*digest), ("crcr-mode", "755")];
    world.s3("acme/upstream/4242/logs/run.sh", b"run", &sum);
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    proxy.add(Rule::any(Fault::Corrupt).method(Method::GET).path("run.sh").times(1));
    let step = world.step("download", &["--name", "logs"]);
    let ran = with_bucket(step, "artifacts", proxy.url().as_str()).run().expect_code(0);
    assert_eq!(fs::read(ran.path("run.sh")).unwrap(), b"run", "{}", ran.report());
    assert_eq!(proxy.count(&Method::GET, "run.sh", ""), 2);
}

#[test]
fn wrong_bytes_from_the_server_leave_no_files() {
    let world = World::new(Run::push());
    let id = world.github("wheels", "application/zip", &zip(&[("a", 0o644, &noise(5000))]));
    let traffic = &world.github.state().traffic;
    traffic.fail("GetBlob", 2, Fault::Corrupt);
    let ran = world.step("download", &["--name", "wheels"]).run().expect_code(2);
    refused(&ran, "digest-mismatch", &["isn't what was uploaded"]);
    assert_eq!(traffic.calls("GetBlob"), 2, "the range that is open is read, not asked for again");
    let altered = world.github.state().artifacts.alter(id, |artifact| artifact.size = 7);
    assert!(altered);
    let ran = world.step("download", &["--name", "wheels"]).run().expect_code(2);
    refused(&ran, "fetch", &["the artifact has 7"]);
    assert_eq!(traffic.unmet(), [""; 0]);
}

#[test]
fn malicious_archive_leaves_no_files() {
    let world = World::new(Run::push());
    world.github("evil", "application/zip", &zip(&[("ok", 0o644, b"x"), ("../up", 0o644, b"x")]));
    let ran = world.step("download", &["--name", "evil"]).run().expect_code(1);
    refused(&ran, "artifact-refused", &["`../up` is refused"]);
}

#[test]
fn cancelled_download_leaves_no_files() {
    let world = World::new(Run::push());
    world.github("big", "application/zip", &zip(&[("a", 0o644, &noise(20 << 20))]));
    let traffic = &world.github.state().traffic;
    traffic.fail("GetBlob", 3, Fault::StallAfterBytes(2 << 20));
    let mut step = world.step("download", &["--name", "big", "--path", "out/below"]);
    let command = step.command().stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let began = std::time::Instant::now();
    while traffic.calls("GetBlob") < 3 && began.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert_eq!(visible(step.folder()), [""; 0]);
}

#[test]
fn trust_in_a_privileged_event_comes_from_githubs_record() {
    let world = World::new(Run::fork());
    world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
    let token = "--github-token=ghs_reader";
    let step = |args: &[&str]| world.step_of("workflow_run", "download", args);
    let ran = step(&["--name", "wheels"]).run().expect_code(1);
    refused(&ran, "token-needed", &["can't be checked"]);
    let ran = step(&["--name", "wheels", token]).run().expect_code(1);
    refused(&ran, "untrusted-artifact", &["contributor/upstream", "allow-fork"]);
    let ran = step(&["--name", "wheels", token, "--allow-fork=true"]).run().expect_code(0);
    let path = Path::new(&ran.outputs["download-path"]);
    assert!(path.starts_with(ran.path("runner")), "a fresh folder: {path:?}");
    assert_eq!(fs::read(path.join("a")).unwrap(), b"x");
    assert_eq!(visible(&ran.path("")), [""; 0]);
    world.github("git", "application/zip", &zip(&[(".github/workflows/x.yml", 0o644, b"x")]));
    let ran = step(&["--name", "git", token, "--allow-fork=true"]).run().expect_code(1);
    refused(&ran, "artifact-refused", &[".github"]);
}

#[test]
fn digest_from_the_bucket_is_not_accepted_in_a_privileged_event() {
    let world = World::new(Run::same_repository());
    let bytes = zip(&[("a", 0o644, b"x")]);
    let key = "acme/upstream/4242/wheels/artifacts.zip";
    world.s3(key, &bytes, &[("sha256", &Digest::of(&bytes).hex())]);
    let step = |args: &[&str]| {
        let step = world.step_of("pull_request_target", "download", args);
        world.signed(step.arg("--github-token=ghs_reader"))
    };
    let ran = step(&["--name", "wheels"]).run().expect_code(1);
    refused(&ran, "untrusted-artifact", &["its digest must come from a job's output"]);
    let json = world.locator(key, &bytes).to_json(64 * 1024);
    step(&["--locator", &json]).run().expect_code(0);
}

#[test]
fn fork_downloads_everything_from_github_if_the_bucket_is_private() {
    let world = World::new(Run::fork());
    world.github("wheels-1", "application/zip", &zip(&[("a", 0o644, b"x")]));
    world.github("wheels-2", "application/zip", &zip(&[("b", 0o644, b"y")]));
    let private = |args: &[&str]| {
        let step = world.signed(world.step("download", args));
        step.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY")
    };
    let patterns: [&[&str]; 2] = [&["--pattern", "wheels-*", "--merge-multiple"], &[]];
    for args in patterns {
        let ran = private(args).run().expect_code(0);
        assert_eq!(ran.outputs["store"], "github");
        let told = "::notice::the bucket `artifacts` was left out";
        assert!(ran.stderr.contains(told), "{}", ran.report());
    }
    // Cloudflare's R2 knows no requests without a signature.
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    let unsigned = crcr_testkit::fault::s3_error(400, "InvalidArgument");
    proxy.add(Rule::any(unsigned).lacking("authorization"));
    let step = world.step("download", &["--pattern", "wheels-*"]);
    let step = with_bucket(step, BUCKET, proxy.url().as_str()).env("CRCR_AUTH_MODE", "anonymous");
    assert_eq!(step.run().expect_code(0).outputs["store"], "github");
    let step = with_bucket(world.step("download", &["--name", "x"]), BUCKET, proxy.url().as_str());
    let step = step.env("CRCR_AUTH_MODE", "anonymous");
    let told = ["without a signature it answers 400"];
    refused(&step.run().expect_code(1), "artifact-not-found", &told);
    // With credentials that are refused, something is misconfigured.
    world.s3.rules(|rules| {
        rules.denied.insert("ListObjectsV2");
    });
    let step = world.signed(world.step("download", &["--pattern", "wheels-*"]));
    refused(&step.run().expect_code(1), "store-denied", &["s3:ListBucket"]);
}

#[test]
fn public_bucket_is_read_anonymously_after_the_credentials_expired() {
    let world = World::new(Run::push());
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &zip(&[("a", 0o644, b"public")]), &[]);
    world.s3.rules(|rules| rules.anonymous = Anonymous::Read);
    let proxy = FaultProxy::start(world.s3.url()).unwrap();
    let expired = crcr_testkit::fault::s3_error(400, "ExpiredToken");
    proxy.add(Rule::any(expired).sending("authorization"));
    let step = world.step("download", &["--name", "wheels"]);
    let ran = with_bucket(step, BUCKET, proxy.url().as_str()).run().expect_code(0);
    assert_eq!(fs::read(ran.path("a")).unwrap(), b"public");
}

/// The refusal of a HEAD has no text.
#[test]
fn clock_and_expired_credentials_are_not_told_as_missing_rights() {
    let world = World::new(Run::push());
    let early = jiff::Timestamp::now() - std::time::Duration::from_secs(20 * 60);
    let early = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&early);
    for (status, hint) in [(403, "by NTP"), (400, "raise `role-duration-seconds`")] {
        let proxy = FaultProxy::start(world.s3.url()).unwrap();
        let refusal = Rule::any(Fault::status(status)).header("date", &early.clone().unwrap());
        proxy.add(refusal.method(Method::HEAD).sending("authorization"));
        let with_text = crcr_testkit::fault::s3_error(status, "AccessDenied");
        proxy.add(Rule::any(with_text).method(Method::GET).sending("authorization"));
        let step = world.step("download", &["--name", "wheels"]);
        let ran = with_bucket(step, BUCKET, proxy.url().as_str()).run().expect_code(1);
        refused(&ran, "store-denied", &[hint]);
        assert!(!ran.stderr.contains("need `s3:GetObject`"), "{}", ran.report());
    }
}

#[test]
fn artifact_of_a_later_attempt_on_s3_wins_over_the_first_attempts_on_github() {
    let world = World::new(Run::push());
    let id = world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"first")]));
    let yesterday = jiff::Timestamp::now() - std::time::Duration::from_secs(86_400);
    assert!(world.github.state().artifacts.alter(id, |artifact| artifact.created = yesterday));
    world.s3("acme/upstream/4242/wheels/artifacts.zip", &zip(&[("a", 0o644, b"second")]), &[]);
    for args in [&["--name", "wheels"][..], &["--pattern", "whee*", "--merge-multiple"]] {
        let step = world.signed(world.step("download", args)).env("GITHUB_RUN_ATTEMPT", "2");
        let ran = step.run().expect_code(0);
        assert_eq!(fs::read(ran.path("a")).unwrap(), b"second");
    }
}

#[test]
fn summary_of_a_failed_download_has_the_cause_and_a_hint() {
    let world = World::new(Run::push());
    let ran = world.step("download", &["--name", "no | <b>"]).run().expect_code(1);
    for text in ["| `artifact-not-found` |", "no \\| &lt;b&gt;", "crcr artifact list"] {
        assert!(ran.summary.contains(text), "{text}\n{}", ran.report());
    }
}

#[test]
fn forks_artifact_of_another_run_needs_allow_fork_in_every_event() {
    let world = World::new(Run::fork());
    world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    let args = ["--name", "wheels", "--run-id", "4242", "--github-token", "ghs_reader"];
    let step = || reader.step("download", &args).env("GITHUB_RUN_ID", "5000");
    refused(&step().run().expect_code(1), "untrusted-artifact", &["allow-fork"]);
    step().arg("--allow-fork").run().expect_code(0);
}

/// The run is of the repository and its default branch, and has built an upstream pull request.
#[test]
fn artifact_of_a_dispatched_run_needs_allow_fork_in_another_run_and_not_in_its_own() {
    for (event, reader) in [("repository_dispatch", "workflow_run"), ("issue_comment", "push")] {
        let world = World::new(Run { event: event.to_owned(), ..Run::push() });
        world.github("wheels", "application/zip", &zip(&[("a", 0o644, b"x")]));
        let token = "--github-token=ghs_reader";
        world.step("download", &["--name", "wheels", token]).run().expect_code(0);
        let world = world.in_run(Run { id: 5000, event: reader.to_owned(), ..Run::push() });
        let args = ["--name", "wheels", "--run-id", "4242", "--github-token", "ghs_reader"];
        let step = || world.step_of(reader, "download", &args).env("GITHUB_RUN_ID", "5000");
        let ran = step().run().expect_code(1);
        refused(&ran, "untrusted-artifact", &[event, "anybody's code", "allow-fork"]);
        step().arg("--allow-fork").run().expect_code(0);
    }
}

#[test]
fn forks_artifact_that_is_allowed_brings_no_git_folder_and_no_setuid_bit_in_any_event() {
    let world = World::new(Run::fork());
    world.github("hooks", "application/zip", &zip(&[(".git/hooks/post-checkout", 0o755, b"x")]));
    world.github("tool", "application/zip", &crate::act_hostile_artifacts::setuid());
    let reader = world.in_run(Run { id: 5000, ..Run::push() });
    for (name, why) in [("hooks", "`.git` and `.github`"), ("tool", "setuid")] {
        let args = ["--name", name, "--run-id", "4242", "--github-token", "ghs_reader"];
        let step = reader.step("download", &args).env("GITHUB_RUN_ID", "5000").arg("--allow-fork");
        refused(&step.run().expect_code(1), "artifact-refused", &[why]);
    }
}

#[test]
fn locator_key_is_checked_even_if_the_prefix_starts_with_a_placeholder() {
    let world = World::new(Run::push());
    let bytes = zip(&[("a", 0o644, b"x")]);
    let download = |key: &str| {
        world.s3(key, &bytes, &[]);
        let json = world.locator(key, &bytes).to_json(64 * 1024);
        let args = ["--locator", &json, "--s3-prefix", "{job}/{run_id}/{name}"];
        world.signed(world.step("download", &args)).run()
    };
    download("build/4242/wheels/artifacts.zip").expect_code(0);
    for key in ["build/4141/wheels/artifacts.zip", "secrets/x.zip"] {
        refused(&download(key).expect_code(1), "locator-refused", &["the prefix of this run"]);
    }
}

#[test]
fn sparse_file_of_a_run_of_the_repositorys_own_code_is_not_a_zip_bomb() {
    let world = World::new(Run::push());
    let step = world.step("upload", &["--name", "disk", "--path", "disk.img"]);
    fs::File::create(step.folder().join("disk.img")).unwrap().set_len(513 << 20).unwrap();
    step.run().expect_code(0);
    let ran = world.step("download", &["--name", "disk", "--path", "out"]).run().expect_code(0);
    assert_eq!(fs::metadata(ran.path("out/disk.img")).unwrap().len(), 513 << 20);
    let later = world.in_run(Run { id: 5000, ..Run::push() });
    let args = ["--name", "disk", "--run-id", "4242", "--github-token", "ghs_reader"];
    let ran = later.step("download", &args).env("GITHUB_RUN_ID", "5000").run().expect_code(0);
    assert_eq!(fs::metadata(ran.path("disk.img")).unwrap().len(), 513 << 20);
}
