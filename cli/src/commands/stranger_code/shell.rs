//! Scripts of a shell as their commands, as far as it takes to see which text is run.

/// Substitutions in substitutions. Nobody writes as many.
const MAX_DEPTH: usize = 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShellWord {
    /// The word as the program gets it, without its quotes.
    pub text: String,
    /// Its parts in which variables expand: all but those in single quotes.
    pub open: String,
    /// Whether something expands outside of quotes, which may become several words.
    pub is_split: bool,
    /// Whether it sets the values of an array.
    pub is_array: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShellCommand {
    pub words: Vec<ShellWord>,
    /// What expands in the text that it is given by `<<` or `<<<`.
    pub input: String,
    /// The text that it is given by `<<'END'`, in which nothing expands.
    pub fixed_input: String,
    /// Files that it is given by `<`.
    pub reads: Vec<String>,
    /// Files that its output goes to.
    pub writes: Vec<ShellOutput>,
    /// Whether it reads what the command before it prints.
    pub is_piped: bool,
    /// Whether the body of a function begins behind it, whose name is its last word.
    pub begins_function: bool,
    /// The place of the command that has it in a substitution.
    pub within: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellOutput {
    pub file: String,
    pub appends: bool,
}

/// The commands of a script, and after them those of its substitutions.
pub fn commands(script: &str) -> Vec<ShellCommand> {
    let mut found = vec![];
    add_commands(script, 0, None, &mut found);
    found
}

fn add_commands(script: &str, depth: usize, within: Option<usize>, found: &mut Vec<ShellCommand>) {
    let mut reader = ShellReader {
        text: script.chars().collect(),
        at: 0,
        command: ShellCommand::default(),
        commands: vec![],
        inner: vec![],
        heredocs: vec![],
        is_in_test: false,
    };
    reader.read();
    let start = found.len();
    let own = reader.commands.into_iter().map(|command| ShellCommand { within, ..command });
    found.extend(own);
    for (inner, command) in reader.inner.into_iter().filter(|_| depth < MAX_DEPTH) {
        add_commands(&inner, depth + 1, Some(start + command), found);
    }
}

struct ShellReader {
    text: Vec<char>,
    at: usize,
    command: ShellCommand,
    commands: Vec<ShellCommand>,
    /// The scripts in `$(…)` and backticks, read after this one, each with the place of its command.
    inner: Vec<(String, usize)>,
    heredocs: Vec<PendingHeredoc>,
    /// Between `[[` and `]]`.
    is_in_test: bool,
}

/// A text that starts on the next line.
struct PendingHeredoc {
    end: String,
    expands: bool,
    /// The place of its command.
    command: usize,
}

impl ShellReader {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn is_next(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(n, c)| self.text.get(self.at + n) == Some(&c))
    }

    fn read(&mut self) {
        while let Some(next) = self.peek() {
            match next {
                // `&&` and `<` are the test's own there.
                _ if self.is_in_test && (next.is_whitespace() || ";&|()<>".contains(next)) => {
                    self.at += 1;
                }
                '\n' => {
                    self.at += 1;
                    self.end_command(false);
                    self.read_heredocs();
                }
                '(' if self.is_next("((") && self.may_start_command() => {
                    // The numbers of a loop are a command of their own here.
                    if self.command.words.iter().any(|word| word.text == "for") {
                        self.end_command(false);
                    }
                    self.at += 2;
                    let open = self.until("))");
                    let text = "((".to_owned();
                    self.command.words.push(ShellWord { text, open, ..ShellWord::default() });
                }
                ';' | '&' | '(' | ')' => {
                    self.at += 1;
                    self.command.begins_function |= next == '(' && self.is_next_closed();
                    self.end_command(false);
                    self.skip_blanks();
                    // The end of a subshell stands for its output.
                    if next == ')' && matches!(self.peek(), Some('<' | '>' | '|')) {
                        let text = ")".to_owned();
                        self.command.words.push(ShellWord { text, ..ShellWord::default() });
                    }
                }
                '|' => {
                    self.at += 1;
                    let is_or = self.peek() == Some('|');
                    self.at += usize::from(matches!(self.peek(), Some('|' | '&')));
                    self.end_command(!is_or);
                }
                '#' => self.skip_line(),
                '<' | '>' => self.redirection(next),
                _ if next.is_whitespace() => self.at += 1,
                _ => {
                    let word = self.word();
                    self.is_in_test = word.text == "[[" || (self.is_in_test && word.text != "]]");
                    self.command.words.push(word);
                    if let [first, _] = &self.command.words[..]
                        && first.text == "function"
                    {
                        self.command.begins_function = true;
                        self.end_command(false);
                    }
                }
            }
        }
        self.end_command(false);
    }

    /// Whether nothing stands before the next word but words of the shell.
    fn may_start_command(&self) -> bool {
        let before = ["!", "{", "do", "elif", "else", "for", "if", "then", "until", "while"];
        self.command.words.iter().all(|word| before.contains(&word.text.as_str()))
    }

    /// Whether a bracket closes at once what a name and a bracket have begun.
    fn is_next_closed(&self) -> bool {
        let mut rest = self.text[self.at..].iter().skip_while(|c| matches!(c, ' ' | '\t'));
        !self.command.words.is_empty() && rest.next() == Some(&')')
    }

    fn skip_line(&mut self) {
        while self.peek().is_some_and(|c| c != '\n') {
            self.at += 1;
        }
    }

    fn end_command(&mut self, pipes: bool) {
        let ended = std::mem::take(&mut self.command);
        // A line break after `|` doesn't end the pipeline.
        let goes_on = ended.words.is_empty() && ended.is_piped;
        self.command.is_piped = pipes || goes_on;
        if !(ended.words.is_empty() && ended.reads.is_empty() && ended.writes.is_empty()) {
            self.commands.push(ended);
        }
    }

    fn redirection(&mut self, sign: char) {
        if self.text.get(self.at + 1) == Some(&'(') {
            self.at += 2;
            let inner = self.until_bracket();
            self.inner.push((inner.clone(), self.commands.len()));
            let open = format!("$({inner})");
            let text = format!("{sign}(");
            self.command.words.push(ShellWord { text, open, ..ShellWord::default() });
        } else if self.is_next("<<<") {
            self.at += 3;
            let word = self.next_word();
            self.command.input.push_str(&word.open);
        } else if self.is_next("<<") {
            self.at += 2 + usize::from(self.text.get(self.at + 2) == Some(&'-'));
            self.skip_blanks();
            let expands = !matches!(self.peek(), Some('\'' | '"' | '\\'));
            let end = self.word().text;
            self.heredocs.push(PendingHeredoc { end, expands, command: self.commands.len() });
        } else {
            let appends = self.is_next(">>");
            while matches!(self.peek(), Some('<' | '>' | '&' | '|')) {
                self.at += 1;
            }
            // A process that is read from, or a file.
            self.skip_blanks();
            if !(self.is_next("<(") || self.is_next(">(")) {
                let file = self.word().text;
                match sign {
                    '<' => self.command.reads.push(file),
                    _ => self.command.writes.push(ShellOutput { file, appends }),
                }
            }
        }
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.at += 1;
        }
    }

    fn next_word(&mut self) -> ShellWord {
        self.skip_blanks();
        self.word()
    }

    fn read_heredocs(&mut self) {
        for PendingHeredoc { end, expands, command } in std::mem::take(&mut self.heredocs) {
            while self.at < self.text.len() {
                let start = self.at;
                self.skip_line();
                let line: String = self.text[start..self.at].iter().collect();
                self.at += 1;
                if line.trim() == end {
                    break;
                }
                if let Some(command) = self.commands.get_mut(command) {
                    let input = if expands { &mut command.input } else { &mut command.fixed_input };
                    input.push_str(&line);
                    input.push('\n');
                }
            }
        }
    }

    /// The text before `end`, which is skipped.
    fn until(&mut self, end: &str) -> String {
        let start = self.at;
        while self.at < self.text.len() && !self.is_next(end) {
            self.at += 1;
        }
        let text = self.text[start..self.at].iter().collect();
        self.at = self.text.len().min(self.at + end.chars().count());
        text
    }

    /// The text before the bracket that closes what is open.
    fn until_bracket(&mut self) -> String {
        let (start, mut depth, mut quote) = (self.at, 1, None);
        while let Some(next) = self.peek() {
            match (next, quote) {
                ('\\', Some('"') | None) => self.at += 1,
                ('\'' | '"', None) => quote = Some(next),
                (_, Some(open)) if open == next => quote = None,
                ('(', None) => depth += 1,
                (')', None) => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            self.at += 1;
        }
        let end = self.at.min(self.text.len());
        self.at = self.text.len().min(end + 1);
        self.text[start..end].iter().collect()
    }

    fn word(&mut self) -> ShellWord {
        let mut word = ShellWord::default();
        while let Some(next) = self.peek() {
            match next {
                '\\' => {
                    word.text.extend(self.text.get(self.at + 1));
                    self.at += 2;
                }
                '\'' => {
                    self.at += 1;
                    word.text.push_str(&self.until("'"));
                }
                '"' => {
                    self.at += 1;
                    self.double_quoted(&mut word);
                }
                '$' | '`' => {
                    word.is_split = true;
                    self.expansion(&mut word);
                }
                // The values of an array.
                '(' if word.text.ends_with('=') => {
                    self.at += 1;
                    word.is_array = true;
                    let values = self.until_bracket();
                    word.text.push_str(&values);
                    word.open.push_str(&values);
                }
                _ if next.is_whitespace() || ";&|()<>".contains(next) => break,
                _ => {
                    self.at += 1;
                    word.text.push(next);
                    word.open.push(next);
                }
            }
        }
        word
    }

    fn double_quoted(&mut self, word: &mut ShellWord) {
        while let Some(next) = self.peek() {
            match next {
                '"' => {
                    self.at += 1;
                    return;
                }
                '\\' => {
                    word.text.extend(self.text.get(self.at + 1));
                    self.at += 2;
                }
                '$' | '`' => self.expansion(word),
                _ => {
                    self.at += 1;
                    word.text.push(next);
                    word.open.push(next);
                }
            }
        }
    }

    /// From `$` or a backtick on.
    fn expansion(&mut self, word: &mut ShellWord) {
        let mut add = |text: &str| {
            word.text.push_str(text);
            word.open.push_str(text);
        };
        if self.is_next("$((") {
            self.at += 3;
            let inner = self.until("))");
            add(&format!("$(({inner}))"));
        } else if self.is_next("$(") {
            self.at += 2;
            let inner = self.until_bracket();
            add(&format!("$({inner})"));
            self.inner.push((inner, self.commands.len()));
        } else if self.is_next("`") {
            self.at += 1;
            let inner = self.until("`");
            add(&format!("$({inner})"));
            self.inner.push((inner, self.commands.len()));
        } else if self.is_next("$[") {
            self.at += 2;
            let inner = self.until("]");
            add(&format!("$(({inner}))"));
        } else if self.is_next("${") {
            self.at += 2;
            let inner = self.until("}");
            add(&format!("${{{inner}}}"));
        } else {
            self.at += 1;
            add("$");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(script: &str) -> Vec<String> {
        let shown = |command: ShellCommand| {
            let words: Vec<_> =
                command.words.iter().map(|word| format!("{}~{}", word.text, word.open)).collect();
            let pipe = if command.is_piped { "| " } else { "" };
            format!("{pipe}{} <{}>", words.join(" "), command.input)
        };
        commands(script).into_iter().map(shown).collect()
    }

    #[test]
    fn script_is_read_as_its_commands() {
        for (script, expected) in [
            ("a 'b $c' \"d $e\"; f # g", vec!["a~a b $c~ d $e~d $e <>", "f~f <>"]),
            ("a | b && c || d", vec!["a~a <>", "| b~b <>", "c~c <>", "d~d <>"]),
            ("a |\n  b", vec!["a~a <>", "| b~b <>"]),
            ("a <<< \"$b\" > c 2>&1", vec!["a~a 2~2 <$b>"]),
            ("a - <<E\n$b\nE\nc", vec!["a~a -~- <$b\n>", "c~c <>"]),
            ("a <<'E'\n$b\nE\nc", vec!["a~a <>", "c~c <>"]),
            (
                "x=$(a \"$(b)\")",
                vec!["x=$(a \"$(b)\")~x=$(a \"$(b)\") <>", "a~a $(b)~$(b) <>", "b~b <>"],
            ),
            ("((a > 1)) && b", vec!["((~a > 1 <>", "b~b <>"]),
            ("if ((a > 1)); then b", vec!["if~if ((~a > 1 <>", "then~then b~b <>"]),
            ("for ((i=0; i<n; i++))", vec!["for~for <>", "((~i=0; i<n; i++ <>"]),
            (". <(a 'b')", vec![".~. <(~$(a 'b') <>", "a~a b~ <>"]),
            ("a \\; 'b", vec!["a~a ;~ b~ <>"]),
            ("[[ $a < b && ($c) ]] && d", vec!["[[~[[ $a~$a b~b $c~$c ]]~]] <>", "d~d <>"]),
            ("a=(b\n\"$c\"); d", vec!["a=b\n\"$c\"~a=b\n\"$c\" <>", "d~d <>"]),
        ] {
            assert_eq!(shown(script), expected, "{script}");
        }
        let deep = "$(".repeat(100_000);
        assert!(commands(&deep).len() <= MAX_DEPTH + 1);
    }
}
