//! Whether a step runs text of a stranger, though no script holds it: a shell or an interpreter gets it as its code,
//! from a variable of the environment or from what a command prints.

use std::collections::BTreeSet;

use serde_yaml::Value;

use super::events;
use super::javascript;
use super::scope::ContextReach;
use super::script::scripts;
use super::shell::{self, ShellCommand, ShellWord};
use super::step::{JobStep, action_path, input};

/// Variables that shells and interpreters take code or its place from.
const CODE_VARIABLES: [&str; 12] = [
    "bash_env",
    "env",
    "git_external_diff",
    "git_ssh_command",
    "java_tool_options",
    "ld_preload",
    "node_options",
    "path",
    "perl5opt",
    "pythonpath",
    "pythonstartup",
    "rubyopt",
];

/// Programs that run a text that they are given or read, with the letters of the options for it.
const INTERPRETERS: [(&str, &str); 16] = [
    ("sh", "c"),
    ("bash", "c"),
    ("dash", "c"),
    ("zsh", "c"),
    ("ksh", "c"),
    ("su", "c"),
    ("flock", "c"),
    ("python", "c"),
    ("perl", "eE"),
    ("ruby", "e"),
    ("node", "ep"),
    ("nodejs", "ep"),
    ("bun", "ep"),
    ("php", "r"),
    ("pwsh", "cC"),
    ("powershell", "cC"),
];

/// Agents that run commands, as programs; what they are told may be a stranger's orders.
const AGENTS: [&str; 10] = [
    "aider",
    "claude",
    "claude-code",
    "codex",
    "copilot",
    "cursor-agent",
    "gemini",
    "gemini-cli",
    "goose",
    "opencode",
];

/// The same as actions.
const AGENT_ACTIONS: [&str; 7] = [
    "anthropics/claude-code-action",
    "anthropics/claude-code-base-action",
    "augmentcode/augment-agent",
    "google-gemini/gemini-cli-action",
    "google-github-actions/run-gemini-cli",
    "openai/codex-action",
    "sst/opencode/github",
];

/// Words before a command that leave it what it is.
const BEFORE_COMMANDS: [&str; 23] = [
    "!", "{", "builtin", "bunx", "command", "do", "elif", "else", "env", "exec", "if", "nice",
    "nohup", "npx", "sudo", "stdbuf", "then", "time", "timeout", "until", "uvx", "while",
    "xvfb-run",
];

/// Words that a script's commands ask for text of the event with.
const TEXTS_OF_THE_EVENT: [&str; 8] =
    ["body", "title", "message", "comments", "description", "headrefname", "head.ref", "head_ref"];

/// Ways in which a script quotes a text for a shell, or leaves nothing of it but what it expects.
const HARMLESS_PARTS: [&str; 7] =
    ["%q", "@Q}", "grep -o", "grep -Eo", "grep -Po", "tr -cd", "tr -dc"];

/// More commands before a pipe, words, calls or variables than anybody writes. They could take long to read.
pub const MAX_PARTS: usize = 200;
const MAX_COMMANDS: usize = 3000;
const MAX_CALL_BYTES: usize = 2000;

/// Whether a step runs text of a stranger as code. `shell` is that of its job or workflow.
pub fn runs_text(step: &JobStep<'_>, default_shell: Option<&str>) -> bool {
    let tainted = StrangerVariables::new(step);
    if CODE_VARIABLES.iter().any(|name| tainted.names.contains(*name)) {
        return true;
    }
    if AGENT_ACTIONS.contains(&action_path(step.value).as_str()) && is_told_by_strangers(step) {
        return true;
    }
    let own = step.value.get("shell").and_then(Value::as_str).or(default_shell);
    let program = own.and_then(|shell| shell.split_whitespace().next()).unwrap_or("bash");
    let is_javascript = action_path(step.value) == "actions/github-script" || program == "node";
    scripts(step.value).iter().any(|script| match program {
        _ if is_javascript => javascript::runs_text(script, &tainted),
        "cmd" => tainted.is_in_cmd(script),
        "python" | "python3" => python_runs_text(script, &tainted),
        _ => powershell_runs_text(script, &tainted) || shell_runs_text(script, &tainted),
    })
}

