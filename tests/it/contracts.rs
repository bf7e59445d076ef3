//! Checks that actions, workflows and documents agree with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use serde_yaml::Value;

use crate::support::Crcr;

/// How documents refer to this repository's own actions.
const OWN: &str = "pytorch/crcr";

/// Flags that no action passes on, and why.
const NOT_INPUTS: &[(&str, &str)] = &[
    ("branch", "for a person with reports in a folder"),
    ("color", "the log of a job decides for itself"),
    ("dir", "for a person with reports in a folder"),
    ("job", "for a person with reports in a folder"),
    ("explain", "for a person at a terminal"),
    ("format", "for a person or a script at a terminal"),
    ("help", "for a person at a terminal"),
    ("on-default-branch", "for a person with reports in a folder"),
    ("quiet", "the log of a job is read when something is wrong"),
    ("sha", "for a person with reports in a folder"),
    ("started-at", "for a person with reports in a folder"),
    ("verbose", "`RUNNER_DEBUG` does it"),
    ("version", "an action's `version` is the one to install"),
];

/// The runner's own command for `shell: bash`, and `-p`: in a privileged shell, a function that an earlier
/// step exported doesn't stand for `unset` or `exec`, and no start-up file runs. The runner looks for `bash`
/// in the same places on every system.
const SHELL: &str = "bash --noprofile --norc -p -e -o pipefail {0}";

/// Inputs that `install.sh` takes instead of the command.
const INSTALL_INPUTS: &[&str] = &["binary", "install", "version"];

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Files below `folder` that `wanted` accepts, as paths from the root.
pub(crate) fn files(folder: &str, wanted: impl Fn(&str) -> bool + Copy) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return found };
    for entry in entries {
        let path = PathBuf::from(folder).join(entry.unwrap().file_name());
        let name = path.to_str().unwrap().to_owned();
        if root().join(&path).is_dir() {
            found.extend(files(&name, wanted));
        } else if wanted(&name) {
            found.push(name);
        }
    }
    found.sort();
    found
}

pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

