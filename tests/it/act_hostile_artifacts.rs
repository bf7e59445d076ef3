//! What a fork's job leaves for a job with rights: artifacts that want out of their folder, into the log, or to another
//! store. GitHub stores any bytes, so no client's checks apply.

use std::fs;
use std::io::{Cursor, Write as _};

use crcr_artifacts::digest::Digest;
use crcr_standin::runs::Run;
use crcr_testkit::s3::{Anonymous, S3Server};
use serde_json::json;
use tokio::runtime::Runtime;
use zip::write::SimpleFileOptions;

use crate::act::{Outside, Ran};
use crate::act_artifacts::{Steps, expect_lines, workflow};
use crate::artifact_download::{store_raw, zip};

/// A zip with a link to `target`, and a file below it.
fn zip_with_link(target: &str) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(vec![]));
    writer.add_symlink("out", target, SimpleFileOptions::default()).unwrap();
    writer.start_file("out/planted", SimpleFileOptions::default()).unwrap();
    writer.write_all(b"planted").unwrap();
    writer.finish().unwrap().into_inner()
}

/// A small zip that announces 600 MiB.
fn bomb() -> Vec<u8> {
    const REAL: u32 = 1_234_567;
    let mut writer = zip::ZipWriter::new(Cursor::new(vec![]));
    let options = SimpleFileOptions::default();
    let options = options.compression_method(zip::CompressionMethod::Deflated);
    writer.start_file("zeros", options).unwrap();
    writer.write_all(&vec![0; REAL as usize]).unwrap();
    let mut bytes = writer.finish().unwrap().into_inner();
    for at in 0..bytes.len() - 4 {
        if bytes[at..at + 4] == REAL.to_le_bytes() {
            bytes[at..at + 4].copy_from_slice(&(600_u32 << 20).to_le_bytes());
        }
    }
    bytes
}

/// A program that would run as whoever unpacks it.
pub(crate) fn setuid() -> Vec<u8> {
    let mut bytes = zip(&[("tool", 0o755, b"planted")]);
    // The mode is in the upper half of the external attributes, which end with the file's kind.
    let (plain, set) = ([0xED, 0x81], [0xED, 0x89]);
    let at = bytes.windows(2).rposition(|two| two == plain).unwrap();
    bytes[at..at + 2].copy_from_slice(&set);
    bytes
}

/// A locator that leads to the stranger's own store.
fn locator(name: &str, run: u64, s3: &S3Server, bytes: &[u8]) -> Vec<u8> {
    let json = json!({
        "version": 1, "name": name, "repository": "acme/upstream", "run_id": run, "run_attempt": 1, "job": "build",
        "store": "s3", "bucket": "evil-bucket", "key": format!("acme/upstream/{run}/{name}/artifacts.zip"),
        "endpoint": s3.url(), "archive": "zip", "digest": Digest::of(bytes).to_string(), "size": bytes.len(),
        "file_count": 1, "files": [], "created": "2026-01-02T03:04:05Z", "trust": "same-repo",
    });
    zip(&[("locator.json", 0o644, json.to_string().as_bytes())])
}

#[test]
#[ignore = "needs act and node"]
fn strangers_artifact_stays_in_its_folder_or_is_refused_by_a_job_with_rights() {
    let fork = Run { status: "completed".to_owned(), ..Run::fork() };
    let privileged = Run { id: 5000, event: "workflow_run".to_owned(), ..Run::push() };
    let mut outside = Outside::new(privileged);
    let state = outside.github.state();
    let job = state.runs.add_job(state.runs.add(fork.clone()), "build");
    outside.payload["action"] = json!("completed");
    outside.payload["workflow_run"] = fork.api(state.origin());

    let evil = S3Server::start("evil-bucket").unwrap();
    evil.rules(|rules| rules.anonymous = Anonymous::ReadAndList);
    let loot = outside.path("loot").to_str().unwrap().to_owned();
    let commands = format!(
        "a\n::add-path::{loot}\n::set-env name=PLANTED::yes\n##[add-path]{loot}\n::stop-commands::x"
    );
    let file = |path: &str| zip(&[("ok", 0o644, b"ok"), (path, 0o755, b"planted")]);
    let refused = [
        ("up", file("../../planted")),
        ("absolute", file(&format!("{loot}/planted"))),
        ("inside", file("a/../../../planted")),
        ("backslash", file("..\\..\\planted")),
        ("drive", file("C:\\planted")),
        ("git", file(".git/hooks/post-checkout")),
        ("nested-git", file("src/.GIT/config")),
        ("workflow", file(".github/workflows/x.yml")),
        ("setuid", setuid()),
        ("link", zip_with_link(outside.path("").to_str().unwrap())),
        ("link-up", zip_with_link("../..")),
        ("bomb", bomb()),
    ];
    // These are a file of a strange name or kind in a folder of its own, at most.
    let data = [
        ("commands", "application/zip", file(&commands)),
        ("raw..sh", "text/x-shellscript", b"planted".to_vec()),
        ("crcr-locator-elsewhere", "application/zip", locator("elsewhere", fork.id, &evil, b"x")),
    ];
    let runtime = Runtime::new().unwrap();
    let store = |name: &str, kind: &str, bytes: &[u8]| {
        runtime.block_on(store_raw(&outside.github, &job, (name, kind), bytes));
    };
    refused.iter().for_each(|(name, bytes)| store(name, "application/zip", bytes));
    data.iter().for_each(|(name, kind, bytes)| store(name, kind, bytes));

    let mut steps = Steps::default();
    let downloads =
        refused.iter().map(|(name, _)| *name).chain(["commands", "raw..sh", "elsewhere"]);
    let bucket = outside.s3.url().to_string();
    let mut ids = vec![];
    for name in downloads {
        let id = name.replace('.', "-");
        let inputs = [
            ("name", name),
            ("run-id", "${{ github.event.workflow_run.id }}"),
            ("github-token", "ghs_reader"),
            ("allow-fork", "true"),
            ("s3-bucket", crate::act::BUCKET),
            ("s3-endpoint", &bucket),
            ("aws-region", "us-east-1"),
        ];
        steps = steps.download(&id, &inputs);
        ids.push(id);
    }
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let steps = steps.tell(&ids).run(
        "find . -type f -not -path './.github/*' | sed 's/^/changed: /'\n\
         echo \"planted: ${PLANTED-nothing}\"\n\
         case $PATH in *loot*) echo 'path: planted' ;; *) echo 'path: as before' ;; esac",
    );
    outside.write("report.yml", &workflow("workflow_run", &[("report", "", steps)]));
    let Ran { succeeded, log } = outside.run(&outside.runner_variables(), true);
    assert!(succeeded, "{log}");
    for (name, _) in &refused {
        expect_lines(&log, &[&format!("{name}: failure none artifact-refused")]);
    }
    expect_lines(&log, &["raw--sh: success github ok", "planted: nothing", "path: as before"]);
    assert!(log.contains("elsewhere: failure none "), "{log}");
    assert!(!log.contains("| changed: "), "{log}");
    assert!(evil.calls().is_empty(), "the stranger's store was asked: {:?}", evil.calls());
    for command in ["::add-path::", "::set-env", "##[add-path]", "::stop-commands::"] {
        let as_command = log
            .lines()
            .any(|line| line.rsplit("| ").next().is_some_and(|text| text.starts_with(command)));
        assert!(!as_command, "{command}\n{log}");
    }
    assert!(!fs::exists(&loot).unwrap());
    for planted in ["planted", "checkout/planted", "home/planted"] {
        assert!(!outside.path(planted).exists(), "{planted}");
    }
}
