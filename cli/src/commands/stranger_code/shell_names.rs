//! Text that bash takes for a number or for the name of a variable: either may have an index, and an index may have a
//! command.

use std::collections::BTreeSet;

use super::as_code::{MAX_PARTS, StrangerText, first_name, variables};
use super::shell::{ShellCommand, ShellWord};
use super::shell_text::{after, bare};

/// Nobody writes longer ones. They could take long to read.
const MAX_EXPANSION_BYTES: usize = 1000;

/// What a script says its variables are, by their names in lower case.
#[derive(Debug, Clone, Default)]
pub struct ShellVariables {
    /// Associative arrays: their indexes are texts.
    maps: BTreeSet<String>,
    /// Whole numbers.
    numbers: BTreeSet<String>,
    /// Arrays that begin with a word of the script.
    led: BTreeSet<String>,
}

impl ShellVariables {
    pub fn new(commands: &[ShellCommand]) -> Self {
        let (mut found, mut open) = (Self::default(), BTreeSet::new());
        for command in commands {
            let words = bare(&command.words);
            found.add_declared(words);
            let arrays = words.iter().filter(|word| word.is_array);
            for (name, values) in arrays.filter_map(|word| word.open.split_once('=')) {
                match values.split_whitespace().next() {
                    Some(first) if !first.contains('$') => found.led.insert(first_name(name)),
                    // What `+=` adds comes after the first word.
                    Some(_) if !name.ends_with('+') => open.insert(first_name(name)),
                    _ => false,
                };
            }
        }
        found.led.retain(|name| !open.contains(name));
        found
    }

    fn add_declared(&mut self, words: &[ShellWord]) {
        let Some((first, rest)) = words.split_first() else { return };
        if !["declare", "local", "readonly", "typeset"].contains(&first.text.as_str()) {
            return;
        }
        let has = |letter| rest.iter().any(|word| has_option(word, letter));
        let names = || {
            let names = rest.iter().filter(|word| !word.text.starts_with('-'));
            names.map(|word| first_name(&word.text))
        };
        if has('A') {
            self.maps.extend(names());
        }
        if has('i') {
            self.numbers.extend(names());
        }
    }

    /// Whether a word is all of an array whose first word, which is the program, is the script's own.
    pub fn is_led_array(&self, open: &str) -> bool {
        let inner = open.strip_prefix("${").and_then(|rest| rest.split_once('['));
        inner.is_some_and(|(name, index)| {
            index.starts_with('@') && self.led.contains(&name.to_lowercase())
        })
    }

    /// Whether one of these variables is a whole number.
    pub fn have_number(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.numbers.contains(name))
    }
}

pub fn has_option(word: &ShellWord, letter: char) -> bool {
    let letters = word.text.strip_prefix('-');
    letters.is_some_and(|letters| !letters.starts_with('-') && letters.contains(letter))
}

/// Whether a command takes text of a stranger for a number or a name.
pub fn evaluates_text(command: &ShellCommand, text: &StrangerText<'_>) -> bool {
    let words = bare(&command.words);
    command.words.iter().any(|word| expansion_evaluates_text(&word.open, text))
        || words.first().is_some_and(|word| sets_element(&word.open, text))
        || builtin_evaluates_text(words, text)
}

fn expansion_evaluates_text(open: &str, text: &StrangerText<'_>) -> bool {
    let numbers = open.split("$((").skip(1).take(MAX_PARTS);
    let mut numbers = numbers.filter_map(|rest| rest.split("))").next());
    let expansions = open.match_indices("${").take(MAX_PARTS);
    let mut expansions = expansions.map(|(at, _)| {
        let rest = &open[at + 2..];
        &rest[..rest.floor_char_boundary(MAX_EXPANSION_BYTES)]
    });
    numbers.any(|number| names_in(number, text))
        || expansions.any(|rest| braces_evaluate_text(rest, text))
}

/// Whether bash evaluates a stranger's text in what follows `${`: as an index (`${a[$N]}`), as an offset (`${a:$N}`),
/// as the name of a variable (`${!N}`), or as a prompt (`${N@P}`).
fn braces_evaluate_text(rest: &str, text: &StrangerText<'_>) -> bool {
    let (is_indirect, rest) = rest.strip_prefix('!').map_or((false, rest), |rest| (true, rest));
    let name = first_name(rest);
    let after = rest.trim_start_matches(is_part);
    if name == "env" && is_named_by_powershell(after) {
        return false;
    }
    let is_text = text.names.contains(&name) || text.parameters.contains_key(&name);
    let (index, after) = split_index(after);
    let is_list = matches!(index, Some("@" | "*")) || after.starts_with(['@', '*']);
    if is_text && ((is_indirect && !is_list) || after.starts_with("@P")) {
        return true;
    }
    let is_map = text.variables.maps.contains(&name);
    let is_number = |index: &str| !is_list && !is_map && names_in(index, text);
    let start = after.strip_prefix(':').filter(|start| !start.starts_with(['-', '=', '?', '+']));
    let start = start.map(|start| start.split_once('}').map_or(start, |(start, _)| start));
    index.is_some_and(is_number) || start.is_some_and(|start| names_in(start, text))
}

