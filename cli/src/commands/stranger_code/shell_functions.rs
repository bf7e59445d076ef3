//! Functions of a script of a shell, and the text of strangers that their parameters are given.

use std::collections::BTreeMap;

use super::as_code::{MAX_PARTS, StrangerText};
use super::shell::{ShellCommand, ShellWord};
use super::shell_text::bare;

/// The parameters that hold text of a stranger, by their numbers and `@` for all together. `true` for those that may
/// have several lines.
pub type ShellParameters = BTreeMap<String, bool>;

/// Nobody names more parameters by their numbers.
const MAX_NUMBER: usize = 10;

/// `0` is the script itself, the others are its functions.
type FunctionNumber = usize;

#[derive(Debug)]
pub struct ShellFunctions {
    by_name: BTreeMap<String, FunctionNumber>,
    /// The function that each command is in.
    of_commands: Vec<FunctionNumber>,
    /// By how many places a function moves its parameters by `shift`, at most.
    shifts: Vec<usize>,
    given: Vec<ShellParameters>,
}

impl ShellFunctions {
    /// `given` are the parameters of the script itself.
    pub fn new(commands: &[ShellCommand], given: ShellParameters) -> Self {
        let mut found = Self {
            by_name: BTreeMap::new(),
            of_commands: Vec::with_capacity(commands.len()),
            shifts: vec![0],
            given: vec![given],
        };
        let mut loops = vec![0];
        // The functions around a command, each with its open braces.
        let mut open: Vec<(FunctionNumber, usize)> = vec![];
        for command in commands {
            let outer = command.within.and_then(|outer| found.of_commands.get(outer).copied());
            let around = outer.or(open.last().map(|(function, _)| *function)).unwrap_or_default();
            found.of_commands.push(around);
            let name = command.words.last().filter(|_| command.begins_function);
            if let Some(name) = name.filter(|_| outer.is_none()) {
                open.push((found.given.len(), 0));
                found.by_name.insert(name.text.clone(), found.given.len());
                found.shifts.push(0);
                loops.push(0);
                found.given.push(ShellParameters::new());
                continue;
            }
            let words = bare(&command.words);
            loops[around] = loops_after(command, loops[around]);
            let shift = shift_of(words, loops[around]);
            found.shifts[around] = found.shifts[around].saturating_add(shift);
            if outer.is_some() {
                continue;
            }
            let Some((_, braces)) = open.last_mut() else { continue };
            let before = &command.words[..command.words.len() - words.len()];
            *braces += before.iter().filter(|word| word.text == "{").count();
            let ends = command.words.first().is_some_and(|word| word.text == "}");
            *braces = braces.saturating_sub(usize::from(ends));
            if *braces == 0 {
                open.pop();
            }
        }
        found
    }

    /// What the parameters of the function hold that a command is in.
    pub fn parameters(&self, at: usize) -> ShellParameters {
        self.given[self.of_commands[at]].clone()
    }

    /// Notes what a command gives the function that it calls, or by `set --` the one that it is in.
    pub fn call(&mut self, command: &ShellCommand, at: usize, text: &StrangerText<'_>) {
        let Some((first, words)) = bare(&command.words).split_first() else { return };
        let (function, words) = match self.by_name.get(&first.text) {
            Some(function) => (*function, words),
            None if first.text == "set" => {
                let Some(end) = words.iter().position(|word| word.text == "--") else { return };
                (self.of_commands[at], &words[end + 1..])
            }
            None => return,
        };
        let mut given = parameters(words, 1, text);
        let shift = self.shifts[function];
        // A variable without quotes is several parameters.
        let is_split =
            words.iter().take(MAX_PARTS).any(|word| word.is_split && text.expands_in(&word.open));
        let numbered = given.iter().filter_map(|(name, lines)| Some((name.parse().ok()?, *lines)));
        for (number, lines) in numbered.collect::<Vec<(usize, bool)>>() {
            let end = if is_split && shift > 0 { MAX_NUMBER } else { number.min(MAX_NUMBER) };
            for moved in number.saturating_sub(shift).max(1)..end {
                *given.entry(moved.to_string()).or_default() |= lines;
            }
        }
        let known = &mut self.given[function];
        for (name, lines) in given {
            *known.entry(name).or_default() |= lines;
        }
    }
}

/// How many loops are open after a command.
fn loops_after(command: &ShellCommand, before: usize) -> usize {
    let words = bare(&command.words);
    let keywords = &command.words[..command.words.len() - words.len()];
    let is_start = |word: &&ShellWord| ["for", "until", "while"].contains(&word.text.as_str());
    let starts = keywords.iter().chain(words.first()).filter(is_start).count();
    let ends = command.words.first().is_some_and(|word| word.text == "done");
    (before + starts).saturating_sub(usize::from(ends))
}

/// By how many places a command moves the parameters, at most.
fn shift_of(words: &[ShellWord], loops: usize) -> usize {
    match words {
        [first, ..] if first.text != "shift" => 0,
        [] => 0,
        [_] if loops == 0 => 1,
        [_, by, ..] if loops == 0 => by.text.parse().unwrap_or(usize::MAX),
        _ => usize::MAX,
    }
}

/// The parameters that these words become; the first word is parameter number `first`.
pub fn parameters(words: &[ShellWord], first: usize, text: &StrangerText<'_>) -> ShellParameters {
    let mut found = ShellParameters::new();
    for (at, word) in words.iter().take(MAX_PARTS).enumerate() {
        if text.expands_in(&word.open) {
            let lines = text.lines_expand_in(&word.open);
            found.insert((first + at).to_string(), lines);
            *found.entry("@".to_owned()).or_default() |= lines;
        }
    }
    found
}
