//! Scripts for `actions/github-script`: where they have text of the event, and whether they run it.

use std::collections::BTreeMap;

use super::as_code::{
    MAX_PARTS, StrangerText, calls, end_of_call, first_name, literals, names_before_values,
    runs_file,
};
use super::scope::FETCHED_TEXT;

const PAYLOAD: &str = "context.payload";

/// Stands for what GitHub's API answers about pull requests, issues, comments and commits.
const ANSWER: &str = "github.answer";

/// Parts of the calls that get such an answer.
const ASKS: [&str; 11] = [
    "pulls.get",
    "pulls.list",
    "issues.get",
    "issues.list",
    "repos.getCommit",
    "repos.listCommits",
    "repos.compareCommits",
    "listPullRequestsAssociatedWithCommit",
    "search.issuesAndPullRequests",
    "github.request(",
    "octokit.request(",
];

/// The names of texts in an answer that strangers write.
const TEXTS_OF_ANSWERS: [&str; 7] =
    ["title", "body", "ref", "label", "message", "filename", "diff_hunk"];

/// Parts of regular expressions that match any text, also one that a shell would run.
const MATCHES_ANYTHING: [&str; 7] = [".*", ".+", ".{", "\\S", "\\W", "\\D", "[^"];

/// Patterns in patterns. Nobody writes as many.
const MAX_DEPTH: usize = 20;

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

/// Calls whose result has none of the text that they are given.
const TELLING_CALLS: [&str; 6] =
    [".has(", ".includes(", ".test(", "Boolean(", "Number(", "parseInt("];

/// Whether a script runs text of a stranger: as JavaScript, as a command of a shell, or as a program.
pub fn runs_text(script: &str, tainted: &mut StrangerText<'_>) -> bool {
    let names = names(script);
    write_files(script, &names, tainted);
    let exported = exported(script, &names, tainted);
    tainted.exported.extend(exported);
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

/// The arguments of each call that writes a file.
fn written_files(script: &str) -> Vec<&str> {
    let writes = ["writeFile", "writeFileSync", "appendFile", "appendFileSync"];
    let modules = ["", "fs.", "fs.promises.", "fsp.", "require('fs').", "require(\"fs\")."];
    let written = writes.iter().flat_map(|name| modules.map(|module| format!("{module}{name}")));
    written.flat_map(|name| calls(script, &name)).collect()
}

/// Adds the files that a script writes text of a stranger into.
fn write_files(script: &str, names: &BTreeMap<String, String>, tainted: &mut StrangerText<'_>) {
    for arguments in written_files(script) {
        let file = first_argument(arguments);
        let rest = &arguments[file.len()..];
        let is_text = paths(rest, names).iter().any(|path| tainted.is_text(path))
            || reads_variable(rest, tainted);
        if let Some(file) = literals(file).last().filter(|_| is_text) {
            tainted.files.add(file, false);
        }
    }
}

/// The variables of later steps that a script sets to text of a stranger.
fn exported(
    script: &str,
    names: &BTreeMap<String, String>,
    tainted: &StrangerText<'_>,
) -> Vec<String> {
    let is_text = |value: &str| {
        paths(value, names).iter().any(|path| tainted.is_text(path))
            || reads_variable(value, tainted)
    };
    let written = written_files(script).into_iter().filter_map(|arguments| {
        let file = first_argument(arguments);
        let value = &arguments[file.len()..];
        (file.contains("GITHUB_ENV") && is_text(value)).then(|| names_before_values(value))
    });
    let all = calls(script, "core.exportVariable").into_iter();
    let set = all.filter_map(|arguments| {
        let name = first_argument(arguments);
        let value = &arguments[name.len()..];
        literals(name).next().filter(|_| is_text(value)).map(str::to_lowercase)
    });
    set.chain(written.flatten()).collect()
}

/// The parts of the event that a script returns or sets as outputs, as the contexts of expressions. The name is that of
/// the output, in lower case; `None` where it may be any.
pub fn outputs(script: &str) -> Vec<(Option<String>, Vec<String>)> {
    let names = names(script);
    let returned =
        script.split("return ").skip(1).map(|rest| rest.split([';', '\n']).next().unwrap_or(""));
    let exported = calls(script, "core.exportVariable").into_iter();
    let unnamed = returned.chain(exported).map(|code| (None, paths(code, &names)));
    let set = calls(script, "core.setOutput").into_iter().map(|arguments| {
        let name = first_argument(arguments);
        (fixed_text(name), paths(&arguments[name.len()..], &names))
    });
    unnamed.chain(set).collect()
}

/// The text that code is, in lower case, if nothing in it is computed.
pub fn fixed_text(code: &str) -> Option<String> {
    let code = code.trim();
    let quote = code.chars().next().filter(|quote| ['\'', '"', '`'].contains(quote))?;
    let inner = code.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inner.contains([quote, '$'])).then(|| inner.to_lowercase())
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
    if code.contains("process.argv") && !tainted.parameters.is_empty() {
        return true;
    }
    code.split("process.env").skip(1).any(|rest| {
        let name = rest.trim_start_matches(['.', '?', '[', '\'', '"']);
        tainted.names.contains(&first_name(name))
    })
}

