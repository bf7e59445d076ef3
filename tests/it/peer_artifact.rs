//! Exchanges artifacts between `crcr` and GitHub's own client, in both directions.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::client::{Peer, noise};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use serde_json::{Value, json};

use crate::peer_stores::shapes;
use crate::support::Crcr;

/// Names, their modes and contents: nested, not ASCII, empty, executable, and larger than two
/// blocks, once incompressible and once not.
fn files() -> BTreeMap<&'static str, (u32, Vec<u8>)> {
    let words = (0..3_000_000_u32).map(|n| format!("{:x}\n", n.wrapping_mul(0x9E37_79B1)));
    BTreeMap::from([
        ("bin/tool", (0o755, b"#!/bin/sh\necho run\n".to_vec())),
        ("deep/er/ünï cödé 🦀.txt", (0o644, b"hello".to_vec())),
        ("empty", (0o600, Vec::new())),
        ("noise.bin", (0o644, noise(20 << 20))),
        ("words.txt", (0o640, words.collect::<String>().into_bytes())),
    ])
}

fn write(root: &Path, files: &BTreeMap<&str, (u32, Vec<u8>)>) {
    for (name, (mode, bytes)) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// `crcr artifact …` as another step of the client's job.
fn crcr(peer: &Peer, args: &[&str]) -> Crcr {
    let step = Crcr::step(&["artifact"], "push", &json!({}));
    let step = args.iter().fold(step, |step, arg| step.arg(arg));
    step.env("CRCR_RUNTIME_TOKEN", &peer.environment["ACTIONS_RUNTIME_TOKEN"])
        .env("CRCR_RESULTS_URL", &peer.environment["ACTIONS_RESULTS_URL"])
        .env("GITHUB_API_URL", &peer.environment["GITHUB_API_URL"])
}

#[test]
#[ignore = "needs @actions/artifact"]
fn githubs_client_lists_and_downloads_what_crcr_uploaded() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::push());
    let files = files();
    for level in ["auto", "6", "0"] {
        let name = format!("my wheels {level}");
        let args = ["upload", "--name", &name, "--path", "dist", "--compression-level", level];
        let step = crcr(&peer, &args);
        write(&step.folder().join("dist"), &files);
        let ran = step.run().expect_code(0);
        let digest = format!("sha256:{}", ran.outputs["artifact-digest"]);
        let listed = peer.call(&["list"]).unwrap();
        let listed = listed["artifacts"].as_array().unwrap().clone();
        let listed: Value = listed.into_iter().find(|one| one["name"] == name).unwrap();
        assert_eq!(
            (&listed["digest"], listed["id"].to_string()),
            (&json!(digest), ran.outputs["artifact-id"].clone())
        );
        assert_eq!(listed["size"].to_string(), ran.outputs["size"]);

        let down = peer.path(level);
        let id = &ran.outputs["artifact-id"];
        let answer = peer.call(&["download", id, down.to_str().unwrap(), &digest]).unwrap();
        assert_eq!(answer["digestMismatch"], false, "{answer}");
        for (name, (_, bytes)) in &files {
            assert!(fs::read(down.join(name)).unwrap() == *bytes, "{name}, level {level}");
        }
        // The client ignores modes, so check them with another reader.
        let blob = github.state().artifacts.bytes(id.parse().unwrap()).unwrap();
        let mut archive = zip::ZipArchive::new(Cursor::new(blob)).unwrap();
        assert_eq!(archive.len(), files.len());
        for (name, (mode, bytes)) in &files {
            let mut entry = archive.by_name(name).unwrap();
            assert_eq!(entry.unix_mode().unwrap() & 0o777, *mode, "{name}");
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            assert!(content == *bytes, "{name}, level {level}");
        }
    }
    assert!(github.state().traffic.calls("PutBlock") >= 9, "each one is several blocks");
}

#[test]
#[ignore = "needs @actions/artifact"]
fn crcr_lists_and_downloads_what_githubs_client_uploaded() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::push());
    let files = files();
    let root = peer.path("dist");
    write(&root, &files);
    for level in ["0", "6"] {
        let name = format!("my wheels {level}");
        let paths: Vec<_> =
            files.keys().map(|name| root.join(name).to_str().unwrap().to_owned()).collect();
        let mut args = vec!["upload", &name, root.to_str().unwrap(), level];
        args.extend(paths.iter().map(String::as_str));
        let uploaded = peer.call(&args).unwrap();

        let ran = crcr(&peer, &["list", "--format", "json", "--pattern", &name]).run();
        let ran = ran.expect_code(0);
        let listed: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(
            (&listed[0]["artifact_id"], &listed[0]["size"]),
            (&uploaded["id"], &uploaded["size"])
        );

        let ran = crcr(&peer, &["download", "--name", &name, "--path", "out"]).run().expect_code(0);
        assert_eq!(ran.outputs["artifact-id"], uploaded["id"].to_string());
        assert_eq!(ran.outputs["files"], files.len().to_string());
        for (name, (wanted, bytes)) in &files {
            let path = ran.path("out").join(name);
            assert!(fs::read(&path).unwrap() == *bytes, "{name}, level {level}");
            assert_eq!(mode(&path), *wanted, "{name}");
        }
    }
}

