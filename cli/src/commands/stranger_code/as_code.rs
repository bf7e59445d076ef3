//! Whether a step runs text of a stranger, though no script holds it: a shell or an interpreter gets it as its code,
//! from a variable of the environment or from what a command prints.

use std::collections::BTreeSet;

use serde_yaml::Value;

use super::events;
use super::files::StrangerFiles;
use super::javascript;
use super::scope::{ContextReach, texts};
use super::script::scripts;
use super::shell_functions::ShellParameters;
use super::shell_names::ShellVariables;
use super::shell_text;
use super::step::{JobStep, action_path, input};

/// Variables that shells and interpreters take code or its place from.
pub const CODE_VARIABLES: [&str; 12] = [
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

/// Agents as actions; what they are told may be a stranger's orders.
const AGENT_ACTIONS: [&str; 7] = [
    "anthropics/claude-code-action",
    "anthropics/claude-code-base-action",
    "augmentcode/augment-agent",
    "google-gemini/gemini-cli-action",
    "google-github-actions/run-gemini-cli",
    "openai/codex-action",
    "sst/opencode/github",
];

/// Words that a script's commands ask for text of the event with.
const TEXTS_OF_THE_EVENT: [&str; 8] =
    ["body", "title", "message", "comments", "description", "headrefname", "head.ref", "head_ref"];

/// Ways in which a script quotes a text for a shell, or leaves nothing of it but what it expects.
const HARMLESS_PARTS: [&str; 10] = [
    "%q", "@Q}", "grep -o", "grep -Eo", "grep -Po", "grep -c", "tr -cd", "tr -dc", "| wc", "$(wc -",
];

/// Ways in which a command leaves one line of a text.
const ONE_LINE: [&str; 10] = [
    "head -1",
    "head -n1",
    "head -n 1",
    "sed -n 1p",
    "tail -1",
    "tail -n1",
    "tail -n 1",
    // It puts the words beside each other.
    "| xargs)",
    "| xargs |",
    "tr '\\n' ",
];

/// More commands before a pipe, words, calls or variables than anybody writes. They could take long to read.
pub const MAX_PARTS: usize = 200;
const MAX_CALL_BYTES: usize = 2000;

/// What a step does with text of a stranger that no script holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextUses {
    /// Runs it as code.
    pub runs: bool,
    /// Writes it where each line sets a variable for later steps.
    pub sets_variables: bool,
    /// Gives an interpreter code that names it, and of which nobody can say whether it runs it.
    pub is_unclear: bool,
}

/// `shell` is that of the step's job or workflow. Adds the files that the step writes to those of `text`.
pub fn uses_of_text(
    step: &JobStep<'_>,
    default_shell: Option<&str>,
    text: &mut StrangerText<'_>,
) -> TextUses {
    let is_agent = AGENT_ACTIONS.contains(&action_path(step.value).as_str());
    let mut uses = TextUses {
        runs: CODE_VARIABLES.iter().any(|name| text.names.contains(*name))
            || (is_agent && is_told_by_strangers(step, text)),
        ..TextUses::default()
    };
    let own = step.value.get("shell").and_then(Value::as_str).or(default_shell);
    let program = own.and_then(|shell| shell.split_whitespace().next()).unwrap_or("bash");
    let is_javascript = action_path(step.value) == "actions/github-script" || program == "node";
    for script in scripts(step.value) {
        match program {
            _ if is_javascript => uses.runs |= javascript::runs_text(&script, text),
            "cmd" => uses.runs |= text.is_in_cmd(&script),
            "python" | "python3" => uses.runs |= python_runs_text(&script, text),
            _ => {
                uses.runs |= powershell_runs_text(&script, text);
                let by_powershell = text.files.clone();
                let by_shell = shell_text::uses_of_text(&script, text);
                if program.starts_with("p") {
                    text.files.extend(by_powershell);
                }
                uses.runs |= by_shell.runs;
                uses.is_unclear |= by_shell.is_unclear;
                uses.sets_variables |= by_shell.sets_variables;
            }
        }
    }
    uses
}

/// Whether an agent is given text of the event, by its inputs, its environment or a file that they name, or works for
/// everybody.
fn is_told_by_strangers(step: &JobStep<'_>, text: &StrangerText<'_>) -> bool {
    let given: Vec<_> = ["with", "env"].iter().filter_map(|key| step.value.get(*key)).collect();
    let has_text = |value: &&Value| events::is_text(&step.scope.reach_all(value), &step.events);
    let for_all =
        input(step.value, "allowed_non_write_users").or_else(|| input(step.value, "allow-users"));
    let ends_path = |c: char| c.is_whitespace() || "\"'`()[]{},:;".contains(c);
    let names_file = |told: &String| {
        let paths = told.split(ends_path).filter(|word| word.contains(['.', '/']));
        paths.map(|path| path.trim_end_matches('.')).any(|path| text.files.holds(path))
    };
    let mut told = given.iter().flat_map(|value| texts(value));
    given.iter().any(has_text)
        || (!text.files.is_empty() && told.any(|told| names_file(&told)))
        || (for_all.is_some_and(|users| users.contains('*'))
            && step.events.iter().any(|event| events::is_caused_by_strangers(event)))
}

