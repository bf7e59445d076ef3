//! `crcr init …` in a real clone, with crcr's own repository on a git server on loopback.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::checkout::{Server, git};
use crate::support::{Crcr, Ran};

/// A clone of `acme/backend`, and a server that has it and `pytorch/crcr` with the tag `v1`.
struct Clone {
    server: Server,
    folder: TempDir,
    /// The commit of `v1`.
    release: String,
    /// The commit of `pytorch/crcr`'s branch `main`, which is newer.
    newest: String,
}

impl Clone {
    fn new() -> Self {
        let server = Server::start();
        let work = tempfile::tempdir().unwrap();
        let commit = |text: &str| {
            fs::write(work.path().join("file"), text).unwrap();
            git(work.path(), &["add", "."]);
            git(work.path(), &["commit", "-q", "-m", text]);
            git(work.path(), &["rev-parse", "HEAD"])
        };
        git(work.path(), &["init", "-q", "-b", "main"]);
        let release = commit("release");
        git(work.path(), &["tag", "-a", "-m", "v1", "v1"]);
        let newest = commit("newest");
        for (name, branch) in [("pytorch/crcr", "main"), ("acme/backend", "trunk")] {
            let bare = server.bare(name);
            let target = format!("HEAD:refs/heads/{branch}");
            git(work.path(), &["push", "-q", bare.to_str().unwrap(), &target, "v1"]);
            git(&bare, &["symbolic-ref", "HEAD", &format!("refs/heads/{branch}")]);
        }
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q"]);
        git(folder.path(), &["remote", "add", "origin", "git@github.com:acme/backend.git"]);
        Self { server, folder, release, newest }
    }

    fn init(&self, args: &[&str]) -> Crcr {
        Crcr::new(&[&["init"], args].concat())
            .dir(self.folder.path())
            .env("GITHUB_SERVER_URL", &self.server.url)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(".github/workflows").join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "no line `{line}` in\n{text}");
    }
}

#[test]
fn downstream_workflow_names_this_repository_its_runners_and_the_commit_of_the_actions() {
    let clone = Clone::new();
    let args =
        ["downstream", "--upstream", "acme/upstream", "--runner", "self-hosted", "--runner", "npu"];
    let ran = clone.init(&args).run().expect_code(0);
    insta::assert_snapshot!(ran.report());
    let text = clone.read("downstream-ci.yml");
    assert_lines(
        &text,
        &[
            "# Downstream CI for pull requests of acme/upstream: the relay starts it, and hears how it ends.",
            "# trusts repo:acme/backend:ref:refs/heads/trunk, and could report what it likes. `start` and `end` have the",
            "name: acme/upstream",
            "    runs-on: [self-hosted, npu]",
            "          environment: self-hosted npu, Python ${{ matrix.python }}",
            &format!("        uses: pytorch/crcr/actions/report-ci-result@{} # v1", clone.release),
        ],
    );
    // The jobs that only report stay on GitHub's runners.
    assert_eq!(text.matches("runs-on: ubuntu-latest\n").count(), 3);
    assert!(!clone.path("downstream-nightly.yml").exists());
}

#[test]
fn nightly_workflow_tests_and_reports_upstream_on_the_same_runners() {
    let clone = Clone::new();
    let args = ["downstream", "--nightly", "--upstream", "acme/upstream", "--runner", "npu"];
    let ran = clone.init(&args).run().expect_code(0);
    insta::assert_snapshot!(ran.report());
    let text = clone.read("downstream-nightly.yml");
    assert_lines(
        &text,
        &[
            "name: \"acme/upstream nightly\"",
            "  UPSTREAM: acme/upstream",
            "    runs-on: npu",
            "          environment: npu, Python ${{ matrix.python }}",
            "          event-type: nightly",
            &format!("        uses: pytorch/crcr/actions/report-ci-result@{} # v1", clone.release),
        ],
    );
    assert!(!text.contains("pytorch/pytorch"), "{text}");
}

