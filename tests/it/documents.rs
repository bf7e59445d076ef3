//! The pages that users read: their commands run, their links lead somewhere, their tables agree with
//! the actions.
//!
//! A block marked `sh` runs as it is written, in a folder with the files that the pages name. What is
//! marked `sh no-run` needs what the third word says: an account, a server, root, or minutes. Its `crcr`
//! lines are only parsed, as are commands in running text, in the help of each command, and in workflows.
//! `console` blocks show a terminal: their commands run, and have to print what the block shows.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Output};

use axum::routing::get;
use axum::{Json, Router};
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::server::{Bound, Server as WebServer};
use crcr_store::{SqliteStore, StoreRole};
use regex::Regex;
use serde_json::json;
use serde_yaml::Value;

use crate::checkout::{Server, git};
use crate::contracts::{actions, documented, files, root, steps, text, workflows, yaml};
use crate::support::{Crcr, keep_coverage};

/// The words after a fence. A page with others is wrong: nothing would check such a block.
const MARKS: [&str; 15] = [
    "console",
    "json",
    "mermaid",
    "sh",
    "sh demo",
    "sh no-run account",
    "sh no-run minutes",
    "sh no-run root",
    "sh no-run server",
    "sh release",
    "text",
    "text demo",
    "yaml",
    "yaml before",
    "yaml prometheus",
];

/// Every Markdown page that a user reads.
pub(crate) fn pages() -> Vec<String> {
    let mut found: Vec<_> = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
        .map(str::to_owned)
        .into_iter()
        .collect();
    for folder in ["actions", "deploy", "docs", "workflows-templates"] {
        found.extend(files(folder, |name| name.ends_with(".md")));
    }
    found.push("tests/fixtures/README.md".to_owned());
    found
}

/// The fenced blocks of a page: the words after the fence, and the text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let (mut found, mut open) = (Vec::new(), None::<(String, String)>);
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(marks), None) => open = Some((marks.trim().to_owned(), String::new())),
            (Some(""), Some(_)) => found.extend(open.take()),
            (_, Some((_, text))) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block without an end: {open:?}");
    found
}

/// The blocks with these marks on all pages, and on which page each is.
fn marked(marks: &str) -> Vec<(String, String)> {
    let all = pages().into_iter().flat_map(|page| {
        let found = blocks(&text(&page)).into_iter();
        found.map(move |(marks, text)| (page.clone(), marks, text))
    });
    all.filter(|(_, found, _)| found == marks).map(|(page, _, text)| (page, text)).collect()
}

pub(crate) fn without_blocks(page: &str) -> String {
    let fence = Regex::new(r"(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$").unwrap();
    fence.replace_all(page, "").into_owned()
}

/// The simple commands of a piece of shell, as words. Expansions stay as they are written.
fn shell_commands(script: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    // The next word is the file of a redirection.
    let mut is_file = false;
    let mut chars = script.chars().chain(['\n']).peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' if chars.peek() == Some(&'\n') => drop(chars.next()),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '\'' | '"' => {
                let part: String = chars.by_ref().take_while(|next| *next != char).collect();
                word.get_or_insert_default().push_str(&part);
            }
            '#' if word.is_none() => drop(chars.by_ref().find(|next| *next == '\n')),
            _ if char.is_whitespace() || "|&;<>()".contains(char) => {
                if let Some(word) = word.take()
                    && !std::mem::take(&mut is_file)
                {
                    words.push(word);
                }
                is_file |= "<>".contains(char);
                if char == '\n' || "|&;()".contains(char) {
                    commands.push(std::mem::take(&mut words));
                }
                continue;
            }
            _ => word.get_or_insert_default().push(char),
        }
        if char == '#' && word.is_none() {
            commands.push(std::mem::take(&mut words));
        }
    }
    commands.retain(|words| !words.is_empty());
    commands
}

