//! The action `validate-allowlist`, run by a real workflow runner.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::act::{copy, git, root};

/// Validates the file and returns the job's outputs, summary and files.
const WORKFLOW: &str = r#"
on: pull_request
permissions: {}
jobs:
  validate:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1
        with: { persist-credentials: false, fetch-depth: 0 }
      - id: allowlist
        uses: pytorch/crcr/actions/validate-allowlist@v1
        with:
          upstream: up/stream
          base: HEAD~1
          sarif-file: FOLDER/found.sarif
          binary: BINARY
      - if: ${{ !cancelled() }}
        env:
          COMMENT: ${{ steps.allowlist.outputs.comment }}
          VALID: ${{ steps.allowlist.outputs.valid }}
        run: |
          printf '%s' "$COMMENT" > FOLDER/comment.md
          printf '%s' "$VALID" > FOLDER/valid
"#;

/// A pull request that turns one allowlist into another, as its workflow saw it.
struct Seen {
    succeeded: bool,
    log: String,
    folder: TempDir,
}

impl Seen {
    fn of(before: &str, after: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let checkout = folder.path().join("checkout");
        fs::create_dir_all(checkout.join(".github/workflows")).unwrap();
        fs::create_dir_all(folder.path().join("home")).unwrap();
        copy(&root().join("actions"), &folder.path().join("crcr/actions"));
        let workflow = WORKFLOW
            .replace("FOLDER", folder.path().to_str().unwrap())
            .replace("BINARY", crate::act::binary());
        fs::write(checkout.join(".github/workflows/review.yml"), workflow).unwrap();
        git(&checkout, &["init", "--quiet", "--initial-branch", "main"]);
        git(&checkout, &["remote", "add", "origin", "https://github.com/up/stream.git"]);
        for text in [before, after] {
            fs::write(checkout.join(".github/allowlist.yml"), text).unwrap();
            git(&checkout, &["add", "--all"]);
            git(&checkout, &["commit", "--quiet", "--message", "list"]);
        }
        let event = folder.path().join("event.json");
        fs::write(&event, r#"{"pull_request": {"number": 7}}"#).unwrap();
        let mut act = Command::new("act");
        act.arg("pull_request").arg("--eventpath").arg(event);
        act.args(["--platform", "ubuntu-latest=-self-hosted", "--no-cache-server", "--pull=false"]);
        let actions = folder.path().join("crcr");
        act.arg("--local-repository").arg(format!("pytorch/crcr@v1={}", actions.display()));
        act.current_dir(&checkout).env_clear().stdin(Stdio::null());
        act.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", folder.path().join("home"));
        act.env("XDG_CACHE_HOME", folder.path().join("home/.cache")).env("TMPDIR", folder.path());
        let output = act.output().expect("`act` is installed by tests/setup");
        let log = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        Self { succeeded: output.status.success(), log, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name))
            .unwrap_or_else(|why| panic!("{name}: {why}\n{}", self.log))
    }

    fn sarif(&self) -> Value {
        serde_json::from_str(&self.read("found.sarif")).unwrap()
    }
}

const LIST: &str = "L1: [acme/one]\nL2: [acme/two]\n";

#[test]
#[ignore = "needs act"]
fn invalid_allowlist_is_annotated_summarised_and_commented_on() {
    let after = "L1: [acme/one]\nL2:\n  - acme/two\n  - Acme/One\n";
    let seen = Seen::of(LIST, after);
    assert!(!seen.succeeded, "{}", seen.log);
    let annotation = "::error title=duplicate-repository,file=.github/allowlist.yml,line=4,col=5,\
                      endColumn=13::`Acme/One` is listed at two levels";
    assert!(seen.log.contains(annotation), "{}", seen.log);
    assert_eq!(seen.read("valid"), "false");
    let sarif = seen.sarif();
    let [result] = &sarif["runs"][0]["results"].as_array().unwrap()[..] else {
        panic!("{sarif:#}")
    };
    assert_eq!(result["ruleId"], "duplicate-repository");
    let comment = seen.read("comment.md");
    assert!(comment.starts_with("<!-- crcr: allowlist -->\n### Allowlist: 1 error"), "{comment}");
    assert!(comment.contains("`duplicate-repository`"), "{comment}");
    let summary = "Summary - <!-- crcr: allowlist -->\n### Allowlist: 1 error";
    assert!(seen.log.contains(summary), "{}", seen.log);
}

#[test]
#[ignore = "needs act"]
fn allowlist_change_is_reviewed_against_its_base() {
    let seen = Seen::of(LIST, "L2: [acme/one, acme/two]\n");
    assert!(seen.succeeded, "{}", seen.log);
    assert_eq!(seen.read("valid"), "true");
    assert_eq!(seen.sarif()["runs"][0]["results"], serde_json::json!([]));
    let comment = seen.read("comment.md");
    assert!(comment.contains("### Allowlist: valid; 2 repositories"), "{comment}");
    assert!(comment.contains("| promoted | <code>acme/one</code> | L1 → L2 |"), "{comment}");
}