/// Where a script has text of a stranger.
#[derive(Debug, Clone)]
pub struct StrangerText<'a> {
    /// Variables, in lower case.
    pub names: BTreeSet<String>,
    /// Those of them that may have several lines.
    pub of_lines: BTreeSet<String>,
    pub files: StrangerFiles,
    /// Variables of later steps that a step writes it into, in lower case.
    pub exported: BTreeSet<String>,
    /// The parameters of the function of a shell that is read, or of the whole script.
    pub parameters: ShellParameters,
    /// What the script of a shell that is read says its variables are.
    pub variables: ShellVariables,
    /// Whether any of it is of somebody whose text nobody has read, as that of a merged commit was.
    pub is_unread: bool,
    pub events: &'a [String],
}

impl<'a> StrangerText<'a> {
    /// `files` and `variables` are those that earlier steps of the job wrote.
    pub fn new(step: &'a JobStep<'_>, files: StrangerFiles, variables: &BTreeSet<String>) -> Self {
        let events = &step.events;
        let named = |is: fn(&ContextReach, &[String]) -> bool| -> BTreeSet<String> {
            let of_step = step.scope.env.iter().filter(|(_, reach)| is(reach, events));
            of_step.map(|(name, _)| name.clone()).collect()
        };
        let (mut names, of_lines) = (named(events::is_text), named(events::is_lines));
        let of_strangers: Vec<_> =
            events.iter().filter(|event| events::is_by_stranger(event)).cloned().collect();
        let is_unread = files.any_lines()
            || of_strangers.iter().any(|event| events::is_caused_by_strangers(event))
            || step.scope.env.values().any(|reach| events::is_text(reach, &of_strangers));
        if is_text("github.head_ref", events) {
            names.insert("github_head_ref".to_owned());
        }
        let is_own = |name: &&String| step.scope.env.contains_key(*name);
        names.extend(variables.iter().filter(|name| !is_own(name)).cloned());
        Self {
            names,
            of_lines,
            files,
            exported: BTreeSet::new(),
            parameters: ShellParameters::new(),
            variables: ShellVariables::default(),
            is_unread,
            events,
        }
    }

    /// Whether a context of the event is text.
    pub fn is_text(&self, path: &str) -> bool {
        is_text(path, self.events)
    }

    /// Whether such a text expands in `open`, from a variable or a file. The length of one, and what is quoted for a
    /// shell, is none.
    pub fn expands_in(&self, open: &str) -> bool {
        let is_text =
            |name: String| self.names.contains(&name) || self.parameters.contains_key(&name);
        !HARMLESS_PARTS.iter().any(|part| open.contains(part))
            && (variables(open).any(is_text)
                || self.asks_for_text(open)
                || reads_file(open, |file| self.files.holds(file)))
    }

    /// Whether a text expands in `open` of which a stranger may have begun a line.
    pub fn lines_expand_in(&self, open: &str) -> bool {
        let has_lines = |name: String| {
            self.of_lines.contains(&name) || self.parameters.get(&name) == Some(&true)
        };
        !HARMLESS_PARTS.iter().any(|part| open.contains(part))
            && !leaves_one_line(open)
            && (variables(open).any(has_lines)
                || (self.asks_for_text(open)
                    && ["body", "message", "comments"].iter().any(|text| open.contains(text)))
                || reads_file(open, |file| self.files.has_lines(file)))
    }

