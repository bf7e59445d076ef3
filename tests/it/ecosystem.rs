//! What other tools expect of this project: schemas for editors, hooks, archives for installers, findings for code
//! scanning.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::contracts::{files, root, text};
use crate::support::Crcr;

const BASE: &str = "https://raw.githubusercontent.com/pytorch/crcr/main/schemas/";

/// The file in `schemas/` by which an editor checks, and the command that prints the same.
const SCHEMAS: [(&str, [&str; 2]); 4] = [
    ("allowlist.json", ["allowlist", "schema"]),
    ("quarantine.json", ["quarantine", "schema"]),
    ("criteria.json", ["levels", "schema"]),
    ("downstream.json", ["downstream", "schema"]),
];

#[test]
fn published_schemas_are_what_the_commands_print_and_name_their_own_address() {
    for (name, command) in SCHEMAS {
        let printed = Crcr::new(&command).run().expect_code(0).stdout;
        let file = root().join("schemas").join(name);
        assert_eq!(fs::read_to_string(file).unwrap(), printed, "{name}");
        let schema: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(schema["$id"], format!("{BASE}{name}"));
    }
}

#[test]
fn editors_check_the_file_that_init_writes() {
    let written = text("cli/src/commands/init/crcr.yml");
    let line = format!("# yaml-language-server: $schema={BASE}downstream.json");
    assert_eq!(written.lines().next(), Some(&*line));
}

/// A schema that an editor shows must not refuse what the relay takes, or the reverse.
#[test]
fn schema_of_the_criteria_has_every_criterion_and_no_other() {
    let schema: Value = serde_json::from_str(&text("schemas/criteria.json")).unwrap();
    let accepted = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("criteria.yml");
        fs::write(&path, text).unwrap();
        let args = ["allowlist", "diff", "a.yml", "b.yml", "--results", "none.db", "--criteria"];
        let run = Crcr::new(&args).arg(path.to_str().unwrap());
        for name in ["a.yml", "b.yml"] {
            fs::write(run.folder().join(name), "L1: [acme/one]\n").unwrap();
        }
        let stderr = run.run().stderr;
        !stderr.contains("error[criteria]")
    };
    let properties = schema["properties"].as_object().unwrap();
    for (name, property) in properties {
        if name.starts_with('l') && name.len() == 2 {
            continue;
        }
        let example = &property["examples"][0];
        assert!(accepted(&format!("{name}: {example}\n")), "{name}: {example}");
    }
    let level = schema["definitions"]["level"]["properties"].as_object().unwrap();
    for (name, property) in level {
        let example = &property["examples"][0];
        assert!(accepted(&format!("l4: {{{name}: {example}}}\n")), "l4.{name}: {example}");
    }
    assert!(!accepted("job-pass: 0.5\n"), "an unknown criterion is noticed");
    // The help lists every criterion, too.
    let help = Crcr::new(&["levels", "review", "--help"]).run().stdout;
    for name in properties.keys().chain(level.keys()) {
        assert!(help.contains(name.as_str()), "{name} isn't in the help");
    }
    let (_, listed) = help.split_once("with their defaults:\n").unwrap();
    for line in listed.lines().take_while(|line| line.starts_with("  ")) {
        let name = line.split_whitespace().next().unwrap();
        // A long line goes on in the next one.
        assert!(properties.contains_key(name) || !name.contains('-'), "{name} isn't in the schema");
    }
}