/// The variables of a script that stand for parts of the event.
fn names(script: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::from([(PAYLOAD.to_owned(), "github.event".to_owned())]);
    let patterns = patterns(script);
    for line in script.split(['\n', ';']) {
        if names.len() > MAX_PARTS {
            break;
        }
        let Some((left, right)) = line.split_once('=') else { continue };
        let left = left.trim().trim_start_matches("const ").trim_start_matches("let ");
        let left = left.trim_start_matches("var ").trim();
        if captures_what_it_expects(right, &patterns) {
            continue;
        }
        let right = with_captures(right.trim(), &patterns);
        let whole = match right.as_str() {
            "context" => Some("github"),
            call if ASKS.iter().any(|part| call.contains(part)) => Some(ANSWER),
            _ => None,
        };
        let found = whole.map(str::to_owned);
        let found = found.or_else(|| whole_paths(&right, &names).into_iter().next());
        let Some(path) = found else { continue };
        let is_texts = path.starts_with(ANSWER) && takes_text_of_each(&right);
        let path = if is_texts { FETCHED_TEXT } else { path.as_str() };
        add_names(left, path, 0, &mut names);
    }
    names
}

/// Code with `match` under another name where what it captures may be any text.
fn with_captures(code: &str, patterns: &BTreeMap<&str, &str>) -> String {
    let given = code.split(".match(").nth(1).unwrap_or_default();
    let pattern = pattern_of_name(given, patterns).unwrap_or(given);
    match matches_anything(pattern) {
        true => code.replace(".match(", ".captures("),
        false => code.to_owned(),
    }
}

/// Whether a value is what a regular expression without wildcards captures by its `exec`.
fn captures_what_it_expects(assigned: &str, patterns: &BTreeMap<&str, &str>) -> bool {
    let Some((before, _)) = assigned.split_once(".exec(") else { return false };
    let before = before.trim();
    let pattern = match before.starts_with('/') {
        true => Some(before),
        false => pattern_of_name(before, patterns),
    };
    pattern.is_some_and(|pattern| !matches_anything(pattern)) && !matches_anything(assigned)
}

fn matches_anything(pattern: &str) -> bool {
    MATCHES_ANYTHING.iter().any(|part| pattern.contains(part))
}

/// The regular expressions that a script gives names.
fn patterns(script: &str) -> BTreeMap<&str, &str> {
    let assigned = script.split(['\n', ';']).filter_map(|line| line.split_once('='));
    let named = assigned.filter_map(|(left, right)| {
        let (name, right) = (left.split_whitespace().next_back()?, right.trim());
        right.starts_with('/').then_some((name, right))
    });
    named.take(MAX_PARTS).collect()
}

/// The one whose name code begins with.
fn pattern_of_name<'a>(code: &str, patterns: &BTreeMap<&str, &'a str>) -> Option<&'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let end = code.find(|c| !is_part(c)).unwrap_or(code.len());
    patterns.get(&code[..end]).copied()
}

