//! What commands of a shell do with text of a stranger: run it, hand it on by variables and files, or set variables
//! of later steps by it.

use std::collections::BTreeSet;

use super::arguments;
use super::as_code::{self, MAX_PARTS, StrangerText, TextUses, first_name, has_name};
use super::events;
use super::javascript;
use super::script::{is_one_value, sets_several_outputs};
use super::shell::{self, ShellCommand, ShellWord};
use super::shell_functions::{ShellFunctions, ShellParameters, parameters};
use super::shell_names::{self, ShellVariables};

/// Programs that run a text that they are given or read, with the letters of the options for it.
const INTERPRETERS: [(&str, &str); 32] = [
    ("Rscript", "e"),
    ("ash", "c"),
    ("clickhouse-client", "q"),
    ("csh", "c"),
    ("elixir", "e"),
    ("fish", "c"),
    ("julia", "eE"),
    ("lua", "e"),
    ("luajit", "e"),
    ("mariadb", "e"),
    ("mongosh", ""),
    ("mysql", "e"),
    ("osascript", "e"),
    ("psql", "c"),
    ("tcsh", "c"),
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
    // Its `eval` is a verb.
    ("deno", ""),
    ("php", "r"),
    ("pwsh", "cC"),
    ("powershell", "cC"),
];

/// Clients of databases, whose languages start programs, too. They read their input beside other operands.
const DATABASES: [&str; 5] = ["clickhouse-client", "mariadb", "mongosh", "mysql", "psql"];