#[test]
#[ignore = "needs check-jsonschema from tests/peers/requirements.txt"]
fn schemas_accept_the_examples_of_the_pages_and_refuse_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let check = |schema: &str, text: &str| {
        let file = folder.path().join("file.yml");
        fs::write(&file, text).unwrap();
        let schema = root().join("schemas").join(schema);
        let mut check = Command::new("check-jsonschema");
        check.arg("--schemafile").arg(schema).arg(&file);
        check.stdout(Stdio::null()).status().unwrap().success()
    };
    let entry = "- {pattern: 'tests.ops.TestConv.test_backward[*]', owner: alice, reason: hangs, expiry: '2026-12-20'}";
    assert!(check("quarantine.json", entry));
    for wrong in [
        "- {pattern: a, owner: alice, reason: hangs}",
        "- {pattern: a, owner: alice, reason: hangs, expiry: soon}",
        "- {pattern: a, owner: alice, reason: hangs, expiry: '2026-12-20', mode: never}",
        "- {pattern: a, owner: alice, reason: hangs, expiry: '2026-12-20', until: x}",
        "pattern: a",
    ] {
        assert!(!check("quarantine.json", wrong), "{wrong}");
    }
    let example =
        "job-pass-share: 0.9\nl2: {valid-report-share: 0.8}\nl4: {core-jobs: [CI / core]}\n";
    assert!(check("criteria.json", example));
    for wrong in ["job-pass: 0.9", "job-pass-share: 90", "l4: {days: 2}", "queue-seconds: 0"] {
        assert!(!check("criteria.json", wrong), "{wrong}");
    }
}

/// What one of the two readers refuses, the other one has to refuse, too.
#[test]
#[ignore = "needs check-jsonschema from tests/peers/requirements.txt"]
fn schemas_and_parsers_agree_about_odd_values() {
    let long = |count| json!("x".repeat(count));
    let mut values: Vec<Value> = [
        "",
        "a",
        "~",
        "null",
        "1",
        "!a",
        "!!a",
        "!",
        "a/",
        "/a",
        "./a",
        "!./a",
        "!/a",
        "!a/",
        "a?b",
        "a[b",
        "a{b",
        "a\\b",
        "a\tb",
        "a\nb",
        "a\u{7f}b",
        "a\u{85}b",
        "a\n",
        " a",
        "a ",
        "  ",
        "*",
        "tests*",
        "tests.abcdefgh*",
        "@alice",
        "@@alice",
        "a--b",
        "-a",
        "a-",
        "a_b",
        "a_b_c",
        "a_",
        "org/team",
        "org/te.am",
        "org/",
        "/t",
        "a, b",
        "a,,b",
        ",",
        "acme/one",
        "acme/one.git",
        "acme/one.WIKI",
        "acme/..",
        "2026-13-01",
        "run",
        "skip",
        "push",
        "nightly",
        "leave-out",
    ]
    .map(Value::from)
    .to_vec();
    values.extend([39, 40, 256, 257, 1000, 1001].map(long));
    values.push(json!(format!("!{}", "x".repeat(256))));
    values.push(json!(format!("org/{}", "t".repeat(101))));
    values.extend([
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(1.5),
        json!(1441),
    ]);
    let items: Vec<Value> = values.iter().map(|value| json!([value])).collect();
    let odd_paths =
        ["a//b", "a/../b", "../a", "a/.", "a/.b", "a..b/c", "a/ b", "a\u{200b}b", "a\u{a0}b"];
    let paths = [&items[..], &odd_paths.map(|path| json!([path]))].concat();
    let expiry = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let quarantine = |field: &str, value: &Value| {
        let mut entry = json!({
            "pattern": "t.test_abcdefgh", "owner": "alice", "reason": "x", "expiry": expiry.to_string(),
        });
        entry[field] = value.clone();
        json!([entry])
    };
    let folder = tempfile::tempdir().unwrap();
    let agree = |schema: &str, command: &[&str], documents: Vec<Value>| {
        let mut check = Command::new("check-jsonschema");
        check.args(["--output-format", "json", "--schemafile"]);
        check.arg(root().join("schemas").join(schema));
        let mut paths = vec![];
        for (n, document) in documents.iter().enumerate() {
            let path = folder.path().join(format!("{schema}-{n}.yml"));
            // In YAML, these two are no text without an escape.
            let text =
                document.to_string().replace('\u{7f}', "\\u007f").replace('\u{85}', "\\u0085");
            fs::write(&path, text).unwrap();
            paths.push(path);
        }
        let told = check.args(&paths).output().unwrap();
        let told: Value = serde_json::from_slice(&told.stdout).unwrap();
        let named = |list: &str| told[list].as_array().unwrap().iter();
        let refused: Vec<&str> = named("errors")
            .chain(named("parse_errors"))
            .filter_map(|one| one["filename"].as_str())
            .collect();
        let mut different = vec![];
        for (document, path) in documents.iter().zip(&paths) {
            let path = path.to_str().unwrap();
            let run = Crcr::new(command).arg(path);
            for name in ["a.yml", "b.yml"] {
                fs::write(run.folder().join(name), "L1: [acme/one]\n").unwrap();
            }
            let ran = run.run();
            let accepted = match command {
                ["allowlist", "diff", ..] => !ran.stderr.contains("error[criteria]"),
                _ => ran.code == 0,
            };
            if accepted == refused.contains(&path) {
                different.push(format!("the parser takes it: {accepted}: {document}"));
            }
        }
        assert!(different.is_empty(), "{schema}:\n{}", different.join("\n"));
    };
    let each = |fields: &[&str], values: &[Value], of: &dyn Fn(&str, &Value) -> Value| {
        let documents = fields.iter().flat_map(|field| values.iter().map(|value| of(field, value)));
        documents.collect::<Vec<_>>()
    };
    agree(
        "downstream.json",
        &["downstream", "validate"],
        each(&["paths"], &paths, &|field, value| json!({"dispatch": {field: value}})),
    );
    let fields = ["pattern", "owner", "mode"];
    agree("quarantine.json", &["quarantine", "validate"], each(&fields, &values, &quarantine));
    let entry = quarantine("reason", &json!("x"))[0].clone();
    let twice = vec![json!([entry.clone(), entry])];
    agree("quarantine.json", &["quarantine", "validate"], twice);
    let diff = ["allowlist", "diff", "a.yml", "b.yml", "--results", "none.db", "--criteria"];
    let level = |field: &str, value: &Value| json!({"l4": {field: value}});
    agree("criteria.json", &diff, each(&["core-tests"], &items, &level));
    agree(
        "allowlist.json",
        &["allowlist", "validate"],
        each(&["oncalls"], &items, &|field, value| json!({"L2": [{"acme/one": {field: value}}]})),
    );
    // Somebody has to answer for what blocks a merge.
    let blocking = |level: &str, value: &Value| json!({level: [{"acme/one": value}]});
    agree("allowlist.json", &["allowlist", "validate"], each(&["L4"], &values, &blocking));
    let lists = [json!([]), json!({}), json!(["acme/one"]), json!(["acme/one", "acme/one"])];
    let whole = |level: &str, value: &Value| json!({level: value});
    agree("allowlist.json", &["allowlist", "validate"], each(&["L1", "L3", "L4"], &lists, &whole));
}

