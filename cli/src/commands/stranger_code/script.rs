//! What a step's script may do. It is read as words, so that every doubt counts as yes.

use std::collections::BTreeSet;

use serde_yaml::Value;

use super::as_code;
use super::events;
use super::javascript;
use super::scope::{ContextReach, texts};
use super::shell::{self, ShellWord};
use super::shell_text::bare;
use super::step::{JobStep, action_path, input};
use crate::commands::workflow::own_path;

/// Inputs that actions run as a script.
const SCRIPT_INPUTS: [&str; 3] = ["run", "new_command_on_retry", "prepare"];
/// How the names of others end.
const SCRIPT_ENDS: [&str; 4] = ["script", "command", "commands", "cmd"];

/// The scripts of a step: its own, what an action such as `github-script` runs for it, and the commands of an image.
pub fn scripts(step: &Value) -> Vec<String> {
    let with = step.get("with").and_then(Value::as_mapping).into_iter().flatten();
    let path = action_path(step);
    let in_image = path.starts_with("docker://") || own_path(&path).is_some();
    let given = with.filter_map(|(key, value)| {
        let key = key.as_str()?.to_lowercase();
        let is_script = SCRIPT_INPUTS.contains(&&*key)
            || SCRIPT_ENDS.iter().any(|end| key.ends_with(end))
            || (in_image && ["args", "entrypoint"].contains(&&*key));
        is_script.then(|| value.as_str().map(str::to_owned))?
    });
    let own = step.get("run").and_then(Value::as_str).map(str::to_owned);
    // The command line that the runner starts, in which it fills in expressions.
    let shell = step.get("shell").and_then(Value::as_str).filter(|shell| shell.contains("${{"));
    let own = own.into_iter().chain(shell.map(str::to_owned)).chain(image_commands(step));
    // A backslash continues a line of shell.
    own.chain(given).map(|script| script.replace("\\\n", " ")).collect()
}