/// Whether an agent is given text of the event, or works for everybody.
fn is_told_by_strangers(step: &JobStep<'_>) -> bool {
    let given = step.value.get("with").map(|with| step.scope.reach_all(with)).unwrap_or_default();
    let for_all =
        input(step.value, "allowed_non_write_users").or_else(|| input(step.value, "allow-users"));
    events::is_text(&given, &step.events)
        || (for_all.is_some_and(|users| users.contains('*'))
            && step.events.iter().any(|event| events::is_caused_by_strangers(event)))
}

/// Where a script has text of a stranger.
pub struct StrangerVariables<'a> {
    /// Variables of the environment, in lower case.
    pub names: BTreeSet<String>,
    events: &'a [String],
}

impl<'a> StrangerVariables<'a> {
    fn new(step: &'a JobStep<'_>) -> Self {
        let events = &step.events;
        let of_step = step.scope.env.iter();
        let of_step = of_step.filter(|(_, reach)| events::is_text(reach, events));
        let mut names: BTreeSet<_> = of_step.map(|(name, _)| name.clone()).collect();
        if is_text("github.head_ref", events) {
            names.insert("github_head_ref".to_owned());
        }
        Self { names, events }
    }

    /// Whether a context of the event is text.
    pub fn is_text(&self, path: &str) -> bool {
        is_text(path, self.events)
    }

    /// Whether a variable with such a text expands in `open`. The length of one, and what is quoted for a shell, is none.
    fn expands_in(&self, open: &str) -> bool {
        if HARMLESS_PARTS.iter().any(|part| open.contains(part)) {
            return false;
        }
        let rest = open.split('$').skip(1);
        let mut named = rest.filter_map(|rest| {
            let rest = rest.strip_prefix('{').unwrap_or(rest);
            Some(first_name(rest.strip_prefix('!').unwrap_or(rest))).filter(|name| !name.is_empty())
        });
        named.any(|name| self.names.contains(&name)) || self.asks_for_text(open)
    }

    /// Whether a command prints text of the event.
    fn asks_for_text(&self, command: &str) -> bool {
        asks_for_text(command)
            && self.events.iter().any(|event| events::is_caused_by_strangers(event))
    }

    /// Whether the command line of Windows would take a text as a part of the script.
    fn is_in_cmd(&self, script: &str) -> bool {
        let lower = script.to_lowercase();
        self.names.iter().any(|name| {
            lower.contains(&format!("%{name}%")) || lower.contains(&format!("%{name}:"))
        })
    }
}

/// Whether commands read text that a stranger may have written, from the event's file or from GitHub.
pub fn asks_for_text(commands: &str) -> bool {
    let lower = commands.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let asks = has(&["github_event_path", "api.github.com", "github_api_url"])
        || (has(&["gh "]) && has(&[" view", " api ", " list"]));
    asks && has(&TEXTS_OF_THE_EVENT)
}

fn is_text(path: &str, events: &[String]) -> bool {
    let reach = ContextReach { paths: [path.to_owned()].into(), ..ContextReach::default() };
    events::is_text(&reach, events)
}

/// The name that a text starts with, in lower case.
pub fn first_name(text: &str) -> String {
    let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
    text.chars().take_while(is_part).collect::<String>().to_lowercase()
}

fn shell_runs_text(script: &str, tainted: &StrangerVariables<'_>) -> bool {
    let mut commands = shell::commands(script);
    commands.truncate(MAX_COMMANDS);
    let mut tainted = StrangerVariables { names: tainted.names.clone(), events: tainted.events };
    // What a variable gets from another one may have been written before that one.
    for _ in 0..3 {
        for at in 0..commands.len() {
            let found = assigned(&commands, at, &tainted);
            tainted.names.extend(found);
        }
    }
    (0..commands.len()).any(|at| command_runs_text(&commands, at, &tainted))
}

