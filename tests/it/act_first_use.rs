//! The first use of an action before there is a release, in a real workflow runner: the action builds
//! its own source, and the next job finds the build.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::act::{git, root};

const WORKFLOW: &str = r#"
on: pull_request
permissions: {}
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - id: auth
        uses: pytorch/crcr/actions/configure-oidc-fallback@main
      - env:
          MODE: ${{ steps.auth.outputs.mode }}
        run: echo "the mode is $MODE"
"#;

/// Copies the files of this repository that git knows or would take, as a runner unpacks an action.
fn copy_source(to: &Path) {
    let listed = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard", "-z", "--"])
        .args([
            "Cargo.toml",
            "Cargo.lock",
            "cli",
            "crates",
            "deploy/aws-ci",
            "schemas",
            "workflows-templates",
            "actions",
            ".cargo",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    for name in String::from_utf8(listed.stdout).unwrap().split_terminator('\0') {
        let file = to.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        // A file that was removed and not committed yet is still listed.
        if root().join(name).is_file() {
            fs::copy(root().join(name), file).unwrap();
        }
    }
    fs::write(to.join("actions/install/manifest.json"), r#"{ "default": "", "sha256": {} }"#)
        .unwrap();
}

/// Links what the dependencies of this test were compiled to, so that the action's build compiles
/// only its own crates. A folder of its own: cargo would replace crates that other tests still use.
fn link_dependencies(build_dir: &Path) {
    let built = Path::new(env!("CARGO_BIN_EXE_crcr")).parent().unwrap();
    let debug = build_dir.join("debug");
    for (folder, how) in [(".fingerprint", "--archive"), ("build", "-al"), ("deps", "-al")] {
        fs::create_dir_all(debug.join(folder)).unwrap();
        let entries = fs::read_dir(built.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        // Ours are named `crcr`, `libcrcr_*`, `it` and `hud`.
        let others: Vec<_> = entries
            .filter(|path| {
                let name = path.file_name().unwrap().to_string_lossy();
                !name.contains("crcr") && !name.starts_with("it-") && !name.starts_with("hud-")
            })
            .collect();
        for batch in others.chunks(200) {
            let mut copy = Command::new("cp");
            copy.arg(how).arg("--target-directory");
            assert!(copy.arg(debug.join(folder)).args(batch).status().unwrap().success());
        }
    }
}

#[test]
#[ignore = "needs act"]
fn action_without_a_release_is_built_by_the_first_job_and_reused_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let action = path("crcr");
    copy_source(&action);
    let checkout = path("checkout");
    fs::create_dir_all(checkout.join(".github/workflows")).unwrap();
    fs::create_dir_all(path("home")).unwrap();
    fs::write(checkout.join(".github/workflows/build.yml"), WORKFLOW).unwrap();
    git(&checkout, &["init", "--quiet", "--initial-branch", "main"]);
    git(&checkout, &["remote", "add", "origin", "https://github.com/acme/upstream.git"]);
    git(&checkout, &["add", "--all"]);
    git(&checkout, &["commit", "--quiet", "--message", "build"]);
    let fork = crcr_standin::runs::Run::fork().payload().to_string();
    fs::write(path("event.json"), fork).unwrap();
    let build_dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    link_dependencies(build_dir.path());
    let run = |build_dir: &Path| {
        let mut act = Command::new("act");
        act.arg("pull_request").arg("--eventpath").arg(path("event.json"));
        act.args(["--platform", "ubuntu-latest=-self-hosted", "--no-cache-server", "--pull=false"]);
        act.arg("--local-repository").arg(format!("pytorch/crcr@main={}", action.display()));
        for (name, value) in [
            ("CRCR_BUILD_DIR", build_dir.display().to_string()),
            ("RUNNER_TOOL_CACHE", path("tools").display().to_string()),
            ("CARGO_NET_OFFLINE", "true".to_owned()),
        ] {
            act.arg("--env").arg(format!("{name}={value}"));
        }
        let home = std::env::var("HOME").unwrap();
        for (name, default) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            let value = std::env::var(name).unwrap_or_else(|_| format!("{home}/{default}"));
            act.arg("--env").arg(format!("{name}={value}"));
        }
        act.current_dir(&checkout).env_clear().stdin(Stdio::null());
        act.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", path("home"));
        act.env("XDG_CACHE_HOME", path("home/.cache")).env("TMPDIR", folder.path());
        let output = act.output().expect("`act` is installed by tests/setup");
        let log = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        assert!(log.contains("the mode is anonymous"), "{log}");
        log
    };
    let first = run(build_dir.path());
    assert!(first.contains("comes with no released binary: building its source"), "{first}");
    assert!(first.contains("built `crcr` from the action's source in "), "{first}");
    let second = run(Path::new("/dev/null/no-build"));
    assert!(!second.contains("built `crcr`"), "{second}");
}