/// The command lines of the `runs` of an action that is an image, as a shell would be given them.
fn image_commands(runs: &Value) -> Vec<String> {
    if runs.get("using").and_then(Value::as_str) != Some("docker") {
        return vec![];
    }
    let quoted = |word: String| match word.contains("${{") {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let line = |keys: &[&str]| {
        let words = keys.iter().filter_map(|key| runs.get(*key)).flat_map(texts);
        words.map(quoted).collect::<Vec<_>>().join(" ")
    };
    let commands: [&[&str]; 3] =
        [&["pre-entrypoint"], &["entrypoint", "args"], &["post-entrypoint"]];
    Vec::from(commands.map(line))
}

fn words(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    let words = text.split(|c| !is_part(c)).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Whether a command is followed by one of these words, with at most some options between them.
fn runs(words: &[String], command: &str, verbs: &[&str]) -> bool {
    words.iter().enumerate().any(|(at, word)| {
        let is_command = word == command || word.ends_with(&format!("/{command}"));
        let next = words.iter().skip(at + 1).take(8);
        is_command && next.into_iter().any(|word| verbs.contains(&&**word))
    })
}

const GIT_VERBS: [&str; 14] = [
    "clone",
    "fetch",
    "checkout",
    "pull",
    "switch",
    "worktree",
    "reset",
    "merge",
    "cherry-pick",
    "rebase",
    "restore",
    "submodule",
    "archive",
    "remote",
];

/// Parts of addresses of code, also as package managers and docker take them.
const ADDRESSES_OF_CODE: [&str; 7] =
    ["raw.githubusercontent", "codeload", "/archive", "tarball", "zipball", "git+", ".git#"];

/// Whether a script may fetch code of a stranger. `from_others` says that a clone of any other repository counts.
pub fn fetches_code(
    script: &str,
    step: &JobStep<'_>,
    events: &[String],
    from_others: bool,
    is_own: impl Fn(&str) -> bool,
    upstream: &str,
) -> bool {
    let words = words(script);
    let reach = used(script, step);
    let git = runs(&words, "git", &GIT_VERBS);
    if events::is_empty_here(&reach, events) {
        return false;
    }
    let checks_out = words.windows(3).any(|three| {
        matches!([&*three[0], &*three[1], &*three[2]], ["gh" | "hub", "pr", "checkout"])
    });
    // An alias that gh has from the start.
    let checks_out = checks_out || words.windows(2).any(|two| two == ["gh", "co"]);
    let checks_out = checks_out || checks_out_pull(script);
    let pull =
        |line: &str| line.contains("pull/") && (line.contains("/head") || line.contains("/merge"));
    let lower = without_said(script).to_lowercase();
    let is_word = |word: &str| words.iter().any(|other| other == word);
    let reads = reads_addresses(&words);
    let applies_diff = || applies_patch(script) && gets_diff(script, step, events);
    if checks_out || applies_diff() || (git && script.lines().any(pull)) {
        return true;
    }
    let runs_it = |line: &str| {
        let end = |c: char| !c.is_alphanumeric();
        let shell =
            |piped: &str| matches!(piped.trim_start().split(end).next(), Some("sh" | "bash"));
        (line.split('|').skip(1).any(shell) || line.contains("bash <("))
            && events::is_code(&used(line, step), events)
    };
    if reads && script.lines().any(runs_it) {
        return true;
    }
    let by_npm = lower.contains("github:")
        && ["npm", "npx", "pnpm", "yarn", "bun", "nix"].iter().any(|command| is_word(command));
    if gets_by_name_of_strangers(script, step, events)
        || gets_by_address_of_strangers(script, step, events)
    {
        return true;
    }
    let downloads = git
        || by_npm
        || runs(&words, "gh", &["clone"])
        // Cargo's option; `--github-token` and the like begin as it does.
        || is_word("--git")
        || ADDRESSES_OF_CODE.iter().any(|part| lower.contains(part));
    if !downloads {
        return false;
    }
    let event_file = ["github_event_path", "github_head_ref", "context.payload", "context.issue"];
    let is_named = events::is_code(&reach, events)
        && (asks_by_number(&lower, &words)
            || events::is_code(&step.scope.written, events)
            || events::is_code(&without_numbers(used_in(script, step)), events));
    if is_named
        || (events::name_strangers(events) && event_file.iter().any(|part| lower.contains(part)))
    {
        return true;
    }
    let clones = runs(&words, "git", &["clone"]) || runs(&words, "gh", &["clone"]);
    let names_upstream =
        reach.texts.iter().any(|text| text.to_lowercase().contains(&upstream.to_lowercase()));
    clones && (names_upstream || (from_others && !is_own(&lower)))
}

/// Whether a command is `gh pr checkout`, wherever it names the repository.
fn checks_out_pull(script: &str) -> bool {
    shell::commands(script).iter().any(|command| {
        let words = command.words.iter().map(|word| word.text.as_str());
        let mut words = words.skip_while(|word| *word != "gh").skip(1);
        let mut operands = vec![];
        while let Some(word) = words.next() {
            match word {
                "-R" | "--repo" => {
                    words.next();
                }
                _ if word.starts_with('-') => {}
                _ => operands.push(word),
            }
        }
        matches!(operands[..], ["pr", "checkout" | "co", ..])
    })
}

/// Whether a script may get from the number of a pull request to its code, or to what the text of an issue names.
fn asks_by_number(lower: &str, words: &[String]) -> bool {
    let others = lower.replace("git pull", "").replace("pull request", "");
    let asks = |verb: &str| ["diff", "list", "status", "view"].contains(&verb);
    others.contains("pull")
        || reads_addresses(words)
        || words.windows(2).any(|two| two[0] == "pr" && asks(&two[1]))
        || as_code::asks_for_text(lower)
}

fn reads_addresses(words: &[String]) -> bool {
    words.iter().any(|word| word == "curl" || word == "wget") || runs(words, "gh", &["api"])
}

/// Whether a script gets what a pull request of a stranger changes.
pub fn gets_diff(script: &str, step: &JobStep<'_>, events: &[String]) -> bool {
    let (words, lower, reach) = (words(script), script.to_lowercase(), used(script, step));
    let names_diff =
        || reach.overlaps(&events::DIFFS) || lower.contains(".diff") || lower.contains(".patch");
    runs(&words, "gh", &["diff"])
        || (reads_addresses(&words) && events::is_code(&reach, events) && names_diff())
}

/// Whether a script changes files by a patch. `PATCH` is a method of HTTP.
pub fn applies_patch(script: &str) -> bool {
    ["| patch", "patch -p", "patch -i", "patch <"].iter().any(|part| script.contains(part))
        || runs(&words(script), "git", &["apply", "am"])
}

/// The files that a script's commands write, by `>` or `-o`, without their folders.
pub fn written_files(script: &str) -> Vec<String> {
    let mut found = vec![];
    for command in shell::commands(script).into_iter().take(as_code::MAX_PARTS) {
        let by_option = command.words.windows(2).filter(|two| two[0].text == "-o");
        let by_option = by_option.map(|two| two[1].text.clone()).collect::<Vec<_>>();
        found.extend(command.writes.into_iter().map(|output| output.file).chain(by_option));
    }
    let last = |path: String| path.rsplit('/').next().unwrap_or_default().to_owned();
    found.into_iter().map(last).filter(|name| !name.is_empty()).collect()
}

/// Programs that get code or an image by the first operand after one of these verbs, and whether their options have
/// values of their own.
const GETS_BY_NAME: [(&str, &[&str], bool); 8] = [
    ("go", &["install", "run", "get"], false),
    ("svn", &["export", "checkout", "co"], false),
    ("hg", &["clone", "pull"], false),
    ("docker", &["run", "pull", "create"], true),
    ("podman", &["run", "pull", "create"], true),
    ("degit", &[], false),
    ("tiged", &[], false),
    ("giget", &[], false),
];

/// Whether a script gets code or an image by a name that a stranger chooses. A number or a hash names nothing there.
fn gets_by_name_of_strangers(script: &str, step: &JobStep<'_>, events: &[String]) -> bool {
    const SWITCHES: [&str; 8] = ["--rm", "-i", "-t", "-it", "-d", "-q", "--init", "--privileged"];
    let is_strangers =
        |word: &ShellWord| events::is_code(&without_ids(&used_in(&word.text, step)), events);
    shell::commands(script).iter().any(|command| {
        let words = &command.words[..command.words.len().min(as_code::MAX_PARTS)];
        words.iter().enumerate().any(|(at, word)| {
            let program = word.text.rsplit('/').next().unwrap_or_default();
            let known = GETS_BY_NAME.iter().find(|(name, ..)| *name == program);
            let Some((_, verbs, has_values)) = known else { return false };
            let mut rest = words[at + 1..].iter();
            if !verbs.is_empty() && !rest.next().is_some_and(|verb| verbs.contains(&&*verb.text)) {
                return false;
            }
            while let Some(word) = rest.next() {
                if !word.text.starts_with('-') {
                    return is_strangers(word);
                }
                let is_alone = word.text.contains('=') || SWITCHES.contains(&&*word.text);
                if *has_values && !is_alone {
                    rest.next();
                }
            }
            false
        })
    })
}

/// Programs that install or run a package, and their verbs for it.
const GETS_BY_ADDRESS: [(&str, &[&str]); 14] = [
    ("bun", &["add", "i", "install", "x"]),
    ("bunx", &[]),
    ("composer", &["require"]),
    ("degit", &[]),
    ("go", &["get", "install", "run"]),
    ("npm", &["add", "exec", "i", "install", "x"]),
    ("npx", &[]),
    ("pip", &["download", "install", "wheel"]),
    ("pip3", &["download", "install", "wheel"]),
    ("pipx", &["install", "run"]),
    ("pnpm", &["add", "dlx", "i", "install"]),
    ("terraform", &["init"]),
    ("tiged", &[]),
    ("yarn", &["add", "dlx"]),
];

/// Parts of a package's name that say where its code is. A name and a version alone are of a registry, to which a pull
/// request adds nothing.
const PLACES: [&str; 5] = ["://", "git+", "github.com", "github:", "pkg.pr.new"];

fn names_place(word: &str) -> bool {
    // `a/b#SHA` names a commit, and `${A#b}` is a variable without its beginning.
    let names_commit = word
        .split_once('#')
        .is_some_and(|(before, _)| before.rfind("${").is_none_or(|at| before[at..].contains('}')));
    names_commit || PLACES.iter().any(|part| word.contains(part))
}

/// Whether a script installs a package from an address with a stranger's commit or pull request.
fn gets_by_address_of_strangers(script: &str, step: &JobStep<'_>, events: &[String]) -> bool {
    // In JavaScript such a line is mostly a part of a comment.
    if action_path(step.value) == "actions/github-script" {
        return false;
    }
    let is_strangers = |word: &ShellWord| {
        names_place(&word.text) && events::is_code(&used_in(&word.text, step), events)
    };
    shell::commands(script).iter().any(|command| {
        let words = &command.words[..command.words.len().min(as_code::MAX_PARTS)];
        let is_said = bare(words).first().is_some_and(|word| SAYS.contains(&&*word.text));
        !is_said
            && (0..words.len()).any(|at| {
                let program = words[at].text.rsplit('/').next().unwrap_or_default();
                let known = GETS_BY_ADDRESS.iter().find(|(name, _)| *name == program);
                known.is_some_and(|(_, verbs)| {
                    packages(&words[at + 1..], verbs).into_iter().any(is_strangers)
                })
            })
    })
}

/// The words that may name packages, after the program's name.
fn packages<'a>(words: &'a [ShellWord], verbs: &[&str]) -> Vec<&'a ShellWord> {
    let mut operands = words.iter().filter(|word| !word.text.starts_with('-'));
    let verb = match verbs {
        [] => "",
        _ => operands.next().map_or("", |word| word.text.as_str()),
    };
    match verb {
        // What comes after the first one is for the package.
        "" | "dlx" | "exec" | "run" | "x" => operands.take(1).collect(),
        _ if verbs.contains(&verb) => words.iter().collect(),
        _ => vec![],
    }
}