/// The variables that get text of a stranger by a command.
fn assigned(commands: &[ShellCommand], at: usize, tainted: &StrangerVariables<'_>) -> Vec<String> {
    let words = bare(&commands[at].words);
    let first = words.first().map_or("", |word| word.text.as_str());
    match first {
        "for" => match words {
            [_, name, _, values @ ..]
                if values.iter().any(|word| tainted.expands_in(&word.open)) =>
            {
                vec![name.text.to_lowercase()]
            }
            _ => vec![],
        },
        "read" | "mapfile" | "readarray" if is_fed(commands, at, tainted) => {
            let names = words[1..].iter().filter(|word| !word.text.starts_with('-'));
            names.map(|word| word.text.to_lowercase()).collect()
        }
        _ => {
            let gets = words.iter().filter_map(|word| {
                let (name, value) = word.open.split_once('=')?;
                (first_name(name) == name.to_lowercase() && tainted.expands_in(value))
                    .then(|| name.to_lowercase())
            });
            gets.collect()
        }
    }
}

/// Whether a command reads text of a stranger.
fn is_fed(commands: &[ShellCommand], at: usize, tainted: &StrangerVariables<'_>) -> bool {
    let mut feeders =
        commands[..=at].iter().rev().take(MAX_PARTS).scan(true, |is_piped, command| {
            let goes_on = *is_piped;
            *is_piped = command.is_piped;
            goes_on.then_some(command)
        });
    let prints = |command: &ShellCommand| {
        let text: Vec<_> = command.words.iter().map(|word| word.text.as_str()).collect();
        command.words.iter().any(|word| tainted.expands_in(&word.open))
            || tainted.asks_for_text(&text.join(" "))
    };
    tainted.expands_in(&commands[at].input)
        || (commands[at].is_piped
            && feeders
                .by_ref()
                .skip(1)
                .any(|command| prints(command) || tainted.expands_in(&command.input)))
}

/// A command without what comes before its name.
fn bare(mut words: &[ShellWord]) -> &[ShellWord] {
    let mut after_sudo = false;
    while let [first, rest @ ..] = words {
        let is_assignment = first
            .text
            .split_once('=')
            .is_some_and(|(name, _)| !name.is_empty() && first_name(name) == name.to_lowercase());
        let is_before = BEFORE_COMMANDS.contains(&first.text.as_str());
        let is_option = after_sudo
            && (first.text.starts_with('-')
                || first.text.starts_with(|c: char| c.is_ascii_digit()));
        if !(is_before || is_option || (is_assignment && !rest.is_empty())) {
            break;
        }
        after_sudo |= is_before;
        words = rest;
    }
    words
}