/// Adds each `crcr` command in `script` that has a flag or subcommand that doesn't exist to `wrong`.
/// Returns how many commands there are.
pub(crate) fn parse_commands(whence: &str, script: &str, wrong: &mut Vec<String>) -> usize {
    let mut parsed = 0;
    for words in shell_commands(script) {
        let is_before = |word: &String| word.contains('=') || word == "sudo";
        let mut words = words.into_iter().skip_while(is_before);
        if words.next().as_deref() != Some("crcr") {
            continue;
        }
        let mut args: Vec<String> = words
            .filter(|word| !word.starts_with("${"))
            .map(|word| if word.starts_with(['$', '…']) { "acme/app".to_owned() } else { word })
            .collect();
        // `crcr COMMAND --help` speaks of all commands.
        if args.first().is_some_and(|word| word.chars().all(|char| char.is_ascii_uppercase())) {
            continue;
        }
        // What follows `--` belongs to another program.
        let end = args.iter().position(|word| word == "--").unwrap_or(args.len());
        args.insert(end, "--help".to_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ran = Crcr::new(&args).run();
        if ran.code != 0 {
            wrong.push(format!("{whence}: `crcr {}`\n{}", args.join(" "), ran.report()));
        }
        parsed += 1;
    }
    parsed
}

/// A folder with the files that commands of the pages name, and an empty store of the relay.
fn workplace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = |path: &str| root().join("tests/fixtures").join(path);
    let to = |name: &str| folder.path().join(name);
    fs::copy(from("junit/nextest/report.xml"), to("report.xml")).unwrap();
    fs::copy(from("allowlist/valid/pytorch.yml"), to("allowlist.yml")).unwrap();
    fs::create_dir(to(".github")).unwrap();
    fs::write(to(".github/quarantine.yml"), "[]\n").unwrap();
    let log = Command::new("gzip")
        .args(["--decompress", "--stdout"])
        .arg(from("logs/labelled/asan.log.gz"))
        .output()
        .unwrap();
    fs::write(to("job.log"), log.stdout).unwrap();
    drop(SqliteStore::open(&to("crcr.db"), StoreRole::Server).unwrap());
    folder
}

