//! Scripts for `actions/github-script`: where they have text of the event, and whether they run it.

use std::collections::BTreeMap;

use super::as_code::{MAX_PARTS, StrangerText, calls, first_name, literals, runs_file};

const PAYLOAD: &str = "context.payload";

/// Functions of JavaScript and of strings whose result has none of the text.
const TELLING: [&str; 10] = [
    "startswith",
    "endswith",
    "includes",
    "length",
    "indexof",
    "test",
    "some",
    "every",
    "match",
    "search",
];

/// Whether a script runs text of a stranger: as JavaScript, as a command of a shell, or as a program.
pub fn runs_text(script: &str, tainted: &mut StrangerText<'_>) -> bool {
    let names = names(script);
    write_files(script, &names, tainted);
    let tainted = &*tainted;
    let has_text = |code: &str| {
        paths(code, &names).iter().any(|path| tainted.is_text(path))
            || reads_variable(code, tainted)
    };
    let evaluates =
        ["eval", "new Function", "Function", "vm.runInNewContext", "vm.runInThisContext"];
    if evaluates.iter().any(|name| calls(script, name).iter().any(|code| has_text(code))) {
        return true;
    }
    let is_file = |code: &&str| literals(code).any(|file| tainted.files.holds(file));
    if ["require", "import"].iter().any(|name| calls(script, name).iter().any(is_file)) {
        return true;
    }
    // The first argument is a command line or a program.
    let starts = [
        "exec.exec",
        "exec.getExecOutput",
        "exec",
        "execSync",
        "spawn",
        "spawnSync",
        "execFile",
        "execFileSync",
        "child_process.exec",
        "child_process.execSync",
        "child_process.spawn",
        "child_process.spawnSync",
        "require('child_process').exec",
        "require('child_process').execSync",
        "require(\"child_process\").exec",
        "require(\"child_process\").execSync",
    ];
    starts.iter().any(|name| {
        calls(script, name).iter().any(|arguments| {
            let by_shell = arguments.contains("shell: true")
                || ["'-c'", "\"-c\"", "'-lc'", "\"-lc\""]
                    .iter()
                    .any(|part| arguments.contains(part));
            has_text(first_argument(arguments))
                || (by_shell && has_text(arguments))
                || runs_file(arguments, tainted)
        })
    })
}

/// Adds the files that a script writes text of a stranger into.
fn write_files(script: &str, names: &BTreeMap<String, String>, tainted: &mut StrangerText<'_>) {
    let writes = ["writeFile", "writeFileSync", "appendFile", "appendFileSync"];
    let modules = ["", "fs.", "fs.promises.", "fsp.", "require('fs').", "require(\"fs\")."];
    let written = writes.iter().flat_map(|name| modules.map(|module| format!("{module}{name}")));
    for arguments in written.flat_map(|name| calls(script, &name)) {
        let file = first_argument(arguments);
        let rest = &arguments[file.len()..];
        let is_text = paths(rest, names).iter().any(|path| tainted.is_text(path))
            || reads_variable(rest, tainted);
        if let Some(file) = literals(file).last().filter(|_| is_text) {
            tainted.files.add(file, false);
        }
    }
}

/// The parts of the event that a script returns or sets as outputs, as the contexts of expressions.
pub fn outputs(script: &str) -> Vec<String> {
    let names = names(script);
    let returned =
        script.split("return ").skip(1).map(|rest| rest.split([';', '\n']).next().unwrap_or(""));
    let set = ["core.setOutput", "core.exportVariable"].map(|name| calls(script, name)).concat();
    returned.chain(set).flat_map(|code| paths(code, &names)).collect()
}

/// Up to the comma that isn't in brackets or in a text.
fn first_argument(arguments: &str) -> &str {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in arguments.char_indices() {
        match (c, quote) {
            ('\'' | '"' | '`', None) => quote = Some(c),
            (_, Some(open)) if open == c => quote = None,
            ('(' | '[' | '{', None) => depth += 1,
            (')' | ']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => return &arguments[..at],
            _ => {}
        }
    }
    arguments
}

fn reads_variable(code: &str, tainted: &StrangerText<'_>) -> bool {
    code.split("process.env").skip(1).any(|rest| {
        let name = rest.trim_start_matches(['.', '?', '[', '\'', '"']);
        tainted.names.contains(&first_name(name))
    })
}

/// The variables of a script that stand for parts of the event.
fn names(script: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::from([(PAYLOAD.to_owned(), "github.event".to_owned())]);
    for line in script.split(['\n', ';']) {
        if names.len() > MAX_PARTS {
            break;
        }
        let Some((left, right)) = line.split_once('=') else { continue };
        let left = left.trim().trim_start_matches("const ").trim_start_matches("let ");
        let left = left.trim_start_matches("var ").trim();
        let right = right.trim();
        let found = paths(right, &names);
        let whole = (right == "context").then(|| "github".to_owned());
        let Some(path) = found.into_iter().next().or(whole) else { continue };
        match left.strip_prefix('{') {
            Some(inner) => {
                for part in inner.trim_end_matches('}').split(',') {
                    let (key, name) = part.split_once(':').unwrap_or((part, part));
                    let key = match key.trim() {
                        "payload" => "event",
                        key => key,
                    };
                    names.insert(name.trim().to_owned(), format!("{path}.{}", key.to_lowercase()));
                }
            }
            None if left.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$') => {
                names.insert(left.to_owned(), path);
            }
            None => {}
        }
    }
    names
}

/// The parts of the event that code names, without those of which it only asks something.
fn paths(code: &str, names: &BTreeMap<String, String>) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let mut found = vec![];
    for (name, path) in names {
        for (at, _) in code.match_indices(name.as_str()) {
            let (before, after) = (&code[..at], &code[at + name.len()..]);
            if before.ends_with(is_part) || before.ends_with('.') || after.starts_with(is_part) {
                continue;
            }
            let mut path = path.clone();
            let mut rest = after;
            let mut last = String::new();
            while let Some(next) = rest.strip_prefix("?.").or_else(|| rest.strip_prefix('.')) {
                last = first_name(next);
                rest = next.trim_start_matches(is_part);
                if rest.starts_with('(') || TELLING.contains(&last.as_str()) {
                    break;
                }
                path = format!("{path}.{last}");
            }
            if !TELLING.contains(&last.as_str()) {
                found.push(path);
            }
        }
    }
    found
}