/// Words of Perl, PHP, Python, R, Ruby, Lua and JavaScript that run a text.
const RUNS_TEXT: &[&str] = &[
    "Command",
    "Function",
    "child_process",
    "class_eval",
    "compile",
    "dofile",
    "eval",
    "exec",
    "execSync",
    "getoutput",
    "instance_eval",
    "loadstring",
    "passthru",
    "popen",
    "proc_open",
    "qx",
    "shell_exec",
    "spawn",
    "spawnSync",
    "subprocess",
    "system",
    "system2",
    "vm",
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

/// Words before a command that leave it what it is.
const BEFORE_COMMANDS: [&str; 23] = [
    "!", "{", "builtin", "bunx", "command", "do", "elif", "else", "env", "exec", "if", "nice",
    "nohup", "npx", "sudo", "stdbuf", "then", "time", "timeout", "until", "uvx", "while",
    "xvfb-run",
];

/// Programs that print what a file or their input has.
const PRINTS_FILES: [&str; 17] = [
    "awk", "base64", "cat", "cut", "envsubst", "grep", "head", "jq", "sed", "sort", "tac", "tail",
    "tee", "tr", "uniq", "xargs", "yq",
];

/// Those of them that leave each line as it is.
const KEEPS_LINES: [&str; 8] = ["cat", "envsubst", "head", "sort", "tac", "tail", "tee", "uniq"];

/// Ends of compound commands, whose output is that of all their parts, and how these begin.
const COMPOUNDS: [(&str, &[&str]); 5] = [
    (")", &[]),
    ("}", &["{"]),
    ("done", &["for", "while", "until"]),
    ("fi", &["if"]),
    ("esac", &["case"]),
];

const MAX_COMMANDS: usize = 3000;
/// Commands of a pipe and of a compound command that are read back. More could take long.
const MAX_PIPE: usize = 20;
const MAX_COMPOUND: usize = 50;

/// Adds the files that the script writes to those of `text`.
pub fn uses_of_text(script: &str, text: &mut StrangerText<'_>) -> TextUses {
    let may_have_text = !(text.names.is_empty() && text.files.is_empty())
        || text.events.iter().any(|event| events::is_caused_by_strangers(event));
    if !may_have_text {
        return TextUses::default();
    }
    let mut commands = shell::commands(script);
    commands.truncate(MAX_COMMANDS);
    let mut here = StrangerText { variables: ShellVariables::new(&commands), ..text.clone() };
    let shortened = as_code::shortened(script);
    here.of_lines.retain(|name| !shortened.contains(name));
    let mut functions = ShellFunctions::new(&commands, text.parameters.clone());
    // What a variable gets from another one may have been written before that one; a function is written before its use.
    for _ in 0..3 {
        for at in 0..commands.len() {
            here.parameters = functions.parameters(at);
            functions.call(&commands[at], at, &here);
            assign(&commands, at, &mut here);
            write_files(&commands, at, &mut here);
        }
    }
    here.files.extend(std::mem::take(&mut text.files));
    let into_outputs = sets_several_outputs(script);
    let is_one_value = is_one_value(script);
    let mut uses = TextUses::default();
    for at in 0..commands.len() {
        here.parameters = functions.parameters(at);
        uses.runs |= command_runs_text(&commands, at, &here);
        let by_code = uses_by_code(&commands[at].words, &here);
        uses.runs |= by_code.runs || input_runs_text(&commands[at], &here);
        uses.is_unclear |= by_code.is_unclear;
        uses.sets_variables |= !is_one_value && sets_variables(&commands, at, &here, into_outputs);
        write_files(&commands, at, &mut here);
        here.exported.extend(exported(&commands[at], script, &here));
    }
    text.files = here.files;
    text.exported = here.exported;
    uses
}

/// Whether a program prints what a file has; none is named in `$(< file)`.
pub fn prints_files(name: &str) -> bool {
    name.is_empty() || PRINTS_FILES.contains(&program(name).as_str())
}

/// Adds the variables that get text of a stranger by a command.
fn assign(commands: &[ShellCommand], at: usize, text: &mut StrangerText<'_>) {
    let is_fed = || printed_to(commands, at, text).is_some();
    let found = assigned(&commands[at], |open| text.expands_in(open), is_fed);
    // What `read` gets is one line.
    let of_lines = assigned(&commands[at], |open| text.lines_expand_in(open), || false);
    text.names.extend(found);
    text.of_lines.extend(of_lines);
}

fn assigned(
    command: &ShellCommand,
    expands: impl Fn(&str) -> bool,
    is_fed: impl Fn() -> bool,
) -> Vec<String> {
    let words = bare(&command.words);
    let first = words.first().map_or("", |word| word.text.as_str());
    match first {
        "for" => match words {
            [_, name, _, values @ ..] if values.iter().any(|word| expands(&word.open)) => {
                vec![name.text.to_lowercase()]
            }
            _ => vec![],
        },
        "read" | "mapfile" | "readarray" if is_fed() => {
            let names = words[1..].iter().filter(|word| !word.text.starts_with('-'));
            names.map(|word| word.text.to_lowercase()).collect()
        }
        _ => {
            let gets = words.iter().filter_map(|word| {
                let (name, value) = word.open.split_once('=')?;
                let name = name.strip_suffix('+').unwrap_or(name);
                (first_name(name) == name.to_lowercase() && expands(value))
                    .then(|| name.to_lowercase())
            });
            gets.collect()
        }
    }
}

/// Whether a command reads text of a stranger: `None` if not, else whether a stranger may have begun a line of it.
fn printed_to(commands: &[ShellCommand], at: usize, text: &StrangerText<'_>) -> Option<bool> {
    let mut found = redirected_to(&commands[at], text);
    let name = name_of(&commands[at]);
    if ["read", "mapfile", "readarray"].contains(&name.as_str()) {
        // The whole loop is given it.
        let end = commands[at..].iter().take(MAX_PARTS).find(|command| name_of(command) == "done");
        found = found.max(end.and_then(|end| {
            let by_process = end.words.iter().any(|word| text.expands_in(&word.open));
            redirected_to(end, text).max(by_process.then_some(false))
        }));
    }
    let mut keeps_lines = true;
    let mut is_piped = commands[at].is_piped;
    for before in (0..at).rev().take(MAX_PIPE) {
        if !is_piped {
            break;
        }
        let printed = printed_itself(commands, before, text);
        found = found.max(printed.map(|begins| begins && keeps_lines));
        keeps_lines &= keeps_its_lines(&name_of(&commands[before]));
        is_piped = commands[before].is_piped;
    }
    found
}

/// Whether a command reads text of strangers by `<`, `<<` or `<<<`, in the form of [`printed_to`].
fn redirected_to(command: &ShellCommand, text: &StrangerText<'_>) -> Option<bool> {
    let input = &command.input;
    let by_input = text.expands_in(input).then(|| {
        let begins = |line: &str| line.starts_with('$') && text.expands_in(line);
        text.lines_expand_in(input) || input.lines().any(begins)
    });
    let files = command.reads.iter().filter(|file| text.files.holds(file));
    by_input.max(files.map(|file| text.files.has_lines(file)).max())
}

/// What a command prints of its own words and files, as [`printed_to`] says it.
fn printed_alone(command: &ShellCommand, text: &StrangerText<'_>) -> Option<bool> {
    let words = bare(&command.words);
    let name = name_of(command);
    let all: Vec<_> = command.words.iter().map(|word| word.text.as_str()).collect();
    let asks = text.asks_for_text(&all.join(" ")).then(|| {
        let is_whole = |word: &&str| word.starts_with('.') && !word.contains([' ', '+']);
        all.iter().any(is_whole)
    });
    let is_text = |word: &&ShellWord| text.expands_in(&word.open);
    let by_words = command.words.iter().any(|word| is_text(&word)).then(|| {
        let mut operands = words.iter().skip(1).filter(|word| !word.text.starts_with('-'));
        let first = operands.next();
        let begins = match name.as_str() {
            "echo" => first.is_some_and(|word| word.open.starts_with('$') && is_text(&word)),
            "printf" => first.is_some_and(|format| {
                format.text.starts_with("%s") || format.text.contains("\\n%s")
            }),
            _ => false,
        };
        begins || words.iter().any(|word| text.lines_expand_in(&word.open))
    });
    let by_files = (!name.is_empty() && prints_files(&name)).then(|| {
        let files = words.iter().skip(1).filter(|word| text.files.holds(&word.text));
        let keeps_lines = KEEPS_LINES.contains(&name.as_str());
        files.map(|word| keeps_lines && text.files.has_lines(&word.text)).max()
    });
    let kept = redirected_to(command, text).map(|begins| begins && keeps_its_lines(&name));
    let by_environment = environment_printed(command, text);
    asks.max(by_words).max(by_files.flatten()).max(kept).max(by_environment)
}

/// What a program prints of the variables that it has from its environment, as [`printed_to`] says it.
fn environment_printed(command: &ShellCommand, text: &StrangerText<'_>) -> Option<bool> {
    if let [alone] = &command.words[..]
        && ["env", "printenv"].contains(&program(&alone.text).as_str())
    {
        return (!text.names.is_empty()).then_some(true);
    }
    let name = name_of(command);
    let mut given = bare(&command.words).iter().skip(1).map(|word| word.text.as_str());
    match name.as_str() {
        "printenv" => given.any(|name| text.names.contains(&name.to_lowercase())).then_some(true),
        // It fills in all variables, or those that its first operand names.
        "envsubst" => {
            let chosen = given.find(|word| !word.starts_with('-'));
            let fills_in = |names: &BTreeSet<String>| match chosen {
                Some(chosen) => as_code::variables(chosen).any(|name| names.contains(&name)),
                None => !names.is_empty(),
            };
            fills_in(&text.names).then(|| fills_in(&text.of_lines))
        }
        _ if reads_environment(&name) => {
            let code = code_of(command);
            let is_named = code.to_lowercase().contains("env") && has_name(&code, &text.names);
            // What jq prints is one line unless it is told to print the text itself.
            let is_raw = given.any(|word| word.starts_with('-') && word.contains('r'));
            let may_begin = is_raw || !["jq", "yq"].contains(&name.as_str());
            is_named.then(|| may_begin && has_name(&code, &text.of_lines))
        }
        _ => None,
    }
}

/// Whether a program may be given code that reads variables of its environment.
fn reads_environment(name: &str) -> bool {
    const FILTERS: [&str; 5] = ["awk", "gawk", "jq", "mawk", "yq"];
    const SHELLS: [&str; 8] = ["sh", "ash", "bash", "dash", "zsh", "ksh", "su", "flock"];
    FILTERS.contains(&name)
        || (INTERPRETERS.iter().any(|(known, _)| *known == name) && !SHELLS.contains(&name))
}

/// All code that a command may give its program.
fn code_of(command: &ShellCommand) -> String {
    let words = command.words.iter().map(|word| word.text.as_str());
    let all: Vec<_> = words.chain([command.fixed_input.as_str()]).collect();
    all.join("\n")
}

/// What a command prints, or all parts of a compound one, without what is piped into it.
fn printed_itself(commands: &[ShellCommand], at: usize, text: &StrangerText<'_>) -> Option<bool> {
    let Some((_, starts)) = COMPOUNDS.iter().find(|(end, _)| *end == name_of(&commands[at])) else {
        return printed_alone(&commands[at], text);
    };
    let mut found = redirected_to(&commands[at], text);
    for part in commands[..at].iter().rev().take(MAX_COMPOUND) {
        found = found.max(printed_alone(part, text));
        if part.words.first().is_some_and(|word| starts.contains(&word.text.as_str())) {
            break;
        }
    }
    found
}

/// What a command prints, as [`printed_to`] says it.
fn printed(commands: &[ShellCommand], at: usize, text: &StrangerText<'_>) -> Option<bool> {
    let piped = printed_to(commands, at, text);
    let keeps_lines = keeps_its_lines(&name_of(&commands[at]));
    printed_itself(commands, at, text).max(piped.map(|begins| begins && keeps_lines))
}

fn keeps_its_lines(name: &str) -> bool {
    KEEPS_LINES.contains(&name) || COMPOUNDS.iter().any(|(end, _)| *end == name)
}

/// Adds the files that a command writes text of a stranger into, and forgets those that it writes anew.
fn write_files(commands: &[ShellCommand], at: usize, text: &mut StrangerText<'_>) {
    let command = &commands[at];
    let words = bare(&command.words);
    let name = name_of(command);
    let operands = words.iter().skip(1).filter(|word| !word.text.starts_with('-'));
    let operands: Vec<_> = operands.map(|word| word.text.clone()).collect();
    if ["cp", "mv", "ln", "install"].contains(&name.as_str()) {
        let Some((target, sources)) = operands.split_last() else { return };
        let from_input = sources.iter().any(|file| file == "/dev/stdin");
        let by_input = printed_to(commands, at, text).filter(|_| from_input);
        let sources = sources.iter().filter(|file| text.files.holds(file));
        let by_file = sources.map(|file| text.files.has_lines(file)).max();
        if let Some(begins) = by_file.max(by_input) {
            text.files.add(target, begins);
        }
        return;
    }
    let appends = words.iter().any(|word| ["-a", "--append"].contains(&word.text.as_str()));
    let mut written: Vec<_> =
        command.writes.iter().map(|output| (output.file.clone(), output.appends)).collect();
    if ["sponge", "tee"].contains(&name.as_str()) {
        written.extend(operands.into_iter().map(|file| (file, appends)));
    } else if name == "dd" {
        let files = operands.iter().filter_map(|word| word.strip_prefix("of="));
        written.extend(files.map(|file| (file.to_owned(), false)));
    }
    if ["curl", "wget"].contains(&name.as_str()) {
        let file = after(words, &["-o", "--output", "-O", "--output-document"]);
        written.extend(file.map(|file| (file.text.clone(), false)));
    }
    if written.is_empty() {
        return;
    }
    let printed = printed(commands, at, text);
    for (file, appends) in written {
        match printed {
            Some(begins) => text.files.add(&file, begins && text.is_unread),
            None if !appends => text.files.remove(&file),
            None => {}
        }
    }
}

/// Whether a stranger may begin a line of what a command writes into a file of the runner's by which each line sets a
/// variable, a folder of programs, or one of several outputs.
fn sets_variables(
    commands: &[ShellCommand],
    at: usize,
    text: &StrangerText<'_>,
    into_outputs: bool,
) -> bool {
    let command = &commands[at];
    let by_tee = (name_of(command) == "tee").then_some(&command.words);
    let by_tee = by_tee.into_iter().flatten().map(|word| word.text.as_str());
    let mut files = command.writes.iter().map(|output| output.file.as_str()).chain(by_tee);
    let is_runners = |file: &str| {
        let outputs = into_outputs && file.contains("GITHUB_OUTPUT");
        outputs || file.contains("GITHUB_ENV") || file.contains("GITHUB_PATH")
    };
    files.any(is_runners) && text.is_unread && printed(commands, at, text) == Some(true)
}

/// The variables of later steps that a command writes text of a stranger into, such as by
/// `echo "TITLE=$TITLE" >> "$GITHUB_ENV"`, alone or in a group of commands, or by code that it gives to an interpreter.
fn exported(command: &ShellCommand, script: &str, text: &StrangerText<'_>) -> Vec<String> {
    let mut files = command.writes.iter().map(|output| output.file.as_str());
    let is_written = match command.writes.is_empty() {
        true => script.contains("GITHUB_ENV"),
        false => files.any(|file| file.contains("GITHUB_ENV")),
    };
    if !is_written {
        return vec![];
    }
    if ["echo", "printf"].contains(&name_of(command).as_str()) {
        let words = &bare(&command.words)[1..];
        let is_text = words.iter().any(|word| text.expands_in(&word.open));
        let first = words.iter().find(|word| is_text && !word.text.starts_with('-'));
        let name = first.and_then(|first| as_code::name_before_value(&first.text));
        return name.into_iter().collect();
    }
    let lines = command.input.lines().filter(|line| text.expands_in(line));
    let by_input = lines.filter_map(as_code::name_before_value);
    let code = environment_printed(command, text).map(|_| code_of(command)).unwrap_or_default();
    by_input.chain(as_code::names_before_values(&code)).collect()
}

pub fn name_of(command: &ShellCommand) -> String {
    bare(&command.words).first().map_or(String::new(), |word| program(&word.text))
}

/// A command without what comes before its name.
pub fn bare(mut words: &[ShellWord]) -> &[ShellWord] {
    let mut after_sudo = false;
    while let [first, rest @ ..] = words {
        let is_assignment = first.text.split_once('=').is_some_and(|(name, _)| {
            let name = name.strip_suffix('+').unwrap_or(name);
            !name.is_empty() && first_name(name) == name.to_lowercase()
        });
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

/// The first word that isn't an option or an option's value. `skipped`: options that take values, and how many.
fn operand<'a>(words: &'a [ShellWord], skipped: &[(&str, usize)]) -> Option<&'a ShellWord> {
    let mut rest = words.iter();
    loop {
        let word = rest.next()?;
        match skipped.iter().find(|(option, _)| *option == word.text) {
            Some((_, n)) => rest.by_ref().take(*n).for_each(drop),
            None if word.text.starts_with('-') || word.text.is_empty() => {}
            None => return Some(word),
        }
    }
}

/// Whether the first word of a command is text of a stranger, so that it chooses the program.
fn is_program_of_strangers(open: &str, text: &StrangerText<'_>) -> bool {
    if ["$@", "$*", "${@", "${*"].iter().any(|all| open.starts_with(all)) {
        return text.parameters.contains_key("1");
    }
    open.starts_with('$') && text.expands_in(open) && !text.variables.is_led_array(open)
}

fn command_runs_text(commands: &[ShellCommand], at: usize, text: &StrangerText<'_>) -> bool {
    let all = &commands[at].words;
    let numbers = || assigned(&commands[at], |open| text.expands_in(open), || false);
    if shell_names::evaluates_text(&commands[at], text) || text.variables.have_number(&numbers()) {
        return true;
    }
    let words = bare(all);
    let Some(first) = words.first() else { return false };
    if is_program_of_strangers(&first.open, text) {
        return true;
    }
    if first.text.contains(['/', '$']) && text.files.holds(&first.text) {
        return true;
    }
    if arguments::run_text(words, text) {
        return true;
    }
    let has_text = |words: &[ShellWord]| words.iter().any(|word| text.expands_in(&word.open));
    let name = program(&first.text);
    let operand = |skipped: &[(&str, usize)]| operand(&words[1..], skipped);
    let is_run = |word: Option<&ShellWord>| word.is_some_and(|word| text.expands_in(&word.open));
    let is_file = |word: Option<&ShellWord>| word.is_some_and(|word| text.files.holds(&word.text));
    if ["sed", "awk", "gawk", "mawk", "jq", "yq", "make", "gmake"].contains(&name.as_str())
        && is_file(after(words, &["-f", "--file", "--from-file", "--makefile"]))
    {
        return true;
    }
    match name.as_str() {
        "echo" | "printf" | "cat" => false,
        "source" | "." if is_file(operand(&[])) => true,
        "eval" | "source" | "." | "trap" | "watch" => has_text(&words[1..]),
        // The first operand is its file.
        "sqlite3" => {
            has_text(words.get(2..).unwrap_or_default()) || printed_to(commands, at, text).is_some()
        }
        "script" => words.windows(2).any(|two| {
            let option = two[0].text.strip_prefix('-');
            option.is_some_and(|letters| letters.ends_with('c')) && is_run(Some(&two[1]))
        }),
        "find" if is_run(after(words, &["-exec", "-execdir", "-ok", "-okdir"])) => true,
        "xargs"
            if arguments::xargs_adds_words(words) && printed_to(commands, at, text).is_some() =>
        {
            true
        }
        "parallel" if operand(&[("-j", 1)]).is_none() => printed_to(commands, at, text).is_some(),
        "[[" => {
            let of_numbers = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];
            words.windows(3).any(|three| {
                of_numbers.contains(&three[1].text.as_str())
                    && (is_run(Some(&three[0])) || is_run(Some(&three[2])))
            })
        }
        // All words after the host are put together, and run there.
        "ssh" => {
            let remote = remote_command(&words[1..]);
            let is_fed = || printed_to(commands, at, text).is_some();
            has_text(remote)
                || (remote.is_empty() && is_fed())
                || interpreters_run_text(remote, false, text, is_fed)
        }
        "sed" => is_run(after(words, &["-e", "--expression"]).or_else(|| operand(&[("-f", 1)]))),
        "awk" | "gawk" | "mawk" => {
            let code = operand(&[("-v", 1), ("-F", 1), ("-f", 1)]);
            let starts_it = |code: &ShellWord| {
                ["system(", "getline"].iter().any(|part| code.text.contains(part))
                    && environment_printed(&commands[at], text).is_some()
            };
            // By `-v`, a file or its input.
            let has_any = || {
                has_text(&words[1..])
                    || words[1..].iter().any(|word| text.files.holds(&word.text))
                    || printed_to(commands, at, text).is_some()
            };
            let starts_any = |code: &ShellWord| {
                ["system(", "| \"sh", "| \"bash"].iter().any(|part| code.text.contains(part))
                    && has_any()
            };
            is_run(code)
                || code.is_some_and(|code| starts_it(code) || starts_any(code))
                || is_run(after(words, &["-e", "--source"]))
        }
        "jq" | "yq" => {
            let named =
                ["--arg", "--argjson", "--slurpfile", "--rawfile"].map(|option| (option, 2));
            is_run(operand(&[&named[..], &[("--indent", 1), ("-L", 1)]].concat()))
        }
        "gh" => is_run(after(words, &["-q", "--jq"])),
        // A word may be `--eval=…` or set what a rule runs.
        "make" | "gmake" => words[1..].iter().any(|word| {
            let may_be_option = word.open.contains('=') || word.open.starts_with('$');
            may_be_option && text.expands_in(&word.open)
        }),
        agent if AGENTS.contains(&agent) => {
            has_text(words) || printed_to(commands, at, text).is_some()
        }
        _ => interpreters_run_text(words, all.len() > words.len(), text, || {
            printed_to(commands, at, text).is_some()
        }),
    }
}