/// Adds the name on the left of an assignment, or those of its pattern, such as `{ data: { title } }` or `[, branch]`.
fn add_names(left: &str, path: &str, depth: usize, names: &mut BTreeMap<String, String>) {
    let left = left.trim();
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    if depth > MAX_DEPTH || names.len() > MAX_PARTS {
        return;
    }
    if let Some(inner) = left.strip_prefix('[') {
        let each = inner.trim_end_matches(']').split(',').filter(|name| !name.trim().is_empty());
        each.for_each(|name| add_names(name, path, depth + 1, names));
    } else if let Some(inner) = left.strip_prefix('{') {
        let mut rest = inner.strip_suffix('}').unwrap_or(inner);
        while !rest.is_empty() {
            let part = first_argument(rest);
            rest = rest[part.len()..].trim_start_matches(',');
            let (key, name) = part.split_once(':').unwrap_or((part, part));
            let key = match key.trim() {
                "payload" => "event",
                key => key,
            };
            add_names(name, &format!("{path}.{}", key.to_lowercase()), depth + 1, names);
        }
    } else if !left.is_empty() && left.chars().all(is_part) {
        names.insert(left.to_owned(), path.to_owned());
    }
}

/// The parts of the event that code names, and a word for texts that GitHub's API answers.
fn paths(code: &str, names: &BTreeMap<String, String>) -> Vec<String> {
    let whole = whole_paths(&with_captures(code, &BTreeMap::new()), names).into_iter();
    let named = whole.filter_map(|path| match path.strip_prefix(ANSWER) {
        None => Some(path),
        Some(part) => is_text_of_answer(part, code).then(|| FETCHED_TEXT.to_owned()),
    });
    named.collect()
}

fn is_text_of_answer(part: &str, code: &str) -> bool {
    let last = part.rsplit('.').next().unwrap_or_default();
    !part.contains(".base") && (TEXTS_OF_ANSWERS.contains(&last) || takes_text_of_each(code))
}

/// Whether code makes a list of the texts of many answers, such as the names of changed files.
fn takes_text_of_each(code: &str) -> bool {
    let lower = code.to_lowercase();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let names = |name: &&str| {
        let property = format!(".{name}");
        let mut found = lower.match_indices(&property);
        found.any(|(at, _)| !lower[at + property.len()..].starts_with(is_part))
    };
    let has = |all: &[&str]| all.iter().any(names);
    lower.contains(".map(") && has(&TEXTS_OF_ANSWERS) && !has(&TELLING)
}

/// The parts of the event and of answers that code names, without those of which it only asks something.
fn whole_paths(code: &str, names: &BTreeMap<String, String>) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let mut found = vec![];
    for (name, path) in names {
        for (at, _) in code.match_indices(name.as_str()) {
            let (before, after) = (&code[..at], &code[at + name.len()..]);
            let is_text = ['\'', '"']
                .iter()
                .any(|quote| before.ends_with(*quote) && after.starts_with(*quote));
            let is_other = before.ends_with(is_part) || before.ends_with('.');
            if is_text || is_other || after.starts_with(is_part) {
                continue;
            }
            let mut path = path.clone();
            let mut rest = without_index(after);
            let (mut is_told, mut is_returned) = (false, false);
            while let Some(next) = rest.strip_prefix("?.").or_else(|| rest.strip_prefix('.')) {
                let last = first_name(next);
                rest = without_index(next.trim_start_matches(is_part));
                is_told = TELLING.contains(&last.as_str());
                if is_told {
                    break;
                }
                match rest.strip_prefix('(') {
                    // What `trim()` and the like return has the text, too.
                    Some(inner) => {
                        let returned = inner.get(end_of_call(inner) + 1..).unwrap_or_default();
                        (rest, is_returned) = (without_index(returned), true);
                    }
                    None if is_returned => {}
                    None => path = format!("{path}.{last}"),
                }
            }
            if !is_told && !is_only_compared(before, rest) {
                found.push(path);
            }
        }
    }
    found
}

/// Whether a value is compared, negated, only decides between two others, or a call tells only something of it.
fn is_only_compared(before: &str, after: &str) -> bool {
    let (before, after) = (before.trim_end(), after.trim_start());
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let is_told = TELLING_CALLS.iter().any(|call| {
        let rest = before.strip_suffix(call);
        rest.is_some_and(|rest| call.starts_with('.') || !rest.ends_with(is_part))
    });
    is_told
        || before.ends_with('!')
        || ["==", "!="].iter().any(|sign| before.ends_with(sign))
        || ["==", "!=", "? "].iter().any(|sign| after.starts_with(sign))
}

/// Code after the number of an element, if it begins with one.
fn without_index(code: &str) -> &str {
    let inner = code.strip_prefix("?.").unwrap_or(code).strip_prefix('[');
    let rest = inner.map(|inner| inner.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.and_then(|rest| rest.strip_prefix(']')).unwrap_or(code)
}