#[test]
fn label_that_needs_quotes_leaves_the_workflows_yaml() {
    let clone = Clone::new();
    clone.init(&["downstream", "--nightly", "--runner", "a: b"]).run().expect_code(0);
    for name in ["downstream-ci.yml", "downstream-nightly.yml"] {
        let text = clone.read(name);
        let environment = "          environment: \"a: b, Python ${{ matrix.python }}\"";
        assert_lines(&text, &["    runs-on: \"a: b\"", environment]);
        let read: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
        assert!(read["jobs"].is_mapping(), "{text}");
    }
}

#[test]
fn every_workflow_runs_on_the_given_runners() {
    let clone = Clone::new();
    for args in [&["allowlist-review"][..], &["test-stats", "--workflow", "ci"]] {
        let args = [args, &["--stdout", "--runner", "self-hosted", "--runner", "small"]].concat();
        let text = clone.init(&args).run().expect_code(0).stdout;
        assert!(text.contains("    runs-on: [self-hosted, small]\n"), "{text}");
        assert!(!text.contains("ubuntu-latest"), "{text}");
    }
    let ran = clone.init(&["test-stats", "--workflow", "ci", "--runner", "small"]).run();
    assert!(ran.stderr.contains("actionlint, list small in"), "{}", ran.report());
}