/// Programs that only print their words.
const SAYS: [&str; 2] = ["echo", "printf"];

/// A script without lines that only print something, such as how to install what it is about.
fn without_said(script: &str) -> String {
    let is_said = |line: &&str| {
        let first = line.split_whitespace().next().unwrap_or_default();
        SAYS.contains(&first) && !line.contains(['|', '`', '&', ';']) && !line.contains("$(")
    };
    script.lines().filter(|line| !is_said(line)).collect::<Vec<_>>().join("\n")
}

/// What strangers name themselves: all but numbers and hashes.
fn without_ids(reach: &ContextReach) -> ContextReach {
    let is_name = |path: &&String| {
        let last = path.rsplit('.').next().unwrap_or_default();
        !["number", "sha", "head_sha", "merge_commit_sha", "after", "id"].contains(&last)
    };
    let paths = reach.paths.iter().filter(is_name).cloned().collect();
    ContextReach { paths, ..ContextReach::default() }
}

/// What git takes for a commit or a repository: a number is only a part of a branch's name, as in `fix-7`. What is called
/// one in a payload is whatever its sender likes, and what another step got by a number may be a commit.
fn without_numbers(mut reach: ContextReach) -> ContextReach {
    let is_computed = |path: &String| {
        (path.starts_with("steps.") || path.starts_with("needs.")) && !path.ends_with("number")
    };
    if !reach.paths.iter().any(is_computed) {
        let is_number = |path: &String| path.ends_with(".number") || path.ends_with(".id");
        reach.paths.retain(|path| !is_number(path) || path.contains(".client_payload."));
    }
    reach
}