/// The real pre-commit runs the hooks on a repository with a broken file.
#[test]
#[ignore = "needs pre-commit"]
fn hooks_for_pre_commit_find_a_broken_allowlist() {
    let repository = tempfile::tempdir().unwrap();
    let path = repository.path();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let done =
            Command::new("git").args(identity).args(args).current_dir(path).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    // Without its hooks' own repository on the network: a local hook of the same entry.
    let hooks: serde_yaml::Value = serde_yaml::from_str(&text(".pre-commit-hooks.yaml")).unwrap();
    let config = json!({ "repos": [{ "repo": "local", "hooks": hooks }] });
    git(&["init", "--quiet"]);
    fs::write(path.join(".pre-commit-config.yaml"), config.to_string()).unwrap();
    fs::create_dir(path.join(".github")).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_crcr")).parent().unwrap().to_str().unwrap();
    let hook = |allowlist: &str| {
        fs::write(path.join(".github/allowlist.yml"), allowlist).unwrap();
        fs::write(path.join(".github/quarantine.yml"), "[]\n").unwrap();
        git(&["add", "--all"]);
        let paths = std::env::var_os("PATH").unwrap();
        let mut all = vec![bin.into()];
        all.extend(std::env::split_paths(&paths));
        let mut run = Command::new("pre-commit");
        run.args(["run", "--all-files"])
            .current_dir(path)
            .env("PRE_COMMIT_HOME", path.join(".git/hooks-home"));
        let done = run.env("PATH", std::env::join_paths(all).unwrap()).output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (passed, said) = hook("L1: [acme/one]\n");
    assert!(passed && said.matches("Passed").count() == 2, "{said}");
    let (passed, said) = hook("L9: [acme/one]\n");
    assert!(!passed && said.contains("unknown-level"), "{said}");
    let manifest = root().join(".pre-commit-hooks.yaml");
    let valid = Command::new("pre-commit").arg("validate-manifest").arg(manifest).output().unwrap();
    assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stdout));
}