/// The one starts for changes of the file, and the other says where the findings are.
#[test]
fn allowlist_elsewhere_is_named_in_both_workflows() {
    let clone = Clone::new();
    let review = |file: &str| clone.init(&["allowlist-review", "--file", file]).run();
    review("./ci/allowlist.yml").expect_code(0);
    let (one, other) = ("allowlist-review.yml", "allowlist-review-comment.yml");
    let lines = ["    paths: [ci/allowlist.yml]", "          file: ci/allowlist.yml"];
    assert_lines(&clone.read(one), &lines);
    assert_lines(&clone.read(other), &[r#"            const file = "ci/allowlist.yml";"#]);
    for name in [one, other] {
        assert!(!clone.read(name).contains(".github/allowlist.yml"), "{}", clone.read(name));
    }
    let ran = review("/ci/allowlist.yml").expect_code(2);
    assert!(ran.stderr.contains("isn't a path below this repository"), "{}", ran.report());
}

/// A fork's pull request gets no variables, so a rule that is one would be off exactly there.
#[test]
fn address_of_the_hud_and_the_label_of_approval_are_written_into_the_workflow() {
    let clone = Clone::new();
    let review = |args: &[&str]| clone.init(&[&["allowlist-review"], args].concat()).run();
    let ran = review(&[]).expect_code(0);
    assert!(
        ran.stderr.contains("nobody has to approve promotions to L3 and L4"),
        "{}",
        ran.report()
    );
    let (hud, label) = ("https://hud.example.com", "it's: approved");
    let ran = review(&["--force", "--hud", hud, "--approval-label", label]).expect_code(0);
    assert!(ran.stderr.contains("create the label `it's: approved`"), "{}", ran.report());
    let text = clone.read("allowlist-review.yml");
    assert!(!text.contains("vars."), "{text}");
    let workflow: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(workflow["env"]["HUD"], "https://hud.example.com/");
    assert_eq!(workflow["env"]["APPROVAL_LABEL"], label);
    let steps = workflow["jobs"]["validate"]["steps"].as_sequence().unwrap();
    let with = steps.iter().map(|step| &step["with"]).find(|with| with.get("base").is_some());
    let with = with.unwrap();
    assert_eq!(with["results"], "${{ env.HUD }}");
    assert_eq!(with["approval-label"], "${{ env.APPROVAL_LABEL }}");
    for wrong in ["hud.example.com", "http://hud.example.com", "https://a:b@hud.example.com"] {
        review(&["--hud", wrong, "--stdout"]).expect_code(2);
    }
}

#[test]
fn fork_build_uses_the_default_branch_that_the_server_names() {
    let clone = Clone::new();
    let role = "arn:aws:iam::999999999999:role/build";
    let ran = clone.init(&["fork-build", "--role-to-assume", role]).run().expect_code(0);
    insta::assert_snapshot!(ran.report());
    let text = clone.read("fork-build.yml");
    assert_lines(&text, &["    branches: [trunk]", &format!("  AWS_ROLE: \"{role}\"")]);
    let own = clone.init(&["fork-build", "--runner", "npu", "--force"]).run().expect_code(0);
    assert!(
        own.stderr.contains("forks' pull requests run on these runners, too"),
        "{}",
        own.report()
    );
    // A branch of that name would be a pattern.
    let odd = ["fork-build", "--default-branch", "a+b", "--stdout"];
    assert_lines(&clone.init(&odd).run().expect_code(0).stdout, &[r#"    branches: ["a\\+b"]"#]);
}

#[test]
fn actions_are_pinned_by_tag_branch_or_commit_and_never_left_unpinned() {
    let clone = Clone::new();
    let pins = |actions: &str| {
        let ran = clone.init(&["allowlist-review", "--stdout", "--actions", actions]).run();
        (ran.code, ran.stdout + &ran.stderr)
    };
    for (actions, pin) in [
        ("pytorch/crcr", format!("@{} # v1\n", clone.release)),
        ("pytorch/crcr@v1", format!("@{} # v1\n", clone.release)),
        ("pytorch/crcr@main", format!("@{} # main\n", clone.newest)),
        // Without any tag `v1`, the head of the default branch.
        ("acme/nothing@0123456789abcdef0123456789abcdef01234567", "4567\n".to_owned()),
    ] {
        let (code, text) = pins(actions);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains(&pin), "{actions}: {pin}: {text}");
    }
    let bare = clone.server.bare("acme/fork");
    git(clone.folder.path(), &["fetch", "-q", &format!("{}/pytorch/crcr", clone.server.url)]);
    git(clone.folder.path(), &["push", "-q", bare.to_str().unwrap(), "FETCH_HEAD:refs/heads/main"]);
    let (code, text) = pins("acme/fork");
    assert!(code == 0 && text.contains(&format!("@{} # main\n", clone.newest)), "{text}");

    let (code, text) = pins("pytorch/crcr@v9");
    assert!(code == 1 && text.contains("has no tag or branch `v9`"), "{text}");
    let (code, text) = pins("acme/gone");
    assert!(code == 2 && text.contains("error[github-unavailable]"), "{text}");
    assert!(text.contains("hint: name the commit: `--actions acme/gone@COMMIT`"), "{text}");
}

#[test]
fn existing_workflow_is_only_replaced_with_force() {
    let clone = Clone::new();
    let review = |args: &[&str]| clone.init(&[&["allowlist-review"], args].concat()).run();
    review(&[]).expect_code(0);
    assert!(review(&[]).expect_code(0).stderr.contains("allowlist-review.yml` is up to date"));
    let (one, other) = ("allowlist-review.yml", "allowlist-review-comment.yml");
    fs::remove_file(clone.path(one)).unwrap();
    fs::write(clone.path(other), "mine").unwrap();
    let ran = review(&[]).expect_code(1);
    insta::assert_snapshot!(ran.report());
    assert!(!clone.path(one).exists(), "one of two was written");
    assert_eq!(clone.read(other), "mine");
    review(&["--force"]).expect_code(0);
    assert!(clone.read(other).starts_with("# Posts what"), "{}", clone.read(other));
    let left = fs::read_dir(clone.path("")).unwrap().count();
    assert_eq!(left, 2, "a temporary file is left");
}

#[test]
fn terminal_is_asked_before_a_workflow_is_replaced() {
    let clone = Clone::new();
    clone.init(&["test-stats", "--workflow", "ci"]).run().expect_code(0);
    let answer = |answer: &str| {
        fs::write(clone.path("test-stats.yml"), "mine").unwrap();
        let crcr = env!("CARGO_BIN_EXE_crcr");
        let line = format!("{crcr} init test-stats --workflow ci");
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).current_dir(clone.folder.path());
        script.env("GITHUB_SERVER_URL", &clone.server.url).env_remove("GITHUB_ACTIONS");
        script.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut script = script.spawn().unwrap();
        let mut stdin = script.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, answer.as_bytes()).unwrap();
        let output = script.wait_with_output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains("differs. Replace it? [y/N]"), "{shown}");
        (output.status.code().unwrap(), clone.read("test-stats.yml") != "mine")
    };
    assert_eq!(answer("n\n"), (1, false));
    assert_eq!(answer("\n"), (1, false));
    assert_eq!(answer("y\n"), (0, true));
}

