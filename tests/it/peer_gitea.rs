//! Artifacts in a Gitea or a Forgejo of its own, whose artifact service imitates GitHub's. Nothing of it is replaced but
//! the runner: a job is put into its database. A Forgejo is tested where `forgejo` leads to a program that has its
//! folders `options` and `templates` beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::client::{Peer, noise};
use crate::peer_stores::{PeerServer, shapes, there_and_back};
use crate::support::{Crcr, Ran};

/// 32 bytes of zeros, as Gitea writes its secret.
const SECRET: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Templates and texts of the program, which `tests/setup --gitea` puts beside it.
fn files(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program));
    let program = found.map(fs::canonicalize).find_map(Result::ok).expect("it is on PATH");
    program.parent().unwrap().to_owned()
}

fn configuration(program: &str, port: u16, folder: &Path) -> String {
    let (work, files) = (folder.display(), files(program));
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    format!(
        "RUN_USER = {}\nI_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true\nWORK_PATH = {work}\n\
         [server]\nHTTP_ADDR = 127.0.0.1\nHTTP_PORT = {port}\nROOT_URL = http://127.0.0.1:{port}/\n\
         STATIC_ROOT_PATH = {}\nOFFLINE_MODE = true\nDISABLE_SSH = true\n\
         [database]\nDB_TYPE = sqlite3\nPATH = {work}/gitea.db\n\
         [security]\nINSTALL_LOCK = true\nSECRET_KEY = secret\n[oauth2]\nJWT_SECRET = {SECRET}\n\
         [actions]\nENABLED = true\n",
        String::from_utf8(user).unwrap().trim(),
        files.display()
    )
}

/// A server, and what its runner would give a job.
fn serve(program: &str) -> (PeerServer, BTreeMap<&'static str, String>) {
    let server = PeerServer::start(|port, folder| {
        fs::write(folder.join("app.ini"), configuration(program, port, folder)).unwrap();
        let mut command = Command::new(program);
        command.args(["web", "--config"]).arg(folder.join("app.ini"));
        command
    });
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/peers/gitea_job.py");
    let database = server.folder.path().join("gitea.db");
    let token = Command::new("python3").arg(script).arg(database).arg(SECRET).output().unwrap();
    assert!(token.status.success(), "{}", String::from_utf8_lossy(&token.stderr));
    let token = String::from_utf8(token.stdout).unwrap().trim().to_owned();
    let given = [
        ("ACTIONS_RUNTIME_TOKEN", token),
        ("ACTIONS_RESULTS_URL", server.url() + "/"),
        ("GITHUB_SERVER_URL", server.url()),
        ("GITHUB_RUN_ID", "7".to_owned()),
    ];
    (server, given.into())
}

fn in_job(step: Crcr, given: &BTreeMap<&str, String>) -> Crcr {
    step.env("CRCR_RUNTIME_TOKEN", &given["ACTIONS_RUNTIME_TOKEN"])
        .env("CRCR_RESULTS_URL", &given["ACTIONS_RESULTS_URL"])
        .env("GITHUB_SERVER_URL", &given["GITHUB_SERVER_URL"])
        .env("GITHUB_RUN_ID", &given["GITHUB_RUN_ID"])
        .env("GITEA_ACTIONS", "true")
        .env("CRCR_RETRY_SECONDS", "5")
}

fn upload(name: &str, given: &BTreeMap<&str, String>, more: &[&str]) -> Ran {
    let args = ["artifact", "upload", "--name", name, "--path", "in.txt"];
    let step = Crcr::step(&[&args, more].concat(), "push", &json!({}));
    fs::write(step.folder().join("in.txt"), "ours").unwrap();
    in_job(step, given).run()
}

fn download(name: &str, given: &BTreeMap<&str, String>) -> Ran {
    let args = ["artifact", "download", "--name", name, "--path", "out"];
    in_job(Crcr::step(&args, "push", &json!({})), given).run()
}

#[test]
#[ignore = "needs gitea and node"]
fn every_shape_comes_back_from_gitea_and_githubs_client_reads_it() {
    let (_server, given) = serve("gitea");
    let mut environment = given.clone();
    // With any other host it refuses at once.
    environment.insert("GITHUB_SERVER_URL", "https://github.com".to_owned());
    let peer = Peer::with(environment);
    for shape in shapes() {
        let uploaded = there_and_back(&shape, &|step| in_job(step, &given), "github");
        let (name, _, files) = &shape;
        let (id, down) = (&uploaded.outputs["artifact-id"], peer.path(&format!("down-{name}")));
        let digest = format!("sha256:{}", uploaded.outputs["artifact-digest"]);
        let answer = peer.call(&["download", id, down.to_str().unwrap(), &digest]).unwrap();
        assert_eq!(answer["digestMismatch"], false, "{name}: {answer}");
        for (file, content) in
            files.iter().filter_map(|(file, content)| Some((file, content.as_ref()?)))
        {
            assert!(fs::read(down.join(file)).unwrap() == *content, "{name}: {file}");
        }
    }
    let theirs = [("a.txt", b"theirs".to_vec()), ("large.bin", noise(9 << 20))];
    peer.upload("named", "6", &theirs).unwrap();
    let ran = download("named", &given).expect_code(0);
    for (name, bytes) in theirs {
        assert!(fs::read(ran.path("out").join(name)).unwrap() == bytes, "{name}");
    }
    check_names(&given);
}

/// Without GitHub's client: that of today sends what a Forgejo of 2024 refuses, and leaves its archives packed.
#[test]
#[ignore = "needs forgejo"]
fn every_shape_comes_back_from_forgejo() {
    let (_server, given) = serve("forgejo");
    for shape in shapes() {
        there_and_back(&shape, &|step| in_job(step, &given), "github");
    }
    upload("named", &given, &[]).expect_code(0);
    check_names(&given);
}

/// The run has an artifact `named`, whose name the server would give away again.
fn check_names(given: &BTreeMap<&str, String>) {
    let refused = upload("named", given, &[]).expect_code(1);
    assert!(refused.stderr.contains("the run has an artifact `named`"), "{}", refused.report());
    download("named", given).expect_code(0);
    upload("named", given, &["--overwrite", "true"]).expect_code(0);
    let ran = download("named", given).expect_code(0);
    assert_eq!(fs::read_to_string(ran.path("out/in.txt")).unwrap(), "ours");
    let missing = download("nothing", given).expect_code(1);
    assert!(missing.stderr.contains("there is no artifact `nothing`"), "{}", missing.report());
    assert!(!missing.stderr.contains("Enterprise Server"), "{}", missing.report());
}