/// Runs a piece of shell as a reader would who has `crcr` on `PATH`, and stops at the first failure.
/// `programs` are scripts that stand in for others of that name.
fn shell(script: &str, folder: &Path, programs: &[(&str, &str)], env: &[(&str, &str)]) -> Output {
    let bin = tempfile::tempdir().unwrap();
    for (name, text) in programs {
        fs::write(bin.path().join(name), text).unwrap();
        fs::set_permissions(bin.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let crcr = Path::new(env!("CARGO_BIN_EXE_crcr")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", bin.path().display(), crcr.display());
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(folder).env_clear();
    command.env("PATH", path).env("HOME", folder).env("TMPDIR", folder).envs(env.iter().copied());
    keep_coverage(&mut command);
    command.output().unwrap()
}

#[track_caller]
fn expect_success(page: &str, script: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page}:\n{script}\n{said}");
}

#[test]
fn every_block_says_what_it_is() {
    for page in pages() {
        for (marks, block) in blocks(&text(&page)) {
            assert!(MARKS.contains(&&*marks), "{page}: a block is marked `{marks}`:\n{block}");
        }
    }
}

#[test]
fn every_block_of_commands_runs_as_written() {
    let blocks = marked("sh");
    for (page, script) in &blocks {
        let folder = workplace();
        expect_success(page, script, &shell(script, folder.path(), &[], &[]));
    }
    assert!(blocks.len() > 6, "{}", blocks.len());
}

#[test]
fn every_other_command_on_a_page_parses() {
    let span = Regex::new(r"`(crcr [^`]+)`").unwrap();
    let (mut parsed, mut wrong) = (0, Vec::new());
    for page in pages() {
        let content = text(&page);
        for found in span.captures_iter(&without_blocks(&content)) {
            let command = found[1].replace('\n', " ");
            parsed += parse_commands(&page, &command, &mut wrong);
        }
        for (marks, script) in blocks(&content) {
            if !marks.starts_with("sh no-run") {
                continue;
            }
            for words in shell_commands(&script) {
                let program = &words[0];
                if program.contains('/') && !program.contains('=') {
                    assert!(root().join(program).is_file(), "{page}: {program}");
                }
            }
            parsed += parse_commands(&page, &script, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(parsed > 30, "{parsed} commands were parsed");
}

/// `cargo test` has built `crcr` already; all else of `./demo` runs, with what `tests/setup` looks for.
const CARGO: &str = r#"#!/bin/sh
if [ "$1" != run ]; then
  echo cargo 1.95.0
  exit
fi
while [ "$1" != -- ]; do shift; done
shift
exec crcr "$@"
"#;

#[test]
fn readme_shows_what_the_demo_prints() {
    let number = Regex::new(r"\d+").unwrap();
    let same = |text: &str| number.replace_all(text.trim(), "N").into_owned();
    let folder = tempfile::tempdir().unwrap();
    for name in ["demo", "tests", "Cargo.toml"] {
        symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    let (commands, shown) = (marked("sh demo"), marked("text demo"));
    let ([(page, script)], [(_, shown)]) = (&*commands, &*shown) else { panic!("{commands:?}") };
    let output = shell(script, folder.path(), &[("cargo", CARGO)], &[]);
    expect_success(page, script, &output);
    let said = String::from_utf8(output.stdout).unwrap();
    let printed: BTreeSet<_> = said.lines().map(same).collect();
    for line in shown.lines() {
        assert!(printed.contains(&same(line)), "`{line}` isn't printed:\n{said}");
    }
}

/// Whether a terminal showed these lines; `...` stands for lines that are left out.
fn is_shown(shown: &[&str], printed: &[&str]) -> bool {
    match shown {
        [] => printed.is_empty(),
        ["...", rest @ ..] => (0..=printed.len()).any(|n| is_shown(rest, &printed[n..])),
        [line, rest @ ..] => printed.first() == Some(line) && is_shown(rest, &printed[1..]),
    }
}

/// GitHub with `acme/backend`, which has the workflow of the template and one action that isn't pinned,
/// and with `acme/torch-npu`, whose run 99 has failed.
fn github_of_the_transcripts() -> StandIn {
    let github = StandIn::start().unwrap();
    let world = &github.state().world;
    let file = ".github/workflows/downstream-ci.yml";
    let sha = "0123456789abcdef0123456789abcdef01234567";
    let pinned = text("workflows-templates/downstream-ci.yml")
        .replace("@v1\n", &format!("@{sha} # v1\n"))
        .replace("runs-on: ubuntu-latest\n    timeout-minutes: 120", "runs-on: [self-hosted, npu]");
    let cached = pinned.replacen("    steps:\n", "    steps:\n      - uses: actions/cache@v5\n", 1);
    world.add_repo("acme/backend");
    world.put_file("acme/backend", file, cached);
    let commit = "5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d";
    world.add_repo("acme/torch-npu");
    world.put_file("acme/torch-npu", file, pinned);
    world.add_commit("acme/torch-npu", commit);
    github.state().runs.add(Run {
        id: 99,
        repository: "acme/torch-npu".to_owned(),
        event: "repository_dispatch".to_owned(),
        workflow_path: file.to_owned(),
        sha: commit.to_owned(),
        ..Run::push()
    });
    github
}

/// A HUD that has one failed job of one pull request; what a real one answers is in `reproduce`.
fn hud_of_the_transcripts() -> WebServer {
    let test = json!({
        "name": "test_add",
        "classname": "test.test_ops.TestOps",
        "file": "test/test_ops.py",
        "message": "Tensors are not close",
    });
    let job = json!({
        "name": "upstream / test (3.11)",
        "outcome": "test_failed",
        "attempts": 1,
        "url": "https://github.com/acme/torch-npu/actions/runs/99/job/5",
        "environment": "npu-910b, driver 25",
        "failed_tests": [test],
    });
    let pull = json!({
        "upstream": "pytorch/pytorch",
        "head_sha": "8f0c2e6d9a417b35c0e1f2a3b4c5d6e7f8091a2b",
        "merge_base": "0b1c2d3e4f5061728394a5b6c7d8e9f0a1b2c3d4",
        "backends": [{ "repo": "acme/torch-npu", "jobs": [job] }],
    });
    let answer = get(move || std::future::ready(Json(pull.clone())));
    Bound::loopback().unwrap().serve(Router::new().route("/api/v1/pulls/101090", answer)).unwrap()
}

#[test]
fn terminal_on_a_page_shows_what_its_commands_print() {
    let (github, hud) = (github_of_the_transcripts(), hud_of_the_transcripts());
    let server = Server::start();
    let clone = tempfile::tempdir().unwrap();
    git(clone.path(), &["init", "-q", "-b", "main"]);
    git(clone.path(), &["commit", "-q", "--allow-empty", "-m", "release"]);
    for name in ["pytorch/crcr", "acme/backend"] {
        let bare = server.bare(name);
        git(
            clone.path(),
            &["push", "-q", bare.to_str().unwrap(), "HEAD:main", "HEAD:refs/tags/v1"],
        );
    }
    git(clone.path(), &["remote", "add", "origin", "git@github.com:acme/backend.git"]);
    let token = github.state().world.reader_token(false);
    let gh = format!("#!/bin/sh\n[ \"$*\" != 'auth token' ] || echo {token}\n");
    let env = [("GITHUB_API_URL", github.state().origin()), ("GITHUB_SERVER_URL", &server.url)];

    let blocks = marked("console");
    for (page, block) in &blocks {
        let (commands, shown): (Vec<_>, Vec<_>) =
            block.lines().partition(|line| line.starts_with("$ "));
        let commands: String =
            commands.iter().map(|line| format!("{}\n", line.trim_start_matches("$ "))).collect();
        let script = commands.replace("https://hud.example.org", hud.url().as_str());
        let output = shell(&format!("exec 2>&1\n{script}"), clone.path(), &[("gh", &gh)], &env);
        let printed = String::from_utf8(output.stdout).unwrap();
        let is_shown = is_shown(&shown, &printed.lines().collect::<Vec<_>>());
        assert!(is_shown, "{page}: this is what is printed:\n{commands}{printed}");
    }
    assert!(blocks.len() >= 3, "{}", blocks.len());
}

/// The names of the files that release.yml puts into a release.
fn released_files(version: &str) -> Vec<String> {
    let workflow = yaml("release.yml", &text(".github/workflows/release.yml"));
    let targets = workflow["jobs"]["build"]["strategy"]["matrix"]["include"].as_sequence().unwrap();
    let name = |target: &Value| format!("crcr-{version}-{}.gz", target["target"].as_str().unwrap());
    targets.iter().map(name).collect()
}

/// Every page that tells how to install a release does it with the files that a release has.
#[test]
fn release_is_downloaded_verified_and_installed_as_the_pages_say() {
    let version = env!("CARGO_PKG_VERSION");
    let places = marked("sh release");
    for (page, script) in &places {
        assert!(script.starts_with(&format!("version={version} ")), "{page}: not {version}");
        let folder = tempfile::tempdir().unwrap();
        let release = folder.path().join("release");
        fs::create_dir(&release).unwrap();
        for name in released_files(version) {
            let packed = Command::new("gzip").arg("-c").arg(root().join("demo")).output().unwrap();
            fs::write(release.join(name), packed.stdout).unwrap();
        }
        // gh needs an account: this one has the release, and finds the attestation of what is there.
        let gh = format!(
            "#!/bin/bash\nset -e\necho \"$*\" >> '{0}/asked'\ncase $1 in\n\
             release) cp '{0}/release/'${{@: -1}} . ;;\nattestation) [[ -f $3 ]] ;;\nesac\n",
            folder.path().display()
        );
        let output = shell(script, folder.path(), &[("gh", &gh)], &[]);
        expect_success(page, script, &output);
        let installed = folder.path().join(".local/bin/crcr");
        assert_eq!(fs::read(&installed).unwrap(), fs::read(root().join("demo")).unwrap(), "{page}");
        assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755, "{page}");
        let asked = fs::read_to_string(folder.path().join("asked")).unwrap();
        let signer = "--signer-workflow pytorch/crcr/.github/workflows/release.yml";
        assert!(asked.contains("--repo pytorch/crcr") && asked.contains(signer), "{page}: {asked}");
    }
    assert!(!places.is_empty());
}

#[test]
fn every_command_in_a_workflow_parses() {
    let (mut parsed, mut wrong) = (0, Vec::new());
    let workflows = workflows().into_iter().map(|path| (path.clone(), text(&path)));
    for (path, text) in workflows.chain(documented()) {
        for step in steps(&yaml(&path, &text)) {
            let script = step["run"].as_str().unwrap_or_default();
            parsed += parse_commands(&path, script, &mut wrong);
        }
    }
    assert!(parsed > 0 && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Users find the actions by the tag of the major version, which publish.yml takes from the workspace.
#[test]
fn every_example_names_the_tag_of_this_major_version() {
    let used = Regex::new(r"(?:pytorch/crcr[\w/…*-]*|`)@v(\d+)\b").unwrap();
    let major = env!("CARGO_PKG_VERSION").split('.').next().unwrap();
    let mut seen = 0;
    for path in pages().into_iter().chain(workflows()).chain(actions()) {
        for found in used.captures_iter(&text(&path)) {
            assert_eq!(&found[1], major, "{path}: `{}`, and this is version {major}", &found[0]);
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

/// Every command that has no subcommands, and those that have.
fn all_commands(prefix: &[String], found: &mut Vec<Vec<String>>) {
    let mut args: Vec<&str> = prefix.iter().map(String::as_str).collect();
    args.push("--help");
    let help = Crcr::new(&args).run().expect_code(0).stdout;
    found.push(prefix.to_vec());
    let Some(listed) = help.split("\nCommands:\n").nth(1) else { return };
    for line in listed.lines().take_while(|line| !line.is_empty()) {
        let Some(name) = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')) else {
            continue;
        };
        let name = name.split_whitespace().next().unwrap().to_owned();
        all_commands(&[prefix, &[name]].concat(), found);
    }
}

#[test]
fn every_example_in_the_help_parses() {
    let mut commands = Vec::new();
    all_commands(&[], &mut commands);
    let (mut parsed, mut wrong) = (0, Vec::new());
    for command in &commands {
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        args.push("--help");
        let help = Crcr::new(&args).env("COLUMNS", "500").run().stdout;
        let Some(examples) = help.split("\nExample").nth(1) else { continue };
        let examples = examples.lines().skip(1).filter(|line| line.starts_with("  "));
        // A wide gap separates a command from what is said about it.
        let commands = examples.map(|line| line.trim_start().split("   ").next().unwrap());
        let script = commands.collect::<Vec<_>>().join("\n");
        let whence = format!("crcr {} --help", command.join(" "));
        parsed += parse_commands(&whence, &script, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands.len() > 25 && parsed > 25, "{} commands, {parsed}", commands.len());
}

#[test]
fn site_is_published_from_the_default_branch_and_from_no_pull_request() {
    let workflow = yaml("ci.yml", &text(".github/workflows/ci.yml"));
    assert_eq!(workflow["on"]["push"]["branches"][0], "main");
    let uses = |job: &str| {
        let steps = workflow["jobs"][job]["steps"].as_sequence().unwrap();
        let last = steps.last().unwrap()["uses"].as_str().unwrap();
        last.split('@').next().unwrap().to_owned()
    };
    assert_eq!(uses("site"), "actions/upload-pages-artifact");
    assert_eq!(uses("publish-site"), "actions/deploy-pages");
    let job = &workflow["jobs"]["publish-site"];
    assert_eq!(job["needs"], "site");
    assert!(job["if"].as_str().unwrap().starts_with("github.event_name == 'push'"), "{job:?}");
}

#[test]
fn man_pages_cover_every_command() {
    let mut commands = Vec::new();
    all_commands(&[], &mut commands);
    let ran = Crcr::new(&["man", "--out", "pages"]).run().expect_code(0);
    let expected: BTreeSet<_> = commands
        .iter()
        .map(|command| format!("{}.1", [&["crcr".to_owned()], &command[..]].concat().join("-")))
        .collect();
    let entries = fs::read_dir(ran.path("pages")).unwrap();
    let written: BTreeSet<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(written, expected);
    let page = fs::read_to_string(ran.path("pages/crcr-artifact-upload.1")).unwrap();
    assert!(page.starts_with(".ie") && page.contains("s3\\-bucket"), "{page}");
    // Also of those that `-h` leaves out.
    let flags: Vec<_> = page.split("\n.TP\n").skip(1).collect();
    let empty: Vec<_> = flags.iter().filter(|flag| flag.lines().nth(1) == Some("")).collect();
    assert!(flags.len() > 10 && empty.is_empty(), "these flags have no text: {empty:#?}");
}

/// The id that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|char| char.is_alphanumeric() || " -_".contains(*char))
        .map(|char| if char == ' ' { '-' } else { char })
        .collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    without_blocks(page)
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

/// `a/b/../c` as `a/c`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
        path
    })
}

#[test]
fn every_relative_link_leads_to_a_file_and_heading() {
    let link = Regex::new(r"\]\(([^()\s]+)\)").unwrap();
    let mut seen = 0;
    for page in pages() {
        let content = text(&page);
        for found in link.captures_iter(&without_blocks(&content)) {
            let target = &found[1];
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() {
                PathBuf::from(&page)
            } else {
                normal(&Path::new(&page).parent().unwrap().join(file))
            };
            assert!(root().join(&path).exists(), "{page}: `{target}` leads nowhere");
            if !heading.is_empty() {
                let there = anchors(&text(path.to_str().unwrap()));
                assert!(there.contains(heading), "{page}: `{target}` isn't a heading");
            }
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let contents = text("docs/SUMMARY.md");
    for page in files("docs", |name| name.ends_with(".md")) {
        let name = page.strip_prefix("docs/").unwrap();
        assert!(name == "SUMMARY.md" || contents.contains(&format!("({name})")), "{page}");
    }
    for action in actions().iter().filter_map(|path| path.strip_suffix("action.yml")) {
        let readme = format!("(../{action}README.md)");
        assert!(action.is_empty() || contents.contains(&readme), "{readme}");
    }
}

#[test]
fn every_crate_has_a_page_of_decisions() {
    for folder in fs::read_dir(root().join("crates")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        let page = format!("docs/decisions/{}.md", name.strip_prefix("crcr-").unwrap());
        assert!(text(&page).starts_with(&format!("# {name}\n")), "{page}");
    }
}

/// The reader of the operating pages starts at the list of their sections.
#[test]
fn operating_page_links_to_each_section_of_its_pages() {
    let contents = text("docs/operating.md");
    for page in files("docs/operating", |name| name.ends_with(".md")) {
        let name = page.strip_prefix("docs/").unwrap();
        for heading in text(&page).lines().filter_map(|line| line.strip_prefix("## ")) {
            assert!(contents.contains(&format!("({name}#{})", anchor(heading))), "{heading}");
        }
    }
}

#[test]
fn hud_page_lists_every_route_of_the_hud() {
    let route = Regex::new(r#"\.(?:page|json|route)\(\s*"([^"]+)"(?:,\s*"([^"]+)")?"#).unwrap();
    let source = text("crates/crcr-hud/src/routes.rs");
    let served: BTreeSet<_> = route
        .captures_iter(&source)
        .flat_map(|found| [found.get(1), found.get(2)])
        .flatten()
        .map(|address| address.as_str().to_owned())
        .filter(|path| !path.starts_with("/crcr/assets/"))
        .collect();
    let page = text("docs/hud.md");
    let tables = page.lines().filter(|line| line.starts_with("| "));
    let listed: BTreeSet<_> = tables
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|span| span.starts_with('/'))
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, served);
}

const TABLES: &str = "<!-- The tables below are written by \
                      `INSTA_UPDATE=always cargo test --workspace --test it action_readmes` -->\n";

/// The action whose page is also that of the root's `action.yml`, and what its page says about it.
const ROOT_ACTION: (&str, &str) = (
    "actions/install/action.yml",
    "\nThese are also the inputs and outputs of the root action, `pytorch/crcr`.\n",
);

fn tables(action: &Value) -> String {
    let mut tables = TABLES.to_owned();
    for (part, title) in [("inputs", "Inputs"), ("outputs", "Outputs")] {
        let Some(entries) = action.get(part).and_then(Value::as_mapping) else { continue };
        let _ = write!(
            tables,
            "\n## {title}\n\n| {} | |\n|---|---|\n",
            title.trim_end_matches('s').to_lowercase()
        );
        for (name, entry) in entries {
            let text = entry["description"].as_str().unwrap().trim().replace('|', "\\|");
            let required =
                if entry["required"].as_bool() == Some(true) { " (required)" } else { "" };
            let _ = writeln!(tables, "| `{}`{required} | {text} |", name.as_str().unwrap());
        }
    }
    tables
}

#[test]
fn action_readmes_have_the_root_action_too() {
    let (root, install) = ("action.yml", ROOT_ACTION.0);
    let tables = |path| tables(&yaml(path, &text(path)));
    assert_eq!(tables(root), tables(install), "{root} needs tables of its own");
}

#[test]
fn action_readmes_list_every_input_and_output_of_action_yml() {
    let update = std::env::var("INSTA_UPDATE").is_ok_and(|mode| mode == "always");
    for path in actions().into_iter().filter(|path| path != "action.yml") {
        let readme = path.replace("action.yml", "README.md");
        let content = text(&readme);
        let mut tables = tables(&yaml(&path, &text(&path)));
        if path == ROOT_ACTION.0 {
            tables.insert_str(TABLES.len(), ROOT_ACTION.1);
        }
        let (prose, _) = content.split_once(TABLES).unwrap_or((&content, ""));
        let expected = format!("{}\n\n{tables}", prose.trim_end());
        if update {
            fs::write(root().join(&readme), &expected).unwrap();
        }
        assert!(update || content == expected, "{readme} differs from {path}; see its comment");
    }
}

/// A block is a whole workflow when it has jobs and a trigger; others are parts of one.
#[test]
#[ignore = "needs actionlint"]
fn every_workflow_on_a_page_passes_actionlint() {
    let folder = tempfile::tempdir().unwrap();
    let mut linted = Vec::new();
    for page in pages() {
        for (marks, block) in blocks(&text(&page)) {
            if !marks.starts_with("yaml") || !block.contains("\njobs:") || !block.contains("on:") {
                continue;
            }
            let file =
                folder.path().join(format!("{}-{}.yml", page.replace('/', "-"), linted.len()));
            fs::write(&file, block).unwrap();
            linted.push(file);
        }
    }
    assert!(linted.len() >= 8, "{linted:?}");
    // As .github/actionlint.yaml has it: 1.7.12 is older than the key.
    let ignore = ["-ignore", "unexpected key \"cache-mode\" for \"job\" section"];
    let mut actionlint = Command::new("actionlint");
    let output = actionlint.arg("-no-color").args(ignore).args(&linted).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The pictures are on pages that phones load, too.
#[test]
fn pictures_are_used_and_small() {
    let all: String = pages().iter().map(|page| text(page)).collect();
    for picture in files("docs/pictures", |_| true) {
        let size = fs::metadata(root().join(&picture)).unwrap().len();
        assert!(size < 120_000, "{picture} has {size} bytes");
        let name = picture.rsplit('/').next().unwrap();
        assert!(all.contains(name), "{picture} is on no page");
    }
}