    /// Whether a command prints text of the event.
    pub fn asks_for_text(&self, command: &str) -> bool {
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

/// The variables, in lower case, that a script of a shell makes one line of. `$BODY` beside `body=` is another one.
pub fn shortened(script: &str) -> BTreeSet<String> {
    let uses = script.split('$').skip(1);
    let used: BTreeSet<_> =
        uses.map(|rest| exact_name(rest.strip_prefix('{').unwrap_or(rest))).collect();
    let lines = script.lines().filter(|line| leaves_one_line(line)).take(MAX_PARTS);
    let names = lines.filter_map(|line| {
        let line = line.trim_start();
        let name = name_before_value(line)?;
        let exact = exact_name(line);
        let is_other = |other: &&str| *other != exact && other.eq_ignore_ascii_case(exact);
        (!used.iter().any(is_other)).then_some(name)
    });
    names.collect()
}

/// `head -1` does, and `head -10` doesn't.
pub fn leaves_one_line(open: &str) -> bool {
    ONE_LINE.iter().any(|part| {
        let mut found = open.match_indices(part);
        found.any(|(at, _)| !open[at + part.len()..].starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// Whether commands read text that a stranger may have written, from the event's file or from GitHub.
pub fn asks_for_text(commands: &str) -> bool {
    let lower = commands.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let asks = has(&["github_event_path", "api.github.com", "github_api_url"])
        || (has(&["gh "]) && has(&[" view", " api ", " list"]));
    asks && has(&TEXTS_OF_THE_EVENT)
}

/// The variables and parameters that expand in `open`, in lower case; `@` for all parameters.
pub fn variables(open: &str) -> impl Iterator<Item = String> {
    let found = open.split('$').skip(1).map(|rest| match rest.strip_prefix('{') {
        Some(rest) if is_list_of_indexes(rest) => String::new(),
        Some(rest) => name_of_variable(rest.strip_prefix('!').unwrap_or(rest)),
        // `$10` is `$1` and a zero.
        None if rest.starts_with(|c: char| c.is_ascii_digit()) => rest[..1].to_owned(),
        None => name_of_variable(rest),
    });
    found.filter(|name| !name.is_empty())
}

/// Whether what follows `${` is such as `!words[@]}`, the indexes of an array.
fn is_list_of_indexes(rest: &str) -> bool {
    let array = rest.strip_prefix('!').and_then(|rest| rest.split_once('['));
    array.is_some_and(|(name, index)| {
        first_name(name) == name.to_lowercase() && index.starts_with(['@', '*'])
    })
}

fn name_of_variable(text: &str) -> String {
    if text.starts_with(['@', '*']) { "@".to_owned() } else { first_name(text) }
}

/// Whether a substitution prints one of the files.
fn reads_file(open: &str, is_one: impl Fn(&str) -> bool) -> bool {
    open.split("$(").skip(1).any(|rest| {
        let command = rest.split(')').next().unwrap_or_default().trim_start();
        let words: Vec<_> = command
            .split(|c: char| c.is_whitespace() || "<|;&".contains(c))
            .take(MAX_PARTS)
            .collect();
        shell_text::prints_files(words[0]) && words.iter().any(|word| is_one(word))
    })
}

fn is_text(path: &str, events: &[String]) -> bool {
    let reach = ContextReach { paths: [path.to_owned()].into(), ..ContextReach::default() };
    events::is_text(&reach, events)
}

/// The name that a text starts with, in lower case.
pub fn first_name(text: &str) -> String {
    exact_name(text).to_lowercase()
}

fn exact_name(text: &str) -> &str {
    let rest = text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    &text[..text.len() - rest.len()]
}

/// The name, in lower case, that a text such as `NAME=value` begins with.
pub fn name_before_value(text: &str) -> Option<String> {
    let name = first_name(text);
    let rest = text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    (!name.is_empty() && (rest.starts_with('=') || rest.starts_with("<<"))).then_some(name)
}

/// Those that the texts in a code begin with.
pub fn names_before_values(code: &str) -> Vec<String> {
    code.split(['\'', '"', '`']).skip(1).filter_map(name_before_value).take(MAX_PARTS).collect()
}

pub fn powershell_runs_text(script: &str, text: &mut StrangerText<'_>) -> bool {
    let lower = script.to_lowercase();
    let mut names: BTreeSet<String> =
        text.names.iter().map(|name| format!("$env:{name}")).collect();
    let has = |line: &str, names: &BTreeSet<String>| {
        names.iter().any(|name| {
            let mut found = line.match_indices(name.as_str());
            found.any(|(at, _)| first_name(&line[at + name.len()..]).is_empty())
        })
    };
    let mut runs = false;
    for line in lower.lines() {
        let words: Vec<_> =
            line.split([' ', ';', '|', '(', ')', '"', '\'', ',']).take(MAX_PARTS).collect();
        let reads = words.iter().any(|word| ["get-content", "gc", "cat"].contains(word))
            && words.iter().any(|word| text.files.holds(word));
        let is_text = reads || has(line, &names);
        if let Some((name, value)) = line.split_once('=')
            && name.trim().starts_with('$')
            && names.len() < MAX_PARTS
            && (reads || has(value, &names))
        {
            names.insert(name.trim().to_owned());
        }
        if let Some(file) = powershell_output(line).filter(|_| is_text) {
            text.files.add(file, false);
        }
        if is_text && line.contains("github_env") {
            text.exported.extend(names_before_values(line));
        }
        let run = ["& ", ". "].iter().find_map(|start| line.trim_start().strip_prefix(start));
        let run = run.and_then(|rest| rest.split_whitespace().next());
        runs |= (is_text && powershell_runs(line, &words))
            || run.is_some_and(|file| text.files.holds(file));
    }
    runs
}

/// Whether a line of PowerShell runs what it has in a variable or a file.
fn powershell_runs(line: &str, words: &[&str]) -> bool {
    let line = line.trim_start();
    ["iex", "invoke-expression", "-command", "invokescript"].iter().any(|word| words.contains(word))
        || line.contains("[scriptblock]::create")
        || line.contains("cmd /c")
        || ["bash -c", "sh -c"].iter().any(|shell| line.contains(shell))
        || line.starts_with("& $")
        || line.starts_with("& \"$")
}

/// The file that a line of PowerShell writes, in lower case.
fn powershell_output(line: &str) -> Option<&str> {
    let words: Vec<_> = line.split_whitespace().take(MAX_PARTS).collect();
    let writers = ["out-file", "set-content", "add-content", "tee-object", ">", ">>"];
    let at = words.iter().position(|word| writers.contains(word))?;
    let rest = &words[at + 1..];
    let by_name =
        rest.iter().position(|word| ["-filepath", "-path", "-literalpath"].contains(word));
    match by_name {
        Some(name) => rest.get(name + 1).copied(),
        None => rest.iter().find(|word| !word.starts_with('-')).copied(),
    }
}

pub fn python_runs_text(script: &str, text: &mut StrangerText<'_>) -> bool {
    let reads = |code: &str, text: &StrangerText<'_>| {
        // If one text is quoted in another, either may be taken for the code around it.
        let mut quoted = code.split(['\'', '"', '`']).map(str::to_lowercase);
        ((code.contains("environ") || code.contains("getenv"))
            && quoted.any(|name| text.names.contains(&name)))
            || (code.contains("argv") && !text.parameters.is_empty())
            || (code.contains("read") && literals(code).any(|file| text.files.holds(file)))
    };
    let mut names = BTreeSet::new();
    for line in script.lines() {
        if let Some((name, value)) = line.split_once('=')
            && (reads(value, text) || has_name(value, &names))
        {
            names.insert(name.trim().to_lowercase());
        }
    }
    let writes = ["write", "write_text", "dump"];
    let written = writes.iter().flat_map(|name| calls_of_method(script, name));
    if written.into_iter().any(|code| reads(code, text) || has_name(code, &names)) {
        for call in ["open", "Path", "pathlib.Path"].map(|name| calls(script, name)).concat() {
            literals(call).take(1).for_each(|file| text.files.add(file, false));
        }
    }
    if script.contains("GITHUB_ENV") {
        let written = ["write", "writelines"].map(|name| calls_of_method(script, name)).concat();
        let printed = written.into_iter().chain(calls(script, "print"));
        let of_text = printed.filter(|code| reads(code, text) || has_name(code, &names));
        let exported: Vec<_> = of_text.flat_map(names_before_values).collect();
        text.exported.extend(exported);
    }
    let is_text = |code: &&str| reads(code, text) || has_name(code, &names);
    let with_shell =
        ["os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"];
    let starts = ["run", "call", "check_call", "check_output", "Popen"];
    let starts = starts.map(|name| calls(script, &format!("subprocess.{name}"))).concat();
    let by_shell = with_shell.map(|name| calls(script, name)).concat();
    ["eval", "exec"].iter().any(|name| calls(script, name).iter().any(&is_text))
        || by_shell.iter().any(&is_text)
        || starts.iter().filter(|code| code.contains("shell=True")).any(&is_text)
        || starts.iter().chain(&by_shell).any(|code| runs_file(code, text))
}

/// Whether the fixed words of a call are a command that runs a file with text of a stranger.
pub fn runs_file(arguments: &str, text: &StrangerText<'_>) -> bool {
    let command: Vec<_> = literals(arguments).take(MAX_PARTS).collect();
    let nothing = BTreeSet::new();
    let mut text = StrangerText { names: nothing.clone(), of_lines: nothing, ..text.clone() };
    !text.files.is_empty() && shell_text::uses_of_text(&command.join(" "), &mut text).runs
}

/// The fixed texts of code.
pub fn literals(code: &str) -> impl Iterator<Item = &str> {
    code.split(['\'', '"', '`']).skip(1).step_by(2)
}

/// The arguments of each call of a method, whatever it is called on.
fn calls_of_method<'a>(script: &'a str, name: &str) -> Vec<&'a str> {
    let call = format!(".{name}(");
    let found = script.match_indices(&call).take(MAX_PARTS);
    found
        .map(|(at, _)| {
            let rest = &script[at + call.len()..];
            &rest[..end_of_call(rest)]
        })
        .collect()
}

pub fn has_name(text: &str, names: &BTreeSet<String>) -> bool {
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

/// Where the bracket closes that is open.
pub fn end_of_call(text: &str) -> usize {
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