/// Whether `${env` is the start of PowerShell's `${env:NAME}`.
fn is_named_by_powershell(after: &str) -> bool {
    after.strip_prefix(':').is_some_and(|rest| rest.trim_start_matches(is_part).starts_with('}'))
}

/// The index at the start of a text, without its brackets, and what comes after it.
fn split_index(text: &str) -> (Option<&str>, &str) {
    match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((index, rest)) => (Some(index), rest),
        None => (None, text),
    }
}

/// Whether an assignment, such as `a[$N]=1`, has text of a stranger as its index.
fn sets_element(open: &str, text: &StrangerText<'_>) -> bool {
    let name = first_name(open);
    let (index, after) = split_index(open.trim_start_matches(is_part));
    let is_set = !name.is_empty() && (after.starts_with('=') || after.starts_with("+="));
    is_set
        && !text.variables.maps.contains(&name)
        && index.is_some_and(|index| names_in(index, text))
}

fn builtin_evaluates_text(words: &[ShellWord], text: &StrangerText<'_>) -> bool {
    let Some((first, rest)) = words.split_first() else { return false };
    let is_text = |word: &ShellWord| text.expands_in(&word.open);
    let is_value = |options: &[&str]| after(words, options).is_some_and(is_text);
    match first.text.as_str() {
        "unset" => rest.iter().any(is_text),
        "[[" | "[" | "test" => is_value(&["-v", "-R"]),
        "printf" => is_value(&["-v"]),
        "mapfile" | "readarray" => is_value(&["-C"]),
        "read" => {
            let letters = ['d', 'i', 'n', 'N', 'p', 't', 'u'];
            let with_value =
                |word: &ShellWord| word.text.starts_with('-') && word.text.ends_with(letters);
            let names = rest.iter().enumerate().filter(|(_, word)| !word.text.starts_with("<("));
            let mut names = names.filter(|(at, _)| *at == 0 || !with_value(&rest[at - 1]));
            names.any(|(_, word)| is_text(word))
        }
        // A word without a name before it sets whatever it names, and `-n` takes its value for a name.
        "export" => rest.iter().any(|word| word.open.starts_with('$') && is_text(word)),
        "declare" | "local" | "typeset" => {
            let is_evaluated = |word: &ShellWord| has_option(word, 'i') || has_option(word, 'n');
            rest.iter().any(|word| word.open.starts_with('$') && is_text(word))
                || (rest.iter().any(is_evaluated) && rest.iter().any(is_text))
        }
        "((" | "let" => words.iter().any(|word| names_in(&word.open, text)),
        _ => false,
    }
}

/// Whether an expression of numbers names a variable with text of a stranger, which needs no `$` there.
fn names_in(expression: &str, text: &StrangerText<'_>) -> bool {
    let expression = without_lengths(expression);
    let (own, substitutions) = without_substitutions(&expression);
    let mut names = own.split(|c| !is_part(c)).map(str::to_lowercase);
    names.any(|name| text.names.contains(&name))
        || variables(&own).any(|name| text.parameters.contains_key(&name))
        || substitutions.iter().any(|one| !one.contains("wc ") && text.expands_in(one))
}

/// Without `${#…}`, the length of a text.
fn without_lengths(expression: &str) -> String {
    let mut parts = expression.split("${#");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('}').map_or("", |(_, rest)| rest));
    rest.fold(first, |all, part| all + " " + part)
}

/// An expression without its `$(…)`, and these.
fn without_substitutions(expression: &str) -> (String, Vec<&str>) {
    let (mut own, mut inner, mut rest) = (String::new(), vec![], expression);
    while let Some(start) = rest.find("$(").filter(|_| inner.len() < MAX_PARTS) {
        let length = end_of_brackets(&rest[start + 2..]);
        let end = start + 2 + length;
        own.push_str(&rest[..start]);
        own.push(' ');
        inner.push(&rest[start..end]);
        rest = &rest[end..];
    }
    own.push_str(rest);
    (own, inner)
}

/// Where the bracket closes that is open, with it.
fn end_of_brackets(text: &str) -> usize {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
