//! The pages that users read: their commands run, their links lead somewhere, their tables agree with
//! the actions.
//!
//! A block marked `sh` runs as it is written, in a folder with the files that the pages name. A block
//! marked `sh no-run` needs an account, a server or a long time: its `crcr` lines are only parsed. So are
//! commands after a `$` in a `console` block, in running text, in the help of each command, and in workflows.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crcr_store::{SqliteStore, StoreRole};
use regex::Regex;
use serde_yaml::Value;

use crate::contracts::{actions, documented, files, root, steps, text, workflows, yaml};
use crate::support::Crcr;

/// Every Markdown page that a user reads.
pub(crate) fn pages() -> Vec<String> {
    let mut found: Vec<_> = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
        .map(str::to_owned)
        .into_iter()
        .collect();
    for folder in ["actions", "deploy", "docs", "workflows-templates"] {
        found.extend(files(folder, |name| name.ends_with(".md")));
    }
    found
}

/// The fenced blocks of a page: the words after the fence, and the text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let fence = Regex::new(r"(?ms)^[ \t]*```([^\n`]+)\n(.*?)^[ \t]*```[ \t]*$").unwrap();
    fence
        .captures_iter(page)
        .map(|found| (found[1].trim().to_owned(), found[2].to_owned()))
        .collect()
}

fn without_blocks(page: &str) -> String {
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

/// A folder with the files that commands of the pages name.
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

#[test]
fn every_command_on_a_page_runs_as_written_or_at_least_parses() {
    let span = Regex::new(r"`(crcr [^`]+)`").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_crcr")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let (mut ran, mut parsed, mut wrong) = (0, 0, Vec::new());
    for page in pages() {
        let content = text(&page);
        for found in span.captures_iter(&without_blocks(&content)) {
            let command = found[1].replace('\n', " ");
            parsed += parse_commands(&page, &command, &mut wrong);
        }
        for (marks, script) in blocks(&content) {
            match &*marks {
                "sh" => {
                    let folder = workplace();
                    let output = Command::new("bash")
                        .args(["-euo", "pipefail", "-c", &script])
                        .env_clear()
                        .env("PATH", &path)
                        .env("HOME", folder.path())
                        .current_dir(folder.path())
                        .output()
                        .unwrap();
                    if !output.status.success() {
                        let stderr = String::from_utf8_lossy(&output.stderr);
                        wrong.push(format!("{page}:\n{script}\n{stderr}"));
                    }
                    ran += 1;
                }
                "sh no-run" => {
                    for words in shell_commands(&script) {
                        let program = &words[0];
                        if program.contains('/') && !program.contains('=') {
                            assert!(root().join(program).is_file(), "{page}: {program}");
                        }
                    }
                    parsed += parse_commands(&page, &script, &mut wrong);
                }
                "console" => {
                    for line in script.lines().filter_map(|line| line.strip_prefix("$ ")) {
                        parsed += parse_commands(&page, line, &mut wrong);
                    }
                }
                other => assert!(!other.starts_with("sh"), "{page}: {other}"),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(ran >= 3 && parsed > 30, "{ran} blocks ran, {parsed} commands were parsed");
}

#[test]
fn readme_shows_what_the_demo_prints() {
    let number = Regex::new(r"\d+").unwrap();
    let same = |text: &str| number.replace_all(text.trim(), "N").into_owned();
    let ran = Crcr::new(&["demo", "--exit"]).run().expect_code(0);
    let printed: BTreeSet<_> = ran.stdout.lines().map(same).collect();
    let blocks = blocks(&text("README.md"));
    let (_, shown) = blocks.iter().find(|(marks, _)| marks == "text demo").unwrap();
    for line in shown.lines() {
        assert!(printed.contains(&same(line)), "`{line}` isn't printed:\n{}", ran.report());
    }
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
fn hud_page_lists_every_route_of_the_hud() {
    let route = Regex::new(r#"\.route\(\s*"([^"]+)""#).unwrap();
    let source = text("crates/crcr-hud/src/lib.rs");
    let served: BTreeSet<_> = route
        .captures_iter(&source)
        .map(|found| found[1].to_owned())
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
                      `INSTA_UPDATE=always cargo test --test it action_readmes` -->\n";

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
fn action_readmes_list_every_input_and_output_of_action_yml() {
    let update = std::env::var("INSTA_UPDATE").is_ok_and(|mode| mode == "always");
    for path in actions().into_iter().filter(|path| path != "action.yml") {
        let readme = path.replace("action.yml", "README.md");
        let content = text(&readme);
        let tables = tables(&yaml(&path, &text(&path)));
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
    let output = Command::new("actionlint").arg("-no-color").args(&linted).output().unwrap();
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
