//! `actions/install/install.sh`, with releases on loopback.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aws_lc_rs::digest;
use axum::Router;
use axum::routing::get;
use crcr_standin::server::{Bound, Server};
use tempfile::TempDir;

const VERSION: &str = "9.8.7";
const TARGET: &str = "x86_64-unknown-linux-musl";
const BINARY: &str = "#!/bin/sh\necho crcr 9.8.7\n";

/// A machine with the action on it and a server with one release.
struct Machine {
    folder: TempDir,
    releases: Server,
}

impl Machine {
    /// `released` is what the server has; the manifest knows the hash of `BINARY`.
    fn new(released: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let packed = folder.path().join("packed");
        fs::write(&packed, released).unwrap();
        let packed = Command::new("gzip").arg("-c").arg(&packed).output().unwrap().stdout;
        let path = format!("/v{VERSION}/crcr-{VERSION}-{TARGET}.gz");
        let router = Router::new().route(&path, get(move || std::future::ready(packed.clone())));
        let releases = Bound::loopback().unwrap().serve(router).unwrap();
        let machine = Self { folder, releases };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../actions/install/install.sh");
        fs::copy(script, machine.path("install.sh")).unwrap();
        let hash = hex::encode(digest::digest(&digest::SHA256, BINARY.as_bytes()));
        machine.write_manifest(&format!(
            r#"{{ "default": "{VERSION}", "sha256": {{ "{VERSION}/{TARGET}": "{hash}" }} }}"#
        ));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_manifest(&self, text: &str) {
        fs::write(self.path("manifest.json"), text).unwrap();
    }

    /// The cached binary's place.
    fn cached(&self) -> PathBuf {
        self.path(&format!("cache/crcr/{VERSION}/{TARGET}/crcr"))
    }

    fn install(&self, inputs: &[(&str, &str)]) -> Output {
        let path = std::env::join_paths([self.path("bin"), "/usr/bin".into(), "/bin".into()]);
        Command::new("bash")
            .arg(self.path("install.sh"))
            .arg("--add-path")
            .env_clear()
            .env("PATH", path.unwrap())
            .env("RUNNER_TOOL_CACHE", self.path("cache"))
            .env("GITHUB_OUTPUT", self.path("output"))
            .env("GITHUB_PATH", self.path("path"))
            .env("CRCR_DOWNLOAD_URL", self.releases.url().as_str())
            .envs(inputs.iter().copied())
            .output()
            .unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Everything in the tool cache that is a file.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    entries
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

#[test]
fn a_release_with_the_hash_of_the_manifest_is_installed_and_reused() {
    let machine = Machine::new(BINARY);
    let ran = machine.install(&[]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let cached = machine.cached();
    assert_eq!(fs::read_to_string(&cached).unwrap(), BINARY);
    assert_eq!(machine.read("output"), format!("path={}\nversion={VERSION}\n", cached.display()));
    assert_eq!(machine.read("path"), format!("{}\n", cached.parent().unwrap().display()));
    assert_eq!(files(&machine.path("cache")), [cached], "nothing but the binary is left");

    let nowhere = [("CRCR_DOWNLOAD_URL", "http://127.0.0.1:1")];
    assert!(machine.install(&nowhere).status.success(), "the second time needs no network");
}

#[test]
fn a_cached_binary_that_somebody_changed_is_replaced() {
    let machine = Machine::new(BINARY);
    assert!(machine.install(&[]).status.success());
    fs::write(machine.cached(), "#!/bin/sh\necho crcr evil\n").unwrap();
    assert!(machine.install(&[]).status.success());
    assert_eq!(fs::read_to_string(machine.cached()).unwrap(), BINARY);
}

#[test]
fn a_download_with_another_hash_is_refused_and_not_kept() {
    let machine = Machine::new("#!/bin/sh\ntouch ran; echo crcr evil\n");
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
    assert_eq!(machine.read("output") + &machine.read("path"), "");
}

#[test]
fn an_archive_that_explodes_is_cut_off() {
    let machine = Machine::new(&"0".repeat(80 << 20));
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
}

#[test]
fn a_release_that_is_not_there_is_a_failure_of_the_network() {
    let machine = Machine::new(BINARY);
    let elsewhere = format!("{}elsewhere", machine.releases.url());
    let ran = machine.install(&[("CRCR_DOWNLOAD_URL", &elsewhere)]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr(&ran).contains("error[download]"), "{}", stderr(&ran));
}

#[test]
fn without_a_release_the_error_says_how_to_build() {
    let machine = Machine::new(BINARY);
    machine.write_manifest(r#"{ "default": "", "sha256": {} }"#);
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    insta::assert_snapshot!(stderr(&ran));
}

#[test]
fn a_platform_without_a_binary_is_named() {
    let machine = Machine::new(BINARY);
    fs::create_dir(machine.path("bin")).unwrap();
    let uname = machine.path("bin/uname");
    fs::write(&uname, "#!/bin/sh\n[ $1 = -s ] && echo Plan9 || echo mips\n").unwrap();
    fs::set_permissions(&uname, fs::Permissions::from_mode(0o755)).unwrap();
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    insta::assert_snapshot!(stderr(&ran));
}

#[test]
fn a_version_must_be_in_the_manifest_and_cannot_leave_its_folder() {
    let machine = Machine::new(BINARY);
    let ran = machine.install(&[("INPUT_VERSION", "1.0.0"), ("GITHUB_ACTIONS", "true")]);
    assert_eq!(ran.status.code(), Some(1));
    insta::assert_snapshot!(stderr(&ran));
    let ran = machine.install(&[("INPUT_VERSION", "../../1")]);
    assert!(stderr(&ran).contains("error[version]"), "{}", stderr(&ran));
}

#[test]
fn a_binary_that_is_there_is_used_as_it_is() {
    let machine = Machine::new(BINARY);
    let mine = env!("CARGO_BIN_EXE_crcr");
    let ran =
        machine.install(&[("INPUT_BINARY", mine), ("CRCR_DOWNLOAD_URL", "http://127.0.0.1:1")]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(machine.read("output").starts_with(&format!("path={mine}\n")));

    fs::write(machine.path("data"), "not a program").unwrap();
    let data = machine.path("data");
    let cases = [
        ("target/debug/crcr", "which is not an absolute path"),
        ("/nowhere/crcr", "which is not an executable file"),
        (data.to_str().unwrap(), "which is not an executable file"),
        ("/bin/false", "`/bin/false --version` fails"),
    ];
    for (binary, why) in cases {
        let ran = machine.install(&[("INPUT_BINARY", binary)]);
        assert_eq!(ran.status.code(), Some(1), "{binary}");
        assert!(stderr(&ran).contains(why), "{binary}: {}", stderr(&ran));
    }
}