#[test]
fn stdout_writes_no_file() {
    let clone = Clone::new();
    for flag in ["--stdout", "--dry-run"] {
        let ran = clone.init(&["downstream", flag]).run().expect_code(0);
        assert!(ran.stdout.starts_with("# Downstream CI for pull requests of pytorch/pytorch"));
        assert_eq!(ran.stderr, "");
        assert!(!clone.folder.path().join(".github").exists());
    }
}

#[test]
fn workflow_folder_that_leads_elsewhere_is_refused() {
    let clone = Clone::new();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), clone.folder.path().join(".github")).unwrap();
    let ran = clone.init(&["allowlist-review"]).run().expect_code(1);
    assert!(ran.stderr.contains("error[outside-repository]"), "{}", ran.report());
    assert_eq!(files(elsewhere.path()), 0);
}

fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

#[test]
fn test_stats_collects_from_the_workflows_that_pushes_and_pull_requests_start() {
    let clone = Clone::new();
    let ran = clone.init(&["test-stats"]).run().expect_code(1);
    assert!(ran.stderr.contains("error[no-workflows]"), "{}", ran.report());
    fs::create_dir_all(clone.path("")).unwrap();
    for (file, text) in [
        ("a.yml", "name: build\non: {push: {branches: [main]}}\n"),
        ("b.yaml", "name: 'unit: tests'\non: [pull_request]\n"),
        ("c.yml", "name: nightly\non: {schedule: []}\n"),
        ("d.yml", "not yaml: {"),
        ("e.yml", "on: push\n"),
        ("f.yml", "name: 12\non: push\n"),
        ("g.yml", "name: C/C++ [gcc]\non: push\n"),
        ("h.yml", "name: ${{ github.ref }}\non: push\n"),
    ] {
        fs::write(clone.path(file), text).unwrap();
    }
    let ran = clone.init(&["test-stats"]).run().expect_code(0);
    // GitHub takes the names for patterns.
    let listed = r#"    workflows: ["12", "C/C\\+\\+ \\[gcc\\]", build, "unit: tests"]"#;
    assert_lines(&clone.read("test-stats.yml"), &[listed]);
    let told = format!("{}{}", ran.stdout, ran.stderr);
    assert!(told.contains("give `e.yml`, `h.yml` a fixed `name:`"), "{}", ran.report());
}

#[test]
fn values_that_are_evaluated_or_break_lines_are_refused() {
    let clone = Clone::new();
    for args in [
        ["downstream", "--runner", "${{ github.token }}"],
        ["fork-build", "--default-branch", "a\nb: c"],
        ["test-stats", "--workflow", "a\u{7}"],
        ["allowlist-review", "--approval-label", "${{ github.token }}"],
    ] {
        let ran = clone.init(&args).run().expect_code(2);
        assert!(ran.stderr.contains("error[init-value]"), "{}", ran.report());
    }
    let ran = Crcr::new(&["init", "downstream"]).run().expect_code(1);
    assert!(ran.stderr.contains("error[unknown-repository]"), "{}", ran.report());
    assert!(!clone.folder.path().join(".github").exists());
}

