//! Artifacts of every shape in stores that nobody here wrote: gofakes3 and moto for S3, Azurite for the
//! storage behind GitHub's artifacts. What the next job gets is the same from each of them.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::{Peer, noise};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_testkit::s3::{ACCESS_KEY, SECRET_KEY};
use crcr_testkit::unused_port;
use serde_json::json;

use crate::aws_setup::assert_check;
use crate::oidc_configure;
use crate::support::{Crcr, Ran};

/// A server of another project, on a free port. Dropping it ends it.
pub(crate) struct PeerServer {
    child: Child,
    port: u16,
    pub(crate) folder: tempfile::TempDir,
}

impl PeerServer {
    /// Starts what `command` makes of a port, and waits until it listens.
    pub(crate) fn start(command: impl Fn(u16, &Path) -> Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = unused_port();
        let mut command = command(port, folder.path());
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("tests/setup ran");
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the server ended");
            assert!(started.elapsed() < Duration::from_secs(60), "the server doesn't listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, port, folder }
    }

    fn gofakes3() -> Self {
        Self::start(|port, _| {
            let mut command = Command::new("gofakes3");
            command.args(["-backend", "memory", "-initialbucket", BUCKET]);
            command.args(["-host", &format!("127.0.0.1:{port}")]);
            command
        })
    }

    fn moto() -> Self {
        let server = Self::start(|port, _| {
            let mut command = Command::new("moto_server");
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            command
        });
        put(&format!("{}/{BUCKET}", server.url()));
        server
    }

    fn azurite() -> Self {
        Self::start(|port, folder| {
            let peers = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
            let mut peers = peers.map(|folder| folder.join("tests/peers"));
            let bin = peers.find(|folder| folder.is_dir()).unwrap().join("node_modules/.bin");
            let mut command = Command::new(bin.join("node"));
            command.arg(bin.join("azurite-blob")).args(["--silent", "--skipApiVersionCheck"]);
            command.args(["--blobPort", &port.to_string(), "--inMemoryPersistence"]);
            command.current_dir(folder);
            command
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const BUCKET: &str = "artifacts";

fn put(url: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = crcr_github::http::client().unwrap();
    let request = client.put(url).header("content-length", 0);
    let answer = runtime.block_on(crcr_github::http::send_once(request));
    assert!(answer.is_ok(), "{answer:?}");
}

/// A name, the arguments of the upload, and its files; a content of `None` is a link to `a.txt`.
pub(crate) type Shape =
    (&'static str, &'static [&'static str], Vec<(&'static str, Option<Vec<u8>>)>);

pub(crate) fn shapes() -> Vec<Shape> {
    let text = || Some(b"a\n".repeat(1000));
    // Several parts on S3 and several blocks on Azure.
    let large = || Some(noise(17 << 20));
    vec![
        (
            "zip",
            &[],
            vec![("a.txt", text()), ("d/ünï cödé 🦀 +%.txt", text()), ("empty", Some(vec![]))],
        ),
        (
            "large-zip",
            &["--compression-level", "0"],
            vec![("a.txt", text()), ("large.bin", large())],
        ),
        ("links", &["--symlinks", "keep"], vec![("a.txt", text()), ("link", None)]),
        (
            "files",
            &["--archive", "none"],
            vec![("__init__.py", Some(vec![])), ("d/a b.txt", text()), ("large.bin", large())],
        ),
        (
            "only-empty-files",
            &["--archive", "none"],
            vec![("a", Some(vec![])), ("b", Some(vec![]))],
        ),
        ("build.zip", &["--archive", "none"], vec![("build.zip", Some(zip_of_one_file()))]),
        ("raw.bin", &["--archive", "none"], vec![("raw.bin", large())]),
        ("empty.log", &["--archive", "none"], vec![("empty.log", Some(vec![]))]),
        ("page.html", &["--archive", "none"], vec![("page.html", Some(b"<html></html>".to_vec()))]),
    ]
}

fn zip_of_one_file() -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(vec![]));
    writer.start_file("inner.txt", zip::write::SimpleFileOptions::default()).unwrap();
    std::io::Write::write_all(&mut writer, b"inner").unwrap();
    writer.finish().unwrap().into_inner()
}

fn write(root: &Path, files: &[(&str, Option<Vec<u8>>)]) {
    for (name, content) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match content {
            Some(bytes) => fs::write(path, bytes).unwrap(),
            None => symlink("a.txt", path).unwrap(),
        }
    }
}

/// Every file below a folder: its content, or a link's target.
fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, format!("-> {}", target.display()).into_bytes());
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Uploads a shape by `step` and downloads it by another one; checks that nothing differs.
pub(crate) fn there_and_back(shape: &Shape, step: &dyn Fn(Crcr) -> Crcr, store: &str) -> Ran {
    let (name, args, files) = shape;
    let job =
        |command: &str| Crcr::step(&["artifact", command, "--name", name], "push", &json!({}));
    let upload = args.iter().fold(job("upload").arg("--path").arg("dist"), |s, arg| s.arg(arg));
    write(&upload.folder().join("dist"), files);
    let upload = step(upload);
    let expected = tree(&upload.folder().join("dist"));
    let uploaded = upload.run().expect_code(0);
    assert_eq!(uploaded.outputs["store"], store, "{}", uploaded.report());
    let got = step(job("download").arg("--path").arg("out")).run().expect_code(0);
    let got = tree(&got.path("out"));
    let names = |tree: &BTreeMap<String, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&got), names(&expected), "{name}");
    assert!(got == expected, "{name}: the contents differ");
    uploaded
}