/// What a script's expressions and the variables that it names lead to.
fn used(script: &str, step: &JobStep<'_>) -> ContextReach {
    let mut found = used_in(script, step);
    if script.contains('$') || script.contains("process.env") {
        found.merge(&step.scope.written);
    }
    found
}

/// As [`used`], without what earlier steps may have written.
fn used_in(script: &str, step: &JobStep<'_>) -> ContextReach {
    let mut found = step.scope.reach(script);
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let names: Vec<_> = script.split(|c| !is_name(c)).map(str::to_lowercase).collect();
    for (name, reach) in &step.scope.env {
        if names.contains(name) {
            found.merge(reach);
        }
    }
    found
}

/// Whether git or gh keeps a token of the job on disk after a script, where code that runs later reads it.
pub fn keeps_token(script: &str, step: &JobStep<'_>) -> bool {
    script.lines().any(|line| {
        let words = words(line);
        let keeps = runs(&words, "git", &["config"])
            || (line.contains('@') && runs(&words, "git", &["clone", "remote"]))
            || runs(&words, "gh", &["login"]);
        keeps && used_in(line, step).overlaps(&["github.token", "secrets.github_token"])
    })
}

/// Whether a script writes lines of a stranger into a file by which each line sets another variable or output of the
/// step. A delimiter that nobody can guess keeps them one value, and so does a text of one line.
pub fn writes_lines_of_strangers(script: &str, step: &JobStep<'_>) -> bool {
    if is_one_value(script) {
        return false;
    }
    let shortened = as_code::shortened(script);
    let holds_any = |lines: Vec<&str>| {
        let long = lines.into_iter().filter(|line| !as_code::leaves_one_line(line));
        holds_lines(&long.collect::<Vec<_>>().join("\n"), step, &shortened)
    };
    let into_environment = script.contains("GITHUB_ENV") || script.contains("GITHUB_PATH");
    let outputs: Vec<_> = script.lines().filter(|line| line.contains("GITHUB_OUTPUT")).collect();
    (into_environment && holds_any(script.lines().collect()))
        || (outputs.len() > 1 && holds_any(outputs))
}