pub(crate) fn yaml(what: &str, text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// `action.yml` of every action here, the root's included.
pub(crate) fn actions() -> Vec<String> {
    let mut found = files("actions", |name| name.ends_with("/action.yml"));
    assert!(found.len() >= 4, "{found:?}");
    found.push("action.yml".to_owned());
    found
}

pub(crate) fn workflows() -> Vec<String> {
    let mut found = files(".github/workflows", |name| name.ends_with(".yml"));
    found.extend(files("workflows-templates", |name| name.ends_with(".yml")));
    assert!(!found.is_empty());
    found
}

/// The YAML blocks of the documents that users read, with where they are from.
pub(crate) fn documented() -> Vec<(String, String)> {
    let mut documents = vec!["README.md".to_owned()];
    for folder in ["actions", "docs", "workflows-templates"] {
        documents.extend(files(folder, |name| name.ends_with(".md")));
    }
    let block = Regex::new(r"(?s)```ya?ml\n(.*?)```").unwrap();
    let mut blocks = Vec::new();
    for document in documents {
        for (n, found) in block.captures_iter(&text(&document)).enumerate() {
            blocks.push((format!("{document}, block {}", n + 1), found[1].to_owned()));
        }
    }
    blocks
}

/// Every step below `value`, at whatever depth: a mapping with `uses` or `run`.
pub(crate) fn steps(value: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    if let Some(map) = value.as_mapping() {
        if value.get("uses").is_some_and(Value::is_string)
            || value.get("run").is_some_and(Value::is_string)
        {
            found.push(value);
        }
        found.extend(map.iter().flat_map(|(_, inner)| steps(inner)));
    } else if let Some(list) = value.as_sequence() {
        found.extend(list.iter().flat_map(steps));
    }
    found
}

fn keys(value: Option<&Value>) -> BTreeSet<String> {
    let Some(map) = value.and_then(Value::as_mapping) else { return BTreeSet::new() };
    map.iter().map(|(key, _)| key.as_str().unwrap().to_owned()).collect()
}

fn env_of(step: &Value) -> BTreeMap<String, String> {
    let Some(map) = step.get("env").and_then(Value::as_mapping) else { return BTreeMap::new() };
    map.iter()
        .map(|(k, v)| (k.as_str().unwrap().to_owned(), v.as_str().unwrap().to_owned()))
        .collect()
}

fn input_variable(input: &str) -> String {
    format!("INPUT_{}", input.to_uppercase().replace('-', "_"))
}

/// Flags that no help lists: a secret doesn't belong on a command line, only into `INPUT_…`.
const HIDDEN_FLAGS: [&str; 1] = ["token"];

/// The flags of a command that take a value, as its help lists them.
fn flags(command: &str) -> BTreeSet<String> {
    let mut args: Vec<_> = command.split_whitespace().collect();
    args.push("--help");
    let help = Crcr::new(&args).run().expect_code(0).stdout;
    let flag = Regex::new(r"(?m)^\s+(?:-\w, )?--([a-z0-9-]+)").unwrap();
    let told = flag.captures_iter(&help).map(|found| found[1].to_owned());
    let knows = |name: &&str| {
        let secret = format!("--{name}=x");
        let mut args: Vec<_> = command.split_whitespace().collect();
        args.extend([&*secret, "--help"]);
        Crcr::new(&args).run().code == 0
    };
    told.chain(HIDDEN_FLAGS.into_iter().filter(knows).map(str::to_owned)).collect()
}

#[test]
fn every_input_of_an_action_reaches_its_command_and_every_flag_is_an_input() {
    let call = Regex::new(r#"exec "\$CRCR" ([a-z -]+)"#).unwrap();
    for path in actions() {
        let action = yaml(&path, &text(&path));
        let inputs = keys(action.get("inputs"));
        let steps = steps(&action["runs"]);
        let mut mapped = BTreeSet::new();
        let mut wanted = BTreeSet::new();
        for step in &steps {
            for (variable, value) in env_of(step).iter().filter(|(k, _)| k.starts_with("INPUT_")) {
                let input = value.trim_start_matches("${{ inputs.").trim_end_matches(" }}");
                assert_eq!(*variable, input_variable(input), "{path}: {variable}: {value}");
                mapped.insert(input.to_owned());
            }
            if let Some(found) = step["run"].as_str().and_then(|run| call.captures(run)) {
                wanted.extend(flags(found[1].trim()));
                for (flag, reason) in NOT_INPUTS {
                    assert!(!reason.is_empty());
                    if !inputs.contains(*flag) {
                        wanted.remove(*flag);
                    }
                }
            }
        }
        assert_eq!(inputs, mapped, "{path}: an input without a variable, or the reverse");
        wanted.extend(INSTALL_INPUTS.iter().map(|&name| name.to_owned()));
        assert_eq!(inputs, wanted, "{path}: inputs (left) against flags (right)");
    }
}

#[test]
fn every_output_comes_from_a_step_and_everything_is_described() {
    let output = Regex::new(r"^\$\{\{ steps\.([a-z-]+)\.outputs\.([a-z-]+) \}\}$").unwrap();
    for path in actions() {
        let action = yaml(&path, &text(&path));
        let ids: BTreeSet<_> =
            steps(&action["runs"]).iter().filter_map(|step| step["id"].as_str()).collect();
        for name in keys(action.get("outputs")) {
            let value = action["outputs"][&*name]["value"].as_str().unwrap();
            let found = output.captures(value).unwrap_or_else(|| panic!("{path}: {value}"));
            assert!(ids.contains(&found[1]), "{path}: `{name}` is of no step");
            assert_eq!(&found[2], name, "{path}");
        }
        for part in ["inputs", "outputs"] {
            for name in keys(action.get(part)) {
                let described = action[part][&*name]["description"].as_str().unwrap_or_default();
                assert!(described.len() > 8, "{path}: `{name}` is not described");
                assert!(!described.trim_end().ends_with('.'), "{path}: `{name}` ends in a stop");
                // Runners read it as an expression, and refuse the whole action.
                assert!(!described.contains("${{"), "{path}: `{name}` is described by a template");
            }
        }
        let readme = path.replace("action.yml", "README.md");
        assert!(root().join(&readme).is_file(), "{readme} is missing");
    }
}

/// An output that is set on one path only would be empty, or of an earlier step, on the others.
#[test]
fn artifact_actions_set_every_output_even_after_failures_and_wrong_inputs() {
    for command in ["upload", "download"] {
        let path = format!("actions/{command}-artifact-with-fallback/action.yml");
        let promised = keys(yaml(&path, &text(&path)).get("outputs"));
        for (wrong, reason) in [("--s3-bucket=acme", None), ("--auth-mode=nobody", Some("usage"))] {
            let args = ["artifact", command, "--s3-prefix={nope}", wrong];
            let step = Crcr::step(&args, "push", &serde_json::json!({}));
            fs::write(step.folder().join("file"), "x").unwrap();
            let step = if command == "upload" { step.arg("--path=file") } else { step };
            let ran = step.run();
            let set: BTreeSet<_> = ran.outputs.keys().cloned().collect();
            assert_eq!(set, promised, "{path}\n{}", ran.report());
            assert_eq!(ran.outputs["store"], "none");
            assert_eq!(ran.outputs["reason"], reason.unwrap_or("s3-prefix"));
            let hint = "hint: each input of an action is the flag";
            assert_eq!(ran.stderr.contains(hint), reason.is_some(), "{}", ran.report());
        }
    }
}

#[test]
fn no_script_contains_an_expression_and_every_shell_starts_clean() {
    for path in actions() {
        let action = yaml(&path, &text(&path));
        for step in steps(&action["runs"]) {
            if let Some(script) = step["with"].get("script").and_then(Value::as_str) {
                assert!(!script.contains("${{"), "{path}: an expression in a script");
            }
            let Some(run) = step.get("run").and_then(Value::as_str) else { continue };
            assert_eq!(step["shell"].as_str(), Some(SHELL), "{path}");
            assert!(run.starts_with("unset BASH_ENV ENV LD_PRELOAD\n"), "{path}: {run}");
            let env = env_of(step);
            for variable in ["BASH_ENV", "ENV", "LD_PRELOAD"] {
                assert_eq!(env.get(variable).map(String::as_str), Some(""), "{path}: {variable}");
            }
            // On Windows, Git's bash would make a path of each value that starts with `/`.
            assert_eq!(env.get("MSYS2_ENV_CONV_EXCL").map(String::as_str), Some("*"), "{path}");
            if run.contains("/install.sh") {
                // `GITHUB_ACTION_REPOSITORY` is empty in the steps of a composite action.
                let repository = env.get("CRCR_ACTION_REPOSITORY").map(String::as_str);
                assert_eq!(repository, Some("${{ github.action_repository }}"), "{path}");
            }
        }
    }
    for path in actions().into_iter().chain(workflows()) {
        for step in steps(&yaml(&path, &text(&path))) {
            let run = step.get("run").and_then(Value::as_str).unwrap_or_default();
            assert!(!run.contains("${{"), "{path}: an expression in `run`: {run}");
        }
    }
}

/// The command of a step whose `run:` is in `script`, as a runner makes it of its `shell:`.
pub(crate) fn shell_command(shell: &str, script: &Path) -> Command {
    let mut words = shell.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words.map(|word| word.replace("{0}", script.to_str().unwrap())));
    command
}

#[cfg(target_os = "linux")]
#[test]
fn functions_that_an_earlier_step_exported_do_not_run_in_any_step_of_an_action() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("crcr"), "#!/bin/sh\necho \"crcr 0.0.1\"; echo \"ran $*\" >> \"${0%/*}/ran\"\n")
        .unwrap();
    fs::set_permissions(at("crcr"), fs::Permissions::from_mode(0o755)).unwrap();
    let planted = format!("() {{ : > {}; }}", at("planted").display());
    let start_up = at("start-up.sh");
    fs::write(&start_up, format!(": > {}\n", at("planted").display())).unwrap();
    let mut seen = 0;
    for path in actions() {
        let action = yaml(&path, &text(&path));
        for step in steps(&action["runs"]) {
            let Some(run) = step.get("run").and_then(Value::as_str) else { continue };
            fs::write(at("step.sh"), run).unwrap();
            let ran_by = |shell: &str| {
                let _ = (fs::remove_file(at("planted")), fs::remove_file(at("ran")));
                let mut command = shell_command(shell, &at("step.sh"));
                command.env_clear().env("PATH", "/usr/bin:/bin").env("CRCR", at("crcr"));
                command.env("GITHUB_ACTION_PATH", root().join(&path).parent().unwrap());
                command.env("INPUT_BINARY", at("crcr")).env("GITHUB_OUTPUT", at("output"));
                command.env("BASH_ENV", &start_up);
                for name in ["unset", "exec", "builtin", "command", "export", "test", "printf"] {
                    command.env(format!("BASH_FUNC_{name}%%"), &planted);
                }
                let output = command.current_dir(folder.path()).output().unwrap();
                (output.status.success(), at("planted").exists(), at("ran").exists())
            };
            let shell = step["shell"].as_str().unwrap();
            assert_eq!(ran_by(shell), (true, false, true), "{path}: {run}");
            let planted_in = |shell: &str| ran_by(shell).1;
            assert!(planted_in("bash --noprofile --norc -e -o pipefail {0}"), "{path}: {run}");
            seen += 1;
        }
    }
    assert_eq!(seen, 22);
}