fn every_shape_in_a_bucket(server: &PeerServer) {
    for shape in shapes() {
        let step = |step: Crcr| {
            step.arg("--s3-bucket")
                .arg(BUCKET)
                .arg("--s3-endpoint")
                .arg(&server.url())
                .arg("--aws-region")
                .arg("us-east-1")
                .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
                .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
                .env("CRCR_RETRY_SECONDS", "5")
        };
        there_and_back(&shape, &step, "s3");
    }
}

#[test]
#[ignore = "needs gofakes3"]
fn every_shape_comes_back_from_gofakes3() {
    every_shape_in_a_bucket(&PeerServer::gofakes3());
}

#[test]
#[ignore = "needs moto_server"]
fn every_shape_comes_back_from_moto() {
    every_shape_in_a_bucket(&PeerServer::moto());
}

/// moto calls its answer to a deletion, which has no body, a web page.
#[test]
#[ignore = "needs moto_server"]
fn files_that_a_new_artifact_lacks_are_deleted_from_moto_at_once() {
    let server = PeerServer::moto();
    let started = Instant::now();
    let upload = |files: &[&str]| {
        let args = ["--path", "dist", "--archive", "none", "--overwrite", "true"];
        let step = crate::artifact_upload::step(&args);
        fs::remove_dir_all(step.folder().join("dist/sub")).unwrap();
        files
            .iter()
            .for_each(|file| fs::write(step.folder().join("dist").join(file), "x").unwrap());
        let step = crate::artifact_upload_faults::with_bucket(step, BUCKET, &server.url());
        step.arg("--fallback").arg("never").run().expect_code(0)
    };
    upload(&["b", "c"]);
    let ran = upload(&["c"]);
    assert!(!ran.stderr.contains("::warning"), "{}", ran.report());
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let args = ["artifact", "download", "--name", "linux", "--path", "out"];
    let step = Crcr::step(&args, "push", &json!({}));
    let step = crate::artifact_upload_faults::with_bucket(step, BUCKET, &server.url());
    let ran = step.run().expect_code(0);
    assert!(ran.path("out/c").exists() && !ran.path("out/b").exists());
}

/// Like S3 it names the region in its answer to HEAD of the bucket only.
#[test]
#[ignore = "needs moto_server"]
fn doctor_aws_learns_the_region_of_a_bucket_from_moto() {
    let server = PeerServer::moto();
    for (region, status, message) in [
        ("us-east-1", "ok", "is in `us-east-1`"),
        ("eu-west-1", "error", "is in `us-east-1`, not in `eu-west-1`"),
    ] {
        let role = "arn:aws:iam::123456789012:role/ci";
        let args = ["doctor", "aws", "--role", role, "--bucket", BUCKET, "--region", region];
        let step = Crcr::new(&args).arg("--endpoint").arg(&server.url());
        let step = step.arg("--format").arg("json").env("AWS_EC2_METADATA_DISABLED", "true");
        // moto lets everybody write.
        assert_check(&step.run().expect_code(1), "bucket-region", status, message);
    }
}