/// Whether a script sets more than one output: with one there is nothing else to set. A group of commands is written by
/// one redirection.
pub fn sets_several_outputs(script: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_-".contains(c);
    let names = script.split(['\n', ';']).filter(|command| {
        let command = command.trim_start_matches(['{', '(', ' ']);
        let printed = ["echo ", "printf "].iter().find_map(|print| command.strip_prefix(print));
        let value = printed.unwrap_or_default().trim_start_matches(['"', '\'']);
        let rest = value.trim_start_matches(is_part);
        rest.len() < value.len() && (rest.starts_with('=') || rest.starts_with("<<"))
    });
    match script.lines().filter(|line| line.contains("GITHUB_OUTPUT")).count() {
        0 => false,
        1 => names.count() > 1,
        _ => true,
    }
}

/// Ways in which a script makes one line of a text, takes out what it expects, or makes a random delimiter.
const ONE_VALUE: [&str; 12] = [
    "tr -d",
    "grep -o",
    "grep -Eo",
    "grep -Po",
    "replace(",
    "splitlines",
    "json.dumps",
    "JSON.stringify",
    "uuid",
    "UUID",
    "token_hex",
    "randomBytes",
];

/// Whether a script writes a text as one value: in one line, or ended by a delimiter that nobody can guess.
pub fn is_one_value(script: &str) -> bool {
    ONE_VALUE.iter().any(|part| script.contains(part))
        || script.split("<<").skip(1).any(|rest| is_random_delimiter(rest, script))
}

/// Whether the delimiter at the start of a text is computed, and not a variable that has a fixed word.
fn is_random_delimiter(text: &str, script: &str) -> bool {
    let text = text.strip_prefix('"').unwrap_or(text);
    let end = |c: char| c.is_whitespace() || c == '"' || c == '\'';
    let word = text.split(end).next().unwrap_or_default();
    if word.starts_with('<') || !word.contains(['$', '`']) {
        return false;
    }
    let name = word.trim_start_matches(['$', '{']);
    let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    if name.is_empty() {
        return true;
    }
    let assignment = format!("{name}=");
    let mut words = script.split([' ', '\t', '\n', ';', '{', '(']);
    let value = words.find_map(|word| word.strip_prefix(&*assignment));
    value.is_none_or(|value| value.contains(['$', '`']))
}

/// What is before the name of a variable of the environment in a shell, PowerShell, Python and JavaScript, in lower case.
const MARKS: [&str; 10] = [
    "$",
    "${",
    "env:",
    "environ['",
    "environ[\"",
    "environ.get('",
    "environ.get(\"",
    "getenv('",
    "getenv(\"",
    "process.env.",
];

/// Whether commands print lines that a stranger writes.
fn holds_lines(commands: &str, step: &JobStep<'_>, shortened: &BTreeSet<String>) -> bool {
    let lower = commands.to_lowercase();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let is_used = |name: &str| {
        MARKS.iter().any(|mark| {
            let variable = format!("{mark}{name}");
            let mut found = lower.match_indices(variable.as_str());
            found.any(|(at, _)| !lower[at + variable.len()..].starts_with(is_part))
        })
    };
    let used = step.scope.env.iter();
    let used = used.filter(|(name, _)| is_used(name) && !shortened.contains(*name));
    let asks = lower.lines().any(|line| {
        (as_code::asks_for_text(line) || line.contains("context.payload"))
            && ["body", "message", "comments"].iter().any(|text| line.contains(text))
    });
    (asks && step.events.iter().any(|event| events::is_caused_by_strangers(event)))
        || events::is_lines(&ContextReach::of_all(used.map(|(_, reach)| &**reach)), &step.events)
}

/// Whether a script may set variables for later steps.
pub fn sets_variables(script: &str) -> bool {
    script.contains("GITHUB_ENV") || script.contains("exportVariable")
}