/// The archives that the release makes, by the commands of the workflow, are where `cargo binstall` looks.
#[test]
fn archive_for_binstall_has_the_name_and_the_layout_that_the_package_promises() {
    let manifest: toml_like::Table = toml_like::read(&text("cli/Cargo.toml"));
    let name = manifest.pkg_url.rsplit('/').next().unwrap();
    let name =
        name.replace("{ version }", "1.2.3").replace("{ target }", "x86_64-unknown-linux-musl");
    let workflow: serde_yaml::Value =
        serde_yaml::from_str(&text(".github/workflows/release.yml")).unwrap();
    let steps = workflow["jobs"]["draft"]["steps"].as_sequence().unwrap();
    let script =
        steps.iter().find(|step| step["name"] == "Compress").unwrap()["run"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("dist")).unwrap();
    for target in ["x86_64-unknown-linux-musl", "x86_64-pc-windows-msvc"] {
        fs::write(folder.path().join(format!("dist/crcr-1.2.3-{target}")), target).unwrap();
    }
    let done = Command::new("bash")
        .args(["-e", "-o", "pipefail", "-c", script])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let listed = |archive: &str| {
        let path = folder.path().join("packed").join(archive);
        let listed = Command::new("tar").arg("-tzf").arg(&path).output().unwrap();
        assert!(listed.status.success(), "{}", path.display());
        String::from_utf8(listed.stdout).unwrap()
    };
    assert_eq!(listed(&name), "crcr\n");
    assert_eq!(listed("crcr-1.2.3-x86_64-pc-windows-msvc.tgz"), "crcr.exe\n");
    assert_eq!(
        (manifest.pkg_fmt.as_str(), manifest.bin_dir.as_str()),
        ("tgz", "{ bin }{ binary-ext }")
    );
}

/// The three keys of `[package.metadata.binstall]`, without a TOML parser.
mod toml_like {
    pub(crate) struct Table {
        pub(crate) pkg_url: String,
        pub(crate) pkg_fmt: String,
        pub(crate) bin_dir: String,
    }

    pub(crate) fn read(text: &str) -> Table {
        let (_, section) = text.split_once("[package.metadata.binstall]\n").unwrap();
        let value = |key: &str| {
            let line = section.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_start_matches(" = ").trim_matches('"').to_owned()
        };
        Table { pkg_url: value("pkg-url"), pkg_fmt: value("pkg-fmt"), bin_dir: value("bin-dir") }
    }
}

/// Lock files of actions can't resolve a local path in somebody else's composite action.
#[test]
fn composite_actions_use_no_local_path_so_that_workflows_with_them_can_be_locked() {
    let mut actions = files("actions", |name| name.ends_with("action.yml"));
    actions.push("action.yml".to_owned());
    assert!(actions.len() > 8, "{actions:?}");
    for path in actions {
        let action: serde_yaml::Value = serde_yaml::from_str(&text(&path)).unwrap();
        let steps = action["runs"]["steps"].as_sequence().cloned().unwrap_or_default();
        for used in steps.iter().filter_map(|step| step["uses"].as_str()) {
            let (_, reference) = used.split_once('@').unwrap_or_else(|| panic!("{path}: {used}"));
            assert!(!used.starts_with('.') && reference.len() == 40, "{path}: {used}");
        }
    }
}