#[test]
#[ignore = "needs @actions/artifact"]
fn raw_file_is_exchanged_in_both_directions() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::push());
    let content = noise(20 << 20);

    let root = peer.path("theirs");
    write(&root, &BTreeMap::from([("théirs.bin", (0o644, content.clone()))]));
    let file = root.join("théirs.bin");
    let args = ["upload-raw", root.to_str().unwrap(), file.to_str().unwrap()];
    peer.call(&args).unwrap();
    let args = ["download", "--name", "théirs.bin", "--path", "out"];
    let ran = crcr(&peer, &args).run().expect_code(0);
    assert!(fs::read(ran.path("out/théirs.bin")).unwrap() == content);

    let step = crcr(&peer, &["upload", "--archive", "false", "--path", "dist"]);
    write(&step.folder().join("dist"), &BTreeMap::from([("ours.html", (0o644, content.clone()))]));
    let ran = step.run().expect_code(0);
    let digest = format!("sha256:{}", ran.outputs["artifact-digest"]);
    let (id, down) = (&ran.outputs["artifact-id"], peer.path("down"));
    let answer = peer.call(&["download", id, down.to_str().unwrap(), &digest]).unwrap();
    assert_eq!(answer["digestMismatch"], false, "{answer}");
    assert!(fs::read(down.join("ours.html")).unwrap() == content);
}

/// It stores several files as a zip only, and what links lead to.
#[test]
#[ignore = "needs @actions/artifact"]
fn every_shape_of_githubs_client_is_downloaded() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::push());
    for (name, args, files) in shapes() {
        let files: BTreeMap<_, _> = files
            .into_iter()
            .filter_map(|(file, content)| Some((file, (0o644, content?))))
            .collect();
        let root = peer.path(&format!("theirs-{name}"));
        write(&root, &files);
        let root = root.to_str().unwrap();
        let paths: Vec<_> = files.keys().map(|file| format!("{root}/{file}")).collect();
        let is_raw = args.contains(&"none") && paths.len() == 1;
        let options =
            if is_raw { vec!["upload-raw", root] } else { vec!["upload", name, root, "6"] };
        peer.call(&[options, paths.iter().map(String::as_str).collect()].concat()).unwrap();
        let ran = crcr(&peer, &["download", "--name", name, "--path", "out"]).run().expect_code(0);
        // Every client takes a raw zip for an archive.
        if name == "build.zip" {
            assert_eq!(fs::read(ran.path("out/inner.txt")).unwrap(), b"inner", "{}", ran.report());
            continue;
        }
        for (file, (_, bytes)) in &files {
            assert!(fs::read(ran.path("out").join(file)).unwrap() == *bytes, "{name}: {file}");
        }
    }
}

#[test]
#[ignore = "needs @actions/artifact"]
fn artifact_name_of_the_other_client_is_a_conflict_for_both() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::push());
    peer.upload("theirs", "6", &[("a.txt", b"theirs".to_vec())]).unwrap();
    let upload = |name: &str, extra: &[&str]| {
        let step = crcr(&peer, &["upload", "--name", name, "--path", "dist"]);
        write(&step.folder().join("dist"), &BTreeMap::from([("b.txt", (0o644, b"ours".to_vec()))]));
        extra.iter().fold(step, |step, arg| step.arg(arg)).run()
    };
    let ran = upload("theirs", &[]).expect_code(1);
    assert!(ran.stderr.contains("[conflict]"), "{}", ran.report());
    let ran = upload("theirs", &["--overwrite"]).expect_code(0);
    let stored = github.state().artifacts.all();
    let stored = stored.iter().find(|artifact| artifact.name == "theirs").unwrap();
    assert_eq!(ran.outputs["artifact-id"], stored.id.to_string());
    upload("ours", &[]).expect_code(0);
    let said = peer.upload("ours", "6", &[("a.txt", b"theirs".to_vec())]).unwrap_err();
    assert!(said.contains("(409) Conflict"), "{said}");
}

#[test]
#[ignore = "needs @actions/artifact"]
fn githubs_client_downloads_everything_that_three_uploads_stored() {
    let github = StandIn::start().unwrap();
    let peer = Peer::new(&github, Run::push());
    for (name, publish) in [("a", "false"), ("b", "false"), ("c", "true")] {
        let args = ["upload", "--name", name, "--path", "dist", "--publish-locator", publish];
        let step = crcr(&peer, &args);
        write(&step.folder().join("dist"), &BTreeMap::from([("f", (0o644, name.into()))]));
        step.run().expect_code(0);
    }
    let listed = peer.call(&["list"]).unwrap();
    let listed = listed["artifacts"].as_array().unwrap().clone();
    let mut names: Vec<_> = listed.iter().map(|one| one["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c", "crcr-locator-c"]);
    for one in &listed {
        let (name, id) = (one["name"].as_str().unwrap(), one["id"].to_string());
        let down = peer.path(name);
        let digest = one["digest"].as_str().unwrap();
        peer.call(&["download", &id, down.to_str().unwrap(), digest]).unwrap();
        let file = if name == "crcr-locator-c" { "locator.json" } else { "f" };
        assert!(down.join(file).is_file(), "{name}");
    }
    let ran = crcr(&peer, &["download", "--path", "out"]).run().expect_code(0);
    assert!(!ran.path("out/crcr-locator-c").exists() && ran.path("out/c/f").is_file());
}
