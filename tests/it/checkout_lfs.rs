//! `crcr checkout` of repositories with files of Git LFS.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::checkout::{Upstream, git};

/// Adds a file of Git LFS to the pull request, as a pointer, and a server of the fork's choice.
fn with_lfs_file(upstream: &Upstream) -> Value {
    let here = upstream.work.path();
    git(here, &["checkout", "-q", "topic"]);
    add_lfs_file(upstream, here);
    git(here, &["commit", "-q", "-m", "lfs"]);
    pushed(upstream)
}

/// Pushes the branch `topic` as the pull request's head. The event that names it.
fn pushed(upstream: &Upstream) -> Value {
    let here = upstream.work.path();
    git(here, &["push", "-q", "-f", "origin", "topic:refs/pull/7/head"]);
    let mut event = upstream.event();
    event["client_payload"]["payload"]["pull_request"]["head"]["sha"] =
        json!(git(here, &["rev-parse", "HEAD"]));
    event
}

/// Stages `models/model.bin`, and puts its content on the server.
fn add_lfs_file(upstream: &Upstream, here: &Path) {
    // SHA-256 of `weights`.
    const OID: &str = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c";
    // Not at the top: each folder may have its own.
    let models = here.join("models");
    fs::create_dir(&models).unwrap();
    let attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n";
    fs::write(models.join(".gitattributes"), attributes).unwrap();
    fs::write(here.join(".lfsconfig"), "[lfs]\n\turl = http://127.0.0.1:1/evil\n").unwrap();
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize 7\n");
    // Not added by `git add`, which would ask Git LFS where that is installed.
    let blob = here.join("pointer");
    fs::write(&blob, pointer).unwrap();
    let hash = git(here, &["hash-object", "-w", "--no-filters", "pointer"]);
    fs::remove_file(blob).unwrap();
    let entry = format!("100644,{hash},models/model.bin");
    git(here, &["update-index", "--add", "--cacheinfo", &entry]);
    git(here, &["add", "models/.gitattributes", ".lfsconfig"]);
    fs::create_dir(upstream.server.path("lfs")).unwrap();
    fs::write(upstream.server.path("lfs").join(OID), "weights").unwrap();
}

/// Adds a submodule `lib` with a file of Git LFS to the pull request.
fn with_lfs_file_in_submodule(upstream: &Upstream) -> Value {
    let library = upstream.server.bare("acme/library");
    let there = tempfile::tempdir().unwrap();
    let there = there.path();
    git(there, &["init", "-q", "-b", "main"]);
    add_lfs_file(upstream, there);
    git(there, &["commit", "-q", "-m", "library"]);
    git(there, &["push", "-q", library.to_str().unwrap(), "main"]);
    let commit = git(there, &["rev-parse", "HEAD"]);
    let here = upstream.work.path();
    git(here, &["checkout", "-q", "topic"]);
    let text = "[submodule \"lib\"]\n\tpath = lib\n\turl = ../library\n";
    fs::write(here.join(".gitmodules"), text).unwrap();
    git(here, &["update-index", "--add", "--cacheinfo", &format!("160000,{commit},lib")]);
    git(here, &["add", ".gitmodules"]);
    git(here, &["commit", "-q", "-m", "library"]);
    pushed(upstream)
}

#[test]
fn pointers_of_git_lfs_get_a_warning() {
    let upstream = Upstream::new();
    let event = with_lfs_file(&upstream);
    let ran = upstream.checkout_of(&[], &event).run().expect_code(0);
    assert!(ran.stderr.contains("set `lfs: true`"), "{}", ran.report());
    let text = fs::read_to_string(ran.path("workspace/models/model.bin")).unwrap();
    assert!(text.starts_with("version https://git-lfs"), "{text}");
}

#[test]
fn pointers_of_git_lfs_in_a_submodule_get_a_warning() {
    let upstream = Upstream::new();
    let event = with_lfs_file_in_submodule(&upstream);
    let ran = upstream.checkout_of(&["--submodules", "true"], &event).run().expect_code(0);
    assert!(ran.stderr.contains("set `lfs: true`"), "{}", ran.report());
    let ran = upstream.checkout_of(&[], &event).run().expect_code(0);
    assert!(!ran.stderr.contains("::warning"), "{}", ran.report());
}

#[test]
#[ignore = "needs git-lfs"]
fn files_of_git_lfs_in_a_submodule_are_fetched_from_its_own_server() {
    let upstream = Upstream::new();
    let event = with_lfs_file_in_submodule(&upstream);
    let args = ["--lfs", "--submodules", "true"];
    let run = upstream.checkout_of(&args, &event).env("INPUT_TOKEN", "s3cr3t-token");
    let ran = run.run().expect_code(0);
    assert_eq!(fs::read_to_string(ran.path("workspace/lib/models/model.bin")).unwrap(), "weights");
}

#[test]
#[ignore = "needs git-lfs"]
fn files_of_git_lfs_are_fetched_from_the_repositorys_own_server() {
    let upstream = Upstream::new();
    let event = with_lfs_file(&upstream);
    let run = upstream.checkout_of(&["--lfs"], &event).env("INPUT_TOKEN", "s3cr3t-token");
    let ran = run.run().expect_code(0);
    assert_eq!(fs::read_to_string(ran.path("workspace/models/model.bin")).unwrap(), "weights");
    let config = fs::read_to_string(ran.path("workspace/.git/config")).unwrap();
    assert!(!config.contains("extraheader"), "{config}");
}