/// The words of `ssh` after its host, which are a command there. Without any, a shell reads what `ssh` is fed.
fn remote_command(words: &[ShellWord]) -> &[ShellWord] {
    const WITH_VALUES: [&str; 20] = [
        "-B", "-b", "-c", "-D", "-E", "-e", "-F", "-I", "-i", "-J", "-L", "-l", "-m", "-O", "-o",
        "-p", "-Q", "-R", "-S", "-W",
    ];
    let mut at = 0;
    while let Some(option) = words.get(at).filter(|word| word.text.starts_with('-')) {
        at += 1 + usize::from(WITH_VALUES.contains(&option.text.as_str()));
    }
    words.get(at + 1..).unwrap_or_default()
}

/// Whether an interpreter gets text of a stranger as its code or a file with it, also behind `xargs`, `docker run` and
/// the like. `is_behind` says that `sudo` or such stood before the words.
fn interpreters_run_text(
    words: &[ShellWord],
    is_behind: bool,
    text: &StrangerText<'_>,
    is_fed: impl Fn() -> bool,
) -> bool {
    let words = &words[..words.len().min(MAX_PARTS)];
    words.iter().enumerate().any(|(at, word)| {
        let name = program(&word.text);
        let Some((_, letters)) = INTERPRETERS.iter().find(|(known, _)| *known == name) else {
            return false;
        };
        let rest = &words[at + 1..];
        let is_option = |word: &&ShellWord| is_option(word);
        if let Some(place) = place_of_code(&name, letters, rest) {
            let code = rest.get(place);
            // Without code of its own it takes the first word of what it is fed.
            let is_open =
                code.is_none_or(|code| code.text.contains("{}") || code.text.contains('%'));
            let from_xargs = || {
                let file = after(words, &["-a", "--arg-file"]);
                words[..at].iter().any(|word| program(&word.text) == "xargs")
                    && is_open
                    && (is_fed() || file.is_some_and(|file| text.files.holds(&file.text)))
            };
            return code.is_some_and(|code| text.expands_in(&code.open)) || from_xargs();
        }
        let is_process = |word: &ShellWord| word.text.starts_with("<(");
        let in_option = ["--command=", "--eval=", "--execute=", "--query="];
        let is_code = |word: &ShellWord| {
            let by_name = in_option.iter().any(|option| word.text.starts_with(option));
            by_name && text.expands_in(&word.open)
        };
        let is_database = DATABASES.contains(&name.as_str())
            && after(rest, &["-f", "--file", "--queries-file"]).is_none();
        let reads = is_database || rest.iter().all(|word| is_option(&word) || is_process(word));
        let by_process = rest.iter().any(|word| is_process(word) && text.expands_in(&word.open));
        let hands_on = ["docker", "podman", "kubectl", "chroot", "nsenter"];
        let is_program = at == 0
            || (is_behind && at == 1)
            || hands_on.contains(&program(&words[0].text).as_str());
        let file = rest.iter().find(|word| !is_option(word));
        let is_file = file.is_some_and(|file| text.files.holds(&file.text));
        by_process || rest.iter().any(is_code) || (is_program && (is_file || (reads && is_fed())))
    })
}