/// What code scanning gets is made anew: what a fork's run left is text of a stranger.
#[test]
#[ignore = "needs node"]
fn findings_for_code_scanning_have_only_what_they_need_of_a_strangers_file() {
    let workflow: serde_yaml::Value =
        serde_yaml::from_str(&text("workflows-templates/allowlist-review-comment.yml")).unwrap();
    let steps = workflow["jobs"]["comment"]["steps"].as_sequence().unwrap();
    let upload = steps
        .iter()
        .find(|step| step["name"].as_str().is_some_and(|name| name.contains("code scanning")));
    let script = upload.unwrap()["with"]["script"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("review")).unwrap();
    let hostile = json!({ "runs": [{
        "tool": { "driver": { "name": "CodeQL", "informationUri": "https://evil.example" } },
        "results": [
            {
                "ruleId": "unknown-level", "level": "error", "message": { "text": "x".repeat(5000) },
                "locations": [{ "physicalLocation": {
                    "artifactLocation": { "uri": "../../etc/passwd" }, "region": { "startLine": 3 },
                } }],
                "fixes": ["anything"],
            },
            { "ruleId": "<img src=x>", "level": "error", "message": { "text": "dropped" } },
            { "ruleId": "no-place", "level": "fatal", "message": {} },
        ],
    }] });
    fs::write(folder.path().join("review/allowlist.sarif"), hostile.to_string()).unwrap();
    fs::write(folder.path().join("review/number"), "7").unwrap();
    let harness = format!(
        "const sha = 'a'.repeat(40);
        const context = {{ repo: {{ owner: 'o', repo: 'r' }}, payload: {{ workflow_run: {{ head_sha: sha }} }} }};
        const core = {{ notice: console.error, setFailed: text => {{ throw new Error(text); }} }};
        const github = {{
          rest: {{ pulls: {{ get: async () => ({{ data: {{ head: {{ sha }} }} }}) }} }},
          request: async (route, body) => console.log(JSON.stringify({{ route, ...body }})),
        }};
        (async () => {{ {script} }})().catch(error => {{ console.error(error); process.exit(1); }});"
    );
    let node =
        Command::new("node").args(["-e", &harness]).env("RUNNER_TEMP", folder.path()).output();
    let output = node.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sent: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sent["route"], "POST /repos/{owner}/{repo}/code-scanning/sarifs");
    assert_eq!(sent["ref"], "refs/pull/7/head");
    let packed = Command::new("bash")
        .args([
            "-c",
            "printf %s \"$1\" | base64 -d | gunzip",
            "bash",
            sent["sarif"].as_str().unwrap(),
        ])
        .output()
        .unwrap();
    let sarif: Value = serde_json::from_slice(&packed.stdout).unwrap();
    let run = &sarif["runs"][0];
    assert_eq!(run["tool"]["driver"]["name"], "crcr allowlist");
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{results:?}");
    let first = &results[0];
    assert_eq!(first["message"]["text"].as_str().unwrap().len(), 1000);
    let place = &first["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], ".github/allowlist.yml");
    assert_eq!((&place["region"]["startLine"], &results[1]["level"]), (&json!(3), &json!("note")));
    // Without one, GitHub shows the same finding again after each push.
    let fingerprints: Vec<&str> = results
        .iter()
        .map(|result| result["partialFingerprints"]["primaryLocationLineHash"].as_str().unwrap())
        .collect();
    assert!(fingerprints[0] != fingerprints[1], "{fingerprints:?}");
    assert!(fingerprints.iter().all(|text| text.len() == 18 && text.ends_with(":1")));
    assert!(!sarif.to_string().contains("evil") && !sarif.to_string().contains("fixes"));
}

#[test]
fn demo_listens_where_it_is_told() {
    let port = crcr_testkit::unused_port();
    let listen = format!("0.0.0.0:{port}");
    let ran = Crcr::new(&["demo", "--exit", "--listen", &listen]).run().expect_code(0);
    assert!(ran.stdout.contains("The demo took"), "{}", ran.report());
    let ran = Crcr::new(&["demo", "--exit", "--listen", "203.0.113.1:1"]).run().expect_code(1);
    assert!(ran.stderr.contains("can't listen"), "{}", ran.report());
}
