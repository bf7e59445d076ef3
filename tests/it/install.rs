//! `actions/install/install.sh`, with releases on loopback.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use aws_lc_rs::digest;
use axum::Router;
use axum::routing::get;
use crcr_standin::server::{Bound, Server};
use tempfile::TempDir;

const VERSION: &str = "9.8.7";
const TARGET: &str = "x86_64-unknown-linux-musl";
const SCRIPT: &str = "action/actions/install/install.sh";
const NO_RELEASE: &str = r#"{ "default": "", "sha256": {} }"#;
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
        fs::create_dir_all(machine.path("action/actions/install")).unwrap();
        fs::copy(script, machine.path(SCRIPT)).unwrap();
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
        fs::write(self.path("action/actions/install/manifest.json"), text).unwrap();
    }

    /// The machine with an action whose manifest is empty, and whose source is a real but small crate.
    fn without_a_release() -> Self {
        let machine = Self::new(BINARY);
        machine.write_manifest(NO_RELEASE);
        let lock = "version = 4\n\n[[package]]\nname = \"crcr\"\nversion = \"0.0.1\"\n";
        for (name, text) in [
            ("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"cli\"]\n"),
            ("Cargo.lock", lock),
            (
                "cli/Cargo.toml",
                "[package]\nname = \"crcr\"\nversion = \"0.0.1\"\nedition = \"2024\"\n",
            ),
            ("cli/src/main.rs", "fn main() { println!(\"crcr 0.0.1\"); }"),
            ("crates/README.md", ""),
        ] {
            let path = machine.path("action").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        machine
    }

    /// Programs on PATH before all others, as shell scripts.
    fn program(&self, name: &str, script: &str) {
        fs::create_dir_all(self.path("bin")).unwrap();
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A PATH with every program of this machine but these.
    fn path_without(&self, missing: &[&str]) -> String {
        let folder = self.path("programs");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        for programs in ["/bin", "/usr/bin"] {
            for entry in fs::read_dir(programs).unwrap().flatten() {
                let name = entry.file_name();
                if !missing.iter().any(|missing| *missing == name) {
                    let _ = std::os::unix::fs::symlink(entry.path(), folder.join(name));
                }
            }
        }
        folder.to_str().unwrap().to_owned()
    }

    fn cached(&self) -> PathBuf {
        self.path(&format!("cache/crcr/{VERSION}/{TARGET}/crcr"))
    }

    fn install(&self, inputs: &[(&str, &str)]) -> Output {
        self.command(inputs).output().unwrap()
    }

    fn command(&self, inputs: &[(&str, &str)]) -> Command {
        let path = std::env::join_paths([self.path("bin"), "/usr/bin".into(), "/bin".into()]);
        let mut command = Command::new("/bin/bash");
        command
            .arg(self.path(SCRIPT))
            .arg("--add-path")
            .env_clear()
            .env("PATH", path.unwrap())
            .env("RUNNER_TEMP", self.folder.path())
            .env("RUNNER_TOOL_CACHE", self.path("cache"))
            .env("GITHUB_OUTPUT", self.path("output"))
            .env("GITHUB_PATH", self.path("path"))
            .env("CRCR_DOWNLOAD_URL", self.releases.url().as_str())
            .envs(inputs.iter().copied());
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The files in the tool cache.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    entries
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

#[test]
fn release_with_the_manifests_hash_is_installed_and_reused() {
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
fn modified_cached_binary_is_replaced() {
    let machine = Machine::new(BINARY);
    assert!(machine.install(&[]).status.success());
    fs::write(machine.cached(), "#!/bin/sh\necho crcr evil\n").unwrap();
    assert!(machine.install(&[]).status.success());
    assert_eq!(fs::read_to_string(machine.cached()).unwrap(), BINARY);
}

#[test]
fn download_with_a_wrong_hash_is_refused_and_deleted() {
    let machine = Machine::new("#!/bin/sh\ntouch ran; echo crcr evil\n");
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
    assert_eq!(machine.read("output") + &machine.read("path"), "");
}

#[test]
fn zip_bomb_of_a_release_is_cut_off() {
    let machine = Machine::new(&"0".repeat(80 << 20));
    let ran = machine.install(&[]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("error[hash-mismatch]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
}

#[test]
fn missing_release_is_a_network_failure() {
    let machine = Machine::new(BINARY);
    let elsewhere = format!("{}elsewhere", machine.releases.url());
    let ran = machine.install(&[("CRCR_DOWNLOAD_URL", &elsewhere)]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr(&ran).contains("error[download]"), "{}", stderr(&ran));
}

/// PATH with the Rust that runs this test.
fn with_cargo() -> String {
    let cargo = Path::new(env!("CARGO")).parent().unwrap();
    format!("{}:/usr/bin:/bin", cargo.display())
}

#[test]
fn source_is_built_once_and_cached_without_a_release() {
    let machine = Machine::without_a_release();
    let path = with_cargo();
    // What the job set for its own Rust code would break any build.
    let first = machine.install(&[("PATH", &path), ("RUSTFLAGS", "--nonsense")]);
    assert!(first.status.success(), "{}", stderr(&first));
    let told = stderr(&first);
    assert!(told.contains("built `crcr` from the action's source in "), "{told}");
    assert!(told.contains("using crcr 0.0.1 at "), "{told}");
    let built = files(&machine.path("cache"));
    assert_eq!(built.len(), 1, "nothing but the binary is left: {built:?}");
    assert!(machine.read("output").contains(&format!("path={}\n", built[0].display())));

    let again = machine.install(&[]);
    assert!(again.status.success(), "the second time needs no cargo: {}", stderr(&again));
    assert!(!stderr(&again).contains("built"), "{}", stderr(&again));

    let changed = "fn main() { println!(\"crcr 0.0.2\"); }";
    fs::write(machine.path("action/cli/src/main.rs"), changed).unwrap();
    let other = machine.install(&[("PATH", &path)]);
    assert!(stderr(&other).contains("using crcr 0.0.2 at "), "{}", stderr(&other));
}

#[test]
fn simultaneous_builds_do_not_disturb_each_other() {
    let machine = Machine::without_a_release();
    let path = with_cargo();
    let start = |_| machine.command(&[("PATH", path.as_str())]).stderr(Stdio::piped()).spawn();
    let jobs: Vec<_> = (0..3).map(start).collect();
    for job in jobs {
        let ran = job.unwrap().wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", stderr(&ran));
    }
    assert_eq!(files(&machine.path("cache")).len(), 1);
}

#[test]
fn failed_build_shows_cargos_output_and_leaves_nothing() {
    let machine = Machine::without_a_release();
    fs::write(machine.path("action/cli/src/main.rs"), "fn main() { nonsense }").unwrap();
    let ran = machine.install(&[("PATH", &with_cargo())]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(stderr(&ran).contains("cannot find value `nonsense`"), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("error[build-failed]"), "{}", stderr(&ran));
    assert_eq!(files(&machine.path("cache")), Vec::<PathBuf>::new());
    assert_eq!(machine.read("output") + &machine.read("path"), "");
}

#[test]
fn error_without_a_release_and_without_rust_has_a_hint() {
    let machine = Machine::without_a_release();
    let path = machine.path_without(&["cargo"]);
    let ran = machine.install(&[("PATH", &path)]);
    assert_eq!(ran.status.code(), Some(1));
    insta::assert_snapshot!(stderr(&ran));
    let ran = machine.install(&[("INPUT_INSTALL", "release")]);
    assert!(stderr(&ran).starts_with("error[no-release]"), "{}", stderr(&ran));
    let ran = machine.install(&[("INPUT_INSTALL", "maybe")]);
    assert!(stderr(&ran).starts_with("error[install]: the input `install`"), "{}", stderr(&ran));
}

#[test]
fn source_is_built_on_request_even_if_there_is_a_release() {
    let machine = Machine::without_a_release();
    let hash = "0".repeat(64);
    machine.write_manifest(&format!(
        r#"{{ "default": "{VERSION}", "sha256": {{ "{VERSION}/{TARGET}": "{hash}" }} }}"#
    ));
    let ran = machine.install(&[("PATH", &with_cargo()), ("INPUT_INSTALL", "source")]);
    assert!(stderr(&ran).contains("using crcr 0.0.1 at "), "{}", stderr(&ran));
}

#[test]
fn source_is_built_on_a_platform_without_a_release() {
    let machine = Machine::without_a_release();
    machine.write_manifest(&format!(r#"{{ "default": "{VERSION}", "sha256": {{}} }}"#));
    machine.program("uname", "[ $1 = -s ] && echo Plan9 || echo mips");
    let path = format!("{}:{}", machine.path("bin").display(), with_cargo());
    let ran = machine.install(&[("PATH", &path)]);
    let told = stderr(&ran);
    assert!(told.starts_with("there is no release for Plan9 on mips: building"), "{told}");
    assert!(ran.status.success(), "{told}");
}

#[test]
fn windows_on_arm_uses_the_x86_64_binary() {
    let machine = Machine::new(BINARY);
    machine.program("uname", "[ $1 = -s ] && echo MINGW64_NT-10.0-26100-ARM64 || echo aarch64");
    let ran = machine.install(&[("INPUT_VERSION", "1.0.0")]);
    assert!(stderr(&ran).contains("for x86_64-pc-windows-msvc"), "{}", stderr(&ran));
}

#[test]
fn read_only_tool_cache_is_skipped() {
    let machine = Machine::new(BINARY);
    let ran = machine.install(&[("RUNNER_TOOL_CACHE", "/dev/null/cache")]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(machine.path(&format!("crcr/{VERSION}/{TARGET}/crcr")).is_file());
}

#[test]
#[ignore = "needs node and wget"]
fn container_without_curl_or_root_certificates_downloads_with_other_tools() {
    let machine = Machine::new(BINARY);
    let folder = machine.path("other").to_str().unwrap().to_owned();
    for (missing, code) in
        [(&["curl", "wget", "node"][..], 1), (&["curl", "node"], 0), (&["curl", "wget"], 0)]
    {
        let _ = fs::remove_dir_all(&folder);
        let mut path = machine.path_without(missing);
        if missing.contains(&"wget") && !missing.contains(&"node") {
            path = format!("{path}:{}", node_folder());
        }
        let ran = machine.install(&[("PATH", &path), ("RUNNER_TOOL_CACHE", &folder)]);
        assert_eq!(ran.status.code(), Some(code), "{missing:?}: {}", stderr(&ran));
        if code == 1 {
            insta::assert_snapshot!(stderr(&ran));
        }
    }
    // 60: curl finds no root certificates.
    machine.program("curl", "exit 60");
    let _ = fs::remove_dir_all(&folder);
    let without = format!("{}:{}", machine.path("bin").display(), machine.path_without(&["node"]));
    let ran = machine.install(&[("PATH", &without), ("RUNNER_TOOL_CACHE", &folder)]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr(&ran).contains("no root certificates"), "{}", stderr(&ran));
    let with = format!("{without}:{}", node_folder());
    let ran = machine.install(&[("PATH", &with), ("RUNNER_TOOL_CACHE", &folder)]);
    assert!(ran.status.success(), "node brings its own: {}", stderr(&ran));
}

/// The folder of this machine's node.
fn node_folder() -> String {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).find(|folder| folder.join("node").is_file());
    found.expect("`node` is on PATH").to_str().unwrap().to_owned()
}

#[test]
fn fork_of_the_action_downloads_its_own_releases() {
    let machine = Machine::new(BINARY);
    machine.program("curl", "for last; do :; done; echo \"asked $last\" >&2; exit 22");
    let inputs = [("CRCR_DOWNLOAD_URL", ""), ("CRCR_ACTION_REPOSITORY", "acme/crcr")];
    let ran = machine.install(&inputs);
    let url = "asked https://github.com/acme/crcr/releases/download/v9.8.7/crcr-9.8.7-";
    assert!(stderr(&ran).contains(url), "{}", stderr(&ran));
}

#[test]
fn version_must_be_in_the_manifest_and_cannot_leave_its_folder() {
    let machine = Machine::new(BINARY);
    let ran = machine.install(&[("INPUT_VERSION", "1.0.0"), ("GITHUB_ACTIONS", "true")]);
    assert_eq!(ran.status.code(), Some(1));
    insta::assert_snapshot!(stderr(&ran));
    let ran = machine.install(&[("INPUT_VERSION", "../../1")]);
    assert!(stderr(&ran).contains("error[version]"), "{}", stderr(&ran));
}

#[test]
fn existing_binary_is_used() {
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