#[test]
#[ignore = "needs gofakes3"]
fn s3_server_in_place_of_sts_is_told_from_an_outage_and_from_a_refusal() {
    let (server, world) = (PeerServer::gofakes3(), oidc_configure::world());
    let step = world.step_without_sts(&world.job(Run::same_repository()));
    let step = step.arg("--role-to-assume").arg("arn:aws:iam::123456789012:role/ci");
    let step = step.arg("--aws-region").arg("us-east-1").arg("--sts-endpoint").arg(&server.url());
    let ran = step.run().expect_code(2);
    assert_eq!(ran.outputs["reason"], "sts-unreachable");
    assert!(ran.stderr.contains("look at `sts-endpoint`"), "{}", ran.report());
}

/// GitHub's service, with its blobs in Azurite.
fn github_on(azurite: &PeerServer) -> StandIn {
    /// Of every Azurite: <https://learn.microsoft.com/azure/storage/common/storage-use-azurite>
    const ACCOUNT: &str = "devstoreaccount1";
    const KEY: &str =
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let signed =
        format!("{ACCOUNT}\nrwdlac\nb\nsco\n\n2099-01-01T00:00:00Z\n\nhttps,http\n2018-11-09\n");
    let key =
        aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &STANDARD.decode(KEY).unwrap());
    let signature = STANDARD.encode(aws_lc_rs::hmac::sign(&key, signed.as_bytes()));
    let mut url: url::Url = format!("{}/{ACCOUNT}/actions-results", azurite.url()).parse().unwrap();
    url.query_pairs_mut()
        .extend_pairs([("sv", "2018-11-09"), ("ss", "b"), ("srt", "sco"), ("sp", "rwdlac")])
        .extend_pairs([("se", "2099-01-01T00:00:00Z"), ("spr", "https,http")])
        .append_pair("sig", &signature);
    put(&format!("{url}&restype=container"));
    let github = StandIn::start().unwrap();
    github.state().artifacts.keep_blobs_at(move |blob| {
        let mut url = url.clone();
        url.path_segments_mut().unwrap().push(blob);
        url
    });
    github
}

#[test]
#[ignore = "needs azurite"]
fn every_shape_comes_back_from_azurite_and_githubs_client_reads_it() {
    let azurite = PeerServer::azurite();
    let github = github_on(&azurite);
    let peer = Peer::new(&github, Run::push());
    for shape in shapes() {
        let step = |step: Crcr| {
            step.env("CRCR_RUNTIME_TOKEN", &peer.environment["ACTIONS_RUNTIME_TOKEN"])
                .env("CRCR_RESULTS_URL", &peer.environment["ACTIONS_RESULTS_URL"])
                .env("CRCR_RETRY_SECONDS", "5")
        };
        let uploaded = there_and_back(&shape, &step, "github");
        let (name, _, files) = &shape;
        // GitHub's addresses name a raw file, and Azurite's don't.
        if ["raw.bin", "empty.log", "page.html"].contains(name) {
            continue;
        }
        let (id, down) = (&uploaded.outputs["artifact-id"], peer.path(&format!("down-{name}")));
        let digest = format!("sha256:{}", uploaded.outputs["artifact-digest"]);
        let answer = peer.call(&["download", id, down.to_str().unwrap(), &digest]).unwrap();
        assert_eq!(answer["digestMismatch"], false, "{answer}");
        for (file, content) in
            files.iter().filter_map(|(file, content)| Some((file, content.as_ref()?)))
        {
            assert!(fs::read(down.join(file)).unwrap() == *content, "{name}: {file}");
        }
    }
    let theirs = [("a.txt", b"theirs".to_vec()), ("large.bin", noise(17 << 20))];
    peer.upload("theirs", "6", &theirs).unwrap();
    let args = ["artifact", "download", "--name", "theirs", "--path", "out"];
    let step = Crcr::step(&args, "push", &json!({}))
        .env("CRCR_RUNTIME_TOKEN", &peer.environment["ACTIONS_RUNTIME_TOKEN"])
        .env("CRCR_RESULTS_URL", &peer.environment["ACTIONS_RESULTS_URL"]);
    let ran = step.run().expect_code(0);
    for (name, bytes) in theirs {
        assert!(fs::read(ran.path("out").join(name)).unwrap() == bytes, "{name}");
    }
}