fn is_option(word: &ShellWord) -> bool {
    word.text.starts_with('-') || word.text == "pipefail"
}

/// Where the words after an interpreter's name have its code, which may be missing there.
fn place_of_code(name: &str, letters: &str, rest: &[ShellWord]) -> Option<usize> {
    if name == "deno" {
        let verb = rest.iter().position(|word| word.text == "eval")?;
        return Some(verb + 1 + rest[verb + 1..].iter().take_while(|word| is_option(word)).count());
    }
    let options = match name {
        // The user, the file or the host comes before them.
        "su" | "flock" => rest.len(),
        _ if DATABASES.contains(&name) => rest.len(),
        _ => rest.iter().take_while(|word| is_option(word)).count(),
    };
    let is_for_code = |word: &ShellWord| {
        let option = word.text.trim_start_matches('-').to_lowercase();
        match word.text.starts_with("--") {
            true => ["command", "eval", "execute", "print", "query"].contains(&option.as_str()),
            false if word.text.starts_with('-') => {
                option == "command"
                    || (option.len() < 6 && word.text.contains(|c| letters.contains(c)))
            }
            false => false,
        }
    };
    Some(rest[..options].iter().position(is_for_code)? + 1)
}

/// What the code does that a command gives interpreters by `-c` and the like, where no shell fills anything in.
fn uses_by_code(words: &[ShellWord], text: &StrangerText<'_>) -> TextUses {
    let words = &words[..words.len().min(MAX_PARTS)];
    let mut uses = TextUses::default();
    for (at, word) in words.iter().enumerate() {
        let name = program(&word.text);
        let known = INTERPRETERS.iter().find(|(known, _)| *known == name);
        let Some((_, letters)) = known else { continue };
        let rest = &words[at + 1..];
        let place = place_of_code(&name, letters, rest);
        let Some(place) = place.filter(|place| *place < rest.len()) else { continue };
        // A shell calls the first word behind its code `$0`.
        let given = parameters(&rest[place + 1..], 0, text);
        let by_code = code_uses_text(&name, &rest[place].text, given, text);
        uses.runs |= by_code.runs;
        uses.is_unclear |= by_code.is_unclear;
    }
    uses
}

