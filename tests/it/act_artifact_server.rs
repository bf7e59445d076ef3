//! Uploads to the artifact server of act, whose code Gitea and Forgejo share: it doesn't know
//! `mime_type`, appends blocks in the order in which they arrive, ignores whole blobs, and checks nothing.

use std::fs;
use std::process::{Command, Stdio};

use crate::act::{binary, git};

const WORKFLOW: &str = r#"
on: push
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - run: |
          mkdir dist raw
          echo small > dist/a.txt
          : > raw/empty.log
          head -c 31457280 /dev/urandom > dist/large.bin
          "$CRCR" artifact upload --name small --path dist/a.txt
          "$CRCR" artifact upload --name large --path dist --compression-level 0
          "$CRCR" artifact upload --path raw/empty.log --archive none
          "$CRCR" artifact upload --name small --path dist/a.txt --overwrite
      - run: |
          "$CRCR" artifact download --name small --path small
          "$CRCR" artifact download --name large --path large
          "$CRCR" artifact download --name empty.log --path raw-again
          cmp dist/a.txt small/a.txt
          cmp dist/large.bin large/large.bin
          test -f raw-again/empty.log && echo "everything came back"
"#;

#[test]
#[ignore = "needs act"]
fn artifacts_come_back_whole_from_acts_own_server() {
    let world = tempfile::tempdir().unwrap();
    let path = |name: &str| world.path().join(name);
    fs::create_dir_all(path("checkout/.github/workflows")).unwrap();
    fs::create_dir_all(path("home")).unwrap();
    fs::write(path("checkout/.github/workflows/build.yml"), WORKFLOW).unwrap();
    git(&path("checkout"), &["init", "--quiet", "--initial-branch", "main"]);
    git(&path("checkout"), &["remote", "add", "origin", "https://github.com/acme/upstream.git"]);
    git(&path("checkout"), &["add", "--all"]);
    git(&path("checkout"), &["commit", "--quiet", "--message", "build"]);
    let port = crcr_testkit::unused_port();
    let output = Command::new("act")
        .args(["push", "--platform", "ubuntu-latest=-self-hosted", "--pull=false"])
        .args(["--no-cache-server", "--artifact-server-addr", "127.0.0.1"])
        .args(["--artifact-server-port", &port.to_string(), "--artifact-server-path"])
        .arg(path("artifacts"))
        .args(["--env", &format!("CRCR={}", binary())])
        .args(["--env", "CRCR_RETRY_SECONDS=10"])
        .current_dir(path("checkout"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", path("home"))
        .env("XDG_CACHE_HOME", path("home/.cache"))
        .env("TMPDIR", world.path())
        .stdin(Stdio::null())
        .output()
        .expect("`act` is installed by tests/setup");
    let log = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("everything came back"), "{log}");
}