/// Whether a script downloads artifacts itself.
pub fn downloads_artifacts(script: &str, step: &JobStep<'_>) -> bool {
    let words = words(script);
    script.contains("downloadArtifact")
        || script.contains("archive_download_url")
        || (step.events.iter().any(|event| event == "workflow_run")
            && used_in(script, step).overlaps(&["github.event.workflow_run.artifacts_url"]))
        || script.contains("/artifacts")
        || words.windows(2).any(|two| two == ["run", "download"])
        || runs(&words, "artifact", &["download"])
}

/// Whether a script names a stranger's commit, repository or pull request.
pub fn names_code(script: &str, step: &JobStep<'_>) -> bool {
    events::is_code(&used(script, step), &step.events)
}

/// Whether a step can be seen to neither run nor print files that lie beside it.
pub fn treats_files_as_data(step: &Value) -> bool {
    let uses = action_path(step);
    if uses == "actions/github-script" {
        return input(step, "script").is_none_or(|script| javascript_reads_data(&script));
    }
    let plain_shell = step.get("shell").and_then(Value::as_str).is_none_or(|shell| {
        matches!(shell.split_whitespace().next(), Some("bash" | "sh" | "pwsh"))
    });
    scripts(step)
        .iter()
        .all(|script| plain_shell && script.lines().all(|line| is_harmless_line(line.trim())))
}

/// A line that prints fixed words or the step's own variables, or runs our own command, which expects such files.
fn is_harmless_line(line: &str) -> bool {
    let line = line.replace(">> \"$GITHUB_STEP_SUMMARY\"", "");
    let first = line.split_whitespace().next().unwrap_or_default();
    let own = first == "crcr"
        && line.split_whitespace().nth(1).is_some_and(|command| command == "report");
    let fixed = ["echo", "printf", "true", ":", "exit", "set"].contains(&first);
    // Where a matcher of the artifact's is read from.
    let matcher = line.split("::add-matcher::").nth(1);
    let adds_matcher = matcher.is_some_and(|file| !file.starts_with(".github/"));
    first.is_empty()
        || first.starts_with('#')
        || (!adds_matcher
            && (own || (fixed && !line.contains(['*', '?', '['])))
            && !line.contains(['`', '<', '>', '|', '&', ';'])
            && !line.contains("$("))
}

/// JavaScript that only reads files and talks to GitHub's API: nothing in it runs, prints, exports or writes one.
fn javascript_reads_data(script: &str) -> bool {
    const OTHERS: [&str; 26] = [
        "import",
        "eval",
        "Function",
        "exec",
        "child_process",
        "spawn",
        "execSync",
        "vm",
        "console",
        "stdout",
        "stderr",
        "info",
        "setOutput",
        "exportVariable",
        "addPath",
        "saveState",
        "startGroup",
        "group",
        "GITHUB_ENV",
        "GITHUB_PATH",
        "GITHUB_OUTPUT",
        "writeFile",
        "writeFileSync",
        "appendFileSync",
        "createWriteStream",
        "globalThis",
    ];
    const MODULES: [&str; 4] = ["crypto", "fs", "path", "zlib"];
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let script = &without_fixed_notes(script);
    if script.split(|c| !is_name(c)).any(|word| OTHERS.contains(&word)) {
        return false;
    }
    // In a link of Markdown, these come where no code of JavaScript can have them.
    let is_link = |rest: &str| {
        ["${", "http://", "https://", "#", "./"].iter().any(|start| rest.starts_with(start))
    };
    let fixed_names = script.split("](").skip(1).all(is_link)
        && !["core[", "process[", "require[", "fs["].iter().any(|part| script.contains(part));
    let loads_modules = script.split("require").skip(1).all(|rest| {
        let module = rest.trim_start().strip_prefix('(').and_then(|rest| rest.split(')').next());
        let module = module.map(|module| module.trim().trim_matches(['\'', '"']));
        module.is_some_and(|it| MODULES.contains(&it.strip_prefix("node:").unwrap_or(it)))
    });
    fixed_names && loads_modules
}

/// JavaScript without calls that print a fixed text of its own.
fn without_fixed_notes(script: &str) -> String {
    const PRINTS: [&str; 3] = ["console.log", "core.info", "core.startGroup"];
    let mut rest = script.to_owned();
    for name in PRINTS {
        for arguments in as_code::calls(script, name) {
            let text = javascript::fixed_text(arguments);
            // A problem matcher may be in a file of an artifact.
            if text.is_some_and(|text| !text.contains("::")) {
                rest = rest.replace(&format!("{name}({arguments})"), "");
            }
        }
    }
    rest
}