/// Whether an interpreter is given code by `<<'END'` that runs text of a stranger.
fn input_runs_text(command: &ShellCommand, text: &StrangerText<'_>) -> bool {
    let code = &command.fixed_input;
    let Some((first, rest)) = bare(&command.words).split_first() else { return false };
    let name = program(&first.text);
    let reads_code = rest.iter().all(is_option)
        || rest.iter().any(|word| ["-", "-s"].contains(&word.text.as_str()));
    // Such a text in such a text could be as deep as the script is long.
    let is_read = reads_code && !code.is_empty() && !code.contains("<<");
    let given = || {
        let options = rest.iter().take_while(|word| is_option(word)).count();
        parameters(&rest[options..], 1, text)
    };
    is_read
        && INTERPRETERS.iter().any(|(known, _)| *known == name)
        && code_uses_text(&name, code, given(), text).runs
}

/// `given` are the arguments of the code.
fn code_uses_text(
    program: &str,
    code: &str,
    given: ShellParameters,
    text: &StrangerText<'_>,
) -> TextUses {
    let mut here = StrangerText { parameters: given, ..text.clone() };
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let lower = code.to_lowercase();
    let runs_any = code.split(|c| !is_part(c)).any(|word| RUNS_TEXT.contains(&word))
        // A text of JavaScript.
        || (code.contains('`') && !["node", "nodejs", "bun", "deno"].contains(&program))
        // `execute` alone is mostly a method that gives a database values beside its statement.
        || ["import(", "os.execute"].iter().any(|part| code.contains(part));
    let may_run = runs_any && has_name(code, &text.names) && lower.contains("env");
    let by_argument = runs_any && !here.parameters.is_empty() && lower.contains("arg");
    let runs = match program {
        "sh" | "ash" | "bash" | "dash" | "zsh" | "ksh" => return uses_of_text(code, &mut here),
        // Many commands may hand it the same code.
        "su" | "flock" => return TextUses::default(),
        "pwsh" | "powershell" => as_code::powershell_runs_text(code, &mut here),
        "python" => as_code::python_runs_text(&code.replace(';', "\n"), &mut here),
        "node" | "nodejs" | "bun" | "deno" => javascript::runs_text(code, &mut here),
        // All others are read as words only.
        _ => may_run || by_argument,
    };
    TextUses { runs, is_unclear: may_run && !runs, ..TextUses::default() }
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

pub fn after<'a>(words: &'a [ShellWord], options: &[&str]) -> Option<&'a ShellWord> {
    let at = words.iter().position(|word| options.contains(&word.text.as_str()))?;
    words.get(at + 1)
}