/// Names, titles, texts and labels of a pull request are untrusted.
#[test]
fn untrusted_text_of_a_pull_request_never_reaches_a_shell() {
    let texts = Regex::new(
        r"(?i)head_ref|head\.ref\b|\.title|\.body|\.label|\.message|\.head_branch|\.display_title|\.login",
    )
    .unwrap();
    let mut all: Vec<_> = workflows().into_iter().map(|p| (p.clone(), text(&p))).collect();
    all.extend(documented());
    let mut seen = 0;
    for (path, text) in all {
        let value = yaml(&path, &text);
        let shared = format!("{:?}{:?}", value.get("env"), value.get("defaults"));
        assert!(!texts.is_match(&shared), "{path}: {shared}");
        for step in steps(&value) {
            let Some(run) = step.get("run").and_then(Value::as_str) else { continue };
            let all = format!("{run}{:?}", env_of(step));
            assert!(!texts.is_match(&all), "{path}: {all}");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}

/// A dispatched run belongs to the default branch, but the upstream code is untrusted.
#[test]
fn jobs_that_check_out_upstream_code_have_no_token_and_write_no_cache() {
    let mut all: Vec<_> = workflows().into_iter().map(|p| (p.clone(), text(&p))).collect();
    all.extend(documented());
    let mut seen = 0;
    for (path, text) in all {
        let value = yaml(&path, &text);
        let Some(jobs) = value.get("jobs").and_then(Value::as_mapping) else { continue };
        for (name, job) in jobs {
            let checks_out = |step: &&Value| {
                step["uses"].as_str().is_some_and(|uses| uses.contains("/checkout-pr@"))
            };
            if !steps(job).iter().any(checks_out) {
                continue;
            }
            let granted: BTreeMap<String, String> =
                serde_yaml::from_value(job["permissions"].clone()).unwrap();
            assert_eq!(granted, [("contents".into(), "read".into())].into(), "{path}: {name:?}");
            assert!(!format!("{job:?}").contains("secrets."), "{path}: {name:?}");
            assert_eq!(job["cache-mode"], "none", "{path}: {name:?} can write the cache");
            seen += 1;
        }
    }
    assert!(seen >= 6, "{seen}");
}

/// GitHub gives a fork's run of `pull_request` no variable of the repository or the organization: what one turns on would
/// be off there, and nobody told.
#[test]
fn no_workflow_of_pull_requests_reads_a_variable() {
    let variable = Regex::new(r"\bvars[.\[]").unwrap();
    let mut all: Vec<_> = workflows().into_iter().map(|p| (p.clone(), text(&p))).collect();
    all.extend(documented());
    let mut seen = 0;
    for (path, text) in all {
        let value = yaml(&path, &text);
        let started_by = |name: &str| match &value["on"] {
            Value::String(event) => event == name,
            Value::Sequence(events) => events.iter().any(|event| event == name),
            events => events.get(name).is_some(),
        };
        if ["pull_request", "pull_request_review"].into_iter().any(started_by) {
            // Without the comments.
            let shown = serde_yaml::to_string(&value).unwrap();
            assert!(!variable.is_match(&shown), "{path}: {shown}");
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen}");
}

#[test]
fn artifact_token_is_passed_to_one_step_only() {
    let mut steps_with_token = 0;
    for path in actions() {
        let action = yaml(&path, &text(&path));
        let all = text(&path);
        let given = steps(&action["runs"])
            .into_iter()
            .filter(|step| env_of(step).contains_key("CRCR_RUNTIME_TOKEN"))
            .inspect(|step| assert!(step["run"].as_str().unwrap().contains("exec \"$CRCR\"")))
            .count();
        assert_eq!(given, all.matches("steps.runtime.outputs.token").count(), "{path}");
        assert!(!keys(action.get("outputs")).contains("token"), "{path}");
        steps_with_token += given;
    }
    assert_eq!(steps_with_token, 3, "upload, merge and download");
}

#[test]
fn third_party_actions_are_pinned_by_commit() {
    let mut all: Vec<_> =
        actions().into_iter().chain(workflows()).map(|p| (p.clone(), text(&p))).collect();
    all.extend(documented());
    let uses = Regex::new(r"(?m)^[^#\n]*\buses:\s*(\S+)(.*)$").unwrap();
    let pinned = Regex::new(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$").unwrap();
    let mut seen = 0;
    for (path, text) in all {
        for found in uses.captures_iter(&text) {
            let action = &found[1];
            if action.starts_with("./") || action.starts_with(OWN) {
                continue;
            }
            assert!(pinned.is_match(action), "{path}: `{action}` is not pinned by commit");
            assert!(found[2].trim().starts_with("# v"), "{path}: `{action}` without its version");
            seen += 1;
        }
    }
    assert!(seen > 4, "the pattern finds {seen} uses");
}

#[test]
fn templates_and_docs_use_only_existing_inputs_of_our_actions() {
    let own = Regex::new(&format!(r"^(?:\./|{OWN}/?)([\w/-]*)(?:@.*)?$")).unwrap();
    let mut all: Vec<_> = workflows().into_iter().map(|p| (p.clone(), text(&p))).collect();
    all.extend(documented());
    let mut seen = 0;
    for (path, text) in all {
        let value = yaml(&path, &text);
        for step in steps(&value) {
            let Some(found) = step["uses"].as_str().and_then(|uses| own.captures(uses)) else {
                continue;
            };
            let file = Path::new(&found[1]).join("action.yml");
            let file = file.to_str().unwrap();
            assert!(root().join(file).is_file(), "{path}: {file} doesn't exist");
            let inputs = keys(yaml(file, &self::text(file)).get("inputs"));
            let given = keys(step.get("with"));
            let unknown: Vec<_> = given.difference(&inputs).collect();
            assert!(unknown.is_empty(), "{path}: {file} has no input {unknown:?}");
            seen += 1;
        }
    }
    assert!(seen >= 6, "{seen}");
}

#[test]
fn workflows_grant_nothing_by_default_and_keep_no_credentials() {
    for path in workflows() {
        let workflow = yaml(&path, &text(&path));
        let permissions = workflow.get("permissions").and_then(Value::as_mapping);
        assert!(permissions.is_some_and(|map| map.is_empty()), "{path}: `permissions: {{}}`");
        for step in steps(&workflow) {
            if step["uses"].as_str().is_some_and(|uses| uses.starts_with("actions/checkout@")) {
                let kept = step["with"].get("persist-credentials").and_then(Value::as_bool);
                assert_eq!(kept, Some(false), "{path}: checkout keeps the token");
            }
        }
        for (name, job) in workflow["jobs"].as_mapping().unwrap() {
            assert!(job.get("timeout-minutes").is_some(), "{path}: {name:?} may run for hours");
        }
    }
}

/// The runners that every action has to work on.
const RUNNERS: [&str; 4] = ["macos-15", "ubuntu-24.04", "ubuntu-24.04-arm", "windows-2025"];

#[test]
fn every_action_runs_in_our_own_ci_on_every_system() {
    let path = ".github/workflows/ci.yml";
    let workflow = yaml(path, &text(path));
    let mut used = BTreeSet::new();
    for (name, job) in workflow["jobs"].as_mapping().unwrap() {
        let own =
            steps(job).into_iter().filter_map(|step| step["uses"].as_str()?.strip_prefix("./"));
        let own: Vec<_> = own.map(|used| Path::new(used).join("action.yml")).collect();
        if own.is_empty() {
            continue;
        }
        assert_eq!(job["runs-on"].as_str(), Some("${{ matrix.os }}"), "{name:?}");
        let runners: BTreeSet<String> =
            serde_yaml::from_value(job["strategy"]["matrix"]["os"].clone()).unwrap();
        assert_eq!(runners, RUNNERS.map(str::to_owned).into(), "{name:?}");
        used.extend(own.into_iter().map(|path| path.to_str().unwrap().to_owned()));
    }
    assert_eq!(used, actions().into_iter().collect(), "{path} (left) against the actions here");
}

#[test]
fn manifest_has_a_hash_for_each_version_and_platform() {
    let manifest: serde_json::Value =
        serde_json::from_str(&text("actions/install/manifest.json")).unwrap();
    let default = manifest["default"].as_str().unwrap();
    let hashes = manifest["sha256"].as_object().unwrap();
    let name = Regex::new(r"^\d+\.\d+\.\d+(-[\w.-]+)?/(x86_64|aarch64)-[a-z]+-[a-z-]+$").unwrap();
    let hash = Regex::new("^[0-9a-f]{64}$").unwrap();
    for (key, value) in hashes {
        assert!(name.is_match(key) && hash.is_match(value.as_str().unwrap()), "{key}: {value}");
    }
    let listed = hashes.keys().any(|key| key.starts_with(&format!("{default}/")));
    assert!(listed || (default.is_empty() && hashes.is_empty()), "the default is not listed");
}

#[test]
fn every_test_named_in_the_threat_model_exists() {
    let is_test = |path: &str| path.ends_with(".rs");
    let sources: String = ["crates", "cli/src", "tests/it", "tests/hud"]
        .iter()
        .flat_map(|folder| files(folder, is_test))
        .map(|path| text(&path))
        .collect();
    let page = text("docs/threat-model.md");
    let names: Vec<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.matches('_').count() > 3 && !name.contains(' '))
        .collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        // A test of every store has the store as its argument.
        assert!(sources.contains(&format!("fn {name}(")), "no test is called `{name}`");
    }
}

/// What stands between backticks on a page, outside of code blocks.
fn code_spans(page: &str) -> Vec<&str> {
    page.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn architecture_page_names_only_existing_files_and_folders() {
    let page = text("docs/architecture.md");
    let is_path = |span: &&str| span.contains('/') && !span.contains([' ', ':']);
    let paths: Vec<_> = code_spans(&page).into_iter().filter(is_path).collect();
    for path in &paths {
        assert!(root().join(path).exists(), "`{path}` doesn't exist");
    }
    assert!(paths.len() > 20, "only {} paths were found", paths.len());
}

#[test]
fn crate_diagram_shows_every_dependency_between_crates() {
    let page = text("docs/architecture.md");
    let graph = page.split("```mermaid").nth(1).unwrap().split("```").next().unwrap();
    let drawn: BTreeSet<(String, String)> = graph
        .lines()
        .filter_map(|line| line.trim().split_once(" --> "))
        .flat_map(|(from, to)| to.split(" & ").map(move |to| (from.to_owned(), to.to_owned())))
        .collect();
    let only_for_tests = ["crcr-testkit", "crcr-standin"];
    let mut real = BTreeSet::new();
    let manifests = files("crates", |path| path.ends_with("Cargo.toml"));
    for path in manifests.into_iter().chain(["cli/Cargo.toml".to_owned()]) {
        let name = path.rsplit('/').nth(1).unwrap().to_owned();
        let manifest = text(&path);
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
        for line in dependencies.lines().take_while(|line| !line.starts_with('[')) {
            let dependency = line.split(['.', ' ']).next().unwrap();
            let known = dependency.starts_with("crcr-") && !only_for_tests.contains(&dependency);
            if known && !only_for_tests.contains(&&*name) {
                real.insert((name.clone(), dependency.to_owned()));
            }
        }
    }
    assert_eq!(drawn, real);
}

#[test]
fn only_one_tls_stack_is_linked() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--workspace", "--target", "all"])
        .args(["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let packages: BTreeSet<_> = tree
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, rest)| (name, rest.split(' ').next().unwrap_or_default()))
        .collect();
    let count = |name: &str| packages.iter().filter(|package| package.0 == name).count();
    for single in ["rustls", "hyper", "h2", "reqwest", "tokio-rustls", "aws-lc-rs"] {
        assert_eq!(count(single), 1, "`{single}` has to be there once");
    }
    for banned in ["ring", "native-tls", "openssl", "openssl-sys"] {
        assert_eq!(count(banned), 0, "`{banned}` is a second TLS stack");
    }
}