fn command_runs_text(
    commands: &[ShellCommand],
    at: usize,
    tainted: &StrangerVariables<'_>,
) -> bool {
    let all = &commands[at].words;
    // A number in brackets may be an index that is run.
    let in_numbers = |word: &ShellWord| {
        let numbers = word.open.split("$((").skip(1);
        numbers.filter_map(|rest| rest.split("))").next()).any(|rest| names_in(rest, tainted))
    };
    if all.iter().any(in_numbers) {
        return true;
    }
    let words = bare(all);
    let Some(first) = words.first() else { return false };
    if first.open.starts_with('$') && tainted.expands_in(&first.open) {
        return true;
    }
    let has_text = |words: &[ShellWord]| words.iter().any(|word| tainted.expands_in(&word.open));
    let name = program(&first.text);
    let is_option = |word: &ShellWord| word.text.starts_with('-');
    let operand = |skipped: &[(&str, usize)]| {
        let mut rest = words[1..].iter();
        loop {
            let word = rest.next()?;
            match skipped.iter().find(|(option, _)| *option == word.text) {
                Some((_, n)) => rest.by_ref().take(*n).for_each(drop),
                None if is_option(word) || word.text.is_empty() => {}
                None => return Some(word),
            }
        }
    };
    let is_run = |word: Option<&ShellWord>| word.is_some_and(|word| tainted.expands_in(&word.open));
    match name.as_str() {
        "echo" | "printf" | "cat" => false,
        "eval" | "source" | "." | "trap" | "watch" => has_text(&words[1..]),
        "((" | "let" => words.iter().any(|word| names_in(&word.open, tainted)),
        "[[" => {
            let of_numbers = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];
            words.windows(3).any(|three| {
                of_numbers.contains(&three[1].text.as_str())
                    && (is_run(Some(&three[0])) || is_run(Some(&three[2])))
            })
        }
        // All words after the host are put together, and run there.
        "ssh" => {
            let host = words[1..].iter().position(|word| !is_option(word));
            host.is_some_and(|host| has_text(&words[host + 2..]))
        }
        "sed" => is_run(after(words, &["-e", "--expression"]).or_else(|| operand(&[("-f", 1)]))),
        "awk" | "gawk" | "mawk" => is_run(operand(&[("-v", 1), ("-F", 1), ("-f", 1)])),
        "jq" | "yq" => {
            let named =
                ["--arg", "--argjson", "--slurpfile", "--rawfile"].map(|option| (option, 2));
            is_run(operand(&[&named[..], &[("--indent", 1), ("-L", 1)]].concat()))
        }
        "gh" => is_run(after(words, &["-q", "--jq"])),
        "make" | "gmake" => {
            words[1..].iter().any(|word| word.open.contains('=') && tainted.expands_in(&word.open))
        }
        agent if AGENTS.contains(&agent) => has_text(words) || is_fed(commands, at, tainted),
        _ => interpreters_run_text(words, tainted, || is_fed(commands, at, tainted)),
    }
}

/// Whether an interpreter gets text of a stranger as its code, also behind `xargs`, `docker run` and the like.
fn interpreters_run_text(
    words: &[ShellWord],
    tainted: &StrangerVariables<'_>,
    is_fed: impl Fn() -> bool,
) -> bool {
    let words = &words[..words.len().min(MAX_PARTS)];
    words.iter().enumerate().any(|(at, word)| {
        let name = program(&word.text);
        let Some((_, letters)) = INTERPRETERS.iter().find(|(known, _)| *known == name) else {
            return false;
        };
        let rest = &words[at + 1..];
        let is_option = |word: &&ShellWord| word.text.starts_with('-') || word.text == "pipefail";
        let options = match name.as_str() {
            // The user or the file comes before them.
            "su" | "flock" => rest.len(),
            _ => rest.iter().take_while(is_option).count(),
        };
        let is_for_code = |word: &ShellWord| {
            let option = word.text.trim_start_matches('-').to_lowercase();
            match word.text.starts_with("--") {
                true => ["eval", "print", "command"].contains(&option.as_str()),
                false if word.text.starts_with('-') => {
                    option == "command"
                        || (option.len() < 6 && word.text.contains(|c| letters.contains(c)))
                }
                false => false,
            }
        };
        if let Some(option) = rest[..options].iter().position(is_for_code) {
            let code = rest.get(option + 1);
            let from_xargs = || {
                words[..at].iter().any(|word| program(&word.text) == "xargs")
                    && code.is_some_and(|code| code.text.contains("{}") || code.text.contains('%'))
                    && is_fed()
            };
            return code.is_some_and(|code| tainted.expands_in(&code.open)) || from_xargs();
        }
        let is_process = |word: &ShellWord| word.text.starts_with("<(");
        let reads = rest.iter().all(|word| is_option(&word) || is_process(word));
        let by_process = rest.iter().any(|word| is_process(word) && tainted.expands_in(&word.open));
        let hands_on = ["docker", "podman", "kubectl", "chroot", "nsenter"];
        let is_program = at == 0 || hands_on.contains(&program(&words[0].text).as_str());
        by_process || (is_program && reads && is_fed())
    })
}

/// The last part of a program's path, without the version of Python.
fn program(text: &str) -> String {
    let name = text.rsplit('/').next().unwrap_or_default();
    match name.strip_prefix("python") {
        Some(version) if version.chars().all(|c| c.is_ascii_digit() || c == '.') => {
            "python".to_owned()
        }
        _ => name.to_owned(),
    }
}