/// GitHub Enterprise Server refuses a workflow with a key that it doesn't know.
#[test]
fn cache_mode_is_written_for_github_and_left_out_for_enterprise_server() {
    let sha = "pytorch/crcr@0123456789abcdef0123456789abcdef01234567";
    let written = |kind: &str, server: &str| {
        let args =
            ["init", kind, "--repository", "acme/app", "--default-branch", "main", "--stdout"];
        let ran = Crcr::new(&[&args[..], &["--actions", sha]].concat());
        ran.env("GITHUB_SERVER_URL", server).run().expect_code(0).stdout
    };
    let (github, enterprise) = ("https://github.com", "https://github.acme.example");
    let said = |server: &str| {
        let args = ["init", "fork-build", "--repository", "acme/app", "--default-branch", "main"];
        let ran = Crcr::new(&[&args[..], &["--actions", sha]].concat());
        ran.env("GITHUB_SERVER_URL", server).run().expect_code(0).stderr
    };
    let forks = "Enterprise Server has no artifacts of version 4, and a fork no credentials";
    assert!(said(enterprise).contains(forks) && !said(github).contains(forks));
    assert!(written("downstream", github).contains("    cache-mode: none\n"));
    assert!(written("fork-build", github).contains("      deployment: false"));
    for kind in ["downstream", "fork-build"] {
        let text = written(kind, enterprise);
        assert!(!text.contains("cache-mode:") && !text.contains("deployment:"), "{text}");
        assert!(serde_yaml::from_str::<serde_yaml::Value>(&text).is_ok());
    }
}

/// README forbids it: every job of the default branch has that `sub`.
#[test]
fn fork_build_never_asks_for_a_role_that_trusts_a_branch() {
    let clone = Clone::new();
    clone.init(&["downstream"]).run().expect_code(0);
    let ran = clone.init(&["fork-build"]).run().expect_code(0);
    assert!(!ran.stderr.contains(":ref:refs/heads"), "{}", ran.report());
    assert!(ran.stderr.contains("`repo:acme/backend:environment:ci`"), "{}", ran.report());
    assert!(ran.stderr.contains("`repo:acme@ID/backend@ID:environment:…`"), "{}", ran.report());
    let text = clone.read("fork-build.yml");
    assert!(!text.contains(":ref:refs/heads"), "{text}");
}

#[test]
fn missing_default_branch_offers_the_one_that_is_checked_out() {
    let clone = Clone::new();
    let server = "http://127.0.0.1:1";
    git(clone.folder.path(), &["symbolic-ref", "HEAD", "refs/heads/develop"]);
    let ran = clone.init(&["fork-build"]).env("GITHUB_SERVER_URL", server).run().expect_code(2);
    let hint = "if it is the branch you are on, pass `--default-branch develop`";
    assert!(ran.stderr.contains(hint), "{}", ran.report());
}

#[test]
fn actions_that_name_no_repository_are_said_with_what_was_given() {
    let clone = Clone::new();
    let ran = clone.init(&["downstream", "--actions", "foo"]).run().expect_code(2);
    let said = "`--actions foo` names no repository: it has no `/`";
    assert!(ran.stderr.contains(said), "{}", ran.report());
}

fn lint(clone: &Clone, program: &str, args: &[&str]) {
    let output =
        Command::new(program).args(args).current_dir(clone.folder.path()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&said));
}

#[test]
#[ignore = "needs actionlint and zizmor"]
fn every_written_workflow_passes_actionlint_and_zizmor() {
    let clone = Clone::new();
    let run = |args: &[&str]| -> Ran { clone.init(args).run().expect_code(0) };
    run(&["downstream", "--nightly", "--runner", "self-hosted", "--runner", "3.5"]);
    run(&[
        "fork-build",
        "--default-branch",
        "on",
        "--sccache-bucket",
        "null",
        "--s3-bucket",
        "1e3",
    ]);
    let literals = ["--hud", "https://hud.example.com", "--approval-label", "a: b"];
    run(&[&["allowlist-review", "--file", "ci/a+b: c.yml"], &literals[..]].concat());
    run(&["test-stats", "--workflow", "it's: \"quoted\" #1", "--workflow", "*"]);
    let labels = "self-hosted-runner: {labels: ['3.5']}\n";
    fs::write(clone.folder.path().join(".github/actionlint.yaml"), labels).unwrap();
    lint(&clone, "actionlint", &[]);
    lint(
        &clone,
        "zizmor",
        &["--offline", "--no-progress", "--quiet", "--persona=pedantic", ".github/workflows"],
    );
}