fn after<'a>(words: &'a [ShellWord], options: &[&str]) -> Option<&'a ShellWord> {
    let at = words.iter().position(|word| options.contains(&word.text.as_str()))?;
    words.get(at + 1)
}

/// Whether an expression of numbers names a variable, which needs no `$` there.
fn names_in(expression: &str, tainted: &StrangerVariables<'_>) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = expression.split(|c| !is_part(c)).map(str::to_lowercase);
    names.any(|name| tainted.names.contains(&name))
}

fn powershell_runs_text(script: &str, tainted: &StrangerVariables<'_>) -> bool {
    let lower = script.to_lowercase();
    let mut names: BTreeSet<String> =
        tainted.names.iter().map(|name| format!("$env:{name}")).collect();
    let has = |line: &str, names: &BTreeSet<String>| {
        names.iter().any(|name| {
            let mut found = line.match_indices(name.as_str());
            found.any(|(at, _)| first_name(&line[at + name.len()..]).is_empty())
        })
    };
    for line in lower.lines() {
        if let Some((name, value)) = line.split_once('=')
            && name.trim().starts_with('$')
            && names.len() < MAX_PARTS
            && has(value, &names)
        {
            names.insert(name.trim().to_owned());
        }
    }
    let runs = |line: &str| {
        let words: Vec<_> =
            line.split(|c: char| !(c.is_alphanumeric() || "-_".contains(c))).collect();
        let line = line.trim_start();
        ["iex", "invoke-expression", "-command", "invokescript"]
            .iter()
            .any(|word| words.contains(word))
            || line.contains("[scriptblock]::create")
            || line.contains("cmd /c")
            || ["bash -c", "sh -c"].iter().any(|shell| line.contains(shell))
            || line.starts_with("& $")
            || line.starts_with("& \"$")
    };
    lower.lines().any(|line| runs(line) && line.contains('$') && has(line, &names))
}

/// A script of Python.
fn python_runs_text(script: &str, tainted: &StrangerVariables<'_>) -> bool {
    let reads = |text: &str| {
        let variables = text.split(['\'', '"']).skip(1).step_by(2).map(str::to_lowercase);
        (text.contains("environ") || text.contains("getenv"))
            && variables.into_iter().any(|name| tainted.names.contains(&name))
    };
    let mut names = BTreeSet::new();
    for line in script.lines() {
        if let Some((name, value)) = line.split_once('=')
            && (reads(value) || has_name(value, &names))
        {
            names.insert(name.trim().to_lowercase());
        }
    }
    let is_text = |arguments: &&str| reads(arguments) || has_name(arguments, &names);
    let evaluates = [
        "eval",
        "exec",
        "os.system",
        "os.popen",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    ];
    let starts = ["run", "call", "check_call", "check_output", "Popen"];
    evaluates.iter().any(|name| calls(script, name).iter().any(&is_text))
        || starts.iter().any(|name| {
            let with_shell = |arguments: &&&str| arguments.contains("shell=True");
            calls(script, &format!("subprocess.{name}")).iter().filter(with_shell).any(&is_text)
        })
}

fn has_name(text: &str, names: &BTreeSet<String>) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).any(|word| names.contains(&word.to_lowercase()))
}

/// The arguments of each call of a function.
pub fn calls<'a>(script: &'a str, function: &str) -> Vec<&'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '$';
    let mut found = vec![];
    for (at, _) in script.match_indices(function).take(MAX_PARTS) {
        let rest = script[at + function.len()..].trim_start_matches(' ');
        if !script[..at].ends_with(is_part)
            && let Some(rest) = rest.strip_prefix('(')
        {
            found.push(&rest[..end_of_call(rest)]);
        }
    }
    found
}

fn end_of_call(text: &str) -> usize {
    let mut depth = 1;
    let end = text.floor_char_boundary(MAX_CALL_BYTES);
    for (at, byte) in text[..end].bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    end
}
